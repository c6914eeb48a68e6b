"""Earlier runs of a job, and the changes between two of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import polars as pl

from bansong.errors import Problem, StoreError, UsageError
from bansong.run.changes import CHANGE_SCHEMA, combine
from bansong.scheduling.job_file import load_job_file
from bansong.scheduling.job_place import job_place
from bansong.scheduling.run_store import JobRun, RunStore
from bansong.translation import Phrase

RUN_NOT_IDENTIFIED: Final = Problem(
    "jobs.run_not_identified", "run {named!r}: {reason}; `bansong runs list` shows them"
)
JOB_NEVER_RAN: Final = Problem(
    "jobs.job_never_ran", "{state}: the job {name} never ran here; run it with `bansong run {job}`"
)
RUNS_OUT_OF_ORDER: Final = Problem(
    "jobs.runs_out_of_order", "the run {id} is not before {other_id}; name the earlier one first"
)

_LAST: Final = re.compile(r"last(?:-(\d+))?")


def open_store(job: Path) -> RunStore:
    """Open the state of a job file; raise :class:`StoreError` where it never ran."""
    path = Path(job).resolve()
    name, state = job_place(path, load_job_file(path))
    if not state.exists():
        raise StoreError(JOB_NEVER_RAN, state=state, name=name, job=job)
    return RunStore(state)


def list_runs(job: Path) -> list[JobRun]:
    """Return the runs of a job file, the oldest first."""
    with open_store(job) as store:
        return store.runs()


def find_run(job: Path, named: str) -> JobRun:
    """Return a run by name: ``last``, ``last-2``, an id, or the unique beginning of one."""
    return _find(list_runs(job), named)


def compare_runs(job: Path, before: str, after: str) -> pl.DataFrame:
    """Return the changes from one run to a later one: :data:`bansong.run.changes.CHANGE_SCHEMA`.

    Raises :class:`UsageError` for an unknown run, or if ``after`` is not the later one.
    """
    with open_store(job) as store:
        runs = store.runs()
        first, last = _find(runs, before), _find(runs, after)
        if runs.index(first) >= runs.index(last):  # not by their times: a clock may have been set back
            raise UsageError(RUNS_OUT_OF_ORDER, id=first.id, other_id=last.id)
        steps = store.changes_between(first.id, last.id)
    return combine(steps) if steps else pl.DataFrame(schema=CHANGE_SCHEMA)


def _find(runs: list[JobRun], named: str) -> JobRun:
    if last := _LAST.fullmatch(named):
        back = 1 + int(last[1] or 0)
        if back <= len(runs):
            return runs[-back]
    found = [run for run in runs if run.id == named] or [run for run in runs if run.id.startswith(named)]
    if len(found) == 1:
        return found[0]
    reason = Phrase("several begin so") if found else Phrase("no such run is remembered")
    raise UsageError(RUN_NOT_IDENTIFIED, named=named, reason=reason)
