"""What people see of the ledger: doubts, runs, and what is known of one business."""

# ruff: noqa: S608 - statements are put together from constants of this package; values are always bound

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from bizverify.ledger.known_answers import JOINED, NOTE, STATE
from bizverify.ledger.schema import UNSETTLED
from bizverify.schema import ANSWER_COLUMNS, Answer

_SHOWN: Final = 16
_MANY: Final = 100
"""In so many rows no row keys fit by chance."""
_KEYS_PROVEN: Final = """
    SELECT max(number) FILTER (WHERE base IS NOT NULL AND rows >= :many)
        > coalesce(max(number) FILTER (WHERE base IS NULL AND rows > 1), 0)
    FROM uploads WHERE origin = :origin AND state = 'done'
"""


@dataclass(frozen=True, slots=True)
class Upload:
    """An upload and its job. ``total`` is how many rows the service said it took, ``created`` unix seconds."""

    id: str
    run_id: str
    state: str
    job_id: str | None
    total: int | None
    rows: int
    created: float
    note: str | None
    offline: bool | None
    paid: bool | None


@dataclass(frozen=True, slots=True)
class Doubt:
    """A lookup, or an upload with ``rows`` undecided ones, that waits for somebody to settle it.

    ``id`` is what ``accept``, ``resend`` and ``attach`` take. Lookups have a ``b_no``, uploads a ``job_id``.
    """

    id: str
    kind: Literal["lookup", "upload"]
    state: str
    since: float
    run_id: str
    file: str
    b_no: str | None
    rows: int
    job_id: str | None
    note: str | None


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run and what it paid for: ``paid`` lookups, of which ``answered`` have been answered so far."""

    run_id: str
    engine: str
    origin: str
    file: str
    started: float
    ended: float | None
    outcome: str | None
    paid: int
    answered: int


@dataclass(frozen=True, slots=True)
class Entry:
    """What is known of one lookup; run, file, upload and job are of whoever asked, or bought the answer."""

    id: str
    b_no: str
    state: str
    since: float
    run_id: str
    file: str
    upload: str | None
    job_id: str | None
    note: str | None
    answered_at: float | None
    answer: Answer | None


def open_uploads(connection: sqlite3.Connection, origin: str) -> list[Upload]:
    """Uploads to ``origin`` whose job is known and not fetched yet, oldest first."""
    return _uploads(connection, "u.state = 'known' AND u.origin = ?", (origin,))


def incomplete_uploads(connection: sqlite3.Connection, origin: str, since: float) -> list[Upload]:
    """Uploads to ``origin`` since then (unix seconds) whose job was fetched and left rows without answer."""
    missing = f"SELECT upload FROM lookups WHERE {UNSETTLED} AND state = 'missing'"
    where = f"u.state = 'done' AND u.origin = ? AND u.created >= ? AND u.number IN ({missing})"
    return _uploads(connection, where, (origin, since))


def _uploads(connection: sqlite3.Connection, where: str, values: tuple[str | float, ...]) -> list[Upload]:
    found = connection.execute(
        "SELECT u.upload, r.run_id, u.state, u.job_id, u.total, u.rows, u.created, u.note, u.offline, u.paid "
        f"FROM uploads u JOIN runs r ON r.number = u.run WHERE {where} ORDER BY u.number",
        values,
    )
    return [Upload(*row[:8], *(None if flag is None else bool(flag) for flag in row[8:])) for row in found]


def shares_job(connection: sqlite3.Connection, upload_id: str) -> bool:
    """Whether an upload with other rows has the same job at the same service."""
    found = connection.execute(
        "SELECT 1 FROM uploads u JOIN uploads o ON o.job_id = u.job_id AND o.origin = u.origin "
        "WHERE u.upload = ? AND EXISTS (SELECT place, key FROM upload_rows WHERE upload = u.number "
        "EXCEPT SELECT place, key FROM upload_rows WHERE upload = o.number)",
        (upload_id,),
    )
    return found.fetchone() is not None


def named_by_hand(connection: sqlite3.Connection, upload_id: str) -> bool:
    """Whether an upload's job was ever told with ``attach``."""
    found = connection.execute("SELECT 1 FROM decisions WHERE decision = 'attach' AND id = ?", (upload_id,))
    return found.fetchone() is not None


def proves_row_keys(connection: sqlite3.Connection, origin: str) -> bool:
    """Whether results of ``origin`` have proved what they call their rows: those of many rows, and none since has not.

    One row proves nothing, and a few may fit by chance.
    """
    (found,) = connection.execute(_KEYS_PROVEN, {"origin": origin, "many": _MANY}).fetchone()
    return bool(found)


