"""What portals and ERPs send as .xls is often a web page: the table in it is read as the page shows it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import openpyxl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import bansong as bs
from bansong.errors import InputError, UsageError
from bansong.tables.detect import open_table
from bansong.tables.html import Page
from bansong.tables.table import Table
from conftest import NINE
from examples import examples

N = "124-81-00998"
HEAD = "<tr><th>사업자등록번호</th><th>상호</th><th>주소</th></tr>"
ERP = f"""<html xmlns:x="urn:schemas-microsoft-com:office:excel">
<head><meta http-equiv="Content-Type" content="text/html; charset=euc-kr"><title>거래처</title>
<style><!-- .xl65 {{mso-number-format:"\\@";}} td > b {{}} --></style>
<!--[if gte mso 9]><xml><x:ExcelWorkbook><x:Name>Sheet1</x:Name></x:ExcelWorkbook></xml><![endif]-->
</head><body>
<table border=1>
<tr><td colspan=4 style="font-size:16pt">거래처 현황</td></tr>
<tr><td colspan="4">조회일: 2026-11-01 &nbsp;</td></tr>
<tr><th rowspan=2>번호</th><th colspan=2>거래처</th><th rowspan=2>주소</th></tr>
<tr><th>사업자등록번호</th><th>상호</th></tr>
<tr><td>1</td><td class=xl65 style='mso-number-format:"\\@"'>{N}&nbsp;</td>
    <td><font color=red><b>삼성</b>전자</font></td><td>경기도 수원시<br>영통구 삼성로&nbsp;129</td></tr>
<TR><TD>2<TD x:num="208162517">0208162517<TD>&lt;나&amp;다&gt;
   주식회사<TD>&nbsp;
