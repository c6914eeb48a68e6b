"""The server's file, opened; one server at a time has it, and ``bizverify keys`` beside it."""

from __future__ import annotations

import os
import sqlite3
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from filelock import FileLock

from bizverify.errors import StoreError
from bizverify.server.store.schema import APPLICATION_ID, DDL, VERSION
from bizverify.storage.sqlite import FileKind

SERVER_FILE: Final = FileKind("the file of a bizverify server", "`db=`", APPLICATION_ID, VERSION, DDL)


def connected(path: Path, *, create: bool = True, writing: bool = True) -> sqlite3.Connection:
    """Open the server's file, made (mode 0600) if it is not there and ``create`` says so; raise :class:`StoreError`."""
    path = Path(os.path.realpath(path))
    if not path.exists():
        if not create:
            raise StoreError(f"{path}: does not exist; check `db=`, or make one with `bizverify keys create`")
        SERVER_FILE.make(path)
    return SERVER_FILE.open(path, writing=writing)


def store_errors(path: Path) -> AbstractContextManager[None]:
    """What SQLite or the disk complains of, as :class:`StoreError` with the path and what to do."""
    return SERVER_FILE.errors(path)


def server_lock(path: Path) -> FileLock:
    """Take ``PATH.lock``, by which one server alone works on a file; raise :class:`StoreError` if it is taken."""
    taken = "another server is running on it; stop that one first"
    return SERVER_FILE.held(Path(os.path.realpath(path)), taken)
