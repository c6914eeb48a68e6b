"""The fake of the hosted service is a judge: what it counts as paid is what was paid, whatever goes wrong."""

from __future__ import annotations

import ast
import csv
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from bansong.testing import (
    DIALECTS,
    BrokenConnectionError,
    Dialect,
    FakeService,
    Fault,
    Faults,
    Lookup,
    faults,
    serve,
    verdict,
)
from bansong.testing.messages import FakeRequest, header

pytestmark = pytest.mark.anyio

KEY = {"X-API-Key": "test-key"}
ONE = {"b_no": "1248100998", "name": "삼성전자", "address": "경기 수원시 영통구 삼성로 129"}
PAID = Lookup(**ONE)
ROWS = [Lookup(f"12481{place:05d}", f"상호, {place}", f"서울 중구 {place}" if place % 5 else "") for place in range(40)]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def client(service: FakeService) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=service), base_url="http://fake", headers=KEY)


def csv_of(rows: list[Lookup]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows([Lookup._fields, *rows])
    return text.getvalue().encode("utf-8")


def form(content: bytes, filename: str = "lookups.csv", kind: str = "text/csv") -> dict[str, Any]:
    return {"files": {"file": (filename, content, kind)}}


def job_path(created: httpx.Response) -> str:
    return f"/batch/{quote(str(created.json()['job_id']), safe='')}"


async def finished(service: FakeService, **query: int) -> dict[str, Any]:
    """Upload the rows and poll until the job is done."""
    async with client(service) as asking:
        path = job_path(await asking.post("/batch", **form(csv_of(ROWS))))
        for _ in range(10):
            record: dict[str, Any] = (await asking.get(path, params=query)).json()
            if record["status"] == service.dialect.done:
                return record
    raise AssertionError("the job does not end")


def raw_verify(base_url: str) -> tuple[socket.socket, bytes]:
    """A connection, and the bytes of a verify request to send on it."""
    host, port = base_url.removeprefix("http://").split(":")
    request = httpx.Request("POST", f"{base_url}/verify", headers=KEY, json=ONE)
    head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    message = f"POST /verify HTTP/1.1\r\n{head}\r\n".encode() + request.content
    return socket.create_connection((host, int(port)), timeout=10), message


def until(holds: Callable[[], bool]) -> None:
    """Wait for another thread, which has ten seconds."""
    for _ in range(2000):
        if holds():
            return
        time.sleep(0.005)
    raise AssertionError("it did not come to pass")


async def test_a_lookup_is_answered_from_its_record_and_paid_each_time() -> None:
    service = FakeService(quota=10, prefix="/api")
    async with client(service) as asking:
        reply = await asking.post("/api/verify", json=ONE)
        for body in ({"b_no": "1248100998"}, {"b_no": "1248100998", "name": None}, {"b_no": "1248100998", "name": ""}):
            await asking.post("/api/verify", json=body)
        assert (await asking.post("/verify", json=ONE)).status_code == 404
    assert (reply.status_code, reply.json()) == (200, verdict(**ONE))
    assert service.paid == {PAID: 1, ("1248100998", "", ""): 3}
    assert (service.used, service.paid_total, service.paid_again, service.requests["verify"]) == (4, 4, 2, 4)


UNREADABLE: list[tuple[int, dict[str, Any]]] = [
    *[(400, form(content)) for content in (b"", b"number,name\n1248100998,x\n", b"b_no,b_no\n1,2\n")],
    (400, form("b_no,name\n1248100998,상호\n".encode("cp949"))),
    (400, form(b'[{"b_no": 1248100998}]', "rows.json")),
    (400, {"files": {"other": ("lookups.csv", csv_of(ROWS), "text/csv")}}),
    (415, {"json": [ONE]}),
    (413, form(csv_of(ROWS))),
]
NO_LOOKUP = {
    b"{": 400,
    b"[]": 422,
    b'{"b_no": "124-81-00998"}': 422,
    b'{"b_no": 1248100998}': 422,
    b'{"b_no": "1248100998", "name": "\\ud800"}': 422,
    b'{"b_no": "1248100998", "name": "' + b"x" * 5000 + b'"}': 413,
}


async def test_what_is_not_understood_or_too_large_is_not_paid() -> None:
    service, json_type = FakeService(max_rows=39, max_bytes=5000), {"Content-Type": "application/json"}
    async with client(service) as asking:
        uploads = [(await asking.post("/batch", **content)).status_code for _, content in UNREADABLE]
        lookups = [(await asking.post("/verify", content=body, headers=json_type)).status_code for body in NO_LOOKUP]
    assert uploads == [status for status, _ in UNREADABLE]
    assert lookups == list(NO_LOOKUP.values())
    assert (service.paid_total, len(service.jobs)) == (0, 0)
    assert [upload.job_id for upload in service.uploads] == [None]


async def test_a_batch_beyond_the_quota_is_refused_whole_or_taken_in_part() -> None:
    service = FakeService(quota=30, quota_retry_after="86400")
    async with client(service) as asking:
        refused = await asking.post("/batch", **form(csv_of(ROWS)))
    assert (refused.status_code, refused.headers["Retry-After"], service.paid_total) == (429, "86400", 0)
    service.batch_quota = "partial"
    results = (await finished(service, preview=100))["results"]
    assert list(service.paid.elements()) == ROWS[:30]
    assert [item["row_id"] for item in results if "error" in item] == list(range(30, 40))
    assert [item["b_no"] for item in results if "biz_status" in item] == [row.b_no for row in ROWS[:30]]


async def test_a_multipart_body_that_ends_early_starts_nothing() -> None:
    body = b'--edge\r\nContent-Disposition: form-data; name="file"; filename="a.csv"\r\n\r\n' + csv_of(ROWS[:1])
    body += b"\r\n--edge--"
    service = FakeService()
    headers = {"Content-Type": 'multipart/form-data; boundary="edge"'}
    async with client(service) as asking:
        for content in [*(body[:end] for end in range(len(body))), body + b"x", body + b"\r\n\r\n", b"x" + body]:
            assert (await asking.post("/batch", content=content, headers=headers)).status_code == 400, content
        assert (service.paid_total, len(service.jobs)) == (0, 0)
        for content in (body, body + b"\r\n"):
            assert (await asking.post("/batch", content=content, headers=headers)).status_code == 200
    assert service.paid == {ROWS[0]: 2}


EVERY = {
    "plain": Dialect(),
    "by echo": Dialect(echo="under", echo_under="request", echo_number="biz_no", row_key=None, order="shuffled"),
    "by risk": Dialect(
        echo="flat", hyphens=True, job_ids="odd", order="risk", progress="nested", error="text", me="text"
    ),
    **DIALECTS,
}


def listed(dialect: Dialect, record: Any) -> list[dict[str, Any]]:
    for key in dialect.results:
        record = record[key]
    found: list[dict[str, Any]] = record
    return found


@pytest.mark.parametrize("name", EVERY)
async def test_in_every_dialect_each_result_is_the_answer_of_its_row(name: str) -> None:
    dialect = EVERY[name]
    service = FakeService(dialect=dialect)
    async with client(service) as asking:
        created = await asking.post("/batch", **form(csv_of(ROWS)))
        records = [(await asking.get(job_path(created), params={"preview": 1000})).json() for _ in range(6)]
    assert created.status_code == dialect.created
    assert [record["status"] for record in records] == [*dialect.words, *["done"] * 6][:6]
    results = listed(dialect, records[-1])
    assert len(results) == len(ROWS)
    for place, item in enumerate(results):
        if dialect.row_key is not None:
            row = ROWS[int(item[dialect.row_key]) - dialect.row_base]
        elif dialect.echo != "none":
            echo = item[dialect.echo_under] if dialect.echo == "under" else item
            row = next(row for row in ROWS if row.b_no == echo[dialect.echo_number].replace("-", ""))
        else:
            row = ROWS[place]
        fields = item if dialect.answer_under is None else item[dialect.answer_under]
        for field, value in verdict(*row).items():
            assert (fields.get(field) or None) == (value or None), field
    if dialect.order == "risk":
        risks = [item["bounce_prob"] or 0 for item in results]
        assert risks == sorted(risks, reverse=True)


def struck(what: faults.Act, kind: str = "verify") -> FakeService:
    return FakeService(faults=Faults(Fault(kind, what, at=1)))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # trio, of a body cut short
@pytest.mark.parametrize(("place", "paid"), [("before", 0), ("in", 0), ("after", 1), ("reply", 1)])
async def test_in_process_a_reset_is_an_exception_that_passes_through(place: Any, paid: int) -> None:
    for kind in ("verify", "batch"):
        service = struck(faults.Reset(place), kind)
        async with client(service) as asking:
            with pytest.raises(BrokenConnectionError):
                await asking.post(f"/{kind}", **({"json": ONE} if kind == "verify" else form(csv_of(ROWS[:1]))))
        assert (service.paid_total, service.requests[kind], service.in_flight) == (paid, 1, 0)


def test_an_impatient_client_pays_all_the_same() -> None:
    service = struck(faults.Delay(3600))
    with serve(service) as base_url:
        connection, request = raw_verify(base_url)
        with connection:
            connection.sendall(request)
            until(lambda: service.in_flight == 1)
        httpx.get(f"{base_url}/me", headers=KEY)  # by now the service knows that it has left
        until(lambda: service.in_flight == 1)  # the reply to this one is out before it is over
        assert service.paid_total == 0
        service.faults.release()
        until(lambda: service.in_flight == 0)
    assert service.paid_total == 1


async def test_results_can_be_partial_reordered_given_twice_or_no_text() -> None:
    async def hit(*acts: faults.Act) -> list[int]:
        record = await finished(FakeService(faults=Faults(*(Fault("job", act) for act in acts))), preview=40)
        return [item["row_id"] for item in record["results"]]

    whole = list(range(40))
    assert await hit() == whole
    assert await hit(faults.Partial(0.25)) == whole[:10]
    assert await hit(faults.Duplicated(2)) == [*whole, 0, 1]
    mixed = await hit(faults.Reordered(seed=3))
    assert (mixed != whole, sorted(mixed)) == (True, whole)
    assert await hit(faults.Repeated(2)) == [row for row in whole[:20] for _ in range(2)], "no more than the preview"
    assert await hit(faults.ShiftedKeys(3)) == [*whole[3:], 0, 1, 2]
    scattered = await hit(faults.Missing(0.1))
    assert (len(scattered), set(scattered) < set(whole)) == (36, True)
    assert await hit(faults.Missing(0.1)) == scattered, "the same rows at each poll"
    assert await hit(faults.Missing(0.1, renumbered=True)) == whole[:36]
    async with client(FakeService(faults=Faults(Fault("verify", faults.InvalidByte(), at=2)))) as asking:
        true, broken = [(await asking.post("/verify", json=ONE)).content for _ in range(2)]
    assert [(a >= 0xC0, b) for a, b in zip(true, broken, strict=True) if a != b] == [(True, 0xFF)]


def test_a_response_can_be_sent_twice_on_one_connection() -> None:
    service = FakeService(faults=Faults(Fault("verify", faults.Twice(), at=1)))
    with serve(service) as base_url:
        connection, request = raw_verify(base_url)
        with connection:
            connection.sendall(request)
            seen = b""
            while seen.count(b"HTTP/1.1 200 OK") < 2 or not seen.endswith(b"}"):
                seen += connection.recv(65_536)
            connection.sendall(request)
            assert connection.recv(65_536).startswith(b"HTTP/1.1 200 OK")
    _, first, second = seen.split(b"HTTP/1.1 200 OK")
    assert first == second
    assert json.loads(first.split(b"\r\n\r\n")[1]) == verdict(**ONE)
    assert service.paid_total == 2


async def test_faults_hit_the_requests_that_they_name() -> None:
    async def hits(count: int = 12, **conditions: Any) -> list[int]:
        service = FakeService(faults=Faults(Fault("verify", faults.Status(500), **conditions), seed=5))
        async with client(service) as asking:
            await asking.get("/me")
            replies = [await asking.post("/verify", json=ONE) for _ in range(count)]
        assert service.paid_total == sum(reply.status_code == 200 for reply in replies)
        return [number for number, reply in enumerate(replies, 1) if reply.status_code == 500]

    assert await hits(at=3) == [3]
    assert await hits(at={1, 5}) == [1, 5]
    assert await hits(every=5) == [5, 10]
    assert await hits(every=2, times=2) == [2, 4]
    assert await hits(when=lambda asked: asked.kind == "me") == []
    some = await hits(200, share=0.1)
    assert some == await hits(200, share=0.1)
    assert 5 < len(some) < 40


STORM: dict[str, tuple[faults.Act, bool]] = {
    "before": (faults.Reset("before"), False),
    "in": (faults.Reset("in"), False),
    "after": (faults.Reset("after"), True),
    "reply": (faults.Reset("reply"), True),
    "truncate": (faults.Truncate(), True),
    "refuse": (faults.Status(503), False),
    "refuse at once": (faults.Status(503, read=False), False),
    "lose": (faults.Status(503, paid=True), True),
    "hang": (faults.Hang(), False),
    "hang paid": (faults.Hang(paid=True), True),
    "delay": (faults.Delay(0.05), True),
    "delay paid": (faults.Delay(0.05, after_paying=True), True),
    "redirect": (faults.Redirect("http://elsewhere.example/"), False),
}


def asked_for(name: str) -> Callable[[FakeRequest], bool]:
    return lambda asked: header(asked.scope, b"x-fault") == name.encode()


def test_in_a_storm_of_faults_exactly_what_was_taken_is_counted() -> None:
    service = FakeService(faults=Faults(*(Fault("*", act, when=asked_for(name)) for name, (act, _) in STORM.items())))

    def work(seed: int) -> list[Lookup]:
        dice, paid = Random(seed), []
        with httpx.Client(base_url=base_url, headers=KEY) as asking:
            for number in range(8):
                fault = dice.choice([*STORM, "none", "none"])
                rows = [Lookup(f"{seed:05d}{number:02d}{row:03d}", "x" * dice.choice([1, 9000])) for row in range(20)]
                rows = rows[: dice.choice([1, 20])]
                body = {"json": rows[0]._asdict()} if len(rows) == 1 else form(csv_of(rows))
                path, patience = "/verify" if len(rows) == 1 else "/batch", 0.5 if "hang" in fault else 30
                with suppress(httpx.TransportError):
                    asking.post(path, headers={"X-Fault": fault}, timeout=patience, **body)
                paid += rows if fault == "none" or STORM[fault][1] else []
        return paid

    with serve(service) as base_url, ThreadPoolExecutor(6) as threads:
        paid = [lookup for lookups in threads.map(work, range(6)) for lookup in lookups]
        until(lambda: service.in_flight == 0)
    assert service.paid == Counter(paid)
    assert (service.paid_again, service.faults.hits > 25) == (0, True)


def test_the_process_journals_what_is_paid_before_it_replies(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bansong.testing", "--api-key", "other-key", "--quota", "3", "--dialect", "terse"]
    with subprocess.Popen(
        [*command, "--journal", "paid.jsonl"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        base_url = process.stdout.readline().strip()
        with httpx.Client(base_url=base_url, headers={"X-API-Key": "other-key"}) as asking:
            assert asking.post("/verify", json=ONE).status_code == 200
            created = asking.post("/batch", **form(csv_of(ROWS[:2])))
            lines = [json.loads(line) for line in (tmp_path / "paid.jsonl").read_text(encoding="utf-8").splitlines()]
            assert asking.post("/verify", json=ONE).status_code == 429
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=30)[1] == ""
    assert (process.returncode, created.status_code) == (130, DIALECTS["terse"].created)
    assert [(line["b_no"], line["name"], line["address"]) for line in lines] == [PAID, *ROWS[:2]]
    assert [line["job_id"] for line in lines] == [None, *[created.json()["job_id"]] * 2]


@pytest.mark.process
def test_the_page_for_users_works_as_it_is_written(tmp_path: Path) -> None:
    page = (Path(__file__).parent.parent / "docs" / "testing.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.S)
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n", encoding="utf-8")
    for number, block in enumerate(blocks):
        name = "conftest.py" if block.startswith("pytest_plugins") else f"test_block_{number}.py"
        (tmp_path / name).write_text(block, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", tmp_path], cwd=tmp_path, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{4 + len(DIALECTS)} passed" in done.stdout


FIXTURES = """
import os
from pathlib import Path

import bansong as bs

def test_the_service(bansong_service, bansong_state):
    assert bs.verify("124-81-00998", engine="verify").row_status == "verified"
    assert bansong_service.paid_total == 1
    assert list(bansong_state.glob("*.sqlite"))

def test_the_service_again(bansong_service):
    assert bs.verify("124-81-00998", engine="verify").row_status == "verified"  # not from the ledger

def test_the_tax_authority(bansong_nts):
    bansong_nts.statuses = {"1248100998": "closed"}
    assert bs.fetch_status(["124-81-00998"])["biz_status"].item() == "closed"
    assert "BANSONG_BASE_URL" not in os.environ and "BANSONG_LEDGER" not in os.environ
"""


@pytest.mark.process
def test_the_fixtures_are_there_when_asked(tmp_path: Path) -> None:
    (tmp_path / "test_job.py").write_text(FIXTURES, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n", encoding="utf-8")
    (own := tmp_path / "own").mkdir()
    mine = {"BANSONG_BASE_URL": "http://127.0.0.1:9", "BANSONG_LEDGER": str(own / "mine.sqlite")}

    def run(*words: str) -> str:
        command = [sys.executable, "-m", "pytest", "-q", *words]
        done = subprocess.run(command, cwd=tmp_path, env=os.environ | mine, capture_output=True, text=True, timeout=100)
        return done.stdout

    assert "fixture 'bansong_service' not found" in run()
    assert "3 passed" in run("-p", "bansong.testing.plugin")
    assert list(own.iterdir()) == []


def test_the_fake_shares_nothing_with_the_client() -> None:
    import bansong.testing

    for path in Path(bansong.testing.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [name.name for name in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                assert not name.startswith(("bansong.client", "bansong.run", "pydantic", "asyncio")), path
                assert not name.startswith("bansong.") or name.startswith("bansong.testing"), path
