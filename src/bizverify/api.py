"""Public functions that verify a file, a frame or one business; :mod:`bizverify.enrichment` runs over one table."""

from __future__ import annotations

import functools
import time
import warnings as python_warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Unpack

import polars as pl

from bizverify import business_number
from bizverify.engine import Gazetteer, LocalEngine, Registry, Scorecard
from bizverify.engine.local import ROW_PROBLEM
from bizverify.enrichment import LOCAL, Progress, Run, looked_over, staged, statuses_of
from bizverify.errors import UsageError, parameter
from bizverify.labels.history import Labels, history_of, remembered
from bizverify.model_store import resolved
from bizverify.purchase.options import PAYING, ServiceOptions, Terms, hide_key, terms_of
from bizverify.report import Report
from bizverify.run import output_layout
from bizverify.run.destination import changes, keep_apart, losses, refuse_wide, target_of
from bizverify.run.records import ROW_ID, with_digits
from bizverify.schema import ADDED_COLUMNS, REASON_SEPARATOR, RECORD_COLUMNS, Lang, Verification
from bizverify.storage.paths import new_run_id
from bizverify.tables import (
    Enriched,
    frames,
    open_table,
    reading,
)
from bizverify.tables.columns import named_column
from bizverify.tables.compression import private_folder

if TYPE_CHECKING:
    from bizverify.cancellation import CancelToken
    from bizverify.purchase.engine import PaidEngine

ENGINES: Final = ("local", *PAYING)


def enrich(
    input: str | Path,
    output: str | Path | None = None,
    *,
    engine: str = "local",
    columns: Mapping[str, str | Sequence[str]] | None = None,
    registry: str | Path | Registry | None = None,
    gazetteer: str | Path | Gazetteer | None = None,
    model: str | Path | Scorecard | None = None,
    lang: Lang = "en",
    today: date | str | None = None,
    sheet: str | None = None,
    encoding: str | None = None,
    json_path: str | None = None,
    has_header: bool = True,
    output_encoding: str | None = None,
    in_place: bool = False,
    backup: bool = True,
    select: Sequence[str] | None = None,
    prefix: str = "",
    summary: bool = False,
    labels: Labels = None,
    with_outcomes: bool = False,
    manifest: str | Path | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
    brake: CancelToken | None = None,
    **service: Unpack[ServiceOptions],
) -> Report:
    """Verify every row of a file and write the file back with the nine columns added.

    ``input``: CSV, TSV, XLSX, XLSM, XLS, XLSB, ODS, JSON, NDJSON or Parquet; text formats also as .gz or .zst.
    ``output``: its extension chooses the format; by default ``INPUT.enriched.EXT`` beside the input. ``in_place``
    replaces the input, which stays beside it as ``NAME.bak`` unless ``backup`` is false. An existing output is
    replaced, in one step, when the new one is complete and every row is accounted for; otherwise it stays as it was.

    ``columns`` maps roles (``b_no``, ``name``, ``address``, ``zipcode``, ``confirmed``) to headers where the choice
    from the headers is not the right one, several joined by ``+`` or in a list where they make up one value
    (``{"address": ["기본주소", "상세주소"]}``); ``confirmed`` is the day on which somebody last made
    sure of the address. ``sheet`` (workbooks), ``encoding`` (CSV) and ``json_path`` (JSON, ``data.items``) say where
    and how the table is read. With ``has_header=False`` every row of a CSV file or workbook is one of the list: its
    columns are called ``#1``, ``#2``, …, in the output too, and the roles are found by content.
    ``registry``, ``gazetteer``, ``model``, ``lang``, ``today``: see :class:`LocalEngine`.

    ``select`` names the user's columns that the output keeps, by default all (headers, or ``#3`` for the third;
    several may stand in one item, separated by commas). ``prefix`` goes before the nine column names. ``summary``
    adds a sheet with the run's figures to a new workbook. ``dry_run`` plans only and writes nothing.

    ``labels``: the folder of the label book, where :func:`bizverify.label` records what came back; by default the
    user's own, if there is one, and ``False`` for none. The local engine takes the history of each addressee from it.
    ``with_outcomes`` adds ``bounced``, ``bounce_reason`` and ``bounced_at`` behind the nine: what became of the last
    letter to this number at this address.

    ``engine``: ``local``, which costs nothing, or one that buys from the hosted service: ``verify`` (a request a
    lookup), ``batch`` (uploads), ``hybrid`` (only what the local engine is not sure of). For these, ``service`` is as
    in :class:`~bizverify.purchase.options.ServiceOptions`; what was bought once is in the ledger and is not bought
    again, so a run that was stopped goes on where it was when the same call is made again. ``brake`` stops such a run
    from another thread.

    Raises :class:`bizverify.errors.BizverifyError`: nothing was published then. So it is after ``KeyboardInterrupt``.
    """
    hide_key(service)
    path, started, clock = Path(input), datetime.now(UTC), time.monotonic()
    if with_outcomes and labels is False:
        raise UsageError("`with_outcomes=True` takes the outcomes from the label book; leave `labels=False` out")
    known = remembered(labels)
    local = _local(registry, gazetteer, model, lang, today, known.history if known else None)
    terms = _terms(engine, service)
    with ExitStack() as resources:
        paid = resources.enter_context(_paid(engine, terms, local, brake))
        table = resources.enter_context(
            open_table(path, sheet=sheet, encoding=encoding, json_path=json_path, has_header=has_header)
        )
        asked = {"encoding": output_encoding, "backup": backup, "summary": summary}
        target = target_of(path, table.format, output, in_place, **asked)
        keep_apart(
            {
                "input": path,
                "registry": local.registry.path if local.registry else None,
                "gazetteer": local.gazetteer.path if local.gazetteer else None,
                "model": Path(model) if isinstance(model, str | Path) else None,
                "ledger": paid.path if paid else None,
                "key file": Path(terms.key_file) if terms.key_file is not None else None,
            },
            {"output": target.path, "manifest": Path(manifest) if manifest is not None else None},
            in_place,
        )
        if not select:
            refuse_wide(table, target, prefix)
        stages = staged(table, columns, prefix, select, with_outcomes)
        if paid is not None:
            stages = replace(stages, rows=paid.marked(stages.rows))
        priority = None if terms.priority is None else table.ids[named_column(table, terms.priority, "priority")]
        lost = losses(table, target, in_place, leaves_out=stages.leaves_out, header_unsure=stages.header_unsure)
        lost += changes(table, target, stages.layout)
        stages = replace(stages, warnings=(*stages.warnings, *lost))
        run = Run(
            path, new_run_id(started), started, clock, engine, local, stages, paid, priority, known, with_outcomes
        )
        with reading(table), local.running():
            if dry_run:
                return run.planned()
            return run.carried_out(target, manifest, progress)


