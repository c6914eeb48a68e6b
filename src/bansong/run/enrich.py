"""Verify files: `enrich` and `plan`, and the choice of the engine."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, Final, Literal, TypedDict, Unpack, cast, overload

import polars as pl

from bansong.base.after_fork import refuse_after_fork
from bansong.base.cancel import CancelToken
from bansong.base.display import AskedProgress, progress_asked
from bansong.base.errors import Problem, UsageError
from bansong.base.messages import Lang, Listed, Option, Phrase, gettext_noop, shorten
from bansong.base.option import choose_options, specs_of, take_options
from bansong.base.options import (
    ENGINE_KINDS,
    EngineKind,
    EngineName,
    ReadKeywords,
    ReadOptions,
    ServiceKeywords,
    ShortTraceback,
    StatusOptions,
    StatusSource,
    check_keywords,
    engine_kind,
    service_options,
    shows_keywords,
    status_options,
)
from bansong.engine.address.gazetteer import Gazetteer
from bansong.engine.local import Known, LocalEngine
from bansong.engine.protocol import Engine, LocalEngineAdapter
from bansong.engine.registry import Registry
from bansong.engine.risk.scorecard import Scorecard
from bansong.history.labels import Labels, read_history
from bansong.history.scorecards import resolve_model
from bansong.reference.reviews import Choices, read_choices
from bansong.run.files_report import FilesReport
from bansong.run.options import OPTION_KINDS, LocalOptions, RunOptions, WriteOptions
from bansong.run.report import Report
from bansong.run.runner import Run
from bansong.run.table import RunStart
from bansong.tables.frames import is_frame
from bansong.tables.inputs import is_one_file

OPTION_TOO_LATE: Final = Problem(
    "engines.option_too_late", "{option} is said when an engine is made; it is given as {engine}"
)
ENGINE_UNKNOWN: Final = Problem("engines.engine_unknown", "unknown engine {engine}; use {listed}, or an engine object")

AnyEngine = EngineName | LocalEngine | Engine  # the name of an engine, or one itself

Status = StatusSource | StatusOptions  # whether the tax authority is asked for statuses, or how


class EngineRequest:
    """The engine that a call asks for; raises :class:`UsageError` for options of another engine."""

    def __init__(self, engine: AnyEngine, service: ServiceKeywords, local: LocalOptions) -> None:
        refuse_after_fork()
        self._of_local: dict[str, Any] = {spec.name: getattr(local, spec.name) for spec in specs_of(LocalOptions)}
        self.given: Engine | None = None
        if isinstance(engine, str):
            self.kind = engine_kind(engine)
            self._service = service_options(engine, service)
            return
        said = [*service, *(name for name, value in self._of_local.items() if value is not None)]
        if said:
            raise UsageError(OPTION_TOO_LATE, option=Option(said[0]), engine=Option("engine"))
        given = LocalEngineAdapter(engine) if isinstance(engine, LocalEngine) else engine
        kind = getattr(given, "kind", None)
        if isinstance(engine, type) or not isinstance(kind, EngineKind):
            raise UsageError(ENGINE_UNKNOWN, engine=shorten(engine), listed=Listed(ENGINE_KINDS, gettext_noop(" or ")))
        self.given, self.kind = given, kind

    def open(self, history: pl.LazyFrame | None, choices: Choices = None) -> Engine:
        """Open the engine with its registry and gazetteer; only here an engine that buys is imported."""
        if self.given is not None:
            return self.given.with_known(Known(history))
        of_local = self._of_local | {"model": resolve_model(self._of_local["model"]), "history": history}
        local = LocalEngine(**of_local, choices=read_choices(choices) if self.kind.answers_locally else None)
        if not self.kind.buys:
            return LocalEngineAdapter(local)
        from bansong.purchase.engines import paid_engine

        return paid_engine(self.kind, self._service, local)

    def status_options(self, options: RunOptions) -> StatusOptions | None:
        return status_options(options.status, options.max_status_age, self.kind, given=self.given is not None)

    @property
    def progress_unit(self) -> str:
        return "lookups" if self.kind.buys else "rows"


def take_request(engine: AnyEngine, keywords: dict[str, Any]) -> tuple[EngineRequest, LocalOptions, RunOptions]:
    """Take the options of the local engine and of the run out of ``keywords``; those of the service stay there."""
    local, own = take_options(LocalOptions, keywords), take_options(RunOptions, keywords)
    return EngineRequest(engine, cast(ServiceKeywords, keywords), local), local, own


OPTION_TYPE_WRONG: Final = Problem("options.enrich_type_wrong", "{option} is a {type}: {remedy}")
LABELS_TURNED_OFF: Final = Problem(
    "options.labels_turned_off",
    "`with_outcomes=True` takes the outcomes from the label store; leave `labels=False` out",
)
INPUTS_NOT_LISTED: Final = Problem(
    "inputs.inputs_not_listed", "{path}: several inputs are given in a list: enrich([{path!r}])"
)

# files, globs, folders, partitioned datasets; no ``Sequence``, since a text is one, too
Inputs = list[str] | list[Path] | list[str | Path] | tuple[str | Path, ...]


class LocalKeywords(TypedDict, total=False):
    """The keywords of the local engine, as fields of :class:`LocalOptions` and :class:`RunOptions`."""

    registry: str | Path | Registry | None
    gazetteer: str | Path | Gazetteer | None
    model: str | Path | Scorecard | None
    lang: Lang | None
    today: date | str | None
    labels: Labels


class BatchKeywords(LocalKeywords, total=False):
    """The keywords of :func:`bansong.distributed.verify_batches` beside ``engine`` and ``threads``."""

    columns: Mapping[str, str | Sequence[str]] | None
    prefix: str


class VerifyKeywords(LocalKeywords, ServiceKeywords, total=False):
    """The keywords of :func:`bansong.verify` beside ``engine``."""

    status: Status
    max_status_age: float | None
    choices: Choices


class FrameKeywords(VerifyKeywords, total=False):
    """The keywords of :func:`bansong.verify_frame` beside ``engine``."""

    columns: Mapping[str, str | Sequence[str]] | None
    prefix: str
    extra_columns: Sequence[str]
    progress: AskedProgress


class EnrichKeywords(FrameKeywords, ReadKeywords, total=False):
    """The keywords of :func:`enrich` beside ``engine``, ``read`` and ``write``."""

    output_encoding: str | None
    headers: Lang | None
    in_place: bool
    backup: bool
    select: Sequence[str] | None
    summary: bool
    merge: bool
    with_outcomes: bool
    manifest: str | Path | None
    split: str | None
    letters: str | Path | None
    letter_columns: Sequence[str]
    letter_cost: float | None
    allow_empty: bool
    report: str | Path | None
    unmask: bool
    keep_going: bool
    review: str | Path | None
    decisions: str | Path | Literal[False] | None


class _PlanKeywords(EnrichKeywords, total=False):
    engine: AnyEngine
    read: ReadOptions | None
    write: WriteOptions | None
    cancel: CancelToken | None


class _AllKeywords(_PlanKeywords, total=False):
    dry_run: bool


@overload
def enrich(input: str | Path, output: str | Path | None = None, **options: Unpack[_AllKeywords]) -> Report: ...


@overload
def enrich(input: Inputs, output: str | Path | None = None, **options: Unpack[_AllKeywords]) -> FilesReport: ...


@shows_keywords(EnrichKeywords, OPTION_KINDS)
def enrich(
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
    """Verify every row of a file and write the file back with nine answer columns added.

    ``input``: CSV, TSV, XLSX, XLSM, XLS, XLSB, ODS, JSON, NDJSON or Parquet; text formats also as .gz or .zst. ``-`` is
    standard input; ``input_format`` names its format if the content leaves that open. ``output``: its extension chooses
    the format; by default ``INPUT.enriched.EXT`` beside the input; ``-`` is standard output. It replaces an existing
    file in one step, once it is complete and every row is accounted for. ``in_place`` replaces the input, which stays
    beside it as ``NAME.bak`` unless ``backup`` is false.

    A list of inputs (files, globs, folders, partitioned Parquet datasets) is one run, which returns a
    :class:`FilesReport`. ``output`` is then a folder, in which each output has its input's path below the given folder;
    for a single file it may be a file. ``sheet`` may be several names, or ``*``: every sheet with business numbers. A
    lookup that several files share is bought once; addresses and numbers are counted over all files. Every input is
    read, and every output is checked, before anything is bought; an input that cannot be enriched ends the run, or is
    left out with ``keep_going``. ``merge`` writes one file, ``output``: all rows in the order of the inputs, columns
    with one header as one, and a column ``file`` before the nine.

    ``columns`` maps roles (``b_no``, ``name``, ``address``, ``zipcode``, ``confirmed``) to headers: several in a list,
    or with ``+`` between, make up one value (``{"address": ["기본주소", "상세주소"]}``); with ``|`` between, each row
    takes the first that is filled; with an empty list no column has the role. ``confirmed``: the day on which somebody
    last made sure of the address. ``sheet`` (workbooks), ``encoding`` and ``delimiter`` (CSV), ``json_path`` (JSON,
    ``data.items``): where and how the table is read. Without a header (``has_header=False``) columns are called ``#1``,
    ``#2``, …, and roles are found by content.

    ``registry``, ``gazetteer``, ``model``, ``lang``, ``today``: see :class:`LocalEngine`.

    ``status``: whether the tax authority's free API is asked for statuses that are stored for more than
    ``max_status_age`` days (30): ``nts``, ``none``, or ``auto``: if a key is in the environment (``BANSONG_NTS_KEY``,
    ``BANSONG_NTS_KEY_FILE``); :class:`StatusOptions` say more. Only numbers are sent. Of a number in ``registry``, too,
    the newer status counts. If the API fails, what is stored and the registry count, and the report says how old they
    are.

    ``select``: the user's columns that the output keeps, by default all (headers, or ``#3``). ``prefix``: before the
    names of the nine. ``summary`` adds a sheet of figures to a new workbook. ``headers="ko"``: Korean headers for the
    added columns of a CSV file or workbook, and Korean words in them; an earlier output keeps its language.
    ``dry_run`` plans only and writes nothing.

    ``labels``: the folder of the label store (:func:`bansong.label`), by default the user's own; ``False`` for none.
    The local engine takes the history of each addressee from it. ``with_outcomes`` adds ``bounced``, ``bounce_reason``
    and ``bounced_at``: the outcome of the last letter to this number at this address. ``extra_columns``:
    ``duplicate_of`` (the first row, from 1, with the same number and corrected address), ``match_level`` (how well the
    address was understood), ``district_code`` (법정동코드), ``building_code`` (도로명주소관리번호).

    ``decisions``: an earlier output in which people changed actions and addresses or added columns: what they changed
    stays, and ``row_note`` says so. By default it is the output that is replaced; ``False``: none.

    ``split="action"`` writes a file for each action beside the output, ``OUT.send.EXT`` and so on. ``letters``: a file
    for the mail house, a row for each letter to be sent, sorted by postal code, with ``letter_columns`` (headers of
    yours) and the customers' keys; ``letter_cost``: the won that a letter costs, from which the report tells what was
    saved. An existing list is not replaced by an empty one unless ``allow_empty``; an ``OUT.send.EXT`` is kept as
    ``.bak``. ``report``: a web page of the run, in which people's data is masked unless ``unmask``. ``review``: a
    workbook of unsure addresses to choose from, for :func:`bansong.apply_review`. ``choices``: where the chosen
    addresses are, by default in the user's own store; ``False`` for none. The local engine uses them.

    ``engine``: ``local``, which costs nothing, or one that buys from the hosted service: ``verify`` (a request a
    lookup), ``batch`` (uploads), ``hybrid`` (only what the local engine is not sure of). These take the keywords of
    :class:`ServiceOptions`. What was bought is in the ledger and is not bought again: a stopped run continues with the
    same call. ``cancel`` stops such a run from another thread. An engine may be given, too: a :class:`LocalEngine`,
    :class:`ServiceEngine`, :class:`HybridEngine` or any :class:`Engine`, with its own registry, language and options.

    ``progress``: ``True`` shows a bar in a notebook or on a terminal; or a function of how many rows (of an engine that
    buys: lookups) are done, and of how many. ``read`` and ``write``: :class:`ReadOptions` and :class:`WriteOptions` in
    place of keywords.

    Raises :class:`bansong.errors.BansongError`: nothing was published then, as after ``KeyboardInterrupt``.
    """
    with ShortTraceback():
        keywords = check_keywords(enrich, options)
        _refuse_other_than_files("input", input)
        _refuse_other_than_files("output", "" if output is None else output)
        start = RunStart.now()
        reads = choose_options("read", read, take_options(ReadOptions, keywords))
        writes = choose_options("write", write, take_options(WriteOptions, keywords))
        request, local, own = take_request(engine, keywords)
        asking = request.status_options(own)
        if writes.with_outcomes and own.labels is False:
            raise UsageError(LABELS_TURNED_OFF)
        known = read_history(own.labels)
        of_run: dict[str, Any] = {"start": start, "known": known, "cancel": cancel, "status": asking}
        of_run["model"] = Path(local.model) if isinstance(local.model, str | Path) else None
        answering = request.open(known.history if known else None, own.choices)
        if isinstance(input, str | Path) and (own.keep_going or writes.merge or not is_one_file(input)):
            raise UsageError(INPUTS_NOT_LISTED, path=str(input))
        with progress_asked(None if dry_run else own.progress, request.progress_unit) as of_run["progress"]:
            run = Run.over(input, output, answering, reads, writes, keep_going=own.keep_going, **of_run)
            return run.plan() if dry_run else run.carry_out()


def _refuse_other_than_files(name: str, given: object) -> None:
    items = given if name == "input" and isinstance(given, list | tuple) else (given,)
    wrong = next((one for one in items if not isinstance(one, str | Path)), None)
    if wrong is None and given is not None:
        return
    remedy = Phrase("give the path of a file, or a list of paths")
    if name == "input" and is_frame(wrong):
        remedy = Phrase("verify_frame() verifies a frame")
    raise UsageError(OPTION_TYPE_WRONG, option=Option(name), type=type(wrong).__name__, remedy=remedy)


@overload
def plan(input: str | Path, output: str | Path | None = None, **options: Unpack[_PlanKeywords]) -> Report: ...


@overload
def plan(input: Inputs, output: str | Path | None = None, **options: Unpack[_PlanKeywords]) -> FilesReport: ...


@shows_keywords(EnrichKeywords, OPTION_KINDS)
def plan(
    input: str | Path | Inputs,
    output: str | Path | None = None,
    *,
    engine: AnyEngine = "local",
    read: ReadOptions | None = None,
    write: WriteOptions | None = None,
    cancel: CancelToken | None = None,
    **options: Unpack[EnrichKeywords],
) -> Report | FilesReport:
    """Return what :func:`enrich` would do with the same arguments; spends and writes nothing."""
    check_keywords(plan, options)
    return enrich(input, output, engine=engine, read=read, write=write, dry_run=True, cancel=cancel, **options)


@overload
async def aenrich(input: str | Path, output: str | Path | None = None, **options: Unpack[_AllKeywords]) -> Report: ...


@overload
async def aenrich(input: Inputs, output: str | Path | None = None, **options: Unpack[_AllKeywords]) -> FilesReport: ...


@shows_keywords(EnrichKeywords, OPTION_KINDS)
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

    A cancelled run that buys waits for the answers under way before it ends.
    """
    check_keywords(aenrich, options)
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
