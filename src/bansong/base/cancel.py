"""Run async code from blocking code, in the event loop of a thread; cancel it on Ctrl-C."""

from __future__ import annotations

import _thread
import os
import sys
import threading
import warnings
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext, suppress
from contextvars import copy_context
from functools import partial
from importlib.util import find_spec
from queue import Empty, SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar

if TYPE_CHECKING:
    import asyncio

    from anyio import CancelScope
    from anyio.from_thread import BlockingPortal

R = TypeVar("R")
_SIGNAL_POLL_S: Final = 0.1  # on some systems a signal does not end a wait without timeout
_JOIN_TIMEOUT_S: Final = 1.0


class CancelToken:
    """Cancels a run from any thread: no new request is sent, and the run waits for answers under way."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handler: Callable[[], None] | None = None
        self._handler_thread = 0
        self._portal: BlockingPortal | None = None
        self._cancelled = False

    def cancel(self) -> None:
        """Cancel the current run, or else the next one."""
        with self._lock:
            self._cancelled, handler, portal = True, self._handler, self._portal
        if handler is None:
            return
        if portal is None or self._handler_thread == threading.get_ident():
            handler()
        else:  # a call from another thread would neither be safe nor wake the event loop
            with suppress(RuntimeError):  # the loop has just ended
                portal.start_task_soon(handler)

    def set_portal(self, portal: BlockingPortal | None) -> None:
        """Set the portal to the event loop in which :meth:`cancel` calls the handler."""
        with self._lock:
            self._portal = portal

    def set_handler(self, handler: Callable[[], None] | None) -> None:
        """Set the function that :meth:`cancel` calls in this thread. If the token is cancelled, call it at once."""
        with self._lock:
            self._handler, self._handler_thread, cancelled = handler, threading.get_ident(), self._cancelled
        if cancelled and handler is not None:
            handler()


class StopRequest:
    """Records that the user asked to stop this process (SIGINT), even if the KeyboardInterrupt gets lost."""

    # polars turns a KeyboardInterrupt while building a query into its own error: runs check between steps

    def __init__(self, interrupt: Callable[[], None] | None = None) -> None:
        self._interrupt = interrupt
        self._own_interrupts = 0
        self._signals = 0
        self._signals_held = 0
        self.is_made = False
        self.is_held = False

    def note(self) -> None:
        """Record a request to stop that did not come through :meth:`handle_signal`."""
        self.is_made = True

    def check(self) -> None:
        """Raise KeyboardInterrupt if a request was made."""
        if self.is_made:
            raise KeyboardInterrupt

    @contextmanager
    def hold_back(self) -> Iterator[None]:
        """Delay KeyboardInterrupt to the end of the block. A second Ctrl-C is not delayed."""
        self._signals_held, self.is_held = 0, True
        try:
            yield
        finally:
            self.is_held = False

    def interrupt(self) -> None:
        """Interrupt the main thread without recording a request of the user."""
        if self._interrupt is not None:
            self._own_interrupts += 1
            self._interrupt()

    def handle_signal(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - as handlers are called
        """Record a SIGINT in the main thread, and raise KeyboardInterrupt unless :meth:`hold_back` delays it."""
        self._signals += 1
        if self._own_interrupts:
            self._own_interrupts -= 1
        else:
            self.is_made = True
        if self.is_held:
            self._signals_held += 1
            if self._signals_held == 1:
                return
        elif self._signals == 1 and isinstance(sys.exc_info()[1], KeyboardInterrupt):
            return  # polars raised it for this signal already; a second one would interrupt the cleaning up
        raise KeyboardInterrupt


class PortalTask(Generic[R]):
    """A coroutine function to run in a portal's event loop. :meth:`wait` starts it."""

    # ``concurrent.futures.wait`` is unsafe in a thread that receives signals: after a KeyboardInterrupt while it holds
    # the future's lock, the event loop waits for ever. ``SimpleQueue``, in C, has no such gap. Ctrl-C may also come
    # before the portal has returned a future, though the task runs already: the task keeps its own scope and outcome.

    def __init__(self, portal: BlockingPortal, main: Callable[[], Awaitable[R]]) -> None:
        self._portal, self._main = portal, main
        self._scope: CancelScope | None = None
        self._outcome: Callable[[], R] = _raise_cancelled
        self._is_submitted = self._is_cancelled = self.is_over = False
        self._pulse: SimpleQueue[None] = SimpleQueue()

    async def _run(self) -> None:
        import asyncio  # takes 12 ms, and most runs have no event loop

        from anyio import CancelScope

        if self._scope is not None:
            return  # submitted twice, as Ctrl-C came in between
        asyncio.get_running_loop().set_exception_handler(_log_unless_interrupt)
        try:
            with CancelScope() as self._scope:
                if not self._is_cancelled:
                    result = await self._main()
                    self._outcome = lambda: result
        except BaseException as error:
            self._outcome = partial(_raise, error)
            raise
        finally:
            self.is_over = True
            self._pulse.put(None)

    def wait(self) -> R:
        """Return the result, or raise the task's error; after a cancellation, ``concurrent.futures.CancelledError``.

        After a KeyboardInterrupt it may be called again.
        """
        if not self._is_submitted:
            self._portal.start_task_soon(self._run)
            self._is_submitted = True
        while not self.is_over:
            with suppress(Empty):
                self._pulse.get(timeout=_SIGNAL_POLL_S)
        return self._outcome()

    def cancel(self) -> None:
        self._is_cancelled = True
        if self._scope is not None:
            with suppress(RuntimeError):  # the loop has just ended
                self._portal.start_task_soon(self._scope.cancel)


