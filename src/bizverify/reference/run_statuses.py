"""The statuses of a run's numbers: fetched as far as they are stale, then laid over the registry of its engine."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import date, timedelta
from math import floor
from typing import Any

import polars as pl

from bizverify.cancellation import CancelToken, run_async
from bizverify.engine.local import NUMBER, ROW_PROBLEM
from bizverify.engine.status_overlay import StatusOverlay
from bizverify.options import StatusOptions
from bizverify.reference.nts.nts_client import seoul_day
from bizverify.reference.status_fetch import StatusFetch, fetch_statuses
from bizverify.reference.status_store import STATUS_SCHEMA, StatusStore, find_status_store
from bizverify.schema import pluralize


@dataclass(frozen=True, slots=True)
class RunStatuses:
    """The statuses that a run uses, and what was asked for them.

    ``numbers``: the distinct usable numbers of its rows, of which ``to_ask`` have no fresh status in the store.
    ``fetch``: what came of asking, ``None`` where the run is only planned. ``day``: the day of it all in Korea.
    """

    overlay: StatusOverlay
    numbers: int
    to_ask: int
    day: date
    fetch: StatusFetch | None = None

    @property
    def halt(self) -> str | None:
        """Why not all was asked that should have been; ``None`` if it was, or nothing was to be."""
        return self.fetch.halt if self.fetch is not None else None

    def as_dict(self) -> dict[str, Any]:
        """The figures as plain values for JSON."""
        fetch = {} if self.fetch is None else asdict(self.fetch)
        return {"numbers": self.numbers, "to_ask": self.to_ask, "day": self.day.isoformat()} | fetch

    def lines(self) -> list[tuple[str, str]]:
        """What was asked, or would be, as (what, how much) for people."""
        stored = f"{self.numbers - self.to_ask:,} known from the status store"
        if self.fetch is None:
            return [("would ask nts", f"{pluralize(self.to_ask, 'number')}, at no cost; {stored}")]
        return [("asked nts", f"{self.fetch}; {stored}")]


def plan_statuses(rows: pl.LazyFrame, options: StatusOptions) -> RunStatuses:
    """Return what is stored of the numbers of a run's rows, and how many would be asked; nobody is asked."""
    numbers, day = numbers_of(rows), seoul_day()
    store = find_status_store(options.store)
    if store is None:
        return RunStatuses(StatusOverlay(pl.DataFrame(schema=STATUS_SCHEMA)), len(numbers), len(numbers), day)
    with store:
        stale = store.stale(numbers, options.max_age, day)
        return RunStatuses(StatusOverlay(store.read(numbers)), len(numbers), stale.height, day)


def fetch_for_rows(
    rows: pl.LazyFrame, options: StatusOptions, *, progress: FetchProgress | None = None, cancel: CancelToken
) -> RunStatuses:
    """Ask the tax authority for the statuses of a run's rows, as far as stored ones are stale; return all of them.

    An outage is no error: what is stored goes on to count, and tells its age. Raises ``KeyboardInterrupt`` when it was
    interrupted: what was answered is stored then.
    """
    numbers = numbers_of(rows)
    fetch = run_async(lambda: fetch_statuses(numbers, options, progress=progress, cancel=cancel), cancel)
    day = seoul_day()
    with StatusStore(options.store) as store:
        statuses = store.read(numbers)
    overlay = StatusOverlay(statuses, aged_before=day - timedelta(days=floor(options.max_age)))
    return RunStatuses(overlay, len(numbers), fetch.asked, day, fetch)


def numbers_of(rows: pl.LazyFrame) -> pl.Series:
    """Return the distinct numbers of the rows that have a usable one (UInt64), whatever their check digit."""
    if NUMBER not in rows.collect_schema().names():
        return pl.Series(NUMBER, dtype=pl.UInt64)
    valid = pl.col(NUMBER).is_not_null() & pl.col(ROW_PROBLEM).is_null()
    return rows.filter(valid).select(pl.col(NUMBER).unique()).collect(engine="streaming").to_series()
