"""The dispatcher: it sends requests at a pace, again where that is safe, and stops in good order."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Final, Generic, Literal, TypeVar

import anyio

from bansong.dispatch.error_actions import Action, error_action, is_long_wait, is_overload, may_pass
from bansong.dispatch.limits import ConcurrencyLimiter, RateLimiter, RetryBudget, Slot
from bansong.errors import ServiceError
from bansong.translation import gettext, gettext_noop

log = logging.getLogger(__name__)

Reply = TypeVar("Reply")

Task = Callable[[Slot], Awaitable[None]]
"""One piece of a run's work; it holds a slot among the requests under way."""

HaltReason = Literal["quota", "limit", "refused", "unreachable", "failing", "stopped", "interrupted", "fault"]

MAX_FAILURES: Final = 100
"""How much may fail in a row before nothing more is sent: a request that was, or may have been, done in vain weighs
:data:`FAILURE_WEIGHT`, one that was refused for what it asked, 1."""

FAILURE_WEIGHT: Final = 10
_MAX_RETRIES: Final = 6
_MAX_DELAYS: Final = 200
"""How often a request is sent again that a bound held up, before the run pauses: after some minutes or more."""


@dataclass(frozen=True, slots=True)
class Halt:
    """Why no more is sent. ``error`` is raised when what is under way is settled; without one the run ends paused."""

    why: HaltReason
    note: str
    error: Exception | None = None


@dataclass(slots=True)
class DispatchCounts:
    """The number of requests that a run made, and how many of them were retries."""

    requests: int = 0
    retries: int = 0


class OutgoingRequest(ABC, Generic[Reply]):
    """One request: what is sent, and how each of its outcomes is written down.

    For each attempt :class:`Dispatcher` calls :meth:`skip`, waits for its permit, and calls :meth:`prepare`,
    :meth:`send`, and one of :meth:`record_reply`, :meth:`record_error` and :meth:`record_interruption`. At the end it
    calls :meth:`complete`, or :meth:`give_up` if the last attempt came to an error.
    """

    gate: anyio.Lock | None = None
    """Where it is set: of the requests that share it, one at a time is between its permit and its recorded outcome."""

    activity: str = gettext_noop("waiting for the answer")
    """What the run was doing with the request, for the note of an interruption."""

    @property
    def failure_weight(self) -> int:
        """How much a request weighs that was, or may have been, done in vain: see :data:`MAX_FAILURES`."""
        return FAILURE_WEIGHT

    def choose_action(self, error: ServiceError, attempt: int) -> Action:
        """Return what follows from an error of attempt number ``attempt`` (from 0)."""
        del attempt
        return error_action(error)

    async def skip(self) -> bool:
        """Return whether the request is not to be sent any more."""
        return False

    async def prepare(self) -> None:
        """Record that the request is about to be sent."""

    @abstractmethod
    async def send(self, slot: Slot) -> Reply:
        """Send the request and return what the service replied; raises :class:`ServiceError`."""

    async def record_reply(self, reply: Reply, slot: Slot) -> None:
        """Record the reply."""

    async def record_error(self, error: ServiceError, action: Action) -> None:
        """Record what an attempt came to."""

    async def record_interruption(self, note: str) -> None:
        """Record that the run was cut off while the request was, or may have been, on its way."""

    async def complete(self) -> bool:
        """See what the reply began through to its end; return whether it shows that the service works."""
        return True

    def give_up(self, error: ServiceError, action: Action) -> None:
        """Note that the request is over without a reply."""


