"""Bounds of connections and of what they send."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from enum import IntEnum
from http import HTTPStatus
from typing import Any, Final, Protocol, TypeVar

import anyio
import h11
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from bansong.base.messages import describe_library_error, gettext, use_language
from bansong.server.payloads import JSON, Refusal, busy, invalid, limit_exceeded, too_large
from bansong.server.settings import TrustedProxies, site_of

MAX_JSON_BYTES: Final = 64 << 10
"""Bytes of a JSON body."""
_BODY_TIMEOUT_S: Final = 30.0
_TOO_LONG: Final = re.compile(r"of length <= ([0-9]+) - at `\$\.(name|address|reason)`")
_NUMBER: Final = re.compile(r"`\$\.(b_no|biz_no)`")

T = TypeVar("T")


async def read_json(request: Request, type: type[T]) -> T:
    """Decode the body as ``type``; ignore unknown fields. Raises :class:`Refusal` 400, 408, 413, 415."""
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise Refusal(
            415, "unsupported_media_type", gettext("the body is {kind}; send application/json", kind=kind[:100])
        )
    body = await read_body(request, MAX_JSON_BYTES)
    try:
        return msgspec.json.decode(body, type=type)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _too_long(str(error), body) or invalid(
            gettext(
                "the body is not as it should be: {explain_decode_error}",
                explain_decode_error=_explain_decode_error(error),
            )
        ) from None


def _too_long(error: str, body: bytes) -> Refusal | None:
    if (found := _TOO_LONG.search(error)) is None:
        return None
    limit, name = int(found[1]), found[2]
    try:
        text = msgspec.json.decode(body)[name]
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):  # what stands behind the text is wrong, too
        return None
    if not isinstance(text, str):  # the field is there twice
        return None
    length = len(text)
    message = gettext(
        "{name} has {length:,} characters; at most {limit:,} are taken: shorten it",
        name=name,
        length=length,
        limit=limit,
    )
    return Refusal(400, "invalid_request", message, field=name, length=length, limit=limit)


def _explain_decode_error(error: Exception) -> str:
    """What is wrong; of a business number, what is wanted, for msgspec says only which check failed."""
    text = str(error)
    if (place := _NUMBER.search(text)) and not text.startswith("Expected `str`, got"):
        return gettext(
            "{place} must be a business number: ten digits without hyphens or blanks, not all zero", place=place[1]
        )
    return str(describe_library_error(error))


async def read_body(request: Request, limit: int) -> bytes:
    """Read the body, at most ``limit`` bytes. Raises :class:`Refusal` 400, 408, 413."""
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > limit:
        raise too_large(gettext("the request"), limit, "bytes")
    body, more = bytearray(), True
    try:
        async with asyncio.timeout(_BODY_TIMEOUT_S):  # anyio's takes ten times as long to set up
            while more:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise invalid(gettext("the connection was closed before the body was complete"))
                body += message.get("body", b"")
                more = message.get("more_body", False)
                if len(body) > limit:
                    raise too_large(gettext("the request"), limit, "bytes")
    except TimeoutError:
        raise Refusal(
            408, "timeout", gettext("the body did not come within {patience:g} s", patience=_BODY_TIMEOUT_S)
        ) from None
    return bytes(body)


def refuse_two_lengths(scope: Scope) -> None:
    """Refuse, and close the connection, if both ``Content-Length`` and ``Transfer-Encoding`` are given.

    A proxy that trusts the other header would take the rest of the body for the next request.
    """
    if {b"content-length", b"transfer-encoding"} <= {name for name, _ in scope["headers"]}:
        message = gettext("the request has Content-Length and Transfer-Encoding; send one of the two")
        raise Refusal(400, "bad_http", message, headers={"Connection": "close"})


LINGER_SECONDS: Final = 10.0
ON_DRAIN: Final = "bansong.on_drain"
"""Key of a scope: a function to call once everything is answered and only the rest of the body is read."""


class IncomingBody:
    """The messages of a request; remembers whether more of the body is to come."""

    def __init__(self, receive: Receive, scope: Scope) -> None:
        self._receive = receive
        self._more = any(
            name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
            for name, value in scope["headers"]
        )

    async def __call__(self) -> Message:
        message = await self._receive()
        self._more = message["type"] == "http.request" and message.get("more_body", False)
        return message

    async def answer(self, response: Response, scope: Scope, send: Send) -> None:
        """Send a response, but end it only after the body, a disconnect, or ten seconds."""
        if not self._more:
            await response(scope, self, send)
            return

        async def send_and_drain(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                return
            await send({**message, "more_body": True})
            if (on_drain := scope.get(ON_DRAIN)) is not None:
                on_drain()
            with anyio.move_on_after(LINGER_SECONDS):
                while self._more:
                    await self()
            await send({"type": "http.response.body", "body": b""})

        await response(scope, self, send_and_drain)


_log = logging.getLogger(__name__)
_RETRY_AFTER_S: Final = 5
_LOGGED_EVERY: Final = 60.0


class Wait(IntEnum):
    """What a connection waits for while no request of it is worked on; the first of these makes room first."""

    REQUEST = 0
    """The head of its first request, or the rest of a body whose request is answered."""
    NEXT_REQUEST = 1
    """The head of another request."""
    CLIENT = 2
    """That its client takes what was answered."""


class WaitingConnection(Protocol):
    """A connection that may have to go."""

    def make_room(self) -> None: ...


class ConnectionTable:
    """Admits connections: at most ``most``, and at most ``per_address`` of one address that is no trusted proxy.

    Of IPv6, networks of 64 bits count as one address. Where there are as many as may be, the one that has waited
    longest makes room: whoever opens connections and asks nothing locks nobody out.
    """

    def __init__(self, most: int, per_address: int, proxies: TrustedProxies) -> None:
        self._most = most
        self._per_address = per_address
        self._proxies = proxies
        self._sites: dict[WaitingConnection, str] = {}
        self._of_site: Counter[str] = Counter()
        self._waiting: tuple[dict[WaitingConnection, None], ...] = tuple({} for _ in Wait)
        self._logged = -_LOGGED_EVERY

    def __len__(self) -> int:
        return len(self._sites)

    def admit(self, connection: WaitingConnection, address: str) -> Refusal | None:
        site = site_of(address)
        refusal = None
        if self._of_site[site] >= self._per_address and not self._proxies.trusts(address):
            self._log_crowd(site)
            if not self._make_room(site):
                message = f"your address has {self._of_site[site]:,} connections, as many as one may have"
                used = self._of_site[site]
                refusal = limit_exceeded("connections_per_address", self._per_address, used, message, _RETRY_AFTER_S)
        if len(self._sites) >= self._most and not self._make_room():
            refusal = busy("the server has as many connections as it takes on", _RETRY_AFTER_S)
        self._sites[connection] = site
        self._of_site[site] += 1
        self.wait(connection, Wait.REQUEST)
        return refusal

    def wait(self, connection: WaitingConnection, what: Wait) -> None:
        if connection in self._sites and connection not in self._waiting[what]:
            self.work(connection)
            self._waiting[what][connection] = None

    def work(self, connection: WaitingConnection) -> None:
        for waiting in self._waiting:
            waiting.pop(connection, None)

    def remove(self, connection: WaitingConnection) -> None:
        site = self._sites.pop(connection, None)
        if site is None:
            return
        self.work(connection)
        self._of_site[site] -= 1
        if not self._of_site[site]:
            del self._of_site[site]

    def _make_room(self, site: str | None = None) -> bool:
        for waiting in self._waiting:
            for connection in waiting:
                if site is None or self._sites[connection] == site:
                    self.remove(connection)
                    connection.make_room()
                    return True
        return False

    def _log_crowd(self, site: str) -> None:
        now = time.monotonic()
        if now - self._logged >= _LOGGED_EVERY:
            self._logged = now
            _log.warning(
                "%s has %d connections, as many as one address may have; if it is a proxy of yours, start the server "
                "with `bansong serve --trusted-proxy ADDRESS`",
                site,
                self._per_address,
            )


HEAD_BYTES: Final = 32 << 10
"""Larger request heads are refused with 431."""
HEAD_SECONDS: Final = 15.0
"""Slower request heads are refused with 408."""
STUCK_SECONDS: Final = 60.0
"""Clients that take longer to read what was sent are cut off."""
_HEAD_END: Final = re.compile(rb"\n\r?\n")
_MAKES_ROOM: Final = "the server needs the connection for others; nothing was done, try again"
_HEAD_TOO_LARGE: Final = f"the head of the request is too large: at most {HEAD_BYTES:,} bytes are taken"


class BoundedConnection(H11Protocol):
    """An HTTP/1.1 connection with deadlines and a place in ``table``; what is no HTTP is refused in the one shape.

    ``on_refusal`` is called with what is refused here, before there is a request. ``arguments``: uvicorn's.
    """

    _awaits_head = True
    _half_closed = False
    _deadline: asyncio.TimerHandle | None = None
    _stuck: asyncio.TimerHandle | None = None

    def __init__(self, *, table: ConnectionTable, on_refusal: Callable[[Refusal], None], **arguments: Any) -> None:
        super().__init__(**arguments)
        self._table = table
        self._on_refusal = on_refusal
        self._answering = self.app
        self.app = self._answer

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait(HEAD_SECONDS, self._too_slow)
        with use_language("en"):  # told before a request is read, which might ask for another
            refusal = self._table.admit(self, self.client[0] if self.client else "")
        if refusal is not None:
            self._on_refusal(refusal)
            self._answering = _refuse_with(refusal)

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        scope[ON_DRAIN] = self._drain
        await self._answering(scope, receive, send)

    def _drain(self) -> None:
        self._table.wait(self, Wait.REQUEST)

    def make_room(self) -> None:
        self._wait(None)
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "busy", _MAKES_ROOM)
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._table.remove(self)
        self._wait(None)
        self._cancel_stuck()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._table.wait(self, Wait.CLIENT)
        self._stuck = self.loop.call_later(STUCK_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        self._cancel_stuck()
        if self._awaits_head:
            self._table.wait(self, Wait.NEXT_REQUEST)
        else:
            self._table.work(self)
        super().resume_writing()

    def _cancel_stuck(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    def data_received(self, data: bytes) -> None:
        if self._too_long(data):
            return
        super().data_received(data)
        if self.conn.our_state is h11.DONE or self.transport.is_closing():
            return  # the answer is out: what still comes is read until its own deadline
        if self.conn.their_state is not h11.IDLE:
            self._wait(None)
            if self._awaits_head:
                self._awaits_head = False
                self._table.work(self)
        elif self._deadline is None:
            self._wait(HEAD_SECONDS, self._too_slow)

    def eof_received(self) -> bool:  # type: ignore[override]
        is_whole = self.conn.their_state in (h11.DONE, h11.MUST_CLOSE)
        self._half_closed = is_whole and self.conn.our_state in (h11.SEND_RESPONSE, h11.SEND_BODY)
        return self._half_closed

    def _too_long(self, data: bytes) -> bool:
        """Refuse a large head that arrived in one piece: h11 checks only incomplete ones."""
        if self.conn.their_state is not h11.IDLE or self.conn.our_state is not h11.IDLE:
            return False
        come = self.conn.trailing_data[0] + data
        if len(come) <= HEAD_BYTES or ((end := _HEAD_END.search(come)) and end.start() <= HEAD_BYTES):
            return False
        self._wait(None)
        self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "bad_http", _HEAD_TOO_LARGE)
        return True

    def on_response_complete(self) -> None:
        unread = self.conn.their_state is h11.SEND_BODY
        super().on_response_complete()
        if self._half_closed and self.conn.their_state is not h11.DONE:  # no other whole request has come
            self.transport.close()
        elif unread and not self.transport.is_closing():
            # uvicorn reads it on without end where the connection is kept; where it is closed, `IncomingBody` reads
            self._wait(LINGER_SECONDS, self.transport.close)
            self._awaits_head = True
            self._table.wait(self, Wait.REQUEST)
        elif self.conn.their_state is h11.IDLE:  # what came already may have begun the next
            self._awaits_head = True
            self._table.wait(self, Wait.NEXT_REQUEST)

    def send_400_response(self, msg: str) -> None:
        error = sys.exception()
        hint = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        if hint == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
            msg = _HEAD_TOO_LARGE
        self._refuse(HTTPStatus(hint), "bad_http", msg)

    def _too_slow(self) -> None:
        if self.transport.is_closing():
            return
        if not self.conn.trailing_data[0]:  # nothing was asked
            self.transport.close()
            return
        self._refuse(HTTPStatus.REQUEST_TIMEOUT, "timeout", f"the head did not come within {HEAD_SECONDS:g} s")

    def _refuse(self, status: HTTPStatus, code: str, message: str) -> None:
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
            return
        self._on_refusal(Refusal(status, code, message))
        body = msgspec.json.encode({"error": {"code": code, "message": message}})
        headers = [("Content-Type", JSON), ("Content-Length", str(len(body))), ("Connection", "close")]
        for event in (
            h11.Response(status_code=status, headers=headers, reason=status.phrase.encode()),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _wait(self, seconds: float | None, then: Any = None) -> None:
        """Replace the one deadline of this connection."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, then)


def _refuse_with(refusal: Refusal) -> Any:
    refusal.headers["Connection"] = "close"

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await refusal.response()(scope, receive, send)

    return answer
