"""What a new scorecard would change: points and their evidence, and who would be mailed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from bizverify.engine.risk.scorecard import Scorecard
from bizverify.learning.challenger import predict
from bizverify.learning.design_matrix import TERMS, Design, design, expert_points
from bizverify.learning.numbers import numpy
from bizverify.schema import GRADES

if TYPE_CHECKING:
    import numpy as np

    Flags = np.ndarray[Any, np.dtype[np.bool_]]

HELD: Final = ("hold", "do_not_send")
"""Actions by which a letter is not mailed."""


@dataclass(frozen=True, slots=True)
class Saving:
    """Of ``letters`` like the labelled ones, how many more would be held and mailed, and how many of them come back.

    Counted with the new scorecard's probabilities, by the actions of the grades.
    """

    letters: int
    held: int
    held_bouncing: float
    mailed: int
    mailed_bouncing: float


def points_frame(counted: pl.DataFrame, expert: Scorecard, before: Scorecard, after: Scorecard) -> pl.DataFrame:
    """Every level with its points and its evidence.

    Columns: ``feature``, ``level`` (String), ``expert``, ``before``, ``after`` (Int64 points), ``letters``, ``bounced``
    (Int64: labels where it held), ``expected`` (Float64: returns that the scorecard before foretold of them). The
    first row is the base, with all letters.
    """
    levels = design(counted)
    n, bounced = (counted[name].cast(pl.Float64).to_numpy() for name in ("n", "bounced"))
    expected = n * predict(before, levels)
    sums = [levels.sums(values) for values in (n, bounced, expected)]
    cards = {"expert": expert, "before": before, "after": after}
    told = pl.DataFrame(
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
    return pl.concat([pl.DataFrame([{"feature": "base", "level": "", **base, **totals}], schema=told.schema), told])


def saving(counted: pl.DataFrame, before: Scorecard, after: Scorecard) -> Saving:
    """Say who would be mailed with the new scorecard that was not, and the other way round."""
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
    """The share of labelled letters that the scorecard would have held: what is learned of those rests on them."""
    n = counted["n"].cast(pl.Float64).to_numpy()
    return float(n[_is_held(card, design(counted))].sum() / max(n.sum(), 1))


def _is_held(card: Scorecard, levels: Design) -> Flags:
    np = numpy()
    score = card.base.points + levels @ np.array(expert_points(card), dtype=float)
    cuts = np.array([card.grades[grade] for grade in GRADES[:-1]])
    held = np.array([getattr(card.actions, grade) in HELD for grade in GRADES])
    found: Flags = held[np.searchsorted(cuts, score, side="left")]
    return found
