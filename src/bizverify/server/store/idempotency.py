"""Requests that came with an ``Idempotency-Key``: what they asked, and the answer that they get when they come again.

A row without an answer was begun and not finished: what it took of the quota stays taken, so that its repetition is not
paid again. A failed attempt is forgotten, in the transaction that gives back what it took.
"""

from __future__ import annotations

import hashlib
import sqlite3
from typing import Final, NamedTuple

KEPT: Final = 7 * 86_400
"""Seconds for which an answer is kept."""


class Earlier(NamedTuple):
    """An earlier request with the same ``Idempotency-Key``: ``request`` is its :func:`identity_of`.

    ``created``: when it came, in seconds since 1970. ``answer``: the body of its answer, ``None`` while there is none.
    """

    request: bytes
    created: float
    answer: bytes | None


def token_of(endpoint: str, header: str) -> bytes:
    """What is stored of an ``Idempotency-Key``: the same value at another endpoint is another one."""
    return hashlib.sha256(f"{endpoint}\n{header}".encode()).digest()


def identity_of(method: str, path: str, body: bytes) -> bytes:
    """What two requests that ask the same share; ``path`` and ``body`` in the one form in which they are understood."""
    return hashlib.sha256(f"{method} {path}\n".encode() + body).digest()


def find(db: sqlite3.Connection, key_id: str, token: bytes) -> Earlier | None:
    """The earlier request of a key with this token."""
    query = "SELECT request, created, answer FROM idempotency WHERE key_id = ? AND token = ?"
    row = db.execute(query, (key_id, token)).fetchone()
    return None if row is None else Earlier(*row)


def begin(db: sqlite3.Connection, key_id: str, token: bytes, request: bytes, now: float) -> Earlier | None:
    """Write down that a request is begun (``None``), unless there is an earlier one: that is returned."""
    earlier = find(db, key_id, token)
    if earlier is None:
        row = (key_id, token, request, now)
        db.execute("INSERT INTO idempotency (key_id, token, request, created) VALUES (?, ?, ?, ?)", row)
    return earlier


def finish(db: sqlite3.Connection, key_id: str, token: bytes, answer: bytes) -> None:
    """Keep the answer; one that is there already stays."""
    statement = "UPDATE idempotency SET answer = ? WHERE key_id = ? AND token = ? AND answer IS NULL"
    db.execute(statement, (answer, key_id, token))


def forget(db: sqlite3.Connection, key_id: str, token: bytes) -> bool:
    """Leave nothing of an attempt that failed; whether there was one without an answer."""
    statement = "DELETE FROM idempotency WHERE key_id = ? AND token = ? AND answer IS NULL"
    return db.execute(statement, (key_id, token)).rowcount == 1


def purge(db: sqlite3.Connection, before: float, most: int = 10_000) -> int:
    """Delete the oldest that came before a time, ``most`` at a time for others write too; how many were deleted."""
    oldest = "SELECT key_id, token FROM idempotency WHERE created < ? ORDER BY created LIMIT ?"
    statement = f"DELETE FROM idempotency WHERE (key_id, token) IN ({oldest})"  # noqa: S608 - nothing of a request is in it
    return db.execute(statement, (before, most)).rowcount
