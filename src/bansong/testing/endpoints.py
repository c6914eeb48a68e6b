"""The nine endpoints of INTERFACE §4, one function each; what they refuse, they refuse before anything is paid."""

# ruff: noqa: ARG001 - every endpoint is called alike

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import anyio

from bansong.testing import dialect_bodies
from bansong.testing.billing import PROMISE
from bansong.testing.messages import FakeReply, FakeRequest, RefusedError, header, parts_of
from bansong.testing.service_state import FakeJob, FakeLabel, FakeUpload, is_text, new_id, read_upload
from bansong.testing.verdicts import Lookup

if TYPE_CHECKING:
    from bansong.testing.fake_service import FakeService

Endpoint = Callable[["FakeService", FakeRequest], Awaitable[FakeReply]]


async def verify(service: FakeService, request: FakeRequest) -> FakeReply:
    """POST /verify: paid when the request has been understood."""
    body = await _json_object(service, request)
    lookup = Lookup(_number(body, "b_no"), _text(body, "name"), _text(body, "address"))
    if not service.billing.take((lookup,)):
        raise _no_quota(service)
    answered = lookup if request.answered_record is None else request.answered_record(lookup)
    body = dialect_bodies.verification(service.dialect, answered, service.verdict(*answered))
    return FakeReply(200, dialect_bodies.encode_json(body))


async def batch(service: FakeService, request: FakeRequest) -> FakeReply:
    """POST /batch: all rows are paid when the whole upload has been understood, and none before."""
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
    created: dialect_bodies.Object = {"job_id": shown, "total": len(lookups)}
    if service.dialect.extras:
        created |= {"status": "accepted", "eta_seconds": 3}
    return FakeReply(service.dialect.created, dialect_bodies.encode_json(created))


def _create_job(service: FakeService, upload: FakeUpload, lookups: Sequence[Lookup]) -> FakeJob:
    """The job of rows that are now paid. Rows that cannot be numbers, or do not fit the quota, are its faults."""
    faults = {place: "b_no is not ten digits" for place, row in enumerate(lookups) if not _is_number(row.b_no)}
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
    """GET /batch/{job_id}: the status and the top results."""
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
    record = dialect_bodies.status_record(
        service.dialect, job, request.word or word, done, preview, service.verdict, request.edits
    )
    if service.forget_fetched and word == service.dialect.done and (preview or 0) >= len(job.rows):
        request.last = job.id
    return FakeReply(200, dialect_bodies.encode_json(record))


async def label(service: FakeService, request: FakeRequest) -> FakeReply:
    """POST /batch/{job_id}/label: what really became of a letter, by the key that the dialect gives its row."""
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
    """POST /watch."""
    body = await _json_object(service, request)
    watch = service.watches.add(
        _number(body, "biz_no"), _text(body, "name"), _text(body, "address"), service.dialect, service.verdict
    )
    entry = watch.entry(service.dialect)
    return _reply(service, entry, service.dialect.created)


async def watch_list(service: FakeService, request: FakeRequest) -> FakeReply:
    """GET /watch."""
    entries: Any = [watch.entry(service.dialect) for watch in service.watches]
    if service.dialect.watches != "list":
        entries = {service.dialect.watches: entries, "total": len(entries)}
    return _reply(service, entries)


async def watch_remove(service: FakeService, request: FakeRequest) -> FakeReply:
    """DELETE /watch/{watch_id}."""
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
    """GET /me."""
    account = dialect_bodies.account(service.dialect, service.plan, service.quota, service.used)
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
"""By the kind of request."""


def _reply(service: FakeService, value: object, status: int = 200) -> FakeReply:
    return FakeReply(status, dialect_bodies.encode_json(dialect_bodies.wrap_reply(service.dialect, value)))


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


def _is_number(text: object) -> bool:
    return isinstance(text, str) and len(text) == 10 and text.isascii() and text.isdigit()


def _number(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if not _is_number(value):
        raise RefusedError(422, f"{name} is a text of ten digits")
    return str(value)


def _text(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if value is None:
        return ""
    if not is_text(value):
        raise RefusedError(422, f"{name} is text")
    return str(value)
