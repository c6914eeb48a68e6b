"""Fetch the stale statuses of a run's numbers, and combine them with the engine's registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import date, timedelta
from math import floor
from pathlib import Path
from typing import Any, Final, Protocol

import polars as pl

from bansong.base.cancel import CancelToken, run_async
from bansong.base.errors import AuthenticationError, Problem, StoppedError
from bansong.base.files import variable
from bansong.base.messages import Phrase, gettext, gettext_of, join_clauses, ngettext
from bansong.base.options import ENV_NTS_KEY_FILE, StatusOptions
from bansong.base.schema import seoul_day
from bansong.engine.local import NUMBER, ROW_PROBLEM
from bansong.engine.overlays import StatusOverlay
from bansong.engine.registry import STATUS_SCHEMA
from bansong.reference.fetch import StatusFetch, fetch_statuses, load_nts_key
from bansong.reference.status_store import STATUS_FILE, find_status_store

STATUS_FETCH_STOPPED: Final = Problem(
    "nts.status_fetch_stopped", "stopped while statuses were fetched; the same call goes on: {halt}"
)
STATUS_KEY_REFUSED: Final = Problem("nts.status_key_refused", "{halt}; nothing was written")

_MAX_AGE_DAYS: Final = 100_000.0  # limits the subtraction to valid dates


@dataclass(frozen=True, slots=True)
class RunStatuses:
    """Statuses of a run, and the report of their fetch."""

    overlay: StatusOverlay
    fetch: StatusFetch
    day: date  # in Korea
    planned: bool = False  # nothing was fetched: `fetch` counts what would be

    def as_dict(self) -> dict[str, Any]:
        found = asdict(self.fetch)
        oldest = self.fetch.oldest.isoformat() if self.fetch.oldest else None
        return found | {"oldest": oldest, "day": self.day.isoformat(), "seconds": round(self.fetch.seconds, 3)}

    @property
    def notes(self) -> tuple[str, ...]:
        problems = self.fetch.problems.items()
        return tuple(
            Phrase(
                "in the tax authority's answers: {what} ({count:,} time)",
                "in the tax authority's answers: {what} ({count:,} times)",
                count=count,
                what=Phrase(what),
            )
            for what, count in problems
        )

    def lines(self) -> list[tuple[str, str]]:
        stored = gettext_of(self.fetch, "{from_store:,} from the status store")
        if not self.planned:
            return [(gettext("asked nts"), join_clauses(str(self.fetch), stored))]
        free = ngettext(
            "{count:,} number, at no cost; {stored}",
            "{count:,} numbers, at no cost; {stored}",
            self.fetch.left,
            stored=stored,
        )
        return [(gettext("would ask nts"), free)]


class StatusProvider(Protocol):
    """A source of newer statuses than a registry; if it cannot be reached, the fetch has a ``halt``."""

    def check(self) -> None:
        """Raise :class:`UsageError` if the source cannot be used, for example without a key."""

    def files(self) -> dict[str, Path | None]:
        """Return the files of the source by description; no output may replace them."""

    def plan(self, numbers: pl.Series, today: date) -> StatusFetch:
        """Return the counts of a fetch, without making requests."""

    async def fetch(
        self,
        numbers: pl.Series,
        *,
        watch: Callable[[StatusFetch], None] | None = None,
        cancel: CancelToken,
        today: Callable[[], date],
    ) -> StatusFetch:
        """Fetch stale statuses, and store all that came, even if the fetch is cancelled."""

    def read(self, numbers: pl.Series, aged_before: date | None = None) -> StatusOverlay:
        """Return the stored statuses; those from before ``aged_before`` show their age in the reasons."""


@dataclass(frozen=True, slots=True)
class TaxAuthority:
    """The tax authority as a source of statuses: its API, and the status store."""

    options: StatusOptions

    def check(self) -> None:
        load_nts_key(self.options)

    def files(self) -> dict[str, Path | None]:
        key = self.options.key_file or variable(ENV_NTS_KEY_FILE)
        return {
            gettext("status store"): STATUS_FILE.find(self.options.store),
            gettext("NTS key file"): Path(key) if key else None,
        }

    def plan(self, numbers: pl.Series, today: date) -> StatusFetch:
        fetch = StatusFetch(numbers=len(numbers), left=len(numbers))
        if (store := find_status_store(self.options.store)) is not None:
            with store:
                fetch.left = store.stale(numbers, self.options.max_age, today).height
                fetch.unanswered = len(store.find_unanswered(numbers, today))
                fetch.oldest = store.oldest(numbers)
        fetch.from_store = fetch.numbers - fetch.left - fetch.unanswered
        return fetch

    async def fetch(
        self,
        numbers: pl.Series,
        *,
        watch: Callable[[StatusFetch], None] | None = None,
        cancel: CancelToken,
        today: Callable[[], date],
    ) -> StatusFetch:
        return await fetch_statuses(numbers, self.options, watch=watch, cancel=cancel, today=today)

    def read(self, numbers: pl.Series, aged_before: date | None = None) -> StatusOverlay:
        store = find_status_store(self.options.store)
        if store is None:
            return StatusOverlay(pl.DataFrame(schema=STATUS_SCHEMA), aged_before=aged_before)
        with store:
            return StatusOverlay(store.read(numbers), aged_before=aged_before)


SOURCES: Final[Mapping[str, Callable[[StatusOptions], StatusProvider]]] = {"auto": TaxAuthority, "nts": TaxAuthority}


def open_source(options: StatusOptions) -> StatusProvider:
    """Return the status source that the options name."""
    return SOURCES[options.source](options)


def plan_statuses(rows: pl.LazyFrame, options: StatusOptions) -> RunStatuses:
    """Return the stored statuses of a run's rows, and how many numbers would be fetched."""
    source, day = open_source(options), seoul_day()
    source.check()
    numbers = numbers_of(rows)
    return RunStatuses(source.read(numbers), source.plan(numbers, day), day, planned=True)


