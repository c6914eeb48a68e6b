"""Requests over a transport of httpx's: an ASGI app in this process, or one that the caller has made.

What httpx raises becomes what a :class:`~bizverify.client.connection.HttpConnection` raises.

---
One request out, one reply or one error of the tree back: the key, the headers, and what an answer means.

Requests go over connections of our own (:mod:`bizverify.client.connection`), which know of no cookies, redirects or
credentials from ``.netrc``: none of these may a paid request have. The key is put into a request that no user sees,
just before it goes, and for the configured origin only; no error keeps a frame of the network's.
"""

from __future__ import annotations

import logging
import math
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import anyio
import h11
import httpx

from bizverify.client.base_url import BaseUrl
from bizverify.client.connection import MuddledError, UnreachableError, WireRequest, WireResponse, decompress_body
from bizverify.client.error_mapping import RAW_KEPT, one_line, seconds_to_wait, status_error
from bizverify.client.key import ApiKey
from bizverify.client.network import Timeouts
from bizverify.client.pool import Pool, environment_proxy
from bizverify.client.request import ORDINARY, RequestBody, request_id_of, user_agent
from bizverify.errors import CertificateError, DoubtError, NotSentError, ServiceError, ShapeError, UsageError

_NEVER_SENT = (httpx.ConnectError, httpx.PoolTimeout, httpx.ProxyError, httpx.UnsupportedProtocol)


def asgi_transport(app: Any) -> httpx.AsyncBaseTransport:
    """A transport to an ASGI app in this process."""
    return httpx.ASGITransport(app)


