"""Answers of the service as values.

Answers are read tolerantly where INTERFACE.md is silent, strictly where a guess could cost a lookup. G1, G2, … are
lines of ``docs/guesses.md``. Unknown fields are kept as attributes, and ``raw`` is the object as received.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from bansong.base.messages import gettext
from bansong.base.schema import ANSWER_COLUMNS, Answer
from bansong.client import evidence
from bansong.client.errors import one_line, value_message
from bansong.client.evidence import (
    REPLACED,
    Object,
    UnreadableError,
    as_whole_number,
    find_contradiction,
    find_list,
    first_identifier,
    first_value,
    has_any,
    numbers_in,
    plain_text,
    require_object,
    unwrap,
)


def _text(value: object) -> str | None:
    # G3: a number becomes a text
    if value is None or isinstance(value, str):
        return value or None
    found = plain_text(value)
    if found is None:
        raise ValueError(gettext("is neither a text nor a number"))
    return found


def _number(value: object) -> float | None:
    # G4: also written as text; never a silent null
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            number = float(value)
        except (ValueError, OverflowError):
            number = math.nan
        if math.isfinite(number):
            return number
    raise ValueError(gettext("is not a number"))


def _reasons(value: object) -> tuple[str, ...]:
    # G5: a list of texts, one text, or nothing
    if value is None:
        return ()
    texts = [_text(item) for item in (value if isinstance(value, list) else [value])]
    return tuple(text for text in texts if text)


Text = Annotated[str | None, BeforeValidator(_text)]
Number = Annotated[float | None, BeforeValidator(_number)]
Reasons = Annotated[tuple[str, ...], BeforeValidator(_reasons)]


class Shape(BaseModel):
    """A value in a response of the service. Unknown fields are kept; ``raw`` is its JSON."""

    model_config = ConfigDict(extra="allow", frozen=True)

    raw: Any = Field(default=None, repr=False, exclude=True)


S = TypeVar("S", bound=Shape)


class Verified(Shape):
    """The answer for one business (INTERFACE §2.2)."""

    biz_status: Text = None
    bounce_prob: Number = None
    grade: Text = None
    action: Text = None
    fixed_zipcode: Text = None
    fixed_address: Text = None
    reasons: Reasons = ()

    @property
    def answer(self) -> Answer:
        return Answer(*(getattr(self, name) for name in ANSWER_COLUMNS))


class BatchCreated(Shape):
    """A batch job that the service has accepted (INTERFACE §2.3); its rows are paid for."""

    job_id: str
    total: int | None = None


class Result(Shape):
    """The result of one row of a batch job: ``answer`` or ``error``. ``key`` identifies the row at the service."""

    key: int | str | None = None
    b_no: str | None = None
    name: str | None = None
    address: str | None = None
    answer: Answer | None = None
    error: str | None = None


class BatchStatus(Shape):
    """Progress of a batch job, and the results that the service shows (INTERFACE §4.3)."""

    status: str
    results: list[Result] = Field(default=[], repr=False)
    total: int | None = None
    done: int | None = None

    @property
    def state(self) -> Literal["done", "failed", "working"]:
        """Meaning of the status word (G8). An unknown word counts as ``working``."""
        word = _word(self.status)
        if word in evidence.DONE_WORDS:
            return "done"
        return "failed" if word in evidence.FAILED_WORDS else "working"

    @property
    def known_word(self) -> bool:
        return self.state != "working" or _word(self.status) in evidence.WORKING_WORDS


class Acknowledged(Shape):
    """Acknowledgement of a request; ``raw`` is the answer."""


def read_verified(
    value: object, b_no: str | None = None, name: str | None = None, address: str | None = None
) -> Verified:
    """Read the answer of ``POST /verify`` (G2); refuse one that repeats another record (G32)."""
    only = value[0] if isinstance(value, list) and len(value) == 1 else value
    found = unwrap(only, ANSWER_COLUMNS, evidence.VERIFY_WRAPPERS)
    fault = _own_fault(found)
    if fault is not None:
        raise UnreadableError(gettext("holds no verification: {fault}", fault=fault))
    foreign = None if b_no is None else find_contradiction(require_object(only), b_no, name, address)
    if foreign is not None:
        raise UnreadableError(foreign)
    return build_shape(Verified, found, raw=value)


def read_created(value: object) -> BatchCreated:
    """Read the answer of ``POST /batch`` (G6, G7)."""
    outer = require_object(value)
    # if there is another name, too, `id` may be that of the response
    named = unwrap(outer, evidence.JOB_IDS[:-1], evidence.JOB_WRAPPERS)
    is_named = has_any(named, evidence.JOB_IDS[:-1])
    found = named if is_named else unwrap(outer, evidence.JOB_IDS, evidence.JOB_WRAPPERS)
    job_id = first_identifier(found, evidence.JOB_IDS) or first_identifier(outer, ("job", "batch"))
    if job_id is None:
        raise UnreadableError(gettext("has no job_id{in_words}", in_words=_in_words(outer)))
    return build_shape(BatchCreated, found, raw=value, job_id=job_id, total=_count(found, evidence.TOTALS))


def read_status(value: object) -> BatchStatus:
    """Read the answer of ``GET /batch/{job_id}``: its status, and the results at any place (G8 to G15)."""
    found = _job(require_object(value))
    status = plain_text(first_value(found, evidence.STATUSES))
    if status is None:
        raise UnreadableError(gettext("has no status{in_words}", in_words=_in_words(found)))
    items = find_list(found, evidence.RESULTS, (*ANSWER_COLUMNS, *evidence.ANSWERS))
    rest = {name: part for name, part in found.items() if part is not items}
    return build_shape(
        BatchStatus,
        rest,
        raw=value,
        status=status,
        results=[read_result(item) for item in items],
        total=_count(found, evidence.TOTALS),
        done=_count(found, evidence.DONES),
    )


def read_result(item: object) -> Result:
    """Read one row of a job; a fault becomes its ``error``. An item with two numbers has no answer (G32)."""
    if not isinstance(item, dict):
        return Result(raw=item, error=gettext("the item is not an object"))
    nested = next((item[name] for name in evidence.ANSWERS if has_any(item.get(name), ANSWER_COLUMNS)), None)  # G12
    places = [place for place in (*map(item.get, evidence.ECHOES), item, nested) if isinstance(place, dict)]
    echo: Object = next((place for place in places if place is not item and has_any(place, evidence.ECHOED)), {})
    answer, error = _read_answer(item, nested)
    said = numbers_in(item)
    if len(said) > 1:
        answer, error = None, gettext("the item is about two numbers, {listed}", listed=" and ".join(said))
    odd = (plain_text(first_value(place, evidence.NUMBERS)) for place in places)
    known = {
        "key": _row_key(item, echo),
        "b_no": next(filter(None, said or odd), None) if len(said) < 2 else None,
        "name": _proof(next((text for place in places if (text := plain_text(place.get("name")))), None)),
        "address": _proof(next((text for place in places if (text := plain_text(place.get("address")))), None)),
        "answer": answer,
        "error": error,
    }
    return build_shape(Result, item, raw=item, **known)


def read_acknowledged(value: object) -> Acknowledged:
    """Read any successful answer (G21)."""
    return build_shape(Acknowledged, value if isinstance(value, dict) else {}, raw=value)


def build_shape(model: type[S], values: Mapping[str, Any], *, raw: object, **known: object) -> S:
    """Return a model of ``values``, in which ``known`` fields replace others; raise :class:`UnreadableError`."""
    try:
        return model.model_validate({**values, **known, "raw": raw})
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(map(str, fault["loc"]))
    raise UnreadableError(
        gettext(
            "has an unusable {place}: it {removeprefix}",
            place=place,
            removeprefix=fault["msg"].removeprefix("Value error, "),
        )
    )


def _read_answer(item: Object, nested: Object | None) -> tuple[Answer | None, str | None]:
    # G12, G15
    fields = item if has_any(item, ANSWER_COLUMNS) or nested is None else nested
    fault = _own_fault(fields) if fields is item else _own_fault(item | fields)
    if fault is not None:
        return None, fault
    try:
        return build_shape(Verified, {name: fields.get(name) for name in ANSWER_COLUMNS}, raw=None).answer, None
    except UnreadableError as error:
        return None, gettext("the item {error}", error=error)


def _proof(text: str | None) -> str | None:
    # G33: a repeated text with replaced bytes proves nothing
    return None if text is None or REPLACED in text else text


def _own_fault(item: Object) -> str | None:
    # G2, G15: an item with a value in one of the seven fields is an answer, since it was paid for
    if any(item.get(name) not in (None, "", []) for name in ANSWER_COLUMNS):
        return None
    said = first_value(item, evidence.FAULTS)
    if said not in (None, False, "", [], {}):
        return value_message(said) or one_line(str(said))
    status = plain_text(first_value(item, evidence.STATUSES))
    if status is not None and _word(status) in evidence.FAILED_WORDS:
        return value_message(item) or gettext("its status is {one_line}", one_line=one_line(status))
    if has_any(item, ANSWER_COLUMNS):
        return None
    return gettext("it has none of the seven fields{in_words}", in_words=_in_words(item))


def _in_words(item: Object) -> str:
    words = value_message(item)
    return f" ({words})" if words else ""


def _row_key(item: Object, echo: Object) -> int | str | None:
    # G14; none if the object's key and the item name different rows, or if bytes were replaced
    keyed = item.get(evidence.KEYED)
    if isinstance(keyed, dict) and "row_id" in keyed and str(item["row_id"]).strip() != keyed["row_id"]:
        return None
    for name in evidence.ROW_KEYS:
        for value in (item.get(name), echo.get(name)):
            number = as_whole_number(value)
            if isinstance(value, str) and REPLACED in value:
                return None
            if isinstance(value, str) and value.strip():
                return number if str(number) == value.strip() else value.strip()
            if number is not None:
                return number
    return None


def _job(outer: Object) -> Object:
    # G1: an envelope may have a status, too ({"status": "success", "data": {"status": "running"}}): the inner one
    # counts. Only "done", the word of INTERFACE.md, counts at any place.
    found = [name for name in evidence.JOB_WRAPPERS if has_any(outer.get(name), evidence.STATUSES)]
    if len(found) > 1:
        raise UnreadableError(gettext("has two jobs, {listed}", listed=" and ".join(found)))
    if not found:
        return outer
    merged: Object = {name: part for name, part in outer.items() if name != found[0]} | outer[found[0]]
    return merged | {"status": "done"} if _word(plain_text(outer.get("status")) or "") == "done" else merged


def _count(found: Object, called: tuple[str, ...]) -> int | None:
    # G7, G9: also one level down or as "3/10"; for people only
    places = [found, *(part for part in (found.get(name) for name in evidence.PROGRESS) if isinstance(part, dict))]
    for place in places:
        number = next(
            (n for n in (as_whole_number(place.get(name)) for name in called) if n is not None and n >= 0), None
        )
        if number is not None:
            return number
    share = re.fullmatch(r"\s*(\d{1,18})\s*/\s*(\d{1,18})\s*", str(found.get("progress")), flags=re.A)
    return int(share[1 if called is evidence.DONES else 2]) if share else None


def _word(status: str) -> str:
    return re.sub(r"[\s-]+", "_", status.strip().lower())


IDEMPOTENCY_KEY: Final = "Idempotency-Key"  # the only header accepted for a request's key (G31)
_MAX_KEEP_SECONDS: Final = 366 * 86_400


@dataclass(frozen=True, slots=True)
class Idempotency:
    """The service's promise to do a request to ``endpoints`` once per idempotency key, for ``keep_seconds``."""

    endpoints: frozenset[str]
    keep_seconds: int


