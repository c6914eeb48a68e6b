"""The statuses of a run's numbers: fetched if stale, and laid over the registry of its engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import date, timedelta
from math import floor
from pathlib import Path
from typing import Any, Final

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
from bansong.reference.status_store import STATUS_FILE, StatusStore, find_status_store

STATUS_FETCH_STOPPED: Final = Problem(
    "nts.status_fetch_stopped", "stopped while statuses were fetched; the same call goes on: {halt}"
)
STATUS_KEY_REFUSED: Final = Problem("nts.status_key_refused", "{halt}; nothing was written")


@dataclass(frozen=True, slots=True)
class RunStatuses:
    """Statuses of a run on a ``day`` in Korea, and their fetch; of a ``planned`` run, what would be asked."""

    overlay: StatusOverlay
    fetch: StatusFetch
    day: date
    planned: bool = False

    def as_dict(self) -> dict[str, Any]:
        found = asdict(self.fetch)
        oldest = self.fetch.oldest.isoformat() if self.fetch.oldest else None
        return found | {"oldest": oldest, "day": self.day.isoformat(), "seconds": round(self.fetch.seconds, 3)}

    @property
    def notes(self) -> tuple[str, ...]:
        """Problems of replies, a sentence each."""
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


def status_files(options: StatusOptions) -> dict[str, Path | None]:
    """Return the files of a fetch by description: no output may replace one."""
    key = options.key_file or variable(ENV_NTS_KEY_FILE)
    return {
        gettext("status store"): STATUS_FILE.find(options.store),
        gettext("NTS key file"): Path(key) if key else None,
    }


def plan_statuses(rows: pl.LazyFrame, options: StatusOptions) -> RunStatuses:
    """Return stored statuses of a run's rows, and how many would be asked; nothing is asked."""
    load_nts_key(options)
    numbers, day = numbers_of(rows), seoul_day()
    fetch, stored = StatusFetch(numbers=len(numbers), left=len(numbers)), pl.DataFrame(schema=STATUS_SCHEMA)
    store = find_status_store(options.store)
    if store is not None:
        with store:
            stored = store.read(numbers)
            fetch.left = store.stale(numbers, options.max_age, day).height
            fetch.unanswered = len(store.find_unanswered(numbers, day))
            fetch.oldest = stored.select(pl.col("as_of").min()).item()
    fetch.from_store = fetch.numbers - fetch.left - fetch.unanswered
    return RunStatuses(StatusOverlay(stored), fetch, day, planned=True)


def fetch_for_rows(
    rows: pl.LazyFrame,
    options: StatusOptions,
    *,
    watch: Callable[[StatusFetch], None] | None = None,
    cancel: CancelToken | None = None,
    today: Callable[[], date] = seoul_day,
) -> RunStatuses:
    """Ask the tax authority for stale statuses of a run's rows; return all known ones.

    If the API fails, stored statuses are used with their age. A refused key is an error only if ``options.source`` is
    ``nts``. Answers are stored, also when the run is stopped.
    """
    load_nts_key(options)
    numbers, token = numbers_of(rows), cancel or CancelToken()
    fetch = run_async(lambda: fetch_statuses(numbers, options, watch=watch, cancel=token, today=today), token)
    if fetch.exit_code == StoppedError.exit_code:
        raise StoppedError(STATUS_FETCH_STOPPED, halt=fetch.halt)
    if fetch.exit_code == AuthenticationError.exit_code and options.source == "nts":
        raise AuthenticationError(STATUS_KEY_REFUSED, halt=fetch.halt)
    day = today()
    # where not all could be asked, whatever is not of today rests on an older look, a fresh registry too
    aged_before = day if fetch.halt is not None else day - timedelta(days=floor(options.max_age))
    with StatusStore(options.store) as store:
        overlay = StatusOverlay(store.read(numbers), aged_before=aged_before)
    return RunStatuses(overlay, fetch, day)


def numbers_of(rows: pl.LazyFrame) -> pl.Series:
    """Return the distinct usable numbers of rows (UInt64, sorted), whatever their check digit."""
    if NUMBER not in rows.collect_schema().names():
        return pl.Series(NUMBER, dtype=pl.UInt64)
    usable = pl.col(NUMBER).is_not_null() & pl.col(ROW_PROBLEM).is_null()
    return rows.filter(usable).select(pl.col(NUMBER).unique()).collect(engine="streaming").to_series().sort()
