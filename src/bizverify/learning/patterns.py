"""Evidence counted: letters of which the same was known are one pattern."""

from __future__ import annotations

from typing import Final

import polars as pl

from bizverify.engine.risk.reason_parser import LEVEL_DTYPES

LEVELS: Final = tuple(LEVEL_DTYPES)
"""The columns that make a pattern: ``level:<feature>``."""

COUNTS: Final = ("n", "bounced")


def usable(evidence: pl.LazyFrame) -> pl.LazyFrame:
    """The rows of evidence that say something: the outcome is known, and all reasons could be read."""
    told = pl.col("bounced").is_not_null() & pl.col("score").is_not_null()
    if "unread" in evidence.collect_schema().names():
        told &= ~pl.col("unread")
    return evidence.filter(told)


def patterns(evidence: pl.LazyFrame) -> pl.DataFrame:
    """Count usable evidence by pattern: ``level:<feature>`` (Enum), ``n`` and ``bounced`` (UInt32), any order."""
    counted = usable(evidence).group_by(LEVELS).agg(pl.len().alias("n"), pl.col("bounced").sum())
    return counted.collect(engine="streaming")


def together(parts: list[pl.DataFrame]) -> pl.DataFrame:
    """Patterns of several parts as one."""
    return pl.concat(parts).group_by(LEVELS).agg(pl.col(COUNTS).sum())
