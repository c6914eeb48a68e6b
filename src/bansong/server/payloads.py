"""Bodies of requests and answers; refusals."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct
from starlette.responses import Response

from bansong.base.messages import gettext, gettext_noop
from bansong.server.settings import ServicePlan, load_plans

BusinessNumber = Annotated[
    str,
    Meta(  # the length keeps out the line end that `$` lets through
        pattern=r"^(?!0{10}$)[0-9]{10}$",
        min_length=10,
        max_length=10,
        description="Ten digits, no hyphens, not all zero.",
    ),
]
Name = Annotated[str, Meta(max_length=300)]
Address = Annotated[str, Meta(max_length=1_000)]
Reason = Annotated[str, Meta(max_length=1_000)]
RowId = Annotated[int, Meta(ge=0)]


class VerifyRequest(Struct):
    """A business to verify (INTERFACE §2.1)."""

    b_no: BusinessNumber
    name: Name | None = None
    address: Address | None = None


class VerificationPayload(Struct):
    """The answer about one business (INTERFACE §2.2). Without name and address the risk fields are null."""

    biz_status: str
    bounce_prob: float | None
    grade: str | None
    action: str | None
    fixed_zipcode: str | None
    fixed_address: str | None
    reasons: list[str]


class BatchCreatedPayload(Struct):
    """An accepted job (INTERFACE §2.3)."""

    job_id: str
    total: int


class JobError(Struct):
    """Why a job failed."""

    code: str
    message: str


class JobResult(Struct):
    """The answer to one row of a job, or the ``error`` that prevented one. ``row_id`` counts from 0.

    ``b_no`` of a row without a business number is the cell as written, cut after 100 characters.
    """

    row_id: int
    b_no: str | None
    biz_status: str | None
    bounce_prob: float | None
    grade: str | None
    action: str | None
    fixed_zipcode: str | None
    fixed_address: str | None
    reasons: list[str]
    error: str | None


class JobSummaryPayload(Struct):
    """The state of a job. ``status``: queued, running, done or failed; ``progress``: from 0 to 1.

    ``grades``: rows by grade, once the job is done; ``none`` counts rows without a grade.
    """

    job_id: str
    status: str
    total: int
    processed: int
    progress: float
    created_at: str
    finished_at: str | None
    expires_at: str | None
    grades: dict[str, int]
    error: JobError | None


class JobStatus(JobSummaryPayload):
    """The state of a job and, once it is done, the ``preview`` rows of highest risk (INTERFACE §4.3)."""

    results: list[JobResult]


class JobListPayload(Struct):
    """A page of jobs, newest first. ``next_cursor`` asks for the next page; it is null on the last one."""

    jobs: list[JobSummaryPayload]
    next_cursor: str | None


class JobDeleted(Struct):
    """A deleted job. ``given_back``: lookups that the quota got back for unanswered rows."""

    job_id: str
    deleted: bool
    given_back: int


class LabelRequest(Struct):
    """The outcome of a letter (INTERFACE §2.4); ``row_id`` and ``bounced`` are required."""

    row_id: RowId
    bounced: bool
    reason: Reason | None = None


class Labelled(Struct):
    """A stored outcome. A later one for the same row replaces it."""

    job_id: str
    row_id: int
    bounced: bool
    reason: str | None


class WatchRequest(Struct):
    """A business to watch (INTERFACE §2.5); ``biz_no`` is required."""

    biz_no: BusinessNumber
    name: Name | None = None
    address: Address | None = None


class WatchEntryPayload(Struct):
    """A watched business with its last check."""

    watch_id: str
    biz_no: str
    name: str | None
    address: str | None
    biz_status: str | None
    grade: str | None
    created_at: str
    checked_at: str | None
    next_check_at: str
    closed_at: str | None


class WatchListPayload(Struct):
    """The whole watch list (INTERFACE §4.6)."""

    watches: list[WatchEntryPayload]
    total: int


class WatchChangePayload(Struct):
    """A change of grade (INTERFACE §2.6)."""

    at: str
    before: str | None
    after: str | None
    biz_status: str | None


class WatchHistory(Struct):
    """The changes of a watched business's grade, oldest first (INTERFACE §4.8)."""

    watch_id: str
    biz_no: str
    history: list[WatchChangePayload]


class WatchRemoved(Struct):
    """A removed watch (INTERFACE §4.7)."""

    watch_id: str
    removed: bool


class Closure(Struct):
    """A notification that a watched business closed (INTERFACE §6)."""

    event: Literal["closure"]
    id: str
    watch_id: str
    biz_no: BusinessNumber
    name: str | None
    address: str | None
    biz_status: Literal["closed"]
    status_before: str | None
    grade_before: str | None
    grade_after: str | None
    detected_at: str


