"""In a process that was forked after polars ran, a query would wait for ever: every public function refuses there."""

from __future__ import annotations

import os
import subprocess
import sys
from inspect import isfunction
from pathlib import Path

import pytest

import bansong as bs

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")

CALLS = {
    "aenrich": "asyncio.run(bs.aenrich('list.csv'))",
    "afetch_status": "asyncio.run(bs.afetch_status(['1248100998']))",
    "apply_review": "bs.apply_review('list.csv')",
    "brn": "bs.brn(frame['b_no']).is_valid()",
    "build_gazetteer": "bs.build_gazetteer(['list.csv'], 'out.parquet')",
    "build_registry": "bs.build_registry(['list.csv'], 'out.parquet')",
    "calibrate": "bs.calibrate()",
    "enrich": "bs.enrich('list.csv')",
    "fetch_status": "bs.fetch_status(['1248100998'])",
    "forget": "bs.forget('1248100998')",
    "label": "bs.label('list.csv', file='list.csv')",
    "letters": "bs.letters('list.csv', 'letters.csv')",
    "plan": "bs.plan('list.csv')",
    "run_job": "bs.run_job('job.toml')",
    "scan_verify": "bs.scan_verify(frame.lazy(), labels=False)",
    "verify": "bs.verify('1248100998')",
    "verify_frame": "bs.verify_frame(frame)",
    "watch.add": "bs.watch.add('1248100998', local='list.sqlite')",
    "watch.check": "bs.watch.check(local='list.sqlite')",
    "watch.entries": "bs.watch.entries(local='list.sqlite')",
    "watch.history": "bs.watch.history('1248100998', local='list.sqlite')",
    "watch.history_frame": "bs.watch.history_frame('1248100998', local='list.sqlite')",
    "watch.remove": "bs.watch.remove('1248100998', local='list.sqlite')",
    "watch.sync": "bs.watch.sync('list.csv', local='list.sqlite')",
}
METHODS = {
    "LocalEngine": "bs.LocalEngine()",
    "LocalEngine.verify": "engine.verify(frame.lazy()).collect()",
    "StatusOverlay": "bs.StatusOverlay(frame)",
    "BatchVerifier": "verifier(frame.to_arrow())",
}
RUN_NO_QUERY = {"set_language", "watch.verify_signature"}

BEGIN = """
import asyncio, os, signal, sys, warnings
warnings.simplefilter("ignore")
import polars as pl, bansong as bs
calls = eval(sys.argv[1])
frame, engine = pl.DataFrame({"b_no": ["1248100998"]}), bs.LocalEngine()
"""
FORK = """
children = {}
for name, call in calls.items():
    if not (child := os.fork()):
        signal.alarm(40)
        try:
            eval(call)
            end = "returned"
        except Exception as error:
            end = "refused" if isinstance(error, bs.errors.UsageError) and "spawn" in str(error) else repr(error)
        os.write(1, f"{name} {end}\\n".encode())
        os._exit(0)
    children[child] = name
for child, name in children.items():
    if os.waitpid(child, 0)[1]:
        os.write(1, f"{name} hung\\n".encode())
"""


def forked(folder: Path, calls: dict[str, str], before: str) -> dict[str, str]:
    """What became of each call in a child forked after ``before``."""
    (folder / "list.csv").write_text("b_no\n1248100998\n", encoding="utf-8")
    words = [sys.executable, "-c", BEGIN + before + FORK, repr(calls)]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=120, check=True)
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


def test_every_public_function_is_called_here() -> None:
    public = {name for name in bs.__all__ if isfunction(getattr(bs, name))}
    public |= {f"watch.{name}" for name in bs.watch.__all__ if isfunction(getattr(bs.watch, name))}
    assert public - RUN_NO_QUERY == set(CALLS)


VERIFIER = "from bansong.distributed import verify_batches\nverifier = verify_batches(frame, labels=False)\n"


@pytest.mark.process
@pytest.mark.parametrize("before", ["bs.verify_frame(frame)", "frame.lazy().filter(pl.col('b_no') > '').collect()"])
def test_a_process_forked_after_polars_ran_is_refused(tmp_path: Path, before: str) -> None:
    calls = CALLS | METHODS
    assert forked(tmp_path, calls, VERIFIER + before) == dict.fromkeys(calls, "refused")


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="threads have no names here")
def test_a_process_forked_before_polars_ran_works(tmp_path: Path) -> None:
    calls = {name: CALLS[name] for name in ("verify_frame", "verify", "plan")}
    assert forked(tmp_path, calls, "") == dict.fromkeys(calls, "returned")
