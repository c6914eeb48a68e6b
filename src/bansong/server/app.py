"""The ASGI app, its background tasks, and uvicorn."""

from __future__ import annotations

import gc
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from typing import TYPE_CHECKING, Any, Final

import anyio
import uvicorn
from polars.exceptions import PanicException
from starlette.applications import Starlette
from starlette.types import ASGIApp, Lifespan

from bansong.base.errors import UsageError
from bansong.base.messages import describe_os_error, gettext
from bansong.client.address import AddressPolicy
from bansong.client.webhook import WebhookSender
from bansong.server.auth import AuthMiddleware, KeyBounds, KeyCache
from bansong.server.engines import EnginePool
from bansong.server.erasure import Retention
from bansong.server.handlers import Context
from bansong.server.job_table import IdempotentRequests
from bansong.server.jobs import JobAcceptance, JobWorker, clean_up_files
from bansong.server.learning import OutcomeLearner, warn_about_pools
from bansong.server.lookups import LookupAnswerer, PaidLookups
from bansong.server.metrics import ServerMetrics, StateCollector, serve_metrics
from bansong.server.references import StatusSource, StatusSources
from bansong.server.routes import PUBLIC, routes
from bansong.server.settings import Clock, RequestLog, Settings
from bansong.server.store import SERVER_FILE, Store, lock_server_file, open_server_file
from bansong.server.watch import Notifier, WatchScheduler

if TYPE_CHECKING:
    from bansong.server.statuses import NtsStatuses


_log = logging.getLogger(__name__)
_RESTART_PAUSES_S: Final = (1.0, 5.0, 30.0, 60.0)
_CALM_S: Final = 600.0


def create_app(
    settings: Settings, clock: Clock | None = None, *, status_sources: Sequence[StatusSource] = ()
) -> Starlette:
    """Return the ASGI app; its lifespan opens the database and takes its lock.

    ``status_sources``: status sources better than the registry file, best first. Batch jobs and the watch list use the
    first that is allowed. Startup raises :class:`bansong.errors.BansongError` if the database or an index is unusable.
    """

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            try:
                context = _open_context(settings, clock or Clock(), status_sources, metrics, stack)
                if context.statuses is not None:
                    await stack.enter_async_context(context.statuses)
                app.state.metrics_port = _begin_metrics(context, stack)
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

    metrics = ServerMetrics()
    app = _BareStarlette(settings.trusted_proxies, lifespan)
    app.state.metrics = metrics
    app.router.redirect_slashes = False
    return app


class _BareStarlette(Starlette):
    """Starlette without its own middleware: :class:`AuthMiddleware` catches errors."""

    def __init__(self, proxies: Sequence[str], lifespan: Lifespan[Starlette]) -> None:
        super().__init__(routes=routes(), lifespan=lifespan)
        self._proxies = proxies

    def build_middleware_stack(self) -> ASGIApp:
        return AuthMiddleware(self.router, PUBLIC, self._proxies)


def _open_context(
    settings: Settings,
    clock: Clock,
    status_sources: Sequence[StatusSource],
    metrics: ServerMetrics,
    stack: AsyncExitStack,
) -> Context:
    if settings.connections_per_address is not None:
        _log.warning("connections_per_address is ignored: the proxy bounds connections, see deploy/nginx.conf")
    lock = lock_server_file(settings.db)
    stack.callback(lock.release)
    store = Store(settings.db, metrics.observe_commit)
    stack.callback(store.close)
    with SERVER_FILE.errors(settings.files):
        settings.files.mkdir(mode=0o700, exist_ok=True)
        disk = clean_up_files(settings)
        with closing(open_server_file(settings.db, create=False)) as db:
            warn_about_pools(settings.files, db)
    engines = EnginePool(settings, clock)
    statuses = _open_statuses(settings, clock)
    sources = StatusSources(*status_sources, *([] if statuses is None else [statuses]))
    jobs = JobWorker(settings, clock, store, engines, sources, metrics, disk)
    sender = WebhookSender(check=AddressPolicy(settings.webhook_networks).check)
    notifier = Notifier(store, clock, sender, file=settings.notices)
    idempotent = IdempotentRequests(store, clock)
    learner, bounds = OutcomeLearner(settings, clock, store, engines), KeyBounds(clock)
    return Context(
        settings=settings,
        clock=clock,
        store=store,
        keys=KeyCache(store, settings.plans, clock),
        bounds=bounds,
        engines=engines,
        learner=learner,
        lookups=PaidLookups(store, clock, LookupAnswerer(engines, statuses), idempotent),
        jobs=jobs,
        acceptance=JobAcceptance(settings, clock, store, jobs, disk),
        idempotent=idempotent,
        watches=WatchScheduler(settings, clock, store, engines, sources, on_notification=notifier.wake),
        notifier=notifier,
        retention=Retention(settings, clock, store, learner, lambda key_id: bounds.under_way(key_id) > 0),
        requests=RequestLog(),
        metrics=metrics,
        statuses=statuses,
    )


