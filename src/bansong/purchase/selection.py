"""Selection of the lookups that a run buys: unknown ones, the worthiest first, within the budget. Nothing is sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from bansong.business_number import first_code
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

_BUYABLE: Final = ("done", "refused")  # states of lookups with a too old answer, or without a payment

_DAY_S: Final = 86_400.0
_MAX_PAUSE_S: Final = 35 * _DAY_S  # between two runs of which the later continues the earlier: a quota lasts a month
_MAX_CHAIN_S: Final = 100 * _DAY_S  # from the first of such runs: older answers are too old for anybody
_PROBABILITY: Final = "bounce_prob"
_SAMPLE_LOOKUPS: Final = 1000  # searched under other addresses; after a hit all are


@dataclass(frozen=True, slots=True)
class Standing:
    """State of a run's lookups before it begins.

    ``cached``: answered in the ledger; ``running``: in an upload under way; ``held``: asked without an answer, so not
    asked again by itself; ``wanted``: to be bought; ``uploads``: of the running ones; ``incomplete``: fetched ones with
    unanswered rows; ``continued``: cached ones that are too old but were bought by a run that this one continues.
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
    """Compare lookups with keys to the ledger; answers from before ``since`` (unix seconds) are too old.

    Answers from after ``continued_since`` are not: see :func:`continued_since`. Wanted lookups that were refused before
    come last, so that they do not keep others from being asked.
    """
    places = lookups.select(pl.int_range(pl.len(), dtype=pl.get_index_type()).alias("place"))
    known = places.join(_known_states(ledger, lookups), on="place", how="left", maintain_order="left")
    state = pl.col("state")
    rules = {
        "cached": (state == "done") & (pl.col("answered_at") >= since),
        "continued": (state == "done") & (pl.col("answered_at") >= pl.lit(continued_since, pl.Float64)),
        "wanted": state.is_null() | state.is_in(_BUYABLE),
        "running": state == "uploaded",
    }
    known = known.with_columns(first_code(rules, "held").alias("fate"))
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
    """Return the start (unix seconds) of the first run that ``run`` continues, if any.

    Those are runs of the same engine for the same file and service that did not end as done (killed, interrupted,
    paused), at most :data:`_MAX_PAUSE_S` apart and not older than :data:`_MAX_CHAIN_S`. Their answers are new to the
    file, whatever the maximum age.
    """
    begun, next_start = None, run.started
    for one in reversed([*earlier]):
        if (one.engine, one.origin, one.file) != (run.engine, run.origin, run.file):
            continue
        pause, way = next_start - (one.ended or one.started), run.started - one.started
        if one.outcome == "done" or pause > _MAX_PAUSE_S or way > _MAX_CHAIN_S:
            break
        begun = next_start = one.started
    return begun


def known_elsewhere(
    ledger: Ledger, lookups: pl.DataFrame, scopes: Sequence[tuple[str, str]], since: float
) -> list[tuple[str, int]]:
    """Return the number of lookups that the ledger knows at other services, given as (origin, scope)."""
    sample = lookups.gather_every(max(1, lookups.height // _SAMPLE_LOOKUPS))

    def count_known(asked: pl.DataFrame, scope: str) -> int:
        return asked.height - standing(ledger, with_keys(asked, scope), since).wanted.height

    return [(origin, count_known(lookups, scope)) for origin, scope in scopes if count_known(sample, scope)]


def assess_lookups(lookups: pl.DataFrame, local: LocalEngine) -> pl.DataFrame:
    """Add the local engine's ``status_unknown`` (Boolean) and ``bounce_prob`` (Float64) of each lookup."""
    records = split(lookups).with_columns(lookups[name] for name in BESIDE if name in lookups.columns)
    answers = local.answer(records.lazy()).select(
        (pl.col("biz_status") == "unknown").fill_null(True).alias("status_unknown"), _PROBABILITY
    )
    return lookups.hstack(answers.collect(engine="streaming"))


def uncertain(lookups: pl.DataFrame, band: tuple[float, float]) -> pl.DataFrame:
    """Return the assessed lookups without a status, or with a probability in the band."""
    return lookups.filter(pl.col("status_unknown") | pl.col(_PROBABILITY).is_between(*band).fill_null(False))


def worthiest_first(lookups: pl.DataFrame) -> pl.DataFrame:
    """Sort lookups by the user's priority, largest first, or else by the local engine's uncertainty.

    Unknown statuses first, then the probabilities nearest to one half, those without a probability last. Equals stay
    in the order of the file.
    """
    if PRIORITY in lookups.columns:
        by, descending = [pl.col(PRIORITY).fill_nan(None)], [True]
    else:
        by, descending = [pl.col("status_unknown"), (pl.col(_PROBABILITY) - 0.5).abs()], [True, False]
    return lookups.sort(*by, ROW_ID, descending=[*descending, False], nulls_last=True)


def choose_worthiest(wanted: pl.DataFrame, allowed: int, local: LocalEngine) -> pl.DataFrame:
    """Return as many of the wanted lookups as are allowed, the worthiest first.

    By the user's priority or by the local engine's assessment, which is made if not all are allowed; else in the order
    of the file.
    """
    if not {PRIORITY, _PROBABILITY} & set(wanted.columns):
        if allowed >= wanted.height:
            return wanted
        wanted = assess_lookups(wanted, local)
    return worthiest_first(wanted).head(allowed)


def hides_quota(error: ServiceError) -> bool:
    """Whether an error of ``GET /me`` shows a service that works but does not reveal the quota."""
    if error.retry_after is not None:
        return False
    if isinstance(error, ShapeError | NotFoundError):
        return True
    status = error.status or 0
    return status >= 500 or (isinstance(error, RejectedError) and status >= 400)


def affordable(wanted: int, budget: int | None, remaining: int | None, unread: ServiceError | None = None) -> int:
    """Return the number of wanted lookups to buy; raise :class:`QuotaError` if the quota does not last for all.

    With a budget a part is enough; without one, all or nothing. ``unread``: error of reading the quota; without a
    budget it is raised again, with the remedy.
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
