"""Refusals of requests, all answered in one JSON shape."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from http import HTTPStatus
from typing import Final

import msgspec
from starlette.responses import Response

from bansong.translation import gettext, gettext_noop

JSON: Final = "application/json"


def reply(payload: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(payload), status, media_type=JSON)


_TOO_LARGE: Final = {
    "bytes": gettext_noop("{what} is too large: at most {limit:,} bytes are taken at a time; send it in parts"),
    "rows": gettext_noop("{what} is too large: at most {limit:,} rows are taken at a time; send it in parts"),
}


class Refusal(Exception):
    """A request was refused. ``code`` is for programs, the message for people, ``more`` are further fields."""

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


def missing_key() -> Refusal:
    return Refusal(401, "missing_key", gettext("the API key is missing: send it in the header X-API-Key"))


def invalid_key() -> Refusal:
    """INTERFACE §5.4; does not reveal whether the key is unknown or revoked."""
    return Refusal(401, "invalid_key", gettext("the API key is not valid: it is unknown or was revoked"))


def not_in_plan(what: str, plan: str) -> Refusal:
    return Refusal(
        403, "not_in_plan", gettext("{what} is not available in the plan {plan!r}", what=what, plan=plan), plan=plan
    )


def not_found(what: str) -> Refusal:
    """INTERFACE §5.6; does not reveal whether it belongs to another key."""
    return Refusal(404, "not_found", gettext("{what} does not exist, or is not this key's", what=what))


def no_route(status: int, headers: Mapping[str, str] | None) -> Refusal:
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        return Refusal(
            405, "method_not_allowed", gettext("the path has no such method; see /openapi.json"), headers=headers
        )
    return Refusal(404, "not_found", gettext("there is no such path; see /openapi.json"))


def too_large(what: str, limit: int, unit: str) -> Refusal:
    message = gettext(_TOO_LARGE[unit], what=what, limit=limit)
    return Refusal(413, "too_large", message, limit=limit, unit=unit)


def quota_exceeded(asked: int, limit: int, used: int, resets: datetime, now: float) -> Refusal:
    """INTERFACE §8: too few lookups are left in the month; none was taken."""
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
    return Refusal(
        429,
        "quota_exceeded",
        message,
        headers=wait,
        limit=limit,
        used=used,
        remaining=left,
        resets_at=resets.isoformat(),
    )


def limit_exceeded(bound: str, limit: float, used: float, message: str, seconds: int) -> Refusal:
    """A bound of the key's plan is reached. ``bound``: the field of the plan."""
    return Refusal(
        429,
        "limit_exceeded",
        gettext("{message}; nothing was done, try again in {seconds:,} s", message=message, seconds=seconds),
        headers={"Retry-After": str(seconds)},
        bound=bound,
        limit=limit,
        used=used,
    )


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


def conflict(message: str, code: str) -> Refusal:
    return Refusal(409, code, message)


def busy(message: str, seconds: int) -> Refusal:
    text = gettext("{message}; nothing was done, try again in {seconds} s", message=message, seconds=seconds)
    return Refusal(503, "busy", text, headers={"Retry-After": str(seconds)})
