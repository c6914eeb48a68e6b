"""Schedule the checks of watched businesses: each is checked as often as its key's plan says."""

from __future__ import annotations

import logging
import math
import sqlite3
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from functools import partial
from itertools import islice, takewhile
from typing import Final
from zlib import crc32

import anyio
import anyio.to_thread
import polars as pl
from polars.exceptions import PanicException

from bansong.server.engine_pool import EnginePool
from bansong.server.reference_files import StatusSource, StatusSources, fetch_statuses_of
from bansong.server.settings import Clock, Settings, loggable_message
from bansong.server.store import Store, key_table
from bansong.server.store.key_table import Key
from bansong.watch import store as watch_store
from bansong.watch.checking import LocalJudge, judge_watches
from bansong.watch.comparison import CheckResult
from bansong.watch.notifications import FILE, WEBHOOK, SummaryWindow
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


_log = logging.getLogger(__name__)

CHUNK: Final = 1_000
"""Watches that are checked at a time: a quarter of a second's work, between which other requests are answered."""
_LONGEST: Final = 60.0
"""Seconds after which the keys are looked at again, whatever is due: one may be new, or revoked."""
_SHORTEST: Final = 5.0
"""Seconds between rounds: what falls due in them is checked together."""
_SOONEST: Final = 0.5
"""The part of the plan's interval that a new watch waits for its first check at least."""
_SLOTS: Final = 24
"""First checks are made at so many times in the plan's interval: those of a list are asked for, and told, together."""
_SUMMARY: Final = 60.0
"""Seconds that what is closed at its first check waits for more: what is found together is one notification."""
_SPREAD: Final = 0.1
"""How much earlier than the plan says a watch may be due, so that those added together part with time."""
_MAX_AGE: Final = 0.0
"""Days: whatever is due to be checked is asked for, if it was not on the same day."""
_UNANSWERED: Final = 300.0
_OVERDUE: Final = 900.0
"""Seconds that a check may be late before somebody is told."""
_MOST: Final = 365 * 86400.0
_BACKOFF: Final = (5.0, 30.0, 120.0, 600.0)


