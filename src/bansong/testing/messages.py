"""Base of the fakes: ASGI apps with faults, answers of the service, and variants (dialects) of replies."""

from __future__ import annotations

import csv
import io
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from http import HTTPStatus
from random import Random
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, cast
from urllib.parse import parse_qsl

import anyio

if TYPE_CHECKING:
    from bansong.testing.fake_service import FakeJob, FakeService
    from bansong.testing.faults import Faults


class Lookup(NamedTuple):
    """A record to verify, the unit of payment. Missing names and addresses are empty."""

    b_no: str
    name: str = ""
    address: str = ""


Verdict = Callable[[str, str, str], dict[str, Any]]

# by the number's last digit, in two languages, with unknown words
_STATUSES = "active 계속사업자 closed 휴업자 active suspended 폐업자 unregistered unknown under_review".split()  # noqa: SIM905 - one a digit
_ACTIONS: Final = ("send", "send", "confirm", "hold", "do_not_send")


def verdict(b_no: str, name: str = "", address: str = "") -> dict[str, Any]:
    """Return the answer fields of INTERFACE §2.2 for a record; the risk needs both name and address (§1).

    >>> answer = verdict("1248100998", "삼성전자", "경기 수원시 영통구 삼성로 129")
    >>> answer["bounce_prob"], answer["grade"], answer["fixed_address"]
    (0.839, 'E', '경기 수원시 영통구 삼성로 129')
    """
    status = _STATUSES[int(b_no[-1])]
    reasons = [f"[상태 {int(b_no[-1]) - 5:+d}] {b_no}: {status} (nts)"]
    risk: dict[str, Any] = dict.fromkeys(("bounce_prob", "grade", "action", "fixed_zipcode", "fixed_address"))
    if name and address:
        mark = int.from_bytes(blake2b(f"{b_no}\x1f{name}\x1f{address}".encode(), digest_size=6).digest(), "big")
        level = mark % 1000 // 200
        values = (mark % 1000 / 1000, "ABCDE"[level], _ACTIONS[level], f"{mark // 1000 % 100_000:05d}", address)
        risk = dict(zip(risk, values, strict=True))
        reasons.append(f"[주소 {mark % 41 - 20:+d}] {address} (juso)")
        reasons.append(f"[상호 {mark % 23 - 11:+d}] {name} (model)")
    return {"biz_status": status, **risk, "reasons": reasons}


Object = dict[str, Any]
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

# key of a scope: on a real socket, the function that writes raw bytes to its connection
WRITE: Final = "bansong.write"


class BrokenConnectionError(ConnectionResetError):
    """The connection was broken on purpose: by RST with ``reset``, else by an early end."""

    def __init__(self, message: str, *, reset: bool = True) -> None:
        super().__init__(message)
        self.reset = reset


class ClientGoneError(Exception):
    """The client left before its request was complete. Nothing was taken."""


