"""Send one request and return one response or error.

Each connection has a separate httpx transport, since the pool of one httpx client is quadratic. After an answer a
connection rests for the time that the answer took. Surplus bytes, which would pass for the next answer, arrive in this
time; then no connection is used again. There are no cookies, redirects or ``.netrc``, which paid requests must not use.
The key is added just before sending, after the hooks, for the configured origin only. No error keeps a frame of the
network code.
"""

from __future__ import annotations

import logging
import math
import re
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Final
from urllib.parse import urlencode, urlsplit
from urllib.request import getproxies

import anyio
import anyio.lowlevel

from bansong.base.errors import (
    CertificateError,
    DoubtError,
    NotSentError,
    Problem,
    ServerError,
    ServiceConnectionError,
    ServiceError,
    ServiceTimeoutError,
    ShapeError,
    TransportError,
    UnavailableError,
    UnreachableError,
    UsageError,
)
from bansong.base.http import Network, StaleError, httpcore, httpx
from bansong.base.key import SecretKey
from bansong.base.messages import Listed, Option, Phrase, current_language, describe_os_error, gettext, gettext_noop
from bansong.client.address import PORTS, BaseUrl
from bansong.client.arguments import wrong_type
from bansong.client.errors import (
    RAW_KEPT,
    certificate_error,
    is_server_fault,
    one_line,
    seconds_to_wait,
    status_error,
)
from bansong.client.request import (
    ORDINARY,
    RequestBody,
    Timeouts,
    Verify,
    check_headers,
    decompress,
    environment_proxy,
    request_id_of,
    user_agent,
)

HOST_NOT_CONFIGURED: Final = Problem(
    "service.host_not_configured", "{hostname} is not the configured service: the API key is not sent there"
)
CERTIFICATE_NOT_TRUSTED: Final = Problem(
    "service.certificate_not_trusted", "{asked}: the service's certificate is not trusted ({one_line}); {untrusted}"
)
REQUEST_CUT_OFF: Final = Problem("service.request_cut_off", "{words} before all was sent; {incomplete}")
NETWORK_OPTION_REDUNDANT: Final = Problem(
    "service.network_option_redundant", "{option} does all of the network itself; leave {other_option} out"
)
HTTP_CLIENT_ADDS: Final = Problem(
    "service.http_client_adds",
    "{option}: has {part}, which could repeat or change a paid request; use another client for this service",
)
HTTP_CLIENT_LEAVES: Final = Problem(
    "service.http_client_leaves",
    "{option}: would send requests for this machine, and the API key, to the environment's proxy; make it with "
    "trust_env=False",
)
HTTP_CLIENT_CLOSED: Final = Problem("service.http_client_closed", "{option}: was closed; give one that is open")

HttpClient = httpx.AsyncClient | httpx.AsyncBaseTransport
EventHooks = Mapping[str, Sequence[Callable[[Any], Awaitable[object]]]]

_log = logging.getLogger(__name__)

_UPLOAD_READ_FACTOR: Final = 4  # a service may read all rows before it answers
_EXCHANGE_TIMEOUTS: Final = 10  # read timeouts for the whole exchange: a dripping response must end
_KEEP_ALIVE_S: Final = 2.0  # a server that is closing an idle connection would turn a paid request into a doubt
_MIN_REST_S: Final = 0.01  # time for surplus bytes of a broken service to arrive
_WITHOUT_BODY: Final = (204, 304)
_CHUNKS_A_TURN: Final = 256  # then other tasks run: one read may bring thousands of one-byte chunks
_DISCONNECTED: Final = re.compile("Server disconnected")  # httpcore's words
_PROXY_LOGIN: Final = "407"
_HTTPX_HEADERS: Final = ("accept", "accept-encoding", "connection", "user-agent")  # of any AsyncClient
_LIMITS: Final = httpx.Limits(max_connections=1)
NO_TLS: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # for plain http: to load certificates takes 130 ms
_NEVER_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)


@dataclass(frozen=True, slots=True)
class ServiceResponse:
    """A complete response with a 2xx status (G25). Header names are in lower case; ``asked`` is method and URL."""

    asked: str
    status: int
    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(slots=True)
class _Attempt:
    # A request, and the response so far. `over`: the response is longer than `limit`.
    asked: str
    request: httpx.Request
    body: RequestBody | None
    upload: bool
    timeouts: Timeouts
    limit: int
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    content: bytearray = field(default_factory=bytearray, repr=False)
    over: bool = False


