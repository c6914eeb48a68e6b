"""Buying many lookups at once: uploads to ``POST /batch``, in pieces that the service takes."""

from __future__ import annotations

import logging
import math
import secrets
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import polars as pl

from bansong.base.errors import DoubtError, LedgerError, NotSentError, ServiceError, ShapeError, TooLargeError
from bansong.base.messages import gettext
from bansong.client.dispatcher import FAILURE_WEIGHT, Halt, OutgoingRequest, Slot, Task
from bansong.client.retries import Action, error_action
from bansong.purchase import changes
from bansong.purchase.jobs import UploadedJob, collect_job
from bansong.purchase.lookups import KEY, PurchaseContext, split, why_stopped
from bansong.purchase.singles import BATCH, send_once, stored_request

if TYPE_CHECKING:
    from bansong.client.responses import BatchCreated
    from bansong.purchase.ledger_file import LedgerChange, StoredRequest
    from bansong.purchase.queries import StoredUpload

log = logging.getLogger(__name__)

_TRIAL_ROWS: Final = 100  # of a run's first upload: few are lost if the service does not answer usably
_GROWTH: Final = 4  # factor by which an upload may be larger than the last answered one
_SAME_SIZE_ATTEMPTS: Final = 3  # then the size may be why an upload does not get through (a proxy hangs up)
_UPLOAD_WEIGHT: Final = 4 * FAILURE_WEIGHT  # three failed uploads in a row stop the run
_ORDER: Final = "chunk_order"
_NUMBER: Final = "chunk_number"
_PART: Final = "chunk_part"
_SHRINKAGE: Final = 10  # of uploads after a failed one


async def buy_in_uploads(context: PurchaseContext, wanted: pl.DataFrame, running: Iterable[StoredUpload]) -> None:
    """Buy the wanted lookups in uploads, and fetch the ``running`` ones of earlier runs."""
    # the first upload is a trial; each answered one lets the next be _GROWTH times as large, alone, until one of full
    # size was answered; then several go at once. A failed one starts this anew, with other rows
    ledger, origin, terms, dispatcher = context.ledger, context.client.origin, context.terms, context.dispatcher
    chunks, waiting = Chunks(wanted, min(ledger.limit(origin) or terms.chunk, terms.chunk)), deque(running)
    concurrency, answered = min(terms.jobs, terms.concurrency), 0
    if ledger.spent_trials(origin):  # fetching is free, and may show that the service has answered after all
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
        if outcome is not None and not outcome.passes:
            _shrink(context, chunks, upload.rows)

    def next_task() -> Task | None:
        if running:
            return partial(collect_earlier, running.popleft())
        chunk = chunks.next()
        return None if chunk is None else partial(context.dispatcher.deliver, _ChunkUpload(context, chunks, chunk))

    await context.dispatcher.run(next_task, concurrency)


def _shrink(context: PurchaseContext, chunks: Chunks, rows: int) -> None:
    # also those of later runs
    before = chunks.limit
    chunks.came_to_nothing(rows, _TRIAL_ROWS)
    if chunks.limit < before:
        context.ledger.remember_limit(context.client.origin, chunks.limit)


class Chunks:
    """The wanted lookups in pieces of at most ``limit`` rows; pieces are counted since :meth:`start`."""

    def __init__(self, wanted: pl.DataFrame, limit: int) -> None:
        self.limit = limit
        self.answered = self.failed = 0
        self.trial = False  # the pieces are to show whether the service answers at all
        self._size, self._pieces = limit, math.inf
        self._wanted = wanted.with_row_index(_ORDER)
        self._left = deque([(0, wanted.height)] if wanted.height else [])
        self._distinct = False

    def __bool__(self) -> bool:
        return bool(self._left)

    def start(self, size: int, *, trial: bool, pieces: float) -> None:
        """Hand out at most ``pieces`` from now on, of at most ``size`` rows."""
        self.trial, self._size, self._pieces = trial, size, pieces
        self.answered = self.failed = 0

    def arrange(self, *, distinct: bool) -> None:
        """Restore the order of the file; if ``distinct``, no piece holds a number twice. Nothing may be under way."""
        if distinct == self._distinct or not self._left:
            return
        self._distinct = distinct
        left = pl.concat([self._wanted[start:end] for start, end in self._left]).sort(_ORDER)
        parts = 1
        if distinct:
            left = left.with_columns(split(left)["b_no"].alias(_NUMBER))
            most = int(left[_NUMBER].value_counts()["count"].max() or 1)  # type: ignore[arg-type]  # of a whole number
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
        """Return the next piece; ``None`` if none is left, or to be handed out now."""
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
        """Put a too large piece back, and halve the limit."""
        self.limit = max(1, min(self.limit, chunk.height // 2))
        self.back(chunk)

    def came_to_nothing(self, rows: int, least: int) -> None:
        """Stop after a failed piece until :meth:`start`, then hand out pieces a tenth as large (``least`` rows)."""
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
        return 0 if self._chunks.trial else _UPLOAD_WEIGHT  # trials have a count of their own

    def choose_action(self, error: ServiceError, attempt: int) -> Action:
        is_stuck = isinstance(error, NotSentError) and attempt >= _SAME_SIZE_ATTEMPTS
        if (is_stuck or isinstance(error, TooLargeError)) and len(self._rows) > 1:
            return Action.DROP
        action = error_action(error)
        if action is Action.REFUSE and not isinstance(error, TooLargeError):
            return Action.END_RUN  # other uploads would meet the same refusal
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
        # a service may take an upload before its last bytes have to go
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
        if isinstance(error, TooLargeError) and len(self._rows) == 1:  # as if its row was asked alone
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
        if not outcome.passes:
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
        with suppress(LedgerError):  # `gated` says as much, and the job's name is on its way
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
