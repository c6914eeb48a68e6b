"""Each file of ``files/faults`` and the right outcome for it: files in, files out, exit codes, reports.

The folder's README says where the shapes come from. Each file was read, judged or written back wrongly once.
"""

from __future__ import annotations

from conftest import ROOT

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


# (end of earlier outputs, delimiters)


# Columns: 01, 04, 05, 08, 09, 10, 14, report_02


# (end of columns)
