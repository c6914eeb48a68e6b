"""The ledger of one user: one file, one process, one connection, and every change durable before its call returns."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from threading import RLock
from types import TracebackType
from typing import Concatenate, Final, ParamSpec, Self, TypeVar

import anyio
import polars as pl
from anyio.abc import TaskGroup
from filelock import FileLock

from bansong.errors import LedgerError, Problem, UsageError
from bansong.ledger import label_outbox, queries, recovery, retention, trial_limits
from bansong.ledger.label_outbox import LabelChange
from bansong.ledger.recovery import Repetition
from bansong.ledger.schema import LEDGER_FILE, ledger_path
from bansong.ledger.transaction import Transaction
from bansong.ledger.transitions import Change
from bansong.storage.sqlite import rewrite_file

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
    """A run that may buy lookups from the service ``origin`` for a file."""

    run_id: str
    engine: str
    origin: str
    file: str
    started: float


class Ledger:
    """Lookups asked, paid and answered. Open it with :meth:`open`; use it from any thread, close it when done.

    ``created``: the file is new; ``recovered``: what an earlier process left under way. Every method raises
    :class:`LedgerError` if the file cannot be used, or a change breaks its rules.
    """

    path: Path
    created: bool
    recovered: recovery.RecoveryCounts

    open_uploads = _query(queries.open_uploads)
    incomplete_uploads = _query(queries.incomplete_uploads)
    rows_of = _query(queries.rows_of)
    shares_job = _query(queries.shares_job)
    named_by_hand = _query(queries.named_by_hand)
    proves_row_keys = _query(queries.proves_row_keys)
    unfetched = _query(queries.unfetched_uploads)
    runs = _query(queries.runs)
    find = _query(queries.find)
    spent_trials = _query(trial_limits.spent_trials)
    unanswered_requests = _query(trial_limits.unanswered_requests)
    upload_flags = _query(label_outbox.upload_flags)
    labelled_jobs = _query(label_outbox.labelled_jobs)
    held_labels = _query(label_outbox.held_labels)
    doubts = _query(queries.doubts)
    unusable = _query(queries.unusable)
    accept = _change(recovery.accept)
    resend = _change(recovery.resend)
    attach = _change(recovery.attach)
    allow_trial = _change(trial_limits.allow_trial)
    remember_limit = _change(retention.remember_limit)
    holdings = _query(retention.holdings)

    def __init__(
        self, path: Path, connection: sqlite3.Connection, lock: FileLock, *, created: bool, clock: Clock
    ) -> None:
        self.path = path
        self.created = created
        self._connection = connection
        self._lock = lock
        self._clock = clock
        self._turn = RLock()
        self._closed = False
        with self._transaction() as tx:
            self.recovered = recovery.recover(tx)

    @classmethod
    def open(cls, path: Path | None = None, *, clock: Clock = time.time) -> Self:
        """Open the ledger at ``path``, ``BANSONG_LEDGER``, or the user's default; make it if it does not exist.

        Raises :class:`LedgerError`: damaged, in use, newer than this version, or misplaced.
        """
        path = ledger_path(path)
        lock = LEDGER_FILE.lock(path, LEDGER_FILE.busy)
        try:
            with LEDGER_FILE.errors(path):
                if created := not path.exists():
                    LEDGER_FILE.make(path)
            connection = LEDGER_FILE.open(path)
            try:
                with LEDGER_FILE.errors(path):
                    return cls(path, connection, lock, created=created, clock=clock)
            except BaseException:
                connection.close()
                raise
        except BaseException:
            lock.release()
            raise

    def close(self) -> None:
        """Close the file and release its lock; closing twice is allowed."""
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def begin(self, run: LedgerRun) -> None:
        """Record a run, before it asks anything."""
        with self._transaction() as tx:
            _begin(tx, run)

    def end(self, run_id: str, outcome: str) -> None:
        """Record the outcome of a run."""
        with self._transaction() as tx:
            ending = (tx.now, outcome, tx.run(run_id))
            tx.connection.execute("UPDATE runs SET ended = ?, outcome = ? WHERE number = ?", ending)

    def settle(self, changes: Sequence[Change | Repetition | label_outbox.LabelChange]) -> None:
        """Make the changes, all or none; durable on return."""
        with self._transaction() as tx:
            for change in changes:
                change.write(tx)

    def entries(self, keys: pl.Series, *, answers: bool = True) -> Iterator[pl.DataFrame]:
        """Yield what is known of ``keys`` (Binary), at most 50,000 rows a frame; nulls and unknown keys are left out.

        ``place``: position in ``keys``. A row of a doubtful or unreadable upload has that state itself. ``run_id``,
        ``upload``, ``job_id``: of the buyer of the answer (``done``), or of the last request. The answer is the last
        one bought, also if ``state`` is not ``done``; ``reasons`` are joined. Without ``answers`` the seven columns are
        left out, which is several times as fast.
        """
        for first in range(0, len(keys), queries.CHUNK):
            with self._connect() as connection:
                frame = queries.entries_of(connection, keys.slice(first, queries.CHUNK), first, answers=answers)
            if not frame.is_empty():
                yield frame

    def limit(self, origin: str) -> int | None:
        """Return the most rows of an upload that the service takes, learned in the last 30 days."""
        with self._connect() as connection:
            found = connection.execute(
                "SELECT rows FROM limits WHERE origin = ? AND at >= ?", (origin, self._clock() - retention.LIMIT_KEPT_S)
            ).fetchone()
        return None if found is None else int(found[0])

    def prepare_labels(
        self, run: LedgerRun, wanted: Iterable[label_outbox.WantedLabel], *, resend: bool = False
    ) -> label_outbox.LabelQueue:
        """Record a run and its labels to be sent; without labels nothing of the run is kept."""
        with self._transaction() as tx:
            _begin(tx, run)
            return label_outbox.prepare(tx, run.run_id, wanted, resend=resend)

    def job_rows(self, keys: pl.Series, origin: str) -> pl.DataFrame:
        """Return the rows of jobs that hold these keys: ``nth`` (of the key), ``upload``, ``place``, ``created``."""
        parts = []
        for first in range(0, max(len(keys), 1), queries.CHUNK):
            with self._connect() as connection:
                found = label_outbox.job_rows(connection, keys.slice(first, queries.CHUNK), origin)
            parts.append(found.with_columns(pl.col("nth") + first))
        return pl.concat(parts)

    def now(self) -> float:
        """Return the time of the ledger's clock, in unix seconds."""
        return self._clock()

    def pending_requests(self, origin: str) -> list[recovery.PendingRequest]:
        """Return the doubtful requests to ``origin`` that may be repeated with their key, oldest first."""
        with self._connect() as connection:
            return recovery.pending_requests(connection, origin, self._clock())

    def may_be_repeated(self) -> int:
        """Return the number of doubtful requests that the same command may settle by repeating them."""
        with self._connect() as connection:
            return recovery.count_repeatable(connection, self._clock())

    def purge(self, older_than_days: float) -> retention.PurgeCounts:
        """Delete older answers and their records; never a doubt or an open upload."""
        if not older_than_days >= 0:  # also refuses NaN
            raise UsageError(AGE_INVALID, older_than_days=older_than_days)
        with self._transaction() as tx:
            purged = retention.purge(tx, older_than_days)
        with self._connect() as connection:
            retention.shrink(connection)
        return purged

    def erase(self, numbers: Iterable[str]) -> None:
        """Erase numbers (ten digits) so that none of their bytes stay in the file; see :meth:`holdings` first.

        They are bought again when needed again. Raises :class:`UsageError`, and erases nothing, if a lookup of them is
        unsettled.
        """
        with self._transaction() as tx:
            for b_no in numbers:
                if unsettled := retention.holdings(tx.connection, b_no).unsettled:
                    raise UsageError(f"{self.path}: {retention.explain_unsettled(unsettled)}")
                retention.erase(tx, b_no)
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
        with self._connect() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                tx = Transaction(connection, self._clock(), self.path)
                yield tx
                tx.finish()
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:  # SQLite has ended it by itself where the disk is full
                    connection.execute("ROLLBACK")
                raise


