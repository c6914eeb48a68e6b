"""The user's workbook comes back as it was, nine columns wider; a new one holds every cell unchanged."""

from __future__ import annotations

import datetime as dt
import sys
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import fastexcel
import openpyxl
import polars as pl
import pytest
import xlsxwriter
from hypothesis import given
from hypothesis import strategies as st
from openpyxl.worksheet.formula import ArrayFormula

import bansong as bs
from bansong.base.schema import ADDED_COLUMNS
from bansong.errors import OutputError
from bansong.tables.detect import FORMATS, open_table, write_table
from bansong.tables.excel.sheet_xml import column_letter
from bansong.tables.table import Enriched, Section
from conftest import NINE, SAMPLE, spreadsheet, write
from examples import examples

NUMBER = "124-81-00998"
SHEET = "xl/worksheets/sheet1.xml"


def parts(path: Path) -> dict[str, bytes]:
    with ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def enriched(path: Path, name: str = "out.xlsx") -> Path:
    bs.enrich(path, path.with_name(name))
    return path.with_name(name)


def cells(path: Path, sheet: str | int = 0) -> list[tuple[object, ...]]:
    """Every cell as text, read by the reader, stored results of formulas among them."""
    return fastexcel.read_excel(path).load_sheet(sheet, header_row=None, dtypes="string").to_polars().rows()


def written(path: Path, rows: list[list[object]]) -> Path:
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    book.save(path)
    return path


def test_every_other_part_of_the_package_is_byte_identical(tmp_path: Path) -> None:
    """Charts, formulas with their results, comments, other sheets: only the sheet and the styles' end change."""
    source = tmp_path / "in.xlsx"
    with xlsxwriter.Workbook(source) as book:
        sheet = book.add_worksheet("고객")
        money = book.add_format({"num_format": "#,##0", "bg_color": "#FFEEDD"})
        for row, line in enumerate([["b_no", "상호", "금액"], [NUMBER, "가", 1200], ["2208162517", "나", 3400.5]]):
            sheet.write_row(row, 0, line, money)
        sheet.write_formula("C4", "=SUM(C2:C3)", money, 4600.5)
        sheet.write_comment("A2", "note")
        chart = book.add_chart({"type": "column"})
        chart.add_series({"values": "=고객!$C$2:$C$3"})
        sheet.insert_chart("E10", chart)
        book.add_worksheet("other").write("A1", "kept")
        book.define_name("금액들", "=고객!$C$2:$C$3")
    before, after = parts(source), parts(enriched(source))
    assert list(before) == list(after)
    assert [name for name in before if before[name] != after[name]] == ["xl/styles.xml", SHEET] or [
        name for name in before if before[name] != after[name]
    ] == [SHEET, "xl/styles.xml"]
    head = before["xl/styles.xml"].partition(b"</cellXfs>")[0].partition(b"<cellXfs")[2].partition(b">")[2]
    assert head in after["xl/styles.xml"]
    assert cells(enriched(source))[3][:3] == (None, None, "4600.5")


def test_cells_that_openpyxl_would_change_stay_as_they_are(tmp_path: Path) -> None:
    """Dates out of range, odd times, long fractions, stored formula results: read again, they are the same."""
    source = tmp_path / "in.xlsx"
    with xlsxwriter.Workbook(source) as book:
        sheet = book.add_worksheet()
        date, time = book.add_format({"num_format": "yyyy-mm-dd"}), book.add_format({"num_format": "hh:mm:ss"})
        sheet.write_row(0, 0, ["사업자번호", "날짜", "시각", "긴수"])
        sheet.write_formula("A2", '="124"&"8100998"', None, "1248100998")
        sheet.write_number("B2", 20240101, date)
        sheet.write_number("C2", 60.5, time)
        sheet.write_number("D2", 45000.1234567891)
    one = enriched(source)
    two = enriched(one, "two.xlsx")
    for path in (one, two):
        assert [row[:4] for row in cells(path)] == [row[:4] for row in cells(source)]
        assert [row[-2] for row in cells(path)] == ["row_status", "verified"]
        raw = parts(path)[SHEET].decode()
        for value in ("20240101", "60.5", "45000.1234567891", "1248100998"):
            assert f"<v>{value}</v>" in raw


