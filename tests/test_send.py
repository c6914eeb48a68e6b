"""`send`: a status checked lately, and an address that names region, road or lot, and number, and is sure."""

from __future__ import annotations

import random
import re
from datetime import date, timedelta
from pathlib import Path

import openpyxl
import polars as pl
import pytest

import bansong as bs
from bansong.distributed import verify_batches
from bansong.engine.address import parse
from bansong.engine.address.gazetteer import Gazetteer
from bansong.engine.registry import Registry
from bansong.server.settings import Clock
from conftest import NOTHING_CHECKED, write
from customers import numbers
from gazetteers import GANGNAM, gazetteer_of
from serving import served
from test_address_reviews import TWICE

pytestmark = NOTHING_CHECKED

TODAY = date(2026, 11, 20)
NUMBERS = numbers(60)
STATUSES = ("active", "active long ago", "closed", "suspended", "in no source", "active")  # of the numbers, in turn
GOLDEN = Path(__file__).parent / "golden" / "send.csv"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("send")


@pytest.fixture(scope="module")
def gazetteer(folder: Path) -> Gazetteer:
    return gazetteer_of(TWICE, folder)


@pytest.fixture(scope="module")
def registry(folder: Path) -> Registry:
    words = {"active": "계속사업자", "active long ago": "계속사업자", "closed": "폐업자", "suspended": "휴업자"}
    named = zip(NUMBERS, STATUSES * len(NUMBERS), strict=False)
    rows = [
        f"{number},{words[status]},{TODAY - timedelta(days=91) if status == 'active long ago' else TODAY}"
        for number, status in named
        if status in words
    ]
    source = write(folder / "statuses.csv", "\n".join(["b_no,상태,기준일", *rows, ""]))
    bs.build_registry([source], folder / "registry.parquet", columns={"as_of": "기준일"})
    return Registry.open(folder / "registry.parquet")


def made(count: int) -> tuple[pl.DataFrame, list[bool]]:
    """Rows of pieces that are there or not, and of each whether it has what a letter needs."""
    dice = random.Random(33)
    roads = ["테헤란로", "중앙로", "역삼동", "관철동", "남부순환로12번길", "한빛아파트 ", "의정로1수2번길", ""]
    pieces = (
        ["서울 강남구 ", "서울특별시 종로구 ", "서울 ", "부산 해운대구 ", "", ""],
        roads,
        [" 1", " 10", " 701", "7", " 12-3", " 3층", " 101동 1001호", "", ""],
        ["", "", "", ", 2층", " 맞은편", " 앞", ", 옆 건물", " (시청 앞)"],
        ["06201", "03190", None, None, "", "1234567"],
    )
    rows, whole = [], []
    for place in range(count):
        region, named, number, beside, code = (dice.choice(options) for options in pieces)
        usable = re.fullmatch("[0-9]{5}", code or "") is not None
        is_number = re.fullmatch(" ?[0-9-]+", number) is not None and named.strip() not in ("", "한빛아파트")
        rows.append((NUMBERS[place % len(NUMBERS)], "가나", f"{region}{named}{number}{beside}", code))
        whole.append((bool(region) or usable) and is_number and beside in ("", ", 2층"))
    return pl.DataFrame(rows, schema=["사업자번호", "상호", "주소", "우편번호"], orient="row"), whole


@pytest.mark.parametrize("with_gazetteer", [False, True])
def test_send_implies_all_that_a_letter_needs(registry: Registry, gazetteer: Gazetteer, with_gazetteer: bool) -> None:
    frame, whole = made(2_000)
    answers = bs.verify_frame(frame, registry=registry, gazetteer=gazetteer if with_gazetteer else None, today=TODAY)
    sent = answers.with_columns(whole=pl.Series(whole)).with_row_index("place").filter(pl.col("action") == "send")
    assert sent.height > (10 if with_gazetteer else 70)
    assert sent["whole"].all()
    assert {STATUSES[place % len(STATUSES)] for place in sent["place"]} <= {"active", "suspended"}
    said = sent["reasons"].list.join(" | ")
    assert not said.str.contains("more than one place|nothing else in the row|no such road|names no|status not").any()


def test_addresses_are_sent_and_corrected_as_the_golden_file_says(registry: Registry, tmp_path: Path) -> None:
    """Two places, no number and notes are not sent, names like them are; a postal code that fits is a region."""
    building = (GANGNAM, "역삼동", "", "737", "테헤란로", 0, "152", "06236", "역삼1동", 0, "")
    here = gazetteer_of([building], tmp_path)
    golden = pl.read_csv(GOLDEN, schema_overrides={"zipcode": pl.String})
    frame = golden.select(사업자번호=pl.lit(NUMBERS[0]), 상호=pl.lit("가나"), 주소="address", 우편번호="zipcode")
    alone = bs.verify_frame(frame, registry=registry, today=TODAY)
    matched = bs.verify_frame(frame, registry=registry, gazetteer=here, today=TODAY, extra_columns=["district_code"])
    corrected = pl.any_horizontal(pl.col("fixed_address", "fixed_zipcode", "district_code").is_not_null())
    found = golden.select("address", "zipcode", alone=alone["action"], matched=matched["action"]).with_columns(
        corrected=matched.select(corrected).to_series()
    )
    assert [row for row, wanted in zip(found.rows(), golden.rows(), strict=True) if row != wanted] == []
    unsure = golden.filter(~pl.col("corrected"), pl.col("zipcode") == "06236", pl.col("address").str.contains("152"))
    said = matched.join(unsure, left_on=["주소", "우편번호"], right_on=["address", "zipcode"], how="semi")["reasons"]
    assert not said.list.join(" | ").str.contains("not found").any()


