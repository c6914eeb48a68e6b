"""Real statuses in an enrichment: asked as far as they are stale, stored, laid over the registry, each with its age."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import polars as pl
import pytest

import bansong as bs
from bansong.base.schema import SEOUL, Alert
from bansong.client.dispatcher import RetryBudget
from bansong.errors import StoppedError, StoreError, UsageError
from bansong.reference.statuses import fresh_since
from bansong.testing import NTS_FAULTS, EditedRows, FakeNts, FakeService, Fault, Faults, serve
from conftest import SAMPLE, json_of, write

Run = Callable[..., subprocess.CompletedProcess[str]]
KEY = "free-key/0123456789=="
ADDRESS = "서울특별시 강남구 테헤란로 152"
NUMBERS = ("1248100998", "2208162517", "1018109147", "1078614075", "1208147521")
STATUSES = ("active", "closed", "suspended", "active", "unregistered")
TODAY = datetime.now(SEOUL).date()


@pytest.fixture
def nts() -> FakeNts:
    return FakeNts(KEY, dict(zip(NUMBERS, STATUSES, strict=True)))


@pytest.fixture
def asked(nts: FakeNts, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNts]:
    """The tax authority's API, in an environment that leads there with the key."""
    with serve(nts) as url:
        monkeypatch.setenv("BANSONG_NTS_URL", url)
        monkeypatch.setenv("BANSONG_NTS_KEY", KEY)
        yield nts


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries that come at once: an outage is one after all of them."""
    monkeypatch.setattr(RetryBudget, "backoff", lambda *_: 0.001)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    rows = [f"{b_no},상호{place},{ADDRESS}" for place, b_no in enumerate((*NUMBERS, NUMBERS[0], "12345"))]
    return write(tmp_path / "list.csv", "\n".join(["사업자번호,상호,주소", *rows]) + "\n")


def registry_of(tmp_path: Path, days: int, *numbers: str) -> Path:
    """A registry that says ``active`` of numbers, so many days old."""
    lines = "\n".join(f"{b_no},계속사업자,{TODAY - timedelta(days=days)}" for b_no in numbers)
    bs.build_registry([write(tmp_path / "s.csv", f"b_no,상태,as_of\n{lines}\n")], tmp_path / "registry.parquet")
    return tmp_path / "registry.parquet"


def reasons_of(report: bs.Report) -> list[str]:
    """The first reason of each row that has some."""
    found = pl.read_csv(str(report.output), infer_schema=False)
    statuses = [
        next((part for part in (text or "").split(" | ") if part[:7] == "[status"), "") for text in found["reasons"]
    ]
    return [reason for reason in statuses if reason]


def age(days: int) -> None:
    """Make all that is stored so many days older."""
    with closing(sqlite3.connect(Path(os.environ["BANSONG_STATE_DIR"]) / "statuses.sqlite")) as db, db:
        db.execute("UPDATE statuses SET as_of = as_of - ?", (days,))


def test_the_sample_from_zero_finds_its_41_closed_and_suspended_rows(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = pl.read_parquet(SAMPLE / "registry.parquet")
    known = {f"{b_no:010d}": status for b_no, status in zip(truth["b_no"], truth["biz_status"], strict=True)}
    nts = FakeNts(KEY, known, default="active")
    with serve(nts) as url:
        monkeypatch.setenv("BANSONG_NTS_URL", url)
        done = run(
            "enrich", SAMPLE / "customers.xlsx", "-o", "out.csv", "--progress", "none", env={"BANSONG_NTS_KEY": KEY}
        )
    assert done.returncode == 0, done.stderr
    found = pl.read_csv(tmp_path / "out.csv", infer_schema=False)["biz_status"]
    assert (found.is_in(["closed", "suspended"]).sum(), found.null_count()) == (41, 20)
    assert re.search(
        r"^statuses +280 of 280 statuses checked \(280 by nts, the oldest of \d{4}-\d\d-\d\d\)$", done.stderr, re.M
    )
    assert done.stderr.count("ATTENTION") == done.stderr.count("no gazetteer") == 1
    assert (nts.calls, nts.asked_again) == (3, 0)


def test_each_number_is_asked_once_and_again_when_its_status_is_stale(asked: FakeNts, source: Path) -> None:
    """The store answers for 30 days, by default, or for as many as the call says; a plan asks nobody."""

    def sources(report: bs.Report) -> set[str]:
        return {reason.rpartition(" (")[2] for reason in reasons_of(report)}

    planned = bs.plan(source)
    assert ("would ask nts", "5 numbers, at no cost; 0 from the status store") in planned.lines()
    assert planned.as_dict()["asked"].items() >= {"numbers": 5, "left": 5, "asked": 0, "day": str(TODAY)}.items()
    assert not any("no registry was given" in warning for warning in planned.warnings)
    assert not (Path(os.environ["BANSONG_STATE_DIR"]) / "statuses.sqlite").exists()
    report = bs.enrich(source)
    found = pl.read_csv(str(report.output), infer_schema=False)
    assert found["biz_status"].to_list() == [*STATUSES, STATUSES[0], None]
    assert (sources(report), found["action"][0], asked.calls, asked.numbers) == ({f"nts, {TODAY})"}, "send", 1, 5)
    figures = report.as_dict()
    assert figures["statuses"]["nts"] == {"rows": 6, "oldest": str(TODAY), "aged": 0, "age": None, "halt": None}
    assert figures["versions"]["statuses"] == str(TODAY)
    counts = {"numbers": 5, "left": 0, "asked": 5, "answered": 5, "from_store": 0, "unregistered": 1, "calls": 1}
    for said in (figures, json_of(Path(str(report.manifest)))):
        assert said["asked"].items() >= (counts | {"halt": None}).items()
    again = bs.enrich(source, dry_run=True)
    assert ("would ask nts", "0 numbers, at no cost; 5 from the status store") in again.lines()
    age(20)
    assert sources(bs.enrich(source)) == {f"nts, {TODAY - timedelta(days=20)})"}
    assert asked.calls == 1
    anyio.run(lambda: bs.aenrich(source, status=bs.StatusOptions(source="nts", max_age=19)))
    assert (asked.calls, asked.numbers) == (2, 10)
    age(100)
    old = bs.enrich(source, max_status_age=400)
    assert old.statuses is not None
    assert old.statuses.summary.endswith(
        ", 5 of them more than 90 days ago, so not to be relied on, and no row says `send`: ask again with "
        "`max_status_age=90`"
    )
    bs.enrich(source)
    assert (asked.calls, asked.numbers) == (3, 15)


def test_without_a_key_nobody_is_asked_and_the_first_line_names_the_way(
    run: Run, asked: FakeNts, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`auto` asks only where a key is set; the remedy names the option and the free key, and the registry besides."""
    monkeypatch.delenv("BANSONG_NTS_KEY")
    done = run("enrich", source, "--progress", "none")
    first = done.stderr.splitlines()[0]
    assert first.startswith(
        "ATTENTION: 0 of 6 statuses checked, so no row says `send`: ask the tax authority with --status nts and a free"
    )
    assert "`bansong data build-registry" in first
    refused = run("enrich", source, "-o", "other.csv", "--status", "nts")
    assert refused.returncode == 2
    assert "set BANSONG_NTS_KEY to it, or BANSONG_NTS_KEY_FILE" in refused.stderr
    assert asked.calls == 0


