"""The verbs of JSON and NDJSON, and their writers."""

from __future__ import annotations

import json
from collections.abc import Collection
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from typing import BinaryIO, Final, cast

import polars as pl

from bansong.base.messages import ngettext
from bansong.base.schema import OUR_COLUMNS
from bansong.tables.format import Planned, ReadAs, Verbs, Written
from bansong.tables.json.read import Document, count, read
from bansong.tables.json.types import without
from bansong.tables.streams import File, open_file, packing_of, sink
from bansong.tables.table import (
    RAW,
    Enriched,
    Table,
    contract_name,
    json_text,
    refuse_binary,
    renamed_headers,
    typed_columns,
    typed_id,
    unique_names,
    written_column,
)

_CHUNK: Final = 1 << 20
_BARE: Final = r"^-?[0-9]+(?:\.[0-9]+)?$|^(?:true|false)$"
"""Numbers and truth values as the tables of workbooks spell them."""
_BOM: Final = b"\xef\xbb\xbf"


class _Held:
    """Passes bytes on but for the last few, which come to be known as the last only at the end: a separator."""

    def __init__(self, stream: BinaryIO, keep: int) -> None:
        self._stream = stream
        self._keep = keep
        self._held = b""

    def write(self, data: bytes) -> int:
        if len(data) >= self._keep:
            self._stream.write(self._held)
            self._stream.write(memoryview(data)[: -self._keep])
            self._held = bytes(data[-self._keep :])
        else:
            both = self._held + bytes(data)
            self._stream.write(both[: -self._keep])
            self._held = both[-self._keep :]
        return len(data)

    def flush(self) -> None:
        self._stream.flush()


def write_lines(result: Enriched, stream: BinaryIO) -> pl.DataFrame:
    """Write an enriched table as one object a line; return the tally. ``stream`` need not seek.

    Objects that came from JSON are kept as they stood, without the keys that the layout leaves out, with our fields
    behind; ``reasons`` is a list. Raises :class:`OutputError` for binary data.
    """
    return _sink_lines(result, _lines(result), stream, "\n")


def write_document(result: Enriched, stream: BinaryIO) -> pl.DataFrame:
    """Write an enriched table as a JSON document, as :func:`write_lines` writes its objects."""
    source = result.table.source if isinstance(result.table.source, Document) else None
    if source is not None and source.kind == "object":
        return write_lines(result, stream)
    lines = _lines(result)
    around = source if source is not None and source.path else None
    if around is not None:
        _copy(around, stream, 0, around.start)
    stream.write(b"[\n")
    tally = _sink_lines(result, lines, _Held(stream, 2), ",\n")
    stream.write(b"\n]")
    if around is not None:
        _copy(around, stream, around.end, None)
    else:
        stream.write(b"\n")
    return tally


def _lines(result: Enriched) -> pl.LazyFrame:
    if isinstance(result.table.source, Document):
        return _append_fields(result)
    titled, typed = result.with_titles(lists=True), typed_columns(result)
    refuse_binary(titled, "JSON")
    if typed:
        return result.frame.select(_objects(result, typed))
    return titled.select(pl.struct(pl.all()).struct.json_encode())


def not_finite(table: Table) -> tuple[str, ...]:
    """Warnings about columns of numbers with NaN or infinity, which JSON does not have; a pass over those columns."""
    schema = table.frame.collect_schema()
    floats = {id_: header for id_, header in zip(table.ids, table.headers, strict=True) if schema[id_].is_float()}
    if not floats:
        return ()
    found = table.frame.select((~pl.col(list(floats)).is_finite()).sum()).collect(engine="streaming")
    return tuple(
        ngettext(
            "column {header!r} has NaN or infinity in {count:,} row, which JSON cannot hold: null there",
            "column {header!r} has NaN or infinity in {count:,} rows, which JSON cannot hold: null there",
            count,
            header=floats[id_],
        )
        for id_, count in found.row(0, named=True).items()
        if count
    )


def _sink_lines(result: Enriched, lines: pl.LazyFrame, stream: BinaryIO | _Held, separator: str) -> pl.DataFrame:
    stream.flush()
    sink = lines.sink_csv(
        cast("BinaryIO", stream), include_header=False, quote_style="never", line_terminator=separator, lazy=True
    )
    _, tally = pl.collect_all([sink, result.tally], engine="streaming")
    return tally


