"""The rows of an input in the run before, against which a damaged export is recognized."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import polars as pl

from bansong.engine.local import NUMBER
from bansong.errors import InputError, Problem

NUMBERS_LOST: Final = Problem(
    "jobs.numbers_lost",
    "{count:,} rows, and {where} had {rows:,}; {lost:,} of its {numbers:,} business numbers are "
    "gone, so nothing was done. If the list is right, set `force = true` for this input",
)
NUMBERS_NOT_FOUND: Final = Problem(
    "jobs.numbers_not_found",
    "no business number was found, and the run before found {numbers:,}; check the column of the "
    "business numbers, or name it with `columns` of the input",
)

_PROTECTED_ROWS: Final = 20


@dataclass(frozen=True, slots=True)
class EarlierRows:
    """Rows of an input in the run before, and its business numbers as UInt64.

    ``may_lose``: the job allows losing most of them. ``where``: "the run before", or the file with these rows.
    """

    rows: int = 0
    numbers: pl.Series = field(default_factory=lambda: pl.Series(dtype=pl.UInt64))
    may_lose: bool = False
    where: str = ""

    def refuse_loss(self, rows: pl.LazyFrame) -> None:
        """Raise :class:`InputError` for rows that lack more than half of the earlier ones, or all numbers."""
        if NUMBER not in rows.collect_schema().names():
            rows = rows.with_columns(pl.lit(None, pl.UInt64).alias(NUMBER))
        found = rows.select(NUMBER).group_by(NUMBER).len().collect(engine="streaming")
        count, numbers = int(found["len"].sum()), found[NUMBER].drop_nulls()
        if count and len(self.numbers) and numbers.is_empty():
            raise InputError(NUMBERS_NOT_FOUND, numbers=len(self.numbers))
        lost = len(self.numbers.filter(~self.numbers.is_in(numbers.implode())))
        is_shorter = 2 * count < self.rows and (self.rows >= _PROTECTED_ROWS or not count)
        if self.may_lose or not (is_shorter or (2 * lost > len(self.numbers) >= _PROTECTED_ROWS)):
            return
        raise InputError(
            NUMBERS_LOST, count=count, where=self.where, rows=self.rows, lost=lost, numbers=len(self.numbers)
        )
