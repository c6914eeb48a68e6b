"""The server's file is made, looked at and opened; one server at a time has it, and ``bizverify keys`` beside it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

from bizverify.errors import StoreError
from bizverify.execute.ledger.mounts import mount_table, network_file_system
from bizverify.server.store.schema import APPLICATION_ID, DDL, VERSION

_PRIVATE: Final = 0o600
_WAIT: Final = 10_000
"""Milliseconds that a connection waits for the other one to finish its commit."""


def connected(path: Path, *, create: bool = True, writing: bool = True) -> sqlite3.Connection:
    """Open the server's file, made (mode 0600) if it is not there and ``create`` says so; raise :class:`StoreError`."""
    path = Path(os.path.realpath(path))
    with store_errors(path):
        if kind := network_file_system(path.parent, mount_table()):
            raise StoreError(f"{path}: is on a network file system ({kind}); choose a file on a local disk with --db")
        if not path.exists():
            if not create:
                raise StoreError(f"{path}: does not exist; check --db, or make one with `bizverify keys create`")
            _create(path)
        mode = "rw" if writing else "ro"
        connection = sqlite3.connect(
            f"{path.as_uri()}?mode={mode}",
            uri=True,
            timeout=_WAIT / 1000,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            _settle_down(connection, path, writing=writing)
        except BaseException:
            connection.close()
            raise
        return connection


@contextmanager
def store_errors(path: Path) -> Iterator[None]:
    """What SQLite or the disk complains of, as :class:`StoreError` with the path and what to do."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise StoreError(f"{path}: {_told(error)}") from error
    except OSError as error:
        raise StoreError(f"{path}: cannot be used: {error.strerror or error}; check --db") from error


def server_lock(path: Path) -> FileLock:
    """Take ``PATH.lock``, by which one server alone works on a file; raise :class:`StoreError` if it is taken."""
    lock = FileLock(f"{os.path.realpath(path)}.lock", timeout=0, mode=_PRIVATE, thread_local=False)
    with store_errors(path):
        try:
            lock.acquire()
        except Timeout as error:
            raise StoreError(f"{path}: another server is running on it; stop that one first") from error
    return lock


def _create(path: Path) -> None:
    """Make an empty file beside and give it its name when it is whole, unless another process was faster."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.new")
    unfinished.unlink(missing_ok=True)
    os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY, _PRIVATE))
    try:
        connection = sqlite3.connect(unfinished, isolation_level=None)
        try:
            connection.executescript(
                f"PRAGMA synchronous = FULL; BEGIN; {DDL}"
                f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION}; COMMIT;"
            )
        finally:
            connection.close()
        try:
            os.link(unfinished, path)
        except FileExistsError:
            return
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    finally:
        unfinished.unlink(missing_ok=True)


def _settle_down(connection: sqlite3.Connection, path: Path, *, writing: bool) -> None:
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise StoreError(f"{path}: is not the file of a bizverify server; choose another with --db")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version != VERSION:
        raise StoreError(
            f"{path}: was written by another bizverify (version {version}, not {VERSION}); update this one"
        )
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA cache_size = -65536")
    if writing:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA fullfsync = ON")
        connection.execute("PRAGMA journal_mode = TRUNCATE")


def _told(error: sqlite3.DatabaseError) -> str:
    name = getattr(error, "sqlite_errorname", "")
    if name.startswith("SQLITE_FULL"):
        return "the disk is full, so nothing was written; free space"
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return "another process is writing to it for long; try again"
    if name.startswith("SQLITE_READONLY"):
        return "is read-only; make it writable"
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return f"is damaged, or no SQLite database ({error}); restore it from a backup"
    return f"cannot be used ({error}); look at the disk"