class WatchScheduler:
    """Checks the watches that are due; ``on_notification`` is called when there are notifications to be delivered.

    ``sources``: who is asked for the status of a business. ``last_check``: when watches were checked last (seconds
    since 1970), ``None`` before the first check.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        store: Store,
        engines: EnginePool,
        sources: StatusSources,
        *,
        on_notification: Callable[[], None],
    ) -> None:
        self.lists = WatchListCache(store)
        self._store = store
        self._engines = engines
        self.sources = sources
        self._plans = settings.plans
        self._clock = clock
        self._channels = [FILE] if settings.notices is not None else []
        self._on_notification = on_notification
        self._failed: dict[str, tuple[int, float]] = {}
        self.last_check: float | None = None

    def overdue(self, db: sqlite3.Connection, now: float) -> watch_store.Overdue:
        """Return how many watches of the keys that are served should have been checked a quarter of an hour ago."""
        return watch_store.count_overdue(db, [key.id for key, _ in self._keys_due(db)], now - _OVERDUE)

    def first_check(self, key: Key, biz_no: str, now: float) -> float:
        """Return when a business that a key watches from now on is checked for the first time.

        It is in the second half of the plan's interval, where in it depends on the number alone: a check is neither
        quick nor, by removing and adding the number again, ever sooner.
        """
        interval = self._interval(key)
        slot = interval / _SLOTS
        place = crc32(f"{key.id} {biz_no}".encode()) / 2.0**32
        after = now + interval * (_SOONEST + (1 - _SOONEST) * place) - slot * place
        offset = crc32(key.id.encode()) / 2.0**32 * slot  # the lists of different keys are not checked together
        return math.ceil((after - offset) / slot) * slot + offset

    async def run(self) -> None:
        """Check what is due, for ever."""
        while True:
            await self._bring_forward()
            await self._clock.sleep(await self._round())

    async def _round(self) -> float:
        """Check a chunk of each key that has something due, until none has; return how many seconds there are then."""
        while True:
            waiting = await self._store.read(self._keys_due)
            now = self._clock.now()
            ready = [key for key, due in waiting if due <= now]
            if not ready:
                return max(_SHORTEST, min([_LONGEST, *(due - now for _, due in waiting)]))
            for key in ready:
                await self._check_chunk(key)

    async def _bring_forward(self) -> None:
        """Let no watch wait longer than its plan says, though the plan was another, or the clock was wrong."""
        late = await self._store.read(lambda db: self._overdue(db, self._clock.now()))
        for owner, until in late:
            forward = partial(watch_store.bring_forward, owner=owner, until=until, limit=CHUNK)
            while numbers := await self._store.write(forward):
                self.lists.mark_stale(owner, numbers)

    def _overdue(self, db: sqlite3.Connection, now: float) -> list[tuple[str, float]]:
        """The keys with watches that are due later than they should be, and when these should be at the latest."""
        latest = [(key.id, now + self._interval(key)) for key in key_table.list_keys(db) if key.revoked is None]
        return [(owner, until) for owner, until in latest if (watch_store.last_due(db, owner) or 0.0) > until]

    def _interval(self, key: Key | None) -> float:
        """Seconds between two checks of a key's watches."""
        hours = self._plans[key.plan].recheck_hours if key is not None and key.plan in self._plans else math.inf
        return min(hours * 3600.0, _MOST)

    def _keys_due(self, connection: sqlite3.Connection) -> list[tuple[Key, float]]:
        """The keys whose watches are checked, and when the first of each is due."""
        found = []
        for key in key_table.list_keys(connection):
            plan = self._plans.get(key.plan)
            if key.revoked is None and plan is not None and plan.api:
                due = watch_store.next_due(connection, key.id)
                if due is not None:
                    again = self._failed.get(key.id, (0, due))[1]
                    found.append((key, max(due, min(again, self._clock.now() + _BACKOFF[-1]))))
        return found

    async def _check_chunk(self, key: Key) -> None:
        """Check some of a key's watches that are due. What fails leaves them due, and the key waits a little."""
        now = self._clock.now()
        watches = await self._store.read(lambda db: watch_store.due(db, now, CHUNK, [key.id]))
        source = self.sources.source(offline=False)
        try:
            await fetch_statuses_of(source, watches.lazy().select(b_no="biz_no"), _MAX_AGE)
            checked = await anyio.to_thread.run_sync(self._check, source, key.scope, watches)
            recorded = await self._store.write(lambda db: self._record(db, key.id, now, watches, checked))
        except (Exception, PanicException) as error:  # a damaged registry, say: it is replaced some day
            failures = self._failed.get(key.id, (0, 0.0))[0]
            pause = _BACKOFF[min(failures, len(_BACKOFF) - 1)]
            self._failed[key.id] = failures + 1, self._clock.now() + pause
            _log.error("watches of key %s are not checked, again in %g s: %s", key.id, pause, loggable_message(error))
            return
        self._failed.pop(key.id, None)
        self.last_check = self._clock.now()
        self.lists.mark_stale(key.id, watches["number"])
        if not (recorded.closures.is_empty() and recorded.closed_already.is_empty()):
            self._on_notification()
        _log.info(
            "key %s: watches checked: %d, grades changed: %d, closed: %d",
            key.id,
            recorded.watches.height,
            recorded.changes.height,
            recorded.closures.height,
        )

    def _check(self, source: StatusSource, scope: str, watches: pl.DataFrame) -> pl.DataFrame:
        engine = self._engines.engine(scope)
        return judge_watches(watches, LocalJudge(engine, partial(source.answer, engine)))

    def _record(
        self, db: sqlite3.Connection, owner: str, started: float, watches: pl.DataFrame, checked: pl.DataFrame
    ) -> CheckResult:
        """Record a check; the channels are looked up with it, since a webhook may have been set a moment ago."""
        now, key = self._clock.now(), key_table.find_key(db, owner)
        channels = list(self._channels)
        if key is not None and key.webhook_url is not None:
            channels.append(WEBHOOK)
        early = pl.col("number").hash(int(now)) / 2.0**64 * _SPREAD
        again = started + self._interval(key) * (1 - early)
        recorded = watch_store.record(db, checked, now, again, channels, SummaryWindow(now - _SUMMARY, now + _SUMMARY))
        unanswered = watches.join(checked, on="number", how="anti")["number"].to_list()
        if unanswered:
            watch_store.postpone(db, unanswered, now + _UNANSWERED)
        return recorded