def plan(input: str | Path, **options: Any) -> Report:
    """Return what :func:`enrich` would do with the same arguments; spends and writes nothing."""
    hide_key(options)
    return enrich(input, **options, dry_run=True)


async def aenrich(input: str | Path, output: str | Path | None = None, **options: Any) -> Report:
    """Do what :func:`enrich` does without blocking the event loop (asyncio or trio).

    Cancelled, a run that buys settles what is under way before it ends.
    """
    hide_key(options)
    import anyio.lowlevel
    import anyio.to_thread

    from bizverify.cancellation import CancelToken

    brake: CancelToken = options.setdefault("brake", CancelToken())
    failure: Exception | None = None

    async def pull_when_cancelled() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            brake.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(pull_when_cancelled)
        try:
            report = await anyio.to_thread.run_sync(functools.partial(enrich, input, output, **options))
        except Exception as error:  # raised below: out of here it would come in a group
            failure = error
        group.cancel_scope.cancel()
    await anyio.lowlevel.checkpoint()  # who was cancelled hears that, and not that the run was stopped
    if failure is not None:
        raise failure
    return report


def verify_frame(
    frame: Any,
    *,
    columns: Mapping[str, str | Sequence[str]] | None = None,
    registry: str | Path | Registry | None = None,
    gazetteer: str | Path | Gazetteer | None = None,
    model: str | Path | Scorecard | None = None,
    lang: Lang = "en",
    today: date | str | None = None,
    prefix: str = "",
    labels: Labels = None,
    engine: str = "local",
    **service: Unpack[ServiceOptions],
) -> pl.DataFrame:
    """Return a frame with the nine columns added.

    ``frame``: polars (also lazy), pandas or pyarrow; the result is a polars DataFrame with the same rows in the same
    order, ``reasons`` a list of strings. Arguments as for :func:`enrich`; warnings are Python warnings.
    Raises :class:`bizverify.errors.BizverifyError`.
    """
    hide_key(service)
    if isinstance(frame, pl.LazyFrame):
        frame = frame.collect(engine="streaming")  # its rows are read more than once, and must be the same each time
    table = frames.read(frame)
    stages = staged(table, columns, prefix)
    for warning in stages.warnings:
        python_warnings.warn(warning, stacklevel=2)
    known = remembered(labels) if engine in LOCAL else None
    local = _local(registry, gazetteer, model, lang, today, known.history if known else None)
    terms = _terms(engine, service)
    with _paid(engine, terms, local) as paid, local.running():
        stages = looked_over(stages, engine)
        if paid is None:
            answers, notes = local.answer(stages.rows), tuple[str, ...]()
        else:
            priority = None if terms.priority is None else table.ids[named_column(table, terms.priority, "priority")]
            answers, purchase = paid.bought_and_answered(paid.marked(stages.rows), priority, "a frame")
            notes = (*purchase.notes, *((f"paused: {purchase.paused}",) if purchase.paused else ()))
        answered = output_layout.numbered_out(answers)
        more = local.counts() if engine in LOCAL else ()
        result, counted = frames.write(Enriched(table, answered, stages.layout, output_layout.tally(answered, more)))
    tallied = counted.row(0, named=True)
    account = output_layout.account_of(tallied)
    statuses = statuses_of(local, engine, account, tallied)
    if statuses is not None and statuses.is_alarming:
        notes = (statuses.told, *notes)
    for note in notes:
        python_warnings.warn(note, stacklevel=2)
    output_layout.balance(table.count(), account, result.height)
    return result


