"""What a run buys: what the ledger has not, in the order of its worth, within what may be spent. Nothing is sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from bansong.errors import NotFoundError, Problem, QuotaError, RejectedError, ServiceError, ShapeError
from bansong.run.lookups import BESIDE, KEY, PRIORITY, split, with_keys
from bansong.run.records import ROW_ID
from bansong.translation import Option, Phrase, gettext, parameter

if TYPE_CHECKING:
    from bansong.engine import LocalEngine
    from bansong.ledger import Ledger, LedgerRun, RunRecord

QUOTA_TOO_SMALL: Final = Problem(
    "purchase.quota_too_small",
    "{count:,} lookup needed, {remaining:,} left of this month's quota, nothing was bought; {part}wait for next month",
    "{count:,} lookups needed, {remaining:,} left of this month's quota, nothing was bought; {part}wait for next month",
)

_BUYABLE: Final = ("done", "refused")
"""States of a lookup that may be asked (again): its answer is too old, or it was refused and so not paid."""

_DAY: Final = 86_400.0
_LONGEST_PAUSE: Final = 35 * _DAY
"""Seconds between two runs of which the later may continue the earlier: a quota lasts a month."""
_LONGEST_WAY: Final = 100 * _DAY
"""Seconds within which runs that continue each other must have begun: older answers are too old for anybody."""
_PROBABILITY: Final = "bounce_prob"
_SAMPLE: Final = 1000
"""Lookups that are looked for under other addresses; where one is found, all are."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How a run's lookups stand before it begins.

    ``cached``: answered in the ledger already; ``running``: in an upload that the service is working on; ``held``:
    asked once and not answered, so not asked again by itself; ``wanted``: to be bought, as a frame like the lookups;
    ``uploads``: those that hold the running ones; ``incomplete``: those that were fetched without an answer to some;
    ``continued``: the cached ones that are older than the run's own maximum, and were bought since the run began that
    this one continues.
    """

    cached: int
    running: int
    held: int
    wanted: pl.DataFrame
    uploads: frozenset[str]
    incomplete: frozenset[str]
    continued: int = 0


def standing(
    ledger: Ledger | None, lookups: pl.DataFrame, since: float, continued_since: float | None = None
) -> Standing:
    """Hold lookups with keys against the ledger; answers from before ``since`` (unix seconds) are too old.

    Those from after ``continued_since`` are not, if that is earlier: see :func:`continued_since`.
    Of the wanted ones, those that were refused before come last: they must not keep the others from being asked.
    """
    places = lookups.select(pl.int_range(pl.len(), dtype=pl.get_index_type()).alias("place"))
    known = places.join(_known_states(ledger, lookups), on="place", how="left", maintain_order="left")
    state = pl.col("state")
    fate = (
        pl.when((state == "done") & (pl.col("answered_at") >= since))
        .then(pl.lit("cached"))
        .when((state == "done") & (pl.col("answered_at") >= pl.lit(continued_since, pl.Float64)))
        .then(pl.lit("continued"))
        .when(state.is_null() | state.is_in(_BUYABLE))
        .then(pl.lit("wanted"))
        .when(state == "uploaded")
        .then(pl.lit("running"))
        .otherwise(pl.lit("held"))
    )
    known = known.with_columns(fate.alias("fate"))
    counts = dict(known["fate"].value_counts().iter_rows())
    wanted = known.filter(pl.col("fate") == "wanted").sort(state == "refused", maintain_order=True)
    cached, continued, running, held = (counts.get(name, 0) for name in ("cached", "continued", "running", "held"))
    uploads = known.filter(pl.col("fate") == "running")["upload"].unique()
    incomplete = known.filter((state == "missing") & pl.col("upload").is_not_null())["upload"].unique()
    bought = (cached + continued, running, held, lookups[wanted["place"]])
    return Standing(*bought, frozenset(uploads), frozenset(incomplete), continued)


def _known_states(ledger: Ledger | None, lookups: pl.DataFrame) -> pl.DataFrame:
    columns = {"place": pl.get_index_type(), "state": pl.String, "answered_at": pl.Float64, "upload": pl.String}
    entries = ledger.entries(lookups[KEY], answers=False) if ledger is not None else ()
    parts = [part.select(pl.col(name).cast(dtype) for name, dtype in columns.items()) for part in entries]
    return pl.concat([pl.DataFrame(schema=columns), *parts])


def continued_since(earlier: Iterable[RunRecord], run: LedgerRun) -> float | None:
    """Return when the first of those runs began that ``run`` continues (unix seconds); ``None`` where there is none.

    It continues runs of the same engine for the same file at the same service that did not end as done: killed,
    interrupted, paused. What they bought is new to their file, whatever the maximum age. Runs of a broken chain are
    left out: more than :data:`_LONGEST_PAUSE` apart, or begun more than :data:`_LONGEST_WAY` ago.
    """
    begun, next_start = None, run.started
    for one in reversed([*earlier]):
        if (one.engine, one.origin, one.file) != (run.engine, run.origin, run.file):
            continue
        pause, way = next_start - (one.ended or one.started), run.started - one.started
        if one.outcome == "done" or pause > _LONGEST_PAUSE or way > _LONGEST_WAY:
            break
        begun = next_start = one.started
    return begun


def known_elsewhere(
    ledger: Ledger, lookups: pl.DataFrame, scopes: Sequence[tuple[str, str]], since: float
) -> list[tuple[str, int]]:
    """Return how many lookups the ledger knows at other services, given as (origin, scope); those it knows there."""
    sample = lookups.gather_every(max(1, lookups.height // _SAMPLE))

    def count_known(asked: pl.DataFrame, scope: str) -> int:
        return asked.height - standing(ledger, with_keys(asked, scope), since).wanted.height

    return [(origin, count_known(lookups, scope)) for origin, scope in scopes if count_known(sample, scope)]


def assess_lookups(lookups: pl.DataFrame, local: LocalEngine) -> pl.DataFrame:
    """Add what the local engine says of each lookup: ``status_unknown`` (Boolean) and ``bounce_prob`` (Float64)."""
    records = split(lookups).with_columns(lookups[name] for name in BESIDE if name in lookups.columns)
    answers = local.answer(records.lazy()).select(
        (pl.col("biz_status") == "unknown").fill_null(True).alias("status_unknown"), _PROBABILITY
    )
    return lookups.hstack(answers.collect(engine="streaming"))


def uncertain(lookups: pl.DataFrame, band: tuple[float, float]) -> pl.DataFrame:
    """Return the assessed lookups that the local engine is not sure of: no status, or a probability in the band."""
    return lookups.filter(pl.col("status_unknown") | pl.col(_PROBABILITY).is_between(*band).fill_null(False))


def worthiest_first(lookups: pl.DataFrame) -> pl.DataFrame:
    """Sort lookups by the user's priority where they have one, largest first; else by the local engine's uncertainty.

    Unknown statuses first, then the probabilities nearest to one half; where no letter can go (no probability) last.
    Equals stay in the order of the file.
    """
    if PRIORITY in lookups.columns:
        by, descending = [pl.col(PRIORITY).fill_nan(None)], [True]
    else:
        by, descending = [pl.col("status_unknown"), (pl.col(_PROBABILITY) - 0.5).abs()], [True, False]
    return lookups.sort(*by, ROW_ID, descending=[*descending, False], nulls_last=True)


def choose_worthiest(wanted: pl.DataFrame, allowed: int, local: LocalEngine) -> pl.DataFrame:
    """Return as many of the wanted lookups as are allowed, the worthiest first.

    By the user's priority or by what the local engine says, if the lookups have either; it is asked where not all are
    allowed. Else they stay in the order of the file.
    """
    if not {PRIORITY, _PROBABILITY} & set(wanted.columns):
        if allowed >= wanted.height:
            return wanted
        wanted = assess_lookups(wanted, local)
    return worthiest_first(wanted).head(allowed)


def hides_quota(error: ServiceError) -> bool:
    """Whether the service is there, but its answer to ``GET /me`` does not say how much of the quota is left.

    One that asks to come again later is not there now.
    """
    if error.retry_after is not None:
        return False
    if isinstance(error, ShapeError | NotFoundError):
        return True
    status = error.status or 0
    return status >= 500 or (isinstance(error, RejectedError) and status >= 400)


def affordable(wanted: int, budget: int | None, remaining: int | None, unread: ServiceError | None = None) -> int:
    """How many of the wanted lookups are bought; raise :class:`QuotaError` where the quota does not last for the plan.

    With a budget the user has said that a part will do; without one, all or nothing. ``unread`` is why it is not known
    how much of the quota is left; without a budget it is raised again, with the remedy.
    """
    if unread is not None and budget is None and wanted:
        raise type(unread)(
            gettext(
                "{unread}; so how much of the quota is left is not known, and nothing was bought: give {option} to "
                "buy that many lookups at most",
                unread=unread,
                option=parameter("budget"),
            ),
            status=unread.status,
            detail=unread.detail,
            raw=unread.raw,
        )
    if budget is None and remaining is not None and wanted > remaining:
        part = (
            Phrase(
                "give {option} to buy the worthiest (`priority='COLUMN'` says which), or ",
                option=Option("budget", remaining),
            )
            if remaining
            else ""
        )
        raise QuotaError(QUOTA_TOO_SMALL, count=wanted, remaining=remaining, part=part)
    limits = [limit for limit in (budget, remaining) if limit is not None]
    return min([wanted, *limits])
