"""Send labels to the service, each once."""

# Only rows that were bought by uploads have a job. The key of a row's lookup leads to its upload and place in the
# ledger; the results of the job show how the service numbers rows (G30).

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import polars as pl

from bansong.base.cancel import CancelToken, run_async
from bansong.base.errors import (
    AuthenticationError,
    CertificateError,
    DoubtError,
    LimitError,
    NotFoundError,
    NotSentError,
    PlanError,
    Problem,
    QuotaError,
    ServiceError,
    StoppedError,
    UsageError,
)
from bansong.base.files import new_run_id
from bansong.base.key import ApiKey
from bansong.base.messages import gettext, gettext_of, ngettext
from bansong.base.options import ServiceOptions
from bansong.base.schema import RECORD_COLUMNS
from bansong.client.address import BaseUrl
from bansong.client.client import Client
from bansong.client.dispatcher import Halt, OutgoingRequest, Slot, Task
from bansong.client.errors import Action, error_action
from bansong.engine.protocol import LOOKUP
from bansong.engine.records import ROW_ID, records
from bansong.purchase.changes import (
    JobNumbered,
    LabelChange,
    LabelDone,
    LabelDoubted,
    LabelQueue,
    LabelRefused,
    LabelRetracted,
    LabelSent,
    RowLabel,
)
from bansong.purchase.ledger import Journal, Ledger, LedgerRun
from bansong.purchase.ledger_file import ledger_path
from bansong.purchase.lookups import KEY, PurchaseContext, lookup_expr, scope_of, with_keys
from bansong.purchase.queries import HeldLabel, StoredUpload
from bansong.purchase.uploads import UploadedJob, find_base
from bansong.run.columns import check_labels
from bansong.tables.detect import reading
from bansong.tables.earlier_columns import find_earlier_columns
from bansong.tables.nested import choose_nested
from bansong.tables.table import Table

log = logging.getLogger(__name__)


@dataclass
class LabelSender:
    """Sends the labels of a run to the jobs in which their rows were bought."""

    ledger: Ledger
    terms: ServiceOptions
    url: BaseUrl
    first_row: int | None  # the service's key of a job's first row, if its results do not prove it
    sent: int = field(default=0, init=False)
    refused: int = field(default=0, init=False)
    doubts: int = field(default=0, init=False)
    _lost_jobs: dict[int, str] = field(default_factory=dict, init=False)
    _bases: dict[int, int | None] = field(default_factory=dict, init=False)
    _jobs: dict[int, StoredUpload] = field(default_factory=dict, init=False)

    def send_all(self, run_id: str, labels: Sequence[RowLabel], cancel: CancelToken) -> Halt | None:
        """Send the labels; return why sending stopped early, if so; raise errors that end a run."""
        key = self.terms.load_key()
        outcome = "failed"
        try:
            halt = run_async(lambda: self._send_all(key, run_id, labels, cancel), cancel)
            outcome = halt.why if halt else "done"
        except KeyboardInterrupt:
            outcome = "interrupted"
            raise KeyboardInterrupt(self._explain_progress()) from None
        finally:
            self.ledger.end(run_id, outcome)
        if halt is not None and halt.error is not None:
            raise halt.error
        if halt is not None and halt.why == "interrupted":
            raise StoppedError(self._explain_progress())
        return halt

    def count_unnumbered(self, labels: Sequence[RowLabel]) -> int:
        """Count the labels of jobs whose numbering of rows is not known."""
        return sum(self._bases.get(label.upload, 0) is None for label in labels)

    def _explain_progress(self) -> str:
        doubts = gettext(", in doubt: {doubts:,}", doubts=self.doubts) if self.doubts else ""
        sent = ngettext("{count:,} label", "{count:,} labels", self.sent)
        return gettext(
            "{sent} sent in this run, known to the ledger{doubts}; the same command goes on", sent=sent, doubts=doubts
        )

    async def _send_all(self, key: ApiKey, run_id: str, labels: Sequence[RowLabel], cancel: CancelToken) -> Halt | None:
        client = Client(self.url, key, concurrency=self.terms.concurrency, timeout=self.terms.timeout, max_retries=0)
        async with client, Journal(self.ledger) as journal:
            context = PurchaseContext(client, self.ledger, journal, self.terms, run_id, "")
            dispatcher = context.dispatcher
            cancel.set_handler(lambda: dispatcher.cancel(Halt("interrupted", "interrupted")))
            try:
                await self._number_rows(context, {label.upload for label in labels})
                numbered = [label for label in labels if self._bases.get(label.upload) is not None]
                source = iter(numbered)

                def next_task() -> Task | None:
                    label = next(source, None)
                    if label is None:
                        return None
                    return partial(dispatcher.deliver, _LabelRequest(self, context, label))

                await dispatcher.run(next_task, min(self.terms.concurrency, max(len(numbered), 1)))
            finally:
                cancel.set_handler(None)
        return dispatcher.halt

    async def _number_rows(self, context: PurchaseContext, uploads: set[int]) -> None:
        self._jobs = self.ledger.labelled_jobs(sorted(uploads))
        for upload, job in self._jobs.items():
            if context.dispatcher.is_cancelled:
                return
            base = job.base
            if base is None:
                base = await self._fetch_base(context, job)
            if base is None and not context.dispatcher.is_cancelled:
                base = self.first_row
            if not context.dispatcher.is_cancelled:
                self._bases[upload] = 0 if upload in self._lost_jobs else base

    async def _fetch_base(self, context: PurchaseContext, job: StoredUpload) -> int | None:
        try:
            base = await find_base(context, UploadedJob.of(job, self.url.name))
        except (NotFoundError, UsageError) as error:  # UsageError: the id cannot be part of a URL
            self._lost_jobs[job.number] = str(error)
            return None
        except (AuthenticationError, CertificateError, PlanError) as error:
            context.dispatcher.end_run(error)
            return None
        except (QuotaError, LimitError, NotSentError, DoubtError) as error:
            note = gettext("job {job_id} cannot be looked at now: {error}", job_id=job.job_id, error=error)
            context.dispatcher.cancel(Halt("unreachable", note))
            return None
        except ServiceError as error:
            log.info("job %s does not say how it numbers its rows: %s", job.job_id, error)
            return None
        if base is not None:
            await context.journal.settle(JobNumbered(job.id, base))
        return base


