"""Fetch statuses of many numbers from the tax authority's open API into the status store.

Fresh statuses are not asked again; replies are stored at once, so that a killed run goes on where it was. If the API
fails, the run ends and the caller uses stored statuses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import date
from typing import Final

import polars as pl

from bansong.cancellation import CancelToken
from bansong.errors import Problem, UsageError
from bansong.options import StatusOptions
from bansong.progress.display import Progress
from bansong.reference.day_allowance import account_of
from bansong.reference.fetch_report import StatusFetch
from bansong.reference.fetch_run import FetchRun
from bansong.reference.nts import NtsKey
from bansong.reference.status_store import StatusStore
from bansong.schema import seoul_day
from bansong.translation import Option

KEY_TYPE_WRONG: Final = Problem("nts.key_type_wrong", "{parameter} is of the class {name}; give a bansong.NtsKey")
KEY_MISSING: Final = Problem(
    "nts.key_missing",
    "no key of the tax authority's API: get a free one at data.go.kr (docs/data-sources.md "
    "shows how) and set {env} to it, or {env_file} to the path of a file that holds it",
)

__all__ = ["StatusFetch", "fetch_statuses", "load_nts_key"]


def load_nts_key(options: StatusOptions) -> NtsKey:
    """Return the key of a fetch run; raise :class:`UsageError` with instructions if there is none."""
    key = NtsKey.find(options.key_file) if options.key is None else options.key
    if key is not None and not isinstance(key, NtsKey):
        raise UsageError(KEY_TYPE_WRONG, parameter=Option("key"), name=type(key).__name__)
    if key is None:
        raise UsageError(KEY_MISSING, env=NtsKey.ENV, env_file=NtsKey.ENV_FILE)
    return key


async def fetch_statuses(
    numbers: pl.Series,
    options: StatusOptions | None = None,
    *,
    known: pl.DataFrame | None = None,
    progress: Progress | None = None,
    watch: Callable[[StatusFetch], None] | None = None,
    cancel: CancelToken | None = None,
    tries_spent: bool = False,
    today: Callable[[], date] = seoul_day,
) -> StatusFetch:
    """Ask for stale statuses of ``numbers`` (UInt64), and store the answers.

    ``known``: days of statuses known elsewhere (``b_no``, ``as_of``, each number once), which may be fresh as well.
    Unknown numbers are asked first, then the oldest. ``progress`` and ``watch`` are called after calls, the latter with
    the report. ``tries_spent``: try a key whose day's requests are used up once more. ``today``: the day in Korea.

    A run that cannot go on (refused key, used budget or allowance, outage, ``cancel``) ends with ``halt`` in its
    report. Raises :class:`UsageError` without a key if there is something to ask, and
    :class:`~bansong.errors.StoreError`.
    """
    options = options or StatusOptions()
    report = StatusFetch()
    with StatusStore(options.store) as store:
        given = numbers.cast(pl.UInt64).drop_nulls().unique().sort()  # in their order the store finds them faster
        report.numbers = len(given)
        stale = _stale_numbers(store, given, known, options.max_age, today())
        report.left = stale.height
        report.unanswered = len(store.find_unanswered(given, today()))
        report.from_store = report.numbers - report.left - report.unanswered
        try:
            if stale.height:
                key = load_nts_key(options)
                if tries_spent and store.lift_limit(account_of(key), today()):
                    options = replace(options, concurrency=1)  # one call shows whether it goes on
                run = FetchRun(store, options, key, report, progress=progress, watch=watch, today=today)
                await run.run(stale, cancel or CancelToken())
        finally:
            report.oldest = store.oldest(given)
    return report


def _stale_numbers(
    store: StatusStore, numbers: pl.Series, known: pl.DataFrame | None, max_age: float, today: date
) -> pl.DataFrame:
    stale = store.stale(numbers, max_age, today)
    if known is None:
        return stale
    known = known.filter(pl.col("as_of") <= today)  # one of a day to come tells of a wrong clock, not of a fresh look
    stale = stale.join(known.select("b_no", pl.col("as_of").alias("elsewhere")), on="b_no", how="left")
    stale = stale.select("b_no", pl.max_horizontal("as_of", "elsewhere").alias("as_of"))
    age = (pl.lit(today) - pl.col("as_of")).dt.total_days()
    return stale.filter(~(age <= max_age).fill_null(value=False)).sort("as_of", "b_no")
