"""The suite as it is run against any service, and `bansong serve` as it is started by its users."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.services import foreign
from conformance.target import LOOKUPS
from serving import ServedProcess, make_key, rows_of

ROOT = Path(__file__).parent.parent.parent


def a_key(db: Path, *options: str) -> str:
    command = [sys.executable, "-m", "bansong", "keys", "create", "--db", str(db), *options]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.fuzz
def test_the_command_passes_and_the_suite_spends_what_it_says(tmp_path: Path) -> None:
    """§1 to §8 hold for `bansong serve`; a run against a URL spends LOOKUPS lookups and shows no key."""
    db = tmp_path / "service.sqlite"
    secret = a_key(db, "--plan", "business", "--quota", "100")
    keys = {
        "BANSONG_API_KEY": secret,
        "BANSONG_FREE_KEY": make_key(db, "free"),
        "BANSONG_SMALL_QUOTA_KEY": make_key(db, quota=2),
        "BANSONG_OTHER_KEY": make_key(db),
    }
    server = ServedProcess(db)
    try:
        url = server.start()
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "tests/conformance", "--base-url", url],
            cwd=ROOT,
            env=os.environ | keys,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        server.kill()
    assert done.returncode == 0, done.stdout
    assert f"spends {LOOKUPS} lookups" in done.stdout
    assert [key for key in keys.values() if key in done.stdout + done.stderr] == []
    assert rows_of(db, "SELECT used FROM usage ORDER BY used") == [(2,), (LOOKUPS,)]


def test_a_url_needs_a_key(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """§5.1: without a key nothing is asked of a service, and it is said how to give one."""
    monkeypatch.delenv("BANSONG_API_KEY", raising=False)
    monkeypatch.setattr(pytestconfig.option, "base_url", "http://[::1]:9")
    monkeypatch.setattr(pytestconfig.option, "api_key", None)
    with pytest.raises(pytest.UsageError, match="set BANSONG_API_KEY"):
        foreign(pytestconfig)
