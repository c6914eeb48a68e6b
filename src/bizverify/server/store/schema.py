"""The tables of the server's file."""

from __future__ import annotations

from typing import Final

from bizverify.watch.schema import DDL as WATCH_DDL

APPLICATION_ID: Final = 0x42565352
"""``BVSR``: what the header of a server's file says, so that no other database is taken for one."""
VERSION: Final = 1

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
