"""A cache in the process by key: batches of one file ask for the same few keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import polars as pl

from bansong.engine.key_index import KeyIndex

KEY: Final = "key"
_NOWHERE: Final = pl.Series([None], dtype=pl.UInt32)


class Memo:
    """Rows by their UInt64 :data:`KEY`; one object for all threads.

    Each thread makes the rows that it lacks, and the rows of the last one are kept.
    """

    def __init__(self, most: int) -> None:
        """``most``: beyond so many rows, only the newest are kept."""
        self._most = most
        self._known: _KnownRows | None = None

    def look_up(self, keys: pl.Series, make: Callable[[pl.Series], pl.DataFrame | None]) -> pl.DataFrame | None:
        """Return the row of each key, without the key.

        ``make`` gets the mask of the new keys, if any, and returns a row for each distinct one, or ``None`` if they are
        not worth keeping: then this returns ``None``, too.
        """
        known = self._known
        lines = known.index.find(keys) if known else _NOWHERE.new_from_index(0, len(keys))
        if known is None or lines.null_count():
            made = make(lines.is_null())
            if made is None:
                return None
            known = _KnownRows(made if known is None else pl.concat([known.rows, made]))
            self._known = known if known.rows.height <= self._most else _KnownRows(made)
            lines = known.index.find(keys)
        return known.values[lines]


class _KnownRows:
    def __init__(self, rows: pl.DataFrame) -> None:
        self.rows = rows.sort(KEY)
        self.values = self.rows.drop(KEY)
        self.index = KeyIndex(self.rows[KEY])
