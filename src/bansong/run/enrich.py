"""Verify files: `enrich`, `plan` and the engine that is asked for."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any, Final, Unpack, cast, overload

import polars as pl

from bansong.base.cancel import CancelToken
from bansong.base.display import AskedProgress, progress_asked
from bansong.base.errors import Problem, UsageError
from bansong.base.forking import refuse_after_fork
from bansong.base.messages import Lang, Listed, Option, Phrase, gettext_noop
from bansong.base.option import choose_options, specs_of, take_options
from bansong.base.options import (
    ENGINE_KINDS,
    EngineKind,
    EngineName,
    ReadKeywords,
    ReadOptions,
    ServiceKeywords,
    StatusOptions,
    StatusSource,
    WriteOptions,
    check_keywords,
    engine_kind,
    service_options,
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
from bansong.run.options import LocalOptions, RunOptions
from bansong.run.report import Report
from bansong.run.runner import Run
from bansong.run.table import RunStart
from bansong.tables.frames import is_frame
from bansong.tables.inputs import is_one_file

OPTION_TOO_LATE: Final = Problem(
    "engines.option_too_late", "{option} is said when an engine is made; it is given as {engine}"
)
ENGINE_UNKNOWN: Final = Problem(
    "engines.engine_unknown", "unknown engine {engine!r}; use {listed}, or an engine object"
)

AnyEngine = EngineName | LocalEngine | Engine
"""The name of an engine, or one itself."""

Status = StatusSource | StatusOptions
"""Whether the tax authority is asked for statuses, or how."""


class EngineRequest:
    """The engine that a call asks for: refused when this is made if it cannot be, opened by :meth:`open`.

    Raises :class:`UsageError` for an unknown name, and for options that are not of this engine.
    """

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
            raise UsageError(ENGINE_UNKNOWN, engine=engine, listed=Listed(ENGINE_KINDS, gettext_noop(" or ")))
        self.given, self.kind = given, kind

    def open(self, history: pl.LazyFrame | None, choices: Choices = None) -> Engine:
        """Return the engine, its indexes opened; one that buys is imported only now, since it brings the network."""
        if self.given is not None:
            return self.given.with_known(Known(history))
        of_local = self._of_local | {"model": resolve_model(self._of_local["model"]), "history": history}
        local = LocalEngine(**of_local, choices=read_choices(choices) if self.kind.answers_locally else None)
        if not self.kind.buys:
            return LocalEngineAdapter(local)
        from bansong.purchase.engines import paid_engine

        return paid_engine(self.kind, self._service, local)


def progress_unit(kind: EngineKind) -> str:
    return "lookups" if kind.buys else "rows"


OPTION_TYPE_WRONG: Final = Problem("options.enrich_type_wrong", "{option} is a {type}: {remedy}")
LABELS_TURNED_OFF: Final = Problem(
    "options.labels_turned_off",
    "`with_outcomes=True` takes the outcomes from the label store; leave `labels=False` out",
)
INPUTS_NOT_LISTED: Final = Problem(
    "inputs.inputs_not_listed", "{path}: several inputs are given in a list: enrich([{path!r}])"
)

Inputs = list[str] | list[Path] | list[str | Path] | tuple[str | Path, ...]
"""Several inputs: files, globs, folders, partitioned datasets. No ``Sequence``, since a text is one, too."""


class EnrichKeywords(ServiceKeywords, ReadKeywords, total=False):
    """The keywords of :func:`enrich` beside ``engine``, ``read`` and ``write``."""

    registry: str | Path | Registry | None
    gazetteer: str | Path | Gazetteer | None
    model: str | Path | Scorecard | None
    status: Status
    max_status_age: float | None
    lang: Lang | None
    today: date | str | None
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
    allow_empty: bool
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
    dry_run: bool = False,
    cancel: CancelToken | None = None,
    **options: Unpack[EnrichKeywords],
) -> Report | FilesReport:
    """Verify every row of a file and write the file back with the nine columns added.

    ``input``: CSV, TSV, XLSX, XLSM, XLS, XLSB, ODS, JSON, NDJSON or Parquet; text formats also as .gz or .zst.
    ``output``: its extension chooses the format; by default ``INPUT.enriched.EXT`` beside the input. ``in_place``
    replaces the input, which stays beside it as ``NAME.bak`` unless ``backup`` is false. An existing output is
    replaced, in one step, when the new one is complete and every row is accounted for; otherwise it stays as it was.
    ``-`` is standard input, and standard output; ``input_format`` says what comes there, where its content does not.

    A list of inputs is enriched in one run, which returns a :class:`FilesReport`: its items are files, globs, folders
    (the tables in them) and partitioned Parquet datasets, ``output`` is a folder, in which each output has the name
    that its input has below what was given; of a single file it may be a file. ``sheet`` may be several names then, or
    ``*``, every sheet with business numbers. What is the same in several files is bought once, and addresses and
    numbers are counted over all. Every input is read, and every output's place looked at, before anything is bought;
    one that cannot be enriched ends the run then, or, with ``keep_going``, is left out.

    ``columns`` maps roles (``b_no``, ``name``, ``address``, ``zipcode``, ``confirmed``) to headers where the choice
    from the headers is not the right one, several joined by ``+`` or in a list where they make up one value
    (``{"address": ["기본주소", "상세주소"]}``), with ``|`` between columns of which each row takes the first that is
    filled (``{"address": "도로명주소|지번주소"}``); ``confirmed`` is the day on which somebody last made sure of the
    address. ``sheet`` (workbooks), ``encoding`` (CSV) and ``json_path`` (JSON, ``data.items``) say where
    and how the table is read; ``delimiter`` is what stands between the cells of a CSV file, by default it is found.
    With ``has_header=False`` every row of a CSV file or workbook is one of the list: its
    columns are called ``#1``, ``#2``, …, in the output too, and the roles are found by content.
    ``registry``, ``gazetteer``, ``model``, ``lang``, ``today``: see :class:`LocalEngine`.

    ``status``: whether the tax authority's free API is asked for the status of each number, as far as what is stored is
    more than ``max_status_age`` days old (30): ``nts``, ``none``, or ``auto``, that is if a key is in the environment
    (``BANSONG_NTS_KEY``, ``BANSONG_NTS_KEY_FILE``); :class:`StatusOptions` say more. Only numbers are sent. Of a
    number in ``registry``, too, the newer status counts. Where the API cannot be reached, or its day's allowance is
    used up, the run goes on with what is stored and the registry: report and reasons say how old that is.

    ``select`` names the user's columns that the output keeps, by default all (headers, or ``#3`` for the third;
    several may stand in one item, separated by commas). ``prefix`` goes before the nine column names. ``summary``
    adds a sheet with the run's figures to a new workbook. ``headers="ko"`` gives the added columns of a CSV file or
    workbook Korean headers, and Korean words for the codes in them; a file that has them from an earlier run keeps
    its language. ``dry_run`` plans only and writes nothing.

    ``labels``: the folder of the label store, where :func:`bansong.label` records what came back; by default the
    user's own, if there is one, and ``False`` for none. The local engine takes the history of each addressee from it.
    ``with_outcomes`` adds ``bounced``, ``bounce_reason`` and ``bounced_at`` behind the nine: what became of the last
    letter to this number at this address.

    ``extra_columns`` adds columns behind the nine: ``duplicate_of`` (the first row, from 1, with the same number and
    the same address once it is corrected), ``match_level`` (how well the address was understood), ``district_code``
    (법정동코드 of its building), ``building_code`` (도로명주소관리번호 of its address). ``split="action"`` writes a
    file for each action beside the output, ``OUT.send.EXT`` and so on, which together hold every row once.
    ``letters`` is a file for the mail house: a row for each letter to be sent, sorted by postal code.
    An existing list is not replaced by one without a letter unless ``allow_empty``; an ``OUT.send.EXT`` is kept beside
    the empty one as ``.bak``. ``letter_cost``: won a letter; the
    report says what is saved.
    ``report``: a web page of the run to read, print and pass on; people's data is masked in it unless ``unmask``.
    ``review``: a workbook of the addresses that are not sure, with what each may mean and a cell for the choice, which
    :func:`bansong.apply_review` remembers. ``choices``: where it does; by default the user's own store, if there is
    one, and ``False`` for none. The local engine takes a chosen address for the one that is written.

    ``engine``: ``local``, which costs nothing, or one that buys from the hosted service: ``verify`` (a request a
    lookup), ``batch`` (uploads), ``hybrid`` (only what the local engine is not sure of). These take the keywords of
    :class:`ServiceOptions`; what was bought once is in the ledger and is not bought again, so a run that was stopped
    goes on where it was when the same call is made again. ``cancel`` stops such a run from another thread. Instead of a
    name, an engine may be given: a :class:`LocalEngine`, :class:`ServiceEngine`,
    :class:`HybridEngine` or any :class:`Engine`, with its own registry, language and options.

    ``progress``: ``True`` shows a bar in a notebook or on a terminal and nothing elsewhere, ``False`` nothing; or a
    function, which is called with how many rows (of an engine that buys: lookups) are done, and of how many.

    ``read`` and ``write`` are the fields of :class:`ReadOptions` and :class:`WriteOptions` in one value each, in place
    of keywords.

    Raises :class:`bansong.errors.BansongError`: nothing was published then. So it is after ``KeyboardInterrupt``.
    """
    check_keywords(enrich, options, EnrichKeywords)
    _refuse_other_than_files(input)
    start = RunStart.now()
    keywords: dict[str, Any] = {**options}
    reads = choose_options("read", read, take_options(ReadOptions, keywords))
    writes = choose_options("write", write, take_options(WriteOptions, keywords))
    local, own = take_options(LocalOptions, keywords), take_options(RunOptions, keywords)
    request = EngineRequest(engine, cast(ServiceKeywords, keywords), local)
    is_given = request.given is not None
    asking = status_options(own.status, own.max_status_age, request.kind, given=is_given)
    if writes.with_outcomes and own.labels is False:
        raise UsageError(LABELS_TURNED_OFF)
    known = read_history(own.labels)
    of_run: dict[str, Any] = {"start": start, "known": known, "cancel": cancel, "status": asking}
    of_run["model"] = Path(local.model) if isinstance(local.model, str | Path) else None
    answering = request.open(known.history if known else None, own.choices)
    if isinstance(input, str | Path) and (own.keep_going or not is_one_file(input)):
        raise UsageError(INPUTS_NOT_LISTED, path=str(input))
    with progress_asked(None if dry_run else own.progress, progress_unit(request.kind)) as of_run["progress"]:
        run = Run.over(input, output, answering, reads, writes, keep_going=own.keep_going, **of_run)
        return run.plan() if dry_run else run.carry_out()


def _refuse_other_than_files(given: object) -> None:
    items = given if isinstance(given, list | tuple) else (given,)
    wrong = next((one for one in items if not isinstance(one, str | Path)), None)
    if wrong is None and given is not None:
        return
    remedy = Phrase("give the path of a file, or a list of paths")
    if is_frame(wrong):
        remedy = Phrase("verify_frame() verifies a frame")
    raise UsageError(OPTION_TYPE_WRONG, option=Option("input"), type=type(wrong).__name__, remedy=remedy)


@overload
def plan(
    input: str | Path,
    output: str | Path | None = None,
    *,
    engine: AnyEngine = "local",
    read: ReadOptions | None = None,
    write: WriteOptions | None = None,
    cancel: CancelToken | None = None,
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
    cancel: CancelToken | None = None,
    **options: Unpack[EnrichKeywords],
) -> FilesReport: ...


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
    check_keywords(plan, options, EnrichKeywords)
    return enrich(input, output, engine=engine, read=read, write=write, dry_run=True, cancel=cancel, **options)


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
    check_keywords(aenrich, options, EnrichKeywords)
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
