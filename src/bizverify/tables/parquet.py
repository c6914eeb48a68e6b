"""Parquet ⇄ frames."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from bizverify.errors import InputError
from bizverify.tables.packing import File
from bizverify.tables.table import Enriched, Table, positional


def read(file: File) -> Table:
    """Open a Parquet file; types stay as they are. Raises :class:`InputError`."""
    path = file.path
    frame = pl.scan_parquet(file.data, glob=False)
    try:
        headers = frame.collect_schema().names()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError(f"{path}: is not a readable Parquet file: {str(error).splitlines()[0]}") from error
    return Table(positional(frame, headers), tuple(headers), "parquet", path.name, file)


def write(result: Enriched, target: Path) -> pl.DataFrame:
    """Write an enriched table as Parquet (reasons as a list of strings); return the tally."""
    sink = result.titled(lists=True).sink_parquet(target, lazy=True)
    _, tally = pl.collect_all([sink, result.tally], engine="streaming")
    return tally
