"""Registries from fetched statuses: for the numbers of a list, or a refreshed one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import polars as pl

from bansong.cancellation import CancelToken, run_async
from bansong.engine.registry import ATTACHED_MORE, SCHEMA, Registry
from bansong.engine.risk.reason_texts import BY_NTS
from bansong.engine.status_overlay import StatusOverlay
from bansong.errors import AuthenticationError
from bansong.options import StatusOptions
from bansong.reference.registry_builder import publish_registry, read_about
from bansong.reference.source_files import format_counts
from bansong.reference.status_fetch import StatusFetch, fetch_statuses
from bansong.reference.status_store import StatusStore
from bansong.translation import gettext, gettext_of

SOURCE: Final = "nts"
"""Name of the tax authority's API in a registry's list of sources."""
Watch = Callable[[StatusFetch], None]


@dataclass(frozen=True, slots=True)
class FetchedRegistry:
    """A fetch and the registry written from it.

    ``output`` is ``None`` if nothing new could be written; ``updated``: businesses with a status of another day.
    """

    fetch: StatusFetch
    output: str | None = None
    version: str | None = None
    businesses: int = 0
    by_status: dict[str, int] | None = None
    updated: int = 0

    @property
    def exit_code(self) -> int:
        """0 if all is fresh, 4 for a refused key, 5 if the run is to go on later."""
        return self.fetch.exit_code

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain values for JSON."""
        return asdict(self)

    def lines(self) -> list[tuple[str, str]]:
        """Return the report as (what, how much) for people."""
        return list(self._describe())

    def _describe(self) -> Iterator[tuple[str, str]]:
        fetch = self.fetch
        yield gettext("numbers"), gettext_of(fetch, "{numbers:,}, {from_store:,} of them fresh before")
        yield gettext("asked nts"), str(fetch)
        if fetch.budget_left is not None:
            yield gettext("budget left"), gettext("{numbers:,} numbers today", numbers=fetch.budget_left)
        for problem, count in fetch.problems.items():
            yield gettext("passed over"), gettext("{rows:,} rows: {problem}", rows=count, problem=gettext(problem))
        if fetch.oldest is not None:
            yield gettext("oldest status"), str(fetch.oldest)
        if self.by_status is not None:
            yield gettext("businesses"), f"{self.businesses:,} ({format_counts(self.by_status)})"
        if fetch.halt is not None:
            is_refused = fetch.exit_code == AuthenticationError.exit_code
            yield gettext("refused") if is_refused else gettext("paused"), fetch.halt
        yield gettext("output"), self.output or gettext("nothing was written")


def fetch_registry(
    numbers: pl.Series, output: Path, sources: Sequence[str], options: StatusOptions, *, watch: Watch | None = None
) -> FetchedRegistry:
    """Fetch stale statuses of ``numbers`` (UInt64), and write all stored ones as a registry.

    ``sources``: names of the files with the numbers. A run that ended early writes what is known.
    """
    fetch = _fetch(numbers, None, options, watch)
    with StatusStore(options.store) as store:
        found = store.read(numbers.unique()).sort("b_no")
    if found.is_empty():
        return FetchedRegistry(fetch)
    return _publish(found, output, [*sources, SOURCE], fetch, found.height)


def refresh_registry(path: Path, options: StatusOptions, *, watch: Watch | None = None) -> FetchedRegistry:
    """Ask for the numbers of a registry with the oldest statuses, and replace its file in one step.

    Name, day of opening and a taxation that the tax authority does not say stay.
    """
    registry = Registry.open(path)
    registry.check()
    before = pl.read_parquet(path, columns=["b_no", "as_of"], glob=False)
    fetch = _fetch(before["b_no"], before, options, watch)
    with StatusStore(options.store) as store:
        overlay = StatusOverlay(store.read(before["b_no"]))
    merged = overlay.attach(before.lazy().select("b_no"), "b_no", registry).drop(BY_NTS.values()).collect()
    merged = merged.rename({ours: theirs for theirs, ours in ATTACHED_MORE.items()}, strict=False)
    merged = merged.select(*SCHEMA, *(name for name in ATTACHED_MORE if name in merged.columns))
    updated = int((merged["as_of"].ne_missing(before["as_of"])).sum())
    if not updated:
        return FetchedRegistry(fetch)
    sources = [str(source) for source in read_about(path).get("sources", []) if source != SOURCE]
    return _publish(merged, path, [*sources, SOURCE], fetch, updated)


def _fetch(numbers: pl.Series, known: pl.DataFrame | None, options: StatusOptions, watch: Watch | None) -> StatusFetch:
    """Run :func:`fetch_statuses` from blocking code; Ctrl-C waits for open calls."""
    token = CancelToken()
    seen: list[StatusFetch] = []

    def watch_all(report: StatusFetch) -> None:
        seen[:] = [report]
        if watch is not None:
            watch(report)

    try:
        return run_async(lambda: fetch_statuses(numbers, options, known=known, watch=watch_all, cancel=token), token)
    except KeyboardInterrupt:
        answered = seen[0].answered if seen else 0
        note = gettext("{answered:,} statuses of this run are stored; the same command goes on", answered=answered)
        raise KeyboardInterrupt(note) from None


def _publish(
    found: pl.DataFrame, output: Path, sources: Sequence[str], fetch: StatusFetch, updated: int
) -> FetchedRegistry:
    version, written = publish_registry(found, output, sources)
    return FetchedRegistry(
        fetch,
        str(output),
        version,
        found.height,
        {status: count for status, count in written["by_status"].items() if count},
        updated,
    )
