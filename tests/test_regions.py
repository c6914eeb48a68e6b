"""Regions: what an address begins with, what it is called today, and which postal codes are its own."""

from __future__ import annotations

import csv
import re
import tomllib
from datetime import date
from importlib.resources import files
from pathlib import Path
from random import Random

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bansong.engine.address.attach import attach
from bansong.engine.address.decide import postal_fits
from bansong.engine.address.region_split import BeginningsRead, split_anywhere, split_region
from bansong.engine.address.regions import members, present_day, regions, spellings
from examples import examples

TODAY = [*regions().today]


def split(*texts: str | None) -> list[dict[str, object]]:
    frame = pl.LazyFrame({"text": list(texts)}, schema={"text": pl.String})
    return split_region(frame).collect().rows(named=True)


def one(text: str) -> dict[str, object]:
    return split(text)[0]


@pytest.mark.parametrize(
    ("text", "sido", "sigungu", "rest"),
    [
        ("서울특별시 강남구 테헤란로 1", "서울특별시", "강남구", "테헤란로 1"),
        ("서울시 강남구 테헤란로 1", "서울특별시", "강남구", "테헤란로 1"),
        ("대한민국 서울 종로구 종로 1", "서울특별시", "종로구", "종로 1"),
        ("경기 수원 영통 삼성로 129", "경기도", "수원시 영통구", "삼성로 129"),
        ("경기 영통구 삼성로 129", "경기도", "수원시 영통구", "삼성로 129"),
        ("충북 청주시 상당구 상당로 1", "충청북도", "청주시 상당구", "상당로 1"),
        ("부산 진구 가야대로 1", "부산광역시", "부산진구", "가야대로 1"),
        ("전주 덕진구 백제대로 567", "전북특별자치도", "전주시 덕진구", "백제대로 567"),
        ("고창 고창읍 읍내리 1", "전북특별자치도", "고창군", "고창읍 읍내리 1"),
        ("김제 온천길 12", "전북특별자치도", "김제시", "온천길 12"),
        ("동대문 고미술로 1", "서울특별시", "동대문구", "고미술로 1"),
        ("오산시 오산로 254", "경기도", "오산시", "오산로 254"),
        ("영통구 삼성로 129", "경기도", "수원시 영통구", "삼성로 129"),
        ("수원시 삼성로 129", "경기도", "수원시", "삼성로 129"),
        ("경기도 광주시 경안로 1", "경기도", "광주시", "경안로 1"),
        ("부산광역시 해운대로 1", "부산광역시", None, "해운대로 1"),
        ("세종 한누리대로 2130", "세종특별자치시", "", "한누리대로 2130"),
        ("세종시 세종특별자치시 도움5로 20", "세종특별자치시", "", "도움5로 20"),
        ("서울시 서울특별시 강남구 테헤란로 1", "서울특별시", "강남구", "테헤란로 1"),
        ("경기도 화성시 동탄구 동탄대로 1", "경기도", "화성시 동탄구", "동탄대로 1"),
        ("경기도 화성시 동탄대로 1", "경기도", "화성시", "동탄대로 1"),
    ],
)
def test_the_region_is_taken_off_the_head_under_its_name_of_today(
    text: str, sido: str, sigungu: str | None, rest: str
) -> None:
    found = one(text)
    assert (found["sido"], found["sigungu"], found["rest"]) == (sido, sigungu, rest)
    assert not found["region_conflict"]


