"""Learning in worlds that are not made as the scorecard is: how much better, how soon, and what wrong labels do.

``python benchmarks/risk_learning.py [WORLDS] [--baselines]``: 24 worlds by default; ``--baselines`` fits logistic
regression and LightGBM to the same labels, too (see risk_baselines.py for what to install).

All figures are of a population of 60,000 letters that nothing was learned from. KL: log loss above the oracle, times
1,000, in nats; its ratio to the prior's is one of means over the worlds. ECE: over ten bins of equal count. Regret: at
each border of the grades (3, 8, 20, 50 %) what deciding by the model loses against deciding by the truth, that is
|p - border| where the two disagree; the mean of the four.

Labels come in mailings of 500 letters, chosen by the scorecard that answers at the time (what it gives 20 % and more
is held), plus 10 % of those it would hold. A letter takes 12 days on average to come back; what comes after 45 days
counts as arrived. The gated runs go through the very functions of `bansong calibrate`: a mailing's own quarantine,
the fit, the gate, the caps.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
from risk_worlds import World, draw, frame

from bansong.engine.risk.scorecard import Scorecard
from bansong.learning.checks import check_labels, distrust
from bansong.learning.fit import count_patterns, design, fit_points, make_challenger, predict
from bansong.learning.gate import RIPE_AT, continue_test, evaluate_challenger

LETTERS, TEST, EXPLORED = 500, 60_000, 0.10
BORDERS = (0.03, 0.08, 0.2, 0.5)
MARKS = (1_000, 2_500, 10_000)
START = datetime(2025, 1, 1, tzinfo=UTC)
PRIOR = Scorecard.load()


@dataclass(frozen=True)
class Score:
    kl: float
    ece: float
    regret: float

    @classmethod
    def of(cls, truth: np.ndarray, p: np.ndarray) -> Score:
        p = np.clip(p, 1e-6, 1 - 1e-6)
        kl = truth * np.log(truth / p) + (1 - truth) * np.log((1 - truth) / (1 - p))
        bins = np.array_split(np.argsort(p, kind="stable"), 10)
        ece = sum(abs(truth[part].mean() - p[part].mean()) * len(part) for part in bins) / len(p)
        wrong = [np.mean(np.abs(truth - border) * ((truth > border) != (p > border))) for border in BORDERS]
        return cls(1e3 * float(kl.mean()), float(ece), 1e3 * float(np.mean(wrong)))


Truth = Callable[[dict[str, np.ndarray]], np.ndarray]
Spoil = Callable[[np.random.Generator, np.ndarray], np.ndarray]


@dataclass
class Post:
    """The mailings of one world: letters chosen by a scorecard, and what is recorded of them."""

    truth: Truth
    rng: np.random.Generator
    spoil: Spoil
    sent: int = 0

    def mailing(self, card: Scorecard, letters: int = LETTERS) -> pl.DataFrame:
        """Evidence of one more mailing, 30 days after the one before."""
        parts = [self._letters(card, letters)]
        while (missing := letters - sum(part.height for part in parts)) > 0:
            parts.append(self._letters(card, letters).head(missing))
        self.sent += 1
        known = pl.concat(parts).with_columns(
            score=pl.lit(0, pl.Int32),
            row_id=pl.int_range(pl.len(), dtype=pl.UInt32),
            mailing=pl.lit(f"{self.sent:04d}"),
            **{RIPE_AT: pl.lit(START + timedelta(days=30 * self.sent))},
        )
        return known.filter(pl.col("bounced").is_not_null())

    def _letters(self, card: Scorecard, letters: int) -> pl.DataFrame:
        """Of twice as many rows those that a scorecard mails, or some of the others."""
        rows = draw(self.rng, letters * 2)
        levels = frame(rows)
        held = predict(card, design(levels)) > BORDERS[2]
        chosen = np.flatnonzero(~held | (self.rng.random(len(held)) < EXPLORED))[:letters]
        came_back = self.rng.random(len(held)) < self.truth(rows)
        late = self.rng.exponential(12.0, len(held)) > 45
        labels = self.spoil(self.rng, came_back & ~late)[chosen]
        return levels[chosen].with_columns(bounced=pl.Series(labels.astype(float)).fill_nan(None).cast(pl.Boolean))


@dataclass
class Course:
    """How a gated run went: the card at each mark, when the first promotion came, what was quarantined at the end."""

    at: dict[int, Scorecard] = field(default_factory=dict)
    promoted: int | None = None
    promotions: int = 0
    quarantined: int = 0
    warned: int | None = None
    """After how many letters it was first said that returns are missing."""
    last: Scorecard = PRIOR


def gated(post: Post, sizes: Sequence[int], marks: Sequence[int] = MARKS) -> Course:
    """Mail, record and calibrate after each mailing, as a scheduled job does."""
    course, parts, past, since, mailed = Course(), dict[str, pl.DataFrame](), None, None, 0
    for size in sizes:
        letters, mailed = post.mailing(course.last, size), mailed + size
        parts[letters["mailing"][0]] = letters
        now = START + timedelta(days=30 * post.sent, hours=1)
        checks = check_labels(parts, course.last, PRIOR)
        course.quarantined = len(checks.doubts)
        if checks.missing:
            course.warned = course.warned or mailed
        kept = [part for name, part in parts.items() if name not in checks.doubts]
        aside = sum(parts[name].height for name in checks.doubts)
        if kept:
            rows = pl.concat(kept)
            past = continue_test(rows, PRIOR.version, past)
            decision = evaluate_challenger(
                rows,
                course.last,
                PRIOR,
                since,
                f"learned+{course.promotions + 1}",
                now,
                past.required,
                distrust(aside, aside + rows.height),
                checks.unproven,
                checks.false_bounces,
            )
            if decision.promotes:
                course.last, since, past, course.promotions = decision.challenger, now, None, course.promotions + 1
                course.promoted = course.promoted or mailed
        course.at |= {mark: course.last for mark in marks if mailed <= mark}
    return course


def ungated(post: Post, marks: tuple[int, ...]) -> dict[int, Scorecard]:
    """Learn at each mark from all labels so far and take what comes out; the expert chooses who is mailed."""
    rows, found, card = pl.DataFrame(), {}, PRIOR
    for mark in marks:
        while rows.height < mark:
            rows = pl.concat([rows, post.mailing(PRIOR)]) if rows.height else post.mailing(PRIOR)
        card = make_challenger(fit_points(count_patterns(rows[:mark].lazy()), PRIOR), card)
        found[mark] = card
    return found


def _sizes(letters: int) -> list[int]:
    return [LETTERS] * (letters // LETTERS)


def clean(_: np.random.Generator, labels: np.ndarray) -> np.ndarray:
    return labels


def flipped(rng: np.random.Generator, labels: np.ndarray) -> np.ndarray:
    return np.where(rng.random(len(labels)) < 0.1, ~labels, labels)


def returns_only(_: np.random.Generator, labels: np.ndarray) -> np.ndarray:
    return np.where(labels, 1.0, np.nan)


@dataclass
class Result:
    seed: int
    prior: Score
    scores: dict[str, dict[int, Score]]
    promoted: int | None
    quarantined: int
    """Mailings of the clean run that were taken for wrong."""
    spoilt: dict[str, tuple[float, bool, int]]
    """KL at the end and whether it is worse than the prior's, and how often labels were quarantined."""
    false_promotion: bool


