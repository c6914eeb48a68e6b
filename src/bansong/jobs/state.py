"""The stored state of a job: answers, changes of each run, verified inputs, undelivered messages."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import msgspec
import polars as pl

from bansong.base.errors import ColumnError, InputError, JobRunningError, Problem, StoreError, UsageError
from bansong.base.files import as_path, make_folders, state_directory
from bansong.base.messages import Phrase, gettext, gettext_noop
from bansong.base.option import specs_of
from bansong.base.sqlite import FileKind, is_in_use, rewrite_file
from bansong.engine.local import NUMBER
from bansong.engine.records import DIGITS, ROW_ID
from bansong.engine.text import without_space
from bansong.jobs.job_file import ColumnsPart, JobFile, load_job_file
from bansong.run.changes import (
    CHANGE_SCHEMA,
    GONE,
    KEY,
    SNAPSHOT,
    combine,
    format_counts,
    key_expr,
    status_code_expr,
)

DDL: Final = """
CREATE TABLE runs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    started REAL NOT NULL,
    finished REAL NOT NULL,
    exit_code INTEGER NOT NULL,
    rows INTEGER NOT NULL CHECK (rows >= 0),
    counts TEXT NOT NULL,
    inputs TEXT NOT NULL,
    changes BLOB,
    message TEXT,
    taken TEXT NOT NULL DEFAULT '[]',
    delivered REAL,
    changes_due TEXT
) STRICT;

CREATE TABLE inputs (
    path TEXT PRIMARY KEY,
    fingerprint TEXT NOT NULL,
    verified REAL NOT NULL,
    output TEXT NOT NULL,
    written TEXT NOT NULL,
    rows INTEGER NOT NULL CHECK (rows >= 0),
    latest TEXT NOT NULL DEFAULT '',
    roles TEXT NOT NULL DEFAULT '',
    status_day TEXT NOT NULL DEFAULT ''
) STRICT, WITHOUT ROWID;

CREATE TABLE job_file (one INTEGER PRIMARY KEY CHECK (one = 1), path TEXT NOT NULL) STRICT;

CREATE TABLE outputs (path TEXT PRIMARY KEY) STRICT, WITHOUT ROWID;

CREATE TABLE snapshot (part INTEGER PRIMARY KEY, rows BLOB NOT NULL) STRICT;
"""
# ``changes_due``: file of changes still to be written
MIGRATIONS: Final = {
    1: "ALTER TABLE runs ADD COLUMN changes_due TEXT; ALTER TABLE inputs ADD COLUMN latest TEXT NOT NULL DEFAULT '';",
    2: "ALTER TABLE inputs ADD COLUMN roles TEXT NOT NULL DEFAULT '';"
    "ALTER TABLE inputs ADD COLUMN status_day TEXT NOT NULL DEFAULT '';",
}
RUN_FILE: Final = FileKind(
    gettext_noop("the state of a scheduled job"), "job", 0x6276526E, DDL, MIGRATIONS, StoreError
)  # "bvRn"
_TAKEN: Final = gettext_noop("a run of this job is under way, so nothing was done; wait for it, or stop it")
_ROWS_A_CELL: Final = 1_000_000  # SQLite's cells end at a gigabyte
_RUN: Final = "id, started, finished, exit_code, rows, counts, inputs, message, taken, delivered"


@dataclass(frozen=True, slots=True)
class JobRun:
    """One recorded run of a job; times in seconds since 1970."""

    id: str
    started: float
    finished: float
    exit_code: int
    rows: int
    counts: Mapping[str, int]  # rows by kind of change
    inputs: Sequence[Mapping[str, Any]] = field(repr=False)  # outcomes as in ``bansong run --json``
    message: str | None = None
    taken: Sequence[str] = ()  # channels that took the message
    delivered: float | None = None  # when the last channel took it

    @property
    def waits(self) -> bool:
        return self.message is not None and self.delivered is None

    @property
    def event(self) -> str:
        return "run"

    @property
    def text(self) -> str:
        return self.message or ""

    @property
    def payload(self) -> str:
        """The message in Slack's format."""
        return msgspec.json.encode({"text": self.text}).decode()

    @property
    def summary(self) -> str:
        return format_counts(self.counts) or gettext("none")

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class KnownInput:
    """An input that an earlier run has verified."""

    fingerprint: str
    verified: float  # seconds since 1970
    output: str
    written: str  # size and time of the output as written, to recognise an edited one
    rows: int
    latest: str = ""  # like ``written``, for the copy
    roles: str = ""  # roles with a column, separated by commas
    status_day: str = ""  # day (ISO) of its oldest status from the tax authority


