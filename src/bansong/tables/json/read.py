"""JSON → frames: records one a line in a file, each key's column typed where that is exact."""

from __future__ import annotations

import codecs
import json
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from contextvars import copy_context
from pathlib import Path
from typing import Final

import msgspec
import polars as pl

from bansong.errors import InputError, Problem, UsageError
from bansong.storage.filesystem import create_private, private_folder
from bansong.tables.columns import has_role
from bansong.tables.compression import File
from bansong.tables.detect import FORMATS
from bansong.tables.json import scan
from bansong.tables.json.locate import Document, at_path, find
from bansong.tables.json.lossless_types import ColumnTypes, DataType, tokens_of
from bansong.tables.json.scan import CHUNK, RecordChunk, Scanner
from bansong.tables.table import RAW, Table, column_ids, json_text, typed_id
from bansong.translation import gettext

JSON_PATH_NEEDLESS: Final = Problem(
    "json.json_path_needless", "{path}: `json_path=` is for JSON documents; this file has one object a line"
)
ENCODING_MISMATCHED: Final = Problem(
    "json.encoding_mismatched", "{path}: is not {encoding} throughout: {error}; save the file as UTF-8"
)

_RECORD: Final = "record"
_UNQUOTED: Final = "^[-0-9tf]"
"""How numbers and truth values begin."""
_FIRST: Final = 1 << 18
"""Bytes of the first part, from which types are learned the slow way."""
_decode_object: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class _NotPlainError(Exception):
    """The lines of a file are not one object each, without anything else."""


def read(file: File, json_path: str | None, resources: ExitStack, *, lines: bool) -> Table:
    """Open a JSON or NDJSON file in flat memory; what has to be made of it lives as long as ``resources``.

    The records are the elements of an array (of the document, of the one array in it that fits, or of the one that
    ``json_path`` names), objects one after the other, or one object alone. A column is typed where the type gives
    back every value as it stands in the file: integers, floats, booleans, text, nested values of one shape. Otherwise
    (``1.10``, ``1`` beside ``0.5``, objects with different keys) it is text: texts as they are, everything else as its
    JSON. So are nested values under the header of a role. ``lines``: the file says to hold one object a line.
    Raises :class:`InputError` naming the line or the record; :class:`UsageError` for a path that leads nowhere.
    """
    try:
        data = _utf8(file, resources)
        document = _document(file.path, data, json_path, lines=lines)
        columns = ColumnTypes(file.path, data)
        if document.kind == "sequence" and _is_plain_lines(columns, data):
            records = data
        else:
            columns = ColumnTypes(file.path, data)
            records = _spool_records(document, columns, resources)
    except RecursionError as error:
        raise scan.too_deep(file.path, gettext("a value")) from error
    return _table(file, document, columns, records)


def count(file: File, json_path: str | None, resources: ExitStack, *, lines: bool) -> int:
    """Count the records of a file, which :func:`read` would give, without looking at their values."""
    document = _document(file.path, _utf8(file, resources), json_path, lines=lines)
    return sum(part.count for part in document.records(file.path))


def _document(path: Path, data: Path, json_path: str | None, *, lines: bool) -> Document:
    start = _start(data)
    size = data.stat().st_size
    with Scanner(path, data, start) as scanner:
        first = scanner.peek()
    if first != b"[" and (lines or _is_lines(data, start)):
        if json_path is not None:
            raise UsageError(JSON_PATH_NEEDLESS, path=path)
        return Document(data, start, size, kind="sequence")
    return find(path, data, start) if json_path is None else at_path(path, data, start, json_path)


def _start(data: Path) -> int:
    with data.open("rb") as file:
        return 3 if file.read(3) == codecs.BOM_UTF8 else 0


def _is_lines(data: Path, start: int) -> bool:
    """Whether the first line is an object of its own and others follow."""
    with data.open("rb") as file:
        file.seek(start)
        head = file.read(CHUNK).lstrip()
    first, _, rest = head.partition(b"\n")
    try:
        _decode_object(first)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False
    return bool(rest.strip())


def _utf8(file: File, resources: ExitStack) -> Path:
    """The file, or a private copy of it in UTF-8 where it is UTF-16 or UTF-32."""
    with file.data.open("rb") as stream:
        encoding = json.detect_encoding(stream.read(4))
    if encoding.startswith("utf-8"):
        return file.data
    copy = _private(resources, "copy.json")
    try:
        with file.data.open(encoding=encoding, newline="") as text, copy.open("w", encoding="utf-8", newline="") as out:
            while chunk := text.read(CHUNK):
                out.write(chunk)
    except UnicodeError as error:
        raise InputError(ENCODING_MISMATCHED, path=file.path, encoding=encoding, error=error) from error
    return copy


def _private(resources: ExitStack, name: str) -> Path:
    path = resources.enter_context(private_folder()) / name
    os.close(create_private(path))
    return path


