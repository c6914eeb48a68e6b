"""A month of a scheduled job over a large list, with all that goes wrong in one."""

from __future__ import annotations

import random

import polars as pl
import pytest

from bizverify.scheduling.run_store import RunStore
from conftest import write
from customers import numbers
from nightly_jobs import Nights

pytestmark = pytest.mark.fuzz


@pytest.mark.parametrize("seed", range(3))
def test_every_closure_of_a_month_is_told_once(seed: int, nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    """2,000 rows, 30 nights: names are edited, rows shuffled, come and go; outages, kills and deadlines between."""
    chance = random.Random(seed)
    rows = numbers(2100)
    nights.statuses, fresh = dict.fromkeys(rows[:2000], "active"), iter(rows[2000:])
    names, told, closed = {row: f"상사 {row}" for row in rows}, list[str](), list[str]()
    for night in range(30):
        trouble = chance.choice(["none", "none", "outage", "kill", "deadline"]) if 0 < night < 29 else "none"
        order = chance.sample(list(nights.statuses), len(nights.statuses))
        known = nights.statuses
        if trouble == "outage":
            nights.statuses = {rows[-1]: "active"}
        nights.write_inputs(order)
        nights.statuses = known
        lines = [f"{row},{names[row]},서울시 중구 세종대로 {int(row) % 97}" for row in order]
        write(nights.folder / "in.csv", "\n".join(["사업자번호,상호,주소", *lines, ""]))
        if trouble == "kill":
            with monkeypatch.context() as patch:
                patch.setattr(RunStore, "commit_run", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
                with pytest.raises(KeyboardInterrupt):
                    nights.run()
        report = nights.run(deadline=0.0 if trouble == "deadline" else None)
        told += report.changes.filter(pl.col("changes").list.contains("closed"))["b_no"].to_list()
        if night < 28:
            closing = chance.sample([row for row, status in nights.statuses.items() if status == "active"], 5)
            closed += closing
            for row in {*closing[:2], *chance.sample(list(nights.statuses), 20)}:
                names[row] += "!"
            nights.statuses |= dict.fromkeys(closing, "closed") | {next(fresh): "active"}
    assert sorted(told) == sorted(closed)
