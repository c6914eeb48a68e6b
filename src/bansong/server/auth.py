"""Authentication: check each request's key, and whether its plan includes the API, before anything else."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Mapping
from typing import Final

from polars.exceptions import PanicException
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bansong.errors import StoreError
from bansong.server.client_address import TrustedProxies
from bansong.server.errors import Refusal, busy, invalid, invalid_key, missing_key, no_route, not_in_plan
from bansong.server.http_limits import IncomingBody, refuse_two_lengths
from bansong.server.metrics.counts import ServerMetrics
from bansong.server.settings import HEADER as REQUEST_ID_HEADER
from bansong.server.settings import REQUEST_ID, Clock, ServicePlan, choose_language, language_headers, request_id_of
from bansong.server.store import Store, key_table
from bansong.server.store.key_table import Key
from bansong.server.store.secret_table import digest_of
from bansong.translation import gettext

_log = logging.getLogger(__name__)

_CACHED_S: Final = 1.0
"""A revoked key may still be accepted for that long."""
_KEY: Final = "bansong.key"
_METHODS: Final = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
"""Methods that logs and metrics name; anything else is text of the client."""
_SOON: Final = {"Retry-After": "5", "Connection": "close"}
_MAX_CACHED_KEYS: Final = 10_000
_RECORD_INTERVAL_S: Final = 60.0


class KeyCache:
    """Cache of keys by secret; also records when keys were last used."""

    def __init__(self, store: Store, plans: Mapping[str, ServicePlan], clock: Clock) -> None:
        self._store = store
        self._plans = plans
        self._clock = clock
        self._known: dict[bytes, tuple[float, Key]] = {}
        self._reading: dict[bytes, asyncio.Future[tuple[Key, float] | None]] = {}
        self._used: dict[str, float] = {}

    async def find(self, secret: str) -> Key:
        """Return the key of a secret; raise :class:`Refusal` 401, or 403 if its plan has no API."""
        digest, now = digest_of(secret), self._clock.now()
        until, key = self._known.get(digest, (0.0, None))
        if key is None or not now < until <= now + _CACHED_S:
            found = await self._read(digest, secret)
            self._known.pop(digest, None)
            if found is None:
                raise invalid_key()
            key, ends = found
            if len(self._known) >= _MAX_CACHED_KEYS:
                self._known.clear()
            self._known[digest] = min(now + _CACHED_S, ends), key
        self._used[key.id] = now
        if not self.plan(key).api:
            raise not_in_plan(gettext("the API"), key.plan)
        return key

    async def _read(self, digest: bytes, secret: str) -> tuple[Key, float] | None:
        reading = self._reading.get(digest)
        if reading is None:
            now = self._clock.now()
            reading = asyncio.ensure_future(self._store.read(lambda db: key_table.find_by_secret(db, secret, now)))
            self._reading[digest] = reading
            reading.add_done_callback(lambda _: self._reading.pop(digest, None))
        return await asyncio.shield(reading)

    def plan(self, key: Key) -> ServicePlan:
        """Return the plan of a key; raise :class:`Refusal` 403 if the server does not know the plan."""
        plan = self._plans.get(key.plan)
        if plan is None:
            raise not_in_plan(gettext("the API"), key.plan)
        return plan

    async def run(self) -> None:
        while True:
            await self._clock.sleep(_RECORD_INTERVAL_S)
            await self.record_last_use()

    async def record_last_use(self) -> None:
        used, self._used = self._used, {}
        if used:
            await self._store.write(lambda db: key_table.record_last_use(db, used))


_NO_STORE: Final = (b"cache-control", b"no-store")
"""No cache may keep answers that need a key."""


class AuthMiddleware:
    """ASGI middleware: authenticate requests, turn errors into refusals, log. ``public``: paths without a key."""

    def __init__(self, app: ASGIApp, public: Collection[str]) -> None:
        self._app = app
        self._public = public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, incoming = time.perf_counter(), IncomingBody(receive, scope)
        context = scope["app"].state.context
        metrics: ServerMetrics = context.metrics
        proxies: TrustedProxies = context.settings.trusted_proxies
        request_id = request_id_of(scope, proxies)
        REQUEST_ID.set(request_id)  # each request is a task of its own
        choose_language(scope)
        more = [(REQUEST_ID_HEADER, request_id.encode())]
        if scope["path"] not in self._public:
            more.append(_NO_STORE)
        metrics.under_way += 1
        status = 0

        async def send_noting_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                spoken = language_headers() if status >= 400 else ()
                message = {**message, "headers": [*message.get("headers", ()), *more, *spoken]}
            await send(message)

        try:
            refusal = await self._handle(scope, incoming, send_noting_status)
            if refusal is not None:
                metrics.count_refusal(refusal)
            if refusal is not None and not status:
                await incoming.answer(refusal.response(), scope, send_noting_status)
        finally:
            key = scope.get(_KEY)
            method = scope["method"] if scope["method"] in _METHODS else "?"
            took, route = time.perf_counter() - started, getattr(scope.get("route"), "path", "?")
            client = proxies.client_of(scope)
            context.requests.note(method, route, status, took, key=key.id if key else "", client=client)
            metrics.under_way -= 1
            metrics.observe_request(route, method, status, took)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> Refusal | None:
        try:
            refuse_two_lengths(scope)
            if scope["path"] in self._public:
                await self._app(scope, receive, send)
            else:
                await self._handle_keyed(scope, receive, send)
        except Refusal as refusal:
            return refusal
        except HTTPException as error:
            return no_route(error.status_code, error.headers)
        except asyncio.CancelledError:  # the server is stopped, and the request took longer than it had left
            return Refusal(503, "busy", gettext("the server is stopped; it may have been done or not"), headers=_SOON)
        except StoreError as error:
            _log.error("%s", error)
            return busy(gettext("the server cannot use its disk"), 30)
        except (Exception, PanicException):  # a panic is no Exception
            _log.exception("a request failed")
            message = gettext("the server failed; nothing is known of the request's effect")
            # the id is in the body, too: that is what people pass on when they ask for help
            return Refusal(500, "internal", message, request_id=REQUEST_ID.get())
        return None

    async def _handle_keyed(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = scope["app"].state.context
        key = scope[_KEY] = await _find_key(scope)
        context.bounds.enter(key.id, context.keys.plan(key))
        try:
            await self._app(scope, receive, send)
        finally:
            context.bounds.leave(key.id)


def key_of(request: Request) -> Key:
    key: Key = request.scope[_KEY]
    return key


async def renew_key(request: Request) -> Key:
    """Check the key again after the body has arrived, since it may have been revoked meanwhile; return it.

    Call it before anything is taken from the quota. Raises :class:`Refusal`.
    """
    key = request.scope[_KEY] = await _find_key(request.scope)
    return key


async def _find_key(scope: Scope) -> Key:
    given = {value.strip() for name, value in scope["headers"] if name == b"x-api-key"}
    if len(given) > 1:
        raise invalid(gettext("the header X-API-Key came more than once, with different keys; send one"))
    secret = given.pop() if given else b""
    if not secret:
        raise missing_key()
    keys: KeyCache = scope["app"].state.context.keys
    return await keys.find(secret.decode("latin-1"))