@pytest.mark.parametrize(
    ("text", "sido", "sigungu", "rest"),
    [
        ("경기도오산시오산로 254", "경기도", "오산시", "오산로 254"),
        ("경기도 오산시오산로 254", "경기도", "오산시", "오산로 254"),
        ("서울서초구법원로1길 3", "서울특별시", "서초구", "법원로1길 3"),
        ("수원시영통구삼성로 129", "경기도", "수원시 영통구", "삼성로 129"),
        ("수원시장안구정조로 1", "경기도", "수원시 장안구", "정조로 1"),
        ("강남구역삼로 1", None, None, "강남구역삼로 1"),
        ("세종특별자치시한누리대로 2130", "세종특별자치시", "", "한누리대로 2130"),
        ("세종시조치원읍 새내로 1", "세종특별자치시", "", "조치원읍 새내로 1"),
        ("서울 강남구(역삼동) 테헤란로 1", "서울특별시", "강남구", "(역삼동) 테헤란로 1"),
        ("세종특별자치시장군면평기길154-1", "세종특별자치시", "", "장군면평기길154-1"),
        ("세종특별자치시장군면봉안리450-1", "세종특별자치시", "", "장군면봉안리450-1"),
        ("세종특별자치시시청대로78", "세종특별자치시", "", "시청대로78"),
        ("경상북도청도군청도읍고수리1", "경상북도", "청도군", "청도읍고수리1"),
        ("충청남도청양군청양읍읍내리 산1", "충청남도", "청양군", "청양읍읍내리 산1"),
        ("인천광역시서구청라한내로 7", "인천광역시", "서구", "청라한내로 7"),
        ("경기도여주시시장길 1", "경기도", "여주시", "시장길 1"),
        ("서울종로구청진동 1", "서울특별시", "종로구", "청진동 1"),
        ("부평구청천2동 34", "인천광역시", "부평구", "청천2동 34"),
        ("강남구역삼동 1", "서울특별시", "강남구", "역삼동 1"),
        ("경기도수원시청역로 1", "경기도", None, "수원시청역로 1"),
        ("서울 강남구청역 3번 출구", "서울특별시", None, "강남구청역 3번 출구"),
        ("서울종로구청 1층", None, None, "서울종로구청 1층"),
        ("경상북도청 3", None, None, "경상북도청 3"),
        ("세종특별자치시청", None, None, "세종특별자치시청"),
    ],
)
def test_missing_spaces_hide_a_region_only_where_another_word_could_be_meant(
    text: str, sido: str | None, sigungu: str | None, rest: str
) -> None:
    found = one(text)
    assert (found["sido"], found["sigungu"], found["rest"]) == (sido, sigungu, rest)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "세종로 2449",
            "서울역로 3",
            "대구로 1",
            "광주로 2",
            "경기대로 3",
            "부산진로 1",
            "남구로 3",
            "중구로 3",
            "제주대학로 1",
        ),
        *(
            "강원대학길 2",
            "종로 5길 7",
            "종로 1",
            "경북대로 3",
            "서초중앙로 160",
            "서초중앙 160",
            "강남대로 1",
            "강남 대로 1",
        ),
        *(
            "김포한강로 1",
            "화성로 1",
            "중앙로 3",
            "남구청로 3",
            "여주시장길 1",
            "동구릉로 217",
            "화성시청역로 1",
            "서초 중앙로 160",
        ),
        *("세종 2449", "테헤란로 1", "세종시청로 1", "광주시민로 1", "", "123", "()", "강남", "상당로 1", "역삼동 1"),
    ],
)
def test_roads_and_dongs_that_begin_like_a_region_are_left_whole(text: str) -> None:
    found = one(text)
    assert (found["sido"], found["sigungu"], found["region_typed"]) == (None, None, None)
    assert (found["sido_given"], found["region_conflict"], found["rest"]) == (False, False, text)


def test_no_address_has_no_region() -> None:
    (found,) = split(None)
    assert [found[name] for name in ("sido", "sigungu", "region_typed", "rest")] == [None] * 4


@pytest.mark.parametrize("district", ["동구", "중구", "서구", "남구", "북구", "강서구", "고성군"])
def test_a_district_of_several_provinces_leaves_the_province_open(district: str) -> None:
    found = one(f"{district} 삼성로 1")
    assert (found["sido"], found["sigungu"], found["rest"]) == (None, district, "삼성로 1")
    assert one("고성 고성읍 성내로 1")["sigungu"] == "고성군"


def test_gwangju_alone_may_be_either_of_two_and_is_neither() -> None:
    """광주 is the old metropolis or the city near Seoul; a district beside it decides."""
    found = one("광주 무등로 1")
    assert (found["sido"], found["sigungu"], found["rest"]) == (None, None, "무등로 1")
    assert one("광주 광산구 무진대로 1")["sigungu"] == "광산구"


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("서울특별시 강남구 테헤란로 1", None),
        ("오산시 오산로 254", None),
        ("서울 강남구 테헤란로 1", "abbreviated"),
        ("세종특별시 한누리대로 1", "abbreviated"),
        ("세종자치시 전동면 운주산로 520", "abbreviated"),
        ("경기도 수원 영통구 삼성로 1", None),
        ("강원도 춘천시 중앙로 1", "renamed"),
        ("인천 남구 주안로 1", "renamed"),
        ("경상븍도 구미시 산동면 1", "typo"),
        ("전라븍도 익산시 익산대로 1", "typo"),
    ],
)
def test_it_is_told_how_the_region_differs_from_its_name_of_today(text: str, change: str | None) -> None:
    assert one(text)["region_change"] == change


