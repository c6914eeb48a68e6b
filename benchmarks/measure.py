"""Runs commands as whole processes, in turn, and compares medians: machines are noisy, ratios in one run are not."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Figures:
    """Wall seconds and peak memory (MB) of each run of a command."""

    name: str
    seconds: list[float] = field(default_factory=list)
    peaks: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def __str__(self) -> str:
        low, high = min(self.seconds), max(self.seconds)
        return f"{self.name:<34}{self.median:8.2f} s  ({low:.2f} to {high:.2f})  peak {max(self.peaks):7,.0f} MB"


def alternate(commands: dict[str, list[str]], runs: int = 3) -> dict[str, Figures]:
    """Run each command in turn, ``runs`` times after one round that is not counted."""
    figures = {name: Figures(name) for name in commands}
    for place in range(runs + 1):
        for name, command in commands.items():
            seconds, peak = once(command)
            if place:
                figures[name].seconds.append(seconds)
                figures[name].peaks.append(peak)
    return figures


def once(command: list[str], cwd: Path | None = None) -> tuple[float, float]:
    """Run a command; return its wall seconds and its peak memory in MB."""
    with tempfile.TemporaryFile() as said:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said, cwd=cwd)
        _, status, usage = os.wait4(process.pid, 0)  # the kernel's own account of this very process
        seconds = time.perf_counter() - started
        said.seek(0)
        words = said.read().decode()
    process.returncode = os.waitstatus_to_exitcode(status)
    if status:
        sys.exit(f"{' '.join(command)} failed: {words}")
    return seconds, usage.ru_maxrss / 1024


def bizverify(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "bizverify", *map(str, arguments)]


@contextmanager
def fake_service(latency: float = 0.0) -> Iterator[str]:
    """Yield the address of a fake service in a process of its own; its key is ``benchmark-key``."""
    arguments = ["--api-key", "benchmark-key", "--count-only", "--forget-fetched", "--verify-seconds", str(latency)]
    command = [sys.executable, "-m", "bizverify.testing", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.terminate()
