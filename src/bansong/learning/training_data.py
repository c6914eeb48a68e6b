"""Select the labels that learning may use, and quarantine doubted mailings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final

import polars as pl

from bansong.engine.risk.scorecard import Scorecard
from bansong.labels.label_store import LabelStore
from bansong.labels.mailing_terms import MailingTerms
from bansong.learning.fit import LEVELS
from bansong.learning.label_checks import LabelChecks, check_labels, one_class
from bansong.learning.quarantine import FALSE_BOUNCES
from bansong.translation import gettext, gettext_noop

RIPE_DAYS: Final = 45
"""Days after mailing until which returns trickle in, so that earlier labels are biased."""
RIPE_AT: Final = "ripe_at"
YOUNG: Final = gettext_noop("mailed less than 45 days ago")
UNCERTAIN: Final = gettext_noop("outcome not certain")
UNREAD: Final = gettext_noop("reasons of no known scorecard")
REPEATED: Final = gettext_noop("of an addressee of whom the same was known before")
_ORDER: Final = (RIPE_AT, "mailing", "row_id")
_ADDRESSEE: Final = ("b_no", "address_key")


@dataclass(frozen=True, slots=True)
class TrainingData:
    """The labels that learning may use.

    ``rows``: evidence with ``mailing`` and :data:`RIPE_AT` (Datetime UTC, when it became usable), in that order.
    ``left_out``: unused letters by reason. ``set_aside``: quarantined mailings with letters and reasons; ``auditable``:
    those that an audit can release. ``mailed``: the rows and repeated letters. ``missing``: why returns seem to be
    missing; ``unproven``: why that is possible. ``false_bounces``: the highest share of wrong returns that the labels
    leave possible.
    """

    rows: pl.DataFrame
    left_out: Mapping[str, int]
    set_aside: Mapping[str, tuple[int, tuple[str, ...]]]
    auditable: tuple[str, ...]
    mailed: pl.DataFrame
    missing: tuple[str, ...]
    unproven: str | None
    false_bounces: float

    @property
    def suspicious(self) -> int:
        """Letters quarantined for what their labels say, not because only returns were recorded."""
        return sum(self.set_aside[mailing][0] for mailing in self.auditable)


def select_training_rows(
    store: LabelStore, today: date, champion: Scorecard, prior: Scorecard, released: Mapping[str, tuple[int, int]]
) -> TrainingData:
    """Select the labels of a store that learning may use.

    Left out: letters mailed less than :data:`RIPE_DAYS` days ago, uncertain outcomes, and reasons of no known
    scorecard. A mailing with doubtful labels is set aside whole, unless these very labels (letters, returns) were
    ``released``. Of several letters to one addressee in the same state only the first is used: repeats are no
    independent evidence.
    """
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
        auditable=tuple(mailing for mailing in set_aside if mailing not in judged.returns_only),
        mailed=kept,
        missing=judged.checks.missing,
        unproven=judged.checks.unproven,
        false_bounces=judged.false_bounces,
    )


@dataclass(frozen=True, slots=True)
class _MailingDoubts:
    """Labels by mailing in order of use, and why some are doubted.

    ``returns_only``: mailings where only returns were recorded; an audit cannot release them, since arrivals are
    missing.
    """

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
    """Return why nothing can be learned from a mailing by its terms, with the remedy."""
    only = one_class(letters)
    if not declared.returns_requested:
        text = gettext(
            "{one_class}, since returns were not requested: nothing can be learned from them", one_class=only
        )
        return (text,)
    if not declared.complete:
        text = gettext(
            "{one_class}; once all returns are in, record them again with `complete=True` and `sent=`", one_class=only
        )
        return (text,)
    return ()


def _first_of_each(rows: pl.DataFrame) -> pl.DataFrame:
    named = pl.all_horizontal(pl.col(_ADDRESSEE).is_not_null())
    return rows.filter(~named | pl.struct(*_ADDRESSEE, *LEVELS).is_first_distinct())


def _letters(store: LabelStore) -> pl.LazyFrame:
    ripe_at = (pl.col("mailed") + pl.duration(days=RIPE_DAYS)).cast(pl.Datetime("us")).dt.replace_time_zone("UTC")
    rows = store.evidence(unread=True, addressee=True)
    return rows.with_columns(pl.max_horizontal("recorded", ripe_at).alias(RIPE_AT))
