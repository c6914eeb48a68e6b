"""Client of the tax authority's API: key, calls, replies and errors.

The portal in front of the API (data.go.kr) reports errors in XML with any HTTP status, even 200, and uses 429 for the
limit of a day and of a second. So a code in the body takes precedence over the HTTP status.
"""

from __future__ import annotations

import json
import os
import re
import ssl
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import lru_cache, partial
from http import HTTPStatus
from typing import Any, Final, Self
from urllib.parse import unquote
from xml.etree.ElementTree import Element, ParseError

import polars as pl
from defusedxml import DefusedXmlException
from defusedxml.ElementTree import fromstring

from bansong.base.errors import (
    AuthenticationError,
    DoubtError,
    NotFoundError,
    PlanError,
    Problem,
    QuotaError,
    RejectedError,
    ServiceError,
    ShapeError,
    TooLargeError,
    UnavailableError,
    UsageError,
)
from bansong.base.files import variable
from bansong.base.key import SecretKey
from bansong.base.messages import Option, Phrase, gettext, gettext_noop
from bansong.base.options import ENV_NTS_KEY, ENV_NTS_KEY_FILE
from bansong.base.schema import seoul_day
from bansong.client.address import BaseUrl
from bansong.client.arguments import ten_digits
from bansong.client.errors import RAW_KEPT, body_message, is_page, one_line
from bansong.client.evidence import UnreadableError, parse_json
from bansong.client.request import Timeouts, json_body, request_id_of, tls_context
from bansong.client.transport import HttpClient, Transport, Wording, check_http_client
from bansong.engine.registry import STATUS_SCHEMA, observations
from bansong.engine.text import day_expr

# a key as people copy it: in quotation marks, or out of a URL
_PASTED: Final = re.compile(
    r"""^\s*["'“‘]?(?:.*\bserviceKey=)?["'“‘]?(?P<key>[^"'”’&]*)["'”’]?(?:&.*)?\s*$""", re.IGNORECASE | re.DOTALL
)


class NtsKey(SecretKey):
    """A key (일반 인증키) of the portal data.go.kr, in its Encoding or its Decoding form.

    The encoded form is decoded, since the header needs the decoded one. Quotation marks and ``serviceKey=`` around the
    key are dropped. By default it is read from BANSONG_NTS_KEY or the file BANSONG_NTS_KEY_FILE.
    """

    NAME = gettext_noop("NTS API key")
    ORIGIN = "data.go.kr (마이페이지 → 인증키)"
    ENV = ENV_NTS_KEY
    ENV_FILE = ENV_NTS_KEY_FILE
    HEADER = "Authorization"
    SCHEME = "Infuser "

    __slots__ = ()

    def __init__(self, value: str) -> None:
        try:
            value = _PASTED.sub(r"\g<key>", value).strip() if isinstance(value, str) else value
            super().__init__(unquote(value) if isinstance(value, str) else value)
            if value not in self._forms:
                self._forms.insert(0, value)  # another encoding of the key, to be hidden as well
        finally:
            del value  # a traceback may show local variables


_REASON: Final = "returnReasonCode"
_LONGEST: Final = 60
_MAX_DEPTH: Final = 4
_QUOTA_WORDS: Final = b"quota exceeded"  # reply in plain text, with 429 or 200, at the limit of the day


@dataclass(frozen=True, slots=True)
class ReplyFault:
    """Meaning of a reply without statuses: the error, its cause and the remedy."""

    kind: type[ServiceError]
    what: str
    remedy: str = gettext_noop("try again later")
    wait: float | None = field(default=None, kw_only=True)  # seconds to wait, if the reply does not say