def unfetched(connection: sqlite3.Connection) -> list[Doubt]:
    """Uploads whose job is known and whose results could not be fetched, oldest first."""
    found = connection.execute(
        "SELECT u.upload, u.since, r.run_id, r.file, u.rows, u.job_id, u.note FROM uploads u "
        "JOIN runs r ON r.number = u.run WHERE u.state = 'known' AND u.note IS NOT NULL ORDER BY u.since, u.number"
    )
    return [
        Doubt(upload, "upload", "unfetched", since, run_id, file, None, rows, job, note)
        for upload, since, run_id, file, rows, job, note in found
    ]


def waiting(connection: sqlite3.Connection, states: Sequence[Literal["doubt", "unreadable", "missing"]]) -> list[Doubt]:
    """Lookups and uploads in these states, oldest first; rows that are missing are shown as their upload."""
    shown = shown_ids(connection)
    marks = ", ".join("?" for _ in states)
    lookups = connection.execute(
        "SELECT l.key, l.state, l.since, r.run_id, r.file, l.b_no, l.note "
        "FROM lookups l JOIN runs r ON r.number = l.run "
        f"WHERE {UNSETTLED} AND l.state <> 'missing' AND l.state IN ({marks}) ORDER BY l.since, l.id",
        states,
    ).fetchall()
    missing = (
        dict(
            connection.execute(
                f"SELECT upload, count(*) FROM lookups WHERE {UNSETTLED} AND state = 'missing' GROUP BY upload"
            )
        )
        if "missing" in states
        else {}
    )
    uploads = connection.execute(
        "SELECT u.number, u.upload, u.state, u.since, r.run_id, r.file, u.rows, u.job_id, u.note "
        f"FROM uploads u JOIN runs r ON r.number = u.run WHERE u.state IN ({marks}, 'lost', 'done') "
        "ORDER BY u.since, u.number",
        states,
    ).fetchall()
    return [
        *(
            Doubt(shown[key], "lookup", state, since, run_id, file, b_no, 1, None, note)
            for key, state, since, run_id, file, b_no, note in lookups
        ),
        *(
            Doubt(upload, "upload", *_undecided(state, since), run_id, file, None, missing.get(number, rows), job, note)
            for number, upload, state, since, run_id, file, rows, job, note in uploads
            if state in states or number in missing
        ),
    ]


def _undecided(state: str, since: float) -> tuple[str, float]:
    return ("missing" if state in ("lost", "done") else state), since


def shown_ids(connection: sqlite3.Connection) -> dict[bytes, str]:
    """What people call each lookup that is held: the beginning of its key, or all of it where two begin alike."""
    held = f"SELECT key FROM lookups WHERE {UNSETTLED} AND state <> 'asking'"
    names = {key: key.hex() for (key,) in connection.execute(held)}
    begins = Counter(name[:_SHOWN] for name in names.values())
    return {key: name[:_SHOWN] if begins[name[:_SHOWN]] == 1 else name for key, name in names.items()}


def runs(connection: sqlite3.Connection) -> list[RunRecord]:
    """All runs, oldest first."""
    found = connection.execute(
        "SELECT run_id, engine, origin, file, started, ended, outcome, paid, answered FROM runs ORDER BY number"
    )
    return [RunRecord(*values) for values in found]


def find(connection: sqlite3.Connection, b_no: str) -> list[Entry]:
    """All that is known of a business number, as it was given to the ledger, oldest first."""
    shown = shown_ids(connection)
    found = connection.execute(
        f"SELECT l.key, l.b_no, {STATE}, l.since, r.run_id, r.file, u.upload, u.job_id, {NOTE}, a.at, "
        "a.biz_status, a.bounce_prob, a.grade, a.action, a.fixed_zipcode, a.fixed_address, a.reasons "
        f"FROM lookups l {JOINED} WHERE l.b_no = ? ORDER BY l.id",
        (b_no,),
    )
    return [
        Entry(
            shown.get(key, key.hex()[:_SHOWN]),
            number,
            state,
            since,
            run_id,
            file,
            upload,
            job_id,
            note,
            at,
            None if at is None else _answer([*fields, tuple(json.loads(reasons))]),
        )
        for key, number, state, since, run_id, file, upload, job_id, note, at, *fields, reasons in found
    ]


def _answer(fields: Sequence[Any]) -> Answer:
    return Answer(**dict(zip(ANSWER_COLUMNS, fields, strict=True)))