def _begin_metrics(context: Context, stack: AsyncExitStack) -> int | None:
    context.metrics.registry.register(StateCollector(context))
    if context.settings.metrics_port is None:
        return None
    settings = context.settings
    return stack.enter_context(
        serve_metrics(context.metrics.registry, settings.metrics_host, context.settings.metrics_port)
    )


def _open_statuses(settings: Settings, clock: Clock) -> NtsStatuses | None:
    if settings.status.source == "none":
        return None
    from bansong.server.statuses import open_nts_statuses

    return open_nts_statuses(settings, clock)


def _background_tasks(context: Context) -> dict[str, Callable[[], Any]]:
    statuses = {} if context.statuses is None else {"logging how many statuses were asked for": context.statuses.run}
    return {
        **statuses,
        "deleting old answers to repeated requests": context.idempotent.run,
        "learning from outcomes": context.learner.run,
        "measuring how late the event loop is": context.metrics.measure_delay,
        "checking what is watched": context.watches.run,
        "looking for newer indexes": context.engines.run,
        "noting when keys were used": context.keys.run,
        "telling of closures": context.notifier.run,
        "purging old jobs": context.jobs.purge,
        "erasing what was kept long enough": context.retention.run,
        "working on jobs": context.jobs.run,
    }


async def supervise(name: str, work: Callable[[], Awaitable[None]], clock: Clock, metrics: ServerMetrics) -> None:
    """Run ``work`` until cancelled; log a failure and start it again after a pause."""
    failures = 0
    metrics.expect_task(name)
    while True:
        started = clock.now()
        try:
            await work()
        except (Exception, PanicException):  # what went wrong in one step must not stop the next
            _log.exception("%s failed and is begun again", name)
            metrics.count_failure(name)
        if clock.now() - started > _CALM_S:
            failures = 0
        await clock.sleep(_RESTART_PAUSES_S[min(failures, len(_RESTART_PAUSES_S) - 1)])
        failures += 1


_SHUTDOWN_GRACE_S: Final = 20
_MAX_HEAD_BYTES: Final = 32 << 10
_BACKLOG: Final = 2_048
"""Pending connections of the socket; the event loop accepts all of them before it serves the first."""
_KEEP_ALIVE_S: Final = 15
"""Longer than our own client keeps idle connections, so that none breaks under a request."""


def run(
    settings: Settings,
    host: str,
    port: int,
    on_start: Callable[[str], None],
    *,
    status_sources: Sequence[StatusSource] = (),
) -> None:
    """Serve until SIGINT or SIGTERM; call ``on_start`` with the base URL once requests are accepted.

    ``status_sources``: as for :func:`create_app`. Raises :class:`bansong.errors.BansongError` if the database, an index
    or the address is unusable.
    """

    def freeze_and_report() -> None:
        # what was made until now stays: looking through it for garbage would stop all requests for 80 ms each time
        gc.collect()
        gc.freeze()
        on_start(url_of(listener))

    listener = listen(host, port)
    try:
        server = server_for(settings, freeze_and_report, status_sources=status_sources)
        with suppress(KeyboardInterrupt):  # the signal that ended it, raised once more when all is closed
            server.run(sockets=[listener])
    finally:
        listener.close()


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes a free one. Raises :class:`UsageError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # the protocol is named because asyncio sets TCP_NODELAY only then: without it each reply takes 40 ms
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        # on Windows, SO_REUSEADDR would let two servers have one address at once
        listener.setsockopt(socket.SOL_SOCKET, getattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_REUSEADDR), 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        reason = describe_os_error(error)
        message = gettext(
            "{host}:{port}: cannot listen there: {reason}; choose another `host=` or `port=`",
            host=host,
            port=port,
            reason=reason,
        )
        raise UsageError(message) from error
    return listener


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class UvicornServer(uvicorn.Server):
    """A uvicorn server that calls ``on_start`` after startup and raises the app's startup error."""

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
    """Let the process open as many files as the system allows: each connection is one."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def server_for(
    settings: Settings,
    on_start: Callable[[], None],
    clock: Clock | None = None,
    *,
    status_sources: Sequence[StatusSource] = (),
) -> UvicornServer:
    """The server of an app, quiet: what it logs goes through ``logging`` under ``bansong.server``."""
    _raise_file_limit()
    app = create_app(settings, clock, status_sources=status_sources)
    metrics: ServerMetrics = app.state.metrics
    config = uvicorn.Config(
        app,
        lifespan="on",
        ws="none",
        http="h11",
        backlog=_BACKLOG,
        h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
        timeout_keep_alive=_KEEP_ALIVE_S,
        loop="auto",  # uvloop where it is installed
        log_config=None,
        log_level="critical",
        access_log=False,
        date_header=False,
        server_header=False,
        proxy_headers=False,  # AuthMiddleware has them read, for the proxies of the settings alone
        timeout_graceful_shutdown=_SHUTDOWN_GRACE_S,
    )
    server = UvicornServer(config, on_start)
    metrics.connections = lambda: len(server.server_state.connections)
    return server
