"""What the endpoints share, put together when the server starts."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request

from bizverify.server.answering import Answering
from bizverify.server.auth import KeyRing
from bizverify.server.clock import Clock
from bizverify.server.engines import Engines
from bizverify.server.settings import Settings
from bizverify.server.store import Store


@dataclass(frozen=True, slots=True)
class Context:
    """The parts of a running server."""

    settings: Settings
    clock: Clock
    store: Store
    keys: KeyRing
    engines: Engines
    answering: Answering


def context_of(request: Request) -> Context:
    """The running server's parts."""
    context: Context = request.app.state.context
    return context
