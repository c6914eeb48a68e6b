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
from click.testing import CliRunner

from bansong import watch
from bansong.base.options import StatusOptions
from bansong.base.schema import SEOUL
from bansong.cli.app import app
from bansong.client.retries import RetryBudget
from bansong.errors import StoreError, UsageError
from bansong.reference.nts import NtsKey
from bansong.testing import NTS_FAULTS, FakeNts, Fault, serve
from bansong.watch.store import compare_with_check
from test_watch_local import DAY, NOW, Town

KEY = "a-free-key"
DTYPES = {
    "name": pl.String,
    "address": pl.String,
    "closed": pl.Float64,
    "status_day": pl.String,
    "biz_status": pl.String,
}


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

    def told(self, number: str, status: str) -> None:
        self.fake.statuses = {**self.fake.statuses, number: status}


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[AskedTown]:
    fake = FakeNts(KEY, default="active")
    with serve(fake) as url:
        yield AskedTown(tmp_path, url, fake)


def day(days: int = 0) -> str:
    return datetime.fromtimestamp(NOW + days * DAY, SEOUL).date().isoformat()


def test_what_is_due_is_asked_and_a_closure_is_reported(asked: AskedTown) -> None:
    """Each check of a day asks once, in calls of a hundred; what closed since the last one is told. No warning."""
    first = asked.ask()
    assert (first.checked, first.closures.height, first.warnings) == (4, 0, ())
    asked.told(asked.numbers[1], "closed")
    second = asked.ask(day=1)
    assert second.closures["biz_no"].to_list() == [asked.numbers[1]]
    assert second.warnings == ()
    assert (asked.fake.calls, asked.fake.numbers) == (2, 8)


def test_the_same_day_asks_nobody_twice(asked: AskedTown) -> None:
    """What was asked on a day is stored: another check of all watches needs no call."""
    asked.ask()
    report = asked.check(registry=None, status=StatusOptions(**asked.options), everything=True)
    assert (report.checked, asked.fake.calls) == (4, 1)


def test_an_outage_is_said_with_its_age_and_changes_nothing(asked: AskedTown) -> None:
    """What is stored goes on to count: an older registry opens nobody, and nobody is closed once more."""
    closed = asked.numbers[0]
    asked.told(closed, "closed")
    registry = asked.registry()  # of an earlier day, and all are open there
    asked.ask(registry=registry)
    asked.fake.faults.add(Fault("status", NTS_FAULTS["forbidden"]))
    report = asked.ask(registry=registry, day=1)
    assert (report.changes.height, report.closures.height, report.closed_already.height) == (0, 0, 0)
    [said, *_] = report.warnings
    assert "4 numbers could not be asked of the tax authority" in said
    assert f"of {day()} (1 day ago)" in said
    assert "registry" in said
    assert KEY not in "".join(report.warnings)
    asked.fake.faults.clear()
    again = asked.ask(registry=registry, day=2)
    assert (again.closures.height, again.warnings) == (0, ())


