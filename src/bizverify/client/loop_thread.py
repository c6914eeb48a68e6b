"""An event loop in a thread of its own, in which a client is open: what the blocking client calls into."""

from __future__ import annotations

import os
import warnings
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from threading import Thread, current_thread
from typing import Any, Final

import anyio
from anyio.from_thread import BlockingPortal

from bizverify.cancellation import loop_options

_PATIENCE: Final = 1.0


class LoopThread:
    """Enters ``resource`` in an event loop of its own, and leaves it in :meth:`close`.

    The thread is a daemon: a client that nobody closes does not keep the interpreter from ending. A forked process has
    no such thread: there the resource is left as it is.
    """

    def __init__(self, resource: AbstractAsyncContextManager[object]) -> None:
        self._abort, self._process = False, os.getpid()
        self._ready: Future[BlockingPortal] = Future()
        self._thread = Thread(target=self._run, args=[resource], name="bizverify-client", daemon=True)
        self._thread.start()
        try:
            self.portal = self._ready.result()
        except BaseException:  # interrupted: the thread, if it gets so far, finds that nobody waits for it
            self._ready.cancel()
            self._thread.join(_PATIENCE)
            raise

    @property
    def is_of_this_process(self) -> bool:
        """Whether the thread is one of this process, not of the one it was forked from."""
        return os.getpid() == self._process

    def close(self) -> None:
        """Leave the resource, when the calls that are under way in other threads are over, and end the thread."""
        if not self.is_of_this_process:
            return
        self._signal()
        self._thread.join()

    def abandon(self, name: str) -> None:
        """End what nobody has closed, and warn of it as of a file; called by the garbage collector and at exit."""
        if not self.is_of_this_process:
            return
        self._abort = True
        self._signal()
        if current_thread() is not self._thread:
            self._thread.join(_PATIENCE)
        warnings.warn(f"unclosed {name}", ResourceWarning, stacklevel=2)

    def _run(self, resource: AbstractAsyncContextManager[object]) -> None:
        try:
            anyio.run(self._serve, resource, backend_options=loop_options())
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(error)

    async def _serve(self, resource: AbstractAsyncContextManager[object]) -> None:
        self._stop = anyio.Event()
        async with resource, BlockingPortal() as portal:
            self._ready.set_result(portal)
            await self._stop.wait()
            await portal.stop(cancel_remaining=self._abort)

    def _signal(self) -> None:
        stop: Any = self._stop.set
        if current_thread() is self._thread:  # the garbage collector may run anywhere
            stop()
            return
        with suppress(RuntimeError):  # it has ended already
            self.portal.start_task_soon(stop)
