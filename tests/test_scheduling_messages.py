"""What a scheduled job tells: each receiver once, nothing of what is secret, whatever a command does."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import anyio
import polars as pl
import pytest

from bansong.base.messages import use_language
from bansong.jobs.state import JobRun, list_runs
from bansong.notify import channels
from conftest import write
from hooks import OK, receiving
from korean import english_sentences
from nightly_jobs import Nights, kinds

Run = Callable[..., subprocess.CompletedProcess[str]]


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
    write(nights.folder / "job.toml", '[[inputs]]\npath = "in.csv"\n[notify]\nfile = "told.txt"\n')
    done = run("run", "job.toml")
    assert '`[status] source = "nts"`' in done.stderr
    assert '`[reference] registry = "registry.parquet"`' in done.stderr
    assert "--" not in done.stderr
    write(
        nights.folder / "job.toml",
        '[[inputs]]\npath = "in.csv"\n[engine]\nname = "verify"\n[notify]\nfile = "told.txt"\n',
    )
    assert "`[engine] base_url`" in run("run", "job.toml", env={"BANSONG_BASE_URL": ""}).stderr
    assert "`[engine] base_url`" in (nights.folder / "told.txt").read_text("utf-8")


def test_a_receiver_that_took_a_message_is_not_told_again(nights: Nights) -> None:
    """While one receiver fails, the other gets each message once; `runs list` has the exit code that cron saw."""
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


def test_a_command_that_fails_shows_neither_its_arguments_nor_the_webhook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_an_english_job_sends_english_from_a_korean_shell_and_its_report_is_korean(nights: Nights) -> None:
    nights.write_job('lang = "en"', end=NOTIFY)
    with use_language("ko"):
        nights.run()
        nights.close()
        report = nights.run()
        assert dict(report.lines())["변경 내용"].endswith("새로 폐업 1곳, 반송 위험 상승 1곳, 조치 강화 1곳")
    assert (report.message or "").endswith("1 newly closed, 1 with a higher risk of return")
    assert "changes" in pl.read_csv(nights.folder / "changes.csv", infer_schema=False).columns
