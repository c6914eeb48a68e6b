"""Deletion of old answers, and erasure of a number."""

# ruff: noqa: S608 - statements are put together from constants of this package; values are always bound

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from bansong import business_number
from bansong.ledger.queries import shown_ids
from bansong.ledger.transaction import Transaction
from bansong.ledger.trial_limits import COUNTED, follow_numbers
from bansong.storage.sqlite import rewrite_file
from bansong.translation import gettext, gettext_noop

DAY_S: Final = 86_400.0
LIMIT_KEPT_S: Final = 30 * DAY_S
"""Age at which the service's limit on uploads is forgotten: plans change."""

_MIN_FREE_SHARE: Final = 0.25  # of the file, for a rewrite to be worth it

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
    """Number of deleted lookups, uploads and runs."""

    lookups: int
    uploads: int
    runs: int


def remember_limit(tx: Transaction, origin: str, rows: int) -> None:
    """Store the most rows of an upload to ``origin``, replacing an earlier limit."""
    tx.connection.execute("INSERT OR REPLACE INTO limits VALUES (?, ?, ?)", (origin, rows, tx.now))


def purge(tx: Transaction, older_than_days: float) -> PurgeCounts:
    """Delete what is older; never what is doubtful or under way."""
    before = {"before": tx.now - older_than_days * DAY_S}
    run = tx.connection.execute
    lookups = run(_OLD_LOOKUPS, before).rowcount
    run("DELETE FROM answers WHERE lookup NOT IN (SELECT id FROM lookups)")
    uploads = run(_OLD_UPLOADS, before).rowcount
    run("DELETE FROM upload_rows WHERE upload NOT IN (SELECT number FROM uploads)")
    # labels are deleted with their upload, not before: else the same outcome would be sent once more
    run("DELETE FROM labels WHERE upload NOT IN (SELECT number FROM uploads)")
    runs = run(_OLD_RUNS, before).rowcount
    follow_numbers(tx)
    tx.delete_old_requests()
    run("DELETE FROM limits WHERE at < ?", (tx.now - LIMIT_KEPT_S,))
    return PurgeCounts(lookups, uploads, runs)


def shrink(connection: sqlite3.Connection) -> None:
    """Rewrite the file if a good part of it is empty and the disk has room for that."""
    free, pages = (connection.execute(f"PRAGMA {what}").fetchone()[0] for what in ("freelist_count", "page_count"))
    if free > pages * _MIN_FREE_SHARE:
        with suppress(sqlite3.OperationalError):
            rewrite_file(connection)


