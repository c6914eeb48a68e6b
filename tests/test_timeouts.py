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
from signals import IGNORING

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


@pytest.mark.process
def test_without_sigalrm_the_worker_names_the_test_that_hangs(tmp_path: Path) -> None:
    said = output_of_hanging(tmp_path, "--timeout-method", "thread", "-k", "lock or quick")
    assert "crashed while running 'test_hanging.py::test_lock'" in said
    assert "in test_lock" in said
    assert "1 failed, 1 passed" in said


@pytest.mark.skipif(os.name == "nt", reason="no signals that a child could inherit")
@pytest.mark.process
def test_signals_can_be_sent_though_the_caller_ignores_them() -> None:
    """In a background job of a script and under `nohup`, whose children ignore SIGINT and SIGHUP, too."""
    tests = (
        "tests/test_buying.py::test_the_first_interrupt_lets_the_run_settle",
        "tests/test_fake_service.py::test_the_process_journals_what_is_paid_before_it_replies",
    )
    done = subprocess.run(
        [*IGNORING, sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", *tests],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr
