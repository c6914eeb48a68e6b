"""Plain addresses are answered without the readings, and exactly as by them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bansong.engine.address import attach as attaching
from bansong.engine.address import plain
from bansong.engine.address.gazetteer import Gazetteer
from bansong.engine.address.parse import parse
from examples import examples
from gazetteers import buildings, gazetteer_of, matched
from golden_cases import cases

WORLDS = ("plain", "odd", "support")
PROVINCES = {
    "서울특별시": ["서울", "서울시"],
    "세종특별자치시": ["세종"],
    "경기도": ["경기"],
    "강원특별자치도": ["강원도"],
}
UNITS = ["3층", "301호", "101동 1203호", "지하 1층, B101호", "가동 101호", "A동 2층 201호", "2층 일부", "1,2층"]
WORDS = [
    *("한빛빌딩", "래미안 1차", "상가 109호", "시청앞", "옆건물", "역삼동", "역삼동 12-3", "강남대로 12", "제1층"),
    *("부산 해운대구 센텀로 5", "현대공원 101동 3호", "이전", "삼거리", "조치원읍", "12345", "주식회사 한빛", "길 5"),
]
SLIPS = [*" ,-().0123동호층로길리읍가산", "지하", "번길", "\u3000", "앞", "*"]

Row = tuple[str | None, str | None]


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Gazetteer]:
    return {world: gazetteer_of(buildings(world), tmp_path_factory.mktemp(world)) for world in WORLDS}


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Let few rows be plain, too; collect how many the readings get."""
    asked: list[int] = []
    match = attaching.match_addresses

    def counted(lookups: Any, parsed: pl.DataFrame) -> pl.DataFrame:
        asked.append(parsed.height)
        return match(lookups, parsed)

    monkeypatch.setattr(plain, "MIN_PLAIN_ROWS", 0)
    monkeypatch.setattr(attaching, "match_addresses", counted)
    return asked


def by_readings(gazetteer: Gazetteer, rows: list[Row], lang: str) -> pl.DataFrame:
    """Match addresses that the parser has read, all of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plain, "MIN_PLAIN_ROWS", len(rows) + 1)
        patch.setattr(plain, "_parse", lambda rows, _, left: parse(rows.filter(left).lazy()).collect())
        return matched(gazetteer, rows, lang)


@st.composite
def written(draw: st.DrawFn, world: str) -> Row:
    (_, sido, sigungu), emd, ri, _, road, _, number, zipcode, *_ = draw(st.sampled_from(buildings(world)))
    town = emd if emd[-1] in "읍면" else ""
    dong = ri if town else emd
    parts = [draw(st.sampled_from([sido, *PROVINCES.get(sido, [])])), sigungu, draw(st.sampled_from([town, town, ""]))]
    text = " ".join(filter(None, parts)) + " " + road + draw(st.sampled_from([" ", " ", " ", ""])) + number
    between = st.sampled_from([", ", ", ", " ", ","])
    words = st.lists(st.sampled_from([*UNITS, *WORDS]), min_size=1, max_size=2).map(" ".join)
    if draw(st.booleans()):
        text += draw(between) + draw(st.sampled_from(UNITS) | words)
    if draw(st.booleans()):
        text += (
            draw(st.sampled_from([" (", "("])) + dong + draw(st.just("") | st.tuples(between, words).map("".join)) + ")"
        )
    for slip in draw(st.lists(st.sampled_from(SLIPS), max_size=1) if draw(st.booleans()) else st.just([])):
        place = draw(st.integers(0, len(text)))
        text = text[:place] + slip + text[place + draw(st.integers(0, 1)) :]
    return text, draw(st.sampled_from([None, None, zipcode, zipcode, "", zipcode[1:], "12345"]))


@examples(48, default=3)
@given(st.data())
def test_plain_addresses_are_answered_as_by_the_readings(
    worlds: dict[str, Gazetteer], left: list[int], data: st.DataObject
) -> None:
    world, lang = data.draw(st.sampled_from(WORLDS)), data.draw(st.sampled_from(["en", "ko"]))
    rows = data.draw(st.lists(written(world), min_size=60, max_size=100))
    assert matched(worlds[world], rows, lang).equals(by_readings(worlds[world], rows, lang))


def test_each_careful_reading_stands_where_plain_addresses_are_answered_at_once(
    worlds: dict[str, Gazetteer], left: list[int]
) -> None:
    known = cases("addresses.csv")
    for world in WORLDS:
        rows = known.filter(pl.col("world") == world).select("address", "zipcode").rows()
        assert matched(worlds[world], rows).equals(by_readings(worlds[world], rows, "en")), world


def official_rows() -> list[Row]:
    rows: list[Row] = []
    for (_, sido, sigungu), emd, ri, _, road, under, number, zipcode, *_ in buildings("plain"):
        town = emd if emd[-1] in "읍면" else ""
        dong = ri if town else emd
        head = " ".join(filter(None, [sido, sigungu, town, road, "지하" * int(under) + number]))
        endings = ("", ", 3층 301호", " 301호", f" ({dong})", f", 2층 ({dong}, 한빛빌딩)", ", 한빛빌딩 2층")
        rows += [(head + ending, code) for ending in endings for code in (None, zipcode)]
    return rows


def test_the_readings_get_only_what_is_not_plain(worlds: dict[str, Gazetteer], left: list[int]) -> None:
    rows = official_rows()
    found = by_readings(worlds["plain"], rows, "en").filter(pl.col("match_level") == "exact")
    matched(worlds["plain"], rows)  # while one thread makes the names of a gazetteer, others leave all to the readings
    left.clear()
    assert matched(worlds["plain"], rows).height == len(rows)
    assert len(rows) - sum(left) >= 0.85 * found.height > 0.85 * 0.95 * len(rows)


def test_few_rows_are_left_to_the_readings(worlds: dict[str, Gazetteer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "_find_buildings", None)
    assert matched(worlds["plain"], official_rows()[:50]).height == 50


@pytest.mark.parametrize("road", ["없는가길", "세종갑로", "한누라대로12번길", "조치완3가길"])
def test_addresses_of_the_usual_form_are_not_parsed(
    worlds: dict[str, Gazetteer], monkeypatch: pytest.MonkeyPatch, road: str
) -> None:
    head = f"세종특별자치시 조치원읍 {road}"
    endings = (" 12", "12", " 12-3, 2층 301호", " 12 지하 1층", " 1203, 101동 1203호 (나성동)", " 12(서창리)", " 12 ")
    rows: list[Row] = [(head + ending, code) for ending in endings for code in (None, "", "30098")]
    parsed = by_readings(worlds["plain"], rows, "en")
    monkeypatch.setattr(plain, "_PARSING", None)
    assert matched(worlds["plain"], rows).equals(parsed)
