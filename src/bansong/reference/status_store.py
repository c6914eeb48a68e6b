"""The SQLite store of fetched statuses, and the budget of numbers a day.

Fresh statuses are not fetched again. Several processes may use one database. Decision 033 says why it is no registry.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Final, Self

import polars as pl

from bansong.base.errors import StoreError
from bansong.base.messages import gettext_noop
from bansong.base.sqlite import FileKind, rewrite_file
from bansong.engine.registry import MORE, SCHEMA, STATUS_SCHEMA, STATUSES, TAXATIONS
from bansong.reference.nts import NtsKey

ENV: Final = "BANSONG_STATUS_STORE"
# days are counted from 1970-01-01, in Korea
DDL: Final = f"""
CREATE TABLE statuses (
    b_no INTEGER PRIMARY KEY,
    biz_status TEXT NOT NULL CHECK (biz_status IN {STATUSES}),
    since INTEGER,
    as_of INTEGER NOT NULL,
    taxation TEXT CHECK (taxation IN {TAXATIONS}),
    merged INTEGER CHECK (merged IN (0, 1))
) STRICT;

CREATE TABLE unanswered (b_no INTEGER PRIMARY KEY, day INTEGER NOT NULL) STRICT;

CREATE TABLE usage (
    key TEXT NOT NULL,
    day INTEGER NOT NULL,
    numbers INTEGER NOT NULL CHECK (numbers >= 0),
    calls INTEGER NOT NULL CHECK (calls >= 0),
    exhausted INTEGER NOT NULL CHECK (exhausted IN (0, 1)),
    answered INTEGER NOT NULL DEFAULT 0 CHECK (answered IN (0, 1)),
    PRIMARY KEY (key, day)
) STRICT, WITHOUT ROWID;

CREATE TABLE claims (b_no INTEGER PRIMARY KEY, run TEXT NOT NULL, until REAL NOT NULL) STRICT;
"""
# answered: the key has got an answer; claims: numbers that a run is about to ask
MIGRATIONS: Final = {
    1: "ALTER TABLE usage ADD COLUMN answered INTEGER NOT NULL DEFAULT 0 CHECK (answered IN (0, 1));"
    "CREATE TABLE claims (b_no INTEGER PRIMARY KEY, run TEXT NOT NULL, until REAL NOT NULL) STRICT;"
}

STATUS_FILE: Final = FileKind(
    gettext_noop("a status store"),
    "status_store",
    0x62765374,
    DDL,
    MIGRATIONS,
    StoreError,
    variable=ENV,
    default="statuses.sqlite",
)  # "bvSt"

_OF_A_NUMBER: Final = ("statuses", "unanswered", "claims")
_PIECE: Final = 50_000  # rows in one statement, so that others wait only briefly
_EPOCH: Final = date(1970, 1, 1)
_ROWS: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "b_no": pl.UInt64,
    "biz_status": pl.String,
    "since": pl.Int32,
    "as_of": pl.Int32,
    "taxation": pl.String,
    "merged": pl.Boolean,
}
_DAYS: Final = {"b_no": pl.UInt64, "as_of": pl.Int32}
# numbers are passed as one JSON array, which SQLite reads faster than Python fills a table
_OF_NUMBERS: Final = "FROM json_each(?) AS wanted CROSS JOIN {table} AS found ON found.b_no = wanted.value"
_UPSERT: Final = """
INSERT INTO statuses VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (b_no) DO UPDATE SET
    biz_status = excluded.biz_status, since = excluded.since, as_of = excluded.as_of,
    taxation = coalesce(excluded.taxation, taxation), merged = excluded.merged
WHERE excluded.as_of >= as_of OR as_of > ?
"""
_COUNT_USAGE: Final = """
INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (key, day) DO UPDATE SET
    numbers = numbers + excluded.numbers, calls = calls + excluded.calls,
    exhausted = max(exhausted, excluded.exhausted), answered = max(answered, excluded.answered)
"""
_CLAIM: Final = """
INSERT INTO claims SELECT value, ?, ? FROM json_each(?) WHERE true ON CONFLICT (b_no) DO UPDATE SET
    run = excluded.run, until = excluded.until
