"""Requests, form parts and replies of the fakes, on top of ASGI messages."""

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
"""Key of a scope: on a real socket, the function that writes raw bytes to its connection."""


class BrokenConnectionError(ConnectionResetError):
    """The connection was broken on purpose.

    On a real socket :mod:`bansong.testing.server` breaks it, by RST with ``reset``, else by closing it early.
    In-process it passes through ``httpx.ASGITransport``, where a real connection would raise ``httpx.ReadError`` or
    ``httpx.RemoteProtocolError``.
    """

    def __init__(self, message: str, *, reset: bool = True) -> None:
        super().__init__(message)
        self.reset = reset


class ClientGoneError(Exception):
    """The client left before its request was complete: nothing was taken."""


class RefusedError(Exception):
    """An error reply."""

    def __init__(self, status: int, message: str, *, retry_after: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


@dataclass(slots=True)
class FakeReply:
    """A reply. ``parts`` are streamed instead of ``body``; after ``cut`` bytes of ``body`` the connection breaks.

    ``twice``: send it again, on a real socket.
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
        """Send the reply; raise :class:`BrokenConnectionError` where it is cut."""
        await send({"type": "http.response.start", "status": self.status, "headers": self._headers()})
        if self.cut is not None:
            await send({"type": "http.response.body", "body": self.body[: self.cut], "more_body": True})
            raise BrokenConnectionError(f"the reply broke after {self.cut} bytes", reset=self.reset)
        for part in self.parts or ():
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": self.body})


def header(scope: Scope, name: bytes) -> bytes | None:
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return None


_BOUNDARY: Final = re.compile(rb"""multipart/form-data\s*;.*?\bboundary=(?:"([^"]{1,70})"|([^\s";,]{1,70}))""", re.I)
_PARAMETER: Final = re.compile(r';\s*([a-z*]+)\s*=\s*"((?:[^"\\]|\\.)*)"', re.I)


@dataclass(frozen=True, slots=True)
class FormPart:
    """One part of a form. ``filename``: ``None`` for a plain field."""

    name: str
    filename: str | None
    content_type: str | None
    content: bytes


def parts_of(content_type: bytes | None, body: bytes) -> list[FormPart]:
    """Split a complete body into its parts; raise :class:`RefusedError` 415 for other content, 400 if it is incomplete.

    A body that ends early, even within its closing boundary, is incomplete.
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
    """A request, and what acts change in its reply.

    ``target``: the identifier in its path. ``polls``: polls of this job so far. ``answered_record``: replaces the
    records that are answered. ``releases``: releases of the faults before it came. ``last``: a job to forget after the
    reply. ``whole``: the body was read.
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
        return self.service.faults.releases != self.releases

    def query(self) -> dict[str, str]:
        """Return the query parameters; raise :class:`RefusedError` (422) for a repeated one."""
        pairs = parse_qsl(self.scope["query_string"].decode("ascii", "replace"), keep_blank_values=True)
        if len(pairs) != len(dict(pairs)):
            raise RefusedError(422, "a query parameter is given twice")
        return dict(pairs)

    async def body(self, most: int | None = None) -> bytes:
        """Return the whole body.

        Raises :class:`ClientGoneError` if the client leaves, :class:`RefusedError` (413) beyond ``most`` bytes.
        """
        while not self.whole:
            self.parts.append(await self._part())
            self._limit(most)
        self._limit(most)
        return b"".join(self.parts)

    async def rest(self) -> None:
        """Read and discard the rest of the body."""
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
