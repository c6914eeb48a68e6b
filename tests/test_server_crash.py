"""A server that is killed: what it accepted is done after its restart, each row once; nothing else is left."""

from __future__ import annotations

import os
import random
import socket
import time
from pathlib import Path
from threading import Timer
from typing import Any
from urllib.parse import urlsplit

import httpx
import polars as pl
import pytest

from serving import HTTP, ServedProcess, make_key, rows_of

KEPT = {"queued", "running", "done"}


def table(rows: int, first: int) -> bytes:
    """Rows of businesses, with every tenth number none."""
    places = pl.DataFrame({"place": range(first, first + rows)})
    number = (
        pl.when(pl.col("place") % 10 == 0).then(pl.lit("7")).otherwise(pl.format("10{}", 80_000_000 + pl.col("place")))
    )
    name = pl.format("상점 {}", "place").alias("name")
    return (
        places.select(number.alias("b_no"), name, address=pl.format("서울 강남구 테헤란로 {}", "place"))
        .write_csv()
        .encode()
    )


class Crashing:
    """A server that is killed and started again, and a client that repeats what it got no answer to."""

    def __init__(self, folder: Path, rows: int) -> None:
        self.db = folder / "db.sqlite"
        self.process = ServedProcess(self.db)
        self.url = self.process.start()
        self.key = make_key(self.db, plan="enterprise", quota=10_000_000)
        self.rows = rows
        self.accepted: dict[str, int] = {}

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        headers = {"X-API-Key": self.key} | more.pop("headers", {})
        return HTTP.request(method, f"{self.url}{path}", headers=headers, timeout=60, **more)

    def upload(self, number: int) -> bool:
        """Send upload ``number``; whether it was answered."""
        content = table(self.rows, number * self.rows)
        try:
            answer = self.ask(
                "POST",
                "/batch",
                files={"file": ("in.csv", content, "text/csv")},
                headers={"Idempotency-Key": f"upload-{number}"},
            )
        except httpx.TransportError:
            return False
        assert answer.status_code == 200, answer.text
        self.accepted[answer.json()["job_id"]] = number
        return True

    def state(self, job_id: str) -> str:
        answer = self.ask("GET", f"/batch/{job_id}?preview=0")
        assert answer.status_code == 200
        return str(answer.json()["status"])

    def settle(self, uploads: int) -> None:
        """Hold what became of so many uploads against what must have: each one job, each row once, paid once."""
        for number in range(uploads):
            assert self.upload(number)
        deadline = time.monotonic() + 120
        while any(self.state(job_id) != "done" for job_id in self.accepted):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert sorted(self.accepted.values()) == list(range(uploads))
        answered = self.rows - sum(place % 10 == 0 for place in range(self.rows))
        for job_id, number in self.accepted.items():
            results = self.ask("GET", f"/batch/{job_id}?preview={self.rows}").json()["results"]
            assert sorted(row["row_id"] for row in results) == list(range(self.rows))
            assert sum(row["error"] is None for row in results) == answered
            by_row = {row["row_id"]: row["b_no"] for row in results}
            assert by_row[1] == f"10{80_000_000 + number * self.rows + 1}"
        assert self.ask("GET", "/me").json()["quota"]["used"] == answered * uploads
        files = self.db.parent / "db.sqlite.files"
        assert {path.name for path in (files / "jobs").iterdir()} == set(self.accepted)
        assert list((files / "uploads").iterdir()) == []
        names = {path.name for path in (files / "jobs").rglob("*.*")}
        assert names == {"records.parquet", "results.parquet"}


def half_an_upload(server: Crashing) -> socket.socket:
    """A connection over which half an upload came, which the server has begun to store."""
    place = urlsplit(server.url)
    assert place.hostname is not None
    connection = socket.create_connection((place.hostname, place.port or 80))
    head = f"POST /batch HTTP/1.1\r\nHost: x\r\nX-API-Key: {server.key}\r\nContent-Length: 100000\r\n"
    part = '--b\r\nContent-Disposition: form-data; name="file"; filename="in.csv"\r\n\r\nb_no\n1248100998\n'
    connection.sendall(f"{head}Content-Type: multipart/form-data; boundary=b\r\n\r\n{part}".encode())
    uploads = server.db.parent / "db.sqlite.files" / "uploads"
    while not list(uploads.iterdir()):
        time.sleep(0.005)
    return connection


@pytest.mark.crash
def test_a_killed_server_ends_what_it_accepted(tmp_path: Path) -> None:
    """Killed with one upload coming in, one job running and one waiting: the jobs end, the upload leaves nothing."""
    server = Crashing(tmp_path, 1_500)
    try:
        assert all(server.upload(number) for number in range(2))
        with half_an_upload(server):
            server.process.kill()
        states = {state for (state,) in rows_of(server.db, "SELECT state FROM jobs")}
        assert states <= KEPT
        server.url = server.process.start()
        server.settle(2)
    finally:
        server.process.kill()


@pytest.mark.crash
def test_killed_at_any_moment(tmp_path: Path) -> None:
    """Killed again and again while uploads come in and jobs wait, run and are published: each is one job in the end."""
    moments, chance = int(os.environ.get("CRASH_MOMENTS", "20")), random.Random(7)
    server = Crashing(tmp_path, 10_000)
    met = {"uploading": 0, "accepted": 0, "running": 0, "publishing": 0}
    try:
        for number in range(moments):
            moment = list(met)[number % len(met)]
            if moment == "uploading":
                strike = Timer(chance.uniform(0.05, 1.5), server.process.kill)
                strike.start()
                server.upload(number)
                strike.join()  # an upload may be answered first: the stroke is meant for this server, not the next
            else:
                assert server.upload(number)
                wait_for(server, moment)
                time.sleep(chance.uniform(0, 0.2) if moment == "running" else 0)
            server.process.kill()
            unfinished = rows_of(server.db, "SELECT 1 FROM jobs WHERE state != 'done'")
            met[moment] += bool(unfinished) or moment == "uploading"
            server.url = server.process.start()
        assert all(met.values()), met
        server.settle(moments)
    finally:
        server.process.kill()


def wait_for(server: Crashing, moment: str) -> None:
    """Return when the last job is at a moment of its life, as its files show it."""
    jobs = server.db.parent / "db.sqlite.files" / "jobs"
    sign = {"accepted": "records.parquet", "running": "parts", "publishing": "*results.parquet"}[moment]
    newest = next(reversed(server.accepted))
    deadline = time.monotonic() + 20
    while not list((jobs / newest).glob(sign)):
        if time.monotonic() > deadline or (moment == "running" and list((jobs / newest).glob("results.parquet"))):
            return
