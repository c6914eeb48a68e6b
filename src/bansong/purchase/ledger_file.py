"""Tables, migrations and transactions of the ledger."""

# ruff: noqa: S608 - statements consist of constants of this package; values are always bound

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from bansong.base.errors import LedgerError, Problem
from bansong.base.messages import Phrase, gettext_noop
from bansong.base.schema import Answer
from bansong.base.sqlite import FileKind

APPLICATION_ID: Final = 0x62767266  # `bvrf` in the file's header: databases of other applications are refused

# A row may have several labels, numbered by ``turn`` (from 0): a late return adds a label, and the earlier one stays.
_LABELS: Final = """
CREATE TABLE labels (
    upload INTEGER NOT NULL,
    place INTEGER NOT NULL,
    turn INTEGER NOT NULL,
    bounced INTEGER NOT NULL,
    reason TEXT,
    state TEXT NOT NULL,
    since REAL NOT NULL,
    run INTEGER NOT NULL,
    note TEXT,
    PRIMARY KEY (upload, place, turn)
) WITHOUT ROWID;
"""

# Requests with an Idempotency-Key (``token``) and without a known answer. They may be repeated with the same key, so
# their content is kept until they are settled. ``account`` identifies the API key without revealing it; ``keep``:
# seconds from ``first`` for which the service promises to remember the key; ``repeats``: number of repetitions.
_REQUESTS: Final = """
CREATE TABLE requests (
    token TEXT PRIMARY KEY,
    key BLOB UNIQUE,
    upload INTEGER UNIQUE,
    origin TEXT NOT NULL,
    account BLOB NOT NULL,
    first REAL NOT NULL,
    keep REAL NOT NULL,
    content BLOB NOT NULL{more}
);
"""
_REPEATS: Final = "repeats INTEGER NOT NULL DEFAULT 0"

# Trials are counted only beyond this upload and this run.
_TRIALS: Final = """
CREATE TABLE trials (
    origin TEXT PRIMARY KEY,
    upload INTEGER NOT NULL,
    run INTEGER NOT NULL
);
"""

# lookups that wait for an answer or a decision; SQLite uses the index only for exactly this text
UNSETTLED: Final = "state <> 'done' AND state <> 'uploaded' AND state <> 'refused'"

# Answers have a table of their own, so that a later change of the lookup cannot lose the answer. Rows are in the order
# of asking, and only the index is in the order of the (random) keys: answers then change neighbouring pages, and none
# of the index. Columns that change often have no CHECK with IN: SQLite would build the list for every row, which
# triples the time of a change.
DDL: Final = f"""
CREATE TABLE runs (
    number INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL UNIQUE,
    engine TEXT NOT NULL,
    origin TEXT NOT NULL,
    file TEXT NOT NULL,
    started REAL NOT NULL,
    ended REAL,
    outcome TEXT,
    paid INTEGER NOT NULL DEFAULT 0,
    answered INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE lookups (
    id INTEGER PRIMARY KEY,
    key BLOB NOT NULL UNIQUE,
    b_no TEXT NOT NULL,
    state TEXT NOT NULL,
    since REAL NOT NULL,
    run INTEGER NOT NULL,
    upload INTEGER,
    note TEXT,
    raw BLOB
);
CREATE INDEX lookups_held ON lookups (state)
    WHERE {UNSETTLED};
CREATE TABLE answers (
    lookup INTEGER PRIMARY KEY,
    at REAL NOT NULL,
    run INTEGER NOT NULL,
    upload INTEGER,
    biz_status TEXT,
    bounce_prob REAL,
    grade TEXT,
    action TEXT,
    fixed_zipcode TEXT,
    fixed_address TEXT,
    reasons TEXT NOT NULL
);
CREATE TABLE uploads (
    number INTEGER PRIMARY KEY,
    upload TEXT NOT NULL UNIQUE,
    run INTEGER NOT NULL,
    origin TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN
        ('prepared', 'gated', 'sent', 'known', 'done', 'doubt', 'unreadable', 'lost', 'refused', 'dropped',
         'accepted', 'resent')),
    since REAL NOT NULL,
    created REAL NOT NULL,
    rows INTEGER NOT NULL,
    job_id TEXT,
    total INTEGER,
    offline INTEGER,
    paid INTEGER,
    counted INTEGER NOT NULL DEFAULT 0,
    note TEXT,
    raw BLOB,
    base INTEGER,
    trial INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE upload_rows (
    upload INTEGER NOT NULL,
    place INTEGER NOT NULL,
    key BLOB NOT NULL,
    b_no TEXT NOT NULL,
    PRIMARY KEY (upload, place)
) WITHOUT ROWID;
CREATE TABLE limits (
    origin TEXT PRIMARY KEY,
    rows INTEGER NOT NULL,
    at REAL NOT NULL
);
CREATE TABLE decisions (
    number INTEGER PRIMARY KEY,
    at REAL NOT NULL,
    decision TEXT NOT NULL,
    kind TEXT NOT NULL,
    id TEXT NOT NULL,
    rows INTEGER NOT NULL,
    job_id TEXT
);
{_LABELS}{_REQUESTS.format(more=f", {_REPEATS}")}{_TRIALS}"""

