"""Does the limiter reach its rate, and never exceed it? Against a plain token bucket, on the real clock.

    python benchmarks/limiter.py [--seconds 10] [--rates 50 200 1000] [--callers 1 64] [--backend asyncio]

Callers stamp the clock when they are let go, as if they sent a request. ``achieved`` is starts per second against the
rate asked for; ``worst second`` the fullest window of one second, however it slides, against the allowance. aiolimiter
is measured too where it is installed (asyncio only).
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import math
from collections.abc import Awaitable, Callable

import anyio

from bansong.client.dispatcher import RateLimiter

Wait = Callable[[], Awaitable[object]]


class TokenBucket:
    """The textbook's: a second's tokens to begin with, refilled as time goes by."""

    def __init__(self, rate: float) -> None:
        self.rate = self.tokens = rate
        self.at = -math.inf

    async def wait(self) -> None:
        while True:
            now = anyio.current_time()
            self.tokens = min(self.rate, self.tokens + (now - self.at) * self.rate)
            self.at = now
            if self.tokens >= 1:
                self.tokens -= 1
                return
            await anyio.sleep((1 - self.tokens) / self.rate)


def contenders(rate: float, backend: str) -> dict[str, Wait]:
    waits: dict[str, Wait] = {"Rate": RateLimiter(rate).acquire, "token bucket": TokenBucket(rate).wait}
    if backend == "asyncio" and importlib.util.find_spec("aiolimiter"):
        waits["aiolimiter"] = importlib.import_module("aiolimiter").AsyncLimiter(rate, 1).acquire
    return waits


async def starts(wait: Wait, callers: int, seconds: float) -> list[float]:
    """Return when the callers were let go, in ``seconds`` of asking again and again."""
    times: list[float] = []

    async def caller() -> None:
        while True:
            await wait()
            times.append(anyio.current_time())

    with anyio.move_on_after(seconds):
        async with anyio.create_task_group() as group:
            for _ in range(callers):
                group.start_soon(caller)
    return times


def worst_second(times: list[float]) -> int:
    """The most starts in any half-open window of one second."""
    worst = first = 0
    for last, time in enumerate(times):
        while times[first] <= time - 1:
            first += 1
        worst = max(worst, last - first + 1)
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rates", type=float, nargs="+", default=[50, 200, 1000])
    parser.add_argument("--callers", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--backend", choices=["asyncio", "trio"], default="asyncio")
    options = parser.parse_args()
    print(f"{'':<14}{'rate':>8}{'callers':>9}{'achieved':>10}{'worst second':>14}")
    for rate in options.rates:
        for callers in options.callers:
            for name in contenders(rate, options.backend):

                async def run(rate: float = rate, callers: int = callers, name: str = name) -> list[float]:
                    return await starts(contenders(rate, options.backend)[name], callers, options.seconds)

                times = anyio.run(run, backend=options.backend)
                achieved = (len(times) - 1) / (times[-1] - times[0]) / rate
                print(
                    f"{name:<14}{rate:>8,.0f}{callers:>9}{achieved:>10.3f}{worst_second(times) / rate:>13.2f}x",
                    flush=True,
                )


if __name__ == "__main__":
    main()
