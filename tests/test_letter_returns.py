"""Letters that come back find their customer: ids on the envelopes, and the lists of mail houses and post offices."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openpyxl
import polars as pl
import pytest

import bansong as bs
from bansong.base.messages import use_language
from bansong.errors import LabelError, UsageError
from bansong.history import letters
from bansong.history.labels import LabelStore
from bansong.history.letters import is_letter_id, letter_ids, plain_id, salutation
from bansong.labels.label import LabelReport
from bansong.run.options import parse_won
from books import written
from conftest import SAMPLE, write
from customers import numbers

REFERENCE: dict[str, Any] = {"registry": SAMPLE / "registry.parquet", "gazetteer": SAMPLE / "gazetteer.parquet"}


def read(path: Path, sheet: int = 1) -> pl.DataFrame:
    if path.suffix == ".xlsx":
        return pl.read_excel(path, sheet_id=sheet, infer_schema_length=0)
    return pl.read_csv(path, infer_schema=False)


@pytest.fixture(scope="module")
def mailed_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Customers of the sample, enriched, and the list of their letters in Korean, as a workbook."""
    folder = tmp_path_factory.mktemp("mailed")
    read(SAMPLE / "customers.csv").head(150).write_csv(folder / "in.csv")
    with use_language("ko"), pytest.MonkeyPatch.context() as patch:
        patch.setenv("BANSONG_STATE_DIR", str(folder / "state"))
        letters: dict[str, Any] = {"letters": folder / "letters.xlsx", "letter_columns": ["대표자, 최근거래일"]}
        bs.enrich(folder / "in.csv", folder / "mailed.csv", **letters, **REFERENCE)
    return folder


@pytest.fixture
def mailed(tmp_path: Path, mailed_once: Path) -> Path:
    for name in ("in.csv", "mailed.csv", "letters.xlsx"):
        shutil.copy2(mailed_once / name, tmp_path)
    return tmp_path


def label(outcomes: Path, file: Path, **options: Any) -> LabelReport:
    terms: dict[str, Any] = {"mailed": "2026-10-05", "returns_requested": True, "today": "2026-11-22"}
    return bs.label(outcomes, file=file, **(terms | options))


def labelled(report: LabelReport) -> dict[int, bool | None]:
    """What is recorded: a row of the mailed file → whether its letter came back."""
    rows = pl.read_parquet(report.book).select("row_id", "said").drop_nulls()
    return dict(rows.iter_rows())


def test_the_list_has_ids_keys_and_columns_behind_those_of_before(mailed: Path) -> None:
    """An id has ten signs without look-alikes, vowels or a digit in front; customers with one letter share the cell."""
    found, whole = read(mailed / "letters.xlsx"), read(mailed / "mailed.csv")
    assert found.columns == [
        *("받는 분", "주소1", "주소2", "우편번호", "봉투번호", "호칭", "고객코드", "대표자", "최근거래일")
    ]
    assert found["봉투번호"].str.contains("^[B-DF-HJ-NP-TV-Z][B-DF-HJ-NP-TV-Z2-9]{9}$").all()
    assert found["봉투번호"].is_unique().all()
    keys = found.select(pl.col("고객코드").str.split(", ")).explode("고객코드")["고객코드"]
    assert sorted(keys) == sorted(whole.filter(pl.col("action") == "send")["고객코드"])
    assert keys.len() > found.height


def test_the_second_sheet_counts_letters_by_postal_area(mailed: Path) -> None:
    found, counted = read(mailed / "letters.xlsx"), openpyxl.load_workbook(mailed / "letters.xlsx").worksheets[1]
    (_, total), *areas = [row[:2] for row in counted.iter_rows(min_row=2, values_only=True)]
    expected = found["우편번호"].str.slice(0, 3).value_counts(sort=True, name="n")
    assert total == found.height
    assert len(openpyxl.load_workbook(mailed / "letters.xlsx").sheetnames) == 2
    assert dict(areas) == dict(expected.iter_rows())


def test_a_letter_keeps_its_id_whatever_happens_to_the_list(mailed: Path) -> None:
    """A later run over the list, sorted, shortened and as a workbook, gives each letter the id that it had."""
    frame = read(mailed / "in.csv").sort("상호").filter(pl.int_range(pl.len()) % 3 > 0)
    written(mailed / "next.xlsx", [frame.columns, *map(list, frame.rows())])
    bs.enrich(mailed / "next.xlsx", mailed / "out.xlsx", letters=mailed / "next.csv", **REFERENCE)
    first = read(mailed / "letters.xlsx").select("봉투번호", pl.col("고객코드").str.split(", ")).explode("고객코드")
    later = read(mailed / "next.csv").select("letter_id", pl.col("고객코드").str.split(", ")).explode("고객코드")
    both = later.join(first, on="고객코드")
    assert both.height == later.height > 50
    assert both["letter_id"].equals(both["봉투번호"].alias("letter_id"))


