"""The rows of the label store that learning may use, and the quarantine of mailings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final

import polars as pl

from bizverify.engine.risk.scorecard import Scorecard
from bizverify.labels.label_store import LabelStore
from bizverify.labels.mailing_terms import MailingTerms
from bizverify.learning.fit import LEVELS, count_patterns
from bizverify.learning.quarantine import ENOUGH_TO_FIT, label_doubts, one_class

RIPE_DAYS: Final = 45
"""Days after mailing until which returns still trickle in; before, silence says nothing, and a return too much."""

RIPE_AT: Final = "ripe_at"

REPEATED: Final = "of an addressee of whom the same was known before"

_ORDER: Final = (RIPE_AT, "mailing", "row_id")
_ADDRESSEE: Final = ("b_no", "address_key")


@dataclass(frozen=True, slots=True)
class TrainingData:
    """The labels that learning may use.

    ``rows``: evidence with ``mailing`` and :data:`RIPE_AT` (Datetime UTC: from when on it could be used), in the order
    in which it could. ``left_out``: letters by why they are not used. ``set_aside``: the quarantined mailings, their
    letters and why. ``auditable``: those of them that an audit can release. ``mailed``: the rows with those letters to
    an addressee that are no news, to see what mailings consist of.
    """

    rows: pl.DataFrame
    left_out: Mapping[str, int]
    set_aside: Mapping[str, tuple[int, tuple[str, ...]]]
    auditable: tuple[str, ...]
    mailed: pl.DataFrame

    @property
    def suspicious(self) -> int:
        """Letters that are quarantined for what their labels say, and not because only returns were recorded."""
        return sum(self.set_aside[mailing][0] for mailing in self.auditable)


def select_training_rows(
    store: LabelStore, today: date, champion: Scorecard, prior: Scorecard, released: Mapping[str, tuple[int, int]]
) -> TrainingData:
    """Take the labels of a store that learning may use.

    Left out: letters mailed less than :data:`RIPE_DAYS` days ago, those of which nothing certain is known, and rows
    whose reasons no scorecard gave. A mailing whose labels look wrong is set aside whole, unless these very labels
    (so many letters, of which so many came back) were ``released``. Mailings too small to be judged alone are judged
    together with their neighbours, too.

    Of several letters to one addressee of whom the same was known, the first is taken: what becomes of the others is
    no news, and taken for such it would prove anything after enough mailings.
    """
    rows = _letters(store)
    ripe = pl.col("mailed") <= today - timedelta(days=RIPE_DAYS)
    known = pl.col("bounced").is_not_null()
    causes = {
        f"mailed less than {RIPE_DAYS} days ago": ~ripe,
        "outcome not certain": ripe & ~known,
        "reasons of no known scorecard": ripe & known & pl.col("unread"),
    }
    counts = rows.select(causes[why].sum().alias(why) for why in causes).collect(engine="streaming").row(0, named=True)
    usable = rows.filter(ripe, known, ~pl.col("unread")).sort(_ORDER).collect(engine="streaming")
    judged = _MailingDoubts.of(store, usable, champion, prior)
    trusted = {
        mailing
        for mailing, part in judged.parts.items()
        if tuple(released.get(mailing, ())) == (part.height, part["bounced"].sum())
    } - judged.returns_only
    set_aside = {
        mailing: (part.height, judged.doubts[mailing])
        for mailing, part in judged.parts.items()
        if mailing in judged.doubts and mailing not in trusted
    }
    kept = usable.filter(~pl.col("mailing").is_in(list(set_aside)))
    fresh = _first_of_each(kept)
    counts[REPEATED] = kept.height - fresh.height
    return TrainingData(
        rows=fresh.drop(_ADDRESSEE),
        left_out={why: count for why, count in counts.items() if count},
        set_aside=set_aside,
        auditable=tuple(mailing for mailing in set_aside if mailing not in judged.returns_only),
        mailed=kept,
    )


@dataclass(frozen=True, slots=True)
class _MailingDoubts:
    """Labels by mailing, in the order in which they could be used, and why those of some are doubted.

    ``returns_only``: the mailings of which nothing but returns was recorded, by what was declared: each label may be
    right, and yet what arrived is missing, so looking at the labels releases nothing.
    """

    parts: Mapping[str, pl.DataFrame]
    doubts: Mapping[str, tuple[str, ...]]
    returns_only: frozenset[str]

    @classmethod
    def of(cls, store: LabelStore, usable: pl.DataFrame, champion: Scorecard, prior: Scorecard) -> _MailingDoubts:
        parts = {str(mailing): part for (mailing,), part in usable.group_by("mailing", maintain_order=True)}
        counted = {mailing: count_patterns(part.lazy()) for mailing, part in parts.items()}
        declared = {mailing.id: mailing.declaration for mailing in store.mailings()}
        only = frozenset(
            mailing
            for mailing, part in parts.items()
            if part["bounced"].all() and _tells_returns_only(declared[mailing])
        )
        found = {
            mailing: _mailing_doubts(part, declared[mailing], champion, prior) for mailing, part in counted.items()
        }
        small = [mailing for mailing, part in parts.items() if part.height < ENOUGH_TO_FIT and not found[mailing]]
        for pool in _pools(small, parts):
            if why := label_doubts(
                count_patterns(pl.concat(parts[mailing] for mailing in pool).lazy()), champion, prior, part=True
            ):
                together = f"together with {len(pool) - 1:,} other small mailings: " if len(pool) > 1 else ""
                found |= dict.fromkeys(pool, tuple(f"{together}{reason}" for reason in why))
        return cls(parts, {mailing: why for mailing, why in found.items() if why}, only)


def _mailing_doubts(
    counted: pl.DataFrame, declared: MailingTerms, champion: Scorecard, prior: Scorecard
) -> tuple[str, ...]:
    """Return why the labels of one mailing are doubted; of returns alone with the remedy."""
    n, bounced = int(counted["n"].sum()), int(counted["bounced"].sum())
    if not declared.returns_requested:
        return (f"{one_class(n)}, since returns were not requested: nothing can be learned from them",)
    if not declared.complete:
        return (f"{one_class(n)}; once all returns are in, record them again with `complete=True` and `sent=`",)
    found = label_doubts(counted, champion, prior, part=True)
    if found and bounced == n and declared.sent is None:
        return (f"{one_class(n)}; say with `bizverify label … --sent` which rows were mailed",)
    return found


def _tells_returns_only(declared: MailingTerms) -> bool:
    """Whether all that is certain of a mailing may be returns: silence is no delivery, or nobody said what was sent."""
    return not declared.silence_is_delivery or declared.sent is None


def _pools(small: list[str], parts: Mapping[str, pl.DataFrame]) -> Iterator[list[str]]:
    """Neighbouring small mailings, each time as many as can be judged; the last ones as far as they go."""
    pool, letters = list[str](), 0
    for mailing in small:
        pool.append(mailing)
        letters += parts[mailing].height
        if letters >= ENOUGH_TO_FIT:
            yield pool
            pool, letters = [], 0
    if pool:
        yield pool


def _first_of_each(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows without those of an addressee (if known) of whom the same was known in an earlier one."""
    named = pl.all_horizontal(pl.col(_ADDRESSEE).is_not_null())
    return rows.filter(~named | pl.struct(*_ADDRESSEE, *LEVELS).is_first_distinct())


def _letters(store: LabelStore) -> pl.LazyFrame:
    """All letters of a store, and from when on each could be used."""
    ripe_at = (pl.col("mailed") + pl.duration(days=RIPE_DAYS)).cast(pl.Datetime("us")).dt.replace_time_zone("UTC")
    rows = store.evidence(unread=True, addressee=True)
    return rows.with_columns(pl.max_horizontal("recorded", ripe_at).alias(RIPE_AT))
