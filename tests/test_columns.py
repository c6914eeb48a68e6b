"""Which columns belong together and whose they are; which columns the output keeps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import openpyxl
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bansong as bs
from bansong.base import business_number
from bansong.base.messages import use_language
from bansong.base.schema import Alert
from bansong.errors import ColumnError, UsageError
from bansong.run.manifest import open_mailing
from bansong.tables import frames
from bansong.tables.columns import given_choice
from bansong.tables.headers import parties
from bansong.tables.roles import role_cell
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


def chosen_of(report: bs.Report) -> dict[str, int]:
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
    report = bs.plan(hometax(tmp_path / "x.csv", pairs))
    assert chosen_of(report) == columns
    (note,) = (warning for warning in report.warnings if "2 parties" in warning)
    other = (SUPPLIER if columns is BUYER else BUYER)["b_no"] + 1
    assert reason in note
    assert note.endswith(f"(#{other}) give `columns={{'b_no': '#{other}'}}`")


def test_the_other_party_is_taken_as_a_whole_when_any_of_its_columns_is_given(tmp_path: Path) -> None:
    """A given number brings its name and address along, and so does a given name its number."""
    path = hometax(tmp_path / "x.csv", [(ONE, TWO), (ONE, THREE)])
    for columns in ({"b_no": "#5"}, {"b_no": "공급자사업자등록번호"}, {"name": "#7"}, {"address": "#9"}):
        report = bs.plan(path, columns=columns)
        assert chosen_of(report) == SUPPLIER
        assert not any("parties" in warning for warning in report.warnings)


def test_the_number_that_never_changes_is_looked_for_in_the_whole_file(tmp_path: Path) -> None:
    """Sorted purchases begin with many rows of one supplier: their first thousand rows decide nothing."""
    path = hometax(tmp_path / "x.csv", [*[(TWO, ONE)] * 1500, (THREE, ONE)])
    assert chosen_of(bs.plan(path)) == SUPPLIER


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
    found = bs.plan(write(tmp_path / "x.csv", "\n".join([headers, *rows, ""]))).columns
    assert "".join(str(choice.column) for choice in found.values()) == columns


def test_parties_that_nothing_tells_apart_are_an_error(tmp_path: Path) -> None:
    """Two numbers that both change, under the same header: the user says which."""
    path = write(tmp_path / "x.csv", f"사업자번호,상호,사업자번호,상호\n{ONE},가,{TWO},나\n{TWO},나,{THREE},다\n")
    with pytest.raises(
        ColumnError, match=r"\(#1\) and '사업자번호' \(#3\) fit equally well.*choose with `columns={'b_no': '#1'}`"
    ):
        bs.plan(path)
    assert chosen_of(bs.plan(path, columns={"b_no": "#3"})) == {"b_no": 2, "name": 3}


def test_enriching_again_chooses_the_same_party(tmp_path: Path) -> None:
    """Our own columns behind the last party's change nothing: they are nobody's name or address."""
    rows = [f"{ONE},가,a,없음", f"{TWO},나,b,없음", f"{ONE},다,c,없음", f"{ONE},라,d,{THREE}"]
    path = write(tmp_path / "x.csv", "\n".join(["사업자번호,상호,주소,사업자등록번호", *rows, ""]))
    first = bs.enrich(path, tmp_path / "y.csv")
    again = bs.enrich(tmp_path / "y.csv", tmp_path / "z.csv")
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
    bs.enrich(path, tmp_path / "all.csv")
    report = bs.enrich(path, tmp_path / "y.csv", select=select)
    header = pl.read_csv(tmp_path / "y.csv", has_header=False, infer_schema=False).row(0)
    assert list(header) == [*kept, *NINE]
    whole = pl.read_csv(tmp_path / "all.csv", infer_schema=False)
    assert pl.read_csv(tmp_path / "y.csv", infer_schema=False).select(NINE).equals(whole.select(NINE))
    assert report.columns["address"].column == 2


@pytest.mark.parametrize("format", ["csv", "json", "ndjson", "parquet", "xlsx"])
def test_a_selection_holds_in_every_format(tmp_path: Path, format: str) -> None:
    """From a file of a format to a file of the same format: the columns that were left out are gone."""
    bs.enrich(write(tmp_path / "x.csv", SOURCE), tmp_path / f"one.{format}", prefix="old_")
    bs.enrich(tmp_path / f"one.{format}", tmp_path / f"two.{format}", select=["주소", "사업자등록번호"])
    bs.enrich(tmp_path / f"two.{format}", tmp_path / "end.csv")
    found = pl.read_csv(tmp_path / "end.csv", infer_schema=False)
    assert found.columns == ["사업자등록번호", "주소", *NINE]
    assert found.row(0)[:2] == ("124-81-00998", "서울 강남구 1")


def test_a_workbook_of_which_columns_are_left_out_is_a_new_one_and_never_in_place(tmp_path: Path) -> None:
    """The user is told that the rest of the workbook is not in it; in place that would be a loss, so it is refused."""
    book, old = tmp_path / "book.xlsx", (SAMPLE / "customers.xlsx").read_bytes()
    book.write_bytes(old)
    with pytest.raises(UsageError, match=r"book\.xlsx: with `select=` the output is a new workbook, without its other"):
        bs.enrich(book, in_place=True, select=["상호"])
    assert [left.name for left in tmp_path.iterdir()] == ["book.xlsx"]
    said = bs.enrich(book, tmp_path / "out.xlsx", select=["상호"]).warnings
    assert any("the output is a new workbook" in warning for warning in said)
    for kept in (None, [f"#{place}" for place in range(1, 9)]):
        assert not any("new workbook" in warning for warning in bs.plan(book, select=kept).warnings)
    bs.enrich(book, in_place=True)
    assert not any("new workbook" in warning for warning in bs.plan(book, select=None).warnings)


def test_a_name_of_ours_is_free_where_the_users_column_is_left_out(tmp_path: Path) -> None:
    """A user's `grade` that is not kept gives our `grade` no suffix."""
    path = write(tmp_path / "x.csv", "b_no,address,grade\n124-81-00998,서울 강남구 1,VIP\n")
    bs.enrich(path, tmp_path / "y.csv", select=["b_no"])
    assert pl.read_csv(tmp_path / "y.csv").columns == ["b_no", *NINE]


def test_a_selection_of_what_is_not_there_lists_the_headers(tmp_path: Path) -> None:
    """An unknown header, and a position past the last, say so and name the headers that there are."""
    path = write(tmp_path / "x.csv", SOURCE)
    for select in ("나이", "#6", "주소,#6", "", "주소,"):
        with pytest.raises(
            UsageError, match=r"`select='.*'` names no column; the headers are: 사업자등록번호, 이름, 직급"
        ):
            bs.enrich(path, select=[select])
    assert [left.name for left in tmp_path.iterdir()] == ["x.csv"]


def test_a_number_column_without_a_header_of_its_own_is_noted(tmp_path: Path) -> None:
    """The first line of such a file may be a row that would not be verified."""
    path = write(tmp_path / "a.csv", "김가상사,\n갑,124-81-00998\n을,220-81-62517\n병,120-81-47521\n")
    warnings = bs.plan(path).warnings
    assert [note for note in warnings if "column 2 was chosen by what it holds" in note and "row of headers" in note]


# ── rivals for a role ────────────────────────────────────────────────────────────────────────────────────────────

SEOUL, SUWON, BUSAN = "서울 강남구 테헤란로 152", "경기 수원시 영통구 삼성로 129", "부산 해운대구 센텀로 1"


def planned(path: Path, headers: str, *rows: str, columns: dict[str, str | list[str]] | None = None) -> bs.Report:
    return bs.plan(write(path / "x.csv", "\n".join([headers, *rows, ""])), columns=columns)


def headers_of(report: bs.Report, role: str) -> list[str]:
    return [part.header for part in report.columns[role].parts] if role in report.columns else []


def told(report: bs.Report, role: str) -> list[str]:
    return [warning for warning in report.warnings if warning.startswith(f"{role}: ")]


NUMBERS = [ONE, TWO, THREE, "126-81-03725", "576-81-33138"]
WRONG = ["1000000001", "1000000002", "1000000003", "1000000004", "1000000005"]


@pytest.mark.parametrize(
    ("headers", "cells", "chosen"),
    [
        ("관리번호", NUMBERS, "관리번호"),
        ("등록번호,관리번호", [f"가4306-{place},{number}" for place, number in enumerate(NUMBERS)], "관리번호"),
        (
            "사업자등록번호,관리번호",
            [f"{wrong},{number}" for wrong, number in zip(WRONG, NUMBERS, strict=True)],
            "관리번호",
        ),
        ("사업자번호,코드", [f",{number}" for number in NUMBERS], "코드"),
        ("코드,비고", [*(f"{number}," for number in NUMBERS), "00003,개인", "00004,개인", "2026/01/02 오후,"], "코드"),
    ],
)
def test_what_a_column_holds_counts_more_than_a_word_of_a_header(
    tmp_path: Path, headers: str, cells: list[str], chosen: str
) -> None:
    """A column of numbers with right check digits is found under any header, loudly."""
    report = planned(tmp_path, f"{headers},상호", *(f"{cell},가" for cell in cells))
    assert report.columns["b_no"].header == chosen
    assert [one for one in told(report, "b_no") if isinstance(one, Alert)]


@pytest.mark.parametrize(
    "cells",
    [
        ["가4306-100", "가4306-101", "가4306-102"],
        ["1159010100", "1159010800", "1159010500"],
        ["", "", ""],
        ["1.24E+09", "126811", "201853"],
    ],
    ids=["letters", "dong codes", "blank", "damaged"],
)
@pytest.mark.parametrize("header", ["등록번호", "코드"])
def test_a_column_without_business_numbers_is_never_chosen(tmp_path: Path, header: str, cells: list[str]) -> None:
    """But where its header is the number's and it holds ten digits, whose check digits are the user's to see."""
    path = write(tmp_path / "x.csv", f"{header},상호,주소\n" + "".join(f"{cell},가,{SEOUL}\n" for cell in cells))
    try:
        chosen = bs.plan(path).columns.get("b_no")
    except ColumnError as error:
        chosen = None
        if error.missing != "b_no":
            raise
    ten = header == "등록번호" and cells[0].startswith("1159")
    assert (chosen is not None) == ten
    assert bs.plan(path, columns={"b_no": header}).rows == 3


def test_codes_of_legal_dongs_are_not_taken_for_business_numbers(shared: Path, tmp_path: Path) -> None:
    """A tenth of them has a right check digit by chance; the code of one dong in all rows, or of two, is no proof."""
    lines = (shared / "address/legal_dong_codes_2025.txt").read_bytes().decode("cp949").splitlines()[1:]
    codes = [line.split("\t")[0] for line in lines]
    right = pl.Series(codes).to_frame("code").filter(business_number.is_valid_expr(pl.col("code")))["code"].to_list()
    assert len(right) > 1000
    for column in (codes, right[:1] * 50, right[:2] * 25):
        with pytest.raises(ColumnError):
            planned(tmp_path, "코드,이름", *(f"{code},가" for code in column))


def test_columns_without_rows_do_not_fit_equally_well(tmp_path: Path) -> None:
    """A list without rows has the column of its first header; a blank column does not rival one with numbers.

    Where no row has a number or an address, the rows are invalid and the list is not refused.
    """
    assert planned(tmp_path, "사업자번호,사업자등록번호,상호", ",,가").plan.invalid == 1
    assert planned(tmp_path, "사업자번호,사업자등록번호").columns["b_no"].header == "사업자번호"
    assert planned(tmp_path, "사업자번호,사업자등록번호", f",{ONE}").columns["b_no"].header == "사업자등록번호"
    assert planned(tmp_path, "사업자등록번호,등록번호", f",{ONE}").columns["b_no"].header == "등록번호"


def test_a_column_whose_numbers_begin_behind_the_sample_is_found(tmp_path: Path) -> None:
    """A list that is sorted by its number begins with the customers that have none."""
    report = planned(tmp_path, "사업자번호,상호", *[",개인"] * 1200, f"{ONE},가")
    assert report.columns["b_no"].header == "사업자번호"


@pytest.mark.parametrize(
    ("headers", "cells", "chosen", "loud"),
    [
        ("소재지,adress", f"중구,{SEOUL}", ["adress"], True),
        ("소재지,위치정보", f"서울특별시 중구,{SEOUL}", ["위치정보"], True),
        ("소재지,사업장주소", f"서울특별시 중구,{SEOUL}", ["사업장주소"], True),
        ("소재지,비고", "서울특별시 중구,3층", ["소재지"], False),
        ("호스트서버소재지,비고", f"{SEOUL},3층", [], False),
        ("주소,허가번호", "a,서울-12", ["주소"], False),
    ],
)
def test_a_column_of_districts_loses_to_one_full_of_addresses(
    tmp_path: Path, headers: str, cells: str, chosen: list[str], loud: bool
) -> None:
    """Whatever the other's header is, unless it is of something else's address."""
    report = planned(tmp_path, f"사업자번호,{headers}", *[f"{ONE},{cells}"] * 4)
    assert headers_of(report, "address") == chosen
    assert [isinstance(one, Alert) for one in told(report, "address")] == [True] * loud


@pytest.mark.parametrize(
    "header",
    [
        "학교명",
        "병원명",
        "시설명",
        "업체",
        "store_name",
        "의료기관명",
        "어린이집명",
        "시설명칭",
        "업소",
        "사업체명",
        "Shop Name",
        "대상시설명",
    ],
)
def test_names_of_every_kind_of_body_are_names(tmp_path: Path, header: str) -> None:
    """The public lists of schools, hospitals and facilities."""
    assert headers_of(planned(tmp_path, f"사업자번호,{header}", f"{ONE},가"), "name") == [header]


@pytest.mark.parametrize(
    ("headers", "cells", "chosen", "reason"),
    [
        ("기본주소,상세주소,본사주소,배송지주소", f"{SEOUL},3층,{SUWON},{BUSAN}", "배송지주소", "a delivery address"),
        ("본사주소,사업장주소", f"{SEOUL},{SUWON}", "사업장주소", "before a head office"),
        ("대표자 자택주소,본점소재지", f"{SEOUL},{SUWON}", "본점소재지", "before a home"),
        ("배송지주소,우편물 수령지", f"{SEOUL},{SUWON}", "우편물 수령지", "a mailing address comes before"),
        ("DM발송주소,주소", f"{SEOUL},{SUWON}", "DM발송주소", "a mailing address comes before"),
        ("지번주소,도로명주소", f"역삼동 1,{SEOUL}", "도로명주소", "addresses by road come before"),
        ("Address,Shipping Address", f"{SEOUL},{SUWON}", "Shipping Address", "a delivery address"),
        ("주소,소재지", f"{SEOUL},{SEOUL}", "주소", "both hold the same"),
        ("주소,주소록명", f"{SEOUL},서울 모임", "주소", "the more usual one"),
    ],
)
def test_of_several_addresses_the_one_where_mail_goes_is_taken_and_the_others_are_named(
    tmp_path: Path, headers: str, cells: str, chosen: str, reason: str
) -> None:
    """Delivery before business before head office before home, by road before by lot: said with fill and remedy."""
    report = planned(tmp_path, f"사업자번호,{headers}", *[f"{ONE},{cells}"] * 4)
    assert headers_of(report, "address") == [chosen]
    (note,) = told(report, "address")
    rivals = [header for header in headers.split(",") if header not in (chosen, "상세주소")]
    assert note.startswith(f"address: '{chosen}' (#")
    assert all(f"'{rival}' (#" in note for rival in rivals)
    assert "100% filled" in note
    assert reason in note
    assert "`columns={'address': " in note
    assert not isinstance(note, Alert)


@pytest.mark.parametrize(
    ("rows", "chosen", "said"),
    [
        (
            [f"{ONE},{SEOUL},"] * 9 + [f"{ONE},{SEOUL},{BUSAN}"],
            "주소",
            "'배송지주소' (#3, 10% filled) would come first",
        ),
        ([f"{ONE},{SEOUL},담당자 확인"] * 9, "주소", "few of its cells hold an address"),
        ([f"{ONE},{SEOUL},{BUSAN}"] * 7 + [f"{ONE},{SEOUL},"] * 3, "배송지주소", "(#3, 70% filled) was taken and not"),
    ],
    ids=["mostly blank", "no addresses", "partly blank"],
)
def test_a_preferred_address_that_is_often_missing_is_an_alert(
    tmp_path: Path, rows: list[str], chosen: str, said: str
) -> None:
    """Where letters could go elsewhere than expected, or nowhere, the reader is told before all else."""
    report = planned(tmp_path, "사업자번호,주소,배송지주소", *rows)
    assert headers_of(report, "address") == [chosen]
    (alert,) = told(report, "address")
    assert isinstance(alert, Alert)
    assert said in alert


