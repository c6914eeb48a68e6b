"""The server as a process: a socket, uvicorn, and an end in good order."""

from __future__ import annotations

import gc
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import uvicorn

from bizverify.errors import UsageError
from bizverify.server.app import create_app
from bizverify.server.clock import Clock
from bizverify.server.connections import HEAD_BYTES, Connection
from bizverify.server.settings import Settings

_GRACE: Final = 20
"""Seconds that requests under way have to end when the server is stopped."""
_CONNECTIONS: Final = 2_000
"""Connections at once at most; more are told 503."""
_OTHER_FILES: Final = 256
"""Open files beside connections: SQLite's, uploads, the indexes."""
_KEEP_ALIVE: Final = 15
"""Seconds that an idle connection is kept: longer than our own client keeps its, so none breaks under a request."""


def run(settings: Settings, host: str, port: int, started: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; ``started`` is called with the base URL when requests are taken.

    Raises :class:`bizverify.errors.BizverifyError` where the database, an index or the address cannot be used.
    """

    def begun() -> None:
        # what was made until now stays: looking through it for garbage would stop all requests for 80 ms each time
        gc.collect()
        gc.freeze()
        started(url_of(listener))

    listener = listening(host, port)
    try:
        server = server_for(settings, begun)
        with suppress(KeyboardInterrupt):  # the signal that ended it, raised once more when all is closed
            server.run(sockets=[listener])
    finally:
        listener.close()


def listening(host: str, port: int) -> socket.socket:
    """A socket that already listens; port 0 takes a free one. Raises :class:`UsageError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # the protocol is named because asyncio sets TCP_NODELAY only then: without it each reply takes 40 ms
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        # on Windows, SO_REUSEADDR would let two servers have one address at once
        listener.setsockopt(socket.SOL_SOCKET, getattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_REUSEADDR), 1)
        listener.bind((host, port))
        listener.listen(2048)
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{host}:{port}: cannot listen there: {reason}; choose another `host=` or `port=`") from error
    return listener


def url_of(listener: socket.socket) -> str:
    """The base URL of what listens there."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """uvicorn, which tells when it has started, and raises why it could not."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._tell = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to take requests; raises what the app's start raised."""
        try:
            await super().startup(sockets)
        except SystemExit:
            failure: Exception | None = getattr(self.config.app.state, "failure", None)  # type: ignore[union-attr]
            if failure is None:
                raise
            raise failure from None
        self._tell()


def _connections() -> int:
    """How many connections the files that may be open leave room for; systems allow more than they begin with."""
    try:
        import resource
    except ImportError:  # not on Windows
        return _CONNECTIONS
    wanted = _CONNECTIONS + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return _CONNECTIONS if soft == resource.RLIM_INFINITY else max(1, min(_CONNECTIONS, soft - _OTHER_FILES))


def server_for(settings: Settings, started: Callable[[], None], clock: Clock | None = None) -> Server:
    """The server of an app, quiet: what it logs goes through ``logging`` under ``bizverify.server``."""
    config = uvicorn.Config(
        create_app(settings, clock),
        lifespan="on",
        ws="none",
        http=Connection,
        h11_max_incomplete_event_size=HEAD_BYTES,
        limit_concurrency=_connections(),
        timeout_keep_alive=_KEEP_ALIVE,
        loop="asyncio",
        log_config=None,
        log_level="critical",
        access_log=False,
        date_header=False,
        server_header=False,
        timeout_graceful_shutdown=_GRACE,
    )
    return Server(config, started)