@pytest.mark.parametrize(
    "rows",
    [
        [[None, "b_no", "name", "address"], ["=ROW()", NUMBER, "가", "서울 1"]],
        [["b_no", "name", "address", None], [NUMBER, "가", "서울 1", "=1+1"]],
        [["=TODAY()"], ["b_no", "name", "address"], [NUMBER, "가", "서울 1"]],
        [[None, None], [None, "b_no", "name"], [None, NUMBER, "가"], [None, None, "나"]],
    ],
    ids=["formulas to the left", "formulas to the right", "a formula above", "blank edges"],
)
def test_what_lies_around_the_table_is_not_overwritten(tmp_path: Path, rows: list[list[object]]) -> None:
    source = written(tmp_path / "in.xlsx", rows)
    after = openpyxl.load_workbook(enriched(source)).active
    for down, row in enumerate(rows, 1):
        for right, value in enumerate(row, 1):
            assert after.cell(down, right).value == value
    assert {cell.value for row in after.iter_rows() for cell in row} >= set(NINE)


def test_merged_cells_and_styled_blanks_beside_the_table_do_no_harm(tmp_path: Path) -> None:
    source = written(tmp_path / "in.xlsx", [["b_no", "name"], [NUMBER, "가"], ["합계", None]])
    book = openpyxl.load_workbook(source)
    book.active.merge_cells("A3:D3")
    for row in (1, 2):
        for column in (5, 9, 20):
            book.active.cell(row, column).fill = openpyxl.styles.PatternFill("solid", fgColor="FFFF00")
    book.save(source)
    out = enriched(source)
    sheet = openpyxl.load_workbook(out).active
    assert [cell.value for cell in sheet[1]][4:13] == list(NINE)
    assert sheet["T1"].fill.fgColor.rgb == "00FFFF00"
    assert "A3:D3" in [str(merged) for merged in sheet.merged_cells.ranges]
    references = [cell.coordinate for cell in sheet[2]]
    assert references == sorted(references, key=lambda name: (len(name), name))
    assert [row[-1] for row in cells(enriched(out, "again.xlsx"))] == [row[-1] for row in cells(out)]


def array_at(path: Path, column: int, ref: str) -> Path:
    """Put an array formula into a workbook's second row whose other cells are not in the file."""
    book = openpyxl.load_workbook(path)
    book.active.cell(2, column).value = ArrayFormula(ref, f"=TRANSPOSE({ref})")
    book.save(path)
    return path


def test_the_range_of_an_array_formula_is_not_free_space(tmp_path: Path) -> None:
    """Excel would say that the workbook is damaged, or lose our cells when it works the formula out."""
    source = array_at(written(tmp_path / "in.xlsx", [["b_no", "name"], [NUMBER, "가"], [NUMBER, "나"]]), 3, "C2:E3")
    sheet = openpyxl.load_workbook(enriched(source)).active
    assert [cell.value for cell in sheet[1]] == ["b_no", "name", None, None, None, *NINE]
    assert sheet["C2"].value.ref == "C2:E3"


def test_an_array_formula_over_our_columns_is_not_overwritten(tmp_path: Path) -> None:
    """Entered beside them after an earlier run, it reaches into them."""
    source = written(tmp_path / "in.xlsx", [["b_no", "name", None], [NUMBER, "가", "x"], [NUMBER, "나", "x"]])
    again = array_at(enriched(source), 3, "C2:D3")
    before = again.read_bytes()
    with pytest.raises(OutputError, match="formulas stand in the columns"):
        enriched(again, "again.xlsx")
    assert not (tmp_path / "again.xlsx").exists()
    assert again.read_bytes() == before


def test_a_column_added_to_the_right_of_ours_stays_when_ours_are_replaced(tmp_path: Path) -> None:
    one = enriched(written(tmp_path / "in.xlsx", [["b_no", "name"], [NUMBER, "가"], ["x", "나"]]))
    book = openpyxl.load_workbook(one)
    for row, value in enumerate(["메모", "first", "second"], 1):
        book.active.cell(row, 12, value)
    book.save(one)
    two = cells(enriched(one, "two.xlsx"))
    assert [row[11] for row in two] == ["메모", "first", "second"]
    assert list(two[0]) == ["b_no", "name", *NINE, "메모"]


