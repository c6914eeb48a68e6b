"""What the command line's process owes its surroundings: streams that exist, signals that are heeded."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Collection


def open_closed_streams() -> None:
    """Lead streams that the caller closed (``2>&-``) nowhere, so that no file opened later gets their number."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), "r" if name == "stdin" else "w"))


def let_stop_signals_interrupt() -> None:
    """Let SIGTERM and SIGHUP do what Ctrl-C does, so that a stopped job tidies up.

    A Python handler would run only when the query is over, and of the signals polars heeds SIGINT alone. So the two
    are blocked, in every thread started from here on, and a thread of their own turns them into SIGINT. What the caller
    had ignored (``nohup``) stays ignored.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows has neither these signals nor masks
        return
    signals = {one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) != signal.SIG_IGN}
    if not signals:
        return
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # in a background job of a script; polars traps it anyway
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    threading.Thread(target=_forward, args=(signals,), name="stop-signals", daemon=True).start()


def _forward(signals: Collection[signal.Signals]) -> None:
    main_thread = threading.main_thread().ident
    while main_thread is not None:
        signal.sigwait(signals)
        signal.pthread_kill(main_thread, signal.SIGINT)
