"""The second sheet of a new workbook: the figures of a run, and charts of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from bizverify.schema import ACTIONS, GRADES
from bizverify.tables.table import Section

if TYPE_CHECKING:
    from openpyxl import Workbook
    from openpyxl.chart import BarChart
    from openpyxl.worksheet.worksheet import Worksheet

SUMMARY: Final = "summary"
_CHARTED: Final = (set(GRADES), set(ACTIONS))
"""The figures that a chart is made of."""
_CHART_ROWS: Final = 15
"""Rows of the sheet that a chart is high."""


def add_summary(book: Workbook, sections: Sequence[Section]) -> None:
    """Add the sheet: each section a title and its figures, beside them bar charts of the grades and of the actions."""
    from openpyxl.styles import Font, PatternFill

    sheet = book.create_sheet(SUMMARY)
    sheet.column_dimensions["A"].width, sheet.column_dimensions["B"].width = 32, 14
    sheet.page_setup.orientation, sheet.page_setup.fitToHeight = "landscape", 0
    sheet.sheet_properties.pageSetUpPr.fitToPage = True
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
            chart_row += _CHART_ROWS
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
