"""Lists without a header: read on request, their columns found by content and called by position."""

from __future__ import annotations

import csv
import gzip
import re
from itertools import cycle, product
from pathlib import Path
from tempfile import TemporaryDirectory

import openpyxl
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bansong as bs
from bansong.base.schema import Alert
from bansong.errors import ColumnError, InputError, UsageError
from bansong.run.manifest import open_mailing
from conftest import NINE, write
from examples import examples

ROWS = [
    ("1", "주식회사 가나", "124-81-00998", "06236", "서울 강남구 테헤란로 152", "비고"),
    ("2", "다라상사", "220-81-62517", "16677", "경기 수원시 영통구 삼성로 129", ""),
    ("3", "마바산업(주)", "120-81-47521", "48060", "부산 해운대구 센텀로 1", ""),
]
ROLES = {"b_no": "#3", "name": "#2", "address": "#5", "zipcode": "#4"}
HEADERS = [f"#{place}" for place in range(1, 7)]


def alerts_of(report: bs.Report) -> str:
    """The one alert of a report beside those that no status was checked and no gazetteer given."""
    (alert,) = (one for one in report.warnings if isinstance(one, Alert) and not re.search("`send`|gazetteer", one))
    return alert


def listed(rows: list[tuple[str, ...]] = ROWS, delimiter: str = ",") -> str:
    return "".join(delimiter.join(row) + "\n" for row in rows)


def book(path: Path, above: int = 0) -> Path:
    workbook = openpyxl.Workbook()
    for _ in range(above):
        workbook.active.append([])
    for row in ROWS:
        workbook.active.append([int(row[0]), *row[1:]])
    workbook.save(path)
    return path


def roles_of(report: bs.Report) -> dict[str, str]:
    return {role: choice.header for role, choice in report.columns.items()}


NAMES, OUTPUTS = ("x.csv", "x.tsv", "x.xlsx", "below.xlsx", "x.csv.gz"), ("y.csv", "y.xlsx", "y.json")
USUAL = [*zip(NAMES, cycle(OUTPUTS), strict=False)]
"""Each input once: what the default suite tries of all pairs."""


@pytest.mark.parametrize(
    ("name", "output"),
    [pytest.param(*pair, marks=() if pair in USUAL else pytest.mark.fuzz) for pair in product(NAMES, OUTPUTS)],
)
def test_every_row_of_a_list_without_a_header_is_verified(tmp_path: Path, name: str, output: str) -> None:
    """No row is lost, the user's cells stay, columns are called by position and the roles found by content."""
    path = tmp_path / name
    if path.suffix == ".xlsx":
        book(path, above=2 if "below" in name else 0)
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress(listed().encode()))
    else:
        write(path, listed(delimiter="\t" if name.endswith("tsv") else ","))
    report = bs.enrich(path, tmp_path / output, has_header=False)
    assert (report.rows, roles_of(report)) == (3, ROLES)
    alert = alerts_of(report)
    assert "#3 as b_no, #2 as name, #5 as address, #4 as zipcode; not used: #1, #6" in alert
    assert any("its columns are called #1 to #6, in the output too" in warning for warning in report.warnings)
    bs.enrich(tmp_path / output, tmp_path / "end.csv")
    end = pl.read_csv(tmp_path / "end.csv", infer_schema=False).fill_null("")
    assert end.columns == [*HEADERS, *NINE]
    assert end.select(HEADERS).rows() == ROWS
    assert end["row_status"].to_list() == ["verified"] * 3


@pytest.mark.parametrize("has_header", [True, False])
@pytest.mark.parametrize("extension", ["csv", "xlsx"])
def test_enriching_again_replaces_the_columns_with_or_without_the_option(
    tmp_path: Path, extension: str, has_header: bool
) -> None:
    """The output has a header, which is known by our columns: it is no row, whatever the nightly command says."""
    one, two = tmp_path / f"one.{extension}", tmp_path / f"two.{extension}"
    first = bs.enrich(write(tmp_path / "x.csv", listed()), one, has_header=False)
    again = bs.enrich(one, two, has_header=has_header)
    assert (roles_of(again), again.rows, again.counts) == (roles_of(first), 3, first.counts)
    if extension == "csv":
        assert one.read_bytes() == two.read_bytes()
    with open_mailing(again.run_id, None) as mailing:
        assert mailing.letters.collect()["address"].to_list() == [row[4] for row in ROWS]


def test_the_numbers_of_a_list_of_two_rows_are_found(tmp_path: Path) -> None:
    """Two right numbers are enough; with a wrong one the message says how a column without a header is named."""
    assert roles_of(bs.plan(write(tmp_path / "x.csv", listed(ROWS[:2])), has_header=False))["b_no"] == "#3"
    wrong = [ROWS[0], (*ROWS[1][:2], "220-81-62518", *ROWS[1][3:])]
    for rows in (wrong, ROWS[:1]):
        with pytest.raises(ColumnError, match=r"name it with `columns=\{'b_no': '#1'\}`"):
            bs.plan(write(tmp_path / "x.csv", listed(rows)), has_header=False)


