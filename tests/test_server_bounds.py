"""One key cannot harm the others: how often it asks, how much at once, and what it leaves on the disk are bounded."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import httpx
import msgspec
import pytest

import bansong as bs
from bansong.base.files import list_folder
from bansong.errors import UsageError
from bansong.server import job_files as results
from bansong.server.bodies import ReceivedUpload
from bansong.server.job_files import folder_bytes
from bansong.server.settings import ServicePlan, load_plans
from customers import numbers
from handclock import HandClock
from serving import (
    Account,
    Served,
    answers_held,
    error_in,
    hosted,
    line_from,
    read_here,
    refused,
    rows_of,
    said_to,
    served,
    wait_until,
)

BUSINESS = load_plans()["business"]
KIND = "multipart/form-data; boundary=b"


def plan(**fields: Any) -> ServicePlan:
    return msgspec.structs.replace(BUSINESS, **fields)


PLANS = {
    "business": BUSINESS,
    "enterprise": load_plans()["enterprise"],
    "cramped": plan(upload_bytes=100_000, disk_bytes=100_000, uploads=9),
    "few uploads": plan(uploads=2, disk_bytes=10**9),
    "room for some": plan(upload_bytes=100_000, disk_bytes=200_000, uploads=20, jobs=50),
    "two at once": plan(requests_at_once=2),
    "hardly at all": plan(requests_per_second=30, request_burst=10, requests_at_once=2, uploads=1, jobs=1),
}


@pytest.fixture(scope="module", autouse=True)
def reading_here() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        read_here(patch)
        yield


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("server") / "db.sqlite", plans=PLANS) as running:
        yield running


def form(content: bytes) -> bytes:
    head = b'--b\r\nContent-Disposition: form-data; name="file"; filename="in.csv"\r\n\r\n'
    return head + content + b"\r\n--b--\r\n"


def rows(count: int) -> bytes:
    return b"b_no,name\n" + b"".join(b"%d,%s\n" % (1_000_000_000 + n, b"x" * 20) for n in range(count))


def bound_of(answer: httpx.Response) -> tuple[int, str, str]:
    return *refused(answer), answer.json()["error"].get("bound", "")


def in_use(key: Account) -> Any:
    return key.get("/me")["in_use"]


def on_disk(key: Account) -> int:
    """Bytes that its jobs take."""
    jobs = rows_of(key.server.db, "SELECT id FROM jobs WHERE key_id = ?", key.id)
    return sum(folder_bytes(key.server.files / "jobs" / job_id) for (job_id,) in jobs)


def settled(key: Account, job_id: str) -> None:
    """Wait until the job is done, and its files are counted as they are."""
    key.until(job_id)
    wait_until(lambda: in_use(key)["disk_bytes"] == on_disk(key))


class SlowUpload:
    """An upload of which a part has come and the rest does not."""

    def __init__(self, key: Account, body: bytes, part: int, *headers: str, chunked: bool = False) -> None:
        self._rest, self._chunked = body[part:], chunked
        self.line = line_from(key.server)
        length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(body)}"
        lines = ["POST /batch HTTP/1.1", "Host: x", f"X-API-Key: {key.secret}", f"Content-Type: {KIND}", length]
        self.line.sendall("\r\n".join([*lines, *headers, "Connection: close", "", ""]).encode())
        self._send(body[:part])

    def _send(self, piece: bytes) -> None:
        self.line.sendall(b"%x\r\n%s\r\n" % (len(piece), piece) if self._chunked else piece)

    def finish(self) -> tuple[int, bytes]:
        """Send the rest; return status and body of the answer."""
        self._send(self._rest + b"")
        with self.line:
            head, _, body = said_to(self.line).partition(b"\r\n\r\n")
        return int(head.split()[1]), body

    def error(self) -> tuple[int, Any]:
        """Status and error of a refusal, which comes before the rest was sent."""
        with self.line:
            told = b""
            while not told.endswith(b"}}"):
                told += self.line.recv(65536)
        return error_in(told)


def test_uploads_at_once_are_bounded_by_key(server: Served) -> None:
    """Before the body is read; those that repeat an Idempotency-Key go to no disk, and count as well."""
    key, body, token = server.account("few uploads", 100_000), form(rows(20_000)), "Idempotency-Key: one"
    first = key.upload(rows(20_000), headers={"Idempotency-Key": "one"})
    slow = [SlowUpload(key, body, len(body) - 100, token) for _ in range(2)]
    wait_until(lambda: in_use(key)["uploads"] == 2)
    assert not [path for path in (server.files / "uploads").rglob("*") if path.is_file()]
    status, error = SlowUpload(key, body, 0, token).error()
    assert (status, error["code"], error["bound"], error["limit"]) == (429, "limit_exceeded", "uploads", 2)
    answer = key.upload(rows(1))
    assert (bound_of(answer), answer.headers["retry-after"]) == ((429, "limit_exceeded", "uploads"), "5")
    assert server.account("enterprise").upload(rows(1)).status_code == 200
    assert [one.finish() for one in slow] == [(200, first.content)] * 2
    assert key.used() == 20_000


def test_unpaid_uploads_fill_no_disk(tmp_path: Path) -> None:
    """A key has room for as many bytes as its plan says, whether it pays or not, and has it again when jobs expire."""
    clock = HandClock()
    with hosted(tmp_path / "db.sqlite", clock.clock, plans=PLANS, keep_days=10) as server:
        key = server.account("cramped")
        while (answer := key.upload(rows(100), "?paid=false")).status_code == 200:
            settled(key, answer.json()["job_id"])
        error = answer.json()["error"]
        assert (bound_of(answer), int(answer.headers["retry-after"]) > 60) == (
            (429, "limit_exceeded", "disk_bytes"),
            True,
        )
        assert on_disk(key) <= error["used"] <= error["limit"] == 100_000
        assert server.account("enterprise").upload(rows(10)).status_code == 200
        clock.forward(days=10.1)
        clock.until(lambda: in_use(key)["disk_bytes"] == 0, hours=1)
        assert key.upload(rows(100), "?paid=false").status_code == 200


def test_a_file_that_never_has_room_is_told_so(server: Served) -> None:
    """413: no waiting helps, smaller parts do."""
    answer = server.account("cramped").upload(rows(3_000))
    assert (bound_of(answer), answer.json()["error"]["limit"]) == ((413, "too_large", "disk_bytes"), 100_000)


@pytest.mark.parametrize("chunked", [False, True])
def test_what_comes_in_is_bounded_also_without_a_length(server: Served, chunked: bool) -> None:
    """Bytes that are coming in count: by the declared length before the first, otherwise as they come."""
    key, body = server.account("cramped"), form(rows(1_000))
    part = len(body) - 50
    with ExitStack() as closing:
        for _ in range(3):
            closing.enter_context(SlowUpload(key, body, part, chunked=chunked).line)
        wait_until(lambda: in_use(key)["disk_bytes"] >= 3 * part)
        status, error = SlowUpload(key, body, part if chunked else 0, chunked=chunked).error()
        assert (status, error["bound"]) == (429, "disk_bytes")
        assert in_use(key)["disk_bytes"] <= 100_000


def test_the_bound_of_the_disk_holds_for_uploads_at_once(server: Served) -> None:
    """However many come at the same time, no more is on the disk than the plan allows, and nothing is counted twice."""
    key = server.account("room for some", 100_000)
    with ThreadPoolExecutor(9) as pool:
        answers = list(pool.map(lambda _: key.upload(rows(200)), range(9)))
    accepted = [one.json()["job_id"] for one in answers if one.status_code == 200]
    assert 0 < len(accepted) < 9
    assert {bound_of(one)[2] for one in answers if one.status_code != 200} == {"disk_bytes"}
    settled(key, accepted[-1])
    assert on_disk(key) <= 200_000
    assert key.used() == 200 * len(accepted)


def test_outcomes_with_long_reasons_fill_no_disk(tmp_path: Path) -> None:
    """They count as bytes of their key, once a row, after a restart, too, until their job is deleted."""
    path = tmp_path / "db.sqlite"
    with hosted(path, plans=PLANS) as server:
        key = server.account("cramped")
        settled(key, job_id := key.job(rows(60))["job_id"])

        def takes(reason: str | None) -> int:
            assert key.label(job_id, 0, reason=reason).status_code == 201
            return int(in_use(key)["disk_bytes"]) - on_disk(key)

        assert 0 < takes(None) == takes(None) < takes("이사불명") < takes("가" * 1_000) == takes("나" * 1_000)
        assert takes(None) == 128
        told = 1
        while (answer := key.label(job_id, told, reason="가" * 1_000)).status_code == 201:
            told += 1
        assert bound_of(answer) == (429, "limit_exceeded", "disk_bytes")
        ((stored,),) = rows_of(path, "SELECT sum(length(CAST(reason AS BLOB))) FROM labels")
        assert on_disk(key) + stored <= in_use(key)["disk_bytes"] <= 100_000
        assert key.upload(rows(10)).status_code == 429
        before = in_use(key)["disk_bytes"]
    with hosted(path, plans=PLANS) as server:
        key = Account(server, key.secret)
        learned = sum(map(folder_bytes, list_folder(server.files / "learning")))  # in the background
        assert before <= in_use(key)["disk_bytes"] <= before + learned
        assert key.ask("DELETE", f"/batch/{job_id}").status_code == 200
        assert in_use(key)["disk_bytes"] <= learned + 8_192 < stored


def test_requests_a_second_are_bounded_by_key(tmp_path: Path) -> None:
    """A burst goes through, then the plan's pace; 429 says bound, limit and when; other keys do not notice."""
    clock, plans = HandClock(), PLANS | {"business": plan(requests_per_second=2, request_burst=5)}
    with hosted(tmp_path / "db.sqlite", clock.clock, plans=plans) as server:
        key, other = server.account(), server.account("enterprise")

        def ask(times: int) -> list[int]:
            return [key.ask("GET", "/me").status_code for _ in range(times)]

        assert ask(8) == [200] * 5 + [429] * 3
        answer = key.ask("GET", "/me")
        assert bound_of(answer) == (429, "limit_exceeded", "requests_per_second")
        assert (answer.json()["error"]["limit"], answer.headers["retry-after"]) == (2, "1")
        assert other.ask("GET", "/me").status_code == 200
        clock.forward(seconds=1)
        assert ask(3) == [200, 200, 429]
        clock.forward(hours=-5)  # a clock that is set back locks nobody out
        assert ask(6) == [200] * 5 + [429]


