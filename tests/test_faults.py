"""Each file of ``files/faults`` and the right outcome for it: files in, files out, exit codes, reports.

The folder's README says where the shapes come from. Each file was read, judged or written back wrongly once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import bizverify as bv
from bizverify.errors import ColumnError, InputError
from bizverify.schema import Alert
from conftest import ROOT, write

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


def headers_of(report: bv.Report) -> dict[str, list[str]]:
    """The headers of each role, as written but for the tabs that some exports put behind every cell."""
    return {role: [part.header.strip() for part in choice.parts] for role, choice in report.columns.items()}


def alerts_of(report: bv.Report) -> list[str]:
    """The alerts but for the one that no status was checked."""
    return [one for one in report.warnings if isinstance(one, Alert) and "`send`" not in one]


def number_header(path: Path, **options: Any) -> str | None:
    """The header of the number column; ``None`` where no column holds numbers."""
    try:
        report = bv.plan(path, **options)
    except ColumnError as error:
        if error.missing != "b_no":
            raise
        return None
    return report.columns["b_no"].header if "b_no" in report.columns else None


@pytest.mark.parametrize(
    ("name", "number", "address", "rows"),
    [
        ("01_ecount_customers.csv", "거래처코드", None, 14),
        ("01b_ecount_one_field_title.csv", "사업자등록번호", "주소1", 12),
        ("01c_ecount_one_field_title_without_name_word.csv", "사업자등록번호", "주소1", 12),
        ("01d_ecount_codes_are_numbers.csv", "거래처코드", None, 12),
        ("01e_ecount_customers.xlsx", "거래처코드", "주소1", 13),
    ],
)
def test_the_title_of_an_export_is_no_header(
    tmp_path: Path, name: str, number: str, address: str | None, rows: int
) -> None:
    """``회사명 : …`` stands above the header; twelve customers are verified, the export's foot is an invalid row."""
    report = bv.enrich(FAULTS / name, tmp_path / name)
    found = headers_of(report)
    assert (found["b_no"], found["name"], found.get("address")) == (
        [number],
        ["거래처명"],
        [address] if address else None,
    )
    assert (report.rows, report.counts["verified"]) == (rows, 12)
    assert len(alerts_of(report)) == (number == "거래처코드")  # found by its content


def test_a_school_has_a_name(tmp_path: Path) -> None:
    """04: 학교명 is a name; a list without one is read, and the report and ``--json`` note it."""
    path = FAULTS / "04_name_of_a_school.csv"
    assert headers_of(bv.plan(path))["name"] == ["학교명"]
    without = write(tmp_path / "x.csv", path.read_text(encoding="utf-8-sig").replace("학교명", "비고"))
    report = bv.plan(without)
    assert "name" not in report.columns
    assert [one for one in report.as_dict()["warnings"] if "no name column" in one]


def test_codes_of_legal_dongs_are_no_business_numbers() -> None:
    """05: ten digits with wrong check digits. The file has no header, so its first row is not taken for one."""
    path = FAULTS / "05_headerless_dong_codes.csv"
    with pytest.raises(InputError, match="has_header=False"):
        bv.plan(path)
    assert number_header(path, has_header=False) is None


def test_a_row_has_its_address_by_road_else_by_lot(tmp_path: Path) -> None:
    """08: half of the rows have no 도로명주소. Each row is verified with its own address, and no alert is needed."""
    path = FAULTS / "08_localdata_two_addresses.csv"
    report = bv.enrich(path, tmp_path / "x.parquet")
    assert headers_of(report)["address"] == ["도로명주소", "지번주소"]
    assert alerts_of(report) == []
    rows = pl.read_parquet(tmp_path / "x.parquet").head(2).to_dicts()
    for row, address in zip(rows, ("지번주소", "도로명주소"), strict=True):
        alone = bv.verify(row["사업자등록번호"], row["사업장명"], row[address], row["도로명우편번호"])
        assert row["reasons"] == list(alone.reasons)
    by_lot = bv.enrich(path, tmp_path / "x.parquet", columns={"address": "지번주소|도로명주소"})
    assert by_lot.plan.without_address == 0
    (note,) = (one for one in report.warnings if one.startswith("zipcode"))
    assert "nearest" not in note  # six digits are no postal code, though they stand nearer


def test_a_header_of_three_lines_is_read_as_one(tmp_path: Path) -> None:
    """09: blank lines and line breaks within it; the blank line below it is a row as any blank line."""
    report = bv.enrich(FAULTS / "09_header_of_three_lines.csv", tmp_path / "x.csv")
    assert headers_of(report) == {
        "b_no": ["사업자 등록번호"],
        "name": ["거래처명"],
        "address": ["소재지(위치) 상세주소"],
        "zipcode": ["소재지(위치) 우편번호"],
    }
    assert (report.rows, report.counts["verified"], report.counts["invalid"]) == (21, 20, 1)
    assert headers_of(bv.plan(FAULTS / "09_header_of_three_lines.csv", columns={"name": "거래처 번호"}))["name"]


def test_another_registration_number_is_no_business_number() -> None:
    """10: nothing below 등록번호 has ten digits."""
    assert number_header(FAULTS / "10_other_registration_number.csv") is None


def test_an_address_is_found_under_a_misspelt_header() -> None:
    """14: with an alert."""
    report = bv.plan(FAULTS / "14_misspelt_address_header.csv")
    assert headers_of(report)["address"] == ["adress"]
    assert report.columns["address"].why == "content"
    assert len(alerts_of(report)) == 1


@pytest.mark.parametrize(
    ("name", "key", "first"),
    [
        ("report_02_addresses_list_of_objects.json", "addresses.0.line", "서울특별시 종로구 종로 426"),
        ("report_02c_address_jsonb.csv", "address.road", "대전광역시 유성구 대학로 313"),
    ],
)
def test_an_object_is_no_address(tmp_path: Path, name: str, key: str, first: str) -> None:
    """The alert names the key that holds the address; with it each row is verified by that address."""
    path = FAULTS / name
    report = bv.plan(path)
    assert "address" not in report.columns
    assert [key in one for one in alerts_of(report)] == [True]
    with pytest.raises(ColumnError, match=key):
        bv.plan(path, columns={"address": key.split(".")[0]})
    report = bv.enrich(path, tmp_path / "x.parquet", columns={"address": key})
    assert (report.counts["verified"], report.plan.without_address) == (4, 0)
    row = pl.read_parquet(tmp_path / "x.parquet").row(0, named=True)
    assert row["reasons"] == list(bv.verify(row["b_no"], row["name"], first).reasons)


# (end of columns)
