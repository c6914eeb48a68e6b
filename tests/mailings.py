"""Label books for tests of learning: mailings of one of the simulated worlds, recorded as `bansong label` does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path

import numpy as np
import polars as pl

from bansong.engine.risk.reasons import LEVEL_DTYPES
from bansong.engine.risk.scorecard import Scorecard
from bansong.history.labels import LabelStore
from bansong.history.mailings import KNOWN, LABEL_SCHEMA, LabelBatch, MailingMetadata, MailingTerms
from bansong.learning.fit import design, predict
from conftest import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

from risk_worlds import World, draw, frame

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
MAILED = date(2026, 6, 1)
TODAY = date(2026, 11, 21)
NAMED = ("b_no", "address_key", "fixed_key")


def letters(seed: int, rows: int, truth: Callable[[dict[str, np.ndarray]], np.ndarray] | None = None) -> pl.DataFrame:
    """Rows with their levels and whether they ``bounced``, in a world of this seed unless ``truth`` says otherwise."""
    rng = np.random.default_rng([seed, 7])
    drawn = draw(rng, rows)
    p = (truth or World.of(seed).probability)(drawn)
    return frame(drawn).with_columns(bounced=pl.Series(rng.random(rows) < p))


def turned(known: pl.DataFrame, share: float, seed: int = 1) -> pl.DataFrame:
    """Letters with a share of the outcomes turned round."""
    wrong = pl.Series(np.random.default_rng(seed).random(known.height) < share)
    return known.with_columns(bounced=pl.col("bounced") ^ wrong)


def as_the_expert_says(drawn: dict[str, np.ndarray]) -> np.ndarray:
    """A world in which the built-in scorecard is right."""
    return predict(Scorecard.load(), design(frame(drawn)))


def mail(
    book: LabelStore,
    known: pl.DataFrame,
    *,
    name: str = "m1",
    mailed: date = MAILED,
    recorded: datetime = NOW,
    complete: bool = True,
    unread: bool = False,
) -> None:
    """Record a mailing of :func:`letters`; a null in ``bounced`` is no outcome."""
    card, known = Scorecard.load(), known.with_row_index("row_id")
    declared = MailingTerms(mailed=mailed, returns_requested=True, complete=complete)
    about = MailingMetadata(name, f"{name}.csv", None, "local", card.version, declared, (), recorded)
    said = {"row_id": pl.col("row_id"), "letter": pl.col("row_id"), "said": pl.col("bounced")}
    labels = known.filter(pl.col("bounced").is_not_null()).select(
        said.get(column, pl.lit(None)).cast(dtype).alias(column) for column, dtype in LABEL_SCHEMA.items()
    )
    told = known.with_columns(
        score=pl.lit(card.base.points, pl.Int32),
        bounce_prob=pl.Series(predict(card, design(known))),
        grade=pl.lit("A"),
        model=pl.lit(card.version),
        unread=pl.lit(unread),
        **{name: pl.lit(None, pl.String) for name in NAMED if name not in known.columns},
    ).select("row_id", *KNOWN)

    def known_of(rows: pl.Series) -> pl.DataFrame:
        return told.filter(pl.col("row_id").is_in(rows.implode()))

    none = labels.select("row_id", "letter").clear()
    book.record(LabelBatch(about, labels, none, known_of, lambda _: none, recorded))


def counted(known: pl.DataFrame) -> pl.DataFrame:
    """Letters as patterns, counted."""
    return known.group_by(list(LEVEL_DTYPES)).agg(pl.len().alias("n"), pl.col("bounced").sum())


def a_book(folder: Path, *mailings: pl.DataFrame) -> LabelStore:
    """A book with these mailings, one a day."""
    book = LabelStore(folder)
    for place, known in enumerate(mailings, 1):
        mail(book, known, name=f"m{place}", mailed=MAILED.replace(day=place))
    return book
