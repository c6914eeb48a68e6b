"""What sorts and filters the user's rows reaches the new columns, or is left alone and named."""

from __future__ import annotations

import re
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import openpyxl
import pytest
import xlsxwriter
from openpyxl.chart import BarChart
from openpyxl.drawing.spreadsheet_drawing import AbsoluteAnchor, AnchorMarker, TwoCellAnchor
from openpyxl.drawing.xdr import XDRPoint2D, XDRPositiveSize2D

import bansong as bs
from books import BOOK, MAIN, PNG, SHEET, STYLES, cells, changed, made, parts, spliced, with_part, with_parts, written
from conftest import NINE

HEADERS = ["b_no", "name", "address"]
ROWS = [["124-81-00998", "가", "서울 1"], ["220-81-62517", "나", "서울 2"], ["104-81-53190", "다", "서울 3"]]
LIST = [HEADERS, *ROWS]
TABLE = "xl/tables/table1.xml"
NAME = "고객'1 A&B"
COLUMNS = [{"header": header} for header in HEADERS]


def filtered(path: Path, where: str = "A1:C4", rows: list[list[Any]] = LIST) -> Path:
    return made(path, rows, lambda sheet: sheet.autofilter(where), name=NAME)


def with_table(path: Path, where: str = "A1:C4", **options: object) -> Path:
    return made(path, LIST, lambda sheet: sheet.add_table(where, {"name": "고객표", "columns": COLUMNS} | options))


def beside(*more: object) -> list[list[object]]:
    """The list with further columns: their headers, and the same cells in every row."""
    half = len(more) // 2
    return [[*HEADERS, *more[:half]], *([*row, *more[half:]] for row in ROWS)]


def test_filter_its_name_and_its_sort_state_are_widened_and_nothing_else(tmp_path: Path) -> None:
    """The filter's criteria stay, and so does each part but the sheet, its styles and the workbook's list of names."""

    def lay_out(sheet: Any) -> None:
        sheet.autofilter("A1:C4")
        sheet.filter_column_list("B", ["가", "나"])

    state = '<sortState ref="A2:C4"><sortCondition ref="B2:B4"/></sortState></autoFilter>'
    source = with_part(made(tmp_path / "in.xlsx", LIST, lay_out, name=NAME), SHEET, ("</autoFilter>", state))
    said, out = spliced(source)
    assert (said, changed(source, out)) == ([], {SHEET, BOOK, STYLES})
    old, new = (re.search(rb"<autoFilter.*</autoFilter>", parts(path)[SHEET]) for path in (source, out))
    assert old is not None
    assert new is not None
    assert new[0] == old[0].replace(b'ref="A1:C4"', b'ref="A1:L4"').replace(b'ref="A2:C4"', b'ref="A2:L4"')
    assert parts(out)[BOOK] == parts(source)[BOOK].replace(b"!$A$1:$C$4<", b"!$A$1:$L$4<") != parts(source)[BOOK]


GAP = "column D is blank between your list and the new columns"


class Case(NamedTuple):
    after: str | None = "A1:L4"
    words: tuple[str, ...] = ()
    where: str | None = "A1:C4"
    rows: list[list[Any]] = LIST
    lay_out: Callable[[Any], object] = lambda _: None
    names: tuple[str, str] | None = None  # the filter's hidden name, by which LibreOffice sorts, before and after


HIDDEN = ("hidden name", "anew over A1:L4")
BETWEEN = (f"in.xlsx [{NAME}]", "A1:C4", "column D ('메모')", "before you sort", "A1:M4")
HELD = ("column D holds something else above or below the rows",)
FILTERS = {
    "one that bears our name to the left": Case(
        "B1:M4", where="B1:D4", rows=[["grade", *HEADERS], *(["x", *row] for row in ROWS)]
    ),
    "a column between": Case("A1:C4", BETWEEN, rows=beside("메모", "x")),
    "without the number": Case("B1:C4", ("column A ('b_no') is not in it",), "B1:C4"),
    "of another list": Case("E1:F4", (GAP,), "E1:F4", beside(None, "code", "text", None, 1, "x")),
    "rows below": Case(words=("the last row of data, 5",), rows=[*LIST, ["120-81-47521", "라", "서울 4"]]),
    "cells below": Case("A1:C9", HELD, "A1:C9", lay_out=lambda sheet: sheet.write_formula("D7", '=""', None, "")),
    "protected": Case(words=("the sheet is protected", "A1:C4"), lay_out=lambda sheet: sheet.protect("secret")),
    "none, a memo beside": Case(None, (GAP, "mark all columns"), None, lay_out=lambda sheet: sheet.write("J3", "m")),
    "none, a memo below": Case(None, (GAP, "mark all columns"), None, lay_out=lambda sheet: sheet.write("J6", "m")),
    "a name without rows": Case(names=("$A:$C", "$A:$L")),
    "a name without columns": Case(names=("$1:$4", "$1:$4")),
    "a shorter name": Case(names=("$A$1:$B$4", "$A$1:$L$4")),
    "another name": Case("A1:C4", HIDDEN, names=("$B$1:$C$4", "$B$1:$C$4")),
    "a formula as its name": Case("A1:C4", HIDDEN, names=("OFFSET($A$1,0,0,4,3)", "OFFSET($A$1,0,0,4,3)")),
}


