"""Excel workbooks ⇄ frames: fastexcel reads; the user's workbook gets its new cells spliced into the sheet's XML."""

from __future__ import annotations

import io
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Final
from unicodedata import east_asian_width
from zipfile import ZipFile

import polars as pl

from bizverify.errors import AccountingError, InputError, OutputError, UsageError
from bizverify.model import ADDED_COLUMNS
from bizverify.tables.package import copy_package, percent_styles, sheet_part
from bizverify.tables.sheetxml import MAX_CELL, MAX_COLUMNS, SheetXml, cell_expr, column_letter
from bizverify.tables.table import Enriched, Table, flat, positional, refuse_binary

if TYPE_CHECKING:
    from fastexcel import ExcelReader

MAX_ROWS: Final = 1_048_575
_EXACT: Final = 10**15
_DAY_OF_TIMES: Final = date(1899, 12, 31)
"""The day that calamine puts before a time of day."""
_WIDTHS: Final = dict(
    zip(ADDED_COLUMNS, (13, 12, 8, 13, 13, 24, 70, 11, 30), strict=True)
)  # characters; reasons are long, so they get a wide column rather than a tall row


@dataclass(frozen=True, slots=True)
class Sheet:
    """The sheet that was read of a workbook."""

    name: str


def read(path: Path, sheet: str | None) -> Table:
    """Open a sheet of an .xlsx workbook: the named one, else the first visible one that is not empty.

    The first row that holds anything is the header. Text stays text, whole numbers are Int64, dates Date, times of day
    Time; a column of mixed types is text. Raises :class:`InputError`, :class:`UsageError` for a missing sheet.
    """
    import fastexcel

    logging.getLogger("fastexcel").setLevel(logging.ERROR)  # it warns of every column without a value
    try:
        book = fastexcel.read_excel(path)
        name, headers = _chosen_sheet(book, path, sheet)
        frame = _cells(book, name)
    except (fastexcel.FastExcelError, OSError) as error:
        raise InputError(f"{path}: is not a readable workbook: {str(error).splitlines()[0]}") from error
    lazy = positional(_natural_types(frame).lazy(), frame.columns)
    return Table(lazy, headers, "xlsx", f"{path.name} [{name}]", path, Sheet(name))


def _chosen_sheet(book: ExcelReader, path: Path, wanted: str | None) -> tuple[str, tuple[str, ...]]:
    """The sheet's name and its headers."""
    names = book.sheet_names
    if wanted is not None and wanted not in names:
        raise UsageError(f"{path}: has no sheet {wanted!r}; it has {', '.join(map(repr, names))}")
    for name in names if wanted is None else [wanted]:
        top = book.load_sheet(name, header_row=None, n_rows=1, dtypes="string")
        headers = top.to_polars()
        if headers.height and (wanted is not None or top.visible == "visible"):
            return name, tuple(value or "" for value in headers.row(0))
    which = "every visible sheet" if wanted is None else f"sheet {wanted!r}"
    raise InputError(f"{path}: {which} is empty")


def _cells(book: ExcelReader, name: str) -> pl.DataFrame:
    import fastexcel

    try:
        return book.load_sheet(name, header_row=0, schema_sample_rows=None).to_polars()
    except fastexcel.UnsupportedColumnTypeCombinationError:  # dates and durations in one column: all as text, then
        return book.load_sheet(name, header_row=0, dtypes="string").to_polars()


def write(result: Enriched, target: Path) -> pl.DataFrame:
    """Write an enriched table as a workbook and return the tally.

    A table that came from a workbook gets its columns spliced into that workbook, of which everything else stays as it
    is; any other becomes a new workbook with a header, a filter and frozen titles. Text is never stored as a formula.
    Raises :class:`OutputError` for what Excel cannot hold or cannot be extended safely.
    """
    source = result.table.source
    if isinstance(source, Sheet) and result.table.path is not None:
        added = [column for column, _ in result.layout if column in ADDED_COLUMNS]
        frame, tally = pl.collect_all([result.frame.select(added), result.tally], engine="streaming")
        _extend(result, frame, result.table.path, source.name, target)
        _compare(result, frame, read(target, source.name))
    else:
        cells = result.frame.select(column for column, _ in result.layout)
        refuse_binary(result.titled(lists=False), "Excel")
        frame, tally = pl.collect_all([flat(cells), result.tally], engine="streaming")
        _create(result, frame, target)
    return tally


