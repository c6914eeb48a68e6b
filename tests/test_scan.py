"""scan_verify: the columns are found by the first rows, and the rest is a part of the user's lazy query."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest

import bansong as bs
from bansong.base.schema import ADDED_COLUMNS
from bansong.errors import ColumnError, InputError, UsageError
from conftest import SAMPLE

NINE: Final = list(ADDED_COLUMNS)
INDEXES: Final[dict[str, Any]] = {
    "registry": SAMPLE / "registry.parquet",
    "gazetteer": SAMPLE / "gazetteer.parquet",
    "today": "2026-11-20",
    "labels": False,
}
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(scope="module")
def customers() -> pl.DataFrame:
    sample = pl.read_csv(SAMPLE / "customers.csv", infer_schema=False)
    return pl.concat([sample] * 10).with_row_index("순번")


def test_answers_and_columns_are_those_of_verify_frame(customers: pl.DataFrame) -> None:
    found = bs.scan_verify(customers.lazy(), **INDEXES)
    rows = found.collect(engine="streaming")
    assert rows.select(customers.columns).equals(customers)
    assert rows.equals(bs.verify_frame(customers, **INDEXES))


def test_reasons_that_need_all_rows_are_left_out() -> None:
    numbers = pl.read_parquet(SAMPLE / "registry.parquet")["b_no"].head(30).cast(pl.String)
    frame = pl.DataFrame({"사업자번호": numbers}).with_columns(주소=pl.lit("서울특별시 중구 세종대로 110"))
    eager, lazy = bs.verify_frame(frame, **INDEXES), bs.scan_verify(frame.lazy(), **INDEXES).collect()
    assert lazy.drop("reasons", "bounce_prob", "grade", "action").equals(
        eager.drop("reasons", "bounce_prob", "grade", "action")
    )
    assert all(len(few) < len(many) for few, many in zip(lazy["reasons"], eager["reasons"], strict=True))


def test_only_the_first_thousand_rows_are_read_before_the_query_runs(tmp_path: Path, customers: pl.DataFrame) -> None:
    read: list[int] = []

    def note(rows: pl.Series) -> pl.Series:
        read.append(len(rows))
        return rows

    counted = customers.lazy().with_columns(
        pl.col("순번").map_batches(note, return_dtype=pl.UInt32, is_elementwise=True)
    )
    query = bs.scan_verify(counted, **INDEXES)
    assert 0 < sum(read) <= 1000
    read.clear()
    query.sink_parquet(tmp_path / "out.parquet")
    assert sum(read) == customers.height
    assert pl.read_parquet(tmp_path / "out.parquet")["순번"].to_list() == customers["순번"].to_list()


def test_the_query_streams_and_takes_part_in_the_users_own(customers: pl.DataFrame) -> None:
    query = bs.scan_verify(customers.lazy(), **INDEXES | {"gazetteer": None})
    plan = query.show_graph(plan_stage="physical", engine="streaming", raw_output=True) or ""
    assert "in-memory-map" not in plan
    whole = query.collect()
    held = query.filter(pl.col("action") == "hold", pl.col("순번") > 500).select("순번", "action").collect()
    assert held.equals(whole.filter(pl.col("action") == "hold", pl.col("순번") > 500).select("순번", "action"))
    assert held.height
    assert query.head(3).collect().equals(whole.head(3))


def test_an_earlier_output_has_the_nine_once_and_keeps_the_users_own(customers: pl.DataFrame) -> None:
    once = bs.verify_frame(customers.head(50), **INDEXES, extra_columns=["match_level", "duplicate_of"])
    again = bs.scan_verify(once.lazy(), **INDEXES).collect()
    assert again.columns == once.columns
    assert again.select(*customers.columns, "row_status", "match_level").equals(
        once.select(*customers.columns, "row_status", "match_level")
    )
    assert again["duplicate_of"].null_count() == 50  # needs all rows
    own = customers.head(3).with_columns(grade=pl.lit("gold"))
    found = bs.scan_verify(own.lazy(), **INDEXES).collect()
    assert found["grade"].to_list() == ["gold"] * 3
    assert "grade_bv" in found.columns


def test_columns_may_be_named_and_a_sample_without_numbers_asks_for_that() -> None:
    late = pl.LazyFrame(
        {"코드": [None] * 1000 + ["124-81-00998"], "이름": ["가"] * 1001}, schema_overrides={"코드": pl.String}
    )
    with pytest.raises(ColumnError, match="columns"):
        bs.scan_verify(late, labels=False)
    found = bs.scan_verify(late.rename({"코드": "사업자번호"}), labels=False).collect()
    assert found["row_status"].to_list() == ["invalid"] * 1000 + ["verified"]


def test_what_cannot_be_lazy_is_refused() -> None:
    frame = pl.LazyFrame({"사업자번호": ["124-81-00998"]})
    for call, kind, code in (
        (lambda: bs.scan_verify(3), InputError, "files.not_a_table"),  # type: ignore[arg-type]
        (lambda: bs.scan_verify(frame, engine="verify"), UsageError, "options.lazy_buys_nothing"),
        (lambda: bs.scan_verify(frame, extra_columns=["duplicate_of"]), UsageError, "options.parameter_unknown"),  # type: ignore[call-arg]
    ):
        with pytest.raises(kind) as caught:
            call()
        assert caught.value.code == code
    engine = bs.LocalEngine(
        INDEXES["registry"],
        status=pl.DataFrame({"b_no": ["1248100998"], "biz_status": ["closed"], "as_of": ["2026-11-19"]}).with_columns(
            pl.col("as_of").str.to_date()
        ),
    )
    assert bs.scan_verify(frame, engine=engine, labels=False).collect()["biz_status"].to_list() == ["closed"]
