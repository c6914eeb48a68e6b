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

from bizverify.errors import QuotaError, ServiceError, StoppedError, UsageError, parameter
from bizverify.execute import choice, outcomes
from bizverify.execute.buying.brake import Brake, run_async
from bizverify.execute.buying.errand import Buying, Figures, Halt
from bizverify.execute.buying.repeating import settle_doubts
from bizverify.execute.buying.singly import buy_singly
from bizverify.execute.buying.uploads import buy_in_uploads
from bizverify.execute.ledger import Journal, Ledger, Run, Upload
from bizverify.execute.ledger.opening import ledger_path
from bizverify.execute.lookups import KEY, LOOKUP, PRIORITY, lookup_expr, lookups_of, scope_of, with_keys
from bizverify.execute.purchase import Agreement, Purchase, Quota
from bizverify.execute.rows import ROW_ID
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
        self.url = BaseUrl.parse(self.terms.base_url, allow_http=self.terms.allow_http)
        self.scope = scope_of(self.url.origin, self.terms.offline, self.terms.paid)
        self.path = ledger_path(Path(self.terms.ledger) if self.terms.ledger is not None else None)
        self.since = time.time() - self.terms.max_age * _DAY

    def marked(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """Add :data:`bizverify.execute.lookups.LOOKUP`, what each row asks for, to rows with a record."""
        return rows.with_columns(lookup_expr(rows, suspect=self.terms.buy_suspect).alias(LOOKUP))

    def quoted(self, rows: pl.LazyFrame, priority: str | None) -> Purchase:
        """What a run over rows of :meth:`marked` would buy; spends nothing. ``priority``: a column of the rows."""
        lookups = self._lookups(rows, priority)
        if not self.path.exists():
            return self._quoted(lookups, None)
        with Ledger.open(self.path) as ledger:
            return self._quoted(lookups, ledger)

    def _lookups(self, rows: pl.LazyFrame, priority: str | None) -> pl.DataFrame:
        lookups = with_keys(lookups_of(rows, priority), self.scope)
        if priority is not None and not lookups.is_empty() and lookups[PRIORITY].null_count() == lookups.height:
            raise UsageError(f"{parameter('priority', self.terms.priority)}: the column holds no numbers to go by")
        return lookups

    def _quoted(self, lookups: pl.DataFrame, ledger: Ledger | None) -> Purchase:
        standing = choice.standing(ledger, lookups, self.since)
        wanted = self.wanted(standing)
        quota, notes = self._asked_quota()
        try:
            chosen = choice.affordable(wanted.height, self.terms.budget, quota.remaining if quota else None)
        except QuotaError as error:
            chosen, notes = 0, (*notes, str(error))
        counts = (standing.cached, standing.running, standing.held, wanted.height, chosen)
        return Purchase(str(self.path), False, *counts, before=quota, notes=notes)

    def _asked_quota(self) -> tuple[Quota | None, tuple[str, ...]]:
        """What is left of the quota, as far as it can be asked without a key or a service that answers."""
        try:
            key = self.terms.api_key or ApiKey.load(self.terms.key_file)
            with BlockingClient(self.url, key, concurrency=1, timeout=self.terms.timeout, max_retries=0) as client:
                return _quota(client.me()), ()
        except (UsageError, ServiceError) as error:
            return None, (f"how much of the quota is left could not be asked: {error}",)

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
            standing = choice.standing(ledger, lookups, self.since)
            wanted = self.wanted(standing)
            ledger.begin(run)
            errand = _Errand(self, ledger, run, lookups, standing, wanted, progress)
            outcome = "failed"
            try:
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
                since=self.since,
                halted=halt.note if halt else "",
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
        started = datetime.now(UTC)
        run = Run(run_id or new_run_id(started), self.engine, self.url.origin, file, started.timestamp())
        found, purchase = self.bought(rows, priority, run, progress)
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
        standing: choice.Standing,
        wanted: pl.DataFrame,
        progress: Progress,
    ) -> None:
        self._engine, self._ledger, self._run, self._standing = engine, ledger, run, standing
        self._lookups, self._progress = lookups, progress
        self._figures = Figures()
        self._settled = 0
        self.wanted, self.chosen = wanted, wanted.clear()
        self._purchase = self._planned()

    def _planned(self) -> Purchase:
        standing, ledger = self._standing, self._ledger
        counts = (standing.cached, standing.running, standing.held, self.wanted.height, 0)
        found = ledger.recovered.asking + ledger.recovered.uploads
        return Purchase(str(ledger.path), ledger.created, *counts, doubts_found=found)

    def carried_out(self) -> Halt | None:
        """Go, unless there is nothing to be asked; return why it was stopped, if it was."""
        terms = self._engine.terms
        nothing_wanted = self.wanted.is_empty() or terms.budget == 0
        if not self._standing.running and nothing_wanted and not self._may_settle():
            return None
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
            self._engine.brake.leads_to(lambda: buying.stop.pull(Halt("interrupted", "interrupted")))
            try:
                before = await self._quota(buying)
                if await self._settle(buying):
                    before = await self._quota(buying)
                try:
                    self._choose(before)
                except QuotaError:
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
            notes=(*_settled_note(self._settled), *_notes(before, after, self._figures.paid)),
        )
        return buying.stop.halt

    async def _quota(self, buying: Buying) -> Quota | None:
        """What is left, asked before anything is bought; here a wrong key or address shows while nothing is spent."""
        account = None
        with buying.stop.waiting():  # nothing is under way that would have to be settled
            account = await buying.free(buying.client.me)
        buying.idempotency = account.idempotency if account is not None else None
        return _quota(account) if account is not None else None

    def _may_settle(self) -> bool:
        """Whether earlier runs have left lookups of this one in doubt that may be settled by asking again."""
        if not self._standing.held or self._engine.terms.budget == 0:
            return False
        return bool(self._ledger.repeatable(self._engine.url.origin))

    async def _settle(self, buying: Buying) -> bool:
        """Settle such lookups; whether there were any. From then on they stand as if they had been bought before."""
        if buying.idempotency is None or not self._may_settle():
            return False
        keys = frozenset(self._lookups[KEY])
        self._settled = await settle_doubts(buying, keys, self._engine.terms.budget)
        if not self._settled:
            return False
        self._standing = choice.standing(self._ledger, self._lookups, self._engine.since)
        self.wanted = self._engine.wanted(self._standing)
        self.chosen = self.wanted.clear()
        self._purchase = self._planned()
        return True

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
        allowed = choice.affordable(wanted.height, budget, quota.remaining if quota else None)
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
            await buy_singly(buying, self.chosen)

    def _running(self) -> list[Upload]:
        """Uploads of earlier runs that hold lookups of this one; those of other files are left to their own runs."""
        uploads = self._ledger.open_uploads(self._engine.url.origin) if self._standing.uploads else []
        return [upload for upload in uploads if upload.id in self._standing.uploads]

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
        return replace(self._purchase, paused=halt.note if halt else None)


def _quota(account: Account) -> Quota:
    return Quota(account.limit, account.used, account.remaining)


def _settled_note(settled: int) -> tuple[str, ...]:
    if not settled:
        return ()
    return (f"{counted(settled, 'lookup')} in doubt since an earlier run: settled by asking again with the same key",)


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
