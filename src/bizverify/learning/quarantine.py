"""Labels that cannot be what they are said to be are kept apart until somebody has looked."""

from __future__ import annotations

from typing import Final

import polars as pl

from bizverify.engine.risk.scorecard import Scorecard
from bizverify.learning.challenger import predict
from bizverify.learning.design_matrix import design
from bizverify.learning.fit import fit_points
from bizverify.learning.numbers import numpy

FALSE_BOUNCES: Final = 0.05
"""The largest share of false bounces that is still taken for what happens in a mail room."""

ENOUGH_TO_FIT: Final = 300
"""Labels of a mailing from which its own share of false bounces is estimated."""

MANY_ASIDE: Final = 0.2
"""The share of letters in quarantine beyond which the others are not believed either: they come from the same hands,
and those that look right by chance are the ones that are left."""

_SAFE: Final = 0.03
_TIMES, _PLUS = 4, 3
_NONE_EXPECTED: Final = 7.0
"""Returns expected where none came: by chance that happens once in a thousand mailings (e⁻⁷). The same chance is
asked of a mailing all of whose letters came back."""


def label_doubts(
    counted: pl.DataFrame, champion: Scorecard, prior: Scorecard, *, part: bool = False
) -> tuple[str, ...]:
    """Why these labels (patterns with their counts) are not to be learned from; empty if they are.

    ``part``: they are one mailing of several. A few likely returns are no sign there that what arrived was left out.
    """
    np = numpy()
    n, bounced = int(counted["n"].sum()), int(counted["bounced"].sum())
    probabilities = predict(champion, design(counted))
    expected = float(counted["n"].to_numpy() @ probabilities)
    if bounced == n and (not part or float(counted["n"].to_numpy() @ np.log(probabilities)) < -_NONE_EXPECTED):
        return (one_class(n),)
    if not bounced and expected > _NONE_EXPECTED:
        return (f"one class only: none of {n:,} letters came back where {expected:.1f} were expected",)
    found = []
    if n >= ENOUGH_TO_FIT and (share := fit_points(counted, prior).false_bounces) > FALSE_BOUNCES:
        found.append(
            f"about {share:.0%} of the letters that arrived seem to be recorded as returned (at most "
            f"{FALSE_BOUNCES:.0%} is usual)"
        )
    safe = probabilities < _SAFE
    foreseen = float(counted["n"].to_numpy()[safe] @ probabilities[safe])
    came_back = int(counted["bounced"].to_numpy()[safe].sum())
    if came_back > _TIMES * foreseen + _PLUS:
        found.append(
            f"of the safest letters (under {_SAFE:.0%}) {came_back:,} came back where {foreseen:.1f} were expected"
        )
    return tuple(found)


def one_class(n: int) -> str:
    """What is said of labels among which no letter is known to have arrived."""
    return f"one class only: all {n:,} letters came back, none is known to have arrived"


def distrust(set_aside: int, letters: int) -> tuple[str, ...]:
    """Why the labels that are left are not to be learned from, where many were set aside for what they say."""
    if set_aside <= MANY_ASIDE * letters:
        return ()
    return (f"{set_aside:,} of {letters:,} letters are in quarantine, so the others are not trusted either",)
