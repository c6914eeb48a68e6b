"""What both ways of buying share: the pace, the ledger, the reasons to stop, and what is free to be tried again."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, TypeVar

import anyio

from bizverify.errors import CertificateError, DoubtError, NotSentError, QuotaError, ServiceError, TransportError
from bizverify.purchase.limits import Rate, Retries, Throttle

if TYPE_CHECKING:
    import polars as pl

    from bizverify.client import Client
    from bizverify.client.account import Idempotency
    from bizverify.ledger import Journal, Ledger
    from bizverify.purchase.limits import Slot
    from bizverify.purchase.options import Terms

log = logging.getLogger(__name__)

Answered = TypeVar("Answered")

Why = Literal["quota", "refused", "unreachable", "failing", "stopped", "interrupted", "fault"]

SHORT_WAIT: Final = 60.0
"""Seconds of a Retry-After that a run waits for; for a longer one it pauses, to be continued by the same command."""

_STRAINED: Final = frozenset({502, 503, 504})
PATIENCE: Final = 100
"""How much may come to nothing in a row before nothing more is bought: a request that was, or may have been, paid
weighs :data:`WEIGHT`, one that was refused for what it asked, 1."""

WEIGHT: Final = 10
_TRIES: Final = 6


@dataclass(frozen=True, slots=True)
class Halt:
    """Why no more is bought. ``error`` is raised when what is under way is settled; without one the run ends paused."""

    why: Why
    note: str
    error: Exception | None = None


def is_strain(error: ServiceError) -> bool:
    """Whether an error says that too much is asked of the service: no answer in time, overload, a limit soon over."""
    if isinstance(error, DoubtError):
        return error.status is None or error.status in _STRAINED
    return isinstance(error, QuotaError) and error.retry_after is not None and not is_long(error.retry_after)


def is_long(retry_after: float | None) -> bool:
    """Whether the service asks for more patience than a run has."""
    return retry_after is not None and retry_after > SHORT_WAIT


def is_redirect(error: ServiceError) -> bool:
    """Whether an error says that the service is elsewhere: it will say the same to every request."""
    return error.status is not None and 300 <= error.status < 400


class Stop:
    """A run's brake: pulled once, it keeps anything new from starting, and wakes what only waits."""

    def __init__(self) -> None:
        self.halt: Halt | None = None
        self._pulled = anyio.Event()
        self._waiting: set[anyio.CancelScope] = set()

    def pull(self, halt: Halt) -> None:
        """Stop; the first reason counts."""
        if self.halt is None:
            log.info("buying stops: %s", halt.note)
            self.halt = halt
            self._pulled.set()
            for scope in self._waiting:
                scope.cancel()

    @property
    def pulled(self) -> bool:
        """Whether nothing new may start."""
        return self.halt is not None

    async def wait(self) -> None:
        """Wait until it is pulled."""
        await self._pulled.wait()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A block that only waits: it is left at once when the brake is pulled."""
        with anyio.CancelScope() as scope:
            if self.pulled:
                scope.cancel()
            self._waiting.add(scope)
            try:
                yield
            finally:
                self._waiting.discard(scope)


@dataclass(slots=True)
class Figures:
    """What a run's buying came to, counted as it happens. ``repeated``: requests sent again with their key."""

    requests: int = 0
    retries: int = 0
    repeated: int = 0
    paid: int = 0
    doubts: int = 0
    fetched: int = 0


