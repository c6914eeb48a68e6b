-- what the first version made its ledgers with, to the letter
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
    WHERE state <> 'done' AND state <> 'uploaded' AND state <> 'refused';
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
    raw BLOB
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
