"""Thirty nights of a job that buys, told by a clock of their own: what is paid and what is told, to the row."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest

import bansong as bs
from bansong.base.schema import SEOUL
from bansong.client.dispatcher import Dispatcher
from bansong.jobs.run import run_job
from bansong.run.changes import CHANGE
from bansong.testing import FakeService, serve
from bansong.testing.faults import Fault, Status
from conftest import write
from customers import KEY, numbers

DAY: Final = 86_400.0
FIRST_NIGHT: Final = datetime(2026, 11, 10, 2, tzinfo=SEOUL).timestamp()


@dataclass(frozen=True)
class Calendar:
    """What happens on which night; on a quiet one the list is as it was. ``max_age``: days of an answer."""

    quiet: int
    outage: int
    quota_reached: int
    month_turns: int
    last: int
    max_age: float
    killed: int = 0


SHORT: Final = Calendar(quiet=2, outage=3, quota_reached=5, month_turns=6, last=10, max_age=3.5)
WHOLE: Final = Calendar(quiet=3, killed=5, outage=8, quota_reached=12, month_turns=22, last=30, max_age=9.5)
CLOSED_WORDS: Final = ("closed", "폐업자")
"""A service may say it in either language."""

Record = tuple[str, str, str]


@dataclass
class Month:
    """The list and the businesses as they are, and, from what the service was paid for, what each night must do."""

    folder: Path
    service: FakeService
    port: int
    chance: random.Random
    names: dict[str, str]
    fresh: list[str]
    calendar: Calendar
    night: int = 0
    statuses: dict[str, str] = field(default_factory=dict)
    closed_on: dict[str, int] = field(default_factory=dict)
    bought: dict[Record, int] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)

    def now(self) -> float:
        return FIRST_NIGHT + (self.night - 1) * DAY

    def verdict(self, b_no: str, name: str, address: str) -> dict[str, Any]:
        status = self.statuses.get(b_no, "active")
        risk = {"grade": "A", "action": "send", "bounce_prob": 0.01}
        if status != "active":
            risk = {"grade": "E", "action": "do_not_send", "bounce_prob": 0.9}
        reasons = [f"[status +1] {name}: {status} (nts)"]
        return {"biz_status": status, **risk, "fixed_zipcode": "04524", "fixed_address": address, "reasons": reasons}

    def records(self) -> list[Record]:
        return [(b_no, name, f"서울시 중구 세종대로 {int(b_no) % 997}") for b_no, name in self.names.items()]

    def change(self) -> None:
        """Edit six in a thousand rows, replace four by others, close two businesses; every tenth row stands twice."""
        if self.night not in (1, self.calendar.quiet):
            rows, size = list(self.names), len(self.names)
            closing = [row for row in rows if row not in self.closed_on]
            closing = self.chance.sample(closing, max(1, size // 500))
            self.statuses |= {row: self.chance.choice(CLOSED_WORDS) for row in closing}
            self.closed_on |= dict.fromkeys(closing, self.night)
            for row in self.chance.sample(rows, max(1, size * 6 // 1000)):
                self.names[row] += "!"
            staying = self.chance.sample([row for row in rows if row not in self.closed_on], max(1, size * 4 // 1000))
            for row in staying:
                del self.names[row]
                new = self.fresh.pop()
                self.names[new] = f"상사 {new}"
            lines = [",".join(record) for record in self.records()]
            lines += self.chance.sample(lines, len(lines) // 10)
            self.chance.shuffle(lines)
            write(self.folder / "in.csv", "\n".join(["사업자번호,상호,주소", *lines, ""]))

    def wanted(self) -> set[Record]:
        return {
            record for record in self.records() if self.night - self.bought.get(record, -99) > self.calendar.max_age
        }

    def paid_since(self, before: Counter[Any]) -> set[Record]:
        paid = self.service.paid - before
        assert set(paid.values()) <= {1}
        found = {tuple(lookup) for lookup in paid}
        self.bought |= dict.fromkeys(found, self.night)
        return found

    def newly_known_as_closed(self) -> set[str]:
        """Whose closure the service has said by now, and nobody was told."""
        records = {record[0]: record for record in self.records()}
        found = {
            b_no
            for b_no, night in self.closed_on.items()
            if b_no not in self.told and self.bought.get(records[b_no], 0) >= night
        }
        self.told |= found
        return found

    def run(self) -> bs.JobReport:
        with nullcontext() if self.night == self.calendar.outage else serve(self.service, port=self.port):
            return run_job(self.folder / "job.toml", now=self.now)

    def run_killed(self) -> None:
        """Run tonight's job in a process that is killed when the service has been paid for half of the night."""
        half = self.service.paid_total + len(self.wanted()) // 2
        code = f"from bansong.jobs.run import run_job; run_job('job.toml', now=lambda: {self.now()})"
        process = subprocess.Popen([sys.executable, "-c", code], cwd=self.folder, stderr=subprocess.PIPE)

        def kill(request: Any) -> bool:
            if self.service.paid_total >= half and request.kind in ("verify", "batch", "job"):
                os.kill(process.pid, signal.SIGKILL)
            return False

        self.service.faults.add(Fault("*", Status(503), when=kill))
        with serve(self.service, port=self.port):
            _, said = process.communicate(timeout=600)
        assert process.returncode == -signal.SIGKILL, said.decode()
        self.service.faults.clear()


