"""``POST /verify`` (INTERFACE §4.1)."""

from __future__ import annotations

import sqlite3
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from bizverify.server.auth import key_of
from bizverify.server.bodies import read_json
from bizverify.server.context import Context, context_of
from bizverify.server.refusals import JSON
from bizverify.server.repeats import mismatch, token_from
from bizverify.server.store import idempotency, quota
from bizverify.server.store.idempotency import Earlier, identity_of
from bizverify.server.store.keys import Key
from bizverify.server.wire import VerifyRequest, encode

_ENDPOINT: Final = "POST /verify"


async def verify(request: Request) -> Response:
    """Answer one lookup; it is taken out of the quota first, and given back if it cannot be answered."""
    context, key = context_of(request), key_of(request)
    context.answering.admit()
    token = token_from(request, _ENDPOINT)
    lookup = await read_json(request, VerifyRequest)
    with context.answering.expected(key.scope):
        if token is None:
            answer = await _answered(context, key, lookup)
        else:
            repeatable = _Repeatable(context, key, lookup, token)
            answer = await context.repeats.once(key.id, token, repeatable.identity, repeatable.answered)
    return Response(answer, media_type=JSON)


async def _answered(context: Context, key: Key, lookup: VerifyRequest) -> bytes:
    month = await context.charging.take(key)
    try:
        return encode(await context.answering.answer(key.scope, lookup))
    except BaseException:
        await context.charging.give_back(key, month)
        raise


class _Repeatable:
    """A lookup with an ``Idempotency-Key``: begun and paid in one change of the store, finished in another."""

    def __init__(self, context: Context, key: Key, lookup: VerifyRequest, token: bytes) -> None:
        self.identity = identity_of("POST", "/verify", encode(lookup))
        self._context = context
        self._key = key
        self._lookup = lookup
        self._token = token

    async def answered(self) -> bytes:
        """The kept answer if there is one; else the answer, paid unless an attempt that did not end paid for it."""
        store, place, now = self._context.store, (self._key.id, self._token), self._context.clock.now()
        earlier = await store.write(lambda db: self._begin(db, now))
        if earlier is not None and earlier.request != self.identity:
            raise mismatch()
        if earlier is not None and earlier.answer is not None:
            return earlier.answer
        month = self._context.clock.month(now if earlier is None else earlier.created)
        try:
            answer = encode(await self._context.answering.answer(self._key.scope, self._lookup))
            await store.write(lambda db: idempotency.finish(db, *place, answer))
        except BaseException:
            await store.write(lambda db: self._undo(db, month))
            raise
        return answer

    def _begin(self, db: sqlite3.Connection, now: float) -> Earlier | None:
        key = self._key
        earlier = idempotency.begin(db, key.id, self._token, self.identity, now)
        if earlier is None:
            used = quota.take(db, key.id, self._context.clock.month(now), 1, key.quota)
            if used is not None:
                raise self._context.charging.exceeded(key, used)
        return earlier

    def _undo(self, db: sqlite3.Connection, month: str) -> None:
        if idempotency.forget(db, self._key.id, self._token):
            quota.give_back(db, self._key.id, month, 1)
