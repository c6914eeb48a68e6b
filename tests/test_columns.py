"""Which columns belong together and whose they are; which columns the output keeps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bizverify as bv
from bizverify.errors import ColumnError, UsageError
from bizverify.tables.parties import parties
from conftest import NINE, SAMPLE, write

# as the tax portal writes it; issue date, approval number, supplier, buyer, amounts, item
HOMETAX = (
    "작성일자,승인번호,발급일자,전송일자,공급자사업자등록번호,종사업장번호,상호,대표자명,주소,"
    "공급받는자사업자등록번호,종사업장번호,상호,대표자명,주소,합계금액,공급가액,세액,전자세금계산서분류,전자세금계산서종류,"
    "발급유형,비고,영수/청구 구분,품목일자,품목명,품목공급가액,품목세액"
)
ONE, TWO, THREE = "124-81-00998", "220-81-62517", "120-81-47521"
SUPPLIER, BUYER = {"b_no": 4, "name": 6, "address": 8}, {"b_no": 9, "name": 11, "address": 13}


def hometax(path: Path, pairs: Sequence[tuple[str, str]]) -> Path:
    lines = [
        f"2026-01-05,A{place},,,{supplier},,가,김,서울 강남구 1,{buyer},,나,이,부산 남구 2,1100,1000,100,,,,,,,,,"
        for place, (supplier, buyer) in enumerate(pairs)
    ]
    return write(path, "\n".join([HOMETAX, *lines, ""]), "cp949")


def chosen_of(report: bv.Report) -> dict[str, int]:
    return {role: choice.column for role, choice in report.columns.items()}


def test_the_test_has_the_header_of_the_portal(shared: Path) -> None:
    """The header above is the one that was gathered from the portal."""
    assert (shared / "status" / "hometax_taxinvoice_header.txt").read_text(encoding="utf-8").strip() == HOMETAX


@pytest.mark.parametrize(
    ("pairs", "columns", "reason"),
    [
        ([(ONE, TWO), (ONE, THREE)], BUYER, "the other side has the same number in every row"),
        ([(TWO, ONE), (THREE, ONE)], SUPPLIER, "the other side has the same number in every row"),
        ([(ONE, TWO), (ONE, THREE), (ONE, "900101-1******"), (ONE, "")], BUYER, "the same number in every row"),
        (
            [(ONE, "900101-1******"), (ONE, TWO), *[(ONE, "900101-1******")] * 20, (ONE, THREE)],
            BUYER,
            "the same number",
        ),
        ([(ONE, TWO), (TWO, THREE)], BUYER, "it is the buyer's side"),
        ([(ONE, TWO)], BUYER, "it is the buyer's side"),
        ([(ONE, "")], SUPPLIER, "the other side has none"),
        ([], BUYER, "it is the buyer's side"),
    ],
    ids=["sales", "purchases", "some persons", "mostly persons", "mixed", "one row", "one side blank", "no rows"],
)
def test_the_party_of_a_tax_invoice_is_chosen_as_a_whole_and_said(
    tmp_path: Path, pairs: list[tuple[str, str]], columns: dict[str, int], reason: str
) -> None:
    """One's own side is the one whose number never changes; number, name and address come from the other."""
    report = bv.plan(hometax(tmp_path / "x.csv", pairs))
    assert chosen_of(report) == columns
    (note,) = (warning for warning in report.warnings if "2 parties" in warning)
    other = (SUPPLIER if columns is BUYER else BUYER)["b_no"] + 1
    assert reason in note
    assert note.endswith(f"(#{other}) give --columns b_no=#{other}")


def test_the_other_party_is_taken_as_a_whole_when_any_of_its_columns_is_given(tmp_path: Path) -> None:
    """A given number brings its name and address along, and so does a given name its number."""
    path = hometax(tmp_path / "x.csv", [(ONE, TWO), (ONE, THREE)])
    for columns in ({"b_no": "#5"}, {"b_no": "공급자사업자등록번호"}, {"name": "#7"}, {"address": "#9"}):
        report = bv.plan(path, columns=columns)
        assert chosen_of(report) == SUPPLIER
        assert not any("parties" in warning for warning in report.warnings)


def test_the_number_that_never_changes_is_looked_for_in_the_whole_file(tmp_path: Path) -> None:
    """Sorted purchases begin with many rows of one supplier: their first thousand rows decide nothing."""
    path = hometax(tmp_path / "x.csv", [*[(TWO, ONE)] * 1500, (THREE, ONE)])
    assert chosen_of(bv.plan(path)) == SUPPLIER


