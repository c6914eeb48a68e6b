"""A month of a scheduled job over a large list, with all that goes wrong in one."""

from __future__ import annotations

import random

import polars as pl
import pytest

from bizverify.scheduling.run_store import RunStore
from bizverify.testing import FakeService
from bizverify.testing.faults import Fault, Status
from conftest import write
from customers import KEY, numbers
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


@pytest.mark.parametrize(
    ("size", "engine"),
    [pytest.param(400, "verify", marks=pytest.mark.fuzz), pytest.param(20_000, "batch", marks=pytest.mark.scale)],
)
def test_a_month_of_buying_pays_each_new_or_edited_row_once(
    size: int, engine: str, nights: Nights, service: FakeService, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundredth of the rows is edited each night; a kill on the 5th, an outage on the 8th, no quota left on the 12th.

    What the nights without quota left is bought when the month turns; no night blocks the next, and none pays twice.
    """
    monkeypatch.setenv("NIGHTLY_KEY", KEY)
    part = f'[engine]\nname = "{engine}"\nrate = 2000\nbase_url = "{url}"\nkey_env = "NIGHTLY_KEY"\n'
    write(nights.folder / "job.toml", f'[[inputs]]\npath = "in.csv"\n{part}')
    chance = random.Random(size)
    rows, names, seen = numbers(size), dict[str, str](), set[tuple[str, str]]()
    service.quota = None
    for night in range(1, 31):
        for row in rows if night == 1 else chance.sample(rows, size // 100):
            names[row] = f"상사 {row}-{night}"
        lines = [f"{row},{names[row]},서울시 중구 세종대로 {int(row) % 97}" for row in rows]
        write(nights.folder / "in.csv", "\n".join(["사업자번호,상호,주소", *lines, ""]))
        if night == 5:
            with monkeypatch.context() as patch:
                patch.setattr(RunStore, "commit_run", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
                with pytest.raises(KeyboardInterrupt):
                    nights.run()
        if night == 8:
            service.faults.add(Fault("*", Status(503)))
        if night == 12:
            service.quota = service.paid_total + size // 200
        if night == 16:
            service.quota = None
        report = nights.run()
        service.faults.clear()
        if night == 8 or 12 <= night < 16:
            assert report.exit_code in (2, 3, 4, 5), night
        else:
            seen |= {*names.items()}
            assert (report.exit_code, night) == (0, night)
    paid = {(row, name) for row, name, _ in service.paid}
    assert service.paid_again == 0
    assert seen <= paid
