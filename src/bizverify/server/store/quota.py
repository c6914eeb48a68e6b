"""The monthly quota: taken before the work and given back where it fails, each in a transaction of the one writer."""

from __future__ import annotations

import sqlite3


def used(db: sqlite3.Connection, key_id: str, month: str) -> int:
    """Lookups of a month (``2026-11``)."""
    row = db.execute("SELECT used FROM usage WHERE key_id = ? AND month = ?", (key_id, month)).fetchone()
    return 0 if row is None else int(row[0])


def take(db: sqlite3.Connection, key_id: str, month: str, lookups: int, limit: int) -> int | None:
    """Take lookups out of the month's quota: all of them (``None``), or none; then what was used before is returned."""
    before = used(db, key_id, month)
    if before + lookups > limit:
        return before
    db.execute(
        "INSERT INTO usage VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET used = used + excluded.used",
        (key_id, month, lookups),
    )
    return None


def give_back(db: sqlite3.Connection, key_id: str, month: str, lookups: int) -> None:
    """Give back what was taken for nothing, to the month that it was taken from."""
    db.execute("UPDATE usage SET used = max(0, used - ?) WHERE key_id = ? AND month = ?", (lookups, key_id, month))
