"""Tables and statements of watch lists in a database; the database file of a local list."""

# ruff: noqa: S608 - statements are put together from constants of this module; values are always bound

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Self

import msgspec
import polars as pl

from bansong.base.errors import Problem, StoreError
from bansong.base.messages import gettext, gettext_noop
from bansong.base.sqlite import FileKind
from bansong.notify.queue import CLOSED, SummaryWindow, add_notifications, add_summaries, as_json, korean_iso

# Counts are stored: a plan limits them, and counting takes longer the more watches there are.
# AUTOINCREMENT: the result of a check must not go to a later watch with the row number of a removed one.
DDL: Final = """
CREATE TABLE watches (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    biz_no TEXT NOT NULL,
    name TEXT,
    address TEXT,
    created REAL NOT NULL,
    checked REAL,
    due REAL NOT NULL,
    biz_status TEXT,
    grade TEXT,
    bounce_prob REAL,
    action TEXT,
    closed REAL,
    status_day TEXT,
    UNIQUE (owner, biz_no)
) STRICT;
CREATE INDEX watches_by_number ON watches (owner, number);
CREATE INDEX watches_by_due ON watches (owner, due);

CREATE TABLE watch_counts (owner TEXT PRIMARY KEY, watches INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TRIGGER watch_added AFTER INSERT ON watches BEGIN
    INSERT INTO watch_counts VALUES (new.owner, 1) ON CONFLICT DO UPDATE SET watches = watches + 1;
END;
CREATE TRIGGER watch_removed AFTER DELETE ON watches BEGIN
    UPDATE watch_counts SET watches = watches - 1 WHERE owner = old.owner;
END;

CREATE TABLE watch_history (
    number INTEGER PRIMARY KEY,
    watch INTEGER NOT NULL REFERENCES watches (number) ON DELETE CASCADE,
    at REAL NOT NULL,
    before TEXT,
    after TEXT,
    biz_status TEXT
) STRICT;
CREATE INDEX watch_history_by_watch ON watch_history (watch, number);

CREATE TABLE notices (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    watch_id TEXT NOT NULL,
    biz_no TEXT NOT NULL,
    payload TEXT NOT NULL,
    created REAL NOT NULL
) STRICT;
CREATE INDEX notices_by_owner ON notices (owner, number);

CREATE TABLE deliveries (
    notice INTEGER NOT NULL REFERENCES notices (number) ON DELETE CASCADE,
    channel TEXT NOT NULL,
    owner TEXT NOT NULL,
    begun REAL NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    due REAL,
    delivered REAL,
    error TEXT,
    PRIMARY KEY (notice, channel)
) STRICT, WITHOUT ROWID;
CREATE INDEX deliveries_open ON deliveries (owner, due, attempts) WHERE delivered IS NULL;
"""

# ``entry`` was a generated column: the watch as JSON
MIGRATIONS: Final = {1: "ALTER TABLE watches DROP COLUMN entry;", 2: "ALTER TABLE watches ADD COLUMN status_day TEXT;"}
WATCH_FILE_MISSING: Final = Problem(
    "watch.watch_file_missing",
    "{path}: there is no watch file; begin one with `bansong watch add` or `bansong watch sync`, "
    "or name another with `local=` or {env}",
)

ENV: Final = "BANSONG_WATCH"
OWNER: Final = "local"  # owner of a local list; in a server's tables, owners are keys
# consecutive days in Korea on which statuses were due and could not be asked
_UNASKED: Final = "CREATE TABLE unasked_days (day TEXT PRIMARY KEY) STRICT, WITHOUT ROWID;"
WATCH_FILE: Final = FileKind(
    gettext_noop("a watch file"),
    "local",
    0x62765763,  # "bvWc"
    DDL + _UNASKED,
    {**MIGRATIONS, 3: _UNASKED},
    StoreError,
    variable=ENV,
    default="watch.sqlite",
)


