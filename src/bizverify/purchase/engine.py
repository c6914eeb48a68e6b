"""The engines that buy: plan what is missing, buy it within what is allowed, and answer the rows from the ledger."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from bizverify.cancellation import CancelToken
from bizverify.client import ApiKey, BaseUrl, BlockingClient
from bizverify.errors import ServiceError, StoppedError, UsageError, parameter
from bizverify.ledger import Ledger, Run
from bizverify.ledger.open import ledger_path
from bizverify.purchase import answer_join, selection
from bizverify.purchase.context import why_stopped
from bizverify.purchase.options import PAYING
from bizverify.purchase.purchase_run import PaidRun, Progress, quota_of
from bizverify.purchase.summary import Agreement, Purchase, Quota
from bizverify.run.alerts import continuation_note, other_address_alert, unknown_quota_alert
from bizverify.run.lookups import KEY, LOOKUP, PRIORITY, lookup_expr, lookups_of, scope_of, with_keys
from bizverify.run.records import ROW_ID
from bizverify.storage.paths import new_run_id

if TYPE_CHECKING:
    from bizverify.engine import LocalEngine
    from bizverify.purchase.options import Terms

log = logging.getLogger(__name__)

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
    brake: CancelToken = field(default_factory=CancelToken)

    def __post_init__(self) -> None:
        terms = self.terms
        self.url = BaseUrl.parse(terms.base_url, allow_http=terms.allow_http, known_as=terms.known_as)
        self.scope = self._scope_at(self.url.name)
        self.path = ledger_path(Path(self.terms.ledger) if self.terms.ledger is not None else None)
        self.since = time.time() - self.terms.max_age * _DAY

    def marked(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """Add :data:`bizverify.run.lookups.LOOKUP`, what each row asks for, to rows with a record."""
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
        begun = selection.continued_since(ledger.runs() if ledger else (), run)
        standing = selection.standing(ledger, lookups, self.since, begun)
        wanted = self.wanted(standing)
        notes = [*self.cautions(ledger, wanted), *continuation_note(standing.continued, begun)]
        quota, problem = self._asked_quota()
        unread = problem if isinstance(problem, ServiceError) and selection.hides_quota(problem) else None
        try:
            chosen = selection.affordable(wanted.height, self.terms.budget, quota.remaining if quota else None, unread)
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
                return quota_of(client.me()), None
        except (UsageError, ServiceError) as error:
            return None, error

    def cautions(self, ledger: Ledger | None, wanted: pl.DataFrame) -> tuple[str, ...]:
        """What is to be said before the wanted lookups are bought: that the ledger knows them at other addresses."""
        if ledger is None or wanted.is_empty() or self.terms.budget == 0:
            return ()
        others = dict.fromkeys(run.origin for run in ledger.runs() if run.engine in PAYING)
        others.pop(self.url.name, None)
        scopes = [(origin, self._scope_at(origin)) for origin in others]
        known = selection.known_elsewhere(ledger, wanted, scopes, self.since)
        alert = other_address_alert(self.url.origin, self.url.name, known, wanted.height)
        return () if alert is None else (alert,)

    def wanted(self, standing: selection.Standing) -> pl.DataFrame:
        """What is to be bought if nothing limits it."""
        if self.engine != "hybrid":
            return standing.wanted
        return selection.uncertain(selection.assessed(standing.wanted, self.local), self.terms.band)

    def bought(
        self, rows: pl.LazyFrame, priority: str | None, run: Run, progress: Progress
    ) -> tuple[answer_join.Stored, Purchase]:
        """Buy what rows of :meth:`marked` ask for; return the stored answers and the summary.

        Raises what ends a run: a refusal (401, 403), a ledger that fails, a quota that does not last for the plan; and
        ``KeyboardInterrupt`` when it was interrupted. All that was bought is in the ledger then.
        """
        lookups = self._lookups(rows, priority)
        with Ledger.open(self.path) as ledger:
            begun = selection.continued_since(ledger.runs(), run)
            ledger.begin(run)
            if self.terms.retry_trial:
                ledger.allow_trial(self.url.name)
            outcome = "failed"
            try:
                paid_run = PaidRun(self, ledger, run, lookups, begun, progress)
                halt = paid_run.carry_out()
                outcome = halt.why if halt else "done"
            except (KeyboardInterrupt, StoppedError):
                outcome = "interrupted"
                raise
            finally:
                ledger.end(run.run_id, outcome)
            chosen = pl.col(ROW_ID).is_in(paid_run.chosen[ROW_ID].implode())
            found = answer_join.stored(
                ledger,
                lookups.select(LOOKUP, KEY, chosen.alias(answer_join.CHOSEN)),
                self.folder,
                run_id=run.run_id,
                since=self.since if begun is None else min(self.since, begun),
                halted=halt.note if halt else "",
                stopped=halt is not None and halt.why == "stopped",
                lang=self.local.lang,
                unchosen=None if self.engine == "hybrid" else paid_run.why_unchosen(),
            )
            return found, paid_run.purchase(halt)

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

    def answer(self, rows: pl.LazyFrame, found: answer_join.Stored) -> pl.LazyFrame:
        """Add the nine columns to rows of :meth:`marked`, from what :meth:`bought` returned."""
        if self.engine == "hybrid":
            return answer_join.overlaid(self.local.answer(rows), found)
        return answer_join.attached(rows, found, self.local.lang)

    def counts(self) -> tuple[pl.Expr, ...]:
        """Aggregations over rows of :meth:`answer`, to be read by :meth:`agreed`."""
        return answer_join.agreement() if self.engine == "hybrid" else ()

    def agreed(self, tallied: Mapping[str, Any]) -> Agreement | None:
        """What :meth:`counts` came to; ``None`` for the engines that do not compare."""
        if self.engine != "hybrid":
            return None
        return Agreement(
            **{name.removeprefix("agree:"): value for name, value in tallied.items() if name.startswith("agree:")}
        )
