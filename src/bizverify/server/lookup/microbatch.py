"""Single lookups answered together: those that arrive while a query runs are the rows of the next query."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Generic, TypeVar
from weakref import WeakValueDictionary

import anyio
import anyio.to_thread
import polars as pl

from bizverify.engine import LocalEngine
from bizverify.errors import BizverifyError
from bizverify.server.engine_pool import EnginePool
from bizverify.server.errors import busy
from bizverify.server.lookup.prepared_query import PreparedQuery
from bizverify.server.payloads import VerificationPayload, VerifyRequest

MOMENT: Final = 0.01
"""Seconds that a group waits for questions on their way."""
_LOOK: Final = 0.0005

Q = TypeVar("Q")
A = TypeVar("A")


class Microbatcher(Generic[Q, A]):
    """Works on up to ``most`` questions at once, one such group at a time, for callers on one event loop.

    ``work`` returns for each question, in their order, its answer or the exception that belongs to it; what it raises
    belongs to all. A question that comes while nothing is worked on does not wait for others, except those of the same
    turn of the event loop. One whose asker was cancelled is left out if its work has not begun.

    ``expected`` says how many questions are asked or on their way: a group waits :data:`MOMENT` for those, since one
    question more costs little and a group more costs much.
    """

    def __init__(
        self,
        work: Callable[[Sequence[Q]], Awaitable[Sequence[A | BaseException]]],
        most: int,
        expected: Callable[[], int] = int,
    ) -> None:
        self._work = work
        self._most = most
        self._expected = expected
        self._waiting: deque[tuple[Q, asyncio.Future[A]]] = deque()
        self._working: asyncio.Task[None] | None = None

    def ask(self, question: Q) -> asyncio.Future[A]:
        """The answer to come."""
        future: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, future))
        if self._working is None:
            self._working = asyncio.create_task(self._run())
        return future

    async def _run(self) -> None:
        try:
            while self._waiting:
                await self._linger()
                if group := self._next():
                    await self._answer(group)
        finally:
            self._working = None
            for _, future in self._waiting:  # only where the loop itself is ended
                future.cancel()
            self._waiting.clear()

    async def _linger(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + MOMENT
        while len(self._waiting) < min(self._expected(), self._most) and loop.time() < until:
            await asyncio.sleep(_LOOK)

    def _next(self) -> list[tuple[Q, asyncio.Future[A]]]:
        group: list[tuple[Q, asyncio.Future[A]]] = []
        while self._waiting and len(group) < self._most:
            question, future = self._waiting.popleft()
            if not future.done():
                group.append((question, future))
        return group

    async def _answer(self, group: list[tuple[Q, asyncio.Future[A]]]) -> None:
        answers: Sequence[A | BaseException]
        try:
            answers = await self._work([question for question, _ in group])
        except asyncio.CancelledError:
            for _, future in group:
                future.cancel()
            raise
        except BaseException as error:  # a panic of polars is no Exception, and nobody may wait for ever
            answers = [error] * len(group)
        for (_, future), answer in zip(group, answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, BaseException):
                future.set_exception(answer)
            else:
                future.set_result(answer)


_log = logging.getLogger(__name__)

MOST: Final = 256
"""Lookups in one query at most."""
WAITING: Final = 1_024
"""Lookups that may wait at most, those in queries among them; more are refused as busy."""
_AT_ONCE: Final = 2
"""Queries at a time, of different engines."""
_SCOPES: Final = 256
_CACHED: Final = 10_000
_LONGEST: Final = 500
"""Characters of a lookup that is remembered, so that what is remembered has a bound."""

_LookupValues = tuple[str, str | None, str | None]


class LookupAnswerer:
    """Answers single lookups, as :meth:`bizverify.engine.LocalEngine.answer` answers each of them alone.

    ``waiting``: how many may wait. Scopes whose engines answer alike share their queries. What was answered is
    remembered until the scope's engine is another one.
    """

    def __init__(self, engines: EnginePool, *, waiting: int = WAITING) -> None:
        self._engines = engines
        self._most_waiting = waiting
        self._waiting = 0
        self._of_scope: OrderedDict[str, tuple[LocalEngine, _EngineQueue]] = OrderedDict()
        self._lines: WeakValueDictionary[tuple[object, ...], _EngineQueue] = WeakValueDictionary()
        self._remembered: OrderedDict[tuple[int, _LookupValues], VerificationPayload] = OrderedDict()
        self._indexes: tuple[object, ...] = ()
        self._limiter = anyio.CapacityLimiter(_AT_ONCE)

    def admit(self) -> None:
        """Raise the refusal 503 if as many lookups wait as may."""
        if self._waiting >= self._most_waiting:
            raise busy("too many lookups are waiting", 1)

    @contextmanager
    def expected(self, scope: str) -> Iterator[None]:
        """While a lookup of a scope is paid and answered: the queries before it wait a moment for it."""
        known = self._of_scope.get(scope)
        if known is None:
            yield
            return
        line = known[1]
        line.expected += 1
        try:
            yield
        finally:
            line.expected -= 1

    async def answer(self, scope: str, lookup: VerifyRequest) -> VerificationPayload:
        """Answer one lookup.

        Raises what the engine raises where an index is damaged, and :class:`~bizverify.server.errors.Refusal` 503
        where too many wait.
        """
        self.admit()
        self._waiting += 1
        try:
            line = await self._line(scope)
            asked = lookup.b_no, lookup.name, lookup.address
            found = self._recalled(line, asked)
            if found is None:
                found = await line.gathering.ask(lookup)
                self._remember(line, asked, found)
            return found
        finally:
            self._waiting -= 1

    async def _line(self, scope: str) -> _EngineQueue:
        if self._engines.ready(scope):
            engine = self._engines.engine(scope)
        else:
            engine = await anyio.to_thread.run_sync(self._engines.engine, scope)
        known = self._of_scope.get(scope)
        if known is not None and known[0] is engine:
            return known[1]
        indexes = engine.registry, engine.gazetteer, engine.today
        if indexes != self._indexes:  # nothing must keep the indexes before in memory
            self._indexes = indexes
            self._of_scope.clear()
        kin = _engine_identity(engine)
        line = self._lines.get(kin)
        if line is None:
            line = self._lines[kin] = _EngineQueue(engine, self._limiter)
        self._of_scope[scope] = engine, line
        self._of_scope.move_to_end(scope)
        if len(self._of_scope) > _SCOPES:
            self._of_scope.popitem(last=False)
        return line

    def _recalled(self, line: _EngineQueue, asked: _LookupValues) -> VerificationPayload | None:
        found = self._remembered.get((line.number, asked))
        if found is not None:
            self._remembered.move_to_end((line.number, asked))
        return found

    def _remember(self, line: _EngineQueue, asked: _LookupValues, answer: VerificationPayload) -> None:
        if len(asked[1] or "") + len(asked[2] or "") > _LONGEST:
            return
        self._remembered[line.number, asked] = answer
        if len(self._remembered) > _CACHED:
            self._remembered.popitem(last=False)


class _EngineQueue:
    """Those who wait for one engine's answers."""

    _numbers = itertools.count()

    def __init__(self, engine: LocalEngine, limiter: anyio.CapacityLimiter) -> None:
        self.number = next(self._numbers)
        self.expected = 0
        self.gathering: Microbatcher[VerifyRequest, VerificationPayload] = Microbatcher(
            self._work, MOST, lambda: self.expected
        )
        self._engine = engine
        self._limiter = limiter
        self._prepared: PreparedQuery | None = None

    async def _work(self, lookups: Sequence[VerifyRequest]) -> Sequence[VerificationPayload | BaseException]:
        return await anyio.to_thread.run_sync(self._answers, lookups, limiter=self._limiter)

    def _answers(self, lookups: Sequence[VerifyRequest]) -> Sequence[VerificationPayload | BaseException]:
        if self._prepared is None:
            self._prepared = PreparedQuery(self._engine)
        try:
            return self._prepared.answers(lookups)
        except BizverifyError:  # an index is damaged, for all alike
            raise
        except (Exception, pl.exceptions.PanicException) as error:  # a panic is no Exception
            if len(lookups) == 1:
                return [error]
            _log.warning("a query of %d lookups failed and is done in parts: %s", len(lookups), type(error).__name__)
            half = len(lookups) // 2
            return [*self._answers(lookups[:half]), *self._answers(lookups[half:])]


def _engine_identity(engine: LocalEngine) -> tuple[object, ...]:
    """The same for engines that answer alike; their indexes are told apart by identity, while a line keeps them."""
    return id(engine.registry), id(engine.gazetteer), engine.model, engine.lang, engine.today, id(engine.history)
