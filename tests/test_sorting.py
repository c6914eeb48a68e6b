"""A sort in the finished workbook moves customers and verdicts together: really sorted, by LibreOffice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openpyxl
import polars as pl
import pytest

import bansong as bs
from books import made
from conftest import NINE, SAMPLE
from office import sorted_in_every_way

REGISTRY = SAMPLE / "registry.parquet"
HEADERS = ["상호", "사업자등록번호", "주소"]


@pytest.mark.process
def test_a_sort_carries_the_verdicts_along(tmp_path: Path) -> None:
    """By a filter's button, a table's or a click into the sheet: every row is the same, in another order."""
    frame = pl.read_csv(SAMPLE / "customers.csv", infer_schema=False).drop_nulls(HEADERS)
    answered = bs.verify_frame(frame, registry=REGISTRY).unique(["biz_status", "reasons"], maintain_order=True)
    rows = [list(row) for row in answered.unique("상호", maintain_order=True).select(HEADERS).head(12).iter_rows()]

    def with_filter(sheet: Any) -> None:
        sheet.merge_range("A1:D1", "고객 명단")
        sheet.autofilter(3, 0, 3 + len(rows), 2)

    def with_table(sheet: Any) -> None:
        sheet.add_table(3, 0, 3 + len(rows), 2, {"name": "고객", "columns": [{"header": one} for one in HEADERS]})

    files = []
    for lay_out in (with_filter, with_table, lambda _: None):
        source = made(tmp_path / f"{len(files)}.xlsx", [[], [], [], HEADERS, *rows], lay_out, name="고객 명단")
        files.append((source.with_suffix(".out.xlsx"), "A5"))
        bs.enrich(source, files[-1][0], registry=REGISTRY)
    for (path, _), (before, *after), declared in zip(files, sorted_in_every_way(files), (1, 1, 0), strict=True):
        top = before.index(next(row for row in before if "상호" in row))
        assert (set(NINE) <= set(before[top]), len(after)) == (True, declared + 1)
        names = [row[0] for row in before[top + 1 :]]
        assert names not in (sorted(names), sorted(names, reverse=True))
        for number, state in enumerate(after):
            assert (state[: top + 1], sorted(state)) == (before[: top + 1], sorted(before))
            assert [row[0] for row in state[top + 1 :]] == sorted(names, reverse=number == declared)
        sheet = openpyxl.load_workbook(path).active
        references = [sheet.auto_filter.ref, *(table.ref for table in sheet.tables.values())]
        assert [ref for ref in references if ref] == ["A4:L16"] * declared, "the action can be filtered"
