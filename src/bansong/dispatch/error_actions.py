"""The consequence of each error of the service for its request: :data:`ERROR_ACTIONS`."""

from __future__ import annotations

from enum import Enum
from typing import Final

from bansong.errors import (
    CertificateError,
    DoubtError,
    LimitError,
    NotSentError,
    QuotaError,
    RejectedError,
    ServiceError,
    ShapeError,
    TooLargeError,
    UnavailableError,
)


class Action(Enum):
    """Consequence for a request and its run."""

    RETRY = "certainly not sent: send it again within the retry budget, else pause the run"
    WAIT = "over a limit: send it again after the time that the service says, else pause the run"
    DELAY = "over a bound that passes: send it again after the time that the service says, if that is short, else pause"
    HOLD = "perhaps done, or done without a readable answer: never send it again, and count a failure"
    RETRY_OR_HOLD = "perhaps done, and harmless if done twice: send it again within the retry budget, else hold it"
    REFUSE = "refused for what it says, and so not done: leave this request, and count a tenth of a failure"
    DROP = "nothing more is to be done for this request; the run goes on"
    END_RUN = "refused whatever it says: end the run and raise the error"


ERROR_ACTIONS: Final[dict[type[Exception], Action]] = {
    NotSentError: Action.RETRY,
    CertificateError: Action.END_RUN,
    QuotaError: Action.WAIT,
    LimitError: Action.DELAY,
    DoubtError: Action.HOLD,
    UnavailableError: Action.RETRY_OR_HOLD,
    ShapeError: Action.HOLD,
    TooLargeError: Action.REFUSE,
    RejectedError: Action.REFUSE,  # but not a redirect: see error_action
    ServiceError: Action.END_RUN,  # 401, 403, 404 and whatever else: it will be the same for every other request
}
"""Action for each class of errors; the nearest listed base class counts."""

MAX_RETRY_AFTER: Final = 60.0
"""Longest Retry-After (seconds) that a run waits for; for a longer one it pauses."""

_OVERLOAD: Final = frozenset({502, 503, 504})


def error_action(error: ServiceError) -> Action:
    """Return the action of an error by :data:`ERROR_ACTIONS`; a redirect (3xx) ends the run."""
    if isinstance(error, RejectedError) and is_redirect(error):
        return Action.END_RUN
    return next(ERROR_ACTIONS[kind] for kind in type(error).__mro__ if kind in ERROR_ACTIONS)


def is_redirect(error: ServiceError) -> bool:
    """Whether an error says that the service is elsewhere, which every request would meet."""
    return error.status is not None and 300 <= error.status < 400


def is_overload(error: ServiceError) -> bool:
    """Whether the service is overloaded: no answer in time, 502 to 504, or a short limit."""
    if isinstance(error, DoubtError | UnavailableError):
        return error.status is None or error.status in _OVERLOAD
    if isinstance(error, LimitError):
        return not is_long_wait(error.retry_after)
    return isinstance(error, QuotaError) and error.retry_after is not None and not is_long_wait(error.retry_after)


def is_long_wait(retry_after: float | None) -> bool:
    """Whether the service asks for a longer wait than :data:`MAX_RETRY_AFTER`."""
    return retry_after is not None and retry_after > MAX_RETRY_AFTER


def may_pass(error: ServiceError) -> bool:
    """Whether a request that may be repeated can succeed at the next try."""
    action = error_action(error)
    if action is Action.WAIT:
        return error.retry_after is not None
    return action in (Action.RETRY, Action.DELAY) or isinstance(error, DoubtError | UnavailableError)
