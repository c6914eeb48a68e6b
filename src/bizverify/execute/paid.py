"""The engines that buy: plan what is missing, buy it within what is allowed, and answer the rows from the ledger."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from bizverify.errors import ServiceError, StoppedError, UsageError, parameter
from bizverify.execute import choice, outcomes
from bizverify.execute.alerts import continuation_note, other_address_alert, unknown_quota_alert
from bizverify.execute.buying.brake import Brake, run_async
from bizverify.execute.buying.errand import Buying, Figures, Halt
from bizverify.execute.buying.jobs import look_again
from bizverify.execute.buying.repeating import settle_doubts
from bizverify.execute.buying.singly import buy_singly
from bizverify.execute.buying.trials import why_stopped
from bizverify.execute.buying.uploads import buy_in_uploads
from bizverify.execute.ledger import Journal, Ledger, Run, Upload
from bizverify.execute.ledger.opening import ledger_path
from bizverify.execute.lookups import KEY, LOOKUP, PRIORITY, lookup_expr, lookups_of, scope_of, with_keys
from bizverify.execute.purchase import Agreement, Purchase, Quota
from bizverify.execute.rows import ROW_ID
from bizverify.execute.terms import PAYING
from bizverify.model import counted
from bizverify.service import ApiKey, BaseUrl, BlockingClient, Client
from bizverify.state import new_run_id

if TYPE_CHECKING:
    from bizverify.engine import LocalEngine
    from bizverify.execute.terms import Terms
    from bizverify.service import Account

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""Called with (lookups done, lookups to be done)."""

_DAY: Final = 86400.0


