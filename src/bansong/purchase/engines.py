"""The engines that buy: single requests, uploads, or only unsure rows."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import nullcontext
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal, Self

import polars as pl

from bansong.base.errors import Notice, Problem, ServiceError, UsageError
from bansong.base.files import private_folder
from bansong.base.messages import Listed, Option, Phrase, gettext_noop
from bansong.base.option import choose_options
from bansong.base.options import ENGINE_KINDS, EngineKind, ServiceOptions, engine_kind
from bansong.client.address import BaseUrl
from bansong.client.blocking import BlockingClient
from bansong.engine.local import Known, LocalEngine, registry_alerts
from bansong.engine.protocol import Agreement, Answers, Purchase, QuotaStatus, Records, RunContext, local_files
from bansong.engine.records import ROW_ID
from bansong.purchase import answers as answer_join
from bansong.purchase import lookups as selection
from bansong.purchase.ledger import DAY_S, Ledger
from bansong.purchase.ledger_file import ledger_path
from bansong.purchase.run import buy, ledger_run, quota_of, read_standing

NUMBERS_MISSING: Final = Problem("purchase.numbers_missing", "{option}: the column holds no numbers to go by")
ENGINE_NOT_PAID: Final = Problem(
    "purchase.engine_not_paid", "{name!r} does not leave all answers to the service; give 'verify' or 'batch'"
)

log = logging.getLogger(__name__)


class PaidEngine(ABC):
    """Buys what rows ask for, once, and answers them from the ledger."""

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
        """Return the unix seconds before which answers are too old for a run that begins now."""
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
        return replace(records, rows=records.rows.with_columns(lookup.alias(selection.LOOKUP)))

    def quote(self, records: Records, context: RunContext) -> Purchase:
        """Return what a run over prepared records would buy; spends nothing."""
        lookups = self._lookups(records)
        with Ledger.open(self.path, clock=context.unix_time) if self.path.exists() else nullcontext() as ledger:
            return self._quote(lookups, ledger, context)

    def answer(self, records: Records, context: RunContext) -> Answers:
        """Buy what the prepared records ask for; whatever is raised, all that was bought is in the ledger."""
        lookups = self._lookups(records)
        with Ledger.open(self.path, clock=context.unix_time) as ledger:
            bought = buy(self, lookups, ledger, context)
            chosen, halt = pl.col(ROW_ID).is_in(bought.chosen[ROW_ID].implode()), bought.halt
            found = answer_join.store_answers(
                ledger,
                lookups.select(selection.LOOKUP, selection.KEY, chosen.alias(answer_join.CHOSEN)),
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
        """Add the nine columns to prepared rows."""

    def select_wanted(self, standing: selection.Standing) -> pl.DataFrame:
        return standing.wanted

    def counts(self) -> tuple[pl.Expr, ...]:
        return selection.BOUGHT_COUNTS

    @abstractmethod
    def agreement(self, tallied: Mapping[str, Any]) -> Agreement | None:
        """Return how the local engine and the service agree; ``None`` where only the service answers."""

    def hints(self, *, planned: bool) -> tuple[str, ...]:  # noqa: ARG002 - the protocol's
        """Name the registry and the gazetteer that answer nothing."""
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
        """Return why nothing more may be bought from a service that has answered too little; ``None`` if it may."""
        if ledger is None or self.options.retry_trial:
            return None
        return selection.why_stopped(ledger, self.url.name, uploads=self.kind.uploads)

    def cautions(self, ledger: Ledger | None, wanted: pl.DataFrame, since: float) -> tuple[str, ...]:
        """Warn if the ledger has the wanted lookups at other base URLs."""
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
        begun = selection.continued_since(ledger.runs() if ledger else (), ledger_run(self, context))
        standing = read_standing(self, ledger, lookups, since, begun)
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
    """Answers every row by the hosted service: ``verify`` asks a request a lookup, ``batch`` in uploads.

    ``options``: where, as whom and how much is bought. ``local`` says which lookups come first where a budget does not
    last for all; it answers none. Raises :class:`bansong.errors.UsageError`.
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
    """Answers every row by the local engine, and buys by single requests what that one is not sure of.

    ``options``: where, as whom and how much is bought. Raises :class:`bansong.errors.UsageError`.
    """

    def __init__(self, options: ServiceOptions | None = None, *, local: LocalEngine | None = None) -> None:
        super().__init__(ENGINE_KINDS["hybrid"], options, local)

    def _join_answers(self, rows: pl.LazyFrame, found: answer_join.StoredAnswers) -> pl.LazyFrame:
        return answer_join.overlay_answers(self.local.answer(rows), found)

    def select_wanted(self, standing: selection.Standing) -> pl.DataFrame:
        """Return the lookups that the local engine is not sure of, with what it says of them."""
        return selection.uncertain(selection.assess_lookups(standing.wanted, self.local), self.options.band)

    def counts(self) -> tuple[pl.Expr, ...]:
        """Aggregations over answered rows: of both engines, and how they agree."""
        return (*super().counts(), *answer_join.agreement_counts(), *self.local.counts())

    def agreement(self, tallied: Mapping[str, Any]) -> Agreement:
        """Return how the local engine and the service agree on the rows that both answered."""
        found = {name.removeprefix("agree:"): value for name, value in tallied.items() if name.startswith("agree:")}
        return Agreement(**found)

    def hints(self, *, planned: bool) -> tuple[str, ...]:
        """Say that there is no registry, or that a plan has one that is too old."""
        return registry_alerts(self.local, Phrase("every lookup is uncertain, and bought"), planned=planned)


def paid_engine(kind: EngineKind, options: ServiceOptions, local: LocalEngine) -> PaidEngine:
    if kind.answers_locally:
        return HybridEngine(options, local=local)
    return ServiceEngine("batch" if kind.uploads else "verify", options, local=local)
