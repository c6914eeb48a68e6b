"""A circuit breaker: after failures nobody is asked for a while, so that not every request waits for the next one."""

from __future__ import annotations

import logging
from typing import Final

from bansong.server.settings import Clock, as_text

_log = logging.getLogger(__name__)

FAILURES: Final = 3
"""Failures in a row after which nothing is asked for a while."""
PAUSES: Final = (5.0, 30.0, 120.0, 600.0)
"""Seconds of the first pause, the second, …; the last is that of all further ones."""


class CircuitBreaker:
    """Says whether something may be asked that failed before; for one event loop.

    ``name``: what it is, for the log: a line when it is not asked any more, and one when it answers again. After a
    pause one question may go, the trial; only its success lets the others go.
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
        """Whether nothing may be asked now: it failed, and its pause is not over or its trial is under way."""
        return self._clock.now() < self._until or self._trial

    def begin(self) -> bool:
        """Return whether a question may go now; one of the ``record_…`` methods must follow."""
        if self.is_open:
            return False
        self._trial = self._pauses > 0
        return True

    def record_success(self) -> None:
        """Note that it answered."""
        if self._pauses:
            _log.info("%s answers again", self._name)
        self._failures = self._pauses = 0
        self._until, self._trial = 0.0, False

    def record_refusal(self) -> None:
        """Note that it refused this question alone: another one may be the trial."""
        self._trial = False

    def record_failure(self, why: str, *, lasting: bool = False) -> None:
        """Note that it did not answer; ``lasting``: it will answer the next question in the same way."""
        if self._clock.now() < self._until:  # asked before the pause began
            return
        self._failures += 1
        if self._failures < FAILURES and not (lasting or self._trial):
            return
        pause = PAUSES[min(self._pauses, len(PAUSES) - 1)]
        self._pauses += 1
        self._failures, self._trial = 0, False
        self._until = self._clock.now() + pause
        _log.warning("%s is not asked for %g s: %s", self._name, pause, why)

    def pause_until(self, until: float, why: str) -> None:
        """Let nothing be asked until a time (seconds since 1970): a limit, and no failure."""
        self._trial = False
        if until > max(self._until, self._clock.now()):
            self._until = until
            _log.warning("%s is not asked until %s: %s", self._name, as_text(until), why)
