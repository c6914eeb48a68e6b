"""Rules for retries, and the consequences of errors (decision 022).

The client repeats free requests after any passing error, others only if the service certainly never had all of the
request. A run also has a budget of retries.
"""

from __future__ import annotations

from enum import Enum
from fractions import Fraction
from http import HTTPStatus
from random import Random
from typing import Final

from bansong.base.errors import (
    CertificateError,
    DoubtError,
    LimitError,
    NotSentError,
    Problem,
    QuotaError,
    RejectedError,
    ServiceError,
    ShapeError,
    TooLargeError,
    UnavailableError,
    UsageError,
)

RETRY_BUDGET_INVALID: Final = Problem(
    "options.retry_budget_invalid",
    "a retry budget of {share} a request, {least} to {most}; give 0 to 1, and least ≤ most",
)

_FIRST_WAIT_S: Final = 0.5
_MAX_WAIT_S: Final = 8.0
_FIRST_BACKOFF_S: Final = 1.0
_MAX_BACKOFF_S: Final = 30.0

_random: Final = Random()  # noqa: S311 - it spreads waits, it keeps no secret


def may_go_again(error: ServiceError, *, is_free: bool, was_sent: bool) -> bool:
    """Whether a failed request may be repeated; ``was_sent`` means that its whole body was handed to the network."""
    if is_long_wait(error.retry_after) or isinstance(error, CertificateError):
        return False
    if not is_free:
        return isinstance(error, NotSentError) and not was_sent
    if isinstance(error, QuotaError):
        return error.retry_after is not None  # without one it is the month's quota
    status = error.status
    if isinstance(error, LimitError):
        return True
    if isinstance(error, UnavailableError):
        return status is None or 200 <= status < 300 or status == HTTPStatus.REQUEST_TIMEOUT or 500 <= status < 600
    return isinstance(error, NotSentError)


def seconds_before(attempt: int, retry_after: float | None) -> float:
    """Return the seconds before retry ``attempt`` (from 1): 0.5, 1, 2, 4, 8, less a random quarter."""
    longest = min(_MAX_WAIT_S, _FIRST_WAIT_S * 2.0 ** (min(attempt, 16) - 1))
    chance = longest * _random.uniform(0, 0.25)
    return longest - chance if retry_after is None else retry_after + chance


class Action(Enum):
    """The consequence of an error, for the request and its run."""

    RETRY = "certainly not sent: send it again within the retry budget, else pause the run"
    WAIT = "over a limit: send it again after the time that the service says, else pause the run"
    DELAY = "over a bound that passes: send it again after the time that the service says, if that is short, else pause"
    HOLD = "perhaps done, or done without a readable answer: never send it again, and count a failure"
    RETRY_OR_HOLD = "perhaps done, and harmless if done twice: send it again within the retry budget, else hold it"
    REFUSE = "refused for what it says, and so not done: leave this request, and count a tenth of a failure"
    DROP = "nothing more is to be done for this request; the run goes on"
    END_RUN = "refused whatever it says: end the run and raise the error"


# the nearest listed base class of an error counts
ERROR_ACTIONS: Final[dict[type[Exception], Action]] = {
    NotSentError: Action.RETRY,
    CertificateError: Action.END_RUN,
    QuotaError: Action.WAIT,
    LimitError: Action.DELAY,
    DoubtError: Action.HOLD,
    UnavailableError: Action.RETRY_OR_HOLD,
    ShapeError: Action.HOLD,
    TooLargeError: Action.REFUSE,
    RejectedError: Action.REFUSE,  # except redirects: see error_action
    ServiceError: Action.END_RUN,  # 401, 403, 404 and others: every other request would get the same
}

MAX_RETRY_AFTER: Final = 60.0  # seconds: for a longer one a run pauses, and a client raises the error at once
_OVERLOAD: Final = frozenset({502, 503, 504})


def error_action(error: ServiceError) -> Action:
    """Return what a run does after an error of the service."""
    if isinstance(error, RejectedError) and is_redirect(error):
        return Action.END_RUN
    return next(ERROR_ACTIONS[kind] for kind in type(error).__mro__ if kind in ERROR_ACTIONS)


def is_redirect(error: ServiceError) -> bool:
    """Whether the service answered with a redirect (3xx)."""
    return error.status is not None and 300 <= error.status < 400


def is_overload(error: ServiceError) -> bool:
    """Whether an error shows overload of the service: no answer in time, 502 to 504, or a limit that soon passes."""
    if isinstance(error, DoubtError | UnavailableError):
        return error.status is None or error.status in _OVERLOAD
    if isinstance(error, LimitError):
        return not is_long_wait(error.retry_after)
    return isinstance(error, QuotaError) and error.retry_after is not None and not is_long_wait(error.retry_after)


def is_long_wait(retry_after: float | None) -> bool:
    """Whether a Retry-After is longer than :data:`MAX_RETRY_AFTER`."""
    return retry_after is not None and retry_after > MAX_RETRY_AFTER


def may_pass(error: ServiceError) -> bool:
    """Whether a free request may succeed if it is sent again after this error."""
    action = error_action(error)
    if action is Action.WAIT:
        return error.retry_after is not None
    return action in (Action.RETRY, Action.DELAY) or isinstance(error, DoubtError | UnavailableError)


class RetryBudget:
    """The retries left to a run, limited to protect an overloaded service.

    Each request earns ``share`` of a retry. A run begins with ``least``, and never has more than ``most``.
    """

    def __init__(self, share: float = 0.1, least: int = 10, *, most: int = 100, random: Random | None = None) -> None:
        if not (0 <= share <= 1 and 0 <= least <= most):
            raise UsageError(RETRY_BUDGET_INVALID, share=share, least=least, most=most)
        self._share = Fraction(share).limit_denominator(1_000_000)  # ten tenths are one
        self._most = most
        self._left = Fraction(least)
        self._random = Random() if random is None else random  # noqa: S311 - it spreads waits, it keeps no secret

    def record_request(self) -> None:
        self._left = min(self._left + self._share, Fraction(self._most))

    def try_spend(self) -> bool:
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def backoff(self, attempt: int, retry_after: float | None = None) -> float:
        """Return the seconds before retry ``attempt`` (from 1), randomised so that retries do not coincide."""
        longest = min(_MAX_BACKOFF_S, _FIRST_BACKOFF_S * 2.0 ** (min(attempt, 64) - 1))
        return max(self._random.uniform(0, longest), retry_after or 0.0)
