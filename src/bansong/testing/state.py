"""What the fake keeps and charges, and its dialects."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b, sha256
from itertools import count
from math import isfinite
from pathlib import Path
from secrets import token_hex
from threading import Lock
from typing import Any, Final, Literal, NamedTuple

from bansong.testing.messages import FakeReply, FakeRequest, FormPart, Lookup, RefusedError, Verdict, header, parts_of


@dataclass(frozen=True, slots=True)
class Dialect:
    """One way to fill the gaps of INTERFACE.md.

    ``created``: status of replies that create something. ``job_ids``: form of identifiers (``odd`` ones need quoting,
    ``integer`` ones break the document). ``envelope``: key around replies without a shown shape. ``extras``: add fields
    that no document names.
    """

    created: int = 200
    job_ids: Literal["hex", "number", "odd", "integer"] = "hex"
    envelope: str | None = None
    extras: bool = False
    blanks: Literal["null", "absent", "empty"] = "null"
    """Fields without value."""

    words: tuple[str, ...] = ("processing",)
    """Values of ``status`` before the last: one per poll, or per part of ``job_seconds``."""
    done: str = "done"
    progress: Literal["none", "flat", "nested", "percent"] = "flat"

    results: tuple[str, ...] = ("results",)
    """Path to the list of results."""
    answer_under: str | None = None
    """Key of the seven fields in an item; ``None``: they are the item's own."""
    echo: Literal["none", "flat", "under"] = "flat"
    echo_under: str = "input"
    echoed: tuple[str, ...] = ("b_no", "name", "address")
    """Fields that an echo repeats."""
    verify_echo: Literal["none", "flat", "nested"] = "none"
    """``nested``: ``{"input": {…}, "result": {the seven fields}}``."""
    echo_number: str = "b_no"
    hyphens: bool = False
    """Echo the number as 123-45-67890."""
    row_key: str | None = "row_id"
    row_base: int = 0
    """Key of the first row; 2 is its line in a file with a header."""
    row_text: bool = False
    order: Literal["sent", "risk", "shuffled"] = "sent"
    early: Literal["absent", "empty", "so far"] = "empty"
    """Results of an unfinished job."""

    preview: int | None = 10
    """Default of ``preview``; ``None``: all."""
    preview_most: int | None = None
    """Maximum number of results."""
    zero_is_all: bool = False

    me: Literal["flat", "left", "nested", "camel", "list", "text"] = "flat"
    error: Literal["detail", "error", "nested", "list", "text", "empty"] = "detail"
    row_error: Literal["error", "object", "status"] = "error"
    """Form of a row that was not taken."""
    label: Literal[200, 201, 204] = 200
    removed: Literal[200, 204] = 200
    watch_ids: Literal["hex", "number"] = "hex"
    watch_number: str = "biz_no"
    watches: Literal["list", "watches", "items"] = "list"
    history: Literal["list", "history", "changes"] = "list"