def world(seed: int, baselines: bool) -> Result:
    """Everything about one world."""
    here = World.of(seed)
    rng = np.random.default_rng([seed, 1])
    rows = draw(rng, TEST)
    levels, truth = design(frame(rows)), here.probability(rows)

    def score(card: Scorecard) -> Score:
        return Score.of(truth, predict(card, levels))

    def post(spoil: Spoil, stream: int, of: Truth = here.probability) -> Post:
        return Post(of, np.random.default_rng([seed, stream]), spoil)

    prior = score(PRIOR)
    course = gated(post(clean, 2), _sizes(MARKS[-1]))
    scores = {
        "ungated": {mark: score(card) for mark, card in ungated(post(clean, 3), MARKS).items()},
        "gated": {mark: score(card) for mark, card in course.at.items()},
    }
    if baselines:
        scores |= rivals(post(clean, 3), levels.matrix(), truth)
    spoilt = {}
    for name, spoil in (("10 % flipped", flipped), ("returns only", returns_only)):
        run = gated(post(spoil, 4), _sizes(5_000))
        kl = score(run.last).kl
        spoilt[name] = (kl, kl > prior.kl, run.quarantined)
    as_expected = gated(post(clean, 5, lambda rows: predict(PRIOR, design(frame(rows)))), _sizes(5_000))
    return Result(seed, prior, scores, course.promoted, course.quarantined, spoilt, as_expected.promoted is not None)


