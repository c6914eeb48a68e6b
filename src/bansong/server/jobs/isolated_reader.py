"""Read an upload in an isolated process, bounded in memory and time, since it may be hostile."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio.from_thread
import anyio.to_thread
import polars as pl

from bansong import business_number
from bansong.engine.local import ROW_PROBLEM
from bansong.enrichment.prepared_table import prepare_table
from bansong.errors import BansongError, ColumnError, OutputError
from bansong.run.cross_row_features import CROWDED, SEVERAL, with_cross_row_features
from bansong.run.records import ROW_ID
from bansong.schema import CONTEXT_COLUMNS, RECORD_COLUMNS
from bansong.server.errors import Refusal, invalid, too_large
from bansong.server.jobs import results
from bansong.server.upload_form import ReceivedUpload, disk_full, unsupported_file
from bansong.tables import open_table, publish_file, reading
from bansong.tables.isolation import IsolationError, run_isolated
from bansong.translation import CLIENT, gettext, gettext_noop, join_clauses, use_audience

_FUNCTION: Final = "bansong.server.jobs.isolated_reader:write_records"
_THREADS: Final = 2
_COMPRESSED: Final = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")
_GROUP: Final = 20_000
LONGEST_CELL: Final = 2_000
"""Longer cells are cut: twice the longest address of the interface."""
_KNOWN_COLUMNS: Final = (ROW_ID, *RECORD_COLUMNS, *CONTEXT_COLUMNS, ROW_PROBLEM, CROWDED, SEVERAL)
_RENAME: Final = gettext_noop("here there is no such parameter: rename the column's header to b_no")
_ABANDONED: Final = {
    "memory": (413, "too_large", gettext_noop("takes too much memory to read; send its table as a CSV file")),
    "time": (413, "too_large", gettext_noop("takes too long to read; send its table as a CSV file, in parts")),
    "crash": (
        400,
        "unreadable_file",
        gettext_noop("is damaged, or takes too much memory to read; send its table as a CSV file"),
    ),
}
"""Refusals of files whose process gave no result."""


@dataclass(frozen=True, slots=True)
class ReadBounds:
    """Bytes of memory and seconds."""

    memory: int
    seconds: float


async def read_isolated(upload: ReceivedUpload, target: Path, most: int, bounds: ReadBounds) -> int:
    """Write the records of an upload to ``target`` and return their number.

    Raises :class:`Refusal`: 400 for an unreadable file or one without number column; 413 for more than ``most`` rows;
    415; 507. Raises :class:`IsolationError` beyond ``bounds`` or if the process crashed (:func:`abandoned_file`).
    """
    call = partial(
        run_isolated,
        _FUNCTION,
        {"path": upload.path.name, "target": os.fspath(target.absolute()), "most": most},
        memory=bounds.memory,
        seconds=bounds.seconds,
        threads=_THREADS,
        folder=upload.folder,
        checkpoint=anyio.from_thread.check_cancelled,
    )
    try:
        found = await anyio.to_thread.run_sync(call)
    except BansongError as error:
        message = str(error).replace(upload.path.name, upload.name)
        if isinstance(error, ColumnError):
            raise invalid(join_clauses(message, gettext(_RENAME)), code="no_number_column") from None
        raise invalid(message, code="unreadable_file") from None
    if "disk" in found:
        raise disk_full()
    if "rows" in found:
        raise too_large(
            gettext("{name} has {rows:,} rows, so the file", name=upload.name, rows=found["rows"]), most, "rows"
        )
    if "kind" in found:
        raise unsupported_file(gettext("{kind} are not taken", kind=found["kind"]))
    return int(found["total"])


def abandoned_file(upload: ReceivedUpload, error: IsolationError) -> Refusal:
    """Return the refusal, 413 or 400, of a file that could not be read within its bounds."""
    status, code, why = _ABANDONED[error.reason]
    return Refusal(status, code, f"{upload.name} " + gettext(why))


def shorten_cells(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Cut overlong texts: the engine needs twenty times their size in memory.

    A valid business number stays as it is; an invalid one is shown cut (:func:`results.shorten_number`), with the
    problem of the whole cell.
    """
    texts = [name for name, dtype in rows.collect_schema().items() if dtype == pl.String]
    cut = {name: _cut_text(pl.col(name)) for name in texts if name not in ("b_no", ROW_PROBLEM)}
    return rows.with_columns(**cut, **(_cut_numbers(known=ROW_PROBLEM in texts) if "b_no" in texts else {}))


def _cut_numbers(*, known: bool) -> dict[str, pl.Expr]:
    """Return the cut ``b_no`` and its problem; ``known``: rows may have a problem already."""
    long = pl.when(pl.col("b_no").str.len_chars() > LONGEST_CELL).then("b_no")  # else null, on which nothing costs much
    inner = long.str.strip_chars()
    short = pl.when(inner.str.len_chars() > LONGEST_CELL).then(results.shorten_number(inner)).otherwise(inner)
    problem = pl.when(long.is_not_null()).then(business_number.problem_expr(long))
    return {
        "b_no": pl.coalesce(business_number.compact_expr(long), short, "b_no"),
        ROW_PROBLEM: pl.coalesce(ROW_PROBLEM, problem) if known else problem,
    }


def _cut_text(text: pl.Expr) -> pl.Expr:
    long = pl.when(text.str.len_chars() > LONGEST_CELL).then(text)
    return pl.coalesce(long.str.replace_all(r"\s+", " ").str.strip_chars().str.head(LONGEST_CELL), text)


def write_records(path: str, target: str, most: int) -> dict[str, Any]:
    """Write the records of a table to ``target``; return ``{"total": n}``, or ``{"rows": n}`` if there are too many.

    Returns ``{"kind": …}`` for compressed files and Parquet, ``{"disk": …}`` if the disk fails. Raises other errors of
    readers.
    """
    try:
        with use_audience(CLIENT):
            return _write_records(Path(path), Path(target), most)
    except (OutputError, OSError) as error:
        return {"disk": type(error).__name__}


def _write_records(path: Path, target: Path, most: int) -> dict[str, Any]:
    with path.open("rb") as file:
        if file.read(4).startswith(_COMPRESSED):
            return {"kind": gettext("packed files")}
    with open_table(path) as table:
        if table.format == "parquet":
            return {"kind": gettext("Parquet files")}
        prepared = prepare_table(table, None, "")
        with reading(table):
            total = table.count()
        if total > most:
            return {"rows": total}
        with publish_file(target) as temporary, reading(table):
            rows = with_cross_row_features(prepared.rows)
            names = rows.collect_schema().names()
            if "b_no" not in names:  # `[]`: there is nothing of which a number could be missing
                rows, names = rows.with_columns(pl.lit(None, pl.String).alias("b_no")), [*names, "b_no"]
            records = shorten_cells(rows.select(name for name in _KNOWN_COLUMNS if name in names))
            records.sink_parquet(temporary, row_group_size=_GROUP)
            return {"total": pl.scan_parquet(temporary).select(pl.len()).collect().item()}
