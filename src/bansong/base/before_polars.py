"""What `import bansong` does about polars without importing it, which takes longer than `bansong --help` may take.

It registers the namespace ``brn`` now, or once polars is imported (docs/decisions/003); and it refuses queries in
processes that were forked after polars had started its threads: they would hang.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
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


class _AfterPolars:
    """An import hook that finds polars as usual and registers the namespace once polars is imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "polars":
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (finder.find_spec(fullname, path, target) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_register(module: ModuleType) -> None:
                run(module)
                if self in sys.meta_path:  # kept until now, since ``find_spec`` alone imports nothing
                    sys.meta_path.remove(self)
                register()

            spec.loader.exec_module = run_and_register  # type: ignore[method-assign]
        return spec


def register() -> None:
    """Add the ``brn`` namespace to polars expressions."""
    importlib.import_module("bansong.base.business_number")


def register_with_polars() -> None:
    """Register the namespace now, or as soon as polars is imported."""
    if "polars" in sys.modules:
        register()
    else:
        sys.meta_path.insert(0, _AfterPolars())
