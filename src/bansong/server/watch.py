"""Check watch lists on time, and send their notifications."""

from __future__ import annotations

import logging
import math
import sqlite3
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import islice, takewhile
from pathlib import Path
from typing import Final
from zlib import crc32

import anyio
import anyio.to_thread
import polars as pl
from anyio.abc import TaskGroup
from polars.exceptions import PanicException

from bansong.base.errors import BansongError
from bansong.base.messages import gettext
from bansong.client.webhook import Outcome, WebhookSender, WebhookUrl
from bansong.notify import queue as notifications
from bansong.notify.channels import (
    FILE,
    WEBHOOK,
    Channel,
    FileChannel,
    UnusableChannel,
    WebhookChannel,
    append_lines,
    deliver,
)
from bansong.notify.queue import Backoff, PendingDelivery, SummaryWindow
from bansong.server import keys as key_table
from bansong.server.engines import EnginePool, StatusSource, fetch_statuses_of
from bansong.server.keys import Key
from bansong.server.settings import Clock, Settings, WakeUp, loggable_message
from bansong.server.store import Store
from bansong.watch import store as watch_store
from bansong.watch.checking import judge_watches
from bansong.watch.store import Block, CheckResult

_CACHE_BYTES: Final = 64 << 20  # some 200,000 watches
_PARALLEL_READS: Final = 2
_BLOCKS_PER_READ: Final = 64
_PIECE_BYTES: Final = 256 << 10  # read and sent at a time: a slow reader keeps so much in memory


class _CachedList:
    def __init__(self) -> None:
        self.numbers: set[int] | None = None
        self.blocks: dict[int, Block] = {}
        self.changes = 0  # blocks read before the last change are not cached


class WatchListCache:
    """LRU cache of watch lists as JSON. Parts that are not cached are read while the list is sent."""

    def __init__(self, store: Store, limit: int = _CACHE_BYTES) -> None:
        self._store = store
        self._limit = limit
        self._size = 0
        self._kept: dict[str, _CachedList] = {}
        self._places = anyio.Semaphore(_PARALLEL_READS)

    def mark_stale(self, owner: str, numbers: Iterable[int]) -> None:
        kept = self._kept.get(owner)
        if kept is not None:
            kept.changes += 1
            for number in set(map(watch_store.block_of, numbers)):
                if kept.numbers is not None:
                    kept.numbers.add(number)
                if (block := kept.blocks.pop(number, None)) is not None:
                    self._size -= len(block.entries)

    async def stream(self, owner: str) -> AsyncIterator[bytes]:
        """Stream a list as JSON. The first piece is read before this returns, so that its errors can be answered."""
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
            if len(piece) >= _PIECE_BYTES:
                yield bytes(piece)
                piece.clear()
        yield bytes(piece) + b'],"total":%d}' % total

    async def _blocks(self, owner: str) -> AsyncIterator[Block]:
        kept = self._kept.pop(owner, None) or _CachedList()
        self._kept[owner] = kept  # most recently used
        left = sorted(await self._numbers(owner, kept), reverse=True)
        while left:
            block = kept.blocks.get(left[-1])
            if block is not None:
                left.pop()
                yield block
                continue
            missing = takewhile(lambda number: number not in kept.blocks, reversed(left))
            for block in await self._read(owner, kept, list(islice(missing, _BLOCKS_PER_READ))):
                left.pop()
                yield block

    async def _numbers(self, owner: str, kept: _CachedList) -> Collection[int]:
        if kept.numbers is None:
            before = kept.changes
            numbers = await self._store.read(lambda db: watch_store.blocks(db, owner))
            if kept.changes != before:
                return numbers
            kept.numbers = set(numbers)
        return tuple(kept.numbers)

    async def _read(self, owner: str, kept: _CachedList, numbers: list[int]) -> list[Block]:
        before = kept.changes
        async with self._places:
            blocks = await self._store.read(lambda db: _read_piece(db, owner, numbers))
        if kept.changes == before and self._kept.get(owner) is kept:
            for number, block in zip(numbers, blocks, strict=False):
                self._keep(owner, kept, number, block)
        return blocks

    def _keep(self, owner: str, kept: _CachedList, number: int, block: Block) -> None:
        if not block.total:
            if kept.numbers is not None:
                kept.numbers.discard(number)
            return
        size = len(block.entries)
        for other in list(self._kept):
            if self._size + size <= self._limit or other == owner:
                break
            self._drop_list(other)
        if self._size + size <= self._limit and number not in kept.blocks:
            kept.blocks[number] = block
            self._size += size

    def _drop_list(self, owner: str) -> None:
        kept = self._kept.pop(owner)
        self._size -= sum(len(block.entries) for block in kept.blocks.values())
        kept.blocks.clear()