def _natural_types(frame: pl.DataFrame) -> pl.DataFrame:
    """Excel knows only floats and date-times: make integers, dates and times of the columns that hold nothing else."""
    natural: list[pl.Expr] = []
    for values in frame:
        if values.dtype == pl.Float64 and ((values % 1 == 0) & (values.abs() < _EXACT)).all():
            natural.append(pl.col(values.name).cast(pl.Int64))
        elif values.dtype == pl.Datetime and (values.dt.date() == _DAY_OF_TIMES).all():
            natural.append(pl.col(values.name).dt.time())
        elif values.dtype == pl.Datetime and (values == values.dt.truncate("1d")).all():
            natural.append(pl.col(values.name).cast(pl.Date))
    return frame.with_columns(natural)


def _extend(result: Enriched, frame: pl.DataFrame, source: Path, name: str, target: Path) -> None:
    """Splice the added columns into the user's own sheet, beside what is there, styled like their neighbour."""
    with ZipFile(source) as archive:
        part = sheet_part(archive, name)
        sheet = SheetXml.parse(archive.read(part).decode("utf-8-sig", "replace"))
        styles_xml = archive.read("xl/styles.xml").decode() if "xl/styles.xml" in archive.namelist() else ""
    top, left = sheet.corner()
    bottom = top + frame.height
    columns = _places(result, left, sheet.right())
    neighbours = sheet.styles(column_letter(min(columns.values()) - 1), top, bottom)["style"]
    styles_xml, percents = percent_styles(styles_xml, neighbours.slice(1).fill_null("0").unique().sort().to_list())

    style = _style(pl.col("style"))
    styles = dict.fromkeys(columns, style)
    header = _rendered(_titles(result, columns).with_columns(neighbours.head(1)), columns, styles, top)
    if percents:
        styles["bounce_prob"] = _style(pl.col("style").fill_null("0").replace(percents))
    body = _rendered(frame.with_columns(neighbours.slice(1)), columns, styles, top + 1)

    sheet = sheet.with_cells(pl.concat([header, body]), sorted(columns.values()))
    sheet = sheet.with_dimension(max(columns.values()), bottom)
    sheet = sheet.with_widths({number: _WIDTHS[column] for column, number in columns.items()})
    copy_package(source, target, {part: sheet.text()} | ({"xl/styles.xml": styles_xml} if percents else {}))


def _places(result: Enriched, left: int, right: int) -> dict[str, int]:
    """The sheet's column (from 1) of each added column: where it stood before, else behind everything."""
    own = len(result.table.headers)
    places = {}
    for position, (column, _) in enumerate(result.layout):
        if column in ADDED_COLUMNS:
            right += position >= own
            places[column] = left + position if position < own else right
    if max(places.values()) > MAX_COLUMNS:
        raise OutputError(f"the sheet has no room for more columns ({MAX_COLUMNS:,} are the limit); write CSV")
    return places


def _rendered(frame: pl.DataFrame, columns: dict[str, int], styles: Mapping[str, pl.Expr], first: int) -> pl.DataFrame:
    """Rows of cells for :meth:`SheetXml.with_cells`, the first of them in row ``first``."""
    numbers = pl.int_range(first, first + frame.height, dtype=pl.Int64, eager=True).alias("r")
    work = frame.with_columns(numbers, numbers.cast(pl.String).alias("row"))
    cells = [
        cell_expr(pl.col(column), frame.schema[column], column_letter(number), styles[column])
        for column, number in sorted(columns.items(), key=lambda item: item[1])
    ]
    return work.select("r", pl.concat_str(cells).alias("cells"))


def _style(number: pl.Expr) -> pl.Expr:
    return pl.concat_str(pl.lit(' s="'), number, pl.lit('"')).fill_null("")


def _compare(result: Enriched, added: pl.DataFrame, written: Table) -> None:
    """Hold the finished workbook against what was read and what was to be added: the last word on its cells."""
    before = result.table.frame.select(column for column, _ in result.layout if column not in ADDED_COLUMNS).collect()
    places = {column: place for place, (column, _) in enumerate(result.layout) if column in before.columns}
    headers = [written.headers[place] for place in places.values()]
    shift = len(written.headers) - len(result.layout)  # blank columns, where ours had to start further right
    found = written.frame.collect()
    after = found.select(pl.col(f"c{place}").alias(column) for column, place in places.items())
    texts = [column for column in ADDED_COLUMNS if column != "bounce_prob"]
    answers = {column: place for place, (column, _) in enumerate(result.layout) if column in texts}
    ours = found.select(
        pl.col(f"c{place + (shift if place >= len(result.table.headers) else 0)}").cast(pl.String).alias(column)
        for column, place in answers.items()
    )
    kept = headers == [header for column, header in result.layout if column in places] and after.equals(before)
    if not (kept and ours.equals(added.select(ours.columns))):
        raise AccountingError(
            "nothing was published: the workbook would not hold what it held before; write another format, -o OUT.csv"
        )


