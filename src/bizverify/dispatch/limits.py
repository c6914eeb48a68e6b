"""How fast and how many at once, and how often again: what keeps paid requests within what the service bears.

Clock and sleep are anyio's, so a fake clock of trio's drives all of it.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from fractions import Fraction
from random import Random
from typing import Final

import anyio

from bizverify.errors import UsageError

_LATE: Final = 0.008
"""Seconds by which a grant may come too early after one that came too late: what a late wake-up lost is made up for."""

_SENT: Final = 0.004
"""Seconds by which the wait for the wire may differ between two requests that were granted."""

_FIRST_WAIT: Final = 1.0
_LONGEST_WAIT: Final = 30.0


class Rate:
    """At most ``per_second`` starts in any second: the generic cell rate algorithm, in order of asking.

    Each grant at time t moves the due time on, ``due = max(due, t) + T``, and none comes before ``due - L``. So n + 1
    grants in a row span at least nT - L. With T = 1/rate + (L + S) / max(rate, 1), this is n/rate + S or more as soon
    as n ≥ max(rate, 1): no window of a second or longer, however it slides, holds more than its allowance, even where
    requests reach the wire up to S seconds (4 ms) apart from their grants. The price is 1/(1 + L + S) = 0.988 of the
    rate; below one a second next to nothing.

    L (8 ms) is for wake-ups that come late: grants bear the time at which they were really made, so what is made
    up for is counted too. A caller should send as soon as :meth:`wait` returns.

    >>> Rate(50).achieved is None
    True
    """

    def __init__(self, per_second: float) -> None:
        interval = 1 / per_second if per_second > 0 else math.nan
        if not (math.isfinite(interval) and math.isfinite(per_second)):
            raise UsageError(f"a rate of {per_second} per second; give a finite number above 0")
        self.per_second = per_second
        self._interval = interval + (_LATE + _SENT) / max(per_second, 1.0)
        self._turn = anyio.Lock()  # fair: whoever asks first is granted first
        self._due = -math.inf
        self._first = self._last = math.nan
        self._grants = 0

    async def wait(self) -> None:
        """Return when the next start may be made. Cancelled while waiting, nothing is used up."""
        if self.grant_now():
            return
        async with self._turn:
            now = anyio.current_time()
            while now < self._due - _LATE:
                await anyio.sleep_until(self._due - _LATE)
                now = anyio.current_time()  # the real one: later than asked for, or a hair before it
            self._grant(now)

    def grant_now(self) -> bool:
        """Whether the next start may be made at once, nobody being before; if so it is granted."""
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


class Throttle:
    """How many requests may be under way at once: less when the service strains, more again when it is at ease.

    ::

        async with throttle.slot() as slot:
            ...                         # one request
            slot.eased()                # or slot.strained(retry_after); neither where it says nothing of the load

    A strain halves ``capacity`` (never below 1), once per generation: requests that were already under way at the last
    cut say nothing about the new capacity, so what they tell is not counted. As many successes as the capacity raise it
    by one, up to ``maximum``. A Retry-After holds all further starts back; a shorter one does not shorten a longer one.

    Starts are in order of asking. Who has a slot and waited for something else before it starts, its turn at a
    :class:`Rate`, looks at :meth:`released` once more: a hold that came up meanwhile holds it back, too.

    ``strains`` counts the signals; ``held_until`` is the end of the latest hold on anyio's clock (``None``: never
    held).
    """

    def __init__(self, concurrency: int) -> None:
        if concurrency < 1:
            raise UsageError(f"a concurrency of {concurrency}; give 1 or more")
        self.capacity = self.maximum = concurrency
        self.held_until: float | None = None
        self.strains = 0
        self._turn = anyio.Lock()  # fair; only who is first in the queue looks for a free slot
        self._freed = anyio.Event()
        self._running = 0
        self._eased = 0
        self._generation = 0

    @property
    def running(self) -> int:
        """How many slots are in use."""
        return self._running

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[Slot]:
        """Wait for a free slot and hold it through the block. Cancelled while waiting, none is taken."""
        slot = self.take_now() or await self.take()
        try:
            yield slot
        finally:
            slot.release()

    def take_now(self) -> Slot | None:
        """A free slot, if there is one and nobody waits for it; to be released."""
        if self._turn.locked() or not self._is_open():
            return None
        self._running += 1
        return Slot(self, self._generation)

    async def take(self) -> Slot:
        """Wait for a free slot, to be released. Cancelled while waiting, none is taken."""
        async with self._turn:
            while not self._is_open():
                await self._change()
            self._running += 1
        return Slot(self, self._generation)

    async def released(self) -> bool:
        """Wait for the end of a hold; whether there was one."""
        held = False
        while self.held_until is not None and self.is_held:
            held = True
            await anyio.sleep_until(self.held_until)
        return held

    async def _change(self) -> None:
        """Wait for the end of the hold or, without one, for a slot."""
        if self.held_until is not None and self.is_held:
            await anyio.sleep_until(self.held_until)
        else:
            self._freed = anyio.Event()
            await self._freed.wait()

    @property
    def is_held(self) -> bool:
        """Whether the service asked to wait, and the time is not over."""
        return self.held_until is not None and anyio.current_time() < self.held_until

    def _is_open(self) -> bool:
        return self._running < self.capacity and not self.is_held

    def _release(self) -> None:
        self._running -= 1
        self._freed.set()

    def _ease(self, generation: int) -> None:
        if generation != self._generation or self.capacity == self.maximum:
            return
        self._eased += 1
        if self._eased >= self.capacity:
            self.capacity += 1
            self._eased = 0
            self._freed.set()

    def _strain(self, generation: int, retry_after: float | None) -> None:
        self.strains += 1
        if retry_after is not None and 0 < retry_after < math.inf:
            until = anyio.current_time() + retry_after
            self.held_until = until if self.held_until is None else max(self.held_until, until)
        if generation == self._generation:
            self.capacity = max(1, self.capacity // 2)
            self._eased = 0
            self._generation += 1


@dataclass(slots=True, eq=False)
class Slot:
    """The place of one request in a :class:`Throttle`, and what the request tells it."""

    _throttle: Throttle
    _generation: int
    _is_held: bool = True

    def release(self) -> None:
        """Let another request have the place, if this one has it still."""
        if self._is_held:
            self._is_held = False
            self._throttle._release()

    def eased(self) -> None:
        """The service answered."""
        self._throttle._ease(self._generation)

    def strained(self, retry_after: float | None = None) -> None:
        """The service is overloaded: a timeout, or a 503, which may ask to wait ``retry_after`` seconds."""
        self._throttle._strain(self._generation, retry_after)


class Retries:
    """A budget of retries, so that a service in trouble is not asked more and more.

    Each request earns ``share`` of a retry, a retry spends one; there are ``least`` to begin with and never more than
    ``most``, so that a long calm does not save up for a storm.

    >>> retries = Retries(share=0.5, least=1)
    >>> retries.spend(), retries.spend()
    (True, False)
    >>> retries.earn(), retries.earn(), retries.spend()
    (None, None, True)
    """

    def __init__(self, share: float = 0.1, least: int = 10, *, most: int = 100, random: Random | None = None) -> None:
        if not (0 <= share <= 1 and 0 <= least <= most):
            raise UsageError(f"a retry budget of {share} a request, {least} to {most}; give 0 to 1, and least ≤ most")
        self._share = Fraction(share).limit_denominator(1_000_000)  # ten tenths are one
        self._most = most
        self._left = Fraction(least)
        self._random = Random() if random is None else random  # noqa: S311 - it spreads waits, it keeps no secret

    def earn(self) -> None:
        """A request was made, not a retry."""
        self._left = min(self._left + self._share, Fraction(self._most))

    def spend(self) -> bool:
        """Whether one more retry may be made; if so it is counted."""
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def backoff(self, attempt: int, retry_after: float | None = None) -> float:
        """Seconds to wait before retry number ``attempt`` (from 1), at least ``retry_after``.

        Anything up to 1, 2, 4, 8, 16, 30: requests that failed together do not come back together.
        """
        longest = min(_LONGEST_WAIT, _FIRST_WAIT * 2.0 ** (min(attempt, 64) - 1))
        return max(self._random.uniform(0, longest), retry_after or 0.0)
