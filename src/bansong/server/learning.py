"""Learn from the outcomes of a key. Outcomes are marked as learned once its label store has them on disk."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
import polars as pl

from bansong.base import business_number
from bansong.base.errors import BansongError, ModelError, StoreError, UsageError
from bansong.base.schema import REASON_SEPARATOR, SEOUL
from bansong.engine.risk.reasons import parse_reasons
from bansong.engine.risk.scorecard import Scorecard
from bansong.history.mailings import (
    LABEL_SCHEMA,
    LabelBatch,
    MailingMetadata,
    MailingTerms,
    address_keys,
    find_candidates,
)
from bansong.history.outcomes import reason_code
from bansong.learning.calibrate import Calibrated, calibrate
from bansong.run.manifest import LETTER_SCHEMA
from bansong.server import job_files, job_table
from bansong.server import keys as key_table
from bansong.server.engines import EnginePool, learning_folder, make_learning_folder
from bansong.server.job_table import Outcome, StoredJob
from bansong.server.settings import Clock, Settings, WakeUp
from bansong.server.store import Store

_OUTCOME_SCHEMA: Final = {"row_id": pl.UInt32, "said": pl.Boolean, "reason": pl.String, "recorded": pl.Float64}
_SILENT_SCHEMA: Final = {"row_id": pl.UInt32, "letter": pl.UInt32}


def _build_label_batch(
    folder: Path, job: StoredJob, outcomes: Sequence[Outcome], cards: Sequence[Scorecard], now: float
) -> LabelBatch:
    """Return a job's outcomes as labels. Rows without an outcome are no evidence, as they may not have been mailed."""
    assert job.finished is not None  # noqa: S101 - it is done
    letters = _scan_letters(job_files.records_path(folder, job.id), job_files.results_path(folder, job.id))
    declaration = MailingTerms(
        mailed=datetime.fromtimestamp(job.finished, SEOUL).date(), returns_requested=True, complete=True
    )
    at = datetime.fromtimestamp(now, UTC)
    about = MailingMetadata(
        job.id, str(job_files.job_folder(folder, job.id)), None, "local", job.model, declaration, (), at, job.paid
    )

    def find_known_letters(rows: pl.Series) -> pl.DataFrame:
        wanted = letters.join(rows.alias("row_id").to_frame().lazy(), on="row_id", how="semi")
        wanted = wanted.with_columns(pl.lit(job.model, pl.String).alias("model"))
        found = parse_reasons(wanted, "reasons", address="address", cards=cards).collect(engine="streaming")
        return found.with_columns(address_keys())

    silent = pl.DataFrame(schema=_SILENT_SCHEMA)  # which rows were mailed is unknown, so none is silent
    return LabelBatch(about, _labels(letters, outcomes), silent, find_known_letters, lambda _: silent, at)


def _scan_letters(records: Path, results: Path) -> pl.LazyFrame:
    """Return a job's records with its results as letters (:data:`LETTER_SCHEMA`); raise ``FileNotFoundError``."""
    for path in (records, results):
        path.stat()
    asked, answered = pl.scan_parquet(records, glob=False), pl.scan_parquet(results, glob=False)
    written = asked.collect_schema()
    address = pl.col("address").cast(pl.String) if "address" in written else pl.lit(None, pl.String)
    reasons = pl.col("reasons").list.join(REASON_SEPARATOR)
    rows = asked.select(
        pl.col("row_id").cast(pl.UInt32),
        business_number.compact_expr(pl.col("b_no")).alias("b_no"),
        address.alias("address"),
    ).join(
        answered.select(
            pl.col("row_id").cast(pl.UInt32),
            pl.col("fixed_address", "grade", "action").cast(pl.String),
            pl.col("bounce_prob").cast(pl.Float64),
            pl.when(reasons != "").then(reasons).alias("reasons"),
        ),
        on="row_id",
        how="left",
        maintain_order="left",
    )
    return rows.select(list(LETTER_SCHEMA))


def _possible_scorecards(engines: EnginePool, key_id: str, version: str | None) -> list[Scorecard]:
    """Return the scorecard of this ``version`` if it is stored, else all that a job may have used."""
    if engines.fixed is not None and engines.fixed.version == version:
        return [engines.fixed]
    own = engines.store(key_id)
    if version is not None:
        with suppress(ModelError):  # it came from --model, or from a pool of an earlier release
            return [own.load(version)]
    return [Scorecard.load(), *(own.load(known) for known in own.versions())]


def _labels(letters: pl.LazyFrame, outcomes: Sequence[Outcome]) -> pl.DataFrame:
    said = pl.DataFrame(outcomes, schema=_OUTCOME_SCHEMA, orient="row")
    rows = find_candidates(letters, said.select("row_id", pl.lit(None, pl.String).alias("digits")))
    code = reason_code(pl.col("reason"))
    return (
        said.join(rows.select("row_id", "letter"), on="row_id")
        .with_columns(pl.when("said").then(code).alias("reason_code"), pl.lit(None, pl.Date).alias("returned"))
        .select(pl.col(name).cast(dtype) for name, dtype in LABEL_SCHEMA.items())
        .sort("row_id")
    )


_log = logging.getLogger(__name__)