class LocalFile:
    """The open database of a local watch list; ``create`` makes a missing one (0600). Raises :class:`StoreError`."""

    def __init__(self, path: Path, *, create: bool = True) -> None:
        self.path = path
        with WATCH_FILE.errors(path):
            if not create and not path.exists():
                raise StoreError(WATCH_FILE_MISSING, path=path, env=ENV)
        WATCH_FILE.ensure(path)
        self.connection = WATCH_FILE.open(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.connection.close()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Let all queries of the block read the same state of the database."""
        with WATCH_FILE.errors(self.path):
            self.connection.execute("BEGIN")
            try:
                yield self.connection
            finally:
                self.connection.execute("ROLLBACK")

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Run one transaction: durable when the block ends, undone if it raises."""
        with WATCH_FILE.errors(self.path), self.connection as db:
            db.execute("BEGIN IMMEDIATE")
            yield db


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold ``PATH.lock``, so that one check of a list runs at a time; raise :class:`StoreError` if another one does."""
    lock = WATCH_FILE.lock(path, gettext("another check of this list is running; nothing was done"))
    try:
        yield
    finally:
        lock.release()


_SUMMARIES: Final = "SELECT number, payload FROM notices WHERE biz_no = '' AND instr(payload, ?)"
HELD: Final = {
    "watches": "SELECT count(*) FROM watches WHERE biz_no = ?",
    gettext_noop("changes of grade"): "SELECT count(*) FROM watch_history"
    " WHERE watch IN (SELECT number FROM watches WHERE biz_no = ?)",
    "notifications": "SELECT count(*) FROM notices WHERE biz_no = ?",
    "undelivered": "SELECT count(*) FROM deliveries"
    " WHERE delivered IS NULL AND notice IN (SELECT number FROM notices WHERE biz_no = ?)",
}


def holdings(db: sqlite3.Connection, b_no: str) -> dict[str, int]:
    """Count the rows about a business number (ten digits), by kind. ``undelivered`` counts some notifications again."""
    counts = {what: int(db.execute(query, (b_no,)).fetchone()[0]) for what, query in HELD.items()}
    return counts | {"summaries": sum(1 for _ in _summaries(db, b_no))}


def erase(db: sqlite3.Connection, b_no: str) -> None:
    """Erase a business number (ten digits), its history and notifications. Summaries keep their other numbers."""
    for number, summary in list(_summaries(db, b_no)):
        left = [one for one in summary["biz_nos"] if one != b_no]
        if left:
            text = as_json(summary | {"closed": len(left), "biz_nos": left})
            db.execute("UPDATE notices SET payload = ? WHERE number = ?", (text, number))
        else:
            db.execute("DELETE FROM notices WHERE number = ?", (number,))
    db.execute("DELETE FROM notices WHERE biz_no = ?", (b_no,))
    db.execute("DELETE FROM watches WHERE biz_no = ?", (b_no,))


def _summaries(db: sqlite3.Connection, b_no: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, payload in db.execute(_SUMMARIES, (b_no,)).fetchall():
        summary = json.loads(payload)
        if b_no in summary["biz_nos"]:
            yield number, summary


VERDICT_COLUMNS: Final[dict[str, type[pl.DataType]]] = {
    "biz_status": pl.String,
    "grade": pl.String,
    "bounce_prob": pl.Float64,
    "action": pl.String,
}
STATUS_DAY: Final = "status_day"  # optional column of a judge: day (ISO) of the status
UNKNOWN: Final = "unknown"
# statuses by which a closed business has opened again; ``unknown`` is none
OPEN: Final = ("active", "suspended")


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The results of a check: ``watches`` has a row per checked watch (see :func:`compare_with_check`)."""

    watches: pl.DataFrame

    @property
    def changes(self) -> pl.DataFrame:
        return self.watches.filter("changed")

    @property
    def closures(self) -> pl.DataFrame:
        """Watches found closed that were open before; each has a notification."""
        return self.watches.filter("closure")

    @property
    def closed_already(self) -> pl.DataFrame:
        """Watches closed at their first check; one notification names all of them."""
        return self.watches.filter("closed_already")


def compare_with_check(watches: pl.DataFrame, checked: pl.DataFrame, now: float) -> pl.DataFrame:
    """Compare a check with the watches as they are now. Results for changed or removed watches are dropped."""
    if STATUS_DAY not in checked:
        checked = checked.with_columns(pl.lit(None, pl.String).alias(STATUS_DAY))
    verdict = (*VERDICT_COLUMNS, STATUS_DAY)
    asked = checked.select(
        "number", name_asked="name", address_asked="address", **{f"{name}_found": name for name in verdict}
    )
    work = watches.join(asked, on="number", how="inner", maintain_order="left").filter(
        pl.col(name).eq_missing(pl.col(f"{name}_asked")) for name in ("name", "address")
    )
    before, is_older = pl.col("biz_status"), pl.col(f"{STATUS_DAY}_found") < pl.col(STATUS_DAY)
    # an unknown status, or one of an earlier day, comes from a worse source: the known status stays
    after = pl.when(~is_older.fill_null(value=False)).then("biz_status_found")
    was_known, is_known = before.fill_null(UNKNOWN).ne(UNKNOWN), after.fill_null(UNKNOWN).ne(UNKNOWN)
    closed, open_again = after.eq_missing(pl.lit(CLOSED)), after.is_in(OPEN).fill_null(value=False)
    closed_now = closed & pl.col("closed").is_null()
    grade = pl.when(was_known & ~is_known).then("grade").otherwise("grade_found")
    was_checked = pl.col("checked").is_not_null()
    return work.with_columns(
        *(pl.when(was_known & ~is_known).then(name).otherwise(f"{name}_found").alias(name) for name in verdict),
        before.alias("status_before"),
        pl.col("grade").alias("grade_before"),
        (~was_checked | (is_known & ~was_known)).alias("first"),
        (closed_now & was_known).alias("closure"),
        (closed_now & ~was_known).alias("closed_already"),
        (was_checked & grade.ne_missing(pl.col("grade"))).alias("changed"),
        pl.when(~open_again).then(pl.coalesce("closed", pl.when(closed).then(pl.lit(now, pl.Float64)))).alias("closed"),
    ).select(*watches.columns, "status_before", "grade_before", "first", "closure", "closed_already", "changed")


_WATCH: Final = "id, biz_no, name, address, created, checked, due, biz_status, grade, bounce_prob, action, closed"
_FRAME: Final[dict[str, type[pl.DataType]]] = {
    "number": pl.Int64,
    **dict.fromkeys(("owner", "watch_id", "biz_no", "name", "address"), pl.String),
    **dict.fromkeys(("created", "checked", "due"), pl.Float64),
    **VERDICT_COLUMNS,
    "closed": pl.Float64,
    STATUS_DAY: pl.String,
}
_DOCUMENT: Final = "id, biz_no, name, address, biz_status, grade, created, checked, due, closed"
_DOCUMENT_FIELDS: Final = (
    *("watch_id", "biz_no", "name", "address", "biz_status", "grade"),
    *("created_at", "checked_at", "next_check_at", "closed_at"),
)
_ENCODER: Final = msgspec.json.Encoder()
_BLOCK: Final = 7  # bits of a row number within its block of 128 watches: 40 kB, rendered in a millisecond
_AS_FRAME: Final = ", ".join("id AS watch_id" if name == "watch_id" else name for name in _FRAME)


@dataclass(frozen=True, slots=True)
class Business:
    """A business to watch, with its number as ten digits."""

    biz_no: str
    name: str | None = None
    address: str | None = None


@dataclass(frozen=True, slots=True)
class WatchedBusiness:
    """A watched business with its last check. ``closed`` is the time at which its closure was found."""

    watch_id: str
    biz_no: str
    name: str | None
    address: str | None
    created: float
    checked: float | None
    due: float
    biz_status: str | None
    grade: str | None
    bounce_prob: float | None
    action: str | None
    closed: float | None


@dataclass(frozen=True, slots=True)
class Change:
    """One change of grade, with its time (``at``, seconds since 1970) and the status found then."""

    at: float
    before: str | None
    after: str | None
    biz_status: str | None


class Added(NamedTuple):
    """Counts of new watches, and of known ones whose name or address changed."""

    new: int
    changed: int


Addition = Literal["added", "changed", "unchanged"]


def add(
    db: sqlite3.Connection, owner: str, entry: Business, now: float, first_check: float | None = None
) -> tuple[WatchedBusiness, Addition]:
    """Add or update a business on an owner's list, due now; with ``first_check``, due then if new, else as before."""
    done: Addition = "added"
    found = db.execute(f"SELECT {_WATCH} FROM watches WHERE owner = ? AND biz_no = ?", (owner, entry.biz_no)).fetchone()
    if found is None:
        id_ = secrets.token_hex(8)
        db.execute(
            "INSERT INTO watches (id, owner, biz_no, name, address, created, due) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                *(id_, owner, entry.biz_no, entry.name or None, entry.address or None),
                *(now, now if first_check is None else first_check),
            ),
        )
    else:
        before = WatchedBusiness(*found)
        id_, name, address = before.watch_id, entry.name or before.name, entry.address or before.address
        done = "unchanged" if (name, address) == (before.name, before.address) else "changed"
        if done == "changed":
            due = now if first_check is None else before.due
            db.execute("UPDATE watches SET name = ?, address = ?, due = ? WHERE id = ?", (name, address, due, id_))
    stored = get(db, owner, id_)
    assert stored is not None  # noqa: S101 - it was written in this transaction
    return stored, done


