"""What the fake needs of ASGI: its types, and a reply that can break on its way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

WRITE: Final = "bizverify.write"
"""Where a scope has, on a real socket, the function that writes bytes to its connection, beside all replies."""


class BrokenConnectionError(ConnectionResetError):
    """The connection broke, on purpose.

    On a real socket :mod:`bizverify.testing.server` breaks it: with ``reset`` by RST, else by closing it early.
    In-process it leaves the app as it is, through ``httpx.ASGITransport``, and the client's code gets it from the call
    where a real connection would have given ``httpx.ReadError`` or ``httpx.RemoteProtocolError``.
    """

    def __init__(self, message: str, *, reset: bool = True) -> None:
        super().__init__(message)
        self.reset = reset


class ClientGoneError(Exception):
    """The client left before its request was complete: nothing was taken, and nobody is there to be answered."""


class RefusedError(Exception):
    """An error reply: the status, words for people, and perhaps how long to wait."""

    def __init__(self, status: int, message: str, *, retry_after: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


@dataclass(slots=True)
class Reply:
    """A reply. ``parts`` are streamed in place of ``body``; after ``cut`` bytes of ``body`` the connection breaks.

    ``twice``: it is sent once more, where there is a real socket.
    """

    status: int = 200
    body: bytes = b""
    content_type: str | None = "application/json"
    headers: Headers = field(default_factory=list)
    parts: Iterable[bytes] | None = None
    cut: int | None = None
    reset: bool = True
    twice: bool = False

    def whole(self) -> bytes:
        """The bytes of a whole HTTP/1.1 response."""
        lines = [b"HTTP/1.1 %d %s" % (self.status, HTTPStatus(self.status).phrase.encode())]
        lines += [name + b": " + value for name, value in self._headers()]
        return b"\r\n".join([*lines, b"", self.body])

    def _headers(self) -> Headers:
        headers: Headers = []
        if self.content_type is not None:
            headers.append((b"content-type", self.content_type.encode("latin-1")))
        if self.parts is None and self.status != 204:
            headers.append((b"content-length", b"%d" % len(self.body)))
        return headers + self.headers

    async def send(self, send: Send) -> None:
        """Send it, as far as it is meant to go. Raises :class:`BrokenConnectionError` where it is cut."""
        await send({"type": "http.response.start", "status": self.status, "headers": self._headers()})
        if self.cut is not None:
            await send({"type": "http.response.body", "body": self.body[: self.cut], "more_body": True})
            raise BrokenConnectionError(f"the reply broke after {self.cut} bytes", reset=self.reset)
        for part in self.parts or ():
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": self.body})


def header(scope: Scope, name: bytes) -> bytes | None:
    """The value of a request header, by its name in lower case."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return None
