"""A server that is killed: what it accepted is done after its restart, each row once; nothing is lost or paid twice."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from contextlib import closing
from pathlib import Path
from threading import Timer
from typing import Any

import httpx
import polars as pl
import pytest

import bansong as bs
from bansong.reference.nts import NtsKey
from bansong.server import keys as key_table
from bansong.server.job_files import folder_bytes
from bansong.server.store import open_server_file
from bansong.testing import FakeNts, serve
from bansong.watch import store as watch_store
from hooks import OK, receiving
from serving import NUMBER, Account, Served, ServedProcess, line_from, make_key, rows_of, wait_until

pytestmark = pytest.mark.crash


class Killed:
    """A server as a process, and an account that goes on after its restart."""

    def __init__(self, folder: Path, *options: object, env: dict[str, str] | None = None) -> None:
        self.process = ServedProcess(folder / "db.sqlite", *options, env=env)
        self.secret = make_key(self.process.db, plan="enterprise", quota=10_000_000)
        self.start()

    def start(self) -> None:
        self.server = Served(self.process.start(), self.process.db, None)
        self.key = Account(self.server, self.secret)

    def again(self) -> None:
        self.process.kill()
        self.start()


def table(rows: int, first: int) -> bytes:
    """Rows of businesses, with every tenth number none."""
    places = pl.DataFrame({"place": range(first, first + rows)})
    number = pl.format("10{}", 80_000_000 + pl.col("place"))
    number = pl.when(pl.col("place") % 10 == 0).then(pl.lit("7")).otherwise(number).alias("b_no")
    return places.select(number, address=pl.format("서울 강남구 테헤란로 {}", "place")).write_csv().encode()


class Uploads(Killed):
    """A client that repeats what it got no answer to, and what became of its jobs."""

    def __init__(self, folder: Path, rows: int) -> None:
        super().__init__(folder)
        self.rows, self.sent, self.accepted, self.deleted = rows, 0, dict[str, int](), set[str]()

    def upload(self, number: int) -> bool:
        """Send upload ``number``; whether it was answered."""
        try:
            once = {"Idempotency-Key": f"upload-{number}"}
            answer = self.key.upload(table(self.rows, number * self.rows), headers=once)
        except httpx.TransportError:
            return False
        assert answer.status_code == 200, answer.text
        self.accepted[answer.json()["job_id"]] = number
        return True

    def settle(self) -> None:
        """Each upload is one job, each row there once and paid once; of deleted ones nothing is left."""
        assert all(self.upload(number) for number in range(self.sent))
        assert sorted(self.accepted.values()) == list(range(self.sent))
        answered = self.rows - self.rows // 10
        for job_id, number in self.accepted.items():
            if job_id in self.deleted:
                assert self.key.ask("GET", f"/batch/{job_id}").status_code == 404
                continue
            results = {row["row_id"]: row for row in self.key.until(job_id, preview=self.rows)["results"]}
            assert sorted(results) == list(range(self.rows))
            assert sum(row["error"] is None for row in results.values()) == answered
            assert results[1]["b_no"] == f"10{80_000_000 + number * self.rows + 1}"
        kept = set(self.accepted) - self.deleted
        assert len(kept) * answered <= self.key.used() <= self.sent * answered
        jobs = self.server.files / "jobs"
        assert {path.name for path in jobs.iterdir()} == kept
        assert {path.name for path in jobs.rglob("*.*")} == {"records.parquet", "results.parquet"}
        assert list((self.server.files / "uploads").iterdir()) == []
        on_disk = sum(map(folder_bytes, jobs.iterdir()))
        wait_until(lambda: self.key.get("/me")["in_use"]["disk_bytes"] == on_disk)

    def half_an_upload(self) -> None:
        head = f"POST /batch HTTP/1.1\r\nHost: x\r\nX-API-Key: {self.secret}\r\nContent-Length: 100000\r\n"
        part = '--b\r\nContent-Disposition: form-data; name="file"; filename="in.csv"\r\n\r\nb_no\n1248100998\n'
        with line_from(self.server) as line:
            line.sendall(f"{head}Content-Type: multipart/form-data; boundary=b\r\n\r\n{part}".encode())
            wait_until(lambda: list((self.server.files / "uploads").iterdir()))
            self.process.kill()

    def reached(self, moment: str) -> None:
        """Return when the last job is at a moment of its life, as its files show it."""
        sign = {"accepted": "records.parquet", "running": "parts", "publishing": "*results.parquet"}[moment]
        job, until = self.server.files / "jobs" / list(self.accepted)[-1], time.monotonic() + 20
        while not list(job.glob(sign)) and not list(job.glob("results.parquet")) and time.monotonic() < until:
            pass


def test_killed_at_any_moment(tmp_path: Path) -> None:
    """Again and again while uploads come in and jobs wait, run, are published and deleted."""
    moments, chance = int(os.environ.get("CRASH_MOMENTS", "10")), random.Random(7)
    client, met = Uploads(tmp_path, 3_000), dict.fromkeys(("uploading", "accepted", "running", "publishing", "half"), 0)
    for number in range(moments):
        moment = list(met)[number % len(met)]
        client.sent += 1
        strike = Timer(chance.uniform(0.05, 0.6), client.process.kill)
        if moment == "uploading":
            strike.start()
            client.upload(number)
            strike.join()  # an upload may be answered first: the stroke is meant for this server, not the next
        elif client.upload(number) and moment == "half":
            client.half_an_upload()
        else:
            client.reached(moment)
            time.sleep(chance.uniform(0, 0.2) if moment == "running" else 0)
        client.again() if client.process.process and client.process.process.returncode is None else client.start()
        met[moment] += 1
    strike = Timer(chance.uniform(0, 0.1), client.process.kill)
    strike.start()
    for job_id in list(client.accepted)[::3]:
        try:
            client.key.ask("DELETE", f"/batch/{job_id}")
        except httpx.TransportError:
            break
    strike.join()
    client.start()
    present = {job["job_id"] for job in client.key.get("/batch?limit=100")["jobs"]}
    client.deleted = set(client.accepted) - present
    client.settle()
    assert all(met.values())
    client.process.kill()


def test_every_answered_lookup_is_counted(tmp_path: Path) -> None:
    """After SIGKILL in the middle of load the file has counted at least each lookup whose answer somebody got."""
    killed, got = Killed(tmp_path), list[bytes]()

    async def one_after_the_other(first: int) -> None:
        async with httpx.AsyncClient(headers={"X-API-Key": killed.secret}, trust_env=False) as client:
            for number in range(first, first + 1_000):
                try:
                    body = {"b_no": f"{1_000_000_000 + number}"}
                    answer = await client.post(f"{killed.server.url}/verify", json=body)
                except httpx.HTTPError:
                    return  # it is killed
                got.append(answer.content)
                if len(got) == 40:
                    killed.process.kill()

    async def load() -> None:
        await asyncio.gather(*(one_after_the_other(worker * 1_000) for worker in range(16)))

    asyncio.run(load())
    ((counted,),) = rows_of(killed.server.db, "SELECT used FROM usage")
    assert 40 <= len(got) <= counted <= len(got) + 16
    killed.start()
    assert killed.key.used() == counted
    killed.process.stop()


def test_no_status_is_lost_that_was_answered_with(tmp_path: Path) -> None:
    """Nothing of it is asked again, and no log or file has the tax authority's key."""
    secret, numbers = "kEy+of/the=portal%2Bwith+all", [f"{3_000_000_000 + number}" for number in range(5)]
    fake = FakeNts(NtsKey(secret).reveal(), dict.fromkeys(numbers, "closed"))
    with serve(fake) as url:
        env = {"BANSONG_NTS_KEY": secret, "BANSONG_NTS_URL": url, "BANSONG_LOG": "debug"}
        killed = Killed(tmp_path, "--status", "nts", env=env)
        for kill in range(3):
            for number in numbers[kill : kill + 3]:
                assert killed.key.verify(number).json()["biz_status"] == "closed", killed.process.state()
            killed.process.kill()
            if kill < 2:
                killed.start()
    assert (fake.numbers, fake.asked_again) == (5, 0)
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    written += [killed.process.state().encode(), *(path.encode() for path in fake.urls)]
    for form in {secret, NtsKey(secret).reveal(), *NtsKey(secret)._forms}:
        assert not [found for found in written if form.encode() in found]
    (store,) = tmp_path.rglob("statuses.sqlite")
    assert (store.parent.name, store.stat().st_mode & 0o777) == ("db.sqlite.files", 0o600)