def test_addresses_of_the_same_header_are_told_apart_by_what_they_hold_or_refused(tmp_path: Path) -> None:
    """The column with more addresses is taken, loudly; two that differ and hold as many are the user's choice."""
    report = planned(tmp_path, "사업자번호,주소,주소", *[f"{ONE},,{SEOUL}"] * 4, f"{ONE},{SUWON},{SEOUL}")
    assert report.columns["address"].column == 2
    (alert,) = told(report, "address")
    assert isinstance(alert, Alert)
    with pytest.raises(
        ColumnError, match=r"'주소' \(#2\) and '소재지' \(#3\) fit equally well as the address.*'주소'}`"
    ):
        planned(tmp_path, "사업자번호,주소,소재지", f"{ONE},{SEOUL},{SUWON}")
    with pytest.raises(ColumnError, match=r"columns=\{'address': '#2'\}"):
        planned(tmp_path, "사업자번호,주소,주소", f"{ONE},{SEOUL},{SUWON}")
    rows = [f"{ONE},{SEOUL},{SUWON}"] * 8 + [f"{ONE},,{SUWON}"]  # a header that only resembles one is no equal
    assert headers_of(planned(tmp_path, "사업자번호,주소,고객주소", *rows), "address") == ["주소"]
    report = planned(tmp_path, "사업자번호,주소,소재지", f"{ONE},{SEOUL},{SUWON}", columns={"address": "소재지"})
    assert told(report, "address") == []


@pytest.mark.parametrize(
    ("headers", "cells", "address", "zipcode"),
    [
        ("우편번호,주소,배송지우편번호,배송지주소", f"06236,{SEOUL},48060,{BUSAN}", "배송지주소", "배송지우편번호"),
        ("우편번호,주소,배송지주소", f"06236,{SEOUL},{BUSAN}", "배송지주소", None),
        ("배송지주소,우편번호", f"{BUSAN},48060", "배송지주소", "우편번호"),
        ("사업장우편번호,주소,본사우편번호,본사주소", f"06236,{SEOUL},48060,{BUSAN}", "주소", "사업장우편번호"),
        ("본사우편번호,주소", f"06236,{SEOUL}", "주소", "본사우편번호"),
        ("구우편번호,우편번호,주소", f"135-080,06236,{SEOUL}", "주소", "우편번호"),
    ],
)
def test_the_postal_code_is_that_of_the_chosen_address(
    tmp_path: Path, headers: str, cells: str, address: str, zipcode: str | None
) -> None:
    """A code of another address would count against every row; it is left out, and that is said."""
    report = planned(tmp_path, f"사업자번호,{headers}", *[f"{ONE},{cells}"] * 4)
    assert headers_of(report, "address") == [address]
    assert headers_of(report, "zipcode") == ([zipcode] if zipcode else [])
    unused = [note for note in told(report, "zipcode") if "belongs to another address" in note]
    assert len(unused) == (zipcode is None)
    if zipcode is None:
        again = planned(tmp_path, f"사업자번호,{headers}", *[f"{ONE},{cells}"] * 4, columns={"address": "주소"})
        assert headers_of(again, "zipcode") == ["우편번호"]


def test_rivals_for_name_and_number_are_named(tmp_path: Path) -> None:
    """The fuller of two names is taken; a second column of numbers is pointed out."""
    rows = [f"{ONE},{TWO},,가나,{SEOUL}"] * 3 + [f"{ONE},{TWO},다라,마바,{SEOUL}"]
    report = planned(tmp_path, "사업자번호,위탁사업자번호,거래처명,상호,주소", *rows)
    assert (headers_of(report, "b_no"), headers_of(report, "name")) == (["사업자번호"], ["상호"])
    (name,), (number,) = told(report, "name"), told(report, "b_no")
    assert (
        "'상호' (#4, 100% filled) was taken and not '거래처명' (#3, 25% filled), because it is filled in more" in name
    )
    assert "not '위탁사업자번호' (#2), where 100% are numbers" in number
    blank = planned(tmp_path, "사업자번호,상호,고객명", *[f"{ONE},,가나"] * 3)  # a blank column names nobody
    assert (headers_of(blank, "name"), told(blank, "name")) == (["고객명"], [])


