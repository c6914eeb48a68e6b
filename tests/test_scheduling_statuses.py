"""Nights of a job that asks the tax authority: each closure is told once, and what could not be asked is told."""

from __future__ import annotations

import json
import random
import sqlite3
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import bansong as bs
from bansong.base.schema import SEOUL
from bansong.client.dispatcher import RetryBudget
from bansong.engine.local import NUMBER
from bansong.errors import InputError
from bansong.jobs.state import NUMBERS_LOST, NUMBERS_NOT_FOUND, EarlierRows, compare_runs, state_folder
from bansong.reference.status_store import STATUS_FILE
from bansong.run.changes import CHANGE
from bansong.testing import NTS_FAULTS, FakeNts, Fault, serve
from conftest import write
from customers import numbers
from nightly_jobs import DAY, Nights, kinds

Run = Callable[..., subprocess.CompletedProcess[str]]
KEY = "free-key/0123456789=="
HEADERS = ("사업자번호", "상호", "주소")
OUTAGES = ("page_503", "unregistered_key", "day_limit_text")


@dataclass
class AskedNights(Nights):
    """A job that asks a fake of the tax authority for the statuses of its list."""

    fake: FakeNts = field(default_factory=lambda: FakeNts(KEY, default="active"))
    rows: list[tuple[str, str, str]] = field(default_factory=list)
    headers: tuple[str, ...] = HEADERS

    def ask(self, inputs: str = 'path = "in.csv"', status: str = "max_age = 0", end: str = "") -> None:
        job = f"lang = 'en'\n[[inputs]]\n{inputs}\n[status]\n{status}\n[notify]\nfile = 'told.txt'\n{end}"
        write(self.folder / "job.toml", job)

    def run(self, **more: Any) -> bs.JobReport:
        lines = [",".join(row[: len(self.headers)]) for row in self.rows]
        write(self.folder / "in.csv", "\n".join([",".join(self.headers), *lines, ""]))
        return super().run(**more)

    def close_at_the_tax_office(self, *b_nos: str) -> None:
        self.fake.statuses = {**self.fake.statuses, **dict.fromkeys(b_nos, "closed")}

    def fail(self, fault: str | None) -> None:
        self.fake.faults.clear()
        if fault is not None:
            self.fake.faults.add(Fault("status", NTS_FAULTS[fault]))

    @property
    def told(self) -> list[str]:
        path = self.folder / "told.txt"
        return path.read_text("utf-8").splitlines() if path.exists() else []


def row_of(b_no: str, edits: int = 0) -> tuple[str, str, str]:
    return b_no, f"상사 {b_no}{'!' * edits}", f"서울시 중구 세종대로 {int(b_no) % 97}"


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AskedNights]:
    nights = AskedNights(tmp_path, rows=[row_of(b_no) for b_no in numbers(30)])
    monkeypatch.setattr(RetryBudget, "backoff", lambda *_: 0.001)
    monkeypatch.setenv("BANSONG_NTS_KEY", KEY)
    with serve(nights.fake) as url:
        monkeypatch.setenv("BANSONG_NTS_URL", f"{url}/api/nts-businessman/v1/status")
        nights.ask()
        yield nights


def closed_in(report: bs.JobReport) -> list[str]:
    return report.changes.filter(pl.col(CHANGE).list.contains("closed"))["b_no"].to_list()


def test_a_state_of_the_release_before_is_read(asked: AskedNights) -> None:
    asked.run()
    [state] = state_folder().glob("*.sqlite")
    with closing(sqlite3.connect(state)) as db, db:
        [(part, blob)] = db.execute("SELECT part, rows FROM snapshot").fetchall()
        old = state.with_suffix(".parquet")
        old.write_bytes(blob)
        keys = pl.concat_str("b_no", "name", "address", separator="\x1f").alias("key")
        pl.read_parquet(old).with_columns(keys).drop("gone").write_parquet(old)
        db.execute("UPDATE snapshot SET rows = ? WHERE part = ?", (old.read_bytes(), part))
        db.executescript(
            "ALTER TABLE inputs DROP COLUMN roles; ALTER TABLE inputs DROP COLUMN status_day; PRAGMA user_version = 2"
        )
    asked.close_at_the_tax_office(asked.rows[0][0])
    assert kinds(asked.run()) == {"closed": 1, "risk_up": 1, "action_up": 1}


def test_a_key_that_the_job_must_use_and_is_refused_fails_the_input(asked: AskedNights) -> None:
    asked.ask(status='max_age = 0\nsource = "nts"')
    asked.run()
    asked.fail("forbidden")
    report = asked.run()
    assert (report.exit_code, report.inputs[0].what) == (4, "failed")
    assert len(asked.told) == 2
    assert not any("nothing changed" in line for line in asked.told)


def test_a_key_that_is_not_there_any_more_is_told(asked: AskedNights, monkeypatch: pytest.MonkeyPatch) -> None:
    asked.run()
    monkeypatch.delenv("BANSONG_NTS_KEY")
    for _ in range(2):
        report = asked.run()
        assert (report.exit_code, report.inputs[0].unasked, report.message is None) == (3, 30, False)
    asked.ask(status='max_age = 0\nsource = "none"')
    assert asked.run().exit_code == 0


def test_statuses_of_an_unchanged_list_are_asked_again_in_time(asked: AskedNights) -> None:
    asked.ask(status="max_age = 5", end="[run]\nskip_unchanged_days = 7\n")
    for _ in range(4):
        asked.run()
    asked.ask(
        status="max_age = 5",
        end='[output]\nsummary = false\n[run]\nskip_unchanged_days = 7\n[changes]\nkey = ["b_no"]\n',
    )
    whats = []
    for _ in range(4):
        report = asked.run()
        whats.append(report.inputs[0].what)
        with closing(sqlite3.connect(STATUS_FILE.find(None))) as db:
            oldest = db.execute("SELECT min(as_of) FROM statuses").fetchone()[0]
        today = datetime.fromtimestamp(asked.now() - DAY, SEOUL).date().toordinal() - 719163
        assert today - oldest <= 5
    assert whats == ["verified", "unchanged", "verified", "unchanged"]


def test_numbers_that_are_not_found_any_more_fail_the_input(asked: AskedNights) -> None:
    asked.ask(inputs='path = "in.csv"\nforce = true')
    asked.run()
    asked.headers, asked.rows = ("비고", *HEADERS[1:]), [("없음", *row[1:]) for row in asked.rows]
    report = asked.run()
    assert (report.exit_code, report.inputs[0].what) == (2, "failed")
    assert json.dumps(report.as_dict())
    assert len(asked.told) > 0


MONTHS = [(0, 10), *(pytest.param(seed, 30, marks=pytest.mark.fuzz) for seed in range(1, 3))]


