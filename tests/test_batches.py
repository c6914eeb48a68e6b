"""Batches of addresses: gathered for the engine; what is kept of the last one is never said of other rows."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest

import bansong as bs
from bansong import LocalEngine
from bansong.base.messages import Lang
from bansong.engine.address import attach
from bansong.engine.address.batches import ROW, gather_rows, remember_last
from bansong.engine.address.gazetteer import Gazetteer
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


def test_gathered_rows_are_the_rows_of_the_query_in_their_order() -> None:
    """All of them in few batches, some columns, some rows; what the query raises is raised."""
    parts = [
        pl.DataFrame({"row": range(first, first + 7_000), "text": ["가나다"] * 7_000}) for first in (0, 7_000) * 10
    ]
    rows, sizes = pl.concat(parts, rechunk=False), list[int]()

    def seen(batch: pl.Series) -> pl.Series:
        sizes.append(len(batch))
        return batch

    gathered = gather_rows(rows.lazy())
    spied = pl.col("row").map_batches(seen, return_dtype=pl.Int64, is_elementwise=True)
    assert gathered.with_columns(spied).collect(engine="streaming").equals(rows)
    assert max(sizes) >= 100_000
    assert gathered.select("text").head(3).collect(engine="streaming")["text"].to_list() == ["가나다"] * 3
    even = pl.col("row") % 2 == 0
    assert gathered.filter(even).collect(engine="streaming").equals(rows.filter(even))
    with pytest.raises(pl.exceptions.InvalidOperationError):
        gather_rows(rows.lazy().with_columns(pl.col("text").cast(pl.Int64))).collect(engine="streaming")


def test_a_run_hands_its_rows_to_the_addresses_in_large_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Larger than those of the reader, and answered as alone."""
    sizes = list[int]()
    answer = attach._match_batch

    def counted(gazetteer: Gazetteer, lang: Lang, addresses: pl.Series) -> pl.Series:
        sizes.append(len(addresses))
        return answer(gazetteer, lang, addresses)

    monkeypatch.setattr(attach, "_match_batch", counted)
    address = pl.Series(["세종 아름서길 22", "경기 수원시 영통구 삼성로 129", "없는길 3"])
    count, turn = 60_000, pl.int_range(60_000, eager=True) % 3
    frame = pl.DataFrame({"b_no": ["124-81-00998"] * count, "address": address[turn], "note": ["x" * 150] * count})
    frame.write_csv(tmp_path / "in.csv")
    bs.enrich(tmp_path / "in.csv", tmp_path / "out.csv", gazetteer=SAMPLE / "gazetteer.parquet")
    found = pl.read_csv(tmp_path / "out.csv", infer_schema=False)["fixed_zipcode"]
    assert max(sizes) > count // 2
    assert found.n_unique() == 2
    assert found.equals(found.head(3)[turn])
