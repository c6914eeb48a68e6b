"""State of the fake: uploads and their jobs, labels, the watch list."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import isfinite
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bansong.testing.dialects import Dialect
from bansong.testing.messages import FormPart, RefusedError
from bansong.testing.verdicts import Lookup, Verdict

if TYPE_CHECKING:
    from bansong.testing.dialects import Dialect


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
    """Return whether a value is encodable text: JSON can spell lone surrogates."""
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
    """Return an identifier that is unique in this process."""
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
