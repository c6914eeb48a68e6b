"""One HTTP/1.1 connection to the service: a request out, its answer in (h11 reads and writes the protocol).

Nothing but one complete answer to one request is ever taken from it. Bytes that follow the answer, or that are there
before anything was asked, belong to nobody: they could be taken for the answer to the next request.

---
An answer's body, unpacked if it is compressed, no further than its limit (G27).
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

from bizverify.client.network import Timeouts
from bizverify.client.request import RequestBody

_LONGEST_HEAD: Final = 64 * 1024
_MOST_INTERIM: Final = 100  # of answers like 100 and 103, which a service may send before the real one
_AT_A_STRETCH: Final = 16  # pieces that are read before other tasks have a turn
_EVENTS: Final = 256  # at a stretch: a piece may hold thousands, of a byte each
_LAST_PIECES: Final = 1024  # and when the time is over: no more than a socket can hold

RawHeaders = list[tuple[bytes, bytes]]


class Stream(Protocol):
    """Bytes to and from the other side. What breaks is an :class:`OSError`."""

    async def send(self, data: bytes) -> None:
        """Return when the network has taken all of it."""

    def receive_now(self) -> bytes | None:
        """Return what has arrived, ``None`` if nothing has, ``b""`` at the end."""

    async def readable(self) -> None:
        """Wait until :meth:`receive_now`, which had nothing, may have something."""

    def close(self) -> None:
        """Close it, without a word to the other side."""


class UnreachableError(Exception):
    """There is no connection: nothing was sent."""


class MuddledError(Exception):
    """It cannot be told where the answer ends, so it may be another request's."""


@dataclass(frozen=True, slots=True)
class WireRequest:
    """A request as it goes over the wire; the key is in its ``headers``. ``watch``: look for an answer while sending.

    ``patience``: seconds for the whole exchange, however alive the service is; with ``watch``, which is for uploads,
    they count from the last byte sent.
    """

    method: str
    target: str
    headers: RawHeaders = field(repr=False)
    body: RequestBody | None
    timeouts: Timeouts
    patience: float
    watch: bool = False


@dataclass(slots=True)
class WireResponse:
    """What has come of an answer so far, at most ``limit`` bytes.

    ``over`` says that there is more, ``complete`` that its end has come. With ``bare_refusal`` nothing is read of the
    body of one that refuses.
    """

    limit: int
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    content: bytearray = field(default_factory=bytearray, repr=False)
    over: bool = False
    complete: bool = False
    bare_refusal: bool = False

    def begin(self, status: int, headers: RawHeaders) -> None:
        """Take down the head; fields that are there several times are joined."""
        joined: dict[str, str] = {}
        for raw, value in headers:
            name, text = raw.decode("ascii").lower(), value.decode("latin-1")
            joined[name] = f"{joined[name]}, {text}" if name in joined else text
        self.status, self.headers = status, joined
        self.over = self.bare_refusal and not 200 <= status < 300

    def add(self, data: bytes | bytearray) -> None:
        """Take down a piece of the body."""
        self.content += data
        self.over = len(self.content) > self.limit


