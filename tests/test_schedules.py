"""No lookup is paid twice and none is lost, whatever the service does and whenever a run dies: a model, and many seeds.

``SCHEDULE=4711 pytest tests/test_schedules.py`` tells the history of one seed again, alone.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from schedules import told

ALONE = os.environ.get("SCHEDULE")
MANY = int(os.environ.get("SCHEDULES", "10000"))


def test_paid_once_and_never_lost(tmp_path: Path) -> None:
    """1008989: a first look at a job shows some rows, the next ones fail for a while: the rest is not missing yet."""
    told([int(ALONE)] if ALONE else [1_008_989, *range(12)], tmp_path)


@pytest.mark.fuzz
def test_ten_thousand_schedules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fates = told(range(1_000_000, 1_000_000 + MANY), tmp_path)
    with capsys.disabled():
        print("\n" + "\n".join(f"{number:>9,}  {fate}" for fate, number in sorted(fates.items())))  # noqa: T201
