"""Files ⇄ frames: what goes in comes out, in every format and encoding."""

from __future__ import annotations

import csv
import datetime as dt
import json
from itertools import product
from pathlib import Path

import openpyxl
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bansong as bs
from bansong.errors import InputError, OutputError, UsageError
from conftest import NINE, json_of, write
from examples import examples

HEADER = "사업자등록번호,상호,주소"
ROW = "124-81-00998,삼성전자,경기도 수원시 영통구 삼성로 129"

cells = st.text(st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters="\ufeff"), max_size=12)


def rows_of(path: Path, encoding: str = "utf-8-sig", delimiter: str = ",") -> list[list[str]]:
    with path.open(encoding=encoding, newline="") as file:
        return list(csv.reader(file, delimiter=delimiter))


def enriched(path: Path, output: str | None = None, **options: object) -> Path:
    report = bs.enrich(path, path.with_name(output) if output else None, **options)
    assert report.output is not None
    return Path(report.output)


# ── CSV ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@examples(40)
@given(
    st.lists(st.tuples(cells, cells), max_size=8),
    st.sampled_from([",", ";", "\t", "|"]),
    st.sampled_from(["\n", "\r\n"]),
)
def test_every_csv_cell_comes_back_as_it_was(
    tmp_path: Path, rows: list[tuple[str, str]], delimiter: str, line_end: str
) -> None:
    source = tmp_path / "in.csv"
    with source.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file, delimiter=delimiter, lineterminator=line_end)
        lines.writerows([["사업자등록번호", "메모", "비고"], *[["1248100998", *row] for row in rows]])
    out = enriched(source)
    assert [row[:3] for row in rows_of(out, delimiter=delimiter)] == rows_of(source, delimiter=delimiter)
    assert rows_of(out, delimiter=delimiter)[0][3:] == list(NINE)


@pytest.mark.parametrize(
    ("encoding", "start"),
    [("utf-8", b"\xec"), ("utf-8-sig", b"\xef\xbb\xbf"), ("cp949", b"\xbb"), ("utf-16", b"\xff\xfe")],
)
def test_a_csv_keeps_its_encoding(tmp_path: Path, encoding: str, start: bytes) -> None:
    text = f"{HEADER}\r\n{ROW}\r\n1248100998,똠방각하 뷁,서울\r\n"
    out = enriched(write(tmp_path / "in.csv", text, encoding))
    assert out.read_bytes().startswith(start)
    assert [row[:3] for row in rows_of(out, encoding)] == [line.split(",") for line in text.split("\r\n")[:-1]]
    assert out.read_bytes().decode(encoding).count("\r\n") == 3


def test_cp949_is_found_where_the_first_megabyte_is_ascii(tmp_path: Path) -> None:
    text = "b_no,name\n" + "1248100998,plain\n" * 80_000 + "1248100998,한글\n"
    out = enriched(write(tmp_path / "in.csv", text, "cp949"))
    assert rows_of(out, "cp949")[-1][1] == "한글"


def test_the_output_encoding_can_be_chosen_and_a_character_it_lacks_is_named(tmp_path: Path) -> None:
    source = write(tmp_path / "in.csv", f"{HEADER}\n1248100998,☃ 눈사람,서울 1\n")
    assert rows_of(enriched(source, "a.csv", output_encoding="utf-8-sig"))[1][1] == "☃ 눈사람"
    with pytest.raises(OutputError, match="row 1 below the header, column '상호': cp949 has no '☃'"):
        enriched(source, "b.csv", output_encoding="cp949")
    assert not (tmp_path / "b.csv").exists()


def test_bytes_that_do_not_decode_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    source = tmp_path / "in.csv"
    source.write_bytes(f"{HEADER}\n{ROW}\n".encode() + b"1248100998,\xff\xfe,x\n")
    with pytest.raises(InputError, match=r"in\.csv: line 3, character 12: byte 0xff is not utf-8"):
        enriched(source)
    source.write_bytes(f"{HEADER}\n{ROW}\n".encode() * 30_000 + b"1248100998,\xff\xfe,x\n")
    with pytest.raises(InputError, match=r"in\.csv: line 60001, character 12: byte 0xff is not utf-8"):
        enriched(source)
    source.write_bytes(f"{HEADER}\n{ROW}\n".encode("cp949") + b"1248100998,\xff\xff,x\n")
    with pytest.raises(InputError, match="line 3, character 12: byte 0xff is not cp949"):
        bs.enrich(source, encoding="cp949")
    assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]


