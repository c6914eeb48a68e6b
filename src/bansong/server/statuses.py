"""Business statuses from the tax authority's API, with memory, store, circuit breaker and daily budget."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter, OrderedDict
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

from bansong.base.cancel import CancelToken, run_async
from bansong.base.errors import CertificateError, QuotaError, ServiceError, StoreError, TransportError
from bansong.base.options import StatusOptions
from bansong.base.schema import SEOUL
from bansong.client.errors import Action, error_action, is_long_wait
from bansong.engine.local import Known, LocalEngine
from bansong.engine.overlays import StatusOverlay
from bansong.reference.fetch import StatusFetch, fetch_statuses, load_nts_key
from bansong.reference.nts import MAX_NUMBERS, NtsClient, NtsKey, StatusReply
from bansong.reference.status_store import DayAllowance, DayUsage, StatusStore, account_of
from bansong.server.engines import numbers_of
from bansong.server.lookups import KnownStatus, Microbatcher, Statuses, StoredStatuses, read_statuses
from bansong.server.settings import Clock, Settings, as_text, loggable_message

_log = logging.getLogger(__name__)

WAIT_S: Final = 2.0  # after that, a lookup is answered with stored statuses
_PARALLEL_CALLS: Final = 4  # parallel calls for single lookups: one that hangs must not block the next
_NUMBERS_PER_READ: Final = 256
_MAX_IN_MEMORY: Final = 50_000
_REREAD_AFTER_S: Final = 60.0  # then the store is read again: another process may have written to it


class _SingleStatuses:
    """Find statuses of single lookups in memory, in the store, or at the tax authority."""

    def __init__(self, nts: NtsStatuses, clock: Clock) -> None:
        self._nts = nts
        self._clock = clock
        self._memory: OrderedDict[int, tuple[KnownStatus, float]] = OrderedDict()
        self._reads: Microbatcher[int, tuple[KnownStatus | None, bool]] = Microbatcher(
            self._read_stored, _NUMBERS_PER_READ
        )
        self._calls: Microbatcher[int, asyncio.Task[Statuses]] = Microbatcher(
            self._begin_call, MAX_NUMBERS, lambda: MAX_NUMBERS
        )
        self._slots = asyncio.Semaphore(_PARALLEL_CALLS)
        self._running: dict[asyncio.Task[Statuses], Sequence[int]] = {}
        self._asking: dict[int, asyncio.Task[Statuses]] = {}
        self._late: asyncio.Task[StoredStatuses] | None = None

    async def find(self, number: int) -> KnownStatus | None:
        if (fresh := self._recall(number)) is not None:
            return fresh
        stored, is_stale = await self._reads.submit(number)
        if not is_stale or self._nts.breaker.is_open:
            return stored
        answer = None
        async with anyio.create_task_group() as group:

            async def cancel_after_wait() -> None:
                await self._clock.sleep(WAIT_S)
                group.cancel_scope.cancel()

            group.start_soon(cancel_after_wait)
            answer = await self._find_asked(number)
            group.cancel_scope.cancel()
        return answer or stored

    async def aclose(self) -> None:
        running = [*self._running, *([] if self._late is None else [self._late])]
        for call in running:
            call.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _recall(self, number: int) -> KnownStatus | None:
        found = self._memory.get(number)
        if found is None or self._clock.now() - found[1] > _REREAD_AFTER_S or found[0].as_of < self._nts.fresh_since():
            return None
        self._memory.move_to_end(number)
        return found[0]

    def _memorise(self, statuses: Statuses) -> None:
        now = self._clock.now()
        for number, status in statuses.items():
            self._memory[number] = status, now
            self._memory.move_to_end(number)
        while len(self._memory) > _MAX_IN_MEMORY:
            self._memory.popitem(last=False)

    async def _read_stored(self, numbers: Sequence[int]) -> Sequence[tuple[KnownStatus | None, bool]]:
        """Return each number's stored status and whether to fetch it. Waits :data:`WAIT_S` at most for the store."""
        if self._late is None or self._late.done():
            read = asyncio.create_task(self._read_in_thread(numbers))
            wait = asyncio.ensure_future(self._clock.sleep(WAIT_S))
            await asyncio.wait([read, wait], return_when=asyncio.FIRST_COMPLETED)
            wait.cancel()
            if read.done():
                stored = read.result()
                return [(stored.known.get(number), number in stored.stale) for number in numbers]
            self._late = read
            _log.warning("the status store was not read within %g s, so lookups do without until it is", WAIT_S)
        return [(self._memory[number][0] if number in self._memory else None, False) for number in numbers]

    async def _read_in_thread(self, numbers: Sequence[int]) -> StoredStatuses:
        stored = await anyio.to_thread.run_sync(self._nts.read_stored, numbers)
        self._memorise(stored.known)
        return stored

    async def _find_asked(self, number: int) -> KnownStatus | None:
        call = self._asking.get(number) or await self._calls.submit(number)
        await asyncio.wait([call])  # a caller that gives up does not cancel the call: its answer is stored
        return None if call.cancelled() or call.exception() else call.result().get(number)

    async def _begin_call(self, numbers: Sequence[int]) -> Sequence[asyncio.Task[Statuses]]:
        await self._slots.acquire()
        once = list(dict.fromkeys(numbers))
        call = asyncio.create_task(self._call(once))
        self._running[call] = once
        self._asking |= dict.fromkeys(once, call)
        call.add_done_callback(self._end_call)
        return [call] * len(numbers)

    async def _call(self, numbers: Sequence[int]) -> Statuses:
        answers = await self._nts.ask(numbers)
        self._memorise(answers)
        return answers

    def _end_call(self, call: asyncio.Task[Statuses]) -> None:
        for number in self._running.pop(call):
            if self._asking.get(number) is call:
                del self._asking[number]
        self._slots.release()
        if not call.cancelled() and (error := call.exception()) is not None:
            _log.error("statuses are not asked for: %s", loggable_message(error))


