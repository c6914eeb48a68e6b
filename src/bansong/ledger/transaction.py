"""What the changes write with: the connection inside one transaction, and the steps that several of them share."""

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
"""The lookup of a key."""

OF_UPLOAD: Final = """upload = :upload AND id IN
    (SELECT l.id FROM upload_rows r JOIN lookups l ON l.key = r.key WHERE r.upload = :upload)"""
"""The lookups that went with an upload and have not gone another way since."""

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
    """What is sent with the key ``token``: ``content``, compressed.

    ``account`` marks the API key that it is sent with, ``keep`` is for how many seconds the service remembers it.
    """

    token: str
    origin: str
    account: bytes
    keep: float
    content: bytes


@dataclass(slots=True)
class Transaction:
    """One transaction under way: ``now`` is its time, ``path`` the ledger's, for errors."""

    connection: sqlite3.Connection
    now: float
    path: Path
    _paid: Counter[int] = field(default_factory=Counter)
    _answered: Counter[int] = field(default_factory=Counter)

    def one(self, change: object, sql: str, values: Mapping[str, Value]) -> None:
        """Run a statement that must change one row; a change that does not fit what is known is refused here."""
        if self.connection.execute(sql, values).rowcount != 1:
            raise self.out_of_order(change)

    def out_of_order(self, change: object) -> LedgerError:
        """The error for a change that does not fit: it is what stops a lookup from being paid twice."""
        name = type(change).__name__
        key, upload = getattr(change, "key", None), getattr(change, "upload", None)
        of = (
            Phrase(" of lookup {hex}", hex=key.hex())
            if isinstance(key, bytes)
            else Phrase(" of upload {upload}", upload=upload)
        )
        return LedgerError(RECORD_INCONSISTENT, path=self.path, name=name, of=of)

    def run(self, run_id: str) -> int:
        """The number of a run that was begun."""
        found = self.connection.execute("SELECT number FROM runs WHERE run_id = ?", (run_id,)).fetchone()
        if found is None:
            raise LedgerError(RUN_NOT_BEGUN, path=self.path, run_id=run_id)
        return int(found[0])

    def count(self, run: int, *, paid: int = 0, answered: int = 0) -> None:
        """Add to what a run has paid for and got; written once, when the transaction ends."""
        self._paid[run] += paid
        self._answered[run] += answered

    def finish(self) -> None:
        """Write what was counted."""
        self.connection.executemany(
            "UPDATE runs SET paid = paid + ?, answered = answered + ? WHERE number = ?",
            [(paid, self._answered[run], run) for run, paid in self._paid.items()],
        )

    def answer(self, answers: Iterable[tuple[int, Answer]], run: int, upload: int | None) -> None:
        """Keep the answer of each lookup (by id) in the place of an earlier one."""
        self.connection.executemany(
            _ANSWER, ((lookup, self.now, run, upload, *_fields(answer)) for lookup, answer in answers)
        )

    def release(self, which: str, states: str, values: Mapping[str, Value]) -> int:
        """Lookups in ``states`` may be asked again: back to their answer if they have one, else forgotten."""
        where = f"{which} AND state IN ({states})"
        gone = self.connection.execute(f"DELETE FROM lookups WHERE {where} AND NOT {_ANSWERED}", values).rowcount
        kept = self.connection.execute(
            f"UPDATE lookups SET state = 'done', upload = NULL, note = NULL, raw = NULL WHERE {where}", values
        ).rowcount
        return gone + kept

    def refuse(self, which: str, state: str, values: Mapping[str, Value]) -> int:
        """Lookups were refused (``:note``), and so not paid: back to their answer if they have one."""
        return self.connection.execute(
            f"""UPDATE lookups SET upload = NULL, since = :now,
                state = CASE WHEN {_ANSWERED} THEN 'done' ELSE 'refused' END,
                note = CASE WHEN {_ANSWERED} THEN NULL ELSE :note END
            WHERE {which} AND state = '{state}'""",
            {**values, "now": self.now},
        ).rowcount

    def hold(self, which: str, states: str, state: str, values: Mapping[str, Value]) -> int:
        """Lookups in ``states`` are held in ``state`` (``:note`` says why): they are not asked again by themselves."""
        return self.connection.execute(
            f"UPDATE lookups SET state = '{state}', note = :note, since = :now WHERE {which} AND state IN ({states})",
            {**values, "now": self.now},
        ).rowcount

    def store_request(
        self, request: StoredRequest | None, *, key: bytes | None = None, upload: int | None = None
    ) -> None:
        """Store a request that is about to be sent for the first time; without one there is nothing to store."""
        if request is not None:
            self.connection.execute(
                "INSERT INTO requests VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0)",
                (request.token, key, upload, request.origin, request.account, self.now, request.keep, request.content),
            )

    def delete_request(self, *, key: bytes | None = None, upload: int | None = None) -> None:
        """Delete the stored request of a lookup or upload once it is settled."""
        self.connection.execute("DELETE FROM requests WHERE key = ? OR upload = ?", (key, upload))

    def delete_old_requests(self) -> None:
        """Delete the requests that are too old to be sent again, and those of lookups and uploads that are settled."""
        self.connection.execute(_NEEDLESS, {"now": self.now})


def clean(text: str | None) -> str | None:
    """The text as it was received, but what UTF-8 cannot hold (half a surrogate pair) is replaced."""
    if text is None or text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def whole(number: int | None) -> int | None:
    """The number, or ``None`` where the file cannot hold it: 64 bits."""
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