def test_a_column_of_the_users_amid_ours_stays_and_ours_are_replaced(tmp_path: Path) -> None:
    """A column of the user's that bears one of our names amid ours is not overwritten."""
    one = enriched(written(tmp_path / "in.xlsx", [["b_no", "name"], [NUMBER, "가"]]))
    book = openpyxl.load_workbook(one)
    book.active.insert_cols(6)
    for row, value in enumerate(["grade", "OLD"], 1):
        book.active.cell(row, 6, value)
    book.save(one)
    two = cells(enriched(one, "two.xlsx"))
    assert two[1][5] == "OLD"
    assert two[0][2:] == (*NINE[:3], "grade", *NINE[3:])


def test_a_formula_below_our_columns_is_not_swept_away(tmp_path: Path) -> None:
    one = enriched(written(tmp_path / "in.xlsx", [["b_no", "name"], [NUMBER, "가"], [NUMBER, "나"]]))
    book = openpyxl.load_workbook(one)
    book.active["A4"], book.active["E4"] = "합계", '=COUNTIF(E2:E3,"C")'
    book.save(one)
    with pytest.raises(OutputError, match="formulas stand in the columns of the earlier enrichment"):
        enriched(one, "two.xlsx")


def repacked(path: Path, changed: dict[str, bytes]) -> Path:
    with ZipFile(path, "w") as archive:
        for name, data in changed.items():
            archive.writestr(name, data)
    return path


@pytest.mark.parametrize("kind", [b"", b' t="str"'], ids=["no result", "empty text"])
def test_empty_results_of_formulas_count_as_the_reader_counts_them(tmp_path: Path, kind: bytes) -> None:
    source = tmp_path / "in.xlsx"
    with xlsxwriter.Workbook(source) as book:
        sheet = book.add_worksheet()
        sheet.write_row(0, 1, ["b_no", "name"])
        sheet.write_row(1, 1, [NUMBER, "가"])
        sheet.write_formula("A2", '=IF(FALSE,"x","")', None, "")
    changed = parts(source)
    changed[SHEET] = changed[SHEET].replace(b'<c r="A2">', b'<c r="A2"' + kind + b">")
    two = cells(enriched(enriched(repacked(source, changed)), "two.xlsx"))
    start = two[0].index("b_no")
    assert two[0][start:] == ("b_no", "name", *NINE)
    assert two[1][start : start + 2] == (NUMBER, "가")


@pytest.mark.parametrize(
    ("part", "old", "new", "outcome"),
    [
        (SHEET, b'encoding="UTF-8"', b'encoding="ISO-8859-1"', "encoded in ISO-8859-1"),
        (SHEET, b"<sheetData>", b"<sheetData ><!-- x -->", "hold comments"),
        (SHEET, b"<sheetData>", b"<sheetData >", None),
        (SHEET, b'<c r="B2"', b'<c r="B2" s="77"', None),
        ("xl/_rels/workbook.xml.rels", b"sheet1.xml", b"Sheet1.xml", None),
    ],
    ids=[
        "another encoding",
        "a comment among the rows",
        "a blank in a tag",
        "a style that is not there",
        "another case",
    ],
)
def test_odd_packages_are_extended_rightly_or_refused(
    tmp_path: Path, part: str, old: bytes, new: bytes, outcome: str | None
) -> None:
    source = tmp_path / "in.xlsx"
    with xlsxwriter.Workbook(source) as book:
        sheet = book.add_worksheet()
        sheet.write_row(0, 0, ["b_no", "name"])
        sheet.write_row(1, 0, [NUMBER, "가"])
    changed = parts(source)
    assert old in changed[part]
    changed[part] = changed[part].replace(old, new)
    repacked(source, changed)
    if outcome:
        with pytest.raises(OutputError, match=outcome):
            enriched(source)
    else:
        assert cells(enriched(source))[1][-2] == "verified"


def test_the_new_cells_look_like_their_neighbours(tmp_path: Path) -> None:
    out = tmp_path / "out.xlsx"
    bs.enrich(SAMPLE / "customers.xlsx", out)
    sheet = openpyxl.load_workbook(out).worksheets[0]
    assert (sheet["I1"].font.b, sheet["I1"].fill.fgColor.rgb) == (sheet["H1"].font.b, sheet["H1"].fill.fgColor.rgb)
    assert sheet["K5"].border.bottom.style == sheet["H5"].border.bottom.style == "thin"
    assert sheet["J5"].number_format == "0.00%"
    assert sheet.column_dimensions["O"].width == 70
    assert sheet.dimensions == "A1:Q301"