class RefusedError(Exception):
    """The request is refused with an error reply."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(slots=True)
class FakeReply:
    """A reply. ``parts`` are streamed instead of ``body``. After ``cut`` bytes of ``body`` the connection breaks."""

    status: int = 200
    body: bytes = b""
    content_type: str | None = "application/json"
    headers: Headers = field(default_factory=list)
    parts: Iterable[bytes] | None = None
    cut: int | None = None
    reset: bool = True
    twice: bool = False  # on a real socket

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
        """Send the reply; raise :class:`BrokenConnectionError` at a cut."""
        await send({"type": "http.response.start", "status": self.status, "headers": self._headers()})
        if self.cut is not None:
            await send({"type": "http.response.body", "body": self.body[: self.cut], "more_body": True})
            raise BrokenConnectionError(f"the reply broke after {self.cut} bytes", reset=self.reset)
        for part in self.parts or ():
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": self.body})


def header(scope: Scope, name: bytes) -> bytes | None:
    return next((bytes(value) for key, value in scope["headers"] if key == name), None)


_BOUNDARY: Final = re.compile(rb"""multipart/form-data\s*;.*?\bboundary=(?:"([^"]{1,70})"|([^\s";,]{1,70}))""", re.I)
_PARAMETER: Final = re.compile(r';\s*([a-z*]+)\s*=\s*"((?:[^"\\]|\\.)*)"', re.I)


@dataclass(frozen=True, slots=True)
class FormPart:
    """One part of a form; ``filename`` is ``None`` for a field that is no file."""

    name: str
    filename: str | None
    content_type: str | None
    content: bytes


def parts_of(content_type: bytes | None, body: bytes) -> list[FormPart]:
    """Split a multipart body into its parts; refuse other content (415), and a body cut by even a byte (400)."""
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
class FakeUpload:
    """An upload as received; ``header`` is the first line of a CSV, ``offline`` and ``paid`` are query parameters."""

    filename: str
    content_type: str | None
    header: bytes
    columns: tuple[str, ...]
    rows: int
    offline: str | None = None
    paid: str | None = None
    job_id: str | None = None  # None if it was refused


def read_upload(parts: list[FormPart]) -> tuple[FakeUpload, list[Lookup]]:
    """Read the one part named ``file``; raise :class:`RefusedError` (400) for other forms."""
    part = parts[0] if len(parts) == 1 else None
    if part is None or part.name != "file" or part.filename is None:
        raise RefusedError(400, "one file part named `file` is expected, and nothing else")
    is_json = (part.content_type or "").startswith("application/json") or part.filename.lower().endswith(".json")
    try:
        text = part.content.decode("utf-8-sig")
        columns, lookups = _json(text) if is_json else _csv(text)
    except (csv.Error, ValueError, RecursionError) as error:
        raise RefusedError(400, f"{part.filename}: cannot be read: {error}") from error
    header = b"" if is_json else part.content.partition(b"\n")[0].rstrip(b"\r")
    return FakeUpload(part.filename, part.content_type, header, columns, len(lookups)), lookups


def _csv(text: str) -> tuple[tuple[str, ...], list[Lookup]]:
    lines = csv.reader(io.StringIO(text, newline=""), strict=True)
    columns = tuple(next(lines, ()))
    if "b_no" not in columns or len(set(columns)) < len(columns):
        raise ValueError(f"the header must name b_no, and each column once; it is {','.join(columns)!r}")
    lookups = []
    for line in filter(None, lines):  # a blank line is no row
        if len(line) != len(columns):
            raise ValueError(f"line {lines.line_num} has {len(line)} cells, the header {len(columns)}")
        cells = dict(zip(columns, line, strict=True))
        lookups.append(Lookup(*(cells.get(name, "") for name in Lookup._fields)))
    return columns, lookups


def _json(text: str) -> tuple[tuple[str, ...], list[Lookup]]:
    rows = json.loads(text)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("a list of objects is expected")
    columns = tuple(dict.fromkeys(name for row in rows for name in row))
    lookups = [Lookup(*("" if row.get(name) is None else row[name] for name in Lookup._fields)) for row in rows]
    if not all(is_text(value) for lookup in lookups for value in lookup):
        raise ValueError("b_no, name and address are texts")
    return columns, lookups


@dataclass(slots=True)
class FakeRequest:
    """A request, with the changes that acts make to its reply.

    ``target``: the identifier in its path. ``polls``: polls of this job so far. ``answered_record``: replaces the
    records that are answered. ``releases``: releases of the faults before it came. ``whole``: the body was read.
    """

    kind: str
    target: str
    scope: Scope
    receive: Receive
    service: FakeService
    releases: int
    polls: int = 0
    edits: list[Callable[[list[Object]], list[Object]]] = field(default_factory=list)
    word: str | None = None
    answered_record: Callable[[Lookup], Lookup] | None = None
    on_sent: Callable[[], object] | None = None
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
        """Return the whole body; refuse (413) more than ``most`` bytes."""
        while True:
            if most is not None and sum(map(len, self.parts)) > most:
                raise RefusedError(413, f"more than {most} bytes")
            if self.whole:
                return b"".join(self.parts)
            self.parts.append(await self._part())

    async def rest(self) -> None:
        while not self.whole:
            await self._part()

    async def _part(self) -> bytes:
        message = await self.receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        self.whole = not message.get("more_body", False)
        return bytes(message.get("body", b""))


class FakeApp(ABC):
    """An ASGI app that counts its requests and has faults."""

    faults: Faults
    latency: float = 0.0
    faults_hit_refusals = True

    def __init__(self) -> None:
        self.in_flight = self.most_in_flight = 0
        self._lock = Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        while scope["type"] == "lifespan":
            message = await receive()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return
        request = FakeRequest(*self._kind(scope), scope, receive, cast("FakeService", self), self.faults.releases)
        with self._lock:
            self._count(request)
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            reply = await self._reply(request)
            await reply.send(send)
            if reply.twice and WRITE in scope:
                scope[WRITE](reply.whole())
            if request.on_sent is not None:
                request.on_sent()
        except ClientGoneError:
            pass
        finally:
            with self._lock:
                self.in_flight -= 1

    async def _reply(self, request: FakeRequest) -> FakeReply:
        acts = self.faults.of(request)
        if self.latency:
            await request.body()
            await anyio.sleep(self.latency)
        for act in acts:
            request.edits.append(partial(act.edit_results, request))
            instead = await act.before(request)
            if instead is not None:
                return instead
        try:
            reply = await self._answer(request)
        except RefusedError as refused:
            await request.rest()  # a client that is still sending would see a broken connection
            reply = self._refusal(refused)
            if not self.faults_hit_refusals:
                return reply
        for act in acts:
            reply = await act.after(request, reply)
        return reply

    @abstractmethod
    def _kind(self, scope: Scope) -> tuple[str, str]: ...  # and the identifier in its path

    @abstractmethod
    def _count(self, request: FakeRequest) -> None: ...

    @abstractmethod
    async def _answer(self, request: FakeRequest) -> FakeReply: ...

    @abstractmethod
    def _refusal(self, refused: RefusedError) -> FakeReply: ...


def is_number(value: object) -> bool:
    return isinstance(value, str) and len(value) == 10 and value.isascii() and value.isdigit()


def is_text(value: object) -> bool:
    return isinstance(value, str) and re.search("[\ud800-\udfff]", value) is None


@dataclass(frozen=True, slots=True)
class Dialect:
    """One way to fill the gaps of INTERFACE.md. The defaults are those easiest for a client."""

    created: int = 200  # status of replies that create something
    job_ids: Literal["hex", "number", "odd", "integer"] = "hex"  # odd: needs quoting; integer: breaks the document
    envelope: str | None = None  # key around replies without a shown shape
    extras: bool = False  # add fields that no document names
    blanks: Literal["null", "absent", "empty"] = "null"  # fields without value
    words: tuple[str, ...] = ("processing",)  # ``status`` before ``done``: one per poll, or per part of ``job_seconds``
    done: str = "done"
    progress: Literal["none", "flat", "nested", "percent"] = "flat"

    results: tuple[str, ...] = ("results",)  # path to the list of results
    answer_under: str | None = None  # key of the seven fields in an item; None: they are the item's own
    echo: Literal["none", "flat", "under"] = "flat"
    echo_under: str = "input"
    echoed: tuple[str, ...] = ("b_no", "name", "address")
    verify_echo: Literal["none", "flat", "nested"] = "none"  # nested: {"input": {…}, "result": {the seven fields}}
    echo_number: str = "b_no"  # key of the number
    hyphens: bool = False  # echo the number as 123-45-67890
    row_key: str | None = "row_id"
    row_base: int = 0  # key of the first row; 2 is its line in a file with a header
    row_text: bool = False
    order: Literal["sent", "risk", "shuffled"] = "sent"
    early: Literal["absent", "empty", "so far"] = "empty"  # results of an unfinished job

    preview: int | None = 10  # default of the query's ``preview``; None: all
    preview_most: int | None = None
    zero_is_all: bool = False

    me: Literal["flat", "left", "nested", "camel", "list", "text"] = "flat"
    error: Literal["detail", "error", "nested", "list", "text", "empty"] = "detail"
    row_error: Literal["error", "object", "status"] = "error"  # form of a row that was not taken
    label: Literal[200, 201, 204] = 200
    removed: Literal[200, 204] = 200
    watch_ids: Literal["hex", "number"] = "hex"
    watch_number: str = "biz_no"
    watches: Literal["list", "watches", "items"] = "list"
    history: Literal["list", "history", "changes"] = "list"


# services that differ as much as the document allows; a correct client works with all of them
DIALECTS: Final[dict[str, Dialect]] = {
    "wrapped": Dialect(  # everything under keys
        created=202,
        envelope="data",
        extras=True,
        words=("PENDING", "IN_PROGRESS"),
        results=("result", "items"),
        answer_under="verification",
        echo="under",
        row_key="row",
        row_base=1,
        early="absent",
        progress="percent",
        preview=None,
        error="nested",
        row_error="object",
        me="camel",
        watches="items",
        history="changes",
    ),
    "terse": Dialect(  # neither echo nor key, only the order
        created=202,
        blanks="absent",
        words=(),
        progress="none",
        results=("rows",),
        echo="none",
        row_key=None,
        early="absent",
        preview=0,
        error="empty",
        row_error="status",
        me="left",
        label=204,
        removed=204,
    ),
    "shuffled": Dialect(  # only a text key joins
        job_ids="number",
        blanks="empty",
        words=("accepted", "working"),
        echo="none",
        row_key="index",
        row_base=1,
        row_text=True,
        order="shuffled",
        early="so far",
        preview=20,
        zero_is_all=True,
        error="list",
        me="list",
        watch_ids="number",
        watch_number="b_no",
    ),
}


def encode_json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _answer(dialect: Dialect, fields: Object) -> Object:
    if dialect.blanks == "absent":
        fields = {name: value for name, value in fields.items() if value is not None}
    elif dialect.blanks == "empty":  # a number has no empty text
        fields = {n: "" if v is None and n != "bounce_prob" else v for n, v in fields.items()}
    return {**fields, "checked_at": "2026-11-21T09:00:00+09:00", "model": {"version": 7}} if dialect.extras else fields


def verification(dialect: Dialect, row: Lookup, fields: Object) -> Object:
    """Return the body of ``POST /verify`` in a dialect."""
    echo, answer = _echo(dialect, row), _answer(dialect, fields)
    nested = {dialect.echo_under: echo, dialect.answer_under or "result": answer}
    return {"none": answer, "flat": echo | answer, "nested": nested}[dialect.verify_echo]


def status_record(dialect: Dialect, job: FakeJob, word: str, done: int, results: list[Object] | None) -> Object:
    """Return the body of ``GET /batch/{job_id}``; without rows if ``results`` is ``None``."""
    total = len(job.rows)
    progress: dict[str, Object] = {
        "none": {},
        "flat": {"total": total, "done": done},
        "nested": {"progress": {"processed": done, "total": total}},
        "percent": {"progress": round(done / total, 3) if total else 1.0},
    }
    record = {"status": word, **progress[dialect.progress]}
    if dialect.extras:
        record |= {"job_id": job.id, "links": {"self": f"/batch/{job.id}"}}
    if results is None and dialect.early == "absent":
        return record
    *path, last = dialect.results
    place = record
    for key in path:
        place = place.setdefault(key, {})
    place[last] = results or []
    return record


def job_results(dialect: Dialect, job: FakeJob, done: int, preview: int | None, verdict: Verdict) -> list[Object]:
    """Return the results of a job's first ``done`` rows, as many as ``preview`` asks for."""
    most = dialect.preview if preview is None else preview
    if preview == 0 and dialect.zero_is_all:
        most = None
    most = min(len(job.rows) if bound is None else bound for bound in (most, dialect.preview_most))

    def risk(place: int) -> float:
        return -1.0 if place in job.faults else float(verdict(*job.rows[place]).get("bounce_prob") or 0.0)

    places = list(range(done))
    if dialect.order == "shuffled":
        Random(20_040_229).shuffle(places)  # noqa: S311 - not a secret
    elif dialect.order == "risk":
        places.sort(key=lambda place: -risk(place))
    return [_item(dialect, job, place, verdict) for place in places[:most]]


