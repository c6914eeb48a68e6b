"""Runs commands as whole processes, in turn, and compares medians: machines are noisy, ratios in one run are not."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple


class Usage(NamedTuple):
    """What a process took: wall seconds, CPU seconds of all its threads (user and system), peak memory in MB."""

    seconds: float
    cpu: float
    peak: float


@dataclass
class Figures:
    """What each run of a command took."""

    name: str
    runs: list[Usage] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The median of the wall seconds."""
        return statistics.median(run.seconds for run in self.runs)

    @property
    def cpu(self) -> float:
        """The median of the CPU seconds."""
        return statistics.median(run.cpu for run in self.runs)

    def __str__(self) -> str:
        seconds, peak = [run.seconds for run in self.runs], max(run.peak for run in self.runs)
        spread = f"({min(seconds):.2f} to {max(seconds):.2f})"
        return f"{self.name:<34}{self.median:8.2f} s  {spread}  CPU {self.cpu:7.2f} s  peak {peak:7,.0f} MB"


def print_ratios(figures: dict[str, Figures]) -> Figures:
    """Print each command beside the first one, the baseline, and return that."""
    base, *others = figures.values()
    print(f"{len(base.runs)} runs each, in turn; {os.cpu_count()} CPUs, polars {version('polars')}")
    print(base)
    for figure in others:
        print(f"{figure}  = {figure.median / base.median:.2f}x, CPU {figure.cpu / base.cpu:.2f}x")
    return base


def with_bytecode() -> dict[str, str]:
    """Return an environment in which Python keeps its bytecode, as in an installed package: compiling takes 0.2 s."""
    kept = {"PYTHONPYCACHEPREFIX": str(Path(tempfile.gettempdir(), "bansong-bytecode"))}
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | kept


def alternate(commands: dict[str, list[str]], runs: int = 3) -> dict[str, Figures]:
    """Run each command in turn, ``runs`` times after one round that is not counted."""
    figures = {name: Figures(name) for name in commands}
    for place in range(runs + 1):
        for name, command in commands.items():
            usage = once(command)
            if place:
                figures[name].runs.append(usage)
    return figures


LAUNCHER = """
import json, os, subprocess, sys, time
started = time.perf_counter()
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
seconds = time.perf_counter() - started
print(json.dumps([status, seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024]))
"""


def once(command: list[str], cwd: Path | None = None) -> Usage:
    """Run a command; return what it took, as the kernel accounts for it.

    It is started by a small process: Linux counts the memory of the process that starts another as the other's peak.
    """
    launch = [sys.executable, "-S", "-c", LAUNCHER, *command]
    said = subprocess.run(launch, capture_output=True, text=True, cwd=cwd, check=True, env=with_bytecode())
    status, seconds, cpu, peak = json.loads(said.stdout)
    if status:
        sys.exit(f"{' '.join(command)} failed: {said.stderr}")
    return Usage(seconds, cpu, peak)


def bansong(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "bansong", *map(str, arguments)]


@contextmanager
def fake_service(latency: float = 0.0) -> Iterator[str]:
    """Yield the address of a fake service in a process of its own; its key is ``benchmark-key``."""
    arguments = ["--api-key", "benchmark-key", "--count-only", "--forget-fetched", "--verify-seconds", str(latency)]
    command = [sys.executable, "-m", "bansong.testing", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.terminate()
