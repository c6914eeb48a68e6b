"""Count and erase a business number in the tables of watch lists, local or a server's."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from typing import Any, Final

from bansong.translation import gettext_noop
from bansong.watch.notifications import as_json

_SUMMARIES: Final = "SELECT number, payload FROM notices WHERE biz_no = '' AND instr(payload, ?)"
HELD: Final = {
    "watches": "SELECT count(*) FROM watches WHERE biz_no = ?",
    gettext_noop("changes of grade"): "SELECT count(*) FROM watch_history"
    " WHERE watch IN (SELECT number FROM watches WHERE biz_no = ?)",
    "notifications": "SELECT count(*) FROM notices WHERE biz_no = ?",
    "undelivered": "SELECT count(*) FROM deliveries"
    " WHERE delivered IS NULL AND notice IN (SELECT number FROM notices WHERE biz_no = ?)",
}


def holdings(db: sqlite3.Connection, b_no: str) -> dict[str, int]:
    """Count the rows of a number (ten digits), by kind; ``undelivered`` ones are notifications as well."""
    counts = {what: int(db.execute(query, (b_no,)).fetchone()[0]) for what, query in HELD.items()}
    return counts | {"summaries": sum(1 for _ in _summaries(db, b_no))}


def erase(db: sqlite3.Connection, b_no: str) -> None:
    """Erase a number (ten digits) with its history and notifications; a summary goes on without it."""
    for number, summary in list(_summaries(db, b_no)):
        left = [one for one in summary["biz_nos"] if one != b_no]
        if left:
            text = as_json(summary | {"closed": len(left), "biz_nos": left})
            db.execute("UPDATE notices SET payload = ? WHERE number = ?", (text, number))
        else:
            db.execute("DELETE FROM notices WHERE number = ?", (number,))
    db.execute("DELETE FROM notices WHERE biz_no = ?", (b_no,))
    db.execute("DELETE FROM watches WHERE biz_no = ?", (b_no,))


def _summaries(db: sqlite3.Connection, b_no: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, payload in db.execute(_SUMMARIES, (b_no,)).fetchall():
        summary = json.loads(payload)
        if b_no in summary["biz_nos"]:
            yield number, summary
