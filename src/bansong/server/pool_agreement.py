"""What keys of a pool learn from each other: outcomes of paid letters on which several customers agree.

A customer may hold several keys but has one vote per addressee, however often it wrote to it. It never receives an
agreement on an addressee that it voted on: decisions 044 and 056.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final

import polars as pl

from bansong.engine.letter_history import HISTORY_SCHEMA, TRUSTED_MONTHS
from bansong.engine.risk.reason_parser import LEVEL
from bansong.errors import BansongError
from bansong.labels.label_store import LabelStore
from bansong.learning.training_data import RIPE_DAYS
from bansong.server.reference_files import DAMAGED

_log = logging.getLogger(__name__)

_ADDRESSEE: Final = ("b_no", "address_key")
_HISTORY: Final = f"{LEVEL}history"


@dataclass(frozen=True, slots=True)
class PoolMember:
    """A key of the pool: its label store, and whose key it is."""

    store: LabelStore
    customer: str


Members = Mapping[str, PoolMember]


@dataclass(frozen=True, slots=True)
class PoolAgreement:
    """What a pool agrees on, as :data:`bansong.engine.letter_history.HISTORY_SCHEMA`, sorted by ``b_no``.

    ``frame``: one row per addressee. ``customers``: customer by key id. ``apart``: the frame for a customer with
    several keys, without the addressees that any of them voted on.
    """

    frame: pl.DataFrame
    customers: Mapping[str, str]
    apart: Mapping[str, pl.DataFrame]


def find_agreed(members: Members, quorum: int, day: date) -> PoolAgreement:
    """Find the addressees with equal outcomes of at least ``quorum`` customers, and of a majority.

    A customer votes with its newest paid letter within :data:`TRUSTED_MONTHS` before ``day``; on one day, a bounced one
    wins. ``mailed`` is ``day``, to hide the days of single letters. Damaged stores are logged and skipped.
    """
    recent = (pl.col("mailed") <= day) & (pl.col("mailed") > pl.lit(day).dt.offset_by(f"-{TRUSTED_MONTHS}mo"))

    def voices_of(store: LabelStore) -> pl.LazyFrame | None:
        found = store.history(mailings=store.paid_mailings(), assessed=True)
        return None if found is None else found.filter(recent).select(list(HISTORY_SCHEMA))

    heard = [
        pl.DataFrame(schema=HISTORY_SCHEMA | {"key": pl.String, "customer": pl.String}),
        *(_read(members, voices_of)),
    ]
    voices = (
        pl.concat(heard)
        .sort("mailed", pl.col("outcome") != "delivered", "outcome")
        .unique(["customer", *_ADDRESSEE], keep="last")
    )
    counted = voices.group_by(*_ADDRESSEE, "outcome").agg(pl.len().alias("customers"))
    agrees = (pl.col("customers") >= quorum) & (2 * pl.col("customers") > pl.col("customers").sum().over(_ADDRESSEE))
    agreed = counted.filter(agrees).with_columns(pl.lit(day).alias("mailed"))
    agreed = agreed.select(list(HISTORY_SCHEMA)).sort(_ADDRESSEE)
    customers = {id_: member.customer for id_, member in members.items()}
    return PoolAgreement(agreed, customers, _leave_out_own(agreed, voices, Counter(customers.values())))


def _leave_out_own(agreed: pl.DataFrame, voices: pl.DataFrame, keys: Counter[str]) -> dict[str, pl.DataFrame]:
    """Return :attr:`PoolAgreement.apart`; customers with one key need none."""
    several = [customer for customer, count in keys.items() if count > 1]
    spoken = voices.filter(pl.col("customer").is_in(several)).join(agreed, on=_ADDRESSEE, how="semi")
    return {
        str(customer): agreed.join(rows, on=_ADDRESSEE, how="anti", maintain_order="left")
        for (customer,), rows in spoken.group_by("customer")
    }


def write_training_store(members: Members, target: LabelStore, quorum: int, today: date) -> int:
    """Write the letters from which a pool scorecard may be learned to an empty store; return their number.

    The n-th letter of a customer counts once ``quorum`` customers have an n-th letter, so that no customer ever has
    more than 1/quorum of them. Letters of a customer to one addressee with the same history count once.
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

    found = list(_read(members, letters_of))
    if not found:
        return 0
    letters = _admit(pl.concat(found), quorum)
    for (key, mailing), rows in letters.group_by("key", "mailing", maintain_order=True):
        store = members[str(key)].store
        frame, about = store.read(store.path(str(mailing)))
        kept = frame.drop("recorded").join(rows.select("row_id", recorded="ready"), on="row_id")
        target.put(kept.select(frame.columns).sort("row_id"), about)
    return letters.height


def _admit(letters: pl.DataFrame, quorum: int) -> pl.DataFrame:
    """Keep the letters that count; ``ready`` becomes the time from which each counts."""
    same = ("customer", *_ADDRESSEE, _HISTORY)
    ordered = letters.sort("ready", "mailing", "row_id").unique(same, keep="first", maintain_order=True)
    numbered = ordered.with_columns(pl.int_range(pl.len()).over("customer").alias("nth"))
    admitted = numbered.filter(pl.len().over("nth") >= quorum)  # of each customer at most one
    opened = pl.col("ready").get(quorum - 1).over("nth")
    return admitted.with_columns(pl.max_horizontal("ready", opened).alias("ready"))


def _read(members: Members, query: Callable[[LabelStore], pl.LazyFrame | None]) -> Iterator[pl.DataFrame]:
    for key, member in members.items():
        try:
            found = query(member.store)
            if found is not None:
                whose = {"key": pl.lit(key), "customer": pl.lit(member.customer)}
                yield found.with_columns(**whose).collect(engine="streaming")
        except (BansongError, *DAMAGED) as error:
            why = error if isinstance(error, BansongError) else type(error).__name__
            _log.error("the outcomes of key %s teach nobody: %s", key, why)