WHERE run = excluded.run OR until < ?
"""


@dataclass(frozen=True, slots=True)
class DayUsage:
    """Usage of a key on one day in Korea."""

    numbers: int = 0
    calls: int = 0
    exhausted: bool = False  # the API refused more
    answered: bool = False  # the API answered at least once


@dataclass(frozen=True, slots=True)
class StoreSummary:
    """Number of stored statuses, and their oldest and newest day."""

    numbers: int
    oldest: date | None
    newest: date | None


def find_status_store(path: str | Path | None = None) -> StatusStore | None:
    """Open a status store; return ``None`` if it does not exist."""
    found = STATUS_FILE.find(path)
    with STATUS_FILE.errors(found):
        return StatusStore(found) if found.exists() else None


class StatusStore:
    """The open, thread-safe database of fetched statuses: ``path``, ``BANSONG_STATUS_STORE``, or a default."""

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = STATUS_FILE.find(path)
        STATUS_FILE.ensure(self.path)
        self._connection = STATUS_FILE.open(self.path)
        self._lock = threading.Lock()

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def read(self, numbers: pl.Series | None = None) -> pl.DataFrame:
        """Return stored statuses (:data:`STATUS_SCHEMA`) of distinct ``numbers`` (UInt64), in their order, or all."""
        if numbers is None:
            with self._use() as db:
                stored = db.execute("SELECT b_no FROM statuses ORDER BY b_no").fetchall()
            numbers = pl.Series([number for (number,) in stored], dtype=pl.UInt64)
        query = f"SELECT {', '.join(f'found.{name}' for name in _ROWS)} " + _OF_NUMBERS.format(table="statuses")
        return (
            self._read_of(numbers, query, _ROWS)
            .with_columns(
                pl.col("biz_status").cast(SCHEMA["biz_status"]),
                pl.col("since", "as_of").cast(pl.Date),
                pl.lit(None, pl.Date).alias("opened"),
                pl.col("taxation").cast(MORE["taxation"]),
            )
            .select(*STATUS_SCHEMA)
        )

    def stale(self, numbers: pl.Series, max_age: float, today: date) -> pl.DataFrame:
        """Return the numbers to fetch, as ``b_no`` and ``as_of`` (Date): first those without a status, then by age."""
        known = self._read_of(numbers, "SELECT found.b_no, found.as_of " + _OF_NUMBERS.format(table="statuses"), _DAYS)
        known = known.filter(pl.col("as_of") <= _days(today))  # later days come from a wrong clock
        wanted = pl.DataFrame([numbers.alias("b_no")]).join(known, on="b_no", how="left")
        wanted = wanted.filter(~(_days(today) - pl.col("as_of") <= max_age).fill_null(value=False))
        in_vain = self.find_unanswered(wanted["b_no"], today)
        return wanted.join(in_vain.to_frame(), on="b_no", how="anti").sort("as_of", "b_no").cast({"as_of": pl.Date})

    def find_unanswered(self, numbers: pl.Series, today: date) -> pl.Series:
        """Return the numbers (UInt64) to which the API gave no answer ``today`` (in Korea)."""
        query = "SELECT found.b_no, found.day " + _OF_NUMBERS.format(table="unanswered")
        rows = self._read_of(numbers, query, _DAYS)
        return rows.filter(pl.col("as_of") == _days(today))["b_no"]

    def oldest(self, numbers: pl.Series) -> date | None:
        """Return the day of the oldest stored status of ``numbers``."""
        query = "SELECT NULL, min(found.as_of) " + _OF_NUMBERS.format(table="statuses")
        day: date | None = self._read_of(numbers, query, _DAYS).select(pl.col("as_of").min().cast(pl.Date)).item()
        return day

    def usage(self, key: str, day: date) -> DayUsage:
        """Return how much all processes have used a key (:func:`account_of`) on a day in Korea."""
        query = "SELECT numbers, calls, exhausted, answered FROM usage WHERE key = ? AND day = ?"
        with self._use() as db:
            found = db.execute(query, (key, _days(day))).fetchone()
        return DayUsage(found[0], found[1], bool(found[2]), bool(found[3])) if found else DayUsage()

    def has_answered(self, key: str) -> bool:
        with self._use() as db:
            return bool(db.execute("SELECT max(answered) FROM usage WHERE key = ?", (key,)).fetchone()[0])

    def lift_limit(self, key: str, day: date) -> bool:
        """Allow calls again although the key's requests of the day were used up; return whether they were."""
        statement = "UPDATE usage SET exhausted = 0 WHERE key = ? AND day = ? AND exhausted"
        with self._transaction() as db:
            return bool(db.execute(statement, (key, _days(day))).rowcount)

    def claim(self, numbers: pl.Series, run: str, now: float, until: float) -> pl.Series:
        """Claim numbers (UInt64) for a run ``until`` a time (unix seconds); return those that no other run claimed."""
        values = _json(pl.DataFrame([numbers.alias("b_no")]))
        with self._transaction() as db:
            db.execute(_CLAIM, (run, until, values, now))
            query = "SELECT b_no FROM claims WHERE run = ? AND b_no IN (SELECT value FROM json_each(?))"
            mine = pl.Series([number for (number,) in db.execute(query, (run, values))], dtype=pl.UInt64)
        return numbers.filter(numbers.is_in(mine.implode()))

    def renew_claims(self, run: str, until: float) -> None:
        with self._transaction() as db:
            db.execute("UPDATE claims SET until = ? WHERE run = ?", (until, run))

    def release_claims(self, run: str) -> None:
        with self._transaction() as db:
            db.execute("DELETE FROM claims WHERE run = ?", (run,))

    def take_numbers(self, key: str, day: date, numbers: int, limit: int) -> int:
        """Reserve up to ``numbers`` within the ``limit`` of the day; return how many were reserved."""
        with self._transaction() as db:
            used = db.execute("SELECT numbers, exhausted FROM usage WHERE key = ? AND day = ?", (key, _days(day)))
            before, is_exhausted = used.fetchone() or (0, 0)
            granted = 0 if is_exhausted else max(0, min(numbers, limit - before))
            if granted:
                db.execute(_COUNT_USAGE, (key, _days(day), granted, 0, 0, 0))
        return granted

    def give_back_numbers(self, key: str, day: date, numbers: int) -> None:
        if numbers:
            with self._transaction() as db:
                statement = "UPDATE usage SET numbers = max(0, numbers - ?) WHERE key = ? AND day = ?"
                db.execute(statement, (numbers, key, _days(day)))

    def summary(self) -> StoreSummary:
        with self._use() as db:
            count, *days = db.execute("SELECT count(*), min(as_of), max(as_of) FROM statuses").fetchone()
        oldest, newest = (None if day is None else _EPOCH + timedelta(days=day) for day in days)
        return StoreSummary(count, oldest, newest)

    def write(
        self,
        statuses: pl.DataFrame | None = None,
        *,
        unanswered: pl.Series | None = None,  # numbers asked today without an answer
        usage: Mapping[tuple[str, date], DayUsage] | None = None,  # to add, by key (account_of) and day
        today: date | None = None,  # a stored status of a later day is always replaced
    ) -> None:
        """Store results of calls in one durable commit; an older status does not replace a newer one."""
        to_come = pl.lit(_days(today or date.max)).alias("to_come")
        with self._transaction() as db:
            if statuses is not None:
                for piece in statuses.iter_slices(_PIECE):
                    rows = piece.select(*(pl.col(name).cast(_ROWS[name]) for name in _ROWS), to_come)
                    db.executemany(_UPSERT, zip(*(column.to_list() for column in rows), strict=True))
                    for table in ("unanswered", "claims"):
                        delete = f"DELETE FROM {table} WHERE b_no IN (SELECT value FROM json_each(?))"  # noqa: S608
                        db.execute(delete, (_json(piece),))
            if today is not None:
                db.execute("DELETE FROM unanswered WHERE day < ?", (_days(today),))
                if unanswered is not None:
                    rows_of_today = ((number, _days(today)) for number in unanswered.to_list())
                    db.executemany("INSERT OR REPLACE INTO unanswered VALUES (?, ?)", rows_of_today)
            for (key, day), used in (usage or {}).items():
                counts = (used.numbers, used.calls, int(used.exhausted), int(used.answered))
                db.execute(_COUNT_USAGE, (key, _days(day), *counts))

    def holdings(self, number: int) -> int:
        with self._use() as db:
            return sum(
                db.execute(f"SELECT count(*) FROM {table} WHERE b_no = ?", (number,)).fetchone()[0]  # noqa: S608
                for table in _OF_A_NUMBER
            )

    def forget(self, *numbers: int) -> int:
        with self._transaction() as db:
            rows = sum(
                db.execute(f"DELETE FROM {table} WHERE b_no = ?", (number,)).rowcount  # noqa: S608 - two constants
                for table in _OF_A_NUMBER
                for number in numbers
            )
        with self._use() as db:
            rewrite_file(db)
        return rows

    def _read_of(self, numbers: pl.Series, query: str, schema: Mapping[str, Any]) -> pl.DataFrame:
        pieces = [pl.DataFrame(schema=schema)]
        for piece in pl.DataFrame([numbers.alias("b_no")]).iter_slices(_PIECE):
            with self._use() as db:
                rows = db.execute(query, (_json(piece),)).fetchall()
            pieces.append(pl.DataFrame(rows, schema=schema, orient="row"))
        return pl.concat(pieces)

    @contextmanager
    def _use(self) -> Iterator[sqlite3.Connection]:
        with self._lock, STATUS_FILE.errors(self.path):
            yield self._connection

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._use() as db, db:
            db.execute("BEGIN IMMEDIATE")
            yield db


