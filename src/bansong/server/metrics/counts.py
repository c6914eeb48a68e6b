"""Counters of a server: requests, refusals, jobs, commits, failures; one registry per app."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, GCCollector, Histogram, Info, ProcessCollector

from bansong import __version__
from bansong.server.errors import Refusal

_REQUEST_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_COMMIT_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
_DELAY_SECONDS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
_DELAY_INTERVAL_S: Final = 0.25
_ALARMING: Final = (
    ("busy", ""),
    ("insufficient_storage", ""),
    ("internal", ""),
    ("invalid_key", ""),
    ("limit_exceeded", "connections_per_address"),
    ("quota_exceeded", ""),
    ("timeout", ""),
)
"""Refusals exported from the start as 0: monitors see no increase in the first value of a series."""


class ServerMetrics:
    """Counts what a server does, in a ``registry`` of its own.

    Methods are thread-safe and take about a microsecond. Labels never hold text of clients: only route patterns, known
    methods and codes of refusals. ``connections`` returns the open ones, if known.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.under_way = 0
        self.connections: Callable[[], int] | None = None
        Info("bansong_build", "The version of bansong.", registry=self.registry).info({"version": __version__})
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self._requests = self._counter(
            "requests", "Requests answered; 0: the connection was gone before.", "route", "method", "code"
        )
        self._refusals = self._counter(
            "refusals", "Refused requests, by the error's code and the bound that it names, if any.", "code", "bound"
        )
        self._tasks = self._counter("background_failures", "Failures of tasks beside the requests.", "task")
        self._jobs = self._counter("jobs_ended", "Batch jobs that ended, since the start.", "state")
        self._seconds = self._histogram(
            "request_seconds", "Seconds until a request was answered.", _REQUEST_SECONDS, "route", "method"
        )
        self._commits = self._histogram("commit_seconds", "Seconds of a commit to the server's file.", _COMMIT_SECONDS)
        self._delays = self._histogram(
            "event_loop_delay_seconds", "Seconds that the event loop was late, four times a second.", _DELAY_SECONDS
        )
        for code, bound in _ALARMING:
            self._refusals.labels(code, bound)
        for state in ("done", "failed"):
            self._jobs.labels(state)

    def observe_request(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count an answered request; ``status`` 0: the client was gone."""
        self._requests.labels(route, method, status).inc()
        self._seconds.labels(route, method).observe(seconds)

    def count_refusal(self, refusal: Refusal) -> None:
        self._refusals.labels(refusal.code, refusal.more.get("bound", "")).inc()

    def count_job(self, state: str) -> None:
        self._jobs.labels(state).inc()

    def observe_commit(self, seconds: float) -> None:
        self._commits.observe(seconds)

    def expect_task(self, name: str) -> None:
        self._tasks.labels(name)

    def count_failure(self, task: str) -> None:
        self._tasks.labels(task).inc()

    async def measure_delay(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _DELAY_INTERVAL_S
            await asyncio.sleep(_DELAY_INTERVAL_S)
            self._delays.observe(max(0.0, loop.time() - due))

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"bansong_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(f"bansong_{name}", text, labels, buckets=buckets, registry=self.registry)
