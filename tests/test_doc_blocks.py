"""Each block of code in README and docs/ is true: it is run, in the order of its page, and prints what the page shows.

A page is run in a folder with the lists that it names, against the fakes of the service and of the tax authority. A
block of text or JSON right behind a block of commands or Python is what that prints, but for times and ids. What is not
run stands in NOT_RUN or ELSEWHERE with the reason.
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, redirect_stdout, suppress
from datetime import datetime, tzinfo
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pytest

from bansong.base import schema
from bansong.cli.app import app
from bansong.jobs.job_file import load_job_file
from bansong.testing import FakeNts, FakeService, serve
from conftest import ROOT, SAMPLE, json_of, runner, write

NOT_RUN = {
    r"python3 -m venv|\.venv/bin/|source \.venv/|pip install": "CI gives README's commands, and installs the wheel",
    "bansong setup": "asks a person: test_settings.py",
    "bansong app|BANSONG_NTS_KEY=… bansong serve": "serves until Ctrl-C: test_local_app.py, test_server_process.py",
    "bansong resolve [38]": "the id of an upload, of a lookup in doubt: test_paid_cli.py",
    "bansong report 2026": "the id of a run: test_report_page.py",
    "bansong enrich '?(s3|https)://": "a bucket, a server of the web: test_cloud.py",
    "BANSONG_API_KEY=… pytest tests/conformance": "each run of the suite runs tests/conformance",
    "from standardwebhooks": "a package of others",
    "from airflow": "not installed; run once, by hand",
    "from bansong.distributed import spark|import (ray|daft)": "test_distributed_spark.py, test_distributed_recipes.py",
}
"""Commands, and lines of Python, that are not run, and why. Each is on a page, or the test fails."""
ELSEWHERE = {
    "console": "root, systemd and podman: test_deploy.py reads what it can",
    "powershell": "Windows: test_windows.py",
    "cron": "a line of cron",
    "ini": "a unit of systemd, which `systemd-analyze verify` has read",
    "yaml": "a workflow of GitHub, which its schema has read",
}
"""Languages of blocks that are not run, and why."""
BY_OTHERS = {
    ("docs/runbook.md", "bash"): "test_deploy.py::test_the_commands_of_the_runbook_do_what_it_says",
    ("docs/client.md", "python"): "test_docs.py::test_the_examples_of_the_client_run",
    ("docs/testing.md", "python"): "test_fake_service.py::test_the_page_for_users_works_as_it_is_written",
}
"""Blocks of a page that another test runs."""
FAST = ("README.md", "README.ko.md", "docs/status.md")
"""Pages of the default suite. The others are marked `process`."""
FIRST = ("docs/tutorial.md", "docs/ko/tutorial.md")
"""Pages of a reader who has no result yet: no earlier output is in the folder."""
KEY = "the-key-of-the-fakes"


class Block(NamedTuple):
    page: str
    line: int
    language: str
    text: str
    shown: str | None = None
    """What the page shows right behind it."""


def blocks_of(page: str) -> list[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    found = list(re.finditer(r"^( *)```(\w*)\n(.*?)^ *```$", text, flags=re.M | re.S))
    blocks = []
    for one, following in pairwise([*found, None]):
        shown = following and following[2] in ("text", "json") and not text[one.end() : following.start()].strip()
        lines = re.sub(rf"^{one[1]}", "", one[3], flags=re.M)
        blocks.append(Block(page, text[: one.start()].count("\n") + 1, one[2], lines, following[3] if shown else None))
    return blocks


PAGES = [page.relative_to(ROOT).as_posix() for page in (*ROOT.glob("README*.md"), *ROOT.glob("docs/**/*.md"))]
PAGES = sorted(page for page in PAGES if page != "docs/cli.md" and "/decisions/" not in page)
BLOCKS = {page: blocks_of(page) for page in PAGES}


def commands_of(block: Block) -> list[str]:
    """The commands of a block, without the comments."""
    lines = re.sub(r"(^|\s)#\s.*$", "", block.text.replace("\\\n", " "), flags=re.M).splitlines()
    return [line.strip() for line in lines if line.strip()]


def test_each_block_is_run_or_its_exception_is_named() -> None:
    blocks = [block for page in PAGES for block in BLOCKS[page]]
    assert {block.language for block in blocks} == {"bash", "python", "toml", "json", "text", *ELSEWHERE}
    assert [key for key in BY_OTHERS if not any(block.language == key[1] for block in BLOCKS[key[0]])] == []
    lines = [line for block in blocks if block.language in ("bash", "python") for line in commands_of(block)]
    assert [one for one in NOT_RUN if not any(re.match(one, line) for line in lines)] == []
    texts = [block for block in blocks if block.language == "text"]
    shown = [block.shown for block in blocks]
    assert [one.page for one in texts if one.text not in shown] == ["docs/how_it_works.md"]  # a picture
    assert len([one for one in shown if one]) > 20


def test_what_the_pages_call_bansong_with_exists() -> None:
    """Commands and options, in blocks, sentences and tables."""
    wrong = []
    for page in PAGES:
        lines = [line for block in BLOCKS[page] if block.language == "bash" for line in commands_of(block)]
        lines += re.findall(r"`(bansong [a-z][^#`]+)`", (ROOT / page).read_text(encoding="utf-8"))
        for words in (words for words in lines if words.startswith("bansong ")):
            command = app
            for word in words.split()[1:]:
                command = getattr(command, "commands", {}).get(word, command)
            known = {option for parameter in command.params for option in parameter.opts}
            if command is app or set(re.findall(r"(?<![\w'=-])(-{1,2}[a-z][a-z-]*)", words)) - known:
                wrong.append(f"{page}: {words}")
    assert wrong == []


def test_python_job_files_and_json_of_the_pages_are_read(tmp_path: Path) -> None:
    for block in (block for page in PAGES for block in BLOCKS[page]):
        if block.language == "python":
            compile(block.text, block.page, "exec")
        if block.language == "toml":
            (tmp_path / "job.toml").write_text(block.text, encoding="utf-8")
            load_job_file(tmp_path / "job.toml")
        if block.language == "json":
            assert values_of(block.text), f"{block.page}:{block.line}"


def values_of(text: str) -> list[Any]:
    """JSON values, one behind the other."""
    found, decoder = [], json.JSONDecoder()
    while text := text.strip():
        value, end = decoder.raw_decode(text)
        found, text = [*found, value], text[end:]
    return found


class Desk:
    """A folder in which the commands of a page are given; those of bansong, in this process."""

    def __init__(self, page: str, folder: Path, environment: dict[str, str]) -> None:
        self.page, self.folder = page, folder
        (folder / "bin").mkdir()
        for name, words in {"bansong": f'"{sys.executable}" -m bansong', "curl": f"{shutil.which('curl')} -sS"}.items():
            write(folder / "bin" / name, f'#!/bin/sh\nexec {words} "$@"\n').chmod(0o755)
        path = f"{folder / 'bin'}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = environment | {"PATH": path, "HOME": str(folder)}
        self.bansong = runner(folder)
        self.processes: list[subprocess.Popen[bytes]] = []
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = str(free.getsockname()[1])
        self.ids: dict[str, str] = {}
        self.shown, self.printed = "", ""

    def give(self, command: str, shown: str) -> tuple[str, int, str]:
        """Return a command, its exit code, and what it prints on either stream. ``shown`` is what the page shows.

        If that is a job that is done, ask until it is. The ids in it are those that are printed here.
        """
        for _ in range(100 if '"done"' in shown else 1):
            code, text = self._run(command)
            if '"done"' in text:
                break
            time.sleep(0.1)
        self.printed = self.printed * (shown == self.shown) + text
        self.shown = shown
        self.ids |= zip(*(re.findall(r'_id":"([\w-]+)"', one) for one in (shown, self.printed)), strict=False)
        return command, code, text

    def _run(self, command: str) -> tuple[int, str]:
        here = {"8080": self.port, "8900": self.port, "~/": f"{self.folder}/", "…": KEY, **self.ids}
        for shown, real in here.items():
            command = command.replace(shown, real)
        if re.match("bansong (forget|keys erase)", command):
            command += " --yes"  # it asks at a terminal
        if command == "bansong sample sample_data":
            shutil.rmtree(self.folder / "sample_data")
        if command.startswith("bansong serve") or command.endswith("&"):
            return self._begin(f"exec {command.rstrip('& ')}" + f" --port {self.port}" * ("--port" not in command)), ""
        if command.startswith("bansong "):
            done = self.bansong(*shlex.split(command)[1:], env=self.environment)
        else:
            keep = f"'{sys.executable}' -c 'import json, os; print(json.dumps(dict(os.environ)))' > environment.json"
            script = f"set -a; {command}\ncode=$?; {keep}; exit $code"
            where = {"cwd": self.folder, "env": os.environ | self.environment}
            done = subprocess.run(["bash", "-c", script], **where, capture_output=True, text=True)
            self.environment |= json_of(self.folder / "environment.json")
        return done.returncode, done.stderr + done.stdout

    def _begin(self, command: str) -> int:
        where = {"cwd": self.folder, "env": os.environ | self.environment, "stderr": subprocess.DEVNULL}
        self.processes.append(subprocess.Popen(["bash", "-c", command], **where))
        for _ in range(300):
            with suppress(OSError), socket.create_connection(("127.0.0.1", int(self.port))):
                return 0
            time.sleep(0.1)
        return 1

    def close(self) -> None:
        for process in self.processes:
            process.terminate()
            process.wait()


VARYING = {
    r"\d{8}T\d{6}-[0-9a-f]{6}": "RUN",
    r"\d+(\.\d+)? ?(s\b|초)": "N s",
    r"\d{4}-\d\d-\d\dT[\d:.]+(\+09:00|Z)": "TIME",
    r'"\d{4}-\d\d"': '"MONTH"',
    r'"(key|watch|job)_id":"[\w-]+"': r'"\1_id":"ID"',
}
"""What differs from run to run, and what stands for it in a comparison."""


def comparable(text: str) -> list[Any]:
    for pattern, name in VARYING.items():
        text = re.sub(pattern, name, text)
    if text.startswith("{"):
        return values_of(text)
    return [line.rstrip() for line in text.strip().splitlines()]


class AtTheSample(datetime):
    """The clock of these tests: weeks after the statuses of the sample, which are too old from February 2027 on."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:
        return datetime(2026, 11, 28, 12, tzinfo=tz)