@pytest.mark.parametrize(
    ("text", "sido", "sigungu"),
    [
        ("경상븍도 구미시 산동면 1", "경상북도", "구미시"),
        ("세종특별차치시 한누리대로 2130", "세종특별자치시", ""),
        ("서을특별시 강남구 테헤란로 1", "서울특별시", "강남구"),
        ("서울특멸시 강남구 테헤란로 1", "서울특별시", "강남구"),
        ("서울빵별시 강남구 테헤란로 1", "서울특별시", "강남구"),
        ("서울특별시시 강남구 테헤란로 1", "서울특별시", "강남구"),
        ("서울특별특별시 강남구 테헤란로 1", None, None),
        ("경상도 구미시 산동면 1", None, None),
        ("충청빵도 청주시 1", None, None),
        ("서울특별시 강난구 테헤란로 1", "서울특별시", "강남구"),
        ("경기도 수원시 영퉁구 삼성로 1", "경기도", "수원시 영통구"),
        ("경기도 수언시 영통구 삼성로 1", "경기도", "수원시 영통구"),
        ("경기도 오신시 오산로 1", "경기도", "오산시"),
        ("부산광역시 해운구 센텀로 1", "부산광역시", "해운대구"),
    ],
)
def test_one_wrong_syllable_is_repaired_where_one_name_alone_fits(
    text: str, sido: str | None, sigungu: str | None
) -> None:
    found = one(text)
    if sido is None:
        assert found["region_change"] != "typo"
    else:
        assert (found["sido"], found["sigungu"], found["region_change"]) == (sido, sigungu, "typo")


def test_a_district_of_another_province_is_a_conflict_and_both_are_told() -> None:
    found = one("경기도 강남구 역삼동 1")
    assert (found["sido"], found["sigungu"], found["region_conflict"]) == ("경기도", "강남구", True)
    assert found["rest"] == "역삼동 1"
    assert one("서울 수원시 영통구 삼성로 1")["sigungu"] == "수원시 영통구"


# ── names with dates ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (("강원도", "춘천시", "신동면"), ("강원특별자치도", "춘천시", "신동면")),
        (("전라북도", "전주시 덕진구", "금암동"), ("전북특별자치도", "전주시 덕진구", "금암동")),
        (("제주도", "북제주군", "한림읍"), ("제주특별자치도", "제주시", "한림읍")),
        (("제주도", "남제주군", "대정읍"), ("제주특별자치도", "서귀포시", "대정읍")),
        (("경상북도", "군위군", "군위읍"), ("대구광역시", "군위군", "군위읍")),
        (("인천광역시", "남구", "주안동"), ("인천광역시", "미추홀구", "주안동")),
        (("인천광역시", "동구", "송림동"), ("인천광역시", "제물포구", "송림동")),
        (("인천광역시", "중구", "운서동"), ("인천광역시", "영종구", "운서동")),
        (("인천광역시", "중구", "신포동"), ("인천광역시", "제물포구", "신포동")),
        (("인천광역시", "중구", None), ("인천광역시", "중구", None)),
        (("인천광역시", "서구", "마전동"), ("인천광역시", "검단구", "마전동")),
        (("인천광역시", "서구", "청라동"), ("인천광역시", "서해구", "청라동")),
        (("광주광역시", "동구", "금남로1가"), ("전남광주통합특별시", "동구", "금남로1가")),
        (("전라남도", "목포시", "상동"), ("전남광주통합특별시", "목포시", "상동")),
        (("충청남도", "연기군", "남면"), ("세종특별자치시", "", "연기면")),
        (("충청남도", "연기군", "동면"), ("세종특별자치시", "", "연동면")),
        (("충청남도", "연기군", "서면"), ("세종특별자치시", "", "연서면")),
        (("충청남도", "연기군", "조치원읍"), ("세종특별자치시", "", "조치원읍")),
        (("충청남도", "공주시", "장기면"), ("세종특별자치시", "", "장군면")),
        (("충청남도", "공주시", "반포면"), ("충청남도", "공주시", "반포면")),
        (("충청북도", "청원군", "부용면"), ("세종특별자치시", "", "부강면")),
        (("충청북도", "청원군", "오창읍"), ("충청북도", "청주시 청원구", "오창읍")),
        (("충청북도", "청원군", None), ("충청북도", "청주시", None)),
        (("경기도", "여주군", "여주읍"), ("경기도", "여주시", "여주읍")),
        (("충청남도", "당진군", "송악읍"), ("충청남도", "당진시", "송악읍")),
        (("경상남도", "진해시", "풍호동"), ("경상남도", "창원시 진해구", "풍호동")),
        (("경상남도", "마산시", "월영동"), ("경상남도", "창원시", "월영동")),
        (("경기도", "부천시", "원미동"), ("경기도", "부천시 원미구", "원미동")),
        (("경기도", "화성시", "봉담읍"), ("경기도", "화성시 효행구", "봉담읍")),
        (("경기도", "화성시", "반월동"), ("경기도", "화성시", "반월동")),
        (("서울특별시", "강남구", "역삼동"), ("서울특별시", "강남구", "역삼동")),
        (("어느도", "어느군", "어느면"), ("어느도", "어느군", "어느면")),
        ((None, None, None), (None, None, None)),
    ],
)
def test_a_name_of_any_date_has_one_name_of_today_or_keeps_its_own(
    old: tuple[str | None, ...], new: tuple[str | None, ...]
) -> None:
    frame = pl.DataFrame([old], schema=dict.fromkeys(("sido", "sigungu", "emd"), pl.String), orient="row")
    found = frame.select(present_day(pl.col("sido"), pl.col("sigungu"), pl.col("emd"))).item()
    assert tuple(found.values()) == new


