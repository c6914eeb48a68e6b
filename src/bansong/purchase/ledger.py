"""The open ledger, a journal that commits the changes of many tasks together, and deletion of records."""

# ruff: noqa: S608 - statements consist of constants of this package; values are always bound

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from threading import RLock
from typing import Concatenate, Final, ParamSpec, Self, TypeVar

import anyio
import polars as pl
from anyio.abc import TaskGroup
from filelock import FileLock

from bansong.base import business_number
from bansong.base.errors import LedgerError, Problem, UsageError
from bansong.base.messages import gettext, gettext_noop
from bansong.base.sqlite import rewrite_file, transaction
from bansong.purchase import changes, queries, recovery
from bansong.purchase.ledger_file import LEDGER_FILE, LedgerChange, Transaction, ledger_path
from bansong.purchase.queries import shown_ids

DAY_S: Final = 86_400.0
LIMIT_KEPT_S: Final = 30 * DAY_S  # an upload limit older than this is forgotten, since plans change

_MIN_FREE_SHARE: Final = 0.25  # the file is rewritten if more of it is free

_OLD_LOOKUPS: Final = """
    DELETE FROM lookups WHERE id IN (
        SELECT l.id FROM lookups l LEFT JOIN answers a ON a.lookup = l.id
        WHERE (l.state = 'done' AND a.at < :before)
           OR (l.state IN ('refused', 'missing', 'lost', 'unreadable') AND l.since < :before))
"""
_OLD_UPLOADS: Final = f"""
    DELETE FROM uploads WHERE since < :before
        AND state IN ('done', 'lost', 'refused', 'dropped', 'accepted', 'resent')
        AND number NOT IN (SELECT upload FROM lookups WHERE upload IS NOT NULL)
        AND number NOT IN (SELECT upload FROM answers WHERE upload IS NOT NULL)
        AND number NOT IN (SELECT upload FROM labels WHERE since >= :before OR state NOT IN ('done', 'refused'))
        AND number NOT IN ({changes.SPENT_TRIALS})
"""
_OLD_RUNS: Final = """
    DELETE FROM runs WHERE started < :before AND (outcome IS NOT NULL)
        AND number NOT IN (SELECT run FROM lookups)
        AND number NOT IN (SELECT run FROM answers)
        AND number NOT IN (SELECT run FROM uploads)
        AND number NOT IN (SELECT run FROM labels)
"""


@dataclass(frozen=True, slots=True)
class PurgeCounts:
    """Number of deleted lookups, uploads and runs."""

    lookups: int
    uploads: int
    runs: int


def remember_limit(tx: Transaction, origin: str, rows: int) -> None:
    """Store how many rows an upload to ``origin`` may have."""
    tx.connection.execute("INSERT OR REPLACE INTO limits VALUES (?, ?, ?)", (origin, rows, tx.now))


def purge(tx: Transaction, older_than_days: float) -> PurgeCounts:
    """Delete records older than so many days, except those in doubt or under way."""
    before = {"before": tx.now - older_than_days * DAY_S}
    run = tx.connection.execute
    lookups = run(_OLD_LOOKUPS, before).rowcount
    run("DELETE FROM answers WHERE lookup NOT IN (SELECT id FROM lookups)")
    uploads = run(_OLD_UPLOADS, before).rowcount
    run("DELETE FROM upload_rows WHERE upload NOT IN (SELECT number FROM uploads)")
    # labels are deleted only with their upload: otherwise the same outcome would be sent again
    run("DELETE FROM labels WHERE upload NOT IN (SELECT number FROM uploads)")
    runs = run(_OLD_RUNS, before).rowcount
    changes.follow_numbers(tx)
    tx.delete_old_requests()
    run("DELETE FROM limits WHERE at < ?", (tx.now - LIMIT_KEPT_S,))
    return PurgeCounts(lookups, uploads, runs)


