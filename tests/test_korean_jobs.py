"""Scheduled jobs send and keep what they say in the language of their file; the command prints in its own."""

from __future__ import annotations

import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from bansong import BansongError
from bansong.base.messages import use_language
from bansong.jobs.job_file import job_template, load_job_file
from conftest import write
from korean import english_sentences, in_korean
from nightly_jobs import Nights

Run = Callable[..., subprocess.CompletedProcess[str]]
_NOTIFY = "[output]\nchanges = 'changes.csv'\n[notify]\nwhen = 'always'\nfile = 'told.txt'\n"


def _close_one(nights: Nights) -> None:
    nights.statuses[next(iter(nights.statuses))] = "closed"
    nights.write_inputs()


def test_a_korean_job_sends_korean_from_an_english_shell(nights: Nights) -> None:
    """Message, table of changes and what is said of a failed input are Korean where the job file says so."""
    nights.write_job('lang = "ko"', end=f"{_NOTIFY}[[inputs]]\npath = 'absent.csv'\n")
    nights.run()
    _close_one(nights)
    report = nights.run()
    assert report.message is not None
    assert "이후 새로 폐업 1곳, 반송 위험 상승 1곳\n실패: " in report.message
    assert "파일이 없습니다. 작업 파일 inputs의 `path`를 확인해 주세요." in report.message
    assert report.message in (nights.folder / "told.txt").read_text("utf-8")
    assert english_sentences(report.message) == []
    changes = pl.read_csv(nights.folder / "changes.csv", infer_schema=False)
    assert changes.columns[:6] == ["변경 내용", "사업자번호", "상호", "주소", "이전 휴·폐업 상태", "휴·폐업 상태"]
    assert changes.select("변경 내용", "이전 휴·폐업 상태", "휴·폐업 상태").row(0)[1:] == ("영업 중", "폐업")
    assert str(changes["변경 내용"][0]).startswith("폐업, 반송 위험 상승")


def test_an_english_job_sends_english_from_a_korean_shell(nights: Nights) -> None:
    """The language of the shell changes nothing of what an English job sends; its report is shown in Korean."""
    nights.write_job('lang = "en"', end=_NOTIFY)
    with use_language("ko"):
        nights.run()
        _close_one(nights)
        report = nights.run()
        shown = dict(report.lines())
    assert report.message is not None
    assert report.message.endswith("1 newly closed, 1 with a higher risk of return")
    assert "changes" in pl.read_csv(nights.folder / "changes.csv", infer_schema=False).columns
    assert shown["변경 내용"].endswith("이후 새로 폐업 1곳, 반송 위험 상승 1곳, 조치 강화 1곳")


def test_the_commented_job_file_is_the_same_job_in_both_languages(tmp_path: Path, run: Run) -> None:
    """`run --init` explains every field in Korean to Koreans; what the file does is the same."""
    with use_language("en"):
        english = job_template()
    assert run("run", "--lang", "ko", "--init", "매일.toml").returncode == 0
    written = tmp_path / "매일.toml"
    assert tomllib.loads(written.read_text("utf-8")) == tomllib.loads(english)
    assert load_job_file(written).lang == "ko"
    comments = [line.partition("#")[2] for line in written.read_text("utf-8").splitlines()]
    assert english_sentences("\n".join(comments)) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[inputs]\n", "TOML 형식이 아닙니다"),
        ('[[inputs]]\npath = "a"\n[run]\ndeadline = "soon"\n', "'soon': 시간 값이 아닙니다. 2h, 90m, 1h30m처럼"),
        ('[[inputs]]\npath = "in.csv"\n[output]\npath = "{day}.csv"\n', "알 수 없는 항목({day})이 있습니다"),
        ('[[inputs]]\npath = "in.csv"\n[output]\npath = "in.csv"\n', "이미"),
    ],
)
def test_what_is_wrong_with_a_job_file_is_said_in_korean(text: str, said: str, tmp_path: Path) -> None:
    """A job file that is not right is refused in Korean."""
    from bansong.jobs.run import run_job

    write(tmp_path / "in.csv", "사업자번호\n1248100998\n")
    path = write(tmp_path / "job.toml", f'lang = "ko"\n{text}')
    with use_language("ko"), pytest.raises(BansongError) as failed:
        run_job(path)
    assert said in in_korean(failed.value)


def test_a_second_run_is_refused_by_its_kind_not_its_words(nights: Nights) -> None:
    """That another run is under way is known in any language."""
    from filelock import FileLock

    from bansong.jobs.state import state_folder

    nights.run()
    state = next(state_folder().glob("*.sqlite"))
    with use_language("ko"), FileLock(f"{state}.lock"), pytest.raises(BansongError) as failed:
        nights.run()
    assert failed.value.exit_code == 6
    assert "이 작업이 이미 실행 중이라 아무것도 하지 않았습니다" in in_korean(failed.value)
