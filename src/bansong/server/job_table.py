"""Jobs, outcomes and requests with an idempotency key, in the server's database."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import sqlite3
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from starlette.requests import Request

from bansong.base.messages import gettext
from bansong.server import keys as key_table
from bansong.server.payloads import Refusal, invalid
from bansong.server.settings import Clock
from bansong.server.store import Store

_COLUMNS: Final = (
    "id, key_id, state, total, offline, paid, month, charged, created, finished, attempts, starts, grades, model, error"
)
_ACTIVE: Final = "state IN ('queued', 'running')"
_JOBS_PER_PURGE: Final = 1_000


@dataclass(frozen=True, slots=True)
class StoredJob:
    """A job of a key, as stored."""

    id: str
    key_id: str
    state: str
    total: int
    offline: bool
    paid: bool
    month: str  # whose quota was charged
    charged: int  # lookups
    created: float
    finished: float | None = None
    attempts: int = 0
    starts: int = 0  # since the last attempt ended
    grades: Mapping[str, int] | None = None
    model: str | None = None
    error: tuple[str, str] | None = None


def add_job(db: sqlite3.Connection, job: StoredJob) -> None:
    db.execute(
        "INSERT INTO jobs (id, key_id, state, total, offline, paid, month, charged, created)"
        " VALUES (?, ?, 'queued', ?, ?, ?, ?, ?, ?)",
        (job.id, job.key_id, job.total, job.offline, job.paid, job.month, job.charged, job.created),
    )


def find_job(db: sqlite3.Connection, key_id: str, id_: str) -> StoredJob | None:
    row = db.execute(f"SELECT {_COLUMNS} FROM jobs WHERE id = ? AND key_id = ?", (id_, key_id)).fetchone()  # noqa: S608
    return None if row is None else _job(row)


def list_jobs(
    db: sqlite3.Connection, key_id: str, most: int, after: tuple[float, str] | None = None
) -> list[StoredJob]:
    """List at most ``most`` of a key's jobs, newest first, following the job ``after`` (creation time and id)."""
    behind = "" if after is None else "AND (created, id) < (?, ?)"
    query = f"SELECT {_COLUMNS} FROM jobs WHERE key_id = ? {behind} ORDER BY created DESC, id DESC LIMIT ?"  # noqa: S608
    return [_job(row) for row in db.execute(query, (key_id, *(after or ()), most))]


def delete_job(db: sqlite3.Connection, key_id: str, id_: str, answered: int) -> int | None:
    """Delete a job. Give the lookups of an unfinished one beyond ``answered`` rows back, and return how many."""
    job = find_job(db, key_id, id_)
    if job is None:
        return None
    db.execute("DELETE FROM jobs WHERE id = ?", (id_,))
    given_back = max(0, job.charged - answered) if job.state in ("queued", "running") else 0
    if given_back:
        key_table.give_back_lookups(db, key_id, job.month, given_back)
    return given_back


def has_unlearned(db: sqlite3.Connection, key_id: str, id_: str) -> bool:
    """Return whether a job has outcomes that were not learned from yet."""
    query = (
        "SELECT 1 FROM labels JOIN jobs ON jobs.id = labels.job"
        " WHERE labels.job = ? AND jobs.key_id = ? AND learned IS NULL LIMIT 1"
    )
    return db.execute(query, (id_, key_id)).fetchone() is not None


def count_active(db: sqlite3.Connection) -> tuple[int, dict[str, int]]:
    """Count the queued jobs of all keys, and each key's unfinished jobs."""
    waiting = db.execute("SELECT count(*) FROM jobs WHERE state = 'queued'").fetchone()[0]
    of_keys = db.execute(f"SELECT key_id, count(*) FROM jobs WHERE {_ACTIVE} GROUP BY key_id")  # noqa: S608
    return waiting, dict(of_keys.fetchall())


def requeue_running(db: sqlite3.Connection, *, survived: bool) -> int:
    """Requeue running jobs; reset their counts of starts if the server ``survived`` (was not killed)."""
    statement = "UPDATE jobs SET state = 'queued', starts = iif(?, 0, starts) WHERE state = 'running'"
    return db.execute(statement, (survived,)).rowcount


