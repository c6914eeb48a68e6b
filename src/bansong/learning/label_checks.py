"""Checks of labels: what cannot be right in one mailing, and what all mailings together tell of wrong labels.

The expert's prior is no judge of labels, since it is what they are to correct: that more comes back than it says is
news. A mailing is doubted by itself where it has one outcome only, where its safest letters come back more often than
the others, and where its control group does not come back. What is left is judged together: for wrong labels, of which
few mailings have enough letters to tell 4 % from 10 %, and for missing returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import polars as pl

from bansong.engine.risk.scorecard import Scorecard
from bansong.learning.challenger import predict
from bansong.learning.control_group import LEVEL, ControlGroup
from bansong.learning.fit import count_patterns, design, numpy
from bansong.learning.label_noise import FalseBounces, RankedLetters
from bansong.learning.quarantine import FALSE_BOUNCES
from bansong.learning.significance import WIDE, interval
from bansong.translation import Phrase

ENOUGH_TO_JUDGE: Final = 300
"""Letters from which a share of wrong labels is estimated."""

_TOO_MANY, _SOME = 0.065, 0.02
"""Of all mailings together: wrong returns above the first are too many, if there are surely more than the second.
Where a base rate is high, the interval begins at nothing for long, and the labels are learned from meanwhile."""

_MOST, _UNKNOWN = 0.1, 0.25
"""Wrong returns that are reckoned with at the most, though few labels leave more possible; and where none is judged."""

_NEARLY: Final = 2 / 3

_SAFE: Final = 0.03
_NONE_EXPECTED: Final = 7.0
"""Returns expected where none came: by chance that happens once in a thousand mailings (e⁻⁷). The same chance is
asked of a mailing all of whose letters came back."""


@dataclass(frozen=True, slots=True)
class LabelChecks:
    """Why mailings are doubted (``doubts``), and which of these reasons are of ``missing`` returns.

    ``unproven``: why it cannot be said yet of the others whether all their returns are recorded. ``false_bounces``: the
    most wrong returns that these others leave possible.
    """

    doubts: Mapping[str, tuple[str, ...]]
    missing: tuple[str, ...] = ()
    unproven: str | None = None
    false_bounces: float = 0.0


def check_labels(parts: Mapping[str, pl.DataFrame], champion: Scorecard, prior: Scorecard) -> LabelChecks:
    """Judge mailings (evidence by name, in the order in which it could be used), each by itself and all together.

    ``prior`` is the expert's scorecard: what the champion has learned from these labels cannot rank them.
    """
    checks = _MailingChecks(parts, {name: count_patterns(part.lazy()) for name, part in parts.items()}, champion)
    checks.judge_each()
    for group in _groups(checks.remaining()):
        checks.judge_small(group)
    checks.judge_wrong_returns(prior)
    unproven = checks.judge_missing_returns()
    return LabelChecks(checks.found, tuple(dict.fromkeys(checks.missing)), unproven, checks.false_bounces)


def label_doubts(counted: pl.DataFrame, champion: Scorecard, *, part: bool = False) -> tuple[str, ...]:
    """Return why labels (patterns with their counts) cannot be right by themselves; empty if they can.

    ``part``: they are one mailing of several. A few likely returns are no sign there that what arrived was left out.
    """
    np = numpy()
    n, bounced = (counted[name].cast(pl.Float64).to_numpy() for name in ("n", "bounced"))
    letters, returned = int(n.sum()), int(bounced.sum())
    probabilities = predict(champion, design(counted))
    if returned == letters and (not part or float(n @ np.log(probabilities)) < -_NONE_EXPECTED):
        return (one_class(letters),)
    expected = float(n @ probabilities)
    if not returned and expected > _NONE_EXPECTED:
        return (
            Phrase(
                "one class only: none of {letters:,} letters came back where {expected:.1f} were expected",
                letters=letters,
                expected=expected,
            ),
        )
    safe = probabilities < _SAFE
    (few, of_few), (many, of_many) = ((int(bounced[chosen].sum()), int(n[chosen].sum())) for chosen in (safe, ~safe))
    if interval(few, of_few, WIDE)[0] <= interval(many, of_many, WIDE)[1]:
        return ()
    return (
        Phrase(
            "the order is upside down: of the safest letters (under {safe:.0%}) {few:,} of {of_few:,} came "
            "back ({few_share:.0%}), of the others {many:,} of {of_many:,} ({many_share:.0%})",
            safe=_SAFE,
            few=few,
            of_few=of_few,
            few_share=few / of_few,
            many=many,
            of_many=of_many,
            many_share=many / of_many,
        ),
    )


def one_class(n: int) -> str:
    """Return the reason for labels among which no letter is known to have arrived."""
    return Phrase("one class only: all {n:,} letters came back, none is known to have arrived", n=n)


@dataclass(slots=True)
class _MailingChecks:
    """The checks of mailings, each on those of which nothing was ``found`` before; ``counted`` are their patterns."""

    parts: Mapping[str, pl.DataFrame]
    counted: Mapping[str, pl.DataFrame]
    champion: Scorecard
    found: dict[str, tuple[str, ...]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    ranked: RankedLetters | None = None
    """The letters of those of which nothing was found, if there are enough to rank them."""
    false_bounces: float = _UNKNOWN

    def remaining(self) -> dict[str, pl.DataFrame]:
        """The mailings of which nothing is found yet."""
        return {name: part for name, part in self.parts.items() if name not in self.found}

    def judge_each(self) -> None:
        """Doubt mailings that cannot be right by themselves, and those that lack their returns."""
        for name, patterns in self.counted.items():
            why = label_doubts(patterns, self.champion, part=True)
            if not why and (lacking := ControlGroup.count(patterns).describe_loss(WIDE)):
                why = (lacking,)
                self.missing.append(lacking)
            if why:
                self.found[name] = why

    def judge_small(self, group: Sequence[str]) -> None:
        """Doubt small mailings that cannot be right together."""
        if len(group) > 1:
            self._doubt(group, label_doubts(self._together(group), self.champion, part=True))

    def judge_wrong_returns(self, prior: Scorecard) -> None:
        """Doubt mailings with surely too many wrong returns, the worst first, then all if they have too many together.

        The worst spoil the ranking of the others, so these are ranked anew without them.
        """
        while True:
            left = self.remaining()
            if sum(part.height for part in left.values()) < ENOUGH_TO_JUDGE:
                return
            groups = list(_groups(left))
            ranked = RankedLetters.of(pl.concat(left[name] for group in groups for name in group), prior)
            worst = _worst(groups, [sum(left[name].height for name in group) for group in groups], ranked)
            for group, estimate in worst:
                self._doubt(group, (_wrong_returns(estimate),))
            if not worst:
                break
        self.ranked, estimate = ranked, ranked.false_bounces()
        self.false_bounces = min(estimate.high, _MOST)
        if estimate.share > _TOO_MANY and estimate.low >= _SOME:
            self._doubt(list(left), (_wrong_returns(estimate),), "mailings")

    def judge_missing_returns(self) -> str | None:
        """Doubt all mailings that are left if their control group does not come back; else say if that is uncertain."""
        left = list(self.remaining())
        if not left:
            return None
        riskiest = self.ranked.riskiest(LEVEL) if self.ranked is not None else (0, 0)
        control = ControlGroup.count(self._together(left), riskiest)
        if lacking := control.describe_loss():
            self._doubt(left, (lacking,), Phrase("mailings"))
            self.missing.append(lacking)
            return None
        return control.describe_uncertainty()

    def _together(self, names: Iterable[str]) -> pl.DataFrame:
        """Patterns of several mailings, one below the other."""
        return pl.concat(self.counted[name] for name in names)

    def _doubt(self, group: Sequence[str], why: tuple[str, ...], others: str | None = None) -> None:
        together = (
            Phrase(
                "together with {group:,} other {others}: ",
                group=len(group) - 1,
                others=others or Phrase("small mailings"),
            )
            if len(group) > 1
            else ""
        )
        if why:
            self.found |= dict.fromkeys(group, tuple(f"{together}{reason}" for reason in why))


def _worst(
    groups: Sequence[Sequence[str]], sizes: Sequence[int], ranked: RankedLetters
) -> list[tuple[Sequence[str], FalseBounces]]:
    """The groups with surely too many wrong returns, and more than all may have, without those far from the worst."""
    found, first = list[tuple[Sequence[str], FalseBounces]](), 0
    if len(groups) < 2:
        return found
    bound = max(FALSE_BOUNCES, ranked.false_bounces().high)
    for group, size in zip(groups, sizes, strict=True):
        if size >= ENOUGH_TO_JUDGE:
            estimate = ranked.take(slice(first, first + size)).false_bounces()
            if estimate.low > bound:
                found.append((group, estimate))
        first += size
    most = max((estimate.share for _, estimate in found), default=0.0)
    return [(group, estimate) for group, estimate in found if estimate.share >= _NEARLY * most]


def _wrong_returns(estimate: FalseBounces) -> str:
    return Phrase(
        "about {share:.0%} of the letters that arrived seem to be recorded as returned (90 % interval "
        "{low:.1%} to {high:.1%}; at most {false_bounces:.0%} is usual): the rate of returns does not go "
        "on falling towards the safest letters",
        share=estimate.share,
        low=estimate.low,
        high=estimate.high,
        false_bounces=FALSE_BOUNCES,
    )


def _groups(parts: Mapping[str, pl.DataFrame]) -> Iterator[list[str]]:
    """Each large mailing by itself, and neighbouring small ones as many together as can be judged."""
    pool, letters = list[str](), 0
    for name, part in parts.items():
        if part.height >= ENOUGH_TO_JUDGE:
            yield [name]
            continue
        pool.append(name)
        letters += part.height
        if letters >= ENOUGH_TO_JUDGE:
            yield pool
            pool, letters = [], 0
    if pool:
        yield pool
