"""Connections to one service, over TCP, TLS and the environment's proxy, kept for a while.

The sockets never block, under asyncio and trio, and received bytes can be examined without waiting, which anyio's
streams do not offer. This shows unsolicited bytes, an answer during an upload (also under TLS), and an answer that
arrived while this process slept.
"""

from __future__ import annotations

import os
import socket
import ssl
from base64 import b64encode
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from typing import Any, Final, Self
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import anyio
import h11

from bansong.base.errors import Problem, UsageError
from bansong.base.messages import Phrase, describe_os_error, gettext
from bansong.client.address import BaseUrl
from bansong.client.connection import HttpConnection, MuddledError, Stream, UnreachableError, WireRequest, WireResponse
from bansong.client.request import Timeouts

PROXY_UNUSABLE: Final = Problem(
    "service.proxy_unusable", "the environment's proxy is {fault}; set {upper}_PROXY to an http:// one, or NO_PROXY"
)

_CHUNK_BYTES: Final = 64 * 1024
_HEAD_START_S: Final = 0.25  # of an address before the next one is tried, too (RFC 8305)
_KEEP_ALIVE_S: Final = 2.0  # a server that is closing an idle connection would turn a paid request into a doubt
_MIN_REST_S: Final = 0.01  # for surplus bytes of a broken service to show
_PORTS: Final = {"http": 80, "https": 443}
_PROXY_ANSWER_BYTES: Final = 64 * 1024
_PROXY_LOGIN: Final = 407


class PlainStream:
    """A TCP connection."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected

    async def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[self._socket.send(view) :]
            except (BlockingIOError, InterruptedError):
                await anyio.wait_writable(self._socket)

    def receive_now(self) -> bytes | None:
        try:
            return self._socket.recv(_CHUNK_BYTES)
        except (BlockingIOError, InterruptedError):
            return None

    async def readable(self) -> None:
        await anyio.wait_readable(self._socket)

    def close(self) -> None:
        self._socket.close()


class TlsStream:
    """TLS over another stream, made by :meth:`over`."""

    def __init__(self, inner: Stream, context: ssl.SSLContext, host: str) -> None:
        self._inner = inner
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._is_cut = False  # closed underneath before TLS ended
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)

    @classmethod
    async def over(cls, inner: Stream, context: ssl.SSLContext, host: str) -> Self:
        """Shake hands with ``host``; raise :class:`ssl.SSLError`, also for an untrusted certificate."""
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
        if data:
            self._tls.write(data)
            await self._inner.send(self._outgoing.read())

    def receive_now(self) -> bytes | None:
        """As :meth:`PlainStream.receive_now`; an end without that of TLS is an OSError: anyone may have cut it."""
        while True:
            try:
                data = self._tls.read(_CHUNK_BYTES)
            except ssl.SSLWantReadError:
                if not self._take_in():
                    return None
                continue
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                data = b""
            if not data and self._is_cut:
                raise ConnectionAbortedError(gettext("TLS was cut off, without its end"))
            return data

    async def readable(self) -> None:
        await self._inner.readable()

    def close(self) -> None:
        self._inner.close()

    def _take_in(self) -> bool:
        data = self._inner.receive_now()
        if data:
            self._incoming.write(data)
        elif data is not None:
            self._incoming.write_eof()
            self._is_cut = True
        return data is not None


AddressCheck = Callable[[str], None]  # raises for a forbidden address


def allow_any(_address: str) -> None:
    """Allow every address."""


async def connect_tcp(host: str, port: int, check: AddressCheck = allow_any) -> PlainStream:
    """Resolve once, ``check`` each address, connect to the first that answers (IPv6 and IPv4 by turns)."""
    found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for *_, to in found:
        check(str(to[0]))
    connected: list[socket.socket] = []
    errors: list[OSError] = []

    async def attempt(family: int, address: Any, failed: anyio.Event) -> None:
        try:
            one = await _connect_socket(family, address)
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
                with anyio.move_on_after(_HEAD_START_S):
                    await failed.wait()
    except BaseException:  # cancelled, when one was connected already
        for one in connected:
            one.close()
        raise
    for late in connected[1:]:
        late.close()
    if not connected:
        raise errors[0] if errors else OSError(gettext("{host} has no address", host=host))
    return PlainStream(connected[0])


def _by_turns(found: Iterable[tuple[int, Any]]) -> list[tuple[int, Any]]:
    # first the family that the system prefers
    addresses = list(dict.fromkeys(found))
    preferred = [one for one in addresses if one[0] == addresses[0][0]]
    other = [one for one in addresses if one[0] != addresses[0][0]]
    return [one for one in chain.from_iterable(zip_longest(preferred, other)) if one is not None]


async def _connect_socket(family: int, address: Any) -> socket.socket:
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


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy; ``headers`` may hold its password."""

    host: str
    port: int
    secure: bool
    headers: list[tuple[bytes, bytes]] = field(repr=False)


