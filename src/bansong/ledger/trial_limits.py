"""Limits on what was, or may have been, paid without an answer since the service last answered.

They are counted from the uploads and lookups of the ledger, so they are right after any kill. The table ``trials``
holds, for each service, the uploads and runs up to which nothing counts any more.
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
"""Trial uploads that may have been paid since their service last answered."""
_UNANSWERED: Final = f"""
    SELECT count(*) FROM lookups
    WHERE {UNSETTLED} AND state IN ('doubt', 'unreadable', 'lost') AND upload IS NULL
        AND run IN (SELECT number FROM runs WHERE origin = :origin AND number > max(
            coalesce((SELECT run FROM trials WHERE origin = :origin), 0),
            coalesce((SELECT max(number) FROM runs WHERE origin = :origin AND answered > 0), 0)))
"""

_MIN_PREVIEW: Final = 10  # answers that may be a preview of the first rows
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
    """Whether the answers at these places of an upload of so many ``rows`` show that the service works.

    Half of the rows must be answered, or half of those up to the last answered one: a service may give a preview only.
    """
    return 2 * len(answered) >= rows or (len(answered) >= _MIN_PREVIEW and 2 * len(answered) >= max(answered) + 1)


def end_trial(tx: Transaction, upload: int) -> None:
    """End the count of trials if the fetched answers of an upload show that the service works."""
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
    """Allow one more trial upload to ``origin``, and forget its unanswered single requests."""
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
    """Lower the limits after rows were deleted: their numbers are given again, and new ones must count."""
    tx.connection.execute(
        "UPDATE trials SET upload = min(upload, coalesce((SELECT max(number) FROM uploads), 0)), "
        "run = min(run, coalesce((SELECT max(number) FROM runs), 0))"
    )
