"""A test that hangs fails by its name, with the stacks of all threads, and the others run on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT

HANGING = """
import asyncio, itertools, threading, time
import anyio, pytest, trio

def test_lock(): threading.Event().wait()
def test_asyncio(): asyncio.run(asyncio.sleep(1000))
def test_trio(): trio.run(trio.sleep, 1000)
def test_thread():
    with anyio.from_thread.start_blocking_portal() as portal: portal.call(anyio.sleep, 1000)
def test_in_c(): sum(itertools.repeat(1))  # where no signal is looked at
def test_quick(): pass
"""


def output_of_hanging(tmp_path: Path, *options: str) -> str:
    """What pytest says of ``HANGING``, with this project's settings and hooks, two seconds a test, in a worker."""
    (tmp_path / "test_hanging.py").write_text(HANGING, encoding="utf-8")
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    command = [sys.executable, "-m", "pytest", "-c", ROOT / "pyproject.toml", "--rootdir", tmp_path, "-n", "1"]
    done = subprocess.run(
        [*command, "--timeout", "2", "-p", "no:cacheprovider", "-W", "ignore", *options, "test_hanging.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="no SIGALRM here: each hang ends its worker")
@pytest.mark.process
def test_a_test_that_hangs_fails_alone(tmp_path: Path) -> None:
    """One that lets no handler run ends its worker, which names it; another worker goes on."""
    said = output_of_hanging(tmp_path)
    for name in ("lock", "asyncio", "trio", "thread"):
        assert f"FAILED test_hanging.py::test_{name} - Failed: Timeout" in said
    assert "crashed while running 'test_hanging.py::test_in_c'" in said
    assert "in test_in_c" in said
    assert "5 failed, 1 passed" in said
