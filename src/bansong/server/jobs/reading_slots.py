"""Slots for reading uploads: one file per key at a time, small files never behind large ones."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

import anyio
import anyio.to_thread

from bansong.server.jobs.isolated_reader import ReadBounds, abandoned_file, read_isolated
from bansong.server.upload_form import ReceivedUpload
from bansong.tables.isolation import IsolationError
from bansong.tables.size_limits import limits

SMALL_FILE: Final = 2_000_000
"""Reading such a file of any format takes 180 MB and two seconds."""
_SMALL_MEMORY: Final = 300_000_000
_SMALL_SECONDS: Final = 10.0
_LARGE_SECONDS: Final = 120.0


class ReadingSlots:
    """Reads uploads in isolated processes: ``slots`` large ones at once, and as many small ones beside them.

    Large files may take the memory of :class:`~bansong.tables.size_limits.SizeLimits` each and two minutes, small ones
    a quarter of it and ten seconds. A small file that needs more is read again in a slot for large ones.
    """

    def __init__(self, slots: int) -> None:
        self._small = anyio.CapacityLimiter(slots)
        self._large = anyio.CapacityLimiter(slots)
        self._of_key: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()

    @property
    def total_tokens(self) -> int:
        return int(self._small.total_tokens + self._large.total_tokens)

    @property
    def borrowed_tokens(self) -> int:
        return self._small.borrowed_tokens + self._large.borrowed_tokens

    async def read(self, key_id: str, upload: ReceivedUpload, target: Path, most: int) -> int:
        """Read a key's file in turn; as :func:`~bansong.server.jobs.isolated_reader.read_isolated`."""
        async with self._of_key.setdefault(key_id, anyio.Lock()):
            memory, size = limits().memory, await anyio.to_thread.run_sync(lambda: upload.path.stat().st_size)
            if size <= SMALL_FILE:
                bounds = ReadBounds(min(_SMALL_MEMORY, memory), _SMALL_SECONDS)
                async with self._small:
                    with suppress(IsolationError):
                        return await read_isolated(upload, target, most, bounds)
            async with self._large:
                try:
                    return await read_isolated(upload, target, most, ReadBounds(memory, _LARGE_SECONDS))
                except IsolationError as error:
                    raise abandoned_file(upload, error) from None
