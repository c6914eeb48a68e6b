"""One HTTP/1.1 connection with deadlines, its place among the others, and refusals in the one error shape."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final

import h11
import msgspec
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from bansong.server.connection_table import ConnectionTable, Wait
from bansong.server.errors import JSON, Refusal
from bansong.server.http_limits import LINGER_SECONDS, ON_DRAIN
from bansong.translation import use_language

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
