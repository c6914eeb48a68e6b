"""One HTTP/1.1 connection to the service (h11 reads and writes the protocol).

A connection takes one complete response to one request. Bytes after the response, or before a request, could be taken
for the next response: they end the connection.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

import anyio
import anyio.lowlevel
import h11

from bansong.base.messages import gettext
from bansong.client.request import RequestBody, Timeouts

_MAX_HEAD_BYTES: Final = 64 * 1024
_MAX_INTERIM_RESPONSES: Final = 100  # like 100 and 103, before the real one
_PIECES_A_TURN: Final = 16  # then other tasks have a turn
_EVENTS_A_TURN: Final = 256  # a piece may hold thousands, of a byte each
_MAX_LATE_PIECES: Final = 1024  # after the deadline: no more than a socket can hold
_CODINGS: Final = ("gzip", "x-gzip", "deflate")
_MAGIC_BYTES: Final = (b"\x1f\x8b", b"\x78")
_GZIP_OR_ZLIB_WBITS: Final = 47

RawHeaders = list[tuple[bytes, bytes]]


class Stream(Protocol):
    """Bytes to and from the other side; failures are :class:`OSError`."""

    async def send(self, data: bytes) -> None:
        """Send all of it to the network."""

    def receive_now(self) -> bytes | None:
        """Return the bytes received so far: ``None`` if there are none yet, ``b""`` after the last."""

    async def readable(self) -> None:
        """Wait until :meth:`receive_now` may have something."""

    def close(self) -> None:
        """Close without a farewell to the other side."""


class UnreachableError(Exception):
    """No connection could be made, so nothing was sent."""


class MuddledError(Exception):
    """The end of a response is uncertain, so it may be another request's."""


@dataclass(frozen=True, slots=True)
class WireRequest:
    """A request on the wire; ``watch``: look for a response while sending; then ``patience`` counts from its end."""

    method: str
    target: str
    headers: RawHeaders = field(repr=False)
    body: RequestBody | None
    timeouts: Timeouts
    patience: float
    watch: bool = False


@dataclass(slots=True)
class WireResponse:
    """The response so far; ``over``: there is more than ``limit``; ``bare_refusal``: skip the body of a refusal."""

    limit: int
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    content: bytearray = field(default_factory=bytearray, repr=False)
    over: bool = False
    complete: bool = False
    bare_refusal: bool = False

    def begin(self, status: int, headers: RawHeaders) -> None:
        joined: dict[str, str] = {}
        for raw, value in headers:
            name, text = raw.decode("ascii").lower(), value.decode("latin-1")
            joined[name] = f"{joined[name]}, {text}" if name in joined else text
        self.status, self.headers = status, joined
        self.over = self.bare_refusal and not 200 <= status < 300

    def add(self, data: bytes | bytearray) -> None:
        self.content += data
        self.over = len(self.content) > self.limit


