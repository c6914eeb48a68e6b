"""Errors of the tax authority's API and of its portal, as acts.

``Fault("status", NTS_FAULTS["day_limit"], at=3)`` is the day's limit at the third call.
"""

# ruff: noqa: ARG002 - every act has the same two methods, and few need all they are given

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from bansong.testing.faults import HTML, Act, Body, Redirect, Status, Truncate
from bansong.testing.messages import FakeReply, FakeRequest

Row = dict[str, Any]
"""A row of a reply: ``b_no``, ``b_stt``, ``b_stt_cd``, ``tax_type``, …"""

_MAINTENANCE: Final = (
    "<!DOCTYPE html><html><head><title>서비스 점검 안내</title></head><body>점검 중입니다.</body></html>"
)
_PLAIN: Final = "text/plain; charset=utf-8"
_WEB: Final = "text/html; charset=utf-8"


@dataclass(frozen=True, slots=True)
class EditedRows(Act):
    """Edit the rows of the reply."""

    edit: Callable[[list[Row]], list[Row]]

    async def after(self, request: FakeRequest, reply: FakeReply) -> FakeReply:
        content = json.loads(reply.body)
        content["data"] = self.edit(content["data"])
        return FakeReply(reply.status, encode(content))


def encode(content: object) -> bytes:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()


def portal_xml(code: int | str, word: str = "SERVICE ERROR") -> bytes:
    return (
        '<?xml version="1.0" encoding="UTF-8"?><OpenAPI_ServiceResponse><cmmMsgHeader><errMsg>SERVICE ERROR</errMsg>'
        f"<returnAuthMsg>{word}</returnAuthMsg><returnReasonCode>{code}</returnReasonCode>"
        "</cmmMsgHeader></OpenAPI_ServiceResponse>"
    ).encode()


def portal_code(code: int | str, word: str = "SERVICE ERROR", *, status: int = 200) -> Status:
    """Return the act of a portal answer with a ``returnReasonCode``, by default in HTTP 200."""
    return Status(status, body=portal_xml(code, word), content_type="text/xml; charset=utf-8")


def _api_error(status: int, content: Row) -> Status:
    return Status(status, body=encode(content))


def _relabel(rows: list[Row], **fields: str) -> list[Row]:
    return [row | fields if place == 0 else row for place, row in enumerate(rows)]


def _other_status(row: Row) -> Row:
    is_closed = row["b_stt_cd"] == "03"
    return row | {"b_stt": "계속사업자" if is_closed else "폐업자", "b_stt_cd": "01" if is_closed else "03"}


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
    "hyphens": EditedRows(
        lambda rows: [row | {"b_no": "{:.3}-{:.2}-{}".format(n := row["b_no"], n[3:], n[5:])} for row in rows]
    ),
    "new_word": EditedRows(lambda rows: _relabel(rows, b_stt="영업정지자", b_stt_cd="04")),
}
"""Known faults by name; those of rows edit the answer, the others replace it."""
