"""Progress as lines of text, for logs and pipes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from bansong.progress.display import FetchReport, describe_fetch, describe_progress
from bansong.translation import gettext

_LINE_INTERVAL_S: Final = 5.0


class ProgressLines:
    """A line every few seconds."""

    def __init__(self, unit: str, say: Callable[[str], None]) -> None:
        self._unit, self._say = unit, say
        self._started = self._last = time.monotonic()
        self._lock = threading.Lock()

    def __call__(self, done: int, total: int, /) -> None:
        """Show how many are done."""
        now = time.monotonic()
        if self._is_due(now):
            self._say(describe_progress(done, total, self._unit, now - self._started))

    def watch(self, fetch: FetchReport) -> None:
        """Show how far the fetching of statuses is."""
        self._started = time.monotonic()
        if self._is_due(self._started):
            self._say(gettext("statuses: {progress}", progress=describe_fetch(fetch)))

    def _is_due(self, now: float) -> bool:
        with self._lock:
            if now - self._last < _LINE_INTERVAL_S:
                return False
            self._last = now
            return True
