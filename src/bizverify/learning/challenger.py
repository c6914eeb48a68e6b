"""From a fit to a scorecard that may be served: whole points, moved by a few at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from bizverify.engine.risk.scorecard import Level, Scorecard
from bizverify.learning.design_matrix import TERMS, Design, expert_points
from bizverify.learning.fit import Fit
from bizverify.learning.numbers import numpy

if TYPE_CHECKING:
    from bizverify.learning.design_matrix import Array

MOST: Final = 10
"""Points that a level may move by in one promotion: a batch of labels that is wrong in a new way does little."""

_CEILING_STEP: Final = 0.05


def make_challenger(fit: Fit, champion: Scorecard) -> Scorecard:
    """The champion, under its version, with the points of a fit: rounded, each moved by :data:`MOST` at most.

    Every level that the expert gives points to is told in the reasons even when it has none now, so that the next
    learning can read it.
    """
    points = fit.points()
    features = {
        feature: {name: _move_level(level, points, feature, name) for name, level in levels.items()}
        for feature, levels in champion.features.items()
    }
    base = msgspec.structs.replace(champion.base, points=_limit_move(fit.base, champion.base.points))
    ceiling = min(max(fit.ceiling, champion.ceiling - _CEILING_STEP), champion.ceiling + _CEILING_STEP, 1.0)
    return msgspec.structs.replace(champion, base=base, features=features, ceiling=round(ceiling, 3))


def predict(card: Scorecard, levels: Design) -> Array:
    """The probabilities that a scorecard gives to the rows of a design."""
    np = numpy()
    score = card.base.points + levels @ np.array(expert_points(card), dtype=float)
    probabilities: Array = card.ceiling / (1 + 2 ** (-score / card.points_to_double))
    return probabilities


def _move_level(level: Level, points: Mapping[tuple[str, str], float], feature: str, name: str) -> Level:
    if (feature, name) not in points:
        return level
    moved = _limit_move(points[feature, name], level.points)
    return msgspec.structs.replace(level, points=moved, always=level.always or bool(level.points or moved))


def _limit_move(value: float, before: int) -> int:
    return min(max(round(value), before - MOST), before + MOST)


def changed_points(before: Scorecard, after: Scorecard) -> dict[tuple[str, str], tuple[int, int]]:
    """The levels whose points differ, with the points before and after."""
    pairs = zip(TERMS, expert_points(before), expert_points(after), strict=True)
    return {term: (one, other) for term, one, other in pairs if one != other}