@pytest.mark.parametrize("case", FILTERS)
def test_a_filter_is_widened_or_left_alone_and_named(tmp_path: Path, case: str) -> None:
    after, words, where, rows, draw, names = FILTERS[case]
    source = made(tmp_path / "in.xlsx", rows, lambda sheet: (where and sheet.autofilter(where), draw(sheet)), name=NAME)
    if names:
        with_part(source, BOOK, (r"!\$A\$1:\$C\$4<", f"!{names[0]}<"))
    said, out = spliced(source)
    assert [all(word in one for word in words) for one in said] == [True] * bool(words)
    assert openpyxl.load_workbook(out).active.auto_filter.ref == after
    assert names is None or f"!{names[1]}<".encode() in parts(out)[BOOK]
    assert after != where or parts(out)[BOOK] == parts(source)[BOOK]


def test_filters_of_whole_columns_and_sort_states_without_a_filter_are_widened(tmp_path: Path) -> None:
    source = with_part(filtered(tmp_path / "a.xlsx"), SHEET, ('<autoFilter ref="A1:C4"', '<autoFilter ref="A:C"'))
    said, out = spliced(source)
    assert (said, openpyxl.load_workbook(out).active.auto_filter.ref) == ([], "A1:L1048576")
    state = '<sortState ref="A2:C4"><sortCondition ref="B2:B4"/></sortState>'
    source = with_part(made(tmp_path / "b.xlsx", LIST), SHEET, ("</sheetData>", f"</sheetData>{state}"))
    assert state.replace("A2:C4", "A2:L4").encode() in parts(spliced(source)[1])[SHEET]


def test_the_filter_of_another_sheet_keeps_its_name(tmp_path: Path) -> None:
    with xlsxwriter.Workbook(tmp_path / "in.xlsx") as book:
        for name, rows in (("안내", [["a", "b", "c"]] * 4), ("고객", LIST)):
            sheet = book.add_worksheet(name)
            for number, row in enumerate(rows):
                sheet.write_row(number, 0, row)
            sheet.autofilter("A1:C4")
    _, out = spliced(tmp_path / "in.xlsx")
    names = dict(re.findall(r">'?(\w+)'?!\$A\$1:\$([A-Z])\$4<", parts(out)[BOOK].decode()))
    assert names == {"고객": "L", "안내": "C"}


def test_labels_are_reached_when_they_are_added_and_in_the_runs_after(tmp_path: Path) -> None:
    filtered(tmp_path / "1.xlsx")
    for before, after in ((1, 2), (2, 3)):
        bs.enrich(tmp_path / f"{before}.xlsx", tmp_path / f"{after}.xlsx", with_outcomes=after == 2)
        assert openpyxl.load_workbook(tmp_path / f"{after}.xlsx").active.auto_filter.ref == "A1:O4"
        with_part(tmp_path / f"{after}.xlsx", SHEET, ('<autoFilter ref="A1:O4"', '<autoFilter ref="A1:C4"'))


def test_the_command_line_shows_the_alert_before_the_notes_and_names_no_totals_row(tmp_path: Path, run: Any) -> None:
    filtered(tmp_path / "in.xlsx", "B1:C4")
    said = run("enrich", "in.xlsx").stderr.splitlines()
    lines = [line for line in said if line.startswith(("ATTENTION", "note"))]
    assert any(line.startswith("ATTENTION") and "B1:C4" in line for line in lines)
    assert lines == sorted(lines, key=lambda line: line.startswith("note"))
    filtered(tmp_path / "in.xlsx", "A1:C4", [*LIST, ["합계", None, None]])
    assert "last row of data" not in run("enrich", "in.xlsx").stderr


def columns_of(path: Path) -> list[dict[str, str]]:
    return [dict(column.attrib) for column in ElementTree.fromstring(parts(path)[TABLE]).iter(f"{MAIN}tableColumn")]


