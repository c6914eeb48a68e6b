"""One key cannot harm the others: how often it asks, how much at once, and what it leaves on the disk are bounded."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import httpx
import msgspec
import pytest
from prometheus_client import generate_latest

import bansong as bs
from bansong.base.files import list_folder
from bansong.base.isolation import IsolationError
from bansong.errors import LimitError, UsageError
from bansong.server import job_files as reading_slots
from bansong.server.bodies import ReceivedUpload
from bansong.server.job_files import folder_bytes
from bansong.server.settings import ServicePlan, load_plans
from customers import numbers
from handclock import HandClock
from serving import HTTP, Served, answers_held, make_key, read_here, rows_of, served, wait_until

BUSINESS = load_plans()["business"]
KIND = "multipart/form-data; boundary=b"


def plans(**fields: Any) -> dict[str, ServicePlan]:
    """The business plan with other bounds, and another key's plan as it is."""
    return {"business": msgspec.structs.replace(BUSINESS, **fields), "enterprise": load_plans()["enterprise"]}


def form(content: bytes) -> bytes:
    head = b'--b\r\nContent-Disposition: form-data; name="file"; filename="in.csv"\r\n\r\n'
    return head + content + b"\r\n--b--\r\n"


def rows(count: int, width: int = 20) -> bytes:
    return b"b_no,name\n" + b"".join(b"%d,%s\n" % (1_000_000_000 + n, b"x" * width) for n in range(count))


def send(server: Served, key: str, content: bytes, query: str = "", **headers: str) -> httpx.Response:
    named = {"X-API-Key": key, "Content-Type": KIND} | {name.replace("_", "-"): text for name, text in headers.items()}
    return HTTP.post(f"{server.url}/batch{query}", content=form(content), headers=named)


def me(server: Served, key: str) -> Any:
    return HTTP.get(f"{server.url}/me", headers={"X-API-Key": key}).json()


def bound_of(answer: httpx.Response) -> tuple[int, str, str]:
    error = answer.json()["error"]
    return answer.status_code, error["code"], error.get("bound", "")


def until_done(server: Served, key: str, job_id: str) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        status = HTTP.get(f"{server.url}/batch/{job_id}?preview=0", headers={"X-API-Key": key}).json()["status"]
        if status == "done" and me(server, key)["in_use"]["disk_bytes"] == on_disk(server):
            return
        time.sleep(0.01)
    raise AssertionError("the job is not done, or its files are not counted as they are")


def learned_bytes(server: Served) -> int:
    """Bytes of what outcomes taught: written in the background, and counted when the server starts and every hour."""
    folder = server.db.parent / f"{server.db.name}.files" / "learning"
    return sum(folder_bytes(one) for one in list_folder(folder))


def on_disk(server: Served) -> int:
    """Bytes that all jobs take on the disk."""
    return sum(folder_bytes(job) for job in (server.db.parent / f"{server.db.name}.files" / "jobs").iterdir())


def uploaded(server: Served) -> int:
    """Bytes of the files that are coming in."""
    folder = server.db.parent / f"{server.db.name}.files" / "uploads"
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


class SlowUpload:
    """An upload whose head says how long it is, of which a part has come and the rest does not."""

    def __init__(self, server: Served, key: str, body: bytes, part: int, *headers: str, chunked: bool = False) -> None:
        host, port = server.url.removeprefix("http://").split(":")
        self._body, self._part, self._chunked = body, part, chunked
        self.line = socket.create_connection((host, int(port)), timeout=20)
        length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(body)}"
        lines = ["POST /batch HTTP/1.1", "Host: x", f"X-API-Key: {key}", f"Content-Type: {KIND}", length, *headers]
        self.line.sendall("\r\n".join([*lines, "Connection: close", "", ""]).encode())
        self._send(body[:part])

    def _send(self, piece: bytes) -> None:
        self.line.sendall(b"%x\r\n%s\r\n" % (len(piece), piece) if self._chunked else piece)

    def finish(self) -> tuple[int, Any]:
        """Send the rest; return status and body of the answer."""
        self._send(self._body[self._part :])
        if self._chunked:
            self.line.sendall(b"0\r\n\r\n")
        return self.answer()

    def answer(self) -> tuple[int, Any]:
        """Status and body of the answer, which comes before the rest was sent if the upload is refused."""
        with self.line, self.line.makefile("rb") as said:
            status, length = int(said.readline().split()[1]), 0
            while line := said.readline().strip():
                name, _, value = line.partition(b":")
                length = int(value) if name.lower() == b"content-length" else length
            return status, json.loads(said.read(length))


