"""Significance, wrong returns, and quarantined labels.

Wrong labels leave the rate of the safest letters flat; if the expert is wrong instead, it goes on falling. Each half of
the letters is ranked by a fit to the other half with a free intercept, and a curve is laid through the rates by rank::

    P(the label says it came back) = e0 + (1 - e0) · ceiling · σ(a + b · score)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Final

import polars as pl

from bansong.base.messages import gettext, gettext_noop
from bansong.engine.risk.reason_parser import LEVEL
from bansong.engine.risk.scorecard import Scorecard
from bansong.learning.fit import Fit, Priors, count_patterns, design, fit_points, numpy

if TYPE_CHECKING:
    from bansong.learning.fit import Array, Flags


WIDE = 0.99
USUAL = 0.95


def interval(hits: int, of: int, confidence: float = USUAL) -> tuple[float, float]:
    """Return the interval of a share by Wilson's score (1927), which holds for few rows, too; (0, 1) without rows."""
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


SHIFTED: Final = 0.2  # population stability index: the feature's shares have shifted (the usual rule of credit scoring)
_HALF: Final = 0.5
NONE: Final = "(none)"


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
    counts = counts.with_columns(pl.col("feature").str.strip_prefix(LEVEL))
    return counts.select("feature", "level", "n").sort("feature", "level")


def stability_index(reference: pl.DataFrame, current: pl.DataFrame) -> pl.DataFrame:
    """Return the population stability index of each feature between two :func:`level_counts`, the largest first."""
    # `chance`: 99 % bound; `level`: the most changed one; a level that one side lacks counts as half a row there
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
    """Return the ratio of returned to expected letters with its interval, or ``None`` if none were expected."""
    if not n or expected <= 0:
        return None
    low, high = (bound * n / expected for bound in interval(bounced, n, WIDE))
    return OverallCalibration(n, bounced, expected, bounced / expected, low, high, not low <= 1 <= high)


# for the fits that rank: a free intercept, and wide deviations
RANKING: Final = Priors(
    shift=2.0,
    slope=0.3,
    others=0.45,
    delta={"status": 0.7, "address": 0.7, "history": 0.7, "freshness": 0.5, "region": 0.2},
    false_bounces=(1.0, 200.0),
)
MOST: Final = 20_000  # letters used for the ranking; more would not sharpen one rate
_MAX_BINS, _LEAST = 40, 10
_SHARES: Final = tuple(step / 200 for step in range(51))
_DROP: Final = 1.35  # log-likelihood below the best: the limits of a 90 % interval
_MAX_STEPS, _MIN_GAIN, _MIN_STEP = 40, 1e-4, 1e-4
# prior means of a curve (a, log b, logit of the ceiling): the score is right, and 93 % of the returns come back
_MIDDLE: Final = (0.0, 0.0, 2.6)
_SPREAD: Final = (1 / 3.0, 1 / 0.5, 1 / 0.5)  # one over their standard deviations


@dataclass(frozen=True, slots=True)
class FalseBounces:
    """Estimated share of arrived letters recorded as returned, with its 90 % interval ``low`` to ``high``."""

    share: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, eq=False)
