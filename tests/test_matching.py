"""Addresses against a gazetteer: which building is meant, how it was found, and when nothing may be said."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bansong import LocalEngine
from bansong.engine.address import gazetteer as stored_section
from bansong.engine.address import lookups as open_lookups
from bansong.engine.address.attach import ADDED, attach
from bansong.engine.address.batches import built_once
from bansong.engine.address.gazetteer import Gazetteer, read_section
from bansong.engine.address.matcher import LEVELS
from bansong.reference import gazetteer as gazetteer_builder
from bansong.reference.gazetteer import build_gazetteer
from bansong.reference.registry import build_registry
from conftest import ROOT, write
from examples import examples
from gazetteers import buildings, gazetteer_of, matched, put, row
from golden_cases import cases, check

sys.path.insert(0, str(ROOT / "benchmarks"))

CASES = cases("addresses.csv")
Asked = list[tuple[str | None, str | None]]


def asked_of(world: str) -> Asked:
    return CASES.filter(pl.col("world") == world).select("address", "zipcode").rows()


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Gazetteer]:
    names = CASES["world"].unique()
    return {name: gazetteer_of(buildings(name), tmp_path_factory.mktemp(name)) for name in names}


@pytest.fixture(scope="module")
def gazetteer(worlds: dict[str, Gazetteer]) -> Gazetteer:
    return worlds["plain"]


@pytest.fixture(scope="module")
def answered(worlds: dict[str, Gazetteer]) -> pl.DataFrame:
    names = CASES["world"].unique(maintain_order=True)
    return pl.concat(matched(worlds[name], asked_of(name)) for name in names)


def test_an_address_is_read_as_a_careful_reader_would(worlds: dict[str, Gazetteer], answered: pl.DataFrame) -> None:
    korean = matched(worlds["plain"], asked_of("plain"), "ko")["changes"]
    told = answered.with_columns(korean.extend_constant(None, len(answered) - len(korean)).alias("changes_ko"))
    check("addresses.csv", CASES.select("world", "why").hstack(told), inputs=3)


def test_a_building_that_is_sure_gives_postal_code_dong_and_place_and_no_other_does(answered: pl.DataFrame) -> None:
    found, sure = answered, pl.col("fixed_address").is_not_null()
    assert set(found["match_level"].drop_nulls()) <= set(LEVELS)
    for name in ("zipcode_right", "district_code", "place"):
        assert found.filter(sure != pl.col(name).is_not_null()).is_empty(), name
    assert found.filter(sure & (pl.col("zipcode_right") != pl.col("fixed_zipcode"))).is_empty()


def test_few_rows_are_answered_as_all(gazetteer: Gazetteer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gazetteer_builder, "_GROUP", 3)
    parted, asked = gazetteer_of(buildings("plain"), tmp_path), asked_of("plain")[::4]
    monkeypatch.setattr(open_lookups, "FEW", len(asked))
    assert matched(parted, asked).equals(matched(gazetteer, asked))


def test_few_rows_read_row_groups_and_many_the_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gazetteer_builder, "_GROUP", 3)
    parted = gazetteer_of(buildings("plain"), tmp_path)
    read: list[tuple[str, list[int]]] = []

    def count(gazetteer: Gazetteer, name: str, columns: Any = None, groups: Any = None) -> pl.DataFrame:
        if groups is not None:
            read.append((name, groups))
        return read_section(gazetteer, name, columns, groups)

    monkeypatch.setattr(stored_section, "read_section", count)
    address: Asked = [("서울특별시 강남구 테헤란로 152", None)]
    matched(parted, address)
    assert len({str(groups) for name, groups in read if name == "building"}) == 1
    assert "lot" not in {name for name, _ in read}
    matched(parted, address * (open_lookups.FEW - 1))
    read.clear()
    matched(parted, address)
    assert not [name for name, groups in read if groups is not None]


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
    **dict.fromkeys((None, "", "   ", "-", "없음", "서울특별시 강남구 테헤란로 ***")),  # without a level
}


def test_hostile_and_blank_addresses_are_answered_none(gazetteer: Gazetteer) -> None:
    asked: Asked = [(text if text is not None else name, "30027") for name, text in HOSTILE.items()]
    found = matched(gazetteer, asked)
    assert found["fixed_address"].null_count() == len(asked)
    assert found["match_level"].tail(6).null_count() == 6


@examples(12)
@given(st.lists(st.text(max_size=60), max_size=8), st.text(max_size=8))
def test_any_text_gives_one_line_each(gazetteer: Gazetteer, addresses: list[str], zipcode: str) -> None:
    found = matched(gazetteer, [(address, zipcode) for address in addresses], "ko")
    assert found["address"].to_list() == addresses
    assert set(found["match_level"].drop_nulls()) <= set(LEVELS)


WRITTEN = {"세종시": "세종특별자치시", "충남": "충청남도 공주시", "서울": "서울특별시 종로구"}
WORDS = ["세종시", "충남 공주시", "서울 종로구", "조치원읍", "남리", "종로1가", "새내길", "새내6길", "종로"]
WORDS += ["38", "63-22", "24", ",", "(보람동)"]


@examples(20)
@given(st.lists(st.lists(st.sampled_from(WORDS), max_size=9).map(" ".join), min_size=20, max_size=60))
def test_an_answer_lies_in_the_region_that_is_written(gazetteer: Gazetteer, addresses: list[str]) -> None:
    answers = matched(gazetteer, [(address, None) for address in addresses])["fixed_address"]
    for address, fixed in zip(addresses, answers, strict=True):
        for written, official in WRITTEN.items():
            assert fixed is None or not address.startswith(written) or fixed.startswith(official)


@pytest.mark.fuzz
def test_batches_keep_rows_and_order(gazetteer: Gazetteer, answered: pl.DataFrame) -> None:
    plain = answered.head(len(asked_of("plain")))
    asked = plain.sample(120_000, with_replacement=True, seed=5)
    frame = asked.select("address", "zipcode").with_row_index("line").lazy()
    found = attach(frame, gazetteer, "en").collect(engine="streaming")
    assert found["line"].to_list() == list(range(len(asked)))
    assert found["fixed_address"].to_list() == asked["fixed_address"].to_list()


def test_a_row_is_answered_alike_in_every_batch(gazetteer: Gazetteer) -> None:
    asked = asked_of("plain")
    random.Random(1).shuffle(asked)
    whole = matched(gazetteer, asked).rows()
    places = [range(at, min(at + 60, len(asked))) for at in range(0, len(asked), 60)]
    places += [range(at, at + 1) for at in range(0, len(asked), 60)]
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda part: matched(gazetteer, asked[part.start : part.stop]).rows(), places)
        assert list(found) == [whole[part.start : part.stop] for part in places]


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


def test_without_a_gazetteer_the_same_columns_are_there() -> None:
    schema = matched(None, [("세종시 새내길 38", "06236")]).schema
    assert {name: dtype for name, dtype in schema.items() if name in ADDED} == {
        name: dtype() for name, dtype in ADDED.items()
    }


def test_a_road_that_a_district_has_twice_needs_its_town_or_postal_code(tmp_path: Path) -> None:
    """Number 32 of the one may be new and missing; that of the other is no answer."""
    one = {"road": "덕고개길", "road_code": "361104574096", "dong": "3611032021", "emd": "전의면", "ri": "읍내리"}
    other = {"road": "덕고개길", "road_code": "361104574608", "dong": "3611033021", "emd": "장군면", "ri": "하봉리"}
    put(tmp_path / "rnaddrkor_s.txt", row(31, **one, zipcode="30004"), row(32, **other, zipcode="30052"))
    build_gazetteer([tmp_path], tmp_path / "g.parquet")
    written = ["{} 32", "{} 32", "전의면 {} 32", "장군면 {} 32", "{} 32", "{} 32 (하봉리)"]
    zipcodes = [None, "30004", None, None, "30052", None]
    asked = [(f"세종특별자치시 {text.format('덕고개길')}", code) for text, code in zip(written, zipcodes, strict=True)]
    found = matched(Gazetteer.open(tmp_path / "g.parquet"), asked)
    assert found["match_level"].to_list() == ["ambiguous"] * 3 + ["exact"] * 3
    assert found["fixed_address"].is_null().to_list() == [True] * 3 + [False] * 3


def test_what_was_not_read_or_confirmed_is_told_and_not_sent(worlds: dict[str, Gazetteer], tmp_path: Path) -> None:
    asked = [
        ("129, Samsung-ro, Yeongtong-gu, Suwon-si", None),
        ("서울 강남구 역삼동 한빛타워 901-1203", None),
        ("서울 종로구 고산쟈동로 12", None),
        ("서울 종로구 고산쟈동로 12", "03172"),
    ]
    said = [
        "the address is not written in Korean, so it was not read (file)",
        "the address names neither a road with a number nor a lot, so it was not looked up (juso)",
        "corrected automatically, and nothing else in the row confirms it: road",
        "corrected automatically: road",
    ]
    statuses = write(tmp_path / "statuses.csv", "b_no,상태\n1248100998,계속사업자\n")
    build_registry([statuses], tmp_path / "registry.parquet", as_of=date(2026, 11, 1))
    rows = pl.LazyFrame(asked, schema=["address", "zipcode"], orient="row")
    rows = rows.with_columns(b_no=pl.lit("1248100998"), name=pl.lit("가"))
    ask: Callable[..., LocalEngine] = partial(LocalEngine, tmp_path / "registry.parquet", today="2026-11-22", lang="en")
    found = ask(gazetteer=worlds["support"]).verify(rows).collect()
    reasons = found["reasons"].list.join(" | ").to_list()
    assert [text for text, one in zip(reasons, said, strict=True) if one not in text or "no such road" in text] == []
    assert [action in ("confirm", "fix_address") for action in found["action"]] == [True, True, True, False]
    alone = ask().verify(rows).collect()["reasons"].list.join(" | ").str.contains(said[0], literal=True)
    assert alone.to_list() == [True, False, False, False]
