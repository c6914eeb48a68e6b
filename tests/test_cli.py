"""The command line as its user meets it: messages, exit codes, interruptions; some of it in real processes."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import openpyxl
import polars as pl
import pytest

import bansong as bs
from bansong import watch
from bansong.base import display
from bansong.base.messages import gettext, parameter, use_audience
from bansong.cli import console
from bansong.cli.options import COMMAND_LINE
from conftest import NINE, SAMPLE, write
from signals import IGNORING

Run = Callable[..., subprocess.CompletedProcess[str]]

HEADER = "사업자등록번호,상호,주소"
ROW = "124-81-00998,삼성전자,경기도 수원시 영통구 삼성로 129"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write(tmp_path / "list.csv", f"{HEADER}\n{ROW}\n1.2E9,가,나\n")


def test_a_file_is_replaced_in_place_beside_its_backup(run: Run, source: Path) -> None:
    old = source.read_bytes()
    done = run("enrich", "list.csv", "--in-place", "--json", "--select", "상호,주소", "--select", "#1")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["output"], report["backup"]) == ("list.csv", "list.csv.bak")
    assert source.with_name("list.csv.bak").read_bytes() == old
    assert source.read_text().splitlines()[0] == ",".join([HEADER, *NINE])
    assert "backup          list.csv.bak2" in run("enrich", "list.csv", "--in-place").stderr
    assert "backup" not in run("enrich", "list.csv", "--in-place", "--no-backup").stderr
    assert sorted(path.name for path in source.parent.iterdir()) == ["list.csv", "list.csv.bak", "list.csv.bak2"]


@pytest.fixture(scope="module")
def big_list(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("big") / "big.csv"
    frame = pl.DataFrame({"b_no": ["124-81-00998"], "name": ["삼성전자"], "address": ["서울 강남구 테헤란로 1"]})
    pl.concat([frame] * 1000).lazy().select(pl.all().repeat_by(700).explode()).sink_csv(path)
    return path


def until_it_writes(process: subprocess.Popen[Any], folder: Path) -> None:
    deadline = time.monotonic() + 120
    while not any(path.stat().st_size for path in folder.glob(".bansong-*-out.csv")):
        assert process.poll() is None, "the run ended before it could be interrupted"
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.crash
@pytest.mark.skipif(os.name == "nt", reason="Windows has no signals that a caller could ignore")
@pytest.mark.parametrize(("ends", "code"), [(False, 0), (True, 130)], ids=["SIGINT and SIGHUP", "SIGTERM"])
def test_a_run_under_nohup_goes_on_until_it_is_stopped(big_list: Path, tmp_path: Path, ends: bool, code: int) -> None:
    os.link(big_list, tmp_path / "big.csv")
    old = write(tmp_path / "out.csv", "old")
    command = [*IGNORING, sys.executable, "-m", "bansong", "enrich", "big.csv", "-o", "out.csv", "--progress", "none"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as process:
        until_it_writes(process, tmp_path)
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGINT)
        if ends:
            process.send_signal(signal.SIGTERM)
        assert process.wait(100) == code
    assert (old.stat().st_size == 3) == ends
    kept = [] if ends else ["out.csv.bak"]  # the old file was not one of ours
    assert sorted(path.name for path in tmp_path.iterdir()) == ["big.csv", "out.csv", *kept]


def test_bansong_without_a_word_shows_its_commands(apart: Run) -> None:
    done = apart(env={"BANSONG_LANG": "ko"})
    said = done.stdout + done.stderr  # click 8.1 prints help on stdout
    assert ("enrich" in said, "Traceback" in said) == (True, False)


def test_the_main_job_runs_on_the_sample_workbook_in_a_process_of_its_own(apart: Run, tmp_path: Path) -> None:
    shutil.copy(SAMPLE / "customers.xlsx", tmp_path)
    done = apart("enrich", "customers.xlsx", "--json", env={"BANSONG_LOG": "info"})
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["rows"] == sum(report["row_status"].values()) == 300
    assert (report["lookups"]["paid"], report["quota"]) == (0, {"before": None, "after": None})
    assert set(report) >= {"run_id", "seconds", "engine", "columns", "grade", "action", "versions", "warnings"}
    assert (tmp_path / report["manifest"]).exists()
    assert "300 rows to verify" in done.stderr
    assert "0 of 280 statuses checked" in done.stderr
    sheet = openpyxl.load_workbook(tmp_path / report["output"])["고객명단"]
    assert ([cell.value for cell in sheet[1]][8:], sheet.max_row) == ([*NINE], 301)


@pytest.mark.parametrize("arguments", [["plan", "list.csv"], ["enrich", "list.csv", "--dry-run"]])
def test_planning_writes_nothing(run: Run, source: Path, state_directory: Path, arguments: list[str]) -> None:
    done = run(*arguments)
    assert (done.returncode, "would look up   1 distinct record, at no cost" in done.stderr) == (0, True)
    assert "'사업자등록번호', column 1" in done.stderr
    assert [path.name for path in (*source.parent.iterdir(), *state_directory.iterdir())] == ["list.csv"]


BAD_INPUT = {
    "enrich none.csv": "none.csv: there is no such file",
    "enrich folder": "folder: no file with a table is there",
    "enrich empty.csv": "empty.csv: is empty",
    "enrich noise.dat": "no known format",
    "enrich other.csv": "the headers are: a, b; name it with --columns",
    "enrich two.csv": "fit equally well",
    "enrich list.csv -o ./list.csv": "--in-place",
    "enrich list.csv -o /proc/out.csv": "cannot be written",
    "enrich list.csv --sheet x": "--sheet is for workbooks, this file is csv",
    "enrich list.csv --select x": "--select x names no column",
    "enrich list.csv --columns x=y": "the roles are b_no, name, address, zipcode",
    "enrich list.csv --nonsense": "No such option",
    "enrich": "Missing argument",
}


def test_bad_input_gets_a_clear_line_exit_2_and_nothing_written(run: Run, tmp_path: Path, source: Path) -> None:
    write(tmp_path / "empty.csv", "")
    write(tmp_path / "other.csv", "a,b\n1,2\n")
    write(tmp_path / "two.csv", "사업자번호,사업자등록번호\n124-81-00998,220-81-62517\n")
    (tmp_path / "noise.dat").write_bytes(bytes(range(256)))
    (tmp_path / "folder").mkdir()
    before = sorted(path.name for path in tmp_path.iterdir())
    for arguments, message in BAD_INPUT.items():
        done = run(*arguments.split())
        assert (done.returncode, done.stdout, message in done.stderr) == (2, "", True), (arguments, done.stderr)
        assert done.stderr.count("\n") == 1 or not done.stderr.startswith("bansong:")
        assert sorted(path.name for path in tmp_path.iterdir()) == before, arguments


@pytest.mark.crash
@pytest.mark.skipif(os.name == "nt", reason="Windows has one way to end a process, which lets it do nothing more")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_an_interrupted_run_leaves_the_old_output(big_list: Path, tmp_path: Path, name: str) -> None:
    os.link(big_list, tmp_path / "big.csv")
    old = write(tmp_path / "out.csv", "old")
    command = [sys.executable, "-m", "bansong", "enrich", "big.csv", "-o", "out.csv", "--progress", "none"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    until_it_writes(process, tmp_path)
    kill = signal.Signals[name]
    process.send_signal(kill)
    _, said = process.communicate(timeout=60)
    assert old.read_text() == "old"
    if kill == signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
    else:
        assert (process.returncode, said.strip()) == (130, "bansong: interrupted; nothing was published")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["big.csv", "out.csv"]


FULL = "bansong: stdout: cannot be written: No space left on device"


@pytest.mark.process
@pytest.mark.parametrize(
    ("shell", "code", "said"),
    [
        ("enrich list.csv --json > /dev/full", 2, FULL),
        ("verify 1248100998 > /dev/full", 2, FULL),
        ("enrich list.csv 2>&-", 0, ""),
        ("verify 1248100998 >&-", 0, ""),
    ],
)
def test_full_or_closed_streams_are_no_defect(tmp_path: Path, source: Path, shell: str, code: int, said: str) -> None:
    command = f"{sys.executable} -m bansong {shell}"
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, (done.stderr.splitlines() or [""])[-1]) == (code, said)


def closed_at_once(folder: Path, *arguments: object) -> tuple[int, str]:
    command = [sys.executable, "-m", "bansong", *map(str, arguments)]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    _, said = process.communicate(timeout=120)
    return process.returncode, said


@pytest.mark.process
def test_a_reader_that_has_gone_is_no_failure(source: Path) -> None:
    before = source.read_text("utf-8")
    code, said = closed_at_once(source.parent, "enrich", source, "--in-place", "--json", "--progress", "none")
    assert (code, "Traceback" in said, "interrupted" in said) == (0, False, False)
    assert source.read_text("utf-8").splitlines()[0] == ",".join([HEADER, *NINE])
    assert source.with_name("list.csv.bak").read_text("utf-8") == before
    for arguments, own in ((("verify", "12345"), 2), (("--help",), 0)):
        code, said = closed_at_once(source.parent, *arguments)
        assert (code, "Traceback" in said, "BrokenPipe" in said) == (own, False, False)


@pytest.mark.process
def test_a_closure_that_nobody_could_read_is_told_by_the_next_check(tmp_path: Path, run: Run) -> None:
    """`watch check | head -0`: what is told counts as told only when it is out, here it is an error."""
    source = write(tmp_path / "status.csv", "사업자번호,상태\n1248100998,폐업자\n")
    bs.build_registry([source], tmp_path / "r.parquet")
    watch.add("1248100998", local=tmp_path / "w.sqlite")
    check = ("watch", "check", "--local", tmp_path / "w.sqlite", "--registry", tmp_path / "r.parquet")
    code, said = closed_at_once(tmp_path, *check)
    assert (code, "stdout: was closed before all was printed" in said, "Traceback" in said) == (2, True, False)
    assert "124-81-00998" in run(*check).stdout


def test_progress_without_a_terminal_is_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(display, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with console.progress_shown("auto") as advance:
        assert advance is not None
        for now[0] in (1.0, 4.0, 6.0, 7.0, 12.0):
            advance(int(now[0]) * 10, 1000)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["60 of 1,000 rows (6%), 10 rows/s", "120 of 1,000 rows (12%), 10 rows/s"]


PRINTED = {
    parameter("registry"): "--registry",
    parameter("in_place", True): "--in-place",
    parameter("labels", False): "--no-labels",
    parameter("returns_requested", False): "--returns-not-requested",
    parameter("send", False): "--no-send",
    parameter("has_header", False): "--no-header",
    parameter("columns", {"b_no": "#3"}): "--columns b_no=#3",
    parameter("columns", {"b_no": "거래처 번호"}): "--columns b_no='거래처 번호'",
    parameter("columns", {"b_no": "it's"}): '--columns b_no="it\'s"',
    parameter("band", (0.5, 0.08)): "--band 0.5-0.08",
    parameter("everything", True): "--all",
    parameter("output", "OUT.csv"): "-o OUT.csv",
    parameter("chunk", 5): "`chunk=5`",  # of Python alone
    "`name of a customer`, `=`, `x=1`, `sheet=oops`": "`name of a customer`, `=`, `x=1`, `sheet=oops`",
}


def test_a_parameter_is_printed_as_its_option() -> None:
    with use_audience(COMMAND_LINE):
        assert {written: gettext(f"give {written} now")[5:-4] for written in PRINTED} == PRINTED


def test_a_function_is_called_with_rows_done_and_all() -> None:
    calls: list[tuple[int, int]] = []
    frame = pl.read_csv(SAMPLE / "customers.csv", infer_schema=False)
    with pytest.warns(UserWarning, match="statuses checked"):
        bs.verify_frame(frame, progress=lambda done, total: calls.append((done, total)))
    assert calls[-1] == (300, 300)
    assert [done for done, _ in calls] == sorted({done for done, _ in calls})


def test_in_a_notebook_a_bar_is_one_output_that_is_empty_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    ipython = pytest.importorskip("IPython.display", reason='notebooks: pip install "bansong[dev]"')
    show = Mock()
    monkeypatch.setattr(ipython, "display", show)
    monkeypatch.setattr(display, "is_notebook", lambda: True)
    frame = pl.read_csv(SAMPLE / "customers.csv", infer_schema=False)
    for progress, wait in ((True, 600.0), (False, 0.0), (Mock(), 0.0)):
        monkeypatch.setattr(display, "_FIRST_UPDATE_S", wait)
        bs.verify_frame(frame, progress=progress, registry=SAMPLE / "registry.parquet")
    assert not show.called
    monkeypatch.setattr(display, "_UPDATE_INTERVAL_S", 0.0)
    bs.verify_frame(frame, registry=SAMPLE / "registry.parquet")
    shown = [call.args[0]["text/plain"] for call in show.mock_calls]
    assert (show.call_count, "300 of 300 rows" in shown[-2], shown[-1]) == (1, True, "")


@pytest.mark.process
def test_a_script_shows_a_bar_on_a_terminal_alone() -> None:
    pty = pytest.importorskip("pty", reason="a terminal of the operating system's")
    here, there = pty.openpty()
    sample = str(SAMPLE / "customers.csv")
    read = f"pl.concat([pl.read_csv({sample!r}, infer_schema=False)] * 20)"
    command = [sys.executable, "-W", "ignore", "-c", f"import polars as pl, bansong as bs; bs.verify_frame({read})"]
    subprocess.run(command, stderr=there, env={**os.environ, "TERM": "xterm", "NO_COLOR": "1"}, check=True)
    os.set_blocking(here, False)
    assert "6000/6000 rows" in os.read(here, 1 << 20).decode()
    piped = subprocess.run(command, capture_output=True, check=True)
    assert (piped.stdout, piped.stderr) == (b"", b"")


def test_the_party_that_was_chosen_is_printed_with_the_way_to_the_other(run: Run, tmp_path: Path) -> None:
    header = "공급자사업자등록번호,상호,주소,공급받는자사업자등록번호,상호,주소"
    write(tmp_path / "tax.csv", f"{header}\n124-81-00998,가,a,220-81-62517,나,b\n124-81-00998,가,a,120-81-47521,다,c\n")
    said = run("plan", "tax.csv").stderr
    assert (
        "note: each row holds 2 parties; '공급받는자사업자등록번호' (#4) was chosen, with what belongs to it, "
        "because the other side has the same number in every row; for '공급자사업자등록번호' (#1) "
        "give --columns b_no=#1"
    ) in said
    assert "'상호', column 5" in said
    assert "'주소', column 3" in run("plan", "tax.csv", "--columns", "b_no=#1").stderr


@pytest.mark.process
def test_imports_are_kept_from_the_garbage_collector_once() -> None:
    code = """