<tr><td>3</td><td>2208162517</td></tr>
<tr><td colspan=2>합계</td><td>3</td></tr>
<![if supportMisalignedColumns]><tr height=0 style='display:none'><td width=72></td></tr><![endif]>
</table></body></html>"""


def read(path: Path, data: bytes | str, **options: Any) -> tuple[Table, list[tuple[str | None, ...]]]:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    with open_table(path, bs.ReadOptions(**options)) as table:
        return table, table.frame.collect().rows()


@pytest.mark.parametrize("encoding", ["cp949", "utf-8", "utf-8-sig", "utf-16"])
def test_a_page_called_xls_is_read_as_a_browser_shows_its_table(tmp_path: Path, encoding: str) -> None:
    table, rows = read(tmp_path / "거래처.xls", ERP.encode(encoding))
    assert table.format.name == "html"
    assert table.headers == ("번호", "거래처 사업자등록번호", "거래처 상호", "주소")
    assert rows == [
        ("1", N, "삼성전자", "경기도 수원시\n영통구 삼성로\xa0129"),
        ("2", "0208162517", "<나&다> 주식회사", None),
        ("3", "2208162517", None, None),
        ("합계", None, "3", None),
    ]


def test_a_page_is_enriched_into_a_new_workbook_and_what_is_lost_is_said(tmp_path: Path) -> None:
    (tmp_path / "in.xls").write_bytes(ERP.encode("cp949"))
    report = bs.enrich(tmp_path / "in.xls")
    assert report.output == str(tmp_path / "in.enriched.xlsx")
    sheet = openpyxl.load_workbook(report.output).active
    rows = list(sheet.iter_rows(values_only=True))[2:]  # below the title rows
    assert rows[0] == ("번호", "거래처 사업자등록번호", "거래처 상호", "주소", *NINE)
    assert [row[1] for row in rows[1:]] == [N, "0208162517", "2208162517", None]
    assert any("what the web page has beside its table is not in it" in warning for warning in report.warnings)
    with pytest.raises(UsageError) as caught:
        bs.enrich(tmp_path / "in.xls", in_place=True)
    assert caught.value.code == "files.format_only_read"


def test_the_table_with_business_numbers_is_read_and_others_are_named(tmp_path: Path) -> None:
    menu = "<table><tr><td>메뉴</td><td>홈</td></tr></table>"
    data = f"<table>{HEAD}<tr><td>{N}</td><td>가</td><td>서울</td></tr></table>"
    other = f"<table><tr><td>사업자번호</td><td>비고</td></tr><tr><td>{N}</td><td>x</td></tr></table>"
    page = f"<html><table><tr><td>{menu}</td><td>안내 {data}</td></tr></table>{other}</html>"
    table, rows = read(tmp_path / "a.xls", page)
    assert rows == [(N, "가", "서울")]
    assert "'table 4' hold business numbers too; `sheet='table 4'` takes another" in table.notes[0]
    assert read(tmp_path / "a.xls", page, sheet="table 4")[1] == [(N, "x")]
    with pytest.raises(UsageError) as caught:
        read(tmp_path / "a.xls", page, sheet="table 9")
    assert caught.value.code == "html.html_table_missing"


def test_tables_of_equal_width_that_follow_one_another_are_one(tmp_path: Path) -> None:
    body = "".join(f"<table><tr><td>{N}</td><td>가{i}</td><td>서울</td></tr></table><br>" for i in range(60))
    _, rows = read(tmp_path / "a.xls", f"<table>{HEAD}</table>{body}")
    assert [row[1] for row in rows] == [f"가{i}" for i in range(60)]


def test_rows_that_only_end_are_rows(tmp_path: Path) -> None:
    body = "".join(f"<td>{N}</td><td>가{i}</td><td>서울</td></TR>\n" for i in range(3))
    _, rows = read(tmp_path / "a.xls", f"<table>{HEAD}{body}</table>")
    assert rows == [(N, f"가{i}", "서울") for i in range(3)]


def test_cells_that_span_rows_stand_in_the_first_of_them(tmp_path: Path) -> None:
    row = f"<tr><td rowspan=2>{N}</td><td>가</td><td rowspan=3>서울</td></tr>"
    _, rows = read(tmp_path / "a.xls", f"<table>{HEAD}{row}<tr><td>나<tr><td>2208162517<td>다</table>")
    assert rows == [(N, "가", "서울"), (None, "나", None), ("2208162517", "다", None)]


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ("<!DOCTYPE html><html><head><title>로그인</title></head></html>", "html.page_without_table"),
        ("<html><table></table>", "html.page_without_table"),
        (f"<table><tr><td>{N}</td><td>가</td></tr></table>", "columns.number_as_header"),
        (
            '<?xml version="1.0"?><Workbook xmlns="urn:schemas-microsoft-com:office:spreadsheet"/>',
            "excel.excel_2003_xml",
        ),
        ("MIME-Version: 1.0\r\nContent-Type: multipart/related; boundary=x\r\n\r\n<html><table>", "html.mhtml_page"),
        ("<?xml version='1.0'?><Books/>", "files.unknown_xml"),
        (b"<html><table><tr><td>\xff\xfe</table>", "csv.neither_utf8_nor_cp949"),
    ],
)
def test_a_page_that_holds_no_table_is_refused_by_what_it_is(tmp_path: Path, content: str | bytes, code: str) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path / "a.xls", content)
    assert caught.value.code == code


def test_a_page_of_another_encoding_is_read_when_it_is_named(tmp_path: Path) -> None:
    page = f"<table>{HEAD}<tr><td>{N}</td><td>가</td><td>서울</td></tr></table>"
    _, rows = read(tmp_path / "a.xls", page.encode("johab"), encoding="johab")
    assert rows == [(N, "가", "서울")]


MEGABYTE = 1 << 20
HOSTILE = {
    "a comment without an end": ("<table><!--" + "x" * 4 * MEGABYTE, "a tag or a comment without an end"),
    "many comments without an end": ("<table>" + "<!--" * MEGABYTE, "a tag or a comment without an end"),
    "a tag without an end": ("<table><td a='" + "<b " * MEGABYTE, "a tag or a comment without an end"),
    "cells that span all columns": ("<table>" + "<td colspan=999999>" * 99, "of more than 16,384 columns"),
    "cells that span many rows": ("<table>" + "<tr><td rowspan=99999 colspan=16000>" * 9999, "more than"),
    "a wide row and many short ones": (
        "<table><tr><td colspan=16000><td>x" + "<tr><td>" * 99_999,
        "more than 30,000,000 cells",
    ),
    "tables in tables": ("<table><td>" * 9999, "nested too deeply"),
    "tables without number": ("<table></table>" * 99_999, "too many"),
    "a cell of a novel": ("<table><tr><td>" + "가" * 99_999, "a cell of more than 32,767 characters"),
    "half a page": ("<table><td a='" + "x" * 99_999, "ends in the middle of a tag or a comment"),
    "brackets": ("<" * MEGABYTE + "<table>", "a web page without a table"),
    "half entities": ("<table><td>" + "&#x" * MEGABYTE, "a cell of more than 32,767 characters"),
    "declarations": ("<table>" + "<!a " * MEGABYTE, "a tag or a comment without an end"),
    "attributes": ("<table><td " + "a='b' " * 99_999 + ">", "a web page without a table"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_page_is_refused_before_it_takes_time_or_memory(tmp_path: Path, what: str) -> None:
    content, message = HOSTILE[what]
    started = time.process_time()
    with pytest.raises(InputError, match=message):
        read(tmp_path / "a.xls", f"<html>{content}")
    assert time.process_time() - started < 20


PIECES = [
    *("<table>", "</table>", "<tr>", "</tr>", "<td>", "</td>", "<td rowspan=2>", "<td colspan=3>", "<th>", "</tr >"),
    *("<br>", "&nbsp;", "&#0;", "가", "1", "<script>", "</script>", "<!--", "-->", "<", ">", '"', "<![", "\n"),
]


def read_page(parts: list[bytes]) -> list[Any] | str:
    """The first rows of each table, or the error."""
    page = Page(Path("a"))
    try:
        page.read(parts)
    except InputError as error:
        return str(error)
    assert all(grid.frame().height <= grid.height for grid in page.grids if grid.width)
    return [grid.top for grid in page.grids]


@example(page=["<table>", "<td>", "1", "</tr>", "<td>", "가", "</tr >"], cut=3)
@given(page=st.lists(st.sampled_from(PIECES), max_size=40), cut=st.integers(1, 20))
@examples(300)
def test_a_page_is_the_same_however_it_is_cut_into_parts(page: list[str], cut: int) -> None:
    data = "".join(page).encode()
    whole, cut_up = read_page([data]), read_page([data[start : start + cut] for start in range(0, len(data), cut)])
    assert whole == cut_up