def test_a_store_that_another_process_holds_is_said_and_changes_nothing(
    asked: AskedTown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long `forget` locks the store: the check goes on with the registry, says so, and asks again at the next one."""
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


def test_a_store_that_is_damaged_ends_a_check(asked: AskedTown) -> None:
    """It does not mend itself until the next night, so nobody is to take the check for one that looked."""
    asked.ask()
    asked.options["store"].write_bytes(b"no database at all" * 100)
    with pytest.raises(StoreError, match="is not a status store"):
        asked.ask(day=1)


def test_the_budget_is_heeded(asked: AskedTown) -> None:
    """With a budget only so many numbers are asked a day, and the report says how many were left."""
    report = asked.ask(budget=3)
    assert asked.fake.numbers == 3
    assert "1 number could not be asked" in report.warnings[0]


def test_nobody_is_asked_without_being_told_to(asked: AskedTown, monkeypatch: pytest.MonkeyPatch) -> None:
    """`auto` asks if a key is set; without one a list without a registry is told how to get one."""
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


def test_the_command_takes_the_options(asked: AskedTown, tmp_path: Path) -> None:
    """`watch check --status nts` with a key file: what is closed is in its JSON, and the key is nowhere."""
    (tmp_path / "key").write_text(KEY + "\n")
    asked.told(asked.numbers[2], "closed")
    words = ["watch", "check", "--local", asked.list, "--status", "nts", "--nts-key-file", tmp_path / "key", "--json"]
    words += ["--status-store", asked.options["store"], "--status-budget", 100]
    env = {"BANSONG_NTS_URL": asked.options["base_url"], "BANSONG_LOG": "debug"}
    result = CliRunner().invoke(app, [str(word) for word in words], env=env, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["warnings"] == []
    assert result.stdout.count(f'"{asked.numbers[2]}"') >= 1
    assert asked.fake.numbers == 4
    assert KEY not in result.output


def test_a_check_that_asks_nobody_after_one_that_asked_opens_nobody(asked: AskedTown) -> None:
    """An older registry alone knows less than what was told before: status, grade and closure stay what they were."""
    closed, registry = asked.numbers[0], asked.registry()
    asked.told(closed, "closed")
    asked.ask(registry=registry, day=40)
    before = watch.entries(local=asked.list).drop("checked_at", "next_check_at")
    asked.now = NOW + 41 * DAY
    report = asked.check(registry=registry, status="none")
    assert (report.checked, report.changes.height) == (4, 0)
    assert watch.entries(local=asked.list).drop("checked_at", "next_check_at").equals(before)
    again = asked.ask(registry=registry, day=42)
    assert (again.changes.height, again.closures.height, again.closed_already.height) == (0, 0, 0)


@pytest.mark.parametrize(("fault", "exit_code"), [("page_503", 5), ("day_limit", 5), ("unregistered_key", 3)])
def test_statuses_that_could_not_be_asked_are_told(
    fault: str, exit_code: int, asked: AskedTown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exit code says it at once; the file is told on the second day in a row, and on none after a good one."""
    monkeypatch.setattr(RetryBudget, "backoff", lambda *_: 0.001)
    told = tmp_path / "told.jsonl"
    asked.ask(notify=told)
    asked.fake.faults.add(Fault("status", NTS_FAULTS[fault]))
    for place in (1, 2, 3):
        report = asked.ask(day=place, notify=told)
        assert (report.exit_code, report.unasked, report.as_dict()["unasked"], report.quiet) == (exit_code, 4, 4, False)
        assert asked.ask(day=place, notify=told).checked == 4  # what was not asked is still due
        events = [json.loads(line) for line in told.read_text("utf-8").splitlines()]
        assert [(one["event"], one["days"]) for one in events] == [
            ("statuses_not_asked", days) for days in range(2, place + 1)
        ]
    asked.fake.faults.clear()
    assert asked.ask(day=4, notify=told).exit_code == 0
    asked.fake.faults.add(Fault("status", NTS_FAULTS[fault]))
    asked.ask(day=5, notify=told)
    assert len(told.read_text("utf-8").splitlines()) == 2


def test_the_command_ends_with_the_code_of_what_was_not_asked(
    asked: AskedTown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RetryBudget, "backoff", lambda *_: 0.001)
    (tmp_path / "key").write_text(KEY + "\n")
    asked.fake.faults.add(Fault("status", NTS_FAULTS["page_503"]))
    words = ["watch", "check", "--local", asked.list, "--nts-key-file", tmp_path / "key"]
    words += ["--status-store", asked.options["store"], "--webhook", "http://127.0.0.1:9/", "--allow-http"]
    env = {"BANSONG_NTS_URL": asked.options["base_url"], "BANSONG_WEBHOOK_SECRET": "0123456789abcdef"}
    result = CliRunner().invoke(app, [str(word) for word in words], env=env, catch_exceptions=False)
    assert result.exit_code == 5, result.output
    assert "4 numbers could not be asked" in result.stderr


def verdict(status: str | None, day: str | None) -> dict[str, Any]:
    grade = {"closed": "E", "active": "B"}.get(status or "", "C")
    return {"biz_status": status, "grade": grade, "bounce_prob": 0.1, "action": "send", "status_day": day}


@pytest.mark.parametrize(
    ("before", "after", "kept", "closure"),
    [
        (("active", "2026-11-20"), ("closed", "2026-11-21"), "closed", True),
        (("active", "2026-11-20"), ("closed", "2026-11-20"), "closed", True),
        (("active", "2026-11-20"), ("closed", "2026-10-31"), "active", False),
        (("closed", "2026-11-20"), ("active", "2026-10-31"), "closed", False),
        (("closed", "2026-11-20"), ("active", "2026-11-21"), "active", False),
        (("active", None), ("closed", "2026-10-31"), "closed", True),
        (("active", "2026-11-20"), ("closed", None), "closed", True),
        (("active", "2026-11-20"), ("unknown", None), "active", False),
        (("unknown", None), ("active", "2026-10-31"), "active", False),
    ],
)
def test_a_status_of_an_earlier_day_says_nothing(
    before: tuple[str, str | None], after: tuple[str, str | None], kept: str, closure: bool
) -> None:
    """What is found counts unless it is known to be of an earlier day; the day of what counts is kept with it."""
    about = {"number": 1, "name": None, "address": None}
    closed = 5.0 if before[0] == "closed" else None
    watches = pl.DataFrame([about | verdict(*before) | {"checked": 5.0, "closed": closed}], schema_overrides=DTYPES)
    checked = pl.DataFrame([about | verdict(*after)], schema_overrides=DTYPES)
    found = compare_with_check(watches, checked, 9.0).row(0, named=True)
    expected = before if (kept == before[0] and after[0] != kept) else after
    assert (found["biz_status"], found["status_day"]) == expected
    assert found["closure"] is closure
    assert (found["closed"] is not None) is (kept == "closed")
    assert found["changed"] is (verdict(*before)["grade"] != verdict(kept, None)["grade"])


def test_a_judge_need_not_say_the_day() -> None:
    """Findings without days are recorded as before: a source of one's own need not know them."""
    about = {"number": 1, "name": None, "address": None}
    watches = pl.DataFrame(
        [about | verdict("active", "2026-11-20") | {"checked": 5.0, "closed": None}], schema_overrides=DTYPES
    )
    checked = pl.DataFrame([about | verdict("closed", None)], schema_overrides=DTYPES).drop("status_day")
    assert compare_with_check(watches, checked, 9.0)["closure"].to_list() == [True]