class ClosedAlready(Struct):
    """A notification of all businesses that were closed at their first check."""

    event: Literal["closed_already"]
    id: str
    closed: int
    biz_nos: list[BusinessNumber]
    detected_at: str


class QuotaPayload(Struct):
    """A quota of a calendar month (Asia/Seoul): of lookups, or of changes of the watch list."""

    limit: int
    used: int
    remaining: int
    month: str
    resets_at: str


class LimitsPayload(Struct):
    """The other limits of the plan."""

    upload_bytes: int
    upload_rows: int
    watches: int
    watch_recheck_hours: float
    uploads: int
    disk_bytes: int
    requests_per_second: float
    request_burst: int
    requests_at_once: int

    @classmethod
    def of(cls, plan: ServicePlan) -> LimitsPayload:
        former = {"upload_rows": "rows", "watch_recheck_hours": "recheck_hours"}
        return cls(*(getattr(plan, former.get(name, name)) for name in cls.__struct_fields__))


class InUsePayload(Struct):
    """The present use of limits. The request itself counts in ``requests_at_once``."""

    uploads: int
    disk_bytes: int
    requests_at_once: int


class IdempotencyPayload(Struct):
    """The promise that a request repeated with the same ``header`` is neither done nor paid again."""

    header: str
    endpoints: list[str]
    keep_seconds: int


class Me(Struct):
    """The account of a key (INTERFACE §4.9)."""

    key_id: str
    plan: str
    quota: QuotaPayload
    watch_changes: QuotaPayload
    limits: LimitsPayload
    in_use: InUsePayload
    idempotency: IdempotencyPayload


class ErrorDetail(Struct):
    """An error: ``code`` for programs, ``message`` for people. Some errors have further fields."""

    code: str
    message: str


class Error(Struct):
    """The body of every refusal."""

    error: ErrorDetail


encode = msgspec.json.Encoder().encode


_NUMBER: Final = "1248100998"
_BUSINESS: Final = (_NUMBER, "삼성전자", "경기 수원시 영통구 삼성로 129")
_JOB: Final = "job_GURI1k7ujJtU0LIek9WLS7Xs"
_WATCH: Final = "7b9cfcce69f68ef5"
_REASONS: Final = [
    "[status -3] business active (registry, 2026-11-01)",
    "[base -50] where an ordinary business letter starts (model)",
]
_MADE: Final = "2026-11-22T17:28:06+09:00"
_CHECKED: Final = "2026-11-22T17:28:07+09:00"
_NEXT: Final = "2026-11-23T15:23:25+09:00"

_RESETS: Final = "2026-12-01T00:00:00+09:00"
_ANSWER: Final = ("active", 0.0188, "A", "send")

# the fields in their order
_ENTRY: Final = WatchEntryPayload(_WATCH, *_BUSINESS, "active", "A", _MADE, _CHECKED, _NEXT, None)
_RESULT: Final = JobResult(0, _NUMBER, *_ANSWER, None, None, _REASONS, None)
_WAITING: Final = JobSummaryPayload("job_Xh0tIj3vK2mQ9sLwE5rTy7Ua", "queued", 2, 0, 0.0, _CHECKED, None, None, {}, None)
_EXAMPLES: Final = (
    VerifyRequest(*_BUSINESS),
    VerificationPayload(*_ANSWER, "16677", "경기도 수원시 영통구 삼성로 129 (매탄동)", _REASONS),
    BatchCreatedPayload(_JOB, 3),
    JobStatus(
        *(_JOB, "done", 3, 3, 1.0, _MADE, _CHECKED, "2027-02-20T17:28:07+09:00"), {"A": 2, "none": 1}, None, [_RESULT]
    ),
    JobListPayload([_WAITING], None),
    JobDeleted(_WAITING.job_id, deleted=True, given_back=2),
    LabelRequest(0, bounced=True, reason="이사불명"),
    Labelled(_JOB, 0, bounced=True, reason="이사불명"),
    WatchRequest(*_BUSINESS),
    _ENTRY,
    WatchListPayload([_ENTRY], 1),
    WatchHistory(_WATCH, _NUMBER, [WatchChangePayload(_NEXT, "A", "E", "closed")]),
    WatchRemoved(_WATCH, removed=True),
    Closure(*("closure", "04399fa1a909055807533d05e0090ebe", _WATCH, *_BUSINESS), "closed", "active", "A", "E", _NEXT),
    ClosedAlready("closed_already", "c0a1f6d2be6c4f0f9a3f5d0e6b7c8a91", 2, [_NUMBER, "1208100002"], _CHECKED),
    Me(
        key_id="b63f1d46",
        plan="business",
        quota=QuotaPayload(limit=5000, used=4, remaining=4996, month="2026-11", resets_at=_RESETS),
        watch_changes=QuotaPayload(limit=20_000, used=3, remaining=19_997, month="2026-11", resets_at=_RESETS),
        limits=LimitsPayload.of(load_plans()["business"]),
        in_use=InUsePayload(uploads=0, disk_bytes=61_440, requests_at_once=1),
        idempotency=IdempotencyPayload("Idempotency-Key", ["POST /verify", "POST /batch"], 604_800),
    ),
)


