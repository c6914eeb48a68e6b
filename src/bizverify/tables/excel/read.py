"""Workbooks → frames, by fastexcel."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Final

import polars as pl

from bizverify.errors import InputError, UsageError
from bizverify.tables.packing import File
from bizverify.tables.table import Format, Table, positional

if TYPE_CHECKING:
    from fastexcel import ExcelReader

_EXACT: Final = 10**15
_DAY_OF_TIMES: Final = date(1899, 12, 31)
"""The day that calamine puts before a time of day."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """The sheet that was read of an .xlsx or .xlsm workbook.

    ``header``: how many rows the last line of the header stands below the first row that holds a value.
    """

    name: str
    header: int = 0


def read(file: File, format: Format, sheet: str | None) -> Table:
    """Open a sheet of an .xlsx workbook: the named one, else the first visible one that is not empty.

    The first row that holds anything is the header. Text stays text, whole numbers are Int64, dates Date, times of day
    Time; a column of mixed types is text. Raises :class:`InputError`, :class:`UsageError` for a missing sheet.
    """
    import fastexcel

    path = file.path
    logging.getLogger("fastexcel").setLevel(logging.ERROR)  # it warns of every column without a value
    try:
        book = fastexcel.read_excel(file.data)
        name, headers = _chosen_sheet(book, path, sheet)
        frame = _cells(book, name)
    except (fastexcel.FastExcelError, OSError) as error:
        raise InputError(f"{path}: is not a readable workbook: {str(error).splitlines()[0]}") from error
    lazy = positional(_natural_types(frame).lazy(), frame.columns)
    source = Sheet(name) if format == "xlsx" else None
    return Table(lazy, headers, format, f"{path.name} [{name}]", file, source)


def _chosen_sheet(book: ExcelReader, path: Path, wanted: str | None) -> tuple[str, tuple[str, ...]]:
    """The sheet's name and its headers."""
    names = book.sheet_names
    if wanted is not None and wanted not in names:
        raise UsageError(f"{path}: has no sheet {wanted!r}; it has {', '.join(map(repr, names))}")
    for name in names if wanted is None else [wanted]:
        top = book.load_sheet(name, header_row=None, n_rows=1, dtypes="string")
        headers = top.to_polars()
        if headers.height and (wanted is not None or top.visible == "visible"):
            return name, tuple(value or "" for value in headers.row(0))
    which = "every visible sheet" if wanted is None else f"sheet {wanted!r}"
    raise InputError(f"{path}: {which} is empty")


def _cells(book: ExcelReader, name: str) -> pl.DataFrame:
    import fastexcel

    try:
        return book.load_sheet(name, header_row=0, schema_sample_rows=None).to_polars()
    except fastexcel.UnsupportedColumnTypeCombinationError:  # dates and durations in one column: all as text, then
        return book.load_sheet(name, header_row=0, dtypes="string").to_polars()


def _natural_types(frame: pl.DataFrame) -> pl.DataFrame:
    """Excel knows only floats and date-times: make integers, dates and times of the columns that hold nothing else."""
    natural: list[pl.Expr] = []
    for values in frame:
        if values.dtype == pl.Float64 and ((values % 1 == 0) & (values.abs() < _EXACT)).all():
            natural.append(pl.col(values.name).cast(pl.Int64))
        elif values.dtype == pl.Datetime and (values.dt.date() == _DAY_OF_TIMES).all():
            natural.append(pl.col(values.name).dt.time())
        elif values.dtype == pl.Datetime and (values == values.dt.truncate("1d")).all():
            natural.append(pl.col(values.name).cast(pl.Date))
    return frame.with_columns(natural)
