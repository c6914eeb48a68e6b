"""The watch list in a database: each function is one step of a transaction that its caller opens and commits."""

# ruff: noqa: S608 - statements are put together from constants of this module; values are always bound

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Final

from bizverify.watch.values import Change, Entry, Watch

_WATCH: Final = "id, biz_no, name, address, created, checked, due, biz_status, grade, bounce_prob, action, closed"


def add(db: sqlite3.Connection, owner: str, entry: Entry, now: float) -> tuple[Watch, bool]:
    """Put a business on an owner's list, due at once; return it and whether it is new.

    A business is on a list once: given again, its name and address are replaced as far as they are given, and only if
    one of them changed it is due again.
    """
    found = db.execute(f"SELECT {_WATCH} FROM watches WHERE owner = ? AND biz_no = ?", (owner, entry.biz_no)).fetchone()
    if found is None:
        id_ = secrets.token_hex(8)
        db.execute(
            "INSERT INTO watches (id, owner, biz_no, name, address, created, due) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (id_, owner, entry.biz_no, entry.name, entry.address, now, now),
        )
    else:
        before = Watch(*found)
        id_, name, address = before.watch_id, entry.name or before.name, entry.address or before.address
        if (name, address) != (before.name, before.address):
            db.execute("UPDATE watches SET name = ?, address = ?, due = ? WHERE id = ?", (name, address, now, id_))
    stored = get(db, owner, id_)
    assert stored is not None  # noqa: S101 - it was written in this transaction
    return stored, found is None


def count(db: sqlite3.Connection, owner: str) -> int:
    """How many businesses an owner watches."""
    return int(db.execute("SELECT count(*) FROM watches WHERE owner = ?", (owner,)).fetchone()[0])


def get(db: sqlite3.Connection, owner: str, watch_id: str) -> Watch | None:
    """One of an owner's watches."""
    row = db.execute(f"SELECT {_WATCH} FROM watches WHERE owner = ? AND id = ?", (owner, watch_id)).fetchone()
    return None if row is None else Watch(*row)


def every(db: sqlite3.Connection, owner: str) -> list[Watch]:
    """All watches of an owner, in the order in which they were added."""
    rows = db.execute(f"SELECT {_WATCH} FROM watches WHERE owner = ? ORDER BY number", (owner,))
    return [Watch(*row) for row in rows]


def remove(db: sqlite3.Connection, owner: str, watch_id: str) -> bool:
    """Take a watch off an owner's list, its history with it; whether it was there."""
    return db.execute("DELETE FROM watches WHERE owner = ? AND id = ?", (owner, watch_id)).rowcount == 1


def history(db: sqlite3.Connection, owner: str, watch_id: str) -> list[Change] | None:
    """The changes of grade of one watch, the oldest first; ``None`` where the owner has no such watch."""
    found = db.execute("SELECT number FROM watches WHERE owner = ? AND id = ?", (owner, watch_id)).fetchone()
    if found is None:
        return None
    rows = db.execute("SELECT at, before, after, biz_status FROM watch_history WHERE watch = ? ORDER BY number", found)
    return [Change(*row) for row in rows]


def ids(db: sqlite3.Connection, owner: str, numbers: Iterable[str]) -> dict[str, str]:
    """``biz_no`` → ``watch_id`` for those of the numbers that an owner watches."""
    wanted: Sequence[str] = list(numbers)
    found: dict[str, str] = {}
    for start in range(0, len(wanted), 500):
        part = wanted[start : start + 500]
        marks = ",".join("?" * len(part))
        found |= dict(
            db.execute(f"SELECT biz_no, id FROM watches WHERE owner = ? AND biz_no IN ({marks})", (owner, *part))
        )
    return found
