"""Taking single lookups out of the quota: those that come in while a commit is under way are one change of the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bizverify.server.clock import Clock
from bizverify.server.errors import quota_exceeded
from bizverify.server.lookup.microbatch import Microbatcher
from bizverify.server.store import Store, key_table
from bizverify.server.store.key_table import Key

_MOST: Final = 1_024


class QuotaCharger:
    """Takes lookups, each out of its key's month."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._gathering: Microbatcher[tuple[str, str, int], int | None] = Microbatcher(self._take, _MOST)

    async def take(self, key: Key) -> str:
        """Take one lookup; return the month it was taken from when it is on the disk.

        Raises :class:`~bizverify.server.errors.Refusal` 429 where none is left, and
        :class:`bizverify.errors.StoreError`. Cancelled, it may be taken all the same.
        """
        month = self._clock.month()
        used = await self._gathering.ask((key.id, month, key.quota))
        if used is not None:
            raise self.exceeded(key, used)
        return month

    def exceeded(self, key: Key, used: int) -> Exception:
        """The refusal of a lookup for which nothing is left."""
        return quota_exceeded(1, key.quota, used, self._clock.month_ends(), self._clock.now())

    async def give_back(self, key: Key, month: str) -> None:
        """Give one lookup back to the month it was taken from."""
        await self._store.write(lambda db: key_table.give_back_lookups(db, key.id, month, 1))

    async def _take(self, asked: Sequence[tuple[str, str, int]]) -> Sequence[int | None]:
        return await self._store.write(lambda db: key_table.take_single_lookups(db, asked))