EXAMPLES: Final[Mapping[Any, Any]] = {type(one): msgspec.to_builtins(one) for one in _EXAMPLES}
"""JSON values by the type that they are examples of."""

JSON: Final = "application/json"


def reply(payload: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(payload), status, media_type=JSON)


_TOO_LARGE: Final = {
    "bytes": gettext_noop("{what} is too large: at most {limit:,} bytes are taken at a time; send it in parts"),
    "rows": gettext_noop("{what} is too large: at most {limit:,} rows are taken at a time; send it in parts"),
}


class Refusal(Exception):
    """A request is refused. ``code``: for programs; the message is for people; ``more``: further fields."""

    def __init__(
        self, status: int, code: str, message: str, *, headers: Mapping[str, str] | None = None, **more: object
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = dict(headers or {})
        self.more = more

    def response(self) -> Response:
        content = {"error": {"code": self.code, "message": str(self), **self.more}}
        return Response(msgspec.json.encode(content), self.status, self.headers, JSON)


def invalid_key() -> Refusal:
    """Return a refusal (INTERFACE §5.4) that does not show whether the key is unknown or revoked."""
    return Refusal(401, "invalid_key", gettext("the API key is not valid: it is unknown or was revoked"))


def not_in_plan(what: str, plan: str) -> Refusal:
    return Refusal(
        403, "not_in_plan", gettext("{what} is not available in the plan {plan!r}", what=what, plan=plan), plan=plan
    )


def not_found(what: str) -> Refusal:
    """Return a refusal (INTERFACE §5.6) that does not show whether another key has such a thing."""
    return Refusal(404, "not_found", gettext("{what} does not exist, or is not this key's", what=what))


def too_large(what: str, limit: int, unit: str) -> Refusal:
    message = gettext(_TOO_LARGE[unit], what=what, limit=limit)
    return Refusal(413, "too_large", message, limit=limit, unit=unit)


def quota_exceeded(asked: int, limit: int, used: int, resets: datetime, now: float) -> Refusal:
    """Return a refusal (INTERFACE §8): too few lookups are left in the month, and none was taken."""
    left = max(0, limit - used)
    message = gettext(
        "the monthly quota of {limit:,} lookups has {left:,} left, and this needs {asked:,}; it begins anew on "
        "{resets:%Y-%m-%d}",
        limit=limit,
        left=left,
        asked=asked,
        resets=resets,
    )
    wait = {"Retry-After": str(max(1, round(resets.timestamp() - now)))}
    more = {"limit": limit, "used": used, "remaining": left, "resets_at": resets.isoformat()}
    return Refusal(429, "quota_exceeded", message, headers=wait, **more)


def limit_exceeded(bound: str, limit: float, used: float, message: str, seconds: int) -> Refusal:
    """Return a refusal: a limit of the key's plan is reached. ``bound``: the plan's field."""
    text = gettext("{message}; nothing was done, try again in {seconds:,} s", message=message, seconds=seconds)
    wait = {"Retry-After": str(seconds)}
    return Refusal(429, "limit_exceeded", text, headers=wait, bound=bound, limit=limit, used=used)


def watch_changes_exceeded(limit: int, used: int, resets: datetime, now: float) -> Refusal:
    message = gettext(
        "watch_changes: the plan allows {limit:,} changes of the watch list a month, and {used:,} were made; nothing "
        "was done, it begins anew on {resets:%Y-%m-%d}",
        limit=limit,
        used=used,
        resets=resets,
    )
    wait = {"Retry-After": str(max(1, round(resets.timestamp() - now)))}
    more = {"bound": "watch_changes", "limit": limit, "used": used, "resets_at": resets.isoformat()}
    return Refusal(429, "limit_exceeded", message, headers=wait, **more)


def invalid(message: str, *, code: str = "invalid_request") -> Refusal:
    return Refusal(400, code, message)


def busy(message: str, seconds: int) -> Refusal:
    text = gettext("{message}; nothing was done, try again in {seconds} s", message=message, seconds=seconds)
    return Refusal(503, "busy", text, headers={"Retry-After": str(seconds)})
