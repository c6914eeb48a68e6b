"""Turn refusals and unreadable responses of the service into errors; say what follows from an error (decision 022).

A message says what was asked, what came back and what to do, in one line without the key. The numbers G22, … are lines
of ``docs/guesses.md``. The client repeats free requests after any passing error, others only if the service certainly
never had all of the request. A run also has a budget of retries.
"""

from __future__ import annotations

import json
import math
import re
import ssl
from collections.abc import Iterable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum
from html import unescape
from http import HTTPStatus
from random import Random
from typing import Final

from bansong.base.errors import (
    AuthenticationError,
    CertificateError,
    DoubtError,
    LimitError,
    NotFoundError,
    NotSentError,
    PlanError,
    QuotaError,
    RejectedError,
    ServerError,
    ServiceError,
    ShapeError,
    TooLargeError,
    UnavailableError,
)
from bansong.base.messages import gettext, gettext_noop, join_clauses

RAW_KEPT: Final = 64 * 1024
_MAX_LINE_CHARS: Final = 300
_MAX_LIST_ITEMS: Final = 3
_TEXTS: Final = ("message", "msg", "error_message", "error_description", "description", "detail", "title", "reason")
_PARTS: Final = ("error", "errors", "detail", "details", "data")
_CODES: Final = ("code", "type", "error")
_UNSEEN: Final = re.compile(r"[\x00-\x20\x7f-\xa0\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff\ud800-\udfff]+")

_LIMIT_CODES: Final = ("limit_exceeded", "rate_limit_exceeded", "rate_limited", "too_many_requests", "throttled")
_STATUSES: Final[dict[int, tuple[type[ServiceError], str, str]]] = {
    401: (
        AuthenticationError,
        gettext_noop("the API key is missing or invalid"),
        gettext_noop("check BANSONG_API_KEY or the key file"),
    ),
    403: (
        PlanError,
        gettext_noop("not available in the account's plan"),
        gettext_noop("the API needs the Business plan or higher"),
    ),
    404: (
        NotFoundError,
        gettext_noop("not found, or not this key's"),
        gettext_noop("check the identifier and the base URL"),
    ),
    407: (
        AuthenticationError,
        gettext_noop("the proxy wants a user and password"),
        gettext_noop("put them into HTTP_PROXY"),
    ),
    413: (TooLargeError, gettext_noop("the file or request is too large"), gettext_noop("send fewer rows at a time")),
    429: (
        QuotaError,
        gettext_noop("the monthly quota is used up"),
        gettext_noop("wait for the next period or ask for a larger plan"),
    ),
}
_LIMIT: Final[tuple[type[ServiceError], str, str]] = (
    LimitError,
    gettext_noop("a limit other than the monthly quota is reached"),
    gettext_noop("nothing was paid; try again"),
)


def status_error(
    asked: str,
    status: int,
    body: bytes,
    *,
    complete: bool = True,
    is_free: bool = False,
    retry_after: float | None = None,
) -> ServiceError:
    """Return the error for an HTTP status (G29). A 5xx leaves a request in doubt only if all of it was sent."""
    detail = body_message(body)
    is_limit = status == HTTPStatus.TOO_MANY_REQUESTS and _names_limit(body)
    if is_limit or status in _STATUSES:
        kind, what, remedy = _LIMIT if is_limit else _STATUSES[status]
        what, remedy = gettext(what), gettext(remedy)
    elif 300 <= status < 500 and status not in (HTTPStatus.SEE_OTHER, HTTPStatus.REQUEST_TIMEOUT):
        kind, what = RejectedError, gettext("refused ({phrase})", phrase=_phrase(status))
        remedy = (
            gettext("redirects are not followed: check the base URL") if status < 400 else gettext("nothing was paid")
        )
    elif is_free:
        kind = ServerError if is_server_fault(status) else UnavailableError
        what = gettext("no usable answer ({phrase})", phrase=_phrase(status))
        remedy = gettext("try again later")
    elif complete:
        kind, what = DoubtError, gettext("no usable answer ({phrase})", phrase=_phrase(status))
        remedy = gettext("what became of the request is not known")
    else:
        kind, what = NotSentError, gettext("answered before all was sent ({phrase})", phrase=_phrase(status))
        remedy = gettext("nothing was paid; try again")
    if detail is not None:
        what = gettext("{what}: {detail}", what=what, detail=detail)
    words = join_clauses(f"{asked}: {status}, {what}", remedy)
    return kind(words, status=status, detail=detail, retry_after=retry_after, raw=body[:RAW_KEPT])


