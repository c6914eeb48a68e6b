"""What was worked out for a key, kept in the process: batches of one file ask for the same few keys again and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import polars as pl

from bansong.engine.key_index import KeyIndex

KEY: Final = "key"
_NOWHERE: Final = pl.Series([None], dtype=pl.UInt32)


class Memo:
    """Rows by their UInt64 :data:`KEY`; one object for all threads.

    Of several threads each makes the rows that it lacks, and what the last of them knows is kept.
    """

    def __init__(self, most: int) -> None:
        """``most``: when more are known, only the newest are kept."""
        self._most = most
        self._known: _KnownRows | None = None

    def look_up(self, keys: pl.Series, make: Callable[[pl.Series], pl.DataFrame | None]) -> pl.DataFrame | None:
        """Return the row of each key, without the key.

        ``make`` is called with the mask of the keys that are new, if there are any, and returns a row for each of them
        once; or ``None``, where they are not worth keeping: then this returns ``None``, too.
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
    """Rows in the order of their keys, and the index of these."""

    def __init__(self, rows: pl.DataFrame) -> None:
        self.rows = rows.sort(KEY)
        self.values = self.rows.drop(KEY)
        self.index = KeyIndex(self.rows[KEY])
