"""Handlers of the operations, and the parts of a running server that they share."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio.to_thread
import polars as pl
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from bizverify.server import idempotency
from bizverify.server.auth import KeyCache, key_of
from bizverify.server.clock import Clock, as_text
from bizverify.server.engine_pool import EnginePool
from bizverify.server.errors import JSON, Refusal, conflict, invalid, not_found, not_in_plan
from bizverify.server.http_limits import read_json
from bizverify.server.idempotency import EarlierRequest, IdempotentRequests, identity_of, mismatch, token_from
from bizverify.server.jobs import results
from bizverify.server.jobs.accept import JobAcceptance, JobRequest
from bizverify.server.jobs.worker import JobWorker
from bizverify.server.learning import OutcomeLearner
from bizverify.server.logs import RequestLog
from bizverify.server.lookup.microbatch import LookupAnswerer
from bizverify.server.lookup.quota import QuotaCharger
from bizverify.server.payloads import (
    IdempotencyPayload,
    JobError,
    JobResult,
    JobStatus,
    Labelled,
    LabelRequest,
    LimitsPayload,
    Me,
    QuotaPayload,
    VerifyRequest,
    WatchChangePayload,
    WatchHistory,
    WatchRemoved,
    WatchRequest,
    encode,
)
from bizverify.server.settings import Settings
from bizverify.server.store import Store, job_table, key_table
from bizverify.server.store.job_table import StoredJob
from bizverify.server.store.key_table import Key
from bizverify.server.upload_form import receive_upload
from bizverify.server.watch.list_cache import RenderedList
from bizverify.server.watch.notifier import Notifier
from bizverify.server.watch.scheduler import WatchScheduler
from bizverify.watch import store
from bizverify.watch.types import Entry


@dataclass(frozen=True, slots=True)
class Context:
    """The parts of a running server."""

    settings: Settings
    clock: Clock
    store: Store
    keys: KeyCache
    engines: EnginePool
    learning: OutcomeLearner
    answering: LookupAnswerer
    charging: QuotaCharger
    jobs: JobWorker
    acceptance: JobAcceptance
    repeats: IdempotentRequests
    watching: WatchScheduler
    notifying: Notifier
    requests: RequestLog


def context_of(request: Request) -> Context:
    """The running server's parts."""
    context: Context = request.app.state.context
    return context


async def healthz(request: Request) -> Response:
    """Answer ``{"status": "ok"}`` if the database can be read, else the refusal 503."""
    await context_of(request).store.read(lambda db: db.execute("SELECT 1 FROM keys LIMIT 1").fetchone())
    return Response(b'{"status":"ok"}', media_type=JSON)


IDEMPOTENCY: Final = IdempotencyPayload("Idempotency-Key", ["POST /verify", "POST /batch"], 7 * 86400)


async def me(request: Request) -> Response:
    """Say what the key may do, and how much of the month's quota is left. Costs nothing."""
    context, key = context_of(request), key_of(request)
    plan, month = context.keys.plan(key), context.clock.month()
    used = await context.store.read(lambda db: key_table.used_lookups(db, key.id, month))
    resets = context.clock.month_ends().isoformat()
    answer = Me(
        key_id=key.id,
        plan=key.plan,
        quota=QuotaPayload(key.quota, used, max(0, key.quota - used), month, resets),
        limits=LimitsPayload(plan.upload_bytes, plan.rows, plan.watches, plan.recheck_hours),
        idempotency=IDEMPOTENCY,
    )
    return Response(encode(answer), media_type=JSON)


_ENDPOINT: Final = "POST /verify"


async def verify(request: Request) -> Response:
    """Answer one lookup; it is taken out of the quota first, and given back if it cannot be answered."""
    context, key = context_of(request), key_of(request)
    context.answering.admit()
    token = token_from(request, _ENDPOINT)
    lookup = await read_json(request, VerifyRequest)
    with context.answering.expected(key.scope):
        if token is None:
            answer = await _answered(context, key, lookup)
        else:
            repeatable = _Repeatable(context, key, lookup, token)
            answer = await context.repeats.once(key.id, token, repeatable.identity, repeatable.answered)
    return Response(answer, media_type=JSON)


async def _answered(context: Context, key: Key, lookup: VerifyRequest) -> bytes:
    month = await context.charging.take(key)
    try:
        return encode(await context.answering.answer(key.scope, lookup))
    except BaseException:
        await context.charging.give_back(key, month)
        raise


