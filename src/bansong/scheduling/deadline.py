"""The time by which a run of a job must be done."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from bansong.cancellation import CancelToken, StopRequest


class Deadline:
    """The time by which a run must be done: what is under way is ended then, and nothing more begins."""

    def __init__(self, seconds: float | None, cancel: CancelToken, stop: StopRequest) -> None:
        self.cancel = cancel
        self.is_over = seconds is not None and seconds <= 0  # a timer would let something begin
        self._stop = stop
        self._interruptible = False
        self._lock = threading.Lock()
        self._timer = None if seconds is None else threading.Timer(seconds, self._end)

    def __enter__(self) -> Self:
        if self._timer is not None:
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()

    @contextmanager
    def ending(self, *, buys: bool) -> Iterator[None]:
        """End the block when the time comes: what buys is cancelled, what does not is interrupted."""
        with self._lock:
            self._interruptible = not buys
        try:
            yield
        finally:
            with self._lock:
                self._interruptible = False

    def _end(self) -> None:
        with self._lock:
            self.is_over = True
            if self._interruptible:
                self._stop.interrupt()
        self.cancel.cancel()