def wait_for(server: Served, key: str, uploads: int, size: int = 0) -> None:
    """Wait until so many uploads are under way, for which so many bytes are set aside."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        in_use = me(server, key)["in_use"]
        if in_use["uploads"] == uploads and in_use["disk_bytes"] >= size:
            return
        time.sleep(0.01)
    raise AssertionError("the uploads are not under way")


@pytest.fixture(autouse=True)
def reading_here(monkeypatch: pytest.MonkeyPatch) -> None:
    read_here(monkeypatch)


def test_repeated_uploads_leave_nothing_on_the_disk_and_are_counted(tmp_path: Path) -> None:
    """Uploads that repeat an Idempotency-Key go to no disk, and as many come in at once as the plan allows."""
    body, token = form(rows(40_000)), "Idempotency-Key: one"
    with served(tmp_path / "db.sqlite", plans=plans(uploads=3)) as server:
        key = server.key(quota=100_000)
        first = send(server, key, rows(40_000), Idempotency_Key="one").json()
        slow = [SlowUpload(server, key, body, len(body) - 100, token) for _ in range(3)]
        wait_for(server, key, 3)
        assert uploaded(server) == 0
        status, told = SlowUpload(server, key, body, 0, token).answer()
        assert (status, told["error"]["code"], told["error"]["bound"]) == (429, "limit_exceeded", "uploads")
        assert (told["error"]["limit"], told["error"]["used"]) == (3, 3)
        assert [one.finish() for one in slow] == [(200, first)] * 3
        assert me(server, key)["quota"]["used"] == 40_000


def test_uploads_at_once_are_bounded_by_key(tmp_path: Path) -> None:
    """An upload beyond the plan's is told 429, with Retry-After, before its body is read; another key's goes on."""
    with served(tmp_path / "db.sqlite", plans=plans(uploads=2)) as server, ExitStack() as closing:
        key, other = server.key(), server.key("enterprise")
        for _ in range(2):
            closing.enter_context(SlowUpload(server, key, form(rows(50)), 10).line)
        wait_for(server, key, 2)
        refused = send(server, key, rows(1))
        assert bound_of(refused) == (429, "limit_exceeded", "uploads")
        assert refused.headers["retry-after"] == "5"
        assert send(server, other, rows(1)).status_code == 200


def test_unpaid_uploads_fill_no_disk(tmp_path: Path) -> None:
    """A key has room for as many bytes as its plan says, whether it pays or not, and has it again when jobs expire."""
    clock = HandClock()
    allowed = plans(upload_bytes=100_000, disk_bytes=200_000, jobs=50)
    with served(tmp_path / "db.sqlite", clock.clock, plans=allowed, keep_days=10) as server:
        key, other = server.key(), server.key("enterprise")
        while (answer := send(server, key, rows(100), "?paid=false")).status_code == 200:
            until_done(server, key, answer.json()["job_id"])
            assert on_disk(server) <= 200_000
        assert bound_of(answer) == (429, "limit_exceeded", "disk_bytes")
        assert int(answer.headers["retry-after"]) > 60
        error = answer.json()["error"]
        assert on_disk(server) <= error["used"] <= error["limit"] == 200_000
        assert send(server, other, rows(10)).status_code == 200
        clock.forward(days=10.1)
        clock.until(lambda: me(server, key)["in_use"]["disk_bytes"] == 0, hours=1)
        assert send(server, key, rows(100), "?paid=false").status_code == 200


def test_a_file_that_never_has_room_is_told_so(tmp_path: Path) -> None:
    """A file larger than all that a key may have is 413: no waiting helps, smaller parts do."""
    with served(tmp_path / "db.sqlite", plans=plans(upload_bytes=100_000, disk_bytes=100_000)) as server:
        answer = send(server, server.key(), rows(3_000))
    assert bound_of(answer) == (413, "too_large", "disk_bytes")
    assert answer.json()["error"]["limit"] == 100_000


@pytest.mark.parametrize("chunked", [False, True])
def test_what_comes_in_is_bounded_also_without_a_length(tmp_path: Path, chunked: bool) -> None:
    """Bytes that are coming in count: by the declared length before the first, otherwise as they come."""
    allowed = plans(upload_bytes=100_000, disk_bytes=100_000, uploads=9)
    body = form(rows(1_000))
    with served(tmp_path / "db.sqlite", plans=allowed) as server, ExitStack() as closing:
        key = server.key()
        for _ in range(3):
            part = len(body) - 50
            closing.enter_context(SlowUpload(server, key, body, part, chunked=chunked).line)
        wait_for(server, key, 3, 3 * (len(body) - 50))
        status, told = SlowUpload(server, key, body, len(body) - 50 if chunked else 0, chunked=chunked).answer()
        assert (status, told["error"]["bound"]) == (429, "disk_bytes")
        assert uploaded(server) <= me(server, key)["in_use"]["disk_bytes"] <= 100_000


def test_the_bound_of_the_disk_holds_for_uploads_at_once(tmp_path: Path) -> None:
    """However many come at the same time, no more is on the disk than the plan allows, and nothing is counted twice."""
    allowed = plans(upload_bytes=100_000, disk_bytes=250_000, uploads=20, jobs=40)
    with served(tmp_path / "db.sqlite", plans=allowed) as server, ThreadPoolExecutor(12) as pool:
        key = server.key(quota=100_000)
        answers = list(pool.map(lambda _: send(server, key, rows(100)), range(36)))
        accepted = [one.json()["job_id"] for one in answers if one.status_code == 200]
        assert 0 < len(accepted) < 36
        assert {bound_of(one)[2] for one in answers if one.status_code == 429} <= {"disk_bytes"}
        until_done(server, key, accepted[-1])
        assert on_disk(server) <= 250_000
        assert me(server, key)["in_use"]["disk_bytes"] == on_disk(server)
        assert me(server, key)["quota"]["used"] == 100 * len(accepted)


def test_room_on_the_disk_is_counted_from_the_files_when_a_server_starts(tmp_path: Path) -> None:
    """A restart counts the same bytes: those of the files that are there."""
    db = tmp_path / "db.sqlite"
    key = make_key(db)
    with served(db) as server:
        jobs = [send(server, key, rows(50)).json()["job_id"] for _ in range(3)]
        until_done(server, key, jobs[-1])
        before = me(server, key)["in_use"]["disk_bytes"]
    with served(db) as server:
        assert me(server, key)["in_use"]["disk_bytes"] == before == on_disk(server) > 0


def tell(server: Served, key: str, job_id: str, row_id: int, reason: str | None) -> httpx.Response:
    label = {"row_id": row_id, "bounced": True, "reason": reason}
    return HTTP.post(f"{server.url}/batch/{job_id}/label", json=label, headers={"X-API-Key": key})


def test_outcomes_with_long_reasons_fill_no_disk(tmp_path: Path) -> None:
    """They count as bytes on the disk of their key, after a restart, too, until their job is deleted."""
    db, allowed = tmp_path / "db.sqlite", plans(upload_bytes=50_000, disk_bytes=100_000)
    key, longest = make_key(db), "가" * 1_000
    with served(db, plans=allowed) as server:
        job_id = send(server, key, rows(60)).json()["job_id"]
        until_done(server, key, job_id)
        files, told = on_disk(server), 0
        while (answer := tell(server, key, job_id, told, longest)).status_code == 201:
            told += 1
        assert bound_of(answer) == (429, "limit_exceeded", "disk_bytes")
        ((stored,),) = rows_of(db, "SELECT sum(length(CAST(reason AS BLOB))) FROM labels")
        assert told < 60
        assert files + stored <= me(server, key)["in_use"]["disk_bytes"] <= 100_000
        assert tell(server, key, job_id, 0, None).status_code == 429  # there is no room to write it beside the other
        assert send(server, key, rows(10)).status_code == 429
        before = me(server, key)["in_use"]["disk_bytes"]
    with served(db, plans=allowed) as server:
        assert before <= me(server, key)["in_use"]["disk_bytes"] <= before + learned_bytes(server)
        assert HTTP.delete(f"{server.url}/batch/{job_id}", headers={"X-API-Key": key}).status_code == 200
        assert me(server, key)["in_use"]["disk_bytes"] <= learned_bytes(server) < stored


def test_an_outcome_that_replaces_another_takes_its_room(tmp_path: Path) -> None:
    """One that is told again and again takes no more than once; a shorter reason gives the rest back."""
    with served(tmp_path / "db.sqlite") as server:
        key = server.key()
        job_id = send(server, key, rows(2)).json()["job_id"]
        until_done(server, key, job_id)

        def takes(reason: str | None) -> int:
            assert tell(server, key, job_id, 0, reason).status_code == 201
            return int(me(server, key)["in_use"]["disk_bytes"]) - on_disk(server)

        assert 0 < takes(None) == takes(None) < takes("이사불명") < takes("가" * 1_000) == takes("나" * 1_000)
        assert takes(None) == 128


def test_requests_a_second_are_bounded_by_key(tmp_path: Path) -> None:
    """A burst goes through, then the plan's pace; 429 says bound, limit and when; other keys do not notice."""
    clock = HandClock()
    with served(tmp_path / "db.sqlite", clock.clock, plans=plans(requests_per_second=2, request_burst=5)) as server:
        key, other = server.key(), server.key("enterprise")

        def ask(secret: str) -> httpx.Response:
            return HTTP.get(f"{server.url}/me", headers={"X-API-Key": secret})

        answers = [ask(key) for _ in range(8)]
        assert [one.status_code for one in answers] == [200] * 5 + [429] * 3
        assert bound_of(answers[-1]) == (429, "limit_exceeded", "requests_per_second")
        assert (answers[-1].json()["error"]["limit"], answers[-1].headers["retry-after"]) == (2, "1")
        assert ask(other).status_code == 200
        clock.forward(seconds=1)
        assert [ask(key).status_code for _ in range(3)] == [200, 200, 429]
        clock.forward(hours=-5)  # a clock that is set back locks nobody out
        assert [ask(key).status_code for _ in range(6)] == [200] * 5 + [429]
        assert HTTP.get(f"{server.url}/healthz").status_code == 200