def _read_piece(db: sqlite3.Connection, owner: str, numbers: Iterable[int]) -> list[Block]:
    """Read blocks of up to :data:`_PIECE_BYTES`, each by one statement, so that a commit waits for one block only."""
    blocks: list[Block] = []
    size = 0
    for number in numbers:
        blocks.append(watch_store.block(db, owner, number))
        size += len(blocks[-1].entries)
        if size >= _PIECE_BYTES:
            break
    return blocks


_log = logging.getLogger(__name__)

CHUNK: Final = 1_000  # watches checked at a time: a quarter of a second of work between other requests
_MAX_PAUSE_S: Final = 60.0  # then keys are looked at again: one may be new, or revoked
_MIN_PAUSE_S: Final = 5.0  # watches due within that time are checked together
_SOONEST: Final = 0.5  # fraction of the plan's interval before the first check of a new watch
_SLOTS: Final = 24  # first checks are grouped per interval, so that a list is asked and reported together
_SUMMARY_S: Final = 60.0  # closures at first checks within that time are reported in one notification
_SPREAD: Final = 0.1  # fraction of the interval by which a watch may be due earlier, to spread watches added together
_MAX_AGE_DAYS: Final = 0.0  # ask for every due status not asked on the same day
_UNANSWERED_PAUSE_S: Final = 300.0
_OVERDUE_S: Final = 900.0  # delay of a check that monitoring reports
_MAX_INTERVAL_S: Final = 365 * 86400.0
_BACKOFF_S: Final = (5.0, 30.0, 120.0, 600.0)


