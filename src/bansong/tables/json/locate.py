"""Locates the array of records in a JSON document."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from bansong.errors import InputError, Problem, UsageError
from bansong.tables.columns import has_role
from bansong.tables.json import scan
from bansong.tables.json.scan import RecordChunk, Scanner
from bansong.tables.size_limits import limits
from bansong.translation import Option, advise, gettext, gettext_noop, parameter

DOCUMENT_TOO_LARGE: Final = Problem(
    "limits.document_too_large", "{path}: holds too much beside {document_path}; keep the array that is to be verified"
)
SEVERAL_ARRAYS: Final = Problem("json.several_arrays", "{path}: holds several arrays of objects ({paths}); {advice}")
PATH_NOT_ARRAY: Final = Problem("json.path_not_array", "{path}: {what}; it must lead to an array of objects")
ARRAY_MISSING: Final = Problem("json.array_missing", "{path}: holds {word}, not an array of objects; export it again")
PATH_SYNTAX_INVALID: Final = Problem(
    "json.path_syntax_invalid", "{parameter} cannot be read from {rest!r} on; write data.items[0]"
)
PATH_KEY_UNREADABLE: Final = Problem("json.path_key_unreadable", "{parameter}: {quoted!r} cannot be read: {error}")
DOCUMENT_INVALID: Final = Problem("json.document_invalid", "{path}: is not valid JSON around {document_path}: {error}")

Step = str | int
Path_ = tuple[Step, ...]

_STEP: Final = re.compile(r"""\.?([^.\[\]"']+)|\[(\d+)\]|\["((?:[^"\\]|\\.)*)"\]|\['([^']*)'\]""")
_SHOWN: Final = 8
_EMPTY: Final = 0
_FILLED: Final = 1
_NUMBERED: Final = 2
"""An array of objects with the header of a business number."""
_WORDS: Final = {
    b"{": gettext_noop("an object"),
    b"[": gettext_noop("an array"),
    b'"': gettext_noop("a text"),
    b"t": "true",
    b"f": "false",
    b"n": "null",
}


@dataclass(frozen=True, slots=True)
class Document:
    """The place of a JSON file's records: from byte ``start`` to byte ``end`` of ``data``.

    ``path`` leads to them (``""`` for the document itself). ``kind``: an array of objects, one object that is itself
    the only record, or objects one after the other.
    """

    data: Path
    start: int
    end: int
    path: str = ""
    kind: str = "array"

    def records(self, path: Path) -> Iterator[RecordChunk]:
        """Read the records; ``path`` is what the user calls the file. Raises :class:`InputError`."""
        with Scanner(path, self.data, self.start) as scanner:
            yield from scanner.array() if self.kind == "array" else scanner.sequence()
            if not self.path and scanner.peek():
                raise scanner.fault(gettext("there is more behind the end of the array"))


@dataclass(frozen=True, slots=True)
class _FoundArray:
    """An array in a document, and how well it fits (``_EMPTY`` to ``_NUMBERED``)."""

    path: Path_
    start: int
    end: int
    fit: int


def at_path(path: Path, data: Path, start: int, json_path: str) -> Document:
    """Return the array that a path names: ``data.items``, ``$.data[0]["a.b"]``.

    Raises :class:`UsageError` for a path that leads nowhere, saying how far it goes and what stands there.
    """
    steps = _steps(json_path)
    with Scanner(path, data, start) as scanner:
        for depth, step in enumerate(steps):
            _enter(scanner, step, steps[:depth], json_path)
        if (byte := scanner.peek()) != b"[":
            what = gettext("{parameter} leads to {word}", parameter=parameter("json_path", json_path), word=_word(byte))
            raise UsageError(PATH_NOT_ARRAY, path=path, what=what)
        begin = scanner.position
        _skip_parts(scanner.array())
        document = Document(data, begin, scanner.position, spell_path(steps))
    _check_around(path, document)
    return document


def find(path: Path, data: Path, start: int) -> Document:
    """Return the one array of objects of a document in which a business number's header stands, or the only array.

    A document that is an object without such an array is itself the only record.
    Raises :class:`InputError` naming the arrays where several fit.
    """
    with Scanner(path, data, start) as scanner:
        if scanner.peek() == b"[":
            return Document(data, scanner.position, data.stat().st_size, "", "array")
        if scanner.peek() != b"{":
            raise InputError(ARRAY_MISSING, path=path, word=_word(scanner.peek()))
        begin, own = scanner.position, False
        found: list[_FoundArray] = []
        for key in _members(scanner):
            own = own or has_role(key, "b_no")
            _search(scanner, (key,), found)
        end = scanner.position
        if scanner.peek():
            return Document(data, start, data.stat().st_size, "", "sequence")
    chosen = _choose_array(path, found, own)
    if chosen is None:
        return Document(data, begin, end, "", "object")
    return Document(data, chosen.start, chosen.end, spell_path(chosen.path))


def spell_path(steps: Path_) -> str:
    """A path as ``--json-path`` takes it."""
    return "".join(map(_spell_step, steps)).removeprefix(".")


def _check_around(path: Path, document: Document) -> None:
    """Raise :class:`InputError` where what stands around the array is no JSON: it is written back as it is."""
    size = document.data.stat().st_size
    if size - (document.end - document.start) > limits().document:
        raise InputError(DOCUMENT_TOO_LARGE, path=path, document_path=document.path)
    with document.data.open("rb") as file:
        before = file.read(document.start).removeprefix(codecs.BOM_UTF8)
        file.seek(document.end)
        try:
            msgspec.json.decode(before + b"[]" + file.read(), type=msgspec.Raw)
        except msgspec.DecodeError as error:
            raise InputError(DOCUMENT_INVALID, path=path, document_path=document.path, error=error) from error


def _spell_step(step: Step) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    plain = step and not set(step) & set(".[]\"'") and not step.startswith("$")
    return f".{step}" if plain else f"[{msgspec.json.encode(step).decode()}]"


def _steps(json_path: str) -> Path_:
    rest = json_path.removeprefix("$")
    steps: list[Step] = []
    while rest:
        found = _STEP.match(rest)
        if not found:
            raise UsageError(PATH_SYNTAX_INVALID, parameter=Option("json_path", json_path), rest=rest)
        key, index, quoted, single = found.groups()
        steps.append(int(index) if index else key or single or _unquote(quoted, json_path))
        rest = rest[found.end() :]
    return tuple(steps)


def _unquote(quoted: str | None, json_path: str) -> str:
    try:
        return msgspec.json.decode(f'"{quoted or ""}"', type=str)
    except msgspec.DecodeError as error:
        raise UsageError(
            PATH_KEY_UNREADABLE, parameter=Option("json_path", json_path), quoted=quoted, error=error
        ) from error


def _enter(scanner: Scanner, step: Step, gone: Path_, json_path: str) -> None:
    place = gettext("in {path}", path=spell_path(gone)) if gone else gettext("at the top")
    seen: list[str] = []
    byte = scanner.peek()
    if isinstance(step, str) and byte == b"{":
        for key in _members(scanner):
            if key == step:
                return
            seen.append(key)
            scanner.value()
        more = ", …" if len(seen) > _SHOWN else ""
        there = gettext(
            "no key {step!r} {place}; the keys are: {seen}{more}",
            step=step,
            place=place,
            seen=", ".join(seen[:_SHOWN]),
            more=more,
        )
    elif isinstance(step, int) and byte == b"[":
        for place_in, _ in enumerate(scanner.items(b"]")):
            if place_in == step:
                return
            seen.append("")
            scanner.value()
        there = gettext(
            "no element {step} {place}; there are {count}, counted from 0", step=step, place=place, count=len(seen)
        )
    else:
        there = gettext("{place} stands {word}, which has no {step!r}", place=place, word=_word(byte), step=step)
    raise UsageError(f"{scanner.path}: {parameter('json_path', json_path)}: {there}")


def _search(scanner: Scanner, path: Path_, found: list[_FoundArray]) -> None:
    if len(path) > limits().depth:
        raise scan.too_deep(scanner.path, gettext("the object at byte {position:,}", position=scanner.position))
    byte = scanner.peek()
    if byte == b"{":
        for key in _members(scanner):
            _search(scanner, (*path, key), found)
        return
    begin, first = scanner.position, scanner.inside() if byte == b"[" else b""
    if first == b"{":
        fit = _skip_array(scanner)
    elif first == b"]":
        scanner.value()
        fit = _EMPTY
    else:
        scanner.value()
        return
    if sum(array.fit == fit for array in found) < _SHOWN:  # a document may hold millions
        found.append(_FoundArray(path, begin, scanner.position, fit))


def _choose_array(path: Path, found: list[_FoundArray], own: bool) -> _FoundArray | None:
    filled = [array for array in found if array.fit != _EMPTY]
    numbered = [array for array in filled if array.fit == _NUMBERED]
    if not numbered and own:
        return None
    fitting = numbered or filled
    if len(fitting) > 1:
        paths = ", ".join(spell_path(array.path) for array in fitting)
        choose = gettext("choose with {parameter}", parameter=parameter("json_path", spell_path(fitting[0].path)))
        keep = gettext("keep one of them in the file")
        raise InputError(SEVERAL_ARRAYS, path=path, paths=paths, advice=advise("json_path", choose, keep))
    if fitting:
        return fitting[0]
    return found[0] if found else None


def _skip_array(scanner: Scanner) -> int:
    """Pass an array of objects; how well it fits, by the keys of its first object."""
    parts = scanner.array()
    first = next(parts).lines.partition(b"\n")[0]
    _skip_parts(parts)
    try:
        keys = msgspec.json.decode(first, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError):  # said with its place when the records are read
        return _FILLED
    return _NUMBERED if any(has_role(key, "b_no") for key in keys) else _FILLED


def _skip_parts(parts: Iterator[RecordChunk]) -> None:
    for _ in parts:
        pass


def _members(scanner: Scanner) -> Iterator[str]:
    for _ in scanner.items(b"}"):
        yield scanner.key()


def _word(byte: bytes) -> str:
    if not byte:
        return "nothing"
    if byte in _WORDS:
        return gettext(_WORDS[byte])
    return gettext("a number") if byte in b"-0123456789" else gettext("a text that is no JSON")
