"""How far a sheet reaches, by the references of its cells: one pass of one pattern over its XML."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from bizverify.tables.excel.cells import column_letter, column_number

_ROWS: Final = 1_048_576
_COLUMNS: Final = 16_384
_EXACT, _ROUGH = 64, 16
"""Columns are bounded exactly up to so many; beyond, a sixteenth more are allowed for."""
_REFERENCE: Final = re.compile(rb'<c r="([^"<]{0,40})"')
_PLACE: Final = re.compile(r"([A-Z]{1,3})([1-9][0-9]{0,6})")
_PREFIXED: Final = re.compile(rb":c[\s/>]")
"""A cell in a namespace with a prefix, ``<x:c …>``."""
_ODD: Final = re.compile(rb"""<(?:\w+:)?c\s[^>]*?\br\s*=\s*["']([A-Za-z]{4}[^"']{0,40}|[A-Za-z]*[0-9]{8}[^"']{0,40})""")


@dataclass(slots=True)
class Extent:
    """Bounds of a sheet's rows and columns: no cell lies beyond, as long as ``plain``.

    ``plain``: every cell begins with ``<c r="…"``, as common programs write them. ``odd``: a reference that no sheet
    has. Rows are rounded up, to 9, 99, 999, … or where ``closer`` to two digits, and columns beyond the 64th by a
    sixteenth (``closer``: by a 64th), so that few cells raise the bounds: each time, a new pattern is made.
    """

    closer: bool = False
    rows: int = 0
    columns: int = 0
    plain: bool = True
    odd: str = ""

    @property
    def area(self) -> int:
        """The cells within the bounds."""
        return self.rows * self.columns

    def __str__(self) -> str:
        return f"{self.rows:,} rows × {self.columns:,} columns"

    def take(self, buffer: bytes) -> int:
        """Widen the bounds by the cells that begin in a piece of the sheet's XML; return where it stopped.

        What lies behind belongs in front of the next piece: an element that is cut off.
        """
        until = max(buffer.rfind(b"<"), 0)
        self.plain = self.plain and not (b":" in buffer and _PREFIXED.search(buffer))
        place = 0
        while self.plain and (found := _pattern_beyond(self.rows, self.columns).search(buffer, place, until)):
            place = found.end()
            reference = _REFERENCE.match(buffer, found.start())
            if reference is None:
                self.plain = False
            elif not self._reaches(reference.group(1).decode("utf-8", "replace")):
                return until
        if not self.plain and (odd := _ODD.search(buffer, 0, until)):
            self.odd = repr(odd.group(1).decode("utf-8", "replace"))
        return until

    def _reaches(self, reference: str) -> bool:
        """Widen the bounds to a cell; false where a sheet has no such cell."""
        found = _PLACE.fullmatch(reference)
        column, row = (column_number(found.group(1)), int(found.group(2))) if found else (0, 0)
        if not 0 < column <= _COLUMNS or row > _ROWS:
            self.odd = repr(reference)
            return False
        if row > self.rows:
            unit = 10 ** max(len(str(row)) - 1 - self.closer, 0)
            self.rows = min((row // unit + 1) * unit - 1 if self.closer else 10 * unit - 1, _ROWS)
        if column > self.columns:
            spare = column // (_EXACT if self.closer else _ROUGH) if column >= _EXACT else 0
            self.columns = min(column + spare, _COLUMNS)
        return True


@lru_cache(64)
def _pattern_beyond(rows: int, columns: int) -> re.Pattern[bytes]:
    """Finds what may be a cell behind these rows or columns, or one whose place is not plain."""
    if not rows:
        return re.compile(rb"<c[\s/>]")
    letters, digits = _at_most(column_letter(columns), "A", "A", "Z"), _at_most(str(rows), "1", "0", "9")
    return re.compile(rf'<c(?! r="{letters}{digits}"|o)(?=[\s/>])'.encode())


def _at_most(text: str, first: str, lowest: str, highest: str) -> str:
    """A pattern of the numbers up to ``text`` in the digits ``lowest`` to ``highest``; they begin with ``first``."""
    size, full = len(text), text == highest * len(text)
    shorter = size if full else size - 1
    patterns = [f"[{first}-{highest}]" + (f"[{lowest}-{highest}]{{0,{shorter - 1}}}" if shorter > 1 else "")]
    if full:
        return patterns[0]
    for place, sign in enumerate(text):
        low = lowest if place else first
        last = place == size - 1
        high = sign if last else chr(ord(sign) - 1)
        if low <= high:
            rest = size - place - 1
            patterns.append(f"{text[:place]}[{low}-{high}]" + (f"[{lowest}-{highest}]{{{rest}}}" if rest else ""))
    patterns = patterns[shorter == 0 :]
    return patterns[0] if len(patterns) == 1 else f"(?:{'|'.join(patterns)})"