def test_a_table_gets_our_columns_under_the_names_in_its_header(tmp_path: Path) -> None:
    source = with_table(tmp_path / "in.xlsx")
    said, out = spliced(source)
    assert (said, changed(source, out)) == ([], {SHEET, TABLE, STYLES})
    assert [column["name"] for column in columns_of(out)] == [*HEADERS, *NINE]
    assert len({column["id"] for column in columns_of(out)}) == 12
    table = openpyxl.load_workbook(out).active.tables["고객표"]
    assert (table.ref, table.autoFilter.ref) == ("A1:L4", "A1:L4")
    listed = re.compile(rb"<tableColumns[^>]*>(.*?)</tableColumns>")
    old, new = (listed.findall(parts(path)[TABLE])[0] for path in (source, out))
    assert new.startswith(old)
    assert b'<tableColumns count="12">' in parts(out)[TABLE]


def test_a_table_of_another_spelling_is_widened_in_kind(tmp_path: Path) -> None:
    """With a prefix before the elements of its parts, as some .NET programs write them, and ids that are none."""
    source = with_part(with_table(tmp_path / "in.xlsx"), TABLE, ('id="3"', 'id="c"'))
    for part in (SHEET, STYLES, TABLE):
        xml = re.sub(rb"<(/?)(?=[a-zA-Z])", rb"<\1x:", parts(source)[part]).replace(b" xmlns=", b" xmlns:x=")
        with_parts(source, {part: xml})
    _, out = spliced(source)
    assert not any(re.findall(rb"<(?!/?x:)[^?]", parts(out)[part]) for part in (SHEET, STYLES, TABLE))
    assert [row[3:6] for row in cells(out)][:2] == [NINE[:3], ("active", "0.25", "B")]
    assert [column["name"] for column in columns_of(out)] == [*HEADERS, *NINE]
    assert len({column["id"] for column in columns_of(out)}) == 12
    assert ElementTree.fromstring(parts(out)[TABLE]).get("ref") == "A1:L4"


def test_calculated_columns_and_the_totals_row_stay_and_our_texts_in_it_are_labels(tmp_path: Path) -> None:
    columns = [
        {"header": "b_no", "total_string": "합계"},
        {"header": "name", "formula": "=[@address]"},
        {"header": "address", "total_function": "count"},
    ]
    said, out = spliced(with_table(tmp_path / "in.xlsx", "A1:C5", columns=columns, total_row=True))
    sheet = openpyxl.load_workbook(out).active
    table = sheet.tables["고객표"]
    assert (said, table.ref, table.autoFilter.ref, table.totalsRowCount) == ([], "A1:L5", "A1:L4", 1)
    assert b"<calculatedColumnFormula>" in parts(out)[TABLE]
    for column, cell in zip(columns_of(out)[3:], sheet[5][3:], strict=True):
        assert column.get("totalsRowLabel") == (cell.value if isinstance(cell.value, str) else None)
    assert sheet["K5"].value == "verified"


def test_names_that_differ_in_case_only_are_told_apart_and_signs_of_xml_come_through(tmp_path: Path) -> None:
    """Excel repairs, that is drops, a table with the columns `Grade` and `grade`."""
    columns = [{"header": header} for header in ("b_no", "Grade", "ACTION")]
    _, out = spliced(with_table(tmp_path / "in.xlsx", columns=columns))
    names = [column["name"] for column in columns_of(out)]
    assert names[3:7] == ["biz_status", "bounce_prob", "grade_bv", "action_bv"]
    assert [cell.value for cell in openpyxl.load_workbook(out).active[1]] == names
    bs.enrich(with_table(tmp_path / "in.xlsx"), tmp_path / "out.xlsx", prefix='a&"<\n')
    assert columns_of(tmp_path / "out.xlsx")[3]["name"] == 'a&"<_x000a_biz_status'
    assert openpyxl.load_workbook(tmp_path / "out.xlsx").active["D1"].value == 'a&"<\nbiz_status'


def test_tables_side_by_side_are_left_alone_and_the_customers_is_named(tmp_path: Path) -> None:
    def lay_out(sheet: Any) -> None:
        sheet.add_table("A1:C4", {"name": "고객표", "columns": COLUMNS})
        sheet.add_table("D1:E4", {"name": "코드", "columns": [{"header": "code"}, {"header": "text"}]})

    source = made(tmp_path / "in.xlsx", beside("code", "text", "x", "y"), lay_out)
    said, out = spliced(source)
    words = ("the table '고객표' (A1:C4)", "column D ('code') stands between")
    assert [all(word in one for word in words) for one in said] == [True]
    assert changed(source, out) == {SHEET, STYLES}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (("<table ", '<table tableType="queryTable" '), "it is filled by a query"),
        (("<table ", '<table headerRowCount="0" '), "its header does not stand in row 1"),
        (("<tableColumn [^>]*/></tableColumns>", "</tableColumns>"), "does not list as many columns as it has"),
        (('name="address"', 'name="GRADE"'), "a column of the same name"),
    ],
    ids=["query", "no header", "too few columns", "name taken"],
)
def test_a_table_that_cannot_be_widened_is_left_alone_and_named(
    tmp_path: Path, change: tuple[str, str], word: str
) -> None:
    source = with_part(with_table(tmp_path / "in.xlsx"), TABLE, change)
    said, out = spliced(source)
    assert [word in one for one in said] == [True]
    assert parts(out)[TABLE] == parts(source)[TABLE]


