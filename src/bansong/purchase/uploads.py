"""Buy lookups by uploads (``POST /batch``); wait for their jobs and fetch the results, which is free."""

from __future__ import annotations

import logging
import math
import secrets
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Self

import anyio
import polars as pl

from bansong.base.errors import (
    AuthenticationError,
    DoubtError,
    LedgerError,
    LimitError,
    NotFoundError,
    NotSentError,
    PlanError,
    QuotaError,
    RejectedError,
    ServiceError,
    ShapeError,
    TooLargeError,
    UsageError,
)
from bansong.base.messages import gettext, join_clauses
from bansong.client.dispatcher import FAILURE_WEIGHT, Halt, HaltReason, OutgoingRequest, Slot, Task
from bansong.client.errors import Action, error_action, is_redirect
from bansong.client.evidence import JOB_IDS
from bansong.purchase import changes
from bansong.purchase.changes import JobFetched, JobLost, JobUnfetched, has_enough_answers
from bansong.purchase.lookups import KEY, PurchaseContext, keys_of, scope_of, split, why_stopped
from bansong.purchase.proof import MatchedResults, match_results
from bansong.purchase.singles import BATCH, send_once, stored_request

if TYPE_CHECKING:
    from bansong.client.responses import BatchCreated, BatchStatus
    from bansong.purchase.ledger_file import LedgerChange, StoredRequest
    from bansong.purchase.queries import StoredUpload

log = logging.getLogger(__name__)

_HALTS: Final[dict[type[ServiceError], HaltReason]] = {QuotaError: "quota", LimitError: "limit"}
_AGE_PER_PAUSE: Final = 60.0  # the pause between polls grows to a sixtieth of the job's age
_MAX_PAUSE_S: Final = 30.0
_DEADLINE_S: Final = 6 * 3600.0  # after this wait the run ends; repeating the command waits again
_MAX_NOT_FOUND: Final = 10  # replies 404 before a job is given up
_MAX_CUT_PROBABILITY: Final = 0.004  # of missing rows being all at the end by chance
_MAX_FETCHES: Final = 3  # of a finished job while rows are missing
_PREVIEW_GROWTH: Final = 4  # factor for the next fetch if there may be more results
_MAX_PREVIEW: Final = 20_000  # unless the upload has more rows; the client reads up to 8 KiB a row


@dataclass(frozen=True, slots=True)
class UploadedJob:
    """An upload, and its job at the service."""

    upload: str
    id: str  # of the job
    total: int | None  # rows that the service counted
    scope: str  # see scope_of

    @classmethod
    def of(cls, upload: StoredUpload, origin: str) -> Self:
        scope = scope_of(origin, upload.offline, upload.paid)
        return cls(upload.id, upload.job_id, upload.total, scope)


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """The result of fetching a job."""

    is_usable: bool  # enough rows are answered to show that the service works
    cut_at: int | None = None  # number of first rows that are answered, if all later ones are missing
    note: str = ""  # why it is not usable


async def collect_job(context: PurchaseContext, job: UploadedJob) -> JobOutcome | None:
    """Wait for a job, then fetch and record its results; ``None`` if stopped, refused or unreachable."""
    sent = context.ledger.rows_of(job.upload)
    try:
        found = await _fetch_job(context, job, sent)
    except (NotFoundError, UsageError) as error:  # UsageError: the id cannot be part of a URL
        await context.journal.settle(JobLost(job.upload, str(error)))
        context.progress(len(sent))
        return JobOutcome(is_usable=False, note=gettext("no answer came of job {id}: {error}", id=job.id, error=error))
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
    if not has_enough_answers(answered, len(sent)):
        counts = {"answered": len(answered), "sent": len(sent), "id": job.id}
        note = gettext("{answered} of {sent} rows of job {id} were answered", **counts)
        return JobOutcome(is_usable=False, note=note)
    few = 2 * len(answered) < len(sent)  # the service gave a preview of the first rows only
    return JobOutcome(is_usable=True, cut_at=max(answered) + 1 if few else _cut_at(found, len(sent)))


async def _pause_without_results(
    context: PurchaseContext, job: UploadedJob, why: HaltReason, note: str, remedy: str = ""
) -> JobOutcome:
    await context.journal.settle(JobUnfetched(job.upload, note))
    context.dispatcher.cancel(Halt(why, note + remedy))
    return JobOutcome(is_usable=False, note=note)


async def find_base(context: PurchaseContext, job: UploadedJob) -> int | None:
    """Fetch a job's results again, free of charge; return the first row's row key if they show it beyond doubt."""
    sent = context.ledger.rows_of(job.upload)
    status = await _fetch_results(context, job, max(job.total or 0, len(sent)))
    return None if status is None else _match_status(context, job, status, sent).base


