"""A broken service can neither empty the purse nor put an answer on a wrong row, however often the command is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from broken_services import RIGHT, ROWS, RUNS, TABLE, USUAL, WRONG, Engine, campaign

ALL = [pytest.param(engine, name, RUNS, marks=pytest.mark.fuzz) for engine, cases in TABLE.items() for name in cases]
FEW = [(engine, name, 2) for engine, cases in USUAL.items() for name in cases]


@pytest.mark.parametrize(("engine", "name", "runs"), [*FEW, *ALL])
def test_a_broken_service_takes_little_and_misleads_nobody(
    engine: Engine, name: str, runs: int, tmp_path: Path
) -> None:
    """Few lookups are spent, none twice, no row has a wrong answer, and everything is told."""
    case = TABLE[engine][name]
    found = campaign(tmp_path, engine, case, runs)
    assert found.again == 0
    for run, outcome in enumerate(found.outcomes):
        assert outcome.count(WRONG) == 0, f"run {run}"
        assert outcome.silent == 0, f"run {run}"
        whole = outcome.rows is not None and outcome.count(RIGHT) == ROWS
        assert (outcome.code == 0) == whole, f"run {run}: the exit code says whether all rows are answered"
        assert whole or outcome.words, f"run {run}: what is wrong is told"
    assert found.spent <= case.most
    assert runs < RUNS or found.outcomes[-1].count(RIGHT) >= case.least
    assert case.uploads is None or found.uploads <= case.uploads
