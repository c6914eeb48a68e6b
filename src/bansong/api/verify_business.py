"""One business verified."""

from __future__ import annotations

import warnings as python_warnings
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final, Unpack

import polars as pl

from bansong import business_number
from bansong.api.engine_request import AnyEngine, EngineRequest, Status
from bansong.engine import Gazetteer, Registry, Scorecard
from bansong.engine.local import ROW_PROBLEM
from bansong.enrichment.run_inputs import open_statuses
from bansong.errors import Problem, UsageError
from bansong.labels.history import Labels, history_of
from bansong.options import LocalOptions, ServiceKeywords, check_keywords, status_options
from bansong.reference.choice_store import Choices
from bansong.run.engine import RunContext
from bansong.run.records import ROW_ID, with_digits
from bansong.schema import ADDED_COLUMNS, REASON_SEPARATOR, RECORD_COLUMNS, Lang
from bansong.storage.filesystem import new_run_id
from bansong.translation import Option, gettext
from bansong.verification import Verification

LOCAL_ENGINE_ONLY: Final = Problem(
    "options.local_engine_only", "{option} is for the local engine, not for {name}: the service is not told of it"
)

_PATIENCE_OF_ONE: Final = 10.0
"""Seconds without a reply of the tax authority after which a single lookup does without: somebody looks on."""


def verify(
    b_no: str | int,
    name: str | None = None,
    address: str | None = None,
    zipcode: str | None = None,
    *,
    registry: str | Path | Registry | None = None,
    gazetteer: str | Path | Gazetteer | None = None,
    model: str | Path | Scorecard | None = None,
    status: Status = "auto",
    max_status_age: float | None = None,
    lang: Lang | None = None,
    today: date | str | None = None,
    labels: Labels = None,
    choices: Choices = None,
    engine: AnyEngine = "local",
    **service: Unpack[ServiceKeywords],
) -> Verification:
    """Verify one business; a value that is no business number gives ``row_status`` invalid.

    ``engine`` and ``service`` as for :func:`enrich`: what was bought before comes from the ledger. ``zipcode``,
    ``registry``, ``gazetteer``, ``model`` and ``labels`` are for the local engine, and refused where it has no say.
    Where the tax authority does not reply within 10 seconds, a warning says so and what is stored counts.
    """
    check_keywords(verify, service)
    local = LocalOptions(registry=registry, gazetteer=gazetteer, model=model, lang=lang, today=today)
    request = EngineRequest(engine, service, local)
    asking = status_options(status, max_status_age, request.kind, given=request.given is not None)
    for_local = {
        "zipcode": zipcode,
        "registry": registry,
        "gazetteer": gazetteer,
        "model": model,
        "labels": labels or None,
    }
    for option, value in for_local.items():
        if not request.kind.answers_locally and value is not None:
            raise UsageError(LOCAL_ENGINE_ONLY, option=Option(option), name=request.kind.name)
    record = dict(zip(RECORD_COLUMNS, (str(b_no), name, address, zipcode), strict=True))
    frame = pl.LazyFrame([record], schema=dict.fromkeys(RECORD_COLUMNS, pl.String))
    digits = None if business_number.problem(b_no) else business_number.compact(b_no)
    answering = request.open(history_of(labels, digits) if digits and request.kind.answers_locally else None, choices)
    with ExitStack() as resources, answering.local.running():
        rows = with_digits(frame).with_row_index(ROW_ID).with_columns(pl.lit(None, pl.String).alias(ROW_PROBLEM))
        context = RunContext("one lookup", new_run_id(datetime.now(UTC)), resources=resources)
        if asking is not None:
            asking = replace(asking, patience=min(asking.patience, _PATIENCE_OF_ONE), drain=min(asking.drain, 1.0))
            asked = open_statuses(rows, asking, context)
            answering = answering.with_status(asked.overlay)
            if asked.fetch.halt is not None:
                python_warnings.warn(
                    gettext("the tax authority could not be asked: {halt}", halt=asked.fetch.halt), stacklevel=2
                )
        answers, _ = answering.answer(answering.prepare(rows), context)
        answer = answers.collect().row(0, named=True)
    fields = {key: answer[key] for key in ADDED_COLUMNS if key != "reasons"}
    reasons = tuple((answer["reasons"] or "").split(REASON_SEPARATOR)) if answer["reasons"] else ()
    return Verification(b_no=None if answer["row_status"] == "invalid" else digits, reasons=reasons, **fields)
