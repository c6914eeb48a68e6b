"""The fit: how the points would be if they followed the labels as far as these reach, and the expert beyond.

A hierarchical maximum a posteriori estimate. With the expert's points in log-odds (10 points are ln 2)::

    η = base + shift + slope · Σ points + Σ δ(level)          p = ceiling · σ(η)
    P(the label says it came back) = e0 + (1 - e0) · p

The priors are those of :class:`Priors`: without labels the expert's scorecard is the answer, and every label moves
it a little. ``e0``, the share of letters that are said to have come back and did not, is estimated so that wrong
labels do not raise every probability; it is not served. A rate of missed bounces is not estimated: nothing could
tell it from the ceiling.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from bizverify.engine.risk.features import FEATURES
from bizverify.engine.risk.scorecard import Scorecard
from bizverify.learning.numbers import numpy
from bizverify.learning.patterns import LEVELS

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float64]]

TERMS: Final = tuple((feature, level) for feature, levels in FEATURES.items() for level in levels)
"""Every level of every feature: the columns of a design matrix."""

_STEPS: Final = 60
_HALVINGS: Final = 30
_PRECISE: Final = 1e-8
_E0_MOST: Final = 0.5
_SURE: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Priors:
    """How far labels may move what the expert says, in log-odds (standard deviations of normal distributions).

    ``delta``: a level's own deviation, by feature, ``others`` where a feature is not named. ``false_bounces``: the two
    parameters of e0's beta distribution. ``ceiling`` is in log-odds of the ceiling.
    """

    shift: float = 0.25
    slope: float = 0.10
    others: float = 0.24
    delta: Mapping[str, float] = field(
        default_factory=lambda: {"status": 0.36, "address": 0.36, "history": 0.36, "freshness": 0.30, "region": 0.15}
    )
    ceiling: float = 0.30
    false_bounces: tuple[float, float] = (1.0, 15.0)

    def of(self, feature: str) -> float:
        """The standard deviation of a feature's levels."""
        return self.delta.get(feature, self.others)


@dataclass(frozen=True, slots=True)
class Fit:
    """What the labels say. ``deltas`` are in the order of :data:`TERMS`, in log-odds; the rest see the module."""

    prior: Scorecard
    shift: float
    slope: float
    deltas: Array
    ceiling: float
    false_bounces: float

    def points(self) -> dict[tuple[str, str], float]:
        """Each level's points as they come out, before they are rounded."""
        unit = math.log(2) / self.prior.points_to_double
        expert = expert_points(self.prior)
        return {term: self.slope * expert[place] + float(self.deltas[place]) / unit for place, term in enumerate(TERMS)}

    @property
    def base(self) -> float:
        """The base's points as they come out: the expert's score is stretched around 0, not around its base."""
        return self.prior.base.points + self.shift * self.prior.points_to_double / math.log(2)

    def theta(self) -> Array:
        """The parameters as one vector, to start another fit from."""
        np = numpy()
        theta: Array = np.concatenate(
            [[self.shift, self.slope], self.deltas, [_logit(self.ceiling), self.false_bounces]]
        )
        return theta


def expert_points(card: Scorecard) -> list[int]:
    """A scorecard's points in the order of :data:`TERMS`."""
    return [card.features[feature][level].points for feature, level in TERMS]


def design(patterns: pl.DataFrame) -> Array:
    """One row a pattern, one column a term: 1 where the level holds."""
    np = numpy()
    matrix: Array = np.zeros((patterns.height, len(TERMS)))
    first = 0
    for column, (_, levels) in zip(LEVELS, FEATURES.items(), strict=True):
        codes = patterns[column].to_physical().cast(pl.Int16).fill_null(-1).to_numpy()
        rows = np.flatnonzero(codes >= 0)
        matrix[rows, first + codes[rows]] = 1.0
        first += len(levels)
    return matrix


def fitted(patterns: pl.DataFrame, prior: Scorecard, priors: Priors | None = None, start: Fit | None = None) -> Fit:
    """Fit to counted evidence (see :func:`bizverify.learning.patterns.patterns`); ``start`` only makes it faster."""
    np = numpy()
    problem = _Problem.of(patterns, prior, priors or Priors())
    theta = problem.mode if start is None else start.theta()
    value = problem.value(theta)
    for _ in range(_STEPS):
        step = problem.step(theta)
        for halving in range(_HALVINGS):
            tried = problem.inside(theta + step / 2**halving)
            if (better := problem.value(tried)) >= value:
                break
        else:
            break
        moved, theta, gained, value = float(np.abs(tried - theta).max()), tried, better - value, better
        if moved < _PRECISE or gained < _PRECISE * (1 + abs(value)):
            break
    return Fit(prior, float(theta[0]), float(theta[1]), theta[2:-2], _sigmoid(float(theta[-2])), float(theta[-1]))


