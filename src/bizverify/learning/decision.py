"""What the labels decide: whether the challenger takes the champion's place."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime

import msgspec
import polars as pl

from bizverify.engine.risk.scorecard import Learned, Scorecard
from bizverify.learning.challenger import make_challenger
from bizverify.learning.fit import Fit
from bizverify.learning.gate import ENOUGH, Gate, blocks, run_gate
from bizverify.learning.patterns import count_patterns
from bizverify.learning.quarantine import label_doubts
from bizverify.learning.training_data import RIPE_AT


@dataclass(frozen=True, slots=True)
class Decision:
    """Champion and challenger, what the gate says, ``doubts`` about all labels together, the e-value ``required``."""

    champion: Scorecard
    challenger: Scorecard
    gate: Gate
    doubts: tuple[str, ...]
    required: float = ENOUGH

    @property
    def promotes(self) -> bool:
        """Whether the challenger takes the champion's place."""
        return self.gate.e_value >= self.required and not self.doubts

    @property
    def labels_needed(self) -> int | None:
        """After how many labels of the contest the evidence was enough, ``None`` if it is not."""
        enough = math.log(self.required)
        return next((step.labels for step in self.gate.steps if step.log_e >= enough), None)

    @property
    def fit(self) -> Fit:
        """The fit to all labels."""
        return self.gate.fit


def evaluate_challenger(
    rows: pl.DataFrame,
    champion: Scorecard,
    prior: Scorecard,
    since: datetime | None,
    version: str,
    now: datetime,
    required: float = ENOUGH,
    distrusted: tuple[str, ...] = (),
) -> Decision:
    """Let a challenger be learned from evidence in its order, and held against the champion.

    ``since``: when the champion took its place; labels that could be used by then may have chosen it, so they teach
    the challenger and are no part of the contest. ``version`` and ``now`` are the challenger's. ``required`` is the
    e-value that is enough. ``distrusted``: why the labels are doubted whatever they say.
    """
    fresh = pl.lit(True) if since is None else pl.col(RIPE_AT) > since
    before = rows.filter(~fresh)
    known = count_patterns(before.lazy()) if before.height else None
    contest = run_gate(known, list(blocks(rows.filter(fresh))), champion, prior)
    counted = count_patterns(rows.lazy())
    made = make_challenger(contest.fit, champion)
    learned = Learned(
        parent=champion.version,
        at=now,
        labels=int(counted["n"].sum()),
        bounced=int(counted["bounced"].sum()),
        e_value=round(min(contest.e_value, 1e12), 3),
        false_bounces=round(contest.fit.false_bounces, 4),
    )
    made = msgspec.structs.replace(made, version=version, learned=learned)
    return Decision(champion, made, contest, (*distrusted, *label_doubts(counted, champion, prior)), required)
