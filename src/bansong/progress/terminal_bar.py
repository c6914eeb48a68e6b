"""Progress as a live bar on a terminal, of :mod:`rich`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from bansong.progress.display import FetchReport
from bansong.translation import gettext, gettext_noop

if TYPE_CHECKING:
    from rich.progress import Progress

_FIGURES: Final = {
    "rows": gettext_noop("{done}/{total} rows"),
    "lookups": gettext_noop("{done}/{total} lookups"),
    "numbers": gettext_noop("{done}/{total} numbers"),
    "watches": gettext_noop("{done}/{total} watches"),
    "MB": "{done}/{total} MB",
}
"""Figures by unit: in Korean the word behind a count differs from a heading's."""


class TerminalBar:
    """A live bar, of :mod:`rich`."""

    def __init__(self, progress: Progress, doing: str, unit: str) -> None:
        self._progress = progress
        self._doing, self._figures = gettext(doing), gettext(_FIGURES[unit])
        self._task = progress.add_task("", total=None, doing=self._doing, figures="")
        self._is_fetching = False

    def __call__(self, done: int, total: int, /) -> None:
        """Show how many are done."""
        if self._is_fetching:
            self._is_fetching = False
            self._progress.reset(self._task)
        figures = self._figures.format(done=_align(done, total), total=total)
        self._progress.update(self._task, completed=done, total=total, doing=self._doing, figures=figures)

    def watch(self, fetch: FetchReport) -> None:
        """Show how far the fetching of statuses is."""
        self._is_fetching = True
        done, total = fetch.answered, fetch.answered + fetch.left
        count = {"done": _align(done, total), "total": total, "rate": fetch.rate}
        if fetch.budget_left is None:
            figures = gettext("{done}/{total} numbers, {rate:,.0f}/s", **count)
        else:
            figures = gettext(
                "{done}/{total} numbers, {rate:,.0f}/s, {left:,} left today", left=fetch.budget_left, **count
            )
        self._progress.update(self._task, completed=done, total=total, doing=gettext("asking nts"), figures=figures)


def _align(done: int, total: int) -> str:
    """Pad a number to the width of its total, so that the text behind it stays in place."""
    return f"{done:>{len(str(total))}}"


@contextmanager
def terminal_bar(unit: str, doing: str) -> Iterator[TerminalBar]:
    """Yield a bar on stderr, which is gone when the block ends."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.fields[doing]}"),
        BarColumn(24),
        TextColumn("{task.fields[figures]}", style="progress.download"),
        TextColumn(gettext("in")),
        TimeElapsedColumn(),  # moves while an upload is waited for
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield TerminalBar(progress, doing, unit)
