"""The challenger: a scorecard made of a fit, with whole points moved by a few at a time, and its impact."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec
import polars as pl

from bansong.engine.risk.scorecard import Level, Scorecard
from bansong.learning.fit import TERMS, Design, Fit, design, expert_points, numpy
from bansong.schema import GRADES

if TYPE_CHECKING:
    from bansong.learning.fit import Array, Flags


MOST: Final = 10
"""Points that a level may move in one promotion, so that a wrong batch of labels does little."""
_MAX_CEILING_STEP: Final = 0.05
HELD: Final = ("hold", "do_not_send")


def make_challenger(fit: Fit, champion: Scorecard) -> Scorecard:
    """Return the champion with the points of a fit: rounded, each moved by :data:`MOST` at most.

    Levels to which the expert gives points stay in the reasons even at 0 points, so that the next learning can read
    them.
    """
    points = fit.points()
    features = {
        feature: {name: _move_level(level, points, feature, name) for name, level in levels.items()}
        for feature, levels in champion.features.items()
    }
    base = msgspec.structs.replace(champion.base, points=_limit_move(fit.base, champion.base.points))
    ceiling = min(max(fit.ceiling, champion.ceiling - _MAX_CEILING_STEP), champion.ceiling + _MAX_CEILING_STEP, 1.0)
    return msgspec.structs.replace(champion, base=base, features=features, ceiling=round(ceiling, 3))


def keep_held(challenger: Scorecard, champion: Scorecard) -> Scorecard:
    """Keep every level that alone holds a letter as strong as in the champion.

    Such letters are hardly ever mailed, and missing returns would lower just these levels the most.
    """
    fallen = champion.base.points - challenger.base.points
    features = {
        feature: {
            name: msgspec.structs.replace(level, points=max(level.points, before.points + fallen))
            if (before := champion.features[feature][name]).points + champion.base.points > _most_mailed(champion)
            else level
            for name, level in levels.items()
        }
        for feature, levels in challenger.features.items()
    }
    return msgspec.structs.replace(challenger, features=features, ceiling=max(challenger.ceiling, champion.ceiling))


def _most_mailed(card: Scorecard) -> float:
    mailed = (card.grades[grade] for grade in GRADES[:-1] if getattr(card.actions, grade) not in HELD)
    return max(mailed, default=-math.inf)


def predict(card: Scorecard, levels: Design) -> Array:
    """Return the probabilities that a scorecard gives to the rows of a design."""
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


@dataclass(frozen=True, slots=True)
class Saving:
    """Of ``letters``: how many more the new scorecard would hold and mail, and how many of them come back."""

    letters: int
    held: int
    held_bouncing: float
    mailed: int
    mailed_bouncing: float


def points_frame(counted: pl.DataFrame, expert: Scorecard, before: Scorecard, after: Scorecard) -> pl.DataFrame:
    """Return every level with its points and its evidence; the first row is the base, with all letters.

    Columns: ``feature``, ``level`` (String), ``expert``, ``before``, ``after`` (Int64 points), ``letters``, ``bounced``
    (Int64), ``expected`` (Float64: returns that the scorecard before predicted).
    """
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
    """Compare which letters two scorecards would mail."""
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
    """Return the share of labelled letters that the scorecard would have held."""
    n = counted["n"].cast(pl.Float64).to_numpy()
    return float(n[_is_held(card, design(counted))].sum() / max(n.sum(), 1))


def _is_held(card: Scorecard, levels: Design) -> Flags:
    np = numpy()
    score = card.base.points + levels @ np.array(expert_points(card), dtype=float)
    cuts = np.array([card.grades[grade] for grade in GRADES[:-1]])
    held = np.array([getattr(card.actions, grade) in HELD for grade in GRADES])
    found: Flags = held[np.searchsorted(cuts, score, side="left")]
    return found
