"""The values of a watch list. Times are seconds since 1970."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Final

import polars as pl

SEOUL: Final = timezone(timedelta(hours=9), "Asia/Seoul")
"""Korea has had no summer time since 1988, so that no time zone database is needed."""

CLOSED: Final = "closed"
"""The ``biz_status`` that is notified of."""


@dataclass(frozen=True, slots=True)
class Business:
    """A business to be watched: ten digits, and what is known of name and address."""

    biz_no: str
    name: str | None = None
    address: str | None = None


@dataclass(frozen=True, slots=True)
class WatchedBusiness:
    """A watched business, and what its last check found. ``closed``: when its closure was found, ``None`` if open."""

    watch_id: str
    biz_no: str
    name: str | None
    address: str | None
    created: float
    checked: float | None
    due: float
    biz_status: str | None
    grade: str | None
    bounce_prob: float | None
    action: str | None
    closed: float | None


@dataclass(frozen=True, slots=True)
class Change:
    """One change of grade; ``biz_status`` is the one found with the new grade."""

    at: float
    before: str | None
    after: str | None
    biz_status: str | None


@dataclass(frozen=True, slots=True)
class Added:
    """The result of adding many businesses: new watches, and known ones whose name or address changed."""

    new: int
    changed: int


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The findings of a check: one row of ``watches`` for each watch that was checked.

    Its columns: number (Int64), owner, watch_id, biz_no, name, address, biz_status, grade, action, status_before,
    grade_before (String), bounce_prob, closed (Float64), changed, first, closure, closed_already (Boolean: see
    :func:`bizverify.watch.store.compare_with_check`).
    """

    watches: pl.DataFrame

    @property
    def changes(self) -> pl.DataFrame:
        """The watches whose grade is another than at the last check."""
        return self.watches.filter("changed")

    @property
    def closures(self) -> pl.DataFrame:
        """The watches that were found closed, and were not before; each has a notification."""
        return self.watches.filter("closure")

    @property
    def closed_already(self) -> pl.DataFrame:
        """The watches that were closed when they were first checked; they are in one notification."""
        return self.watches.filter("closed_already")


@dataclass(frozen=True, slots=True)
class PendingDelivery:
    """A notification that is to be delivered on one channel.

    ``number`` is that of the notification in the file; ``id`` names it for ever, so that a receiver can tell repeats;
    ``payload`` is the JSON object that is sent, byte for byte the same at each attempt. ``biz_no`` is empty where it is
    about several businesses (:data:`bizverify.watch.notifications.SUMMARY`). ``due``: when it is tried again, ``None``
    if it was given up. ``begun``: when it was to be made first. ``channel`` is ``None`` where there was none when the
    closure was found.
    """

    number: int
    id: str
    owner: str
    biz_no: str
    payload: str
    created: float
    channel: str | None
    begun: float
    attempts: int
    due: float | None
    error: str | None


def korean_iso(seconds: float) -> str:
    """A time as the service says it: ISO 8601 in Korea's time, to the second."""
    return datetime.fromtimestamp(seconds, SEOUL).isoformat(timespec="seconds")
