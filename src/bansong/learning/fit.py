"""Fit the points of a scorecard to labelled letters, to make a challenger of the scorecard in use.

The estimate is a hierarchical maximum a posteriori. With the expert's points (of the built-in scorecard) in
log-odds (10 points are ln 2)::

    η = base + shift + slope · Σ points + Σ δ(level)          p = ceiling · σ(η)
    P(the label says it came back) = e0 + (1 - e0) · p

``e0`` is the share of letters recorded as returned by mistake. Unrecorded returns lower the ceiling.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl

from bansong.base.errors import Problem, UsageError
from bansong.base.schema import GRADES
from bansong.engine.risk.reasons import FEATURES, LEVEL_DTYPES
from bansong.engine.risk.scorecard import Level, Scorecard

NUMPY_MISSING: Final = Problem("learning.numpy_missing", 'learning needs numpy: pip install "bansong[learn]"')


def numpy() -> ModuleType:
    """Import numpy; raise :class:`UsageError` without it."""
    try:
        import numpy as np
    except ImportError as error:
        raise UsageError(NUMPY_MISSING) from error
    return np


class _Numpy:
    """numpy, imported on first use, since it is an extra that reports do not need."""

    def __getattr__(self, name: str) -> Any:
        return getattr(numpy(), name)


if TYPE_CHECKING:
    import numpy as library

    np = library
    Array = np.ndarray[Any, np.dtype[np.float64]]
    Codes = np.ndarray[Any, np.dtype[np.intp]]
    Flags = np.ndarray[Any, np.dtype[np.bool_]]
else:
    np = _Numpy()

LEVELS: Final = tuple(LEVEL_DTYPES)
COUNTS: Final = ("n", "bounced")


def usable(evidence: pl.LazyFrame) -> pl.LazyFrame:
    """Keep labelled rows with a known outcome and readable reasons."""
    known = pl.col("bounced").is_not_null() & pl.col("score").is_not_null()
    if "unread" in evidence.collect_schema().names():
        known &= ~pl.col("unread")
    return evidence.filter(known)


def count_patterns(evidence: pl.LazyFrame) -> pl.DataFrame:
    """Count usable rows by pattern (combination of levels): ``level:<feature>`` (Enum), ``n``, ``bounced`` (UInt32)."""
    counted = usable(evidence).group_by(LEVELS).agg(pl.len().alias("n"), pl.col("bounced").sum())
    return counted.collect(engine="streaming")


def merge_patterns(parts: list[pl.DataFrame]) -> pl.DataFrame:
    """Add up several results of :func:`count_patterns`."""
    return pl.concat(parts).group_by(LEVELS).agg(pl.col(COUNTS).sum())


# columns of a design matrix: all levels of all features
TERMS: Final = tuple((feature, level) for feature, levels in FEATURES.items() for level in levels)
_ROWS: Final = 1 << 16
_SIZES: Final = tuple(map(len, FEATURES.values()))
_ENDS: Final = tuple(accumulate(_SIZES))[:-1]


def expert_points(card: Scorecard) -> list[int]:
    """Return a scorecard's points of all levels, in the order of :data:`TERMS`."""
    return [card.features[feature][level].points for feature, level in TERMS]