_NO_SUCH_API: Final = ReplyFault(
    NotFoundError, "there is no such API", "check BANSONG_NTS_URL, and see at data.go.kr whether the API has moved"
)
_WRONG_KEY: Final = ReplyFault(
    AuthenticationError,
    "the key is not registered",
    "copy it again from data.go.kr (마이페이지 → 인증키); a new key works up to an hour after its 활용신청",
)
_REFUSED: Final = ReplyFault(
    PlanError,
    "the key has no access to this API (yet)",
    "see at data.go.kr (마이페이지) that the 활용신청 of 국세청_사업자등록정보 진위확인 및 상태조회 서비스 "
    "is approved (승인), and wait up to an hour after that",
)
_BLOCKED: Final = ReplyFault(
    PlanError,
    "it does not take requests from this network's IP address",
    "ask from another network, or have data.go.kr (공공데이터활용지원센터) lift the block",
)
_MALFORMED: Final = ReplyFault(RejectedError, "it calls the request malformed", "report this as a defect of bansong")
_TOO_LARGE: Final = ReplyFault(TooLargeError, "it calls the request too large", "ask for fewer numbers a call")
_DAY_IS_OVER: Final = ReplyFault(
    QuotaError,
    "the key's requests of the day are used up",
    "go on after midnight in Seoul, or ask for more with a 변경신청 (일일 트래픽) at data.go.kr",
)
_TOO_FAST: Final = ReplyFault(
    QuotaError, "too many requests in one second", "ask again a second later, and more slowly", wait=1.0
)
_BROKEN: Final = ReplyFault(UnavailableError, "it failed with an error of its own")

_PORTAL_CODES: Final = {
    **dict.fromkeys(("1", "2", "4", "99"), _BROKEN),
    "5": ReplyFault(UnavailableError, "the tax authority did not answer the portal in time"),
    "12": _NO_SUCH_API,
    "20": _REFUSED,
    "21": ReplyFault(
        AuthenticationError, "the key is disabled for the time being", "see data.go.kr (마이페이지) for why"
    ),
    "22": _DAY_IS_OVER,
    "23": _TOO_FAST,
    "29": _BLOCKED,
    "30": _WRONG_KEY,
    "31": ReplyFault(
        AuthenticationError, "the key's term (활용기간) has ended", "extend it at data.go.kr (마이페이지 → 연장신청)"
    ),
    "32": _BLOCKED,
}

_API_CODES: Final = {
    "-3": _NO_SUCH_API,
    "-4": _WRONG_KEY,
    "-999": ReplyFault(
        UnavailableError,
        "it failed and does not say why",
        "try again later, and if it stays so copy the key again from data.go.kr (마이페이지 → 인증키)",
    ),
    "BAD_JSON_REQUEST": _MALFORMED,
    "REQUEST_DATA_MALFORMED": _MALFORMED,
    "TOO_LARGE_REQUEST": _TOO_LARGE,
    "INTERNAL_ERROR": _BROKEN,
    "HTTP_ERROR": _BROKEN,
}

_STATUSES: Final = {
    401: _WRONG_KEY,
    403: _REFUSED,
    404: _NO_SUCH_API,
    407: ReplyFault(AuthenticationError, "the proxy wants a user and password", "put them into HTTPS_PROXY"),
    411: _MALFORMED,
    413: _TOO_LARGE,
    429: _TOO_FAST,
    504: ReplyFault(UnavailableError, "it did not answer in time"),
}
_PAGE: Final = ReplyFault(
    UnavailableError,
    "a web page came instead of an answer",
    "it may be under maintenance (점검): try again later, and if it stays so check BANSONG_NTS_URL and the proxy",
)
_REDIRECT: Final = ReplyFault(
    RejectedError, "it redirects elsewhere, which is not followed", "check BANSONG_NTS_URL and the proxy"
)
_UNKNOWN_CODE: Final = ReplyFault(
    UnavailableError,
    "it answers with a code that is not known",
    "try again later, and if it stays so look the code up at data.go.kr",
)
_DAMAGED: Final = ReplyFault(UnavailableError, "the answer is damaged")
_SHAPE: Final = ReplyFault(
    ShapeError,
    "the answer has another shape than the API's",
    "check BANSONG_NTS_URL, and whether a newer bansong knows the shape",
)


def reply_error(subject: str, status: int, body: bytes, retry_after: float | None = None) -> ServiceError:
    """Return the error for a reply without statuses; its text calls the replying service ``subject``."""
    fault, evidence = _find_fault(status, body)
    words = Phrase(
        "{subject}: {what} ({evidence}); {remedy}",
        subject=subject,
        what=Phrase(fault.what),
        evidence=", ".join([f"HTTP {status}", *evidence]),
        remedy=Phrase(fault.remedy),
    )
    wait = fault.wait if retry_after is None or fault is _DAY_IS_OVER else retry_after  # a limit of the day has no wait
    detail = body_message(body)
    return fault.kind(words, status=status, detail=detail, retry_after=wait, raw=body[:RAW_KEPT])


