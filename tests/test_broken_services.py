"""A broken service can neither empty the purse nor put an answer on a wrong row, however often the command is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from broken_services import RIGHT, ROWS, TABLE, USUAL, WRONG, Engine, campaign

CASES = [
    pytest.param(engine, name, marks=() if name in USUAL[engine] else pytest.mark.fuzz, id=f"{engine}-{name}")
    for engine, cases in TABLE.items()
    for name in cases
]


def test_the_usual_cases_are_cases() -> None:
    assert [USUAL[engine] - cases.keys() for engine, cases in TABLE.items()] == [set(), set()]


@pytest.mark.parametrize(("engine", "name"), CASES)
def test_a_broken_service_takes_little_and_misleads_nobody(engine: Engine, name: str, tmp_path: Path) -> None:
    """The command and three repeats: few lookups spent, none twice, no row with a wrong answer, and everything told."""
    case = TABLE[engine][name]
    found = campaign(tmp_path, engine, case)
    assert found.again == 0
    for run, outcome in enumerate(found.outcomes):
        assert outcome.count(WRONG) == 0, f"run {run}"
        assert outcome.silent == 0, f"run {run}"
        whole = outcome.rows is not None and outcome.count(RIGHT) == ROWS
        assert (outcome.code == 0) == whole, f"run {run}: the exit code says whether all rows are answered"
        assert whole or outcome.words, f"run {run}: what is wrong is told"
    assert found.spent <= case.most
    assert found.outcomes[-1].count(RIGHT) >= case.least
    if case.uploads is not None:
        assert found.uploads <= case.uploads