# ── several columns that are one value ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("headers", "parts"),
    [
        ("기본주소,상세주소", ["기본주소", "상세주소"]),
        ("주소1,주소2", ["주소1", "주소2"]),
        ("Address Line 1,Address Line 2", ["Address Line 1", "Address Line 2"]),
        ("주소,나머지 주소", ["주소", "나머지 주소"]),
        ("주소,동/호수", ["주소", "동/호수"]),
        ("도로명주소,지번주소,상세주소", ["도로명주소", "상세주소"]),
        ("배송지주소,배송지상세주소", ["배송지주소", "배송지상세주소"]),
        ("사업장주소,배송지주소,사업장상세주소,배송지상세주소", ["배송지주소", "배송지상세주소"]),
        ("도로명주소,도로명상세주소,지번주소,지번상세주소", ["도로명주소", "도로명상세주소"]),
        ("도로명주소,지번주소,지번상세주소,도로명상세주소", ["도로명주소", "도로명상세주소"]),
        ("도로명주소,지번주소,지번상세주소,상세주소", ["도로명주소", "상세주소"]),
        ("도로명주소,상세주소,지번주소,지번상세주소", ["도로명주소", "상세주소"]),
        ("지번주소,지번상세주소,도로명주소,상세주소", ["도로명주소", "상세주소"]),
        ("신주소,신주소상세,구주소,구주소상세", ["신주소", "신주소상세"]),
        ("도로명주소,지번주소,지번상세주소", ["도로명주소"]),
        ("주소,나머지주소,지번주소,상세주소", ["주소", "나머지주소"]),
        ("주소1,주소2,주소3", ["주소1", "주소2", "주소3"]),
        ("상세주소", ["상세주소"]),
        ("사업장도로명상세주소", ["사업장도로명상세주소"]),
    ],
)
def test_details_are_joined_to_the_address_they_belong_to(tmp_path: Path, headers: str, parts: list[str]) -> None:
    """The rest of an address in a column of its own counts, said in a note and shown among the columns."""
    names = headers.split(",")
    rests = ("상세", "나머지", "주소2", "주소3", "Line 2", "동/호수")
    cells = ",".join("3층" if name != parts[0] and any(rest in name for rest in rests) else SEOUL for name in names)
    report = planned(tmp_path, f"사업자번호,{headers}", *[f"{ONE},{cells}"] * 3)
    assert headers_of(report, "address") == parts
    joined = [note for note in told(report, "address") if " is joined to " in note]
    assert len(joined) == (len(parts) > 1)
    shown = report.as_dict()["columns"]["address"]
    assert [part["header"] for part in (shown, *shown["joined"])] == parts


@pytest.mark.parametrize(
    ("headers", "cells", "advice"),
    [
        ("상세주소", "3층 301호", "#1+#2"),
        ("상세주소", "은하아파트 가동 101호", "#1+#2"),
        ("시도,시군구,도로명,건물번호,상세주소", "서울,종로구,종로,426,3층", "시도+시군구+도로명+건물번호+상세주소"),
        ("상세주소,건물번호,도로명,읍면동,시군구", "3층,426,종로,인의동,종로구", "시군구+도로명+건물번호+상세주소"),
        ("시도명,시군구명,법정동,지번", "서울,종로구,인의동,48-2", "시도명+시군구명+법정동+지번"),
        ("시도,시군구,도로명,건물본번,건물부번,상세주소", "서울,종로구,종로,426,1,3층", "#1+#2"),
        ("시도,시군구,도로명,지번,건물번호", "서울,종로구,종로,48-2,426", "시도+시군구+도로명+건물번호"),
        ("시도,시군구,도로명,동,지번", "서울,종로구,종로,x,48-2", None),
        ("시도,시군구,읍면동", "서울,종로구,인의동", None),
    ],
)
def test_parts_of_an_address_are_not_taken_for_one(
    tmp_path: Path, headers: str, cells: str, advice: str | None
) -> None:
    """No letter goes to 3층: there is no address, loudly, with the columns that would make one."""
    report = planned(tmp_path, f"사업자번호,상호,{headers}", *[f"{ONE},가,{cells}"] * 3)
    assert headers_of(report, "address") == []
    alerts = [note for note in report.warnings if isinstance(note, Alert) and "no column holds whole addresses" in note]
    assert len(alerts) == (advice is not None)
    for alert in alerts:
        assert f"`columns={{'address': '{advice}'}}`" in alert
    if advice and "시군구" in advice:
        again = planned(tmp_path, f"사업자번호,상호,{headers}", f"{ONE},가,{cells}", columns={"address": advice})
        assert headers_of(again, "address") == advice.split("+")


def test_a_detail_that_holds_addresses_is_the_address_where_there_is_no_other(tmp_path: Path) -> None:
    """Addresses without a province are addresses, whatever their header says."""
    report = planned(tmp_path, "사업자번호,상호,상세주소", *[f"{ONE},가,강남구 테헤란로 152"] * 3)
    assert headers_of(report, "address") == ["상세주소"]


def test_a_second_whole_address_is_a_rival_and_no_detail(tmp_path: Path) -> None:
    """주소2 with addresses of its own is not put behind 주소1."""
    report = planned(tmp_path, "사업자번호,주소1,주소2", *[f"{ONE},{SEOUL},{BUSAN}"] * 3)
    assert headers_of(report, "address") == ["주소1"]
    assert "'주소2' (#3" in told(report, "address")[0]


@pytest.mark.parametrize("given", ["기본주소+상세주소", ["기본주소", "상세주소"], "#2+#3", " 기본주소 + 상세주소 "])
def test_joined_columns_can_be_named(tmp_path: Path, given: str | list[str]) -> None:
    """As one text with +, as a list, by position: the same columns, and no hint."""
    rows = [f"{ONE},{SEOUL},3층"]
    report = planned(tmp_path, "사업자번호,기본주소,상세주소", *rows, columns={"address": given})
    assert headers_of(report, "address") == ["기본주소", "상세주소"]
    assert report.columns["address"].why == "given"
    alone = planned(tmp_path, "사업자번호,기본주소,상세주소", *rows, columns={"address": "기본주소"})
    assert headers_of(alone, "address") == ["기본주소"]
    assert any(
        "'상세주소' is not part of the address; `columns={'address': '기본주소+상세주소'}`" in w for w in alone.warnings
    )


