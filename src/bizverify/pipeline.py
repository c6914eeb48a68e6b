"""Wires the stages: read → map → plan → verify → join → account → publish → report."""

from __future__ import annotations

import functools
import logging
import time
import warnings as python_warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Unpack

import polars as pl

from bizverify import __version__, number
from bizverify.engine import LocalEngine, Registry, Scorecard
from bizverify.engine.local import ROW_PROBLEM
from bizverify.errors import UsageError
from bizverify.execute import join
from bizverify.execute.plan import PLAN_COUNTS, marked, plan_of
from bizverify.execute.plan import plan as count_plan
from bizverify.execute.rows import ROW_ID, records, with_digits
from bizverify.execute.terms import PAYING, ServiceOptions, Terms, terms_of
from bizverify.model import ADDED_COLUMNS, REASON_SEPARATOR, RECORD_COLUMNS, Choice, Lang, Verification
from bizverify.output import Target, changes, keep_apart, losses, target_of
from bizverify.report import Report, Versions, default_manifest, sections, sha256_of, write_manifest
from bizverify.state import new_run_id
from bizverify.tables import (
    Enriched,
    Table,
    frames,
    open_table,
    published,
    reading,
    write_table,
    written_rows,
)
from bizverify.tables.columns import Chosen, choose_columns, kept_columns, named_column, own_columns
from bizverify.tables.packing import private_folder
from bizverify.tables.publish import backed_up

if TYPE_CHECKING:
    from bizverify.execute.buying.brake import Brake
    from bizverify.execute.paid import PaidEngine
    from bizverify.execute.purchase import Purchase

log = logging.getLogger(__name__)

ENGINES: Final = ("local", *PAYING)

Progress = Callable[[int, int], None]
"""Called with (done, in all), from any thread: rows answered by the local engine, lookups by those that buy."""


def enrich(
    input: str | Path,
    output: str | Path | None = None,
    *,
    engine: str = "local",
    columns: Mapping[str, str] | None = None,
    registry: str | Path | Registry | None = None,
    model: str | Path | Scorecard | None = None,
    lang: Lang = "en",
    today: date | None = None,
    sheet: str | None = None,
    encoding: str | None = None,
    json_path: str | None = None,
    output_encoding: str | None = None,
    in_place: bool = False,
    backup: bool = True,
    select: Sequence[str] | None = None,
    prefix: str = "",
    summary: bool = False,
    manifest: str | Path | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
    brake: Brake | None = None,
    **service: Unpack[ServiceOptions],
) -> Report:
    """Verify every row of a file and write the file back with the nine columns added.

    ``input``: CSV, TSV, XLSX, XLSM, XLS, XLSB, ODS, JSON, NDJSON or Parquet; text formats also as .gz or .zst.
    ``output``: its extension chooses the format; by default ``INPUT.enriched.EXT`` beside the input. ``in_place``
    replaces the input, which stays beside it as ``NAME.bak`` unless ``backup`` is false. An existing output is
    replaced, in one step, when the new one is complete and every row is accounted for; otherwise it stays as it was.

    ``columns`` maps roles (``b_no``, ``name``, ``address``, ``zipcode``) to headers where the choice from the headers
    is not the right one. ``sheet`` (workbooks), ``encoding`` (CSV) and ``json_path`` (JSON, ``data.items``) say where
    and how the table is read. ``registry``, ``model``, ``lang``, ``today``: see :class:`LocalEngine`.

    ``select`` names the user's columns that the output keeps, by default all (headers, or ``#3`` for the third;
    several may stand in one item, separated by commas). ``prefix`` goes before the nine column names. ``summary``
    adds a sheet with the run's figures to a new workbook. ``dry_run`` plans only and writes nothing.

    ``engine``: ``local``, which costs nothing, or one that buys from the hosted service: ``verify`` (a request a
    lookup), ``batch`` (uploads), ``hybrid`` (only what the local engine is not sure of). For these, ``service`` is as
    in :class:`bizverify.execute.terms.ServiceOptions`; what was bought once is in the ledger and is not bought again,
    so a run that was stopped goes on where it was when the same call is made again. ``brake`` stops such a run from
    another thread.

    Raises :class:`bizverify.errors.BizverifyError`: nothing was published then. So it is after ``KeyboardInterrupt``.
    """
    path, started, clock = Path(input), datetime.now(UTC), time.monotonic()
    local = LocalEngine(registry, model=model, lang=lang, today=today)
    terms = _terms(engine, service)
    with ExitStack() as resources:
        paid = resources.enter_context(_paid(engine, terms, local, brake))
        table = resources.enter_context(open_table(path, sheet=sheet, encoding=encoding, json_path=json_path))
        asked = {"encoding": output_encoding, "backup": backup, "summary": summary}
        target = target_of(path, table.format, output, in_place, **asked)
        keep_apart(
            {
                "input": path,
                "registry": local.registry.path if local.registry else None,
                "model": Path(model) if isinstance(model, str | Path) else None,
                "ledger": paid.path if paid else None,
                "key file": Path(terms.key_file) if terms.key_file is not None else None,
            },
            {"output": target.path, "manifest": Path(manifest) if manifest is not None else None},
            in_place,
        )
        stages = _staged(table, columns, prefix, select)
        if paid is not None:
            stages = replace(stages, rows=paid.marked(stages.rows))
        priority = None if terms.priority is None else table.ids[named_column(table, terms.priority, "--priority")]
        lost = losses(table, target, in_place, leaves_out=stages.leaves_out, header_unsure=stages.header_unsure)
        lost += changes(table, target, stages.layout)
        stages = replace(stages, warnings=(*stages.warnings, *lost))
        run = _Run(path, new_run_id(started), started, clock, engine, local, stages, paid, priority)
        with reading(table), local.running():
            if dry_run:
                return run.planned()
            return run.carried_out(target, manifest, progress)