def test_a_notice_that_was_sent_and_not_acknowledged_comes_again(tmp_path: Path) -> None:
    """A server killed while a receiver has the notice sends the same one when it is started again."""
    db, file, source = tmp_path / "db.sqlite", tmp_path / "closures.jsonl", tmp_path / "source.csv"
    source.write_text(f"사업자등록번호,사업자상태\n{NUMBER},폐업자\n", "utf-8")
    bs.build_registry([source], tmp_path / "registry.parquet")
    with receiving(lambda _: None) as receiver:
        make_key(db)
        with closing(open_server_file(db)) as file_:
            (key,) = key_table.list_keys(file_)
            signing = key_table.set_webhook(file_, key.id, receiver.url)
            watch_store.add(file_, key.id, watch_store.Business(NUMBER, "가"), time.time())
            file_.execute("UPDATE watches SET biz_status = 'active', grade = 'B'")
        options = ("--registry", tmp_path / "registry.parquet", "--notices", file, "--webhook-network", "127.0.0.1")
        process = ServedProcess(db, *options)
        process.start()
        wait_until(lambda: receiver.received)
        process.kill()
        receiver.answer = lambda _: OK
        receiver.hung.set()
        process.start()
        undelivered = "SELECT count(*) FROM deliveries WHERE delivered IS NULL"
        wait_until(lambda: len(receiver.received) > 1 and rows_of(db, undelivered) == [(0,)])
        assert process.stop() == 0
    first, second = receiver.received
    assert (first.notice, first.headers["X-Bizverify-Delivery"]) == (second.notice, first.notice["id"])
    assert second.is_signed(str(signing), time.time(), 300)
    told: list[dict[str, Any]] = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    assert (rows_of(db, "SELECT count(*) FROM notices"), {line["id"] for line in told}) == (
        [(1,)],
        {first.notice["id"]},
    )
