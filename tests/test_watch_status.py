"""`bansong watch check` asks the tax authority for what is due; an outage is said, and closes and opens nobody."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner, Result

from bansong import watch
from bansong.base.options import StatusOptions
from bansong.base.schema import SEOUL
from bansong.cli.app import app
from bansong.client.dispatcher import RetryBudget
from bansong.errors import StoreError, UsageError
from bansong.reference.nts import NtsKey
from bansong.testing import NTS_FAULTS, FakeNts, Fault, serve
from bansong.watch.store import compare_with_check
from test_watch_local import DAY, NOW, Town

KEY = "a-free-key"


class AskedTown(Town):
    """A list whose statuses come from a fake of the tax authority, and not from a registry."""

    def __init__(self, folder: Path, url: str, fake: FakeNts) -> None:
        super().__init__(folder)
        self.registry_day = day(-1)  # before anything is asked, at whatever hour the tests run
        self.fake = fake
        self.options: dict[str, Any] = {"source": "nts", "key": NtsKey(KEY), "base_url": url, "max_age": 0.0}
        self.options["store"] = folder / "statuses.sqlite"

    def ask(
        self, *, registry: Path | None = None, day: int = 0, notify: Path | None = None, **more: Any
    ) -> watch.CheckReport:
        self.now = NOW + day * DAY
        return self.check(registry=registry, status=StatusOptions(**self.options | more), notify=notify)

    def fail(self, fault: str | None) -> None:
        self.fake.faults.clear()
        if fault is not None:
            self.fake.faults.add(Fault("status", NTS_FAULTS[fault]))

    def told(self, number: str, status: str) -> None:
        self.fake.statuses = {**self.fake.statuses, number: status}


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[AskedTown]:
    fake = FakeNts(KEY, default="active")
    with serve(fake) as url:
        yield AskedTown(tmp_path, url, fake)


def day(days: int = 0) -> str:
    return datetime.fromtimestamp(NOW + days * DAY, SEOUL).date().isoformat()


def test_an_outage_is_said_with_its_age_and_changes_nothing(asked: AskedTown) -> None:
    closed = asked.numbers[0]
    asked.told(closed, "closed")
    registry = asked.registry()  # of an earlier day, and all are open there
    asked.ask(registry=registry)
    asked.fail("forbidden")
    report = asked.ask(registry=registry, day=1)
    assert (report.changes.height, report.closures.height, report.closed_already.height) == (0, 0, 0)
    [said, *_] = report.warnings
    assert "4 numbers could not be asked of the tax authority" in said
    assert f"of {day()} (1 day ago)" in said
    assert "registry" in said
    assert KEY not in "".join(report.warnings)
    asked.fail(None)
    again = asked.ask(registry=registry, day=2)
    assert (again.closures.height, again.warnings) == (0, ())


def test_a_store_in_use_is_told_and_changes_nothing(asked: AskedTown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bansong.base.sqlite._LOCK_TIMEOUT_S", 0.1)
    closed = asked.numbers[0]
    asked.told(closed, "closed")
    asked.ask()
    before = watch.entries(local=asked.list).drop("checked_at", "next_check_at")
    with closing(sqlite3.connect(asked.options["store"], isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        report = asked.ask(registry=asked.registry(), day=1)
        alone = asked.ask(day=2)
    assert (report.checked, report.changes.height, report.closures.height) == (4, 0, 0)
    assert "4 numbers could not be asked of the tax authority and judged by the registry" in report.warnings[0]
    assert "statuses.sqlite: another process is writing to it for long" in report.warnings[0]
    assert "not judged: nothing is known of their status" in alone.warnings[0]
    assert watch.entries(local=asked.list).drop("checked_at", "next_check_at").equals(before)
    asked.told(asked.numbers[1], "closed")
    again = asked.ask(day=3)
    assert (again.closures["biz_no"].to_list(), again.warnings) == ([asked.numbers[1]], ())
    asked.options["store"].write_bytes(b"no database at all" * 100)  # does not mend itself until the next night
    with pytest.raises(StoreError, match="is not a status store"):
        asked.ask(day=4)


def test_nobody_is_asked_without_being_told_to(asked: AskedTown, monkeypatch: pytest.MonkeyPatch) -> None:
    asked.now = NOW
    report = asked.check(registry=None, status="auto")
    assert asked.fake.calls == 0
    assert "BANSONG_NTS_KEY" in report.warnings[0]
    assert asked.check(registry=None, status="none", everything=True).warnings == report.warnings
    with pytest.raises(UsageError, match="BANSONG_NTS_KEY"):
        asked.check(registry=None, status="nts")
    monkeypatch.setenv("BANSONG_NTS_KEY", KEY)
    monkeypatch.setenv("BANSONG_NTS_URL", asked.options["base_url"])
    monkeypatch.setenv("BANSONG_STATUS_STORE", str(asked.options["store"]))
    assert asked.check(registry=None, everything=True).warnings == ()
    assert asked.fake.numbers == 4


def test_what_is_due_is_asked_once_a_day_and_a_closure_is_reported(asked: AskedTown) -> None:
    part = asked.ask(budget=3)
    assert (asked.fake.numbers, "1 number could not be asked" in part.warnings[0]) == (3, True)
    first = asked.ask()
    assert (first.checked, first.closures.height, first.warnings) == (4, 0, ())
    again = asked.check(registry=None, status=StatusOptions(**asked.options), everything=True)
    assert (again.checked, asked.fake.calls, asked.fake.numbers) == (4, 2, 4)
    asked.told(asked.numbers[1], "closed")
    second = asked.ask(day=1)
    assert (second.closures["biz_no"].to_list(), second.warnings) == ([asked.numbers[1]], ())
    assert (asked.fake.calls, asked.fake.numbers) == (3, 8)


def test_the_command_shows_no_key(asked: AskedTown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RetryBudget, "backoff", lambda *_: 0.001)
    (tmp_path / "key").write_text(KEY + "\n")
    asked.told(asked.numbers[2], "closed")
    words = ["watch", "check", "--local", asked.list, "--nts-key-file", tmp_path / "key", "--json", "--all"]
    words += ["--status-store", asked.options["store"], "--status-budget", 100]
    words += ["--webhook", "http://127.0.0.1:9/", "--allow-http"]
    env = {"BANSONG_NTS_URL": asked.options["base_url"], "BANSONG_LOG": "debug"}
    env["BANSONG_WEBHOOK_SECRET"] = "0123456789abcdef"

    def check(*more: str) -> Result:
        return CliRunner().invoke(app, [*map(str, words), *more], env=env, catch_exceptions=False)

    done = check("--status", "nts")
    assert (json.loads(done.stdout)["warnings"], asked.fake.numbers) == ([], 4)
    assert f'"{asked.numbers[2]}"' in done.stdout
    asked.options["store"].unlink()
    asked.fail("page_503")
    paused = check()
    assert "4 numbers could not be asked" in paused.stderr
    assert (paused.exit_code, KEY in done.output + paused.output) == (3, False)  # the webhook took nothing


@pytest.mark.parametrize(("fault", "exit_code"), [("page_503", 5), ("unregistered_key", 3)])
def test_statuses_that_could_not_be_asked_are_told_from_the_second_day_in_a_row(
    fault: str, exit_code: int, asked: AskedTown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RetryBudget, "backoff", lambda *_: 0.001)
    told = tmp_path / "told.jsonl"
    asked.ask(notify=told)
    asked.fail(fault)
    for place in (1, 2):
        report = asked.ask(day=place, notify=told)
        assert (report.exit_code, report.unasked, report.as_dict()["unasked"], report.quiet) == (exit_code, 4, 4, False)
    assert asked.ask(day=2, notify=told).checked == 4  # what was not asked is still due
    (event,) = [json.loads(line) for line in told.read_text("utf-8").splitlines()]
    assert (event["event"], event["days"]) == ("statuses_not_asked", 2)
    asked.fail(None)
    assert asked.ask(day=3, notify=told).exit_code == 0
    asked.fail(fault)
    asked.ask(day=4, notify=told)
    assert len(told.read_text("utf-8").splitlines()) == 1


FINDINGS = [
    (("active", "2026-11-20"), ("closed", "2026-11-21"), "closed", True),
    (("active", "2026-11-20"), ("closed", "2026-11-20"), "closed", True),
    (("active", "2026-11-20"), ("closed", "2026-10-31"), "active", False),
    (("closed", "2026-11-20"), ("active", "2026-10-31"), "closed", False),
    (("closed", "2026-11-20"), ("active", "2026-11-21"), "active", False),
    (("active", None), ("closed", "2026-10-31"), "closed", True),
    (("active", "2026-11-20"), ("closed", None), "closed", True),
    (("active", "2026-11-20"), ("unknown", None), "active", False),
    (("unknown", None), ("active", "2026-10-31"), "active", False),
]
"""Status and its day as stored and as found, the status that counts then, and whether it is a closure."""


def test_a_status_of_an_earlier_day_says_nothing() -> None:
    watches, checked, wanted = [], [], []
    for number, (before, after, kept, closure) in enumerate(FINDINGS):
        closed = 5.0 if before[0] == "closed" else None
        about = {"number": number, "name": None, "address": None, "bounce_prob": 0.1, "action": "send", "grade": "B"}
        watches.append(about | {"biz_status": before[0], "status_day": before[1], "checked": 5.0, "closed": closed})
        checked.append(about | {"biz_status": after[0], "status_day": after[1]})
        day = before[1] if kept == before[0] and after[0] != kept else after[1]
        wanted.append((kept, day, closure, kept == "closed"))
    texts = dict.fromkeys(("name", "address", "status_day"), pl.String)
    of_list, found = (
        pl.DataFrame(rows, schema_overrides=texts, infer_schema_length=None) for rows in (watches, checked)
    )
    columns = ["biz_status", "status_day", "closure", pl.col("closed").is_not_null()]
    assert compare_with_check(of_list, found, 9.0).select(columns).rows() == wanted
    without_days = compare_with_check(of_list, found.drop("status_day"), 9.0)
    assert without_days["closure"].to_list() == [
        before[0] == "active" and after[0] == "closed" for before, after, *_ in FINDINGS
    ]