def test_names_of_today_stay_as_they_are() -> None:
    frame = pl.DataFrame(TODAY, schema=["sido", "sigungu"], orient="row").with_columns(emd=pl.lit("어느동"))
    found = frame.select(present_day(pl.col("sido"), pl.col("sigungu"), pl.col("emd")).alias("now")).unnest("now")
    assert found.equals(frame)


def test_the_dates_of_the_changes_are_those_of_the_laws() -> None:
    text = files("bansong.engine.address").joinpath("regions.toml").read_text(encoding="utf-8")
    content = tomllib.loads(text)
    dated = {line["from"]: line["on"] for kind in ("renamed", "split") for line in content[kind]}
    until = {old["name"]: old["until"] for province in content["province"] for old in province.get("former", ())}
    assert dated["경상북도 군위군"] == date(2023, 7, 1)
    assert dated["인천광역시 남구"] == date(2018, 7, 1)
    assert dated["충청북도 청원군"] == date(2014, 7, 1)
    assert dated["충청남도 연기군"] == date(2012, 7, 1)
    assert dated["경상남도 마산시"] == dated["경상남도 진해시"] == date(2010, 7, 1)
    assert dated["경기도 부천시"] == date(2024, 1, 1)
    assert dated["경기도 화성시"] == date(2026, 2, 1)
    assert dated["인천광역시 중구"] == dated["인천광역시 서구"] == dated["인천광역시 동구"] == date(2026, 7, 1)
    assert (until["강원도"], until["전라북도"]) == (date(2023, 6, 11), date(2024, 1, 18))


def test_every_region_that_a_change_leads_to_exists_today() -> None:
    table = regions()
    cities = {(place.sido, place.sigungu.split(" ")[0]) for place in table.today}
    leads_to = [*table.renamed.values(), *(new for parts in table.parts.values() for new in parts.values())]
    assert {new for new in leads_to if new not in table.today and new not in cities} == set()


def test_a_typed_name_means_the_regions_that_it_covers() -> None:
    means: dict[tuple[str, str], set[str]] = {}
    for sido, sigungu, _, member in members().rows():
        means.setdefault((sido, sigungu), set()).add(member)
    wards = {"수원시", "수원시 장안구", "수원시 권선구", "수원시 팔달구", "수원시 영통구"}
    assert means["경기도", "수원시"] == wards
    assert means["경기도", "화성시 동탄구"] == {"화성시", "화성시 동탄구"}
    assert means["인천광역시", "중구"] == {"중구", "제물포구", "영종구"}
    assert means["인천광역시", "서구"] == {"서구", "서해구", "검단구"}
    assert means["인천광역시", "영종구"] == {"영종구", "중구"}
    assert means["광주광역시", ""] == {"동구", "서구", "남구", "북구", "광산구"}
    assert len(means["전라남도", ""]) == 22


# ── every district there is ──────────────────────────────────────────────────────────────────────────────────────────


def test_every_district_is_read_from_its_official_name() -> None:
    found = split(*(f"{sido} {sigungu} 가나다로 1".replace("  ", " ") for sido, sigungu in TODAY))
    assert [(row["sido"], row["sigungu"]) for row in found] == TODAY
    assert {row["rest"] for row in found} == {"가나다로 1"}
    assert {row["region_change"] for row in found} == {None}


def test_every_district_is_read_without_any_space() -> None:
    found = split(*(f"{sido}{sigungu}가나다로 1".replace(" ", "", 1) for sido, sigungu in TODAY))
    assert [(row["sido"], row["sigungu"]) for row in found] == TODAY


