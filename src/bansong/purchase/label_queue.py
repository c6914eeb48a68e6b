"""Outcomes of letters on their way to the service: each label once, and each step recorded before it.

::

    prepare ─▶ prepared ── LabelSent ─▶ sent ── LabelDone ──────▶ done
                   ▲                      ├──── LabelRefused ───▶ refused
                   │                      ├──── LabelDoubted ───▶ doubt    (also after a kill)
                   └────── LabelRetracted ┘
               prepared ── LabelRefused ─▶ refused                         (its job is gone)

A refused or doubtful label is sent again by decision only (:func:`prepare` with ``resend``). A label that differs from
the last one of its row is a new label: the service takes the latest.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal, NamedTuple

import polars as pl

from bansong.base.messages import gettext
from bansong.purchase.ledger_file import Transaction, Value, clean, flag

_LAST: Final = (
    "SELECT turn, bounced, reason, state FROM labels WHERE upload = ? AND place = ? ORDER BY turn DESC LIMIT 1"
)
_NEW: Final = "INSERT INTO labels VALUES (?, ?, ?, ?, ?, 'prepared', ?, ?, NULL)"
_AGAIN: Final = (
    "UPDATE labels SET state = 'prepared', since = ?, run = ?, note = NULL WHERE upload = ? AND place = ? AND turn = ?"
)
# the keys come as one BLOB, as in `reading`; each row that was ever uploaded is held against them once
_ROWS: Final = """
    WITH RECURSIVE places (nth) AS (SELECT 0 UNION ALL SELECT nth + 1 FROM places WHERE nth + 1 < :count),
    wanted (nth, key) AS MATERIALIZED (SELECT nth, substr(:keys, :size * nth + 1, :size) FROM places)
    SELECT w.nth, u.number, r.place, u.created
    FROM uploads u CROSS JOIN upload_rows r ON r.upload = u.number CROSS JOIN wanted w ON w.key = r.key
    WHERE u.origin = :origin AND u.job_id IS NOT NULL AND u.state IN ('known', 'done')
"""
JOB_ROWS: Final = {"nth": pl.Int64, "upload": pl.Int64, "place": pl.Int64, "created": pl.Float64}
_HELD: Final = """
    SELECT l.upload, l.place, u.job_id, r.b_no, l.bounced, l.reason, l.state, l.since, l.note
    FROM labels l JOIN uploads u ON u.number = l.upload
    JOIN upload_rows r ON r.upload = l.upload AND r.place = l.place
    WHERE l.state IN ('refused', 'doubt') AND u.origin = ? AND NOT EXISTS
        (SELECT 1 FROM labels n WHERE n.upload = l.upload AND n.place = l.place AND n.turn > l.turn)
    ORDER BY l.since, l.upload, l.place
