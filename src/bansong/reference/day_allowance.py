"""The numbers that a fetch run may ask for on a day: taken out of the budget in the store before they are asked."""

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
"""At most so small a part of what the budget still allows is taken at a time."""


def account_of(key: NtsKey) -> str:
    """Return the name under which the store counts what was asked with a key; no key follows from it."""
    return key.fingerprint(_SALT).hex()


class DayAllowance:
    """Takes numbers for calls out of the day's budget, so that runs beside each other never ask for more together.

    A commit for each call would hold a fast run up, so ``block`` numbers are taken at a time, and what no call needed
    is given back at the end (:meth:`close`). A run that is killed leaves at most that many counted too much. ``limit``:
    numbers a day, ``None`` for no limit: then nothing is taken, and whoever asks counts it. ``account``: whose usage it
    is. Methods raise :class:`bansong.errors.StoreError`.
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
        """Numbers that were taken, and that no call has yet."""
        return self._spare

    async def take(self, numbers: int) -> int:
        """Take up to so many numbers for a call that is about to go; return how many it may ask for."""
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
        """Note that a call went out with numbers that it had taken."""
        self._unsent -= numbers if self.limit is not None else 0

    def close(self) -> None:
        """Give back what was taken and not asked."""
        left, self._spare, self._unsent = self._spare + self._unsent, 0, 0
        self._store.give_back_numbers(self._account, self._day, left)

    def _take_block(self, numbers: int) -> None:
        """Take what a call lacks, and some for those to come."""
        day = self._today()
        if day != self._day:
            left, self._spare = self._spare, 0
            self._store.give_back_numbers(self._account, self._day, left)
            self._day = day
        assert self.limit is not None  # noqa: S101 - else nothing is taken
        lacking = numbers - self._spare
        ahead = min(self._block, (self.limit - self._store.usage(self._account, day).numbers) // _PART)
        self._spare += self._store.take_numbers(self._account, day, max(lacking, ahead), self.limit)
