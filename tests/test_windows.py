"""What bansong does without all that Windows lacks, in processes that lack it (``windows_like/sitecustomize.py``)."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest

from bansong.testing import FakeService, serve
from conftest import SAMPLE, spreadsheet, write
from customers import KEY, customers
from serving import ServedProcess

Run = Callable[..., subprocess.CompletedProcess[str]]

POOR = {
    "PYTHONPATH": str(Path(__file__).parent / "windows_like"),
    "PYTHONIOENCODING": "cp949",
    "PYTHONWARNDEFAULTENCODING": "1",
}
IMPORT_ALL = """
import importlib, os, pkgutil, bansong
assert not hasattr(os, "fchmod"), "this process is no poorer than others"
for module in pkgutil.walk_packages(bansong.__path__, "bansong."):
    if not module.name.endswith("__main__") and (module.name != "bansong.distributed.spark" or {spark}):
        importlib.import_module(module.name)
""".replace("{spark}", str(find_spec("pyspark") is not None))  # an extra that `dev` does not have
REFUSED = re.compile(r'[<>:"|?*\\\x00-\x1f]|[. ]$|^(?:con|prn|aux|nul|com\d|lpt\d)(?:\.|$)', re.IGNORECASE)
"""Names that no file can have on Windows."""


@pytest.fixture
def poor(tmp_path: Path) -> Iterator[Run]:
    """Run the command line in a process as poor as on Windows; each name it gives a file is one that Windows takes."""

    def command(*arguments: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "bansong", *map(str, arguments)],
            cwd=tmp_path,
            env=os.environ | POOR | (env or {}),
            capture_output=True,
            encoding=(POOR | (env or {}))["PYTHONIOENCODING"],
            timeout=200,
            check=False,
        )

    yield command
    made = [*tmp_path.rglob("*"), *Path(os.environ["BANSONG_STATE_DIR"]).rglob("*")]
    assert [path for path in made if REFUSED.search(path.name)] == []
    assert [path for path in made if path.name.startswith(".bansong-")] == []


@pytest.mark.process
def test_every_module_can_be_imported() -> None:
    subprocess.run([sys.executable, "-c", IMPORT_ALL], env=os.environ | POOR, check=True, timeout=200)


@pytest.mark.process
@pytest.mark.parametrize("name", ["customers.csv", "customers.xlsx"])
def test_the_main_job_gives_the_same_file(name: str, poor: Run, run: Run, tmp_path: Path) -> None:
    shutil.copy(SAMPLE / name, tmp_path)
    options = ("--registry", SAMPLE / "registry.parquet", "--gazetteer", SAMPLE / "gazetteer.parquet")
    shutil.copy(SAMPLE / name, tmp_path / f"usual-{name}")
    assert run("enrich", f"usual-{name}", "-o", f"usual.out{Path(name).suffix}", *options).returncode == 0
    wanted = content(tmp_path / f"usual.out{Path(name).suffix}")
    for where in (("-o", f"new{Path(name).suffix}"), ("--in-place",)):
        done = poor("enrich", name, *where, *options)
        assert done.returncode == 0, done.stderr
    assert content(tmp_path / f"new{Path(name).suffix}") == content(tmp_path / name) == wanted
    assert (tmp_path / f"{name}.bak").read_bytes() == (SAMPLE / name).read_bytes()


@pytest.mark.process
def test_a_file_that_is_open_stays_as_it_is(poor: Run, tmp_path: Path) -> None:
    """Who has it open in Excel is told which file cannot be written; nothing is left beside it."""
    shutil.copy(SAMPLE / "customers.csv", tmp_path)
    old = write(tmp_path / "out.csv", "old")
    holding = "import sys; held = open('out.csv', 'rb'); from bansong.cli.app import main; main()"
    command = [sys.executable, "-c", holding, "enrich", "customers.csv", "-o", "out.csv"]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | POOR, capture_output=True, check=False, timeout=200)
    assert done.returncode == 2, done.stderr
    assert b"out.csv: cannot be written" in done.stderr.splitlines()[-1]
    assert old.read_text() == "old"


def content(path: Path) -> object:
    if path.suffix != ".xlsx":
        return path.read_bytes()
    import openpyxl

    book = openpyxl.load_workbook(path)
    return [[[cell.value for cell in row] for row in sheet] for sheet in book if sheet.title != "bansong"]


@pytest.mark.process
def test_what_is_read_in_a_process_of_its_own_is_read(poor: Run, tmp_path: Path) -> None:
    """An .ods, and a CSV packed with gzip."""
    spreadsheet(tmp_path / "list.ods", [["사업자등록번호", "상호"], ["124-81-00998", "삼성전자"]])
    (tmp_path / "list.csv.gz").write_bytes(gzip.compress((SAMPLE / "customers.csv").read_bytes()))
    for name in ("list.ods", "list.csv.gz"):
        done = poor("enrich", name, "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["row_status"]["verified"] > 0


@pytest.mark.process
def test_outcomes_are_recorded_and_learned_from(poor: Run, tmp_path: Path) -> None:
    """The label store is written twice, the second time over a file that has just been read."""
    shutil.copy(SAMPLE / "customers.csv", tmp_path)
    assert poor("enrich", "customers.csv", "--registry", SAMPLE / "registry.parquet").returncode == 0
    label = ("label", SAMPLE / "outcomes.csv", "--file", "customers.enriched.csv", "--returns-requested")
    assert poor(*label).returncode == 0
    again = poor(*label, "--complete", "--sent", "all", "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["new"] == 0
    learned = poor("calibrate", "--dry-run")
    assert "251 letters of 1 mailing" in learned.stdout, learned.stderr


@pytest.mark.process
def test_a_watch_list_in_a_file_is_kept_and_checked(poor: Run, tmp_path: Path) -> None:
    """A closure is told once, over registries that replace one another; an English console shows Hangul escaped."""
    write(tmp_path / "list.csv", "사업자등록번호,상호\n124-81-00998,삼성전자\n301-58-57580,해오름\n")
    assert poor("watch", "sync", "list.csv", "--local", "--apply").returncode == 0
    listed = poor("watch", "list", "--local", env={"PYTHONIOENCODING": "cp1252"})
    assert (listed.returncode, r"\uc0bc\uc131" in listed.stdout) == (0, True), listed.stderr
    for status in ("계속사업자", "폐업자", "폐업자"):
        write(tmp_path / "status.csv", f"사업자등록번호,사업자상태\n1248100998,계속사업자\n3015857580,{status}\n")
        built = poor("data", "build-registry", "status.csv", "-o", "registry.parquet", "--as-of", "2026-11-01")
        assert built.returncode == 0, built.stderr
        checked = ("--all", "--registry", "registry.parquet", "--notify", "closures.jsonl")
        done = poor("watch", "check", "--local", *checked)
        assert done.returncode == 0, done.stderr
    told = (tmp_path / "closures.jsonl").read_bytes()
    assert told.count(b"3015857580") == told.count(b"\n") == 1


@pytest.mark.process
def test_lookups_are_bought_once_and_the_ledger_says_so(poor: Run, tmp_path: Path) -> None:
    customers(tmp_path / "in.csv", 12)
    service = FakeService(KEY, quota=100)
    with serve(service) as url:
        env = {"BANSONG_BASE_URL": url, "BANSONG_API_KEY": KEY}
        for engine in ("verify", "batch"):
            done = poor("enrich", "in.csv", "--engine", engine, env=env)
            assert done.returncode == 0, done.stderr
    assert (service.paid_total, service.paid_again) == (12, 0)
    assert len(json.loads(poor("ledger", "--json").stdout)["runs"]) == 2


@pytest.mark.process
def test_the_service_answers_and_reads_uploads(poor: Run, tmp_path: Path) -> None:
    """Its reader is a process of its own, the job's results appear, and a newer registry may take the older's place."""
    shutil.copy(SAMPLE / "registry.parquet", tmp_path)
    key = poor("keys", "create", "--db", "server.db", "--plan", "business").stdout.strip()
    server = ServedProcess(tmp_path / "server.db", "--registry", tmp_path / "registry.parquet", env=POOR)
    url = server.start()
    try:
        with httpx.Client(base_url=url, headers={"X-API-Key": key}, timeout=100) as client:
            assert client.post("/verify", json={"b_no": "3015857580"}).json()["biz_status"] == "closed"
            built = poor("data", "build-registry", SAMPLE / "registry_source.csv", "-o", "registry.parquet")
            assert built.returncode == 0, built.stderr
            with (SAMPLE / "customers.xlsx").open("rb") as file:
                assert client.post("/batch", files={"file": ("list.xlsx", file)}).json()["total"] == 300
    finally:
        server.kill()
