"""A sheet is read as Excel shows it: the right sheet, below its header, every row and every value."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import openpyxl
import pytest
import xlsxwriter
from openpyxl.chart import BarChart

from bansong.base.options import ReadOptions
from bansong.errors import InputError, UsageError
from bansong.tables.detect import FORMATS
from bansong.tables.excel import limits as limits_check
from bansong.tables.excel.read import Sheet, load_isolated
from bansong.tables.streams import File
from bansong.tables.table import Table
from books import NUMBER, SHEET, made, with_part
from conftest import spreadsheet
from office import converted

TABLE: list[list[object]] = [["b_no", "name"], [NUMBER, "가"], ["2208162517", "나"]]


def opened(path: Path, sheet: str | None = None, format: str = "xlsx") -> Table:
    return FORMATS[format].verbs.read(File(path, path), ReadOptions(sheet=sheet), ExitStack())


def rows(table: Table) -> list[tuple[object, ...]]:
    return table.frame.select(table.ids).collect().rows()


def book(path: Path, sheets: dict[str, list[list[Any]]], merges: Sequence[str] = ()) -> Path:
    """A workbook by openpyxl; a sheet whose name begins with ``-`` is hidden."""
    made = openpyxl.Workbook()
    made.remove(made.active)
    for name, lines in sheets.items():
        sheet = made.create_sheet(name.removeprefix("-"))
        sheet.sheet_state = "hidden" if name.startswith("-") else "visible"
        for line in lines:
            sheet.append(line)
        for merged in merges:
            sheet.merge_cells(merged)
    made.save(path)
    return path


FORM = [["사업자번호", "상호"]]
SHEETS: list[tuple[dict[str, list[list[Any]]], str, tuple[str, ...]]] = [
    ({"표지": [["안내"], ["업체 목록"]], "양식": FORM, "-숨김": TABLE, "목록": TABLE}, "목록", ()),
    ({"메모": [["글", "값"], ["a", 1]], "-숨김": TABLE}, "메모", ()),
    ({"빈": [], "코드": [["a", "b"], *[[NUMBER, "x"]] * 3], "목록": TABLE}, "코드", ("목록",)),
    ({"메모": [["글"], ["a"]], "양식": FORM}, "양식", ()),
    ({"맨몸": [[NUMBER], [NUMBER]], "목록": TABLE}, "목록", ("맨몸",)),
]


def test_the_first_visible_sheet_with_business_numbers_is_read(tmp_path: Path) -> None:
    """Covers, empty forms and hidden sheets give way; further sheets with numbers are named in a note."""
    for sheets, chosen, others in SHEETS:
        table = opened(book(tmp_path / "in.xlsx", sheets))
        assert (table.source, table.name) == (Sheet(chosen), f"in.xlsx [{chosen}]")
        named = [all(repr(name) in note and "`sheet=" in note for name in others) for note in table.notes]
        assert named == [True] * bool(others)


def test_a_named_sheet_is_read_even_when_it_is_hidden_and_what_is_none_is_refused(tmp_path: Path) -> None:
    path = book(tmp_path / "in.xlsx", {"목록": TABLE, "-숨김": [["사업자번호"], ["1"]], "빈": [], "수": [[NUMBER]] * 2})
    assert opened(path, "숨김").headers == ("사업자번호",)
    for sheet, error, said in (
        ("없음", UsageError, "no sheet '없음'; it has '목록', '숨김', '빈', '수'"),
        ("빈", InputError, "sheet '빈' is empty"),
        ("수", InputError, r"in\.xlsx \[수\]: has no header, row 1 holds a number of ten digits"),
    ):
        with pytest.raises(error, match=said):
            opened(path, sheet)


def test_a_chart_sheet_is_no_table(tmp_path: Path) -> None:
    path = book(tmp_path / "in.xlsx", {"S": TABLE})
    charted = openpyxl.load_workbook(path)
    charted.create_chartsheet("그림", 0).add_chart(BarChart())
    charted.save(path)
    assert opened(path).name == "in.xlsx [S]"
    with pytest.raises(UsageError, match="'그림' is a chart"):
        opened(path, "그림")


def test_rows_are_counted_from_the_header_wherever_the_table_stands(tmp_path: Path) -> None:
    """Below titles and beside blank columns, blank rows between stay rows: row i is a known row of the sheet."""

    def lay_out(sheet: Any) -> None:
        sheet.write("C3", "거래처 목록 2024")
        sheet.write_row("C6", ["사업자번호", "2024", 2025, "상호", "상호"])
        sheet.write_row("C8", [NUMBER, 1, 2, "가", "나"])
        sheet.write_row("C11", ["합계", 1, 2])

    table = opened(made(tmp_path / "in.xlsx", [], lay_out, name="S"))
    assert table.source == Sheet("S", 3)
    assert table.headers == ("사업자번호", "2024", "2025", "상호", "상호")
    blank = (None,) * 5
    assert rows(table) == [blank, (NUMBER, 1, 2, "가", "나"), blank, blank, ("합계", 1, 2, None, None)]


def test_merged_header_lines_are_read_as_one(tmp_path: Path) -> None:
    lines = [[], [None, "제목"], [None, "번호", "공급자", None, "공급받는자"]]
    lines += [[None, None, "등록번호", "상호", "등록번호", "상호"], [None, 1, NUMBER, "가", "2208162517", "나"]]
    table = opened(book(tmp_path / "in.xlsx", {"S": lines}, ["B2:F2", "B3:B4", "C3:D3", "E3:F3"]))
    assert table.headers == ("번호", "공급자 등록번호", "공급자 상호", "공급받는자 등록번호", "공급받는자 상호")
    assert (table.source, rows(table)) == (Sheet("S", 2), [(1, NUMBER, "가", "2208162517", "나")])


def test_repeated_and_blank_headers_are_read_as_they_stand(tmp_path: Path) -> None:
    """The parser's made-up names for them are nobody's headers; a real header that looks like one is kept."""
    headers = ["b_no", "상호", "상호", None, "상호_1", "__UNNAMED__1"]
    table = opened(book(tmp_path / "in.xlsx", {"S": [headers, [NUMBER, "a", "b", "c", "d", "e"]]}))
    assert table.headers == ("b_no", "상호", "상호", "", "상호_1", "__UNNAMED__1")
    assert rows(table) == [(NUMBER, "a", "b", "c", "d", "e")]


DAY, MOMENT, CLOCK, HOURS = "yyyy-mm-dd", "yyyy-mm-dd hh:mm", "hh:mm", "[h]:mm:ss"
VALUES: dict[str, tuple[tuple[Any, str | None], tuple[Any, str | None], tuple[object, object]]] = {
    "b_no": ((1248100998, None), (2208162517, None), (1248100998, 2208162517)),
    "우편": (("04524", None), ("06234", None), ("04524", "06234")),
    "코드": (("7", None), (7, None), ("7", "7")),
    "날짜": ((dt.date(2024, 1, 2), DAY), (dt.date(2024, 1, 3), DAY), (dt.date(2024, 1, 2), dt.date(2024, 1, 3))),
    "날짜와 글": ((dt.date(2024, 1, 2), DAY), ("미정", None), ("2024-01-02", "미정")),
    "글뿐": (("2024-01-02 00:00:00", None), ("x", None), ("2024-01-02 00:00:00", "x")),
    "날짜와 수": ((dt.datetime(2024, 1, 2, 3, 4), MOMENT), (5.25, None), ("2024-01-02 03:04:00", "5.25")),
    "시각": ((0.5, CLOCK), (0.75, CLOCK), (dt.time(12), dt.time(18))),
    "시각과 글": ((0.5, CLOCK), ("오후", None), ("12:00:00", "오후")),
    "시간": ((1.5, HOURS), (0.25, HOURS), ("36:00:00", "6:00:00")),
    "시간과 글": ((1.5, HOURS), ("없음", None), ("36:00:00", "없음")),
    "여부": ((True, None), (False, None), (True, False)),
    "비율": ((0.5, None), (0.25, None), (0.5, 0.25)),
}


def test_values_are_read_as_excel_shows_them_in_a_process_of_their_own_too(tmp_path: Path) -> None:
    path = tmp_path / "in.xlsx"
    with xlsxwriter.Workbook(path) as made:
        sheet = made.add_worksheet("S")
        for place, (header, (one, two, _)) in enumerate(VALUES.items()):
            sheet.write(0, place, header)
            for row, (value, shown) in enumerate((one, two), 1):
                sheet.write(row, place, value, made.add_format({"num_format": shown}) if shown else None)
    here = opened(path)
    assert list(zip(*rows(here), strict=True)) == [shown for *_, shown in VALUES.values()]
    apart = load_isolated(path, path, ReadOptions(), None)
    assert (apart.name, apart.headers, apart.header) == ("S", here.headers, 0)
    assert apart.frame.equals(here.frame.select(apart.frame.columns).collect())
    with pytest.raises(UsageError, match="no sheet 'T'"):
        load_isolated(path, path, ReadOptions(sheet="T"), None)


def test_the_memory_that_a_sheet_may_take_is_reckoned_from_its_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is counted once, wherever the sheet's XML is cut, and holds the longest text twice: parser's and frame's."""
    path = made(tmp_path / "in.xlsx", [["값", place, "가" * 200] for place in range(50)])
    for chunk in (1 << 20, 100):
        monkeypatch.setattr(limits_check, "_CHUNK", chunk)
        part = limits_check.check_zip(path, path, xml=True)[SHEET]
        assert (part.cells, part.memory(longest=600) - part.memory()) == (150, 150 * 2 * 600)


