"""The gate: a challenger replaces the champion only if it predicted new labels much better.

Labels come in blocks. Before each, a challenger is fitted to all labels so far; both predict the block, and the
likelihood ratios are multiplied. If the champion is right, this e-value reaches 20 with a probability of 5 % at most,
however often one looks (Ville's inequality; Grünwald, de Heide and Koolen, "Safe testing", 2024).

That holds while labels are only appended. If judged labels have changed, a new contest begins, and the k-th contest
needs k² times the evidence: since 1 + 1/4 + 1/9 + … < 1.65, all of them together promote wrongly in 8.3 % of cases at
most.

The contest is held for several kinds of recording errors (:class:`Recording`), and the worst result counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import polars as pl

from bansong.engine.risk.scorecard import Learned, Scorecard
from bansong.learning.challenger import keep_held, make_challenger, predict
from bansong.learning.fit import Fit, count_patterns, design, fit_points, merge_patterns, numpy
from bansong.learning.training_data import RIPE_AT
from bansong.models.journal import DECIDING, Event

if TYPE_CHECKING:
    from bansong.learning.fit import Array


ENOUGH: Final = 20.0
"""E-value at which the champion is replaced."""
_FIRST: Final = 50
_BLOCK_GROWTH: Final = 0.25
_MIN_RECORDED_SHARE: Final = 0.4
"""Smallest share of the returns that is recorded, if missing returns are possible."""


class Recording(NamedTuple):
    """Assumed errors of recording: share of ``false_bounces`` (``None``: as fitted), recorded share of ``returns``."""

    false_bounces: float | None = None
    returns: float = 1.0


@dataclass(frozen=True, slots=True)
class Step:
    """One block: the labels up to its end, and the log of the e-value then, for the worst kind of recording."""

    labels: int
    log_e: float


@dataclass(frozen=True, slots=True)
class Gate:
    """The contest of champion and challenger over blocks of labels; ``fit`` uses all of them."""

    fit: Fit
    steps: tuple[Step, ...]

    @property
    def e_value(self) -> float:
        """Highest e-value so far; it starts at 1."""
        return math.exp(min(max((step.log_e for step in self.steps), default=0.0), 700.0))


def blocks(evidence: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield evidence in its order as patterns of blocks: 50 letters, then a quarter of what went before."""
    first = 0
    while first < evidence.height:
        size = max(_FIRST, int(first * _BLOCK_GROWTH))
        yield count_patterns(evidence.slice(first, size).lazy())
        first += size


def run_gate(
    before: pl.DataFrame | None,
    after: Sequence[pl.DataFrame],
    champion: Scorecard,
    prior: Scorecard,
    ways: Sequence[Recording] = (Recording(),),
) -> Gate:
    """Let the challenger predict block after block.

    ``before``: patterns known when the champion was promoted; ``after``: new blocks; ``prior``: the expert's scorecard;
    ``ways``: assumed errors of recording.
    """
    seen = [] if before is None else [before]
    labels, log_e, steps, fit = 0, [0.0] * len(ways), list[Step](), None
    for block in after:
        if seen:
            fit = fit_points(merge_patterns(seen), prior, start=fit)
            gains = _log_likelihood_gains(fit, champion, block, ways)
            log_e = [so_far + gain for so_far, gain in zip(log_e, gains, strict=True)]
        labels += int(block["n"].sum())
        steps.append(Step(labels, min(log_e)))
        seen = [merge_patterns([*seen, block])]
    return Gate(fit_points(merge_patterns(seen), prior, start=fit), tuple(steps))


def _log_likelihood_gains(
    fit: Fit, champion: Scorecard, block: pl.DataFrame, ways: Sequence[Recording]
) -> Iterator[float]:
    levels = design(block)
    challenging, standing = (predict(card, levels) for card in (make_challenger(fit, champion), champion))
    for way in ways:
        wrong = fit.false_bounces if way.false_bounces is None else way.false_bounces
        yield _likelihood(way.returns * challenging, wrong, block) - _likelihood(way.returns * standing, wrong, block)


def _likelihood(probabilities: Array, false_bounces: float, block: pl.DataFrame) -> float:
    np = numpy()
    label = false_bounces + (1 - false_bounces) * probabilities
    bounced = block["bounced"].cast(pl.Float64).to_numpy()
    rest = block["n"].cast(pl.Float64).to_numpy() - bounced
    return float(bounced @ np.log(label) + rest @ np.log1p(-label))


