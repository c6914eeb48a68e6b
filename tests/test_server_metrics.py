"""`GET /metrics`: what somebody on duty is told of a server, on an address that the service does not have."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import polars as pl
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

import bansong as bs
from bansong.base.options import StatusOptions
from bansong.errors import UsageError
from bansong.notify.channels import WEBHOOK
from bansong.reference.nts import NtsKey
from bansong.server import jobs as worker
from bansong.server import keys as key_table
from bansong.server.keys import KeyCache
from bansong.server.metrics import ServerMetrics, serve_metrics
from bansong.server.payloads import Refusal, invalid_key
from bansong.server.settings import Clock
from bansong.server.store import open_server_file
from bansong.testing import FakeNts, serve
from bansong.watch import store as watch_store
from handclock import HandClock
from serving import ADDRESSED, HTTP, NUMBER, Served, answers_held, hosted, line_from, read_here, served, wait_until

Labels = tuple[tuple[str, str], ...]


class Metrics:
    """Metrics, read by Prometheus's own parser."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._values: dict[tuple[str, Labels], float] = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float | None:
        return self._values.get((f"bansong_{name}", tuple(sorted(labels.items()))))


def metrics_of(server: Served) -> Metrics:
    return Metrics(generate_latest(server.app.state.metrics.registry).decode())


@contextmanager
def monitored(tmp_path: Path, clock: Clock | None = None, **settings: Any) -> Iterator[Served]:
    with hosted(tmp_path / "service.sqlite", clock, **settings) as server:
        yield server


