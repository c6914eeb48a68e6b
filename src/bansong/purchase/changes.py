"""Changes of lookups, uploads and labels in the ledger, and the limits of trial purchases.

::

    lookup   ── LookupAsked ─▶ asking
                                 ├── LookupAnswered ───▶ done
                                 ├── LookupUnreadable ─▶ unreadable
                                 ├── LookupDoubted ────▶ doubt
                                 ├── LookupRefused ────▶ refused
                                 └── LookupRetracted ──▶ the state before
             ── UploadPrepared ─▶ uploaded ── JobFetched ─▶ done, or missing
                                           ── JobLost ────▶ missing

    upload   ── UploadPrepared ─▶ prepared ── UploadGated ─▶ gated ── UploadSent ─▶ sent
             prepared, gated       ── UploadDropped ────▶ dropped
             prepared, gated, sent ── UploadRefused ────▶ refused
             prepared, gated, sent ── UploadUnreadable ─▶ unreadable
             prepared, gated, sent ── UploadDoubted ────▶ doubt
             gated, sent           ── JobKnown ─────────▶ known
                                 known ├── JobUnfetched ─▶ known
                                       ├── JobFetched ───▶ done ── JobFetched ─▶ done
                                       └── JobLost ──────▶ lost

    label    ── prepare_labels ─▶ prepared ── LabelSent ─▶ sent ── LabelDone ─▶ done
             prepared, sent ── LabelRefused ────▶ refused
             sent           ── LabelDoubted ────▶ doubt
             sent           ── LabelRetracted ──▶ prepared

A change that does not fit the present state is refused with its transaction. A lookup may be sent or prepared if it is
new, was refused, or is done (its answer may be too old); never if it may have been paid without an answer. A refused or
doubtful label is sent again only with ``resend``. A label that differs from the last one of its row is a new label: the
service takes the latest.
"""

# ruff: noqa: S608 - statements consist of constants of this package; values are always bound

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, NamedTuple

from bansong.base.messages import gettext, gettext_noop
from bansong.base.schema import Answer
from bansong.purchase.ledger_file import (
    ANSWERED,
    OF_UPLOAD,
    ONE,
    RAW_KEPT,
    UNSETTLED,
    StoredRequest,
    Transaction,
    Value,
    clean,
    whole,
)

_SPENT: Final = """trial AND state NOT IN ('prepared', 'dropped', 'refused')
    AND number > coalesce((SELECT t.upload FROM trials t WHERE t.origin = uploads.origin), 0)"""
SPENT_TRIALS: Final = f"SELECT number FROM uploads WHERE {_SPENT}"  # trials without an answer, perhaps paid
_UNANSWERED: Final = f"""
    SELECT count(*) FROM lookups
    WHERE {UNSETTLED} AND state IN ('doubt', 'unreadable', 'lost') AND upload IS NULL
        AND run IN (SELECT number FROM runs WHERE origin = :origin AND number > max(
            coalesce((SELECT run FROM trials WHERE origin = :origin), 0),
            coalesce((SELECT max(number) FROM runs WHERE origin = :origin AND answered > 0), 0)))
"""

_MIN_PREVIEW: Final = 10  # so many answers may be a preview of the first rows
_ANSWERED: Final = """
    SELECT r.place FROM upload_rows r JOIN lookups l ON l.key = r.key
    JOIN answers a ON a.lookup = l.id AND a.upload = r.upload WHERE r.upload = ?
"""


def spent_trials(connection: sqlite3.Connection, origin: str) -> int:
    """Count the trial uploads to ``origin``, perhaps paid, that were made since the last answered upload."""
    count = f"SELECT count(*) FROM uploads WHERE origin = ? AND {_SPENT}"
    return int(connection.execute(count, (origin,)).fetchone()[0])


def unanswered_requests(connection: sqlite3.Connection, origin: str) -> int:
    """Count the unanswered single requests to ``origin``, perhaps paid, of runs after the last run with an answer."""
    return int(connection.execute(_UNANSWERED, {"origin": origin}).fetchone()[0])