def start_next(db: sqlite3.Connection, now: float) -> StoredJob | None:
    """Start the next due job; keys take turns. Turns are stored with the keys, as jobs can be deleted."""
    row = db.execute(
        f"SELECT {_COLUMNS} FROM jobs WHERE number IN"  # noqa: S608
        " (SELECT min(number) FROM jobs WHERE state = 'queued' AND due <= ? GROUP BY key_id)"
        " ORDER BY (SELECT turn FROM keys WHERE keys.id = key_id), number LIMIT 1",
        (now,),
    ).fetchone()
    if row is None:
        return None
    job = _job(row)
    db.execute("UPDATE jobs SET state = 'running', starts = starts + 1 WHERE id = ?", (job.id,))
    db.execute("UPDATE keys SET turn = (SELECT max(turn) + 1 FROM keys) WHERE id = ?", (job.key_id,))
    return replace(job, state="running", starts=job.starts + 1)


def next_due(db: sqlite3.Connection) -> float | None:
    due: float | None = db.execute("SELECT min(due) FROM jobs WHERE state = 'queued'").fetchone()[0]
    return due


def finish_job(
    db: sqlite3.Connection, job: StoredJob, *, now: float, grades: Mapping[str, int], model: str, without_answer: int
) -> None:
    """Mark a running job as done; give back the lookups of rows without an answer."""
    given_back = without_answer if job.paid else 0
    ended = db.execute(
        "UPDATE jobs SET state = 'done', charged = charged - ?, finished = ?, grades = ?, model = ?"
        " WHERE id = ? AND state = 'running'",
        (given_back, now, json.dumps(grades, sort_keys=True), model, job.id),
    )
    if ended.rowcount and given_back:
        key_table.give_back_lookups(db, job.key_id, job.month, given_back)


def put_back(db: sqlite3.Connection, job: StoredJob, *, due: float, attempts: int) -> None:
    """Queue a running job again, not before ``due``."""
    db.execute(
        "UPDATE jobs SET state = 'queued', starts = 0, due = ?, attempts = ? WHERE id = ? AND state = 'running'",
        (due, attempts, job.id),
    )


def fail_job(db: sqlite3.Connection, job: StoredJob, *, now: float, code: str, message: str) -> None:
    """Mark a running job as failed, and give back its lookups."""
    ended = db.execute(
        "UPDATE jobs SET state = 'failed', attempts = attempts + 1, charged = 0, finished = ?, error = ?"
        " WHERE id = ? AND state = 'running'",
        (now, json.dumps([code, message]), job.id),
    )
    if ended.rowcount and job.charged:
        key_table.give_back_lookups(db, job.key_id, job.month, job.charged)


def count_by_state(db: sqlite3.Connection) -> tuple[dict[str, int], float | None]:
    """Count jobs by state; return when the oldest queued one was created, too."""
    oldest: float | None = db.execute("SELECT min(created) FROM jobs WHERE state = 'queued'").fetchone()[0]
    return dict(db.execute("SELECT state, count(*) FROM jobs GROUP BY state")), oldest


def list_job_ids(db: sqlite3.Connection, key_id: str | None = None) -> set[str]:
    return {id_ for (id_,) in db.execute("SELECT id FROM jobs WHERE :key IS NULL OR key_id = :key", {"key": key_id})}


class JobOnDisk(NamedTuple):
    """A job, for the accounting of disk space."""

    id: str
    key_id: str
    total: int
    is_active: bool  # results are still to come
    outcome_bytes: int


def list_jobs_on_disk(db: sqlite3.Connection) -> list[JobOnDisk]:
    taken = f"SELECT coalesce(sum({_OUTCOME_BYTES}), 0) FROM labels WHERE job = jobs.id"  # noqa: S608
    rows = db.execute(f"SELECT id, key_id, total, {_ACTIVE}, ({taken}) FROM jobs")  # noqa: S608
    return [JobOnDisk(id_, key_id, total, bool(is_active), size) for id_, key_id, total, is_active, size in rows]


