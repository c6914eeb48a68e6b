"""The command line: parse, print, exit codes. No logic, and nothing heavy is imported before it is needed."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Collection
from contextlib import suppress

import click

from bizverify import __version__
from bizverify.cli.console import INTERRUPTED, set_up_logging
from bizverify.cli.data import data
from bizverify.cli.enrich import enrich, plan
from bizverify.cli.verify import verify
from bizverify.errors import BizverifyError

__all__ = ["app", "main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="bizverify")
def app() -> None:
    """Verify a file of Korean business customers before you mail it.

    bizverify finds business number, name and address in a CSV, Excel, JSON or Parquet file, verifies every row and
    writes the same file back with status, bounce probability, grade, action and reasons.

    Exit codes: 0 done, every row accounted for; 2 usage or unreadable input; 3 finished, but rows failed or in doubt;
    4 refused; 5 paused, resumable; 130 interrupted, nothing published. 1 is a defect of bizverify: nothing published.
    """


app.add_command(enrich)
app.add_command(plan)
app.add_command(verify)
app.add_command(data)


def main() -> None:
    """Run the command line; errors raised on purpose become one line on stderr and an exit code."""
    _open_closed_streams()
    set_up_logging()
    _let_stop_signals_interrupt()
    try:
        sys.exit(app.main(standalone_mode=False) or 0)
    except (click.exceptions.Abort, KeyboardInterrupt):
        _fail("interrupted; nothing was published", INTERRUPTED)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except BizverifyError as error:
        _fail(str(error), error.exit_code)


def _open_closed_streams() -> None:
    """Lead streams that the caller closed (``2>&-``) nowhere, so that no file opened later gets their number."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), "r" if name == "stdin" else "w"))


def _let_stop_signals_interrupt() -> None:
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


def _fail(message: str, code: int) -> None:
    with suppress(OSError):  # of a terminal that is gone
        click.echo(f"bizverify: {message}", err=True)
    sys.exit(code)
