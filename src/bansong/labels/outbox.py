"""Send labels to the service at the pace of a buying run, and never twice by itself."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from bansong.cancellation import CancelToken, run_async
from bansong.client import ApiKey, BaseUrl, Client
from bansong.dispatch import Action, Halt, OutgoingRequest, Slot, Task
from bansong.dispatch.error_actions import error_action
from bansong.errors import (
    AuthenticationError,
    CertificateError,
    DoubtError,
    LimitError,
    NotFoundError,
    NotSentError,
    PlanError,
    QuotaError,
    ServiceError,
    StoppedError,
    UsageError,
)
from bansong.ledger import (
    JobNumbered,
    Journal,
    LabelDone,
    LabelDoubted,
    LabelledJob,
    LabelRefused,
    LabelRetracted,
    LabelSent,
    Ledger,
    QueuedLabel,
)
from bansong.ledger.label_outbox import LabelChange
from bansong.options import ServiceOptions
from bansong.purchase.batch_jobs import UploadedJob, find_base
from bansong.purchase.purchase_context import PurchaseContext
from bansong.run.lookups import scope_of
from bansong.translation import gettext, ngettext

log = logging.getLogger(__name__)


@dataclass
class LabelSender:
    """Sends one run's labels to the service; counts ``sent``, ``refused`` and ``doubts``.

    ``first_row``: number of a job's first row, if its results do not prove it.
    """

    ledger: Ledger
    terms: ServiceOptions
    url: BaseUrl
    first_row: int | None
    sent: int = field(default=0, init=False)
    refused: int = field(default=0, init=False)
    doubts: int = field(default=0, init=False)
    _lost_jobs: dict[int, str] = field(default_factory=dict, init=False)
    _bases: dict[int, int | None] = field(default_factory=dict, init=False)
    _jobs: dict[int, LabelledJob] = field(default_factory=dict, init=False)

    def send_all(self, run_id: str, labels: Sequence[QueuedLabel], cancel: CancelToken) -> Halt | None:
        """Send the labels; return why sending stopped early, if it did; raise what ends a run."""
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

    def count_unnumbered(self, labels: Sequence[QueuedLabel]) -> int:
        """Count the labels of jobs whose row numbers are unknown."""
        return sum(self._bases.get(label.upload, 0) is None for label in labels)

    def _explain_progress(self) -> str:
        doubts = gettext(", in doubt: {doubts:,}", doubts=self.doubts) if self.doubts else ""
        sent = ngettext("{count:,} label", "{count:,} labels", self.sent)
        return gettext(
            "{sent} sent in this run, known to the ledger{doubts}; the same command goes on", sent=sent, doubts=doubts
        )

    async def _send_all(
        self, key: ApiKey, run_id: str, labels: Sequence[QueuedLabel], cancel: CancelToken
    ) -> Halt | None:
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

    async def _fetch_base(self, context: PurchaseContext, job: LabelledJob) -> int | None:
        scope = scope_of(self.url.name, job.offline, job.paid)
        try:
            base = await find_base(context, UploadedJob(job.id, job.job_id, job.total, scope))
        except (NotFoundError, UsageError) as error:  # UsageError: an id that no URL can hold
            self._lost_jobs[job.upload] = str(error)
            return None
        except (AuthenticationError, CertificateError, PlanError) as error:
            context.dispatcher.end_run(error)
            return None
        except (QuotaError, LimitError, NotSentError, DoubtError) as error:
            context.dispatcher.cancel(
                Halt(
                    "unreachable",
                    gettext("job {job_id} cannot be looked at now: {error}", job_id=job.job_id, error=error),
                )
            )
            return None
        except ServiceError as error:
            log.info("job %s does not say how it numbers its rows: %s", job.job_id, error)
            return None
        if base is not None:
            await context.journal.settle(JobNumbered(job.id, base))
        return base


class _LabelRequest(OutgoingRequest[None]):
    """One label, sent again only if it surely did not arrive."""

    def __init__(self, sender: LabelSender, context: PurchaseContext, label: QueuedLabel) -> None:
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
        except UsageError as error:  # an id that no URL can hold
            raise NotFoundError(str(error)) from error

    def choose_action(self, error: ServiceError, attempt: int) -> Action:
        del attempt
        return Action.DROP if isinstance(error, NotFoundError) else error_action(error)

    async def record_reply(self, reply: None, slot: Slot) -> None:
        del reply, slot
        await self._settle(LabelDone(self._label))

    async def record_error(self, error: ServiceError, action: Action) -> None:
        if action is Action.HOLD:  # an unreadable answer among them: a page in its place, somebody else's, perhaps
            await self._settle(LabelDoubted(self._label, note=str(error)))
        elif action in (Action.REFUSE, Action.DROP):
            await self._settle(LabelRefused(self._label, note=str(error)))
        else:  # not sent, or refused whatever is said: as if it had not been tried
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
