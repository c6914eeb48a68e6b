"""Handlers of the operations."""

from __future__ import annotations

import base64
import binascii
import logging
import math
import sqlite3
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack, closing
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from bansong.base.messages import gettext, gettext_noop
from bansong.client.address import AddressPolicy
from bansong.client.webhook import WebhookSender
from bansong.server import job_files, job_table, payloads
from bansong.server import keys as key_table
from bansong.server.bodies import UploadBounds, hash_upload, read_json, receive_upload
from bansong.server.engines import EnginePool, RegistrySnapshot, StatusSource
from bansong.server.erasure import Retention
from bansong.server.job_table import IdempotentRequests, StoredJob, identity_of, token_from
from bansong.server.jobs import JobAcceptance, JobRequest, JobWorker, clean_up_files, repeat_answer
from bansong.server.keys import KeyBounds, KeyCache, key_of, renew_key
from bansong.server.learning import OutcomeLearner, warn_about_pools
from bansong.server.lookups import LookupAnswerer, PaidLookups
from bansong.server.metrics import ServerMetrics
from bansong.server.payloads import JSON, Refusal, invalid, not_found, reply
from bansong.server.settings import Clock, RequestLog, Settings, as_text
from bansong.server.store import SERVER_FILE, Store, lock_server_file, open_server_file
from bansong.server.watch import Notifier, WatchScheduler
from bansong.watch import store as watch_store
from bansong.watch.store import Addition, Business

if TYPE_CHECKING:
    from bansong.server.statuses import NtsStatuses


_log = logging.getLogger(__name__)

IDEMPOTENCY: Final = payloads.IdempotencyPayload(job_table.HEADER, ["POST /verify", "POST /batch"], job_table.KEPT)
_FLAGS: Final = {"true": True, "1": True, "false": False, "0": False}


class Context:
    """The components of a running server; ``stack`` closes them."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        better: Sequence[StatusSource],
        metrics: ServerMetrics,
        stack: ExitStack | AsyncExitStack,
    ) -> None:
        self.settings, self.clock, self.metrics = settings, clock, metrics
        stack.callback(lock_server_file(settings.db).release)
        self.store = store = Store(settings.db, metrics.commits.observe)
        stack.callback(store.close)
        with SERVER_FILE.errors(settings.files):
            settings.files.mkdir(mode=0o700, exist_ok=True)
            disk = clean_up_files(settings)
            with closing(open_server_file(settings.db, create=False)) as db:
                warn_about_pools(settings.files, db)
        self.requests = RequestLog()
        self.keys, self.bounds = KeyCache(store, settings.plans, clock), KeyBounds(clock)
        self.engines = EnginePool(settings, clock)
        self.learner = OutcomeLearner(settings, clock, store, self.engines)
        self.statuses = _open_statuses(settings, clock)
        own = () if self.statuses is None else (self.statuses,)
        sources = (*better, *own, RegistrySnapshot())
        self.idempotent = IdempotentRequests(store, clock)
        self.lookups = PaidLookups(store, clock, LookupAnswerer(self.engines, self.statuses), self.idempotent)
        self.jobs = JobWorker(settings, clock, store, self.engines, sources, metrics, disk)
        self.acceptance = JobAcceptance(settings, clock, store, self.jobs, disk)
        sender = WebhookSender(check=AddressPolicy(settings.webhook_networks).check)
        self.notifier = Notifier(store, clock, sender, file=settings.notices)
        self.watches = WatchScheduler(settings, clock, store, self.engines, sources, on_notification=self.notifier.wake)
        self.retention = Retention(
            settings, clock, store, self.learner, lambda key_id: self.bounds.under_way(key_id) > 0
        )


def _open_statuses(settings: Settings, clock: Clock) -> NtsStatuses | None:
    if settings.status.source == "none":
        return None
    from bansong.server.statuses import open_nts_statuses

    return open_nts_statuses(settings, clock)


def _context_of(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


async def check_health(request: Request) -> Response:
    """Answer ``{"status": "ok"}`` if the database is readable and writable, else 503. Needs no key."""
    await _context_of(request).store.check()
    return reply({"status": "ok"})


async def show_account(request: Request) -> Response:
    """Return the account of the request's key: its plan, its quotas and what is left of them."""
    context, key = _context_of(request), key_of(request)
    plan, month = context.keys.plan(key), context.clock.month()
    used, changes = await context.store.read(lambda db: key_table.month_usage(db, key.id, month))
    resets = context.clock.month_ends().isoformat()

    def quota(limit: int, used: int) -> payloads.QuotaPayload:
        return payloads.QuotaPayload(limit, used, max(0, limit - used), month, resets)

    return reply(
        payloads.Me(
            key_id=key.id,
            plan=key.plan,
            quota=quota(key.quota, used),
            watch_changes=quota(plan.watch_changes, changes),
            limits=payloads.LimitsPayload.of(plan),
            in_use=context.acceptance.in_use(key, context.bounds.under_way(key.id)),
            idempotency=IDEMPOTENCY,
        )
    )


