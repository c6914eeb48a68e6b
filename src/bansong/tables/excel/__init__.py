"""Excel workbooks ⇄ frames: ``read`` any, ``extend`` the user's own, ``create`` a new one.

- ``read`` → ``limits_check`` (before a parser sees it), ``decodable`` (copies for the parser), ``sheets``
  (choose and load a sheet)
- ``extend`` → ``sheet_xml`` (rows), ``xml_edit`` (edits by bytes), ``sheet_metadata`` (widths, formats, styles),
  ``ranges`` (filter, tables, sort), ``table_formulas`` (formulas over a whole table), ``drawings`` (charts over new
  columns)
- ``create``: a new workbook and its summary sheet
- ``proof``: both are parsed and read back before they are published
- ``package`` (the zip and its parts), ``cells`` (values → XML): used by both
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final
from zipfile import ZipFile

import polars as pl
import polars.selectors as cs

from bansong.errors import OutputError, Problem
from bansong.schema import OUR_COLUMNS
from bansong.tables.excel.cells import MAX_COLUMNS
from bansong.tables.excel.create import count_rows, create_workbook
from bansong.tables.excel.extend import extend_workbook
from bansong.tables.excel.package import refuse_other_kind
from bansong.tables.excel.proof import prove_created
from bansong.tables.excel.read import Sheet, read
from bansong.tables.table import Enriched, Table, contract_name, flat, refuse_binary, typed_columns, typed_id

OUTPUT_TOO_WIDE: Final = Problem(
    "excel.output_too_wide",
    "the output's {width:,} columns are more than a sheet has ({max_columns:,}); give "
    "`output='OUT.csv'` or OUT.parquet, or keep fewer with `select=`",
)
SUMMARY_SHEET_IMPOSSIBLE: Final = Problem(
    "excel.summary_sheet_impossible",
    "a summary sheet cannot be added to a workbook of yours without changing other parts of "
    "it; leave `summary=True` out, or write a new workbook from a CSV",
)
MACROS_NOT_WRITTEN: Final = Problem(
    "excel.macros_not_written",
    "a new workbook holds no macros, Excel would not open it as {suffix}; give `output='OUT.xlsx'`",
)

__all__ = ["Sheet", "read", "refuse", "refuse_wide", "write"]


def refuse(table: Table, target: Path, *, anew: bool, summary: bool) -> None:
    """Raise :class:`OutputError` for a workbook that could not be written as is asked; known before any row is.

    ``anew``: whether a workbook of the user's becomes a new one, for lack of some of its columns. ``summary``: whether
    a summary sheet is asked for.
    """
    if isinstance(table.source, Sheet) and table.file is not None and not anew:
        if summary:
            raise OutputError(SUMMARY_SHEET_IMPOSSIBLE)
        with ZipFile(table.file.data) as archive:
            refuse_other_kind(archive, target)
    elif target.suffix.lower() != ".xlsx":
        raise OutputError(MACROS_NOT_WRITTEN, suffix=target.suffix)


def refuse_wide(width: int) -> None:
    """Raise :class:`OutputError` for more columns than a sheet has; known before any row is."""
    if width > MAX_COLUMNS:
        raise OutputError(OUTPUT_TOO_WIDE, width=width, max_columns=MAX_COLUMNS)


def write(result: Enriched, target: Path) -> tuple[pl.DataFrame, Callable[[], int]]:
    """Write an enriched table as a workbook; return the tally, and a call that counts the finished workbook's rows.

    A table that came from a workbook, all of whose columns are wanted, gets its columns spliced into that workbook, of
    which everything else stays as it is; any other becomes a new workbook with a header, a filter and frozen titles,
    and a summary sheet if it is asked for. Each cell keeps its type. Text is never stored as a formula. Raises
    :class:`OutputError` for what Excel cannot hold or cannot be extended safely.
    """
    source, file = result.table.source, result.table.file
    keeps_all = _keeps_all(result)
    refuse(result.table, target, anew=not keeps_all, summary=result.summary is not None)
    if isinstance(source, Sheet) and file is not None and keeps_all:
        added = [column for column, _ in result.layout if contract_name(column) in OUR_COLUMNS]
        # the user's styles, which the new cells get, show no dates
        cells = result.frame.select(added).with_columns(cs.date().dt.to_string("iso"))
        frame, tally = pl.collect_all([cells, result.tally], engine="streaming")
        rows = extend_workbook(result, frame, file, source, target)
        return tally, lambda: rows
    cells = result.frame.select(*(column for column, _ in result.layout), *map(typed_id, typed_columns(result)))
    refuse_binary(result.with_titles(lists=False), "Excel")
    frame, tally = pl.collect_all([flat(cells), result.tally], engine="streaming")
    frame = frame.drop(name for name in map(typed_id, typed_columns(result)) if not frame[name].any())
    create_workbook(result, frame, result.summary(tally) if result.summary else (), target)
    prove_created(result, frame, target)
    return tally, partial(count_rows, result.table, target)


def _keeps_all(result: Enriched) -> bool:
    """Whether the output has all of the user's columns where they stood, ours of an earlier run among them."""
    own = result.layout[: len(result.table.headers)]
    return [header for _, header in own] == list(result.table.headers) and all(
        contract_name(column) in (f"c{place}", *OUR_COLUMNS) for place, (column, _) in enumerate(own)
    )
