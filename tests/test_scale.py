"""A bounded run at scale: flat memory where rows stream. Not in the default suite (``pytest -m scale``)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT

pytestmark = pytest.mark.scale

sys.path.insert(0, str(ROOT / "benchmarks"))


def peak_memory(folder: Path, rows: int) -> float:
    """MB at the peak of `bizverify enrich` on a CSV of so many rows, with a registry of as many businesses."""
    import scale

    source = folder / f"{rows}.csv"
    scale.make_customers(source, rows)
    registry = scale.make_registry(folder, rows)
    process = subprocess.Popen(
        [sys.executable, "-m", "bizverify", "enrich", source, "--registry", registry, "--progress", "none"],
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0
    return usage.ru_maxrss / 1024


def test_memory_stays_flat_as_rows_grow(tmp_path: Path) -> None:
    """Six times the rows (and registry) must not take three times the memory: rows stream, only numbers are kept."""
    small = peak_memory(tmp_path, 500_000)
    large = peak_memory(tmp_path, 3_000_000)
    assert large < 3 * small
    assert large < 1500