def add_many(db: sqlite3.Connection, owner: str, entries: Iterable[Business], now: float) -> Added:
    """Put businesses on an owner's list, due now."""
    before = count(db, owner)
    done = db.executemany(
        "INSERT INTO watches (id, owner, biz_no, name, address, created, due)"
        " VALUES (?, ?, ?, nullif(?, ''), nullif(?, ''), ?, ?)"
        " ON CONFLICT (owner, biz_no) DO UPDATE SET"
        " name = coalesce(excluded.name, name), address = coalesce(excluded.address, address), due = excluded.due"
        " WHERE coalesce(excluded.name, name) IS NOT name OR coalesce(excluded.address, address) IS NOT address",
        ((secrets.token_hex(8), owner, entry.biz_no, entry.name, entry.address, now, now) for entry in entries),
    )
    new = count(db, owner) - before
    return Added(new=new, changed=max(0, done.rowcount) - new)


def count(db: sqlite3.Connection, owner: str) -> int:
    row = db.execute("SELECT watches FROM watch_counts WHERE owner = ?", (owner,)).fetchone()
    return 0 if row is None else int(row[0])


def get(db: sqlite3.Connection, owner: str, watch_id: str) -> WatchedBusiness | None:
    row = db.execute(f"SELECT {_WATCH} FROM watches WHERE owner = ? AND id = ?", (owner, watch_id)).fetchone()
    return None if row is None else WatchedBusiness(*row)