def plan(input: str | Path, **options: Any) -> Report:
    """Return what :func:`enrich` would do with the same arguments; spends and writes nothing."""
    return enrich(input, **options, dry_run=True)


async def aenrich(input: str | Path, output: str | Path | None = None, **options: Any) -> Report:
    """Do what :func:`enrich` does without blocking the event loop (asyncio or trio).

    Cancelled, a run that buys settles what is under way before it ends.
    """
    import anyio.lowlevel
    import anyio.to_thread

    from bizverify.execute.buying.brake import Brake

    brake: Brake = options.setdefault("brake", Brake())
    failure: Exception | None = None

    async def pull_when_cancelled() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            brake.pull()

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
    columns: Mapping[str, str] | None = None,
    registry: str | Path | Registry | None = None,
    model: str | Path | Scorecard | None = None,
    lang: Lang = "en",
    today: date | None = None,
    prefix: str = "",
    engine: str = "local",
    **service: Unpack[ServiceOptions],
) -> pl.DataFrame:
    """Return a frame with the nine columns added.

    ``frame``: polars (also lazy), pandas or pyarrow; the result is a polars DataFrame with the same rows in the same
    order, ``reasons`` a list of strings. Arguments as for :func:`enrich`; warnings are Python warnings.
    Raises :class:`bizverify.errors.BizverifyError`.
    """
    table = frames.read(frame)
    stages = _staged(table, columns, prefix)
    for warning in stages.warnings:
        python_warnings.warn(warning, stacklevel=2)
    local = LocalEngine(registry, model=model, lang=lang, today=today)
    terms = _terms(engine, service)
    with _paid(engine, terms, local) as paid, local.running():
        if paid is None:
            answers, notes = local.answer(stages.rows), tuple[str, ...]()
        else:
            priority = None if terms.priority is None else table.ids[named_column(table, terms.priority, "priority")]
            answers, purchase = paid.bought_and_answered(paid.marked(stages.rows), priority, "a frame")
            notes = (*purchase.notes, *((f"paused: {purchase.paused}",) if purchase.paused else ()))
        answered = join.numbered_out(answers)
        result, tallied = frames.write(Enriched(table, answered, stages.layout, join.tally(answered)))
    for note in notes:
        python_warnings.warn(note, stacklevel=2)
    join.balance(table.count(), join.account_of(tallied.row(0, named=True)), result.height)
    return result


