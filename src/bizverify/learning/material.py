"""The labels that learning may use, sifted out of the label book."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final

import polars as pl

from bizverify.engine.risk.scorecard import Scorecard
from bizverify.labels.book import Book
from bizverify.learning.patterns import patterns
from bizverify.learning.quarantine import doubts

RIPE_DAYS: Final = 45
"""Days after mailing until which returns still trickle in; before, silence says nothing, and a return too much."""

RIPE_AT: Final = "ripe_at"


@dataclass(frozen=True, slots=True)
class Material:
    """Sifted labels.

    ``rows``: evidence with ``mailing`` and :data:`RIPE_AT` (Datetime UTC: from when on it could be used), in the order
    in which it could. ``left_out``: letters by why they are not used. ``set_aside``: the quarantined mailings, their
    letters and why.
    """

    rows: pl.DataFrame
    left_out: Mapping[str, int]
    set_aside: Mapping[str, tuple[int, tuple[str, ...]]]


def sifted(
    book: Book, today: date, champion: Scorecard, prior: Scorecard, released: Mapping[str, tuple[int, int]]
) -> Material:
    """Take the labels of a book that learning may use.

    Left out: letters mailed less than :data:`RIPE_DAYS` days ago, those of which nothing certain is known, and rows
    whose reasons no scorecard gave. A mailing whose labels look wrong is set aside whole, unless these very labels
    (so many letters, of which so many came back) were ``released``.
    """
    rows = _rows(book)
    ripe = pl.col("mailed") <= today - timedelta(days=RIPE_DAYS)
    known = pl.col("bounced").is_not_null()
    causes = {
        f"mailed less than {RIPE_DAYS} days ago": ~ripe,
        "outcome not certain": ripe & ~known,
        "reasons of no known scorecard": ripe & known & pl.col("unread"),
    }
    counts = rows.select(causes[why].sum().alias(why) for why in causes).collect(engine="streaming").row(0, named=True)
    usable = rows.filter(ripe, known, ~pl.col("unread")).sort(RIPE_AT, "mailing", "row_id").collect(engine="streaming")
    set_aside = {
        mailing: (part.height, found)
        for (mailing,), part in usable.group_by("mailing", maintain_order=True)
        if tuple(released.get(mailing, ())) != (part.height, part["bounced"].sum())
        and (found := doubts(patterns(part.lazy()), champion, prior))
    }
    kept = usable.filter(~pl.col("mailing").is_in(list(set_aside)))
    return Material(kept, {why: count for why, count in counts.items() if count}, set_aside)


def _rows(book: Book) -> pl.LazyFrame:
    """All letters of a book, and from when on each could be used."""
    ripe_at = (pl.col("mailed") + pl.duration(days=RIPE_DAYS)).cast(pl.Datetime("us")).dt.replace_time_zone("UTC")
    return book.evidence(unread=True).with_columns(pl.max_horizontal("recorded", ripe_at).alias(RIPE_AT))
