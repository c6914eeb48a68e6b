"""One run over one table: its columns chosen, its rows answered by an engine, written, accounted for and published."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from bizverify._version import __version__
from bizverify.cloud.remote_files import InputData, fetch_file
from bizverify.cloud.remote_path import as_path, is_remote
from bizverify.column_words import language_of_columns
from bizverify.engine.letter_history import with_letters
from bizverify.engine.local import NUMBER
from bizverify.errors import UsageError, parameter
from bizverify.labels.history import LabelHistory
from bizverify.labels.output_columns import LABEL_DTYPES, find_label_columns
from bizverify.options import ALL_SHEETS, ReadOptions, WriteOptions
from bizverify.report import (
    LetterHistory,
    Report,
    Versions,
    default_manifest,
    match_counts,
    record_of,
    sections,
    sha256_of,
    write_manifest,
)
from bizverify.report_page.page import check_page, render_into
from bizverify.report_page.page_figures import PageFigures, collect_figures
from bizverify.run import accounting
from bizverify.run.accounting import PLAN_COUNTS, LookupPlan, plan_of, with_plan_columns
from bizverify.run.accounting import plan as count_plan
from bizverify.run.alerts import (
    COMMON_FAILURE,
    FAILURE_COUNTS,
    bought_alert,
    failure_alert,
    garbled_alert,
    invalid_alert,
    vanished_alert,
)
from bizverify.run.cross_row_features import with_cross_row_features, with_found_features
from bizverify.run.duplicates import with_duplicates
from bizverify.run.engine import Answering, Engine, Progress, RunContext
from bizverify.run.extra_columns import checked_extra_columns, unknown_extra_columns, with_extra_columns
from bizverify.run.letter_list import mark_letters
from bizverify.run.output_layout import (
    Target,
    choose_stream,
    choose_target,
    find_changes,
    find_losses,
    keep_apart,
    lay_out_columns,
    refuse_wide,
)
from bizverify.run.records import records
from bizverify.run.side_files import SideFiles, WrittenSides
from bizverify.run.status_counts import StatusCounts, statuses_of
from bizverify.schema import (
    ADDED_COLUMNS,
    CONTEXT_COLUMNS,
    LABEL_COLUMNS,
    RECORD_COLUMNS,
    Alert,
    Choice,
    Lang,
    seoul_day,
)
from bizverify.storage.filesystem import new_run_id
from bizverify.tables import Enriched, Table, open_table, publish_file, reading, write_table, written_rows
from bizverify.tables.columns import Chosen, extra_columns, kept_columns, named_column, own_columns
from bizverify.tables.compression import private_folder
from bizverify.tables.nested import choose_nested, held_choice, unfold
from bizverify.tables.publish import backed_up
from bizverify.tables.standard_streams import STREAM, keep_input, name_input, send_output
from bizverify.translation import gettext, gettext_noop

if TYPE_CHECKING:
    from bizverify.cancellation import CancelToken
    from bizverify.engine.address import Gazetteer
    from bizverify.options import StatusOptions
    from bizverify.reference.run_statuses import RunStatuses
    from bizverify.run.engine import Purchase

log = logging.getLogger(__name__)

_OTHER_HEADERS: Final = gettext_noop(
    "the added columns of an earlier run stay in their language; remove them from the file to have `headers=` obeyed"
)
_NO_OUTCOMES: Final = gettext_noop(
    "no outcomes are recorded, so bounced, bounce_reason and bounced_at are empty; see `bizverify label`"
)


_STORED_TOGETHER: Final = 20_000
"""Rows of stored answers that are read in one piece: a reader holds many, and larger ones take more memory."""


@dataclass(frozen=True, slots=True)
class RowReader:
    """Which columns are what, as chosen for one table; good for every table with the same headers, and picklable.

    ``chosen``: by positions of the table with the values within its objects behind its columns. ``ours``: positions of
    columns from an earlier enrichment.
    """

    headers: tuple[str, ...]
    chosen: Mapping[str, Choice]
    ours: frozenset[int]

    def read(self, table: Table) -> pl.LazyFrame:
        """Return a table's rows as :func:`bizverify.run.records.records`."""
        return records(unfold(table), self.chosen, self.ours)


