"""The watch list is looked after: what is due is checked again and again, as often as each key's plan says."""

from __future__ import annotations

import logging
import math
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
import polars as pl

from bizverify.engine import LocalEngine
from bizverify.server.alarm import Alarm
from bizverify.server.clock import Clock
from bizverify.server.plans import Plan
from bizverify.server.store import Store
from bizverify.server.store import keys as stored
from bizverify.server.store.keys import Key
from bizverify.watch import book
from bizverify.watch.checking import LocalJudge, check
from bizverify.watch.delivery import FILE, WEBHOOK
from bizverify.watch.values import Recorded

_log = logging.getLogger(__name__)

CHUNK: Final = 1_000
"""Watches that are checked at a time: a quarter of a second's work, between which other requests are answered."""
_LONGEST: Final = 60.0
"""Seconds after which the keys are looked at again, whatever is due: one may be new, or revoked."""
_GATHERED: Final = 0.5
"""Seconds that new watches wait for others, so that a list that is being sent is not checked one by one."""
_SPREAD: Final = 0.1
"""How much earlier than the plan says a watch may be due, so that those added together part with time."""
_READ_TOGETHER: Final = 2
_UNANSWERED: Final = 300.0
_BACKOFF: Final = (5.0, 30.0, 120.0, 600.0)


class Lists:
    """The watch lists as they are sent, kept until one changes; those asked for longest ago go first.

    A list that is not kept is read within ``reading``, so that many requests for long ones do not fill the memory.
    """

    def __init__(self, limit: int = 256 << 20) -> None:
        self._limit = limit
        self._versions: dict[str, int] = {}
        self._bodies: dict[str, bytes] = {}
        self.reading = anyio.Semaphore(_READ_TOGETHER)

    def version(self, owner: str) -> int:
        """A number that is another after each change; to be asked for before the list is read."""
        return self._versions.get(owner, 0)

    def changed(self, owner: str) -> None:
        """An owner's list is another now: called when the change is on the disk."""
        self._versions[owner] = self.version(owner) + 1
        self._bodies.pop(owner, None)

    def find(self, owner: str) -> bytes | None:
        """The list as it was read since the last change, if it was."""
        found = self._bodies.pop(owner, None)
        if found is None:
            return None
        self._bodies[owner] = found
        return found

    def keep(self, owner: str, version: int, body: bytes) -> None:
        """Keep what was read, unless it changed meanwhile."""
        if version != self.version(owner) or len(body) > self._limit:
            return
        self._bodies[owner] = body
        while sum(len(body) for body in self._bodies.values()) > self._limit:
            del self._bodies[next(iter(self._bodies))]


class Watching:
    """Checks the watches that are due; ``found`` is called when there are notices to be delivered."""

    def __init__(
        self,
        store: Store,
        engine: Callable[[str], LocalEngine],
        plans: Mapping[str, Plan],
        clock: Clock,
        *,
        notices: Path | None,
        found: Callable[[], None],
    ) -> None:
        self.lists = Lists()
        self._store = store
        self._engine = engine
        self._plans = plans
        self._clock = clock
        self._notices = notices
        self._found = found
        self._alarm = Alarm(clock)
        self._failed: dict[str, tuple[int, float]] = {}

    def wake(self) -> None:
        """There are watches that are due now."""
        self._alarm.ring()

    async def run(self) -> None:
        """Check what is due, for ever."""
        while True:
            if await self._alarm.wait(await self._round()):
                await self._clock.sleep(_GATHERED)

    async def _round(self) -> float:
        """Check a chunk of each key that has something due, until none has; return how many seconds there are then."""
        while True:
            now = self._clock.now()
            waiting = await self._store.read(self._waiting)
            ready = [key for key, due in waiting if due <= now]
            if not ready:
                return max(0.0, min([_LONGEST, *(due - now for _, due in waiting)]))
            for key in ready:
                await self._chunk(key)

    def _waiting(self, connection: sqlite3.Connection) -> list[tuple[Key, float]]:
        """The keys whose watches are checked, and when the first of each is due."""
        found = []
        for key in stored.every(connection):
            plan = self._plans.get(key.plan)
            if key.revoked is None and plan is not None and plan.api:
                due = book.next_due(connection, key.id)
                if due is not None:
                    found.append((key, max(due, self._failed.get(key.id, (0, due))[1])))
        return found

    async def _chunk(self, key: Key) -> None:
        """Check some of a key's watches that are due. What fails leaves them due, and the key waits a little."""
        now = self._clock.now()
        watches = await self._store.read(lambda db: book.due(db, now, CHUNK, [key.id]))
        try:
            checked = await anyio.to_thread.run_sync(self._checked, key.scope, watches)
        except Exception as error:  # a damaged registry, say: it is replaced some day
            failures = self._failed.get(key.id, (0, 0.0))[0]
            pause = _BACKOFF[min(failures, len(_BACKOFF) - 1)]
            self._failed[key.id] = failures + 1, now + pause
            _log.error("watches of key %s are not checked, again in %g s: %s", key.id, pause, type(error).__name__)
            return
        self._failed.pop(key.id, None)
        recorded = await self._store.write(lambda db: self._recorded(db, key.id, watches, checked))
        self.lists.changed(key.id)
        if not recorded.closures.is_empty():
            self._found()
        _log.info(
            "key %s: %d watches checked, %d grades changed, %d closed",
            key.id,
            recorded.watches.height,
            recorded.changes.height,
            recorded.closures.height,
        )

    def _checked(self, scope: str, watches: pl.DataFrame) -> pl.DataFrame:
        return check(watches, LocalJudge(self._engine(scope)))

    def _recorded(self, db: sqlite3.Connection, owner: str, watches: pl.DataFrame, checked: pl.DataFrame) -> Recorded:
        """Write a check down; where notices go is looked up with it, since it may have been set a moment ago."""
        now, key = self._clock.now(), stored.find(db, owner)
        channels = [FILE] if self._notices is not None else []
        if key is not None and key.webhook_url is not None:
            channels.append(WEBHOOK)
        hours = self._plans[key.plan].recheck_hours if key is not None and key.plan in self._plans else math.inf
        interval = min(hours * 3600.0, 365 * 86400.0)
        early = pl.col("number").hash(int(now)) / 2.0**64 * _SPREAD
        recorded = book.record(db, checked, now, now + interval * (1 - early), channels)
        unanswered = watches.join(checked, on="number", how="anti")["number"].to_list()
        if unanswered:
            book.postpone(db, unanswered, now + _UNANSWERED)
        return recorded
