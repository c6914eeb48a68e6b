"""Engines that buy answers: by single requests, by uploads, or only for uncertain rows."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from copy import copy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import polars as pl

from bansong.base.cancel import CancelToken, run_async
from bansong.base.errors import Notice, Problem, ServiceError, StoppedError, UsageError
from bansong.base.files import private_folder
from bansong.base.key import ApiKey
from bansong.base.messages import Listed, Option, Phrase, gettext, gettext_noop, ngettext
from bansong.base.option import choose_options
from bansong.base.options import ENGINE_KINDS, EngineKind, ServiceOptions, engine_kind
from bansong.client.address import BaseUrl
from bansong.client.blocking import BlockingClient
from bansong.client.client import Client
from bansong.client.dispatcher import Halt
from bansong.engine.local import Known, LocalEngine, registry_alerts
from bansong.engine.protocol import (
    LOOKUP,
    Agreement,
    Answers,
    Purchase,
    QuotaStatus,
    Records,
    RunContext,
    local_files,
)
from bansong.engine.records import ROW_ID
from bansong.purchase import answers as answer_join
from bansong.purchase import lookups as selection
from bansong.purchase.answers import Unchosen
from bansong.purchase.ledger import DAY_S, Journal, Ledger, LedgerRun
from bansong.purchase.ledger_file import ledger_path
from bansong.purchase.lookups import KEY, PurchaseContext, PurchaseCounts, Standing
from bansong.purchase.queries import StoredUpload
from bansong.purchase.singles import buy_singly, settle_doubts
from bansong.purchase.uploads import buy_in_uploads, fetch_late_answers

if TYPE_CHECKING:
    from bansong.client.responses import Account


NUMBERS_MISSING: Final = Problem("purchase.numbers_missing", "{option}: the column holds no numbers to go by")
ENGINE_NOT_PAID: Final = Problem(
    "purchase.engine_not_paid", "{name!r} does not leave all answers to the service; give 'verify' or 'batch'"
)

log = logging.getLogger(__name__)


class PaidEngine(ABC):
    """An engine that buys each missing lookup once, and answers rows from the ledger."""

    def __init__(self, kind: EngineKind, options: ServiceOptions | None, local: LocalEngine | None) -> None:
        self.kind, self.local = kind, local or LocalEngine()
        self.options = choose_options("options", options, ServiceOptions())
        self.options.check_kind(kind)
        self.url = BaseUrl.parse(
            self.options.base_url, allow_http=self.options.allow_http, known_as=self.options.known_as
        )
        self.scope = selection.scope_of(self.url.name, self.options.offline, self.options.paid)
        self.path = ledger_path(Path(self.options.ledger) if self.options.ledger is not None else None)

    def fresh_since(self, context: RunContext) -> float:
        """Return the time of the oldest usable answer (unix seconds) for a run that begins now."""
        return context.unix_time() - self.options.max_age * DAY_S

    @property
    def priority(self) -> str | None:
        return self.options.priority

    def with_known(self, known: Known) -> Self:
        other = copy(self)
        other.local = self.local.with_known(known)
        return other

    def files(self) -> Mapping[str, Path | None]:
        key = self.options.key_file
        return local_files(self.local) | {
            "ledger": self.path,
            gettext_noop("key file"): Path(key) if key is not None else None,
        }

    def prepare(self, records: Records) -> Records:
        lookup = selection.lookup_expr(records.rows, suspect=self.options.buy_suspect)
        return replace(records, rows=records.rows.with_columns(lookup.alias(LOOKUP)))

    def quote(self, records: Records, context: RunContext) -> Purchase:
        """Return the purchase that a run over prepared records would make; spends nothing."""
        lookups = self._lookups(records)
        with Ledger.open(self.path, clock=context.unix_time) if self.path.exists() else nullcontext() as ledger:
            return self._quote(lookups, ledger, context)

    def answer(self, records: Records, context: RunContext) -> Answers:
        """Buy the missing lookups of prepared records, and answer these; the ledger keeps what a failed run bought."""
        lookups = self._lookups(records)
        with Ledger.open(self.path, clock=context.unix_time) as ledger:
            bought = buy(self, lookups, ledger, context)
            chosen, halt = pl.col(ROW_ID).is_in(bought.chosen[ROW_ID].implode()), bought.halt
            found = answer_join.store_answers(
                ledger,
                lookups.select(LOOKUP, selection.KEY, chosen.alias(answer_join.CHOSEN)),
                context.resources.enter_context(private_folder()),
                run_id=context.run_id,
                since=bought.since,
                halted=halt.note if halt else "",
                stopped=halt is not None and halt.why == "stopped",
                lang=self.local.lang,
                unchosen=None if self.kind.answers_locally else bought.unchosen,
            )
        return Answers(lambda rows: self._join_answers(rows, found), bought.purchase)

    @abstractmethod
    def _join_answers(self, rows: pl.LazyFrame, found: answer_join.StoredAnswers) -> pl.LazyFrame:
        """Add the answer columns (ADDED_COLUMNS) to prepared rows."""

    def select_wanted(self, standing: selection.Standing) -> pl.DataFrame:
        return standing.wanted

    def counts(self) -> tuple[pl.Expr, ...]:
        return selection.BOUGHT_COUNTS

    @abstractmethod
    def agreement(self, tallied: Mapping[str, Any]) -> Agreement | None:
        """Return how the local engine and the service agree; ``None`` where only the service answers."""

    def hints(self, *, planned: bool) -> tuple[str, ...]:  # noqa: ARG002 - part of the protocol
        """Say that registry and gazetteer are not used, since the service answers every row."""
        by_worth = self.options.budget is not None and self.options.priority is None
        given = {"registry": self.local.registry, "gazetteer": self.local.gazetteer}
        idle = [name for name, index in given.items() if index is not None and not by_worth]
        return tuple(
            Phrase(
                "the {name} answers nothing here: with {option} every answer is the service's",
                name=name,
                option=Option("engine", self.kind.name),
            )
            for name in idle
        )

    def why_stopped(self, ledger: Ledger | None) -> str | None:
        """Return why buying has stopped: too many requests without an answer; ``None`` if it may go on."""
        if ledger is None or self.options.retry_trial:
            return None
        return selection.why_stopped(ledger, self.url.name, uploads=self.kind.uploads)

    def cautions(self, ledger: Ledger | None, wanted: pl.DataFrame, since: float) -> tuple[str, ...]:
        """Warn if the ledger has answers to the wanted lookups from other base URLs."""
        if ledger is None or wanted.is_empty() or self.options.budget == 0:
            return ()
        buying = {name for name, kind in ENGINE_KINDS.items() if kind.buys}
        others = dict.fromkeys(run.origin for run in ledger.runs() if run.engine in buying)
        others.pop(self.url.name, None)
        scopes = [(origin, selection.scope_of(origin, self.options.offline, self.options.paid)) for origin in others]
        known = selection.known_elsewhere(ledger, wanted, scopes, since)
        if not known:
            return ()
        origin, count = max(known, key=lambda one: one[1])
        address, name = self.url.origin, self.url.name
        service = address if name == address else Phrase("{address} (known as {name})", address=address, name=name)
        said = {"count": wanted.height, "known": count, "service": service, "origin": origin}
        return (Notice(selection.KNOWN_ELSEWHERE, option=Option("known_as", origin), **said),)

    def _lookups(self, records: Records) -> pl.DataFrame:
        lookups = selection.with_keys(selection.lookups_of(records.rows, records.priority), self.scope)
        if records.priority is not None and lookups.height and lookups[selection.PRIORITY].is_null().all():
            raise UsageError(NUMBERS_MISSING, option=Option("priority", self.priority))
        return lookups

    def _quote(self, lookups: pl.DataFrame, ledger: Ledger | None, context: RunContext) -> Purchase:
        since = self.fresh_since(context)
        begun = selection.continued_since(ledger.runs() if ledger else (), _ledger_run(self, context))
        standing = _read_standing(self, ledger, lookups, since, begun)
        wanted = standing.wanted
        notes = [*self.cautions(ledger, wanted, since), *selection.continuation_note(standing.continued, begun)]
        quota, problem = self._ask_quota()
        unread = problem if isinstance(problem, ServiceError) and selection.hides_quota(problem) else None
        try:
            chosen = selection.affordable(
                wanted.height, self.options.budget, quota.remaining if quota else None, unread
            )
        except ServiceError as error:
            chosen, problem = 0, None
            notes.append(Listed([error]))
        if problem is not None:
            words = Phrase("how much of the quota is left could not be asked: {problem}", problem=problem)
            notes.append(Notice(selection.QUOTA_UNKNOWN, problem=unread) if unread else words)
        if chosen and (why := self.why_stopped(ledger)) is not None:
            chosen = 0
            notes.append(why)
        return Purchase(str(self.path), False, *standing.counts, chosen, before=quota, notes=tuple(notes))

    def _ask_quota(self) -> tuple[QuotaStatus | None, UsageError | ServiceError | None]:
        try:
            key = self.options.load_key()
            timeout = self.options.timeout
            with BlockingClient(self.url, key, concurrency=1, timeout=timeout, max_retries=0) as client:
                return quota_of(client.me()), None
        except (UsageError, ServiceError) as error:
            return None, error


class ServiceEngine(PaidEngine):
    """Answers every row by the hosted service: by one request per lookup (``verify``), or by uploads (``batch``).

    ``options``: address, key and budget. ``local`` answers no row; if the budget does not last for all lookups, it
    chooses those to buy first. Raises :class:`bansong.errors.UsageError`.
    """

    def __init__(
        self,
        name: Literal["verify", "batch"] = "verify",
        options: ServiceOptions | None = None,
        *,
        local: LocalEngine | None = None,
    ) -> None:
        kind = engine_kind(name)
        if kind.answers_locally:
            raise UsageError(ENGINE_NOT_PAID, name=name)
        super().__init__(kind, options, local)

    def _join_answers(self, rows: pl.LazyFrame, found: answer_join.StoredAnswers) -> pl.LazyFrame:
        return answer_join.attach_answers(rows, found, self.local.lang)

    def agreement(self, tallied: Mapping[str, Any]) -> None:
        """Return ``None``: only the service answers."""


class HybridEngine(PaidEngine):
    """Answers rows by the local engine, and buys the uncertain lookups by single requests.

    ``options``: address, key and budget. Raises :class:`bansong.errors.UsageError`.
    """

    def __init__(self, options: ServiceOptions | None = None, *, local: LocalEngine | None = None) -> None:
        super().__init__(ENGINE_KINDS["hybrid"], options, local)

    def _join_answers(self, rows: pl.LazyFrame, found: answer_join.StoredAnswers) -> pl.LazyFrame:
        return answer_join.overlay_answers(self.local.answer(rows), found)

    def select_wanted(self, standing: selection.Standing) -> pl.DataFrame:
        """Return the lookups that the local engine is not sure of, with its assessment."""
        return selection.uncertain(selection.assess_lookups(standing.wanted, self.local), self.options.band)

    def counts(self) -> tuple[pl.Expr, ...]:
        """Return the aggregations of both engines over answered rows, and those that compare their answers."""
        return (*super().counts(), *answer_join.agreement_counts(), *self.local.counts())

    def agreement(self, tallied: Mapping[str, Any]) -> Agreement:
        """Return how the local engine and the service agree on the rows that both answered."""
        found = {name.removeprefix("agree:"): value for name, value in tallied.items() if name.startswith("agree:")}
        return Agreement(**found)

    def hints(self, *, planned: bool) -> tuple[str, ...]:
        """Warn about a missing registry or, in a plan, about an old one."""
        return registry_alerts(self.local, Phrase("every lookup is uncertain, and bought"), planned=planned)


def paid_engine(kind: EngineKind, options: ServiceOptions, local: LocalEngine) -> PaidEngine:
    """Return a buying engine of the given kind."""
    if kind.answers_locally:
        return HybridEngine(options, local=local)
    return ServiceEngine("batch" if kind.uploads else "verify", options, local=local)


@dataclass(frozen=True, slots=True)
class Bought:
    """Result of buying: the lookups chosen to be bought, the purchase, and why it stopped early, if so."""

    chosen: pl.DataFrame
    purchase: Purchase
    since: float  # time of the oldest answer that this run uses (unix seconds)
    unchosen: Unchosen  # why the other lookups were not chosen
    halt: Halt | None = None


def _ledger_run(engine: PaidEngine, context: RunContext) -> LedgerRun:
    return LedgerRun(context.run_id, engine.kind.name, engine.url.name, context.file, context.unix_time())


def _read_standing(
    engine: PaidEngine, ledger: Ledger | None, lookups: pl.DataFrame, since: float, begun: float | None
) -> Standing:
    """Compare lookups with the ledger; ``wanted`` has those that the engine buys if no budget or quota limits it."""
    found = selection.standing(ledger, lookups, since, begun)
    return replace(found, wanted=engine.select_wanted(found))


def buy(engine: PaidEngine, lookups: pl.DataFrame, ledger: Ledger, context: RunContext) -> Bought:
    """Buy the missing lookups, within budget and quota; record begin and end of the run in the ledger."""
    run = _ledger_run(engine, context)
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
    begun: float | None  # start of the first unfinished run that this one continues (unix seconds)

    def __post_init__(self) -> None:
        self.options, self.counts = self.engine.options, PurchaseCounts()
        self.since = self.engine.fresh_since(self.context)
        self.read_standing()

    def read_standing(self) -> None:
        self.standing = _read_standing(self.engine, self.ledger, self.lookups, self.since, self.begun)

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
                if settled:  # they count as bought before this run
                    self.read_standing()
                    before, unread = await _ask_quota(buying)
                # once a run, look for answers that earlier uploads lacked: fetching is free
                if late := await fetch_late_answers(buying, self.incomplete()):
                    self.read_standing()
                try:
                    chosen = self.choose(settled, before, unread)
                except ServiceError:  # running uploads are paid, and the service may drop them: fetch them first
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
        if self.engine.why_stopped(self.ledger) is not None:  # if the service breaks its promise, repeating costs again
            return False
        return bool(self.ledger.pending_requests(self.engine.url.name))

    def incomplete(self) -> list[StoredUpload]:
        """Return fetched uploads that lack answers for lookups of this run, and are young enough to try again."""
        wanted = self.standing.incomplete
        since = min(self.since, self.ledger.now() - DAY_S)
        uploads = self.ledger.incomplete_uploads(self.engine.url.name, since) if wanted else []
        return [upload for upload in uploads if upload.id in wanted]

    def running(self) -> list[StoredUpload]:
        """Return unfetched uploads with lookups of this run; all uploads if buying is stopped until one is answered."""
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

        def count(more: int) -> None:  # bought lookups, and all lookups of fetched uploads
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
    """Return the quota, or the error of asking for it; raise if purchases would fail, too (wrong key or address)."""
    account = unread = None
    with buying.dispatcher.cancellable_wait():  # no request is under way that had to be settled
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
    """Return the monthly quota of an account."""
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
