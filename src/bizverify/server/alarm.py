"""A sleep that can be ended: what waits for the next thing to do is told when there is something sooner."""

from __future__ import annotations

import anyio

from bizverify.server.clock import Clock


class Alarm:
    """For one waiting task. A :meth:`ring` while nobody waits is heard by the next :meth:`wait`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._event = anyio.Event()

    def ring(self) -> None:
        """End the wait, this one or the next."""
        self._event.set()

    async def wait(self, seconds: float) -> bool:
        """Wait so many seconds, or until :meth:`ring`; whether it rang."""
        async with anyio.create_task_group() as group:

            async def slept() -> None:
                await self._clock.sleep(seconds)
                group.cancel_scope.cancel()

            group.start_soon(slept)
            await self._event.wait()
            group.cancel_scope.cancel()
        rang = self._event.is_set()
        if rang:
            self._event = anyio.Event()
        return rang
