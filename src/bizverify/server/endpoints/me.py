"""``GET /me`` (INTERFACE §4.9)."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from bizverify.server.auth import key_of
from bizverify.server.context import context_of
from bizverify.server.refusals import JSON
from bizverify.server.store import quota
from bizverify.server.wire import Idempotency, Limits, Me, Quota, encode

IDEMPOTENCY: Final = Idempotency("Idempotency-Key", ["POST /verify", "POST /batch"], 7 * 86400)


async def me(request: Request) -> Response:
    """Say what the key may do, and how much of the month's quota is left. Costs nothing."""
    context, key = context_of(request), key_of(request)
    plan, month = context.keys.plan(key), context.clock.month()
    used = await context.store.read(lambda db: quota.used(db, key.id, month))
    resets = context.clock.month_ends().isoformat()
    answer = Me(
        key_id=key.id,
        plan=key.plan,
        quota=Quota(key.quota, used, max(0, key.quota - used), month, resets),
        limits=Limits(plan.upload_bytes, plan.rows, plan.watches, plan.recheck_hours),
        idempotency=IDEMPOTENCY,
    )
    return Response(encode(answer), media_type=JSON)