class HttpxAdapter:
    """Sends requests for ``origin`` over a transport of httpx's."""

    def __init__(self, transport: httpx.AsyncBaseTransport, origin: str) -> None:
        self._transport = transport
        self._origin = origin

    async def exchange(self, request: WireRequest, answer: WireResponse) -> None:
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

    async def _exchange(self, request: WireRequest, answer: WireResponse, scope: anyio.CancelScope) -> None:
        parts = request.timeouts
        waits = {"connect": parts.connect, "read": parts.read, "write": parts.write, "pool": parts.connect}
        asked = httpx.Request(
            request.method,
            self._origin + request.target,
            headers=request.headers,
            stream=_HttpxBody(request.body),
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


class _HttpxBody(httpx.AsyncByteStream):
    """A body as httpx's transports read it."""

    def __init__(self, body: RequestBody | None) -> None:
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


_log = logging.getLogger(__name__)

_UPLOAD_PATIENCE: Final = 4  # a service may read all the rows before it says anything
_PATIENCE: Final = 10  # the whole exchange, in timeouts: an answer that drips must end some day


@dataclass(frozen=True, slots=True)
class ServiceResponse:
    """An answer with any 2xx status (G25), read to its end; the names of its ``headers`` are in lower case."""

    asked: str
    status: int
    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A request as it is asked for: everything but the key."""

    words: str
    method: str
    target: str
    body: RequestBody | None
    upload: bool
    limit: int
    timeouts: Timeouts
    headers: Mapping[str, str]


class Transport:
    """Sends requests to one service with one key; :meth:`ask` raises nothing but the errors of the tree.

    Instead of connections of its own it uses ``app``, an ASGI app in this process, or ``http``, a transport of httpx's
    that the caller has made (and closes). ``tls`` says which certificates are trusted, instead of the system's.
    """

    def __init__(
        self,
        base: BaseUrl,
        key: ApiKey,
        *,
        concurrency: int,
        timeouts: Timeouts,
        app: object | None,
        http: httpx.AsyncBaseTransport | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._key = key
        self._timeouts = timeouts
        self._room = anyio.Semaphore(concurrency, fast_acquire=True)
        self._tls = tls
        parts = urlsplit(base.origin)
        self._origin = (parts.scheme, parts.netloc)
        given = asgi_transport(app) if app is not None else http
        origin = f"{parts.scheme}://{parts.netloc}"
        self._adapter = None if given is None else HttpxAdapter(given, origin)
        proxy = environment_proxy(base) if given is None else None
        self._pool = Pool(base, proxy, self._context)
        self._headers = [
            (b"Host", parts.netloc.encode()),
            (b"User-Agent", user_agent().encode()),
            (b"Accept", b"application/json"),
        ]
        self._target = ""
        if proxy is not None and parts.scheme == "http":
            self._target = origin
            self._headers += proxy.headers

    async def aclose(self) -> None:
        """Close all connections."""
        self._pool.close()

    async def ask(
        self,
        method: str,
        url: str,
        *,
        params: Mapping[str, str] | None = None,
        body: RequestBody | None = None,
        upload: bool = False,
        limit: int = ORDINARY,
        headers: Mapping[str, str] | None = None,
        timeouts: Timeouts | None = None,
    ) -> ServiceResponse:
        """Send one request, with more ``headers`` if any, and read its answer, at most ``limit`` bytes of it.

        It waits for its turn while ``concurrency`` others are under way, but an ``upload`` has a connection of its
        own. ``timeouts`` are those of this request. Raises what the answer, or its absence, means; what a step of the
        body raised comes through as it is.
        """
        parts = _split_url(url)
        if (parts.scheme, parts.netloc) != self._origin:
            raise UsageError(f"{parts.hostname} is not the configured service: the API key is not sent there")
        target = f"{self._target}{parts.path}{'?' + urlencode(params) if params else ''}"
        ask = _Attempt(
            f"{method} {url}", method, target, body, upload, limit, timeouts or self._timeouts, headers or {}
        )
        try:
            async with nullcontext() if upload else self._room:
                outcome = await self._outcome(ask)
        except BaseException as error:  # cancelled: the frames below hold the key
            raise error.with_traceback(None)  # noqa: B904 - it is the same error
        if isinstance(outcome, ServiceResponse):
            return outcome
        raise outcome

    async def _outcome(self, asked: _Attempt) -> ServiceResponse | Exception:
        """Return the reply or the error it stands for: raised further out, it carries no frame of the network's."""
        answer = WireResponse(asked.limit)
        fault: Exception | None = None
        try:
            await self._exchange(asked, answer)
        except Exception as error:  # the network's, h11's, and whatever a given transport raises
            fault = error
        _log.debug("%s: %s", asked.words, answer.status if fault is None else type(fault).__name__)
        body = asked.body
        if body is not None and body.failure is not None:
            return body.failure.with_traceback(body.failure_traceback)
        outcome = self._judged(asked, answer, fault)
        if isinstance(outcome, ServiceError):
            outcome.request_id = request_id_of(answer.headers, self._key)
        return outcome

    async def _exchange(self, asked: _Attempt, answer: WireResponse) -> None:
        request = self._request(asked)
        if self._adapter is not None:
            await self._adapter.exchange(request, answer)
            return
        connection = await self._pool.take(asked.timeouts, new=asked.upload)
        try:
            await connection.exchange(request, answer)
        finally:
            self._pool.give(connection)

    def _request(self, asked: _Attempt) -> WireRequest:
        """The request as it goes, the key in it."""
        encoding = b"gzip" if asked.limit > ORDINARY else b"identity"
        headers = [*self._headers, (b"X-API-Key", self._key.reveal().encode()), (b"Accept-Encoding", encoding)]
        headers += [(name.encode("ascii"), value.encode("ascii")) for name, value in asked.headers.items()]
        if asked.body is not None:
            length = str(asked.body.length).encode()
            headers += [(b"Content-Type", asked.body.content_type.encode()), (b"Content-Length", length)]
        timeouts, patience = asked.timeouts, _PATIENCE * asked.timeouts.read
        if asked.upload:
            headers.append((b"Connection", b"close"))
            timeouts = replace(timeouts, read=timeouts.read * _UPLOAD_PATIENCE)
        return WireRequest(asked.method, asked.target, headers, asked.body, timeouts, patience, watch=asked.upload)

    def _judged(self, ask: _Attempt, answer: WireResponse, fault: Exception | None) -> ServiceResponse | ServiceError:
        asked, status = ask.words, answer.status
        complete = ask.body is None or ask.body.complete
        is_success = status is not None and 200 <= status < 300
        raw, over, is_damaged = decompress_body(answer)
        if self._key.is_telling or not is_success or fault is not None:
            raw = self._key.redact(raw)
        if isinstance(fault, MuddledError) and complete:
            raw = b""  # nobody knows whose it is
        elif status is not None and not is_success:
            wait = seconds_to_wait(answer.headers.get("retry-after"))
            return status_error(asked, status, raw, complete=complete, retry_after=wait)
        elif over:
            words = f"{asked}: {status}, the answer is far too large to be one; is the base URL right?"
            return ShapeError(words, status=status, raw=self._key.redact(raw)[:RAW_KEPT])
        elif fault is None and status is not None and not is_damaged:
            return ServiceResponse(asked, status, raw, answer.headers)
        if isinstance(fault, ssl.SSLCertVerificationError):
            return CertificateError(
                f"{asked}: the service's certificate is not trusted ({one_line(fault.verify_message)}); nothing was "
                "paid: check the base URL, and name the file with your network's certificates in SSL_CERT_FILE"
            )
        words = "the answer is compressed and damaged" if is_damaged else self._words(fault, ask.timeouts)
        words = f"{asked}: {words}"
        if isinstance(fault, UnreachableError):
            return NotSentError(f"{words}; nothing was paid: check the base URL and the network, and try again")
        if status is None and not complete:
            return NotSentError(
                f"{words} before all was sent; nothing was paid: try again, with fewer rows in an upload"
            )
        words = f"{words}; it was sent, and what became of it is not known"
        return DoubtError(words, status=status, raw=raw[:RAW_KEPT])

    def _words(self, fault: Exception | None, timeouts: Timeouts) -> str:
        detail = one_line(self._key.redact(str(fault or "")))
        if isinstance(fault, TimeoutError):
            return detail or f"no answer in time (timeout {timeouts.read:g} s)"
        if isinstance(fault, UnreachableError | MuddledError):
            return detail
        if isinstance(fault, h11.ProtocolError) and "ConnectionClosed" in detail:  # h11's words are of its states
            detail = "it was closed before there was an answer"
        if not detail or not isinstance(fault, OSError | h11.ProtocolError):
            detail = f"{type(fault).__name__} {detail}".strip()
        return f"the connection broke ({detail})"

    def _context(self) -> ssl.SSLContext:
        """The certificates that are trusted: read once, which takes 130 ms, and only when they are needed."""
        if self._tls is None:
            self._tls = httpx.create_ssl_context()
            self._tls.set_alpn_protocols(["http/1.1"])
        return self._tls


_split_url = lru_cache(maxsize=256)(urlsplit)