@dataclass(frozen=True, slots=True)
class Wording:
    """Texts for errors of requests without an answer; ``subject`` replaces method and URL in them."""

    subject: str | None = None
    unreachable: str = gettext_noop("nothing was paid: check the base URL and the network, and try again")
    incomplete: str = gettext_noop("nothing was paid: try again, with fewer rows in an upload")
    untrusted: str = gettext_noop(
        "nothing was paid: check the base URL, and name the file with your network's certificates in SSL_CERT_FILE"
    )
    in_doubt: str = gettext_noop("it was sent, and what became of it is not known")


class Transport:
    """Send requests to one service with one API key: over own connections, to an ASGI app, or by ``http_client``.

    Nothing below this class watches for surplus bytes, so each request by ``http_client`` has a connection of its own.
    Of an ``httpx.AsyncClient``, hooks and further headers are used here, and then its transports, by its ``send``.
    """

    def __init__(
        self,
        base: BaseUrl,
        key: SecretKey,
        *,
        concurrency: int,
        timeouts: Timeouts,
        app: Any = None,
        http_client: HttpClient | None = None,
        tls: ssl.SSLContext | None = None,
        wording: Wording | None = None,
        proxy: str | None = None,
        hooks: EventHooks | None = None,
    ) -> None:
        self._key = key
        self._wording = wording or Wording()
        self._timeouts = timeouts
        self._room = anyio.Semaphore(concurrency, fast_acquire=True)
        self._tls = tls
        self._hooks = hooks or {}
        parts = urlsplit(base.origin)
        self._origin = (parts.scheme, parts.netloc)
        self._given = http_client if app is None else httpx.ASGITransport(app)
        named = proxy or (environment_proxy(base) if self._given is None else None)
        self._proxy = None if named is None else httpx.Proxy(named)
        self._headers = [
            (b"Host", parts.netloc.encode()),
            (b"User-Agent", user_agent().encode()),
            (b"Accept", b"application/json"),
        ]
        self._is_secure = parts.scheme == "https"
        self._idle: list[tuple[float, _Line]] = []  # with the time at which its rest ends
        self._may_keep = True

    async def aclose(self) -> None:
        """Close all idle connections. From now on no connection is used twice."""
        self._may_keep = False
        while self._idle:
            await self._idle.pop()[1].aclose()

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
        """Send one request; read at most ``limit`` bytes of the response. Errors of the body's steps pass through."""
        attempt = _Attempt(
            asked=self._wording.subject or f"{method} {url}",
            request=self._request(method, f"{url}?{urlencode(params)}" if params else url, body, limit, headers or {}),
            body=body,
            upload=upload,
            timeouts=timeouts or self._timeouts,
            limit=limit,
        )
        for hook in self._hooks_for("request"):
            await hook(attempt.request)
        target = attempt.request.url  # a hook may have changed it
        if (target.scheme, target.netloc.decode("ascii")) != self._origin:
            raise UsageError(HOST_NOT_CONFIGURED, hostname=target.host)
        try:
            async with nullcontext() if upload else self._room:
                outcome = await self._send(attempt)
        except BaseException as error:  # a cancellation: its frames hold the key
            raise error.with_traceback(None)  # noqa: B904 - the same error
        for hook in () if attempt.status is None else self._hooks_for("response"):
            await hook(_shown_response(attempt, outcome))
        if isinstance(outcome, ServiceResponse):
            return outcome
        raise outcome

    def _hooks_for(self, kind: str) -> list[Callable[[Any], Awaitable[object]]]:
        given: EventHooks = self._given.event_hooks if isinstance(self._given, httpx.AsyncClient) else {}
        return [*given.get(kind, ()), *self._hooks.get(kind, ())]

    def _request(
        self, method: str, url: str, body: RequestBody | None, limit: int, headers: Mapping[str, str]
    ) -> httpx.Request:
        raw = [*self._headers, (b"Accept-Encoding", b"gzip" if limit > ORDINARY else b"identity")]
        if body is not None:
            raw.append((b"Content-Type", body.content_type.encode()))
            raw.append((b"Content-Length", str(body.length).encode()))
        if current_language() != "en":
            raw.append((b"Accept-Language", current_language().encode()))
        if isinstance(self._given, httpx.AsyncClient):
            if self._given.is_closed:
                raise UsageError(HTTP_CLIENT_CLOSED, option=Option("http_client"))
            headers = _added_headers(self._given) | dict(headers)
        raw += [(name.encode(), value.encode()) for name, value in headers.items()]
        return httpx.Request(method, url, headers=raw, stream=httpx.ByteStream(b""))

    async def _send(self, attempt: _Attempt) -> ServiceResponse | Exception:
        # errors are returned, and raised by the caller without frames of the network code
        fault: Exception | None = None
        try:
            await self._exchange(attempt)
        except Exception as error:  # of the network, or of the caller's transport
            fault = error
        _log.debug("%s: %s", attempt.asked, attempt.status if fault is None else type(fault).__name__)
        body = attempt.body
        if body is not None and body.failure is not None:
            return body.failure.with_traceback(body.failure_traceback)
        outcome = self._conclude(attempt, fault)
        if isinstance(outcome, ServiceError):
            answered, asked = (request_id_of(of.headers, self._key) for of in (attempt, attempt.request))
            outcome.request_id = answered or asked
        if isinstance(outcome, TransportError):
            outcome.cause = _cause_class(fault, outcome.status)
        return outcome

    async def _exchange(self, attempt: _Attempt) -> None:
        line: _Line | None = None
        patience = _EXCHANGE_TIMEOUTS * attempt.timeouts.read
        is_over, is_kept = True, False
        began = anyio.current_time()
        with anyio.move_on_after(math.inf if attempt.upload else patience) as scope:
            try:
                response = None
                while response is None:
                    line = None if self._given is not None else await self._take(attempt)
                    response = await self._ask(attempt, line)
                if attempt.upload:  # the ledger's step before the last byte took part of the time
                    scope.deadline = anyio.current_time() + patience
                await _read(response, attempt)
                if line is not None and "network_stream" in response.extensions:  # no answer of respx's, say
                    is_kept = await self._keep(line, attempt, anyio.current_time() - began)
            finally:
                if line is not None and not is_kept:
                    with anyio.CancelScope(shield=True):
                        await line.aclose()
            is_over = False
        if is_over:
            raise httpx.ReadTimeout(gettext("no end of the answer within {patience:g} s", patience=patience))

    def _wire_request(self, attempt: _Attempt, line: _Line | None) -> httpx.Request:
        # adds the key, which hooks do not see
        request, timeouts = attempt.request, attempt.timeouts
        headers = [*request.headers.raw, self._key.header]
        if attempt.upload or self._given is not None:
            headers.append((b"Connection", b"close"))
        if attempt.upload:
            timeouts = replace(timeouts, read=timeouts.read * _UPLOAD_READ_FACTOR)
        waits = {"connect": timeouts.connect, "read": timeouts.read, "write": timeouts.write, "pool": timeouts.connect}
        network = line.network if line and attempt.upload else None
        stream = request.stream if attempt.body is None else _BodyStream(attempt.body, network)
        return httpx.Request(request.method, request.url, headers=headers, stream=stream, extensions={"timeout": waits})

    async def _ask(self, attempt: _Attempt, line: _Line | None) -> httpx.Response | None:
        # returns None if a kept connection could not take the request; nothing was sent then
        transport = self._given or line
        assert transport is not None  # noqa: S101 - for mypy
        request = self._wire_request(attempt, line)
        try:
            if isinstance(transport, httpx.AsyncClient):
                return await _send_by(transport, request)
            return await transport.handle_async_request(request)
        except httpx.ConnectError as error:
            if line is None or not isinstance(error.__cause__, StaleError):
                raise
            if await line.network.look():
                await self.aclose()
            await line.aclose()
            return None

    async def _take(self, attempt: _Attempt) -> _Line:
        now = anyio.current_time()
        while self._idle and self._idle[0][0] < now - _KEEP_ALIVE_S:
            await self._idle.pop(0)[1].aclose()
        for place in () if attempt.upload else range(len(self._idle) - 1, -1, -1):
            if self._idle[place][0] <= now:
                return self._idle.pop(place)[1]
        return _Line(self._tls_context() if self._is_secure else NO_TLS, self._proxy)

    async def _keep(self, line: _Line, attempt: _Attempt, seconds: float) -> bool:
        # after surplus bytes, answers cannot be matched to requests any more
        length = "0" if attempt.status in _WITHOUT_BODY else attempt.headers.get("content-length", "")
        surplus, extra = await line.network.look(), line.network.surplus(length)
        if not attempt.over and (surplus or (extra is not None and extra > 0)):
            attempt.status, attempt.content = None, bytearray()
            await self.aclose()
            raise httpx.RemoteProtocolError(gettext("more came than one answer"))
        if surplus is not None or extra != 0 or attempt.upload or not self._may_keep:
            return False
        self._idle.append((anyio.current_time() + _rest_after(seconds), line))
        return True

    def _conclude(self, attempt: _Attempt, fault: Exception | None) -> ServiceResponse | Exception:
        asked, status = attempt.asked, attempt.status
        complete = attempt.body is None or attempt.body.complete
        is_success = status is not None and 200 <= status < 300
        raw, over, is_damaged = decompress(attempt.content, attempt.headers, attempt.limit, over=attempt.over)
        if self._key.is_telling or not is_success or fault is not None:
            raw = self._key.redact(raw)
        is_free = attempt.request.method == "GET"
        if status is not None and not is_success:
            wait = seconds_to_wait(attempt.headers.get("retry-after"))
            return status_error(asked, status, raw, complete=complete, is_free=is_free, retry_after=wait)
        if over:
            words = Phrase(
                "{asked}: {status}, the answer is far too large to be one; is the base URL right?",
                asked=asked,
                status=status,
            )
            return ShapeError(words, status=status, raw=self._key.redact(raw)[:RAW_KEPT])
        if fault is None and status is not None and not is_damaged:
            return ServiceResponse(asked, status, raw, attempt.headers)
        # a caller's transport that sends again may have sent the whole body before it found no connection
        is_unsent = isinstance(fault, _NEVER_SENT) and (attempt.body is None or not complete)
        untrusted = certificate_error(fault) if is_unsent and fault else None
        if untrusted is not None:
            return CertificateError(
                CERTIFICATE_NOT_TRUSTED,
                asked=asked,
                one_line=one_line(untrusted.verify_message),
                untrusted=Phrase(self._wording.untrusted),
            )
        what = Phrase("the answer is compressed and damaged") if is_damaged else self._describe(fault, attempt.timeouts)
        said = Listed([asked, what], ": ")
        if is_unsent:
            kind = UnreachableError if is_free else NotSentError
            return kind(Listed([said, Phrase(self._wording.unreachable)]))
        if status is None and not complete:
            return NotSentError(REQUEST_CUT_OFF, words=said, incomplete=Phrase(self._wording.incomplete))
        if is_free:
            return (_cause_class(fault, status) or UnavailableError)(said, status=status, raw=raw[:RAW_KEPT])
        return DoubtError(Listed([said, Phrase(self._wording.in_doubt)]), status=status, raw=raw[:RAW_KEPT])

    def _describe(self, fault: Exception | None, timeouts: Timeouts) -> str:
        if isinstance(fault, httpx.ConnectTimeout):
            return self._through_proxy(gettext("no connection within {connect:g} s", connect=timeouts.connect))
        if isinstance(fault, httpx.ProxyError) and str(fault)[:3].isdecimal():
            status = str(fault)[:3]
            remedy = gettext("; put its user and password into HTTPS_PROXY") if status == _PROXY_LOGIN else ""
            said = gettext("the proxy answered {status}{remedy}", status=status, remedy=remedy)
            return self._through_proxy(gettext("cannot connect ({error})", error=said))
        detail = one_line(self._key.redact(str(describe_os_error(_cause(fault))) if fault else ""))
        if isinstance(fault, _NEVER_SENT):
            return self._through_proxy(gettext("cannot connect ({error})", error=detail))
        if isinstance(fault, httpx.TimeoutException | TimeoutError):
            said = one_line(self._key.redact(str(fault)))
            return said or Phrase("no answer in time (timeout {read:g} s)", read=timeouts.read)
        if isinstance(fault, httpx.RemoteProtocolError) and _DISCONNECTED.match(detail):
            detail = Phrase("it was closed before there was an answer")
        elif not isinstance(fault, OSError | httpx.TransportError):
            detail = f"{type(fault).__name__} {detail}".strip()
        return Phrase("the connection broke ({detail})", detail=detail)

    def _through_proxy(self, fault: str) -> str:
        if self._proxy is None:
            return fault
        url = self._proxy.url
        port = url.port or PORTS.get(url.scheme)
        return gettext("{fault}, through the proxy {host}:{port}", fault=fault, host=url.host, port=port)

    def _tls_context(self) -> ssl.SSLContext:
        self._tls = self._tls or httpx.create_ssl_context()  # once, when needed: it takes 130 ms
        return self._tls


