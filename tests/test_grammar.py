"""Reading an address: every spelling that people use, nothing lost, nothing slow, on invented or public addresses."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random
from typing import Any

import polars as pl
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from bansong.engine.address import parse, plain
from bansong.engine.address.words import plain_numbers
from examples import examples, few
from gazetteers import official_addresses
from golden_cases import cases, check


def parsed(addresses: list[str | None] | pl.Series, zipcodes: list[str | None] | None = None) -> pl.DataFrame:
    columns = {"address": addresses, "zipcode": zipcodes or [None] * len(addresses)}
    return parse.parse(pl.LazyFrame(columns, schema=dict.fromkeys(columns, pl.String))).collect()


def test_each_spelling_is_read_as_a_person_would_read_it() -> None:
    asked = cases("address_grammar.csv").select("address", "zipcode")
    found = parsed(asked["address"].to_list(), asked["zipcode"].to_list())
    plain = plain_numbers(asked.lazy()).select(plain_building="building", plain_lot="lot").collect()
    check("address_grammar.csv", found.hstack(plain), inputs=2)


HOSTILE = ["로1" * 50_000, "(" * 299, "(" * 100_000 + "테헤란로 152", "🏠🏠🏠", "", None]


def test_what_no_person_can_read_is_not_read() -> None:
    found = parsed(HOSTILE)
    assert set(found["kind"]) == {"none"}
    assert found.select("text", "road", "main", "lot_main", "brackets").null_count().row(0) == (len(HOSTILE),) * 5
    numbers = plain_numbers(pl.LazyFrame({"address": HOSTILE})).select("building", "lot").collect()
    assert numbers.null_count().row(0) == (len(HOSTILE),) * 2
    assert parsed(["종로\x00 1"]).select("text", "main").row(0) == ("종로 1", 1)


def test_columns_types_rows_and_their_order_are_as_promised() -> None:
    frame = pl.LazyFrame({"id": [3, 1, 2], "address": ["종로 1", None, "길동 2"], "zipcode": ["1", None, "03154"]})
    found = parse.parse(frame).collect()
    given_columns = {"id": pl.Int64(), "address": pl.String(), "zipcode": pl.String()}
    assert dict(found.schema) == given_columns | parse.PARSED
    assert found["id"].to_list() == [3, 1, 2]
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
        later_road = "나" in f"{row['road_pre']}"  # the words themselves hold the address: 테헤란로 152, 나로 3
        assert not missing or later_road or re.search(r"[0-9]{3}-?[0-9]{3}", words)


def letters(text: str) -> list[str]:
    return re.findall("[0-9A-Za-z가-힣]", text)


@examples(20)
@given(st.lists(st.one_of(st.none(), st.text(max_size=400), WORDS), max_size=20))
def test_no_text_at_all_is_refused(addresses: list[str | None]) -> None:
    assert parsed(addresses, addresses)["address"].to_list() == addresses


# town, name, its end, space (``_``), number, what follows: one of each makes an address
ROADS = """
////조치원읍 /서면 /길상면 /읍면 /남면/로동읍 /정동 /대로면 /서면_
세종/종/대/가로수/길/읍내/남면/만남/새로/거리/거리두/거북/도/을지/길로/번/지하/종읍/새면소/로제/
로/길/대로/거리/로12길/로3번길/로3가길/길5/5길/3로/12번길/로12북로/로5로7길/
 / / / / / / / // 지하/ 지하 /__
5/17/24-1/3000-22/77/5/12-3/134/99999/123456/1-2-3/7의 2/3 - 1/12번지/3가/5층/
//////, 지하1층/, 3층 301호/,3가/, 2가/, 12-1/ 101동 202호/호/층/, /,/(정동)/, (주)가나다/ 3호
"""


def assert_same(texts: pl.Series, share: float) -> None:
    rows = pl.DataFrame({"address": texts, "zipcode": None}, schema=dict.fromkeys(("address", "zipcode"), pl.String))
    parts = plain._take_apart(rows)
    everything = pl.repeat(True, rows.height, dtype=pl.Boolean, eager=True)
    assert plain._USUAL.run(parts).height >= share * rows.height
    assert_frame_equal(plain._parse(rows, parts, everything), parsed(texts))


def test_usual_forms_are_read_by_their_parts_as_in_full() -> None:
    dice = Random(7)
    choices = [line.split("/") for line in ROADS.strip("\n").split("\n")]
    texts = {"서울특별시 중구 " + "".join(map(dice.choice, choices)) for _ in range(few(48_000))}
    assert_same(pl.Series("address", sorted(texts)).str.replace_all("_", " "), 0.04)


def test_real_usual_forms_are_read_by_their_parts_as_in_full(shared: Path) -> None:
    rows = official_addresses(shared).gather_every(4, 1)
    detail = pl.when(pl.int_range(pl.len()) % 2 == 0).then(pl.lit(", 3층 301호")).otherwise(pl.lit(""))
    address = pl.concat_str(pl.lit("서울특별시 중구 "), "road", detail)
    assert_same(rows.select(address.alias("address")).to_series(), 0.8)


SHARES = {"vet_road": 1.0, "vet_lot": 0.9875, "test": 0.989, "test3": 1.0, "gb_offices": 1.0}


def test_real_lists_are_read_to_road_or_lot_and_number_in_these_shares(shared: Path) -> None:
    rows = pl.read_csv(shared / "address" / "localdata_vet_half.csv", infer_schema=False)
    lists: dict[str, Any] = {"vet_road": rows["도로명전체주소"], "vet_lot": rows["소재지전체주소"]}
    for name in ("test", "test3", "gb_offices"):
        lines = (shared / "address" / f"gisman_{name}.txt").read_text(encoding="utf-8").splitlines()
        lists[name] = pl.Series([line for line in lines if not line.startswith("#")], dtype=pl.String)
    for name, addresses in lists.items():
        found = parsed(addresses.filter(addresses.str.strip_chars() != ""))
        numbered = (found["main"].is_not_null() | found["lot_main"].is_not_null()).mean()
        assert abs(numbered - SHARES[name]) <= 0.002, name
        if name.startswith("vet"):
            check_plain_numbers(found)


def check_plain_numbers(read: pl.DataFrame) -> None:
    plain = plain_numbers(read.select("address").lazy()).select("building", "lot").collect()
    both = read.select("main", "lot_main").hstack(plain)
    assert both.filter(pl.col("building") != pl.col("main").fill_null(0)).is_empty()
    assert both.filter(pl.col("lot") != pl.col("lot_main").fill_null(0)).is_empty()
    numbered = both.filter(pl.col("main").is_not_null() | pl.col("lot_main").is_not_null())
    assert numbered.select(pl.coalesce("building", "lot").count()).item() > 0.9 * numbered.height
