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

    @classmethod
    def of(cls, frame: pl.DataFrame, key: pl.Expr, value: str) -> Index:
        """Build an index from an unsorted frame; rows whose key is null are left out, repeated pairs kept once."""
        pairs = frame.select(key.alias("key"), pl.col(value).alias("value")).drop_nulls("key").unique().sort("key")
        return cls(pairs["key"], pairs["value"])

    def find(self, rows: pl.DataFrame, key: pl.Expr, value: str, keep: Sequence[str] = ()) -> pl.DataFrame:
        """Return a line for each row and each value of its key: ``row``, ``keep`` and ``value``."""
        asked = rows.select(ROW, *keep, key.cast(pl.UInt64).alias("_first")).drop_nulls("_first")
        asked = asked.with_columns(self._places(asked["_first"]).alias("_place"))
        asked = asked.filter(self._same(asked["_place"], asked["_first"]))
        repeated = self._same(asked["_place"] + 1, asked["_first"])
        if repeated.any():
            several = self._spread(asked.filter(repeated), pl.col("_first"))
            asked = pl.concat([asked.filter(~repeated), several])
        return self._valued(asked, value, keep)

    def between(
        self, rows: pl.DataFrame, first: pl.Expr, last: pl.Expr, value: str, keep: Sequence[str] = ()
    ) -> pl.DataFrame:
        """Return a line for each row and each value whose key is in [``first``, ``last``]."""
        asked = rows.select(ROW, *keep, first.cast(pl.UInt64).alias("_first"), last.cast(pl.UInt64).alias("_last"))
        asked = asked.drop_nulls(["_first", "_last"])
        asked = asked.with_columns(self._places(asked["_first"]).alias("_place"))
        return self._valued(self._spread(asked, pl.col("_last")), value, keep)

    def holds(self, keys: pl.Series) -> pl.Series:
        """Tell for each key (not null) whether it is there."""
        return self._same(self._places(keys), keys)

    def _places(self, keys: pl.Series) -> pl.Series:
        return self._keys.search_sorted(keys, side="left").cast(pl.UInt32)

    def _same(self, places: pl.Series, keys: pl.Series) -> pl.Series:
        """Whether these keys stand at these places, some of which may lie behind the end."""
        if self._keys.is_empty():
            return pl.Series([False], dtype=pl.Boolean).new_from_index(0, len(keys))
        last = len(self._keys) - 1
        return (self._keys.gather(places.clip(upper_bound=last)) == keys) & (places <= last)

    def _spread(self, asked: pl.DataFrame, last: pl.Expr) -> pl.DataFrame:
        """A line for each place from ``_place`` to that of the last key; rows without one are dropped."""
        end = self._keys.search_sorted(asked.select(last).to_series(), side="right").cast(pl.UInt32)
        asked = asked.with_columns(end.alias("_end")).filter(pl.col("_place") < pl.col("_end"))
        ranges = pl.int_ranges("_place", "_end", dtype=pl.UInt32)
        return asked.with_columns(ranges.alias("_place")).explode("_place").drop("_end")

    def _valued(self, asked: pl.DataFrame, value: str, keep: Sequence[str]) -> pl.DataFrame:
        values = asked["_place"] if self._values is None else self._values.gather(asked["_place"])
        return asked.select(ROW, *keep).with_columns(values.alias(value))