def verify(
    b_no: str | int,
    name: str | None = None,
    address: str | None = None,
    zipcode: str | None = None,
    *,
    registry: str | Path | Registry | None = None,
    gazetteer: str | Path | Gazetteer | None = None,
    model: str | Path | Scorecard | None = None,
    lang: Lang = "en",
    today: date | str | None = None,
    labels: Labels = None,
    engine: str = "local",
    **service: Unpack[ServiceOptions],
) -> Verification:
    """Verify one business; a value that is no business number gives ``row_status`` invalid.

    ``engine`` and ``service`` as for :func:`enrich`: what was bought before comes from the ledger. ``zipcode``,
    ``registry``, ``gazetteer``, ``model`` and ``labels`` are for the local engine, and refused where it has no say.
    """
    hide_key(service)
    for_local = {
        "zipcode": zipcode,
        "registry": registry,
        "gazetteer": gazetteer,
        "model": model,
        "labels": labels or None,
    }
    for option, value in for_local.items():
        if engine in ("verify", "batch") and value is not None:
            raise UsageError(
                f"{parameter(option)} is for the local engine, not for {engine}: the service is not told of it"
            )
    record = dict(zip(RECORD_COLUMNS, (str(b_no), name, address, zipcode), strict=True))
    frame = pl.LazyFrame([record], schema=dict.fromkeys(RECORD_COLUMNS, pl.String))
    digits = None if business_number.problem(b_no) else business_number.compact(b_no)
    history = history_of(labels, digits) if digits and engine in LOCAL else None
    local = _local(registry, gazetteer, model, lang, today, history)
    with _paid(engine, _terms(engine, service), local) as paid, local.running():
        if paid is None:
            answers = local.answer(frame)
        else:
            rows = with_digits(frame).with_row_index(ROW_ID).with_columns(pl.lit(None, pl.String).alias(ROW_PROBLEM))
            answers, _ = paid.bought_and_answered(paid.marked(rows), None, "one lookup")
        answer = answers.collect().row(0, named=True)
    fields = {key: answer[key] for key in ADDED_COLUMNS if key != "reasons"}
    reasons = tuple((answer["reasons"] or "").split(REASON_SEPARATOR)) if answer["reasons"] else ()
    return Verification(b_no=None if answer["row_status"] == "invalid" else digits, reasons=reasons, **fields)


def _local(
    registry: str | Path | Registry | None,
    gazetteer: str | Path | Gazetteer | None,
    model: str | Path | Scorecard | None,
    lang: Lang,
    today: date | str | None,
    history: pl.LazyFrame | None,
) -> LocalEngine:
    """The embedded engine with what the user has: indexes, the champion among his scorecards, earlier outcomes."""
    card = resolved(model)
    return LocalEngine(registry, gazetteer=gazetteer, model=card, lang=lang, today=today, history=history)


def _terms(engine: str, options: ServiceOptions) -> Terms:
    if engine not in ENGINES:
        raise UsageError(f"unknown engine {engine!r}; use {' or '.join(ENGINES)}")
    return terms_of(engine, options)


@contextmanager
def _paid(
    engine: str, terms: Terms, local: LocalEngine, brake: CancelToken | None = None
) -> Iterator[PaidEngine | None]:
    """Yield the engine that buys, if one was asked for; loaded only then, since it brings the network with it."""
    if engine not in PAYING:
        yield None
        return
    from bizverify.cancellation import CancelToken
    from bizverify.purchase.engine import PaidEngine

    with private_folder() as folder:
        yield PaidEngine(engine, terms, local, folder, brake or CancelToken())
