"""Bound slow and oversized requests: bodies, bodies of refused requests, and connections (what uvicorn leaves open)."""

from __future__ import annotations

import asyncio
import re
import sys
from http import HTTPStatus
from typing import Any, Final, TypeVar

import anyio
import h11
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from bizverify.server.errors import JSON, Refusal, busy, invalid, too_large

LARGEST: Final = 64 << 10
"""Bytes of an ordinary body at most."""
_PATIENCE: Final = 30.0
_TOO_LONG: Final = re.compile(r"of length <= ([0-9]+) - at `\$\.(name|address|reason)`")
_NUMBER: Final = re.compile(r"`\$\.(b_no|biz_no)`")

T = TypeVar("T")


async def read_json(request: Request, type: type[T]) -> T:
    """The body as a value of ``type``; unknown fields are ignored. Raises :class:`Refusal` 400, 408, 413, 415."""
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise Refusal(415, "unsupported_media_type", f"the body is {kind[:100]}; send application/json")
    body = await read_body(request, LARGEST)
    try:
        return msgspec.json.decode(body, type=type)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _too_long(str(error), body) or invalid(
            f"the body is not as it should be: {_explain_decode_error(error)}"
        ) from None


def _too_long(error: str, body: bytes) -> Refusal | None:
    """Return the refusal of a text that is longer than its field may be; ``None`` where something else is wrong."""
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
    message = f"{name} has {length:,} characters; at most {limit:,} are taken: shorten it"
    return Refusal(400, "invalid_request", message, field=name, length=length, limit=limit)


def _explain_decode_error(error: Exception) -> str:
    """What is wrong; of a business number, what is wanted, for msgspec says only which check failed."""
    text = str(error)
    if (place := _NUMBER.search(text)) and not text.startswith("Expected `str`, got"):
        return f"{place[1]} must be a business number: ten digits without hyphens or blanks, not all zero"
    return text


async def read_body(request: Request, limit: int) -> bytes:
    """The body, ``limit`` bytes at most, within half a minute."""
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > limit:
        raise too_large("the request", limit, "bytes")
    body, more = bytearray(), True
    try:
        async with asyncio.timeout(_PATIENCE):  # anyio's takes ten times as long to set up
            while more:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise invalid("the connection was closed before the body was complete")
                body += message.get("body", b"")
                more = message.get("more_body", False)
                if len(body) > limit:
                    raise too_large("the request", limit, "bytes")
    except TimeoutError:
        raise Refusal(408, "timeout", f"the body did not come within {_PATIENCE:g} s") from None
    return bytes(body)


def refuse_two_lengths(scope: Scope) -> None:
    """Raise :class:`Refusal` 400, which closes the connection, where ``Content-Length`` and ``Transfer-Encoding`` came.

    A proxy in front that believes the other one of the two would take the rest of a body for the next request.
    """
    if {b"content-length", b"transfer-encoding"} <= {name for name, _ in scope["headers"]}:
        message = "the request has Content-Length and Transfer-Encoding; send one of the two"
        raise Refusal(400, "bad_http", message, headers={"Connection": "close"})


LINGER_SECONDS: Final = 10.0


class IncomingBody:
    """The messages of a request, which knows whether more of the body is to come."""

    def __init__(self, receive: Receive, scope: Scope) -> None:
        self._receive = receive
        self._more = any(
            name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
            for name, value in scope["headers"]
        )

    async def __call__(self) -> Message:
        """The next message."""
        message = await self._receive()
        self._more = message["type"] == "http.request" and message.get("more_body", False)
        return message

    async def answer(self, response: Response, scope: Scope, send: Send) -> None:
        """Send a response, and end it when the body has come in, the client is gone, or ten seconds have passed."""
        if not self._more:
            await response(scope, self, send)
            return

        async def send_and_drain(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                return
            await send({**message, "more_body": True})
            with anyio.move_on_after(LINGER_SECONDS):
                while self._more:
                    await self()
            await send({"type": "http.response.body", "body": b""})

        await response(scope, self, send_and_drain)


HEAD_BYTES: Final = 32 << 10
"""Bytes of a request's line and headers at most (more: 431)."""
HEAD_SECONDS: Final = 15.0
"""Seconds in which the head of a request must have come (else: 408)."""
STUCK_SECONDS: Final = 60.0
"""Seconds in which a client must take what was sent to it (else the connection is cut off)."""
_HEAD_END: Final = re.compile(rb"\n\r?\n")
_HEAD_TOO_LARGE: Final = f"the head of the request is too large: at most {HEAD_BYTES:,} bytes are taken"


class BoundedConnection(H11Protocol):
    """An HTTP/1.1 connection with deadlines; what is no HTTP is refused in the one error shape."""

    _deadline: asyncio.TimerHandle | None = None
    _stuck: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the head of the first request."""
        super().connection_made(transport)
        self._wait(HEAD_SECONDS, self._too_slow)
        most, self.limit_concurrency = self.limit_concurrency, None  # uvicorn's own refusal has not the one shape
        if most is not None and len(self.connections) > most:
            self.app = _refuse_connection

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadlines."""
        self._wait(None)
        self._cancel_stuck()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Begin to wait for the client to take what was sent."""
        super().pause_writing()
        self._stuck = self.loop.call_later(STUCK_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """It was taken."""
        self._cancel_stuck()
        super().resume_writing()

    def _cancel_stuck(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    def data_received(self, data: bytes) -> None:
        """Take what came. A head that has begun is waited for until its deadline, however often a byte of it comes."""
        if self._too_long(data):
            return
        super().data_received(data)
        if self.conn.our_state is h11.DONE or self.transport.is_closing():
            return  # the answer is out: what still comes is read until its own deadline
        if self.conn.their_state is not h11.IDLE:
            self._wait(None)
        elif self._deadline is None:
            self._wait(HEAD_SECONDS, self._too_slow)

    def _too_long(self, data: bytes) -> bool:
        """Refuse a head that is too large though it came at once: h11 looks only at one that is not whole."""
        if self.conn.their_state is not h11.IDLE or self.conn.our_state is not h11.IDLE:
            return False
        come = self.conn.trailing_data[0] + data
        if len(come) <= HEAD_BYTES or ((end := _HEAD_END.search(come)) and end.start() <= HEAD_BYTES):
            return False
        self._wait(None)
        self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "bad_http", _HEAD_TOO_LARGE)
        return True

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the rest of this one's body."""
        unread = self.conn.their_state is h11.SEND_BODY
        super().on_response_complete()
        if unread and not self.transport.is_closing():
            # uvicorn reads it on without end where the connection is kept; where it is closed, `IncomingBody` reads
            self._wait(LINGER_SECONDS, self.transport.close)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, or a head that is too large."""
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
        """Answer by hand and close: there is no request that the app could be asked about."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
            return
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
        """Set the one deadline of this connection in the place of the one before."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, then)


async def _refuse_connection(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer in the app's place where there are too many connections."""
    refusal = busy("the server has as many connections as it takes on", 5)
    refusal.headers["Connection"] = "close"
    await refusal.response()(scope, receive, send)
