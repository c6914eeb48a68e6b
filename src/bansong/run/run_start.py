"""When a run began, and by which clock it tells how old things are."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from bansong.storage.filesystem import new_run_id


@dataclass(frozen=True, slots=True)
class RunStart:
    """A run's id, and when it began: as a time, and in seconds of the monotonic clock.

    ``unix_time``: the time in seconds since 1970, by which the age of what is stored is told.
    """

    run_id: str
    at: datetime
    clock: float
    unix_time: Callable[[], float] = time.time

    @classmethod
    def now(cls, unix_time: Callable[[], float] = time.time) -> RunStart:
        """Return the start of a run that begins now, by the given time."""
        at = datetime.fromtimestamp(unix_time(), UTC)
        return cls(new_run_id(at), at, time.monotonic(), unix_time)