def test_requests_at_once_are_bounded_by_key(server: Served) -> None:
    """Requests whose bodies do not come hold up their own key alone, and are counted until they end."""
    key, other = server.account("two at once"), server.account("enterprise")
    slow = [SlowUpload(key, form(rows(1)), 0) for _ in range(2)]
    wait_until(lambda: key.ask("GET", "/me").status_code == 429)
    assert bound_of(key.ask("GET", "/me")) == (429, "limit_exceeded", "requests_at_once")
    assert in_use(other)["requests_at_once"] == 1
    assert [one.finish()[0] for one in slow] == [200, 200]
    wait_until(lambda: key.ask("GET", "/me").status_code == 200)


def test_keys_that_ask_all_they_may_shut_out_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While lookups of two keys are all that may wait, a third key is answered; more of the two is 503."""
    begun, go = answers_held(monkeypatch)
    with hosted(tmp_path / "db.sqlite") as server, ThreadPoolExecutor(10) as pool:
        answerer = server.context.lookups.answerer
        answerer.most_waiting = 6
        loud, quiet = (server.account(), server.account()), server.account()
        held = [pool.submit(key.verify) for key in loud * 3]
        assert begun.wait(120)
        wait_until(lambda: answerer.waiting == 6)
        assert [refused(key.verify()) for key in loud] == [(503, "busy")] * 2
        last = pool.submit(quiet.verify)
        wait_until(lambda: answerer.waiting == 7)
        go.set()
        assert [one.result().status_code for one in (*held, last)] == [200] * 7


def test_slow_files_of_some_keys_hold_up_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two keys with slow files leave slots for the large files of others, and all slots taken leave those for small."""
    read, go, begun, large = results.read_isolated, threading.Event(), list[str](), rows(100)
    monkeypatch.setattr(results, "SMALL_FILE", 1_000)

    async def hold(upload: ReceivedUpload, *more: Any) -> int:
        if upload.name == "slow.csv":
            begun.append(upload.name)
            while not go.is_set():
                await anyio.sleep(0.005)
        return await read(upload, *more)

    monkeypatch.setattr(results, "read_isolated", hold)
    with hosted(tmp_path / "db.sqlite", reading_slots=3) as server, ThreadPoolExecutor(9) as pool:
        keys = [server.account("enterprise") for _ in range(5)]
        query = "?paid=false"
        # each sends two: one is read, the other waits for its own key's first
        slow = [pool.submit(key.upload, large, query, "slow.csv") for key in keys[:2] for _ in range(2)]
        wait_until(lambda: len(begun) == 2)
        try:
            assert keys[2].upload(large, query).status_code == 200
            slow.append(pool.submit(keys[2].upload, large, query, "slow.csv"))
            wait_until(lambda: len(begun) == 3)
            waiting = pool.submit(keys[3].upload, large, query)
            assert keys[4].upload(rows(10), query).status_code == 200
            assert (len(begun), waiting.done()) == (3, False)
        finally:
            go.set()
        assert [one.result().status_code for one in [*slow, waiting]] == [200] * 6