# by version, to the next one; base: the service's key of an upload's first row; trial: the upload tests the service
MIGRATIONS: Final = {
    1: f"ALTER TABLE uploads ADD COLUMN base INTEGER; {_LABELS}",
    2: _REQUESTS.format(more=""),
    3: "ALTER TABLE uploads ADD COLUMN trial INTEGER NOT NULL DEFAULT 0; "
    f"ALTER TABLE requests ADD COLUMN {_REPEATS}; {_TRIALS}",
}

LEDGER_FILE: Final = FileKind(
    gettext_noop("a ledger"),
    "ledger",
    APPLICATION_ID,
    DDL,
    MIGRATIONS,
    LedgerError,
    exclusive=True,
    variable="BANSONG_LEDGER",
    default="ledger.sqlite",
    busy=gettext_noop("is in use by another run; wait for it to end, or stop it"),
    unwritten=gettext_noop("nothing more was bought; free space and give the command again"),
    minimum=(3, 24, 0),  # for ON CONFLICT DO UPDATE
)


def ledger_path(given: Path | None) -> Path:
    """Return the ledger's path: ``given``, ``BANSONG_LEDGER``, or in the state directory, which is created (0700)."""
    path = LEDGER_FILE.find(given)
    LEDGER_FILE.prepare_folder(path)
    return path


RECORD_INCONSISTENT: Final = Problem(
    "ledger.record_inconsistent",
    "{path}: {name}{of} does not follow from what is recorded, so nothing of it was; this is a defect of "
    "bansong, please report it",
)
RUN_NOT_BEGUN: Final = Problem(
    "ledger.run_not_begun", "{path}: the run {run_id} was not begun; this is a defect of bansong"
)

Value = str | int | float | bytes | None
RAW_KEPT: Final = 64 * 1024

ONE: Final = "key = :key"

# lookups of an upload that no later request has asked again
OF_UPLOAD: Final = """upload = :upload AND id IN
    (SELECT l.id FROM upload_rows r JOIN lookups l ON l.key = r.key WHERE r.upload = :upload)"""

ANSWERED: Final = "EXISTS (SELECT 1 FROM answers WHERE lookup = id)"
_ANSWER: Final = "INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"

_NEEDLESS: Final = """
    DELETE FROM requests WHERE first + keep < :now
        OR key IS NOT NULL AND NOT EXISTS
            (SELECT 1 FROM lookups l WHERE l.key = requests.key AND l.state IN ('asking', 'doubt'))
        OR upload IS NOT NULL AND NOT EXISTS
            (SELECT 1 FROM uploads u
             WHERE u.number = requests.upload AND u.state IN ('prepared', 'gated', 'sent', 'doubt'))
"""

_as_json: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class StoredRequest:
    """A sent request that may be repeated with its idempotency key."""

    token: str  # the idempotency key
    origin: str
    account: bytes  # identifies the API key without revealing it
    keep: float  # seconds for which the service remembers the token
    content: bytes  # body, compressed by zlib


