"""A watch list at the hosted service brought to what a file says: one request a business, at a pace, none twice."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import count
from typing import TYPE_CHECKING, Final

import anyio

from bizverify.errors import (
    DoubtError,
    NotFoundError,
    NotSentError,
    QuotaError,
    RejectedError,
    ServiceError,
    ShapeError,
    TooLargeError,
)
from bizverify.purchase.dispatcher import PATIENCE, WEIGHT, Halt, Stop, is_long, is_redirect, is_strain
from bizverify.purchase.limits import Rate, Retries, Throttle
from bizverify.watch.store import Business

if TYPE_CHECKING:
    from bizverify.client import Client, WatchEntry
    from bizverify.options import ServiceOptions
    from bizverify.purchase.limits import Slot

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""Called with (steps settled, steps in all)."""

_TRIES: Final = 6


@dataclass(frozen=True, slots=True)
class Steps:
    """What is to be done to a list: additions, then changes (watch_id, as it is to be), then removals (watch_id)."""

    add: Sequence[Business] = ()
    change: Sequence[tuple[str, Business]] = ()
    remove: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.add) + len(self.change) + len(self.remove)


@dataclass(slots=True)
class Done:
    """What was done of :class:`Steps`, counted as it happens.

    ``refused``: numbers that the service does not take, and why. ``doubts``: numbers (of removals: watch_id) of which
    it is not known whether the service did as it was told. ``halt``: why the rest was left, ``None`` if none was.
    """

    added: int = 0
    changed: int = 0
    removed: int = 0
    refused: list[tuple[str, str]] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    halt: Halt | None = None

    @property
    def settled(self) -> int:
        """How many steps are over."""
        return self.added + self.changed + self.removed + len(self.refused) + len(self.doubts)


@dataclass(frozen=True, slots=True)
class _Step:
    name: str
    go: Callable[[], Awaitable[None]]
    safe: bool = False
    """Whether it may be sent again though it may have been done: removing twice is removing once."""
    adds: bool = False
    """Whether it takes a place on the list."""


