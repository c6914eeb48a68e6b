"""One run over one table: its columns chosen, its rows answered, written, accounted for and published."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import date, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from bizverify import business_number
from bizverify.engine import LocalEngine
from bizverify.engine.history import with_letters
from bizverify.errors import parameter
from bizverify.labels.history import Remembered
from bizverify.labels.output_columns import LABEL_DTYPES as JOINED_DTYPES
from bizverify.labels.output_columns import earlier
from bizverify.report import (
    History,
    Report,
    Versions,
    default_manifest,
    matched,
    sections,
    sha256_of,
    write_manifest,
)
from bizverify.run import output_layout
from bizverify.run.alerts import (
    BOUGHT_COUNTS,
    BUILD_REGISTRY,
    COMMON_FAILURE,
    FAILURE_COUNTS,
    StatusCounts,
    bought_alert,
    failure_alert,
    garbled_alert,
    invalid_alert,
    stale_registry_alert,
    status_counts,
)
from bizverify.run.cross_row_features import with_whole_file
from bizverify.run.destination import Target
from bizverify.run.plan import PLAN_COUNTS, Plan, marked, plan_of
from bizverify.run.plan import plan as count_plan
from bizverify.run.records import DIGITS, ROW_ID, records
from bizverify.schema import ADDED_COLUMNS, CONTEXT_COLUMNS, LABEL_COLUMNS, OUR_COLUMNS, RECORD_COLUMNS, Alert, Choice
from bizverify.tables import Enriched, Table, publish_file, reading, write_table, written_rows
from bizverify.tables.columns import Chosen, kept_columns, own_columns
from bizverify.tables.nested import choose_nested, held_choice
from bizverify.tables.publish import backed_up

if TYPE_CHECKING:
    from bizverify.engine.address import Gazetteer
    from bizverify.purchase.engine import PaidEngine
    from bizverify.purchase.summary import Purchase

log = logging.getLogger(__name__)

LOCAL: Final = ("local", "hybrid")
"""The engines for which the local one answers every row."""

_NO_OUTCOMES: Final = (
    "no outcomes are recorded, so bounced, bounce_reason and bounced_at are empty; see `bizverify label`"
)
_NUMBER: Final = "outcome:b_no"

Progress = Callable[[int, int], None]
"""Called with (done, in all), from any thread: rows answered by the local engine, lookups by those that buy."""


@dataclass(frozen=True, slots=True)
class Stages:
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


def staged(
    table: Table,
    columns: Mapping[str, str | Sequence[str]] | None,
    prefix: str,
    select: Sequence[str] | None = None,
    with_outcomes: bool = False,
) -> Stages:
    """Choose a table's columns, number its rows, lay its output out; raises :class:`bizverify.errors.ColumnError`."""
    ours = own_columns(table.headers, prefix)
    labels = earlier(table.headers, prefix)
    before = {*ours.values(), *labels.values()}
    if table.headers:
        with reading(table):
            unfolded, chosen = choose_nested(table, (*RECORD_COLUMNS, *CONTEXT_COLUMNS), columns, before)
    else:  # `[]`: no record, so no key to find
        unfolded, chosen = table, Chosen({})
    log.info("%s read as %s, %d columns; roles: %s", table.name, table.format, len(table.headers), chosen)
    rows = records(unfolded, chosen.columns, before)
    every = frozenset(range(len(table.headers)))
    kept = kept_columns(table, [select] if isinstance(select, str) else select) if select else every
    ours |= labels if with_outcomes else {}
    kept |= set(ours.values())
    layout, warnings = output_layout.layout(
        table.headers, prefix, ours, kept, OUR_COLUMNS if with_outcomes else ADDED_COLUMNS
    )
    if table.headers and "address" not in chosen.columns:
        warnings = (
            *warnings,
            "no address column was found: no bounce risk is given, only the status where it can be checked",
        )
    shown = {role: held_choice(table, choice) for role, choice in chosen.columns.items()}
    return Stages(table, shown, rows, layout, kept < every, (*table.notes, *chosen.notes, *warnings))


def looked_over(stages: Stages, engine: str) -> Stages:
    """Add to the rows what only the whole file tells of them, where the local engine is to answer: reads the file."""
    return replace(stages, rows=with_whole_file(stages.rows)) if engine in LOCAL else stages


