"""Reading the body of an ordinary request: bounded in size and time, its fields checked."""

from __future__ import annotations

import asyncio
import re
from typing import Final, TypeVar

import msgspec
from starlette.requests import Request

from bizverify.server.refusals import Refusal, invalid, too_large

LARGEST: Final = 64 << 10
"""Bytes of an ordinary body at most."""
_PATIENCE: Final = 30.0
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
        raise invalid(f"the body is not as it should be: {_told(error)}") from None


def _told(error: Exception) -> str:
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