def verify(
    b_no: str | int,
    name: str | None = None,
    address: str | None = None,
    zipcode: str | None = None,
    *,
    registry: str | Path | Registry | None = None,
    model: str | Path | Scorecard | None = None,
    lang: Lang = "en",
    today: date | None = None,
    engine: str = "local",
    **service: Unpack[ServiceOptions],
) -> Verification:
    """Verify one business; a value that is no business number gives ``row_status`` invalid.

    ``engine`` and ``service`` as for :func:`enrich`: what was bought before comes from the ledger. ``zipcode``,
    ``registry`` and ``model`` are for the local engine, and refused where it has no say.
    """
    for option, value in (("zipcode", zipcode), ("registry", registry), ("model", model)):
        if engine in ("verify", "batch") and value is not None:
            raise UsageError(f"--{option} is for the local engine, not for {engine}: the service is not told of it")
    record = dict(zip(RECORD_COLUMNS, (str(b_no), name, address, zipcode), strict=True))
    frame = pl.LazyFrame([record], schema=dict.fromkeys(RECORD_COLUMNS, pl.String))
    local = LocalEngine(registry, model=model, lang=lang, today=today)
    with _paid(engine, _terms(engine, service), local) as paid, local.running():
        if paid is None:
            answers = local.answer(frame)
        else:
            rows = with_digits(frame).with_row_index(ROW_ID).with_columns(pl.lit(None, pl.String).alias(ROW_PROBLEM))
            answers, _ = paid.bought_and_answered(paid.marked(rows), None, "one lookup")
        answer = answers.collect().row(0, named=True)
    fields = {key: answer[key] for key in ADDED_COLUMNS if key != "reasons"}
    digits = None if answer["row_status"] == "invalid" else number.compact(b_no)
    reasons = tuple((answer["reasons"] or "").split(REASON_SEPARATOR)) if answer["reasons"] else ()
    return Verification(b_no=digits, reasons=reasons, **fields)


def _terms(engine: str, options: ServiceOptions) -> Terms:
    if engine not in ENGINES:
        raise UsageError(f"unknown engine {engine!r}; use {' or '.join(ENGINES)}")
    return terms_of(engine, options)


@contextmanager
def _paid(engine: str, terms: Terms, local: LocalEngine, brake: Brake | None = None) -> Iterator[PaidEngine | None]:
    """Yield the engine that buys, if one was asked for; loaded only then, since it brings the network with it."""
    if engine not in PAYING:
        yield None
        return
    from bizverify.execute.buying.brake import Brake
    from bizverify.execute.paid import PaidEngine

    with private_folder() as folder:
        yield PaidEngine(engine, terms, local, folder, brake or Brake())


@dataclass(frozen=True, slots=True)
class _Stages:
    """A table with its columns chosen and its output laid out."""

    table: Table
    chosen: Mapping[str, Choice]
    rows: pl.LazyFrame
    layout: tuple[tuple[str, str], ...]
    leaves_out: bool
    warnings: tuple[str, ...]

    @property
    def header_unsure(self) -> bool:
        """Whether no header says for certain that it is one, so that what stands above may be rows."""
        return "b_no" in self.chosen and self.chosen["b_no"].why in ("similar", "content")


def _staged(
    table: Table, columns: Mapping[str, str] | None, prefix: str, select: Sequence[str] | None = None
) -> _Stages:
    ours = own_columns(table.headers, prefix)
    if table.headers:
        with reading(table):
            chosen = choose_columns(table, RECORD_COLUMNS, columns, set(ours.values()))
    else:  # `[]`: no record, so no key to find
        chosen = Chosen({})
    log.info("%s read as %s, %d columns; roles: %s", table.name, table.format, len(table.headers), chosen)
    rows = records(table, chosen.columns, set(ours.values()))
    every = frozenset(range(len(table.headers)))
    kept = kept_columns(table, [select] if isinstance(select, str) else select) if select else every
    kept |= set(ours.values())
    layout, warnings = join.layout(table.headers, prefix, ours, kept)
    if table.headers and "address" not in chosen.columns:
        warnings = (*warnings, "no address column was found: the status is verified, no bounce risk is given")
    return _Stages(table, chosen.columns, rows, layout, kept < every, (*table.notes, *chosen.notes, *warnings))


