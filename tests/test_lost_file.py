"""The server's file is away: no start takes it for a new one, no job's files go, and health says it while it runs."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from bansong.cli.app import app
from serving import HTTP, logged, make_key, served, wait_until

Run = Callable[..., subprocess.CompletedProcess[str]]
JOB = {"file": ("list.csv", b"b_no,name\n1248100998,x\n")}


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    db = tmp_path_factory.mktemp("answered") / "db.sqlite"
    with served(db) as server:
        answer = HTTP.post(f"{server.url}/batch", files=JOB, headers={"X-API-Key": server.key()})
        wait_until(results_of(db, answer.json()["job_id"]).exists)
    return db.parent


def results_of(db: Path, job_id: str = "*") -> Path:
    jobs = db.parent / f"{db.name}.files" / "jobs"
    return next((one / "results.parquet" for one in jobs.glob(job_id)), jobs / job_id / "results.parquet")


@pytest.fixture
def db(answered: Path, tmp_path: Path) -> Path:
    shutil.copytree(answered, tmp_path / "served")
    return tmp_path / "served" / "db.sqlite"


def test_none_is_made_beside_files_of_a_lost_one(db: Path, run: Run) -> None:
    """Neither the server, its check nor `keys create` takes it for a new one; the files stay, and serve again."""
    results, away = results_of(db), db.rename(db.with_name("away"))
    for words in (["serve", "--port", 0], ["serve", "--check", "--port", 0], ["keys", "create", "--plan", "business"]):
        with logged():  # `serve` sets the log of its process up
            done = run(*words, "--db", db)
        assert (done.returncode, db.exists(), results.exists()) == (2, False, True), words
        assert f"{db.name}.files" in done.stdout + done.stderr
    away.rename(db)
    with served(db):
        assert results.exists()


def test_a_file_without_keys_removes_no_job(db: Path, tmp_path: Path) -> None:
    with served(tmp_path / "new.sqlite"):
        pass
    (tmp_path / "new.sqlite").replace(db)
    with served(db):
        assert results_of(db).exists()
    make_key(db)
    with served(db):
        assert not results_of(db).exists()


def test_health_fails_while_the_file_is_away(db: Path) -> None:
    away = db.with_name("away")
    with logged() as lines, served(db) as server:
        key = server.key()

        def healthy() -> bool:
            return HTTP.get(f"{server.url}/healthz").status_code == 200

        db.rename(away)
        wait_until(lambda: not healthy())
        asked = HTTP.post(f"{server.url}/verify", json={"b_no": "1248100998"}, headers={"X-API-Key": key})
        assert asked.status_code == 503
        assert CliRunner().invoke(app, ["serve", "--check", "--port", "0", "--db", str(db)]).exit_code == 2
        away.replace(db)
        wait_until(healthy)
        db.rename(away)
        with closing(sqlite3.connect(away)) as file, closing(sqlite3.connect(db)) as copy:
            file.backup(copy)
        wait_until(lambda: not healthy())
    assert any("was moved" in line["event"] for line in lines if line["level"] == "error")
