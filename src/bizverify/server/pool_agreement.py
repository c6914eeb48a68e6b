"""What the keys of a pool learn from each other: what several of them say, of letters that were paid for.

A letter that came back teaches others only if it was a row of a paid job, and only what as many keys say as the quorum
wants. Each key has one voice for an addressee, however often it wrote to it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from datetime import date, timedelta
from typing import Final

import polars as pl

from bizverify.engine.letter_history import HISTORY_SCHEMA, TRUSTED_MONTHS
from bizverify.engine.risk.reason_parser import LEVEL
from bizverify.errors import BizverifyError
from bizverify.labels.label_store import LabelStore
from bizverify.learning.training_data import RIPE_DAYS
from bizverify.server.reference_files import DAMAGED

_log = logging.getLogger(__name__)

_ADDRESSEE: Final = ("b_no", "address_key")
_HISTORY: Final = f"{LEVEL}history"

Members = Mapping[str, LabelStore]
"""The label stores of a pool's keys, by the id of the key."""


def find_agreed(members: Members, quorum: int, day: date) -> pl.DataFrame:
    """Return the addressees of whom at least ``quorum`` keys say the same, and more of them than say otherwise.

    :data:`bizverify.engine.letter_history.HISTORY_SCHEMA`, sorted by ``b_no``; one row an addressee. What counts is
    each key's newest paid letter to it within :data:`TRUSTED_MONTHS` before ``day``; ``mailed`` is ``day`` itself, so
    that no letter's own day shows. A store that is damaged says nothing, and that is logged.
    """
    recent = (pl.col("mailed") <= day) & (pl.col("mailed") > pl.lit(day).dt.offset_by(f"-{TRUSTED_MONTHS}mo"))

    def voices_of(store: LabelStore) -> pl.LazyFrame | None:
        found = store.history(mailings=store.paid_mailings(), assessed=True)
        return None if found is None else found.filter(recent).select(list(HISTORY_SCHEMA))

    voices = pl.concat([pl.DataFrame(schema=HISTORY_SCHEMA), *(found for _, found in _read(members, voices_of))])
    counted = voices.group_by(*_ADDRESSEE, "outcome").agg(pl.len().alias("keys"))
    agrees = (pl.col("keys") >= quorum) & (2 * pl.col("keys") > pl.col("keys").sum().over(_ADDRESSEE))
    agreed = counted.filter(agrees).with_columns(pl.lit(day).alias("mailed"))
    return agreed.select(list(HISTORY_SCHEMA)).sort(_ADDRESSEE)


def write_training_store(members: Members, target: LabelStore, quorum: int, today: date) -> int:
    """Write the letters from which a scorecard of the pool may be learned to an empty store; return how many.

    The n-th letter of a key counts from the time at which ``quorum`` keys have an n-th letter: no key has a larger
    share of the letters than one in ``quorum``, at any time, and with fewer keys there are none. Letters to one
    addressee of whom the same was known count once for a key. What is added later comes behind what was there.
    """
    ripe = (pl.col("mailed") + pl.duration(days=RIPE_DAYS)).cast(pl.Datetime("us")).dt.replace_time_zone("UTC")

    def letters_of(store: LabelStore) -> pl.LazyFrame | None:
        if not (paid := store.paid_mailings()):
            return None
        rows = store.evidence(paid, addressee=True).filter(
            pl.col("mailed") <= today - timedelta(days=RIPE_DAYS), pl.col("bounced", *_ADDRESSEE).is_not_null()
        )
        ready = pl.max_horizontal("recorded", ripe).alias("ready")
        return rows.select("mailing", "row_id", *_ADDRESSEE, _HISTORY, ready)

    found = [rows.with_columns(pl.lit(key).alias("key")) for key, rows in _read(members, letters_of)]
    if len(found) < quorum:
        return 0
    letters = _admit(pl.concat(found), quorum)
    for (key, mailing), rows in letters.group_by("key", "mailing", maintain_order=True):
        store = members[str(key)]
        frame, about = store.read(store.path(str(mailing)))
        kept = frame.drop("recorded").join(rows.select("row_id", recorded="ready"), on="row_id")
        target.put(kept.select(frame.columns).sort("row_id"), about)
    return letters.height


def _admit(letters: pl.DataFrame, quorum: int) -> pl.DataFrame:
    """Keep the letters that count, as their n-th of a key; ``ready`` becomes the time from which each does."""
    same = ("key", *_ADDRESSEE, _HISTORY)
    ordered = letters.sort("ready", "mailing", "row_id").unique(same, keep="first", maintain_order=True)
    numbered = ordered.with_columns(pl.int_range(pl.len()).over("key").alias("nth"))
    admitted = numbered.filter(pl.len().over("nth") >= quorum)  # of each key at most one
    opened = pl.col("ready").get(quorum - 1).over("nth")
    return admitted.with_columns(pl.max_horizontal("ready", opened).alias("ready"))


def _read(members: Members, query: Callable[[LabelStore], pl.LazyFrame | None]) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield what a query finds in each store; one that is damaged is passed over, and that is logged."""
    for key, store in members.items():
        try:
            found = query(store)
            if found is not None:
                yield key, found.collect(engine="streaming")
        except (BizverifyError, *DAMAGED) as error:
            why = error if isinstance(error, BizverifyError) else type(error).__name__
            _log.error("the outcomes of key %s teach nobody: %s", key, why)
