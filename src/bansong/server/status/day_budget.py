"""The daily budget of numbers, shared with other processes that use the same key and store."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import date
from threading import Lock

from bansong.errors import StoreError
from bansong.reference.status_store import DayUsage, StatusStore
from bansong.server.settings import loggable_message

_log = logging.getLogger(__name__)


class DayBudget:
    """Numbers that may still be asked for on a day in Korea; thread-safe.

    Numbers are counted in ``store`` before a call, as by :mod:`bansong.reference.day_allowance`, so that all processes
    together stay below the limit; if the store cannot be written, this process counts by itself. ``account``: the
    fingerprint of the key. ``limit``: ``None`` means as many as the tax authority allows; then callers count.
    Methods raise :class:`bansong.errors.StoreError`.
    """

    def __init__(self, store: StatusStore, account: str, limit: int | None) -> None:
        self.account = account
        self.limit = limit
        self._store = store
        self._unsent = 0
        self._unstored = date.min, 0
        self._lock = Lock()

    def remaining(self, day: date) -> int | None:
        """Return the numbers left, 0 once the allowance is exhausted, ``None`` without limit."""
        used = self._usage(day)
        if used.exhausted:
            return 0
        return None if self.limit is None else max(0, self.limit - used.numbers)

    def is_spent(self, day: date) -> bool:
        """Return whether the budget is spent, even if unsent numbers are given back."""
        used = self._usage(day)
        return used.exhausted or (self.limit is not None and used.numbers - self._unsent >= self.limit)

    def limit_of(self, day: date) -> int | None:
        """Return the limit for those who count in the store alone."""
        return None if self.limit is None else max(0, self.limit - self._unstored_of(day))

    def take(self, numbers: int, day: date) -> int:
        """Count up to that many numbers as asked; return how many. :meth:`count_sent` or :meth:`give_back` follows."""
        with self._lock:
            limit = self.limit_of(day)
            if limit is None:
                return 0 if self._usage(day).exhausted else numbers
            try:
                taken = self._store.take_numbers(self.account, day, numbers, limit)
            except StoreError as error:
                taken = min(numbers, self.remaining(day) or 0)
                self._unstored = day, self._unstored_of(day) + taken
                _log.error("what is asked is not counted in the store: %s", loggable_message(error))
            self._unsent += taken
            return taken

    def count_sent(self, numbers: int) -> None:
        with self._lock:
            self._unsent -= numbers if self.limit is not None else 0

    def give_back(self, numbers: int, day: date) -> None:
        if self.limit is not None:
            self.count_sent(numbers)
            self._store.give_back_numbers(self.account, day, numbers)

    def _usage(self, day: date) -> DayUsage:
        used = self._store.usage(self.account, day)
        return replace(used, numbers=used.numbers + self._unstored_of(day))

    def _unstored_of(self, day: date) -> int:
        of, numbers = self._unstored
        return numbers if of == day else 0