class _LabelRequest(OutgoingRequest[None]):
    """A label to be sent; it is repeated only if it certainly did not arrive."""

    def __init__(self, sender: LabelSender, context: PurchaseContext, label: RowLabel) -> None:
        self._sender, self._context, self._label = sender, context, label

    async def skip(self) -> bool:
        note = self._sender._lost_jobs.get(self._label.upload)
        if note is not None:
            await self._settle(LabelRefused(self._label, note=note))
        return note is not None

    async def prepare(self) -> None:
        await self._context.journal.settle(LabelSent(self._label))

    async def send(self, slot: Slot) -> None:
        del slot
        sender, label = self._sender, self._label
        job_id, row = sender._jobs[label.upload].job_id, label.place + (sender._bases[label.upload] or 0)
        try:
            await self._context.client.label(job_id, row, bounced=label.bounced, reason=label.reason)
        except UsageError as error:  # the id cannot be part of a URL
            raise NotFoundError(str(error)) from error

    def choose_action(self, error: ServiceError, attempt: int) -> Action:
        del attempt
        return Action.DROP if isinstance(error, NotFoundError) else error_action(error)

    async def record_reply(self, reply: None, slot: Slot) -> None:
        del reply, slot
        await self._settle(LabelDone(self._label))

    async def record_error(self, error: ServiceError, action: Action) -> None:
        if action is Action.HOLD:  # also for unreadable answers: perhaps a page of a proxy
            await self._settle(LabelDoubted(self._label, note=str(error)))
        elif action in (Action.REFUSE, Action.DROP):
            await self._settle(LabelRefused(self._label, note=str(error)))
        else:  # not sent, or all requests are refused
            await self._settle(LabelRetracted(self._label))
        if action is Action.DROP:
            self._sender._lost_jobs.setdefault(self._label.upload, str(error))

    async def record_interruption(self, note: str) -> None:
        await self._settle(LabelDoubted(self._label, note=note))

    async def _settle(self, change: LabelChange) -> None:
        await self._context.journal.settle(change)
        sender = self._sender
        sender.sent += isinstance(change, LabelDone)
        sender.refused += isinstance(change, LabelRefused)
        sender.doubts += isinstance(change, LabelDoubted)


