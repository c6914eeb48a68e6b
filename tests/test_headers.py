"""Headers are found, and lists without one are read on request: no row is taken for a header, or lost."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import openpyxl
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bansong as bs
from bansong.base.schema import ADDED_COLUMNS
from bansong.errors import InputError, UsageError
from bansong.run.manifest import open_mailing
from bansong.tables.detect import open_table, reading
from bansong.tables.headers import find_heading
from conftest import NINE, ROOT, write
from examples import examples

ROWS = [
    ("1", "주식회사 가나", "124-81-00998", "06236", "서울 강남구 테헤란로 152", "비고"),
    ("2", "다라상사", "220-81-62517", "16677", "경기 수원시 영통구 삼성로 129", ""),
    ("3", "마바산업(주)", "120-81-47521", "48060", "부산 해운대구 센텀로 1", ""),
]
ROLES = {"b_no": "#3", "name": "#2", "address": "#5", "zipcode": "#4"}
HEADERS = [f"#{place}" for place in range(1, 7)]
BARE = bs.ReadOptions(has_header=False)


def listed(rows: list[tuple[str, ...]] = ROWS, delimiter: str = ",") -> str:
    return "".join(delimiter.join(row) + "\n" for row in rows)


def book(path: Path, above: int = 0) -> Path:
    workbook = openpyxl.Workbook()
    for row in [[]] * above + [[int(row[0]), *row[1:]] for row in ROWS]:
        workbook.active.append(row)
    workbook.save(path)
    return path


def roles_of(report: bs.Report) -> dict[str, str]:
    return {role: choice.header for role, choice in report.columns.items()}


@pytest.mark.parametrize(("name", "output"), [("x.tsv", "y.json"), ("x.xlsx", "y.csv"), ("x.csv.gz", "y.xlsx")])
def test_every_row_of_a_list_without_a_header_is_verified(tmp_path: Path, name: str, output: str) -> None:
    path = tmp_path / name
    if path.suffix == ".xlsx":
        book(path, above=2)
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress(listed().encode()))
    else:
        write(path, listed(delimiter="\t"))
    report = bs.enrich(path, tmp_path / output, has_header=False)
    assert (report.rows, roles_of(report)) == (3, ROLES)
    assert any("its columns are called #1 to #6, in the output too" in warning for warning in report.warnings)
    with open_table(tmp_path / output) as table:
        found = table.frame.select(table.ids).collect()
    assert table.headers == (*HEADERS, *NINE)
    assert found[:, :6].cast(pl.String).fill_null("").rows() == ROWS
    assert found["c13"].to_list() == ["verified"] * 3


@pytest.mark.parametrize(("extension", "has_header"), [("csv", True), ("csv", False), ("xlsx", False)])
def test_enriching_again_replaces_the_columns_with_or_without_the_option(
    tmp_path: Path, extension: str, has_header: bool
) -> None:
    """The output has a header, which is known by our columns."""
    one, two = tmp_path / f"one.{extension}", tmp_path / f"two.{extension}"
    first = bs.enrich(write(tmp_path / "x.csv", listed()), one, has_header=False)
    again = bs.enrich(one, two, has_header=has_header)
    assert (roles_of(again), again.rows, again.counts) == (roles_of(first), 3, first.counts)
    if extension == "csv":
        assert one.read_bytes() == two.read_bytes()
    with open_mailing(again.run_id, None) as mailing:
        assert mailing.letters.collect()["address"].to_list() == [row[4] for row in ROWS]


def test_positions_name_columns_and_select_them(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", listed())
    report = bs.enrich(path, tmp_path / "y.csv", has_header=False, columns={"name": "#6"}, select=["#3", "#5"])
    assert roles_of(report) == ROLES | {"name": "#6"}
    assert pl.read_csv(tmp_path / "y.csv").columns == ["#3", "#5", *NINE]


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        (listed([("0", "가게", "", "06236", "서울 강남구 역삼로 1", ""), *ROWS]), [None, 0, 1, 2]),
        (listed([("0", "가게"), *ROWS]), [None, 0, 1, 2]),
        (listed([*ROWS, ("4",)]), [0, 1, 2, None]),
        ("sep=,\n" + listed(), [0, 1, 2]),
        (listed(delimiter=";"), [0, 1, 2]),
        ("".join(",".join(f'"{cell}"' for cell in row) + "\n" for row in ROWS), [0, 1, 2]),
        (listed().removesuffix("\n"), [0, 1, 2]),
        (listed().replace("비고", '5" 관'), [0, 1, 2]),
        ("\n" + listed(), [None, 0, 1, 2]),
    ],
    ids=["no number", "short first", "short last", "sep", "semicolon", "quoted", "unended", "stray quote", "blank"],
)
def test_ugly_lists_without_a_header_keep_every_line_as_a_row(
    tmp_path: Path, text: str, numbers: list[int | None]
) -> None:
    with open_table(write(tmp_path / "x.csv", text), BARE) as table, reading(table):
        found = table.frame.collect()["c2"].to_list()
    assert [cell or None for cell in found] == [None if place is None else ROWS[place][2] for place in numbers]
    assert table.count() == len(numbers)


def test_without_the_option_a_first_row_with_a_number_is_refused(tmp_path: Path) -> None:
    for path in (write(tmp_path / "x.csv", listed()), book(tmp_path / "x.xlsx")):
        with pytest.raises(InputError) as caught:
            bs.plan(path)
        assert (caught.value.code, caught.value.fields["place"]) == ("columns.number_as_header", 1)


def test_what_cannot_be_read_without_a_header_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        bs.plan(write(tmp_path / "x.json", '[{"b_no": "1248100998"}]'), has_header=False)
    assert caught.value.code == "files.option_not_for_format"
    with pytest.raises(UsageError, match="with `has_header=False` the output is a new workbook"):
        bs.enrich(book(tmp_path / "x.xlsx"), in_place=True, has_header=False)
    wide = listed([*ROWS * 100, (*ROWS[0], "x")])
    for text, code in {"": "files.input_file_empty", wide: "csv.line_too_wide_headless"}.items():
        with pytest.raises(InputError) as refused:
            bs.plan(write(tmp_path / "e.csv", text), has_header=False)
        assert refused.value.code == code


CELL = st.text(st.sampled_from("가1 ,;\"'\n-서울"), max_size=4)


@examples(100)
@given(st.lists(st.tuples(CELL, CELL), max_size=5))
def test_no_cell_of_a_list_without_a_header_is_lost_or_moved(tmp_path: Path, cells: list[tuple[str, str]]) -> None:
    rows = [(one, "", other) for one, other in cells]
    rows += [(one, row[2], row[4]) for one, row in zip("가나다", ROWS, strict=True)]
    with (tmp_path / "x.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)
    with open_table(tmp_path / "x.csv", BARE) as table, reading(table):
        assert table.frame.collect().fill_null("").rows() == rows


# ── the header of a table ─────────────────────────────────────────────────────────────────────────────────────────────

NUMBER = "124-81-00998"


def found(case: dict[str, str]) -> list[str]:
    """The header lines and headers of the rows of a golden line: cells divided by bars, rows by slashes."""
    rows = [
        [cell.strip("-") or None for cell in row.split("|")]
        for row in case["rows"].replace("NUMBER", NUMBER).split(" / ")
    ]
    merges = [tuple(map(int, merge.split("."))) for merge in case["merges"].split()]
    try:
        heading = find_heading([row if any(row) else [] for row in rows], merges)  # type: ignore[arg-type]
    except InputError as error:
        return [error.code, ""]
    return [f"{heading.first}-{heading.last}", "|".join(heading.headers)]


def test_headers_are_found() -> None:
    with (ROOT / "tests/golden/heading.csv").open(encoding="utf-8", newline="") as file:
        cases = list(csv.DictReader(file))
    differing = {case["case"]: found(case) for case in cases if found(case) != [case["lines"], case["headers"]]}
    assert differing == {}


HEADING_CELL = st.one_of(
    st.none(),
    st.sampled_from([NUMBER, "b_no", "주소", "상호", "", "공급자", "1", *ADDED_COLUMNS[:2]]),
    st.text(max_size=5),
)


@examples(100)
@given(st.lists(st.lists(HEADING_CELL, max_size=4), max_size=6), st.booleans())
def test_whatever_the_rows_hold_no_number_is_above_or_in_the_header(rows: list[list[str | None]], merged: bool) -> None:
    try:
        heading = find_heading(rows, [(0, 0, 1, 0), (1, 1, 1, 2)] if merged else [])
    except InputError:
        return
    above = rows[: heading.last + 1]
    assert all(NUMBER not in row for row in rows[heading.first : heading.last + 1])
    assert all(set(row) & {"b_no", "주소", "상호", "공급자", "biz_status"} for row in above if NUMBER in row)
    assert len(heading.headers) == max(len(row) for row in rows[heading.first : heading.last + 1])
