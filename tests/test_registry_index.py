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

_MANY = 32_768
REGISTRY = SAMPLE / "registry.parquet"


def numbers_of(kind: str) -> list[int]:
    """Sorted numbers: none, one, sparse ones with the ends of the range, or dense ones of which many begin alike."""
    dice = random.Random(3)
    return {
        "none": [],
        "one": [1248100998],
        "sparse": sorted({0, 9_999_999_999, *(dice.randrange(10**10) for _ in range(500))}),
        "alike": sorted({1_248_100_000 + dice.randrange(5_000) for _ in range(3_000)}),
    }[kind]


@pytest.mark.parametrize("kind", ["none", "one", "sparse", "alike"])
def test_few_and_many_numbers_are_found_where_they_stand(kind: str) -> None:
    """A search and the slots say the same: the place, and null for what is null or not there."""
    numbers, dice = numbers_of(kind), random.Random(4)
    places = {number: place for place, number in enumerate(numbers)}
    near = [dice.choice(numbers) // 10 * 10 + dice.randrange(10) for _ in range(9_000)] if numbers else []
    asked = [*numbers, *near, None, *(dice.randrange(10**10) for _ in range(_MANY))]
    dice.shuffle(asked)
    index, wanted = KeyIndex(pl.Series(numbers, dtype=pl.UInt64)), [places.get(number) for number in asked]  # type: ignore[arg-type]
    assert index.find(pl.Series(asked[:100], dtype=pl.UInt64)).to_list() == wanted[:100]
    found = index.find(pl.Series(asked, dtype=pl.UInt64))
    assert (found.to_list(), found.dtype) == (wanted, pl.UInt32)
    assert index.find(pl.Series(asked[:100], dtype=pl.UInt64)).to_list() == wanted[:100]


def test_batches_as_small_as_those_of_a_file_have_slots_soon() -> None:
    """A CSV file comes in batches of some thousand rows: what is asked adds up, and nobody goes on searching."""
    numbers = numbers_of("alike")
    index = KeyIndex(pl.Series(numbers, dtype=pl.UInt64))
    assert [index.find(pl.Series([number], dtype=pl.UInt64)).item() for number in numbers] == list(range(len(numbers)))
    assert index._slots is not None


def test_numbers_that_all_have_one_remainder_are_found() -> None:
    """All but one are not in their slot: found by search, and what has the remainder and is not there is null."""
    size = KeyIndex(pl.Series(range(100), dtype=pl.UInt64))._size
    index = KeyIndex(pl.Series([size * place for place in range(100)], dtype=pl.UInt64))
    asked = pl.Series([size * place for place in range(101)], dtype=pl.UInt64)
    assert index.find(asked).to_list() == [*range(100), None]


def test_threads_that_ask_at_once_get_the_same() -> None:
    """One makes the table while the others search, and nobody waits or sees half of it."""
    numbers = numbers_of("sparse")
    index = KeyIndex(pl.Series(numbers, dtype=pl.UInt64))
    asked = pl.Series(numbers * (_MANY // len(numbers) + 1), dtype=pl.UInt64)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: index.find(asked), range(16)))
    assert all(places.equals(found[0]) for places in found)
    assert found[0].null_count() == 0


def test_a_registry_is_read_once(tmp_path: Path) -> None:
    """Whoever asks again asks the columns that are held: the file may be gone by then."""
    path = tmp_path / "r.parquet"
    path.write_bytes(REGISTRY.read_bytes())
    engine = bs.LocalEngine(path)
    rows = pl.LazyFrame({"b_no": ["1248100998"], "address": ["경기도 수원시 영통구 삼성로 129"]})
    first = engine.verify(rows).collect()
    path.unlink()
    assert engine.verify(rows).collect().equals(first)


def test_a_registry_out_of_order_is_refused(tmp_path: Path) -> None:
    """Its numbers are searched: a file whose rows somebody moved is an error, and no source of wrong answers."""
    path = tmp_path / "r.parquet"
    known = pl.read_parquet(REGISTRY)
    moved = pl.concat([known.reverse(), known]).unique("b_no", maintain_order=True)
    assert not moved["b_no"].is_sorted()
    moved.write_parquet(path, metadata=dict(pl.read_parquet_metadata(REGISTRY)))
    with pytest.raises(RegistryError, match=r"r\.parquet: the registry is damaged, build it again"):
        bs.verify("1248100998", registry=Registry.open(path))


def test_a_registry_that_is_replaced_while_it_is_used_gives_no_columns_of_two_files(tmp_path: Path) -> None:
    """Its columns are read when they are first needed: one of another file would belong to other numbers."""
    path, known = tmp_path / "r.parquet", pl.read_parquet(REGISTRY)
    path.write_bytes(REGISTRY.read_bytes())
    registry = Registry.open(path)
    registry.attach(pl.LazyFrame({"key": known["b_no"]}), "key").select("biz_status").collect()
    registry._held.pop("biz_status")  # as if nobody had asked for it yet
    about = dict(pl.read_parquet_metadata(REGISTRY))
    about["bizverify.registry"] = about["bizverify.registry"].replace(registry.version, "2026-11-22-newer")
    known.write_parquet(path, metadata=about)
    with pytest.raises(RegistryError, match=r"replaced by version 2026-11-22-newer while version .* was in use"):
        bs.verify("1248100998", registry=registry)


def test_a_registry_goes_to_another_process_without_what_was_read_of_it() -> None:
    """A pool of processes gets the object by pickling it; each reads the file itself."""
    registry = Registry.open(REGISTRY)
    asked = ("1248100998", "삼성전자", "경기도 수원시 영통구 삼성로 129")
    first = bs.verify(*asked, registry=registry)
    other = pickle.loads(pickle.dumps(registry))
    assert other == registry
    assert bs.verify(*asked, registry=other) == first


def test_a_source_is_as_fresh_as_the_day_in_korea_on_which_it_was_changed(tmp_path: Path) -> None:
    """A list that is saved at half past eight in the morning is of that day, and in UTC of the day before."""
    source = write(tmp_path / "s.csv", "b_no,상태\n1248100998,계속사업자\n")
    saved = datetime(2026, 3, 2, 8, 30, tzinfo=SEOUL).timestamp()
    os.utime(source, (saved, saved))
    bs.build_registry([source], tmp_path / "r.parquet")
    assert pl.read_parquet(tmp_path / "r.parquet")["as_of"].to_list() == [date(2026, 3, 2)]


def test_a_status_of_a_strange_day_is_answered(tmp_path: Path) -> None:
    """A day before the first year, which a source may say by mistake, is no day; nor does it end a run of its own."""
    path = tmp_path / "r.parquet"
    rows = pl.LazyFrame({"b_no": ["1248100998"], "address": ["서울 중구 세종대로 110"]})
    bs.build_registry([write(tmp_path / "s.csv", "b_no,상태,as_of\n1248100998,계속사업자,-0221-09-04\n")], path)
    assert bs.LocalEngine(path).verify(rows).collect()["biz_status"].to_list() == ["active"]
    early = pl.read_parquet(path).with_columns(as_of=pl.Series([-800_000], dtype=pl.Int32).cast(pl.Date))
    early.write_parquet(path, metadata=dict(pl.read_parquet_metadata(path)))
    assert bs.LocalEngine(path).verify(rows).collect()["biz_status"].to_list() == ["active"]
