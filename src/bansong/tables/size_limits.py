"""Limits on what a file may ask for: nothing that a file contains may take unbounded memory or disk."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Final

from bansong.environment import variable
from bansong.errors import InputError, Problem, UsageError
from bansong.translation import current_audience, gettext

LIMIT_EXCEEDED: Final = Problem("limits.limit_exceeded", "{path}: {what}; make it smaller{or_raise}")
LIMIT_INVALID: Final = Problem(
    "limits.limit_invalid", "{variable}: {part!r} is no limit; write NAME=NUMBER, the names are {names}"
)

VARIABLE: Final = "BANSONG_LIMITS"
_UNITS: Final = {"K": 10**3, "M": 10**6, "G": 10**9}


@dataclass(frozen=True, slots=True)
class SizeLimits:
    """Caps on what is read. Each can be raised: ``BANSONG_LIMITS="cells=60M,inflated=4G"``.

    ``cells``: of a sheet, rows times columns between its first and its last value; of a Parquet row group.
    ``inflated``: bytes that the parts of a workbook, or a Parquet row group, unfold to. ``ratio``: how many times
    larger than packed such a part may be (asked beyond 64 MB only). ``text``: characters of a cell of a workbook and of
    a key in JSON. ``columns``: of a CSV file. ``unpacked``: bytes that a ``.gz`` or ``.zst`` file unfolds to, on disk.
    ``depth``: how deep JSON may be nested. ``document``: bytes of one JSON value, or of what stands around an array of
    records. ``memory``: bytes that a process may take which reads a large or an old workbook.
    """

    cells: int = 30_000_000
    inflated: int = 2_000_000_000
    ratio: int = 200
    text: int = 32_767
    columns: int = 16_384
    unpacked: int = 64_000_000_000
    depth: int = 200
    document: int = 2_000_000_000
    memory: int = 1_200_000_000


def limits() -> SizeLimits:
    """The limits in force; raise :class:`UsageError` where the environment spells them wrongly."""
    return _parse_limits(variable(VARIABLE) or "")


@cache
def _parse_limits(text: str) -> SizeLimits:
    names = [field.name for field in fields(SizeLimits)]
    given = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = part.partition("=")
        digits, unit = (value[:-1], _UNITS.get(value[-1:].upper(), 0)) if value[-1:].isalpha() else (value, 1)
        if name not in names or not digits.isdecimal() or not int(digits) * unit:
            raise UsageError(LIMIT_INVALID, variable=VARIABLE, part=part, names=", ".join(names))
        given[name] = int(digits) * unit
    return replace(SizeLimits(), **given)


def beyond_limit(path: Path, what: str, limit: str) -> InputError:
    """The error for a file that asks for more than a limit allows, with the way to raise that limit."""
    return InputError(LIMIT_EXCEEDED, path=path, what=what, or_raise=or_raise_limit(limit))


def or_raise_limit(limit: str, value: str = "…") -> str:
    """The end of a remedy for an audience that can raise limits; ``limit`` is a field of :class:`SizeLimits`."""
    if not current_audience().sets_limits:
        return ""
    return gettext(", or raise the limit with {variable}={limit}={value}", variable=VARIABLE, limit=limit, value=value)
