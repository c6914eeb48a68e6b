"""Dialects of the fake; its uploads, jobs, labels, watches and repeated requests."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from secrets import token_hex
from typing import Any, Final, Literal, NamedTuple

from bansong.testing.messages import FakeReply, FakeRequest, FormPart, Lookup, RefusedError, header, parts_of


@dataclass(frozen=True, slots=True)
class Dialect:
    """One way to fill the gaps of INTERFACE.md; by default, the document read kindly."""

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


@dataclass(slots=True)
class FakeUpload:
    """An upload as received; ``header`` is the first line of a CSV, ``offline`` and ``paid`` come from the query."""

    filename: str
    content_type: str | None
    header: bytes
    columns: tuple[str, ...]
    rows: int
    offline: str | None = None
    paid: str | None = None
    job_id: str | None = None  # None if it was refused


def read_upload(parts: list[FormPart]) -> tuple[FakeUpload, list[Lookup]]:
    """Read the one file part named ``file``; raise :class:`RefusedError` (400) for other forms."""
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


def is_number(value: object) -> bool:
    return isinstance(value, str) and len(value) == 10 and value.isascii() and value.isdigit()


def is_text(value: object) -> bool:
    return isinstance(value, str) and re.search("[\ud800-\udfff]", value) is None


_NUMBERS: Final = count(1001)


@dataclass(slots=True)
class FakeJob:
    """The rows of an upload; ``faults``: why a row was not taken, by its place."""

    id: str
    rows: Sequence[Lookup]
    upload: FakeUpload
    started: float
    seconds: float = 0.0
    faults: dict[int, str] = field(default_factory=dict)
    polls: int = 0

    def progress(self, dialect: Dialect, now: float) -> tuple[str, int]:
        """Return the status word and the number of finished rows; without ``seconds`` each poll is a step."""
        words = dialect.words
        share = (self.polls - 1) / len(words) if words else 1.0
        if self.seconds:  # a start in the future is of another run's clock: that job is long done
            share = (now - self.started) / self.seconds if now >= self.started else 1.0
        if share >= 1:
            return dialect.done, len(self.rows)
        step = int(share * len(words) + 1e-9)
        return (words[step] if words else "processing"), int(share * len(self.rows))


def new_id(dialect: Dialect) -> str:
    if dialect.job_ids == "hex":
        return token_hex(8)
    number = next(_NUMBERS)
    return f"2026/11:{number} 작업+#?" if dialect.job_ids == "odd" else str(number)


class FakeLabel(NamedTuple):
    """A recorded label."""

    job_id: str
    row_id: int
    bounced: bool
    reason: str


@dataclass(slots=True)
class FakeWatch:
    """A watched business; ``changes``: its history, oldest first."""

    id: str
    biz_no: str
    name: str
    address: str
    biz_status: str
    grade: str | None
    changes: list[dict[str, Any]] = field(default_factory=list)

    def entry(self, dialect: Dialect) -> dict[str, Any]:
        watch_id: object = int(self.id) if dialect.watch_ids == "number" else self.id
        entry = {"watch_id": watch_id, dialect.watch_number: self.biz_no, "name": self.name, "address": self.address}
        return entry | {"grade": self.grade, "biz_status": self.biz_status}

    def change(self, grade: str | None, biz_status: str | None = None, at: str | None = None) -> None:
        """Let a re-check find another grade, and perhaps another status."""
        at = at or f"2026-11-{len(self.changes) + 1:02d}T09:00:00+09:00"
        item = {"at": at, "before": self.grade, "after": grade, "biz_status": biz_status or self.biz_status}
        self.changes.append(item)
        self.grade, self.biz_status = grade, biz_status or self.biz_status


# part of ``/me``; the fake never forgets
PROMISE: Final = {"header": "Idempotency-Key", "endpoints": ["POST /verify", "POST /batch"], "keep_seconds": 7 * 86_400}


class ReplayMemory:
    """Successful replies by key. ``replayed``: requests answered from it."""

    def __init__(self) -> None:
        self.replayed = 0
        self._known: dict[bytes, tuple[object, FakeReply]] = {}

    async def reply(self, request: FakeRequest, body: bytes, do: Callable[[], Awaitable[FakeReply]]) -> FakeReply:
        """Return the known reply to a request, else that of ``do``, which is remembered if successful."""
        key = header(request.scope, b"idempotency-key") or b""
        content = [body]
        if request.kind == "batch":  # its boundary may differ
            content = [part.content for part in parts_of(header(request.scope, b"content-type"), body)]
        identity = request.kind, request.query(), content
        if key in self._known:
            before, reply = self._known[key]
            if before != identity:
                raise RefusedError(409, "another request had this Idempotency-Key")
            self.replayed += 1
            return replace(reply)
        reply = await do()  # the whole body is here, so nothing comes between this and what follows
        if 200 <= reply.status < 300:
            self._known[key] = identity, replace(reply)
        return reply
