"""What the endpoints share, put together when the server starts."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request

from bizverify.server.answering import Answering
from bizverify.server.auth import KeyRing
from bizverify.server.charging import Charging
from bizverify.server.clock import Clock
from bizverify.server.engines import Engines
from bizverify.server.jobs.accepting import Acceptance
from bizverify.server.jobs.work import Jobs
from bizverify.server.learning import Learning
from bizverify.server.logs import RequestLog
from bizverify.server.notifying import Notifying
from bizverify.server.repeats import Repeats
from bizverify.server.settings import Settings
from bizverify.server.store import Store
from bizverify.server.watching import Watching


@dataclass(frozen=True, slots=True)
class Context:
    """The parts of a running server."""

    settings: Settings
    clock: Clock
    store: Store
    keys: KeyRing
    engines: Engines
    learning: Learning
    answering: Answering
    charging: Charging
    jobs: Jobs
    acceptance: Acceptance
    repeats: Repeats
    watching: Watching
    notifying: Notifying
    requests: RequestLog


def context_of(request: Request) -> Context:
    """The running server's parts."""
    context: Context = request.app.state.context
    return context
