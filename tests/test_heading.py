"""The header of a table is found below titles and over two lines, and a row of data is never taken for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bansong.base.schema import ADDED_COLUMNS
from bansong.errors import InputError
from bansong.tables.headers import Heading, find_heading
from examples import examples

NUMBER = "124-81-00998"
TAX_PORTAL = ["작성일자", "승인번호", "발급일자", "전송일자"]
TAX_PORTAL += ["공급자사업자등록번호", "종사업장번호", "상호", "대표자명", "주소"]
TAX_PORTAL += ["공급받는자사업자등록번호", "종사업장번호", "상호", "대표자명", "주소", "합계금액", "공급가액", "세액"]
PAIR = ["등록번호", "상호", "등록번호", "상호"]
PAIRED = ("공급자 등록번호", "공급자 상호", "공급받는자 등록번호", "공급받는자 상호")


@pytest.mark.parametrize(
    ("rows", "first", "headers"),
    [
        ([["b_no", "name"], [NUMBER, "가"]], 0, ("b_no", "name")),
        ([["b_no", "name"]], 0, ("b_no", "name")),
        (
            [["거래처 목록"], [], ["기간", "2024.01~"], ["사업자번호", "상호"], [NUMBER, "가"]],
            3,
            ("사업자번호", "상호"),
        ),
        ([["사업자번호 목록"], ["사업자번호"], [NUMBER]], 1, ("사업자번호",)),
        ([["사업자번호"], ["x"], [NUMBER]], 0, ("사업자번호",)),
        ([["사업자등록번호", NUMBER], ["번호", "업체명"], ["1", "가"]], 1, ("번호", "업체명")),
        (
            [["결재", "담당", "과장"], ["사업자번호", "상호", "주소"], [NUMBER, "가", "서울"]],
            1,
            ("사업자번호", "상호", "주소"),
        ),
        ([["A", "B"], ["사업자", "x"], ["y", "주소"], [NUMBER, "z"]], 0, ("A", "B")),
        ([["b_no", "name"], ["x", "거래처 주소"], ["y", "상호"]], 0, ("b_no", "name")),
        ([["2023", "2024", "2025"], ["1", "2", "3"]], 0, ("2023", "2024", "2025")),
        ([["표제"], ["가", "나", "다"], ["1", "2", "3"]], 1, ("가", "나", "다")),
        ([["", None, " "], ["b_no", "", "b_no"], [NUMBER, "", ""]], 1, ("b_no", "", "b_no")),
        ([["합계금액", "5,768,133,138"], ["사업자번호", "상호"], [NUMBER, "가"]], 1, ("사업자번호", "상호")),
        (
            [["회사명 : 가나다상사(주)", None, None], ["거래처코드", "거래처명", "전화"], ["201", "가", "x"]],
            1,
            ("거래처코드", "거래처명", "전화"),
        ),
        ([["업체명: 가", "주소 : 서울"], ["번호", "상호", "비고"], ["1", "나", ""]], 1, ("번호", "상호", "비고")),
        ([["거래처명", None], ["구분(1:법인 2:개인)", "상호"], ["1", "나"]], 1, ("구분(1:법인 2:개인)", "상호")),
        ([["TEL", "031-123-4567"], ["사업자번호", "상호"], [NUMBER, "가"]], 1, ("사업자번호", "상호")),
    ],
)
def test_the_header_is_the_row_that_names_the_columns(
    rows: list[list[str | None]], first: int, headers: tuple[str, ...]
) -> None:
    """Titles, periods, approval boxes and label-value lines above it are not taken, nor are words in the data below."""
    assert find_heading(rows) == Heading(first, first, headers)


def test_the_tax_portals_export_keeps_its_repeated_headers() -> None:
    """One line that names supplier and buyer alike is complete; a summary above it is no group line."""
    line = ["20240102", "2024010241000000", "", "", NUMBER, "", "가", "김", "서울", NUMBER, "", "나", "이", "부산"]
    assert find_heading([TAX_PORTAL, line]) == Heading(0, 0, tuple(TAX_PORTAL))
    titles = [["매출 전자세금계산서 목록"], ["사업자등록번호", NUMBER, "상호", "가"], ["총합계", "12", "", "3"]]
    assert find_heading([*titles, TAX_PORTAL, line]) == Heading(3, 3, tuple(TAX_PORTAL))


@pytest.mark.parametrize(
    ("rows", "merges", "lines", "headers"),
    [
        ([["공급자", "", "공급받는자", ""], PAIR], [(0, 0, 0, 1), (0, 2, 0, 3)], (0, 1), PAIRED),
        ([["공급자", None, "공급받는자"], PAIR], [], (0, 1), PAIRED),
        ([["표"], ["공급자", None, "공급받는자"], PAIR], [], (1, 2), PAIRED),
        (
            [["번호", "공급자", None, "비고"], [None, "등록번호", "상호", None]],
            [(0, 0, 1, 0), (0, 1, 0, 2), (0, 3, 1, 3)],
            (0, 1),
            ("번호", "공급자 등록번호", "공급자 상호", "비고"),
        ),
        (
            [["사업자번호", "상호", "금액", None], [None, None, "공급가", "세액"]],
            [(0, 2, 0, 3)],
            (0, 1),
            ("사업자번호", "상호", "금액 공급가", "금액 세액"),
        ),
        (
            [["거래처 목록", None, None], ["사업자번호", "상호", "금액"]],
            [(0, 0, 0, 2)],
            (1, 1),
            ("사업자번호", "상호", "금액"),
        ),
        (
            [["기간: 1월", None, "단위: 원"], ["사업자번호", "상호", "상호"]],
            [(0, 0, 0, 1)],
            (1, 1),
            ("사업자번호", "상호", "상호"),
        ),
        ([["고객", "정보"], ["사업자번호", "상호"]], [], (1, 1), ("사업자번호", "상호")),
    ],
    ids=["merged", "unmerged", "title above", "merged down", "divided below", "merged title", "period", "clear alone"],
)
def test_two_lines_are_one_header_where_groups_stand_above(
    rows: list[list[str | None]],
    merges: list[tuple[int, int, int, int]],
    lines: tuple[int, int],
    headers: tuple[str, ...],
) -> None:
    """Labels reach over their merged columns, or to the next label where the line below would be unclear without."""
    assert find_heading([*rows, [NUMBER, "가", NUMBER, "나"]], merges) == Heading(*lines, headers)


@pytest.mark.parametrize("ours", ["grade", "row_note_bv", "biz_status_bv2"])
def test_an_added_column_stays_alone_below_a_group(ours: str) -> None:
    """An enriched file is known again by the names of its nine columns, whatever stands above them."""
    headers = find_heading(
        [["공급자", "", "공급받는자", "", ""], [*PAIR, ours], [NUMBER, "가", NUMBER, "나", "A"]]
    ).headers
    assert headers == (*PAIRED, ours)


@pytest.mark.parametrize("rows", [[], [[]], [[None, " "]], [[NUMBER], [NUMBER]], [[], [NUMBER, "가"]]])
def test_a_table_without_a_header_is_refused_and_not_shortened(rows: list[list[str | None]]) -> None:
    """Were the first number taken for a header, its row would be lost without a word."""
    with pytest.raises(InputError, match=r"list\.csv: (is empty|has no header, row [12] holds a number of ten digits)"):
        find_heading(rows, name="list.csv")


CELL = st.one_of(
    st.none(),
    st.sampled_from([NUMBER, "b_no", "주소", "상호", "", "공급자", "1", *ADDED_COLUMNS[:2]]),
    st.text(max_size=5),
)


@examples(100)
@given(st.lists(st.lists(CELL, max_size=4), max_size=6), st.booleans())
def test_whatever_the_rows_hold_no_number_is_above_or_in_the_header(rows: list[list[str | None]], merged: bool) -> None:
    """Every unlabelled row with a business number stays a row of the table, for any rows at all."""
    try:
        heading = find_heading(rows, [(0, 0, 1, 0), (1, 1, 1, 2)] if merged else [])
    except InputError:
        return
    above = rows[: heading.last + 1]
    assert all(NUMBER not in row for row in rows[heading.first : heading.last + 1])
    assert all(set(row) & {"b_no", "주소", "상호", "공급자", "biz_status"} for row in above if NUMBER in row)
    assert len(heading.headers) == max(len(row) for row in rows[heading.first : heading.last + 1])


@pytest.mark.parametrize(
    ("rows", "last", "headers"),
    [
        (
            [["사업자번호", "상호", "주소", ""], ["", "", "우편번호", "주소"]],
            1,
            ("사업자번호", "상호", "주소 우편번호", "주소"),
        ),
        (
            [["사업자번호", "상호", "주소", ""], [], ["", "", "우편번호", "주소"]],
            2,
            ("사업자번호", "상호", "주소 우편번호", "주소"),
        ),
        (
            [["사업자번호", "상호", "주소", ""], ["", "가상회사", "주소 없음", "미정"]],
            0,
            ("사업자번호", "상호", "주소", ""),
        ),
        ([["사업자번호", "상호", "", ""], ["", "거래처", "", "메모"]], 0, ("사업자번호", "상호", "", "")),
        ([["사업자번호", "상호", "주소"], ["", "상호", "주소"]], 0, ("사업자번호", "상호", "주소")),
    ],
)
def test_a_line_below_continues_the_header_only_where_that_is_blank(
    rows: list[list[str | None]], last: int, headers: tuple[str, ...]
) -> None:
    """As a file without merged cells has it. A row of data is never taken for such a line."""
    assert find_heading([*rows, [NUMBER, "가", "06236", "서울"][: len(rows[0])]]) == Heading(0, last, headers)
