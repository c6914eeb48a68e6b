"""Erase businesses, accounts and old data. Job rows are emptied, not deleted, which keeps row ids and charges right."""

from __future__ import annotations

import logging
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final

import anyio.to_thread
import polars as pl

from bansong.base import business_number
from bansong.base.errors import BansongError, Problem, StoreError
from bansong.base.files import list_folder
from bansong.base.messages import gettext_noop
from bansong.base.publish import publish_file
from bansong.base.sqlite import rewrite_file, transaction
from bansong.engine.records import ROW_ID
from bansong.history.labels import LabelStore
from bansong.reference.status_store import find_status_store
from bansong.server import job_files, job_table
from bansong.server import keys as key_table
from bansong.server.engines import learning_folder
from bansong.server.learning import OutcomeLearner
from bansong.server.settings import Clock, Settings
from bansong.server.store import SERVER_FILE, Store, hold_server_file
from bansong.watch import store as watch_store

FILE_DAMAGED: Final = Problem(
    "forget.file_damaged", "{path}: is damaged, so it cannot be searched: {error}; remove it, and try again"
)

ERASED: Final = "the business was forgotten"  # ``error`` of an erased row
_JOB_FILES: Final = ("records.parquet", "results.parquet")
_ANSWERS: Final = "FROM idempotency WHERE instr(answer, ?)"
_EMPTY: Final = {"error": pl.lit(ERASED), "row_status": pl.lit("invalid"), "reasons": pl.lit([], pl.List(pl.String))}


@contextmanager
def open_stopped_server(path: Path) -> Iterator[ServerErasure]:
    """Lock and open a server's database for erasure, while no server runs on it."""
    with hold_server_file(path) as db:
        yield ServerErasure(path, db)


class ServerErasure:
    """Count and erase all that a stopped server has stored about business numbers."""

    def __init__(self, path: Path, db: sqlite3.Connection) -> None:
        self.path = path
        self._db = db
        settings = Settings(db=path)
        self._files, self._statuses = settings.files, settings.status_store

    def holdings(self, numbers: Collection[str]) -> dict[str, int]:
        found: Counter[str] = Counter()
        with SERVER_FILE.errors(self.path):
            for b_no in numbers:
                found.update(watch_store.holdings(self._db, b_no))
                answers = self._db.execute(f"SELECT count(*) {_ANSWERS}", (b_no.encode(),))
                found["repeatable answers"] += answers.fetchone()[0]
        for path in self._job_files():
            found[f"{path.stem} of jobs"] += _rows_of(path, numbers).len()
        if (statuses := find_status_store(self._statuses)) is not None:
            with statuses:
                found["statuses"] += sum(statuses.holdings(int(b_no)) for b_no in numbers)
        found["labels"] += sum(sum(store.holdings(numbers).values()) for store in self._label_stores())
        return dict(found)

    def erase(self, numbers: Collection[str]) -> None:
        active = "SELECT id FROM jobs WHERE state <> 'done'"
        with SERVER_FILE.errors(self.path):
            job_files.remove_leftovers(self._files, job_table.list_job_ids(self._db))
            for (job,) in self._db.execute(active).fetchall():
                if job_files.records_path(self._files, job).exists():
                    job_files.remove_unfinished(self._files, job)
        with SERVER_FILE.errors(self.path), transaction(self._db):
            for path in self._job_files():
                rows = _rows_of(path, numbers)
                self._db.executemany(
                    "DELETE FROM labels WHERE job = ? AND row_id = ?", ((path.parent.name, row) for row in rows)
                )
            for b_no in numbers:
                watch_store.erase(self._db, b_no)
                self._db.execute(f"DELETE {_ANSWERS}", (b_no.encode(),))
        for path in self._job_files():
            if not _rows_of(path, numbers).is_empty():
                _erase_rows(path, numbers)
        for store in self._label_stores():
            store.erase(numbers)
        if (statuses := find_status_store(self._statuses)) is not None:
            with statuses:
                statuses.forget(*map(int, numbers))
        with SERVER_FILE.errors(self.path):
            rewrite_file(self._db)

    def _job_files(self) -> list[Path]:
        with SERVER_FILE.errors(self._files):
            folders = list_folder(job_files.job_folder(self._files, "any").parent)
            files = [path for folder in folders for path in list_folder(folder)]
        return [path for path in files if path.name in _JOB_FILES]

    def _label_stores(self) -> list[LabelStore]:
        with SERVER_FILE.errors(self._files):
            folders = [path for scope in list_folder(learning_folder(self._files)) for path in list_folder(scope)]
        return [LabelStore(folder) for folder in folders if folder.name == "labels"]


