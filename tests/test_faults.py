"""Each file of ``files/faults`` and the right outcome for it: files in, files out, exit codes, reports.

The folder's README says where the shapes come from. Each file was read, judged or written back wrongly once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from xml.etree import ElementTree
from zipfile import ZipFile

import fastexcel
import openpyxl
import pytest

import bizverify as bv
from bizverify.schema import Alert
from conftest import NINE, ROOT

FAULTS = ROOT / "tests" / "files" / "faults"


def test_every_file_is_named_here() -> None:
    """A file without an outcome proves nothing."""
    text = (ROOT / "tests" / "test_faults.py").read_text(encoding="utf-8")
    assert [one.name for one in FAULTS.iterdir() if one.suffix != ".md" and one.name not in text] == []


# Workbooks that are written: 11, 05, 07, 08, 09, 13, 14

Cells = list[list[str | None]]
Run = Callable[..., CompletedProcess[str]]


def cells_of(path: Path, sheet: str | int = 0) -> Cells:
    """The cells of a sheet, from the first row that holds a value; each part of the workbook parses."""
    with ZipFile(path) as archive:
        for name in archive.namelist():
            if name.endswith((".xml", ".rels")):
                ElementTree.fromstring(archive.read(name))
    return [
        *map(list, fastexcel.read_excel(path).load_sheet(sheet, header_row=None, dtypes="string").to_polars().rows())
    ]


def written_back(run: Run, tmp_path: Path, name: str) -> tuple[Cells, Path]:
    """Enrich a workbook on the command line: every cell is as it was, and each row has its answer; return both."""
    out = tmp_path / "out.xlsx"
    done = run("enrich", FAULTS / name, "-o", out, "--json")
    assert done.returncode == 0, done.stderr
    before, after = cells_of(FAULTS / name), cells_of(out)
    wide = len(before[0])
    assert [row[:wide] for row in after] == before
    header = next(place for place, row in enumerate(after) if "row_status" in row)
    assert after[header][wide:] == list(NINE)
    place = after[header].index("row_status")
    assert [row[place] for row in after[header + 1 :]] == ["verified"] * (len(after) - header - 1)
    return after, out


def alerts_of(name: str, output: Path) -> list[str]:
    """The alerts of a run but for that of statuses."""
    warnings = bv.enrich(FAULTS / name, output).warnings
    return [warning for warning in warnings if isinstance(warning, Alert) and "`send`" not in warning]


@pytest.mark.filterwarnings("ignore:.*(contains no|not supported).*:UserWarning")  # of openpyxl
@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("11_spacer_row_and_blank_last_cells.xlsx", 8),
        ("11b_spacer_row_and_bordered_blank_last_row.xlsx", 8),
        ("11c_merged_title_and_spacer_row.xlsx", 8),
        ("report_05_empty_stylesheet.xlsx", 4),
        ("report_07_backslash_names.xlsx", 4),
        ("report_08_lowercase_content_types.xlsx", 4),
        ("report_09_signed.xlsx", 4),
        ("report_13_sparkline_beside.xlsx", 4),
        ("report_14_whole_table_formulas.xlsx", 4),
    ],
)
def test_every_cell_comes_back_in_a_workbook_that_programs_can_open(
    run: Run, tmp_path: Path, name: str, rows: int
) -> None:
    after, out = written_back(run, tmp_path, name)
    assert sum("verified" in row for row in after) == rows
    assert openpyxl.load_workbook(out).active["A1"].value == after[0][0]  # which does not find parts of odd names


@pytest.mark.parametrize("name", ["11_spacer_row_and_blank_last_cells.xlsx", "11c_merged_title_and_spacer_row.xlsx"])
def test_an_empty_row_keeps_its_height_and_blank_cells_their_style(run: Run, tmp_path: Path, name: str) -> None:
    _, out = written_back(run, tmp_path, name)
    old, new = (openpyxl.load_workbook(path).active for path in (FAULTS / name, out))
    assert new.row_dimensions[2].height == old.row_dimensions[2].height == 9.75
    for row in old.iter_rows():
        assert [new[cell.coordinate].border.top.style for cell in row] == [cell.border.top.style for cell in row]


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("report_09_signed.xlsx", "signature"),
        ("report_13_sparkline_beside.xlsx", "F2:F2"),
        ("report_14_whole_table_formulas.xlsx", r"'T' .*Sheet2!A1, Sheet2!B1"),
    ],
)
def test_what_the_new_columns_change_for_others_is_an_alert(tmp_path: Path, name: str, named: str) -> None:
    """It is said once: where the columns are there already, nothing changes for the sparkline and the sums."""
    (alert,) = alerts_of(name, tmp_path / "out.xlsx")
    assert re.search(named, alert)
    again = bv.enrich(tmp_path / "out.xlsx", tmp_path / "again.xlsx").warnings
    assert [re.search(named, warning) is not None for warning in again if isinstance(warning, Alert)].count(True) == (
        1 if "signed" in name else 0
    )


# (end of workbooks that are written)


# Values and types: 12, 03, report_01, report_03, report_04, report_10, 07_points


# (end of values and types)


# Earlier outputs, delimiters: report_12, report_15


# (end of earlier outputs, delimiters)


# Columns: 01, 04, 05, 08, 09, 10, 14, report_02


# (end of columns)