LOT = "서울 강남구 역삼동 700"


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("도로명주소|지번주소", [SEOUL, LOT, None]),
        ("지번주소|도로명주소", [LOT, LOT, None]),
        ("#2|#3", [SEOUL, LOT, None]),
        ("도로명주소+상세주소|지번주소+상세주소", [f"{SEOUL} 3층", f"{LOT} 4층", None]),
        ("도로명주소+상세주소|지번주소", [f"{SEOUL} 3층", LOT, None]),
        ("도로명주소|지번주소+상세주소", [SEOUL, f"{LOT} 4층", None]),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_first_address_that_is_filled_is_taken_row_by_row(
    tmp_path: Path, given: str, address: list[str | None]
) -> None:
    """`|` between columns; `+` binds closer, and a detail alone is no address."""
    rows = [f"{ONE},{SEOUL},{LOT},3층", f"{ONE},-,{LOT},4층", f"{ONE},,,5층"]
    path = write(tmp_path / "x.csv", "\n".join(["사업자번호,도로명주소,지번주소,상세주소", *rows, ""]))
    report = bs.enrich(path, tmp_path / "y.csv", columns={"address": given})
    with open_mailing(report.run_id, None) as mailing:  # as the run read it, by its manifest
        assert mailing.letters.collect()["address"].to_list() == address
    frame = bs.verify_frame(pl.read_csv(path), columns={"address": given})
    assert frame["reasons"].to_list() == [list(bs.verify(ONE, None, each).reasons) for each in address]


def test_an_address_by_road_is_taken_and_where_it_is_blank_the_one_by_lot(tmp_path: Path) -> None:
    """Without the user's word, too, each with its own detail; of full columns one alone, of other places none."""
    headers = "사업자번호,지번주소,도로명주소,상세주소"
    half = [f"{ONE},{LOT},,3층", f"{ONE},{LOT},{SEOUL},4층"] * 4
    found = planned(tmp_path, headers, *half).columns["address"]
    assert found.spell(lambda part: part.header) == "도로명주소+상세주소|지번주소+상세주소"
    full = planned(tmp_path, headers, *[f"{ONE},{LOT},{SEOUL},4층"] * 4).columns["address"]
    assert full.spell(lambda part: part.header) == "도로명주소+상세주소"
    long = planned(tmp_path, headers, *[f"{ONE},{LOT},{SEOUL},4층"] * 1200, half[0]).columns["address"]
    assert long.otherwise  # nobody knows what is behind the rows that are looked at
    report = planned(tmp_path, "사업자번호,주소,배송지주소", f"{ONE},{SEOUL},", f"{ONE},{SEOUL},{BUSAN}")
    assert not report.columns["address"].otherwise


def test_each_rival_has_its_own_reason(tmp_path: Path) -> None:
    """A column that loses for one reason is not named with the reason of another."""
    (note,) = told(
        planned(tmp_path, "사업자번호,본사주소,사업장주소,소재지", f"{ONE},{SUWON},{SEOUL},{SEOUL}"), "address"
    )
    said = [note.index(words) for words in ("'소재지'", "both hold the same", "'본사주소'", "before a head office")]
    assert said == sorted(said)


def test_a_header_that_holds_a_bar_or_a_plus_can_be_named(tmp_path: Path) -> None:
    """The longest header that fits is taken, in a list of alternatives, too."""
    headers, row = "사업자번호,주소|우편,주소,우편+", f"{ONE},{SEOUL},{SUWON},3층"
    for named, spelled in {
        "주소|우편": "주소|우편",
        "주소|우편|주소": "주소|우편/주소",
        "주소|우편+우편+|주소": "주소|우편&우편+/주소",
        "주소|#4": "주소/우편+",
    }.items():
        found = planned(tmp_path, headers, row, columns={"address": named}).columns["address"]
        assert found.spell(lambda part: part.header, "&", "/") == spelled
    zipcode = planned(tmp_path, headers, row, columns={"zipcode": "주소|#4"}).columns["zipcode"]
    assert zipcode.spell(lambda part: part.header, "&", "/") == "주소/우편+"
    for twice in ("주소|주소", "주소|#3"):
        with pytest.raises(UsageError, match="names a column twice"):
            planned(tmp_path, headers, row, columns={"address": twice})
    with pytest.raises(ColumnError, match="no column is headed '없는것'"):
        planned(tmp_path, headers, row, columns={"address": "주소|없는것"})


HEADS = [["사업자등록번호", "상호", "주소", None], [None, None, "우편번호", "주소"]]


@pytest.mark.parametrize("merged", [["C1:D1"], ["A1:A2", "B1:B2", "C1:D1"]])
@pytest.mark.parametrize("name", ["x.xlsx", "x.csv"])
def test_a_merged_label_does_not_hide_the_headers_below_it(tmp_path: Path, merged: list[str], name: str) -> None:
    """`주소` over `우편번호 | 주소`: both are found, and the lower line's header names its column."""
    rows = [*HEADS, [ONE, "가", "06236", SEOUL], [TWO, "나", "16677", SUWON]]
    if name == "x.csv":
        write(tmp_path / name, "".join(",".join(cell or "" for cell in row) + "\n" for row in rows))
    else:
        book = openpyxl.Workbook()
        for row in rows:
            book.active.append(row)
        for cells in merged:
            book.active.merge_cells(cells)
        book.save(tmp_path / name)
    for columns in (None, {"zipcode": "우편번호"}):
        report = bs.plan(tmp_path / name, columns=columns)
        assert chosen_of(report) == {"b_no": 0, "name": 1, "address": 3, "zipcode": 2}
        assert report.rows == 2