def has_enough_answers(answered: Collection[int], rows: int) -> bool:
    """Whether half of the rows are answered, or ten rows and half of those up to the last answered one (a preview)."""
    return 2 * len(answered) >= rows or (len(answered) >= _MIN_PREVIEW and 2 * len(answered) >= max(answered) + 1)


def end_trial(tx: Transaction, upload: int) -> None:
    """Reset the count of trials if an upload has enough answers to show that the service works."""
    answered = [place for (place,) in tx.connection.execute(_ANSWERED, (upload,))]
    (rows,) = tx.connection.execute("SELECT rows FROM uploads WHERE number = ?", (upload,)).fetchone()
    if not has_enough_answers(answered, rows):
        return
    tx.connection.execute(
        "INSERT INTO trials (origin, upload, run) "
        "SELECT origin, (SELECT max(number) FROM uploads), 0 FROM uploads WHERE number = ? "
        "ON CONFLICT (origin) DO UPDATE SET upload = excluded.upload",
        (upload,),
    )


def allow_trial(tx: Transaction, origin: str) -> None:
    """Allow one more trial upload to ``origin``, and reset the count of its unanswered single requests."""
    oldest = f"SELECT min(number) FROM uploads WHERE origin = :origin AND {_SPENT}"
    tx.connection.execute(
        f"INSERT INTO trials (origin, upload, run) VALUES (:origin, coalesce(({oldest}), 0), "
        "coalesce((SELECT max(number) FROM runs), 0)) "
        "ON CONFLICT (origin) DO UPDATE SET upload = max(upload, excluded.upload), run = excluded.run",
        {"origin": origin},
    )
    tx.connection.execute(
        "INSERT INTO decisions (at, decision, kind, id, rows) VALUES (?, 'retry trial', 'service', ?, 0)",
        (tx.now, origin),
    )


def follow_numbers(tx: Transaction) -> None:
    """Lower the numbers in ``trials`` after uploads or runs were deleted, since SQLite reuses their numbers."""
    tx.connection.execute(
        "UPDATE trials SET upload = min(upload, coalesce((SELECT max(number) FROM uploads), 0)), "
        "run = min(run, coalesce((SELECT max(number) FROM runs), 0))"
    )


NO_ANSWER: Final = gettext_noop("the service returned no answer for this row")

_ASK: Final = """
    INSERT INTO lookups (key, b_no, state, since, run, upload) VALUES (:key, :b_no, :state, :now, :run, :upload)
    ON CONFLICT (key) DO UPDATE SET
        state = excluded.state, since = excluded.since, run = excluded.run, upload = excluded.upload, note = NULL
    WHERE state = 'done' OR state = 'refused'
"""
# a refused lookup that has an earlier answer becomes done again
_REFUSE: Final = f"""
    UPDATE lookups SET upload = NULL, since = :now,
        state = CASE WHEN {ANSWERED} THEN 'done' ELSE 'refused' END,
        note = CASE WHEN {ANSWERED} THEN NULL ELSE :note END
    WHERE key = :key AND state = 'asking'
"""
_ROWS: Final = """
    SELECT r.place, l.id, l.state FROM upload_rows r
    LEFT JOIN lookups l ON l.key = r.key AND l.upload = r.upload AND l.state IN ('uploaded', 'missing')
    WHERE r.upload = ? ORDER BY r.place
"""


@dataclass(frozen=True, slots=True)
class LookupAsked:
    """Records that a lookup is about to be sent to /verify."""

    key: bytes
    b_no: str
    run_id: str
    request: StoredRequest | None = None

    def write(self, tx: Transaction) -> None:
        values: dict[str, Value] = {"key": self.key, "b_no": self.b_no, "state": "asking", "upload": None}
        tx.one(self, _ASK, values | {"now": tx.now, "run": tx.run(self.run_id)})
        tx.store_request(self.request, key=self.key)