DIALECTS: Final[dict[str, Dialect]] = {
    "wrapped": Dialect(
        created=202,
        envelope="data",
        extras=True,
        words=("PENDING", "IN_PROGRESS"),
        results=("result", "items"),
        answer_under="verification",
        echo="under",
        echo_under="input",
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
    "terse": Dialect(
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
    "shuffled": Dialect(
        job_ids="number",
        blanks="empty",
        words=("accepted", "working"),
        results=("results",),
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
"""Services that differ as much as the document allows; a correct client works with all of them.

``wrapped``: everything under keys. ``terse``: neither echo nor key, only the order. ``shuffled``: only a text key
joins. ``Dialect()`` is the document read kindly.
"""


@dataclass(slots=True)
class FakeUpload:
    """An upload as received.

    ``header``: first line of a CSV. ``columns``: all names in the file. ``offline``, ``paid``: query parameters.
    ``job_id``: ``None`` if the upload was refused.
    """

    filename: str
    content_type: str | None
    header: bytes
    columns: tuple[str, ...]
    rows: int
    offline: str | None = None
    paid: str | None = None
    job_id: str | None = None


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
    places = [columns.index(name) if name in columns else None for name in Lookup._fields]
    lookups = []
    for line in lines:
        if not line:
            continue  # a blank line is no row
        if len(line) != len(columns):
            raise ValueError(f"line {lines.line_num} has {len(line)} cells, the header {len(columns)}")
        lookups.append(Lookup(*("" if place is None else line[place] for place in places)))
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
    if not isinstance(value, str):
        return False
    try:
        return value.isascii() or bool(value.encode("utf-8"))
    except UnicodeEncodeError:
        return False


_NUMBERS: Final = count(1001)


@dataclass(slots=True)
class FakeJob:
    """The rows of an upload; ``faults``: why a row was not taken, by its place. Answers are made on request."""

    id: str
    rows: Sequence[Lookup]
    upload: FakeUpload
    started: float
    seconds: float = 0.0
    faults: dict[int, str] = field(default_factory=dict)
    polls: int = 0

    def progress(self, dialect: Dialect, now: float) -> tuple[str, int]:
        """Return the status word and the number of finished rows at ``now``, for a poll already counted.

        With ``seconds`` a job moves on with time, else with each poll.
        """
        words = dialect.words
        if self.seconds:
            passed = now - self.started
            share = passed / self.seconds if isfinite(self.seconds) else 0.0
            share = share if passed >= 0 else 1.0  # the clock of another run: that job is long done
        else:
            share = (self.polls - 1) / len(words) if words else 1.0
        if share >= 1:
            return dialect.done, len(self.rows)
        step = int(share * len(words) + 1e-9)
        return (words[step] if words else "processing"), int(share * len(self.rows))


def new_id(dialect: Dialect) -> str:
    match dialect.job_ids:
        case "number" | "integer":
            return str(next(_NUMBERS))
        case "odd":
            return f"2026/11:{next(_NUMBERS)} 작업+#?"
    return token_hex(8)


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


class FakeWatches:
    """All watches in the order of addition."""

    def __init__(self) -> None:
        self._watches: dict[str, FakeWatch] = {}
        self._numbers = count(1)

    def add(self, biz_no: str, name: str, address: str, dialect: Dialect, verdict: Verdict) -> FakeWatch:
        """Add a watch; a business may be watched twice."""
        watch_id = str(next(self._numbers)) if dialect.watch_ids == "number" else token_hex(6)
        answer = verdict(biz_no, name, address)
        watch = FakeWatch(watch_id, biz_no, name, address, answer["biz_status"], answer["grade"])
        self._watches[watch_id] = watch
        return watch

    def get(self, watch_id: str) -> FakeWatch | None:
        return self._watches.get(watch_id)

    def remove(self, watch_id: str) -> bool:
        return self._watches.pop(watch_id, None) is not None

    def __iter__(self) -> Iterator[FakeWatch]:
        return iter(list(self._watches.values()))

    def __len__(self) -> int:
        return len(self._watches)


class Billing:
    """Count paid lookups against a monthly quota; thread-safe.

    With ``count_only`` it keeps 16 bytes per lookup instead of the lookup. ``journal``: a file that gets a JSON line
    per paid lookup before the reply is sent, for checks by another process.
    """

    def __init__(
        self, quota: int | None, used: int = 0, *, count_only: bool = False, journal: Path | None = None
    ) -> None:
        self.quota = quota
        self.used = used
        self.total = 0
        self.count_only = count_only
        self.journal = journal
        self._lock = Lock()
        self._paid: Counter[Lookup] = Counter()
        self._marks: set[bytes] = set()

    def take(self, lookups: Sequence[Lookup], *, partial: bool = False, job: str | None = None) -> int:
        with self._lock:
            free = len(lookups) if self.quota is None else max(self.quota - self.used, 0)
            taken = len(lookups) if len(lookups) <= free else free if partial else 0
            paid = lookups[:taken]
            self.used += taken
            self.total += taken
            if self.count_only:
                self._marks.update(map(_mark, paid))
            else:
                self._paid.update(paid)
            if self.journal is not None and paid:
                lines = (json.dumps({**lookup._asdict(), "job_id": job}, ensure_ascii=False) + "\n" for lookup in paid)
                with self.journal.open("ab") as file:
                    file.write("".join(lines).encode("utf-8"))
        return taken

    def count_paid(self) -> Counter[Lookup]:
        if self.count_only:
            raise RuntimeError("with count_only only the numbers are kept: ask paid_total and paid_again")
        with self._lock:
            return self._paid.copy()

    def again(self) -> int:
        with self._lock:
            return self.total - (len(self._marks) if self.count_only else len(self._paid))


def _mark(lookup: Lookup) -> bytes:
    return blake2b("\x1f".join(lookup).encode("utf-8"), digest_size=16).digest()


PROMISE: Final[dict[str, Any]] = {
    "idempotency": {
        "header": "Idempotency-Key",
        "endpoints": ["POST /verify", "POST /batch"],
        "keep_seconds": 7 * 86_400,
    }
}
"""Part of ``/me``; the fake never forgets."""


class ReplayMemory:
    """Successful replies by key. ``replayed``: requests answered from it."""

    def __init__(self) -> None:
        self.replayed = 0
        self._known: dict[bytes, tuple[bytes, FakeReply]] = {}

    async def reply(
        self, request: FakeRequest, max_bytes: int | None, do: Callable[[], Awaitable[FakeReply]]
    ) -> FakeReply:
        """Return the known reply to a request, else that of ``do``, which is remembered if successful."""
        key = header(request.scope, b"idempotency-key")
        if key is None or request.kind not in ("verify", "batch"):
            return await do()
        identity = _identity(request, await request.body(max_bytes))
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


def _identity(request: FakeRequest, body: bytes) -> bytes:
    """Hash the file and flags of an upload, not its boundary."""
    digest = sha256(f"{request.kind}?{sorted(request.query().items())}".encode())
    content = [body]
    if request.kind == "batch":
        content = [part.content for part in parts_of(header(request.scope, b"content-type"), body)]
    for part in content:
        digest.update(b"%d:" % len(part) + part)
    return digest.digest()
