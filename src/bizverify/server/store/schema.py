"""The server's file: its tables, how older ones become these, and how it is opened.

One server at a time has it; ``bizverify keys`` and ``bizverify notices`` write to it beside the server.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Final

from filelock import FileLock

from bizverify.errors import StoreError
from bizverify.storage.sqlite import FileKind
from bizverify.watch.schema import DDL as WATCH_DDL
from bizverify.watch.schema import MIGRATIONS as WATCH_MIGRATIONS

APPLICATION_ID: Final = 0x42565352
"""``BVSR``, in the header of every server's file."""

DDL: Final = f"""
CREATE TABLE keys (
    id TEXT PRIMARY KEY,
    digest BLOB NOT NULL UNIQUE CHECK (length(digest) = 32),
    plan TEXT NOT NULL,
    quota INTEGER NOT NULL CHECK (quota >= 0),
    note TEXT,
    pool INTEGER NOT NULL DEFAULT 0 CHECK (pool IN (0, 1)),
    created REAL NOT NULL,
    last_used REAL,
    revoked REAL,
    webhook_url TEXT,
    webhook_secret TEXT
) STRICT, WITHOUT ROWID;

CREATE TABLE usage (
    key_id TEXT NOT NULL REFERENCES keys,
    month TEXT NOT NULL,
    used INTEGER NOT NULL CHECK (used >= 0),
    PRIMARY KEY (key_id, month)
) STRICT, WITHOUT ROWID;

CREATE TABLE idempotency (
    key_id TEXT NOT NULL REFERENCES keys,
    token BLOB NOT NULL,
    request BLOB NOT NULL,
    created REAL NOT NULL,
    answer BLOB,
    PRIMARY KEY (key_id, token)
) STRICT, WITHOUT ROWID;
CREATE INDEX idempotency_by_age ON idempotency (created);

CREATE TABLE jobs (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    key_id TEXT NOT NULL REFERENCES keys,
    state TEXT NOT NULL CHECK (state IN ('queued', 'running', 'done', 'failed')),
    total INTEGER NOT NULL CHECK (total >= 0),
    offline INTEGER NOT NULL,
    paid INTEGER NOT NULL,
    month TEXT NOT NULL,
    charged INTEGER NOT NULL,
    created REAL NOT NULL,
    started REAL,
    finished REAL,
    attempts INTEGER NOT NULL DEFAULT 0,
    starts INTEGER NOT NULL DEFAULT 0,
    due REAL NOT NULL DEFAULT 0,
    grades TEXT,
    model TEXT,
    error TEXT
) STRICT;
CREATE INDEX jobs_by_state ON jobs (state, number);
CREATE INDEX jobs_by_key ON jobs (key_id, state);

CREATE TABLE labels (
    job TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    row_id INTEGER NOT NULL,
    bounced INTEGER NOT NULL CHECK (bounced IN (0, 1)),
    reason TEXT,
    recorded REAL NOT NULL,
    learned REAL,
    PRIMARY KEY (job, row_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX labels_unlearned ON labels (job) WHERE learned IS NULL;
{WATCH_DDL}"""

MIGRATIONS: Final = {1: WATCH_MIGRATIONS[1], 2: WATCH_MIGRATIONS[2]}
"""What makes a file of one version one of the next. A watch list's steps have their own numbers in a watch file."""

SERVER_FILE: Final = FileKind("the file of a bizverify server", "db", APPLICATION_ID, DDL, MIGRATIONS, StoreError)


def open_server_file(path: Path, *, create: bool = True, writing: bool = True) -> sqlite3.Connection:
    """Open the server's file, made (mode 0600) if it is not there and ``create`` says so; raise :class:`StoreError`."""
    path = Path(os.path.realpath(path))
    if not path.exists():
        if not create:
            raise StoreError(f"{path}: does not exist; check `db=`, or make one with `bizverify keys create`")
        SERVER_FILE.make(path)
    return SERVER_FILE.open(path, writing=writing)


def lock_server_file(path: Path) -> FileLock:
    """Take ``PATH.lock``, by which one server alone works on a file; raise :class:`StoreError` if it is taken."""
    return SERVER_FILE.lock(Path(os.path.realpath(path)), "another server is running on it; stop that one first")
