"""No lookup is paid twice and none is lost, whatever the service does and whenever a run dies: a model, and many seeds.

``SCHEDULE=4711 pytest tests/test_schedules.py`` tells the history of one seed again, alone.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from schedules import told

ALONE = os.environ.get("SCHEDULE")
MANY = int(os.environ.get("SCHEDULES", "10000"))


@pytest.mark.parametrize(
    "block", [0, *(() if ALONE else (pytest.param(n, marks=pytest.mark.fuzz) for n in (1, 2, 3, 4, 5)))]
)
def test_paid_once_and_never_lost(block: int, tmp_path: Path) -> None:
    """Whatever happens, a lookup is paid once (again only where the user says so), and in the ledger if it was."""
    seeds = [int(ALONE)] if ALONE else range(12 * block, 12 * (block + 1))
    told(seeds, tmp_path)


@pytest.mark.parametrize("seed", [1_008_989])
def test_a_schedule_that_broke_a_promise_once_does_not_again(seed: int, tmp_path: Path) -> None:
    """1008989: a first look at a job shows some rows, the next ones fail for a while: the rest is not missing yet."""
    told([seed], tmp_path)


@pytest.mark.fuzz
def test_ten_thousand_schedules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same over ten thousand seeds; what they were made of is printed."""
    begun = time.monotonic()
    fates = told(range(1_000_000, 1_000_000 + MANY), tmp_path)
    with capsys.disabled():
        shares = "\n".join(f"{number:>9,}  {fate}" for fate, number in sorted(fates.items()))
        print(f"\n{MANY:,} schedules in {time.monotonic() - begun:.0f} s:\n{shares}")  # noqa: T201
