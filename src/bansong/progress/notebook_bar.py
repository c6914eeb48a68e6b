"""Progress as a bar in a notebook: one output of the cell, empty after the run."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import Any, Final

from bansong.progress.display import FetchReport, describe_fetch, describe_progress
from bansong.translation import gettext

_FIRST_AFTER: Final = 0.5
"""Seconds before a bar appears; shorter runs leave no output at all."""
_EVERY: Final = 0.2
"""Seconds between two updates, each of which goes to the browser."""
_BAR: Final = (
    '<div role="progressbar" aria-valuemin="0" aria-valuemax="100" aria-valuenow="{percent:.0f}" '
    'style="display:flex;gap:.7em;align-items:center"><span>{doing}</span>'
    '<span style="flex:0 0 16em;height:.6em;border-radius:.3em;background:rgba(128,128,128,.3)">'
    '<span style="display:block;width:{percent:.1f}%;height:100%;border-radius:.3em;background:#2f7ed8"></span></span>'
    "<span>{figures}</span></div>"
)


class NotebookBar:
    """A bar in a notebook, shown by a display handle of IPython."""

    def __init__(self, unit: str, doing: str) -> None:
        self._unit, self._doing = unit, gettext(doing)
        self._started = time.monotonic()
        self._due = self._started + _FIRST_AFTER
        self._handle: Any = None
        self._lock = threading.Lock()

    def __call__(self, done: int, total: int, /) -> None:
        """Show how many are done."""
        figures = describe_progress(done, total, self._unit, time.monotonic() - self._started)
        self._update(self._doing, done / max(total, 1), figures)

    def watch(self, fetch: FetchReport) -> None:
        """Show how far the fetching of statuses is."""
        self._started = time.monotonic()
        done = fetch.answered / max(fetch.answered + fetch.left, 1)
        self._update(gettext("asking nts"), done, describe_fetch(fetch))

    def close(self) -> None:
        """Leave nothing where the bar was."""
        with self._lock:
            self._due = float("inf")
            if self._handle is not None:
                self._show("", "")

    def _update(self, doing: str, part: float, figures: str) -> None:
        now = time.monotonic()
        if now < self._due or not self._lock.acquire(blocking=False):  # another thread is at it
            return
        try:
            if now >= self._due:
                self._due = now + _EVERY
                bar = _BAR.format(percent=100 * min(part, 1), doing=escape(doing), figures=escape(figures))
                self._show(bar, f"{doing} {figures}")
        finally:
            self._lock.release()

    def _show(self, html: str, text: str) -> None:
        from IPython.display import display

        data = {"text/html": html, "text/plain": text}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(data, raw=True)


def is_notebook() -> bool:
    """Whether this process is the kernel of a notebook, whatever shows it."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


@contextmanager
def notebook_bar(unit: str, doing: str) -> Iterator[NotebookBar]:
    """Yield a bar in the output of the cell that runs, which is empty when the block ends."""
    bar = NotebookBar(unit, doing)
    try:
        yield bar
    finally:
        bar.close()
