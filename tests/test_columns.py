"""Which columns belong together and whose they are; which columns the output keeps."""

from __future__ import annotations

import csv
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
from bansong.base.schema import RECORD_COLUMNS, Alert
from bansong.errors import BansongError, ColumnError, UsageError
from bansong.run.manifest import open_mailing
from bansong.tables import frames
from bansong.tables.columns import choose_columns, given_choice, kept_columns
from bansong.tables.detect import FORMATS
from bansong.tables.headers import level_of, parties
from bansong.tables.roles import role_cell
from bansong.tables.streams import File
from bansong.tables.table import Table, column_ids
from conftest import NINE, ROOT, SAMPLE, write
from examples import examples

PLACES = {
    "ONE": "124-81-00998",
    "TWO": "220-81-62517",
    "THREE": "120-81-47521",
    "SEOUL": "서울 강남구 테헤란로 152",
    "SUWON": "경기 수원시 영통구 삼성로 129",
    "BUSAN": "부산 해운대구 센텀로 1",
    "LOT": "서울 강남구 역삼동 700",
}
ONE, TWO, THREE, SEOUL, SUWON, BUSAN, LOT = PLACES.values()


# ── the chooser ──────────────────────────────────────────────────────────────────────────────────────────────────


def table_of(headers: str, rows: str = "") -> Table:
    """A table as read from a file: cells divided by commas, rows by slashes, ``4* row`` for four of it."""
    lines = []
    for row in rows.split(" / ") if rows else ():
        times, cells = row.split("* ", 1) if "* " in row[:6] else ("1", row)
        lines += [[PLACES.get(cell, cell) or None for cell in cells.split(",")]] * int(times)
    names = tuple(headers.split(","))
    frame = pl.DataFrame(lines, schema=dict.fromkeys(column_ids(len(names)), pl.String), orient="row")
    path = Path("list.csv")
    return Table(frame.lazy(), names, FORMATS["csv"], "list.csv", File(path, path))


def parsed(pairs: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in pairs.split(";") if pair)


def ask(case: dict[str, str]) -> str:
    """What differs between a line of the golden file and the chooser's answer, if anything."""
    table = table_of(case["headers"], case["rows"])

    def spell(part: object) -> str:
        header, place = part.header, part.column  # type: ignore[attr-defined]
        return header if header and table.headers.count(header) == 1 else f"#{place + 1}"

    try:
        found = choose_columns(table, RECORD_COLUMNS, parsed(case["given"]), address_list=True)
    except BansongError as error:
        notes: tuple[str, ...] = (str(error),)
        chosen = error.code or type(error).__name__
        wanted = case["chosen"]
    else:
        notes = found.notes
        expected = parsed(case["chosen"])
        spelled = {role: choice.spell(spell) for role, choice in found.columns.items()}
        chosen, wanted = ";".join(f"{role}={spelled.get(role, '')}" for role in expected), case["chosen"]
    words = case["said"].removeprefix("!")
    missing = [word for word in words.split(" … ") if word and not any(word in note for note in notes)]
    quiet = case["said"].startswith("!") and not any(isinstance(note, Alert) for note in notes)
    loud = not case["said"] and [note for note in notes if isinstance(note, Alert)]
    return f"{chosen} {notes}" if (chosen != wanted or missing or quiet or loud) else ""


def test_columns_are_chosen() -> None:
    with (ROOT / "tests/golden/columns.csv").open(encoding="utf-8", newline="") as file:
        cases = list(csv.DictReader(file))
    assert {case["case"]: differs for case in cases if (differs := ask(case))} == {}


def test_the_party_of_the_portal_s_export_is_chosen_in_a_file(tmp_path: Path, shared: Path) -> None:
    header = (shared / "status" / "hometax_taxinvoice_header.txt").read_text(encoding="utf-8").strip()
    lines = [f"2026-01-05,A,,,{ONE},,가,김,{SEOUL},{buyer},,나,이,{BUSAN}" + "," * 12 for buyer in (TWO, THREE)]
    report = bs.enrich(write(tmp_path / "x.csv", "\n".join([header, *lines, ""]), "cp949"), tmp_path / "y.csv")
    assert {role: choice.column for role, choice in report.columns.items()} == {"b_no": 9, "name": 11, "address": 13}
    again = bs.enrich(tmp_path / "y.csv", tmp_path / "z.csv")  # ours behind the last party are nobody's address
    assert again.columns == report.columns
    assert (tmp_path / "y.csv").read_bytes() == (tmp_path / "z.csv").read_bytes()


