"""A server's clock that stands still until a test moves it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

import anyio

from bansong.base.schema import SEOUL
from bansong.server.settings import Clock

_PATIENCE = 120.0


@dataclass
class HandClock:
    """``clock`` is what a server is given; whoever sleeps on it wakes when :meth:`forward` went so far."""

    seconds: float = datetime(2026, 11, 20, 12, tzinfo=SEOUL).timestamp()

    @property
    def clock(self) -> Clock:
        return Clock(now=lambda: self.seconds, sleep=self._sleep)

    def forward(self, **time: float) -> None:
        """Let so much time pass (as for ``timedelta``)."""
        self.seconds += timedelta(**time).total_seconds()

    def until(self, holds: Callable[[], bool], **time_each: float) -> None:
        """Let time pass, step by step, until something holds; the server's threads are given real time to get there."""
        give_up = time.monotonic() + _PATIENCE
        while not holds():
            if time.monotonic() > give_up:
                raise AssertionError("it did not come to hold")
            self.forward(**time_each)
            time.sleep(0.01)

    async def _sleep(self, seconds: float) -> None:
        left, seen = seconds, self.seconds
        while left > 0:
            await anyio.sleep(0.01)
            left -= max(0.0, self.seconds - seen)  # a clock that is set back does not make it longer
            seen = self.seconds
