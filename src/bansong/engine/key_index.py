"""Positions of keys in a sorted column: few keys are searched for, many are found by their remainder."""

from __future__ import annotations

from threading import Lock
from typing import Final

import polars as pl

_SEARCHES_PER_KEY: Final = 8  # making a key's slot takes an eighth of the time of a search
_MIN_KEYS: Final = 64  # fewer are faster to search
_SLOTS_PER_KEY: Final = 8  # then one key in sixteen is not in its slot, and is searched for
_MAX_SLOTS: Final = 2**25  # 134 MB; of ten million businesses one in eight is searched for
_NOWHERE: Final = pl.Series([None], dtype=pl.UInt32)


def values_at(column: pl.Series, places: pl.Series) -> pl.Series:
    """Return the value at each place (UInt32) of a column, null for null and beyond the end."""
    last = places.max()
    if last is None or last < len(column):  # type: ignore[operator]  # an integer
        return column[places]  # fifty times as fast as gather, which is a query of its own
    return column.gather(places, null_on_oob=True)


class KeyIndex:
    """Finds keys in a sorted column; one object for all threads.

    The remainder of a key leads to a slot, and that to the place of the last key with this remainder; keys that are
    not in their slot are searched for. The slots take 32 bytes a key, and are made once, by one thread, when enough
    keys were asked for; others search meanwhile, as the maker needs polars' threads.
    """

    def __init__(self, keys: pl.Series) -> None:
        """``keys``: UInt64, sorted, each once."""
        self._keys = keys
        self._size = min(_SLOTS_PER_KEY * len(keys), _MAX_SLOTS) + 1
        self._slots: pl.Series | None = None
        self._making = Lock()
        self._asked = 0

    def find(self, keys: pl.Series) -> pl.Series:
        """Return the position of each key (UInt32), null for null and unknown keys."""
        self._asked += len(keys)
        enough = len(self._keys) > _MIN_KEYS and self._asked >= len(self._keys) // _SEARCHES_PER_KEY
        if self._slots is None and enough and self._making.acquire(blocking=False):
            self._slots = self._make_slots()
        if self._slots is None:
            return self._search(keys)
        places = self._slots[self._slot_of(keys)]
        elsewhere = self._keys[places] != keys  # null where one of them is
        if elsewhere.any():
            elsewhere = elsewhere.fill_null(False)
            places = places.scatter(elsewhere.arg_true(), self._search(keys.filter(elsewhere)))
        return places

    def _search(self, keys: pl.Series) -> pl.Series:
        places = self._keys.search_sorted(keys)
        there = values_at(self._keys, places) == keys
        return places.zip_with(there.fill_null(False) if there.null_count() else there, _NOWHERE)

    def _make_slots(self) -> pl.Series:
        slots = pl.repeat(None, self._size, dtype=pl.UInt32, eager=True)
        return slots.scatter(self._slot_of(self._keys), pl.int_range(len(self._keys), dtype=pl.UInt32, eager=True))

    def _slot_of(self, keys: pl.Series) -> pl.Series:
        return (keys % self._size).cast(pl.UInt32)
