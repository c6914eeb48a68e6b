"""What came back, beside the rows that were mailed: three columns more in the enriched file.

:func:`write_labelled` is the whole of it. What enrichment itself writes with outcomes (twelve columns) is made of the
same parts: :data:`LABEL_COLUMNS` as further names for :func:`bizverify.run.output_layout.layout`, :func:`earlier` for
where a labelled file has them already, and :func:`labelled` for the rows.
"""

from __future__ import annotations

import functools
import logging
import warnings as python_warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import polars as pl

from bizverify.errors import LabelError
from bizverify.run import output_layout
from bizverify.run.destination import Target, changes, losses, target_of
from bizverify.run.records import ROW_ID
from bizverify.schema import LABEL_COLUMNS, counted
from bizverify.tables import Enriched, Format, Table, open_table, publish_file, reading, write_table, written_rows
from bizverify.tables.columns import own_columns
from bizverify.tables.publish import same_file

__all__ = ["LABEL_COLUMNS", "LABEL_DTYPES", "checked", "earlier", "labelled", "write_labelled"]

log = logging.getLogger(__name__)

LABEL_DTYPES: Final[dict[str, pl.DataType]] = {
    ROW_ID: pl.UInt32(),
    "bounced": pl.Boolean(),
    "bounce_reason": pl.String(),
    "bounced_at": pl.Date(),
}
"""A frame of labels: the row they are about, whether its letter came back, why, and the day."""


def write_labelled(
    path: str | Path,
    output: str | Path,
    labels: pl.DataFrame,
    *,
    sheet: str | None = None,
    encoding: str | None = None,
    json_path: str | None = None,
    output_encoding: str | None = None,
    prefix: str = "",
    warned: Callable[[str], None] | None = None,
) -> Path:
    """Write the enriched file again with ``bounced``, ``bounce_reason`` and ``bounced_at`` behind its columns.

    ``labels``: columns and dtypes of :data:`LABEL_DTYPES`, at most one a row, in any order; rows without one get
    nulls. CSV has them as ``true``, ``false`` and ``2026-11-22``, a workbook of the user's as TRUE, FALSE and the date
    as text, JSON and Parquet in their own types. Columns of an earlier labelling are replaced where they stand; where
    the user has a column of such a name it is kept and ours gets ``_bv``. All other cells, their order, the dialect,
    the workbook around them stay as they are. ``output`` may be ``path`` itself: it is replaced in one step, when the
    new file is whole and its rows are counted. ``output_encoding``: of a CSV output, by default the file's own.
    ``prefix``: as the file was enriched with. ``warned`` is told what the
    user should know; by default these are Python warnings. Returns ``output``.

    Raises :class:`LabelError` for labels that fit no row of the file, :class:`bizverify.errors.InputError`,
    :class:`bizverify.errors.OutputError`, :class:`bizverify.errors.UsageError`, :class:`AccountingError`; nothing was
    published then.
    """
    path, output = Path(path), Path(output)
    with open_table(path, sheet=sheet, encoding=encoding, json_path=json_path) as table, reading(table):
        labels = checked(labels, table)
        target = labelled_target(path, output, table.format, output_encoding)
        layout, notes = _layout(table, prefix)
        notes += losses(table, target, same_file(path, output), leaves_out=False, header_unsure=False)
        warned = warned or functools.partial(python_warnings.warn, stacklevel=2)
        for note in (*notes, *changes(table, target, layout)):
            warned(note)
        rows = output_layout.numbered_out(labelled(table.frame.with_row_index(ROW_ID), labels))
        with publish_file(output) as temporary:
            tally = rows.select(*output_layout.row_counts(), pl.col("bounced").count().alias("labelled"))
            result = Enriched(table, rows, layout, tally, warn=warned)
            found = write_table(result, temporary, target.format, target.encoding).row(0, named=True)
            written = written_rows(table, temporary, target.format, target.encoding)
            lost = labels["bounced"].count() - found["labelled"]
            faults = [f"in no row: {counted(lost, 'label')}"] if lost else []
            output_layout.balance_rows(table.count(), found["rows"], written, *faults, in_order=bool(found["in_order"]))
    log.info("%s: %d of %d rows have a label", output, found["labelled"], found["rows"])
    return output


def earlier(headers: Sequence[str], prefix: str = "") -> dict[str, int]:
    """Where an earlier labelling put the three columns: contract name → position; empty if there was none.

    It puts them behind the nine. Before them, or in a file that has not the nine, they are the user's own.
    """
    nine, labels = own_columns(headers, prefix), own_columns(headers, prefix, LABEL_COLUMNS)
    return labels if nine and labels and min(labels.values()) > max(nine.values()) else {}


def labelled(rows: pl.LazyFrame, labels: pl.DataFrame) -> pl.LazyFrame:
    """Add the three columns to rows with a ``row_id``, null where a row has no label; rows keep their order."""
    found = labels.lazy().select(pl.col(name).cast(dtype) for name, dtype in LABEL_DTYPES.items())
    return rows.join(found, on=ROW_ID, how="left", maintain_order="left")


def checked(labels: pl.DataFrame, table: Table) -> pl.DataFrame:
    """Return the labels in their dtypes; raise :class:`LabelError` unless each is about one row of the table."""
    if missing := [name for name in LABEL_DTYPES if name not in labels.columns]:
        raise LabelError(f"{table.name}: the labels have no column {missing[0]!r}; they need {', '.join(LABEL_DTYPES)}")
    labels = labels.select(pl.col(name).cast(dtype) for name, dtype in LABEL_DTYPES.items())
    twice = labels.filter(pl.col(ROW_ID).is_duplicated())
    if not twice.is_empty():
        raise LabelError(f"{table.name}: row {twice[ROW_ID][0]} has several labels; decide which is right")
    rows = table.count()
    beyond = labels.filter(pl.col(ROW_ID).is_null() | (pl.col(ROW_ID) >= rows))
    if not beyond.is_empty():
        raise LabelError(
            f"{table.name}: a label is about row {beyond[ROW_ID][0]}, the file has {counted(rows, 'row')} (from 0); "
            "give the file that was mailed"
        )
    return labels


def labelled_target(path: Path, output: Path, format: Format, encoding: str | None = None) -> Target:
    """What is to be written, in the format that the output's name asks for; over the file, in the file's own.

    Raises :class:`bizverify.errors.UsageError`, :class:`bizverify.errors.OutputError` for what cannot be written so.
    """
    over = same_file(path, output)
    return target_of(path, format, None if over else output, over, encoding=encoding, backup=True, summary=False)


def _layout(table: Table, prefix: str) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    every = range(len(table.headers))
    return output_layout.layout(table.headers, prefix, earlier(table.headers, prefix), every, LABEL_COLUMNS)
