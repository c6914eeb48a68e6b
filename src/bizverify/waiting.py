"""Waiting for async code from a thread that Ctrl-C may interrupt at any moment."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, suppress
from importlib.util import find_spec
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal

R = TypeVar("R")

_LOOK: Final = 0.1


def loop_options() -> dict[str, Any]:
    """Return anyio's options for an event loop of our own: asyncio's, or uvloop's where it is installed (``fast``)."""
    return {"use_uvloop": find_spec("uvloop") is not None}


def own_loop() -> AbstractContextManager[BlockingPortal]:
    """Start an event loop in a thread of its own; see :func:`loop_options`."""
    from anyio.from_thread import start_blocking_portal

    return start_blocking_portal(backend_options=loop_options())


class Task(Generic[R]):
    """A coroutine function that runs in a portal's event loop.

    ``concurrent.futures.wait`` is not for a thread that signals reach: ``KeyboardInterrupt`` may come between taking a
    lock of the future and the ``with`` that would give it back, and the event loop then waits for that lock for ever.
    Here none is taken before the task is over: ``SimpleQueue`` is written in C and interrupted as a whole or not.
    """

    def __init__(self, portal: BlockingPortal, main: Callable[[], Awaitable[R]]) -> None:
        self._main = main
        self._over = False
        self._pulse: SimpleQueue[None] = SimpleQueue()
        self._future = portal.start_task_soon(self._run)

    async def _run(self) -> R:
        try:
            return await self._main()
        finally:
            self._over = True
            self._pulse.put(None)

    def wait(self) -> R:
        """Return the result, or raise what the task raised (``CancelledError`` of futures if it was cancelled)."""
        while not self._over:  # waited for without end, a signal would not be seen on every system
            with suppress(Empty):
                self._pulse.get(timeout=_LOOK)
        return self._future.result()

    def cancel(self) -> None:
        """Cancel the task; it may still end in good order."""
        self._future.cancel()