def test_a_header_that_holds_a_plus_can_be_named(tmp_path: Path) -> None:
    """The longest header that fits is taken, alone and in a list."""
    headers, row = "사업자번호,주소+우편,주소,우편", f"{ONE},{SEOUL},{SUWON},3층"
    for named, parts in {
        "주소+우편": ["주소+우편"],
        "주소+주소+우편": ["주소", "주소+우편"],
        "주소+#4": ["주소", "우편"],
    }.items():
        assert headers_of(planned(tmp_path, headers, row, columns={"address": named}), "address") == parts
    with pytest.raises(ColumnError, match="no column is headed '없는것'"):
        planned(tmp_path, headers, row, columns={"address": "주소+없는것"})
    with pytest.raises(UsageError, match="names a column twice"):
        planned(tmp_path, headers, row, columns={"address": "주소+#3"})
    with pytest.raises(UsageError, match=r"'zipcode': .* names 2 columns"):
        planned(tmp_path, headers, row, columns={"zipcode": "주소+#1"})
    with pytest.raises(UsageError, match="empty list"):
        planned(tmp_path, headers, row, columns={"address": []})


def values_of(role: str, *columns: Sequence[object]) -> list[object]:
    frame = pl.DataFrame({f"h{place}": cells for place, cells in enumerate(columns)})
    table = frames.read(frame)
    cell = role_cell(table, role, given_choice(table, role, frame.columns))
    return table.frame.select(cell.alias("x")).collect()["x"].to_list()


def test_an_address_is_joined_without_blanks_and_doubles() -> None:
    """Blank parts leave nothing behind; a detail that ends the address already is not written twice."""
    rows = [
        ("서울 강남구 테헤란로 152", "10층", "서울 강남구 테헤란로 152 10층"),
        (" 서울 테헤란로 152 ", " 10층 ", "서울 테헤란로 152 10층"),
        ("서울 테헤란로 152", "", "서울 테헤란로 152"),
        ("서울 테헤란로 152", None, "서울 테헤란로 152"),
        ("서울 테헤란로 152", "-", "서울 테헤란로 152"),
        ("서울 테헤란로 152", "해당없음", "서울 테헤란로 152"),
        *[
            ("서울 테헤란로 152", filler, "서울 테헤란로 152")
            for filler in ("0", "00", "**", ".", "--", "_", "*-*", "( )")
        ],
        ("서울 테헤란로 152", "10층 **호", "서울 테헤란로 152 10층 **호"),
        ("", "10층", None),
        ("", "서울 중구 세종대로 110 10층", "서울 중구 세종대로 110 10층"),
        (None, None, None),
        (" ", "-", None),
        ("서울 테헤란로 152 10층", "10층", "서울 테헤란로 152 10층"),
        ("서울 테헤란로 152,10층", "10층", "서울 테헤란로 152,10층"),
        ("서울 테헤란로 152 101동1203호", "101동 1203호", "서울 테헤란로 152 101동1203호"),
        ("서울 테헤란로 152", "2", "서울 테헤란로 152 2"),
        ("10층", "10층", "10층"),
    ]
    base, detail, whole = zip(*rows, strict=True)
    assert values_of("address", base, detail) == list(whole)
    assert values_of("address", ["테헤란로 1", "테헤란로 2"], [101.0, None]) == ["테헤란로 1 101", "테헤란로 2"]
    assert values_of("address", ["테헤란로 1", "테헤란로 2"], [0, 3]) == ["테헤란로 1", "테헤란로 2 3"]
    assert values_of("address", ["테헤란로 1"], [0.0]) == ["테헤란로 1"]
    assert values_of("address", ["a"], ["b"], ["c"]) == ["a b c"]
    assert values_of("address", ["a"], ["3층"], ["3층"]) == ["a 3층"]
    assert values_of("address", ["a"], ["은하빌딩 3층"], ["3층"]) == ["a 은하빌딩 3층"]
    assert values_of("address", ["a"], ["101"], ["101"]) == ["a 101 101"]
    assert values_of("address", ["a"], [None], ["3층"], ["3층"]) == ["a 3층"]
    assert values_of("name", ["a", "", ""], ["b", "b", ""]) == ["a b", "b", None]


def test_a_number_in_three_columns_gets_its_zeros_only_where_they_are_certain() -> None:
    """A lost zero is put back where the check digit then is right; else the parts stay as they are, and are invalid."""
    rows = [
        ("124", "81", "00998", "124-81-00998"),
        ("124", "81", "998", "124-81-00998"),
        ("124", "81", "999", "124-81-999"),
        ("24", "81", "998", "24-81-998"),
        ("", "", "", None),
        ("124-81-00998", None, "", "124-81-00998"),
        ("124", "8x", "00998", "124-8x-00998"),
    ]
    *parts, whole = zip(*rows, strict=True)
    assert values_of("b_no", *parts) == list(whole)
    assert values_of("b_no", [124], [81], [998]) == ["124-81-00998"]
    assert values_of("b_no", [124.0], [81.0], [998.0]) == ["124-81-00998"]
    assert values_of("b_no", ["124-81"], ["00998"]) == ["124-81-00998"]


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ("사업자번호1,사업자번호2,사업자번호3", True),
        ("사업자등록번호(1),사업자등록번호(2),사업자등록번호(3)", True),
        ("b_no_1,b_no_2,b_no_3", True),
        ("사업자등록번호,,", True),
        ("번호1,번호2,번호3", False),
        ("사업자번호1,사업자번호3,사업자번호2", False),
    ],
)
def test_a_split_number_is_found_only_where_the_headers_say_so(tmp_path: Path, headers: str, found: bool) -> None:
    """Numbered headers of the number and parts that fit; other headers have to be named."""
    path = write(tmp_path / "x.csv", f"{headers},주소\n124,81,998,{SEOUL}\n124,81,999,{SEOUL}\n")
    names = headers.split(",")
    if not found:
        assert set(bs.plan(path).columns) == {"address"}
        named = "+".join(names)
        assert bs.plan(path, columns={"b_no": named}).plan.invalid == 1
        return
    report = bs.enrich(path, tmp_path / "y.csv")
    assert headers_of(report, "b_no") == names
    assert any("is in three columns" in note for note in told(report, "b_no"))
    rows = pl.read_csv(tmp_path / "y.csv", infer_schema=False)
    assert rows.select(rows.columns[:3]).rows() == [("124", "81", "998"), ("124", "81", "999")]
    assert rows["row_status"].to_list() == ["verified", "invalid"]
    assert rows["row_note"][1]


