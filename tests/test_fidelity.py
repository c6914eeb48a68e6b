"""What a format, a type or a library would change on the way through comes out as it went in, or is refused."""

from __future__ import annotations

import csv
import datetime as dt
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import bansong as bs
from bansong.errors import ColumnError, InputError, OutputError, UsageError
from bansong.tables import frames
from bansong.tables.detect import open_table
from conftest import NINE, json_of, write

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

N = "1248100998"


def enriched(path: Path, output: str, **options: Any) -> Path:
    bs.enrich(path, path.with_name(output), **options)
    return path.with_name(output)


def cells_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def types_of(path: Path) -> dict[str, pl.DataType]:
    with open_table(path) as table:
        schema = table.frame.collect_schema()
        return {header: schema[id_] for header, id_ in zip(table.headers, table.ids, strict=True)}


# ── JSON ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("values", "spelled"),
    [
        (["[]", "{}"], ["[]", "{}"]),
        (['{"a":1}', '"x"'], ['{"a":1}', "x"]),
        (['["a",{"b":1}]', "null"], ['["a",{"b":1}]', ""]),
        (['{"a":1}', '{"b":2}'], ['{"a":1}', '{"b":2}']),
        (['{"a":null}', '{"a":null}'], ['{"a":null}', '{"a":null}']),
        (["1e400", "1" * 45], ["1e400", "1" * 45]),
        (["9007199254740993", "0.5"], ["9007199254740993", "0.5"]),
        (["1.10", "2.2"], ["1.10", "2.2"]),
        (["true", "1"], ["true", "1"]),
        (["18446744073709551616", "-0"], ["18446744073709551616", "-0"]),
        ([r'"\u00e9 \""', "1"], ['é "', "1"]),
        (["[1.50]", "[2,0.5]"], ["[1.50]", "[2,0.5]"]),
    ],
)
def test_json_values_that_no_one_type_holds_are_kept_as_they_are_spelled(
    tmp_path: Path, values: list[str], spelled: list[str]
) -> None:
    objects = [f'{{"b_no":"{N}","o":{value}}}' for value in values]
    source = write(tmp_path / "in.json", f"[{','.join(objects)}]")
    assert [row["o"] for row in cells_of(enriched(source, "out.csv"))] == spelled
    assert [row["row_status"] for row in cells_of(tmp_path / "out.csv")] == ["verified"] * 2
    lines = enriched(source, "out.json").read_text().splitlines()[1:3]
    assert [line.startswith(own[:-1] + ",") for line, own in zip(lines, objects, strict=True)] == [True, True]
    enriched(source, "out.parquet")


def test_a_business_number_beside_a_fraction_stays_a_business_number(tmp_path: Path) -> None:
    source = write(tmp_path / "in.json", f'[{{"b_no":{N}}},{{"b_no":1.5}}]')
    found = cells_of(enriched(source, "out.csv"))
    assert [(row["b_no"], row["row_status"]) for row in found] == [(N, "verified"), ("1.5", "invalid")]


def test_json_columns_have_types_where_these_are_exact(tmp_path: Path) -> None:
    one = f'{{"b_no":{N},"f":0.25,"s":"a","t":true,"l":["x"],"d":{{"k":1.5}},"mixed":1,"none":null}}'
    other = '{"b_no":2208162517,"f":1e+16,"s":"\\n","t":false,"l":[],"d":{"k":null},"mixed":%s}'
    typed = {
        "b_no": pl.Int64(),
        "f": pl.Float64(),
        "s": pl.String(),
        "t": pl.Boolean(),
        "l": pl.List(pl.String),
        "d": pl.Struct({"k": pl.Float64}),
        "mixed": pl.Int64(),
        "none": pl.String(),
    }
    assert types_of(write(tmp_path / "in.json", f"[{one},{other % 2}]")) == typed
    assert types_of(write(tmp_path / "in.json", f"[{one},{other % '1.10'}]")) == typed | {"mixed": pl.String()}
    row = pl.read_parquet(enriched(tmp_path / "in.json", "out.parquet")).row(1, named=True)
    assert (row["f"], row["s"], row["l"], row["d"], row["mixed"]) == (1e16, "\n", [], {"k": None}, "1.10")


