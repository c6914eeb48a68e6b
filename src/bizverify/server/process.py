"""The server as a process: a socket, uvicorn, and an end in good order."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Final

import uvicorn

from bizverify.errors import UsageError
from bizverify.server.app import create_app
from bizverify.server.clock import Clock
from bizverify.server.settings import Settings

_GRACE: Final = 20
"""Seconds that requests under way have to end when the server is stopped."""


def run(settings: Settings, host: str, port: int, started: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; ``started`` is called with the base URL when requests are taken.

    Raises :class:`bizverify.errors.BizverifyError` where the database, an index or the address cannot be used.
    """
    listener = listening(host, port)
    try:
        server = server_for(settings, lambda: started(url_of(listener)))
        server.run(sockets=[listener])
    finally:
        listener.close()
    if server.failure is not None:
        raise server.failure


def listening(host: str, port: int) -> socket.socket:
    """A socket that already listens; port 0 takes a free one. Raises :class:`UsageError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # the protocol is named because asyncio sets TCP_NODELAY only then: without it each reply takes 40 ms
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{host}:{port}: cannot listen there: {reason}; choose another --host or --port") from error
    return listener


def url_of(listener: socket.socket) -> str:
    """The base URL of what listens there."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """uvicorn, which tells when it has started, and keeps why it could not."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self.failure: Exception | None = None
        self._tell = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to take requests."""
        await super().startup(sockets)
        if self.started:
            self._tell()


def server_for(settings: Settings, started: Callable[[], None], clock: Clock | None = None) -> Server:
    """The server of an app, quiet: what it logs goes through ``logging`` under ``bizverify.server``."""
    config = uvicorn.Config(
        create_app(settings, clock),
        lifespan="on",
        ws="none",
        http="h11",
        loop="asyncio",
        log_config=None,
        log_level="critical",
        access_log=False,
        date_header=False,
        server_header=False,
        timeout_graceful_shutdown=_GRACE,
    )
    return Server(config, started)
