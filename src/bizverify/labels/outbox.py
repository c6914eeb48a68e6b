"""How labels go to the service: at the pace of a run that buys, and never twice by themselves."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

import anyio

from bizverify.cancellation import CancelToken, run_async
from bizverify.client import ApiKey, BaseUrl, Client
from bizverify.errors import (
    AuthenticationError,
    DoubtError,
    NotFoundError,
    NotSentError,
    PlanError,
    QuotaError,
    RejectedError,
    ServiceError,
    ShapeError,
    StoppedError,
    TooLargeError,
    UsageError,
)
from bizverify.ledger import (
    Journal,
    Label,
    LabelDone,
    LabelDoubted,
    LabelledJob,
    LabelRefused,
    LabelRetracted,
    LabelSent,
    Ledger,
    Numbered,
)
from bizverify.ledger.label_outbox import LabelChange
from bizverify.options import ServiceOptions
from bizverify.purchase.batch_jobs import Job, numbering
from bizverify.purchase.dispatcher import Buying, Halt, is_redirect
from bizverify.purchase.limits import Slot, Throttle
from bizverify.run.lookups import scope_of
from bizverify.schema import counted

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""Called with (labels settled, labels to be sent)."""


@dataclass
class Delivery:
    """One run's labels to the service: ``sent``, ``refused`` and ``doubts`` are counted as it goes.

    ``first_row`` is what a service calls the first row of a job whose results do not prove it.
    """

    ledger: Ledger
    terms: ServiceOptions
    url: BaseUrl
    first_row: int | None
    progress: Progress
    sent: int = field(default=0, init=False)
    refused: int = field(default=0, init=False)
    doubts: int = field(default=0, init=False)
    _gone: dict[int, str] = field(default_factory=dict, init=False)
    _bases: dict[int, int | None] = field(default_factory=dict, init=False)
    _jobs: dict[int, LabelledJob] = field(default_factory=dict, init=False)

    def carried_out(self, run_id: str, labels: Sequence[Label], brake: CancelToken) -> Halt | None:
        """Send the labels, and return why that was stopped, if it was; raise what ends a run."""
        key = self.terms.api_key or ApiKey.load(self.terms.key_file)
        outcome = "failed"
        try:
            halt = run_async(lambda: self._deliver(key, run_id, labels, brake), brake)
            outcome = halt.why if halt else "done"
        except KeyboardInterrupt:
            outcome = "interrupted"
            raise KeyboardInterrupt(self._so_far()) from None
        finally:
            self.ledger.end(run_id, outcome)
        if halt is not None and halt.error is not None:
            raise halt.error
        if halt is not None and halt.why == "interrupted":
            raise StoppedError(self._so_far())
        return halt

    def unnumbered(self, labels: Sequence[Label]) -> int:
        """How many of the labels are of jobs that do not say what they call their rows."""
        return sum(self._bases.get(label.upload, 0) is None for label in labels)

    def _so_far(self) -> str:
        doubts = f", in doubt: {self.doubts:,}" if self.doubts else ""
        return f"{counted(self.sent, 'label')} sent in this run, known to the ledger{doubts}; the same command goes on"

    async def _deliver(self, key: ApiKey, run_id: str, labels: Sequence[Label], brake: CancelToken) -> Halt | None:
        client = Client(self.url, key, concurrency=self.terms.concurrency, timeout=self.terms.timeout, max_retries=0)
        async with client, Journal(self.ledger) as journal:
            buying = Buying(client, self.ledger, journal, self.terms, run_id, "")
            brake.set_handler(lambda: buying.stop.pull(Halt("interrupted", "interrupted")))
            try:
                await self._number(buying, {label.upload for label in labels})
                numbered = [
                    label for label in labels if self._bases.get(label.upload) is not None or label.upload in self._gone
                ]
                self.progress(0, len(numbered))
                source = iter(numbered)

                async def worker(throttle: Throttle) -> None:
                    while True:
                        async with buying.slot(throttle) as slot:
                            label = next(source, None) if slot is not None else None
                            if slot is None or label is None:
                                return
                            await self._send(buying, label, throttle, slot)
                        self.progress(self.sent + self.refused + self.doubts, len(numbered))

                await buying.carry_out(worker, min(self.terms.concurrency, max(len(numbered), 1)))
            finally:
                brake.set_handler(None)
        return buying.stop.halt

    async def _number(self, buying: Buying, uploads: set[int]) -> None:
        """Find out what the service calls the first row of each job, from the ledger or the job itself."""
        self._jobs = self.ledger.labelled_jobs(sorted(uploads))
        for upload, job in self._jobs.items():
            if buying.stop.pulled:
                return
            base = job.base
            if base is None:
                base = await self._looked_up(buying, job)
            if base is None and not buying.stop.pulled:
                base = self.first_row
            if not buying.stop.pulled:
                self._bases[upload] = 0 if upload in self._gone else base

    async def _looked_up(self, buying: Buying, job: LabelledJob) -> int | None:
        scope = scope_of(self.url.name, job.offline, job.paid)
        try:
            base = await numbering(buying, Job(job.id, job.job_id, job.total, scope))
        except (NotFoundError, UsageError) as error:  # UsageError: an id that no URL can hold
            self._gone[job.upload] = str(error)
            return None
        except (AuthenticationError, PlanError) as error:
            buying.refused(error)
            return None
        except (QuotaError, NotSentError, DoubtError) as error:
            buying.stop.pull(Halt("unreachable", f"job {job.job_id} cannot be looked at now: {error}"))
            return None
        except ServiceError as error:
            log.info("job %s does not say how it numbers its rows: %s", job.job_id, error)
            return None
        if base is not None:
            await buying.journal.settle(Numbered(job.id, base))
        return base

    async def _send(self, buying: Buying, label: Label, throttle: Throttle, slot: Slot) -> None:
        """Send one label, again only where it is certain that it did not arrive."""
        for attempt in count():
            if label.upload in self._gone:
                await self._settle(buying, LabelRefused(label, note=self._gone[label.upload]))
                return
            if not await buying.turn(throttle):
                return
            await buying.journal.settle(LabelSent(label))
            error = await self._ask(buying, label)
            if error is None:
                slot.eased()
                buying.fruitful()
                return
            if isinstance(error, ServiceError):
                buying.strained(error, slot)
            if not await self._again(buying, label, error, attempt):
                return

    async def _ask(self, buying: Buying, label: Label) -> ServiceError | UsageError | None:
        """Send the request and write down what came of it; return the error that it came to, if any."""
        job, row = self._jobs[label.upload], label.place + (self._bases[label.upload] or 0)
        try:
            await buying.client.label(job.job_id, row, bounced=label.bounced, reason=label.reason)
        except (ServiceError, UsageError) as error:
            await self._settle(buying, _outcome(label, error))
            return error
        except BaseException as stopped:  # cancelled, or worse: the request may be on its way
            with anyio.CancelScope(shield=True):
                note = f"the run was stopped while waiting for the answer ({type(stopped).__name__})"
                await self._settle(buying, LabelDoubted(label, note=note))
            raise
        await self._settle(buying, LabelDone(label))
        return None

    async def _settle(self, buying: Buying, change: LabelChange) -> None:
        await buying.journal.settle(change)
        self.sent += isinstance(change, LabelDone)
        self.refused += isinstance(change, LabelRefused)
        self.doubts += isinstance(change, LabelDoubted)

    async def _again(self, buying: Buying, label: Label, error: Exception, attempt: int) -> bool:
        """Whether to send the same label once more; if not, whether to go on at all."""
        match error:
            case DoubtError() | ShapeError():
                buying.fruitless(str(error))
            case NotSentError():
                if await buying.again(attempt, error.retry_after):
                    return True
                buying.unreachable(error)
            case QuotaError():
                return await buying.quota_used_up(error, attempt)
            case NotFoundError() | UsageError():  # the job is gone, or never had this row: neither will the others be
                self._gone.setdefault(label.upload, str(error))
            case TooLargeError() | RejectedError() if not is_redirect(error):
                buying.fruitless(str(error), 1)
            case ServiceError():  # 401, 403, a redirect: it will be the same for every other label
                buying.refused(error)
        return False


def _outcome(label: Label, error: Exception) -> LabelChange:
    """What an error means for a label."""
    match error:
        case DoubtError() | ShapeError():  # a page in place of an answer: somebody else's, perhaps
            return LabelDoubted(label, note=str(error))
        case NotFoundError() | UsageError() | TooLargeError():
            return LabelRefused(label, note=str(error))
        case RejectedError() if not is_redirect(error):
            return LabelRefused(label, note=str(error))
        case _:  # not sent, or refused whatever is said: as if it had not been tried
            return LabelRetracted(label)
