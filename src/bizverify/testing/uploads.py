"""An uploaded file, read into lookups: CSV with a header line, or a JSON list of objects."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass

from bizverify.testing.answers import Lookup
from bizverify.testing.asgi import RefusedError
from bizverify.testing.multipart import Part


@dataclass(slots=True)
class Upload:
    """What was uploaded, for tests that look at what leaves the house.

    ``header`` is the first line of a CSV as it came, ``columns`` all names in the file; ``offline`` and ``paid`` are
    the query parameters as given; ``job_id`` stays ``None`` where the upload was refused.
    """

    filename: str
    content_type: str | None
    header: bytes
    columns: tuple[str, ...]
    rows: int
    offline: str | None = None
    paid: str | None = None
    job_id: str | None = None


def read_upload(parts: list[Part]) -> tuple[Upload, list[Lookup]]:
    """Read the one file part named ``file``. Raises :class:`RefusedError` (400) where it is not the form asked for."""
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
    return Upload(part.filename, part.content_type, header, columns, len(lookups)), lookups


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


def is_text(value: object) -> bool:
    """Whether it is text that can be written: JSON can spell halves of characters, which no encoding has."""
    if not isinstance(value, str):
        return False
    try:
        return value.isascii() or bool(value.encode("utf-8"))
    except UnicodeEncodeError:
        return False