async def fetch_late_answers(context: PurchaseContext, uploads: Iterable[StoredUpload]) -> int:
    """Fetch jobs with unanswered rows once more, without waiting; return how many new answers came."""
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
    # fetches again while rows are missing; the results of all fetches are merged
    ended = await _wait_for_end(context, job)
    found, preview = None, max(job.total or 0, len(sent))
    for look in range(_MAX_FETCHES):
        if look:
            await context.dispatcher.sleep(context.terms.poll)
        try:
            status = ended and await _fetch_results(context, job, preview)
        except (NotFoundError, ShapeError, RejectedError):  # a later run fetches again after other errors
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
    # halves the number of results until the service accepts it
    while True:
        try:
            return await context.dispatcher.fetch(partial(context.client.batch, job.id, preview=preview))
        except RejectedError as error:
            if is_redirect(error) or preview <= 1:
                raise
            preview //= 2


def _merge_looks(earlier: MatchedResults, later: MatchedResults) -> MatchedResults:
    # for a row in both, the later fetch decides
    answers = {row: answer for row, answer in earlier.answers.items() if row not in later.faults} | later.answers
    faults = {row: fault for row, fault in (earlier.faults | later.faults).items() if row not in answers}
    return MatchedResults(answers, faults, later.note, earlier.base if later.base is None else later.base)


def _cut_at(matched: MatchedResults, rows: int) -> int | None:
    # number of rows before the missing end, if so many could hardly be missing at the end by chance
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
        except NotFoundError:  # some services do not know a new job at once
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
        shared=context.ledger.shares_job(job.upload) or bool(named - {job.id}),  # the reply names another job
        by_hand=context.ledger.named_by_hand(job.upload),
    )


def _records_of(
    lookups: pl.DataFrame | None, sent: list[tuple[bytes, str]]
) -> list[tuple[str | None, str | None] | None]:
    # name and address of each row, if the run's file has them
    if lookups is None:
        return []
    keys = pl.DataFrame({KEY: [key for key, _ in sent]}, schema={KEY: pl.Binary})
    known = lookups.join(keys, on=KEY, how="semi")
    texts = dict(zip(known[KEY], split(known).select("name", "address").iter_rows(), strict=True))
    return [texts.get(key) for key, _ in sent] if texts else []


_TRIAL_ROWS: Final = 100  # of a run's first upload: little is lost if the service does not answer
_GROWTH: Final = 4  # size of an upload relative to the last answered one
_SAME_SIZE_ATTEMPTS: Final = 3  # after these, the size may be the reason (a proxy hangs up)
_UPLOAD_WEIGHT: Final = 4 * FAILURE_WEIGHT  # three failed uploads in a row stop the run
_ORDER: Final = "chunk_order"
_NUMBER: Final = "chunk_number"
_PART: Final = "chunk_part"
_SHRINKAGE: Final = 10  # divisor of the size after a failed upload


async def buy_in_uploads(context: PurchaseContext, wanted: pl.DataFrame, running: Iterable[StoredUpload]) -> None:
    """Buy the wanted lookups in uploads, and fetch the results of ``running`` uploads of earlier runs."""
    # The first upload is a small trial. After each answered one, the next is _GROWTH times as large. Once one of full
    # size was answered, several are sent at once. After a failed one, it begins again with a trial of other rows.
    ledger, origin, terms, dispatcher = context.ledger, context.client.origin, context.terms, context.dispatcher
    chunks, waiting = Chunks(wanted, min(ledger.limit(origin) or terms.chunk, terms.chunk)), deque(running)
    concurrency, answered = min(terms.jobs, terms.concurrency), 0
    if ledger.spent_trials(origin):  # fetch first: earlier trials may be answered by now
        chunks.start(0, trial=True, pieces=0)
        await _work(context, chunks, waiting, concurrency)
    while chunks and not dispatcher.is_cancelled:
        if not answered and (why := why_stopped(ledger, origin, uploads=True)) is not None:
            dispatcher.cancel(Halt("stopped", why))
            return
        chunks.arrange(distinct=not ledger.proves_row_keys(origin))
        size = _TRIAL_ROWS * _GROWTH**answered
        several = size >= _GROWTH * max(chunks.limit, _TRIAL_ROWS)
        chunks.start(size, trial=not answered, pieces=math.inf if several else 1)
        await _work(context, chunks, waiting if several else deque(), concurrency if several else 1)
        answered = 0 if chunks.failed else answered + chunks.answered
    if waiting and not dispatcher.is_cancelled:
        await _work(context, chunks, waiting, concurrency)