class Account(Shape):
    """The account's monthly quota (INTERFACE §2.7), as far as the response has it. Two of its numbers give the third.

    ``idempotency``: the service's promise about repeated requests, if any.
    """

    limit: int | None = None
    used: int | None = None
    remaining: int | None = None
    plan: str | None = None
    idempotency: Idempotency | None = None


class WatchEntry(Shape):
    """A business on the watch list (INTERFACE §2.5)."""

    watch_id: str
    biz_no: Text = None
    name: Text = None
    address: Text = None
    grade: Text = None
    biz_status: Text = None


class WatchChange(Shape):
    """A change of a watched business's grade (INTERFACE §2.6)."""

    at: Text = None
    before: Text = None
    after: Text = None


def read_account(value: object) -> Account:
    """Read the answer of ``GET /me`` (G16, G17); missing numbers become ``None``."""
    outer = require_object(value)
    numbers = list(_numbers(outer))
    limit, used, remaining = (_one(numbers, tiers) for tiers in (evidence.LIMITS, evidence.USED, evidence.REMAINING))
    if limit is None and used is not None and remaining is not None:
        limit = used + remaining
    elif used is None and limit is not None and remaining is not None:
        used = max(0, limit - remaining)
    elif remaining is None and limit is not None and used is not None:
        remaining = max(0, limit - used)
    said = {"plan": _plan(outer), "idempotency": _idempotency(outer)}
    return build_shape(Account, outer, raw=value, limit=limit, used=used, remaining=remaining, **said)


