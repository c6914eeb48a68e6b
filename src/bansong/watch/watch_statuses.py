"""Statuses of a check of a local list: asked of the tax authority, and stored."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from functools import partial
from math import floor
from typing import Final

import polars as pl

from bansong.cancellation import CancelToken, run_async
from bansong.engine import Known, LocalEngine, Registry
from bansong.engine.status_overlay import StatusOverlay
from bansong.errors import StoreError
from bansong.options import StatusOptions, StatusSource
from bansong.reference.status_fetch import StatusFetch, fetch_statuses, load_nts_key
from bansong.reference.status_store import StatusStore
from bansong.schema import SEOUL
from bansong.storage.sqlite import is_in_use
from bansong.translation import Listed, Phrase, gettext_noop, gettext_of

log = logging.getLogger(__name__)
_PAUSED_EXIT_CODE: Final = 5
_LONGEST: Final = 100_000.0
"""Days; a longer age would be before the first date."""


def open_watch_statuses(status: StatusSource | StatusOptions, now: Callable[[], float]) -> WatchStatuses | None:
    """Return the statuses of a check, ``None`` if the tax authority is not asked.

    Raises :class:`bansong.errors.UsageError` without a key.
    """
    options = status if isinstance(status, StatusOptions) else StatusOptions(source=status, max_age=0)
    if not options.is_asking:
        return None
    return WatchStatuses(replace(options, key=load_nts_key(options)), now)


@dataclass
class WatchStatuses:
    """Statuses asked during one check; ``now`` returns seconds since 1970."""

    options: StatusOptions
    now: Callable[[], float]
    _halted: list[StatusFetch] = field(default_factory=list, init=False)

    def give_to(self, engine: LocalEngine, numbers: pl.Series) -> LocalEngine:
        """Ask for numbers (ten digits); return the engine with their statuses.

        If the API fails, stored statuses count; if another process holds the store for long, the engine's registry
        alone. Raises :class:`bansong.errors.StoreError` for a store that cannot be used otherwise.
        """
        keys = numbers.cast(pl.UInt64).unique()
        try:
            return engine.with_known(Known(statuses=self._fetch(keys)))
        except StoreError as error:
            if not is_in_use(error):
                raise
            self._halted.append(
                StatusFetch(numbers=len(keys), left=len(keys), halt=str(error), exit_code=_PAUSED_EXIT_CODE)
            )
            return engine

    def _fetch(self, keys: pl.Series) -> StatusOverlay:
        token = CancelToken()
        fetch = run_async(partial(fetch_statuses, keys, self.options, cancel=token, today=self._day), token)
        log.info("asked the tax authority: %s", fetch)
        if fetch.halt is not None:
            self._halted.append(fetch)
        with StatusStore(self.options.store) as store:
            aged_before = self._day() - timedelta(days=floor(min(self.options.max_age, _LONGEST)))
            return StatusOverlay(store.read(keys), aged_before=aged_before)

    @property
    def unasked(self) -> int:
        """Due numbers that could not be asked."""
        return sum(fetch.unasked for fetch in self._halted)

    @property
    def exit_code(self) -> int:
        """0, 3 for a refused key, or 5 if the next check asks."""
        return min((fetch.run_exit_code for fetch in self._halted), default=0)

    def caution(self, registry: Registry | None) -> str | None:
        """Return a warning if not all due statuses could be asked."""
        if not self._halted:
            return None
        days = [fetch.oldest for fetch in self._halted if fetch.oldest is not None]
        known = []
        if days:
            age = Phrase("{count:,} day", "{count:,} days", count=(self._day() - min(days)).days)
            about = {"days": min(days), "age": age}
            known.append(Phrase("the status store, whose oldest status is of {days} ({age} ago)", **about))
        if registry is not None:
            known.append(gettext_of(registry, "the registry {version}"))
        left = Phrase("{count:,} number", "{count:,} numbers", count=self.unasked)
        names = Listed(known, gettext_noop(" and "))
        unknown = Phrase("not judged: nothing is known of their status")
        return Phrase(
            "{left} could not be asked of the tax authority and {by_what}: {halt}",
            left=left,
            by_what=Phrase("judged by {names}", names=names) if known else unknown,
            halt=self._halted[0].halt,
        )

    def _day(self) -> date:
        return datetime.fromtimestamp(self.now(), SEOUL).date()
