"""Statuses from the tax authority: stored, and asked for when they are too old."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import date, datetime, time, timedelta
from functools import partial
from math import floor
from typing import Final, NamedTuple, Self

import anyio
import anyio.to_thread
import polars as pl

from bansong.cancellation import CancelToken, run_async
from bansong.dispatch.error_actions import Action, error_action, is_long_wait
from bansong.engine import LocalEngine
from bansong.engine.status_overlay import StatusOverlay
from bansong.errors import CertificateError, QuotaError, ServiceError, StoreError, TransportError
from bansong.options import StatusOptions
from bansong.reference.day_allowance import account_of
from bansong.reference.nts import MAX_NUMBERS, NtsClient, NtsKey, StatusReply
from bansong.reference.status_fetch import StatusFetch, fetch_statuses, load_nts_key
from bansong.reference.status_store import DayUsage, StatusStore
from bansong.schema import SEOUL
from bansong.server.reference_files import numbers_of
from bansong.server.settings import Clock, Settings, loggable_message
from bansong.server.status.circuit_breaker import FAILURES, CircuitBreaker
from bansong.server.status.day_budget import DayBudget
from bansong.server.status.known_status import KnownStatus, Statuses, StoredStatuses, read_statuses
from bansong.server.status.single_statuses import WAIT_S, SingleStatuses

_log = logging.getLogger(__name__)

_SUBJECT: Final = "the tax authority's API"
_LOG_INTERVAL_S: Final = 60.0
_MAX_AGE_DAYS: Final = 100_000.0
"""A larger ``max_age`` would be before the first date."""
_DRAIN_S: Final = 2.0
"""How long a stop waits for calls of jobs and watches."""
_TRIES: Final = 3
"""Times a day that a number is asked for if replies leave it out."""
_TIMEOUT_S: Final = 35.0
"""The portal gives up after 30 and says so."""
_RETRY_AFTER_S: Final = 1.0
"""Pause before the first call of a job is repeated."""
_SPENT: Final = "the budget of numbers for the day is spent"
_NUMBERS: Final = re.compile(r"\d[\d-]{8,}\d")
"""Looks like somebody's number."""


def open_nts_statuses(settings: Settings, clock: Clock) -> NtsStatuses | None:
    """Return the statuses of a server that asks the tax authority, else ``None``. Raises as :class:`NtsStatuses`."""
    options = settings.status
    if options.source == "auto" and options.key is None and NtsKey.find(options.key_file) is None:
        return None
    return NtsStatuses(replace(options, store=settings.status_store), clock)


class StatusReport(NamedTuple):
    """Numbers asked and answered since the start; state of the circuit, budget and store.

    ``budget_left``: ``None`` without limit. ``newest``: day of the newest stored status.
    """

    circuit_open: bool
    asked: int
    answered: int
    budget_left: int | None
    stored: int
    newest: date | None