class RankedLetters:
    """Letters with the ``score`` that ranks them (log-odds, by a fit to others); ``bounced`` is 1 or 0."""

    score: Array
    bounced: Array

    @classmethod
    def of(cls, letters: pl.DataFrame, prior: Scorecard) -> RankedLetters:
        """Rank evidence in its order, every second letter by a fit to those between."""
        np = numpy()
        odd = pl.Series(np.arange(letters.height) % 2 == 1)
        scores = np.zeros(letters.height)
        for half in (odd, ~odd):
            taught = letters.filter(~half)
            taught = taught.gather_every(max(1, math.ceil(2 * taught.height / MOST)))
            fit = fit_points(count_patterns(taught.lazy()), prior, RANKING)
            scores[half.to_numpy()] = _scores(fit, letters.filter(half))
        return cls(scores, letters["bounced"].cast(pl.Float64).to_numpy())

    def take(self, chosen: slice | Flags) -> RankedLetters:
        return RankedLetters(self.score[chosen], self.bounced[chosen])

    def false_bounces(self) -> FalseBounces:
        """Estimate the share of wrong returns, with the best curve for each share."""
        bins, theta, values = _Bins.of(self), numpy().array(_MIDDLE), list[float]()
        for share in _SHARES:
            theta, value = bins.climb(theta, share)
            values.append(value)
        best = max(values)
        within = [share for share, value in zip(_SHARES, values, strict=True) if value > best - _DROP]
        return FalseBounces(_SHARES[values.index(best)], within[0], within[-1])

    def riskiest(self, least: int) -> tuple[int, int]:
        """Return the highest ranked fiftieth, or ``least`` letters: how many, and how many came back."""
        np = numpy()
        count = min(len(self.score), max(least, len(self.score) // 50))
        highest = np.argsort(self.score, kind="stable")[len(self.score) - count :]
        return count, round(float(self.bounced[highest].sum()))


@dataclass(frozen=True, slots=True, eq=False)
class _Bins:
    score: Array
    n: Array
    bounced: Array

    @classmethod
    def of(cls, letters: RankedLetters) -> _Bins:
        np = numpy()
        count = max(1, min(_MAX_BINS, len(letters.score) // _LEAST))
        parts = np.array_split(np.argsort(letters.score, kind="stable"), count)
        return cls(
            np.array([letters.score[part].mean() for part in parts]),
            np.array([float(len(part)) for part in parts]),
            np.array([letters.bounced[part].sum() for part in parts]),
        )

    def value(self, theta: Array, share: float) -> float:
        np = numpy()
        p = share + (1 - share) * _sigmoid(theta[2]) * _sigmoid(theta[0] + math.exp(theta[1]) * self.score)
        likelihood = self.bounced @ np.log(p) + (self.n - self.bounced) @ np.log1p(-p)
        return float(likelihood) - 0.5 * float((((theta - _MIDDLE) * _SPREAD) ** 2).sum())

    def climb(self, theta: Array, share: float) -> tuple[Array, float]:
        value = self.value(theta, share)
        for _ in range(_MAX_STEPS):
            step, length = self._step(theta, share), 1.0
            while (there := self.value(theta + length * step, share)) < value and length > _MIN_STEP:
                length /= 2
            if there - value < _MIN_GAIN:
                break
            theta, value = theta + length * step, there
        return theta, value

    def _step(self, theta: Array, share: float) -> Array:
        np = numpy()
        ceiling, slope = _sigmoid(theta[2]), math.exp(theta[1])
        sigma = _sigmoid(theta[0] + slope * self.score)
        p = share + (1 - share) * ceiling * sigma
        rise = (1 - share) * ceiling * sigma * (1 - sigma)
        slopes = np.stack([rise, rise * slope * self.score, (1 - share) * sigma * ceiling * (1 - ceiling)])
        away, precision = theta - _MIDDLE, np.square(_SPREAD)
        gradient = slopes @ ((self.bounced - self.n * p) / (p * (1 - p))) - away * precision
        information = (slopes * (self.n / (p * (1 - p)))) @ slopes.T + np.diag(precision)
        step: Array = np.linalg.solve(information, gradient)
        return step


def _scores(fit: Fit, letters: pl.DataFrame) -> Array:
    np = numpy()
    unit = math.log(2) / fit.prior.points_to_double
    scores: Array = unit * (fit.base + design(letters) @ np.array(list(fit.points().values())))
    return scores


def _sigmoid(x: Array) -> Array:
    np = numpy()
    found: Array = 1 / (1 + np.exp(-x))
    return found


FALSE_BOUNCES: Final = 0.05  # highest share of wrong labels that is usual
MANY_ASIDE: Final = 0.2  # share of quarantined letters above which the other labels are not trusted either


def distrust(set_aside: int, letters: int) -> tuple[str, ...]:
    """Return why the remaining labels are not trusted, if many letters are in quarantine."""
    if set_aside <= MANY_ASIDE * letters:
        return ()
    why = gettext_noop("{set_aside:,} of {letters:,} letters are in quarantine, so the others are not trusted either")
    return (gettext(why, set_aside=set_aside, letters=letters),)