class HttpConnection:
    """A connection that is open; one request at a time.

    ``seconds``: how long its last exchange took. ``is_muddled``: bytes came over it that belong to no request.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_LONGEST_HEAD)
        self._interim = 0
        self.is_reusable, self.is_muddled = True, False
        self._is_paused = False
        self.seconds = 0.0

    def close(self) -> None:
        """Close it."""
        self.is_reusable = False
        self._stream.close()

    def is_silent(self) -> bool:
        """Whether nothing has come, neither bytes nor an end, since the last answer."""
        try:
            data = self._stream.receive_now()
        except OSError:
            return False
        self.is_muddled |= bool(data)
        return data is None

    async def exchange(self, request: WireRequest, answer: WireResponse) -> None:
        """Send the request and read its answer into ``answer``, also what there is of one that breaks off.

        Raises :class:`TimeoutError`, :class:`MuddledError`, :class:`OSError` and h11's errors; after any of them, or
        cancelled, it is of no more use.
        """
        self.is_reusable, self._interim = False, 0
        began = anyio.current_time()
        end = math.inf if request.watch else began + request.patience
        with anyio.CancelScope(deadline=end) as scope:
            try:
                await self._send(request, answer, scope, end)
            except OSError:  # it may have been answered before it was closed
                if request.body is not None and request.body.failure is not None:
                    raise
                self._http.send_failed()
            if request.watch:
                end = anyio.current_time() + request.patience
            await self._receive(request, answer, scope, end)
        if scope.cancelled_caught and not self._received(answer):
            over = anyio.current_time() >= end
            raise TimeoutError(f"no end of the answer within {request.patience:g} s" if over else "")
        self.seconds = anyio.current_time() - began
        if not answer.over:
            self._end()

    async def _send(self, request: WireRequest, answer: WireResponse, scope: anyio.CancelScope, end: float) -> None:
        """Hand the request to the network; no more of it as soon as it is answered."""
        head = h11.Request(method=request.method, target=request.target, headers=request.headers)
        data = self._http.send(head) or b""
        body = request.body
        while body is not None:
            if request.watch and not body.complete and self._answered(answer):
                return
            scope.deadline = end  # what is awaited before the last byte, the ledger, has no time of its own
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

    async def _receive(self, request: WireRequest, answer: WireResponse, scope: anyio.CancelScope, end: float) -> None:
        pieces = 0
        while not self._read_on(answer):
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
            if pieces % _AT_A_STRETCH == 0:
                await anyio.lowlevel.checkpoint()

    def _answered(self, answer: WireResponse) -> bool:
        """Whether an answer, or the end of the connection, came while the request was still being sent."""
        data = self._stream.receive_now()
        if data is not None:
            self._http.receive_data(data)
            return not data or self._read_on(answer) or answer.status is not None
        return False

    def _received(self, answer: WireResponse) -> bool:
        """Whether all of the answer has arrived, although nobody saw it in time: a machine may have slept."""
        for _ in range(_LAST_PIECES):
            if self._read_on(answer):
                return True
            if self._is_paused:
                continue
            data = self._stream.receive_now()
            if data is None:
                break
            self._http.receive_data(data)
        return False

    def _read_on(self, answer: WireResponse) -> bool:
        """Take the answer from what was received; whether that is all of it, or more than is wanted.

        ``_is_paused`` says that more of it can be taken already.
        """
        events, self._is_paused = 0, False
        while not (answer.over or answer.complete):
            if events == _EVENTS:
                self._is_paused = True
                return False
            events += 1
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                return False
            if isinstance(event, h11.Data):
                answer.add(event.data)
            elif isinstance(event, h11.Response):
                headers = event.headers.raw_items()
                answer.begin(event.status_code, headers)
                if {"content-length", "transfer-encoding"} <= answer.headers.keys():
                    raise MuddledError("an answer with two lengths: Content-Length and Transfer-Encoding")
            elif isinstance(event, h11.InformationalResponse):
                self._interim += 1
                if self._interim > _MOST_INTERIM:
                    raise MuddledError("one interim answer after the other")
            else:  # its end; or the tunnel begins
                answer.complete = True
        return True

    def _end(self) -> None:
        """Look at what comes with the answer's end: the connection may serve again if that is nothing at all."""
        rest = self._http.trailing_data[0]
        more: bytes | None = b""
        if not rest:
            try:
                more = self._stream.receive_now()
            except OSError:  # answered, and broken then: that is nothing to the answer
                more = b""
        if rest or more:
            self.is_muddled = True
            raise MuddledError("more came than one answer")
        if more is None and self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            self.is_reusable = True


_CODINGS: Final = ("gzip", "x-gzip", "deflate")
_STARTS: Final = (b"\x1f\x8b", b"\x78")
_EITHER: Final = 47  # gzip or zlib, whichever it is


def decompress_body(answer: WireResponse) -> tuple[bytes, bool, bool]:
    """Return an answer's body, whether there is more of it, and whether it is damaged: cut off, or of a wrong sum.

    A damaged one, and one that is not compressed although its head says so, are returned as they came.
    """
    packed = bytes(answer.content)
    coding = answer.headers.get("content-encoding", "").strip().lower()
    if coding not in _CODINGS or not packed.startswith(_STARTS):
        return packed, answer.over, False
    content, left = bytearray(), packed
    try:
        while left and len(content) <= answer.limit:  # it may be several, one behind the other
            member = zlib.decompressobj(wbits=_EITHER)
            content += member.decompress(left, answer.limit + 1 - len(content))
            if not member.eof and len(content) <= answer.limit:
                return packed, answer.over, not answer.over
            left = member.unused_data
    except zlib.error:
        return packed, answer.over, not answer.over
    return bytes(content), answer.over or len(content) > answer.limit, False