FAILURES: Final = 3  # failures in a row before a pause
PAUSES_S: Final = (5.0, 30.0, 120.0, 600.0)  # seconds of the first pause, the second, …


class CircuitBreaker:
    """Pause calls after failures. After a pause one trial call may go; if it succeeds, all may."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._failures = 0
        self._pauses = 0
        self._until = 0.0
        self._trial = False

    @property
    def is_open(self) -> bool:
        return self._clock.now() < self._until or self._trial

    def begin(self) -> bool:
        """Return whether a call may go now."""
        if self.is_open:
            return False
        self._trial = self._pauses > 0
        return True

    def record_success(self) -> None:
        if self._pauses:
            _log.info("%s answers again", self._name)
        self._failures = self._pauses = 0
        self._until, self._trial = 0.0, False

    def record_refusal(self) -> None:
        self._trial = False

    def record_failure(self, why: str, *, lasting: bool = False) -> None:
        """Count a failure; after a ``lasting`` one the next call would fail, too, so pause at once."""
        if self._clock.now() < self._until:  # asked before the pause began
            return
        self._failures += 1
        if self._failures < FAILURES and not (lasting or self._trial):
            return
        pause = PAUSES_S[min(self._pauses, len(PAUSES_S) - 1)]
        self._pauses += 1
        self._failures, self._trial = 0, False
        self._until = self._clock.now() + pause
        _log.warning("%s is not asked for %g s: %s", self._name, pause, why)

    def pause_until(self, until: float, why: str) -> None:
        self._trial = False
        if until > max(self._until, self._clock.now()):
            self._until = until
            _log.warning("%s is not asked until %s: %s", self._name, as_text(until), why)


_SUBJECT: Final = "the tax authority's API"
_MAX_AGE_DAYS: Final = 100_000.0  # a larger ``max_age`` would be before the first date
_DRAIN_S: Final = 2.0  # how long a stop waits for calls of jobs and watches
_TRIES: Final = 3  # times a day that a number is asked for if replies leave it out
_TIMEOUT_S: Final = 35.0  # the portal answers with an error after 30
_RETRY_AFTER_S: Final = 1.0  # pause before the first call of a job is repeated
_SPENT: Final = "the budget of numbers for the day is spent"
_NUMBERS: Final = re.compile(r"\d[\d-]{8,}\d")  # may be a person's or business's number


def open_nts_statuses(settings: Settings, clock: Clock) -> NtsStatuses | None:
    """Return the status source that the settings name; ``None`` if that is ``auto`` and there is no API key."""
    options = settings.status
    if options.source == "auto" and options.key is None and NtsKey.find(options.key_file) is None:
        return None
    return NtsStatuses(replace(options, store=settings.status_store), clock)


class StatusReport(NamedTuple):
    """Figures about the tax authority's API, for metrics."""

    circuit_open: bool
    asked: int
    answered: int
    budget_left: int | None  # ``None`` without limit
    stored: int
    newest: date | None


