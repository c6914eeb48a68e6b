"""Reference files that are built without a name are installed, and used where none is given, and said so."""

from __future__ import annotations

import json
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bansong as bs
from conftest import SAMPLE, write

Run = Callable[..., subprocess.CompletedProcess[str]]
LIST = "사업자번호,상호,주소\n124-81-00998,삼성전자,경기 수원시 영통구 삼성로 129\n"


@pytest.fixture
def installed(run: Run, state_directory: Path, tmp_path: Path) -> Path:
    """The folder of installed files, with a gazetteer and a registry."""
    write(tmp_path / "in.csv", LIST)
    for what, source in (("gazetteer", "rnaddrkor_sample.txt"), ("registry", "registry_source.csv")):
        done = run("data", f"build-{what}", SAMPLE / source)
        assert (done.returncode, f"--no-{what}" in done.stderr) == (0, True), done.stderr
    return state_directory / "data"


def versions(run: Run, *arguments: object) -> list[bool]:
    done = run("plan", "in.csv", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["versions"]
    return [found["registry"] is not None, found["gazetteer"] is not None]


def test_commands_use_what_is_installed_unless_told_otherwise(run: Run, installed: Path, tmp_path: Path) -> None:
    for name in ("gazetteer.parquet", "registry.parquet"):
        assert stat.S_IMODE((installed / name).stat().st_mode) == 0o600
    assert versions(run) == [True, True]
    assert versions(run, "--no-registry") == [False, True]
    assert versions(run, "--no-registry", "--no-gazetteer") == [False, False]
    assert run("enrich", "in.csv", "--no-registry", "--registry", "r.parquet").returncode == 2
    named = run("enrich", "in.csv", "-o", "out.csv", "--registry", SAMPLE / "registry.parquet", "--no-gazetteer")
    assert (named.returncode, "installed" in named.stderr) == (0, False)
    for command in (("enrich", "in.csv", "-o", "out.csv"), ("plan", "in.csv"), ("verify", "1248100998")):
        lines = [line for line in run(*command).stderr.splitlines() if line.startswith("installed")]
        assert (len(lines), "2026-11-01" in lines[0], "2026-10-31" in lines[0], "day" in lines[0]) == (1, *[True] * 3)
    assert str(installed / "gazetteer.parquet") in run("serve", "--db", "s.sqlite", "--check", "--port", "0").stdout
    assert str(installed / "registry.parquet") in run("doctor", "--offline").stdout
    assert bs.plan(tmp_path / "in.csv").versions.registry is None  # Python code names what it uses


def test_an_engine_that_buys_does_not_complain_about_what_is_installed(run: Run, installed: Path) -> None:
    assert installed.is_dir()
    done = run("plan", "in.csv", "--engine", "batch", "--base-url", "http://127.0.0.1:9", "--json")
    assert [one for one in json.loads(done.stdout)["warnings"] if "registry" in one] == []


def test_an_installed_file_is_replaced_only_by_a_whole_one(run: Run, installed: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in installed.iterdir()}
    write(tmp_path / "rnaddrkor_half.txt", "26110|101\n")
    assert run("data", "build-gazetteer", "rnaddrkor_half.txt").returncode == 2
    assert run("data", "build-registry", write(tmp_path / "s.csv", "a,b\n1,2\n")).returncode == 2
    assert {path: path.read_bytes() for path in installed.iterdir()} == before
    updated = run("data", "update", "--addresses", SAMPLE / "rnaddrkor_sample.txt", "--json")
    state: dict[str, Any] = json.loads(updated.stdout)["updates"][0]
    assert (state["state"], state["path"]) == ("current", str(installed / "gazetteer.parquet"))
    assert run("data", "update").returncode == 0  # without a key, the registry stays


def test_a_job_uses_what_is_installed_and_verifies_again_when_that_changes(
    run: Run, installed: Path, tmp_path: Path
) -> None:
    write(tmp_path / "job.toml", "[[inputs]]\npath = 'in.csv'\n[output]\npath = 'out.csv'\n")

    def outcome() -> tuple[str, bool]:
        done = run("run", "job.toml", "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["inputs"][0]["what"], ",active," in (tmp_path / "out.csv").read_text("utf-8-sig")

    assert [outcome(), outcome()] == [("verified", True), ("unchanged", True)]
    assert "2026-11-01" in run("run", "job.toml").stderr
    (installed / "registry.parquet").unlink()
    assert outcome() == ("verified", False)
    assert run("data", "build-registry", SAMPLE / "registry_source.csv").returncode == 0
    assert outcome() == ("verified", True)
    with (tmp_path / "job.toml").open("a") as file:
        file.write("[reference]\nregistry = 'none'\n")
    assert outcome() == ("verified", False)
