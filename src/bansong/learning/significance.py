"""Statistical significance: intervals, the stability index of features, calibration in the large."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import polars as pl

from bansong.engine.risk.reason_parser import LEVEL

WIDE = 0.99
USUAL = 0.95


def interval(hits: int, of: int, confidence: float = USUAL) -> tuple[float, float]:
    """Return the interval of a share by Wilson's score (1927); (0, 1) for no observations.

    Unlike the normal interval it holds for few rows and for shares near 0.
    """
    if not of:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share, spread = hits / of, z * z / of
    middle = (share + spread / 2) / (1 + spread)
    half = z * math.sqrt(share * (1 - share) / of + spread / (4 * of)) / (1 + spread)
    return max(0.0, middle - half) if hits else 0.0, min(1.0, middle + half) if hits < of else 1.0


def chi_square_bound(freedom: int, confidence: float = WIDE) -> float:
    """Return the chi-square quantile of a confidence, to a few per mille (Wilson and Hilferty, 1931)."""
    if freedom < 1:
        return 0.0
    part = 2 / (9 * freedom)
    return float(freedom * (1 - part + NormalDist().inv_cdf(confidence) * math.sqrt(part)) ** 3)


SHIFTED: Final = 0.2
"""Population stability index above which a feature's shares have shifted (the usual rule of credit scoring)."""
_HALF: Final = 0.5
NONE: Final = "(none)"
"""Level of rows without a level of a feature."""


@dataclass(frozen=True, slots=True)
class OverallCalibration:
    """``ratio`` of returned to expected letters with its 99 % interval; ``significant``: 1 lies outside of it."""

    n: int
    bounced: int
    expected: float
    ratio: float
    low: float
    high: float
    significant: bool


def level_counts(evidence: pl.LazyFrame) -> pl.DataFrame:
    """Count each level of each feature: ``feature``, ``level`` (String, :data:`NONE` for none), ``n`` (Int64)."""
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


def stability_index(reference: pl.DataFrame, current: pl.DataFrame) -> pl.DataFrame:
    """Return the population stability index of each feature between two :func:`level_counts`, the largest first.

    Columns: ``feature`` (String), ``psi``, ``chance`` (Float64: 99 % bound by chance alone), ``shifted`` (Boolean:
    above both 0.2 and chance), ``level`` (String: the one whose share changed most), ``before``, ``after`` (Float64,
    its shares). A level that one side lacks counts as half a row there; a feature that one side lacks is left out.
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
    shifted = (pl.col("psi") > SHIFTED) & (pl.col("psi") > pl.col("chance"))
    found = found.with_columns(shifted=shifted).sort(["psi", "feature"], descending=[True, False])
    return found.select("feature", "psi", "chance", "shifted", "level", "before", "after")


def overall_calibration(n: int, bounced: int, expected: float) -> OverallCalibration | None:
    """Compare returned and expected letters; ``None`` if nothing was expected."""
    if not n or expected <= 0:
        return None
    low, high = (bound * n / expected for bound in interval(bounced, n, WIDE))
    return OverallCalibration(n, bounced, expected, bounced / expected, low, high, not low <= 1 <= high)
