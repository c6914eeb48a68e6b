"""Labels in doubt, and the control group that shows missing returns."""

# The expert's prior does not judge labels, since they are to correct it. Small mailings are judged together: few have
# enough letters to tell 4 % wrong labels from 10 %.

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import polars as pl

from bansong.base.messages import Phrase, gettext, gettext_noop, gettext_of
from bansong.engine.risk.scorecard import Scorecard
from bansong.learning.fit import TERMS, count_patterns, design, numpy, predict
from bansong.learning.noise import FALSE_BOUNCES, USUAL, WIDE, FalseBounces, RankedLetters, interval

CONTROL: Final = ("status", "closed_over_12_months")
_MIN_SHARE, _USUAL_SHARE = 0.5, 0.8  # shares of the control group: must come back, usually comes back
_MIN_CONTROL_LETTERS: Final = 5
LEVEL: Final = 20  # letters from which another group is judged
_LIKELY_CONFIDENCE: Final = 0.8
_RECORDED, _LEFT = 0.7, 0.33
_TIMES_AS_LIKELY, _SHOWN = 5.0, 0.4  # likelihood ratio and share at which a group shows that returns are recorded
_LETTERS_WITHOUT_CONTROL: Final = 2_500  # letters after which a control group is no longer required

REMEDY: Final = gettext_noop(
    "ask the mail room or the post whether returned letters were left out or lost, and record them with `bansong label`"
)


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """Letters to firms closed for over a year, and how many came back."""

    letters: int
    returned: int
    of: int  # letters in all
    riskiest: tuple[int, int]  # the highest ranked letters, and their returns
    complete: bool  # at most half of the returns are missing: more than half of some group surely came back

    @classmethod
    def count(cls, patterns: pl.DataFrame, riskiest: tuple[int, int] = (0, 0)) -> ControlGroup:
        n, bounced = (patterns[name].cast(pl.Float64).to_numpy() for name in ("n", "bounced"))
        levels = design(patterns)
        counts = [
            (round(letters), round(returned))
            for letters, returned in zip(levels.sums(n), levels.sums(bounced), strict=True)
        ]
        complete = any(
            letters >= LEVEL and interval(returned, letters)[0] > _MIN_SHARE
            for letters, returned in (*counts, riskiest)
        )
        return cls(*counts[TERMS.index(CONTROL)], round(n.sum()), riskiest, complete)

    def describe_loss(self, confidence: float = USUAL) -> str | None:
        """Return why returns are missing, with figures and remedy; ``None`` if that is not sure."""
        ranked, of_ranked = self.riskiest
        possible = ranked > 0 and interval(of_ranked, ranked)[1] > _MIN_SHARE
        if self.complete or possible or interval(self.returned, self.letters, confidence)[1] >= _MIN_SHARE:
            return None
        share = self.returned / self.letters
        return gettext_of(
            self,
            "returns seem to be missing: of {letters:,} letters to firms closed for over a year only "
            "{returned:,} came back ({share:.0%}; at least {half:.0%} must), and of no other group more than "
            "half did, so about {value:.0%} of all returns are not recorded; {remedy}",
            share=share,
            half=_MIN_SHARE,
            value=max(0.0, 1 - share / _USUAL_SHARE),
            remedy=gettext(REMEDY),
        )

    def describe_uncertainty(self) -> str | None:
        """Return why missing returns are still possible, and what to do; ``None`` if they are not."""
        groups = [(self.letters, self.returned)]
        if (
            self.letters < _MIN_CONTROL_LETTERS
            or interval(self.returned, self.letters, _LIKELY_CONFIDENCE)[1] >= _MIN_SHARE
        ):
            groups.append(self.riskiest)  # where the control group speaks against it, they do not outweigh it
        if self.complete or any(_shows_returns(returned, letters) for letters, returned in groups):
            return None
        if self.letters < _MIN_CONTROL_LETTERS:
            if self.of >= _LETTERS_WITHOUT_CONTROL:
                return None
            return gettext(
                "whether all returns are recorded is not known: only {letters:,} letters went to firms closed "
                "for over a year, {enough} are needed, or {at_least:,} letters in all; mail some of the held rows",
                letters=self.letters,
                enough=_MIN_CONTROL_LETTERS,
                at_least=_LETTERS_WITHOUT_CONTROL,
            )
        return gettext_of(
            self,
            "whether all returns are recorded is not known: of {letters:,} letters to firms closed for over "
            "a year {returned:,} came back, and most must; {remedy}",
            remedy=gettext(REMEDY),
        )


