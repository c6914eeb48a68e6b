"""Requests and replies of the fake, its verdicts and bodies."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from http import HTTPStatus
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import parse_qsl

if TYPE_CHECKING:
    from bansong.testing.fake_service import FakeService
    from bansong.testing.state import Dialect, FakeJob


class Lookup(NamedTuple):
    """A paid question; missing names and addresses are empty."""

    b_no: str
    name: str = ""
    address: str = ""


Verdict = Callable[[str, str, str], dict[str, Any]]

STATUSES: Final = (
    "active",
    "계속사업자",
    "closed",
    "휴업자",
    "active",
    "suspended",
    "폐업자",
    "unregistered",
    "unknown",
    "under_review",
)
"""``biz_status`` by the number's last digit, in two languages, with unknown words."""

ACTIONS: Final = ("send", "send", "confirm", "hold", "do_not_send")


def verdict(b_no: str, name: str = "", address: str = "") -> dict[str, Any]:
    """The seven fields of INTERFACE §2.2 for a record; risk is judged when both name and address are given (§1).

    >>> verdict("1248100998")["biz_status"]
    'unknown'
    >>> answer = verdict("1248100998", "삼성전자", "경기 수원시 영통구 삼성로 129")
    >>> answer["bounce_prob"], answer["grade"], answer["fixed_address"]
    (0.839, 'E', '경기 수원시 영통구 삼성로 129')
    """
    status = STATUSES[int(b_no[-1])]
    answer: dict[str, Any] = {
        "biz_status": status,
        "bounce_prob": None,
        "grade": None,
        "action": None,
        "fixed_zipcode": None,
        "fixed_address": None,
        "reasons": [f"[상태 {int(b_no[-1]) - 5:+d}] {b_no}: {status} (nts)"],
    }
    if name and address:
        mark = int.from_bytes(blake2b(f"{b_no}\x1f{name}\x1f{address}".encode(), digest_size=6).digest(), "big")
        level = mark % 1000 // 200
        answer["bounce_prob"] = mark % 1000 / 1000
        answer["grade"] = "ABCDE"[level]
        answer["action"] = ACTIONS[level]
        answer["fixed_zipcode"] = f"{mark // 1000 % 100_000:05d}"
        answer["fixed_address"] = address
        answer["reasons"] += [
            f"[주소 {mark % 41 - 20:+d}] {address} (juso)",
            f"[상호 {mark % 23 - 11:+d}] {name} (model)",
        ]
    return answer


Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

WRITE: Final = "bansong.write"
"""Key of a scope: on a real socket, the function that writes raw bytes to its connection."""


class BrokenConnectionError(ConnectionResetError):
    """The connection was broken on purpose.

    On a real socket :mod:`bansong.testing.fake_service` breaks it, by RST with ``reset``, else by closing it early.
    In-process it passes through ``httpx.ASGITransport``, where a real connection would raise ``httpx.ReadError`` or
    ``httpx.RemoteProtocolError``.
    """

    def __init__(self, message: str, *, reset: bool = True) -> None:
        super().__init__(message)
        self.reset = reset


class ClientGoneError(Exception):
    """The client left before its request was complete: nothing was taken."""