class _Repeatable:
    """A lookup with an ``Idempotency-Key``: begun and paid in one change of the store, finished in another."""

    def __init__(self, context: Context, key: Key, lookup: VerifyRequest, token: bytes) -> None:
        self.identity = identity_of("POST", "/verify", encode(lookup))
        self._context = context
        self._key = key
        self._lookup = lookup
        self._token = token

    async def answered(self) -> bytes:
        """The kept answer if there is one; else the answer, paid unless an attempt that did not end paid for it."""
        store, place, now = self._context.store, (self._key.id, self._token), self._context.clock.now()
        earlier = await store.write(lambda db: self._begin(db, now))
        if earlier is not None and earlier.request != self.identity:
            raise mismatch()
        if earlier is not None and earlier.answer is not None:
            return earlier.answer
        month = self._context.clock.month(now if earlier is None else earlier.created)
        try:
            answer = encode(await self._context.answering.answer(self._key.scope, self._lookup))
            await store.write(lambda db: idempotency.finish_request(db, *place, answer))
        except BaseException:
            await store.write(lambda db: self._undo(db, month))
            raise
        return answer

    def _begin(self, db: sqlite3.Connection, now: float) -> EarlierRequest | None:
        key = self._key
        earlier = idempotency.begin_request(db, key.id, self._token, self.identity, now)
        if earlier is None:
            used = key_table.take_lookups(db, key.id, self._context.clock.month(now), 1, key.quota)
            if used is not None:
                raise self._context.charging.exceeded(key, used)
        return earlier

    def _undo(self, db: sqlite3.Connection, month: str) -> None:
        if idempotency.forget_request(db, self._key.id, self._token):
            key_table.give_back_lookups(db, self._key.id, month, 1)


_log = logging.getLogger(__name__)

PREVIEW: Final = 10
"""Results that are shown where the request does not say how many."""
ROWS: Final = 500
"""Results that are rendered at a time: so many a slow reader keeps in memory, however many it asked for."""
_GONE: Final = "the job's results are not on the server's disk any more; send the file again"
_FLAGS: Final = {"true": True, "1": True, "false": False, "0": False}
_ITEM: Final = list(JobResult.__struct_fields__)


async def create_batch(request: Request) -> Response:
    """Take a file in and queue it: all its rows are taken out of the quota, or none."""
    context, key = context_of(request), key_of(request)
    plan, settings = context.keys.plan(key), context.settings
    offline, paid = _flag(request, "offline", default=False), _flag(request, "paid", default=True)
    token = token_from(request, "POST /batch")
    uploads = results.uploads_folder(settings.files)
    known = await context.acceptance.known(key, token)  # what was accepted before takes no new place
    async with (
        context.acceptance.place(key, plan, needed=known is None) as held,
        receive_upload(
            request,
            uploads,
            limit=plan.upload_bytes,
            stall=settings.stall_seconds,
            within=settings.body_seconds,
        ) as upload,
    ):
        asked = f"/batch?offline={offline}&paid={paid}"
        order = JobRequest(key, plan, offline, paid, token, identity_of("POST", asked, upload.digest))
        if token is None:
            answer = await context.acceptance.accept(order, upload, held)
        else:
            answer = await context.repeats.once(
                key.id, token, order.identity, lambda: context.acceptance.accept(order, upload, held)
            )
    return Response(answer, media_type=JSON)


async def batch(request: Request) -> Response:
    """Say how far a job is, and show its results of highest risk once it is done."""
    context, key = context_of(request), key_of(request)
    preview = _preview(request)
    job_id = request.path_params["job_id"]
    job = await context.store.read(lambda db: job_table.find_job(db, key.id, job_id))
    if job is None:
        raise not_found("the job")
    status = _status(context, job)
    shown = min(preview, job.total) if job.state == "done" else 0
    if not shown:
        return Response(encode(status), media_type=JSON)
    path = results.results_path(context.settings.files, job.id)

    async def items(first: int) -> bytes:
        count = min(ROWS, shown - first)
        return await anyio.to_thread.run_sync(_items, path, first, count, limiter=context.jobs.showing)

    try:
        begin = await items(0)  # what fails, fails before the answer has begun
    except FileNotFoundError:
        _log.error("the results of job %s are gone from %s", job.id, path.parent.parent)
        raise Refusal(404, "not_found", _GONE) from None
    return StreamingResponse(_streamed(status, begin, items, shown), media_type=JSON)


def _status(context: Context, job: StoredJob) -> JobStatus:
    processed = context.jobs.processed(job)
    ended = job.finished is not None
    return JobStatus(
        job_id=job.id,
        status=job.state,
        total=job.total,
        processed=processed,
        progress=processed / job.total if job.total else float(job.state == "done"),
        created_at=as_text(job.created) or "",
        finished_at=as_text(job.finished),
        expires_at=as_text(job.finished + context.settings.keep_days * 86_400) if ended else None,  # type: ignore[operator]
        grades=dict(job.grades or {}),
        error=JobError(*job.error) if job.error else None,
        results=[],
    )


async def _streamed(
    status: JobStatus, begin: bytes, items: Callable[[int], Awaitable[bytes]], shown: int
) -> AsyncIterator[bytes]:
    """The status with so many results, a slice at a time; its results come last."""
    yield encode(status).removesuffix(b"]}") + begin
    for first in range(ROWS, shown, ROWS):
        yield b"," + await items(first)
    yield b"]}"


def _items(results: Path, first: int, count: int) -> bytes:
    """Results as JSON objects, with commas between them."""
    frame = pl.scan_parquet(results).select(_ITEM).slice(first, count).collect()
    return frame.write_json().encode()[1:-1]


def _preview(request: Request) -> int:
    text = request.query_params.get("preview")
    if text is None:
        return PREVIEW
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise invalid("preview must be a whole number of rows, 0 or more")
    return int(text)


