"""Batch jobs: accepted, taken in turn, ended, purged. Each step is one transaction, with what it does to the quota."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bizverify.server.store import quota

_COLUMNS: Final = (
    "id, key_id, state, total, offline, paid, month, charged, created, finished, attempts, grades, model, error"
)
_ACTIVE: Final = "state IN ('queued', 'running')"


@dataclass(frozen=True, slots=True)
class Job:
    """A job as it is stored; times in seconds since 1970.

    ``month``, ``charged``: from which month's quota how many lookups were taken. ``attempts``: how often it failed.
    ``error``: code and message.
    """

    id: str
    key_id: str
    state: str
    total: int
    offline: bool
    paid: bool
    month: str
    charged: int
    created: float
    finished: float | None = None
    attempts: int = 0
    grades: Mapping[str, int] | None = None
    model: str | None = None
    error: tuple[str, str] | None = None


def add(db: sqlite3.Connection, job: Job) -> None:
    """Put a new job at the end of the queue."""
    db.execute(
        "INSERT INTO jobs (id, key_id, state, total, offline, paid, month, charged, created)"
        " VALUES (?, ?, 'queued', ?, ?, ?, ?, ?, ?)",
        (job.id, job.key_id, job.total, job.offline, job.paid, job.month, job.charged, job.created),
    )


def find(db: sqlite3.Connection, key_id: str, id_: str) -> Job | None:
    """A job of a key."""
    row = db.execute(f"SELECT {_COLUMNS} FROM jobs WHERE id = ? AND key_id = ?", (id_, key_id)).fetchone()  # noqa: S608
    return None if row is None else _job(row)


def active(db: sqlite3.Connection, key_id: str) -> tuple[int, int]:
    """How many jobs of all keys wait, and how many of this key wait or run."""
    waiting = db.execute("SELECT count(*) FROM jobs WHERE state = 'queued'").fetchone()[0]
    own = db.execute(f"SELECT count(*) FROM jobs WHERE key_id = ? AND {_ACTIVE}", (key_id,)).fetchone()[0]  # noqa: S608
    return waiting, own


def begin_again(db: sqlite3.Connection) -> int:
    """Put jobs that were running when the server ended back into the queue; how many."""
    return db.execute("UPDATE jobs SET state = 'queued' WHERE state = 'running'").rowcount


def start_next(db: sqlite3.Connection, now: float) -> Job | None:
    """Take the next job of the queue, which is running then.

    Keys take turns: the key whose last turn is longest ago comes first, with its oldest job.
    """
    row = db.execute(
        f"SELECT {_COLUMNS} FROM jobs JOIN"  # noqa: S608
        " (SELECT min(number) AS first, key_id AS whose FROM jobs WHERE state = 'queued' GROUP BY key_id)"
        " ON number = first"
        " ORDER BY coalesce((SELECT max(turn.started) FROM jobs AS turn WHERE turn.key_id = whose), 0), number LIMIT 1"
    ).fetchone()
    if row is None:
        return None
    job = _job(row)
    db.execute("UPDATE jobs SET state = 'running', started = ? WHERE id = ?", (now, job.id))
    return job


def done(
    db: sqlite3.Connection, job: Job, *, now: float, grades: Mapping[str, int], model: str, without_answer: int
) -> None:
    """End a job whose results are published; lookups that could not be made are given back."""
    given_back = without_answer if job.paid else 0
    if given_back:
        quota.give_back(db, job.key_id, job.month, given_back)
    db.execute(
        "UPDATE jobs SET state = 'done', processed = total, charged = charged - ?, finished = ?, grades = ?, model = ?"
        " WHERE id = ?",
        (given_back, now, json.dumps(grades), model, job.id),
    )


def put_back(db: sqlite3.Connection, job: Job) -> None:
    """Let a job that failed wait for its next attempt."""
    db.execute("UPDATE jobs SET state = 'queued', attempts = attempts + 1 WHERE id = ?", (job.id,))


def failed(db: sqlite3.Connection, job: Job, *, now: float, code: str, message: str) -> None:
    """Give a job up; all that it took of the quota is given back."""
    if job.charged:
        quota.give_back(db, job.key_id, job.month, job.charged)
    db.execute(
        "UPDATE jobs SET state = 'failed', attempts = attempts + 1, charged = 0, finished = ?, error = ? WHERE id = ?",
        (now, json.dumps([code, message]), job.id),
    )


def ids(db: sqlite3.Connection) -> set[str]:
    """The ids of all jobs."""
    return {id_ for (id_,) in db.execute("SELECT id FROM jobs")}


def purge(db: sqlite3.Connection, before: float, most: int = 1_000) -> list[str]:
    """Delete jobs that ended before a time, unless outcomes of theirs wait to be learned from; their ids."""
    rows = db.execute(
        "DELETE FROM jobs WHERE id IN (SELECT id FROM jobs WHERE state IN ('done', 'failed') AND finished < ?"
        " AND NOT EXISTS (SELECT 1 FROM labels WHERE job = jobs.id AND learned IS NULL) LIMIT ?) RETURNING id",
        (before, most),
    )
    return [id_ for (id_,) in rows.fetchall()]


def _job(row: tuple[Any, ...]) -> Job:
    values = dict(zip(_COLUMNS.split(", "), row, strict=True))
    grades, error = values.pop("grades"), values.pop("error")
    return Job(
        **values | {"offline": bool(values["offline"]), "paid": bool(values["paid"])},
        grades=None if grades is None else json.loads(grades),
        error=None if error is None else tuple(json.loads(error)),
    )