@dataclass(frozen=True, slots=True)
class LookupAnswered:
    """Records that the service answered a lookup, which is then paid and done."""

    key: bytes
    answer: Answer

    def write(self, tx: Transaction) -> None:
        done = "UPDATE lookups SET state = 'done', since = :now WHERE key = :key AND state = 'asking'"
        tx.one(self, done, {"key": self.key, "now": tx.now})
        keep_answer(tx, self.key, self.answer)


def keep_answer(tx: Transaction, key: bytes, answer: Answer) -> None:
    """Store the answer of a lookup, and count it as paid and answered."""
    lookup, run = tx.connection.execute("SELECT id, run FROM lookups WHERE key = ?", (key,)).fetchone()
    tx.answer([(lookup, answer)], run, None)
    tx.count(run, paid=1, answered=1)
    tx.delete_request(key=key)


@dataclass(frozen=True, slots=True)
class LookupUnreadable:
    """Records an unreadable answer: the lookup is probably paid, and is sent again only if the user decides so."""

    key: bytes
    raw: bytes
    note: str

    def write(self, tx: Transaction) -> None:
        tx.one(
            self,
            "UPDATE lookups SET state = 'unreadable', since = :now, note = :note, raw = :raw "
            "WHERE key = :key AND state = 'asking'",
            {"key": self.key, "now": tx.now, "note": clean(self.note), "raw": self.raw[:RAW_KEPT]},
        )
        (run,) = tx.connection.execute("SELECT run FROM lookups WHERE key = ?", (self.key,)).fetchone()
        tx.count(run, paid=1)
        tx.delete_request(key=self.key)


@dataclass(frozen=True, slots=True)
class _LookupStep:
    key: bytes
    note: str | None = None

    def write(self, tx: Transaction) -> None:
        if not self._step(tx, {"key": self.key, "note": clean(self.note)}):
            raise tx.out_of_order(self)

    def _step(self, tx: Transaction, values: dict[str, Value]) -> int:
        raise NotImplementedError


class LookupRefused(_LookupStep):
    """Records that the service refused a lookup: it is not paid and may be sent again."""

    def _step(self, tx: Transaction, values: dict[str, Value]) -> int:
        tx.delete_request(key=self.key)
        return tx.connection.execute(_REFUSE, values | {"now": tx.now}).rowcount


class LookupRetracted(_LookupStep):
    """Records that a lookup was certainly not sent."""

    def _step(self, tx: Transaction, values: dict[str, Value]) -> int:
        tx.delete_request(key=self.key)
        return tx.release(ONE, "'asking'", values)


class LookupDoubted(_LookupStep):
    """Records that a lookup was perhaps sent, with unknown outcome."""

    def _step(self, tx: Transaction, values: dict[str, Value]) -> int:
        return tx.hold(ONE, "'asking', 'doubt'", "doubt", values)


@dataclass(frozen=True, slots=True)
class UploadPrepared:
    """Records that lookups are about to be uploaded, in the order of ``rows``."""

    upload: str
    run_id: str
    rows: Sequence[tuple[bytes, str]]  # lookup key and business number
    offline: bool | None
    paid: bool | None
    origin: str
    request: StoredRequest | None = None
    trial: bool = False  # a small upload that tests whether the service answers

    def write(self, tx: Transaction) -> None:
        run = tx.run(self.run_id)
        known = tx.connection.execute("SELECT 1 FROM uploads WHERE upload = ?", (self.upload,)).fetchone()
        if known or not self.rows:
            raise tx.out_of_order(self)
        number = tx.connection.execute(
            "INSERT INTO uploads (upload, run, origin, state, since, created, rows, offline, paid, trial) "
            "VALUES (?, ?, ?, 'prepared', ?, ?, ?, ?, ?, ?)",
            (self.upload, run, self.origin, tx.now, tx.now, len(self.rows), self.offline, self.paid, self.trial),
        ).lastrowid
        shared = {"state": "uploaded", "now": tx.now, "run": run, "upload": number}
        asked = tx.connection.executemany(_ASK, ({"key": key, "b_no": b_no} | shared for key, b_no in self.rows))
        if asked.rowcount != len(self.rows):
            raise tx.out_of_order(self)
        tx.connection.executemany(
            "INSERT INTO upload_rows VALUES (?, ?, ?, ?)",
            ((number, place, key, b_no) for place, (key, b_no) in enumerate(self.rows)),
        )
        tx.store_request(self.request, upload=number)


