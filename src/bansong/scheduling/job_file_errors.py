"""What is wrong with a job file, for people: the line, the field, what it must be."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, NamedTuple

from msgspec import inspect

from bansong.library_messages import describe_library_error
from bansong.translation import gettext

_PLACE: Final = re.compile(r" - at `\$(?P<path>[^`]*)`$")
_STEP: Final = re.compile(r"\.(?P<key>[^.\[]+)|\[(?P<index>\d+|\.\.\.)\]")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(?P<key>[^`]+)`")
_MISSING: Final = re.compile(r"Object missing required field `(?P<key>[^`]+)`")
_TOML_LINE: Final = re.compile(r" \(at line (\d+), column \d+\)$")
_VARIABLES: Final = ("key_env", "webhook_env")

Steps = list[str | int]


class _Place(NamedTuple):
    """A field: the way to it, and what the job file may hold there; ``None`` where it may hold nothing."""

    steps: Steps
    type: inspect.Type | None

    @property
    def field(self) -> str:
        """The field as people write it."""
        return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.steps).removeprefix(".")


def explain_syntax(path: Path, text: str, error: tomllib.TOMLDecodeError) -> str:
    """Return why a text is not TOML, with its line and, for a path of Windows in it, the remedy."""
    found = _TOML_LINE.search(str(error))
    line = int(found[1]) if found else len(text.splitlines())
    reason = describe_library_error(error)
    said = gettext("{path}, line {line}: is not TOML: {reason}", path=path, line=line, reason=reason)
    if "\\" not in "".join(text.splitlines()[line - 1 : line]):
        return said
    return said + gettext("; write a path of Windows with / or in single quotes: 'C:\\lists\\in.csv'")


def explain_value(path: Path, text: str, values: Mapping[str, Any], model: type, message: str) -> str:
    """Return what msgspec found wrong in the ``values`` of a job file, with line and remedy.

    The value itself is not shown, unless it is a word that another one is close to: it may be a secret.
    """
    place = _PLACE.search(message)
    reason = message[: place.start()] if place else message
    where = _find_place(model, place["path"] if place else "")
    found = _value_at(values, where.steps)
    said = _explain(where, reason, found)
    if unknown := _UNKNOWN.search(reason):
        where = _Place([*where.steps, unknown["key"]], None)
    line = line_of(text, where.steps, found if isinstance(found, str) else None)
    return explain_field(path, line, where.field or gettext("the file"), said)


def explain_field(path: Path, line: int, field: str, reason: str) -> str:
    """Return what is wrong with a field, with its line."""
    return gettext("{path}, line {line}: {field}: {reason}", path=path, line=line, field=field, reason=reason)


def _find_place(model: type, path: str) -> _Place:
    steps: Steps = [
        step["key"] if step["key"] is not None else 0 if step["index"] == "..." else int(step["index"])
        for step in _STEP.finditer(path)
    ]
    type: inspect.Type | None = inspect.type_info(model)
    for step in steps:
        type = _inner_type(type, step)
    return _Place(steps, type)


def _inner_type(type: inspect.Type | None, step: str | int) -> inspect.Type | None:
    members = type.types if isinstance(type, inspect.UnionType) else (type,)
    for member in members:
        if isinstance(member, inspect.StructType) and isinstance(step, str):
            return next((field.type for field in member.fields if field.encode_name == step), None)
        if isinstance(member, inspect.VarTupleType) and isinstance(step, int):
            return member.item_type
    return None


def _value_at(values: Any, steps: Steps) -> Any:
    for step in steps:
        try:
            values = values[step]
        except (KeyError, IndexError, TypeError):
            return None
    return values


def _explain(where: _Place, reason: str, found: Any) -> str:
    names = _names_of(where.type)
    if unknown := _UNKNOWN.search(reason):
        key = unknown["key"]
        close = get_close_matches(key, names, 1, 0.5)
        listed = ", ".join(names)
        if close:
            return gettext(
                "there is no such field; is {close} meant? The fields here are {listed}", close=close[0], listed=listed
            )
        return gettext("there is no such field; the fields here are {listed}", listed=listed)
    if missing := _MISSING.search(reason):
        return gettext("the field {name} is missing; add it", name=missing["key"])
    if isinstance(where.type, inspect.VarTupleType) and isinstance(found, dict):
        return gettext("is a table of which there may be several: write [[{name}]]", name=where.steps[-1])
    expected = _describe_type(where)
    return gettext("must be {expected}", expected=expected) if expected else describe_library_error(reason)


def _names_of(type: inspect.Type | None) -> list[str]:
    return [field.encode_name for field in type.fields] if isinstance(type, inspect.StructType) else []


def _describe_type(where: _Place) -> str:
    """Return what a field must be, in words."""
    last = str(where.steps[-1]) if where.steps else ""
    if last in _VARIABLES:
        return gettext("the name of an environment variable (letters, digits, _), never the secret itself")
    if last == "mode":
        return gettext('three digits in quotes, like "0600"')
    if where.steps == ["name"]:
        return gettext("a text in quotes that a file can be called, of 64 characters at most")
    members = where.type.types if isinstance(where.type, inspect.UnionType) else (where.type,)
    return gettext(" or ").join(said for member in members if (said := _describe_member(member, last)))


def _describe_member(type: inspect.Type | None, name: str) -> str | None:
    match type:
        case inspect.StrType():
            return gettext("a text in quotes, and not empty") if type.min_length else gettext("a text in quotes")
        case inspect.IntType():
            return gettext("a whole number, {bound:g} or more", bound=type.ge or 0)
        case inspect.FloatType() if type.gt is not None:
            return gettext("a number above {bound:g}", bound=type.gt)
        case inspect.FloatType():
            return gettext("a number, {bound:g} or more", bound=type.ge or 0)
        case inspect.BoolType():
            return gettext("true or false")
        case inspect.LiteralType():
            return gettext("one of {words}", words=_words(type))
        case inspect.VarTupleType(item_type=inspect.LiteralType() as words):
            return gettext("a list of words in brackets: {words}", words=_words(words))
        case inspect.VarTupleType():
            return gettext('a list of texts in brackets, like ["…", "…"]')
        case inspect.StructType():
            return gettext("a table: write [{name}]", name=name)
    return None


def _words(type: inspect.LiteralType) -> str:
    return ", ".join(f'"{value}"' for value in type.values)


def line_of(text: str, steps: Steps, value: str | None = None) -> int:
    """Return the line of a field; of the last table on the way to it where the field itself is nowhere.

    ``value``: that of an element of a list, which may stand some lines below its field.
    """
    lines, at = text.splitlines(), 1
    start = 0
    for place, step in enumerate(steps):
        if isinstance(step, int):
            found = _find_element(lines, start, f"[[{steps[place - 1]}]]", step, value)
        else:
            name = re.escape(step)
            pattern = re.compile(rf"""\s*(?:\[+\s*(?:[\w.]+\.)?["']?{name}["']?\s*\]+|["']?{name}["']?\s*[=.])""")
            inline = re.compile(rf"""[{{,]\s*["']?{name}["']?\s*=""")
            found = next((i for i in range(start, len(lines)) if pattern.match(lines[i])), None)
            if found is None:
                found = next((i for i in range(start, len(lines)) if inline.search(lines[i])), None)
        if found is not None:
            start, at = found, found + 1
    return at


def _find_element(lines: Sequence[str], start: int, head: str, place: int, value: str | None) -> int | None:
    """The line of a table in an array of tables, or of an element of a list."""
    heads = [i for i, line in enumerate(lines) if line.strip().startswith(head)]
    if heads:
        return heads[place] if place < len(heads) else None
    return next((i for i in range(start, len(lines)) if value is not None and value in lines[i]), None)
