"""The async client: one method per endpoint, and waiting for jobs.

A failed free request is repeated (:func:`bansong.client.errors.may_go_again`). A request that is paid for, or changes
something, is not; the class of the error says whether it was done (see :mod:`bansong.errors`).
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from copy import copy
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final, Self, TypeVar

import anyio

from bansong.base.errors import JobTimeoutError, NotFoundError, Problem, ServiceError, ShapeError, UsageError
from bansong.base.key import ApiKey
from bansong.base.messages import Option, gettext
from bansong.client.address import BaseUrl
from bansong.client.arguments import (
    FileContent,
    flag,
    job_id_of,
    job_id_text,
    optional_text,
    seconds,
    ten_digits,
    upload_file,
    watch_id_text,
    whole_number,
)
from bansong.client.errors import RAW_KEPT, may_go_again, one_line, seconds_before
from bansong.client.evidence import UnreadableError
from bansong.client.request import (
    ServiceRequest,
    Step,
    Timeout,
    Timeouts,
    Verify,
    check_headers,
    check_proxy,
    file_body,
    idempotency_header,
    post_request,
    request_id_of,
    tls_context,
    without_missing,
)
from bansong.client.responses import (
    Account,
    Acknowledged,
    BatchCreated,
    BatchStatus,
    Result,
    Verified,
    WatchChange,
    WatchEntry,
    read_account,
    read_acknowledged,
    read_created,
    read_history,
    read_status,
    read_verified,
    read_watch,
    read_watches,
)
from bansong.client.transport import EventHooks, HttpClient, ServiceResponse, Transport, check_http_client

if TYPE_CHECKING:
    from bansong.client.blocking import RawClient

JOB_TIMED_OUT: Final = Problem(
    "service.job_timed_out",
    "job {job_id} is not done after {timeout:g} s (its status: {said}); it goes on at the service: wait "
    "again, or give a larger {option}",
)
JOB_NOT_DONE: Final = Problem(
    "service.job_not_done", "job {job_id} is still {status!r}; wait for it first: client.wait(job)"
)
JOB_SIZE_UNKNOWN: Final = Problem(
    "service.job_size_unknown", "the service does not say how many rows job {job_id} has; give {option}"
)

_AGE_PER_PAUSE: Final = 60.0  # pauses grow to a sixtieth of the job's age
_MAX_PAUSE_S: Final = 30.0
_MAX_NOT_FOUND: Final = 10  # answers, for a job that was just created


class JobWatch:
    """Poll a job. Each :meth:`look` but the first waits before it sends a request."""

    def __init__(self, client: Client, job: str | BatchCreated, timeout: float | None, poll: float) -> None:
        self._client = client
        self._job_id = job_id_of(job)
        self._timeout = math.inf if timeout is None else seconds("timeout", timeout)
        self._poll = seconds("poll", poll)
        self._may_be_unknown = _MAX_NOT_FOUND if isinstance(job, BatchCreated) else 0
        self._begun: float | None = None
        self._last: BatchStatus | None = None

    async def look(self) -> BatchStatus:
        """Return the job's status; raise :class:`JobTimeoutError` at the timeout, or the service's error."""
        begun = anyio.current_time() if self._begun is None else self._begun
        with anyio.CancelScope(deadline=begun + self._timeout):
            while True:
                if self._begun is not None:
                    age = anyio.current_time() - begun
                    await anyio.sleep(max(self._poll, min(age / _AGE_PER_PAUSE, _MAX_PAUSE_S)))
                self._begun = begun
                try:
                    self._last = await self._client.batch(self._job_id, preview=1)
                except NotFoundError:
                    if self._last is not None or self._may_be_unknown <= 0:
                        raise
                    self._may_be_unknown -= 1
                    continue
                return self._last
        said = "unknown" if self._last is None else repr(self._last.status)
        raise JobTimeoutError(
            JOB_TIMED_OUT, job_id=self._job_id, timeout=self._timeout, said=said, option=Option("timeout")
        )


async def fetch_results(client: Client, job: str | BatchCreated, total: int | None) -> Iterator[Result]:
    """Fetch all results of a finished job in one response, as the interface has no pages."""
    job_id = job_id_of(job)
    if total is None and isinstance(job, BatchCreated):
        total = job.total
    preview = 1 if total is None else whole_number("total", total, 0)
    raw = await client.with_raw_response.batch(job_id, preview=preview)
    status = raw.parse()
    if status.state == "working":
        raise UsageError(JOB_NOT_DONE, job_id=job_id, status=status.status)
    total = status.total if total is None else total
    if total is None:
        raise UsageError(JOB_SIZE_UNKNOWN, job_id=job_id, option=Option("total"))
    if total > preview:
        raw = await client.with_raw_response.batch(job_id, preview=total)
    return _iterate_results(job_id, raw.parse(), total, raw.request_id)


def _iterate_results(job_id: str, status: BatchStatus, total: int, request_id: str | None) -> Iterator[Result]:
    yield from status.results
    if len(status.results) < total:
        raise ShapeError(
            gettext(
                "job {job_id} ({status}): {given:,} of {total:,} results came; ask again later, and upload fewer rows "
                "at a time if the service shows no more than that",
                job_id=job_id,
                status=status.status,
                given=len(status.results),
                total=total,
            ),
            request_id=request_id,
        )


class ResultIterator(AsyncIterator[Result]):
    """Iterate over a job's results; the first step fetches them. A class, as trio warns of unfinished generators."""

    def __init__(self, client: Client, job: str | BatchCreated, total: int | None) -> None:
        self._client, self._job, self._total = client, job, total
        self._results: Iterator[Result] | None = None

    def __aiter__(self) -> ResultIterator:
        return self

    async def __anext__(self) -> Result:
        if self._results is None:
            self._results = await fetch_results(self._client, self._job, self._total)
        for result in self._results:
            return result
        raise StopAsyncIteration