@dataclass(frozen=True, slots=True)
class Run:
    """One run over one file: of the local engine, or of one that buys."""

    path: Path
    run_id: str
    started: datetime
    clock: float
    engine: str
    local: LocalEngine
    stages: Stages
    paid: PaidEngine | None
    priority: str | None
    known: Remembered | None = None
    with_outcomes: bool = False

    def planned(self) -> Report:
        """Say what would be done; nothing is written or spent."""
        rows = self.stages.rows
        asked = looked_over(self.stages, self.engine).rows if self.paid else rows
        purchase = self.paid.quoted(asked, self.priority, str(self.path)) if self.paid else None
        return self._report(purchase, plan=count_plan(rows))

    def carried_out(self, target: Target, manifest: str | Path | None, progress: Progress | None) -> Report:
        """Answer the rows, write them, hold the account against them, publish, and say what was done."""
        record = Path(manifest) if manifest is not None else default_manifest(self.run_id)
        table, format = self.stages.table, target.format
        # the backup is undone last, when it is known whether the old file was replaced
        with publish_file(record) as record_file, ExitStack() as backup, publish_file(target.path) as temporary:
            rows_in = table.count()
            log.info("run %s: %d rows to verify, writing %s to %s", self.run_id, rows_in, format, target.path)
            found: list[str] = []
            tallied, purchase = self._written(target, temporary, progress, rows_in, found.append)
            account = output_layout.account_of(tallied)
            output_layout.balance(rows_in, account, written_rows(table, temporary, format, target.encoding))
            report = self._report(
                purchase,
                found,
                plan=plan_of(tallied),
                account=account,
                statuses=statuses_of(self.local, self.engine, account, tallied),
                alerts=(
                    failure_alert(account, tallied[COMMON_FAILURE]),
                    bought_alert(tallied),
                    garbled_alert(tallied),
                ),
                addresses=matched(tallied),
                output=str(target.path),
                manifest=str(record),
                input_sha256=sha256_of(self.path),
                backup=str(backup.enter_context(backed_up(target.path, record))) if target.backup else None,
            )
            write_manifest(report, record_file)
        log.info("run %s: published %s in %.2f s", self.run_id, target.path, report.seconds)
        return report

    def _written(
        self,
        target: Target,
        temporary: Path,
        progress: Progress | None,
        total: int,
        warn: Callable[[str], object],
    ) -> tuple[dict[str, Any], Purchase | None]:
        """Answer the rows and write them; return the tally of the very rows that were written.

        ``warn`` is called with each warning that is known only once they are written.
        """
        answers, purchase = self._answers(progress, total)
        if self.with_outcomes:
            answers = _labelled(answers, self.known.outcomes() if self.known else None)
        answered = output_layout.numbered_out(answers)
        bought = BOUGHT_COUNTS if self.paid else ()
        more = (
            *PLAN_COUNTS,
            *FAILURE_COUNTS,
            *bought,
            *(self.paid.counts() if self.paid else ()),
            *self._local_counts(),
        )
        tally, summary = output_layout.tally(answered, more), sections if target.summary else None
        record = frozenset(choice.column for choice in self.stages.chosen.values())
        result = Enriched(self.stages.table, answered, self.stages.layout, tally, summary, record, warn)
        tallied = write_table(result, temporary, target.format, target.encoding).row(0, named=True)
        if self.paid is not None and purchase is not None:
            purchase = replace(purchase, agreement=self.paid.agreed(tallied))
        return tallied, purchase

    def _local_counts(self) -> tuple[pl.Expr, ...]:
        """What the local engine can count of its own answers, if the rows have them."""
        return self.local.counts() if self.engine in LOCAL else ()

    def _answers(self, progress: Progress | None, total: int) -> tuple[pl.LazyFrame, Purchase | None]:
        rows = marked(looked_over(self.stages, self.engine).rows)
        if self.paid is not None:
            return self.paid.bought_and_answered(
                rows, self.priority, str(self.path), self.run_id, progress=progress or (lambda _done, _total: None)
            )
        if progress is not None:
            rows = rows.with_columns(_watched(progress, total))
        return self.local.answer(rows), None

    def _gazetteer_cautions(self) -> tuple[str, ...]:
        """What to know of the gazetteer that addresses were held against."""
        if self.engine not in LOCAL or self.local.gazetteer is None or "address" not in self.stages.chosen:
            return ()
        return self.local.gazetteer.cautions(_day(self.local))

    def _report(
        self,
        purchase: Purchase | None,
        warnings: Sequence[str] = (),
        *,
        plan: Plan,
        statuses: StatusCounts | None = None,
        alerts: Sequence[Alert | None] = (),
        **found: Any,
    ) -> Report:
        known = self.known if self.engine in LOCAL else None
        header = self.stages.chosen["b_no"].header if "b_no" in self.stages.chosen else None
        status = Alert(statuses.told) if statuses is not None and statuses.is_alarming else None
        return Report(
            run_id=self.run_id,
            started=self.started,
            seconds=time.monotonic() - self.clock,
            engine=self.engine,
            input=str(self.path),
            table=self.stages.table.name,
            columns=self.stages.chosen,
            versions=Versions(
                bizverify=version("bizverify"),
                model=self.local.model.version,
                registry=self.local.registry.version if self.local.registry else None,
                gazetteer=self.local.gazetteer.version if self.local.gazetteer else None,
                history=known.recorded.isoformat() if known else None,
                **_gazetteer_facts(self.local.gazetteer),
            ),
            plan=plan,
            statuses=statuses,
            warnings=(
                *filter(None, (invalid_alert(plan, header), *alerts, status)),
                *self.stages.warnings,
                *_hints(self.engine, self.local, self.paid, planned="account" not in found),
                *self._gazetteer_cautions(),
                *([_NO_OUTCOMES] if self.with_outcomes and self.known is None else []),
                *(purchase.notes if purchase else ()),
                *warnings,
            ),
            purchase=purchase,
            history=History(known.letters, known.mailings, str(known.book.folder)) if known else None,
            **found,
        )


