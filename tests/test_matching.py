"""Addresses against a gazetteer: which building is meant, how it was found, and when nothing may be said."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bansong.engine.address import gazetteer as stored_section
from bansong.engine.address import lookups as open_lookups
from bansong.engine.address.attach import ADDED, attach
from bansong.engine.address.batches import built_once
from bansong.engine.address.gazetteer import Gazetteer, read_section
from bansong.engine.address.matcher import LEVELS
from bansong.reference import gazetteer as gazetteer_builder
from bansong.reference.gazetteer import build_gazetteer
from examples import examples

SEJONG, GONGJU = ("36110", "세종특별자치시", ""), ("44150", "충청남도", "공주시")
JONGNO, GANGNAM = ("11110", "서울특별시", "종로구"), ("11680", "서울특별시", "강남구")
SUWON, JUNG, DAEGU_JUNG = (
    ("41117", "경기도", "수원시 영통구"),
    ("11140", "서울특별시", "중구"),
    ("27110", "대구광역시", "중구"),
)

# region, emd, ri, lot, road, under, number, postal code, administrative dong, apartment complex, building name
BUILDINGS: list[tuple[Any, ...]] = [
    (SEJONG, "조치원읍", "남리", "63-22", "새내길", 0, "38", "30027", "조치원읍", 0, ""),
    (SEJONG, "조치원읍", "남리", "64", "새내길", 0, "38-4", "30027", "조치원읍", 0, ""),
    (SEJONG, "조치원읍", "남리", "70", "새내6길", 0, "12", "30027", "조치원읍", 0, "한빛회관"),
    (SEJONG, "조치원읍", "서창리", "5", "새내6길", 0, "14", "30028", "조치원읍", 0, ""),
    (SEJONG, "보람동", "", "700", "한누리대로", 0, "2130", "30151", "보람동", 0, "시청"),
    (SEJONG, "보람동", "", "701", "한누리대로", 0, "2140", "30152", "보람동", 1, "푸른마을"),
    (SEJONG, "부강면", "산수리", "산12-3", "태산길", 0, "10", "30075", "부강면", 0, ""),
    (SEJONG, "부강면", "산수리", "200", "산수길", 0, "21", "30075", "부강면", 0, "가동"),
    (SEJONG, "부강면", "산수리", "200", "산수길", 0, "21", "30075", "부강면", 0, "나동"),  # two entries, one address
    (SEJONG, "부강면", "산수리", "100", "산수길", 0, "7", "30075", "부강면", 0, ""),
    (SEJONG, "부강면", "산수리", "100", "산수길", 0, "9", "30075", "부강면", 0, ""),
    (SEJONG, "부강면", "갈산리", "3", "한마을길", 0, "20", "30076", "부강면", 0, ""),
    (SEJONG, "부강면", "갈산리", "4", "큰마을길", 0, "20", "30076", "부강면", 0, ""),
    (SEJONG, "조치원읍", "서창리", "9", "산소길", 0, "7", "30028", "조치원읍", 0, ""),
    (SEJONG, "부강면", "산수리", "산12-9", "태산길", 0, "21", "30075", "부강면", 0, ""),
    (SEJONG, "보람동", "", "703", "왕능로", 0, "5", "30155", "보람동", 0, ""),
    (SEJONG, "조치원읍", "서창리", "11", "덕읍길", 0, "2", "30028", "조치원읍", 0, ""),
    (GONGJU, "웅진동", "", "63-22", "새내길", 0, "38", "32530", "웅진동", 0, ""),
    (GONGJU, "웅진동", "", "65", "왕릉로", 0, "5", "32531", "웅진동", 0, ""),
    (GONGJU, "유구읍", "남리", "63-22", "유구길", 0, "5", "32505", "유구읍", 0, ""),
    (JONGNO, "청진동", "", "24", "종로", 0, "33", "03159", "종로1·2·3·4가동", 0, ""),
    (JONGNO, "종로1가", "", "24", "종로", 0, "1", "03154", "종로1·2·3·4가동", 0, "교보생명빌딩"),
    (JONGNO, "사직동", "", "1", "사직로", 1, "130", "03172", "사직동", 0, ""),
    (JONGNO, "계동", "", "3", "계동길", 0, "37", "03059", "가회동", 0, ""),
    (GANGNAM, "역삼동", "", "737", "테헤란로", 0, "152", "06236", "역삼1동", 0, ""),
    (GANGNAM, "역삼동", "", "712-4", "논현로", 0, "508", "06225", "역삼2동", 0, ""),
    (GANGNAM, "역삼동", "", "712", "논현로", 0, "510", "06226", "역삼2동", 0, ""),
    (GANGNAM, "역삼동", "", "713", "논현로", 0, "512", "06226", "역삼2동", 0, ""),
    (GANGNAM, "역삼동", "", "720", "논현로508나길", 0, "9", "06227", "역삼2동", 0, ""),
    (SUWON, "매탄동", "", "416", "삼성로", 0, "129", "16677", "매탄3동", 0, ""),
    (("41113", "경기도", "수원시 권선구"), "권선동", "", "1", "권선로", 0, "7", "16571", "권선1동", 0, ""),
    (("12220", "전남광주통합특별시", "목포시"), "호남동", "", "1", "호남로", 0, "5", "58724", "목원동", 0, ""),
    (JUNG, "태평로1가", "", "31", "세종대로", 0, "110", "04524", "명동", 0, ""),
    (JUNG, "명동1가", "", "1", "중앙로", 0, "3", "04535", "명동", 0, ""),
    (DAEGU_JUNG, "남일동", "", "1", "중앙로", 0, "3", "41937", "성내1동", 0, ""),
]


def official_line(place: int, building: tuple[Any, ...]) -> str:
    (code, sido, sigungu), emd, ri, lot, road, under, number, zipcode, admin, apartment, name = building
    main, _, sub = number.partition("-")
    lot_main, _, lot_sub = lot.removeprefix("산").partition("-")
    legal = f"{code}{sum(map(ord, emd)) % 100 + 101:03d}{sum(map(ord, ri)) % 90 if ri else 0:02d}"
    road_code = f"{code}{sum(map(ord, road)) % 10**7:07d}"
    fields = [f"{legal}{place:016d}"]
    fields += [legal, sido, sigungu, emd, ri, str(int(lot.startswith("산"))), lot_main, lot_sub or "0", road_code, road]
    fields += [
        str(under),
        main,
        sub or "0",
        legal[:8] + "00",
        admin,
        zipcode,
        "",
        "20200101",
        str(apartment),
        "",
        name,
        name,
        "",
    ]
    return "|".join(fields)


def gazetteer_of(buildings: Sequence[Any], folder: Path) -> Gazetteer:
    """The gazetteer of some buildings, from a file a province in the form of the official ones."""
    by_province: dict[str, list[str]] = {}
    for place, building in enumerate(buildings):
        by_province.setdefault(building[0][1], []).append(official_line(place, building))
    for number, lines in enumerate(by_province.values()):
        (folder / f"rnaddrkor_{number}.txt").write_bytes(("\r\n".join(lines) + "\r\n").encode("cp949"))
    build_gazetteer([folder], folder / "gazetteer.parquet")
    return Gazetteer.open(folder / "gazetteer.parquet")


@pytest.fixture(scope="session")
def gazetteer(tmp_path_factory: pytest.TempPathFactory) -> Gazetteer:
    return gazetteer_of(BUILDINGS, tmp_path_factory.mktemp("juso"))


Key = tuple[str | None, str | None, str]


def matched(gazetteer: Gazetteer, rows: list[tuple[str | None, str | None]], lang: Any) -> pl.DataFrame:
    asked = {"address": [row[0] for row in rows], "zipcode": [row[1] for row in rows]}
    frame = pl.LazyFrame(asked, schema={"address": pl.String, "zipcode": pl.String})
    return attach(frame, gazetteer, lang).collect()


@pytest.fixture(scope="session")
def answered(gazetteer: Gazetteer) -> dict[Key, dict[str, Any]]:
    """The answers to all addresses of the tables below, of one query for each language."""
    tables = [*ANSWERED, *UNANSWERED, *POSTAL, *((address, None) for address, *_ in CHANGED)]
    rows = [(address, zipcode) for address, zipcode, *_ in tables]
    found: dict[Key, dict[str, Any]] = {}
    for lang in ("en", "ko"):
        answers = matched(gazetteer, rows, lang).iter_rows(named=True)
        found |= {(*row, lang): answer for row, answer in zip(rows, answers, strict=True)}
    return found


@pytest.fixture
def ask(gazetteer: Gazetteer, answered: dict[Key, dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    def one(address: str | None, zipcode: str | None = None, lang: str = "en") -> dict[str, Any]:
        answer = answered.get((address, zipcode, lang))
        return answer or matched(gazetteer, [(address, zipcode)], lang).row(0, named=True)

    return one


def test_a_few_rows_are_answered_from_parts_of_the_file_as_from_the_whole_of_it(
    answered: dict[Key, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gazetteer_builder, "_GROUP", 3)
    parted = gazetteer_of(BUILDINGS, tmp_path)
    monkeypatch.setattr(open_lookups, "FEW", len(answered))
    rows = [(address, zipcode) for address, zipcode, lang in answered if lang == "en"]
    assert matched(parted, rows, "en").rows(named=True) == [answered[*row, "en"] for row in rows]


def test_a_few_rows_read_the_row_groups_of_their_roads_and_many_the_whole_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gazetteer_builder, "_GROUP", 3)
    parted = gazetteer_of(BUILDINGS, tmp_path)
    read: list[tuple[str, list[int]]] = []

    def count(gazetteer: Gazetteer, name: str, columns: Any = None, groups: Any = None) -> pl.DataFrame:
        if groups is not None:
            read.append((name, groups))
        return read_section(gazetteer, name, columns, groups)

    monkeypatch.setattr(stored_section, "read_section", count)
    address = [("서울특별시 강남구 테헤란로 152", None)]
    matched(parted, address, "en")
    assert len({str(groups) for name, groups in read if name == "building"}) == 1
    assert "lot" not in {name for name, _ in read}
    for _ in range(open_lookups.FEW - 1):
        matched(parted, address, "en")
    read.clear()
    matched(parted, address, "en")
    assert not [name for name, groups in read if groups is not None]


HALL = "세종특별자치시 한누리대로 2130 (보람동)"
ANSWERED = [
    # address, postal code, level, fixed address, fixed postal code
    ("세종특별자치시 조치원읍 새내길 38", None, "exact", "세종특별자치시 조치원읍 새내길 38", "30027"),
    ("세종특별자치시 새내길 38, 3층 301호", None, "exact", "세종특별자치시 조치원읍 새내길 38, 3층 301호", "30027"),
    ("세종시 한누리대로2130", "30151", "exact", HALL, "30151"),
    ("서울시 강남구 테헤란로 152 (역삼동)", "06236", "exact", "서울특별시 강남구 테헤란로 152 (역삼동)", "06236"),
    ("서울특별시 강남구 테헤란로 152", "99999", "exact", "서울특별시 강남구 테헤란로 152 (역삼동)", "06236"),
    (
        "서울 강남구 테헤란로 152 (가나빌딩)",
        None,
        "exact",
        "서울특별시 강남구 테헤란로 152 (역삼동, 가나빌딩)",
        "06236",
    ),
    ("서울 강남구 테헤란로 152 (역삼1동)", None, "exact", "서울특별시 강남구 테헤란로 152 (역삼동)", "06236"),
    ("강남구 테헤란로 152", None, "exact", "서울특별시 강남구 테헤란로 152 (역삼동)", "06236"),
    ("경기 수원시 삼성로 129", None, "region_repaired", "경기도 수원시 영통구 삼성로 129 (매탄동)", "16677"),
    ("경기도 수원시 영통구 매탄동 416", None, "lot_to_road", "경기도 수원시 영통구 삼성로 129 (매탄동)", "16677"),
    ("경기도 수원시 영통구 매탄3동 416번지", None, "lot_to_road", "경기도 수원시 영통구 삼성로 129 (매탄동)", "16677"),
    ("세종특별자치시 조치원읍 남리 63-22", None, "lot_to_road", "세종특별자치시 조치원읍 새내길 38", "30027"),
    ("세종시 부강면 산수리 산12-3", None, "lot_to_road", "세종특별자치시 부강면 태산길 10", "30075"),
    ("서울 종로구 종로1가 24", None, "lot_to_road", "서울특별시 종로구 종로 1 (종로1가)", "03154"),
    ("서울 강남구 역삼동 712번지 4호", None, "lot_to_road", "서울특별시 강남구 논현로 508 (역삼동)", "06225"),
    ("서울 강남구 역삼동 713번지 301호", None, "lot_to_road", "서울특별시 강남구 논현로 512, 301호 (역삼동)", "06226"),
    ("한누리대로 2130", None, "region_repaired", HALL, "30151"),
    ("세종시 산수길 21", None, "exact", "세종특별자치시 부강면 산수길 21", "30075"),
    ("새내길 38", "30027", "region_repaired", "세종특별자치시 조치원읍 새내길 38", "30027"),
    ("새내길 38 (웅진동)", None, "region_repaired", "충청남도 공주시 새내길 38 (웅진동)", "32530"),
    ("조치원읍 새내길 38", None, "region_repaired", "세종특별자치시 조치원읍 새내길 38", "30027"),
    ("세종특별자치시 한누리데로 2130", None, "typo_repaired", HALL, "30151"),
    ("세종특별자치시 한누대로 2130", None, "typo_repaired", HALL, "30151"),
    ("세종특별자치시 한누리리대로 2130", None, "typo_repaired", HALL, "30151"),
    ("세종특별자치시 한누리대 2130", None, "typo_repaired", HALL, "30151"),
    ("세종시 덕읍길 2", None, "exact", "세종특별자치시 조치원읍 덕읍길 2", "30028"),
    ("서울 종로구 사직로 130", None, "typo_repaired", "서울특별시 종로구 사직로 지하 130 (사직동)", "03172"),
    ("경기도 강남구 테헤란로 152", None, "region_repaired", "서울특별시 강남구 테헤란로 152 (역삼동)", "06236"),
    (
        "서울 종로구 테헤란로 152 (역삼동)",
        "06236",
        "region_repaired",
        "서울특별시 강남구 테헤란로 152 (역삼동)",
        "06236",
    ),
    ("전라남도 호남로 5", None, "region_repaired", "전남광주통합특별시 목포시 호남로 5 (호남동)", "58724"),
    ("세종시 조치원읍 남리 한빛회관", None, "building_only", "세종특별자치시 조치원읍 새내6길 12, 한빛회관", "30027"),
    # the region behind a name, or at the end
    ("가나상사 서울 강남구 테헤란로 152", None, "exact", "서울특별시 강남구 테헤란로 152, 가나상사 (역삼동)", "06236"),
    ("사업장 주소 서울강남구 테헤란로 152", None, "exact", "서울특별시 강남구 테헤란로 152 (역삼동)", "06236"),
    ("테헤란로 152, 강남구, 서울특별시", None, "exact", "서울특별시 강남구 테헤란로 152 (역삼동)", "06236"),
    ("테헤란로 152 (서울 강남구)", None, "exact", "서울특별시 강남구 테헤란로 152 (역삼동)", "06236"),
    ("중앙로 3 중구 대구", None, "exact", "대구광역시 중구 중앙로 3 (남일동)", "41937"),
    ("중구 중앙로 3, 서울특별시", None, "exact", "서울특별시 중구 중앙로 3 (명동1가)", "04535"),
    # names that end like a place
    ("홍길동 세종시 새내길 38", None, "exact", "세종특별자치시 조치원읍 새내길 38, 홍길동", "30027"),
    ("세종시 조치원읍 홍길동 새내길 38", None, "exact", "세종특별자치시 조치원읍 새내길 38, 홍길동", "30027"),
    ("서울 강남구 신도시 테헤란로 152", None, "exact", "서울특별시 강남구 테헤란로 152, 신도시 (역삼동)", "06236"),
    ("서울 강남구 역샴동 테헤란로 152", None, "exact", "서울특별시 강남구 테헤란로 152 (역삼동)", "06236"),
    # out of a web page, within brackets, behind a dong that looks like a road
    (
        "서울&nbsp;강남구 테헤란로 152<br>3층 A&amp;B",
        None,
        "exact",
        "서울특별시 강남구 테헤란로 152, 3층 A&B (역삼동)",
        "06236",
    ),
    ("[서울 강남구 테헤란로 152]", None, "exact", "서울특별시 강남구 테헤란로 152 (역삼동)", "06236"),
    ("서울 중구 태평로 1가 세종대로 110", None, "exact", "서울특별시 중구 세종대로 110 (태평로1가)", "04524"),
    # two syllables that changed places; a branch without its 길, which is no number on the road
    ("세종특별자치시 누한리대로 2130", None, "typo_repaired", HALL, "30151"),
    ("세종시 부강면 수산리 산12-3", None, "typo_repaired", "세종특별자치시 부강면 태산길 10", "30075"),
    ("서울 강남구 논현로508나 9", None, "typo_repaired", "서울특별시 강남구 논현로508나길 9 (역삼동)", "06227"),
]


@pytest.mark.parametrize(
    ("address", "zipcode", "level", "fixed", "code"), ANSWERED, ids=[f"{n:02d}" for n in range(len(ANSWERED))]
)
def test_an_address_is_found_the_way_it_is_written(
    ask: Callable[..., dict[str, Any]], address: str, zipcode: str | None, level: str, fixed: str, code: str
) -> None:
    """The building, the level and the official form are those that a careful reader would give."""
    answer = ask(address, zipcode)
    assert (answer["match_level"], answer["fixed_address"], answer["fixed_zipcode"]) == (level, fixed, code)
    assert answer["zipcode_right"] == code


UNANSWERED = [
    ("새내길 38", None, "ambiguous"),  # in two provinces
    ("새내길 38 (웅진동)", "30027", "ambiguous"),  # the dong says one, the postal code the other
    ("중앙로 3", None, "ambiguous"),
    ("중구 중앙로 3", None, "ambiguous"),
    ("남리 63-22", None, "ambiguous"),
    ("세종시 부강면 산수리 100", None, "ambiguous"),  # two buildings on one lot
    ("세종시 부강면 작마을길 20", None, "ambiguous"),  # one syllable from two roads
    ("세종특별자치시 새내길 999", None, "road_only"),
    ("서울 종로구 계동길 지하 37", None, "road_only"),
    ("세종특별자치시 새내7길 12", None, "region_only"),  # digits are never taken for typos
    ("충청남도 공주시 한누리대로 2130", None, "region_only"),
    ("부산광역시 해운대구 한누리대로 2130", None, "region_only"),
    ("세종시 새내길 38 / 세종시 태산길 10", None, "ambiguous"),  # two addresses in one cell
    ("세종시 새내길 38 / 부강면 갈산리 3", None, "ambiguous"),
    ("세종시 한누리8길 2130", None, "region_only"),
    ("세종시 조치원읍 샛내7길 12", None, "region_only"),
    ("세종특별자치시 없는아무길 5", None, "region_only"),
    ("광주광역시 호남로 5", None, "region_only"),  # of 2026's merged province this part is not meant
    ("경기도 강남구 한누리대로 2130", None, "region_only"),
    ("세종특별자치시", None, "region_only"),
    ("없는아무길 5", None, "none"),
    ("충청남도 공주시 조치원읍 새내길 38", None, "ambiguous"),  # the 읍 is in the other region that has such a building
    ("세종시 새내길 38", "32530", "ambiguous"),  # so is the postal code
    ("세종특별자치시 공주시 새내길 38", None, "ambiguous"),  # two regions, and both have it
    ("세종시 조치원읍 산수길 7", None, "ambiguous"),  # not in that 읍, where one syllable less fits
    ("웅진동 새내6길 12", None, "region_only"),  # the dong is in a region without such a road
    ("세종시 없는면 한누리데로 2130", None, "region_only"),  # neither the name nor the 면 exists
    ("세종시 한누리데로 2130 (웅진동)", None, "region_only"),
    ("세종시 한누리데로 2130", "30152", "region_only"),  # the postal code is another's
    ("세종시 왕릉로 5", None, "region_only"),  # a road elsewhere is really called so
    ("세종시 부강면 새내길 38", "30151", "ambiguous"),  # two witnesses of different kinds against it
    ("대구광역시 중구 테헤란로 152 (역삼동)", "06236", "region_only"),  # a province that is written is not crossed
    ("세종시 유구읍 서창리 5", None, "region_only"),  # the 리 is here, the 읍 is not
    ("왕릉로 5", "30155", "region_only"),  # it exists as it is written, elsewhere
    ("공주시 웅진동 보람로 99 (보람동)", "30151", "region_only"),
    ("가나상사 부산 해운대구 테헤란로 152", None, "region_only"),  # a region that stands behind a name is written, too
    ("홍길동 대구시 중구 한누리대로 2130", None, "region_only"),
    ("한누리대로 2130, 대구광역시", None, "region_only"),
    ("테헤란로 152 (대구 중구)", None, "region_only"),
    ("중구 세종대로 110 대구", None, "region_only"),
    ("서울 강남구 테헤란로 152 / 경기도 수원시 영통구 매탄동 416", None, "ambiguous"),  # two addresses in two regions
    ("서울 강남구 테헤란로 152 (세종시 조치원읍 남리 63-22)", None, "ambiguous"),
    ("서울 강남구 테헤란로 152 / 광주시 중앙로 3", None, "ambiguous"),
    ("서울 강남구 테헤란로 152, 부산 해운대구 센텀중앙로 90", None, "ambiguous"),  # the other one in none that is known
    ("세종시 보람동 700 / 서울 중구 새내길 38", None, "ambiguous"),  # the second road exists in the first region alone
    ("서울 종로구 종로1가 24, 부산 해운대구 종로 33", None, "ambiguous"),
    ("가나상사 부산광역시 종로 33, 서울 종로구", None, "ambiguous"),
    ("세종시 부강면 수산길 21", None, "ambiguous"),  # one syllable from one road, two swapped from another
    ("Teheran-ro 152, Gangnam-gu, Seoul", None, "none"),
    ("=1+1", None, "none"),
]


@pytest.mark.parametrize(("address", "zipcode", "level"), UNANSWERED, ids=[f"{n:02d}" for n in range(len(UNANSWERED))])
def test_what_is_not_sure_is_not_answered(
    ask: Callable[..., dict[str, Any]], address: str, zipcode: str | None, level: str
) -> None:
    """Of several buildings none is picked, and what does not exist is not bent into something that does."""
    answer = ask(address, zipcode)
    assert answer["match_level"] == level
    assert (answer["fixed_address"], answer["fixed_zipcode"]) == (None, None)


CHANGED = [
    ("서울특별시 강남구 테헤란로 152", None, None),
    ("세종시 한누리데로 2130", "en", "road 한누리데로 → 한누리대로"),
    ("세종시 한누리데로 2130", "ko", "도로명 한누리데로 → 한누리대로"),
    ("세종시 조치원읍 남리 63-22", "en", "lot 남리 63-22 → 새내길 38"),
    ("한누리대로 2130", "en", "region added: 세종특별자치시"),
    ("강남구 테헤란로 152", "en", "region added: 서울특별시"),
    ("서울 강남구 테헤란로 152 (역삼1동, 빌딩)", "en", "dong 역삼1동 → 역삼동"),
    ("경기도 강남구 테헤란로 152", "en", "region 경기도 강남구 → 서울특별시 강남구"),
    ("서울 종로구 사직로 130", "en", "number 130 → 지하 130"),
    ("충남 연기군 조치원읍 새내길 38", "en", "region 충남 연기군 → 세종특별자치시"),
    ("세종시 부강면 새내길 38", "en", "district 부강면 → 조치원읍"),
    ("세종시 새내길 38-9", "en", "there is no number 새내길 38-9"),
]


@pytest.mark.parametrize(("address", "lang", "changes"), CHANGED, ids=[f"{n:02d}" for n in range(len(CHANGED))])
def test_every_change_is_told(
    ask: Callable[..., dict[str, Any]], address: str, lang: str | None, changes: str | None
) -> None:
    """What was written and what it was taken for stand side by side; where nothing was changed nothing is told."""
    assert ask(address, lang=lang or "en")["changes"] == changes


POSTAL = [
    ("세종시 새내길 38", "30027", "right"),
    ("세종시 새내길 38", "30151", "other_district"),
    ("세종시 새내6길 12", "30028", "neighbouring"),  # of the same road
    ("세종시 한누리대로 2130", "30152", "neighbouring"),
    ("세종시 새내길 38", None, None),
    ("세종시 새내길 38", "339-800", None),
    ("세종시 새내길 999", "30027", None),
]


@pytest.mark.parametrize(("address", "zipcode", "match"), POSTAL, ids=[f"{n:02d}" for n in range(len(POSTAL))])
def test_the_postal_code_is_held_against_the_building(
    ask: Callable[..., dict[str, Any]], address: str, zipcode: str | None, match: str | None
) -> None:
    """A wrong code is told apart from one of the neighbourhood, and nothing is said where no building is sure."""
    assert ask(address, zipcode)["postal_match"] == match


def test_a_number_that_is_not_there_gives_its_neighbours_postal_code(ask: Callable[..., dict[str, Any]]) -> None:
    """Where all buildings with the main number share a postal code it is told; the address is not."""
    answer = ask("세종시 새내길 38-9")
    assert (answer["match_level"], answer["fixed_zipcode"], answer["fixed_address"]) == ("building_only", "30027", None)
    assert answer["zipcode_right"] is None


def test_an_apartment_complex_needs_a_unit(ask: Callable[..., dict[str, Any]]) -> None:
    """The unit is missed in an apartment complex only, and seen where it is given."""
    assert ask("세종시 한누리대로 2140")["unit"] == "missing"
    assert ask("세종시 한누리대로 2140, 101동 302호")["unit"] == "given"
    assert ask("세종시 한누리대로 2130")["unit"] is None


def test_a_place_outside_the_gazetteer_is_not_accused(ask: Callable[..., dict[str, Any]]) -> None:
    """Where the gazetteer does not hold the region, that it does not find the road proves nothing."""
    assert ask("부산광역시 해운대구 센텀중앙로 90")["covered"] is False
    assert ask("세종시 없는아무길 5")["covered"] is True


@pytest.mark.parametrize("address", [None, "", "   ", "-", "없음", "서울특별시 강남구 테헤란로 ***"])
def test_without_a_readable_address_there_is_no_level(ask: Callable[..., dict[str, Any]], address: str | None) -> None:
    """Blank and masked addresses have no match level and no answer."""
    answer = ask(address)
    assert (answer["match_level"], answer["fixed_address"], answer["fixed_zipcode"]) == (None, None, None)


HOSTILE = {
    "100 kB of a road": "세종로1" * 25_000,
    "100 kB of brackets": "(" * 100_000,
    "100 kB of digits": "1" * 100_000,
    "emoji": "🏠🏢🏣" * 30,
    "a formula": '=HYPERLINK("http://x","세종")',
    "NUL": "\0\0\0",
    "separators": " | | \n | ",
    "huge number": "세종시 새내길 99999999999999999999",
    "number beyond the keys": "세종시 새내길 131073",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_addresses_are_answered_none(ask: Callable[..., dict[str, Any]], name: str) -> None:
    """No text makes the engine fail, or answer."""
    answer = ask(HOSTILE[name], "30027")
    assert answer["fixed_address"] is None
    assert answer["match_level"] in (None, *LEVELS)


@examples(12)
@given(st.lists(st.text(max_size=60), max_size=8), st.text(max_size=8))
def test_any_text_gives_one_line_each(gazetteer: Gazetteer, addresses: list[str], zipcode: str) -> None:
    """Whatever is written, rows and order stay, the level is a known one, and the answer is whole or absent."""
    frame = pl.LazyFrame(
        {"address": addresses, "zipcode": [zipcode] * len(addresses)},
        schema={"address": pl.String, "zipcode": pl.String},
    )
    found = attach(frame, gazetteer, "ko").collect()
    assert found["address"].to_list() == addresses
    assert set(found["match_level"].drop_nulls()) <= set(LEVELS)
    assert found.filter(pl.col("fixed_address").is_not_null() & pl.col("fixed_zipcode").is_null()).is_empty()


WRITTEN_AND_OFFICIAL = {"세종시": "세종특별자치시", "충남": "충청남도 공주시", "서울": "서울특별시 종로구"}
WORDS = ["세종시", "충남 공주시", "서울 종로구", "조치원읍", "남리", "종로1가", "새내길", "새내6길", "종로"]
WORDS += ["38", "63-22", "24", ",", "(보람동)"]


@examples(20)
@given(st.lists(st.lists(st.sampled_from(WORDS), max_size=9).map(" ".join), min_size=20, max_size=60))
def test_an_answer_lies_in_the_region_that_is_written(gazetteer: Gazetteer, addresses: list[str]) -> None:
    """However the words of addresses are thrown together, a region that is written first is never crossed."""
    asked = {"address": addresses, "zipcode": [None] * len(addresses)}
    frame = pl.LazyFrame(asked, schema={"address": pl.String, "zipcode": pl.String})
    answers = attach(frame, gazetteer, "en").collect()["fixed_address"]
    for address, fixed in zip(addresses, answers, strict=True):
        for written, official in (
            ("세종시", "세종특별자치시"),
            ("충남", "충청남도 공주시"),
            ("서울", "서울특별시 종로구"),
        ):
            if fixed is not None and address.startswith(written):
                assert fixed.startswith(official)


@pytest.mark.fuzz
def test_batches_keep_rows_and_order(gazetteer: Gazetteer) -> None:
    """A streaming query over many batches and threads gives each row its own answer."""
    dice = random.Random(5)
    asked = [dice.choice(ANSWERED) for _ in range(120_000)]
    frame = pl.LazyFrame(
        {"line": range(len(asked)), "address": [row[0] for row in asked], "zipcode": [row[1] for row in asked]},
        schema={"line": pl.UInt32, "address": pl.String, "zipcode": pl.String},
    )
    found = attach(frame, gazetteer, "en").collect(engine="streaming")
    assert found["line"].to_list() == list(range(len(asked)))
    assert found["fixed_address"].to_list() == [row[3] for row in asked]


def test_a_row_is_answered_alike_in_every_batch(gazetteer: Gazetteer, answered: dict[Key, dict[str, Any]]) -> None:
    """Queries are made once and run again: neither other batches, before or at the same time, nor neighbours matter."""
    asked = [(address, zipcode) for address, zipcode, lang in answered if lang == "ko"]
    random.Random(1).shuffle(asked)
    batches = [asked[at : at + 9] for at in range(0, len(asked), 9)] + [[row] for row in asked[::9]]
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda batch: matched(gazetteer, batch, "ko").rows(named=True), batches)
        assert list(found) == [[answered[*row, "ko"] for row in batch] for batch in batches]


def test_no_thread_waits_for_another_that_builds_an_index() -> None:
    """At first use each thread may build what it needs: waiting for another, it would be missing to polars' pool."""
    both = Barrier(2)

    class Built:
        @built_once
        def index(self) -> object:
            both.wait(timeout=20)
            return object()

    shared = Built()
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: shared.index, range(2))
    assert first is second is shared.index


