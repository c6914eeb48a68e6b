"""Frames verified: polars, pandas and pyarrow, what is given comes back."""

from __future__ import annotations

import warnings as python_warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TypeVar, Unpack, cast

import polars as pl

from bansong.api.engine_request import AnyEngine, EngineRequest, Status, progress_unit
from bansong.column_words import with_words
from bansong.engine import Gazetteer, Registry, Scorecard
from bansong.enrichment.prepared_table import prepare_table
from bansong.enrichment.run_inputs import open_statuses
from bansong.labels.history import Labels, read_history
from bansong.options import LocalOptions, ReadOptions, ServiceKeywords, WriteOptions, check_keywords, status_options
from bansong.progress.asked import AskedProgress, progress_asked
from bansong.reference.choice_store import Choices
from bansong.run import accounting
from bansong.run.duplicates import with_duplicates
from bansong.run.engine import RunContext
from bansong.run.extra_columns import unknown_extra_columns, with_extra_columns
from bansong.run.status_counts import statuses_of
from bansong.schema import Lang
from bansong.storage.filesystem import new_run_id
from bansong.tables import Enriched, frames
from bansong.tables.frame_types import as_known_frame, collect_like
from bansong.tables.table import with_copies
from bansong.translation import gettext

Frame = TypeVar("Frame")
"""A frame of polars, pandas or pyarrow: what is given is what comes back."""


def verify_frame(
    frame: Frame,
    *,
    columns: Mapping[str, str | Sequence[str]] | None = None,
    registry: str | Path | Registry | None = None,
    gazetteer: str | Path | Gazetteer | None = None,
    model: str | Path | Scorecard | None = None,
    status: Status = "auto",
    max_status_age: float | None = None,
    lang: Lang | None = None,
    today: date | str | None = None,
    prefix: str = "",
    extra_columns: Sequence[str] = (),
    labels: Labels = None,
    choices: Choices = None,
    engine: AnyEngine = "local",
    progress: AskedProgress = True,
    **service: Unpack[ServiceKeywords],
) -> Frame:
    """Return a frame of the same type with the nine columns added, and the same rows in the same order.

    ``frame``: polars (also lazy, which is verified at once), pandas or pyarrow; a pyarrow Table is returned for any
    other object that gives Arrow data (``__arrow_c_stream__``: a reader of batches, a relation of duckdb). The user's
    own columns are returned as they were: a pandas index, dtypes, attrs, metadata. Headers of several levels are joined
    to find the columns, and the nine stand on the first level. ``reasons`` holds lists of strings. Arguments as for
    :func:`enrich`; warnings are Python warnings.
    Raises :class:`bansong.errors.BansongError`.
    """
    check_keywords(verify_frame, service)
    local = LocalOptions(registry=registry, gazetteer=gazetteer, model=model, lang=lang, today=today)
    request = EngineRequest(engine, service, local)
    asking = status_options(status, max_status_age, request.kind, given=request.given is not None)
    read, write = ReadOptions(columns), WriteOptions(prefix=prefix, extra_columns=extra_columns)
    given = as_known_frame(frame)
    # the rows of a lazy frame are read more than once, and must be the same each time
    table = frames.read(given.collect(engine="streaming") if isinstance(given, pl.LazyFrame) else given)
    prepared = prepare_table(table, read.columns, write.prefix, extras=write.extra_columns, engine=request.kind)
    for warning in prepared.warnings:
        python_warnings.warn(warning, stacklevel=2)
    known = read_history(labels) if request.kind.answers_locally else None
    answering = request.open(known.history if known else None, choices)
    with (
        ExitStack() as resources,
        progress_asked(progress, progress_unit(request.kind)) as shown,
        answering.local.running(),
    ):
        run_id = new_run_id(datetime.now(UTC))
        context = RunContext("a frame", run_id, table.count(), progress=shown, resources=resources)
        context = replace(context, priority=prepared.priority_column(answering))
        asks = asking is not None and not prepared.is_address_list
        asked = open_statuses(prepared.rows, asking, context) if asking is not None and asks else None
        answering = answering.with_status(asked.overlay) if asked is not None else answering
        answers, purchase = answering.answer(answering.prepare(prepared.rows_for(answering)), context)
        if prepared.extras:
            kept = with_duplicates(answers.collect(engine="streaming").lazy())
            answers = with_extra_columns(kept, prepared.extras, answering.local.gazetteer)
        answered = accounting.number_rows(answers)
        tally = accounting.tally(answered, answering.counts())
        worded = with_copies(with_words(answered, prepared.lang), prepared.layout)
        enriched = Enriched(table, worded, prepared.layout, tally)
        result, rows_out, tallies = collect_like(enriched, given)
    tallied = tallies.row(0, named=True)
    counts = accounting.row_counts_of(tallied)
    statuses = statuses_of(answering, counts, tallied, asked.fetch.halt if asked is not None else None)
    if prepared.is_address_list:
        statuses = None
    notes = [statuses.summary] if statuses is not None and statuses.is_alarming else []
    notes += unknown_extra_columns(prepared.extras, answering.local.gazetteer)
    if purchase is not None:
        notes += [*purchase.notes, *([gettext("paused: {paused}", paused=purchase.paused)] if purchase.paused else [])]
    for note in notes:
        python_warnings.warn(note, stacklevel=2)
    accounting.check_balance(table.count(), counts, rows_out)
    return cast(Frame, result)
