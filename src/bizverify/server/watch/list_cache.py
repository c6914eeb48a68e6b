"""Watch lists as they are sent: kept in blocks, of which only those are read again that hold what changed."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

import anyio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from bizverify.server.errors import JSON
from bizverify.server.store import Store
from bizverify.watch import store as watch_store
from bizverify.watch.store import Block

_LIMIT: Final = 256 << 20
_READ_TOGETHER: Final = 2
_SLICE: Final = 256 << 10
"""Bytes of a long list that are handed on at a time, so that a slow reader does not make the rest wait in memory."""


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

    Only the server writes watches, and says so when a change is on the disk (:meth:`mark_stale`). What is being read at
    that time may be older or newer than the change, so it is read once more the next time; what is asked for after
    :meth:`mark_stale` shows the change. Few lists are read at once, so that many long ones do not fill the memory.
    """

    def __init__(self, store: Store, limit: int = _LIMIT) -> None:
        self._store = store
        self._limit = limit
        self._kept: dict[str, _CachedList] = {}
        self._places = anyio.Semaphore(_READ_TOGETHER)

    def mark_stale(self, owner: str, numbers: Iterable[int]) -> None:
        """Watches of an owner were added, removed or checked: called when that is on the disk."""
        kept = self._kept.get(owner)
        if kept is not None:  # of what was never read nothing is old
            kept.stale.update(watch_store.block_of(number) for number in numbers)

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
    asked = watch_store.blocks(db, owner) if numbers is None else numbers
    return {number: watch_store.block(db, owner, number) for number in asked}


class WatchListResponse(Response):
    """A whole list, sent in slices: in one piece asyncio would copy the rest again for each socket's buffer."""

    media_type = JSON

    def __init__(self, listed: RenderedList) -> None:
        super().__init__()
        first, *others = listed.parts or [b""]
        head, tail = b'{"watches":[', b'],"total":%d}' % listed.total
        self._parts = [memoryview(part) for part in (head, first, *others, tail)]
        self._parts[1] = self._parts[1][1:]  # the comma
        self.headers["Content-Length"] = str(sum(map(len, self._parts)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, as fast as it is taken."""
        del scope, receive
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for part in self._parts:
            for start in range(0, len(part), _SLICE):
                await send({"type": "http.response.body", "body": part[start : start + _SLICE], "more_body": True})
        await send({"type": "http.response.body", "body": b""})
