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
from serving import served
from test_address_reviews import TWICE
from test_matching import GANGNAM, gazetteer_of

pytestmark = NOTHING_CHECKED

TODAY = date(2026, 11, 20)
NUMBERS = numbers(600)
WHOLE = "서울특별시 강남구 테헤란로 1"
NEVER = [
    "테헤란로 1",
    "역삼동 701, 3층",
    "서울 강남구 역삼동",
    "서울 강남구 테헤란로",
    "서울 강남구 역삼동 한빛아파트 101동 1001호",
    "서울 강남구 관리동 101",
    "경기 안산시 상가동 101",
    "전북 군산시 임피면 181-2",
    "서울 강남구 테헤란로 1 맞은편",
    "서울 강남구 테헤란로 1 맞은 편",
    "서울 강남구 테헤란로 1, 옆 건물",
    "서울 강남구 테헤란로 1 옆건물",
    "서울 강남구 테헤란로 1 앞",
    "서울 강남구 테헤란로 1 (시청 앞)",
    "서울 강남구 역삼동 701 농협 옆",
    "강남역 2번 출구 앞",
    "서울 강남구 테헤란로 1 윗집",
    "서울 강남구 테헤란로 1 (뒷골목)",
    "서울 강남구 역삼동 701 일대",
    "서울 강남구 테헤란로 152 또는 154",
    "서울 강남구 테헤란로 152~154",
    "서울 강남구 테헤란로 0",
]
NAMES_ALL = [
    WHOLE,
    "서울 강남구 테헤란로 1 시청앞점",
    "서울 강남구 테헤란로 1 강남역앞빌딩 2층",
    "서울 중구 세종대로 110 시청앞 지하상가 12호",
    "서울 강남구 테헤란로 1, 10~12층",
    "서울 강남구 테헤란로 1 일원빌딩",
    "대구 남구 앞산순환로 651",
    "경북 청송군 부동면 이전앞길 1",
    "충남 당진시 송악읍 샘건너길 2",
    "인천 강화군 하점면 부근리 12",
    "서울 강남구 역삼동 산 12-3번지",
    "경기도 안산시 상록구 사동 1234",
]


