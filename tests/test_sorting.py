"""A sort in the finished workbook moves customers and verdicts together: really sorted, by LibreOffice."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import openpyxl
import polars as pl
import pytest
import xlsxwriter

import bansong as bs
from books import BOOK, SHEET, made, parts, with_parts, written
from conftest import NINE, SAMPLE
from office import Cells, sorted_in_every_way

REGISTRY = SAMPLE / "registry.parquet"
HEADERS = ["상호", "사업자등록번호", "주소"]


def records() -> list[list[str]]:
    """Businesses of the sample, of every status, whose names stand in no order."""
    frame = pl.read_csv(SAMPLE / "customers.csv", infer_schema=False).drop_nulls(HEADERS)
    answered = bs.verify_frame(frame, registry=REGISTRY)
    few = answered.unique(["biz_status", "reasons"], maintain_order=True).unique("상호", maintain_order=True).head(12)
    assert not few["상호"].is_sorted()
    assert few["biz_status"].n_unique() > 2
    return [list(row) for row in few.select(HEADERS).iter_rows()]


def by_filter(path: Path, rows: list[list[str]]) -> str:
    made(path, [HEADERS, *rows], lambda sheet: sheet.autofilter(0, 0, len(rows), 2), name="고객 명단")
    return "A2"


def by_table(path: Path, rows: list[list[str]]) -> str:
    table = {"name": "고객", "data": rows, "columns": [{"header": header} for header in HEADERS]}
    made(path, [], lambda sheet: sheet.add_table(0, 0, len(rows), 2, table))
    return "A2"


def by_none(path: Path, rows: list[list[str]]) -> str:
    written(path, [HEADERS, *rows])
    return "A2"


def by_filter_with_hidden_rows(path: Path, rows: list[list[str]]) -> str:
    def lay_out(sheet: xlsxwriter.worksheet.Worksheet) -> None:
        sheet.autofilter(0, 0, len(rows), 2)
        sheet.filter_column_list(0, [row[0] for row in rows[::2]])
        for number in range(2, len(rows) + 1, 2):
            sheet.set_row(number, None, None, {"hidden": True})

    made(path, [HEADERS, *rows], lay_out)
    return "A2"


def below_titles(path: Path, rows: list[list[str]]) -> str:
    def lay_out(sheet: xlsxwriter.worksheet.Worksheet) -> None:
        sheet.merge_range("B1:D1", "고객 명단")
        sheet.write("B2", "기준일 2026-11-22")
        for number, row in enumerate([HEADERS, *rows], 3):
            sheet.write_row(number, 1, row)
        sheet.autofilter(3, 1, 3 + len(rows), 3)

    made(path, [], lay_out)
    return "B5"


def enriched_without_widening(path: Path, rows: list[list[str]]) -> str:
    """As an enrichment left it that did not widen anything: the new columns stand outside the filter."""
    cell = by_filter(path, rows)
    old = parts(path)
    bs.enrich(path, in_place=True, backup=False)
    filter_ = re.compile(rb"<autoFilter[^>]*>")
    sheet = filter_.sub(filter_.findall(old[SHEET])[0], parts(path)[SHEET])
    with_parts(path, {SHEET: sheet, BOOK: old[BOOK]})
    return cell


CASES: dict[str, Callable[[Path, list[list[str]]], str]] = {
    "filter": by_filter,
    "table": by_table,
    "none": by_none,
    "hidden rows": by_filter_with_hidden_rows,
    "below titles": below_titles,
    "filter of an earlier enrichment": enriched_without_widening,
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
    (before, *after), path = sorts[case]
    top = next(number for number, row in enumerate(before) if "상호" in row)
    place = before[top].index("상호")
    assert set(NINE) <= set(before[top])
    assert len(after) == (1 if case == "none" else 2)
    for number, state in enumerate(after):
        assert state[: top + 1] == before[: top + 1]
        assert sorted(state) == sorted(before)
        names = [row[place] for row in state[top + 1 :]]
        assert names != [row[place] for row in before[top + 1 :]]
        if case != "hidden rows":  # a sort moves the rows that are shown, and leaves the hidden ones where they are
            assert names == sorted(names, reverse=number == len(after) - 1)
    sheet = openpyxl.load_workbook(path).active
    action = next(cell for row in sheet.iter_rows() for cell in row if cell.value == "action")
    references = [sheet.auto_filter.ref, *(table.ref for table in sheet.tables.values())]
    assert [ref for ref in references if ref] or case == "none"
    for left, _, right, _ in map(openpyxl.utils.range_boundaries, filter(None, references)):
        assert left <= action.column <= right, "it can be filtered by the action"