_MAX_WAIT_S: Final = 60.0  # failed outcomes are retried then
_MIN_PAUSE_S: Final = 2.0
_OUTCOMES_PER_BATCH: Final = 100_000
_MANY_OUTCOMES: Final = 1_000  # new outcomes of a key that start a calibration early
_RETRY_S: Final = 3600.0
_FAILURES: Final = (Exception, pl.exceptions.PanicException)  # a panic is no Exception


class OutcomeLearner:
    """Record outcomes and calibrate scorecards. Other writers of learning folders must hold ``writing``."""

    def __init__(self, settings: Settings, clock: Clock, store: Store, engines: EnginePool) -> None:
        self._settings = settings
        self._clock = clock
        self._store = store
        self._engines = engines
        self._wake_up = WakeUp(clock)
        self._due: dict[str, float] = {}
        self._new: dict[str, int] = {}
        self._warned = False
        self.writing = anyio.Lock()

    def wake(self) -> None:
        self._wake_up.ring()

    async def run(self) -> None:
        for key in await self._store.read(key_table.list_keys):
            if (self._engines.folder(key.id) / "labels").is_dir():
                self._due.setdefault(key.id, 0.0)
        while True:
            await self.record()
            await self.calibrate()
            await self._clock.sleep(_MIN_PAUSE_S)
            await self._wake_up.wait(_MAX_WAIT_S)

    async def record(self) -> None:
        for job in await self._store.read(job_table.jobs_to_learn):
            try:
                while await self._record_next(job):
                    pass
            except StoreError:
                raise
            except BansongError as error:
                _log.error("the outcomes of job %s could not be recorded and are tried again: %s", job.id, error)
            except _FAILURES:  # other jobs go on
                _log.exception("the outcomes of job %s could not be recorded and are tried again", job.id)

    async def calibrate(self) -> None:
        now = self._clock.now()
        for key_id, due in list(self._due.items()):
            if now < due and self._new.get(key_id, 0) < _MANY_OUTCOMES:
                continue
            self._due[key_id] = now + self._settings.learn_hours * 3600
            self._new.pop(key_id, None)
            if self._engines.fixed is not None:
                continue
            try:
                async with self.writing:
                    learned = await anyio.to_thread.run_sync(self._calibrate, key_id, now)
            except _FAILURES:
                _log.exception("key %s: learning failed and is tried again; its scorecard stays", key_id)
                self._due[key_id] = min(self._due[key_id], now + _RETRY_S)
                continue
            if learned is not None and learned.promoted:
                await self._engines.refresh(key_id)

    async def _record_next(self, job: StoredJob) -> bool:
        async with self.writing:
            outcomes = await self._store.read(lambda db: job_table.unlearned_outcomes(db, job.id, _OUTCOMES_PER_BATCH))
            if outcomes:
                await self._record_outcomes(job, outcomes)
        return bool(outcomes)

    async def _record_outcomes(self, job: StoredJob, outcomes: list[Outcome]) -> None:
        try:
            await anyio.to_thread.run_sync(self._write, job, outcomes)
        except FileNotFoundError:
            _log.error(
                "the files of job %s are gone, so its %d outcomes say nothing of a letter", job.id, len(outcomes)
            )
        now = self._clock.now()
        await self._engines.refresh(job.key_id)
        await self._store.write(lambda db: job_table.mark_learned(db, job.id, outcomes, now))
        self._due.setdefault(job.key_id, now + self._settings.learn_hours * 3600)
        self._new[job.key_id] = self._new.get(job.key_id, 0) + len(outcomes)

    def _write(self, job: StoredJob, outcomes: list[Outcome]) -> None:
        cards = _possible_scorecards(self._engines, job.key_id, job.model)
        batch = _build_label_batch(self._settings.files, job, outcomes, cards, self._clock.now())
        make_learning_folder(self._settings.files, job.key_id)
        self._engines.label_store(job.key_id).record(batch, replace=True)  # the later outcome counts

    def _calibrate(self, key_id: str, at: float) -> Calibrated | None:
        labels = self._engines.folder(key_id) / "labels"
        if not any(labels.glob("*.parquet")):  # all were erased, or expired
            return None
        try:
            now, store = datetime.fromtimestamp(at, UTC), self._engines.store(key_id)
            learned = calibrate(labels=labels, store=store, today=self._clock.today(), now=now)
        except UsageError as error:
            if not self._warned:
                _log.warning("scorecards are not learned, outcomes are recorded all the same: %s", error)
                self._warned = True
            return None
        words = "%s answers from now on" if learned.promoted else "not surely better, %s goes on answering"
        version = learned.version if learned.promoted else learned.champion
        _log.info(f"key %s: %d letters learned from: {words}", key_id, learned.labels, version)
        return learned


def warn_about_pools(files: Path, db: sqlite3.Connection) -> None:
    """Log which keys learned together (in a pool) in an earlier release; each key now learns by itself."""
    folders = (learning_folder(files) / name for name in ("pool", "former-pool"))
    left = " and ".join(str(folder) for folder in folders if folder.is_dir())
    unused = f"; what the pool learned is not used: {left}" if left else ""
    for key_id in key_table.list_pooled(db):
        _log.warning("key %s was in the pool, which is withdrawn: it learns for itself%s", key_id, unused)
