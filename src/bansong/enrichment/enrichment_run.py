"""One run of an engine over one prepared table: rows answered, written, accounted for, published and reported."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from bansong.cloud.remote_files import InputData
from bansong.engine.letter_history import with_letters
from bansong.engine.local import NUMBER
from bansong.enrichment.prepared_table import PreparedTable
from bansong.enrichment.run_inputs import open_statuses, versions_of
from bansong.labels.history import LabelHistory
from bansong.labels.output_columns import LABEL_DTYPES
from bansong.manifest import default_manifest, record_of, sha256_of, write_manifest
from bansong.report import LetterHistory, Report, match_counts, sections
from bansong.report_page.earlier_run import RunChanges, find_changes
from bansong.report_page.open_run import read_figures
from bansong.report_page.page import render_into
from bansong.report_page.page_figures import PageFigures, collect_figures
from bansong.run import accounting
from bansong.run.accounting import PLAN_COUNTS, LookupPlan, plan_of, with_plan_columns
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
from bansong.run.cross_row_features import with_found_features
from bansong.run.duplicates import with_duplicates
from bansong.run.engine import Answering, Engine, RunContext
from bansong.run.extra_columns import unknown_extra_columns, with_extra_columns
from bansong.run.letter_list import mark_letters
from bansong.run.output_layout import Target
from bansong.run.replaced_answers import replaced_alert, replaced_counts, replaced_rows
from bansong.run.run_start import RunStart
from bansong.run.side_files import SideFiles, WrittenSides
from bansong.run.status_counts import StatusCounts, statuses_of
from bansong.schema import LABEL_COLUMNS, Alert, seoul_day
from bansong.storage.filesystem import private_folder
from bansong.tables import Enriched, publish_file, write_table
from bansong.tables.publish import backed_up, find_foreign
from bansong.tables.standard_streams import send_output
from bansong.translation import Phrase, gettext_noop

if TYPE_CHECKING:
    from bansong.engine.address import Gazetteer
    from bansong.options import StatusOptions
    from bansong.reference.run_statuses import RunStatuses
    from bansong.run.engine import Purchase

log = logging.getLogger(__name__)

_NO_OUTCOMES: Final = gettext_noop(
    "no outcomes are recorded, so bounced, bounce_reason and bounced_at are empty; see `bansong label`"
)
_STORED_TOGETHER: Final = 20_000
"""Rows of stored answers that are read in one piece: a reader holds many, and larger ones take more memory."""


@dataclass(frozen=True, slots=True)
class _WrittenAnswers:
    """The tally of the very rows that were written, what they have cost, what is beside them, the page's figures.

    ``count`` reads the finished file back and counts its rows.
    """

    tallied: Mapping[str, Any]
    count: Callable[[], int]
    purchase: Purchase | None
    beside: WrittenSides | None
    figures: PageFigures | None
    changes: RunChanges | None = None


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
            write_manifest(record_of(report), record_file)
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
            changed = replaced_rows(tallied)
            foreign = beside.submit(find_foreign, self._replacements(target, temporary, sides))
            accounting.check_balance(rows_in, counts, written.count())
            emptied = written.beside.emptied if written.beside else None
            to_tell = dict.fromkeys([*([emptied] if emptied is not None else []), *foreign.result()])
            to_keep = dict.fromkeys([*([target.path] if target.backup else []), *to_tell])
            kept = {path: backup.enter_context(backed_up(path, record or target.path)) for path in to_keep}
            report = self._report(
                written.purchase,
                warnings,
                plan=plan_of(tallied),
                account=counts,
                statuses=None
                if self.prepared.is_address_list
                else statuses_of(self.engine, counts, tallied, self.asked.fetch.halt if self.asked else None),
                alerts=(
                    failure_alert(counts, tallied[COMMON_FAILURE]),
                    bought_alert(tallied),
                    garbled_alert(tallied, table.first_row),
                    vanished_alert(tallied),
                    *(written.beside.alerts if written.beside else ()),
                    replaced_alert(changed, self.prepared.lang),
                    *((emptied_alert if path == emptied else kept_alert)(path, kept[path]) for path in to_tell),
                ),
                replaced=changed,
                addresses=match_counts(tallied),
                output=target.name,
                manifest=str(record) if record is not None else None,
                read_figures=None if target.streamed else partial(read_figures, record, target.path),
                input_sha256=sha256.result(),
                input_version=data.version.label if data.version else None,
                beside=written.beside,
                backup=str(kept[target.path]) if target.path in kept else None,
                kept={str(path): str(kept[path]) for path in to_tell},
            )
            if written.figures is not None and sides.page is not None:
                render_into(
                    sides.at[sides.page], written.figures, record_of(report), sides.letter_cost, written.changes
                )
            yield report

    def _replacements(self, target: Target, temporary: Path, sides: SideFiles) -> dict[Path, Path]:
        """The finished file of each that is published and may hold what somebody wrote.

        In place, the caller has said whether there is to be a backup.
        """
        beside = {path: finished for path, finished in sides.at.items() if path != sides.page}
        return beside if target.private or target.path == self.path else {target.path: temporary, **beside}

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
        more = (*PLAN_COUNTS, *FAILURE_COUNTS, *self.engine.counts(), *replaced_counts(self.prepared.earlier))
        tally, summary = accounting.tally(answered, more), sections if target.summary else None
        record = frozenset(choice.column for choice in self.prepared.chosen.values())
        table, layout, lang = self.prepared.table, self.prepared.layout, self.prepared.lang
        result = Enriched(table, answered, layout, tally, summary, record, warn, lang)
        counts, count_written = write_table(result, temporary, target.format, target.encoding)
        tallied = counts.row(0, named=True)
        if purchase is not None:
            purchase = replace(purchase, agreement=self.engine.agreement(tallied))
        beside = sides.write(result, target, rows_in) if sides.wanted else None
        figures = None
        if sides.page is not None:
            figures = collect_figures(result.frame, unmask=sides.unmask, first_row=table.first_row)
        changes = None
        if sides.page is not None:  # what the output replaces is still there
            changes = find_changes(result.frame, str(self.path), self.start.run_id, unmask=sides.unmask)
        return _WrittenAnswers(tallied, count_written, purchase, beside, figures, changes)

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
        """Return what to know of the gazetteer in which addresses were looked up."""
        gazetteer = self._gazetteer_in_use
        return () if gazetteer is None else gazetteer.cautions(self.engine.local.today or seoul_day())

    @property
    def _gazetteer_in_use(self) -> Gazetteer | None:
        return self.engine.local.gazetteer if self._looks_up else None

    @property
    def _looks_up(self) -> bool:
        return self.engine.kind.answers_locally and "address" in self.prepared.chosen


def _with_outcomes(answers: pl.LazyFrame, outcomes: pl.LazyFrame | None) -> pl.LazyFrame:
    """Add what became of the last letter to each row's business at its address, null where nothing is recorded."""
    names = answers.collect_schema().names()
    if outcomes is None or NUMBER not in names or "address" not in names:
        return answers.with_columns(
            pl.lit(None, dtype).alias(name) for name, dtype in LABEL_DTYPES.items() if name in LABEL_COLUMNS
        )
    return with_letters(answers, outcomes, NUMBER)
