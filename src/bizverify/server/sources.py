"""Where the status of a business comes from: the seam for sources that ask elsewhere while they answer."""

from __future__ import annotations

from typing import Protocol

import polars as pl

from bizverify.engine import LocalEngine


class StatusSource(Protocol):
    """Answers rows with an engine, and with statuses that the source knows better than the engine's registry."""

    @property
    def live(self) -> bool:
        """Whether it asks over the network, which ``offline`` forbids."""

    def answer(self, engine: LocalEngine, rows: pl.LazyFrame) -> pl.LazyFrame:
        """Do what :meth:`bizverify.engine.LocalEngine.answer` does; called in a thread."""


class Snapshot:
    """The engine's own registry: what was known when its file was built."""

    live = False

    def answer(self, engine: LocalEngine, rows: pl.LazyFrame) -> pl.LazyFrame:
        """Answer from the registry alone."""
        return engine.answer(rows)


class Sources:
    """The sources of a server, the best first; the snapshot is always there, and comes last."""

    def __init__(self, *better: StatusSource) -> None:
        self._sources: tuple[StatusSource, ...] = (*better, Snapshot())

    def source(self, *, offline: bool) -> StatusSource:
        """The best source that may be asked."""
        return next(source for source in self._sources if not (offline and source.live))