def every(db: sqlite3.Connection, owner: str) -> pl.DataFrame:
    """Return all watches of an owner, in the order of their addition."""
    return _frame(db.execute(f"SELECT {_AS_FRAME} FROM watches WHERE owner = ? ORDER BY number", (owner,)))


def remove(db: sqlite3.Connection, owner: str, watch_id: str) -> int | None:
    """Remove a watch; return its row number, ``None`` if there is none."""
    gone = db.execute("DELETE FROM watches WHERE owner = ? AND id = ? RETURNING number", (owner, watch_id)).fetchall()
    return gone[0][0] if gone else None


def remove_many(db: sqlite3.Connection, owner: str, watch_ids: Iterable[str]) -> int:
    done = db.execute(
        "DELETE FROM watches WHERE owner = ? AND id IN (SELECT value FROM json_each(?))",
        (owner, json.dumps(list(watch_ids))),
    )
    return done.rowcount


def history(db: sqlite3.Connection, owner: str, watch_id: str) -> list[Change] | None:
    """Return the changes of a watch's grade, oldest first; ``None`` if there is no such watch."""
    found = db.execute("SELECT number FROM watches WHERE owner = ? AND id = ?", (owner, watch_id)).fetchone()
    if found is None:
        return None
    rows = db.execute("SELECT at, before, after, biz_status FROM watch_history WHERE watch = ? ORDER BY number", found)
    return [Change(*row) for row in rows]


class Block(NamedTuple):
    """Watches of one owner with neighbouring row numbers, as JSON objects, each after a comma."""

    entries: bytes
    total: int


def block_of(number: int) -> int:
    """Return the number of the block that holds a row."""
    return number >> _BLOCK


def blocks(db: sqlite3.Connection, owner: str) -> list[int]:
    query = f"SELECT DISTINCT number >> {_BLOCK} FROM watches WHERE owner = ? ORDER BY 1"
    return [number for (number,) in db.execute(query, (owner,))]


def block(db: sqlite3.Connection, owner: str, block: int) -> Block:
    rows = db.execute(
        f"SELECT {_DOCUMENT} FROM watches WHERE owner = ? AND number >= ? AND number < ? ORDER BY number",
        (owner, block << _BLOCK, block + 1 << _BLOCK),
    ).fetchall()
    entries = _ENCODER.encode([_document(row) for row in rows])
    return Block(b"," + entries[1:-1] if rows else b"", len(rows))


def rendered_entry(db: sqlite3.Connection, owner: str, watch_id: str) -> tuple[int, bytes] | None:
    """Return a watch's row number and its JSON; ``None`` if there is none."""
    query = f"SELECT number, {_DOCUMENT} FROM watches WHERE owner = ? AND id = ?"
    row = db.execute(query, (owner, watch_id)).fetchone()
    return None if row is None else (row[0], _ENCODER.encode(_document(row[1:])))


def _document(row: Sequence[Any]) -> dict[str, str | None]:
    return dict(zip(_DOCUMENT_FIELDS, (*row[:6], *map(korean_iso, row[6:])), strict=True))


def next_due(db: sqlite3.Connection, owner: str) -> float | None:
    found: float | None = db.execute("SELECT min(due) FROM watches WHERE owner = ?", (owner,)).fetchone()[0]
    return found