def _labelled(answers: pl.LazyFrame, outcomes: pl.LazyFrame | None) -> pl.LazyFrame:
    """Add what became of the last letter to each row's business at its address, null where nothing is recorded."""
    names = answers.collect_schema().names()
    if outcomes is None or DIGITS not in names or "address" not in names:
        return answers.with_columns(
            pl.lit(None, dtype).alias(name) for name, dtype in JOINED_DTYPES.items() if name in LABEL_COLUMNS
        )
    numbered = answers.with_columns(business_number.key_expr(pl.col(DIGITS)).alias(_NUMBER))
    return with_letters(numbered, outcomes, _NUMBER)


def statuses_of(
    local: LocalEngine, engine: str, account: output_layout.Account, tallied: Mapping[str, Any]
) -> StatusCounts | None:
    """Return of how many rows of a run the status was checked; ``None`` where no row has a number."""
    counts = status_counts(
        account,
        tallied,
        stale_after=local.model.stale_after,
        registry=local.registry.version if local.registry and engine in LOCAL else None,
        bought=engine != "local",
    )
    return counts if counts.rows else None


def _gazetteer_facts(gazetteer: Gazetteer | None) -> dict[str, Any]:
    if gazetteer is None:
        return {}
    day = gazetteer.source_date
    return {"gazetteer_date": day.isoformat() if day else None, "gazetteer_addresses": gazetteer.buildings}


def _day(local: LocalEngine) -> date:
    return local.today or date.today()


def _hints(engine: str, local: LocalEngine, paid: PaidEngine | None, *, planned: bool) -> tuple[str, ...]:
    """What registry and gazetteer, given or not, mean for a run of this engine, where that may be a surprise.

    ``planned``: no row is answered, so nothing else says that no status is checked.
    """
    if engine in LOCAL:
        if planned and (stale := stale_registry_alert(local.registry, local.model.stale_after, _day(local))):
            return (stale,)
        if local.registry is not None or (engine == "local" and not planned):
            return ()
        meaning = {"local": "no row will say `send`", "hybrid": "every lookup is uncertain, and bought"}
        return (Alert(f"no registry was given, so {meaning[engine]}; {BUILD_REGISTRY}"),)
    by_worth = paid is not None and paid.terms.budget is not None and paid.terms.priority is None
    given = {"registry": local.registry, "gazetteer": local.gazetteer}
    idle = [name for name, index in given.items() if index is not None and not by_worth]
    return tuple(
        f"the {name} answers nothing here: with {parameter('engine', engine)} every answer is the service's"
        for name in idle
    )


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