@dataclass(slots=True)
class Transaction:
    """An open transaction of the ledger."""

    connection: sqlite3.Connection
    now: float  # unix seconds
    path: Path  # of the ledger, for errors
    _paid: Counter[int] = field(default_factory=Counter)
    _answered: Counter[int] = field(default_factory=Counter)

    def one(self, change: object, sql: str, values: Mapping[str, Value]) -> None:
        """Run a statement that must change exactly one row; else raise :class:`LedgerError`."""
        if self.connection.execute(sql, values).rowcount != 1:
            raise self.out_of_order(change)

    def out_of_order(self, change: object) -> LedgerError:
        """Return the error for a change that does not fit the present state, and might pay a lookup twice."""
        name = type(change).__name__
        key, upload = getattr(change, "key", None), getattr(change, "upload", None)
        of = Phrase(" of upload {upload}", upload=upload)
        if isinstance(key, bytes):
            of = Phrase(" of lookup {hex}", hex=key.hex())
        return LedgerError(RECORD_INCONSISTENT, path=self.path, name=name, of=of)

    def run(self, run_id: str) -> int:
        found = self.connection.execute("SELECT number FROM runs WHERE run_id = ?", (run_id,)).fetchone()
        if found is None:
            raise LedgerError(RUN_NOT_BEGUN, path=self.path, run_id=run_id)
        return int(found[0])

    def count(self, run: int, *, paid: int = 0, answered: int = 0) -> None:
        """Add to the paid and answered lookups of a run; :meth:`finish` writes the sums."""
        self._paid[run] += paid
        self._answered[run] += answered

    def finish(self) -> None:
        self.connection.executemany(
            "UPDATE runs SET paid = paid + ?, answered = answered + ? WHERE number = ?",
            [(paid, self._answered[run], run) for run, paid in self._paid.items()],
        )

    def answer(self, answers: Iterable[tuple[int, Answer]], run: int, upload: int | None) -> None:
        self.connection.executemany(
            _ANSWER, ((lookup, self.now, run, upload, *_fields(answer)) for lookup, answer in answers)
        )

    def release(self, which: str, states: str, values: Mapping[str, Value]) -> int:
        """Allow lookups in ``states`` to be sent again: with an earlier answer they become done, else deleted."""
        where = f"{which} AND state IN ({states})"
        gone = self.connection.execute(f"DELETE FROM lookups WHERE {where} AND NOT {ANSWERED}", values).rowcount
        kept = self.connection.execute(
            f"UPDATE lookups SET state = 'done', upload = NULL, note = NULL, raw = NULL WHERE {where}", values
        ).rowcount
        return gone + kept

    def hold(self, which: str, states: str, state: str, values: Mapping[str, Value]) -> int:
        """Move lookups in ``states`` to ``state``, with ``:note``; later runs do not send them again."""
        return self.connection.execute(
            f"UPDATE lookups SET state = '{state}', note = :note, since = :now WHERE {which} AND state IN ({states})",
            {**values, "now": self.now},
        ).rowcount

    def store_request(
        self, request: StoredRequest | None, *, key: bytes | None = None, upload: int | None = None
    ) -> None:
        if request is not None:
            self.connection.execute(
                "INSERT INTO requests VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0)",
                (request.token, key, upload, request.origin, request.account, self.now, request.keep, request.content),
            )

    def delete_request(self, *, key: bytes | None = None, upload: int | None = None) -> None:
        self.connection.execute("DELETE FROM requests WHERE key = ? OR upload = ?", (key, upload))

    def delete_old_requests(self) -> None:
        """Delete requests that are settled, or too old to be repeated."""
        self.connection.execute(_NEEDLESS, {"now": self.now})


class LedgerChange(Protocol):
    """A step of a lookup, an upload or a label that the ledger records."""

    def write(self, tx: Transaction) -> None:
        """Record the step; raise :class:`LedgerError` if the present state does not allow it."""


def clean(text: str | None) -> str | None:
    """Replace characters that UTF-8 cannot encode (halves of surrogate pairs)."""
    if text is None or text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def whole(number: int | None) -> int | None:
    """Return the number, or ``None`` if 64 bits cannot hold it."""
    return number if number is not None and number.bit_length() < 64 else None


def flag(value: int | None) -> bool | None:
    """Return a stored 0 or 1 as a Boolean; ``None`` stays."""
    return None if value is None else bool(value)


def _fields(answer: Answer) -> tuple[Value, ...]:
    return (
        clean(answer.biz_status),
        answer.bounce_prob,
        clean(answer.grade),
        clean(answer.action),
        clean(answer.fixed_zipcode),
        clean(answer.fixed_address),
        clean(_as_json(answer.reasons)),
    )
