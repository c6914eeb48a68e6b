"""The server's file: tables, migrations, opening.

One server at a time owns it; ``bansong keys`` and ``bansong notices`` write to it beside the server.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from filelock import FileLock

from bansong.errors import Problem, StoreError
from bansong.storage.sqlite import FileKind
from bansong.translation import gettext, gettext_noop
from bansong.watch.schema import DDL as WATCH_DDL
from bansong.watch.schema import MIGRATIONS as WATCH_MIGRATIONS

DATABASE_PARTLY_MISSING: Final = Problem(
    "server.database_partly_missing",
    "{path}: is missing, but files that belong to it are in {folder}; put it back or restore it from a "
    "backup, or move that folder away to begin a new one",
)
DATABASE_MISSING: Final = Problem(
    "server.database_missing",
    "{path}: does not exist; check `db=`, put it back if it was moved, or make one with `bansong keys create`",
)

APPLICATION_ID: Final = 0x42565352
"""``BVSR``."""

_SECRETS: Final = """
CREATE TABLE secrets (
    number INTEGER PRIMARY KEY,
    key_id TEXT NOT NULL REFERENCES keys,
    digest BLOB NOT NULL UNIQUE CHECK (length(digest) = 32),
    created REAL NOT NULL,
    expires REAL,
    revoked REAL
) STRICT;
CREATE INDEX secrets_by_key ON secrets (key_id);
"""
_AUDIT: Final = """
CREATE TABLE audit (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    at REAL NOT NULL,
    who TEXT NOT NULL,
    action TEXT NOT NULL,
    key_id TEXT,
    details TEXT NOT NULL
) STRICT;
"""
_JOBS_BY_AGE: Final = "CREATE INDEX jobs_by_age ON jobs (key_id, created, id);"

# A row of `keys` is the account that jobs, watches and usage belong to; its secrets come and go.
# `turn` counts up over all keys: the key with the lowest has waited longest for a job of its own to be begun.
# `audit` refers to no key: what was done to one stays known when it is gone.
DDL: Final = f"""
CREATE TABLE keys (
    id TEXT PRIMARY KEY,
    plan TEXT NOT NULL,
    quota INTEGER NOT NULL CHECK (quota >= 0),
    note TEXT,
    pool INTEGER NOT NULL DEFAULT 0 CHECK (pool IN (0, 1)),
    created REAL NOT NULL,
    last_used REAL,
    revoked REAL,
    webhook_url TEXT,
    webhook_secret TEXT,
    erased REAL,
    customer TEXT,
    turn INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
{_SECRETS}
CREATE TABLE usage (
    key_id TEXT NOT NULL REFERENCES keys,
    month TEXT NOT NULL,
    used INTEGER NOT NULL CHECK (used >= 0),
    watch_changes INTEGER NOT NULL DEFAULT 0 CHECK (watch_changes >= 0),
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
{_JOBS_BY_AGE}

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
{_AUDIT}{WATCH_DDL}"""

# SQLite drops no column that is UNIQUE, so `keys` is made anew; what refers to it by name goes on to.
_VERSION_4: Final = f"""
{_SECRETS}
INSERT INTO secrets (key_id, digest, created) SELECT id, digest, created FROM keys ORDER BY created, id;
CREATE TABLE accounts (
    id TEXT PRIMARY KEY,
    plan TEXT NOT NULL,
    quota INTEGER NOT NULL CHECK (quota >= 0),
    note TEXT,
    pool INTEGER NOT NULL DEFAULT 0 CHECK (pool IN (0, 1)),
    created REAL NOT NULL,
    last_used REAL,
    revoked REAL,
    webhook_url TEXT,
    webhook_secret TEXT,
    erased REAL
) STRICT, WITHOUT ROWID;
INSERT INTO accounts (id, plan, quota, note, pool, created, last_used, revoked, webhook_url, webhook_secret)
    SELECT id, plan, quota, note, pool, created, last_used, revoked, webhook_url, webhook_secret FROM keys;
DROP TABLE keys;
ALTER TABLE accounts RENAME TO keys;
{_JOBS_BY_AGE}
ALTER TABLE usage ADD COLUMN watch_changes INTEGER NOT NULL DEFAULT 0 CHECK (watch_changes >= 0);
{_AUDIT}"""  # noqa: S608 - put together from constants of this module

_VERSION_5: Final = "ALTER TABLE keys ADD COLUMN customer TEXT;"

_VERSION_6: Final = """
ALTER TABLE keys ADD COLUMN turn INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs DROP COLUMN started;
"""

MIGRATIONS: Final = {1: WATCH_MIGRATIONS[1], 2: WATCH_MIGRATIONS[2], 3: _VERSION_4, 4: _VERSION_5, 5: _VERSION_6}
"""The steps of watch lists have other numbers in a watch file."""

SERVER_FILE: Final = FileKind(
    gettext_noop("the file of a bansong server"), "db", APPLICATION_ID, DDL, MIGRATIONS, StoreError
)


def open_server_file(path: Path, *, create: bool = True, writing: bool = True) -> sqlite3.Connection:
    """Open the server's file; create it (0600) if missing and ``create``; raise :class:`StoreError`.

    None is created beside a folder with files: those belong to a lost file, and a new one would delete them. Deleted
    content is overwritten.
    """
    given, path = path, Path(os.path.realpath(path))
    if not path.exists():
        refuse_lost_file(given)
        if not create:
            raise StoreError(DATABASE_MISSING, path=path)
        SERVER_FILE.make(path)
    connection = SERVER_FILE.open(path, writing=writing)
    connection.execute("PRAGMA secure_delete = ON")
    return connection


def files_folder(path: Path) -> Path:
    return path.with_name(f"{path.name}.files")


def refuse_lost_file(path: Path) -> None:
    """Raise :class:`StoreError` if the file's folder has files but the file is missing."""
    folder = files_folder(path)
    if any(found.is_file() for found in folder.rglob("*")):
        raise StoreError(DATABASE_PARTLY_MISSING, path=path, folder=folder)


@contextmanager
def hold_server_file(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a server's file and keep servers away from it; raise :class:`StoreError` if it is missing or one runs."""
    lock = lock_server_file(path)
    try:
        with closing(open_server_file(path, create=False)) as db:
            yield db
    finally:
        lock.release()


def lock_server_file(path: Path) -> FileLock:
    """Take ``PATH.lock``, which one server at a time holds; raise :class:`StoreError` if it is taken."""
    return SERVER_FILE.lock(
        Path(os.path.realpath(path)), gettext("another server is running on it; stop that one first")
    )