def test_blank_lines_blank_cells_and_quoted_blanks_are_rows_and_stay(tmp_path: Path) -> None:
    source = write(tmp_path / "in.csv", 'b_no,memo\n1248100998,\n\n1248100998,""\n,\n')
    lines = enriched(source).read_text().splitlines()
    assert len(lines) == 5
    assert lines[1].startswith("1248100998,,")
    assert lines[2].startswith(",,")
    assert lines[3].startswith('1248100998,"",')


def test_a_line_with_too_many_fields_is_named(tmp_path: Path) -> None:
    source = write(tmp_path / "in.csv", f"{HEADER}\n{ROW}\n1248100998,a,b,c\n")
    with pytest.raises(InputError, match="line 3 has 4 fields, the header 3"):
        enriched(source)


def test_repeated_and_blank_headers_come_back_as_they_were(tmp_path: Path) -> None:
    source = write(tmp_path / "in.csv", "사업자번호,상호,상호,,비고\n1248100998,가,나,다,라\n")
    assert rows_of(enriched(source))[0] == ["사업자번호", "상호", "상호", "", "비고", *NINE]


def test_columns_named_like_our_working_columns_do_no_harm(tmp_path: Path) -> None:
    names = ["b_no", "c0", "row_id", "out_id", "raw", "key", "compact", "score", "level:status", "plan:rows", "since"]
    source = write(tmp_path / "in.csv", ",".join(names) + "\n" + "1248100998" + ",x" * 10 + "\n")
    assert rows_of(enriched(source))[1][:11] == ["1248100998", *["x"] * 10]


def test_a_file_name_with_brackets_is_a_name_and_not_a_pattern(tmp_path: Path) -> None:
    write(tmp_path / "고객 a.csv", f"{HEADER}\n{ROW}\n")
    source = write(tmp_path / "고객 [ab]*.csv", f"{HEADER}\n{ROW}\n{ROW}\n")
    assert len(rows_of(enriched(source))) == 3


# ── JSON ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_json_objects_keep_absent_keys_nesting_and_the_spelling_of_numbers(tmp_path: Path) -> None:
    own = '{"b_no":"1248100998","n":1.10,"big":123456789012345678901234567890,"in":{"a":[1,null]},"e":"\\u00e9 \\n"}'
    other = '{"name":"가","b_no":1248100998}'
    source = write(tmp_path / "in.json", f"[{own},\n {other}, {{}}]")
    text = enriched(source).read_text(encoding="utf-8")
    lines = text.splitlines()
    assert lines[1].startswith(own[:-1] + ',"biz_status":')
    assert lines[2].startswith(other[:-1] + ',"biz_status":')
    assert lines[3].startswith('{"biz_status":null')
    found = json.loads(text)
    assert list(found[0])[5:] == list(NINE)
    assert found[1]["row_status"] == "verified"
    assert isinstance(found[1]["reasons"], list)


def test_a_wrapper_around_the_array_stays(tmp_path: Path) -> None:
    source = write(tmp_path / "in.json", '{"total": 1, "data": [{"b_no": "1248100998"}], "next": null}')
    found = json_of(enriched(source))
    assert (found["total"], found["next"], list(found)) == (1, None, ["total", "data", "next"])
    assert found["data"][0]["biz_status"] == "unknown"


def test_two_arrays_in_a_wrapper_are_not_chosen_between(tmp_path: Path) -> None:
    source = write(tmp_path / "in.json", '{"a": [{"b_no": "1"}], "b": [{"b_no": "2"}]}')
    with pytest.raises(InputError, match="several arrays of objects \\(a, b\\)"):
        enriched(source)


def test_an_empty_array_gives_an_empty_array(tmp_path: Path) -> None:
    assert json_of(enriched(write(tmp_path / "in.json", " [ ] "))) == []


def test_ndjson_keeps_its_lines_and_its_odd_separators(tmp_path: Path) -> None:
    lines = ['{"b_no":"1248100998","memo":"a\u2028b\x85c"}', "", '  {"b_no": 2208162517 }']
    source = write(tmp_path / "in.ndjson", "\ufeff" + "\r\n".join(lines))
    found = [json.loads(line) for line in enriched(source).read_text(encoding="utf-8").split("\n") if line]
    assert [row["row_status"] for row in found] == ["verified", "verified"]
    assert found[0]["memo"] == "a\u2028b\x85c"