def test_plans_of_before_get_bounds(tmp_path: Path) -> None:
    """A file of plans without the newer fields is read, with bounds that follow from the others."""
    names = ("api", "quota", "watch_history", "watches", "recheck_hours", "upload_bytes", "rows", "jobs")
    before = {name: getattr(BUSINESS, name) for name in names} | {"upload_bytes": 5_000_000_000, "jobs": 7}
    path = tmp_path / "plans.toml"
    path.write_bytes(msgspec.toml.encode({"old": before}))
    found = load_plans(path)["old"]
    assert (found.uploads, found.disk_bytes) == (7, 160_000_000_000)
    assert (found.requests_per_second, found.request_burst, found.requests_at_once) == (100, 1_000, 256)
    path.write_bytes(msgspec.toml.encode({"old": before | {"disk_bytes": 1_000}}))
    with pytest.raises(UsageError, match=r"disk_bytes \(1,000\) must be at least upload_bytes"):
        load_plans(path)


@pytest.mark.parametrize("engine", ["verify", "batch"])
def test_a_run_waits_where_the_server_says_too_often(server: Served, tmp_path: Path, engine: str) -> None:
    """Our client goes on after 429 that is not the quota: every lookup is answered and paid once, none in doubt."""
    key, count, table = server.account("hardly at all"), 6, tmp_path / "in.csv"
    table.write_text("\n".join(["b_no,name", *(f"{number},x" for number in numbers(count))]))
    options = bs.ServiceOptions(
        base_url=server.url,
        api_key=key.secret,
        ledger=tmp_path / "ledger",
        concurrency=8,
        rate=1_000.0,
        chunk=3,
        poll=0.02,
    )
    report = bs.enrich(table, tmp_path / "out.csv", engine=bs.ServiceEngine(engine, options))
    assert report.exit_code == 0
    assert rows_of(server.db, "SELECT used FROM usage WHERE key_id = ?", key.id) == [(count,)]
    assert not any("quota is used up" in str(warning) for warning in report.warnings)