def read_watch(value: object) -> WatchEntry:
    """Read one watched business (G18). Without an identifier it could not be removed, so it is refused."""
    found = unwrap(value, evidence.WATCH_IDS, evidence.WATCH_WRAPPERS)
    watch_id = first_identifier(found, evidence.WATCH_IDS)
    if watch_id is None:
        raise UnreadableError(gettext("has no watch_id"))
    return build_shape(
        WatchEntry, found, raw=value, watch_id=watch_id, biz_no=first_value(found, evidence.WATCH_NUMBERS)
    )


def read_watches(value: object) -> list[WatchEntry]:
    """Read the answer of ``GET /watch`` (G19)."""
    return [read_watch(item) for item in find_list(value, evidence.WATCHES, evidence.WATCH_IDS)]


def read_history(value: object) -> list[WatchChange]:
    """Read the answer of ``GET /watch/{watch_id}/history`` (G20), in its order."""
    return [
        _change(require_object(item)) for item in find_list(value, evidence.HISTORY, (*evidence.TIMES, *evidence.AFTER))
    ]


def _change(item: Object) -> WatchChange:
    return build_shape(
        WatchChange,
        item,
        raw=item,
        at=first_value(item, evidence.TIMES),
        before=first_value(item, evidence.BEFORE),
        after=first_value(item, evidence.AFTER),
    )


