"""The tables of a watch list: the same in the server's file (owner: a key's id) and in a local watch file."""

from __future__ import annotations

from typing import Final

DDL: Final = """
CREATE TABLE watches (
    number INTEGER PRIMARY KEY,
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
    UNIQUE (owner, biz_no)
) STRICT;
CREATE INDEX watches_by_due ON watches (due);

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
    number INTEGER PRIMARY KEY,
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
    attempts INTEGER NOT NULL DEFAULT 0,
    due REAL,
    delivered REAL,
    error TEXT,
    PRIMARY KEY (notice, channel)
) STRICT, WITHOUT ROWID;
CREATE INDEX deliveries_by_due ON deliveries (due) WHERE delivered IS NULL;
"""