def rivals(post: Post, matrix: np.ndarray, truth: np.ndarray) -> dict[str, dict[int, Score]]:
    """The comparison models on the labels of the ungated run."""
    from risk_baselines import MODELS

    rows = pl.concat([post.mailing(PRIOR) for _ in range(MARKS[-1] // LETTERS)])
    levels, labels = design(rows).matrix(), rows["bounced"].to_numpy()
    return {
        name: {mark: Score.of(truth, model(levels[:mark], labels[:mark])(matrix)) for mark in MARKS}
        for name, model in MODELS.items()
    }


def told(results: list[Result]) -> Iterator[str]:
    """The figures for people."""
    prior = {name: np.mean([getattr(result.prior, name) for result in results]) for name in ("kl", "ece", "regret")}
    yield f"{len(results)} worlds; prior: KL {prior['kl']:.1f}, ECE {prior['ece']:.4f}, regret {prior['regret']:.2f}"
    yield f"{'':<20}" + "".join(f"{f'{mark:,} labels':>42}" for mark in MARKS)
    yield f"{'':<20}" + "KL (of prior's)    ECE (worst)   regret".rjust(42) * len(MARKS)
    for name in results[0].scores:
        cells = [cell([result.scores[name][mark] for result in results], prior) for mark in MARKS]
        yield f"{name:<20}" + "".join(cells)
    yield from judged(results)


def cell(scores: list[Score], prior: dict[str, float]) -> str:
    """One model at one mark."""
    kl, ece, regret = (np.mean([getattr(score, what) for score in scores]) for what in ("kl", "ece", "regret"))
    worst = max(score.ece for score in scores)
    return f"{kl:6.1f} ({kl / prior['kl']:.2f})  {ece:.4f} ({worst:.4f})  {regret / prior['regret']:.2f}".rjust(42)


def judged(results: list[Result]) -> Iterator[str]:
    """When the gate opened, and whether it should have."""
    after = [result.promoted or 10**9 for result in results]
    promoted = sum(result.promoted is not None for result in results)
    yield f"promoted in {promoted} of {len(results)} worlds, median after {int(np.median(after)):,} labels"
    mailings = len(results) * MARKS[-1] // LETTERS
    yield f"clean mailings quarantined: {sum(result.quarantined for result in results)} of {mailings}"
    for name in results[0].spoilt:
        worse = sum(result.spoilt[name][1] for result in results)
        set_aside = sum(result.spoilt[name][2] > 0 for result in results)
        yield f"{name}: in {worse} worlds worse than the prior after 5,000 letters; quarantined in {set_aside}"
    false = sum(result.false_promotion for result in results)
    yield f"where the expert is right: promoted all the same in {false} worlds within 5,000 letters"


def main() -> None:
    numbers = [int(word) for word in sys.argv[1:] if word.isdecimal()]
    worlds = numbers[0] if numbers else 24
    baselines = "--baselines" in sys.argv
    with ProcessPoolExecutor(2) as pool:
        results = list(pool.map(world, range(worlds), [baselines] * worlds))
    print("\n".join(told(results)))


if __name__ == "__main__":
    main()
