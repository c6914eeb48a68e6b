"""Bounds on the bodies of requests, also of refused ones. Connections: ``bounded_connection``."""

from __future__ import annotations

import asyncio
import re
from typing import Final, TypeVar

import anyio
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from bansong.library_messages import describe_library_error
from bansong.server.errors import Refusal, invalid, too_large
from bansong.translation import gettext

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
