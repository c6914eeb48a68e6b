"""Paid single lookups: taken from the key's quota, answered, given back without an answer."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from bansong.server import idempotency
from bansong.server.errors import Refusal, quota_exceeded
from bansong.server.idempotency import EarlierRequest, IdempotentRequests, identity_of, mismatch
from bansong.server.lookup.microbatch import LookupAnswerer, Microbatcher
from bansong.server.payloads import VerificationPayload, VerifyRequest, encode
from bansong.server.settings import Clock
from bansong.server.store import Store, key_table
from bansong.server.store.key_table import Key

_PAYMENTS_PER_COMMIT: Final = 1_024


_Answering = Callable[[], Awaitable[VerificationPayload]]


class PaidLookups:
    """Answer single lookups as JSON; payments that arrive during a commit share the next one."""

    def __init__(self, store: Store, clock: Clock, answerer: LookupAnswerer, idempotent: IdempotentRequests) -> None:
        self.answerer = answerer
        self._store = store
        self._clock = clock
        self._idempotent = idempotent
        self._payments: Microbatcher[tuple[str, str, int], int | None] = Microbatcher(
            self._take_lookups, _PAYMENTS_PER_COMMIT
        )

    async def answer(self, key: Key, lookup: VerifyRequest, token: bytes | None, *, offline: bool = False) -> bytes:
        """Answer one lookup, ``offline`` by the registry alone; ``token`` is that of its ``Idempotency-Key``.

        Raises :class:`~bansong.server.errors.Refusal` 409, 429 and 503, and :class:`bansong.errors.StoreError`. A
        cancelled lookup may stay paid.
        """
        answering = partial(self.answerer.answer, key.scope, lookup, offline=offline)
        with self.answerer.expect(key.scope, offline=offline):
            if token is None:
                return await self._answer_paid(key, answering)
            identity = identity_of("POST", "/verify?offline=True" if offline else "/verify", encode(lookup))
            return await self._idempotent.once(
                key.id, token, identity, lambda: self._answer_idempotent(key, answering, token, identity)
            )

    async def _answer_paid(self, key: Key, answering: _Answering) -> bytes:
        month = self._clock.month()
        used = await self._payments.submit((key.id, month, key.quota))
        if used is not None:
            raise self._quota_exceeded(key, used)
        try:
            return encode(await answering())
        except BaseException:
            await self._store.write(lambda db: key_table.give_back_lookups(db, key.id, month, 1))
            raise

    async def _answer_idempotent(self, key: Key, answering: _Answering, token: bytes, identity: bytes) -> bytes:
        """Return the stored answer, or pay and answer; an unfinished attempt has paid already."""
        now = self._clock.now()

        def begin(db: sqlite3.Connection) -> EarlierRequest | None:
            earlier = idempotency.begin_request(db, key.id, token, identity, now)
            if earlier is None:
                used = key_table.take_lookups(db, key.id, self._clock.month(now), 1, key.quota)
                if used is not None:
                    raise self._quota_exceeded(key, used)
            return earlier

        earlier = await self._store.write(begin)
        if earlier is not None and earlier.request != identity:
            raise mismatch()
        if earlier is not None and earlier.answer is not None:
            return earlier.answer
        month = self._clock.month(now if earlier is None else earlier.created)

        def undo(db: sqlite3.Connection) -> None:
            if idempotency.forget_request(db, key.id, token):
                key_table.give_back_lookups(db, key.id, month, 1)

        try:
            answer = encode(await answering())
            await self._store.write(lambda db: idempotency.finish_request(db, key.id, token, answer))
        except BaseException:
            await self._store.write(undo)
            raise
        return answer

    def _quota_exceeded(self, key: Key, used: int) -> Refusal:
        return quota_exceeded(1, key.quota, used, self._clock.month_ends(), self._clock.now())

    async def _take_lookups(self, payments: Sequence[tuple[str, str, int]]) -> Sequence[int | None]:
        return await self._store.write(lambda db: key_table.take_single_lookups(db, payments))