def _copy(source: Document, stream: BinaryIO, start: int, end: int | None) -> None:
    """Copy a part of the file that was read, as it stands but for a byte order mark, which JSON must not have."""
    with source.data.open("rb") as file:
        file.seek(start)
        left = source.data.stat().st_size if end is None else end - start
        first = start == 0
        while left > 0 and (chunk := file.read(min(_CHUNK, left))):
            left -= len(chunk)
            stream.write(chunk.removeprefix(_BOM) if first else chunk)
            first = False


def _objects(result: Enriched, typed: Collection[str]) -> pl.Expr:
    """Each row as an object; in a column of text, what was a number or a truth value is one again."""
    names = unique_names([header for _, header in result.layout])
    pieces = []
    for apart, group in groupby(zip(result.layout, names, strict=True), lambda named: named[0][0] in typed):
        fields = [(column, name) for (column, _), name in group]
        if not apart:
            struct = pl.struct(written_column(column, lists=True).alias(name) for column, name in fields)
            pieces.append(struct.struct.json_encode().str.slice(1).str.strip_suffix("}"))
        for column, name in fields if apart else ():
            pieces.append(pl.concat_str(pl.lit(f"{json.dumps(name, ensure_ascii=False)}:"), _token(column)))
    return pl.concat_str(pl.lit("{"), pl.concat_str(pieces, separator=","), pl.lit("}"))


def _token(column: str) -> pl.Expr:
    bare = pl.col(typed_id(column)) & pl.col(column).str.contains(_BARE)
    return pl.when(bare).then(pl.col(column)).otherwise(json_text(pl.col(column)).fill_null("null"))


def _append_fields(result: Enriched) -> pl.LazyFrame:
    added = [(column, header) for column, header in result.layout if contract_name(column) in OUR_COLUMNS]
    laid_out = {column for column, _ in result.layout}
    table = result.table
    dropped = {header for id_, header in zip(table.ids, table.headers, strict=True) if id_ not in laid_out}
    raw = pl.col(RAW)
    if dropped:
        raw = raw.map_batches(lambda texts: without(texts, dropped), pl.String, is_elementwise=True)
    if not added:
        return result.frame.select(raw)
    values = (written_column(column, lists=True).alias(header) for column, header in added)
    fields = pl.struct(values).struct.json_encode().str.slice(1)
    own = raw.str.strip_suffix("}").str.strip_chars_end()
    joint = pl.when(own == "{").then(pl.lit("")).otherwise(pl.lit(","))
    return result.frame.select(pl.concat_str(own, joint, fields))


class JsonVerbs(Verbs):
    """JSON documents; what stands around the records of one stands around them in the output."""

    def read(self, file: File, wanted: ReadAs, resources: ExitStack) -> Table:
        """Open a document, or lines of objects in a file that is called one."""
        return read(file, wanted.json_path, resources, lines=False)

    def check(self, table: Table, planned: Planned) -> tuple[str, ...]:
        """Return warnings about headers that repeat or are blank, and about NaN and infinity."""
        if isinstance(table.source, Document):
            return ()
        return (*renamed_headers(planned.headers, self.format), *not_finite(table))

    def render(self, result: Enriched, target: Path) -> Written:
        """Write an array of objects."""
        with sink(target, packing_of(target)) as stream:
            return Written(write_document(result, stream))

    def count(self, result: Enriched, path: Path) -> int:
        """Count the records of the array that was written."""
        source = result.table.source
        inner = source.path if isinstance(source, Document) else None
        with ExitStack() as resources:
            return count(open_file(path, resources), inner or None, resources, lines=False)


class NdjsonVerbs(JsonVerbs):
    """One object a line."""

    def read(self, file: File, wanted: ReadAs, resources: ExitStack) -> Table:
        """Open lines of objects, or a document in a file that is called so."""
        return read(file, wanted.json_path, resources, lines=True)

    def render(self, result: Enriched, target: Path) -> Written:
        """Write one object a line."""
        with sink(target, packing_of(target)) as stream:
            return Written(write_lines(result, stream))

    def count(self, _result: Enriched, path: Path) -> int:
        """Count the objects."""
        with ExitStack() as resources:
            return count(open_file(path, resources), None, resources, lines=True)
