"""Frames in memory (polars, pandas, pyarrow) as tables."""

from __future__ import annotations

from typing import Any

import polars as pl

from bizverify.errors import InputError
from bizverify.tables.table import Enriched, Table, positional


def read(frame: Any) -> Table:
    """Take a polars DataFrame or LazyFrame, a pandas DataFrame, or a pyarrow Table or RecordBatch as a table.

    Raises :class:`InputError` for anything else. A pandas index is not a column and is left out.
    """
    lazy = _lazy(frame)
    headers = lazy.collect_schema().names()
    return Table(positional(lazy, headers), tuple(headers), "frame", "the frame")


def write(result: Enriched) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Collect an enriched table as a frame (reasons as lists); return it and the tally."""
    frame, tally = pl.collect_all([result.titled(lists=True), result.tally], engine="streaming")
    return frame, tally


def _lazy(frame: Any) -> pl.LazyFrame:
    if isinstance(frame, pl.LazyFrame):
        return frame
    if isinstance(frame, pl.DataFrame):
        return frame.lazy()
    home = type(frame).__module__.partition(".")[0]
    if home == "pandas" and hasattr(frame, "columns"):
        return pl.from_pandas(frame).lazy()
    if home == "pyarrow":
        converted = pl.from_arrow(frame)
        if isinstance(converted, pl.DataFrame):
            return converted.lazy()
    raise InputError(
        f"a {type(frame).__name__} is no table; give a polars, pandas or pyarrow one, or a file to enrich()"
    )
