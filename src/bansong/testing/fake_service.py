"""A fake of the hosted service: uploads, jobs, labels, watches and repeated requests; serving on a socket."""

# ruff: noqa: ARG001 - every endpoint is called alike

from __future__ import annotations

import json
import socket
import struct
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from hmac import compare_digest
from itertools import count
from pathlib import Path
from secrets import token_hex
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple
from urllib.parse import unquote

import anyio

from bansong.testing import messages
from bansong.testing.faults import Faults
from bansong.testing.messages import Dialect, FakeApp, FakeReply, FakeRequest, FakeUpload, Lookup, RefusedError, header

if TYPE_CHECKING:
    import uvicorn


_NO_LINGER: Final = struct.pack("ii", 1, 0)  # closing a socket with this SO_LINGER sends RST


@contextmanager
def serve(service: FakeApp, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Serve a fake on a loopback port during the block; yield the base URL. Needs uvicorn.

    Leaving the block breaks busy connections, as a crash would. The service can be served again.
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
    # asyncio sets TCP_NODELAY only if the protocol is named; without it each reply takes 40 ms
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
    """Return a quiet uvicorn server that can break connections."""
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
                if transport := getattr(connection, "transport", None):
                    transport.abort()
            await anyio.sleep(0.01)
            await super().shutdown(sockets)

    async def breakable(scope: messages.Scope, receive: messages.Receive, send: messages.Send) -> None:
        scope[messages.WRITE] = partial(_write, server, scope)
        try:
            await service(scope, receive, send)
        except messages.BrokenConnectionError as broken:
            _break(_transport(server, scope), reset=broken.reset)
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


def _transport(server: uvicorn.Server, scope: messages.Scope) -> Any:
    connections = list(server.server_state.connections)
    found = (one for one in connections if getattr(one, "client", None) == scope["client"])
    return getattr(next(found, None), "transport", None)


def _write(server: uvicorn.Server, scope: messages.Scope, content: bytes) -> None:
    if transport := _transport(server, scope):
        transport.write(content)


def _break(transport: Any, *, reset: bool) -> None:
    if transport and reset:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        transport.abort()
    elif transport:
        transport.close()


_NUMBERS: Final = count(1001)


@dataclass(slots=True)
class FakeJob:
    """The job of an upload. ``faults`` maps the rows that were not accepted to the reason."""

    id: str
    rows: Sequence[Lookup]
    upload: FakeUpload
    started: float
    seconds: float = 0.0
    faults: dict[int, str] = field(default_factory=dict)
    polls: int = 0

    def progress(self, dialect: Dialect, now: float) -> tuple[str, int]:
        """Return the status word and the number of finished rows. Without ``seconds`` each poll is a step."""
        words = dialect.words
        share = (self.polls - 1) / len(words) if words else 1.0
        if self.seconds:  # a start in the future comes from the clock of an earlier run: the job is done
            share = (now - self.started) / self.seconds if now >= self.started else 1.0
        if share >= 1:
            return dialect.done, len(self.rows)
        step = int(share * len(words) + 1e-9)
        return (words[step] if words else "processing"), int(share * len(self.rows))


def new_id(dialect: Dialect) -> str:
    if dialect.job_ids == "hex":
        return token_hex(8)
    number = next(_NUMBERS)
    return f"2026/11:{number} 작업+#?" if dialect.job_ids == "odd" else str(number)


class FakeLabel(NamedTuple):
    """A recorded label."""

    job_id: str
    row_id: int
    bounced: bool
    reason: str


@dataclass(slots=True)
class FakeWatch:
    """A watched business with its changes of grade, oldest first."""

    id: str
    biz_no: str
    name: str
    address: str
    biz_status: str
    grade: str | None
    changes: list[dict[str, Any]] = field(default_factory=list)

    def entry(self, dialect: Dialect) -> dict[str, Any]:
        watch_id: object = int(self.id) if dialect.watch_ids == "number" else self.id
        entry = {"watch_id": watch_id, dialect.watch_number: self.biz_no, "name": self.name, "address": self.address}
        return entry | {"grade": self.grade, "biz_status": self.biz_status}

    def change(self, grade: str | None, biz_status: str | None = None, at: str | None = None) -> None:
        """Set another grade, and perhaps another status, as if a re-check had found it."""
        at = at or f"2026-11-{len(self.changes) + 1:02d}T09:00:00+09:00"
        item = {"at": at, "before": self.grade, "after": grade, "biz_status": biz_status or self.biz_status}
        self.changes.append(item)
        self.grade, self.biz_status = grade, biz_status or self.biz_status


# part of ``/me``; the fake keeps replies for ever
PROMISE: Final = {"header": "Idempotency-Key", "endpoints": ["POST /verify", "POST /batch"], "keep_seconds": 7 * 86_400}


class ReplayMemory:
    """Successful replies by Idempotency-Key; ``replayed`` counts the requests that they answered again."""

    def __init__(self) -> None:
        self.replayed = 0
        self._known: dict[bytes, tuple[object, FakeReply]] = {}

    async def reply(self, request: FakeRequest, body: bytes, do: Callable[[], Awaitable[FakeReply]]) -> FakeReply:
        """Return the known reply to a request; without one, call ``do`` and keep a successful reply."""
        key = header(request.scope, b"idempotency-key") or b""
        content = [body]
        if request.kind == "batch":  # its boundary may differ
            content = [part.content for part in messages.parts_of(header(request.scope, b"content-type"), body)]
        identity = request.kind, request.query(), content
        if key in self._known:
            before, reply = self._known[key]
            if before != identity:
                raise RefusedError(409, "another request had this Idempotency-Key")
            self.replayed += 1
            return replace(reply)
        reply = await do()  # the whole body is read, so no other request runs before the next lines
        if 200 <= reply.status < 300:
            self._known[key] = identity, replace(reply)
        return reply


Endpoint = Callable[["FakeService", FakeRequest], Awaitable[FakeReply]]


async def verify(service: FakeService, request: FakeRequest) -> FakeReply:
    body = await _json_object(service, request)
    lookup = Lookup(_number(body, "b_no"), _text(body, "name"), _text(body, "address"))
    if not service.take((lookup,)):
        raise RefusedError(429, "monthly quota exceeded")
    answered = lookup if request.answered_record is None else request.answered_record(lookup)
    answer = messages.verification(service.dialect, answered, service.verdict(*answered))
    return FakeReply(200, messages.encode_json(answer))


async def batch(service: FakeService, request: FakeRequest) -> FakeReply:
    query = request.query()
    for name in ("offline", "paid"):
        if query.get(name, "true").lower() not in ("true", "false"):
            raise RefusedError(422, f"{name} is true or false")
    body = await request.body(service.max_bytes)
    upload, lookups = messages.read_upload(messages.parts_of(header(request.scope, b"content-type"), body))
    upload.offline, upload.paid = query.get("offline"), query.get("paid")
    service.uploads.append(upload)
    if service.max_rows is not None and len(lookups) > service.max_rows:
        raise RefusedError(413, f"more than {service.max_rows} rows")
    job = _create_job(service, upload, lookups)
    service.jobs[job.id] = job
    shown: str | int = int(job.id) if service.dialect.job_ids == "integer" else job.id
    created: messages.Object = {"job_id": shown, "total": len(lookups)}
    if service.dialect.extras:
        created |= {"status": "accepted", "eta_seconds": 3}
    return FakeReply(service.dialect.created, messages.encode_json(created))


def _create_job(service: FakeService, upload: FakeUpload, lookups: Sequence[Lookup]) -> FakeJob:
    """Charge the rows and create the job. Invalid rows, and those beyond the quota, fail in it."""
    faults = {place: "b_no is not ten digits" for place, row in enumerate(lookups) if not messages.is_number(row.b_no)}
    places = [place for place in range(len(lookups)) if place not in faults]
    job_id = new_id(service.dialect)
    taken = service.take([lookups[place] for place in places], service.batch_quota == "partial", job_id)
    if places and not taken:
        raise RefusedError(429, "monthly quota exceeded")
    faults |= dict.fromkeys(places[taken:], "monthly quota exceeded")
    upload.job_id = job_id
    return FakeJob(job_id, lookups, upload, anyio.current_time(), service.job_seconds, faults)


async def job(service: FakeService, request: FakeRequest) -> FakeReply:
    try:
        text = request.query().get("preview")
        preview = None if text is None else int(text)
    except ValueError as error:
        raise RefusedError(422, "preview is an integer") from error
    if preview is not None and preview < 0:
        raise RefusedError(422, "preview is not negative")
    job, dialect = _job(service, request), service.dialect
    job.polls += 1
    word, done = job.progress(dialect, anyio.current_time())
    if service.forget_fetched and word == dialect.done and (preview or 0) >= len(job.rows):
        request.on_sent = partial(service.jobs.pop, job.id, None)
    if request.answered_record is not None:
        job = replace(job, rows=[request.answered_record(row) for row in job.rows])
    word, results = request.word or word, None
    if word == dialect.done or dialect.early == "so far":
        results = messages.job_results(dialect, job, done, preview, service.verdict)
        for edit in request.edits:
            results = edit(results)
    return FakeReply(200, messages.encode_json(messages.status_record(dialect, job, word, done, results)))


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
    body, dialect = await _json_object(service, request), service.dialect
    record = _number(body, "biz_no"), _text(body, "name"), _text(body, "address")
    answer = service.verdict(*record)
    watch_id = str(next(service.watch_numbers)) if dialect.watch_ids == "number" else token_hex(6)
    watch = FakeWatch(watch_id, *record, answer["biz_status"], answer["grade"])
    service.watches.append(watch)
    return _reply(service, watch.entry(dialect), dialect.created)


async def watch_list(service: FakeService, request: FakeRequest) -> FakeReply:
    key, entries = service.dialect.watches, [watch.entry(service.dialect) for watch in service.watches]
    return _reply(service, entries if key == "list" else {key: entries, "total": len(entries)})


async def watch_remove(service: FakeService, request: FakeRequest) -> FakeReply:
    service.watches.remove(_watch(service, request))
    return _confirm(service, service.dialect.removed)


async def watch_history(service: FakeService, request: FakeRequest) -> FakeReply:
    if service.plan != "business":
        raise RefusedError(403, "the history needs the Business plan")
    key, changes = service.dialect.history, _watch(service, request).changes
    return _reply(service, changes if key == "list" else {key: changes})


async def me(service: FakeService, request: FakeRequest) -> FakeReply:
    account = messages.account(service.dialect, service.plan, service.quota, service.used)
    return _reply(service, account | ({"idempotency": PROMISE} if service.idempotency else {}))


_ROUTES: Final[dict[tuple[str, tuple[str, ...]], Endpoint]] = {
    ("POST", ("verify",)): verify,
    ("POST", ("batch",)): batch,
    ("GET", ("batch", "*")): job,
    ("POST", ("batch", "*", "label")): label,
    ("POST", ("watch",)): watch_add,
    ("GET", ("watch",)): watch_list,
    ("DELETE", ("watch", "*")): watch_remove,
    ("GET", ("watch", "*", "history")): watch_history,
    ("GET", ("me",)): me,
}
_ENDPOINTS: Final = {endpoint.__name__: endpoint for endpoint in _ROUTES.values()}


def _reply(service: FakeService, value: object, status: int = 200) -> FakeReply:
    """Return a reply in the dialect's envelope, for replies without a documented shape."""
    envelope = service.dialect.envelope
    content = value if envelope is None else {"success": True, envelope: value}
    return FakeReply(status, messages.encode_json(content))


def _confirm(service: FakeService, status: int) -> FakeReply:
    return FakeReply(204, content_type=None) if status == 204 else _reply(service, {"ok": True}, status)


def _job(service: FakeService, request: FakeRequest) -> FakeJob:
    if request.target not in service.jobs:
        raise RefusedError(404, "no such job")
    return service.jobs[request.target]


def _watch(service: FakeService, request: FakeRequest) -> FakeWatch:
    for watch in service.watches:
        if watch.id == request.target:
            return watch
    raise RefusedError(404, "no such watch")


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
    if not messages.is_number(value):
        raise RefusedError(422, f"{name} is a text of ten digits")
    return str(value)


def _text(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if value is not None and not messages.is_text(value):
        raise RefusedError(422, f"{name} is text")
    return str(value or "")


class FakeService(FakeApp):
    """A fake of the service of INTERFACE.md, for ``httpx.ASGITransport`` or :func:`bansong.testing.serve`.

    A lookup is paid when it is taken: by ``/verify`` once the request is understood, by ``/batch`` with all rows once
    the whole upload is. It stays paid whatever fails afterwards. ``paid`` counts the payments of each lookup.

    ``quota``: ``None`` is unlimited. A batch beyond it is refused, or with ``batch_quota="partial"`` its first rows are
    taken and the others fail. ``plan``: only ``business`` has a watch history, ``free`` has nothing. ``job_seconds``:
    duration of a job (0: as many polls as the dialect has words). ``forget_fetched``: drop a job once all its results
    were fetched. ``idempotency``: do a request with an ``Idempotency-Key`` once, as ``/me`` promises. All may be
    changed while it serves.
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
        verdict: messages.Verdict | None = None,
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
        super().__init__()
        self.api_key, self.plan, self.prefix = api_key, plan, prefix
        self.quota, self.used = quota, used
        self.batch_quota, self.quota_retry_after = batch_quota, quota_retry_after
        self.dialect = dialect or Dialect()
        self.faults = faults or Faults()
        self.verdict = verdict or messages.verdict
        self.max_rows, self.max_bytes = max_rows, max_bytes
        self.job_seconds, self.forget_fetched = job_seconds, forget_fetched
        self.idempotency, self.memory = idempotency, ReplayMemory()
        self.count_only, self.journal = count_only, None if journal is None else Path(journal)
        self.paid_total = 0
        self.jobs: dict[str, FakeJob] = {}
        self.uploads: list[FakeUpload] = []
        self.labels: list[FakeLabel] = []
        self.watches: list[FakeWatch] = []
        self.watch_numbers = count(1)
        self._paid: Counter[Any] = Counter()  # of lookups, or with count_only of 16 bytes of each
        self._requests, self._polls = Counter[str](), Counter[str]()

    @property
    def paid(self) -> Counter[Lookup]:
        """How often each (b_no, name, address) was paid; a copy."""
        if self.count_only:
            raise RuntimeError("with count_only only the numbers are kept: ask paid_total and paid_again")
        with self._lock:
            return self._paid.copy()

    @property
    def paid_again(self) -> int:
        """Payments of lookups that had been paid before."""
        with self._lock:
            return self.paid_total - len(self._paid)

    @property
    def requests(self) -> Counter[str]:
        """Counts of requests by kind, including those hit by faults; a copy."""
        with self._lock:
            return self._requests.copy()

    def take(self, lookups: Sequence[Lookup], partly: bool = False, job: str | None = None) -> int:
        """Charge all lookups, or ``partly`` as many as the quota allows; return how many."""
        with self._lock:
            free = len(lookups) if self.quota is None else max(self.quota - self.used, 0)
            taken = len(lookups) if len(lookups) <= free else free if partly else 0
            paid = lookups[:taken]
            self.used += taken
            self.paid_total += taken
            self._paid.update(map(_mark, paid) if self.count_only else paid)
            if self.journal is not None and paid:
                lines = (json.dumps({**lookup._asdict(), "job_id": job}, ensure_ascii=False) + "\n" for lookup in paid)
                with self.journal.open("ab") as file:
                    file.write("".join(lines).encode("utf-8"))
        return taken

    def forget_jobs(self) -> None:
        """Forget all jobs, like a restarted service without memory. Paid lookups stay paid."""
        self.jobs.clear()

    def _count(self, request: FakeRequest) -> None:
        self._requests[request.kind] += 1
        if request.kind == "job":
            self._polls[request.target] += 1
            request.polls = self._polls[request.target]

    async def _answer(self, request: FakeRequest) -> FakeReply:
        key = header(request.scope, b"x-api-key")
        if key is None or not compare_digest(key, self.api_key.encode("utf-8")):
            raise RefusedError(401, "the API key is missing or invalid")
        if self.plan == "free":
            raise RefusedError(403, "the API is not available in this plan")
        endpoint = _ENDPOINTS.get(request.kind)
        if endpoint is None:
            raise RefusedError(404 if request.kind == "unknown" else 405, "no such endpoint")
        has_key = header(request.scope, b"idempotency-key") is not None
        if not (self.idempotency and has_key and request.kind in ("verify", "batch")):
            return await endpoint(self, request)
        body = await request.body(self.max_bytes)
        return await self.memory.reply(request, body, lambda: endpoint(self, request))

    def _refusal(self, refused: RefusedError) -> FakeReply:
        reply = messages.error_reply(self.dialect, refused.status, str(refused))
        if refused.status == 429 and self.quota_retry_after is not None:
            reply.headers.append((b"retry-after", self.quota_retry_after.encode("latin-1")))
        return reply

    def _kind(self, scope: messages.Scope) -> tuple[str, str]:
        path = scope.get("raw_path", b"").decode("latin-1") or scope["path"]
        if not path.startswith(f"{self.prefix}/"):
            return "unknown", ""
        segments = path[len(self.prefix) + 1 :].split("/")
        target = unquote(segments[1]) if len(segments) > 1 else ""
        shape = (segments[0], *(["*"] if target else segments[1:2]), *segments[2:])
        endpoint = _ROUTES.get((scope["method"], shape))
        if endpoint is not None:
            return endpoint.__name__, target
        return "wrong_method" if any(shape == known for _, known in _ROUTES) else "unknown", target


def _mark(lookup: Lookup) -> bytes:
    return blake2b("\x1f".join(lookup).encode("utf-8"), digest_size=16).digest()
