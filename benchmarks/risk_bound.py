"""How much of the expert's error any fit of this form can take away with 1,000 labels: is the goal within reach?

``python benchmarks/risk_bound.py [--forms mixture,network] [--worlds 6] [--first 950] [--labels 1000]``

In each world of ``risk_wrong_priors.py`` clean labels are learned from without the gate, and KL to the truth is given
as a part of the expert's: with the priors as they are, and with the priors that turn out best in that very world, of 45
(``oracle``): chosen by the truth, which no method has. What the oracle misses, no choice of priors reaches.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import product

import numpy as np
import polars as pl
from risk_learning import PRIOR, Post, Score, clean
from risk_worlds import draw, frame
from risk_wrong_priors import TEST, world

from bansong.learning.fit import Fit, Priors, count_patterns, design, fit_points, make_challenger, predict

SHIFTS, SLOPES, WIDTHS = (0.5, 1.0, 3.0), (0.5, 1.0, 3.0), (0.25, 0.5, 1.0, 2.0, 4.0)
PROMOTIONS = 12
"""So many that the cap of a single one bounds nothing."""


def widened(shift: float, slope: float, levels: float) -> Priors:
    """The priors with standard deviations of base, slope and levels so many times as large."""
    usual = Priors()
    delta = {feature: levels * sd for feature, sd in usual.delta.items()}
    return replace(
        usual, shift=shift * usual.shift, slope=slope * usual.slope, others=levels * usual.others, delta=delta
    )


def measure(form: str, seed: int, labels: int) -> dict[str, float]:
    """KL in one world, by way of learning."""
    truth = world(form, seed)
    rows = draw(np.random.default_rng([seed, 1]), TEST)
    levels, p = design(frame(rows)), truth(rows)
    letters = Post(truth, np.random.default_rng([seed, 3]), clean).mailing(PRIOR, labels)
    patterns = count_patterns(letters.lazy())

    def learned(fit: Fit) -> float:
        card = PRIOR
        for _ in range(PROMOTIONS):
            card = make_challenger(fit, card)
        return Score.of(p, predict(card, levels)).kl

    usual = fit_points(patterns, PRIOR)
    fits = [fit_points(patterns, PRIOR, widened(*widths)) for widths in product(SHIFTS, SLOPES, WIDTHS)]
    return {
        "expert": Score.of(p, predict(PRIOR, levels)).kl,
        "usual": learned(usual),
        "oracle": min(map(learned, fits)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forms", default="mixture,network")
    parser.add_argument("--worlds", type=int, default=6, help="of each form")
    parser.add_argument("--first", type=int, default=950, help="the first seed")
    parser.add_argument("--labels", type=int, default=1_000)
    asked = parser.parse_args()
    wanted = [
        (form, seed, asked.labels)
        for form in asked.forms.split(",")
        for seed in range(asked.first, asked.first + asked.worlds)
    ]
    with ProcessPoolExecutor(2) as pool:
        found = list(pool.map(measure, *zip(*wanted, strict=True)))
    table = pl.DataFrame(found).insert_column(0, pl.Series("form", [form for form, _, _ in wanted]))
    parts = table.with_columns(pl.exclude("form", "expert") / pl.col("expert"))
    for form in [*asked.forms.split(","), None]:
        some = table if form is None else table.filter(pl.col("form") == form)
        each = parts if form is None else parts.filter(pl.col("form") == form)
        expert = some["expert"].mean()
        ratios = ", ".join(
            f"{name} {some[name].mean() / expert:.2f} ({each[name].mean():.2f})"  # type: ignore[operator]
            for name in ("usual", "oracle")
        )
        print(f"{form or 'all':<10} {some.height} worlds, expert's KL {expert:.1f}: {ratios}", flush=True)


if __name__ == "__main__":
    main()