@pytest.mark.parametrize("other", ["1", "1.10"])
def test_nested_values_under_the_header_of_a_role_are_read_as_text(tmp_path: Path, other: str) -> None:
    source = write(tmp_path / "in.json", f'[{{"b_no":"{N}","name":["가"],"n":1}},{{"n":{other}}}]')
    assert [row["name"] for row in cells_of(enriched(source, "out.csv"))] == ['["가"]', ""]
    assert json_of(enriched(source, "out.json"))[0]["name"] == ["가"]


def test_empty_arrays_beside_the_array_of_objects_do_not_count(tmp_path: Path) -> None:
    source = write(tmp_path / "in.json", f'{{"warnings":[],"data":[{{"b_no":"{N}"}}],"errors":[]}}')
    found = json_of(enriched(source, "out.json"))
    assert (found["data"][0]["row_status"], found["errors"], found["warnings"]) == ("verified", [], [])


def test_an_object_alone_is_a_record_also_where_it_holds_an_empty_array(tmp_path: Path) -> None:
    source = write(tmp_path / "in.json", f'{{"b_no":"{N}","tags":[]}}')
    found = json_of(enriched(source, "out.json"))
    assert (found["tags"], found["row_status"]) == ([], "verified")


@pytest.mark.parametrize("name", ["in.json", "in.ndjson"])
def test_json_nested_too_deeply_is_refused(tmp_path: Path, name: str) -> None:
    depth = 100_000
    deep = f'{{"b_no":"{N}","o":{"[" * depth}{"]" * depth}}}'
    source = write(tmp_path / name, deep if name == "in.ndjson" else f"[{deep}]")
    with pytest.raises(InputError, match="nested too deeply"):
        bs.enrich(source)


def test_deep_nesting_within_the_limit_is_kept(tmp_path: Path) -> None:
    deep = "[" * 199 + "]" * 199
    source = write(tmp_path / "in.json", f'[{{"b_no":"{N}","o":{deep}}}]')
    assert cells_of(enriched(source, "out.csv"))[0]["o"] == deep


def test_blank_lines_before_lines_of_objects_are_skipped(tmp_path: Path) -> None:
    source = write(tmp_path / "in.json", f'\ufeff\n \n{{"b_no":"{N}"}}\n\n{{"b_no":2208162517}}\n')
    assert [row["row_status"] for row in cells_of(enriched(source, "out.csv"))] == ["verified", "verified"]


# ── bytes ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("output", ["out.csv", "out.json", "out.ndjson"])
@pytest.mark.parametrize("value", [b"\x00\xff", [b"\xff"], {"deep": [b"\xff"]}])
def test_binary_data_is_refused_where_a_format_has_no_place_for_it(tmp_path: Path, value: Any, output: str) -> None:
    pl.DataFrame({"b_no": [N], "사진": [value]}).write_parquet(tmp_path / "in.parquet")
    with pytest.raises(OutputError, match="column '사진' holds binary data"):
        enriched(tmp_path / "in.parquet", output)
    assert not (tmp_path / output).exists()
    assert pl.read_parquet(enriched(tmp_path / "in.parquet", "out.parquet"))["사진"].to_list() == [value]


# ── columns ──────────────────────────────────────────────────────────────────────────────────────────────────────


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


def test_three_thousand_columns_are_looked_at_by_one_query() -> None:
    frame = pl.DataFrame({f"x{place}": ["a"] * 100 for place in range(3_000)} | {"c": [N] * 100})
    assert bs.verify_frame(frame)["row_status"].unique().to_list() == ["verified"]


def test_a_list_is_not_taken_for_a_name_and_cannot_be_given_as_one() -> None:
    frame = pl.DataFrame({"b_no": [N], "name": [["가"]]})
    assert bs.verify_frame(frame)["name"].to_list() == [["가"]]
    with pytest.raises(ColumnError, match=r"column 'name' holds List\(String\), which cannot be the name"):
        bs.verify_frame(frame, columns={"name": "name"})


