"""Carry out `enrich`, `plan` and jobs: survey the inputs, answer their rows, publish one output after the other."""
# A single table is opened once and stays open; the records of several are kept in files.

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from bansong.base.display import Progress
from bansong.base.errors import BansongError, InputError, Problem, StoppedError, UsageError
from bansong.base.files import as_path, is_remote, private_folder
from bansong.base.messages import Option, gettext, ngettext
from bansong.base.options import ALL_SHEETS, ReadOptions
from bansong.base.publish import backed_up, find_foreign, make_folder, publish_file
from bansong.base.schema import FILE
from bansong.engine.local import NUMBER
from bansong.engine.protocol import Engine, Purchase, Records, RunContext
from bansong.engine.records import ROW_ID
from bansong.history.labels import LabelHistory
from bansong.run import side_files
from bansong.run.accounting import sum_statuses
from bansong.run.columns import Target, with_duplicates
from bansong.run.files_report import FilesReport, agree_together, record_of_files
from bansong.run.manifest import default_manifest, may_hold_decisions, record_of, write_manifest
from bansong.run.options import WriteOptions
from bansong.run.outputs import Outputs
from bansong.run.report import Report
from bansong.run.survey import (
    INPUT_CHANGED,
    InputSurvey,
    PreparedTable,
    SurveyedInput,
    SurveyedTable,
    Surveyor,
    open_input,
    plan_together,
    prepare_output,
)
from bansong.run.table import AnsweredRecords, EngineStep, Observe, RunStart, TableRun, files_read, versions_of
from bansong.tables.detect import STREAM, reading, send_output
from bansong.tables.inputs import InputFile, collect_inputs, label_inputs

if TYPE_CHECKING:
    from bansong.base.cancel import CancelToken
    from bansong.base.options import StatusOptions

SHEETS_NOT_LISTED: Final = Problem(
    "report.sheets_not_listed", "several sheets have a report each: give the input in a list"
)
INPUT_FORMAT_NEEDLESS: Final = Problem(
    "inputs.input_format_needless", "`input_format=` is for standard input; of a file, the name and the content tell it"
)
MERGE_WITHOUT_OUTPUT: Final = Problem(
    "outputs.merge_without_output", "`merge=True` writes one file: name it, `output='OUT.xlsx'`"
)
MERGE_EXCLUDES: Final = Problem(
    "options.merge_excludes", "`merge=True` makes one table of all inputs: leave out {option}"
)
ONE_TABLE_ONLY: Final = Problem(
    "options.one_table_only",
    "{option} is for one table; `merge=True` makes one of all inputs, or enrich them one by one for it",
)

log = logging.getLogger(__name__)

_KEPT: Final = {  # columns that letters need
    **dict.fromkeys(
        ("name", "address", "zipcode", "action", "fixed_address", "fixed_zipcode", "row_status"), pl.String
    ),
    NUMBER: pl.UInt64,
}
_KEPT_FOR_PAGE: Final = {
    **dict.fromkeys(("b_no", "biz_status", "grade", "reasons"), pl.String),
    "bounce_prob": pl.Float64,
}
_BATCH_ROWS: Final = 20_000


