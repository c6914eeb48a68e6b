"""Read and write Parquet files."""
# pyarrow decodes, since polars ends the process at some damaged pages. The user's columns, the schema and its metadata
# are copied without polars, which has fewer types than Parquet.

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl
from polars.io.plugins import register_io_source

from bansong.base.errors import InputError, Problem
from bansong.base.files import private_folder
from bansong.base.isolation import limits, or_raise_limit
from bansong.base.messages import gettext, gettext_noop
from bansong.base.options import ReadOptions
from bansong.tables.frames import nested_roles
from bansong.tables.streams import File, open_file
from bansong.tables.table import (
    AS_FOUND,
    Enriched,
    Planned,
    Table,
    Verbs,
    Written,
    renamed_headers,
    unique_names,
    written_column,
)

if TYPE_CHECKING:
    import pyarrow as pa

ROW_GROUP_TOO_LARGE: Final = Problem("limits.row_group_too_large", "{path}: row group {place} {what}; {remedy}")
PARQUET_UNREADABLE: Final = Problem("parquet.parquet_unreadable", "{path}: is not a readable Parquet file: {reason}")
PARQUET_ENCRYPTED: Final = Problem("parquet.parquet_encrypted", "{path}: is encrypted; write it without encryption")
COLUMN_TYPE_UNUSABLE: Final = Problem(
    "parquet.column_type_unusable", "{path}: column {name!r} holds {what}; make them text or narrower"
)

_GROUP: Final = 1 << 18
_BATCH: Final = 1 << 16
_TAIL: Final = 8
_DIGITS: Final = 38
_NO_TEXT: Final = r"[\x00-\x08\x0e-\x1f]"
_UNREADABLE: Final = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError)


@dataclass(frozen=True, slots=True)
class Schema:
    """What an output keeps of a Parquet file: the Arrow schema, and the compression of each leaf column."""

    arrow: pa.Schema
    codecs: dict[str, str]


class ParquetVerbs(Verbs):
    """Parquet files, where ``reasons`` is a list of strings."""

    def read(self, file: File, _wanted: ReadOptions, _resources: ExitStack) -> Table:
        import pyarrow as pa

        schema, notes = _open_schema(file)
        _refuse_wide_decimals(file, schema.arrow)
        headers = tuple(schema.arrow.names)
        try:
            texts = _unmarked_texts(file, schema.arrow)
            found = _frame(schema.arrow.empty_table(), range(len(headers)), texts).schema
        except (*_UNREADABLE, pa.ArrowException) as error:
            raise _unreadable(file, error) from error
        frame = register_io_source(partial(_decode_file, file, headers, texts), schema=found, is_pure=True)
        notes = (*notes, *nested_roles(headers, found.dtypes()))
        return Table(frame, headers, self.format, file.path.name, file, schema, notes)

    def check(self, table: Table, planned: Planned) -> tuple[str, ...]:
        return () if isinstance(table.source, Schema) else renamed_headers(planned.headers, self.format)

    def splice(self, result: Enriched, target: Path) -> Written | None:
        if result.table.file is None or not isinstance(result.table.source, Schema):
            return None
        return Written(_extend_file(result, result.table.file, result.table.source, target))

    def render(self, result: Enriched, target: Path) -> Written:
        sink = result.with_titles(lists=True).sink_parquet(target, row_group_size=_GROUP, lazy=True)
        _, tally = pl.collect_all([sink, result.tally], engine="streaming")
        return Written(tally)

    def count(self, _result: Enriched, path: Path) -> int:
        with ExitStack() as resources:
            return self.read(open_file(path, resources), AS_FOUND, resources).count()


def _unmarked_texts(file: File, arrow: pa.Schema) -> frozenset[int]:
    import pyarrow as pa
    import pyarrow.compute as pc

    found = {place for place, field in enumerate(arrow) if field.type in (pa.binary(), pa.large_binary())}
    names = sorted({arrow.names[place] for place in found})
    read = [place for place, name in enumerate(arrow.names) if name in names]
    with _parquet(file) as parquet:
        for batch in parquet.iter_batches(batch_size=_BATCH, columns=names) if found else ():
            for place, column in zip(read, batch.columns, strict=True):
                try:
                    if place in found and pc.any(pc.match_substring_regex(column.cast(pa.string()), _NO_TEXT)).as_py():
                        found.remove(place)
                except pa.ArrowInvalid:
                    found.remove(place)
            if not found:
                break
    return frozenset(found)


def _decode_file(
    file: File,
    headers: tuple[str, ...],
    texts: frozenset[int],
    ids: list[str] | None,
    predicate: pl.Expr | None,
    most: int | None,
    _: int | None,
) -> Iterator[pl.DataFrame]:
    left = most
    names = None if ids is None else [headers[int(id_.removeprefix("c"))] for id_ in ids or ["c0"]]
    read = [place for place, header in enumerate(headers) if names is None or header in names]
    with _parquet(file) as parquet:
        for frame in _frames(file, parquet.iter_batches(batch_size=_BATCH, columns=names), read, texts):
            chosen = frame if ids is None else frame.select(ids) if ids else pl.DataFrame(height=frame.height)
            if left is not None:
                chosen, left = chosen.head(left), max(left - frame.height, 0)
            yield chosen if predicate is None else chosen.filter(predicate)
            if left == 0:
                return


def _frames(file: File, batches: Iterator[Any], places: Sequence[int], texts: frozenset[int]) -> Iterator[pl.DataFrame]:
    import pyarrow as pa

    try:
        yield from (_frame(batch, places, texts) for batch in batches)
    except (*_UNREADABLE, pa.ArrowException) as error:
        raise _unreadable(file, error) from error


def _frame(arrow: Any, places: Sequence[int], texts: frozenset[int]) -> pl.DataFrame:
    frame = pl.from_arrow(arrow.rename_columns([f"c{place}" for place in places]))
    assert isinstance(frame, pl.DataFrame)  # noqa: S101 - a table becomes a frame
    return frame.with_columns(pl.col(f"c{place}").cast(pl.String) for place in places if place in texts)


def _parquet(file: File) -> Any:
    import pyarrow.parquet as pq

    return pq.ParquetFile(file.data, coerce_int96_timestamp_unit="us")


def _open_schema(file: File) -> tuple[Schema, tuple[str, ...]]:
    import pyarrow as pa

    with file.data.open("rb") as stream:
        stream.seek(max(0, file.data.stat().st_size - _TAIL))
        if stream.read().endswith(b"PARE"):
            raise InputError(PARQUET_ENCRYPTED, path=file.path)
    try:
        with _parquet(file) as parquet:
            footer, arrow = parquet.metadata, parquet.schema_arrow
            old = [column.name for column in parquet.schema if column.physical_type == "INT96"]
            _refuse_inflating(file, footer)
            codecs = _leaves_codecs(parquet)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _unreadable(file, error) from error
    notes = tuple(
        gettext("column {name!r}: its old timestamps (INT96) are written in microseconds", name=name) for name in old
    )
    return Schema(arrow, codecs), notes


def _leaves_codecs(parquet: Any) -> dict[str, str]:
    if not parquet.num_row_groups:
        return {}
    # a row is read first, to raise for an unknown codec: asked for its name, pyarrow would end the process
    next(parquet.iter_batches(batch_size=1, row_groups=[0]), None)
    group = parquet.metadata.row_group(0)
    return {chunk.path_in_schema: chunk.compression.lower() for chunk in _chunks(group)}


def _refuse_wide_decimals(file: File, arrow: pa.Schema) -> None:
    wide = gettext_noop("decimals of {precision} digits, more than {digits}")
    for field in arrow:
        if (precision := getattr(field.type, "precision", 0)) > _DIGITS:
            what = gettext(wide, precision=precision, digits=_DIGITS)
            raise InputError(COLUMN_TYPE_UNUSABLE, path=file.path, name=field.name, what=what)


def _refuse_inflating(file: File, footer: Any) -> None:
    most = max(limits().cells, limits().ratio * file.data.stat().st_size)
    for place in range(footer.num_row_groups):
        group = footer.row_group(place)
        chunks = list(_chunks(group))
        size = sum(chunk.total_uncompressed_size for chunk in chunks)
        if size > limits().inflated:
            raise _too_large(file, place, gettext("unfolds to {size:,} bytes", size=size), "inflated")
        if max(sum(chunk.num_values for chunk in chunks), group.num_rows) > most:
            what = gettext("claims {num_rows:,} rows, more than its size can mean", num_rows=group.num_rows)
            raise _too_large(file, place, what, "cells")