_OPEN_LOOKUPS: Final = """
    SELECT key FROM lookups
    WHERE b_no = :b_no AND state IN ('asking', 'doubt', 'unreadable', 'missing') AND upload IS NULL
"""
# results are matched by the place of rows, so an upload keeps its rows as long as it may be fetched again
_OPEN_UPLOADS: Final = """
    SELECT upload FROM uploads WHERE number IN (SELECT upload FROM upload_rows WHERE b_no = :b_no)
        AND (state IN ('prepared', 'gated', 'sent', 'known', 'doubt', 'unreadable')
             OR EXISTS (SELECT 1 FROM lookups WHERE upload = uploads.number AND state = 'missing'))
"""
_KEYS: Final = "SELECT key FROM lookups WHERE b_no = :b_no UNION SELECT key FROM upload_rows WHERE b_no = :b_no"
_LOOKUPS: Final = "SELECT id FROM lookups WHERE b_no = :b_no"
_PLACES: Final = "SELECT upload, place FROM upload_rows WHERE b_no = :b_no"
_DECIDED: Final = f"kind = 'lookup' AND id IN (SELECT lower(hex(key)) FROM ({_KEYS}))"
_HELD: Final = {
    gettext_noop("lookups"): "SELECT count(*) FROM lookups WHERE b_no = :b_no",
    gettext_noop("paid answers"): f"SELECT count(*) FROM answers WHERE lookup IN ({_LOOKUPS})",
    gettext_noop("rows of uploads"): "SELECT count(*) FROM upload_rows WHERE b_no = :b_no",
    gettext_noop("labels"): f"SELECT count(*) FROM labels WHERE (upload, place) IN ({_PLACES})",
    gettext_noop("decisions"): f"SELECT count(*) FROM decisions WHERE {_DECIDED}",
}
_FILES: Final = f"""
    SELECT DISTINCT file FROM runs WHERE number IN (
        SELECT run FROM lookups WHERE b_no = :b_no
        UNION SELECT run FROM answers WHERE lookup IN ({_LOOKUPS})
        UNION SELECT run FROM uploads WHERE number IN (SELECT upload FROM upload_rows WHERE b_no = :b_no))
"""
_ERASE: Final = (
    f"UPDATE decisions SET id = '' WHERE {_DECIDED}",
    f"DELETE FROM requests WHERE key IN ({_KEYS})",
    f"DELETE FROM labels WHERE (upload, place) IN ({_PLACES})",
    f"DELETE FROM answers WHERE lookup IN ({_LOOKUPS})",
    "DELETE FROM lookups WHERE b_no = :b_no",
    "UPDATE uploads SET raw = NULL WHERE number IN (SELECT upload FROM upload_rows WHERE b_no = :b_no)",
    "UPDATE upload_rows SET key = x'', b_no = '' WHERE b_no = :b_no",  # the other rows keep their places
)
_TEXTS: Final = (("lookups", "note"), ("uploads", "note"), ("labels", "note"), ("labels", "reason"), ("runs", "file"))
_BYTES: Final = ("lookups", "uploads")


@dataclass(frozen=True, slots=True)
class LedgerHoldings:
    """Records of a business number in the ledger."""

    counts: Mapping[str, int]  # rows by kind
    files: tuple[str, ...]  # input files with the number
    unsettled: tuple[str, ...]  # ids of lookups and uploads without an answer; erased, they could be paid twice


def holdings(connection: sqlite3.Connection, b_no: str) -> LedgerHoldings:
    """Return the ledger's records of a business number (ten digits)."""
    number, run = {"b_no": b_no}, connection.execute
    shown = shown_ids(connection)
    lookups = [shown.get(key, key.hex()) for (key,) in run(_OPEN_LOOKUPS, number)]
    uploads = [upload for (upload,) in run(_OPEN_UPLOADS, number)]
    counts = {what: run(query, number).fetchone()[0] for what, query in _HELD.items()}
    return LedgerHoldings(counts, tuple(file for (file,) in run(_FILES, number)), (*lookups, *uploads))


