"""Metrics for Prometheus, on a separate port."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from datetime import date, datetime, time
from typing import TYPE_CHECKING, Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    Histogram,
    Info,
    Metric,
    ProcessCollector,
    start_http_server,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from bansong._version import __version__
from bansong.base.errors import BansongError, UsageError
from bansong.base.messages import describe_os_error, gettext
from bansong.base.schema import SEOUL
from bansong.notify import queue as notifications
from bansong.server import job_table
from bansong.server.payloads import Refusal
from bansong.server.store import SERVER_FILE, open_server_file
from bansong.watch import store as watch_store

if TYPE_CHECKING:
    from bansong.server.handlers import Context


_REQUEST_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_COMMIT_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
_DELAY_SECONDS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
_DELAY_INTERVAL_S: Final = 0.25
# exported from the start as 0: monitors see no increase in the first value of a series
_ALARMING: Final = ("busy", "insufficient_storage", "internal", "invalid_key", "quota_exceeded", "timeout")


class ServerMetrics:
    """Counters and times of a server's work. Thread-safe. Labels never hold text of clients."""

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
        self.failures = self._counter("background_failures", "Failures of tasks beside the requests.", "task")
        self.jobs = self._counter("jobs_ended", "Batch jobs that ended, since the start.", "state")
        self._seconds = self._histogram(
            "request_seconds", "Seconds until a request was answered.", _REQUEST_SECONDS, "route", "method"
        )
        self.commits = self._histogram("commit_seconds", "Seconds of a commit to the server's file.", _COMMIT_SECONDS)
        self._delays = self._histogram(
            "event_loop_delay_seconds", "Seconds that the event loop was late, four times a second.", _DELAY_SECONDS
        )
        for code in _ALARMING:
            self._refusals.labels(code, "")
        for state in ("done", "failed"):
            self.jobs.labels(state)

    def observe_request(self, route: str, method: str, status: int, seconds: float) -> None:
        self._requests.labels(route, method, status).inc()
        self._seconds.labels(route, method).observe(seconds)

    def count_refusal(self, refusal: Refusal) -> None:
        self._refusals.labels(refusal.code, refusal.more.get("bound", "")).inc()

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


_STATES: Final = ("queued", "running", "done", "failed")