@pytest.mark.parametrize(
    ("headers", "rows", "columns"),
    [
        ("공급자 등록번호,공급자 상호,공급받는자 등록번호,공급받는자 상호,공급받는자 사업장주소", [], "234"),
        ("상호,등록번호,주소,상호,등록번호,주소", [f"가,{ONE},a,나,{TWO},b", f"가,{ONE},a,다,{THREE},c"], "435"),
        ("공급자상호,공급받는자상호,공급자번호,공급받는자번호,사업자번호(공급자),사업자번호(공급받는자)", [], "51"),
        ("사업자번호,상호,허가번호,등록번호,주소", [f"{ONE},가,1,서울-12,a"] * 3, "014"),
        ("사업자번호,상호,등록번호,주소", [f"{ONE},가,,a"] * 3, "013"),
        ("상호,사업자번호,우편번호,주소,본점사업자번호,본점상호,본점주소", [f"가,{ONE},,a,{TWO},나,b"] * 3, "1032"),
        ("supplier name,supplier tax id,buyer name,buyer tax id", [f"a,{ONE},b,{TWO}"], "32"),
    ],
    ids=[
        "two-row header joined",
        "name before number",
        "grouped by kind",
        "a licence number is no party",
        "a blank column is no party",
        "head office behind",
        "English",
    ],
)
def test_columns_that_belong_together_are_chosen_together(
    tmp_path: Path, headers: str, rows: list[str], columns: str
) -> None:
    """However a file groups its parties, no address is taken from one and the number from another."""
    found = bv.plan(write(tmp_path / "x.csv", "\n".join([headers, *rows, ""]))).columns
    assert "".join(str(choice.column) for choice in found.values()) == columns


def test_parties_that_nothing_tells_apart_are_an_error(tmp_path: Path) -> None:
    """Two numbers that both change, under the same header: the user says which."""
    path = write(tmp_path / "x.csv", f"사업자번호,상호,사업자번호,상호\n{ONE},가,{TWO},나\n{TWO},나,{THREE},다\n")
    with pytest.raises(ColumnError, match=r"\(#1\) and '사업자번호' \(#3\) fit equally well.*--columns b_no=#1"):
        bv.plan(path)
    assert chosen_of(bv.plan(path, columns={"b_no": "#3"})) == {"b_no": 2, "name": 3}


def test_enriching_again_chooses_the_same_party(tmp_path: Path) -> None:
    """Our own columns behind the last party's change nothing: they are nobody's name or address."""
    rows = [f"{ONE},가,a,없음", f"{TWO},나,b,없음", f"{ONE},다,c,없음", f"{ONE},라,d,{THREE}"]
    path = write(tmp_path / "x.csv", "\n".join(["사업자번호,상호,주소,사업자등록번호", *rows, ""]))
    first = bv.enrich(path, tmp_path / "y.csv")
    again = bv.enrich(tmp_path / "y.csv", tmp_path / "z.csv")
    assert chosen_of(first) == chosen_of(again)
    assert (tmp_path / "y.csv").read_bytes() == (tmp_path / "z.csv").read_bytes()


def test_a_number_column_alone_is_no_party() -> None:
    """With nothing but a number beside a full record there are no two parties to keep apart."""
    assert parties(["사업자번호", "상호", "주소", "사업자등록번호"], [0, 3]) == ()
    assert parties([], []) == ()
    supplier, buyer = parties(HOMETAX.split(","), [4, 9])
    assert (supplier.side, buyer.side) == ("supplier", "buyer")
    assert supplier.columns == frozenset(range(4, 9))
    assert buyer.columns == frozenset(range(9, 26))


HEADERS = st.sampled_from(
    ["상호", "주소", "사업자번호", "공급자 상호", "공급받는자주소", "공급자등록번호", "", "비고", "buyer name"]
)


@given(st.lists(st.tuples(HEADERS, st.booleans()), max_size=9))
def test_no_column_belongs_to_two_parties(columns: list[tuple[str, bool]]) -> None:
    """Whatever the headers and the columns that hold numbers: each column has one owner at most, a number its own."""
    numbers = [place for place, (_, holds) in enumerate(columns) if holds]
    found = parties([header for header, _ in columns], numbers)
    assert len(found) != 1
    assert all(set(numbers) & party.columns == {party.number} for party in found)
    owned = [place for party in found for place in party.columns]
    assert len(owned) == len(set(owned))


# ── select ───────────────────────────────────────────────────────────────────────────────────────────────────────

SOURCE = '사업자등록번호,"이름, 직급",주소,비고,비고\n124-81-00998,"김, 과장",서울 강남구 1,a,b\n'


