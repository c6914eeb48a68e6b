"""`bansong watch …`: what is printed, in which form, and with which exit code."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bansong.cli.app import app
from bansong.testing import FakeService, Fault, Faults, Status, serve
from test_watch_local import DAY, Town
from test_watch_sync import KEY, csv_of, numbers, rows_for

Run = Callable[..., Result]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """The commands on a list of their own, in this process."""
    monkeypatch.setenv("BANSONG_WATCH", str(tmp_path / "list.sqlite"))
    return lambda *arguments: CliRunner().invoke(app, ["watch", *map(str, arguments)])


def test_a_sync_shows_what_it_would_do_and_does_it_when_told(cli: Run, tmp_path: Path) -> None:
    file = csv_of(tmp_path / "a.csv", [*rows_for(7), ("합계", "7", "")])
    looked = cli("sync", file, "--local")
    assert looked.exit_code == 0
    assert "to add          7: 120-81-00002 상점0, " in looked.stderr
    assert "nothing was changed; --apply does it" in looked.stderr
    assert "1 row (8): a totals row" in looked.stderr
    report = json.loads(cli("sync", file, "--local", "--json").stdout)
    assert [business["biz_no"] for business in report["add"]] == numbers(7)
    assert (report["applied"], report["left"], report["remove"]) == (False, 7, [])
    assert "7 added, 0 changed, 0 removed" in cli("sync", file, "--local", "--apply").stderr
    assert "nothing is to be done" in cli("sync", file, "--local").stderr


def test_one_business_is_added_listed_and_removed(cli: Run) -> None:
    a, b = numbers(2)
    assert cli("list", "--local").stdout == "nothing is watched\n"
    assert "120-81-00002 is watched now" in cli("add", a, "--name", "가나다 상사", "--local").stdout
    assert "was watched (watch" in cli("add", a, "--local").stdout
    cli("add", b, "--name", "ABC", "--local")
    lines = cli("list", "--local").stdout.splitlines()
    assert lines[-1] == "2 watched"
    wide = [sum(2 if "가" <= letter <= "힣" else 1 for letter in line.split("not yet")[0]) for line in lines[1:3]]
    assert wide[0] == wide[1]
    listed = json.loads(cli("list", "--local", "--json").stdout)
    assert (listed["total"], listed["watches"][0]["biz_no"], listed["watches"][1]["name"]) == (2, a, "ABC")
    assert "is not watched any more" in cli("remove", "120-81-00002", "--local").stdout
    assert cli("list", "--local").stdout.splitlines()[-1] == "1 watched"


def test_a_check_is_quiet_until_something_happens(cli: Run, tmp_path: Path) -> None:
    town = Town(tmp_path)
    first = cli("check", "--local", town.list, "--registry", town.registry())
    assert (first.exit_code, first.output) == (0, "")
    town.closed = {town.numbers[0]}
    second = cli("check", "--local", town.list, "--registry", town.registry(), "--all")
    assert second.stdout == "closed       120-81-00002 상점0 (was active)\n"
    assert second.stderr == ""
    assert cli("check", "--local", town.list, "--registry", town.registry(), "--all").output == ""
    told = cli("history", "120-81-00002", "--local", town.list).stdout
    assert " → " in told
    assert told.rstrip().endswith("closed")
    as_json = json.loads(cli("history", town.numbers[0], "--local", town.list, "--json").stdout)
    assert as_json["history"][0]["at"][10] == "T"


def test_undelivered_notices_end_a_check_with_3(cli: Run, tmp_path: Path) -> None:
    town = Town(tmp_path)
    town.closed = {town.numbers[0]}
    nowhere = ("--notify", tmp_path / "no" / "x.jsonl")
    done = cli("check", "--local", town.list, "--registry", town.registry(), *nowhere)
    assert done.exit_code == 3
    assert done.stdout.startswith("closed       1 of the 4 checked for the first time was closed already: 120-81-00002")
    assert "undelivered  1 closed already by file: " in done.stderr
    town.closed = set(town.numbers[:2])
    done = cli("check", "--local", town.list, "--registry", town.registry(), "--all", *nowhere)
    assert done.stdout.startswith("closed       120-81-00017 ")
    assert "undelivered  120-81-00017 by file: " in done.stderr


@pytest.mark.process
def test_on_a_terminal_a_check_says_that_nothing_was_due(tmp_path: Path) -> None:
    pty = pytest.importorskip("pty", reason="a terminal of the operating system's")
    town = Town(tmp_path)
    command = [sys.executable, "-m", "bansong", "watch", "check", "--local", town.list, "--registry", town.registry()]
    said = []
    for _ in range(2):
        here, there = pty.openpty()
        done = subprocess.run([*map(str, command)], stdout=subprocess.PIPE, stderr=there, text=True, check=False)
        os.close(there)
        said.append(os.read(here, 10_000).decode())
        os.close(here)
        assert (done.returncode, done.stdout) == (0, "")
    assert said[0] == "checked      4 of 4\r\n"
    assert re.fullmatch(r"checked      0 of 4: nothing was due; the next is due \d{4}-\d\d-\d\d \d\d:\d\d\r\n", said[1])
    quiet = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")


def test_the_service_is_asked_as_the_environment_says(
    cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_check_as_json_is_one_object(cli: Run, tmp_path: Path) -> None:
    town = Town(tmp_path)
    town.closed = {town.numbers[0]}

    def check(*more: str) -> dict[str, Any]:
        done = cli("check", "--local", town.list, "--registry", town.registry(), "--json", *more)
        report: dict[str, Any] = json.loads(done.stdout)
        return report

    first, nothing = check(), check()
    assert (first["due"], first["first_checks"], first["closures"]) == (4, 4, [])
    assert first["closed_already"] == [town.numbers[0]]
    assert (nothing["due"], nothing["checked"], nothing["next_check_at"]) == (0, 0, first["next_check_at"])
    town.closed = {town.numbers[0], town.numbers[3]}
    report = check("--all")
    assert (report["checked"], report["watched"]) == (4, 4)
    assert [(one["biz_no"], one["event"]) for one in report["closures"]] == [(town.numbers[3], "closure")]
    bare = cli("check", "--local", town.list)
    assert (bare.exit_code, bare.stdout, "closures cannot be found" in bare.stderr) == (0, "", True)