def _flag(request: Request, name: str, *, default: bool) -> bool:
    text = request.query_params.get(name)
    if text is None:
        return default
    if text.lower() not in _FLAGS:
        raise invalid(f"{name} must be true or false")
    return _FLAGS[text.lower()]


async def label(request: Request) -> Response:
    """Record what became of a row's letter; a later outcome of the row replaces it. Costs nothing.

    Refused with 404 for a job or row that is not there or not this key's, with 409 for a job that is not done.
    """
    context, key, job_id = context_of(request), key_of(request), request.path_params["job_id"]
    told = await read_json(request, LabelRequest)
    now = context.clock.now()

    def record(db: sqlite3.Connection) -> None:
        job = job_table.find_job(db, key.id, job_id)
        if job is None:
            raise not_found(f"the job {job_id[:100]!r}")
        if job.state != "done":
            raise conflict(f"the job is {job.state}: only the rows of a job that is done have outcomes", "job_not_done")
        if told.row_id >= job.total:
            raise not_found(f"the row {told.row_id} of a job with {job.total:,} rows, counted from 0,")
        job_table.put_outcome(db, job.id, told.row_id, bounced=told.bounced, reason=told.reason, now=now)

    await context.store.write(record)
    context.learning.tell()
    return Response(encode(Labelled(job_id, told.row_id, told.bounced, told.reason)), 201, media_type=JSON)


_SLICE: Final = 256 << 10
"""Bytes of a long list that are handed on at a time, so that a slow reader does not make the rest wait in memory."""


async def add(request: Request) -> Response:
    """Put a business on the list: 201 with the new entry, or 200 with that which was there, name and address updated.

    Refused with 409 `watch_limit` when the plan's number of watches is reached: neither a function that the plan does
    not have (403) nor the monthly quota (429), and remedied by removing a watch.
    """
    context, key = context_of(request), key_of(request)
    wanted = await read_json(request, WatchRequest)
    limit, now = context.keys.plan(key).watches, context.clock.now()

    def added(db: sqlite3.Connection) -> tuple[int, bytes, bool, bool]:
        watch, is_new = store.add(db, key.id, Entry(wanted.biz_no, wanted.name, wanted.address), now)
        if is_new and (count := store.count(db, key.id)) > limit:
            raise _full(limit, count - 1)
        written = store.rendered(db, key.id, watch.watch_id)
        assert written is not None  # noqa: S101 - in this transaction
        return *written, is_new, watch.due <= now

    number, entry, is_new, is_due = await context.store.write(added)
    if is_due:  # one that is known, and given with nothing new, is not
        context.watching.lists.changed(key.id, [number])
        context.watching.wake()
    return Response(entry, 201 if is_new else 200, media_type=JSON)


async def every(request: Request) -> Response:
    """The whole list."""
    context, key = context_of(request), key_of(request)
    return _List(await context.watching.lists.of(key.id))


async def remove(request: Request) -> Response:
    """Take a business off the list, its history with it."""
    context, key, watch_id = context_of(request), key_of(request), request.path_params["watch_id"]
    number = await context.store.write(lambda db: store.remove(db, key.id, watch_id))
    if number is None:
        raise not_found("the watch")
    context.watching.lists.changed(key.id, [number])
    return Response(encode(WatchRemoved(watch_id, removed=True)), media_type=JSON)


async def history(request: Request) -> Response:
    """The changes of grade of one watched business, the oldest first; for plans with `watch_history` only."""
    context, key, watch_id = context_of(request), key_of(request), request.path_params["watch_id"]
    if not context.keys.plan(key).watch_history:
        raise not_in_plan("the watch history", key.plan)
    watch, changes = await context.store.read(
        lambda db: (store.get(db, key.id, watch_id), store.history(db, key.id, watch_id))
    )
    if watch is None or changes is None:
        raise not_found("the watch")
    items = [WatchChangePayload(as_text(c.at) or "", c.before, c.after, c.biz_status) for c in changes]
    return Response(encode(WatchHistory(watch_id, watch.biz_no, items)), media_type=JSON)


def _full(limit: int, count: int) -> Refusal:
    message = f"the watch list is full: the plan allows {limit:,} entries and it has {count:,}; remove one first"
    return Refusal(409, "watch_limit", message, limit=limit, used=count)


class _List(Response):
    """A whole list, handed on in slices: in one piece asyncio would copy the rest again for each socket's buffer."""

    media_type = JSON

    def __init__(self, listed: RenderedList) -> None:
        super().__init__()
        first, *others = listed.parts or [b""]
        head, tail = b'{"watches":[', b'],"total":%d}' % listed.total
        self._parts = [memoryview(part) for part in (head, first, *others, tail)]
        self._parts[1] = self._parts[1][1:]  # the comma
        self.headers["Content-Length"] = str(sum(map(len, self._parts)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, as fast as it is taken."""
        del scope, receive
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for part in self._parts:
            for start in range(0, len(part), _SLICE):
                await send({"type": "http.response.body", "body": part[start : start + _SLICE], "more_body": True})
        await send({"type": "http.response.body", "body": b""})
