"""Parquet files keep their types, metadata and codecs; what is no whole Parquet file is refused."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bansong as bs
from bansong.errors import InputError
from bansong.tables.detect import open_table, write_table
from bansong.tables.table import Enriched
from conftest import NINE
from examples import examples

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

N = "1248100998"
SEOUL = dt.timezone(dt.timedelta(hours=9))
COLUMNS: dict[str, tuple[list[Any], pa.DataType]] = {
    "decimal": ([decimal.Decimal("1.10"), None], pa.decimal128(20, 2)),
    "category": (["a", "b"], pa.dictionary(pa.int8(), pa.string())),
    "ordered": (["b", None], pa.dictionary(pa.int32(), pa.string(), ordered=True)),
    "zoned": ([dt.datetime(2024, 1, 1, tzinfo=SEOUL), None], pa.timestamp("us", "Asia/Seoul")),
    "nanoseconds": ([1, 2], pa.timestamp("ns")),
    "seconds": ([1, 2], pa.timestamp("s")),
    "date": ([dt.date(2024, 1, 1), None], pa.date32()),
    "old date": ([0, 86_400_000], pa.date64()),
    "time": ([1, 2], pa.time32("ms")),
    "took": ([1, 2], pa.duration("ms")),
    "small": ([1, 255], pa.uint8()),
    "large": ([1, 2**64 - 1], pa.uint64()),
    "half": ([0.5, None], pa.float32()),
    "fixed": ([b"ab", b"cd"], pa.binary(2)),
    "bytes": ([b"\xff", None], pa.binary()),
    "map": ([[("a", 1)], []], pa.map_(pa.string(), pa.int64())),
    "pair": ([[1, 2], [3, 4]], pa.list_(pa.int8(), 2)),
    "lists": ([["a", None], []], pa.list_(pa.string())),
    "struct": ([{"x": 1, "y": [1.5]}, None], pa.struct({"x": pa.int16(), "y": pa.list_(pa.float64())})),
    "nothing": ([None, None], pa.null()),
    "large text": (["a", "b"], pa.large_string()),
}


def enriched(path: Path, output: str = "out.parquet") -> Path:
    bs.enrich(path, path.with_name(output))
    return path.with_name(output)


def written(source: Path, *places: int) -> Path:
    """The file with these columns of it (or all) and one of ours, by the writer alone."""
    with open_table(source) as table:
        rows = table.frame.with_columns(grade=pl.col("c0"))
        layout = [(f"c{place}", table.headers[place]) for place in places or range(len(table.headers))]
        result = Enriched(table, rows, (*layout, ("grade", "grade")), rows.select(pl.len()))
        tally, _ = write_table(result, source.with_name("out.parquet"), table.format)
    assert tally.item() == pq.read_metadata(source).num_rows
    return source.with_name("out.parquet")


def everything() -> pa.Table:
    """A table with a column of every type, a field that is never null and one with metadata."""
    arrays = {"b_no": pa.array([N, None]), **{name: pa.array(*made) for name, made in COLUMNS.items()}}
    fields = [pa.field(name, array.type) for name, array in arrays.items()]
    fields[0] = fields[0].with_metadata({"title": "사업자번호"})
    fields.append(pa.field("never null", pa.int32(), nullable=False))
    return pa.table([*arrays.values(), pa.array([1, 2], pa.int32())], pa.schema(fields, {"mine": "x", "geo": "{}"}))


def test_every_type_and_field_and_the_metadata_are_kept(tmp_path: Path) -> None:
    source = tmp_path / "in.parquet"
    pq.write_table(everything(), source)
    before, after = pq.read_table(source), pq.read_table(enriched(source))
    assert after.schema.metadata == before.schema.metadata == {b"mine": b"x", b"geo": b"{}"}
    assert after.column_names == [*before.column_names, *NINE]
    for field in before.schema:
        assert after.schema.field(field.name).equals(field, check_metadata=True)
        assert after[field.name].combine_chunks().equals(before[field.name].combine_chunks())
    assert after.schema.field("reasons").type.value_type == pa.string()
    assert after.schema.field("bounce_prob").type == pa.float64()

    assert pq.read_table(enriched(tmp_path / "out.parquet", "twice.parquet")).equals(after, check_metadata=True)


def codecs_of(path: Path) -> dict[str, str]:
    group = pq.ParquetFile(path).metadata.row_group(0)
    return {group.column(place).path_in_schema: group.column(place).compression for place in range(group.num_columns)}


@pytest.mark.parametrize("codec", ["gzip", "none"])
def test_the_codec_is_kept(tmp_path: Path, codec: str) -> None:
    source = tmp_path / "in.parquet"
    pq.write_table(everything(), source, compression=codec)
    assert set(codecs_of(written(source)).values()) == set(codecs_of(source).values())


def test_each_column_keeps_its_codec_and_ours_have_the_usual_one(tmp_path: Path) -> None:
    source = tmp_path / "in.parquet"
    codecs = dict.fromkeys(everything().column_names, "zstd") | {"b_no": "gzip"}
    pq.write_table(everything(), source, compression=codecs)
    found = codecs_of(enriched(source))
    names = ("b_no", "decimal", "grade", "reasons.list.element")
    assert [found[name] for name in names] == ["GZIP", "ZSTD", "ZSTD", "ZSTD"]


@pytest.mark.parametrize("rows", [0, 1, 1_000, 6_001])
def test_rows_stay_beside_their_answers_whatever_the_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    for name, size in {"_GROUP": 2_500, "_BATCH": 640}.items():
        monkeypatch.setattr(f"bansong.tables.parquet.{name}", size)
    source = tmp_path / "in.parquet"
    numbers = [f"{1_000_000_000 + place}" for place in range(rows)]
    made = pa.schema({"b_no": pa.string(), "n": pa.int64()})
    pq.write_table(pa.table({"b_no": numbers, "n": list(range(rows))}, made), source, row_group_size=701)
    found = pl.read_parquet(written(source, 1, 0))
    assert found.columns == ["n", "b_no", "grade"]
    assert found["n"].to_list() == list(range(rows))
    assert found["grade"].to_list() == found["b_no"].to_list() == numbers


cells = {
    pl.String(): st.text(max_size=5),
    pl.Int8(): st.integers(-128, 127),
    pl.UInt64(): st.integers(0, 2**64 - 1),
    pl.Float32(): st.floats(width=32),
    pl.Float64(): st.floats(),
    pl.Boolean(): st.booleans(),
    pl.Binary(): st.binary(max_size=4),
    pl.Date(): st.dates(),
    pl.Datetime("us"): st.datetimes(),
    pl.Datetime("ms", "Asia/Seoul"): st.integers(-(10**12), 10**12).map(
        lambda n: dt.datetime.fromtimestamp(n / 1000, SEOUL)
    ),
    pl.Duration("us"): st.timedeltas(dt.timedelta(-1000), dt.timedelta(1000)),
    pl.Time(): st.times(),
    pl.Decimal(20, 3): st.decimals(-(10**10), 10**10, places=3),
    pl.Enum(["a", "나"]): st.sampled_from(["a", "나"]),
    pl.Categorical(): st.sampled_from(["x", "y"]),
    pl.List(pl.Int16): st.lists(st.none() | st.integers(-9, 9), max_size=3),
    pl.Struct({"k": pl.String}): st.fixed_dictionaries({"k": st.none() | st.text(max_size=3)}),
}
kinds = st.lists(st.sampled_from(list(cells)), min_size=1, max_size=4)


@examples(100)
@given(st.data(), kinds, st.integers(0, 4))
def test_a_frame_of_any_types_is_the_same_after_it_was_written(
    tmp_path: Path, data: st.DataObject, types: list[pl.DataType], rows: int
) -> None:
    columns = {
        f"x{place}": pl.Series([data.draw(st.none() | cells[dtype]) for _ in range(rows)], dtype=dtype)
        for place, dtype in enumerate(types)
    }
    frame = pl.DataFrame({"b_no": pl.Series([N] * rows, dtype=pl.String), **columns})
    frame.write_parquet(tmp_path / "in.parquet")
    found = pl.read_parquet(written(tmp_path / "in.parquet"))
    assert found.select(frame.columns).equals(frame)
    assert found.select(frame.columns).schema == frame.schema


# ── real programs ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("index", [None, pd.Index([5, 7], name="idx"), pd.RangeIndex(2, 6, 2)])
def test_what_pandas_writes_pandas_reads_with_its_index_and_types(tmp_path: Path, index: Any) -> None:
    frame = pd.DataFrame(
        {
            "사업자번호": [N, "2208162517"],
            "kind": pd.Categorical(["a", "b"]),
            "when": pd.to_datetime(["2024-01-01", "2024-01-02"]).tz_localize("Asia/Seoul"),
            "n": pd.array([1, None], dtype="Int64"),
        }
    )
    if index is not None:
        frame.index = index
    frame.to_parquet(tmp_path / "in.parquet")
    found = pd.read_parquet(enriched(tmp_path / "in.parquet"))
    pd.testing.assert_frame_equal(found[frame.columns], frame)
    assert list(found.columns) == [*frame.columns, *NINE]


def test_pandas_reads_a_file_that_lost_the_column_of_its_index(tmp_path: Path) -> None:
    pd.DataFrame({"b_no": [N], "x": [1]}, index=pd.Index(["i"], name="idx")).to_parquet(tmp_path / "in.parquet")
    assert pd.read_parquet(written(tmp_path / "in.parquet", 0))["b_no"].tolist() == [N]


def test_old_timestamps_are_warned_of(tmp_path: Path) -> None:
    table = pa.table({"b_no": [N], "t": pa.array([dt.datetime(9999, 1, 1)], pa.timestamp("us"))})
    pq.write_table(table, tmp_path / "in.parquet", use_deprecated_int96_timestamps=True)
    with open_table(tmp_path / "in.parquet") as table:
        assert any("'t'" in note and "INT96" in note for note in table.notes)
    found = pq.read_table(written(tmp_path / "in.parquet"))
    assert found["t"].to_pylist() == [dt.datetime(9999, 1, 1)]


def test_other_formats_become_parquet_with_a_list_and_a_float(tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text(json.dumps([{"b_no": N, "o": {"k": [1]}}]))
    found = pq.read_schema(enriched(tmp_path / "in.json"))
    assert (found.field("bounce_prob").type, pa.types.is_large_list(found.field("reasons").type)) == (
        pa.float64(),
        True,
    )


def test_a_list_under_the_header_of_a_role_is_named(tmp_path: Path) -> None:
    pl.DataFrame({"b_no": [N], "address": [["세종대로 110"]]}).write_parquet(tmp_path / "in.parquet")
    with open_table(tmp_path / "in.parquet") as table:
        assert any("column 'address' holds List(String), so it is not used" in note for note in table.notes)


# ── hostile ──────────────────────────────────────────────────────────────────────────────────────────────────────


def refused(source: Path) -> InputError:
    with pytest.raises(InputError) as caught, open_table(source) as table:
        table.frame.collect()
    return caught.value


def test_what_is_no_whole_file_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "in.parquet"
    pq.write_table(everything(), source)
    whole = source.read_bytes()
    for data in (whole[:-20], whole[: len(whole) // 2], b"PAR1" * 10, whole[:-8] + b"\xff\xff\xff\x7fPAR1", b"PAR1"):
        source.write_bytes(data)
        assert refused(source).code == "parquet.parquet_unreadable"
    source.write_bytes(b"PAR1" + b"\x00" * 100 + b"PARE")
    assert refused(source).code == "parquet.parquet_encrypted"
    wide = pa.array([decimal.Decimal("1.10")], pa.decimal256(50, 2))
    pq.write_table(pa.table({"b_no": [N], "w": wide}), source)
    assert (refused(source).code, refused(source).fields["name"]) == ("parquet.column_type_unusable", "w")


def test_a_row_group_that_claims_more_than_its_bytes_can_mean_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BANSONG_LIMITS", "cells=1000")
    many = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), 1_000_000), pa.array([N]))
    pq.write_table(pa.table({"b_no": many}), tmp_path / "in.parquet", row_group_size=len(many))
    error = refused(tmp_path / "in.parquet")
    assert (error.code, error.fields["place"]) == ("limits.row_group_too_large", 1)
    monkeypatch.setenv("BANSONG_LIMITS", "inflated=10")
    assert "BANSONG_LIMITS=inflated=" in str(refused(tmp_path / "in.parquet"))
    monkeypatch.setenv("BANSONG_LIMITS", "cells=1000")
    assert "BANSONG_LIMITS=cells=" in str(error)


def test_names_that_are_blank_or_repeat_are_headers_like_others(tmp_path: Path) -> None:
    columns = [pa.array(["124-81-00998"]), pa.array(["x"]), pa.array([1]), pa.array([2])]
    pq.write_table(pa.Table.from_arrays(columns, names=["b_no", "", "n", "n"]), tmp_path / "in.parquet")
    with open_table(tmp_path / "in.parquet") as table:
        assert table.headers == ("b_no", "", "n", "n")
        assert table.frame.select("c3", "c1").collect().rows() == [(2, "x")]
    found = pq.ParquetFile(written(tmp_path / "in.parquet")).read()
    assert found.column_names[:4] == ["b_no", "", "n", "n"]
    assert [found.column(place)[0].as_py() for place in range(4)] == ["124-81-00998", "x", 1, 2]


READING = """
import sys
from pathlib import Path
from bansong.errors import BansongError
from bansong.tables.detect import open_table, reading
for path in sys.argv[1:]:
    try:
        with open_table(Path(path)) as table, reading(table):
            table.frame.collect()
        print("read")
    except BansongError:
        print("refused")