def step_upload(change: object, tx: Transaction, upload: str, state: str, legal: str, **more: Value) -> dict[str, int]:
    """Move an upload from one of the ``legal`` states to ``state``; return the SQL parameter of :data:`OF_UPLOAD`."""
    columns = "".join(f", {name} = :{name}" for name in more)
    tx.one(
        change,
        f"UPDATE uploads SET state = :state, since = :now{columns} WHERE upload = :id AND state IN ({legal})",
        {"id": upload, "state": state, "now": tx.now, **more},
    )
    (number,) = tx.connection.execute("SELECT number FROM uploads WHERE upload = ?", (upload,)).fetchone()
    if state not in ("gated", "sent", "doubt"):
        tx.delete_request(upload=number)
    return {"upload": number}


@dataclass(frozen=True, slots=True)
class _UploadStep:
    LEGAL: ClassVar[str]
    STATE: ClassVar[str]
    FREES_ROWS: ClassVar[bool] = False

    upload: str
    note: str | None = None

    def write(self, tx: Transaction) -> None:
        which = step_upload(self, tx, self.upload, self.STATE, self.LEGAL, note=clean(self.note))
        if self.FREES_ROWS:
            tx.release(OF_UPLOAD, "'uploaded'", which)


class UploadGated(_UploadStep):
    """Records that the last bytes of an upload are about to be sent; from then on the service may have accepted it."""

    LEGAL, STATE = "'prepared'", "gated"


class UploadSent(_UploadStep):
    """Records that the last byte of an upload was sent."""

    LEGAL, STATE = "'gated'", "sent"


class UploadRefused(_UploadStep):
    """Records that the service refused a whole upload: it is not paid, and its lookups may be sent again."""

    LEGAL, STATE, FREES_ROWS = "'prepared', 'gated', 'sent'", "refused", True


class UploadDropped(_UploadStep):
    """Records that the last bytes of an upload were certainly not sent."""

    # also from gated: the run may stop between this commit and the last bytes
    LEGAL, STATE, FREES_ROWS = "'prepared', 'gated'", "dropped", True


class UploadDoubted(_UploadStep):
    """Records that an upload was perhaps sent, with unknown outcome."""

    LEGAL, STATE = "'prepared', 'gated', 'sent', 'doubt'", "doubt"


@dataclass(frozen=True, slots=True)
class UploadUnreadable:
    """Records an unreadable answer to an upload: it is perhaps paid, and its job is unknown."""

    upload: str
    raw: bytes
    note: str

    def write(self, tx: Transaction) -> None:
        more: dict[str, Value] = {"note": clean(self.note), "raw": self.raw[:RAW_KEPT]}
        step_upload(self, tx, self.upload, "unreadable", "'prepared', 'gated', 'sent'", **more)


@dataclass(frozen=True, slots=True)
class JobKnown:
    """Records the id of an upload's job, as the service returned it; the rows of the upload count as paid."""

    upload: str
    job_id: str
    total: int | None

    def write(self, tx: Transaction) -> None:
        job_id = clean(self.job_id)
        same = "SELECT 1 FROM uploads WHERE upload = ? AND job_id = ? AND state = 'known'"
        if tx.connection.execute(same, (self.upload, job_id)).fetchone():
            return
        job = {"job_id": job_id, "total": whole(self.total), "note": None}
        step_upload(self, tx, self.upload, "known", "'gated', 'sent'", **job)
        count_upload(tx, self.upload)


def count_upload(tx: Transaction, upload: str) -> None:
    """Count the rows of an upload as paid, unless they were counted before."""
    find = "SELECT run, rows, counted FROM uploads WHERE upload = ?"
    run, rows, counted = tx.connection.execute(find, (upload,)).fetchone()
    if not counted:
        tx.connection.execute("UPDATE uploads SET counted = 1 WHERE upload = ?", (upload,))
        tx.count(run, paid=rows)


