"""A circuit breaker: pause after failures, so that not every request waits for the next one."""

from __future__ import annotations

import logging
from typing import Final

from bansong.server.settings import Clock, as_text

_log = logging.getLogger(__name__)

FAILURES: Final = 3
"""Failures in a row before a pause."""
PAUSES_S: Final = (5.0, 30.0, 120.0, 600.0)
"""Seconds of the first pause, the second, …"""


class CircuitBreaker:
    """Pauses calls to something that failed; for one event loop.

    ``name``: for the log. After a pause one trial call may go; only its success ends the pause for the others.
    """

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._failures = 0
        self._pauses = 0
        self._until = 0.0
        self._trial = False

    @property
    def is_open(self) -> bool:
        """Whether calls are paused, or a trial is under way."""
        return self._clock.now() < self._until or self._trial

    def begin(self) -> bool:
        """Return whether a call may go; then a ``record_…`` method must follow."""
        if self.is_open:
            return False
        self._trial = self._pauses > 0
        return True

    def record_success(self) -> None:
        if self._pauses:
            _log.info("%s answers again", self._name)
        self._failures = self._pauses = 0
        self._until, self._trial = 0.0, False

    def record_refusal(self) -> None:
        """The call was refused for its content; another may be the trial."""
        self._trial = False

    def record_failure(self, why: str, *, lasting: bool = False) -> None:
        """The call failed; ``lasting``: the next one would fail in the same way."""
        if self._clock.now() < self._until:  # asked before the pause began
            return
        self._failures += 1
        if self._failures < FAILURES and not (lasting or self._trial):
            return
        pause = PAUSES_S[min(self._pauses, len(PAUSES_S) - 1)]
        self._pauses += 1
        self._failures, self._trial = 0, False
        self._until = self._clock.now() + pause
        _log.warning("%s is not asked for %g s: %s", self._name, pause, why)

    def pause_until(self, until: float, why: str) -> None:
        """Pause until a time (seconds since 1970) because of a limit."""
        self._trial = False
        if until > max(self._until, self._clock.now()):
            self._until = until
            _log.warning("%s is not asked until %s: %s", self._name, as_text(until), why)
