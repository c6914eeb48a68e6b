"""Steps that only few rows need, done for those rows alone.

A pattern costs a moment on a row without text too, and so does planning a query: where no row of a batch needs a step,
it is not even planned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import polars as pl

from bizverify.engine.address.regions.prefixes import scattered

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
    return frame.with_columns(_made(few, step, needs, adds)).unnest(_FEW)


def fill_few(
    frame: pl.LazyFrame,
    few: pl.Expr,
    step: Callable[[pl.LazyFrame], pl.LazyFrame],
    needs: tuple[str, ...],
    fills: Mapping[str, type[pl.DataType]],
) -> pl.LazyFrame:
    """Do what :func:`for_few` does where the columns are there already: what ``step`` finds stands before what is."""
    made = frame.with_columns(_made(few, step, needs, fills))
    return made.with_columns(pl.coalesce(pl.col(_FEW).struct[name], name).alias(name) for name in fills).drop(_FEW)


def _made(
    few: pl.Expr,
    step: Callable[[pl.LazyFrame], pl.LazyFrame],
    needs: tuple[str, ...],
    adds: Mapping[str, type[pl.DataType]],
) -> pl.Expr:
    rows = pl.struct(*needs, few.alias(_FEW))
    return rows.map_batches(partial(_done, step, adds), return_dtype=pl.Struct(adds), is_elementwise=True).alias(_FEW)


def _done(
    step: Callable[[pl.LazyFrame], pl.LazyFrame], adds: Mapping[str, type[pl.DataType]], rows: pl.Series
) -> pl.Series:
    needed = rows.struct.unnest()
    few = needed[_FEW].fill_null(False)
    if not few.any():
        return pl.Series([None], dtype=pl.Struct(adds)).new_from_index(0, len(rows))
    found = step(needed.lazy().filter(_FEW).drop(_FEW)).select(pl.struct(*adds)).collect().to_series()
    return found if len(found) == len(rows) else scattered(found, few)