def test_values_of_several_types_under_one_key_are_read_all_the_same(tmp_path: Path) -> None:
    source = write(
        tmp_path / "in.json", '[{"b_no": 1248100998, "x": 1}, {"b_no": "124-81-00998", "x": true}, {"x": "a"}]'
    )
    found = json_of(enriched(source))
    assert [row["x"] for row in found] == [1, True, "a"]
    assert [row["row_status"] for row in found] == ["verified", "verified", "invalid"]


@pytest.mark.parametrize(
    ("text", "message"),
    [("[1, 2]", "not a JSON object"), ('[{"a": 1}, ', "not valid JSON"), ('{"b_no": "1"}\n{"b_no": }\n', "line 2")],
)
def test_broken_json_is_refused_with_the_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        enriched(write(tmp_path / "in.json", text))


# ── Parquet ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_parquet_keeps_types_and_gets_a_list_and_a_float(tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {
            "사업자번호": ["1248100998", None],
            "when": [dt.datetime(2024, 1, 2, 3, 4, 5), None],
            "tags": [["a", "b"], []],
            "deep": [{"x": 1.5}, {"x": None}],
            "money": pl.Series(["1.10", "2.20"]).cast(pl.Decimal(10, 2)),
            "raw": [b"\x00\xff", None],
            "kind": pl.Series(["a", "b"], dtype=pl.Categorical),
        }
    )
    frame.write_parquet(tmp_path / "in.parquet")
    found = pl.read_parquet(enriched(tmp_path / "in.parquet"))
    assert found.select(frame.columns).equals(frame)
    assert found.select(frame.columns).schema == frame.schema
    assert found.schema["reasons"] == pl.List(pl.String)
    assert found.schema["bounce_prob"] == pl.Float64


# ── Excel ────────────────────────────────────────────────────────────────────────────────────────────────────────


def workbook(path: Path, rows: list[list[object]], start: str = "A1") -> Path:
    book = openpyxl.Workbook()
    sheet = book.active
    anchor = sheet[start]
    for down, row in enumerate(rows):
        for right, value in enumerate(row):
            sheet.cell(anchor.row + down, anchor.column + right, value)
    book.save(path)
    return path


def test_a_workbook_keeps_its_cells_styles_and_sheets_and_gets_nine_columns(tmp_path: Path) -> None:
    source = workbook(
        tmp_path / "in.xlsx",
        [
            ["사업자번호", "상호", "주소", "가입일", "금액", "코드"],
            [1248100998, "삼성전자", "서울 강남구 테헤란로 1", dt.date(2024, 1, 2), "=1+1", "00012"],
            [None] * 6,
            ["220-81-62517", "네이버", None, dt.datetime(2024, 5, 6, 7, 8), 1.5, "=text"],
        ],
        start="B3",
    )
    book = openpyxl.load_workbook(source)
    book.active["C5"].font = openpyxl.styles.Font(italic=True)
    book.active["G6"].data_type = "s"
    book.create_sheet("other")["A1"] = "kept"
    book.save(source)

    before, after = openpyxl.load_workbook(source), openpyxl.load_workbook(enriched(source))
    for row in before.active.iter_rows():
        for cell in row:
            same = after.active[cell.coordinate]
            assert (same.value, same.data_type, same.number_format, same.font.i) == (
                cell.value,
                cell.data_type,
                cell.number_format,
                cell.font.i,
            )
    assert [cell.value for cell in after.active[3]][7:] == list(NINE)
    assert [after.active.cell(row, 15).value for row in (4, 5, 6)] == ["verified", "invalid", "verified"]
    assert after["other"]["A1"].value == "kept"


def test_excel_numbers_and_dates_are_read_as_people_see_them(tmp_path: Path) -> None:
    source = workbook(
        tmp_path / "in.xlsx",
        [["사업자번호", "우편번호", "일자", "수량", "단가"], [1248100998, "06234", dt.date(2024, 1, 2), 3, 1.5]],
    )
    assert rows_of(enriched(source, "out.csv"))[1][:5] == ["1248100998", "06234", "2024-01-02", "3", "1.5"]


