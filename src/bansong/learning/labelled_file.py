"""Read a labelled file for the calibration report."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import polars as pl

from bansong.column_words import HEADERS, code_expr
from bansong.errors import LabelError, Problem
from bansong.labels.outcomes import came_back
from bansong.tables import Table, open_table, reading
from bansong.tables.table import TEXTS
from bansong.translation import Phrase

VALUE_UNREADABLE: Final = Problem(
    "learning.value_unreadable", "{name}: row {row}, column {column!r}: {value!r} cannot be read; expected {expected}"
)
LABELLED_COLUMN_MISSING: Final = Problem(
    "learning.labelled_column_missing",
    "{name}: there is no column {column!r}; a labelled file is an enriched one with outcomes, as "
    "`bansong label OUTCOMES --file ENRICHED --output LABELLED` writes it",
)

_NEEDED: Final = ("bounced", "bounce_prob")
_READ: Final = (*_NEEDED, "grade", "action", "reasons", "engine", "model")
_NAMES: Final = {name: name for name in _READ} | {
    header: name for headers in HEADERS.values() for name, header in headers.items() if name in _READ
}
"""English and Korean headers of our columns."""


@contextmanager
def open_labelled(path: Path) -> Iterator[tuple[pl.LazyFrame, Table]]:
    """Yield the columns that the report reads: ``bounced`` as Boolean, ``bounce_prob`` as Float64, …"""
    with open_table(path, options={}) as table, reading(table):
        places = _find_columns(table.headers)
        for name in _NEEDED:
            if name not in places:
                raise LabelError(LABELLED_COLUMN_MISSING, name=table.name, column=name)
        columns = {name: pl.col(table.ids[place]) for name, place in places.items()}
        rows = table.frame.select(expression.alias(name) for name, expression in columns.items())
        yield _parse_columns(rows, table), table


def _find_columns(headers: Sequence[str]) -> dict[str, int]:
    """Find our columns; the last of several with a name, since ours stand behind the user's."""
    found = {}
    for place, header in enumerate(headers):
        name = _NAMES.get(re.sub(r"_bv[0-9]*$", "", header))
        if name is not None:
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
        odd = rows.select(name).with_row_index("row", table.first_row)
        odd = odd.filter(text.is_not_null() & expression.is_null()).head(1).select("row", text)
        for row, value in odd.collect().iter_rows():
            fraction = Phrase("a fraction between 0 and 1")
            expected = fraction if name == "bounce_prob" else Phrase("true, false or nothing")
            raise LabelError(VALUE_UNREADABLE, name=table.name, row=row, column=name, value=value, expected=expected)
    texts = [name for name in ("grade", "action", "engine", "model") if schema.get(name) in TEXTS]
    codes = [code_expr(_non_blank(pl.col(name)), name).alias(name) for name in texts]
    return rows.with_columns(**read).with_columns(codes)


def _non_blank(text: pl.Expr) -> pl.Expr:
    stripped = text.cast(pl.String).str.strip_chars()
    return pl.when(stripped != "").then(stripped)
