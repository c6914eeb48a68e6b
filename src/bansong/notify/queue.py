"""The queue of notifications, kept until acknowledged. The functions work in the transaction of their caller."""

# ruff: noqa: S608 - statements are put together from constants of this module; values are always bound

from __future__ import annotations

import json
import math
import random
import secrets
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple

import polars as pl

from bansong.base.schema import SEOUL

EVENT: Final = "closure"
SUMMARY: Final = "closed_already"  # one notification of all businesses that were closed at their first check
UNASKED: Final = "statuses_not_asked"  # from the second day in a row on which statuses could not be asked

_DELIVERY: Final = (
    "n.number, n.id, n.owner, n.biz_no, n.payload, n.created,"
    " d.channel, coalesce(d.begun, n.created), coalesce(d.attempts, 0), d.due, d.error"
)
_MAX_ERROR_CHARACTERS: Final = 300
_UNDER_WAY_S: Final = 5.0  # a notification due that soon may be on its way, and is not changed
CLOSED: Final = "closed"


@dataclass(frozen=True, slots=True)
class PendingDelivery:
    """A notification to deliver on one channel. Its ``id`` lets a receiver recognise repeats."""

    number: int
    id: str
    owner: str
    biz_no: str  # empty for SUMMARY and UNASKED
    payload: str  # the JSON that is sent, the same at each attempt
    created: float
    channel: str | None  # ``None``: there was none at the closure
    begun: float
    attempts: int
    due: float | None  # next attempt; ``None``: given up
    error: str | None

    @property
    def event(self) -> str:
        return str(json.loads(self.payload)["event"])

    @property
    def text(self) -> str:
        return self.payload


def add_notifications(db: sqlite3.Connection, closures: pl.DataFrame, now: float, channels: Sequence[str]) -> None:
    """Queue a notification of each closure for these channels."""
    names = "watch_id", "biz_no", "name", "address", pl.lit(CLOSED).alias("biz_status"), "status_before", "grade_before"
    facts = closures.select(*names, grade_after="grade").iter_rows(named=True)
    _insert_notifications(db, list(zip(closures["owner"], facts, strict=True)), EVENT, now, channels, due=now)


class SummaryWindow(NamedTuple):
    """Summaries begun after ``since`` are extended; a new one is sent at ``until`` (both in seconds since 1970)."""

    since: float
    until: float


def add_summaries(
    db: sqlite3.Connection, found: pl.DataFrame, now: float, channels: Sequence[str], window: SummaryWindow
) -> None:
    """Queue one notification per owner for watches closed at their first check, or extend an unsent one."""
    for group in found.partition_by("owner", maintain_order=True):
        owner, numbers = str(group["owner"][0]), group["biz_no"].to_list()
        begun = _open_summary(db, owner, now, channels, window.since)
        if begun is not None:
            number, payload = begun
            numbers = [*payload["biz_nos"], *numbers]
            summary = payload | {"closed": len(numbers), "biz_nos": numbers}
            db.execute("UPDATE notices SET payload = ? WHERE number = ?", (as_json(summary), number))
            continue
        facts = {"closed": len(numbers), "biz_nos": numbers}
        _insert_notifications(db, [(owner, facts)], SUMMARY, now, channels, due=window.until)


def add_unasked(
    db: sqlite3.Connection, owner: str, numbers: int, days: int, now: float, channels: Sequence[str]
) -> None:
    """Queue a notification that statuses of ``numbers`` businesses could not be fetched for ``days`` days in a row."""
    _insert_notifications(db, [(owner, {"numbers": numbers, "days": days})], UNASKED, now, channels, due=now)


def _insert_notifications(
    db: sqlite3.Connection,
    found: Sequence[tuple[str, Mapping[str, object]]],
    event: str,
    now: float,
    channels: Sequence[str],
    *,
    due: float,
) -> None:
    rows, at = [], korean_iso(now)
    for owner, facts in found:
        id_ = secrets.token_hex(16)
        payload = as_json({"event": event, "id": id_, **facts, "detected_at": at})
        rows.append((id_, owner, facts.get("watch_id", ""), facts.get("biz_no", ""), payload, now))
    last = db.execute("SELECT coalesce(max(number), 0) FROM notices").fetchone()[0]
    db.executemany(
        "INSERT INTO notices (id, owner, watch_id, biz_no, payload, created) VALUES (?, ?, ?, ?, ?, ?)", rows
    )
    db.execute(
        "INSERT INTO deliveries (notice, channel, owner, begun, due)"
        " SELECT number, value, owner, ?, ? FROM notices, json_each(?) WHERE number > ?",
        (now, due, json.dumps(channels), last),
    )


