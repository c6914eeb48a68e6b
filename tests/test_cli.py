"""The command line as its user meets it: messages, exit codes, interruptions; some of it in real processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import openpyxl
import polars as pl
import pytest

from conftest import NINE, SAMPLE, write

Run = Callable[..., subprocess.CompletedProcess[str]]

HEADER = "사업자등록번호,상호,주소"
ROW = "124-81-00998,삼성전자,경기도 수원시 영통구 삼성로 129"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write(tmp_path / "list.csv", f"{HEADER}\n{ROW}\n1.2E9,가,나\n")


def test_the_main_job_runs_on_the_sample_workbook(apart: Run, tmp_path: Path) -> None:
    shutil.copy(SAMPLE / "customers.xlsx", tmp_path)
    done = apart("enrich", "customers.xlsx")
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    for part in (
        "'사업자등록번호', column 2",
        "rows            300",
        "customers.enriched.xlsx",
        "no registry was given",
    ):
        assert part in done.stderr
    sheet = openpyxl.load_workbook(tmp_path / "customers.enriched.xlsx")["고객명단"]
    assert [cell.value for cell in sheet[1]][8:] == list(NINE)
    assert sheet.max_row == 301


def test_json_is_one_object_on_stdout_and_people_read_stderr(apart: Run, source: Path) -> None:
    done = apart("enrich", source, "--json", "--progress", "none")
    report = json.loads(done.stdout)
    assert report["rows"] == sum(report["row_status"].values()) == 2
    assert report["lookups"] == {"planned": 1, "paid": 0, "cached": 0, "saved": 0}
    assert report["quota"] == {"before": None, "after": None}
    assert Path(report["output"]).exists()
    assert Path(report["manifest"]).exists()
    assert set(report) >= {"run_id", "seconds", "engine", "columns", "grade", "action", "versions", "warnings"}


@pytest.mark.parametrize("arguments", [["plan", "list.csv"], ["enrich", "list.csv", "--dry-run"]])
def test_planning_writes_nothing(run: Run, source: Path, state_directory: Path, arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.returncode == 0
    assert "would look up   1 distinct record, at no cost" in done.stderr
    assert [path.name for path in source.parent.iterdir()] == ["list.csv"]
    assert list(state_directory.iterdir()) == []


def test_one_business_is_shown_or_printed_as_json(run: Run) -> None:
    done = run("verify", "124-81-00998", "--name", "삼성전자", "--address", "서울 강남구 테헤란로 1", "--lang", "ko")
    assert done.returncode == 0
    assert "[kind -3] 법인사업자 번호 (number)" in done.stdout
    answer = json.loads(run("verify", "1248100998", "--json").stdout)
    assert answer["biz_status"] == "unknown"
    assert answer["bounce_prob"] is None


def test_a_number_that_is_none_exits_2(apart: Run) -> None:
    done = apart("verify", "12345")
    assert done.returncode == 2
    assert "fewer than ten digits" in done.stdout


def test_a_registry_is_built_and_used(run: Run, tmp_path: Path, source: Path) -> None:
    write(tmp_path / "status.csv", "사업자번호,상태,폐업일\n1248100998,폐업자,2020-01-01\n2208162517,이상한말,\n")
    built = run("data", "build-registry", "status.csv", "-o", "r.parquet")
    assert built.returncode == 0, built.stderr
    assert "unknown words   이상한말 1" in built.stderr
    done = run("enrich", source, "--registry", "r.parquet", "-o", "out.csv")
    assert done.returncode == 0
    assert pl.read_csv(tmp_path / "out.csv")["biz_status"].to_list() == ["closed", None]
    assert (
        json.loads(run("data", "build-registry", "status.csv", "-o", "r.parquet", "--json").stdout)["businesses"] == 1
    )


BAD_INPUT = {
    "a missing file": (["enrich", "none.csv"], "none.csv: there is no such file"),
    "a folder": (["enrich", "."], "is a folder, not a file"),
    "an empty file": (["enrich", "empty.csv"], "empty.csv: is empty"),
    "unknown content": (["enrich", "noise.dat"], "no known format"),
    "no number column": (["enrich", "other.csv"], "the headers are: a, b; name it with --columns"),
    "two number columns": (["enrich", "two.csv"], "fit equally well"),
    "output is the input": (["enrich", "list.csv", "-o", "./list.csv"], "--in-place"),
    "an output folder that is not there": (["enrich", "list.csv", "-o", "no/x.csv"], "does not exist"),
    "an output format that is not written": (["enrich", "list.csv", "-o", "x.pdf"], "cannot write the format"),
    "a registry that is none": (["enrich", "list.csv", "--registry", "other.csv"], "is not a registry"),
    "a registry that is missing": (["enrich", "list.csv", "--registry", "no.parquet"], "no such registry"),
    "a model that is none": (["enrich", "list.csv", "--model", "other.csv"], "other.csv: "),
    "a sheet of a csv": (["enrich", "list.csv", "--sheet", "x"], "--sheet is for workbooks, this file is csv"),
    "an unknown encoding": (["enrich", "list.csv", "--encoding", "klingon"], "unknown encoding 'klingon'"),
    "a json path of a csv": (["enrich", "list.csv", "--json-path", "x"], "--json-path is for JSON documents"),
    "a selection of nothing there": (["enrich", "list.csv", "--select", "x"], "--select 'x' names no column"),
    "a summary of a csv": (["enrich", "list.csv", "--summary"], "--summary is for workbooks"),
    "no backup of nothing": (["enrich", "list.csv", "--no-backup"], "--no-backup is for --in-place"),
    "an unknown engine": (["enrich", "list.csv", "--engine", "cloud"], "--engine"),
    "an unknown role": (["enrich", "list.csv", "--columns", "x=y"], "the roles are b_no, name, address, zipcode"),
    "an unknown option": (["enrich", "list.csv", "--nonsense"], "No such option"),
    "no input": (["enrich"], "Missing argument"),
}


@pytest.mark.parametrize(("arguments", "message"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input_gets_a_clear_line_exit_2_and_nothing_written(
    run: Run, tmp_path: Path, source: Path, arguments: list[str], message: str
) -> None:
    write(tmp_path / "empty.csv", "")
    write(tmp_path / "other.csv", "a,b\n1,2\n")
    write(tmp_path / "two.csv", "사업자번호,사업자등록번호\n")
    (tmp_path / "noise.dat").write_bytes(bytes(range(256)))
    before = sorted(path.name for path in tmp_path.iterdir())
    done = run(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    if done.stderr.startswith("bizverify:"):
        assert done.stderr.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_file_is_replaced_in_place_beside_its_backup(run: Run, source: Path) -> None:
    """The old file stays as NAME.bak, which the report names; --no-backup does without; --select repeats."""
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


def test_the_party_that_was_chosen_is_printed_with_the_way_to_the_other(run: Run, tmp_path: Path) -> None:
    """As the tax portal exports it: whose columns were taken, why, and what to give for the other side's."""
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


