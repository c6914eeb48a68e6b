"""Spark answers as one machine does, row by row. Not in the default suite (``pytest -m scale``): it starts a JVM."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import bansong as bs
from bansong.errors import UsageError
from conftest import NOTHING_CHECKED, ROOT, SAMPLE
from distributed_worker import look_into_worker
from test_distributed import TODAY, customers

if shutil.which("java") is None:
    pytest.skip("Spark needs Java, and there is no `java` on this machine", allow_module_level=True)
pyspark = pytest.importorskip("pyspark", reason='Spark is not installed: pip install "bansong[spark]"')

pytestmark = [
    pytest.mark.scale,
    NOTHING_CHECKED,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::FutureWarning"),
]

ROWS = int(os.environ.get("ROWS", "200000"))
FILES: dict[str, Any] = {name: SAMPLE / f"{name}.parquet" for name in ("registry", "gazetteer")}


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "4",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


def spread(session: Any, folder: Path, frame: pl.DataFrame, parts: int) -> Any:
    """The frame as Spark reads it: a Parquet folder of so many files."""
    rows = -(-frame.height // parts)
    (folder / "in").mkdir()
    for part in range(parts):
        frame.slice(part * rows, rows).write_parquet(folder / "in" / f"{part}.parquet")
    return session.read.parquet(str(folder / "in"))


def test_spark_answers_as_one_machine_does(session: Any, tmp_path: Path) -> None:
    from bansong.distributed import spark

    frame = customers(ROWS)
    wanted = bs.verify_frame(frame, **FILES, today=TODAY, labels=False)
    told = wanted["reasons"].list.join(" ")
    assert told.str.contains("[place +9]", literal=True).sum() > ROWS / 1000
    assert told.str.contains("[place +10]", literal=True).sum() > ROWS / 1000
    out = spark.enrich(spread(session, tmp_path, frame, 8), **FILES, today=TODAY, labels=False)
    assert out.columns == wanted.columns
    found = pl.DataFrame(out.toArrow()).sort("고객번호")
    assert found.height == frame.height
    assert found.equals(wanted)


def test_each_worker_process_opens_the_files_once(session: Any, tmp_path: Path) -> None:
    from bansong.distributed import spark, verify_batches

    frame, another_day = customers(8000), date(2026, 11, 20)  # so no earlier test has opened this engine
    verifier = verify_batches(frame.head(100), **FILES, today=another_day, labels=False)
    for path in verifier.engine.files:
        session.sparkContext.addFile(path)
    verifier = verifier.at(find_file=spark.find_shipped_file, place=spark.describe_partition)
    look = partial(look_into_worker, verifier)
    spread_out = spread(session, tmp_path, frame, 8).repartition(8)
    # the same processes, by its own way, with an engine that is another one
    spark.enrich(spread_out, **FILES, today=TODAY, labels=False, lang="ko").count()
    rows = spread_out.mapInArrow(look, "pid long, partition long, threads long, opened long, rows long").collect()
    assert sorted(row.partition for row in rows) == list(range(8))
    assert sum(row.rows for row in rows) == frame.height
    assert {row.threads for row in rows} == {1}
    assert {row.opened for row in rows} == {1}
    assert len({row.pid for row in rows}) < len(rows)


def test_an_error_names_its_partition(session: Any, tmp_path: Path) -> None:
    from bansong.distributed import spark

    registry = shutil.copy(SAMPLE / "registry.parquet", tmp_path / "other.parquet")
    out = spark.enrich(spread(session, tmp_path, customers(100), 2), registry=registry, labels=False, ship_files=False)
    Path(registry).unlink()
    with pytest.raises(pyspark.errors.PythonException, match=r"partition \d+ of stage \d+.*there is no such registry"):
        out.collect()


def test_engines_that_buy_are_refused(session: Any) -> None:
    from bansong.distributed import spark

    with pytest.raises(UsageError, match="buys lookups"):
        spark.enrich(session.createDataFrame([("1248100998",)], "b_no string"), engine="batch")