_OPEN_LOOKUPS: Final = """
    SELECT key FROM lookups
    WHERE b_no = :b_no AND state IN ('asking', 'doubt', 'unreadable', 'missing') AND upload IS NULL
"""
# results are matched with an upload's rows by their places, so its rows stay for as long as it may be fetched again
_OPEN_UPLOADS: Final = """
    SELECT upload FROM uploads WHERE number IN (SELECT upload FROM upload_rows WHERE b_no = :b_no)
        AND (state IN ('prepared', 'gated', 'sent', 'known', 'doubt', 'unreadable')
             OR EXISTS (SELECT 1 FROM lookups WHERE upload = uploads.number AND state = 'missing'))
"""
_KEYS: Final = "SELECT key FROM lookups WHERE b_no = :b_no UNION SELECT key FROM upload_rows WHERE b_no = :b_no"
_LOOKUPS: Final = "SELECT id FROM lookups WHERE b_no = :b_no"
_PLACES: Final = "SELECT upload, place FROM upload_rows WHERE b_no = :b_no"
_DECIDED: Final = f"kind = 'lookup' AND id IN (SELECT lower(hex(key)) FROM ({_KEYS}))"
_HELD: Final = {
    gettext_noop("lookups"): "SELECT count(*) FROM lookups WHERE b_no = :b_no",
    gettext_noop("paid answers"): f"SELECT count(*) FROM answers WHERE lookup IN ({_LOOKUPS})",
    gettext_noop("rows of uploads"): "SELECT count(*) FROM upload_rows WHERE b_no = :b_no",
    gettext_noop("labels"): f"SELECT count(*) FROM labels WHERE (upload, place) IN ({_PLACES})",
    gettext_noop("decisions"): f"SELECT count(*) FROM decisions WHERE {_DECIDED}",
}
_FILES: Final = f"""
    SELECT DISTINCT file FROM runs WHERE number IN (
        SELECT run FROM lookups WHERE b_no = :b_no
        UNION SELECT run FROM answers WHERE lookup IN ({_LOOKUPS})
        UNION SELECT run FROM uploads WHERE number IN (SELECT upload FROM upload_rows WHERE b_no = :b_no))
"""
_ERASE: Final = (
    f"UPDATE decisions SET id = '' WHERE {_DECIDED}",
    f"DELETE FROM requests WHERE key IN ({_KEYS})",
    f"DELETE FROM labels WHERE (upload, place) IN ({_PLACES})",
    f"DELETE FROM answers WHERE lookup IN ({_LOOKUPS})",
    "DELETE FROM lookups WHERE b_no = :b_no",
    "UPDATE uploads SET raw = NULL WHERE number IN (SELECT upload FROM upload_rows WHERE b_no = :b_no)",
    "UPDATE upload_rows SET key = x'', b_no = '' WHERE b_no = :b_no",  # the places of the others stay what they are
)
_TEXTS: Final = (("lookups", "note"), ("uploads", "note"), ("labels", "note"), ("labels", "reason"), ("runs", "file"))
_BYTES: Final = ("lookups", "uploads")


@dataclass(frozen=True, slots=True)
class LedgerHoldings:
    """Records of a number: ``counts`` of rows by kind, and ``files`` whose runs asked about it.

    ``unsettled``: ids, as `bansong resolve` shows them, of lookups and uploads that may have been paid and have no
    answer; erasing them could pay twice.
    """

    counts: Mapping[str, int]
    files: tuple[str, ...]
    unsettled: tuple[str, ...]


def holdings(connection: sqlite3.Connection, b_no: str) -> LedgerHoldings:
    """Return the records of a number (ten digits)."""
    number, run = {"b_no": b_no}, connection.execute
    shown = shown_ids(connection)
    lookups = [shown.get(key, key.hex()) for (key,) in run(_OPEN_LOOKUPS, number)]
    uploads = [upload for (upload,) in run(_OPEN_UPLOADS, number)]
    counts = {what: run(query, number).fetchone()[0] for what, query in _HELD.items()}
    return LedgerHoldings(counts, tuple(file for (file,) in run(_FILES, number)), (*lookups, *uploads))


def explain_unsettled(ids: Sequence[str]) -> str:
    """Return why a number with unsettled lookups cannot be erased, and the remedy."""
    return gettext(
        "not settled yet, and perhaps paid: {listed}; erased, it might be paid twice. Give the command that left it "
        "once more, which fetches what is there, or settle it with `bansong resolve`; then try again",
        listed=", ".join(ids),
    )


def erase(tx: Transaction, b_no: str) -> None:
    """Erase a settled number (ten digits), also from notes, replies and names of files; the caller rewrites the file.

    Paid lookups stay counted, by run and upload.
    """
    tx.delete_old_requests()
    for statement in _ERASE:
        tx.connection.execute(statement, {"b_no": b_no})
    for spelling in (b_no, business_number.format(b_no)):
        for table, column in _TEXTS:
            tx.connection.execute(
                f"UPDATE {table} SET {column} = replace({column}, :b_no, '…') WHERE instr({column}, :b_no)",
                {"b_no": spelling},
            )
        for table in _BYTES:
            tx.connection.execute(f"UPDATE {table} SET raw = NULL WHERE instr(raw, :b_no)", {"b_no": spelling.encode()})
