"""Requests over a transport of httpx's: an ASGI app in this process, or one that the caller has made.

What httpx raises becomes what a :class:`~bizverify.client.connection.Connection` raises.
"""

from __future__ import annotations

import math
import ssl
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import httpx

from bizverify.client.connection import Answer, Request, UnreachableError
from bizverify.client.multipart import Body

_NEVER_SENT = (httpx.ConnectError, httpx.PoolTimeout, httpx.ProxyError, httpx.UnsupportedProtocol)


def asgi_transport(app: Any) -> httpx.AsyncBaseTransport:
    """A transport to an ASGI app in this process."""
    return httpx.ASGITransport(app)


class Adapter:
    """Sends requests for ``origin`` over a transport of httpx's."""

    def __init__(self, transport: httpx.AsyncBaseTransport, origin: str) -> None:
        self._transport = transport
        self._origin = origin

    async def exchange(self, request: Request, answer: Answer) -> None:
        """Send the request and read its answer, as a connection does."""
        over = True
        with anyio.move_on_after(math.inf if request.watch else request.patience) as scope:
            try:
                await self._exchange(request, answer, scope)
            except httpx.ConnectTimeout:
                raise UnreachableError(f"no connection within {request.timeouts.connect:g} s") from None
            except _NEVER_SENT as error:
                raise _certificate_error(error) or UnreachableError(f"cannot connect ({error})") from error
            except httpx.TimeoutException:
                raise TimeoutError from None
            except httpx.TransportError as error:
                if not answer.over:
                    raise OSError(str(error)) from error
            over = False
        if over:
            raise TimeoutError(f"no end of the answer within {request.patience:g} s")

    async def _exchange(self, request: Request, answer: Answer, scope: anyio.CancelScope) -> None:
        parts = request.timeouts
        waits = {"connect": parts.connect, "read": parts.read, "write": parts.write, "pool": parts.connect}
        asked = httpx.Request(
            request.method,
            self._origin + request.target,
            headers=request.headers,
            stream=_Sending(request.body),
            extensions={"timeout": waits},
        )
        response = await self._transport.handle_async_request(asked)
        if request.watch:
            scope.deadline = anyio.current_time() + request.patience
        try:
            answer.begin(response.status_code, response.headers.raw)
            assert isinstance(response.stream, httpx.AsyncByteStream)  # noqa: S101 - of an async transport it is
            async for chunk in response.stream:
                if answer.over:
                    continue
                answer.add(chunk)
                line = response.extensions.get("network_stream")
                if answer.over and line is not None:  # breaks the iteration: trio warns of generators that are left
                    await line.aclose()
        finally:
            with anyio.CancelScope(shield=True):
                await response.aclose()


class _Sending(httpx.AsyncByteStream):
    """A body as httpx's transports read it."""

    def __init__(self, body: Body | None) -> None:
        self._body = body

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self._body is None:
            raise StopAsyncIteration
        return await self._body.__anext__()


def _certificate_error(error: BaseException) -> ssl.SSLCertVerificationError | None:
    """What the TLS library said of a certificate, if that is what an error is about."""
    return next((one for one in _chain(error) if isinstance(one, ssl.SSLCertVerificationError)), None)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
