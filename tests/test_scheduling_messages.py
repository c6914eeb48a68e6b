"""What a scheduled job tells: each receiver once, nothing of what is secret, whatever a command does."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bansong.jobs.state import list_runs
from bansong.notify import channels
from conftest import write
from hooks import OK, receiving
from nightly_jobs import Nights, kinds

Run = Callable[..., subprocess.CompletedProcess[str]]


def notify(nights: Nights, code: str, *arguments: str, more: str = "") -> None:
    command = [sys.executable, "-c", code, *arguments]
    nights.write_job(end=f'[notify]\nwhen = "always"\ncommand = {json.dumps(command)}\n{more}')


def told(nights: Nights) -> list[str]:
    return (nights.folder / "told.txt").read_text("utf-8").splitlines()


def test_a_receiver_that_took_a_message_is_not_told_again(nights: Nights) -> None:
    """While one receiver does not work, the other gets each night's message once; the one gets all when it works."""
    mail = (
        "import sys, pathlib\n"
        "if not pathlib.Path('works').exists(): sys.exit(1)\n"
        "pathlib.Path('mail.txt').open('ab').write(sys.stdin.buffer.read())"
    )
    notify(nights, mail, more='file = "told.txt"\n')
    for night in range(3):
        report = nights.run()
        assert (len(report.problems), report.exit_code) == (1, 3)
        assert len(told(nights)) == night + 1
    (nights.folder / "works").touch()
    assert nights.run().problems == ()
    assert (nights.folder / "mail.txt").read_text("utf-8").splitlines() == told(nights)
    assert len(told(nights)) == 4


def test_a_command_whose_words_are_no_text_stops_nothing(nights: Nights) -> None:
    """What it says in another encoding is shown as far as it goes, and the run ends as others do."""
    notify(nights, r"import sys; sys.stderr.buffer.write(b'\xb0\xa1 no'); sys.exit(3)")
    (problem,) = nights.run().problems
    assert "ended with 3: \ufffd\ufffd no" in problem


def test_a_command_that_hangs_is_stopped_and_its_arguments_are_not_shown(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token among a command's arguments is in no message."""
    monkeypatch.setattr(channels, "_COMMAND_TIMEOUT_S", 0.3)
    notify(nights, "import time; time.sleep(60)", "t0ken")
    (problem,) = nights.run().problems
    assert "had not ended after 0.3 s" in problem
    assert "t0ken" not in problem


def test_a_command_that_prints_the_webhook_shows_it_to_nobody(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    """A URL that is a secret stays one where the command that is given it complains."""
    url = "https://hooks.example.com/T0/secret"
    monkeypatch.setenv("HOOK", url)
    only_commands = tuple(kind for kind in channels.CHANNELS if kind.name == channels.COMMAND)
    monkeypatch.setattr(channels, "CHANNELS", only_commands)
    notify(nights, "import os, sys; sys.exit(os.environ['HOOK'] + ' is down')", more='webhook_env = "HOOK"\n')
    (problem,) = nights.run().problems
    assert "(the webhook's URL) is down" in problem
    assert "secret" not in problem


def test_an_output_that_somebody_edited_is_not_handed_on(nights: Nights) -> None:
    """The next night's output is the answer, not what was left of the last one's."""
    nights.write_job(end='[output]\npath = "out/{name}.{date}.csv"\n')
    first = Path(nights.run().inputs[0].output or "")
    whole = first.read_bytes()
    first.write_bytes(whole[:-20])
    report = nights.run()
    assert Path(report.inputs[0].output or "").read_bytes() == whole
    assert kinds(report) == {}


def test_answers_older_than_the_job_wants_are_not_handed_on(nights: Nights) -> None:
    """`max_age` bounds for how long an input is left as it was."""
    nights.write_job(end="[status]\nmax_age = 2\n")
    assert [nights.run().inputs[0].what for _ in range(4)] == ["verified", "unchanged", "verified", "unchanged"]


def test_every_line_of_the_log_is_json(nights: Nights, run: Run) -> None:
    """With `--log-json` a run that could not begin says so in JSON, too, with its exit code."""
    for text, exit_code in (("[[inputs]]\npath = 'in.csv'\n", 0), ("[[inputs]]\npath = 'no.csv'\n", 2), ("no", 2)):
        (nights.folder / "job.toml").write_text(text, "utf-8")
        done = run("run", "job.toml", "--log-json")
        lines = [json.loads(line) for line in done.stderr.splitlines()]
        assert lines[-1]["exit_code"] == done.returncode == exit_code
        assert [line["exit_code"] for line in lines if "input" in line] == [exit_code] * (text != "no")


def test_a_webhook_gets_the_message_as_slack_takes_it(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    """One POST a message, of JSON with `text` alone; one that was refused is sent again by the next night, once."""
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


def test_a_run_that_ended_otherwise_than_it_was_written_down_is_listed_so(nights: Nights) -> None:
    """`runs list` has the exit code that cron saw: a message that did not arrive makes it 3."""
    notify(nights, "import sys; sys.exit(1)")
    codes = [nights.run().exit_code]
    nights.write_job()
    codes.append(nights.run().exit_code)
    assert [one.exit_code for one in list_runs(nights.folder / "job.toml")] == codes == [3, 0]


def test_a_remedy_is_a_field_of_the_job_file(nights: Nights, run: Run) -> None:
    """Who wrote a job file is told of its fields, not of options of another command or parameters of Python."""
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
