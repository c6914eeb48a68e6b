"""Accept uploads as jobs, and answer their rows."""

from __future__ import annotations

import logging
import secrets
import shutil
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

import anyio
import anyio.to_thread
import polars as pl

from bansong.base.errors import StoreError
from bansong.base.messages import gettext, gettext_noop
from bansong.engine.local import LocalEngine
from bansong.server import job_files, job_table
from bansong.server import keys as key_table
from bansong.server.bodies import ReceivedUpload, is_disk_full, refusing_full_disk
from bansong.server.engines import EnginePool, StatusSource, choose_source, count_lookups, fetch_statuses_of
from bansong.server.job_files import ROWS, DiskUse, ReadingSlots, ResultCounts, answer_slice, merge_slices, scan_slice
from bansong.server.job_table import StoredJob, mismatch
from bansong.server.keys import Key, decrease
from bansong.server.metrics import ServerMetrics
from bansong.server.payloads import (
    BatchCreatedPayload,
    InUsePayload,
    Refusal,
    busy,
    encode,
    invalid_key,
    limit_exceeded,
    quota_exceeded,
)
from bansong.server.settings import Clock, ServicePlan, Settings, WakeUp, loggable_message
from bansong.server.store import Store, open_server_file

_log = logging.getLogger(__name__)

MAX_ATTEMPTS: Final = 3
MAX_STARTS: Final = 10  # starts after which the server died: the job may kill it
PAUSES: Final = (1.0, 5.0)
_DELETION_RETRY_S: Final = 30
_NO_ROOM_PAUSE_S: Final = 60.0  # a full disk is no failure of the job
_SHOWN_AT_ONCE: Final = 2
_FAILED: Final = gettext_noop(
    "the server failed three times to answer this job and gives it up; its lookups are given back, send it again"
)
_ENDED: Final = gettext_noop(
    "the server ended {times} times while it answered this job and gives it up; its lookups are given back, send it "
    "again in parts"
)


@dataclass(slots=True)
class _JobAttempt:
    job_id: str
    scope: anyio.CancelScope | None = None
    deleted: bool = False
    processed: int = 0  # rows
    answered: int = 0  # rows with a valid number, answered or being answered


class DeletedJob(NamedTuple):
    given_back: int  # lookups
    has_files: bool  # still to be removed


