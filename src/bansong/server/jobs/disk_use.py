"""Disk space per key: uploads, jobs and outcomes, and what is reserved."""

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
from bansong.server.key_bounds import decrease
from bansong.server.settings import ServicePlan
from bansong.server.store.job_table import LARGEST_OUTCOME, JobOnDisk
from bansong.storage.filesystem import list_folder
from bansong.translation import gettext

RESULT_BYTES: Final = 200
"""Reserved per row until a job ends: twice the size of a result, since parts are merged."""
_BLOCK_BYTES: Final = 4_096
_SOON_S: Final = 5
_LATER_S: Final = 3_600
"""Expired jobs are purged every hour."""


@dataclass(slots=True)
class _JobBytes:
    key_id: str
    files: int = 0
    outcomes: int = 0


class DiskUse:
    """Bytes on the disk per key; for the event loop alone, so that check and reservation are one step.

    Sizes of jobs and learned data are measured, not summed up over time. ``jobs``: the stored jobs.
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
        """Return the bytes of jobs, outcomes, learned data and arriving uploads of a key."""
        return self._bytes_at_rest(key_id) + self._coming[key_id]

    def measure(self, job_id: str, rows: int = 0) -> int:
        """Measure a job's files on the disk; add room for ``rows`` further results."""
        return folder_bytes(results.job_folder(self._files, job_id)) + rows * RESULT_BYTES

    def reserve(self, key_id: str, plan: ServicePlan, size: int) -> None:
        """Reserve bytes for an upload, to be ended by :meth:`release`; raise as :meth:`put_job`."""
        self._refuse(key_id, plan, size)
        self._coming[key_id] += size

    def release(self, key_id: str, size: int) -> None:
        decrease(self._coming, key_id, size)

    def put_job(self, job_id: str, key_id: str, plan: ServicePlan, size: int) -> None:
        """Count a new job; raise :class:`Refusal` 429 if it has no room, 413 if it never will."""
        self._refuse(key_id, plan, size)
        self._set(job_id, key_id, size)

    def update_job(self, job_id: str, size: int) -> None:
        """Set the bytes of a counted job; ignore dropped ones."""
        if job_id in self._jobs:
            self._set(job_id, self._jobs[job_id].key_id, size)

    @contextmanager
    def hold_outcome(self, key_id: str, plan: ServicePlan) -> Iterator[None]:
        """Reserve room for an outcome during the block; raise as :meth:`put_job`."""
        self.reserve(key_id, plan, LARGEST_OUTCOME)
        try:
            yield
        finally:
            self.release(key_id, LARGEST_OUTCOME)

    def add_outcomes(self, job_id: str, size: int) -> None:
        if (job := self._jobs.get(job_id)) is not None:
            job.outcomes += size
            self._add(job.key_id, size)

    def measure_learned(self) -> dict[str, int]:
        """Measure the label stores and scorecards on the disk, by key."""
        return {folder.name: folder_bytes(folder) for folder in list_folder(learning_folder(self._files))}

    def set_learned(self, sizes: Mapping[str, int]) -> None:
        self._learned = dict(sizes)

    def drop_jobs(self, job_ids: Collection[str]) -> None:
        for job_id in job_ids:
            if (job := self._jobs.pop(job_id, None)) is not None:
                self._add(job.key_id, -job.files - job.outcomes)

    def missing_jobs(self) -> list[str]:
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
        raise limit_exceeded("disk_bytes", limit, used, message, _SOON_S if passes else _LATER_S)


def folder_bytes(folder: Path) -> int:
    """Return the bytes of a folder and its files in blocks of 4 KiB; 0 if it does not exist."""
    try:
        with os.scandir(folder) as entries:
            sizes = [folder_bytes(Path(one)) if one.is_dir() else _in_blocks(one.stat().st_size) for one in entries]
    except FileNotFoundError:  # it is being deleted
        return 0
    return _BLOCK_BYTES + sum(sizes)


def _in_blocks(size: int) -> int:
    return -(-size // _BLOCK_BYTES) * _BLOCK_BYTES
