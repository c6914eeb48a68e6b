"""Fetch statuses of many business numbers from the tax authority, within a budget of numbers a day."""

# ruff: noqa: ARG002 - methods of a request have unused arguments

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from typing import Final

import anyio
import anyio.to_thread
import polars as pl

from bansong.base.cancel import CancelToken
from bansong.base.display import Progress
from bansong.base.errors import (
    AuthenticationError,
    BansongError,
    PlanError,
    Problem,
    QuotaError,
    ServiceError,
    UsageError,
)
from bansong.base.messages import Option, gettext, ngettext
from bansong.base.options import StatusOptions
from bansong.base.schema import seoul_day
from bansong.client.dispatcher import Dispatcher, Halt, OutgoingRequest, Slot, Task
from bansong.client.errors import Action
from bansong.reference.nts import MAX_NUMBERS, NtsClient, NtsKey, StatusReply
from bansong.reference.status_store import DayAllowance, DayUsage, StatusStore, account_of


@dataclass(slots=True)
class StatusFetch:
    """Counts of a fetch of statuses, so far or at its end."""

    numbers: int = 0  # distinct numbers of the fetch
    from_store: int = 0  # numbers with a fresh status in the store
    asked: int = 0  # numbers sent at least once
    answered: int = 0
    unregistered: int = 0  # answered numbers that are not registered
    unanswered: int = 0  # numbers that several replies of today left out
    left: int = 0  # numbers still to be fetched
    calls: int = 0  # requests, including retries
    retries: int = 0
    seconds: float = 0.0
    budget_left: int | None = None  # numbers left of the day's budget; None: no budget
    oldest: date | None = None  # day of the oldest stored status
    problems: dict[str, int] = field(default_factory=dict)  # unusable rows of replies, by description
    halt: str | None = None  # why the fetch ended early
    refused: bool = False  # the key was refused, or its day's requests are used up
    exit_code: int = 0  # exit code of a command that only fetches

    @property
    def unasked(self) -> int:
        """Count of numbers that were not fetched because the fetch ended early."""
        return self.left if self.halt is not None else 0

    @property
    def run_exit_code(self) -> int:
        """Exit code for a run that continued with stored statuses: 5 if a later run can fetch, 3 after a refusal."""
        if not self.unasked:
            return 0
        return 5 if self.exit_code == 5 else 3

    @property
    def rate(self) -> float:
        return self.answered / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        calls = ngettext("{count:,} call", "{count:,} calls", self.calls)
        parts = [
            ngettext("{count:,} number in {calls}", "{count:,} numbers in {calls}", self.asked, calls=calls),
            gettext("{answered:,} answered", answered=self.answered),
        ]
        if self.unregistered:
            parts.append(gettext("{unregistered:,} of them not registered", unregistered=self.unregistered))
        if self.unanswered:
            parts.append(gettext("{unanswered:,} without an answer today", unanswered=self.unanswered))
        if self.left:
            parts.append(gettext("{left:,} still to be asked", left=self.left))
        return ", ".join(parts)


_COMMIT_INTERVAL_S: Final = 0.2  # answers that a killed run loses
_MAX_RESERVED_BLOCK: Final = 10_000
_MAX_TRIES: Final = 3  # for a number that replies leave out, or a refused call with a key that has worked
_CLAIMED_AT_ONCE: Final = 10 * MAX_NUMBERS
_CLAIM_S: Final = 10.0  # a claim on numbers is renewed before it ends; a killed run's claim ends after this time
_LOOK_INTERVAL_S: Final = 0.5
_PAUSED_EXIT_CODE: Final = 5
_INTERRUPTED_EXIT_CODE: Final = 130


@dataclass(slots=True)
class _Group:
    statuses: list[pl.DataFrame] = field(default_factory=list)
    in_vain: list[int] = field(default_factory=list)
    numbers: Counter[date] = field(default_factory=Counter)
    calls: Counter[date] = field(default_factory=Counter)
    exhausted: set[date] = field(default_factory=set)


