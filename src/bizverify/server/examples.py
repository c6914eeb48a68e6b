"""One example of each body, as the OpenAPI document shows it; made of the types themselves, so that none can differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from bizverify.server import wire

_NUMBER: Final = "1248100998"
_NAME: Final = "삼성전자"
_ADDRESS: Final = "경기 수원시 영통구 삼성로 129"
_JOB: Final = "job_GURI1k7ujJtU0LIek9WLS7Xs"
_WATCH: Final = "7b9cfcce69f68ef5"
_REASONS: Final = [
    "[status -3] business active (registry, 2026-11-01)",
    "[base -50] where an ordinary business letter starts (model)",
]
_MADE: Final = "2026-11-22T17:28:06+09:00"
_CHECKED: Final = "2026-11-22T17:28:07+09:00"
_NEXT: Final = "2026-11-23T15:23:25+09:00"

_RESULT: Final = wire.JobResult(
    row_id=0,
    b_no=_NUMBER,
    biz_status="active",
    bounce_prob=0.0188,
    grade="A",
    action="send",
    fixed_zipcode=None,
    fixed_address=None,
    reasons=_REASONS,
    error=None,
)
_DONE: Final = wire.JobStatus(
    job_id=_JOB,
    status="done",
    total=3,
    processed=3,
    progress=1.0,
    created_at=_MADE,
    finished_at=_CHECKED,
    expires_at="2027-02-20T17:28:07+09:00",
    grades={"A": 2, "none": 1},
    error=None,
    results=[_RESULT],
)
_ENTRY: Final = wire.WatchEntry(
    watch_id=_WATCH,
    biz_no=_NUMBER,
    name=_NAME,
    address=_ADDRESS,
    biz_status="active",
    grade="A",
    created_at=_MADE,
    checked_at=_CHECKED,
    next_check_at=_NEXT,
    closed_at=None,
)
_CLOSED: Final = wire.Closure(
    event="closure",
    id="04399fa1a909055807533d05e0090ebe",
    watch_id=_WATCH,
    biz_no=_NUMBER,
    name=_NAME,
    address=_ADDRESS,
    biz_status="closed",
    status_before="active",
    grade_before="A",
    grade_after="E",
    detected_at=_NEXT,
)
_CLOSED_ALREADY: Final = wire.ClosedAlready(
    event="closed_already",
    id="c0a1f6d2be6c4f0f9a3f5d0e6b7c8a91",
    closed=2,
    biz_nos=[_NUMBER, "1208100002"],
    detected_at=_CHECKED,
)
_ACCOUNT: Final = wire.Me(
    key_id="b63f1d46",
    plan="business",
    quota=wire.Quota(limit=5000, used=4, remaining=4996, month="2026-11", resets_at="2026-12-01T00:00:00+09:00"),
    limits=wire.Limits(upload_bytes=64_000_000, upload_rows=200_000, watches=10_000, watch_recheck_hours=24.0),
    idempotency=wire.Idempotency("Idempotency-Key", ["POST /verify", "POST /batch"], 604_800),
)
_EXAMPLES: Final = (
    wire.VerifyRequest(_NUMBER, _NAME, _ADDRESS),
    wire.Verified("active", 0.0188, "A", "send", "16677", "경기도 수원시 영통구 삼성로 129 (매탄동)", _REASONS),
    wire.BatchCreated(_JOB, 3),
    _DONE,
    wire.LabelRequest(0, bounced=True, reason="이사불명"),
    wire.Labelled(_JOB, 0, bounced=True, reason="이사불명"),
    wire.WatchRequest(_NUMBER, _NAME, _ADDRESS),
    _ENTRY,
    wire.WatchList([_ENTRY], 1),
    wire.WatchHistory(_WATCH, _NUMBER, [wire.WatchChange(_NEXT, "A", "E", "closed")]),
    wire.WatchRemoved(_WATCH, removed=True),
    _CLOSED,
    _CLOSED_ALREADY,
    _ACCOUNT,
)


def by_type() -> Mapping[Any, Any]:
    """The examples, as JSON has them, by the type of ``wire`` that they are of."""
    return {type(one): msgspec.to_builtins(one) for one in _EXAMPLES}