def _too_large(file: File, place: int, what: str, limit: str) -> InputError:
    remedy = gettext("write it in smaller row groups{or_raise}", or_raise=or_raise_limit(limit))
    return InputError(ROW_GROUP_TOO_LARGE, path=file.path, place=place + 1, what=what, remedy=remedy)


def _chunks(group: Any) -> Iterator[Any]:
    return (group.column(place) for place in range(group.num_columns))


def _extend_file(result: Enriched, file: File, schema: Schema, target: Path) -> pl.DataFrame:
    import pyarrow as pa
    import pyarrow.parquet as pq

    ids = set(result.table.ids)
    ours = [column for column, _ in result.layout if column not in ids]
    with private_folder() as folder:
        added = folder / "added.parquet"
        columns = result.frame.select(written_column(column, lists=True) for column in ours)
        sink = columns.sink_parquet(added, compression="lz4", row_group_size=_GROUP, lazy=True)
        _, tally = pl.collect_all([sink, result.tally], engine="streaming")
        try:
            with _parquet(file) as theirs, pq.ParquetFile(added) as mine:
                _side_by_side(result, theirs, mine, schema, target)
        except pa.ArrowException as error:
            raise _unreadable(file, error) from error
    return tally


def _side_by_side(result: Enriched, theirs: Any, mine: Any, schema: Schema, target: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrow = _output_schema(result, theirs.schema_arrow, mine.schema_arrow)
    places = {id_: place for place, id_ in enumerate(result.table.ids)}
    added = _Rows(mine)
    with pq.ParquetWriter(target, arrow, compression=_codecs(schema, arrow), version="2.6") as writer:
        batches = _Rows(theirs)
        while (batch := batches.take(_GROUP)).num_rows:
            own = added.take(batch.num_rows)
            columns = [
                batch.column(places[column]) if column in places else own.column(column) for column, _ in result.layout
            ]
            table = pa.Table.from_arrays(columns, names=arrow.names).cast(arrow)
            writer.write_table(table, row_group_size=_GROUP)


class _Rows:
    def __init__(self, parquet: Any) -> None:
        self._batches = parquet.iter_batches(batch_size=_BATCH)
        self._held: Any = None
        self._empty = parquet.schema_arrow.empty_table()

    def take(self, count: int) -> Any:
        import pyarrow as pa

        held = [self._held] if self._held else []
        while sum(len(table) for table in held) < count and (batch := next(self._batches, None)) is not None:
            held.append(pa.Table.from_batches([batch]))
        self._held = pa.concat_tables(held) if held else self._empty
        taken, self._held = self._held.slice(0, count), self._held.slice(count)
        return taken


def _output_schema(result: Enriched, theirs: pa.Schema, mine: pa.Schema) -> pa.Schema:
    import pyarrow as pa

    places = {id_: place for place, id_ in enumerate(result.table.ids)}
    names = unique_names([header for _, header in result.layout])
    fields = [
        theirs.field(places[column]) if column in places else pa.field(name, _usual(mine.field(column).type))
        for (column, _), name in zip(result.layout, names, strict=True)
    ]
    return pa.schema(fields, theirs.metadata)


def _usual(type_: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_large_list(type_):
        return pa.list_(_usual(type_.value_type))
    return pa.string() if pa.types.is_large_string(type_) else type_


def _codecs(schema: Schema, arrow: pa.Schema) -> dict[str, str] | str:
    """Return the compression of each leaf column: the user's keep theirs, ours get the most frequent one."""
    import pyarrow as pa

    added = [column for column in arrow.names if column not in schema.arrow.names]
    usual = Counter(schema.codecs.values()).most_common(1)[0][0] if schema.codecs else "snappy"
    lists = [name for name in added if pa.types.is_list(arrow.field(name).type)]
    ours = [*(name for name in added if name not in lists), *(f"{name}.list.element" for name in lists)]
    codecs = {**schema.codecs, **dict.fromkeys(ours, usual)}
    return {leaf: "none" if codec == "uncompressed" else codec for leaf, codec in codecs.items()}


def _unreadable(file: File, error: BaseException) -> InputError:
    return InputError(PARQUET_UNREADABLE, path=file.path, reason=str(error).splitlines()[0])