class FetchRun:
    """Fetches the stale statuses of many numbers, in calls of up to 100 numbers, and stores them."""

    def __init__(
        self,
        store: StatusStore,
        options: StatusOptions,
        key: NtsKey,
        report: StatusFetch,
        *,
        progress: Progress | None,
        watch: Callable[[StatusFetch], None] | None,
        today: Callable[[], date],
    ) -> None:
        self.client = NtsClient(
            key, options.base_url, concurrency=options.concurrency, timeout=options.timeout, today=today
        )
        self.dispatcher = Dispatcher(rate=options.rate, drain=options.drain)
        self._store = store
        self._options = options
        self._report = report
        self._progress = progress
        self._watch = watch
        self._today = today
        self._account = account_of(key)
        block = max(MAX_NUMBERS, int(min(_MAX_RESERVED_BLOCK, options.rate * MAX_NUMBERS)))
        self._allowance = DayAllowance(store, self._account, options.budget, today, block)
        self._taking = anyio.Lock()
        self._run_id = secrets.token_hex(8)
        self._queue = self._elsewhere = pl.Series("b_no", dtype=pl.UInt64)
        self._place = 0
        self._claimed: list[int] = []
        self._waits = False
        self._halves: list[tuple[list[int], int]] = []
        self._again: list[list[int]] = [[] for _ in range(_MAX_TRIES)]
        self._group = _Group()
        self._total = 0
        self.has_answered = store.has_answered(self._account)
        self._answers = 0
        self._spent: date | None = None
        self._exhausted = False
        self._began = 0.0
        self._unanswered_since: float | None = None
        self._last_error: ServiceError | None = None

    async def run(self, stale: pl.DataFrame, cancel: CancelToken) -> None:
        self._began, day = anyio.current_time(), self._today()
        self._read_usage()
        allowed = stale if self._report.budget_left is None else stale.head(self._report.budget_left)
        self._queue, self._total = allowed["b_no"], stale.height
        cancel.set_handler(lambda: self.dispatcher.cancel(Halt("interrupted", "interrupted")))
        try:
            async with self.client:
                await self._ask_and_store()
            self._read_usage()
            if allowed.height < stale.height:
                self._halt_for_day(self._budget_note(), day)
        finally:
            cancel.set_handler(None)
            self._conclude()

    def next_call(self) -> Task | None:
        if self._halves:
            return self._call(*self._halves.pop(), is_first=False)
        for tries in range(_MAX_TRIES):
            numbers = self._take_new() if not tries else self._again[tries][:MAX_NUMBERS]
            del self._again[tries][:MAX_NUMBERS]
            if numbers:
                return self._call(numbers, tries, is_first=not tries)
        return None if self._elsewhere.is_empty() else self._look_again

    def _call(self, numbers: list[int], tries: int, *, is_first: bool) -> Task:
        call = _StatusCall(self, numbers, tries, is_first=is_first)
        return lambda slot: self.dispatcher.deliver(call, slot)

    async def take_numbers(self, numbers: int) -> int:
        """Reserve up to ``numbers`` of today's budget for a call and return how many; end the run if none are left."""
        async with self._taking:  # one by one: a call without numbers ends the run, which must not stop earlier calls
            taken = await anyio.to_thread.run_sync(self._allowance.take, numbers)
        if not taken:
            self._halt_for_day(self._budget_note(), self._today())
        return taken

    def count_call(self, numbers: int, *, is_first: bool) -> None:
        day = self._today()
        self._allowance.count_sent(numbers)
        if self._allowance.limit is None:  # with a limit, numbers are counted when reserved
            self._group.numbers[day] += numbers
        self._group.calls[day] += 1
        self._report.asked += numbers if is_first else 0
        if self._unanswered_since is None:
            self._unanswered_since = anyio.current_time()

    def note_error(self, error: ServiceError) -> None:
        """Remember a call's error; after a QuotaError without a time to wait (code 22), the key is not used today."""
        self._last_error = error
        if isinstance(error, QuotaError) and error.retry_after is None:
            self._spent = self._today()
            self._group.exhausted.add(self._spent)
            self._exhausted = True

    def split(self, numbers: list[int], tries: int) -> None:
        """Queue the numbers of a refused call again, in two halves; a single number counts as unanswered today."""
        if len(numbers) > 1:
            half = len(numbers) // 2
            self._halves += [(numbers[half:], tries), (numbers[:half], tries)]
        elif self._answers:  # without any answer so far, the API refuses everything
            self._group.in_vain += numbers

    def keep(self, reply: StatusReply, tries: int) -> None:
        """Keep a reply for the next commit; queue numbers that it lacks again, for :data:`_MAX_TRIES` calls at most."""
        self._unanswered_since = None
        self._answers += reply.statuses.height
        self.has_answered |= bool(self._answers)
        self._group.statuses.append(reply.statuses)
        missing = [int(number) for number in reply.missing]
        (self._again[tries + 1] if tries + 1 < _MAX_TRIES else self._group.in_vain).extend(missing)
        for problem, count in reply.problems.items():
            self._report.problems[problem] = self._report.problems.get(problem, 0) + count

    def _take_new(self) -> list[int]:
        while not self._claimed and self._place < len(self._queue):
            piece = self._queue.slice(self._place, _CLAIMED_AT_ONCE)
            self._place += len(piece)
            self._claim(piece)
        found, self._claimed = self._claimed[:MAX_NUMBERS], self._claimed[MAX_NUMBERS:]
        return found

    def _claim(self, piece: pl.Series) -> None:
        now = time.time()
        mine = self._store.claim(piece, self._run_id, now, now + _CLAIM_S)
        # read after the claim, since another run may just have stored answers and released its claim
        stale = self._store.stale(piece, self._options.max_age, self._today())["b_no"]
        self._report.from_store += len(piece) - len(stale)
        self._report.left -= len(piece) - len(stale)
        is_mine = stale.is_in(mine.implode())
        self._claimed = stale.filter(is_mine).to_list()
        self._elsewhere = pl.concat([self._elsewhere, stale.filter(~is_mine)])  # of other runs: for later
        is_answered = len(stale) < len(piece)
        self._waits = not (is_answered or is_mine.any())
        if is_answered:
            self._unanswered_since = None

    async def _look_again(self, _: Slot) -> None:
        if self._waits:
            self._unanswered_since = self._unanswered_since or anyio.current_time()
            await self.dispatcher.sleep(_LOOK_INTERVAL_S)
        if self._place == len(self._queue):
            self._queue, self._place = self._elsewhere[:_CLAIMED_AT_ONCE], 0
            self._elsewhere = self._elsewhere[_CLAIMED_AT_ONCE:]

    async def _ask_and_store(self) -> None:
        try:
            async with anyio.create_task_group() as beside:
                beside.start_soon(self._store_often)
                await self.dispatcher.run(self.next_call, self._options.concurrency)
                beside.cancel_scope.cancel()
        finally:  # store the answers even if the run is cancelled
            try:
                group = self._take_group()
                self._write(group)
                self._count(group)
            finally:
                self._allowance.close()
                self._store.release_claims(self._run_id)

    async def _store_often(self) -> None:
        renewed = time.time()
        while True:
            await anyio.sleep(_COMMIT_INTERVAL_S)
            try:
                group = self._take_group()
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(self._write, group)
                self._count(group)
                if (now := time.time()) - renewed > _CLAIM_S / 4:
                    self._store.renew_claims(self._run_id, now + _CLAIM_S)
                    renewed = now
                self._read_usage()
            except BansongError as error:
                self.dispatcher.cancel(Halt("fault", str(error), error))
                return
            self._give_up_in_time()
            self._tell()

    def _give_up_in_time(self) -> None:
        """End the run if the API has not answered for longer than the option ``patience``."""
        since, patience = self._unanswered_since, self._options.patience
        if since is not None and anyio.current_time() - since > patience:
            silence = gettext(
                "the tax authority's API has not answered for {patience:g} s; try again later", patience=patience
            )
            self.dispatcher.cancel(Halt("unreachable", str(self._last_error or silence)))

    def _take_group(self) -> _Group:
        group, self._group = self._group, _Group()
        return group

    def _write(self, group: _Group) -> None:
        if not (group.calls or group.statuses or group.in_vain or group.exhausted):
            return
        statuses = pl.concat(group.statuses) if group.statuses else None
        answered = {self._today()} if statuses is not None and not statuses.is_empty() else set()
        usage = {
            (self._account, day): DayUsage(
                group.numbers[day], group.calls[day], day in group.exhausted, day in answered
            )
            for day in {*group.calls, *group.exhausted, *answered}
        }
        in_vain = pl.Series("b_no", group.in_vain, pl.UInt64)
        self._store.write(statuses, unanswered=in_vain, usage=usage, today=self._today())

    def _count(self, group: _Group) -> None:
        """Count committed replies (not in the thread that commits, since the report is not thread-safe)."""
        answered = sum(statuses.height for statuses in group.statuses)
        self._report.answered += answered
        self._report.unregistered += sum(
            int((statuses["biz_status"] == "unregistered").sum()) for statuses in group.statuses
        )
        self._report.unanswered += len(group.in_vain)
        self._report.left -= answered + len(group.in_vain)

    def _read_usage(self) -> None:
        budget, used = self._options.budget, self._store.usage(self._account, self._today())
        self._report.budget_left = None if budget is None else max(0, budget - used.numbers + self._allowance.spare)
        if used.exhausted:
            self._exhausted = True
            self._halt_for_day(gettext("the key's requests of the day are used up"), self._today())

    def _budget_note(self) -> str:
        return ngettext(
            "the budget of {count:,} number a day is used up",
            "the budget of {count:,} numbers a day is used up",
            self._options.budget or 0,
        )

    def _halt_for_day(self, note: str, day: date) -> None:
        if self.dispatcher.halt is None:
            self._spent = day
            self.dispatcher.cancel(Halt("quota", note))

    def _tell(self) -> None:
        self._report.seconds = anyio.current_time() - self._began
        self._report.calls = self.dispatcher.counts.requests
        self._report.retries = self.dispatcher.counts.retries
        if self._progress is not None:
            self._progress(self._total - self._report.left, self._total)
        if self._watch is not None:
            self._watch(self._report)

    def _conclude(self) -> None:
        self._tell()
        halt = self.dispatcher.halt
        if halt is not None and halt.why == "fault" and halt.error is not None:
            raise halt.error
        if not self._report.left:
            return
        note = str(self._last_error or gettext("some calls came to nothing")) if halt is None else halt.note
        if self._spent is not None:
            note += gettext("; it goes on from {spent} 00:00 in Seoul", spent=self._spent + timedelta(days=1))
        self._report.halt = ngettext(
            "{note} ({count:,} number still to be asked)",
            "{note} ({count:,} numbers still to be asked)",
            self._report.left,
            note=note,
        )
        self._report.exit_code = (
            _INTERRUPTED_EXIT_CODE if halt is not None and halt.why == "interrupted" else _PAUSED_EXIT_CODE
        )
        if halt is not None and isinstance(halt.error, BansongError):  # a refused key
            self._report.exit_code = halt.error.exit_code
        self._report.refused = self._exhausted or self._report.exit_code == AuthenticationError.exit_code