class NtsStatuses:
    """Statuses from the tax authority. Lookups, jobs and watches share store, budget and breaker."""

    live = True

    def __init__(self, options: StatusOptions, clock: Clock) -> None:
        key = load_nts_key(options)
        self._options = replace(options, source="nts", key=key, drain=min(options.drain, _DRAIN_S))
        self._clock = clock
        self.breaker = CircuitBreaker(_SUBJECT, clock)
        self._client = NtsClient(key, options.base_url, timeout=min(options.timeout, _TIMEOUT_S), today=clock.today)
        self._store = StatusStore(options.store)
        self._single = _SingleStatuses(self, clock)
        self._budget = DayAllowance(self._store, account_of(key), options.budget, clock.today)
        self._bulk = anyio.Lock()
        self._totals, self._logged = Counter[str](), Counter[str]()
        self._missed: tuple[date, Counter[int]] = date.min, Counter()
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._open.callback(self._store.close)
        await self._open.enter_async_context(self._client)
        self._open.push_async_callback(self._single.aclose)
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.log_counts()
        await self._open.aclose()

    def answer(self, engine: LocalEngine, rows: pl.LazyFrame) -> pl.LazyFrame:
        try:
            statuses = self._store.read(numbers_of(rows))
        except StoreError as error:
            _log.error("statuses are not read, the registry alone answers: %s", loggable_message(error))
            return engine.answer(rows)
        overlay = StatusOverlay(statuses, aged_before=self.fresh_since())
        return engine.with_known(Known(statuses=overlay)).answer(rows)

    def exchangeable(self) -> StatusOverlay:
        return StatusOverlay.exchangeable(aged_before=self.fresh_since())

    async def find(self, number: str) -> KnownStatus | None:
        return await self._single.find(int(number))

    async def fetch(self, numbers: pl.Series, max_age: float | None = None) -> None:
        try:
            async with self._bulk:  # one at a time: jobs may share numbers, which are asked for once
                await self._fetch(numbers, self._options.max_age if max_age is None else max_age)
        except StoreError as error:
            _log.error("statuses are not fetched: %s", loggable_message(error))

    def report(self) -> StatusReport:
        found, left = self._store.summary(), self._budget.remaining()
        asked, answered = self._totals["asked"], self._totals["answered"]
        return StatusReport(self.breaker.is_open, asked, answered, left, found.numbers, found.newest)

    def fresh_since(self) -> date:
        return self._clock.today() - timedelta(days=floor(min(self._options.max_age, _MAX_AGE_DAYS)))

    def read_stored(self, numbers: Sequence[int]) -> StoredStatuses:
        """Return the stored statuses, and the numbers to fetch. If the store fails, both are empty.

        It blocks the event loop: call it in a thread.
        """
        try:
            found = read_statuses(self._store.read(_series(numbers)))
            since = self.fresh_since()
            stale = [number for number in set(numbers) if number not in found or found[number].as_of < since]
            resting = self._store.find_unanswered(_series(stale), self._clock.today()) if stale else ()
        except StoreError as error:
            _log.error("statuses are not read: %s", loggable_message(error))
            return StoredStatuses({}, frozenset())
        return StoredStatuses(found, frozenset(stale).difference(resting))

    async def ask(self, numbers: Sequence[int]) -> Statuses:
        """Fetch and store statuses. A refused call is split; a number refused alone is not fetched again that day."""
        answers: dict[int, KnownStatus] = {}
        alone: list[int] = []
        parts, refusal, day = [numbers], None, self._clock.today()
        while parts and (answers or len(alone) < FAILURES):  # else all calls are refused
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
            self.breaker.record_failure(_loggable(refusal), lasting=not self._totals["answered"])
        return answers

    async def _ask_at_once(self, numbers: Sequence[int]) -> Statuses | ServiceError:
        if self.breaker.is_open:
            return {}
        day = self._clock.today()
        allowed = await anyio.to_thread.run_sync(self._take, len(numbers))
        if not allowed:
            await self._pause_if_spent(day, _SPENT)
            return {}
        if not self.breaker.begin():
            await anyio.to_thread.run_sync(self._budget.give_back, allowed)
            return {}
        self._budget.count_sent(allowed)
        reply = await self._call(numbers[:allowed], day)
        return read_statuses(reply.statuses) if isinstance(reply, StatusReply) else reply or {}

    def _take(self, numbers: int) -> int:
        return 0 if self._budget.limit is None and self._budget.is_spent() else self._budget.take(numbers)

    async def _call(self, numbers: Sequence[int], day: date) -> StatusReply | ServiceError | None:

        async def record_delay() -> None:
            await self._clock.sleep(WAIT_S)
            self.breaker.record_failure(f"no answer within {WAIT_S:g} s")

        late = asyncio.create_task(record_delay())
        reply, refusal, used = None, None, DayUsage(len(numbers), 1)
        try:
            reply = await self._client.status(_series(numbers))
            if not late.done():
                self.breaker.record_success()
        except ServiceError as error:
            used = replace(used, exhausted=isinstance(error, QuotaError) and error.retry_after is None)
            if error_action(error) is Action.REFUSE:
                refusal = error
                self.breaker.record_refusal()
            elif used.exhausted:
                self.breaker.pause_until(_midnight_after(day), _loggable(error))
            elif error.retry_after is not None and is_long_wait(error.retry_after):
                self.breaker.pause_until(self._clock.now() + error.retry_after, _loggable(error))
            elif not late.done():
                is_lasting = isinstance(error, CertificateError) or not isinstance(error, QuotaError | TransportError)
                self.breaker.record_failure(_loggable(error), lasting=is_lasting)
        except BaseException as error:  # a defect, or the server ends: a trial must not go on for ever
            self.breaker.record_failure(loggable_message(error))
            raise
        finally:
            late.cancel()
        self._totals.update(calls=1, asked=len(numbers), answered=0 if reply is None else reply.statuses.height)
        await anyio.to_thread.run_sync(self._write, reply, used, day)
        return reply or refusal

    def _write(self, reply: StatusReply | None, used: DayUsage, day: date, refused: Sequence[int] = ()) -> None:
        missing = _series(refused if reply is None else self._often_unanswered(reply, day))
        if self._budget.limit is not None:  # the numbers were counted before the call
            used = replace(used, numbers=0)
        usage = {(self._budget.account, day): used}
        try:
            self._store.write(None if reply is None else reply.statuses, unanswered=missing, usage=usage, today=day)
        except StoreError as error:
            _log.error("statuses are not stored: %s", loggable_message(error))

    def _often_unanswered(self, reply: StatusReply, day: date) -> list[int]:
        if self._missed[0] != day:
            self._missed = day, Counter()
        missing = [int(number) for number in reply.missing]
        self._missed[1].update(missing)
        return [number for number in missing if self._missed[1][number] >= _TRIES]

    async def _fetch(self, numbers: pl.Series, max_age: float) -> None:
        """Fetch statuses that are missing or too old: a first call, and if that is answered, the rest."""
        stale = await anyio.to_thread.run_sync(self._select_stale, numbers, max_age)
        if stale.is_empty() or not await self._ask_first(stale.head(MAX_NUMBERS).to_list()):
            return
        rest = await anyio.to_thread.run_sync(self._select_stale, stale, max_age)
        if rest.is_empty() or self.breaker.is_open:
            return
        day = self._clock.today()
        if await anyio.to_thread.run_sync(self._budget.remaining) == 0:
            await self._pause_if_spent(day, _SPENT)
            return
        fetch = await self._run_fetch(rest, max_age, self._budget.stored_limit)
        if fetch is None:
            return
        self._totals.update(calls=fetch.calls, asked=fetch.asked, answered=fetch.answered)
        why = _SPENT if fetch.halt is None else _NUMBERS.sub("…", fetch.halt)
        is_spent = await self._pause_if_spent(day, why) or fetch.budget_left == 0
        if fetch.halt is not None and not is_spent:
            self.breaker.record_failure(why, lasting=not fetch.answered)

    async def _pause_if_spent(self, day: date, why: str) -> bool:
        is_spent = await anyio.to_thread.run_sync(self._budget.is_spent)
        if is_spent:
            self.breaker.pause_until(_midnight_after(day), why)
        return is_spent

    async def _ask_first(self, numbers: Sequence[int]) -> bool:
        for _ in range(FAILURES):
            began = self._clock.now()
            if await self.ask(numbers):
                return True
            if self.breaker.is_open or self._clock.now() - began > WAIT_S:  # another call would hang, too
                break
            await self._clock.sleep(_RETRY_AFTER_S)
        return False

    async def _run_fetch(self, numbers: pl.Series, max_age: float, budget: int | None) -> StatusFetch | None:
        """Fetch in the event loop of another thread, so that this loop does not wait for the store."""
        options, cancel = replace(self._options, max_age=max_age, budget=budget), CancelToken()
        fetch = partial(fetch_statuses, numbers, options, cancel=cancel, today=self._clock.today)
        async with anyio.create_task_group() as group:
            group.start_soon(_pass_cancellation_on, cancel)
            found = await anyio.to_thread.run_sync(_run_in_own_loop, fetch, cancel)
            group.cancel_scope.cancel()
        return found

    def _select_stale(self, numbers: pl.Series, max_age: float) -> pl.Series:
        return self._store.stale(numbers, max_age, self._clock.today())["b_no"]

    async def log_counts(self) -> None:
        new = self._totals - self._logged
        if not new["calls"]:
            return
        self._logged = self._totals.copy()
        try:
            found = await anyio.to_thread.run_sync(self._budget.remaining)
            left = "not limited" if found is None else f"{found:,}"
        except StoreError:
            left = "not known"
        _log.info(
            "%s: calls: %d, numbers asked: %d, answered: %d, left of the day's budget: %s",
            _SUBJECT,
            new["calls"],
            new["asked"],
            new["answered"],
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


def _loggable(error: ServiceError) -> str:
    return _NUMBERS.sub("…", str(error))