def explain_unsettled(ids: Sequence[str]) -> str:
    """Explain why unsettled lookups and uploads cannot be erased."""
    return gettext(
        "not settled yet, and perhaps paid: {listed}; erased, it might be paid twice. Give the command that left it "
        "once more, which fetches what is there, or settle it with `bansong resolve`; then try again",
        listed=", ".join(ids),
    )


def erase(tx: Transaction, b_no: str) -> None:
    """Erase a business number without unsettled lookups, also from notes, replies and file names; counts stay."""
    tx.delete_old_requests()
    for statement in _ERASE:
        tx.connection.execute(statement, {"b_no": b_no})
    for spelling in (b_no, business_number.format(b_no)):
        for table, column in _TEXTS:
            tx.connection.execute(
                f"UPDATE {table} SET {column} = replace({column}, :b_no, '…') WHERE instr({column}, :b_no)",
                {"b_no": spelling},
            )
        for table in _BYTES:
            tx.connection.execute(f"UPDATE {table} SET raw = NULL WHERE instr(raw, :b_no)", {"b_no": spelling.encode()})


AGE_INVALID: Final = Problem("ledger.age_invalid", "{older_than_days:g} days: an age is a number that is not negative")
LEDGER_CLOSED: Final = Problem("ledger.ledger_closed", "{path}: was closed before; this is a defect of bansong")

Clock = Callable[[], float]
P = ParamSpec("P")
R = TypeVar("R")