def test_a_table_that_ends_before_the_last_record_is_widened_and_named(tmp_path: Path) -> None:
    said, out = spliced(with_table(tmp_path / "in.xlsx", "A1:C3"))
    words = ("ends before the last row of data, 4", "resize the table to A1:L4")
    assert [all(word in one for word in words) for one in said] == [True]
    assert openpyxl.load_workbook(out).active.tables["고객표"].ref == "A1:L3"


def test_formulas_over_a_whole_table_are_named_where_it_grows(tmp_path: Path) -> None:
    whole = ["=SUM(T)", "=COUNTA(T[#All])", "=ROWS(T[[#Headers],[#Data]])"]
    other = ["=SUM(T[b_no])", "=SUM(T[[b_no]:[name]])", "=T(1)", "=SUM(Tab)", "=SUM(my.T)"]
    with xlsxwriter.Workbook(tmp_path / "in.xlsx") as book:
        sheet = book.add_worksheet("고객")
        for number, row in enumerate(LIST):
            sheet.write_row(number, 0, row)
        sheet.add_table("A1:C4", {"name": "T", "columns": COLUMNS})
        sheet.write_formula("A9", "=SUM(T)")
        sums = book.add_worksheet("합계")
        for number, formula in enumerate([*whole, *other]):
            sums.write_formula(number, 0, formula)
        book.define_name("전체", "=T")
        book.define_name("열", "=T[name]")
    (alert,) = [one for one in spliced(tmp_path / "in.xlsx")[0] if "whole table" in one]
    named = re.findall(r"(?:고객|합계)![A-Z][0-9]|전체|열", alert.partition(";")[0])
    assert named == ["고객!A9", "합계!A1", "합계!A2", "합계!A3", "전체"]
    left = with_table(tmp_path / "left.xlsx", "B1:C4", columns=COLUMNS[1:])
    with_part(left, SHEET, ("</sheetData>", '<row r="9"><c r="A9"><f>ROWS(고객표)</f><v>3</v></c></row></sheetData>'))
    assert not any("whole table" in one for one in spliced(left)[0])


def with_charts(path: Path, *anchors: object, titles: int = 0, width: float = 4.0) -> Path:
    book = openpyxl.load_workbook(written(path, [*[["고객 명단"]] * titles, *LIST]))
    for anchor in anchors:
        chart = BarChart()
        chart.width, chart.height, chart.anchor = width, 1.5, anchor
        book.active.add_chart(chart)
    book.save(path)
    return path


ANCHORS = {
    "a cell and a size": "E2",
    "two cells": TwoCellAnchor(_from=AnchorMarker(col=3, row=0), to=AnchorMarker(col=9, row=20)),
    "a place and a size": AbsoluteAnchor(pos=XDRPoint2D(1905000, 285750), ext=XDRPositiveSize2D(2857500, 190500)),
}


@pytest.mark.parametrize("anchor", ANCHORS)
def test_a_chart_over_the_new_columns_is_named_and_not_moved(tmp_path: Path, anchor: str) -> None:
    source = with_charts(tmp_path / "in.xlsx", ANCHORS[anchor])
    said, out = spliced(source)
    words = ("in.xlsx [S]: the new columns D to L", "the chart 'Chart 1'", "to the right of column L")
    assert [all(word in one for word in words) for one in said] == [True]
    assert [cell.value for cell in openpyxl.load_workbook(out).active[1]] == [*HEADERS, *NINE]
    assert changed(source, out) == {SHEET, STYLES}
    assert spliced(out)[0] == []


def test_a_picture_over_the_new_columns_is_named_and_what_lies_elsewhere_is_not(tmp_path: Path) -> None:
    """A size in centimetres is held against the heights of the rows and the widths of the columns."""
    image = {"image_data": BytesIO(PNG)}
    said, _ = spliced(made(tmp_path / "in.xlsx", LIST, lambda sheet: sheet.insert_image("F2", "logo.png", image)))
    assert ["the picture 'Picture 1' (F2:F2)" in one for one in said] == [True]
    assert spliced(with_charts(tmp_path / "in.xlsx", "D1", "D20", "M6", titles=4))[0] == []
    assert spliced(with_charts(tmp_path / "in.xlsx", "A6", titles=4, width=4.9))[0] == []
