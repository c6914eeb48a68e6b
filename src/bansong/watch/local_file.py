"""A watch list in a file of the user's own, checked by one process at a time."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

from bansong.errors import Problem, StoreError
from bansong.storage.sqlite import FileKind
from bansong.translation import gettext, gettext_noop
from bansong.watch.schema import DDL, MIGRATIONS

WATCH_FILE_MISSING: Final = Problem(
    "watch.watch_file_missing",
    "{path}: there is no watch file; begin one with `bansong watch add` or `bansong watch sync`, "
    "or name another with `local=` or {env}",
)

ENV: Final = "BANSONG_WATCH"
OWNER: Final = "local"
"""Owner of a local list, in tables that a server shares among its keys."""
_UNASKED: Final = "CREATE TABLE unasked_days (day TEXT PRIMARY KEY) STRICT, WITHOUT ROWID;"
"""Consecutive days, in Korea, on which statuses were due and could not be asked."""
APPLICATION_ID: Final = 0x62765763  # "bvWc"
WATCH_FILE: Final = FileKind(
    gettext_noop("a watch file"),
    "local",
    APPLICATION_ID,
    DDL + _UNASKED,
    {**MIGRATIONS, 3: _UNASKED},
    StoreError,
    variable=ENV,
    default="watch.sqlite",
)


def watch_path(given: str | Path | None = None) -> Path:
    """Return the path of the local list: ``given``, ``BANSONG_WATCH``, or ``watch.sqlite`` in the state directory.

    Links are followed, so that two names of one file are one list.
    """
    return WATCH_FILE.find(given)


class LocalFile:
    """A watch file, open: ``with LocalFile(path) as file: file.write(…)``.

    It is made, mode 0600, unless ``create`` is false. Raises :class:`StoreError`.
    """

    def __init__(self, path: Path, *, create: bool = True) -> None:
        self.path = path
        self._create = create
        self._connection: sqlite3.Connection | None = None

    def __enter__(self) -> Self:
        with WATCH_FILE.errors(self.path):
            if not self.path.exists():
                if not self._create:
                    raise StoreError(WATCH_FILE_MISSING, path=self.path, env=ENV)
                WATCH_FILE.prepare_folder(self.path)
                WATCH_FILE.make(self.path)
        # a webhook is waited for in another thread, which writes down what came of it
        self._connection = WATCH_FILE.open(self.path)
        return self

    def __exit__(self, *exception: object) -> None:
        self.connection.close()
        self._connection = None

    @property
    def connection(self) -> sqlite3.Connection:
        """The open connection, for reading."""
        assert self._connection is not None  # noqa: S101 - only this package opens it
        return self._connection

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Read one state of the file within the block."""
        with WATCH_FILE.errors(self.path):
            self.connection.execute("BEGIN")
            try:
                yield self.connection
            finally:
                self.connection.execute("ROLLBACK")

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Run one transaction: durable when the block ends, undone if it raises."""
        with WATCH_FILE.errors(self.path), self.connection as db:
            db.execute("BEGIN IMMEDIATE")
            yield db


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold ``PATH.lock``, so that one check at a time works on a list; raise :class:`StoreError` if it is taken."""
    lock = WATCH_FILE.lock(path, gettext("another check of this list is running; nothing was done"))
    try:
        yield
    finally:
        lock.release()
