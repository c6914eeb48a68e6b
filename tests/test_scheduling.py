"""Scheduled jobs: runs one after the other, what changed, and what is told."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from filelock import FileLock
from hypothesis import given
from hypothesis import strategies as st

from bansong.errors import AccountingError
from bansong.jobs.state import RunStore, state_folder
from bansong.run import accounting, changes
from bansong.run.changes import (
    BEFORE,
    CHANGE,
    CHANGES,
    GONE,
    KEY,
    SNAPSHOT,
    advance,
    combine,
    compare,
    count_kinds,
    of_kinds,
    settle,
)
from bansong.testing import FakeService
from conftest import write
from customers import KEY as API_KEY
from customers import customers, numbers
from examples import examples
from nightly_jobs import Nights, kinds

Run = Callable[..., subprocess.CompletedProcess[str]]
TODAY = date(2026, 11, 20)


# ── what changed ─────────────────────────────────────────────────────────────────────────────────────────────────


def snapshot(**rows: dict[str, Any]) -> pl.DataFrame:
    usual = {"input": "in", "biz_status": "active", "grade": "B", "action": "send", "row_status": "verified"}
    return pl.DataFrame([usual | {KEY: key} | row for key, row in rows.items()], schema=SNAPSHOT)


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ({}, {"biz_status": "closed"}, ["closed"]),
        ({}, {"biz_status": "suspended"}, ["suspended"]),
        ({"biz_status": "closed"}, {}, ["reopened"]),
        ({"biz_status": "unknown"}, {"biz_status": "closed"}, ["closed"]),
        ({}, {"grade": "D", "action": "hold"}, ["risk_up", "action_up"]),
        ({"grade": "D", "action": "hold"}, {}, ["risk_down", "action_down"]),
        ({"fixed_address": "a"}, {"fixed_address": "b"}, ["address"]),
        ({}, {"fixed_address": "b"}, []),
        ({}, {"biz_status": "unknown"}, None),
        ({}, {"row_status": "pending", "biz_status": None, "grade": None, "action": None}, None),
        ({}, {"bounce_prob": 0.9}, None),
    ],
)
def test_each_kind_of_change(before: dict[str, Any], after: dict[str, Any], found: list[str] | None) -> None:
    """A row counts as what became of it; what could not be found out this time is no change."""
    old = snapshot(a=before)
    changed = compare(old, settle(snapshot(a=after), old))
    assert changed[CHANGE].to_list() == ([] if found is None else [found])


def test_new_and_gone_rows_count_as_nothing_else() -> None:
    """A closed business that is new on the list is new, and one that is gone is gone."""
    old, new = snapshot(a={}, b={"biz_status": "closed"}), snapshot(a={}, c={"biz_status": "closed", "name": "가"})
    changed = compare(old, settle(new, old))
    assert dict(changed.select(KEY, CHANGE).iter_rows()) == {"c": ["new"], "b": ["gone"]}


ROW = st.fixed_dictionaries(
    {
        "biz_status": st.sampled_from(["active", "closed", "suspended", "unknown"]),
        "grade": st.sampled_from(["A", "C", "E"]),
        "row_status": st.sampled_from(["verified", "pending"]),
    }
)


@examples(40)
@given(st.lists(st.dictionaries(st.sampled_from("abcd"), ROW, max_size=4), min_size=2, max_size=5))
def test_what_changed_over_several_runs_is_what_changed_from_the_first_to_the_last(
    states: list[dict[str, dict[str, Any]]],
) -> None:
    """Put together, the changes of the runs between are those of the first and the last; hashes change nothing."""
    settled, steps = [snapshot(**states[0])], []
    for state in states[1:]:
        after, changed = advance(settled[-1], snapshot(**state), TODAY)
        assert after.filter(pl.col(GONE).is_null()).equals(settle(snapshot(**state), settled[-1]))
        known = settled[-1]
        listed, now = (rows.filter(pl.col(GONE).is_null()) for rows in (known, after))
        assert changed.equals(compare(listed, now, known))
        settled.append(after)
        steps.append(changed)
    kept = (KEY, CHANGE, "biz_status", f"biz_status{BEFORE}", "grade", f"grade{BEFORE}")
    last = settled[-1].filter(pl.col(GONE).is_null())
    direct, over = (frame.select(kept).sort(KEY) for frame in (compare(settled[0], last), combine(steps)))
    assert over.equals(direct)


def test_the_changes_of_a_row_are_those_that_the_job_names() -> None:
    """Kinds that a job does not name are not told, and rows that have no other are left out."""
    old = snapshot(a={}, b={})
    changed = compare(old, snapshot(a={"biz_status": "closed", "grade": "E"}, b={"grade": "C"}))
    assert of_kinds(changed, ["closed"])[CHANGE].to_list() == [["closed"]]
    assert count_kinds(changed) == dict.fromkeys(CHANGES, 0) | {"closed": 1, "risk_up": 2}


# ── runs ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_closure_is_told_once(nights: Nights) -> None:
    """The first run has nothing to compare with; the night after a closure tells it, and no later one does."""
    nights.write_job(end='[notify]\nfile = "told.txt"\n')
    assert (nights.run().since, kinds(nights.run())) == (None, {})
    gone = list(nights.statuses)[3]
    nights.statuses[gone] = "closed"
    nights.write_inputs()
    report = nights.run()
    assert kinds(report)["closed"] == 1
    assert report.changes.filter(pl.col(CHANGE).list.contains("closed"))["b_no"].to_list() == [gone]
    assert kinds(nights.run()) == {}
    told = (nights.folder / "told.txt").read_text("utf-8").splitlines()
    assert len(told) == 1
    assert "1 newly closed" in told[0]
    assert gone not in told[0]


def test_an_input_that_is_as_before_is_not_verified_again(nights: Nights) -> None:
    """The second run leaves it, its output under the name of the day; another registry, or time, has it verified."""
    outputs = '[output]\npath = "out/{name}.{date}.csv"\nlatest = "out/latest.csv"\n'
    nights.write_job(end=f"{outputs}[run]\nskip_unchanged_days = 3\n")
    whats = [nights.run().inputs[0].what for _ in range(5)]
    assert whats == ["verified", "unchanged", "unchanged", "verified", "unchanged"]
    written = sorted(path.name for path in (nights.folder / "out").iterdir())
    assert written == [*(f"in.2026-11-{day}.csv" for day in range(20, 25)), "latest.csv"]
    nights.write_inputs()  # a registry of another day
    assert nights.run().inputs[0].what == "verified"


def test_outputs_are_no_inputs_of_the_next_night(nights: Nights) -> None:
    """What a job wrote into the folder that it reads is not verified by it, tonight or later."""
    nights.write_job(
        inputs='path = "*.csv"', end='[output]\npath = "{name}.{date}.csv"\nchanges = "changes.{date}.csv"\n'
    )
    for _ in range(3):
        nights.statuses[list(nights.statuses)[nights.night]] = "closed"
        nights.write_inputs()
        assert [Path(one.path).name for one in nights.run().inputs] == ["in.csv"]


def test_one_input_that_fails_does_not_stop_the_others_nor_lose_what_was_known(nights: Nights) -> None:
    """It is told with its error and exit code 2; the others are verified; its rows are neither gone nor new later."""
    nights.write_job(inputs='path = "*.csv"', end='[output]\npath = "out/{name}.csv"\n')
    write(nights.folder / "second.csv", f"사업자번호,상호\n{numbers(14)[13]},나\n")
    assert nights.run().exit_code == 0
    whole = (nights.folder / "second.csv").read_bytes()
    write(nights.folder / "second.csv", "")
    report = nights.run()
    assert (report.exit_code, [one.what for one in report.inputs]) == (2, ["unchanged", "failed"])
    assert kinds(report) == {}
    (nights.folder / "second.csv").write_bytes(whole)
    assert kinds(nights.run()) == {}


def test_an_input_that_is_not_there_is_told_and_its_rows_are_not_gone(nights: Nights) -> None:
    """A file that did not arrive tonight fails alone; when it is back, nothing has changed."""
    nights.write_job(inputs='path = "in.csv"\n[[inputs]]\npath = "second.csv"', end='[notify]\nfile = "told.txt"\n')
    second = write(nights.folder / "second.csv", f"사업자번호,상호\n{numbers(14)[13]},나\n")
    nights.run()
    second.rename(nights.folder / "away")
    report = nights.run()
    assert (report.exit_code, kinds(report)) == (2, {})
    assert "second.csv: does not exist" in (nights.folder / "told.txt").read_text("utf-8")
    (nights.folder / "away").rename(second)
    assert kinds(nights.run()) == {}


def test_a_row_of_two_inputs_is_gone_only_when_both_lose_it(nights: Nights) -> None:
    """A row that stands in two files is there while it stands in one."""
    nights.write_job(inputs='path = "in.csv"\n[[inputs]]\npath = "second.csv"')
    (nights.folder / "second.csv").write_bytes((nights.folder / "in.csv").read_bytes())
    nights.run()
    whole = list(nights.statuses)
    nights.write_inputs(whole[1:])
    assert kinds(nights.run()) == {}
    (nights.folder / "second.csv").write_bytes((nights.folder / "in.csv").read_bytes())
    assert kinds(nights.run()) == {"gone": 1}


def test_a_run_that_was_killed_before_it_was_written_down_is_done_again(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after its outputs are there, it leaves the state before, and the next run tells the same closure."""
    nights.run()
    nights.statuses[next(iter(nights.statuses))] = "closed"
    nights.write_inputs()
    with monkeypatch.context() as patch:
        patch.setattr(RunStore, "commit_run", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            nights.run()
    assert kinds(nights.run())["closed"] == 1


def test_a_message_that_was_not_taken_is_told_by_the_next_run(nights: Nights) -> None:
    """A command that fails is said; the next run delivers the message, with nothing new of its own."""
    flag = nights.folder / "works"
    mail = (
        "import sys, pathlib; works = pathlib.Path('works').exists(); "
        "open('mail.txt', 'a').write(sys.stdin.read()) if works else sys.exit(1)"
    )
    nights.write_job(
        'lang = "ko"', end=f"[notify]\ncommand = [{json.dumps(sys.executable)}, '-c', {json.dumps(mail)}]\n"
    )
    nights.run()
    nights.statuses[next(iter(nights.statuses))] = "closed"
    nights.write_inputs()
    failed = nights.run()
    assert any("ended with 1" in problem for problem in failed.problems)
    flag.touch()
    assert nights.run().problems == ()
    assert nights.run().problems == ()
    assert (nights.folder / "mail.txt").read_text("utf-8").split("\n")[0].endswith("새로 폐업 1곳, 반송 위험 상승 1곳")
    assert (nights.folder / "mail.txt").read_text("utf-8").count("새로 폐업") == 1


def test_two_runs_of_a_job_do_not_overlap(nights: Nights, run: Run) -> None:
    """A run that finds another under way does nothing, says so, and ends with exit code 6."""
    nights.run()
    state = next(state_folder().glob("*.sqlite"))
    with FileLock(f"{state}.lock"):
        done = run("run", "job.toml")
    assert (done.returncode, "is under way" in done.stderr) == (6, True)
    assert run("run", "job.toml").returncode == 0


def test_quiet_is_quiet_unless_something_happened(nights: Nights, run: Run) -> None:
    """Cron mails nothing after a night without changes, and the report after another one."""
    assert run("run", "job.toml", "--quiet").stderr == ""
    assert run("run", "job.toml", "--quiet").stderr == ""
    nights.statuses[next(iter(nights.statuses))] = "closed"
    nights.write_inputs()
    done = run("run", "job.toml", "--quiet")
    assert (done.returncode, "1 newly closed" in done.stderr, done.stdout) == (0, True, "")


def test_runs_are_listed_shown_and_compared(nights: Nights, run: Run) -> None:
    """`runs` knows each run; what changed over several is told as one comparison, as text and as a file."""
    for night in range(3):
        nights.run()
        nights.statuses[list(nights.statuses)[night]] = "closed"
        nights.write_inputs()
    nights.run()
    listed = json.loads(run("runs", "list", "job.toml", "--json").stdout)["runs"]
    assert [one["counts"].get("closed", 0) for one in listed] == [0, 1, 1, 1]
    assert "closed 1" in run("runs", "show", "job.toml").stdout
    assert "1 row changed" in run("runs", "diff", "job.toml").stdout
    done = run("runs", "diff", "job.toml", "last-2", "last", "-o", "changes.xlsx")
    assert "closed 2" in done.stdout
    assert pl.read_excel(nights.folder / "changes.xlsx").height == 2
    assert run("runs", "diff", "job.toml", "last", "last-1").returncode == 2


def test_no_cell_of_a_file_of_changes_begins_a_formula(tmp_path: Path) -> None:
    """A name that a spreadsheet would take for a formula stands behind an apostrophe in a CSV file."""
    changed = compare(snapshot(), snapshot(a={"name": '=HYPERLINK("http://x")', "address": "-1", "b_no": "1248100998"}))
    changes.write_changes(changed, tmp_path / "changes.csv")
    found = pl.read_csv(tmp_path / "changes.csv", infer_schema=False)
    assert found.select("name", "address", "b_no").row(0) == ('\'=HYPERLINK("http://x")', "'-1", "1248100998")


def test_what_is_paid_is_what_is_new(
    nights: Nights, service: FakeService, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over nights, an engine that buys pays each distinct row once; a budget is one for all inputs, and carries on."""
    monkeypatch.setenv("NIGHTLY_KEY", API_KEY)
    for name in ("a", "b"):
        customers(nights.folder / f"{name}.csv", 6 if name == "a" else 10)
    engine = f'[engine]\nname = "verify"\nbase_url = "{url}"\nkey_env = "NIGHTLY_KEY"\nbudget = 4\n'
    write(nights.folder / "job.toml", '[[inputs]]\npath = "[ab].csv"\n[output]\npath = "out/{name}.csv"\n' + engine)
    reports = [nights.run() for _ in range(4)]
    assert [sum(one.paid for one in report.inputs) for report in reports] == [4, 4, 2, 0]
    assert [report.exit_code for report in reports] == [5, 5, 0, 0]


def test_what_a_failed_input_has_paid_counts_against_the_budget(
    nights: Nights, service: FakeService, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An input that fails after its lookups were bought leaves the others what is left of the budget, and says so."""
    monkeypatch.setenv("NIGHTLY_KEY", API_KEY)
    for name, rows in (("a", 3), ("b", 10)):
        customers(nights.folder / f"{name}.csv", rows)
    engine = f'[engine]\nname = "verify"\nbase_url = "{url}"\nkey_env = "NIGHTLY_KEY"\nbudget = 4\n'
    write(nights.folder / "job.toml", '[[inputs]]\npath = "[ab].csv"\n[output]\npath = "out/{name}.csv"\n' + engine)

    def lose_a_row(rows_in: int, *_: Any) -> None:
        if rows_in == 3:
            raise AccountingError("nothing was published, the rows do not balance")

    with monkeypatch.context() as patch:
        patch.setattr(accounting, "check_balance", lose_a_row)
        report = nights.run()
    assert [(one.what, one.paid) for one in report.inputs] == [("failed", 3), ("verified", 1)]
    assert service.paid_total == 4
    reports = [nights.run() for _ in range(2)]
    assert service.paid_again == 0
    assert reports[0].inputs[0].what == "verified"


def test_a_row_that_is_edited_alone_is_paid_again(
    nights: Nights, service: FakeService, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over nights, rows that are new or edited are paid, each once; rows that repeat others, moved or go are not."""
    monkeypatch.setenv("NIGHTLY_KEY", API_KEY)
    path = customers(nights.folder / "in.csv", 10)
    head, *rows = path.read_text("utf-8").splitlines()
    engine = f'[engine]\nname = "verify"\nbase_url = "{url}"\nkey_env = "NIGHTLY_KEY"\n'
    write(nights.folder / "job.toml", f'[[inputs]]\npath = "in.csv"\n{engine}')
    edited = [row.replace("상사 3,", "상사 삼,") for row in rows]
    lists = [rows, rows, edited, [*edited, *edited[:4]], edited[::-1], edited[2:], rows]
    paid = []
    for one in lists:
        write(path, "\n".join([head, *one, ""]))
        paid.append(nights.run().inputs[0].paid)
    assert paid == [10, 0, 1, 0, 0, 0, 0]
    assert (service.paid_total, service.paid_again) == (11, 0)


def test_the_deadline_ends_a_run_in_good_order(nights: Nights) -> None:
    """Inputs that do not begin before it are left for the next run, with exit code 5, and lose nothing."""
    nights.run()
    nights.statuses[next(iter(nights.statuses))] = "closed"
    nights.write_inputs()
    report = nights.run(deadline=0.0)
    assert (report.exit_code, [one.what for one in report.inputs], kinds(report)) == (5, ["left"], {})
    assert kinds(nights.run())["closed"] == 1


def test_what_was_bought_before_the_deadline_is_counted_and_not_bought_again(
    nights: Nights, service: FakeService, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that its deadline ends while it buys says how much it bought; the next one buys the rest."""
    monkeypatch.setenv("NIGHTLY_KEY", API_KEY)
    engine = f'[engine]\nname = "verify"\nrate = {{}}\nconcurrency = 1\nbase_url = "{url}"\nkey_env = "NIGHTLY_KEY"\n'
    write(nights.folder / "job.toml", f'[[inputs]]\npath = "in.csv"\n{engine.format(4)}')
    report = nights.run(deadline=1.5)
    assert (report.exit_code, report.inputs[0].what) == (5, "left")
    assert 0 < report.inputs[0].paid == service.paid_total < 12
    write(nights.folder / "job.toml", f'[[inputs]]\npath = "in.csv"\n{engine.format(1000)}')
    assert nights.run().exit_code == 0
    assert (service.paid_total, service.paid_again) == (12, 0)


def test_a_forgotten_number_leaves_the_state_of_jobs(nights: Nights, run: Run) -> None:
    """`forget` reaches what jobs remember; the number is not told as gone when the list has it no more."""
    nights.run()
    gone = next(iter(nights.statuses))
    nights.statuses[gone] = "closed"
    nights.write_inputs()
    nights.run()
    report = json.loads(run("forget", gone, "--yes", "--json").stdout)
    assert [store["counts"] for store in report["stores"] if store["store"] == "job"] == [{"answers": 1, "changes": 1}]
    assert not any(gone.encode() in path.read_bytes() for path in state_folder().iterdir())
    del nights.statuses[gone]
    nights.write_inputs()
    assert kinds(nights.run()) == {}


def test_a_month_of_nights(nights: Nights) -> None:
    """Rows come, go and close at random; every closure is told once, and the list is right at the end."""
    chance = random.Random(7)
    nights.statuses = dict.fromkeys(numbers(60), "active")
    fresh = iter(numbers(200)[60:])
    told: list[str] = []
    closed: list[str] = []
    for night in range(14):
        nights.write_inputs()
        if night == 5:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(RunStore, "commit_run", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
                with pytest.raises(KeyboardInterrupt):
                    nights.run()
        report = nights.run()
        told += report.changes.filter(pl.col(CHANGE).list.contains("closed"))["b_no"].to_list()
        active = [b_no for b_no, status in nights.statuses.items() if status == "active"]
        closing = chance.sample(active, 2)
        closed += closing
        nights.statuses |= dict.fromkeys(closing, "closed") | {next(fresh): "active"}
    assert told == closed[: len(told)] or sorted(told) == sorted(closed[:-2])
    assert len(told) == len(set(told)) == len(closed) - 2


def test_figures_for_a_monitor_are_in_the_form_of_prometheus(nights: Nights) -> None:
    """The file of `metrics` is one that Prometheus' own parser reads, readable for its collector."""
    parser = pytest.importorskip("prometheus_client.parser")
    nights.write_job(end='[run]\nmetrics = "job.prom"\n')
    nights.run()
    target = nights.folder / "job.prom"
    families = {family.name: family for family in parser.text_string_to_metric_families(target.read_text("utf-8"))}
    assert families["bansong_job_rows"].samples[0].value == 12
    assert families["bansong_job_rows"].samples[0].labels == {"job": "job"}
    assert {one.labels["kind"] for one in families["bansong_job_changes"].samples} == set(CHANGES)
    assert target.stat().st_mode & 0o777 == 0o644


def test_the_kinds_of_a_job_file_are_the_kinds_that_are_found() -> None:
    """No kind of change is named in one place alone."""
    assert set(changes._rules(pl.lit(True), pl.lit(True), pl.lit(True))) == set(CHANGES)
