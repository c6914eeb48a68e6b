"""Labelled files: enriched ones to which `bizverify label --output` has joined what came back."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import polars as pl

from bizverify.errors import LabelError
from bizverify.labels.label_store import LabelStore
from bizverify.labels.reasons import came_back
from bizverify.learning.calibration import Calibration, calibration
from bizverify.tables import Table, open_table, reading
from bizverify.tables.table import TEXTS

_NEEDED: Final = ("bounced", "bounce_prob")
_READ: Final = (*_NEEDED, "grade", "action", "reasons", "engine", "model")


def file_calibration(path: Path) -> Calibration:
    """The calibration report of a labelled file of any format, with the columns ``bounced`` and ``bounce_prob``.

    Used where they are there: ``grade``, ``action``, ``reasons``, ``engine``, ``model``. Raises :class:`InputError` as
    any reader does, :class:`LabelError` for a missing column, or naming row and value where one cannot be read.
    """
    with open_labelled(path) as (rows, _):
        return calibration(rows)


def store_calibration(folder: Path | None = None) -> tuple[str, Calibration]:
    """The calibration report of a book of labels (by default the user's), with the book's place.

    Its ``engine`` is ``local`` where the reasons are those of a scorecard that is known, else ``service or unknown``.
    """
    book = LabelStore(folder)
    whose = pl.when("unread").then(pl.lit("service or unknown")).otherwise(pl.lit("local"))
    return str(book.folder), calibration(book.evidence(unread=True).with_columns(engine=whose))


@contextmanager
def open_labelled(path: Path) -> Iterator[tuple[pl.LazyFrame, Table]]:
    """Yield what the report reads of a labelled file: ``bounced`` as Boolean, ``bounce_prob`` as Float64, …"""
    with open_table(path, options={}) as table, reading(table):
        places = _find_columns(table.headers)
        for name in _NEEDED:
            if name not in places:
                raise LabelError(
                    f"{table.name}: there is no column {name!r}; a labelled file is an enriched one with outcomes, as "
                    "`bizverify label OUTCOMES --file ENRICHED --output LABELLED` writes it"
                )
        columns = {name: pl.col(table.ids[place]) for name, place in places.items()}
        rows = table.frame.select(expression.alias(name) for name, expression in columns.items())
        yield _parse_columns(rows, table), table


def _find_columns(headers: Sequence[str]) -> dict[str, int]:
    """Where our columns are: of several with a name the last, since ours stand behind the user's."""
    found = {}
    for place, header in enumerate(headers):
        name = re.sub(r"_bv[0-9]*$", "", header)
        if name in _READ:
            found[name] = place
    return found


def _parse_columns(rows: pl.LazyFrame, table: Table) -> pl.LazyFrame:
    schema = rows.collect_schema()
    read = {}
    if schema["bounced"] != pl.Boolean:
        read["bounced"] = came_back(_non_blank(pl.col("bounced")), "bounced")
    if not schema["bounce_prob"].is_numeric():
        read["bounce_prob"] = _non_blank(pl.col("bounce_prob")).cast(pl.Float64, strict=False)
    for name, expression in read.items():
        text = _non_blank(pl.col(name))
        odd = rows.select(name).with_row_index("row", 1).filter(text.is_not_null() & expression.is_null()).head(1)
        for row, value in odd.select("row", text).collect().iter_rows():
            expected = {"bounced": "true, false or nothing", "bounce_prob": "a fraction between 0 and 1"}[name]
            raise LabelError(f"{table.name}: row {row}, column {name!r}: {value!r} cannot be read; expected {expected}")
    texts = [name for name in ("grade", "action", "engine", "model") if schema.get(name) in TEXTS]
    return rows.with_columns(**read).with_columns(_non_blank(pl.col(name)) for name in texts)


def _non_blank(text: pl.Expr) -> pl.Expr:
    stripped = text.cast(pl.String).str.strip_chars()
    return pl.when(stripped != "").then(stripped)
