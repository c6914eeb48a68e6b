"""A SQLite file of ours that several processes may write, one after the other: made, looked at, opened, held.

A rollback journal, not a write-ahead log: releases of SQLite before 3.51.3 can lose commits of the latter when two
connections check a log point at once (decision 017). The ledger, which one process has alone, is opened by itself.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

from bizverify.errors import StoreError
from bizverify.storage.filesystem import PRIVATE, create_private, sync_folder
from bizverify.storage.network_filesystem import mount_table, network_file_system

_MAGIC: Final = b"SQLite format 3\0"
_WAIT: Final = 10.0
"""Seconds that a connection waits for another one to finish its commit."""
_WRITING: Final = ("synchronous = FULL", "fullfsync = ON", "journal_mode = TRUNCATE")


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of file: what it is called, the ``option`` that names one, and what it holds.

    ``application_id`` stands in its header, so that no other database is taken for one; ``version`` beside it.
    """

    what: str
    option: str
    application_id: int
    version: int
    ddl: str

    def make(self, path: Path) -> None:
        """Make an empty file, mode 0600, beside, and give it its name when it is whole.

        Another process that was faster has made it. Raises :class:`StoreError`.
        """
        unfinished = path.with_name(f"{path.name}.{os.getpid()}.new")
        with self.errors(path):
            self._local(path)
            unfinished.unlink(missing_ok=True)
            os.close(create_private(unfinished))
            try:
                self._fill(unfinished)
                try:
                    os.link(unfinished, path)
                except FileExistsError:
                    return
                sync_folder(path.parent)
            finally:
                unfinished.unlink(missing_ok=True)

    def open(self, path: Path, *, writing: bool = True) -> sqlite3.Connection:
        """Open a file that is there, for any thread, without transactions begun by themselves.

        Raises :class:`StoreError` where it is of another kind or version, damaged, or on a network file system.
        """
        with self.errors(path):
            self._local(path)
            self._inspect(path)
            mode = "rw" if writing else "ro"
            connection = sqlite3.connect(
                f"{path.as_uri()}?mode={mode}", uri=True, timeout=_WAIT, isolation_level=None, check_same_thread=False
            )
            try:
                self._settle_down(connection, path, writing=writing)
            except BaseException:
                connection.close()
                raise
            return connection

    def held(self, path: Path, taken: str) -> FileLock:
        """Take ``PATH.lock`` for this process alone; raise :class:`StoreError`, saying ``taken``, if another has it."""
        lock = FileLock(f"{path}.lock", timeout=0, mode=PRIVATE, thread_local=False)
        with self.errors(path):
            path.parent.stat()  # the lock would make the folder, or take one that cannot be made for another's lock
            try:
                lock.acquire()
            except Timeout as error:
                raise StoreError(f"{path}: {taken}") from error
        return lock

    @contextmanager
    def errors(self, path: Path) -> Iterator[None]:
        """What SQLite or the disk complains of, as :class:`StoreError` with the path and what to do."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise StoreError(f"{path}: {_told(error)}") from error
        except OSError as error:
            raise StoreError(f"{path}: cannot be used: {error.strerror or error}; check {self.option}") from error

    def _local(self, path: Path) -> None:
        if kind := network_file_system(path.parent, mount_table()):
            raise StoreError(
                f"{path}: is on a network file system ({kind}); choose a file on a local disk with {self.option}"
            )

    def _fill(self, path: Path) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.executescript(
                f"PRAGMA synchronous = FULL; BEGIN; {self.ddl}"
                f"PRAGMA application_id = {self.application_id}; PRAGMA user_version = {self.version}; COMMIT;"
            )

    def _inspect(self, path: Path) -> None:
        if not path.is_file():
            raise StoreError(f"{path}: is not a file; name {self.what} with {self.option}")
        if not path.stat().st_size:
            raise StoreError(f"{path}: is empty, so what it held is lost; restore it from a backup, or delete it")
        with path.open("rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                raise StoreError(f"{path}: is not {self.what} (no SQLite database); name another with {self.option}")

    def _settle_down(self, connection: sqlite3.Connection, path: Path, *, writing: bool) -> None:
        if connection.execute("PRAGMA application_id").fetchone()[0] != self.application_id:
            raise StoreError(f"{path}: is a database, but not {self.what}; choose another with {self.option}")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version != self.version:
            newer = version > self.version
            raise StoreError(
                f"{path}: was written by {'a newer' if newer else 'an older'} bizverify (version {version}, not "
                f"{self.version}) and is left as it is; {'update this one' if newer else 'open it with that one'}"
            )
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA cache_size = -65536")
        for pragma in _WRITING if writing else ():
            connection.execute(f"PRAGMA {pragma}")


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
