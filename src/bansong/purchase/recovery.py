"""Settle doubtful requests later: by hand, after a kill, or by repeating them."""

# ruff: noqa: S608 - statements consist of constants of this package; values are always bound

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal

from bansong.base.errors import Problem, UsageError
from bansong.base.messages import Phrase, gettext, gettext_noop
from bansong.base.schema import Answer
from bansong.purchase.changes import count_upload, keep_answer, step_upload
from bansong.purchase.ledger_file import (
    OF_UPLOAD,
    ONE,
    UNSETTLED,
    StoredRequest,
    Transaction,
    Value,
    clean,
    flag,
    whole,
)
from bansong.purchase.queries import shown_ids

LOOKUP_HAS_NO_JOB: Final = Problem("ledger.lookup_has_no_job", "{id}: is one lookup, which has no job; {list}")
JOB_ID_EMPTY: Final = Problem("ledger.job_id_empty", "the job has no id; give the one that the service shows")
JOB_TAKEN: Final = Problem("ledger.job_taken", "{job_id}: is the job of upload {taken} already; look the job up again")
UPLOAD_NOT_WAITING: Final = Problem("ledger.upload_not_waiting", "{id}: no rows of this upload wait for a job; {list}")
ID_UNKNOWN: Final = Problem("ledger.id_unknown", "{id}: nothing that waits to be settled has this id; {list}")
ID_AMBIGUOUS: Final = Problem("ledger.id_ambiguous", "{id}: {matches:,} ids begin like this; give more of it")
ALREADY_SETTLED: Final = Problem("ledger.already_settled", "{id}: is settled already; {list}")

KILLED: Final = gettext_noop("the process ended while the request was under way")
_LIST: Final = gettext_noop("see what is in doubt with: bansong resolve")


@dataclass(frozen=True, slots=True)
class RecoveryCounts:
    """Counts of requests that a killed process left in doubt, and of uploads that it did not send (``dropped``)."""

    asking: int  # single lookups
    uploads: int
    dropped: int
    labels: int = 0


@dataclass(frozen=True, slots=True)
class _Held:
    # SQL condition ``where`` with ``values`` finds the lookups; ``states``: those that may be settled
    kind: Literal["lookup", "upload"]
    id: str
    where: str
    states: str
    values: dict[str, Value]
    state: str = ""  # state of the upload


def recover(tx: Transaction) -> RecoveryCounts:
    """Mark unfinished requests of an earlier process as in doubt or dropped. It has ended, since its lock is free."""
    run = tx.connection.execute
    asking = tx.hold(UNSETTLED, "'asking'", "doubt", {"note": gettext(KILLED)})
    prepared = run("SELECT number FROM uploads WHERE state = 'prepared'").fetchall()
    for (number,) in prepared:
        tx.release(OF_UPLOAD, "'uploaded'", {"upload": number})
    run("UPDATE uploads SET state = 'dropped', since = ? WHERE state = 'prepared'", (tx.now,))
    uploads = run(
        "UPDATE uploads SET state = 'doubt', since = ?, note = ? WHERE state IN ('gated', 'sent')",
        (tx.now, gettext(KILLED)),
    ).rowcount
    labels = run(
        "UPDATE labels SET state = 'doubt', since = ?, note = ? WHERE state = 'sent'", (tx.now, gettext(KILLED))
    ).rowcount
    run("UPDATE runs SET outcome = 'killed' WHERE ended IS NULL AND outcome IS NULL")
    tx.delete_old_requests()
    return RecoveryCounts(asking, uploads, len(prepared), labels)


def accept(tx: Transaction, ids: Iterable[str]) -> int:
    """Give up lookups, which are then never sent again; return how many."""

    def hold(which: str, states: str, values: dict[str, Value]) -> int:
        return tx.hold(which, states, "lost", values | {"note": gettext("given up by hand")})

    return _decide(tx, "accept", "accepted", ids, hold)


def resend(tx: Transaction, ids: Iterable[str]) -> int:
    """Allow lookups to be sent again, and perhaps to be paid twice; return how many."""

    def release(which: str, states: str, values: dict[str, Value]) -> int:
        return tx.release(which, f"{states}, 'lost'", values)

    return _decide(tx, "resend", "resent", ids, release)