def test_errors_and_formulas_without_a_result_read_as_blank_and_are_told(tmp_path: Path) -> None:
    """An empty text is a result: formulas that are filled down in advance have it."""
    path = made(tmp_path / "in.xlsx", TABLE, lambda sheet: sheet.write_formula(2, 1, "=NA()", None, "#N/A"))
    table = opened(path)
    assert rows(table) == [(NUMBER, "가"), ("2208162517", None)]
    assert table.notes == ("errors such as #N/A in 1 cell of the sheet are read as blank",)
    for formula, result, told in (
        ("=A2", None, True),
        (None, None, False),
        ("=A2", ' t="str"><f>A2</f><v></v>', False),
        ("=A2", " ><f>A2</f><v>5</v>", False),
        ("=A2", ' t="str"><f>A2</f><v>5</v>', False),
    ):
        path = book(tmp_path / "in.xlsx", {"S": [*TABLE, [formula, "다"]]})
        if result:
            with_part(path, SHEET, ("><f>A2</f><v ?/?>(?:</v>)?", result))
        table = opened(path)
        assert [row[1] for row in rows(table)] == ["가", "나", "다"]
        assert ["have no stored result" in note for note in table.notes] == [True] * told


def test_a_used_range_that_is_claimed_only_is_no_rows(tmp_path: Path) -> None:
    with xlsxwriter.Workbook(tmp_path / "in.xlsx") as made:
        sheet, framed = made.add_worksheet("S"), made.add_format({"border": 1})
        for row, line in enumerate(TABLE):
            sheet.write_row(row, 0, line)
        for row in (*range(3, 300), 1048575):
            sheet.write_blank(row, 3, None, framed)
    assert rows(opened(tmp_path / "in.xlsx")) == [(NUMBER, "가"), ("2208162517", "나")]


