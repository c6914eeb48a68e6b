"""A user's file as a lazy table, its format, and the enriched table that is to be written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Final, cast

import polars as pl
from polars.datatypes import DataTypeClass

from bansong.base.errors import InputError, OutputError, Problem
from bansong.base.messages import Lang, advise, gettext, gettext_noop, parameter
from bansong.base.option import specs_of
from bansong.base.options import ReadOptions
from bansong.base.schema import OUR_COLUMNS, REASON_SEPARATOR
from bansong.tables.streams import File

FILE_UNREADABLE: Final = Problem("files.file_unreadable", "{path}: cannot be read: {reason}")
OUTPUT_TOO_WIDE: Final = Problem(
    "excel.output_too_wide",
    "the output's {width:,} columns are more than a sheet has ({max_columns:,}); give "
    "`output='OUT.csv'` or OUT.parquet, or keep fewer with `select=`",
)


AS_FOUND: Final = ReadOptions()
INPUTS_OF: Final = {spec.name: spec.inputs for spec in specs_of(ReadOptions) if spec.inputs}


def wanted_sheet(wanted: ReadOptions) -> str | None:
    """Return the one sheet to read; ``None`` leaves the choice to the reader."""
    return wanted.sheet if isinstance(wanted.sheet, str) else None


class Evidence(IntEnum):
    """The certainty that a file has a format. The best evidence wins."""

    POSSIBLE = 1
    LIKELY = 2
    CERTAIN = 3


@dataclass(frozen=True)
class Look:
    """The name and first bytes of a file, and the user's options for reading."""

    file: File
    head: bytes
    wanted: ReadOptions

    @cached_property
    def suffix(self) -> str:
        return self.file.name.suffix.lower()


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities of a format beyond a table of texts below one header line."""

    # Where such files are taken from
    in_folders: bool = True
    uploads: bool = True
    # Writing
    written: bool = True  # an output of a format that is only read is an .xlsx
    text: bool = False  # may be packed, and shown on a terminal
    splices_sheets: bool = False  # several sheets of one file go back into one output
    spliced_only: tuple[str, ...] = ()  # extensions of files that are extended and never made anew
    titles: bool = False  # a new file has the title rows above the header again
    summary: bool = False
    korean_headers: bool = False
    formulas: bool = False  # a spreadsheet takes some texts of such a file for formulas
    max_columns: int | None = None
    left_behind: str = ""  # message on what a new workbook lacks of the input


@dataclass(frozen=True, slots=True)
class Planned:
    """An output that is to be written."""

    path: Path
    headers: tuple[str, ...]
    leaves_out: bool = False  # the output lacks some of the user's columns
    in_place: bool = False
    summary: bool = False  # the output has a summary sheet


@dataclass(frozen=True, slots=True)
class Written:
    """A finished output: the tally of the pass that wrote it, and its rows if the writer counted them."""

    tally: pl.DataFrame
    rows: int | None = None


class Verbs(ABC):
    """The code of a format. A read-only format needs :meth:`read` alone."""

    def __init__(self, format: Format) -> None:
        self.format = format

    @abstractmethod
    def read(self, file: File, wanted: ReadOptions, resources: ExitStack) -> Table:
        """Open a file as a lazy table; temporary files live as long as ``resources``."""

    def check(self, table: Table, planned: Planned) -> tuple[str, ...]:  # noqa: ARG002 - for others
        """Refuse what the format cannot write, before any purchase; return warnings about changed values."""
        return ()

    def splice(self, result: Enriched, target: Path) -> Written | None:  # noqa: ARG002
        """Write the input's own bytes with one insertion per row; return ``None`` if rows must be rendered anew."""
        return None

    def render(self, result: Enriched, target: Path) -> Written:
        raise NotImplementedError(self.format.name)

    def count(self, result: Enriched, path: Path) -> int:
        raise NotImplementedError(self.format.name)

    def explain(self, table: Table, error: BaseException) -> InputError:
        """Return the error for a part of a file that polars could not read; lazy readers fail inside the query."""
        return InputError(FILE_UNREADABLE, path=table.path, reason=str(error).splitlines()[0])