async def _work(context: PurchaseContext, chunks: Chunks, running: deque[StoredUpload], concurrency: int) -> None:
    async def collect_earlier(upload: StoredUpload, _slot: Slot) -> None:
        outcome = await collect_job(context, UploadedJob.of(upload, context.client.origin))
        if outcome is not None and not outcome.is_usable:
            _shrink(context, chunks, upload.rows)

    def next_task() -> Task | None:
        if running:
            return partial(collect_earlier, running.popleft())
        chunk = chunks.next()
        return None if chunk is None else partial(context.dispatcher.deliver, _ChunkUpload(context, chunks, chunk))

    await context.dispatcher.run(next_task, concurrency)


def _shrink(context: PurchaseContext, chunks: Chunks, rows: int) -> None:
    # the lower limit also holds for later runs
    before = chunks.limit
    chunks.record_failure(rows, _TRIAL_ROWS)
    if chunks.limit < before:
        context.ledger.remember_limit(context.client.origin, chunks.limit)


class Chunks:
    """Cuts the wanted lookups into pieces of at most ``limit`` rows; counts the answered and failed ones."""

    def __init__(self, wanted: pl.DataFrame, limit: int) -> None:
        self.limit = limit
        self.answered = self.failed = 0
        self.trial = False  # the pieces test whether the service answers
        self._size, self._pieces = limit, math.inf
        self._wanted = wanted.with_row_index(_ORDER)
        self._left = deque([(0, wanted.height)] if wanted.height else [])
        self._distinct = False

    def __bool__(self) -> bool:
        return bool(self._left)

    def start(self, size: int, *, trial: bool, pieces: float) -> None:
        """Reset the counts; from now on, hand out at most ``pieces`` pieces of at most ``size`` rows."""
        self.trial, self._size, self._pieces = trial, size, pieces
        self.answered = self.failed = 0

    def arrange(self, *, distinct: bool) -> None:
        """Sort the remaining rows as in the file, or so that no piece has a number twice (``distinct``)."""
        # not while pieces are sent: :meth:`back` needs their places
        if distinct == self._distinct or not self._left:
            return
        self._distinct = distinct
        left = pl.concat([self._wanted[start:end] for start, end in self._left]).sort(_ORDER)
        parts = 1
        if distinct:
            left = left.with_columns(split(left)["b_no"].alias(_NUMBER))
            most = int(left[_NUMBER].value_counts()["count"].max() or 1)  # type: ignore[arg-type]  # an integer
            if most > 1:
                parts = max(most, math.ceil(left.height / self.limit))
            left = left.with_columns(((pl.col(_NUMBER).rank("ordinal") - 1) % parts).alias(_PART))
            left = left.sort(_PART, _ORDER)
        self._wanted = left.drop(_NUMBER, _PART, strict=False)
        sizes = left.group_by(_PART, maintain_order=True).len()["len"] if parts > 1 else [left.height]
        self._left.clear()
        start = 0
        for size in sizes:
            self._left.append((start, start + size))
            start += size

    def next(self) -> pl.DataFrame | None:
        """Return the next piece; ``None`` if none is left, or enough were handed out."""
        if not self._left or self._pieces < 1 or self.failed:
            return None
        self._pieces -= 1
        start, end = self._left.popleft()
        size = min(self._size, self.limit)
        if end - start > size:
            self._left.appendleft((start + size, end))
            end = start + size
        return self._wanted[start:end].with_columns(pl.int_range(start, end).alias("at"))

    def not_more_than(self, rows: int) -> None:
        self.limit = max(1, min(self.limit, rows))

    def too_large(self, chunk: pl.DataFrame) -> None:
        """Put back a piece that was too large, and halve the limit."""
        self.limit = max(1, min(self.limit, chunk.height // 2))
        self.back(chunk)

    def record_failure(self, rows: int, least: int) -> None:
        """Hand out no piece until :meth:`start`, and lower the limit to a tenth of ``rows``, or to ``least``."""
        self.failed += 1
        if rows > least:
            self.not_more_than(max(least, rows // _SHRINKAGE))

    def back(self, chunk: pl.DataFrame) -> None:
        """Put an unbought piece back."""
        start = int(chunk["at"][0])
        self._left.appendleft((start, start + chunk.height))


class _ChunkUpload(OutgoingRequest["BatchCreated"]):
    activity = "uploading"

    def __init__(self, context: PurchaseContext, chunks: Chunks, chunk: pl.DataFrame) -> None:
        self.gate = context.upload_gate
        self._context, self._chunks, self._chunk = context, chunks, chunk
        records = split(chunk)
        self._rows = list(zip(chunk[KEY], records["b_no"], strict=True))
        self._content = records.write_csv(null_value="").encode()
        self._upload = ""
        self._request: StoredRequest | None = None
        self._is_gated = False
        self._job: UploadedJob | None = None

    @property
    def failure_weight(self) -> int:
        return 0 if self._chunks.trial else _UPLOAD_WEIGHT  # trials are counted apart

    def choose_action(self, error: ServiceError, attempt: int) -> Action:
        is_stuck = isinstance(error, NotSentError) and attempt >= _SAME_SIZE_ATTEMPTS
        if (is_stuck or isinstance(error, TooLargeError)) and len(self._rows) > 1:
            return Action.DROP
        action = error_action(error)
        if action is Action.REFUSE and not isinstance(error, TooLargeError):
            return Action.END_RUN  # the service would refuse other uploads, too
        return action

    async def prepare(self) -> None:
        context, terms = self._context, self._context.terms
        self._upload, self._is_gated = secrets.token_hex(6), False
        self._request = stored_request(context, BATCH, self._content)
        how = (terms.offline, terms.paid, context.client.origin, self._request, self._chunks.trial)
        await context.journal.settle(changes.UploadPrepared(self._upload, context.run_id, self._rows, *how))

    async def send(self, slot: Slot) -> BatchCreated:
        terms = self._context.terms

        async def ask(is_repetition: bool) -> BatchCreated:
            if is_repetition and not self._is_gated:
                await self._record_gate()
            return await self._context.client.create_batch(
                self._content,
                offline=terms.offline,
                paid=terms.paid,
                before_last_byte=None if is_repetition else self._record_gate,
                after_last_byte=None if is_repetition else self._record_last_byte,
                idempotency_key=self._request.token if self._request else None,
            )

        return await send_once(self._context, BATCH, self._request, ask, slot)

    async def record_reply(self, reply: BatchCreated, slot: Slot) -> None:
        del slot
        # a service may reply before the last bytes are sent
        before = () if self._is_gated else (changes.UploadGated(self._upload),)
        try:
            await self._context.journal.settle(*before, changes.JobKnown(self._upload, reply.job_id, reply.total))
        except LedgerError:
            said = gettext(
                "upload %s became job %s, which could not be written down: tell `bansong resolve` when it can be"
            )
            log.error(said, self._upload, reply.job_id)
            raise
        self._context.counts.paid += len(self._rows)
        self._job = UploadedJob(self._upload, reply.job_id, reply.total, self._context.scope)

    async def record_error(self, error: ServiceError, action: Action) -> None:
        refused: list[LedgerChange] = []
        if isinstance(error, TooLargeError) and len(self._rows) == 1:  # recorded like a refused single request
            ((key, b_no),) = self._rows
            refused = [changes.LookupAsked(key, b_no, self._context.run_id), changes.LookupRefused(key, str(error))]
        await self._context.journal.settle(_upload_outcome(self._upload, error), *refused)
        if action is Action.HOLD:
            self._context.counts.doubts += 1
            _shrink(self._context, self._chunks, len(self._rows))

    async def record_interruption(self, note: str) -> None:
        if not self._is_gated:
            await self._context.journal.settle(changes.UploadDropped(self._upload))
            return
        self._context.counts.doubts += 1
        await self._context.journal.settle(changes.UploadDoubted(self._upload, note))

    async def complete(self) -> bool:
        outcome = None if self._job is None else await collect_job(self._context, self._job)
        if outcome is None:
            return False
        if not outcome.is_usable:
            _shrink(self._context, self._chunks, len(self._rows))
            self._context.dispatcher.record_failure(outcome.note, self.failure_weight)
            return False
        self._chunks.answered += 1
        if outcome.cut_at is not None:
            self._chunks.not_more_than(outcome.cut_at)
        return True

    def give_up(self, error: ServiceError, action: Action) -> None:
        context, chunks = self._context, self._chunks
        if action is Action.DROP:
            chunks.too_large(self._chunk)
            if isinstance(error, TooLargeError):
                context.ledger.remember_limit(context.client.origin, chunks.limit)
        elif not context.dispatcher.is_cancelled:
            context.progress(len(self._rows))

    async def _record_gate(self) -> None:
        await self._context.journal.settle(changes.UploadGated(self._upload))
        self._is_gated = True

    async def _record_last_byte(self) -> None:
        with suppress(LedgerError):  # the state `gated` is enough, and the reply is on its way
            await self._context.journal.settle(changes.UploadSent(self._upload))


def _upload_outcome(upload: str, error: ServiceError) -> LedgerChange:
    match error:
        case DoubtError():
            return changes.UploadDoubted(upload, str(error))
        case ShapeError():
            return changes.UploadUnreadable(upload, error.raw, str(error))
        case NotSentError():
            return changes.UploadDropped(upload)
        case _:
            return changes.UploadRefused(upload, str(error))
