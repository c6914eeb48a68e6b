"""The rows to learn from, and the contest of two scorecards.

Before each block of labels a challenger is fitted to the labels so far; both scorecards predict the block, and the
likelihood ratios are multiplied. If the champion is right, this e-value reaches 20 with a probability of 5 % at most,
however often one looks (Ville's inequality; Grünwald, de Heide and Koolen, "Safe testing", 2024). If judged labels have
changed, a new contest begins. The k-th contest needs k² times the evidence: since 1 + 1/4 + 1/9 + … < 1.65, all of them
together promote wrongly in 8.3 % of cases at most. The worst result of several :class:`Recording` errors counts.
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


RIPE_DAYS: Final = 45  # after mailing: earlier, returns still trickle in
RIPE_AT: Final = "ripe_at"
YOUNG: Final = gettext_noop("mailed less than 45 days ago")
UNCERTAIN: Final = gettext_noop("outcome not certain")
UNREAD: Final = gettext_noop("reasons of no known scorecard")
REPEATED: Final = gettext_noop("of an addressee of whom the same was known before")
_ORDER: Final = (RIPE_AT, "mailing", "row_id")
_ADDRESSEE: Final = ("b_no", "address_key")


@dataclass(frozen=True, slots=True)
class TrainingData:
    """The labels that learning may use."""

    rows: pl.DataFrame  # in order of `RIPE_AT` (Datetime UTC, when evidence became usable) and `mailing`
    left_out: Mapping[str, int]  # unused letters by reason
    set_aside: Mapping[str, tuple[int, tuple[str, ...]]]  # quarantined mailings: letters, reasons
    suspicious: int  # letters set aside with doubtful labels, where not only returns were recorded
    mailed: pl.DataFrame  # `rows`, and repeated letters
    missing: tuple[str, ...]  # why returns seem to be missing
    unproven: str | None  # why returns may be missing
    false_bounces: float  # the highest share of wrong returns that the labels leave possible


def select_training_rows(
    store: LabelStore, today: date, champion: Scorecard, prior: Scorecard, released: Mapping[str, tuple[int, int]]
) -> TrainingData:
    """Select the labels of a store that learning may use; mailings with doubtful labels are set aside whole."""
    # unless these very labels (letters, returns) were `released`; repeated letters are no independent evidence
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
    """Labels by mailing in order of use, and doubts; no release is possible for ``returns_only``."""

    parts: Mapping[str, pl.DataFrame]
    doubts: Mapping[str, tuple[str, ...]]
    returns_only: frozenset[str]
    checks: LabelChecks
    false_bounces: float

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
        # all certain outcomes may be returns: silence is no delivery, or the mailed rows were not declared
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
        found = {name: why for name, why in unfit.items() if name not in trusted} | {
            name: _returns_only_doubt(parts[name].height) if one_sided[name] and declared[name].sent is None else why
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


def _returns_only_doubt(letters: int) -> tuple[str, ...]:
    only = one_class(letters)
    return (gettext("{one_class}; say with `bansong label … --sent` which rows were mailed", one_class=only),)


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


ENOUGH: Final = 20.0  # e-value at which the champion is replaced
_FIRST: Final = 50
_BLOCK_GROWTH: Final = 0.25
_MIN_RECORDED_SHARE: Final = 0.4  # of the returns, if missing returns are possible


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
    """Yield evidence in its order as patterns of blocks: 50 letters, then a quarter of the letters so far."""
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
    """Let the challenger predict block after block; ``before``: patterns known when the champion was promoted."""
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
    """The labels of a contest: how many ``letters``, their digest, and how often they were ``rewritten`` so far."""

    letters: int
    sha256: str
    rewritten: int = 0

    @property
    def required(self) -> float:
        return ENOUGH * (1 + self.rewritten) ** 2

    def as_event(self) -> dict[str, object]:
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
    return sha256(f"{release}\n{rows.select(_JUDGED).write_csv()}".encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Decision:
    """The result of a contest."""

    champion: Scorecard
    challenger: Scorecard
    gate: Gate
    doubts: tuple[str, ...]  # about all labels together
    required: float = ENOUGH  # e-value that is enough
    unproven: str | None = None  # why missing returns are possible: the challenger has to win with them, too

    @property
    def promotes(self) -> bool:
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
    """Fit a challenger to evidence (in its order), and compare it with the champion."""
    # labels usable by `since`, the champion's promotion, may have chosen it: they are no part of the contest
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