def purge_jobs(db: sqlite3.Connection, before: float) -> list[str]:
    """Delete jobs that ended before a time, unless outcomes are still to be learned; return their ids."""
    rows = db.execute(
        "DELETE FROM jobs WHERE id IN (SELECT id FROM jobs WHERE state IN ('done', 'failed') AND finished < ?"
        " AND NOT EXISTS (SELECT 1 FROM labels WHERE job = jobs.id AND learned IS NULL) LIMIT ?) RETURNING id",
        (before, _JOBS_PER_PURGE),
    )
    return [id_ for (id_,) in rows.fetchall()]


def _job(row: tuple[Any, ...]) -> StoredJob:
    values = dict(zip(_COLUMNS.split(", "), row, strict=True))
    grades, error = values.pop("grades"), values.pop("error")
    return StoredJob(
        **values | {"offline": bool(values["offline"]), "paid": bool(values["paid"])},
        grades=None if grades is None else json.loads(grades),
        error=None if error is None else tuple(json.loads(error)),
    )


Outcome = tuple[int, int, str | None, float]  # row_id, bounced (0, 1), reason, time of recording (seconds since 1970)


LARGEST_OUTCOME: Final = 5_120  # bytes of an outcome with the longest reason, with its share of the index
_IN_PAGE: Final = 900  # a longer reason takes another page of 4 KiB
_REASON_BYTES: Final = "coalesce(length(CAST(reason AS BLOB)), 0)"
_OUTCOME_BYTES: Final = f"iif({_REASON_BYTES} > {_IN_PAGE}, {LARGEST_OUTCOME}, 128 + {_REASON_BYTES})"


def put_outcome(db: sqlite3.Connection, job: str, row_id: int, *, bounced: bool, reason: str | None, now: float) -> int:
    """Record an outcome in place of a different earlier one; return the bytes added to the database."""

    def size() -> int:
        query = f"SELECT {_OUTCOME_BYTES} FROM labels WHERE job = ? AND row_id = ?"  # noqa: S608
        row = db.execute(query, (job, row_id)).fetchone()
        return 0 if row is None else int(row[0])

    before = size()
    db.execute(
        "INSERT INTO labels (job, row_id, bounced, reason, recorded) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT DO UPDATE SET"
        " bounced = excluded.bounced, reason = excluded.reason, recorded = excluded.recorded, learned = NULL"
        " WHERE bounced <> excluded.bounced OR reason IS NOT excluded.reason",
        (job, row_id, bounced, reason, now),
    )
    return size() - before


def jobs_to_learn(db: sqlite3.Connection) -> list[StoredJob]:
    unlearned = "SELECT job FROM labels WHERE learned IS NULL"
    query = f"SELECT {_COLUMNS} FROM jobs WHERE state = 'done' AND id IN ({unlearned}) ORDER BY number"  # noqa: S608
    return [_job(row) for row in db.execute(query)]


def unlearned_outcomes(db: sqlite3.Connection, job: str, most: int) -> list[Outcome]:
    query = "SELECT row_id, bounced, reason, recorded FROM labels WHERE job = ? AND learned IS NULL LIMIT ?"
    return db.execute(query, (job, most)).fetchall()


def mark_learned(db: sqlite3.Connection, job: str, outcomes: Sequence[Outcome], now: float) -> None:
    """Mark outcomes as learned, except those changed since they were read."""
    db.executemany(
        "UPDATE labels SET learned = ? WHERE job = ? AND row_id = ? AND bounced = ? AND reason IS ? AND recorded = ?",
        ((now, job, *outcome) for outcome in outcomes),
    )


KEPT: Final = 7 * 86_400  # seconds for which an answer is kept


class EarlierRequest(NamedTuple):
    """A request with an ``Idempotency-Key`` that was begun before."""

    request: bytes
    created: float
    answer: bytes | None  # ``None`` until it is finished


def identity_of(method: str, path: str, body: bytes) -> bytes:
    """Return a hash of a request's method, path and body."""
    return hashlib.sha256(f"{method} {path}\n".encode() + body).digest()


