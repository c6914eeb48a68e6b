"""Find, make, open and migrate SQLite databases: ledgers, watch lists, statuses, the server's."""
# A file is checked before SQLite opens it, renamed into place once complete, and migrated in numbered steps (decision
# 026). 009: exclusive files have one process and a write-ahead log; 017: shared ones have a rollback journal.

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Final
from weakref import WeakSet, WeakValueDictionary

from bansong.base.errors import LedgerError, Problem, StoreError
from bansong.base.files import (
    PRIVATE,
    create_private,
    make_folders,
    mount_table,
    network_file_system,
    state_directory,
    sync_folder,
    variable,
)
from bansong.base.messages import (
    Listed,
    Option,
    Phrase,
    describe_library_error,
    describe_os_error,
    gettext,
    gettext_noop,
)

if TYPE_CHECKING:
    from filelock import FileLock


class Connection(sqlite3.Connection):
    """A SQLite connection."""

    file: tuple[int, int] | None = None  # device and inode, while the connection is open

    def close(self) -> None:
        super().close()
        self.file = None


OPENING: Final = Lock()  # held while a file is read and its connection made: closing another handle drops POSIX locks
_CONNECTIONS: Final[WeakSet[Connection]] = WeakSet()


def is_open_here(path: Path) -> bool:
    """Whether this process has the file open. The caller holds :data:`OPENING`."""
    try:
        file = _identity(path)
    except OSError:
        return False
    return any(connection.file == file for connection in _CONNECTIONS)


def connect(path: Path, *, writing: bool, timeout: float) -> Connection:
    """Open a connection for any thread, in autocommit mode. The caller holds :data:`OPENING`."""
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={'rw' if writing else 'ro'}",
        uri=True,
        timeout=timeout,
        isolation_level=None,
        check_same_thread=False,
        factory=Connection,
    )
    connection.file = _identity(path)
    _CONNECTIONS.add(connection)
    return connection


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


SQLITE_TOO_OLD: Final = Problem(
    "storage.sqlite_too_old",
    "{path}: {noun} needs SQLite {needed} or newer, and this Python has {sqlite_version}; "
    "use a Python that comes with a newer SQLite, or update SQLite",
)
NETWORK_FILE_SYSTEM: Final = Problem(
    "storage.network_file_system",
    "{path}: is on a network file system ({kind}), where nothing keeps two processes apart; "
    "choose a file on a local disk with {parameter}",
)
NOT_A_FILE: Final = Problem("storage.not_a_file", "{path}: is not a file; name {noun} with {parameter}")
DATABASE_EMPTY: Final = Problem(
    "storage.database_empty", "{path}: is empty, so what it held is lost; {restore}, or delete it to begin a new one"
)
NOT_A_DATABASE: Final = Problem("storage.not_a_database", "{path}: is not {noun} (no SQLite database); {restore}")
FOREIGN_DATABASE: Final = Problem(
    "storage.foreign_database", "{path}: is a database of another application, not {noun}; {choose}"
)
DATABASE_CUT_SHORT: Final = Problem(
    "storage.database_cut_short", "{path}: is cut short ({size:,} bytes of {expected:,}); {restore}"
)
VERSION_TOO_NEW: Final = Problem(
    "storage.version_too_new",
    "{path}: was written by a newer bansong (version {version}, not {known}) and is left as it is; update this one",
)
VERSION_IMPOSSIBLE: Final = Problem(
    "storage.version_impossible", "{path}: has version {version}, which no bansong writes; {restore}"
)
DATABASE_MISSING: Final = Problem(
    "storage.database_missing", "{path}: is missing, but what was last written to it is there ({name}); {restore}"
)
JOURNAL_MODE_UNAVAILABLE: Final = Problem(
    "storage.journal_mode_unavailable", "{path}: cannot keep a {journal} journal; choose a folder on a local disk"
)
FOLDER_MISSING: Final = Problem(
    "storage.folder_missing", "{path}: the folder {parent} does not exist; create it first, or {choose}"
)

