"""Which requests are sent again by the client itself, and when (decision 022).

A request that only reads is free, so it may be sent again after anything that passes. One that is paid for, or changes
something, goes again only where it is certain that the service never had all of it.
"""

from __future__ import annotations

from random import Random
from typing import Final

from bizverify.errors import CertificateError, DoubtError, NotSentError, QuotaError, ServiceError

_FIRST_WAIT: Final = 0.5
_LONGEST_WAIT: Final = 8.0
_LONGEST_ASKED: Final = 60.0
"""Seconds of a Retry-After that a call waits for; what asks for more is raised at once."""
_TIMED_OUT: Final = 408

_random: Final = Random()  # noqa: S311 - it spreads waits, it keeps no secret


def may_go_again(error: ServiceError, *, is_free: bool, was_sent: bool) -> bool:
    """Whether a request that ended in ``error`` may be sent again; ``was_sent``: all of its body was handed over."""
    is_long = error.retry_after is not None and error.retry_after > _LONGEST_ASKED
    if is_long or isinstance(error, CertificateError):
        return False
    if not is_free:
        return isinstance(error, NotSentError) and not was_sent
    if isinstance(error, QuotaError):
        return error.retry_after is not None  # without one it is the month's quota
    status = error.status
    if isinstance(error, DoubtError):
        return status is None or 200 <= status < 300 or status == _TIMED_OUT or 500 <= status < 600
    return isinstance(error, NotSentError)


def seconds_before(attempt: int, retry_after: float | None) -> float:
    """Seconds to wait before retry number ``attempt`` (from 1), never less than the service asks for.

    0.5, 1, 2, 4, 8, less up to a quarter by chance: requests that failed together do not come back together.
    """
    longest = min(_LONGEST_WAIT, _FIRST_WAIT * 2.0 ** (min(attempt, 16) - 1))
    chance = longest * _random.uniform(0, 0.25)
    return longest - chance if retry_after is None else retry_after + chance
