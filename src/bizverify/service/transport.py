"""The only module that speaks httpx: one request out, one reply or one error of the tree back.

One httpx client collapses under concurrency (its pool is quadratic), so requests go over many transports of one
connection each, sharing one TLS context. They are httpx's transports without its client: what that adds are cookies,
redirects and credentials from ``.netrc``, none of which a paid request may have. The key is put into a request that
no user sees, just before it goes, and for the configured origin only; no error keeps a frame of the network's.
"""

from __future__ import annotations

import logging
import math
import ssl
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final
from urllib.request import getproxies, proxy_bypass

import anyio
import httpcore
import httpx

from bizverify.errors import DoubtError, NotSentError, ServiceError, ShapeError, UsageError
from bizverify.service.address import BaseUrl
from bizverify.service.headers import request_id_of, user_agent
from bizverify.service.key import ApiKey
from bizverify.service.multipart import Body
from bizverify.service.refusal import RAW_KEPT, one_line, refusal, seconds_to_wait
from bizverify.service.timeouts import Timeouts

_log = logging.getLogger(__name__)

ORDINARY: Final = 2 << 20
"""The most bytes that are read of an ordinary answer."""
_KEEP_ALIVE: Final = 2.0  # a server that is closing an idle connection would turn a paid request into a doubt
_UPLOAD_PATIENCE: Final = 4  # a service may read all the rows before it says anything
_PATIENCE: Final = 10  # the whole exchange, in timeouts: an answer that drips must end some day
_NEVER_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer with any 2xx status (G25), read to its end; the names of its ``headers`` are in lower case."""

    asked: str
    status: int
    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request as it is asked for: everything but the key."""

    words: str
    method: str
    url: httpx.URL
    body: Body | None
    upload: bool
    limit: int
    timeouts: Timeouts
    headers: tuple[tuple[bytes, bytes], ...] = ()