def test_a_new_workbook_holds_text_as_text(tmp_path: Path) -> None:
    source = write(tmp_path / "in.csv", "b_no,코드,수식,긴수\n1248100998,00012,=1+1,12345678901234567890\n")
    sheet = openpyxl.load_workbook(enriched(source, "out.xlsx")).active
    assert [cell.value for cell in sheet[2]][:4] == ["1248100998", "00012", "=1+1", "12345678901234567890"]
    assert {cell.data_type for cell in sheet[2][:4]} == {"s"}
    assert sheet.freeze_panes == "A2"


def test_what_a_sheet_cannot_hold_is_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "in.csv", f"b_no,memo\n1248100998,{'x' * 32_768}\n")
    with pytest.raises(OutputError, match="column 'memo', row 1: a cell of more than 32,767 characters"):
        enriched(source, "out.xlsx")


def test_a_sheet_is_chosen_by_name_and_a_wrong_name_lists_the_sheets(tmp_path: Path) -> None:
    source = workbook(tmp_path / "in.xlsx", [["nothing"]])
    book = openpyxl.load_workbook(source)
    book.create_sheet("고객").append(["사업자번호"])
    book["고객"].append(["1248100998"])
    book.save(source)
    assert bs.enrich(source, sheet="고객").rows == 1
    with pytest.raises(UsageError, match="has no sheet 'x'; it has 'Sheet', '고객'"):
        bs.enrich(source, sheet="x")


# ── all of them ──────────────────────────────────────────────────────────────────────────────────────────────────

FORMATS = ("csv", "tsv", "xlsx", "json", "ndjson", "parquet")


USUAL = [*zip(FORMATS, (*FORMATS[1:], FORMATS[0]), strict=True)]
"""Each format once as the first and once as the last: what the default suite tries of all pairs."""


@pytest.mark.parametrize(
    ("first", "last"),
    [pytest.param(*pair, marks=() if pair in USUAL else pytest.mark.fuzz) for pair in product(FORMATS, FORMATS)],
)
def test_every_format_turns_into_every_other_with_the_same_cells(tmp_path: Path, first: str, last: str) -> None:
    """CSV → first → last → CSV: the user's columns are those of the start, and so are the answers."""
    text = f"{HEADER},우편번호\n{ROW},06234\n,무명,,\n220-81-62517,=네이버,경기 성남시 분당구 불정로 6,00001\n"
    source = write(tmp_path / "in.csv", text)
    one = enriched(source, f"one.{first}")
    two = enriched(one, f"two.{last}")
    end = enriched(two, "end.csv")
    assert rows_of(end) == rows_of(enriched(source, "direct.csv"))


@pytest.mark.parametrize("format", ["csv", "xlsx", "ndjson", "parquet"])
def test_a_file_with_a_header_and_no_rows_succeeds(tmp_path: Path, format: str) -> None:
    source = write(tmp_path / "in.csv", HEADER + "\n")
    if format in ("xlsx", "parquet"):
        source = enriched(source, f"in.{format}")
    elif format == "ndjson":
        source = write(tmp_path / "in.json", '{"data": []}')
    report = bs.enrich(source)
    assert (report.rows, report.exit_code) == (0, 0)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.xlsx", b"PK\x03\x04 broken", "damaged zip"),
        ("x.parquet", b"PAR1 broken", "not a readable Parquet file"),
        ("x.dat", b"just words\n", "neither its extension nor its content"),
    ],
)
def test_what_is_not_a_table_is_refused_with_a_remedy(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    source = tmp_path / name
    source.write_bytes(content)
    with pytest.raises(InputError, match=message):
        bs.enrich(source)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_the_content_decides_where_the_extension_lies(tmp_path: Path) -> None:
    made = enriched(write(tmp_path / "in.csv", f"{HEADER}\n{ROW}\n"), "book.xlsx")
    lying = made.rename(tmp_path / "list.csv")
    out = enriched(lying)
    assert out.name == "list.enriched.xlsx"
    assert openpyxl.load_workbook(out).active.max_row == 2


@pytest.mark.parametrize(("option", "value"), [("sheet", "x"), ("encoding", "cp949")])
def test_an_option_without_a_meaning_for_the_format_is_refused(tmp_path: Path, option: str, value: str) -> None:
    path = tmp_path / ("x.csv" if option == "sheet" else "x.json")
    write(path, f"{HEADER}\n" if option == "sheet" else "[]")
    with pytest.raises(UsageError, match=f"`{option}=`"):
        bs.enrich(path, **{option: value})
