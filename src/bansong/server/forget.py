"""Erase business numbers from a server's file and folder while no server runs on them.

The rows of jobs stay without content, so that row ids and charges remain right; clients see a row without a number.
"""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import polars as pl

from bansong import business_number
from bansong.errors import Problem, StoreError
from bansong.labels.label_store import LabelStore
from bansong.reference.status_store import find_status_store
from bansong.run.records import ROW_ID
from bansong.server.engine_pool import learning_folder
from bansong.server.jobs import results
from bansong.server.settings import Settings
from bansong.server.store import SERVER_FILE, audit_table, hold_server_file, job_table
from bansong.storage.filesystem import list_folder
from bansong.storage.sqlite import rewrite_file, transaction
from bansong.tables import publish_file
from bansong.watch import forget as watch_forget

FILE_DAMAGED: Final = Problem(
    "forget.file_damaged", "{path}: is damaged, so it cannot be searched: {error}; remove it, and try again"
)

ERASED: Final = "the business was forgotten"
"""``error`` of an erased row."""
_JOB_FILES: Final = ("records.parquet", "results.parquet")
_ANSWERS: Final = "FROM idempotency WHERE instr(answer, ?)"
_EMPTY: Final = {"error": pl.lit(ERASED), "row_status": pl.lit("invalid"), "reasons": pl.lit([], pl.List(pl.String))}


@contextmanager
def open_stopped_server(path: Path) -> Iterator[ServerErasure]:
    """Open a server's file while no server uses it; raise :class:`StoreError` if it is missing or a server runs."""
    with hold_server_file(path) as db:
        yield ServerErasure(path, db)


class ServerErasure:
    """A server's file and folder, to erase business numbers; see :func:`open_stopped_server`."""

    def __init__(self, path: Path, db: sqlite3.Connection) -> None:
        self.path = path
        self._db = db
        settings = Settings(db=path)
        self._files, self._statuses = settings.files, settings.status_store

    def holdings(self, numbers: Collection[str]) -> dict[str, int]:
        found: Counter[str] = Counter()
        with SERVER_FILE.errors(self.path):
            for b_no in numbers:
                found.update(watch_forget.holdings(self._db, b_no))
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
        """Erase numbers from the file, the jobs and the label stores. Raises :class:`StoreError`."""
        active = "SELECT id FROM jobs WHERE state <> 'done'"
        with SERVER_FILE.errors(self.path):
            results.remove_leftovers(self._files, job_table.list_job_ids(self._db))
            for (job,) in self._db.execute(active).fetchall():
                if results.records_path(self._files, job).exists():
                    results.remove_unfinished(self._files, job)
        with SERVER_FILE.errors(self.path), transaction(self._db):
            for path in self._job_files():
                rows = _rows_of(path, numbers)
                self._db.executemany(
                    "DELETE FROM labels WHERE job = ? AND row_id = ?", ((path.parent.name, row) for row in rows)
                )
            for b_no in numbers:
                watch_forget.erase(self._db, b_no)
                self._db.execute(f"DELETE {_ANSWERS}", (b_no.encode(),))
            # how many, not which: the log must not name what is forgotten, and a hash of ten digits is soon guessed
            audit_table.record_action(self._db, time.time(), "forget", None, {"numbers": len(numbers)})
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
            folders = list_folder(results.job_folder(self._files, "any").parent)
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
            rows = results.sort_by_risk(rows)
        rows.sink_parquet(temporary, row_group_size=results.ROWS)
