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

import polars as pl
import pytest

import bansong as bs
from bansong.base.schema import SEOUL
from bansong.client.retries import RetryBudget
from bansong.jobs.run import run_job
from bansong.jobs.state import RunStore, compare_runs, state_folder
from bansong.reference.status_store import STATUS_FILE
from bansong.run.changes import CHANGE
from bansong.testing import NTS_FAULTS, FakeNts, Fault, serve
from conftest import write
from customers import numbers
from nightly_jobs import DAY, FIRST_NIGHT, kinds

Run = Callable[..., subprocess.CompletedProcess[str]]
KEY = "free-key/0123456789=="
HEADERS = ("사업자번호", "상호", "주소")
OUTAGES = ("page_503", "unregistered_key", "day_limit_text")


@dataclass
class AskedNights:
    """A job that runs each night over ``in.csv``, with statuses of a fake of the tax authority."""

    folder: Path
    fake: FakeNts
    rows: list[tuple[str, str, str]] = field(default_factory=list)
    headers: tuple[str, ...] = HEADERS
    night: int = 0

    def write_job(self, end: str = "", inputs: str = 'path = "in.csv"', status: str = "max_age = 0") -> None:
        write(
            self.folder / "job.toml",
            f"lang = 'en'\n[[inputs]]\n{inputs}\n[status]\n{status}\n[notify]\nfile = 'told.txt'\n{end}",
        )

    def now(self) -> float:
        return FIRST_NIGHT + self.night * DAY

    def run(self) -> bs.JobReport:
        """Write the list and run the job of this night; the next call is the next night's."""
        lines = [",".join(row[: len(self.headers)]) for row in self.rows]
        write(self.folder / "in.csv", "\n".join([",".join(self.headers), *lines, ""]))
        report = run_job(self.folder / "job.toml", now=self.now)
        self.night += 1
        return report

    def close(self, *b_nos: str) -> None:
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
    fake = FakeNts(KEY, default="active")
    monkeypatch.setattr(RetryBudget, "backoff", lambda *_: 0.001)
    monkeypatch.setenv("BANSONG_NTS_KEY", KEY)
    with serve(fake) as url:
        monkeypatch.setenv("BANSONG_NTS_URL", f"{url}/api/nts-businessman/v1/status")
        nights = AskedNights(tmp_path, fake, [row_of(b_no) for b_no in numbers(30)])
        nights.write_job()
        yield nights


def closed_in(report: bs.JobReport) -> list[str]:
    return report.changes.filter(pl.col(CHANGE).list.contains("closed"))["b_no"].to_list()


