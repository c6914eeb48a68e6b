"""The body of a reply: a status for each number asked, matched by number and never by place."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import lru_cache
from typing import Any, Final

import polars as pl

from bansong.client.json_search import UnreadableError, parse_json
from bansong.engine.registry import STATUS_SCHEMA, observations
from bansong.engine.text_values import day_expr
from bansong.errors import ServiceError
from bansong.reference.nts.reply_errors import reply_error, shorten
from bansong.translation import gettext, gettext_noop

NOT_ASKED: Final = gettext_noop("a row of a number that was not asked was left out")
UNREADABLE: Final = gettext_noop("a row without a readable number was left out")
CONFLICTING: Final = gettext_noop(
    "a number came twice with different statuses and counts as not answered: ask again later"
)
NO_STATUS: Final = gettext_noop("a number came without a status and counts as not answered: ask again later")
_FIELDS: Final = ("b_stt", "b_stt_cd", "tax_type", "utcc_yn")
_MAX_FIELD_CHARACTERS: Final = 160
_A_NUMBER: Final = "1208800767"  # any: the words are read, not the number
_NUMBER: Final = re.compile("[0-9]{10}")
_DAY: Final = re.compile("[0-9]{8}")


@dataclass(frozen=True, slots=True)
class StatusReply:
    """The statuses of a reply (:data:`STATUS_SCHEMA`), sorted by ``b_no``; ``unregistered`` is a status, too.

    ``missing``: asked numbers (ten digits) without a status, in order. ``problems``: unusable rows, by a sentence.
    """

    statuses: pl.DataFrame
    missing: tuple[str, ...] = ()
    problems: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class _Meaning:
    status: str | None
    taxation: str | None
    merged: bool | None
    problem: str | None


def read_reply(body: bytes, status: int, asked: Sequence[str], as_of: date, subject: str) -> StatusReply | ServiceError:
    """Parse a reply with HTTP ``status`` about the numbers ``asked``; return an error for one without statuses.

    ``as_of``: the day of asking (Asia/Seoul), ``subject``: who replied, for messages.
    """
    rows = _find_rows(body)
    if rows is None:
        return reply_error(subject, status, body)
    problems: Counter[str] = Counter()
    wanted = {int(number): number for number in asked}
    found: dict[int, tuple[_Meaning, date | None]] = {}
    conflicting: set[int] = set()
    for row in rows:  # at most some hundred, as they come over the wire
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
    known = sorted((number, *about) for number, about in found.items() if about[0].status is not None)
    statuses = pl.DataFrame(
        {
            "b_no": [number for number, _, _ in known],
            "biz_status": [meaning.status for _, meaning, _ in known],
            "since": [since for _, _, since in known],
            "opened": [None] * len(known),
            "as_of": [as_of] * len(known),
            "taxation": [meaning.taxation for _, meaning, _ in known],
            "merged": [meaning.merged for _, meaning, _ in known],
        },
        schema=STATUS_SCHEMA,
    )
    answered = {number for number, _, _ in known}
    return StatusReply(statuses, tuple(text for number, text in wanted.items() if number not in answered), problems)


def _find_rows(body: bytes) -> list[Any] | None:
    """Return the rows of a body in any shape of the API's, ``None`` without a readable row."""
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
