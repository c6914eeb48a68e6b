"""A month of a scheduled job of the local engine over a large list, with all that goes wrong in one."""

from __future__ import annotations

import random

import polars as pl
import pytest

from bansong.jobs.state import RunStore
from conftest import write
from customers import numbers
from nightly_jobs import Nights

SIZES = [pytest.param(2_000, seed, marks=pytest.mark.fuzz) for seed in range(3)]
SIZES.append(pytest.param(20_000, 0, marks=pytest.mark.scale))


@pytest.mark.parametrize(("size", "seed"), SIZES)
def test_every_closure_of_a_month_is_told_once(
    size: int, seed: int, nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """30 nights: a hundredth of the rows is edited each, rows are shuffled, come and go; outages and kills between."""
    chance = random.Random(seed)
    rows = numbers(size + 100)
    nights.statuses, fresh = dict.fromkeys(rows[:size], "active"), iter(rows[size:])
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
            for row in {*closing[:2], *chance.sample(list(nights.statuses), size // 100)}:
                names[row] += "!"
            nights.statuses |= dict.fromkeys(closing, "closed") | {next(fresh): "active"}
    assert sorted(told) == sorted(closed)
