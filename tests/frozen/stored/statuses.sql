application_id 1651921780
user_version 2
CREATE TABLE claims (b_no INTEGER PRIMARY KEY, run TEXT NOT NULL, until REAL NOT NULL) STRICT
CREATE TABLE statuses (
    b_no INTEGER PRIMARY KEY,
    biz_status TEXT NOT NULL CHECK (biz_status IN ('active', 'suspended', 'closed', 'unregistered')),
    since INTEGER,
    as_of INTEGER NOT NULL,
    taxation TEXT CHECK (taxation IN ('general', 'simplified', 'exempt')),
    merged INTEGER CHECK (merged IN (0, 1))
) STRICT
CREATE TABLE unanswered (b_no INTEGER PRIMARY KEY, day INTEGER NOT NULL) STRICT
CREATE TABLE usage (
    key TEXT NOT NULL,
    day INTEGER NOT NULL,
    numbers INTEGER NOT NULL CHECK (numbers >= 0),
    calls INTEGER NOT NULL CHECK (calls >= 0),
    exhausted INTEGER NOT NULL CHECK (exhausted IN (0, 1)),
    answered INTEGER NOT NULL DEFAULT 0 CHECK (answered IN (0, 1)),
    PRIMARY KEY (key, day)
) STRICT, WITHOUT ROWID
