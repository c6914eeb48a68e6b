"""Byte streams over sockets that never block, plain and with TLS, under asyncio and trio.

What has arrived can be looked at without waiting for it. That is what anyio's own streams do not offer, and what tells
bytes that nobody asked for, an answer in the middle of an upload (also under TLS), and an answer that arrived while
this process slept.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterable
from contextlib import suppress
from itertools import chain, zip_longest
from typing import Any, Final, Protocol, Self

import anyio

_CHUNK: Final = 64 * 1024
_HEAD_START: Final = 0.25  # seconds that an address is waited for before the next one is tried, too (RFC 8305)


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


class PlainStream:
    """A TCP connection."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected

    async def send(self, data: bytes) -> None:
        """Return when the network has taken all of it."""
        view = memoryview(data)
        while view:
            try:
                view = view[self._socket.send(view) :]
            except (BlockingIOError, InterruptedError):
                await anyio.wait_writable(self._socket)

    def receive_now(self) -> bytes | None:
        """Return what has arrived, ``None`` if nothing has, ``b""`` at the end."""
        try:
            return self._socket.recv(_CHUNK)
        except (BlockingIOError, InterruptedError):
            return None

    async def readable(self) -> None:
        """Wait until there is something to receive."""
        await anyio.wait_readable(self._socket)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class TlsStream:
    """TLS over another stream; made by :meth:`over`."""

    def __init__(self, inner: Stream, context: ssl.SSLContext, host: str) -> None:
        self._inner = inner
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._is_cut = False  # closed underneath, and not, until then, by TLS itself
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)

    @classmethod
    async def over(cls, inner: Stream, context: ssl.SSLContext, host: str) -> Self:
        """Shake hands with ``host``. Raises :class:`ssl.SSLError`, also for a certificate that is not trusted."""
        stream = cls(inner, context, host)
        while True:
            try:
                stream._tls.do_handshake()
            except ssl.SSLWantReadError:
                await inner.send(stream._outgoing.read())
                while not stream._take_in():
                    await inner.readable()
            except ssl.SSLError:
                with suppress(OSError):
                    await inner.send(stream._outgoing.read())  # the alert tells the other side why
                raise
            else:
                await inner.send(stream._outgoing.read())
                return stream

    async def send(self, data: bytes) -> None:
        """Return when the network has taken all of it."""
        if data:
            self._tls.write(data)
            await self._inner.send(self._outgoing.read())

    def receive_now(self) -> bytes | None:
        """Return what has arrived, ``None`` if nothing has (tickets are nothing), ``b""`` at the end.

        An end that TLS does not confirm is an :class:`OSError`: anyone on the way may have cut the connection.
        """
        while True:
            try:
                data = self._tls.read(_CHUNK)
            except ssl.SSLWantReadError:
                if not self._take_in():
                    return None
                continue
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                data = b""
            if not data and self._is_cut:
                raise ConnectionAbortedError("TLS was cut off, without its end")
            return data

    async def readable(self) -> None:
        """Wait until there is something to decrypt."""
        await self._inner.readable()

    def close(self) -> None:
        """Close the stream underneath."""
        self._inner.close()

    def _take_in(self) -> bool:
        """Hand what has arrived to the TLS library; whether there was anything."""
        data = self._inner.receive_now()
        if data:
            self._incoming.write(data)
        elif data is not None:
            self._incoming.write_eof()
            self._is_cut = True
        return data is not None


async def connect_tcp(host: str, port: int) -> PlainStream:
    """Connect to the first of the host's addresses that answers, IPv6 and IPv4 by turns. Raises :class:`OSError`."""
    found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    connected: list[socket.socket] = []
    errors: list[OSError] = []

    async def attempt(family: int, address: Any, failed: anyio.Event) -> None:
        try:
            one = await _connected(family, address)
        except OSError as error:
            errors.append(error)
            failed.set()
        else:
            connected.append(one)
            attempts.cancel_scope.cancel()

    try:
        async with anyio.create_task_group() as attempts:
            for family, address in _by_turns((found_family, to) for found_family, _, _, _, to in found):
                failed = anyio.Event()
                attempts.start_soon(attempt, family, address, failed)
                with anyio.move_on_after(_HEAD_START):
                    await failed.wait()
    except BaseException:  # cancelled, when one was connected already
        for one in connected:
            one.close()
        raise
    for late in connected[1:]:
        late.close()
    if not connected:
        raise errors[0] if errors else OSError(f"{host} has no address")
    return PlainStream(connected[0])


def _by_turns(found: Iterable[tuple[int, Any]]) -> list[tuple[int, Any]]:
    """The addresses, first the family that the system prefers, then one of each by turns."""
    addresses = list(dict.fromkeys(found))
    preferred = [one for one in addresses if one[0] == addresses[0][0]]
    other = [one for one in addresses if one[0] != addresses[0][0]]
    return [one for one in chain.from_iterable(zip_longest(preferred, other)) if one is not None]


async def _connected(family: int, address: Any) -> socket.socket:
    new = socket.socket(family, socket.SOCK_STREAM)
    try:
        new.setblocking(False)
        new.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            new.connect(address)
        except BlockingIOError:
            await anyio.wait_writable(new)
            fault = new.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if fault:
                raise OSError(fault, os.strerror(fault)) from None
    except BaseException:
        new.close()
        raise
    return new