class RefusedError(Exception):
    """An error reply."""

    def __init__(self, status: int, message: str, *, retry_after: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


@dataclass(slots=True)
class FakeReply:
    """A reply. ``parts`` are streamed instead of ``body``; after ``cut`` bytes of ``body`` the connection breaks.

    ``twice``: send it again, on a real socket.
    """

    status: int = 200
    body: bytes = b""
    content_type: str | None = "application/json"
    headers: Headers = field(default_factory=list)
    parts: Iterable[bytes] | None = None
    cut: int | None = None
    reset: bool = True
    twice: bool = False

    def whole(self) -> bytes:
        lines = [b"HTTP/1.1 %d %s" % (self.status, HTTPStatus(self.status).phrase.encode())]
        lines += [name + b": " + value for name, value in self._headers()]
        return b"\r\n".join([*lines, b"", self.body])

    def _headers(self) -> Headers:
        headers: Headers = []
        if self.content_type is not None:
            headers.append((b"content-type", self.content_type.encode("latin-1")))
        if self.parts is None and self.status != 204:
            headers.append((b"content-length", b"%d" % len(self.body)))
        return headers + self.headers

    async def send(self, send: Send) -> None:
        """Send the reply; raise :class:`BrokenConnectionError` where it is cut."""
        await send({"type": "http.response.start", "status": self.status, "headers": self._headers()})
        if self.cut is not None:
            await send({"type": "http.response.body", "body": self.body[: self.cut], "more_body": True})
            raise BrokenConnectionError(f"the reply broke after {self.cut} bytes", reset=self.reset)
        for part in self.parts or ():
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": self.body})


def header(scope: Scope, name: bytes) -> bytes | None:
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return None


_BOUNDARY: Final = re.compile(rb"""multipart/form-data\s*;.*?\bboundary=(?:"([^"]{1,70})"|([^\s";,]{1,70}))""", re.I)
_PARAMETER: Final = re.compile(r';\s*([a-z*]+)\s*=\s*"((?:[^"\\]|\\.)*)"', re.I)


@dataclass(frozen=True, slots=True)
class FormPart:
    """One part of a form. ``filename``: ``None`` for a plain field."""

    name: str
    filename: str | None
    content_type: str | None
    content: bytes


def parts_of(content_type: bytes | None, body: bytes) -> list[FormPart]:
    """Split a complete body into its parts; raise :class:`RefusedError` 415 for other content, 400 if it is incomplete.

    A body that ends early, even within its closing boundary, is incomplete.
    """
    found = _BOUNDARY.match(content_type or b"")
    if found is None:
        raise RefusedError(415, "multipart/form-data with a boundary is expected")
    delimiter = b"\r\n--" + (found[1] or found[2])
    first, *rest = (b"\r\n" + body).split(delimiter)
    if first or not rest or rest[-1] not in (b"--", b"--\r\n"):
        raise RefusedError(400, "the multipart body is not complete")
    return [_part(section) for section in rest[:-1]]


def _part(section: bytes) -> FormPart:
    head, blank, content = section.partition(b"\r\n\r\n")
    if not head.startswith(b"\r\n") or not blank:
        raise RefusedError(400, "a part of the multipart body has no header, or no end of it")
    headers: dict[str, str] = {}
    for line in head[2:].decode("utf-8", "replace").split("\r\n"):
        name, colon, value = line.partition(":")
        if not colon:
            raise RefusedError(400, "a header of a part is not one")
        headers[name.strip().lower()] = value.strip()
    disposition = headers.get("content-disposition", "")
    parameters = {name.lower(): re.sub(r"\\(.)", r"\1", value) for name, value in _PARAMETER.findall(disposition)}
    if not disposition.lower().startswith("form-data") or "name" not in parameters:
        raise RefusedError(400, "a part has no name")
    return FormPart(parameters["name"], parameters.get("filename"), headers.get("content-type"), content)


@dataclass(slots=True)
class FakeRequest:
    """A request, and what acts change in its reply.

    ``target``: the identifier in its path. ``polls``: polls of this job so far. ``answered_record``: replaces the
    records that are answered. ``releases``: releases of the faults before it came. ``last``: a job to forget after the
    reply. ``whole``: the body was read.
    """

    kind: str
    target: str
    scope: Scope
    receive: Receive
    service: FakeService
    releases: int
    polls: int = 0
    edits: list[ResultsEdit] = field(default_factory=list)
    word: str | None = None
    answered_record: Callable[[Lookup], Lookup] | None = None
    last: str | None = None
    whole: bool = False
    parts: list[bytes] = field(default_factory=list)

    @property
    def released(self) -> bool:
        return self.service.faults.releases != self.releases

    def query(self) -> dict[str, str]:
        pairs = parse_qsl(self.scope["query_string"].decode("ascii", "replace"), keep_blank_values=True)
        if len(pairs) != len(dict(pairs)):
            raise RefusedError(422, "a query parameter is given twice")
        return dict(pairs)

    async def body(self, most: int | None = None) -> bytes:
        """Return the whole body."""
        while not self.whole:
            self.parts.append(await self._part())
            self._limit(most)
        self._limit(most)
        return b"".join(self.parts)

    async def rest(self) -> None:
        while not self.whole:
            await self._part()

    async def _part(self) -> bytes:
        message = await self.receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        self.whole = not message.get("more_body", False)
        return bytes(message.get("body", b""))

    def _limit(self, most: int | None) -> None:
        if most is not None and sum(map(len, self.parts)) > most:
            raise RefusedError(413, f"more than {most} bytes")


Object = dict[str, Any]
ResultsEdit = Callable[[list[Object]], list[Object]]

_SEED: Final = 20_040_229


def encode_json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def answer(dialect: Dialect, fields: Object) -> Object:
    """Return the seven fields in the dialect, with fields of its own."""
    if dialect.blanks == "absent":
        fields = {name: value for name, value in fields.items() if value is not None}
    elif dialect.blanks == "empty":  # a number has no empty text
        fields = {n: "" if v is None and n != "bounce_prob" else v for n, v in fields.items()}
    return {**fields, "checked_at": "2026-11-21T09:00:00+09:00", "model": {"version": 7}} if dialect.extras else fields


def verification(dialect: Dialect, row: Lookup, fields: Object) -> Object:
    said = answer(dialect, fields)
    match dialect.verify_echo:
        case "flat":
            return _echo(dialect, row) | said
        case "nested":
            return {dialect.echo_under: _echo(dialect, row), dialect.answer_under or "result": said}
    return said


def wrap_reply(dialect: Dialect, value: object) -> object:
    """Put a value into the dialect's envelope; for replies whose shape the document does not show."""
    return value if dialect.envelope is None else {"success": True, dialect.envelope: value}


def status_record(
    dialect: Dialect,
    job: FakeJob,
    word: str,
    done: int,
    preview: int | None,
    verdict: Verdict,
    edits: Sequence[ResultsEdit],
) -> Object:
    record: Object = {"status": word, **_progress(dialect, done, len(job.rows))}
    if dialect.extras:
        record |= {"job_id": job.id, "links": {"self": f"/batch/{job.id}"}}
    if word == dialect.done or dialect.early == "so far":
        results = _results(dialect, job, done, preview, verdict)
        for edit in edits:
            results = edit(results)
    elif dialect.early == "empty":
        results = []
    else:
        return record
    *path, last = dialect.results
    place = record
    for key in path:
        place = place.setdefault(key, {})
    place[last] = results
    return record


def _progress(dialect: Dialect, done: int, total: int) -> Object:
    match dialect.progress:
        case "flat":
            return {"total": total, "done": done}
        case "nested":
            return {"progress": {"processed": done, "total": total}}
        case "percent":
            return {"progress": round(done / total, 3) if total else 1.0}
    return {}


def _results(dialect: Dialect, job: FakeJob, done: int, preview: int | None, verdict: Verdict) -> list[Object]:
    most = dialect.preview if preview is None else preview
    if preview == 0 and dialect.zero_is_all:
        most = None
    most = min(len(job.rows) if bound is None else bound for bound in (most, dialect.preview_most))
    places = list(range(done))
    if dialect.order == "shuffled":
        Random(_SEED).shuffle(places)  # noqa: S311 - not a secret
    elif dialect.order == "risk":
        places.sort(key=lambda place: -(_risk(job, place, verdict)))
    return [_item(dialect, job, place, verdict) for place in places[:most]]


def _risk(job: FakeJob, place: int, verdict: Verdict) -> float:
    return -1.0 if place in job.faults else float(verdict(*job.rows[place]).get("bounce_prob") or 0.0)


def _item(dialect: Dialect, job: FakeJob, place: int, verdict: Verdict) -> Object:
    row = job.rows[place]
    item: Object = {}
    if dialect.row_key is not None:
        key = place + dialect.row_base
        item[dialect.row_key] = str(key) if dialect.row_text else key
    if dialect.echo == "flat":
        item |= _echo(dialect, row)
    elif dialect.echo == "under":
        item[dialect.echo_under] = _echo(dialect, row)
    fault = job.faults.get(place)
    if fault is not None:
        return item | _row_error(dialect, fault)
    fields = answer(dialect, verdict(*row))
    return {**item, **fields} if dialect.answer_under is None else {**item, dialect.answer_under: fields}


def _echo(dialect: Dialect, row: Lookup) -> Object:
    number = row.b_no
    if dialect.hyphens:
        number = f"{number[:3]}-{number[3:5]}-{number[5:]}"
    said = {"b_no": (dialect.echo_number, number), "name": ("name", row.name), "address": ("address", row.address)}
    return dict(said[name] for name in dialect.echoed)


def _row_error(dialect: Dialect, fault: str) -> Object:
    match dialect.row_error:
        case "object":
            return {"error": {"code": "NOT_VERIFIED", "message": fault}}
        case "status":
            return {"status": "error", "message": fault}
    return {"error": fault}


def account(dialect: Dialect, plan: str, quota: int | None, used: int) -> Object:
    left = None if quota is None else max(quota - used, 0)
    match dialect.me:
        case "left":
            return {"plan": plan, "limit": quota, "remaining": left}
        case "nested":
            return {
                "account": {"name": "Example Ltd.", "plan": {"name": plan}},
                "limits": {"monthly_lookups": quota},
                "usage": {"monthly_lookups": used},
            }
        case "camel":
            return {"planName": plan, "monthlyQuota": quota, "usedThisMonth": used, "resetsAt": "2026-12-01"}
        case "list":
            lookups = {"name": "lookups", "period": "month", "limit": quota, "used": used}
            return {"plan": plan, "limits": [{"name": "watches", "limit": 100, "used": 3}, lookups]}
        case "text":
            return {"tier": plan, "quota": {"limit": _text(quota), "remaining": _text(left)}}
    return {"plan": plan, "monthly_quota": quota, "used": used, "remaining": left}


def _text(number: int | None) -> str:
    return "unlimited" if number is None else f"{number:,}"


def error_body(dialect: Dialect, status: int, message: str) -> tuple[bytes, str | None]:
    body: Object
    match dialect.error:
        case "error":
            body = {"error": message}
        case "nested":
            body = {"error": {"code": f"E{status}", "message": message}}
        case "list":
            body = {"detail": [{"loc": ["request"], "msg": message, "type": "value_error"}]}
        case "text":
            return message.encode("utf-8"), "text/plain; charset=utf-8"
        case "empty":
            return b"", None
        case _:
            body = {"detail": message}
    return encode_json(body), "application/json"
