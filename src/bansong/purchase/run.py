"""One run that buys: settle what earlier runs left, choose what may be bought, buy it, and account for it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from bansong.base.cancel import CancelToken, run_async
from bansong.base.errors import Notice, ServiceError, StoppedError, UsageError
from bansong.base.key import ApiKey
from bansong.base.messages import Phrase, gettext, ngettext
from bansong.client.client import Client
from bansong.client.dispatcher import Halt
from bansong.engine.protocol import Purchase, QuotaStatus
from bansong.purchase import lookups as selection
from bansong.purchase.jobs import fetch_late_answers
from bansong.purchase.ledger import DAY_S, Journal, Ledger, LedgerRun
from bansong.purchase.lookups import KEY, PurchaseContext, PurchaseCounts, Standing
from bansong.purchase.queries import StoredUpload
from bansong.purchase.singles import buy_singly, settle_doubts
from bansong.purchase.uploads import buy_in_uploads

if TYPE_CHECKING:
    import polars as pl

    from bansong.client.responses import Account
    from bansong.engine.protocol import RunContext
    from bansong.purchase.answers import Unchosen
    from bansong.purchase.engines import PaidEngine

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Bought:
    """The lookups that a run set out to buy, the purchase, and why it ended early, if it did."""

    chosen: pl.DataFrame
    purchase: Purchase
    since: float  # unix seconds from which answers count for this run
    unchosen: Unchosen  # what kept others from being chosen
    halt: Halt | None = None


def ledger_run(engine: PaidEngine, context: RunContext) -> LedgerRun:
    return LedgerRun(context.run_id, engine.kind.name, engine.url.name, context.file, context.unix_time())


def read_standing(
    engine: PaidEngine, ledger: Ledger | None, lookups: pl.DataFrame, since: float, begun: float | None
) -> Standing:
    """Compare lookups to the ledger; ``wanted`` are those that the engine would buy if nothing limits it."""
    found = selection.standing(ledger, lookups, since, begun)
    return replace(found, wanted=engine.select_wanted(found))


def buy(engine: PaidEngine, lookups: pl.DataFrame, ledger: Ledger, context: RunContext) -> Bought:
    run = ledger_run(engine, context)
    begun = selection.continued_since(ledger.runs(), run)
    ledger.begin(run)
    if engine.options.retry_trial:
        ledger.allow_trial(engine.url.name)
    outcome = "failed"
    try:
        bought = _PaidRun(engine, lookups, ledger, context, begun).carry_out()
        outcome = bought.halt.why if bought.halt else "done"
        return bought
    except (KeyboardInterrupt, StoppedError):
        outcome = "interrupted"
        raise
    finally:
        ledger.end(run.run_id, outcome)


@dataclass
class _PaidRun:
    engine: PaidEngine
    lookups: pl.DataFrame
    ledger: Ledger
    context: RunContext
    begun: float | None  # start of the first run that this one continues

    def __post_init__(self) -> None:
        self.options, self.counts = self.engine.options, PurchaseCounts()
        self.since = self.engine.fresh_since(self.context)
        self.read_standing()

    def read_standing(self) -> None:
        self.standing = read_standing(self.engine, self.ledger, self.lookups, self.since, self.begun)

    def carry_out(self) -> Bought:
        wanted = self.standing.wanted
        notes = [*self.engine.cautions(self.ledger, wanted, self.since)]
        for caution in notes:
            log.warning("%s", caution)
        bought, is_incomplete = self.account(wanted.clear()), bool(self.incomplete())
        is_wanted = not (wanted.is_empty() or self.options.budget == 0)
        is_needed = self.standing.running or is_wanted or self.may_settle()
        why_stopped = self.engine.why_stopped(self.ledger) if is_needed else None
        if why_stopped is not None and not (self.running() or is_incomplete):
            bought = replace(bought, chosen=wanted, halt=Halt("stopped", why_stopped))
        elif is_needed or is_incomplete:
            try:
                bought = self.ask()
                if bought.halt is not None and bought.halt.error is not None:
                    raise bought.halt.error
            except (UsageError, ServiceError) as error:
                if is_needed:
                    raise
                bought = replace(bought, halt=None)
                notes.append(
                    Phrase("rows without an answer in earlier uploads were not looked for again: {error}", error=error)
                )
        paused = bought.halt.note if bought.halt else None
        return replace(bought, purchase=replace(bought.purchase, notes=(*notes, *bought.purchase.notes), paused=paused))

    def ask(self) -> Bought:
        key, cancel = self.options.load_key(), self.context.cancel or CancelToken()
        try:
            bought = run_async(lambda: self.settle_and_buy(key, cancel), cancel)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(_say_bought(self.counts)) from None
        if bought.halt is not None and bought.halt.why == "interrupted":
            raise StoppedError(_say_bought(self.counts))
        return bought

    async def settle_and_buy(self, key: ApiKey, cancel: CancelToken) -> Bought:
        options, began, settled = self.options, time.monotonic(), 0
        at_once = max(options.concurrency, options.jobs)
        client = Client(self.engine.url, key, concurrency=at_once, timeout=options.timeout, max_retries=0)
        async with client, Journal(self.ledger) as journal:
            whose = (self.context.run_id, self.engine.scope)
            buying = PurchaseContext(
                client, self.ledger, journal, options, *whose, counts=self.counts, lookups=self.lookups
            )
            cancel.set_handler(lambda: buying.dispatcher.cancel(Halt("interrupted", "interrupted")))
            try:
                before, unread = await _ask_quota(buying)
                if buying.idempotency is not None and self.may_settle():
                    settled = await settle_doubts(buying, frozenset(self.lookups[KEY]), options.budget)
                if settled:  # from now on these stand as if they had been bought before
                    self.read_standing()
                    before, unread = await _ask_quota(buying)
                # what uploads of earlier runs left without an answer and may show by now: once a run, and free
                if late := await fetch_late_answers(buying, self.incomplete()):
                    self.read_standing()
                try:
                    chosen = self.choose(settled, before, unread)
                except ServiceError:  # what runs is paid for already, and not there for ever
                    await buy_in_uploads(buying, self.standing.wanted.clear(), self.running())
                    raise
                await self.buy_chosen(buying, chosen)
                after = await _ask_quota_after(buying)
            finally:
                cancel.set_handler(None)
        notes = _notes(settled, late, before, after, self.counts.paid, None if chosen.is_empty() else unread)
        figures = {"rate": buying.dispatcher.rate.achieved, "seconds": time.monotonic() - began, "after": after}
        return replace(self.account(chosen, before, notes, **figures), halt=buying.dispatcher.halt)

    def account(
        self, chosen: pl.DataFrame, before: QuotaStatus | None = None, notes: Iterable[str] = (), **figures: Any
    ) -> Bought:
        counts = (*self.standing.counts, chosen.height)
        purchase = Purchase(str(self.ledger.path), self.ledger.created, *counts, before=before)
        found = self.ledger.recovered.asking + self.ledger.recovered.uploads
        notes = (*selection.continuation_note(self.standing.continued, self.begun), *notes)
        purchase = replace(purchase, doubts_found=found, notes=notes, **asdict(self.counts), **figures)
        since = self.since if self.begun is None else min(self.since, self.begun)
        budget, left = self.options.budget, None if before is None else before.remaining
        is_unaffordable = left is not None and (budget is None or left < budget)
        return Bought(chosen, purchase, since, "unaffordable" if is_unaffordable else "unchosen")

    def may_settle(self) -> bool:
        if not self.standing.held or self.options.budget == 0:
            return False
        if self.engine.why_stopped(self.ledger) is not None:  # where a promise is not kept, repeating pays again
            return False
        return bool(self.ledger.pending_requests(self.engine.url.name))

    def incomplete(self) -> list[StoredUpload]:
        """Return uploads of this run's lookups that may have more to show, while their answers would be fresh."""
        wanted = self.standing.incomplete
        since = min(self.since, self.ledger.now() - DAY_S)
        uploads = self.ledger.incomplete_uploads(self.engine.url.name, since) if wanted else []
        return [upload for upload in uploads if upload.id in wanted]

    def running(self) -> list[StoredUpload]:
        """Return uploads of earlier runs with lookups of this one; all if an answer must come before more is bought."""
        uploads = self.ledger.open_uploads(self.engine.url.name)
        is_stopped = self.engine.kind.uploads and self.engine.why_stopped(self.ledger) is not None
        return [upload for upload in uploads if is_stopped or upload.id in self.standing.uploads]

    def choose(self, settled: int, quota: QuotaStatus | None, unread: ServiceError | None) -> pl.DataFrame:
        wanted = self.standing.wanted
        budget = None if self.options.budget is None else self.options.budget - settled
        allowed = selection.affordable(wanted.height, budget, quota.remaining if quota else None, unread)
        if allowed and unread is not None:
            log.warning("%s", Notice(selection.QUOTA_UNKNOWN, problem=unread))
        log.info("%d of %d wanted lookups are to be bought", allowed, wanted.height)
        return selection.choose_worthiest(wanted, allowed, self.engine.local)

    async def buy_chosen(self, buying: PurchaseContext, chosen: pl.DataFrame) -> None:
        running, done = self.running(), 0
        total = chosen.height + sum(upload.rows for upload in running)

        def count(more: int) -> None:  # lookups that are bought, and all in the uploads that are fetched
            nonlocal done
            done += more
            if self.context.progress is not None:
                self.context.progress(min(done, total), total)

        buying.progress = count
        count(0)
        singly = not self.engine.kind.uploads
        await buy_in_uploads(buying, chosen.clear() if singly else chosen, running)
        if singly and not chosen.is_empty() and not buying.dispatcher.is_cancelled:
            if (why := self.engine.why_stopped(self.ledger)) is not None:
                buying.dispatcher.cancel(Halt("stopped", why))
                return
            await buy_singly(buying, chosen)


