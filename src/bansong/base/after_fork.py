"""Refuses queries in a process that was forked after polars had started its threads: they would hang."""

from __future__ import annotations

import os
import sys
from typing import Final

from bansong.base.errors import Problem, UsageError

FORKED_AFTER_POLARS: Final = Problem(
    "options.forked_after_polars",
    "process {process} was forked after polars had run in process {other}, whose "
    "threads it does not have: a query would hang; start workers anew instead: "
    "multiprocessing.get_context('spawn'), for ProcessPoolExecutor as mp_context=",
)

_process_with_threads: int | None = None


def refuse_after_fork() -> None:
    """Raise :class:`UsageError` if this process was forked from one in which polars had run, also for other code."""
    if _process_with_threads in (None, os.getpid()):
        return
    raise UsageError(FORKED_AFTER_POLARS, process=os.getpid(), other=_process_with_threads)


def _note_threads() -> None:
    global _process_with_threads
    if "polars" in sys.modules and _polars_has_threads():
        _process_with_threads = os.getpid()


def _polars_has_threads() -> bool:
    # without thread names, assume that polars has threads once it is loaded
    from pathlib import Path

    names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm") if path.exists()]
    return not names or any(name.startswith("polars-") and name[7:].strip().isdigit() for name in names)


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(before=_note_threads)
