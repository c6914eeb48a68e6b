"""What the command line's process owes its surroundings: streams that exist, signals that are heeded."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from io import TextIOWrapper
from types import FrameType


def open_closed_streams() -> None:
    """Lead streams that the caller closed (``2>&-``) nowhere, so that no file opened later gets their number."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), "r" if name == "stdin" else "w"))


def escape_what_stdout_lacks() -> None:
    """Print characters that the encoding of stdout (CP949, CP1252) lacks as escapes, as Python does on stderr."""
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def let_stop_signals_interrupt() -> None:
    """Let SIGTERM and SIGHUP do what Ctrl-C does, so that a stopped job tidies up.

    A Python handler would run only when the query is over, and of the signals polars heeds SIGINT alone. So the two
    are blocked, in every thread started from here on, and a thread of their own turns them into SIGINT. What the caller
    had ignored stays ignored: SIGHUP under ``nohup``, SIGINT in a background job of a script. The latter is blocked and
    thrown away as well, because polars traps it whatever was set before.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows has neither these signals nor masks
        return
    stopping = {one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) != signal.SIG_IGN}
    ignored = {one for one in (signal.SIGINT,) if signal.getsignal(one) == signal.SIG_IGN}
    if ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGURG, _wake)
    signal.pthread_sigmask(signal.SIG_BLOCK, stopping | ignored)
    interrupt = _interrupt_though_blocked if ignored else _interrupt
    threading.Thread(target=_forward, args=(stopping, ignored, interrupt), name="stop-signals", daemon=True).start()


def _forward(stopping: set[signal.Signals], ignored: set[signal.Signals], interrupt: Callable[[int], None]) -> None:
    main_thread = threading.main_thread().ident
    while main_thread is not None and stopping | ignored:
        if signal.sigwait(stopping | ignored) in stopping:
            interrupt(main_thread)


def _interrupt(main_thread: int) -> None:
    signal.pthread_kill(main_thread, signal.SIGINT)


def _interrupt_though_blocked(main_thread: int) -> None:
    """Raise SIGINT in this thread, the only one that can let it in, and end what the main thread waits for."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.raise_signal(signal.SIGINT)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    signal.pthread_kill(main_thread, signal.SIGURG)


def _wake(number: int, frame: FrameType | None) -> None:
    """Do nothing: a handler in Python is what makes a signal end a wait, and then those of others run, too."""
