"""Map replies without statuses to errors, each one sentence with a remedy.

The portal in front of the API (data.go.kr) answers XML within any HTTP status, 200 among them, and uses 429 for the
day's limit and the second's. So a body's code counts before the HTTP status.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final
from xml.etree.ElementTree import Element, ParseError

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import fromstring

from bansong.client.error_mapping import RAW_KEPT, body_message, is_page, one_line
from bansong.client.json_search import UnreadableError, parse_json
from bansong.errors import (
    AuthenticationError,
    NotFoundError,
    PlanError,
    QuotaError,
    RejectedError,
    ServiceError,
    ShapeError,
    TooLargeError,
    UnavailableError,
)
from bansong.translation import Phrase, gettext, gettext_noop

_REASON: Final = "returnReasonCode"
_SECOND: Final = 1.0
_LONGEST: Final = 60
_MAX_DEPTH: Final = 4
_QUOTA_WORDS: Final = b"quota exceeded"
"""Part of the plain text ``API token quota exceeded``, with 429 or 200: the day's limit."""


@dataclass(frozen=True, slots=True)
class _Fault:
    """The meaning of a code; ``wait``: seconds to wait if the reply does not say."""

    kind: type[ServiceError]
    what: str
    remedy: str
    wait: float | None = None


_LATER: Final = gettext_noop("try again later")
_NO_SUCH_API: Final = _Fault(
    NotFoundError,
    gettext_noop("there is no such API"),
    gettext_noop("check BANSONG_NTS_URL, and see at data.go.kr whether the API has moved"),
)
_WRONG_KEY: Final = _Fault(
    AuthenticationError,
    gettext_noop("the key is not registered"),
    gettext_noop(
        "copy it again from data.go.kr (마이페이지 → 인증키); a new key works up to an hour after its 활용신청"
    ),
)
_REFUSED: Final = _Fault(
    PlanError,
    gettext_noop("the key has no access to this API (yet)"),
    gettext_noop(
        "see at data.go.kr (마이페이지) that the 활용신청 of 국세청_사업자등록정보 진위확인 및 상태조회 서비스 "
        "is approved (승인), and wait up to an hour after that"
    ),
)
_BLOCKED: Final = _Fault(
    PlanError,
    gettext_noop("it does not take requests from this network's IP address"),
    gettext_noop("ask from another network, or have data.go.kr (공공데이터활용지원센터) lift the block"),
)
_MALFORMED: Final = _Fault(
    RejectedError, gettext_noop("it calls the request malformed"), gettext_noop("report this as a defect of bansong")
)
_TOO_LARGE: Final = _Fault(
    TooLargeError, gettext_noop("it calls the request too large"), gettext_noop("ask for fewer numbers a call")
)
_DAY_IS_OVER: Final = _Fault(
    QuotaError,
    gettext_noop("the key's requests of the day are used up"),
    gettext_noop("go on after midnight in Seoul, or ask for more with a 변경신청 (일일 트래픽) at data.go.kr"),
)
_TOO_FAST: Final = _Fault(
    QuotaError,
    gettext_noop("too many requests in one second"),
    gettext_noop("ask again a second later, and more slowly"),
    _SECOND,
)
_BROKEN: Final = _Fault(UnavailableError, gettext_noop("it failed with an error of its own"), _LATER)

_PORTAL_CODES: Final = {
    "1": _BROKEN,
    "2": _BROKEN,
    "4": _BROKEN,
    "5": _Fault(UnavailableError, gettext_noop("the tax authority did not answer the portal in time"), _LATER),
    "12": _NO_SUCH_API,
    "20": _REFUSED,
    "21": _Fault(
        AuthenticationError,
        gettext_noop("the key is disabled for the time being"),
        gettext_noop("see data.go.kr (마이페이지) for why"),
    ),
    "22": _DAY_IS_OVER,
    "23": _TOO_FAST,
    "29": _BLOCKED,
    "30": _WRONG_KEY,
    "31": _Fault(
        AuthenticationError,
        gettext_noop("the key's term (활용기간) has ended"),
        gettext_noop("extend it at data.go.kr (마이페이지 → 연장신청)"),
    ),
    "32": _BLOCKED,
    "99": _BROKEN,
}
"""By the portal's ``returnReasonCode``."""

_API_CODES: Final = {
    "-3": _NO_SUCH_API,
    "-4": _WRONG_KEY,
    "-999": _Fault(
        UnavailableError,
        gettext_noop("it failed and does not say why"),
        gettext_noop("try again later, and if it stays so copy the key again from data.go.kr (마이페이지 → 인증키)"),
    ),
    "BAD_JSON_REQUEST": _MALFORMED,
    "REQUEST_DATA_MALFORMED": _MALFORMED,
    "TOO_LARGE_REQUEST": _TOO_LARGE,
    "INTERNAL_ERROR": _BROKEN,
    "HTTP_ERROR": _BROKEN,
}
"""By the API's own ``code`` or ``status_code``."""