import gc, _bansong_start
from bansong.cli.console import freeze_imports
with freeze_imports():
    assert not gc.isenabled()
    import polars
frozen = gc.get_freeze_count()
assert gc.isenabled() and frozen > 10_000, frozen
with freeze_imports():
    assert gc.isenabled()
assert gc.get_freeze_count() <= frozen
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_one_business_is_shown_or_printed_as_json(run: Run) -> None:
    done = run("verify", "124-81-00998", "--name", "삼성전자", "--address", "서울 강남구 테헤란로 1", "--lang", "ko")
    assert (done.returncode, "[kind -3] 법인사업자 번호 (number)" in done.stdout) == (0, True)
    answer = json.loads(run("verify", "1248100998", "--json").stdout)
    assert (answer["biz_status"], answer["bounce_prob"]) == ("unknown", None)
    wrong = run("verify", "12345")
    assert (wrong.returncode, "fewer than ten digits" in wrong.stdout) == (2, True)


def test_the_sample_is_written_once_and_the_command_that_is_named_runs(run: Run, tmp_path: Path) -> None:
    done = run("sample", "my sample")
    assert (done.returncode, done.stdout) == (0, "")
    written = {path.name: path.read_bytes() for path in (tmp_path / "my sample").iterdir()}
    assert {"customers.xlsx", "registry.parquet", "gazetteer.parquet", "outcomes.csv"} < written.keys()
    assert written == {name: (SAMPLE / name).read_bytes() for name in written}
    assert sum(map(len, written.values())) < 1_000_000
    program, *words = shlex.split(done.stderr.split(maxsplit=2)[2])
    assert (program, run(*words).returncode) == ("bansong", 0)
    assert (tmp_path / "my sample" / "customers.enriched.xlsx").exists()
    (tmp_path / "my sample" / "customers.csv").write_text("mine")
    for folder in ("my sample", "my sample/customers.csv"):
        assert (run("sample", folder).returncode, run("sample", folder).stdout) == (2, "")
    assert (tmp_path / "my sample" / "customers.csv").read_text() == "mine"
    assert run("sample").returncode == 0
    assert (tmp_path / "sample_data" / "customers.json").exists()


def test_a_full_disk_is_said_of_the_sample_that_is_written(run: Run, tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        done = run("sample", "files")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (done.returncode, [*(tmp_path / "files").iterdir()]) == (2, [])
    assert f"{Path('files/customers.csv')}: cannot be written" in done.stderr