"""


class WantedLabel(NamedTuple):
    """A label for the row at a ``place`` of an ``upload`` (its number in the ledger)."""

    upload: int
    place: int
    bounced: bool
    reason: str | None


class QueuedLabel(NamedTuple):
    """A label in the ledger, the ``turn``-th of its row."""

    upload: int
    place: int
    turn: int
    bounced: bool
    reason: str | None


@dataclass(frozen=True, slots=True)
class LabelQueue:
    """Labels to be sent now, and the number of those that the service has or the ledger holds back."""

    labels: tuple[QueuedLabel, ...]
    done: int
    held: int


@dataclass(frozen=True, slots=True)
class HeldLabel:
    """A label that was refused, or sent without an answer; it is not sent again by itself."""

    upload: int
    place: int
    job_id: str
    b_no: str
    bounced: bool
    reason: str | None
    state: Literal["refused", "doubt"]
    since: float
    note: str | None


@dataclass(frozen=True, slots=True)
class _LabelStep:
    LEGAL: ClassVar[str]
    STATE: ClassVar[str]

    label: QueuedLabel
    note: str | None = field(default=None, kw_only=True)

    def write(self, tx: Transaction) -> None:
        upload, place, turn, *_ = self.label
        row: dict[str, Value] = {"upload": upload, "place": place, "turn": turn}
        tx.one(
            self,
            f"UPDATE labels SET state = :state, since = :now, note = :note "  # noqa: S608 - the states are this module's
            f"WHERE upload = :upload AND place = :place AND turn = :turn AND state IN ({self.LEGAL})",
            row | {"state": self.STATE, "now": tx.now, "note": clean(self.note)},
        )

    @property
    def upload(self) -> str:
        return gettext("{upload}, row {row}", upload=self.label.upload, row=self.label.place)


class LabelSent(_LabelStep):
    """The label is about to be sent: from now on it may have arrived."""

    LEGAL, STATE = "'prepared'", "sent"


class LabelDone(_LabelStep):
    """The service took the label; it is not sent again."""

    LEGAL, STATE = "'sent'", "done"


class LabelRefused(_LabelStep):
    """The service did not take the label, or does not have its job any more; it is held."""

    LEGAL, STATE = "'sent', 'prepared'", "refused"


class LabelDoubted(_LabelStep):
    """The label may have been sent and taken; it is held."""

    LEGAL, STATE = "'sent', 'doubt'", "doubt"


class LabelRetracted(_LabelStep):
    """The label was certainly not sent; it is to be sent as before."""

    LEGAL, STATE = "'sent'", "prepared"


@dataclass(frozen=True, slots=True)
class JobNumbered:
    """A job's results prove the service's key of its first row."""

    upload: str
    base: int

    def write(self, tx: Transaction) -> None:
        tx.one(self, "UPDATE uploads SET base = :base WHERE upload = :id", {"base": self.base, "id": self.upload})


LabelChange = LabelSent | LabelDone | LabelRefused | LabelDoubted | LabelRetracted | JobNumbered


def prepare(tx: Transaction, run_id: str, wanted: Iterable[WantedLabel], *, resend: bool) -> LabelQueue:
    """Record labels not sent before, at most one a row; ``resend``: also refused and doubtful ones, as a decision."""
    run, states, again = tx.run(run_id), Counter[str](), Counter[int]()
    queue = []
    for label in wanted:
        state, turn = _standing(tx, run, label._replace(reason=clean(label.reason) or None))
        if resend and state in ("refused", "doubt"):
            tx.connection.execute(_AGAIN, (tx.now, run, label.upload, label.place, turn))
            again[label.upload] += 1
            state = "prepared"
        states[state] += 1
        if state == "prepared":
            queue.append(QueuedLabel(label.upload, label.place, turn, label.bounced, clean(label.reason) or None))
    tx.connection.executemany(
        "INSERT INTO decisions (at, decision, kind, id, rows, job_id) "
        "SELECT ?, 'resend', 'label', upload, ?, job_id FROM uploads WHERE number = ?",
        ((tx.now, rows, upload) for upload, rows in again.items()),
    )
    if not queue:
        tx.connection.execute("DELETE FROM runs WHERE number = ?", (run,))
    return LabelQueue(tuple(queue), states["done"], states["refused"] + states["doubt"])


def _standing(tx: Transaction, run: int, label: WantedLabel) -> tuple[str, int]:
    # a label is new if its row had none, or another one last
    upload, place, bounced, reason = label
    while True:
        last = tx.connection.execute(_LAST, (upload, place)).fetchone()
        if last is None or (last[1], last[2]) == (bounced, reason) or last[3] != "prepared":
            break
        tx.connection.execute("DELETE FROM labels WHERE (upload, place, turn) = (?, ?, ?)", (upload, place, last[0]))
    if last is not None and (last[1], last[2]) == (bounced, reason):
        return last[3], last[0]
    turn = 0 if last is None else last[0] + 1
    tx.connection.execute(_NEW, (upload, place, turn, bounced, reason, tx.now, run))
    return "prepared", turn


def job_rows(connection: sqlite3.Connection, keys: pl.Series, origin: str) -> pl.DataFrame:
    """Return the rows of jobs at ``origin`` that hold ``keys``: :data:`JOB_ROWS`; ``nth``: position in ``keys``."""
    if keys.is_empty():
        return pl.DataFrame(schema=JOB_ROWS)
    values = {"keys": b"".join(keys), "size": len(keys[0]), "count": len(keys), "origin": origin}
    return pl.DataFrame(connection.execute(_ROWS, values).fetchall(), schema=JOB_ROWS, orient="row")


def upload_flags(connection: sqlite3.Connection, origin: str) -> list[tuple[bool | None, bool | None]]:
    found = connection.execute("SELECT DISTINCT offline, paid FROM uploads WHERE origin = ?", (origin,))
    return [(flag(offline), flag(paid)) for offline, paid in found]


def held_labels(connection: sqlite3.Connection, origin: str) -> list[HeldLabel]:
    """Return the refused and doubtful labels at ``origin``, oldest first, unless their row got another label since."""
    return [
        HeldLabel(upload, place, job_id, b_no, bool(bounced), reason, state, since, note)
        for upload, place, job_id, b_no, bounced, reason, state, since, note in connection.execute(_HELD, (origin,))
    ]