@dataclass(frozen=True, slots=True)
class PreparedTable:
    """A table with its columns chosen and its output laid out."""

    table: Table
    reader: RowReader
    chosen: Mapping[str, Choice]
    rows: pl.LazyFrame
    layout: tuple[tuple[str, str], ...]
    leaves_out: bool
    warnings: tuple[str, ...]
    extras: tuple[str, ...] = ()
    lang: Lang = "en"
    """The language of the headers of the added columns, and of the words in them."""

    @property
    def header_unsure(self) -> bool:
        """Whether no header says for certain that it is one, so that what stands above may be rows."""
        return "b_no" in self.chosen and self.chosen["b_no"].why in ("similar", "content")

    def rows_for(self, engine: Engine) -> pl.LazyFrame:
        """Return the rows, with the features of the whole file if the local engine answers: that reads the file."""
        return with_cross_row_features(self.rows) if engine.kind.answers_locally else self.rows

    def priority_column(self, engine: Engine) -> str | None:
        """Return the column of the rows that orders what the engine buys; raise :class:`ColumnError` for none."""
        if engine.priority is None:
            return None
        return self.table.ids[named_column(self.table, engine.priority, "priority")]


NO_ADDRESS: Final = gettext_noop(
    "no address column was found: no bounce risk is given, only the status where it can be checked"
)
"""What is said of a file without addresses."""


def prepare_table(
    table: Table,
    columns: Mapping[str, str | Sequence[str]] | None,
    prefix: str,
    select: Sequence[str] | None = None,
    with_outcomes: bool = False,
    extras: Sequence[str] = (),
    headers: Lang | None = None,
) -> PreparedTable:
    """Choose a table's columns, number its rows, lay its output out; raises :class:`bizverify.errors.ColumnError`.

    ``headers``: the language of the added columns; one that they have from an earlier run stays.
    """
    ours = own_columns(table.headers, prefix)
    labels, earlier = find_label_columns(table.headers, prefix), extra_columns(table.headers, prefix)
    before = {*ours.values(), *labels.values(), *earlier.values()}
    if table.headers:
        with reading(table):
            unfolded, chosen = choose_nested(table, (*RECORD_COLUMNS, *CONTEXT_COLUMNS), columns, before)
    else:  # `[]`: no record, so no key to find
        unfolded, chosen = table, Chosen({})
    log.info("%s read as %s, %d columns; roles: %s", table.name, table.format, len(table.headers), chosen)
    rows = records(unfolded, chosen.columns, before)
    every = frozenset(range(len(table.headers)))
    kept = kept_columns(table, [select] if isinstance(select, str) else select) if select else every
    lang = language_of_columns(table.headers, ours) or headers or "en"
    ours |= earlier | (labels if with_outcomes else {})
    kept |= set(ours.values())
    extras = checked_extra_columns((*extras, *earlier))  # those of an earlier run would be of other answers
    added = (*ADDED_COLUMNS, *(LABEL_COLUMNS if with_outcomes else ()), *extras)
    layout, warnings = lay_out_columns(table.headers, prefix, ours, kept, added, lang)
    if headers not in (None, lang):
        warnings = (*warnings, gettext(_OTHER_HEADERS))
    if table.headers and "address" not in chosen.columns:
        warnings = (
            *warnings,
            gettext(NO_ADDRESS),
        )
    shown = {role: held_choice(table, choice) for role, choice in chosen.columns.items()}
    reader = RowReader(table.headers, dict(chosen.columns), frozenset(before))
    notes = (*table.notes, *chosen.notes, *warnings)
    return PreparedTable(table, reader, shown, rows, layout, kept < every, notes, extras, lang)


@dataclass(frozen=True, slots=True)
class RunStart:
    """A run's id, and when it began: as a time, and in seconds of the monotonic clock."""

    run_id: str
    at: datetime
    clock: float

    @classmethod
    def now(cls) -> RunStart:
        """Return the start of a run that begins now."""
        at = datetime.now(UTC)
        return cls(new_run_id(at), at, time.monotonic())


