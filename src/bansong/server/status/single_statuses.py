"""Statuses of single lookups: from memory, from the store, or by calls that lookups share."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import anyio
import anyio.to_thread

from bansong.server.lookup.microbatch import Microbatcher
from bansong.server.settings import Clock, loggable_message
from bansong.server.status.known_status import KnownStatus, Statuses, StoredStatuses

_log = logging.getLogger(__name__)

WAIT_S: Final = 2.0
"""After that, a lookup is answered by what is known."""
_PARALLEL_CALLS: Final = 4
"""Parallel calls for single lookups: one that hangs must not block the next."""
_NUMBERS_PER_READ: Final = 256
_MAX_IN_MEMORY: Final = 50_000
_REREAD_AFTER_S: Final = 60.0
"""Then the store is read again: another process may have written to it."""


class SingleStatuses:
    """Finds statuses of single lookups; for one event loop.

    ``read`` returns what is stored, in a thread; ``ask`` asks for up to ``most`` numbers, stores and returns the
    answers; ``may_ask`` says whether that makes sense now; ``is_fresh`` whether a status is new enough.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        read: Callable[[Sequence[int]], StoredStatuses],
        ask: Callable[[Sequence[int]], Awaitable[Statuses]],
        most: int,
        may_ask: Callable[[], bool],
        is_fresh: Callable[[KnownStatus], bool],
    ) -> None:
        self._clock = clock
        self._read = read
        self._ask = ask
        self._may_ask = may_ask
        self._is_fresh = is_fresh
        self._memory: OrderedDict[int, tuple[KnownStatus, float]] = OrderedDict()
        self._reads: Microbatcher[int, tuple[KnownStatus | None, bool]] = Microbatcher(
            self._read_stored, _NUMBERS_PER_READ
        )
        self._calls: Microbatcher[int, asyncio.Task[Statuses]] = Microbatcher(self._begin_call, most, lambda: most)
        self._slots = asyncio.Semaphore(_PARALLEL_CALLS)
        self._running: dict[asyncio.Task[Statuses], Sequence[int]] = {}
        self._asking: dict[int, asyncio.Task[Statuses]] = {}
        self._late: asyncio.Task[StoredStatuses] | None = None

    async def find(self, number: int) -> KnownStatus | None:
        """Return the fresh status of a number if there is one within :data:`WAIT_S`, else the newest known one."""
        if (fresh := self._recall(number)) is not None:
            return fresh
        stored, is_stale = await self._reads.submit(number)
        if not (is_stale and self._may_ask()):
            return stored
        answer = None
        async with anyio.create_task_group() as group:
            group.start_soon(self._cancel_after_wait, group.cancel_scope)
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
        if found is None or self._clock.now() - found[1] > _REREAD_AFTER_S or not self._is_fresh(found[0]):
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
        """Return the stored status of each number, and whether to ask for it.

        Another process may lock the store for longer than :data:`WAIT_S`: then what is in memory is used, and no
        further read begins until that one ends.
        """
        if self._late is None or self._late.done():
            read, wait = asyncio.create_task(self._read_in_thread(numbers)), asyncio.create_task(self._sleep())
            await asyncio.wait([read, wait], return_when=asyncio.FIRST_COMPLETED)
            wait.cancel()
            if read.done():
                stored = read.result()
                return [(stored.known.get(number), number in stored.stale) for number in numbers]
            self._late = read
            _log.warning("the status store was not read within %g s, so lookups do without until it is", WAIT_S)
        return [(self._memory[number][0] if number in self._memory else None, False) for number in numbers]

    async def _read_in_thread(self, numbers: Sequence[int]) -> StoredStatuses:
        stored = await anyio.to_thread.run_sync(self._read, numbers)
        self._memorise(stored.known)
        return stored

    async def _find_asked(self, number: int) -> KnownStatus | None:
        call = self._asking.get(number) or await self._calls.submit(number)
        await asyncio.wait([call])  # who waits no longer leaves the call alone: its answer is still stored
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
        answers = await self._ask(numbers)
        self._memorise(answers)
        return answers

    def _end_call(self, call: asyncio.Task[Statuses]) -> None:
        for number in self._running.pop(call):
            if self._asking.get(number) is call:
                del self._asking[number]
        self._slots.release()
        if not call.cancelled() and (error := call.exception()) is not None:
            _log.error("statuses are not asked for: %s", loggable_message(error))

    async def _cancel_after_wait(self, scope: anyio.CancelScope) -> None:
        await self._sleep()
        scope.cancel()

    async def _sleep(self) -> None:
        await self._clock.sleep(WAIT_S)