def test_requests_at_once_are_bounded_by_key(tmp_path: Path) -> None:
    """Requests whose bodies do not come hold up their own key alone, and are counted until they end."""
    with served(tmp_path / "db.sqlite", plans=plans(requests_at_once=2)) as server:
        key, other = server.key(), server.key("enterprise")
        slow = [SlowUpload(server, key, form(rows(1)), 0) for _ in range(2)]
        deadline = time.monotonic() + 120
        while (refused := HTTP.get(f"{server.url}/me", headers={"X-API-Key": key})).status_code == 200:
            assert time.monotonic() < deadline
        assert bound_of(refused) == (429, "limit_exceeded", "requests_at_once")
        assert me(server, other)["in_use"]["requests_at_once"] == 1
        assert [one.finish()[0] for one in slow] == [200, 200]
        deadline = time.monotonic() + 120
        while HTTP.get(f"{server.url}/me", headers={"X-API-Key": key}).status_code != 200:
            assert time.monotonic() < deadline


def test_keys_that_ask_all_they_may_shut_out_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While lookups of two keys are all that may wait, a third key is answered; more of the two is 503."""
    begun, go = answers_held(monkeypatch)
    with served(tmp_path / "db.sqlite") as server, ThreadPoolExecutor(10) as pool:
        answerer = server.app.state.context.lookups.answerer
        answerer.most_waiting = 6

        def ask(key: str) -> int:
            body = {"b_no": "1248100998"}
            return HTTP.post(f"{server.url}/verify", json=body, headers={"X-API-Key": key}).status_code

        loud, quiet = (server.key(), server.key()), server.key()
        held = [pool.submit(ask, key) for key in loud * 3]
        assert begun.wait(120)
        wait_until(lambda: answerer.waiting == 6)
        assert [ask(key) for key in loud] == [503, 503]
        last = pool.submit(ask, quiet)
        wait_until(lambda: answerer.waiting == 7)
        go.set()
        assert [one.result() for one in (*held, last)] == [200] * 7


class HeldReading:
    """Reading of files named slow.csv takes until ``go`` is set; ``begun`` counts them. Its bounds are kept in mind."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go, self.begun, self._read = threading.Event(), 0, reading_slots.read_isolated
        monkeypatch.setattr(reading_slots, "read_isolated", self._hold)

    async def _hold(self, upload: ReceivedUpload, *more: Any) -> int:
        if upload.name == "slow.csv":
            self.begun += 1
            while not self.go.is_set():
                await anyio.sleep(0.005)
        return await self._read(upload, *more)

    def until_begun(self, count: int) -> None:
        deadline = time.monotonic() + 120
        while self.begun < count and time.monotonic() < deadline:
            time.sleep(0.005)


