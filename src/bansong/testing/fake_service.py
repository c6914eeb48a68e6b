"""The hosted service, faked, on a socket."""

# ruff: noqa: ARG001 - every endpoint is called alike

from __future__ import annotations

import json
import socket
import struct
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from hmac import compare_digest
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol
from urllib.parse import unquote

import anyio

from bansong.testing import messages
from bansong.testing.faults import Faults
from bansong.testing.messages import (
    WRITE,
    BrokenConnectionError,
    ClientGoneError,
    FakeReply,
    FakeRequest,
    Lookup,
    Receive,
    RefusedError,
    Scope,
    Send,
    Verdict,
    header,
    parts_of,
)
from bansong.testing.state import (
    PROMISE,
    Billing,
    Dialect,
    FakeJob,
    FakeLabel,
    FakeUpload,
    FakeWatches,
    ReplayMemory,
    is_number,
    is_text,
    new_id,
    read_upload,
)

if TYPE_CHECKING:
    import uvicorn


_AT_ONCE: Final = struct.pack("ii", 1, 0)
"""SO_LINGER with 0 seconds: closing such a socket sends RST."""


class FakeApp(Protocol):
    """An ASGI app with faults."""

    faults: Faults

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


@contextmanager
def serve(service: FakeApp, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Serve on a loopback port during the block; yield the base URL. Needs uvicorn.

    Leaving the block breaks busy connections, as a crash would. The service can be served again, also on the same
    ``port``.
    """
    server = server_for(service)
    listener = listening(host, port)
    thread = Thread(target=server.run, kwargs={"sockets": [listener]}, name="bansong-fake-service", daemon=True)
    thread.start()
    try:
        while not server.started:
            if not thread.is_alive():
                raise RuntimeError("uvicorn did not start")
            time.sleep(0.005)
        yield url_of(listener)
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def listening(host: str, port: int) -> socket.socket:
    # the protocol is named because asyncio sets TCP_NODELAY only then: without it each reply takes 40 ms
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if not hasattr(socket, "SO_EXCLUSIVEADDRUSE"):  # on Windows it would let two have the address at once
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    return listener


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def server_for(service: FakeApp) -> uvicorn.Server:
    """Return a quiet uvicorn server that breaks connections on request."""
    try:
        import uvicorn
    except ImportError as error:
        raise RuntimeError(
            "serving the fake on a socket needs uvicorn: pip install uvicorn (in-process it needs nothing: "
            "httpx.ASGITransport(app=service))"
        ) from error

    class BreakableServer(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            service.faults.release()
            for connection in list(self.server_state.connections):
                transport: Any = getattr(connection, "transport", None)
                if transport is not None:
                    transport.abort()
            await anyio.sleep(0.01)
            await super().shutdown(sockets)

    async def breakable(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope[WRITE] = lambda content: _write(server, scope, content)
        try:
            await service(scope, receive, send)
        except BrokenConnectionError as broken:
            _break(server, scope, reset=broken.reset)
            while (await receive())["type"] != "http.disconnect":
                pass

    config = uvicorn.Config(
        breakable,
        lifespan="off",
        ws="none",
        log_config=None,
        log_level="critical",
        access_log=False,
        date_header=False,
        server_header=False,
        timeout_graceful_shutdown=2,
    )
    server = BreakableServer(config)
    return server


def _break(server: uvicorn.Server, scope: Scope, *, reset: bool) -> None:
    transport = _transport(server, scope)
    if transport is None:
        return
    if reset:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        transport.abort()
    else:
        transport.close()


def _write(server: uvicorn.Server, scope: Scope, content: bytes) -> None:
    transport = _transport(server, scope)
    if transport is not None:
        transport.write(content)


def _transport(server: uvicorn.Server, scope: Scope) -> Any:
    connections = list(server.server_state.connections)
    found = (one for one in connections if getattr(one, "client", None) == scope["client"])
    return getattr(next(found, None), "transport", None)


Endpoint = Callable[["FakeService", FakeRequest], Awaitable[FakeReply]]


async def verify(service: FakeService, request: FakeRequest) -> FakeReply:
    """POST /verify: paid once the request is understood."""
    body = await _json_object(service, request)
    lookup = Lookup(_number(body, "b_no"), _text(body, "name"), _text(body, "address"))
    if not service.billing.take((lookup,)):
        raise _no_quota(service)
    answered = lookup if request.answered_record is None else request.answered_record(lookup)
    body = messages.verification(service.dialect, answered, service.verdict(*answered))
    return FakeReply(200, messages.encode_json(body))


async def batch(service: FakeService, request: FakeRequest) -> FakeReply:
    """POST /batch: all rows are paid once the whole upload is understood."""
    query = request.query()
    for name in ("offline", "paid"):
        if query.get(name, "true").lower() not in ("true", "false"):
            raise RefusedError(422, f"{name} is true or false")
    body = await request.body(service.max_bytes)
    upload, lookups = read_upload(parts_of(header(request.scope, b"content-type"), body))
    upload.offline, upload.paid = query.get("offline"), query.get("paid")
    service.uploads.append(upload)
    if service.max_rows is not None and len(lookups) > service.max_rows:
        raise RefusedError(413, f"more than {service.max_rows} rows")
    job = _create_job(service, upload, lookups)
    shown: str | int = int(job.id) if service.dialect.job_ids == "integer" else job.id
    created: messages.Object = {"job_id": shown, "total": len(lookups)}
    if service.dialect.extras:
        created |= {"status": "accepted", "eta_seconds": 3}
    return FakeReply(service.dialect.created, messages.encode_json(created))


def _create_job(service: FakeService, upload: FakeUpload, lookups: Sequence[Lookup]) -> FakeJob:
    """Create the job of rows that are now paid; its faults are invalid rows and those beyond the quota."""
    faults = {place: "b_no is not ten digits" for place, row in enumerate(lookups) if not is_number(row.b_no)}
    places = [place for place in range(len(lookups)) if place not in faults]
    job_id = new_id(service.dialect)
    taken = service.billing.take(
        [lookups[place] for place in places], partial=service.batch_quota == "partial", job=job_id
    )
    if places and not taken:
        raise _no_quota(service)
    faults |= dict.fromkeys(places[taken:], "monthly quota exceeded")
    upload.job_id = job_id
    job = FakeJob(job_id, lookups, upload, anyio.current_time(), service.job_seconds, faults)
    service.jobs[job_id] = job
    return job


async def job(service: FakeService, request: FakeRequest) -> FakeReply:
    try:
        text = request.query().get("preview")
        preview = None if text is None else int(text)
    except ValueError as error:
        raise RefusedError(422, "preview is an integer") from error
    if preview is not None and preview < 0:
        raise RefusedError(422, "preview is not negative")
    job = _job(service, request)
    job.polls += 1
    word, done = job.progress(service.dialect, anyio.current_time())
    if request.answered_record is not None:
        job = replace(job, rows=[request.answered_record(row) for row in job.rows])
    record = messages.status_record(
        service.dialect, job, request.word or word, done, preview, service.verdict, request.edits
    )
    if service.forget_fetched and word == service.dialect.done and (preview or 0) >= len(job.rows):
        request.last = job.id
    return FakeReply(200, messages.encode_json(record))


async def label(service: FakeService, request: FakeRequest) -> FakeReply:
    job = _job(service, request)
    body = await _json_object(service, request)
    row_id, bounced = body.get("row_id"), body.get("bounced")
    if type(row_id) is not int or type(bounced) is not bool:
        raise RefusedError(422, "row_id is an integer and bounced a boolean")
    if not 0 <= row_id - service.dialect.row_base < len(job.rows):
        raise RefusedError(404, f"the job has no row {row_id}")
    service.labels.append(FakeLabel(job.id, row_id, bounced, _text(body, "reason")))
    return _confirm(service, service.dialect.label)


async def watch_add(service: FakeService, request: FakeRequest) -> FakeReply:
    body = await _json_object(service, request)
    watch = service.watches.add(
        _number(body, "biz_no"), _text(body, "name"), _text(body, "address"), service.dialect, service.verdict
    )
    entry = watch.entry(service.dialect)
    return _reply(service, entry, service.dialect.created)


async def watch_list(service: FakeService, request: FakeRequest) -> FakeReply:
    entries: Any = [watch.entry(service.dialect) for watch in service.watches]
    if service.dialect.watches != "list":
        entries = {service.dialect.watches: entries, "total": len(entries)}
    return _reply(service, entries)


async def watch_remove(service: FakeService, request: FakeRequest) -> FakeReply:
    if not service.watches.remove(request.target):
        raise RefusedError(404, "no such watch")
    return _confirm(service, service.dialect.removed)


async def watch_history(service: FakeService, request: FakeRequest) -> FakeReply:
    """GET /watch/{watch_id}/history: Business plan only."""
    if service.plan != "business":
        raise RefusedError(403, "the history needs the Business plan")
    watch = service.watches.get(request.target)
    if watch is None:
        raise RefusedError(404, "no such watch")
    changes: Any = watch.changes
    if service.dialect.history != "list":
        changes = {service.dialect.history: changes}
    return _reply(service, changes)


async def me(service: FakeService, request: FakeRequest) -> FakeReply:
    account = messages.account(service.dialect, service.plan, service.quota, service.used)
    return _reply(service, account | (PROMISE if service.idempotency else {}))


ENDPOINTS: Final[dict[str, Endpoint]] = {
    "verify": verify,
    "batch": batch,
    "job": job,
    "label": label,
    "watch_add": watch_add,
    "watch_list": watch_list,
    "watch_remove": watch_remove,
    "watch_history": watch_history,
    "me": me,
}


def _reply(service: FakeService, value: object, status: int = 200) -> FakeReply:
    return FakeReply(status, messages.encode_json(messages.wrap_reply(service.dialect, value)))


def _confirm(service: FakeService, status: int) -> FakeReply:
    return FakeReply(204, content_type=None) if status == 204 else _reply(service, {"ok": True}, status)


def _no_quota(service: FakeService) -> RefusedError:
    return RefusedError(429, "monthly quota exceeded", retry_after=service.quota_retry_after)


def _job(service: FakeService, request: FakeRequest) -> FakeJob:
    job = service.jobs.get(request.target)
    if job is None:
        raise RefusedError(404, "no such job")
    return job


async def _json_object(service: FakeService, request: FakeRequest) -> dict[str, Any]:
    kind = header(request.scope, b"content-type") or b""
    if kind.partition(b";")[0].strip().lower() != b"application/json":
        raise RefusedError(415, "application/json is expected")
    try:
        body = json.loads(await request.body(service.max_bytes))
    except (ValueError, RecursionError) as error:
        raise RefusedError(400, "the body is not JSON") from error
    if not isinstance(body, dict):
        raise RefusedError(422, "a JSON object is expected")
    return body


def _number(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if not is_number(value):
        raise RefusedError(422, f"{name} is a text of ten digits")
    return str(value)


def _text(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if value is None:
        return ""
    if not is_text(value):
        raise RefusedError(422, f"{name} is text")
    return str(value)


_ROUTES: Final = {
    ("POST", ("verify",)): "verify",
    ("POST", ("batch",)): "batch",
    ("GET", ("batch", "*")): "job",
    ("POST", ("batch", "*", "label")): "label",
    ("POST", ("watch",)): "watch_add",
    ("GET", ("watch",)): "watch_list",
    ("DELETE", ("watch", "*")): "watch_remove",
    ("GET", ("watch", "*", "history")): "watch_history",
    ("GET", ("me",)): "me",
}


class FakeService:
    """The service of INTERFACE.md, for ``httpx.ASGITransport`` or :func:`bansong.testing.serve`.

    A lookup is paid when it is taken: by ``/verify`` once the request is understood, by ``/batch`` with all rows once
    the whole upload is. It stays paid whatever fails afterwards. ``paid`` counts the payments of each lookup.

    ``quota``: ``None`` is unlimited. A batch beyond it is refused, or with ``batch_quota="partial"`` its first rows are
    taken and the others fail. ``plan``: only ``business`` has a watch history, ``free`` has nothing. ``job_seconds``:
    duration of a job (0: as many polls as the dialect has words). ``forget_fetched``: drop a job once all its results
    were fetched. ``idempotency``: promise in ``/me`` that a request with an ``Idempotency-Key`` is done once; repeated,
    it gets the same reply unpaid, and another request with that key 409. All may be changed while it serves. A service
    that is served again remembers everything, unless :meth:`forget_jobs`.
    """

    def __init__(
        self,
        api_key: str = "test-key",
        *,
        quota: int | None = None,
        used: int = 0,
        plan: str = "business",
        dialect: Dialect | None = None,
        faults: Faults | None = None,
        verdict: Verdict | None = None,
        max_rows: int | None = None,
        max_bytes: int | None = None,
        batch_quota: Literal["whole", "partial"] = "whole",
        quota_retry_after: str | None = None,
        job_seconds: float = 0.0,
        forget_fetched: bool = False,
        count_only: bool = False,
        journal: str | Path | None = None,
        prefix: str = "",
        idempotency: bool = False,
    ) -> None:
        self.api_key = api_key
        self.plan = plan
        self.dialect = dialect or Dialect()
        self.faults = faults or Faults()
        self.verdict = verdict or messages.verdict
        self.max_rows = max_rows
        self.max_bytes = max_bytes
        self.batch_quota = batch_quota
        self.quota_retry_after = quota_retry_after
        self.job_seconds = job_seconds
        self.forget_fetched = forget_fetched
        self.prefix = prefix
        self.idempotency = idempotency
        self.memory = ReplayMemory()
        self.billing = Billing(quota, used, count_only=count_only, journal=None if journal is None else Path(journal))
        self.jobs: dict[str, FakeJob] = {}
        self.uploads: list[FakeUpload] = []
        self.labels: list[FakeLabel] = []
        self.watches = FakeWatches()
        self.in_flight = 0
        self.most_in_flight = 0
        self._requests: Counter[str] = Counter()
        self._polls: Counter[str] = Counter()
        self._lock = Lock()

    @property
    def paid(self) -> Counter[Lookup]:
        """How often each (b_no, name, address) was paid; a copy."""
        return self.billing.count_paid()

    @property
    def paid_total(self) -> int:
        return self.billing.total

    @property
    def paid_again(self) -> int:
        """Payments of lookups that had been paid before."""
        return self.billing.again()

    @property
    def requests(self) -> Counter[str]:
        """Requests by kind, including those hit by faults; a copy."""
        with self._lock:
            return self._requests.copy()

    @property
    def quota(self) -> int | None:
        return self.billing.quota

    @quota.setter
    def quota(self, quota: int | None) -> None:
        self.billing.quota = quota

    @property
    def used(self) -> int:
        """Used part of the quota; set it to 0 for a new month."""
        return self.billing.used

    @used.setter
    def used(self, used: int) -> None:
        self.billing.used = used

    def forget_jobs(self) -> None:
        """Forget all jobs, as a restart without memory would. What was paid stays paid."""
        self.jobs.clear()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        request = FakeRequest(*self._kind(scope), scope, receive, self, self.faults.releases)
        with self._lock:
            self._requests[request.kind] += 1
            if request.kind == "job":
                self._polls[request.target] += 1
                request.polls = self._polls[request.target]
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            reply = await self._reply(request)
            await reply.send(send)
            if reply.twice and WRITE in scope:
                scope[WRITE](reply.whole())
            if request.last is not None:
                self.jobs.pop(request.last, None)
        except ClientGoneError:
            pass
        finally:
            with self._lock:
                self.in_flight -= 1

    async def _reply(self, request: FakeRequest) -> FakeReply:
        acts = self.faults.of(request)
        for act in acts:
            instead = await act.before(request)
            if instead is not None:
                return instead
        try:
            reply = await self._answer(request)
        except RefusedError as refused:
            await request.rest()  # a client that is still sending would see a broken connection
            reply = self._refusal(refused)
        for act in acts:
            reply = await act.after(request, reply)
        return reply

    async def _answer(self, request: FakeRequest) -> FakeReply:
        key = header(request.scope, b"x-api-key")
        if key is None or not compare_digest(key, self.api_key.encode("utf-8")):
            raise RefusedError(401, "the API key is missing or invalid")
        if self.plan == "free":
            raise RefusedError(403, "the API is not available in this plan")
        endpoint = ENDPOINTS.get(request.kind)
        if endpoint is None:
            raise RefusedError(404 if request.kind == "unknown" else 405, "no such endpoint")
        if not self.idempotency:
            return await endpoint(self, request)
        return await self.memory.reply(request, self.max_bytes, lambda: endpoint(self, request))

    def _refusal(self, refused: RefusedError) -> FakeReply:
        body, content_type = messages.error_body(self.dialect, refused.status, str(refused))
        wait = refused.retry_after
        headers = [] if wait is None else [(b"retry-after", wait.encode("latin-1"))]
        return FakeReply(refused.status, body, content_type, headers)

    def _kind(self, scope: Scope) -> tuple[str, str]:
        path = scope.get("raw_path", b"").decode("latin-1") or scope["path"]
        if path == "/verify" and not self.prefix:  # the way that must be short
            segments = ["verify"]
        elif path.startswith(f"{self.prefix}/"):
            segments = path[len(self.prefix) + 1 :].split("/")
        else:
            return "unknown", ""
        target = unquote(segments[1]) if len(segments) > 1 else ""
        shape = (segments[0], *(["*"] if target else segments[1:2]), *segments[2:])
        kind = _ROUTES.get((scope["method"], shape))
        if kind is None:
            kind = "wrong_method" if any(shape == known for _, known in _ROUTES) else "unknown"
        return kind, target


async def _live(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
