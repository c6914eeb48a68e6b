"""What is settled outside the way of a request: by hand, and when a process is found to have ended too early."""

# ruff: noqa: S608 - statements are put together from constants of this package; values are always bound

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from bizverify.errors import UsageError
from bizverify.ledger.pending_requests import sweep
from bizverify.ledger.queries import shown_ids
from bizverify.ledger.schema import UNSETTLED
from bizverify.ledger.transaction import OF_UPLOAD, ONE, Writing
from bizverify.ledger.transitions import count_upload

KILLED: Final = "the process ended while the request was under way"
_UNDECIDED: Final = "'uploaded', 'missing'"
_LIST: Final = "see what is in doubt with: bizverify resolve"


@dataclass(frozen=True, slots=True)
class Recovered:
    """What was under way when an earlier process ended.

    Put in doubt (``asking``, ``uploads``, ``labels``), or never sent (``dropped``).
    """

    asking: int
    uploads: int
    dropped: int
    labels: int = 0


@dataclass(frozen=True, slots=True)
class _Lookup:
    key: bytes


@dataclass(frozen=True, slots=True)
class _Upload:
    id: str
    number: int
    state: str


def recover(to: Writing) -> Recovered:
    """Settle what an earlier process left under way: its lock is free, so it has ended."""
    run = to.connection.execute
    asking = to.hold(UNSETTLED, "'asking'", "doubt", {"note": KILLED})
    prepared = run("SELECT number FROM uploads WHERE state = 'prepared'").fetchall()
    for (number,) in prepared:
        to.release(OF_UPLOAD, "'uploaded'", {"upload": number})
    run("UPDATE uploads SET state = 'dropped', since = ? WHERE state = 'prepared'", (to.now,))
    uploads = run(
        "UPDATE uploads SET state = 'doubt', since = ?, note = ? WHERE state IN ('gated', 'sent')", (to.now, KILLED)
    ).rowcount
    labels = run(
        "UPDATE labels SET state = 'doubt', since = ?, note = ? WHERE state = 'sent'", (to.now, KILLED)
    ).rowcount
    run("UPDATE runs SET outcome = 'killed' WHERE ended IS NULL AND outcome IS NULL")
    sweep(to)
    return Recovered(asking, uploads, len(prepared), labels)


def accept(to: Writing, ids: Iterable[str]) -> int:
    """Take lookups as lost: they are not asked again. Return how many."""

    def lookup(key: bytes) -> int:
        note = "given up by hand"
        return to.hold(ONE, "'doubt', 'unreadable', 'missing'", "lost", {"key": key, "note": note})

    def upload(number: int) -> int:
        lost = to.hold(OF_UPLOAD, _UNDECIDED, "lost", {"upload": number, "note": "given up by hand"})
        _close(to, number, "accepted")
        return lost

    return _decide(to, "accept", ids, lookup, upload)


def resend(to: Writing, ids: Iterable[str]) -> int:
    """Let lookups be asked, and perhaps paid, again. Return how many."""

    def lookup(key: bytes) -> int:
        return to.release(ONE, "'doubt', 'unreadable', 'missing', 'lost'", {"key": key})

    def upload(number: int) -> int:
        free = to.release(OF_UPLOAD, f"{_UNDECIDED}, 'lost'", {"upload": number})
        _close(to, number, "resent")
        return free

    return _decide(to, "resend", ids, lookup, upload)


def attach(to: Writing, id: str, job_id: str) -> int:
    """Say which job an upload became; the next run fetches it. Return how many of its rows are open."""
    job_id = job_id.strip()
    found = _resolve(to, id)
    if not isinstance(found, _Upload):
        raise UsageError(f"{id}: is one lookup, which has no job; {_LIST}")
    if not job_id:
        raise UsageError("the job has no id; give the one that the service shows")
    other = "SELECT upload FROM uploads WHERE job_id = ? AND number <> ? AND origin = "
    taken = to.connection.execute(
        f"{other} (SELECT origin FROM uploads WHERE number = ?)", (job_id, found.number, found.number)
    ).fetchone()
    if taken:
        raise UsageError(f"{job_id}: is the job of upload {taken[0]} already; look the job up again")
    to.connection.execute(
        f"UPDATE lookups SET state = 'uploaded', note = NULL WHERE {OF_UPLOAD} AND state = 'missing'",
        {"upload": found.number},
    )
    rows = _open_rows(to, found.number)
    if not rows or found.state not in ("doubt", "unreadable", "known", "lost", "done"):
        raise UsageError(f"{id}: no rows of this upload wait for a job; {_LIST}")
    to.connection.execute(
        "UPDATE uploads SET state = 'known', since = ?, job_id = ?, note = NULL WHERE number = ?",
        (to.now, job_id, found.number),
    )
    count_upload(to, found.id)
    _record(to, "attach", found, rows, job_id)
    return rows


def _decide(
    to: Writing, decision: str, ids: Iterable[str], lookup: Callable[[bytes], int], upload: Callable[[int], int]
) -> int:
    settled = 0
    for id in ids:
        found = _resolve(to, id)
        rows = lookup(found.key) if isinstance(found, _Lookup) else upload(found.number)
        if not rows:
            raise UsageError(f"{id}: is settled already; {_LIST}")
        _record(to, decision, found, rows, None)
        settled += rows
    return settled


def _resolve(to: Writing, id: str) -> _Lookup | _Upload:
    """Find what people mean by an id or the beginning of one; raise :class:`UsageError` unless it is one thing."""
    wanted = id.strip().lower()
    uploads = [
        _Upload(*values)
        for values in to.connection.execute(
            "SELECT upload, number, state FROM uploads "
            "WHERE state IN ('doubt', 'unreadable', 'known', 'lost', 'accepted', 'done') "
            "AND lower(substr(upload, 1, ?)) = ?",
            (len(wanted), wanted),
        )
    ]
    if exact := [upload for upload in uploads if upload.id.lower() == wanted]:
        uploads = exact
    lookups = [] if exact else [_Lookup(key) for key in shown_ids(to.connection) if key.hex().startswith(wanted)]
    found: list[_Lookup | _Upload] = [*uploads, *lookups] if wanted else []
    if not found:
        raise UsageError(f"{id}: nothing that waits to be settled has this id; {_LIST}")
    if len(found) > 1:
        raise UsageError(f"{id}: {len(found):,} ids begin like this; give more of it")
    return found[0]


def _close(to: Writing, number: int, state: str) -> None:
    """An upload that was held is settled; one that is done stays done."""
    to.connection.execute(
        "UPDATE uploads SET state = ?, since = ? WHERE number = ? AND state <> 'done'", (state, to.now, number)
    )


def _open_rows(to: Writing, number: int) -> int:
    find = f"SELECT count(*) FROM lookups WHERE {OF_UPLOAD} AND state = 'uploaded'"
    return int(to.connection.execute(find, {"upload": number}).fetchone()[0])


def _record(to: Writing, decision: str, what: _Lookup | _Upload, rows: int, job_id: str | None) -> None:
    kind, id = ("lookup", what.key.hex()) if isinstance(what, _Lookup) else ("upload", what.id)
    to.connection.execute(
        "INSERT INTO decisions (at, decision, kind, id, rows, job_id) VALUES (?, ?, ?, ?, ?, ?)",
        (to.now, decision, kind, id, rows, job_id),
    )
    sweep(to)
