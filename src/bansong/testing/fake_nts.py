"""A fake of the tax authority's API, with faults."""

# ruff: noqa: ARG002 - every act has the same two methods, and few need all they are given

from __future__ import annotations

import json
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from hmac import compare_digest
from typing import Any, Final, Literal, cast

from bansong.testing import messages
from bansong.testing.faults import HTML, Act, Body, Faults, Redirect, Status, Truncate
from bansong.testing.messages import FakeApp, FakeReply, FakeRequest, RefusedError, encode_json, header, is_number

Row = dict[str, Any]

_MAINTENANCE: Final = (
    "<!DOCTYPE html><html><head><title>서비스 점검 안내</title></head><body>점검 중입니다.</body></html>"
)
_PLAIN: Final = "text/plain; charset=utf-8"
_WEB: Final = "text/html; charset=utf-8"


@dataclass(frozen=True, slots=True)
class EditedRows(Act):
    """A fault that edits the rows of a reply."""

    edit: Callable[[list[Row]], list[Row]]

    async def after(self, request: FakeRequest, reply: FakeReply) -> FakeReply:
        content = json.loads(reply.body)
        content["data"] = self.edit(content["data"])
        return FakeReply(reply.status, encode_json(content))


def portal_code(code: int | str, word: str = "SERVICE ERROR", *, status: int = 200) -> Status:
    """Return a fault that replies with the portal's XML error and a ``returnReasonCode``, by default in HTTP 200."""
    body = (
        '<?xml version="1.0" encoding="UTF-8"?><OpenAPI_ServiceResponse><cmmMsgHeader><errMsg>SERVICE ERROR</errMsg>'
        f"<returnAuthMsg>{word}</returnAuthMsg><returnReasonCode>{code}</returnReasonCode>"
        "</cmmMsgHeader></OpenAPI_ServiceResponse>"
    )
    return Status(status, body=body.encode(), content_type="text/xml; charset=utf-8")


def _api_error(status: int, content: Row) -> Status:
    return Status(status, body=encode_json(content))


def _other_status(row: Row) -> Row:
    is_closed = row["b_stt_cd"] == "03"
    return row | {"b_stt": "계속사업자" if is_closed else "폐업자", "b_stt_cd": "01" if is_closed else "03"}


# known faults by name; EditedRows edit the answer, the others replace it
NTS_FAULTS: Final[dict[str, Act]] = {
    "bad_key": _api_error(401, {"code": -4, "msg": "등록되지 않은 인증키 입니다."}),
    "no_such_service": _api_error(404, {"code": -3, "msg": "등록되지 않은 서비스 입니다."}),
    "unknown": _api_error(400, {"code": -999, "msg": "UNKNOWN"}),
    "bad_json": _api_error(400, {"status_code": "BAD_JSON_REQUEST"}),
    "malformed": _api_error(411, {"status_code": "REQUEST_DATA_MALFORMED"}),
    "too_large": _api_error(413, {"status_code": "TOO_LARGE_REQUEST"}),
    "internal": _api_error(500, {"status_code": "INTERNAL_ERROR"}),
    "forbidden": Status(403, body=b"Forbidden", content_type=_PLAIN),
    "no_access": portal_code(20, "SERVICE_ACCESS_DENIED_ERROR"),
    "day_limit": portal_code(22, "LIMITED_NUMBER_OF_SERVICE_REQUESTS_EXCEEDS_ERROR"),
    "day_limit_429": portal_code(22, "LIMITED_NUMBER_OF_SERVICE_REQUESTS_EXCEEDS_ERROR", status=429),
    "day_limit_text": Body(b"API token quota exceeded", _PLAIN),
    "day_limit_text_429": Status(429, body=b"API token quota exceeded", content_type=_PLAIN),
    "second_limit": portal_code(23, "LIMITED_NUMBER_OF_SERVICE_REQUESTS_PER_SECOND_EXCEEDS_ERROR"),
    "blocked_address": portal_code(29, "BLACKLIST_IP_ACCESS_ERROR"),
    "unregistered_key": portal_code(30, "SERVICE_KEY_IS_NOT_REGISTERED_ERROR"),
    "expired_key": portal_code(31, "DEADLINE_HAS_EXPIRED_ERROR"),
    "portal_error": portal_code(99, "UNKNOWN_ERROR"),
    "unknown_code": portal_code(77, "A_NEW_ERROR"),
    "too_many": Status(429, body=b"Too Many Requests", content_type=_PLAIN),
    "overloaded": Status(504, body=b"Gateway Time-out", content_type=_PLAIN),
    "unavailable": Status(503),
    "page": Body(_MAINTENANCE.encode(), _WEB),
    "page_503": Status(503, body=_MAINTENANCE.encode(), content_type=_WEB),
    "english_page": HTML,
    "redirect": Redirect("https://www.data.go.kr/maintenance"),
    "other_shape": Body(b'{"result": {"items": []}}'),
    "other_list": Body(b"[1, 2, 3]"),
    "cut_json": Body(b'{"request_cnt":1,"status_code":"OK","data":[{"b_no":"12088'),
    "cut_connection": Truncate(),
    "not_utf8": Body('{"status_code":"OK","data":[{"b_no":"1208800767","b_stt":"계속사업자"}]}'.encode("cp949")),
    "empty": Body(b""),
    "reordered": EditedRows(lambda rows: rows[::-1]),
    "fewer": EditedRows(lambda rows: rows[1:]),
    "more": EditedRows(lambda rows: [*rows, rows[0] | {"b_no": "9999999999"}]),
    "repeated": EditedRows(lambda rows: [*rows, rows[0]]),
    "conflicting": EditedRows(lambda rows: [*rows, _other_status(rows[0])]),
    "hyphens": EditedRows(lambda rows: [row | {"b_no": re.sub(r"^(...)(..)", r"\1-\2-", row["b_no"])} for row in rows]),
    "new_word": EditedRows(lambda rows: [rows[0] | {"b_stt": "영업정지자", "b_stt_cd": "04"}, *rows[1:]]),
}