def _query(ask: Callable[Concatenate[sqlite3.Connection, P], R]) -> Callable[Concatenate[Ledger, P], R]:
    @wraps(ask)
    def method(ledger: Ledger, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with ledger._connect() as connection:
            return ask(connection, *args, **kwargs)

    return method


def _change(change: Callable[Concatenate[Transaction, P], R]) -> Callable[Concatenate[Ledger, P], R]:
    @wraps(change)
    def method(ledger: Ledger, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with ledger._transaction() as tx:
            return change(tx, *args, **kwargs)

    return method


@dataclass(frozen=True, slots=True)
class LedgerRun:
    """A run that buys lookups, or sends labels, for an input file."""

    run_id: str
    engine: str
    origin: str  # of the service
    file: str
    started: float  # unix seconds


def _begin(tx: Transaction, run: LedgerRun) -> None:
    tx.connection.execute(
        "INSERT INTO runs (run_id, engine, origin, file, started) VALUES (?, ?, ?, ?, ?)",
        (run.run_id, run.engine, run.origin, run.file, run.started),
    )


def _end(tx: Transaction, run_id: str, outcome: str) -> None:
    ending = (tx.now, outcome, tx.run(run_id))
    tx.connection.execute("UPDATE runs SET ended = ?, outcome = ? WHERE number = ?", ending)


class Ledger:
    """An open, thread-safe ledger of lookups, uploads and labels. Its methods raise :class:`LedgerError`."""

    path: Path
    created: bool  # the file was made by this process
    recovered: recovery.RecoveryCounts  # work that an earlier process left under way

    open_uploads = _query(queries.open_uploads)
    incomplete_uploads = _query(queries.incomplete_uploads)
    rows_of = _query(queries.rows_of)
    shares_job = _query(queries.shares_job)
    named_by_hand = _query(queries.named_by_hand)
    proves_row_keys = _query(queries.proves_row_keys)
    unfetched = _query(queries.unfetched_uploads)
    runs = _query(queries.runs)
    find = _query(queries.find)
    spent_trials = _query(changes.spent_trials)
    unanswered_requests = _query(changes.unanswered_requests)
    upload_flags = _query(queries.upload_flags)
    labelled_jobs = _query(queries.labelled_jobs)
    held_labels = _query(queries.held_labels)
    doubts = _query(queries.doubts)
    unusable = _query(queries.unusable)
    accept = _change(recovery.accept)
    resend = _change(recovery.resend)
    attach = _change(recovery.attach)
    allow_trial = _change(changes.allow_trial)
    remember_limit = _change(remember_limit)
    holdings = _query(holdings)
    begin = _change(_begin)
    end = _change(_end)

    def __init__(
        self, path: Path, connection: sqlite3.Connection, lock: FileLock, *, created: bool, clock: Clock
    ) -> None:
        self.path, self.created = path, created
        self._connection, self._lock, self._clock = connection, lock, clock
        self._turn, self._closed = RLock(), False
        with self._transaction() as tx:
            self.recovered = recovery.recover(tx)

    @classmethod
    def open(cls, path: Path | None = None, *, clock: Clock = time.time) -> Self:
        """Open the ledger at ``path``, ``BANSONG_LEDGER``, or the user's default; make it if it does not exist."""
        path = ledger_path(path)
        with ExitStack() as undo:
            lock = LEDGER_FILE.lock(path, LEDGER_FILE.busy)
            undo.callback(lock.release)
            created = LEDGER_FILE.ensure(path)
            connection = LEDGER_FILE.open(path)
            undo.callback(connection.close)
            with LEDGER_FILE.errors(path):
                ledger = cls(path, connection, lock, created=created, clock=clock)
            undo.pop_all()
        return ledger

    def close(self) -> None:
        with self._turn:
            if self._closed:
                return
            self._closed = True
            with suppress(sqlite3.Error):  # settled changes are durable in the log
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._connection.close()
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def settle(self, changes: Sequence[LedgerChange]) -> None:
        """Commit the changes in one transaction, which is synced to disk on return."""
        with self._transaction() as tx:
            for change in changes:
                change.write(tx)

    def entries(self, keys: pl.Series, *, answers: bool = True) -> Iterator[pl.DataFrame]:
        """Yield the lookups that the ledger has under ``keys`` (Binary); ``place``: the key's position in ``keys``."""
        # run and upload: those of the last bought answer if there is one, else those of the last request; without
        # answers it is several times as fast
        for first in range(0, len(keys), queries.CHUNK):
            with self._connect() as connection:
                frame = queries.entries_of(connection, keys.slice(first, queries.CHUNK), first, answers=answers)
            if not frame.is_empty():
                yield frame

    def limit(self, origin: str) -> int | None:
        """Return how many rows the service accepts in an upload; ``None`` if not recorded in the last 30 days."""
        with self._connect() as connection:
            found = connection.execute(
                "SELECT rows FROM limits WHERE origin = ? AND at >= ?", (origin, self._clock() - LIMIT_KEPT_S)
            ).fetchone()
        return None if found is None else int(found[0])

    def prepare_labels(
        self, run: LedgerRun, wanted: Iterable[changes.RowLabel], *, resend: bool = False
    ) -> changes.LabelQueue:
        """Record a run and the labels that it will send; without labels, the run is not recorded."""
        with self._transaction() as tx:
            _begin(tx, run)
            return changes.prepare_labels(tx, run.run_id, wanted, resend=resend)

    def job_rows(self, keys: pl.Series, origin: str) -> pl.DataFrame:
        parts = []
        for first in range(0, max(len(keys), 1), queries.CHUNK):
            with self._connect() as connection:
                found = queries.job_rows(connection, keys.slice(first, queries.CHUNK), origin)
            parts.append(found.with_columns(pl.col("nth") + first))
        return pl.concat(parts)

    def now(self) -> float:
        return self._clock()

    def pending_requests(self, origin: str) -> list[recovery.PendingRequest]:
        with self._connect() as connection:
            return recovery.pending_requests(connection, origin, self._clock())

    def may_be_repeated(self) -> int:
        """Return the number of doubtful requests that the same command may settle by repeating them."""
        with self._connect() as connection:
            return recovery.count_repeatable(connection, self._clock())

    def purge(self, older_than_days: float) -> PurgeCounts:
        if not older_than_days >= 0:  # also refuses NaN
            raise UsageError(AGE_INVALID, older_than_days=older_than_days)
        with self._transaction() as tx:
            purged = purge(tx, older_than_days)
        with self._connect() as connection:
            asked = ("PRAGMA freelist_count", "PRAGMA page_count")
            free, pages = (connection.execute(pragma).fetchone()[0] for pragma in asked)
            if free > pages * _MIN_FREE_SHARE:
                with suppress(sqlite3.OperationalError):  # the disk has no room for a copy
                    rewrite_file(connection)
        return purged

    def erase(self, numbers: Iterable[str]) -> None:
        """Erase business numbers (ten digits), with all their bytes in the database; raise for unsettled lookups."""
        with self._transaction() as tx:
            for b_no in numbers:
                if unsettled := holdings(tx.connection, b_no).unsettled:
                    raise UsageError(f"{self.path}: {explain_unsettled(unsettled)}")
                erase(tx, b_no)
        with self._connect() as connection:
            rewrite_file(connection)

    @contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        with self._turn, LEDGER_FILE.errors(self.path):
            if self._closed:
                raise LedgerError(LEDGER_CLOSED, path=self.path)
            yield self._connection

    @contextmanager
    def _transaction(self) -> Iterator[Transaction]:
        with self._connect() as connection, transaction(connection):
            tx = Transaction(connection, self._clock(), self.path)
            yield tx
            tx.finish()


@dataclass(slots=True, eq=False)
class _Waiting:
    changes: tuple[LedgerChange, ...]
    settled: anyio.Event = field(default_factory=anyio.Event)
    error: Exception | None = None


class Journal:
    """Commits the changes of many tasks together; use it in ``async with``, under asyncio or trio."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._waiting: list[_Waiting] = []
        self._wake = anyio.Event()
        self._ending = False
        self._tasks: TaskGroup | None = None

    async def __aenter__(self) -> Self:
        tasks = anyio.create_task_group()
        await tasks.__aenter__()
        self._tasks = tasks
        tasks.start_soon(self._flush)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._tasks is None:
            return
        self._ending = True
        self._wake.set()
        # the error of the block is not passed to the task group, which would wrap it in an exception group
        self._tasks.cancel_scope.shield = True
        await self._tasks.__aexit__(None, None, None)

    async def settle(self, *changes: LedgerChange) -> None:
        """Commit the changes in one transaction, which is synced to disk on return."""
        if self._tasks is None or self._ending:
            raise RuntimeError("a Journal settles only inside its 'async with'")
        waiting = _Waiting(changes)
        self._waiting.append(waiting)
        self._wake.set()
        with anyio.CancelScope(shield=True):  # a cancelled caller would not know what is recorded, and could pay twice
            await waiting.settled.wait()
        if waiting.error is not None:
            raise waiting.error

    async def _flush(self) -> None:
        thread = anyio.CapacityLimiter(1)  # reserved, so that other work in threads does not delay commits
        with anyio.CancelScope(shield=True):
            while self._waiting or not self._ending:
                await self._wake.wait()
                self._wake = anyio.Event()
                batch, self._waiting = self._waiting, []
                try:
                    if batch:
                        await anyio.to_thread.run_sync(self._commit, batch, limiter=thread)
                except Exception as error:  # no thread available: the waiting tasks must get the error
                    for waiting in batch:
                        waiting.error = waiting.error or error
                for waiting in batch:
                    waiting.settled.set()

    def _commit(self, batch: list[_Waiting]) -> None:
        # after an error, commit one by one, so that only the task at fault gets the error
        try:
            self._ledger.settle([change for waiting in batch for change in waiting.changes])
        except Exception as error:
            if len(batch) == 1:
                batch[0].error = error
                return
            for waiting in batch:
                self._commit([waiting])
