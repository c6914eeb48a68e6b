"""A sort in the finished workbook moves customers and verdicts together: really sorted, by LibreOffice."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import openpyxl
import polars as pl
import pytest
import xlsxwriter
from openpyxl.worksheet.table import Table as ExcelTable

import bansong as bs
from conftest import NINE, SAMPLE
from office import Cells, sorted_in_every_way

REGISTRY = SAMPLE / "registry.parquet"
HEADERS = ["상호", "사업자등록번호", "주소"]
SHEET = "xl/worksheets/sheet1.xml"


def records() -> list[list[str]]:
    """Businesses of the sample, of every status, whose names stand in no order."""
    frame = pl.read_csv(SAMPLE / "customers.csv", infer_schema=False).drop_nulls(HEADERS)
    answered = bs.verify_frame(frame, registry=REGISTRY)
    few = answered.unique(["biz_status", "reasons"], maintain_order=True).unique("상호", maintain_order=True).head(12)
    assert not few["상호"].is_sorted()
    assert few["biz_status"].n_unique() > 2
    return [list(row) for row in few.select(HEADERS).iter_rows()]


def by_filter(path: Path, rows: list[list[str]]) -> str:
    with xlsxwriter.Workbook(path) as book:
        sheet = book.add_worksheet("고객 명단")
        for number, row in enumerate([HEADERS, *rows]):
            sheet.write_row(number, 0, row)
        sheet.autofilter(0, 0, len(rows), 2)
    return "A2"


def by_table(path: Path, rows: list[list[str]]) -> str:
    with xlsxwriter.Workbook(path) as book:
        sheet = book.add_worksheet()
        sheet.add_table(0, 0, len(rows), 2, {"name": "고객", "data": rows, "columns": [{"header": h} for h in HEADERS]})
    return "A2"


def by_table_and_filter(path: Path, rows: list[list[str]]) -> str:
    by_none(path, rows)
    book = openpyxl.load_workbook(path)
    book.active.add_table(ExcelTable(displayName="T", ref=f"A1:C{len(rows) + 1}"))
    book.active.auto_filter.ref = f"A1:C{len(rows) + 1}"
    book.save(path)
    return "A2"


def by_none(path: Path, rows: list[list[str]]) -> str:
    book = openpyxl.Workbook()
    for row in [HEADERS, *rows]:
        book.active.append(row)
    book.save(path)
    return "A2"


def by_filter_with_hidden_rows(path: Path, rows: list[list[str]]) -> str:
    with xlsxwriter.Workbook(path) as book:
        sheet = book.add_worksheet()
        for number, row in enumerate([HEADERS, *rows]):
            sheet.write_row(number, 0, row)
        sheet.autofilter(0, 0, len(rows), 2)
        sheet.filter_column_list(0, [row[0] for row in rows[::2]])
        for number in range(2, len(rows) + 1, 2):
            sheet.set_row(number, None, None, {"hidden": True})
    return "A2"


def by_filter_of_whole_columns(path: Path, rows: list[list[str]]) -> str:
    """As LibreOffice saves it: neither the filter nor its name states rows."""
    by_filter(path, rows)
    with ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    parts[SHEET] = re.sub(rb'<autoFilter ref="[^"]*"', b'<autoFilter ref="A:C"', parts[SHEET])
    parts["xl/workbook.xml"] = re.sub(rb"!\$A\$1:\$C\$[0-9]+<", b"!$A:$C<", parts["xl/workbook.xml"])
    assert b"!$A:$C<" in parts["xl/workbook.xml"]
    with ZipFile(path, "w") as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return "A2"


def below_titles(path: Path, rows: list[list[str]]) -> str:
    with xlsxwriter.Workbook(path) as book:
        sheet = book.add_worksheet()
        sheet.merge_range("B1:D1", "고객 명단")
        sheet.write("B2", "기준일 2026-11-22")
        for number, row in enumerate([HEADERS, *rows], 3):
            sheet.write_row(number, 1, row)
        sheet.autofilter(3, 1, 3 + len(rows), 3)
    return "B5"


def enriched_again(path: Path, rows: list[list[str]]) -> str:
    by_filter(path, rows)
    bs.enrich(path, in_place=True, backup=False)
    return "A2"


def enriched_without_widening(path: Path, rows: list[list[str]], made: Callable[..., str] = by_filter) -> str:
    """As an enrichment left it that did not widen anything: the new columns stand outside the filter or table."""
    cell = made(path, rows)
    with ZipFile(path) as archive:
        old = {name: archive.read(name) for name in archive.namelist()}
    bs.enrich(path, in_place=True, backup=False)
    with ZipFile(path) as archive:
        new = {name: archive.read(name) for name in archive.namelist()}
    filter_ = re.compile(rb"<autoFilter[^>]*>")
    if found := filter_.search(old[SHEET]):
        new[SHEET] = filter_.sub(found[0], new[SHEET])
    kept = {name: data for name, data in old.items() if "tables/" in name or name == "xl/workbook.xml"}
    with ZipFile(path, "w") as archive:
        for name, data in (new | kept).items():
            archive.writestr(name, data)
    return cell


def table_enriched_without_widening(path: Path, rows: list[list[str]]) -> str:
    return enriched_without_widening(path, rows, by_table)


CASES: dict[str, Callable[[Path, list[list[str]]], str]] = {
    "filter": by_filter,
    "table": by_table,
    "table and filter": by_table_and_filter,
    "none": by_none,
    "hidden rows": by_filter_with_hidden_rows,
    "filter of whole columns": by_filter_of_whole_columns,
    "below titles": below_titles,
    "enriched again": enriched_again,
    "filter of an earlier enrichment": enriched_without_widening,
    "table of an earlier enrichment": table_enriched_without_widening,
}


@pytest.fixture(scope="module")
def sorts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[list[Cells], Path]]:
    """Each case enriched, and sorted by its names: the cells before and after each sort, and the file."""
    folder, rows = tmp_path_factory.mktemp("sorted"), records()
    files = []
    for number, make in enumerate(CASES.values()):
        source = folder / f"{number}.xlsx"
        cell = make(source, rows)
        bs.enrich(source, folder / f"{number}.out.xlsx", registry=REGISTRY)
        files.append((folder / f"{number}.out.xlsx", cell))
    found = zip(CASES, sorted_in_every_way(files), files, strict=True)
    return {case: (states, path) for case, states, (path, _) in found}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.process
def test_a_sort_carries_the_verdicts_along(sorts: dict[str, tuple[list[Cells], Path]], case: str) -> None:
    """By a filter's button, a table's or a click into the sheet: every row is the same, in another order."""
    (before, *after), _ = sorts[case]
    top = next(number for number, row in enumerate(before) if "상호" in row)
    place = before[top].index("상호")
    assert set(NINE) <= set(before[top])
    assert len(after) == {"none": 1, "table and filter": 3}.get(case, 2)
    for number, state in enumerate(after):
        assert state[: top + 1] == before[: top + 1]
        assert sorted(state) == sorted(before)
        names = [row[place] for row in state[top + 1 :]]
        assert names != [row[place] for row in before[top + 1 :]]
        if case != "hidden rows":  # a sort moves the rows that are shown, and leaves the hidden ones where they are
            assert names == sorted(names, reverse=number == len(after) - 1)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.process
def test_what_was_widened_opens_and_filters_by_action(sorts: dict[str, tuple[list[Cells], Path]], case: str) -> None:
    """The workbook opens in openpyxl; its filter and its table hold the column of the actions and have its header."""
    sheet = openpyxl.load_workbook(sorts[case][1]).active
    action = next(cell for row in sheet.iter_rows() for cell in row if cell.value == "action")
    references = [sheet.auto_filter.ref, *(table.ref for table in sheet.tables.values())]
    references += [table.autoFilter.ref for table in sheet.tables.values() if table.autoFilter]
    assert [ref for ref in references if ref] or case == "none"
    for ref in filter(None, references):
        assert is_within(action, ref)
    for table in sheet.tables.values():
        assert table.column_names == [cell.value for cell in sheet[table.ref][0]]


def is_within(cell: openpyxl.cell.cell.Cell, ref: str) -> bool:
    left, top, right, bottom = openpyxl.utils.range_boundaries(ref)
    return left <= cell.column <= right and (top or 1) <= cell.row <= (bottom or cell.row)
