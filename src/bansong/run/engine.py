"""What a run asks of an engine, whoever it is; and the local engine in that part."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import polars as pl

from bansong.options import ENGINE_KINDS, EngineKind
from bansong.progress.display import Progress
from bansong.run.alerts import registry_alerts
from bansong.run.records import ROW_ID
from bansong.translation import Phrase

if TYPE_CHECKING:
    from bansong.cancellation import CancelToken
    from bansong.engine import LocalEngine
    from bansong.engine.status_overlay import StatusOverlay


@dataclass(frozen=True, slots=True)
class QuotaStatus:
    """What ``/me`` said of the monthly quota, in lookups; ``None`` where it did not say."""

    limit: int | None
    used: int | None
    remaining: int | None


@dataclass(frozen=True, slots=True)
class Agreement:
    """How the local engine and the service agree on the rows that both answered (hybrid).

    ``status_known``: rows whose status both know, ``status_same``: those where it is the same; ``action_same``: rows
    with the same action; ``prob_apart``: the mean distance of the two probabilities, ``None`` where there is none.
    """

    rows: int
    status_known: int
    status_same: int
    action_same: int
    prob_apart: float | None


@dataclass(frozen=True, slots=True)
class Purchase:
    """What a run bought, or would buy.

    Of the lookups, ``cached`` were in the ledger, ``running`` in uploads of earlier runs, ``held`` asked once without
    an answer, and ``wanted`` missing, of which ``chosen`` were to be bought. ``paid``: lookups the service took in this
    run; ``fetched``: answers out of uploads; ``doubts``: requests whose answer is not known, ``doubts_found``: those
    that a killed run had left; ``repeated``: requests sent again with the key they had. ``rate``: requests per second
    reached. ``paused``: why the run ended before all that was chosen was bought.
    """

    ledger: str
    ledger_created: bool
    cached: int
    running: int
    held: int
    wanted: int
    chosen: int
    paid: int = 0
    fetched: int = 0
    doubts: int = 0
    doubts_found: int = 0
    requests: int = 0
    retries: int = 0
    repeated: int = 0
    rate: float | None = None
    seconds: float = 0.0
    before: QuotaStatus | None = None
    after: QuotaStatus | None = None
    paused: str | None = None
    notes: tuple[str, ...] = ()
    agreement: Agreement | None = None

    @property
    def known(self) -> int:
        """Lookups that the ledger knew before: answered, under way, or held."""
        return self.cached + self.running + self.held

    def as_dict(self) -> dict[str, object]:
        """The purchase as plain values for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class RunContext:
    """The run that an engine answers for.

    ``file``: what its input is called; ``rows``: how many there are, where that is counted; ``priority``: the column of
    the rows that orders what is bought; ``resources``: closed when the answers have been written. ``unix_time``: the
    time in seconds since 1970, by which the age of stored answers is told.
    """

    file: str
    run_id: str
    rows: int = 0
    priority: str | None = None
    progress: Progress | None = None
    cancel: CancelToken | None = None
    resources: ExitStack = field(default_factory=ExitStack)
    unix_time: Callable[[], float] = time.time