async def _send_by(client: httpx.AsyncClient, request: httpx.Request) -> httpx.Response:
    sender = copy(client)  # with the same transports; its hooks were called already, and must not see the key
    sender.event_hooks, sender.cookies = {}, httpx.Cookies()
    return await sender.send(request, stream=True, auth=None, follow_redirects=False)


def _added_headers(client: httpx.AsyncClient) -> dict[str, str]:
    added = {name: value for name, value in client.headers.items() if name not in _HTTPX_HEADERS}
    return check_headers(added, "http_client")


class _Line(httpx.AsyncHTTPTransport):
    # one connection, for one request at a time
    def __init__(self, tls: ssl.SSLContext, proxy: httpx.Proxy | None) -> None:
        super().__init__(verify=tls, trust_env=False, limits=_LIMITS, proxy=proxy)
        self.network = self._pool._network_backend = Network()


@dataclass(slots=True, eq=False)
class _BodyStream(httpx.AsyncByteStream):
    body: RequestBody
    network: Network | None

    def __aiter__(self) -> _BodyStream:
        return self

    async def __anext__(self) -> bytes:
        if self.network is not None and not self.body.complete and await self.network.look() is not None:
            raise httpcore.WriteError  # httpcore sends no more and reads the response
        return await anext(self.body)


