"""Keys of requests, and their bounds."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from polars.exceptions import PanicException
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from bansong.base.errors import StoreError
from bansong.base.messages import gettext
from bansong.server import keys as key_table
from bansong.server.bodies import IncomingBody, refuse_two_lengths
from bansong.server.keys import Key, digest_of
from bansong.server.metrics import ServerMetrics
from bansong.server.payloads import (
    Refusal,
    busy,
    invalid,
    invalid_key,
    limit_exceeded,
    missing_key,
    no_route,
    not_in_plan,
)
from bansong.server.settings import HEADER as REQUEST_ID_HEADER
from bansong.server.settings import (
    REQUEST_ID,
    Clock,
    ServicePlan,
    choose_language,
    client_of,
    language_headers,
    request_id_of,
)
from bansong.server.store import Store

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
    """ASGI middleware: authenticate requests, turn errors into refusals, log.

    ``public``: paths without a key. ``proxies``: those whose ``X-Forwarded-For`` and ``X-Request-Id`` are believed.
    """

    def __init__(self, app: ASGIApp, public: Collection[str], proxies: Sequence[str]) -> None:
        self._app = app
        self._public = public
        self._forwarded: Any = ProxyHeadersMiddleware(self._answer, list(proxies))  # type: ignore[arg-type]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        REQUEST_ID.set(request_id_of(scope, self._forwarded.trusted_hosts))  # each request is a task of its own
        await self._forwarded(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        started, incoming = time.perf_counter(), IncomingBody(receive, scope)
        context = scope["app"].state.context
        metrics: ServerMetrics = context.metrics
        choose_language(scope)
        more = [(REQUEST_ID_HEADER, REQUEST_ID.get().encode())]
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
            context.requests.note(method, route, status, took, key=key.id if key else "", client=client_of(scope))
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


_MAX_KEYS: Final = 10_000
"""Above it, keys with a full bucket are forgotten."""
_ROUNDING_S: Final = 1e-6
"""Rounding error of summed intervals."""


def decrease(counts: Counter[str], key_id: str, by: int = 1) -> None:
    """Lower a count, and drop it at 0, so that idle keys take no memory."""
    counts[key_id] -= by
    if counts[key_id] <= 0:
        del counts[key_id]


class KeyBounds:
    """Admit requests within the rate and concurrency of a key's plan.

    A token bucket of ``request_burst`` tokens, refilled with ``requests_per_second``, as a generic cell rate algorithm:
    the state of a key is the time at which its bucket is full.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._full_at: dict[str, float] = {}
        self._under_way: Counter[str] = Counter()

    def enter(self, key_id: str, plan: ServicePlan) -> None:
        """Admit a request, to be ended by :meth:`leave`; raise :class:`Refusal` 429, which takes no token."""
        under_way = self._under_way[key_id]
        if under_way >= plan.requests_at_once:
            message = gettext(
                "{under_way:,} requests of this key are under way, as many as its plan allows", under_way=under_way
            )
            raise limit_exceeded("requests_at_once", plan.requests_at_once, under_way, message, 1)
        self._take_token(key_id, plan)
        self._under_way[key_id] = under_way + 1

    def leave(self, key_id: str) -> None:
        decrease(self._under_way, key_id)

    def under_way(self, key_id: str) -> int:
        return self._under_way.get(key_id, 0)

    def _take_token(self, key_id: str, plan: ServicePlan) -> None:
        now, interval = self._clock.now(), 1 / plan.requests_per_second
        full_in = plan.request_burst * interval
        full_at = self._full_at.get(key_id, now)
        if not now <= full_at <= now + full_in + _ROUNDING_S:  # it has filled since, or the clock was set back
            full_at = now
        wait = full_at + interval - full_in - now
        if wait > _ROUNDING_S:
            rate, burst = plan.requests_per_second, plan.request_burst
            message = gettext(
                "this key asks more often than its plan allows: {rate:g} times a second, {burst:,} at a stretch",
                rate=rate,
                burst=burst,
            )
            raise limit_exceeded("requests_per_second", rate, burst, message, math.ceil(wait))
        self._full_at[key_id] = full_at + interval
        if len(self._full_at) > _MAX_KEYS:
            self._full_at = {key: at for key, at in self._full_at.items() if at > now}