def _find_fault(status: int, body: bytes) -> tuple[ReplyFault, list[str]]:
    is_success = 200 <= status < 300
    if _QUOTA_WORDS in body.lower() and not is_page(body):
        return _DAY_IS_OVER, [shorten(body_message(body) or body.decode(errors="replace"))]
    if is_page(body):
        fault = _PAGE if is_success or status >= HTTPStatus.INTERNAL_SERVER_ERROR else _fault_of_status(status)
        return fault, [shorten(body_message(body) or "")]
    content = _read_content(body)
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


def _fault_of_status(status: int) -> ReplyFault:
    if status in _STATUSES:
        return _STATUSES[status]
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.REQUEST_TIMEOUT:
        return _BROKEN
    return _REDIRECT if status < HTTPStatus.BAD_REQUEST else _MALFORMED


def _read_content(body: bytes) -> object:
    """Parse a body (JSON or XML); a returned str says why it is unreadable."""
    try:
        if body.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
            root: Element = fromstring(body)
            return {element.tag.rpartition("}")[2]: element.text or "" for element in root.iter()}
        value = parse_json(body)
        return [value] if isinstance(value, str) else value
    except UnreadableError as error:
        return str(error)
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
    """Shorten words of a reply to one line of 60 characters; unprintable ones become �."""
    line = "".join(letter if letter.isprintable() else "�" for letter in one_line(text))
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"


NOT_ASKED: Final = gettext_noop("a row of a number that was not asked was left out")
UNREADABLE: Final = gettext_noop("a row without a readable number was left out")
CONFLICTING: Final = gettext_noop(
    "a number came twice with different statuses and counts as not answered: ask again later"
)
NO_STATUS: Final = gettext_noop("a number came without a status and counts as not answered: ask again later")
_FIELDS: Final = ("b_stt", "b_stt_cd", "tax_type", "utcc_yn")
_MAX_FIELD_CHARACTERS: Final = 160
_A_NUMBER: Final = "1208800767"  # any valid number, to parse words alone
_NUMBER: Final = re.compile("[0-9]{10}")
_DAY: Final = re.compile("[0-9]{8}")


@dataclass(frozen=True, slots=True)
class StatusReply:
    """The statuses of a reply (:data:`STATUS_SCHEMA`), sorted by ``b_no``; some may be ``unregistered``."""

    statuses: pl.DataFrame
    missing: tuple[str, ...] = ()  # asked numbers (ten digits) without a status, in order
    problems: Counter[str] = field(default_factory=Counter)  # unusable rows, by description


@dataclass(frozen=True, slots=True)
class _Meaning:
    status: str | None
    taxation: str | None
    merged: bool | None
    problem: str | None


def read_reply(body: bytes, status: int, asked: Sequence[str], as_of: date, subject: str) -> StatusReply | ServiceError:
    """Parse a reply (HTTP ``status`` and ``body``) about the numbers ``asked``; without statuses, return an error."""
    rows = _find_rows(body)
    if rows is None:
        return reply_error(subject, status, body)
    problems: Counter[str] = Counter()
    wanted = {int(number): number for number in asked}
    found: dict[int, tuple[_Meaning, date | None]] = {}
    conflicting: set[int] = set()
    for row in rows:  # plain Python, since a reply has at most a hundred rows
        number = _read_number(row)
        if number not in wanted:
            problems[UNREADABLE if number is None else NOT_ASKED] += 1
            continue
        meaning = _read_words(*(_read_text(row, name) for name in _FIELDS)), _read_day(_read_text(row, "end_dt"))
        if found.setdefault(number, meaning) != meaning:
            conflicting.add(number)
    for number in conflicting:
        del found[number]
        problems[CONFLICTING] += 1
    problems.update(meaning.problem for meaning, _ in found.values() if meaning.problem is not None)
    known = {number: about for number, about in sorted(found.items()) if about[0].status is not None}
    statuses = pl.DataFrame(
        [
            (number, meaning.status, since, None, as_of, meaning.taxation, meaning.merged)
            for number, (meaning, since) in known.items()
        ],
        schema=STATUS_SCHEMA,
        orient="row",
    )
    return StatusReply(statuses, tuple(text for number, text in wanted.items() if number not in known), problems)