def is_server_fault(status: int | None) -> bool:
    """Whether a status says that the service failed (5xx)."""
    return status is not None and 500 <= status < 600


def body_message(body: bytes) -> str | None:
    """Return the message in a body of any shape (G22), on one line; ``None`` for an empty body."""
    text = body[: 4 * RAW_KEPT].decode("utf-8-sig", "replace").strip()
    if not text:
        return None
    if is_page(body):
        title = re.search(r"<title[^>]*>(.*?)</title", text, flags=re.S | re.I)
        return one_line(unescape(title[1])) if title and title[1].strip() else gettext("an HTML page")
    if text[0] in '{["':
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return one_line(text)
        return one_line(_message(value) or text)
    return one_line(text)


def _names_limit(body: bytes) -> bool:
    # G35: a code other than the monthly quota's
    try:
        value = json.loads(body[: 4 * RAW_KEPT])
    except (ValueError, RecursionError):
        return False
    inner = value.get("error", value) if isinstance(value, dict) else None
    code = inner.get("code") if isinstance(inner, dict) else None
    return isinstance(code, str) and code.lower() in _LIMIT_CODES


def value_message(value: object) -> str | None:
    """Return the error message in a decoded reply, on one line; ``None`` without one."""
    text = _message(value)
    return one_line(text) if text else None


def certificate_error(error: BaseException | None) -> ssl.SSLCertVerificationError | None:
    """Return the certificate error among an error and its causes, if any."""
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__cause__ or error.__context__
    return error


def is_page(body: bytes) -> bool:
    """Whether a body is an HTML page: of a proxy, a login, or a wrong base URL."""
    start = body[:1024].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    return start.startswith(b"<") and (b"<!doctype html" in start or b"<html" in start or b"<head" in start)


def one_line(text: str) -> str:
    """Return a text on one line, without control characters, cut after 300 characters."""
    line = _UNSEEN.sub(" ", text[: 8 * _MAX_LINE_CHARS]).strip()
    return line if len(line) <= _MAX_LINE_CHARS else f"{line[:_MAX_LINE_CHARS]}…"


def seconds_to_wait(header: str | None, now: datetime | None = None) -> float | None:
    """Return the seconds of a Retry-After header (a number or a date); ``None`` for other text (G26)."""
    if header is None:
        return None
    if re.fullmatch(r"\s*\d{1,9}(\.\d{1,9})?\s*", header, flags=re.A):
        return float(header)
    try:
        until = parsedate_to_datetime(header)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    if until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    seconds = (until - (now or datetime.now(UTC))).total_seconds()
    return seconds if seconds >= 0 and math.isfinite(seconds) else None


def _message(value: object, depth: int = 0) -> str | None:
    if isinstance(value, str):
        return value.strip() or None
    if depth > 4:
        return None
    if isinstance(value, list):
        found = [text for text in (_message(item, depth + 1) for item in value[:_MAX_LIST_ITEMS]) if text]
        return "; ".join(found) or None
    return _of_object(value, depth) if isinstance(value, dict) else None


def _of_object(value: dict[str, object], depth: int) -> str | None:
    text = _first(_message(value.get(key), depth + 1) for key in _TEXTS)
    if text is None:
        return _first(_message(value.get(key), depth + 1) for key in _PARTS) or _code(value)
    code = _code(value)
    place = value.get("loc")
    where = f"{'.'.join(map(str, place))}: " if isinstance(place, list) else ""
    return f"{where}{text}" if code is None or code == text or where else f"{text} ({code})"


def _code(value: dict[str, object]) -> str | None:
    codes = (value.get(key) for key in _CODES)
    return _first(str(code) for code in codes if isinstance(code, str | int) and not isinstance(code, bool))


def _first(found: Iterable[str | None]) -> str | None:
    return next((text for text in found if text), None)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return gettext("an unknown status")


_FIRST_WAIT_S: Final = 0.5
_MAX_WAIT_S: Final = 8.0

_random: Final = Random()  # noqa: S311 - it spreads waits, it keeps no secret


def may_go_again(error: ServiceError, *, is_free: bool) -> bool:
    """Whether a failed request may be repeated."""
    if is_long_wait(error.retry_after) or isinstance(error, CertificateError):
        return False
    if not is_free:
        return isinstance(error, NotSentError)
    if isinstance(error, QuotaError):
        return error.retry_after is not None  # without one it is the month's quota
    status = error.status
    if isinstance(error, LimitError):
        return True
    if isinstance(error, UnavailableError):
        return status in (None, HTTPStatus.REQUEST_TIMEOUT) or 200 <= status < 300 or is_server_fault(status)
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
    if isinstance(error, NotSentError):
        return False
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