async def _ask_quota(buying: PurchaseContext) -> tuple[QuotaStatus | None, ServiceError | None]:
    """Return what is left, or why that is not known; a wrong key or address shows here, while nothing is spent."""
    account = unread = None
    with buying.dispatcher.cancellable_wait():  # nothing is under way that would have to be settled
        try:
            account = await buying.dispatcher.fetch(buying.client.me)
        except ServiceError as error:
            if not selection.hides_quota(error):
                raise
            unread = error
    buying.idempotency = account.idempotency if account is not None else None
    return None if account is None else quota_of(account), unread


async def _ask_quota_after(buying: PurchaseContext) -> QuotaStatus | None:
    halt = buying.dispatcher.halt
    if halt is not None and halt.why in ("unreachable", "interrupted", "refused"):
        return None
    try:
        return quota_of(await buying.client.me())
    except ServiceError as error:
        log.info("the quota could not be read after the run: %s", error)
        return None


def quota_of(account: Account) -> QuotaStatus:
    return QuotaStatus(account.limit, account.used, account.remaining)


def _say_bought(counts: PurchaseCounts) -> str:
    doubts = ""
    if counts.doubts:
        doubts = ngettext(", in doubt: {count:,} request", ", in doubt: {count:,} requests", counts.doubts)
    bought = ngettext(
        "{count:,} lookup bought in this run, known to the ledger",
        "{count:,} lookups bought in this run, known to the ledger",
        counts.paid,
    )
    return gettext("{bought}{doubts}; the same command goes on", bought=bought, doubts=doubts)


def _notes(
    settled: int,
    late: int,
    before: QuotaStatus | None,
    after: QuotaStatus | None,
    paid: int,
    unread: ServiceError | None,
) -> Iterator[str]:
    if settled:
        yield Phrase(
            "{count:,} lookup in doubt since an earlier run: settled by asking again with the same key",
            "{count:,} lookups in doubt since an earlier run: settled by asking again with the same key",
            count=settled,
        )
    if late:
        yield Phrase(
            "{count:,} answer that an earlier upload had not shown: fetched now, for free",
            "{count:,} answers that an earlier upload had not shown: fetched now, for free",
            count=late,
        )
    if unread is not None:
        yield Notice(selection.QUOTA_UNKNOWN, problem=unread)
    elif before is None or before.remaining is None:
        yield Phrase("the service did not say how much of the quota is left")
    elif after is not None and after.remaining is not None:
        counted = before.remaining - after.remaining
        if counted != paid:
            yield Phrase(
                "the service counted {counted:,} lookups during this run, the ledger {paid:,}: others may use the "
                "same account, or see `bansong resolve` for doubts",
                counted=counted,
                paid=paid,
            )