@dataclass(slots=True)
class _Seen:
    """What has come of an answer so far."""

    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    retry_after: float | None = None
    encoding: str = ""
    content: bytes = field(default=b"", repr=False)
    over: bool = False

    @property
    def is_success(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


class Transport:
    """Sends requests to one service with one key; :meth:`ask` raises nothing but the errors of the tree."""

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
        self._shards = _Shards(_maker(base, app, http, tls))
        origin = httpx.URL(base.origin)
        self._origin = _origin(origin)
        self._headers = [
            (b"Host", origin.netloc),
            (b"User-Agent", user_agent().encode()),
            (b"Accept", b"application/json"),
        ]

    async def aclose(self) -> None:
        """Close all connections."""
        await self._shards.aclose()

    async def ask(
        self,
        method: str,
        url: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Body | None = None,
        upload: bool = False,
        limit: int = ORDINARY,
        headers: Mapping[str, str] | None = None,
        timeouts: Timeouts | None = None,
    ) -> Reply:
        """Send one request, with more ``headers`` if any, and read its answer, at most ``limit`` bytes of it.

        It waits for its turn while ``concurrency`` others are under way, but an ``upload`` has a connection of its
        own. ``timeouts`` are those of this request. Raises what the answer, or its absence, means; what a step of the
        body raised comes through as it is.
        """
        target = _url(url) if params is None else httpx.URL(url, params=params)
        more = tuple((name.encode("ascii"), value.encode("ascii")) for name, value in (headers or {}).items())
        ask = _Asked(f"{method} {url}", method, target, body, upload, limit, timeouts or self._timeouts, more)
        try:
            async with nullcontext() if upload else self._room:
                outcome = await self._outcome(ask)
        except BaseException as error:  # cancelled: the frames below hold the key
            raise error.with_traceback(None)  # noqa: B904 - it is the same error
        if isinstance(outcome, Reply):
            return outcome
        raise outcome

    async def _outcome(self, asked: _Asked) -> Reply | Exception:
        """Return the reply or the error it stands for: raised further out, it carries no frame of the network's."""
        seen = _Seen()
        fault: Exception | None = None
        patience = math.inf if asked.upload else _PATIENCE * asked.timeouts.read
        with anyio.move_on_after(patience) as scope:
            try:
                await self._exchange(asked, seen)
            except Exception as error:  # not httpx's alone: a few of the TLS library's come through
                fault = error
        if scope.cancelled_caught:
            fault = TimeoutError(f"no end of the answer within {patience:g} s")
        _log.debug("%s: %s", asked.words, seen.status if fault is None else type(fault).__name__)
        body = asked.body
        if body is not None and body.failure is not None:
            return body.failure.with_traceback(body.failure_traceback)
        outcome = self._judged(asked, seen, fault, complete=body is None or body.complete)
        if isinstance(outcome, ServiceError):
            outcome.request_id = request_id_of(seen.headers, self._key)
        return outcome

    async def _exchange(self, asked: _Asked, seen: _Seen) -> None:
        shard = self._shards.take(keep=not asked.upload)
        try:
            response = await shard.handle_async_request(self._request(asked))
            try:
                seen.status = response.status_code
                seen.headers = dict(response.headers)
                seen.retry_after = seconds_to_wait(response.headers.get("retry-after"))
                seen.encoding = response.headers.get("content-encoding", "").strip().lower()
                await _read(response, seen, asked.limit)
            finally:
                await response.aclose()
        except BaseException:  # what state its pool is in is httpcore's affair: never use it again
            await _close(shard)
            raise
        if asked.upload:
            await _close(shard)
        else:
            self._shards.give(shard)

    def _request(self, asked: _Asked) -> httpx.Request:
        """The request as it goes, the key in it."""
        if _origin(asked.url) != self._origin:
            raise UsageError(f"{asked.url.host} is not the configured service: the API key is not sent there")
        encoding = b"gzip" if asked.limit > ORDINARY else b"identity"
        headers = [*self._headers, (b"X-API-Key", self._key.reveal().encode()), (b"Accept-Encoding", encoding)]
        headers += asked.headers
        parts = asked.timeouts
        read = parts.read * (_UPLOAD_PATIENCE if asked.upload else 1)
        waits = {"connect": parts.connect, "read": read, "write": parts.write, "pool": None}
        extensions: dict[str, Any] = {"timeout": waits}
        stream = _Sending(asked.body)
        if asked.body is not None:
            length = str(asked.body.length).encode()
            headers += [(b"Content-Type", asked.body.content_type.encode()), (b"Content-Length", length)]
        if asked.upload:
            headers.append((b"Connection", b"close"))
            extensions["trace"] = stream.watch
        return httpx.Request(asked.method, asked.url, headers=headers, stream=stream, extensions=extensions)

    def _judged(self, ask: _Asked, seen: _Seen, fault: Exception | None, *, complete: bool) -> Reply | ServiceError:
        asked = ask.words
        raw = seen.content
        if self._key.is_telling or not seen.is_success or fault is not None:
            raw = self._key.redact(raw)
        if seen.status is not None and not seen.is_success:
            return refusal(asked, seen.status, raw, complete=complete, retry_after=seen.retry_after)
        if seen.over:
            words = f"{asked}: {seen.status}, the answer is far too large to be one; is the base URL right?"
            return ShapeError(words, status=seen.status, raw=self._key.redact(raw)[:RAW_KEPT])
        if fault is None and seen.status is not None:
            return Reply(asked, seen.status, raw, seen.headers)
        words = f"{asked}: {self._words(fault, ask.timeouts)}"
        if seen.status is None and isinstance(fault, _NEVER_SENT):
            return NotSentError(f"{words}; nothing was paid: check the base URL and the network, and try again")
        if seen.status is None and not complete:
            return NotSentError(
                f"{words} before all was sent; nothing was paid: try again, with fewer rows in an upload"
            )
        words = f"{words}; it was sent, and what became of it is not known"
        return DoubtError(words, status=seen.status, raw=raw[:RAW_KEPT])

    def _words(self, fault: Exception | None, timeouts: Timeouts) -> str:
        detail = one_line(self._key.redact(str(fault)))
        if isinstance(fault, TimeoutError):
            return detail
        if isinstance(fault, httpx.ConnectTimeout):
            return f"no connection within {timeouts.connect:g} s"
        if isinstance(fault, httpx.TimeoutException):
            return f"no answer in time (timeout {timeouts.read:g} s)"
        what = "cannot connect" if isinstance(fault, _NEVER_SENT) else "the connection broke"
        if not isinstance(fault, httpx.TransportError):
            detail = f"{type(fault).__name__} {detail}".strip()
        return f"{what} ({detail})" if detail else what


_url = lru_cache(maxsize=256)(httpx.URL)


async def _read(response: httpx.Response, seen: _Seen, limit: int) -> None:
    """Read a body into ``seen``, also what there is of one that breaks off; of one over the limit no more than that.

    Over the limit the socket is closed and the iteration goes on into the error that this makes: so every
    generator underneath comes to its end (trio warns of those that are left).
    """
    content = bytearray()
    assert isinstance(response.stream, httpx.AsyncByteStream)  # noqa: S101 - of an async transport's response it is
    try:
        async for chunk in response.stream:
            if seen.over:
                continue
            content += chunk
            if len(content) > limit:
                seen.over = True
                line = response.extensions.get("network_stream")
                if line is not None:
                    await line.aclose()
    finally:
        seen.content = bytes(content)
        if seen.encoding in ("gzip", "x-gzip", "deflate"):
            _inflate(seen, limit)


def _inflate(seen: _Seen, limit: int) -> None:
    """Unpack a compressed body (G27), no further than the limit. One that cannot be unpacked stays as it came."""
    try:
        content = zlib.decompressobj(wbits=47).decompress(seen.content, limit + 1)
    except zlib.error:
        return
    seen.content, seen.over = content, seen.over or len(content) > limit


class _Sending(httpx.AsyncByteStream):
    """A body on its way. For an upload it watches the line: a service may answer in the middle of it.

    Sending on after a refusal is of no use, and a write to a connection that the service has closed makes asyncio
    throw the answer away. So the body ends there, with the one error after which httpcore goes on to read. Under TLS it
    cannot be told whether there is an answer (tickets make the line readable, too): an upload that breaks there is
    "not sent".
    """

    def __init__(self, body: Body | None) -> None:
        self._body = body
        self._line: httpcore.AsyncNetworkStream | None = None

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self._body is None:
            raise StopAsyncIteration
        if self._line is not None and not self._body.complete and self._line.get_extra_info("is_readable"):
            raise httpcore.WriteError("answered before all was sent")
        return await self._body.__anext__()

    async def watch(self, event: str, info: Mapping[str, Any]) -> None:
        """Take note of the connection that is opened (httpcore's trace)."""
        if event == "connection.connect_tcp.complete":
            self._line = info["return_value"]
        elif event.endswith("start_tls.complete"):
            self._line = None


class _Shards:
    """Transports of one connection each, made when needed; the one used last is used first, so that few stay open."""

    def __init__(self, make: Callable[[bool], httpx.AsyncBaseTransport]) -> None:
        self._make = make
        self._free: list[httpx.AsyncBaseTransport] = []

    def take(self, *, keep: bool) -> httpx.AsyncBaseTransport:
        """Return a transport that nobody uses; a new one where its connection is not to be kept."""
        return self._free.pop() if keep and self._free else self._make(keep)

    def give(self, shard: httpx.AsyncBaseTransport) -> None:
        """Take back a transport that has served its request."""
        self._free.append(shard)

    async def aclose(self) -> None:
        """Close the connections that are kept."""
        while self._free:
            await _close(self._free.pop())


async def _close(shard: httpx.AsyncBaseTransport) -> None:
    with anyio.CancelScope(shield=True):
        await shard.aclose()


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


class _Given(httpx.AsyncBaseTransport):
    """The user's own transport: every request goes over it, and who made it closes it."""

    def __init__(self, http: httpx.AsyncBaseTransport) -> None:
        self._http = http

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await self._http.handle_async_request(request)


def _maker(
    base: BaseUrl, app: object | None, http: httpx.AsyncBaseTransport | None, tls: ssl.SSLContext | None
) -> Callable[[bool], httpx.AsyncBaseTransport]:
    """What makes a transport of one connection; its argument says whether the connection is kept."""
    if app is not None:
        asgi: Any = app
        return lambda _: httpx.ASGITransport(asgi)
    if http is not None:
        given = _Given(http)
        return lambda _: given
    proxy = _proxy(base)
    context: list[ssl.SSLContext] = [] if tls is None else [tls]

    def make(keep: bool) -> httpx.AsyncBaseTransport:
        if not context:  # 130 ms with certificates, so once, and only when they are needed
            secure = base.scheme == "https"
            context.append(httpx.create_ssl_context() if secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        limits = httpx.Limits(max_connections=1, max_keepalive_connections=int(keep), keepalive_expiry=_KEEP_ALIVE)
        return httpx.AsyncHTTPTransport(verify=context[0], trust_env=False, limits=limits, proxy=proxy)

    return make


def _proxy(base: BaseUrl) -> httpx.Proxy | None:
    """The environment's proxy for this service, if any; never one for this machine itself."""
    if base.is_loopback or proxy_bypass(base.host.strip("[]")):
        return None
    found = getproxies()
    named = found.get(base.scheme) or found.get("all")
    if not named:
        return None
    fault = None
    try:
        proxy = httpx.Proxy(named if "://" in named else f"http://{named}")
        if proxy.url.scheme in ("http", "https"):
            return proxy
        fault = f"a {proxy.url.scheme} proxy, which is not supported"
    except (ValueError, httpx.InvalidURL):
        fault = "no URL"
    raise UsageError(
        f"the environment's proxy is {fault}; set {base.scheme.upper()}_PROXY to an http:// one, or NO_PROXY"
    )
