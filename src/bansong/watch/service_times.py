"""Times of a watch at a hosted service: INTERFACE.md gives neither their names nor their form."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from bansong.client import WatchEntry

WATCH_TIMES: Final = {
    "created": ("created_at", "created", "added_at", "createdAt"),
    "checked": ("checked_at", "checked", "last_checked_at", "checkedAt"),
    "due": ("next_check_at", "next_check", "nextCheckAt"),
    "closed": ("closed_at", "closedAt"),
}
"""Names that services give the times of a watch."""


def watch_time(entry: WatchEntry, of: str) -> float | None:
    """Return one of the times of a watch at a service, if given."""
    more = entry.model_extra or {}
    return next((parse_time(more[name]) for name in WATCH_TIMES[of] if name in more), None)


_MIN_MILLISECONDS: Final = 1e11
"""Numbers from here on are milliseconds; as seconds they would be in the year 5138."""


def parse_time(text: object) -> float | None:
    """Parse a service's time as seconds since 1970; ``None`` if it is none.

    ISO 8601 (UTC without a zone), or a number of seconds or milliseconds.

    >>> parse_time("2026-11-22T09:00:00+09:00") == parse_time("1795305600") == parse_time(1795305600000)
    True
    """
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        return None
    if isinstance(text, str) and re.fullmatch(r"\s*\d{1,4}-\d.*", text, flags=re.A | re.S):
        try:
            read = datetime.fromisoformat(text.strip())
        except ValueError:
            return None
        return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()
    try:
        number = float(text)
    except (ValueError, OverflowError):
        return None
    if not math.isfinite(number) or not 0 <= number < _MIN_MILLISECONDS * 1000:
        return None
    return number / 1000 if number >= _MIN_MILLISECONDS else number
