"""Find fields in JSON of unknown shape; find echoes that contradict a request.

The accepted shapes are G1, G2, … in ``docs/guesses.md``. An ambiguous shape is an error.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any, Final

import msgspec

from bansong.base.messages import gettext
from bansong.client.errors import is_page

WRAPPERS: Final = ("data", "result", "response", "payload")  # G1
VERIFY_WRAPPERS: Final = (*WRAPPERS, "verification", "answer")
JOB_WRAPPERS: Final = (*WRAPPERS, "job", "batch")
WATCH_WRAPPERS: Final = (*WRAPPERS, "watch", "entry", "item")

JOB_IDS: Final = ("job_id", "jobId", "batch_id", "batchId", "id")  # G6
TOTALS: Final = ("total", "total_rows", "row_count", "rows_total", "totalRows", "rows", "count", "n")  # G7
STATUSES: Final = ("status", "state")  # G8
DONE_WORDS: Final = {
    *("done", "complete", "completed", "finished", "success", "succeeded", "successful"),
    *("completed_with_errors", "done_with_errors"),
}
FAILED_WORDS: Final = {
    *("failed", "failure", "fail", "error", "errored", "cancelled", "canceled", "aborted", "expired"),
    *("rejected", "timeout", "timed_out"),
}
WORKING_WORDS: Final = {
    *("queued", "pending", "created", "submitted", "accepted", "received", "waiting", "scheduled", "new"),
    *("init", "initializing", "starting", "started", "running", "processing", "in_progress", "inprogress"),
    *("working", "active", "verifying", "validating", "parsing", "uploading", "uploaded", "finalizing", "retrying"),
}
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
KEYED: Final = "object_key"  # field with the key under which an object of results had this item
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

LIMITS: Final = (  # G16, the clearest names first
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
QUOTA_PLACES: Final = (  # objects that may hold the lookup quota; other limits (watch, rate, upload) are elsewhere
    *("data", "result", "response", "payload", "account", "me", "user", "organization", "plan", "subscription"),
    *("limits", "limit", "quota", "quotas", "usage", "monthly", "monthly_quota", "month", "current", "this_month"),
    *("period", "lookups", "lookup", "verify", "verification", "verifications", "api"),
)
BARE: Final = (  # names of a limit or a use, depending on the object that has them
    *("monthly", "monthly_lookups", "month", "lookups", "verify", "verifications", "total", "included", "count"),
    "current",
)
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

Object = dict[str, Any]

_WHOLE: Final = re.compile(r"[+-]?\d{1,18}(\.0*)?", flags=re.A)


class UnreadableError(Exception):
    """An answer or item is unreadable; the text completes "the answer …"."""


def parse_json(body: bytes, *, replacing: bool = False) -> object:
    """Parse a JSON body. ``NaN`` becomes null (G24) and, if ``replacing``, invalid UTF-8 becomes U+FFFD (G33)."""
    if not body.strip():
        raise UnreadableError(gettext("is empty"))
    if is_page(body):
        raise UnreadableError(gettext("is an HTML page, not JSON; is the base URL right?"))
    try:
        return msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return _parse_leniently(body, "replace" if replacing else "strict")


def _parse_leniently(body: bytes, errors: str) -> object:
    problem = gettext("is not JSON")
    try:
        value = json.loads(
            body.decode("utf-8-sig", errors), parse_constant=lambda word: None if word == "NaN" else float(word)
        )
        text = json.dumps(value, ensure_ascii=False)
        whole_text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return value if whole_text == text else json.loads(whole_text)  # half a surrogate pair: a text cut in UTF-16
    except RecursionError:
        problem = gettext("is nested too deeply")
    except ValueError:
        pass
    raise UnreadableError(problem)


def require_object(value: object) -> Object:
    """Return a JSON object as it is; raise :class:`UnreadableError` for another value."""
    if isinstance(value, dict):
        return value
    raise UnreadableError(gettext("is {kind}, not an object", kind=_kind(value)))


def has_any(value: object, names: Collection[str]) -> bool:
    """Whether a value is an object with one of these fields."""
    return isinstance(value, dict) and any(name in value for name in names)


def unwrap(value: object, names: Collection[str], wrappers: Sequence[str]) -> Object:
    """Return the object that has one of ``names``: the answer itself, or an object in a wrapper (G1)."""
    outer = require_object(value)
    if has_any(outer, names):
        return outer
    found = [wrapper for wrapper in wrappers if has_any(outer.get(wrapper), names)]
    if len(found) > 1:
        raise UnreadableError(gettext("has two candidates, {listed}", listed=" and ".join(found)))
    return require_object(outer[found[0]]) if found else outer


def first_value(value: Object, names: Iterable[str]) -> Any:
    """Return the first of these fields that is not null, else ``None``."""
    return next((value[name] for name in names if value.get(name) is not None), None)


def as_whole_number(value: object) -> int | None:
    """Return a whole number, also from text; ``None`` for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return int(value) if math.isfinite(value) and value == int(value) else None
    text = value.strip().replace(",", "") if isinstance(value, str) else ""
    return int(text.partition(".")[0]) if _WHOLE.fullmatch(text) else None


