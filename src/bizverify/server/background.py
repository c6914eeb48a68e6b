"""Work that goes on beside the requests: it does not end because one step of it failed."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from polars.exceptions import PanicException

from bizverify.server.clock import Clock

_log = logging.getLogger(__name__)
_PAUSES: Final = (1.0, 5.0, 30.0, 60.0)
_CALM: Final = 600.0
"""Seconds without a failure after which the pauses are short again."""


async def supervised(name: str, work: Callable[[], Awaitable[None]], clock: Clock) -> None:
    """Run ``work``, which never returns of itself, until cancelled; if it raises, say so and begin it again."""
    failures = 0
    while True:
        begun = clock.now()
        try:
            await work()
        except (Exception, PanicException):  # what went wrong in one step must not stop the next
            _log.exception("%s failed and is begun again", name)
        if clock.now() - begun > _CALM:
            failures = 0
        await clock.sleep(_PAUSES[min(failures, len(_PAUSES) - 1)])
        failures += 1
