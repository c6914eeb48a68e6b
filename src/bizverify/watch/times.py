"""Times of watch lists: as services write them, and as people read them."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Final

SEOUL: Final = timezone(timedelta(hours=9), "Asia/Seoul")
"""Korea has had no summer time since 1988, so that no time zone database is needed."""
_MILLISECONDS: Final = 1e11
"""A number of seconds that large is in the year 5138, so it is milliseconds."""


_SLACK: Final = 0.1
_MOST_SLACK: Final = 2 * 3600.0
"""Seconds: nightly runs begin less than that earlier than the one before, also where summer time ends."""


def wait_of(interval: float) -> float:
    """Seconds from the start of a check until what it looked at is due again: the interval less some slack.

    A job that is to run every so many hours begins a little earlier at times, and must not find that nothing is due.

    >>> wait_of(24 * 3600) / 3600, wait_of(3600) / 60
    (22.0, 54.0)
    """
    return interval - min(interval * _SLACK, _MOST_SLACK)


def seconds_of(text: object) -> float | None:
    """A time that a service wrote, as seconds since 1970; ``None`` for what is none.

    It is read as ISO 8601 (UTC where it says no zone), or as a number of seconds or milliseconds.

    >>> seconds_of("2026-11-22T09:00:00+09:00") == seconds_of("1795305600") == seconds_of(1795305600000)
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
    if not math.isfinite(number) or not 0 <= number < _MILLISECONDS * 1000:
        return None
    return number / 1000 if number >= _MILLISECONDS else number


def local_text(seconds: float | None) -> str | None:
    """A time as ISO 8601 in this machine's time zone, to the second; ``None`` where there is none."""
    if seconds is None or math.isnan(seconds):
        return None
    return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")


def korean_text(seconds: float | None) -> str | None:
    """A time as the service says it: ISO 8601 in Korea's time, to the second; ``None`` where there is none."""
    return None if seconds is None else datetime.fromtimestamp(seconds, SEOUL).isoformat(timespec="seconds")