def _days(day: date) -> int:
    return (day - _EPOCH).days


def _json(frame: pl.DataFrame) -> str:
    return "[" + str(frame["b_no"].cast(pl.String).str.join(",").item()) + "]"


_SALT: Final = "bizverify status store"
_PART: Final = 8  # at most an eighth of the remaining budget is reserved at a time


def account_of(key: NtsKey) -> str:
    """Return a fingerprint under which the store counts a key's usage; it does not reveal the key."""
    return key.fingerprint(_SALT).hex()


class DayAllowance:
    """The budget of numbers on a day in Korea, shared by all processes; calls reserve from it. Thread-safe."""

    def __init__(
        self, store: StatusStore, account: str, limit: int | None, today: Callable[[], date], block: int = 0
    ) -> None:
        self.account = account
        self.limit = limit  # numbers a day; None: no limit, so the caller counts
        self._store = store
        self._today = today
        self._block = block  # numbers reserved in one commit; a killed run counts so many too much
        self._day = today()
        self.spare = 0  # reserved numbers that no call has taken
        self._unsent = 0  # numbers of calls that are not sent yet
        self._unstored = 0  # numbers not counted in the store, which could not be written
        self._lock = threading.Lock()

    def take(self, numbers: int) -> int:
        """Reserve up to ``numbers`` for a call, return how many; call :meth:`count_sent` or :meth:`give_back` next."""
        if self.limit is None:
            return numbers
        with self._lock:
            if self.spare < numbers or self._day != self._today():
                self._reserve(numbers, self.limit)
            taken = min(numbers, self.spare)
            self.spare -= taken
            self._unsent += taken
            return taken

    def count_sent(self, numbers: int) -> None:
        with self._lock:
            self._unsent -= numbers if self.limit is not None else 0

    def give_back(self, numbers: int) -> None:
        if self.limit is not None:
            self.count_sent(numbers)
            self._store.give_back_numbers(self.account, self._day, numbers)

    def remaining(self) -> int | None:
        """Return how many numbers are left today; ``None``: no limit."""
        used = self._usage()
        if used.exhausted:
            return 0
        return None if self.limit is None else max(0, self.limit - used.numbers + self.spare)

    def is_spent(self) -> bool:
        used = self._usage()
        return used.exhausted or (self.limit is not None and used.numbers - self._unsent - self.spare >= self.limit)

    @property
    def stored_limit(self) -> int | None:
        """The limit a day, less the numbers of calls that could not be counted in the store."""
        return None if self.limit is None else max(0, self.limit - self._unstored)

    def close(self) -> None:
        """Give back the reserved numbers that were not sent."""
        left, self.spare, self._unsent = self.spare + self._unsent, 0, 0
        self._store.give_back_numbers(self.account, self._day, left)

    def _usage(self) -> DayUsage:
        day = self._today()
        used = self._store.usage(self.account, day)
        return replace(used, numbers=used.numbers + (self._unstored if day == self._day else 0))

    def _reserve(self, numbers: int, limit: int) -> None:
        day = self._today()
        if day != self._day:
            left, self.spare = self.spare, 0
            self._store.give_back_numbers(self.account, self._day, left)
            self._day, self._unstored = day, 0
        lacking, left = numbers - self.spare, limit - self._usage().numbers
        ahead = max(lacking, min(self._block, left // _PART))
        try:
            self.spare += self._store.take_numbers(self.account, day, ahead, limit - self._unstored)
        except StoreError:
            granted = max(0, min(lacking, left))
            self._unstored += granted
            self.spare += granted