HERE = "서울 강남구 테헤란로 152"
NOT_ONE_PLACE = [
    *(
        " 또는 154",
        "번지 혹은 154번지",
        " (또는 154)",
        " 및 154",
        " 또는 테헤란로 154",
        "~154",
        " ～ 154",
        "  ~  154",
        "  또는  154",
        ", 154",
        "/154",
    ),
    *(" / 서울 서초구 반포대로 30", ", 서울 서초구 반포대로 30, 3층", ", 반포대로 30"),
    *(" 윗집", " 시청 입구", " 후문", " 뒷골목", " (옆창고)", " 시청 건너", " 일대", ", 맞은편길", " 강남역 사거리"),
    *(" 옆건물 2층", ", 앞 건물", " 미상", ", 확인 필요", " (이사감)", " 3층 폐업"),
]
ONE_PLACE = [
    *(
        "",
        ", 3층",
        ", 101동 1203호",
        ", 1203",
        ", 154호",
        "-0",
        " 외 1필지",
        ", 외 1필지(강남구 테헤란로 154)",
        ", 10~12층",
        " 지하1층~2층",
        " 101~103호",
    ),
    *(
        ", 101동 101~103호",
        ", 가동 101~103호",
        ", 101호 및 102호",
        ", 101,102호",
        ", 153,154호",
        ", 153, 154호",
        ", 3/4층",
        ", 메트로 101",
    ),
    *(
        " 강남역앞빌딩 2층",
        " 시청앞빌딩 3층",
        " 부평역앞상가 3호",
        " 시청앞 지하상가 12호",
        " 구청뒤 상가 3호",
        " 시청앞점",
    ),
    *(
        " 옆집식당 2층",
        " 사거리약국",
        " 입구빌딩",
        " 후문상가 2호",
        " 일원빌딩",
        " 일대 일 학원",
        " 폐업상담센터",
        " (역삼동 737)",
    ),
]
NO_NUMBER = [
    "서울 강남구 테헤란로 0",
    "서울 강남구 테헤란로 000, 3층",
    "서울 강남구 역삼동 0",
    "서울 강남구 역삼동 산 0",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("send")


@pytest.fixture(scope="module")
def gazetteer(folder: Path) -> Gazetteer:
    return gazetteer_of(TWICE, folder)


@pytest.fixture(scope="module")
def registry(folder: Path) -> Registry:
    """Of six numbers one each is active, active long ago, closed, suspended, in no source, and active again."""
    kinds, stale = ["계속사업자", "계속사업자", "폐업자", "휴업자", None, "계속사업자"], TODAY - timedelta(days=91)
    rows = [
        f"{number},{kinds[place % 6]},{stale if place % 6 == 1 else TODAY}"
        for place, number in enumerate(NUMBERS)
        if kinds[place % 6]
    ]
    source = write(folder / "statuses.csv", "b_no,상태,기준일\n" + "\n".join(rows) + "\n")
    bs.build_registry([source], folder / "registry.parquet", columns={"as_of": "기준일"})
    return Registry.open(folder / "registry.parquet")


def made(count: int) -> tuple[pl.DataFrame, list[bool]]:
    """Rows of pieces that are there or not, and of each whether it has what a letter needs."""
    dice = random.Random(33)
    rows, whole = [], []
    for place in range(count):
        region = dice.choice(["서울 강남구 ", "서울특별시 종로구 ", "서울 ", "부산 해운대구 ", "", ""])
        named = dice.choice(
            ["테헤란로", "중앙로", "역삼동", "관철동", "남부순환로12번길", "한빛아파트 ", "의정로1수2번길", ""]
        )
        number = dice.choice([" 1", " 10", " 701", "7", " 12-3", " 3층", " 101동 1001호", "", ""])
        beside = dice.choice(["", "", "", ", 2층", " 맞은편", " 앞", ", 옆 건물", " (시청 앞)"])
        code = dice.choice(["06201", "03190", None, None, "", "1234567"])
        usable = re.fullmatch("[0-9]{5}", code or "") is not None
        is_number = re.fullmatch(" ?[0-9-]+", number) is not None and named.strip() not in ("", "한빛아파트")
        rows.append((NUMBERS[place % len(NUMBERS)], "가나", region + named + number + beside, code))
        whole.append((bool(region) or usable) and is_number and beside in ("", ", 2층"))
    return pl.DataFrame(rows, schema=["사업자번호", "상호", "주소", "우편번호"], orient="row"), whole


@pytest.mark.parametrize("with_gazetteer", [False, True])
def test_send_implies_all_that_a_letter_needs(registry: Registry, gazetteer: Gazetteer, with_gazetteer: bool) -> None:
    """Each condition is worked out again from the pieces of which a row was made, and from what its reasons say."""
    frame, whole = made(6_000)
    with_source, without = (
        bs.verify_frame(frame, registry=source, gazetteer=gazetteer if with_gazetteer else None, today=TODAY)
        for source in (registry, None)
    )
    assert "send" not in set(without["action"])
    sent = with_source.with_columns(whole=pl.Series(whole)).with_row_index("place").filter(pl.col("action") == "send")
    assert sent.height > (20 if with_gazetteer else 200)
    assert sent["whole"].all()
    assert set(sent["place"] % 6) <= {0, 3, 5}  # neither closed nor stale nor unknown
    said = sent["reasons"].list.join(" | ")
    assert not said.str.contains("more than one place|nothing else in the row|no such road|names no|status not").any()


@pytest.mark.parametrize("with_gazetteer", [False, True])
def test_every_surface_of_the_local_engine_keeps_these_from_being_sent(
    registry: Registry, gazetteer: Gazetteer, tmp_path: Path, with_gazetteer: bool
) -> None:
    used = {"registry": registry.path, "gazetteer": gazetteer.path if with_gazetteer else None}
    addresses = [*NEVER, *NAMES_ALL]
    active = [number for place, number in enumerate(NUMBERS) if place % 6 == 0][: len(addresses)]
    frame = pl.DataFrame({"사업자번호": active, "상호": "가나", "주소": addresses})
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
    assert "send" not in answers["enrich"][: len(NEVER)]
    assert set(answers["enrich"][len(NEVER) :]) == {"send"} or with_gazetteer  # which holds three buildings
    assert set(answers["enrich"]) >= {"send", "confirm"}
    assert all(actions == answers["enrich"] for actions in answers.values())


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Gazetteer:
    building = (GANGNAM, "역삼동", "", "737", "테헤란로", 0, "152", "06236", "역삼1동", 0, "")
    return gazetteer_of([building], tmp_path_factory.mktemp("here"))


@pytest.mark.parametrize("with_gazetteer", [False, True])
def test_two_places_no_number_and_notes_are_not_sent_and_names_like_them_are(
    registry: Registry, here: Gazetteer, with_gazetteer: bool
) -> None:
    addresses = [*(HERE + words for words in NOT_ONE_PLACE), *NO_NUMBER, *(HERE + words for words in ONE_PLACE)]
    active = [number for place, number in enumerate(NUMBERS) if place % 6 == 0][: len(addresses)]
    frame = pl.DataFrame({"사업자번호": active, "상호": "가나", "주소": addresses})
    gazetteer = here if with_gazetteer else None
    answers = bs.verify_frame(frame, registry=registry, gazetteer=gazetteer, today=TODAY)
    is_sent = [action == "send" for action in answers["action"]]
    wrong = len(NOT_ONE_PLACE) + len(NO_NUMBER)
    assert [address for address, sent in zip(addresses[:wrong], is_sent[:wrong], strict=True) if sent] == []
    assert [address for address, sent in zip(addresses[wrong:], is_sent[wrong:], strict=True) if not sent] == []


def test_no_corrected_address_holds_a_second_number_or_a_note(registry: Registry, here: Gazetteer) -> None:
    """With the region written and without it, by road and by lot: such a row keeps its own address and code."""
    heads = [HERE, "테헤란로 152", "서울 강남구 역삼동 737"]
    doubtful = [head + words for words in NOT_ONE_PLACE for head in (heads if "154" not in words else heads[:2])]
    lots = [heads[2] + words for words in (" 또는 740", "번지 혹은 740번지", "~740")]
    addresses = [*doubtful, *lots, *(HERE + words for words in ONE_PLACE)]
    frame = pl.DataFrame({"사업자번호": NUMBERS[0], "상호": "가나", "주소": addresses, "우편번호": "06236"})
    answers = bs.verify_frame(frame, registry=registry, gazetteer=here, today=TODAY, extra_columns=["district_code"])
    corrected = answers["fixed_address"].is_not_null() | answers["fixed_zipcode"].is_not_null()
    certain = len(addresses) - len(ONE_PLACE)
    assert answers[:certain].filter(corrected[:certain] | answers["district_code"][:certain].is_not_null()).is_empty()
    assert answers[certain:].filter(~corrected[certain:]).is_empty()
    said = answers[:certain].filter(pl.col("주소").str.starts_with(heads[1]))["reasons"].list.join(" | ")
    assert not said.str.contains("not found").any()


@pytest.mark.parametrize(
    ("address", "zipcode", "action"),
    [
        ("테헤란로 152", "06236", "send"),
        ("테헤란로 152", " 06236 ", "send"),
        ("테헤란로 152 (역삼동)", "06236", "send"),
        ("테헤란로 152 (역삼동)", "30151", "fix_address"),
        ("테헤란로 152", "6236", "confirm"),
        ("테헤란로 152", "30151", "confirm"),
        ("테헤란로 152, 3층", "30151", "confirm"),
        ("역삼동 737", "30151", "fix_address"),
        ("반포대로 30", "06236", "confirm"),
    ],
)
def test_a_postal_code_stands_for_the_region_as_five_digits_that_fit(
    registry: Registry, here: Gazetteer, address: str, zipcode: str, action: str
) -> None:
    frame = pl.DataFrame({"사업자번호": [NUMBERS[0]], "상호": "가나", "주소": address, "우편번호": zipcode})
    assert bs.verify_frame(frame, registry=registry, gazetteer=here, today=TODAY)["action"].to_list() == [action]


def test_a_row_of_the_review_is_never_one_to_send(registry: Registry, gazetteer: Gazetteer, tmp_path: Path) -> None:
    """Two roads of that name, and a road that is one letter from another one: both are listed, neither is sent."""
    addresses = ["서울 중앙로 10", "서울 강남구 테헤런로 1", "서울 강남구 테헤란로 1"]
    frame = pl.DataFrame({"사업자번호": [NUMBERS[0], NUMBERS[5], NUMBERS[6]], "상호": "가나", "주소": addresses})
    source = write(tmp_path / "in.csv", frame.write_csv())
    files = {"review": tmp_path / "review.xlsx", "letters": tmp_path / "letters.csv"}
    bs.enrich(source, tmp_path / "out.parquet", registry=registry, gazetteer=gazetteer, today=TODAY, **files)
    sheet = openpyxl.load_workbook(files["review"]).worksheets[0]
    assert [row[0] for row in sheet.iter_rows(min_row=2, values_only=True)] == [1, 2]
    assert pl.read_parquet(tmp_path / "out.parquet")["action"].to_list() == ["confirm", "confirm", "send"]
    assert pl.read_csv(files["letters"]).height == 1


@pytest.mark.parametrize(
    ("address", "road", "number"),
    [
        ("경기 의정부시 의정로1수2번길 22", "의정로1수2번길", 22),
        ("경기 의정부시 의정로1수2번길22, 3층", "의정로1수2번길", 22),
        ("경기 의정부시 의정로 1수2번길 22-3", "의정로1수2번길", 22),
        ("서울 관악구 봉천로1가길 5", "봉천로1가길", 5),
        ("서울 관악구 봉천로12다길 5", "봉천로12다길", 5),
        ("경기 수원시 정조대로3번안길 7", "정조대로3번안길", 7),
        ("서울 강남구 테헤란로 1 2번길", "테헤란로", 1),
    ],
)
def test_a_number_with_a_letter_and_a_further_number_is_part_of_the_roads_name(
    address: str, road: str, number: int
) -> None:
    rows = pl.LazyFrame({"address": [address], "zipcode": [None]}, schema_overrides={"zipcode": pl.String})
    found = parse.parse(rows).collect().row(0, named=True)
    assert (found["road"], found["main"]) == (road, number)


@pytest.mark.parametrize(
    ("address", "has_unit"),
    [
        ("경기 안산시 상록구 용신로 1 (사동)", False),
        ("경북 경주시 불국로 1(마동, 가나아파트)", False),
        ("서울 중구 무교로 1 (다동)", False),
        ("서울 강남구 테헤란로 1, 가동 101호", True),
        ("서울 강남구 테헤란로 1 사동 101호", True),
        ("서울 강남구 테헤란로 1 (가동 101호)", True),
        ("경기 안산시 상록구 용신로 1 (사동, 나동)", True),
    ],
)
def test_a_legal_dong_of_one_letter_in_brackets_is_no_house(address: str, has_unit: bool) -> None:
    rows = pl.LazyFrame({"address": [address], "zipcode": [None]}, schema_overrides={"zipcode": pl.String})
    assert parse.parse(rows).collect()["has_unit"].to_list() == [has_unit]


def test_the_one_letter_legal_dongs_are_those_of_the_official_list(shared: Path) -> None:
    """Of the letters that name houses, 가 to 사, three are legal dongs today."""
    lines = (shared / "address" / "legal_dong_codes_2025.txt").read_text(encoding="cp949").splitlines()
    names = [line.split("\t")[1].split(" ")[-1] for line in lines if line.endswith("존재")]
    assert {name for name in names if re.fullmatch("[가나다라마바사]동", name)} == {"다동", "마동", "사동"}