def identifier(value: object) -> str | None:
    """Return an id, a text or a whole number, as text; ``None`` for anything else."""
    if isinstance(value, str):
        return value.strip() or None
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return None


def first_identifier(value: Object, names: Iterable[str]) -> str | None:
    """Return the first of these fields that holds an id, as text; else ``None``."""
    return next((text for text in (identifier(value.get(name)) for name in names) if text), None)


def plain_text(value: object) -> str | None:
    """Return a text or a number as text; ``None`` for anything else."""
    if isinstance(value, str):
        return value or None
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def find_list(value: object, names: Sequence[str], is_item: Collection[str]) -> list[Any]:
    """Return the one list of objects in an answer (G10), at most two levels down.

    Lists under ``names`` come first, then lists whose objects have a field of ``is_item``. An object of objects counts
    as a list if its keys are numbers or its values have such a field (G11).
    """
    if isinstance(value, list):
        return value
    outer = require_object(value)
    found = _lists(outer, names, is_item)
    if not any(found.values()):
        for key, inner in outer.items():
            if isinstance(inner, dict):
                found |= {f"{key}.{name}": items for name, items in _lists(inner, names, is_item).items()}
    full = {name: items for name, items in found.items() if items}
    if len(full) > 1:
        raise UnreadableError(
            gettext(
                "holds {lists} lists that could be meant: {listed}", lists=len(full), listed=", ".join(sorted(full))
            )
        )
    if found:
        return next(iter(full.values()), [])
    return next((outer[name] for name in names if isinstance(outer.get(name), list)), [])


def _lists(value: Object, names: Sequence[str], is_item: Collection[str]) -> dict[str, list[Any]]:
    named = {name: _as_list(value[name], is_item) for name in names if name in value}
    chosen = {name: items for name, items in named.items() if items is not None}
    if chosen:
        return chosen
    lists = {name: items for name, items in value.items() if isinstance(items, list) and items}
    others = {name: items for name, items in lists.items() if all(isinstance(item, dict) for item in items)}
    telling = {name: items for name, items in others.items() if any(has_any(item, is_item) for item in items)}
    return telling or others


def _as_list(value: object, is_item: Collection[str]) -> list[Any] | None:
    if isinstance(value, list):
        return value if not value or any(isinstance(item, dict) for item in value) else None
    if not isinstance(value, dict) or not value or not all(isinstance(item, dict) for item in value.values()):
        return None
    if all(re.fullmatch(r"\d{10}", key, flags=re.A) for key in value) and not _have_other_numbers(value):
        return [_with_key("b_no", key, item) for key, item in value.items()]
    if all(key.isdecimal() for key in value) or all(has_any(item, is_item) for item in value.values()):
        return [_with_key("row_id", key, item) for key, item in value.items()]
    return None


def _have_other_numbers(items: dict[str, Object]) -> bool:
    # if so, the keys are no business numbers
    own = {key: plain_text(first_value(item, NUMBERS)) for key, item in items.items()}
    return all(number is not None and key not in number.replace("-", "") for key, number in own.items())


def _with_key(name: str, key: str, item: Object) -> Object:
    return {name: key} | item | {KEYED: {name: key}}


def _kind(value: object) -> str:
    kinds: dict[type, str] = {
        list: gettext("a list"),
        str: gettext("a text"),
        bool: gettext("true or false"),
        type(None): "null",
    }
    return kinds.get(type(value)) or gettext("a number")


