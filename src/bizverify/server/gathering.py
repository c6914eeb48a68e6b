"""What is asked while the work before is under way is gathered, and then worked on together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

MOMENT: Final = 0.01
"""Seconds that a group waits for questions on their way."""
_LOOK: Final = 0.0005

Q = TypeVar("Q")
A = TypeVar("A")


class Gathering(Generic[Q, A]):
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