async def _read(response: httpx.Response, attempt: _Attempt) -> None:
    stream = response.stream
    assert isinstance(stream, httpx.AsyncByteStream)  # noqa: S101 - of an async transport it is
    try:
        if {"content-length", "transfer-encoding"} <= response.headers.keys():
            raise httpx.RemoteProtocolError(gettext("an answer with two lengths: Content-Length and Transfer-Encoding"))
        attempt.status, attempt.headers = response.status_code, dict(response.headers)
        turns = count(1)
        async for chunk in stream:
            if attempt.over:
                continue
            if next(turns) % _CHUNKS_A_TURN == 0:
                await anyio.lowlevel.checkpoint()
            attempt.content += chunk
            attempt.over = len(attempt.content) > attempt.limit
            connection = response.extensions.get("network_stream")
            if attempt.over and connection is not None:  # ends the iteration: trio warns of generators that are left
                await connection.aclose()
    except httpx.TransportError:
        if not attempt.over:
            raise
    finally:
        with anyio.CancelScope(shield=True):
            await response.aclose()


def _rest_after(seconds: float) -> float:
    return min(max(_MIN_REST_S, seconds), _KEEP_ALIVE_S)


def _shown_response(attempt: _Attempt, outcome: object) -> httpx.Response:
    # the body is unpacked already
    packed = ("content-encoding", "content-length", "transfer-encoding")
    kept = {name: value for name, value in attempt.headers.items() if name not in packed}
    headers = httpx.Headers(kept, encoding="utf-8")  # a service may send other than ASCII
    content = outcome.body if isinstance(outcome, ServiceResponse) else bytes(attempt.content)
    return httpx.Response(attempt.status or 0, headers=headers, content=content, request=attempt.request)