def _find_rows(body: bytes) -> list[Any] | None:
    """Return the rows of a body; ``None`` if it has no readable row."""
    try:
        content = parse_json(body)
    except UnreadableError:
        return None
    if not isinstance(content, dict) or not isinstance(rows := content.get("data"), list):
        return None
    is_empty = not rows and content.get("status_code", "OK") == "OK"
    return rows if is_empty or any(_read_number(row) is not None for row in rows) else None


def _read_number(row: object) -> int | None:
    found = row.get("b_no") if isinstance(row, dict) else None
    if isinstance(found, int) and not isinstance(found, bool):
        return found if 0 <= found < 10**10 else None
    if not isinstance(found, str):
        return None
    if not _NUMBER.fullmatch(found):
        found = re.sub(r"[\s-]", "", found)
    return int(found) if _NUMBER.fullmatch(found) else None


def _read_text(row: dict[str, Any], name: str) -> str:
    found = row.get(name)
    return "" if found is None else str(found).strip()[:_MAX_FIELD_CHARACTERS]


def _read_day(text: str) -> date | None:
    if not text:
        return None
    if _DAY.fullmatch(text):
        try:
            return date.fromisoformat(text)
        except ValueError:
            return None
    found: date | None = pl.select(day_expr(pl.lit(text))).item()
    return found


@lru_cache(maxsize=1024)
def _read_words(status: str, code: str, taxation: str, merged: str) -> _Meaning:
    frame = pl.LazyFrame({"b_no": [_A_NUMBER] * 2, "status": [status or code, code], "tax": taxation, "utcc": merged})
    read = observations(
        frame,
        b_no="b_no",
        status="status",
        since=None,
        opened=None,
        as_of=pl.lit(None, pl.Date),
        taxation="tax",
        merged="utcc",
    )
    said, by_code = read.collect().to_dicts()
    problem = None
    if said["problem"] == "no_status":
        problem = NO_STATUS
    elif said["biz_status"] is None:
        problem = gettext(
            "the status {status} is not known and counts as not answered: look for a newer bansong",
            status=_quote(said["word"]),
        )
    elif code and by_code["biz_status"] != said["biz_status"]:
        problem = gettext(
            "the status {status} has the code {code} and counts as not answered: ask again later",
            status=_quote(status),
            code=_quote(code),
        )
    return _Meaning(None if problem else said["biz_status"], said["taxation"], said["merged"], problem)


def _quote(word: str) -> str:
    return f"'{shorten(word)}'"


URL_NOT_ENCRYPTED: Final = Problem(
    "nts.url_not_encrypted",
    "http://{host}: plain http would show the {name} to the network; give {variable} with https",
)
NUMBER_COUNT_INVALID: Final = Problem(
    "nts.number_count_invalid", "{parameter}: holds {count} numbers; give 1 to {most} a call"
)
NUMBER_INVALID: Final = Problem("nts.number_invalid", "{parameter}: holds {number}, which has not up to ten digits")
CLIENT_ALREADY_OPEN: Final = Problem(
    "nts.client_already_open", "this client is open already: use one `async with` at a time"
)
CLIENT_NOT_OPEN: Final = Problem("nts.client_not_open", "this {name} is not open: use it inside `async with … as nts`")

ENV_NTS_URL: Final = "BANSONG_NTS_URL"
NTS_URL: Final = "https://api.odcloud.kr"
MAX_NUMBERS: Final = 100  # numbers in a call
_PATH: Final = ("api", "nts-businessman", "v1", "status")
# dropped from a given URL: parts of the API's path, and a query, which may contain a key
_PATH_END: Final = re.compile(r"(/api(/nts-businessman(/v1(/status)?)?)?)?/?(\?.*)?$")
_SUBJECT: Final = gettext_noop("the tax authority's API")
_TIMEOUT_S: Final = 35.0  # an overloaded portal replies 504 after 30 s