def test_the_query_streams(gazetteer: Gazetteer) -> None:
    """Matching is no reason to hold a whole file in memory."""
    frame = pl.LazyFrame({"address": ["a"], "zipcode": ["b"]})
    query = attach(frame, gazetteer, "en")
    plan = query.show_graph(plan_stage="physical", engine="streaming", raw_output=True) or ""
    assert "in-memory-map" not in plan


def test_the_engine_travels_to_other_processes(gazetteer: Gazetteer) -> None:
    """An opened gazetteer can be pickled, and the copy answers the same."""
    frame = pl.LazyFrame({"address": ["세종시 새내길 38"], "zipcode": ["30027"]})
    copy = pickle.loads(pickle.dumps(gazetteer))
    assert attach(frame, copy, "en").collect().equals(attach(frame, gazetteer, "en").collect())


def test_without_a_gazetteer_the_same_columns_are_there() -> None:
    """Both ways add the same columns, of the same types, in the same order."""
    frame = pl.LazyFrame({"address": ["세종시 새내길 38"], "zipcode": ["06236"]})
    schema = attach(frame, None, "en").collect_schema()
    assert list(schema.items())[2:] == [(name, dtype()) for name, dtype in ADDED.items()]


SOLE_DISTRICT = [
    # address in a province of which the gazetteer has one district, postal code, whether other words bear it out
    ("충청남도 공주시 왕릉로 5", None, ("exact", None)),
    ("전남광주통합특별시 호남로 5", None, ("region_repaired", False)),
    ("전남광주통합특별시 호남로 5 (호남동)", None, ("region_repaired", True)),
    ("전남광주통합특별시 호남로 5", "58724", ("region_repaired", True)),
    ("세종특별자치시 한누리대로 2130", None, ("exact", None)),
    ("세종 한누라대로 2130 (보람동)", None, ("typo_repaired", True)),
    ("세종 조치원읍 한누라대로 2130 (보람동)", None, ("typo_repaired", False)),  # another dong is written, too
]


@pytest.mark.parametrize(("address", "zipcode", "expected"), SOLE_DISTRICT)
def test_what_is_filled_in_or_contradicted_is_not_taken_for_given(
    gazetteer: Gazetteer, address: str, zipcode: str | None, expected: tuple[str, bool | None]
) -> None:
    """The one district that the gazetteer has of a province need not be the one meant; a wrong dong is a doubt."""
    found = matched(gazetteer, [(address, zipcode)], "en")
    assert found.select("match_level", "supported").row(0) == expected
