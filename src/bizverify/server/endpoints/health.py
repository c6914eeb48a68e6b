"""``GET /healthz``: whether the server is up and can use its file. Needs no key and says nothing of anybody."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from bizverify.server.context import context_of
from bizverify.server.refusals import JSON


async def healthz(request: Request) -> Response:
    """Answer ``{"status": "ok"}`` if the database can be read, else the refusal 503."""
    await context_of(request).store.read(lambda db: db.execute("SELECT 1 FROM keys LIMIT 1").fetchone())
    return Response(b'{"status":"ok"}', media_type=JSON)