class Engine(Protocol):
    """Who answers the rows of a run: plans what is to be asked, answers, and says what that costs.

    Rows are those of :func:`bansong.run.records.records`. ``local`` is the local engine that it answers with or
    chooses by; ``priority`` the header of the column that orders what is bought.
    """

    @property
    def kind(self) -> EngineKind:
        """What all engines of its name have in common."""

    @property
    def local(self) -> LocalEngine:
        """The local engine that it answers with, or that it chooses by."""

    @property
    def priority(self) -> str | None:
        """The header of the column that orders what is bought."""

    def with_history(self, history: pl.LazyFrame | None) -> Engine:
        """Return this engine with what is known of earlier letters, unless its local engine has a history already."""

    def with_status(self, status: StatusOverlay) -> Engine:
        """Return this engine with statuses laid over the registry of its local engine.

        Called only where the local engine answers and the run asks the tax authority.
        """

    def files(self) -> Mapping[str, Path | None]:
        """The files that it reads or keeps, by what they are: no output may replace one."""

    def prepare(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """Add to the rows what it answers them by."""

    def quote(self, rows: pl.LazyFrame, context: RunContext) -> Purchase | None:
        """Return what prepared rows would cost; ``None`` for an engine that never costs anything. Spends nothing."""

    def answer(self, rows: pl.LazyFrame, context: RunContext) -> tuple[pl.LazyFrame, Purchase | None]:
        """Add the nine columns to prepared rows; return them with what that has cost."""

    def counts(self) -> tuple[pl.Expr, ...]:
        """Aggregations over answered rows, which the run takes while they are written."""

    def agreement(self, tallied: Mapping[str, Any]) -> Agreement | None:
        """Return how the local engine and the service agree, from :meth:`counts`; ``None`` unless both answer."""

    def hints(self, *, planned: bool) -> tuple[str, ...]:
        """Return what registry and gazetteer, given or not, mean for a run, where that may be a surprise.

        ``planned``: no row is answered, so nothing else says that no status is checked.
        """


Answering = Callable[[pl.LazyFrame, RunContext], pl.LazyFrame]
"""Adds the nine columns to the prepared rows of one table, of all those that were obtained together."""


@runtime_checkable
class JointEngine(Engine, Protocol):
    """An engine that obtains the answers for the rows of several tables together, so that nothing is paid twice."""

    def obtain(self, rows: pl.LazyFrame, context: RunContext) -> tuple[Answering, Purchase | None]:
        """Buy what the prepared rows of all tables ask for; return how each table is answered, and what that cost."""


@dataclass(frozen=True, slots=True)
class LocalEngineAdapter:
    """The local engine as a run's :class:`Engine`."""

    local: LocalEngine
    kind: EngineKind = ENGINE_KINDS["local"]
    priority: str | None = None

    def with_history(self, history: pl.LazyFrame | None) -> LocalEngineAdapter:
        """See :meth:`Engine.with_history`."""
        return LocalEngineAdapter(self.local.with_history(history))

    def with_status(self, status: StatusOverlay) -> LocalEngineAdapter:
        """See :meth:`Engine.with_status`."""
        return LocalEngineAdapter(self.local.with_status(status))

    def files(self) -> Mapping[str, Path | None]:
        """Its registry and its gazetteer."""
        return local_files(self.local)

    def prepare(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """Return the rows as they are."""
        return rows

    def quote(self, rows: pl.LazyFrame, context: RunContext) -> None:
        """Return ``None``: it costs nothing."""

    def answer(self, rows: pl.LazyFrame, context: RunContext) -> tuple[pl.LazyFrame, None]:
        """Add the nine columns; nothing is computed before the rows are collected."""
        if context.progress is not None:
            rows = rows.with_columns(_row_ids_with_progress(context.progress, context.rows))
        return self.local.answer(rows), None

    def obtain(self, rows: pl.LazyFrame, context: RunContext) -> tuple[Answering, None]:  # noqa: ARG002 - the protocol's
        """Return how a table is answered: nothing is to be bought first."""
        return lambda table, of_table: self.answer(table, of_table)[0], None

    def counts(self) -> tuple[pl.Expr, ...]:
        """See :meth:`bansong.engine.LocalEngine.counts`."""
        return self.local.counts()

    def agreement(self, tallied: Mapping[str, Any]) -> None:
        """Return ``None``: there is only one answer."""

    def hints(self, *, planned: bool) -> tuple[str, ...]:
        """Say that a plan has no registry, or one that is too old."""
        return registry_alerts(self.local, Phrase("no row will say `send`") if planned else None, planned=planned)


def local_files(local: LocalEngine) -> dict[str, Path | None]:
    """Return the files of a local engine by what they are."""
    indexes = {"registry": local.registry, "statuses": local.status, "gazetteer": local.gazetteer}
    return {name: index.path if index is not None else None for name, index in indexes.items()}


def _row_ids_with_progress(progress: Progress, total: int) -> pl.Expr:
    """Return the row numbers, reporting how many have passed; polars may call from several threads at once."""
    lock, done = threading.Lock(), 0

    def count(row_ids: pl.Series) -> pl.Series:
        nonlocal done
        with lock:
            done += len(row_ids)
            progress(done, total)
        return row_ids

    return pl.col(ROW_ID).map_batches(count, return_dtype=pl.get_index_type(), is_elementwise=True)
