"""A correction needs something that supports it: what the gazetteer lacks must not be bent into its neighbour."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from bansong import LocalEngine
from bansong.engine.address.batches import NameDifference, compare_names, slips, text_key
from bansong.engine.address.gazetteer import Gazetteer
from bansong.engine.risk.reasons import AT_BEST
from bansong.reference.gazetteer import build_gazetteer
from conftest import ROOT
from test_gazetteer import put, row
from test_matching import BUILDINGS, GANGNAM, JONGNO, matched, official_line

HERE: list[tuple[Any, ...]] = [
    (GANGNAM, "역삼동", "", "647", "테헤란로25길", 0, "20", "06132", "역삼1동", 0, "한빛빌딩"),
    (GANGNAM, "역삼동", "", "648", "테헤란로27길", 0, "20", "06132", "역삼1동", 0, ""),
    (GANGNAM, "역삼동", "", "648-40", "테헤란로27길", 0, "22", "06132", "역삼1동", 0, ""),
    (JONGNO, "계동", "", "30", "후암로28다길", 0, "5", "03059", "가회동", 0, "후암빌라"),
    (JONGNO, "계동", "", "31", "방배로", 0, "12", "03059", "가회동", 0, ""),
    (JONGNO, "계동", "", "32", "금곡로", 0, "12", "03059", "가회동", 0, ""),
    (JONGNO, "사직동", "", "33", "사당로", 0, "12", "03172", "사직동", 0, ""),
    (JONGNO, "사직동", "", "34", "고산자동로", 0, "12", "03172", "사직동", 0, ""),
]
sys.path.insert(0, str(ROOT / "benchmarks"))

FAR = "03159"
"""The postal code of another dong of 종로구."""


@pytest.fixture(scope="module")
def gazetteer(tmp_path_factory: pytest.TempPathFactory) -> Gazetteer:
    folder = tmp_path_factory.mktemp("support")
    there = [*BUILDINGS, *HERE]
    for sido in ("서울특별시", "경기도"):
        lines = [official_line(place, one) for place, one in enumerate(there) if one[0][1] == sido]
        (folder / f"rnaddrkor_{sido}.txt").write_bytes("".join(f"{line}\r\n" for line in lines).encode("cp949"))
    build_gazetteer([folder], folder / "gazetteer.parquet")
    return Gazetteer.open(folder / "gazetteer.parquet")


@pytest.fixture(scope="module")
def ask(gazetteer: Gazetteer) -> Callable[..., dict[str, Any]]:
    """What an address is taken for; those of the tables below are asked for by one query."""
    tables = [case[:2] for table in (UNITS, SUPPORTED) for case in table]
    tables += [(f"서울특별시 종로구 {address}", zipcode) for address, zipcode, *_ in ROADS]
    known = dict(zip(tables, matched(gazetteer, tables, "en").iter_rows(named=True), strict=True))

    def one(address: str, zipcode: str | None = None) -> dict[str, Any]:
        if found := known.get((address, zipcode)):
            return found
        return matched(gazetteer, [(address, zipcode)], "en").row(0, named=True)

    return one


UNITS = [
    ("서울 강남구 역삼동 647번지 7호", "06132", None),
    ("서울 강남구 역삼동 647번지 99호", None, None),
    ("서울 강남구 역삼동 647번지 7호 다른빌딩", None, None),
    ("서울 강남구 역삼동 647번지 7호 한빛빌딩", None, "테헤란로25길 20, 7호 한빛빌딩 (역삼동)"),
    ("서울 강남구 역삼동 647번지 100호", None, "테헤란로25길 20, 100호 (역삼동)"),
    ("서울 강남구 역삼동 648번지 301호", None, "테헤란로27길 20, 301호 (역삼동)"),
    ("서울 강남구 역삼동 648번지 101호", None, None),  # lot 648 has a part 40: 101 may be one, too
    ("서울 강남구 역삼동 648번지 40호", None, "테헤란로27길 22 (역삼동)"),
]


@pytest.mark.parametrize(("address", "zipcode", "fixed"), UNITS)
def test_a_low_number_behind_a_lot_is_a_part_of_the_lot_and_no_unit(
    ask: Callable[..., dict[str, Any]], address: str, zipcode: str | None, fixed: str | None
) -> None:
    """`647번지 7호` is lot 647-7: where that is not known, it is not answered as unit 7 on lot 647."""
    expected = fixed and f"서울특별시 강남구 {fixed}"
    assert ask(address, zipcode)["fixed_address"] == expected


ROADS = [
    # address in 종로구, postal code, the road that it is taken for, whether other words bear that out
    ("후암로28라길 5", "03059", None, None),
    ("후암로28라길 5 (계동)", "03059", None, None),
    ("후암로28길 5", "03059", None, None),
    ("후암로28라길 5 (계동, 후암빌라)", None, "후암로28다길", True),  # the building's own name
    ("고산자서로 12 (사직동)", "03172", None, None),
    ("방배천로 12", None, None, None),
    ("방배천로 12", "03059", "방배로", False),
    ("금곡안로 12", None, None, None),
    ("금곡안로 12 (계동)", None, "금곡로", False),
    ("사댱로 12", None, None, None),  # of two syllables one is not enough
    ("사댱로 12", "03172", "사당로", True),
    ("사댱로 12", FAR, None, None),
    ("사직동 사댱로 12", None, "사당로", True),
    ("고산쟈동로 12", None, "고산자동로", False),
    ("고산쟈동로 12 (사직동)", None, "고산자동로", True),
    ("고산명동로 12", None, None, None),  # a whole syllable
    ("고산명동로 12", "03172", "고산자동로", False),
    ("고산자동길 12", None, None, None),
]


@pytest.mark.parametrize(("address", "zipcode", "road", "supported"), ROADS)
def test_a_road_is_taken_for_its_neighbour_only_where_other_words_say_so(
    ask: Callable[..., dict[str, Any]], address: str, zipcode: str | None, road: str | None, supported: bool | None
) -> None:
    """What tells roads apart (가나다, 동서남북) counts like a digit; short names and whole syllables need a witness."""
    answer = ask(f"서울특별시 종로구 {address}", zipcode)
    assert (answer["fixed_address"] or "").split()[2:3] == ([road] if road else [])
    assert answer["supported"] is supported


SUPPORTED = [
    ("서울 종로구 고산자동로 12", None, None),
    ("고산자동로 12", None, False),  # the only one is no witness
    ("고산자동로 12", "03172", True),
    ("고산자동로 12", "03059", False),
    ("고산자동로 12 (사직동)", None, True),
    ("서울 죵로구 고산자동로 12", None, False),
    ("서울 죵로구 고산자동로 12", "03172", True),
    ("서울특벌시 종로구 고산자동로 12", None, True),  # the district is the only one of its name
    ("경기 수원시 삼성로 129", None, True),  # only the 구 of the city was filled in
    ("경기도 강남구 테헤란로 152", None, False),
    ("경기도 강남구 테헤란로 152", "06236", True),
    ("서울 강남구 역샴동 737", None, False),
    ("서울 강남구 역샴동 737", "06236", True),
    ("서울 종로구 사직로 130", None, False),  # 지하 130
    ("서울 종로구 계동 후암빌라", None, False),
    ("서울 종로구 계동 후암빌라", "03059", True),
    ("서울 강남구 역삼동 647번지 7호 한빛빌딩", "06132", False),  # a complex has its name and code on several lots
]


@pytest.mark.parametrize(("address", "zipcode", "supported"), SUPPORTED)
def test_a_repair_is_told_apart_by_what_bears_it_out(
    ask: Callable[..., dict[str, Any]], address: str, zipcode: str | None, supported: bool | None
) -> None:
    """Postal code, dong, building and city are witnesses where they were not repaired; likeness alone is none."""
    answer = ask(address, zipcode)
    assert answer["fixed_address"] is not None
    assert answer["supported"] is supported


DIFFERENCES = [
    ("한누라대로", "한누리대로", NameDifference.SLIP),
    ("한누대로", "한누리대로", NameDifference.SLIP),
    ("누한리대로", "한누리대로", NameDifference.SLIP),
    ("한명리대로", "한누리대로", NameDifference.DOUBTFUL),
    ("한누리로", "한누리대로", NameDifference.DOUBTFUL),
    ("중앙공원로", "중앙공원서로", NameDifference.DOUBTFUL),
    ("국사봉길", "국사길", NameDifference.DOUBTFUL),
    ("중앙공원남로", "중앙공원북로", NameDifference.TWO_ROADS),
    ("상노장길", "중노장길", NameDifference.TWO_ROADS),
    ("역삼로35가길", "역삼로35길", NameDifference.TWO_ROADS),
    ("충장로12번나길", "충장로12번다길", NameDifference.TWO_ROADS),
    ("한누리대로", "한누리대로", None),
]


@pytest.mark.parametrize(("written", "official", "difference"), DIFFERENCES)
def test_names_differ_by_a_slip_or_as_two_roads_do(written: str, official: str, difference: int | None) -> None:
    """One jamo, or a syllable too few or too many of a long name, is a slip in either direction."""
    both = compare_names(pl.Series([written, official]), pl.Series([official, written]))
    assert both["difference"].to_list() == [difference] * 2


def test_slips_of_a_name_are_keys_of_its_hangul_syllables_unreadable_left_out_or_swapped() -> None:
    """Digits stay where they are, and a syllable before one is swapped with nothing."""
    rows = pl.DataFrame({"row": [7], "region": [3], "name": ["새내6길"]})
    spelled = {
        "hole": ["?내6길", "새?6길", "새내6?"],
        "gap": ["내6길", "새6길", "새내6"],
        "swap": ["내새6길", None, None],
    }
    keys = pl.DataFrame({"row": [7] * 3, "region": [3] * 3} | spelled).select(
        "row", **{slip: text_key("region", slip) for slip in spelled}
    )
    assert slips(rows, "name", "row").equals(keys)


def test_an_unsupported_repair_says_so_and_is_at_best_to_be_confirmed(gazetteer: Gazetteer) -> None:
    """The reason names what was changed, and the scorecard does not let such a row be sent unseen."""
    rows = {"b_no": ["1248100998"] * 2, "address": ["서울 종로구 고산쟈동로 12"] * 2, "zipcode": [None, "03172"]}
    for lang, alone, borne_out in (
        ("en", "corrected automatically, and nothing else in the row confirms it: ", "corrected automatically: "),
        ("ko", "자동 보정(다른 항목으로는 확인되지 않음): ", "자동 보정: "),
    ):
        found = LocalEngine(gazetteer=gazetteer, lang=lang).verify(pl.LazyFrame(rows)).collect()["reasons"]
        for reasons, text in zip(found, (alone, borne_out), strict=True):
            assert [
                reason for reason in reasons if reason.startswith(f"[address +6] {text}") and "고산자동로" in reason
            ]
    assert AT_BEST["address", "corrected_unsupported"] == "confirm"
    assert ("address", "corrected") not in AT_BEST


def test_a_road_that_a_district_has_twice_needs_its_town_or_postal_code(tmp_path: Path) -> None:
    """Number 32 of the one may be new and missing; that of the other is no answer."""
    one = {"road": "덕고개길", "road_code": "361104574096", "dong": "3611032021", "emd": "전의면", "ri": "읍내리"}
    other = {"road": "덕고개길", "road_code": "361104574608", "dong": "3611033021", "emd": "장군면", "ri": "하봉리"}
    put(tmp_path / "rnaddrkor_s.txt", row(31, **one, zipcode="30004"), row(32, **other, zipcode="30052"))
    build_gazetteer([tmp_path], tmp_path / "g.parquet")
    asked: list[tuple[str | None, str | None]] = [
        ("세종특별자치시 덕고개길 32", None),
        ("세종특별자치시 덕고개길 32", "30004"),
        ("세종특별자치시 전의면 덕고개길 32", None),
        ("세종특별자치시 장군면 덕고개길 32", None),
        ("세종특별자치시 덕고개길 32", "30052"),
        ("세종특별자치시 덕고개길 32 (하봉리)", None),
    ]
    found = matched(Gazetteer.open(tmp_path / "g.parquet"), asked, "en")
    assert found["match_level"].to_list() == ["ambiguous"] * 3 + ["exact"] * 3
    assert found["fixed_address"].is_null().to_list() == [True] * 3 + [False] * 3


def test_a_ri_is_not_looked_for_in_another_town_because_brackets_repeat_it(tmp_path: Path) -> None:
    """`전의면 신흥리 96 (신흥리)` is not 신흥리 of 조치원읍."""
    here = {"road": "신흥길", "road_code": "361104574096", "dong": "3611025021", "emd": "조치원읍", "ri": "신흥리"}
    there = {"road": "읍내길", "road_code": "361104574608", "dong": "3611032021", "emd": "전의면", "ri": "읍내리"}
    put(tmp_path / "rnaddrkor_s.txt", row(6, **here, lot="0|96|0"), row(7, **there, lot="0|5|0"))
    build_gazetteer([tmp_path], tmp_path / "g.parquet")
    asked: list[tuple[str | None, str | None]] = [
        ("세종특별자치시 전의면 신흥리 96 (신흥리)", None),
        ("세종특별자치시 신흥리 96 (신흥리)", None),
    ]
    found = matched(Gazetteer.open(tmp_path / "g.parquet"), asked, "en")
    assert found["fixed_address"].is_null().to_list() == [True, False]


def invented(rng: random.Random) -> Iterator[str]:
    """Lines of an official file whose roads differ as neighbours do, each along a village with lots and sub-lots."""
    syllables = "가강골금남달돌들마말매물방버벌봉산샘소송안양오용장터평학한"
    stems = {"".join(rng.sample(syllables, rng.choice((2, 2, 3)))) for _ in range(24)}
    for village, stem in enumerate(sorted(stems)):
        ri = {"dong": f"36110310{village + 21}", "emd": "부강면", "ri": f"{stem}리", "admin": "부강면"}
        for place, end in enumerate(("로", "길", "안길", "동로", "서로", "1길", "2길", "28가길", "28나길")):
            for number in range(1, 15):
                lot = f"0|{100 * place + number // 4 + 1}|{number % 4}"
                code = f"36110{9_000_000 + 10 * village + place}"
                yield row(number, **ri, road=stem + end, road_code=code, lot=lot, zipcode=f"{30010 + village // 2:05d}")


def test_what_an_invented_gazetteer_lacks_is_not_answered_and_never_sent(tmp_path: Path) -> None:
    """A tenth taken out: no building or sub-lot, and no road without a witness, is answered; what is, is never sent."""
    import address_noise
    from noise_truth import Truth, read

    official = put(tmp_path / "rnaddrkor_invented.txt", *invented(random.Random(14)))
    found = address_noise.measured_missing(official, Truth(read(official)), tmp_path, 14)
    totals = {missing: found.total(missing) for missing in ("buildings", "sub-lots", "roads")}
    assert all(one.rows > 3_000 for one in totals.values())
    assert [one.sent for one in totals.values()] == [0, 0, 0]
    assert (totals["buildings"].wrong, totals["sub-lots"].wrong) == (0, 0)
    assert not [one for one in found.tallies if one.wrong and not one.coded and "dong" not in one.form]
