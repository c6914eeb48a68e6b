"""Where the files of jobs and uploads are, and what of a killed server's is swept away."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path


def uploads(files: Path) -> Path:
    """The folder of files that are coming in, or are being read."""
    return files / "uploads"


def folder(files: Path, job_id: str) -> Path:
    """The folder of a job."""
    return files / "jobs" / job_id


def records(files: Path, job_id: str) -> Path:
    """The rows of a job, as Parquet: see :func:`bizverify.server.jobs.reading.record_columns`."""
    return folder(files, job_id) / "records.parquet"


def results(files: Path, job_id: str) -> Path:
    """The answers of a job, as Parquet: see :data:`bizverify.server.jobs.slices.RESULTS`."""
    return folder(files, job_id) / "results.parquet"


def prepare(files: Path, job_id: str) -> None:
    """Leave of a job's folder the records alone: an attempt that was cut off may have left unfinished files."""
    kept = records(files, job_id)
    for left in [path for path in kept.parent.iterdir() if path != kept]:
        if left.is_dir():
            shutil.rmtree(left)
        else:
            left.unlink()


def remove(files: Path, job_ids: Collection[str]) -> None:
    """Remove all files of jobs."""
    for job_id in job_ids:
        shutil.rmtree(folder(files, job_id), ignore_errors=True)


def sweep(files: Path, known: Collection[str]) -> None:
    """Remove what a server that was killed has left: uploads, and folders of jobs that were never accepted."""
    shutil.rmtree(uploads(files), ignore_errors=True)
    jobs = files / "jobs"
    for made in (jobs, uploads(files)):
        made.mkdir(mode=0o700, exist_ok=True)
    for left in [path for path in jobs.iterdir() if path.name not in known]:
        shutil.rmtree(left, ignore_errors=True)
