"""The interface that a run expects of its engine, and the local engine with that interface."""

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
from bansong.engine.address.batches import ROWS_AT_ONCE, gather_rows
from bansong.engine.local import registry_alerts, warm_up
from bansong.engine.records import ROW_ID

if TYPE_CHECKING:
    from bansong.base.cancel import CancelToken
    from bansong.engine.local import Known, LocalEngine

# names that engines which buy lookups add: a column of prepared rows, and counts
LOOKUP: Final = "lookup"  # a row's canonical record as one text; null where nothing may be asked
UNCHECKED_SENDS: Final = "unchecked_sends"
GARBLED: Final = "garbled"
GARBLED_FIRST: Final = "garbled_first"


@dataclass(frozen=True, slots=True)
class QuotaStatus:
    """The monthly quota that the service states at ``/me``, in lookups; ``None`` where unknown."""

    limit: int | None
    used: int | None
    remaining: int | None


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement of local engine and service on the rows that both answered, in the hybrid engine."""

    rows: int
    status_known: int  # rows whose status both know
    status_same: int
    action_same: int
    prob_apart: float | None  # mean difference of the two probabilities


@dataclass(frozen=True, slots=True)
class Purchase:
    """Lookups that a run bought, or that a plan would buy."""

    ledger: str
    ledger_created: bool
    cached: int  # lookups with an answer in the ledger
    running: int  # lookups in uploads of earlier runs
    held: int  # lookups asked once without an answer
    wanted: int  # lookups not in the ledger
    chosen: int  # wanted lookups within budget and quota
    paid: int = 0  # lookups that the service took in this run
    fetched: int = 0  # answers from uploads
    doubts: int = 0  # requests with an unknown answer
    doubts_found: int = 0  # requests that a killed run left without an answer
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
    """The records (``bansong.engine.records.records``) of a run, from one table or several."""

    rows: pl.LazyFrame
    count: int = 0  # 0 if not counted
    priority: str | None = None  # column that orders purchases


@dataclass(frozen=True, slots=True)
class RunContext:
    """What an engine needs to know about a run."""

    file: str  # name of the input in the ledger
    run_id: str
    progress: Progress | None = None
    cancel: CancelToken | None = None
    resources: ExitStack = field(default_factory=ExitStack)  # closed when the answers have been written
    unix_time: Callable[[], float] = time.time  # clock for the age of stored answers


@dataclass(frozen=True, slots=True)
class Answers:
    """A function that answers the records of a run, and the lookups bought for it."""

    of: Callable[[pl.LazyFrame], pl.LazyFrame]  # adds `ADDED_COLUMNS` to prepared rows of one table, lazily
    purchase: Purchase | None = None  # `None` for an engine that buys nothing


class Engine(Protocol):
    """The interface that a run expects of its engine.

    A run calls :meth:`with_known`, :meth:`prepare`, then :meth:`quote` or :meth:`answer`; the returned
    :class:`Answers` answer each table.
    """

    @property
    def kind(self) -> EngineKind:
        """Properties of all engines with this name."""

    @property
    def local(self) -> LocalEngine:
        """The local engine, which answers or decides which lookups are bought first."""

    @property
    def priority(self) -> str | None:
        """The header of the column that decides which lookups are bought first."""

    def with_known(self, known: Known) -> Engine:
        """Return a copy with earlier letters, statuses and choices, unless the engine has its own."""

    def files(self) -> Mapping[str, Path | None]:
        """Return the files of the engine by use (such as ``registry``); no output may overwrite them."""

    def prepare(self, records: Records) -> Records:
        """Add the columns that the engine needs to answer."""

    def quote(self, records: Records, context: RunContext) -> Purchase | None:
        """Return what the answers would cost, without buying; ``None`` for the local engine."""

    def answer(self, records: Records, context: RunContext) -> Answers:
        """Answer the prepared records of all tables; an engine that buys lookups buys them in this call."""

    def counts(self) -> tuple[pl.Expr, ...]:
        """Return aggregations over answered rows, which the run collects while it writes the rows."""

    def agreement(self, tallied: Mapping[str, Any]) -> Agreement | None:
        """Return the agreement of local engine and service from the counted values; ``None`` unless both answer."""

    def hints(self, *, planned: bool) -> tuple[str, ...]:
        """Return alerts about a missing or old registry or gazetteer, for a run or a plan (``planned``)."""


_ONE_BATCH: Final = 20_000  # rows; for fewer, a query for gathering costs more than it saves


@dataclass(frozen=True, slots=True)
class LocalEngineAdapter:
    """The local engine with the interface :class:`Engine`."""

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
        """Return ``None``, since the local engine costs nothing."""

    def answer(self, records: Records, context: RunContext) -> Answers:
        def answer(rows: pl.LazyFrame) -> pl.LazyFrame:
            if not 0 < records.count <= _ONE_BATCH:
                if self.local.gazetteer is not None:
                    warm_up(self.local)  # here, and not in each of polars' threads
                rows = gather_rows(rows, ROWS_AT_ONCE if self.local.gazetteer else ROWS_AT_ONCE // 2)
            if context.progress is not None:
                rows = rows.with_columns(_row_ids_with_progress(context.progress, records.count))
            return self.local.answer(rows)

        return Answers(answer)

    def counts(self) -> tuple[pl.Expr, ...]:
        return self.local.counts()

    def agreement(self, tallied: Mapping[str, Any]) -> None:
        """Return ``None``, since only the local engine answers."""

    def hints(self, *, planned: bool) -> tuple[str, ...]:
        return registry_alerts(self.local, Phrase("no row will say `send`") if planned else None, planned=planned)


def local_files(local: LocalEngine) -> dict[str, Path | None]:
    """Return the paths of the local engine's registry, statuses and gazetteer; ``None`` for those it lacks."""
    indexes = {"registry": local.registry, "statuses": local.status, "gazetteer": local.gazetteer}
    return {name: index.path if index is not None else None for name, index in indexes.items()}


def _row_ids_with_progress(progress: Progress, total: int) -> pl.Expr:
    lock, done = threading.Lock(), 0  # polars calls it from several threads

    def count(row_ids: pl.Series) -> pl.Series:
        nonlocal done
        with lock:
            done += len(row_ids)
            progress(done, total)
        return row_ids

    return pl.col(ROW_ID).map_batches(count, return_dtype=pl.get_index_type(), is_elementwise=True)
