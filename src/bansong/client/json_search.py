"""Search in JSON of an open shape, for :mod:`bansong.client.responses`.

The accepted shapes are G1, G2, … in ``docs/guesses.md``. An ambiguous shape is an error.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

import msgspec

from bansong.client.error_mapping import is_page
from bansong.client.field_aliases import KEYED, NUMBERS
from bansong.translation import gettext

Object = dict[str, Any]

_WHOLE: Final = re.compile(r"[+-]?\d{1,18}(\.0*)?", flags=re.A)


class UnreadableError(Exception):
    """An unreadable answer or item; the text completes "the answer …"."""


def parse_json(body: bytes, *, replacing: bool = False) -> object:
    """Return the value of a JSON body; ``NaN``, which some services write for a missing number, is null (G24).

    ``replacing``: bytes that are not UTF-8 become U+FFFD, instead of an error (G33).
    """
    if not body.strip():
        raise UnreadableError(gettext("is empty"))
    if is_page(body):
        raise UnreadableError(gettext("is an HTML page, not JSON; is the base URL right?"))
    try:
        return msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return _parse_leniently(body, "replace" if replacing else "strict")


def _parse_leniently(body: bytes, errors: str) -> object:
    problem = gettext("is not JSON")
    try:
        value = json.loads(
            body.decode("utf-8-sig", errors), parse_constant=lambda word: None if word == "NaN" else float(word)
        )
        text = json.dumps(value, ensure_ascii=False)
        whole_text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return value if whole_text == text else json.loads(whole_text)  # half a pair: a text that was cut in UTF-16
    except RecursionError:
        problem = gettext("is nested too deeply")
    except ValueError:
        pass
    raise UnreadableError(problem)


def require_object(value: object) -> Object:
    """Return a JSON object; raise :class:`UnreadableError` for anything else."""
    if isinstance(value, dict):
        return value
    raise UnreadableError(gettext("is {kind}, not an object", kind=_kind(value)))


def has_any(value: object, names: Collection[str]) -> bool:
    """Whether a value is an object with one of the names."""
    return isinstance(value, dict) and any(name in value for name in names)


def unwrap(value: object, names: Collection[str], wrappers: Sequence[str]) -> Object:
    """Return the object that has one of ``names``: the answer itself, or one that it wraps (G1)."""
    outer = require_object(value)
    if has_any(outer, names):
        return outer
    found = [wrapper for wrapper in wrappers if has_any(outer.get(wrapper), names)]
    if len(found) > 1:
        raise UnreadableError(gettext("has two candidates, {listed}", listed=" and ".join(found)))
    return require_object(outer[found[0]]) if found else outer


def first_value(value: Object, names: Iterable[str]) -> Any:
    """Return the first named value that is not null."""
    return next((value[name] for name in names if value.get(name) is not None), None)


def as_whole_number(value: object) -> int | None:
    """Return a number without decimals, also from text; ``None`` for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return int(value) if math.isfinite(value) and value == int(value) else None
    text = value.strip().replace(",", "") if isinstance(value, str) else ""
    return int(text.partition(".")[0]) if _WHOLE.fullmatch(text) else None


def identifier(value: object) -> str | None:
    """Return an identifier as text: a text or a number; ``None`` for anything else."""
    if isinstance(value, str):
        return value.strip() or None
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return None


def first_identifier(value: Object, names: Iterable[str]) -> str | None:
    """Return the first named identifier as text."""
    return next((text for text in (identifier(value.get(name)) for name in names) if text), None)


def plain_text(value: object) -> str | None:
    """Return a text or a number as text; ``None`` for anything else."""
    if isinstance(value, str):
        return value or None
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def find_list(value: object, names: Sequence[str], is_item: Collection[str]) -> list[Any]:
    """Return the one list of objects in an answer (G10): the answer itself, one level down, or two.

    Lists under ``names`` come first, then lists whose objects have a field of ``is_item``. An object of objects counts
    as a list if its keys are numbers or its values have such a field (G11).
    """
    if isinstance(value, list):
        return value
    outer = require_object(value)
    found = _lists(outer, names, is_item)
    if not any(found.values()):
        for key, inner in outer.items():
            if isinstance(inner, dict):
                found |= {f"{key}.{name}": items for name, items in _lists(inner, names, is_item).items()}
    full = {name: items for name, items in found.items() if items}
    if len(full) > 1:
        raise UnreadableError(
            gettext(
                "holds {lists} lists that could be meant: {listed}", lists=len(full), listed=", ".join(sorted(full))
            )
        )
    if found:
        return next(iter(full.values()), [])
    return next((outer[name] for name in names if isinstance(outer.get(name), list)), [])


def _lists(value: Object, names: Sequence[str], is_item: Collection[str]) -> dict[str, list[Any]]:
    named = {name: _as_list(value[name], is_item) for name in names if name in value}
    chosen = {name: items for name, items in named.items() if items is not None}
    if chosen:
        return chosen
    lists = {name: items for name, items in value.items() if isinstance(items, list) and items}
    others = {name: items for name, items in lists.items() if all(isinstance(item, dict) for item in items)}
    telling = {name: items for name, items in others.items() if any(has_any(item, is_item) for item in items)}
    return telling or others


def _as_list(value: object, is_item: Collection[str]) -> list[Any] | None:
    if isinstance(value, list):
        return value if not value or any(isinstance(item, dict) for item in value) else None
    if not isinstance(value, dict) or not value or not all(isinstance(item, dict) for item in value.values()):
        return None
    if all(re.fullmatch(r"\d{10}", key, flags=re.A) for key in value) and not _have_other_numbers(value):
        return [_with_key("b_no", key, item) for key, item in value.items()]
    if all(key.isdecimal() for key in value) or all(has_any(item, is_item) for item in value.values()):
        return [_with_key("row_id", key, item) for key, item in value.items()]
    return None


def _have_other_numbers(items: dict[str, Object]) -> bool:
    # then the keys count something
    own = {key: plain_text(first_value(item, NUMBERS)) for key, item in items.items()}
    return all(number is not None and key not in number.replace("-", "") for key, number in own.items())


def _with_key(name: str, key: str, item: Object) -> Object:
    return {name: key} | item | {KEYED: {name: key}}


def _kind(value: object) -> str:
    kinds: dict[type, str] = {
        list: gettext("a list"),
        str: gettext("a text"),
        bool: gettext("true or false"),
        type(None): "null",
    }
    return kinds.get(type(value)) or gettext("a number")
