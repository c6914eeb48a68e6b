"""Bounds per key: requests per second, and requests at once."""

from __future__ import annotations

import math
from collections import Counter
from typing import Final

from bansong.server.errors import limit_exceeded
from bansong.server.settings import Clock, ServicePlan
from bansong.translation import gettext

_MAX_KEYS: Final = 10_000
"""Above it, keys with a full bucket are forgotten."""
_ROUNDING_S: Final = 1e-6
"""Rounding error of summed intervals."""


def decrease(counts: Counter[str], key_id: str, by: int = 1) -> None:
    """Lower a count, and drop it at 0, so that idle keys take no memory."""
    counts[key_id] -= by
    if counts[key_id] <= 0:
        del counts[key_id]


class KeyBounds:
    """Admit requests within the rate and concurrency of a key's plan.

    A token bucket of ``request_burst`` tokens, refilled with ``requests_per_second``, as a generic cell rate algorithm:
    the state of a key is the time at which its bucket is full.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._full_at: dict[str, float] = {}
        self._under_way: Counter[str] = Counter()

    def enter(self, key_id: str, plan: ServicePlan) -> None:
        """Admit a request, to be ended by :meth:`leave`; raise :class:`Refusal` 429, which takes no token."""
        under_way = self._under_way[key_id]
        if under_way >= plan.requests_at_once:
            message = gettext(
                "{under_way:,} requests of this key are under way, as many as its plan allows", under_way=under_way
            )
            raise limit_exceeded("requests_at_once", plan.requests_at_once, under_way, message, 1)
        self._take_token(key_id, plan)
        self._under_way[key_id] = under_way + 1

    def leave(self, key_id: str) -> None:
        decrease(self._under_way, key_id)

    def under_way(self, key_id: str) -> int:
        return self._under_way.get(key_id, 0)

    def _take_token(self, key_id: str, plan: ServicePlan) -> None:
        now, interval = self._clock.now(), 1 / plan.requests_per_second
        full_in = plan.request_burst * interval
        full_at = self._full_at.get(key_id, now)
        if not now <= full_at <= now + full_in + _ROUNDING_S:  # it has filled since, or the clock was set back
            full_at = now
        wait = full_at + interval - full_in - now
        if wait > _ROUNDING_S:
            rate, burst = plan.requests_per_second, plan.request_burst
            message = gettext(
                "this key asks more often than its plan allows: {rate:g} times a second, {burst:,} at a stretch",
                rate=rate,
                burst=burst,
            )
            raise limit_exceeded("requests_per_second", rate, burst, message, math.ceil(wait))
        self._full_at[key_id] = full_at + interval
        if len(self._full_at) > _MAX_KEYS:
            self._full_at = {key: at for key, at in self._full_at.items() if at > now}
