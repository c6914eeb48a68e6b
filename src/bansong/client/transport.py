"""Sends one request and returns one response or error: the key, the headers, the meaning of a response.

Own connections (:mod:`bansong.client.connection`) have no cookies, redirects or ``.netrc``: paid requests must not use
them. The key is added just before sending, for the configured origin only; no error keeps a frame of the network's.
"""

from __future__ import annotations

import logging
import math
import ssl
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import anyio
import h11
import httpx

from bansong.base.errors import (
    CertificateError,
    DoubtError,
    NotSentError,
    Problem,
    ServiceError,
    ShapeError,
    UnavailableError,
    UsageError,
)
from bansong.base.key import SecretKey
from bansong.base.messages import Listed, Phrase, current_language, describe_os_error, gettext, gettext_noop
from bansong.client.address import BaseUrl
from bansong.client.connection import MuddledError, UnreachableError, WireRequest, WireResponse, decompress_body
from bansong.client.errors import RAW_KEPT, certificate_error, one_line, seconds_to_wait, status_error
from bansong.client.pool import Pool, environment_proxy
from bansong.client.request import ORDINARY, RequestBody, Timeouts, request_id_of, user_agent

HOST_NOT_CONFIGURED: Final = Problem(
    "service.host_not_configured", "{hostname} is not the configured service: the API key is not sent there"
)
CERTIFICATE_NOT_TRUSTED: Final = Problem(
    "service.certificate_not_trusted", "{asked}: the service's certificate is not trusted ({one_line}); {untrusted}"
)
REQUEST_CUT_OFF: Final = Problem("service.request_cut_off", "{words} before all was sent; {incomplete}")

_log = logging.getLogger(__name__)

_UPLOAD_READ_FACTOR: Final = 4  # a service may read all the rows before it says anything
_EXCHANGE_TIMEOUTS: Final = 10  # read timeouts for the whole exchange: a dripping response must end
_NEVER_SENT: Final = (httpx.ConnectError, httpx.PoolTimeout, httpx.ProxyError, httpx.UnsupportedProtocol)

_split_url = lru_cache(maxsize=256)(urlsplit)


@dataclass(frozen=True, slots=True)
class ServiceResponse:
    """A complete response with a 2xx status (G25); ``headers`` in lower case; ``asked``: method and URL."""

    asked: str
    status: int
    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class _Attempt:
    asked: str
    method: str
    target: str
    body: RequestBody | None
    upload: bool
    limit: int
    timeouts: Timeouts
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Wording:
    """Texts for requests without an answer; ``subject``: the receiver, in place of method and URL."""

    subject: str | None = None
    unreachable: str = gettext_noop("nothing was paid: check the base URL and the network, and try again")
    incomplete: str = gettext_noop("nothing was paid: try again, with fewer rows in an upload")
    untrusted: str = gettext_noop(
        "nothing was paid: check the base URL, and name the file with your network's certificates in SSL_CERT_FILE"
    )
    in_doubt: str = gettext_noop("it was sent, and what became of it is not known")


