"""Progress as a live bar on a terminal, of :mod:`rich`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from bizverify.progress.display import FetchReport
from bizverify.translation import gettext

if TYPE_CHECKING:
    from rich.progress import Progress


class TerminalBar:
    """A live bar, of :mod:`rich`."""

    def __init__(self, progress: Progress, doing: str, unit: str) -> None:
        self._progress = progress
        self._words: dict[str, Any] = {"doing": gettext(doing), "unit": gettext(unit)}
        self._task = progress.add_task("", total=None, **self._words)
        self._is_fetching = False

    def __call__(self, done: int, total: int, /) -> None:
        """Show how many are done."""
        if self._is_fetching:
            self._is_fetching = False
            self._progress.reset(self._task)
            self._progress.update(self._task, **self._words)
        self._progress.update(self._task, completed=done, total=total)

    def watch(self, fetch: FetchReport) -> None:
        """Show how far the fetching of statuses is."""
        self._is_fetching = True
        unit = gettext("numbers, {rate:,.0f}/s", rate=fetch.rate)
        if fetch.budget_left is not None:
            unit = gettext("numbers, {rate:,.0f}/s, {left:,} left today", rate=fetch.rate, left=fetch.budget_left)
        words: dict[str, Any] = {"doing": gettext("asking nts"), "unit": unit}
        total = fetch.answered + fetch.left
        self._progress.update(self._task, completed=fetch.answered, total=total, **words)


@contextmanager
def terminal_bar(unit: str, doing: str) -> Iterator[TerminalBar]:
    """Yield a bar on stderr, which is gone when the block ends."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.fields[doing]}"),
        BarColumn(24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[unit]}"),
        TextColumn(gettext("in")),
        TimeElapsedColumn(),  # moves while an upload is waited for
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield TerminalBar(progress, doing, unit)