class Overdue(NamedTuple):
    """A count of overdue watches, and when the oldest was due."""

    watches: int
    oldest: float | None


def count_overdue(db: sqlite3.Connection, owners: Sequence[str], before: float) -> Overdue:
    query = "SELECT count(*), min(due) FROM watches WHERE due < ? AND owner IN (SELECT value FROM json_each(?))"
    return Overdue(*db.execute(query, (before, json.dumps(owners))).fetchone())


def count_all(db: sqlite3.Connection) -> int:
    return int(db.execute("SELECT coalesce(sum(watches), 0) FROM watch_counts").fetchone()[0])


def last_due(db: sqlite3.Connection, owner: str) -> float | None:
    found: float | None = db.execute("SELECT max(due) FROM watches WHERE owner = ?", (owner,)).fetchone()[0]
    return found


def bring_forward(db: sqlite3.Connection, owner: str, until: float, limit: int) -> list[int]:
    """Set at most ``limit`` watches that are due later to ``until``; return their row numbers."""
    rows = db.execute(
        "UPDATE watches SET due = ? WHERE number IN"
        " (SELECT number FROM watches WHERE owner = ? AND due > ? LIMIT ?) RETURNING number",
        (until, owner, until, limit),
    )
    return [number for (number,) in rows.fetchall()]


def make_due(db: sqlite3.Connection, owner: str, now: float, wait: float | None = None) -> None:
    """Make watches due: all, or with ``wait`` those checked so many seconds ago, or in the future (a wrong clock)."""
    db.execute(
        "UPDATE watches SET due = :now WHERE owner = :owner AND due > :now"
        " AND (:wait IS NULL OR checked <= :now - :wait OR coalesce(checked, created) > :now)",
        {"owner": owner, "now": now, "wait": wait},
    )


def due(db: sqlite3.Connection, now: float, limit: int, owners: Sequence[str] | None = None) -> pl.DataFrame:
    """Return at most ``limit`` due watches, longest due first."""
    whose = "" if owners is None else "AND owner IN (SELECT value FROM json_each(:owners))"
    rows = db.execute(
        f"SELECT {_AS_FRAME} FROM watches WHERE due <= :now {whose} ORDER BY due, number LIMIT :limit",
        {"now": now, "owners": json.dumps(owners), "limit": limit},
    )
    return _frame(rows)


def record(
    db: sqlite3.Connection,
    checked: pl.DataFrame,
    now: float,
    next_due: float | pl.Expr,
    channels: Sequence[str] = (),
    window: SummaryWindow | None = None,
) -> CheckResult:
    """Record a check: verdicts, changes of grade, notifications. The watches are due again at ``next_due``."""
    numbers = json.dumps(checked["number"].to_list())
    rows = db.execute(
        f"SELECT {_AS_FRAME} FROM watches WHERE number IN (SELECT value FROM json_each(?)) ORDER BY number", (numbers,)
    )
    found = compare_with_check(_frame(rows), checked, now)
    again = next_due if isinstance(next_due, pl.Expr) else pl.lit(next_due, pl.Float64)
    db.executemany(
        "UPDATE watches SET checked = ?, due = ?, biz_status = ?, grade = ?, bounce_prob = ?, action = ?, closed = ?,"
        " status_day = ? WHERE number = ?",
        found.select(
            pl.lit(now, pl.Float64).alias("checked"),
            again.cast(pl.Float64).alias("due"),
            *(*VERDICT_COLUMNS, "closed", STATUS_DAY, "number"),
        ).iter_rows(),
    )
    db.executemany(
        "INSERT INTO watch_history (watch, at, before, after, biz_status) VALUES (?, ?, ?, ?, ?)",
        found.filter("changed")
        .select("number", pl.lit(now, pl.Float64).alias("at"), "grade_before", "grade", "biz_status")
        .iter_rows(),
    )
    add_notifications(db, found.filter("closure"), now, channels)
    add_summaries(db, found.filter("closed_already"), now, channels, window or SummaryWindow(now, now))
    return CheckResult(found)


def postpone(db: sqlite3.Connection, numbers: Iterable[int], due: float) -> None:
    """Move the due time of watches to ``due`` if it is earlier."""
    db.execute(
        "UPDATE watches SET due = ? WHERE due < ? AND number IN (SELECT value FROM json_each(?))",
        (due, due, json.dumps(list(numbers))),
    )


def _frame(rows: Iterable[tuple[object, ...]]) -> pl.DataFrame:
    return pl.DataFrame(list(rows), schema=_FRAME, orient="row")
