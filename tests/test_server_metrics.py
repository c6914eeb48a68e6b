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

import httpx
import polars as pl
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

import bansong as bs
from bansong.base.options import StatusOptions
from bansong.engine.local import LocalEngine
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
from serving import HTTP, Served, answers_held, read_here, rows_of, served, wait_until

LOOKUP = {"b_no": "1248100998", "name": "가", "address": "서울 중구 세종대로 110"}
Labels = tuple[tuple[str, str], ...]


class Metrics:
    """The answer of a server's `/metrics`, read by Prometheus's own parser."""

    def __init__(self, text: str) -> None:
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self._values: dict[tuple[str, Labels], float] = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float | None:
        return self._values.get((f"bansong_{name}", tuple(sorted(labels.items()))))


def metrics_of(server: Served) -> Metrics:
    port = server.app.state.metrics_port
    response = HTTP.get(f"http://127.0.0.1:{port}/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=")
    return Metrics(response.text)


class Unreachable:
    """A source of statuses that fails."""

    live = True

    def answer(self, engine: LocalEngine, rows: pl.LazyFrame) -> pl.LazyFrame:
        del engine, rows
        raise RuntimeError("away")


def replace(path: Path, content: bytes) -> None:
    """Rename a file with this content into the place of another."""
    newer = path.with_suffix(".new")
    newer.write_bytes(content)
    newer.replace(path)


@contextmanager
def monitored(tmp_path: Path, clock: Clock | None = None, **settings: Any) -> Iterator[Served]:
    with served(tmp_path / "service.sqlite", clock, metrics_port=0, **settings) as server:
        yield server


def test_requests_are_counted_by_pattern_method_and_code_with_how_long_they_took(tmp_path: Path) -> None:
    """Identifiers, unknown paths and methods make no series of their own."""
    with monitored(tmp_path) as server:
        key = {"X-API-Key": server.key()}
        for _ in range(3):
            assert HTTP.post(f"{server.url}/verify", json=LOOKUP, headers=key).status_code == 200
        HTTP.get(f"{server.url}/batch/job_1", headers=key)
        HTTP.get(f"{server.url}/batch/job_2", headers=key)
        HTTP.request("BREW", f"{server.url}/coffee/{LOOKUP['b_no']}", headers=key)
        wait_until(lambda: metrics_of(server)("requests_under_way") == 0)  # it is counted once the answer is out
        found = metrics_of(server)
    assert found("requests_total", route="/verify", method="POST", code="200") == 3
    assert found("requests_total", route="/batch/{job_id}", method="GET", code="404") == 2
    assert found("requests_total", route="?", method="?", code="404") == 1
    assert found("request_seconds_count", route="/verify", method="POST") == 3
    assert found("request_seconds_bucket", route="/verify", method="POST", le="30.0") == 3
    assert (found("requests_under_way"), found("readable", part="database")) == (0, 1)


def test_the_service_itself_does_not_answer_metrics(tmp_path: Path) -> None:
    """Whatever a proxy passes on to the service, the metrics are not there: neither without a key nor with one."""
    with monitored(tmp_path) as server:
        assert HTTP.get(f"{server.url}/metrics").status_code == 401
        assert HTTP.get(f"{server.url}/metrics", headers={"X-API-Key": server.key()}).status_code == 404
        assert server.app.state.metrics_port != httpx.URL(server.url).port


def test_without_a_port_nothing_listens(tmp_path: Path) -> None:
    with served(tmp_path / "service.sqlite") as server:
        assert server.app.state.metrics_port is None


def test_a_port_that_is_taken_is_said_with_its_remedy(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(UsageError, match=rf"^127\.0\.0\.1:{port}: metrics cannot be .*`metrics_port=`$"),
            serve_metrics(ServerMetrics().registry, "127.0.0.1", port),
        ):
            pass


def test_refusals_are_counted_by_code_and_by_the_bound_that_they_name(tmp_path: Path) -> None:
    """A quota that is used up shows as such; a refusal that names its bound brings its own series."""
    with monitored(tmp_path) as server:
        key = {"X-API-Key": server.key(quota=1)}
        for _ in range(3):
            HTTP.post(f"{server.url}/verify", json=LOOKUP, headers=key)
        HTTP.get(f"{server.url}/me")
        refusal = Refusal(429, "too_many_requests", "slower", bound="requests_a_second")
        server.app.state.metrics.count_refusal(refusal)
        found = metrics_of(server)
    assert found("refusals_total", code="quota_exceeded", bound="") == 2
    assert found("refusals_total", code="missing_key", bound="") == 1
    assert found("refusals_total", code="too_many_requests", bound="requests_a_second") == 1
    assert found("refusals_total", code="internal", bound="") == 0