class WatchScheduler:
    """Check due watches, and queue notifications of closures."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        store: Store,
        engines: EnginePool,
        sources: Sequence[StatusSource],
        *,
        on_notification: Callable[[], None],
    ) -> None:
        self.lists = WatchListCache(store)
        self._store = store
        self._engines = engines
        self.source = sources[0]
        self._plans = settings.plans
        self._clock = clock
        self._channels = [FILE] if settings.notices is not None else []
        self._on_notification = on_notification
        self._failed: dict[str, tuple[int, float]] = {}
        self.last_check: float | None = None

    def overdue(self, db: sqlite3.Connection, now: float) -> watch_store.Overdue:
        return watch_store.count_overdue(db, [key.id for key, _ in self._keys_due(db)], now - _OVERDUE_S)

    def first_check(self, key: Key, biz_no: str, now: float) -> float:
        """Return the time of a new watch's first check. Removing and adding a watch again does not hasten it."""
        interval = self._interval(key)
        slot = interval / _SLOTS
        place = crc32(f"{key.id} {biz_no}".encode()) / 2.0**32
        after = now + interval * (_SOONEST + (1 - _SOONEST) * place) - slot * place
        offset = crc32(key.id.encode()) / 2.0**32 * slot  # the lists of different keys are not checked together
        return math.ceil((after - offset) / slot) * slot + offset

    async def run(self) -> None:
        while True:
            await self._bring_forward()
            await self._clock.sleep(await self._round())

    async def _round(self) -> float:
        while True:
            waiting = await self._store.read(self._keys_due)
            now = self._clock.now()
            ready = [key for key, due in waiting if due <= now]
            if not ready:
                return max(_MIN_PAUSE_S, min([_MAX_PAUSE_S, *(due - now for _, due in waiting)]))
            for key in ready:
                await self._check_chunk(key)

    async def _bring_forward(self) -> None:
        """Reschedule watches due later than their plan allows: the plan changed, or the clock was wrong."""
        late = await self._store.read(lambda db: self._overdue(db, self._clock.now()))
        for owner, until in late:
            forward = partial(watch_store.bring_forward, owner=owner, until=until, limit=CHUNK)
            while numbers := await self._store.write(forward):
                self.lists.mark_stale(owner, numbers)

    def _overdue(self, db: sqlite3.Connection, now: float) -> list[tuple[str, float]]:
        latest = [(key.id, now + self._interval(key)) for key in key_table.list_keys(db) if key.revoked is None]
        return [(owner, until) for owner, until in latest if (watch_store.last_due(db, owner) or 0.0) > until]

    def _interval(self, key: Key | None) -> float:
        hours = self._plans[key.plan].recheck_hours if key is not None and key.plan in self._plans else math.inf
        return min(hours * 3600.0, _MAX_INTERVAL_S)

    def _keys_due(self, connection: sqlite3.Connection) -> list[tuple[Key, float]]:
        found = []
        for key in key_table.list_keys(connection):
            plan = self._plans.get(key.plan)
            if key.revoked is None and plan is not None and plan.api:
                due = watch_store.next_due(connection, key.id)
                if due is not None:
                    again = self._failed.get(key.id, (0, due))[1]
                    found.append((key, max(due, min(again, self._clock.now() + _BACKOFF_S[-1]))))
        return found

    async def _check_chunk(self, key: Key) -> None:
        now = self._clock.now()
        watches = await self._store.read(lambda db: watch_store.due(db, now, CHUNK, [key.id]))
        source = self.source
        try:
            await fetch_statuses_of(source, watches.lazy().select(b_no="biz_no"), _MAX_AGE_DAYS)
            checked = await anyio.to_thread.run_sync(self._check, source, key.id, watches)
            recorded = await self._store.write(lambda db: self._record(db, key.id, now, watches, checked))
        except (Exception, PanicException) as error:  # such as a damaged registry, until it is replaced
            failures = self._failed.get(key.id, (0, 0.0))[0]
            pause = _BACKOFF_S[min(failures, len(_BACKOFF_S) - 1)]
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

    def _check(self, source: StatusSource, key_id: str, watches: pl.DataFrame) -> pl.DataFrame:
        engine = self._engines.engine(key_id)
        return judge_watches(watches, engine, partial(source.answer, engine))

    def _record(
        self, db: sqlite3.Connection, owner: str, started: float, watches: pl.DataFrame, checked: pl.DataFrame
    ) -> CheckResult:
        """Record a check. The webhook is read in the same transaction, as it may have changed."""
        now, key = self._clock.now(), key_table.find_key(db, owner)
        channels = list(self._channels)
        if key is not None and key.webhook_url is not None:
            channels.append(WEBHOOK)
        early = pl.col("number").hash(int(now)) / 2.0**64 * _SPREAD
        again = started + self._interval(key) * (1 - early)
        recorded = watch_store.record(
            db, checked, now, again, channels, SummaryWindow(now - _SUMMARY_S, now + _SUMMARY_S)
        )
        unanswered = watches.join(checked, on="number", how="anti")["number"].to_list()
        if unanswered:
            watch_store.postpone(db, unanswered, now + _UNANSWERED_PAUSE_S)
        return recorded


_LINES_PER_APPEND: Final = 1_000
_SENT_PER_ROUND: Final = 64  # of a key; the first is sent alone: a receiver that hangs blocks one slot only
_REQUESTS_PER_RECEIVER: Final = 8  # parallel requests to one receiver
_REQUESTS: Final = 32  # parallel requests to all receivers
_MAX_WAIT_S: Final = 60.0  # `bansong notices retry` writes to the file, too, so look again after that time
_KEPT_S: Final = 90 * 86400.0
_PURGE_INTERVAL_S: Final = 86400.0
_FILE_QUEUE: Final = ""  # name of the queue for the file; the others are named after keys


