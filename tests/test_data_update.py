"""`data update`: built anew only where something newer lies there, never with less than before."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from bansong import Gazetteer
from bansong.testing import FakeNts, serve
from conftest import write
from customers import numbers as customer_numbers
from gazetteers import put, row

Run = Callable[..., subprocess.CompletedProcess[str]]
NAME = "rnaddrkor_sejong.txt"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the address files of one province, as they were of 2023-06."""
    return put(tmp_path / "202306_도로명주소 한글_전체분" / NAME, *map(row, range(1, 20))).parent


def update(run: Run, folder: Path, *, code: int = 0) -> dict[str, Any]:
    done = run("data", "update", "--gazetteer", "g.parquet", "--addresses", folder, "--json")
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)["updates"][0] if code == 0 else {"said": done.stderr}


def test_a_gazetteer_is_built_once_and_again_with_files_of_a_later_month(
    run: Run, folder: Path, tmp_path: Path
) -> None:
    """The same files change nothing, nor do those of the month before; a later set with less than before is refused."""
    assert update(run, folder)["state"] == "refreshed"
    before = (tmp_path / "g.parquet").read_bytes()
    again = update(run, folder)
    assert (again["state"], "business.juso.go.kr" in again["remedy"]) == ("current", True)
    later = shutil.copytree(folder, tmp_path / "202307_전체분")
    (later / NAME).rename(later / "rnaddrkor_busan.txt")
    assert NAME in update(run, later, code=2)["said"]
    assert (tmp_path / "g.parquet").read_bytes() == before
    (later / "rnaddrkor_busan.txt").rename(later / NAME)
    assert update(run, later)["state"] == "refreshed"
    assert Gazetteer.open(tmp_path / "g.parquet").source_date.isoformat() == "2023-07-31"
    assert update(run, folder)["state"] == "current"


def test_files_without_a_day_count_by_when_they_changed(run: Run, folder: Path, tmp_path: Path) -> None:
    """Where no name tells the month, files that are others and changed since the gazetteer was built are newer."""
    plain = shutil.copytree(folder, tmp_path / "plain")
    assert update(run, plain)["state"] == "refreshed"
    file = put(plain / NAME, *map(row, range(1, 15)))
    for changed, state in ((1e9, "current"), (4e9, "refreshed")):
        os.utime(file, (changed, changed))
        assert update(run, plain)["state"] == state


def test_a_registry_is_refreshed_with_the_key_and_goes_on_where_the_budget_ends(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The statuses are asked for and the file replaced; a budget that is too small ends in exit code 5, and goes on."""
    numbers = [*customer_numbers(3)]
    write(tmp_path / "s.csv", "사업자번호,상태\n" + "".join(f"{number},계속사업자\n" for number in numbers))
    assert run("data", "build-registry", "s.csv", "-o", "r.parquet", "--as-of", "2024-01-01").returncode == 0
    assert run("data", "update", "--registry", "r.parquet").returncode == 2  # without a key
    monkeypatch.setenv("BANSONG_NTS_KEY", "Ab+cd/efgh0123456789==")
    with serve(FakeNts("Ab+cd/efgh0123456789==", default="closed")) as address:
        monkeypatch.setenv("BANSONG_NTS_URL", address)
        paused = run("data", "update", "--registry", "r.parquet", "--budget", "1", "--json")
        assert paused.returncode == 5, paused.stderr
        assert "goes on" in json.loads(paused.stdout)["updates"][0]["remedy"]
        done = run("data", "update", "--registry", "r.parquet", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["updates"][0]["state"] == "refreshed"
    assert pl.read_parquet(tmp_path / "r.parquet")["biz_status"].to_list() == ["closed"] * 3


def test_what_must_be_downloaded_is_said(run: Run) -> None:
    """Without anything to refresh it says where the rest comes from; half of a pair of options is refused."""
    done = run("data", "update")
    assert done.returncode == 0
    assert [
        words for words in ("ftc.go.kr", "build-registry", "docs/data-sources.md") if words not in done.stderr
    ] == []
    assert run("data", "update", "--gazetteer", "g.parquet").returncode == 2
