"""Shared parts of commands on a server's file: transactions, keys, the audit log."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import click

from bansong.errors import Problem, UsageError

if TYPE_CHECKING:
    import sqlite3

    from bansong.server.store.key_table import Key

KEY_REVOKED: Final = Problem(
    "keys.key_revoked", "key {key_id} was revoked, for good; make another with `bansong keys create --db {db}`"
)

T = TypeVar("T")
About = tuple[str | None, Mapping[str, object]]

key_argument = click.argument("key_id", metavar="KEY_ID")


def change_file(db: Path, change: Callable[[sqlite3.Connection], T], *, make: bool = False) -> T:
    """Run ``change`` in a transaction on the server's file and return its result."""
    from bansong.server.store.schema import SERVER_FILE, open_server_file
    from bansong.storage.sqlite import transaction

    with (
        closing(open_server_file(db, create=make)) as connection,
        SERVER_FILE.errors(db),
        transaction(connection),
    ):
        return change(connection)


def act_on_file(
    db: Path,
    action: str,
    change: Callable[[sqlite3.Connection], T],
    about: About | Callable[[T], About],
    *,
    make: bool = False,
) -> T:
    """As :func:`change_file`, and record the action in the audit log.

    ``about``: the key's id, if any, and details; or a function of the result that returns both.
    """
    from bansong.server.store import audit_table

    def act(connection: sqlite3.Connection) -> T:
        result = change(connection)
        key_id, details = about(result) if callable(about) else about
        audit_table.record_action(connection, time.time(), action, key_id, details)
        return result

    return change_file(db, act, make=make)


def require_key(db: Path, key_id: str) -> Key:
    from bansong.server.store import key_table

    return change_file(db, lambda it: key_table.require_key(it, key_id, db))


def require_living_key(db: Path, key_id: str) -> Key:
    """Return a key that is not revoked; raise :class:`UsageError`."""
    key = require_key(db, key_id)
    if key.revoked is not None:
        raise UsageError(KEY_REVOKED, key_id=key_id, db=db)
    return key


def minute(time: object) -> str:
    """Return an ISO time to the minute; empty for ``None``."""
    return str(time or "")[:16].replace("T", " ")
