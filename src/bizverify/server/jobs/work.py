"""Works on the jobs that were accepted, one at a time, each key in its turn; begins again what a kill cut off."""

from __future__ import annotations

import logging
import shutil
from contextlib import closing
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
import polars as pl

from bizverify.engine import LocalEngine
from bizverify.errors import StoreError
from bizverify.server.clock import Clock
from bizverify.server.engines import Engines
from bizverify.server.jobs import files
from bizverify.server.jobs.slices import ROWS, Tally, answered, put_in_order
from bizverify.server.logs import said
from bizverify.server.settings import Settings
from bizverify.server.sources import Sources, StatusSource
from bizverify.server.store import Store, open_server_file
from bizverify.server.store import jobs as stored
from bizverify.server.store import keys as stored_keys
from bizverify.server.store.jobs import Job
from bizverify.server.uploads import no_room

_log = logging.getLogger(__name__)

ATTEMPTS: Final = 3
STARTS: Final = 10
"""How often a job may have been begun when the server ended each time: it might be what ends the server."""
PAUSES: Final = (1.0, 5.0)
_NO_ROOM: Final = 60.0
"""Seconds until a job is tried again for which the disk had no room: that is no failure of the job's."""
_SHOWN_AT_ONCE: Final = 2
_PURGED_EVERY: Final = 3600.0
_FAILED: Final = (
    "the server failed three times to answer this job and gives it up; its lookups are given back, send it again"
)
_ENDED: Final = (
    f"the server ended {STARTS} times while it answered this job and gives it up; its lookups are given back, "
    "send it again in parts"
)


class Jobs:
    """The queue of a server and what works on it.

    ``sources``: who is asked for the status of a business; ``showing``: by which results are read, a few at a time.
    """

    def __init__(self, settings: Settings, clock: Clock, store: Store, engines: Engines, sources: Sources) -> None:
        self.sources = sources
        self.showing = anyio.CapacityLimiter(_SHOWN_AT_ONCE)
        self._settings = settings
        self._clock = clock
        self._store = store
        self._engines = engines
        self._processed: dict[str, int] = {}
        self._news = anyio.Event()
        self._begun = False

    def wake(self) -> None:
        """Say that a job was accepted."""
        self._news.set()

    def processed(self, job: Job) -> int:
        """How many rows of a job are answered."""
        return job.total if job.state == "done" else self._processed.get(job.id, 0)

    async def run(self) -> None:
        """Work on the jobs, in order, as long as the server lives."""
        survived = self._begun
        await self._store.write(lambda db: stored.begin_again(db, survived=survived))
        self._begun = True
        while True:
            self._news = anyio.Event()
            now = self._clock.now()
            job = await self._store.write(lambda db, now=now: stored.start_next(db, now))  # type: ignore[misc]
            if job is None:
                await self._wait()
            elif job.starts > STARTS:
                await self._given_up(job, _ENDED)
            else:
                await self._worked_on(job)

    async def _wait(self) -> None:
        """Wait until a job is accepted, or one that was put back is due."""
        due = await self._store.read(stored.next_due)
        async with anyio.create_task_group() as group:
            if due is not None:
                group.start_soon(self._wake_in, due - self._clock.now())
            await self._news.wait()
            group.cancel_scope.cancel()

    async def _wake_in(self, seconds: float) -> None:
        await self._clock.sleep(max(0.0, seconds))
        self.wake()

    async def purge(self) -> None:
        """Remove every hour what ended long enough ago."""
        while True:
            await self.purge_once()
            await self._clock.sleep(_PURGED_EVERY)

    async def purge_once(self) -> None:
        """Remove the jobs that ended longer ago than they are kept, and their files."""
        before = self._clock.now() - self._settings.keep_days * 86_400
        while gone := await self._store.write(lambda db: stored.purge(db, before)):
            await anyio.to_thread.run_sync(files.remove, self._settings.files, gone)

    async def _worked_on(self, job: Job) -> None:
        try:
            await self._done(job)
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):  # a stop in good order says nothing against the job
                await self._put_back(job, 0.0, job.attempts)
            raise
        except (Exception, pl.exceptions.PanicException) as error:
            # the text of an error may repeat what stands in a row
            _log.error("a job failed, attempt %d of %d: %s", job.attempts + 1, ATTEMPTS, said(error))
            await self._failed(job, error)
        finally:
            self._processed.pop(job.id, None)

    async def _failed(self, job: Job, error: BaseException) -> None:
        if isinstance(error, StoreError) or no_room(error):
            await self._put_back(job, _NO_ROOM, job.attempts)
        elif job.attempts + 1 >= ATTEMPTS:
            await self._given_up(job, _FAILED)
        else:
            await self._put_back(job, PAUSES[min(job.attempts, len(PAUSES) - 1)], job.attempts + 1)

    async def _put_back(self, job: Job, pause: float, attempts: int) -> None:
        due = self._clock.now() + pause
        await self._store.write(lambda db: stored.put_back(db, job, due=due, attempts=attempts))

    async def _given_up(self, job: Job, message: str) -> None:
        now = self._clock.now()
        await self._store.write(lambda db: stored.failed(db, job, now=now, code="internal", message=message))

    async def _done(self, job: Job) -> None:
        """Answer a job, publish its results, and then say that it is done: a kill between the two does it again."""
        key = await self._store.read(lambda db: stored_keys.find(db, job.key_id))
        assert key is not None  # noqa: S101 - keys are revoked, not deleted
        engine = await self._engines.opened(key.scope, paid=job.paid)
        source = self.sources.source(offline=job.offline or not job.paid)
        tally = await self._answered(job, engine, source)
        now, model = self._clock.now(), engine.model.version
        await self._store.write(
            lambda db: stored.done(
                db, job, now=now, grades=tally.grades, model=model, without_answer=tally.without_answer
            )
        )

    async def _answered(self, job: Job, engine: LocalEngine, source: StatusSource) -> Tally:
        home = self._settings.files
        records, folder = files.records(home, job.id), files.folder(home, job.id) / "parts"
        tally, parts = Tally(), []
        await anyio.to_thread.run_sync(files.prepare, home, job.id)
        await anyio.to_thread.run_sync(lambda: folder.mkdir(mode=0o700))
        try:
            for first in range(0, job.total, ROWS):
                part = folder / f"{first}.parquet"
                tally.take(await anyio.to_thread.run_sync(answered, source, engine, records, first, part))
                parts.append(part)
                self._processed[job.id] = min(first + ROWS, job.total)
            if (rows := sum(tally.grades.values())) != job.total:
                raise RuntimeError(f"a job of {job.total} rows has {rows} answers")
            await anyio.to_thread.run_sync(put_in_order, parts, files.results(home, job.id))
        finally:
            await anyio.to_thread.run_sync(_removed, folder)
        return tally


def swept(settings: Settings) -> None:
    """Remove what a server that was killed has left in the server's folder; to be called before requests are taken."""
    with closing(open_server_file(settings.db, create=False, writing=False)) as db:
        known = stored.ids(db)
    files.sweep(settings.files, known)


def _removed(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