def test_a_workbook_without_cell_references_is_refused_with_a_way_out(tmp_path: Path) -> None:
    source = written(tmp_path / "in.xlsx", [["b_no"], [NUMBER]])
    stripped = parts(source)
    stripped[SHEET] = stripped[SHEET].replace(b' r="A1"', b"").replace(b' r="A2"', b"")
    repacked(source, stripped)
    with pytest.raises(OutputError, match=r"cannot be extended.*`output='OUT\.csv'`"):
        enriched(source)
    bs.enrich(source, tmp_path / "out.csv")


def test_times_and_durations_are_read_and_a_hidden_sheet_is_not_chosen(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    book.active.append(["사업자번호"])
    book.active.sheet_state = "hidden"
    sheet = book.create_sheet("보임")
    sheet.append(["b_no", "시각", "시간", "섞임"])
    sheet.append([NUMBER, dt.time(3, 4, 5), dt.timedelta(hours=30), dt.timedelta(hours=1)])
    book.save(tmp_path / "in.xlsx")
    report = bs.enrich(tmp_path / "in.xlsx", tmp_path / "out.csv")
    assert report.table == "in.xlsx [보임]"
    assert pl.read_csv(tmp_path / "out.csv", infer_schema=False).row(0)[1:3] == ("03:04:05", "30:00:00")
    sheet.append([NUMBER, dt.time(4, 4, 5), None, dt.datetime(2024, 1, 1)])
    book.save(tmp_path / "in.xlsx")
    assert bs.enrich(tmp_path / "in.xlsx", tmp_path / "out.xlsx").counts["verified"] == 2


# ── new workbooks ────────────────────────────────────────────────────────────────────────────────────────────────


def test_text_of_every_kind_is_held_unchanged_by_a_new_workbook(tmp_path: Path) -> None:
    texts = [
        "=1+1",
        "https://example.org/" + "x" * 2100,
        "mailto:foo@example.org",
        "internal:Sheet1!A1",
        "  spaces  ",
        "a\nb",
        "<&>\"'",
        "_x0041_",
        "tab\there",
        "똠방각하 ☃ 𝄞",
        "00012",
        "+82-2-1234",
        "@me",
    ]
    pl.DataFrame({"b_no": [NUMBER] * len(texts), "memo": texts}).write_parquet(tmp_path / "in.parquet")
    sheet = openpyxl.load_workbook(enriched(tmp_path / "in.parquet")).active
    found = [sheet.cell(row, 2) for row in range(2, len(texts) + 2)]
    from openpyxl.utils.escape import unescape

    assert [unescape(cell.value) for cell in found] == texts
    assert {cell.data_type for cell in found} <= {"s", "inlineStr"}


def test_values_that_excel_cannot_hold_as_numbers_become_text(tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {
            "b_no": [1248100998, 2208162517],
            "big": [12345678901234567, 5],
            "float": [float("nan"), 1.5],
            "inf": [float("inf"), -0.25],
            "date": [dt.date(1800, 1, 1), dt.date(2024, 2, 29)],
            "zoned": pl.Series([dt.datetime(2024, 1, 1, tzinfo=dt.UTC), None]),
            "when": [dt.datetime(2024, 1, 2, 12), None],
            "span": [dt.timedelta(hours=30), None],
            "exact": pl.Series(["1.10", "2.20"]).cast(pl.Decimal(20, 2)),
            "yes": [True, None],
            "deep": [{"a": [1]}, None],
        }
    )
    frame.write_parquet(tmp_path / "in.parquet")
    rows = list(openpyxl.load_workbook(enriched(tmp_path / "in.parquet")).active.values)
    assert rows[1][:3] == (1248100998, "12345678901234567", "NaN")
    assert rows[1][3:6] == ("inf", "1800-01-01", "2024-01-01T00:00:00+00:00") or rows[1][3:5] == ("inf", "1800-01-01")
    assert (rows[2][1], rows[2][2], rows[2][3], rows[2][4]) == (5, 1.5, -0.25, dt.datetime(2024, 2, 29))
    assert rows[1][6] == dt.datetime(2024, 1, 2, 12)
    assert rows[1][8:11] == ("1.10", True, '{"a":[1]}')


def test_headers_that_differ_in_case_only_or_repeat_stay(tmp_path: Path) -> None:
    source = write(tmp_path / "in.csv", "b_no,Name,name,name,,row\n1248100998,a,b,c,d,e\n")
    assert cells(enriched(source))[0][:6] == ("b_no", "Name", "name", "name", None, "row")
    assert cells(enriched(source))[1][:6] == ("1248100998", "a", "b", "c", "d", "e")


def test_binary_data_is_refused_by_name(tmp_path: Path) -> None:
    pl.DataFrame({"b_no": [NUMBER], "blob": [b"\x00"]}).write_parquet(tmp_path / "in.parquet")
    with pytest.raises(OutputError, match="'blob' holds binary data, which Excel cannot hold"):
        enriched(tmp_path / "in.parquet")


def answered(
    source: Path, target: Path, layout: list[tuple[str, str]] | None = None, sections: tuple[Section, ...] = ()
) -> Path:
    """Write a file as a workbook with answers that are all the same, without an engine."""
    with open_table(source) as table:
        added = [pl.lit(0.5 if name == "bounce_prob" else "A").alias(name) for name in ADDED_COLUMNS]
        frame = table.frame.with_columns(added)
        columns = [*zip(table.ids, table.headers, strict=True), *((name, name) for name in ADDED_COLUMNS)]
        summary = (lambda _: sections) if sections else None
        result = Enriched(table, frame, tuple(layout or columns), frame.select(rows=pl.len()), summary)
        _, count = write_table(result, target, FORMATS["xlsx"])
        assert count() == table.count()
    return target


texts = st.text(st.characters(codec="utf-8", exclude_characters="\r"), min_size=1, max_size=12)
odd = st.sampled_from(
    ["  a ", "_x0041_", "_x000D_", "\x01", "\ufffe", "00012", "9" * 20, "=1+1", "a\tb\n", "]]>", "&amp;"]
)


@examples(25)
@given(values=st.lists(texts | odd, min_size=1, max_size=20))
def test_any_text_comes_back_from_a_new_workbook_as_it_was(tmp_path: Path, values: list[str]) -> None:
    """Spaces, control characters, what looks like an escape, long numbers: told by openpyxl."""
    from openpyxl.utils.escape import unescape

    pl.DataFrame({"b_no": [NUMBER] * len(values), "memo": values}).write_parquet(tmp_path / "in.parquet")
    sheet = openpyxl.load_workbook(answered(tmp_path / "in.parquet", tmp_path / "out.xlsx")).active
    assert [unescape(cell.value) for cell in sheet["B"][1:]] == values


def test_a_new_workbook_has_a_frozen_header_a_filter_widths_and_coloured_grades(tmp_path: Path) -> None:
    source = write(tmp_path / "in.csv", f"b_no,우편번호\n{NUMBER},01234\n")
    sheet = openpyxl.load_workbook(answered(source, tmp_path / "out.xlsx")).active
    assert (sheet.title, sheet.freeze_panes, sheet.auto_filter.ref) == ("bansong", "A2", "A1:K2")
    assert sheet["A1"].font.b
    assert (sheet["B2"].value, sheet["B2"].data_type, sheet["D2"].number_format) == ("01234", "s", "0.0%")
    assert sheet.column_dimensions["I"].width == 70
    (rules,) = sheet.conditional_formatting
    assert str(rules.sqref) == "E2"
    assert [rule.formula for rule in rules.rules] == [[f'"{grade}"'] for grade in "ABCDE"]
    assert len({rule.dxf.fill.bgColor.rgb for rule in rules.rules}) == 5


def test_rows_beyond_what_a_sheet_holds_go_on_in_further_sheets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["bansong.tables.excel.create"], "MAX_ROWS", 4)
    source = write(tmp_path / "in.csv", "b_no\n" + "".join(f"{number}\n" for number in range(9)))
    book = openpyxl.load_workbook(answered(source, tmp_path / "out.xlsx"))
    assert book.sheetnames == ["bansong", "bansong 2", "bansong 3"]
    columns = [[cell.value for cell in sheet["A"]] for sheet in book]
    assert columns == [["b_no", "0", "1", "2", "3"], ["b_no", "4", "5", "6", "7"], ["b_no", "8"]]
    assert [sheet.auto_filter.ref for sheet in book] == ["A1:J5", "A1:J5", "A1:J2"]
    assert [sheet.freeze_panes for sheet in book] == ["A2"] * 3


