"""Accept uploads as jobs: reserve a place in the queue, receive the file, store all in one transaction."""

from __future__ import annotations

import secrets
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Final

import anyio
import anyio.to_thread

from bansong.server import idempotency
from bansong.server.errors import Refusal, busy, invalid_key, limit_exceeded, quota_exceeded
from bansong.server.idempotency import mismatch
from bansong.server.jobs import results
from bansong.server.jobs.disk_use import DiskUse
from bansong.server.jobs.reading_slots import ReadingSlots
from bansong.server.jobs.worker import JobWorker
from bansong.server.key_bounds import decrease
from bansong.server.payloads import BatchCreatedPayload, InUsePayload, encode
from bansong.server.settings import Clock, ServicePlan, Settings
from bansong.server.store import Store, job_table, key_table
from bansong.server.store.job_table import StoredJob
from bansong.server.store.key_table import Key
from bansong.server.upload_form import DiskFullRefusal, ReceivedUpload
from bansong.translation import gettext

_RETRY_AFTER_S: Final = 5


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A requested job. ``token``, ``identity``: of its Idempotency-Key."""

    key: Key
    plan: ServicePlan
    offline: bool
    paid: bool
    token: bytes | None = None
    identity: bytes = b""


class QueuePlace:
    """A place in the queue and room on the disk, held during an upload."""

    def __init__(self, coming: Counter[str], key: Key, plan: ServicePlan, disk: DiskUse) -> None:
        self._coming = coming
        self._key_id = key.id
        self._plan = plan
        self._disk = disk
        self._held = True
        self._size = 0
        coming[key.id] += 1

    def set_aside(self, size: int) -> None:
        """Reserve bytes on the disk; raise :class:`Refusal` 413 and 429 if there are too few."""
        self._disk.reserve(self._key_id, self._plan, size)
        self._size += size

    def release(self) -> None:
        if self._held:
            self._held = False
            decrease(self._coming, self._key_id)

    def close(self) -> None:
        self.release()
        self._disk.release(self._key_id, self._size)
        self._size = 0


class JobAcceptance:
    """Accepts uploads as jobs, within the limits of server and plan. ``reading``: reads their files."""

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
        """Count an upload during the block; raise :class:`Refusal` 429 above the plan's limit."""
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
    async def hold_place(self, key: Key, plan: ServicePlan) -> AsyncIterator[QueuePlace]:
        """Count an upload and hold a place in the queue for it; raise :class:`Refusal` 429 and 503."""
        with self.count_upload(key, plan):
            place = QueuePlace(self._coming, key, plan, self._disk)
            try:
                load = self._load(key, plan)
                await self._store.read(load.refuse)
                yield place
            finally:
                place.close()

    def in_use(self, key: Key, requests: int) -> InUsePayload:
        """Return what a key uses of its limits; ``requests``: its requests under way."""
        return InUsePayload(self._uploads.get(key.id, 0), self._disk.total_bytes(key.id), requests)

    async def find_earlier(self, key: Key, token: bytes | None) -> idempotency.EarlierRequest | None:
        return None if token is None else await self._store.read(lambda db: idempotency.find_earlier(db, key.id, token))

    async def accept(self, request: JobRequest, upload: ReceivedUpload, place: QueuePlace) -> bytes:
        """Read an upload, take its lookups from the quota and queue it; return the answer.

        Raises :class:`Refusal` 400, 409, 413, 415, 429, 503, 507 and keeps nothing then.
        """
        earlier = await self.find_earlier(request.key, request.token)
        if earlier is not None:
            return repeat_answer(earlier, request.identity)
        job_id, home = f"job_{secrets.token_urlsafe(18)}", self._settings.files
        try:
            with DiskFullRefusal():
                await anyio.to_thread.run_sync(lambda: results.job_folder(home, job_id).mkdir(mode=0o700, parents=True))
            records = results.records_path(home, job_id)
            total = await self.reading.read(request.key.id, upload, records, request.plan.rows)
            size = await anyio.to_thread.run_sync(self._disk.measure, job_id, total)
            self._disk.put_job(job_id, request.key.id, request.plan, size)
            place.release()
            answer = await self._queue_job(request, job_id, total)
        except Exception:  # cancelled, it may be in the queue: what is not is swept away at the next start
            await anyio.to_thread.run_sync(results.remove_job_folders, home, [job_id])
            self._disk.drop_jobs([job_id])
            raise
        self._jobs.wake()
        return answer

    async def _queue_job(self, request: JobRequest, job_id: str, total: int) -> bytes:
        key, month, now = request.key, self._clock.month(), self._clock.now()
        resets, charged = self._clock.month_ends(), total if request.paid else 0
        answer, load = encode(BatchCreatedPayload(job_id, total)), self._load(key, request.plan, more=1)

        def change(db: sqlite3.Connection) -> bytes:
            current = key_table.find_key(db, key.id)
            if current is None or current.revoked is not None:  # while the file came in
                raise invalid_key()
            load.refuse(db)
            if request.token is not None:
                earlier = idempotency.begin_request(db, key.id, request.token, request.identity, now)
                if earlier is not None:
                    raise mismatch()
                idempotency.finish_request(db, key.id, request.token, answer)
            used = key_table.take_lookups(db, key.id, month, charged, key.quota) if charged else None
            if used is not None:
                raise quota_exceeded(charged, key.quota, used, resets, now)
            job_table.add_job(
                db, StoredJob(job_id, key.id, "queued", total, request.offline, request.paid, month, charged, now)
            )
            return answer

        return await self._store.write(change)

    def _load(self, key: Key, plan: ServicePlan, more: int = 0) -> _QueueLoad:
        coming = self._coming.copy()
        coming[key.id] += more
        return _QueueLoad(key.id, coming, self._settings.queue, plan.jobs)


@dataclass(frozen=True, slots=True)
class _QueueLoad:
    """The limits of the queue, and the jobs that are arriving by key; ``key_id`` is the key that asks."""

    key_id: str
    coming: Counter[str]
    queue: int
    jobs: int

    def refuse(self, db: sqlite3.Connection) -> None:
        """Raise :class:`Refusal` if the queue is full: 503 for the server, 429 for the plan.

        Keys with jobs have equal shares of the queue, of one job at least, so that busy keys lock nobody out.
        """
        waiting, active = job_table.count_active(db)
        own = active.get(self.key_id, 0) + self.coming[self.key_id]
        share = max(1, self.queue // len(active.keys() | self.coming.keys()))
        if waiting + self.coming.total() > self.queue and own > share:
            raise busy(gettext("more jobs wait than the server takes on"), _RETRY_AFTER_S)
        if own > self.jobs:
            message = gettext("this key has {jobs} jobs that wait or run, as many as its plan allows", jobs=self.jobs)
            raise limit_exceeded("jobs", self.jobs, own - 1, message, _RETRY_AFTER_S)


def repeat_answer(earlier: idempotency.EarlierRequest, identity: bytes) -> bytes:
    """Return the answer of the earlier request with this ``Idempotency-Key``; raise :class:`Refusal` 409."""
    if earlier.request != identity:
        raise mismatch()
    if earlier.answer is None:
        raise Refusal(
            409, "idempotency_mismatch", gettext("the earlier request with this Idempotency-Key has no answer")
        )
    return earlier.answer
