"""A workbook in which a person chooses: a sheet with a list to choose from in a cell of each line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from openpyxl.worksheet.datavalidation import DataValidation
    from openpyxl.worksheet.worksheet import Worksheet


@dataclass(frozen=True, slots=True)
class ChoiceSheet:
    """A sheet: its lines, and of which columns, side by side, each line offers the cells for ``choice``.

    ``headers`` and ``widths`` (characters) are of the columns of ``lines``. ``prompt`` is shown beside a cell of the
    choice, ``refusal`` where something else is typed.
    """

    title: str
    headers: tuple[str, ...]
    widths: tuple[int, ...]
    lines: pl.DataFrame
    choice: str
    offered: tuple[str, ...]
    prompt: str
    refusal: str


def write_choice_sheet(content: ChoiceSheet, target: Path) -> None:
    """Write a new workbook with the sheet, printed as wide as a page; texts stay texts, whatever they begin with."""
    import openpyxl  # not above: it takes longer to import than the rest of a table, and few runs need it
    from openpyxl.styles import Alignment, Font

    book = openpyxl.Workbook()
    book.remove(book.worksheets[0])
    sheet: Worksheet = book.create_sheet(content.title)
    sheet.append(content.headers)
    for line in content.lines.iter_rows():
        sheet.append(line)
    for row in sheet.iter_rows():
        for cell in row:
            cell.alignment = Alignment(wrap_text=True, vertical="top")
            cell.data_type = "s" if cell.data_type == "f" else cell.data_type
    for cell, width in zip(sheet[1], content.widths, strict=True):
        cell.font = Font(bold=True)
        sheet.column_dimensions[cell.column_letter].width = width
    sheet.freeze_panes, sheet.print_title_rows = "C2", "1:1"
    sheet.page_setup.orientation, sheet.page_setup.fitToHeight = "landscape", 0
    sheet.sheet_properties.pageSetUpPr.fitToPage = True
    sheet.auto_filter.ref = sheet.dimensions
    if content.lines.height:
        sheet.add_data_validation(_offer(content))
    book.save(target)


def _offer(content: ChoiceSheet) -> DataValidation:
    from openpyxl.utils import get_column_letter
    from openpyxl.worksheet.datavalidation import DataValidation

    place = {name: get_column_letter(number) for number, name in enumerate(content.lines.columns, 1)}
    cells = f"${place[content.offered[0]]}2:${place[content.offered[-1]]}2"  # the row moves with the line
    rule = DataValidation(type="list", formula1=cells, allow_blank=True, showErrorMessage=True, showInputMessage=True)
    rule.error, rule.prompt = content.refusal, content.prompt
    rule.add(f"{place[content.choice]}2:{place[content.choice]}{content.lines.height + 1}")
    return rule
