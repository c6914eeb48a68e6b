"""The verbs of CSV, and its writer."""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, cast

import polars as pl

from bansong.base.errors import InputError, OutputError, Problem
from bansong.base.messages import gettext, gettext_noop
from bansong.base.options import ReadOptions
from bansong.base.schema import OUR_COLUMNS
from bansong.tables.csv.encoding import coding_named
from bansong.tables.csv.read import Dialect, explain_error, read, unescape, written_rows
from bansong.tables.format import Verbs, Written
from bansong.tables.streams import File, HoldEnd, open_file, packing_of, sink, unpacked_name
from bansong.tables.table import Enriched, Table, contract_name, escape_formula, flat, positional, refuse_binary

CHARACTER_NOT_ENCODABLE: Final = Problem(
    "csv.character_not_encodable",
    "{where}: {encoding} has no {character!r}; write the output with `output_encoding='utf-8-sig'`",
)

_CHUNK: Final = 1 << 20
_TEXTLESS: Final = {"bounce_prob", "bounced", "bounced_at", "duplicate_of"}


def write(result: Enriched, target: Path, stream: BinaryIO) -> pl.DataFrame:
    dialect, schema = dialect_for(result.table, target, result.encoding), result.frame.collect_schema()
    # the user's own cells stay as they are
    ours = [name for name, _ in result.layout if contract_name(name) in OUR_COLUMNS and schema[name] == pl.String]
    escaped = result.frame.with_columns(map(escape_formula, ours))
    titled = replace(result, frame=escaped).with_titles(lists=False)
    refuse_binary(titled, "CSV")
    rows = _format_times(flat(titled))
    query = _quote_cells(rows, result, dialect)
    stream.write(dialect.coding.mark)
    lacking: list[str] = []
    try:
        with _sink(stream, dialect, lacking, keep_end=dialect.ended or len(result.layout) == 1) as sink:
            sink.write(_heading(result, dialect).encode())
            sink.flush()
            written = query.sink_csv(
                sink,
                include_header=False,
                separator=dialect.delimiter,
                line_terminator=_line_end(dialect),
                quote_style=_quote_style(dialect),
                lazy=True,
            )
            _, tally = pl.collect_all([written, result.tally], engine="streaming")
    except Exception as error:  # polars does not pass on what it was, only what it said
        if not lacking:
            raise
        raise _unwritable(rows, result, dialect, lacking[0]) from error
    return tally


def dialect_for(table: Table, target: Path, encoding: str | None) -> Dialect:
    """Return the output's dialect: the input's, except for ``encoding`` and the delimiter of another extension."""
    dialect = table.source if isinstance(table.source, Dialect) else Dialect()
    delimiter = dialect.delimiter
    suffix = unpacked_name(target).suffix
    if table.file is None or table.file.name.suffix != suffix:
        tabs = suffix.lower() in (".tsv", ".tab")
        delimiter = "\t" if tabs else "," if delimiter == "\t" else delimiter
    own = coding = dialect.coding
    if encoding:  # the same by name keeps its no-break spaces
        coding = coding_named(encoding)
        coding = replace(coding, bare_cr=own.bare_cr, raw_spaces=own.raw_spaces and coding.codec == own.codec)
    prolog = dialect.prolog if delimiter == dialect.delimiter else _change_delimiter(dialect, delimiter)
    return replace(dialect, coding=coding, delimiter=delimiter, prolog=prolog, headed=True)


def _change_delimiter(dialect: Dialect, delimiter: str) -> str:
    """Change the delimiter of the lines above the header; ``sep=`` would name the old one."""
    out = io.StringIO()
    lines = csv.reader(io.StringIO(dialect.prolog, newline=""), delimiter=dialect.delimiter)
    writer = csv.writer(out, delimiter=delimiter, lineterminator=_line_end(dialect))
    named = ("sep=", f"sep={dialect.delimiter}")
    writer.writerows(line for line in lines if unescape("".join(line).lower()) not in named)
    return out.getvalue()


def _line_end(dialect: Dialect) -> Literal["\n", "\r\n", "\r"]:
    # the sink turns LF into CR for files of bare CR
    return "\n" if dialect.coding.bare_cr else dialect.line_end


def _heading(result: Enriched, dialect: Dialect) -> str:
    own = {f"c{place}": cell for place, cell in enumerate(dialect.header)}
    out = io.StringIO()
    writer = csv.writer(
        out,
        delimiter=dialect.delimiter,
        lineterminator=_line_end(dialect),
        quoting=csv.QUOTE_ALL if dialect.quoted_header else csv.QUOTE_MINIMAL,
    )
    writer.writerow([own.get(column, header) for column, header in result.layout])
    return dialect.prolog + out.getvalue()