@dataclass(frozen=True, slots=True)
class AnswersOfAll:
    """The answers of all tables. The columns that letters and page need are kept in private files of ``folder``."""

    folder: Path
    wanted: side_files.SideFiles
    paths: list[Path] = field(default_factory=list)

    def keep(self, answers: pl.LazyFrame, file: str, first_row: int) -> pl.LazyFrame:
        place = len(self.paths)
        whole, kept = self.folder / f"whole-{place}.arrow", self.folder / f"letters-{place}.arrow"
        for earlier in self.folder.glob("whole-*.arrow"):  # the table of that file has been written
            earlier.unlink()
        answers.sink_ipc(whole, compression="lz4", record_batch_size=_BATCH_ROWS, engine="streaming")
        answered = pl.scan_ipc(whole)
        names = answered.collect_schema().names()
        columns = _KEPT | dict.fromkeys(side_files.carried_columns(names), pl.String)
        columns |= _KEPT_FOR_PAGE if self.wanted.page is not None else {}
        answered.select(
            pl.lit(file).alias(FILE),
            (pl.col(ROW_ID).cast(pl.Int64) + first_row).alias("row"),
            *(
                (pl.col(name).cast(dtype) if name in names else pl.lit(None, dtype)).alias(name)
                for name, dtype in columns.items()
            ),
        ).sink_ipc(kept, compression="lz4", record_batch_size=_BATCH_ROWS, engine="streaming")
        self.paths.append(kept)
        return answered

    @property
    def _rows(self) -> pl.LazyFrame:
        # tables may carry columns of their own
        return pl.concat(map(pl.scan_ipc, self.paths), how="diagonal").with_row_index(ROW_ID)

    def publish(self, failed: dict[str, str], *, complete: bool) -> side_files.WrittenSides | None:
        # unless ``complete``, the reason for a missing list goes into ``failed``
        if not complete:
            if path := self.wanted.letters:
                failed[str(path)] = gettext(
                    "{path}: was not written, since an input failed; run again for the list of letters", path=path
                )
            return None
        if not self.wanted.counts_letters:
            return None
        answers = side_files.mark_letters(with_duplicates(self._rows))
        with ExitStack() as backups, ExitStack() as files:
            reserved = self.wanted.reserve(files)
            written = reserved.write_letters(answers)
            foreign = [] if written.kept_letters else find_foreign(reserved.at)
            return replace(written, kept={one: backups.enter_context(backed_up(one, one)) for one in foreign})

    def publish_page(self, report: FilesReport) -> FilesReport:
        if (page := self.wanted.page) is None or not self.paths:
            return report
        from bansong.run.page import render_into  # few runs make a page
        from bansong.run.page_figures import collect_figures

        figures = collect_figures(self._rows, unmask=self.wanted.unmask)
        report = replace(report, beside=replace(report.beside or side_files.WrittenSides(), page=page))
        with publish_file(page) as temporary:
            render_into(temporary, figures, record_of_files(report), self.wanted.letter_cost, None)
        return report


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run of one engine over inputs."""

    files: Sequence[InputFile]
    label: str  # name of the inputs in the ledger, by which a later run continues this one
    engine: Engine
    read: ReadOptions
    outputs: Outputs
    start: RunStart
    known: LabelHistory | None = None
    model: Path | None = None  # the file of the scorecard, which no output may replace
    status: StatusOptions | None = None
    keep_going: bool = False  # leave out inputs that cannot be enriched
    progress: Progress | None = None
    cancel: CancelToken | None = None
    observe: Observe | None = None  # gets the answered rows of each table, and returns them unchanged
    inspect: Callable[[pl.LazyFrame], None] | None = None  # gets all records; raises to end the run
    passed_over: tuple[str, ...] = ()  # notes on files that are no inputs

    @classmethod
    def over(
        cls,
        inputs: str | Path | Sequence[str | Path],
        output: str | Path | None,
        engine: Engine,
        read: ReadOptions,
        write: WriteOptions,
        **options: Any,
    ) -> Run:
        """Return a run over one input or a list of them; ``options`` are the other fields of the class."""
        if isinstance(inputs, str | Path):
            path = as_path(inputs)
            files, label, outputs = [InputFile(path, path.parent)], str(path), Outputs(write, file=output, alone=True)
        else:
            outputs = Outputs.of(write, output, inputs) if not write.merge else Outputs(write, file=output, alone=True)
            besides = files_read(engine, options["model"], options["status"]).values()
            files, options["passed_over"] = collect_inputs(inputs, outputs.paths, [*filter(None, besides)])
            label = label_inputs(inputs)
        return cls(files=files, label=label, engine=engine, read=read, outputs=outputs, **options)

    def plan(self) -> Report | FilesReport:
        with self._prepare(planned=True) as (survey, step, resources):
            purchase = step.quote()
            if self.outputs.alone:
                (one,) = survey.inputs
                alone = self._table_run(one, one.tables[0], step, resources).plan(purchase)
                return self._report([alone], survey, step, purchase) if alone.merged else alone
            parts = [table.plan for one in survey.inputs for table in one.tables if table.plan is not None]
            return self._report(parts, survey, step, purchase)

    def carry_out(self) -> Report | FilesReport:
        """Answer all rows; publish each output if none is lost. A ``StoppedError`` lists the published outputs."""
        given = self.outputs.write.manifest
        with self._prepare(planned=False) as (survey, step, resources):
            record = as_path(given) if given is not None else default_manifest(self.start.run_id)
            with publish_file(record) as record_file:
                if not self.outputs.alone:
                    report = replace(self._publish_all(survey, step, resources), manifest=str(record))
                    write_manifest(record_of_files(report), record_file)
                    return report
                (one,) = survey.inputs
                table = self._with_decisions(self._table_run(one, one.tables[0], step, resources), one)
                with table.publish(one.target, record, step.answer) as alone:
                    one.refuse_change()  # rows and answers may be of two versions
                    merged = self._report([alone], survey, step, alone.purchase) if alone.merged else None
                    merged = merged and replace(merged, manifest=str(record), beside=alone.beside)
                    write_manifest(record_of_files(merged) if merged else record_of(alone), record_file)
            if one.target.streamed:
                send_output(one.target.path)
            log.info("run %s: published %s in %.2f s", self.start.run_id, one.target.name, alone.seconds)
            return merged or alone

    @contextmanager
    def _prepare(self, *, planned: bool) -> Iterator[tuple[InputSurvey, EngineStep, ExitStack]]:
        def plan(file: InputFile, prepared: PreparedTable, records: Records) -> Report:
            return TableRun(file.path, self.start, self.engine, prepared, records.rows, self.known).plan()

        self._refuse_options()
        with ExitStack() as resources:
            besides = files_read(self.engine, self.model, self.status)
            plan_table = plan if planned and not self.outputs.alone else None
            surveyor = Surveyor(self.engine, self.read, self.outputs, besides, resources, plan_table)
            if self.outputs.write.merge:
                survey = surveyor.merge(self.files, self.label)
            else:
                survey = surveyor.look_at(self.files, keep_going=self.keep_going)
            resources.enter_context(self.engine.local.running())
            context = RunContext(
                self.label, self.start.run_id, self.progress, self.cancel, resources, self.start.unix_time
            )
            step = EngineStep(self.engine, survey.records_for(self.engine), context)
            if self.inspect is not None:
                self.inspect(step.records.rows)
            if self.status is not None and survey.has_numbers:
                step = step.with_statuses(self.status, planned=planned)
            yield survey, step, resources

    def _publish_all(self, survey: InputSurvey, step: EngineStep, resources: ExitStack) -> FilesReport:
        # a failed input does not stop the others
        wanted = side_files.SideFiles.of_run(self.outputs.write)
        kept = AnswersOfAll(resources.enter_context(private_folder()), wanted) if wanted.wanted else None
        alone = len(survey.inputs) == 1
        together = None if survey.is_open else step.answer()
        parts, failed, first = list[Report](), dict(survey.failed), 0
        for done, one in enumerate(survey.inputs):
            try:
                parts += self._publish_input(one, step, together, first, kept)
            except BansongError as error:
                if alone:
                    raise
                log.info("%s", error)  # also in the report
                failed[str(one.file.path)] = str(error)
            except KeyboardInterrupt:
                published = done - (len(failed) - len(survey.failed))
                if not published:
                    raise
                raise StoppedError(_explain_stop(published, len(survey.inputs))) from None
            first += one.rows
        complete = len(failed) == len(survey.failed)
        beside = kept.publish(failed, complete=complete) if kept else None
        purchase = parts[0].purchase if together is None else together.answers.purchase
        report = self._report(parts, replace(survey, failed=failed), step, agree_together(purchase, parts))
        report = replace(report, beside=beside)
        return kept.publish_page(report) if kept else report

    def _publish_input(
        self,
        one: SurveyedInput,
        step: EngineStep,
        together: AnsweredRecords | None,
        first: int,
        kept: AnswersOfAll | None,
    ) -> list[Report]:
        # each sheet of a workbook is spliced into the file that has the sheets before it
        one.refuse_change()
        make_folder(one.target.path.parent)
        reports, book = list[Report](), None
        with private_folder() as folder:
            for place, table in enumerate(one.tables, 1):
                made = folder / f"{place}{one.target.path.suffix}"
                is_last = place == len(one.tables)
                target = one.target if is_last else replace(one.target, path=made, backup=False, private=True)
                answer = step.answer if together is None else partial(together.at, first)
                with ExitStack() as resources:
                    run = self._table_run(one, table, step, resources, target, book)
                    run = self._with_decisions(run, one, table.sheet)
                    if kept is not None:
                        file = f"{one.file.relative.as_posix()}{f' [{table.sheet}]' if table.sheet else ''}"
                        first_row = run.prepared.table.first_row
                        run = replace(run, observe=partial(self._keep, kept, file, first_row))
                    with run.publish(target, None, answer) as report:
                        one.refuse_change()
                reports.append(replace(report, sheet=table.sheet))
                first, book = first + table.records.count, made
        return [replace(report, output=one.target.name, backup=reports[-1].backup) for report in reports]

    def _keep(self, kept: AnswersOfAll, file: str, first_row: int, answers: pl.LazyFrame) -> pl.LazyFrame:
        return kept.keep(answers if self.observe is None else self.observe(answers), file, first_row)

    def _table_run(
        self,
        one: SurveyedInput,
        table: SurveyedTable,
        step: EngineStep,
        resources: ExitStack,
        target: Target | None = None,
        book: Path | None = None,
    ) -> TableRun:
        # opens the table again unless it stayed open; ``book``: the workbook with the sheets written so far
        prepared, rows = table.opened, step.records.rows
        if prepared is None:
            path = one.file.path
            opened = resources.enter_context(open_input(path, one.data.path, self.read, table.sheet))
            resources.enter_context(reading(opened))
            resources.enter_context(step.engine.local.running())
            if opened.count() != table.records.count:
                raise InputError(INPUT_CHANGED, path=path)
            if book is not None and opened.file is not None:
                opened = replace(opened, file=replace(opened.file, data=book))
            prepared = prepare_output(opened, target or one.target, self.read, self.outputs.write, self.engine.kind)
            rows = prepared.records_for(step.engine).rows
        with_outcomes, own = self.outputs.write.with_outcomes, (one.data, one.sides, resources)
        table_run = TableRun(one.file.path, self.start, step.engine, prepared, rows, self.known, *own)
        return replace(table_run, with_outcomes=with_outcomes, asked=step.asked, observe=self.observe)

    def _with_decisions(self, run: TableRun, one: SurveyedInput, sheet: str | None = None) -> TableRun:
        # what people wrote into the earlier output that was named, or that is replaced
        path, given, write = one.target.path, self.outputs.write.decisions, self.outputs.write
        if one.target.streamed and given is None:
            return run
        recorded = path if sheet is None else path.with_name(f"{path.name} {sheet}")
        run = replace(run, recorded=None if is_remote(path) or one.target.streamed else recorded)
        is_new = path == one.file.path and not run.prepared.earlier.nine  # in place, and enriched for the first time
        if given is False or (given is None and (is_new or not may_hold_decisions(path, recorded))):
            return run
        from bansong.run.decisions import read_decisions  # few runs replace what people worked in

        earlier, named = (path, False) if given is None else (as_path(given), True)
        wanted = sheet or (None if self.read.sheet == ALL_SHEETS else self.read.sheet)
        read = ReadOptions(sheet=wanted if one.target.format.can.splices_sheets else None)
        found = read_decisions(earlier, run, read, write.prefix, named=named)
        if found is None:
            return run
        layout = (*run.prepared.layout, *found.columns.items())
        return replace(run, decisions=found, prepared=replace(run.prepared, layout=layout))

    def _report(
        self, parts: Sequence[Report], survey: InputSurvey, step: EngineStep, purchase: Purchase | None
    ) -> FilesReport:
        return FilesReport(
            run_id=self.start.run_id,
            started=self.start.at,
            seconds=time.monotonic() - self.start.clock,
            engine=self.engine.kind.name,
            parts=tuple(parts),
            plan=plan_together(step.records.rows, [part.plan for part in parts]),
            versions=versions_of(step.engine, self.known),
            failed=survey.failed,
            passed_over=(*self.passed_over, *survey.strays),
            statuses=sum_statuses([part.statuses for part in parts if part.statuses is not None]),
            asked=step.asked,
            purchase=purchase,
        )

    def _refuse_options(self) -> None:
        read, write = self.read, self.outputs.write
        several_sheets = not isinstance(read.sheet, str | None) or read.sheet == ALL_SHEETS
        if write.merge:
            if self.outputs.file is None or as_path(self.outputs.file) == STREAM:
                raise UsageError(MERGE_WITHOUT_OUTPUT)
            excluded = {"in_place": write.in_place, "keep_going": self.keep_going, "sheet": several_sheets}
            if given := [name for name, is_given in excluded.items() if is_given]:
                raise UsageError(MERGE_EXCLUDES, option=Option(given[0]))
        elif self.outputs.alone and several_sheets:
            raise UsageError(SHEETS_NOT_LISTED)
        for name in ("review", "decisions"):
            if not self.outputs.alone and getattr(write, name) not in (None, False):
                raise UsageError(ONE_TABLE_ONLY, option=Option(name))
        if read.input_format is not None and (not self.outputs.alone or self.files[0].path != STREAM):
            raise UsageError(INPUT_FORMAT_NEEDLESS)


def _explain_stop(published: int, count: int) -> str:
    return ngettext(
        "interrupted: {count:,} of {all:,} outputs is published, the others are what they were; the same call goes on",
        "interrupted: {count:,} of {all:,} outputs are published, the others are what they were; the same call goes on",
        published,
        all=count,
    )
