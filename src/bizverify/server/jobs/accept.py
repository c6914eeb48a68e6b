"""Accepts uploads as jobs: a place in the queue first, then the file, then all of it in one transaction."""

from __future__ import annotations

import secrets
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final
from weakref import WeakValueDictionary

import anyio
import anyio.to_thread

from bizverify.server import idempotency
from bizverify.server.clock import Clock
from bizverify.server.errors import Refusal, busy, invalid_key, quota_exceeded
from bizverify.server.idempotency import mismatch
from bizverify.server.jobs import results
from bizverify.server.jobs.isolated_reader import read_isolated
from bizverify.server.jobs.worker import JobWorker
from bizverify.server.payloads import BatchCreatedPayload, encode
from bizverify.server.settings import ServicePlan, Settings
from bizverify.server.store import Store, job_table, key_table
from bizverify.server.store.job_table import StoredJob
from bizverify.server.store.key_table import Key
from bizverify.server.upload_form import DiskFullRefusal, ReceivedUpload

_READ_AT_ONCE: Final = 2
_AGAIN: Final = 5
"""Seconds after which it is worth to try again."""


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What is asked for: whose job, and how it is to be answered. ``token``, ``identity``: of its Idempotency-Key."""

    key: Key
    plan: ServicePlan
    offline: bool
    paid: bool
    token: bytes | None = None
    identity: bytes = b""


class QueuePlace:
    """A place in the queue, held while an upload comes in."""

    def __init__(self, coming: Counter[str], key_id: str, *, held: bool) -> None:
        self._coming = coming
        self._key_id = key_id
        self._held = held
        coming[key_id] += held

    def release(self) -> None:
        """Give it to the job itself, or to others."""
        if self._held:
            self._held = False
            self._coming[self._key_id] -= 1
            if not self._coming[self._key_id]:
                del self._coming[self._key_id]


class JobAcceptance:
    """Accepts uploads as jobs, as many as the server and the plan allow; ``reading``: by which files are read."""

    def __init__(self, settings: Settings, clock: Clock, store: Store, jobs: JobWorker) -> None:
        self._settings = settings
        self._clock = clock
        self._store = store
        self._jobs = jobs
        self._coming: Counter[str] = Counter()
        self.reading = anyio.CapacityLimiter(_READ_AT_ONCE)
        self._reading_of: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()

    @property
    def uploads(self) -> int:
        """Uploads that come in or are being read."""
        return self._coming.total()

    @asynccontextmanager
    async def hold_place(self, key: Key, plan: ServicePlan, *, needed: bool) -> AsyncIterator[QueuePlace]:
        """Hold a place in the queue, if one is needed; raises :class:`Refusal` 503 where there is none."""
        place = QueuePlace(self._coming, key.id, held=needed)
        try:
            if needed:
                load = self._load(key, plan)
                await self._store.read(load.refuse)
            yield place
        finally:
            place.release()

    async def find_earlier(self, key: Key, token: bytes | None) -> idempotency.EarlierRequest | None:
        """The earlier request with this token."""
        return None if token is None else await self._store.read(lambda db: idempotency.find_earlier(db, key.id, token))

    async def accept(self, request: JobRequest, upload: ReceivedUpload, place: QueuePlace) -> bytes:
        """Read an upload, take its lookups out of the quota and queue it; return the answer.

        Raises :class:`Refusal` 400, 409, 413, 415, 429, 503, 507; nothing is kept then.
        """
        earlier = await self.find_earlier(request.key, request.token)
        if earlier is not None:
            return _repeat_answer(earlier, request)
        job_id, home = f"job_{secrets.token_urlsafe(18)}", self._settings.files
        try:
            with DiskFullRefusal():
                await anyio.to_thread.run_sync(lambda: results.job_folder(home, job_id).mkdir(mode=0o700, parents=True))
            own = self._reading_of.setdefault(
                request.key.id, anyio.Lock()
            )  # one key's files must not hold up all others
            async with own, self.reading:
                total = await read_isolated(upload, results.records_path(home, job_id), request.plan.rows)
            place.release()
            answer = await self._queue_job(request, job_id, total)
        except Exception:  # cancelled, it may be in the queue: what is not is swept away at the next start
            await anyio.to_thread.run_sync(results.remove_job_folders, home, [job_id])
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
        own = self._coming.get(key.id, 0)
        return _QueueLoad(key.id, self._coming.total() + more, own + more, self._settings.queue, plan.jobs)


@dataclass(frozen=True, slots=True)
class _QueueLoad:
    """Who comes in beside what is queued: ``all`` of them, ``own`` ones of a key; and how many may be there."""

    key_id: str
    all: int
    own: int
    queue: int
    jobs: int

    def refuse(self, db: sqlite3.Connection) -> None:
        """Raise :class:`Refusal` 503 if that is too many."""
        waiting, own = job_table.count_active(db, self.key_id)
        if waiting + self.all > self.queue:
            raise busy("more jobs wait than the server takes on", _AGAIN)
        if own + self.own > self.jobs:
            raise busy(f"this key has {self.jobs} jobs that wait or run, as many as its plan allows", _AGAIN)


def _repeat_answer(earlier: idempotency.EarlierRequest, request: JobRequest) -> bytes:
    if earlier.request != request.identity:
        raise mismatch()
    if earlier.answer is None:
        raise Refusal(409, "idempotency_mismatch", "the earlier request with this Idempotency-Key has no answer")
    return earlier.answer
