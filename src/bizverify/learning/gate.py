"""The gate: a challenger replaces the champion only when it has foretold labels better, by far, before it saw them.

Labels come in blocks. Before each, a challenger is made of all labels up to then; both foretell the block, and the
wealth that the challenger's likelihood ratio earns is multiplied up. If the champion is right this e-value reaches 20
with a probability of 5 % at most, however often one looks (Ville's inequality; Grünwald, de Heide and Koolen, "Safe
testing", 2024). A share of labels held out for a single test gives no such protection. What if labels that were judged
change later is in ``past``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from bizverify.engine.risk.scorecard import Scorecard
from bizverify.learning.challenger import make_challenger, predict
from bizverify.learning.design_matrix import design
from bizverify.learning.fit import Fit, fit_points
from bizverify.learning.numbers import numpy
from bizverify.learning.patterns import count_patterns, merge_patterns

if TYPE_CHECKING:
    from bizverify.learning.design_matrix import Array

ENOUGH: Final = 20.0
"""The e-value at which the champion is replaced."""

_FIRST: Final = 100
_GROWTH: Final = 0.25


@dataclass(frozen=True, slots=True)
class Step:
    """One block: the labels up to its end, and the logarithm of the e-value then."""

    labels: int
    log_e: float


@dataclass(frozen=True, slots=True)
class Gate:
    """What the labels say of champion and challenger; ``fit`` is of all of them."""

    fit: Fit
    steps: tuple[Step, ...]

    @property
    def e_value(self) -> float:
        """The most that the challenger's wealth ever was; 1 is where it starts."""
        return math.exp(min(max((step.log_e for step in self.steps), default=0.0), 700.0))


def blocks(evidence: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Evidence in its order as patterns of blocks: of 100 letters, then of a quarter of what went before."""
    first = 0
    while first < evidence.height:
        size = max(_FIRST, int(first * _GROWTH))
        yield count_patterns(evidence.slice(first, size).lazy())
        first += size


def run_gate(before: pl.DataFrame | None, after: Sequence[pl.DataFrame], champion: Scorecard, prior: Scorecard) -> Gate:
    """Let the challenger foretell block after block.

    ``before``: patterns that the champion was made with, or that were known when it took its place; ``after``: blocks
    that neither had seen; ``prior`` is the expert's scorecard.
    """
    seen = [] if before is None else [before]
    labels, log_e, steps, fit = 0, 0.0, list[Step](), None
    for block in after:
        if seen:
            fit = fit_points(merge_patterns(seen), prior, start=fit)
            log_e += _log_likelihood_gain(fit, champion, block)
        labels += int(block["n"].sum())
        steps.append(Step(labels, log_e))
        seen = [merge_patterns([*seen, block])]
    return Gate(fit_points(merge_patterns(seen), prior, start=fit), tuple(steps))


def _log_likelihood_gain(fit: Fit, champion: Scorecard, block: pl.DataFrame) -> float:
    """By how much the challenger foretold a block better, in log-likelihood; both know of the same wrong labels."""
    levels = design(block)
    challenging, standing = (
        _likelihood(predict(card, levels), fit.false_bounces, block)
        for card in (make_challenger(fit, champion), champion)
    )
    return challenging - standing


def _likelihood(probabilities: Array, false_bounces: float, block: pl.DataFrame) -> float:
    np = numpy()
    label = false_bounces + (1 - false_bounces) * probabilities
    bounced = block["bounced"].cast(pl.Float64).to_numpy()
    rest = block["n"].cast(pl.Float64).to_numpy() - bounced
    return float(bounced @ np.log(label) + rest @ np.log1p(-label))
