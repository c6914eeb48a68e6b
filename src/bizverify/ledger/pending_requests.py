"""Requests with a key that are in doubt: sent again, and answered, they settle the doubt without anybody's decision.

::

    lookup   doubt ── LookupSettled ─▶ done          upload   doubt ── UploadSettled ─▶ known

Both are refused where the ledger does not hold the request itself, which it does only if it was sent with a key.
"""

from __future__ import annotations

import math
import sqlite3
from dataclasses import dataclass
from typing import Final

from bizverify.ledger.transaction import Transaction, clean, whole
from bizverify.ledger.transitions import count_upload, keep_answer, step_upload
from bizverify.schema import Answer

REPEATS: Final = 8
"""How often a request may be sent again, in all runs together: each is paid where a promise is not kept."""

_OPEN: Final = """
    SELECT l.key, NULL, NULL, 1, q.token, q.account, q.first, :now - q.first, q.keep, q.repeats, q.content, NULL, NULL
    FROM requests q JOIN lookups l ON l.key = q.key AND l.state = 'doubt'
    WHERE q.origin = :origin AND q.repeats < :most
    UNION ALL
    SELECT NULL, u.number, u.upload, u.rows, q.token, q.account, q.first, :now - q.first, q.keep, q.repeats, q.content,
        u.offline, u.paid
    FROM requests q JOIN uploads u ON u.number = q.upload AND u.state = 'doubt'
    WHERE q.origin = :origin AND q.repeats < :most
"""
_LATEST: Final = "SELECT max(max(started), max(coalesce(ended, 0))) FROM runs"
"""What a clock has shown before."""
_YOUNG: Final = """
    SELECT count(*) FROM requests q WHERE q.first <= :now AND :now < q.first + q.keep AND q.repeats < :most
        AND (EXISTS (SELECT 1 FROM lookups l WHERE l.key = q.key AND l.state = 'doubt')
             OR EXISTS (SELECT 1 FROM uploads u WHERE u.number = q.upload AND u.state = 'doubt'))
"""


@dataclass(frozen=True, slots=True)
class Repeatable:
    """A request in doubt: of a lookup, by its ``key``, or of an ``upload`` with all its lookups' ``keys``.

    ``age`` is the seconds since it was ``first`` sent; negative where the clock was set back, and nobody knows.
    ``repeats`` is how often it was sent again.
    """

    keys: tuple[bytes, ...]
    upload: str | None
    rows: int
    token: str
    account: bytes
    first: float
    age: float
    keep: float
    repeats: int
    content: bytes
    offline: bool | None
    paid: bool | None


def repeatable(connection: sqlite3.Connection, origin: str, now: float) -> list[Repeatable]:
    """Requests to ``origin`` in doubt, the oldest first."""
    if (connection.execute(_LATEST).fetchone()[0] or now) > now:
        now = -math.inf
    found = connection.execute(f"{_OPEN} ORDER BY 7, 5", {"origin": origin, "now": now, "most": REPEATS}).fetchall()
    return [
        Repeatable(
            _keys(connection, number) if key is None else (key,),
            *values[:9],
            *(None if flag is None else bool(flag) for flag in values[9:]),
        )
        for key, number, *values in found
    ]


def young(connection: sqlite3.Connection, now: float) -> int:
    """How many requests in doubt, to any service, are still remembered there, by what it said."""
    return int(connection.execute(_YOUNG, {"now": now, "most": REPEATS}).fetchone()[0])


def _keys(connection: sqlite3.Connection, number: int) -> tuple[bytes, ...]:
    rows = connection.execute("SELECT key FROM upload_rows WHERE upload = ? ORDER BY place", (number,))
    return tuple(key for (key,) in rows)


@dataclass(frozen=True, slots=True)
class LookupSettled:
    """The service answered a lookup that was in doubt: it is paid and done."""

    key: bytes
    answer: Answer

    def write(self, tx: Transaction) -> None:
        """Keep the answer and count it as paid by the run that asked first."""
        tx.one(
            self,
            "UPDATE lookups SET state = 'done', since = :now, note = NULL WHERE key = :key AND state = 'doubt' "
            "AND EXISTS (SELECT 1 FROM requests WHERE key = :key)",
            {"key": self.key, "now": tx.now},
        )
        keep_answer(tx, self.key, self.answer)


@dataclass(frozen=True, slots=True)
class UploadSettled:
    """The service named the job of an upload that was in doubt: its rows are paid."""

    upload: str
    job_id: str
    total: int | None

    def write(self, tx: Transaction) -> None:
        """Note the job; the rows are fetched as those of any other."""
        find = "SELECT 1 FROM requests WHERE upload = (SELECT number FROM uploads WHERE upload = ?)"
        if tx.connection.execute(find, (self.upload,)).fetchone() is None:
            raise tx.out_of_order(self)
        job = {"job_id": clean(self.job_id), "total": whole(self.total), "note": None}
        step_upload(self, tx, self.upload, "known", "'doubt'", **job)
        count_upload(tx, self.upload)


@dataclass(frozen=True, slots=True)
class RequestRepeated:
    """A request is about to be sent again with its key."""

    token: str

    def write(self, tx: Transaction) -> None:
        """Count it, whatever comes of it."""
        tx.one(self, "UPDATE requests SET repeats = repeats + 1 WHERE token = :token", {"token": self.token})


Repetition = LookupSettled | UploadSettled | RequestRepeated
"""Any of them."""
