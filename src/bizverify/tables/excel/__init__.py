"""Excel workbooks ⇄ frames: ``read`` any, ``extend`` the user's own, ``create`` a new one."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from bizverify.model import ADDED_COLUMNS
from bizverify.tables.excel.create import create
from bizverify.tables.excel.extend import extend
from bizverify.tables.excel.read import Sheet, read
from bizverify.tables.table import Enriched, flat, refuse_binary

__all__ = ["Sheet", "read", "write"]


def write(result: Enriched, target: Path) -> pl.DataFrame:
    """Write an enriched table as a workbook and return the tally.

    A table that came from a workbook gets its columns spliced into that workbook, of which everything else stays as it
    is; any other becomes a new workbook with a header, a filter and frozen titles. Text is never stored as a formula.
    Raises :class:`OutputError` for what Excel cannot hold or cannot be extended safely.
    """
    source = result.table.source
    if isinstance(source, Sheet) and result.table.file is not None:
        added = [column for column, _ in result.layout if column in ADDED_COLUMNS]
        frame, tally = pl.collect_all([result.frame.select(added), result.tally], engine="streaming")
        extend(result, frame, result.table.file, source, target)
    else:
        cells = result.frame.select(column for column, _ in result.layout)
        refuse_binary(result.titled(lists=False), "Excel")
        frame, tally = pl.collect_all([flat(cells), result.tally], engine="streaming")
        create(result, frame, target)
    return tally
