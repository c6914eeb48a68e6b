"""Where ten-digit numbers stand in a sorted column: for a few numbers by search, for many by counting bits."""

from __future__ import annotations

from threading import Lock
from typing import Final

import polars as pl

_MANY: Final = 32_768
"""From how many numbers at once on bits are counted: the table of bits takes as long to make as so many searches."""

_WORD: Final = 64
_BITS: Final = pl.Series([1 << place for place in range(_WORD)], dtype=pl.UInt64)
_BEGINNINGS: Final = 10**9
_NUMBER: Final = pl.col("number")
_PLACE: Final = pl.col("place")


class NumberIndex:
    """Finds numbers in a sorted column; one object for all threads.

    For many numbers at once there is a table of bits: one for each nine-digit beginning that occurs (the tenth is a
    check digit), and beside each word of 64 of them the place of its first one. A place is then two look-ups and a
    count of bits, an eighth of what a search takes, however many businesses there are. The table takes 187 MB at most,
    and is made once, by one thread; others search meanwhile: its maker needs polars' threads, and those are they.
    """

    def __init__(self, numbers: pl.Series) -> None:
        """``numbers``: UInt64, sorted."""
        self._numbers = numbers
        self._table: tuple[pl.Series, pl.Series, pl.Series] | None = None
        self._making = Lock()

    def find(self, numbers: pl.Series) -> pl.Series:
        """Return the place of each number (UInt32), null for one that is null or not there."""
        if self._table is None and len(numbers) >= _MANY and self._making.acquire(blocking=False):
            self._table = self._make_table()
        asked = numbers.alias("number").to_frame()
        if self._table is None:
            return self._search(asked)
        found = _collect(self._count(asked, *self._table).with_columns(there=self._at_place() == _NUMBER))
        places = found.select(pl.when("there").then("place")).to_series()
        alike = (found["there"] == False).fill_null(False)  # noqa: E712
        if alike.any():  # it begins as another does, and may stand behind it: one of them has a wrong check digit
            behind = self._search(asked.filter(alike))
            places = places.scatter(alike.arg_true(), behind)
        return places

    def _at_place(self) -> pl.Expr:
        return pl.lit(self._numbers).gather("place", null_on_oob=True)

    def _search(self, asked: pl.DataFrame) -> pl.Series:
        places = asked.lazy().with_columns(place=pl.lit(self._numbers).search_sorted(_NUMBER))
        return _collect(places.select(pl.when(self._at_place() == _NUMBER).then("place"))).to_series()

    def _count(self, asked: pl.DataFrame, words: pl.Series, before: pl.Series, firsts: pl.Series) -> pl.LazyFrame:
        """Add ``place``, that of the first number with the same nine digits."""
        begin, word, bit = _NUMBER // 10, pl.col("word"), pl.col("bit")
        places = asked.lazy().with_columns(
            word=(begin // _WORD).cast(pl.UInt32, strict=False),
            bit=pl.lit(_BITS).gather((begin % _WORD).cast(pl.UInt32)),
        )
        places = places.with_columns(
            bits=pl.lit(words).gather(word, null_on_oob=True), before=pl.lit(before).gather(word, null_on_oob=True)
        )
        bits = pl.col("bits")
        rank = pl.col("before") + (bits & (bit - 1)).bitwise_count_ones()
        places = places.with_columns(place=pl.when(bits & bit != 0).then(rank))
        return places.with_columns(place=pl.lit(firsts).gather("place")) if len(firsts) else places

    def _make_table(self) -> tuple[pl.Series, pl.Series, pl.Series]:
        """Return the words, the rank of each one's first beginning, and the places of beginnings if not their ranks."""
        begin, bit = pl.col("begin"), pl.col("bit")
        numbers = self._numbers.alias("number").to_frame().lazy()
        begins = numbers.select(begin=_NUMBER // 10, place=pl.int_range(pl.len(), dtype=pl.UInt32))
        firsts = _collect(begins.filter(begin.ne_missing(begin.shift(1)), begin < _BEGINNINGS))
        bits = firsts.lazy().select(
            word=(begin // _WORD).cast(pl.UInt32),
            bit=pl.lit(_BITS).gather((begin % _WORD).cast(pl.UInt32)).cum_sum(),  # wraps around, as a difference does
            rank=pl.int_range(1, pl.len() + 1, dtype=pl.UInt32),
        )
        words = _collect(
            bits.filter(pl.col("word").ne_missing(pl.col("word").shift(-1))).select(
                "word", bits=bit - bit.shift(1, fill_value=0), rank=pl.col("rank").shift(1, fill_value=0)
            )
        )
        size = int(words["word"].max()) + 1 if words.height else 1  # type: ignore[arg-type]
        bits_of = pl.zeros(size, pl.UInt64, eager=True).scatter(words["word"], words["bits"])
        rank_of = pl.zeros(size, pl.UInt32, eager=True).scatter(words["word"], words["rank"])
        return bits_of, rank_of, firsts["place"].head(0 if firsts.height == len(self._numbers) else firsts.height)


def _collect(query: pl.LazyFrame) -> pl.DataFrame:
    return query.collect(optimizations=pl.QueryOptFlags.none())
