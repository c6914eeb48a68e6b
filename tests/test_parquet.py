"""Parquet files keep their types, metadata and codecs; what is no whole Parquet file is refused."""

from __future__ import annotations

import datetime as dt
import decimal
import json
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


def test_an_enriched_file_is_replaced_by_the_same(tmp_path: Path) -> None:
    source = tmp_path / "in.parquet"
    pq.write_table(everything(), source)
    once = enriched(source)
    assert pq.read_table(enriched(once, "twice.parquet")).equals(pq.read_table(once), check_metadata=True)


def codecs_of(path: Path) -> dict[str, str]:
    group = pq.ParquetFile(path).metadata.row_group(0)
    return {group.column(place).path_in_schema: group.column(place).compression for place in range(group.num_columns)}


@pytest.mark.parametrize("codec", ["snappy", "gzip", "brotli", "lz4", "zstd", "none"])
def test_the_codec_is_kept(tmp_path: Path, codec: str) -> None:
    source = tmp_path / "in.parquet"
    pq.write_table(everything(), source, compression=codec)
    assert set(codecs_of(enriched(source)).values()) == set(codecs_of(source).values())


def test_each_column_keeps_its_codec(tmp_path: Path) -> None:
    source = tmp_path / "in.parquet"
    pq.write_table(
        everything(), source, compression=dict.fromkeys(everything().column_names, "zstd") | {"b_no": "gzip"}
    )
    found = codecs_of(enriched(source))
    assert (found["b_no"], found["decimal"], found["grade"], found["reasons.list.element"]) == (
        "GZIP",
        "ZSTD",
        "ZSTD",
        "ZSTD",
    )


@pytest.mark.parametrize("rows", [0, 1, 100_000, 600_001])
def test_rows_stay_beside_their_answers_whatever_the_row_groups(tmp_path: Path, rows: int) -> None:
    source = tmp_path / "in.parquet"
    numbers = [f"{1_000_000_000 + place}" for place in range(rows)]
    made = pa.schema({"b_no": pa.string(), "n": pa.int64()})
    pq.write_table(pa.table({"b_no": numbers, "n": list(range(rows))}, made), source, row_group_size=70_001)
    with open_table(source) as table:
        answers = table.frame.with_columns(grade=pl.col("c0"))
        layout = (("c1", "n"), ("c0", "b_no"), ("grade", "grade"))
        result = Enriched(table, answers, layout, answers.select(pl.len()))
        tally, _ = write_table(result, tmp_path / "out.parquet", table.format)
    found = pl.read_parquet(tmp_path / "out.parquet")
    assert (tally.item(), found.columns) == (rows, ["n", "b_no", "grade"])
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


@examples(30)
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
    found = pl.read_parquet(enriched(tmp_path / "in.parquet"))
    assert found.select(frame.columns).equals(frame)
    assert found.select(frame.columns).schema == frame.schema
    again = pl.read_parquet(enriched(tmp_path / "out.parquet", "again.parquet"))
    assert again.equals(found)


# ── real programs ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("index", [None, pd.Index([5, 7], name="idx"), pd.RangeIndex(2, 6, 2), pd.Index(["a", "b"])])
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
    with open_table(tmp_path / "in.parquet") as table:
        rows = table.frame.with_columns(grade=pl.lit("A"))
        layout = (("c0", "b_no"), ("grade", "grade"))
        result = Enriched(table, rows, layout, rows.select(pl.len()))
        write_table(result, tmp_path / "out.parquet", table.format)
    assert pd.read_parquet(tmp_path / "out.parquet")["b_no"].tolist() == [N]


def test_old_timestamps_are_warned_of(tmp_path: Path) -> None:
    table = pa.table({"b_no": [N], "t": pa.array([dt.datetime(9999, 1, 1)], pa.timestamp("us"))})
    pq.write_table(table, tmp_path / "in.parquet", use_deprecated_int96_timestamps=True)
    report = bs.enrich(tmp_path / "in.parquet", tmp_path / "out.parquet")
    assert any("'t'" in warning and "INT96" in warning for warning in report.warnings)
    assert pq.read_table(tmp_path / "out.parquet")["t"].to_pylist() == [dt.datetime(9999, 1, 1)]


