"""Numbers that fetch runs may ask on a day, reserved in the store before they are asked."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Final

import anyio
import anyio.to_thread

from bansong.reference.nts import NtsKey
from bansong.reference.status_store import StatusStore

_SALT: Final = "bizverify status store"
_PART: Final = 8
"""Largest part of the remaining budget that is reserved at a time."""


def account_of(key: NtsKey) -> str:
    """Return the name under which the store counts a key's usage; it does not reveal the key."""
    return key.fingerprint(_SALT).hex()


class DayAllowance:
    """Reserves numbers of the day's budget, so that parallel runs never exceed it together.

    Numbers are reserved in blocks of ``block``, since a commit for each call would be slow; unused ones are returned by
    :meth:`close`. A killed run leaves at most a block counted too much. ``limit``: numbers a day, ``None`` for no limit
    (then the caller counts). Methods raise :class:`bansong.errors.StoreError`.
    """

    def __init__(
        self, store: StatusStore, account: str, limit: int | None, block: int, today: Callable[[], date]
    ) -> None:
        self.limit = limit
        self._store = store
        self._account = account
        self._block = block
        self._today = today
        self._day = today()
        self._spare = 0
        self._unsent = 0
        self._lock = anyio.Lock()

    @property
    def spare(self) -> int:
        """Reserved numbers without a call yet."""
        return self._spare

    async def take(self, numbers: int) -> int:
        """Return for how many of so many numbers a call may ask now."""
        if self.limit is None:
            return numbers
        async with self._lock:
            if self._spare < numbers or self._day != self._today():
                await anyio.to_thread.run_sync(self._take_block, numbers)
            taken = min(numbers, self._spare)
            self._spare -= taken
            self._unsent += taken
            return taken

    def count_sent(self, numbers: int) -> None:
        """Note that a call with reserved numbers was sent."""
        self._unsent -= numbers if self.limit is not None else 0

    def close(self) -> None:
        """Return reserved numbers that were not asked."""
        left, self._spare, self._unsent = self._spare + self._unsent, 0, 0
        self._store.give_back_numbers(self._account, self._day, left)

    def _take_block(self, numbers: int) -> None:
        day = self._today()
        if day != self._day:
            left, self._spare = self._spare, 0
            self._store.give_back_numbers(self._account, self._day, left)
            self._day = day
        assert self.limit is not None  # noqa: S101 - else nothing is taken
        lacking = numbers - self._spare
        ahead = min(self._block, (self.limit - self._store.usage(self._account, day).numbers) // _PART)
        self._spare += self._store.take_numbers(self._account, day, max(lacking, ahead), self.limit)
