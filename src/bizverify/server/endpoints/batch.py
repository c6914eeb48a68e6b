"""``POST /batch`` and ``GET /batch/{job_id}`` (INTERFACE §4.2, §4.3)."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final

import anyio.to_thread
import polars as pl
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from bizverify.server.auth import key_of
from bizverify.server.clock import as_text
from bizverify.server.context import Context, context_of
from bizverify.server.jobs import files
from bizverify.server.jobs.accepting import Order
from bizverify.server.refusals import JSON, Refusal, invalid, not_found
from bizverify.server.repeats import token_from
from bizverify.server.store import jobs as stored
from bizverify.server.store.idempotency import identity_of
from bizverify.server.store.jobs import Job
from bizverify.server.uploads import received
from bizverify.server.wire import JobError, JobResult, JobStatus, encode

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
    uploads = files.uploads(settings.files)
    known = await context.acceptance.known(key, token)  # what was accepted before takes no new place
    async with (
        context.acceptance.place(key, plan, needed=known is None) as held,
        received(
            request,
            uploads,
            limit=plan.upload_bytes,
            stall=settings.stall_seconds,
            within=settings.body_seconds,
        ) as upload,
    ):
        asked = f"/batch?offline={offline}&paid={paid}"
        order = Order(key, plan, offline, paid, token, identity_of("POST", asked, upload.digest))
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
    job = await context.store.read(lambda db: stored.find(db, key.id, job_id))
    if job is None:
        raise not_found("the job")
    status = _status(context, job)
    shown = min(preview, job.total) if job.state == "done" else 0
    if not shown:
        return Response(encode(status), media_type=JSON)
    results = files.results(context.settings.files, job.id)

    async def items(first: int) -> bytes:
        count = min(ROWS, shown - first)
        return await anyio.to_thread.run_sync(_items, results, first, count, limiter=context.jobs.showing)

    try:
        begin = await items(0)  # what fails, fails before the answer has begun
    except FileNotFoundError:
        _log.error("the results of job %s are gone from %s", job.id, results.parent.parent)
        raise Refusal(404, "not_found", _GONE) from None
    return StreamingResponse(_streamed(status, begin, items, shown), media_type=JSON)


def _status(context: Context, job: Job) -> JobStatus:
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