async def verify_business(request: Request) -> Response:
    """Answer one lookup (INTERFACE §4.1). The quota gets the lookup back if there is no answer."""
    context = _context_of(request)
    context.lookups.answerer.admit(key_of(request).id)
    token = token_from(request, "POST /verify")
    # parsing parameters takes time, and most requests have none
    offline = bool(request.scope["query_string"]) and _flag(request, "offline", default=False)
    lookup = await read_json(request, payloads.VerifyRequest)
    key = await renew_key(request)
    return Response(await context.lookups.answer(key, lookup, token, offline=offline), media_type=JSON)


async def create_job(request: Request) -> Response:
    """Accept a file as a job (INTERFACE §4.2). All of its rows are taken from the quota, or none."""
    context, key = _context_of(request), key_of(request)
    plan, settings, acceptance = context.keys.plan(key), context.settings, context.acceptance
    offline, paid = _flag(request, "offline", default=False), _flag(request, "paid", default=True)
    token, path = token_from(request, "POST /batch"), f"/batch?offline={offline}&paid={paid}"
    bounds = UploadBounds(plan.upload_bytes, settings.stall_seconds, settings.body_seconds)
    earlier = await acceptance.find_earlier(key, token)
    if earlier is not None:  # a repeated request takes no place in the queue, and no room on the disk
        with acceptance.count_upload(key, plan):
            identity = identity_of("POST", path, await hash_upload(request, bounds))
        await renew_key(request)
        return Response(repeat_answer(earlier, identity), media_type=JSON)
    async with (
        acceptance.hold_place(key, plan) as set_aside,
        receive_upload(request, job_files.uploads_folder(settings.files), bounds, set_aside) as upload,
    ):
        identity, key = identity_of("POST", path, upload.digest), await renew_key(request)
        job = JobRequest(key, plan, offline, paid, token, identity)
        if token is None:
            answer = await acceptance.accept(job, upload)
        else:
            answer = await context.idempotent.once(key.id, token, identity, lambda: acceptance.accept(job, upload))
    return Response(answer, media_type=JSON)


def _flag(request: Request, name: str, *, default: bool) -> bool:
    text = request.query_params.get(name)
    if text is None:
        return default
    if text.lower() not in _FLAGS:
        raise invalid(gettext("{name} must be true or false", name=name))
    return _FLAGS[text.lower()]


async def record_label(request: Request) -> Response:
    """Record the outcome of one letter (INTERFACE §4.4)."""
    context, job_id = _context_of(request), request.path_params["job_id"]
    label, key = await read_json(request, payloads.LabelRequest), await renew_key(request)
    now, disk = context.clock.now(), context.jobs.disk

    def record(db: sqlite3.Connection) -> int:
        job = job_table.find_job(db, key.id, job_id)
        if job is None:
            raise not_found(gettext("the job {job_id!r}", job_id=job_id[:100]))
        if job.state != "done":
            message = gettext("the job is {state}: only the rows of a job that is done have outcomes", state=job.state)
            raise Refusal(409, "job_not_done", message)
        if label.row_id >= job.total:
            message = gettext(
                "the row {row_id} of a job with {total:,} rows, counted from 0,", row_id=label.row_id, total=job.total
            )
            raise not_found(message)
        return job_table.put_outcome(db, job.id, label.row_id, bounced=label.bounced, reason=label.reason, now=now)

    with disk.hold_outcome(key.id, context.keys.plan(key)):
        disk.add_outcomes(job_id, await context.store.write(record))
    context.learner.wake()
    return reply(payloads.Labelled(job_id, label.row_id, label.bounced, label.reason), 201)


async def add_watch(request: Request) -> Response:
    """Watch a business (INTERFACE §4.5). An immediate first check would be a free lookup, so it is delayed."""
    context = _context_of(request)
    wanted, key = await read_json(request, payloads.WatchRequest), await renew_key(request)
    plan, clock = context.keys.plan(key), context.clock
    entry, now, month = Business(wanted.biz_no, wanted.name, wanted.address), clock.now(), clock.month()
    first_check = context.watches.first_check(key, entry.biz_no, now)

    def add(db: sqlite3.Connection) -> tuple[int, bytes, Addition]:
        watch, done = watch_store.add(db, key.id, entry, now, first_check)
        if done == "added" and (count := watch_store.count(db, key.id)) > plan.watches:
            full = gettext_noop(
                "the watch list is full: the plan allows {limit:,} entries and it has {count2:,}; remove one first"
            )
            message = gettext(full, limit=plan.watches, count2=count - 1)
            raise Refusal(409, "watch_limit", message, limit=plan.watches, used=count - 1)
        if done != "unchanged" and (used := key_table.count_watch_change(db, key.id, month)) >= plan.watch_changes:
            raise payloads.watch_changes_exceeded(plan.watch_changes, used, clock.month_ends(), now)
        written = watch_store.rendered_entry(db, key.id, watch.watch_id)
        assert written is not None  # noqa: S101 - in this transaction
        return *written, done

    number, rendered, done = await context.store.write(add)
    if done != "unchanged":
        context.watches.lists.mark_stale(key.id, [number])
    return Response(rendered, 201 if done == "added" else 200, media_type=JSON)


