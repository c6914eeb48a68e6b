"""Old answers, and all that was only kept for them, leave the ledger when its owner says so."""

# ruff: noqa: S608 - statements are put together from constants of this package; values are always bound

from __future__ import annotations

import sqlite3
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from bizverify.ledger.transaction import Transaction
from bizverify.ledger.trial_limits import COUNTED, follow_numbers

DAY: Final = 86_400.0
LIMIT_KEPT: Final = 30 * DAY
"""How long the service's limit on uploads is believed: plans change."""

_WASTE: Final = 0.25
"""The share of the file that must be empty before rewriting it is worth the while."""

_OLD_LOOKUPS: Final = """
    DELETE FROM lookups WHERE id IN (
        SELECT l.id FROM lookups l LEFT JOIN answers a ON a.lookup = l.id
        WHERE (l.state = 'done' AND a.at < :before)
           OR (l.state IN ('refused', 'missing', 'lost', 'unreadable') AND l.since < :before))
"""
_OLD_UPLOADS: Final = f"""
    DELETE FROM uploads WHERE since < :before
        AND state IN ('done', 'lost', 'refused', 'dropped', 'accepted', 'resent')
        AND number NOT IN (SELECT upload FROM lookups WHERE upload IS NOT NULL)
        AND number NOT IN (SELECT upload FROM answers WHERE upload IS NOT NULL)
        AND number NOT IN (SELECT upload FROM labels WHERE since >= :before OR state NOT IN ('done', 'refused'))
        AND number NOT IN ({COUNTED})
"""
_OLD_RUNS: Final = """
    DELETE FROM runs WHERE started < :before AND (outcome IS NOT NULL)
        AND number NOT IN (SELECT run FROM lookups)
        AND number NOT IN (SELECT run FROM answers)
        AND number NOT IN (SELECT run FROM uploads)
        AND number NOT IN (SELECT run FROM labels)
"""


@dataclass(frozen=True, slots=True)
class PurgeCounts:
    """How many lookups, uploads and runs are gone."""

    lookups: int
    uploads: int
    runs: int


def remember_limit(tx: Transaction, origin: str, rows: int) -> None:
    """Store the most rows to upload at once to ``origin``, in the place of an earlier limit."""
    tx.connection.execute("INSERT OR REPLACE INTO limits VALUES (?, ?, ?)", (origin, rows, tx.now))


def purge(tx: Transaction, older_than_days: float) -> PurgeCounts:
    """Delete what is older; never what is in doubt or under way."""
    before = {"before": tx.now - older_than_days * DAY}
    run = tx.connection.execute
    lookups = run(_OLD_LOOKUPS, before).rowcount
    run("DELETE FROM answers WHERE lookup NOT IN (SELECT id FROM lookups)")
    uploads = run(_OLD_UPLOADS, before).rowcount
    run("DELETE FROM upload_rows WHERE upload NOT IN (SELECT number FROM uploads)")
    # a label is forgotten with its upload, not before: the same outcome would be sent once more
    run("DELETE FROM labels WHERE upload NOT IN (SELECT number FROM uploads)")
    runs = run(_OLD_RUNS, before).rowcount
    follow_numbers(tx)
    tx.delete_old_requests()
    run("DELETE FROM limits WHERE at < ?", (tx.now - LIMIT_KEPT,))
    return PurgeCounts(lookups, uploads, runs)


def shrink(connection: sqlite3.Connection) -> None:
    """Rewrite the file if a good part of it is empty; where there is no room for that, it stays as it is."""
    free, pages = (connection.execute(f"PRAGMA {what}").fetchone()[0] for what in ("freelist_count", "page_count"))
    if free > pages * _WASTE:
        with suppress(sqlite3.OperationalError):
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
