"""Bytes on the disk of each key's uploads, jobs and outcomes: what there is, what is promised, what has room."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bansong.server.engine_pool import learning_folder
from bansong.server.errors import Refusal, limit_exceeded
from bansong.server.jobs import results
from bansong.server.settings import ServicePlan
from bansong.server.store.job_table import LARGEST_OUTCOME, JobOnDisk
from bansong.storage.filesystem import list_folder
from bansong.translation import gettext

RESULT_BYTES: Final = 200
"""Bytes a row that are set aside for the results of a job until it ends: twice what they take, for they are written in
parts that are merged."""
_BLOCK: Final = 4_096
_SOON: Final = 5
_LATER: Final = 3_600
"""Seconds after which to try again where only the end of a job's keeping makes room: they are purged every hour."""


@dataclass(slots=True)
class _JobBytes:
    """What a job takes: its files, and its outcomes in the server's file."""

    key_id: str
    files: int = 0
    outcomes: int = 0


class DiskUse:
    """Counts the bytes of each key, on the event loop alone: so a check and what it allows are one step.

    A job's bytes are set from the sizes of its files, never added up over time, and set anew from the files when the
    server starts; so are those of what a key's outcomes taught. ``jobs``: those that are stored.
    """

    def __init__(self, files: Path, jobs: Iterable[JobOnDisk] = ()) -> None:
        self._files = files
        self._jobs: dict[str, _JobBytes] = {}
        self._learned = self.measure_learned()
        self._at_rest: Counter[str] = Counter()
        self._coming: Counter[str] = Counter()
        for job in jobs:
            self._set(job.id, job.key_id, self.measure(job.id, job.total if job.is_active else 0))
            self.add_outcomes(job.id, job.outcome_bytes)

    def total_bytes(self, key_id: str) -> int:
        """Return the bytes of a key's jobs, their outcomes and what was learned, and of its uploads that come in."""
        return self._bytes_at_rest(key_id) + self._coming[key_id]

    def measure(self, job_id: str, rows: int = 0) -> int:
        """Return the bytes of a job's files, and of the results of ``rows`` that are to come. Reads the disk."""
        return folder_bytes(results.job_folder(self._files, job_id)) + rows * RESULT_BYTES

    def reserve(self, key_id: str, plan: ServicePlan, size: int) -> None:
        """Set bytes aside for an upload, to be followed by :meth:`release`; raises as :meth:`put_job`."""
        self._refuse(key_id, plan, size)
        self._coming[key_id] += size

    def release(self, key_id: str, size: int) -> None:
        """Give back what was set aside for an upload."""
        self._coming[key_id] -= size
        if self._coming[key_id] <= 0:
            del self._coming[key_id]

    def put_job(self, job_id: str, key_id: str, plan: ServicePlan, size: int) -> None:
        """Count a new job; raises :class:`Refusal`: 429 where it has no room, 413 where it never has."""
        self._refuse(key_id, plan, size)
        self._set(job_id, key_id, size)

    def update_job(self, job_id: str, size: int) -> None:
        """Set the bytes of the files of a job that is counted; one that was dropped stays so."""
        if job_id in self._jobs:
            self._set(job_id, self._jobs[job_id].key_id, size)

    @contextmanager
    def hold_outcome(self, key_id: str, plan: ServicePlan) -> Iterator[None]:
        """Set aside what an outcome may take while it is written; raises as :meth:`put_job`."""
        self.reserve(key_id, plan, LARGEST_OUTCOME)
        try:
            yield
        finally:
            self.release(key_id, LARGEST_OUTCOME)

    def add_outcomes(self, job_id: str, size: int) -> None:
        """Count what the outcomes of a job take more than before."""
        if (job := self._jobs.get(job_id)) is not None:
            job.outcomes += size
            self._add(job.key_id, size)

    def measure_learned(self) -> dict[str, int]:
        """Return by key the bytes of what its outcomes taught: label store and scorecards. Reads the disk."""
        return {folder.name: folder_bytes(folder) for folder in list_folder(learning_folder(self._files))}

    def set_learned(self, sizes: Mapping[str, int]) -> None:
        """Set the bytes of what keys' outcomes taught."""
        self._learned = dict(sizes)

    def drop_jobs(self, job_ids: Collection[str]) -> None:
        """Count jobs no more whose files are gone."""
        for job_id in job_ids:
            if (job := self._jobs.pop(job_id, None)) is not None:
                self._add(job.key_id, -job.files - job.outcomes)

    def missing_jobs(self) -> list[str]:
        """Return the jobs that are counted and have no files any more. Reads the disk."""
        return [job_id for job_id in list(self._jobs) if not results.job_folder(self._files, job_id).exists()]

    def _set(self, job_id: str, key_id: str, size: int) -> None:
        job = self._jobs.setdefault(job_id, _JobBytes(key_id))
        self._add(key_id, size - job.files)
        job.files = size

    def _bytes_at_rest(self, key_id: str) -> int:
        return self._at_rest[key_id] + self._learned.get(key_id, 0)

    def _add(self, key_id: str, size: int) -> None:
        self._at_rest[key_id] += size
        if not self._at_rest[key_id]:
            del self._at_rest[key_id]

    def _refuse(self, key_id: str, plan: ServicePlan, size: int) -> None:
        limit, used = plan.disk_bytes, self.total_bytes(key_id)
        if used + size <= limit:
            return
        if size > limit:
            message = gettext(
                "this takes {size:,} bytes on the disk, and the plan allows a key {limit:,}; send it in parts",
                size=size,
                limit=limit,
            )
            raise Refusal(413, "too_large", message, bound="disk_bytes", limit=limit, used=used, unit="bytes")
        message = gettext(
            "jobs and outcomes of this key take {used:,} of the {limit:,} bytes that its plan allows, and this needs "
            "{size:,}; room comes when jobs are deleted, or expire",
            used=used,
            limit=limit,
            size=size,
        )
        passes = self._bytes_at_rest(key_id) + size <= limit
        raise limit_exceeded("disk_bytes", limit, used, message, _SOON if passes else _LATER)


def folder_bytes(folder: Path) -> int:
    """Return the bytes of a folder, each file in it, and itself, in whole blocks of 4 KiB; 0 where there is none."""
    try:
        with os.scandir(folder) as entries:
            sizes = [folder_bytes(Path(one)) if one.is_dir() else _in_blocks(one.stat().st_size) for one in entries]
    except FileNotFoundError:  # it is being deleted
        return 0
    return _BLOCK + sum(sizes)


def _in_blocks(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK
