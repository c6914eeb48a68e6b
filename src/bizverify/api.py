"""Public functions that verify a file, a frame or one business; :mod:`bizverify.enrichment` runs over one table."""

from __future__ import annotations

import functools
import warnings as python_warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final, TypeVar, Unpack, cast, overload

import polars as pl

from bizverify import business_number
from bizverify.cancellation import CancelToken
from bizverify.cloud.remote_path import as_path
from bizverify.column_words import with_words
from bizverify.engine import Gazetteer, LocalEngine, Registry, Scorecard
from bizverify.engine.local import ROW_PROBLEM
from bizverify.enrichment.enrichment_run import RunStart
from bizverify.enrichment.prepared_table import prepare_table
from bizverify.enrichment.run_inputs import files_read, open_statuses
from bizverify.enrichment.single_file import enrich_file
from bizverify.errors import UsageError, parameter
from bizverify.joint.given_inputs import collect_inputs, label_inputs
from bizverify.joint.joint_run import JointRun
from bizverify.joint.output_places import OutputPlaces
from bizverify.joint.report import FilesReport
from bizverify.labels.history import Labels, history_of, read_history
from bizverify.models.model_store import resolve_model
from bizverify.options import (
    ENGINE_KINDS,
    EngineKind,
    EngineName,
    ReadOptions,
    ServiceKeywords,
    StatusOptions,
    StatusSource,
    WriteOptions,
    choose_options,
    engine_kind,
    hide_key,
    refuse_unknown,
    service_options,
    status_options,
)
from bizverify.progress.asked import AskedProgress, progress_asked
from bizverify.reference.choice_store import Choices, read_choices
from bizverify.report import Report
from bizverify.run import accounting
from bizverify.run.duplicates import with_duplicates
from bizverify.run.engine import Engine, LocalEngineAdapter, RunContext
from bizverify.run.extra_columns import with_extra_columns
from bizverify.run.records import ROW_ID, with_digits
from bizverify.run.status_counts import statuses_of
from bizverify.schema import ADDED_COLUMNS, REASON_SEPARATOR, RECORD_COLUMNS, Lang
from bizverify.storage.filesystem import new_run_id
from bizverify.tables import Enriched, Format, frames
from bizverify.tables.frame_types import collect_like
from bizverify.tables.input_files import is_one_file
from bizverify.translation import gettext
from bizverify.verification import Verification

_PATIENCE_OF_ONE: Final = 10.0
"""Seconds without a reply of the tax authority after which a single lookup does without: somebody looks on."""

Frame = TypeVar("Frame")
"""A frame of polars, pandas or pyarrow: what is given is what comes back."""

AnyEngine = EngineName | LocalEngine | Engine
"""The name of an engine, or one itself."""

Inputs = list[str] | list[Path] | list[str | Path] | tuple[str | Path, ...]
"""Several inputs: files, globs, folders, partitioned datasets. No ``Sequence``, since a text is one, too."""

Status = StatusSource | StatusOptions
"""Whether the tax authority is asked for statuses, or how."""


class EnrichKeywords(ServiceKeywords, total=False):
    """The keywords of :func:`enrich` beside ``engine``, ``read`` and ``write``."""

    columns: Mapping[str, str | Sequence[str]] | None
    registry: str | Path | Registry | None
    gazetteer: str | Path | Gazetteer | None
    model: str | Path | Scorecard | None
    status: Status
    max_status_age: float | None
    lang: Lang | None
    today: date | str | None
    sheet: str | Sequence[str] | None
    encoding: str | None
    json_path: str | None
    has_header: bool
    input_format: Format | None
    output_encoding: str | None
    headers: Lang | None
    in_place: bool
    backup: bool
    select: Sequence[str] | None
    prefix: str
    summary: bool
    labels: Labels
    with_outcomes: bool
    manifest: str | Path | None
    extra_columns: Sequence[str]
    split: str | None
    letters: str | Path | None
    letter_cost: float | None
    report: str | Path | None
    unmask: bool
    keep_going: bool
    review: str | Path | None
    choices: Choices
    progress: AskedProgress


@overload
def enrich(
    input: str | Path,
    output: str | Path | None = None,
    *,
    engine: AnyEngine = "local",
    read: ReadOptions | None = None,
    write: WriteOptions | None = None,
    dry_run: bool = False,
    cancel: CancelToken | None = None,
    **options: Unpack[EnrichKeywords],
) -> Report: ...