def _numbers(value: Object, within: str = "", depth: int = 0) -> Iterator[tuple[str, str, int]]:
    # a negative number means no limit
    for name, part in value.items():
        if isinstance(part, dict):
            if name in evidence.QUOTA_PLACES and depth < 4:
                yield from _numbers(part, name, depth + 1)
        elif (number := as_whole_number(part)) is not None and number >= 0:
            yield within, evidence.BARE_WITHIN.get(within, name) if name in evidence.BARE else name, number


def _one(numbers: list[tuple[str, str, int]], tiers: tuple[tuple[str, ...], ...]) -> int | None:
    # the clearest name counts; two names of one rank must agree
    for tier in tiers:
        found = {f"{within}.{name}".lstrip("."): number for within, name, number in numbers if name in tier}
        if len(set(found.values())) > 1:
            raise UnreadableError(
                gettext("has two numbers for the same thing: {listed}", listed=", ".join(sorted(found)))
            )
        if found:
            return next(iter(found.values()))
    return None


def _plan(value: Object) -> str | None:
    for place in _places(value):
        plan: Any = first_value(place, evidence.PLANS)
        if isinstance(plan, dict):
            plan = first_value(plan, ("name", "plan", "id", "code", "tier"))
        if plan is not None:
            return plain_text(plan)
    return None


def _places(value: Object) -> list[Object]:
    return [value, *(value[name] for name in ("data", "account", "me", "user") if isinstance(value.get(name), dict))]


def _idempotency(value: Object) -> Idempotency | None:
    # lookups are paid in reliance on this promise (G31), so it must be complete
    found = [place["idempotency"] for place in _places(value) if place.get("idempotency") is not None]
    said = found[0] if len(found) == 1 and isinstance(found[0], dict) else {}
    header, endpoints, keep = said.get("header"), said.get("endpoints"), said.get("keep_seconds")
    if not isinstance(header, str) or header.lower() != IDEMPOTENCY_KEY.lower():
        return None
    if not isinstance(endpoints, list) or not all(isinstance(endpoint, str) for endpoint in endpoints):
        return None
    if not isinstance(keep, int) or isinstance(keep, bool) or keep <= 0:
        return None
    return Idempotency(frozenset(endpoints), min(keep, _MAX_KEEP_SECONDS))