def test_the_hybrid_engine_buys_less_where_statuses_are_checked(
    asked: FakeNts, service: FakeService, url: str, source: Path
) -> None:
    blind = bs.plan(source, engine="hybrid", status="none").purchase
    bs.enrich(source, engine="hybrid", budget=0)
    seeing = bs.plan(source, engine="hybrid").purchase
    assert blind is not None
    assert seeing is not None
    assert seeing.wanted < blind.wanted
    with pytest.raises(UsageError, match="`status='nts'` is for the engines that answer locally, not for"):
        bs.enrich(source, engine="verify", status="nts")
    bs.plan(source, engine="batch")
    assert asked.calls == 1


def test_an_engine_that_is_given_has_its_statuses_already(asked: FakeNts, source: Path) -> None:
    assert bs.enrich(source, status="none").statuses.nts is None  # type: ignore[union-attr]
    bs.enrich(source, engine=bs.LocalEngine())
    with pytest.raises(UsageError, match=r"bansong\.fetch_status returns"):
        bs.enrich(source, engine=bs.LocalEngine(), status="nts")
    assert asked.calls == 0


def test_frames_and_single_businesses_are_checked_too(asked: FakeNts, tmp_path: Path) -> None:
    one = bs.verify("220-81-62517", address=ADDRESS)
    frame = bs.verify_frame(pl.DataFrame({"b_no": list(NUMBERS), "주소": [ADDRESS] * 5}))
    assert (one.biz_status, frame["biz_status"].to_list()) == ("closed", list(STATUSES))
    assert (asked.calls, asked.numbers, asked.asked_again) == (2, 5, 0)
    assert bs.verify("2208162517", status="none").biz_status == "unknown"
    empty = bs.enrich(write(tmp_path / "a.csv", "사업자번호,주소\n"), status="nts")
    assert (empty.exit_code, empty.statuses) == (0, None)
    assert asked.calls == 2


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="the time zone of a process cannot be set here")
def test_ages_are_reckoned_from_the_day_in_korea(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registries = []
    for days in (90, 91):
        (tmp_path / str(days)).mkdir()
        registries.append(registry_of(tmp_path / str(days), days, NUMBERS[0]))
    frame, seen = pl.LazyFrame({"b_no": NUMBERS[:1], "address": [ADDRESS]}), list[list[str]]()
    for zone in ("Asia/Seoul", "Etc/GMT+12", "Etc/GMT-14"):  # one of them has another day than Korea at any moment
        with monkeypatch.context() as patch:
            patch.setenv("TZ", zone)
            time.tzset()
            found = [bs.LocalEngine(registry).verify(frame).collect()["reasons"][0][0] for registry in registries]
        seen.append(found)
    time.tzset()
    assert seen[1:] == seen[:1] * 2
    assert seen[0][0] != seen[0][1]


def test_a_status_is_fresh_for_whole_days() -> None:
    assert [(TODAY - fresh_since(days, TODAY)).days for days in (30, 30.5, 0)] == [30, 30, 0]


@pytest.mark.usefixtures("hasty")
def test_an_outage_ends_in_exit_0_with_the_age_of_each_status(run: Run, source: Path, tmp_path: Path) -> None:
    """The registry answers, fresh or not: its age stands in every reason that rests on it, and once on top with why."""
    registry, day = registry_of(tmp_path, 22, *NUMBERS[:4]), TODAY - timedelta(days=22)
    with serve(FakeNts(KEY)) as url:
        pass
    env = {"BANSONG_NTS_KEY": KEY, "BANSONG_NTS_URL": url}
    quiet = ("--registry", registry, "--status", "nts", "--progress", "none")
    done = run("enrich", source, "-o", "out.csv", *quiet, env=env)
    first, *rest = done.stderr.splitlines()
    assert (done.returncode, any("days old" in line for line in rest)) == (0, False)
    assert first.startswith("ATTENTION: 5 of 6 statuses checked (0 by nts; 5 by registry")
    assert "5 statuses up to 22 days old; not all could be asked of the tax authority: " in first
    reasons = pl.read_csv(tmp_path / "out.csv", infer_schema=False)["reasons"].fill_null("")
    aged = [f"business active (registry, {day}, 22 days old)" in text for text in reasons]
    assert aged == [True] * 4 + [False, True, False]
    alone = run("verify", NUMBERS[0], env=env)
    assert (alone.returncode, "unknown" in alone.stdout, len(alone.stderr.splitlines())) == (0, True, 1)
    assert alone.stderr.startswith("note: the tax authority could not be asked: the tax authority's API")


@pytest.mark.usefixtures("hasty")
def test_a_status_of_today_bears_no_age_in_an_outage(asked: FakeNts, source: Path, tmp_path: Path) -> None:
    bs.enrich(write(tmp_path / "one.csv", f"b_no,주소\n{NUMBERS[0]},{ADDRESS}\n"))
    age(40)
    bs.enrich(write(tmp_path / "two.csv", f"b_no,주소\n{NUMBERS[1]},{ADDRESS}\n"))
    asked.faults = Faults(Fault("status", NTS_FAULTS["page"]))
    report = bs.enrich(source)
    reasons = reasons_of(report)
    assert reasons[0].endswith(f"(nts, {TODAY - timedelta(days=40)}, 40 days old)")
    assert reasons[1].endswith(f"(nts, {TODAY})")
    assert reasons[2] == "[status +0] status not checked: no registry was given (registry)"
    assert (report.exit_code, isinstance(report.warnings[0], Alert)) == (0, True)
    assert "up to 40 days old" in report.warnings[0]


def test_numbers_without_an_answer_keep_their_old_status_and_its_age(asked: FakeNts, source: Path) -> None:
    """One number is left out whenever it is asked, another comes unasked: the run is whole, and says both."""

    def edited(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [row for row in rows if row["b_no"] != NUMBERS[0]] + [dict(rows[0], b_no="1018128456")]

    bs.enrich(source)
    age(40)
    asked.faults = Faults(Fault("status", EditedRows(edited)))
    report = bs.enrich(source)
    assert report.statuses is not None
    assert report.statuses.summary.endswith(
        "; 2 statuses up to 40 days old, because the tax authority gave no answer to these numbers"
    )
    assert [reason.endswith(" days old)") for reason in reasons_of(report)] == [True, False, False, False, False, True]
    assert not report.statuses.is_alarming
    (note,) = [note for note in report.warnings if note.startswith("in the tax authority's answers: ")]
    assert "a row of a number that was not asked was left out" in note


def test_what_the_day_s_limit_leaves_out_is_asked_by_the_same_command_later(asked: FakeNts, tmp_path: Path) -> None:
    rows = "\n".join(f"{1_000_000_000 + place},{ADDRESS}" for place in range(150))
    source = write(tmp_path / "in.csv", f"b_no,주소\n{rows}\n")
    asked.default, asked.daily_limit = "active", 100
    report = bs.enrich(source, status=bs.StatusOptions(concurrency=1))
    assert (report.exit_code, asked.numbers, isinstance(report.warnings[0], Alert)) == (3, 100, True)
    assert report.statuses is not None
    assert (report.statuses.checked, report.statuses.is_alarming) == (100, True)
    asked.daily_limit = None
    with closing(sqlite3.connect(Path(os.environ["BANSONG_STATE_DIR"]) / "statuses.sqlite")) as db, db:
        db.execute("DELETE FROM usage")
    again = bs.enrich(source)
    assert again.statuses is not None
    assert (again.statuses.checked, asked.numbers, asked.asked_again) == (150, 150, 0)


def test_a_refused_key_ends_what_was_asked_for_and_only_warns_where_it_was_not(
    run: Run, asked: FakeNts, source: Path, tmp_path: Path
) -> None:
    """With `nts` nothing is written, exit 4; with `auto` the run goes on, begins with the refusal, and ends with 3."""
    asked.api_key = "another"
    done = run("enrich", source, "-o", "out.csv", "--status", "nts", "--progress", "none")
    assert done.returncode == 4
    assert not (tmp_path / "out.csv").exists()
    assert "key" in done.stderr
    assert KEY not in done.stderr
    going_on = run("enrich", source, "-o", "out.csv", "--progress", "none")
    assert going_on.returncode == 3
    assert going_on.stderr.startswith("ATTENTION: 0 of 6 statuses checked (0 by nts), so no row says `send`")
    assert "key" in going_on.stderr.splitlines()[0]


@pytest.mark.parametrize(("refusal", "joint"), [("key", True), ("day", False)])
def test_a_refusal_takes_no_list_of_letters_away(
    run: Run, asked: FakeNts, source: Path, tmp_path: Path, refusal: str, joint: bool
) -> None:
    """The list of the last night stays as it was, exit 3, and the first lines say so; --allow-empty replaces it."""
    inputs = ["enrich", source, *([str(tmp_path / "none*.csv"), "-o", "out"] if joint else ["-o", "out.csv"])]
    write(tmp_path / "none.csv", "사업자번호,상호,주소\n")
    letters = tmp_path / "letters.csv"
    assert run(*inputs, "--letters", letters, "--progress", "none").returncode == 0
    before = letters.read_bytes()
    assert len(before.splitlines()) > 1
    age(40)
    if refusal == "key":
        asked.api_key = "another"
    else:
        asked.daily_limit = asked.numbers
    age(60)
    done = run(*inputs, "--letters", letters, "--progress", "none", "--json")
    assert (done.returncode, letters.read_bytes()) == (3, before)
    told = json.loads(done.stdout)
    assert (told["letters"]["letters"], told["letters"]["path"], told["asked"]["refused"]) == (0, None, True)
    assert told["letters"]["kept"] == str(letters)
    allowed = run(*inputs, "--letters", letters, "--progress", "none", "--allow-empty")
    assert (allowed.returncode, letters.read_bytes().splitlines()) == (3, before.splitlines()[:1])


@pytest.mark.process
def test_ctrl_c_while_statuses_are_fetched_loses_none_and_the_same_command_goes_on(
    asked: FakeNts, tmp_path: Path
) -> None:
    rows = "\n".join(f"{1_000_000_000 + place},{ADDRESS}" for place in range(4_000))
    source, output = write(tmp_path / "in.csv", f"b_no,주소\n{rows}\n"), tmp_path / "out.csv"
    asked.default, asked.latency = "active", 0.05
    command = [sys.executable, "-m", "bansong", "enrich", str(source), "-o", str(output), "--progress", "none"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    while asked.numbers < 1_000 and process.poll() is None:
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert not output.exists()
    assert asked.numbers < 4_000
    report = bs.enrich(source, output)
    assert report.statuses is not None
    assert (report.statuses.checked, asked.asked_again) == (4_000, 0)


def test_the_key_stands_in_nothing_that_a_run_leaves_behind(
    run: Run, asked: FakeNts, source: Path, tmp_path: Path, state_directory: Path
) -> None:
    key = write(tmp_path.parent / f"{tmp_path.name}-key.txt", f"{KEY}\n")
    env = {"BANSONG_LOG": "debug", "BANSONG_NTS_KEY": "", "BANSONG_NTS_KEY_FILE": str(key)}
    done = run("enrich", source, "-o", "out.csv", "--json", "--progress", "plain", env=env)
    assert (done.returncode, asked.calls) == (0, 1)
    files = [path for folder in (tmp_path, state_directory) for path in folder.rglob("*") if path.is_file()]
    assert {"out.csv", "statuses.sqlite"} < {path.name for path in files}
    left = [done.stdout, done.stderr, *asked.urls, *(path.read_bytes().decode("latin-1") for path in files)]
    assert not [text for text in left if KEY in text or KEY.partition("/")[0] in text]


def test_a_token_stops_the_fetching_and_nothing_is_published(asked: FakeNts, tmp_path: Path) -> None:
    rows = "\n".join(f"{1_000_000_000 + place},{ADDRESS}" for place in range(2_000))
    source, output = write(tmp_path / "in.csv", f"b_no,주소\n{rows}\n"), tmp_path / "out.csv"
    asked.default, asked.latency = "active", 0.05
    token = bs.CancelToken()

    def cancel_midway() -> None:
        while asked.numbers < 500:
            time.sleep(0.005)
        token.cancel()

    stopper = threading.Thread(target=cancel_midway)
    stopper.start()
    with pytest.raises(StoppedError, match="the same call goes on"):
        bs.enrich(source, output, cancel=token)
    stopper.join()
    assert not output.exists()
    bs.enrich(source, output)
    assert (asked.numbers, asked.asked_again) == (2_000, 0)


def test_a_store_that_another_process_holds_costs_no_known_status(
    asked: FakeNts, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bansong.base.sqlite._LOCK_TIMEOUT_S", 0.1)
    out = tmp_path / "out.csv"
    bs.enrich(source, out)
    held, calls = out.read_bytes(), asked.calls
    store = Path(os.environ["BANSONG_STATE_DIR"]) / "statuses.sqlite"
    with closing(sqlite3.connect(store, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreError, match="another process is writing to it for long; try again") as raised:
            bs.enrich(source, out)
        assert raised.value.exit_code == 2
        with pytest.raises(StoreError, match="try again"):
            bs.fetch_status(NUMBERS)
    assert (out.read_bytes(), asked.calls) == (held, calls)
    assert bs.enrich(source, out).counts["verified"] == 6
