"""What a display of progress is, and the words that all of them have."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Final, Protocol

from bansong.translation import gettext, gettext_noop

UNITS: Final = (
    gettext_noop("rows"),
    gettext_noop("lookups"),
    gettext_noop("numbers"),
    gettext_noop("verifying"),
    gettext_noop("reading"),
)


class FetchReport(Protocol):
    """What a fetch run has come to so far: :class:`bansong.reference.fetch_report.StatusFetch`."""

    @property
    def answered(self) -> int:
        """Numbers of which the status was told and stored."""

    @property
    def left(self) -> int:
        """Numbers that are still to be asked."""

    @property
    def rate(self) -> float:
        """Numbers answered a second."""

    @property
    def budget_left(self) -> int | None:
        """Numbers that the day's budget still allows; ``None``: there is none."""


Progress = Callable[[int, int], None]
"""Called with (done, in all) of what a run counts, from any thread."""


class ProgressDisplay(Protocol):
    """Shows how far a run is; called with (done, in all) of its rows or lookups."""

    def __call__(self, done: int, total: int, /) -> None:
        """Show how many are done."""

    def watch(self, fetch: FetchReport) -> None:
        """Show how far the fetching of statuses is, which comes before."""


def describe_progress(done: int, total: int, unit: str, seconds: float) -> str:
    """Return how far a run is in words: count, share, rate; ``unit`` is translated."""
    return gettext(
        "{done:,} of {total:,} {unit} ({part:.0%}), {rate:,.0f} {unit}/s",
        done=done,
        total=total,
        unit=gettext(unit),
        part=done / max(total, 1),
        rate=done / max(seconds, 1e-9),
    )


def describe_fetch(fetch: FetchReport) -> str:
    """Return how far a fetch run is in words: numbers, rate, budget, and how long it will take."""
    total = fetch.answered + fetch.left
    parts = [
        gettext(
            "{answered:,} of {total:,} numbers answered ({part:.0%})",
            answered=fetch.answered,
            total=total,
            part=fetch.answered / max(total, 1),
        )
    ]
    if fetch.rate:
        parts.append(gettext("{rate:,.0f} numbers/s", rate=fetch.rate))
        parts.append(gettext("about {time} to go", time=timedelta(seconds=round(fetch.left / fetch.rate))))
    if fetch.budget_left is not None:
        parts.append(gettext("{count:,} left of the day's budget", count=fetch.budget_left))
    return ", ".join(parts)