@dataclass(frozen=True, eq=False)
class Format:
    """A file format. Its code (``module:class``) is imported on first use: a run needs one or two of them."""

    name: str
    extensions: tuple[str, ...] = ()  # the usual one first
    detect: Callable[[Look], Evidence | None] = lambda _: None
    code: str = ""
    can: Capabilities = Capabilities()

    def __str__(self) -> str:
        return self.name

    @cached_property
    def verbs(self) -> Verbs:
        module, _, name = self.code.partition(":")
        return cast(Verbs, getattr(import_module(module), name)(self))

    def takes(self, option: str) -> bool:
        return self.name in INPUTS_OF[option].formats

    def refuse_wide(self, columns: int) -> None:
        most = self.can.max_columns
        if most is not None and columns > most:
            raise OutputError(OUTPUT_TOO_WIDE, width=columns, max_columns=most)


FRAME: Final = Format("frame")


BINARY_NOT_WRITABLE: Final = Problem(
    "files.binary_not_writable", "column {name!r} holds binary data, which {format} cannot hold; write Parquet"
)

TEXTS: Final = (pl.String, pl.Categorical, pl.Enum)
KEPT: Final = "kept"  # contract name of columns that people added to an earlier output: `kept+1`, `kept+2`, …
RAW: Final = "raw"  # a JSON table's extra column: the text of each object as it stands in the file
SAMPLE_ROWS: Final = 1000  # rows by which columns are chosen
_SHOWN_HEADERS: Final = 5
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
_ABOVE_FORMULA: Final = "A"  # the first text behind all that begin with one of :data:`_FORMULA`


def advise_sheet(name: str) -> str:
    another = gettext("{sheet} takes another", sheet=parameter("sheet", name))
    return advise("sheet", another, gettext("the one that is meant must be the first"))


@dataclass(frozen=True, slots=True)
class Table:
    """A file (or a frame in memory) with a header, read lazily; ``headers`` may repeat, be blank or clash with ours."""

    # columns: ``c0``, ``c1``, … in file order, plus :data:`RAW` for JSON and the Boolean columns of :func:`typed_id`

    frame: pl.LazyFrame
    headers: tuple[str, ...]
    format: Format
    name: str
    file: File | None = None
    source: object = None  # what the writer needs to give the same file back: dialect, sheet, wrapper
    notes: tuple[str, ...] = ()
    above: int = 0  # lines above the last line of the header
    rows: int | None = None  # if the reader has counted
    titles: int = 0  # lines above the first line of the header
    title_rows: tuple[tuple[str | None, ...], ...] = ()  # of a workbook, as texts
    sheets: tuple[str, ...] = ()  # a workbook's visible ones with business numbers, if the reader looked for them
    first_row: int = 1  # its number in messages
    loose: bool = False  # it may be no table at all, but prose in one column or a single JSON object
    beginning: pl.LazyFrame | None = None  # `SAMPLE_ROWS` or more, if ``frame`` reads far ahead

    @property
    def path(self) -> Path | None:
        return self.file.path if self.file else None

    @property
    def ids(self) -> list[str]:
        return column_ids(len(self.headers))

    def head(self, rows: int) -> pl.LazyFrame:
        return (self.frame if self.beginning is None else self.beginning).head(rows)

    def count(self) -> int:
        if self.rows is not None:
            return self.rows
        # numbering streams; ``pl.len()`` of a CSV file would map the whole of it into memory
        last = self.frame.with_row_index("row").select(pl.col("row").max())
        return int(last.collect(engine="streaming").fill_null(-1).cast(pl.Int64).item()) + 1


@dataclass(frozen=True, slots=True)
class Section:
    """A titled block of figures on a workbook's summary sheet."""

    title: str
    rows: tuple[tuple[str, int], ...]  # what is counted, how many


@dataclass(frozen=True, slots=True)
class Enriched:
    """A table with the added columns under their contract names, ``reasons`` as text."""

    table: Table
    frame: pl.LazyFrame
    layout: tuple[tuple[str, str], ...]  # the output's columns: column of the frame, header
    tally: pl.LazyFrame  # one row over the same rows, collected in the pass that writes
    summary: Callable[[pl.DataFrame], tuple[Section, ...]] | None = None  # makes a summary sheet of the tally
    record_columns: frozenset[int] = frozenset()  # places of number, name and address, where known
    warn: Callable[[str], object] = lambda _: None  # for warnings that are known only once the output is written
    lang: Lang = "en"  # of the words in the place of codes
    encoding: str | None = None  # of a CSV output, by default the input's own

    def with_titles(self, layout: Sequence[tuple[str, str]] | None = None, *, lists: bool) -> pl.LazyFrame:
        layout = self.layout if layout is None else layout
        names = unique_names([header for _, header in layout])
        return self.frame.select(
            written_column(column, lists=lists).alias(name) for (column, _), name in zip(layout, names, strict=True)
        )