# ── a closure is a fact of the number ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.fuzz) for seed in range(1, 8))])
def test_each_closure_of_thirty_nights_is_told_once(
    seed: int, asked: AskedNights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are edited, spaced otherwise, doubled, away and back; the tax authority fails, runs are killed."""
    chance = random.Random(seed)
    at_first = numbers(60)
    listed, fresh = list(at_first), iter(numbers(100)[60:])
    edits: Counter[str] = Counter()
    doubles: set[str] = set()
    away: dict[str, int] = {}
    seen_open: set[str] = set()
    closed, told = list[str](), list[str]()
    for night in range(30):
        trouble = chance.choice(["", "", "", "kill", *OUTAGES]) if 0 < night < 27 else ""
        asked.fail(trouble if trouble in OUTAGES else None)
        rows = [row_of(b_no, edits[b_no]) for b_no in listed if away.get(b_no, 0) <= night]
        rows += [
            (b_no, f"지점{edits[b_no]}", "부산시 중구 중앙대로 1") for b_no in doubles if away.get(b_no, 0) <= night
        ]
        rows = [(b_no, name.replace(" ", chance.choice([" ", "  ", ""])), place) for b_no, name, place in rows]
        asked.rows = chance.sample(rows, len(rows))
        if trouble == "kill":
            with monkeypatch.context() as patch:
                patch.setattr(RunStore, "commit_run", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
                with pytest.raises(KeyboardInterrupt):
                    asked.run()
            asked.night -= 1
        told += closed_in(asked.run())
        if trouble not in OUTAGES:
            seen_open |= {row[0] for row in rows} - set(closed)
        if night < 25:
            closing_now = chance.sample(sorted(seen_open - set(closed)), 2)
            closed += closing_now
            asked.close(*closing_now)
            for b_no in (*closing_now, *chance.sample(listed, 3)):
                edits[b_no] += chance.choice([0, 1])
                away[b_no] = night + chance.choice([0, 0, 2, 4])
            doubles ^= {*chance.sample(closing_now, 1), *chance.sample(listed, 2)}
            listed.append(next(fresh))
    assert sorted(told) == sorted(closed)
    month = compare_runs(asked.folder / "job.toml", "last-29", "last")
    over_all = month.filter(pl.col(CHANGE).list.contains("closed"))["b_no"].to_list()
    assert sorted(over_all) == sorted(b_no for b_no in closed if b_no in at_first)


def test_a_number_of_several_edited_rows_is_told_once(asked: AskedNights) -> None:
    """Two rows of one number are edited on the night on which it closes; over the week it is one closure, too."""
    b_no = numbers(30)[3]
    asked.rows.append((b_no, "지점", "부산시 중구 중앙대로 1"))
    asked.run()
    asked.close(b_no)
    asked.rows = [row if row[0] != b_no else (b_no, row[1] + "(주)", row[2]) for row in asked.rows]
    report = asked.run()
    assert (closed_in(report), report.counts["closed"]) == ([b_no], 1)
    before = report.changes.filter(pl.col(CHANGE).list.contains("closed"))
    assert before.select("biz_status_before", "biz_status").row(0) == ("active", "closed")
    assert closed_in(asked.run()) == []
    week = compare_runs(asked.folder / "job.toml", "last-2", "last")
    assert sum("closed" in row for row in week[CHANGE]) == 1


@pytest.mark.parametrize(("nights_away", "is_told"), [(1, True), (30, True), (31, False)])
def test_a_number_that_was_away_is_compared_for_thirty_nights(
    nights_away: int, is_told: bool, asked: AskedNights
) -> None:
    """What closed while its row was away is told when it is back; later it is a new row like any other."""
    back = asked.rows[5]
    asked.run()
    asked.rows.remove(back)
    asked.run()
    asked.close(back[0])
    asked.night += nights_away - 1
    if nights_away > 30:
        asked.night -= 1
        asked.run()  # a row is dropped when a run sees that it is too old
    asked.rows.append(back)
    assert closed_in(asked.run()) == ([back[0]] if is_told else [])
    assert closed_in(asked.run()) == []


def test_white_space_is_no_edit(asked: AskedNights) -> None:
    """Also where two rows have one number, so that the number alone does not tell them apart."""
    asked.rows.append((asked.rows[0][0], "부산 지점", "부산시 중구 중앙대로 1"))
    asked.run()
    asked.rows = [(b_no, name.replace(" ", ""), f" {place.replace(' ', '  ')}") for b_no, name, place in asked.rows]
    assert kinds(asked.run()) == {}


def test_a_state_of_the_release_before_is_read(asked: AskedNights) -> None:
    """Its snapshot has keys with white space, and its inputs neither columns nor a day of statuses."""
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
    asked.close(asked.rows[0][0])
    assert kinds(asked.run()) == {"closed": 1, "risk_up": 1, "action_up": 1}


# ── what could not be asked ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("fault", "exit_code"), [("page_503", 5), ("day_limit", 5), ("day_limit_text_429", 5), ("unregistered_key", 3)]
)
def test_a_night_on_which_nobody_could_be_asked_is_told(fault: str, exit_code: int, asked: AskedNights) -> None:
    """The exit code says it at once; channels are told of a refused key at once, of another failure at the second."""
    asked.run()
    asked.fail(fault)
    first = asked.run()
    assert (first.exit_code, first.inputs[0].unasked) == (exit_code, 30)
    assert not any("nothing changed" in line for line in asked.told)
    assert bool(asked.told) == (exit_code == 3)
    if fault.startswith("day_limit"):
        asked.fail(fault)
    second = asked.run()
    assert (second.exit_code, second.message is not None) == (exit_code, True)
    assert "2 nights in a row" in (second.message or "")
    assert "nothing changed" not in (second.message or "")
    asked.fail(None)
    told = len(asked.told)
    assert (asked.run().exit_code, len(asked.told)) == (0, told)
    asked.fail(fault)
    assert "in a row" not in (asked.run().message or "")


def test_a_second_run_of_one_night_is_no_second_night(asked: AskedNights) -> None:
    asked.run()
    asked.fail("page_503")
    asked.run()
    asked.night -= 1
    assert asked.run().message is None


def test_a_key_that_the_job_must_use_and_is_refused_fails_the_input(asked: AskedNights) -> None:
    asked.write_job(status='max_age = 0\nsource = "nts"')
    asked.run()
    asked.fail("forbidden")
    report = asked.run()
    assert (report.exit_code, report.inputs[0].what) == (4, "failed")
    assert len(asked.told) == 2
    assert not any("nothing changed" in line for line in asked.told)


def test_a_key_that_is_not_there_any_more_is_told(asked: AskedNights, monkeypatch: pytest.MonkeyPatch) -> None:
    """`auto` asks nobody without a key: a night from cron without the variable is no quiet night."""
    asked.run()
    monkeypatch.delenv("BANSONG_NTS_KEY")
    for _ in range(2):
        report = asked.run()
        assert (report.exit_code, report.inputs[0].unasked, report.message is None) == (3, 30, False)
    asked.write_job(status='max_age = 0\nsource = "none"')
    assert asked.run().exit_code == 0


def test_quiet_prints_the_alert(asked: AskedNights, run: Run) -> None:
    asked.write_job()
    asked.run()
    asked.fail("forbidden")
    done = run("run", "job.toml", "--quiet", env={"BANSONG_NTS_KEY": KEY})
    assert done.returncode == 3
    assert "ATTENTION" in done.stderr
    assert KEY not in done.stderr


def test_statuses_of_an_unchanged_list_are_asked_again_in_time(asked: AskedNights) -> None:
    """An input is skipped while its oldest status is young enough, not for a week from its last look."""
    asked.write_job(status="max_age = 5", end="[run]\nskip_unchanged_days = 7\n")
    for _ in range(4):
        asked.run()
    asked.write_job(
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


# ── damaged lists ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("before", "after", "fails"),
    [(30, 14, True), (30, 15, False), (19, 1, False), (20, 9, True), (20, 10, False), (19, 0, True)],
)
def test_an_input_that_lost_most_of_its_rows_fails(before: int, after: int, fails: bool, asked: AskedNights) -> None:
    """It fails and is told, the output stays, its rows are not gone; with `force` it is verified."""
    whole = asked.rows[:before]
    asked.rows = whole
    first = asked.run()
    output = Path(str(first.inputs[0].output))
    written = output.read_bytes()
    asked.rows = whole[:after]
    report = asked.run()
    assert (report.exit_code, report.inputs[0].what) == ((2, "failed") if fails else (0, "verified"))
    if fails:
        assert (output.read_bytes(), report.counts["gone"], len(asked.told)) == (written, 0, 2)
        asked.write_job(inputs='path = "in.csv"\nforce = true')
        assert (asked.run().counts["gone"]) == before - after


def test_another_list_under_the_same_name_fails(asked: AskedNights) -> None:
    asked.run()
    asked.rows = [row_of(b_no) for b_no in numbers(60)[30:]]
    assert asked.run().inputs[0].what == "failed"


@pytest.mark.parametrize("name", ["비고", "참고 사항"])
def test_an_address_column_that_is_not_found_any_more_is_told(name: str, asked: AskedNights) -> None:
    """Only closures are compared on the night it is missing, and on the one on which it is back."""
    asked.rows = [(b_no, company, f"{place} {place[-2:].strip()}층") for b_no, company, place in asked.rows]
    asked.run()
    rows, b_no = asked.rows, asked.rows[2][0]
    asked.close(b_no)
    asked.headers, asked.rows = (*HEADERS[:2], name), [(b_no, company, "없음") for b_no, company, _ in rows]
    report = asked.run()
    assert (report.exit_code, report.inputs[0].lost) == (3, ("address",))
    assert kinds(report) == {"closed": 1}
    assert len(asked.told) > 0
    assert kinds(asked.run()) == {}
    asked.headers, asked.rows = HEADERS, rows
    back = asked.run()
    assert (back.exit_code, kinds(back)) == (0, {})


def test_numbers_that_are_not_found_any_more_fail_the_input(asked: AskedNights) -> None:
    """It never becomes a list of addresses, whatever the job allows."""
    asked.write_job(inputs='path = "in.csv"\nforce = true')
    asked.run()
    asked.headers, asked.rows = ("비고", *HEADERS[1:]), [("없음", *row[1:]) for row in asked.rows]
    report = asked.run()
    assert (report.exit_code, report.inputs[0].what) == (2, "failed")
    assert json.dumps(report.as_dict())
    assert len(asked.told) > 0
