"""Select labels to learn from, and let a challenger compete with the scorecard in use.

Before each block of labels a challenger is fitted to the labels so far; both scorecards predict the block, and the
likelihood ratios are multiplied. If the champion is right, this e-value reaches 20 with a probability of 5 % at most,
however often one looks (Ville's inequality; Grünwald, de Heide and Koolen, "Safe testing", 2024). If labels of the
contest were changed, a new contest begins. The k-th contest needs an e-value of 20 k²: since 1 + 1/4 + 1/9 + … < 1.65,
all contests together promote wrongly in 8.3 % of cases at most. Several :class:`Recording` errors are assumed, and the
lowest e-value counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import polars as pl

from bansong.base.messages import gettext, gettext_noop
from bansong.engine.risk.scorecard import Learned, Scorecard
from bansong.history.labels import LabelStore
from bansong.history.mailings import MailingTerms
from bansong.history.scorecards import DECIDING, Event
from bansong.learning.checks import FALSE_BOUNCES, LabelChecks, check_labels, one_class
from bansong.learning.fit import (
    LEVELS,
    Fit,
    count_patterns,
    design,
    fit_points,
    keep_held,
    make_challenger,
    merge_patterns,
    np,
    predict,
)

if TYPE_CHECKING:
    from bansong.learning.fit import Array


RIPE_DAYS: Final = 45  # days after mailing; earlier, returns are still coming in
RIPE_AT: Final = "ripe_at"
YOUNG: Final = gettext_noop("mailed less than 45 days ago")
UNCERTAIN: Final = gettext_noop("outcome not certain")
UNREAD: Final = gettext_noop("reasons of no known scorecard")
REPEATED: Final = gettext_noop("of an addressee of whom the same was known before")
_ORDER: Final = (RIPE_AT, "mailing", "row_id")
_ADDRESSEE: Final = ("b_no", "address_key")


@dataclass(frozen=True, slots=True)
class TrainingData:
    """Labels to learn from, and those that were left out."""

    rows: pl.DataFrame  # sorted by `RIPE_AT` (Datetime UTC, from when a label is usable) and `mailing`
    left_out: Mapping[str, int]  # unused letters by reason
    set_aside: Mapping[str, tuple[int, tuple[str, ...]]]  # quarantined mailings: their letters, and why
    suspicious: int  # letters in quarantine, without mailings of which only returns are recorded
    mailed: pl.DataFrame  # `rows` with repeated letters to an addressee
    missing: tuple[str, ...]  # why returns are certainly missing
    unproven: str | None  # why returns may be missing
    false_bounces: float  # highest possible share of wrong returns


def select_training_rows(
    store: LabelStore, today: date, champion: Scorecard, prior: Scorecard, released: Mapping[str, tuple[int, int]]
) -> TrainingData:
    """Select the labels to learn from; mailings with doubtful labels are quarantined as a whole."""
    # `released`: letters and returns of mailings that are not quarantined; repeated letters are left out as dependent
    rows = _letters(store)
    ripe = pl.col("mailed") <= today - timedelta(days=RIPE_DAYS)
    known = pl.col("bounced").is_not_null()
    causes = {YOUNG: ~ripe, UNCERTAIN: ripe & ~known, UNREAD: ripe & known & pl.col("unread")}
    counts = rows.select(causes[why].sum().alias(why) for why in causes).collect(engine="streaming").row(0, named=True)
    usable = rows.filter(ripe, known, ~pl.col("unread")).sort(_ORDER).collect(engine="streaming")
    judged = _MailingDoubts.of(store, usable, champion, prior, released)
    set_aside = {mailing: (judged.parts[mailing].height, why) for mailing, why in judged.doubts.items()}
    kept = usable.filter(~pl.col("mailing").is_in(list(set_aside)))
    fresh = _first_of_each(kept)
    counts[REPEATED] = kept.height - fresh.height
    return TrainingData(
        rows=fresh.drop(_ADDRESSEE),
        left_out={why: count for why, count in counts.items() if count},
        set_aside=set_aside,
        suspicious=sum(judged.parts[mailing].height for mailing in judged.doubts if mailing not in judged.returns_only),
        mailed=kept,
        missing=judged.checks.missing,
        unproven=judged.checks.unproven,
        false_bounces=judged.false_bounces,
    )


@dataclass(frozen=True, slots=True)
class _MailingDoubts:
    """Labels and doubts by mailing."""

    parts: Mapping[str, pl.DataFrame]  # labels, in the order of learning
    doubts: Mapping[str, tuple[str, ...]]
    returns_only: frozenset[str]  # mailings with returns only, which cannot leave quarantine
    checks: LabelChecks
    false_bounces: float  # highest possible share of wrong returns

    @classmethod
    def of(
        cls,
        store: LabelStore,
        usable: pl.DataFrame,
        champion: Scorecard,
        prior: Scorecard,
        released: Mapping[str, tuple[int, int]],
    ) -> _MailingDoubts:
        parts = {str(mailing): part for (mailing,), part in usable.group_by("mailing", maintain_order=True)}
        declared = {mailing.id: mailing.declaration for mailing in store.mailings()}
        one_sided = {mailing: bool(part["bounced"].all()) for mailing, part in parts.items()}
        # only returns can be certain: rows without an outcome do not count as delivered
        only = frozenset(
            name
            for name, terms in declared.items()
            if one_sided.get(name) and not (terms.silence_is_delivery and terms.sent is not None)
        )
        trusted = {
            mailing
            for mailing, part in parts.items()
            if tuple(released.get(mailing, ())) == (part.height, part["bounced"].sum())
        } - only
        unfit = {name: why for name, part in parts.items() if (why := _declared_doubts(part.height, declared[name]))}
        checks = _check_news(usable.filter(~pl.col("mailing").is_in([*unfit, *trusted])), champion, prior)
        say_sent = gettext_noop("{one_class}; say with `bansong label … --sent` which rows were mailed")
        found = {name: why for name, why in unfit.items() if name not in trusted} | {
            name: (gettext(say_sent, one_class=one_class(parts[name].height)),)
            if one_sided[name] and declared[name].sent is None
            else why
            for name, why in checks.doubts.items()
        }
        released_share = sum(parts[name].height for name in trusted) / max(usable.height, 1)
        most_wrong = checks.false_bounces + (FALSE_BOUNCES - checks.false_bounces) * released_share
        return cls(parts, {name: found[name] for name in parts if name in found}, only, checks, most_wrong)


def _check_news(rows: pl.DataFrame, champion: Scorecard, prior: Scorecard) -> LabelChecks:
    found, missing = dict[str, tuple[str, ...]](), list[str]()
    while True:
        news = _first_of_each(rows.filter(~pl.col("mailing").is_in(list(found))))
        parts = {str(mailing): part for (mailing,), part in news.group_by("mailing", maintain_order=True)}
        checks = check_labels(parts, champion, prior)
        if not checks.doubts:
            return LabelChecks(found, tuple(dict.fromkeys(missing)), checks.unproven, checks.false_bounces)
        found |= checks.doubts
        missing += checks.missing


def _declared_doubts(letters: int, declared: MailingTerms) -> tuple[str, ...]:
    if declared.silence_is_delivery:
        return ()
    text = (
        gettext_noop("{one_class}; once all returns are in, record them again with `complete=True` and `sent=`")
        if declared.returns_requested
        else gettext_noop("{one_class}, since returns were not requested: nothing can be learned from them")
    )
    return (gettext(text, one_class=one_class(letters)),)


def _first_of_each(rows: pl.DataFrame) -> pl.DataFrame:
    named = pl.all_horizontal(pl.col(_ADDRESSEE).is_not_null())
    return rows.filter(~named | pl.struct(*_ADDRESSEE, *LEVELS).is_first_distinct())


def _letters(store: LabelStore) -> pl.LazyFrame:
    ripe_at = (pl.col("mailed") + pl.duration(days=RIPE_DAYS)).cast(pl.Datetime("us")).dt.replace_time_zone("UTC")
    rows = store.evidence(unread=True, addressee=True)
    return rows.with_columns(pl.max_horizontal("recorded", ripe_at).alias(RIPE_AT))


ENOUGH: Final = 20.0  # e-value for a promotion
_FIRST: Final = 50
_BLOCK_GROWTH: Final = 0.25
_MIN_RECORDED_SHARE: Final = 0.4  # assumed recorded share of the returns, if some may be missing


class Recording(NamedTuple):
    """Assumed errors of the recorded outcomes."""

    false_bounces: float | None = None  # share of arrived letters recorded as returned; None: as fitted
    returns: float = 1.0  # share of returns that are recorded


@dataclass(frozen=True, slots=True)
class Step:
    """State of a contest after a block: count of labels, and lowest log e-value over the :class:`Recording` errors."""

    labels: int
    log_e: float


@dataclass(frozen=True, slots=True)
class Gate:
    """A contest of champion and challenger over blocks of labels."""

    fit: Fit  # fit of the challenger to all labels
    steps: tuple[Step, ...]

    @property
    def e_value(self) -> float:
        """Highest e-value so far; it starts at 1."""
        return math.exp(min(max((step.log_e for step in self.steps), default=0.0), 700.0))


def blocks(evidence: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield consecutive blocks of letters as patterns: 50 letters each, later a quarter of those before."""
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
    """Carry out a contest over the blocks ``after`` the champion's promotion; ``before`` are the patterns before it."""
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
    label = false_bounces + (1 - false_bounces) * probabilities
    bounced = block["bounced"].cast(pl.Float64).to_numpy()
    rest = block["n"].cast(pl.Float64).to_numpy() - bounced
    return float(bounced @ np.log(label) + rest @ np.log1p(-label))