def _create(result: Enriched, frame: pl.DataFrame, target: Path) -> None:
    """Make a new workbook: a skeleton with the header and a style for each column, then the rows."""
    _check_limits(result, frame)
    skeleton = _skeleton(result, frame)
    part = "xl/worksheets/sheet1.xml"
    with ZipFile(skeleton) as archive:
        sheet = SheetXml.parse(archive.read(part).decode())
    columns = {column: number for number, column in enumerate(frame.columns, 1)}
    header = _rendered(_titles(result, columns), columns, _model_styles(sheet, columns, 1), 1)
    rows = _rendered(frame, columns, _model_styles(sheet, columns, 2), 2)
    sheet = replace(sheet, rows=sheet.rows.clear())
    sheet = sheet.with_cells(pl.concat([header, rows]), list(columns.values()))
    copy_package(skeleton, target, {part: sheet.with_dimension(len(columns), frame.height + 1).text()})


def _titles(result: Enriched, columns: Mapping[str, int]) -> pl.DataFrame:
    return pl.DataFrame({column: [header or None] for column, header in result.layout if column in columns})


def _model_styles(sheet: SheetXml, columns: Mapping[str, int], row: int) -> dict[str, pl.Expr]:
    """Each column's style as the skeleton shows it in a row."""
    found = {column: sheet.styles(column_letter(number), row, row)["style"][0] for column, number in columns.items()}
    return {column: pl.lit(f' s="{style}"' if style else "") for column, style in found.items()}


def _skeleton(result: Enriched, frame: pl.DataFrame) -> io.BytesIO:
    """A workbook with widths, a filter, frozen titles, and blank cells that show the styles of header and columns."""
    import openpyxl
    from openpyxl.styles import Border, Font, PatternFill, Side

    book = openpyxl.Workbook()
    sheet = book.active
    sheet.title = "bizverify"
    for number, (column, header) in enumerate(result.layout, 1):
        title = sheet.cell(1, number)
        title.font, title.fill = Font(bold=True), PatternFill("solid", fgColor="DDE7F0")
        title.border = Border(bottom=Side(style="thin", color="8EA9C1"))
        sheet.cell(2, number).number_format = _number_format(column, frame.schema[column])
        width = _WIDTHS.get(column) or _width(header, frame[column])
        sheet.column_dimensions[title.column_letter].width = width
    sheet.freeze_panes = "A2"
    sheet.auto_filter.ref = f"A1:{column_letter(len(result.layout))}{frame.height + 1}"
    skeleton = io.BytesIO()
    book.save(skeleton)
    return skeleton


def _number_format(column: str, dtype: pl.DataType) -> str:
    if column == "bounce_prob":
        return "0.0%"
    if dtype == pl.Date:
        return "yyyy-mm-dd"
    return "yyyy-mm-dd hh:mm:ss" if isinstance(dtype, pl.Datetime) else "General"


def _check_limits(result: Enriched, frame: pl.DataFrame) -> None:
    if frame.height > MAX_ROWS:
        raise OutputError(f"{frame.height:,} rows are more than a sheet holds ({MAX_ROWS:,}); write CSV or Parquet")
    if frame.width > MAX_COLUMNS:
        raise OutputError(
            f"{frame.width:,} columns are more than a sheet holds ({MAX_COLUMNS:,}); write CSV or Parquet"
        )
    texts = frame.select(pl.col(pl.String).str.len_chars().max().fill_null(0))
    for column, header in result.layout:
        if column in texts.columns and texts[column][0] > MAX_CELL:
            raise OutputError(
                f"column {header!r} has a cell of more than {MAX_CELL:,} characters; write CSV or Parquet"
            )


def _width(header: str, values: pl.Series) -> int:
    """Characters a column needs, wide ones counted twice, judged by its first cells."""
    shown = [header, *map(str, values.head(100).drop_nulls())]
    widest = max(sum(2 if east_asian_width(char) in "WF" else 1 for char in text) for text in shown)
    return min(max(widest + 2, 8), 60)
