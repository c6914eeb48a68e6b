"""Bytes on the disk of each key's uploads and jobs: what there is, what is promised, and whether more has room."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

from bizverify.server.errors import Refusal, limit_exceeded
from bizverify.server.jobs import results
from bizverify.server.settings import ServicePlan

RESULT_BYTES: Final = 200
"""Bytes a row that are set aside for the results of a job until it ends: twice what they take, for they are written in
parts that are merged."""
_BLOCK: Final = 4_096
_SOON: Final = 5
_LATER: Final = 3_600
"""Seconds after which to try again where only the end of a job's keeping makes room: they are purged every hour."""


class DiskUse:
    """Counts the bytes of each key, on the event loop alone: so a check and what it allows are one step.

    A job's bytes are set from the sizes of its files, never added up over time, and set anew from the files when the
    server starts. ``jobs``: id, key, rows and whether results are to come, of each job that is stored.
    """

    def __init__(self, files: Path, jobs: Iterable[tuple[str, str, int, bool]] = ()) -> None:
        self._files = files
        self._jobs: dict[str, tuple[str, int]] = {}
        self._at_rest: Counter[str] = Counter()
        self._coming: Counter[str] = Counter()
        for job_id, key_id, rows, is_active in jobs:
            self._set(job_id, key_id, self.measure(job_id, rows if is_active else 0))

    def total_bytes(self, key_id: str) -> int:
        """Return the bytes of a key's jobs, and of its uploads that come in."""
        return self._at_rest[key_id] + self._coming[key_id]

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
        """Set the bytes of a job that is counted; one that was dropped stays so."""
        if job_id in self._jobs:
            self._set(job_id, self._jobs[job_id][0], size)

    def drop_jobs(self, job_ids: Collection[str]) -> None:
        """Count jobs no more whose files are gone."""
        for job_id in job_ids:
            key_id, size = self._jobs.pop(job_id, ("", 0))
            self._add(key_id, -size)

    def missing_jobs(self) -> list[str]:
        """Return the jobs that are counted and have no files any more. Reads the disk."""
        return [job_id for job_id in list(self._jobs) if not results.job_folder(self._files, job_id).exists()]

    def _set(self, job_id: str, key_id: str, size: int) -> None:
        before = self._jobs.get(job_id, (key_id, 0))[1]
        self._jobs[job_id] = key_id, size
        self._add(key_id, size - before)

    def _add(self, key_id: str, size: int) -> None:
        self._at_rest[key_id] += size
        if not self._at_rest[key_id]:
            del self._at_rest[key_id]

    def _refuse(self, key_id: str, plan: ServicePlan, size: int) -> None:
        limit, used = plan.disk_bytes, self.total_bytes(key_id)
        if used + size <= limit:
            return
        if size > limit:
            message = f"this takes {size:,} bytes on the disk, and the plan allows a key {limit:,}; send it in parts"
            raise Refusal(413, "too_large", message, bound="disk_bytes", limit=limit, used=used, unit="bytes")
        message = (
            f"the files of this key's jobs take {used:,} of the {limit:,} bytes that its plan allows, and this needs "
            f"{size:,}; room comes when jobs are deleted, or expire"
        )
        passes = self._at_rest[key_id] + size <= limit
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