REPLACED: Final = "\ufffd"  # for bytes that are not UTF-8; a number, identifier or row key with it proves nothing
_MAX_DEPTH: Final = 3
_MIN_DIGITS: Final = 8  # of a number without its leading zeros: no business number has more than two
_SEPARATORS: Final = re.compile(r"[\s.·/\-\u2010-\u2015]+")
_TOKENS: Final = re.compile(r"\d+|[^\W\d_]")
_FORMS: Final = re.compile(r"\((?:주|유|사|재|합|의)\)|주식회사|유한회사")
_MASKS: Final = re.compile(r"[*●○■□…\ufffd]|\.\.\.")
_CUT_FROM_CHARS: Final = 20  # a longer text may have been cut in the middle of a number
_HOLDERS: Final = (*ECHOES, *VERIFY_WRAPPERS, *ANSWERS)
_MIN_COMMON_SHARE: Final = 2 / 3  # of the longer text's letters, in the same order


def _digits_of(value: object) -> str | None:
    """Return the ten digits of a business number in any notation. Numbers may lack leading zeros."""
    text = plain_text(value)
    if text is None:
        return None
    if isinstance(value, int):
        text = text.zfill(10) if len(text) >= _MIN_DIGITS else text
    if not (text.isascii() and text.isdigit()):
        text = _SEPARATORS.sub("", unicodedata.normalize("NFKC", _visible(text)).strip().removesuffix(".0"))
    return text if len(text) == 10 and text.isascii() and text.isdigit() else None


def fold_text(text: str | None) -> str:
    """Normalise a text for comparison: its words and numbers, without case, width and company forms."""
    return "\x1f".join(_tokens(text)) if text else ""


def is_other(said: str, sent: str) -> bool:
    """Whether a text that the service repeats cannot come from the text that was sent."""
    if said == sent:
        return False
    ours, theirs = _tokens(sent), _tokens(said)
    if ours == theirs or not ours or not theirs:
        return False
    if _MASKS.search(said):
        ours, theirs = list("".join(ours)), list("".join(theirs))
        return not _within(theirs, ours)
    if len(said) >= _CUT_FROM_CHARS and "".join(ours).startswith("".join(theirs)):
        return False
    if _within_each_other(ours, theirs):
        return False
    if not _within_each_other([t for t in ours if t.isdigit()], [t for t in theirs if t.isdigit()]):
        return True
    ours, theirs = ([token for token in text if not token.isdigit()] for text in (ours, theirs))
    alike = SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks()
    return sum(block.size for block in alike) < _MIN_COMMON_SHARE * max(len(ours), len(theirs))


def numbers_in(answer: Object) -> list[str]:
    """Return the distinct business numbers that an answer repeats."""
    said = (_digits_of(echo.get(name)) for echo in _echoes(answer) for name in NUMBERS)
    return list(dict.fromkeys(b_no for b_no in said if b_no is not None))


def find_contradiction(answer: Object, b_no: str, name: str | None, address: str | None) -> str | None:
    """Return why an answer belongs to another record, or ``None``; the text completes "the answer …"."""
    for number in numbers_in(answer):
        if number != b_no:
            return gettext("is about another number ({number}) than was asked ({b_no})", number=number, b_no=b_no)
    for echo in _echoes(answer):
        for field, sent in (("name", name), ("address", address)):
            said = echo.get(field)
            if sent and isinstance(said, str) and is_other(said, sent):
                return gettext("repeats another {field} than was sent with {b_no}", field=field, b_no=b_no)
    return None


def _echoes(answer: Object, depth: int = 0) -> Iterator[Object]:
    yield answer
    if depth == _MAX_DEPTH:
        return
    for name in [name for name in _HOLDERS if name in answer]:
        inner = answer[name]
        inner = inner[0] if isinstance(inner, list) and len(inner) == 1 else inner
        if isinstance(inner, dict):
            yield from _echoes(inner, depth + 1)


def _visible(text: str) -> str:
    return text if text.isascii() else "".join(letter for letter in text if unicodedata.category(letter) != "Cf")


def _tokens(text: str) -> list[str]:
    plainly = _FORMS.sub("", unicodedata.normalize("NFKC", _visible(text)).casefold())
    return [token.lstrip("0") or "0" if token.isdigit() else token for token in _TOKENS.findall(plainly)]


def _within(inner: list[str], outer: list[str]) -> bool:
    left = iter(outer)
    return all(item in left for item in inner)


def _within_each_other(one: list[str], other: list[str]) -> bool:
    return _within(one, other) if len(one) <= len(other) else _within(other, one)
