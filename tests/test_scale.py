"""A bounded run at scale: flat memory where rows stream. Not in the default suite (``pytest -m scale``)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from conftest import ROOT

pytestmark = pytest.mark.scale

sys.path.insert(0, str(ROOT / "benchmarks"))


def peak_memory(folder: Path, rows: int) -> float:
    """MB at the peak of `bizverify enrich` on a CSV of so many rows, with a registry of as many businesses."""
    import measure
    import scale

    source, registry = scale.prepared(folder, rows)
    return measure.once(measure.bizverify("enrich", source, "--registry", registry, "--progress", "none"))[1]


def test_memory_stays_flat_as_rows_grow(tmp_path: Path) -> None:
    """Six times the rows (and registry) must not take four times the memory: rows stream, only numbers are kept."""
    small = peak_memory(tmp_path, 500_000)
    large = peak_memory(tmp_path, 3_000_000)
    assert large < 4 * small
    assert large < 1600
