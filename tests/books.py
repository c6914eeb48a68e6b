"""Workbooks for tests: made, changed in a part, and written back with the same answers in every row."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import fastexcel
import openpyxl
import polars as pl
import xlsxwriter

from bansong.base.schema import ADDED_COLUMNS, RECORD_COLUMNS
from bansong.errors import ColumnError
from bansong.run.columns import lay_out_columns
from bansong.tables.columns import choose_columns
from bansong.tables.detect import FORMATS, open_table, write_table
from bansong.tables.earlier_columns import find_earlier_columns
from bansong.tables.table import Enriched

NUMBER = "124-81-00998"
SHEET, STYLES, BOOK = "xl/worksheets/sheet1.xml", "xl/styles.xml", "xl/workbook.xml"
MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
ANSWERS = (
    *("active", 0.25, "B", "send", "06236", "서울특별시 강남구 테헤란로 152"),
    *("[base -30] <b> & c", "verified", None),
)
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360000000000005000100"
    "0d0a2db40000000049454e44ae426082"
)


def parts(path: Path) -> dict[str, bytes]:
    with ZipFile(path) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


def with_parts(path: Path, changed: Mapping[str, bytes]) -> Path:
    content = parts(path) | dict(changed)
    with ZipFile(path, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return path


def with_part(path: Path, name: str, *changes: tuple[str, str]) -> Path:
    """Replace the first text that fits a pattern, for each change."""
    data = parts(path)[name]
    for old, new in changes:
        data, found = re.subn(old.encode(), new.encode(), data, count=1)
        assert found
    return with_parts(path, {name: data})


def changed(source: Path, target: Path) -> set[str]:
    before, after = parts(source), parts(target)
    assert list(before) == list(after)
    return {name for name in before if before[name] != after[name]}


def written(path: Path, rows: Iterable[Sequence[object]], name: str = "S") -> Path:
    """A workbook by openpyxl: texts that begin with ``=`` are formulas."""
    book = openpyxl.Workbook()
    book.active.title = name
    for row in rows:
        book.active.append(row)
    book.save(path)
    return path


def made(
    path: Path,
    rows: Sequence[Sequence[Any]],
    lay_out: Callable[[Any], object] = lambda _: None,
    *,
    name: str | None = None,
) -> Path:
    """A workbook by XlsxWriter, with what ``lay_out`` does to its sheet."""
    with xlsxwriter.Workbook(path) as book:
        sheet = book.add_worksheet(name)
        for number, row in enumerate(rows):
            sheet.write_row(number, 0, row)
        lay_out(sheet)
    return path


def cells(path: Path, sheet: str | int = 0) -> list[tuple[object, ...]]:
    """Every cell as a text, stored results of formulas among them."""
    return fastexcel.read_excel(path).load_sheet(sheet, header_row=None, dtypes="string").to_polars().rows()


def spliced(
    source: Path, target: Path | None = None, answers: Sequence[object] = ANSWERS, **result: Any
) -> tuple[list[str], Path]:
    """Write a file as a workbook without an engine; return the warnings and the workbook."""
    target, said = target or source.with_name(f"out-{source.stem}.xlsx"), list[str]()
    with open_table(source) as table:
        values = [
            pl.lit(value, pl.Float64 if name == "bounce_prob" else pl.String).alias(name)
            for name, value in zip(ADDED_COLUMNS, answers, strict=True)
        ]
        frame = table.frame.with_columns(values)
        ours = find_earlier_columns(table, "")
        layout, _ = lay_out_columns(table.headers, "", ours.nine, range(len(table.headers)))
        try:
            chosen = choose_columns(table, RECORD_COLUMNS, ours=ours.places).columns
        except ColumnError:  # no number in it
            chosen = {}
        given = {"record_columns": frozenset(one.column for one in chosen.values()), "warn": said.append} | result
        given = {"layout": layout, "tally": frame.select(rows=pl.len())} | given
        _, count = write_table(Enriched(table, frame, **given), target, FORMATS["xlsx"])
        assert count() == table.count()
    return said, target