_PATH: Final = "/api/nts-businessman/v1/status"
_MAX_NUMBERS: Final = 100
_WORDS: Final = {"active": ("계속사업자", "01"), "suspended": ("휴업자", "02"), "closed": ("폐업자", "03")}
_TAXATIONS: Final = {
    "general": ("부가가치세 일반과세자", "01"),
    "simplified": ("부가가치세 간이과세자", "02"),
    "exempt": ("부가가치세 면세사업자", "04"),
}


def nts_row(
    b_no: str, status: str = "active", *, since: str = "", taxation: str = "general", merged: bool = False
) -> Row:
    """Return the API's row for a status (active, suspended, closed or unregistered) ``since`` a day like 20240131."""
    names = ("b_stt", "b_stt_cd", "tax_type", "tax_type_cd", "end_dt", "utcc_yn", "tax_type_change_dt")
    row: Row = {"b_no": b_no} | dict.fromkeys((*names, "invoice_apply_dt", "rbf_tax_type", "rbf_tax_type_cd"), "")
    if status == "unregistered":
        return row | {"tax_type": "국세청에 등록되지 않은 사업자등록번호입니다."}
    row["b_stt"], row["b_stt_cd"] = _WORDS[status]
    row["tax_type"], row["tax_type_cd"] = _TAXATIONS[taxation]
    row |= {"end_dt": since, "utcc_yn": "Y" if merged else "N", "rbf_tax_type": "해당없음", "rbf_tax_type_cd": "99"}
    return row