class _StatusCall(OutgoingRequest[StatusReply]):
    def __init__(self, run: FetchRun, numbers: list[int], tries: int, *, is_first: bool) -> None:
        self._run = run
        self._numbers = numbers
        self._tries = tries
        self._is_first = is_first
        self._answered = False

    def choose_action(self, error: ServiceError, attempt: int) -> Action:
        is_refusal = isinstance(error, AuthenticationError | PlanError)
        if is_refusal and self._run.has_answered and attempt < _MAX_TRIES - 1:
            return Action.RETRY
        return super().choose_action(error, attempt)

    async def skip(self) -> bool:
        self._numbers = self._numbers[: await self._run.take_numbers(len(self._numbers))]
        return not self._numbers

    async def prepare(self) -> None:
        self._run.count_call(len(self._numbers), is_first=self._is_first)
        self._is_first = False

    async def send(self, slot: Slot) -> StatusReply:
        return await self._run.client.status(self._numbers)

    async def record_reply(self, reply: StatusReply, slot: Slot) -> None:
        self._answered = not reply.statuses.is_empty()
        self._run.keep(reply, self._tries)

    async def record_error(self, error: ServiceError, action: Action) -> None:
        self._run.note_error(error)
        if action is Action.REFUSE:
            self._run.split(self._numbers, self._tries)

    async def complete(self) -> bool:
        return self._answered