def _shows_returns(returned: int, letters: int) -> bool:
    arrived = letters - returned
    likelier = returned * math.log(_RECORDED / _LEFT) + arrived * math.log((1 - _RECORDED) / (1 - _LEFT))
    return likelier >= math.log(_TIMES_AS_LIKELY) or interval(returned, letters)[0] > _SHOWN


ENOUGH_TO_JUDGE: Final = 300  # letters from which a share of wrong labels is estimated
_TOO_MANY, _SOME = 0.065, 0.02  # wrong returns of all mailings: doubted if estimate and lower limit are above
_MOST, _UNKNOWN = 0.1, 0.25  # largest assumed share of wrong returns; the share for too few letters
_NEARLY_WORST: Final = 2 / 3
_SAFE_PROBABILITY: Final = 0.03
_NONE_EXPECTED: Final = 7.0  # returns, from which none at all is implausible: e⁻⁷ is one mailing in a thousand


@dataclass(frozen=True, slots=True)
class LabelChecks:
    """Doubts by mailing."""

    doubts: Mapping[str, tuple[str, ...]]
    missing: tuple[str, ...] = ()  # doubts about missing returns
    unproven: str | None = None  # why missing returns of the other mailings are possible
    false_bounces: float = 0.0  # highest share of wrong returns that the other mailings leave possible


def check_labels(parts: Mapping[str, pl.DataFrame], champion: Scorecard, prior: Scorecard) -> LabelChecks:
    """Judge mailings (evidence by name, in order of use), each by itself and all together."""
    # `prior` ranks: the champion has learned from these labels
    checks = _MailingChecks(parts, {name: count_patterns(part.lazy()) for name, part in parts.items()}, champion)
    checks.judge_each()
    for group in _groups(checks.remaining()):
        if len(group) > 1:
            checks.doubt(group, label_doubts(checks.together(group), champion, part=True))
    checks.judge_wrong_returns(prior)
    unproven = checks.judge_missing_returns()
    return LabelChecks(checks.found, tuple(dict.fromkeys(checks.missing)), unproven, checks.false_bounces)


def label_doubts(counted: pl.DataFrame, champion: Scorecard, *, part: bool = False) -> tuple[str, ...]:
    """Return why labels (patterns with counts) cannot be right by themselves; ``part``: one mailing of several."""
    np = numpy()
    n, bounced = (counted[name].cast(pl.Float64).to_numpy() for name in ("n", "bounced"))
    letters, returned = int(n.sum()), int(bounced.sum())
    probabilities = predict(champion, design(counted))
    if returned == letters and (not part or float(n @ np.log(probabilities)) < -_NONE_EXPECTED):
        return (one_class(letters),)
    expected = float(n @ probabilities)
    if not returned and expected > _NONE_EXPECTED:
        text = gettext_noop("one class only: none of {letters:,} letters came back where {expected:.1f} were expected")
        return (Phrase(text, letters=letters, expected=expected),)
    safe = probabilities < _SAFE_PROBABILITY
    (few, of_few), (many, of_many) = ((int(bounced[chosen].sum()), int(n[chosen].sum())) for chosen in (safe, ~safe))
    if interval(few, of_few, WIDE)[0] <= interval(many, of_many, WIDE)[1]:
        return ()
    return (
        Phrase(
            "the order is upside down: of the safest letters (under {safe:.0%}) {few:,} of {of_few:,} came "
            "back ({few_share:.0%}), of the others {many:,} of {of_many:,} ({many_share:.0%})",
            safe=_SAFE_PROBABILITY,
            few=few,
            of_few=of_few,
            few_share=few / of_few,
            many=many,
            of_many=of_many,
            many_share=many / of_many,
        ),
    )