def test_a_header_without_rows_is_no_error(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "h.csv", HEADER + "\n")
    assert run("enrich", "h.csv").returncode == 0
    assert (tmp_path / "h.enriched.csv").read_text().strip() == HEADER + "," + ",".join(NINE)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_write_permission_is_refused(run: Run, tmp_path: Path, source: Path) -> None:
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        done = run("enrich", "list.csv")
    finally:
        tmp_path.chmod(0o700)
    assert done.returncode == 2
    assert "cannot be written: Permission denied" in done.stderr


def test_a_device_cannot_be_an_output(run: Run, source: Path) -> None:
    done = run("enrich", source, "-o", "/proc/out.csv")
    assert done.returncode == 2
    assert "cannot be written" in done.stderr


def test_logging_is_set_by_the_environment(run: Run, apart: Run, source: Path) -> None:
    assert "rows to verify" not in run("enrich", source).stderr
    assert "2 rows to verify" in apart("enrich", source, env={"BIZVERIFY_LOG": "info"}).stderr


@pytest.fixture(scope="module")
def big_list(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of a million and a half rows, which takes a while."""
    path = tmp_path_factory.mktemp("big") / "big.csv"
    frame = pl.DataFrame({"b_no": ["124-81-00998"], "name": ["삼성전자"], "address": ["서울 강남구 테헤란로 1"]})
    pl.concat([frame] * 1000).lazy().select(pl.all().repeat_by(1500).explode()).sink_csv(path)
    return path


@pytest.mark.parametrize(
    "kill", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL], ids=lambda kill: kill.name
)
def test_an_interrupted_run_leaves_the_old_output(big_list: Path, tmp_path: Path, kill: signal.Signals) -> None:
    """Whenever a run dies, the output is the old one, whole; when it can, it says so, exits 130 and tidies up."""
    os.link(big_list, tmp_path / "big.csv")
    old = write(tmp_path / "out.csv", "old")
    process = subprocess.Popen(
        [sys.executable, "-m", "bizverify", "enrich", "big.csv", "-o", "out.csv", "--progress", "none"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not any(path.stat().st_size for path in tmp_path.glob(".bizverify-*-out.csv")):
        assert process.poll() is None, "the run ended before it could be interrupted"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(kill)
    _, said = process.communicate(timeout=60)
    assert old.read_text() == "old"
    if kill == signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
    else:
        assert process.returncode == 130
        assert said.strip() == "bizverify: interrupted; nothing was published"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["big.csv", "out.csv"]


@pytest.mark.parametrize(
    ("shell", "code", "said"),
    [
        ("enrich list.csv --json > /dev/full", 2, "bizverify: stdout: cannot be written: No space left on device"),
        ("verify 1248100998 > /dev/full", 2, "bizverify: stdout: cannot be written: No space left on device"),
        ("enrich list.csv 2>&-", 0, ""),
        ("enrich none.csv 2>&-", 2, ""),
        ("verify 1248100998 >&-", 0, ""),
    ],
)
def test_streams_that_are_full_or_closed_are_no_defect(
    tmp_path: Path, source: Path, shell: str, code: int, said: str
) -> None:
    command = f"{sys.executable} -m bizverify {shell}"
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert (done.stderr.splitlines() or [""])[-1] == said


def test_signals_that_the_caller_ignores_stay_ignored(tmp_path: Path) -> None:
    code = (
        "import os, signal, threading, time; from bizverify.cli.process import let_stop_signals_interrupt as let\n"
        "let(); os.kill(os.getpid(), signal.SIGHUP); time.sleep(0.2); print('alive', flush=True)\n"
        "try: os.kill(os.getpid(), signal.SIGTERM); time.sleep(20)\n"
        "except KeyboardInterrupt: print('interrupted')"
    )
    command = f"trap '' HUP INT; exec {sys.executable} -c \"$CODE\""
    done = subprocess.run(
        ["sh", "-c", command], env=os.environ | {"CODE": code}, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["alive", "interrupted"]


def test_without_a_terminal_progress_is_a_line_every_few_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    from bizverify.cli import console

    now = [0.0]
    console_time, console.time = console.time, type("Clock", (), {"monotonic": staticmethod(lambda: now[0])})
    try:
        with console.progress_shown("auto") as advance:
            assert advance is not None
            for now[0] in (1.0, 4.0, 6.0, 7.0, 12.0):
                advance(int(now[0]) * 10, 1000)
    finally:
        console.time = console_time
    assert capsys.readouterr().err.splitlines() == [
        "60 of 1,000 rows (6%), 10 rows/s",
        "120 of 1,000 rows (12%), 10 rows/s",
    ]