def test_what_is_looked_up_and_paid_for_is_the_joined_record(tmp_path: Path) -> None:
    """Rows that differ in their detail are two lookups; the user's own columns stay as they are."""
    text = f"사업자번호,상호,기본주소,상세주소\n{ONE},가,{SEOUL},3층\n{ONE},가,{SEOUL},4층\n{ONE},가,{SEOUL} 3층,3층\n"
    path = write(tmp_path / "x.csv", text)
    assert bs.plan(path).plan.lookups == 2
    assert bs.plan(path, columns={"address": "기본주소"}).plan.lookups == 2
    bs.enrich(path, tmp_path / "y.csv")
    rows = pl.read_csv(tmp_path / "y.csv", infer_schema=False)
    assert rows.select("기본주소", "상세주소").rows() == [(SEOUL, "3층"), (SEOUL, "4층"), (f"{SEOUL} 3층", "3층")]
    same = bs.verify(ONE, "가", f"{SEOUL} 3층")
    assert rows["reasons"][0] == rows["reasons"][2] == " | ".join(same.reasons)


def test_labels_find_the_letter_at_the_joined_address(tmp_path: Path) -> None:
    """An enriched file is read for its letters as the run read it: details joined, whichever way they were chosen."""
    path = write(tmp_path / "x.csv", f"사업자번호,상호,기본주소,상세주소\n{ONE},가,{SEOUL},3층\n")
    for columns, address in (
        (None, f"{SEOUL} 3층"),
        ({"address": "기본주소"}, SEOUL),
        ({"address": "#4+#3"}, "3층 " + SEOUL),
    ):
        report = bs.enrich(path, tmp_path / "y.csv", columns=columns)
        with open_mailing(report.run_id, None) as mailing:
            assert mailing.letters.collect()["address"].to_list() == [address]


@pytest.mark.parametrize("filler", ["미상", "0", "동일", "정보없음", "-"])
@pytest.mark.parametrize("columns", [None, {"address": "도로명주소|지번주소"}])
def test_a_filler_in_one_address_column_does_not_hide_the_other(
    tmp_path: Path, filler: str, columns: dict[str, str] | None
) -> None:
    lot, road = "서울 강남구 역삼동 737", "서울 강남구 테헤란로 152"
    rows = [(road, lot), (filler, lot), (road, filler), (filler, filler)]
    text = "".join(f"124-81-00998,{first},{second}\n" for first, second in rows)
    path = write(tmp_path / "in.csv", f"사업자번호,도로명주소,지번주소\n{text}")
    report = bs.enrich(path, tmp_path / "out.csv", columns=columns)
    with open_mailing(report.run_id, None) as mailing:
        cells = mailing.letters.collect()["address"].to_list()
    assert cells == [road, lot, road, None if filler == "-" else filler]


@pytest.mark.parametrize("lang", ["en", "ko"])
def test_notes_on_addresses_name_the_role_in_the_reader_s_language(tmp_path: Path, lang: bs.model.Lang) -> None:
    rows = "124-81-00998,,서울 강남구 역삼동 737,2층\n220-81-62517,서울 강남구 테헤란로 152,,3층\n"
    path = write(tmp_path / "in.csv", f"사업자번호,도로명주소,지번주소,상세주소\n{rows}")
    with use_language(lang):
        notes = [one for one in bs.plan(path).warnings if "(#2" in one]
    assert notes
    assert all(("address:" in one) == (lang == "en") for one in notes)


@pytest.mark.parametrize("given", [None, "도로명주소|지번주소", "지번주소|도로명주소"])
def test_each_row_has_the_postal_code_of_its_address(tmp_path: Path, given: str | None) -> None:
    """Both columns are read in the order of the addresses; codes of another district show which one a row has."""
    rows = ["서울 강남구 테헤란로 152,30151,,", ",,세종특별자치시 한누리대로 2130,06236"]
    lines = [f"{number},가나,{row}" for number, row in zip(NUMBERS, rows * 2, strict=False)]
    header = "사업자번호,상호,도로명주소,도로명우편번호,지번주소,지번우편번호"
    source = write(tmp_path / "in.csv", "\n".join([header, *lines, ""]))
    report = bs.enrich(source, tmp_path / "out.parquet", columns={"address": given} if given else None)
    first, second = (given or "도로명주소|지번주소").replace("주소", "우편번호").split("|")
    assert [part.header for part in report.columns["zipcode"].parts] == [first, second]
    assert report.plan.without_address == 0
    by_hand = [bs.verify(NUMBERS[at], "가나", *rows[at].strip(",").split(",")) for at in (0, 1)]
    found = pl.read_parquet(tmp_path / "out.parquet")["reasons"].to_list()
    assert found == [list(one.reasons) for one in by_hand] * 2