def _open_summary(
    db: sqlite3.Connection, owner: str, now: float, channels: Sequence[str], since: float
) -> tuple[int, dict[str, Any]] | None:
    """Return number and payload of an owner's unsent summary for these channels."""
    row = db.execute(
        "SELECT number, payload FROM notices n WHERE owner = :owner AND biz_no = '' AND created >= :since"
        " AND (SELECT json_group_array(channel) FROM (SELECT channel FROM deliveries d WHERE d.notice = n.number"
        " AND attempts = 0 AND delivered IS NULL AND due > :soon ORDER BY channel)) = :channels"
        " AND (SELECT count(*) FROM deliveries d WHERE d.notice = n.number) = json_array_length(:channels)"
        " ORDER BY number DESC LIMIT 1",
        {"owner": owner, "since": since, "soon": now + _UNDER_WAY_S, "channels": as_json(sorted(channels))},
    ).fetchone()
    return None if row is None else (row[0], json.loads(row[1]))


def as_json(value: object) -> str:
    """Return a value as compact JSON text."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def due_channels(db: sqlite3.Connection, now: float) -> list[tuple[str, str]]:
    """Return the distinct pairs of owner and channel that have due deliveries."""
    rows = db.execute("SELECT DISTINCT owner, channel FROM deliveries WHERE delivered IS NULL AND due <= ?", (now,))
    return rows.fetchall()


def next_due(db: sqlite3.Connection, after: float) -> float | None:
    """Return the earliest time after ``after`` when a delivery is due (seconds since 1970); ``None`` without one."""
    query = "SELECT min(due) FROM deliveries WHERE delivered IS NULL AND due > ?"
    return db.execute(query, (after,)).fetchone()[0]  # type: ignore[no-any-return]


def bring_forward(db: sqlite3.Connection, until: float) -> None:
    """Set delivery times after ``until`` to ``until``, as they come from a wrong clock."""
    db.execute("UPDATE deliveries SET due = ? WHERE delivered IS NULL AND due > ?", (until, until))


def due_deliveries(
    db: sqlite3.Connection, now: float, limit: int, *, owner: str | None = None, channel: str | None = None
) -> list[PendingDelivery]:
    """Return at most ``limit`` due deliveries: longest due first, then least often tried."""
    of = "" if owner is None else " AND d.owner = :owner"  # not `OR :owner IS NULL`, which would use no index
    of += "" if channel is None else " AND d.channel = :channel"
    rows = db.execute(
        f"SELECT {_DELIVERY} FROM deliveries d JOIN notices n ON n.number = d.notice"
        f" WHERE d.delivered IS NULL AND d.due <= :now{of}"
        " ORDER BY d.due, d.attempts, d.notice LIMIT :limit",
        {"now": now, "limit": limit, "owner": owner, "channel": channel},
    )
    return [PendingDelivery(*row) for row in rows]


def mark_delivered(db: sqlite3.Connection, deliveries: Iterable[tuple[int, str]], now: float) -> None:
    """Record that notices were delivered over channels at ``now`` (seconds since 1970)."""
    db.executemany(
        "UPDATE deliveries SET delivered = ?, due = NULL, error = NULL, attempts = attempts + 1"
        " WHERE notice = ? AND channel = ? AND delivered IS NULL",
        [(now, number, channel) for number, channel in deliveries],
    )


def mark_failed(db: sqlite3.Connection, deliveries: Iterable[tuple[int, str, str, float | None]]) -> None:
    """Record failed deliveries: number, channel, error, and time of the next attempt, or ``None`` to give up."""
    db.executemany(
        "UPDATE deliveries SET due = ?, error = ?, attempts = attempts + 1"
        " WHERE notice = ? AND channel = ? AND delivered IS NULL",
        [(due, error[:_MAX_ERROR_CHARACTERS], number, channel) for number, channel, error, due in deliveries],
    )


def postpone(db: sqlite3.Connection, owner: str, channel: str, due: float) -> None:
    """Put off an owner's deliveries on a channel until ``due``."""
    db.execute(
        "UPDATE deliveries SET due = ? WHERE delivered IS NULL AND due < ? AND owner = ? AND channel = ?",
        (due, due, owner, channel),
    )


def list_undelivered(db: sqlite3.Connection, owner: str | None = None) -> list[PendingDelivery]:
    """Return deliveries that are not acknowledged, oldest first: waiting, given up, or without a channel."""
    rows = db.execute(
        f"SELECT {_DELIVERY} FROM notices n LEFT JOIN deliveries d ON d.notice = n.number"
        f" WHERE d.delivered IS NULL {'' if owner is None else 'AND n.owner = :owner'}"
        " ORDER BY n.number, d.channel",
        {"owner": owner},
    )
    return [PendingDelivery(*row) for row in rows]


class Undelivered(NamedTuple):
    """A count of deliveries that are not acknowledged, and when the oldest was begun."""

    deliveries: int
    oldest: float | None


def summarize_undelivered(db: sqlite3.Connection) -> tuple[Undelivered, Undelivered]:
    """Count the deliveries still tried, and those given up."""
    rows = db.execute(
        "SELECT due IS NULL, count(*), min(begun) FROM deliveries WHERE delivered IS NULL GROUP BY due IS NULL"
    )
    found = {given_up: Undelivered(*counts) for given_up, *counts in rows}
    return found.get(0, Undelivered(0, None)), found.get(1, Undelivered(0, None))


def retry(
    db: sqlite3.Connection,
    now: float,
    *,
    owner: str | None = None,
    notification_id: str | None = None,
    channels: Sequence[str] = (),
) -> int:
    """Deliver unacknowledged notifications again; return how many. Those without a channel get ``channels``."""
    chosen = "SELECT number FROM notices WHERE (:owner IS NULL OR owner = :owner) AND (:notice IS NULL OR id = :notice)"
    values = {"now": now, "owner": owner, "notice": notification_id, "channels": json.dumps(channels)}
    tried = db.execute(
        "UPDATE deliveries SET begun = :now, due = :now, attempts = 0, error = NULL"
        f" WHERE delivered IS NULL AND notice IN ({chosen})",
        values,
    ).rowcount
    begun = db.execute(
        "INSERT INTO deliveries (notice, channel, owner, begun, due)"
        " SELECT n.number, c.value, n.owner, :now, :now FROM notices n, json_each(:channels) c"
        f" WHERE n.number IN ({chosen}) AND NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.notice = n.number)",
        values,
    ).rowcount
    return tried + begun


def purge(db: sqlite3.Connection, before: float) -> int:
    """Delete notifications that are older than ``before`` and acknowledged on all channels; return how many."""
    return db.execute(
        "DELETE FROM notices WHERE created < ? AND number IN (SELECT notice FROM deliveries)"
        " AND number NOT IN (SELECT notice FROM deliveries WHERE delivered IS NULL)",
        (before,),
    ).rowcount


@dataclass(frozen=True, slots=True)
class Backoff:
    """Seconds between attempts at a delivery: doubled up to ``longest``, give or take half."""

    first: float = 30.0
    longest: float = 12 * 3600.0
    attempts: int = 20  # given up after so many
    patience: float = 3 * 86400.0  # given up if the next attempt were later than this after the first was due
    random: Callable[[], float] = field(default=random.random, repr=False)

    @property
    def most(self) -> float:
        return self.longest * 1.5

    def next_due(self, attempts: int, begun: float, now: float, retry_after: float | None = None) -> float | None:
        """Return when to try again, respecting ``retry_after`` seconds up to ``longest``; ``None`` to give up."""
        if attempts >= self.attempts:
            return None
        pause = min(self.longest, self.first * 2.0 ** min(attempts - 1, 60)) * (0.5 + self.random())
        due = now + max(pause, min(retry_after or 0.0, self.longest))
        return due if due <= begun + self.patience else None


@lru_cache(maxsize=1024)  # many watches have the same time
def korean_iso(seconds: float | None) -> str | None:
    """Format a Unix time as ISO 8601 in Korean time, such as ``2026-11-01T09:00:00+09:00``.

    Fractions of a second are dropped. ``None`` and NaN, the marks of an unknown time, give ``None``.
    """
    if seconds is None or math.isnan(seconds):
        return None
    return datetime.fromtimestamp(seconds, SEOUL).isoformat(timespec="seconds")