KEY_TYPE_WRONG: Final = Problem("nts.key_type_wrong", "{parameter} is of the class {name}; give a bansong.NtsKey")
KEY_MISSING: Final = Problem(
    "nts.key_missing",
    "no key of the tax authority's API: get a free one at data.go.kr (docs/data-sources.md "
    "shows how) and set {env} to it, or {env_file} to the path of a file that holds it",
)


def load_nts_key(options: StatusOptions) -> NtsKey:
    """Return the key of the tax authority's API; raise :class:`UsageError`, with instructions, if there is none."""
    key = NtsKey.find(options.key_file) if options.key is None else options.key
    if key is not None and not isinstance(key, NtsKey):
        raise UsageError(KEY_TYPE_WRONG, parameter=Option("key"), name=type(key).__name__)
    if key is None:
        raise UsageError(KEY_MISSING, env=NtsKey.ENV, env_file=NtsKey.ENV_FILE)
    return key


async def fetch_statuses(
    numbers: pl.Series,
    options: StatusOptions | None = None,
    *,
    known: pl.DataFrame | None = None,  # b_no, as_of of statuses from elsewhere; fresh ones are not fetched
    progress: Progress | None = None,
    watch: Callable[[StatusFetch], None] | None = None,
    cancel: CancelToken | None = None,
    tries_spent: bool = False,  # try a key again although its requests of the day were used up
    today: Callable[[], date] = seoul_day,
) -> StatusFetch:
    """Fetch and store the statuses of ``numbers`` (UInt64) that have none or a stale one, those without any first."""
    # a run that must stop (refused key, used budget, outage, cancel) returns a report with a halt
    options = options or StatusOptions()
    report = StatusFetch()
    with StatusStore(options.store) as store:
        given = numbers.cast(pl.UInt64).drop_nulls().unique().sort()  # sorted, since the store then finds them faster
        report.numbers = len(given)
        stale = _stale_numbers(store, given, known, options.max_age, today())
        report.left = stale.height
        report.unanswered = len(store.find_unanswered(given, today()))
        report.from_store = report.numbers - report.left - report.unanswered
        try:
            if stale.height:
                key = load_nts_key(options)
                if tries_spent and store.lift_limit(account_of(key), today()):
                    options = replace(options, concurrency=1)  # one call at a time, until one succeeds
                run = FetchRun(store, options, key, report, progress=progress, watch=watch, today=today)
                await run.run(stale, cancel or CancelToken())
        finally:
            report.oldest = store.oldest(given)
    return report


def _stale_numbers(
    store: StatusStore, numbers: pl.Series, known: pl.DataFrame | None, max_age: float, today: date
) -> pl.DataFrame:
    stale = store.stale(numbers, max_age, today)
    if known is None:
        return stale
    known = known.filter(pl.col("as_of") <= today)  # a future day comes from a wrong clock
    stale = stale.join(known.select("b_no", pl.col("as_of").alias("elsewhere")), on="b_no", how="left")
    stale = stale.select("b_no", pl.max_horizontal("as_of", "elsewhere").alias("as_of"))
    age = (pl.lit(today) - pl.col("as_of")).dt.total_days()
    return stale.filter(~(age <= max_age).fill_null(value=False)).sort("as_of", "b_no")
