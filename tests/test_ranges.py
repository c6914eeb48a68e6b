"""What sorts and filters the user's rows reaches the new columns, or is left alone and named."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any
from xml.etree import ElementTree
from zipfile import ZipFile

import openpyxl
import pytest
import xlsxwriter
from openpyxl.chart import BarChart, Reference
from openpyxl.drawing.spreadsheet_drawing import AbsoluteAnchor, AnchorMarker, TwoCellAnchor
from openpyxl.drawing.xdr import XDRPoint2D, XDRPositiveSize2D
from openpyxl.utils.units import pixels_to_EMU

import bansong as bs
from bansong.base.schema import Alert
from bansong.run.report import Report
from conftest import NINE

HEADERS = ["b_no", "name", "address"]
ROWS = [
    ["124-81-00998", "가", "서울 1"],
    ["220-81-62517", "나", "서울 2"],
    ["104-81-53190", "다", "서울 3"],
]
SHEET = "xl/worksheets/sheet1.xml"
BOOK = "xl/workbook.xml"
TABLE = "xl/tables/table1.xml"
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360000000000005000100"
    "0d0a2db40000000049454e44ae426082"
)
MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"


def parts(path: Path) -> dict[str, bytes]:
    with ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def with_part(path: Path, name: str, *changes: tuple[str, str]) -> Path:
    """Change the text of a part."""
    content = parts(path)
    for old, new in changes:
        assert re.search(old.encode(), content[name])
        content[name] = re.sub(old.encode(), new.encode(), content[name], count=1)
    with ZipFile(path, "w") as archive:
        for part, data in content.items():
            archive.writestr(part, data)
    return path


def made(
    path: Path, lay_out: Callable[[Any], object], rows: Sequence[Sequence[object]] = (HEADERS, *ROWS), top: int = 0
) -> Path:
    with xlsxwriter.Workbook(path) as book:
        sheet = book.add_worksheet("고객'1 A&B")
        for number, row in enumerate(rows, top):
            sheet.write_row(number, 0, row)
        lay_out(sheet)
    return path


def with_table(path: Path, where: str = "A1:C4", **options: object) -> Path:
    columns = [{"header": header} for header in HEADERS]
    return made(path, lambda sheet: sheet.add_table(where, {"name": "고객표", "columns": columns} | options))


def enriched(source: Path, **options: Any) -> tuple[Report, Path]:
    target = source.with_name("out.xlsx")
    return bs.enrich(source, target, **options), target


def alerts(report: Report) -> list[str]:
    alerts = [warning for warning in report.warnings if isinstance(warning, Alert)]
    return [alert for alert in alerts if "`send`" not in alert and "no gazetteer" not in alert]


def changed(source: Path, target: Path) -> set[str]:
    before, after = parts(source), parts(target)
    assert list(before) == list(after)
    return {name for name in before if before[name] != after[name]}


# ── filters ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_filter_its_name_and_its_sort_state_are_widened_and_nothing_else(tmp_path: Path) -> None:
    """The filter's criteria stay, and so does each part but the sheet, its styles and the workbook's list of names."""

    def lay_out(sheet: Any) -> None:
        sheet.autofilter("A1:C4")
        sheet.filter_column_list("B", ["가", "나"])

    source = made(tmp_path / "in.xlsx", lay_out)
    state = '<sortState ref="A2:C4"><sortCondition ref="B2:B4"/></sortState></autoFilter>'
    with_part(source, SHEET, ("</autoFilter>", state))
    report, out = enriched(source)
    assert alerts(report) == []
    assert changed(source, out) == {SHEET, BOOK, "xl/styles.xml"}
    old, new = (re.search(rb"<autoFilter.*</autoFilter>", parts(path)[SHEET]) for path in (source, out))
    assert old
    assert new
    assert new[0] == old[0].replace(b'ref="A1:C4"', b'ref="A1:L4"').replace(b'ref="A2:C4"', b'ref="A2:L4"')
    assert parts(out)[BOOK] == parts(source)[BOOK].replace(b"!$A$1:$C$4<", b"!$A$1:$L$4<")
    assert b"!$A$1:$L$4<" in parts(out)[BOOK]


def test_a_filter_of_whole_columns_is_widened(tmp_path: Path) -> None:
    """As some programs write it: it has no rows."""
    source = made(tmp_path / "in.xlsx", lambda sheet: sheet.autofilter("A1:C4"))
    report, out = enriched(with_part(source, SHEET, ('<autoFilter ref="A1:C4"', '<autoFilter ref="A:C"')))
    assert alerts(report) == []
    assert openpyxl.load_workbook(out).active.auto_filter.ref == "A1:L1048576"


@pytest.mark.parametrize(("name", "after"), [("$A:$C", "$A:$L"), ("$1:$4", "$1:$4"), ("$A$1:$B$4", "$A$1:$L$4")])
def test_the_hidden_name_of_a_filter_is_widened_in_whatever_form(tmp_path: Path, name: str, after: str) -> None:
    """LibreOffice sorts by the name, and writes one without rows."""
    source = made(tmp_path / "in.xlsx", lambda sheet: sheet.autofilter("A1:C4"))
    with_part(source, BOOK, (r"!\$A\$1:\$C\$4<", f"!{name}<"))
    report, out = enriched(source)
    assert alerts(report) == []
    assert f"!{after}<".encode() in parts(out)[BOOK]
    assert openpyxl.load_workbook(out).active.auto_filter.ref == "A1:L4"


@pytest.mark.parametrize("name", ["$B$1:$C$4", "OFFSET($A$1,0,0,4,3)"])
def test_a_filter_whose_hidden_name_states_something_else_is_left_alone_and_named(tmp_path: Path, name: str) -> None:
    """Filter and name are widened together or not at all."""
    source = made(tmp_path / "in.xlsx", lambda sheet: sheet.autofilter("A1:C4"))
    with_part(source, BOOK, (r"!\$A\$1:\$C\$4<", f"!{name}<"))
    report, out = enriched(source)
    (alert,) = alerts(report)
    assert "hidden name" in alert
    assert "set the filter anew over A1:L4" in alert
    assert parts(out)[BOOK] == parts(source)[BOOK]
    assert b'<autoFilter ref="A1:C4"' in parts(out)[SHEET]


def test_the_filter_of_another_sheet_keeps_its_name(tmp_path: Path) -> None:
    with xlsxwriter.Workbook(tmp_path / "in.xlsx") as book:
        for name in ("안내", "고객"):
            sheet = book.add_worksheet(name)
            for number, row in enumerate([HEADERS, *ROWS] if name == "고객" else [["a", "b", "c"]] * 4):
                sheet.write_row(number, 0, row)
            sheet.autofilter("A1:C4")
    _, out = enriched(tmp_path / "in.xlsx")
    assert [sheet.auto_filter.ref for sheet in openpyxl.load_workbook(out)] == ["A1:C4", "A1:L4"]
    names = dict(re.findall(r">'?(\w+)'?!\$A\$1:\$([A-Z])\$4<", parts(out)[BOOK].decode()))
    assert names == {"고객": "L", "안내": "C"}


def test_the_sort_state_of_a_sheet_without_a_filter_is_widened(tmp_path: Path) -> None:
    source = made(tmp_path / "in.xlsx", lambda _: None)
    state = '</sheetData><sortState ref="A2:C4"><sortCondition ref="B2:B4"/></sortState>'
    with_part(source, SHEET, ("</sheetData>", state))
    _, out = enriched(source)
    assert b'<sortState ref="A2:L4"><sortCondition ref="B2:B4"/></sortState>' in parts(out)[SHEET]


def test_labels_added_later_are_reached_too(tmp_path: Path) -> None:
    """What a second run adds behind the nine columns, in other places than those it replaces, is in the filter."""
    source = made(tmp_path / "in.xlsx", lambda sheet: sheet.autofilter("A1:C4"))
    _, once = enriched(source)
    bs.enrich(once, tmp_path / "twice.xlsx", with_outcomes=True)
    assert openpyxl.load_workbook(tmp_path / "twice.xlsx").active.auto_filter.ref == "A1:O4"


def test_labels_of_an_earlier_run_are_reached_though_they_are_not_written_again(tmp_path: Path) -> None:
    """Twelve columns of an earlier run outside the filter: nine are replaced, the filter reaches all of them."""
    source = made(tmp_path / "in.xlsx", lambda sheet: sheet.autofilter("A1:C4"))
    _, once = enriched(source, with_outcomes=True)
    report = bs.enrich(
        with_part(once, SHEET, ('<autoFilter ref="A1:O4"', '<autoFilter ref="A1:C4"')), tmp_path / "twice.xlsx"
    )
    assert alerts(report) == []
    assert openpyxl.load_workbook(tmp_path / "twice.xlsx").active.auto_filter.ref == "A1:O4"


def test_a_column_of_the_users_that_bears_our_name_is_no_obstacle(tmp_path: Path) -> None:
    """To the left of the filter, where it was put on purpose."""
    rows = [["grade", *HEADERS], *(["x", *row] for row in ROWS)]
    report, out = enriched(made(tmp_path / "in.xlsx", lambda sheet: sheet.autofilter("B1:D4"), rows))
    assert alerts(report) == []
    assert openpyxl.load_workbook(out).active.auto_filter.ref == "B1:M4"


def test_a_filter_beside_which_cells_stand_is_left_alone_and_named(tmp_path: Path) -> None:
    """The alert names file, sheet, range, what stands between and the remedy; the filter stays as it was."""
    rows = [[*HEADERS, "메모"], *([*row, "x"] for row in ROWS)]
    source = made(tmp_path / "in.xlsx", lambda sheet: sheet.autofilter("A1:C4"), rows)
    report, out = enriched(source)
    (alert,) = alerts(report)
    for said in ("in.xlsx [고객'1 A&B]", "A1:C4", "column D ('메모')", "before you sort", "A1:M4"):
        assert said in alert
    assert openpyxl.load_workbook(out).active.auto_filter.ref == "A1:C4"
    assert parts(out)[BOOK] == parts(source)[BOOK]


def test_a_filter_without_the_number_is_left_alone_and_named(tmp_path: Path) -> None:
    source = made(tmp_path / "in.xlsx", lambda sheet: sheet.autofilter("B1:C4"))
    report, out = enriched(source)
    (alert,) = alerts(report)
    assert "column A ('b_no') is not in it" in alert
    assert openpyxl.load_workbook(out).active.auto_filter.ref == "B1:C4"


def test_a_filter_of_another_list_is_none_of_our_business(tmp_path: Path) -> None:
    """A list of codes beside the customers is sorted without them, before and after."""
    rows = [[*HEADERS, None, "code", "text"], *([*row, None, n, "x"] for n, row in enumerate(ROWS))]
    source = made(tmp_path / "in.xlsx", lambda sheet: sheet.autofilter("E1:F4"), rows)
    report, out = enriched(source)
    (alert,) = alerts(report)
    assert "column D is blank between your list and the new columns" in alert
    assert openpyxl.load_workbook(out).active.auto_filter.ref == "E1:F4"


@pytest.mark.parametrize("memo", ["J3", "J6"])
def test_a_gap_before_the_new_columns_is_said(tmp_path: Path, memo: str) -> None:
    """A memo beside or below the list pushes our columns away: a click on "sort" would leave the verdicts behind."""
    report, _ = enriched(made(tmp_path / "in.xlsx", lambda sheet: sheet.write(memo, "memo")))
    (alert,) = alerts(report)
    assert "column D is blank between your list and the new columns" in alert
    assert "mark all columns up to" in alert


def test_a_filter_that_would_take_in_cells_below_is_left_alone(tmp_path: Path) -> None:
    """A filter set over more rows than there are records: what stands below in our columns would be sorted along."""

    def lay_out(sheet: Any) -> None:
        sheet.autofilter("A1:C9")
        sheet.write_formula("D7", '=""', None, "")

    report, out = enriched(made(tmp_path / "in.xlsx", lay_out))
    (alert,) = alerts(report)
    assert "column D holds something else above or below the rows" in alert
    assert openpyxl.load_workbook(out).active.auto_filter.ref == "A1:C9"


@pytest.mark.parametrize(("last", "said"), [(["120-81-47521", "라", "서울 4"], True), (["합계", None, None], False)])
def test_records_below_the_filter_are_named_and_totals_are_not(tmp_path: Path, last: list[str], said: bool) -> None:
    source = made(tmp_path / "in.xlsx", lambda sheet: sheet.autofilter("A1:C4"), [HEADERS, *ROWS, last])
    report, out = enriched(source)
    assert ["ends before the last row of data, 5" in alert for alert in alerts(report)] == [True] * said
    assert openpyxl.load_workbook(out).active.auto_filter.ref == "A1:L4"


def test_a_protected_sheet_is_widened_and_named(tmp_path: Path) -> None:
    def lay_out(sheet: Any) -> None:
        sheet.autofilter("A1:C4")
        sheet.protect("secret")

    report, out = enriched(made(tmp_path / "in.xlsx", lay_out))
    assert [warning for warning in report.warnings if "the sheet is protected" in warning and "A1:C4" in warning]
    assert openpyxl.load_workbook(out).active.auto_filter.ref == "A1:L4"


# ── tables ───────────────────────────────────────────────────────────────────────────────────────────────────────


def columns_of(path: Path) -> list[dict[str, str]]:
    return [dict(column.attrib) for column in ElementTree.fromstring(parts(path)[TABLE]).iter(f"{MAIN}tableColumn")]


def test_a_table_gets_our_columns_under_the_names_in_its_header(tmp_path: Path) -> None:
    """Ids and names are unique, the header's cells hold the names, the user's columns are the same bytes."""
    source = with_table(tmp_path / "in.xlsx")
    report, out = enriched(source)
    assert alerts(report) == []
    assert changed(source, out) == {SHEET, TABLE, "xl/styles.xml"}
    assert [column["name"] for column in columns_of(out)] == [*HEADERS, *NINE]
    assert len({column["id"] for column in columns_of(out)}) == 12
    table = openpyxl.load_workbook(out).active.tables["고객표"]
    assert (table.ref, table.autoFilter.ref) == ("A1:L4", "A1:L4")
    assert b'<tableColumns count="12">' in parts(out)[TABLE]
    listed = re.compile(rb"<tableColumns[^>]*>(.*?)</tableColumns>")
    old, new = (listed.search(parts(path)[TABLE]) for path in (source, out))
    assert old
    assert new
    assert new[1].startswith(old[1])


def test_a_table_of_another_spelling_is_widened_in_kind(tmp_path: Path) -> None:
    """With a prefix before its elements, as some .NET programs write them, and ids that are none."""
    source = with_table(tmp_path / "in.xlsx")
    xml = re.sub(rb"<(/?)(?=[a-zA-Z])", rb"<\1x:", parts(source)[TABLE]).replace(b" xmlns=", b" xmlns:x=").decode()
    with_part(source, TABLE, ("(?s).*", xml.replace('id="3"', 'id="c"')))
    _, out = enriched(source)
    assert [column["name"] for column in columns_of(out)] == [*HEADERS, *NINE]
    assert len({column["id"] for column in columns_of(out)}) == 12
    assert ElementTree.fromstring(parts(out)[TABLE]).get("ref") == "A1:L4"


def test_calculated_columns_and_the_totals_row_stay_and_our_texts_in_it_are_labels(tmp_path: Path) -> None:
    columns = [
        {"header": "b_no", "total_string": "합계"},
        {"header": "name", "formula": "=[@address]"},
        {"header": "address", "total_function": "count"},
    ]
    source = with_table(tmp_path / "in.xlsx", "A1:C5", columns=columns, total_row=True)
    report, out = enriched(source)
    assert alerts(report) == []
    table = openpyxl.load_workbook(out).active.tables["고객표"]
    assert (table.ref, table.autoFilter.ref, table.totalsRowCount) == ("A1:L5", "A1:L4", 1)
    assert b"<calculatedColumnFormula>" in parts(out)[TABLE]
    sheet = openpyxl.load_workbook(out).active
    for column, cell in zip(columns_of(out)[3:], sheet[5][3:], strict=True):
        assert column.get("totalsRowLabel") == cell.value
    assert sheet["K5"].value == "invalid"


def test_names_that_differ_in_case_only_are_told_apart(tmp_path: Path) -> None:
    """Excel repairs, that is drops, a table with the columns `Grade` and `grade`."""
    columns = [{"header": header} for header in ("b_no", "Grade", "ACTION")]
    report, out = enriched(with_table(tmp_path / "in.xlsx", columns=columns))
    assert alerts(report) == []
    names = [column["name"] for column in columns_of(out)]
    assert names[3:7] == ["biz_status", "bounce_prob", "grade_bv", "action_bv"]
    assert [cell.value for cell in openpyxl.load_workbook(out).active[1]] == names


def test_a_prefix_with_signs_of_xml_comes_through(tmp_path: Path) -> None:
    _, out = enriched(with_table(tmp_path / "in.xlsx"), prefix='a&"<\n')
    sheet = openpyxl.load_workbook(out).active
    assert columns_of(out)[3]["name"] == 'a&"<_x000a_biz_status'
    assert sheet["D1"].value == 'a&"<\nbiz_status'


def test_tables_side_by_side_are_left_alone_and_the_customers_is_named(tmp_path: Path) -> None:
    def lay_out(sheet: Any) -> None:
        sheet.add_table("A1:C4", {"name": "고객표", "columns": [{"header": header} for header in HEADERS]})
        sheet.add_table("D1:E4", {"name": "코드", "columns": [{"header": "code"}, {"header": "text"}]})

    rows = [[*HEADERS, "code", "text"], *([*row, "x", "y"] for row in ROWS)]
    source = made(tmp_path / "in.xlsx", lay_out, rows)
    report, out = enriched(source)
    (alert,) = alerts(report)
    assert "the table '고객표' (A1:C4)" in alert
    assert "column D ('code') stands between" in alert
    assert changed(source, out) == {SHEET, "xl/styles.xml"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("<table ", '<table tableType="queryTable" '), "it is filled by a query"),
        (("<table ", '<table headerRowCount="0" '), "its header does not stand in row 1"),
        (("<tableColumn [^>]*/></tableColumns>", "</tableColumns>"), "does not list as many columns as it has"),
        (('name="address"', 'name="GRADE"'), "a column of the same name"),
    ],
    ids=["query", "no header", "too few columns", "name taken"],
)
def test_a_table_that_cannot_be_widened_is_left_alone_and_named(
    tmp_path: Path, change: tuple[str, str], said: str
) -> None:
    source = with_part(with_table(tmp_path / "in.xlsx"), TABLE, change)
    report, out = enriched(source)
    (alert,) = alerts(report)
    assert said in alert
    assert parts(out)[TABLE] == parts(source)[TABLE]


def test_a_table_that_ends_before_the_last_record_is_widened_and_named(tmp_path: Path) -> None:
    source = with_table(tmp_path / "in.xlsx", "A1:C3")
    report, out = enriched(source)
    (alert,) = alerts(report)
    assert "ends before the last row of data, 4" in alert
    assert "resize the table to A1:L4" in alert
    assert openpyxl.load_workbook(out).active.tables["고객표"].ref == "A1:L3"


def test_the_command_line_shows_the_alert_before_the_notes(
    run: Callable[..., CompletedProcess[str]], tmp_path: Path
) -> None:
    source = made(tmp_path / "in.xlsx", lambda sheet: sheet.autofilter("B1:C4"))
    done = run("enrich", source, "-o", tmp_path / "out.xlsx")
    assert done.returncode == 0
    lines = [line for line in done.stderr.splitlines() if line.startswith(("ATTENTION", "note"))]
    assert any(line.startswith("ATTENTION") and "B1:C4" in line for line in lines)
    assert lines == sorted(lines, key=lambda line: line.startswith("note"))


def test_formulas_over_a_whole_table_are_named_where_it_grows(tmp_path: Path) -> None:
    """Those about columns are not, nor the function T, a text, another name or a table that stays."""
    formulas = {
        "A1": "=SUM(T)",
        "A2": "=COUNTA(T[#All])",
        "A3": "=ROWS(T[[#Headers],[#Data]])",
        "B1": "=SUM(T[b_no])",
        "B2": "=SUM(T[[b_no]:[name]])",
        "B3": "=T(1)",
        "B4": "=SUM(Tab)",
        "B5": "=SUM(my.T)",
    }
    with xlsxwriter.Workbook(tmp_path / "in.xlsx") as book:
        sheet = book.add_worksheet("고객")
        for number, row in enumerate([HEADERS, *ROWS]):
            sheet.write_row(number, 0, row)
        sheet.add_table("A1:C4", {"name": "T", "columns": [{"header": header} for header in HEADERS]})
        sheet.write_formula("A9", "=SUM(T)")
        other = book.add_worksheet("합계")
        for cell, formula in formulas.items():
            other.write_formula(cell, formula)
        book.define_name("전체", "=T")
        book.define_name("열", "=T[name]")
    (alert,) = [alert for alert in alerts(enriched(tmp_path / "in.xlsx")[0]) if "whole table" in alert]
    assert re.findall(r"(?:고객|합계)![A-Z][0-9]|전체|열", alert.partition(";")[0]) == [
        "고객!A9", "합계!A1", "합계!A2", "합계!A3", "전체",
    ]  # fmt: skip
    left = with_table(tmp_path / "left.xlsx", "B1:C4", columns=[{"header": header} for header in HEADERS[1:]])
    with_part(left, SHEET, ("</sheetData>", '<row r="9"><c r="A9"><f>ROWS(고객표)</f><v>3</v></c></row></sheetData>'))
    assert not any("whole table" in alert for alert in alerts(enriched(left)[0]))


# ── drawings ─────────────────────────────────────────────────────────────────────────────────────────────────────


def a_chart(sheet: Any, anchor: object, width: float = 4.0, height: float = 1.5) -> None:
    """Put a chart, of so many centimetres, to an anchor."""
    chart = BarChart()
    chart.add_data(Reference(sheet, min_col=3, min_row=1, max_row=3))
    chart.width, chart.height = width, height
    chart.anchor = anchor
    sheet.add_chart(chart)


def drawn(path: Path, draw: Callable[[Any], None], titles: int = 0) -> Path:
    book = openpyxl.Workbook()
    for row in [*[["고객 명단"]] * titles, HEADERS, *ROWS]:
        book.active.append(row)
    draw(book.active)
    book.save(path)
    return path


ANCHORS = {
    "a cell and a size": "E2",
    "two cells": TwoCellAnchor(_from=AnchorMarker(col=3, row=0), to=AnchorMarker(col=9, row=20)),
    "a place and a size": AbsoluteAnchor(
        pos=XDRPoint2D(pixels_to_EMU(200), pixels_to_EMU(30)),
        ext=XDRPositiveSize2D(pixels_to_EMU(300), pixels_to_EMU(20)),
    ),
}


@pytest.mark.parametrize("anchor", ANCHORS)
def test_a_chart_over_the_new_columns_is_named_and_not_moved(tmp_path: Path, anchor: str) -> None:
    """The columns stay beside the table, where a sort reaches them; the alert says what lies over them."""
    source = drawn(tmp_path / "in.xlsx", lambda sheet: a_chart(sheet, ANCHORS[anchor]))
    report, out = enriched(source)
    (alert,) = alerts(report)
    assert "in.xlsx [Sheet]: the new columns D to L" in alert
    assert "the chart 'Chart 1'" in alert
    assert "to the right of column L" in alert
    assert [cell.value for cell in openpyxl.load_workbook(out).active[1]] == [*HEADERS, *NINE]
    assert changed(source, out) == {SHEET, "xl/styles.xml"}
    assert alerts(bs.enrich(out, tmp_path / "again.xlsx")) == []


def test_a_picture_over_the_new_columns_is_named(tmp_path: Path) -> None:
    source = made(
        tmp_path / "in.xlsx", lambda sheet: sheet.insert_image("F2", "logo.png", {"image_data": BytesIO(PNG)})
    )
    (alert,) = alerts(enriched(source)[0])
    assert "the picture 'Picture 1' (F2:F2)" in alert


def test_a_drawing_above_below_or_beyond_the_rows_is_not_named(tmp_path: Path) -> None:
    """A size in centimetres is held against the heights of the rows and the widths of the columns."""

    def draw(sheet: Any) -> None:
        a_chart(sheet, "D1", height=2)  # not quite four rows
        a_chart(sheet, "D20")
        a_chart(sheet, "M6")
        a_chart(sheet, "A6", width=4.9)  # not quite three columns

    report, _ = enriched(drawn(tmp_path / "in.xlsx", draw, titles=4))
    assert alerts(report) == []
