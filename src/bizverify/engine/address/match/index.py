"""Finding by key: a sorted array of keys and a binary search, built once and shared by all threads.

A join would build its hash table anew for each batch; a sorted array is built (or read) once, and a query costs a
fraction of a microsecond whatever the number of keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import polars as pl

ROW = "row"
"""The number of a row within its batch; every frame of candidates has it."""

T = TypeVar("T")
_SEPARATOR = "\x1f"


def text_key(*parts: str | pl.Expr) -> pl.Expr:
    """Return the UInt64 key of one or several values read as text, null where one of them is null.

    Keys are good for one process only (the hash may change with polars' version), so they are never stored.
    """
    columns = [pl.col(part) if isinstance(part, str) else part for part in parts]
    joined = pl.concat_str(columns, separator=_SEPARATOR)
    return pl.when(joined.is_not_null()).then(joined.hash(0))


class built_once(Generic[T]):
    """A cached property for several threads: those that need it first build it each, and the first one built is kept.

    No lock is held meanwhile: its holder would wait for polars' threads, which would wait for the lock.
    """

    def __init__(self, build: Callable[[Any], T]) -> None:
        self._build = build
        self.__doc__ = build.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, found: Any, owner: type) -> T:
        kept = vars(found)
        if self._name not in kept:
            kept.setdefault(self._name, self._build(found))
        built: T = kept[self._name]
        return built


class Index:
    """Keys in order, with the values that belong to them; a key may occur several times."""

    def __init__(self, keys: pl.Series, values: pl.Series | None = None) -> None:
        """``keys``: UInt64, sorted. ``values``: as long as ``keys``; without them the value is the key's place."""
        self._keys = keys
        self._values = values
        self._repeats = bool((keys.head(-1) == keys.slice(1)).any())

    @classmethod
    def of(cls, frame: pl.DataFrame, key: pl.Expr, value: str) -> Index:
        """Build an index from an unsorted frame; rows whose key is null are left out, repeated pairs kept once."""
        pairs = frame.select(key.alias("key"), pl.col(value).alias("value")).drop_nulls("key").unique().sort("key")
        return cls(pairs["key"], pairs["value"])

    def find(self, rows: pl.DataFrame, key: pl.Expr, value: str, keep: Sequence[str] = ()) -> pl.DataFrame:
        """Return a line for each row and each value of its key: ``row``, ``keep`` and ``value``."""
        asked = rows.lazy().select(ROW, *keep, key.cast(pl.UInt64).alias("_first"))
        asked = self._find_places(asked.filter(pl.col("_first").is_not_null()))
        found = asked.filter(self._at("_place") == pl.col("_first"))
        if not self._repeats:
            return _collect_unoptimised(self._select_values(found, value, keep))
        next_too = (self._at(pl.col("_place") + 1) == pl.col("_first")).fill_null(False)
        lines = _collect_unoptimised(found.with_columns(_several=next_too))
        if not lines["_several"].any():
            return _collect_unoptimised(self._select_values(lines.lazy(), value, keep))
        several = self._expand_ranges(lines.lazy().filter("_several"), pl.col("_first"))
        parts = [lines.lazy().filter(~pl.col("_several")), several]
        return pl.concat([_collect_unoptimised(self._select_values(part, value, keep)) for part in parts])

    def between(
        self, rows: pl.DataFrame, first: pl.Expr, last: pl.Expr, value: str, keep: Sequence[str] = ()
    ) -> pl.DataFrame:
        """Return a line for each row and each value whose key is in [``first``, ``last``]."""
        bounds = first.cast(pl.UInt64).alias("_first"), last.cast(pl.UInt64).alias("_last")
        asked = rows.lazy().select(ROW, *keep, *bounds).drop_nulls(["_first", "_last"])
        return _collect_unoptimised(
            self._select_values(self._expand_ranges(self._find_places(asked), pl.col("_last")), value, keep)
        )

    def holds(self, keys: pl.Series) -> pl.Series:
        """Tell for each key (not null) whether it is there."""
        asked = self._find_places(pl.LazyFrame({"_first": keys}))
        there = (self._at("_place") == pl.col("_first")).fill_null(False)
        return _collect_unoptimised(asked.select(there.alias("held"))).to_series()

    def _find_places(self, asked: pl.LazyFrame) -> pl.LazyFrame:
        return asked.with_columns(_place=pl.lit(self._keys).search_sorted(pl.col("_first"), side="left"))

    def _at(self, place: str | pl.Expr) -> pl.Expr:
        """The key at a place, null behind the end."""
        return pl.lit(self._keys).gather(place, null_on_oob=True)

    def _expand_ranges(self, asked: pl.LazyFrame, last: pl.Expr) -> pl.LazyFrame:
        """A line for each place from ``_place`` to that of the last key; rows without one are dropped."""
        end = pl.lit(self._keys).search_sorted(last, side="right")
        asked = asked.with_columns(_end=end).filter(pl.col("_place") < pl.col("_end"))
        return asked.with_columns(_place=pl.int_ranges("_place", "_end", dtype=pl.UInt32)).explode("_place")

    def _select_values(self, asked: pl.LazyFrame, value: str, keep: Sequence[str]) -> pl.LazyFrame:
        found = pl.col("_place") if self._values is None else pl.lit(self._values).gather("_place")
        return asked.select(ROW, *keep, found.alias(value))


def _collect_unoptimised(query: pl.LazyFrame) -> pl.DataFrame:
    """Run a query of a few steps that have nothing in them to optimise, as looking for it costs more than they do."""
    return query.collect(engine="in-memory", optimizations=pl.QueryOptFlags.none())
