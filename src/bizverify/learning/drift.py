"""Whether the letters of today are still those that the scorecard was made for."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final

import polars as pl

from bizverify.engine.risk.reason_parser import LEVEL
from bizverify.learning.intervals import WIDE, chi_square_bound, interval

SHIFTED: Final = 0.2
"""Above this population stability index a feature's shares have shifted (the usual rule of credit scoring)."""

_HALF: Final = 0.5
NONE: Final = "(none)"
"""The level of rows for which none of a feature's levels holds."""


@dataclass(frozen=True, slots=True)
class LargeAlarm:
    """Whether as many letters came back as expected: ``ratio`` of the two, its 99 % interval, and the alarm."""

    n: int
    bounced: int
    expected: float
    ratio: float
    low: float
    high: float
    alarm: bool

    def as_dict(self) -> dict[str, object]:
        """The finding as plain values."""
        return asdict(self)


def level_counts(evidence: pl.LazyFrame) -> pl.DataFrame:
    """How often each level of each feature occurs: ``feature``, ``level`` (String, :data:`NONE` for none), ``n``.

    ``evidence`` has ``level:<feature>`` columns; ``n`` is Int64.
    """
    names = [name for name in evidence.collect_schema().names() if name.startswith(LEVEL)]
    patterns = evidence.group_by(names).agg(pl.len().cast(pl.Int64).alias("n")).collect(engine="streaming")
    levels = patterns.with_columns(pl.col(names).cast(pl.String).fill_null(NONE))
    long = levels.unpivot(names, index="n", variable_name="feature", value_name="level")
    counts = long.group_by("feature", "level").agg(pl.col("n").sum())
    return (
        counts.with_columns(pl.col("feature").str.strip_prefix(LEVEL))
        .select("feature", "level", "n")
        .sort("feature", "level")
    )


def drift(reference: pl.DataFrame, current: pl.DataFrame) -> pl.DataFrame:
    """The population stability index of each feature between two tables of :func:`level_counts`, the largest first.

    Columns: ``feature`` (String), ``psi`` (Float64), ``chance`` (Float64: what it stays below by chance, in 99 of 100
    cases, with so few rows), ``alarm`` (Boolean: above both 0.2 and chance), ``level`` (String: the one whose share
    changed most), ``before``, ``after`` (Float64, its shares). A level that one side lacks counts as half a row there,
    so that the index stays finite. A feature that only one side knows, or has no rows of, is left out.
    """
    both = reference.select("feature", "level", r="n").join(
        current.select("feature", "level", c="n"), on=["feature", "level"], how="full", coalesce=True
    )
    both = both.with_columns(pl.col("r", "c").fill_null(0))
    both = both.filter((pl.col("r").sum().over("feature") > 0) & (pl.col("c").sum().over("feature") > 0))
    smooth = [
        (pl.max_horizontal(name, pl.lit(_HALF)) / pl.max_horizontal(name, pl.lit(_HALF)).sum().over("feature"))
        for name in ("r", "c")
    ]
    both = both.with_columns(before=smooth[0], after=smooth[1])
    moved = (pl.col("after") - pl.col("before")) * (pl.col("after") / pl.col("before")).log()
    most = moved.arg_max()
    found = both.group_by("feature").agg(
        psi=moved.sum(),
        freedom=pl.len() - 1,
        spread=1 / pl.col("r").sum() + 1 / pl.col("c").sum(),
        level=pl.col("level").get(most),
        before=pl.col("before").get(most),
        after=pl.col("after").get(most),
    )
    bounds = {freedom: chi_square_bound(freedom) for freedom in found["freedom"].unique()}
    by_chance = pl.col("freedom").replace_strict(bounds, default=0.0, return_dtype=pl.Float64) * pl.col("spread")
    found = found.with_columns(chance=by_chance)
    alarm = (pl.col("psi") > SHIFTED) & (pl.col("psi") > pl.col("chance"))
    found = found.with_columns(alarm=alarm).sort(["psi", "feature"], descending=[True, False])
    return found.select("feature", "psi", "chance", "alarm", "level", "before", "after")


def large_alarm(n: int, bounced: int, expected: float) -> LargeAlarm | None:
    """Whether what came back contradicts what was expected: 1 lies outside the ratio's 99 % interval (Wilson).

    ``None`` where nothing was expected, since nothing can be compared then.
    """
    if not n or expected <= 0:
        return None
    low, high = (bound * n / expected for bound in interval(bounced, n, WIDE))
    return LargeAlarm(n, bounced, expected, bounced / expected, low, high, not low <= 1 <= high)
