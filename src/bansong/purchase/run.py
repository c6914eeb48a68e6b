"""One run that buys: settle what earlier runs left, choose what may be bought, buy it, and account for it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Final

from bansong.base.cancel import CancelToken, run_async
from bansong.base.errors import ServiceError, StoppedError, UsageError
from bansong.base.key import ApiKey
from bansong.base.messages import Phrase, gettext, ngettext
from bansong.client.client import Client
from bansong.client.dispatcher import Halt
from bansong.engine.protocol import Purchase, QuotaStatus
from bansong.purchase import answers as answer_join
from bansong.purchase import lookups as selection
from bansong.purchase.jobs import fetch_late_answers
from bansong.purchase.ledger import Journal, Ledger, LedgerRun
from bansong.purchase.lookups import KEY, PurchaseContext, PurchaseCounts, continuation_note, unknown_quota_alert
from bansong.purchase.queries import StoredUpload
from bansong.purchase.singles import buy_singly, settle_doubts
from bansong.purchase.uploads import buy_in_uploads

if TYPE_CHECKING:
    import polars as pl

    from bansong.client.responses import Account
    from bansong.engine.protocol import RunContext
    from bansong.purchase.engines import PaidEngine

log = logging.getLogger(__name__)

_DAY: Final = 86400.0


@dataclass
class PaidRun:
    """One run of an engine that buys: it settles, chooses and buys.

    ``begun``: start (unix seconds) of the first run that this one continues, if any.
    """

    engine: PaidEngine
    ledger: Ledger
    run: LedgerRun
    lookups: pl.DataFrame
    begun: float | None
    context: RunContext

    def __post_init__(self) -> None:
        self.options, self._cancel = self.engine.options, self.context.cancel or CancelToken()
        self.since = self.engine.fresh_since(self.context)
        self._figures, self._settled = PurchaseCounts(), 0
        self._unseen: tuple[str, ...] = ()
        self._unread: ServiceError | None = None
        self._read_standing()
        self._cautions = self.engine.cautions(self.ledger, self.wanted, self.since)
        for caution in self._cautions:
            log.warning("%s", caution)

    def _read_standing(self) -> None:
        """See how the lookups stand in the ledger, and so what is wanted; nothing of it is chosen yet."""
        self._standing = standing = selection.standing(self.ledger, self.lookups, self.since, self.begun)
        self.wanted = self.engine.select_wanted(standing)
        self.chosen = self.wanted.clear()
        counts = (standing.cached, standing.running, standing.held, self.wanted.height, 0)
        found = self.ledger.recovered.asking + self.ledger.recovered.uploads
        self._purchase = Purchase(str(self.ledger.path), self.ledger.created, *counts, doubts_found=found)

    def carry_out(self) -> Halt | None:
        """Go, unless there is nothing to be asked; return why it was stopped, if it was."""
        nothing_wanted = self.wanted.is_empty() or self.options.budget == 0
        if not self._standing.running and nothing_wanted and not self._may_settle():
            return self._only_late() if self._incomplete() else None
        stopped = self.engine.why_stopped(self.ledger)
        if stopped is not None and not (self._running() or self._incomplete() or self._may_settle()):
            self.chosen = self.wanted
            return Halt("stopped", stopped)
        return self._ask()

    def _only_late(self) -> Halt | None:
        """Look for late answers where nothing else is to be asked; where that fails, no run fails for it."""
        try:
            return self._ask()
        except (UsageError, ServiceError) as error:
            self._unseen = (
                Phrase("rows without an answer in earlier uploads were not looked for again: {error}", error=error),
            )
            return None

    def _ask(self) -> Halt | None:
        """Ask the service; return why that was stopped, if it was, and raise what ends the run."""
        key = self.options.load_key()
        try:
            halt = run_async(lambda: self._buy(key), self._cancel)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(self._so_far()) from None
        if halt is not None and halt.error is not None:
            raise halt.error
        if halt is not None and halt.why == "interrupted":
            raise StoppedError(self._so_far())
        return halt

    def why_unchosen(self) -> answer_join.Unchosen:
        """What kept the run from choosing all that was wanted: its budget, or the quota, whichever was less."""
        budget, quota = self.options.budget, self._purchase.before
        left = quota.remaining if quota is not None else None
        return "unaffordable" if left is not None and (budget is None or left < budget) else "unchosen"

    def _so_far(self) -> str:
        doubts = ""
        if count := self._figures.doubts:
            doubts = ngettext(", in doubt: {count:,} request", ", in doubt: {count:,} requests", count)
        bought = ngettext(
            "{count:,} lookup bought in this run, known to the ledger",
            "{count:,} lookups bought in this run, known to the ledger",
            self._figures.paid,
        )
        return gettext("{bought}{doubts}; the same command goes on", bought=bought, doubts=doubts)

    async def _buy(self, key: ApiKey) -> Halt | None:
        options, began = self.options, time.monotonic()
        at_once = max(options.concurrency, options.jobs)
        client = Client(self.engine.url, key, concurrency=at_once, timeout=options.timeout, max_retries=0)
        async with client, Journal(self.ledger) as journal:
            whose, counts = (self.run.run_id, self.engine.scope), self._figures
            context = PurchaseContext(
                client, self.ledger, journal, options, *whose, counts=counts, lookups=self.lookups
            )
            self._cancel.set_handler(lambda: context.dispatcher.cancel(Halt("interrupted", "interrupted")))
            try:
                before = await self._quota(context)
                if await self._settle(context):
                    before = await self._quota(context)
                # what uploads of earlier runs left without an answer and may show by now: once a run, and free
                if late := await fetch_late_answers(context, self._incomplete()):
                    self._read_standing()
                try:
                    self._choose(before)
                except ServiceError:
                    await buy_in_uploads(context, self.chosen, self._running())  # paid for already, not there for ever
                    raise
                context.progress = self._progress_counter()
                context.progress(0)
                await self._buy_chosen(context)
                after = await self._quota_after(context)
            finally:
                self._cancel.set_handler(None)
        self._purchase = replace(
            self._purchase,
            **asdict(self._figures),
            rate=context.dispatcher.rate.achieved,
            seconds=time.monotonic() - began,
            before=before,
            after=after,
            notes=tuple(self._notes(late, before, after)),
        )
        return context.dispatcher.halt

    async def _quota(self, context: PurchaseContext) -> QuotaStatus | None:
        """What is left, asked before anything is bought; here a wrong key or address shows while nothing is spent."""
        account = self._unread = None
        with context.dispatcher.cancellable_wait():  # nothing is under way that would have to be settled
            try:
                account = await context.dispatcher.fetch(context.client.me)
            except ServiceError as error:
                if not selection.hides_quota(error):
                    raise
                self._unread = error
        context.idempotency = account.idempotency if account is not None else None
        return quota_of(account) if account is not None else None

    def _may_settle(self) -> bool:
        if not self._standing.held or self.options.budget == 0:
            return False
        if self.engine.why_stopped(self.ledger) is not None:  # where a promise is not kept, repeating pays again
            return False
        return bool(self.ledger.pending_requests(self.engine.url.name))

    async def _settle(self, context: PurchaseContext) -> bool:
        """Settle such lookups; whether there were any. From then on they stand as if they had been bought before."""
        if context.idempotency is None or not self._may_settle():
            return False
        keys = frozenset(self.lookups[KEY])
        self._settled = await settle_doubts(context, keys, self.options.budget)
        if self._settled:
            self._read_standing()
        return bool(self._settled)

    def _incomplete(self) -> list[StoredUpload]:
        """Uploads of this run's lookups that may have more to show, for as long as their answers would be fresh."""
        wanted = self._standing.incomplete
        since = min(self.since, self.ledger.now() - _DAY)
        uploads = self.ledger.incomplete_uploads(self.engine.url.name, since) if wanted else []
        return [upload for upload in uploads if upload.id in wanted]

    async def _quota_after(self, context: PurchaseContext) -> QuotaStatus | None:
        halt = context.dispatcher.halt
        if halt is not None and halt.why in ("unreachable", "interrupted", "refused"):
            return None
        try:
            return quota_of(await context.client.me())
        except ServiceError as error:
            log.info("the quota could not be read after the run: %s", error)
            return None

    def _choose(self, quota: QuotaStatus | None) -> None:
        budget = None if self.options.budget is None else self.options.budget - self._settled
        allowed = selection.affordable(self.wanted.height, budget, quota.remaining if quota else None, self._unread)
        if allowed and self._unread is not None:
            log.warning("%s", unknown_quota_alert(self._unread))
        self.chosen = selection.choose_worthiest(self.wanted, allowed, self.engine.local)
        self._purchase = replace(self._purchase, chosen=allowed)
        log.info("%d of %d wanted lookups are to be bought", allowed, self.wanted.height)

    async def _buy_chosen(self, context: PurchaseContext) -> None:
        singly = not self.engine.kind.uploads
        await buy_in_uploads(context, self.chosen.clear() if singly else self.chosen, self._running())
        if singly and not self.chosen.is_empty() and not context.dispatcher.is_cancelled:
            if (why := self.engine.why_stopped(self.ledger)) is not None:
                context.dispatcher.cancel(Halt("stopped", why))
                return
            await buy_singly(context, self.chosen)

    def _running(self) -> list[StoredUpload]:
        """Uploads of earlier runs with lookups of this one; all where nothing may be bought before one is answered."""
        uploads = self.ledger.open_uploads(self.engine.url.name)
        stopped = self.engine.kind.uploads and self.engine.why_stopped(self.ledger) is not None
        return [upload for upload in uploads if stopped or upload.id in self._standing.uploads]

    def _progress_counter(self) -> Callable[[int], None]:
        """Report how many lookups are settled: those that are bought, and all in the uploads that are fetched."""
        total, done = self.chosen.height + sum(upload.rows for upload in self._running()), 0

        def count(more: int) -> None:
            nonlocal done
            done += more
            if self.context.progress is not None:
                self.context.progress(min(done, total), total)

        return count

    def purchase(self, halt: Halt | None) -> Purchase:
        notes = (
            *self._cautions,
            *continuation_note(self._standing.continued, self.begun),
            *self._purchase.notes,
            *self._unseen,
        )
        return replace(self._purchase, notes=notes, paused=halt.note if halt else None)

    def _notes(self, late: int, before: QuotaStatus | None, after: QuotaStatus | None) -> Iterator[str]:
        if self._settled:
            yield Phrase(
                "{count:,} lookup in doubt since an earlier run: settled by asking again with the same key",
                "{count:,} lookups in doubt since an earlier run: settled by asking again with the same key",
                count=self._settled,
            )
        if late:
            yield Phrase(
                "{count:,} answer that an earlier upload had not shown: fetched now, for free",
                "{count:,} answers that an earlier upload had not shown: fetched now, for free",
                count=late,
            )
        if self._unread is not None and not self.chosen.is_empty():
            yield unknown_quota_alert(self._unread)
        elif before is None or before.remaining is None:
            yield Phrase("the service did not say how much of the quota is left")
        elif after is not None and after.remaining is not None:
            counted, paid = before.remaining - after.remaining, self._figures.paid
            if counted != paid:
                yield Phrase(
                    "the service counted {counted:,} lookups during this run, the ledger {paid:,}: others may use the "
                    "same account, or see `bansong resolve` for doubts",
                    counted=counted,
                    paid=paid,
                )


def quota_of(account: Account) -> QuotaStatus:
    return QuotaStatus(account.limit, account.used, account.remaining)
