"""A new workbook holds every cell unchanged, and looks like a list that somebody keeps."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import openpyxl
import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from openpyxl.utils.escape import unescape

import bansong as bs
from bansong.base.messages import use_language
from bansong.base.schema import word_of
from bansong.errors import OutputError
from bansong.tables.excel.sheet_xml import column_letter
from books import NUMBER, made, spliced
from conftest import NINE, spreadsheet, write
from examples import examples

TEXTS = [
    *("=1+1", "https://example.org/" + "x" * 2100, "mailto:foo@example.org", "internal:Sheet1!A1", "  spaces  "),
    *("a\nb", "<&>\"'", "_x0041_", "_x000D_", "tab\there", "똠방각하 ☃ 𝄞", "00012", "+82-2-1234", "@me", "9" * 20),
    *("  a ", "\x01", "\ufffe", "a\tb\n", "]]>", "&amp;"),
]


@examples(25)
@given(values=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r"), min_size=1), min_size=1))
@example(values=TEXTS)
def test_any_text_comes_back_from_a_new_workbook_as_it_was(tmp_path: Path, values: list[str]) -> None:
    pl.DataFrame({"b_no": [NUMBER] * len(values), "memo": values}).write_parquet(tmp_path / "in.parquet")
    sheet = openpyxl.load_workbook(spliced(tmp_path / "in.parquet")[1]).active
    assert [unescape(cell.value) for cell in sheet["B"][1:]] == values
    assert {cell.data_type for cell in sheet["B"][1:]} <= {"s", "inlineStr"}


def test_values_that_excel_cannot_hold_as_numbers_become_text(tmp_path: Path) -> None:
    when, zoned = dt.datetime(2024, 1, 2, 12), dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    rows = [
        (1248100998, 12345678901234567, float("nan"), float("inf"), dt.date(1800, 1, 1), when, Decimal("1.10"), True),
        (2208162517, 5, 1.5, -0.25, dt.date(2024, 2, 29), None, Decimal("2.20"), None),
    ]
    schema = ["b_no", "big", "float", "inf", "date", "when", "exact", "yes"]
    frame = pl.DataFrame(rows, schema, orient="row").with_columns(deep=pl.lit({"a": [1]}), zoned=pl.lit(zoned))
    frame.write_parquet(tmp_path / "in.parquet")
    _, one, two = openpyxl.load_workbook(spliced(tmp_path / "in.parquet")[1]).active.values
    assert one[:5] == (1248100998, "12345678901234567", "NaN", "inf", "1800-01-01")
    assert one[5:9] == (dt.datetime(2024, 1, 2, 12), "1.10", True, '{"a":[1]}')
    assert str(one[9]).startswith("2024-01-01")
    assert two[1:5] == (5, 1.5, -0.25, dt.datetime(2024, 2, 29))


def test_what_no_cell_can_hold_is_refused_by_name(tmp_path: Path) -> None:
    for memo, said in (
        ([b"a", b"\x00"], "'memo' holds binary data, which Excel cannot hold"),
        (["a", "b" * 32_768], r"column 'memo', row 2: a cell of more than 32,767 characters"),
    ):
        pl.DataFrame({"b_no": [NUMBER] * 2, "memo": memo}).write_parquet(tmp_path / "in.parquet")
        with pytest.raises(OutputError, match=said):
            spliced(tmp_path / "in.parquet")


def test_a_new_workbook_has_a_frozen_header_a_filter_widths_and_coloured_words(tmp_path: Path) -> None:
    sheet = openpyxl.load_workbook(spliced(write(tmp_path / "in.csv", f"b_no,우편번호\n{NUMBER},01234\n"))[1]).active
    assert (sheet.title, sheet.freeze_panes, sheet.auto_filter.ref) == ("bansong", "A2", "A1:K2")
    assert (sheet["A1"].font.b, sheet.column_dimensions["I"].width) == (True, 70)
    assert (sheet["B2"].value, sheet["B2"].data_type, sheet["D2"].number_format) == ("01234", "s", "0.0%")
    grades, actions = sheet.conditional_formatting
    assert (str(grades.sqref), str(actions.sqref)) == ("E2", "F2")
    assert [rule.formula for rule in grades.rules] == [[f'"{grade}"'] for grade in "ABCDE"]
    colours = [[rule.dxf.fill.bgColor.rgb for rule in one.rules] for one in (grades, actions)]
    assert (len(set(colours[0])), colours[0]) == (5, colours[1])


def test_rows_beyond_what_a_sheet_holds_go_on_in_further_sheets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bansong.tables.excel.create.MAX_ROWS", 4)
    source = write(tmp_path / "in.csv", "b_no\n" + "".join(f"{number}\n" for number in range(9)))
    book = openpyxl.load_workbook(spliced(source)[1])
    assert book.sheetnames == ["bansong", "bansong 2", "bansong 3"]
    columns = [[cell.value for cell in sheet["A"]] for sheet in book]
    assert columns == [["b_no", "0", "1", "2", "3"], ["b_no", "4", "5", "6", "7"], ["b_no", "8"]]
    assert [sheet.auto_filter.ref for sheet in book] == ["A1:J5", "A1:J5", "A1:J2"]
    assert [sheet.freeze_panes for sheet in book] == ["A2"] * 3


TITLED = [["거래처 목록", None, None], [], [None, "기준일", "=x"], ["사업자번호", "상호", "주소"]]
LIST = [[NUMBER, "가", "서울"], ["2208162517", "나", "부산"]]


@pytest.mark.parametrize("options", [{"summary": True}, {"select": ["상호", "사업자번호"]}])
def test_title_rows_stand_above_the_header_of_a_new_workbook_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    if "select" in options:
        source = made(tmp_path / "in.xlsx", [*TITLED, *LIST], lambda sheet: sheet.write_string("C3", "=x"))
    else:
        lines = [["" if cell is None else str(cell) for cell in row] for row in TITLED]
        source = spreadsheet(tmp_path / "in.ods", [*lines, *LIST])
    monkeypatch.setattr("bansong.tables.excel.create.MAX_ROWS", 4)
    report = bs.enrich(source, tmp_path / "out.xlsx", **options)
    first, second = openpyxl.load_workbook(tmp_path / "out.xlsx").worksheets[:2]
    found = [[cell.value for cell in row[:3]] for row in first["1:3"]]
    assert found == [[*row, *[None] * (3 - len(row))] for row in TITLED[:3]]
    assert first["C3"].data_type == "s"
    header = [cell.value for cell in first[4]]
    assert header[-9:] == list(NINE)
    assert (first["A4"].font.b, first["A1"].font.b) == (True, False)
    last = column_letter(len(header))
    assert (first.freeze_panes, first.auto_filter.ref, first.max_row) == ("A5", f"A4:{last}5", 5)
    assert (second.freeze_panes, second.auto_filter.ref, second.max_row) == ("A2", f"A1:{last}2", 2)
    assert [cell.value for cell in second[1]] == header
    assert not any("above the header" in warning for warning in report.warnings)


def test_the_words_of_an_action_have_their_colour_in_either_language(tmp_path: Path) -> None:
    """In a workbook that is made, in one that is spliced, and in one that is enriched again: once, and best first."""
    made(tmp_path / "in.xlsx", [("b_no",), (NUMBER,)])
    write(tmp_path / "in.csv", f"b_no\n{NUMBER}\n")
    for source in ("in.xlsx", "in.csv"):
        for place, headers in enumerate(("en", "ko", "ko")):
            out = tmp_path / f"{place}.xlsx"
            bs.enrich(tmp_path / (source if place < 2 else "1.xlsx"), out, headers=headers)
            _, actions = openpyxl.load_workbook(out).worksheets[0].conditional_formatting
            words = [rule.formula[0].strip('"') for rule in actions.rules]
            codes = ["send", "confirm", "fix_address", "hold", "do_not_send"]
            assert words == [word_of(code, headers) for code in codes]


def test_a_summary_says_how_each_added_column_is_read(tmp_path: Path) -> None:
    """Under the headers of the output, and no line for the user's columns; the actions in their colours."""
    write(tmp_path / "in.csv", f"b_no,grade\n{NUMBER},금\n")
    with use_language("ko"):
        bs.enrich(tmp_path / "in.csv", tmp_path / "out.xlsx", summary=True, headers="ko", prefix="반송_")
    book = openpyxl.load_workbook(tmp_path / "out.xlsx")
    told = [row for row in book["읽는 법"].iter_rows(values_only=True) if row[0]]
    assert [header for header, _ in told[:9]] == [cell.value for cell in book["bansong"][1]][2:]
    assert [word for word, _ in told[9:]] == ["발송", "확인 후 발송", "주소 보완", "보류", "발송 금지"]
    assert all(meaning for _, meaning in told)


def test_a_summary_sheet_has_charts_of_grades_and_actions(tmp_path: Path) -> None:
    bs.enrich(write(tmp_path / "in.csv", f"b_no\n{NUMBER}\n"), tmp_path / "out.xlsx", summary=True)
    assert len(openpyxl.load_workbook(tmp_path / "out.xlsx")["summary"]._charts) == 2