@dataclass(frozen=True, slots=True, eq=False)
class Design:
    """A sparse design matrix: a row for each pattern, a column for each term, 1 if the pattern has the level."""

    codes: tuple[Codes, ...]  # by feature: index of each row's level, or the number of levels without one

    def __len__(self) -> int:
        return len(self.codes[0])

    def __matmul__(self, weights: Array) -> Array:
        total: Array = np.zeros(len(self))
        for codes, part in zip(self.codes, np.split(weights, _ENDS), strict=True):
            total += np.append(part, 0.0)[codes]
        return total

    def sums(self, values: Array) -> Array:
        """Return, for each term, the sum of ``values`` over the rows that have it."""
        counts = [
            np.bincount(codes, weights=values, minlength=size + 1)[:size]
            for codes, size in zip(self.codes, _SIZES, strict=True)
        ]
        return np.concatenate(counts)

    def products(self, weights: Array, sides: Array) -> tuple[Array, Array]:
        """Return the weighted cross products of all terms, and the sums of each column of ``sides`` by term."""
        # single precision is enough for the steps of a fit; they do not change its result
        width = len(TERMS) + len(_SIZES)
        pairs: Array = np.zeros((width, width))
        sums: Array = np.zeros((width, sides.shape[1]))
        for first in range(0, len(self), _ROWS):
            rows = slice(first, first + _ROWS)
            block = self._dense_rows(rows)
            sums += block.T @ sides[rows].astype(np.float32)
            pairs += block.T @ (block * weights[rows, None].astype(np.float32))
        kept = _term_columns()
        return pairs[np.ix_(kept, kept)], sums[kept]

    def matrix(self) -> Array:
        return np.array(self._dense_rows(slice(0, len(self)))[:, _term_columns()], dtype=np.float64)

    def _dense_rows(self, rows: slice) -> Any:
        width = len(TERMS) + len(_SIZES)
        length = len(self.codes[0][rows])
        block = np.zeros((length, width), dtype=np.float32)
        flat, starts, first = block.reshape(-1), np.arange(length) * width, 0
        for codes, size in zip(self.codes, _SIZES, strict=True):
            flat[starts + first + codes[rows]] = 1.0
            first += size + 1
        return block


def design(patterns: pl.DataFrame) -> Design:
    """Return the design matrix of the patterns of :func:`count_patterns`."""
    return Design(
        tuple(
            patterns[column].to_physical().cast(pl.Int64).fill_null(size).to_numpy()
            for column, size in zip(LEVELS, _SIZES, strict=True)
        )
    )


def _term_columns() -> list[int]:
    kept, first = list[int](), 0
    for size in _SIZES:
        kept += range(first, first + size)
        first += size + 1
    return kept


_MAX_STEPS: Final = 60
_MAX_HALVINGS: Final = 30
_MIN_GAIN: Final = 5e-3  # of the log-posterior; less changes no estimate by a tenth of its uncertainty
_FAR: Final = 1.0  # after a larger gain of the log-posterior the curvature is computed again
_FEW: Final = 20_000
_PART: Final = 8
_MAX_E0: Final = 0.5
_SURE: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Priors:
    """Prior standard deviations (normal, in log-odds) of the differences from the expert's points."""

    shift: float = 0.25
    slope: float = 0.10
    others: float = 0.30  # for features not in `delta`
    delta: Mapping[str, float] = field(
        default_factory=lambda: {"status": 0.45, "address": 0.45, "history": 0.45, "freshness": 0.38, "region": 0.15}
    )
    ceiling: float = 0.30  # of the log-odds of the ceiling
    false_bounces: tuple[float, float] = (1.0, 15.0)  # parameters of e0's beta distribution

    def of(self, feature: str) -> float:
        return self.delta.get(feature, self.others)


@dataclass(frozen=True, slots=True)
class Fit:
    """Estimated parameters."""

    prior: Scorecard
    shift: float
    slope: float
    deltas: Array  # in log-odds, in the order of TERMS
    ceiling: float
    false_bounces: float

    def points(self) -> dict[tuple[str, str], float]:
        unit = math.log(2) / self.prior.points_to_double
        expert = expert_points(self.prior)
        return {term: self.slope * expert[place] + float(self.deltas[place]) / unit for place, term in enumerate(TERMS)}

    @property
    def base(self) -> float:
        """Fitted base points; the slope does not change them."""
        return self.prior.base.points + self.shift * self.prior.points_to_double / math.log(2)

    def theta(self) -> Array:
        theta: Array = np.concatenate(
            [[self.shift, self.slope], self.deltas, [_logit(self.ceiling), self.false_bounces]]
        )
        return theta


