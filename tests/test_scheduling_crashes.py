"""A run of a scheduled job that is killed or stopped at each of its steps: the next ones come to the same."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import pytest

from bansong.jobs.run import run_job
from nightly_jobs import DAY, Nights
from signals import IGNORING

pytestmark = pytest.mark.crash

STOPPED_AT = """
import os, signal, sys, time, _bansong_start
from bansong.cli import app as cli
request = cli.let_stop_signals_interrupt()  # as main does, before polars is imported
cli.let_stop_signals_interrupt = lambda: request
from bansong.engine.risk import assess
from bansong.jobs import run as job, state as run_store
from bansong.notify import channels
from bansong.run.runner import Run

def stop_behind(owner, name):
    act = getattr(owner, name)
    def act_and_stop(*given, **more):
        done = act(*given, **more)
        os.kill(os.getpid(), stop)
        until = time.monotonic() + 0.3  # a query's thread waits in vain: the main thread handles it after the query
        while not request.is_made and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.02)
        return done
    setattr(owner, name, act_and_stop)

store = run_store.RunStore
steps = {"found": (job, "find_inputs"), "noted": (store, "note_outputs"),
         "answered in a query": (assess._Assessor, "_answer"),
         "published": (Run, "carry_out"), "copied": (job, "copy_file"),
         "verified": (job, "about_file"), "compared": (job, "advance"),
         "changes written": (job, "write_changes"), "snapshot put": (store, "_put_snapshot"),
         "committed": (store, "commit_run"), "sent": (channels, "append_lines"),
         "noted as told": (store, "mark_taken"), "all done": (job, "write_metrics")}
stop, step = getattr(signal, sys.argv[1]), sys.argv[2]
stop_behind(*steps[step])
sys.argv = ["bansong", "run", "job.toml"]
from bansong.cli.app import main
main()
"""
JOB = """
[output]
path = "{name}.{date}.csv"
latest = "{name}.latest.csv"
changes = "changes.{date}.csv"
[notify]
file = "told.log"
[run]
metrics = "job.prom"
"""
BEGUN = ("found", "noted", "answered in a query", "published", "verified", "copied", "compared")
"""Steps at which a run ends at once."""
WRITTEN_DOWN = {"snapshot put": 3, "committed": 3, "changes written": 3, "sent": 0, "noted as told": 0, "all done": 0}
"""Steps at which a run ends with what is left of its recording, and its exit code: 3 where it left its message."""


def stop_at(step: str, stop: str, nights: Nights) -> subprocess.CompletedProcess[str]:
    """A night on which a business has closed, in both of two lists, and whose run is stopped at a step in the first."""
    nights.write_job(inputs='path = "*.csv"', end=JOB)
    copy_list(nights)
    run_job(nights.folder / "job.toml", now=lambda: time.time() - 2 * DAY)
    nights.close()
    copy_list(nights)
    command = [sys.executable, "-c", STOPPED_AT, stop, step]
    return subprocess.run(command, cwd=nights.folder, capture_output=True, text=True)


def copy_list(nights: Nights) -> None:
    shutil.copyfile(nights.folder / "in.csv", nights.folder / "more.csv")


def told_in_the_end(nights: Nights) -> int:
    """How often the closure is told after two more nights; outputs and copies have the same answers then."""
    closed = next(iter(nights.statuses))
    for later in (1, 2):
        report = run_job(nights.folder / "job.toml", now=lambda later=later: time.time() + later * DAY)
        assert [Path(one.path).name for one in report.inputs] == ["in.csv", "more.csv"]
        assert report.exit_code == 0
        outputs = [Path(one.output or "") for one in report.inputs]
        copies = [nights.folder / f"{name}.latest.csv" for name in ("in", "more")]
        assert len({path.read_bytes() for path in (*outputs, *copies)}) == 1
        assert f"{closed},상사 {closed},서울시 중구 세종대로 {int(closed) % 97},closed," in copies[0].read_text("utf-8")
    told = [path.read_text("utf-8-sig").count("closed,") for path in nights.folder.glob("changes.*.csv")]
    assert len(told) == 1
    return (nights.folder / "told.log").read_text("utf-8").count("1 newly closed")


@pytest.mark.parametrize(("step", "stop"), [*product(BEGUN, ["SIGTERM"]), ("answered in a query", "SIGINT")])
def test_a_run_that_is_stopped_before_it_is_written_down_ends_at_once(step: str, stop: str, nights: Nights) -> None:
    done = stop_at(step, stop, nights)
    assert done.returncode == 130, done.stderr
    assert done.stderr.startswith("bansong: job: stopped before the run was written down: each output is whole")
    assert [*nights.folder.glob(".bansong-*")] == []
    assert not (nights.folder / "told.log").exists()
    assert told_in_the_end(nights) == 1


@pytest.mark.parametrize(("step", "stop"), [*product(WRITTEN_DOWN, ["SIGTERM"]), ("committed", "SIGINT")])
def test_a_run_that_is_stopped_while_it_is_written_down_is_remembered(step: str, stop: str, nights: Nights) -> None:
    done = stop_at(step, stop, nights)
    assert done.returncode == WRITTEN_DOWN[step], done.stderr
    assert [*nights.folder.glob(".bansong-*")] == []
    assert "the signal to stop came when the outputs were written; the run is remembered" in done.stderr
    assert ("stopped before a message was delivered; the next run delivers it" in done.stderr) == bool(done.returncode)
    assert (nights.folder / "told.log").exists() == (not done.returncode)
    assert told_in_the_end(nights) == 1


@pytest.mark.parametrize("step", [*BEGUN, *WRITTEN_DOWN])
def test_a_run_that_is_killed_tells_each_closure(step: str, nights: Nights) -> None:
    done = stop_at(step, "SIGKILL", nights)
    assert done.returncode == -9, done.stderr
    assert told_in_the_end(nights) == (2 if step == "sent" else 1)


INTERRUPTED = """
import threading, time, _bansong_start
from bansong.cli.app import interrupt_main_thread, let_stop_signals_interrupt
let_stop_signals_interrupt()
try:
    threading.Timer(0.1, interrupt_main_thread).start()
    time.sleep(60)
except KeyboardInterrupt:
    print("ended")
"""


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize("before", [(), IGNORING])
def test_a_deadline_ends_a_run_in_the_background_of_a_script_too(before: tuple[str, ...]) -> None:
    done = subprocess.run([*before, sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=50)
    assert done.stdout == "ended\n"
