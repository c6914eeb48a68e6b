"""The earlier letters that a scope's answers may use: the key's own, and before those what the pool agrees on."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date

import polars as pl

from bizverify.engine.letter_history import HISTORY_SCHEMA, TRUSTED_MONTHS

_ADDRESSEE = ["b_no", "address_key"]


@dataclass(frozen=True, slots=True)
class AgreedLetters:
    """What the keys of a pool agree on, as of ``day``: one object for all members, in memory once.

    ``frame``: :data:`bizverify.engine.letter_history.HISTORY_SCHEMA`, one row an addressee, sorted by ``b_no``.
    """

    frame: pl.DataFrame
    day: date
    lazy: pl.LazyFrame = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "lazy", self.frame.lazy())


@dataclass(frozen=True, slots=True)
class ScopeLetters:
    """The letters of a scope; where a key has an outcome of its own, what the pool says of that addressee is left out.

    So a member never sees an agreement to which it belongs itself. ``own`` is as :attr:`AgreedLetters.frame`, with as
    many rows an addressee as there are.
    """

    own: pl.DataFrame | None
    agreed: AgreedLetters | None = None

    def history(self) -> pl.LazyFrame | None:
        """All letters, as :data:`HISTORY_SCHEMA`; for members without outcomes of their own it is the same object."""
        if self.agreed is None:
            return None if self.own is None else self.own.lazy()
        if self.own is None or self.own.is_empty():
            return self.agreed.lazy
        return _own_first(self.own.lazy(), self.agreed.lazy, self.agreed.day)

    def of(self, numbers: pl.Series) -> pl.DataFrame:
        """The letters to businesses (UInt64), found without looking at the others."""
        own = None if self.own is None else _rows_of(self.own, numbers)
        agreed = None if self.agreed is None else _rows_of(self.agreed.frame, numbers)
        if own is None or agreed is None:
            found = own if agreed is None else agreed
            return pl.DataFrame(schema=HISTORY_SCHEMA) if found is None else found
        if own.is_empty() or agreed.is_empty():
            return agreed if own.is_empty() else own
        return _own_first(own.lazy(), agreed.lazy(), self.agreed.day).collect(engine="in-memory")  # type: ignore[union-attr]


def _own_first(own: pl.LazyFrame, agreed: pl.LazyFrame, day: date) -> pl.LazyFrame:
    """Return own letters, and those of others to addressees of whom no own one counted on the day of the agreement."""
    counts = (pl.col("outcome") != "delivered") | (pl.col("mailed") > pl.lit(day).dt.offset_by(f"-{TRUSTED_MONTHS}mo"))
    return pl.concat([own, agreed.join(own.filter(counts), on=_ADDRESSEE, how="anti")])


def _rows_of(letters: pl.DataFrame, numbers: pl.Series) -> pl.DataFrame:
    first = letters["b_no"].search_sorted(numbers, "left")
    last = letters["b_no"].search_sorted(numbers, "right")
    lines = pl.select(pl.int_ranges(first, last, dtype=pl.UInt32).list.explode(empty_as_null=False)).to_series()
    return letters[lines]