def _is_of(numbers: Collection[str]) -> pl.Expr:
    return business_number.compact_expr(pl.col("b_no")).is_in(list(numbers)).fill_null(value=False)


def _rows_of(path: Path, numbers: Collection[str]) -> pl.Series:
    try:
        return pl.scan_parquet(path, glob=False).filter(_is_of(numbers)).select(ROW_ID).collect().to_series()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise StoreError(FILE_DAMAGED, path=path, error=error) from error


def _erase_rows(path: Path, numbers: Collection[str]) -> None:
    frame = pl.scan_parquet(path, glob=False)
    schema = frame.collect_schema()
    blank = [
        pl.when(~_is_of(numbers)).then(name).otherwise(_EMPTY.get(name, pl.lit(None)).cast(dtype)).alias(name)
        for name, dtype in schema.items()
        if name != ROW_ID
    ]
    rows = frame.with_columns(blank)
    with publish_file(path) as temporary:
        if "bounce_prob" in schema:
            rows = job_files.sort_by_risk(rows)
        rows.sink_parquet(temporary, row_group_size=job_files.ROWS)


# tables whose rows are erased with a key, and the key's column; rows that refer to them are deleted by cascade
OWNED: Final = {
    "watches": "owner",
    "watch_counts": "owner",
    "notices": "owner",
    "deliveries": "owner",
    "jobs": "key_id",
    "idempotency": "key_id",
    "secrets": "key_id",
    "audit": "key_id",
}
# requests an erasure in the table ``audit``; a file of an earlier release may hold one, too
ERASE: Final = "keys erase"
KEPT: Final = {"usage": "key_id"}  # tables that keep the rows of an erased key
_BLANK: Final = (
    "UPDATE keys SET note = NULL, customer = NULL, pool = 0, last_used = NULL, webhook_url = NULL,"
    " webhook_secret = NULL"
)
_HELD: Final = {
    gettext_noop("jobs"): "SELECT count(*) FROM jobs WHERE key_id = ?",
    gettext_noop("outcomes"): "SELECT count(*) FROM labels JOIN jobs ON jobs.id = labels.job WHERE key_id = ?",
    gettext_noop("watches"): "SELECT count(*) FROM watches WHERE owner = ?",
    gettext_noop(
        "changes of grade"
    ): "SELECT count(*) FROM watch_history JOIN watches ON watches.number = watch WHERE owner = ?",
    gettext_noop("notices"): "SELECT count(*) FROM notices WHERE owner = ?",
    gettext_noop("repeatable answers"): "SELECT count(*) FROM idempotency WHERE key_id = ?",
}


def account_holdings(db: sqlite3.Connection, files: Path, key_id: str) -> dict[str, int]:
    """Count a key's stored data, by kind."""
    found = {what: int(db.execute(query, (key_id,)).fetchone()[0]) for what, query in _HELD.items()}
    return found | {
        gettext_noop("learned mailings"): len(_list_mailings(files, key_id, job_table.list_job_ids(db, key_id)))
    }


def _list_mailings(files: Path, key_id: str, job_ids: Iterable[str]) -> list[Path]:
    """List a key's label files, also those in the folder that keys shared (a pool) in an earlier release."""
    jobs = set(job_ids)
    stored = [path for folder in list_folder(learning_folder(files)) for path in list_folder(folder / "labels")]
    return [
        path
        for path in stored
        if path.suffix == ".parquet" and (path.stem in jobs or path.parent.parent.name == key_id)
    ]


def erase_rows(db: sqlite3.Connection, key_id: str, now: float) -> None:
    """Delete a key's rows in the tables of :data:`OWNED`; its row in ``keys`` stays, without personal data."""
    for table, column in OWNED.items():
        db.execute(f"DELETE FROM {table} WHERE {column} = ?", (key_id,))  # noqa: S608 - names of this module
    db.execute(f"{_BLANK} WHERE id = ?", (key_id,))
    db.execute("UPDATE keys SET erased = ? WHERE id = ? AND erased IS NULL", (now, key_id))