def test_an_id_is_the_same_in_every_release() -> None:
    """It is printed on envelopes: number and address decide, and the name where one of them is missing."""
    rows = {
        "name": ["가", "나", "홍길동", "홍길동", None],
        "address": [
            "서울 종로구 종로 1",
            "서울 종로구  종로 1",
            "부산 중구 중앙대로 2",
            "부산 중구 중앙대로 2",
            "가" * 90,
        ],
        "fixed_address": [None, "서울 종로구 종로 1 (서린동)", None, None, None],
        "row_status": ["verified", "cached", "verified", "invalid", "verified"],
        "number": [1248100998, 1248100998, None, 1248100998, 1248100998],
    }
    frame = pl.LazyFrame(rows, schema_overrides={"number": pl.UInt64})
    found = letter_ids(frame, pl.col("number")).to_list()
    assert found == ["X2MX685SC4", "X2MX685SC4", "VRT2FSG4L2", "MT4KYLRS3G", "XXHZDF6ZSW"]
    assert (found[0] == found[1], len(set(found))) == (True, 4)


def test_one_wrong_sign_and_two_exchanged_ones_are_noticed(mailed: Path) -> None:
    ids = read(mailed / "letters.xlsx")["봉투번호"].head(20).to_list()
    wrong = [
        f"{one[:at]}{sign}{one[at + 1 :]}"
        for one in ids
        for at in range(10)
        for sign in "BCDXYZ2389"
        if sign != one[at]
    ]
    for one in ids:
        for at in range(9):
            swapped = f"{one[:at]}{one[at + 1]}{one[at]}{one[at + 2 :]}"
            wrong += [swapped] if swapped != one else []
    typed = [*ids, f" {ids[0][:5].lower()}-{ids[0][5:].lower()} ", *wrong, "", "0123456789", "KT8PQS678"]
    right = pl.DataFrame({"id": typed}).select(is_letter_id(plain_id(pl.col("id")))).to_series()
    assert right.to_list() == [True] * 21 + [False] * (len(typed) - 21)


def test_letters_that_would_share_an_id_get_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, so that no id depends on which of them stands first, or stands there at all."""
    rows = {"address": [f"서울 종로구 종로 {at}" for at in range(300)], "row_status": ["verified"] * 300}
    frame = pl.LazyFrame(rows).with_columns(fixed_address=pl.lit(None, pl.String), number=pl.lit(1248100998, pl.UInt64))
    monkeypatch.setattr(letters, "_IDS", 10_007)
    ids = letter_ids(frame, pl.col("number"))
    halves = pl.concat([letter_ids(frame.slice(at, 150), pl.col("number")) for at in (0, 150)])
    assert ids.n_unique() == 300
    assert 280 < (ids == halves).sum() < 300  # where the other letter is in the other half


POST = ["등기번호", "수취인", "우편번호", "주소", "반송사유", "배달결과"]


def by_id(folder: Path, found: pl.DataFrame) -> Path:
    """What somebody typed from the envelopes, below a header of the mail house, in CP949."""
    ids = found["봉투번호"].to_list()
    lines = [
        "스캔값,사유",
        f"{ids[0].lower()},수취인불명",
        f"{ids[1][:5]}-{ids[1][5:]},보관기간 경과",
        f"{ids[3]},수취거절",
    ]
    return write(folder / "o.csv", "\n".join([*lines, ""]), "cp949")


def by_registered(folder: Path, found: pl.DataFrame) -> Path:
    """The post's own list, under title rows; other columns of it are masked or blank."""
    sent = [str(1_000_000_000_000 + 7 * place) for place in range(found.height)]
    rows = [
        [f"{one[:5]}-{one[5:9]}-{one[9:]}", "홍*동", "", "", "폐문부재", "반송"] for one in (sent[0], sent[1], sent[3])
    ]
    return written(folder / "o.xlsx", [["등기우편물 배달 결과"], ["기간", "2026-10-05 ~ 2026-10-31"], [], POST, *rows])


def by_key(folder: Path, found: pl.DataFrame) -> Path:
    keys = [found["고객코드"][place].split(", ")[-1] for place in (0, 1, 3)]
    return write(folder / "o.csv", "\n".join(["고객코드,반송사유", *(f"{key},이사불명" for key in keys), ""]), "cp949")


def by_addressee(folder: Path, found: pl.DataFrame) -> Path:
    """As the post writes it: one address line, a salutation behind the name, and a row of totals."""
    rows = []
    for place in (0, 1, 3):
        name, first, second, code, *_ = found.row(place)
        address = f"{first}{'' if not second else f' {second}' if second.startswith('(') else f', {second}'}"
        rows.append(["", f"{name} 귀중", code, address, "02. 주소 불명", ""])
    return written(folder / "o.xlsx", [["반송 내역"], POST, *rows, ["합계", "3건", "", "", "", ""]])


