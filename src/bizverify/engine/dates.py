"""Days, as sources write them."""

from __future__ import annotations

from typing import Final

import polars as pl

_DIGITS: Final = r"^([0-9]{4})[^0-9]*([0-9]{1,2})[^0-9]+([0-9]{1,2})(?:[^0-9].*)?$"


def may_be_days(dtype: pl.DataType) -> bool:
    """Whether a column of this dtype may hold days: dates, times, texts, and numbers as ``20240131``."""
    return dtype in (pl.Date, pl.String) or dtype == pl.Datetime or dtype.is_integer()


def day_expr(column: pl.Expr, dtype: pl.DataType | None = None) -> pl.Expr:
    """Read a column as days (Date): ``2024-01-31``, ``2024.1.31``, ``20240131``, each also with a time behind it.

    ``dtype`` is the column's, if known: dates and times are then taken as they are. What is none of these is null.
    """
    if dtype == pl.Date:
        return column
    if dtype == pl.Datetime:
        return column.dt.date()
    text = column.cast(pl.String).str.strip_chars()
    packed = text.str.replace(r"\.0$", "")
    dashed = text.str.replace(_DIGITS, "$1-$2-$3")
    return pl.coalesce(packed.str.to_date("%Y%m%d", strict=False), dashed.str.to_date("%Y-%m-%d", strict=False))
