"""Files ⇄ frames: what goes in comes out, in every format; what would be changed on the way is refused."""

from __future__ import annotations

import csv
import datetime as dt
import json
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import bansong as bs
from bansong.errors import ColumnError, InputError, OutputError
from bansong.tables import frames
from conftest import NINE, json_of, write

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

N = "1248100998"
HEADER = "사업자등록번호,상호,주소"
ROW = "124-81-00998,삼성전자,경기도 수원시 영통구 삼성로 129"


def rows_of(path: Path, encoding: str = "utf-8-sig") -> list[list[str]]:
    with path.open(encoding=encoding, newline="") as file:
        return list(csv.reader(file))


def enriched(path: Path, output: str | None = None, **options: Any) -> Path:
    report = bs.enrich(path, path.with_name(output) if output else None, **options)
    assert report.output is not None
    return Path(report.output)


# ── CSV ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("encoding", "start"), [("cp949", b"\xbb"), ("utf-16", b"\xff\xfe")])
def test_a_csv_keeps_its_encoding_and_cells(tmp_path: Path, encoding: str, start: bytes) -> None:
    text = f"{HEADER}\r\n{ROW}\r\n1248100998,똠방각하 뷁,서울\r\n"
    out = enriched(write(tmp_path / "in.csv", text, encoding))
    assert out.read_bytes().startswith(start)
    assert [row[:3] for row in rows_of(out, encoding)] == [line.split(",") for line in text.split("\r\n")[:-1]]
    assert out.read_bytes().decode(encoding).count("\r\n") == 3
    assert rows_of(enriched(out, "b.csv", output_encoding="utf-8-sig"))[2][1] == "똠방각하 뷁"


def test_bytes_that_do_not_decode_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    source = tmp_path / "in.csv"
    source.write_bytes(f"{HEADER}\n{ROW}\n".encode() * 30_000 + b"1248100998,\xff\xfe,x\n")
    with pytest.raises(InputError, match=r"line 60001, character 12: byte 0xff is not utf-8"):
        enriched(source)
    assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]


def test_blank_lines_blank_cells_and_quoted_blanks_are_rows_and_stay(tmp_path: Path) -> None:
    source = write(tmp_path / "in.csv", 'b_no,memo\n1248100998,\n\n1248100998,""\n,\n')
    lines = enriched(source).read_text().splitlines()
    starts = ("1248100998,,", ",,", '1248100998,"",', ",,")
    assert [line.startswith(start) for line, start in zip(lines[1:], starts, strict=True)] == [True] * 4


def test_headers_that_repeat_are_blank_or_are_ours_come_back_as_they_were(tmp_path: Path) -> None:
    names = ["b_no", "상호", "상호", "", "c0", "row_id", "out_id", "raw", "key", "score", "level:status", "plan:rows"]
    source = write(tmp_path / "in.csv", ",".join(names) + "\n" + "1248100998" + ",x" * 11 + "\n")
    header, row = rows_of(enriched(source))
    assert (header, row[:12]) == ([*names, *NINE], ["1248100998", *["x"] * 11])


def test_a_file_name_with_brackets_is_a_name_and_not_a_pattern(tmp_path: Path) -> None:
    write(tmp_path / "고객 a.csv", f"{HEADER}\n{ROW}\n")
    source = write(tmp_path / "고객 [ab]*.csv", f"{HEADER}\n{ROW}\n{ROW}\n")
    assert len(rows_of(enriched(source))) == 3


@pytest.mark.parametrize("extra", ["grade,grade_bv2", "grade,grade_bv,grade_bv2,action"])
def test_columns_of_the_user_named_like_ours_are_kept_in_every_run(tmp_path: Path, extra: str) -> None:
    names = extra.split(",")
    values = [f"mine{place}" for place, _ in enumerate(names)]
    once = enriched(write(tmp_path / "in.csv", f"b_no,{extra}\n{N},{','.join(values)}\n"), "once.csv")
    assert enriched(once, "twice.csv").read_bytes() == once.read_bytes()
    header, row = rows_of(once)
    assert (header[: len(names) + 1], row[1 : len(names) + 1]) == (["b_no", *names], values)
    assert len(header) == len(names) + 10


# ── JSON ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_json_objects_keep_absent_keys_nesting_and_the_spelling_of_numbers(tmp_path: Path) -> None:
    own = '{"b_no":"1248100998","n":1.10,"big":123456789012345678901234567890,"in":{"a":[1,null]},"e":"\\u00e9 \\n"}'
    other = '{"name":"가","b_no":1248100998}'
    text = enriched(write(tmp_path / "in.json", f"[{own},\n {other}, {{}}]")).read_text(encoding="utf-8")
    starts = (own[:-1] + ',"biz_status":', other[:-1] + ',"biz_status":', '{"biz_status":null')
    assert [line.startswith(start) for line, start in zip(text.splitlines()[1:], starts, strict=False)] == [True] * 3
    found = json.loads(text)
    assert (list(found[0])[5:], found[1]["row_status"]) == ([*NINE], "verified")
    assert isinstance(found[1]["reasons"], list)


def test_an_empty_array_gives_an_empty_array(tmp_path: Path) -> None:
    assert json_of(enriched(write(tmp_path / "in.json", " [ ] "))) == []


def test_ndjson_keeps_its_lines_and_its_odd_separators(tmp_path: Path) -> None:
    lines = ['{"b_no":"1248100998","memo":"a\u2028b\x85c"}', "", '  {"b_no": 2208162517 }']
    source = write(tmp_path / "in.ndjson", "\ufeff" + "\r\n".join(lines))
    found = [json.loads(line) for line in enriched(source).read_text(encoding="utf-8").split("\n") if line]
    assert [row["row_status"] for row in found] == ["verified", "verified"]
    assert found[0]["memo"] == "a\u2028b\x85c"


