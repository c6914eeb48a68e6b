"""Names under which a service may give what INTERFACE.md leaves open, the likeliest first.

Each is a guess with a number in ``docs/guesses.md``.
"""

from __future__ import annotations

from typing import Final

WRAPPERS: Final = ("data", "result", "response", "payload")  # G1
VERIFY_WRAPPERS: Final = (*WRAPPERS, "verification", "answer")
JOB_WRAPPERS: Final = (*WRAPPERS, "job", "batch")
WATCH_WRAPPERS: Final = (*WRAPPERS, "watch", "entry", "item")

JOB_IDS: Final = ("job_id", "jobId", "batch_id", "batchId", "id")  # G6
TOTALS: Final = ("total", "total_rows", "row_count", "rows_total", "totalRows", "rows", "count", "n")  # G7
STATUSES: Final = ("status", "state")  # G8
DONE_WORDS: Final = frozenset(
    (
        *("done", "complete", "completed", "finished", "success", "succeeded", "successful"),
        *("completed_with_errors", "done_with_errors"),
    )
)
FAILED_WORDS: Final = frozenset(
    (
        *("failed", "failure", "fail", "error", "errored", "cancelled", "canceled", "aborted", "expired"),
        *("rejected", "timeout", "timed_out"),
    )
)
WORKING_WORDS: Final = frozenset(
    (
        *("queued", "pending", "created", "submitted", "accepted", "received", "waiting", "scheduled", "new"),
        *("init", "initializing", "starting", "started", "running", "processing", "in_progress", "inprogress"),
        *("working", "active", "verifying", "validating", "parsing", "uploading", "uploaded", "finalizing", "retrying"),
    )
)
DONES: Final = (  # G9
    *("done", "processed", "completed", "finished", "processed_rows", "completed_rows", "rows_done", "done_rows"),
    *("processedRows", "completedRows", "current"),
)
PROGRESS: Final = ("progress", "counts", "stats", "summary")

RESULTS: Final = (  # G10
    *("results", "top_results", "top", "items", "rows", "data", "preview", "records", "result", "verifications"),
    *("entries", "list", "answers", "lookups"),
)
ANSWERS: Final = ("result", "verification", "answer", "output")  # G12
KEYED: Final = "object_key"
"""Field in which :mod:`bansong.client.json_search` keeps the key of an object of results."""
ECHOES: Final = ("input", "row", "record", "request", "query", "lookup", "params", KEYED)  # G13
NUMBERS: Final = (
    *("b_no", "biz_no", "bno", "bizNo", "business_no", "businessNo", "business_number", "businessNumber", "brn"),
)
ROW_KEYS: Final = (  # G14
    *("row_id", "rowId", "row", "index", "row_index", "rowIndex", "row_no", "rowNo", "row_number", "rowNumber"),
    *("line", "line_no", "idx", "no", "seq", "id"),
)
ECHOED: Final = (*NUMBERS, "name", "address", *ROW_KEYS)
FAULTS: Final = ("error", "error_message", "errors", "failure")  # G15

LIMITS: Final = (  # G16, the most telling names first
    ("monthly_quota", "monthly_limit", "monthlyQuota", "monthlyLimit", "monthly_lookup_quota", "monthly_lookups"),
    ("quota", "quota_limit", "quotaLimit", "lookup_quota", "lookup_limit", "quota_total"),
    ("limit", "max", "allowance"),
)
USED: Final = (
    ("monthly_used", "used_this_month", "monthlyUsed", "monthly_usage", "usedThisMonth", "month_used"),
    ("quota_used", "quotaUsed", "lookups_used", "used_quota", "used_lookups"),
    ("used", "usage", "consumed", "current_usage", "spent"),
)
REMAINING: Final = (
    ("monthly_remaining", "remaining_this_month", "monthlyRemaining"),
    ("quota_remaining", "remaining_quota", "quotaRemaining", "lookups_remaining", "remaining_lookups", "quota_left"),
    ("remaining", "left", "available", "balance"),
)
QUOTA_PLACES: Final = frozenset(
    (
        *("data", "result", "response", "payload", "account", "me", "user", "organization", "plan", "subscription"),
        *("limits", "limit", "quota", "quotas", "usage", "monthly", "monthly_quota", "month", "current", "this_month"),
        *("period", "lookups", "lookup", "verify", "verification", "verifications", "api"),
    )
)
"""Objects that may hold the lookup quota; other limits (watch, rate, upload) stand elsewhere."""
BARE: Final = frozenset(
    (
        *("monthly", "monthly_lookups", "month", "lookups", "verify", "verifications", "total", "included", "count"),
        "current",
    )
)
"""Names whose object decides whether they are the limit or the use."""
BARE_WITHIN: Final = {"limits": "limit", "limit": "limit", "quota": "limit", "quotas": "limit", "usage": "used"}
PLANS: Final = ("plan", "plan_name", "planName", "tier", "subscription")  # G17

WATCH_IDS: Final = ("watch_id", "watchId", "id")  # G18
WATCH_NUMBERS: Final = ("biz_no", "b_no", "bizNo")
WATCHES: Final = (  # G19
    *("watches", "watch", "watchlist", "watch_list", "items", "entries", "data", "results", "list", "rows"),
)
HISTORY: Final = ("history", "items", "changes", "events", "entries", "data", "results", "list", "rows")  # G20
TIMES: Final = (
    *("at", "changed_at", "changedAt", "date", "time", "timestamp", "datetime", "checked_at", "created_at"),
    *("createdAt", "when", "ts"),
)
BEFORE: Final = ("before", "from", "from_grade", "old", "old_grade", "previous", "previous_grade", "prev", "prev_grade")
AFTER: Final = ("after", "to", "to_grade", "new", "new_grade", "current", "current_grade", "grade")
