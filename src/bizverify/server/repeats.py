"""``Idempotency-Key``: a request that is sent again gets the answer of the first, and is not done or paid again."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.requests import Request

from bizverify.server.clock import Clock
from bizverify.server.refusals import Refusal, conflict, invalid
from bizverify.server.store import Store, idempotency
from bizverify.server.store.idempotency import KEPT, token_of

HEADER: Final = "Idempotency-Key"
_VALUE: Final = re.compile(r"[\x21-\x7e]{1,200}")
_PURGED_EVERY: Final = 3600.0
_AT_A_TIME: Final = 10_000


def token_from(request: Request, endpoint: str) -> bytes | None:
    """The token of the request's ``Idempotency-Key``, if it has one; raises :class:`Refusal` 400.

    ``endpoint``: method and path, ``POST /verify``; the same value at another endpoint is another key.
    """
    values = [value for name, value in request.scope["headers"] if name == b"idempotency-key"]
    if not values:
        return None
    text = values[0].decode("latin-1")
    if len(values) > 1 or not _VALUE.fullmatch(text):
        raise invalid(f"the header {HEADER} must be given once and have 1 to 200 visible ASCII characters")
    return token_of(endpoint, text)


def mismatch() -> Refusal:
    """The same key was used for another request."""
    return conflict(
        f"this {HEADER} was used before for another request; take a new one for each request", "idempotency_mismatch"
    )


class Repeats:
    """Sees to it that of requests with one ``Idempotency-Key`` one alone is under way; the store has what was done."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._under_way: dict[tuple[str, bytes], tuple[bytes, asyncio.Future[bytes | None]]] = {}

    async def once(self, key_id: str, token: bytes, identity: bytes, attempt: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return what ``attempt`` returns, or the answer of the same request that is under way.

        ``attempt`` looks into the store first (:func:`~bizverify.server.store.idempotency.begin`), and if it fails it
        leaves nothing there; then one of those that wait tries anew. Raises :class:`Refusal` 409 where another request
        (``identity``) with this key is under way, and what the attempt raises.
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
        """Delete every hour the answers that were kept long enough."""
        while True:
            await self.purge()
            await self._clock.sleep(_PURGED_EVERY)

    async def purge(self) -> None:
        """Delete the answers that were kept long enough, in steps between which others write."""
        before = self._clock.now() - KEPT
        while await self._store.write(lambda db: idempotency.purge(db, before, _AT_A_TIME)) == _AT_A_TIME:
            pass
