"""What stood in the columns of an earlier output and is replaced: somebody may have typed it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import polars as pl

from bansong.column_words import HEADERS, code_expr
from bansong.errors import Notice, Problem
from bansong.schema import Lang
from bansong.tables.earlier_columns import EarlierColumns
from bansong.tables.table import contract_name
from bansong.translation import Listed, Phrase

ANSWERS_REPLACED: Final = Problem(
    "alert.answers_replaced",
    "the input is an earlier output, and its answers were replaced by others: {counts}; if somebody typed "
    "them, they are in the input as it was",
)

_TYPED: Final = ("biz_status", "grade", "action", "fixed_zipcode", "fixed_address", "row_note")
"""Columns that people correct or write notes into. The others follow from these, and change with each run."""
_COUNT: Final = "replaced "


def replaced_counts(earlier: EarlierColumns) -> list[pl.Expr]:
    """Return counts of rows in which a cell of an earlier output becomes another, as aggregations over a run's rows."""
    found = []
    for name in _TYPED:
        places = [place for column, place in earlier.nine.items() if contract_name(column) == name]
        if places:
            changed = pl.any_horizontal(_differs(name, pl.col(f"c{place}")) for place in places)
            found.append(changed.sum().alias(_COUNT + name))
    return found


def replaced_rows(tallied: Mapping[str, Any]) -> dict[str, int]:
    """Return how many rows have other values now, by column, from the tally of a run."""
    return {
        name.removeprefix(_COUNT): int(count) for name, count in tallied.items() if name.startswith(_COUNT) and count
    }


def replaced_alert(rows: Mapping[str, int], lang: Lang) -> Notice | None:
    """Return what to say of replaced values, ``None`` where there are none; ``lang``: of the headers."""
    if not rows:
        return None
    counts = Listed(
        (
            Phrase("{name} in {count:,} row", "{name} in {count:,} rows", count=count, name=HEADERS[lang][name])
            for name, count in rows.items()
        ),
        ", ",
    )
    return Notice(ANSWERS_REPLACED, counts=counts)


def _differs(name: str, cell: pl.Expr) -> pl.Expr:
    before, now = (code_expr(value.cast(pl.String).str.strip_chars(), name) for value in (cell, pl.col(name)))
    if name == "fixed_zipcode":  # a spreadsheet drops the zero in front
        before = before.str.zfill(5)
    return (before != "") & before.ne_missing(now)
