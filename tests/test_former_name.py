"""What was set up under the former name, ``bizverify``, goes on working: else every lookup would be bought again.

``tests/files/former_name.zip`` was made by the last release of that name: the state folder with its ledger (three
answers, bought from a fake at the origin below), its label store, status store, watch file and manifests; the file
that was enriched, a registry, and a server's file with its key.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from bansong.base import files as environment
from bansong.base.files import state_directory
from serving import HTTP, served

ORIGIN = {"BANSONG_BASE_URL": "http://127.0.0.1:48123", "BANSONG_API_KEY": "nobody-listens-there"}
NUMBERS = ("1248100998", "2208162517")

Command = Callable[..., subprocess.CompletedProcess[str]]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the state folder is placed by XDG_STATE_HOME")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder as the last release of the former name left it; ``run`` runs commands in it."""
    with zipfile.ZipFile(Path(__file__).parent / "files" / "former_name.zip") as archive:
        archive.extractall(tmp_path)
    monkeypatch.delenv("BANSONG_STATE_DIR")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    environment._notice.cache_clear()
    return tmp_path


def test_registry_labels_statuses_watches_and_manifests_of_then_are_read(
    home: Path, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "altair", None)  # charts take longest
    local = ("enrich", "customers.csv", "-o", "out.csv", "--registry", "registry.parquet", "--json")
    report = json.loads(run(*local).stdout)
    assert (report["biz_status"]["active"], report["biz_status"]["closed"]) == (1, 1)
    assert report["history"]["letters"] == 2
    asked = json.loads(run("status", *NUMBERS, "--max-status-age", 36500, "--json").stdout)
    assert [one["biz_status"] for one in asked["statuses"]] == ["active", "active"]
    assert "124-81-00998" in run("watch", "list", "--local").stdout
    for manifest in (home / "state" / "bizverify" / "runs").iterdir():
        done = run("report", manifest.stem, "-o", f"{manifest.stem}.html")
        assert (done.returncode, manifest.stem in (home / f"{manifest.stem}.html").read_text("utf-8")) == (0, True)


def test_a_server_s_file_of_then_serves_its_key(home: Path) -> None:
    secret = (home / "key.txt").read_text("utf-8").strip()
    with served(home / "server.sqlite") as server:
        assert HTTP.get(f"{server.url}/me", headers={"X-API-Key": secret}).json()["plan"] == "business"


def test_the_new_folder_is_used_once_it_holds_a_ledger(home: Path) -> None:
    new, former = home / "state" / "bansong", home / "state" / "bizverify"
    assert state_directory() == former
    new.mkdir()
    assert state_directory() == former
    (former / "ledger.sqlite").rename(new / "ledger.sqlite")
    assert state_directory() == new
    (new / "ledger.sqlite").unlink()
    assert state_directory() == new
    shutil.rmtree(former)
    shutil.rmtree(new)
    assert state_directory() == new


def test_nothing_is_bought_again_and_one_line_says_whose_folder_and_variables_are_read(
    home: Path, run: Command
) -> None:
    """Nobody listens at the service: all answers come from the ledger then, also one that an old variable names."""
    state, elsewhere = home / "state" / "bizverify", home / "elsewhere.sqlite"
    former = {name.replace("BANSONG", "BIZVERIFY"): value for name, value in ORIGIN.items()}
    ledger = {"BIZVERIFY_LEDGER": str(elsewhere)}
    for env, notices in ((ORIGIN, [str(state)]), (former | ledger, ["BIZVERIFY_BASE_URL ", "BIZVERIFY_LEDGER "])):
        done = run("enrich", "customers.csv", "--engine", "verify", "--max-age", 36500, "--json", env=env)
        assert json.loads(done.stdout)["lookups"] == {"planned": 3, "paid": 0, "cached": 3, "saved": 0}
        assert [done.stderr.count(notice) for notice in notices] == [1] * len(notices)
        assert not (home / "state" / "bansong").exists()
        if not elsewhere.exists():
            (state / "ledger.sqlite").rename(elsewhere)
        environment._notice.cache_clear()
    done = run("ledger", env=ledger | {"BANSONG_LEDGER": str(home / "none.sqlite")})
    assert str(home / "none.sqlite") in done.stderr


def test_what_a_killed_run_of_then_left_is_swept(home: Path, run: Command) -> None:
    """Its temporary files hold customers."""
    left = home / ".bizverify-0123abcd-out.csv"
    left.write_text("customers")
    os.utime(left, (time.time() - 7200,) * 2)
    assert run("enrich", "customers.csv", "-o", "out.csv").returncode == 0
    assert not left.exists()
