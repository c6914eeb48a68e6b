"""What clients send and get: the fields of INTERFACE.md, and what it leaves open, decided once (docs/service.md)."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

BusinessNumber = Annotated[
    str,
    Meta(  # the length keeps out the line end that `$` lets through
        pattern=r"^(?!0{10}$)[0-9]{10}$",
        min_length=10,
        max_length=10,
        description="Ten digits, no hyphens, not all zero.",
    ),
]
Name = Annotated[str, Meta(max_length=1_000)]
Address = Annotated[str, Meta(max_length=10_000)]
Reason = Annotated[str, Meta(max_length=1_000)]
RowId = Annotated[int, Meta(ge=0)]


class VerifyRequest(Struct):
    """INTERFACE §2.1."""

    b_no: BusinessNumber
    name: Name | None = None
    address: Address | None = None


class Verified(Struct):
    """INTERFACE §2.2. Without name and address the risk fields are null."""

    biz_status: str
    bounce_prob: float | None
    grade: str | None
    action: str | None
    fixed_zipcode: str | None
    fixed_address: str | None
    reasons: list[str]


class BatchCreated(Struct):
    """INTERFACE §2.3."""

    job_id: str
    total: int


class JobError(Struct):
    """Why a job failed."""

    code: str
    message: str


class JobResult(Struct):
    """One row of a job: ``row_id`` from 0; ``error`` says why a row has no answer (its number is none)."""

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


class JobStatus(Struct):
    """INTERFACE §4.3: how far a job is. ``status``: queued, running, done, failed. ``progress``: a fraction.

    ``grades``: rows by grade, ``none`` for those without one, when the job is done. ``results``: the ``preview`` rows
    of highest risk, once the job is done.
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
    results: list[JobResult]


class LabelRequest(Struct):
    """INTERFACE §2.4; ``row_id`` and ``bounced`` are required."""

    row_id: RowId
    bounced: bool
    reason: Reason | None = None


class Labelled(Struct):
    """A label as it is kept; a later one for the same row replaces it."""

    job_id: str
    row_id: int
    bounced: bool
    reason: str | None


class WatchRequest(Struct):
    """INTERFACE §2.5; ``biz_no`` is required."""

    biz_no: BusinessNumber
    name: Name | None = None
    address: Address | None = None


class WatchEntry(Struct):
    """A watched business: what was found when it was last checked, and when it is checked again."""

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


class WatchList(Struct):
    """INTERFACE §4.6."""

    watches: list[WatchEntry]
    total: int


class WatchChange(Struct):
    """INTERFACE §2.6: one change of grade."""

    at: str
    before: str | None
    after: str | None
    biz_status: str | None


class WatchHistory(Struct):
    """INTERFACE §4.8, the oldest first."""

    watch_id: str
    biz_no: str
    history: list[WatchChange]


class WatchRemoved(Struct):
    """INTERFACE §4.7."""

    watch_id: str
    removed: bool


class Closure(Struct):
    """INTERFACE §6: what a webhook, and the file of ``--notices``, is told (:mod:`bizverify.watch.notifications`)."""

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
    """Told as a closure is: the businesses that were closed when they were first checked, in one notice."""

    event: Literal["closed_already"]
    id: str
    closed: int
    biz_nos: list[BusinessNumber]
    detected_at: str


class Quota(Struct):
    """The month's lookups (calendar month in Asia/Seoul)."""

    limit: int
    used: int
    remaining: int
    month: str
    resets_at: str


class Limits(Struct):
    """What else is limited in the plan."""

    upload_bytes: int
    upload_rows: int
    watches: int
    watch_recheck_hours: float


class Idempotency(Struct):
    """A request to ``endpoints`` may carry ``header``; sent again with its value it is not done or paid twice."""

    header: str
    endpoints: list[str]
    keep_seconds: int


class Me(Struct):
    """INTERFACE §4.9."""

    key_id: str
    plan: str
    quota: Quota
    limits: Limits
    idempotency: Idempotency


class ErrorDetail(Struct):
    """``code`` for programs, ``message`` for people; some refusals say more."""

    code: str
    message: str


class Error(Struct):
    """The one shape of every refusal."""

    error: ErrorDetail


encode = msgspec.json.Encoder().encode
