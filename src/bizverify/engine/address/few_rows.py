"""Steps that only few rows need, done for those rows alone.

A pattern costs a moment on a row without text too, and so does planning a query: where no row of a batch needs a step,
it is not even planned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import polars as pl

_FEW: Final = "_few"


def for_few(
    frame: pl.LazyFrame,
    few: pl.Expr,
    step: Callable[[pl.LazyFrame], pl.LazyFrame],
    needs: tuple[str, ...],
    adds: Mapping[str, type[pl.DataType]],
) -> pl.LazyFrame:
    """Add the columns ``adds`` that ``step`` makes of the columns ``needs``, for the rows for which ``few`` is true.

    They are null in all other rows. ``step`` must keep rows and order, and look at one row at a time.
    """
    return frame.with_columns(_compute_few(few, step, needs, adds)).unnest(_FEW)


def fill_few(
    frame: pl.LazyFrame,
    few: pl.Expr,
    step: Callable[[pl.LazyFrame], pl.LazyFrame],
    needs: tuple[str, ...],
    fills: Mapping[str, type[pl.DataType]],
) -> pl.LazyFrame:
    """Do what :func:`for_few` does where the columns are there already: what ``step`` finds stands before what is."""
    made = frame.with_columns(_compute_few(few, step, needs, fills))
    return made.with_columns(pl.coalesce(pl.col(_FEW).struct[name], name).alias(name) for name in fills).drop(_FEW)


def _compute_few(
    few: pl.Expr,
    step: Callable[[pl.LazyFrame], pl.LazyFrame],
    needs: tuple[str, ...],
    adds: Mapping[str, type[pl.DataType]],
) -> pl.Expr:
    rows = pl.struct(*needs, few.alias(_FEW))
    return rows.map_batches(
        partial(_compute_batch, step, adds), return_dtype=pl.Struct(adds), is_elementwise=True
    ).alias(_FEW)


def _compute_batch(
    step: Callable[[pl.LazyFrame], pl.LazyFrame], adds: Mapping[str, type[pl.DataType]], rows: pl.Series
) -> pl.Series:
    needed = rows.struct.unnest()
    few = needed[_FEW].fill_null(False)
    if not few.any():
        return pl.Series([None], dtype=pl.Struct(adds)).new_from_index(0, len(rows))
    found = step(needed.lazy().filter(_FEW).drop(_FEW)).select(pl.struct(*adds)).collect().to_series()
    return found if len(found) == len(rows) else scatter(found, few)


def scatter(values: pl.Series, at: pl.Series) -> pl.Series:
    """Return values at the rows where ``at`` (Boolean) is true, one after the other, and null at the others."""
    lines = at.cum_sum().cast(pl.UInt32) - 1
    return values.gather(lines.zip_with(at, pl.Series([None], dtype=pl.UInt32)))
