"""A new workbook: a skeleton made by openpyxl, its rows rendered by the same expressions as a spliced sheet's."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final
from unicodedata import east_asian_width
from zipfile import ZipFile

import polars as pl

from bizverify.errors import OutputError
from bizverify.tables.excel.cells import MAX_CELL, MAX_COLUMNS, WIDTHS, column_letter, rendered, titles
from bizverify.tables.excel.package import copy_package
from bizverify.tables.excel.sheetxml import SheetXml
from bizverify.tables.table import Enriched

MAX_ROWS: Final = 1_048_575


def create(result: Enriched, frame: pl.DataFrame, target: Path) -> None:
    """Make a new workbook: a skeleton with the header and a style for each column, then the rows."""
    _check_limits(result, frame)
    skeleton = _skeleton(result, frame)
    part = "xl/worksheets/sheet1.xml"
    with ZipFile(skeleton) as archive:
        sheet = SheetXml.parse(archive.read(part).decode())
    columns = {column: number for number, column in enumerate(frame.columns, 1)}
    header = rendered(titles(result, columns), columns, _model_styles(sheet, columns, 1), 1)
    rows = rendered(frame, columns, _model_styles(sheet, columns, 2), 2)
    sheet = replace(sheet, rows=sheet.rows.clear())
    sheet = sheet.with_cells(pl.concat([header, rows]), list(columns.values()))
    copy_package(skeleton, target, {part: sheet.with_dimension(len(columns), frame.height + 1).text()})


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
        width = WIDTHS.get(column) or _width(header, frame[column])
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
