application_id 1112953682
user_version 6
CREATE INDEX deliveries_open ON deliveries (owner, due, attempts) WHERE delivered IS NULL
CREATE INDEX idempotency_by_age ON idempotency (created)
CREATE INDEX jobs_by_age ON jobs (key_id, created, id)
CREATE INDEX jobs_by_key ON jobs (key_id, state)
CREATE INDEX jobs_by_state ON jobs (state, number)
CREATE INDEX labels_unlearned ON labels (job) WHERE learned IS NULL
CREATE INDEX notices_by_owner ON notices (owner, number)
CREATE INDEX secrets_by_key ON secrets (key_id)
CREATE INDEX watch_history_by_watch ON watch_history (watch, number)
CREATE INDEX watches_by_due ON watches (owner, due)
CREATE INDEX watches_by_number ON watches (owner, number)
CREATE TABLE audit (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    at REAL NOT NULL,
    who TEXT NOT NULL,
    action TEXT NOT NULL,
    key_id TEXT,
    details TEXT NOT NULL
) STRICT
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
) STRICT, WITHOUT ROWID
CREATE TABLE idempotency (
    key_id TEXT NOT NULL REFERENCES keys,
    token BLOB NOT NULL,
    request BLOB NOT NULL,
    created REAL NOT NULL,
    answer BLOB,
    PRIMARY KEY (key_id, token)
) STRICT, WITHOUT ROWID
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
) STRICT
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
) STRICT, WITHOUT ROWID
CREATE TABLE labels (
    job TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    row_id INTEGER NOT NULL,
    bounced INTEGER NOT NULL CHECK (bounced IN (0, 1)),
    reason TEXT,
    recorded REAL NOT NULL,
    learned REAL,
    PRIMARY KEY (job, row_id)
) STRICT, WITHOUT ROWID
CREATE TABLE notices (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    watch_id TEXT NOT NULL,
    biz_no TEXT NOT NULL,
    payload TEXT NOT NULL,
    created REAL NOT NULL
) STRICT
CREATE TABLE secrets (
    number INTEGER PRIMARY KEY,
    key_id TEXT NOT NULL REFERENCES keys,
    digest BLOB NOT NULL UNIQUE CHECK (length(digest) = 32),
    created REAL NOT NULL,
    expires REAL,
    revoked REAL
) STRICT
CREATE TABLE sqlite_sequence(name,seq)
CREATE TABLE usage (
    key_id TEXT NOT NULL REFERENCES keys,
    month TEXT NOT NULL,
    used INTEGER NOT NULL CHECK (used >= 0),
    watch_changes INTEGER NOT NULL DEFAULT 0 CHECK (watch_changes >= 0),
    PRIMARY KEY (key_id, month)
) STRICT, WITHOUT ROWID
CREATE TABLE watch_counts (owner TEXT PRIMARY KEY, watches INTEGER NOT NULL) STRICT, WITHOUT ROWID
CREATE TABLE watch_history (
    number INTEGER PRIMARY KEY,
    watch INTEGER NOT NULL REFERENCES watches (number) ON DELETE CASCADE,
    at REAL NOT NULL,
    before TEXT,
    after TEXT,
    biz_status TEXT
) STRICT
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
) STRICT
CREATE TRIGGER watch_added AFTER INSERT ON watches BEGIN
    INSERT INTO watch_counts VALUES (new.owner, 1) ON CONFLICT DO UPDATE SET watches = watches + 1;
END
CREATE TRIGGER watch_removed AFTER DELETE ON watches BEGIN
    UPDATE watch_counts SET watches = watches - 1 WHERE owner = old.owner;
END
