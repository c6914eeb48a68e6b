"""The limits of a run's requests: how many a second, how many at once, and how many retries.

Clock and sleep are anyio's, so a fake clock of trio's drives all of it.
"""

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

_LATE: Final = 0.008
"""Seconds by which a grant may come too early after one that came too late: what a late wake-up lost is made up for."""

_SENT: Final = 0.004
"""Seconds by which the wait for the wire may differ between two requests that were granted."""

_FIRST_BACKOFF: Final = 1.0
_LONGEST_BACKOFF: Final = 30.0


class RateLimiter:
    """At most ``per_second`` starts in any second: the generic cell rate algorithm, in order of asking.

    Each grant at time t moves the due time on, ``due = max(due, t) + T``, and none comes before ``due - L``. So n + 1
    grants in a row span at least nT - L. With T = 1/rate + (L + S) / max(rate, 1), this is n/rate + S or more as soon
    as n ≥ max(rate, 1): no window of a second or longer, however it slides, holds more than its allowance, even where
    requests reach the wire up to S seconds (4 ms) apart from their grants. The price is 1/(1 + L + S) = 0.988 of the
    rate; below one a second next to nothing.

    L (8 ms) is for wake-ups that come late: grants bear the time at which they were really made, so what is made
    up for is counted too. A caller should send as soon as :meth:`acquire` returns.

    >>> RateLimiter(50).achieved is None
    True
    """

    def __init__(self, per_second: float) -> None:
        interval = 1 / per_second if per_second > 0 else math.nan
        if not (math.isfinite(interval) and math.isfinite(per_second)):
            raise UsageError(RATE_INVALID, per_second=per_second)
        self.per_second = per_second
        self._interval = interval + (_LATE + _SENT) / max(per_second, 1.0)
        self._turn = anyio.Lock()  # fair: whoever asks first is granted first
        self._due = -math.inf
        self._first = self._last = math.nan
        self._grants = 0

    async def acquire(self) -> None:
        """Wait until the next start may be made. Cancelled while waiting, nothing is used up."""
        if self.try_acquire():
            return
        async with self._turn:
            now = anyio.current_time()
            while now < self._due - _LATE:
                await anyio.sleep_until(self._due - _LATE)
                now = anyio.current_time()  # the real one: later than asked for, or a hair before it
            self._grant(now)

    def try_acquire(self) -> bool:
        """Grant the next start if it may be made at once and nobody waits; return whether it was granted."""
        now = anyio.current_time()
        if self._turn.locked() or now < self._due - _LATE:
            return False
        self._grant(now)
        return True

    @property
    def achieved(self) -> float | None:
        """Grants per second from the first to the last; ``None`` where there is no time between them."""
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
    """How many requests may be under way at once: fewer when the service is overloaded, more again when it answers.

    A request takes a :class:`Slot` with :meth:`try_acquire` or :meth:`acquire` and releases it; meanwhile it tells the
    slot that the service answered, or that it is overloaded, or neither where the outcome says nothing of the load.

    An overload halves ``capacity`` (never below 1), once per generation: requests that were already under way at the
    last cut say nothing about the new capacity, so what they tell is not counted. As many successes as the capacity
    raise it by one, up to ``maximum``. A Retry-After makes all further starts back off; a shorter one does not shorten
    a longer one.

    Starts are in order of asking. Who has a slot and waited for something else before it starts, its permit of a
    :class:`RateLimiter`, calls :meth:`wait_for_backoff` once more: a back-off that began meanwhile holds it back, too.

    ``overloads`` counts the signals; ``backoff_until`` is the end of the latest back-off on anyio's clock (``None``:
    there was none).
    """

    def __init__(self, concurrency: int) -> None:
        if concurrency < 1:
            raise UsageError(CONCURRENCY_INVALID, concurrency=concurrency)
        self.capacity = self.maximum = concurrency
        self.backoff_until: float | None = None
        self.overloads = 0
        self._turn = anyio.Lock()  # fair; only who is first in the queue looks for a free slot
        self._freed = anyio.Event()
        self._running = 0
        self._successes = 0
        self._generation = 0

    @property
    def running(self) -> int:
        """The number of slots in use."""
        return self._running

    def try_acquire(self) -> Slot | None:
        """Return a free slot, to be released, if there is one and nobody waits for it."""
        if self._turn.locked() or not self._is_open():
            return None
        self._running += 1
        return Slot(self, self._generation)

    async def acquire(self) -> Slot:
        """Wait for a free slot, to be released, and return it. Cancelled while waiting, none is taken."""
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
        """Wait for the end of the back-off or, without one, for a slot."""
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
    """The place of one request in a ``limiter``, and what the request tells it."""

    limiter: ConcurrencyLimiter
    _generation: int
    _is_held: bool = True

    def release(self) -> None:
        """Free the place for another request; releasing twice is releasing."""
        if self._is_held:
            self._is_held = False
            self.limiter._release()

    def record_success(self) -> None:
        """Tell the limiter that the service answered."""
        self.limiter._record_success(self._generation)

    def record_overload(self, retry_after: float | None = None) -> None:
        """Tell the limiter that the service is overloaded: a timeout, or a 503, perhaps with a ``retry_after`` (s)."""
        self.limiter._record_overload(self._generation, retry_after)


class RetryBudget:
    """The retries that a run has left, so that a service in trouble is not asked more and more.

    Each request earns ``share`` of a retry, a retry spends one; there are ``least`` to begin with and never more than
    ``most``, so that a long calm does not save up for a storm.

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
        """Add the share that a request earns."""
        self._left = min(self._left + self._share, Fraction(self._most))

    def try_spend(self) -> bool:
        """Spend one retry if there is one left; return whether there was."""
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def backoff(self, attempt: int, retry_after: float | None = None) -> float:
        """Return the seconds to wait before retry number ``attempt`` (from 1), at least ``retry_after``.

        Anything up to 1, 2, 4, 8, 16, 30: requests that failed together do not come back together.
        """
        longest = min(_LONGEST_BACKOFF, _FIRST_BACKOFF * 2.0 ** (min(attempt, 64) - 1))
        return max(self._random.uniform(0, longest), retry_after or 0.0)
