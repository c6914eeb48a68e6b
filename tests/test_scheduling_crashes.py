"""A run of a scheduled job that is killed or stopped at each of its steps: the next ones come to the same."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bizverify.scheduling.job import run_job
from nightly_jobs import Nights
from signals import IGNORING

pytestmark = pytest.mark.crash

STOPPED_AT = """
import os, signal, sys
from bizverify.cli.console import let_stop_signals_interrupt
let_stop_signals_interrupt()  # as main does, before polars has threads
from bizverify.scheduling import job, run_store

def stop_behind(owner, name):
    act = getattr(owner, name)
    def act_and_stop(*given, **more):
        done = act(*given, **more)
        os.kill(os.getpid(), stop)
        return done
    setattr(owner, name, act_and_stop)

store = run_store.RunStore
steps = {"noted": (store, "note_outputs"), "published": (job, "enrich_file"), "compared": (job, "advance"),
         "changes written": (job, "write_changes"), "snapshot put": (store, "_put_snapshot"),
         "committed": (store, "commit_run"), "sent": (job, "deliver_message"), "all done": (store, "mark_taken")}
stop, step = getattr(signal, sys.argv[1]), sys.argv[2]
stop_behind(*steps[step])
sys.argv = ["bizverify", "run", "job.toml"]
from bizverify.cli import main
main()
"""
JOB = """
[output]
path = "{name}.{date}.csv"
latest = "latest.csv"
changes = "changes.{date}.csv"
[notify]
file = "told.log"
"""
STEPS = ("noted", "published", "compared", "changes written", "snapshot put", "committed", "sent", "all done")


@pytest.mark.parametrize("stop", ["SIGKILL", "SIGINT"])
@pytest.mark.parametrize("step", STEPS)
def test_a_run_that_is_stopped_tells_each_closure_and_reads_no_output(step: str, stop: str, nights: Nights) -> None:
    """Stopped anywhere, by anything: exit code 130, nothing half written, the closure told, no output read as a list.

    It is told once, and twice only where the message was sent and that could not be noted.
    """
    nights.write_job(inputs='path = "*.csv"', end=JOB)
    job, day = nights.folder / "job.toml", 86_400.0
    run_job(job, now=lambda: time.time() - 2 * day)
    nights.statuses[next(iter(nights.statuses))] = "closed"
    nights.write_inputs()
    done = subprocess.run(
        [sys.executable, "-c", STOPPED_AT, stop, step], cwd=nights.folder, capture_output=True, env=os.environ.copy()
    )
    assert done.returncode == (-9 if stop == "SIGKILL" else 130), done.stderr.decode()
    assert not [path for path in nights.folder.iterdir() if path.name.startswith(".bizverify-")]
    for later in (1, 2):
        report = run_job(job, now=lambda later=later: time.time() + later * day)
        assert [Path(one.path).name for one in report.inputs] == ["in.csv"]
    told = (nights.folder / "told.log").read_text("utf-8")
    assert told.count("1 newly closed") == (2 if step == "sent" else 1)


INTERRUPTED = """
import threading, time
from bizverify.cli.console import interrupt_main_thread, let_stop_signals_interrupt
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
    """There SIGINT is ignored, as a shell does with `&`: the deadline was, too, and the run went on to its end."""
    done = subprocess.run([*before, sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=50)
    assert done.stdout == "ended\n"
