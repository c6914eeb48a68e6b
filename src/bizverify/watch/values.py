"""What a watch list holds, as values. Times are seconds since 1970; who shows them makes them local."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

CLOSED: Final = "closed"
"""The ``biz_status`` of which a notice is sent."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A business to be watched: ten digits, and what is known of name and address."""

    biz_no: str
    name: str | None = None
    address: str | None = None


@dataclass(frozen=True, slots=True)
class Watch:
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
class Closure:
    """A closure that was found, to be told once: ``id`` names it for ever, so that a receiver can tell repeats."""

    id: str
    owner: str
    watch_id: str
    biz_no: str
    name: str | None
    address: str | None
    at: float
    status_before: str | None
    grade_before: str | None
    grade_after: str | None
