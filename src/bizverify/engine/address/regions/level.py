"""What the scorecard calls a province."""

from __future__ import annotations

from functools import cache

import polars as pl

from bizverify.engine.address.regions.heads import enum
from bizverify.engine.address.regions.names import regions


def level_of(sido: pl.Expr) -> pl.Expr:
    """Return the level (String) of the feature ``region`` for a province of today by its full name; else null."""
    return level_named(level_number(sido))


def level_number(sido: pl.Expr) -> pl.Expr:
    """Return a province's number (UInt8), null for what is none: less to carry than its level's name."""
    return sido.cast(_levels()[0], strict=False).to_physical().cast(pl.UInt8)


def level_named(number: pl.Expr) -> pl.Expr:
    """Return the level (String) of a province by the number that :func:`level_number` gives."""
    return pl.lit(_levels()[1]).gather(number.cast(pl.UInt32))


@cache
def _levels() -> tuple[pl.DataTypeExpr, pl.Series]:
    levels = {province.name: province.level for province in regions().provinces}
    return enum(levels), pl.Series(list(levels.values()), dtype=pl.String)
