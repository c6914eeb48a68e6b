"""Waiting for a batch job, and its results one by one."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import anyio

from bansong.client.arguments import job_id_of, seconds, whole_number
from bansong.client.responses import BatchCreated, BatchStatus, Result
from bansong.errors import JobTimeoutError, NotFoundError, Problem, ShapeError, UsageError
from bansong.translation import Option, gettext

if TYPE_CHECKING:
    from bansong.client.client import Client

JOB_TIMED_OUT: Final = Problem(
    "service.job_timed_out",
    "job {job_id} is not done after {timeout:g} s (its status: {said}); it goes on at the service: wait "
    "again, or give a larger {option}",
)
JOB_NOT_DONE: Final = Problem(
    "service.job_not_done", "job {job_id} is still {status!r}; wait for it first: client.wait(job)"
)
JOB_SIZE_UNKNOWN: Final = Problem(
    "service.job_size_unknown", "the service does not say how many rows job {job_id} has; give {option}"
)

_AGE_PER_PAUSE: Final = 60.0  # pauses grow to a sixtieth of the job's age
_MAX_PAUSE_S: Final = 30.0
_MAX_NOT_FOUND: Final = 10  # answers, for a job that was just created


class JobWatch:
    """Polls a job; each :meth:`look` after the first waits for its time."""

    def __init__(self, client: Client, job: str | BatchCreated, timeout: float | None, poll: float) -> None:
        self._client = client
        self._job_id = job_id_of(job)
        self._timeout = math.inf if timeout is None else seconds("timeout", timeout)
        self._poll = seconds("poll", poll)
        self._may_be_unknown = _MAX_NOT_FOUND if isinstance(job, BatchCreated) else 0
        self._begun: float | None = None
        self._last: BatchStatus | None = None

    async def look(self) -> BatchStatus:
        """Return the job's status; raise :class:`JobTimeoutError` at the timeout, or the service's error."""
        begun = anyio.current_time() if self._begun is None else self._begun
        with anyio.CancelScope(deadline=begun + self._timeout):
            while True:
                if self._begun is not None:
                    age = anyio.current_time() - begun
                    await anyio.sleep(max(self._poll, min(age / _AGE_PER_PAUSE, _MAX_PAUSE_S)))
                self._begun = begun
                try:
                    self._last = await self._client.batch(self._job_id, preview=1)
                except NotFoundError:
                    if self._last is not None or self._may_be_unknown <= 0:
                        raise
                    self._may_be_unknown -= 1
                    continue
                return self._last
        said = "unknown" if self._last is None else repr(self._last.status)
        raise JobTimeoutError(
            JOB_TIMED_OUT, job_id=self._job_id, timeout=self._timeout, said=said, option=Option("timeout")
        )


@dataclass(frozen=True, slots=True)
class JobResults:
    """All results that the service shows of a job, and the error about missing ones, if any."""

    results: list[Result]
    shortage: ShapeError | None

    def __iter__(self) -> Iterator[Result]:
        yield from self.results
        if self.shortage is not None:
            raise self.shortage


async def fetch_results(client: Client, job: str | BatchCreated, total: int | None) -> JobResults:
    """Fetch all results of a job at once: the interface has no pages.

    ``total``: the job's number of rows, by default the service's. Raises :class:`UsageError` for an unfinished job, or
    one of unknown size.
    """
    job_id = job_id_of(job)
    if total is None and isinstance(job, BatchCreated):
        total = job.total
    preview = 1 if total is None else whole_number("total", total, 0)
    status = await client.batch(job_id, preview=preview)
    if status.state == "working":
        raise UsageError(JOB_NOT_DONE, job_id=job_id, status=status.status)
    total = status.total if total is None else total
    if total is None:
        raise UsageError(JOB_SIZE_UNKNOWN, job_id=job_id, option=Option("total"))
    if total > preview:
        status = await client.batch(job_id, preview=total)
    given = len(status.results)
    shortage = None
    if given < total:
        shortage = ShapeError(
            gettext(
                "job {job_id} ({status}): {given:,} of {total:,} results came; ask again later, and upload fewer rows "
                "at a time if the service shows no more than that",
                job_id=job_id,
                status=status.status,
                given=given,
                total=total,
            )
        )
    return JobResults(status.results, shortage)


class ResultIterator(AsyncIterator[Result]):
    """The results of a job, fetched with the first one. (Not a generator: trio warns of unfinished ones.)"""

    def __init__(self, client: Client, job: str | BatchCreated, total: int | None) -> None:
        self._client, self._job, self._total = client, job, total
        self._results: Iterator[Result] | None = None

    def __aiter__(self) -> ResultIterator:
        return self

    async def __anext__(self) -> Result:
        if self._results is None:
            self._results = iter(await fetch_results(self._client, self._job, self._total))
        for result in self._results:
            return result
        raise StopAsyncIteration