class Notifier:
    """Deliver queued notifications to webhooks and to the file of ``--notices``."""

    def __init__(self, store: Store, clock: Clock, sender: WebhookSender, *, file: Path | None) -> None:
        if file is not None:
            append_lines(file, [])
        self._store = store
        self._clock = clock
        self._file: Channel = (
            UnusableChannel(FILE, gettext("the server was started without `notices=`"))
            if file is None
            else FileChannel(file)
        )
        self._backoff = Backoff()
        self._sender = sender
        self._wake_up = WakeUp(clock)
        self._places = anyio.Semaphore(_REQUESTS)
        self._purged = -_KEPT_S
        self._busy: set[str] = set()

    def wake(self) -> None:
        self._wake_up.ring()

    async def run(self) -> None:
        self._busy.clear()
        async with anyio.create_task_group() as group:
            while True:
                await self._wake_up.wait(await self._round(group))

    async def _round(self, group: TaskGroup) -> float:
        now = self._clock.now()
        if now - self._purged > _PURGE_INTERVAL_S:
            self._purged = now
            await self._store.write(lambda db: notifications.purge(db, now - _KEPT_S))
        waiting, due = await self._store.read(
            lambda db: (notifications.due_channels(db, now), notifications.next_due(db, now))
        )
        latest = now + self._backoff.most
        if due is not None and due > latest:
            await self._store.write(lambda db: notifications.bring_forward(db, latest))
        for owner, channel in waiting:
            place = _FILE_QUEUE if channel == FILE else owner
            if place not in self._busy:
                self._busy.add(place)
                group.start_soon(self._deliver, place)
        return _MAX_WAIT_S if due is None else min(_MAX_WAIT_S, due - now)

    async def _deliver(self, place: str) -> None:
        """Deliver to the notices file or a key's webhook. After a failure, the receiver's other notifications wait."""
        now, is_file = self._clock.now(), place == _FILE_QUEUE
        of = {"channel": FILE} if is_file else {"channel": WEBHOOK, "owner": place}
        limit = _LINES_PER_APPEND if is_file else _SENT_PER_ROUND
        waiting, key = await self._store.read(
            lambda db: (notifications.due_deliveries(db, now, limit, **of), key_table.find_key(db, place))
        )
        channel = self._file if is_file else _open_webhook(key, self._sender, self._clock.now)
        if isinstance(channel, str):
            given_up = [(delivery.number, str(delivery.channel), channel, None) for delivery in waiting]
            await self._store.write(lambda db: notifications.mark_failed(db, given_up))
        elif waiting:
            settle = partial(self._settle, channel)
            is_failing = await deliver(channel, waiting, settle, parallel=_REQUESTS_PER_RECEIVER, places=self._places)
            if is_failing and not is_file:
                until = self._clock.now() + self._backoff.first
                await self._store.write(lambda db: notifications.postpone(db, place, WEBHOOK, until))
        self._busy.discard(place)
        self.wake()

    async def _settle(self, channel: Channel, deliveries: Sequence[PendingDelivery], outcome: Outcome) -> None:
        now, error = self._clock.now(), outcome.error
        done: list[tuple[int, str]] = []
        failed: list[tuple[int, str, str, float | None]] = []
        for one in deliveries:
            if error is None:
                done.append((one.number, channel.name))
                continue
            due = self._backoff.next_due(one.attempts + 1, one.begun, now, outcome.retry_after)
            failed.append((one.number, channel.name, error, due))
            if channel.receiver:
                _log.warning("notice %s of key %s: %s %s", one.id, one.owner, channel.receiver, error)
        if failed and not channel.receiver:
            _log.error("%s", error)

        def settle(db: sqlite3.Connection) -> None:
            notifications.mark_delivered(db, done, now)
            notifications.mark_failed(db, failed)

        await self._store.write(settle)


def _open_webhook(key: Key | None, sender: WebhookSender, now: Callable[[], float]) -> Channel | str:
    if key is None or key.revoked is not None:
        return gettext("the key was revoked")
    if key.webhook_url is None or key.webhook_secret is None:
        return gettext("the key has no webhook any more")
    try:
        url = WebhookUrl.parse(key.webhook_url, allow_http=True)  # http was allowed or refused when it was set
    except BansongError as error:
        return str(error)
    return WebhookChannel(url, sender, key.webhook_secret, now)