def one_class(n: int) -> str:
    return Phrase("one class only: all {n:,} letters came back, none is known to have arrived", n=n)


@dataclass(slots=True)
class _MailingChecks:
    parts: Mapping[str, pl.DataFrame]
    counted: Mapping[str, pl.DataFrame]
    champion: Scorecard
    found: dict[str, tuple[str, ...]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    ranked: RankedLetters | None = None
    false_bounces: float = _UNKNOWN

    def remaining(self) -> dict[str, pl.DataFrame]:
        return {name: part for name, part in self.parts.items() if name not in self.found}

    def judge_each(self) -> None:
        for name, patterns in self.counted.items():
            why = label_doubts(patterns, self.champion, part=True)
            if not why and (lacking := ControlGroup.count(patterns).describe_loss(WIDE)):
                why = (lacking,)
                self.missing.append(lacking)
            if why:
                self.found[name] = why

    def judge_wrong_returns(self, prior: Scorecard) -> None:
        """Doubt mailings with surely too many wrong returns, the worst first, then all together."""
        # the worst spoil the ranking of the others, so these are ranked again without them
        while True:
            left = self.remaining()
            if sum(part.height for part in left.values()) < ENOUGH_TO_JUDGE:
                return
            groups = list(_groups(left))
            ranked = RankedLetters.of(pl.concat(left[name] for group in groups for name in group), prior)
            worst = _worst(groups, [sum(left[name].height for name in group) for group in groups], ranked)
            for group, estimate in worst:
                self.doubt(group, (_wrong_returns(estimate),))
            if not worst:
                break
        self.ranked, estimate = ranked, ranked.false_bounces()
        self.false_bounces = min(estimate.high, _MOST)
        if estimate.share > _TOO_MANY and estimate.low >= _SOME:
            self.doubt(list(left), (_wrong_returns(estimate),), "mailings")

    def judge_missing_returns(self) -> str | None:
        left = list(self.remaining())
        if not left:
            return None
        riskiest = self.ranked.riskiest(LEVEL) if self.ranked is not None else (0, 0)
        control = ControlGroup.count(self.together(left), riskiest)
        if lacking := control.describe_loss():
            self.doubt(left, (lacking,), Phrase("mailings"))
            self.missing.append(lacking)
            return None
        return control.describe_uncertainty()

    def together(self, names: Iterable[str]) -> pl.DataFrame:
        return pl.concat(self.counted[name] for name in names)

    def doubt(self, group: Sequence[str], why: tuple[str, ...], others: str | None = None) -> None:
        together = ""
        if len(group) > 1:
            of = others or Phrase("small mailings")
            together = Phrase("together with {group:,} other {others}: ", group=len(group) - 1, others=of)
        if why:
            self.found |= dict.fromkeys(group, tuple(f"{together}{reason}" for reason in why))


def _worst(
    groups: Sequence[Sequence[str]], sizes: Sequence[int], ranked: RankedLetters
) -> list[tuple[Sequence[str], FalseBounces]]:
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
    return [(group, estimate) for group, estimate in found if estimate.share >= _NEARLY_WORST * most]


def _wrong_returns(estimate: FalseBounces) -> str:
    return gettext_of(
        estimate,
        "about {share:.0%} of the letters that arrived seem to be recorded as returned (90 % interval "
        "{low:.1%} to {high:.1%}; at most {false_bounces:.0%} is usual): the rate of returns does not go "
        "on falling towards the safest letters",
        false_bounces=FALSE_BOUNCES,
    )


def _groups(parts: Mapping[str, pl.DataFrame]) -> Iterator[list[str]]:
    """Yield each large mailing by itself, and neighbouring small ones together."""
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
