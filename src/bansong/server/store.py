"""The database of a server. One server owns it; ``bansong keys`` and ``bansong notices`` write to it, too."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from contextvars import Context, copy_context
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, NamedTuple, TypeVar

import anyio.to_thread
from filelock import FileLock

from bansong.base.errors import Problem, StoreError
from bansong.base.messages import gettext, gettext_noop
from bansong.base.sqlite import FileKind
from bansong.watch.store import DDL as WATCH_DDL
from bansong.watch.store import MIGRATIONS as WATCH_MIGRATIONS

DATABASE_PARTLY_MISSING: Final = Problem(
    "server.database_partly_missing",
    "{path}: is missing, but files that belong to it are in {folder}; put it back or restore it from a "
    "backup, or move that folder away to begin a new one",
)
DATABASE_MISSING: Final = Problem(
    "server.database_missing",
    "{path}: does not exist; check `db=`, put it back if it was moved, or make one with `bansong keys create`",
)

APPLICATION_ID: Final = 0x42565352  # ``BVSR``

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
# `turn` counts up over all keys: the key with the lowest `turn` has waited longest for the start of a job.
# `audit` was a log of operators' actions. It now has only the requests of `keys erase` to a running server.
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

# SQLite cannot drop a UNIQUE column, so `keys` is made anew. References to it by name stay valid.
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

# the migrations of watch lists have other numbers in a watch file
MIGRATIONS: Final = {1: WATCH_MIGRATIONS[1], 2: WATCH_MIGRATIONS[2], 3: _VERSION_4, 4: _VERSION_5, 5: _VERSION_6}

SERVER_FILE: Final = FileKind(
    gettext_noop("the file of a bansong server"), "db", APPLICATION_ID, DDL, MIGRATIONS, StoreError
)


def open_server_file(path: Path, *, create: bool = True, writing: bool = True) -> sqlite3.Connection:
    """Open or create the database; raise :class:`StoreError` if it is missing but its data folder has files."""
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
    """Raise :class:`StoreError` if the data folder has files, which means that the database beside it was lost."""
    folder = files_folder(path)
    if any(found.is_file() for found in folder.rglob("*")):
        raise StoreError(DATABASE_PARTLY_MISSING, path=path, folder=folder)


@contextmanager
def hold_server_file(path: Path) -> Iterator[sqlite3.Connection]:
    """Lock and open the database while no server runs on it."""
    lock = lock_server_file(path)
    try:
        with closing(open_server_file(path, create=False)) as db:
            yield db
    finally:
        lock.release()


def lock_server_file(path: Path) -> FileLock:
    """Lock the database against a second server; raise :class:`StoreError` if it is in use."""
    return SERVER_FILE.lock(
        Path(os.path.realpath(path)), gettext("another server is running on it; stop that one first")
    )


T = TypeVar("T")
Change = Callable[[sqlite3.Connection], T]  # runs in a savepoint, which is rolled back if it raises

_CHANGES_PER_COMMIT: Final = 512
_CHECK_INTERVAL_S: Final = 1.0  # anybody may call :meth:`Store.check`, so it writes only this often


class _PendingChange(NamedTuple):
    change: Change[Any]
    future: asyncio.Future[Any]
    context: Context  # carries the language of the request into the writer


class Store:
    """The open database. One thread makes all changes, in the order of :meth:`write`; other threads read."""

    def __init__(self, path: Path, on_commit: Callable[[float], None] = lambda _: None) -> None:
        self.path = path
        self._on_commit = on_commit
        self._connection = open_server_file(path)
        self._probe_write()
        self._written = time.monotonic()
        self._queue: SimpleQueue[_PendingChange | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="bansong-store", daemon=True)
        self._local = threading.local()
        self._readers: list[sqlite3.Connection] = []
        self._thread.start()

    async def write(self, change: Change[T]) -> T:
        """Run ``change`` and return its result once it is on disk. A cancelled call may still take effect."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.put(_PendingChange(change, future, copy_context()))
        return await future

    async def read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        return await anyio.to_thread.run_sync(self._query, query)

    async def check(self) -> None:
        """Raise :class:`StoreError` if the database cannot be read or written."""
        if time.monotonic() - self._written > _CHECK_INTERVAL_S:
            await self.write(_write_version)
        await self.read(lambda db: db.execute("SELECT 1 FROM keys LIMIT 1").fetchone())

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()
        for reader in self._readers:
            reader.close()

    def _probe_write(self) -> None:
        """Fail at the start, not at the first request, if the database cannot be written."""
        try:
            with SERVER_FILE.errors(self.path):
                self._connection.execute("BEGIN IMMEDIATE")
                _write_version(self._connection)
                self._connection.execute("COMMIT")
        except BaseException:
            self._connection.close()
            raise

    def _query(self, query: Callable[[sqlite3.Connection], T]) -> T:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = open_server_file(self.path, create=False, writing=False)
            self._local.connection = connection
            self._readers.append(connection)
        with SERVER_FILE.errors(self.path):
            return query(connection)

    def _serve(self) -> None:
        going = True
        while going:
            group = [self._queue.get()]
            while len(group) < _CHANGES_PER_COMMIT and not self._queue.empty():
                group.append(self._queue.get())
            asked = [one for one in group if one is not None]
            going = len(asked) == len(group)
            if asked:
                self._commit(asked)
        self._connection.close()

    def _commit(self, group: list[_PendingChange]) -> None:
        """Run changes in one transaction. A change that raises is rolled back alone, unless the database failed."""
        results: list[tuple[_PendingChange, Any, BaseException | None]] = []
        started = time.perf_counter()
        try:
            with SERVER_FILE.errors(self.path):
                self._connection.execute("BEGIN IMMEDIATE")
                results = [self._carry_out(asked) for asked in group]
                self._connection.execute("COMMIT")
            self._written = time.monotonic()
        except BaseException as error:
            self._roll_back()
            results = [(asked, None, error) for asked in group]
        self._on_commit(time.perf_counter() - started)
        with suppress(RuntimeError):  # the loop is closed
            group[0].future.get_loop().call_soon_threadsafe(_resolve_futures, results)

    def _roll_back(self) -> None:
        """Roll back. If that fails, reopen the database, which rolls back from the journal."""
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            with suppress(StoreError, sqlite3.Error):  # the next change fails then, and this is tried again
                newer = open_server_file(self.path, create=False)
                self._connection.close()
                self._connection = newer

    def _carry_out(self, pending: _PendingChange) -> tuple[_PendingChange, Any, BaseException | None]:
        self._connection.execute("SAVEPOINT change")
        try:
            result = pending.context.run(pending.change, self._connection)
        except BaseException as error:
            if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.IntegrityError):
                raise  # the disk or the file failed, so the whole group fails
            self._connection.execute("ROLLBACK TO change")
            self._connection.execute("RELEASE change")
            return pending, None, error
        self._connection.execute("RELEASE change")
        return pending, result, None


def _write_version(db: sqlite3.Connection) -> None:
    """Write an unchanged value, to fail if the database cannot be written."""
    db.execute(f"PRAGMA user_version = {SERVER_FILE.version}")


def _resolve_futures(results: list[tuple[_PendingChange, Any, BaseException | None]]) -> None:
    for asked, result, error in results:
        if asked.future.done():
            continue
        if error is None:
            asked.future.set_result(result)
        else:
            asked.future.set_exception(error)