def state_folder() -> Path:
    """Return the folder of all jobs' state files."""
    return state_directory() / "jobs"


class RunStore:
    """The open state of one job. Its methods raise :class:`StoreError`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with RUN_FILE.errors(path):
            make_folders(path.parent)
            if not path.exists():
                RUN_FILE.make(path)
        self._db = RUN_FILE.open(path)

    @classmethod
    @contextmanager
    def alone(cls, path: Path) -> Iterator[Self]:
        """Open a job's state for one run at a time; raise :class:`JobRunningError` if another one is running."""
        with RUN_FILE.errors(path):
            make_folders(path.parent)
        try:
            lock = RUN_FILE.lock(path, gettext(_TAKEN), wait=0)
        except StoreError as error:
            if not is_in_use(error):
                raise
            raise JobRunningError(str(error)) from error
        try:
            with cls(path) as store:
                yield store
        finally:
            lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._db.close()

    def snapshot(self) -> pl.DataFrame | None:
        """Return the newest answers; ``None`` before the first run."""
        parts = [_unpack(blob) for (blob,) in self._select("SELECT rows FROM snapshot ORDER BY part")]
        return pl.concat(parts) if parts else None

    def known_inputs(self) -> dict[str, KnownInput]:
        rows = self._select(
            "SELECT path, fingerprint, verified, output, written, rows, latest, roles, status_day FROM inputs"
        )
        return {path: KnownInput(*rest) for path, *rest in rows}

    def outputs(self) -> set[str]:
        """Return all paths that this job ever wrote, as they must not become inputs."""
        return {path for (path,) in self._select("SELECT path FROM outputs")}

    def job_file(self) -> Path | None:
        return next((Path(path) for (path,) in self._select("SELECT path FROM job_file")), None)

    def note_job_file(self, path: Path) -> None:
        with self._transaction():
            text = str(path).encode(errors="backslashreplace").decode()
            self._db.execute("INSERT OR REPLACE INTO job_file VALUES (1, ?)", (text,))

    def note_outputs(self, paths: Iterable[Path]) -> None:
        """Record outputs before they are written: after a kill, the next run must not take them for inputs."""
        with self._transaction():
            self._db.executemany("INSERT OR IGNORE INTO outputs VALUES (?)", [(str(path.resolve()),) for path in paths])

    def forget_outputs(self, paths: Iterable[Path]) -> None:
        with self._transaction():
            self._db.executemany("DELETE FROM outputs WHERE path = ?", [(str(path),) for path in paths])

    def runs(self) -> list[JobRun]:
        return [_run(row) for row in self._select(f"SELECT {_RUN} FROM runs ORDER BY number")]  # noqa: S608 - a constant

    def changes_between(self, after: str | None, until: str) -> list[pl.DataFrame]:
        """Return the changes of each run after the run ``after`` (``None``: of all runs) up to the run ``until``."""
        rows = self._select(
            "SELECT changes FROM runs WHERE changes IS NOT NULL"
            " AND number > coalesce((SELECT number FROM runs WHERE id = ?), 0)"
            " AND number <= (SELECT number FROM runs WHERE id = ?) ORDER BY number",
            after,
            until,
        )
        return [_unpack(blob) for (blob,) in rows]

    def commit_run(
        self,
        run: JobRun,
        snapshot: pl.DataFrame | None,
        changes: pl.DataFrame,
        known: Mapping[str, KnownInput],
        keep: int,
        changes_due: Path | None = None,
    ) -> None:
        """Record a run in a transaction; forget inputs not in ``snapshot``, and settled runs but the last ``keep``."""
        with self._transaction():
            self._db.execute(
                "INSERT INTO runs"
                " (id, started, finished, exit_code, rows, counts, inputs, changes, message, changes_due)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    *(run.id, run.started, run.finished, run.exit_code, run.rows),
                    *(json.dumps(run.counts), json.dumps(run.inputs, ensure_ascii=False)),
                    *(None if changes.is_empty() else _pack(changes), run.message),
                    None if changes_due is None else str(changes_due),
                ),
            )
            if snapshot is not None:
                self._put_snapshot(snapshot)
                held = json.dumps(snapshot.filter(pl.col(GONE).is_null())["input"].unique().to_list())
                self._db.execute("DELETE FROM inputs WHERE path NOT IN (SELECT value FROM json_each(?))", (held,))
            self._db.executemany(
                "INSERT OR REPLACE INTO inputs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [(path, *astuple(one)) for path, one in known.items()],
            )
            self._db.execute(
                "DELETE FROM runs WHERE number <= (SELECT max(number) FROM runs) - ?"
                " AND (message IS NULL OR delivered IS NOT NULL) AND changes_due IS NULL",
                (keep,),
            )

    def changes_due(self) -> list[tuple[str, Path, pl.DataFrame]]:
        """Return id, file and changes of the runs whose changes are not written yet, oldest first."""
        rows = self._select("SELECT id, changes_due, changes FROM runs WHERE changes_due IS NOT NULL ORDER BY number")
        return [(id_, as_path(due), _unpack(blob)) for id_, due, blob in rows]

    def mark_changes_written(self, run_id: str) -> None:
        with self._transaction():
            self._db.execute("UPDATE runs SET changes_due = NULL WHERE id = ?", (run_id,))

    def note_exit_code(self, run_id: str, exit_code: int) -> None:
        with self._transaction():
            self._db.execute("UPDATE runs SET exit_code = ? WHERE id = ?", (exit_code, run_id))

    def _put_snapshot(self, snapshot: pl.DataFrame) -> None:
        self._db.execute("DELETE FROM snapshot")
        for part, rows in enumerate(snapshot.iter_slices(_ROWS_A_CELL)):
            self._db.execute("INSERT INTO snapshot VALUES (?, ?)", (part, _pack(rows)))
        if snapshot.is_empty():
            self._db.execute("INSERT INTO snapshot VALUES (0, ?)", (_pack(snapshot),))

    def mark_taken(self, run_id: str, channels: Collection[str], delivered: float | None) -> None:
        with self._transaction():
            taken = json.dumps(sorted(channels))
            self._db.execute("UPDATE runs SET taken = ?, delivered = ? WHERE id = ?", (taken, delivered, run_id))

    def holdings(self, numbers: Sequence[str]) -> dict[str, int]:
        held = pl.col("b_no").is_in(list(numbers))
        snapshot = self.snapshot()
        changes = self._changes()
        return {
            "answers": 0 if snapshot is None else snapshot.filter(held).height,
            "changes": sum(frame.filter(held).height for frame in changes.values()),
        }

    def erase(self, numbers: Sequence[str]) -> None:
        kept = ~pl.col("b_no").is_in(list(numbers)).fill_null(False)
        with self._transaction():
            if (snapshot := self.snapshot()) is not None:
                self._put_snapshot(snapshot.filter(kept))
            for number, frame in self._changes().items():
                self._db.execute("UPDATE runs SET changes = ? WHERE number = ?", (_pack(frame.filter(kept)), number))
        with RUN_FILE.errors(self.path):
            rewrite_file(self._db)

    def _changes(self) -> dict[int, pl.DataFrame]:
        rows = self._select("SELECT number, changes FROM runs WHERE changes IS NOT NULL")
        return {number: _unpack(blob) for number, blob in rows}

    def _select(self, query: str, *values: object) -> list[Any]:
        with RUN_FILE.errors(self.path):
            return self._db.execute(query, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with RUN_FILE.errors(self.path), self._db:
            self._db.execute("BEGIN IMMEDIATE")
            yield


def _pack(rows: pl.DataFrame) -> bytes:
    buffer = io.BytesIO()
    rows.write_parquet(buffer, compression="zstd", compression_level=1)
    return buffer.getvalue()


def _unpack(blob: bytes) -> pl.DataFrame:
    rows = pl.read_parquet(io.BytesIO(blob))
    if "row_status" not in rows.columns:
        return rows.with_columns(without_space(pl.col(KEY))).select(CHANGE_SCHEMA.names())
    if GONE not in rows.columns:  # an earlier release dropped rows that were gone, and kept white space in keys
        rows = rows.with_columns(without_space(pl.col(KEY)), pl.lit(None, pl.Date).alias(GONE))
    return rows.select(SNAPSHOT.names())


def _run(row: tuple[Any, ...]) -> JobRun:
    id_, started, finished, exit_code, rows, counts, inputs, message, taken, delivered = row
    parsed = json.loads(counts), json.loads(inputs)
    return JobRun(id_, started, finished, exit_code, rows, *parsed, message, tuple(json.loads(taken)), delivered)


NUMBERS_LOST: Final = Problem(
    "jobs.numbers_lost",
    "{count:,} rows, and {where} had {rows:,}; {lost:,} of its {numbers:,} business numbers are "
    "gone, so nothing was done. If the list is right, set `force = true` for this input",
)
NUMBERS_NOT_FOUND: Final = Problem(
    "jobs.numbers_not_found",
    "no business number was found, and the run before found {numbers:,}; check the column of the "
    "business numbers, or name it with `columns` of the input",
)

_PROTECTED_ROWS: Final = 20


@dataclass(frozen=True, slots=True)
class EarlierRows:
    """The rows that an input had in the run before, and its business numbers as UInt64."""

    rows: int = 0
    numbers: pl.Series = field(default_factory=lambda: pl.Series(dtype=pl.UInt64))
    may_lose: bool = False  # the job allows losing most of them
    where: str = ""  # "the run before", or the file with these rows

    def refuse_loss(self, rows: pl.LazyFrame) -> None:
        """Raise :class:`InputError` if most earlier rows or numbers (of 20 or more) are missing, or all."""
        if NUMBER not in rows.collect_schema().names():
            rows = rows.with_columns(pl.lit(None, pl.UInt64).alias(NUMBER))
        found = rows.select(NUMBER).group_by(NUMBER).len().collect(engine="streaming")
        count, numbers = int(found["len"].sum()), found[NUMBER].drop_nulls()
        if count and len(self.numbers) and numbers.is_empty():
            raise InputError(NUMBERS_NOT_FOUND, numbers=len(self.numbers))
        lost = len(self.numbers.filter(~self.numbers.is_in(numbers.implode())))
        is_shorter = 2 * count < self.rows and (self.rows >= _PROTECTED_ROWS or not count)
        if self.may_lose or not (is_shorter or (2 * lost > len(self.numbers) >= _PROTECTED_ROWS)):
            return
        raise InputError(
            NUMBERS_LOST, count=count, where=self.where, rows=self.rows, lost=lost, numbers=len(self.numbers)
        )


ROW_KEY_MISSING: Final = Problem(
    "jobs.row_key_missing",
    "{input}: has none of the columns by which rows are known again ({names}), so all would be one; "
    "name it with `columns` of the input, or choose another `key` in [changes]",
)

_RECORD: Final = ("b_no", "name", "address", "zipcode")
_TABLE: Final = "table"


class AnswerRecorder:
    """Record the answered rows of one input: :meth:`observe` adds this to a query."""

    def __init__(self, input: str, key: Sequence[str]) -> None:
        self._input = input
        self._key = tuple(key)
        self._parts: list[pl.DataFrame] = []
        self._tables = 0
        self._lock = threading.Lock()

    def observe(self, answers: pl.LazyFrame) -> pl.LazyFrame:
        """Return the same rows, recorded as they pass: from any thread, in any order."""
        names = set(answers.collect_schema().names())
        if not names.intersection(self._key) and not (DIGITS in names and "b_no" in self._key):
            raise ColumnError(ROW_KEY_MISSING, input=self._input, names=", ".join(self._key))
        digits = pl.col(DIGITS) if DIGITS in names else pl.lit(None, pl.String)
        cells = {name: pl.col(name).cast(pl.String) if name in names else pl.lit(None, pl.String) for name in _RECORD}
        cells["b_no"] = pl.coalesce(digits, cells["b_no"])
        answer = [
            pl.col(name) for name in SNAPSHOT.names() if name in names and name not in (*_RECORD, KEY, "input", GONE)
        ]
        self._tables += 1  # each sheet of a workbook counts its rows from 0
        taken = pl.struct(pl.col(ROW_ID), *(cell.alias(name) for name, cell in cells.items()), *answer)
        index = pl.get_index_type()
        return answers.with_columns(
            taken.map_batches(partial(self._take, self._tables), return_dtype=index, is_elementwise=True).alias(ROW_ID)
        )

    def _take(self, table: int, rows: pl.Series) -> pl.Series:
        frame = rows.struct.unnest().with_columns(pl.lit(table).alias(_TABLE))
        with self._lock:
            self._parts.append(frame)
        return frame[ROW_ID]

    def snapshot(self) -> pl.DataFrame:
        """Return the recorded rows, one per key, in the order of the file."""
        if not self._parts:
            return pl.DataFrame(schema=SNAPSHOT)
        rows = pl.concat(self._parts).sort(_TABLE, ROW_ID).with_columns(key_expr(self._key).alias(KEY))
        codes = _status_codes(rows["biz_status"])
        return (
            rows.filter(pl.col(KEY).hash().is_first_distinct())
            .with_columns(
                pl.lit(self._input).alias("input"), pl.col("biz_status").replace(codes), pl.lit(None).alias(GONE)
            )
            .select(pl.col(name).cast(dtype) for name, dtype in SNAPSHOT.items())
        )


def _status_codes(words: pl.Series) -> dict[str, str]:
    """Map service-specific status words to our codes, such as ``폐업자``."""
    found = pl.DataFrame({"word": words.drop_nulls().unique()}, schema={"word": pl.String})
    return dict(
        found.with_columns(status_code_expr(pl.col("word")).alias("code"))
        .filter(pl.col("word") != pl.col("code"))
        .iter_rows()
    )


JOB_NAME_TAKEN: Final = Problem(
    "jobs.job_name_taken", "{path}: the name {name!r} is that of the job {other}, too; give one of them another `name`"
)


def job_place(path: Path, job: JobFile) -> tuple[str, Path]:
    """Return a job's name (default: from its path) and its state file."""
    if job.name is not None:
        return job.name, state_folder() / f"{job.name}.sqlite"
    place = hashlib.sha256(os.fsencode(path)).hexdigest()[:8]
    return path.stem, state_folder() / f"{path.stem}-{place}.sqlite"


def refuse_shared_name(path: Path, name: str, other: Path | None) -> None:
    """Raise :class:`UsageError` if another job file has this name. A moved file keeps its state."""
    if other is None or other == path or not other.is_file() or other.samefile(path):
        return
    try:
        is_shared = load_job_file(other).name == name
    except UsageError:
        return
    if is_shared:
        raise UsageError(JOB_NAME_TAKEN, path=path, name=name, other=other)


def locate(folder: Path, name: str | None) -> Path | None:
    """Resolve a path of the job file against the job's folder."""
    return None if name is None else folder / as_path(name).expanduser()


def options_in(part: msgspec.Struct, kind: type, folder: Path) -> dict[str, Any]:
    """Return the fields of a job file's table as keywords of the options class ``kind``."""
    given: dict[str, Any] = {}
    for spec in specs_of(kind):
        if spec.key:
            value: Any = getattr(part, spec.key)
            value = value.by_role() or None if isinstance(value, ColumnsPart) else value
            given[spec.name] = locate(folder, value) if "Path" in spec.type else value
    return given


RUN_NOT_IDENTIFIED: Final = Problem(
    "jobs.run_not_identified", "run {named!r}: {reason}; `bansong runs list` shows them"
)
JOB_NEVER_RAN: Final = Problem(
    "jobs.job_never_ran", "{state}: the job {name} never ran here; run it with `bansong run {job}`"
)
RUNS_OUT_OF_ORDER: Final = Problem(
    "jobs.runs_out_of_order", "the run {id} is not before {other_id}; name the earlier one first"
)

_LAST: Final = re.compile(r"last(?:-(\d+))?")


def open_store(job: Path) -> RunStore:
    """Open the state of a job; raise :class:`StoreError` if it never ran."""
    path = Path(job).resolve()
    name, state = job_place(path, load_job_file(path))
    if not state.exists():
        raise StoreError(JOB_NEVER_RAN, state=state, name=name, job=job)
    return RunStore(state)


def list_runs(job: Path) -> list[JobRun]:
    """Return the recorded runs of a job."""
    with open_store(job) as store:
        return store.runs()


def find_run(job: Path, named: str) -> JobRun:
    """Return a run by its name: ``last``, ``last-2``, an id, or the unique beginning of an id."""
    return _find(list_runs(job), named)


def compare_runs(job: Path, before: str, after: str) -> pl.DataFrame:
    """Return the changes from one run to another, as one table; raise :class:`UsageError`."""
    with open_store(job) as store:
        runs = store.runs()
        first, last = _find(runs, before), _find(runs, after)
        if runs.index(first) >= runs.index(last):  # not by their times: a clock may have been set back
            raise UsageError(RUNS_OUT_OF_ORDER, id=first.id, other_id=last.id)
        steps = store.changes_between(first.id, last.id)
    return combine(steps) if steps else pl.DataFrame(schema=CHANGE_SCHEMA)


def _find(runs: list[JobRun], named: str) -> JobRun:
    if last := _LAST.fullmatch(named):
        back = 1 + int(last[1] or 0)
        if back <= len(runs):
            return runs[-back]
    found = [run for run in runs if run.id == named] or [run for run in runs if run.id.startswith(named)]
    if len(found) == 1:
        return found[0]
    reason = Phrase("several begin so") if found else Phrase("no such run is remembered")
    raise UsageError(RUN_NOT_IDENTIFIED, named=named, reason=reason)
