"""The answers about the account and the watch list (INTERFACE §2.5 to §2.7 say little about them)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from bansong.client import field_aliases
from bansong.client.json_search import (
    Object,
    UnreadableError,
    as_whole_number,
    find_list,
    first_identifier,
    first_value,
    plain_text,
    require_object,
    unwrap,
)
from bansong.client.responses import Shape, Text, build_shape
from bansong.translation import gettext

IDEMPOTENCY_KEY: Final = "Idempotency-Key"
"""The only header accepted for a request's key (G31)."""
_MAX_KEEP_SECONDS: Final = 366 * 86_400


@dataclass(frozen=True, slots=True)
class Idempotency:
    """The service's promise to do a request to ``endpoints`` once for each key.

    The key is the value of the header :data:`IDEMPOTENCY_KEY`; the service keeps it for ``keep_seconds``.
    """

    endpoints: frozenset[str]
    keep_seconds: int


class Account(Shape):
    """The account's monthly quota, as far as it was found (INTERFACE §2.7); any two numbers give the third.

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
    """Read the answer of ``GET /me`` (G16, G17); numbers that are not found are ``None``."""
    numbers = list(_numbers(require_object(value)))
    limit, used, remaining = (
        _one(numbers, tiers) for tiers in (field_aliases.LIMITS, field_aliases.USED, field_aliases.REMAINING)
    )
    if limit is None and used is not None and remaining is not None:
        limit = used + remaining
    elif used is None and limit is not None and remaining is not None:
        used = max(0, limit - remaining)
    elif remaining is None and limit is not None and used is not None:
        remaining = max(0, limit - used)
    outer = require_object(value)
    said = {"plan": _plan(outer), "idempotency": _idempotency(outer)}
    return build_shape(Account, outer, raw=value, limit=limit, used=used, remaining=remaining, **said)


def read_watch(value: object) -> WatchEntry:
    """Read one watched business (G18); it must have an identifier, else it could never be removed."""
    found = unwrap(value, field_aliases.WATCH_IDS, field_aliases.WATCH_WRAPPERS)
    watch_id = first_identifier(found, field_aliases.WATCH_IDS)
    if watch_id is None:
        raise UnreadableError(gettext("has no watch_id"))
    return build_shape(
        WatchEntry, found, raw=value, watch_id=watch_id, biz_no=first_value(found, field_aliases.WATCH_NUMBERS)
    )


def read_watches(value: object) -> list[WatchEntry]:
    """Read the answer of ``GET /watch`` (G19)."""
    return [read_watch(item) for item in find_list(value, field_aliases.WATCHES, field_aliases.WATCH_IDS)]


def read_history(value: object) -> list[WatchChange]:
    """Read the answer of ``GET /watch/{watch_id}/history`` (G20), in its order."""
    return [
        _change(require_object(item))
        for item in find_list(value, field_aliases.HISTORY, (*field_aliases.TIMES, *field_aliases.AFTER))
    ]


def _change(item: Object) -> WatchChange:
    return build_shape(
        WatchChange,
        item,
        raw=item,
        at=first_value(item, field_aliases.TIMES),
        before=first_value(item, field_aliases.BEFORE),
        after=first_value(item, field_aliases.AFTER),
    )


def _numbers(value: Object, within: str = "", depth: int = 0) -> Iterator[tuple[str, str, int]]:
    # a negative number means no limit
    for name, part in value.items():
        if isinstance(part, dict):
            if name in field_aliases.QUOTA_PLACES and depth < 4:
                yield from _numbers(part, name, depth + 1)
        elif (number := as_whole_number(part)) is not None and number >= 0:
            yield within, field_aliases.BARE_WITHIN.get(within, name) if name in field_aliases.BARE else name, number


def _one(numbers: list[tuple[str, str, int]], tiers: tuple[tuple[str, ...], ...]) -> int | None:
    # the most telling name counts; two names of one rank must agree
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
        plan: Any = first_value(place, field_aliases.PLANS)
        if isinstance(plan, dict):
            plan = first_value(plan, ("name", "plan", "id", "code", "tier"))
        if plan is not None:
            return plain_text(plan)
    return None


def _places(value: Object) -> list[Object]:
    return [value, *(value[name] for name in ("data", "account", "me", "user") if isinstance(value.get(name), dict))]


def _idempotency(value: Object) -> Idempotency | None:
    # lookups are paid on this promise (G31), so it must be whole
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