class Transport:
    """Sends requests to one service with one key, over own connections, an ASGI ``app``, or ``http`` of the caller."""

    def __init__(
        self,
        base: BaseUrl,
        key: SecretKey,
        *,
        concurrency: int,
        timeouts: Timeouts,
        app: Any = None,
        http: httpx.AsyncBaseTransport | None = None,
        tls: ssl.SSLContext | None = None,
        wording: Wording | None = None,
    ) -> None:
        self._key = key
        self._wording = wording or Wording()
        self._timeouts = timeouts
        self._room = anyio.Semaphore(concurrency, fast_acquire=True)
        self._tls = tls
        parts = urlsplit(base.origin)
        self._origin = (parts.scheme, parts.netloc)
        origin = f"{parts.scheme}://{parts.netloc}"
        http = http if app is None else httpx.ASGITransport(app)
        self._adapter = None if http is None else _HttpxAdapter(http, origin)
        proxy = environment_proxy(base) if http is None else None
        self._pool = Pool(base, proxy, self._tls_context)
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
        """Send one request; read at most ``limit`` bytes of the response. Errors of the body's steps come through."""
        parts = _split_url(url)
        if (parts.scheme, parts.netloc) != self._origin:
            raise UsageError(HOST_NOT_CONFIGURED, hostname=parts.hostname)
        target = f"{self._target}{parts.path}{'?' + urlencode(params) if params else ''}"
        timeouts = timeouts or self._timeouts
        spoken = {} if current_language() == "en" else {"Accept-Language": current_language()}
        headers = spoken | dict(headers or {})
        asked = self._wording.subject or f"{method} {url}"
        attempt = _Attempt(asked, method, target, body, upload, limit, timeouts, headers)
        try:
            async with nullcontext() if upload else self._room:
                outcome = await self._send(attempt)
        except BaseException as error:  # cancelled: the frames below hold the key
            raise error.with_traceback(None)  # noqa: B904 - it is the same error
        if isinstance(outcome, ServiceResponse):
            return outcome
        raise outcome

    async def _send(self, attempt: _Attempt) -> ServiceResponse | Exception:
        # errors are returned and raised further out, without a frame of the network's
        response = WireResponse(attempt.limit)
        fault: Exception | None = None
        try:
            await self._exchange(attempt, response)
        except Exception as error:  # the network's, h11's, and whatever a given transport raises
            fault = error
        _log.debug("%s: %s", attempt.asked, response.status if fault is None else type(fault).__name__)
        body = attempt.body
        if body is not None and body.failure is not None:
            return body.failure.with_traceback(body.failure_traceback)
        outcome = self._conclude(attempt, response, fault)
        if isinstance(outcome, ServiceError):
            outcome.request_id = request_id_of(response.headers, self._key)
        return outcome

    async def _exchange(self, attempt: _Attempt, response: WireResponse) -> None:
        request = self._wire_request(attempt)
        if self._adapter is not None:
            await self._adapter.exchange(request, response)
            return
        connection = await self._pool.take(attempt.timeouts, new=attempt.upload)
        try:
            await connection.exchange(request, response)
        finally:
            self._pool.give(connection)

    def _wire_request(self, attempt: _Attempt) -> WireRequest:
        encoding = b"gzip" if attempt.limit > ORDINARY else b"identity"
        headers = [*self._headers, self._key.header, (b"Accept-Encoding", encoding)]
        headers += [(name.encode("ascii"), value.encode("ascii")) for name, value in attempt.headers.items()]
        body, timeouts = attempt.body, attempt.timeouts
        patience = _EXCHANGE_TIMEOUTS * timeouts.read
        if body is not None:
            headers.append((b"Content-Type", body.content_type.encode()))
            headers.append((b"Content-Length", str(body.length).encode()))
        if attempt.upload:
            headers.append((b"Connection", b"close"))
            timeouts = replace(timeouts, read=timeouts.read * _UPLOAD_READ_FACTOR)
        return WireRequest(attempt.method, attempt.target, headers, body, timeouts, patience, watch=attempt.upload)

    def _conclude(
        self, attempt: _Attempt, response: WireResponse, fault: Exception | None
    ) -> ServiceResponse | ServiceError:
        asked, status = attempt.asked, response.status
        complete = attempt.body is None or attempt.body.complete
        is_success = status is not None and 200 <= status < 300
        raw, over, is_damaged = decompress_body(response)
        if self._key.is_telling or not is_success or fault is not None:
            raw = self._key.redact(raw)
        if isinstance(fault, MuddledError) and complete:
            raw = b""  # nobody knows whose it is
        elif status is not None and not is_success:
            wait = seconds_to_wait(response.headers.get("retry-after"))
            return status_error(
                asked, status, raw, complete=complete, is_free=attempt.method == "GET", retry_after=wait
            )
        elif over:
            words = Phrase(
                "{asked}: {status}, the answer is far too large to be one; is the base URL right?",
                asked=asked,
                status=status,
            )
            return ShapeError(words, status=status, raw=self._key.redact(raw)[:RAW_KEPT])
        elif fault is None and status is not None and not is_damaged:
            return ServiceResponse(asked, status, raw, response.headers)
        if isinstance(fault, ssl.SSLCertVerificationError):
            return CertificateError(
                CERTIFICATE_NOT_TRUSTED,
                asked=asked,
                one_line=one_line(fault.verify_message),
                untrusted=Phrase(self._wording.untrusted),
            )
        what = Phrase("the answer is compressed and damaged") if is_damaged else self._describe(fault, attempt.timeouts)
        said = Listed([asked, what], ": ")
        if isinstance(fault, UnreachableError):
            return NotSentError(Listed([said, Phrase(self._wording.unreachable)]))
        if status is None and not complete:
            return NotSentError(REQUEST_CUT_OFF, words=said, incomplete=Phrase(self._wording.incomplete))
        if attempt.method == "GET":
            return UnavailableError(said, status=status, raw=raw[:RAW_KEPT])
        return DoubtError(Listed([said, Phrase(self._wording.in_doubt)]), status=status, raw=raw[:RAW_KEPT])

    def _describe(self, fault: Exception | None, timeouts: Timeouts) -> str:
        detail = one_line(self._key.redact(str(fault or "")))
        if isinstance(fault, TimeoutError):
            return detail or Phrase("no answer in time (timeout {read:g} s)", read=timeouts.read)
        if isinstance(fault, UnreachableError | MuddledError):
            return detail
        if isinstance(fault, h11.ProtocolError) and "ConnectionClosed" in detail:  # h11's words are of its states
            return Phrase("the connection broke ({detail})", detail=Phrase("it was closed before there was an answer"))
        if not detail or not isinstance(fault, OSError | h11.ProtocolError):
            detail = f"{type(fault).__name__} {detail}".strip()
        return Phrase("the connection broke ({detail})", detail=detail)

    def _tls_context(self) -> ssl.SSLContext:
        # read when needed, once: it takes 130 ms
        if self._tls is None:
            self._tls = httpx.create_ssl_context()
            self._tls.set_alpn_protocols(["http/1.1"])
        return self._tls