@pytest.mark.parametrize(("seed", "nights"), MONTHS)
def test_each_closure_of_many_nights_is_told_once(seed: int, nights: int, asked: AskedNights) -> None:
    chance = random.Random(seed)
    at_first = numbers(60 if nights > 10 else 24)
    listed, fresh = list(at_first), iter(numbers(100)[60:])
    edits: Counter[str] = Counter()
    doubles: set[str] = set()
    away: dict[str, int] = {}
    seen_open: set[str] = set()
    closed, told = list[str](), list[str]()
    for night in range(nights):
        trouble = chance.choice(["", "", "", "kill", *OUTAGES]) if 0 < night < nights - 3 else ""
        trouble = {2: "kill", 4: OUTAGES[0]}.get(night, trouble)
        asked.fail(trouble if trouble in OUTAGES else None)
        rows = [row_of(b_no, edits[b_no]) for b_no in listed if away.get(b_no, 0) <= night]
        second = [b_no for b_no in sorted(doubles) if away.get(b_no, 0) <= night]
        rows += [(b_no, f"지점{edits[b_no]}", "부산시 중구 중앙대로 1") for b_no in second]
        rows = [(b_no, name.replace(" ", chance.choice([" ", "  ", ""])), place) for b_no, name, place in rows]
        asked.rows = chance.sample(rows, len(rows))
        if trouble == "kill":
            asked.run_killed()
        told += closed_in(asked.run())
        if trouble not in OUTAGES:
            seen_open |= {row[0] for row in rows} - set(closed)
        if night < nights - 5:
            closing_now = chance.sample(sorted(seen_open - set(closed)), 2)
            closed += closing_now
            asked.close_at_the_tax_office(*closing_now)
            for b_no in (*closing_now, *chance.sample(listed, 3)):
                edits[b_no] += chance.choice([0, 1])
                away[b_no] = night + chance.choice([0, 0, 2, 4])
            doubles ^= {*chance.sample(closing_now, 1), *chance.sample(listed, 2)}
            listed.append(next(fresh))
    assert (len(closed) > 5, sorted(told)) == (True, sorted(closed))
    month = compare_runs(asked.folder / "job.toml", f"last-{nights - 1}", "last")
    over_all = month.filter(pl.col(CHANGE).list.contains("closed"))["b_no"].to_list()
    assert sorted(over_all) == sorted(b_no for b_no in closed if b_no in at_first)


@pytest.mark.parametrize(("fault", "exit_code"), [("page_503", 5), ("unregistered_key", 3)])
def test_a_night_on_which_nobody_could_be_asked_is_told(fault: str, exit_code: int, asked: AskedNights) -> None:
    """Of a refused key at once, of another failure on the second night; a second run of a night is no second night."""
    asked.run()
    asked.fail(fault)
    first = asked.run()
    assert (first.exit_code, first.inputs[0].unasked, bool(asked.told)) == (exit_code, 30, exit_code == 3)
    if exit_code == 5:
        asked.night -= 1
        assert asked.run().message is None
    second = asked.run()
    assert (second.exit_code, "2 nights in a row" in (second.message or "")) == (exit_code, True)
    asked.fail(None)
    told = len(asked.told)
    assert (asked.run().exit_code, len(asked.told)) == (0, told)
    asked.fail(fault)
    assert "in a row" not in (asked.run().message or "")
    assert not any("nothing changed" in line for line in asked.told)


THIRTY = numbers(30)
LOSSES = [
    (30, THIRTY[:14], NUMBERS_LOST),
    (30, THIRTY[:15], None),
    (20, THIRTY[:9], NUMBERS_LOST),
    (20, THIRTY[:10], None),
    (19, THIRTY[:1], None),  # of so few rows most may go
    (19, [], NUMBERS_LOST),
    (30, numbers(60)[30:], NUMBERS_LOST),  # another list under the same name
    (30, [""] * 30, NUMBERS_NOT_FOUND),
]
"""Rows of the night before, the numbers of this one, and why it is refused."""


def test_a_list_that_lost_most_of_its_rows_or_all_its_numbers_is_refused() -> None:
    found = []
    for before, after, _ in LOSSES:
        rows = pl.LazyFrame({NUMBER: after}, schema={NUMBER: pl.String}).cast({NUMBER: pl.UInt64}, strict=False)
        try:
            EarlierRows(before, pl.Series(THIRTY[:before]).cast(pl.UInt64)).refuse_loss(rows)
        except InputError as error:
            found.append(error.code)
        else:
            found.append(None)
    assert found == [problem and problem.code for _, _, problem in LOSSES]


def test_an_input_that_lost_most_of_its_rows_fails_unless_it_may(asked: AskedNights) -> None:
    first = asked.run()
    output = Path(str(first.inputs[0].output))
    written = output.read_bytes()
    asked.rows = asked.rows[:14]
    report = asked.run()
    assert (report.exit_code, report.inputs[0].what, report.counts["gone"]) == (2, "failed", 0)
    assert (output.read_bytes(), len(asked.told)) == (written, 2)
    asked.ask(inputs='path = "in.csv"\nforce = true')
    assert asked.run().counts["gone"] == 16
