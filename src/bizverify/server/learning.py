"""Outcomes that were told improve what is answered: at once by what is known of an addressee, in time by a better card.

Each scope (a key, or the pool of the keys that opted in) has a label book and scorecards of its own. An outcome is
marked learned when the book has it on the disk; recorded once more after a crash, it changes nothing.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Final

import anyio
import anyio.to_thread
import polars as pl

from bizverify.errors import BizverifyError, StoreError, UsageError
from bizverify.learning import Calibrated, calibrate
from bizverify.server.clock import Clock
from bizverify.server.engines import Engines
from bizverify.server.outcomes import batch_of, cards_of
from bizverify.server.settings import Settings
from bizverify.server.store import Store, labels
from bizverify.server.store.labels import Told, Waiting

_log = logging.getLogger(__name__)

_AT_LEAST_EVERY: Final = 60.0
"""Seconds after which it is looked for outcomes, also when none were told: what failed is tried again then."""
_AT_MOST_EVERY: Final = 2.0
_TOGETHER: Final = 100_000
_MANY: Final = 1_000
"""New outcomes of a scope for which its next calibration is not waited for."""
_AGAIN: Final = 3600.0
_FAILURES: Final = (Exception, pl.exceptions.PanicException)  # a panic is no Exception


class Learning:
    """Takes outcomes into label books, and lets scorecards be learned from these."""

    def __init__(self, settings: Settings, clock: Clock, store: Store, engines: Engines) -> None:
        self._settings = settings
        self._clock = clock
        self._store = store
        self._engines = engines
        self._told = anyio.Event()
        self._due: dict[str, float] = {}
        self._new: dict[str, int] = {}
        self._said_so = False

    def tell(self) -> None:
        """Say that there are new outcomes; called on the event loop."""
        self._told.set()

    async def run(self) -> None:
        """Take new outcomes into the label books soon after they were told, and calibrate when it is due."""
        for scope in await anyio.to_thread.run_sync(self._scopes):
            self._due.setdefault(scope, 0.0)
        while True:
            self._told = anyio.Event()
            await self.record()
            await self.calibrate()
            await self._clock.sleep(_AT_MOST_EVERY)
            await self._something_told()

    async def record(self) -> None:
        """Take what was told into the label books; the engines know of it when this returns."""
        for job in await self._store.read(labels.waiting):
            try:
                while told := await self._unlearned(job.job):
                    await self._recorded(job, told)
            except StoreError:
                raise
            except BizverifyError as error:
                _log.error("the outcomes of job %s could not be recorded and are tried again: %s", job.job, error)
            except _FAILURES:  # one job's failure is not the others'
                _log.exception("the outcomes of job %s could not be recorded and are tried again", job.job)

    async def calibrate(self) -> None:
        """Let scorecards be learned where that is due."""
        now = self._clock.now()
        for scope, due in list(self._due.items()):
            if now < due and self._new.get(scope, 0) < _MANY:
                continue
            self._due[scope] = now + self._settings.learn_hours * 3600
            self._new.pop(scope, None)
            if not self._engines.learns:
                continue
            try:
                learned = await anyio.to_thread.run_sync(self._calibrated, scope, now)
            except _FAILURES:
                _log.exception("scope %s: learning failed and is tried again; its scorecard stays", scope)
                self._due[scope] = min(self._due[scope], now + _AGAIN)
                continue
            if learned is not None and learned.promoted:
                await self._engines.refresh(scope)

    async def _unlearned(self, job: str) -> list[Told]:
        return await self._store.read(lambda db: labels.unlearned(db, job, _TOGETHER))

    async def _recorded(self, job: Waiting, told: list[Told]) -> None:
        try:
            await anyio.to_thread.run_sync(self._write, job, told)
        except FileNotFoundError:
            _log.error("the files of job %s are gone, so its %d outcomes say nothing of a letter", job.job, len(told))
        now = self._clock.now()
        await self._engines.refresh(job.scope)
        await self._store.write(lambda db: labels.learned(db, job.job, told, now))
        self._due.setdefault(job.scope, now + self._settings.learn_hours * 3600)
        self._new[job.scope] = self._new.get(job.scope, 0) + len(told)

    def _write(self, job: Waiting, told: list[Told]) -> None:
        cards = cards_of(self._engines.store(job.scope), job.model, self._engines.fixed)
        for folder in (self._settings.files / "learning", self._engines.folder(job.scope)):
            folder.mkdir(mode=0o700, exist_ok=True)
        batch = batch_of(self._settings.files, job, told, cards, self._clock.now())
        self._engines.book(job.scope).record(batch, replace=True)  # the later outcome counts

    def _calibrated(self, scope: str, at: float) -> Calibrated | None:
        """Learn from a scope's book behind the gate; ``None`` where numpy is missing."""
        try:
            learned = calibrate(
                labels=self._engines.folder(scope) / "labels",
                store=self._engines.store(scope),
                today=self._clock.today(),
                now=datetime.fromtimestamp(at, UTC),
            )
        except UsageError as error:
            if not self._said_so:
                _log.warning("scorecards are not learned, outcomes are recorded all the same: %s", error)
                self._said_so = True
            return None
        words = "%s answers from now on" if learned.promoted else "not surely better, %s goes on answering"
        version = learned.version if learned.promoted else learned.champion
        _log.info(f"scope %s: %d letters learned from: {words}", scope, learned.labels, version)
        return learned

    def _scopes(self) -> list[str]:
        """The scopes that have a label book."""
        books = self._settings.files.glob("learning/*/labels/*.parquet")
        return sorted({book.parent.parent.name for book in books})

    async def _something_told(self) -> None:
        """Return when an outcome was told, or after a while."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._wait, group.cancel_scope)
            await self._told.wait()
            group.cancel_scope.cancel()

    async def _wait(self, scope: anyio.CancelScope) -> None:
        await self._clock.sleep(_AT_LEAST_EVERY)
        scope.cancel()
