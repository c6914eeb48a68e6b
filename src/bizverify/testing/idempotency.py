"""Requests that were answered before, by their keys: the same one again is not done again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from hashlib import sha256
from typing import Any, Final

from bizverify.testing.asgi import RefusedError, Reply, header
from bizverify.testing.multipart import parts_of
from bizverify.testing.request import Asked

PROMISE: Final[dict[str, Any]] = {
    "idempotency": {
        "header": "Idempotency-Key",
        "endpoints": ["POST /verify", "POST /batch"],
        "keep_seconds": 7 * 86_400,
    }
}
"""What ``/me`` says beside the account. (It is never forgotten here: "at least" is kept.)"""


class Memory:
    """What was answered with success, for each key. ``replayed`` counts the requests that were answered out of it."""

    def __init__(self) -> None:
        self.replayed = 0
        self._known: dict[bytes, tuple[bytes, Reply]] = {}

    async def reply(self, asked: Asked, max_bytes: int | None, do: Callable[[], Awaitable[Reply]]) -> Reply:
        """The reply to a request: the known one, else that of ``do``, which is remembered if it is a success.

        Raises :class:`RefusedError` (409) for another request with a known key.
        """
        key = header(asked.scope, b"idempotency-key")
        if key is None or asked.kind not in ("verify", "batch"):
            return await do()
        request = _identity(asked, await asked.body(max_bytes))
        if key in self._known:
            before, reply = self._known[key]
            if before != request:
                raise RefusedError(409, "another request had this Idempotency-Key")
            self.replayed += 1
            return replace(reply)
        reply = await do()  # the whole body is here, so nothing comes between this and what follows
        if 200 <= reply.status < 300:
            self._known[key] = request, replace(reply)
        return reply


def _identity(asked: Asked, body: bytes) -> bytes:
    """What makes a request the same: of an upload the file and the flags, not the boundary between its parts."""
    digest = sha256(f"{asked.kind}?{sorted(asked.query().items())}".encode())
    content = [body]
    if asked.kind == "batch":
        content = [part.content for part in parts_of(header(asked.scope, b"content-type"), body)]
    for part in content:
        digest.update(b"%d:" % len(part) + part)
    return digest.digest()
