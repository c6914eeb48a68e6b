"""The monthly quota: taken before the work and given back where it fails, each in a transaction of the one writer."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence


def used(db: sqlite3.Connection, key_id: str, month: str) -> int:
    """Lookups of a month (``2026-11``)."""
    row = db.execute("SELECT used FROM usage WHERE key_id = ? AND month = ?", (key_id, month)).fetchone()
    return 0 if row is None else int(row[0])


def take(db: sqlite3.Connection, key_id: str, month: str, lookups: int, limit: int) -> int | None:
    """Take lookups out of the month's quota: all of them (``None``), or none; then what was used before is returned."""
    before = used(db, key_id, month)
    if before + lookups > limit:
        return before
    _add(db, key_id, month, lookups)
    return None


def take_singly(db: sqlite3.Connection, asked: Sequence[tuple[str, str, int]]) -> list[int | None]:
    """Take one lookup for each ``(key_id, month, limit)`` in their order; for each what :func:`take` returns.

    Of each key and month what is used is read and written once, however many ask.
    """
    left: dict[tuple[str, str], tuple[int, int]] = {}
    results: list[int | None] = []
    for key_id, month, limit in asked:
        place = key_id, month
        if place not in left:
            left[place] = used(db, key_id, month), 0
        before, taken = left[place]
        if before + taken >= limit:
            results.append(before + taken)
            continue
        left[place] = before, taken + 1
        results.append(None)
    for (key_id, month), (_, taken) in left.items():
        if taken:
            _add(db, key_id, month, taken)
    return results


def give_back(db: sqlite3.Connection, key_id: str, month: str, lookups: int) -> None:
    """Give back what was taken for nothing, to the month that it was taken from."""
    db.execute("UPDATE usage SET used = max(0, used - ?) WHERE key_id = ? AND month = ?", (lookups, key_id, month))


def _add(db: sqlite3.Connection, key_id: str, month: str, lookups: int) -> None:
    db.execute(
        "INSERT INTO usage VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET used = used + excluded.used",
        (key_id, month, lookups),
    )
