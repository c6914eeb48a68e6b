"""What a run is given beside its table: files that it reads, their versions, and statuses that it asks for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from bansong._version import __version__
from bansong.labels.history import LabelHistory
from bansong.report import Versions
from bansong.run.engine import Engine, RunContext
from bansong.schema import seoul_day

if TYPE_CHECKING:
    from bansong.engine.address import Gazetteer
    from bansong.options import StatusOptions
    from bansong.reference.run_statuses import RunStatuses


def files_read(engine: Engine, model: Path | None, status: StatusOptions | None) -> dict[str, Path | None]:
    """Return the files that a run reads or keeps beside its input, by what they are."""
    files = {**engine.files(), "model": model}
    if status is not None:
        from bansong.reference.run_statuses import status_files

        files |= status_files(status)
    return files


def versions_of(engine: Engine, known: LabelHistory | None) -> Versions:
    """Return what an engine computes its answers with; ``known``: what the label store has of earlier letters."""
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


def open_statuses(
    rows: pl.LazyFrame, options: StatusOptions, context: RunContext, *, planned: bool = False
) -> RunStatuses:
    """Return the statuses of the numbers of a run's rows: fetched, or only counted where the run is ``planned``."""
    from bansong.reference import run_statuses  # brings the network with it

    if planned:
        return run_statuses.plan_statuses(rows, options)
    watch = getattr(context.progress, "watch", None)  # that of the command line shows the fetching, too
    return run_statuses.fetch_for_rows(
        rows, options, watch=watch, cancel=context.cancel, today=lambda: seoul_day(context.unix_time())
    )


def _gazetteer_facts(gazetteer: Gazetteer | None) -> dict[str, Any]:
    if gazetteer is None:
        return {}
    day = gazetteer.source_date
    return {"gazetteer_date": day.isoformat() if day else None, "gazetteer_addresses": gazetteer.buildings}
