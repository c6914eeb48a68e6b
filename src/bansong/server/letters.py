"""Earlier letters that a scope's answers may use: the key's own, then what the pool agrees on."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from dataclasses import dataclass, field
from datetime import date
from typing import Final

import polars as pl

from bansong.engine.letter_history import HISTORY_SCHEMA, TRUSTED_MONTHS

_ADDRESSEE: Final = ["b_no", "address_key"]
_numbers = itertools.count()


@dataclass(frozen=True, slots=True, eq=False)
class AgreedLetters:
    """What the keys of a pool agree on, as of ``day``; one object for all members.

    ``frame``: :data:`bansong.engine.letter_history.HISTORY_SCHEMA`, one row per addressee, sorted by ``b_no``.
    """

    frame: pl.DataFrame
    day: date
    number: int = field(init=False, default_factory=lambda: next(_numbers))


@dataclass(frozen=True, slots=True, eq=False)
class ScopeLetters:
    """The letters of a scope. An addressee with own outcomes takes nothing from the pool.

    So a member never sees an agreement that it is part of. ``own``: as :attr:`AgreedLetters.frame`, with all rows of an
    addressee. ``number``: equal for scopes with equal letters.
    """

    own: pl.DataFrame | None
    agreed: AgreedLetters | None = None
    number: int = field(init=False)

    def __post_init__(self) -> None:
        shared = self.agreed is not None and (self.own is None or self.own.is_empty())
        object.__setattr__(self, "number", self.agreed.number if shared and self.agreed else next(_numbers))

    def history(self) -> pl.LazyFrame | None:
        if self.own is None or self.agreed is None:
            alone = self.own if self.agreed is None else self.agreed.frame
            return None if alone is None else alone.lazy()
        return _own_first(self.own.lazy(), self.agreed.frame.lazy(), self.agreed.day)

    def mentions(self, number: int) -> bool:
        frames = (self.own, None if self.agreed is None else self.agreed.frame)
        return any(_has(frame["b_no"], number) for frame in frames if frame is not None)

    def of(self, numbers: pl.Series) -> pl.DataFrame:
        """Return the letters to businesses (UInt64) by binary search."""
        own = None if self.own is None else _rows_of(self.own, numbers)
        agreed = None if self.agreed is None else _rows_of(self.agreed.frame, numbers)
        if own is None or agreed is None or self.agreed is None:
            found = own if agreed is None else agreed
            return pl.DataFrame(schema=HISTORY_SCHEMA) if found is None else found
        return _own_first(own.lazy(), agreed.lazy(), self.agreed.day).collect(engine="in-memory")


def _own_first(own: pl.LazyFrame, agreed: pl.LazyFrame, day: date) -> pl.LazyFrame:
    """Combine own and agreed letters; own ones win unless they were too old at the day of the agreement."""
    counts = (pl.col("outcome") != "delivered") | (pl.col("mailed") > pl.lit(day).dt.offset_by(f"-{TRUSTED_MONTHS}mo"))
    return pl.concat([own, agreed.join(own.filter(counts), on=_ADDRESSEE, how="anti")])


def _has(ordered: pl.Series, number: int) -> bool:
    place = bisect_left(ordered, number)  # of one number, a thirtieth of the time of `search_sorted`
    return place < ordered.len() and ordered[place] == number


def _rows_of(letters: pl.DataFrame, numbers: pl.Series) -> pl.DataFrame:
    first = letters["b_no"].search_sorted(numbers, "left")
    last = letters["b_no"].search_sorted(numbers, "right")
    lines = pl.select(pl.int_ranges(first, last, dtype=pl.UInt32).list.explode(empty_as_null=False)).to_series()
    return letters[lines]