HEADERS = st.sampled_from(
    ["상호", "주소", "사업자번호", "공급자 상호", "공급받는자주소", "공급자등록번호", "", "비고", "buyer name"]
)


@examples(100)
@given(st.lists(st.tuples(HEADERS, st.booleans()), max_size=9))
def test_no_column_belongs_to_two_parties(columns: list[tuple[str, bool]]) -> None:
    numbers = [place for place, (_, holds) in enumerate(columns) if holds]
    found = parties([header for header, _ in columns], numbers)
    assert len(found) != 1
    assert all(set(numbers) & party.columns == {party.number} for party in found)
    owned = [place for party in found for place in party.columns]
    assert len(owned) == len(set(owned))


def test_codes_of_legal_dongs_are_not_taken_for_business_numbers(shared: Path) -> None:
    """A tenth of them has a right check digit by chance; one dong in all rows, or two, is no proof."""
    lines = (shared / "address/legal_dong_codes_2025.txt").read_bytes().decode("cp949").splitlines()[1:]
    codes = [line.split("\t")[0] for line in lines]
    right = pl.Series(codes).to_frame("code").filter(business_number.is_valid_expr(pl.col("code")))["code"].to_list()
    assert len(right) > 1000
    for column in (codes, right[:1] * 50, right[:2] * 25):
        with pytest.raises(ColumnError):
            choose_columns(table_of("코드,이름", " / ".join(f"{code},가" for code in column)), RECORD_COLUMNS)


WORDS = {
    "name": "학교명,병원명,시설명,업체,store_name,의료기관명,어린이집명,시설명칭,업소,Shop Name,거래선,거래선명",
    "b_no": "사업자등록번호,사업자번호,사업자 번호,등록번호,b_no,tax id,Business No.,사업자등록번호(필수)",
    "address": "주소,소재지,도로명주소,사업장 주소,Address,배송지주소,기본주소",
    "zipcode": "우편번호,(신)우편번호,zip code,postal_code",
    "key": "거래처코드,거래선코드",
}


@pytest.mark.parametrize("role", WORDS)
def test_usual_words_name_a_role(role: str) -> None:
    assert [word for word in WORDS[role].split(",") if level_of(role, word) is None] == []


# ── select ───────────────────────────────────────────────────────────────────────────────────────────────────────

SOURCE = '사업자등록번호,"이름, 직급",주소,비고,비고\n124-81-00998,"김, 과장",서울 강남구 1,a,b\n'


@pytest.mark.parametrize(
    ("select", "kept"),
    [
        (["비고"], {3, 4}),
        (["#5"], {4}),
        (["주소,사업자등록번호"], {0, 2}),
        (["사업자등록번호,이름, 직급,#4"], {0, 1, 3}),
        ([" 주소 , #1 "], {0, 2}),
    ],
)
def test_a_selection_names_headers_and_positions(select: Sequence[str], kept: set[int]) -> None:
    table = frames.read(pl.DataFrame({f"x{place}": ["a"] for place in range(5)}))
    headers = ("사업자등록번호", "이름, 직급", "주소", "비고", "비고")
    assert kept_columns(Table(table.frame, headers, table.format, "x"), select) == kept