@pytest.mark.parametrize(
    ("select", "kept"),
    [
        (["비고"], ["비고", "비고"]),
        (["#5"], ["비고"]),
        (["주소,사업자등록번호"], ["사업자등록번호", "주소"]),
        (["주소", "사업자등록번호"], ["사업자등록번호", "주소"]),
        (["사업자등록번호,이름, 직급,#4"], ["사업자등록번호", "이름, 직급", "비고"]),
        (["이름, 직급"], ["이름, 직급"]),
        (" 주소 , #1 ", ["사업자등록번호", "주소"]),
    ],
)
def test_only_selected_columns_are_kept_and_all_are_used(
    tmp_path: Path, select: Sequence[str], kept: list[str]
) -> None:
    """The user's columns stay in file order, ours stand behind them, and a left-out column still counts."""
    path = write(tmp_path / "x.csv", SOURCE)
    bv.enrich(path, tmp_path / "all.csv")
    report = bv.enrich(path, tmp_path / "y.csv", select=select)
    header = pl.read_csv(tmp_path / "y.csv", has_header=False, infer_schema=False).row(0)
    assert list(header) == [*kept, *NINE]
    whole = pl.read_csv(tmp_path / "all.csv", infer_schema=False)
    assert pl.read_csv(tmp_path / "y.csv", infer_schema=False).select(NINE).equals(whole.select(NINE))
    assert report.columns["address"].column == 2


@pytest.mark.parametrize("format", ["csv", "json", "ndjson", "parquet", "xlsx"])
def test_a_selection_holds_in_every_format(tmp_path: Path, format: str) -> None:
    """From a file of a format to a file of the same format: the columns that were left out are gone."""
    bv.enrich(write(tmp_path / "x.csv", SOURCE), tmp_path / f"one.{format}", prefix="old_")
    bv.enrich(tmp_path / f"one.{format}", tmp_path / f"two.{format}", select=["주소", "사업자등록번호"])
    bv.enrich(tmp_path / f"two.{format}", tmp_path / "end.csv")
    found = pl.read_csv(tmp_path / "end.csv", infer_schema=False)
    assert found.columns == ["사업자등록번호", "주소", *NINE]
    assert found.row(0)[:2] == ("124-81-00998", "서울 강남구 1")


def test_a_workbook_of_which_columns_are_left_out_is_a_new_one_and_never_in_place(tmp_path: Path) -> None:
    """The user is told that the rest of the workbook is not in it; in place that would be a loss, so it is refused."""
    book, old = tmp_path / "book.xlsx", (SAMPLE / "customers.xlsx").read_bytes()
    book.write_bytes(old)
    with pytest.raises(UsageError, match=r"book\.xlsx: with --select the output is a new workbook, without its other"):
        bv.enrich(book, in_place=True, select=["상호"])
    assert [left.name for left in tmp_path.iterdir()] == ["book.xlsx"]
    said = bv.enrich(book, tmp_path / "out.xlsx", select=["상호"]).warnings
    assert any("the output is a new workbook" in warning for warning in said)
    for kept in (None, [f"#{place}" for place in range(1, 9)]):
        assert not any("new workbook" in warning for warning in bv.plan(book, select=kept).warnings)
    bv.enrich(book, in_place=True)
    assert not any("new workbook" in warning for warning in bv.plan(book, select=None).warnings)


def test_a_name_of_ours_is_free_where_the_users_column_is_left_out(tmp_path: Path) -> None:
    """A user's `grade` that is not kept gives our `grade` no suffix."""
    path = write(tmp_path / "x.csv", "b_no,address,grade\n124-81-00998,서울 강남구 1,VIP\n")
    bv.enrich(path, tmp_path / "y.csv", select=["b_no"])
    assert pl.read_csv(tmp_path / "y.csv").columns == ["b_no", *NINE]


def test_a_selection_of_what_is_not_there_lists_the_headers(tmp_path: Path) -> None:
    """An unknown header, and a position past the last, say so and name the headers that there are."""
    path = write(tmp_path / "x.csv", SOURCE)
    for select in ("나이", "#6", "주소,#6", "", "주소,"):
        with pytest.raises(
            UsageError, match=r"--select '.*' names no column; the headers are: 사업자등록번호, 이름, 직급"
        ):
            bv.enrich(path, select=[select])
    assert [left.name for left in tmp_path.iterdir()] == ["x.csv"]


def test_a_number_column_without_a_header_of_its_own_is_noted(tmp_path: Path) -> None:
    """The first line of such a file may be a row that would not be verified."""
    path = write(tmp_path / "a.csv", "김가상사,\n갑,124-81-00998\n을,220-81-62517\n병,120-81-47521\n")
    warnings = bv.plan(path).warnings
    assert [note for note in warnings if "column 2 was chosen by what it holds" in note and "row of headers" in note]
