"""Interface of engines for a run, and the local engine behind it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

import polars as pl

from bansong.base.display import Progress
from bansong.base.messages import Phrase
from bansong.base.options import ENGINE_KINDS, EngineKind
from bansong.engine.address.batches import gather_rows
from bansong.engine.local import registry_alerts
from bansong.engine.records import ROW_ID

if TYPE_CHECKING:
    from bansong.base.cancel import CancelToken
    from bansong.engine.local import Known, LocalEngine


@dataclass(frozen=True, slots=True)
class QuotaStatus:
    """The monthly quota of ``/me``, in lookups; ``None`` where unknown."""

    limit: int | None
    used: int | None
    remaining: int | None


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement of the local engine and the service on rows that both answered (hybrid)."""

    rows: int
    status_known: int  # by both
    status_same: int
    action_same: int
    prob_apart: float | None  # mean distance of the two probabilities


@dataclass(frozen=True, slots=True)
class Purchase:
    """Lookups that a run bought, or that a plan would buy."""

    ledger: str
    ledger_created: bool
    cached: int  # lookups with an answer in the ledger
    running: int  # lookups in uploads of earlier runs
    held: int  # lookups asked once without an answer
    wanted: int  # lookups not in the ledger
    chosen: int  # of the wanted ones
    paid: int = 0  # lookups that the service took in this run
    fetched: int = 0  # answers out of uploads
    doubts: int = 0  # requests with an unknown answer
    doubts_found: int = 0  # those left by a killed run
    requests: int = 0
    retries: int = 0
    repeated: int = 0  # requests sent again with the same key
    rate: float | None = None  # requests per second
    seconds: float = 0.0
    before: QuotaStatus | None = None
    after: QuotaStatus | None = None
    paused: str | None = None  # reason for an early end
    notes: tuple[str, ...] = ()
    agreement: Agreement | None = None

    @property
    def known(self) -> int:
        """Lookups in the ledger before the run: answered, under way, or held."""
        return self.cached + self.running + self.held


@dataclass(frozen=True, slots=True)
class Records:
    """The records of a run: the rows of :func:`bansong.engine.records.records`, of one table or of several."""

    rows: pl.LazyFrame
    count: int = 0  # 0 if not counted
    priority: str | None = None  # column that orders purchases


@dataclass(frozen=True, slots=True)
class RunContext:
    """The run that an engine answers for."""

    file: str  # name of its input in the ledger
    run_id: str
    progress: Progress | None = None
    cancel: CancelToken | None = None
    resources: ExitStack = field(default_factory=ExitStack)  # closed when the answers have been written
    unix_time: Callable[[], float] = time.time  # for the age of stored answers


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers to the records of a run."""

    of: Callable[[pl.LazyFrame], pl.LazyFrame]  # adds the nine columns to prepared rows of one table, lazily
    purchase: Purchase | None = None  # `None` for an engine that buys nothing


class Engine(Protocol):
    """Answers the rows of a run.

    A run calls :meth:`with_known`, :meth:`prepare`, then :meth:`quote` or :meth:`answer`; each table is written with
    the :class:`Answers`.
    """

    @property
    def kind(self) -> EngineKind:
        """Properties shared by all engines of its name."""

    @property
    def local(self) -> LocalEngine:
        """The local engine that answers, or that orders purchases."""

    @property
    def priority(self) -> str | None:
        """The header of the column that orders purchases."""

    def with_known(self, known: Known) -> Engine:
        """Return this engine with earlier letters, statuses and choices; those that it has already stay."""

    def files(self) -> Mapping[str, Path | None]:
        """The files that it reads or keeps, by their use: no output may replace one."""

    def prepare(self, records: Records) -> Records:
        """Add the columns by which the engine answers."""

    def quote(self, records: Records, context: RunContext) -> Purchase | None:
        """Return what buying the answers would cost; ``None`` for the local engine. Nothing is spent."""

    def answer(self, records: Records, context: RunContext) -> Answers:
        """Buy and return the answers to the prepared records of all tables; the local engine buys nothing."""

    def counts(self) -> tuple[pl.Expr, ...]:
        """Aggregations over answered rows, collected while they are written."""

    def agreement(self, tallied: Mapping[str, Any]) -> Agreement | None:
        """Return how the local engine and the service agree, from :meth:`counts`; ``None`` unless both answer."""

    def hints(self, *, planned: bool) -> tuple[str, ...]:
        """Return alerts about a missing or old registry or gazetteer; ``planned``: no row is answered."""


_ONE_BATCH: Final = 20_000  # rows; a query for gathering costs more than it saves below


@dataclass(frozen=True, slots=True)
class LocalEngineAdapter:
    """The local engine as a run's :class:`Engine`."""

    local: LocalEngine
    kind: EngineKind = ENGINE_KINDS["local"]
    priority: str | None = None

    def with_known(self, known: Known) -> Self:
        return replace(self, local=self.local.with_known(known))

    def files(self) -> Mapping[str, Path | None]:
        return local_files(self.local)

    def prepare(self, records: Records) -> Records:
        return records

    def quote(self, records: Records, context: RunContext) -> None:
        """Return ``None``: the local engine costs nothing."""

    def answer(self, records: Records, context: RunContext) -> Answers:
        def answer(rows: pl.LazyFrame) -> pl.LazyFrame:
            if self.local.gazetteer is not None and not 0 < records.count <= _ONE_BATCH:
                rows = gather_rows(rows)
            if context.progress is not None:
                rows = rows.with_columns(_row_ids_with_progress(context.progress, records.count))
            return self.local.answer(rows)

        return Answers(answer)

    def counts(self) -> tuple[pl.Expr, ...]:
        return self.local.counts()

    def agreement(self, tallied: Mapping[str, Any]) -> None:
        """Return ``None``: there is only one answer."""

    def hints(self, *, planned: bool) -> tuple[str, ...]:
        return registry_alerts(self.local, Phrase("no row will say `send`") if planned else None, planned=planned)


def local_files(local: LocalEngine) -> dict[str, Path | None]:
    indexes = {"registry": local.registry, "statuses": local.status, "gazetteer": local.gazetteer}
    return {name: index.path if index is not None else None for name, index in indexes.items()}


def _row_ids_with_progress(progress: Progress, total: int) -> pl.Expr:
    lock, done = threading.Lock(), 0  # polars calls from several threads

    def count(row_ids: pl.Series) -> pl.Series:
        nonlocal done
        with lock:
            done += len(row_ids)
            progress(done, total)
        return row_ids

    return pl.col(ROW_ID).map_batches(count, return_dtype=pl.get_index_type(), is_elementwise=True)