_MAGIC: Final = b"SQLite format 3\0"
_HEADER_BYTES: Final = 100
_IN_USE: Final = ("SQLITE_BUSY", "SQLITE_LOCKED")
_LOCK_TIMEOUT_S: Final = 10.0  # wait for commits and migrations of other processes
_PRAGMAS: Final = ("synchronous = FULL", "fullfsync = ON", "cache_size = -65536")  # fullfsync: for macOS
_EXCLUSIVE: Final = (
    "locking_mode = EXCLUSIVE",  # first: an earlier read would create a `-shm` file for shared memory
    "wal_autocheckpoint = 4000",
    "journal_size_limit = 67108864",
)
_LOCKS: Final[WeakValueDictionary[Path, FileLock]] = WeakValueDictionary()  # locks held by this process, by file
_MIGRATION: Final = threading.Lock()  # a second thread must not migrate: it would find the lock of its own process


def is_in_use(error: BaseException) -> bool:
    """Whether an error means that another process holds the file."""
    from filelock import Timeout  # takes 8 ms; only files that are written are locked

    cause = error.__cause__
    return isinstance(cause, Timeout) or getattr(cause, "sqlite_errorname", "").startswith(_IN_USE)


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of SQLite database: its name and parameter in messages, its tables, its migrations."""

    noun: str
    parameter: str
    application_id: int  # identifies the file, in its header
    ddl: str  # of the newest version
    migrations: Mapping[int, str]  # ``n``: from version ``n`` to ``n + 1``, in one transaction
    error: type[LedgerError | StoreError]
    exclusive: bool = False  # one process locks it before opening
    variable: str = ""  # with ``default``: the file if none is given
    default: str = ""
    busy: str = gettext_noop("another process is writing to it for long; try again")
    unwritten: str = gettext_noop("nothing was written; free space")
    # oldest SQLite for ``ddl`` and ``migrations``; STRICT tables came with 3.37
    minimum: tuple[int, int, int] = (3, 37, 0)

    @property
    def version(self) -> int:
        return 1 + len(self.migrations)

    @property
    def _choose(self) -> Phrase:
        return Phrase("choose another with {parameter}", parameter=Option(self.parameter))

    @property
    def _restore(self) -> Phrase:
        return Phrase("restore it from a backup, or {choose}", choose=self._choose)

    def find(self, given: str | Path | None) -> Path:
        """Return the given path, else the environment's, else the default, with links resolved."""
        named = given or variable(self.variable)
        return Path(os.path.realpath(Path(named).expanduser() if named else state_directory() / self.default))

    def prepare_folder(self, path: Path) -> None:
        """Create the state directory (0700) for a file in it; raise ``error`` if any other folder is missing."""
        with self.errors(path):
            if path == self.find(state_directory() / self.default):
                make_folders(path.parent)
            elif not path.parent.is_dir():
                raise self.error(FOLDER_MISSING, path=path, parent=path.parent, choose=self._choose)

    def lock(self, path: Path, taken: str, wait: float | None = None) -> FileLock:
        """Take ``PATH.lock``, or raise ``error`` with the text ``taken``; wait 10 s if the file needs a migration."""
        from filelock import FileLock, Timeout

        is_outdated = 0 < self.stored_version(path) < self.version
        seconds = wait if wait is not None else _LOCK_TIMEOUT_S if is_outdated else 0
        # a file may be opened in one thread and closed in another
        lock = FileLock(f"{path}.lock", timeout=seconds, mode=PRIVATE, thread_local=False)
        with self.errors(path):
            self._refuse_network_file_system(path)
            path.parent.stat()  # FileLock would create a missing folder, or report it as a taken lock
            try:
                lock.acquire()
            except Timeout as error:
                raise self.error(f"{path}: {taken}") from error
        _LOCKS[path] = lock
        return lock

    def ensure(self, path: Path) -> bool:
        """Create the database (and the state directory) if it is missing; return whether it was missing."""
        with self.errors(path):
            if path.exists():
                return False
            self.prepare_folder(path)
            self.make(path)
            return True

    def make(self, path: Path) -> None:
        """Create an empty database (0600) under another name and rename it, unless another process was first."""
        unfinished = path.with_name(f"{path.name}.new" if self.exclusive else f"{path.name}.{os.getpid()}.new")
        with self.errors(path):
            self._refuse_old_sqlite(path)
            self._refuse_network_file_system(path)
            if self.exclusive and _log_of(path).exists():
                raise self.error(DATABASE_MISSING, path=path, name=_log_of(path).name, restore=self._restore)
            unfinished.unlink(missing_ok=True)
            os.close(create_private(unfinished))
            try:
                with closing(sqlite3.connect(unfinished, isolation_level=None)) as connection:
                    connection.executescript(
                        f"PRAGMA synchronous = FULL; BEGIN; {self.ddl}"
                        f"PRAGMA application_id = {self.application_id}; PRAGMA user_version = {self.version}; COMMIT;"
                    )
                if self.exclusive:
                    unfinished.rename(path)
                else:
                    try:
                        os.link(unfinished, path)
                    except FileExistsError:
                        return
                sync_folder(path.parent)
            finally:
                unfinished.unlink(missing_ok=True)

    def open(self, path: Path, *, writing: bool = True) -> sqlite3.Connection:
        """Open an existing file for any thread, in autocommit mode. Older versions are migrated."""
        with self.errors(path):
            self._refuse_old_sqlite(path)
            self._refuse_network_file_system(path)
            killed = self.exclusive and _log_of(path).exists()
            with OPENING:
                if not is_open_here(path):
                    self._inspect_header(path, killed=killed)
                connection = connect(path, writing=writing, timeout=0 if self.exclusive else _LOCK_TIMEOUT_S)
            try:
                self._settle_down(connection, path, writing=writing, killed=killed)
            except BaseException:
                connection.close()
                raise
            return connection

    @contextmanager
    def errors(self, path: Path) -> Iterator[None]:
        """Turn errors of SQLite and the disk into ``error``, with path and remedy."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise self.error(Listed([path, self._explain(error)], ": ")) from error
        except OSError as error:
            advice = Phrase("make it writable, or ") if isinstance(error, PermissionError) else ""
            reason = Phrase(
                "cannot be used: {reason}; {advice}check {parameter}",
                reason=describe_os_error(error),
                advice=advice,
                parameter=Option(self.parameter),
            )
            raise self.error(Listed([path, reason], ": ")) from error

    def _explain(self, error: sqlite3.DatabaseError) -> Phrase:
        name = getattr(error, "sqlite_errorname", "")
        if name.startswith("SQLITE_FULL"):
            return Phrase("the disk is full, so {unwritten}", unwritten=Phrase(self.unwritten))
        if name.startswith(_IN_USE):
            return Phrase(self.busy)
        if name == "SQLITE_READONLY_DBMOVED":
            return Phrase("was moved, deleted or replaced while it was in use; put it back")
        if name.startswith("SQLITE_READONLY"):
            return Phrase("is read-only; make it writable, or {choose}", choose=self._choose)
        if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
            return Phrase("is damaged ({error}); {restore}", error=error, restore=self._restore)
        said = gettext_noop("cannot be used ({error}); look at the disk, and try again")
        if name.startswith("SQLITE_CONSTRAINT"):
            said = gettext_noop("was used against its rules ({error}); this is a defect of bansong, please report it")
        return Phrase(said, error=describe_library_error(error))

    def _refuse_old_sqlite(self, path: Path) -> None:
        if sqlite3.sqlite_version_info < self.minimum:
            needed = ".".join(map(str, self.minimum[:2]))
            raise self.error(
                SQLITE_TOO_OLD, path=path, noun=Phrase(self.noun), needed=needed, sqlite_version=sqlite3.sqlite_version
            )

    def _refuse_network_file_system(self, path: Path) -> None:
        if kind := network_file_system(path.parent, mount_table()):
            raise self.error(NETWORK_FILE_SYSTEM, path=path, kind=kind, parameter=Option(self.parameter))

    def _inspect_header(self, path: Path, *, killed: bool) -> None:
        if not path.is_file():
            raise self.error(NOT_A_FILE, path=path, noun=Phrase(self.noun), parameter=Option(self.parameter))
        with path.open("r+b" if self.exclusive else "rb") as file:
            header, size = file.read(_HEADER_BYTES), file.seek(0, os.SEEK_END)
        if not size:
            raise self.error(DATABASE_EMPTY, path=path, restore=self._restore)
        if len(header) < _HEADER_BYTES or not header.startswith(_MAGIC):
            raise self.error(NOT_A_DATABASE, path=path, noun=Phrase(self.noun), restore=self._restore)
        if int.from_bytes(header[68:72]) != self.application_id:
            raise self.error(FOREIGN_DATABASE, path=path, noun=Phrase(self.noun), choose=self._choose)
        page = int.from_bytes(header[16:18])
        expected = int.from_bytes(header[28:32]) * (65536 if page == 1 else page)
        # after a kill, each page is checked later; a shared file may be growing now
        if self.exclusive and size < expected and not killed:
            raise self.error(DATABASE_CUT_SHORT, path=path, size=size, expected=expected, restore=self._restore)

    def _settle_down(self, connection: sqlite3.Connection, path: Path, *, writing: bool, killed: bool) -> None:
        for pragma in (*(_EXCLUSIVE if self.exclusive else ()), *_PRAGMAS):
            connection.execute(f"PRAGMA {pragma}")
        version = self._read_version(connection, path)
        if version < self.version and not writing:
            self.open(path).close()
        if writing:
            journal = "wal" if self.exclusive else "truncate"
            if connection.execute(f"PRAGMA journal_mode = {journal}").fetchone()[0] != journal:
                raise self.error(JOURNAL_MODE_UNAVAILABLE, path=path, journal=journal)
            if killed:
                self._check_pages(connection, path)
            if version < self.version:
                self._migrate(connection, path)
        if not self.exclusive:
            connection.execute("PRAGMA foreign_keys = ON")

    def _read_version(self, connection: sqlite3.Connection, path: Path) -> int:
        version: int = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > self.version:
            raise self.error(VERSION_TOO_NEW, path=path, version=version, known=self.version)
        if version < 1:
            raise self.error(VERSION_IMPOSSIBLE, path=path, version=version, restore=self._restore)
        return version

    def _migrate(self, connection: sqlite3.Connection, path: Path) -> None:
        with _MIGRATION, ExitStack() as stack:
            ours = _LOCKS.get(path)
            if ours is None or not ours.is_locked:
                stack.enter_context(self._hold_alone(connection, path))
            connection.execute("PRAGMA foreign_keys = OFF")  # a step may recreate a table that others refer to
            while (version := self._read_version(connection, path)) < self.version:
                try:
                    connection.executescript(
                        f"BEGIN IMMEDIATE; {self.migrations[version]} PRAGMA user_version = {version + 1}; COMMIT;"
                    )
                except BaseException:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    raise

    @contextmanager
    def _hold_alone(self, connection: sqlite3.Connection, path: Path) -> Iterator[None]:
        """Hold the file's lock during the block, unless another process migrates the file first."""
        taken = gettext(
            "was written by an older bansong and must be brought to version {version}, but another "
            "process is using it; stop that one, or restart it with this bansong, and try again",
            version=self.version,
        )
        deadline = time.monotonic() + _LOCK_TIMEOUT_S
        lock = None
        while lock is None and self._read_version(connection, path) < self.version:
            try:
                lock = self.lock(path, taken, wait=0)
            except self.error:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        try:
            yield
        finally:
            if lock is not None:
                lock.release()

    def stored_version(self, path: Path) -> int:
        """Return the schema version in the file's header, without opening the database; 0 without one."""
        try:
            with OPENING:
                if is_open_here(path):  # then it is migrated
                    return self.version
                with path.open("rb") as file:
                    header = file.read(_HEADER_BYTES)
        except OSError:
            return 0
        return int.from_bytes(header[60:64]) if header.startswith(_MAGIC) else 0

    def _check_pages(self, connection: sqlite3.Connection, path: Path) -> None:
        found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            fault = describe_library_error(" ".join(found.split()))
            damaged = Phrase("is damaged ({error}); {restore}", error=fault, restore=self._restore)
            raise self.error(Listed([path, damaged], ": "))


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit the block as one transaction, or roll it back."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # SQLite has rolled back by itself if the disk is full
            connection.execute("ROLLBACK")
        raise


def rewrite_file(connection: sqlite3.Connection) -> None:
    """Rewrite the database without remains of deleted rows. This needs up to twice its size on the disk."""
    connection.execute("VACUUM")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # no effect on a file with a rollback journal


def _log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")
