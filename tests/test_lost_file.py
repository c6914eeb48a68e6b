"""The server's file is away: no start takes it for a new one, no job's files go, and health says it while it runs."""

from __future__ import annotations

import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from bansong.cli.app import app
from serving import HTTP, Served, logged, make_key, served, wait_until

Run = Callable[..., subprocess.CompletedProcess[str]]
JOB = {"file": ("list.csv", b"b_no,name\n1248100998,x\n")}


def with_a_job(db: Path) -> Path:
    """Have a job answered; return the file of its results."""
    with served(db) as server:
        job_id = ask(server, server.key(), JOB)
        results = server.db.parent / f"{db.name}.files" / "jobs" / job_id / "results.parquet"
        wait_until(results.exists)
    return results


def ask(server: Served, key: str, files: dict[str, tuple[str, bytes]]) -> str:
    answer = HTTP.post(f"{server.url}/batch", files=files, headers={"X-API-Key": key})
    return str(answer.json()["job_id"])


@pytest.mark.parametrize(
    "words",
    [("serve", "--port", "0"), ("serve", "--check", "--port", "0"), ("keys", "create", "--plan", "business")],
)
def test_none_is_made_beside_files_of_a_lost_one(tmp_path: Path, words: tuple[str, ...], run: Run) -> None:
    """Neither the server, its check nor `keys create` takes it for a new one; the files stay, and serve again."""
    db = tmp_path / "db.sqlite"
    results = with_a_job(db)
    away = db.rename(tmp_path / "away")
    with logged():  # `serve` sets the log of its process up
        done = run(*words, "--db", db)
    assert (done.returncode, db.exists(), results.exists()) == (2, False, True)
    assert f"{db.name}.files" in done.stdout + done.stderr
    away.rename(db)
    with served(db):
        assert results.exists()


def test_a_file_without_keys_removes_no_job(tmp_path: Path) -> None:
    """It may be a wrong one."""
    db = tmp_path / "db.sqlite"
    results = with_a_job(db)
    db.rename(tmp_path / "away")
    with served(tmp_path / "new.sqlite"):
        pass
    (tmp_path / "new.sqlite").rename(db)
    with served(db):
        assert results.exists()
    make_key(db)
    with served(db):
        assert not results.exists()


def replace(db: Path) -> None:
    db.rename(db.with_name("away"))
    with closing(sqlite3.connect(db.with_name("away"))) as file, closing(sqlite3.connect(db)) as copy:
        file.backup(copy)


@pytest.mark.parametrize("lose", [Path.unlink, lambda db: db.rename(db.with_name("away")), replace])
def test_health_fails_while_the_file_is_away(tmp_path: Path, lose: Callable[[Path], object]) -> None:
    """The log names the cause, and so does the check beside the running server; it is well when the file is back."""
    db = tmp_path / "db.sqlite"
    with logged() as lines, served(db) as server:
        key = server.key()
        assert HTTP.get(f"{server.url}/healthz").json() == {"status": "ok"}
        lose(db)
        wait_until(lambda: HTTP.get(f"{server.url}/healthz").status_code == 503)
        asked = HTTP.post(f"{server.url}/verify", json={"b_no": "1248100998"}, headers={"X-API-Key": key})
        assert asked.status_code == 503
        if not db.exists():
            assert CliRunner().invoke(app, ["serve", "--check", "--port", "0", "--db", str(db)]).exit_code == 2
        if (away := db.with_name("away")).exists():
            away.replace(db)
            wait_until(lambda: HTTP.get(f"{server.url}/healthz").status_code == 200)
    assert any("was moved" in line["event"] for line in lines if line["level"] == "error")
