"""One table of a run: its rows are answered, written, accounted for, published and reported."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from bansong.cloud.remote_files import InputData
from bansong.engine.letter_history import with_letters
from bansong.engine.local import NUMBER
from bansong.enrichment.engine_step import AnsweredRecords, versions_of
from bansong.enrichment.outputs import Unpublished, publish_output
from bansong.enrichment.prepared_table import PreparedTable
from bansong.labels.history import LabelHistory
from bansong.labels.output_columns import LABEL_DTYPES
from bansong.manifest import record_of
from bansong.report import LetterHistory, Report, match_counts, sections
from bansong.report_page.earlier_run import RunChanges, find_changes
from bansong.report_page.open_run import read_figures
from bansong.report_page.page import render_into
from bansong.report_page.page_figures import PageFigures, collect_figures
from bansong.run import accounting
from bansong.run.accounting import PLAN_COUNTS, LookupPlan, RowCounts, plan_of, with_plan_columns
from bansong.run.accounting import plan as count_plan
from bansong.run.alerts import (
    COMMON_FAILURE,
    FAILURE_COUNTS,
    bought_alert,
    emptied_alert,
    failure_alert,
    garbled_alert,
    invalid_alert,
    kept_alert,
    no_gazetteer,
    vanished_alert,
)
from bansong.run.duplicates import with_duplicates
from bansong.run.engine import Engine
from bansong.run.extra_columns import unknown_extra_columns, with_extra_columns
from bansong.run.letter_list import mark_letters
from bansong.run.output_layout import Target
from bansong.run.replaced_answers import replaced_alert, replaced_counts, replaced_rows
from bansong.run.run_start import RunStart
from bansong.run.side_files import SideFiles, WrittenSides
from bansong.run.status_counts import StatusCounts, statuses_of
from bansong.schema import LABEL_COLUMNS, Alert, seoul_day
from bansong.storage.filesystem import private_folder
from bansong.tables import Enriched, write_table
from bansong.translation import Phrase, gettext_noop

if TYPE_CHECKING:
    from bansong.engine.address import Gazetteer
    from bansong.reference.run_statuses import RunStatuses
    from bansong.run.engine import Purchase

log = logging.getLogger(__name__)

Observe = Callable[[pl.LazyFrame], pl.LazyFrame]

_NO_OUTCOMES: Final = gettext_noop(
    "no outcomes are recorded, so bounced, bounce_reason and bounced_at are empty; see `bansong label`"
)
_STORED_TOGETHER: Final = 20_000
"""Rows of stored answers that are read in one piece: a reader holds many, and larger ones take more memory."""


@dataclass(frozen=True, slots=True)
class _WrittenAnswers:
    """The tally of the very rows that were written; ``count`` reads the finished file back and counts its rows."""

    tallied: Mapping[str, Any]
    count: Callable[[], int]
    purchase: Purchase | None
    beside: WrittenSides | None
    figures: PageFigures | None = None
    changes: RunChanges | None = None


@dataclass(frozen=True, slots=True)
class TableRun:
    """One table of a run.

    ``rows``: its prepared rows. ``sides``: the files beside its output. ``asked``: what the tax authority was asked.
    ``observe`` stands between the answered rows and what is written. ``resources`` are closed once it is written.
    """

    path: Path
    start: RunStart
    engine: Engine
    prepared: PreparedTable
    rows: pl.LazyFrame
    known: LabelHistory | None
    data: InputData | None = None
    sides: SideFiles = field(default_factory=SideFiles)
    resources: ExitStack = field(default_factory=ExitStack)
    with_outcomes: bool = False
    asked: RunStatuses | None = None
    observe: Observe | None = None

    def plan(self, purchase: Purchase | None = None) -> Report:
        """Return what would be done; nothing is written or spent."""
        return self._report(purchase, plan=count_plan(self.rows))

    @contextmanager
    def publish(
        self, target: Target, record: Path | None, answer: Callable[[int], AnsweredRecords]
    ) -> Iterator[Report]:
        """Answer the rows, write them and check that they balance; yield what was done.

        The output is published when the block ends without an error. ``record``: where the run's manifest goes, which
        no backup may replace. ``answer`` is called with the number of rows, once the output can be written.
        """
        table, data = self.prepared.table, self.data or InputData(self.path)
        with publish_output(target, self.sides, data, in_place=target.path == self.path) as files:
            rows_in = table.count()
            log.info("run %s: %d rows to verify, output %s", self.start.run_id, rows_in, target.name)
            warnings: list[str] = []
            written = self._write_answers(answer(rows_in), files, rows_in, warnings.append)
            counts, foreign = accounting.row_counts_of(written.tallied), files.find_foreign()
            accounting.check_balance(rows_in, counts, written.count())
            emptied = written.beside.emptied if written.beside else None
            named = dict.fromkeys([*([emptied] if emptied is not None else []), *foreign.result()])
            kept = files.back_up(named, record)
            report = self._report(
                written.purchase,
                warnings,
                plan=plan_of(written.tallied),
                account=counts,
                statuses=self._statuses(counts, written.tallied),
                alerts=(
                    *self._alerts(counts, written),
                    *((emptied_alert if path == emptied else kept_alert)(path, kept[path]) for path in named),
                ),
                replaced=replaced_rows(written.tallied),
                addresses=match_counts(written.tallied),
                output=target.name,
                manifest=str(record) if record is not None else None,
                read_figures=None if target.streamed else partial(read_figures, record, target.path),
                input_sha256=files.sha256.result(),
                input_version=data.version.label if data.version else None,
                beside=written.beside,
                backup=str(kept[target.path]) if target.path in kept else None,
                kept={str(path): str(kept[path]) for path in named},
            )
            sides = files.sides
            if written.figures is not None and sides.page is not None:
                page = sides.at[sides.page]
                render_into(page, written.figures, record_of(report), sides.letter_cost, written.changes)
            yield report

    def _statuses(self, counts: RowCounts, tallied: Mapping[str, Any]) -> StatusCounts | None:
        if self.prepared.is_address_list:
            return None
        return statuses_of(self.engine, counts, tallied, self.asked.fetch.halt if self.asked else None)

    def _alerts(self, counts: RowCounts, written: _WrittenAnswers) -> tuple[Alert | None, ...]:
        tallied = written.tallied
        return (
            failure_alert(counts, tallied[COMMON_FAILURE]),
            bought_alert(tallied),
            garbled_alert(tallied, self.prepared.table.first_row),
            vanished_alert(tallied),
            *(written.beside.alerts if written.beside else ()),
            replaced_alert(replaced_rows(tallied), self.prepared.lang),
        )

    def _write_answers(
        self, answered: AnsweredRecords, files: Unpublished, rows_in: int, warn: Callable[[str], object]
    ) -> _WrittenAnswers:
        """Write the answered rows, and the files beside them; ``warn`` is called with warnings about what was written.

        The tally rides on the pass that writes: one of its own would read the file twice, and could disagree.
        """
        target, sides, purchase = files.target, files.sides, answered.answers.purchase
        answers = answered.of(with_plan_columns(self.rows))
        if self.with_outcomes:
            answers = _with_outcomes(answers, self.known.outcomes() if self.known else None)
        answers = self._with_extras(answers if self.observe is None else self.observe(answers))
        numbered = accounting.number_rows(answers)
        more = (*PLAN_COUNTS, *FAILURE_COUNTS, *self.engine.counts(), *replaced_counts(self.prepared.earlier))
        tally, summary = accounting.tally(numbered, more), sections if target.summary else None
        record = frozenset(choice.column for choice in self.prepared.chosen.values())
        table, layout, lang = self.prepared.table, self.prepared.layout, self.prepared.lang
        result = Enriched(table, numbered, layout, tally, summary, record, warn, lang)
        counts, count_written = write_table(result, files.temporary, target.format, target.encoding)
        tallied = counts.row(0, named=True)
        if purchase is not None:
            purchase = replace(purchase, agreement=self.engine.agreement(tallied))
        beside = sides.write(result, target, rows_in) if sides.wanted else None
        if sides.page is None:
            return _WrittenAnswers(tallied, count_written, purchase, beside)
        figures = collect_figures(result.frame, unmask=sides.unmask, first_row=table.first_row)
        # the output that is replaced is still there
        changes = find_changes(result.frame, str(self.path), self.start.run_id, unmask=sides.unmask)
        return _WrittenAnswers(tallied, count_written, purchase, beside, figures, changes)

    def _with_extras(self, answers: pl.LazyFrame) -> pl.LazyFrame:
        """Add the extra columns, and what the files beside the output need.

        Answers that are read twice are kept in a private file: to answer again costs more than to read again, and an
        engine that buys answers once.
        """
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
        plan: LookupPlan,
        statuses: StatusCounts | None = None,
        alerts: Sequence[Alert | None] = (),
        **outcome: Any,
    ) -> Report:
        chosen = self.prepared.chosen
        known = self.known if self.engine.kind.answers_locally else None
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
            versions=versions_of(self.engine, self.known),
            plan=plan,
            statuses=statuses,
            asked=self.asked,
            warnings=(
                *filter(None, (invalid_alert(plan, header), *alerts, status)),
                *(loud := [one for one in self.prepared.warnings if isinstance(one, Alert)]),
                *(() if self.prepared.is_address_list else self.engine.hints(planned="account" not in outcome)),
                *([no_gazetteer()] if self._looks_up and self._gazetteer_in_use is None else []),
                *(one for one in self.prepared.warnings if one not in loud),
                *self._gazetteer_cautions(),
                *unknown_extra_columns(self.prepared.extras, self._gazetteer_in_use),
                *([Phrase(_NO_OUTCOMES)] if self.with_outcomes and self.known is None else []),
                *(purchase.notes if purchase else ()),
                *(self.asked.notes if self.asked else ()),
                *warnings,
            ),
            purchase=purchase,
            history=LetterHistory(known.letters, known.mailings, str(known.store.folder)) if known else None,
            **outcome,
        )

    def _gazetteer_cautions(self) -> tuple[str, ...]:
        gazetteer = self._gazetteer_in_use
        return () if gazetteer is None else gazetteer.cautions(self.engine.local.today or seoul_day())

    @property
    def _gazetteer_in_use(self) -> Gazetteer | None:
        return self.engine.local.gazetteer if self._looks_up else None

    @property
    def _looks_up(self) -> bool:
        return self.engine.kind.answers_locally and "address" in self.prepared.chosen


def _with_outcomes(answers: pl.LazyFrame, outcomes: pl.LazyFrame | None) -> pl.LazyFrame:
    """Add the outcome of the last letter to each row's business at its address, null where none is recorded."""
    names = answers.collect_schema().names()
    if outcomes is None or NUMBER not in names or "address" not in names:
        return answers.with_columns(
            pl.lit(None, dtype).alias(name) for name, dtype in LABEL_DTYPES.items() if name in LABEL_COLUMNS
        )
    return with_letters(answers, outcomes, NUMBER)
