"""The ASGI app: paths, and what runs beside them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import anyio
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import ASGIApp

from bizverify.server.answering import Answering
from bizverify.server.auth import Doorkeeper, KeyRing
from bizverify.server.background import supervised
from bizverify.server.charging import Charging
from bizverify.server.clock import Clock
from bizverify.server.context import Context
from bizverify.server.endpoints import watch
from bizverify.server.endpoints.batch import batch, create_batch
from bizverify.server.endpoints.health import healthz
from bizverify.server.endpoints.label import label
from bizverify.server.endpoints.me import me
from bizverify.server.endpoints.verify import verify
from bizverify.server.engines import Engines
from bizverify.server.jobs.accepting import Acceptance
from bizverify.server.jobs.work import Jobs, swept
from bizverify.server.learning import Learning
from bizverify.server.logs import RequestLog
from bizverify.server.notifying import Notifying
from bizverify.server.openapi import openapi
from bizverify.server.repeats import Repeats
from bizverify.server.settings import Settings
from bizverify.server.sources import Sources
from bizverify.server.store import SERVER_FILE, Store, lock_server_file
from bizverify.server.watching import Watching

ROUTES: Final = (
    Route("/verify", verify, methods=["POST"]),
    Route("/watch", watch.add, methods=["POST"]),
    Route("/watch", watch.every, methods=["GET"]),
    Route("/watch/{watch_id}", watch.remove, methods=["DELETE"]),
    Route("/watch/{watch_id}/history", watch.history, methods=["GET"]),
    Route("/batch", create_batch, methods=["POST"]),
    Route("/batch/{job_id}", batch, methods=["GET"]),
    Route("/batch/{job_id}/label", label, methods=["POST"]),
    Route("/me", me, methods=["GET"]),
    Route("/healthz", healthz, methods=["GET"]),
    Route("/openapi.json", openapi, methods=["GET"]),
)


def create_app(settings: Settings, clock: Clock | None = None) -> Starlette:
    """Make the app; the database is opened, and its lock taken, when the app starts (ASGI lifespan).

    Starting raises :class:`bizverify.errors.BizverifyError` where the database or an index cannot be used.
    """

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            try:
                context = _context(settings, clock or Clock(), stack)
            except Exception as error:
                app.state.failure = error
                raise
            app.state.context = context
            async with anyio.create_task_group() as group:
                for name, work in _background(context).items():
                    group.start_soon(supervised, name, work, context.clock)
                yield
                group.cancel_scope.cancel()
            await context.keys.note()
            context.requests.write()

    app = Service(routes=list(ROUTES), lifespan=lifespan)
    app.router.redirect_slashes = False
    return app


class Service(Starlette):
    """Starlette without its own layers around each request: the doorkeeper catches what they would."""

    def build_middleware_stack(self) -> ASGIApp:
        """The router, behind the doorkeeper alone."""
        return Doorkeeper(self.router)


def _context(settings: Settings, clock: Clock, stack: AsyncExitStack) -> Context:
    """Put the parts together; what must be closed is closed by ``stack``, the last opened first."""
    lock = lock_server_file(settings.db)
    stack.callback(lock.release)
    store = Store(settings.db)
    stack.callback(store.close)
    with SERVER_FILE.errors(settings.files):
        settings.files.mkdir(mode=0o700, exist_ok=True)
        swept(settings)
    engines = Engines(settings, clock)
    sources = Sources()
    jobs = Jobs(settings, clock, store, engines, sources)
    notifying = Notifying(store, clock, file=settings.notices)
    return Context(
        settings=settings,
        clock=clock,
        store=store,
        keys=KeyRing(store, settings.plans, clock),
        engines=engines,
        learning=Learning(settings, clock, store, engines),
        answering=Answering(engines),
        charging=Charging(store, clock),
        jobs=jobs,
        acceptance=Acceptance(settings, clock, store, jobs),
        repeats=Repeats(store, clock),
        watching=Watching(
            store, engines.engine, sources, settings.plans, clock, notices=settings.notices, found=notifying.wake
        ),
        notifying=notifying,
        requests=RequestLog(),
    )


def _background(context: Context) -> dict[str, Callable[[], Any]]:
    """What runs beside the requests, by name."""
    return {
        "deleting old answers to repeated requests": context.repeats.run,
        "learning from outcomes": context.learning.run,
        "checking what is watched": context.watching.run,
        "looking for newer indexes": context.engines.run,
        "noting when keys were used": context.keys.run,
        "telling of closures": context.notifying.run,
        "purging old jobs": context.jobs.purge,
        "working on jobs": context.jobs.run,
    }