@dataclass(frozen=True, slots=True)
class JobFetched:
    """Records the fetched results of a job: answers, and error texts, by row of the upload (from 0)."""

    upload: str
    answers: Mapping[int, Answer]
    faults: Mapping[int, str]
    note: str | None  # on the whole job
    base: int | None = None  # the service's key of the first row, if proven

    def write(self, tx: Transaction) -> None:
        number = step_upload(self, tx, self.upload, "done", "'known', 'done'", note=clean(self.note))["upload"]
        (run,) = tx.connection.execute("SELECT run FROM uploads WHERE number = ?", (number,)).fetchone()
        if self.base is not None:
            tx.connection.execute("UPDATE uploads SET base = ? WHERE number = ?", (self.base, number))
        rows = tx.connection.execute(_ROWS, (number,)).fetchall()
        if not (self.answers.keys() | self.faults.keys()) <= set(range(len(rows))):
            raise tx.out_of_order(self)
        # a row that was settled before (by hand, or by an earlier fetch) has no id here
        found = [(lookup, self.answers[place]) for place, lookup, _ in rows if lookup and place in self.answers]
        tx.answer(found, run, number)
        tx.connection.executemany(
            "UPDATE lookups SET state = 'done', since = ?, upload = NULL, note = NULL WHERE id = ?",
            ((tx.now, lookup) for lookup, _ in found),
        )
        tx.connection.executemany(
            "UPDATE lookups SET state = 'missing', since = ?, note = ? WHERE id = ?",
            (
                (tx.now, clean(self.faults.get(place, gettext(NO_ANSWER))), lookup)
                for place, lookup, state in rows
                if lookup and place not in self.answers and (state == "uploaded" or place in self.faults)
            ),
        )
        tx.count(run, answered=len(found))
        if found:
            end_trial(tx, number)


@dataclass(frozen=True, slots=True)
class JobUnfetched:
    """Records that the results of a job could not be fetched; a later run tries again, free of charge."""

    upload: str
    note: str

    def write(self, tx: Transaction) -> None:
        noted = "UPDATE uploads SET note = :note WHERE upload = :id AND state = 'known'"
        tx.one(self, noted, {"id": self.upload, "note": clean(self.note)})


@dataclass(frozen=True, slots=True)
class JobLost:
    """Records that a job failed, or the service lost it: no answers will come."""

    upload: str
    note: str

    def write(self, tx: Transaction) -> None:
        note = clean(self.note)
        done = "SELECT 1 FROM uploads WHERE upload = ? AND state IN ('done', 'lost')"
        if not tx.connection.execute(done, (self.upload,)).fetchone():
            which = step_upload(self, tx, self.upload, "lost", "'known'", note=note)
            tx.hold(OF_UPLOAD, "'uploaded'", "missing", {**which, "note": note})


_LAST_LABEL: Final = (
    "SELECT turn, bounced, reason, state FROM labels WHERE upload = ? AND place = ? ORDER BY turn DESC LIMIT 1"
)
_NEW_LABEL: Final = "INSERT INTO labels VALUES (?, ?, ?, ?, ?, 'prepared', ?, ?, NULL)"
_LABEL_AGAIN: Final = (
    "UPDATE labels SET state = 'prepared', since = ?, run = ?, note = NULL WHERE upload = ? AND place = ? AND turn = ?"
)


class RowLabel(NamedTuple):
    """A label of an uploaded row: whether its letter came back, and why."""

    upload: int  # number in the ledger
    place: int  # of the row in the upload, from 0
    bounced: bool
    reason: str | None
    turn: int = 0  # counts the labels of a row


@dataclass(frozen=True, slots=True)
class LabelQueue:
    """Labels to be sent now, and counts of those sent before (``done``) and held back (``held``)."""

    labels: tuple[RowLabel, ...]
    done: int
    held: int