@pytest.fixture
def month(
    request: pytest.FixtureRequest, tmp_path: Path, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> Month:
    size, engine, calendar = request.param
    with serve(service) as url:  # the port is free now, and of this process alone
        port = int(url.rpartition(":")[2])
    sleep = Dispatcher.sleep
    monkeypatch.setattr(Dispatcher, "sleep", lambda dispatcher, seconds: sleep(dispatcher, seconds / 100))
    monkeypatch.setenv("NIGHTLY_KEY", KEY)
    write(
        tmp_path / "job.toml",
        f'name = "month"\n[[inputs]]\npath = "in.csv"\n[output]\npath = "out/{{name}}.{{date}}.csv"\n'
        f'latest = "out/latest.csv"\nchanges = "out/changes.{{date}}.csv"\n'
        f'[engine]\nname = "{engine}"\nrate = 2000\nbase_url = "{url}"\nkey_env = "NIGHTLY_KEY"\n'
        f"max_age = {calendar.max_age}\nbudget = 1_000_000\n"
        f'[notify]\nfile = "told.log"\nkinds = ["closed"]\n',
    )
    rows = numbers(2 * size)
    names = {row: f"상사 {row}" for row in rows[:size]}
    found = Month(tmp_path, service, port, random.Random(size), names, rows[size:], calendar)
    service.quota, service.idempotency, service.verdict = None, True, found.verdict
    write(tmp_path / "in.csv", "\n".join(["사업자번호,상호,주소", *map(",".join, found.records()), ""]))
    return found


SIZES = [pytest.param((200, "verify", SHORT), id="200 rows")]
SIZES += [pytest.param((2_000, "verify", WHOLE), id="2,000 rows", marks=pytest.mark.fuzz)]
SIZES += [pytest.param((20_000, "batch", WHOLE), id="20,000 rows", marks=pytest.mark.scale)]


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGKILL")
@pytest.mark.parametrize("month", SIZES, indirect=True)
def test_a_month_pays_what_is_new_changed_or_aged_and_tells_each_closure_once(month: Month) -> None:
    on = month.calendar
    for month.night in range(1, on.last + 1):
        month.change()
        wanted, before, requests = month.wanted(), month.service.paid, month.service.requests
        if month.night == on.killed:
            month.run_killed()
            paid = month.paid_since(before)
            assert paid
            assert paid <= wanted
            continue
        if month.night == on.quota_reached:
            month.service.quota = month.service.used + len(wanted) // 2
        if month.night == on.month_turns:
            month.service.quota, month.service.used = len(wanted) + 10 * len(month.names), 0
        report = month.run()
        paid, expected = month.paid_since(before), wanted
        if month.night == on.outage or on.quota_reached < month.night < on.month_turns:
            expected = set()
        if month.night == on.quota_reached:
            assert 0 < len(paid) == len(wanted) // 2
            expected = paid & wanted
        assert paid == expected, month.night
        paused = month.night == on.outage or on.quota_reached <= month.night < on.month_turns
        assert report.exit_code == (5 if paused else 0), (month.night, report)
        if month.night == on.quiet:
            assert (report.inputs[0].what, month.service.requests) == ("unchanged", requests)
        closures = report.changes.filter(pl.col(CHANGE).list.contains("closed"))["b_no"].to_list()
        assert sorted(closures) == sorted(month.newly_known_as_closed()), month.night
        if month.night != on.outage:
            assert pl.read_csv(report.inputs[0].output or "").height == report.rows
    check_what_was_told(month)


def check_what_was_told(month: Month) -> None:
    assert {b_no for b_no, night in month.closed_on.items() if night <= month.calendar.month_turns} <= month.told
    message = (month.folder / "told.log").read_text("utf-8")
    assert sum(map(int, re.findall(r"([\d,]+) newly closed", message))) == len(month.told)
    assert not [b_no for b_no in month.told if b_no in message]
    files = [pl.read_csv(path, infer_schema=False) for path in (month.folder / "out").glob("changes.*.csv")]
    told = pl.concat(files).filter(pl.col("changes").str.contains("closed"))["b_no"].to_list()
    assert sorted(told) == sorted(month.told)
