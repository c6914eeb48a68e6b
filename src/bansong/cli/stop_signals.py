"""Signals that stop a command: SIGTERM and SIGHUP act like Ctrl-C, and a :class:`StopRequest` records them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType

from bansong.cancellation import StopRequest


def let_stop_signals_interrupt() -> StopRequest:
    """Let SIGTERM and SIGHUP act like Ctrl-C, so that a stopped job cleans up; return what records them.

    Python handlers run only after a query, and polars handles SIGINT alone. So the two are blocked in every thread, and
    a thread of their own turns them into SIGINT. Ignored signals stay ignored: SIGHUP under ``nohup``, SIGINT in a
    background job; the latter is also blocked and discarded, because polars traps it anyway. Call this before polars is
    imported: its SIGINT handler calls the one before it.
    """
    stop = StopRequest(interrupt_main_thread)
    ignored = {one for one in (signal.SIGINT,) if signal.getsignal(one) == signal.SIG_IGN}
    if not hasattr(signal, "pthread_sigmask"):  # Windows has neither these signals nor masks
        if not ignored:
            signal.signal(signal.SIGINT, stop.handle_signal)
        return stop
    stopping = {one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) != signal.SIG_IGN}
    signal.signal(signal.SIGINT, stop.handle_signal)
    if ignored:
        signal.signal(signal.SIGURG, _wake)
    signal.pthread_sigmask(signal.SIG_BLOCK, stopping | ignored)
    interrupt = _interrupt_though_blocked if ignored else _interrupt
    arguments = (stop, stopping, ignored, interrupt)
    threading.Thread(target=_forward, args=arguments, name="stop-signals", daemon=True).start()
    return stop


def _forward(
    stop: StopRequest, stopping: set[signal.Signals], ignored: set[signal.Signals], interrupt: Callable[[int], None]
) -> None:
    main_thread = threading.main_thread().ident
    while main_thread is not None and stopping | ignored:
        if signal.sigwait(stopping | ignored) in stopping:
            stop.note()
            if not stop.is_held:
                interrupt(main_thread)


def interrupt_main_thread() -> None:
    """Act like Ctrl-C from another thread, also in a background job that ignores Ctrl-C."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        signal.raise_signal(signal.SIGINT)
    elif (main_thread := threading.main_thread().ident) is not None:
        is_blocked = signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
        (_interrupt_though_blocked if is_blocked else _interrupt)(main_thread)


def _interrupt(main_thread: int) -> None:
    signal.pthread_kill(main_thread, signal.SIGINT)


def _interrupt_though_blocked(main_thread: int) -> None:
    """Raise SIGINT in this thread, the only one that accepts it, and wake the main thread."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.raise_signal(signal.SIGINT)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    signal.pthread_kill(main_thread, signal.SIGURG)


def _wake(number: int, frame: FrameType | None) -> None:
    """A Python handler makes a signal end a wait; then other pending handlers run, too."""
