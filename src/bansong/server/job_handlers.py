"""Handlers of jobs: show, list, delete."""

from __future__ import annotations

import base64
import binascii
import logging
import math
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from bansong.server.auth import key_of
from bansong.server.errors import JSON, Refusal, invalid, not_found, reply
from bansong.server.handlers import Context, context_of
from bansong.server.jobs import results
from bansong.server.payloads import JobDeleted, JobError, JobListPayload, JobStatus, JobSummaryPayload, encode
from bansong.server.settings import as_text
from bansong.server.store import job_table
from bansong.server.store.job_table import StoredJob
from bansong.translation import gettext, gettext_noop

_log = logging.getLogger(__name__)

DEFAULT_PREVIEW: Final = 10
DEFAULT_PAGE: Final = 20
MAX_PAGE: Final = 100
_GONE: Final = gettext_noop("the job's results are not on the server's disk any more; send the file again")


async def show_job(request: Request) -> Response:
    """INTERFACE §4.3: the progress of a job, and its results of highest risk once it is done."""
    context, key = context_of(request), key_of(request)
    refusal = gettext("preview must be a whole number of rows, 0 or more")
    preview = _whole_number(request, "preview", DEFAULT_PREVIEW, range(10**18), refusal)
    job_id = request.path_params["job_id"]
    job = await context.store.read(lambda db: job_table.find_job(db, key.id, job_id))
    if job is None:
        raise not_found(gettext("the job"))
    status = JobStatus(**_summarize_job(context, job), results=[])
    rows = min(preview, job.total) if job.state == "done" else 0
    if not rows:
        return reply(status)
    path = results.results_path(context.settings.files, job.id)
    try:
        head = encode(status).removesuffix(b"]}")
        body = await results.stream_items(head, path, rows, context.jobs.showing)
    except FileNotFoundError:
        _log.error("the results of job %s are gone from %s", job.id, path.parent.parent)
        raise Refusal(404, "not_found", gettext(_GONE)) from None
    return StreamingResponse(body, media_type=JSON)


def _summarize_job(context: Context, job: StoredJob) -> dict[str, Any]:
    processed = context.jobs.processed_rows(job)
    expires = None if job.finished is None else job.finished + context.settings.keep_days * 86_400
    return {
        "job_id": job.id,
        "status": job.state,
        "total": job.total,
        "processed": processed,
        "progress": processed / job.total if job.total else float(job.state == "done"),
        "created_at": as_text(job.created) or "",
        "finished_at": as_text(job.finished),
        "expires_at": as_text(expires),
        "grades": dict(job.grades or {}),
        "error": JobError(*job.error) if job.error else None,
    }


def _whole_number(request: Request, name: str, default: int, allowed: range, refusal: str) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(allowed[-1])) and int(text) in allowed):
        raise invalid(refusal)
    return int(text)


async def list_jobs(request: Request) -> Response:
    context, key = context_of(request), key_of(request)
    refusal = gettext("limit must be a whole number of jobs, 1 to {most}", most=MAX_PAGE)
    limit = _whole_number(request, "limit", DEFAULT_PAGE, range(1, MAX_PAGE + 1), refusal)
    after = _cursor(request)
    found = await context.store.read(lambda db: job_table.list_jobs(db, key.id, limit + 1, after))
    page = [JobSummaryPayload(**_summarize_job(context, job)) for job in found[:limit]]
    last = _Cursor(found[limit - 1].created, found[limit - 1].id) if len(found) > limit else None
    return reply(JobListPayload(page, None if last is None else last.encode()))


async def delete_job(request: Request) -> Response:
    """Delete a job and its files; cancel it if it is not done, and give back the rows without an answer.

    200: the files are gone. 202: the job was running, and its files go after the current slice. Outcomes are learned
    first.
    """
    context, key, job_id = context_of(request), key_of(request), request.path_params["job_id"]
    if await context.store.read(lambda db: job_table.has_unlearned(db, key.id, job_id)):
        await context.learner.record()
    deleted = await context.jobs.delete(key.id, job_id)
    if deleted is None:
        raise not_found(gettext("the job"))
    payload = JobDeleted(job_id, deleted=True, given_back=deleted.given_back)
    return reply(payload, 202 if deleted.has_files else 200)


class _Cursor(NamedTuple):
    """The last job of a page."""

    created: float
    job_id: str

    def encode(self) -> str:
        return base64.urlsafe_b64encode(f"{self.created!r} {self.job_id}".encode()).decode()

    @classmethod
    def decode(cls, text: str) -> _Cursor:
        """Parse a text of :meth:`encode`; raise :class:`ValueError` for others."""
        created, _, job_id = base64.b64decode(text.encode(), b"-_", validate=True).decode().partition(" ")
        if not job_id or not math.isfinite(float(created)):
            raise ValueError(text)
        return cls(float(created), job_id)


def _cursor(request: Request) -> _Cursor | None:
    text = request.query_params.get("cursor")
    if text is None:
        return None
    try:
        return _Cursor.decode(text)
    except (ValueError, binascii.Error):
        raise invalid(gettext("cursor must be the `next_cursor` of an earlier answer")) from None