def scraped(server: Served) -> Metrics:
    answer = HTTP.get(f"http://127.0.0.1:{server.app.state.metrics_port}/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return Metrics(answer.text)


def test_requests_and_refusals_are_counted_and_nothing_of_a_client_is_told(tmp_path: Path) -> None:
    """By pattern, method and code; identifiers, unknown paths and methods make no series of their own."""
    with monitored(tmp_path, metrics_port=0) as server, hosted(tmp_path / "other.sqlite") as other:
        key = server.account(quota=2)
        for _ in range(3):
            key.ask("POST", "/verify", json=ADDRESSED)
        key.ask("POST", "/watch", json={"biz_no": NUMBER, "name": ADDRESSED["name"]})
        for path in ("/batch/job_1", "/batch/job_2", f"/{key.secret}/{NUMBER}"):
            key.ask("GET", path)
        key.ask("BREW", f"/coffee/{NUMBER}")
        assert [server.http.get(f"{server.url}/metrics").status_code, key.ask("GET", "/metrics").status_code] == [
            401,
            404,
        ]
        server.app.state.metrics.count_refusal(Refusal(429, "too_many_requests", "slower", bound="requests_a_second"))
        found, id_ = scraped(server), key.id
        assert metrics_of(other)("requests_total", route="/verify", method="POST", code="200") is None
    assert found("requests_total", route="/verify", method="POST", code="200") == 2
    assert found("requests_total", route="/batch/{job_id}", method="GET", code="404") == 2
    assert found("requests_total", route="?", method="?", code="404") == 1
    assert found("request_seconds_count", route="/verify", method="POST") == 3
    assert (found("requests_under_way"), found("readable", part="database")) == (0, 1)
    refusals = {"quota_exceeded": 1, "missing_key": 1, "internal": 0}
    assert {code: found("refusals_total", code=code, bound="") for code in refusals} == refusals
    assert found("refusals_total", code="too_many_requests", bound="requests_a_second") == 1
    assert [word for word in (key.secret, id_, *ADDRESSED.values(), "service.sqlite") if word in found.text] == []


def test_without_a_port_nothing_listens_and_one_that_is_taken_is_said(tmp_path: Path) -> None:
    with monitored(tmp_path) as server, socket.create_server(("127.0.0.1", 0)) as taken:
        assert server.app.state.metrics_port is None
        port = taken.getsockname()[1]
        with (
            pytest.raises(UsageError, match=rf"^127\.0\.0\.1:{port}: metrics cannot be .*`metrics_port=`$"),
            serve_metrics(ServerMetrics().registry, "127.0.0.1", port),
        ):
            pass


def test_connections_are_told(tmp_path: Path) -> None:
    with served(tmp_path / "service.sqlite") as server:
        with line_from(server):
            wait_until(lambda: metrics_of(server)("connections") == 1)
        wait_until(lambda: metrics_of(server)("connections") == 0)


def test_lookups_that_wait_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go = answers_held(monkeypatch)
    with monitored(tmp_path) as server, ThreadPoolExecutor(1) as pool:
        asking = pool.submit(server.account().verify)
        assert begun.wait(30)
        found = metrics_of(server)
        go.set()
        assert asking.result().status_code == 200
        assert (found("lookups_waiting"), found("requests_under_way")) == (1, 1)
        assert metrics_of(server)("lookups_waiting") == 0


def test_jobs_are_told_by_state_and_by_how_they_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_here(monkeypatch)
    monkeypatch.setattr(worker, "MAX_ATTEMPTS", 1)
    with monitored(tmp_path) as server:
        key = server.account()
        key.job()
        monkeypatch.setattr(worker, "answer_slice", lambda *_: 1 / 0)
        key.until(key.upload().json()["job_id"], "failed")
        wait_until(lambda: metrics_of(server)("jobs_ended_total", state="failed") == 1)
        found = metrics_of(server)
    assert [found("jobs", state=state) for state in ("done", "failed", "queued")] == [1, 1, 0]
    assert found("jobs_ended_total", state="done") == 1
    assert (found("commit_seconds_count") or 0) >= 5
    assert (found("reading_slots") or 0) > (found("reading_slots_in_use") or 0) == found("uploads_under_way") == 0


class Unreachable:
    """A source of statuses that fails."""

    live = True

    def answer(self, *_: object) -> pl.LazyFrame:
        raise RuntimeError("away")


def test_watches_that_are_overdue_and_notifications_that_nobody_takes_are_told(tmp_path: Path) -> None:
    """Counted from the file, so that a restart forgets none; those of a revoked key alarm nobody."""
    hand, db = HandClock(), tmp_path / "service.sqlite"
    with closing(open_server_file(db)) as file:
        file.execute("BEGIN")
        key, gone = (key_table.create_key(file, plan="business", quota=1, now=0)[0] for _ in range(2))
        key_table.revoke_key(file, gone.id, hand.seconds - 60)
        for owner in (key.id, gone.id):
            watch_store.add(file, owner, watch_store.Business(NUMBER, None, None), hand.seconds - 3600)
        for number, due in ((1, hand.seconds + 60), (2, None)):
            notice = (number, str(number), key.id, "", NUMBER, "{}", hand.seconds - 7200)
            file.execute("INSERT INTO notices VALUES (?, ?, ?, ?, ?, ?, ?)", notice)
            delivery = (number, WEBHOOK, key.id, hand.seconds - 7200, 1, due, None, "said 500")
            file.execute("INSERT INTO deliveries VALUES (?, ?, ?, ?, ?, ?, ?, ?)", delivery)
        file.execute("COMMIT")
    with monitored(tmp_path, hand.clock, status_sources=[Unreachable()]) as server:
        wait_until(lambda: server.context.watches._failed)
        found = metrics_of(server)
        server.context.watches.source = server.context.jobs.sources[-1]
        hand.until(lambda: metrics_of(server)("watch_last_check_timestamp_seconds") is not None, seconds=10)
        assert metrics_of(server)("watches_overdue") == 0
    assert (found("watches"), found("watches_overdue"), found("watch_overdue_seconds")) == (2, 1, 3600)
    assert found("watch_last_check_timestamp_seconds") is None
    assert [found("notifications_undelivered", state=state) for state in ("waiting", "given_up")] == [1, 1]
    assert found("oldest_undelivered_notification_seconds") == 7200


def test_a_registry_that_is_old_or_refused_and_a_file_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    """A damaged file under the registry's name goes on being told until a sound one is there."""
    hand, registry, source = HandClock(), tmp_path / "registry.parquet", tmp_path / "registry.csv"
    source.write_text(f"b_no,b_stt,asof\n{NUMBER},계속사업자,2026-11-10\n", encoding="utf-8")
    bs.build_registry([source], registry)
    sound = registry.read_bytes()
    with monitored(tmp_path, hand.clock, registry=registry) as server:
        found = metrics_of(server)
        assert found("registry_age_seconds") == 10 * 86_400 + 12 * 3600
        assert (found("reference_file_refused", file="registry"), found("gazetteer_age_seconds")) == (0, None)
        for content, is_refused in ((b"damaged", 1), (sound, 0)):
            (tmp_path / "new").write_bytes(content)
            (tmp_path / "new").replace(registry)
            hand.until(lambda: metrics_of(server)("reference_file_refused", file="registry") == is_refused, seconds=5)  # noqa: B023
        path = server.db.rename(tmp_path / "elsewhere")
        found = metrics_of(server)
        path.rename(server.db)
    assert (found("readable", part="database"), found("readable", part="disk")) == (0, 1)
    assert (found("jobs", state="done"), (found("disk_free_bytes") or 0) > 0) == (None, True)


def test_the_tax_authoritys_budget_circuit_and_store_are_told(tmp_path: Path) -> None:
    with serve(FakeNts("kEy", {NUMBER: "active"})) as url:
        options = StatusOptions(source="nts", key=NtsKey("kEy"), base_url=url, budget=3)
        with monitored(tmp_path, HandClock().clock, status=options) as server:
            server.account().verify()
            found = metrics_of(server)
    assert (found("nts_numbers_total"), found("nts_answers_total"), found("nts_budget_left")) == (1, 1, 2)
    assert (found("nts_circuit_open"), found("status_store_statuses")) == (0, 1)
    assert found("status_store_age_seconds") == 12 * 3600


def test_a_task_beside_the_requests_that_fails_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each task is told from the start, so that a monitor sees the first failure as one."""
    monkeypatch.setattr(worker.JobWorker, "purge_once", lambda _: 1 / 0)
    with monitored(tmp_path) as server:
        wait_until(lambda: metrics_of(server)("background_failures_total", task="purging old jobs") == 1)
        assert metrics_of(server)("background_failures_total", task="working on jobs") == 0


def test_a_monitor_is_answered_while_the_event_loop_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held, go = Event(), Event()

    async def hold(*_: object) -> None:
        held.set()
        go.wait(30)
        raise invalid_key()

    monkeypatch.setattr(KeyCache, "find", hold)
    with monitored(tmp_path, metrics_port=0) as server, ThreadPoolExecutor(1) as pool:
        asking = pool.submit(server.account().ask, "GET", "/me")
        assert held.wait(30)
        assert scraped(server)("requests_under_way") == 1
        go.set()
        assert asking.result().status_code == 401


def test_an_event_loop_that_is_late_is_told() -> None:
    """A callback that held the loop up for three seconds is one delay of over a second."""
    metrics = ServerMetrics()

    class SkippingLoop(asyncio.SelectorEventLoop):
        skipped = 0.0

        def time(self) -> float:
            return super().time() + self.skipped

    async def hold_up() -> None:
        measuring = asyncio.create_task(metrics.measure_delay())
        await asyncio.sleep(0)
        asyncio.get_running_loop().skipped = 3.0  # type: ignore[attr-defined]
        while not Metrics(generate_latest(metrics.registry).decode())("event_loop_delay_seconds_count"):
            await asyncio.sleep(0)
        measuring.cancel()

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        runner.run(hold_up())
    found = Metrics(generate_latest(metrics.registry).decode())
    assert [found("event_loop_delay_seconds_bucket", le=le) for le in ("1.0", "5.0")] == [0, 1]