class Pool:
    """Idle connections; the last used is taken first, so that few stay open.

    A connection rests as long as its answer took, at least ten milliseconds: surplus bytes would be taken for the next
    answer. Once any came, no connection is reused.
    """

    def __init__(self, base: BaseUrl, proxy: Proxy | None, tls: Callable[[], ssl.SSLContext]) -> None:
        parts = urlsplit(base.origin)
        self._secure = parts.scheme == "https"
        self._host, self._port = str(parts.hostname), parts.port or _PORTS[parts.scheme]
        self._proxy = proxy
        self._tls = tls
        self._idle: list[tuple[float, HttpConnection]] = []  # with the time at which its rest ends
        self._may_keep = True

    async def take(self, timeouts: Timeouts, *, new: bool = False) -> HttpConnection:
        """Return an unused connection without received bytes; raise :class:`UnreachableError`."""
        now = anyio.current_time()
        self._drop_old(now)
        for place in () if new else range(len(self._idle) - 1, -1, -1):
            if self._idle[place][0] > now:
                continue
            _, kept = self._idle.pop(place)
            if kept.is_silent():
                return kept
            self._drop(kept)
            if not self._may_keep:
                break
        fresh = await self._open_connection(timeouts)
        if fresh.is_silent():
            return fresh
        fresh.close()
        raise UnreachableError(gettext("the other side spoke, or hung up, before it was asked"))

    def give(self, connection: HttpConnection) -> None:
        if connection.is_reusable and self._may_keep:
            self._idle.append((anyio.current_time() + _rest_after(connection.seconds), connection))
        else:
            self._drop(connection)

    def close(self) -> None:
        """Close all idle connections, and each that is given back from now on."""
        self._may_keep = False
        while self._idle:
            self._idle.pop()[1].close()

    def _drop_old(self, now: float) -> None:
        # surplus bytes on them show a broken service, too
        oldest = now - _KEEP_ALIVE_S
        old = [one for one in self._idle if one[0] < oldest]
        if old:
            self._idle = [one for one in self._idle if one[0] >= oldest]
        for _, kept in old:
            kept.is_silent()
            self._drop(kept)

    def _drop(self, connection: HttpConnection) -> None:
        # surplus bytes: no connection is trusted any more
        connection.close()
        if connection.is_muddled:
            self.close()

    async def _open_connection(self, timeouts: Timeouts) -> HttpConnection:
        if self._secure:
            self._tls()  # not within the timeout: loading takes time once
        try:
            with anyio.fail_after(timeouts.connect):
                return HttpConnection(await self._open_stream(timeouts))
        except TimeoutError:
            fault = gettext("no connection within {connect:g} s", connect=timeouts.connect)
            raise UnreachableError(self._through_proxy(fault)) from None
        except ssl.SSLCertVerificationError:
            raise
        except (OSError, ValueError, h11.ProtocolError, MuddledError) as error:
            fault = gettext("cannot connect ({error})", error=describe_os_error(error))
            raise UnreachableError(self._through_proxy(fault)) from error

    def _through_proxy(self, fault: str) -> str:
        proxy = self._proxy
        if proxy is None:
            return fault
        return gettext("{fault}, through the proxy {host}:{port}", fault=fault, host=proxy.host, port=proxy.port)

    async def _open_stream(self, timeouts: Timeouts) -> Stream:
        proxy = self._proxy
        stream: Stream = await connect_tcp(*((proxy.host, proxy.port) if proxy else (self._host, self._port)))
        try:
            if proxy is not None:
                if proxy.secure:
                    stream = await TlsStream.over(stream, self._tls(), proxy.host)
                if self._secure:
                    await self._tunnel(stream, proxy, timeouts)
            if self._secure:
                stream = await TlsStream.over(stream, self._tls(), self._host)
        except BaseException:
            stream.close()
            raise
        return stream

    async def _tunnel(self, stream: Stream, proxy: Proxy, timeouts: Timeouts) -> None:
        host = f"[{self._host}]" if ":" in self._host else self._host
        target = f"{host}:{self._port}"
        headers = [(b"Host", target.encode()), *proxy.headers]
        response = WireResponse(_PROXY_ANSWER_BYTES, bare_refusal=True)
        request = WireRequest("CONNECT", target, headers, None, timeouts, timeouts.connect)
        await HttpConnection(stream).exchange(request, response)
        if response.status is None or not 200 <= response.status < 300:
            remedy = gettext("; put its user and password into HTTPS_PROXY") if response.status == _PROXY_LOGIN else ""
            raise OSError(gettext("the proxy answered {status}{remedy}", status=response.status, remedy=remedy))


def _rest_after(seconds: float) -> float:
    return min(max(_MIN_REST_S, seconds), _KEEP_ALIVE_S)


def environment_proxy(base: BaseUrl) -> Proxy | None:
    """Return the environment's proxy for a service, if any, never for this machine; raise :class:`UsageError`."""
    if base.is_loopback or proxy_bypass(base.host.strip("[]")):
        return None
    found = getproxies()
    named = found.get(base.scheme) or found.get("all")
    if not named:
        return None
    fault: object = "no URL"
    try:
        parts = urlsplit(named if "://" in named else f"http://{named}")
        host, port = parts.hostname, parts.port
        if parts.scheme not in _PORTS:
            fault = Phrase("a {scheme} proxy, which is not supported", scheme=parts.scheme)
        elif host:
            return Proxy(host, port or _PORTS[parts.scheme], parts.scheme == "https", _credentials(parts.netloc))
    except ValueError:
        pass
    raise UsageError(PROXY_UNUSABLE, fault=fault, upper=base.scheme.upper())


def _credentials(netloc: str) -> list[tuple[bytes, bytes]]:
    user, at, _ = netloc.rpartition("@")
    if not at:
        return []
    name, _, password = user.partition(":")
    return [(b"Proxy-Authorization", b"Basic " + b64encode(f"{unquote(name)}:{unquote(password)}".encode()))]