def _item(dialect: Dialect, job: FakeJob, place: int, verdict: Verdict) -> Object:
    row = job.rows[place]
    item: Object = {}
    if dialect.row_key is not None:
        key = place + dialect.row_base
        item[dialect.row_key] = str(key) if dialect.row_text else key
    if dialect.echo != "none":
        echo = _echo(dialect, row)
        item |= echo if dialect.echo == "flat" else {dialect.echo_under: echo}
    fault = job.faults.get(place)
    if fault is None:
        fields = _answer(dialect, verdict(*row))
        return item | (fields if dialect.answer_under is None else {dialect.answer_under: fields})
    errors: dict[str, Object] = {
        "error": {"error": fault},
        "object": {"error": {"code": "NOT_VERIFIED", "message": fault}},
        "status": {"status": "error", "message": fault},
    }
    return item | errors[dialect.row_error]


def _echo(dialect: Dialect, row: Lookup) -> Object:
    number = row.b_no
    if dialect.hyphens:
        number = f"{number[:3]}-{number[3:5]}-{number[5:]}"
    echo = {"b_no": (dialect.echo_number, number), "name": ("name", row.name), "address": ("address", row.address)}
    return dict(echo[name] for name in dialect.echoed)


def account(dialect: Dialect, plan: str, quota: int | None, used: int) -> Object:
    """Return the body of ``GET /me`` in a dialect."""
    left = None if quota is None else max(quota - used, 0)
    limit_text, left_text = ("unlimited" if number is None else f"{number:,}" for number in (quota, left))
    lookups = {"name": "lookups", "period": "month", "limit": quota, "used": used}
    accounts: dict[str, Object] = {
        "flat": {"plan": plan, "monthly_quota": quota, "used": used, "remaining": left},
        "left": {"plan": plan, "limit": quota, "remaining": left},
        "nested": {
            "account": {"name": "Example Ltd.", "plan": {"name": plan}},
            "limits": {"monthly_lookups": quota},
            "usage": {"monthly_lookups": used},
        },
        "camel": {"planName": plan, "monthlyQuota": quota, "usedThisMonth": used, "resetsAt": "2026-12-01"},
        "list": {"plan": plan, "limits": [{"name": "watches", "limit": 100, "used": 3}, lookups]},
        "text": {"tier": plan, "quota": {"limit": limit_text, "remaining": left_text}},
    }
    return accounts[dialect.me]


def error_reply(dialect: Dialect, status: int, message: str) -> FakeReply:
    if dialect.error == "empty":
        return FakeReply(status, b"", None)
    if dialect.error == "text":
        return FakeReply(status, message.encode("utf-8"), "text/plain; charset=utf-8")
    bodies: dict[str, Object] = {
        "detail": {"detail": message},
        "error": {"error": message},
        "nested": {"error": {"code": f"E{status}", "message": message}},
        "list": {"detail": [{"loc": ["request"], "msg": message, "type": "value_error"}]},
    }
    return FakeReply(status, encode_json(bodies[dialect.error]))