class JobWorker:
    """Answer queued jobs, one at a time, in slices of rows."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        store: Store,
        engines: EnginePool,
        sources: Sequence[StatusSource],
        metrics: ServerMetrics,
        disk: DiskUse,
    ) -> None:
        self.sources = sources
        self._metrics = metrics
        self.disk = disk
        self.showing = anyio.CapacityLimiter(_SHOWN_AT_ONCE)
        self._settings = settings
        self._clock = clock
        self._store = store
        self._engines = engines
        self._attempt = _JobAttempt("")
        self._wake_up = WakeUp(clock)
        self._begun = False

    def wake(self) -> None:
        self._wake_up.ring()

    def processed_rows(self, job: StoredJob) -> int:
        return job.total if job.state == "done" else self._attempt_at(job.id).processed

    def _attempt_at(self, job_id: str) -> _JobAttempt:
        attempt = self._attempt  # read once: the store's thread calls this, too
        return attempt if attempt.job_id == job_id else _JobAttempt(job_id)

    async def delete(self, key_id: str, job_id: str) -> DeletedJob | None:
        """Delete or cancel a key's job: first its row, then its files. The next start removes files left over."""

        def remove_row(db: sqlite3.Connection) -> int | None:
            if job_table.has_unlearned(db, key_id, job_id):
                raise busy(gettext("outcomes that were told of this job cannot be recorded now"), _DELETION_RETRY_S)
            return job_table.delete_job(db, key_id, job_id, self._attempt_at(job_id).answered)

        given_back = await self._store.write(remove_row)
        if given_back is None:
            return None
        attempt = self._attempt
        if attempt.scope is not None and attempt.job_id == job_id:
            attempt.deleted = True
            attempt.scope.cancel()
            return DeletedJob(given_back, has_files=True)
        await self._remove_files(job_id)
        return DeletedJob(given_back, has_files=False)

    async def _remove_files(self, job_id: str) -> None:
        await anyio.to_thread.run_sync(job_files.remove_job_folders, self._settings.files, [job_id])
        if job_files.job_folder(self._settings.files, job_id).exists():
            _log.error("the files of the deleted job %s cannot be removed, tried again at the next start", job_id)
        else:
            self.disk.drop_jobs([job_id])

    async def run(self) -> None:
        survived = self._begun
        await self._store.write(lambda db: job_table.requeue_running(db, survived=survived))
        self._begun = True
        while True:
            now = self._clock.now()
            job = await self._store.write(lambda db, now=now: job_table.start_next(db, now))  # type: ignore[misc]
            if job is None:
                due = await self._store.read(job_table.next_due)
                await self._wake_up.wait(None if due is None else due - self._clock.now())
            elif job.starts > MAX_STARTS:
                await self._give_up(job, gettext(_ENDED, times=MAX_STARTS))
                await self._update_size(job)
            else:
                self._attempt = attempt = _JobAttempt(job.id, scope := anyio.CancelScope())
                try:
                    with scope:
                        await self._work_on(job)
                finally:
                    self._attempt = _JobAttempt("")
                if attempt.deleted:
                    await self._remove_files(job.id)

    async def purge_once(self) -> None:
        before = self._clock.now() - self._settings.keep_days * 86_400
        while gone := await self._store.write(lambda db: job_table.purge_jobs(db, before)):
            await anyio.to_thread.run_sync(job_files.remove_job_folders, self._settings.files, gone)
            self.disk.drop_jobs(gone)
        self.disk.drop_jobs(await anyio.to_thread.run_sync(self.disk.missing_jobs))  # deleted by others
        self.disk.set_learned(await anyio.to_thread.run_sync(self.disk.measure_learned))

    async def _work_on(self, job: StoredJob) -> None:
        try:
            await self._answer_job(job)
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):  # an orderly stop is no failure of the job
                await self._put_back(job, 0.0, job.attempts)
            raise
        except (Exception, pl.exceptions.PanicException) as error:
            # an error's text may quote a row
            _log.error("a job failed, attempt %d of %d: %s", job.attempts + 1, MAX_ATTEMPTS, loggable_message(error))
            self._attempt.processed = 0
            await self._retry_or_give_up(job, error)
        await self._update_size(job)

    async def _update_size(self, job: StoredJob) -> None:
        now = await self._store.read(lambda db: job_table.find_job(db, job.key_id, job.id))
        if now is not None and now.finished is not None:
            self.disk.update_job(job.id, await anyio.to_thread.run_sync(self.disk.measure, job.id))

    async def _retry_or_give_up(self, job: StoredJob, error: BaseException) -> None:
        if isinstance(error, StoreError) or is_disk_full(error):
            await self._put_back(job, _NO_ROOM_PAUSE_S, job.attempts)
        elif job.attempts + 1 >= MAX_ATTEMPTS:
            await self._give_up(job, gettext(_FAILED))
        else:
            await self._put_back(job, PAUSES[min(job.attempts, len(PAUSES) - 1)], job.attempts + 1)

    async def _put_back(self, job: StoredJob, pause: float, attempts: int) -> None:
        due = self._clock.now() + pause
        await self._store.write(lambda db: job_table.put_back(db, job, due=due, attempts=attempts))

    async def _give_up(self, job: StoredJob, message: str) -> None:
        now = self._clock.now()
        await self._store.write(lambda db: job_table.fail_job(db, job, now=now, code="internal", message=message))
        self._metrics.jobs.labels("failed").inc()

    async def _answer_job(self, job: StoredJob) -> None:
        """Answer a job, publish its results, then mark it as done. A job killed before that is repeated."""
        key = await self._store.read(lambda db: key_table.find_key(db, job.key_id))
        assert key is not None  # noqa: S101 - keys are revoked, not deleted
        engine = await self._engines.open_engine(key.id, paid=job.paid)
        source = choose_source(self.sources, offline=job.offline or not job.paid)
        tally = await self._answer_slices(job, engine, source)
        now, model = self._clock.now(), engine.model.version
        await self._store.write(
            lambda db: job_table.finish_job(
                db, job, now=now, grades=tally.grades, model=model, without_answer=tally.without_answer
            )
        )
        self._metrics.jobs.labels("done").inc()

    async def _answer_slices(self, job: StoredJob, engine: LocalEngine, source: StatusSource) -> ResultCounts:
        home = self._settings.files
        records, folder = job_files.records_path(home, job.id), job_files.job_folder(home, job.id) / "parts"
        tally, parts = ResultCounts(), []
        await anyio.to_thread.run_sync(job_files.remove_unfinished, home, job.id)
        await anyio.to_thread.run_sync(lambda: folder.mkdir(mode=0o700))
        try:
            for first in range(0, job.total, ROWS):
                part = folder / f"{first}.parquet"
                rows = scan_slice(records, first)
                # counted before the work: a job deleted half-way must not be free
                self._attempt.answered += await anyio.to_thread.run_sync(count_lookups, rows)
                await fetch_statuses_of(source, rows)
                tally.take(await anyio.to_thread.run_sync(answer_slice, source, engine, records, first, part))
                parts.append(part)
                self._attempt.processed = min(first + ROWS, job.total)
                self._attempt.answered = self._attempt.processed - tally.without_answer
            if (answers := sum(tally.grades.values())) != job.total:
                raise RuntimeError(gettext("a job of {total} rows has {rows} answers", total=job.total, rows=answers))
            await anyio.to_thread.run_sync(merge_slices, parts, job_files.results_path(home, job.id))
        finally:
            await anyio.to_thread.run_sync(shutil.rmtree, folder, True)
        return tally