def _is_plain_lines(columns: ColumnTypes, data: Path) -> bool:
    """Whether a file is one object a line and nothing else, so that it can be read where it is; learns its columns.

    What is wrong with a file is left to the reading record by record, which knows the place.
    """
    try:
        for _ in _learn_beside(columns, _plain_lines(data)):
            pass
    except (_NotPlainError, InputError):
        return False
    return True


def _learn_beside(columns: ColumnTypes, parts: Iterator[RecordChunk]) -> Iterator[RecordChunk]:
    """Pass parts on while a thread learns their columns: most of that is polars, which works beside the scanner.

    The first fault in the file is the one that is raised.
    """
    with ThreadPoolExecutor(1) as beside:
        learned: Future[None] | None = None
        try:
            for part in parts:
                if learned is not None:
                    learned.result()
                learned = beside.submit(copy_context().run, columns.learn, part)
                yield part
        finally:
            if learned is not None:
                learned.result()


def _plain_lines(data: Path) -> Iterator[RecordChunk]:
    start, size = 0, _FIRST
    with data.open("rb", buffering=0) as file:
        while chunk := file.read(size):
            end = chunk.rfind(b"\n")
            if b"\r" in chunk or (end < 0 and file.read(1)):  # a record longer than a chunk
                raise _NotPlainError
            lines = chunk[:end] if end >= 0 else chunk
            yield RecordChunk(lines, lines.count(b"\n") + 1, start, start + len(lines))
            start, size = start + len(lines) + 1, CHUNK
            file.seek(start)


def _spool_records(document: Document, columns: ColumnTypes, resources: ExitStack) -> Path:
    records = _private(resources, "records.ndjson")
    with records.open("wb") as out:
        for part in _learn_beside(columns, document.records(columns.path)):
            out.write(part.lines)
            out.write(b"\n")
    return records


def _table(file: File, document: Document, columns: ColumnTypes, records: Path) -> Table:
    sequence = document.kind == "sequence"
    format = FORMATS["ndjson" if sequence else "json"]
    schema = columns.schema()
    if not columns.rows:
        return Table(pl.LazyFrame(schema={RAW: pl.String}), (), format, file.path.name, file, document)
    lines = pl.scan_lines(records, name=RAW, glob=False)
    ids = dict(zip(schema, column_ids(len(schema)), strict=True))
    exact = {key: dtype for key, dtype in schema.items() if dtype is not None}
    typed = [pl.col(_RECORD).struct.field(typed_id(ids[key])) for key in schema if key not in exact]
    if len(exact) == len(schema):
        fields = _typed_fields(exact)
        lines = lines.with_columns(pl.col(RAW).str.json_decode(pl.Struct(exact)).alias(_RECORD))
    else:
        kept = {key: None if _is_roles(key, dtype) else dtype for key, dtype in schema.items()}
        fields = {key: pl.col(_RECORD).struct.field(id_) for key, id_ in ids.items()}
        lines = lines.with_columns(_by_token(kept, ids).alias(_RECORD))
    frame = lines.select(RAW, *(field.alias(ids[key]) for key, field in fields.items()), *typed)
    loose = columns.rows == 1 and not sequence
    return Table(frame, tuple(schema), format, file.path.name, file, document, loose=loose)


def _typed_fields(schema: dict[str, DataType]) -> dict[str, pl.Expr]:
    field = pl.col(_RECORD).struct.field
    return {key: json_text(field(key)) if _is_roles(key, dtype) else field(key) for key, dtype in schema.items()}


def _is_roles(key: str, dtype: DataType | None) -> bool:
    return dtype is not None and dtype.is_nested() and has_role(key)


def _by_token(schema: dict[str, DataType | None], ids: dict[str, str]) -> pl.Expr:
    """The objects as records of the columns ``ids``, made from the text of each value.

    No parser of columns gives a number as it is spelled; only files with values that typed columns would change take
    this way.
    """
    texts_of = {key: typed_id(ids[key]) for key, dtype in schema.items() if dtype is None}
    made = pl.Struct(
        {id_: schema[key] or pl.String() for key, id_ in ids.items()} | dict.fromkeys(texts_of.values(), pl.Boolean())
    )

    def records(texts: pl.Series) -> pl.Series:
        tokens = tokens_of(texts, schema)
        typed = {id_: tokens[key].str.contains(_UNQUOTED).fill_null(False) for key, id_ in texts_of.items()}
        return (
            pl.DataFrame(list(tokens.values()), schema=list(ids.values()))
            .select(_value(pl.col(ids[key]), dtype).alias(ids[key]) for key, dtype in schema.items())
            .with_columns(**typed)
            .to_struct(RAW)
        )

    return pl.col(RAW).map_batches(records, made, is_elementwise=True)


def _value(token: pl.Expr, dtype: DataType | None) -> pl.Expr:
    """A value of a type from its text; ``None`` for text: of texts without their quotes, of all else as it stands."""
    if dtype is None or dtype == pl.String:
        text = pl.when(token.str.starts_with('"')).then(token)
        return pl.coalesce(text.str.json_decode(pl.String()), token)
    if dtype == pl.Boolean:
        return token.str.starts_with("t")
    return token.str.json_decode(dtype) if dtype.is_nested() else token.cast(dtype)
