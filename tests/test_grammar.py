"""Reading an address: every spelling that people use, nothing lost, nothing slow, on invented or public addresses."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bansong.engine.address import parse
from examples import examples


def parsed(addresses: list[str | None], zipcodes: list[str | None] | None = None) -> pl.DataFrame:
    columns = {"address": addresses, "zipcode": zipcodes or [None] * len(addresses)}
    return parse.parse(pl.LazyFrame(columns, schema=dict.fromkeys(columns, pl.String))).collect()


def road(name: str, main: int | None = None, sub: int = 0, **others: Any) -> dict[str, Any]:
    return {"road": name, "main": main, "sub": None if main is None else sub, **others}


def lot(dong: str, main: int, sub: int = 0, **others: Any) -> dict[str, Any]:
    return {"road": None, "lot_dong": dong, "lot_main": main, "lot_sub": sub, "san": 0, "lot_ho": False, **others}


ROADS: dict[str, dict[str, Any]] = {
    "월계로53길21": road("월계로53길", 21, road_pre="월계로53길"),
    "월계로 53길 21": road("월계로53길", 21),
    "거창읍 하동 1길 9": road("하동1길", 9, emd="거창읍", road_pre="거창읍하동1길"),
    "한강대로 102길11-5": road("한강대로102길", 11, 5),
    "월영동 16길 22": road("월영동16길", 22),
    "인천 서구 가정로126번1길 10": road("가정로126번1길", 10),
    "경기 수원시 권선구 궐동로69번서길 13": road("궐동로69번서길", 13),
    "백월로87번월촌길 5-1": road("백월로87번월촌길", 5, 1),
    "대구 동구 당산로41서길 7": road("당산로41서길", 7),
    "고골길 178번길73(관산동)": road("고골길178번길", 73, hint_dong="관산동"),
    "종로 5길 7": road("종로5길", 7),
    "종로 33 길 15": road("종로33길", 15),
    "종로33 길 15": road("종로33길", 15),
    "세종로 12 길동빌딩": road("세종로", 12, detail="길동빌딩"),
    "을지로 3가 을지로 100": road("을지로", 100, hint_dong="을지로3가"),
    "충무로2가 65-4 퇴계로 131 3층": road("퇴계로", 131, hint_dong="충무로2가", detail="3층"),
    "진영읍 진영로 265번길 9-61": road("진영로265번길", 9, 61, emd="진영읍"),
    "새내6길 38": road("새내6길", 38),
    "2번도로길 16": road("2번도로길", 16),
    "왜관읍 2번도로길 89": road("2번도로길", 89, emd="왜관읍"),
    "젊음의2거리 33": road("젊음의2거리", 33),
    "3·15대로 558": road("315대로", 558),
    "고수2로 17번지(당왕동)": road("고수2로", 17, detail=None),
    "한글비석로15길 48현대종합상가 4층": road("한글비석로15길", 48, building="현대종합상가", has_unit=True),
    "신월로 338원빌딩 2층": road("신월로", 338, detail="원빌딩 2층"),
    "영동대로 643. 경기고등학교": road("영동대로", 643, building="경기고등학교"),
    "영동대로 643.경기": road("영동대로", 643, detail="경기"),
    "불광로 지하 129-1": road("불광로", 129, 1, under=1),
    "사직로 지하130": road("사직로", 130, under=1),
    "고가로 공중 7": road("고가로", 7, under=2),
    "매곡중앙1로 48": road("매곡중앙1로", 48),
    "세종로 2449,3층(서창리,세종빌딩)": road("세종로", 2449, detail="3층", hint_dong="서창리", building="세종빌딩"),
    "조치원읍세종로2449,3층(서창리,세종빌딩)": road("세종로", 2449, emd="조치원읍", road_pre="조치원읍세종로"),
    "서면문화로 12": road("서면문화로", 12, emd=None),
    "면천면 면천로 12": road("면천로", 12, emd="면천면"),
    "읍내길 3": road("읍내길", 3, emd=None),
    "동면로 4": road("동면로", 4, emd=None),
    "서면 한치골길 264": road("한치골길", 264, emd="서면"),
    "중앙로 12번길": road("중앙로12번길"),
    "중앙로 3층": road("중앙로", detail="3층"),
    "중앙로 12번길, 18, 5층": road("중앙로12번길", 18, detail="5층"),
    "초량중로 12번가길 3": road("초량중로12번가길", 3),
    "사당로23나길 30": road("사당로23나길", 30),
    "강남대로 11 - 5": road("강남대로", 11, 5),
    "강남대로 11의5": road("강남대로", 11, 5),
    "강남대로 11–5": road("강남대로", 11, 5),
    "제2길 3": road("제2길", 3),
    "산들로": road("산들로"),
    "녹양로 12-101호": road("녹양로", 12, detail="101호"),
    "테헤란로１５２【역삼동】": road("테헤란로", 152, hint_dong="역삼동"),
    "내자동 사직로12길 2": road("사직로12길", 2, hint_dong="내자동"),
    "번영로 55 113동 1202": road("번영로", 55, detail="113동 1202", lot_main=None),
    "삼양로22길 23-17 지층1호 미아동": road("삼양로22길", 23, 17, hint_dong="미아동"),
    "세종로 2449 (서창리 123-4)": road("세종로", 2449, lot_dong="서창리", lot_main=123, lot_sub=4),
    "세종로 2449 / 서창리 123-4": road("세종로", 2449, lot_dong="서창리", lot_main=123, lot_sub=4),
    "지번: 서창리 123 도로명: 세종로 2449": road("세종로", 2449, lot_dong="서창리", lot_main=123),
    "서창리 123-4 (세종로 2449)": road("세종로", 2449, lot_dong="서창리", lot_main=123, lot_sub=4),
    "만남 1북로 85": road("만남1북로", 85, road_pre="만남1북로"),
    "정부 2청사로 13": road("정부2청사로", 13, road_pre="정부2청사로"),
    "조치원읍 2청사로 13": road("2청사로", 13, emd="조치원읍"),
    "고운마을4길 13 (신관동)": road("고운마을4길", 13, hint_dong="신관동", brackets="신관동"),
    "세종로 3 (눌차동)": road("세종로", 3, hint_dong="눌차동"),
    "세종로 3 (하동)": road("세종로", 3, brackets="하동", detail=None),
    "세종로 3 (상가동)": road("세종로", 3, hint_dong=None, detail="상가동", building=None),
    "세종로 3 (101동 502호)": road("세종로", 3, hint_dong=None, detail="101동 502호", building=None, brackets=None),
    "세종로 3 (지하2층, 이마트내)": road("세종로", 3, detail="지하2층, 이마트내", brackets=None, has_unit=True),
    "세종로 3 한빛빌딩(3층)": road("세종로", 3, detail="한빛빌딩 (3층)", brackets=None, building="한빛빌딩"),
    "세종로 3, 1층 (주)대한상사": road("세종로", 3, detail="1층 (주)대한상사", brackets=None, building="대한상사"),
    "세종로 3 ㈜나래통상 별관": road("세종로", 3, detail="(주)나래통상 별관", brackets=None),
    "세종로 3 대한상사(주)": road("세종로", 3, detail="대한상사(주)", brackets=None),
    "세종로 3 쌍용(아)단지내상가B102": road("세종로", 3, detail="쌍용(아)단지내상가B102", brackets=None),
    "세종로 3 204호(우리회계) (나성동)": road("세종로", 3, detail="204호(우리회계)", brackets="나성동"),
    "세종로 3, 2층 (나성동, (주)한빛빌딩)": road("세종로", 3, brackets="나성동, (주)한빛빌딩", building="한빛빌딩"),
    "테헤란로(구 삼릉길) 152": road("테헤란로", 152, brackets="구 삼릉길"),
    "세종로 3, 송내역 푸르지오 2단지": road("세종로", 3, building="송내역푸르지오2단지"),
    "세종로 3 운암4단지상가동": road("세종로", 3, building="운암4단지상가동"),
    "세종로 3 한빛하우스 B동 102호": road("세종로", 3, building="한빛하우스B동"),
    "세종로 3 1층115호 대우프라자": road("세종로", 3, building="대우프라자"),
    "세종로 3 6통2반 럭키아파트": road("세종로", 3, building="럭키아파트"),
    "세종로 3 (재송동, 센텀파크1차아파트)": road("세종로", 3, building="센텀파크1차아파트", hint_dong="재송동"),
    "세종로 3 (한빛프라자 101호(1층))": road("세종로", 3, building="한빛프라자"),
    "세종로 3 한빛빌딩 지하1층/지상1~2층": road("세종로", 3, building="한빛빌딩"),
    "(주)가나다 세종시 한누리대로 2130": road("한누리대로", 2130, region_typed="세종시", detail="(주)가나다"),
    "㈜가나다 세종시 한누리대로 2130, 3층": road("한누리대로", 2130, detail="3층, (주)가나다"),
    "세종시 (주)가나다 한누리대로 2130": road("한누리대로", 2130, region_typed="세종시", detail="(주)가나다"),
    "조치원읍 가나상사 세종로 12": road("세종로", 12, emd="조치원읍", detail="가나상사"),
    "서을 종로구 세종대로 175": road("세종대로", 175, detail=None),
    "가나상사, 서울 서울 종로구 세종대로 175": road("세종대로", 175, detail="가나상사"),
    "서초 중앙로 22길 54, 2층": road("중앙로22길", 54, road_pre="서초중앙로22길", detail="2층"),
    "세종로 3, 2층 206호 목동동, 한빛타워3": road("세종로", 3, building="한빛타워3"),
    "세종로 3 한빛상가 지하층 B104호": road("세종로", 3, building="한빛상가"),
    "세종로 3 (한빛동,104호 103호일부)": road("세종로", 3, building=None, hint_dong="한빛동"),
    "세종로 3 (SEE&SEE 4층)": road("세종로", 3, building="SEE&SEE"),
    "도약로 1(상동529-2)": road("도약로", 1, lot_dong="상동", lot_main=529, lot_sub=2),
    "시민회관 (서울 종로구 세종대로 175)": road("세종대로", 175, sigungu="종로구", brackets="시민회관"),
}

LOTS: dict[str, dict[str, Any]] = {
    "소양면 화심리300": lot("화심리", 300, emd="소양면", ri="화심리"),
    "종로2가 75-9": lot("종로2가", 75, 9, emd="종로2가"),
    "남대문로4가 20-10": lot("남대문로4가", 20, 10),
    "매산로 1가 57-3": lot("매산로1가", 57, 3),
    "구로동 12-3": lot("구로동", 12, 3),
    "길동 123": lot("길동", 123),
    "평창동 289-2   번지 ": lot("평창동", 289, 2, detail=None),
    "구로동 5-99번지 1통3반 방산빌라 402호": lot("구로동", 5, 99, building="방산빌라", has_unit=True),
    "서초동 1699의3신한국빌딩4층": lot("서초동", 1699, 3, detail="신한국빌딩4층"),
    "부평동 112번지 18호": lot("부평동", 112, 18, lot_ho=True),
    "오산동 925번지 1호  운암프라자 3차": lot("오산동", 925, 1, lot_ho=True, building="운암프라자3차"),
    "읍내리 638 1호": lot("읍내리", 638, detail="1호"),
    "오산동 860번지 2호  외1필지(860-3)1층": lot("오산동", 860, 2, lot_ho=True, detail="외1필지(860-3)1층"),
    "상계1동산51번지": lot("상계1동", 51, san=1),
    "남산면 서천1리 산 111": lot("서천1리", 111, san=1, emd="남산면"),
    "종로1.2.3.4가동 171-1": lot("종로1234가동", 171, 1),
    "종로1234동 171-1": lot("종로1234가동", 171, 1),
    "종로1.2.3.4동 171-1": lot("종로1234가동", 171, 1),
    "반포 4동 59-4": lot("반포4동", 59, 4),
    "역삼동 823(풍림빌딩 8층 802호)": lot("역삼동", 823, building="풍림빌딩", has_unit=True),
    "원동 763번지 3호[3층]": lot("원동", 763, 3, lot_ho=True, detail="3층", brackets=None),
    "신관동 256-6": lot("신관동", 256, 6),
    "눌차동 12-3": lot("눌차동", 12, 3),
    "미로면 삼거리 12-3": lot("삼거리", 12, 3, emd="미로면"),
    "임피면 181-2": lot("임피면", 181, 2, emd="임피면"),
    "대평동 649번지, 502호": lot("대평동", 649, detail="502호"),
    "등곡리 299 번지, 204호(우리회계)": lot("등곡리", 299, detail="204호(우리회계)", brackets=None),
    "아름동 1157번지,204호": lot("아름동", 1157, detail="204호"),
    "금곡동 1874-3번지 (3층)": lot("금곡동", 1874, 3, detail="3층", brackets=None),
    "연서면 부동1리 124-16": lot("부동1리", 124, 16, emd="연서면", ri="부동1리"),
    "연서면 부동 1리 124-16": lot("부동1리", 124, 16, emd="연서면", ri="부동1리"),
    "가나상사 남리 63-22": lot("남리", 63, 22, detail="가나상사"),
    "가나상사 조치원읍 남리 63-22, 2층": lot("남리", 63, 22, emd="조치원읍", detail="2층, 가나상사"),
    "원천동 83-8호(장인빌딩2,3층) 443-821": lot("원천동", 83, 8, detail=None),
}

OTHERS: dict[str, dict[str, Any]] = {
    "충무로2가": {"emd": "충무로2가", "road": None, "lot_main": None},
    "송현로동": {"emd": "송현로동", "road": None},
    "범어리 동원비스타3차 303동 3601호": {"ri": "범어리", "lot_main": None, "building": "동원비스타3차"},
    "신동아아파트5차31동601호": {"emd": None, "lot_main": None, "building": "신동아아파트5차", "has_unit": True},
    "화곡2동 주민센터": {"emd": "화곡2동", "building": "주민센터"},
    "장충동2가 일원": {"emd": "장충동2가", "lot_main": None},
    "서초중앙 160, 1105호": {"loose_road": "서초중앙", "loose_main": 160, "loose_sub": 0, "detail": "1105호"},
    "연수3동 영남아파트 102-504": {"emd": "연수3동", "loose_road": None, "detail": "영남아파트 102-504"},
    "미아동 1234123": {"emd": "미아동", "lot_main": None, "loose_main": None},
    "123, Teheran-ro, Gangnam-gu, Seoul": {"kind": "english", "text": None},
    "광화문우체국 사서함 12": {"kind": "po_box", "road": None, "loose_main": None},
    "역삼로 *** ***": {"kind": "none", "text": None},
    "=1+1": {"kind": "none", "text": None},
    "🏠🏠🏠": {"kind": "none", "text": None},
    "없음": {"kind": "none", "text": None},
    "종로\x00 1": {"text": "종로 1", "main": 1},
    "로1" * 50_000: {"kind": "none", "text": None, "road": None},
    "(" * 299: {"text": None, "brackets": None},
}


ALL = ROADS | LOTS | OTHERS


@cache
def rows_of_all() -> dict[str, dict[str, Any]]:
    return {row["address"]: row for row in parsed(list(ALL)).iter_rows(named=True)}


@pytest.mark.parametrize("address", list(ALL), ids=lambda address: ascii(address[:24]))
def test_each_spelling_is_read_as_a_person_would_read_it(address: str) -> None:
    found = rows_of_all()[address]
    assert {name: found[name] for name in ALL[address]} == ALL[address]


@pytest.mark.parametrize(
    ("address", "column", "given"),
    [
        ("(우)06236 테헤란로 152", None, "06236"),
        ("[06236] 테헤란로 152", None, "06236"),
        ("우편번호 06236 테헤란로 152", None, "06236"),
        ("06236 테헤란로 152", None, "06236"),
        ("(우)06236서울 강남구 테헤란로 152", None, "06236"),
        ("06236서울특별시강남구테헤란로152", None, "06236"),
        ("137-070서울 강남구 테헤란로 152", None, None),
        ("테헤란로 152 (우 06236)", None, "06236"),
        ("테헤란로 152 (역삼동) 06236", None, "06236"),
        ("110-122 테헤란로 152", None, None),
        ("(우 110-122) 테헤란로 152", None, None),
        ("06236 테헤란로 152", "30100", "30100"),
        ("테헤란로 152", "30100.0", "30100"),
        ("테헤란로 152", "6236", "06236"),
        ("테헤란로 152", "6236.0", "06236"),
        ("테헤란로 152", "３０１００", "30100"),
        ("테헤란로 152", "'30100", "30100"),
        ("테헤란로 152", "3100", "03100"),
        ("테헤란로 152", "310", None),
        ("테헤란로 152", "135-080", None),
    ],
    ids=lambda value: ascii(value),
)
def test_the_postal_code_is_taken_from_the_column_or_out_of_the_address(
    address: str, column: str | None, given: str | None
) -> None:
    found = parsed([address], [column]).row(0, named=True)
    assert (found["zipcode_given"], found["road"], found["main"]) == (given, "테헤란로", 152)


def test_a_lot_number_of_two_times_three_digits_is_no_old_postal_code() -> None:
    found = parsed(["반포4동 592-123"]).row(0, named=True)
    assert (found["lot_main"], found["lot_sub"]) == (592, 123)


def test_columns_types_rows_and_their_order_are_as_promised() -> None:
    frame = pl.LazyFrame({"id": [3, 1, 2], "address": ["종로 1", None, "길동 2"], "zipcode": ["1", None, "03154"]})
    found = parse.parse(frame).collect()
    assert dict(found.schema) == {
        "id": pl.Int64(),
        "address": pl.String(),
        "zipcode": pl.String(),
        **parse.PARSED,
    }
    assert found["id"].to_list() == [3, 1, 2]
    assert found.row(1, named=True)["kind"] == "none"


def test_no_rows_give_no_rows() -> None:
    assert parsed([]).height == 0


WORDS = st.text(alphabet="가동리로길층호번지산 상아빌딩,()[]-·.0123456789ABa@/", max_size=40)


HEADS = ["테헤란로 152", "조치원읍 세종로 2449-1", "역삼동 823", "화심리 산 3-1", "종로 5길 지하 7"]


@examples(20)
@given(st.lists(st.tuples(st.sampled_from(HEADS), WORDS), min_size=20, max_size=40))
def test_every_letter_after_the_number_is_in_the_detail_or_the_brackets(addresses: list[tuple[str, str]]) -> None:
    found = parsed([f"{head}, 나{words}" for head, words in addresses])
    for (_, words), row in zip(addresses, found.iter_rows(named=True), strict=True):
        kept = letters(f"{row['detail'] or ''}{row['brackets'] or ''}{row['zipcode_inside'] or ''}")
        read = letters(f"나{words}")
        missing = [letter for letter in set(read) if kept.count(letter) < read.count(letter)]
        assert not missing or old_postal_code(words) or later_road(row)


def later_road(found: dict[str, Any]) -> bool:
    """Whether the words themselves hold a road and a number, which is then the address: ``테헤란로 152, 나로 3``."""
    return "나" in f"{found['road_pre']}"


def old_postal_code(words: str) -> bool:
    return bool(re.search(r"[0-9]{3}-?[0-9]{3}", words))


def letters(text: str) -> list[str]:
    return re.findall("[0-9A-Za-z가-힣]", text)


@examples(20)
@given(st.lists(st.one_of(st.none(), st.text(max_size=400), WORDS), max_size=20))
def test_no_text_at_all_is_refused(addresses: list[str | None]) -> None:
    assert parsed(addresses, addresses)["address"].to_list() == addresses


SHARES = {"vet_road": 1.0, "vet_lot": 0.9875, "test": 0.989, "test3": 1.0, "gb_offices": 1.0}


def test_real_lists_are_read_to_road_or_lot_and_number_in_these_shares(shared: Path) -> None:
    rows = pl.read_csv(shared / "address" / "localdata_vet_half.csv", infer_schema=False)
    lists = {"vet_road": rows["도로명전체주소"], "vet_lot": rows["소재지전체주소"]}
    for name in ("test", "test3", "gb_offices"):
        lines = (shared / "address" / f"gisman_{name}.txt").read_text(encoding="utf-8").splitlines()
        lists[name] = pl.Series([line for line in lines if line.strip() and not line.startswith("#")], dtype=pl.String)
    for name, addresses in lists.items():
        found = parsed(addresses.drop_nulls().filter(addresses.drop_nulls().str.strip_chars() != "").to_list())
        numbered = found["main"].is_not_null() | found["lot_main"].is_not_null()
        assert abs(float(numbered.mean() or 0) - SHARES[name]) <= 0.002, name  # type: ignore[arg-type]


def test_every_official_road_address_of_a_province_is_read_back(shared: Path) -> None:
    file = shared / "address" / "rnaddrkor_sejong.txt"
    table = pl.read_csv(
        file.read_bytes().decode("cp949").encode(), separator="|", has_header=False, infer_schema=False, quote_char=None
    )
    table.columns = [str(place) for place in range(24)]
    town = pl.when(pl.col("4").str.contains("[읍면]$")).then("4")
    pieces = table.select(sido="2", town=town, name="10", main="12", sub="13")
    for gap in (" ", ""):
        joined = pl.concat_str("name", pl.lit(gap), "main", pl.lit("-"), "sub")
        written = pieces.select(pl.concat_str("sido", "town", joined, separator=" ", ignore_nulls=True)).to_series()
        found = parsed(written.to_list())
        right = (found["road"] == pieces["name"]) & (found["main"].cast(pl.String) == pieces["main"])
        right &= (found["sub"].cast(pl.String) == pieces["sub"]) & found["emd"].eq_missing(pieces["town"])
        assert right.all()