def clean_up_files(settings: Settings) -> DiskUse:
    """Remove files left by a killed server, unless the database has no keys: it may be the wrong one."""
    with closing(open_server_file(settings.db, create=False, writing=False)) as db:
        known, has_keys = job_table.list_jobs_on_disk(db), bool(key_table.list_keys(db))
    if has_keys:
        job_files.remove_leftovers(settings.files, {job.id for job in known})
    for folder in (settings.files / "jobs", job_files.uploads_folder(settings.files)):
        folder.mkdir(mode=0o700, exist_ok=True)
    return DiskUse(settings.files, known)


_RETRY_AFTER_S: Final = 5


@dataclass(frozen=True, slots=True)
class JobRequest:
    """An upload to be accepted as a job."""

    key: Key
    plan: ServicePlan
    offline: bool
    paid: bool
    token: bytes | None = None
    identity: bytes = b""


class JobAcceptance:
    """Accept uploads as jobs, within the limits of server and plan."""

    def __init__(self, settings: Settings, clock: Clock, store: Store, jobs: JobWorker, disk: DiskUse) -> None:
        self._settings = settings
        self._clock = clock
        self._store = store
        self._jobs = jobs
        self._disk = disk
        self._coming: Counter[str] = Counter()
        self._uploads: Counter[str] = Counter()
        self.reading = ReadingSlots(settings.reading_slots)

    @property
    def uploads(self) -> int:
        return self._uploads.total()

    @contextmanager
    def count_upload(self, key: Key, plan: ServicePlan) -> Iterator[None]:
        under_way = self._uploads[key.id]
        if under_way >= plan.uploads:
            message = gettext(
                "{under_way} uploads of this key are under way, as many as its plan allows", under_way=under_way
            )
            raise limit_exceeded("uploads", plan.uploads, under_way, message, _RETRY_AFTER_S)
        self._uploads[key.id] += 1
        try:
            yield
        finally:
            decrease(self._uploads, key.id)

    @asynccontextmanager
    async def hold_place(self, key: Key, plan: ServicePlan) -> AsyncIterator[Callable[[int], None]]:
        """Hold a place in the queue for an upload; yield a function that reserves disk bytes for it."""
        size = 0

        def set_aside(more: int) -> None:
            nonlocal size
            self._disk.reserve(key.id, plan, more)
            size += more

        with self.count_upload(key, plan):
            self._coming[key.id] += 1
            try:
                await self._store.read(self._refuse_if_full(key, plan))
                yield set_aside
            finally:
                decrease(self._coming, key.id)
                self._disk.release(key.id, size)

    def in_use(self, key: Key, requests: int) -> InUsePayload:
        return InUsePayload(self._uploads.get(key.id, 0), self._disk.total_bytes(key.id), requests)

    async def find_earlier(self, key: Key, token: bytes | None) -> job_table.EarlierRequest | None:
        return None if token is None else await self._store.read(lambda db: job_table.find_earlier(db, key.id, token))

    async def accept(self, request: JobRequest, upload: ReceivedUpload) -> bytes:
        """Read an upload, take its lookups from the quota, and queue it. A refused one leaves nothing."""
        earlier = await self.find_earlier(request.key, request.token)
        if earlier is not None:
            return repeat_answer(earlier, request.identity)
        job_id, home = f"job_{secrets.token_urlsafe(18)}", self._settings.files
        try:
            with refusing_full_disk():
                await anyio.to_thread.run_sync(
                    lambda: job_files.job_folder(home, job_id).mkdir(mode=0o700, parents=True)
                )
            records = job_files.records_path(home, job_id)
            total = await self.reading.read(request.key.id, upload, records, request.plan.rows)
            size = await anyio.to_thread.run_sync(self._disk.measure, job_id, total)
            self._disk.put_job(job_id, request.key.id, request.plan, size)
            answer = await self._queue_job(request, job_id, total)
        except Exception:  # a cancelled upload may be queued already; else the next start removes its files
            await anyio.to_thread.run_sync(job_files.remove_job_folders, home, [job_id])
            self._disk.drop_jobs([job_id])
            raise
        self._jobs.wake()
        return answer

    async def _queue_job(self, request: JobRequest, job_id: str, total: int) -> bytes:
        key, month, now = request.key, self._clock.month(), self._clock.now()
        resets, charged = self._clock.month_ends(), total if request.paid else 0
        answer, refuse_if_full = encode(BatchCreatedPayload(job_id, total)), self._refuse_if_full(key, request.plan)

        def change(db: sqlite3.Connection) -> bytes:
            current = key_table.find_key(db, key.id)
            if current is None or current.revoked is not None:  # while the file came in
                raise invalid_key()
            refuse_if_full(db)
            if request.token is not None:
                earlier = job_table.begin_request(db, key.id, request.token, request.identity, now)
                if earlier is not None:
                    raise mismatch()
                job_table.finish_request(db, key.id, request.token, answer)
            used = key_table.take_lookups(db, key.id, month, charged, key.quota) if charged else None
            if used is not None:
                raise quota_exceeded(charged, key.quota, used, resets, now)
            job_table.add_job(
                db, StoredJob(job_id, key.id, "queued", total, request.offline, request.paid, month, charged, now)
            )
            return answer

        return await self._store.write(change)

    def _refuse_if_full(self, key: Key, plan: ServicePlan) -> Callable[[sqlite3.Connection], None]:
        """Return a check that raises :class:`Refusal`: 503 if the queue is full, 429 beyond the plan.

        Keys with jobs share the queue equally, with at least one job each: busy keys lock nobody out.
        """
        coming, queue = self._coming.copy(), self._settings.queue

        def refuse(db: sqlite3.Connection) -> None:
            waiting, active = job_table.count_active(db)
            own = active.get(key.id, 0) + coming[key.id]
            share = max(1, queue // len(active.keys() | coming.keys()))
            if waiting + coming.total() > queue and own > share:
                raise busy(gettext("more jobs wait than the server takes on"), _RETRY_AFTER_S)
            if own > plan.jobs:
                message = gettext(
                    "this key has {jobs} jobs that wait or run, as many as its plan allows", jobs=plan.jobs
                )
                raise limit_exceeded("jobs", plan.jobs, own - 1, message, _RETRY_AFTER_S)

        return refuse


def repeat_answer(earlier: job_table.EarlierRequest, identity: bytes) -> bytes:
    """Return an earlier request's stored answer; raise :class:`Refusal` 409 if it has none or the request differs."""
    if earlier.request != identity:
        raise mismatch()
    if earlier.answer is None:
        raise Refusal(
            409, "idempotency_mismatch", gettext("the earlier request with this Idempotency-Key has no answer")
        )
    return earlier.answer
