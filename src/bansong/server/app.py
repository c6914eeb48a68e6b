"""The ASGI app, its background tasks, and the uvicorn server."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from http import HTTPStatus
from typing import Any, Final

import anyio
import uvicorn
from polars.exceptions import PanicException
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from bansong.base.errors import StoreError
from bansong.base.messages import gettext
from bansong.server.bodies import IncomingBody, refuse_two_lengths
from bansong.server.engines import StatusSource
from bansong.server.handlers import Context
from bansong.server.keys import KEY, authenticate
from bansong.server.metrics import ServerMetrics, StateCollector, serve_metrics
from bansong.server.payloads import Refusal, busy
from bansong.server.routes import PUBLIC, routes
from bansong.server.settings import (
    BACKLOG,
    REQUEST_ID,
    Clock,
    Settings,
    choose_language,
    client_of,
    language_headers,
    listen,
    request_id_of,
    url_of,
)
from bansong.server.settings import HEADER as REQUEST_ID_HEADER

_log = logging.getLogger(__name__)
_RESTART_PAUSES_S: Final = (1.0, 5.0, 30.0, 60.0)
_STABLE_AFTER_S: Final = 600.0  # a task that ran for so long begins again with the first pause


def create_app(
    settings: Settings, clock: Clock | None = None, *, status_sources: Sequence[StatusSource] = ()
) -> Starlette:
    """Return the ASGI app, whose lifespan opens the database. ``status_sources`` take precedence over the registry."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            try:
                context = Context(settings, clock or Clock(), status_sources, metrics, stack)
                if context.statuses is not None:
                    await stack.enter_async_context(context.statuses)
                metrics.registry.register(StateCollector(context))
                port = settings.metrics_port
                app.state.metrics_port = (
                    None
                    if port is None
                    else stack.enter_context(serve_metrics(metrics.registry, settings.metrics_host, port))
                )
            except Exception as error:
                app.state.failure = error
                raise
            app.state.context = context
            async with anyio.create_task_group() as group:
                for name, work in _background_tasks(context).items():
                    group.start_soon(supervise, name, work, context.clock, metrics)
                yield
                group.cancel_scope.cancel()
            await context.keys.record_last_use()
            context.requests.write()

    if settings.connections_per_address is not None:
        _log.warning("connections_per_address is ignored: the proxy bounds connections, see deploy/nginx.conf")
    metrics = ServerMetrics()
    app = Starlette(routes=routes(), lifespan=lifespan)
    app.middleware_stack = _AuthMiddleware(app.router, PUBLIC, settings.trusted_proxies)  # catches errors, too
    app.state.metrics = metrics
    app.router.redirect_slashes = False
    return app


