"""A local list is checked: what is due, once; each closure is told at least once; what the commands print."""

from __future__ import annotations

import json
import math
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner, Result

import bansong as bs
from bansong import errors, watch
from bansong.cli.app import app
from bansong.testing import FakeService, Fault, Faults, Status, serve
from bansong.watch import checking, store
from bansong.watch.store import alone
from conftest import write
from hooks import OK, Answer, receiving
from test_watch_sync import KEY, csv_of, numbers, rows_for

NOW = float(int(time.time())) + 3600  # after all that the tests add, so that it is due
DAY = 86_400.0
SECRET = "a secret of the receiver's"
REFUSED: Answer = (500, {}, b"")


class Town:
    """A registry that changes, a local list, and a clock that is set."""

    def __init__(self, folder: Path, count: int = 4) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.list = folder / "w.sqlite"
        self.now = NOW
        self.numbers = numbers(count)
        self.closed: set[str] = set()
        self.registry_day: str | None = None
        self._closed_in_registry: set[str] | None = None
        watch.sync(csv_of(folder / "in.csv", rows_for(count)), apply=True, local=self.list)

    def registry(self) -> Path:
        target = self.folder / "registry.parquet"
        if self._closed_in_registry == self.closed:
            return target
        self._closed_in_registry = set(self.closed)
        states = {b_no: "폐업자" if b_no in self.closed else "계속사업자" for b_no in self.numbers}
        lines = ["사업자등록번호,사업자상태", *(f"{b_no},{state}" for b_no, state in states.items())]
        source = write(self.folder / "registry.csv", "\n".join(lines) + "\n")
        bs.build_registry([source], target, as_of=self.registry_day)
        return target

    def check_before(self) -> None:
        """The first check, a day ago: it is known that all are open, so that those closed now have closed since."""
        closed, self.closed, self.now = self.closed, set(), self.now - DAY
        self.check()
        self.closed, self.now = closed, self.now + DAY

    def check(self, **more: Any) -> watch.CheckReport:
        options: dict[str, Any] = {"local": self.list, "registry": self.registry(), "now": lambda: self.now} | more
        return watch.check(**options)


@pytest.fixture
def town(tmp_path: Path) -> Town:
    return Town(tmp_path)


def test_a_closure_is_told_once_and_the_grade_s_change_is_in_the_history(town: Town) -> None:
    first = town.check()
    assert (first.checked, first.quiet, first.exit_code, first.watched) == (4, True, 0, 4)
    assert (town.check().checked, town.check(everything=True).checked) == (0, 4)
    town.closed, town.now = {town.numbers[1]}, NOW + DAY
    second = town.check()
    assert [(n["biz_no"], n["status_before"], n["event"]) for n in second.notices] == [
        (town.numbers[1], "active", "closure")
    ]
    assert second.changes["biz_no"].to_list() == [town.numbers[1]]
    town.now += DAY
    assert town.check().quiet
    frame = watch.history_frame(town.numbers[1], local=town.list)
    assert (frame.height, frame["biz_status"].item()) == (1, "closed")
    assert frame["at"].dt.epoch("s").to_list() == [int(NOW + DAY)]
    assert watch.entries(local=town.list).filter(pl.col("closed_at").is_not_null()).height == 1


def test_a_summary_is_one_however_many_lots_a_check_has(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "_AT_ONCE", 1)
    town.closed = set(town.numbers[:3])
    (notice,) = town.check(tell=None).notices
    assert notice["biz_nos"] == town.numbers[:3]
    other = Town(town.folder / "other", 4)
    other.closed = set(other.numbers)
    kept = store.record
    with monkeypatch.context() as patch:
        patch.setattr(checking.store, "record", lambda *a: _raise() if told(other) else kept(*a))
        with pytest.raises(SystemExit):
            other.check()
    report = other.check()
    assert sorted(number for one in report.notices for number in one["biz_nos"]) == sorted(other.numbers)
    ((_, _), (_, text)) = report.lines()
    assert text.startswith("4 checked for the first time were closed already: ")


def told(town: Town) -> list[str]:
    with closing(sqlite3.connect(town.list)) as db:
        return [payload for (payload,) in db.execute("SELECT payload FROM notices")]


