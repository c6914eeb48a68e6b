"""Check labels before learning: wrong returns, missing returns, and quarantine of doubtful mailings.

With wrong labels, the return rate of the safest letters stops falling; with wrong points of the expert it goes on
falling. So each half of the letters is ranked by a fit to the other half, with a free intercept, and a curve is fitted
to the rates::

    P(the label says it came back) = e0 + (1 - e0) · ceiling · σ(a + b · score)
"""

# The expert's points do not judge labels, since labels are to correct the points. Small mailings are judged together,
# since few have enough letters to tell 4 % wrong labels from 10 %.

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import TYPE_CHECKING, Final

import polars as pl

from bansong.base.messages import Phrase, count_letters, gettext, gettext_noop, gettext_of
from bansong.engine.risk.reasons import LEVEL
from bansong.engine.risk.scorecard import Scorecard
from bansong.learning.fit import TERMS, Fit, Priors, count_patterns, design, fit_points, np, predict

if TYPE_CHECKING:
    from bansong.learning.fit import Array, Flags

WIDE = 0.99
USUAL = 0.95
FEW = 50  # figures of fewer letters are too uncertain


def interval(hits: int, of: int, confidence: float = USUAL) -> tuple[float, float]:
    """Return the confidence interval of the share ``hits / of`` by Wilson's score (1927); (0, 1) without rows."""
    if not of:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share, spread = hits / of, z * z / of
    middle = (share + spread / 2) / (1 + spread)
    half = z * math.sqrt(share * (1 - share) / of + spread / (4 * of)) / (1 + spread)
    return max(0.0, middle - half) if hits else 0.0, min(1.0, middle + half) if hits < of else 1.0


def judge_prediction(letters: int, bounced: int, expected: float) -> str:
    """Say in a sentence whether as many letters came back as were predicted, by the :data:`USUAL` interval."""
    low, high = (bound * letters for bound in interval(bounced, letters))
    counts = {"letters": count_letters(letters), "bounced": bounced, "expected": expected}
    if letters < FEW:
        said = gettext_noop("Too few letters to judge the prediction: the outcome of only {letters} is known.")
    elif low > expected:
        said = gettext_noop(
            "The prediction is too optimistic: {bounced:,} letters came back, {expected:,.0f} were predicted."
        )
    elif high < expected:
        said = gettext_noop(
            "The prediction is too pessimistic: {bounced:,} letters came back, {expected:,.0f} were predicted."
        )
    else:
        said = gettext_noop("The prediction agrees with the letters that came back.")
    return gettext(said, **counts)


def chi_square_bound(freedom: int) -> float:
    """Return the :data:`WIDE` quantile of the chi-square distribution, within a few per mille."""
    # Wilson and Hilferty, 1931
    if freedom < 1:
        return 0.0
    part = 2 / (9 * freedom)
    return float(freedom * (1 - part + NormalDist().inv_cdf(WIDE) * math.sqrt(part)) ** 3)


SHIFTED: Final = 0.2  # population stability index of a changed feature (the usual limit in credit scoring)
_HALF: Final = 0.5
NONE: Final = "(none)"


def level_counts(evidence: pl.LazyFrame) -> pl.DataFrame:
    """Count the rows for each level of the scorecard's features: ``feature``, ``level`` (String), ``n`` (Int64)."""
    names = [name for name in evidence.collect_schema().names() if name.startswith(LEVEL)]
    patterns = evidence.group_by(names).agg(pl.len().cast(pl.Int64).alias("n")).collect(engine="streaming")
    levels = patterns.with_columns(pl.col(names).cast(pl.String).fill_null(NONE))
    long = levels.unpivot(names, index="n", variable_name="feature", value_name="level")
    counts = long.group_by("feature", "level").agg(pl.col("n").sum())
    counts = counts.with_columns(pl.col("feature").str.strip_prefix(LEVEL))
    return counts.select("feature", "level", "n").sort("feature", "level")


def stability_index(reference: pl.DataFrame, current: pl.DataFrame) -> pl.DataFrame:
    """Compare two :func:`level_counts`: population stability index of each feature, the largest first."""
    # `chance`: reached by chance in 1 %; `level`: the most changed one; a missing level counts as half a row
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