@dataclass(eq=False, repr=False)
class FakeNts(FakeApp):
    """A fake of the tax authority's ``/status``, for ``httpx.ASGITransport`` or :func:`bansong.testing.serve`.

    ``statuses``: a number's status (active, suspended, closed, unregistered) or the API's row (:func:`nts_row`); other
    numbers are ``default``. ``latency``: seconds per call. ``daily_limit``: numbers (or calls: ``limit_unit``) until
    :meth:`start_day`; beyond it code 22. ``per_second``: calls per second by ``clock``; beyond it code 23. ``faults``:
    of the kind ``status``; see :data:`NTS_FAULTS`. All may be changed while it serves. ``GET /counts`` returns the
    counters as JSON.
    """

    api_key: str = "test-key"
    statuses: Mapping[str, str | Row] = field(default_factory=dict)
    _: KW_ONLY
    default: str = "unregistered"
    latency: float = 0.0
    faults: Faults = field(default_factory=Faults)
    daily_limit: int | None = None
    limit_unit: Literal["numbers", "calls"] = "numbers"
    per_second: int | None = None
    clock: Callable[[], float] = time.monotonic

    faults_hit_refusals = False

    def __post_init__(self) -> None:
        super().__init__()
        self.calls = self.numbers = self._used = 0
        self._asks, self._urls = Counter[int](), Counter[str]()
        self._recent: deque[float] = deque()  # times of the last second's calls

    @property
    def asks(self) -> Counter[str]:
        """How often each number (ten digits) was answered; a copy."""
        with self._lock:
            return Counter({f"{number:010d}": times for number, times in self._asks.items()})

    @property
    def asked_again(self) -> int:
        """Answers of numbers that had been answered before."""
        with self._lock:
            return self.numbers - len(self._asks)

    @property
    def urls(self) -> Counter[str]:
        """Counts of requests by path and query, which must not hold the API key; a copy."""
        with self._lock:
            return self._urls.copy()

    def counts(self) -> dict[str, int]:
        """Return ``calls``, ``numbers`` answered, ``asked_again`` and ``most_in_flight``."""
        return {name: getattr(self, name) for name in ("calls", "numbers", "asked_again", "most_in_flight")}

    def start_day(self) -> None:
        """Begin a new day: the whole daily limit is free again."""
        with self._lock:
            self._used = 0

    async def __call__(self, scope: messages.Scope, receive: messages.Receive, send: messages.Send) -> None:
        if (scope.get("method"), scope.get("path")) == ("GET", "/counts"):
            await FakeReply(200, encode_json(self.counts())).send(send)
        else:
            await super().__call__(scope, receive, send)

    def _kind(self, scope: messages.Scope) -> tuple[str, str]:
        return "status", ""

    def _count(self, request: FakeRequest) -> None:
        self.calls += 1
        path, query = request.scope["path"], request.scope["query_string"].decode("latin-1")
        self._urls[f"{path}?{query}".removesuffix("?")] += 1

    def _refusal(self, refused: RefusedError) -> FakeReply:
        fault = cast("Status", NTS_FAULTS[str(refused)])
        return FakeReply(fault.code, fault.body, fault.content_type)

    async def _answer(self, request: FakeRequest) -> FakeReply:
        """Answer a request, or raise :class:`RefusedError` with a name from :data:`NTS_FAULTS`."""
        body, scope = await request.body(), request.scope
        if (scope["method"], scope["path"]) != ("POST", _PATH):
            raise RefusedError(404, "no_such_service")
        key = header(scope, b"authorization")
        if key is None or not compare_digest(key, f"Infuser {self.api_key}".encode()):
            raise RefusedError(401, "bad_key")
        numbers = _read_numbers(body)
        with self._lock:
            self._charge(len(numbers))
            self.numbers += len(numbers)
            self._asks.update(map(int, numbers))
        rows = [self._row(number) for number in numbers]
        found = sum(row["b_stt_cd"] != "" for row in rows)
        return FakeReply(
            200, encode_json({"request_cnt": len(rows), "match_cnt": found, "status_code": "OK", "data": rows})
        )

    def _row(self, number: str) -> Row:
        known = self.statuses.get(number, self.default)
        return nts_row(number, known) if isinstance(known, str) else {**known, "b_no": number}

    def _charge(self, numbers: int) -> None:
        now = self.clock()
        while self._recent and self._recent[0] <= now - 1:
            self._recent.popleft()
        if self.per_second is not None and len(self._recent) >= self.per_second:
            raise RefusedError(200, "second_limit")
        self._recent.append(now)
        used = self._used + (numbers if self.limit_unit == "numbers" else 1)
        if self.daily_limit is not None and used > self.daily_limit:
            raise RefusedError(200, "day_limit")
        self._used = used


def _read_numbers(body: bytes) -> list[str]:
    try:
        content: Any = json.loads(body)
    except ValueError as error:
        raise RefusedError(400, "bad_json") from error
    numbers = content.get("b_no") if isinstance(content, dict) else None
    if not isinstance(numbers, list) or not numbers or not all(map(is_number, numbers)):
        raise RefusedError(411, "malformed")
    if len(numbers) > _MAX_NUMBERS:
        raise RefusedError(413, "too_large")
    return numbers
