"""The wanted lookups, cut into pieces for uploads."""

from __future__ import annotations

import math
from collections import deque
from typing import Final

import polars as pl

from bizverify.run.lookups import split

_ORDER: Final = "chunk_order"
_NUMBER: Final = "chunk_number"
_PART: Final = "chunk_part"
_SMALLER: Final = 10
"""How many times smaller the uploads become after one that came to nothing."""


class Chunks:
    """Hands out the wanted lookups in pieces of at most ``limit`` rows that the service takes.

    ``answered`` and ``failed`` count the pieces, since :meth:`start`, for which answers were fetched, or which were
    paid, or perhaps, and came to nothing. ``trial``: whether the pieces are to show that the service answers at all.
    """

    def __init__(self, wanted: pl.DataFrame, limit: int) -> None:
        self.limit = limit
        self.answered = self.failed = 0
        self.trial = False
        self._size, self._pieces = limit, math.inf
        self._wanted = wanted.with_row_index(_ORDER)
        self._left = deque([(0, wanted.height)] if wanted.height else [])
        self._distinct = False

    def __bool__(self) -> bool:
        """Whether there is anything left."""
        return bool(self._left)

    def start(self, size: int, *, trial: bool, pieces: float) -> None:
        """Hand out so many ``pieces`` from now on, of at most ``size`` rows."""
        self.trial, self._size, self._pieces = trial, size, pieces
        self.answered = self.failed = 0

    def arrange(self, *, distinct: bool) -> None:
        """Put what is left in the order of the file; if ``distinct``, so that no piece holds a number twice.

        Then there are no more parts than needed, all of the same size: as many as uploads for all rows, or as the rows
        of the most frequent number, and each number's rows go to as many parts. Nothing may be under way.
        """
        if distinct == self._distinct or not self._left:
            return
        self._distinct = distinct
        left = pl.concat([self._wanted[start:end] for start, end in self._left]).sort(_ORDER)
        parts = 1
        if distinct:
            left = left.with_columns(split(left)["b_no"].alias(_NUMBER))
            most = int(left[_NUMBER].value_counts()["count"].max() or 1)  # type: ignore[arg-type]  # of a whole number
            if most > 1:
                parts = max(most, math.ceil(left.height / self.limit))
            left = left.with_columns(((pl.col(_NUMBER).rank("ordinal") - 1) % parts).alias(_PART))
            left = left.sort(_PART, _ORDER)
        self._wanted = left.drop(_NUMBER, _PART, strict=False)
        sizes = left.group_by(_PART, maintain_order=True).len()["len"] if parts > 1 else [left.height]
        self._left.clear()
        start = 0
        for size in sizes:
            self._left.append((start, start + size))
            start += size

    def next(self) -> pl.DataFrame | None:
        """The next piece; ``None`` when there is none left, or none to be handed out now."""
        if not self._left or self._pieces < 1 or self.failed:
            return None
        self._pieces -= 1
        start, end = self._left.popleft()
        size = min(self._size, self.limit)
        if end - start > size:
            self._left.appendleft((start + size, end))
            end = start + size
        return self._wanted[start:end].with_columns(pl.int_range(start, end).alias("at"))

    def not_more_than(self, rows: int) -> None:
        """The service gave no more results than that of a larger piece: hand out no more at once from now on."""
        self.limit = max(1, min(self.limit, rows))

    def too_large(self, chunk: pl.DataFrame) -> None:
        """The service did not take a piece: put it back, and hand out half as much from now on."""
        self.limit = max(1, min(self.limit, chunk.height // 2))
        self.back(chunk)

    def came_to_nothing(self, rows: int, least: int) -> None:
        """A piece of so many rows came to nothing: hand out none until :meth:`start`, then smaller ones.

        They are a tenth as large, but may have ``least`` rows; a piece of no more rows than that says nothing of sizes.
        """
        self.failed += 1
        if rows > least:
            self.not_more_than(max(least, rows // _SMALLER))

    def back(self, chunk: pl.DataFrame) -> None:
        """Put a piece back: nothing of it was bought."""
        start = int(chunk["at"][0])
        self._left.appendleft((start, start + chunk.height))
