"""Buying many lookups at once: uploads to ``POST /batch``, in pieces that the service takes."""

from __future__ import annotations

import logging
import math
import secrets
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any, Final

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
from bizverify.ledger import (
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
from bizverify.purchase.batch_jobs import Job, collect
from bizverify.purchase.dispatcher import WEIGHT, Buying, Halt
from bizverify.purchase.idempotent_retry import BATCH, once, request_of
from bizverify.purchase.trials import why_stopped
from bizverify.purchase.upload_chunks import Chunks
from bizverify.run.lookups import KEY, scope_of, split

if TYPE_CHECKING:
    from bizverify.client import BatchCreated
    from bizverify.ledger import Change, Upload
    from bizverify.purchase.limits import Slot, Throttle

log = logging.getLogger(__name__)

_TRIAL: Final = 100
"""Rows of a run's first upload: where the service does not answer, or not so that rows can be told apart, few are
lost."""
_GROWTH: Final = 4
"""How many times as large as the last answered upload the next may be: so much, and no more, is risked on its proof."""
_SAME_SIZE: Final = 3
"""How often an upload that did not get through is tried again as it is; then its size may be why (a proxy hangs up)."""
_UPLOAD_WEIGHT: Final = 4 * WEIGHT
"""What an upload that came to nothing weighs against single requests: three in a row stop the run."""


async def buy_in_uploads(buying: Buying, wanted: pl.DataFrame, running: Iterable[Upload]) -> None:
    """Buy the wanted lookups in uploads, and fetch those of earlier runs that are ``running``.

    The first upload is a trial; each that is answered lets the next be :data:`_GROWTH` times as large, alone, until one
    of full size was answered; then several go at once. One that comes to nothing begins all that anew, with other rows,
    until :data:`~bizverify.purchase.trials.TRIALS` are spent.
    """
    ledger, origin, terms = buying.ledger, buying.client.origin, buying.terms
    chunks, waiting = Chunks(wanted, min(ledger.limit(origin) or terms.chunk, terms.chunk)), deque(running)
    at_once, answered = min(terms.jobs, terms.concurrency), 0
    if ledger.spent_trials(origin):  # fetching is free, and shows perhaps that the service has answered after all
        chunks.start(0, trial=True, pieces=0)
        await _work(buying, chunks, waiting, at_once)
    while chunks and not buying.stop.pulled:
        if not answered and (why := why_stopped(ledger, origin, uploads=True)) is not None:
            buying.stop.pull(Halt("stopped", why))
            return
        chunks.arrange(distinct=not ledger.proves_row_keys(origin))
        size = _TRIAL * _GROWTH**answered
        several = size >= _GROWTH * max(chunks.limit, _TRIAL)
        chunks.start(size, trial=not answered, pieces=math.inf if several else 1)
        await _work(buying, chunks, waiting if several else deque(), at_once if several else 1)
        answered = 0 if chunks.failed else answered + chunks.answered
    if waiting and not buying.stop.pulled:
        await _work(buying, chunks, waiting, at_once)


async def _work(buying: Buying, chunks: Chunks, running: deque[Upload], at_once: int) -> None:
    """See jobs that are running and pieces that are handed out through to their end."""

    async def worker(throttle: Throttle) -> None:
        while True:
            async with buying.slot(throttle) as slot:
                if slot is None:
                    return
                if running:
                    upload = running.popleft()
                    scope = scope_of(buying.client.origin, upload.offline, upload.paid)
                    collected = await collect(buying, Job(upload.id, str(upload.job_id), upload.total, scope))
                    if collected is not None and not collected.passes:
                        _shrink(buying, chunks, upload.rows)
                elif (chunk := chunks.next()) is not None:
                    await _buy(buying, chunk, chunks, throttle, slot)
                else:
                    return

    await buying.carry_out(worker, at_once)


async def _buy(buying: Buying, chunk: pl.DataFrame, chunks: Chunks, throttle: Throttle, slot: Slot) -> None:
    """Upload a piece, again only where it is certain that nothing was paid, and see its job through."""
    for attempt in count():
        async with buying.at_gate() as alone:
            if not alone or not await buying.turn(throttle):
                return
            sent = await _send(buying, chunks, secrets.token_hex(6), chunk, throttle, slot)
        if isinstance(sent, Job):
            slot.eased()
            await _collect(buying, chunks, chunk, sent)
            return
        buying.strained(sent, slot)
        if isinstance(sent, TooLargeError) and chunk.height > 1:
            chunks.too_large(chunk)
            buying.ledger.remember_limit(buying.client.origin, chunks.limit)
            return
        if isinstance(sent, NotSentError) and attempt >= _SAME_SIZE and chunk.height > 1:
            chunks.too_large(chunk)
            return
        if not await _again(buying, sent, attempt, chunks, chunk):
            if not buying.stop.pulled:
                buying.progress(chunk.height)
            return


async def _send(
    buying: Buying, chunks: Chunks, upload: str, chunk: pl.DataFrame, throttle: Throttle, slot: Slot
) -> Job | ServiceError:
    """Upload a piece and write down each step; return its job, or the error that it came to."""
    settle, records = buying.journal.settle, split(chunk)
    gate = _Gate(buying, upload)
    rows = list(zip(chunk[KEY], records["b_no"], strict=True))
    terms = buying.terms
    content = records.write_csv(null_value="").encode()
    request = request_of(buying, BATCH, content)
    key: dict[str, Any] = {} if request is None else {"idempotency_key": request.token}
    origin = buying.client.origin
    await settle(Prepared(upload, buying.run_id, rows, terms.offline, terms.paid, origin, request, chunks.trial))

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
    return Job(upload, created.job_id, created.total, buying.scope)


async def _collect(buying: Buying, chunks: Chunks, chunk: pl.DataFrame, job: Job) -> None:
    """See the job of a piece through, and let the next pieces be as large as what it gave."""
    collected = await collect(buying, job)
    if collected is None:
        return
    if not collected.passes:
        _came_to_nothing(buying, chunks, chunk, collected.note)
        return
    chunks.answered += 1
    buying.fruitful()
    if collected.cut_at is not None:
        chunks.not_more_than(collected.cut_at)


def _came_to_nothing(buying: Buying, chunks: Chunks, chunk: pl.DataFrame, note: str) -> None:
    """A piece was paid, or perhaps, and too few of its rows were answered: begin anew, with smaller ones."""
    _shrink(buying, chunks, chunk.height)
    if not chunks.trial:  # trials have a count of their own
        buying.fruitless(note, _UPLOAD_WEIGHT)


def _shrink(buying: Buying, chunks: Chunks, rows: int) -> None:
    """An upload of so many rows came to nothing: the next ones are smaller, also in later runs."""
    before = chunks.limit
    chunks.came_to_nothing(rows, _TRIAL)
    if chunks.limit < before:
        buying.ledger.remember_limit(buying.client.origin, chunks.limit)


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


async def _again(buying: Buying, error: ServiceError, attempt: int, chunks: Chunks, chunk: pl.DataFrame) -> bool:
    """Whether to upload the same piece once more; if not, whether to go on at all."""
    match error:
        case DoubtError() | ShapeError():
            buying.figures.doubts += 1
            _came_to_nothing(buying, chunks, chunk, str(error))
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
