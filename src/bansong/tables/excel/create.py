"""Create workbooks; the sheet of choices for a review."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Final
from unicodedata import east_asian_width
from zipfile import ZipFile

import polars as pl

from bansong.base.errors import OutputError, Problem
from bansong.base.messages import gettext, gettext_noop
from bansong.base.schema import ACTIONS, GRADES, word_of
from bansong.tables.excel import sheet_xml
from bansong.tables.excel.package import GUIDE, SHEET, SUMMARY, apply_edits, copy_package, read_part, sheet_parts
from bansong.tables.excel.sheet_xml import (
    COLOURED,
    COLOURS,
    SheetXml,
    Style,
    column_letter,
    dimension_edits,
    encode_rows,
    render_rows,
)
from bansong.tables.table import Enriched, Section, Table, contract_name, typed_id

if TYPE_CHECKING:
    from openpyxl import Workbook
    from openpyxl.chart import BarChart
    from openpyxl.worksheet.datavalidation import DataValidation
    from openpyxl.worksheet.worksheet import Worksheet


TOO_MANY_COLUMNS: Final = Problem(
    "excel.too_many_columns", "{width:,} columns are more than a sheet holds ({max_columns:,}); write CSV or Parquet"
)
CELL_TOO_LONG: Final = Problem(
    "excel.cell_too_long",
    "column {header!r}, row {value:,}: a cell of more than {max_cell:,} characters, which no "
    "workbook holds; write CSV or Parquet",
)

MEANINGS: Final = {
    "biz_status": gettext_noop("whether the business is open; the reasons name the source and its day"),
    "bounce_prob": gettext_noop("how likely a letter to this address comes back"),
    "grade": gettext_noop("the probability as a grade: A under 3 %, B under 8 %, C under 20 %, D under 50 %, E above"),
    "action": gettext_noop("what to do with the row"),
    "fixed_zipcode": gettext_noop("the postal code of the corrected address"),
    "fixed_address": gettext_noop("the official address; empty where it is not certain"),
    "reasons": gettext_noop("why, the weightiest first; the points add up to the risk"),
    "row_status": gettext_noop("whether the row was answered, or why not"),
    "row_note": gettext_noop("the cause, where there is no answer"),
    "bounced": gettext_noop("whether the last letter came back"),
    "bounce_reason": gettext_noop("why it came back"),
    "bounced_at": gettext_noop("when it came back"),
    "duplicate_of": gettext_noop("the first row with the same number and address (1: the first below the header)"),
    "match_level": gettext_noop("how far the address was found among the official ones"),
    "district_code": gettext_noop("the code of the legal district"),
    "building_code": gettext_noop("the official number of the building's road address"),
    "send": gettext_noop("mail it, to the corrected address where there is one"),
    "fix_address": gettext_noop("the address is missing, or is the main reason for the risk: get the right one"),
    "confirm": gettext_noop("check one thing before you mail: the first reason says which"),
    "hold": gettext_noop("do not mail yet, telephone first: closed with a low risk, or a risk of 20 to 50 %"),
    "do_not_send": gettext_noop("do not mail: the business is closed, or the risk is above 50 %"),
}
_CHARTED: Final = (set(GRADES), set(ACTIONS))
_CHART_HEIGHT_ROWS: Final = 15
_CHOICE_HEADER: Final = 2  # row of a sheet of choices
MAX_ROWS: Final = 1_048_575  # what a sheet holds below its header
_BLOCK: Final = 20_000
TitleRows = Sequence[Sequence[str | None]]
_DAY_FORMAT, _MOMENT_FORMAT = "yyyy-mm-dd", "yyyy-mm-dd hh:mm:ss"
_AMONG_TEXTS: Final = {sheet_xml.DAY: _DAY_FORMAT, sheet_xml.MOMENT: _MOMENT_FORMAT, sheet_xml.TIME: "[h]:mm:ss"}
# the skeleton's rows with styles: of the header, of each column, and from the third on of dates among texts
_HEADER_ROW, _COLUMNS_ROW, _AMONG_TEXTS_ROW = 1, 2, 3


def add_summary(book: Workbook, sections: Sequence[Section]) -> None:
    from openpyxl.styles import Font, PatternFill

    sheet = book.create_sheet(gettext(SUMMARY))
    sheet.column_dimensions["A"].width, sheet.column_dimensions["B"].width = 32, 14
    _fit_to_page(sheet)
    row, chart_row = 1, 1
    for section in sections:
        title = sheet.cell(row, 1, section.title)
        title.font = Font(name="Calibri", size=11, bold=True)
        for column in (1, 2):
            sheet.cell(row, column).fill = PatternFill("solid", fgColor="DDE7F0")
        for place, (label, count) in enumerate(section.rows, row + 1):
            sheet.cell(place, 1, label)
            sheet.cell(place, 2, count).number_format = "#,##0"
        if {label for label, _ in section.rows} in _CHARTED:
            sheet.add_chart(_chart(sheet, section, row), f"D{chart_row}")
            chart_row += _CHART_HEIGHT_ROWS
        row += len(section.rows) + 2


def _chart(sheet: Worksheet, section: Section, row: int) -> BarChart:
    from openpyxl.chart import BarChart, Reference
    from openpyxl.chart.label import DataLabelList

    chart = BarChart()
    chart.type, chart.style, chart.title, chart.legend = "bar", 10, section.title, None
    chart.add_data(Reference(sheet, min_col=2, min_row=row + 1, max_row=row + len(section.rows)))
    chart.set_categories(Reference(sheet, min_col=1, min_row=row + 1, max_row=row + len(section.rows)))
    chart.y_axis.number_format, chart.y_axis.majorGridlines = "#,##0", None
    chart.x_axis.scaling.orientation = "maxMin"  # the first row on top, as in the table
    chart.x_axis.delete = chart.y_axis.delete = False
    chart.dataLabels = DataLabelList(showVal=True, showCatName=False, showSerName=False, showLegendKey=False)
    chart.width, chart.height, chart.gapWidth = 16, 7, 60
    return chart


def _add_guide(book: Workbook, result: Enriched) -> None:
    from openpyxl.styles import Font

    layout = [(contract_name(column), header) for column, header in result.layout]
    columns = [one for one in layout if one[0] in MEANINGS]
    if not columns:  # a list of letters
        return
    sheet = book.create_sheet(gettext(GUIDE))
    sheet.column_dimensions["A"].width, sheet.column_dimensions["B"].width = 22, 84
    words = {code: word_of(code, result.lang) for code in COLOURED["action"]}
    for name, header in [*columns, ("", ""), *words.items()]:
        sheet.append([header, gettext(MEANINGS[name]) if name else None])
    for cell in sheet["A"]:
        cell.font = Font(name="Calibri", size=11, bold=True)
    _colour_words(sheet, f"A{sheet.max_row - len(words) + 1}:A{sheet.max_row}", [*words.values()])
    _fit_to_page(sheet)


def create_workbook(
    result: Enriched, frame: pl.DataFrame, sections: Sequence[Section], target: Path
) -> list[tuple[str, str, pl.DataFrame]]:
    """Create a workbook: a skeleton with headers and styles, then rows; return name, part and rows of each sheet."""
    _check_limits(result, frame)
    first = MAX_ROWS - len(result.table.title_rows)
    starts = [0, *range(first, frame.height, MAX_ROWS)]
    slices = [frame.slice(start, stop - start) for start, stop in pairwise([*starts, max(frame.height, first)])]
    skeleton = _skeleton(result, frame, [slice_.height for slice_ in slices], sections)
    with ZipFile(skeleton) as archive:
        made = [(*sheet, rows) for sheet, rows in zip(sheet_parts(archive).items(), slices, strict=False)]
        models = [SheetXml.parse([archive.read(part)]) for _, part, _ in made]
    titles = [result.table.title_rows, *[()] * (len(starts) - 1)]
    sheets = map(_pieces, repeat(result), slices, models, titles)
    pieces = {part: sheet for (_, part, _), sheet in zip(made, sheets, strict=True)}
    copy_package(skeleton, target, pieces, int(frame.estimated_size()))
    return made


def _pieces(result: Enriched, frame: pl.DataFrame, model: SheetXml, above: TitleRows) -> Iterator[bytes]:
    columns = {column: number for number, (column, _) in enumerate(result.layout, 1)}
    header = len(above) + 1
    wide = max(len(columns), *map(len, above), 1)
    edits = dimension_edits(model.around, model.elements, wide, frame.height + header)
    yield apply_edits(model.around[: model.cut], edits)
    if above:
        numbered = {f"t{number}": number for number in range(1, wide + 1)}
        texts = [[text or None for text in row] + [None] * (wide - len(row)) for row in above]
        frame_above = pl.DataFrame(texts, schema=dict.fromkeys(numbered, pl.String), orient="row")
        yield _rows(frame_above, numbered, dict.fromkeys(numbered, ""), 1)
    yield _rows(sheet_xml.titles(result, columns), columns, _styles(model, columns, _HEADER_ROW), header)
    styles = _styles(model, columns, _COLUMNS_ROW)
    styles |= {column: _typed_style(model, column) for column in columns if typed_id(column) in frame.columns}
    for start in range(0, frame.height, _BLOCK):
        yield _rows(frame.slice(start, _BLOCK), columns, styles, header + start + 1)
    yield model.around[model.cut :]


def _rows(frame: pl.DataFrame, columns: Mapping[str, int], styles: Mapping[str, Style], first: int) -> bytes:
    rows = render_rows(frame, columns, styles, first)
    rows = rows.with_columns(start=pl.lit('<row r="'), open=pl.lit('">'), end=pl.lit("</row>"))
    return encode_rows(rows, "start", "r", "open", "cells", "end")


def _styles(model: SheetXml, columns: Mapping[str, int], row: int) -> dict[str, Style]:
    return {column: model.styles(number, row, row)[0] or "" for column, number in columns.items()}


def _typed_style(model: SheetXml, column: str) -> pl.Expr:
    text = pl.when(pl.col(typed_id(column))).then(pl.col(column))
    return pl.coalesce(
        pl.when(text.str.contains(pattern)).then(pl.lit(model.styles(1, row, row)[0]))
        for row, pattern in enumerate(_AMONG_TEXTS, _AMONG_TEXTS_ROW)
    )


def _skeleton(result: Enriched, frame: pl.DataFrame, heights: Sequence[int], sections: Sequence[Section]) -> io.BytesIO:
    import openpyxl  # not above: it takes longer to import than the rest of a table, and few runs need it

    book = openpyxl.Workbook()
    for number, height in enumerate(heights, 1):
        sheet = book.active if number == 1 else book.create_sheet()
        sheet.title = SHEET if number == 1 else f"{SHEET} {number}"
        header = len(result.table.title_rows) + 1 if number == 1 else 1
        _lay_out(sheet, result, frame, header, header + height)
    if sections:
        add_summary(book, sections)
        _add_guide(book, result)
    skeleton = io.BytesIO()
    book.save(skeleton)
    return skeleton


def _lay_out(sheet: Worksheet, result: Enriched, frame: pl.DataFrame, header: int, bottom: int) -> None:
    from openpyxl.styles import Border, Font, PatternFill, Side

    font, fill = Font(name="Calibri", size=11, bold=True), PatternFill("solid", fgColor="DDE7F0")
    border = Border(bottom=Side(style="thin", color="8EA9C1"))
    for number, (column, name) in enumerate(result.layout, 1):
        title = sheet.cell(_HEADER_ROW, number)
        title.font, title.fill, title.border = font, fill, border
        sheet.cell(_COLUMNS_ROW, number).number_format = _number_format(column, frame.schema[column])
        width = sheet_xml.WIDTHS.get(contract_name(column)) or _width(name, frame[column])
        sheet.column_dimensions[title.column_letter].width = width
        if column in COLOURED:
            cells = f"{title.column_letter}{header + 1}:{title.column_letter}{max(bottom, header + 1)}"
            _colour_words(sheet, cells, [word_of(code, result.lang) for code in COLOURED[column]])
    for row, shown in enumerate(_AMONG_TEXTS.values(), _AMONG_TEXTS_ROW):
        sheet.cell(row, 1).number_format = shown
    sheet.freeze_panes, sheet.print_title_rows = f"A{header + 1}", f"{header}:{header}"
    sheet.auto_filter.ref = f"A{header}:{column_letter(len(result.layout))}{bottom}"
    _fit_to_page(sheet)


def _fit_to_page(sheet: Worksheet) -> None:
    sheet.page_setup.orientation, sheet.page_setup.fitToHeight = "landscape", 0
    sheet.sheet_properties.pageSetUpPr.fitToPage = True


def _colour_words(sheet: Worksheet, cells: str, words: Sequence[str]) -> None:
    from openpyxl.formatting.rule import CellIsRule
    from openpyxl.styles import Font, PatternFill

    for word, (text, background) in zip(words, COLOURS, strict=True):
        fill = PatternFill(bgColor=background)
        rule = CellIsRule(operator="equal", formula=[f'"{word}"'], font=Font(color=text), fill=fill)
        sheet.conditional_formatting.add(cells, rule)


def _number_format(column: str, dtype: pl.DataType) -> str:
    if contract_name(column) == "bounce_prob":
        return "0.0%"
    if dtype == pl.Date:
        return _DAY_FORMAT
    if dtype == pl.Time:
        return "hh:mm:ss"
    return _MOMENT_FORMAT if isinstance(dtype, pl.Datetime) else "General"


def _check_limits(result: Enriched, frame: pl.DataFrame) -> None:
    if len(result.layout) > sheet_xml.MAX_COLUMNS:
        raise OutputError(TOO_MANY_COLUMNS, width=len(result.layout), max_columns=sheet_xml.MAX_COLUMNS)
    texts = frame.select(pl.col(pl.String).str.len_chars().max().fill_null(0))
    for column, header in result.layout:
        if column in texts.columns and texts[column][0] > sheet_xml.MAX_CELL:
            row = frame[column].str.len_chars().arg_max()
            raise OutputError(CELL_TOO_LONG, header=header, value=(row or 0) + 1, max_cell=sheet_xml.MAX_CELL)


def _width(header: str, values: pl.Series) -> int:
    shown = [header, *map(str, values.head(100).drop_nulls())]
    return min(max(max(map(_shown_width, shown)) + 2, 8), 60)


def _shown_width(text: str) -> int:
    return sum(2 if east_asian_width(char) in "WF" else 1 for char in text)


def count_rows(table: Table, path: Path) -> int:
    with ZipFile(path) as archive:
        parts = [part for name, part in sheet_parts(archive).items() if name.startswith(SHEET)]
        return sum(read_part(archive, part).count(b"<row ") - 1 for part in parts) - len(table.title_rows)


@dataclass(frozen=True, slots=True)
class ChoiceSheet:
    """A sheet with a column to fill in. Each line offers the cells of some other columns as choices for it."""

    title: str
    headers: tuple[str, ...]
    widths: tuple[int, ...]  # characters
    lines: pl.DataFrame
    choice: str  # the column that is filled in
    offered: tuple[str, ...]  # the columns to choose from
    prompt: str  # shown beside a cell of the choice
    refusal: str  # shown where something else is typed
    switch: str  # what the cell above the choices turns on
    answers: tuple[str, str]  # words for on and off; it is off


def write_choice_sheet(content: ChoiceSheet, target: Path) -> None:
    import openpyxl
    from openpyxl.styles import Alignment, Border, Font, PatternFill, Side

    book = openpyxl.Workbook()
    sheet: Worksheet = book.worksheets[0]
    sheet.title, choice = content.title, content.lines.columns.index(content.choice) + 1
    sheet.append([None] * (choice - 2) + [content.switch, content.answers[1]])
    sheet.append(content.headers)
    for line in content.lines.iter_rows():
        sheet.append(line)
    line = Side(style="thin", color="BFBFBF")
    for number, row in enumerate(sheet.iter_rows(), 1):
        for cell in row:
            cell.alignment = Alignment(wrap_text=True, vertical="top")
            cell.data_type = "s" if cell.data_type == "f" else cell.data_type
            if cell.column == choice:
                cell.fill, cell.border = PatternFill("solid", fgColor="FFF2CC"), Border(line, line, line, line)
        shown = zip((str(cell.value or "") for cell in row), content.widths, strict=True)  # LibreOffice fits no height
        lines = (sum(1 + (_shown_width(part) - 1) // width for part in f"{text} ".split("\n")) for text, width in shown)
        sheet.row_dimensions[number].height = 15 * max(lines)
    sheet.cell(1, choice - 1).font = sheet.cell(1, choice).font = Font(bold=True)
    for cell, width in zip(sheet[_CHOICE_HEADER], content.widths, strict=True):
        cell.font = Font(bold=True)
        cell.fill = PatternFill("solid", fgColor="FFF2CC" if cell.column == choice else "DDE7F0")
        sheet.column_dimensions[cell.column_letter].width = width
    top, letter, right = _CHOICE_HEADER, column_letter(choice), column_letter(len(content.headers))
    sheet.freeze_panes, sheet.print_title_rows = f"C{top + 1}", f"{top}:{top}"
    _fit_to_page(sheet)
    sheet.auto_filter.ref = f"A{top}:{right}{top + content.lines.height}"
    place = {name: column_letter(number) for number, name in enumerate(content.lines.columns, 1)}
    cells = (
        f"${place[content.offered[0]]}{top + 1}:${place[content.offered[-1]]}{top + 1}"  # the row moves with the line
    )
    if content.lines.height:
        last = f"{letter}{top + content.lines.height}"
        sheet.add_data_validation(_offer(cells, f"{letter}{top + 1}:{last}", content.prompt, content.refusal))
    sheet.add_data_validation(_offer(f'"{",".join(content.answers)}"', f"{letter}1", content.switch, content.refusal))
    book.save(target)


def _offer(choices: str, cells: str, prompt: str, refusal: str) -> DataValidation:
    from openpyxl.worksheet.datavalidation import DataValidation

    rule = DataValidation(type="list", formula1=choices, allow_blank=True, showErrorMessage=True, showInputMessage=True)
    rule.error, rule.prompt = refusal, prompt
    rule.add(cells)
    return rule