def fetch_for_rows(
    rows: pl.LazyFrame,
    options: StatusOptions,
    *,
    watch: Callable[[StatusFetch], None] | None = None,
    cancel: CancelToken | None = None,
    today: Callable[[], date] = seoul_day,
) -> RunStatuses:
    """Fetch the stale statuses of a run's rows; return all stored ones."""
    # if the source fails, stored statuses show their age; a refused key is an error only if the source was named
    source, token = open_source(options), cancel or CancelToken()
    source.check()
    numbers = numbers_of(rows)
    fetch = run_async(lambda: source.fetch(numbers, watch=watch, cancel=token, today=today), token)
    if fetch.exit_code == StoppedError.exit_code:
        raise StoppedError(STATUS_FETCH_STOPPED, halt=fetch.halt)
    if fetch.exit_code == AuthenticationError.exit_code and options.source != "auto":
        raise AuthenticationError(STATUS_KEY_REFUSED, halt=fetch.halt)
    day = today()
    # if not all numbers could be asked, every status that is not of today shows its age, also of a fresh registry
    aged_before = day if fetch.halt is not None else fresh_since(options.max_age, day)
    return RunStatuses(source.read(numbers, aged_before), fetch, day)


def fresh_since(max_age: float, day: date) -> date:
    """Return the first day whose statuses are at most ``max_age`` days old on ``day``."""
    return day - timedelta(days=floor(min(max_age, _MAX_AGE_DAYS)))


def numbers_of(rows: pl.LazyFrame) -> pl.Series:
    """Return the distinct usable numbers of rows (UInt64, sorted), even with a wrong check digit."""
    if NUMBER not in rows.collect_schema().names():
        return pl.Series(NUMBER, dtype=pl.UInt64)
    usable = pl.col(NUMBER).is_not_null() & pl.col(ROW_PROBLEM).is_null()
    return rows.filter(usable).select(pl.col(NUMBER).unique()).collect(engine="streaming").to_series().sort()
