"""What is kept of the last batch of addresses is never said of other rows, another gazetteer or another thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import polars as pl

from bansong import LocalEngine
from bansong.engine.address.batches import ROW, remember_last
from conftest import SAMPLE


@dataclass
class Source:
    name: str


def rows_of(key: int) -> pl.DataFrame:
    return pl.DataFrame({"key": [key]}).with_row_index(ROW)


def test_what_was_found_is_recalled_only_for_the_same_rows_of_the_same_source() -> None:
    """Equal rows, another source and another thread ask anew; the rows that were asked for last are not asked again."""
    asked = []

    @remember_last
    def find(source: Source, rows: pl.DataFrame) -> pl.DataFrame:
        asked.append(source.name)
        return rows.with_columns(pl.lit(source.name).alias("of"))

    one, other, rows = Source("one"), Source("other"), rows_of(1)
    assert find(one, rows) is find(one, rows)
    assert find(other, rows)["of"].to_list() == ["other"]
    assert find(other, rows_of(2))["key"].to_list() == [2]
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