@st.composite
def typed(draw: st.DrawFn) -> tuple[tuple[str, str], str]:
    sido, sigungu = draw(st.sampled_from(TODAY))
    province = next(province for province in regions().provinces if province.name == sido)
    ways = [text for text, (_, full) in province.written.items() if not province.former.get(full)]
    first = draw(st.sampled_from([*ways, ""]))
    second = draw(st.sampled_from([way.text for way in spellings(sigungu)])) if sigungu else ""
    words = f"{first} {second}".split()
    text = words[0] if words else ""
    for word in words[1:]:
        text += draw(st.sampled_from([" ", " ", " ", ""])) + word
    road = draw(st.sampled_from(["삼성로 1", "중앙로 3", "5길 7", "대로 2", "시장길 3", "역삼동 1", "(역삼동)", ""]))
    return (sido, sigungu), text + draw(st.sampled_from([" ", " ", ""])) + road


@examples(100)
@given(typed())
def test_however_it_is_abbreviated_and_spaced_a_district_is_found_or_left_and_never_another(
    case: tuple[tuple[str, str], str],
) -> None:
    (sido, sigungu), text = case
    found = one(text.strip())
    assert found["sido"] in (sido, None)
    ward = sigungu.split(" ")[-1]
    assert found["sigungu"] in (sigungu, ward, sigungu.split(" ")[0], None)
    if found["region_typed"] is not None:
        assert f"{found['region_typed']}{found['rest']}".replace(" ", "") == text.replace(" ", "")


# ── postal codes ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("zipcode", "sido", "sigungu", "fits"),
    [
        ("06236", "서울특별시", "강남구", True),
        ("06236", "서울특별시", "서초구", False),
        ("16677", "경기도", "수원시 영통구", True),
        ("16677", "경기도", "수원시", True),
        ("18480", "경기도", "화성시 동탄구", True),
        ("30100", "세종특별자치시", "", True),
        ("30100", "서울특별시", None, False),
        ("06236", "서울특별시", None, True),
        ("43101", "대구광역시", "군위군", True),
        ("39012", "대구광역시", "군위군", None),
        ("22382", "인천광역시", "중구", True),
        ("22382", "인천광역시", "영종구", True),
        ("22530", "인천광역시", "제물포구", True),
        ("22600", "인천광역시", "검단구", True),
        ("22600", "인천광역시", "서구", True),
        ("23100", "인천광역시", "옹진군", None),
        ("06236", "인천광역시", "옹진군", False),
        ("06236", None, "강서구", None),
        ("00123", "서울특별시", "강남구", None),
        ("6236", "서울특별시", "강남구", None),
        (None, "서울특별시", "강남구", None),
        ("61452", "전남광주통합특별시", "동구", True),
        ("58700", "전남광주통합특별시", "동구", False),
    ],
)
def test_a_postal_code_fits_contradicts_or_says_nothing(
    zipcode: str | None, sido: str | None, sigungu: str | None, fits: bool | None
) -> None:
    schema = dict.fromkeys(("zipcode", "sido", "sigungu"), pl.String)
    frame = pl.DataFrame([(zipcode, sido, sigungu)], schema=schema, orient="row")
    assert frame.select(postal_fits(*map(pl.col, schema))).item() is fits


def test_no_prefix_belongs_to_two_cities_save_those_that_share_what_was_one() -> None:
    owners: dict[str, set[str]] = {}
    for province in regions().provinces:
        for city, prefixes in province.prefixes.items():
            for prefix in prefixes:
                assert prefix[:2] in province.postal
                owners.setdefault(prefix, set()).add(f"{province.name} {city}")
    shared = {frozenset(names) for names in owners.values() if len(names) > 1}
    assert shared == {
        frozenset({"인천광역시 제물포구", "인천광역시 영종구"}),
        frozenset({"인천광역시 서해구", "인천광역시 검단구"}),
    }


