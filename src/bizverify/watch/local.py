"""A watch list in a file of the user's own: made, looked at and opened, and held by one check at a time."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from filelock import FileLock, Timeout

from bizverify.errors import StoreError
from bizverify.execute.ledger.mounts import mount_table, network_file_system
from bizverify.state import state_directory
from bizverify.watch.schema import DDL

ENV: Final = "BIZVERIFY_WATCH"
NAME: Final = "watch.sqlite"
OWNER: Final = "local"
"""Whose list it is, in tables that a server shares among its keys."""

APPLICATION_ID: Final = 0x62765763  # "bvWc"
VERSION: Final = 1
_MAGIC: Final = b"SQLite format 3\0"
_PRIVATE: Final = 0o600
_WAIT: Final = 10.0
"""Seconds that a command waits for another one to finish its commit."""


def watch_path(given: str | Path | None = None) -> Path:
    """Where the local list is: ``given``, ``BIZVERIFY_WATCH``, or ``watch.sqlite`` in the user's state directory.

    Links are followed, so that two names of one file are one list.
    """
    named = given or os.environ.get(ENV)
    path = Path(named).expanduser() if named else state_directory() / NAME
    return Path(os.path.realpath(path))


class LocalFile:
    """A watch file, open: ``with LocalFile(path) as file: file.write(…)``.

    It is made, mode 0600, where it is not there, unless ``create`` is false. Commands may use it beside each other;
    what one of them writes is written as a whole or not at all. Raises :class:`StoreError`.
    """

    def __init__(self, path: Path, *, create: bool = True) -> None:
        self.path = path
        self._create = create
        self._connection: sqlite3.Connection | None = None

    def __enter__(self) -> Self:
        with store_errors(self.path):
            if kind := network_file_system(self.path.parent, mount_table()):
                raise StoreError(
                    f"{self.path}: is on a network file system ({kind}); choose a file on a local disk with --local"
                )
            if not self.path.exists():
                self._make()
            self._connection = _connected(self.path)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.connection.close()
        self._connection = None

    @property
    def connection(self) -> sqlite3.Connection:
        """The open connection, for reading."""
        assert self._connection is not None  # noqa: S101 - only this package opens it
        return self._connection

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """One state of the file for as long as the block lasts."""
        with store_errors(self.path):
            self.connection.execute("BEGIN")
            try:
                yield self.connection
            finally:
                self.connection.execute("ROLLBACK")

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction: on the disk when the block ends, undone if it raises."""
        with store_errors(self.path):
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield self.connection
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                raise

    def _make(self) -> None:
        if not self._create:
            raise StoreError(
                f"{self.path}: there is no watch file; begin one with `bizverify watch add` or `bizverify watch sync`, "
                f"or name another with --local or {ENV}"
            )
        default = state_directory() / NAME
        if self.path == Path(os.path.realpath(default)):
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        elif not self.path.parent.is_dir():
            raise StoreError(f"{self.path}: the folder {self.path.parent} does not exist; create it first")
        _make(self.path)


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold ``PATH.lock``, by which one check at a time works on a list; raise :class:`StoreError` if it is taken."""
    lock = FileLock(f"{path}.lock", timeout=0, mode=_PRIVATE, thread_local=False)
    with store_errors(path):
        try:
            lock.acquire()
        except Timeout as error:
            raise StoreError(f"{path}: another check of this list is running; nothing was done") from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def store_errors(path: Path) -> Iterator[None]:
    """What SQLite or the disk complains of, as :class:`StoreError` with the path and what to do."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise StoreError(f"{path}: {_told(error)}") from error
    except OSError as error:
        raise StoreError(f"{path}: cannot be used: {error.strerror or error}; check --local") from error


def _connected(path: Path) -> sqlite3.Connection:
    if not path.is_file():
        raise StoreError(f"{path}: is not a file; name a watch file with --local")
    if not path.stat().st_size:
        raise StoreError(f"{path}: is empty, so what was watched is lost; restore it from a backup, or delete it")
    with path.open("rb") as opened:
        if opened.read(len(_MAGIC)) != _MAGIC:
            raise StoreError(f"{path}: is no watch file; name another with --local")
    connection = sqlite3.connect(  # a webhook is waited for in another thread, which writes down what came of it
        f"{path.as_uri()}?mode=rw", uri=True, timeout=_WAIT, isolation_level=None, check_same_thread=False
    )
    try:
        if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
            raise StoreError(f"{path}: is a database, but no watch file; choose another with --local")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version != VERSION:
            raise StoreError(
                f"{path}: was written by another bizverify (version {version}, not {VERSION}); update this one"
            )
        for pragma in ("foreign_keys = ON", "synchronous = FULL", "fullfsync = ON", "journal_mode = TRUNCATE"):
            connection.execute(f"PRAGMA {pragma}")
    except BaseException:
        connection.close()
        raise
    return connection


def _make(path: Path) -> None:
    """Make an empty list beside and give it its name when it is whole, unless another process was faster."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.new")
    unfinished.unlink(missing_ok=True)
    os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY, _PRIVATE))
    try:
        with closing(sqlite3.connect(unfinished, isolation_level=None)) as connection:
            connection.executescript(
                f"PRAGMA synchronous = FULL; BEGIN; {DDL}"
                f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION}; COMMIT;"
            )
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


def _told(error: sqlite3.DatabaseError) -> str:
    name = getattr(error, "sqlite_errorname", "")
    if name.startswith("SQLITE_FULL"):
        return "the disk is full, so nothing was written; free space and give the command again"
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return "another process is writing to it for long; try again"
    if name.startswith("SQLITE_READONLY"):
        return "is read-only; make it writable"
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return f"is damaged, or no SQLite database ({error}); restore it from a backup"
    return f"cannot be used ({error}); look at the disk"