@dataclass(frozen=True, slots=True)
class _LabelStep:
    LEGAL: ClassVar[str]
    STATE: ClassVar[str]

    label: RowLabel
    note: str | None = field(default=None, kw_only=True)

    def write(self, tx: Transaction) -> None:
        tx.one(
            self,
            f"UPDATE labels SET state = :state, since = :now, note = :note "
            f"WHERE upload = :upload AND place = :place AND turn = :turn AND state IN ({self.LEGAL})",
            self.label._asdict() | {"state": self.STATE, "now": tx.now, "note": clean(self.note)},
        )

    @property
    def upload(self) -> str:
        return gettext("{upload}, row {row}", upload=self.label.upload, row=self.label.place)


class LabelSent(_LabelStep):
    """Records that a label is about to be sent; from then on the service may have accepted it."""

    LEGAL, STATE = "'prepared'", "sent"


class LabelDone(_LabelStep):
    """Records that the service accepted a label."""

    LEGAL, STATE = "'sent'", "done"


class LabelRefused(_LabelStep):
    """Records that the service refused a label, or lost its job; the label is held back."""

    LEGAL, STATE = "'sent', 'prepared'", "refused"


class LabelDoubted(_LabelStep):
    """Records that a label was perhaps sent, with unknown outcome; it is held back."""

    LEGAL, STATE = "'sent', 'doubt'", "doubt"


class LabelRetracted(_LabelStep):
    """Records that a label was certainly not sent."""

    LEGAL, STATE = "'sent'", "prepared"


@dataclass(frozen=True, slots=True)
class JobNumbered:
    """Records the service's row key of a job's first row (``base``), which the results of the job prove."""

    upload: str
    base: int

    def write(self, tx: Transaction) -> None:
        tx.one(self, "UPDATE uploads SET base = :base WHERE upload = :id", {"base": self.base, "id": self.upload})


LabelChange = LabelSent | LabelDone | LabelRefused | LabelDoubted | LabelRetracted | JobNumbered


def prepare_labels(tx: Transaction, run_id: str, wanted: Iterable[RowLabel], *, resend: bool) -> LabelQueue:
    """Record labels to send; ``resend`` sends refused and doubtful ones again, and logs this as the user's decision."""
    run, states, again = tx.run(run_id), Counter[str](), Counter[int]()
    queue = []
    for one in wanted:
        state, label = _find_or_add_label(tx, run, one._replace(reason=clean(one.reason) or None))
        if resend and state in ("refused", "doubt"):
            tx.connection.execute(_LABEL_AGAIN, (tx.now, run, label.upload, label.place, label.turn))
            again[label.upload] += 1
            state = "prepared"
        states[state] += 1
        if state == "prepared":
            queue.append(label)
    tx.connection.executemany(
        "INSERT INTO decisions (at, decision, kind, id, rows, job_id) "
        "SELECT ?, 'resend', 'label', upload, ?, job_id FROM uploads WHERE number = ?",
        ((tx.now, rows, upload) for upload, rows in again.items()),
    )
    if not queue:
        tx.connection.execute("DELETE FROM runs WHERE number = ?", (run,))
    return LabelQueue(tuple(queue), states["done"], states["refused"] + states["doubt"])


def _find_or_add_label(tx: Transaction, run: int, label: RowLabel) -> tuple[str, RowLabel]:
    # return the row's last label with its state if it is equal, else a new one; unsent other labels are dropped
    upload, place, bounced, reason, _ = label
    while True:
        last = tx.connection.execute(_LAST_LABEL, (upload, place)).fetchone()
        if last is None or (last[1], last[2]) == (bounced, reason) or last[3] != "prepared":
            break
        tx.connection.execute("DELETE FROM labels WHERE (upload, place, turn) = (?, ?, ?)", (upload, place, last[0]))
    if last is not None and (last[1], last[2]) == (bounced, reason):
        return last[3], label._replace(turn=last[0])
    turn = 0 if last is None else last[0] + 1
    tx.connection.execute(_NEW_LABEL, (upload, place, turn, bounced, reason, tx.now, run))
    return "prepared", label._replace(turn=turn)