TITLED = [["거래처 목록", None, None], [], [None, "기준일", "=x"], ["사업자번호", "상호", "주소"]]


@pytest.mark.parametrize("options", [{}, {"summary": True}, {"select": ["상호", "사업자번호"]}])
def test_title_rows_stand_above_the_header_of_a_new_workbook_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """Of an old workbook, or one of which columns are left out; filter, colours and frozen rows fit."""
    lines = [["" if cell is None else str(cell) for cell in row] for row in TITLED]
    source = spreadsheet(tmp_path / "in.ods", [*lines, [NUMBER, "가", "서울"], ["2208162517", "나", "부산"]])
    if "select" in options:
        source = tmp_path / "in.xlsx"
        with xlsxwriter.Workbook(source, {"strings_to_formulas": False}) as book:
            sheet = book.add_worksheet()
            for number, row in enumerate([*TITLED, [NUMBER, "가", "서울"], ["2208162517", "나", "부산"]]):
                sheet.write_row(number, 0, row)
    monkeypatch.setattr(sys.modules["bansong.tables.excel.create"], "MAX_ROWS", 4)
    report = bs.enrich(source, tmp_path / "out.xlsx", **options)
    assert report.rows == 2
    first, second = openpyxl.load_workbook(tmp_path / "out.xlsx").worksheets[:2]
    assert [[cell.value for cell in row[:3]] for row in first["1:3"]] == [
        [*row, *[None] * (3 - len(row))] for row in TITLED[:3]
    ]
    assert first["C3"].data_type == "s"
    header = [cell.value for cell in first[4]]
    assert header[-9:] == list(NINE)
    assert (first["A4"].font.b, first["A1"].font.b) == (True, False)
    last = column_letter(len(header))
    assert (first.freeze_panes, first.auto_filter.ref, first.max_row) == ("A5", f"A4:{last}5", 5)
    assert (second.freeze_panes, second.auto_filter.ref, second.max_row) == ("A2", f"A1:{last}2", 2)
    assert [cell.value for cell in second[1]] == header
    assert not any("above the header" in warning for warning in report.warnings)