def _raise(*_: object, **__: object) -> None:
    raise SystemExit


def test_names_do_as_little_as_text_does(town: Town) -> None:
    ugly = "\x1b[31m<script>" + "가" * 1_000 + "\n"
    watch.add(town.numbers[0], ugly, local=town.list)
    town.closed = {town.numbers[0]}
    report = town.check()
    looked = watch.sync(csv_of(town.folder / "none.csv", rows_for(1, 90)), local=town.list)
    changed = watch.history(town.numbers[0], local=town.list)
    for shown in (report, looked, changed):
        assert "<script>" in str(shown)
        assert not [letter for letter in str(shown) if not letter.isprintable() and letter != "\n"]
        assert max(map(len, str(shown).splitlines())) < 250
        assert "<script>" not in shown._repr_html_()


def test_the_first_addition_makes_a_file_of_the_user_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = tmp_path / "state"
    monkeypatch.setenv("BANSONG_STATE_DIR", str(state))
    assert watch.entries(local=True).height == 0
    assert not state.exists()
    with pytest.raises(errors.StoreError, match="there is no watch file"):
        watch.check()
    watch.add(numbers(1)[0], local=True)
    assert stat.S_IMODE((state / "watch.sqlite").stat().st_mode) == 0o600
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    monkeypatch.setenv("BANSONG_WATCH", str(tmp_path / "elsewhere.sqlite"))
    assert watch.entries(local=True).height == 0
    with pytest.raises(errors.StoreError, match=r"the folder .* does not exist"):
        watch.add(numbers(1)[0], local=tmp_path / "missing" / "w.sqlite")