async def list_watches(request: Request) -> Response:
    """Return the watch list of the request's key, streamed."""
    context, key = _context_of(request), key_of(request)
    return StreamingResponse(await context.watches.lists.stream(key.id), media_type=JSON)


async def remove_watch(request: Request) -> Response:
    """Remove a watch and its history. This uses one of the month's changes, but is never refused for want of one."""
    context, key, watch_id = _context_of(request), key_of(request), request.path_params["watch_id"]
    month = context.clock.month()

    def remove(db: sqlite3.Connection) -> int | None:
        number = watch_store.remove(db, key.id, watch_id)
        if number is not None:
            key_table.count_watch_change(db, key.id, month)
        return number

    number = await context.store.write(remove)
    if number is None:
        raise not_found(gettext("the watch"))
    context.watches.lists.mark_stale(key.id, [number])
    return reply(payloads.WatchRemoved(watch_id, removed=True))


async def show_watch_history(request: Request) -> Response:
    """Return the status changes of a watched business."""
    context, key, watch_id = _context_of(request), key_of(request), request.path_params["watch_id"]
    if not context.keys.plan(key).watch_history:
        raise payloads.not_in_plan(gettext("the watch history"), key.plan)
    watch, changes = await context.store.read(
        lambda db: (watch_store.get(db, key.id, watch_id), watch_store.history(db, key.id, watch_id))
    )
    if watch is None or changes is None:
        raise not_found(gettext("the watch"))
    items = [payloads.WatchChangePayload(as_text(c.at) or "", c.before, c.after, c.biz_status) for c in changes]
    return reply(payloads.WatchHistory(watch_id, watch.biz_no, items))


DEFAULT_PREVIEW: Final = 10
DEFAULT_PAGE: Final = 20
MAX_PAGE: Final = 100
_GONE: Final = gettext_noop("the job's results are not on the server's disk any more; send the file again")


async def show_job(request: Request) -> Response:
    """Answer with a job's state and, once it is done, its rows of highest risk."""
    context, key = _context_of(request), key_of(request)
    refusal = gettext("preview must be a whole number of rows, 0 or more")
    preview = _whole_number(request, "preview", DEFAULT_PREVIEW, range(10**18), refusal)
    job_id = request.path_params["job_id"]
    job = await context.store.read(lambda db: job_table.find_job(db, key.id, job_id))
    if job is None:
        raise not_found(gettext("the job"))
    status = payloads.JobStatus(**_summarize_job(context, job), results=[])
    rows = min(preview, job.total) if job.state == "done" else 0
    if not rows:
        return reply(status)
    path = job_files.results_path(context.settings.files, job.id)
    try:
        head = payloads.encode(status).removesuffix(b"]}")
        body = await job_files.stream_items(head, path, rows, context.jobs.showing)
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
        "error": payloads.JobError(*job.error) if job.error else None,
    }


def _whole_number(request: Request, name: str, default: int, allowed: range, refusal: str) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(allowed[-1])) and int(text) in allowed):
        raise invalid(refusal)
    return int(text)


async def list_jobs(request: Request) -> Response:
    """Return a page of the key's jobs."""
    context, key = _context_of(request), key_of(request)
    refusal = gettext("limit must be a whole number of jobs, 1 to {most}", most=MAX_PAGE)
    limit = _whole_number(request, "limit", DEFAULT_PAGE, range(1, MAX_PAGE + 1), refusal)
    after = _cursor(request)
    found = await context.store.read(lambda db: job_table.list_jobs(db, key.id, limit + 1, after))
    page = [payloads.JobSummaryPayload(**_summarize_job(context, job)) for job in found[:limit]]
    last = found[limit - 1] if len(found) > limit else None
    cursor = None if last is None else base64.urlsafe_b64encode(f"{last.created!r} {last.id}".encode()).decode()
    return reply(payloads.JobListPayload(page, cursor))


async def delete_job(request: Request) -> Response:
    """Learn from a job's outcomes and delete it. A running job ends after its current slice of rows (202)."""
    context, key, job_id = _context_of(request), key_of(request), request.path_params["job_id"]
    if await context.store.read(lambda db: job_table.has_unlearned(db, key.id, job_id)):
        await context.learner.record()
    deleted = await context.jobs.delete(key.id, job_id)
    if deleted is None:
        raise not_found(gettext("the job"))
    payload = payloads.JobDeleted(job_id, deleted=True, given_back=deleted.given_back)
    return reply(payload, 202 if deleted.has_files else 200)


def _cursor(request: Request) -> tuple[float, str] | None:
    text = request.query_params.get("cursor")
    if text is None:
        return None
    try:
        created, _, job_id = base64.b64decode(text.encode(), b"-_", validate=True).decode().partition(" ")
        if not job_id or not math.isfinite(float(created)):
            raise ValueError(text)
        return float(created), job_id
    except (ValueError, binascii.Error):
        raise invalid(gettext("cursor must be the `next_cursor` of an earlier answer")) from None
