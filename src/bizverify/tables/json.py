"""JSON ⇄ frames: an array of objects, an array inside a wrapper object, or one object a line (NDJSON).

The text of each object is carried along (:data:`~bizverify.tables.table.RAW`), so that JSON → JSON appends our
fields to the user's objects and leaves everything else in them as it was: order and absence of keys, nesting, ``1.10``.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import polars as pl

from bizverify.errors import InputError
from bizverify.model import ADDED_COLUMNS
from bizverify.tables.table import RAW, Enriched, Format, Table, column_ids, written_column

_ARRAY_SEPARATOR: Final = ",\n"
_decode_object: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_array: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


@dataclass(frozen=True, slots=True)
class Wrapper:
    """What stands before and after the array of objects in its file."""

    before: bytes = b""
    after: bytes = b""


def read(path: Path, format: Format) -> Table:
    """Open a JSON or NDJSON file. Numbers keep their type, texts stay text, nested values stay nested.

    A column whose values have several types is text. Raises :class:`InputError`, for NDJSON naming the line.
    """
    if format == "ndjson" or _is_lines(path):
        lines = pl.scan_lines(path, name=RAW, glob=False).select(pl.col(RAW).str.strip_chars("\ufeff \t\r"))
        return _table(path, "ndjson", lines.filter(pl.col(RAW) != ""), Wrapper())
    data = path.read_bytes().removeprefix(codecs.BOM_UTF8)
    try:
        # without the white space between tokens; the tokens themselves stay as they are written
        objects, wrapper = _array_in(path, msgspec.json.format(data, indent=-1))
        texts = [bytes(raw).decode() for raw in objects]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: is not valid JSON: {error}") from error
    return _table(path, "json", pl.LazyFrame({RAW: texts}, schema={RAW: pl.String}), wrapper)


def write(result: Enriched, target: Path, format: Format) -> pl.DataFrame:
    """Write an enriched table as an array of objects or as NDJSON; return the tally.

    Objects that came from JSON are kept as they stood, with our fields behind; ``reasons`` is a list.
    """
    wrapper = Wrapper()
    if isinstance(result.table.source, Wrapper):
        lines, wrapper = _appended(result), result.table.source
    else:
        lines = result.titled(lists=True).select(pl.struct(pl.all()).struct.json_encode())
    separator = "\n" if format == "ndjson" else _ARRAY_SEPARATOR
    with target.open("wb") as file:
        if format == "json":
            file.write(wrapper.before + b"[\n")
            file.flush()
        start = file.tell()
        sink = lines.sink_csv(file, include_header=False, quote_style="never", line_terminator=separator, lazy=True)
        _, tally = pl.collect_all([sink, result.tally], engine="streaming")
        if format == "json":
            end = file.seek(0, 2)
            file.seek(max(start, end - len(separator)))
            file.truncate()
            file.write(b"\n]" + wrapper.after + b"\n")
    return tally


def _is_lines(path: Path) -> bool:
    """Whether the first line is an object of its own and others follow."""
    with path.open("rb") as file:
        first, rest = file.readline().removeprefix(codecs.BOM_UTF8), file.readline()
        while rest and not rest.strip():
            rest = file.readline()
    try:
        _decode_object(first)
    except msgspec.MsgspecError:
        return False
    return bool(rest)


def _array_in(path: Path, data: bytes) -> tuple[list[msgspec.Raw], Wrapper]:
    """The objects of a document: its array, the one array of objects in its top object, or that object alone."""
    if data.startswith(b"["):
        return _decode_array(data), Wrapper()
    if not data.startswith(b"{"):
        raise InputError(f"{path}: holds no array of objects")
    fields = _decode_object(data)
    arrays = [key for key, raw in fields.items() if _is_array_of_objects(bytes(raw))]
    if len(arrays) > 1:
        raise InputError(f"{path}: holds several arrays of objects ({', '.join(arrays)}); keep the one to verify")
    if not arrays:
        return [msgspec.Raw(data)], Wrapper()
    parts = [(key, msgspec.json.encode(key) + b":" + bytes(raw)) for key, raw in fields.items()]
    place = list(fields).index(arrays[0])
    before = b"{" + b"".join(part + b"," for _, part in parts[:place]) + msgspec.json.encode(arrays[0]) + b":"
    after = b"".join(b"," + part for _, part in parts[place + 1 :]) + b"}"
    return _decode_array(fields[arrays[0]]), Wrapper(before, after)


def _is_array_of_objects(raw: bytes) -> bool:
    return raw.startswith(b"[") and raw[1:].lstrip()[:1] in (b"{", b"]")


def _table(path: Path, format: Format, lines: pl.LazyFrame, wrapper: Wrapper) -> Table:
    schema = _schema(path, lines)
    ids = column_ids(len(schema))
    record = pl.col(RAW).str.json_decode(pl.Struct(schema))
    fields = (pl.col("record").struct.field(name).alias(id_) for name, id_ in zip(schema, ids, strict=True))
    frame = lines.with_columns(record=record).select(RAW, *fields) if schema else lines
    return Table(frame, tuple(schema), format, path.name, path, wrapper)


def _schema(path: Path, lines: pl.LazyFrame) -> dict[str, pl.DataType]:
    """Every key of every object with its type; text where the types of a key do not agree."""
    texts = lines.collect(engine="streaming")[RAW]
    if texts.is_empty():
        return {}
    data = "\n".join(texts).encode()
    try:
        return dict(pl.read_ndjson(data, infer_schema_length=None).schema)
    except pl.exceptions.PolarsError:
        return dict.fromkeys(_keys(path, texts), pl.String())


def _keys(path: Path, texts: pl.Series) -> dict[str, None]:
    keys: dict[str, None] = {}
    for number, text in enumerate(texts, 1):
        try:
            keys |= dict.fromkeys(_decode_object(text))
        except msgspec.MsgspecError as error:
            raise InputError(f"{path}: record {number} is not a JSON object: {error}") from error
    return keys


def _appended(result: Enriched) -> pl.LazyFrame:
    """Each object's own text with our fields put behind its own."""
    added = [(column, header) for column, header in result.layout if column in ADDED_COLUMNS]
    replaced = {header for _, header in added} & set(result.table.headers)
    raw = pl.col(RAW)
    if replaced:
        raw = raw.map_batches(lambda texts: _without(texts, replaced), pl.String, is_elementwise=True)
    values = (written_column(column, lists=True).alias(header) for column, header in added)
    fields = pl.struct(values).struct.json_encode().str.slice(1)
    own = raw.str.strip_suffix("}").str.strip_chars_end()
    joint = pl.when(own == "{").then(pl.lit("")).otherwise(pl.lit(","))
    return result.frame.select(pl.concat_str(own, joint, fields))


def _without(texts: pl.Series, keys: set[str]) -> pl.Series:
    kept = (
        {key: raw for key, raw in _decode_object(text).items() if key not in keys} for text in texts
    )  # our own fields from an earlier run; only such files take this path
    return pl.Series([msgspec.json.encode(fields).decode() for fields in kept], dtype=pl.String)
