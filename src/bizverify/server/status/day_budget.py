"""The budget of numbers a day, shared by all that asks in a server, and by other processes with its key and store."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from threading import Lock

from bizverify.reference.status_store import DayUsage, StatusStore


class DayBudget:
    """How many numbers may still be asked for on a day in Korea; for all threads.

    ``account``: the fingerprint of the key, under which ``store`` counts what was asked; ``limit``: numbers a day,
    ``None`` for as many as the tax authority allows. What is reserved counts as asked until it is released; by then it
    has been counted in the store, or in :meth:`count_unstored`. All methods raise :class:`bizverify.errors.StoreError`.
    """

    def __init__(self, store: StatusStore, account: str, limit: int | None) -> None:
        self.account = account
        self._store = store
        self._limit = limit
        self._reserved = 0
        self._unstored = date.min, 0
        self._lock = Lock()

    def remaining(self, day: date) -> int | None:
        """Return how many numbers may still be asked for, 0 once the day's allowance is used up; ``None``: no limit."""
        with self._lock:
            used = self._usage(day)
            if used.exhausted:
                return 0
            return None if self._limit is None else max(0, self._limit - used.numbers - self._reserved)

    def is_spent(self, day: date) -> bool:
        """Whether nobody may be asked on that day any more, whatever becomes of what is reserved."""
        used = self._usage(day)
        return used.exhausted or (self._limit is not None and used.numbers >= self._limit)

    def reserve(self, numbers: int, day: date) -> int:
        """Reserve up to so many numbers; return how many."""
        with self._lock:
            used = self._usage(day)
            left = numbers if self._limit is None else self._limit - used.numbers - self._reserved
            allowed = 0 if used.exhausted else max(0, min(numbers, left))
            self._reserved += allowed
            return allowed

    def count_unstored(self, numbers: int, day: date) -> None:
        """Count numbers that were asked for and could not be counted in the store: on a full disk, say."""
        with self._lock:
            of, before = self._unstored
            self._unstored = day, numbers + (before if of == day else 0)

    def _usage(self, day: date) -> DayUsage:
        used, (of, unstored) = self._store.usage(self.account, day), self._unstored
        return replace(used, numbers=used.numbers + unstored) if of == day else used

    def release(self, numbers: int) -> None:
        """Release what was reserved."""
        with self._lock:
            self._reserved -= numbers