FIRST_ROW_INVALID: Final = Problem(
    "labels.first_row_invalid", "first_row {first_row}: a service numbers rows from 0, 1 or 2"
)

_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class SendReport:
    """Report on sending labels to the service."""

    ledger: str
    labels: int  # rows that certainly came back or arrived
    without_job: int  # rows that were not bought in an upload to this service
    job_rows: int = 0  # rows of jobs with a label: sent earlier (`done`), `sent` now, or `left`
    done: int = 0
    sent: int = 0
    left: int = 0
    refused: int = 0
    doubts: int = 0
    unnumbered: int = 0  # labels not sent, since their row in the job has no known number
    contradictory: tuple[tuple[int, ...], ...] = ()  # not sent: `row_id` of rows with one lookup and both outcomes
    held: tuple[HeldLabel, ...] = ()  # all refused or doubtful labels of the file
    paused: str | None = None  # why sending stopped early

    @property
    def exit_code(self) -> int:
        """5 if the same command continues later, else 3 if labels are held back, else 0."""
        return 5 if self.paused else 3 if self.held or self.unnumbered else 0

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain values, without the upload numbers of the ledger."""
        held = [{name: value for name, value in asdict(label).items() if name != "upload"} for label in self.held]
        return asdict(self) | {"held": held}

    def lines(self) -> Iterator[str]:
        yield gettext_of(self, "labels for the service: {sent:,} sent, {done:,} sent before, {left:,} left")
        if self.without_job:
            labels = ngettext("{count:,} label", "{count:,} labels", self.without_job)
            yield gettext("{labels} of rows that were not bought in an upload: they have no job", labels=labels)
        if self.contradictory:
            rows = "; ".join(gettext(" and ").join(map(str, group)) for group in self.contradictory[:_SHOWN])
            more = " …" if len(self.contradictory) > _SHOWN else ""
            yield gettext("not sent, rows of one lookup say both: {rows}{value}", rows=rows, value=more)
        if self.unnumbered:
            yield gettext(
                "not sent, {labels} of jobs whose results do not say how they number rows; if you know it, give "
                "`first_row=`",
                labels=ngettext("{count:,} label", "{count:,} labels", self.unnumbered),
            )
        for label in self.held[:_SHOWN]:
            about = {"what": "bounced" if label.bounced else "arrived", "place": label.place + 1}
            yield gettext_of(label, "{state}: {b_no} {what}, row {place} of job {job_id}: {note}", **about)
        if len(self.held) > _SHOWN:
            yield gettext("… and {held:,} more that were refused or are in doubt", held=len(self.held) - _SHOWN)
        if self.held:
            yield gettext("what is in doubt or refused is sent again with `resend=True` only")
        if self.paused:
            yield gettext_of(self, "paused: {paused}; the same command goes on")


def labels_with_lookups(
    labels: pl.DataFrame, table: Table, columns: Mapping[str, str] | None = None, prefix: str = ""
) -> pl.DataFrame:
    """Return the labels that have an outcome, with their lookups: ``row_id``, ``bounced``, ``reason``, LOOKUP."""
    with reading(table):
        ours = find_earlier_columns(table, prefix).places
        unfolded, chosen = choose_nested(table, RECORD_COLUMNS, columns, ours)
        rows = records(unfolded, chosen.columns, ours)
        lookups = rows.select(ROW_ID, lookup_expr(rows, suspect=True).alias(LOOKUP))
        known = check_labels(labels, table).drop_nulls("bounced").lazy()
        known = known.select(ROW_ID, "bounced", pl.col("bounce_reason").alias("reason"))
        return known.join(lookups, on=ROW_ID, how="left").sort(ROW_ID).collect(engine="streaming")


def send_labels(
    labels: pl.DataFrame,
    path: Path,
    *,
    terms: ServiceOptions,
    mailed: date | None = None,
    resend: bool = False,
    first_row: int | None = None,
    cancel: CancelToken | None = None,
) -> SendReport:
    """Send each label (:func:`labels_with_lookups`) once, to the job in which its row was bought."""
    # if a lookup was in several jobs, the last one before `mailed` gets the label
    if first_row not in (None, 0, 1, 2):
        raise UsageError(FIRST_ROW_INVALID, first_row=first_row)
    url = BaseUrl.parse(terms.base_url, allow_http=terms.allow_http, known_as=terms.known_as)
    file = ledger_path(Path(terms.ledger) if terms.ledger is not None else None)
    if not file.exists():  # nothing was ever bought
        return SendReport(str(file), labels.height, labels.height)
    with Ledger.open(file) as ledger:
        wanted, report = _find_jobs(labels, ledger, url.name, mailed)
        started = datetime.now(UTC)
        run = LedgerRun(new_run_id(started), "label", url.name, str(path), started.timestamp())
        queue = ledger.prepare_labels(run, wanted, resend=resend)
        log.info("%d labels are to be sent, %d were sent before", len(queue.labels), queue.done)
        sender = LabelSender(ledger, terms, url, first_row)
        halt = sender.send_all(run.run_id, queue.labels, cancel or CancelToken()) if queue.labels else None
        return _complete_report(report, wanted, queue, sender, halt)


def _find_jobs(
    labels: pl.DataFrame, ledger: Ledger, origin: str, mailed: date | None
) -> tuple[list[RowLabel], SendReport]:
    # the job of each label: the last before the mailing, else the first
    lookups = labels.select(LOOKUP).drop_nulls().unique(maintain_order=True)
    parts = []
    for offline, paid in ledger.upload_flags(origin):  # flags are part of a key; the file lacks them
        keys = with_keys(lookups, scope_of(origin, offline, paid))[KEY]
        parts.append(ledger.job_rows(keys, origin))
    rows = pl.concat(parts) if parts else ledger.job_rows(pl.Series([], dtype=pl.Binary), origin)
    rows = rows.with_columns(
        lookups[LOOKUP].gather(rows["nth"]).alias(LOOKUP), late=pl.col("created") >= _end_of_day(mailed)
    )
    by_worth = pl.when("late").then("created").otherwise(-pl.col("created"))
    rows = rows.sort("late", by_worth).unique(LOOKUP, keep="first", maintain_order=True)
    joined = labels.join(rows.select(LOOKUP, "upload", "place"), on=LOOKUP, how="left", maintain_order="left")
    grouped = (
        joined.drop_nulls("upload")
        .group_by("upload", "place")
        .agg(
            pl.col("bounced").first(),
            pl.col("reason").drop_nulls().first(),
            pl.col(ROW_ID),
            both=pl.col("bounced").n_unique() > 1,
        )
        .sort("upload", "place")
    )
    sure = grouped.filter(~pl.col("both")).select("upload", "place", "bounced", "reason")
    both = grouped.filter("both").get_column(ROW_ID)
    contradictory, without_job = tuple(tuple(rows) for rows in both), joined["upload"].null_count()
    report = SendReport(str(ledger.path), labels.height, without_job, contradictory=contradictory)
    return [RowLabel(*row) for row in sure.iter_rows()], report


def _end_of_day(mailed: date | None) -> float:
    if mailed is None:
        return float("inf")
    # end of the day in UTC and 12 hours more, when it has ended in all time zones
    return (datetime(mailed.year, mailed.month, mailed.day, tzinfo=UTC) + timedelta(days=1, hours=12)).timestamp()


def _complete_report(
    report: SendReport, wanted: Sequence[RowLabel], queue: LabelQueue, sender: LabelSender, halt: Halt | None
) -> SendReport:
    rows = {(label.upload, label.place) for label in wanted}
    held = sender.ledger.held_labels(sender.url.name)
    unnumbered = sender.count_unnumbered(queue.labels)
    return replace(
        report,
        job_rows=len(rows) + len(report.contradictory),
        done=queue.done,
        sent=sender.sent,
        left=len(queue.labels) - sender.sent - sender.refused - sender.doubts - unnumbered,
        refused=sender.refused,
        doubts=sender.doubts,
        unnumbered=unnumbered,
        held=tuple(label for label in held if (label.upload, label.place) in rows),
        paused=halt.note if halt else None,
    )