def _background_tasks(context: Context) -> dict[str, Callable[[], Awaitable[None]]]:
    def every(seconds: float, work: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        async def repeat() -> None:
            while True:
                await work()
                await context.clock.sleep(seconds)

        return repeat

    tasks = {
        "deleting old answers to repeated requests": every(3_600.0, context.idempotent.purge),
        "learning from outcomes": context.learner.run,
        "measuring how late the event loop is": context.metrics.measure_delay,
        "checking what is watched": context.watches.run,
        "looking for newer indexes": every(context.settings.refresh_seconds, context.engines.look),
        "noting when keys were used": every(60.0, context.keys.record_last_use),
        "telling of closures": context.notifier.run,
        "purging old jobs": every(3_600.0, context.jobs.purge_once),
        "erasing what was kept long enough": context.retention.run,
        "working on jobs": context.jobs.run,
    }
    if context.statuses is not None:
        tasks["logging how many statuses were asked for"] = every(60.0, context.statuses.log_counts)
    return tasks


async def supervise(name: str, work: Callable[[], Awaitable[None]], clock: Clock, metrics: ServerMetrics) -> None:
    """Run a background task for ever; restart it after a pause when it fails."""
    failures = 0
    failed = metrics.failures.labels(name)
    while True:
        started = clock.now()
        try:
            await work()
        except (Exception, PanicException):  # a failed step must not stop the next
            _log.exception("%s failed and is begun again", name)
            failed.inc()
        if clock.now() - started > _STABLE_AFTER_S:
            failures = 0
        await clock.sleep(_RESTART_PAUSES_S[min(failures, len(_RESTART_PAUSES_S) - 1)])
        failures += 1


# shown in logs and metrics; another method is text of the client
_METHODS: Final = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
_RETRY_SOON: Final = {"Retry-After": "5", "Connection": "close"}
_NO_STORE: Final = (b"cache-control", b"no-store")  # no cache may keep answers that need a key


class _AuthMiddleware:
    """ASGI middleware that authenticates requests, turns exceptions into error responses, and logs all requests."""

    def __init__(self, app: ASGIApp, public: Collection[str], proxies: Sequence[str]) -> None:
        self._app = app
        self._public = public
        self._forwarded: Any = ProxyHeadersMiddleware(self._answer, list(proxies))  # type: ignore[arg-type]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        REQUEST_ID.set(request_id_of(scope, self._forwarded.trusted_hosts))  # each request runs in a separate task
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
            key = scope.get(KEY)
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
            if error.status_code != HTTPStatus.METHOD_NOT_ALLOWED:
                return Refusal(404, "not_found", gettext("there is no such path; see /openapi.json"))
            message = gettext("the path has no such method; see /openapi.json")
            return Refusal(405, "method_not_allowed", message, headers=error.headers)
        except asyncio.CancelledError:  # the server stops, and its grace period is over
            message = gettext("the server is stopped; it may have been done or not")
            return Refusal(503, "busy", message, headers=_RETRY_SOON)
        except StoreError as error:
            _log.error("%s", error)
            return busy(gettext("the server cannot use its disk"), 30)
        except (Exception, PanicException):  # a panic is no Exception
            _log.exception("a request failed")
            message = gettext("the server failed; nothing is known of the request's effect")
            # the body has the id, too: people who ask for help quote the body
            return Refusal(500, "internal", message, request_id=REQUEST_ID.get())
        return None

    async def _handle_keyed(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = scope["app"].state.context
        key = await authenticate(scope)
        context.bounds.enter(key.id, context.keys.plan(key))
        try:
            await self._app(scope, receive, send)
        finally:
            context.bounds.leave(key.id)


_SHUTDOWN_GRACE_S: Final = 20
_MAX_HEAD_BYTES: Final = 32 << 10
_OPEN_FILES: Final = 16_384  # as `deploy/bansong.service` has it
_KEEP_ALIVE_S: Final = 15  # longer than our own client keeps idle connections, so that none breaks under a request


def run(
    settings: Settings,
    host: str,
    port: int,
    on_start: Callable[[str], None],
    *,
    status_sources: Sequence[StatusSource] = (),
) -> None:
    """Serve until SIGINT or SIGTERM; call ``on_start`` with the base URL once requests are accepted."""

    def freeze_and_report() -> None:
        # objects made until now stay alive: scanning them for garbage would stop all requests for 80 ms each time
        gc.collect()
        gc.freeze()
        on_start(url_of(listener))

    listener = listen(host, port)
    try:
        server = server_for(settings, freeze_and_report, status_sources=status_sources)
        with suppress(KeyboardInterrupt):  # uvicorn raises the signal again after shutdown
            server.run(sockets=[listener])
    finally:
        listener.close()


class _UvicornServer(uvicorn.Server):
    """A uvicorn server that calls ``on_start`` after its start, or raises the error that prevented the start."""

    def __init__(self, config: uvicorn.Config, on_start: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_start = on_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        except SystemExit:
            failure: Exception | None = getattr(self.config.app.state, "failure", None)  # type: ignore[union-attr]
            if failure is None:
                raise
            raise failure from None
        self._on_start()


def _raise_file_limit() -> None:
    try:
        import resource
    except ImportError:  # not on Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def server_for(
    settings: Settings,
    on_start: Callable[[], None],
    clock: Clock | None = None,
    *,
    status_sources: Sequence[StatusSource] = (),
) -> _UvicornServer:
    """Return a uvicorn server for these settings. Increases the process's limit of open files."""
    _raise_file_limit()
    app = create_app(settings, clock, status_sources=status_sources)
    metrics: ServerMetrics = app.state.metrics
    config = uvicorn.Config(
        app,
        lifespan="on",
        ws="none",
        http="h11",
        backlog=BACKLOG,
        h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
        timeout_keep_alive=_KEEP_ALIVE_S,
        loop="auto",  # uvloop where it is installed
        log_config=None,
        log_level="critical",
        access_log=False,
        date_header=False,
        server_header=False,
        proxy_headers=False,  # _AuthMiddleware reads them, from trusted proxies only
        timeout_graceful_shutdown=_SHUTDOWN_GRACE_S,
    )
    server = _UvicornServer(config, on_start)
    metrics.connections = lambda: len(server.server_state.connections)
    return server
