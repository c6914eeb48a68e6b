"""Signals of the tests, and of the processes they start: the usual ones, whatever shell runs the tests."""

from __future__ import annotations

import signal
import threading

IGNORING = ("sh", "-c", 'trap "" INT HUP; exec "$@"', "sh")
"""What stands before a command that is to begin as under `nohup` in a background job of a script."""


def heed_stop_signals() -> None:
    """Handle SIGINT and SIGHUP where they are ignored (`nohup`, background jobs), which children would inherit.

    A child begins with the default for a signal that has a handler here. SIGINT raises KeyboardInterrupt again. SIGHUP
    has a handler that does nothing, since who writes `nohup` wants the tests to outlive the terminal.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)
