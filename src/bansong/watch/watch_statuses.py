"""The statuses of a check of a local list: asked of the tax authority for what is due, and stored."""

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
from bansong.engine import LocalEngine, Registry
from bansong.engine.status_overlay import StatusOverlay
from bansong.errors import StoreError
from bansong.options import StatusOptions, StatusSource
from bansong.reference.status_fetch import StatusFetch, fetch_statuses, load_nts_key
from bansong.reference.status_store import StatusStore
from bansong.schema import SEOUL
from bansong.storage.sqlite import is_in_use
from bansong.translation import Phrase

log = logging.getLogger(__name__)

_PAUSED: Final = 5
_LONGEST: Final = 100_000.0
"""Days; a status may be older than that, but no date is."""


def open_watch_statuses(status: StatusSource | StatusOptions, now: Callable[[], float]) -> WatchStatuses | None:
    """Return the statuses of a check, ``None`` where the tax authority is not asked.

    ``status``: as for :func:`bansong.watch.check`. Raises :class:`bansong.errors.UsageError` where there is no key.
    """
    options = status if isinstance(status, StatusOptions) else StatusOptions(source=status, max_age=0)
    if not options.is_asking:
        return None
    return WatchStatuses(replace(options, key=load_nts_key(options)), now)


@dataclass
class WatchStatuses:
    """What the tax authority tells during one check; ``now`` returns seconds since 1970."""

    options: StatusOptions
    now: Callable[[], float]
    _halted: list[StatusFetch] = field(default_factory=list, init=False)

    def give_to(self, engine: LocalEngine, numbers: pl.Series) -> LocalEngine:
        """Ask for numbers (ten digits), and return the engine with what is known of them.

        An outage is no error: what is stored goes on to count. Neither is a store that another process holds for long:
        the engine's registry alone counts, and what was known of a watch stays. Raises
        :class:`bansong.errors.StoreError` for one that cannot be used otherwise.
        """
        keys = numbers.cast(pl.UInt64).unique()
        try:
            return engine.with_status(self._fetch(keys))
        except StoreError as error:
            if not is_in_use(error):
                raise
            self._halted.append(StatusFetch(numbers=len(keys), left=len(keys), halt=str(error), exit_code=_PAUSED))
            return engine

    def _fetch(self, keys: pl.Series) -> StatusOverlay:
        """Ask for numbers (UInt64), and return what is stored of them."""
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
        """How many numbers were due and could not be asked."""
        return sum(fetch.unasked for fetch in self._halted)

    @property
    def exit_code(self) -> int:
        """0, 3 for a refused key, or 5 where the next check asks."""
        return min((fetch.run_exit_code for fetch in self._halted), default=0)

    def caution(self, registry: Registry | None) -> str | None:
        """Return what is to be said where not all was asked that should have been; ``None`` where it was."""
        if not self._halted:
            return None
        days = [fetch.oldest for fetch in self._halted if fetch.oldest is not None]
        known = []
        if days:
            age = (self._day() - min(days)).days
            known.append(
                Phrase(
                    "the status store, whose oldest status is of {days} ({age} ago)",
                    days=min(days),
                    age=Phrase("{count:,} day", "{count:,} days", count=age),
                )
            )
        if registry is not None:
            known.append(Phrase("the registry {version}", version=registry.version))
        left = Phrase("{count:,} number", "{count:,} numbers", count=self.unasked)
        by_what = (
            Phrase("judged by {names}", names=Phrase(" and ").join(known))
            if known
            else Phrase("not judged: nothing is known of their status")
        )
        return Phrase(
            "{left} could not be asked of the tax authority and {by_what}: {halt}",
            left=left,
            by_what=by_what,
            halt=self._halted[0].halt,
        )

    def _day(self) -> date:
        return datetime.fromtimestamp(self.now(), SEOUL).date()
