"""``POST /verify`` (INTERFACE §4.1)."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from bizverify.server.auth import key_of
from bizverify.server.bodies import read_json
from bizverify.server.context import context_of
from bizverify.server.refusals import JSON, quota_exceeded
from bizverify.server.store import quota
from bizverify.server.wire import VerifyRequest, encode


async def verify(request: Request) -> Response:
    """Answer one lookup; it is taken out of the quota first, and given back if it cannot be answered."""
    context, key = context_of(request), key_of(request)
    lookup = await read_json(request, VerifyRequest)
    month = context.clock.month()
    used = await context.store.write(lambda db: quota.take(db, key.id, month, 1, key.quota))
    if used is not None:
        raise quota_exceeded(1, key.quota, used, context.clock.month_ends(), context.clock.now())
    try:
        answer = await context.answering.answer(key.scope, lookup)
    except BaseException:
        await context.store.write(lambda db: quota.give_back(db, key.id, month, 1))
        raise
    return Response(encode(answer), media_type=JSON)
