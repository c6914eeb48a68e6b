"""The gate: a challenger replaces the champion only when it has predicted new labels better, by far.

Labels come in blocks. Before each, a challenger is made of all labels up to then; both predict the block, and the
wealth that the challenger's likelihood ratio earns is multiplied up. If the champion is right this e-value reaches 20
with a probability of 5 % at most, however often one looks (Ville's inequality; Grünwald, de Heide and Koolen, "Safe
testing", 2024). A share of labels held out for a single test gives no such protection.

The gate may be asked as often as one likes as long as labels are only ever added behind the others. Where those that
were judged have changed since (replaced, removed, released from quarantine, another store), a new contest begins, and
whoever begins often enough wins by chance. So the k-th contest needs k² times the evidence: since
1 + 1/4 + 1/9 + … < 1.65, all of them together promote wrongly in 8.3 % of cases at most instead of in 5 %.

Labels may be wrong in ways that few of them do not show. So the contest is held in several ways (:class:`Recording`),
and counts as it went in the worst: a challenger that would lose if a share of the returns was never recorded waits.
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
"""The e-value at which the champion is replaced."""

_FIRST: Final = 50
_GROWTH: Final = 0.25

_RECORDED: Final = 0.4
"""The share of the returns that is recorded at the least, where it is not known that all are."""


class Recording(NamedTuple):
    """How outcomes may have been recorded.

    So many of the letters that arrived as ``false_bounces`` (``None``: as the fit says), so much of the ``returns``.
    """

    false_bounces: float | None = None
    returns: float = 1.0


@dataclass(frozen=True, slots=True)
class Step:
    """One block: the labels up to its end, and the logarithm of the e-value then, in the worst way of recording."""

    labels: int
    log_e: float


@dataclass(frozen=True, slots=True)
class Gate:
    """The contest of champion and challenger over blocks of labels; ``fit`` is of all of them."""

    fit: Fit
    steps: tuple[Step, ...]

    @property
    def e_value(self) -> float:
        """The most that the challenger's wealth ever was; 1 is where it starts."""
        return math.exp(min(max((step.log_e for step in self.steps), default=0.0), 700.0))


def blocks(evidence: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Evidence in its order as patterns of blocks: of 50 letters, then of a quarter of what went before."""
    first = 0
    while first < evidence.height:
        size = max(_FIRST, int(first * _GROWTH))
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

    ``before``: patterns that the champion was made with, or that were known when it took its place; ``after``: blocks
    that neither had seen; ``prior`` is the expert's scorecard. ``ways``: how outcomes may have been recorded.
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
    """Yield the log-likelihood of a block by the challenger less that by the champion, for each way of recording."""
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
        """The e-value at which the champion is replaced."""
        return ENOUGH * (1 + self.rewritten) ** 2

    def as_event(self) -> dict[str, object]:
        """Return the entry of the journal."""
        return {_NAME: msgspec.to_builtins(self)}


def continue_test(rows: pl.DataFrame, release: str, earlier: JudgedLabels | None) -> JudgedLabels:
    """Return the labels judged now (in their order, by the expert of a release), after those judged earlier."""
    digest = _digest(rows, release)
    if earlier is None:
        return JudgedLabels(rows.height, digest)
    same = earlier.letters <= rows.height and _digest(rows.head(earlier.letters), release) == earlier.sha256
    return JudgedLabels(rows.height, digest, earlier.rewritten + (not same))


def last_test(events: Sequence[Event]) -> JudgedLabels | None:
    """Return the labels that were judged last against the scorecard that answers, by the journal."""
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
    """Champion and challenger, what the gate says, ``doubts`` about all labels together, the e-value ``required``.

    ``unproven``: why it cannot be said yet whether all returns are recorded; then the challenger has won even if most
    are not, and holds what the champion holds.
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
    doubts: tuple[str, ...] = (),
    unproven: str | None = None,
    false_bounces: float | None = None,
) -> Decision:
    """Let a challenger be learned from evidence in its order, and held against the champion.

    ``since``: when the champion took its place; labels that could be used by then may have chosen it, so they teach
    the challenger and are no part of the contest. ``version`` and ``now`` are the challenger's. ``required`` is the
    e-value that is enough. ``doubts``: why the labels are not believed, whatever they prove; ``unproven`` as in the
    decision. ``false_bounces``: the most of them that the labels leave possible.
    """
    fresh = pl.lit(True) if since is None else pl.col(RIPE_AT) > since
    before = rows.filter(~fresh)
    known = count_patterns(before.lazy()) if before.height else None
    ways = tuple(
        Recording(wrong, returns)
        for wrong in dict.fromkeys((None, false_bounces))
        for returns in ((1.0,) if unproven is None else (1.0, _RECORDED))
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
