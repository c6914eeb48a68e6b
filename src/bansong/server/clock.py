"""The clock, handed in so that tests need not wait, and a sleep that can be ended."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import date, datetime

import anyio

from bansong.schema import SEOUL


@dataclass(frozen=True, slots=True)
class Clock:
    """``now``: seconds since 1970 (UTC). ``sleep``: wait so many of them."""

    now: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep

    def today(self) -> date:
        """The day in Korea."""
        return datetime.fromtimestamp(self.now(), SEOUL).date()

    def month(self, at: float | None = None) -> str:
        """The calendar month in Korea (``2026-11``), by which quotas are counted: the current one, or a time's."""
        return f"{datetime.fromtimestamp(self.now() if at is None else at, SEOUL):%Y-%m}"

    def month_ends(self) -> datetime:
        """When the next month begins in Korea."""
        today = datetime.fromtimestamp(self.now(), SEOUL)
        return datetime(today.year + today.month // 12, today.month % 12 + 1, 1, tzinfo=SEOUL)


def as_text(seconds: float | None) -> str | None:
    """A time as the API says it: ISO 8601 in Korea's time, to the second."""
    return None if seconds is None else datetime.fromtimestamp(seconds, SEOUL).isoformat(timespec="seconds")


class WakeUp:
    """A sleep that can be ended, for one task. A :meth:`ring` while nobody waits ends the next :meth:`wait` at once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._event = anyio.Event()

    def ring(self) -> None:
        """End the wait, this one or the next."""
        self._event.set()

    async def wait(self, seconds: float | None) -> bool:
        """Wait so many seconds (``None``: for ever), or until :meth:`ring`; return whether it rang."""
        async with anyio.create_task_group() as group:

            async def sleep(seconds: float) -> None:
                await self._clock.sleep(max(0.0, seconds))
                group.cancel_scope.cancel()

            if seconds is not None:
                group.start_soon(sleep, seconds)
            await self._event.wait()
            group.cancel_scope.cancel()
        rang = self._event.is_set()
        if rang:
            self._event = anyio.Event()
        return rang
