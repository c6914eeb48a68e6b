application_id 1651921518
user_version 3
CREATE TABLE inputs (
    path TEXT PRIMARY KEY,
    fingerprint TEXT NOT NULL,
    verified REAL NOT NULL,
    output TEXT NOT NULL,
    written TEXT NOT NULL,
    rows INTEGER NOT NULL CHECK (rows >= 0),
    latest TEXT NOT NULL DEFAULT '',
    roles TEXT NOT NULL DEFAULT '',
    status_day TEXT NOT NULL DEFAULT ''
) STRICT, WITHOUT ROWID
CREATE TABLE job_file (one INTEGER PRIMARY KEY CHECK (one = 1), path TEXT NOT NULL) STRICT
CREATE TABLE outputs (path TEXT PRIMARY KEY) STRICT, WITHOUT ROWID
CREATE TABLE runs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    started REAL NOT NULL,
    finished REAL NOT NULL,
    exit_code INTEGER NOT NULL,
    rows INTEGER NOT NULL CHECK (rows >= 0),
    counts TEXT NOT NULL,
    inputs TEXT NOT NULL,
    changes BLOB,
    message TEXT,
    taken TEXT NOT NULL DEFAULT '[]',
    delivered REAL,
    changes_due TEXT
) STRICT
CREATE TABLE snapshot (part INTEGER PRIMARY KEY, rows BLOB NOT NULL) STRICT
CREATE TABLE sqlite_sequence(name,seq)