def ask_for_erasure(db: sqlite3.Connection, key_id: str, now: float) -> None:
    """Revoke a key and request its erasure; the server carries it out."""
    key_table.revoke_key(db, key_id, now)
    db.execute("INSERT INTO audit (at, who, action, key_id, details) VALUES (?, '', ?, ?, '{}')", (now, ERASE, key_id))


def remove_files(files: Path, key_id: str, job_ids: Iterable[str]) -> None:
    """Delete the job and learning files of a key."""
    jobs = list(job_ids)
    for mailing in _list_mailings(files, key_id, jobs):
        mailing.unlink(missing_ok=True)
    for folder in (learning_folder(files) / key_id, *(job_files.job_folder(files, job_id) for job_id in jobs)):
        if folder.exists():
            shutil.rmtree(folder)


def erase_account(path: Path, key_id: str, now: float) -> dict[str, int]:
    """Erase an account while no server uses the database; return the counts of its data. A repetition is harmless."""
    files = Settings(db=path).files
    with hold_server_file(path) as db, SERVER_FILE.errors(path):
        key_table.require_key(db, key_id, path)
        held = account_holdings(db, files, key_id)
        with transaction(db):
            ask_for_erasure(db, key_id, now)
        remove_files(files, key_id, job_table.list_job_ids(db, key_id))
        with transaction(db):
            erase_rows(db, key_id, now)
        job_files.remove_leftovers(files, job_table.list_job_ids(db))
        rewrite_file(db)
    return held


_log = logging.getLogger(__name__)

_PURGE_INTERVAL_S: Final = 3600.0
_LOOK_INTERVAL_S: Final = 2.0  # an operator waits for the erasure
_REVOKED_SETTLED_S: Final = 3.0  # after that no new request of a revoked key is accepted


class Retention:
    """Erase old labels, and the accounts of revoked keys."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        store: Store,
        learner: OutcomeLearner,
        is_asking: Callable[[str], bool] = lambda _: False,  # whether a key has requests under way
    ) -> None:
        self._is_asking = is_asking
        self._failed: dict[str, float] = {}
        self._settings = settings
        self._clock = clock
        self._store = store
        self._learner = learner

    async def run(self) -> None:
        while True:
            await self.purge_once()
            until = self._clock.now() + _PURGE_INTERVAL_S
            # the clock may have been set back
            while (now := self._clock.now()) < until <= now + _PURGE_INTERVAL_S:
                await self._clock.sleep(_LOOK_INTERVAL_S)
                await self._erase_accounts()

    async def purge_once(self) -> None:
        await self._erase_accounts()
        await anyio.to_thread.run_sync(self._purge_labels)

    async def _erase_accounts(self) -> None:
        now = self._clock.now()
        before = now - self._settings.keep_revoked_days * 86_400
        for key_id in await self._store.read(
            lambda db: key_table.keys_to_erase(db, before, now - _REVOKED_SETTLED_S, ERASE)
        ):
            if self._is_asking(key_id) or now < self._failed.get(key_id, 0.0):
                continue
            try:
                async with self._learner.writing:  # an outcome recorded meanwhile would survive the erasure
                    await self._erase_account(key_id)
            except OSError as error:
                _log.error("key %s: its files cannot be removed, tried again in an hour: %s", key_id, error.strerror)
                self._failed[key_id] = now + _PURGE_INTERVAL_S
                continue
            _log.info("key %s: its account is erased", key_id)

    async def _erase_account(self, key_id: str) -> None:
        now, files = self._clock.now(), self._settings.files
        jobs = await self._store.read(lambda db: job_table.list_job_ids(db, key_id))
        await anyio.to_thread.run_sync(remove_files, files, key_id, jobs)
        await self._store.write(lambda db: erase_rows(db, key_id, now))

    def _purge_labels(self) -> None:
        before = self._clock.today() - timedelta(days=self._settings.keep_labels_days)
        for folder in list_folder(learning_folder(self._settings.files)):
            try:
                LabelStore(folder / "labels").purge(before)
            except (BansongError, OSError) as error:
                _log.error("learned letters of %s cannot be purged, tried again in an hour: %s", folder.name, error)
