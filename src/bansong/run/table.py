"""One table of a run: its statuses, features and answers, written and reported."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from bansong._version import __version__
from bansong.base.files import new_run_id, private_folder
from bansong.base.messages import Phrase, gettext_noop
from bansong.base.remote import InputData
from bansong.base.schema import LABEL_COLUMNS, Alert, seoul_day
from bansong.engine.local import NUMBER, Known
from bansong.engine.overlays import with_letters
from bansong.engine.protocol import Answers, Engine, Purchase, Records, RunContext
from bansong.engine.records import find_cross_row_features, with_found_features
from bansong.history.labels import LabelHistory
from bansong.run import accounting
from bansong.run.columns import LABEL_DTYPES, Target, unknown_extra_columns, with_duplicates, with_extra_columns
from bansong.run.manifest import record_of, remember_rows, with_digests
from bansong.run.outputs import Unpublished, publish_output
from bansong.run.report import LetterHistory, Report, Versions, match_counts, sections
from bansong.run.side_files import SideFiles, WrittenSides, mark_letters
from bansong.run.survey import PreparedTable
from bansong.tables.detect import write_table
from bansong.tables.table import KEPT, Enriched, contract_name

if TYPE_CHECKING:
    from bansong.base.options import StatusOptions
    from bansong.engine.address.gazetteer import Gazetteer
    from bansong.reference.statuses import RunStatuses
    from bansong.run.decisions import Decisions
    from bansong.run.page_figures import PageFigures, RunChanges


@dataclass(frozen=True, slots=True)
class RunStart:
    """A run's id and start, as a datetime and in seconds of the monotonic clock."""

    run_id: str
    at: datetime
    clock: float
    unix_time: Callable[[], float] = time.time

    @classmethod
    def now(cls, unix_time: Callable[[], float] = time.time) -> RunStart:
        at = datetime.fromtimestamp(unix_time(), UTC)
        return cls(new_run_id(at), at, time.monotonic(), unix_time)


@dataclass(frozen=True, slots=True)
class EngineStep:
    """An engine with the prepared records that it answers."""

    engine: Engine
    records: Records
    context: RunContext
    asked: RunStatuses | None = None  # statuses that the run fetched from the tax authority

    @property
    def halt(self) -> str | None:
        """Why the status fetch did not ask for all numbers; ``None`` if it did, or if there was no fetch."""
        return self.asked.fetch.halt if self.asked is not None else None

    def with_statuses(self, options: StatusOptions, *, planned: bool = False) -> EngineStep:
        """Return this step with the statuses of its numbers: fetched, or only counted if ``planned``."""
        from bansong.reference import statuses as run_statuses  # brings the network with it

        rows, context = self.records.rows, self.context
        if planned:
            asked = run_statuses.plan_statuses(rows, options)
        else:
            watch = getattr(context.progress, "watch", None)  # the command line's progress shows the fetching, too
            asked = run_statuses.fetch_for_rows(
                rows, options, watch=watch, cancel=context.cancel, today=lambda: seoul_day(context.unix_time())
            )
        return replace(self, engine=self.engine.with_known(Known(statuses=asked.overlay)), asked=asked)

    def quote(self) -> Purchase | None:
        # None for an engine that buys nothing
        if not self.engine.kind.buys:
            return None
        return self.engine.quote(self._find_features()[0], self.context)

    def answer(self, count: int | None = None) -> AnsweredRecords:
        """Answer the records: compute their cross-row features, and buy the lookups if the engine buys."""
        # ``count``: number of records, if it was not known before
        records, features = self._find_features()
        records = records if count is None else replace(records, count=count)
        return AnsweredRecords(self.engine.answer(records, self.context), features, records.count)

    def _find_features(self) -> tuple[Records, pl.DataFrame | None]:
        features = find_cross_row_features(self.records.rows) if self.engine.kind.answers_locally else None
        return replace(self.records, rows=with_found_features(self.records.rows, features)), features


_FEW_CELLS: Final = 300_000  # 10,000 rows of 30 columns
_FEW_ROWS: Final = 100  # so few that their columns need not be counted, which takes 2 ms