def test_equal_columns_with_equal_headers_are_told_apart_by_position(tmp_path: Path) -> None:
    source = write(tmp_path / "in.csv", f"b_no,b_no\n{N},{N}\n")
    with pytest.raises(ColumnError, match=r"choose with `columns={'b_no': '#1'}`$"):
        bs.enrich(source)
    assert bs.enrich(source, columns={"b_no": "#1"}).rows == 1


@pytest.mark.parametrize("extra", ["grade", "grade,grade_bv", "grade,grade_bv2", "grade,grade_bv,grade_bv2,action"])
def test_columns_of_the_user_named_like_ours_are_kept_in_every_run(tmp_path: Path, extra: str) -> None:
    values = ",".join(f"mine{place}" for place, _ in enumerate(extra.split(",")))
    source = write(tmp_path / "in.csv", f"b_no,{extra}\n{N},{values}\n")
    once = enriched(source, "once.csv")
    twice = enriched(once, "twice.csv")
    assert twice.read_bytes() == once.read_bytes()
    header, row = (line.split(",") for line in once.read_text().splitlines()[:2])
    assert (header[: len(extra.split(",")) + 1], len(header)) == (
        ["b_no", *extra.split(",")],
        len(extra.split(",")) + 10,
    )
    assert row[1 : len(extra.split(",")) + 1] == values.split(",")


# ── frames ───────────────────────────────────────────────────────────────────────────────────────────────────────


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
    frame = pd.DataFrame([[N, "a", "b"]], columns=["b_no", "memo", "memo"])
    table = pa.Table.from_arrays([pa.array([N]), pa.array(["a"]), pa.array(["b"])], names=["b_no", "memo", "memo"])
    for given in (table, table.to_batches()[0]):
        found = bs.verify_frame(given)
        assert found.schema.names == ["b_no", "memo", "memo", *NINE]
        assert [found.column(place)[0].as_py() for place in range(3)] == [N, "a", "b"]
    found = bs.verify_frame(frame)
    assert found.columns.to_list() == ["b_no", "memo", "memo", *NINE]
    assert found.iloc[0, :3].to_list() == [N, "a", "b"]


# ── CSV ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["base64", "hex", "rot13", "idna", "undefined", "zlib", "nonsense", "", "a\0b"])
def test_a_codec_that_is_no_text_encoding_is_refused(tmp_path: Path, name: str) -> None:
    source = write(tmp_path / "in.csv", f"b_no\n{N}\n")
    with pytest.raises(UsageError, match="unknown encoding"):
        bs.enrich(source, output_encoding=name or " ")
    with pytest.raises(UsageError, match="unknown encoding"):
        bs.enrich(source, encoding=name or " ")


@pytest.mark.parametrize("name", ["utf-16", "utf-32", "utf-7"])
def test_bytes_of_another_encoding_than_the_named_one_are_refused(tmp_path: Path, name: str) -> None:
    source = write(tmp_path / "in.csv", f"b_no,상호\n{N},가\n" * 3)
    with pytest.raises(InputError, match=r"in\.csv: line \d+, character \d+: .*; name its encoding with `encoding=`"):
        bs.enrich(source, encoding=name)


@pytest.mark.parametrize("cell", ['"open', '"closed" early'])
@pytest.mark.parametrize("after", [2, 60_000])
def test_a_quote_without_its_partner_is_named_with_its_line(tmp_path: Path, cell: str, after: int) -> None:
    source = write(tmp_path / "in.csv", "b_no,memo\n" + f"{N},x\n" * 3 + f"{N},{cell}\n" + f"{N},x\n" * after)
    with pytest.raises(InputError, match="line 5: the quotes of a cell do not match"):
        bs.enrich(source)


def test_an_open_quote_in_the_header_is_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "in.csv", '"b_no,memo\n' + f"{N},x\n" * 60_000)
    with pytest.raises(InputError, match="header line"):
        bs.enrich(source)
