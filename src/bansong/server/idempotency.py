"""``Idempotency-Key``: a repeated request gets the first answer and is neither done nor paid again."""

from __future__ import annotations

import asyncio
import hashlib
import re
import sqlite3
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from starlette.requests import Request

from bansong.server.errors import Refusal, conflict, invalid
from bansong.server.settings import Clock
from bansong.server.store import Store
from bansong.translation import gettext

KEPT: Final = 7 * 86_400
"""Seconds that an answer is kept."""


class EarlierRequest(NamedTuple):
    """An earlier request with the same ``Idempotency-Key``.

    ``request``: its :func:`identity_of`. ``created``: seconds since 1970. ``answer``: ``None`` until it is finished.
    """

    request: bytes
    created: float
    answer: bytes | None


def identity_of(method: str, path: str, body: bytes) -> bytes:
    """Hash a request; ``path`` and ``body`` must be in canonical form."""
    return hashlib.sha256(f"{method} {path}\n".encode() + body).digest()


def find_earlier(db: sqlite3.Connection, key_id: str, token: bytes) -> EarlierRequest | None:
    query = "SELECT request, created, answer FROM idempotency WHERE key_id = ? AND token = ?"
    row = db.execute(query, (key_id, token)).fetchone()
    return None if row is None else EarlierRequest(*row)


def begin_request(
    db: sqlite3.Connection, key_id: str, token: bytes, request: bytes, now: float
) -> EarlierRequest | None:
    """Store that a request has begun and return ``None``, or return the earlier request."""
    earlier = find_earlier(db, key_id, token)
    if earlier is None:
        row = (key_id, token, request, now)
        db.execute("INSERT INTO idempotency (key_id, token, request, created) VALUES (?, ?, ?, ?)", row)
    return earlier


def finish_request(db: sqlite3.Connection, key_id: str, token: bytes, answer: bytes) -> None:
    statement = "UPDATE idempotency SET answer = ? WHERE key_id = ? AND token = ? AND answer IS NULL"
    db.execute(statement, (answer, key_id, token))


def forget_request(db: sqlite3.Connection, key_id: str, token: bytes) -> bool:
    """Delete a failed attempt; return whether there was one without an answer."""
    statement = "DELETE FROM idempotency WHERE key_id = ? AND token = ? AND answer IS NULL"
    return db.execute(statement, (key_id, token)).rowcount == 1


def purge_requests(db: sqlite3.Connection, before: float, most: int = 10_000) -> int:
    """Delete the oldest ``most`` requests before a time; return how many. Small steps let others write."""
    oldest = "SELECT key_id, token FROM idempotency WHERE created < ? ORDER BY created LIMIT ?"
    statement = f"DELETE FROM idempotency WHERE (key_id, token) IN ({oldest})"  # noqa: S608 - nothing of a request is in it
    return db.execute(statement, (before, most)).rowcount


HEADER: Final = "Idempotency-Key"
_VALUE: Final = re.compile(r"[\x21-\x7e]{1,200}")
_PURGE_INTERVAL_S: Final = 3600.0
_PURGE_BATCH: Final = 10_000


def token_from(request: Request, endpoint: str) -> bytes | None:
    """Return the token of the request's ``Idempotency-Key``, if given; raise :class:`Refusal` 400.

    ``endpoint``: method and path, such as ``POST /verify``.
    """
    values = [value for name, value in request.scope["headers"] if name == b"idempotency-key"]
    if not values:
        return None
    text = values[0].decode("latin-1")
    if len(values) > 1 or not _VALUE.fullmatch(text):
        raise invalid(
            gettext("the header {header} must be given once and have 1 to 200 visible ASCII characters", header=HEADER)
        )
    return hashlib.sha256(f"{endpoint}\n{text}".encode()).digest()


def mismatch() -> Refusal:
    return conflict(
        gettext("this {header} was used before for another request; take a new one for each request", header=HEADER),
        "idempotency_mismatch",
    )


class IdempotentRequests:
    """Runs one request per ``Idempotency-Key`` at a time; answers are in the store."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._under_way: dict[tuple[str, bytes], tuple[bytes, asyncio.Future[bytes | None]]] = {}

    async def once(self, key_id: str, token: bytes, identity: bytes, attempt: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return the result of ``attempt``, or of the same request that is under way.

        ``attempt`` checks the store first (:func:`begin_request`) and leaves nothing there if it fails; then a waiting
        request tries again. Raises :class:`Refusal` 409 if another request (``identity``) with this key is under way.
        """
        place = key_id, token
        while (other := self._under_way.get(place)) is not None:
            asked, answering = other
            if asked != identity:
                raise mismatch()
            answer = await asyncio.shield(answering)
            if answer is not None:
                return answer
        future: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._under_way[place] = identity, future
        answer = None
        try:
            answer = await attempt()
        finally:
            del self._under_way[place]
            future.set_result(answer)
        return answer

    async def run(self) -> None:
        while True:
            await self.purge()
            await self._clock.sleep(_PURGE_INTERVAL_S)

    async def purge(self) -> None:
        before = self._clock.now() - KEPT
        while await self._store.write(lambda db: purge_requests(db, before, _PURGE_BATCH)) == _PURGE_BATCH:
            pass