def test_real_addresses_are_all_recognised_and_none_is_accused(shared: Path) -> None:
    """4,684 licensed businesses of the whole country: the licensing offices' own spellings and postal codes."""
    with (shared / "address" / "localdata_vet_half.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    pairs = [
        (re.sub(r"\s+", " ", row[name].strip()), row) for row in rows for name in ("도로명전체주소", "소재지전체주소")
    ]
    pairs = [(text, row) for text, row in pairs if text]
    frame = pl.DataFrame({"text": [text for text, _ in pairs], "zipcode": [row["도로명우편번호"] for _, row in pairs]})
    fits = postal_fits(pl.col("zipcode"), pl.col("sido"), pl.col("sigungu"))
    found = split_region(frame.lazy()).with_columns(fits=fits).collect()
    assert found.height > 8000
    assert found["sido"].null_count() == found["sigungu"].null_count() == 0
    assert found.filter(pl.col("region_conflict") | (pl.col("region_change") == "typo")).height == 0
    assert found.filter(~pl.col("fits")).height == 0
    coded = found.filter(pl.col("zipcode").str.contains("^[0-9]{5}$"))
    assert coded["fits"].sum() > 0.998 * coded.height  # the rest: 군위군, whose codes changed when it moved


def test_a_whole_province_is_recognised_and_not_accused(shared: Path) -> None:
    path = shared / "address" / "rnaddrkor_sejong.txt"
    fields = [line.split("|") for line in path.read_text(encoding="cp949").splitlines()]
    frame = pl.DataFrame(
        {"text": [f"{line[2]} {line[10]} {line[12]}" for line in fields], "zipcode": [line[16] for line in fields]}
    )
    fits = postal_fits(pl.col("zipcode"), pl.col("sido"), pl.col("sigungu"))
    found = split_region(frame.lazy()).select("sido", "sigungu", fits=fits).unique()
    assert found.collect().rows() == [("세종특별자치시", "", True)]


def test_every_district_of_the_official_list_is_known(shared: Path) -> None:
    """The list is of 2025: each district in it is one of today, was renamed, or was split."""
    text = (shared / "address" / "legal_dong_codes_2025.txt").read_text(encoding="cp949")
    lines = [line.split("\t") for line in text.splitlines()[1:]]
    names = [name.split() for code, name, state in lines if code.endswith("00000") and state == "존재"]
    frame = pl.DataFrame(
        {"sido": [name[0] for name in names], "sigungu": [" ".join(name[1:]) for name in names], "emd": None}
    )
    now = frame.select(present_day(pl.col("sido"), pl.col("sigungu"), pl.col("emd").cast(pl.String)).alias("n"))
    found = set(now.unnest("n").select("sido", "sigungu").rows())
    cities = {(sido, sigungu.split(" ")[0]) for sido, sigungu in TODAY}
    split_districts = {("인천광역시", "중구"), ("인천광역시", "서구")}
    provinces = {(province.name, "") for province in regions().provinces}
    assert found - set(TODAY) - cities - split_districts - provinces == set()
    new_since = {sigungu for sido, sigungu in set(TODAY) - found}
    assert new_since == {
        *("제물포구", "영종구", "서해구", "검단구"),
        *("화성시 만세구", "화성시 효행구", "화성시 병점구", "화성시 동탄구"),
    } - {"제물포구"}


INSIDE = [
    # text, province, district, words before the region, what is left
    ("가나상사 부산 해운대구 센텀중앙로 90", "부산광역시", "해운대구", "가나상사", "센텀중앙로 90"),
    ("가나상사 세종시 새내로 183-1, 대전 유성구", "세종특별자치시", "", "가나상사", "새내로 183-1, 대전 유성구"),
    ("3층, 경기도 오산시 오산로 254", "경기도", "오산시", "3층", "오산로 254"),
    ("가나상사 서울강남구테헤란로 152", "서울특별시", "강남구", "가나상사", "테헤란로 152"),
    ("가나상사 강남구 테헤란로 152", "서울특별시", "강남구", "가나상사", "테헤란로 152"),
    ("사업장소재지 서울 강남구 테헤란로 152", "서울특별시", "강남구", "", "테헤란로 152"),
    ("1. 서울 강남구 테헤란로 152", "서울특별시", "강남구", "", "테헤란로 152"),
    ("서을 종로구 세종대로 175", "서울특별시", "종로구", "", "세종대로 175"),
    (",서울,서울 종로구 세종대로 175", "서울특별시", "종로구", "", "세종대로 175"),
    ("서울특별구 종로구 세종대로 175", "서울특별시", "종로구", "", "세종대로 175"),
    ("서울특수강 경기 오산시 오산로 254", "경기도", "오산시", "서울특수강", "오산로 254"),
    ("센텀중앙로 90, 해운대구, 부산", "부산광역시", "해운대구", "", "센텀중앙로 90"),
    ("중앙로 3, 중구, 대구광역시", "대구광역시", "중구", "", "중앙로 3"),
    ("중구 중앙로 3 대구", "대구광역시", "중구", "", "중앙로 3"),
    ("한누리대로 2130 부산", "부산광역시", None, "", "한누리대로 2130"),
    ("오산로 254 오산시 지점", "경기도", "오산시", "", "오산로 254 오산시 지점"),
    ("한누리대로 2130 부산 횟집", None, None, None, "한누리대로 2130 부산 횟집"),
    ("영동대로 643.경기", None, None, None, "영동대로 643.경기"),
    ("테헤란로 152 / 부산 해운대구 센텀중앙로 90", None, None, None, "테헤란로 152 / 부산 해운대구 센텀중앙로 90"),
]