@pytest.fixture(scope="session")
def lists(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the lists that the pages name, before anything is done with them."""
    folder = tmp_path_factory.mktemp("lists")
    shutil.copytree(SAMPLE, folder / "sample_data", ignore=shutil.ignore_patterns("*.py"))
    for name in ("registry.parquet", "gazetteer.parquet", "customers.xlsx"):
        shutil.copy(SAMPLE / name, folder)
    customers = pl.read_csv(SAMPLE / "customers.csv", infer_schema=False)
    customers.with_columns(매출=pl.int_range(300)).write_csv(folder / "customers.csv")
    customers.write_csv(folder / "거래처.csv")
    headers = {"사업자등록번호": "등록번호", "상호": "거래처", "주소": "기본주소"}
    own = customers.rename(headers).with_columns(도로명주소="기본주소", 지번주소=pl.lit(""), 상세주소=pl.lit(""))
    own.write_excel(folder / "명단.xlsx", worksheet="거래처")
    customers.write_csv(folder / "명단.csv", include_header=False)
    customers.select(b_no="사업자등록번호", name="상호", address="주소").tail(2).write_csv(folder / "lookups.csv")
    for name, files in {"juso": "*rnaddrkor_sample.txt", "ftc": "registry_source.csv"}.items():
        (folder / "downloads" / name).mkdir(parents=True)
        for file in SAMPLE.glob(files):
            shutil.copy(file, folder / "downloads" / name)
    return folder


@pytest.fixture(scope="session")
def checked_lists(lists: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same lists with what an earlier run has made of them."""
    folder = tmp_path_factory.mktemp("checked") / "lists"
    shutil.copytree(lists, folder)
    bansong, state = runner(folder), {"BANSONG_STATE_DIR": str(folder.parent / "state")}
    indexes = ("--registry", "registry.parquet", "--gazetteer", "gazetteer.parquet")
    for name, letters in {
        "customers.csv": "letters.csv",
        "customers.xlsx": "letters.xlsx",
        "명단.xlsx": "발송.xlsx",
    }.items():
        assert bansong("enrich", name, *indexes, "--letters", letters, env=state).returncode == 0
    shutil.copy(folder / "customers.enriched.xlsx", folder / "last_month.xlsx")
    letters = pl.read_csv(folder / "letters.csv").select("letter_id").head(12)
    letters.with_columns(반송사유=pl.lit("이사불명")).write_excel(folder / "반송.xlsx")
    for name in ("결과.xlsx", "지난달.xlsx"):
        shutil.copy(folder / "명단.enriched.xlsx", folder / name)
    return folder


@pytest.fixture
def desk(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    page = str(request.param)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(schema, "datetime", AtTheSample)
    folder = "lists" if page in (*FAST, *FIRST) else "checked_lists"
    shutil.copytree(request.getfixturevalue(folder), tmp_path, dirs_exist_ok=True)
    statuses = pl.read_csv(SAMPLE / "registry_source.csv", infer_schema=False).select("사업자등록번호", "사업자상태")
    words = {"계속사업자": "active", "휴업자": "suspended", "폐업자": "closed"}
    environment = {"BANSONG_LANG": "ko" if "ko" in re.split(r"[./]", page) else "en"}
    with ExitStack() as stack:
        if page not in FIRST:  # which needs no key, as it says
            environment |= {"BANSONG_API_KEY": KEY, "BANSONG_NTS_KEY": KEY}
            environment["BANSONG_BASE_URL"] = stack.enter_context(serve(FakeService(KEY)))
            environment["BANSONG_NTS_URL"] = stack.enter_context(
                serve(FakeNts(KEY, {one: words[status] for one, status in statuses.iter_rows()}))
            )
        made = Desk(page, tmp_path, environment)
        stack.callback(made.close)
        yield made


MARKED = [pytest.param(page, marks=[] if page in FAST else pytest.mark.process) for page in PAGES if BLOCKS[page]]


@pytest.mark.parametrize("desk", MARKED, indirect=True)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::ResourceWarning")
@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_the_blocks_of_a_page_do_what_it_shows(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, Any] = {"__name__": "page"}
    for block in (block for block in BLOCKS[desk.page] if (desk.page, block.language) not in BY_OTHERS):
        commands = [line for line in commands_of(block) if not re.match("|".join(NOT_RUN), line)]
        where = f"{desk.page}:{block.line}"
        if block.language == "bash":
            given = [desk.give(line, block.shown or "") for line in commands]
            assert [one for one in given if one[1]] == [], where
            printed = "".join(text for *_, text in given)
        elif block.language == "python" and commands == commands_of(block):
            for name, value in desk.environment.items():
                monkeypatch.setenv(name, value)
            printed = run_python(block, names)
        else:
            continue
        assert block.shown is None or comparable(printed) == comparable(block.shown), f"{where}\n{printed}"


def run_python(block: Block, names: dict[str, Any]) -> str:
    """Run a block in the namespace of its page, or with pytest; return what it prints."""
    if "\ndef test_" in block.text:
        write(Path("test_page.py"), block.text)
        done = subprocess.run([sys.executable, "-m", "pytest", "-q", "test_page.py"], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
        return done.stdout.splitlines()[-1]
    with redirect_stdout(io.StringIO()) as printed:
        exec(compile("\n" * block.line + block.text, block.page, "exec"), names)
    return printed.getvalue()