def enrich_file(
    path: Path,
    output: str | Path | None,
    engine: Engine,
    read: ReadOptions,
    write: WriteOptions,
    *,
    start: RunStart,
    known: LabelHistory | None = None,
    model: Path | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
    cancel: CancelToken | None = None,
    status: StatusOptions | None = None,
    observe: Callable[[pl.LazyFrame], pl.LazyFrame] | None = None,
) -> Report:
    """Verify the rows of a file with an engine and publish the output, or plan that; return what was done.

    ``observe`` puts itself between the answered rows and what is written, and changes neither. ``status``: how the tax
    authority is asked for statuses, ``None`` if it is not. ``known``: what the label store has of earlier letters.
    ``model``: the file of the scorecard, which is not to be replaced.

    Raises :class:`bizverify.errors.BizverifyError`: nothing was published then.
    """
    if not isinstance(read.sheet, str | None) or read.sheet == ALL_SHEETS:
        raise UsageError(gettext("several sheets have a report each: give the input in a list"))
    if read.input_format is not None and path != STREAM:
        raise UsageError(gettext("`input_format=` is for standard input; of a file, the name and the content tell it"))
    with ExitStack() as resources:
        data = InputData(keep_input(resources)) if path == STREAM else resources.enter_context(fetch_file(path))
        table = resources.enter_context(open_input(path, data.path, read, read.sheet))
        target = _target_of(path, output, table, write, resources)
        record = as_path(write.manifest) if write.manifest is not None else None
        sides = SideFiles.of(write, target, engine.local.gazetteer if engine.kind.answers_locally else None)
        if sides.page is not None:
            check_page(sides.page)
        files = files_read(engine, model, status)
        keep_apart(
            {"input": path if is_remote(path) else data.path, **files},
            {"output": target.path, "manifest": record, **sides.paths_by_use()},
            write.in_place,
        )
        prepared = prepare_output(table, target, read, write)
        prepared = replace(prepared, rows=engine.prepare(prepared.rows))
        context = RunContext(
            str(path),
            start.run_id,
            priority=prepared.priority_column(engine),
            progress=progress,
            cancel=cancel,
            resources=resources,
        )
        run = EnrichmentRun(
            path, start, engine, prepared, context, known, write.with_outcomes, sides, observe=observe, data=data
        )
        with reading(table), engine.local.running():
            if status is not None:
                run = run.with_statuses(status, planned=dry_run)
            return run.plan() if dry_run else run.carry_out(target, record)


def open_input(path: Path, data: Path, read: ReadOptions, sheet: str | None) -> AbstractContextManager[Table]:
    """Open the table of an input as the options say; ``path`` is what it is called, ``data`` where it is."""
    return open_table(
        name_input(read.input_format) if path == STREAM else path,
        sheet=sheet,
        encoding=read.encoding,
        json_path=read.json_path,
        has_header=read.has_header,
        data=data,
    )


def files_read(engine: Engine, model: Path | None, status: StatusOptions | None) -> dict[str, Path | None]:
    """Return the files that a run reads or keeps beside its input, by what they are."""
    files = {**engine.files(), "model": model}
    if status is not None:
        from bizverify.reference.run_statuses import status_files

        files |= status_files(status)
    return files


def _target_of(
    path: Path, output: str | Path | None, table: Table, write: WriteOptions, resources: ExitStack
) -> Target:
    """Where the output of an input goes: to standard output where that is said, or where it came from standard input.

    What is written beside the output needs a file to be beside.
    """
    options: dict[str, Any] = {"encoding": write.output_encoding, "backup": write.backup, "summary": write.summary}
    streamed = output is not None and Path(output) == STREAM
    if not streamed and (output is not None or path != STREAM):
        return choose_target(path, table.format, output, write.in_place, **options)
    if write.split:
        raise UsageError(gettext("`split=` writes files beside the output; name the output"))
    if write.in_place:
        raise UsageError(gettext("`in_place=True` replaces a file, and standard input is none"))
    return choose_stream(path, table.format, resources.enter_context(private_folder()), **options)