def test_half_a_sync_is_none(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bansong.watch.store.remove_many", _raise)
    with pytest.raises(SystemExit):
        watch.sync(csv_of(town.folder / "b.csv", rows_for(4, 2)), apply=True, local=town.list)
    assert watch.entries(local=town.list)["biz_no"].to_list() == town.numbers


class NightClock:
    """The time of a run that begins at ``start`` and takes so long: it is later each time that it is asked."""

    def __init__(self, start: float, step: float, most: float) -> None:
        self.at, self.step, self.end = start, step, start + most

    def __call__(self) -> float:
        now, self.at = self.at, min(self.at + self.step, self.end)
        return now


NIGHTLY = (24.0, DAY, 2700.0, 3600.0, 1)
LENGTHS = [(NIGHTLY, 4), ((1.0, 3600.0, 120.0, 3000.0, 1), 4)]
LONGER = [NIGHTLY, (48.0, DAY, 2700.0, 3600.0, 2), (168.0, DAY, 2700.0, 3600.0, 7)]
LENGTHS += [pytest.param(one, 30, marks=pytest.mark.fuzz) for one in LONGER]


@pytest.mark.parametrize(("spans", "nights"), LENGTHS)
def test_each_watch_is_checked_every_night(
    spans: tuple[float, ...], nights: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs a little earlier or later, of up to an hour: each watch when it is due, never twice."""
    every, apart, jitter, length, looked_at_each = spans
    monkeypatch.setattr(checking, "_AT_ONCE", 1)  # each lot is written down at a time of its own
    random, town = Random(14), Town(tmp_path, 2)
    registry = town.registry()
    for night in range(nights):
        start = NOW + night * apart + random.uniform(-jitter, jitter)
        clock = NightClock(start, random.uniform(0, length / 8), random.uniform(0, length))
        checked = town.check(registry=registry, every=every, now=clock).checked
        assert (night, checked) == (night, 0 if night % looked_at_each else 2)
        again = max(clock.end, start + apart / 4)
        assert town.check(registry=registry, every=every, now=lambda at=again: at).checked == 0


def test_what_is_due_at_once(town: Town) -> None:
    town.now += 3650 * DAY
    town.check()
    town.now = NOW
    assert town.check(every=240.0).checked == 4
    with closing(sqlite3.connect(town.list)) as db, db:
        db.execute("UPDATE watches SET due = ?", (NOW + DAY + 3600,))
    town.now += DAY - 600
    assert town.check(every=24.0).checked == 4
    watch.add(town.numbers[0], "새 이름", local=town.list)
    watch.add(numbers(1, 90)[0], local=town.list)
    assert town.check(every=1e6).checked == 2


@pytest.mark.parametrize(
    ("killed_in", "checked_again"), [("report", 0), ("deliver", 0), ("check_due", 4), ("acknowledge", 0)]
)
def test_a_closure_of_a_killed_check_is_told_by_the_next(
    killed_in: str, checked_again: int, town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    town.closed = {town.numbers[2]}
    town.check_before()
    lines = town.folder / "closed.jsonl"
    with monkeypatch.context() as patch:
        owner, name = (checking.store, "postpone") if killed_in == "check_due" else (checking._CheckRun, killed_in)
        patch.setattr(owner, name, _raise)
        with pytest.raises(SystemExit):
            town.check(notify=lines)
    report = town.check(notify=lines)
    assert (report.checked, [one["biz_no"] for one in report.notices]) == (checked_again, [town.numbers[2]])
    assert [json.loads(line)["biz_no"] for line in lines.read_text(encoding="utf-8").splitlines()] == [town.numbers[2]]
    assert town.check(notify=lines).notices == ()


def test_a_closure_goes_to_a_file_and_a_signed_webhook(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BANSONG_WEBHOOK_SECRET", SECRET)
    town.closed = set(town.numbers[:2])
    town.check_before()
    lines = town.folder / "closed.jsonl"
    with receiving() as receiver:
        report = town.check(notify=lines, webhook=receiver.url)
        town.check(notify=lines, webhook=receiver.url)
    assert (report.exit_code, len(report.notices)) == (0, 2)
    assert [got.notice for got in receiver.received] == list(report.notices)
    assert [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()] == list(report.notices)
    assert stat.S_IMODE(lines.stat().st_mode) == 0o600
    assert {(got.is_signed(SECRET, NOW), got.is_signed("another", NOW)) for got in receiver.received} == {(True, False)}


def test_what_a_webhook_refuses_is_kept_and_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    town = Town(tmp_path, 6)
    monkeypatch.setenv("BANSONG_WEBHOOK_SECRET", SECRET)
    town.closed = set(town.numbers)
    town.check_before()
    answers = iter([OK, *[REFUSED] * 3, OK, *[REFUSED] * 3])  # one that is down is not asked for each notice
    with receiving(lambda _: next(answers)) as receiver:
        first = town.check(webhook=receiver.url)
        assert (first.exit_code, len(first.undelivered), len(receiver.received)) == (3, 5, 4)
        assert "500" in first.undelivered[0]["error"]
        silent = town.check()
        assert (silent.exit_code, len(silent.undelivered), len(receiver.received)) == (3, 5, 4)
        town.now += DAY
        assert town.check(webhook=receiver.url).exit_code == 3
    assert len({got.headers["X-Bizverify-Delivery"] for got in receiver.received}) == 5
    assert town.check(forget=True).exit_code == 0
    assert town.check().quiet


def test_a_file_that_is_no_list_is_not_touched(tmp_path: Path) -> None:
    other = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(other)) as db:
        db.execute("CREATE TABLE customers (name)")
    path = tmp_path / "w.sqlite"
    for content in (b"", b"not a database, by any means" * 99, other.read_bytes()):
        path.write_bytes(content)
        for act in (watch.entries, partial(watch.add, numbers(1)[0])):
            with pytest.raises(errors.StoreError):
                act(local=path)
        assert path.read_bytes() == content


Run = Callable[..., Result]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.setenv("BANSONG_WATCH", str(tmp_path / "list.sqlite"))
    return lambda *arguments: CliRunner().invoke(app, ["watch", *map(str, arguments)])


def test_the_environment_s_service_is_asked(cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = FakeService(KEY, faults=Faults(Fault("watch_add", Status(429), at=4)))
    file = csv_of(tmp_path / "a.csv", rows_for(6))
    with serve(service) as url:
        monkeypatch.setenv("BANSONG_BASE_URL", url)
        monkeypatch.setenv("BANSONG_API_KEY", KEY)
        paused = cli("sync", file, "--apply", "--rate", "1000", "--concurrency", "1")
        assert paused.exit_code == 5
        assert "3 added" in paused.stderr
        assert "3 left: POST" in paused.stderr
        assert cli("sync", file, "--apply", "--rate", "1000/s").exit_code == 0
        assert len(service.watches) == 6
        assert cli("list").stdout.splitlines()[-1].startswith("6 watched")
        changed = next(iter(service.watches))
        changed.change("E", "closed")
        assert "→ E, closed" in cli("history", changed.id).stdout


@pytest.mark.crash
def test_killed_at_any_moment_a_check_tells_each_closure(tmp_path: Path) -> None:
    town = Town(tmp_path, 40)
    town.now = time.time() - 3 * DAY
    town.check()
    town.closed = set(town.numbers[::2])
    registry, lines = town.registry(), tmp_path / "closed.jsonl"
    command: list[Any] = [sys.executable, "-m", "bansong", "watch", "check", "--local", town.list]
    command += ["--registry", registry, "--notify", lines]
    seen: set[str] = set()
    for wait in (0.55, 0.75, 0.9, 1.0, 1.1):
        process = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, text=True, env=os.environ)
        time.sleep(wait)
        process.send_signal(signal.SIGKILL)
        seen |= {line.split()[1].replace("-", "") for line in process.communicate()[0].splitlines()}
    last = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert last.returncode == 0, last.stderr
    seen |= {line.split()[1].replace("-", "") for line in last.stdout.splitlines()}
    assert seen == town.closed
    told = [json.loads(line)["biz_no"] for line in lines.read_text(encoding="utf-8").splitlines() if line]
    assert set(told) == town.closed


def test_an_interrupted_sync_says_what_it_did(cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sync(*_: object, **__: object) -> None:
        raise KeyboardInterrupt("3 added, 0 changed, 0 removed in this run; the same command goes on")

    monkeypatch.setattr("bansong.watch.api.sync", sync)
    done = cli("sync", csv_of(tmp_path / "a.csv", rows_for(1)), "--apply")
    assert done.exit_code == 130
    assert "bansong: interrupted; 3 added" in done.stderr
    assert "published" not in done.stderr


def test_what_a_check_refuses_before_it_begins(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:

    def refused(secret: str = "", **options: Any) -> str:
        monkeypatch.setenv(checking.SECRET, secret)
        with pytest.raises(errors.BansongError) as caught:
            town.check(**options)
        return caught.value.code

    hours = (0.0, -1.0, math.nan, math.inf, 1e300)
    assert {refused(every=every) for every in hours} == {checking.INTERVAL_INVALID.code}
    safe = "https://example.com/hook"
    assert refused(webhook=safe) == checking.SECRET_MISSING.code
    assert refused("short", webhook=safe) == checking.SECRET_GUESSABLE.code
    assert refused(SECRET, webhook="http://example.com/hook") == "webhook.url_not_encrypted"
    with alone(town.list):
        with pytest.raises(errors.StoreError, match="another check of this list is running"):
            town.check()
        assert watch.entries(local=town.list).height == 4  # other commands go on
        assert watch.add(numbers(1, 90)[0], local=town.list).state == "added"


def test_a_check_is_quiet_until_something_happens(cli: Run, tmp_path: Path) -> None:
    town = Town(tmp_path)

    def check(*more: str) -> Result:
        return cli("check", "--local", town.list, "--registry", town.registry(), *more)

    assert (check().exit_code, check("--all").output) == (0, "")
    town.closed = {town.numbers[0]}
    told = check("--all")
    assert (told.stdout, told.stderr) == ("closed       120-81-00002 상점0 (was active)\n", "")
    assert check("--all").output == ""
    assert cli("history", "120-81-00002", "--local", town.list).stdout.rstrip().endswith("closed")
    as_json = json.loads(cli("history", town.numbers[0], "--local", town.list, "--json").stdout)
    assert as_json["history"][0]["at"][10] == "T"
    town.closed.add(town.numbers[3])
    report = json.loads(check("--all", "--json").stdout)
    assert (report["due"], report["checked"], report["watched"], report["closed_already"]) == (4, 4, 4, [])
    assert [(one["biz_no"], one["event"]) for one in report["closures"]] == [(town.numbers[3], "closure")]
    bare = cli("check", "--local", town.list)
    assert (bare.exit_code, bare.stdout, "closures cannot be found" in bare.stderr) == (0, "", True)