def post_file(server: Served, key: str, name: str, content: bytes) -> httpx.Response:
    return HTTP.post(f"{server.url}/batch?paid=false", files={"file": (name, content)}, headers={"X-API-Key": key})


def test_slow_files_of_some_keys_hold_up_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two keys with slow files leave slots for the large files of others, and all slots taken leave those for small."""
    held, large = HeldReading(monkeypatch), rows(75_000)
    assert len(large) > reading_slots.SMALL_FILE
    with served(tmp_path / "db.sqlite", reading_slots=3) as server, ThreadPoolExecutor(9) as pool:
        keys = [server.key("enterprise") for _ in range(5)]
        # each sends two: one is read, the other waits for its own key's first
        slow = [pool.submit(post_file, server, key, "slow.csv", large) for key in keys[:2] for _ in range(2)]
        held.until_begun(2)
        try:
            assert post_file(server, keys[2], "in.csv", large).status_code == 200
            slow.append(pool.submit(post_file, server, keys[2], "slow.csv", large))
            held.until_begun(3)
            waiting = pool.submit(post_file, server, keys[3], "in.csv", large)
            assert post_file(server, keys[4], "in.csv", rows(10)).status_code == 200
            assert (held.begun, waiting.done()) == (3, False)
        finally:
            held.go.set()
        assert [one.result().status_code for one in [*slow, waiting]] == [200] * 6


def test_a_small_file_that_takes_much_is_read_as_a_large_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bounds of small files refuse nothing that a slot for large ones reads."""
    read, asked = reading_slots.read_isolated, []

    async def needs_more(upload: ReceivedUpload, target: Path, most: int, memory: int, seconds: float) -> int:
        asked.append(memory)
        if len(asked) == 1:
            raise IsolationError("memory")
        return await read(upload, target, most, memory, seconds)

    monkeypatch.setattr(reading_slots, "read_isolated", needs_more)
    with served(tmp_path / "db.sqlite") as server:
        assert post_file(server, server.key(), "in.csv", rows(10)).status_code == 200
    assert len(asked) == 2
    assert asked[0] < asked[1]


