"""What type checkers say of calls: mypy, and pyright or basedpyright where one is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT

pytestmark = pytest.mark.process

RIGHT = """
from typing import assert_type

import pandas as pd
import polars as pl
import pyarrow as pa

import bansong as bs

frame = pl.DataFrame({"b_no": ["124-81-00998"]})
assert_type(bs.verify_frame(frame), pl.DataFrame)
assert_type(bs.verify_frame(frame.lazy(), engine=bs.LocalEngine()), pl.LazyFrame)
assert_type(bs.verify_frame(pd.DataFrame({"b_no": [1]}), prefix="bv_"), pd.DataFrame)
assert_type(bs.verify_frame(pa.table({"b_no": [1]})), pa.Table)
assert_type(bs.verify_frame(pa.table({"b_no": [1]}).to_reader()), pa.Table)
assert_type(bs.scan_verify(frame.lazy(), columns={"b_no": "b_no"}), pl.LazyFrame)
assert_type(bs.brn(pl.col("b_no")).is_valid(), pl.Expr)
assert_type(bs.brn(frame["b_no"]).compact(), pl.Series)
assert_type(bs.enrich("a.csv", sheet="x"), bs.Report)
assert_type(bs.enrich(["a.csv"], "out"), bs.FilesReport)
assert_type(bs.verify("124-81-00998").as_dict(), dict[str, object])
"""
WRONG = """
import polars as pl

import bansong as bs

bs.verify_frame(3)
bs.verify_frame([1])
bs.verify_frame("a.csv")
bs.verify_frame(pl.DataFrame(), prefx="a")
bs.verify_frame(pl.DataFrame(), engine="lokal")
bs.scan_verify(pl.DataFrame())
bs.brn("a")
bs.enrich(3)
bs.enrch("a.csv")
"""
WRONG_LINES = {number for number, line in enumerate(WRONG.splitlines(), 1) if line.startswith("bs.")}


def wrong_lines(command: list[str], folder: Path) -> set[tuple[str, int]]:
    (folder / "right.py").write_text(RIGHT, encoding="utf-8")
    (folder / "wrong.py").write_text(WRONG, encoding="utf-8")
    done = subprocess.run(
        [*command, folder / "right.py", folder / "wrong.py"], cwd=ROOT, capture_output=True, text=True
    )
    found = re.findall(r"(\w+)\.py:(\d+)(?::\d+)?(?: -)? ?:? error", done.stdout)
    assert found, done.stdout + done.stderr
    return {(name, int(line)) for name, line in found}


def test_mypy_knows_what_goes_in_and_comes_out(tmp_path: Path) -> None:
    mypy = [sys.executable, "-m", "mypy", "--strict", f"--config-file={ROOT / 'pyproject.toml'}"]
    assert wrong_lines(mypy, tmp_path) == {("wrong", line) for line in WRONG_LINES}


def test_pyright_knows_what_goes_in_and_comes_out(tmp_path: Path) -> None:
    command = shutil.which("pyright") or shutil.which("basedpyright")
    if command is None:
        pytest.skip("neither pyright nor basedpyright is installed")
    pyright = [command, "--pythonpath", sys.executable, "--level", "error"]
    assert wrong_lines(pyright, tmp_path) == {("wrong", line) for line in WRONG_LINES}