_JUDGED: Final = ("mailing", "row_id", "bounced")
_NAME: Final = "past"


class JudgedLabels(msgspec.Struct, frozen=True):
    """The labels of a contest: how many ``letters``, their digest, and how often they were ``rewritten`` so far."""

    letters: int
    sha256: str
    rewritten: int = 0

    @property
    def required(self) -> float:
        """E-value at which the champion is replaced."""
        return ENOUGH * (1 + self.rewritten) ** 2

    def as_event(self) -> dict[str, object]:
        """Return the entry of the journal."""
        return {_NAME: msgspec.to_builtins(self)}


def continue_test(rows: pl.DataFrame, release: str, earlier: JudgedLabels | None) -> JudgedLabels:
    """Compare the labels judged now with those judged earlier; ``release``: version of the expert's scorecard."""
    digest = _digest(rows, release)
    if earlier is None:
        return JudgedLabels(rows.height, digest)
    same = earlier.letters <= rows.height and _digest(rows.head(earlier.letters), release) == earlier.sha256
    return JudgedLabels(rows.height, digest, earlier.rewritten + (not same))


def last_test(events: Sequence[Event]) -> JudgedLabels | None:
    """Return the labels judged last against the current champion, by the journal."""
    found: Mapping[str, Any] | None = None
    for event in events:
        found = None if event.kind in DECIDING else event.data.get(_NAME, found)
    return None if found is None else msgspec.convert(found, JudgedLabels)


def _digest(rows: pl.DataFrame, release: str) -> str:
    text = BytesIO(f"{release}\n".encode())
    text.seek(0, 2)
    rows.select(_JUDGED).write_csv(text)
    return sha256(text.getbuffer()).hexdigest()


@dataclass(frozen=True, slots=True)
class Decision:
    """The result of a contest; ``doubts`` concern all labels together, ``required`` is the e-value that is enough.

    ``unproven``: why missing returns are possible; the challenger then has to win under that assumption, too.
    """

    champion: Scorecard
    challenger: Scorecard
    gate: Gate
    doubts: tuple[str, ...]
    required: float = ENOUGH
    unproven: str | None = None

    @property
    def promotes(self) -> bool:
        """Whether the challenger takes the champion's place."""
        return self.gate.e_value >= self.required and not self.doubts

    @property
    def labels_needed(self) -> int | None:
        """Contest labels after which the evidence was enough, ``None`` if it is not."""
        enough = math.log(self.required)
        return next((step.labels for step in self.gate.steps if step.log_e >= enough), None)


def evaluate_challenger(
    rows: pl.DataFrame,
    champion: Scorecard,
    prior: Scorecard,
    since: datetime | None,
    version: str,
    now: datetime,
    required: float = ENOUGH,
    doubts: tuple[str, ...] = (),
    unproven: str | None = None,
    false_bounces: float | None = None,
) -> Decision:
    """Fit a challenger to evidence (in its order), and compare it with the champion.

    ``since``: when the champion was promoted; labels usable by then may have chosen it, so they are no part of the
    contest. ``version`` and ``now`` are the challenger's; the others as in :class:`Decision`. ``false_bounces``: the
    highest share of wrong returns that the labels leave possible.
    """
    fresh = pl.lit(True) if since is None else pl.col(RIPE_AT) > since
    before = rows.filter(~fresh)
    known = count_patterns(before.lazy()) if before.height else None
    ways = tuple(
        Recording(wrong, returns)
        for wrong in dict.fromkeys((None, false_bounces))
        for returns in ((1.0,) if unproven is None else (1.0, _MIN_RECORDED_SHARE))
    )
    contest = run_gate(known, list(blocks(rows.filter(fresh))), champion, prior, ways)
    counted = count_patterns(rows.lazy())
    made = make_challenger(contest.fit, champion)
    if unproven is not None:
        made = keep_held(made, champion)
    learned = Learned(
        parent=champion.version,
        at=now,
        labels=int(counted["n"].sum()),
        bounced=int(counted["bounced"].sum()),
        e_value=round(min(contest.e_value, 1e12), 3),
        false_bounces=round(contest.fit.false_bounces, 4),
    )
    made = msgspec.structs.replace(made, version=version, learned=learned)
    return Decision(champion, made, contest, doubts, required, unproven)