class Errands:
    """The requests of one sync: ``concurrency`` at once, ``rate`` a second; ``stop`` ends them in good order."""

    def __init__(self, client: Client, terms: ServiceOptions, done: Done, total: int, progress: Progress) -> None:
        self.stop = Stop()
        self._client = client
        self._terms = terms
        self._done = done
        self._total = total
        self._progress = progress
        self._rate = Rate(terms.rate)
        self._retries = Retries()
        self._fruitless = 0
        self._full: RejectedError | None = None
        self._waiting: list[_Step] = []

    async def put(self, add: Sequence[Business], change: Sequence[tuple[str, Business]]) -> None:
        """Add and change watches. A change is a second POST; if the service made a watch of it, the first one goes."""
        await self._carry_out(
            (
                *(_Step(entry.biz_no, self._adding(entry), adds=True) for entry in add),
                *(_Step(entry.biz_no, self._changing(watch_id, entry)) for watch_id, entry in change),
            )
        )

    async def remove(self, watch_ids: Sequence[str]) -> None:
        """Remove watches; one that is not there any more is removed. What had no place before is added then."""
        await self._carry_out([_Step(watch_id, self._removing(watch_id), safe=True) for watch_id in watch_ids])
        waiting, self._waiting = self._waiting, []
        if watch_ids and waiting and not self.stop.pulled:
            self._full = None
            await self._carry_out(waiting)
        if self._full is not None:
            self.stop.pull(Halt("quota", str(self._full), self._full))

    def _adding(self, entry: Business) -> Callable[[], Awaitable[None]]:
        async def go() -> None:
            await self._client.watch_add(entry.biz_no, entry.name, entry.address)
            self._done.added += 1

        return go

    def _changing(self, watch_id: str, entry: Business) -> Callable[[], Awaitable[None]]:
        made: WatchEntry | None = None

        async def go() -> None:
            nonlocal made  # sent again because the removal was not, it must not be added twice
            made = made or await self._client.watch_add(entry.biz_no, entry.name, entry.address)
            if made.watch_id != watch_id:
                await self._gone(watch_id)
            self._done.changed += 1

        return go

    def _removing(self, watch_id: str) -> Callable[[], Awaitable[None]]:
        async def go() -> None:
            await self._gone(watch_id)
            self._done.removed += 1

        return go

    async def _gone(self, watch_id: str) -> None:
        try:
            await self._client.watch_remove(watch_id)
        except NotFoundError:
            log.info("a watch that was to be removed is gone already")

    async def _carry_out(self, steps: Sequence[_Step]) -> None:
        source = iter(steps)
        throttle = Throttle(self._terms.concurrency)
        async with anyio.create_task_group() as watch:
            watch.start_soon(self._drained, watch.cancel_scope)
            async with anyio.create_task_group() as workers:
                for _ in range(min(self._terms.concurrency, len(steps))):
                    workers.start_soon(self._worker, source, throttle)
            watch.cancel_scope.cancel()

    async def _drained(self, scope: anyio.CancelScope) -> None:
        await self.stop.wait()
        await anyio.sleep(self._terms.drain)
        scope.cancel()

    async def _worker(self, source: Iterator[_Step], throttle: Throttle) -> None:
        try:
            while not self.stop.pulled:
                async with throttle.slot() as slot:
                    step = None if self.stop.pulled else next(source, None)
                    if step is None:
                        return
                    if step.adds and self._full is not None:
                        self._waiting.append(step)
                        continue
                    await self._take(step, throttle, slot)
                self._progress(self._done.settled, self._total)
        except Exception as error:  # a defect: what is under way elsewhere is still settled
            self.stop.pull(Halt("fault", str(error), error))

    async def _take(self, step: _Step, throttle: Throttle, slot: Slot) -> None:
        """Send one request, again only where that can do no harm."""
        for attempt in count():
            if not await self._turn(throttle):
                return
            try:
                await step.go()
            except ServiceError as error:
                self._strained(error, slot)
                if not await self._again(step, error, attempt):
                    return
            else:
                slot.eased()
                self._fruitless = 0
                return

    async def _turn(self, throttle: Throttle) -> bool:
        with self.stop.waiting():
            await self._rate.wait()
            while await throttle.released():
                await self._rate.wait()
        self._retries.earn()
        return not self.stop.pulled

    def _strained(self, error: ServiceError, slot: Slot) -> None:
        if is_strain(error):
            slot.strained(None if is_long(error.retry_after) else error.retry_after)
            if is_long(error.retry_after):
                self.stop.pull(Halt("unreachable", str(error)))

    async def _again(self, step: _Step, error: ServiceError, attempt: int) -> bool:
        """Whether to send it once more; if not, what is to be said of it, and whether to go on at all."""
        match error:
            case DoubtError() | ShapeError():
                if step.safe and await self._waited(attempt, error.retry_after):
                    return True
                self._done.doubts.append(step.name)
                self._in_vain(WEIGHT, error)
            case NotSentError():
                if await self._waited(attempt, error.retry_after):
                    return True
                self.stop.pull(Halt("unreachable", str(error)))
            case QuotaError():
                if error.retry_after is not None and await self._waited(attempt, error.retry_after):
                    return True
                self.stop.pull(Halt("quota", str(error)))
            case RejectedError() if step.adds and _is_full(error):  # a removal makes room; asking again does not
                self._full = error
                self._waiting.append(step)
            case TooLargeError() | RejectedError() if not is_redirect(error):
                self._done.refused.append((step.name, str(error)))
                self._in_vain(1, error)
            case _:  # 401, 403, 404, a redirect: it will be the same for every other step
                self.stop.pull(Halt("refused", str(error), error))
        return False

    async def _waited(self, attempt: int, retry_after: float | None) -> bool:
        if self.stop.pulled or attempt >= _TRIES or is_long(retry_after) or not self._retries.spend():
            return False
        with self.stop.waiting():
            await anyio.sleep(self._retries.backoff(attempt + 1, retry_after))
        return not self.stop.pulled

    def _in_vain(self, weight: int, error: ServiceError) -> None:
        self._fruitless += weight
        if self._fruitless >= PATIENCE:
            self.stop.pull(Halt("failing", f"the service fails again and again ({error})"))


def _is_full(error: RejectedError) -> bool:
    """Whether a service says that the list has no place left, in the words of `bizverify serve`."""
    return error.status == HTTPStatus.CONFLICT and "watch_limit" in (error.detail or "")