@dataclass(frozen=True, slots=True)
class AnsweredRecords:
    """The answers to ``count`` records, and their cross-row features, which the local engine uses."""

    answers: Answers
    features: pl.DataFrame | None
    count: int

    def at(self, first: int, count: int) -> AnsweredRecords:
        features = None if self.features is None else self.features.slice(first, count)
        return replace(self, features=features, count=count)

    def of(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """Add the answers to rows: lazily, but to a small table at once."""
        answered = self.answers.of(with_found_features(rows, self.features))
        # The streaming engine cuts rows into a batch a core, and each batch has the fixed cost of all readings of an
        # address: two batches of 150 rows take twice the time of one of 300.
        if self.count <= _FEW_ROWS or self.count * len(answered.collect_schema()) <= _FEW_CELLS:
            return answered.collect(engine="in-memory").lazy()
        return answered


def files_read(engine: Engine, model: Path | None, status: StatusOptions | None) -> dict[str, Path | None]:
    """Return the files that a run reads besides its inputs, by use; ``None`` for those it does not have."""
    files = {**engine.files(), "model": model}
    if status is not None:
        from bansong.reference.statuses import open_source

        files |= open_source(status).files()
    return files


def versions_of(engine: Engine, known: LabelHistory | None) -> Versions:
    """Return the versions of bansong, scorecard and reference data that a run uses."""
    local, answers_locally = engine.local, engine.kind.answers_locally
    gazetteer = local.gazetteer
    day = gazetteer.source_date if gazetteer else None
    return Versions(
        bansong=__version__,
        model=local.model.version,
        registry=local.registry.version if local.registry else None,
        statuses=local.status.version if local.status and answers_locally else None,
        gazetteer=gazetteer.version if gazetteer else None,
        history=known.recorded.isoformat() if known and answers_locally else None,
        gazetteer_date=day.isoformat() if day else None,
        gazetteer_addresses=gazetteer.buildings if gazetteer else None,
    )


log = logging.getLogger(__name__)

Observe = Callable[[pl.LazyFrame], pl.LazyFrame]

_NO_OUTCOMES: Final = gettext_noop(
    "no outcomes are recorded, so bounced, bounce_reason and bounced_at are empty; see `bansong label`"
)
_STORED_TOGETHER: Final = 20_000  # rows of stored answers that are read in one piece: a reader holds many


@dataclass(frozen=True, slots=True)
class _WrittenAnswers:
    tallied: Mapping[str, Any]  # of the very rows that were written
    count: Callable[[], int]  # reads the finished file back and counts its rows
    purchase: Purchase | None
    beside: WrittenSides | None
    figures: PageFigures | None = None
    changes: RunChanges | None = None


@dataclass(frozen=True, slots=True)
class TableRun:
    """One table of a run."""

    path: Path
    start: RunStart
    engine: Engine
    prepared: PreparedTable
    rows: pl.LazyFrame  # prepared
    known: LabelHistory | None
    data: InputData | None = None
    sides: SideFiles = field(default_factory=SideFiles)
    resources: ExitStack = field(default_factory=ExitStack)  # closed once the table is written
    with_outcomes: bool = False
    asked: RunStatuses | None = None  # what the tax authority was asked
    observe: Observe | None = None  # stands between the answered rows and what is written
    recorded: Path | None = None  # name under which it is recorded what was written
    decisions: Decisions | None = None  # what people wrote into an earlier output

    def plan(self, purchase: Purchase | None = None) -> Report:
        return self._report(purchase, plan=accounting.plan(self.rows))

    @contextmanager
    def publish(
        self, target: Target, record: Path | None, answer: Callable[[int], AnsweredRecords]
    ) -> Iterator[Report]:
        """Answer and write the rows; check that none is lost. Publish when the block ends without an error."""
        # ``record``: the manifest, which no backup may replace; ``answer``: called once the output can be written
        table, data = self.prepared.table, self.data or InputData(self.path)
        with publish_output(target, self.sides, data, in_place=target.path == self.path) as files:
            rows_in = table.count()
            log.info("run %s: %d rows to verify, output %s", self.start.run_id, rows_in, target.name)
            warnings: list[str] = []
            written = self._write_answers(answer(rows_in), files, rows_in, warnings.append)
            decided = self.decisions.after(written.tallied, table.first_row) if self.decisions else None
            counts, foreign = accounting.row_counts_of(written.tallied), files.find_foreign()
            accounting.check_balance(rows_in, counts, written.count())
            emptied = written.beside.emptied if written.beside else None
            named = dict.fromkeys([*([emptied] if emptied is not None else []), *foreign.result()])
            kept = files.back_up(named, record)
            report = self._report(
                written.purchase,
                warnings,
                plan=accounting.plan_of(written.tallied),
                account=counts,
                statuses=self._statuses(counts, written.tallied),
                alerts=(
                    *self._alerts(counts, written),
                    *(decided.alerts() if decided else ()),
                    *(
                        (accounting.emptied_alert if path == emptied else accounting.kept_alert)(path, kept[path])
                        for path in named
                    ),
                ),
                replaced=accounting.replaced_rows(written.tallied),
                addresses=match_counts(written.tallied),
                output=target.name,
                manifest=str(record) if record is not None else None,
                read_figures=None if target.streamed else partial(_read_figures, record, target.path),
                input_sha256=files.sha256.result(),
                input_version=data.version.label if data.version else None,
                beside=written.beside,
                decisions=decided,
                backup=str(kept[target.path]) if target.path in kept else None,
                kept={str(path): str(kept[path]) for path in named},
            )
            sides = files.sides
            if written.figures is not None and sides.page is not None:
                from bansong.run.page import render_into  # few runs make a page

                page = sides.at[sides.page]
                render_into(page, written.figures, record_of(report), sides.letter_cost, written.changes)
            yield report

    def _statuses(self, counts: accounting.RowCounts, tallied: Mapping[str, Any]) -> accounting.StatusCounts | None:
        if self.prepared.is_address_list:
            return None
        return accounting.statuses_of(self.engine, counts, tallied, self.asked.fetch.halt if self.asked else None)

    def _alerts(self, counts: accounting.RowCounts, written: _WrittenAnswers) -> tuple[Alert | None, ...]:
        tallied = written.tallied
        return (
            accounting.failure_alert(counts, tallied[accounting.COMMON_FAILURE]),
            *accounting.answer_alerts(tallied, self.prepared.table.first_row),
            *(written.beside.alerts if written.beside else ()),
            accounting.replaced_alert(accounting.replaced_rows(tallied), self.prepared.lang),
        )

    def _write_answers(
        self, answered: AnsweredRecords, files: Unpublished, rows_in: int, warn: Callable[[str], object]
    ) -> _WrittenAnswers:
        # the tally is of the same pass: one of its own could disagree
        target, sides, purchase = files.target, files.sides, answered.answers.purchase
        answers = answered.of(accounting.with_plan_columns(self.rows))
        carried = self.prepared.carried.items()
        answers = answers.with_columns(pl.col(id_).cast(pl.String).alias(name) for name, id_ in carried)
        if self.with_outcomes:
            answers = _with_outcomes(answers, self.known.outcomes() if self.known else None)
        if self.decisions is not None:
            answers = self.decisions.apply(answers, self.prepared.lang)
        answers = self._with_extras(answers if self.observe is None else self.observe(answers))
        numbered = accounting.number_rows(answers)
        more = [*accounting.PLAN_COUNTS, *accounting.FAILURE_COUNTS, *self.engine.counts()]
        more += accounting.replaced_counts(self.prepared.earlier) + (self.decisions.tally() if self.decisions else [])
        numbered, lists = with_digests(numbered, rows_in) if self.recorded else (numbered, [])
        more += lists
        tally = accounting.tally(numbered, more)
        summary = sections if target.summary else None
        record = frozenset(choice.column for choice in self.prepared.chosen.values())
        table, layout, lang = self.prepared.table, self.prepared.layout, self.prepared.lang
        result = Enriched(table, numbered, layout, tally, summary, record, warn, lang)
        counts, count_written = write_table(result, files.temporary, target.format, target.encoding)
        headers = [header for column, header in layout if contract_name(column) != KEPT]
        tallied = remember_rows(
            counts, self.recorded, headers, decided=self.decisions is not None and not self.decisions.rows.is_empty()
        )
        if purchase is not None:
            purchase = replace(purchase, agreement=self.engine.agreement(tallied))
        beside = sides.write(result, target, rows_in) if sides.wanted else None
        if sides.page is None:
            return _WrittenAnswers(tallied, count_written, purchase, beside)
        from bansong.run.page_figures import collect_figures, find_changes

        figures = collect_figures(result.frame, unmask=sides.unmask, first_row=table.first_row)
        # the output that is replaced is still there
        changes = find_changes(result.frame, str(self.path), self.start.run_id, unmask=sides.unmask)
        return _WrittenAnswers(tallied, count_written, purchase, beside, figures, changes)

    def _with_extras(self, answers: pl.LazyFrame) -> pl.LazyFrame:
        # answers read twice are kept in a file: answering again costs more, or buys
        extras, counts_letters = self.prepared.extras, self.sides.counts_letters
        if "duplicate_of" in extras or self.sides.wanted:
            path = self.resources.enter_context(private_folder()) / "answers.arrow"
            answers.sink_ipc(path, compression="lz4", record_batch_size=_STORED_TOGETHER, engine="streaming")
            answers = pl.scan_ipc(path)
        if "duplicate_of" in extras or counts_letters:
            answers = with_duplicates(answers)
        gazetteer = self._gazetteer_in_use
        return with_extra_columns(mark_letters(answers) if counts_letters else answers, extras, gazetteer)

    def _report(
        self,
        purchase: Purchase | None,
        warnings: Sequence[str] = (),
        *,
        plan: accounting.LookupPlan,
        statuses: accounting.StatusCounts | None = None,
        alerts: Sequence[Alert | None] = (),
        **outcome: Any,
    ) -> Report:
        chosen = self.prepared.chosen
        known, gazetteer = self.known if self.engine.kind.answers_locally else None, self._gazetteer_in_use
        header = chosen["b_no"].header if "b_no" in chosen else None
        status = statuses.alert if statuses is not None else None
        return Report(
            run_id=self.start.run_id,
            started=self.start.at,
            seconds=time.monotonic() - self.start.clock,
            engine=self.engine.kind.name,
            input=str(self.path),
            table=self.prepared.table.name,
            columns=chosen,
            merged=self.prepared.merged,
            versions=versions_of(self.engine, self.known),
            plan=plan,
            statuses=statuses,
            asked=self.asked,
            warnings=(
                *filter(None, (accounting.invalid_alert(plan, header), *alerts, status)),
                *(loud := [one for one in self.prepared.warnings if isinstance(one, Alert)]),
                *(() if self.prepared.is_address_list else self.engine.hints(planned="account" not in outcome)),
                *([accounting.no_gazetteer()] if self._looks_up and gazetteer is None else []),
                *(one for one in self.prepared.warnings if one not in loud),
                *(gazetteer.cautions(self.engine.local.today or seoul_day()) if gazetteer else ()),
                *unknown_extra_columns(self.prepared.extras, gazetteer),
                *([Phrase(_NO_OUTCOMES)] if self.with_outcomes and self.known is None else []),
                *(purchase.notes if purchase else ()),
                *(self.asked.notes if self.asked else ()),
                *warnings,
            ),
            purchase=purchase,
            history=LetterHistory(known.letters, known.mailings, str(known.store.folder)) if known else None,
            **outcome,
        )

    @property
    def _gazetteer_in_use(self) -> Gazetteer | None:
        return self.engine.local.gazetteer if self._looks_up else None

    @property
    def _looks_up(self) -> bool:
        return self.engine.kind.answers_locally and "address" in self.prepared.chosen


def _read_figures(record: Path | None, output: Path) -> PageFigures:
    from bansong.run.page import read_figures

    return read_figures(record, output)


def _with_outcomes(answers: pl.LazyFrame, outcomes: pl.LazyFrame | None) -> pl.LazyFrame:
    names = answers.collect_schema().names()
    if outcomes is None or NUMBER not in names or "address" not in names:
        return answers.with_columns(
            pl.lit(None, dtype).alias(name) for name, dtype in LABEL_DTYPES.items() if name in LABEL_COLUMNS
        )
    return with_letters(answers, outcomes, NUMBER)
