"""A ledger file is found, looked at and locked before SQLite may touch it, and made only where there is none."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

from bizverify.errors import LedgerError
from bizverify.ledger.schema import APPLICATION_ID, DDL, MIGRATIONS, VERSION
from bizverify.storage.filesystem import PRIVATE, create_private, sync_folder
from bizverify.storage.network_filesystem import mount_table, network_file_system
from bizverify.storage.paths import state_directory

NAME: Final = "ledger.sqlite"
_MAGIC: Final = b"SQLite format 3\0"
_HEADER: Final = 100
_ELSEWHERE: Final = "or choose another with `ledger=`"
_RESTORE: Final = f"restore it from a backup, {_ELSEWHERE}"
_BUSY: Final = "is in use by another run; wait for it to end, or stop it"

_PRAGMAS: Final = (
    "PRAGMA locking_mode = EXCLUSIVE",  # before WAL: then no memory is shared with another process
    "PRAGMA synchronous = FULL",
    "PRAGMA fullfsync = ON",  # elsewhere than on macOS it means nothing
    "PRAGMA cache_size = -65536",
    "PRAGMA wal_autocheckpoint = 4000",
    "PRAGMA journal_size_limit = 67108864",
)


def ledger_path(given: Path | None) -> Path:
    """Where the ledger is: ``given``, ``BIZVERIFY_LEDGER``, or in the user's state directory (made, mode 0700).

    Links are followed, so that two names of one file are one ledger. Raises :class:`LedgerError` where the folder
    of a ledger that was named does not exist.
    """
    named = given or _of_environment()
    path = Path(os.path.realpath(named or state_directory() / NAME))
    try:
        if named is None:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        elif not path.parent.is_dir():
            raise LedgerError(f"{path}: the folder {path.parent} does not exist; create it first, {_ELSEWHERE}")
    except OSError as error:
        raise LedgerError(f"{path}: the folder cannot be used: {error.strerror}; repair it, {_ELSEWHERE}") from error
    return path


def locked(path: Path) -> FileLock:
    """Take the lock of the ledger, ``PATH.lock``, for this process alone; raise :class:`LedgerError` if it is taken."""
    refuse_network(path, mount_table())
    # a ledger may be opened in one thread and closed in another
    lock = FileLock(f"{path}.lock", timeout=0, mode=PRIVATE, thread_local=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise LedgerError(f"{path}: {_BUSY}") from error
    except OSError as error:
        reason = error.strerror or error
        raise LedgerError(f"{path}: cannot be locked: {reason}; make its folder writable, {_ELSEWHERE}") from error
    return lock


def refuse_network(path: Path, table: str) -> None:
    """Raise :class:`LedgerError` if the mount ``table`` says that ``path`` is on a network file system."""
    if kind := network_file_system(path.parent, table):
        raise LedgerError(
            f"{path}: is on a network file system ({kind}), where nothing keeps two runs apart; "
            "choose a folder on a local disk with `ledger=`"
        )


def opened(path: Path) -> tuple[sqlite3.Connection, bool]:
    """Return the one connection to the ledger, and whether it was made now. The lock is held by the caller.

    Raises :class:`LedgerError`.
    """
    with database_errors(path):
        killed = _wal(path).exists()
        try:
            created = not path.exists()
            if created:
                _create(path, killed)
            else:
                _inspect(path, killed)
        except OSError as error:
            reason = error.strerror or error
            raise LedgerError(f"{path}: cannot be opened: {reason}; make it writable, {_ELSEWHERE}") from error
        connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            _settle_down(connection, path)
            if killed:
                _check(connection, path)
            _migrate(connection)
        except BaseException:
            connection.close()
            raise
        return connection, created


@contextmanager
def database_errors(path: Path) -> Iterator[None]:
    """What SQLite complains of, as :class:`LedgerError` with the path and what to do."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise LedgerError(f"{path}: {_told(error)}") from error


def _told(error: sqlite3.DatabaseError) -> str:
    name = getattr(error, "sqlite_errorname", "")
    if name.startswith("SQLITE_FULL"):
        return "the disk is full, so nothing more was bought; free space and give the command again"
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return _BUSY
    if name.startswith("SQLITE_READONLY"):
        return f"is read-only; make it writable, {_ELSEWHERE}"
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return f"is damaged ({error}); {_RESTORE}"
    if name.startswith("SQLITE_CONSTRAINT"):
        return f"was used against its rules ({error}); this is a defect of bizverify, please report it"
    return f"cannot be used ({error}); look at the disk and give the command again"


def _of_environment() -> Path | None:
    given = os.environ.get("BIZVERIFY_LEDGER")
    return Path(given).expanduser() if given else None


def _wal(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def _create(path: Path, killed: bool) -> None:
    """Make an empty ledger under another name and give it its own when it is whole: half a ledger cannot appear."""
    if killed:
        raise LedgerError(
            f"{path}: is missing, but what was last written to it is there ({_wal(path).name}); {_RESTORE}"
        )
    unfinished = path.with_name(f"{path.name}.new")
    unfinished.unlink(missing_ok=True)
    os.close(create_private(unfinished))
    with closing(sqlite3.connect(unfinished, isolation_level=None)) as connection:
        connection.executescript(
            f"PRAGMA synchronous = FULL; BEGIN; {DDL}"
            f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION}; COMMIT;"
        )
    unfinished.rename(path)
    sync_folder(path.parent)


def _inspect(path: Path, killed: bool) -> None:
    """Raise :class:`LedgerError` unless the file's header says a whole ledger of ours. SQLite has not opened it yet."""
    if not path.is_file():
        raise LedgerError(f"{path}: is not a file; name a file with `ledger=`")
    with path.open("r+b") as file:
        header, size = file.read(_HEADER), file.seek(0, os.SEEK_END)
    if not size:
        raise LedgerError(f"{path}: is empty, so what it knew is lost; {_RESTORE}, or delete it to begin a new one")
    if len(header) < _HEADER or not header.startswith(_MAGIC):
        raise LedgerError(f"{path}: is not a ledger (no SQLite database); {_RESTORE}")
    if int.from_bytes(header[68:72]) != APPLICATION_ID:
        raise LedgerError(f"{path}: is a database of another application; choose another file with `ledger=`")
    page = int.from_bytes(header[16:18])
    expected = int.from_bytes(header[28:32]) * (65536 if page == 1 else page)
    if size < expected and not killed:  # what a killed process wrote is checked page by page later
        raise LedgerError(f"{path}: is cut short ({size:,} bytes of {expected:,}); {_RESTORE}")


def _settle_down(connection: sqlite3.Connection, path: Path) -> None:
    """Take SQLite's own lock too, for good, and set how durable a commit is."""
    for pragma in _PRAGMAS:
        connection.execute(pragma)
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > VERSION:
        raise LedgerError(
            f"{path}: was written by a newer bizverify (ledger {version}, not {VERSION}); update this one"
        )
    if connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
        raise LedgerError(f"{path}: cannot keep a write-ahead log; choose a folder on a local disk with `ledger=`")


def _migrate(connection: sqlite3.Connection) -> None:
    """Make an older ledger one of this version, a version at a time and each in one transaction."""
    while (version := connection.execute("PRAGMA user_version").fetchone()[0]) < VERSION:
        try:
            connection.executescript(
                f"BEGIN IMMEDIATE; {MIGRATIONS[version]} PRAGMA user_version = {version + 1}; COMMIT;"
            )
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def _check(connection: sqlite3.Connection, path: Path) -> None:
    """After a process was killed, look through the whole file; raise :class:`LedgerError` if it is damaged."""
    found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise LedgerError(f"{path}: is damaged ({' '.join(found.split())}); {_RESTORE}")