def test_a_business_number_beside_a_fraction_stays_a_business_number(tmp_path: Path) -> None:
    source = write(tmp_path / "in.json", f'[{{"b_no":{N}}},{{"b_no":1.5}},{{"b_no":"{N}"}}]')
    found = rows_of(enriched(source, "out.csv"))[1:]
    assert [(row[0], row[8]) for row in found] == [(N, "verified"), ("1.5", "invalid"), (N, "verified")]


@pytest.mark.parametrize("output", ["out.csv", "out.json", "out.ndjson"])
def test_binary_data_is_refused_where_a_format_has_no_place_for_it(tmp_path: Path, output: str) -> None:
    pl.DataFrame({"b_no": [N], "사진": [{"deep": [b"\xff"]}]}).write_parquet(tmp_path / "in.parquet")
    with pytest.raises(OutputError) as caught:
        enriched(tmp_path / "in.parquet", output)
    assert (caught.value.code, caught.value.fields["name"]) == ("files.binary_not_writable", "사진")
    assert not (tmp_path / output).exists()


# ── all of them ──────────────────────────────────────────────────────────────────────────────────────────────────

FORMATS = ("csv", "tsv", "xlsx", "json", "ndjson", "parquet")
USUAL = [*zip(FORMATS, (*FORMATS[1:], FORMATS[0]), strict=True)]  # each once as the first and once as the last


@pytest.mark.parametrize(
    ("first", "last"),
    [pytest.param(*pair, marks=() if pair in USUAL else pytest.mark.fuzz) for pair in product(FORMATS, FORMATS)],
)
def test_every_format_turns_into_every_other_with_the_same_cells(tmp_path: Path, first: str, last: str) -> None:
    """CSV → first → last → CSV: the user's columns are those of the start, and so are the answers."""
    text = f"{HEADER},우편번호\n{ROW},06234\n,무명,,\n220-81-62517,=네이버,경기 성남시 분당구 불정로 6,00001\n"
    source = write(tmp_path / "in.csv", text)
    end = enriched(enriched(enriched(source, f"one.{first}"), f"two.{last}"), "end.csv")
    assert rows_of(end) == rows_of(enriched(source, "direct.csv"))


@pytest.mark.parametrize("format", ["csv", "xlsx", "parquet"])
def test_a_file_with_a_header_and_no_rows_succeeds(tmp_path: Path, format: str) -> None:
    source = write(tmp_path / "in.csv", HEADER + "\n")
    report = bs.enrich(source if format == "csv" else enriched(source, f"in.{format}"))
    assert (report.rows, report.exit_code) == (0, 0)


# ── frames ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_columns_of_every_type_are_looked_at_for_numbers() -> None:
    frame = pl.DataFrame(
        {
            "took": [dt.timedelta(1)] * 3,
            "when": [dt.datetime(2024, 1, 2)] * 3,
            "blob": [b"x"] * 3,
            "list": [["x"]] * 3,
            "kind": pl.Series(["a"] * 3, dtype=pl.Categorical),
            "blank": pl.Series([None] * 3, dtype=pl.String),
            "found": [1248100998.0, 2208162517.0, None],
            "by content": [1248100998, 2208162517, 1248100998],
        }
    )
    assert bs.verify_frame(frame.drop("found"))["row_status"].to_list() == ["verified"] * 3
    assert bs.verify_frame(frame, columns={"b_no": "found"})["row_status"][2] == "invalid"
    with pytest.raises(ColumnError) as caught:
        bs.verify_frame(frame, columns={"name": "list"})
    assert caught.value.code == "columns.column_kind_unsuitable"


def test_hundreds_of_columns_are_looked_at_by_one_query() -> None:
    frame = pl.DataFrame({f"x{place}": ["a"] * 100 for place in range(500)} | {"c": [N] * 100})
    assert bs.verify_frame(frame)["row_status"].unique().to_list() == ["verified"]


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        (["124-81-00998", 2208162517], ["124-81-00998", "2208162517"]),
        ([N, 1248100998, 1248100998.0, None, float("nan")], [N, N, N, None, None]),
        ([True, N, pd.NaT, pd.NA], ["True", N, None, None]),
    ],
)
def test_a_pandas_column_of_mixed_objects_is_read_as_text_and_kept(values: list[Any], texts: list[str | None]) -> None:
    frame = pd.DataFrame({"b_no": pd.Series(values, dtype=object)})
    assert frames.read(frame).frame.collect()["c0"].to_list() == texts
    pd.testing.assert_frame_equal(bs.verify_frame(frame)[["b_no"]], frame)


def test_column_names_that_repeat_are_given_back_as_they_are() -> None:
    table = pa.Table.from_arrays([pa.array([N]), pa.array(["a"]), pa.array(["b"])], names=["b_no", "memo", "memo"])
    for given in (table, table.to_batches()[0]):
        found = bs.verify_frame(given)
        assert found.schema.names == ["b_no", "memo", "memo", *NINE]
        assert [found.column(place)[0].as_py() for place in range(3)] == [N, "a", "b"]
    found = bs.verify_frame(pd.DataFrame([[N, "a", "b"]], columns=["b_no", "memo", "memo"]))
    assert found.columns.to_list() == ["b_no", "memo", "memo", *NINE]
    assert found.iloc[0, :3].to_list() == [N, "a", "b"]
