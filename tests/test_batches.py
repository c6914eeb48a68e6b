"""Values found by key for a batch of rows: what a dictionary says, and nothing that was found for other rows."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from bansong import LocalEngine
from bansong.engine.address.batches import ROW, Index, remember_last
from conftest import SAMPLE
from examples import examples

KEYS = st.lists(st.integers(0, 40), max_size=60).map(sorted)
ASKED = st.lists(st.none() | st.integers(0, 45), max_size=60)


@dataclass
class Source:
    name: str


def rows_of(**columns: list[int | None]) -> pl.DataFrame:
    schema = dict.fromkeys(columns, pl.UInt64)
    return pl.DataFrame(columns, schema=schema).with_row_index(ROW)


@examples(100)
@given(KEYS, ASKED)
def test_every_value_of_a_key_is_found_once(keys: list[int], asked: list[int | None]) -> None:
    """Keys that occur several times, once or not at all, and rows without a key: as a loop over all of them finds."""
    index = Index(pl.Series(keys, dtype=pl.UInt64))
    wanted = [(row, key, place) for row, key in enumerate(asked) for place, other in enumerate(keys) if key == other]
    found = index.find(rows_of(key=asked), pl.col("key"), "place", ["key"])
    assert sorted(found.iter_rows()) == wanted
    given_keys = [key for key in asked if key is not None]
    held = index.holds(pl.Series(given_keys, dtype=pl.UInt64))
    assert held.to_list() == [key in keys for key in given_keys]


@examples(100)
@given(KEYS, ASKED, ASKED)
def test_every_value_between_two_keys_is_found_once(
    keys: list[int], first: list[int | None], last: list[int | None]
) -> None:
    """Both bounds belong to the range; a row without one of them finds nothing."""
    bounds = list(zip(first, last, strict=False))
    wanted = [
        (row, place)
        for row, (low, high) in enumerate(bounds)
        for place, key in enumerate(keys)
        if low is not None and high is not None and low <= key <= high
    ]
    rows = rows_of(first=[low for low, _ in bounds], last=[high for _, high in bounds])
    found = Index(pl.Series(keys, dtype=pl.UInt64)).between(rows, pl.col("first"), pl.col("last"), "place")
    assert sorted(found.iter_rows()) == wanted


def test_what_was_found_is_recalled_only_for_the_same_rows_of_the_same_source() -> None:
    """Equal rows, another source and another thread ask anew; the rows that were asked for last are not asked again."""
    asked = []

    @remember_last
    def find(source: Source, rows: pl.DataFrame) -> pl.DataFrame:
        asked.append(source.name)
        return rows.with_columns(pl.lit(source.name).alias("of"))

    one, other, rows = Source("one"), Source("other"), rows_of(key=[1])
    assert find(one, rows) is find(one, rows)
    assert find(other, rows)["of"].to_list() == ["other"]
    assert find(other, rows_of(key=[2]))["key"].to_list() == [2]
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(find, one, rows).result()["of"].to_list() == ["one"]
    assert asked == ["one", "other", "other", "one"]


def test_two_gazetteers_asked_in_turn_answer_as_each_alone() -> None:
    """What is kept of one gazetteer (its roads, what its regions' words mean) is never said of another."""
    rows = pl.LazyFrame({"b_no": ["1248100998"] * 2, "address": ["세종 아름서길 22", "경기 수원시 영통구 삼성로 129"]})
    with_gazetteer, without = LocalEngine(gazetteer=SAMPLE / "gazetteer.parquet"), LocalEngine()
    alone = [engine.verify(rows).collect() for engine in (with_gazetteer, without)]
    in_turn = [engine.verify(rows).collect() for engine in (with_gazetteer, without) * 2]
    assert all(found.equals(alone[place % 2]) for place, found in enumerate(in_turn))