@overload
def enrich(
    input: Inputs,
    output: str | Path | None = None,
    *,
    engine: AnyEngine = "local",
    read: ReadOptions | None = None,
    write: WriteOptions | None = None,
    dry_run: bool = False,
    cancel: CancelToken | None = None,
    **options: Unpack[EnrichKeywords],
) -> FilesReport: ...


def enrich(
    input: str | Path | Inputs,
    output: str | Path | None = None,
    *,
    engine: AnyEngine = "local",
    read: ReadOptions | None = None,
    write: WriteOptions | None = None,
    columns: Mapping[str, str | Sequence[str]] | None = None,
    registry: str | Path | Registry | None = None,
    gazetteer: str | Path | Gazetteer | None = None,
    model: str | Path | Scorecard | None = None,
    status: Status = "auto",
    max_status_age: float | None = None,
    lang: Lang | None = None,
    today: date | str | None = None,
    sheet: str | Sequence[str] | None = None,
    encoding: str | None = None,
    json_path: str | None = None,
    has_header: bool = True,
    input_format: Format | None = None,
    output_encoding: str | None = None,
    in_place: bool = False,
    backup: bool = True,
    select: Sequence[str] | None = None,
    prefix: str = "",
    summary: bool = False,
    labels: Labels = None,
    with_outcomes: bool = False,
    manifest: str | Path | None = None,
    extra_columns: Sequence[str] = (),
    split: str | None = None,
    letters: str | Path | None = None,
    letter_cost: float | None = None,
    report: str | Path | None = None,
    unmask: bool = False,
    review: str | Path | None = None,
    choices: Choices = None,
    headers: Lang | None = None,
    keep_going: bool = False,
    dry_run: bool = False,
    progress: AskedProgress = True,
    cancel: CancelToken | None = None,
    **service: Unpack[ServiceKeywords],
) -> Report | FilesReport:
    """Verify every row of a file and write the file back with the nine columns added.

    ``input``: CSV, TSV, XLSX, XLSM, XLS, XLSB, ODS, JSON, NDJSON or Parquet; text formats also as .gz or .zst.
    ``output``: its extension chooses the format; by default ``INPUT.enriched.EXT`` beside the input. ``in_place``
    replaces the input, which stays beside it as ``NAME.bak`` unless ``backup`` is false. An existing output is
    replaced, in one step, when the new one is complete and every row is accounted for; otherwise it stays as it was.
    ``-`` is standard input, and standard output; ``input_format`` says what comes there, where its content does not.

    A list of inputs is enriched in one run, which returns a :class:`FilesReport`: its items are files, globs, folders
    (the tables in them) and partitioned Parquet datasets, ``output`` is a folder, in which each output has the name
    that its input has below what was given. ``sheet`` may be several names then, or ``*``, every sheet with business
    numbers. What the same in several files is bought once, and addresses and numbers are counted over all. Every input
    is read, and every output's place looked at, before anything is bought; one that cannot be enriched ends the run
    then, or, with ``keep_going``, is left out.

    ``columns`` maps roles (``b_no``, ``name``, ``address``, ``zipcode``, ``confirmed``) to headers where the choice
    from the headers is not the right one, several joined by ``+`` or in a list where they make up one value
    (``{"address": ["기본주소", "상세주소"]}``); ``confirmed`` is the day on which somebody last made
    sure of the address. ``sheet`` (workbooks), ``encoding`` (CSV) and ``json_path`` (JSON, ``data.items``) say where
    and how the table is read. With ``has_header=False`` every row of a CSV file or workbook is one of the list: its
    columns are called ``#1``, ``#2``, …, in the output too, and the roles are found by content.
    ``registry``, ``gazetteer``, ``model``, ``lang``, ``today``: see :class:`LocalEngine`.

    ``status``: whether the tax authority's free API is asked for the status of each number, as far as what is stored is
    more than ``max_status_age`` days old (30): ``nts``, ``none``, or ``auto``, that is if a key is in the environment
    (``BIZVERIFY_NTS_KEY``, ``BIZVERIFY_NTS_KEY_FILE``); :class:`StatusOptions` say more. Only numbers are sent. Of a
    number in ``registry``, too, the newer status counts. Where the API cannot be reached, or its day's allowance is
    used up, the run goes on with what is stored and the registry: report and reasons say how old that is.

    ``select`` names the user's columns that the output keeps, by default all (headers, or ``#3`` for the third;
    several may stand in one item, separated by commas). ``prefix`` goes before the nine column names. ``summary``
    adds a sheet with the run's figures to a new workbook. ``headers="ko"`` gives the added columns of a CSV file or
    workbook Korean headers, and Korean words for the codes in them; a file that has them from an earlier run keeps
    its language. ``dry_run`` plans only and writes nothing.

    ``labels``: the folder of the label store, where :func:`bizverify.label` records what came back; by default the
    user's own, if there is one, and ``False`` for none. The local engine takes the history of each addressee from it.
    ``with_outcomes`` adds ``bounced``, ``bounce_reason`` and ``bounced_at`` behind the nine: what became of the last
    letter to this number at this address.

    ``extra_columns`` adds columns behind the nine: ``duplicate_of`` (the first row, from 1, with the same number and
    the same address once it is corrected), ``match_level`` (how well the address was understood), ``district_code``
    (법정동코드 of its building). ``split="action"`` writes a file for each action beside the output,
    ``OUT.send.EXT`` and so on, which together hold every row once. ``letters`` is a file for the mail house: a row for
    each letter to be sent, sorted by postal code. ``letter_cost``: won a letter; the report says what is saved.
    ``report``: a web page of the run to read, print and pass on; people's data is masked in it unless ``unmask``.
    ``review``: a workbook of the addresses that are not sure, with what each may mean and a cell for the choice, which
    :func:`bizverify.apply_review` remembers. ``choices``: where it does; by default the user's own store, if there is
    one, and ``False`` for none. The local engine takes a chosen address for the one that is written.

    ``engine``: ``local``, which costs nothing, or one that buys from the hosted service: ``verify`` (a request a
    lookup), ``batch`` (uploads), ``hybrid`` (only what the local engine is not sure of). For these, ``service`` is as
    in :class:`ServiceOptions`; what was bought once is in the ledger and is not bought
    again, so a run that was stopped goes on where it was when the same call is made again. ``cancel`` stops such a run
    from another thread. Instead of a name, an engine may be given: a :class:`LocalEngine`, :class:`ServiceEngine`,
    :class:`HybridEngine` or any :class:`Engine`, with its own registry, language and options.

    ``progress``: ``True`` shows a bar in a notebook or on a terminal and nothing elsewhere, ``False`` nothing; or a
    function, which is called with how many rows (of an engine that buys: lookups) are done, and of how many.

    ``read`` and ``write``: in one value what the keywords from ``columns`` to ``has_header`` and from
    ``output_encoding`` to ``manifest`` say; where one of them is given, its keywords stay at their defaults.

    Raises :class:`bizverify.errors.BizverifyError`: nothing was published then. So it is after ``KeyboardInterrupt``.
    """
    hide_key(service)
    start = RunStart.now()
    reads = choose_options("read", read, ReadOptions(columns, sheet, encoding, json_path, has_header, input_format))
    flat = WriteOptions(output_encoding, in_place, backup, select, prefix, summary, with_outcomes, manifest)
    flat = replace(flat, extra_columns=extra_columns, split=split, letters=letters, letter_cost=letter_cost)
    flat = replace(flat, report=report, unmask=unmask, headers=headers, review=review)
    writes = choose_options("write", write, flat)
    request = EngineRequest(engine, service, registry, gazetteer, model, lang, today)
    asking = status_options(status, max_status_age, request.kind, given=request.given is not None)
    if writes.with_outcomes and labels is False:
        raise UsageError(
            gettext("`with_outcomes=True` takes the outcomes from the label store; leave `labels=False` out")
        )
    known = read_history(labels)
    options: dict[str, Any] = {
        "start": start,
        "known": known,
        "model": Path(model) if isinstance(model, str | Path) else None,
        "cancel": cancel,
        "status": asking,
    }
    answering = request.open(known.history if known else None, choices)
    if isinstance(input, str | Path) and (keep_going or not is_one_file(input)):
        raise UsageError(gettext("{path}: several inputs are given in a list: enrich([{path!r}])", path=str(input)))
    with progress_asked(None if dry_run else progress, _unit(request.kind)) as options["progress"]:
        if isinstance(input, str | Path):
            return enrich_file(as_path(input), output, answering, reads, writes, dry_run=dry_run, **options)
        run = _joint_run(input, output, answering, reads, writes, keep_going=keep_going, **options)
        return run.plan() if dry_run else run.carry_out()