class StateCollector(Collector):
    """Read the state of a running server; ``bansong_readable`` is 0 for parts that could not be read."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def collect(self) -> Iterator[Metric]:
        yield from self._read_memory()
        readable = GaugeMetricFamily("bansong_readable", "Whether a part could be read just now.", labels=["part"])
        parts = {"database": self._read_database, "disk": self._read_disk, "status_store": self._read_statuses}
        for part, read in parts.items():
            try:
                found = list(read())
            except (BansongError, OSError):
                readable.add_metric([part], 0)
            else:
                readable.add_metric([part], 1)
                yield from found
        yield readable

    def _read_memory(self) -> Iterator[Metric]:
        context = self._context
        lookups, acceptance, data = context.lookups.answerer, context.acceptance, context.engines.data
        yield _gauge("requests_under_way", "Requests whose answer is not sent yet.", context.metrics.under_way)
        if context.metrics.connections is not None:
            yield _gauge("connections", "Connections to the service that are open.", context.metrics.connections())
        yield _gauge("lookups_waiting", "Single lookups that wait or are being answered.", lookups.waiting)
        yield _gauge("lookups_waiting_limit", "Lookups beyond which further ones are refused.", lookups.most_waiting)
        yield _gauge("uploads_under_way", "Uploads that come in or are being read.", acceptance.uploads)
        yield _gauge("reading_slots_in_use", "Files that are being read now.", acceptance.reading.borrowed_tokens)
        yield _gauge("reading_slots", "Files that may be read at once.", acceptance.reading.total_tokens)
        if (checked := context.watches.last_check) is not None:
            text = "When watches were checked last, since the start."
            yield _gauge("watch_last_check_timestamp_seconds", text, checked)
        if data.registry is not None and data.registry.newest is not None:
            yield self._age("registry_age_seconds", "Age of the registry's newest status.", data.registry.newest)
        if data.gazetteer is not None and data.gazetteer.source_date is not None:
            yield self._age("gazetteer_age_seconds", "Age of the gazetteer's addresses.", data.gazetteer.source_date)
        text = "Whether the file under its name is refused, and the one before still serves."
        yield _gauges("reference_file_refused", text, "file", context.engines.refused_files().items())

    def _read_database(self) -> Iterator[Metric]:
        context, now = self._context, self._context.clock.now()
        path = context.store.path
        with closing(open_server_file(path, create=False, writing=False)) as db, SERVER_FILE.errors(path):
            jobs, oldest_job = job_table.count_by_state(db)
            watches, overdue = watch_store.count_all(db), context.watches.overdue(db, now)
            waiting, given_up = notifications.summarize_undelivered(db)
        text = "Batch jobs by state; those that ended for as long as they are kept."
        yield _gauges("jobs", text, "state", ((state, jobs.get(state, 0)) for state in _STATES))
        yield _gauge("queue_limit", "Jobs that may wait; further ones are refused.", context.settings.queue)
        yield _gauge("oldest_queued_job_seconds", "How long the oldest waiting job is there.", _since(oldest_job, now))
        yield _gauge("watches", "Businesses watched.", watches)
        yield _gauge("watches_overdue", "Watches whose check is a quarter of an hour late.", overdue.watches)
        yield _gauge("watch_overdue_seconds", "How late the check is that is latest.", _since(overdue.oldest, now))
        text = "Notifications that no receiver acknowledged: to be tried again, or given up."
        counts = ("waiting", waiting.deliveries), ("given_up", given_up.deliveries)
        yield _gauges("notifications_undelivered", text, "state", counts)
        text = "How long the oldest notification waits that is still tried."
        yield _gauge("oldest_undelivered_notification_seconds", text, _since(waiting.oldest, now))

    def _read_disk(self) -> Iterator[Metric]:
        usage = shutil.disk_usage(self._context.settings.files)
        yield _gauge("disk_free_bytes", "Bytes free where the server's file and folder are.", usage.free)
        yield _gauge("disk_bytes", "Bytes of that disk.", usage.total)

    def _read_statuses(self) -> Iterator[Metric]:
        statuses = self._context.statuses
        if statuses is None:
            return
        report = statuses.report()
        yield _gauge("nts_circuit_open", "Whether the tax authority is not asked now.", report.circuit_open)
        yield CounterMetricFamily("bansong_nts_numbers", "Numbers that it was asked for.", report.asked)
        yield CounterMetricFamily("bansong_nts_answers", "Numbers that it answered.", report.answered)
        if report.budget_left is not None:
            yield _gauge("nts_budget_left", "Numbers that may be asked until midnight in Seoul.", report.budget_left)
        yield _gauge("status_store_statuses", "Statuses that are stored.", report.stored)
        if report.newest is not None:
            yield self._age("status_store_age_seconds", "Age of the newest status that is stored.", report.newest)

    def _age(self, name: str, text: str, day: date) -> Metric:
        return _gauge(name, text, _since(datetime.combine(day, time(), SEOUL).timestamp(), self._context.clock.now()))


def _since(then: float | None, now: float) -> float:
    return 0.0 if then is None else max(0.0, now - then)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"bansong_{name}", text, value)


def _gauges(name: str, text: str, label: str, values: Iterable[tuple[str, float]]) -> Metric:
    family = GaugeMetricFamily(f"bansong_{name}", text, labels=[label])
    for value, count in values:
        family.add_metric([value], count)
    return family


_log = logging.getLogger(__name__)


@contextmanager
def serve_metrics(registry: CollectorRegistry, host: str, port: int) -> Iterator[int]:
    """Serve ``GET /metrics`` in a thread: it answers even if the event loop hangs."""
    try:
        server, thread = start_http_server(port, host, registry)
    except (OSError, OverflowError) as error:
        reason = describe_os_error(error)
        message = gettext(
            "{host}:{port}: metrics cannot be answered there: {reason}; choose another `metrics_port=`",
            host=host,
            port=port,
            reason=reason,
        )
        raise UsageError(message) from error
    try:
        _log.info("metrics are answered on %s, port %d", host, server.server_port)
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
