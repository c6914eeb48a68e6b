"""The ledger's kind of file: tables, migrations, messages."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from bansong.errors import LedgerError
from bansong.storage.sqlite import FileKind
from bansong.translation import gettext_noop

APPLICATION_ID: Final = 0x62767266
"""``bvrf``, in the header of every ledger, so that no other application's database is written to."""

# Each label of a row has its own ``turn`` (from 0): a late return changes the label of its row, and what was sent
# before stays on record.
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

# Requests with a key (Idempotency-Key) whose answer is not known: they may be repeated with it, so they are kept as
# sent until they are settled. ``account`` identifies the API key without revealing it; ``keep``: seconds for which the
# service promised to remember, from ``first``; ``repeats``: number of repetitions.
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

# Uploads and runs up to these do not count as paid without an answer.
_TRIALS: Final = """
CREATE TABLE trials (
    origin TEXT PRIMARY KEY,
    upload INTEGER NOT NULL,
    run INTEGER NOT NULL
);
"""

UNSETTLED: Final = "state <> 'done' AND state <> 'uploaded' AND state <> 'refused'"
"""Lookups that are neither done nor free. SQLite uses their index only for these very words."""

# An answer is not in the row of its lookup, so that later changes of the lookup cannot lose it. Rows are in the order
# of asking and only the index is in the order of the (random) keys: an answer then changes pages side by side, and no
# page of the index. There is no CHECK with IN on columns that change often: SQLite would build its list for every row,
# which triples the time of a change.
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

MIGRATIONS: Final = {
    1: f"ALTER TABLE uploads ADD COLUMN base INTEGER; {_LABELS}",
    2: _REQUESTS.format(more=""),
    3: "ALTER TABLE uploads ADD COLUMN trial INTEGER NOT NULL DEFAULT 0; "
    f"ALTER TABLE requests ADD COLUMN {_REPEATS}; {_TRIALS}",
}
"""Migration from each version to the next; a newer ledger is refused.

``base``: the service's key of an upload's first row; ``trial``: the upload tries out the service.
"""

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
    minimum=(3, 24, 0),  # ON CONFLICT DO UPDATE; no table is STRICT
)


def ledger_path(given: Path | None) -> Path:
    """Return the ledger's path: ``given``, ``BANSONG_LEDGER``, or in the user's state directory (made, mode 0700).

    Raises :class:`LedgerError` if the folder of a named ledger does not exist.
    """
    path = LEDGER_FILE.find(given)
    LEDGER_FILE.prepare_folder(path)
    return path
