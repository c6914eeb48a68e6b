"""Bounds of what one key asks: requests a second, and requests under way at once."""

from __future__ import annotations

import math
from collections import Counter
from typing import Final

from bansong.server.errors import limit_exceeded
from bansong.server.settings import Clock, ServicePlan
from bansong.translation import gettext

_MOST: Final = 10_000
"""Keys whose pace is remembered: above it those that have not asked for a while are forgotten: it is full."""
_ROUNDING: Final = 1e-6
"""Seconds by which a sum of intervals may be wrong."""


class KeyBounds:
    """Admits requests: of each key as many a second, and at once, as its plan says.

    The pace is a token bucket of ``request_burst`` requests that fills with ``requests_per_second``, in the form of the
    generic cell rate algorithm: of each key one time is kept, at which its bucket is full again.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._full_at: dict[str, float] = {}
        self._under_way: Counter[str] = Counter()

    def enter(self, key_id: str, plan: ServicePlan) -> None:
        """Admit a request, to be followed by :meth:`leave`; raises :class:`Refusal` 429, which takes no token."""
        under_way = self._under_way[key_id]
        if under_way >= plan.requests_at_once:
            message = gettext(
                "{under_way:,} requests of this key are under way, as many as its plan allows", under_way=under_way
            )
            raise limit_exceeded("requests_at_once", plan.requests_at_once, under_way, message, 1)
        self._take_token(key_id, plan)
        self._under_way[key_id] = under_way + 1

    def leave(self, key_id: str) -> None:
        """Note that an admitted request has ended."""
        left = self._under_way[key_id] - 1
        if left:
            self._under_way[key_id] = left
        else:
            del self._under_way[key_id]

    def under_way(self, key_id: str) -> int:
        """Return how many requests of a key are under way."""
        return self._under_way.get(key_id, 0)

    def _take_token(self, key_id: str, plan: ServicePlan) -> None:
        now, interval = self._clock.now(), 1 / plan.requests_per_second
        full_in = plan.request_burst * interval
        full_at = self._full_at.get(key_id, now)
        if not now <= full_at <= now + full_in + _ROUNDING:  # it has filled since, or the clock was set back
            full_at = now
        wait = full_at + interval - full_in - now
        if wait > _ROUNDING:
            rate, burst = plan.requests_per_second, plan.request_burst
            message = gettext(
                "this key asks more often than its plan allows: {rate:g} times a second, {burst:,} at a stretch",
                rate=rate,
                burst=burst,
            )
            raise limit_exceeded("requests_per_second", rate, burst, message, math.ceil(wait))
        self._full_at[key_id] = full_at + interval
        if len(self._full_at) > _MOST:
            self._full_at = {key: at for key, at in self._full_at.items() if at > now}