# for fits that rank letters: a free intercept, and wide standard deviations
RANKING: Final = Priors(
    shift=2.0,
    slope=0.3,
    others=0.45,
    delta={"status": 0.7, "address": 0.7, "history": 0.7, "freshness": 0.5, "region": 0.2},
    false_bounces=(1.0, 200.0),
)
MAX_RANKING_LETTERS: Final = 20_000  # letters to fit a ranking; more would not improve it
_MAX_BINS, _LEAST = 40, 10
_SHARES: Final = tuple(step / 200 for step in range(51))
_DROP: Final = 1.35  # drop of the log-likelihood at the limits of a 90 % interval
_MAX_STEPS, _MIN_GAIN, _MIN_STEP = 40, 1e-4, 1e-4
# prior means of a curve (a, log b, logit of the ceiling): the score is right, and the ceiling 93 %
_MIDDLE: Final = (0.0, 0.0, 2.6)
_SPREAD: Final = (1 / 3.0, 1 / 0.5, 1 / 0.5)  # inverse standard deviations of these priors


@dataclass(frozen=True, slots=True)
class FalseBounces:
    """Estimated share of arrived letters that are recorded as returned."""

    share: float
    low: float  # lower limit of a 90 % interval
    high: float  # upper limit


@dataclass(frozen=True, slots=True, eq=False)
class RankedLetters:
    """Letters with scores from a fit to other letters."""

    score: Array  # log-odds
    bounced: Array  # 1 or 0

    @classmethod
    def of(cls, letters: pl.DataFrame, prior: Scorecard) -> RankedLetters:
        """Score each half of the letters (every second one) by a fit to the other half."""
        odd = pl.Series(np.arange(letters.height) % 2 == 1)
        scores = np.zeros(letters.height)
        for half in (odd, ~odd):
            taught = letters.filter(~half)
            taught = taught.gather_every(max(1, math.ceil(2 * taught.height / MAX_RANKING_LETTERS)))
            fit = fit_points(count_patterns(taught.lazy()), prior, RANKING)
            scores[half.to_numpy()] = _scores(fit, letters.filter(half))
        return cls(scores, letters["bounced"].cast(pl.Float64).to_numpy())

    def take(self, chosen: slice | Flags) -> RankedLetters:
        return RankedLetters(self.score[chosen], self.bounced[chosen])

    def false_bounces(self) -> FalseBounces:
        """Estimate the share of wrong returns: the likeliest one, with the curve fitted for each share."""
        bins, theta, values = _Bins.of(self), np.array(_MIDDLE), list[float]()
        for share in _SHARES:
            theta, value = bins.climb(theta, share)
            values.append(value)
        best = max(values)
        within = [share for share, value in zip(_SHARES, values, strict=True) if value > best - _DROP]
        return FalseBounces(_SHARES[values.index(best)], within[0], within[-1])

    def riskiest(self, least: int) -> tuple[int, int]:
        """Count the riskiest 2 % of the letters (at least ``least``), and their returns."""
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
        count = max(1, min(_MAX_BINS, len(letters.score) // _LEAST))
        parts = np.array_split(np.argsort(letters.score, kind="stable"), count)
        return cls(
            np.array([letters.score[part].mean() for part in parts]),
            np.array([float(len(part)) for part in parts]),
            np.array([letters.bounced[part].sum() for part in parts]),
        )

    def value(self, theta: Array, share: float) -> float:
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
        ceiling, slope = _sigmoid(theta[2]), math.exp(theta[1])
        sigma = _sigmoid(theta[0] + slope * self.score)
        p = share + (1 - share) * ceiling * sigma
        rise = (1 - share) * ceiling * sigma * (1 - sigma)
        slopes = np.stack([rise, rise * slope * self.score, (1 - share) * sigma * ceiling * (1 - ceiling)])
        away, precision = theta - _MIDDLE, np.square(_SPREAD)
        gradient = slopes @ ((self.bounced - self.n * p) / (p * (1 - p))) - away * precision
        information = (slopes * (self.n / (p * (1 - p)))) @ slopes.T + np.diag(precision)
        return np.linalg.solve(information, gradient)


def _scores(fit: Fit, letters: pl.DataFrame) -> Array:
    unit = math.log(2) / fit.prior.points_to_double
    return unit * (fit.base + design(letters) @ np.array(list(fit.points().values())))


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


FALSE_BOUNCES: Final = 0.05  # up to this share, wrong returns are usual
MANY_ASIDE: Final = 0.2  # with more letters in quarantine, the other labels are not trusted


def distrust(set_aside: int, letters: int) -> tuple[str, ...]:
    """Return why no labels are trusted if too many letters (``set_aside``) are in quarantine, else nothing."""
    if set_aside <= MANY_ASIDE * letters:
        return ()
    why = gettext_noop("{set_aside:,} of {letters:,} letters are in quarantine, so the others are not trusted either")
    return (gettext(why, set_aside=set_aside, letters=letters),)


CONTROL: Final = ("status", "closed_over_12_months")
_MIN_SHARE, _USUAL_SHARE = 0.5, 0.8  # returned share of the control group: at least, usually
_MIN_CONTROL_LETTERS: Final = 5
_MIN_GROUP_LETTERS: Final = 20  # smaller groups of letters are not judged
_LIKELY_CONFIDENCE: Final = 0.8
_RECORDED, _LEFT = 0.7, 0.33
_TIMES_AS_LIKELY, _SHOWN = 5.0, 0.4  # likelihood ratio, or share, that proves that returns are recorded
_LETTERS_WITHOUT_CONTROL: Final = 2_500  # with so many letters no control group is required

REMEDY: Final = gettext_noop(
    "ask the mail room or the post whether returned letters were left out or lost, and record them with `bansong label`"
)


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """The control group that shows missing returns: letters to firms closed for over a year."""

    letters: int
    returned: int
    of: int  # all letters
    riskiest: tuple[int, int]  # number of the riskiest letters, and of their returns
    complete: bool  # more than half of some group certainly came back, so most returns are recorded

    @classmethod
    def count(cls, patterns: pl.DataFrame, riskiest: tuple[int, int] = (0, 0)) -> ControlGroup:
        n, bounced = (patterns[name].cast(pl.Float64).to_numpy() for name in ("n", "bounced"))
        levels = design(patterns)
        counts = [
            (round(letters), round(returned))
            for letters, returned in zip(levels.sums(n), levels.sums(bounced), strict=True)
        ]
        complete = any(
            letters >= _MIN_GROUP_LETTERS and interval(returned, letters)[0] > _MIN_SHARE
            for letters, returned in (*counts, riskiest)
        )
        return cls(*counts[TERMS.index(CONTROL)], round(n.sum()), riskiest, complete)

    def describe_loss(self, confidence: float = USUAL) -> str | None:
        """Return why returns are certainly missing, with figures and remedy, else ``None``."""
        ranked, of_ranked = self.riskiest
        possible = ranked > 0 and interval(of_ranked, ranked)[1] > _MIN_SHARE
        if self.complete or possible or interval(self.returned, self.letters, confidence)[1] >= _MIN_SHARE:
            return None
        share = self.returned / self.letters
        return gettext_of(
            self,
            "returns seem to be missing: of {letters:,} letters to firms closed for over a year only "
            "{returned:,} came back ({share:.0%}; at least {half:.0%} must), and of no other group more than "
            "half did, so about {value:.0%} of all returns are not recorded; {remedy}",
            share=share,
            half=_MIN_SHARE,
            value=max(0.0, 1 - share / _USUAL_SHARE),
            remedy=gettext(REMEDY),
        )

    def describe_uncertainty(self) -> str | None:
        """Return why returns may be missing, with the remedy; ``None`` if there is no reason to assume it."""
        groups = [(self.letters, self.returned)]
        if (
            self.letters < _MIN_CONTROL_LETTERS
            or interval(self.returned, self.letters, _LIKELY_CONFIDENCE)[1] >= _MIN_SHARE
        ):
            groups.append(self.riskiest)  # counts only if the control group does not contradict
        if self.complete or any(_shows_returns(returned, letters) for letters, returned in groups):
            return None
        if self.letters < _MIN_CONTROL_LETTERS:
            if self.of >= _LETTERS_WITHOUT_CONTROL:
                return None
            return gettext(
                "whether all returns are recorded is not known: only {letters:,} letters went to firms closed "
                "for over a year, {enough} are needed, or {at_least:,} letters in all; mail some of the held rows",
                letters=self.letters,
                enough=_MIN_CONTROL_LETTERS,
                at_least=_LETTERS_WITHOUT_CONTROL,
            )
        return gettext_of(
            self,
            "whether all returns are recorded is not known: of {letters:,} letters to firms closed for over "
            "a year {returned:,} came back, and most must; {remedy}",
            remedy=gettext(REMEDY),
        )


def _shows_returns(returned: int, letters: int) -> bool:
    arrived = letters - returned
    likelier = returned * math.log(_RECORDED / _LEFT) + arrived * math.log((1 - _RECORDED) / (1 - _LEFT))
    return likelier >= math.log(_TIMES_AS_LIKELY) or interval(returned, letters)[0] > _SHOWN


ENOUGH_TO_JUDGE: Final = 300  # letters for an estimate of the share of wrong labels
_TOO_MANY, _SOME = 0.065, 0.02  # all mailings are doubted above this share of wrong returns and this lower limit
_MOST, _UNKNOWN = 0.1, 0.25  # largest assumed share of wrong returns; share assumed for too few letters
_NEARLY_WORST: Final = 2 / 3
_SAFE_PROBABILITY: Final = 0.03
_NONE_EXPECTED: Final = 7.0  # expected returns; without any, the labels are implausible (e⁻⁷ is one in a thousand)


@dataclass(frozen=True, slots=True)
class LabelChecks:
    """Doubts about labels: by mailing, and about all labels."""

    doubts: Mapping[str, tuple[str, ...]]
    missing: tuple[str, ...] = ()  # why returns are certainly missing
    unproven: str | None = None  # why returns of the undoubted mailings may be missing
    false_bounces: float = 0.0  # highest possible share of wrong returns in the undoubted mailings


def check_labels(parts: Mapping[str, pl.DataFrame], champion: Scorecard, prior: Scorecard) -> LabelChecks:
    """Check the labels of each mailing alone, then of the mailings together."""
    # `parts`: rows by mailing, in the order of learning; letters are ranked by `prior`, since the champion has learned
    # from these labels
    checks = _MailingChecks(parts, {name: count_patterns(part.lazy()) for name, part in parts.items()}, champion)
    checks.judge_each()
    for group in _groups(checks.remaining()):
        if len(group) > 1:
            checks.doubt(group, label_doubts(checks.together(group), champion, part=True))
    checks.judge_wrong_returns(prior)
    unproven = checks.judge_missing_returns()
    return LabelChecks(checks.found, tuple(dict.fromkeys(checks.missing)), unproven, checks.false_bounces)


def label_doubts(counted: pl.DataFrame, champion: Scorecard, *, part: bool = False) -> tuple[str, ...]:
    """Return why labels (:func:`count_patterns`) cannot be right; ``part`` marks one of several mailings."""
    n, bounced = (counted[name].cast(pl.Float64).to_numpy() for name in ("n", "bounced"))
    letters, returned = int(n.sum()), int(bounced.sum())
    probabilities = predict(champion, design(counted))
    if returned == letters and (not part or float(n @ np.log(probabilities)) < -_NONE_EXPECTED):
        return (one_class(letters),)
    expected = float(n @ probabilities)
    if not returned and expected > _NONE_EXPECTED:
        text = gettext_noop("one class only: none of {letters:,} letters came back where {expected:.1f} were expected")
        return (Phrase(text, letters=letters, expected=expected),)
    safe = probabilities < _SAFE_PROBABILITY
    (few, of_few), (many, of_many) = ((int(bounced[chosen].sum()), int(n[chosen].sum())) for chosen in (safe, ~safe))
    if interval(few, of_few, WIDE)[0] <= interval(many, of_many, WIDE)[1]:
        return ()
    return (
        Phrase(
            "the order is upside down: of the safest letters (under {safe:.0%}) {few:,} of {of_few:,} came "
            "back ({few_share:.0%}), of the others {many:,} of {of_many:,} ({many_share:.0%})",
            safe=_SAFE_PROBABILITY,
            few=few,
            of_few=of_few,
            few_share=few / of_few,
            many=many,
            of_many=of_many,
            many_share=many / of_many,
        ),
    )


def one_class(n: int) -> str:
    """Return the warning that all ``n`` letters came back and none is known to have arrived."""
    return Phrase("one class only: all {n:,} letters came back, none is known to have arrived", n=n)


@dataclass(slots=True)
class _MailingChecks:
    parts: Mapping[str, pl.DataFrame]
    counted: Mapping[str, pl.DataFrame]
    champion: Scorecard
    found: dict[str, tuple[str, ...]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    ranked: RankedLetters | None = None
    false_bounces: float = _UNKNOWN

    def remaining(self) -> dict[str, pl.DataFrame]:
        return {name: part for name, part in self.parts.items() if name not in self.found}

    def judge_each(self) -> None:
        for name, patterns in self.counted.items():
            why = label_doubts(patterns, self.champion, part=True)
            if not why and (lacking := ControlGroup.count(patterns).describe_loss(WIDE)):
                why = (lacking,)
                self.missing.append(lacking)
            if why:
                self.found[name] = why

    def judge_wrong_returns(self, prior: Scorecard) -> None:
        """Doubt mailings with certainly too many wrong returns, the worst first, then all together."""
        # after doubting the worst, the others are ranked again without them
        while True:
            left = self.remaining()
            if sum(part.height for part in left.values()) < ENOUGH_TO_JUDGE:
                return
            groups = list(_groups(left))
            ranked = RankedLetters.of(pl.concat(left[name] for group in groups for name in group), prior)
            worst = _worst(groups, [sum(left[name].height for name in group) for group in groups], ranked)
            for group, estimate in worst:
                self.doubt(group, (_wrong_returns(estimate),))
            if not worst:
                break
        self.ranked, estimate = ranked, ranked.false_bounces()
        self.false_bounces = min(estimate.high, _MOST)
        if estimate.share > _TOO_MANY and estimate.low >= _SOME:
            self.doubt(list(left), (_wrong_returns(estimate),), "mailings")

    def judge_missing_returns(self) -> str | None:
        left = list(self.remaining())
        if not left:
            return None
        riskiest = self.ranked.riskiest(_MIN_GROUP_LETTERS) if self.ranked is not None else (0, 0)
        control = ControlGroup.count(self.together(left), riskiest)
        if lacking := control.describe_loss():
            self.doubt(left, (lacking,), Phrase("mailings"))
            self.missing.append(lacking)
            return None
        return control.describe_uncertainty()

    def together(self, names: Iterable[str]) -> pl.DataFrame:
        return pl.concat(self.counted[name] for name in names)

    def doubt(self, group: Sequence[str], why: tuple[str, ...], others: str | None = None) -> None:
        together = ""
        if len(group) > 1:
            of = others or Phrase("small mailings")
            together = Phrase("together with {group:,} other {others}: ", group=len(group) - 1, others=of)
        if why:
            self.found |= dict.fromkeys(group, tuple(f"{together}{reason}" for reason in why))


def _worst(
    groups: Sequence[Sequence[str]], sizes: Sequence[int], ranked: RankedLetters
) -> list[tuple[Sequence[str], FalseBounces]]:
    found, first = list[tuple[Sequence[str], FalseBounces]](), 0
    if len(groups) < 2:
        return found
    bound = max(FALSE_BOUNCES, ranked.false_bounces().high)
    for group, size in zip(groups, sizes, strict=True):
        if size >= ENOUGH_TO_JUDGE:
            estimate = ranked.take(slice(first, first + size)).false_bounces()
            if estimate.low > bound:
                found.append((group, estimate))
        first += size
    most = max((estimate.share for _, estimate in found), default=0.0)
    return [(group, estimate) for group, estimate in found if estimate.share >= _NEARLY_WORST * most]


def _wrong_returns(estimate: FalseBounces) -> str:
    return gettext_of(
        estimate,
        "about {share:.0%} of the letters that arrived seem to be recorded as returned (90 % interval "
        "{low:.1%} to {high:.1%}; at most {false_bounces:.0%} is usual): the rate of returns does not go "
        "on falling towards the safest letters",
        false_bounces=FALSE_BOUNCES,
    )


def _groups(parts: Mapping[str, pl.DataFrame]) -> Iterator[list[str]]:
    """Yield each large mailing alone, and groups of consecutive small ones."""
    pool, letters = list[str](), 0
    for name, part in parts.items():
        if part.height >= ENOUGH_TO_JUDGE:
            yield [name]
            continue
        pool.append(name)
        letters += part.height
        if letters >= ENOUGH_TO_JUDGE:
            yield pool
            pool, letters = [], 0
    if pool:
        yield pool
