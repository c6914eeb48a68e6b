"""Merge new labels of a mailing with recorded ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec
import polars as pl

from bansong.labels.mailing_file import KNOWN, STORE_SCHEMA, MailingMetadata
from bansong.labels.mailing_terms import MailingTerms
from bansong.labels.matching import LABEL_SCHEMA, merge_labels

_LABEL: Final[dict[str, Any]] = LABEL_SCHEMA | {"doubt": pl.Boolean}


@dataclass(frozen=True, slots=True)
class LabelBatch:
    """Labels of one mailing (``LABEL_SCHEMA``), to be recorded.

    ``known`` returns for row numbers (UInt32) ``row_id`` and :data:`KNOWN`; ``sent`` returns for terms ``row_id`` and
    ``letter`` of all mailed letters. ``doubtful``: ``row_id`` and ``letter`` whose outcomes could not be used, so that
    their silence is no delivery. ``unplaced``: some outcomes may concern any letter, so that no silence is delivery.
    """

    about: MailingMetadata
    labels: pl.DataFrame
    doubtful: pl.DataFrame
    known: Callable[[pl.Series], pl.DataFrame]
    sent: Callable[[MailingTerms], pl.DataFrame]
    now: datetime
    unplaced: bool = False


def merge_recorded(known: pl.DataFrame, new: pl.DataFrame, replace: bool) -> tuple[pl.DataFrame, pl.Series, int]:
    """Merge labels; return them, the row numbers where a recorded label was kept, and how many were replaced."""
    known, new = (frame.select(list(_LABEL)) for frame in (known, new.with_columns(doubt=pl.lit(False))))
    both = known.select("row_id", was="said", was_code="reason_code").join(new, on="row_id")
    differs = (pl.col("was") != pl.col("said")) | (pl.col("was_code") != pl.col("reason_code"))
    clashing = both.filter(differs.fill_null(False))["row_id"]
    agreeing = ~pl.col("row_id").is_in(clashing.implode())
    parts = [known.filter(agreeing), new] if replace else [known, new.filter(agreeing)]
    labels = merge_labels(pl.concat(parts)).with_columns(doubt=pl.lit(False)).select(list(_LABEL))
    return (labels, clashing.clear(), clashing.len()) if replace else (labels, clashing, 0)


def silent_letters(letters: pl.DataFrame, labels: pl.DataFrame, *, doubt: bool) -> pl.DataFrame:
    """Return rows without an outcome for the letters that no label concerns."""
    quiet = letters.unique("row_id").join(labels, on="letter", how="anti").join(labels, on="row_id", how="anti")
    nothing = [pl.lit(None, dtype).alias(name) for name, dtype in _LABEL.items() if name not in ("row_id", "letter")]
    return quiet.with_columns(nothing).with_columns(doubt=pl.lit(doubt)).select(list(_LABEL))


def add_known(rows: pl.DataFrame, before: pl.DataFrame, batch: LabelBatch, terms: MailingTerms) -> pl.DataFrame:
    """Add to labels what is known of their rows: as recorded before, else from the enriched file."""
    fresh = rows.join(before, on="row_id", how="anti")["row_id"]
    known = pl.concat([before.select("row_id", *KNOWN), batch.known(fresh).select("row_id", *KNOWN)])
    when = before.select("row_id", was_said="said", was_bounced="bounced", was_recorded="recorded")
    frame = rows.join(known, on="row_id", how="left").join(when, on="row_id", how="left")
    frame = frame.with_columns(
        pl.lit(terms.mailed).alias("mailed"), pl.when(~pl.col("doubt")).then(terms.certain_outcome()).alias("bounced")
    )
    # a declaration can make an old word certain: learning takes it as news of today, so that its past never changes
    same = pl.all_horizontal(pl.col(name).eq_missing(pl.col(f"was_{name}")) for name in ("said", "bounced"))
    frame = frame.with_columns(pl.when(same).then("was_recorded").fill_null(batch.now).alias("recorded"))
    return frame.select(pl.col(name).cast(dtype) for name, dtype in STORE_SCHEMA.items()).sort("row_id")


def merge_metadata(before: MailingMetadata, now: MailingMetadata, replace: bool) -> MailingMetadata:
    """Merge the metadata of a mailing with that of another source of outcomes."""
    known = {source.sha256 for source in before.sources}
    return msgspec.structs.replace(
        before,
        declaration=before.declaration.merge(now.declaration, replace=replace),
        sources=(*before.sources, *(source for source in now.sources if source.sha256 not in known)),
    )
