"""How much was paid, or may have been, without an answer since the service answered last: what bounds a broken one.

Counted from what the ledger knows of uploads and lookups anyway, so that it is right after any kill. The table
``trials`` holds for each service the uploads and runs up to which nothing is counted any more.
"""

# ruff: noqa: S608 - statements are put together from constants of this package; values are always bound

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from typing import Final

from bansong.ledger.schema import UNSETTLED
from bansong.ledger.transaction import Transaction

_SPENT: Final = """trial AND state NOT IN ('prepared', 'dropped', 'refused')
    AND number > coalesce((SELECT t.upload FROM trials t WHERE t.origin = uploads.origin), 0)"""
COUNTED: Final = f"SELECT number FROM uploads WHERE {_SPENT}"
"""The trial uploads that may have been paid since the service answered last, of all services."""
_UNANSWERED: Final = f"""
    SELECT count(*) FROM lookups
    WHERE {UNSETTLED} AND state IN ('doubt', 'unreadable', 'lost') AND upload IS NULL
        AND run IN (SELECT number FROM runs WHERE origin = :origin AND number > max(
            coalesce((SELECT run FROM trials WHERE origin = :origin), 0),
            coalesce((SELECT max(number) FROM runs WHERE origin = :origin AND answered > 0), 0)))
"""

_PREVIEW: Final = 10
"""With so few answers the first rows are no preview: one answer alone would let the next upload go."""
_ANSWERED: Final = """
    SELECT r.place FROM upload_rows r JOIN lookups l ON l.key = r.key
    JOIN answers a ON a.lookup = l.id AND a.upload = r.upload WHERE r.upload = ?
"""


def spent_trials(connection: sqlite3.Connection, origin: str) -> int:
    """Count the trial uploads that may have been paid since answers of any upload to ``origin`` were fetched."""
    return int(
        connection.execute(f"SELECT count(*) FROM uploads WHERE origin = ? AND {_SPENT}", (origin,)).fetchone()[0]
    )


def unanswered_requests(connection: sqlite3.Connection, origin: str) -> int:
    """Count the single requests to ``origin`` that may have been paid, in the runs since one that got any answer."""
    return int(connection.execute(_UNANSWERED, {"origin": origin}).fetchone()[0])


def passes(answered: Collection[int], rows: int) -> bool:
    """Whether the answers at these places of an upload of so many rows show that the service works.

    Half of the rows do; so do some, if they are half of those up to the last one answered: a service may give no more
    than the first ones.
    """
    return 2 * len(answered) >= rows or (len(answered) >= _PREVIEW and 2 * len(answered) >= max(answered) + 1)


def end_trial(tx: Transaction, upload: int) -> None:
    """Answers of an upload were fetched: if it passes by all it has, no trial before now is counted any more."""
    answered = [place for (place,) in tx.connection.execute(_ANSWERED, (upload,))]
    (rows,) = tx.connection.execute("SELECT rows FROM uploads WHERE number = ?", (upload,)).fetchone()
    if not passes(answered, rows):
        return
    tx.connection.execute(
        "INSERT INTO trials (origin, upload, run) "
        "SELECT origin, (SELECT max(number) FROM uploads), 0 FROM uploads WHERE number = ? "
        "ON CONFLICT (origin) DO UPDATE SET upload = excluded.upload",
        (upload,),
    )


def allow_trial(tx: Transaction, origin: str) -> None:
    """Allow one more trial upload to ``origin``, and single requests as if none had gone without an answer."""
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
    """After rows were deleted: numbers are given again, and those that are new must be counted."""
    tx.connection.execute(
        "UPDATE trials SET upload = min(upload, coalesce((SELECT max(number) FROM uploads), 0)), "
        "run = min(run, coalesce((SELECT max(number) FROM runs), 0))"
    )
