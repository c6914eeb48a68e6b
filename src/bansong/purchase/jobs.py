"""Jobs of the service: polled until they are done, fetched, and matched to rows, all for free."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Self

import anyio
import polars as pl

from bansong.base.errors import (
    AuthenticationError,
    LimitError,
    NotFoundError,
    NotSentError,
    PlanError,
    QuotaError,
    RejectedError,
    ServiceError,
    ShapeError,
    UsageError,
)
from bansong.base.messages import gettext, join_clauses
from bansong.client.dispatcher import Halt, HaltReason
from bansong.client.evidence import JOB_IDS
from bansong.client.retries import is_redirect
from bansong.purchase.changes import JobFetched, JobLost, JobUnfetched, passes
from bansong.purchase.lookups import KEY, PurchaseContext, keys_of, scope_of, split
from bansong.purchase.proof import MatchedResults, match_results

if TYPE_CHECKING:
    from bansong.client.responses import BatchStatus
    from bansong.purchase.queries import StoredUpload

log = logging.getLogger(__name__)

_HALTS: Final[dict[type[ServiceError], HaltReason]] = {QuotaError: "quota", LimitError: "limit"}
_AGE_PER_PAUSE: Final = 60.0  # pauses grow to a sixtieth of the job's age
_MAX_PAUSE_S: Final = 30.0
_DEADLINE_S: Final = 6 * 3600.0  # a job that takes longer stays known, and the same command goes on waiting
_MAX_NOT_FOUND: Final = 10  # answers, before a job is given up
_MAX_CUT_PROBABILITY: Final = 0.004  # of rows missing at the end by chance
_MAX_FETCHES: Final = 3  # of a done job's results, while rows are missing
_PREVIEW_GROWTH: Final = 4  # at the next fetch, if the results filled the preview
_MAX_PREVIEW: Final = 20_000  # beyond one for each row; the client reads up to 8 KiB of each


@dataclass(frozen=True, slots=True)
class UploadedJob:
    """An upload with the job ``id``; ``scope`` is part of the keys of its lookups."""

    upload: str
    id: str
    total: int | None
    scope: str

    @classmethod
    def of(cls, upload: StoredUpload, origin: str) -> Self:
        scope = scope_of(origin, upload.offline, upload.paid)
        return cls(upload.id, upload.job_id, upload.total, scope)


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """The outcome of a fetched job."""

    passes: bool  # it shows that the service works
    cut_at: int | None = None  # rows before the results break off; None: rows are missing here and there, or none
    note: str = ""  # why it does not pass


async def collect_job(context: PurchaseContext, job: UploadedJob) -> JobOutcome | None:
    """Wait for a job, fetch and record its results; ``None`` if nothing follows (stopped, refused, unreachable)."""
    sent = context.ledger.rows_of(job.upload)
    try:
        found = await _fetch_job(context, job, sent)
    except (NotFoundError, UsageError) as error:  # UsageError: an id that no URL can hold
        await context.journal.settle(JobLost(job.upload, str(error)))
        context.progress(len(sent))
        return JobOutcome(passes=False, note=gettext("no answer came of job {id}: {error}", id=job.id, error=error))
    except TimeoutError as error:
        return await _pause_without_results(context, job, "unreachable", str(error))
    except (AuthenticationError, PlanError) as error:
        context.dispatcher.end_run(error)
        return None
    except ServiceError as error:
        why: HaltReason = _HALTS.get(type(error), "unreachable")
        named = {"id": job.id, "upload": job.upload, "error": error}
        note = gettext("the results of job {id} (upload {upload}) cannot be had now: {error}", **named)
        remedy = gettext("; if they never can, `bansong resolve` settles the upload")
        collected = await _pause_without_results(context, job, why, note, remedy)
        return None if isinstance(error, NotSentError) and error.status is None else collected
    if found is None:
        return None
    await context.journal.settle(JobFetched(job.upload, found.answers, found.faults, found.note, found.base))
    context.counts.fetched += len(found.answers)
    if not found.answers:
        why_not = found.note or next(iter(found.faults.values()), gettext("there were none"))
        said = gettext("no result of job {id} could be used: {why_not}", id=job.id, why_not=why_not)
        context.dispatcher.cancel(Halt("failing", said))
    context.progress(len(sent))
    answered = found.answers.keys()
    if not passes(answered, len(sent)):
        counts = {"answered": len(answered), "sent": len(sent), "id": job.id}
        return JobOutcome(passes=False, note=gettext("{answered} of {sent} rows of job {id} were answered", **counts))
    few = 2 * len(answered) < len(sent)  # then only a preview of the first rows
    return JobOutcome(passes=True, cut_at=max(answered) + 1 if few else _cut_at(found, len(sent)))


async def _pause_without_results(
    context: PurchaseContext, job: UploadedJob, why: HaltReason, note: str, remedy: str = ""
) -> JobOutcome:
    await context.journal.settle(JobUnfetched(job.upload, note))
    context.dispatcher.cancel(Halt(why, note + remedy))
    return JobOutcome(passes=False, note=note)


async def find_base(context: PurchaseContext, job: UploadedJob) -> int | None:
    """Return the row key of the first row of a fetched job, if its results prove it; fetching is free."""
    sent = context.ledger.rows_of(job.upload)
    status = await _fetch_results(context, job, max(job.total or 0, len(sent)))
    return None if status is None else _match_status(context, job, status, sent).base


async def fetch_late_answers(context: PurchaseContext, uploads: Iterable[StoredUpload]) -> int:
    """Fetch jobs with unanswered rows once more, without waiting; return the number of new answers."""
    found = 0
    for upload in uploads:
        job = UploadedJob.of(upload, context.client.origin)
        try:
            come = await _fetch_late(context, job)
        except ServiceError as error:
            log.info("job %s (upload %s) cannot be looked at now: %s", job.id, job.upload, error)
            break
        if come is None:
            break
        found += come
    return found


async def _fetch_late(context: PurchaseContext, job: UploadedJob) -> int | None:
    sent = context.ledger.rows_of(job.upload)
    missing = _find_missing(context, job, sent)
    preview, matched = max(job.total or 0, len(sent)), MatchedResults()
    try:
        for _ in range(_MAX_FETCHES):
            status = await _fetch_results(context, job, preview)
            if status is None:
                return None
            matched = _merge_looks(matched, _match_status(context, job, status, sent))
            if len(status.results) < preview or missing <= matched.answers.keys():
                break
            preview = _more_results(preview)
    except (NotFoundError, ShapeError, RejectedError, UsageError) as error:
        log.info("job %s (upload %s) shows no more than before: %s", job.id, job.upload, error)
    come = {row: answer for row, answer in matched.answers.items() if row in missing}
    if come:
        await context.journal.settle(JobFetched(job.upload, come, {}, matched.note, matched.base))
        context.counts.fetched += len(come)
    return len(come)


def _find_missing(context: PurchaseContext, job: UploadedJob, sent: list[tuple[bytes, str]]) -> set[int]:
    keys = pl.Series([key for key, _ in sent], dtype=pl.Binary)
    its_own = (pl.col("state") == "missing") & (pl.col("upload") == job.upload)
    known = (part.filter(its_own) for part in context.ledger.entries(keys, answers=False))
    return {place for part in known for place in part["place"]}


async def _fetch_job(
    context: PurchaseContext, job: UploadedJob, sent: list[tuple[bytes, str]]
) -> MatchedResults | None:
    # again while rows are missing; an earlier fetch is not lost by the next one
    ended = await _wait_for_end(context, job)
    found, preview = None, max(job.total or 0, len(sent))
    for look in range(_MAX_FETCHES):
        if look:
            await context.dispatcher.sleep(context.terms.poll)
        try:
            status = ended and await _fetch_results(context, job, preview)
        except (NotFoundError, ShapeError, RejectedError):  # after passing errors all of the job is fetched again
            if found is None or not found.answers:
                raise
            break
        if ended is None or status is None:
            return None
        matched = _match_status(context, job, status, sent)
        if found is not None:
            matched = _merge_looks(found, matched)
        found = matched
        if ended.state == "failed":
            said = gettext("job {job_id} ended as {status!r}", job_id=job.id, status=ended.status)
            found = replace(matched, note=join_clauses(said, matched.note or ""))
        if len(matched.answers) + len(matched.faults) >= len(sent):
            break
        if len(status.results) >= preview:
            preview = _more_results(preview)
    return found


def _more_results(preview: int) -> int:
    return max(preview, min(preview * _PREVIEW_GROWTH, _MAX_PREVIEW))


async def _fetch_results(context: PurchaseContext, job: UploadedJob, preview: int) -> BatchStatus | None:
    # as many as the service lets be asked for
    while True:
        try:
            return await context.dispatcher.fetch(partial(context.client.batch, job.id, preview=preview))
        except RejectedError as error:
            if is_redirect(error) or preview <= 1:
                raise
            preview //= 2


def _merge_looks(earlier: MatchedResults, later: MatchedResults) -> MatchedResults:
    # the later fetch decides about its rows
    answers = {row: answer for row, answer in earlier.answers.items() if row not in later.faults} | later.answers
    faults = {row: fault for row, fault in (earlier.faults | later.faults).items() if row not in answers}
    return MatchedResults(answers, faults, later.note, earlier.base if later.base is None else later.base)


def _cut_at(matched: MatchedResults, rows: int) -> int | None:
    # so many rows missing at the end must be unlikely, given how many are missing before
    places = matched.answers.keys() | matched.faults.keys()
    seen = max(places, default=-1) + 1
    missing = (seen - len(places) + 0.5) / (seen + 1)
    return seen if 0 < seen < rows and missing ** (rows - seen) < _MAX_CUT_PROBABILITY else None


async def _wait_for_end(context: PurchaseContext, job: UploadedJob) -> BatchStatus | None:
    begun, missed = anyio.current_time(), 0
    while not context.dispatcher.is_cancelled:
        age = anyio.current_time() - begun
        longest = max(_MAX_PAUSE_S, context.terms.poll)
        await context.dispatcher.sleep(min(max(context.terms.poll, age / _AGE_PER_PAUSE), longest))
        try:
            status = await context.dispatcher.fetch(lambda: context.client.batch(job.id, preview=1))
        except NotFoundError:  # some services take a moment to know a fresh job
            if (missed := missed + 1) > _MAX_NOT_FOUND:
                raise
            continue
        if status is None or status.state != "working":
            return status
        if age > _DEADLINE_S:
            named = {"id": job.id, "upload": job.upload, "status": status.status, "value": age / 3600}
            raise TimeoutError(
                gettext("job {id} (upload {upload}) is still {status!r} after {value:.0f} hours", **named)
            )
    return None


def _match_status(
    context: PurchaseContext, job: UploadedJob, status: BatchStatus, sent: list[tuple[bytes, str]]
) -> MatchedResults:
    known = keys_of(job.scope, [(result.b_no, result.name, result.address) for result in status.results])
    named = {str(said) for name in JOB_IDS[:-1] if (said := getattr(status, name, None))}
    return match_results(
        status.results,
        sent,
        lambda *echo: known.get(echo, b""),
        records=_records_of(context.lookups, sent),
        totals=(job.total, status.total),
        shared=context.ledger.shares_job(job.upload) or bool(named - {job.id}),  # the job names itself otherwise
        by_hand=context.ledger.named_by_hand(job.upload),
    )


def _records_of(
    lookups: pl.DataFrame | None, sent: list[tuple[bytes, str]]
) -> list[tuple[str | None, str | None] | None]:
    # name and address of each row, as far as the run's file has them
    if lookups is None:
        return []
    keys = pl.DataFrame({KEY: [key for key, _ in sent]}, schema={KEY: pl.Binary})
    known = lookups.join(keys, on=KEY, how="semi")
    texts = dict(zip(known[KEY], split(known).select("name", "address").iter_rows(), strict=True))
    return [texts.get(key) for key, _ in sent] if texts else []