@dataclass(frozen=True, slots=True)
class _Problem:
    """The penalised likelihood of shift, slope, deltas, the ceiling's log-odds and e0, in this order."""

    matrix: Array
    """η = offset + matrix · (shift, slope, deltas)."""
    offset: float
    n: Array
    bounced: Array
    mode: Array
    precision: Array
    beta: tuple[float, float]

    @classmethod
    def of(cls, patterns: pl.DataFrame, prior: Scorecard, priors: Priors) -> _Problem:
        np = numpy()
        unit = math.log(2) / prior.points_to_double
        levels = design(patterns)
        expert = levels @ np.array(expert_points(prior), dtype=float) * unit
        sds = [priors.shift, priors.slope, *(priors.of(feature) for feature, _ in TERMS), priors.ceiling]
        return cls(
            matrix=np.column_stack([np.ones(len(levels)), expert, levels]),
            offset=prior.base.points * unit,
            n=patterns["n"].cast(pl.Float64).to_numpy(),
            bounced=patterns["bounced"].cast(pl.Float64).to_numpy(),
            mode=np.array([0.0, 1.0, *[0.0] * len(TERMS), _logit(prior.ceiling), 0.0]),
            precision=np.append(np.array(sds) ** -2.0, 0.0),
            beta=priors.false_bounces,
        )

    def _probabilities(self, theta: Array) -> tuple[Array, Array, Array]:
        """σ(η), the probability that a letter bounces, and the one that its label says so."""
        np = numpy()
        sigma = 1 / (1 + np.exp(-(self.offset + self.matrix @ theta[:-2])))
        p = _sigmoid(float(theta[-2])) * sigma
        return sigma, p, np.clip(theta[-1] + (1 - theta[-1]) * p, _SURE, 1 - _SURE)

    def value(self, theta: Array) -> float:
        """The log-posterior, but for a constant."""
        np = numpy()
        _, _, label = self._probabilities(theta)
        likelihood = self.bounced @ np.log(label) + (self.n - self.bounced) @ np.log1p(-label)
        a, b = self.beta
        prior = (a - 1) * math.log(max(theta[-1], _SURE)) + (b - 1) * math.log(1 - theta[-1])
        return float(likelihood - 0.5 * self.precision @ (theta - self.mode) ** 2 + prior)

    def step(self, theta: Array) -> Array:
        """Where Fisher scoring goes from here; e0 stays where it is if it is 0 and would become less."""
        np = numpy()
        sigma, p, label = self._probabilities(theta)
        ceiling, e0 = _sigmoid(float(theta[-2])), theta[-1]
        d_eta = (1 - e0) * ceiling * sigma * (1 - sigma)
        jacobian = np.column_stack([self.matrix * d_eta[:, None], (1 - e0) * p * (1 - ceiling), 1 - p])
        variance = label * (1 - label)
        gradient = jacobian.T @ ((self.bounced - self.n * label) / variance) - self.precision * (theta - self.mode)
        information = (jacobian * (self.n / variance)[:, None]).T @ jacobian + np.diag(self.precision)
        a, b = self.beta
        gradient[-1] += (a - 1) / max(e0, _SURE) - (b - 1) / (1 - e0)
        information[-1, -1] += (a - 1) / max(e0, _SURE) ** 2 + (b - 1) / (1 - e0) ** 2
        free = np.ones(len(theta), dtype=bool)
        free[-1] = e0 > 0 or gradient[-1] > 0
        step: Array = np.zeros(len(theta))
        step[free] = np.linalg.solve(information[np.ix_(free, free)], gradient[free])
        return step

    def inside(self, theta: Array) -> Array:
        """The vector with e0 brought back to where it may be."""
        theta[-1] = min(max(theta[-1], 0.0), _E0_MOST)
        return theta


def _logit(p: float) -> float:
    p = min(max(p, _SURE), 1 - _SURE)
    return math.log(p / (1 - p))


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))