def test_other_formats_become_parquet_with_a_list_and_a_float(tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text(json.dumps([{"b_no": N, "o": {"k": [1]}}]))
    found = pq.read_schema(enriched(tmp_path / "in.json"))
    assert (found.field("bounce_prob").type, pa.types.is_large_list(found.field("reasons").type)) == (
        pa.float64(),
        True,
    )


# ── nested roles ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_struct_under_the_header_of_a_role_is_named_and_kept(tmp_path: Path) -> None:
    frame = pl.DataFrame({"b_no": [N], "address": [{"road": "세종대로 110", "zip": "04524"}]})
    frame.write_parquet(tmp_path / "in.parquet")
    report = bs.enrich(tmp_path / "in.parquet", tmp_path / "out.parquet")
    said = "column 'address' holds objects and is not used; name the key that is the address: `columns={'address': '"
    assert f"{said}address.road'}}`" in report.warnings
    assert pl.read_parquet(tmp_path / "out.parquet")["address"].to_list() == frame["address"].to_list()
    with pytest.warns(UserWarning, match="column 'address' holds objects"):
        bs.verify_frame(frame)


def test_a_list_under_the_header_of_a_role_is_named(tmp_path: Path) -> None:
    pl.DataFrame({"b_no": [N], "address": [["세종대로 110"]]}).write_parquet(tmp_path / "in.parquet")
    report = bs.enrich(tmp_path / "in.parquet", tmp_path / "out.parquet")
    assert any("column 'address' holds List(String), so it is not used" in warning for warning in report.warnings)


# ── hostile ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_file_that_is_cut_or_has_a_wrong_footer_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "in.parquet"
    pq.write_table(everything(), source)
    whole = source.read_bytes()
    for data in (whole[:-20], whole[: len(whole) // 2], b"PAR1" * 10, whole[:-8] + b"\xff\xff\xff\x7fPAR1", b"PAR1"):
        source.write_bytes(data)
        with pytest.raises(InputError, match=r"in\.parquet: is not a readable Parquet file"):
            enriched(source)


def test_an_encrypted_file_is_refused_with_the_reason(tmp_path: Path) -> None:
    source = tmp_path / "in.parquet"
    source.write_bytes(b"PAR1" + b"\x00" * 100 + b"PARE")
    with pytest.raises(InputError, match="is encrypted; write it without encryption"):
        enriched(source)


def test_a_row_group_that_claims_more_than_its_bytes_can_mean_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "in.parquet"
    places = pa.repeat(pa.scalar(0, pa.int32()), 31_000_000)
    many = pa.DictionaryArray.from_arrays(places, pa.array([N]))
    pq.write_table(pa.table({"b_no": many}), source, row_group_size=len(many))
    with pytest.raises(InputError, match=r"row group 1 claims 31,000,000 rows, .*BANSONG_LIMITS=cells="):
        enriched(source)


def test_decimals_wider_than_can_be_read_are_refused(tmp_path: Path) -> None:
    wide = pa.array([decimal.Decimal("1.10")], pa.decimal256(50, 2))
    pq.write_table(pa.table({"b_no": [N], "w": wide}), tmp_path / "in.parquet")
    with pytest.raises(InputError, match="column 'w' holds decimals of 50 digits"):
        enriched(tmp_path / "in.parquet")


MUTATE = """
import random, sys
from pathlib import Path
import bansong as bs
from bansong.errors import InputError
source, out = Path(sys.argv[1]), Path(sys.argv[2])
whole, chosen = source.read_bytes(), random.Random(int(sys.argv[3]))
said = {"refused": 0, "read": 0}
for _ in range(int(sys.argv[4])):
    data = bytearray(whole)
    for _ in range(chosen.randint(1, 4)):
        data[chosen.randrange(4, len(data) - 4)] = chosen.randrange(256)
    source.write_bytes(data)
    try:
        bs.enrich(source, out)
        said["read"] += 1
    except bs.BansongError:
        said["refused"] += 1
print(said["refused"] + said["read"], said["refused"] > 0)
"""


@pytest.mark.parametrize(
    ("seed", "times"), [(1, 12), *(pytest.param(seed, 60, marks=pytest.mark.fuzz) for seed in (1, 2))]
)
def test_damaged_bytes_never_kill_the_process(tmp_path: Path, seed: int, times: int) -> None:
    source = tmp_path / "in.parquet"
    pq.write_table(pa.table({"b_no": [N] * 500, "x": [str(place) for place in range(500)]}), source)
    command = [sys.executable, "-W", "ignore", "-c", MUTATE, source, tmp_path / "out.parquet", f"{seed}", f"{times}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout.split()) == (0, [f"{times}", "True"]), done.stderr[-1500:]


def test_names_that_are_blank_or_repeat_are_headers_like_others(tmp_path: Path) -> None:
    import pyarrow as pa

    columns = [pa.array(["124-81-00998"]), pa.array(["x"]), pa.array([1]), pa.array([2])]
    pq.write_table(pa.Table.from_arrays(columns, names=["b_no", "", "n", "n"]), tmp_path / "in.parquet")
    with open_table(tmp_path / "in.parquet") as table:
        assert table.headers == ("b_no", "", "n", "n")
        assert table.frame.collect().rows() == [("124-81-00998", "x", 1, 2)]
        assert table.frame.select("c3", "c1").collect().rows() == [(2, "x")]
    bs.enrich(tmp_path / "in.parquet")
    written = pq.ParquetFile(tmp_path / "in.enriched.parquet").read()
    assert written.column_names[:4] == ["b_no", "", "n", "n"]
    assert [written.column(place)[0].as_py() for place in range(4)] == ["124-81-00998", "x", 1, 2]


ENRICHING = """
import sys
import bansong as bs
for path in sys.argv[1:]:
    try:
        bs.enrich(path)
        print("read")
    except bs.BansongError as error:
        assert error.exit_code == 2, error
        print("refused")
"""


def test_a_codec_that_there_is_not_is_refused(tmp_path: Path) -> None:
    """Pyarrow ends the process when it is asked for the codec's name; so does polars over some damaged pages."""
    pl.DataFrame({"b_no": ["124-81-00998"] * 9}).write_parquet(tmp_path / "in.parquet", compression="zstd")
    data = (tmp_path / "in.parquet").read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    place = data.index(b"\x15\x0c", footer)  # codec: ZSTD is 6, 12 as a zigzag number
    for at in range(place, len(data) - 8):
        if data[at : at + 2] == b"\x15\x0c":
            (tmp_path / f"bad{at}.parquet").write_bytes(data[:at] + b"\x15\x7e" + data[at + 2 :])
    command = [sys.executable, "-c", ENRICHING, *sorted(tmp_path.glob("bad*.parquet"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "refused" in done.stdout.split()
