"""One run of an engine over several inputs: surveyed, answered together, published one after another."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import polars as pl

from bansong.cloud.remote_path import as_path
from bansong.engine.local import NUMBER
from bansong.enrichment.enrichment_run import EnrichmentRun, JointAnswers
from bansong.enrichment.prepared_table import prepare_output
from bansong.enrichment.run_inputs import open_statuses, versions_of
from bansong.enrichment.single_file import open_input
from bansong.errors import BansongError, Problem, StoppedError, UsageError
from bansong.joint.kept_records import VALUE, plan_together, scan_records
from bansong.joint.output_places import OutputPlaces
from bansong.joint.report import FilesReport, agree_together, record_of_files
from bansong.joint.survey import InputSurvey, SurveyedInput, SurveyedTable, changed_error
from bansong.labels.history import LabelHistory
from bansong.manifest import default_manifest, write_manifest
from bansong.options import ReadOptions, WriteOptions
from bansong.progress.display import Progress
from bansong.report import Report
from bansong.run.cross_row_features import find_cross_row_features, with_found_features
from bansong.run.duplicates import with_duplicates
from bansong.run.engine import Engine, JointEngine, RunContext
from bansong.run.letter_list import count_letters, mark_letters, publish_letters
from bansong.run.output_layout import Target
from bansong.run.records import ROW_ID
from bansong.run.run_start import RunStart
from bansong.run.side_files import WrittenSides, letter_list_of
from bansong.run.status_counts import sum_statuses
from bansong.storage.filesystem import private_folder
from bansong.tables import publish_file, reading
from bansong.tables.input_files import InputFile
from bansong.tables.publish import backed_up, find_foreign, make_folder
from bansong.translation import Option, gettext, ngettext

if TYPE_CHECKING:
    from bansong.cancellation import CancelToken
    from bansong.options import StatusOptions
    from bansong.reference.run_statuses import RunStatuses
    from bansong.run.engine import Purchase

_KEPT: Final = {
    **dict.fromkeys(
        ("name", "address", "zipcode", "action", "fixed_address", "fixed_zipcode", "row_status"), pl.String
    ),
    NUMBER: pl.UInt64,
}
"""What of the answers the letters are made of."""
_BATCH: Final = 20_000

Observe = Callable[[pl.LazyFrame], pl.LazyFrame]


@dataclass(frozen=True, slots=True)
class AnswersForLetters:
    """The answers of tables, kept in private files of ``folder`` as far as letters need them.

    ``list_path``: where the list goes; ``cost``: won a letter. ``allow_empty``: whether a list
    without a letter replaces an earlier one.
    """

    folder: Path
    list_path: Path | None
    cost: float | None
    allow_empty: bool = False
    paths: list[Path] = field(default_factory=list)

    def observing(self, observe: Observe | None) -> Observe:
        """Return :meth:`keep` behind another that puts itself between the answers of a table and its output."""
        return self.keep if observe is None else lambda answers: self.keep(observe(answers))

    def keep(self, answers: pl.LazyFrame) -> pl.LazyFrame:
        """Keep the answers of one table, which are obtained for it, once; return the same rows to be written."""
        place = len(self.paths)
        whole, kept = self.folder / f"whole-{place}.arrow", self.folder / f"letters-{place}.arrow"
        for earlier in self.folder.glob("whole-*.arrow"):  # its table has been written
            earlier.unlink()
        answers.sink_ipc(whole, compression="lz4", record_batch_size=_BATCH, engine="streaming")
        answered = pl.scan_ipc(whole)
        names = answered.collect_schema().names()
        answered.select(
            (pl.col(name).cast(dtype) if name in names else pl.lit(None, dtype)).alias(name)
            for name, dtype in _KEPT.items()
        ).sink_ipc(kept, compression="lz4", record_batch_size=_BATCH, engine="streaming")
        self.paths.append(kept)
        return answered

    def publish(self, failed: dict[str, str], *, complete: bool) -> WrittenSides | None:
        """Count and publish the letters of all tables; where not ``complete``, note in ``failed`` why there is no list.

        Without the customers of an input that has just failed it would be no list of all.
        """
        path = self.list_path
        if not complete:
            if path is not None:
                failed[str(path)] = gettext(
                    "{path}: was not written, since an input failed; run again for the list of letters", path=path
                )
            return None
        answers = mark_letters(with_duplicates(pl.scan_ipc(self.paths).with_row_index(ROW_ID)))
        counts = count_letters(answers, self.cost, listed=path is not None)
        kept: dict[Path, Path] = {}
        if path is not None:
            with ExitStack() as backups, publish_file(path) as temporary:
                if not publish_letters(answers, path, temporary, counts.letters, allow_empty=self.allow_empty):
                    return WrittenSides({}, counts, None, kept_letters=path)
                foreign = find_foreign({path: temporary})
                kept = {one: backups.enter_context(backed_up(one, one)) for one in foreign}
        return WrittenSides({}, counts, path, kept=kept)


def letters_of(write: WriteOptions, resources: ExitStack) -> AnswersForLetters | None:
    """Return where answers are kept for letters as long as ``resources`` live; ``None`` where none are asked for."""
    path = letter_list_of(write)
    if path is None and write.letter_cost is None:
        return None
    return AnswersForLetters(resources.enter_context(private_folder()), path, write.letter_cost, write.allow_empty)


TABLES_NOT_JOINED: Final = Problem(
    "engines.tables_not_joined", "the engine {name!r} cannot answer several tables together; give one file"
)
UNMASK_WITHOUT_REPORT: Final = Problem(
    "report.unmask_without_report", "`unmask=True` is for `report=`: nothing else masks people's data"
)
INPUT_FORMAT_NEEDLESS: Final = Problem(
    "options.input_format_needless",
    "`input_format=` is for standard input; of a file, the name and the content tell it",
)
ONE_TABLE_ONLY: Final = Problem(
    "options.one_table_only", "{option} is for one table; enrich the inputs one by one for it"
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class JointRun:
    """A run of one engine over several inputs.

    ``label``: what the ledger calls all of them, by which it knows a run that goes on. ``keep_going``: whether inputs
    that cannot be enriched are left out. ``passed_over``: sentences on files that are no inputs, for the report. The
    rest as for :func:`bansong.enrichment.single_file`; ``observe`` is called for each table, ``inspect`` once.
    """

    files: Sequence[InputFile]
    label: str
    engine: Engine
    read: ReadOptions
    places: OutputPlaces
    start: RunStart
    known: LabelHistory | None = None
    model: Path | None = None
    status: StatusOptions | None = None
    keep_going: bool = False
    progress: Progress | None = None
    cancel: CancelToken | None = None
    observe: Observe | None = None
    inspect: Callable[[pl.LazyFrame], None] | None = None
    passed_over: tuple[str, ...] = ()
    strays: list[str] = field(default_factory=list)

    def plan(self) -> FilesReport:
        """Return what would be done; nothing is written or spent."""
        with ExitStack() as resources:
            inputs, failed = self._survey(resources, planned=True)
            together = self._bring_together(inputs, resources, planned=True)
            purchase = None
            if self.engine.kind.buys:
                purchase = together.engine.quote(together.with_features()[0], together.context)
            parts = [table.plan for one in inputs for table in one.tables if table.plan is not None]
            return self._report(parts, failed, together, purchase)

    def carry_out(self) -> FilesReport:
        """Answer all rows, publish each output when its rows balance, and return what was done.

        Raises :class:`bansong.errors.BansongError`: nothing was published then, unless it is a
        :class:`bansong.errors.StoppedError` that says what was.
        """
        manifest = self.places.write.manifest
        record = as_path(manifest) if manifest is not None else default_manifest(self.start.run_id)
        with publish_file(record) as record_file, ExitStack() as resources:
            inputs, failed = self._survey(resources, planned=False)
            left_out = len(failed)
            together = self._bring_together(inputs, resources, planned=False)
            together = replace(together, letters=letters_of(self.places.write, resources))
            records, features = together.with_features()
            answer, purchase = _as_joint(together.engine).obtain(records, together.context)
            parts = self._publish_all(inputs, failed, together, JointAnswers(answer, features, purchase))
            beside = together.letters.publish(failed, complete=len(failed) == left_out) if together.letters else None
            report = self._report(parts, failed, together, agree_together(purchase, parts))
            report = replace(report, manifest=str(record), beside=beside)
            write_manifest(record_of_files(report), record_file)
        return report

    def _survey(self, resources: ExitStack, *, planned: bool) -> tuple[list[SurveyedInput], dict[str, str]]:
        _as_joint(self.engine)
        _refuse_options(self.read, self.places.write)
        folder = resources.enter_context(private_folder())
        resources.enter_context(self.engine.local.running())
        survey = InputSurvey(
            self.engine,
            self.read,
            self.places,
            self.start,
            self.known,
            self.model,
            self.status,
            folder,
            planned,
            resources,
            self.strays,
        )
        return survey.look_at(self.files, keep_going=self.keep_going)

    def _bring_together(self, inputs: Sequence[SurveyedInput], resources: ExitStack, *, planned: bool) -> _Together:
        """Return the records of all tables, and the engine with what the tax authority says of their numbers."""
        context = RunContext(
            self.label,
            self.start.run_id,
            sum(one.rows for one in inputs),
            priority=VALUE if self.engine.priority is not None else None,
            progress=self.progress,
            cancel=self.cancel,
            resources=resources,
            unix_time=self.start.unix_time,
        )
        records = self.engine.prepare(scan_records([table.kept for one in inputs for table in one.tables]))
        if self.inspect is not None:
            self.inspect(records)
        if self.status is None:
            return _Together(records, self.engine, context, None)
        asked = open_statuses(records, self.status, context, planned=planned)
        return _Together(records, self.engine.with_status(asked.overlay), context, asked)

    def _publish_all(
        self, inputs: Sequence[SurveyedInput], failed: dict[str, str], together: _Together, joint: JointAnswers
    ) -> list[Report]:
        """Publish output after output; one that fails is noted in ``failed``, and the others are written."""
        parts, begins, published = list[Report](), 0, 0
        for one in inputs:
            try:
                parts += self._publish(one, together, joint, begins)
                published += 1
            except BansongError as error:
                if len(inputs) == 1:
                    raise
                log.info("%s", error)  # the report tells of it
                failed[str(one.file.path)] = str(error)
            except KeyboardInterrupt:
                if not published:
                    raise
                raise StoppedError(_explain_stop(published, len(inputs))) from None
            begins += one.rows
        return parts

    def _publish(self, one: SurveyedInput, together: _Together, joint: JointAnswers, begins: int) -> list[Report]:
        """Publish the output of one input; each of its sheets is spliced into what the one before has made."""
        one.refuse_change()
        make_folder(one.target.path.parent)
        reports, book = list[Report](), None
        with private_folder() as folder:
            for place, table in enumerate(one.tables, 1):
                made = folder / f"{place}{one.target.path.suffix}"
                target = (
                    one.target
                    if place == len(one.tables)
                    else replace(one.target, path=made, backup=False, private=True)
                )
                reports.append(
                    self._publish_table(
                        one, table, target, together.at(begins), joint.of(begins, table.kept.rows), book
                    )
                )
                begins, book = begins + table.kept.rows, made
        return [replace(report, output=one.target.name, backup=reports[-1].backup) for report in reports]

    def _publish_table(
        self,
        one: SurveyedInput,
        surveyed: SurveyedTable,
        target: Target,
        together: _Together,
        joint: JointAnswers,
        book: Path | None,
    ) -> Report:
        """Write one table; ``book``: the workbook with the sheets before it, ``None`` for the input itself."""
        path = one.file.path
        with (
            ExitStack() as resources,
            open_input(path, one.data.path, self.read, surveyed.sheet) as opened,
            reading(opened),
        ):
            table = opened
            if book is not None and opened.file is not None:
                table = replace(opened, file=replace(opened.file, data=book))
            if table.count() != surveyed.kept.rows:
                raise changed_error(path)
            prepared = prepare_output(table, target, self.read, self.places.write, self.engine.kind)
            run = EnrichmentRun(
                path,
                self.start,
                together.engine,
                replace(prepared, rows=together.engine.prepare(prepared.rows)),
                replace(together.context, resources=resources),
                self.known,
                self.places.write.with_outcomes,
                self.places.sides_of(target),
                together.asked,
                together.letters.observing(self.observe) if together.letters else self.observe,
                data=one.data,
                joint=joint,
            )
            with run.publish_output(target, None) as report:
                one.refuse_change()
            return replace(report, sheet=surveyed.sheet)

    def _report(
        self, parts: Sequence[Report], failed: Mapping[str, str], together: _Together, purchase: Purchase | None
    ) -> FilesReport:
        return FilesReport(
            run_id=self.start.run_id,
            started=self.start.at,
            seconds=time.monotonic() - self.start.clock,
            engine=self.engine.kind.name,
            parts=tuple(parts),
            plan=plan_together(together.records, [part.plan for part in parts]),
            versions=versions_of(together.engine, self.known),
            failed=dict(failed),
            passed_over=(*self.passed_over, *self.strays),
            statuses=sum_statuses([part.statuses for part in parts if part.statuses is not None]),
            asked=together.asked,
            purchase=purchase,
        )


@dataclass(frozen=True, slots=True)
class _Together:
    """The prepared records of all tables, and who answers them; ``asked``: what the tax authority was asked."""

    records: pl.LazyFrame
    engine: Engine
    context: RunContext
    asked: RunStatuses | None
    letters: AnswersForLetters | None = None

    def with_features(self) -> tuple[pl.LazyFrame, pl.DataFrame | None]:
        """Return the records with the cross-row features over all tables, where the local engine answers; and these."""
        if not self.engine.kind.answers_locally:
            return self.records, None
        features = find_cross_row_features(self.records)
        return with_found_features(self.records, features), features

    def at(self, begins: int) -> _Together:
        """Return the same for a table that begins at a row of all, whose progress is counted from there."""
        progress, rows = self.context.progress, self.context.rows
        if progress is None or self.engine.kind.buys:
            return replace(self, context=replace(self.context, progress=None))
        return replace(self, context=replace(self.context, progress=lambda done, _: progress(begins + done, rows)))


def _as_joint(engine: Engine) -> JointEngine:
    if isinstance(engine, JointEngine):
        return engine
    raise UsageError(TABLES_NOT_JOINED, name=engine.kind.name)


def _refuse_options(read: ReadOptions, write: WriteOptions) -> None:
    """Raise :class:`UsageError` for options that have a meaning for one table only."""
    for name in ("report", "review"):
        if getattr(write, name) is not None:
            raise UsageError(ONE_TABLE_ONLY, option=Option(name))
    if write.unmask:
        raise UsageError(UNMASK_WITHOUT_REPORT)
    if read.input_format is not None:
        raise UsageError(INPUT_FORMAT_NEEDLESS)


def _explain_stop(published: int, count: int) -> str:
    return ngettext(
        "interrupted: {count:,} of {all:,} outputs is published, the others are what they were; the same call goes on",
        "interrupted: {count:,} of {all:,} outputs are published, the others are what they were; the same call goes on",
        published,
        all=count,
    )