FORMS: dict[str, tuple[Callable[[Path, pl.DataFrame], Path], str]] = {
    "letter_id": (by_id, "letter_id"),
    "registered": (by_registered, "registered number"),
    "key": (by_key, "customer key"),
    "addressee": (by_addressee, "recipient and address"),
}


@pytest.mark.parametrize("form", FORMS)
def test_returns_are_recorded_from_four_forms_of_lists(mailed: Path, form: str) -> None:
    """By the enriched file and by the list of letters, each of which may have the registered numbers; -o names them."""
    make, way = FORMS[form]
    found = read(mailed / "letters.xlsx").filter(pl.col("받는 분").is_not_null())
    sent = found.with_row_index().select(
        *found.columns, 등기번호=1_000_000_000_000 + 7 * pl.col("index").cast(pl.Int64)
    )
    written(mailed / "list.xlsx", [["발송 목록"], sent.columns, *map(list, sent.rows())])
    outcomes = make(mailed, found)
    with use_language("ko"):
        report = label(outcomes, mailed / "list.xlsx", output=mailed / "back.xlsx")
    assert (dict(report.ways), report.bounced, report.listed) == ({way: 3}, 3, ())
    assert labelled(report) == {0: True, 1: True, 3: True}
    back = pl.read_excel(mailed / "back.xlsx", infer_schema_length=0, read_options={"header_row": 1})
    assert back.filter(pl.col("반송 여부") == "true")["고객코드"].equals(found[[0, 1, 3]]["고객코드"])
    # the enriched file does not have the registered numbers; what was written has the ids that lead to it
    enriched = label(mailed / "back.xlsx" if form == "registered" else outcomes, mailed / "mailed.csv")
    assert dict(enriched.ways) == {"letter_id" if form == "registered" else way: 3}
    keys = [key.split(", ")[0] for key in found[[0, 1, 3]]["고객코드"]]
    whole = read(mailed / "mailed.csv").with_row_index()
    assert set(labelled(enriched)) == set(whole.filter(pl.col("고객코드").is_in(keys))["index"])
    assert enriched.usable == 3 - 1 * (form == "letter_id")  # 수취거절 says nothing


def test_a_delivered_letter_has_a_day_in_the_posts_list_but_no_day_of_return(mailed: Path) -> None:
    one, two, *_ = read(mailed / "letters.xlsx")["봉투번호"]
    rows = [(one, "배달완료", "2026.10.7"), (two, "반송", "2026.10.20")]
    for header, contradictions in (("처리일자", 0), ("반송일", 1)):
        outcomes = written(mailed / "o.xlsx", [("봉투번호", "배달결과", header), *rows])
        report = label(outcomes, mailed / "mailed.csv", dry_run=True)
        assert (report.bounced, len(report.listed)) == (1, contradictions)


def test_each_row_of_a_mixed_list_is_found_by_the_surest_that_it_has(mailed: Path) -> None:
    """What fits none or several is listed, and so is a mistyped id, whatever else the row has."""
    found, whole = read(mailed / "letters.xlsx"), read(mailed / "mailed.csv")
    ids, keys = found["봉투번호"].to_list(), [one.split(", ")[0] for one in found["고객코드"]]
    number = whole.filter(pl.col("고객코드") == keys[2])["사업자등록번호"][0]
    wrong = f"{ids[4][:-1]}{'B' if ids[4][-1] != 'B' else 'C'}"
    rows = [
        "letter_id,사업자등록번호,고객코드,반송사유",
        f"{ids[0]},,,수취인불명",
        f",{number},,사망",
        f",1.248E+09,{keys[3]},배달불능",
        f"{wrong},,{keys[4]},이사",
        f"{ids[5]},{number},,이사",
        ",,없는 코드,이사",
        ",,,이사",
    ]
    report = label(write(mailed / "o.csv", "\n".join([*rows, ""])), mailed / "mailed.csv", complete=True, sent="send")
    assert dict(report.ways) == {"letter_id": 1, "number": 1, "customer key": 1}
    assert [(one.row, one.problem) for one in report.listed] == [
        *((4, "letter_id_wrong"), (5, "number_differs"), (6, "letter_unknown"), (7, "no_number"))
    ]
    assert report.listed[0].value == wrong
    assert dict(report.by_reason) == {"unknown_addressee": 2, "other": 1}
    assert dict(report.other_reasons) == {"배달불능": 1}
    assert report.silent == 0  # the mistyped id may be of any letter