def test_plans_of_before_get_bounds(tmp_path: Path) -> None:
    """A file of plans without the newer fields is read, with bounds that follow from the others."""
    names = ("api", "quota", "watch_history", "watches", "recheck_hours", "upload_bytes", "rows", "jobs")
    before = {name: getattr(BUSINESS, name) for name in names} | {"upload_bytes": 5_000_000_000, "jobs": 7}
    path = tmp_path / "plans.toml"
    path.write_bytes(msgspec.toml.encode({"old": before}))
    plan = load_plans(path)["old"]
    assert (plan.uploads, plan.disk_bytes) == (7, 160_000_000_000)
    assert (plan.requests_per_second, plan.request_burst, plan.requests_at_once) == (100, 1_000, 256)
    path.write_bytes(msgspec.toml.encode({"old": before | {"disk_bytes": 1_000}}))
    with pytest.raises(UsageError, match=r"disk_bytes \(1,000\) must be at least upload_bytes"):
        load_plans(path)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Served]:
    """A server whose plan lets a key ask hardly at all."""
    allowed = plans(requests_per_second=30, request_burst=10, requests_at_once=2, uploads=1, jobs=1)
    with served(tmp_path / "db.sqlite", plans=allowed) as server:
        yield server


@pytest.mark.parametrize("engine", ["verify", "batch"])
def test_a_run_waits_where_the_server_says_too_often(small: Served, tmp_path: Path, engine: str) -> None:
    """Our client goes on after 429 that is not the quota: every lookup is answered and paid once, none in doubt."""
    key, count = small.key(), 14
    table = tmp_path / "in.csv"
    table.write_text("\n".join(["b_no,name", *(f"{number},x" for number in numbers(count))]))
    options = bs.ServiceOptions(
        base_url=small.url, api_key=key, ledger=tmp_path / "ledger", concurrency=8, rate=1_000.0, chunk=5, poll=0.02
    )
    report = bs.enrich(table, tmp_path / "out.csv", engine=bs.ServiceEngine(engine, options))
    assert report.exit_code == 0
    refusals = generate_latest(small.app.state.metrics.registry).decode()
    assert 'code="limit_exceeded"' in refusals
    busy = [line for line in refusals.splitlines() if line.startswith("bansong_refusals_total") and '"busy"' in line]
    assert [line.rpartition(" ")[2] for line in busy] == ["0.0"]  # after 503 a run does not know whether it paid
    assert rows_of(small.db, "SELECT used FROM usage") == [(count,)]
    assert not any("quota is used up" in str(warning) for warning in report.warnings)


def test_the_client_tells_a_bound_from_the_quota(small: Served) -> None:
    """Over a bound the error is no QuotaError, and says how long to wait."""
    key = small.key()
    with ExitStack() as closing:
        for _ in range(2):
            closing.enter_context(SlowUpload(small, key, form(rows(1)), 0).line)
        client = closing.enter_context(bs.BlockingClient(small.url, key, max_retries=0))
        with pytest.raises(LimitError, match="limit other than the monthly quota") as told:
            [client.me() for _ in range(100)]
    assert told.value.retry_after == 1.0