def _unit(kind: EngineKind) -> str:
    """What progress counts."""
    return "lookups" if kind.buys else "rows"


def _joint_run(
    inputs: Sequence[str | Path],
    output: str | Path | None,
    engine: Engine,
    read: ReadOptions,
    write: WriteOptions,
    **options: Any,
) -> JointRun:
    """Return the run over all files that are meant; raise what :func:`enrich` raises."""
    folder = as_path(output) if output is not None else None
    besides = files_read(engine, options["model"], options["status"]).values()
    files, passed_over = collect_inputs(inputs, folder, [path for path in besides if path is not None])
    return JointRun(
        files=files,
        label=label_inputs(inputs),
        engine=engine,
        read=read,
        places=OutputPlaces(write, folder),
        passed_over=passed_over,
        **options,
    )


@overload
def plan(
    input: str | Path,
    output: str | Path | None = None,
    *,
    engine: AnyEngine = "local",
    read: ReadOptions | None = None,
    write: WriteOptions | None = None,
    **options: Unpack[EnrichKeywords],
) -> Report: ...


@overload
def plan(
    input: Inputs,
    output: str | Path | None = None,
    *,
    engine: AnyEngine = "local",
    read: ReadOptions | None = None,
    write: WriteOptions | None = None,
    **options: Unpack[EnrichKeywords],
) -> FilesReport: ...