def test_only_selected_columns_are_kept_and_all_are_used(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", SOURCE)
    bs.enrich(path, tmp_path / "all.csv")
    report = bs.enrich(path, tmp_path / "y.csv", select=["비고", "사업자등록번호"])
    header = pl.read_csv(tmp_path / "y.csv", has_header=False, infer_schema=False).row(0)
    assert list(header) == ["사업자등록번호", "비고", "비고", *NINE]
    whole = pl.read_csv(tmp_path / "all.csv", infer_schema=False)
    assert pl.read_csv(tmp_path / "y.csv", infer_schema=False).select(NINE).equals(whole.select(NINE))
    assert report.columns["address"].column == 2
    for select in ("나이", "#6", "주소,#6", "", "주소,"):
        with pytest.raises(UsageError) as caught:
            bs.plan(path, select=[select])
        assert "사업자등록번호, 이름, 직급" in str(caught.value)


@pytest.mark.parametrize("format", ["csv", "json", "ndjson", "parquet", "xlsx"])
def test_a_selection_holds_in_every_format(tmp_path: Path, format: str) -> None:
    """A name of ours is free where the user's column is left out: the second `grade` needs no suffix."""
    source = write(tmp_path / "x.csv", f"b_no,address,grade\n{ONE},서울 강남구 1,VIP\n")
    bs.enrich(source, tmp_path / f"one.{format}", prefix="old_")
    bs.enrich(tmp_path / f"one.{format}", tmp_path / f"two.{format}", select=["address", "b_no"])
    bs.enrich(tmp_path / f"two.{format}", tmp_path / "end.csv")
    found = pl.read_csv(tmp_path / "end.csv", infer_schema=False)
    assert found.columns == ["b_no", "address", *NINE]
    assert found.row(0)[:2] == (ONE, "서울 강남구 1")


def test_a_workbook_of_which_columns_are_left_out_is_a_new_one_and_never_in_place(tmp_path: Path) -> None:
    book, old = tmp_path / "book.xlsx", (SAMPLE / "customers.xlsx").read_bytes()
    book.write_bytes(old)
    with pytest.raises(UsageError, match="with `select=` the output is a new workbook"):
        bs.enrich(book, in_place=True, select=["상호"])
    assert [left.name for left in tmp_path.iterdir()] == ["book.xlsx"]
    assert any("the output is a new workbook" in said for said in bs.plan(book, select=["상호"]).warnings)
    whole = bs.plan(book, select=[f"#{place}" for place in range(1, 9)]).warnings
    assert not any("new workbook" in said for said in whole)


# ── several columns that are one value ───────────────────────────────────────────────────────────────────────────


def values_of(role: str, *columns: Sequence[object]) -> list[object]:
    frame = pl.DataFrame({f"h{place}": cells for place, cells in enumerate(columns)})
    table = frames.read(frame)
    cell = role_cell(table, role, given_choice(table, role, frame.columns))
    return table.frame.select(cell.alias("x")).collect()["x"].to_list()


def test_an_address_is_joined_without_blanks_and_doubles() -> None:
    road = "서울 테헤란로 152"
    rows = [
        (f" {road} ", " 10층 ", f"{road} 10층"),
        *[(road, blank, road) for blank in ("", None, "-", "해당없음", "0", "00", "**", ".", "--", "_", "*-*", "( )")],
        (road, "10층 **호", f"{road} 10층 **호"),
        ("", "10층", None),
        ("", "서울 중구 세종대로 110 10층", "서울 중구 세종대로 110 10층"),
        (" ", "-", None),
        (f"{road} 10층", "10층", f"{road} 10층"),
        (f"{road},10층", "10층", f"{road},10층"),
        (f"{road} 101동1203호", "101동 1203호", f"{road} 101동1203호"),
        (road, "2", f"{road} 2"),
        ("10층", "10층", "10층"),
    ]
    base, detail, whole = zip(*rows, strict=True)
    assert values_of("address", base, detail) == list(whole)
    assert values_of("address", ["테헤란로 1", "테헤란로 2"], [101.0, None]) == ["테헤란로 1 101", "테헤란로 2"]
    assert values_of("address", ["테헤란로 1", "테헤란로 2"], [0, 3]) == ["테헤란로 1", "테헤란로 2 3"]
    assert values_of("address", ["a"], ["은하빌딩 3층"], ["3층"]) == ["a 은하빌딩 3층"]
    assert values_of("address", ["a"], ["101"], ["101"]) == ["a 101 101"]
    assert values_of("address", ["a"], [None], ["3층"], ["3층"]) == ["a 3층"]
    assert values_of("name", ["a", "", ""], ["b", "b", ""]) == ["a b", "b", None]


def test_a_number_in_three_columns_gets_its_zeros_only_where_they_are_certain() -> None:
    rows = [
        ("124", "81", "00998", ONE),
        ("124", "81", "998", ONE),
        ("124", "81", "999", "124-81-999"),
        ("24", "81", "998", "24-81-998"),
        ("", "", "", None),
        (ONE, None, "", ONE),
        ("124", "8x", "00998", "124-8x-00998"),
    ]
    *parts, whole = zip(*rows, strict=True)
    assert values_of("b_no", *parts) == list(whole)
    assert values_of("b_no", [124], [81], [998]) == values_of("b_no", [124.0], [81.0], [998.0]) == [ONE]
    assert values_of("b_no", ["124-81"], ["00998"]) == [ONE]


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("도로명주소|지번주소", [SEOUL, LOT, None]),
        ("지번주소|도로명주소", [LOT, LOT, None]),
        ("도로명주소+상세주소|지번주소+상세주소", [f"{SEOUL} 3층", f"{LOT} 4층", None]),
        ("도로명주소|지번주소+상세주소", [SEOUL, f"{LOT} 4층", None]),
    ],
)
def test_the_first_address_that_is_filled_is_taken_row_by_row(given: str, address: list[str | None]) -> None:
    """A detail alone is no address."""
    table = table_of("도로명주소,지번주소,상세주소", "SEOUL,LOT,3층 / -,LOT,4층 / ,,5층")
    cell = role_cell(table, "address", given_choice(table, "address", given))
    assert table.frame.select(cell.alias("x")).collect()["x"].to_list() == address


