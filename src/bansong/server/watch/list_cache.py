"""Watch lists as they are sent: piece by piece, from blocks of which those that did not change are kept in memory."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Collection, Iterable
from itertools import islice, takewhile
from typing import Final

import anyio

from bansong.server.store import Store
from bansong.watch import store as watch_store
from bansong.watch.store import Block

_LIMIT: Final = 64 << 20
"""Bytes that are kept of all lists: some 200,000 watches."""
_READ_TOGETHER: Final = 2
_BLOCKS: Final = 64
"""Blocks that are read together at most."""
_PIECE: Final = 256 << 10
"""Bytes of a list that are read, or handed on, at a time, give or take a block: so much a slow reader holds."""


class _CachedList:
    """What is kept of one owner's list.

    ``numbers``: the blocks that may hold watches, ``None`` while they are not known. ``readings``: the reading of each
    block that is under way, if nothing changed since it began; under ``None`` that of ``numbers``.
    """

    def __init__(self) -> None:
        self.numbers: set[int] | None = None
        self.blocks: dict[int, Block] = {}
        self.readings: dict[int | None, object] = {}

    def drop(self, number: int) -> int:
        """Forget a block, which changed or may have been added; return the bytes of it that were kept."""
        self.readings.pop(number, None)
        self.readings.pop(None, None)
        if self.numbers is not None:
            self.numbers.add(number)
        block = self.blocks.pop(number, None)
        return 0 if block is None else len(block.entries)


class WatchListCache:
    """The watch lists; of those that were asked for last up to ``limit`` bytes are kept.

    Only the server writes watches, and says so when a change is on the disk (:meth:`mark_stale`). What is asked for
    after that shows the change; a list that is being sent may show it or not. Memory does not grow with a list: what
    is not kept is read, by few at a time, as fast as its reader takes it.
    """

    def __init__(self, store: Store, limit: int = _LIMIT) -> None:
        self._store = store
        self._limit = limit
        self._size = 0
        self._kept: dict[str, _CachedList] = {}
        self._places = anyio.Semaphore(_READ_TOGETHER)

    def mark_stale(self, owner: str, numbers: Iterable[int]) -> None:
        """Watches of an owner were added, removed or checked: called when that is on the disk."""
        kept = self._kept.get(owner)
        if kept is not None:
            for block in set(map(watch_store.block_of, numbers)):
                self._size -= kept.drop(block)

    async def stream(self, owner: str) -> AsyncIterator[bytes]:
        """Return the pieces of an owner's whole list as JSON.

        The first is read before this returns, so that what fails then can still be answered as an error.
        """
        pieces = self._pieces(owner)
        first = await anext(pieces)

        async def resume() -> AsyncIterator[bytes]:
            yield first
            async for piece in pieces:
                yield piece

        return resume()

    async def _pieces(self, owner: str) -> AsyncIterator[bytes]:
        total, piece = 0, bytearray(b'{"watches":[')
        async for block in self._blocks(owner):
            piece += block.entries if total else block.entries[1:]  # without the comma
            total += block.total
            if len(piece) >= _PIECE:
                yield bytes(piece)
                piece.clear()
        yield bytes(piece) + b'],"total":%d}' % total

    async def _blocks(self, owner: str) -> AsyncIterator[Block]:
        """Yield the blocks of a list in their order: from memory, or read, some together."""
        kept = self._kept.pop(owner, None) or _CachedList()
        self._kept[owner] = kept  # the last that goes
        left = sorted(await self._numbers(owner, kept), reverse=True)
        while left:
            block = kept.blocks.get(left[-1])
            if block is not None:
                left.pop()
                yield block
                continue
            missing = takewhile(lambda number: number not in kept.blocks, reversed(left))
            for block in await self._read(owner, kept, list(islice(missing, _BLOCKS))):
                left.pop()
                yield block

    async def _numbers(self, owner: str, kept: _CachedList) -> Collection[int]:
        if kept.numbers is None:
            reading = kept.readings[None] = object()
            numbers = await self._store.read(lambda db: watch_store.blocks(db, owner))
            if kept.readings.get(None) is not reading:
                return numbers
            kept.numbers = set(numbers)
        return tuple(kept.numbers)

    async def _read(self, owner: str, kept: _CachedList, numbers: list[int]) -> list[Block]:
        """Read the first of some blocks, as many as make a piece; keep those that did not change meanwhile."""
        reading = object()
        kept.readings |= dict.fromkeys(numbers, reading)
        async with self._places:
            blocks = await self._store.read(lambda db: _read_piece(db, owner, numbers))
        for number, block in zip(numbers, blocks, strict=False):
            if kept.readings.get(number) is reading and self._kept.get(owner) is kept:
                del kept.readings[number]
                self._keep(owner, kept, number, block)
        return blocks

    def _keep(self, owner: str, kept: _CachedList, number: int, block: Block) -> None:
        """Keep a block where there is room, or where lists that were asked for longer ago make some."""
        if not block.total:
            if kept.numbers is not None:
                kept.numbers.discard(number)
            return
        size = len(block.entries)
        for other in list(self._kept):
            if self._size + size <= self._limit or other == owner:
                break
            self._drop_list(other)
        if self._size + size <= self._limit:
            kept.blocks[number] = block
            self._size += size

    def _drop_list(self, owner: str) -> None:
        """Forget a list; whoever is being sent it goes on with what is read."""
        kept = self._kept.pop(owner)
        self._size -= sum(len(block.entries) for block in kept.blocks.values())
        kept.blocks.clear()


def _read_piece(db: sqlite3.Connection, owner: str, numbers: Iterable[int]) -> list[Block]:
    """Read blocks until they make a piece. Each is a statement by itself: a commit waits for one, not for the list."""
    blocks: list[Block] = []
    size = 0
    for number in numbers:
        blocks.append(watch_store.block(db, owner, number))
        size += len(blocks[-1].entries)
        if size >= _PIECE:
            break
    return blocks