def fit_points(patterns: pl.DataFrame, prior: Scorecard, priors: Priors | None = None, start: Fit | None = None) -> Fit:
    """Fit points to patterns (:func:`count_patterns`); it takes fewer steps from an earlier fit (``start``)."""
    priors = priors or Priors()
    if start is None and patterns.height > 2 * _FEW:  # a fit to a part of the letters saves most steps
        start = fit_points(patterns.sample(patterns.height // _PART, seed=1), prior, priors)
    problem = _Problem.of(patterns, prior, priors)
    here = problem.at(problem.mode if start is None else start.theta())
    gained, halved = math.inf, 0
    for _ in range(_MAX_STEPS):
        if gained > _FAR:
            information = problem.information(here)
        step = problem.step(here, information)
        halved = max(halved - 1, 0)
        while (there := problem.at(here.theta + step / 2**halved)).value < here.value:
            halved += 1
            if halved > _MAX_HALVINGS:
                return problem.fit(here)
        gained, here = there.value - here.value, there
        if gained < _MIN_GAIN:
            break
    return problem.fit(here)


@dataclass(frozen=True, slots=True)
class _Point:
    """Parameters (``theta``), and the values of the model at these."""

    theta: Array
    sigma: Array  # σ(η)
    label: Array  # probabilities that labels say `returned`
    value: float  # log-posterior

    @property
    def ceiling(self) -> float:
        return _sigmoid(float(self.theta[-2]))

    @property
    def e0(self) -> float:
        return float(self.theta[-1])


@dataclass(frozen=True, slots=True)
class _Problem:
    """The log-posterior as a function of shift, slope, deltas, log-odds of the ceiling, and e0, in this order."""

    prior: Scorecard
    design: Design
    expert: Array
    offset: float
    n: Array
    bounced: Array
    mode: Array
    precision: Array
    beta: tuple[float, float]

    @classmethod
    def of(cls, patterns: pl.DataFrame, prior: Scorecard, priors: Priors) -> _Problem:
        unit = math.log(2) / prior.points_to_double
        levels = design(patterns)
        points = np.array(expert_points(prior), dtype=float) * unit
        sds = [priors.shift, priors.slope, *(priors.of(feature) for feature, _ in TERMS), priors.ceiling]
        return cls(
            prior=prior,
            design=levels,
            expert=levels @ points,
            offset=prior.base.points * unit,
            n=patterns["n"].cast(pl.Float64).to_numpy(),
            bounced=patterns["bounced"].cast(pl.Float64).to_numpy(),
            mode=np.array([0.0, 1.0, *[0.0] * len(TERMS), _logit(prior.ceiling), 0.0]),
            precision=np.append(np.array(sds) ** -2.0, 0.0),
            beta=priors.false_bounces,
        )

    def fit(self, here: _Point) -> Fit:
        shift, slope = map(float, here.theta[:2])
        return Fit(self.prior, shift, slope, here.theta[2:-2], here.ceiling, here.e0)

    def at(self, theta: Array) -> _Point:
        theta[-1] = e0 = min(max(float(theta[-1]), 0.0), _MAX_E0)
        sigma = 1 / (1 + np.exp(-(self.offset + theta[0] + theta[1] * self.expert + self.design @ theta[2:-2])))
        label = np.clip(e0 + (1 - e0) * _sigmoid(float(theta[-2])) * sigma, _SURE, 1 - _SURE)
        likelihood = self.bounced @ np.log(label) + (self.n - self.bounced) @ np.log1p(-label)
        a, b = self.beta
        prior = (a - 1) * math.log(max(e0, _SURE)) + (b - 1) * math.log(1 - e0)
        value = float(likelihood - 0.5 * self.precision @ (theta - self.mode) ** 2 + prior)
        return _Point(theta, sigma, label, value)

    def step(self, here: _Point, information: Array) -> Array:
        """Return the step of Fisher scoring; ``e0`` (share of false returns) stays 0 if it would become negative."""
        theta, label = here.theta, here.label
        d_eta, others = self._slopes(here)
        by_label = (self.bounced - self.n * label) / (label * (1 - label))
        by_eta = d_eta * by_label
        gradient = np.concatenate(
            [[by_eta.sum(), by_eta @ self.expert], self.design.sums(by_eta), others @ by_label]
        ) - self.precision * (theta - self.mode)
        a, b = self.beta
        gradient[-1] += (a - 1) / max(theta[-1], _SURE) - (b - 1) / (1 - theta[-1])
        free = np.ones(len(theta), dtype=bool)
        free[-1] = theta[-1] > 0 or gradient[-1] > 0
        step: Array = np.zeros(len(theta))
        step[free] = np.linalg.solve(information[np.ix_(free, free)], gradient[free])
        return step

    def information(self, here: _Point) -> Array:
        d_eta, others = self._slopes(here)
        weights = self.n / (here.label * (1 - here.label))
        squared, crossed = weights * d_eta**2, weights * d_eta * others
        count = len(TERMS)
        terms = slice(2, 2 + count)
        found: Array = np.zeros((count + 4, count + 4))
        sides = np.column_stack([squared, squared * self.expert, *crossed])
        found[terms, terms], sums = self.design.products(squared, sides)
        found[0, terms], found[1, terms], found[terms, -2], found[terms, -1] = sums.T
        found[0, 0], found[0, 1], found[1, 1] = squared.sum(), squared @ self.expert, squared @ self.expert**2
        for place, cross in enumerate(crossed, count + 2):
            found[0, place], found[1, place] = cross.sum(), cross @ self.expert
        found[-2:, -2:] = (others * weights) @ others.T
        upper = np.triu(found)
        whole: Array = upper + upper.T - np.diag(np.diag(found)) + np.diag(self.precision)
        a, b = self.beta
        whole[-1, -1] += (a - 1) / max(here.e0, _SURE) ** 2 + (b - 1) / (1 - here.e0) ** 2
        return whole

    def _slopes(self, here: _Point) -> tuple[Array, Array]:
        """Return the derivatives of a label's probability by η, and by log-odds of the ceiling and e0 (a row each)."""
        ceiling, e0, p = here.ceiling, here.e0, here.ceiling * here.sigma
        d_eta: Array = (1 - e0) * p * (1 - here.sigma)
        return d_eta, np.stack([(1 - e0) * p * (1 - ceiling), 1 - p])


def _logit(p: float) -> float:
    p = min(max(p, _SURE), 1 - _SURE)
    return math.log(p / (1 - p))


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


MAX_MOVE: Final = 10  # points of a level in one promotion, to limit the harm of wrong labels
_MAX_CEILING_STEP: Final = 0.05
HELD: Final = ("hold", "do_not_send")


def make_challenger(fit: Fit, champion: Scorecard) -> Scorecard:
    """Return the champion with fitted points, rounded and moved by :data:`MAX_MOVE` at most."""
    # a level whose points become 0 stays in the reasons, for the next learning to read
    points = fit.points()
    features = {
        feature: {name: _move_level(level, points, feature, name) for name, level in levels.items()}
        for feature, levels in champion.features.items()
    }
    base = msgspec.structs.replace(champion.base, points=_limit_move(fit.base, champion.base.points))
    ceiling = min(max(fit.ceiling, champion.ceiling - _MAX_CEILING_STEP), champion.ceiling + _MAX_CEILING_STEP, 1.0)
    return msgspec.structs.replace(champion, base=base, features=features, ceiling=round(ceiling, 3))


def keep_held(challenger: Scorecard, champion: Scorecard) -> Scorecard:
    """Undo the challenger's lower points of each level that alone keeps a letter from being mailed."""
    # such letters are rarely mailed, and unrecorded returns would lower these levels most
    fallen = champion.base.points - challenger.base.points
    mailed = (champion.grades[grade] for grade in GRADES[:-1] if getattr(champion.actions, grade) not in HELD)
    most_mailed = max(mailed, default=-math.inf)
    features = {
        feature: {
            name: msgspec.structs.replace(level, points=max(level.points, before.points + fallen))
            if (before := champion.features[feature][name]).points + champion.base.points > most_mailed
            else level
            for name, level in levels.items()
        }
        for feature, levels in challenger.features.items()
    }
    return msgspec.structs.replace(challenger, features=features, ceiling=max(challenger.ceiling, champion.ceiling))


def _scores(card: Scorecard, levels: Design) -> Array:
    return card.base.points + levels @ np.array(expert_points(card), dtype=float)


def predict(card: Scorecard, levels: Design) -> Array:
    """Return a scorecard's probability of return for each row of a design matrix."""
    return card.ceiling / (1 + 2 ** (-_scores(card, levels) / card.points_to_double))


def _move_level(level: Level, points: Mapping[tuple[str, str], float], feature: str, name: str) -> Level:
    if (feature, name) not in points:
        return level
    moved = _limit_move(points[feature, name], level.points)
    return msgspec.structs.replace(level, points=moved, always=level.always or bool(level.points or moved))


def _limit_move(value: float, before: int) -> int:
    return min(max(round(value), before - MAX_MOVE), before + MAX_MOVE)


@dataclass(frozen=True, slots=True)
class Saving:
    """Effect of a new scorecard on ``letters``: how many more it holds or mails, and expected returns of these."""

    letters: int
    held: int
    held_bouncing: float
    mailed: int
    mailed_bouncing: float


def points_frame(counted: pl.DataFrame, expert: Scorecard, before: Scorecard, after: Scorecard) -> pl.DataFrame:
    """Return points, letters, returns and expected returns (by ``before``) of each level, the base first."""
    levels = design(counted)
    n, bounced = (counted[name].cast(pl.Float64).to_numpy() for name in ("n", "bounced"))
    expected = n * predict(before, levels)
    sums = [levels.sums(values) for values in (n, bounced, expected)]
    cards = {"expert": expert, "before": before, "after": after}
    levels_frame = pl.DataFrame(
        {
            "feature": [feature for feature, _ in TERMS],
            "level": [level for _, level in TERMS],
            **{name: pl.Series(expert_points(card), dtype=pl.Int64) for name, card in cards.items()},
            "letters": pl.Series(sums[0], dtype=pl.Float64).cast(pl.Int64),
            "bounced": pl.Series(sums[1], dtype=pl.Float64).cast(pl.Int64),
            "expected": sums[2],
        }
    )
    base = {name: card.base.points for name, card in cards.items()}
    totals = {"letters": int(n.sum()), "bounced": int(bounced.sum()), "expected": float(expected.sum())}
    return pl.concat(
        [pl.DataFrame([{"feature": "base", "level": "", **base, **totals}], schema=levels_frame.schema), levels_frame]
    )


def saving(counted: pl.DataFrame, before: Scorecard, after: Scorecard) -> Saving:
    """Count the letters that only one of two scorecards would mail."""
    levels = design(counted)
    n = counted["n"].cast(pl.Float64).to_numpy()
    bouncing = n * predict(after, levels)
    was, now = _is_held(before, levels), _is_held(after, levels)
    more, fewer = ~was & now, was & ~now
    return Saving(
        letters=int(n.sum()),
        held=int(n[more].sum()),
        held_bouncing=float(bouncing[more].sum()),
        mailed=int(n[fewer].sum()),
        mailed_bouncing=float(bouncing[fewer].sum()),
    )


def held_share(counted: pl.DataFrame, card: Scorecard) -> float:
    """Return the share of labelled letters that a scorecard would not mail."""
    n = counted["n"].cast(pl.Float64).to_numpy()
    return float(n[_is_held(card, design(counted))].sum() / max(n.sum(), 1))


def _is_held(card: Scorecard, levels: Design) -> Flags:
    cuts = np.array([card.grades[grade] for grade in GRADES[:-1]])
    held = np.array([getattr(card.actions, grade) in HELD for grade in GRADES])
    found: Flags = held[np.searchsorted(cuts, _scores(card, levels), side="left")]
    return found
