"""From blocking code into async code and back, so that Ctrl-C settles what is under way instead of cutting it off."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from bizverify.waiting import Task, own_loop

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal

Result = TypeVar("Result")


class Brake:
    """Stops a run from another thread: :meth:`pull` may be called at any time, from anywhere, more than once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stop: Callable[[], None] | None = None
        self._thread = 0
        self._portal: BlockingPortal | None = None
        self._pulled = False

    def pull(self) -> None:
        """Stop what is running, or what will."""
        with self._lock:
            self._pulled, stop, portal = True, self._stop, self._portal
        if stop is None:
            return
        if portal is None or self._thread == threading.get_ident():
            stop()
        else:  # an event loop is not to be touched, and would not wake, from another thread
            with suppress(RuntimeError):  # it has just ended
                portal.start_task_soon(stop)

    def leads_through(self, portal: BlockingPortal | None) -> None:
        """Say by which way to reach the thread that will say what a pull does."""
        with self._lock:
            self._portal = portal

    def leads_to(self, stop: Callable[[], None] | None) -> None:
        """Say what a pull does, always in this thread; at once if it was pulled before."""
        with self._lock:
            self._stop, self._thread, pulled = stop, threading.get_ident(), self._pulled
        if pulled and stop is not None:
            stop()


def run_async(main: Callable[[], Awaitable[Result]], brake: Brake) -> Result:
    """Run async code in an event loop of its own thread, whatever loop runs in this one (a notebook's, say).

    The first Ctrl-C pulls the brake and waits for ``main`` to end in good order; the second cancels it. Either way
    ``KeyboardInterrupt`` is raised when it has ended, unless it raised something itself.
    """
    presses = 0
    with own_loop() as portal:
        brake.leads_through(portal)
        task = Task(portal, main)
        while True:
            try:
                result = task.wait()
                break
            except KeyboardInterrupt:
                presses += 1
                brake.pull() if presses == 1 else task.cancel()
            except CancelledError:
                raise KeyboardInterrupt from None
    brake.leads_through(None)
    if presses:
        raise KeyboardInterrupt
    return result
