"""Connections of httpcore whose bytes are counted and can be looked at.

httpcore takes whatever comes first over a connection for the next answer, and hides the bytes behind one.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

import httpcore

_CHUNK_BYTES: Final = 64 * 1024
_LOOK_S: Final = 0.01  # for bytes that have arrived: a record of TLS may hold no answer
_END_OF_HEAD: Final = b"\r\n\r\n"
_INTERIM: Final = (b"HTTP/1.1 1", b"HTTP/1.0 1")  # the statuses 100 to 199, which come before the real one


class StaleError(httpcore.ConnectError):
    """Something came over a kept connection, or it ended, before a request was sent: none was."""


class WatchedStream(httpcore.AsyncNetworkStream):
    """A connection, plain or TLS; it takes no request after bytes that belong to none."""

    def __init__(self, stream: httpcore.AsyncNetworkStream) -> None:
        self._stream = stream
        self._ahead: bytes | None = None
        self._is_closed = False
        self._begin()

    def _begin(self) -> None:
        # a response
        self._head = b""
        self._has_head = False
        self._head_bytes = self._received_bytes = 0

    def surplus(self, body_bytes: int) -> int | None:
        """Return the number of bytes behind the response, if its head was seen."""
        return self._received_bytes - self._head_bytes - body_bytes if self._has_head else None

    async def look(self) -> bytes | None:
        """Return what can be read now: ``None`` if there is nothing yet, ``b""`` after the last."""
        if self._ahead is None and self._is_closed:
            return b""
        if self._ahead is None and self._stream.get_extra_info("is_readable"):
            with suppress(httpcore.ReadTimeout):  # session tickets of TLS are no answer
                try:
                    self._ahead = await self._stream.read(_CHUNK_BYTES, _LOOK_S)
                except httpcore.ReadError:
                    self._ahead = b""
        return self._ahead

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data, self._ahead = self._ahead, None
        if data is None:
            data = await self._stream.read(max_bytes, timeout)
        self._received_bytes += len(data)
        if not self._has_head:
            self._head += data
        while not self._has_head and (end := self._head.find(_END_OF_HEAD)) >= 0:
            end += len(_END_OF_HEAD)
            self._has_head = not self._head.startswith(_INTERIM)
            self._head_bytes += end
            self._head = self._head[end:]
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if self._received_bytes:  # of the response before this request
            if await self.look() is not None:
                raise StaleError
            self._begin()
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        self._is_closed = True
        await self._stream.aclose()

    async def start_tls(self, *given: Any, **options: Any) -> httpcore.AsyncNetworkStream:
        self._stream = await self._stream.start_tls(*given, **options)
        self._begin()
        return self

    def get_extra_info(self, info: str) -> Any:
        # httpcore would close a connection over which something came unasked, and never say so
        return False if info == "is_readable" else self._stream.get_extra_info(info)


class Network(httpcore.AnyIOBackend):
    """Connects, and shows what came over its connection before it is read."""

    stream: WatchedStream | None = None

    async def connect_tcp(self, *given: Any, **options: Any) -> httpcore.AsyncNetworkStream:
        self.stream = WatchedStream(await super().connect_tcp(*given, **options))
        return self.stream

    async def look(self) -> bytes | None:
        """Return what can be read now: ``None`` if there is nothing (yet), ``b""`` after the last."""
        return None if self.stream is None else await self.stream.look()

    def surplus(self, length: str) -> int | None:
        """Return the number of bytes behind a response with a body of ``length``, if that is known."""
        return self.stream.surplus(int(length)) if self.stream is not None and length.isdecimal() else None