def test_every_surface_of_the_local_engine_gives_the_same_actions(
    registry: Registry, gazetteer: Gazetteer, tmp_path: Path
) -> None:
    used = {"registry": registry.path, "gazetteer": gazetteer.path}
    addresses = ["서울특별시 강남구 테헤란로 1", "테헤란로 1", "서울 강남구 테헤란로 1 맞은편", "서울 강남구 역삼동"]
    frame = pl.DataFrame({"사업자번호": NUMBERS[0], "상호": "가나", "주소": addresses})
    source = write(tmp_path / "in.csv", frame.write_csv())
    bs.enrich(source, tmp_path / "out.parquet", today=TODAY, **used)
    answers = {
        "enrich": pl.read_parquet(tmp_path / "out.parquet")["action"].to_list(),
        "frame": bs.verify_frame(frame, today=TODAY, **used)["action"].to_list(),
        "cluster": verify_batches(frame, today=TODAY, **used)(frame.to_arrow())["action"].to_pylist(),
        "verify": [bs.verify(*one, today=TODAY, **used).action for one in frame.iter_rows()],
    }
    now = pl.Series([TODAY]).cast(pl.Datetime("ms")).dt.epoch("s")[0]
    with served(tmp_path / "db.sqlite", Clock(now=lambda: now), **used) as server, server.client() as client:
        answers["server"] = [client.verify(*one).action for one in frame.iter_rows()]
    assert set(map(tuple, answers.values())) == {("send", "confirm", "confirm", "fix_address")}, answers


def test_a_row_of_the_review_is_never_one_to_send(registry: Registry, gazetteer: Gazetteer, tmp_path: Path) -> None:
    """Two roads of that name, and a road that is one letter from another one: both are listed, neither is sent."""
    addresses = ["서울 중앙로 10", "서울 강남구 테헤런로 1", "서울 강남구 테헤란로 1"]
    frame = pl.DataFrame({"사업자번호": [NUMBERS[0], NUMBERS[5], NUMBERS[6]], "상호": "가나", "주소": addresses})
    source = write(tmp_path / "in.csv", frame.write_csv())
    files = {"review": tmp_path / "review.xlsx", "letters": tmp_path / "letters.csv"}
    bs.enrich(source, tmp_path / "out.parquet", registry=registry, gazetteer=gazetteer, today=TODAY, **files)
    sheet = openpyxl.load_workbook(files["review"]).worksheets[0]
    assert [row[0] for row in sheet.iter_rows(min_row=3, values_only=True)] == [1, 2]
    assert pl.read_parquet(tmp_path / "out.parquet")["action"].to_list() == ["confirm", "confirm", "send"]
    assert pl.read_csv(files["letters"]).height == 1


def test_letters_among_numbers_belong_to_the_road_and_a_legal_dong_of_one_letter_is_no_house() -> None:
    """Of the letters that name houses, 가 to 사, three are legal dongs today: 다동, 마동, 사동."""
    expected: dict[str, object] = {
        "경기 의정부시 의정로1수2번길22, 3층": ("의정로1수2번길", 22, True),
        "경기 의정부시 의정로 1수2번길 22-3": ("의정로1수2번길", 22, False),
        "서울 관악구 봉천로1가길 5": ("봉천로1가길", 5, False),
        "서울 관악구 봉천로12다길 5": ("봉천로12다길", 5, False),
        "경기 수원시 정조대로3번안길 7": ("정조대로3번안길", 7, False),
        "서울 강남구 테헤란로 1 2번길": ("테헤란로", 1, False),
        "경기 안산시 상록구 용신로 1 (사동)": ("용신로", 1, False),
        "경북 경주시 불국로 1(마동, 가나아파트)": ("불국로", 1, False),
        "서울 중구 무교로 1 (다동)": ("무교로", 1, False),
        "서울 강남구 테헤란로 1 사동 101호": ("테헤란로", 1, True),
        "서울 강남구 테헤란로 1 (가동 101호)": ("테헤란로", 1, True),
        "경기 안산시 상록구 용신로 1 (사동, 나동)": ("용신로", 1, True),
    }
    rows = pl.LazyFrame({"address": list(expected)}).with_columns(zipcode=pl.lit(None, pl.String))
    found = parse.parse(rows).collect().select("road", "main", "has_unit")
    assert dict(zip(expected, found.rows(), strict=True)) == expected
