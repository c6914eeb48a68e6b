"""Excel workbooks ⇄ frames: ``read`` any, ``extend`` the user's own, ``create`` a new one."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from bizverify.errors import OutputError
from bizverify.model import ADDED_COLUMNS
from bizverify.tables.excel.count import count_rows
from bizverify.tables.excel.create import create
from bizverify.tables.excel.extend import extend
from bizverify.tables.excel.read import Sheet, read
from bizverify.tables.table import Enriched, flat, refuse_binary

__all__ = ["Sheet", "count_rows", "read", "write"]


def write(result: Enriched, target: Path) -> pl.DataFrame:
    """Write an enriched table as a workbook and return the tally.

    A table that came from a workbook, all of whose columns are wanted, gets its columns spliced into that workbook, of
    which everything else stays as it is; any other becomes a new workbook with a header, a filter and frozen titles,
    and a summary sheet if it is asked for. Text is never stored as a formula. Raises :class:`OutputError` for what
    Excel cannot hold or cannot be extended safely.
    """
    source, file = result.table.source, result.table.file
    if isinstance(source, Sheet) and file is not None and _keeps_all(result):
        if result.summary is not None:
            raise OutputError(
                "a summary sheet cannot be added to a workbook of yours without changing other parts of it; "
                "leave --summary out, or write a new workbook from a CSV"
            )
        added = [column for column, _ in result.layout if column in ADDED_COLUMNS]
        frame, tally = pl.collect_all([result.frame.select(added), result.tally], engine="streaming")
        extend(result, frame, file, source, target)
        return tally
    cells = result.frame.select(column for column, _ in result.layout)
    refuse_binary(result.titled(lists=False), "Excel")
    frame, tally = pl.collect_all([flat(cells), result.tally], engine="streaming")
    create(result, frame, result.summary(tally) if result.summary else (), target)
    return tally


def _keeps_all(result: Enriched) -> bool:
    """Whether the output has all of the user's columns where they stood, ours of an earlier run among them."""
    own = result.layout[: len(result.table.headers)]
    return [header for _, header in own] == list(result.table.headers) and all(
        column in (f"c{place}", *ADDED_COLUMNS) for place, (column, _) in enumerate(own)
    )
