"""The fakes on a real socket: uvicorn in a thread, with connections that can break."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio

from bansong.testing.messages import WRITE, BrokenConnectionError, Receive, Scope, Send

if TYPE_CHECKING:
    import uvicorn

    from bansong.testing.faults import Faults

_AT_ONCE: Final = struct.pack("ii", 1, 0)
"""SO_LINGER with 0 seconds: closing such a socket sends RST."""


class FakeApp(Protocol):
    """An ASGI app with faults."""

    faults: Faults

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


@contextmanager
def serve(service: FakeApp, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Serve on a loopback port during the block; yield the base URL. Needs uvicorn.

    Leaving the block breaks busy connections, as a crash would. The service can be served again, also on the same
    ``port``.
    """
    server = server_for(service)
    listener = listening(host, port)
    thread = Thread(target=server.run, kwargs={"sockets": [listener]}, name="bansong-fake-service", daemon=True)
    thread.start()
    try:
        while not server.started:
            if not thread.is_alive():
                raise RuntimeError("uvicorn did not start")
            time.sleep(0.005)
        yield url_of(listener)
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that already listens, so that clients may connect before the server runs."""
    # the protocol is named because asyncio sets TCP_NODELAY only then: without it each reply takes 40 ms
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if not hasattr(socket, "SO_EXCLUSIVEADDRUSE"):  # on Windows it would let two have the address at once
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    return listener


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def server_for(service: FakeApp) -> uvicorn.Server:
    """Return a quiet uvicorn server that breaks connections on request."""
    try:
        import uvicorn
    except ImportError as error:
        raise RuntimeError(
            "serving the fake on a socket needs uvicorn: pip install uvicorn (in-process it needs nothing: "
            "httpx.ASGITransport(app=service))"
        ) from error

    class BreakableServer(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            service.faults.release()
            for connection in list(self.server_state.connections):
                transport: Any = getattr(connection, "transport", None)
                if transport is not None:
                    transport.abort()
            await anyio.sleep(0.01)
            await super().shutdown(sockets)

    async def breakable(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope[WRITE] = lambda content: _write(server, scope, content)
        try:
            await service(scope, receive, send)
        except BrokenConnectionError as broken:
            _break(server, scope, reset=broken.reset)
            while (await receive())["type"] != "http.disconnect":
                pass

    config = uvicorn.Config(
        breakable,
        lifespan="off",
        ws="none",
        log_config=None,
        log_level="critical",
        access_log=False,
        date_header=False,
        server_header=False,
        timeout_graceful_shutdown=2,
    )
    server = BreakableServer(config)
    return server


def _break(server: uvicorn.Server, scope: Scope, *, reset: bool) -> None:
    transport = _transport(server, scope)
    if transport is None:
        return
    if reset:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        transport.abort()
    else:
        transport.close()


def _write(server: uvicorn.Server, scope: Scope, content: bytes) -> None:
    transport = _transport(server, scope)
    if transport is not None:
        transport.write(content)


def _transport(server: uvicorn.Server, scope: Scope) -> Any:
    connections = list(server.server_state.connections)
    found = (one for one in connections if getattr(one, "client", None) == scope["client"])
    return getattr(next(found, None), "transport", None)
