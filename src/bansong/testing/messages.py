"""ASGI messages: a request on its way through the fake, the parts of a form, and a reply that can break on its way."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl

from bansong.testing.verdicts import Lookup

if TYPE_CHECKING:
    from bansong.testing.dialect_bodies import ResultsEdit
    from bansong.testing.fake_service import FakeService


Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

WRITE: Final = "bansong.write"
"""Where a scope has, on a real socket, the function that writes bytes to its connection, beside all replies."""


class BrokenConnectionError(ConnectionResetError):
    """The connection broke, on purpose.

    On a real socket :mod:`bansong.testing.server` breaks it: with ``reset`` by RST, else by closing it early.
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
class FakeReply:
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


_BOUNDARY: Final = re.compile(rb"""multipart/form-data\s*;.*?\bboundary=(?:"([^"]{1,70})"|([^\s";,]{1,70}))""", re.I)
_PARAMETER: Final = re.compile(r';\s*([a-z*]+)\s*=\s*"((?:[^"\\]|\\.)*)"', re.I)


@dataclass(frozen=True, slots=True)
class FormPart:
    """One part of a form: its name, the name of its file (``None`` for a plain field), its kind and its bytes."""

    name: str
    filename: str | None
    content_type: str | None
    content: bytes


def parts_of(content_type: bytes | None, body: bytes) -> list[FormPart]:
    """The parts of a complete body. Raises :class:`RefusedError`: 415 for another kind, 400 where it is not whole.

    Every delimiter stands on a line of its own and nothing but a line end follows the closing one: a body that ends
    early, even by a byte of its boundary, is not a body.
    """
    found = _BOUNDARY.match(content_type or b"")
    if found is None:
        raise RefusedError(415, "multipart/form-data with a boundary is expected")
    delimiter = b"\r\n--" + (found[1] or found[2])
    first, *rest = (b"\r\n" + body).split(delimiter)
    if first or not rest or rest[-1] not in (b"--", b"--\r\n"):
        raise RefusedError(400, "the multipart body is not complete")
    return [_part(section) for section in rest[:-1]]


def _part(section: bytes) -> FormPart:
    head, blank, content = section.partition(b"\r\n\r\n")
    if not head.startswith(b"\r\n") or not blank:
        raise RefusedError(400, "a part of the multipart body has no header, or no end of it")
    headers: dict[str, str] = {}
    for line in head[2:].decode("utf-8", "replace").split("\r\n"):
        name, colon, value = line.partition(":")
        if not colon:
            raise RefusedError(400, "a header of a part is not one")
        headers[name.strip().lower()] = value.strip()
    disposition = headers.get("content-disposition", "")
    parameters = {name.lower(): re.sub(r"\\(.)", r"\1", value) for name, value in _PARAMETER.findall(disposition)}
    if not disposition.lower().startswith("form-data") or "name" not in parameters:
        raise RefusedError(400, "a part has no name")
    return FormPart(parameters["name"], parameters.get("filename"), headers.get("content-type"), content)


@dataclass(slots=True)
class FakeRequest:
    """A request: its kind, the identifier in its path, how often this job was polled; and what acts want of its reply.

    ``answered_record`` says whose record is answered in the place of the one that was asked about.

    ``releases`` is how often the faults had been let go when it came, ``last`` the job that may be forgotten once the
    reply is out, ``whole`` whether all of the body has been read, ``parts`` what is kept of it.
    """

    kind: str
    target: str
    scope: Scope
    receive: Receive
    service: FakeService
    releases: int
    polls: int = 0
    edits: list[ResultsEdit] = field(default_factory=list)
    word: str | None = None
    answered_record: Callable[[Lookup], Lookup] | None = None
    last: str | None = None
    whole: bool = False
    parts: list[bytes] = field(default_factory=list)

    @property
    def released(self) -> bool:
        """Whether what holds it up was told to let go since it came."""
        return self.service.faults.releases != self.releases

    def query(self) -> dict[str, str]:
        """The query parameters. Raises :class:`RefusedError` (422) for one that is given twice."""
        pairs = parse_qsl(self.scope["query_string"].decode("ascii", "replace"), keep_blank_values=True)
        if len(pairs) != len(dict(pairs)):
            raise RefusedError(422, "a query parameter is given twice")
        return dict(pairs)

    async def body(self, most: int | None = None) -> bytes:
        """The body, once it is whole; it is kept, so it may be asked for again.

        Raises :class:`ClientGoneError` when the client leaves before; :class:`RefusedError` (413) when it has more than
        ``most`` bytes.
        """
        while not self.whole:
            self.parts.append(await self._part())
            self._limit(most)
        self._limit(most)
        return b"".join(self.parts)

    async def rest(self) -> None:
        """Read what has not been read, and let it go."""
        while not self.whole:
            await self._part()

    async def _part(self) -> bytes:
        message = await self.receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        self.whole = not message.get("more_body", False)
        return bytes(message.get("body", b""))

    def _limit(self, most: int | None) -> None:
        if most is not None and sum(map(len, self.parts)) > most:
            raise RefusedError(413, f"more than {most} bytes")
