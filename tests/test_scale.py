"""A bounded run at scale: flat memory where rows stream. Not in the default suite (``pytest -m scale``)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from conftest import ROOT

pytestmark = pytest.mark.scale

sys.path.insert(0, str(ROOT / "benchmarks"))


def peak_memory(folder: Path, rows: int) -> float:
    """MB at the peak of `bansong enrich` on a CSV of so many rows, with a registry of as many businesses."""
    import measure
    import scale

    source, registry = scale.prepared(folder, rows)
    return measure.once(measure.bansong("enrich", source, "--registry", registry, "--progress", "none")).peak


def test_the_page_of_a_large_file_is_counted_in_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`bansong report` on 2 million rows, 800 MB of CSV, compared with a run that answered most rows otherwise.

    With all rows in memory it takes 1.5 GB and more: ``test_words_and_codes_stream`` looks at why.
    """
    import measure
    import scale

    monkeypatch.setenv("POLARS_MAX_THREADS", "2")
    source, registry = scale.prepared(tmp_path, 2_000_000)
    before, after = tmp_path / "before.csv", tmp_path / "after.csv"
    measure.once(measure.bansong("enrich", source, "-o", before, "--registry", registry, "--progress", "none"))
    measure.once(measure.bansong("enrich", source, "-o", after, "--status", "none", "--progress", "none"))
    page = measure.bansong("report", after, "-o", tmp_path / "page.html", "--before", before)
    assert measure.once(page).peak < 1200


def test_three_million_rows_stay_under_1600_megabytes(tmp_path: Path) -> None:
    """A file of 430 MB that becomes one of 1 GB, beside a registry of as many businesses: rows stream.

    A bound with room, because the peak depends on how well the disk keeps up; that no step holds all rows is what
    ``test_the_engine_is_one_lazy_query_that_streams`` looks at.
    """
    assert peak_memory(tmp_path, 3_000_000) < 1600
