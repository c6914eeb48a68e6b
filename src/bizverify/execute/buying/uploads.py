"""Buying many lookups at once: uploads to ``POST /batch``, in pieces that the service takes."""

from __future__ import annotations

import logging
import secrets
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Final

import anyio
import polars as pl

from bizverify.errors import (
    CertificateError,
    DoubtError,
    LedgerError,
    NotSentError,
    QuotaError,
    ServiceError,
    ShapeError,
    TooLargeError,
)
from bizverify.execute.buying.errand import WEIGHT, Buying
from bizverify.execute.buying.jobs import Job, collect
from bizverify.execute.buying.repeating import BATCH, once, request_of
from bizverify.execute.ledger import (
    Asking,
    Gated,
    Known,
    Prepared,
    Refused,
    Sent,
    UploadDoubted,
    UploadDropped,
    UploadRefused,
    UploadUnreadable,
)
from bizverify.execute.lookups import KEY, scope_of, split

if TYPE_CHECKING:
    from bizverify.execute.buying.limits import Slot, Throttle
    from bizverify.execute.ledger import Change, Upload
    from bizverify.service import BatchCreated

log = logging.getLogger(__name__)

_TRIAL: Final = 100
"""Rows of a run's first upload: if the service's results cannot be told apart, few are lost. Then one of full size."""
_SAME_SIZE: Final = 3
"""How often an upload that did not get through is tried again as it is; then its size may be why (a proxy hangs up)."""
_UPLOAD_WEIGHT: Final = 4 * WEIGHT
"""What an upload that came to nothing weighs against single requests: three in a row stop the run."""


async def buy_in_uploads(buying: Buying, wanted: pl.DataFrame, running: Iterable[Upload]) -> None:
    """Buy the wanted lookups in uploads, and fetch those of earlier runs that are ``running``."""
    limit = min(buying.ledger.limit(buying.client.origin) or buying.terms.chunk, buying.terms.chunk)
    for trial in (_TRIAL, limit):  # alone, before several go at once
        if wanted.height > trial:
            chunks = Chunks(wanted.head(trial), limit)
            await _through(buying, chunks, deque(), 1)
            limit, wanted = chunks.limit, wanted[trial:]
    await _through(buying, Chunks(wanted, limit), deque(running), min(buying.terms.jobs, buying.terms.concurrency))


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
                    await _collect(buying, chunks, Job(upload.id, str(upload.job_id), upload.total, scope))
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
        error = await _send(buying, chunks, upload, chunk, throttle, slot)
        if error is None:
            slot.eased()
            buying.fruitful()
            return
        buying.strained(error, slot)
        if isinstance(error, TooLargeError) and chunk.height > 1:
            chunks.too_large(chunk)
            buying.ledger.remember_limit(buying.client.origin, chunks.limit)
            return
        if isinstance(error, NotSentError) and attempt >= _SAME_SIZE and chunk.height > 1:
            chunks.too_large(chunk)
            return
        if not await _again(buying, error, attempt):
            if not buying.stop.pulled:
                buying.progress(chunk.height)
            return


async def _send(
    buying: Buying, chunks: Chunks, upload: str, chunk: pl.DataFrame, throttle: Throttle, slot: Slot
) -> ServiceError | None:
    """Upload and write down each step; the job, once known, is seen through. Return the error it came to, if any."""
    settle, records = buying.journal.settle, split(chunk)
    gate = _Gate(buying, upload)
    rows = list(zip(chunk[KEY], records["b_no"], strict=True))
    terms = buying.terms
    content = records.write_csv(null_value="").encode()
    request = request_of(buying, BATCH, content)
    key = {} if request is None else {"idempotency_key": request.token}
    origin = buying.client.origin
    await settle(Prepared(upload, buying.run_id, rows, terms.offline, terms.paid, origin, request))

    async def ask(again: bool) -> BatchCreated:
        if again:
            await gate.crossed()
        return await buying.client.create_batch(
            content,
            offline=terms.offline,
            paid=terms.paid,
            before_last_byte=None if again else gate.open,
            after_last_byte=None if again else gate.passed,
            **key,
        )

    try:
        created = await once(buying, BATCH, request, ask, throttle, slot)
    except ServiceError as error:
        alone = isinstance(error, TooLargeError) and chunk.height == 1
        refused = [change for key, b_no in rows if alone for change in _refused(key, b_no, buying.run_id, error)]
        await settle(_outcome(upload, error), *refused)
        return error
    except BaseException as stopped:  # cancelled, or worse
        with anyio.CancelScope(shield=True):
            await settle(gate.stopped(f"the run was stopped while uploading ({type(stopped).__name__})"))
        raise
    try:
        await settle(*gate.reached(), Known(upload, created.job_id, created.total))
    except LedgerError:
        log.error(
            "upload %s became job %s, which could not be written down: tell `bizverify resolve` when it can be",
            upload,
            created.job_id,
        )
        raise
    buying.figures.paid += chunk.height
    await _collect(buying, chunks, Job(upload, created.job_id, created.total, buying.scope))
    return None


async def _collect(buying: Buying, chunks: Chunks, job: Job) -> None:
    """See a job through; if it gives fewer results than rows, the next uploads are no larger than what it gave."""
    given = await collect(buying, job)
    if given is not None and given < len(buying.ledger.rows_of(job.upload)):
        chunks.not_more_than(given)


class _Gate:
    """Writes down that the last bytes of an upload are about to go, and that they went."""

    def __init__(self, buying: Buying, upload: str) -> None:
        self._buying, self._upload, self._opened = buying, upload, False

    async def open(self) -> None:
        await self._buying.journal.settle(Gated(self._upload))
        self._opened = True

    async def crossed(self) -> None:
        """Write down that the whole upload is about to go, unless it is written down already."""
        if not self._opened:
            await self.open()

    async def passed(self) -> None:
        with suppress(LedgerError):  # `gated` says as much, and the job's name is on its way
            await self._buying.journal.settle(Sent(self._upload))

    def reached(self) -> tuple[Change, ...]:
        """What is to be written down of an upload that was taken before its last bytes had to go."""
        return () if self._opened else (Gated(self._upload),)

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
        case CertificateError():
            buying.refused(error)
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