@dataclass(frozen=True, slots=True)
class _Run:
    """One run over one file: of the local engine, or of one that buys."""

    path: Path
    run_id: str
    started: datetime
    clock: float
    engine: str
    local: LocalEngine
    stages: _Stages
    paid: PaidEngine | None
    priority: str | None

    def planned(self) -> Report:
        rows = self.stages.rows
        purchase = self.paid.quoted(rows, self.priority) if self.paid else None
        return self._report(purchase, plan=count_plan(rows))

    def carried_out(self, target: Target, manifest: str | Path | None, progress: Progress | None) -> Report:
        record = Path(manifest) if manifest is not None else default_manifest(self.run_id)
        table, format = self.stages.table, target.format
        # the backup is undone last, when it is known whether the old file was replaced
        with published(record) as record_file, ExitStack() as backup, published(target.path) as temporary:
            rows_in = table.count()
            log.info("run %s: %d rows to verify, writing %s to %s", self.run_id, rows_in, format, target.path)
            tallied, purchase = self._written(target, temporary, progress, rows_in)
            account = join.account_of(tallied)
            join.balance(rows_in, account, written_rows(table, temporary, format, target.encoding))
            report = self._report(
                purchase,
                plan=plan_of(tallied),
                account=account,
                output=str(target.path),
                manifest=str(record),
                input_sha256=sha256_of(self.path),
                backup=str(backup.enter_context(backed_up(target.path, record))) if target.backup else None,
            )
            write_manifest(report, record_file)
        log.info("run %s: published %s in %.2f s", self.run_id, target.path, report.seconds)
        return report

    def _written(
        self, target: Target, temporary: Path, progress: Progress | None, total: int
    ) -> tuple[dict[str, Any], Purchase | None]:
        """Answer the rows and write them; return the tally of the very rows that were written."""
        answers, purchase = self._answers(progress, total)
        answered = join.numbered_out(answers)
        compared = self.paid.counts() if self.paid else ()
        tally, summary = join.tally(answered, (*PLAN_COUNTS, *compared)), sections if target.summary else None
        result = Enriched(self.stages.table, answered, self.stages.layout, tally, summary)
        tallied = write_table(result, temporary, target.format, target.encoding).row(0, named=True)
        if self.paid is not None and purchase is not None:
            purchase = replace(purchase, agreement=self.paid.agreed(tallied))
        return tallied, purchase

    def _answers(self, progress: Progress | None, total: int) -> tuple[pl.LazyFrame, Purchase | None]:
        rows = marked(self.stages.rows)
        if self.paid is not None:
            return self.paid.bought_and_answered(
                rows, self.priority, str(self.path), self.run_id, progress=progress or (lambda _done, _total: None)
            )
        if progress is not None:
            rows = rows.with_columns(_watched(progress, total))
        return self.local.answer(rows), None

    def _report(self, purchase: Purchase | None, **found: Any) -> Report:
        return Report(
            run_id=self.run_id,
            started=self.started,
            seconds=time.monotonic() - self.clock,
            engine=self.engine,
            input=str(self.path),
            table=self.stages.table.name,
            columns=self.stages.chosen,
            versions=Versions(
                bizverify=__version__,
                model=self.local.model.version,
                registry=self.local.registry.version if self.local.registry else None,
            ),
            warnings=(
                *self.stages.warnings,
                *_hints(self.engine, self.local, self.paid),
                *(purchase.notes if purchase else ()),
            ),
            purchase=purchase,
            **found,
        )


def _hints(engine: str, local: LocalEngine, paid: PaidEngine | None) -> tuple[str, ...]:
    """What the registry, given or not, means for a run of this engine, where that may be a surprise."""
    if engine in ("local", "hybrid"):
        if local.registry is not None:
            return ()
        meaning = {"local": "biz_status is unknown in every row", "hybrid": "every lookup is uncertain, and bought"}
        remedy = "build one with `bizverify data build-registry` and give it with --registry"
        return (f"no registry was given, so {meaning[engine]}; {remedy}",)
    by_worth = paid is not None and paid.terms.budget is not None and paid.terms.priority is None
    if local.registry is None or by_worth:
        return ()
    return (f"the registry answers nothing here: with --engine {engine} every answer is the service's",)


def _watched(progress: Progress, total: int) -> pl.Expr:
    """Return the row numbers, reporting how many have passed; polars may call from several threads at once."""
    import threading

    lock, done = threading.Lock(), 0

    def count(row_ids: pl.Series) -> pl.Series:
        nonlocal done
        with lock:
            done += len(row_ids)
            progress(done, total)
        return row_ids

    return pl.col(ROW_ID).map_batches(count, return_dtype=pl.get_index_type(), is_elementwise=True)