def _cause_class(fault: Exception | None, status: int | None) -> type[UnavailableError] | None:
    if is_server_fault(status):
        return ServerError
    if isinstance(fault, httpx.TimeoutException | TimeoutError) and not isinstance(fault, _NEVER_SENT):
        return ServiceTimeoutError
    return ServiceConnectionError if isinstance(fault, httpx.TransportError | OSError) else None


def _cause(error: Exception) -> Exception:
    # the operating system's error below the libraries' errors
    found = error
    below = error.__cause__ or error.__context__
    while below is not None:
        if isinstance(below, OSError) and below.errno:
            found = below
        below = below.exceptions[0] if isinstance(below, BaseExceptionGroup) else below.__cause__ or below.__context__
    return found


def check_http_client(
    client: HttpClient | None, base: BaseUrl, verify: Verify, app: object | None, proxy: object | None = None
) -> HttpClient | None:
    """Return the caller's client; raise :class:`UsageError` if it has, or goes with, what it must not."""
    if client is None:
        return None
    if not isinstance(client, HttpClient):
        remedy = gettext("an httpx.AsyncClient or httpx.AsyncBaseTransport (to the blocking client, too)")
        wrong_type("http_client", client, remedy)
    if app is not None or verify is not True or proxy is not None:
        other = "app" if app is not None else "proxy" if proxy is not None else "verify"
        raise UsageError(NETWORK_OPTION_REDUNDANT, option=Option("http_client"), other_option=Option(other))
    if isinstance(client, httpx.AsyncClient):
        _added_headers(client)
        part = "auth" if client.auth is not None else "params" if client.params else None
        if part is not None:
            raise UsageError(HTTP_CLIENT_ADDS, option=Option("http_client"), part=part)
        is_led_away = client._transport_for_url(httpx.URL(base.origin)) is not client._transport
        if is_led_away and base.is_loopback and client.trust_env and getproxies():
            raise UsageError(HTTP_CLIENT_LEAVES, option=Option("http_client"))
    return client