def attach(tx: Transaction, id: str, job_id: str) -> int:
    """Set the job of an upload, so that the next run fetches it; return the number of unanswered rows."""
    job_id = job_id.strip()
    found = _resolve(tx, id)
    if found.kind != "upload":
        raise UsageError(LOOKUP_HAS_NO_JOB, id=id, list=Phrase(_LIST))
    if not job_id:
        raise UsageError(JOB_ID_EMPTY)
    other = "SELECT upload FROM uploads WHERE job_id = ? AND number <> ? AND origin = "
    number = found.values["upload"]
    taken = tx.connection.execute(
        f"{other} (SELECT origin FROM uploads WHERE number = ?)", (job_id, number, number)
    ).fetchone()
    if taken:
        raise UsageError(JOB_TAKEN, job_id=job_id, taken=taken[0])
    again = f"UPDATE lookups SET state = 'uploaded', note = NULL WHERE {OF_UPLOAD} AND state = 'missing'"
    tx.connection.execute(again, found.values)
    count = f"SELECT count(*) FROM lookups WHERE {OF_UPLOAD} AND state = 'uploaded'"
    rows = int(tx.connection.execute(count, found.values).fetchone()[0])
    if not rows or found.state not in ("doubt", "unreadable", "known", "lost", "done"):
        raise UsageError(UPLOAD_NOT_WAITING, id=id, list=Phrase(_LIST))
    tx.connection.execute(
        "UPDATE uploads SET state = 'known', since = ?, job_id = ?, note = NULL WHERE number = ?",
        (tx.now, job_id, number),
    )
    count_upload(tx, found.id)
    _record(tx, "attach", found, rows, job_id)
    return rows


def _decide(
    tx: Transaction, decision: str, closed: str, ids: Iterable[str], settle: Callable[[str, str, dict[str, Value]], int]
) -> int:
    settled = 0
    for id in ids:
        found = _resolve(tx, id)
        rows = settle(found.where, found.states, found.values)
        if found.kind == "upload":
            close = "UPDATE uploads SET state = ?, since = ? WHERE number = ? AND state <> 'done'"
            tx.connection.execute(close, (closed, tx.now, found.values["upload"]))
        if not rows:
            raise UsageError(ALREADY_SETTLED, id=id, list=Phrase(_LIST))
        _record(tx, decision, found, rows, None)
        settled += rows
    return settled


def _resolve(tx: Transaction, id: str) -> _Held:
    # the first digits of an id are enough if they are unique
    wanted = id.strip().lower()
    uploads = [
        _Held("upload", upload, OF_UPLOAD, "'uploaded', 'missing'", {"upload": number}, state)
        for upload, number, state in tx.connection.execute(
            "SELECT upload, number, state FROM uploads "
            "WHERE state IN ('doubt', 'unreadable', 'known', 'lost', 'accepted', 'done') "
            "AND lower(substr(upload, 1, ?)) = ?",
            (len(wanted), wanted),
        )
    ]
    if not (found := [upload for upload in uploads if upload.id.lower() == wanted]):
        found = uploads + [
            _Held("lookup", key.hex(), ONE, "'doubt', 'unreadable', 'missing'", {"key": key})
            for key in shown_ids(tx.connection)
            if key.hex().startswith(wanted)
        ]
    if not found or not wanted:
        raise UsageError(ID_UNKNOWN, id=id, list=Phrase(_LIST))
    if len(found) > 1:
        raise UsageError(ID_AMBIGUOUS, id=id, matches=len(found))
    return found[0]


def _record(tx: Transaction, decision: str, what: _Held, rows: int, job_id: str | None) -> None:
    tx.connection.execute(
        "INSERT INTO decisions (at, decision, kind, id, rows, job_id) VALUES (?, ?, ?, ?, ?, ?)",
        (tx.now, decision, what.kind, what.id, rows, job_id),
    )
    tx.delete_old_requests()


REPEATS: Final = 8  # of a request over all runs: each costs if the service breaks its promise

