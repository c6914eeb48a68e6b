"""Each file of ``files/faults`` and the right outcome for it: files in, files out, exit codes, reports.

The folder's README says where the shapes come from. Each file was read, judged or written back wrongly once.
"""

from __future__ import annotations

import csv
from pathlib import Path

import openpyxl
import pytest

import bizverify as bv
from bizverify.errors import InputError
from conftest import NINE, ROOT, write

FAULTS = ROOT / "tests" / "files" / "faults"


def test_every_file_is_named_here() -> None:
    """A file without an outcome proves nothing."""
    text = (ROOT / "tests" / "test_faults.py").read_text(encoding="utf-8")
    assert [one.name for one in FAULTS.iterdir() if one.suffix != ".md" and one.name not in text] == []


# Workbooks that are written: 11, 05, 07, 08, 09, 13, 14


# (end of workbooks that are written)


# Values and types: 12, 03, report_01, report_03, report_04, report_10, 07_points


# (end of values and types)


# Earlier outputs, delimiters: report_12, report_15


def test_the_lines_of_a_caret_are_read_where_it_is_named_and_else_the_option_is(tmp_path: Path) -> None:
    source, out = FAULTS / "report_12_caret_delimited.txt", tmp_path / "out.txt"
    with pytest.raises(InputError, match=r"sep=\^.*`delimiter='\^'`"):
        bv.plan(source)
    report = bv.enrich(source, out, delimiter="^")
    assert (report.rows, sorted(report.columns)) == (4, ["address", "b_no", "name"])
    before, after = (path.read_text(encoding="utf-8").splitlines() for path in (source, out))
    assert [line.split("^")[:4] for line in after] == [line.split("^") for line in before]
    assert after[0].split("^")[4:] == list(NINE)


@pytest.mark.parametrize("name", ["report_15_reasons_deleted.csv", "report_15b_columns_twice.csv"])
def test_no_stale_verdict_stays_beside_the_new_one(tmp_path: Path, name: str) -> None:
    """A registry says something new: every `action` and `biz_status` of the output says it."""
    old = list(csv.reader((FAULTS / name).read_text(encoding="utf-8").splitlines()))
    source = write(tmp_path / "statuses.csv", "b_no,상태\n" + "".join(f"{row[0]},폐업자\n" for row in old[1:]))
    bv.build_registry([source], tmp_path / "registry.parquet", as_of="2026-11-20")
    report = bv.enrich(FAULTS / name, tmp_path / "out.csv", registry=tmp_path / "registry.parquet", today="2026-11-21")
    header, *rows = csv.reader((tmp_path / "out.csv").read_text(encoding="utf-8").splitlines())
    assert header == (old[0] if "reasons" in old[0] else [*old[0], "reasons"])
    for place, title in enumerate(header):
        if title == "biz_status":
            assert {row[place] for row in rows} == {"closed"}
        if title == "action":
            assert {row[place] for row in rows} <= {"do_not_send", "hold"}
    assert report.replaced["action"] == 4


def test_a_memo_among_our_columns_stays_where_it_stands(tmp_path: Path) -> None:
    source = FAULTS / "report_15c_memo_among_ours.xlsx"
    report = bv.enrich(source, tmp_path / "out.xlsx")
    before, after = (list(openpyxl.load_workbook(path).active.values) for path in (source, tmp_path / "out.xlsx"))
    assert after[0] == before[0]
    assert [row[:4] + row[6:7] for row in after] == [row[:4] + row[6:7] for row in before]
    assert {row[9] for row in after[1:]} == {None}  # no gazetteer: yesterday's postal codes are no answers of today
    assert report.replaced == {"fixed_zipcode": 4, "fixed_address": 4}
    assert any("'내 메모'" in warning for warning in report.warnings)


# (end of earlier outputs, delimiters)


# Columns: 01, 04, 05, 08, 09, 10, 14, report_02


# (end of columns)
