"""The tables of a watch list: the same in the server's file (owner: a key's id) and in a local watch file."""

from __future__ import annotations

from typing import Final

# Counts are kept, since a plan limits them and counting takes longer the more there are.
# AUTOINCREMENT: what a check found must not be written to a later watch that got the number of a removed one.
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

MIGRATIONS: Final = {1: "ALTER TABLE watches DROP COLUMN entry;", 2: "ALTER TABLE watches ADD COLUMN status_day TEXT;"}
"""Steps from one version of the tables to the next.

``entry`` was the watch as JSON, a generated column. ``status_day``: day (ISO) of a watch's status.
"""