class NtsStatuses:
    """Statuses of a server that asks the tax authority: ``async with NtsStatuses(…) as statuses``.

    Single lookups (:meth:`find`), jobs and the watch list (:meth:`fetch`) share its store, daily budget and circuit
    breaker. Statuses older than ``options.max_age`` days are asked for; if the API fails, the newest stored status or
    the registry is used. Raises :class:`bansong.errors.UsageError` without a key, :class:`~bansong.errors.StoreError`
    for an unusable store.
    """

    live = True

    def __init__(self, options: StatusOptions, clock: Clock) -> None:
        key = load_nts_key(options)
        self._options = replace(options, source="nts", key=key, drain=min(options.drain, _DRAIN_S))
        self._clock = clock
        self._breaker = CircuitBreaker(_SUBJECT, clock)
        self._client = NtsClient(key, options.base_url, timeout=min(options.timeout, _TIMEOUT_S), today=clock.today)
        self._store = StatusStore(options.store)
        self._single = SingleStatuses(
            clock,
            read=self._read_stored,
            ask=self._ask,
            most=MAX_NUMBERS,
            may_ask=lambda: not self._breaker.is_open,
            is_fresh=lambda status: status.as_of >= self._fresh_since(),
        )
        self._budget = DayBudget(self._store, account_of(key), options.budget)
        self._bulk = anyio.Lock()
        self._counts = DayUsage()
        self._answered = 0
        self._totals = 0, 0
        self._missed: tuple[date, Counter[int]] = date.min, Counter()
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._open.callback(self._store.close)
        await self._open.enter_async_context(self._client)
        self._open.push_async_callback(self._single.aclose)
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._log_counts()
        await self._open.aclose()

    async def run(self) -> None:
        while True:
            await self._clock.sleep(_LOG_INTERVAL_S)
            await self._log_counts()

    def answer(self, engine: LocalEngine, rows: pl.LazyFrame) -> pl.LazyFrame:
        """Answer rows by stored statuses over the engine's registry; called in a thread."""
        try:
            statuses = self._store.read(numbers_of(rows))
        except StoreError as error:
            _log.error("statuses are not read, the registry alone answers: %s", loggable_message(error))
            return engine.answer(rows)
        return engine.with_status(StatusOverlay(statuses, aged_before=self._fresh_since())).answer(rows)

    def exchangeable(self) -> StatusOverlay:
        """Return an overlay for prepared queries, filled with results of :meth:`find`."""
        return StatusOverlay.exchangeable(aged_before=self._fresh_since())

    async def find(self, number: str) -> KnownStatus | None:
        """Return the fresh status of a number (ten digits), or after two seconds the newest known one."""
        return await self._single.find(int(number))

    async def fetch(self, numbers: pl.Series, max_age: float | None = None) -> None:
        """Ask for statuses of ``numbers`` (UInt64, unique) older than ``max_age`` days, within the budget.

        ``max_age``: by default that of the options. Raises nothing if nobody can be asked. Cancelled, it keeps the
        answers so far.
        """
        try:
            async with self._bulk:  # one at a time: numbers of a job may be those of another, and are asked once
                await self._fetch(numbers, self._options.max_age if max_age is None else max_age)
        except StoreError as error:
            _log.error("statuses are not fetched: %s", loggable_message(error))

    def report(self) -> StatusReport:
        """Return counts and state; thread-safe. Raises :class:`bansong.errors.StoreError`."""
        found, left = self._store.summary(), self._budget.remaining(self._clock.today())
        return StatusReport(self._breaker.is_open, *self._totals, left, found.numbers, found.newest)

    def _fresh_since(self) -> date:
        return self._clock.today() - timedelta(days=floor(min(self._options.max_age, _MAX_AGE_DAYS)))

    def _read_stored(self, numbers: Sequence[int]) -> StoredStatuses:
        """Return stored statuses; called in a thread. If the store fails, nobody is asked."""
        try:
            found = read_statuses(self._store.read(_series(numbers)))
            since = self._fresh_since()
            stale = [number for number in set(numbers) if number not in found or found[number].as_of < since]
            in_vain = self._store.find_unanswered(_series(stale), self._clock.today()) if stale else ()
        except StoreError as error:
            _log.error("statuses are not read: %s", loggable_message(error))
            return StoredStatuses({}, frozenset())
        return StoredStatuses(found, frozenset(stale).difference(in_vain))

    async def _ask(self, numbers: Sequence[int]) -> Statuses:
        """Ask for numbers and store the answers; return nothing if nobody may be asked.

        A refused call is repeated in halves. A number that is refused alone while others are answered has no answer on
        this day.
        """
        answers: dict[int, KnownStatus] = {}
        alone: list[int] = []
        parts, refusal, day = [numbers], None, self._clock.today()
        while parts and (answers or len(alone) < FAILURES):  # else it refuses whatever is asked
            part = parts.pop()
            found = await self._ask_at_once(part)
            if not isinstance(found, ServiceError):
                answers |= found
                continue
            refusal, half = found, len(part) // 2
            if half:
                parts += [part[half:], part[:half]]
            else:
                alone += part
        if alone and answers:
            await anyio.to_thread.run_sync(self._write, None, DayUsage(), day, alone)
        elif refusal is not None and not answers:
            self._breaker.record_failure(_loggable(refusal), lasting=not self._totals[1])
        return answers

    async def _ask_at_once(self, numbers: Sequence[int]) -> Statuses | ServiceError:
        """Ask for numbers in one call; return its error if it was refused for its content."""
        if self._breaker.is_open:
            return {}
        day = self._clock.today()
        allowed = await anyio.to_thread.run_sync(self._budget.take, len(numbers), day)
        if not allowed:
            await self._heed_budget(day, _SPENT)
            return {}
        if not self._breaker.begin():
            await anyio.to_thread.run_sync(self._budget.give_back, allowed, day)
            return {}
        self._budget.count_sent(allowed)
        reply = await self._call(numbers[:allowed], day)
        return read_statuses(reply.statuses) if isinstance(reply, StatusReply) else reply or {}

    async def _call(self, numbers: Sequence[int], day: date) -> StatusReply | ServiceError | None:
        """Make one call and record its outcome; a late answer is used, too."""
        late = asyncio.create_task(self._record_delay())
        reply, refusal, used = None, None, DayUsage(len(numbers), 1)
        try:
            reply = await self._client.status(_series(numbers))
            if not late.done():
                self._breaker.record_success()
        except ServiceError as error:
            used = replace(used, exhausted=isinstance(error, QuotaError) and error.retry_after is None)
            if error_action(error) is Action.REFUSE:
                refusal = error
                self._breaker.record_refusal()
            elif used.exhausted:
                self._breaker.pause_until(_midnight_after(day), _loggable(error))
            elif error.retry_after is not None and is_long_wait(error.retry_after):
                self._breaker.pause_until(self._clock.now() + error.retry_after, _loggable(error))
            elif not late.done():
                self._breaker.record_failure(_loggable(error), lasting=_is_lasting(error))
        except BaseException as error:  # a defect, or the server ends: a trial must not go on for ever
            self._breaker.record_failure(loggable_message(error))
            raise
        finally:
            late.cancel()
        self._count(used, 0 if reply is None else reply.statuses.height)
        await anyio.to_thread.run_sync(self._write, reply, used, day)
        return reply or refusal

    async def _record_delay(self) -> None:
        await self._clock.sleep(WAIT_S)
        self._breaker.record_failure(f"no answer within {WAIT_S:g} s")

    def _write(self, reply: StatusReply | None, used: DayUsage, day: date, refused: Sequence[int] = ()) -> None:
        """Store the outcome of a call; called in a thread."""
        missing = _series(refused if reply is None else self._select_vain(reply, day))
        if self._budget.limit is not None:  # they were counted when they were taken
            used = replace(used, numbers=0)
        usage = {(self._budget.account, day): used}
        try:
            self._store.write(None if reply is None else reply.statuses, unanswered=missing, usage=usage, today=day)
        except StoreError as error:
            _log.error("statuses are not stored: %s", loggable_message(error))

    def _select_vain(self, reply: StatusReply, day: date) -> list[int]:
        """Return the numbers that replies of this day have repeatedly left out."""
        if self._missed[0] != day:
            self._missed = day, Counter()
        missing = [int(number) for number in reply.missing]
        self._missed[1].update(missing)
        return [number for number in missing if self._missed[1][number] >= _TRIES]

    async def _fetch(self, numbers: pl.Series, max_age: float) -> None:
        """Make one call first, which shows whether more can be asked, then the others."""
        stale = await anyio.to_thread.run_sync(self._select_stale, numbers, max_age)
        if stale.is_empty() or not await self._ask_first(stale.head(MAX_NUMBERS).to_list()):
            return
        rest = await anyio.to_thread.run_sync(self._select_stale, stale, max_age)
        if rest.is_empty() or self._breaker.is_open:
            return
        day = self._clock.today()
        if await anyio.to_thread.run_sync(self._budget.remaining, day) == 0:
            await self._heed_budget(day, _SPENT)
            return
        fetch = await self._run_fetch(rest, max_age, self._budget.limit_of(day))
        if fetch is None:
            return
        self._count(DayUsage(fetch.asked, fetch.calls), fetch.answered)
        why = _SPENT if fetch.halt is None else _NUMBERS.sub("…", fetch.halt)
        is_spent = await self._heed_budget(day, why) or fetch.budget_left == 0
        if fetch.halt is not None and not is_spent:
            self._breaker.record_failure(why, lasting=not fetch.answered)

    async def _heed_budget(self, day: date, why: str) -> bool:
        """Pause until midnight if the budget is spent; return whether it is."""
        is_spent = await anyio.to_thread.run_sync(self._budget.is_spent, day)
        if is_spent:
            self._breaker.pause_until(_midnight_after(day), why)
        return is_spent

    async def _ask_first(self, numbers: Sequence[int]) -> bool:
        for _ in range(FAILURES):
            began = self._clock.now()
            if await self._ask(numbers):
                return True
            if self._breaker.is_open or self._clock.now() - began > WAIT_S:  # what hangs would hang again
                break
            await self._clock.sleep(_RETRY_AFTER_S)
        return False

    async def _run_fetch(self, numbers: pl.Series, max_age: float, budget: int | None) -> StatusFetch | None:
        """Fetch in an event loop of another thread, so that this one need not wait for the store."""
        options, cancel = replace(self._options, max_age=max_age, budget=budget), CancelToken()
        fetch = partial(fetch_statuses, numbers, options, cancel=cancel, today=self._clock.today)
        async with anyio.create_task_group() as group:
            group.start_soon(_pass_cancellation_on, cancel)
            found = await anyio.to_thread.run_sync(_run_in_own_loop, fetch, cancel)
            group.cancel_scope.cancel()
        return found

    def _select_stale(self, numbers: pl.Series, max_age: float) -> pl.Series:
        return self._store.stale(numbers, max_age, self._clock.today())["b_no"]

    def _count(self, used: DayUsage, answered: int) -> None:
        before = self._counts
        self._counts = DayUsage(before.numbers + used.numbers, before.calls + used.calls)
        self._answered += answered
        self._totals = self._totals[0] + used.numbers, self._totals[1] + answered

    async def _log_counts(self) -> None:
        counts, answered = self._counts, self._answered
        if not counts.calls:
            return
        self._counts, self._answered = DayUsage(), 0
        try:
            found = await anyio.to_thread.run_sync(self._budget.remaining, self._clock.today())
            left = "not limited" if found is None else f"{found:,}"
        except StoreError:
            left = "not known"
        _log.info(
            "%s: calls: %d, numbers asked: %d, answered: %d, left of the day's budget: %s",
            _SUBJECT,
            counts.calls,
            counts.numbers,
            answered,
            left,
        )


def _run_in_own_loop(fetch: Callable[[], Awaitable[StatusFetch]], cancel: CancelToken) -> StatusFetch | None:
    try:
        return run_async(fetch, cancel)
    except StoreError as error:
        _log.error("statuses are not stored: %s", loggable_message(error))
        return None


async def _pass_cancellation_on(cancel: CancelToken) -> None:
    try:
        await anyio.sleep_forever()
    finally:
        cancel.cancel()


def _series(numbers: Sequence[int]) -> pl.Series:
    return pl.Series("b_no", list(dict.fromkeys(numbers)), pl.UInt64)


def _midnight_after(day: date) -> float:
    return datetime.combine(day + timedelta(days=1), time(), SEOUL).timestamp()


def _is_lasting(error: ServiceError) -> bool:
    """Return whether the next call would fail, too: a wrong key, say."""
    return isinstance(error, CertificateError) or not isinstance(error, QuotaError | TransportError)


def _loggable(error: ServiceError) -> str:
    """Return the message of an error without anything that may be somebody's number."""
    return _NUMBERS.sub("…", str(error))
