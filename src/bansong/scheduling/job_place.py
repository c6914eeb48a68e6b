"""Name and state file of a job."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any, Final

import msgspec

from bansong.cloud.remote_path import as_path
from bansong.errors import Problem, UsageError
from bansong.options import specs_of
from bansong.scheduling.job_file import ColumnsPart, JobFile, load_job_file
from bansong.scheduling.run_store import state_folder

JOB_NAME_TAKEN: Final = Problem(
    "jobs.job_name_taken", "{path}: the name {name!r} is that of the job {other}, too; give one of them another `name`"
)


def job_place(path: Path, job: JobFile) -> tuple[str, Path]:
    """Return a job's name and state file. Without a name in it, a job file is a job at its path."""
    if job.name is not None:
        return job.name, state_folder() / f"{job.name}.sqlite"
    place = hashlib.sha256(os.fsencode(path)).hexdigest()[:8]
    return path.stem, state_folder() / f"{path.stem}-{place}.sqlite"


def refuse_shared_name(path: Path, name: str, other: Path | None) -> None:
    """Raise :class:`UsageError` if another job file has this name: each would lose the other's rows.

    A job file that was moved or renamed keeps its state.
    """
    if other is None or other == path or not other.is_file() or other.samefile(path):
        return
    try:
        is_shared = load_job_file(other).name == name
    except UsageError:
        return
    if is_shared:
        raise UsageError(JOB_NAME_TAKEN, path=path, name=name, other=other)


def locate(folder: Path, name: str | None) -> Path | None:
    """Return the path of a name in the job file; ``folder``: the job file's."""
    return None if name is None else folder / as_path(name).expanduser()


def options_in(part: msgspec.Struct, kind: type, folder: Path) -> dict[str, Any]:
    """Return the options of a dataclass that a table of the job file holds, as its constructor takes them."""
    given: dict[str, Any] = {}
    for spec in specs_of(kind):
        if spec.key:
            value: Any = getattr(part, spec.key)
            value = value.by_role() or None if isinstance(value, ColumnsPart) else value
            given[spec.name] = locate(folder, value) if "Path" in spec.type else value
    return given
