"""The only import of httpx and of httpcore below it, for a fork with the same names; and a network that is watched.

Import this module only where something is sent: that takes 0.1 s. ``.ci/httpx2`` tests it with httpx2.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

import httpcore
import httpx

__all__ = ["Network", "StaleError", "WatchedStream", "httpcore", "httpx"]

_CHUNK_BYTES: Final = 64 * 1024
_LOOK_S: Final = 0.01  # timeout for reading bytes that have arrived: a TLS record may hold none of an answer
_END_OF_HEAD: Final = b"\r\n\r\n"
_INTERIM: Final = (b"HTTP/1.1 1", b"HTTP/1.0 1")  # the statuses 100 to 199, which come before the final one


class StaleError(httpcore.ConnectError):
    """A kept connection ended, or had surplus bytes, before a request was sent. Nothing was sent."""


class WatchedStream(httpcore.AsyncNetworkStream):
    """A TCP or TLS stream that sends no request after surplus bytes, which would pass for its response."""

    def __init__(self, stream: httpcore.AsyncNetworkStream) -> None:
        self._stream = stream
        self._ahead: bytes | None = None
        self._is_closed = False
        self._begin_response()

    def _begin_response(self) -> None:
        self._head = b""
        self._has_head = False
        self._head_bytes = self._received_bytes = 0

    def surplus(self, body_bytes: int) -> int | None:
        """Return how many bytes came after the response; ``None`` if its header was not seen."""
        return self._received_bytes - self._head_bytes - body_bytes if self._has_head else None

    async def look(self) -> bytes | None:
        """Return bytes that have arrived unread: ``None`` if there are none yet, ``b""`` if the connection ended."""
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
        if self._received_bytes:  # of an earlier response
            if await self.look() is not None:
                raise StaleError
            self._begin_response()
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        self._is_closed = True
        await self._stream.aclose()

    async def start_tls(self, *given: Any, **options: Any) -> httpcore.AsyncNetworkStream:
        self._stream = await self._stream.start_tls(*given, **options)
        self._begin_response()
        return self

    def get_extra_info(self, info: str) -> Any:
        # httpcore would silently close a connection with unexpected bytes
        return False if info == "is_readable" else self._stream.get_extra_info(info)


class Network(httpcore.AnyIOBackend):
    """The network of one connection: opens it, and shows bytes before they are read."""

    stream: WatchedStream | None = None

    async def connect_tcp(self, *given: Any, **options: Any) -> httpcore.AsyncNetworkStream:
        self.stream = WatchedStream(await super().connect_tcp(*given, **options))
        return self.stream

    async def look(self) -> bytes | None:
        """See :meth:`WatchedStream.look`; ``None`` also before the connection is open."""
        return None if self.stream is None else await self.stream.look()

    def surplus(self, length: str) -> int | None:
        """Return how many bytes came after a response with a body of ``length`` bytes; ``None`` if unknown."""
        return self.stream.surplus(int(length)) if self.stream is not None and length.isdecimal() else None
