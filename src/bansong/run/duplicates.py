"""Rows that say the same business at the same address twice, once addresses are corrected."""

from __future__ import annotations

from functools import partial
from typing import Final

import polars as pl

from bansong.engine.letter_history import address_key
from bansong.engine.local import NUMBER
from bansong.run.cross_row_features import find_repeated, gather_values
from bansong.run.records import ROW_ID

FIRST: Final = "bv:first"
"""The ``row_id`` of the first row with the same number and corrected address; null in that row and in all others."""

_PLACE: Final = "place"
_REFERENCE: Final = r"\s*\([^()0-9]*\)$"
"""Words in brackets behind an official address, without a number: the legal dong and the building's name."""


def with_duplicates(answers: pl.LazyFrame) -> pl.LazyFrame:
    """Add :data:`FIRST` (UInt32) to answered rows, which are read for it, at once.

    Two rows are the same where the number is, and :func:`~bansong.engine.letter_history.address_key` of the corrected
    address, or of the address as it is written where none was. What is in brackets behind a corrected address does not
    count. Rows without a number or a readable address have no duplicate. 20 bytes a row are held.
    """
    names = answers.collect_schema().names()
    if NUMBER not in names or "address" not in names:
        return answers.with_columns(pl.lit(None, pl.UInt32).alias(FIRST))
    corrected = pl.col("fixed_address").str.replace(_REFERENCE, "")
    key = address_key(pl.coalesce(corrected, pl.col("address").cast(pl.String)))
    number = pl.when(pl.col("row_status") != "invalid").then(NUMBER).alias(NUMBER)
    found = answers.select(number, pl.when(key.is_not_null()).then(key.hash()).alias(_PLACE))
    first = find_first_rows(found.collect(engine="streaming"))
    return answers.with_columns(look_up(first).alias(FIRST))


def look_up(values: pl.Series) -> pl.Expr:
    """The value of each row from a series that has one for each, in order."""
    return pl.col(ROW_ID).map_batches(partial(gather_values, values), values.dtype, is_elementwise=True)


def find_first_rows(found: pl.DataFrame) -> pl.Series:
    """Return for each row the place of the first that is alike in both columns; null for the first, or where one is."""
    often = find_repeated(found[NUMBER], 2)
    alike = [NUMBER, _PLACE]
    some = found.with_row_index(ROW_ID).filter(pl.col(NUMBER).is_in(often.implode())).drop_nulls()
    firsts = some.group_by(alike).agg(pl.col(ROW_ID).min().alias(FIRST), pl.len().alias("rows"))
    again = some.join(firsts.filter(pl.col("rows") > 1), on=alike).filter(pl.col(ROW_ID) != pl.col(FIRST))
    nothing = pl.repeat(None, found.height, dtype=pl.UInt32, eager=True)
    return nothing.scatter(again[ROW_ID], again[FIRST])