class NtsClient:
    """Client of the tax authority's API (asyncio, trio): ``async with NtsClient() as nts: await nts.status([…])``."""

    # calls are free, so none is in doubt; retries, pace and budget are left to the caller

    def __init__(
        self,
        key: NtsKey | None = None,  # by default from BANSONG_NTS_KEY or BANSONG_NTS_KEY_FILE
        base_url: str | None = None,  # by default BANSONG_NTS_URL; with or without the API's path
        *,
        concurrency: int = 8,
        timeout: float | Timeouts = _TIMEOUT_S,
        verify: bool | str | os.PathLike[str] | ssl.SSLContext = True,
        http_client: HttpClient | None = None,
        app: object | None = None,
        today: Callable[[], date] = seoul_day,  # returns the day of the statuses
    ) -> None:
        """Check the arguments as :class:`bansong.client.Client` does, without connecting."""
        self._transport: Transport | None = None
        self._key = NtsKey.load() if key is None else key
        base = _base_url(base_url)
        self._url = base.url(*_PATH)
        self._subject = gettext(_SUBJECT) if base.origin == NTS_URL else f"{gettext(_SUBJECT)} ({base.origin})"
        self._today = today
        again = gettext_noop("it is free to ask again, so try later")
        self._make_transport = partial(
            Transport,
            base,
            self._key,
            concurrency=concurrency,
            timeouts=Timeouts.of(timeout),
            app=app,
            http_client=check_http_client(http_client, base, verify, app),
            tls=tls_context(verify, base),
            wording=Wording(
                self._subject,
                unreachable=gettext_noop("check the network, and try again later"),
                incomplete=again,
                untrusted=gettext_noop("name the file with your network's certificates in SSL_CERT_FILE"),
                in_doubt=again,
            ),
        )

    async def __aenter__(self) -> Self:
        if self._transport is not None:
            raise UsageError(CLIENT_ALREADY_OPEN)
        self._transport = self._make_transport()
        return self

    async def __aexit__(self, *exception: object) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.aclose()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._url!r})"

    async def status(self, numbers: pl.Series | Sequence[str] | Sequence[int]) -> StatusReply:
        """Fetch the statuses of up to 100 numbers (texts or integers) in one request."""
        if self._transport is None:
            raise UsageError(CLIENT_NOT_OPEN, name=type(self).__name__)
        given = numbers.to_list() if isinstance(numbers, pl.Series) else list(numbers)
        if not 1 <= len(given) <= MAX_NUMBERS:
            raise UsageError(NUMBER_COUNT_INVALID, parameter=Option("numbers"), count=len(given), most=MAX_NUMBERS)
        asked = list(dict.fromkeys(map(_digits_of, given)))
        day = self._today()
        content = json.dumps({"b_no": asked}, separators=(",", ":")).encode()
        outcome: StatusReply | ServiceError
        try:
            reply = await self._transport.ask("POST", self._url, body=json_body(content))
        except ServiceError as error:
            outcome = self._translate(error)
            outcome.request_id = error.request_id
        else:
            outcome = read_reply(reply.body, reply.status, asked, day, self._subject)
            if isinstance(outcome, ServiceError):
                outcome.request_id = request_id_of(reply.headers, self._key)
        if isinstance(outcome, StatusReply):
            return outcome
        raise outcome  # outside of the handler, so that it has no context

    def _translate(self, error: ServiceError) -> ServiceError:
        status, raw = error.status, error.raw
        if status is not None and not 200 <= status < 300:
            return reply_error(self._subject, status, raw, error.retry_after)
        if isinstance(error, DoubtError):
            return (error.cause or UnavailableError)(str(error), status=status, raw=raw)
        if isinstance(error, ShapeError):
            return ShapeError(str(error), status=status, raw=raw)
        return error.with_traceback(None)


def _base_url(given: str | None) -> BaseUrl:
    try:
        url = given or (variable(ENV_NTS_URL) or "").strip() or NTS_URL
        base = BaseUrl.parse(_PATH_END.sub("", url, count=1), allow_http=True)
    except UsageError as error:  # its text is about the hosted service
        raise UsageError(f"{_SUBJECT} ({ENV_NTS_URL}): {error}") from None
    if base.scheme == "http" and not base.is_loopback:
        raise UsageError(URL_NOT_ENCRYPTED, host=base.host, name=Phrase(NtsKey.NAME), variable=ENV_NTS_URL)
    return base


def _digits_of(number: str | int) -> str:
    if not isinstance(number, int):
        return ten_digits("numbers", number)
    if not 0 < number < 10**10:
        raise UsageError(NUMBER_INVALID, parameter=Option("numbers"), number=number)
    return f"{number:010d}"  # as registries store them
