"""Send the requests of a run: pace, concurrency, retries."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from fractions import Fraction
from itertools import count
from random import Random
from typing import Final, Generic, Literal, TypeVar

import anyio

from bansong.base.errors import Problem, ServiceError, UsageError
from bansong.base.messages import gettext, gettext_noop
from bansong.client.errors import Action, error_action, is_long_wait, is_overload, may_pass

RATE_INVALID: Final = Problem("options.rate_invalid", "a rate of {per_second} per second; give a finite number above 0")
CONCURRENCY_INVALID: Final = Problem("options.concurrency_invalid", "a concurrency of {concurrency}; give 1 or more")
RETRY_BUDGET_INVALID: Final = Problem(
    "options.retry_budget_invalid",
    "a retry budget of {share} a request, {least} to {most}; give 0 to 1, and least ≤ most",
)

_LATE_S: Final = 0.008  # how much too early a grant may be after a late one
_WIRE_S: Final = 0.004  # largest difference between two requests' delays before the network takes them


class RateLimiter:
    """Allow at most ``per_second`` starts in any second, first come, first served.

    This is the generic cell rate algorithm. A grant at time t moves the due time on, ``due = max(due, t) + T``, and
    none comes before ``due - L``. So n + 1 grants in a row span at least nT - L. With T = 1/rate + (L + S) / max(rate,
    1), this is n/rate + S or more for n ≥ max(rate, 1): no window of a second holds more than its allowance, even if
    requests reach the wire up to S (4 ms) after their grants. The price is 1.2 % of the rate. L (8 ms) makes up for
    late wake-ups. A caller should send as soon as :meth:`acquire` returns.
    """

    def __init__(self, per_second: float) -> None:
        interval = 1 / per_second if per_second > 0 else math.nan
        if not (math.isfinite(interval) and math.isfinite(per_second)):
            raise UsageError(RATE_INVALID, per_second=per_second)
        self.per_second = per_second
        self._interval = interval + (_LATE_S + _WIRE_S) / max(per_second, 1.0)
        self._turn = anyio.Lock()  # fair: first come, first served
        self._due = -math.inf
        self._first = self._last = math.nan
        self._grants = 0

    async def acquire(self) -> None:
        """Wait for the next start. A cancelled wait uses up no start."""
        if self.try_acquire():
            return
        async with self._turn:
            now = anyio.current_time()
            while now < self._due - _LATE_S:
                await anyio.sleep_until(self._due - _LATE_S)
                now = anyio.current_time()  # later than the time asked for, or just before it
            self._grant(now)

    def try_acquire(self) -> bool:
        now = anyio.current_time()
        if self._turn.locked() or now < self._due - _LATE_S:
            return False
        self._grant(now)
        return True

    @property
    def achieved(self) -> float | None:
        """Measured rate: requests allowed per second since the first; ``None`` before the second request."""
        if self._grants < 2 or self._last <= self._first:
            return None
        return (self._grants - 1) / (self._last - self._first)

    def _grant(self, now: float) -> None:
        self._due = max(self._due, now) + self._interval
        if not self._grants:
            self._first = now
        self._last = now
        self._grants += 1


class ConcurrencyLimiter:
    """Limit requests at once: fewer when the service is overloaded, more again when it answers.

    An overload halves ``capacity`` (never below 1), once per generation: reports of requests that started before the
    last cut do not count. As many successes as the capacity raise it by one, up to ``maximum``. The longest Retry-After
    delays all further starts.
    """

    def __init__(self, concurrency: int) -> None:
        if concurrency < 1:
            raise UsageError(CONCURRENCY_INVALID, concurrency=concurrency)
        self.capacity = self.maximum = concurrency
        self.backoff_until: float | None = None
        self.overloads = 0
        self._turn = anyio.Lock()  # fair: only the first in the queue waits for a free slot
        self._freed = anyio.Event()
        self.running = 0
        self._successes = 0
        self._generation = 0

    def try_acquire(self) -> Slot | None:
        """Return a free slot if nobody waits for one. The caller releases it."""
        if self._turn.locked() or not self._is_open():
            return None
        self.running += 1
        return Slot(self, self._generation)

    async def acquire(self) -> Slot:
        """Wait for a free slot. The caller releases it; a cancelled wait takes none."""
        async with self._turn:
            while not self._is_open():
                if not await self.wait_for_backoff():
                    self._freed = anyio.Event()
                    await self._freed.wait()
            self.running += 1
        return Slot(self, self._generation)

    async def wait_for_backoff(self) -> bool:
        """Wait for the end of a back-off; return whether there was one."""
        waited = False
        while self.backoff_until is not None and self.is_backing_off:
            waited = True
            await anyio.sleep_until(self.backoff_until)
        return waited

    @property
    def is_backing_off(self) -> bool:
        return self.backoff_until is not None and anyio.current_time() < self.backoff_until

    def _is_open(self) -> bool:
        return self.running < self.capacity and not self.is_backing_off

    def _record_success(self, generation: int) -> None:
        if generation != self._generation or self.capacity == self.maximum:
            return
        self._successes += 1
        if self._successes >= self.capacity:
            self.capacity += 1
            self._successes = 0
            self._freed.set()

    def _record_overload(self, generation: int, retry_after: float | None) -> None:
        self.overloads += 1
        if retry_after is not None and 0 < retry_after < math.inf:
            until = anyio.current_time() + retry_after
            self.backoff_until = until if self.backoff_until is None else max(self.backoff_until, until)
        if generation == self._generation:
            self.capacity = max(1, self.capacity // 2)
            self._successes = 0
            self._generation += 1


@dataclass(slots=True, eq=False)
class Slot:
    """A place in a ``limiter``, held by one request until :meth:`release`."""

    limiter: ConcurrencyLimiter
    _generation: int
    _is_held: bool = True

    def release(self) -> None:
        if self._is_held:
            self._is_held = False
            self.limiter.running -= 1
            self.limiter._freed.set()

    def record_success(self) -> None:
        self.limiter._record_success(self._generation)

    def record_overload(self, retry_after: float | None = None) -> None:
        self.limiter._record_overload(self._generation, retry_after)


_FIRST_BACKOFF_S: Final = 1.0
_MAX_BACKOFF_S: Final = 30.0


class RetryBudget:
    """The retries left to a run, limited to protect an overloaded service.

    Each request earns ``share`` of a retry. A run begins with ``least``, and never has more than ``most``.
    """

    def __init__(self, share: float = 0.1, least: int = 10, *, most: int = 100, random: Random | None = None) -> None:
        if not (0 <= share <= 1 and 0 <= least <= most):
            raise UsageError(RETRY_BUDGET_INVALID, share=share, least=least, most=most)
        self._share = Fraction(share).limit_denominator(1_000_000)  # ten tenths are one
        self._most = most
        self._left = Fraction(least)
        self._random = Random() if random is None else random  # noqa: S311 - it spreads waits, it keeps no secret

    def record_request(self) -> None:
        self._left = min(self._left + self._share, Fraction(self._most))

    def try_spend(self) -> bool:
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def backoff(self, attempt: int, retry_after: float | None = None) -> float:
        """Return the seconds before retry ``attempt`` (from 1), randomised so that retries do not coincide."""
        longest = min(_MAX_BACKOFF_S, _FIRST_BACKOFF_S * 2.0 ** (min(attempt, 64) - 1))
        return max(self._random.uniform(0, longest), retry_after or 0.0)


log = logging.getLogger(__name__)

Reply = TypeVar("Reply")

Task = Callable[[Slot], Awaitable[None]]  # one part of a run's work; the slot is for its request

HaltReason = Literal["quota", "limit", "refused", "unreachable", "failing", "stopped", "interrupted", "fault"]

MAX_FAILURES: Final = 100  # sum of the weights of failures in a row that stops a run
FAILURE_WEIGHT: Final = 10  # of a request that may have been done; a refused one weighs 1
_MAX_RETRIES: Final = 6
_MAX_DELAYS: Final = 200  # of a request over a passing limit, before the run pauses: some minutes or more
_HALT_REASONS: Final[dict[Action, HaltReason]] = {
    Action.RETRY: "unreachable",
    Action.WAIT: "quota",
    Action.DELAY: "limit",
}


@dataclass(frozen=True, slots=True)
class Halt:
    """The reason why a run sends no more requests. The run raises ``error`` after the last reply, or else pauses."""

    why: HaltReason
    note: str
    error: Exception | None = None


@dataclass(slots=True)
class DispatchCounts:
    """Counts of requests, and of retries among them."""

    requests: int = 0
    retries: int = 0


class OutgoingRequest(ABC, Generic[Reply]):
    """A request and the recording of its outcomes. :meth:`Dispatcher.deliver` calls the methods in order."""

    gate: anyio.Lock | None = None
    """Requests with the same gate go one at a time, from permit to recorded outcome."""

    activity: str = gettext_noop("waiting for the answer")
    """Activity for the note of an interruption."""

    @property
    def failure_weight(self) -> int:
        return FAILURE_WEIGHT

    def choose_action(self, error: ServiceError, attempt: int) -> Action:
        del attempt
        return error_action(error)

    async def skip(self) -> bool:
        return False

    async def prepare(self) -> None:
        """Record that the request is about to be sent."""

    @abstractmethod
    async def send(self, slot: Slot) -> Reply:
        """Send the request and return the reply; raise :class:`ServiceError`."""

    async def record_reply(self, reply: Reply, slot: Slot) -> None:
        """Record the reply."""

    async def record_error(self, error: ServiceError, action: Action) -> None:
        """Record the error of an attempt."""

    async def record_interruption(self, note: str) -> None:
        """Record that the run stopped while the request may have been on its way."""

    async def complete(self) -> bool:
        """Finish the work that the reply began; return whether the reply counts as a success of the service."""
        return True

    def give_up(self, error: ServiceError, action: Action) -> None:
        """Note that the request is over without a reply."""


class Dispatcher:
    """Send the requests of one run until :meth:`cancel`. Requests under way then have ``drain`` seconds to settle."""

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
        return self.halt is not None

    def cancel(self, halt: Halt) -> None:
        if self.halt is None:
            log.info("no more requests are sent: %s", halt.note)
            self.halt = halt
            self._cancelled.set()
            for scope in self._waits:
                scope.cancel()

    def end_run(self, error: ServiceError) -> None:
        """Cancel the run for an error that every request would meet (401, 403, a wrong address)."""
        self.cancel(Halt("refused", str(error), error))

    @contextmanager
    def cancellable_wait(self) -> Iterator[None]:
        """Leave the block when the run is cancelled. The block must only wait."""
        with anyio.CancelScope() as scope:
            if self.is_cancelled:
                scope.cancel()
            self._waits.add(scope)
            try:
                yield
            finally:
                self._waits.discard(scope)

    async def run(self, next_task: Callable[[], Task | None], concurrency: int, workers: int | None = None) -> None:
        """Carry out tasks until there are none. An error in a task cancels the run; others still settle."""
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
        """Send a request, retry it where its errors allow that, and record each outcome."""
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
        """Send a free request with retries; return ``None`` if the run was cancelled. Raises the last error."""
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
        raise AssertionError("the waits end the attempts")

    async def wait_for_permit(self, slot: Slot | None = None) -> bool:
        """Wait until a request may be sent; ``False`` if the run was cancelled. A paid request passes its ``slot``."""
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

    async def _wait_after(self, error: ServiceError, attempt: int) -> bool:
        retry_after = error.retry_after
        is_delayed = error_action(error) is Action.DELAY  # the service works, so this is free of the retry budget
        most = _MAX_DELAYS if is_delayed else _MAX_RETRIES
        if self.is_cancelled or attempt >= most or is_long_wait(retry_after):
            return False
        if not is_delayed and not self.retries.try_spend():
            return False
        self.counts.retries += 1
        await self.back_off(1 if is_delayed and retry_after is not None else attempt + 1, retry_after)
        return not self.is_cancelled

    async def back_off(self, attempt: int, retry_after: float | None = None) -> None:
        await self.sleep(self.retries.backoff(attempt, retry_after))

    async def sleep(self, seconds: float) -> None:
        with self.cancellable_wait():
            await anyio.sleep(seconds)

    def record_success(self) -> None:
        self._failures = 0

    def record_failure(self, note: str, weight: int = FAILURE_WEIGHT) -> None:
        """Add ``weight`` to the sum of failures in a row, which cancels the run at :data:`MAX_FAILURES`."""
        self._failures += weight
        if self._failures >= MAX_FAILURES:
            self.cancel(Halt("failing", gettext("the service fails again and again ({note})", note=note)))

    def record_overload(self, error: ServiceError, slot: Slot) -> None:
        """Reduce the load after an error of overload; pause the run if the service asks for a long wait."""
        if is_overload(error):
            is_long = is_long_wait(error.retry_after)
            slot.record_overload(None if is_long else error.retry_after)
            if is_long:
                self.cancel(Halt("unreachable", str(error)))

    @asynccontextmanager
    async def exclusively(self, lock: anyio.Lock | None) -> AsyncIterator[bool]:
        async with AsyncExitStack() as held:
            if lock is not None:
                with self.cancellable_wait():
                    await held.enter_async_context(lock)
            yield not self.is_cancelled

    @asynccontextmanager
    async def _slot(self, limiter: ConcurrencyLimiter) -> AsyncIterator[Slot | None]:
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
        await request.prepare()
        try:
            reply = await request.send(slot)
        except ServiceError as error:
            action = request.choose_action(error, attempt)
            await request.record_error(error, action)
            return error, action
        except BaseException as stopped:  # such as a cancellation: the request may be on its way
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
        may_retry = action in (Action.RETRY, Action.RETRY_OR_HOLD, Action.DELAY)
        may_retry |= action is Action.WAIT and error.retry_after is not None
        if may_retry and await self._wait_after(error, attempt):
            return True
        if action in _HALT_REASONS:
            self.cancel(Halt(_HALT_REASONS[action], str(error)))
        elif action in (Action.HOLD, Action.RETRY_OR_HOLD):
            self.record_failure(str(error), request.failure_weight)
        elif action is Action.REFUSE:
            self.record_failure(str(error), 1)
        elif action is Action.END_RUN:
            self.end_run(error)
        return False
