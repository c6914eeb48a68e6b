"""Excel workbooks ⇄ frames: fastexcel reads; openpyxl adds to the user's workbook; xlsxwriter makes a new one."""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unicodedata import east_asian_width
from zipfile import ZipFile

import polars as pl

from bizverify.errors import InputError, OutputError, UsageError
from bizverify.model import ADDED_COLUMNS
from bizverify.tables.table import Enriched, Table, flat, positional

if TYPE_CHECKING:
    from openpyxl.worksheet.worksheet import Worksheet
    from polars.selectors import Selector

MAX_ROWS: Final = 1_048_575
MAX_CELL: Final = 32_767
_EXACT: Final = 10**15
_WIDTHS: Final = dict(
    zip(ADDED_COLUMNS, (13, 12, 8, 13, 13, 24, 70, 11, 30), strict=True)
)  # characters; reasons are long, so they get a wide column rather than a tall row
_NOT_KEPT: Final = {
    "xl/charts/": "charts",
    "xl/media/": "pictures",
    "xl/pivotTables/": "pivot tables",
    "xl/slicers/": "slicers",
    "xl/threadedComments/": "threaded comments",
    "xl/vbaProject.bin": "macros",
}


@dataclass(frozen=True, slots=True)
class Sheet:
    """The sheet that was read of a workbook."""

    name: str


def read(path: Path, sheet: str | None) -> Table:
    """Open a sheet of an .xlsx workbook: the named one, else the first that is not empty.

    The first row that holds anything is the header. Text stays text, whole numbers are Int64, dates Date; a column
    of mixed types is text. Raises :class:`InputError`, :class:`UsageError` for a sheet that does not exist.
    """
    import fastexcel

    logging.getLogger("fastexcel").setLevel(logging.ERROR)  # it warns of every column without a value
    try:
        book = fastexcel.read_excel(path)
        names = book.sheet_names
        if sheet is not None and sheet not in names:
            raise UsageError(f"{path}: has no sheet {sheet!r}; it has {', '.join(map(repr, names))}")
        for name in [sheet] if sheet is not None else names:
            top = book.load_sheet(name, header_row=None, n_rows=1, dtypes="string").to_polars()
            if top.height:
                break
        else:
            raise InputError(f"{path}: sheet {names[0] if sheet is None else sheet!r} is empty")
        frame = book.load_sheet(name, header_row=0, schema_sample_rows=None).to_polars()
    except (fastexcel.FastExcelError, OSError) as error:
        raise InputError(f"{path}: is not a readable workbook: {str(error).splitlines()[0]}") from error
    headers = tuple("" if value is None else value for value in top.row(0))
    lazy = positional(_natural_types(frame).lazy(), frame.columns)
    return Table(lazy, headers, "xlsx", f"{path.name} [{name}]", path, Sheet(name), _warnings(path))


def write(result: Enriched, target: Path) -> pl.DataFrame:
    """Write an enriched table as a workbook and return the tally.

    A table that came from a workbook gets its columns added to that workbook, everything else becomes a new one with
    a header, a filter and frozen titles. Text is never stored as a formula.
    Raises :class:`OutputError` for more rows or longer cells than Excel holds.
    """
    if isinstance(result.table.source, Sheet) and result.table.path is not None:
        added = [column for column, _ in result.layout if column in ADDED_COLUMNS]
        frame, tally = pl.collect_all([result.frame.select(added), result.tally], engine="streaming")
        _extend(result, frame, result.table.source, result.table.path, target)
    else:
        frame, tally = pl.collect_all([flat(result.titled(lists=False)), result.tally], engine="streaming")
        _create(result, frame, target)
    return tally


def _natural_types(frame: pl.DataFrame) -> pl.DataFrame:
    """Excel knows only floats and date-times: make integers and dates of the columns that hold nothing else."""
    whole = [
        name
        for name, dtype in frame.schema.items()
        if dtype == pl.Float64 and ((frame[name] % 1 == 0) & (frame[name].abs() < _EXACT)).all()
    ]
    days = [
        name
        for name, dtype in frame.schema.items()
        if dtype == pl.Datetime and (frame[name] == frame[name].dt.truncate("1d")).all()
    ]
    return frame.with_columns(pl.col(whole).cast(pl.Int64), pl.col(days).cast(pl.Date))


