"""Outcomes of a job's letters, as they were told; ``learned`` says when one of them reached the label book."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

Told = tuple[int, int, str | None, float]
"""An outcome: row_id, bounced (0, 1), reason, when it was recorded (seconds since 1970)."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job with outcomes that no label book has yet. ``scope``: whose book they go to, as the key says now."""

    job: str
    scope: str
    finished: float
    model: str | None


def put(db: sqlite3.Connection, job: str, row_id: int, *, bounced: bool, reason: str | None, now: float) -> None:
    """Record an outcome in place of an earlier one; one that is recorded just so stays as it is."""
    db.execute(
        "INSERT INTO labels (job, row_id, bounced, reason, recorded) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT DO UPDATE SET"
        " bounced = excluded.bounced, reason = excluded.reason, recorded = excluded.recorded, learned = NULL"
        " WHERE bounced <> excluded.bounced OR reason IS NOT excluded.reason",
        (job, row_id, bounced, reason, now),
    )


def waiting(db: sqlite3.Connection) -> list[Waiting]:
    """The jobs with outcomes that are to be learned from, the earliest first."""
    rows = db.execute(
        "SELECT jobs.id, CASE WHEN keys.pool THEN 'pool' ELSE keys.id END, jobs.finished, jobs.model"
        " FROM (SELECT DISTINCT job FROM labels WHERE learned IS NULL) JOIN jobs ON jobs.id = job"
        " JOIN keys ON keys.id = jobs.key_id WHERE jobs.state = 'done' ORDER BY jobs.number"
    )
    return [Waiting(*row) for row in rows]


def unlearned(db: sqlite3.Connection, job: str, most: int) -> list[Told]:
    """Outcomes of a job that no label book has yet."""
    query = "SELECT row_id, bounced, reason, recorded FROM labels WHERE job = ? AND learned IS NULL LIMIT ?"
    return db.execute(query, (job, most)).fetchall()


def learned(db: sqlite3.Connection, job: str, told: Sequence[Told], now: float) -> None:
    """Note that a label book has these outcomes; one that was told otherwise meanwhile is not among them."""
    db.executemany(
        "UPDATE labels SET learned = ? WHERE job = ? AND row_id = ? AND bounced = ? AND reason IS ? AND recorded = ?",
        ((now, job, *outcome) for outcome in told),
    )
