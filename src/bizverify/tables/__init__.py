"""Files ⇄ frames: one module a format, reading and writing side by side; ``columns`` maps headers to roles."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import polars as pl

from bizverify.errors import InputError, UsageError
from bizverify.tables import csv, excel, json, parquet
from bizverify.tables.detect import detect_format
from bizverify.tables.publish import published
from bizverify.tables.table import Enriched, Format, Table

__all__ = ["Enriched", "Format", "Table", "open_table", "published", "reading", "write_table", "written_rows"]


@contextmanager
def open_table(path: Path, *, sheet: str | None = None, encoding: str | None = None) -> Iterator[Table]:
    """Open a file as a lazy :class:`Table`, its format found by content and extension.

    Raises :class:`InputError`; :class:`UsageError` where ``sheet`` or ``encoding`` has no meaning for the format.
    """
    format = detect_format(path)
    if sheet is not None and format != "xlsx":
        raise UsageError(f"{path}: --sheet is for Excel workbooks, this file is {format}")
    if encoding is not None and format != "csv":
        raise UsageError(f"{path}: --encoding is for CSV files, this file is {format}")
    with ExitStack() as resources:
        yield _read(path, format, sheet, encoding, resources)


@contextmanager
def reading(table: Table) -> Iterator[None]:
    """Turn what polars says about an unreadable part of a file into an :class:`InputError` that names the place."""
    try:
        yield
    except pl.exceptions.PolarsError as error:
        if table.path is None:
            raise
        if isinstance(table.source, csv.Dialect):
            raise csv.explained(table.path, table.source, error) from error
        raise InputError(f"{table.path}: cannot be read: {str(error).splitlines()[0]}") from error


def write_table(result: Enriched, target: Path, format: Format, encoding: str | None = None) -> pl.DataFrame:
    """Write an enriched table to ``target`` in a format; return the tally that was collected in the same pass.

    Raises :class:`OutputError`; :class:`UsageError` where ``encoding`` has no meaning for the format.
    """
    if encoding is not None and format != "csv":
        raise UsageError(f"{target}: --output-encoding is for CSV files")
    if format == "csv":
        return csv.write(result, target, encoding)
    if format == "xlsx":
        return excel.write(result, target)
    if format == "parquet":
        return parquet.write(result, target)
    return json.write(result, target, format)


def written_rows(table: Table, path: Path, format: Format, encoding: str | None) -> int:
    """Read back an output that was made from ``table`` and count its rows."""
    sheet = table.source.name if format == "xlsx" and isinstance(table.source, excel.Sheet) else None
    if encoding is None and format == "csv" and isinstance(table.source, csv.Dialect):
        encoding = table.source.encoding
    with ExitStack() as resources:
        return _read(path, format, sheet, encoding, resources).count()


def _read(path: Path, format: Format, sheet: str | None, encoding: str | None, resources: ExitStack) -> Table:
    if format == "csv":
        return csv.read(path, encoding, resources)
    if format == "xlsx":
        return excel.read(path, sheet)
    if format == "parquet":
        return parquet.read(path)
    return json.read(path, format)