def _is_interrupt(error: object) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(KeyboardInterrupt) is not None
    return isinstance(error, KeyboardInterrupt)


def _log_unless_interrupt(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if not _is_interrupt(context.get("exception")):
        loop.default_exception_handler(context)


def loop_options() -> dict[str, Any]:
    """Return the options of an event loop: uvloop if it is installed."""
    return {"use_uvloop": find_spec("uvloop") is not None}


def run_until_interrupted(main: Callable[[], Awaitable[R]]) -> R:
    """Run async code in a new thread; Ctrl-C cancels it."""
    # without a portal: its locks might stay taken after Ctrl-C
    import asyncio

    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[Any]]] = []
    ended: list[Callable[[], R]] = []
    pulse: SimpleQueue[None] = SimpleQueue()

    async def run() -> R:
        task = asyncio.ensure_future(main())
        running.append((asyncio.get_running_loop(), task))
        return await task

    def run_in_thread() -> None:
        try:
            result = asyncio.run(run())
        except BaseException as error:
            ended.append(partial(_raise, error))
        else:
            ended.append(lambda: result)
        finally:
            pulse.put(None)

    _thread.start_new_thread(copy_context().run, (run_in_thread,))
    try:
        while not ended:
            with suppress(Empty):
                pulse.get(timeout=_SIGNAL_POLL_S)
    except KeyboardInterrupt:
        while not ended:
            for loop, task in running:
                with suppress(RuntimeError):  # the loop has just ended
                    loop.call_soon_threadsafe(task.cancel)
            with suppress(Empty):
                pulse.get(timeout=_SIGNAL_POLL_S)
        raise
    return ended[0]()


def _raise(error: BaseException) -> NoReturn:
    raise error


def _raise_cancelled() -> NoReturn:
    raise CancelledError


class LoopThread:
    """A daemon thread with an event loop, in which ``resource`` is open until :meth:`close`.

    A forked process lacks the thread and leaves the resource alone. As a context manager it gives the portal.
    """

    # not ``start_blocking_portal``: an interrupt before that has a portal makes it wait for ever

    def __init__(self, name: str, resource: AbstractAsyncContextManager[object]) -> None:
        self._abort, self._process = False, os.getpid()
        self._ready: Future[BlockingPortal] = Future()
        self._thread = threading.Thread(target=self._run, args=[resource], name=name, daemon=True)
        try:
            self._thread.start()
            self.portal = self._ready.result()
        except BaseException:  # interrupted: the cancelled future ends the thread
            if not self._ready.cancel() and self._ready.exception() is None:
                self.portal = self._ready.result()
                self._signal()
            with suppress(RuntimeError):  # it has not started yet
                self._thread.join(_JOIN_TIMEOUT_S)
            raise

    def __enter__(self) -> BlockingPortal:
        return self.portal

    def __exit__(self, kind: object, *_: object) -> None:
        self._abort = kind is not None
        self.close()

    @property
    def is_of_this_process(self) -> bool:
        return os.getpid() == self._process

    def close(self) -> None:
        """Wait for calls under way in other threads, then end."""
        if not self.is_of_this_process:
            return
        self._signal()
        self._thread.join()

    def abandon(self, name: str) -> None:
        """End without waiting, and warn like an unclosed file: for the garbage collector, and at exit."""
        if not self.is_of_this_process:
            return
        self._abort = True
        self._signal()
        if threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_TIMEOUT_S)
        warnings.warn(f"unclosed {name}", ResourceWarning, stacklevel=2)

    def _run(self, resource: AbstractAsyncContextManager[object]) -> None:
        import anyio

        try:
            anyio.run(self._serve, resource, backend_options=loop_options())
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(error)

    async def _serve(self, resource: AbstractAsyncContextManager[object]) -> None:
        import anyio
        from anyio.from_thread import BlockingPortal

        self._stop = anyio.Event()
        async with resource, BlockingPortal() as portal:
            self._ready.set_result(portal)
            await self._stop.wait()
            await portal.stop(cancel_remaining=self._abort)

    def _signal(self) -> None:
        stop: Any = self._stop.set
        if threading.current_thread() is self._thread:  # the garbage collector may run anywhere
            stop()
            return
        with suppress(RuntimeError):  # it has ended already
            self.portal.start_task_soon(stop)


def run_async(main: Callable[[], Awaitable[R]], cancel: CancelToken) -> R:
    """Run async code in the event loop of another thread, since this one may already run a loop (a notebook's)."""
    # The first Ctrl-C cancels the token and waits for ``main`` to end in good order; the second cancels ``main``.
    presses = 0
    with LoopThread("bansong-run", nullcontext()) as portal:
        cancel.set_portal(portal)
        task = PortalTask(portal, main)
        while True:
            try:
                result = task.wait()
                break
            except KeyboardInterrupt:
                if task.is_over:  # polars raised it during a query in the loop's thread
                    raise
                presses += 1
                cancel.cancel() if presses == 1 else task.cancel()
            except CancelledError:
                raise KeyboardInterrupt from None
            except BaseExceptionGroup as errors:
                if _is_interrupt(errors):
                    raise KeyboardInterrupt from None
                raise
    cancel.set_portal(None)
    if presses:
        raise KeyboardInterrupt
    return result
