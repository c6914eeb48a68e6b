"""The SQLite connections of this process: a file that one of them has open is read through SQLite alone.

Whoever closes any other descriptor of such a file, if only after reading its header, takes away the locks that all
connections of the process hold on it (POSIX). Another process takes a transaction under way for what a killed one left
then, and rolls it back: what this process commits is lost, or the file is damaged. SQLite itself minds that
(https://www.sqlite.org/howtocorrupt.html, section 2.2).
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from threading import Lock
from typing import Final
from weakref import WeakSet


class Connection(sqlite3.Connection):
    """A connection that knows its ``file`` (device, inode) for as long as it is open."""

    file: tuple[int, int] | None = None

    def close(self) -> None:
        """Close the connection."""
        super().close()
        self.file = None


OPENING: Final = Lock()
"""Held from before a file is read otherwise until its connection is made, if one is made."""
_CONNECTIONS: Final[WeakSet[Connection]] = WeakSet()


def is_open_here(path: Path) -> bool:
    """Return whether this process has a connection to a file; :data:`OPENING` must be held."""
    try:
        file = _identity(path)
    except OSError:
        return False
    return any(connection.file == file for connection in _CONNECTIONS)


def connect(path: Path, *, writing: bool, timeout: float) -> Connection:
    """Connect to a file that is there, for any thread, without transactions begun by themselves.

    ``timeout``: seconds to wait for another process's lock. :data:`OPENING` must be held.
    """
    connection = sqlite3.connect(
        f"{path.as_uri()}?mode={'rw' if writing else 'ro'}",
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