CLIENT_ALREADY_OPEN: Final = Problem(
    "service.client_already_open", "this client is open already: use one `async with` at a time"
)
CLIENT_NOT_OPEN: Final = Problem(
    "service.client_not_open",
    "this {name} is not open: use it inside `async with … as client`, or `await client.open()`",
)

_log = logging.getLogger(__name__)

_PREVIEW_BYTES: Final = 8 << 20
_PREVIEW_BYTES_A_ROW: Final = 8 << 10

T = TypeVar("T")


class Client:
    """The hosted service, asynchronous, under asyncio and trio::

        async with Client("https://api.example.com", "your API key") as client:
            verified = await client.verify("124-81-00998", "삼성전자")

    Without ``base_url`` and ``api_key`` the environment is read (BANSONG_BASE_URL, BANSONG_API_KEY). Without
    ``async with``: :meth:`open` and :meth:`aclose`. Each method takes ``timeout``, ``max_retries`` and more ``headers``
    for that call.
    Raises :class:`bansong.errors.BansongError`; a :class:`UsageError` is raised before anything is sent.
    """

    def __init__(
        self,
        base_url: str | BaseUrl | None = None,
        api_key: str | ApiKey | None = None,
        *,
        concurrency: int = 16,
        timeout: Timeout = 30.0,
        max_retries: int = 2,
        allow_http: bool = False,
        verify: Verify = True,
        http_client: HttpClient | None = None,
        app: object | None = None,
        proxy: str | None = None,
        event_hooks: EventHooks | None = None,
    ) -> None:
        """Check the arguments; nothing is connected yet.

        ``concurrency``: requests at once, without uploads. ``timeout``: seconds without a sign of the service (uploads:
        four times that), :class:`Timeouts` or an ``httpx.Timeout``. ``max_retries``: repetitions of a failed free
        request; other requests are repeated only if they certainly did not arrive. ``allow_http``: plain http beyond
        this machine. ``verify``: the path of a CA bundle (PEM) or an ``ssl.SSLContext``; ``False`` for a service on
        this machine only. ``http_client``: an ``httpx.AsyncClient`` or ``httpx.AsyncBaseTransport`` for all requests
        (own proxies, client certificates, tests), closed by the caller. ``app``: an ASGI app in this process.
        ``proxy``: the URL of an HTTP proxy, instead of the environment's. ``event_hooks``: as httpx's, async functions
        for ``"request"`` (without the key) and ``"response"``. Raises :class:`UsageError`.
        """
        self._transport: Transport | None = None
        self._original: Client | None = None  # of a copy: has the transport
        self._headers: dict[str, str] = {}
        self._unknown_words: set[str] = set()
        try:
            self._key = (
                ApiKey.load() if api_key is None else api_key if isinstance(api_key, ApiKey) else ApiKey(api_key)
            )
        finally:
            del api_key  # a traceback may be shown with its variables
        self._base = base_url if isinstance(base_url, BaseUrl) else BaseUrl.parse(base_url, allow_http=allow_http)
        self._max_retries = whole_number("max_retries", max_retries, 0)
        self._timeouts = Timeouts.of(timeout)
        self._make_transport = partial(
            Transport,
            self._base,
            self._key,
            concurrency=whole_number("concurrency", concurrency, 1),
            timeouts=self._timeouts,
            app=app,
            http_client=check_http_client(http_client, self._base, verify, app, proxy),
            tls=tls_context(verify, self._base),
            proxy=check_proxy(proxy),
            hooks=event_hooks,
        )

    @property
    def origin(self) -> str:
        """The service's name in the ledger: its base URL in canonical form, or ``known_as``."""
        return self._base.name

    @property
    def with_raw_response(self) -> RawClient:
        """The same methods, each returning the raw response: status, headers, request id, ``parse()``."""
        from bansong.client.blocking import RawClient

        return RawClient(self)

    def with_options(
        self,
        *,
        timeout: Timeout | None = None,
        max_retries: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Self:
        """Return a copy with another ``timeout`` and ``max_retries``, if given, and further ``headers``, for all calls.

        The copy uses the connections of this client, and so only works while this client is open. To open or close the
        copy does nothing. Raises :class:`UsageError`.
        """
        made = copy(self)
        made._original, made._transport = self._original or self, None
        made._headers = self._headers | check_headers(headers)
        made._timeouts = self._timeouts if timeout is None else Timeouts.of(timeout)
        made._max_retries = self._max_retries if max_retries is None else whole_number("max_retries", max_retries, 0)
        return made

    async def open(self) -> Self:
        """Open the client without ``async with``; :meth:`aclose` ends that. Opening it twice does nothing."""
        if self._original is not None:
            self._open_transport()
        elif self._transport is None:
            self._transport = self._make_transport()
        return self

    async def aclose(self) -> None:
        """Close all connections. Closing twice does nothing; the client may be opened again."""
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.aclose()

    async def __aenter__(self) -> Self:
        if self._transport is not None:
            raise UsageError(CLIENT_ALREADY_OPEN)
        return await self.open()

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        if getattr(self, "_transport", None) is not None:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=2)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._base.origin!r})"

    def account_mark(self, salt: str) -> bytes:
        """Return eight bytes that identify the API key and ``salt``. The key cannot be derived from them."""
        return self._key.fingerprint(salt)

    def redact(self, raw: bytes) -> bytes:
        """Return bytes received from the service, with the API key removed."""
        return self._key.redact(raw)

    async def verify(
        self,
        b_no: str,
        name: str | None = None,
        address: str | None = None,
        *,
        idempotency_key: str | None = None,
        timeout: Timeout | None = None,
        max_retries: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Verified:
        """Verify one business (INTERFACE §4.1). This is a paid lookup; only what is given is sent.

        With an ``idempotency_key`` (1 to 200 visible ASCII characters) it is paid once however often it is sent, if
        the service promises that: see :attr:`Account.idempotency <bansong.client.responses.Account.idempotency>`.
        """
        digits = ten_digits("b_no", b_no)
        request = post_request(
            ("verify",),
            without_missing(b_no=digits, name=optional_text("name", name), address=optional_text("address", address)),
            lambda answer: read_verified(answer, digits, name, address),
            idempotency_header(idempotency_key),
            replacing=True,
        )
        return await self._send(request, timeout, max_retries, headers)

    async def create_batch(
        self,
        content: FileContent,
        *,
        filename: str | None = None,
        offline: bool | None = None,
        paid: bool | None = None,
        before_last_byte: Step | None = None,
        after_last_byte: Step | None = None,
        idempotency_key: str | None = None,
        timeout: Timeout | None = None,
        max_retries: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> BatchCreated:
        """Upload a file; each of its rows is verified and paid for (INTERFACE §4.2).

        ``content``: the file's bytes, a ``pathlib.Path``, or a file open in binary mode; it is read whole before
        anything is sent. Its kind (CSV, xlsx, xls, JSON) follows ``filename``, the path's name, or its first bytes.
        ``before_last_byte`` is awaited before the closing boundary is sent: until then the service cannot have the
        whole file, and a failure is a :class:`NotSentError`. ``after_last_byte`` is awaited when the last byte is
        handed to the network. ``idempotency_key``: as for :meth:`verify`.
        """
        flags = {name: flag(name, value) for name, value in (("offline", offline), ("paid", paid)) if value is not None}
        repeated = idempotency_header(idempotency_key)
        file = await upload_file(content, filename)
        parts = (file.content, file.name, file.media_type)
        body = partial(file_body, *parts, before_last=before_last_byte, after_last=after_last_byte)
        params = {name: str(value).lower() for name, value in flags.items()} or None
        request = ServiceRequest(
            "POST", ("batch",), read_created, body, params=params, headers=repeated, is_upload=True
        )
        return await self._send(request, timeout, max_retries, headers)

    async def batch(
        self,
        job_id: str,
        *,
        preview: int | None = None,
        timeout: Timeout | None = None,
        max_retries: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> BatchStatus:
        """Return the state of a job and its first ``preview`` results (INTERFACE §4.3)."""
        path = ("batch", job_id_text(job_id))
        rows = 0 if preview is None else whole_number("preview", preview, 0)
        params = None if preview is None else {"preview": str(rows)}
        limit = _PREVIEW_BYTES + _PREVIEW_BYTES_A_ROW * rows
        request = ServiceRequest("GET", path, read_status, params=params, limit=limit, replacing=True)
        return await self._send(request, timeout, max_retries, headers)

    async def wait(
        self,
        job: str | BatchCreated,
        *,
        timeout: float | None = None,
        poll: float = 1.0,
        progress: Callable[[BatchStatus], object] | None = None,
    ) -> BatchStatus:
        """Wait until a job is done or failed, and return its last status.

        The job is polled every ``poll`` seconds, less often if it takes minutes; ``progress`` gets each status. After
        ``timeout`` seconds (by default never) :class:`JobTimeoutError` is raised; the job goes on. A new job may be
        unknown to the service for some moments.
        """
        watch = JobWatch(self, job, timeout, poll)
        while True:
            status = await watch.look()
            if progress is not None:
                progress(status)
            if status.state != "working":
                return status

    def results(self, job: str | BatchCreated, *, total: int | None = None) -> AsyncIterator[Result]:
        """Iterate over all results of a finished job (``async for``), in the order of the service.

        The interface has no pages: all results are fetched at once. ``total``: the job's number of rows (default: as
        the service says). If fewer results come, :class:`ShapeError` follows the last one. Raises :class:`UsageError`
        for an unfinished job, or one of unknown size.
        """
        job_id_of(job)
        return ResultIterator(self, job, None if total is None else whole_number("total", total, 0))

    async def label(
        self,
        job_id: str,
        row_id: int,
        *,
        bounced: bool,
        reason: str | None = None,
        timeout: Timeout | None = None,
        max_retries: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Acknowledged:
        """Record whether the letter to a row of a job came back (INTERFACE §4.4).

        ``row_id``: the service's identifier of the row in the job's results (G30).
        """
        path, row = ("batch", job_id_text(job_id), "label"), whole_number("row_id", row_id)
        outcome = without_missing(row_id=row, bounced=flag("bounced", bounced), reason=optional_text("reason", reason))
        return await self._send(post_request(path, outcome, read_acknowledged), timeout, max_retries, headers)

    async def watch_add(
        self,
        biz_no: str,
        name: str | None = None,
        address: str | None = None,
        *,
        timeout: Timeout | None = None,
        max_retries: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> WatchEntry:
        """Put a business on the watch list (INTERFACE §4.5)."""
        digits = ten_digits("biz_no", biz_no)
        entry = without_missing(
            biz_no=digits, name=optional_text("name", name), address=optional_text("address", address)
        )
        return await self._send(post_request(("watch",), entry, read_watch), timeout, max_retries, headers)

    async def watch_list(
        self,
        *,
        timeout: Timeout | None = None,
        max_retries: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> list[WatchEntry]:
        """Return the whole watch list (INTERFACE §4.6)."""
        return await self._send(ServiceRequest("GET", ("watch",), read_watches), timeout, max_retries, headers)

    async def watch_remove(
        self,
        watch_id: str,
        *,
        timeout: Timeout | None = None,
        max_retries: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Acknowledged:
        """Take a business off the watch list (INTERFACE §4.7)."""
        path = ("watch", watch_id_text(watch_id))
        return await self._send(ServiceRequest("DELETE", path, read_acknowledged), timeout, max_retries, headers)

    async def watch_history(
        self,
        watch_id: str,
        *,
        timeout: Timeout | None = None,
        max_retries: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> list[WatchChange]:
        """Return the changes of a watched business's grade, the oldest first (INTERFACE §4.8; Business plan only)."""
        path = ("watch", watch_id_text(watch_id), "history")
        return await self._send(ServiceRequest("GET", path, read_history), timeout, max_retries, headers)

    async def me(
        self,
        *,
        timeout: Timeout | None = None,
        max_retries: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Account:
        """Return the account and its monthly quota (INTERFACE §4.9)."""
        return await self._send(ServiceRequest("GET", ("me",), read_account), timeout, max_retries, headers)

    def _open_transport(self) -> Transport:
        transport = (self._original or self)._transport
        if transport is None:
            raise UsageError(CLIENT_NOT_OPEN, name=type(self).__name__)
        return transport

    async def _send(
        self,
        request: ServiceRequest[T],
        timeout: Timeout | None,
        max_retries: int | None,
        headers: Mapping[str, str] | None,
    ) -> T:
        # RawClient replaces this method
        return self._read(await self._ask(request, timeout, max_retries, headers), request)

    async def _ask(
        self,
        request: ServiceRequest[T],
        timeout: Timeout | None,
        max_retries: int | None,
        headers: Mapping[str, str] | None,
    ) -> ServiceResponse:
        transport, url = self._open_transport(), self._base.url(*request.path)
        timeouts = self._timeouts if timeout is None else Timeouts.of(timeout)
        more = self._headers | check_headers(headers) | dict(request.headers or {})
        retries = self._max_retries if max_retries is None else whole_number("max_retries", max_retries, 0)
        for attempt in count(1):
            body = None if request.body is None else request.body()
            try:
                return await transport.ask(
                    request.method,
                    url,
                    params=request.params,
                    body=body,
                    upload=request.is_upload,
                    limit=request.limit,
                    headers=more,
                    timeouts=timeouts,
                )
            except ServiceError as error:
                if attempt > retries or not may_go_again(error, is_free=request.method == "GET"):
                    raise
                pause = seconds_before(attempt, error.retry_after)
                _log.debug("%s; retry %d of %d in %.1f s", error, attempt, retries, pause)
            await anyio.sleep(pause)
        raise AssertionError("the attempts end in a response or an error")

    def _read(self, response: ServiceResponse, request: ServiceRequest[T]) -> T:
        # the error is raised outside the frames that hold the answer, and without the key
        try:
            value = request.parse(response.body)
            if isinstance(value, BatchStatus) and not value.known_word:
                self._warn_of_word(value.status)
            return value
        except UnreadableError as error:
            fault = self._key.redact(one_line(str(error)))
        words = gettext(
            "{asked}: {status}, the answer {fault}", asked=response.asked, status=response.status, fault=fault
        )
        raw, request_id = self._key.redact(response.body)[:RAW_KEPT], request_id_of(response.headers, self._key)
        raise ShapeError(words, status=response.status, detail=fault, raw=raw, request_id=request_id)

    def _warn_of_word(self, word: str) -> None:
        if word not in self._unknown_words:
            self._unknown_words.add(word)
            shown = self._key.redact(one_line(word))
            _log.warning(
                gettext("the status word %r of the service is not known: its job is taken as still at work"), shown
            )