_JUDGED: Final = ("mailing", "row_id", "bounced")
_NAME: Final = "past"


class JudgedLabels(msgspec.Struct, frozen=True):
    """The labels of a contest: number, digest, and how often earlier contests were ended by rewritten labels."""

    letters: int
    sha256: str
    rewritten: int = 0

    @property
    def required(self) -> float:
        """E-value that a promotion requires."""
        return ENOUGH * (1 + self.rewritten) ** 2

    def as_event(self) -> dict[str, object]:
        return {_NAME: msgspec.to_builtins(self)}


def continue_test(rows: pl.DataFrame, release: str, earlier: JudgedLabels | None) -> JudgedLabels:
    """Continue a contest if its labels and the built-in scorecard (``release``) are unchanged, else begin a new one."""
    digest = _digest(rows, release)
    if earlier is None:
        return JudgedLabels(rows.height, digest)
    same = earlier.letters <= rows.height and _digest(rows.head(earlier.letters), release) == earlier.sha256
    return JudgedLabels(rows.height, digest, earlier.rewritten + (not same))


def last_test(events: Sequence[Event]) -> JudgedLabels | None:
    """Return the labels of the last contest of the current champion, from the journal."""
    found: Mapping[str, Any] | None = None
    for event in events:
        found = None if event.kind in DECIDING else event.data.get(_NAME, found)
    return None if found is None else msgspec.convert(found, JudgedLabels)


def _digest(rows: pl.DataFrame, release: str) -> str:
    return sha256(f"{release}\n{rows.select(_JUDGED).write_csv()}".encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Decision:
    """The result of a contest, and whether the challenger is promoted."""

    champion: Scorecard
    challenger: Scorecard
    gate: Gate
    doubts: tuple[str, ...]  # why no labels are trusted
    required: float = ENOUGH  # e-value for a promotion
    unproven: str | None = None  # why returns may be missing; the challenger must win under this assumption, too

    @property
    def promotes(self) -> bool:
        return self.gate.e_value >= self.required and not self.doubts

    @property
    def labels_needed(self) -> int | None:
        """The number of labels at which the e-value reached what is required; ``None`` if it never did."""
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
    """Fit a challenger to labelled rows, in their order, and let it compete with the champion."""
    # labels from before `since`, the champion's promotion, are no part of the contest: the champion was fitted to them
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