def test_title_rows_that_another_format_has_no_place_for_are_named(tmp_path: Path) -> None:
    source = spreadsheet(tmp_path / "in.ods", [["목록"], ["사업자번호", "상호"], [NUMBER, "가"]])
    report = bs.enrich(source, tmp_path / "out.csv")
    assert "1 title line above the header not in the output; in a workbook it has all lines" in report.warnings


def test_a_summary_sheet_holds_the_figures_and_charts_of_grades_and_actions(tmp_path: Path) -> None:
    sections = (
        Section("rows", (("verified", 3), ("invalid", 1))),
        Section("grades", tuple((grade, count) for count, grade in enumerate("ABCDE"))),
        Section("actions", (("send", 2), ("fix_address", 0), ("confirm", 0), ("hold", 0), ("do_not_send", 1))),
    )
    source = write(tmp_path / "in.csv", f"b_no\n{NUMBER}\n")
    out = answered(source, tmp_path / "out.xlsx", sections=sections)
    sheet = openpyxl.load_workbook(out)["summary"]
    assert [row[:2] for row in sheet.values][:4] == [("rows", None), ("verified", 3), ("invalid", 1), (None, None)]
    assert len(sheet._charts) == 2
    assert "xl/charts/chart2.xml" in parts(out)


def test_a_summary_is_refused_for_a_workbook_of_the_users(tmp_path: Path) -> None:
    source = written(tmp_path / "in.xlsx", [["b_no"], [NUMBER]])
    with pytest.raises(OutputError, match="leave `summary=True` out"):
        answered(source, tmp_path / "out.xlsx", sections=(Section("rows", (("verified", 1),)),))


def test_a_workbook_of_which_columns_are_left_out_becomes_a_new_one(tmp_path: Path) -> None:
    source = written(tmp_path / "in.xlsx", [["b_no", "name", "memo"], [NUMBER, "가", "나"]])
    out = answered(source, tmp_path / "out.xlsx", [("c0", "b_no"), ("c2", "memo"), ("grade", "grade")])
    assert cells(out) == [("b_no", "memo", "grade"), (NUMBER, "나", "A")]
    assert openpyxl.load_workbook(out).sheetnames == ["bansong"]


def test_a_cell_of_too_many_characters_is_named(tmp_path: Path) -> None:
    pl.DataFrame({"b_no": [NUMBER] * 2, "memo": ["a", "b" * 32_768]}).write_parquet(tmp_path / "in.parquet")
    with pytest.raises(OutputError, match=r"column 'memo', row 2: a cell of more than 32,767 characters"):
        answered(tmp_path / "in.parquet", tmp_path / "out.xlsx")
