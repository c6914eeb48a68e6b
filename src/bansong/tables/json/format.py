"""The verbs of JSON and NDJSON, and their writers."""

from __future__ import annotations

import codecs
import json
from collections.abc import Collection
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from typing import BinaryIO, Final, cast

import polars as pl

from bansong.base.messages import ngettext
from bansong.base.options import ReadOptions
from bansong.base.schema import OUR_COLUMNS
from bansong.tables.format import Planned, Verbs, Written
from bansong.tables.json.read import Document, count, read
from bansong.tables.json.types import without
from bansong.tables.streams import File, HoldEnd, open_file, packing_of, sink
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
# numbers and truth values as the tables of workbooks spell them
_BARE: Final = r"^-?[0-9]+(?:\.[0-9]+)?$|^(?:true|false)$"


def write_lines(result: Enriched, stream: BinaryIO) -> pl.DataFrame:
    """Write one object a line; those from JSON keep their text, with our fields behind."""
    return _sink_lines(result, _lines(result), stream, "\n")


def write_document(result: Enriched, stream: BinaryIO) -> pl.DataFrame:
    source = result.table.source
    if isinstance(source, Document) and source.kind == "object":
        return write_lines(result, stream)
    lines = _lines(result)
    around = source if isinstance(source, Document) and source.path else None
    if around:
        _copy(around.data, stream, 0, around.start)
    stream.write(b"[\n")
    with HoldEnd(stream, b",\n") as held:
        tally = _sink_lines(result, lines, cast("BinaryIO", held), ",\n")
    stream.write(b"\n]" if around else b"\n]\n")
    if around:
        _copy(around.data, stream, around.end, around.data.stat().st_size)
    return tally


def _lines(result: Enriched) -> pl.LazyFrame:
    if isinstance(result.table.source, Document):
        return _append_fields(result)
    titled, typed = result.with_titles(lists=True), typed_columns(result)
    refuse_binary(titled, "JSON")
    if typed:
        return result.frame.select(_objects(result, typed))
    return titled.select(pl.struct(pl.all()).struct.json_encode())


def _warn_not_finite(table: Table) -> tuple[str, ...]:
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


def _sink_lines(result: Enriched, lines: pl.LazyFrame, stream: BinaryIO, separator: str) -> pl.DataFrame:
    stream.flush()
    sink = lines.sink_csv(stream, include_header=False, quote_style="never", line_terminator=separator, lazy=True)
    _, tally = pl.collect_all([sink, result.tally], engine="streaming")
    return tally


def _copy(data: Path, stream: BinaryIO, start: int, end: int) -> None:
    with data.open("rb") as file:
        # JSON must not have a byte order mark
        if start == 0 and file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8:
            start = len(codecs.BOM_UTF8)
        file.seek(start)
        for place in range(start, end, _CHUNK):
            stream.write(file.read(min(_CHUNK, end - place)))


def _objects(result: Enriched, typed: Collection[str]) -> pl.Expr:
    names = unique_names([header for _, header in result.layout])
    pieces = []
    for apart, group in groupby(zip(result.layout, names, strict=True), lambda named: named[0][0] in typed):
        fields = [(column, name) for (column, _), name in group]
        if not apart:
            struct = pl.struct(written_column(column, lists=True).alias(name) for column, name in fields)
            pieces.append(struct.struct.json_encode().str.slice(1).str.strip_suffix("}"))
        for column, name in fields if apart else ():
            bare, text = pl.col(typed_id(column)) & pl.col(column).str.contains(_BARE), pl.col(column)
            token = pl.when(bare).then(text).otherwise(json_text(text).fill_null("null"))
            pieces.append(pl.concat_str(pl.lit(f"{json.dumps(name, ensure_ascii=False)}:"), token))
    return pl.concat_str(pl.lit("{"), pl.concat_str(pieces, separator=","), pl.lit("}"))


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
    """JSON documents; the text around the records stays around them in the output."""

    lines = False
    write = staticmethod(write_document)

    def read(self, file: File, wanted: ReadOptions, resources: ExitStack) -> Table:
        return read(file, wanted, resources, lines=self.lines)

    def check(self, table: Table, planned: Planned) -> tuple[str, ...]:
        if isinstance(table.source, Document):
            return ()
        return (*renamed_headers(planned.headers, self.format), *_warn_not_finite(table))

    def render(self, result: Enriched, target: Path) -> Written:
        with sink(target, packing_of(target)) as stream:
            return Written(self.write(result, stream))

    def count(self, result: Enriched, path: Path) -> int:
        source = result.table.source
        inner = source.path if isinstance(source, Document) and not self.lines else ""
        with ExitStack() as resources:
            return count(open_file(path, resources), inner, resources, lines=self.lines)


class NdjsonVerbs(JsonVerbs):
    """NDJSON: one object a line."""

    lines = True
    write = staticmethod(write_lines)
