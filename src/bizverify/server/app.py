"""The ASGI app: paths, and what runs beside them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import anyio
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bizverify.server.answering import Answering
from bizverify.server.auth import Doorkeeper, KeyRing
from bizverify.server.background import supervised
from bizverify.server.clock import Clock
from bizverify.server.context import Context
from bizverify.server.endpoints.health import healthz
from bizverify.server.endpoints.me import me
from bizverify.server.endpoints.verify import verify
from bizverify.server.engines import Engines
from bizverify.server.refusals import Refusal
from bizverify.server.settings import Settings
from bizverify.server.store import Store, server_lock

ROUTES: Final = (
    Route("/verify", verify, methods=["POST"]),
    Route("/me", me, methods=["GET"]),
    Route("/healthz", healthz, methods=["GET"]),
)


def create_app(settings: Settings, clock: Clock | None = None) -> Starlette:
    """Make the app; the database is opened, and its lock taken, when the app starts (ASGI lifespan).

    Starting raises :class:`bizverify.errors.BizverifyError` where the database or an index cannot be used.
    """

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            context = _context(settings, clock or Clock(), stack)
            app.state.context = context
            async with anyio.create_task_group() as group:
                for name, work in _background(context).items():
                    group.start_soon(supervised, name, work, context.clock)
                yield
                group.cancel_scope.cancel()
            await context.keys.note()

    errors: Mapping[Any, Callable[[Request, Exception], Response]] = {404: _no_path, 405: _wrong_method}
    app = Starlette(
        routes=list(ROUTES), middleware=[Middleware(Doorkeeper)], exception_handlers=errors, lifespan=lifespan
    )
    app.router.redirect_slashes = False
    return app


def _context(settings: Settings, clock: Clock, stack: AsyncExitStack) -> Context:
    """Put the parts together; what must be closed is closed by ``stack``, the last opened first."""
    lock = server_lock(settings.db)
    stack.callback(lock.release)
    store = Store(settings.db)
    stack.callback(store.close)
    settings.files.mkdir(mode=0o700, exist_ok=True)
    engines = Engines(settings)
    return Context(
        settings=settings,
        clock=clock,
        store=store,
        keys=KeyRing(store, settings.plans, clock),
        engines=engines,
        answering=Answering(engines),
    )


def _background(context: Context) -> dict[str, Callable[[], Any]]:
    """What runs beside the requests, by name."""
    return {"noting when keys were used": context.keys.run}


def _no_path(request: Request, error: Exception) -> Response:
    del request, error
    return Refusal(404, "not_found", "there is no such path; see /openapi.json").response()


def _wrong_method(request: Request, error: Exception) -> Response:
    del request
    headers = getattr(error, "headers", None)
    return Refusal(
        405, "method_not_allowed", "the path has no such method; see /openapi.json", headers=headers
    ).response()