def test_what_is_refused_before_there_is_a_request_is_counted(tmp_path: Path) -> None:
    """What is no HTTP, and a connection more than an address may have; connections that are open are told."""
    with monitored(tmp_path) as server:
        place = "127.0.0.1", int(server.url.rpartition(":")[2])
        with socket.create_connection(place), socket.create_connection(place) as line:
            line.sendall(b"no HTTP at all\r\n\r\n")
            assert line.recv(100).startswith(b"HTTP/1.1 400")
            wait_until(lambda: metrics_of(server)("connections") == 1)  # the other one
        wait_until(lambda: metrics_of(server)("connections") == 0)


def test_lookups_that_wait_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go = answers_held(monkeypatch)
    with monitored(tmp_path) as server, ThreadPoolExecutor(1) as pool:
        key = {"X-API-Key": server.key()}
        asking = pool.submit(HTTP.post, f"{server.url}/verify", json=LOOKUP, headers=key)
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
        key = {"X-API-Key": server.key()}

        def run_job() -> str:
            file = ("in.csv", "b_no,name\n1248100998,가\n".encode())
            job = HTTP.post(f"{server.url}/batch", files={"file": file}, headers=key).json()["job_id"]
            wait_until(lambda: state_of(job) in ("done", "failed"))
            return state_of(job)

        def state_of(job: str) -> str:
            return str(HTTP.get(f"{server.url}/batch/{job}", headers=key).json()["status"])

        assert run_job() == "done"
        monkeypatch.setattr(worker, "answer_slice", lambda *_: 1 / 0)
        assert run_job() == "failed"
        wait_until(lambda: metrics_of(server)("jobs_ended_total", state="failed") == 1)
        found = metrics_of(server)
    assert (found("jobs", state="done"), found("jobs", state="failed"), found("jobs", state="queued")) == (1, 1, 0)
    assert found("jobs_ended_total", state="done") == 1
    assert (found("commit_seconds_count") or 0) >= 5
    assert (found("reading_slots") or 0) > (found("reading_slots_in_use") or 0) == found("uploads_under_way") == 0


def test_watches_that_are_overdue_and_notifications_that_nobody_takes_are_told(tmp_path: Path) -> None:
    """Counted from the file, so that a restart forgets none; those of a revoked key alarm nobody."""
    hand, db = HandClock(), tmp_path / "service.sqlite"
    with closing(open_server_file(db)) as file:
        file.execute("BEGIN")
        key, _ = key_table.create_key(file, plan="business", quota=1, now=0)
        gone, _ = key_table.create_key(file, plan="business", quota=1, now=0)
        key_table.revoke_key(file, gone.id, hand.seconds - 60)
        for owner in (key.id, gone.id):
            watch_store.add(file, owner, watch_store.Business("1248100998", None, None), hand.seconds - 3600)
        for number, due in ((1, hand.seconds + 60), (2, None)):
            notice = (number, str(number), key.id, "", "1248100998", "{}", hand.seconds - 7200)
            file.execute("INSERT INTO notices VALUES (?, ?, ?, ?, ?, ?, ?)", notice)
            delivery = (number, WEBHOOK, key.id, hand.seconds - 7200, 1, due, None, "said 500")
            file.execute("INSERT INTO deliveries VALUES (?, ?, ?, ?, ?, ?, ?, ?)", delivery)
        file.execute("COMMIT")
    with monitored(tmp_path, hand.clock, status_sources=[Unreachable()]) as server:
        wait_until(lambda: server.app.state.context.watches._failed)
        found = metrics_of(server)
    assert (found("watches"), found("watches_overdue"), found("watch_overdue_seconds")) == (2, 1, 3600)
    assert found("watch_last_check_timestamp_seconds") is None
    assert [found("notifications_undelivered", state=state) for state in ("waiting", "given_up")] == [1, 1]
    assert found("oldest_undelivered_notification_seconds") == 7200


def test_the_last_check_of_watches_is_told(tmp_path: Path) -> None:
    hand = HandClock()
    with monitored(tmp_path, hand.clock) as server:
        HTTP.post(f"{server.url}/watch", json={"biz_no": "1248100998"}, headers={"X-API-Key": server.key()})
        hand.forward(days=1)
        hand.until(lambda: metrics_of(server)("watch_last_check_timestamp_seconds") is not None, seconds=1)
        found = metrics_of(server)
    assert (found("watches"), found("watches_overdue")) == (1, 0)
    assert hand.seconds - 10 <= (found("watch_last_check_timestamp_seconds") or 0) <= hand.seconds


