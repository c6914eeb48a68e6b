"""Requests that may be sent again: kept as they were sent, under the key they had, until their answer is known."""

from __future__ import annotations

import math
import sqlite3
from dataclasses import dataclass
from typing import Final

from bizverify.ledger.transaction import Writing

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
_NEEDLESS: Final = """
    DELETE FROM requests WHERE first + keep < :now
        OR key IS NOT NULL AND NOT EXISTS
            (SELECT 1 FROM lookups l WHERE l.key = requests.key AND l.state IN ('asking', 'doubt'))
        OR upload IS NOT NULL AND NOT EXISTS
            (SELECT 1 FROM uploads u
             WHERE u.number = requests.upload AND u.state IN ('prepared', 'gated', 'sent', 'doubt'))
"""


@dataclass(frozen=True, slots=True)
class Request:
    """What is sent with the key ``token``: ``content``, compressed.

    ``account`` marks the API key that it is sent with, ``keep`` is for how many seconds the service remembers it.
    """

    token: str
    origin: str
    account: bytes
    keep: float
    content: bytes


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


def remember(to: Writing, request: Request | None, *, key: bytes | None = None, upload: int | None = None) -> None:
    """Keep a request that is about to be sent for the first time; without one there is nothing to be kept."""
    if request is not None:
        to.connection.execute(
            "INSERT INTO requests VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0)",
            (request.token, key, upload, request.origin, request.account, to.now, request.keep, request.content),
        )


def forget(to: Writing, *, key: bytes | None = None, upload: int | None = None) -> None:
    """Its answer is known, or there will be none: what was sent is nobody's business any more."""
    if key is not None:
        to.connection.execute("DELETE FROM requests WHERE key = ?", (key,))
    else:
        to.connection.execute("DELETE FROM requests WHERE upload = ?", (upload,))


def sweep(to: Writing) -> None:
    """Forget the requests that are too old to be sent again, and those of lookups and uploads that are settled."""
    to.connection.execute(_NEEDLESS, {"now": to.now})


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