def written_column(column: str, *, lists: bool) -> pl.Expr:
    cell = pl.col(column)
    return cell.str.split(REASON_SEPARATOR) if contract_name(column) == "reasons" and lists else cell


def typed_id(id_: str) -> str:
    """Return the name of the Boolean column for texts that are numbers, dates, times or truth values in the file."""
    return f"{id_}:typed"


def typed_columns(result: Enriched) -> list[str]:
    there = set(result.frame.collect_schema().names())
    return [column for column, _ in result.layout if typed_id(column) in there]


def contract_name(column: str) -> str:
    """Return the contract name of an added column: ``action`` also of ``action+2``, its copy."""
    return column.partition("+")[0]


def is_added(column: str) -> bool:
    """Whether a column of an output is behind the input's: ours, or one that people added to an earlier output."""
    return contract_name(column) in (*OUR_COLUMNS, KEPT)


def with_copies(frame: pl.LazyFrame, layout: Sequence[tuple[str, str]]) -> pl.LazyFrame:
    copies = [column for column, _ in layout if contract_name(column) not in (column, KEPT)]
    return frame.with_columns(pl.col(contract_name(column)).alias(column) for column in copies)


def column_ids(count: int) -> list[str]:
    return [f"c{position}" for position in range(count)]


def positional(frame: pl.LazyFrame, names: list[str]) -> pl.LazyFrame:
    ids = column_ids(len(names))
    return frame.select(pl.col(name).alias(id_) for name, id_ in zip(names, ids, strict=True))


def unique_names(headers: list[str]) -> list[str]:
    """Return headers with ``_2``, ``_3``, … behind repeated ones and ``column_N`` for blank ones."""
    taken = set(headers)
    seen: set[str] = set()
    names = []
    for position, header in enumerate(headers, 1):
        name, again = header or f"column_{position}", 2
        while name in seen or (name != header and name in taken):
            name, again = f"{header or f'column_{position}'}_{again}", again + 1
        seen.add(name)
        names.append(name)
    return names


def renamed_headers(headers: Sequence[str], format: Format) -> tuple[str, ...]:
    pairs = zip(headers, unique_names(list(headers)), strict=True)
    renamed = [gettext("{header!r} is {name!r}", header=own, name=name) for own, name in pairs if own != name]
    if not renamed:
        return ()
    named = ", ".join(renamed[:_SHOWN_HEADERS])
    named = gettext("{named} and so on", named=named) if len(renamed) > _SHOWN_HEADERS else named
    text = gettext_noop("headers that repeat or are blank get names of their own, as {format} needs: {named}")
    return (gettext(text, format=format.name, named=named),)


def escape_formula(column: str) -> pl.Expr:
    text = pl.col(column)
    low = pl.when(text < _ABOVE_FORMULA).then(text)  # one comparison excludes most texts
    escaped = "'" + pl.when(low.str.slice(0, 1).is_in(_FORMULA)).then(low)
    return pl.coalesce(escaped, text).alias(column)


def flat(frame: pl.LazyFrame) -> pl.LazyFrame:
    nested = [name for name, dtype in frame.collect_schema().items() if dtype.is_nested()]
    return frame.with_columns(json_text(pl.col(name)).alias(name) for name in nested)


def json_text(value: pl.Expr) -> pl.Expr:
    wrapped = pl.struct(value.alias("v")).struct.json_encode()
    return pl.when(value.is_not_null()).then(wrapped.str.slice(5).str.strip_suffix("}"))


def refuse_binary(frame: pl.LazyFrame, format: str) -> None:
    for name, dtype in frame.collect_schema().items():
        if _holds_binary(dtype):
            raise OutputError(BINARY_NOT_WRITABLE, name=name, format=format)


def _holds_binary(dtype: pl.DataType | DataTypeClass) -> bool:
    if isinstance(dtype, pl.Struct):
        return any(_holds_binary(field.dtype) for field in dtype.fields)
    if isinstance(dtype, pl.List | pl.Array):
        return _holds_binary(dtype.inner)
    return dtype == pl.Binary