@dataclass
class PaidEngine:
    """Buys what a run's rows ask for, once, and answers the rows from the ledger.

    ``engine``: ``verify`` (a request each), ``batch`` (uploads) or ``hybrid`` (the local engine answers all; what it
    is not sure of is bought by requests). ``folder`` takes files that are of no use after the run. Raises
    :class:`bizverify.errors.UsageError` for a base URL that is none.
    """

    engine: str
    terms: Terms
    local: LocalEngine
    folder: Path
    brake: Brake = field(default_factory=Brake)

    def __post_init__(self) -> None:
        terms = self.terms
        self.url = BaseUrl.parse(terms.base_url, allow_http=terms.allow_http, known_as=terms.known_as)
        self.scope = self._scope_at(self.url.name)
        self.path = ledger_path(Path(self.terms.ledger) if self.terms.ledger is not None else None)
        self.since = time.time() - self.terms.max_age * _DAY

    def marked(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """Add :data:`bizverify.execute.lookups.LOOKUP`, what each row asks for, to rows with a record."""
        return rows.with_columns(lookup_expr(rows, suspect=self.terms.buy_suspect).alias(LOOKUP))

    def _scope_at(self, origin: str) -> str:
        return scope_of(origin, self.terms.offline, self.terms.paid)

    def quoted(self, rows: pl.LazyFrame, priority: str | None, file: str) -> Purchase:
        """What a run over rows of :meth:`marked` would buy; spends nothing. ``priority``: a column of the rows."""
        lookups, run = self._lookups(rows, priority), self._run(file)
        if not self.path.exists():
            return self._quoted(lookups, None, run)
        with Ledger.open(self.path) as ledger:
            return self._quoted(lookups, ledger, run)

    def _run(self, file: str, run_id: str | None = None) -> Run:
        started = datetime.now(UTC)
        return Run(run_id or new_run_id(started), self.engine, self.url.name, file, started.timestamp())

    def _lookups(self, rows: pl.LazyFrame, priority: str | None) -> pl.DataFrame:
        lookups = with_keys(lookups_of(rows, priority), self.scope)
        if priority is not None and not lookups.is_empty() and lookups[PRIORITY].null_count() == lookups.height:
            raise UsageError(f"{parameter('priority', self.terms.priority)}: the column holds no numbers to go by")
        return lookups

    def _quoted(self, lookups: pl.DataFrame, ledger: Ledger | None, run: Run) -> Purchase:
        begun = choice.continued_since(ledger.runs() if ledger else (), run)
        standing = choice.standing(ledger, lookups, self.since, begun)
        wanted = self.wanted(standing)
        notes = [*self.cautions(ledger, wanted), *continuation_note(standing.continued, begun)]
        quota, problem = self._asked_quota()
        unread = problem if isinstance(problem, ServiceError) and choice.hides_quota(problem) else None
        try:
            chosen = choice.affordable(wanted.height, self.terms.budget, quota.remaining if quota else None, unread)
        except ServiceError as error:
            chosen, problem = 0, None
            notes.append(str(error))
        if problem is not None:
            words = f"how much of the quota is left could not be asked: {problem}"
            notes.append(unknown_quota_alert(str(unread)) if unread else words)
        if chosen and (why := self.why_stopped(ledger)) is not None:
            chosen = 0
            notes.append(why)
        counts = (standing.cached, standing.running, standing.held, wanted.height, chosen)
        return Purchase(str(self.path), False, *counts, before=quota, notes=tuple(notes))

    def why_stopped(self, ledger: Ledger | None) -> str | None:
        """Why nothing more may be bought from the service, which has answered too little so far; ``None`` if it may."""
        if ledger is None or self.terms.retry_trial:
            return None
        return why_stopped(ledger, self.url.name, self.engine)

    def _asked_quota(self) -> tuple[Quota | None, UsageError | ServiceError | None]:
        """What is left of the quota, or why that cannot be asked: no key, say, or no service that answers."""
        try:
            key = self.terms.api_key or ApiKey.load(self.terms.key_file)
            timeout = self.terms.timeout
            with BlockingClient(self.url, key, concurrency=1, timeout=timeout, max_retries=0) as client:
                return _quota(client.me()), None
        except (UsageError, ServiceError) as error:
            return None, error

    def cautions(self, ledger: Ledger | None, wanted: pl.DataFrame) -> tuple[str, ...]:
        """What is to be said before the wanted lookups are bought: that the ledger knows them at other addresses."""
        if ledger is None or wanted.is_empty() or self.terms.budget == 0:
            return ()
        others = dict.fromkeys(run.origin for run in ledger.runs() if run.engine in PAYING)
        others.pop(self.url.name, None)
        scopes = [(origin, self._scope_at(origin)) for origin in others]
        known = choice.known_elsewhere(ledger, wanted, scopes, self.since)
        alert = other_address_alert(self.url.origin, self.url.name, known, wanted.height)
        return () if alert is None else (alert,)

    def wanted(self, standing: choice.Standing) -> pl.DataFrame:
        """What is to be bought if nothing limits it."""
        if self.engine != "hybrid":
            return standing.wanted
        return choice.uncertain(choice.assessed(standing.wanted, self.local), self.terms.band)

    def bought(
        self, rows: pl.LazyFrame, priority: str | None, run: Run, progress: Progress
    ) -> tuple[outcomes.Stored, Purchase]:
        """Buy what rows of :meth:`marked` ask for; return :func:`bizverify.execute.outcomes.stored` and the purchase.

        Raises what ends a run: a refusal (401, 403), a ledger that fails, a quota that does not last for the plan; and
        ``KeyboardInterrupt`` when it was interrupted. All that was bought is in the ledger then.
        """
        lookups = self._lookups(rows, priority)
        with Ledger.open(self.path) as ledger:
            begun = choice.continued_since(ledger.runs(), run)
            ledger.begin(run)
            if self.terms.retry_trial:
                ledger.allow_trial(self.url.name)
            outcome = "failed"
            try:
                errand = _Errand(self, ledger, run, lookups, begun, progress)
                halt = errand.carried_out()
                outcome = halt.why if halt else "done"
            except (KeyboardInterrupt, StoppedError):
                outcome = "interrupted"
                raise
            finally:
                ledger.end(run.run_id, outcome)
            chosen = pl.col(ROW_ID).is_in(errand.chosen[ROW_ID].implode())
            found = outcomes.stored(
                ledger,
                lookups.select(LOOKUP, KEY, chosen.alias(outcomes.CHOSEN)),
                self.folder,
                run_id=run.run_id,
                since=self.since if begun is None else min(self.since, begun),
                halted=halt.note if halt else "",
                stopped=halt is not None and halt.why == "stopped",
                lang=self.local.lang,
                unchosen=None if self.engine == "hybrid" else errand.why_unchosen(),
            )
            return found, errand.purchase(halt)

    def bought_and_answered(
        self,
        rows: pl.LazyFrame,
        priority: str | None,
        file: str,
        run_id: str | None = None,
        progress: Progress = lambda _done, _total: None,
    ) -> tuple[pl.LazyFrame, Purchase]:
        """Buy what rows of :meth:`marked` ask for, and add the nine columns to them; see :meth:`bought`."""
        found, purchase = self.bought(rows, priority, self._run(file, run_id), progress)
        return self.answer(rows, found), purchase

    def answer(self, rows: pl.LazyFrame, found: outcomes.Stored) -> pl.LazyFrame:
        """Add the nine columns to rows of :meth:`marked`, from what :meth:`bought` returned."""
        if self.engine == "hybrid":
            return outcomes.overlaid(self.local.answer(rows), found)
        return outcomes.attached(rows, found, self.local.lang)

    def counts(self) -> tuple[pl.Expr, ...]:
        """Aggregations over rows of :meth:`answer`, to be read by :meth:`agreed`."""
        return outcomes.agreement() if self.engine == "hybrid" else ()

    def agreed(self, tallied: Mapping[str, Any]) -> Agreement | None:
        """What :meth:`counts` came to; ``None`` for the engines that do not compare."""
        if self.engine != "hybrid":
            return None
        return Agreement(
            **{name.removeprefix("agree:"): value for name, value in tallied.items() if name.startswith("agree:")}
        )


class _Errand:
    """One run's way to the service and back."""

    def __init__(
        self,
        engine: PaidEngine,
        ledger: Ledger,
        run: Run,
        lookups: pl.DataFrame,
        begun: float | None,
        progress: Progress,
    ) -> None:
        self._engine, self._ledger, self._run, self._begun = engine, ledger, run, begun
        self._lookups, self._progress = lookups, progress
        self._figures = Figures()
        self._settled = self._late = 0
        self._unseen: tuple[str, ...] = ()
        self._unread: ServiceError | None = None
        self._read_standing()
        self._cautions = engine.cautions(ledger, self.wanted)
        for caution in self._cautions:
            log.warning("%s", caution)

    def _read_standing(self) -> None:
        """See how the lookups stand in the ledger, and so what is wanted; nothing of it is chosen yet."""
        ledger = self._ledger
        self._standing = standing = choice.standing(ledger, self._lookups, self._engine.since, self._begun)
        self.wanted = self._engine.wanted(standing)
        self.chosen = self.wanted.clear()
        counts = (standing.cached, standing.running, standing.held, self.wanted.height, 0)
        found = ledger.recovered.asking + ledger.recovered.uploads
        self._purchase = Purchase(str(ledger.path), ledger.created, *counts, doubts_found=found)

    def carried_out(self) -> Halt | None:
        """Go, unless there is nothing to be asked; return why it was stopped, if it was."""
        terms = self._engine.terms
        nothing_wanted = self.wanted.is_empty() or terms.budget == 0
        if not self._standing.running and nothing_wanted and not self._may_settle():
            return self._only_late() if self._incomplete() else None
        stopped = self._engine.why_stopped(self._ledger)
        if stopped is not None and not (self._running() or self._incomplete() or self._may_settle()):
            self.chosen = self.wanted
            return Halt("stopped", stopped)
        return self._asked()

    def _only_late(self) -> Halt | None:
        """Look for late answers where nothing else is to be asked; where that fails, no run fails for it."""
        try:
            return self._asked()
        except (UsageError, ServiceError) as error:
            self._unseen = (f"rows without an answer in earlier uploads were not looked for again: {error}",)
            return None

    def _asked(self) -> Halt | None:
        """Ask the service; return why that was stopped, if it was, and raise what ends the run."""
        terms = self._engine.terms
        key = terms.api_key or ApiKey.load(terms.key_file)
        try:
            halt = run_async(lambda: self._buy(key), self._engine.brake)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(self._so_far()) from None
        if halt is not None and halt.error is not None:
            raise halt.error
        if halt is not None and halt.why == "interrupted":
            raise StoppedError(self._so_far())
        return halt

    def why_unchosen(self) -> outcomes.Unchosen:
        """What kept the run from choosing all that was wanted: its budget, or the quota, whichever was less."""
        budget, quota = self._engine.terms.budget, self._purchase.before
        left = quota.remaining if quota is not None else None
        return "unaffordable" if left is not None and (budget is None or left < budget) else "unchosen"

    def _so_far(self) -> str:
        """What an interrupted run has bought."""
        doubts = f", in doubt: {counted(self._figures.doubts, 'request')}" if self._figures.doubts else ""
        bought = f"{counted(self._figures.paid, 'lookup')} bought in this run, known to the ledger"
        return f"{bought}{doubts}; the same command goes on"

    async def _buy(self, key: ApiKey) -> Halt | None:
        terms, began = self._engine.terms, time.monotonic()
        at_once = max(terms.concurrency, terms.jobs)
        client = Client(self._engine.url, key, concurrency=at_once, timeout=terms.timeout, max_retries=0)
        async with client, Journal(self._ledger) as journal:
            buying = Buying(
                client, self._ledger, journal, terms, self._run.run_id, self._engine.scope, figures=self._figures
            )
            buying.lookups = self._lookups
            self._engine.brake.leads_to(lambda: buying.stop.pull(Halt("interrupted", "interrupted")))
            try:
                before = await self._quota(buying)
                if await self._settle(buying):
                    before = await self._quota(buying)
                await self._look_again(buying)
                try:
                    self._choose(before)
                except ServiceError:
                    await buy_in_uploads(buying, self.chosen, self._running())  # paid for already, not there for ever
                    raise
                buying.progress = self._counted()
                buying.progress(0)
                await self._bought(buying)
                after = await self._quota_after(buying)
            finally:
                self._engine.brake.leads_to(None)
        self._purchase = replace(
            self._purchase,
            **asdict(self._figures),
            rate=buying.rate.achieved,
            seconds=time.monotonic() - began,
            before=before,
            after=after,
            notes=(*_settled_note(self._settled), *_late_note(self._late), *self._quota_notes(before, after)),
        )
        return buying.stop.halt

    async def _quota(self, buying: Buying) -> Quota | None:
        """What is left, asked before anything is bought; here a wrong key or address shows while nothing is spent."""
        account = self._unread = None
        with buying.stop.waiting():  # nothing is under way that would have to be settled
            try:
                account = await buying.free(buying.client.me)
            except ServiceError as error:
                if not choice.hides_quota(error):
                    raise
                self._unread = error
        buying.idempotency = account.idempotency if account is not None else None
        return _quota(account) if account is not None else None

    def _may_settle(self) -> bool:
        """Whether earlier runs have left lookups of this one in doubt that may be settled by asking again."""
        if not self._standing.held or self._engine.terms.budget == 0:
            return False
        return bool(self._ledger.repeatable(self._engine.url.name))

    async def _settle(self, buying: Buying) -> bool:
        """Settle such lookups; whether there were any. From then on they stand as if they had been bought before."""
        if buying.idempotency is None or not self._may_settle():
            return False
        keys = frozenset(self._lookups[KEY])
        self._settled = await settle_doubts(buying, keys, self._engine.terms.budget)
        if self._settled:
            self._read_standing()
        return bool(self._settled)

    async def _look_again(self, buying: Buying) -> None:
        """Fetch what uploads of earlier runs left without an answer and may show by now: once a run, and free."""
        self._late = await look_again(buying, self._incomplete())
        if self._late:
            self._read_standing()

    def _incomplete(self) -> list[Upload]:
        """Uploads of this run's lookups that may have more to show, for as long as their answers would be fresh."""
        wanted = self._standing.incomplete
        since = min(self._engine.since, self._ledger.now() - _DAY)
        uploads = self._ledger.incomplete_uploads(self._engine.url.name, since) if wanted else []
        return [upload for upload in uploads if upload.id in wanted]

    async def _quota_after(self, buying: Buying) -> Quota | None:
        if buying.stop.halt is not None and buying.stop.halt.why in ("unreachable", "interrupted", "refused"):
            return None
        try:
            return _quota(await buying.client.me())
        except ServiceError as error:
            log.info("the quota could not be read after the run: %s", error)
            return None

    def _choose(self, quota: Quota | None) -> None:
        terms, wanted = self._engine.terms, self.wanted
        budget = None if terms.budget is None else terms.budget - self._settled
        allowed = choice.affordable(wanted.height, budget, quota.remaining if quota else None, self._unread)
        if allowed and self._unread is not None:
            log.warning("%s", unknown_quota_alert(str(self._unread)))
        if self._engine.engine == "hybrid" or PRIORITY in wanted.columns:
            wanted = choice.worthiest_first(wanted)
        elif allowed < wanted.height:
            wanted = choice.worthiest_first(choice.assessed(wanted, self._engine.local))
        self.chosen = wanted.head(allowed)
        self._purchase = replace(self._purchase, chosen=allowed)
        log.info("%d of %d wanted lookups are to be bought", allowed, self.wanted.height)

    async def _bought(self, buying: Buying) -> None:
        singly = self._engine.engine != "batch"
        await buy_in_uploads(buying, self.chosen.clear() if singly else self.chosen, self._running())
        if singly and not self.chosen.is_empty() and not buying.stop.pulled:
            if (why := self._engine.why_stopped(self._ledger)) is not None:
                buying.stop.pull(Halt("stopped", why))
                return
            await buy_singly(buying, self.chosen)

    def _running(self) -> list[Upload]:
        """Uploads of earlier runs that hold lookups of this one; those of other files are left to their own runs.

        Where nothing may be bought before one of them is answered, all are looked at.
        """
        uploads = self._ledger.open_uploads(self._engine.url.name)
        stopped = self._engine.engine == "batch" and self._engine.why_stopped(self._ledger) is not None
        return [upload for upload in uploads if stopped or upload.id in self._standing.uploads]

    def _counted(self) -> Callable[[int], None]:
        """Report how many lookups are settled: those that are bought, and all in the uploads that are fetched."""
        total, done = self.chosen.height + sum(upload.rows for upload in self._running()), 0

        def count(more: int) -> None:
            nonlocal done
            done += more
            self._progress(min(done, total), total)

        return count

    def purchase(self, halt: Halt | None) -> Purchase:
        """What it came to."""
        notes = (
            *self._cautions,
            *continuation_note(self._standing.continued, self._begun),
            *self._purchase.notes,
            *self._unseen,
        )
        return replace(self._purchase, notes=notes, paused=halt.note if halt else None)

    def _quota_notes(self, before: Quota | None, after: Quota | None) -> tuple[str, ...]:
        if self._unread is not None and not self.chosen.is_empty():
            return (unknown_quota_alert(str(self._unread)),)
        return _notes(before, after, self._figures.paid)


def _quota(account: Account) -> Quota:
    return Quota(account.limit, account.used, account.remaining)


def _settled_note(settled: int) -> tuple[str, ...]:
    if not settled:
        return ()
    return (f"{counted(settled, 'lookup')} in doubt since an earlier run: settled by asking again with the same key",)


def _late_note(late: int) -> tuple[str, ...]:
    return (f"{counted(late, 'answer')} that an earlier upload had not shown: fetched now, for free",) if late else ()


def _notes(before: Quota | None, after: Quota | None, paid: int) -> tuple[str, ...]:
    if before is None or before.remaining is None:
        return ("the service did not say how much of the quota is left",)
    if after is None or after.remaining is None:
        return ()
    counted = before.remaining - after.remaining
    if counted == paid:
        return ()
    return (
        f"the service counted {counted:,} lookups during this run, the ledger {paid:,}: "
        "others may use the same account, or see `bizverify resolve` for doubts",
    )