def plan(
    input: str | Path | Inputs,
    output: str | Path | None = None,
    *,
    engine: AnyEngine = "local",
    read: ReadOptions | None = None,
    write: WriteOptions | None = None,
    **options: Unpack[EnrichKeywords],
) -> Report | FilesReport:
    """Return what :func:`enrich` would do with the same arguments; spends and writes nothing."""
    hide_key(options)
    return enrich(input, output, engine=engine, read=read, write=write, **options, dry_run=True)


@overload
async def aenrich(
    input: str | Path,
    output: str | Path | None = None,
    *,
    engine: AnyEngine = "local",
    read: ReadOptions | None = None,
    write: WriteOptions | None = None,
    dry_run: bool = False,
    cancel: CancelToken | None = None,
    **options: Unpack[EnrichKeywords],
) -> Report: ...


@overload
async def aenrich(
    input: Inputs,
    output: str | Path | None = None,
    *,
    engine: AnyEngine = "local",
    read: ReadOptions | None = None,
    write: WriteOptions | None = None,
    dry_run: bool = False,
    cancel: CancelToken | None = None,
    **options: Unpack[EnrichKeywords],
) -> FilesReport: ...


async def aenrich(
    input: str | Path | Inputs,
    output: str | Path | None = None,
    *,
    engine: AnyEngine = "local",
    read: ReadOptions | None = None,
    write: WriteOptions | None = None,
    dry_run: bool = False,
    cancel: CancelToken | None = None,
    **options: Unpack[EnrichKeywords],
) -> Report | FilesReport:
    """Do what :func:`enrich` does without blocking the event loop (asyncio or trio).

    Cancelled, a run that buys settles what is under way before it ends.
    """
    hide_key(options)
    import anyio.lowlevel
    import anyio.to_thread

    token = CancelToken() if cancel is None else cancel
    call = functools.partial(
        enrich, input, output, engine=engine, read=read, write=write, dry_run=dry_run, cancel=token, **options
    )
    failure: Exception | None = None
    ended = False

    async def cancel_when_cancelled() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            if not ended:
                token.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(cancel_when_cancelled)
        try:
            report = await anyio.to_thread.run_sync(call)
        except Exception as error:  # raised below: out of here it would come in a group
            failure = error
        ended = True
        group.cancel_scope.cancel()
    await anyio.lowlevel.checkpoint()  # who was cancelled hears that, and not that the run was stopped
    if failure is not None:
        raise failure
    return report


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

    ``frame``: polars (also lazy, which is verified at once), pandas or pyarrow. The user's own columns are given back
    as they were: a pandas index, dtypes, metadata. Headers of several levels are joined to find the columns, and the
    nine stand on the first level. ``reasons`` holds lists of strings. Arguments as for :func:`enrich`; warnings are
    Python warnings.
    Raises :class:`bizverify.errors.BizverifyError`.
    """
    hide_key(service)
    request = EngineRequest(engine, service, registry, gazetteer, model, lang, today)
    asking = status_options(status, max_status_age, request.kind, given=request.given is not None)
    # the rows of a lazy frame are read more than once, and must be the same each time
    table = frames.read(frame.collect(engine="streaming") if isinstance(frame, pl.LazyFrame) else frame)
    prepared = prepare_table(table, columns, prefix, extras=extra_columns)
    for warning in prepared.warnings:
        python_warnings.warn(warning, stacklevel=2)
    known = read_history(labels) if request.kind.answers_locally else None
    answering = request.open(known.history if known else None, choices)
    with (
        ExitStack() as resources,
        progress_asked(progress, _unit(request.kind)) as shown,
        answering.local.running(),
    ):
        run_id = new_run_id(datetime.now(UTC))
        context = RunContext("a frame", run_id, table.count(), progress=shown, resources=resources)
        context = replace(context, priority=prepared.priority_column(answering))
        asked = open_statuses(prepared.rows, asking, context) if asking is not None else None
        answering = answering.with_status(asked.overlay) if asked is not None else answering
        answers, purchase = answering.answer(answering.prepare(prepared.rows_for(answering)), context)
        if prepared.extras:
            answers = with_extra_columns(with_duplicates(answers.collect(engine="streaming").lazy()), prepared.extras)
        answered = accounting.number_rows(answers)
        tally = accounting.tally(answered, answering.counts())
        enriched = Enriched(table, with_words(answered, prepared.lang), prepared.layout, tally)
        result, rows_out, tallies = collect_like(enriched, frame)
    tallied = tallies.row(0, named=True)
    counts = accounting.row_counts_of(tallied)
    statuses = statuses_of(answering, counts, tallied, asked.fetch.halt if asked is not None else None)
    notes = [statuses.summary] if statuses is not None and statuses.is_alarming else []
    if purchase is not None:
        notes += [*purchase.notes, *([f"paused: {purchase.paused}"] if purchase.paused else [])]
    for note in notes:
        python_warnings.warn(note, stacklevel=2)
    accounting.check_balance(table.count(), counts, rows_out)
    return cast(Frame, result)


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
    hide_key(service)
    request = EngineRequest(engine, service, registry, gazetteer, model, lang, today)
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
            raise UsageError(
                gettext(
                    "{option} is for the local engine, not for {name}: the service is not told of it",
                    option=parameter(option),
                    name=request.kind.name,
                )
            )
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


_OF_LOCAL: Final = ("registry", "gazetteer", "model", "lang", "today")


class EngineRequest:
    """The engine that a call asks for: refused when this is made if it cannot be, opened by :meth:`open`.

    Raises :class:`UsageError` for an unknown name, and for options that are not of this engine.
    """

    def __init__(self, engine: AnyEngine, service: ServiceKeywords, *of_local: Any) -> None:
        self._of_local: dict[str, Any] = dict(zip(_OF_LOCAL, of_local, strict=True))
        self.given: Engine | None = None
        if isinstance(engine, str):
            self.kind = engine_kind(engine)
            self._service = service_options(engine, service)
            return
        refuse_unknown(service)
        said = [*service, *(name for name, value in self._of_local.items() if value is not None)]
        if said:
            raise UsageError(
                gettext(
                    "{option} is said when an engine is made; it is given as {option2}",
                    option=parameter(said[0]),
                    option2=parameter("engine"),
                )
            )
        given = LocalEngineAdapter(engine) if isinstance(engine, LocalEngine) else engine
        kind = getattr(given, "kind", None)
        if isinstance(engine, type) or not isinstance(kind, EngineKind):
            raise UsageError(
                gettext(
                    "unknown engine {engine!r}; use {listed}, or an engine object",
                    engine=engine,
                    listed=" or ".join(ENGINE_KINDS),
                )
            )
        self.given, self.kind = given, kind

    def open(self, history: pl.LazyFrame | None, choices: Choices = None) -> Engine:
        """Return the engine, with its indexes opened and what is known of earlier letters and of chosen addresses.

        Those that buy are imported only then, since they bring the network with them.
        """
        if self.given is not None:
            return self.given.with_history(history)
        of_local = self._of_local | {"model": resolve_model(self._of_local["model"]), "history": history}
        local = LocalEngine(**of_local, choices=read_choices(choices) if self.kind.answers_locally else None)
        if not self.kind.buys:
            return LocalEngineAdapter(local)
        from bizverify.purchase.paid_engines import paid_engine

        return paid_engine(self.kind, self._service, local)
