"""The rate, the limiter and the retry budget, on trio's fake clock: no test sleeps for real."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import cycle
from random import Random
from typing import TypeVar
from unittest.mock import patch

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from bansong.client.dispatcher import ConcurrencyLimiter, RateLimiter, RetryBudget, Slot
from bansong.errors import UsageError
from examples import examples

T = TypeVar("T")

WITHIN_THE_GUARD = 0.0039
"""Seconds by which a send may follow its grant without the allowance being exceeded."""


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@asynccontextmanager
async def slot_of(limiter: ConcurrencyLimiter) -> AsyncIterator[Slot]:
    slot = limiter.try_acquire() or await limiter.acquire()
    try:
        yield slot
    finally:
        slot.release()


def simulated(main: Callable[[], Awaitable[T]]) -> T:
    """Run on a clock that jumps to the next deadline; a deadlock ends as a TimeoutError."""

    async def guarded() -> T:
        with anyio.fail_after(1e9):
            return await main()

    return anyio.run(guarded, backend="trio", backend_options={"clock": MockClock(autojump_threshold=0)})


@contextmanager
def late(delays: list[float]) -> Iterator[None]:
    """Let every wake-up come late, by the delays in turn."""
    turn = cycle(delays)

    async def sleep_until(deadline: float) -> None:
        await anyio.sleep(deadline - anyio.current_time() + next(turn))

    with patch.object(anyio, "sleep_until", sleep_until):
        yield


def grants(rate: RateLimiter, callers: list[list[float]]) -> list[float]:
    """Let each caller pause, wait, pause, wait …; return the times at which they were let go, in that order."""
    times: list[float] = []

    async def caller(pauses: list[float]) -> None:
        for pause in pauses:
            await anyio.sleep(pause)
            await rate.acquire()
            times.append(anyio.current_time())

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for pauses in callers:
                group.start_soon(caller, pauses)

    simulated(main)
    return times


def most_within(times: list[float], seconds: float) -> int:
    """The most of them in any half-open window of this length."""
    most = first = 0
    for last, time in enumerate(times):
        while times[first] <= time - seconds:
            first += 1
        most = max(most, last - first + 1)
    return most


pauses = st.lists(st.sampled_from([0.0, 0.0, 0.001, 0.013, 0.2, 0.5, 0.99, 1.0, 3.0]), min_size=1, max_size=40)
delays = st.lists(st.floats(0, 0.03), min_size=1, max_size=9)


@examples(150)
@given(
    per_second=st.one_of(st.floats(0.05, 30), st.sampled_from([0.1, 0.5, 1.0, 1.5, 2.0, 7.0, 10.0, 50.0])),
    callers=st.lists(pauses, min_size=1, max_size=8),
    wakes=delays,
    sends=delays,
)
def test_no_window_of_a_second_or_longer_holds_more_than_its_allowance(
    per_second: float, callers: list[list[float]], wakes: list[float], sends: list[float]
) -> None:
    """Whoever asks whenever, however late the wake-ups, even with sends that follow their grants with a delay."""
    with late(wakes):
        times = grants(RateLimiter(per_second), callers)
    assert len(times) == sum(map(len, callers))
    assert times == sorted(times)
    sent = sorted(time + min(delay, WITHIN_THE_GUARD) for time, delay in zip(times, cycle(sends), strict=False))
    for seconds in (1.0, 1.0 + 1 / per_second, 2.5, 60.0):
        assert most_within(times, seconds) <= math.ceil(per_second * seconds)
        assert most_within(sent, seconds) <= math.ceil(per_second * seconds)
    for several in range(math.ceil(max(per_second, 1.0)), len(times)):
        spans = (times[place + several] - times[place] for place in range(len(times) - several))
        assert min(spans) >= several / per_second


@pytest.mark.parametrize(("per_second", "callers"), [(50, 1), (200, 64), (1000, 64)])
@pytest.mark.parametrize("delays", [[0.0], [0.0, 0.003, 0.006, 0.001]], ids=["punctual", "late"])
def test_the_rate_is_reached_and_never_exceeded(per_second: int, callers: int, delays: list[float]) -> None:
    """Between 0.98 and 1 of it, wake-ups that come some milliseconds late included."""
    rate = RateLimiter(per_second)
    assert rate.achieved is None
    with late(delays):
        times = grants(rate, [[0.0] * (3 * per_second // callers)] * callers)
    assert rate.achieved is not None
    assert 0.98 <= rate.achieved / per_second <= 1.0
    assert most_within(times, 1.0) <= per_second


def test_slow_and_fast_rates_and_pauses() -> None:
    """Below one a second it is all but reached; a million a second never waits; an idle hour saves nothing up."""
    times = grants(RateLimiter(0.1), [[0.0] * 5])
    assert times[2] - times[1] == pytest.approx(10.012)
    assert set(grants(RateLimiter(1e6), [[0.0] * 50] * 20)) == {0.0}
    assert most_within(grants(RateLimiter(10), [[0.0] * 5 + [3600.0] + [0.0] * 40]), 1.0) == 10


@pytest.mark.parametrize("limited", ["rate", "concurrency"])
def test_whoever_asks_first_is_granted_first(limited: str) -> None:
    """Whatever order the scheduler wakes tasks in."""
    rate, limiter, order = RateLimiter(5), ConcurrencyLimiter(2), list[int]()

    async def caller(number: int) -> None:
        await anyio.sleep(number * 0.001)
        if limited == "rate":
            await rate.acquire()
            order.append(number)
            return
        async with slot_of(limiter):
            order.append(number)
            await anyio.sleep(1)

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for number in reversed(range(20)):
                group.start_soon(caller, number)

    simulated(main)
    assert order == list(range(20))


@pytest.mark.parametrize("cancelled_after", [0.0, 0.002, 0.3])
@pytest.mark.parametrize("asked_at", [0.0005, 0.0025], ids=["first in the queue", "in its middle"])
def test_a_cancelled_wait_uses_up_nothing(asked_at: float, cancelled_after: float) -> None:
    """The others are granted as if the cancelled one had never asked."""
    rate, times = RateLimiter(2), list[float]()

    async def caller(start: float) -> None:
        await anyio.sleep(start)
        await rate.acquire()
        times.append(anyio.current_time())

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for number in range(5):
                group.start_soon(caller, number * 0.001)
            await anyio.sleep(asked_at)
            with anyio.move_on_after(cancelled_after) as scope:
                await rate.acquire()
            assert scope.cancelled_caught

    simulated(main)
    assert times == grants(RateLimiter(2), [[number * 0.001] for number in range(5)])


def test_limits_that_are_none_are_refused() -> None:
    for per_second in (0, -1, math.nan, math.inf, -math.inf, 5e-324):
        with pytest.raises(UsageError, match="above 0"):
            RateLimiter(per_second)
    with pytest.raises(UsageError, match="1 or more"):
        ConcurrencyLimiter(0)
    for share, least in ((-0.1, 10), (1.1, 10), (math.nan, 10), (0.1, -1), (0.1, 101)):
        with pytest.raises(UsageError, match="retry budget"):
            RetryBudget(share, least)


Request = tuple[float, float, str, float, float]
requests = st.tuples(
    st.sampled_from([0.0, 0.1, 0.2, 1.0, 5.0]),  # asks at
    st.sampled_from([0.0, 0.1, 0.3, 2.0]),  # takes
    st.sampled_from(["record_success", "record_success", "record_overload", "held", "nothing", "failed"]),  # tells
    st.sampled_from([0.5, 2.0, 30.0]),  # the Retry-After of "held"
    st.sampled_from([math.inf, math.inf, 0.0, 0.15, 1.0]),  # is cancelled after
)


@examples(200)
@given(st.integers(1, 5), st.lists(requests, min_size=1, max_size=30))
def test_a_throttle_keeps_its_promises_under_any_load(concurrency: int, load: list[Request]) -> None:
    """Capacity between 1 and the maximum, never more at once, no start in a hold, and no slot lost to anything."""
    limiter = ConcurrencyLimiter(concurrency)

    def check() -> None:
        assert 1 <= limiter.capacity <= limiter.maximum == concurrency

    async def request(at: float, takes: float, tells: str, retry_after: float, patience: float) -> None:
        await anyio.sleep(at)
        with anyio.move_on_after(patience):
            async with slot_of(limiter) as slot:
                assert limiter.running <= limiter.capacity
                assert limiter.backoff_until is None or anyio.current_time() >= limiter.backoff_until
                await anyio.sleep(takes)
                if tells == "failed":
                    raise ZeroDivisionError
                if tells == "held":
                    slot.record_overload(retry_after)
                elif tells != "nothing":
                    getattr(slot, tells)()
                check()

    async def survived(*arguments: float) -> None:
        with suppress(ZeroDivisionError):
            await request(*arguments)  # type: ignore[arg-type]

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for one in load:
                group.start_soon(survived, *one)
        assert limiter.running == 0
        with anyio.fail_after(60):
            async with slot_of(limiter):
                check()

    simulated(main)


@pytest.mark.anyio
async def test_requests_under_way_at_a_cut_do_not_cut_again() -> None:
    """Eight timeouts of one moment are one strain; one of a request that started later is the next."""
    limiter = ConcurrencyLimiter(16)
    early = [await held(limiter) for _ in range(8)]
    for slot in early:
        slot.record_overload()
    assert (limiter.capacity, limiter.overloads) == (8, 8)
    (await held(limiter)).record_overload()
    assert limiter.capacity == 4
    for _ in range(50):
        early[0].record_success()  # of before the cut
    assert limiter.capacity == 4


async def held(limiter: ConcurrencyLimiter) -> Slot:
    async with slot_of(limiter) as slot:
        return slot


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("maximum", "events", "capacities"),
    [
        (5, "-----", [2, 1, 1, 1, 1]),
        (4, "-++++++++", [2, 2, 3, 3, 3, 4, 4, 4, 4]),
        (8, "-+++-++", [4, 4, 4, 4, 2, 2, 3]),
    ],
    ids=["never below one", "one more for as many successes", "a cut forgets successes"],
)
async def test_capacity_is_halved_by_a_strain_and_recovers(maximum: int, events: str, capacities: list[int]) -> None:
    limiter, seen = ConcurrencyLimiter(maximum), []
    for event in events:
        slot = await held(limiter)
        slot.record_success() if event == "+" else slot.record_overload()
        seen.append(limiter.capacity)
    assert seen == capacities


@pytest.mark.anyio
async def test_a_raised_capacity_lets_the_next_one_in_at_once() -> None:
    """It does not wait for a slot to be given back."""
    limiter = ConcurrencyLimiter(2)
    (await held(limiter)).record_overload()
    async with slot_of(limiter) as slot, anyio.create_task_group() as group:
        started = anyio.Event()

        async def other() -> None:
            async with slot_of(limiter):
                started.set()

        group.start_soon(other)
        await anyio.wait_all_tasks_blocked()
        assert not started.is_set()
        slot.record_success()
        await started.wait()


def test_retry_after_holds_all_starts_back() -> None:
    """A later, shorter one does not shorten it, a longer one lengthens it even for those that wait already."""
    limiter, starts = ConcurrencyLimiter(8), list[float]()

    async def request() -> None:
        async with slot_of(limiter):
            starts.append(anyio.current_time())

    async def main() -> None:
        slot = await held(limiter)
        slot.record_overload(10)
        slot.record_overload(3)
        assert limiter.backoff_until == 10
        async with anyio.create_task_group() as group:
            for _ in range(6):
                group.start_soon(request)
            await anyio.sleep(9)
            slot.record_overload(20)
        assert starts == [29] * 6
        assert limiter.backoff_until == 29

    simulated(main)


def test_a_hold_also_holds_back_who_waits_for_the_rate() -> None:
    limiter, rate = ConcurrencyLimiter(4), RateLimiter(0.1)

    async def request() -> None:
        async with slot_of(limiter):
            await rate.acquire()
            await rate.acquire()
            assert await limiter.wait_for_backoff()
            assert anyio.current_time() >= 105

    async def main() -> None:
        slot = await held(limiter)
        async with anyio.create_task_group() as group:
            group.start_soon(request)
            await anyio.sleep(5)
            slot.record_overload(100)

    simulated(main)


@pytest.mark.parametrize("retry_after", [None, 0, -5, math.nan, math.inf])
def test_a_retry_after_that_says_nothing_holds_nothing(retry_after: float | None) -> None:
    limiter = ConcurrencyLimiter(2)

    async def main() -> None:
        (await held(limiter)).record_overload(retry_after)
        await held(limiter)

    simulated(main)
    assert limiter.backoff_until is None


def test_the_retry_budget_is_what_requests_have_earned() -> None:
    """Ten to begin with, one more for ten requests, never more than the most."""
    retries = RetryBudget()
    assert [retries.try_spend() for _ in range(11)] == [True] * 10 + [False]
    for _ in range(9):
        retries.record_request()
    assert not retries.try_spend()
    retries.record_request()
    assert [retries.try_spend(), retries.try_spend()] == [True, False]
    for _ in range(100_000):
        retries.record_request()
    assert sum(retries.try_spend() for _ in range(1_000)) == 100


@examples(200)
@given(st.integers(1, 10_000), st.one_of(st.none(), st.floats(0, 100)), st.integers())
def test_backoff_is_random_capped_and_at_least_what_was_asked(
    attempt: int, retry_after: float | None, seed: int
) -> None:
    wait = RetryBudget(random=Random(seed)).backoff(attempt, retry_after)
    assert wait == RetryBudget(random=Random(seed)).backoff(attempt, retry_after)
    assert (retry_after or 0) <= wait <= max(30.0, retry_after or 0, 0.0)
    assert wait <= max(2.0 ** min(attempt - 1, 5), retry_after or 0)