def _format_times(frame: pl.LazyFrame) -> pl.LazyFrame:
    forms = {pl.Time: "%H:%M:%S%.f", pl.Datetime: "%Y-%m-%d %H:%M:%S%.f", pl.Duration: "iso"}
    schema = frame.collect_schema()
    zoned = [name for name, dtype in schema.items() if getattr(dtype, "time_zone", None)]
    return frame.with_columns(
        pl.col(name).dt.to_string("iso" if name in zoned else forms[dtype.base_type()])
        for name, dtype in schema.items()
        if dtype.base_type() in forms
    )


def _quote_style(dialect: Dialect) -> Literal["necessary", "non_numeric", "never"]:
    if not dialect.quoted:
        return "necessary"
    return "non_numeric" if len(dialect.quoted) == len(dialect.header) else "never"


def _quote_cells(rows: pl.LazyFrame, result: Enriched, dialect: Dialect) -> pl.LazyFrame:
    if not dialect.quoted:
        return rows
    rows = rows.with_columns(pl.all().cast(pl.String))
    if len(dialect.quoted) == len(dialect.header):  # polars quotes whatever is text
        return rows
    always = {f"c{place}" for place in dialect.quoted} | set(OUR_COLUMNS) - _TEXTLESS
    names = rows.collect_schema().names()
    return rows.with_columns(
        _in_quotes(pl.col(name), dialect.delimiter, always=contract_name(column) in always)
        for name, (column, _) in zip(names, result.layout, strict=True)
    )


def _in_quotes(cell: pl.Expr, delimiter: str, *, always: bool) -> pl.Expr:
    quoted = pl.concat_str(pl.lit('"'), cell.str.replace_all('"', '""', literal=True), pl.lit('"'))
    if not always:
        needs = pl.any_horizontal(cell.str.contains(mark, literal=True) for mark in ('"', delimiter, "\n", "\r"))
        quoted = pl.when(needs | (cell == "")).then(quoted).otherwise(cell)
    return quoted.alias(cell.meta.output_name())


def _unwritable(rows: pl.LazyFrame, result: Enriched, dialect: Dialect, character: str) -> OutputError:
    headers = [header for _, header in result.layout]
    names = rows.collect_schema().names()
    cells = positional(rows, names).with_columns(pl.all().cast(pl.String))
    held = [pl.col(f"c{place}").str.contains(character, literal=True).fill_null(False) for place in range(len(names))]
    found = cells.select(held).with_row_index("row").filter(pl.any_horizontal(pl.exclude("row"))).head(1)
    first = found.collect(engine="streaming")
    if character in _heading(result, dialect) or first.is_empty():
        where = gettext("the header")
    else:
        row, *holds = first.row(0)
        place = gettext_noop("row {row:,} below the header, column {header!r}")
        where = gettext(place, row=row + 1, header=headers[holds.index(True)])
    return OutputError(CHARACTER_NOT_ENCODABLE, where=where, encoding=dialect.coding, character=character)


@contextmanager
def _sink(file: BinaryIO, dialect: Dialect, lacking: list[str], *, keep_end: bool) -> Iterator[BinaryIO]:
    # lacking: gets the first character that the encoding does not have
    with ExitStack() as sinks:
        if not keep_end:
            end = dialect.line_end.encode(dialect.coding.codec)
            file = sinks.enter_context(cast("BinaryIO", HoldEnd(file, end)))
        if not dialect.coding.is_plain:
            file = sinks.enter_context(io.BufferedWriter(_Encoder(file, dialect, lacking), _CHUNK))
        yield file


class _Encoder(io.RawIOBase):
    """A sink that takes pieces of UTF-8 and writes another encoding or other line ends."""

    def __init__(self, file: BinaryIO, dialect: Dialect, lacking: list[str]) -> None:
        self._file = file
        self._bare_cr = dialect.coding.bare_cr
        self._lacking = lacking
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        self._encode = dialect.coding.encoder().encode

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        text = self._decode(bytes(data))
        try:
            self._file.write(self._encode(text.replace("\n", "\r") if self._bare_cr else text))
        except UnicodeEncodeError as error:
            self._lacking.append(text[error.start])
            raise
        return len(data)


class CsvVerbs(Verbs):
    """CSV and TSV, in the dialect of the input."""

    def read(self, file: File, wanted: ReadOptions, resources: ExitStack) -> Table:
        return read(file, wanted, resources)

    def render(self, result: Enriched, target: Path) -> Written:
        with sink(target, packing_of(target)) as stream:
            return Written(write(result, target, stream))

    def count(self, result: Enriched, path: Path) -> int:
        with ExitStack() as resources:
            file = open_file(path, resources)
            return written_rows(file, dialect_for(result.table, path, result.encoding), resources)

    def explain(self, table: Table, error: BaseException) -> InputError:
        if table.file is None or not isinstance(table.source, Dialect):
            return super().explain(table, error)
        return explain_error(table.file, table.source, error)