class Dispatcher:
    """Sends the requests of one run: ``rate`` a second, again where that is safe, until :meth:`cancel`.

    ``halt`` is why it was cancelled; the first reason counts. What is under way then has ``drain`` seconds to settle.
    """

    def __init__(self, *, rate: float, drain: float, counts: DispatchCounts | None = None) -> None:
        self.rate = RateLimiter(rate)
        self.retries = RetryBudget()
        self.counts = DispatchCounts() if counts is None else counts
        self.halt: Halt | None = None
        self._drain = drain
        self._failures = 0
        self._cancelled = anyio.Event()
        self._waits: set[anyio.CancelScope] = set()

    @property
    def is_cancelled(self) -> bool:
        """Whether nothing new may start."""
        return self.halt is not None

    def cancel(self, halt: Halt) -> None:
        """Keep anything new from starting, and wake what only waits."""
        if self.halt is None:
            log.info("no more requests are sent: %s", halt.note)
            self.halt = halt
            self._cancelled.set()
            for scope in self._waits:
                scope.cancel()

    def end_run(self, error: ServiceError) -> None:
        """Cancel the run with an error that would come to every request: 401, 403, a wrong address."""
        self.cancel(Halt("refused", str(error), error))

    @contextmanager
    def cancellable_wait(self) -> Iterator[None]:
        """Leave the block, which only waits, at once when the run is cancelled."""
        with anyio.CancelScope() as scope:
            if self.is_cancelled:
                scope.cancel()
            self._waits.add(scope)
            try:
                yield
            finally:
                self._waits.discard(scope)

    async def run(self, next_task: Callable[[], Task | None], concurrency: int, workers: int | None = None) -> None:
        """Carry out tasks until there is none, with requests of ``concurrency`` of them under way.

        ``workers``: how many tasks at most, by default ``concurrency``. An error that a task raises, a defect's too,
        cancels the run: what is under way elsewhere is still settled.
        """
        limiter = ConcurrencyLimiter(concurrency)

        async def work() -> None:
            try:
                while True:
                    async with self._slot(limiter) as slot:
                        task = None if slot is None else next_task()
                        if slot is None or task is None:
                            return
                        await task(slot)
            except Exception as error:
                self.cancel(Halt("fault", str(error), error))

        async with anyio.create_task_group() as guard:
            guard.start_soon(self._end_after_drain, guard.cancel_scope)
            async with anyio.create_task_group() as tasks:
                for _ in range(workers or concurrency):
                    tasks.start_soon(work)
            guard.cancel_scope.cancel()

    async def deliver(self, request: OutgoingRequest[Reply], slot: Slot) -> None:
        """Send a request, again only where its errors allow it, and have each outcome recorded."""
        for attempt in count():
            if await request.skip():
                return
            async with self.exclusively(request.gate) as is_free:
                if not is_free or not await self.wait_for_permit(slot):
                    return
                failure = await self._attempt(request, slot, attempt)
            if failure is None:
                if await request.complete():
                    self.record_success()
                return
            error, action = failure
            self.record_overload(error, slot)
            if not await self._retries(request, error, action, attempt):
                request.give_up(error, action)
                return

    async def fetch(self, ask: Callable[[], Awaitable[Reply]]) -> Reply | None:
        """Ask what costs nothing, again and again within reason; return ``None`` if the run was cancelled meanwhile.

        Raises what the service said last.
        """
        for attempt in count():
            if not await self.wait_for_permit():
                return None
            try:
                return await ask()
            except ServiceError as error:
                if not may_pass(error) or not await self._wait_after(error, attempt):
                    if self.is_cancelled:
                        return None
                    raise
        raise AssertionError("retry_later ends the attempts")

    async def wait_for_permit(self, slot: Slot | None = None) -> bool:
        """Wait until a request may go; return ``False`` if it may not any more.

        One that holds a ``slot`` heeds what the service has told the slot's limiter: free ones need not.
        """
        limiter = None if slot is None else slot.limiter
        granted = (limiter is None or not limiter.is_backing_off) and self.rate.try_acquire()
        if not granted:
            with self.cancellable_wait():
                await self.rate.acquire()
                while limiter is not None and await limiter.wait_for_backoff():
                    await self.rate.acquire()
                granted = True
        if not granted or self.is_cancelled:
            return False
        self.counts.requests += 1
        self.retries.record_request()
        return True

    async def retry_later(self, attempt: int, retry_after: float | None = None) -> bool:
        """Wait before one more attempt of what may be sent again; return ``False`` if there shall be none."""
        if self.is_cancelled or attempt >= _MAX_RETRIES or is_long_wait(retry_after) or not self.retries.try_spend():
            return False
        self.counts.retries += 1
        await self.back_off(attempt + 1, retry_after)
        return not self.is_cancelled

    async def _wait_after(self, error: ServiceError, attempt: int) -> bool:
        """Wait before one more attempt of what may be sent again; return ``False`` if there shall be none."""
        if error_action(error) is Action.DELAY:
            return await self._delay(attempt, error.retry_after)
        return await self.retry_later(attempt, error.retry_after)

    async def _delay(self, attempt: int, retry_after: float | None) -> bool:
        """Wait until a bound has passed; return ``False`` if that takes long, or the run is cancelled.

        It takes nothing of the budget of retries: the service works, and says itself when it takes the request.
        """
        if self.is_cancelled or attempt >= _MAX_DELAYS or is_long_wait(retry_after):
            return False
        self.counts.retries += 1
        await self.back_off(attempt + 1 if retry_after is None else 1, retry_after)
        return not self.is_cancelled

    async def back_off(self, attempt: int, retry_after: float | None = None) -> None:
        """Wait before retry number ``attempt`` (from 1), or until the run is cancelled."""
        await self.sleep(self.retries.backoff(attempt, retry_after))

    async def sleep(self, seconds: float) -> None:
        """Sleep, or until the run is cancelled."""
        with self.cancellable_wait():
            await anyio.sleep(seconds)

    def record_success(self) -> None:
        """Note that a request was answered: the service works."""
        self._failures = 0

    def record_failure(self, note: str, weight: int = FAILURE_WEIGHT) -> None:
        """Note that a request was in vain; :data:`MAX_FAILURES` of them in a row cancel the run."""
        self._failures += weight
        if self._failures >= MAX_FAILURES:
            self.cancel(Halt("failing", gettext("the service fails again and again ({note})", note=note)))

    def record_overload(self, error: ServiceError, slot: Slot) -> None:
        """Heed an error that says that too much is asked: fewer at once, and none for as long as the service asks.

        If that is long the run pauses, instead of sleeping through it.
        """
        if is_overload(error):
            is_long = is_long_wait(error.retry_after)
            slot.record_overload(None if is_long else error.retry_after)
            if is_long:
                self.cancel(Halt("unreachable", str(error)))

    @asynccontextmanager
    async def exclusively(self, lock: anyio.Lock | None) -> AsyncIterator[bool]:
        """Wait for a lock and hold it through the block; yield ``False`` if the run is cancelled before."""
        async with AsyncExitStack() as held:
            if lock is not None:
                with self.cancellable_wait():
                    await held.enter_async_context(lock)
            yield not self.is_cancelled

    @asynccontextmanager
    async def _slot(self, limiter: ConcurrencyLimiter) -> AsyncIterator[Slot | None]:
        """Wait for a slot and hold it through the block; yield ``None`` if nothing new may start."""
        slot = limiter.try_acquire()
        if slot is None:
            with self.cancellable_wait():
                slot = await limiter.acquire()
        try:
            yield None if self.is_cancelled else slot
        finally:
            if slot is not None:
                slot.release()

    async def _end_after_drain(self, scope: anyio.CancelScope) -> None:
        await self._cancelled.wait()
        await anyio.sleep(self._drain)
        log.warning(gettext("what was under way has not ended within %s s"), self._drain)
        scope.cancel()

    async def _attempt(
        self, request: OutgoingRequest[Reply], slot: Slot, attempt: int
    ) -> tuple[ServiceError, Action] | None:
        """Send a request once and have the outcome recorded; return the error and what follows from it, if any."""
        await request.prepare()
        try:
            reply = await request.send(slot)
        except ServiceError as error:
            action = request.choose_action(error, attempt)
            await request.record_error(error, action)
            return error, action
        except BaseException as stopped:  # cancelled, or worse: the request may be on its way
            with anyio.CancelScope(shield=True):
                await request.record_interruption(
                    gettext(
                        "the run was stopped while {activity} ({name})",
                        activity=gettext(request.activity),
                        name=type(stopped).__name__,
                    )
                )
            raise
        slot.record_success()
        await request.record_reply(reply, slot)
        return None

    async def _retries(
        self, request: OutgoingRequest[Reply], error: ServiceError, action: Action, attempt: int
    ) -> bool:
        """Return whether to send a request once more, having waited; if not, do what else follows for the run."""
        may_retry = action in (Action.RETRY, Action.RETRY_OR_HOLD)
        may_retry |= action is Action.WAIT and error.retry_after is not None
        may_retry |= action is Action.DELAY
        if may_retry and await self._wait_after(error, attempt):
            return True
        match action:
            case Action.RETRY:
                self.cancel(Halt("unreachable", str(error)))
            case Action.WAIT:
                self.cancel(Halt("quota", str(error)))
            case Action.DELAY:
                self.cancel(Halt("limit", str(error)))
            case Action.HOLD | Action.RETRY_OR_HOLD:
                self.record_failure(str(error), request.failure_weight)
            case Action.REFUSE:
                self.record_failure(str(error), 1)
            case Action.END_RUN:
                self.end_run(error)
            case Action.DROP:
                pass
        return False