@pytest.mark.parametrize(("text", "sido", "sigungu", "lead", "rest"), INSIDE, ids=[row[0] for row in INSIDE])
def test_a_region_behind_a_name_or_at_the_end_is_found(
    text: str, sido: str | None, sigungu: str | None, lead: str | None, rest: str
) -> None:
    """The words before it are told; a short name amid other words is no region, nor is that of a second address."""
    found = split(text)[0]
    assert (found["sido"], found["sigungu"], found["lead"], found["rest"]) == (sido, sigungu, lead, rest)


# ── the quick way ────────────────────────────────────────────────────────────────────────────────────────────────────

ODD = [
    "영통구 1",
    "영통 중앙로 3",
    "강남구 3",
    "영퉁구 삼성로 1",
    "세종특별자치시 1",
    "(역삼동)",
    "",
    "삼성로 1",
    "5길 7",
]


def mistyped(text: str, random: Random) -> str:
    place = random.randrange(min(len(text), 16))
    return text[:place] + random.choice(["", " ", "  ", "시", "구", "경", text[place] * 2]) + text[place + 1 :]


def same_both_ways(texts: list[str | None]) -> None:
    frame = pl.DataFrame({"text": texts}, schema={"text": pl.String})
    assert split_region(frame.lazy()).collect().equals(frame.hstack(split_anywhere(frame["text"])))


def test_the_quick_way_says_what_the_slow_one_says_of_every_region() -> None:
    random = Random(7)
    heads = [" ".join([sido, *filter(None, sigungu.split(" ")[:count])]) for sido, sigungu in TODAY for count in (1, 2)]
    texts = [f"{head}{space}{rest}" for head in heads for rest in ODD for space in (" ", "  ", "")]
    same_both_ways([*texts, *(mistyped(text, random) for text in texts), None, "대한민국", " 서울특별시 강남구 1"])


def test_the_quick_way_says_what_the_slow_one_says_of_real_addresses(shared: Path) -> None:
    with (shared / "address" / "localdata_vet_half.csv").open(encoding="utf-8") as file:
        texts = [row["도로명전체주소"] for row in csv.DictReader(file) if row["도로명전체주소"]]
    random = Random(8)
    same_both_ways([*texts, *(text.replace(" ", "") for text in texts), *(mistyped(text, random) for text in texts)])


def test_every_legal_dong_is_read_without_any_space(shared: Path) -> None:
    """Three of 20,275 are not: 시장북로 (중구), 역동 (광주시), 청동 (나주시) look like 시장, 역, 시청."""
    lines = (shared / "address" / "legal_dong_codes_2025.txt").read_text(encoding="cp949").splitlines()[1:]
    names = [name for code, name, state in (line.split("\t") for line in lines) if state == "존재" and int(code[5:])]
    spaced, glued = (split(*(f"{name}123-4" for name in way)) for way in (names, [n.replace(" ", "") for n in names]))
    different = [
        text["rest"]
        for text, words in zip(glued, spaced, strict=True)
        if (text["sido"], text["sigungu"]) != (words["sido"], words["sigungu"])
    ]
    assert len(different) <= 3


# ── without a gazetteer ──────────────────────────────────────────────────────────────────────────────────────────────

ADDED = (
    "region",
    *("zipcode_given", "match_level", "covered", "postal_match", "supported", "form", "unit"),
    *("zipcode_right", "changes", "fixed_zipcode", "fixed_address", "district_code", "place"),
)