def _warnings(path: Path) -> tuple[str, ...]:
    with ZipFile(path) as archive:
        parts = archive.namelist()
    lost = [what for prefix, what in _NOT_KEPT.items() if any(part.startswith(prefix) for part in parts)]
    return (f"{path.name}: {', '.join(lost)} are not carried into an enriched workbook",) if lost else ()


def _extend(result: Enriched, frame: pl.DataFrame, read: Sheet, source: Path, target: Path) -> None:
    """Put the added columns into the user's own workbook, beside (or over) what is there."""
    import openpyxl

    with source.open("rb") as file:  # by its content: openpyxl refuses a path whose extension it does not know
        book = openpyxl.load_workbook(file)
    sheet = book[read.name]
    top, left = _corner(sheet)
    for place, (column, header) in enumerate(result.layout, left):
        if column in frame.columns:
            _fill(sheet, top, place, header, frame[column])
            sheet.column_dimensions[sheet.cell(top, place).column_letter].width = _WIDTHS[column]
    book.save(target)


def _corner(sheet: Worksheet) -> tuple[int, int]:
    """Row and column (from 1) of the first row and the first column that hold anything: where reading began."""
    top = left = 0
    for row in sheet.iter_rows():
        for cell in row:
            if cell.value is not None:
                top = top or cell.row
                left = min(left or cell.column, cell.column)
                break
    return top, left


def _fill(sheet: Worksheet, top: int, place: int, header: str, values: pl.Series) -> None:
    percent = values.name == "bounce_prob"
    for row, value in enumerate([header, *values], top):
        cell: Any = sheet.cell(row, place)
        if place > 1:
            cell._style = copy.copy(sheet.cell(row, place - 1)._style)
            cell.number_format = "0.0%" if percent else "General"
        cell.value = value
        if isinstance(value, str):
            cell.data_type = "s"  # openpyxl would take a text that begins with "=" for a formula


def _create(result: Enriched, frame: pl.DataFrame, target: Path) -> None:
    if frame.height > MAX_ROWS:
        raise OutputError(f"{frame.height:,} rows are more than a sheet holds ({MAX_ROWS:,}); write CSV or Parquet")
    frame = _cells(frame)
    widths: dict[str | Selector, tuple[str, ...] | int] = {
        name: 7 * _WIDTHS.get(column, _width(frame[name]))
        for (column, _), name in zip(result.layout, frame.columns, strict=True)
    }
    percent = [name for (column, _), name in zip(result.layout, frame.columns, strict=True) if column == "bounce_prob"]
    with target.open("wb") as file:
        frame.write_excel(
            file,
            worksheet="bizverify",
            table_style="Table Style Light 1",
            freeze_panes=(1, 0),
            header_format={"bold": True, "bg_color": "#DDE7F0", "border": 1},
            column_widths=widths,
            column_formats=dict.fromkeys(percent, "0.0%"),
        )


def _cells(frame: pl.DataFrame) -> pl.DataFrame:
    """Make of every value one that an Excel cell can hold unchanged."""
    long = [
        name
        for name, dtype in frame.schema.items()
        if dtype == pl.String and (frame[name].str.len_chars().max() or 0) > MAX_CELL  # type: ignore[operator]
    ]
    if long:
        raise OutputError(f"column {long[0]!r} has a cell of more than {MAX_CELL:,} characters; write CSV or Parquet")
    inexact = [
        name
        for name, dtype in frame.schema.items()
        if dtype.is_integer() and frame[name].cast(pl.Int128).abs().max() not in range(_EXACT)
    ]
    other = [name for name, dtype in frame.schema.items() if dtype in (pl.Binary, pl.Object, pl.Duration)]
    return frame.with_columns(pl.col(inexact).cast(pl.String), pl.col(other).cast(pl.String))


def _width(values: pl.Series) -> int:
    """Characters a column needs, wide ones counted twice, judged by its first cells."""
    shown = [values.name, *values.head(100).cast(pl.String, strict=False).drop_nulls()]
    widest = max(sum(2 if east_asian_width(char) in "WF" else 1 for char in text) for text in shown)
    return min(max(widest + 2, 8), 60)