_STATUSES: Final = {
    401: _WRONG_KEY,
    403: _REFUSED,
    404: _NO_SUCH_API,
    407: _Fault(
        AuthenticationError,
        gettext_noop("the proxy wants a user and password"),
        gettext_noop("put them into HTTPS_PROXY"),
    ),
    411: _MALFORMED,
    413: _TOO_LARGE,
    429: _TOO_FAST,
    504: _Fault(UnavailableError, gettext_noop("it did not answer in time"), _LATER),
}
_PAGE: Final = _Fault(
    UnavailableError,
    gettext_noop("a web page came instead of an answer"),
    gettext_noop(
        "it may be under maintenance (점검): try again later, and if it stays so check BANSONG_NTS_URL and the proxy"
    ),
)
_REDIRECT: Final = _Fault(
    RejectedError,
    gettext_noop("it redirects elsewhere, which is not followed"),
    gettext_noop("check BANSONG_NTS_URL and the proxy"),
)
_UNKNOWN_CODE: Final = _Fault(
    UnavailableError,
    gettext_noop("it answers with a code that is not known"),
    gettext_noop("try again later, and if it stays so look the code up at data.go.kr"),
)
_DAMAGED: Final = _Fault(UnavailableError, gettext_noop("the answer is damaged"), _LATER)
_SHAPE: Final = _Fault(
    ShapeError,
    gettext_noop("the answer has another shape than the API's"),
    gettext_noop("check BANSONG_NTS_URL, and whether a newer bansong knows the shape"),
)


def reply_error(subject: str, status: int, body: bytes, retry_after: float | None = None) -> ServiceError:
    """Return the error that a reply stands for; ``subject`` names who replied.

    ``body``: of a reply of success, one without statuses; the key is already removed.
    """
    fault, evidence = _find_fault(status, body)
    words = Phrase(
        "{subject}: {what} ({evidence}); {remedy}",
        subject=subject,
        what=Phrase(fault.what),
        evidence=", ".join([f"HTTP {status}", *evidence]),
        remedy=Phrase(fault.remedy),
    )
    wait = fault.wait if retry_after is None or fault is _DAY_IS_OVER else retry_after  # no wait but midnight's helps
    detail = body_message(body)
    return fault.kind(words, status=status, detail=detail, retry_after=wait, raw=body[:RAW_KEPT])


def _find_fault(status: int, body: bytes) -> tuple[_Fault, list[str]]:
    is_success = 200 <= status < 300
    if _QUOTA_WORDS in body.lower() and not is_page(body):
        return _DAY_IS_OVER, [shorten(body_message(body) or body.decode(errors="replace"))]
    if is_page(body):
        fault = _PAGE if is_success or status >= HTTPStatus.INTERNAL_SERVER_ERROR else _fault_of_status(status)
        return fault, [shorten(body_message(body) or "")]
    content = _read_xml(body) if body.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<") else _read_json(body)
    reason = next((shorten(str(code)) for code in _reasons(content)), None)
    if reason is not None:
        unknown = _UNKNOWN_CODE if is_success else _fault_of_status(status)
        return _PORTAL_CODES.get(reason.strip().lstrip("0"), unknown), [f"{_REASON} {reason}"]
    if isinstance(content, dict):
        codes = [shorten(str(content[name])) for name in ("code", "status_code") if _is_code(content.get(name))]
        known = next((_API_CODES[code] for code in codes if code in _API_CODES), None)
        if known is not None or (is_success and codes):
            return known or _UNKNOWN_CODE, codes
    if not is_success:
        detail = body_message(body)
        return _fault_of_status(status), [] if detail is None else [shorten(detail)]
    return (_DAMAGED, [content]) if isinstance(content, str) else (_SHAPE, [])


def _fault_of_status(status: int) -> _Fault:
    if status in _STATUSES:
        return _STATUSES[status]
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.REQUEST_TIMEOUT:
        return _BROKEN
    return _REDIRECT if status < HTTPStatus.BAD_REQUEST else _MALFORMED


def _read_json(body: bytes) -> object:
    try:
        value = parse_json(body)
    except UnreadableError as error:
        return str(error)
    return [value] if isinstance(value, str) else value


def _read_xml(body: bytes) -> object:
    try:
        root: Element = fromstring(body)
        return {element.tag.rpartition("}")[2]: element.text or "" for element in root.iter()}
    except (ParseError, DefusedXmlException, ValueError, LookupError, RecursionError):
        return gettext("is neither JSON nor XML")


def _reasons(value: object, depth: int = 0) -> Iterator[object]:
    if isinstance(value, dict) and depth < _MAX_DEPTH:
        if _is_code(value.get(_REASON)):
            yield value[_REASON]
        for inner in value.values():
            yield from _reasons(inner, depth + 1)


def _is_code(value: object) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool) and str(value).strip() not in ("", "OK")


def shorten(text: str) -> str:
    """Return words of a reply on one line, of 60 characters at most, � for unprintable ones."""
    line = "".join(letter if letter.isprintable() else "�" for letter in one_line(text))
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"