@dataclass
class Buying:
    """One run's purchases: who is asked, how fast, where it is written down, and when to stop.

    ``lookups`` are those that the run's file asks for, with their keys: what was sent is not in the ledger.
    ``idempotency`` is what the service promises of requests that are sent again; ``hopeless`` counts those in a row for
    which that led to nothing.
    """

    client: Client
    ledger: Ledger
    journal: Journal
    terms: Terms
    run_id: str
    scope: str
    progress: Callable[[int], None] = lambda _: None
    stop: Stop = field(default_factory=Stop)
    figures: Figures = field(default_factory=Figures)
    idempotency: Idempotency | None = None
    hopeless: int = 0
    lookups: pl.DataFrame | None = None

    def __post_init__(self) -> None:
        self.rate = Rate(self.terms.rate)
        self.retries = Retries()
        self._fruitless = 0
        self._alone, self._gate = anyio.Lock(), anyio.Lock()

    async def carry_out(
        self, worker: Callable[[Throttle], Awaitable[None]], at_once: int, workers: int | None = None
    ) -> None:
        """Run ``workers`` to their end, with requests of ``at_once`` of them under way (default: of all).

        When the brake is pulled they have ``terms.drain`` seconds to settle.
        """
        throttle = Throttle(at_once)
        async with anyio.create_task_group() as watch:
            watch.start_soon(self._drained, watch.cancel_scope)
            async with anyio.create_task_group() as tasks:
                for _ in range(workers or at_once):
                    tasks.start_soon(self._guarded, worker, throttle)
            watch.cancel_scope.cancel()

    async def _drained(self, scope: anyio.CancelScope) -> None:
        await self.stop.wait()
        await anyio.sleep(self.terms.drain)
        log.warning("what was under way has not ended within %s s", self.terms.drain)
        scope.cancel()

    async def _guarded(self, worker: Callable[[Throttle], Awaitable[None]], throttle: Throttle) -> None:
        """An error stops the run in good order, a defect's too: what is under way elsewhere is still settled."""
        try:
            await worker(throttle)
        except Exception as error:
            self.stop.pull(Halt("fault", str(error), error))

    @asynccontextmanager
    async def slot(self, throttle: Throttle) -> AsyncIterator[Slot | None]:
        """Wait for a place among the requests under way and hold it; ``None`` if nothing new may start."""
        slot = throttle.take_now()
        if slot is None:
            with self.stop.waiting():
                slot = await throttle.take()
        try:
            yield None if self.stop.pulled else slot
        finally:
            if slot is not None:
                slot.release()

    def alone(self) -> AbstractAsyncContextManager[bool]:
        """Wait until nobody else is in such a block; false if the run is stopped before."""
        return self._held(self._alone)

    def at_gate(self) -> AbstractAsyncContextManager[bool]:
        """Wait until no other upload is between its first byte and its reply; false if the run is stopped before.

        A run that is killed then leaves one upload in doubt at most.
        """
        return self._held(self._gate)

    @asynccontextmanager
    async def _held(self, lock: anyio.Lock) -> AsyncIterator[bool]:
        async with AsyncExitStack() as held:
            with self.stop.waiting():
                await held.enter_async_context(lock)
            yield not self.stop.pulled

    async def turn(self, throttle: Throttle | None = None) -> bool:
        """Wait until a request may go; false if it may not any more. Paid ones heed what the ``throttle`` was told."""
        turned = (throttle is None or not throttle.is_held) and self.rate.grant_now()
        if not turned:
            with self.stop.waiting():
                await self.rate.wait()
                while throttle is not None and await throttle.released():
                    await self.rate.wait()
                turned = True
        if not turned or self.stop.pulled:
            return False
        self.figures.requests += 1
        self.retries.earn()
        return True

    async def again(self, attempt: int, retry_after: float | None = None) -> bool:
        """Wait before one more try of what costs nothing to be tried again; false if there shall be none."""
        if self.stop.pulled or attempt >= _TRIES or is_long(retry_after) or not self.retries.spend():
            return False
        self.figures.retries += 1
        with self.stop.waiting():
            await anyio.sleep(self.retries.backoff(attempt + 1, retry_after))
        return not self.stop.pulled

    async def free(self, ask: Callable[[], Awaitable[Answered]]) -> Answered | None:
        """Ask what costs nothing, again and again within reason; ``None`` if the run was stopped meanwhile.

        Raises what the service said last.
        """
        for attempt in range(_TRIES + 1):
            if not await self.turn():
                return None
            try:
                return await ask()
            except ServiceError as error:
                passing = isinstance(error, TransportError) or (isinstance(error, QuotaError) and error.retry_after)
                passing = passing and not isinstance(error, CertificateError)
                if not passing or not await self.again(attempt, error.retry_after):
                    if self.stop.pulled:
                        return None
                    raise
        raise AssertionError("again() ends the tries")

    def strained(self, error: ServiceError, slot: Slot) -> None:
        """Heed an error that says that too much is asked: less at once, and nothing for as long as the service asks.

        If that is long the run pauses, instead of sleeping through it.
        """
        if is_strain(error):
            slot.strained(None if is_long(error.retry_after) else error.retry_after)
            if is_long(error.retry_after):
                self.stop.pull(Halt("unreachable", str(error)))

    def fruitful(self) -> None:
        """A paid request was answered: the service works."""
        self._fruitless = 0

    def fruitless(self, note: str, weight: int = WEIGHT) -> None:
        """A paid request came to nothing; too many of them in a row stop the run."""
        self._fruitless += weight
        if self._fruitless >= PATIENCE:
            self.stop.pull(Halt("failing", f"the service fails again and again ({note})"))

    async def quota_used_up(self, error: QuotaError, attempt: int) -> bool:
        """Whether to ask again after a 429, having waited as it says; else the run pauses."""
        if error.retry_after is not None and await self.again(attempt, error.retry_after):
            return True
        self.stop.pull(Halt("quota", str(error)))
        return False

    def refused(self, error: ServiceError) -> None:
        """The service does not let this run in (401, 403, a wrong address): nothing more is sent."""
        self.stop.pull(Halt("refused", str(error), error))

    def unreachable(self, error: NotSentError | DoubtError) -> None:
        """The service cannot be reached: pause."""
        self.stop.pull(Halt("unreachable", str(error)))