def _begin(tx: Transaction, run: LedgerRun) -> None:
    tx.connection.execute(
        "INSERT INTO runs (run_id, engine, origin, file, started) VALUES (?, ?, ?, ?, ?)",
        (run.run_id, run.engine, run.origin, run.file, run.started),
    )


@dataclass(slots=True, eq=False)
class _Waiting:
    changes: tuple[Change | Repetition | LabelChange, ...]
    settled: anyio.Event = field(default_factory=anyio.Event)
    error: Exception | None = None


class Journal:
    """Settles changes of many tasks in shared commits; ``await journal.settle(…)`` returns when they are durable.

    Use it as ``async with Journal(ledger) as journal``, under asyncio or trio.
    """

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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._tasks is None:
            return
        self._ending = True
        self._wake.set()
        # the block's own error is nothing to the flusher: given to the group, it would come out wrapped in one
        self._tasks.cancel_scope.shield = True
        await self._tasks.__aexit__(None, None, None)

    async def settle(self, *changes: Change | Repetition | LabelChange) -> None:
        """Make the changes, all or none; durable on return. Raises :class:`~bansong.errors.LedgerError`.

        It cannot be cancelled: a caller unsure of what is recorded could pay twice.
        """
        if self._tasks is None or self._ending:
            raise RuntimeError("a Journal settles only inside its 'async with'")
        waiting = _Waiting(changes)
        self._waiting.append(waiting)
        self._wake.set()
        with anyio.CancelScope(shield=True):
            await waiting.settled.wait()
        if waiting.error is not None:
            raise waiting.error

    async def _flush(self) -> None:
        thread = anyio.CapacityLimiter(1)  # of its own: other work in threads must not delay commits
        with anyio.CancelScope(shield=True):
            while self._waiting or not self._ending:
                await self._wake.wait()
                self._wake = anyio.Event()
                batch, self._waiting = self._waiting, []
                try:
                    if batch:
                        await anyio.to_thread.run_sync(self._commit, batch, limiter=thread)
                except Exception as error:  # no thread available: the waiting tasks must be told
                    for waiting in batch:
                        waiting.error = waiting.error or error
                for waiting in batch:
                    waiting.settled.set()

    def _commit(self, batch: list[_Waiting]) -> None:
        # after an error one by one, so that only the change at fault raises it
        try:
            self._ledger.settle([change for waiting in batch for change in waiting.changes])
        except Exception as error:
            if len(batch) == 1:
                batch[0].error = error
                return
            for waiting in batch:
                self._commit([waiting])
