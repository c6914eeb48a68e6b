"""Buying many lookups at once: uploads to ``POST /batch``, watched until they are done, fetched, and placed."""

from __future__ import annotations

import secrets
from collections import deque
from itertools import count
from typing import TYPE_CHECKING, Final

import anyio
import polars as pl

from bizverify.errors import (
    AuthenticationError,
    DoubtError,
    NotFoundError,
    NotSentError,
    PlanError,
    QuotaError,
    ServiceError,
    ShapeError,
    TooLargeError,
)
from bizverify.execute.buying.errand import WEIGHT, Buying, Halt, Why, is_strain
from bizverify.execute.buying.placing import Placed, place
from bizverify.execute.ledger import (
    Asking,
    Fetched,
    Gated,
    JobLost,
    Known,
    Prepared,
    Refused,
    Sent,
    UploadDoubted,
    UploadDropped,
    UploadRefused,
    UploadUnreadable,
)
from bizverify.execute.lookups import KEY, keys_of, scope_of, split

if TYPE_CHECKING:
    from bizverify.execute.buying.limits import Slot, Throttle
    from bizverify.execute.ledger import Change, Upload
    from bizverify.service import BatchStatus

_LONG_JOB: Final = 60.0
"""Seconds after which a job is looked at less often: each time a sixtieth of its age later, at most every 30 s."""
_RAREST: Final = 30.0
_DEADLINE: Final = 6 * 3600.0
"""Seconds that a run waits for a job; what is not done then stays known, and the same command goes on waiting."""
_TRIAL: Final = 100
"""Rows of a run's first upload: if the service's results cannot be told apart, few are lost. Then one of full size."""
_LOOKS_AGAIN: Final = 2
"""How often results that lack rows are fetched again, which costs nothing."""
_SAME_SIZE: Final = 3
"""How often an upload that did not get through is tried again as it is; then its size may be why (a proxy hangs up)."""
_UPLOAD_WEIGHT: Final = 4 * WEIGHT
"""What an upload that came to nothing weighs against single requests: three in a row stop the run."""


async def buy_in_uploads(buying: Buying, wanted: pl.DataFrame) -> None:
    """Buy the wanted lookups in uploads, and fetch what earlier runs have uploaded."""
    running = deque(buying.ledger.open_uploads(buying.client.origin))
    limit = min(buying.ledger.limit(buying.client.origin) or buying.terms.chunk, buying.terms.chunk)
    for trial in (_TRIAL, limit):  # alone, before several go at once
        if wanted.height > trial:
            chunks = Chunks(wanted.head(trial), limit)
            await _through(buying, chunks, deque(), 1)
            limit, wanted = chunks.limit, wanted[trial:]
    await _through(buying, Chunks(wanted, limit), running, buying.terms.jobs)


async def _through(buying: Buying, chunks: Chunks, running: deque[Upload], at_once: int) -> None:
    """See jobs that are running and pieces that are wanted through to their end."""

    async def worker(throttle: Throttle) -> None:
        while True:
            async with buying.slot(throttle) as slot:
                if slot is None:
                    return
                if running:
                    upload = running.popleft()
                    scope = scope_of(buying.client.origin, upload.offline, upload.paid)
                    await collect(buying, chunks, upload.id, str(upload.job_id), upload.total, scope)
                elif (chunk := chunks.next()) is not None:
                    await _buy(buying, chunk, chunks, throttle, slot)
                else:
                    return

    await buying.carry_out(worker, at_once)