@pytest.mark.parametrize(
    ("address", "zipcode", "level", "given_code", "postal"),
    [
        ("서울특별시 강남구 테헤란로 1", "06236", "region_only", "06236", None),
        ("(06236) 서울 강남구 테헤란로 1", None, "region_only", "06236", None),
        ("06236 서울특별시 종로구 세종대로 1", "30100", "region_only", "30100", "other_district"),
        ("서울 강남구 테헤란로 1 [06236]", "6236", "region_only", "06236", None),
        ("（０６２３６） 서울 강남구 테헤란로 1", None, "region_only", "06236", None),
        ("(0623\u20e36) 서울 강남구 테헤란로 1", None, "region_only", None, None),
        ("(137-070) 서울 서초구 서초동 1", "137-070", "region_only", None, None),
        ("서울 강남구 테헤란로 1", "30100.0", "region_only", "30100", "other_district"),
        ("경기도 강남구 테헤란로 1", "06236", "region_only", "06236", None),
        ("가나상사 서울 강남구 테헤란로 1", "30100", "region_only", "30100", "other_district"),
        ("테헤란로 1, 강남구, 서울", "30100", "region_only", "30100", "other_district"),
        ("  서울특별시   강남구 테헤란로 1", "06236", "region_only", "06236", None),
        ("서울특별시\u3000강남구 테헤란로１", None, "region_only", None, None),
        ("동구 송림로 1", "22530", "region_only", "22530", None),
        ("테헤란로 1", "06236", "none", "06236", None),
        ("a" * 100_000, None, "none", None, None),
        ("=HYPERLINK(1)\x00😀", None, "none", None, None),
        ("서울특별시 강남구 역삼로 *** *층", "30100", None, "30100", None),
        ("-", None, None, None, None),
        (None, "30100", None, "30100", None),
    ],
)
def test_without_a_gazetteer_the_region_and_the_postal_code_are_judged(
    address: str | None, zipcode: str | None, level: str | None, given_code: str | None, postal: str | None
) -> None:
    frame = pl.LazyFrame(
        {"address": [address], "zipcode": [zipcode]}, schema=dict.fromkeys(("address", "zipcode"), pl.String)
    )
    found = attach(frame, None, "en").collect().row(0, named=True)
    assert (found["match_level"], found["zipcode_given"], found["postal_match"]) == (level, given_code, postal)
    assert found["covered"] is False
    assert [found[name] for name in ("form", "unit", "zipcode_right", "changes", "fixed_zipcode", "fixed_address")] == [
        None
    ] * 6


def test_without_a_gazetteer_a_batch_of_many_kinds_is_judged_as_each_row_alone() -> None:
    rows = [
        ("서울특별시 강남구 테헤란로 1", "30100"),
        ("서울특별시 강남구 테헤란로 1", None),
        ("경기도 화성시 동탄대로 1 [18480]", None),
        ("세종특별자치시 조치원읍 새내로 1", "06236"),
        ("우)06236 서울강남구 역삼로 1", None),
        ("경기도 강남구 1", "30100"),
        ("서울특별시 강남구 역삼로 ***", "30100"),
        ("테헤란로 1", "06236"),
        (None, "06236"),
    ]
    schema = dict.fromkeys(("address", "zipcode"), pl.String)
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    alone = pl.concat(attach(row.lazy(), None, "en").collect() for row in frame.iter_slices(1))
    assert attach(frame.lazy(), None, "en").collect().equals(alone)


def test_beginnings_that_were_read_are_kept_up_to_a_limit_and_say_the_same_ever_after() -> None:
    """Null, a usual head and a strange one; once more than the limit are known, reading starts anew."""
    texts = [
        "서울특별시 강남구 1",
        "부산광역시 해운대구 2",
        "가나다 라마",
        None,
        "경기도 오산시 3",
        "대구광역시 군위군 4",
    ]
    few, many = BeginningsRead(11, most=3), BeginningsRead(11)
    expected = many.find(pl.Series(texts, dtype=pl.String)).to_list()
    assert [place is None for place in expected] == [False, False, True, True, False, False]
    for _ in range(3):
        assert [few.find(pl.Series([text], dtype=pl.String)).item() for text in texts] == expected
        assert many.find(pl.Series(texts[::-1], dtype=pl.String)).to_list() == expected[::-1]
    assert few.find(pl.Series(texts, dtype=pl.String)).to_list() == expected


def test_without_a_gazetteer_the_query_streams_and_keeps_every_row() -> None:
    rows = pl.DataFrame(
        {"key": range(5000), "address": ["경기도오산시오산로 254", None, "x", "서울 강남구 1", "*"] * 1000}
    )
    query = attach(rows.lazy().with_columns(zipcode=pl.lit("06236")), None, "en")
    assert query.collect(engine="streaming").select(rows.columns).equals(rows)
    plan = query.show_graph(plan_stage="physical", engine="streaming", raw_output=True) or ""
    kinds = dict(re.findall(r'label="([a-z-]+)[^"]*"(?:,style=filled,fillcolor="([0-9.]+) )?', plan))
    assert [kind for kind, colour in kinds.items() if colour == "0.0"] == []  # the legend's in-memory fallback