def test_a_registry_that_is_old_or_refused_is_told(tmp_path: Path) -> None:
    """A damaged file under the registry's name goes on being told until a sound one is there."""
    hand, registry = HandClock(), tmp_path / "registry.parquet"
    source = tmp_path / "registry.csv"
    source.write_text("b_no,b_stt,asof\n1248100998,계속사업자,2026-11-10\n", encoding="utf-8")
    bs.build_registry([source], registry)
    sound = registry.read_bytes()
    with monitored(tmp_path, hand.clock, registry=registry) as server:
        found = metrics_of(server)
        assert found("registry_age_seconds") == 10 * 86_400 + 12 * 3600
        assert found("reference_file_refused", file="registry") == 0
        assert found("gazetteer_age_seconds") is None
        replace(registry, b"damaged")
        hand.until(lambda: metrics_of(server)("reference_file_refused", file="registry") == 1, seconds=5)
        replace(registry, sound)
        hand.until(lambda: metrics_of(server)("reference_file_refused", file="registry") == 0, seconds=5)


def test_the_tax_authoritys_budget_circuit_and_store_are_told(tmp_path: Path) -> None:
    hand = HandClock()
    fake = FakeNts("kEy", {LOOKUP["b_no"]: "active"})
    with serve(fake) as url:
        options = StatusOptions(source="nts", key=NtsKey("kEy"), base_url=url, budget=3)
        with monitored(tmp_path, hand.clock, status=options) as server:
            HTTP.post(f"{server.url}/verify", json=LOOKUP, headers={"X-API-Key": server.key()})
            found = metrics_of(server)
    assert (found("nts_numbers_total"), found("nts_answers_total"), found("nts_budget_left")) == (1, 1, 2)
    assert (found("nts_circuit_open"), found("status_store_statuses")) == (0, 1)
    assert found("status_store_age_seconds") == 12 * 3600


def test_a_task_beside_the_requests_that_fails_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each task is told from the start, so that a monitor sees the first failure as one."""
    monkeypatch.setattr(worker.JobWorker, "purge_once", lambda _: 1 / 0)
    with monitored(tmp_path) as server:
        wait_until(lambda: metrics_of(server)("background_failures_total", task="purging old jobs") == 1)
        found = metrics_of(server)
    assert found("background_failures_total", task="working on jobs") == 0


def test_a_monitor_is_answered_while_the_event_loop_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held, go = Event(), Event()

    async def hold(*_: object) -> None:
        held.set()
        go.wait(30)
        raise invalid_key()

    monkeypatch.setattr(KeyCache, "find", hold)
    with monitored(tmp_path) as server, ThreadPoolExecutor(1) as pool:
        asking = pool.submit(HTTP.get, f"{server.url}/me", headers={"X-API-Key": "any"})
        assert held.wait(30)
        assert metrics_of(server)("requests_under_way") == 1
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
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SkippingLoop)
        loop.skipped = 3.0
        while not Metrics(generate_latest(metrics.registry).decode())("event_loop_delay_seconds_count"):
            await asyncio.sleep(0)
        measuring.cancel()

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        runner.run(hold_up())
    found = Metrics(generate_latest(metrics.registry).decode())
    assert found("event_loop_delay_seconds_bucket", le="1.0") == 0
    assert found("event_loop_delay_seconds_bucket", le="5.0") == 1


def test_a_file_that_cannot_be_read_is_told_with_all_else(tmp_path: Path) -> None:
    with monitored(tmp_path) as server:
        path = server.db
        path.rename(tmp_path / "elsewhere")
        found = metrics_of(server)
        (tmp_path / "elsewhere").rename(path)
    assert (found("readable", part="database"), found("readable", part="disk")) == (0, 1)
    assert found("jobs", state="done") is None
    assert (found("disk_free_bytes") or 0) > 0


def test_two_apps_in_a_process_count_for_themselves(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with monitored(tmp_path / "a") as one, monitored(tmp_path / "b") as other:
        HTTP.get(f"{one.url}/healthz")
        wait_until(lambda: metrics_of(one)("requests_under_way") == 0)
        assert metrics_of(one)("requests_total", route="/healthz", method="GET", code="200") == 1
        assert metrics_of(other)("requests_total", route="/healthz", method="GET", code="200") is None


def test_no_metric_holds_anything_of_a_client(tmp_path: Path) -> None:
    """Neither keys nor numbers, names, addresses nor file names."""
    with monitored(tmp_path) as server:
        secret = server.key()
        key = {"X-API-Key": secret}
        HTTP.post(f"{server.url}/verify", json=LOOKUP, headers=key)
        HTTP.post(f"{server.url}/watch", json={"biz_no": LOOKUP["b_no"], "name": LOOKUP["name"]}, headers=key)
        HTTP.get(f"{server.url}/{secret}/{LOOKUP['b_no']}", headers=key)
        text = HTTP.get(f"http://127.0.0.1:{server.app.state.metrics_port}/metrics").text
    key_id = rows_of(server.db, "SELECT id FROM keys")[0][0]
    assert [word for word in (secret, key_id, *LOOKUP.values(), "service.sqlite") if word in text] == []