class Chunks:
    """Hands out the wanted lookups in pieces that the service takes."""

    def __init__(self, wanted: pl.DataFrame, limit: int) -> None:
        self.limit = limit
        self._wanted = wanted
        self._left = deque([(0, wanted.height)])

    def next(self) -> pl.DataFrame | None:
        """The next piece; ``None`` when there is none left."""
        while self._left:
            start, end = self._left.popleft()
            if end - start > self.limit:
                self._left.appendleft((start + self.limit, end))
                end = start + self.limit
            if end > start:
                return self._wanted[start:end].with_columns(pl.int_range(start, end).alias("at"))
        return None

    def not_more_than(self, rows: int) -> None:
        """The service gave no more results than that of a larger piece: hand out no more at once from now on."""
        self.limit = max(1, min(self.limit, rows))

    def too_large(self, chunk: pl.DataFrame) -> None:
        """The service did not take a piece: put it back, and hand out half as much from now on."""
        self.limit = max(1, min(self.limit, chunk.height // 2))
        self.back(chunk)

    def back(self, chunk: pl.DataFrame) -> None:
        """Put a piece back: nothing of it was bought."""
        start = int(chunk["at"][0])
        self._left.appendleft((start, start + chunk.height))


async def _buy(buying: Buying, chunk: pl.DataFrame, chunks: Chunks, throttle: Throttle, slot: Slot) -> None:
    """Upload a piece, again only where it is certain that nothing was paid, and see its job through."""
    for attempt in count():
        if not await buying.turn(throttle):
            return
        upload = secrets.token_hex(6)
        error = await _send(buying, chunks, upload, chunk)
        if error is None:
            slot.eased()
            buying.fruitful()
            return
        if is_strain(error):
            slot.strained(error.retry_after)
        if isinstance(error, TooLargeError) and chunk.height > 1:
            chunks.too_large(chunk)
            buying.ledger.remember_limit(buying.client.origin, chunks.limit)
            return
        if isinstance(error, NotSentError) and attempt >= _SAME_SIZE and chunk.height > 1:
            chunks.too_large(chunk)
            return
        if not await _again(buying, error, attempt):
            return


async def _send(buying: Buying, chunks: Chunks, upload: str, chunk: pl.DataFrame) -> ServiceError | None:
    """Upload and write down each step; the job, once known, is seen through. Return the error it came to, if any."""
    settle, records = buying.journal.settle, split(chunk)
    gate = _Gate(buying, upload)
    rows = list(zip(chunk[KEY], records["b_no"], strict=True))
    terms = buying.terms
    origin = buying.client.origin
    await settle(Prepared(upload, buying.run_id, rows, terms.offline, terms.paid, origin))
    try:
        created = await buying.client.create_batch(
            records.write_csv(null_value="").encode(),
            offline=terms.offline,
            paid=terms.paid,
            before_last_byte=gate.open,
            after_last_byte=gate.passed,
        )
    except ServiceError as error:
        alone = isinstance(error, TooLargeError) and chunk.height == 1
        refused = [change for key, b_no in rows if alone for change in _refused(key, b_no, buying.run_id, error)]
        await settle(_outcome(upload, error), *refused)
        return error
    except BaseException as stopped:  # cancelled, or worse
        with anyio.CancelScope(shield=True):
            await settle(gate.stopped(f"the run was stopped while uploading ({type(stopped).__name__})"))
        raise
    await settle(Known(upload, created.job_id, created.total))
    buying.figures.paid += chunk.height
    await collect(buying, chunks, upload, created.job_id, created.total, buying.scope)
    return None


class _Gate:
    """Writes down that the last bytes of an upload are about to go, and that they went."""

    def __init__(self, buying: Buying, upload: str) -> None:
        self._buying, self._upload, self._opened = buying, upload, False

    async def open(self) -> None:
        await self._buying.journal.settle(Gated(self._upload))
        self._opened = True

    async def passed(self) -> None:
        await self._buying.journal.settle(Sent(self._upload))

    def stopped(self, note: str) -> Change:
        """What an upload is that was broken off: nothing, unless its last bytes may have gone."""
        if not self._opened:
            return UploadDropped(self._upload)
        self._buying.figures.doubts += 1
        return UploadDoubted(self._upload, note)


def _refused(key: bytes, b_no: str, run_id: str, error: ServiceError) -> tuple[Change, ...]:
    """A row that the service does not take even alone: as if it had been asked, and refused, by itself."""
    return Asking(key, b_no, run_id), Refused(key, str(error))


def _outcome(upload: str, error: ServiceError) -> Change:
    match error:
        case DoubtError():
            return UploadDoubted(upload, str(error))
        case ShapeError():
            return UploadUnreadable(upload, error.raw, str(error))
        case NotSentError():
            return UploadDropped(upload)
        case _:
            return UploadRefused(upload, str(error))


async def _again(buying: Buying, error: ServiceError, attempt: int) -> bool:
    """Whether to upload the same piece once more; if not, whether to go on at all."""
    match error:
        case DoubtError() | ShapeError():
            buying.figures.doubts += 1
            buying.fruitless(str(error), _UPLOAD_WEIGHT)
        case NotSentError():
            if await buying.again(attempt, error.retry_after):
                return True
            buying.unreachable(error)
        case QuotaError():
            return await buying.quota_used_up(error, attempt)
        case TooLargeError():  # a single row
            buying.fruitless(str(error), 1)
        case _:  # whatever it dislikes about an upload, it will dislike about the next
            buying.refused(error)
    return False


async def collect(buying: Buying, chunks: Chunks, upload: str, job_id: str, total: int | None, scope: str) -> None:
    """Wait for a job, fetch its results and write them down; a job that goes on for too long stays known."""
    sent = buying.ledger.rows_of(upload)
    try:
        ended = await _ended(buying, job_id)
        if ended is None:
            return
        status = await _results(buying, job_id, len(sent), max(total or 0, len(sent)))
    except NotFoundError as error:
        await buying.journal.settle(JobLost(upload, str(error)))
        return
    except (AuthenticationError, PlanError) as error:
        buying.refused(error)
        return
    except ServiceError as error:  # nothing is lost: the job stays known, and is looked at again by the next run
        why: Why = "quota" if isinstance(error, QuotaError) else "unreachable"
        buying.stop.pull(Halt(why, f"the results of job {job_id} cannot be had now: {error}"))
        return
    if status is None:
        return
    placed = _place(scope, status, sent)
    note = placed.note
    if ended.state == "failed":
        note = f"job {job_id} ended as {ended.status!r}" + (f"; {note}" if note else "")
    await buying.journal.settle(Fetched(upload, placed.answers, placed.faults, note))
    buying.figures.fetched += len(placed.answers)
    if len(status.results) < len(sent):
        chunks.not_more_than(len(status.results))
    if not placed.answers:
        buying.stop.pull(Halt("failing", f"no result of job {job_id} could be used: {note or 'there were none'}"))
    buying.progress(len(sent))


async def _ended(buying: Buying, job_id: str) -> BatchStatus | None:
    """Look at a job until it has ended; ``None`` if the run stops first, or the job takes too long."""
    begun, missed = anyio.current_time(), 0
    while not buying.stop.pulled:
        age = anyio.current_time() - begun
        with buying.stop.waiting():
            await anyio.sleep(min(max(buying.terms.poll, age / _LONG_JOB), max(_RAREST, buying.terms.poll)))
        try:
            status = await buying.free(lambda: buying.client.batch(job_id, preview=1))
        except NotFoundError:  # some services take a moment to know a fresh job
            if (missed := missed + 1) > _LOOKS_AGAIN:
                raise
            continue
        if status is None or status.state != "working":
            return status
        if age > _DEADLINE:
            buying.stop.pull(
                Halt("unreachable", f"job {job_id} is still {status.status!r} after {age / 3600:.0f} hours")
            )
    return None


async def _results(buying: Buying, job_id: str, rows: int, preview: int) -> BatchStatus | None:
    """Fetch a job's results until there are as many as rows, or it is clear that some will not come."""
    status = None
    for look in range(1 + _LOOKS_AGAIN):
        if look:
            with buying.stop.waiting():
                await anyio.sleep(buying.terms.poll)
        status = await buying.free(lambda: buying.client.batch(job_id, preview=preview))
        if status is None or len(status.results) >= rows:
            break
    return status


def _place(scope: str, status: BatchStatus, sent: list[tuple[bytes, str]]) -> Placed:
    known = keys_of(scope, [(result.b_no, result.name, result.address) for result in status.results])
    return place(status.results, sent, lambda *echo: known.get(echo, b""))
