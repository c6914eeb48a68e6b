"""A file for each action beside the output, which together hold every row once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import polars as pl

from bansong.column_words import HEADERS, word_of
from bansong.errors import Problem, UsageError
from bansong.run import accounting
from bansong.run.accounting import OTHER
from bansong.run.output_layout import Target
from bansong.run.records import ROW_ID
from bansong.schema import ACTIONS, Lang
from bansong.tables import Enriched, write_table
from bansong.tables.compression import unpacked_name

SPLIT_COLUMN_INVALID: Final = Problem(
    "outputs.split_column_invalid", "`split=`: {by!r} is nothing to split by; use `split='action'`"
)

PARTS: Final = (*ACTIONS, OTHER)
"""What the files are called by: the actions, and ``other`` for rows without one, or with one of the service's own."""

KOREAN_SPLIT: Final = HEADERS["ko"]["action"]
_NEW: Final = ("xlsx", "parquet")
"""Formats whose writers would put the columns back into the user's own file, with all of its rows."""


def check_split(by: str | None) -> None:
    """Raise :class:`UsageError` for what a file cannot be split by."""
    if by not in (None, "action", KOREAN_SPLIT):
        raise UsageError(SPLIT_COLUMN_INVALID, by=by)


def split_paths(output: Path, lang: Lang) -> dict[str, Path]:
    """Where the files go: ``OUT.csv.gz`` → ``OUT.send.csv.gz``, ``OUT.발송.csv.gz``, for each of :data:`PARTS`.

    All are always written, so that no file of an earlier run stands among them with rows of its own.
    """
    plain = unpacked_name(output)
    suffix = ".xlsx" if plain.suffix.lower() == ".xlsm" else plain.suffix
    packed = output.name.removeprefix(plain.name)
    return {
        part: output.with_name(f"{plain.stem}.{word_of(part, lang).replace(' ', '_')}{suffix}{packed}")
        for part in PARTS
    }


def write_parts(result: Enriched, paths: Mapping[str, Path], target: Target, rows: int) -> dict[str, int]:
    """Write the rows of an enriched table to the file of their action; return how many each has.

    Raises :class:`AccountingError` unless each row is in one file, and each file has its rows in their order.
    """
    action = pl.col("action")
    part_of = pl.when(action.is_in(ACTIONS)).then(action).otherwise(pl.lit(OTHER))
    counts = {part: _write_part(result, part_of == part, path, target) for part, path in paths.items()}
    accounting.check_rows(rows, sum(counts.values()), sum(counts.values()), in_order=True)
    return counts


def _write_part(result: Enriched, which: pl.Expr, path: Path, target: Target) -> int:
    table = replace(result.table, source=None) if target.format in _NEW else result.table
    rows = result.frame.filter(which)
    ascending = (pl.col(ROW_ID).diff().fill_null(1) > 0).all()
    tally = rows.select(pl.len().alias("rows"), ascending.alias("in_order"))
    part = replace(result, table=table, frame=rows, tally=tally, summary=None)
    counts, count_written = write_table(part, path, target.format, target.encoding)
    found = counts.row(0, named=True)
    accounting.check_rows(found["rows"], found["rows"], count_written(), in_order=bool(found["in_order"]))
    return int(found["rows"])
