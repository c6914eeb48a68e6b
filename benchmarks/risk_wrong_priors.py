"""Learning in worlds of which the expert knows little, with right labels, wrong ones, and returns nobody recorded.

``python benchmarks/risk_wrong_priors.py [--worlds 12] [--first 0] [--forms shifted,misjudged,…] [--labels 10000]``

Forms of worlds, each with seeds of its own:

- ``near``: as in ``risk_learning.py``, about what the expert believes (causes off by a factor of e^0.55).
- ``shifted``: such a world with another base rate: all odds times 0.3, 4 or 8.
- ``misjudged``: causes off by e^1.2, all of them by e^0.8.
- ``logit``: additive log-odds, each coefficient 0.3 to 1.5 times the expert's, and off by 0.8 (normal), base by 1.
- ``trees``: 30 trees of depth 3 over levels, half of the expert's log-odds, and a base off by 1: interactions all over.
- ``segments``: 12 kinds of addressees, each defined by two levels, with a rate of its own; below them the expert's
  order at a third of its strength.
- ``rules`` and ``cloglog``, held out: written after everything was tuned on the others, and run once. ``rules``: 24
  rules of one or two levels, of which the first that fits decides, over a default at 0.4 of the expert's strength;
  ``cloglog``: p = 1 - exp(-exp(η)), with 60 interactions of pairs of levels.
- ``mixture`` and ``network``, held out after those had been looked at. ``mixture``: two kinds of addressees that no
  feature tells apart surely, one after a scorecard of its own, one nearly indifferent; ``network``: a layer of 24
  random hidden units over levels, on half of the expert's log-odds.
- ``weakest`` and ``alike``, held out after :mod:`bansong.learning.gate` was tuned on all of these, and run once.
  ``weakest``: a letter is as likely to come back as the worst of its levels, and the others add nothing; ``alike``: it
  fares as those of 16 typical addressees whom it resembles, which is half of it, and the expert's order the other.

A firm that closed more than a year ago has gone: in every world at least 60 % of the letters to such firms come back
(in ``trees`` every fourth world has instead suspended firms of which 85 % come back, and closed ones of which 25 % do).

Conditions: ``clean``; ``4 %`` and ``10 %`` of all labels turned round; ``missing``: 60 % of the returns are not
recorded and count as arrived. Mailings are chosen by the scorecard that answers, and go through quarantine, gate and
caps as in ``bansong calibrate``. KL is the log loss above the oracle's, as in ``risk_learning.py``, and its ratio is
to the expert's in the same world; means over worlds are of KL, not of ratios.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np
import polars as pl
from risk_learning import PRIOR, Post, Score, Spoil, clean, gated
from risk_worlds import Levels, World, draw, frame

from bansong.engine.risk.reasons import FEATURES
from bansong.engine.risk.scorecard import Scorecard
from bansong.learning.fit import TERMS, count_patterns, design, expert_points, fit_points, make_challenger, predict

MARKS = (1_000, 10_000, 100_000)
SIZES = (250,) * 4 + (500,) * 4 + (1_000,) * 7 + (10_000,) * 9
"""Letters of one mailing after the other: at first few, since that is where a first promotion does its harm."""

TEST = 40_000
UNIT = np.log(2) / PRIOR.points_to_double
GONE = ("status", "closed_over_12_months")
Truth = Callable[[Levels], np.ndarray]


def logit(p: np.ndarray) -> np.ndarray:
    return np.log(p / (1 - p))


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def holds(rows: Levels, feature: str, level: str) -> np.ndarray:
    return rows[feature] == list(FEATURES[feature]).index(level)


def expert_score(rows: Levels, points: np.ndarray) -> np.ndarray:
    """The sum of points of levels, in log-odds."""
    return UNIT * (design(frame(rows)) @ points)


def near(seed: int) -> Truth:
    return World.of(seed).probability


def shifted(seed: int) -> Truth:
    by = np.log((0.3, 4.0, 8.0)[seed % 3])
    here = World.of(seed).probability
    return lambda rows: 0.98 * sigmoid(logit(here(rows).clip(1e-6, 1 - 1e-6)) + by)


def misjudged(seed: int) -> Truth:
    here = World.of(seed, 1.2)
    more = {name: value for name, value in here.strength.items() if name != "all"}
    general = float(np.exp(np.random.default_rng([seed, 21]).normal(0, 0.8)))
    return World(more | {"all": general}, here.kept).probability


def additive(seed: int) -> Truth:
    rng = np.random.default_rng([seed, 22])
    points = np.array(expert_points(PRIOR)) * rng.uniform(0.3, 1.5) + rng.normal(0, 0.8, len(TERMS)) / UNIT
    base, ceiling = PRIOR.base.points * UNIT + rng.normal(0, 1), rng.uniform(0.85, 0.98)
    return lambda rows: ceiling * sigmoid(base + expert_score(rows, points))


def trees(seed: int) -> Truth:
    rng = np.random.default_rng([seed, 23])
    splits = [[TERMS[place] for place in rng.choice(len(TERMS), 7)] for _ in range(30)]
    leaves = rng.normal(0, 0.35, (30, 8))
    base = PRIOR.base.points * UNIT + rng.normal(0, 1)
    points = 0.5 * np.array(expert_points(PRIOR), dtype=float)

    def probability(rows: Levels) -> np.ndarray:
        eta = base + expert_score(rows, points)
        for split, leaf in zip(splits, leaves, strict=True):
            node = np.zeros(len(eta), dtype=int)
            at = np.column_stack([holds(rows, *term) for term in split])
            for _ in range(3):
                node = 2 * node + 1 + at[np.arange(len(node)), node]
            eta = eta + leaf[node - 7]
        return 0.95 * sigmoid(eta)

    return probability


def segments(seed: int) -> Truth:
    rng = np.random.default_rng([seed, 24])
    pairs = [[TERMS[place] for place in rng.choice(len(TERMS), 2, replace=False)] for _ in range(12)]
    rates = rng.beta(0.7, 2.0, 12)
    base, points = PRIOR.base.points * UNIT + rng.normal(0.5, 0.7), np.array(expert_points(PRIOR)) / 3

    def probability(rows: Levels) -> np.ndarray:
        p = sigmoid(base + expert_score(rows, points))
        for (one, other), rate in zip(pairs, rates, strict=True):
            p = np.where(holds(rows, *one) | holds(rows, *other), 0.5 * p + 0.5 * rate, p)
        return p

    return probability


def rules(seed: int) -> Truth:
    rng = np.random.default_rng([seed, 31])
    base = PRIOR.base.points * UNIT + rng.normal(0.3, 0.8)
    points = UNIT * np.array(expert_points(PRIOR), dtype=float)
    chosen = [rng.choice(len(TERMS), rng.integers(1, 3), replace=False) for _ in range(24)]
    rates = [sigmoid(base + points[rule].sum() * rng.uniform(0.3, 1.7) + rng.normal(0, 1)) for rule in chosen]

    def probability(rows: Levels) -> np.ndarray:
        p = sigmoid(base + 0.4 * expert_score(rows, points / UNIT))
        for rule, rate in zip(reversed(chosen), reversed(rates), strict=True):
            fits = np.logical_and.reduce([holds(rows, *TERMS[place]) for place in rule])
            p = np.where(fits, rate, p)
        return p

    return probability


def cloglog(seed: int) -> Truth:
    rng = np.random.default_rng([seed, 32])
    points = np.array(expert_points(PRIOR)) * rng.uniform(0.5, 1.2) + rng.normal(0, 0.5, len(TERMS)) / UNIT
    pairs = [
        ([TERMS[place] for place in rng.choice(len(TERMS), 2, replace=False)], rng.normal(0, 1)) for _ in range(60)
    ]
    base, kept = PRIOR.base.points * UNIT + rng.normal(0, 0.8), rng.uniform(0.9, 1.0)

    def probability(rows: Levels) -> np.ndarray:
        eta = base + expert_score(rows, points)
        for (one, other), weight in pairs:
            eta = eta + weight * (holds(rows, *one) & holds(rows, *other))
        return kept * (1 - np.exp(-np.exp(eta)))

    return probability


def mixture(seed: int) -> Truth:
    rng = np.random.default_rng([seed, 41])
    expert = np.array(expert_points(PRIOR), dtype=float)
    careful = expert * rng.uniform(0.6, 1.4) + rng.normal(0, 0.5, len(TERMS)) / UNIT
    careless = expert * rng.uniform(0.0, 0.3) + rng.normal(0, 0.3, len(TERMS)) / UNIT
    kind = rng.normal(0, 1, len(TERMS)) / UNIT
    base, high, share = PRIOR.base.points * UNIT + rng.normal(0, 0.5), rng.uniform(0.5, 2.5), rng.normal(-1.5, 0.7)

    def probability(rows: Levels) -> np.ndarray:
        one = sigmoid(base + expert_score(rows, careful))
        other = sigmoid(base + high + expert_score(rows, careless))
        weight = sigmoid(share + expert_score(rows, kind))
        return (1 - weight) * one + weight * other

    return probability


def network(seed: int) -> Truth:
    rng = np.random.default_rng([seed, 42])
    points = 0.5 * np.array(expert_points(PRIOR), dtype=float)
    into, bias, out = rng.normal(0, 0.8, (24, len(TERMS))) / UNIT, rng.normal(0, 1, 24), rng.normal(0, 0.4, 24)
    units = list(zip(into, bias, out, strict=True))
    base = PRIOR.base.points * UNIT + rng.normal(0, 0.8)

    def probability(rows: Levels) -> np.ndarray:
        hidden = (weight * np.tanh(by + expert_score(rows, unit)) for unit, by, weight in units)
        return 0.95 * sigmoid(base + expert_score(rows, points) + sum(hidden))

    return probability


def weakest(seed: int) -> Truth:
    rng = np.random.default_rng([seed, 51])
    base = PRIOR.base.points * UNIT + rng.normal(0.3, 0.8)
    points = np.array(expert_points(PRIOR)) * rng.uniform(0.4, 1.5) + rng.normal(0, 0.8, len(TERMS)) / UNIT
    kept = rng.uniform(0.85, 1.0)

    def probability(rows: Levels) -> np.ndarray:
        worst = np.zeros(len(rows["status"]))
        for place, term in enumerate(TERMS):
            worst = np.where(holds(rows, *term), np.maximum(worst, UNIT * points[place]), worst)
        return kept * sigmoid(base + worst)

    return probability


def alike(seed: int) -> Truth:
    rng = np.random.default_rng([seed, 52])
    typical = draw(rng, 16)
    expert = np.array(expert_points(PRIOR), dtype=float)
    base = PRIOR.base.points * UNIT + rng.normal(0.3, 0.8)
    own = base + 0.7 * expert_score(typical, expert) + rng.normal(0, 1.2, 16)

    def probability(rows: Levels) -> np.ndarray:
        same = sum((rows[feature][:, None] == typical[feature][None, :]).astype(float) for feature in FEATURES)
        weight = np.exp(1.5 * (same - same.max(axis=1, keepdims=True)))
        near_by = (weight @ own) / weight.sum(axis=1)
        return 0.95 * sigmoid(0.5 * near_by + 0.5 * (base + expert_score(rows, expert)))

    return probability


FORMS: dict[str, Callable[[int], Truth]] = {
    "near": near, "shifted": shifted, "misjudged": misjudged, "logit": additive, "trees": trees, "segments": segments,
    "rules": rules, "cloglog": cloglog, "mixture": mixture, "network": network,
    "weakest": weakest, "alike": alike,
}  # fmt: skip


def world(form: str, seed: int) -> Truth:
    """One world of a form, in which letters to firms long gone come back (or to suspended ones, see above)."""
    inner = FORMS[form](seed)
    rng = np.random.default_rng([seed, 25])
    closed, suspended = rng.uniform(0.6, 0.95), 0.0
    if form == "trees" and seed % 4 == 3:
        closed, suspended = 0.25, 0.85

    def probability(rows: Levels) -> np.ndarray:
        p = inner(rows)
        gone = holds(rows, *GONE)
        p = np.where(gone, closed if suspended else np.maximum(p, closed), p)
        return np.where(holds(rows, "status", "suspended"), np.maximum(p, suspended), p).clip(1e-5, 1 - 1e-5)

    return probability


def turned(share: float) -> Spoil:
    return lambda rng, labels: np.where(rng.random(len(labels)) < share, ~labels, labels)


def missing(rng: np.random.Generator, labels: np.ndarray) -> np.ndarray:
    return labels & (rng.random(len(labels)) >= 0.6)


CONDITIONS: dict[str, Spoil] = {"clean": clean, "4 %": turned(0.04), "10 %": turned(0.1), "missing": missing}


@dataclass(frozen=True)
class Run:
    """One world under one condition: KL of the expert, and by mark gated and without the gate."""

    form: str
    seed: int
    condition: str
    prior: float
    gated: dict[int, float]
    ungated: dict[int, float]
    promoted: int | None
    quarantined: int
    warned: int | None


def run(form: str, seed: int, condition: str, letters: int) -> Run:
    """Learn in a world, behind the gate and without it."""
    truth, spoil = world(form, seed), CONDITIONS[condition]
    rows = draw(np.random.default_rng([seed, 1]), TEST)
    levels, p = design(frame(rows)), truth(rows)
    marks = tuple(mark for mark in MARKS if mark <= letters)
    sizes = [size for size, end in zip(SIZES, np.cumsum(SIZES), strict=True) if end <= letters]
    course = gated(Post(truth, np.random.default_rng([seed, 2]), spoil), sizes, marks)
    free = ungated(Post(truth, np.random.default_rng([seed, 3]), spoil), marks)
    kl = {
        name: {mark: Score.of(p, predict(card, levels)).kl for mark, card in cards.items()}
        for name, cards in (("gated", course.at), ("ungated", free))
    }
    prior = Score.of(p, predict(PRIOR, levels)).kl
    return Run(
        form, seed, condition, prior, kl["gated"], kl["ungated"], course.promoted, course.quarantined, course.warned
    )


def ungated(post: Post, marks: tuple[int, ...]) -> dict[int, Scorecard]:
    """Learn at each mark from all labels so far and take what comes out; the expert chooses who is mailed."""
    rows, found, card = list[pl.DataFrame](), {}, PRIOR
    for mark in marks:
        rows.append(post.mailing(PRIOR, mark - sum(part.height for part in rows)))
        fit = fit_points(count_patterns(pl.concat(rows).lazy()), PRIOR)
        for _ in range(3):
            card = make_challenger(fit, card)
        found[mark] = card
    return found


def table(runs: list[Run]) -> Iterator[str]:
    """The figures for people: a line for each form and condition."""
    marks = list(runs[0].gated)
    yield (
        f"{'':<22}{'worlds':>6}{'prior':>7}"
        + "".join(f"{f'{mark:,}: gated, free':>24}" for mark in marks)
        + ("   worse than the prior by mark   stuck  set aside  warned")
    )
    forms = list(dict.fromkeys(run.form for run in runs))
    for condition in dict.fromkeys(run.condition for run in runs):
        for form in [*forms, "far"]:
            some = [
                run
                for run in runs
                if run.condition == condition and (run.form == form or (form == "far" and run.form != "near"))
            ]
            if some:
                yield line(f"{condition} {'all but near' if form == 'far' else form}", some)


def line(name: str, runs: list[Run]) -> str:
    """One line of the table."""
    prior, marks = np.mean([run.prior for run in runs]), list(runs[0].gated)

    def ratio(of: str, mark: int) -> float:
        return float(np.mean([getattr(run, of)[mark] for run in runs]) / prior)

    worse = [sum(run.gated[mark] > 1.001 * run.prior for run in runs) for mark in marks]
    counts = [
        sum(run.promoted is None for run in runs),
        sum(run.quarantined > 0 for run in runs),
        sum(run.warned is not None for run in runs),
    ]
    return (
        f"{name:<22}{len(runs):>6}{prior:>7.1f}"
        + "".join(f"{ratio('gated', mark):>16.2f}, {ratio('ungated', mark):.2f}  " for mark in marks)
        + f"{' '.join(map(str, worse)):>30}{counts[0]:>9}{counts[1]:>10}{counts[2]:>8}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, default=3, help="of each form")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--forms", default="near,shifted,misjudged,logit,trees,segments")
    parser.add_argument("--conditions", default=",".join(CONDITIONS))
    parser.add_argument("--labels", type=int, default=10_000, choices=MARKS)
    parser.add_argument("--each", action="store_true", help="print every world as it is done")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    asked = parser.parse_args()
    seeds = range(asked.first, asked.first + asked.worlds)
    wanted = [
        (form, seed, condition, asked.labels)
        for condition in asked.conditions.split(",")
        for form in asked.forms.split(",")
        for seed in seeds
    ]
    runs = []
    with ProcessPoolExecutor(asked.jobs) as pool:
        for one in pool.map(run, *zip(*wanted, strict=True)):
            runs.append(one)
            if asked.each:
                print(one, flush=True)
    print("\n".join(table(runs)))


if __name__ == "__main__":
    main()
