"""The watch list: ``POST /watch``, ``GET /watch``, ``DELETE /watch/{watch_id}``, ``GET /watch/{watch_id}/history``.

INTERFACE §4.5 to §4.8. It costs no quota.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from bizverify.server.auth import key_of
from bizverify.server.bodies import read_json
from bizverify.server.clock import as_text
from bizverify.server.context import context_of
from bizverify.server.listing import Listed
from bizverify.server.refusals import JSON, Refusal, not_found, not_in_plan
from bizverify.server.wire import WatchChange, WatchHistory, WatchRemoved, WatchRequest, encode
from bizverify.watch import store
from bizverify.watch.store import Business

_SLICE: Final = 256 << 10
"""Bytes of a long list that are handed on at a time, so that a slow reader does not make the rest wait in memory."""


async def add(request: Request) -> Response:
    """Put a business on the list: 201 with the new entry, or 200 with that which was there, name and address updated.

    Refused with 409 `watch_limit` when the plan's number of watches is reached: neither a function that the plan does
    not have (403) nor the monthly quota (429), and remedied by removing a watch.
    """
    context, key = context_of(request), key_of(request)
    wanted = await read_json(request, WatchRequest)
    limit, now = context.keys.plan(key).watches, context.clock.now()

    def added(db: sqlite3.Connection) -> tuple[int, bytes, bool, bool]:
        watch, is_new = store.add(db, key.id, Business(wanted.biz_no, wanted.name, wanted.address), now)
        if is_new and (count := store.count(db, key.id)) > limit:
            raise _full(limit, count - 1)
        written = store.rendered_entry(db, key.id, watch.watch_id)
        assert written is not None  # noqa: S101 - in this transaction
        return *written, is_new, watch.due <= now

    number, entry, is_new, is_due = await context.store.write(added)
    if is_due:  # one that is known, and given with nothing new, is not
        context.watching.lists.changed(key.id, [number])
        context.watching.wake()
    return Response(entry, 201 if is_new else 200, media_type=JSON)


async def every(request: Request) -> Response:
    """The whole list."""
    context, key = context_of(request), key_of(request)
    return _List(await context.watching.lists.of(key.id))


async def remove(request: Request) -> Response:
    """Take a business off the list, its history with it."""
    context, key, watch_id = context_of(request), key_of(request), request.path_params["watch_id"]
    number = await context.store.write(lambda db: store.remove(db, key.id, watch_id))
    if number is None:
        raise not_found("the watch")
    context.watching.lists.changed(key.id, [number])
    return Response(encode(WatchRemoved(watch_id, removed=True)), media_type=JSON)


async def history(request: Request) -> Response:
    """The changes of grade of one watched business, the oldest first; for plans with `watch_history` only."""
    context, key, watch_id = context_of(request), key_of(request), request.path_params["watch_id"]
    if not context.keys.plan(key).watch_history:
        raise not_in_plan("the watch history", key.plan)
    watch, changes = await context.store.read(
        lambda db: (store.get(db, key.id, watch_id), store.history(db, key.id, watch_id))
    )
    if watch is None or changes is None:
        raise not_found("the watch")
    items = [WatchChange(as_text(c.at) or "", c.before, c.after, c.biz_status) for c in changes]
    return Response(encode(WatchHistory(watch_id, watch.biz_no, items)), media_type=JSON)


def _full(limit: int, count: int) -> Refusal:
    message = f"the watch list is full: the plan allows {limit:,} entries and it has {count:,}; remove one first"
    return Refusal(409, "watch_limit", message, limit=limit, used=count)


class _List(Response):
    """A whole list, handed on in slices: in one piece asyncio would copy the rest again for each socket's buffer."""

    media_type = JSON

    def __init__(self, listed: Listed) -> None:
        super().__init__()
        first, *others = listed.parts or [b""]
        head, tail = b'{"watches":[', b'],"total":%d}' % listed.total
        self._parts = [memoryview(part) for part in (head, first, *others, tail)]
        self._parts[1] = self._parts[1][1:]  # the comma
        self.headers["Content-Length"] = str(sum(map(len, self._parts)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, as fast as it is taken."""
        del scope, receive
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for part in self._parts:
            for start in range(0, len(part), _SLICE):
                await send({"type": "http.response.body", "body": part[start : start + _SLICE], "more_body": True})
        await send({"type": "http.response.body", "body": b""})
