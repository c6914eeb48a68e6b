"""Write the label columns ``bounced``, ``bounce_reason``, ``bounced_at`` into an enriched file."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import polars as pl

from bansong.column_words import language_of_columns
from bansong.errors import LabelError, Problem
from bansong.run import accounting
from bansong.run.alerts import kept_alert
from bansong.run.output_layout import Target, choose_target, find_losses, lay_out_columns
from bansong.run.records import ROW_ID
from bansong.schema import LABEL_COLUMNS
from bansong.tables import Enriched, Table, publish_file, reading, write_table
from bansong.tables.earlier_columns import find_earlier_columns
from bansong.tables.publish import backed_up, find_foreign, same_file
from bansong.translation import Phrase, count_rows

COLUMN_MISSING: Final = Problem(
    "labels.column_missing", "{name}: the labels have no column {missing!r}; they need {names}"
)
ROW_LABELLED_TWICE: Final = Problem(
    "labels.row_labelled_twice", "{name}: row {twice} has several labels; decide which is right"
)
ROW_BEYOND_FILE: Final = Problem(
    "labels.row_beyond_file",
    "{name}: a label is about row {beyond}, the file has {rows} (from 0); give the file that was mailed",
)

log = logging.getLogger(__name__)

LABEL_DTYPES: Final[dict[str, pl.DataType]] = {
    ROW_ID: pl.UInt32(),
    "bounced": pl.Boolean(),
    "bounce_reason": pl.String(),
    "bounced_at": pl.Date(),
}


def write_labels(
    table: Table,
    output: Path,
    labels: pl.DataFrame,
    *,
    output_encoding: str | None = None,
    prefix: str = "",
    warned: Callable[[str], None],
) -> None:
    """Write an enriched file again with ``bounced``, ``bounce_reason`` and ``bounced_at`` behind its columns.

    ``table``: the enriched file, open. ``labels``: :data:`LABEL_DTYPES`, at most one a row; other rows get nulls. CSV
    holds ``true``, ``false`` and ``2026-11-22``, a workbook TRUE, FALSE and the date as text, JSON and Parquet typed
    values. Columns of an earlier labelling are replaced in place; a user's own column of such a name stays and ours
    gets ``_bv``. Everything else stays as it is. ``output`` may be the file itself, replaced in one step.
    ``output_encoding``: of a CSV, by default the file's own; ``prefix``: as the file was enriched with; ``warned`` gets
    each warning. Raises :class:`LabelError` for labels that fit no row, :class:`bansong.errors.InputError`,
    :class:`bansong.errors.OutputError`, :class:`bansong.errors.UsageError`, :class:`AccountingError`; nothing was
    published then.
    """
    with reading(table):
        labels = check_labels(labels, table)
        target, over = label_target(table, output, output_encoding)
        earlier = find_earlier_columns(table, prefix)
        lang = language_of_columns(table.headers, earlier.nine) or "en"
        every = range(len(table.headers))
        layout, notes = lay_out_columns(table.headers, prefix, earlier.labels, every, LABEL_COLUMNS, lang)
        for note in (*notes, *find_losses(table, target, over, layout, leaves_out=False, header_unsure=False)):
            warned(note)
        joined = table.frame.with_row_index(ROW_ID).join(labels.lazy(), on=ROW_ID, how="left", maintain_order="left")
        rows = accounting.number_rows(joined)
        with ExitStack() as backups, publish_file(output) as temporary:
            tally = rows.select(*accounting.order_counts(), pl.col("bounced").count().alias("labelled"))
            result = Enriched(table, rows, layout, tally, warn=warned)
            counts, count_written = write_table(result, temporary, target.format, target.encoding)
            found = counts.row(0, named=True)
            lost = labels["bounced"].count() - found["labelled"]
            missing = Phrase("{count:,} label", "{count:,} labels", count=lost)
            faults = [Phrase("in no row: {labels}", labels=missing)] if lost else []
            accounting.check_rows(
                table.count(), found["rows"], count_written(), *faults, in_order=bool(found["in_order"])
            )
            foreign = find_foreign({output: temporary}, extends=over)
            for path in [] if over else foreign:
                warned(kept_alert(path, backups.enter_context(backed_up(path, path))))
    log.info("%s: %d of %d rows have a label", output, found["labelled"], found["rows"])


def check_labels(labels: pl.DataFrame, table: Table) -> pl.DataFrame:
    """Return the labels in their dtypes; raise :class:`LabelError` unless each is about one row of the table."""
    if missing := [name for name in LABEL_DTYPES if name not in labels.columns]:
        raise LabelError(COLUMN_MISSING, name=table.name, missing=missing[0], names=", ".join(LABEL_DTYPES))
    labels = labels.select(pl.col(name).cast(dtype) for name, dtype in LABEL_DTYPES.items())
    twice = labels.filter(pl.col(ROW_ID).is_duplicated())
    if not twice.is_empty():
        raise LabelError(ROW_LABELLED_TWICE, name=table.name, twice=twice[ROW_ID][0])
    rows = table.count()
    beyond = labels.filter(pl.col(ROW_ID).is_null() | (pl.col(ROW_ID) >= rows))
    if not beyond.is_empty():
        raise LabelError(ROW_BEYOND_FILE, name=table.name, beyond=beyond[ROW_ID][0], rows=count_rows(rows))
    return labels


def label_target(table: Table, output: Path, encoding: str | None = None) -> tuple[Target, bool]:
    """Return the target in the output's format, and whether it replaces the file (then in the file's own format).

    Raises :class:`bansong.errors.UsageError`, :class:`bansong.errors.OutputError` for what cannot be written so.
    """
    assert table.path is not None  # noqa: S101 - a mailing is a file
    over = same_file(table.path, output)
    other = None if over else output
    return choose_target(table.path, table.format, other, over, encoding=encoding, backup=True, summary=False), over