def prepare_output(table: Table, target: Target, read: ReadOptions, write: WriteOptions) -> PreparedTable:
    """Prepare a table for its output, with the warnings of what that cannot have."""
    if not write.select:
        refuse_wide(table, target, write.prefix)
    if write.headers == "ko" and target.format not in ("csv", "xlsx"):
        raise UsageError(
            gettext(
                "{path}: {option} is for CSV files and workbooks, this output is {format}",
                path=target.path,
                option=parameter("headers", "ko"),
                format=target.format,
            )
        )
    prepared = prepare_table(
        table, read.columns, write.prefix, write.select, write.with_outcomes, write.extra_columns, write.headers
    )
    lost = find_losses(
        table, target, write.in_place, leaves_out=prepared.leaves_out, header_unsure=prepared.header_unsure
    )
    lost += find_changes(table, target, prepared.layout)
    return replace(prepared, warnings=(*prepared.warnings, *lost))


@dataclass(frozen=True, slots=True)
class _WrittenAnswers:
    """The tally of the very rows that were written, what they have cost, what is beside them, the page's figures."""

    tallied: Mapping[str, Any]
    purchase: Purchase | None
    beside: WrittenSides | None
    figures: PageFigures | None


@dataclass(frozen=True, slots=True)
class JointAnswers:
    """What was found out and bought for a table together with others.

    ``features``: the cross-row features of its rows, ``None`` where no local engine answers. ``purchase``: that of all
    tables together.
    """

    answer: Answering
    features: pl.DataFrame | None
    purchase: Purchase | None

    def of(self, begins: int, rows: int) -> JointAnswers:
        """Return those of one table, whose rows are so many from one on."""
        features = None if self.features is None else self.features.slice(begins, rows)
        return replace(self, features=features)

    def with_features(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """Add the features to the table's rows."""
        return rows if self.features is None else with_found_features(rows, self.features)


@dataclass(frozen=True, slots=True)
class EnrichmentRun:
    """One run of an engine over one file.

    ``data``: where the bytes of the file are. ``joint``: what is known of its rows already, since they are
    answered together with those of other tables.
    """

    path: Path
    start: RunStart
    engine: Engine
    prepared: PreparedTable
    context: RunContext
    known: LabelHistory | None = None
    with_outcomes: bool = False
    sides: SideFiles = field(default_factory=SideFiles)
    asked: RunStatuses | None = None
    observe: Callable[[pl.LazyFrame], pl.LazyFrame] | None = None
    data: InputData | None = None
    joint: JointAnswers | None = None

    def with_statuses(self, options: StatusOptions, *, planned: bool) -> EnrichmentRun:
        """Return this run with the statuses of its numbers: fetched, or only counted where it is ``planned``."""
        asked = open_statuses(self.prepared.rows, options, self.context, planned=planned)
        return replace(self, engine=self.engine.with_status(asked.overlay), asked=asked)

    def plan(self) -> Report:
        """Return what would be done; nothing is written or spent."""
        rows = self.prepared.rows
        asked = self.prepared.rows_for(self.engine) if self.engine.kind.buys else rows
        return self.report_plan(count_plan(rows), self.engine.quote(asked, self.context))

    def report_plan(self, plan: LookupPlan, purchase: Purchase | None = None) -> Report:
        """Return the report of a plan."""
        return self._report(purchase, plan=plan)

    def carry_out(self, target: Target, manifest: Path | None) -> Report:
        """Answer the rows, write them, check that they balance, publish, and return what was done."""
        record = manifest or default_manifest(self.start.run_id)
        with publish_file(record) as record_file, self.publish_output(target, record) as report:
            write_manifest(report, record_file)
        if target.streamed:
            send_output(target.path)
        log.info("run %s: published %s in %.2f s", self.start.run_id, target.name, report.seconds)
        return report

    @contextmanager
    def publish_output(self, target: Target, record: Path | None) -> Iterator[Report]:
        """Answer the rows, write them and check that they balance; yield what was done.

        The output is published when the block ends without an error. ``record``: where the run's manifest goes, which
        no backup may replace.
        """
        table, format = self.prepared.table, target.format
        data = self.data or InputData(self.path)
        replaced = data.version if target.path == self.path else None  # in place: the very version that was read
        with (
            ExitStack() as backup,  # undone behind the output: it is known then whether the old file was replaced
            publish_file(target.path, replaced) as temporary,
            ExitStack() as beside_output,  # published before it: where one of these fails, the output stays as it was
            ThreadPoolExecutor(1) as beside,
            ExitStack() as hashing,  # left before the pool is: a run that fails does not wait for the hash
        ):
            stop = Event()
            hashing.callback(stop.set)
            # works without Python's lock, beside the query
            sha256 = beside.submit(sha256_of, data.path, stop.is_set)
            rows_in = table.count()
            log.info("run %s: %d rows to verify, writing %s to %s", self.start.run_id, rows_in, format, target.name)
            warnings: list[str] = []
            sides = self.sides.reserve(beside_output)
            written = self._write_answers(target, temporary, sides, rows_in, warnings.append)
            tallied = written.tallied
            counts = accounting.row_counts_of(tallied)
            accounting.check_balance(rows_in, counts, written_rows(table, temporary, format, target.encoding))
            report = self._report(
                written.purchase,
                warnings,
                plan=plan_of(tallied),
                account=counts,
                statuses=statuses_of(self.engine, counts, tallied, self.asked.fetch.halt if self.asked else None),
                alerts=(
                    failure_alert(counts, tallied[COMMON_FAILURE]),
                    bought_alert(tallied),
                    garbled_alert(tallied),
                    vanished_alert(tallied),
                ),
                addresses=match_counts(tallied),
                output=target.name,
                manifest=str(record) if record is not None else None,
                input_sha256=sha256.result(),
                input_version=data.version.label if data.version else None,
                beside=written.beside,
                backup=str(backup.enter_context(backed_up(target.path, record or target.path)))
                if target.backup
                else None,
            )
            if written.figures is not None and sides.page is not None:
                render_into(sides.at[sides.page], written.figures, record_of(report), sides.letter_cost)
            yield report

    def _write_answers(
        self, target: Target, temporary: Path, sides: SideFiles, rows_in: int, warn: Callable[[str], object]
    ) -> _WrittenAnswers:
        """Answer the rows and write them, and what is asked for beside.

        ``sides``: where the files beside the output are written before they are published. ``warn`` is called with
        each warning that is known only once they are written.
        """
        context, purchase = replace(self.context, rows=rows_in), self.joint.purchase if self.joint else None
        if self.joint is not None:
            answers = self.joint.answer(with_plan_columns(self.joint.with_features(self.prepared.rows)), context)
        else:
            answers, purchase = self.engine.answer(with_plan_columns(self.prepared.rows_for(self.engine)), context)
        if self.with_outcomes:
            answers = _with_outcomes(answers, self.known.outcomes() if self.known else None)
        answers = self._with_extras(answers if self.observe is None else self.observe(answers))
        answered = accounting.number_rows(answers)
        more = (*PLAN_COUNTS, *FAILURE_COUNTS, *self.engine.counts())
        tally, summary = accounting.tally(answered, more), sections if target.summary else None
        record = frozenset(choice.column for choice in self.prepared.chosen.values())
        table, layout, lang = self.prepared.table, self.prepared.layout, self.prepared.lang
        result = Enriched(table, answered, layout, tally, summary, record, warn, lang)
        tallied = write_table(result, temporary, target.format, target.encoding).row(0, named=True)
        if purchase is not None:
            purchase = replace(purchase, agreement=self.engine.agreement(tallied))
        beside = sides.write(result, target, rows_in) if sides.wanted else None
        figures = collect_figures(result.frame, unmask=sides.unmask) if sides.page is not None else None
        return _WrittenAnswers(tallied, purchase, beside, figures)

    def _with_extras(self, answers: pl.LazyFrame) -> pl.LazyFrame:
        """Add what was asked for beside the answers.

        What needs a second look at them keeps them in a private file: to answer again costs more than to read again,
        and a run of the hosted service answers once.
        """
        extras, counts_letters = self.prepared.extras, self.sides.counts_letters
        if "duplicate_of" in extras or self.sides.wanted:
            path = self.context.resources.enter_context(private_folder()) / "answers.arrow"
            answers.sink_ipc(path, compression="lz4", record_batch_size=_STORED_TOGETHER, engine="streaming")
            answers = pl.scan_ipc(path)
        if "duplicate_of" in extras or counts_letters:
            answers = with_duplicates(answers)
        return with_extra_columns(mark_letters(answers) if counts_letters else answers, extras)

    def _report(
        self,
        purchase: Purchase | None,
        warnings: Sequence[str] = (),
        *,
        plan: LookupPlan,
        statuses: StatusCounts | None = None,
        alerts: Sequence[Alert | None] = (),
        **outcome: Any,
    ) -> Report:
        chosen = self.prepared.chosen
        known = self.known if self.engine.kind.answers_locally else None
        header = chosen["b_no"].header if "b_no" in chosen else None
        status = Alert(statuses.summary) if statuses is not None and statuses.is_alarming else None
        return Report(
            run_id=self.start.run_id,
            started=self.start.at,
            seconds=time.monotonic() - self.start.clock,
            engine=self.engine.kind.name,
            input=str(self.path),
            table=self.prepared.table.name,
            columns=chosen,
            versions=versions_of(self.engine, self.known),
            plan=plan,
            statuses=statuses,
            asked=self.asked,
            warnings=(
                *filter(None, (invalid_alert(plan, header), *alerts, status)),
                *self.prepared.warnings,
                *self.engine.hints(planned="account" not in outcome),
                *self._gazetteer_cautions(),
                *unknown_extra_columns(self.prepared.extras, gazetteer=self._looks_up_addresses),
                *([gettext(_NO_OUTCOMES)] if self.with_outcomes and self.known is None else []),
                *(purchase.notes if purchase else ()),
                *(self.asked.notes if self.asked else ()),
                *warnings,
            ),
            purchase=purchase,
            history=LetterHistory(known.letters, known.mailings, str(known.store.folder)) if known else None,
            **outcome,
        )

    def _gazetteer_cautions(self) -> tuple[str, ...]:
        """Return what to know of the gazetteer in which addresses were looked up."""
        local = self.engine.local
        if local.gazetteer is None or not self._looks_up_addresses:
            return ()
        return local.gazetteer.cautions(local.today or seoul_day())

    @property
    def _looks_up_addresses(self) -> bool:
        local = self.engine.kind.answers_locally and self.engine.local.gazetteer is not None
        return local and "address" in self.prepared.chosen


def versions_of(engine: Engine, known: LabelHistory | None) -> Versions:
    """Return what an engine computes its answers with; ``known``: what the label store has of earlier letters."""
    local, answers_locally = engine.local, engine.kind.answers_locally
    return Versions(
        bizverify=__version__,
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
    from bizverify.reference import run_statuses  # brings the network with it

    if planned:
        return run_statuses.plan_statuses(rows, options)
    watch = getattr(context.progress, "watch", None)  # that of the command line shows the fetching, too
    return run_statuses.fetch_for_rows(rows, options, watch=watch, cancel=context.cancel)


def _with_outcomes(answers: pl.LazyFrame, outcomes: pl.LazyFrame | None) -> pl.LazyFrame:
    """Add what became of the last letter to each row's business at its address, null where nothing is recorded."""
    names = answers.collect_schema().names()
    if outcomes is None or NUMBER not in names or "address" not in names:
        return answers.with_columns(
            pl.lit(None, dtype).alias(name) for name, dtype in LABEL_DTYPES.items() if name in LABEL_COLUMNS
        )
    return with_letters(answers, outcomes, NUMBER)


def _gazetteer_facts(gazetteer: Gazetteer | None) -> dict[str, Any]:
    if gazetteer is None:
        return {}
    day = gazetteer.source_date
    return {"gazetteer_date": day.isoformat() if day else None, "gazetteer_addresses": gazetteer.buildings}
