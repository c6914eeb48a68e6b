"""The ledger of one user: one file, one process, one connection, and every change durable before it is answered."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from types import TracebackType
from typing import Self

import polars as pl
from filelock import FileLock

from bizverify.errors import LedgerError, UsageError
from bizverify.ledger import label_outbox, pending_requests, queries, recovery, retention, trials
from bizverify.ledger.known_answers import CHUNK, entries_of
from bizverify.ledger.repetition import Repeated
from bizverify.ledger.schema import LEDGER_FILE, ledger_path
from bizverify.ledger.transaction import Writing
from bizverify.ledger.transitions import Change

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Run:
    """A run that may buy lookups: which engine, from which service (``origin``), for which file, since when."""

    run_id: str
    engine: str
    origin: str
    file: str
    started: float


class Ledger:
    """What was asked, paid and answered. Open it with :meth:`open`; use it from any thread, close it when done.

    ``created`` says whether the file was made now, ``recovered`` what an earlier process left under way. Every method
    raises :class:`LedgerError` where the file cannot be used, or is used against its rules.
    """

    path: Path
    created: bool
    recovered: recovery.Recovered

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
        with self._writing() as to:
            self.recovered = recovery.recover(to)

    @classmethod
    def open(cls, path: Path | None = None, *, clock: Clock = time.time) -> Self:
        """Open the ledger at ``path``, else ``BIZVERIFY_LEDGER``, else the user's own; make it only if there is none.

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
        """Close the file and let others have it. Closing twice is closing."""
        with self._turn:
            if self._closed:
                return
            self._closed = True
            with suppress(sqlite3.Error):  # what was settled is durable in the log
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._connection.close()
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def begin(self, run: Run) -> None:
        """Note a run, before it asks anything."""
        with self._writing() as to:
            _begin(to, run)

    def end(self, run_id: str, outcome: str) -> None:
        """Note how a run ended."""
        with self._writing() as to:
            ending = (to.now, outcome, to.run(run_id))
            to.connection.execute("UPDATE runs SET ended = ?, outcome = ? WHERE number = ?", ending)

    def settle(self, changes: Sequence[Change | Repeated | label_outbox.LabelChange]) -> None:
        """Make the changes, all or none; durable on return."""
        with self._writing() as to:
            for change in changes:
                change.write(to)

    def entries(self, keys: pl.Series, *, answers: bool = True) -> Iterator[pl.DataFrame]:
        """What is known of ``keys`` (Binary; nulls are nobody's), at most 50,000 rows a frame, unknown ones left out.

        ``place`` is the key's place in ``keys``. A row that went with an upload that is in doubt or unreadable
        is itself. ``run_id``, ``upload``, ``job_id`` are of whoever bought the answer (``done``) or asked last. The
        answer is the last one bought, also where ``state`` is not ``done``; ``reasons`` are joined. Without ``answers``
        the seven columns are left out, which is several times as fast.
        """
        for first in range(0, len(keys), CHUNK):
            with self._reading() as connection:
                frame = entries_of(connection, keys.slice(first, CHUNK), first, answers=answers)
            if not frame.is_empty():
                yield frame

    def open_uploads(self, origin: str) -> list[queries.Upload]:
        """Uploads to ``origin`` whose job is to be fetched, oldest first."""
        with self._reading() as connection:
            return queries.open_uploads(connection, origin)

    def incomplete_uploads(self, origin: str, since: float) -> list[queries.Upload]:
        """Uploads to ``origin`` since then (unix seconds) whose job was fetched and left rows without answer."""
        with self._reading() as connection:
            return queries.incomplete_uploads(connection, origin, since)

    def rows_of(self, upload_id: str) -> list[tuple[bytes, str]]:
        """(key, number) of an upload's rows in the order in which they were sent."""
        with self._reading() as connection:
            return connection.execute(
                "SELECT key, b_no FROM upload_rows WHERE upload = (SELECT number FROM uploads WHERE upload = ?) "
                "ORDER BY place",
                (upload_id,),
            ).fetchall()

    def shares_job(self, upload_id: str) -> bool:
        """Whether an upload of other rows became the same job: then its results are those of one of them at most."""
        with self._reading() as connection:
            return queries.shares_job(connection, upload_id)

    def named_by_hand(self, upload_id: str) -> bool:
        """Whether somebody said which job an upload became: it may be the wrong one."""
        with self._reading() as connection:
            return queries.named_by_hand(connection, upload_id)

    def spent_trials(self, origin: str) -> int:
        """How many trial uploads to ``origin`` may have been paid since answers of an upload to it were fetched."""
        with self._reading() as connection:
            return trials.spent_trials(connection, origin)

    def unanswered_requests(self, origin: str) -> int:
        """How many single requests to ``origin`` may have been paid in the runs since one that got any answer."""
        with self._reading() as connection:
            return trials.unanswered_requests(connection, origin)

    def allow_trial(self, origin: str) -> None:
        """Allow one more trial upload to ``origin``, and single requests as if none had gone without an answer."""
        with self._writing() as to:
            trials.allow_trial(to, origin)

    def proves_row_keys(self, origin: str) -> bool:
        """Whether results of 100 rows or more proved what ``origin`` calls them, and none since has failed to."""
        with self._reading() as connection:
            return queries.proves_row_keys(connection, origin)

    def limit(self, origin: str) -> int | None:
        """The most rows to upload at once, since more were refused or came to nothing; forgotten after 30 days."""
        with self._reading() as connection:
            found = connection.execute(
                "SELECT rows FROM limits WHERE origin = ? AND at >= ?", (origin, self._clock() - retention.LIMIT_KEPT)
            ).fetchone()
        return None if found is None else int(found[0])

    def remember_limit(self, origin: str, rows: int) -> None:
        """Remember that limit in the place of an earlier one."""
        with self._writing() as to:
            to.connection.execute("INSERT OR REPLACE INTO limits VALUES (?, ?, ?)", (origin, rows, to.now))

    def prepare_labels(
        self, run: Run, wanted: Iterable[label_outbox.Wanted], *, resend: bool = False
    ) -> label_outbox.Queue:
        """Note a run and the labels that it is to send; where it has none to send, nothing of the run is kept."""
        with self._writing() as to:
            _begin(to, run)
            return label_outbox.prepare(to, run.run_id, wanted, resend=resend)

    def job_rows(self, keys: pl.Series, origin: str) -> pl.DataFrame:
        """The rows of jobs that hold these keys: ``nth`` (of the key), ``upload``, ``place``, ``created``."""
        parts = []
        for first in range(0, max(len(keys), 1), CHUNK):
            with self._reading() as connection:
                found = label_outbox.job_rows(connection, keys.slice(first, CHUNK), origin)
            parts.append(found.with_columns(pl.col("nth") + first))
        return pl.concat(parts)

    def upload_flags(self, origin: str) -> list[tuple[bool | None, bool | None]]:
        """The flags (``offline``, ``paid``) that uploads to ``origin`` had."""
        with self._reading() as connection:
            return label_outbox.flags(connection, origin)

    def labelled_jobs(self, uploads: Iterable[int]) -> dict[int, label_outbox.LabelledJob]:
        """The jobs of uploads, by the uploads' numbers."""
        with self._reading() as connection:
            return label_outbox.jobs(connection, uploads)

    def held_labels(self, origin: str) -> list[label_outbox.HeldLabel]:
        """Labels that were refused, or sent without an answer, oldest first."""
        with self._reading() as connection:
            return label_outbox.held(connection, origin)

    def doubts(self) -> list[queries.Doubt]:
        """Lookups and uploads that were sent, or perhaps, and of which nothing more is known."""
        with self._reading() as connection:
            return queries.waiting(connection, ("doubt",))

    def now(self) -> float:
        """The time by the ledger's clock, in seconds since 1970."""
        return self._clock()

    def repeatable(self, origin: str) -> list[pending_requests.Repeatable]:
        """Requests to ``origin`` that are in doubt and may be sent again with the key they had, oldest first."""
        with self._reading() as connection:
            return pending_requests.repeatable(connection, origin, self._clock())

    def may_be_repeated(self) -> int:
        """How many requests in doubt the command that left them may settle, by sending them again with their key."""
        with self._reading() as connection:
            return pending_requests.young(connection, self._clock())

    def unusable(self) -> list[queries.Doubt]:
        """What was answered without an answer that can be used: unreadable, or missing from its job."""
        with self._reading() as connection:
            return queries.waiting(connection, ("unreadable", "missing"))

    def unfetched(self) -> list[queries.Doubt]:
        """Uploads whose job is known and whose results could not be fetched, oldest first; later runs try again."""
        with self._reading() as connection:
            return queries.unfetched(connection)

    def accept(self, ids: Iterable[str]) -> int:
        """Take doubtful or unusable lookups, or the undecided ones of uploads, as lost; return how many."""
        with self._writing() as to:
            return recovery.accept(to, ids)

    def resend(self, ids: Iterable[str]) -> int:
        """Let them be asked, and perhaps paid, again; return how many."""
        with self._writing() as to:
            return recovery.resend(to, ids)

    def attach(self, upload_id: str, job_id: str) -> int:
        """Say which job an upload became, so that the next run fetches it; return how many rows are open."""
        with self._writing() as to:
            return recovery.attach(to, upload_id, job_id)

    def runs(self) -> list[queries.RunRecord]:
        """All runs, oldest first: what was paid, when, for which file."""
        with self._reading() as connection:
            return queries.runs(connection)

    def find(self, b_no: str) -> list[queries.Entry]:
        """All that is known of a business number."""
        with self._reading() as connection:
            return queries.find(connection, b_no)

    def purge(self, older_than_days: float) -> retention.Purged:
        """Delete answers older than that, and what was only kept for them; never a doubt or an open upload."""
        if not older_than_days >= 0:  # nor what is no number
            raise UsageError(f"{older_than_days:g} days: an age is a number that is not negative")
        with self._writing() as to:
            purged = retention.purge(to, older_than_days)
        with self._reading() as connection:
            retention.shrink(connection)
        return purged

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._turn, LEDGER_FILE.errors(self.path):
            if self._closed:
                raise LedgerError(f"{self.path}: was closed before; this is a defect of bizverify")
            yield self._connection

    @contextmanager
    def _writing(self) -> Iterator[Writing]:
        """One transaction: all of it is durable, or none of it happened."""
        with self._reading() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                to = Writing(connection, self._clock(), self.path)
                yield to
                to.finish()
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:  # SQLite has ended it by itself where the disk is full
                    connection.execute("ROLLBACK")
                raise


def _begin(to: Writing, run: Run) -> None:
    to.connection.execute(
        "INSERT INTO runs (run_id, engine, origin, file, started) VALUES (?, ?, ?, ?, ?)",
        (run.run_id, run.engine, run.origin, run.file, run.started),
    )