"""


@pytest.mark.parametrize("times", [20, pytest.param(400, marks=pytest.mark.fuzz)])
def test_damaged_bytes_and_unknown_codecs_never_kill_the_process(tmp_path: Path, times: int) -> None:
    """Pyarrow ends the process when it is asked for a codec's name; so does polars over some damaged pages."""
    frame = pl.DataFrame({"b_no": [N] * 500, "x": [str(place) for place in range(500)]})
    frame.write_parquet(tmp_path / "in.parquet", compression="zstd")
    whole, dice = (tmp_path / "in.parquet").read_bytes(), random.Random(1)
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    for at in range(footer, len(whole) - 8):
        if whole[at : at + 2] == b"\x15\x0c":  # ZSTD is 6, 12 as a zigzag number
            (tmp_path / f"codec{at}.parquet").write_bytes(whole[:at] + b"\x15\x7e" + whole[at + 2 :])
    for number in range(times):
        data = bytearray(whole)
        for _ in range(dice.randint(1, 4)):
            data[dice.randrange(4, len(data) - 4)] = dice.randrange(256)
        (tmp_path / f"damaged{number}.parquet").write_bytes(data)
    paths = sorted(tmp_path.glob("*d*.parquet"))
    done = subprocess.run([sys.executable, "-c", READING, *paths], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-1500:]
    said = done.stdout.split()
    assert (len(said), set(said[:1])) == (len(paths), {"refused"})
