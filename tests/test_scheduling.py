"""Scheduled jobs: runs one after the other, what changed, what is paid, and who is told."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import anyio
import polars as pl
import pytest
from filelock import FileLock
from hypothesis import given
from hypothesis import strategies as st

from bansong.errors import AccountingError, UsageError
from bansong.jobs.state import RUNS_OUT_OF_ORDER, JobRun, compare_runs, list_runs, state_folder
from bansong.notify import channels
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
    key_expr,
    of_kinds,
    settle,
)
from bansong.testing import FakeService
from conftest import write
from customers import KEY as API_KEY
from customers import customers, numbers
from examples import examples
from hooks import OK, receiving
from korean import english_sentences
from nightly_jobs import Nights, kinds

Run = Callable[..., subprocess.CompletedProcess[str]]
TODAY = date(2026, 11, 20)


def snapshot(**rows: dict[str, Any]) -> pl.DataFrame:
    usual = {"input": "in", "biz_status": "active", "grade": "B", "action": "send", "row_status": "verified"}
    return pl.DataFrame([usual | {KEY: key} | row for key, row in rows.items()], schema=SNAPSHOT)


FOUND: dict[str, tuple[dict[str, Any], dict[str, Any], list[str] | None]] = {
    "closed": ({}, {"biz_status": "closed"}, ["closed"]),
    "suspended": ({}, {"biz_status": "suspended"}, ["suspended"]),
    "open again": ({"biz_status": "closed"}, {}, ["reopened"]),
    "known as closed": ({"biz_status": "unknown"}, {"biz_status": "closed"}, ["closed"]),
    "riskier": ({}, {"grade": "D", "action": "hold"}, ["risk_up", "action_up"]),
    "safer": ({"grade": "D", "action": "hold"}, {}, ["risk_down", "action_down"]),
    "another address": ({"fixed_address": "a"}, {"fixed_address": "b"}, ["address"]),
    "first address": ({}, {"fixed_address": "b"}, []),
    "not known any more": ({}, {"biz_status": "unknown", "grade": "D", "action": "hold"}, None),
    "not known, moved": ({}, {"biz_status": "unknown", "grade": "D", "address": "b"}, ["risk_up"]),
    "pending": ({}, {"row_status": "pending", "biz_status": None, "grade": None, "action": None}, None),
    "another probability": ({}, {"bounce_prob": 0.9}, None),
}
"""What a row was and is, and the kinds of change that are found."""


def test_each_kind_of_change() -> None:
    old = snapshot(**{key: before for key, (before, _, _) in FOUND.items()}, left={"biz_status": "closed"})
    new = snapshot(**{key: after for key, (_, after, _) in FOUND.items()}, came={"biz_status": "closed", "name": "가"})
    found = dict(compare(old, settle(new, old)).select(KEY, CHANGE).iter_rows())
    wanted = {key: kinds for key, (_, _, kinds) in FOUND.items() if kinds is not None} | {
        "left": ["gone"],
        "came": ["new"],
    }
    assert found == wanted


def test_an_edited_row_is_known_by_its_number_unless_several_have_it() -> None:
    old = snapshot(a={"b_no": "1"}, b={"b_no": "2"}, c={"b_no": "2"})
    new = snapshot(edited={"b_no": "1", "biz_status": "closed"}, d={"b_no": "2"}, e={"b_no": "2"})
    found = dict(advance(old, new, TODAY)[1].select(KEY, CHANGE).iter_rows())
    assert found == {"edited": ["closed"], "b": ["gone"], "c": ["gone"], "d": ["new"], "e": ["new"]}


def test_white_space_is_no_edit() -> None:
    names = pl.DataFrame({"name": ["상사 1", "상사1", " 상\t사\u30001 "]})
    assert names.select(key_expr(["name"])).n_unique() == 1


def test_a_row_that_was_away_is_compared_for_thirty_nights() -> None:
    away, _ = advance(snapshot(a={"b_no": "1"}), snapshot(), TODAY)
    found = {}
    for nights in (30, 31):
        kept, _ = advance(away, snapshot(), TODAY + timedelta(days=nights - 1))
        back = advance(kept, snapshot(a={"b_no": "1", "biz_status": "closed"}), TODAY + timedelta(days=nights))
        found[nights] = back[1][CHANGE].to_list()
    assert found == {30: [["closed", "new"]], 31: [["new"]]}


ROW = st.fixed_dictionaries(
    {
        "biz_status": st.sampled_from(["active", "closed", "suspended", "unknown"]),
        "grade": st.sampled_from(["A", "C", "E"]),
        "row_status": st.sampled_from(["verified", "pending"]),
    }
)


@examples(20)
@given(st.lists(st.dictionaries(st.sampled_from("abcd"), ROW, max_size=4), min_size=2, max_size=5))
def test_changes_over_several_runs_are_those_from_first_to_last(states: list[dict[str, dict[str, Any]]]) -> None:
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
    old = snapshot(a={}, b={})
    changed = compare(old, snapshot(a={"biz_status": "closed", "grade": "E"}, b={"grade": "C"}))
    assert of_kinds(changed, ["closed"])[CHANGE].to_list() == [["closed"]]
    assert count_kinds(changed) == dict.fromkeys(CHANGES, 0) | {"closed": 1, "risk_up": 2}


def test_a_row_of_two_inputs_is_gone_only_when_both_lose_it(nights: Nights) -> None:
    nights.write_job(inputs='path = "in.csv"\n[[inputs]]\npath = "second.csv"')
    (nights.folder / "second.csv").write_bytes((nights.folder / "in.csv").read_bytes())
    nights.run()
    whole = list(nights.statuses)
    nights.write_inputs(whole[1:])
    assert kinds(nights.run()) == {}
    (nights.folder / "second.csv").write_bytes((nights.folder / "in.csv").read_bytes())
    assert kinds(nights.run()) == {"gone": 1}


def test_no_cell_of_a_file_of_changes_begins_a_formula(tmp_path: Path) -> None:
    changed = compare(snapshot(), snapshot(a={"name": '=HYPERLINK("http://x")', "address": "-1", "b_no": "1248100998"}))
    changes.write_changes(changed, tmp_path / "changes.csv")
    found = pl.read_csv(tmp_path / "changes.csv", infer_schema=False)
    assert found.select("name", "address", "b_no").row(0) == ('\'=HYPERLINK("http://x")', "'-1", "1248100998")


def test_a_forgotten_number_leaves_the_state_of_jobs(nights: Nights, run: Run) -> None:
    nights.run()
    gone = nights.close()
    nights.run()
    report = json.loads(run("forget", gone, "--yes", "--json").stdout)
    assert [store["counts"] for store in report["stores"] if store["store"] == "job"] == [{"answers": 1, "changes": 1}]
    assert not any(gone.encode() in path.read_bytes() for path in state_folder().iterdir())
    del nights.statuses[gone]
    nights.write_inputs()
    assert kinds(nights.run()) == {}


def test_figures_for_a_monitor_are_in_the_form_of_prometheus(nights: Nights) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    nights.write_job(end='[run]\nmetrics = "job.prom"\n')
    nights.run()
    target = nights.folder / "job.prom"
    families = {family.name: family for family in parser.text_string_to_metric_families(target.read_text("utf-8"))}
    assert families["bansong_job_rows"].samples[0].value == 12
    assert families["bansong_job_rows"].samples[0].labels == {"job": "job"}
    assert {one.labels["kind"] for one in families["bansong_job_changes"].samples} == set(CHANGES)
    assert target.stat().st_mode & 0o777 == 0o644


def test_an_input_that_is_as_before_is_not_verified_again(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(nights.folder))
    outputs = '[output]\npath = "out/{name}.{date}.csv"\nlatest = "out/latest.csv"\n'
    nights.write_job(end=f"{outputs}[run]\nskip_unchanged_days = 2\n")
    job = nights.folder / "job.toml"
    write(job, job.read_text("utf-8").replace("'registry.parquet'", "'~/registry.parquet'"))
    whats = [nights.run().inputs[0].what for _ in range(3)]
    assert whats == ["verified", "unchanged", "verified"]
    written = sorted(path.name for path in (nights.folder / "out").iterdir())
    assert written == [*(f"in.2026-11-{day}.csv" for day in range(20, 23)), "latest.csv"]
    nights.write_inputs()  # a registry of another day
    assert nights.run().inputs[0].what == "verified"


def test_an_input_that_fails_or_is_away_stops_no_other_and_its_rows_are_not_gone(nights: Nights) -> None:
    end = '[output]\npath = "out/{name}.csv"\n[notify]\nfile = "told.txt"\n'
    nights.write_job(inputs='path = "in.csv"\n[[inputs]]\npath = "second.csv"', end=end)
    second = write(nights.folder / "second.csv", f"사업자번호,상호\n{numbers(14)[13]},나\n")
    whole = second.read_bytes()
    assert nights.run().exit_code == 0
    second.write_bytes(b"")
    empty = nights.run()
    second.unlink()
    away = nights.run()
    for report in (empty, away):
        assert (report.exit_code, [one.what for one in report.inputs]) == (2, ["unchanged", "failed"])
        assert kinds(report) == {}
    assert "second.csv: does not exist" in (nights.folder / "told.txt").read_text("utf-8")
    second.write_bytes(whole)
    assert kinds(nights.run()) == {}


def test_two_runs_of_a_job_do_not_overlap(nights: Nights, run: Run) -> None:
    nights.run()
    with FileLock(f"{next(state_folder().glob('*.sqlite'))}.lock"):
        assert run("run", "job.toml").returncode == 6
    assert run("run", "job.toml", "--quiet").stderr == ""


def test_quiet_prints_what_happened_alone(nights: Nights, run: Run) -> None:
    assert [run("run", "job.toml", "--quiet").stderr for _ in range(2)] == ["", ""]
    nights.close()
    done = run("run", "job.toml", "--quiet")
    assert (done.returncode, "1 newly closed" in done.stderr, done.stdout) == (0, True, "")


def test_runs_are_compared_though_the_clock_was_set_back(nights: Nights) -> None:
    nights.run()
    nights.night = -10
    nights.close()
    nights.run()
    job = nights.folder / "job.toml"
    assert compare_runs(job, "last-1", "last").height == 1
    with pytest.raises(UsageError) as refused:
        compare_runs(job, "last", "last-1")
    assert refused.value.code == RUNS_OUT_OF_ORDER.code


def test_a_list_without_the_columns_of_the_key_fails(nights: Nights) -> None:
    found = {}
    for key in ('["zipcode"]', '["zipcode", "name"]', '["b_no"]'):
        nights.write_job(end=f"[changes]\nkey = {key}\n")
        found[key] = nights.run().exit_code
    assert found == {'["zipcode"]': 2, '["zipcode", "name"]': 0, '["b_no"]': 0}


BUYS = '[engine]\nname = "verify"\nrate = {rate}\nconcurrency = 1\nkey_env = "NIGHTLY_KEY"\n'


@pytest.mark.usefixtures("url")
def test_a_budget_is_one_for_all_inputs_also_where_one_fails_after_it_was_bought(
    nights: Nights, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHTLY_KEY", API_KEY)
    for name, rows in (("a", 3), ("b", 10)):
        customers(nights.folder / f"{name}.csv", rows)
    engine = BUYS.format(rate=1000) + "budget = 4\n"
    write(nights.folder / "job.toml", f'[[inputs]]\npath = "[ab].csv"\n[output]\npath = "out/{{name}}.csv"\n{engine}')

    def lose_a_row(rows_in: int, *_: Any) -> None:
        if rows_in == 3:
            raise AccountingError("nothing was published, the rows do not balance")

    with monkeypatch.context() as patch:
        patch.setattr(accounting, "check_balance", lose_a_row)
        report = nights.run()
    assert [(one.what, one.paid) for one in report.inputs] == [("failed", 3), ("verified", 1)]
    reports = [nights.run() for _ in range(3)]
    assert [report.exit_code for report in reports] == [5, 0, 0]
    assert [sum(one.paid for one in report.inputs) for report in reports] == [4, 2, 0]
    assert (service.paid_total, service.paid_again) == (10, 0)


@pytest.mark.usefixtures("url")
def test_what_was_bought_before_the_deadline_is_counted_and_not_bought_again(
    nights: Nights, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHTLY_KEY", API_KEY)
    write(nights.folder / "job.toml", f'[[inputs]]\npath = "in.csv"\n{BUYS.format(rate=4)}')
    report = nights.run(deadline=1.5)
    assert (report.exit_code, report.inputs[0].what) == (5, "left")
    assert 0 < report.inputs[0].paid == service.paid_total < 12
    write(nights.folder / "job.toml", f'[[inputs]]\npath = "in.csv"\n{BUYS.format(rate=1000)}')
    assert nights.run().exit_code == 0
    assert (service.paid_total, service.paid_again) == (12, 0)


def told(nights: Nights) -> list[str]:
    return (nights.folder / "told.txt").read_text("utf-8").splitlines()


def test_every_line_of_the_log_is_json(nights: Nights, run: Run) -> None:
    for text, exit_code in (("[[inputs]]\npath = 'in.csv'\n", 0), ("[[inputs]]\npath = 'no.csv'\n", 2), ("no", 2)):
        (nights.folder / "job.toml").write_text(text, "utf-8")
        done = run("run", "job.toml", "--log-json")
        lines = [json.loads(line) for line in done.stderr.splitlines()]
        assert lines[-1]["exit_code"] == done.returncode == exit_code
        assert [line["exit_code"] for line in lines if "input" in line] == [exit_code] * (text != "no")


def test_a_webhook_gets_the_message_as_slack_takes_it(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    nights.write_job('lang = "ko"', end='[notify]\nwebhook_env = "HOOK"\n')
    answers = iter([(500, {}, b""), OK, OK])
    with receiving(lambda _: next(answers)) as receiver:
        monkeypatch.setenv("HOOK", receiver.url)
        nights.run()
        nights.statuses |= dict.fromkeys([*nights.statuses][:2], "closed")
        nights.write_inputs()
        refused = nights.run()
        assert (refused.exit_code, len(refused.problems)) == (3, 1)
        assert [nights.run().problems for _ in range(2)] == [(), ()]
    bodies = [json.loads(got.body) for got in receiver.received]
    assert bodies == [{"text": "job: 2026-11-20 이후 새로 폐업 2곳, 반송 위험 상승 2곳"}] * 2
    assert {got.headers["Content-Type"] for got in receiver.received} == {"application/json"}


def test_a_remedy_is_a_field_of_the_job_file(nights: Nights, run: Run) -> None:
    write(nights.folder / "job.toml", '[[inputs]]\npath = "in.csv"\n')
    done = run("run", "job.toml")
    assert '`[status] source = "nts"`' in done.stderr
    assert '`[reference] registry = "registry.parquet"`' in done.stderr
    assert "--" not in done.stderr


def test_a_receiver_that_took_a_message_is_not_told_again(nights: Nights) -> None:
    mail = (
        "import sys, pathlib\n"
        "if not pathlib.Path('works').exists(): sys.exit(1)\n"
        "pathlib.Path('mail.txt').open('ab').write(sys.stdin.buffer.read())"
    )
    command = json.dumps([sys.executable, "-c", mail])
    nights.write_job(end=f'[notify]\nwhen = "always"\ncommand = {command}\nfile = "told.txt"\n')
    for night in range(2):
        report = nights.run()
        assert (len(report.problems), report.exit_code, len(told(nights))) == (1, 3, night + 1)
    (nights.folder / "works").touch()
    assert nights.run().problems == ()
    assert (nights.folder / "mail.txt").read_text("utf-8").splitlines() == told(nights)
    assert [one.exit_code for one in list_runs(nights.folder / "job.toml")] == [3, 3, 0]


COMMANDS = {
    r"import sys; sys.stderr.buffer.write(b'\xb0\xa1 no'); sys.exit(3)": "ended with 3: \ufffd\ufffd no",
    "import sys; sys.exit('https://hooks.example.com/T0/secret is down')": "(the webhook's URL) is down",
    "import time; time.sleep(60)": "had not ended after 0.5 s",
}
"""What a command does, and what is said of it."""


def test_a_failed_command_shows_no_argument_or_webhook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "_COMMAND_TIMEOUT_S", 0.5)
    message = JobRun("1", 0.0, 0.0, 0, 0, {}, [], "told")
    for code, said in COMMANDS.items():
        command = (sys.executable, "-c", code, "t0ken")
        channel = channels.CommandChannel(command, tmp_path, "https://hooks.example.com/T0/secret")
        error = anyio.run(channel.send, [message]).error
        assert (said in error, "secret" in error, "t0ken" in error) == (True, False, False), error


def test_an_output_that_was_edited_or_is_too_old_is_not_handed_on(nights: Nights) -> None:
    nights.write_job(end='[output]\npath = "out/{name}.{date}.csv"\n[status]\nmax_age = 2\n')
    first = Path(nights.run().inputs[0].output or "")
    whole = first.read_bytes()
    first.write_bytes(whole[:-20])
    report = nights.run()
    assert (Path(report.inputs[0].output or "").read_bytes(), kinds(report)) == (whole, {})
    assert [nights.run().inputs[0].what for _ in range(2)] == ["unchanged", "verified"]


NOTIFY = "[output]\nchanges = 'changes.csv'\n[notify]\nwhen = 'always'\nfile = 'told.txt'\n"


def test_a_korean_job_sends_korean_from_an_english_shell(nights: Nights) -> None:
    nights.write_job('lang = "ko"', end=f"{NOTIFY}[[inputs]]\npath = 'absent.csv'\n")
    nights.run()
    nights.close()
    message = nights.run().message or ""
    assert "이후 새로 폐업 1곳, 반송 위험 상승 1곳\n실패: " in message
    assert english_sentences(message) == []
    assert message in (nights.folder / "told.txt").read_text("utf-8")
    changes = pl.read_csv(nights.folder / "changes.csv", infer_schema=False)
    assert changes.columns[:6] == ["변경 내용", "사업자번호", "상호", "주소", "이전 휴·폐업 상태", "휴·폐업 상태"]
    assert str(changes["변경 내용"][0]).startswith("폐업, 반송 위험 상승")