def test_rows_of_formulas_without_a_result_behind_the_table_are_counted(tmp_path: Path) -> None:
    old = 't="n"><v>7</v>'
    for result in ('t="str"><f>A9</f><v></v>', 't="e"><f>A9</f><v>#N/A</v>', 't="str"><v>  </v>'):
        path = book(tmp_path / "in.xlsx", {"S": [*TABLE, *[[None, 7]] * 2]})
        table = opened(with_part(path, SHEET, (old, result), (old, result)))
        assert (rows(table), table.source) == ([(NUMBER, "가"), ("2208162517", "나")], Sheet("S", below=2))


def test_an_open_document_spreadsheet_is_read_and_times_that_the_parser_does_not_give_are_told(tmp_path: Path) -> None:
    """Lengths of a day and more come out of an .ods as blank, without a word from the parser."""
    path = spreadsheet(tmp_path / "in.ods", [["목록"], ["사업자번호", "상호", "상호"], [NUMBER, "가", "36:30"]])
    time = 'office:value-type="time" office:time-value="PT36H30M00S"><text:p>36:30'
    with_part(path, "content.xml", ('office:value-type="string"><text:p>36:30', time))
    table = opened(path, format="ods")
    assert (table.headers, rows(table)) == (("사업자번호", "상호", "상호"), [(NUMBER, "가", None)])
    assert (table.source, table.name) == (None, "in.ods [S]")
    assert ["save it as .xlsx" in note for note in table.notes] == [True]


@pytest.mark.process
def test_old_excel_and_open_document_files_read_as_the_xlsx_does(tmp_path: Path) -> None:
    lines = [["고객 목록"], [], ["사업자번호", "상호", "금액", "날짜", "비고"]]
    lines += [[NUMBER, "가", 1200, dt.date(2024, 1, 2), "x"], ["2208162517", "나", 5, dt.date(2024, 1, 3), 7]]
    path = book(tmp_path / "in.xlsx", {"표지": [["안내"]], "목록": lines})
    expected = opened(path)
    for format in ("xls", "ods"):
        found = opened(converted(path, format), format=format)
        assert (found.headers, rows(found)) == (expected.headers, rows(expected))
