"""Limits of a run's requests: rate, concurrency, retries. They use anyio's clock, so trio's fake clock drives them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from random import Random
from typing import Final

import anyio

from bansong.errors import Problem, UsageError

RATE_INVALID: Final = Problem("options.rate_invalid", "a rate of {per_second} per second; give a finite number above 0")
CONCURRENCY_INVALID: Final = Problem("options.concurrency_invalid", "a concurrency of {concurrency}; give 1 or more")
RETRY_BUDGET_INVALID: Final = Problem(
    "options.retry_budget_invalid",
    "a retry budget of {share} a request, {least} to {most}; give 0 to 1, and least ≤ most",
)

_LATE_S: Final = 0.008  # a grant may come so much too early after a late one
_WIRE_S: Final = 0.004  # by which the wait for the wire may differ between two requests

_FIRST_BACKOFF_S: Final = 1.0
_MAX_BACKOFF_S: Final = 30.0


class RateLimiter:
    """At most ``per_second`` starts in any second (generic cell rate algorithm), in order of asking.

    A grant at time t moves the due time on, ``due = max(due, t) + T``, and none comes before ``due - L``. So n + 1
    grants in a row span at least nT - L. With T = 1/rate + (L + S) / max(rate, 1), this is n/rate + S or more for
    n ≥ max(rate, 1): no window of a second holds more than its allowance, even if requests reach the wire up to S
    (4 ms) after their grants. The price is 1.2 % of the rate. L (8 ms) makes up for late wake-ups. A caller should
    send as soon as :meth:`acquire` returns.

    >>> RateLimiter(50).achieved is None
    True
    """

    def __init__(self, per_second: float) -> None:
        interval = 1 / per_second if per_second > 0 else math.nan
        if not (math.isfinite(interval) and math.isfinite(per_second)):
            raise UsageError(RATE_INVALID, per_second=per_second)
        self.per_second = per_second
        self._interval = interval + (_LATE_S + _WIRE_S) / max(per_second, 1.0)
        self._turn = anyio.Lock()  # fair: whoever asks first is granted first
        self._due = -math.inf
        self._first = self._last = math.nan
        self._grants = 0

    async def acquire(self) -> None:
        """Wait until the next start may be made; a cancelled wait uses nothing up."""
        if self.try_acquire():
            return
        async with self._turn:
            now = anyio.current_time()
            while now < self._due - _LATE_S:
                await anyio.sleep_until(self._due - _LATE_S)
                now = anyio.current_time()  # the real one: later than asked for, or a hair before it
            self._grant(now)

    def try_acquire(self) -> bool:
        """Grant the next start if it may be made at once and nobody waits; return whether it was granted."""
        now = anyio.current_time()
        if self._turn.locked() or now < self._due - _LATE_S:
            return False
        self._grant(now)
        return True

    @property
    def achieved(self) -> float | None:
        """Grants per second from the first to the last; ``None`` before two grants."""
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
    """Most requests at once: fewer when the service is overloaded, more again when it answers.

    A request takes a :class:`Slot` with :meth:`try_acquire` or :meth:`acquire`, in order of asking, reports success or
    overload to it, and releases it.

    An overload halves ``capacity`` (never below 1), once per generation: reports of requests that started before the
    last cut do not count. As many successes as the capacity raise it by one, up to ``maximum``. The longest
    Retry-After delays all further starts; a holder of a slot that waited for something else before its start calls
    :meth:`wait_for_backoff` once more.

    ``overloads``: number of reports; ``backoff_until``: end of the latest back-off on anyio's clock, if any.
    """

    def __init__(self, concurrency: int) -> None:
        if concurrency < 1:
            raise UsageError(CONCURRENCY_INVALID, concurrency=concurrency)
        self.capacity = self.maximum = concurrency
        self.backoff_until: float | None = None
        self.overloads = 0
        self._turn = anyio.Lock()  # fair; only the first in the queue looks for a free slot
        self._freed = anyio.Event()
        self._running = 0
        self._successes = 0
        self._generation = 0

    @property
    def running(self) -> int:
        """The number of slots in use."""
        return self._running

    def try_acquire(self) -> Slot | None:
        """Return a free slot, to be released, if nobody waits for it."""
        if self._turn.locked() or not self._is_open():
            return None
        self._running += 1
        return Slot(self, self._generation)

    async def acquire(self) -> Slot:
        """Wait for a free slot, to be released; a cancelled wait takes none."""
        async with self._turn:
            while not self._is_open():
                await self._wait_for_change()
            self._running += 1
        return Slot(self, self._generation)

    async def wait_for_backoff(self) -> bool:
        """Wait for the end of a back-off; return whether there was one."""
        waited = False
        while self.backoff_until is not None and self.is_backing_off:
            waited = True
            await anyio.sleep_until(self.backoff_until)
        return waited

    async def _wait_for_change(self) -> None:
        if self.backoff_until is not None and self.is_backing_off:
            await anyio.sleep_until(self.backoff_until)
        else:
            self._freed = anyio.Event()
            await self._freed.wait()

    @property
    def is_backing_off(self) -> bool:
        """Whether the service asked to wait, and the time is not over."""
        return self.backoff_until is not None and anyio.current_time() < self.backoff_until

    def _is_open(self) -> bool:
        return self._running < self.capacity and not self.is_backing_off

    def _release(self) -> None:
        self._running -= 1
        self._freed.set()

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
    """The place of one request in a ``limiter``."""

    limiter: ConcurrencyLimiter
    _generation: int
    _is_held: bool = True

    def release(self) -> None:
        """Free the place; releasing twice is allowed."""
        if self._is_held:
            self._is_held = False
            self.limiter._release()

    def record_success(self) -> None:
        """Report that the service answered."""
        self.limiter._record_success(self._generation)

    def record_overload(self, retry_after: float | None = None) -> None:
        """Report an overload: a timeout, or a 503, perhaps with a ``retry_after`` (s)."""
        self.limiter._record_overload(self._generation, retry_after)


class RetryBudget:
    """Retries that a run has left, so that a service in trouble is not asked more and more.

    A request earns ``share`` of a retry; there are ``least`` at first and never more than ``most``.

    >>> budget = RetryBudget(share=0.5, least=1)
    >>> budget.try_spend(), budget.try_spend()
    (True, False)
    >>> budget.record_request(), budget.record_request(), budget.try_spend()
    (None, None, True)
    """

    def __init__(self, share: float = 0.1, least: int = 10, *, most: int = 100, random: Random | None = None) -> None:
        if not (0 <= share <= 1 and 0 <= least <= most):
            raise UsageError(RETRY_BUDGET_INVALID, share=share, least=least, most=most)
        self._share = Fraction(share).limit_denominator(1_000_000)  # ten tenths are one
        self._most = most
        self._left = Fraction(least)
        self._random = Random() if random is None else random  # noqa: S311 - it spreads waits, it keeps no secret

    def record_request(self) -> None:
        """Add the share of one request."""
        self._left = min(self._left + self._share, Fraction(self._most))

    def try_spend(self) -> bool:
        """Spend one retry; return whether one was left."""
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def backoff(self, attempt: int, retry_after: float | None = None) -> float:
        """Return the seconds before retry number ``attempt`` (from 1), at least ``retry_after``.

        A random time up to 1, 2, 4, 8, 16, 30, so that failed requests do not return together.
        """
        longest = min(_MAX_BACKOFF_S, _FIRST_BACKOFF_S * 2.0 ** (min(attempt, 64) - 1))
        return max(self._random.uniform(0, longest), retry_after or 0.0)
