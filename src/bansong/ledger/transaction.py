"""A transaction of the ledger, and the steps that several changes share."""

# ruff: noqa: S608 - statements are put together from constants of this package; values are always bound

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bansong.errors import LedgerError, Problem
from bansong.schema import Answer
from bansong.translation import Phrase

RECORD_INCONSISTENT: Final = Problem(
    "ledger.record_inconsistent",
    "{path}: {name}{of} does not follow from what is recorded, so nothing of it was; this is a defect of "
    "bansong, please report it",
)
RUN_NOT_BEGUN: Final = Problem(
    "ledger.run_not_begun", "{path}: the run {run_id} was not begun; this is a defect of bansong"
)

Value = str | int | float | bytes | None
RAW_KEPT: Final = 64 * 1024

ONE: Final = "key = :key"

OF_UPLOAD: Final = """upload = :upload AND id IN
    (SELECT l.id FROM upload_rows r JOIN lookups l ON l.key = r.key WHERE r.upload = :upload)"""
"""Lookups of an upload that were not asked otherwise since."""

_ANSWERED: Final = "EXISTS (SELECT 1 FROM answers WHERE lookup = id)"
_ANSWER: Final = "INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"

_NEEDLESS: Final = """
    DELETE FROM requests WHERE first + keep < :now
        OR key IS NOT NULL AND NOT EXISTS
            (SELECT 1 FROM lookups l WHERE l.key = requests.key AND l.state IN ('asking', 'doubt'))
        OR upload IS NOT NULL AND NOT EXISTS
            (SELECT 1 FROM uploads u
             WHERE u.number = requests.upload AND u.state IN ('prepared', 'gated', 'sent', 'doubt'))
"""

_as_json: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class StoredRequest:
    """A request with the key ``token`` and its compressed ``content``.

    ``account`` identifies the API key; ``keep``: seconds for which the service remembers ``token``.
    """

    token: str
    origin: str
    account: bytes
    keep: float
    content: bytes


@dataclass(slots=True)
class Transaction:
    """One transaction under way at the time ``now``; ``path``: the ledger's, for errors."""

    connection: sqlite3.Connection
    now: float
    path: Path
    _paid: Counter[int] = field(default_factory=Counter)
    _answered: Counter[int] = field(default_factory=Counter)

    def one(self, change: object, sql: str, values: Mapping[str, Value]) -> None:
        """Run a statement that must change one row; else the change does not fit the records and is refused."""
        if self.connection.execute(sql, values).rowcount != 1:
            raise self.out_of_order(change)

    def out_of_order(self, change: object) -> LedgerError:
        """Return the error for a change that does not fit; it keeps a lookup from being paid twice."""
        name = type(change).__name__
        key, upload = getattr(change, "key", None), getattr(change, "upload", None)
        of = Phrase(" of upload {upload}", upload=upload)
        if isinstance(key, bytes):
            of = Phrase(" of lookup {hex}", hex=key.hex())
        return LedgerError(RECORD_INCONSISTENT, path=self.path, name=name, of=of)

    def run(self, run_id: str) -> int:
        """Return the number of a run that was begun."""
        found = self.connection.execute("SELECT number FROM runs WHERE run_id = ?", (run_id,)).fetchone()
        if found is None:
            raise LedgerError(RUN_NOT_BEGUN, path=self.path, run_id=run_id)
        return int(found[0])

    def count(self, run: int, *, paid: int = 0, answered: int = 0) -> None:
        """Count paid and answered lookups of a run; written once, when the transaction ends."""
        self._paid[run] += paid
        self._answered[run] += answered

    def finish(self) -> None:
        """Write the counts."""
        self.connection.executemany(
            "UPDATE runs SET paid = paid + ?, answered = answered + ? WHERE number = ?",
            [(paid, self._answered[run], run) for run, paid in self._paid.items()],
        )

    def answer(self, answers: Iterable[tuple[int, Answer]], run: int, upload: int | None) -> None:
        """Keep the answer of each lookup (by id), replacing an earlier one."""
        self.connection.executemany(
            _ANSWER, ((lookup, self.now, run, upload, *_fields(answer)) for lookup, answer in answers)
        )

    def release(self, which: str, states: str, values: Mapping[str, Value]) -> int:
        """Allow lookups in ``states`` to be asked again: they return to their answer, or are deleted without one."""
        where = f"{which} AND state IN ({states})"
        gone = self.connection.execute(f"DELETE FROM lookups WHERE {where} AND NOT {_ANSWERED}", values).rowcount
        kept = self.connection.execute(
            f"UPDATE lookups SET state = 'done', upload = NULL, note = NULL, raw = NULL WHERE {where}", values
        ).rowcount
        return gone + kept

    def refuse(self, which: str, state: str, values: Mapping[str, Value]) -> int:
        """Record that lookups were refused (``:note``), so not paid: they return to their answer if they have one."""
        return self.connection.execute(
            f"""UPDATE lookups SET upload = NULL, since = :now,
                state = CASE WHEN {_ANSWERED} THEN 'done' ELSE 'refused' END,
                note = CASE WHEN {_ANSWERED} THEN NULL ELSE :note END
            WHERE {which} AND state = '{state}'""",
            {**values, "now": self.now},
        ).rowcount

    def hold(self, which: str, states: str, state: str, values: Mapping[str, Value]) -> int:
        """Hold lookups in ``states`` in ``state`` (with ``:note``), so that they are not asked again by themselves."""
        return self.connection.execute(
            f"UPDATE lookups SET state = '{state}', note = :note, since = :now WHERE {which} AND state IN ({states})",
            {**values, "now": self.now},
        ).rowcount

    def store_request(
        self, request: StoredRequest | None, *, key: bytes | None = None, upload: int | None = None
    ) -> None:
        """Store a request, if any, that is about to be sent for the first time."""
        if request is not None:
            self.connection.execute(
                "INSERT INTO requests VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0)",
                (request.token, key, upload, request.origin, request.account, self.now, request.keep, request.content),
            )

    def delete_request(self, *, key: bytes | None = None, upload: int | None = None) -> None:
        """Delete the stored request of a lookup or upload once it is settled."""
        self.connection.execute("DELETE FROM requests WHERE key = ? OR upload = ?", (key, upload))

    def delete_old_requests(self) -> None:
        """Delete requests that are too old to be repeated, or settled."""
        self.connection.execute(_NEEDLESS, {"now": self.now})


def clean(text: str | None) -> str | None:
    """Return the text with everything replaced that UTF-8 cannot hold (half a surrogate pair)."""
    if text is None or text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def whole(number: int | None) -> int | None:
    """Return the number, or ``None`` if 64 bits cannot hold it."""
    return number if number is not None and number.bit_length() < 64 else None


def _fields(answer: Answer) -> tuple[Value, ...]:
    return (
        clean(answer.biz_status),
        answer.bounce_prob,
        clean(answer.grade),
        clean(answer.action),
        clean(answer.fixed_zipcode),
        clean(answer.fixed_address),
        clean(_as_json(answer.reasons)),
    )