class HttpConnection:
    """A connection for one request at a time; ``is_muddled``: bytes came over it that belong to no request."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD_BYTES)
        self._interim = 0
        self.is_reusable, self.is_muddled = True, False
        self._is_paused = False
        self.seconds = 0.0

    def close(self) -> None:
        self.is_reusable = False
        self._stream.close()

    def is_silent(self) -> bool:
        """Whether neither bytes nor an end came since the last response."""
        try:
            data = self._stream.receive_now()
        except OSError:
            return False
        self.is_muddled |= bool(data)
        return data is None

    async def exchange(self, request: WireRequest, response: WireResponse) -> None:
        """Send the request and read into ``response``. After an error or a cancellation the connection is useless."""
        self.is_reusable, self._interim = False, 0
        began = anyio.current_time()
        end = math.inf if request.watch else began + request.patience
        with anyio.CancelScope(deadline=end) as scope:
            try:
                await self._send(request, response, scope, end)
            except OSError:  # it may have been answered before it was closed
                if request.body is not None and request.body.failure is not None:
                    raise
                self._http.send_failed()
            if request.watch:
                end = anyio.current_time() + request.patience
            await self._receive(request, response, scope, end)
        if scope.cancelled_caught and not self._read_rest(response):
            over = anyio.current_time() >= end
            raise TimeoutError(
                gettext("no end of the answer within {patience:g} s", patience=request.patience) if over else ""
            )
        self.seconds = anyio.current_time() - began
        if not response.over:
            self._check_end()

    async def _send(self, request: WireRequest, response: WireResponse, scope: anyio.CancelScope, end: float) -> None:
        head = h11.Request(method=request.method, target=request.target, headers=request.headers)
        data = self._http.send(head) or b""
        body = request.body
        while body is not None:
            if request.watch and not body.complete and self._is_answered(response):
                return
            scope.deadline = end  # the step before the last byte, the ledger's, has no time of its own
            piece = await anext(body, None)
            if piece is None:
                break
            data += self._http.send(h11.Data(piece)) or b""
            scope.deadline = min(end, anyio.current_time() + request.timeouts.write)
            await self._stream.send(data)
            data = b""
        data += self._http.send(h11.EndOfMessage()) or b""
        if data:
            await self._stream.send(data)

    async def _receive(
        self, request: WireRequest, response: WireResponse, scope: anyio.CancelScope, end: float
    ) -> None:
        pieces = 0
        while not self._read_events(response):
            if self._is_paused:
                await anyio.lowlevel.checkpoint()
                continue
            data = self._stream.receive_now()
            if data is None:
                scope.deadline = min(end, anyio.current_time() + request.timeouts.read)
                await self._stream.readable()
                continue
            self._http.receive_data(data)
            pieces += 1
            if pieces % _PIECES_A_TURN == 0:
                await anyio.lowlevel.checkpoint()

    def _is_answered(self, response: WireResponse) -> bool:
        # also by the end of the connection
        data = self._stream.receive_now()
        if data is not None:
            self._http.receive_data(data)
            return not data or self._read_events(response) or response.status is not None
        return False

    def _read_rest(self, response: WireResponse) -> bool:
        # a machine may have slept past the deadline
        for _ in range(_MAX_LATE_PIECES):
            if self._read_events(response):
                return True
            if self._is_paused:
                continue
            data = self._stream.receive_now()
            if data is None:
                break
            self._http.receive_data(data)
        return False

    def _read_events(self, response: WireResponse) -> bool:
        # false: more is needed, or with `_is_paused` more can be read after other tasks had a turn
        events, self._is_paused = 0, False
        while not (response.over or response.complete):
            if events == _EVENTS_A_TURN:
                self._is_paused = True
                return False
            events += 1
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                return False
            if isinstance(event, h11.Data):
                response.add(event.data)
            elif isinstance(event, h11.Response):
                headers = event.headers.raw_items()
                response.begin(event.status_code, headers)
                if {"content-length", "transfer-encoding"} <= response.headers.keys():
                    raise MuddledError(gettext("an answer with two lengths: Content-Length and Transfer-Encoding"))
            elif isinstance(event, h11.InformationalResponse):
                self._interim += 1
                if self._interim > _MAX_INTERIM_RESPONSES:
                    raise MuddledError(gettext("one interim answer after the other"))
            else:  # its end; or the tunnel begins
                response.complete = True
        return True

    def _check_end(self) -> None:
        rest = self._http.trailing_data[0]
        try:
            more = b"" if rest else self._stream.receive_now()
        except OSError:  # broken after a complete answer
            more = b""
        if rest or more:
            self.is_muddled = True
            raise MuddledError(gettext("more came than one answer"))
        if more is None and self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            self.is_reusable = True


def decompress_body(response: WireResponse) -> tuple[bytes, bool, bool]:
    """Return a body up to its limit (as it came if damaged; G27), whether there is more, whether it is damaged."""
    packed = bytes(response.content)
    coding = response.headers.get("content-encoding", "").strip().lower()
    if coding not in _CODINGS or not packed.startswith(_MAGIC_BYTES):
        return packed, response.over, False
    content, left = bytearray(), packed
    try:
        while left and len(content) <= response.limit:  # a body may have several members
            member = zlib.decompressobj(wbits=_GZIP_OR_ZLIB_WBITS)
            content += member.decompress(left, response.limit + 1 - len(content))
            if not member.eof and len(content) <= response.limit:
                return packed, response.over, not response.over
            left = member.unused_data
    except zlib.error:
        return packed, response.over, not response.over
    return bytes(content), response.over or len(content) > response.limit, False
