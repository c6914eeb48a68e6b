"""Watch lists as they are sent: kept in blocks, of which only those are read again that hold what changed."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

import anyio

from bizverify.server.store import Store
from bizverify.watch import store as book
from bizverify.watch.store import Block

_LIMIT: Final = 256 << 20
_READ_TOGETHER: Final = 2


class RenderedList(NamedTuple):
    """A list: its entries, each behind a comma, in parts as they are kept; and how many entries there are."""

    parts: list[bytes]
    total: int


class _CachedList:
    """What is kept of one owner's list: ``None`` where nothing is; ``stale`` are blocks that changed since."""

    def __init__(self) -> None:
        self.blocks: dict[int, Block] | None = None
        self.stale: set[int] = set()
        self.size = 0
        self.reading = anyio.Lock()

    def put(self, blocks: dict[int, Block] | None) -> None:
        self.blocks = blocks
        self.size = sum(len(block.entries) for block in (blocks or {}).values())


class WatchListCache:
    """The watch lists that were asked for, up to ``limit`` bytes; those asked for longest ago go first.

    Only the server writes watches, and says so when a change is on the disk (:meth:`changed`). What is being read at
    that time may be older or newer than the change, so it is read once more the next time; what is asked for after
    :meth:`changed` shows the change. Few lists are read at once, so that many long ones do not fill the memory.
    """

    def __init__(self, store: Store, limit: int = _LIMIT) -> None:
        self._store = store
        self._limit = limit
        self._kept: dict[str, _CachedList] = {}
        self._places = anyio.Semaphore(_READ_TOGETHER)

    def changed(self, owner: str, numbers: Iterable[int]) -> None:
        """Watches of an owner were added, removed or checked: called when that is on the disk."""
        kept = self._kept.get(owner)
        if kept is not None:  # of what was never read nothing is old
            kept.stale.update(book.block_of(number) for number in numbers)

    async def of(self, owner: str) -> RenderedList:
        """An owner's whole list as it is now."""
        kept = self._kept.pop(owner, None) or _CachedList()
        self._kept[owner] = kept  # the last that goes
        blocks = kept.blocks
        if blocks is None or kept.stale:
            async with kept.reading:
                blocks = kept.blocks
                if blocks is None or kept.stale:
                    async with self._places:
                        blocks = await self._read(owner, kept)
        order = sorted(blocks)
        return RenderedList([blocks[block].entries for block in order], sum(blocks[block].total for block in order))

    async def _read(self, owner: str, kept: _CachedList) -> dict[int, Block]:
        """Read what is stale, or all; what changes meanwhile is stale again."""
        known, asked = kept.blocks, kept.stale
        kept.stale = set()
        try:
            read = await self._store.read(lambda db: _blocks(db, owner, None if known is None else asked))
        except BaseException:
            kept.stale |= asked
            raise
        blocks = {number: block for number, block in {**(known or {}), **read}.items() if block.total}
        kept.put(blocks)
        if kept.size > self._limit:  # no room could be made for it
            kept.put(None)
        self._make_room()
        return blocks

    def _make_room(self) -> None:
        """Drop lists, but never what is noted of their changes: one of them may be in the middle of being read."""
        size = sum(kept.size for kept in self._kept.values())
        for kept in self._kept.values():
            if size <= self._limit:
                return
            size -= kept.size
            kept.put(None)


def _blocks(db: sqlite3.Connection, owner: str, numbers: Collection[int] | None) -> dict[int, Block]:
    """Read some blocks of a list, or all. Each is a statement by itself: a commit waits for one, not for the list."""
    asked = book.blocks(db, owner) if numbers is None else numbers
    return {number: book.block(db, owner, number) for number in asked}
