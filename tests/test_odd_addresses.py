"""Addresses as lists really hold them: what stands in brackets, what is left over, two places in one cell, units."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import bansong as bs
from bansong.engine.address.attach import attach
from bansong.engine.address.gazetteer import Gazetteer
from bansong.engine.risk.scorecard import Scorecard
from bansong.reference.gazetteer import build_gazetteer
from conftest import write
from test_matching import GANGNAM, GONGJU, JUNG, SEJONG, gazetteer_of

HWASEONG, ANSAN = ("41595", "경기도", "화성시 효행구"), ("41273", "경기도", "안산시 단원구")
GANGBUK, SEONGBUK = ("11305", "서울특별시", "강북구"), ("11290", "서울특별시", "성북구")
SEONGDONG, OSAN = ("11200", "서울특별시", "성동구"), ("41370", "경기도", "오산시")
UICHANG, SEONGSAN = ("48121", "경상남도", "창원시 의창구"), ("48123", "경상남도", "창원시 성산구")
SEOWON, SANGDANG = ("43112", "충청북도", "청주시 서원구"), ("43111", "충청북도", "청주시 상당구")
CHUNCHEON, GANGNEUNG = ("51110", "강원특별자치도", "춘천시"), ("51150", "강원특별자치도", "강릉시")
JEONJU, IKSAN = ("52111", "전북특별자치도", "전주시 완산구"), ("52140", "전북특별자치도", "익산시")

# region, emd, ri, lot, road, under, number, postal code, administrative dong, apartment complex, building name
BUILDINGS: list[tuple[Any, ...]] = [
    (GANGNAM, "역삼동", "", "737", "테헤란로", 0, "152", "06236", "역삼1동", 0, ""),
    (GANGNAM, "역삼동", "", "736-1", "테헤란로", 0, "152-3", "06236", "역삼1동", 0, ""),
    (GANGNAM, "역삼동", "", "712-4", "논현로", 0, "508", "06225", "역삼1동", 0, ""),
    (GANGNAM, "삼성동", "", "1", "삼성로", 0, "11", "06100", "삼성1동", 1, "한빛아파트"),
    (SEJONG, "조치원읍", "남리", "63-22", "새내길", 0, "38", "30027", "조치원읍", 0, ""),
    (SEJONG, "보람동", "", "700", "한누리대로", 0, "2130", "30151", "보람동", 0, ""),
    (GONGJU, "웅진동", "", "63-22", "새내길", 0, "38", "32530", "웅진동", 0, ""),
    (JUNG, "명동1가", "", "59", "명동길", 0, "74", "04537", "명동", 0, ""),
    (HWASEONG, "정남면", "보통리", "390-12", "만년로", 0, "20", "18514", "정남면", 0, ""),
    (HWASEONG, "정남면", "보통리", "391", "공단로", 0, "20", "18514", "정남면", 0, ""),
    (ANSAN, "원시동", "", "773", "공단로", 0, "20", "15600", "초지동", 0, ""),
    (GANGBUK, "미아동", "", "42-8", "솔샘로", 0, "300", "01140", "송중동", 0, ""),
    (GANGBUK, "미아동", "", "5-1", "도봉로", 0, "14", "01140", "송천동", 0, ""),
    (GANGBUK, "미아동", "", "1600", "월계로", 0, "7", "01150", "송천동", 0, ""),
    (SEONGBUK, "성북동", "", "1", "성북로", 0, "3", "02800", "성북동", 0, ""),
    (SEONGBUK, "동선동1가", "", "2", "동소문로", 0, "5", "02820", "동선동", 0, ""),
    (SEONGDONG, "성수동2가", "", "277", "성수이로", 0, "51", "04780", "성수2가3동", 0, ""),
    (SEONGDONG, "성수동1가", "", "2", "왕십리로", 0, "58", "04778", "성수1가1동", 0, ""),
    (OSAN, "원동", "", "763-3", "오산로", 0, "20", "18143", "대원동", 0, ""),
    (OSAN, "원동", "", "764", "오산로", 0, "22", "18143", "대원동", 0, ""),
    (OSAN, "원동", "", "764-101", "오산로", 0, "24", "18143", "대원동", 0, ""),
    (UICHANG, "신월동", "", "96", "중앙대로", 0, "151", "51435", "용지동", 0, ""),
    (UICHANG, "용호동", "", "2", "용지로", 0, "7", "51436", "용지동", 0, ""),
    (UICHANG, "중동", "", "3", "태복산로", 0, "9", "51399", "의창동", 0, ""),
    (SEONGSAN, "상남동", "", "1", "상남로", 0, "5", "51500", "상남동", 0, ""),
    (SEONGSAN, "중동", "", "8", "중동로", 0, "5", "51501", "상남동", 0, ""),
    (SEOWON, "모충동", "", "10", "모충로", 0, "8", "28700", "모충동", 0, ""),
    (SANGDANG, "북문로3가", "", "89", "상당로", 0, "155", "28542", "성안동", 0, ""),
    (CHUNCHEON, "봉의동", "", "15", "중앙로", 0, "1", "24266", "소양동", 0, ""),
    (CHUNCHEON, "효자동", "", "1", "백령로", 0, "3", "24300", "효자1동", 0, ""),
    (GANGNEUNG, "임당동", "", "1", "중앙로", 0, "1", "25530", "중앙동", 0, ""),
    (JEONJU, "효자동3가", "", "1", "효자로", 0, "225", "54968", "효자동", 0, ""),
    (IKSAN, "영등동", "", "1", "무왕로", 0, "5", "54600", "영등1동", 0, ""),
]


@pytest.fixture(scope="module")
def gazetteer(tmp_path_factory: pytest.TempPathFactory) -> Gazetteer:
    return gazetteer_of(BUILDINGS, tmp_path_factory.mktemp("juso"))


@pytest.fixture(scope="module")
def ask(gazetteer: Gazetteer) -> Callable[..., dict[str, Any]]:
    tables = [*ANSWERED, *SILENT, *((written, None) for written in (*KEPT, *FORMS))]
    asked = dict.fromkeys((address, zipcode) for address, zipcode, *_ in tables)
    frame = pl.LazyFrame(list(asked), schema={"address": pl.String, "zipcode": pl.String}, orient="row")
    answers = dict(zip(asked, attach(frame, gazetteer, "en").collect().iter_rows(named=True), strict=True))
    return lambda address, zipcode=None: answers[address, zipcode]


ANSWERED = [
    # the number behind 번지의 is a part of the number
    ("서울 강남구 테헤란로 152번지의 3", None, "서울특별시 강남구 테헤란로 152-3 (역삼동)"),
    ("서울 강남구 테헤란로 152 번지의 3호 5층", None, "서울특별시 강남구 테헤란로 152-3, 5층 (역삼동)"),
    ("서울 강남구 테헤란로 152번지 3호", None, "서울특별시 강남구 테헤란로 152-3 (역삼동)"),
    ("서울 강남구 역삼동 736번지-1", None, "서울특별시 강남구 테헤란로 152-3 (역삼동)"),
    ("서울 강남구 테헤란로 152번지 301호", None, "서울특별시 강남구 테헤란로 152, 301호 (역삼동)"),
    # a move is followed where both places are named in full
    ("서울 강남구 테헤란로 152 에서 서울 강남구 논현로 508 으로 이전", None, "서울특별시 강남구 논현로 508 (역삼동)"),
    ("서울 강남구 테헤란로 152에서 서울 강남구 논현로 508로 이전함", None, "서울특별시 강남구 논현로 508 (역삼동)"),
    ("서울 강남구 테헤란로 152 → 서울 강남구 논현로 508 3층", None, "서울특별시 강남구 논현로 508, 3층 (역삼동)"),
    ("서울 강남구 테헤란로 152 -> 서울 강남구 논현로 508", None, "서울특별시 강남구 논현로 508 (역삼동)"),
    ("서울 강남구 테헤란로 152 이전상사", None, "서울특별시 강남구 테헤란로 152, 이전상사 (역삼동)"),
    # two addresses of one building
    ("서울 강북구 미아동 5-1번지 2층 (도봉로 14)", None, "서울특별시 강북구 도봉로 14, 2층 (미아동, 도봉로 14)"),
    ("서울 강북구 도봉로 14 (미아동 5-1)", None, "서울특별시 강북구 도봉로 14 (미아동 5-1)"),
    (
        "경기도 화성시 정남면 만넌로 20 (보통리 390-12)",
        None,
        "경기도 화성시 효행구 정남면 만년로 20 (보통리 390-12)",
    ),
    (
        "서울 강남구 논현로 508 (구주소: 테헤란로 152)",
        None,
        "서울특별시 강남구 논현로 508 (역삼동, 구주소: 테헤란로 152)",
    ),
    # left over of the words before the road, of the number, of a dong
    ("서울 성동구 왕십리 왕십리로 58", None, "서울특별시 성동구 왕십리로 58 (성수동1가)"),
    ("서울 성동구 왕십리동 왕십리로 58", None, "서울특별시 성동구 왕십리로 58 (성수동1가)"),
    ("홍길동 서울 성동구 왕십리로 58", None, "서울특별시 성동구 왕십리로 58, 홍길동 (성수동1가)"),
    ("서울 강남구 테헤란로 152번", None, "서울특별시 강남구 테헤란로 152 (역삼동)"),
    ("서울 강남구 테헤란로 152 번지", None, "서울특별시 강남구 테헤란로 152 (역삼동)"),
    ("서울 중구 명동길 74 (명동 1가)", None, "서울특별시 중구 명동길 74 (명동1가)"),
    ("서울 중구 명동1가 1가 명동길 74", None, "서울특별시 중구 명동길 74 (명동1가)"),
    (
        "서울 강남구 역삼동 737 한빛빌딩 (테헤란로 152) 5층",
        None,
        "서울특별시 강남구 테헤란로 152, 5층, 한빛빌딩 (역삼동)",
    ),
    # commas between all words
    ("서울특별시, 강남구, 테헤란로, 152", None, "서울특별시 강남구 테헤란로 152 (역삼동)"),
    ("서울특별시,강남구,테헤란로,152,3층", None, "서울특별시 강남구 테헤란로 152, 3층 (역삼동)"),
    ("경기도, 화성시, 정남면, 보통리, 390-12", None, "경기도 화성시 효행구 정남면 만년로 20"),
    # a province of before, without a district; 세종시 in the one that it was a part of
    ("강원도 백령로 3", None, "강원특별자치도 춘천시 백령로 3 (효자동)"),
    ("전라북도 무왕로 5", None, "전북특별자치도 익산시 무왕로 5 (영등동)"),
    ("충남 세종시 새내길 38", None, "세종특별자치시 조치원읍 새내길 38"),
    ("충청남도 세종시 조치원읍 남리 63-22", None, "세종특별자치시 조치원읍 새내길 38"),
    ("충남 세종 새내길 38", None, "세종특별자치시 조치원읍 새내길 38"),
    # another ward of the city, with one witness
    ("경남 창원시 성산구 중앙대로 151 (신월동)", None, "경상남도 창원시 의창구 중앙대로 151 (신월동)"),
    ("경상남도 창원시 성산구 중앙대로 151", "51435", "경상남도 창원시 의창구 중앙대로 151 (신월동)"),
    ("경상남도 창원시 성산구 신월동 96", "51435", "경상남도 창원시 의창구 중앙대로 151 (신월동)"),
    ("충북 청주시 상당구 모충로 8 (모충동)", None, "충청북도 청주시 서원구 모충로 8 (모충동)"),
    # lots
    ("서울 성동구 성수2가3동 277", None, "서울특별시 성동구 성수이로 51 (성수동2가)"),
    ("서울 성동구 성수2가 3동 277번지", None, "서울특별시 성동구 성수이로 51 (성수동2가)"),
    ("서울 성동구 성수이로 51 (성수2가3동)", None, "서울특별시 성동구 성수이로 51 (성수동2가)"),
    ("경기도 화성시 정남면 보통리-390-12번지", None, "경기도 화성시 효행구 정남면 만년로 20"),
    ("경기도 오산시 원동(763-3)", None, "경기도 오산시 오산로 20 (원동)"),
    ("경기도 오산시 원동 (764번지) 3층", None, "경기도 오산시 오산로 22, 3층 (원동)"),
    ("경기도 오산시 원동(763번지 3호)", None, "경기도 오산시 오산로 20 (원동)"),
    ("경기도 오산시 원동 3통 2반 764", None, "경기도 오산시 오산로 22, 3통 2반 (원동)"),
    ("경기도 오산시 원동 3통2반 764번지 3층", None, "경기도 오산시 오산로 22, 3통2반 3층 (원동)"),
    ("경기도 오산시 원동 3통 오산로 22", None, "경기도 오산시 오산로 22, 3통 (원동)"),
    # 번지 and 호, in all spellings, are the two parts of a lot's number
    ("경기도 오산시 원동 763번지 제3호", None, "경기도 오산시 오산로 20 (원동)"),
    ("경기도 오산시 원동 763번지, 3호 2층", None, "경기도 오산시 오산로 20, 2층 (원동)"),
    ("경기도 오산시 원동 763번지 (3호)", None, "경기도 오산시 오산로 20 (원동)"),
    ("경기도 오산시 원동 763번지 3", None, "경기도 오산시 오산로 20 (원동)"),
    ("경기도 오산시 원동 763번지3", None, "경기도 오산시 오산로 20 (원동)"),
    ("경기도 오산시 원동 763-3, 2층", None, "경기도 오산시 오산로 20, 2층 (원동)"),
    ("경기도 오산시 원동 763-3 201호", None, "경기도 오산시 오산로 20, 201호 (원동)"),
    ("경기도 오산시 원동 764 3층", None, "경기도 오산시 오산로 22, 3층 (원동)"),
    ("경기도 오산시 원동 764, 1, 2층", None, "경기도 오산시 오산로 22, 1, 2층 (원동)"),
    ("경기도 오산시 원동 764 301호", None, "경기도 오산시 오산로 22, 301호 (원동)"),
    ("경기도 오산시 원동 764번지, 제301호", None, "경기도 오산시 오산로 22, 제301호 (원동)"),
    ("경기도 오산시 원동 764 (원동 764)", None, "경기도 오산시 오산로 22 (원동 764)"),
    ("경기도 오산시 원동 764, 가동 301호", None, "경기도 오산시 오산로 22, 가동 301호 (원동)"),
    # a name with a number beside it is no dong with its lot
    ("홍길동(8279) 서울 강남구 테헤란로 152", None, "서울특별시 강남구 테헤란로 152, 홍길동 (역삼동, 8279)"),
    ("서울 강남구 홍길동(8279) 테헤란로 152", None, "서울특별시 강남구 테헤란로 152, 홍길동 (역삼동, 8279)"),
    ("홍길동-8279 서울 강남구 테헤란로 152", None, "서울특별시 강남구 테헤란로 152, 홍길동-8279 (역삼동)"),
    ("김미리(1234) 경기도 오산시 원동 764", None, "경기도 오산시 오산로 22, 김미리 (원동, 1234)"),
    # a name of before is no move
    (
        "서울 강남구 테헤란로 152 (이전 상호: 한빛)",
        None,
        "서울특별시 강남구 테헤란로 152 (역삼동, 이전 상호: 한빛)",
    ),
    # names beside the new address of a move stay
    (
        "서울 강남구 테헤란로 152 2층 → 서울 강남구 논현로 508 홍길동",
        None,
        "서울특별시 강남구 논현로 508, 홍길동 (역삼동)",
    ),
]

SILENT = [
    ("서울 강남구 테헤란로 152번지의 9", None),
    ("서울 강남구 논현로 508번지 3호", None),  # 508-3, as it is with lots
    ("서울 강남구 테헤란로 152에서 논현로 508로 이전", None),  # no region: whether in the same district, nobody knows
    ("서울 강남구 테헤란로 152에서 논현로 508로 이사", None),
    ("서울 강남구 테헤란로 152 (이전: 서울 강남구 논현로 508)", None),  # moved there, or from there
    ("서울 강남구 테헤란로 152 (논현로 508로 이전)", None),
    ("서울 강남구 테헤란로 152 (이전 주소: 논현로 508)", None),
    ("서울 강남구 테헤란로 152 → 논현로 508", None),
    ("서울 강남구 테헤란로 152, 이전", None),
    ("(주)한빛 서울 강남구 테헤란로 152 → 서울 강남구 논현로 508", None),  # whose name stands with the old address
    ("서울 강남구 테헤란로 152 홍길동 → 서울 강남구 논현로 508", None),
    ("서울 강남구 홍길동 테헤란로 152 → 서울 강남구 논현로 508", None),
    ("홍길동 서울 강남구 테헤란로 152 에서 서울 강남구 논현로 508 으로 이전", None),
    ("서울 강남구 테헤란로 999 (이전 주소: 논현로 508)", None),
    ("서울 강북구 미아동 42-8번지 지하1층 (도봉로 14)", None),
    ("서울 강북구 도봉로 14 (미아동 42-8)", None),
    ("서울 강북구 도봉로 14 (미아동 1600)", None),
    ("서울 강북구 도봉로 14 (솔샘로 300)", None),
    ("서울 강북구 도봉로 14, 솔샘로 300", None),
    ("서울 강북구 도봉로 14 (도봉로 14, 솔샘로 300)", None),
    ("서울 강북구 도봉로 14 (도봉로 14) (솔샘로 300)", None),
    ("서울 강북구 도봉로 14 도봉로 14 (솔샘로 300)", None),
    ("도봉로 14 (미아동 42-8)", None),
    ("경기도 화성시 정남면 공단로 20 (보통리 390-12)", None),
    ("경기도 화성시 정남면 없는로 20 (보통리 390-12)", None),
    ("경기도 화성시 정남면 만년로 99 (보통리 390-12)", None),
    ("경기도 안산시 단원구 공단로 20 (보통리 390-12)", None),
    ("강원도 중앙로 1", None),  # in two of its cities
    ("경상남도 창원시 성산구 신월동 96", None),  # the dong is part of the lot, and no witness of it
    ("경상남도 창원시 마산회원구 신월동 96", None),  # a ward that the gazetteer lacks may have this lot, and this road
    ("경상남도 창원시 마산회원구 중앙대로 151 (신월동)", None),
    ("경상남도 창원시 마산회원구 중앙대로 151", "51435"),
    ("경상남도 창원시 성산구 중앙대로 151", None),  # nothing but the road speaks for the other ward
    ("경상남도 창원시 성산구 태복산로 9 (중동)", None),  # the ward that is written has such a dong, too
    ("경상남도 창원시 성산구 용지로 7 (상남동)", "51436"),  # the dong speaks for the ward, the code against it
    ("경상남도 창원시 성산구 중앙대로 151 (신월동)", "51500"),
    ("부산광역시 강서구 중앙대로 151 (신월동)", None),
    *(
        (f"경기도 오산시 원동 764{behind}", None)
        for behind in (" 3", ",3", "/3", ".3", " 3호", " (3호)", "번지 3 홍길동")
    ),
    *(
        (f"경기도 오산시 원동 764{behind}", None) for behind in (" 101", ", 101호", "번지 제101호")
    ),  # lot 764-101 exists
    # two lots
    ("경기도 오산시 원동 764 (원동 763-3)", None),
    ("경기도 오산시 원동 764, 원동 763-3", None),
    ("경기도 오산시 원동 764 / 오산시 원동 763-3번지", None),
    ("경기도 오산시 원동 764 에서 원동 763-3 으로 변경", None),
    ("경기도 오산시 원동 764 (원동 764, 원동 763-3)", None),
]


@pytest.mark.parametrize(("address", "zipcode", "fixed"), ANSWERED, ids=[f"{n:02d}" for n in range(len(ANSWERED))])
def test_what_a_careful_reader_would_take_it_for_is_answered(
    ask: Callable[..., dict[str, Any]], address: str, zipcode: str | None, fixed: str
) -> None:
    """Nothing that is written is lost, and nothing is left over that is no part of the address."""
    assert ask(address, zipcode)["fixed_address"] == fixed


@pytest.mark.parametrize(("address", "zipcode"), SILENT, ids=[f"{n:02d}" for n in range(len(SILENT))])
def test_where_what_is_written_disagrees_nothing_is_answered(
    ask: Callable[..., dict[str, Any]], address: str, zipcode: str | None
) -> None:
    """Two places in one cell, or a number that is not there: neither of them is picked."""
    assert ask(address, zipcode)["fixed_address"] is None


KEPT = {
    "서울 강북구 도봉로 14 (홍길동 대리 010-1234-5678)": ("미아동, 홍길동 대리 010-1234-5678", None),
    "서울 강북구 도봉로 14 (김미리)": ("미아동, 김미리", None),
    "서울 강북구 도봉로 14 (주차장동)": ("미아동, 주차장동", None),
    "서울 성북구 동소문로 5 (성북동주민센터)": ("동선동1가, 성북동주민센터", None),
    "서울 성북구 성북로 3 (성북동주민센터)": ("성북동주민센터", None),
    "서울 성북구 동소문로 5 (홍길동 귀하)": ("동선동1가, 홍길동 귀하", None),
    "서울 성북구 동소문로 5 (미아동)": ("동선동1가, 미아동", None),  # a dong, but of another district
    "서울 성북구 동소문로 5 (성북동, 3층)": ("동선동1가, 3층", "dong 성북동 → 동선동1가"),
    "서울 성북구 동소문로 5 (동선동)": ("동선동1가", "dong 동선동 → 동선동1가"),
    "서울 성북구 동소문로 5 (성북동 홍길동, 1588-1234)": ("동선동1가, 성북동 홍길동, 1588-1234", None),
    "서울 성북구 동소문로 5 (성북동, 1234)": ("동선동1가, 성북동, 1234", None),  # no lot that nobody wrote
    "서울 강남구 테헤란로 152 (역삼1동, 한빛빌딩)": ("역삼동, 한빛빌딩", "dong 역삼1동 → 역삼동"),
}


@pytest.mark.parametrize("written", list(KEPT), ids=[f"{n:02d}" for n in range(len(KEPT))])
def test_only_a_dong_of_the_district_is_replaced_in_brackets(ask: Callable[..., dict[str, Any]], written: str) -> None:
    """Names of people and of buildings that end like a dong stay as they are written, and no change is told of them."""
    reference, changes = KEPT[written]
    answer = ask(written)
    assert answer["fixed_address"].endswith(f" ({reference})")
    assert answer["changes"] == changes


FORMS = {
    "서울 강남구 역삼동 한빛타워 901-1203": ("neither", None),
    "서울 강남구 역삼동 한빛아파트 901/1203": ("neither", None),
    "서울 강남구 역삼동 한빛아파트 A-1203": ("neither", None),
    "서울 강남구 역삼동 넥서스빌딩 1203": ("neither", None),
    "서울 강남구 Teheran-ro 152": ("english", None),
    "서울 강남구 없는로 152": ("road", None),
    "서울 강남구 역삼동 9999": ("lot", None),
    "서울 강남구 삼성로 11, 101-1203": ("road", "given"),
    "서울 강남구 삼성로 11 101/1203": ("road", "given"),
    "서울 강남구 삼성로 11, A-1203": ("road", "given"),
    "서울 강남구 삼성로 11 (삼성동, 901-1203)": ("road", "given"),
    "서울 강남구 삼성로 11 901-1203": ("road", "given"),
    "서울 강남구 삼성로 11 101-1502": ("road", "given"),
    "서울 강남구 삼성로 11 865-1234": ("road", "missing"),  # telephones
    "서울 강남구 삼성로 11, 1588-1234": ("road", "missing"),
    "서울 강남구 삼성로 11 (삼성동, 1588-1234)": ("road", "missing"),
    "서울 강남구 삼성로 11": ("road", "missing"),
}


@pytest.mark.parametrize("written", list(FORMS), ids=[f"{n:02d}" for n in range(len(FORMS))])
def test_units_behind_a_building_are_no_number_on_a_road(ask: Callable[..., dict[str, Any]], written: str) -> None:
    """What is written is called a road, a lot, neither or English; units in short are units."""
    answer = ask(written)
    assert (answer["form"], answer["unit"]) == FORMS[written]


def test_the_old_address_of_a_move_is_told(ask: Callable[..., dict[str, Any]]) -> None:
    """The address that was left out stands among the changes, and the answer counts as a corrected one."""
    answer = ask("서울 강남구 테헤란로 152 → 서울 강남구 논현로 508 3층")
    assert answer["changes"] == "moved from 서울 강남구 테헤란로 152"
    assert answer["match_level"] == "region_repaired"


REASONS = {
    "129, Samsung-ro, Yeongtong-gu, Suwon-si": "not_korean",
    "서울 강남구 Teheran-ro 152": "not_korean",
    "서울 강남구 역삼동 한빛타워 901-1203": "no_road_or_lot",
}


@pytest.mark.parametrize("written", list(REASONS), ids=[f"{n:02d}" for n in range(len(REASONS))])
def test_the_reason_says_what_was_not_read_and_the_letter_is_not_sent_unseen(
    gazetteer: Gazetteer, written: str, tmp_path: Path
) -> None:
    """No road is said to be missing where none is written; such an address is confirmed at best."""
    level = Scorecard.load().features["address"][REASONS[written]]
    statuses = write(tmp_path / "statuses.csv", "b_no,상태\n1248100998,계속사업자\n")
    bs.build_registry([statuses], tmp_path / "registry.parquet", as_of=date(2026, 11, 1))
    engine = bs.LocalEngine(tmp_path / "registry.parquet", gazetteer=gazetteer.path, today=date(2026, 11, 22))
    asked = pl.LazyFrame({"b_no": ["1248100998"], "name": ["가"], "address": [written]})
    answer = engine.verify(asked).collect()
    reasons = " | ".join(answer["reasons"].item())
    assert f"{level.en} ({level.source})" in reasons
    assert "no such road" not in reasons
    assert answer["action"].item() in ("confirm", "fix_address")


def test_without_a_gazetteer_an_english_address_is_said_not_to_be_read() -> None:
    """What was not read is said, whatever sources there are; a Korean address is not called English."""
    asked = {
        "b_no": ["1248100998"] * 2,
        "name": ["가"] * 2,
        "address": ["129, Samsung-ro, Suwon-si", "수원시 삼성로 129"],
    }
    found = bs.LocalEngine().verify(pl.LazyFrame(asked)).collect()
    english, korean = found["reasons"].list.join(" | ")
    said = Scorecard.load().features["address"]["not_korean"].en
    assert said in english
    assert said not in korean


def read_official(file: Path) -> pl.DataFrame:
    names = {4: "emd", 5: "ri", 6: "san", 7: "lot", 8: "lot_sub", 10: "road", 12: "main", 13: "sub"}
    raw = pl.read_csv(file, separator="|", has_header=False, encoding="cp949", infer_schema=False, quote_char=None)
    rows = raw.select(pl.nth(place).fill_null("").alias(name) for place, name in names.items())
    town = pl.when(pl.col("emd").str.contains("[읍면]$")).then(pl.col("emd") + " ").otherwise(pl.lit(""))
    ri = pl.when(pl.col("ri") != "").then(pl.col("ri") + " ").otherwise(pl.lit(""))
    hill = pl.when(pl.col("san") == "1").then(pl.lit("산 ")).otherwise(pl.lit(""))
    sub, lot_sub = (
        pl.when(pl.col(name) == "0").then(pl.lit("")).otherwise("-" + pl.col(name)) for name in ("sub", "lot_sub")
    )
    road = pl.concat_str(town, "road", pl.lit(" "), "main", sub)
    lot = pl.concat_str("emd", pl.lit(" "), ri, hill, "lot", lot_sub)
    return rows.filter(pl.col("lot") != "0").select(road=road, lot=lot).unique("road", maintain_order=True)


def test_of_every_real_building_road_and_lot_in_one_cell_must_agree(shared: Path, tmp_path: Path) -> None:
    """Of a province's buildings each is answered with its own lot beside it, and hardly one with another's."""
    file = shared / "address" / "rnaddrkor_sejong.txt"
    build_gazetteer([file], tmp_path / "g.parquet")
    pairs = read_official(file)
    other = pairs.with_columns(pl.col("lot").shift(len(pairs) // 2, fill_value=pairs["lot"][-1]))
    beside = pl.format("세종특별자치시 {} ({})", "road", "lot")
    asked = pl.concat([pairs.select(address=beside), other.select(address=beside)])
    frame = asked.with_columns(zipcode=pl.lit(None, pl.String)).lazy()
    found = attach(frame, Gazetteer.open(tmp_path / "g.parquet"), "en").collect()["fixed_address"]
    assert found.head(len(pairs)).null_count() == 0
    assert found.tail(len(pairs)).count() <= 0.001 * len(pairs)
