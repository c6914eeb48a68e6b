"""Where the time of ``bansong enrich FILE --registry R`` goes: stages that add up to the whole process.

    python benchmarks/stages.py FILE REGISTRY OUTPUT [GAZETTEER]

Prints one JSON object, stage → [CPU seconds, wall seconds]; ``benchmarks/scale.py`` makes a table of it. The run is the
command's own, in this process, with a clock around the calls of :data:`CALLS`. What is one query is divided afterwards:
the frames that pass the seams of :data:`SEAMS` are collected, each with all that comes before it, and a stage is what
its seam takes more than the one before. A call in a thread beside the query has CPU seconds and no wall seconds.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import polars as pl

import bansong.cli.app
from bansong.engine import local
from bansong.engine.registry import Registry
from bansong.engine.risk.scorecard import Scorecard
from bansong.run import outputs
from bansong.run import table as engine_step
from bansong.run import table as table_run
from bansong.tables.csv.format import CsvVerbs

QUERY = "answers counted and written"
CALLS: tuple[tuple[str, object, str], ...] = (
    ("dialect and line check", CsvVerbs, "read"),
    ("cross-row features", engine_step, "find_cross_row_features"),
    (QUERY, table_run, "write_table"),
    ("count of the output", CsvVerbs, "count"),
    ("hash of the input", outputs, "sha256_of"),
)
"""Stage, and the call that is its own: (stage, owner, name)."""
SEAMS: tuple[tuple[str, object, str, Callable[[tuple[Any, ...], Any], pl.LazyFrame]], ...] = (
    ("cells read", CsvVerbs, "read", lambda _, result: result.frame),
    ("records and plan", local.LocalEngine, "answer", lambda given, _: given[1]),
    ("numbers", Registry, "attach", lambda given, _: given[1]),
    ("registry", Registry, "attach", lambda _, result: result),
    ("address", local, "attach", lambda _, result: result),
    ("risk", Scorecard, "assess", lambda _, result: result),
)
"""Stages of the query that :data:`QUERY` runs, in its order, and the frame behind each: (stage, owner, name, frame)."""

ORDER = (
    "start",
    "dialect and line check",
    "hash of the input",
    "cross-row features",
    *(stage for stage, *_ in SEAMS),
    QUERY,
    "count of the output",
    "planning, report, end",
)


@dataclass
class Clock:
    """Seconds of each stage so far, and the frames of the query's stages."""

    spent: dict[str, list[float]] = field(default_factory=dict)
    frames: dict[str, pl.LazyFrame] = field(default_factory=dict)
    threads: dict[int, float] = field(default_factory=dict)
    started: tuple[float, float] | None = None

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add what the block takes to a stage; in the main thread without what calls beside it take meanwhile."""
        here = threading.get_ident() if threading.current_thread() is not threading.main_thread() else None
        cpu, wall = self._now(here)
        if here is None and self.started is None:
            self.started = cpu, wall
        if here is not None:
            self.threads[here] = cpu
        try:
            yield
        finally:
            spent = self.spent.setdefault(name, [0.0, 0.0])
            after, then = self._now(here)
            spent[0] += after - cpu
            spent[1] += then - wall if here is None else 0.0
            if here is not None:
                del self.threads[here]

    def _now(self, thread: int | None) -> tuple[float, float]:
        """CPU seconds of a thread, or of the process without those of the threads that are timed; wall seconds."""
        if thread is not None:
            return time.thread_time(), time.perf_counter()
        finished = sum(spent[0] for spent in self.spent.values() if not spent[1])
        running = sum(_cpu_of(thread) - before for thread, before in dict(self.threads).items())
        return cpu_seconds() - finished - running, time.perf_counter()


def cpu_seconds() -> float:
    """CPU seconds of this process: user and system, all threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _cpu_of(thread: int) -> float:
    return time.clock_gettime(time.pthread_getcpuclockid(thread))


def watch_calls(clock: Clock) -> None:
    """Put the clock around the calls, and keep the frames that pass the seams."""
    calls = {(owner, name): stage for stage, owner, name in CALLS}
    for owner, name in {*calls, *((owner, name) for _, owner, name, _ in SEAMS)}:
        frames = [(stage, frame) for stage, other, called, frame in SEAMS if (other, called) == (owner, name)]
        setattr(owner, name, _watched(getattr(owner, name), clock, calls.get((owner, name)), frames))


def _watched(function: Any, clock: Clock, stage: str | None, frames: list[tuple[str, Any]]) -> Any:
    @wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        if stage is None:
            result = function(*given, **named)
        else:
            with clock.stage(stage):
                result = function(*given, **named)
        clock.frames |= {name: frame(given, result) for name, frame in frames}
        return result

    return call


def divide_query(clock: Clock) -> dict[str, list[float]]:
    """Collect what each seam has passed, in the order of the seams; return what each takes more than the one before."""
    found, before = {}, [0.0, 0.0]
    for stage, *_ in SEAMS:
        cpu, wall = cpu_seconds(), time.perf_counter()
        clock.frames[stage].select(pl.all().null_count()).collect(engine="streaming")
        taken = [cpu_seconds() - cpu, time.perf_counter() - wall]
        found[stage] = [after - earlier for after, earlier in zip(taken, before, strict=True)]
        before = taken
    whole = clock.spent[QUERY]
    return found | {QUERY: [all_ - part for all_, part in zip(whole, before, strict=True)]}


def main() -> None:
    born = time.time() - _age()
    source, registry, output, *gazetteer = sys.argv[1:]
    sys.argv[1:] = ["enrich", source, "--registry", registry, "-o", output, "--progress", "none"]
    sys.argv += [f"--gazetteer={path}" for path in gazetteer]
    clock = Clock()
    watch_calls(clock)
    try:
        bansong.cli.app.main()
    except SystemExit as end:
        if end.code:
            raise
    total = [cpu_seconds(), time.time() - born]
    assert clock.started is not None
    start_cpu, start_wall = clock.started[0], total[1] - (time.perf_counter() - clock.started[1])
    stages = {"start": [start_cpu, start_wall]} | clock.spent
    rest = [all_ - sum(column) for all_, column in zip(total, zip(*stages.values(), strict=True), strict=True)]
    stages |= divide_query(clock) | {"planning, report, end": rest}
    print(json.dumps({name: stages[name] for name in ORDER}))


def _age() -> float:
    """Wall seconds since this process began."""
    with open("/proc/self/stat") as file:  # noqa: PTH123 - no path of a user's
        started = int(file.read().rpartition(")")[2].split()[19])
    with open("/proc/uptime") as file:  # noqa: PTH123
        return float(file.read().split()[0]) - started / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