class _HttpxAdapter:
    # raises what an `HttpConnection` raises
    def __init__(self, transport: httpx.AsyncBaseTransport, origin: str) -> None:
        self._transport = transport
        self._origin = origin

    async def exchange(self, request: WireRequest, response: WireResponse) -> None:
        over = True
        with anyio.move_on_after(math.inf if request.watch else request.patience) as scope:
            try:
                await self._exchange(request, response, scope)
            except httpx.ConnectTimeout:
                raise UnreachableError(
                    gettext("no connection within {connect:g} s", connect=request.timeouts.connect)
                ) from None
            except _NEVER_SENT as error:
                raise certificate_error(error) or UnreachableError(
                    gettext("cannot connect ({error})", error=describe_os_error(error))
                ) from error
            except httpx.TimeoutException:
                raise TimeoutError from None
            except httpx.TransportError as error:
                if not response.over:
                    raise OSError(str(error)) from error
            over = False
        if over:
            raise TimeoutError(gettext("no end of the answer within {patience:g} s", patience=request.patience))

    async def _exchange(self, request: WireRequest, response: WireResponse, scope: anyio.CancelScope) -> None:
        parts = request.timeouts
        waits = {"connect": parts.connect, "read": parts.read, "write": parts.write, "pool": parts.connect}
        found = await self._transport.handle_async_request(
            httpx.Request(
                request.method,
                self._origin + request.target,
                headers=request.headers,
                stream=request.body or httpx.ByteStream(b""),
                extensions={"timeout": waits},
            )
        )
        if request.watch:
            scope.deadline = anyio.current_time() + request.patience
        try:
            response.begin(found.status_code, found.headers.raw)
            assert isinstance(found.stream, httpx.AsyncByteStream)  # noqa: S101 - of an async transport it is
            async for chunk in found.stream:
                if response.over:
                    continue
                response.add(chunk)
                line = found.extensions.get("network_stream")
                if response.over and line is not None:  # breaks the iteration: trio warns of generators that are left
                    await line.aclose()
        finally:
            with anyio.CancelScope(shield=True):
                await found.aclose()
