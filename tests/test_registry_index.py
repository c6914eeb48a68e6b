"""Numbers found by their places: for any batch the place that a dictionary says, read once, by any thread."""

from __future__ import annotations

import os
import pickle
import random
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime
from pathlib import Path

import polars as pl
import pytest

import bansong as bs
from bansong.base.schema import SEOUL
from bansong.engine.registry import KeyIndex, Registry
from bansong.errors import RegistryError
from conftest import SAMPLE, write

MANY = 32_768
REGISTRY = SAMPLE / "registry.parquet"
ROWS = pl.LazyFrame({"b_no": ["1248100998"], "address": ["경기도 수원시 영통구 삼성로 129"]})

DICE = random.Random(3)
NUMBERS = {
    "none": [],
    "one": [1248100998],
    "sparse": sorted({0, 9_999_999_999, *(DICE.randrange(10**10) for _ in range(500))}),
    "alike": sorted({1_248_100_000 + DICE.randrange(5_000) for _ in range(3_000)}),
}


def series(numbers: object) -> pl.Series:
    return pl.Series(numbers, dtype=pl.UInt64)


@pytest.mark.parametrize("kind", NUMBERS)
def test_few_and_many_numbers_are_found_where_they_stand(kind: str) -> None:
    numbers, dice = NUMBERS[kind], random.Random(4)
    places = {number: place for place, number in enumerate(numbers)}
    near = [dice.choice(numbers) // 10 * 10 + dice.randrange(10) for _ in range(9_000)] if numbers else []
    asked = [*numbers, *near, None, *(dice.randrange(10**10) for _ in range(MANY))]
    dice.shuffle(asked)
    index, wanted = KeyIndex(series(numbers)), [places.get(number) for number in asked]  # type: ignore[arg-type]
    for part in (slice(100), slice(None), slice(100)):
        found = index.find(series(asked[part]))
        assert (found.to_list(), found.dtype) == (wanted[part], pl.UInt32)


def test_numbers_that_all_have_one_remainder_are_found() -> None:
    size = KeyIndex(series(range(100)))._size
    index = KeyIndex(series([size * place for place in range(100)]))
    assert index.find(series([size * place for place in range(101)])).to_list() == [*range(100), None]


def test_threads_that_ask_at_once_get_the_same() -> None:
    numbers = NUMBERS["sparse"]
    index = KeyIndex(series(numbers))
    asked = series(numbers * (MANY // len(numbers) + 1))
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: index.find(asked), range(16)))
    assert all(places.equals(found[0]) for places in found)
    assert found[0].null_count() == 0


def test_a_registry_is_read_once_by_each_process(tmp_path: Path) -> None:
    path = tmp_path / "r.parquet"
    path.write_bytes(REGISTRY.read_bytes())
    registry = Registry.open(path)
    first = bs.LocalEngine(registry).verify(ROWS).collect()
    other = pickle.loads(pickle.dumps(registry))
    assert other == registry
    assert bs.LocalEngine(other).verify(ROWS).collect().equals(first)
    path.unlink()
    assert bs.LocalEngine(registry).verify(ROWS).collect().equals(first)


def test_a_registry_out_of_order_or_replaced_while_it_is_used_is_refused(tmp_path: Path) -> None:
    """Its numbers are searched, and a column that is read later, of another file, would be of other numbers."""
    path, known, about = tmp_path / "r.parquet", pl.read_parquet(REGISTRY), dict(pl.read_parquet_metadata(REGISTRY))
    known.reverse().write_parquet(path, metadata=about)
    with pytest.raises(RegistryError, match=r"r\.parquet: the registry is damaged, build it again"):
        bs.verify("1248100998", registry=Registry.open(path))
    path.write_bytes(REGISTRY.read_bytes())
    registry = Registry.open(path)
    registry.attach(pl.LazyFrame({"key": known["b_no"]}), "key").select("biz_status").collect()
    registry._held.pop("biz_status")  # as if nobody had asked for it yet
    about["bizverify.registry"] = about["bizverify.registry"].replace(registry.version, "2026-11-22-newer")
    known.write_parquet(path, metadata=about)
    with pytest.raises(RegistryError, match=r"replaced by version 2026-11-22-newer while version .* was in use"):
        bs.verify("1248100998", registry=registry)


def test_a_source_is_as_fresh_as_the_day_in_korea_on_which_it_was_changed(tmp_path: Path) -> None:
    """A list that is saved at half past eight in the morning is of that day, and in UTC of the day before."""
    source = write(tmp_path / "s.csv", "b_no,상태\n1248100998,계속사업자\n")
    saved = datetime(2026, 3, 2, 8, 30, tzinfo=SEOUL).timestamp()
    os.utime(source, (saved, saved))
    bs.build_registry([source], tmp_path / "r.parquet")
    assert pl.read_parquet(tmp_path / "r.parquet")["as_of"].to_list() == [date(2026, 3, 2)]


def test_a_status_of_a_strange_day_is_answered(tmp_path: Path) -> None:
    path = tmp_path / "r.parquet"
    bs.build_registry([write(tmp_path / "s.csv", "b_no,상태,as_of\n1248100998,계속사업자,-0221-09-04\n")], path)
    assert bs.LocalEngine(path).verify(ROWS).collect()["biz_status"].to_list() == ["active"]
    early = pl.read_parquet(path).with_columns(as_of=pl.Series([-800_000], dtype=pl.Int32).cast(pl.Date))
    early.write_parquet(path, metadata=dict(pl.read_parquet_metadata(path)))
    assert bs.LocalEngine(path).verify(ROWS).collect()["biz_status"].to_list() == ["active"]
