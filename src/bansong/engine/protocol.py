"""What a run asks of an engine, whoever it is; and the local engine in that part."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

import polars as pl

from bansong.base.display import Progress
from bansong.base.messages import Phrase
from bansong.base.options import ENGINE_KINDS, EngineKind
from bansong.engine.local import registry_alerts
from bansong.engine.records import ROW_ID

if TYPE_CHECKING:
    from bansong.base.cancel import CancelToken
    from bansong.engine.local import Known, LocalEngine


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
class Records:
    """The records of a run: the rows of :func:`bansong.engine.records.records`, of one table or of several.

    ``count``: how many there are, 0 where they are not counted. ``priority``: the column that orders what is bought.
    """

    rows: pl.LazyFrame
    count: int = 0
    priority: str | None = None


@dataclass(frozen=True, slots=True)
class RunContext:
    """The run that an engine answers for.

    ``file``: what the ledger calls its input. ``resources``: closed when the answers have been written.
    ``unix_time``: the clock by which the age of stored answers is reckoned, in seconds since 1970.
    """

    file: str
    run_id: str
    progress: Progress | None = None
    cancel: CancelToken | None = None
    resources: ExitStack = field(default_factory=ExitStack)
    unix_time: Callable[[], float] = time.time


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers to the records of a run.

    ``of`` adds the nine columns to the rows of one table, lazily; the rows are prepared, and among the records that
    were answered. ``purchase``: what was bought for them, ``None`` for an engine that buys nothing.
    """

    of: Callable[[pl.LazyFrame], pl.LazyFrame]
    purchase: Purchase | None = None


class Engine(Protocol):
    """Answers the rows of a run.

    A run calls :meth:`with_known`, :meth:`prepare`, then :meth:`quote` or :meth:`answer`; each table is written with
    the :class:`Answers`.
    """

    @property
    def kind(self) -> EngineKind:
        """What all engines of its name have in common."""

    @property
    def local(self) -> LocalEngine:
        """The local engine that answers, or that chooses what is bought first."""

    @property
    def priority(self) -> str | None:
        """The header of the column that orders what is bought."""

    def with_known(self, known: Known) -> Engine:
        """Return this engine with earlier letters, statuses and choices; those that it has already stay."""

    def files(self) -> Mapping[str, Path | None]:
        """The files that it reads or keeps, by their use: no output may replace one."""

    def prepare(self, records: Records) -> Records:
        """Add the columns by which the engine answers."""

    def quote(self, records: Records, context: RunContext) -> Purchase | None:
        """Return what prepared records would cost; ``None`` for an engine that buys nothing. Spends nothing."""

    def answer(self, records: Records, context: RunContext) -> Answers:
        """Buy what the prepared records of all tables ask for; the local engine buys nothing."""

    def counts(self) -> tuple[pl.Expr, ...]:
        """Aggregations over answered rows, collected while they are written."""

    def agreement(self, tallied: Mapping[str, Any]) -> Agreement | None:
        """Return how the local engine and the service agree, from :meth:`counts`; ``None`` unless both answer."""

    def hints(self, *, planned: bool) -> tuple[str, ...]:
        """Return what a missing or old registry or gazetteer means for a run; ``planned``: no row is answered."""


@dataclass(frozen=True, slots=True)
class LocalEngineAdapter:
    """The local engine as a run's :class:`Engine`."""

    local: LocalEngine
    kind: EngineKind = ENGINE_KINDS["local"]
    priority: str | None = None

    def with_known(self, known: Known) -> Self:
        """See :meth:`Engine.with_known`."""
        return replace(self, local=self.local.with_known(known))

    def files(self) -> Mapping[str, Path | None]:
        """Its registry and its gazetteer."""
        return local_files(self.local)

    def prepare(self, records: Records) -> Records:
        """Return the records as they are."""
        return records

    def quote(self, records: Records, context: RunContext) -> None:
        """Return ``None``: the local engine costs nothing."""

    def answer(self, records: Records, context: RunContext) -> Answers:
        """Return the answers; nothing is computed before the rows of a table are collected."""
        if context.progress is None:
            return Answers(self.local.answer)
        passing = _row_ids_with_progress(context.progress, records.count)
        return Answers(lambda rows: self.local.answer(rows.with_columns(passing)))

    def counts(self) -> tuple[pl.Expr, ...]:
        """See :meth:`bansong.engine.local.LocalEngine.counts`."""
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
    """Return the row numbers; report how many have passed, over all tables. polars calls from several threads."""
    lock, done = threading.Lock(), 0

    def count(row_ids: pl.Series) -> pl.Series:
        nonlocal done
        with lock:
            done += len(row_ids)
            progress(done, total)
        return row_ids

    return pl.col(ROW_ID).map_batches(count, return_dtype=pl.get_index_type(), is_elementwise=True)