def test_positions_name_columns_and_select_them(tmp_path: Path) -> None:
    """#2 is the second column for --columns and --select, and nothing is guessed for a role that is given."""
    path = write(tmp_path / "x.csv", listed())
    report = bs.enrich(path, tmp_path / "y.csv", has_header=False, columns={"name": "#6"}, select=["#3", "#5"])
    assert roles_of(report) == ROLES | {"name": "#6"}
    assert pl.read_csv(tmp_path / "y.csv").columns == ["#3", "#5", *NINE]
    named = bs.plan(path, has_header=False, columns=ROLES)
    assert not [w for w in named.warnings if isinstance(w, Alert) and not re.search("no registry|no gazetteer", w)]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        (listed([("0", "가게", "", "06236", "서울 강남구 역삼로 1", ""), *ROWS]), 4),
        (listed([("0", "가게", "확인중", "", "", ""), *ROWS]), 4),
        (listed([("0", "가게"), *ROWS]), 4),
        (listed([*ROWS, ("4",)]), 4),
        ("sep=,\n" + listed(), 3),
        (listed(delimiter=";"), 3),
        ("".join(",".join(f'"{cell}"' for cell in row) + "\n" for row in ROWS), 3),
        (listed().removesuffix("\n"), 3),
        (listed().replace("비고", '5" 관'), 3),
        ("\n" + listed(), 4),
    ],
    ids=[
        "no number",
        "a word",
        "short first",
        "short last",
        "sep",
        "semicolon",
        "quoted",
        "unended",
        "stray quote",
        "blank",
    ],
)
def test_ugly_lists_without_a_header_keep_every_line_as_a_row(tmp_path: Path, text: str, rows: int) -> None:
    """Whatever the first line is like, it is a row, and the numbers below it stand in their rows."""
    report = bs.enrich(write(tmp_path / "x.csv", text), tmp_path / "y.csv", has_header=False)
    assert report.rows == rows
    assert report.counts["verified"] == 3
    assert roles_of(report)["b_no"] == "#3"
    assert not any("not verified" in warning for warning in report.warnings)


def test_a_first_row_of_data_is_pointed_out_loudly_with_the_option(tmp_path: Path) -> None:
    """Without the option such a list is refused, or where its first row has no number, read with an alert."""
    with pytest.raises(
        InputError, match="row 1 holds a number of ten digits already; give `has_header=False`, or put a row of"
    ):
        bs.plan(write(tmp_path / "x.csv", listed()))
    with pytest.raises(InputError, match="give `has_header=False`"):
        bs.plan(book(tmp_path / "x.xlsx"))
    report = bs.plan(write(tmp_path / "x.csv", listed([("0", "가게", "", "06236", "서울 강남구", ""), *ROWS])))
    (alert,) = (
        one for one in report.warnings if one.startswith("the first row (0, 가게, 06236, 서울 강남구) was read")
    )
    assert isinstance(alert, Alert)
    assert "give `has_header=False`" in alert


def test_what_cannot_be_read_without_a_header_is_refused(tmp_path: Path) -> None:
    """Formats whose columns have names, workbooks in place, lists with too few numbers to know their column."""
    (tmp_path / "x.json").write_text('[{"b_no": "1248100998"}]')
    with pytest.raises(
        UsageError, match=r"x\.json: `has_header=False` is for CSV files and workbooks, this file is json"
    ):
        bs.plan(tmp_path / "x.json", has_header=False)
    with pytest.raises(
        UsageError, match=r"with `has_header=False` the output is a new workbook, without its other sheets"
    ):
        bs.enrich(book(tmp_path / "x.xlsx"), in_place=True, has_header=False)
    with pytest.raises(InputError, match="is empty"):
        bs.plan(write(tmp_path / "e.csv", ""), has_header=False)
    few = write(tmp_path / "few.csv", listed(ROWS[:1]))
    with pytest.raises(ColumnError, match=r"name it with `columns=\{'b_no'"):
        bs.plan(few, has_header=False)
    assert bs.plan(few, has_header=False, columns={"b_no": "#3"}).rows == 1
    wide = write(tmp_path / "wide.csv", listed([*ROWS * 100, (*ROWS[0], "x")]))
    with pytest.raises(InputError, match="line 301 has 7 fields, the first ones 6"):
        bs.plan(wide, has_header=False)


CELL = st.text(st.sampled_from("가1 ,;\"'\n-서울"), max_size=4)


@examples(40)
@given(st.lists(st.tuples(CELL, CELL), max_size=5))
def test_no_cell_of_a_list_without_a_header_is_lost_or_moved(cells: list[tuple[str, str]]) -> None:
    """Any texts before and between the numbers: as many rows, each with its cells."""
    rows = [
        *((one, "", other) for one, other in cells),
        *((one, row[2], row[4]) for one, row in zip("가나다", ROWS, strict=True)),
    ]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "x.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(rows)
        report = bs.enrich(path, columns={"b_no": "#2"}, has_header=False, manifest=Path(folder) / "run.json")
        with Path(report.output or "").open(encoding="utf-8", newline="") as file:
            header, *written = csv.reader(file)
    assert header[:3] == ["#1", "#2", "#3"]
    assert [tuple(row[:3]) for row in written] == rows
