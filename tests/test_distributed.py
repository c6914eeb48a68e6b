"""The local engine in workers: it answers as on one machine, row by row, and says where it fails."""

from __future__ import annotations

import pickle
import random
import shutil
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import date
from multiprocessing import get_context
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

import bansong as bs
from bansong.base.schema import ADDED_COLUMNS
from bansong.distributed import BatchVerifier, verify_batches
from bansong.distributed.batches import ADDED_SCHEMA, gather_batches
from bansong.engine.local import LocalEngine
from bansong.engine.overlays import HISTORY_SCHEMA, address_key
from bansong.engine.records import ALIKE, CROWD, CROWDED, SEVERAL, records, with_cross_row_features, with_given_features
from bansong.errors import AccountingError, InputError, RegistryError, UsageError
from bansong.tables import frames
from bansong.tables.columns import choose_columns
from conftest import NOTHING_CHECKED, SAMPLE
from customers import KEY, numbers
from distributed_worker import verify_parts

pytestmark = [NOTHING_CHECKED, pytest.mark.filterwarnings("ignore:no address column:UserWarning")]

TODAY = date(2026, 11, 23)
ROWS = 2500


def customers(rows: int = ROWS, seed: int = 5) -> pl.DataFrame:
    """A list with crowded addresses in several spellings, numbers with several addresses, and rows that say little."""
    dice = random.Random(seed)
    real = pl.read_csv(SAMPLE / "customers.csv", infer_schema=False)
    addresses = [*real["주소"].drop_nulls().unique().sort(), "", "-", "서울 강남구 테헤란로 1**", None]
    addresses += [f"서울특별시 강남구 테헤란로 {1 + house}, {floor}층" for house in range(40) for floor in range(3)]
    few = [
        "서울특별시 강남구 테헤란로 152, 3층",
        "서울특별시 강남구 테헤란로152 3층",
        "서울특별시 강남구 테헤란로 152 (3층)",
    ]
    known = [*real["사업자등록번호"], *numbers(rows // 2), "1234567890", "", None, "합계"]
    known += [f"{one[:3]}-{one[3:5]}-{one[5:]}" for one in known[300:600] if one and len(one) == 10]
    return pl.DataFrame(
        {
            "고객번호": [f"C{place:06}" for place in range(rows)],
            "사업자등록번호": [dice.choice(known) for _ in range(rows)],
            "상호": [dice.choice(["상사", "주식회사 한빛", "", None]) for _ in range(rows)],
            "주소": [dice.choice(few) if dice.random() < 0.02 else dice.choice(addresses) for _ in range(rows)],
        },
        schema_overrides={"사업자등록번호": pl.String},
    )


def marks_of(keys: pa.Table) -> dict[str, list[bool]]:
    """What the whole file tells of each row, by its keys alone and the rule as the docs have it."""
    rows = keys.to_pylist()
    alike, crowds, places = defaultdict(set), defaultdict(set), defaultdict(set)
    for row in rows:
        if row["place"] is not None and row["number"] is not None:
            alike[row["place"]].add(row["number"])
    for row in rows:
        if len(alike[row["place"]]) >= ALIKE and row["key"] is not None and row["business"] is not None:
            crowds[row["key"]].add(row["business"])
        for kind in ("building", "lot"):
            if row["business"] is not None and row[kind] is not None:
                places[row["business"], kind].add(row[kind])
    return {
        "bv_crowded": [len(alike[row["place"]]) >= ALIKE and len(crowds[row["key"]]) >= CROWD for row in rows],
        "bv_several_addresses": [
            any(len(places[row["business"], kind]) > 1 for kind in ("building", "lot")) for row in rows
        ],
    }


def with_marks(frame: pl.DataFrame, verifier: BatchVerifier) -> pa.Table:
    """The frame with what a cluster finds in the whole of it."""
    keys = verifier.for_keys()
    assert keys is not None
    narrow = frame.select(keys.reader.headers).to_arrow()
    found = pa.Table.from_batches(keys.map_keys(narrow.to_batches(max_chunksize=700)))
    return frame.with_columns(pl.Series(name, marks) for name, marks in marks_of(found).items()).to_arrow()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("reference")
    return {name: shutil.copy(SAMPLE / f"{name}.parquet", folder) for name in ("registry", "gazetteer")}


@pytest.mark.process
def test_a_spawned_worker_answers_as_one_machine_does(files: dict[str, str]) -> None:
    """In batches, with what the whole file tells handed in: every cell is the same, rows are in their order.

    The files are opened once a process (they are gone behind the first batch), polars has as many threads as its task.
    """
    frame, options = customers(), {"today": TODAY, "labels": False}
    wanted = bs.verify_frame(frame, **files, **options)  # type: ignore[arg-type]
    told = wanted["reasons"].list.join(" ")
    assert told.str.contains("[place +9]", literal=True).sum() > 20
    assert told.str.contains("[place +10]", literal=True).sum() > 20
    alone = verify_batches(frame.head(0), **files, **options)  # type: ignore[arg-type]
    marked = with_marks(frame, alone)
    verifier = verify_batches(marked.slice(0, 100), **files, **options)  # type: ignore[arg-type]
    parts = [marked.slice(first, 401) for first in range(0, marked.num_rows, 401)]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        worked = pool.submit(verify_parts, pickle.dumps(verifier), parts, list(files.values())).result()
    assert pl.DataFrame(pa.concat_tables(worked["answers"])).equals(wanted)
    assert [answer.num_rows for answer in worked["answers"]] == [part.num_rows for part in parts]
    assert (worked["opened"], worked["loaded_before"], worked["threads"]) == (1, False, 1)


def test_what_is_found_by_keys_is_what_one_machine_finds() -> None:
    """The keys of single rows, grouped by the documented rule, find the same rows as the engine's own passes."""
    for seed in range(2):
        frame = customers(1000, seed)
        table = frames.read(frame)
        rows = records(table, choose_columns(table, ("b_no", "name", "address")).columns)
        own = with_cross_row_features(rows).select(CROWDED, SEVERAL).collect()
        marked = frames.read(with_marks(frame, verify_batches(frame.head(0), labels=False)))
        given = marked.frame.select("c1", b_no="c1", address="c3", crowded="c4", several_addresses="c5")
        assert with_given_features(given, (CROWDED, SEVERAL)).select(CROWDED, SEVERAL).collect().equals(own)
        assert own[CROWDED].sum()
        assert own[SEVERAL].sum()


def test_engines_that_buy_are_refused_with_the_reason() -> None:
    options = bs.ServiceOptions(base_url="http://127.0.0.1:9", api_key=bs.ApiKey(KEY))
    for engine in ("verify", "batch", "hybrid", bs.ServiceEngine("batch", options), bs.HybridEngine(options)):
        with pytest.raises(UsageError, match=r"buys lookups, and a cluster runs a task again .* bansong\.enrich"):
            verify_batches(customers(10), engine=engine)  # type: ignore[arg-type]


def test_the_users_columns_are_the_same_arrays() -> None:
    rows = 50
    table = pa.table(
        {
            "사업자번호": numbers(rows),
            "kind": pa.array(["a", "b"] * 25).dictionary_encode(),
            "paid": pa.array(range(rows), pa.decimal128(38, 0)),
            "at": pa.array(range(rows), pa.timestamp("us", "Asia/Seoul")),
            "small": pa.array(range(rows), pa.int8()),
        }
    )
    out = verify_batches(table, labels=False)(table)
    assert out.schema == pa.schema([*table.schema, *ADDED_SCHEMA])
    assert out.select(table.column_names).equals(table)


def test_an_enriched_table_is_enriched_anew() -> None:
    frame = customers(200)
    once = bs.verify_frame(frame, labels=False, today=TODAY).select(
        "고객번호", *ADDED_COLUMNS, "사업자등록번호", "상호", "주소"
    )
    marked = with_marks(once, verify_batches(once.head(5), labels=False))
    again = verify_batches(marked.slice(0, 5), labels=False, today=TODAY)(marked)
    assert again.column_names == once.columns
    assert pl.DataFrame(again).equals(bs.verify_frame(once, labels=False, today=TODAY))


def test_small_batches_are_gathered_and_empty_ones_are_none() -> None:
    batch = pa.record_batch({"사업자번호": numbers(10)})
    verifier = verify_batches(pa.Table.from_batches([batch]), labels=False)
    assert [table.num_rows for table in gather_batches([batch] * 3)] == [30]
    assert list(verifier.map_batches([])) == []
    assert sum(out.num_rows for out in verifier.map_batches([batch.slice(0, 0), batch, batch])) == 20
    assert verifier(batch.slice(0, 0)).num_rows == 0


def test_a_history_travels_with_the_verifier() -> None:
    frame = pl.DataFrame({"사업자번호": numbers(2), "주소": ["서울특별시 강남구 테헤란로 152"] * 2})
    key = frame.select(address_key(pl.col("주소"))).item(0, 0)
    letter = {"b_no": int(numbers(1)[0]), "address_key": key, "outcome": "moved", "mailed": date(2026, 10, 1)}
    engine = LocalEngine(today=TODAY, history=pl.LazyFrame([letter], schema=HISTORY_SCHEMA))
    sent = pickle.loads(pickle.dumps(verify_batches(frame, engine=engine, labels=False)))
    answers = pl.DataFrame(sent(frame.to_arrow()))
    assert answers.equals(bs.verify_frame(frame, engine=engine, labels=False))
    assert answers["bounce_prob"][0] > answers["bounce_prob"][1]


def test_another_version_on_a_worker_is_refused_by_name(tmp_path: Path) -> None:
    """Half a cluster with last month's registry would answer half of the rows by it."""
    registry = shutil.copy(SAMPLE / "registry.parquet", tmp_path)
    verifier = verify_batches(customers(20), registry=registry, labels=False)
    source = tmp_path / "s.csv"
    source.write_text(f"b_no,biz_status\n{numbers(1)[0]},계속사업자\n", encoding="utf-8")
    bs.build_registry([source], registry, as_of="2026-11-01")
    with pytest.raises(
        RegistryError, match=r"process \d+ on .* rows 0 to 19 of it: .*registry\.parquet.* put the same file on"
    ):
        verifier(customers(20).to_arrow())


def test_a_relative_path_is_the_programs_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(SAMPLE / "registry.parquet", tmp_path)
    (tmp_path / "worker").mkdir()
    monkeypatch.chdir(tmp_path)
    verifier = verify_batches(customers(20), registry="registry.parquet", today=TODAY, labels=False)
    monkeypatch.chdir(tmp_path / "worker")
    assert verifier(customers(20).to_arrow()).num_rows == 20


def test_other_columns_than_the_samples_are_refused() -> None:
    verifier = verify_batches(customers(20), labels=False)
    with pytest.raises(
        InputError, match=r"partition 7, rows 0 to 4 of it: the columns are .*give verify_batches a sample"
    ):
        replace(verifier, place=_seventh)(customers(5).drop("상호").to_arrow())


def _seventh() -> str:
    return "partition 7"


def test_rows_that_an_engine_loses_end_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    verifier, table = verify_batches(customers(20), labels=False), customers(20).to_arrow()
    answer = LocalEngine.answer
    monkeypatch.setattr(LocalEngine, "answer", lambda self, rows: answer(self, rows).filter(pl.col("row_id") != 7))
    with pytest.raises(AccountingError, match=r"rows 0 to 19 of it: .*20 rows in, 19"):
        list(replace(verifier, place=_seventh).map_batches(table.to_batches()))


def test_what_goes_wrong_unforeseen_names_rows_and_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    verifier = replace(verify_batches(customers(20), labels=False), place=_seventh)

    def fail(self: LocalEngine, rows: pl.LazyFrame) -> pl.LazyFrame:
        raise MemoryError("realloc failed")

    monkeypatch.setattr(LocalEngine, "answer", fail)
    with pytest.raises(InputError, match=r"partition 7, rows 0 to 19 .*MemoryError: realloc failed.*verify_frame"):
        verifier(customers(20).to_arrow())