_REQUEST: Final = "q.token, q.origin, q.account, q.keep, q.content"
_OPEN: Final = f"""
    SELECT l.key, NULL, NULL, 1, q.first, :now - q.first, q.repeats, NULL, NULL, {_REQUEST}
    FROM requests q JOIN lookups l ON l.key = q.key AND l.state = 'doubt'
    WHERE q.origin = :origin AND q.repeats < :most
    UNION ALL
    SELECT NULL, u.number, u.upload, u.rows, q.first, :now - q.first, q.repeats, u.offline, u.paid, {_REQUEST}
    FROM requests q JOIN uploads u ON u.number = q.upload AND u.state = 'doubt'
    WHERE q.origin = :origin AND q.repeats < :most
    ORDER BY 5, 10
"""
_LATEST: Final = "SELECT max(max(started), max(coalesce(ended, 0))) FROM runs"  # latest known time
_YOUNG: Final = """
    SELECT count(*) FROM requests q WHERE q.first <= :now AND :now < q.first + q.keep AND q.repeats < :most
        AND (EXISTS (SELECT 1 FROM lookups l WHERE l.key = q.key AND l.state = 'doubt')
             OR EXISTS (SELECT 1 FROM uploads u WHERE u.number = q.upload AND u.state = 'doubt'))
"""


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """A doubtful request for one lookup, or for an upload."""

    keys: tuple[bytes, ...]  # of its lookups
    upload: str | None  # None: a single lookup
    rows: int
    first: float  # unix seconds
    age: float  # seconds since `first`; negative (unknown) if the clock was set back
    repeats: int  # number of repetitions so far
    offline: bool | None
    paid: bool | None
    request: StoredRequest


def pending_requests(connection: sqlite3.Connection, origin: str, now: float) -> list[PendingRequest]:
    """Return the doubtful requests to ``origin`` with less than :data:`REPEATS` repetitions, the oldest first."""
    if (connection.execute(_LATEST).fetchone()[0] or now) > now:
        now = -math.inf
    found = connection.execute(_OPEN, {"origin": origin, "now": now, "most": REPEATS}).fetchall()
    pending, keys_of = [], "SELECT key FROM upload_rows WHERE upload = ? ORDER BY place"
    for key, number, upload, rows, first, age, repeats, offline, paid, *request in found:
        keys = tuple(one for (one,) in connection.execute(keys_of, (number,))) if key is None else (key,)
        flags = flag(offline), flag(paid)
        pending.append(PendingRequest(keys, upload, rows, first, age, repeats, *flags, StoredRequest(*request)))
    return pending


def count_repeatable(connection: sqlite3.Connection, now: float) -> int:
    """Count the doubtful requests whose idempotency keys the services still remember, as they promise."""
    return int(connection.execute(_YOUNG, {"now": now, "most": REPEATS}).fetchone()[0])


@dataclass(frozen=True, slots=True)
class LookupSettled:
    """Records that the service answered a doubtful lookup, which is then paid and done."""

    key: bytes
    answer: Answer

    def write(self, tx: Transaction) -> None:
        tx.one(
            self,
            "UPDATE lookups SET state = 'done', since = :now, note = NULL WHERE key = :key AND state = 'doubt' "
            "AND EXISTS (SELECT 1 FROM requests WHERE key = :key)",
            {"key": self.key, "now": tx.now},
        )
        keep_answer(tx, self.key, self.answer)


@dataclass(frozen=True, slots=True)
class UploadSettled:
    """Records the id of a doubtful upload's job, as the service returned it; the rows of the upload count as paid."""

    upload: str
    job_id: str
    total: int | None

    def write(self, tx: Transaction) -> None:
        find = "SELECT 1 FROM requests WHERE upload = (SELECT number FROM uploads WHERE upload = ?)"
        if tx.connection.execute(find, (self.upload,)).fetchone() is None:
            raise tx.out_of_order(self)
        job = {"job_id": clean(self.job_id), "total": whole(self.total), "note": None}
        step_upload(self, tx, self.upload, "known", "'doubt'", **job)
        count_upload(tx, self.upload)


@dataclass(frozen=True, slots=True)
class RequestRepeated:
    """Records that a request is about to be sent again with its idempotency key."""

    token: str

    def write(self, tx: Transaction) -> None:
        tx.one(self, "UPDATE requests SET repeats = repeats + 1 WHERE token = :token", {"token": self.token})
