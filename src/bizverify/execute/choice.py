"""What a run buys: what the ledger has not, in the order of its worth, within what may be spent. Nothing is sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from bizverify.errors import QuotaError, parameter
from bizverify.execute.lookups import BESIDE, KEY, PRIORITY, split
from bizverify.execute.rows import ROW_ID
from bizverify.model import counted

if TYPE_CHECKING:
    from bizverify.engine import LocalEngine
    from bizverify.execute.ledger import Ledger

_BUYABLE: Final = ("done", "refused")
"""States of a lookup that may be asked (again): its answer is too old, or it was refused and so not paid."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How a run's lookups stand before it begins.

    ``cached``: answered in the ledger already; ``running``: in an upload that the service is working on; ``held``:
    asked once and not answered, so not asked again by itself; ``wanted``: to be bought, as a frame like the lookups;
    ``uploads``: those that hold the running ones; ``incomplete``: those that were fetched without an answer to some.
    """

    cached: int
    running: int
    held: int
    wanted: pl.DataFrame
    uploads: frozenset[str]
    incomplete: frozenset[str]


def standing(ledger: Ledger | None, lookups: pl.DataFrame, since: float) -> Standing:
    """Hold lookups with keys against the ledger; answers from before ``since`` (unix seconds) are too old.

    Of the wanted ones, those that were refused before come last: they must not keep the others from being asked.
    """
    places = lookups.select(pl.int_range(pl.len(), dtype=pl.get_index_type()).alias("place"))
    known = places.join(_known(ledger, lookups), on="place", how="left", maintain_order="left")
    state = pl.col("state")
    fate = (
        pl.when((state == "done") & (pl.col("answered_at") >= since))
        .then(pl.lit("cached"))
        .when(state.is_null() | state.is_in(_BUYABLE))
        .then(pl.lit("wanted"))
        .when(state == "uploaded")
        .then(pl.lit("running"))
        .otherwise(pl.lit("held"))
    )
    known = known.with_columns(fate.alias("fate"))
    counts = dict(known["fate"].value_counts().iter_rows())
    wanted = known.filter(pl.col("fate") == "wanted").sort(state == "refused", maintain_order=True)
    cached, running, held = (counts.get(name, 0) for name in ("cached", "running", "held"))
    uploads = known.filter(pl.col("fate") == "running")["upload"].unique()
    incomplete = known.filter((state == "missing") & pl.col("upload").is_not_null())["upload"].unique()
    return Standing(cached, running, held, lookups[wanted["place"]], frozenset(uploads), frozenset(incomplete))


def _known(ledger: Ledger | None, lookups: pl.DataFrame) -> pl.DataFrame:
    columns = {"place": pl.get_index_type(), "state": pl.String, "answered_at": pl.Float64, "upload": pl.String}
    entries = ledger.entries(lookups[KEY], answers=False) if ledger is not None else ()
    parts = [part.select(pl.col(name).cast(dtype) for name, dtype in columns.items()) for part in entries]
    return pl.concat([pl.DataFrame(schema=columns), *parts])


def assessed(lookups: pl.DataFrame, local: LocalEngine) -> pl.DataFrame:
    """Add what the local engine says of each lookup: ``status_unknown`` (Boolean) and ``bounce_prob`` (Float64)."""
    records = split(lookups).with_columns(lookups[name] for name in BESIDE if name in lookups.columns)
    answers = local.answer(records.lazy()).select(
        (pl.col("biz_status") == "unknown").fill_null(True).alias("status_unknown"), "bounce_prob"
    )
    return lookups.hstack(answers.collect(engine="streaming"))


def uncertain(lookups: pl.DataFrame, band: tuple[float, float]) -> pl.DataFrame:
    """Keep of :func:`assessed` lookups those that the local engine cannot tell: no status, or a probability between."""
    return lookups.filter(pl.col("status_unknown") | pl.col("bounce_prob").is_between(*band).fill_null(False))


def worthiest_first(lookups: pl.DataFrame) -> pl.DataFrame:
    """Sort lookups by the user's priority where they have one, largest first; else by the local engine's uncertainty.

    Unknown statuses first, then the probabilities nearest to one half; where no letter can go (no probability) last.
    Equals stay in the order of the file.
    """
    if PRIORITY in lookups.columns:
        by, descending = [pl.col(PRIORITY).fill_nan(None)], [True]
    else:
        by, descending = [pl.col("status_unknown"), (pl.col("bounce_prob") - 0.5).abs()], [True, False]
    return lookups.sort(*by, ROW_ID, descending=[*descending, False], nulls_last=True)


def affordable(wanted: int, budget: int | None, remaining: int | None) -> int:
    """How many of the wanted lookups are bought; raise :class:`QuotaError` where the quota does not last for the plan.

    With a budget the user has said that a part will do; without one, all or nothing.
    """
    if budget is None and remaining is not None and wanted > remaining:
        part = (
            f"give {parameter('budget', remaining)} to buy the worthiest (`priority='COLUMN'` says which), or "
            if remaining
            else ""
        )
        raise QuotaError(
            f"{counted(wanted, 'lookup')} needed, {remaining:,} left of this month's quota, nothing was bought; "
            f"{part}wait for next month"
        )
    limits = [limit for limit in (budget, remaining) if limit is not None]
    return min([wanted, *limits])