@pytest.mark.parametrize("filler", ["미상", "0", "동일", "정보없음", "-"])
def test_a_filler_in_one_address_column_does_not_hide_the_other(filler: str) -> None:
    table = table_of("a,b", f"SEOUL,LOT / {filler},LOT / SEOUL,{filler} / {filler},{filler}")
    cell = role_cell(table, "address", given_choice(table, "address", "a|b"))
    found = table.frame.select(cell.alias("x")).collect()["x"].to_list()
    assert found == [SEOUL, LOT, SEOUL, None if filler == "-" else filler]


def test_what_is_looked_up_and_written_and_labelled_is_the_joined_record(tmp_path: Path) -> None:
    """Rows that differ in their detail are two lookups; the user's own columns stay as they are."""
    text = f"사업자번호,상호,기본주소,상세주소\n{ONE},가,{SEOUL},3층\n{ONE},가,{SEOUL},4층\n{ONE},가,{SEOUL} 3층,3층\n"
    path = write(tmp_path / "x.csv", text)
    assert bs.plan(path).plan.lookups == 2
    report = bs.enrich(path, tmp_path / "y.csv")
    shown = report.as_dict()["columns"]["address"]
    assert [part["header"] for part in (shown, *shown["joined"])] == ["기본주소", "상세주소"]
    rows = pl.read_csv(tmp_path / "y.csv", infer_schema=False)
    assert rows.select("기본주소", "상세주소").rows() == [(SEOUL, "3층"), (SEOUL, "4층"), (f"{SEOUL} 3층", "3층")]
    same = bs.verify(ONE, "가", f"{SEOUL} 3층")
    assert rows["reasons"][0] == rows["reasons"][2] == " | ".join(same.reasons)
    with open_mailing(report.run_id, None) as mailing:  # as the run read it, by its manifest
        assert mailing.letters.collect()["address"].to_list() == [f"{SEOUL} {floor}" for floor in ("3층", "4층", "3층")]


def test_each_row_has_the_postal_code_of_its_address(tmp_path: Path) -> None:
    """Codes of another district show which one a row has."""
    rows = ["서울 강남구 테헤란로 152,30151,,", ",,세종특별자치시 한누리대로 2130,06236"]
    header = "사업자번호,상호,도로명주소,도로명우편번호,지번주소,지번우편번호"
    lines = [f"{number},가나,{row}" for number, row in zip((ONE, TWO), rows, strict=True)]
    bs.enrich(write(tmp_path / "in.csv", "\n".join([header, *lines, ""])), tmp_path / "out.parquet")
    by_hand = [bs.verify(n, "가나", *row.strip(",").split(",")) for n, row in zip((ONE, TWO), rows, strict=True)]
    found = pl.read_parquet(tmp_path / "out.parquet")["reasons"].to_list()
    assert found == [list(one.reasons) for one in by_hand]


@pytest.mark.parametrize("lang", ["en", "ko"])
def test_notes_on_addresses_name_the_role_in_the_reader_s_language(lang: bs.model.Lang) -> None:
    table = table_of("사업자번호,도로명주소,지번주소,상세주소", "ONE,,LOT,2층 / TWO,SEOUL,,3층")
    with use_language(lang):
        notes = choose_columns(table, RECORD_COLUMNS).notes
    assert len(notes) > 1
    assert all(("address:" in note) == (lang == "en") for note in notes)


# ── header lines ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["x.xlsx", "x.csv"])
def test_a_merged_label_does_not_hide_the_headers_below_it(tmp_path: Path, name: str) -> None:
    """`주소` over `우편번호 | 주소`: both are found, and the lower line's header names its column."""
    rows = [["사업자등록번호", "상호", "주소", None], [None, None, "우편번호", "주소"]]
    rows += [[ONE, "가", "06236", SEOUL], [TWO, "나", "16677", SUWON]]
    if name == "x.csv":
        write(tmp_path / name, "".join(",".join(cell or "" for cell in row) + "\n" for row in rows))
    else:
        book = openpyxl.Workbook()
        for row in rows:
            book.active.append(row)
        for cells in ("A1:A2", "B1:B2", "C1:D1"):
            book.active.merge_cells(cells)
        book.save(tmp_path / name)
    for columns in (None, {"zipcode": "우편번호"}):
        report = bs.plan(tmp_path / name, columns=columns)
        found = {role: choice.column for role, choice in report.columns.items()}
        assert (found, report.rows) == ({"b_no": 0, "name": 1, "address": 3, "zipcode": 2}, 2)
