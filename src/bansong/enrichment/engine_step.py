"""The engine's part of a run: it gets statuses and cross-row features, then answers the records of all tables."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from bansong._version import __version__
from bansong.engine import Known
from bansong.labels.history import LabelHistory
from bansong.report import Versions
from bansong.run.cross_row_features import find_cross_row_features, with_found_features
from bansong.run.engine import Answers, Engine, Purchase, Records, RunContext
from bansong.schema import seoul_day

if TYPE_CHECKING:
    from bansong.engine.address import Gazetteer
    from bansong.options import StatusOptions
    from bansong.reference.run_statuses import RunStatuses


@dataclass(frozen=True, slots=True)
class EngineStep:
    """An engine with the prepared records that it answers; ``asked``: what the tax authority was asked for them."""

    engine: Engine
    records: Records
    context: RunContext
    asked: RunStatuses | None = None

    def with_statuses(self, options: StatusOptions, *, planned: bool = False) -> EngineStep:
        """Return this step with the statuses of its numbers: fetched, or only counted where it is ``planned``."""
        from bansong.reference import run_statuses  # brings the network with it

        rows, context = self.records.rows, self.context
        if planned:
            asked = run_statuses.plan_statuses(rows, options)
        else:
            watch = getattr(context.progress, "watch", None)  # the command line's progress shows the fetching, too
            asked = run_statuses.fetch_for_rows(
                rows, options, watch=watch, cancel=context.cancel, today=lambda: seoul_day(context.unix_time())
            )
        return replace(self, engine=self.engine.with_known(Known(statuses=asked.overlay)), asked=asked)

    def quote(self) -> Purchase | None:
        """Return what the records would cost; ``None`` for an engine that buys nothing."""
        if not self.engine.kind.buys:
            return None
        features = self._find_features()
        return self.engine.quote(_with_features(self.records, features), self.context)

    def answer(self, count: int | None = None) -> AnsweredRecords:
        """Find the features of the records, which reads them, and buy what they ask for.

        ``count``: how many there are, where it was not known before.
        """
        features = self._find_features()
        records = self.records if count is None else replace(self.records, count=count)
        return AnsweredRecords(self.engine.answer(_with_features(records, features), self.context), features)

    def _find_features(self) -> pl.DataFrame | None:
        return find_cross_row_features(self.records.rows) if self.engine.kind.answers_locally else None


@dataclass(frozen=True, slots=True)
class AnsweredRecords:
    """The answers to records; ``features``: their cross-row features, where the local engine answers."""

    answers: Answers
    features: pl.DataFrame | None

    def at(self, first: int, count: int) -> AnsweredRecords:
        """Return the answers to the records of one table: ``count`` from the place ``first`` on."""
        return replace(self, features=None if self.features is None else self.features.slice(first, count))

    def of(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """Add the features and the nine columns to the rows of a table, lazily."""
        return self.answers.of(with_found_features(rows, self.features))


def _with_features(records: Records, features: pl.DataFrame | None) -> Records:
    return replace(records, rows=with_found_features(records.rows, features))


def files_read(engine: Engine, model: Path | None, status: StatusOptions | None) -> dict[str, Path | None]:
    """Return the files that a run reads or keeps beside its inputs, by their use."""
    files = {**engine.files(), "model": model}
    if status is not None:
        from bansong.reference.run_statuses import status_files

        files |= status_files(status)
    return files


def versions_of(engine: Engine, known: LabelHistory | None) -> Versions:
    """Return the versions of what an engine computes its answers with; ``known``: the letters of the label store."""
    local, answers_locally = engine.local, engine.kind.answers_locally
    return Versions(
        bansong=__version__,
        model=local.model.version,
        registry=local.registry.version if local.registry else None,
        statuses=local.status.version if local.status and answers_locally else None,
        gazetteer=local.gazetteer.version if local.gazetteer else None,
        history=known.recorded.isoformat() if known and answers_locally else None,
        **_gazetteer_facts(local.gazetteer),
    )


def _gazetteer_facts(gazetteer: Gazetteer | None) -> dict[str, Any]:
    if gazetteer is None:
        return {}
    day = gazetteer.source_date
    return {"gazetteer_date": day.isoformat() if day else None, "gazetteer_addresses": gazetteer.buildings}