def test_a_recipient_at_an_address_is_never_guessed(mailed: Path) -> None:
    """Another postal code is another letter; two letters with one recipient and address are listed for a person."""
    one, two = numbers(2)
    text = f"사업자번호,상호,주소,우편번호\n{one},가온,서울 종로구 종로 1,03154\n{two},가온,서울 종로구 종로 1,03154\n"
    bs.enrich(write(mailed / "a.csv", text + ",나래,부산 중구 중앙대로 2,48950\n"), mailed / "two.csv")
    lines = ["가온,서울 종로구 종로 1,03154", "나래,부산 중구 중앙대로 2,48951", "나래,부산 중구 중앙대로 2,48950"]
    outcomes = write(
        mailed / "o.csv", "\n".join(["수취인,주소,우편번호,반송사유", *(f"{one},이사" for one in lines), ""])
    )
    report = label(outcomes, mailed / "two.csv")
    assert [(one.row, one.problem) for one in report.listed] == [(1, "letter_ambiguous"), (2, "letter_unknown")]
    assert labelled(report) == {2: True}


def test_a_list_of_letters_without_any_of_its_returns_is_refused(mailed: Path) -> None:
    with pytest.raises(LabelError) as caught:
        label(write(mailed / "o.csv", "고객코드,반송사유\n없음1,이사\n"), mailed / "letters.xlsx")
    assert caught.value.code == "labels.outcomes_not_matched"
    assert LabelStore().mailings() == []


def test_several_inputs_have_one_list_with_the_columns_of_each(tmp_path: Path) -> None:
    frame = read(SAMPLE / "customers.csv").filter(pl.col("사업자등록번호").str.contains("^[0-9]{3}-"))
    frame.head(30).write_csv(tmp_path / "a.csv")
    frame.slice(30, 30).rename({"고객코드": "거래처코드"}).write_csv(tmp_path / "b.csv")
    bs.enrich(
        [tmp_path / "a.csv", tmp_path / "b.csv"], letters=tmp_path / "l.csv", letter_columns=["대표자"], **REFERENCE
    )
    found = read(tmp_path / "l.csv")
    assert found.columns[-3:] == ["고객코드", "거래처코드", "대표자"]
    assert found.filter(pl.col("고객코드").is_null() == pl.col("거래처코드").is_null()).is_empty()
    with pytest.raises(UsageError) as caught:
        bs.enrich(tmp_path / "a.csv", tmp_path / "o.csv", letters=tmp_path / "m.csv", letter_columns=["거래처코드"])
    assert caught.value.code == "columns.names_no_column"


def test_organisations_are_addressed_otherwise_than_persons() -> None:
    """귀하 is for a person's name, which only a sole trader, or somebody without a number, goes by."""
    cases = [
        *(("홍길동", 1210100000, "귀하"), ("홍길동", None, "귀하"), ("홍길동", 1218100000, "귀중")),
        *(("행복식당", 1210100000, "귀중"), ("정육점", 1210100000, "귀중"), ("한의원", 1210100000, "귀중")),
        *(("(주)가온", 1218600000, "귀중"), (None, 1210100000, None)),
    ]
    frame = pl.DataFrame(cases, schema={"name": pl.String, "number": pl.UInt64, "said": pl.String}, orient="row")
    assert frame.select(salutation(pl.col("name"), pl.col("number"))).to_series().to_list() == frame["said"].to_list()


def test_a_price_is_read_as_people_write_it(run: Any) -> None:
    prices = {"500": 500, "1,000": 1000, "500원": 500, " ₩1,234.5 ": 1234.5, "１,０００ 원": 1000}
    assert {text: parse_won(text) for text in prices} == prices
    for wrong in ("1,00", "원", "오백", "1.000.000", "5e2", ""):
        with pytest.raises(ValueError, match="no amount"):
            parse_won(wrong)
    assert run("enrich", str(SAMPLE / "customers.csv"), "--letter-cost", "1,00원", "--dry-run").returncode == 2


def test_keys_that_a_spreadsheet_made_numbers_of_and_ids_as_they_are_copied_find_their_letters(mailed: Path) -> None:
    whole = read(mailed / "letters.xlsx")
    keys = [key for key in whole["고객코드"] if ", " not in key][:5]
    assert all(key.startswith("0") for key in keys)
    came = written(mailed / "keys.xlsx", [["고객코드", "반송사유"], *([int(key), "이사"] for key in keys)])
    assert label(came, mailed / "mailed.csv").ways == {"customer key": 5}
    ids = ["\u200b{}", "\ufeff{}\u00a0", "{}–", "no. {}"]
    rows = [[sign.format(one), "이사"] for sign, one in zip(ids, whole["봉투번호"], strict=False)]
    report = label(written(mailed / "ids.xlsx", [["봉투번호", "반송사유"], *rows]), mailed / "mailed.csv")
    assert (report.ways, report.problems) == ({"letter_id": 3}, {"letter_id_wrong": 1})