def find_earlier(db: sqlite3.Connection, key_id: str, token: bytes) -> EarlierRequest | None:
    query = "SELECT request, created, answer FROM idempotency WHERE key_id = ? AND token = ?"
    row = db.execute(query, (key_id, token)).fetchone()
    return None if row is None else EarlierRequest(*row)


def begin_request(
    db: sqlite3.Connection, key_id: str, token: bytes, request: bytes, now: float
) -> EarlierRequest | None:
    """Store a new request, or return the earlier one that has this token."""
    earlier = find_earlier(db, key_id, token)
    if earlier is None:
        row = (key_id, token, request, now)
        db.execute("INSERT INTO idempotency (key_id, token, request, created) VALUES (?, ?, ?, ?)", row)
    return earlier


def finish_request(db: sqlite3.Connection, key_id: str, token: bytes, answer: bytes) -> None:
    statement = "UPDATE idempotency SET answer = ? WHERE key_id = ? AND token = ? AND answer IS NULL"
    db.execute(statement, (answer, key_id, token))


def forget_request(db: sqlite3.Connection, key_id: str, token: bytes) -> bool:
    """Delete an unanswered request; return whether there was one."""
    statement = "DELETE FROM idempotency WHERE key_id = ? AND token = ? AND answer IS NULL"
    return db.execute(statement, (key_id, token)).rowcount == 1


def _purge_requests(db: sqlite3.Connection, before: float) -> int:
    """Delete a batch of requests older than ``before``; return how many. Other writes can go between batches."""
    oldest = "SELECT key_id, token FROM idempotency WHERE created < ? ORDER BY created LIMIT ?"
    statement = f"DELETE FROM idempotency WHERE (key_id, token) IN ({oldest})"  # noqa: S608 - holds no text of requests
    return db.execute(statement, (before, _PURGE_BATCH)).rowcount


HEADER: Final = "Idempotency-Key"
_VALUE: Final = re.compile(r"[\x21-\x7e]{1,200}")
_PURGE_BATCH: Final = 10_000


def token_from(request: Request, endpoint: str) -> bytes | None:
    """Return the hash of a request's ``Idempotency-Key``, ``None`` without one; raise :class:`Refusal` 400."""
    values = [value for name, value in request.scope["headers"] if name == b"idempotency-key"]
    if not values:
        return None
    text = values[0].decode("latin-1")
    if len(values) > 1 or not _VALUE.fullmatch(text):
        raise invalid(
            gettext("the header {header} must be given once and have 1 to 200 visible ASCII characters", header=HEADER)
        )
    return hashlib.sha256(f"{endpoint}\n{text}".encode()).digest()


def mismatch() -> Refusal:
    """Return the refusal (409) of a request that reuses the Idempotency-Key of a different one."""
    message = gettext(
        "this {header} was used before for another request; take a new one for each request", header=HEADER
    )
    return Refusal(409, "idempotency_mismatch", message)


class IdempotentRequests:
    """Run at most one request per ``Idempotency-Key`` at a time. Answers are kept in the database."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._under_way: dict[tuple[str, bytes], tuple[bytes, asyncio.Future[bytes | None]]] = {}

    async def once(self, key_id: str, token: bytes, identity: bytes, attempt: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return the result of ``attempt``, or of the same request under way. ``attempt`` looks for a stored answer."""
        place = key_id, token
        # a failed attempt leaves nothing in the store; a waiting request tries again
        while (other := self._under_way.get(place)) is not None:
            asked, answering = other
            if asked != identity:
                raise mismatch()
            answer = await asyncio.shield(answering)
            if answer is not None:
                return answer
        future: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._under_way[place] = identity, future
        answer = None
        try:
            answer = await attempt()
        finally:
            del self._under_way[place]
            future.set_result(answer)
        return answer

    async def purge(self) -> None:
        before = self._clock.now() - KEPT
        while await self._store.write(lambda db: _purge_requests(db, before)) == _PURGE_BATCH:
            pass
