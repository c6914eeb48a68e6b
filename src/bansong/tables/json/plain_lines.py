"""The pattern of a line whose values need no closer look: flat, every key once and in order, each value of its type.

A pattern over the text costs a third of what it costs to make objects of the values. It knows JSON's own grammar of
strings, so that white space and escapes do not matter; what it does not match may be right all the same, and is left to
:mod:`bansong.tables.json.lossless_types`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import polars as pl
from polars.datatypes import DataTypeClass

from bansong.tables.table import RAW

_HEX: Final = "[0-9a-fA-F]"
_UNIT: Final = rf"(?:[0-9a-cefA-CEF]{_HEX}{{3}}|[dD][0-7]{_HEX}{{2}})"
_PAIR: Final = rf"[dD][89abAB]{_HEX}{{2}}\\u[dD][c-fC-F]{_HEX}{{2}}"
_STRING: Final = rf'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u{_UNIT}|\\u{_PAIR})*"'
_NUMBER: Final = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_VALUES: Final[dict[object, str]] = {
    None: rf"(?:{_STRING}|{_NUMBER}|true|false|null)",
    pl.String(): rf"(?:{_STRING}|null)",
    pl.Int64(): r"(?:0|-?[1-9][0-9]{0,17}|null)",
    pl.Float64(): r"(?:-?(?:0|[1-9][0-9]{0,9})\.(?:0|[0-9]{0,3}[1-9])|null)",
    pl.Boolean(): "(?:true|false|null)",
    pl.Null(): "null",
}
"""Values of a type, ``None`` for text, in a spelling that is the column's own: of numbers the usual ones."""
_BLANK: Final = "[ \t]*"


def plain_pattern(types: Mapping[str, pl.DataType | DataTypeClass | None]) -> str | None:
    """The pattern of plain lines with these keys; ``None`` where a type is nested. No key needs an escape."""
    if not all(dtype in _VALUES for dtype in types.values()):
        return None
    members = (f'"{re.escape(key)}"{_BLANK}:{_BLANK}{_VALUES[dtype]}' for key, dtype in types.items())
    return rf"\A\{{{_BLANK}{f'{_BLANK},{_BLANK}'.join(members)}{_BLANK}\}}\z"


def other_lines(lines: bytes, count: int, pattern: str) -> tuple[bytes, int]:
    """Those of ``count`` lines that do not match a pattern; all where polars cannot read them, or not the pattern."""
    try:
        texts = pl.scan_lines(lines, name=RAW).filter(~pl.col(RAW).str.contains(pattern)).collect(engine="streaming")
    except pl.exceptions.PolarsError:
        return lines, count
    return (str(texts[RAW].str.join("\n").item()).encode(), texts.height) if texts.height else (b"", 0)
