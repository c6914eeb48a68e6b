"""Batch jobs of the server: accepted whole or not at all, answered as the local engine answers, kept for a while."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx
import polars as pl
import pytest

import bansong as bs
from bansong.engine.local import LocalEngine
from bansong.errors import StoreError
from bansong.server import job_files as isolated_reader
from bansong.server import job_files as reading_slots
from bansong.server import job_files as results
from bansong.server import job_table
from bansong.server import jobs as worker
from bansong.server import keys as key_table
from bansong.server.engines import RegistrySnapshot
from bansong.server.job_files import merge_slices
from bansong.server.jobs import JobAcceptance
from bansong.server.settings import Clock
from bansong.server.store import open_server_file
from serving import HTTP, Served, read_here, rows_of, served

CSV = "사업자번호,상호,주소\n124-81-00998,삼성전자,경기 수원시 영통구 삼성로 129\n12345,가게,서울\n"
HERE = "서울 강남구 테헤란로 1"
SEVEN = ("biz_status", "bounce_prob", "grade", "action", "fixed_zipcode", "fixed_address", "reasons")


@pytest.fixture
def isolated() -> None:
    """For what is about reading files in processes of their own."""


@pytest.fixture(autouse=True)
def quickly_read(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """For what is about jobs: their files are read here."""
    if "isolated" not in request.fixturenames:
        read_here(monkeypatch)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("server") / "db.sqlite") as running:
        yield running


def upload(server: Served, key: str, content: bytes | str = CSV, name: str = "in.csv", **more: Any) -> httpx.Response:
    data = content.encode() if isinstance(content, str) else content
    more["headers"] = {"X-API-Key": key, **more.get("headers", {})}
    return HTTP.post(f"{server.url}/batch", files={"file": (name, data)}, timeout=60, **more)


def look(server: Served, key: str, job_id: str, query: str = "") -> httpx.Response:
    return HTTP.get(f"{server.url}/batch/{job_id}{query}", headers={"X-API-Key": key}, timeout=60)


def until(server: Served, key: str, job_id: str, query: str = "", states: tuple[str, ...] = ("done",)) -> Any:
    """The status when the job is in one of the states."""
    deadline = time.monotonic() + 60
    while (status := look(server, key, job_id, query).json())["status"] not in states:
        assert time.monotonic() < deadline, status
        time.sleep(0.01)
    return status


def used(server: Served, key: str) -> int:
    quota = HTTP.get(f"{server.url}/me", headers={"X-API-Key": key}).json()["quota"]
    return int(quota["used"])


def people() -> pl.DataFrame:
    """Rows of every kind: a crowd at one address, one number at two, none, a total."""
    numbers = pl.Series("b_no", [f"{1_000_000_000 + place * 97}" for place in range(1_000)])
    right = numbers.to_frame().filter(pl.col("b_no").brn.is_valid())["b_no"].to_list()[:40]  # type: ignore[attr-defined]
    rows = [(number, f"상점 {place}", HERE) for place, number in enumerate(right[:20])]
    rows += [(number, None, f"부산 해운대구 우동 {place}") for place, number in enumerate(right[20:])]
    rows += [
        (right[0], "상점 0", "대전 유성구 대학로 291"),
        ("1", "가게", HERE),
        (None, "합계", None),
        (right[5], None, None),
    ]
    return pl.DataFrame(rows, schema=["사업자등록번호", "상호", "주소"], orient="row")


@pytest.mark.parametrize("kind", ["csv", "cp949", "xlsx", "json", "ndjson"])
def test_a_file_is_answered_as_the_local_engine_answers_it(server: Served, tmp_path: Path, kind: str) -> None:
    """Each kind of file gives, row for row, what `enrich` makes of it, whole-file facts included."""
    path, key = tmp_path / f"in.{kind if kind != 'cp949' else 'csv'}", server.key()
    rows = people()
    if kind == "xlsx":
        rows.write_excel(path)
    elif kind == "json":
        path.write_text(json.dumps({"rows": rows.to_dicts()}, ensure_ascii=False), encoding="utf-8")
    elif kind == "ndjson":
        rows.write_ndjson(path)
    else:
        path.write_bytes(rows.write_csv().encode("cp949" if kind == "cp949" else "utf-8"))
    bs.enrich(path, tmp_path / "out.json")
    enriched = json.loads((tmp_path / "out.json").read_bytes())
    enriched = enriched["rows"] if isinstance(enriched, dict) else enriched
    expected = [{name: row[name] for name in SEVEN} for row in enriched]
    created = upload(server, key, path.read_bytes(), path.name).json()
    assert created["total"] == rows.height == len(expected)
    status = until(server, key, created["job_id"], f"?preview={rows.height}")
    found = sorted(status["results"], key=lambda row: row["row_id"])
    assert [row["row_id"] for row in found] == list(range(rows.height))
    assert [{name: row[name] for name in SEVEN} for row in found] == [
        row | {"reasons": row["reasons"] or []} for row in expected
    ]
    assert any("address" in reason for row in found for reason in row["reasons"])
    assert [row["error"] is None for row in found] == [row["biz_status"] is not None for row in expected]


def test_a_huge_cell_is_not_echoed_whole(server: Served, tmp_path: Path) -> None:
    """Of a cell that is no number the results show the beginning and how long it is; a file of `enrich` has all."""
    key, huge = server.key(), "9" * 2_000_000
    rows = pl.DataFrame({"b_no": ["1248100998", huge, "9" * 100], "name": ["가", "나", "다"]})
    status = until(server, key, upload(server, key, rows.write_csv()).json()["job_id"], "?preview=3")
    found = {row["row_id"]: row for row in status["results"]}
    assert found[0]["b_no"] == "1248100998"
    assert found[1]["b_no"] == f"{'9' * 100}… (cut: 2000000 characters)"
    assert found[1]["error"] is not None
    assert found[2]["b_no"] == "9" * 100
    rows.write_csv(tmp_path / "in.csv")
    bs.enrich(tmp_path / "in.csv", tmp_path / "out.csv")
    written = pl.read_csv(tmp_path / "out.csv", infer_schema=False)
    assert written["b_no"].to_list() == rows["b_no"].to_list()


def test_cells_that_are_too_long_are_cut_before_the_engine_reads_them(tmp_path: Path) -> None:
    """Of each text 2,000 characters are judged, whatever the file has; a number among blanks is found all the same."""
    long = {"b_no": "1248100998" + " " * 5_000, "name": "가" * 5_000, "address": "서울 중구 세종대로 1 " + "나" * 5_000}
    rows = pl.DataFrame([long, {"b_no": "9" * 5_000, "name": "나", "address": "서울 중구 세종대로 1"}])
    rows.write_csv(tmp_path / "in.csv")
    isolated_reader.write_records(str(tmp_path / "in.csv"), str(tmp_path / "records.parquet"), 10)
    kept = pl.read_parquet(tmp_path / "records.parquet")
    assert kept["name"].str.len_chars().to_list() == [2_000, 1]
    assert kept["address"].to_list() == [long["address"][:2_000], "서울 중구 세종대로 1"]
    assert kept["b_no"].to_list() == ["1248100998", f"{'9' * 100}… (cut: 5000 characters)"]


@pytest.mark.parametrize(
    "written",
    [
        "\u200b" * 3_000 + "1248100998",
        "'" * 3_000 + "124-81-00998",
        "124" + "-" * 3_000 + "8100998",
        "1248100998." + "0" * 3_000,
    ],
)
def test_a_number_in_a_cell_that_is_too_long_stays_that_number(written: str) -> None:
    """Whatever the rules of business numbers read as one is cut to no other: the row would be answered as without."""
    rows = pl.LazyFrame({"b_no": [written]})
    assert isolated_reader.shorten_cells(rows).collect()["b_no"].to_list() == ["1248100998"]


@pytest.mark.parametrize("written", ["9" * 3_000, "9" * 1_500 + "-" * 1_500 + "번", "가" * 3_000, "1" + "-" * 3_000])
def test_the_reason_of_a_number_that_was_cut_is_that_of_the_whole_cell(written: str, tmp_path: Path) -> None:
    """A cell of 3,000 digits is too long, as `enrich` says of it: what marks the cut are not letters of the cell."""
    whole = bs.LocalEngine().verify(pl.LazyFrame({"b_no": [written]})).collect()["row_note"].item()
    pl.DataFrame({"b_no": [written, "1248100998"], "name": ["가", "나"]}).write_csv(tmp_path / "in.csv")
    isolated_reader.write_records(str(tmp_path / "in.csv"), str(tmp_path / "records.parquet"), 10)
    kept = bs.LocalEngine().verify(pl.scan_parquet(tmp_path / "records.parquet")).collect()
    assert kept["row_note"].to_list() == [whole, None]


@pytest.mark.parametrize("blanks", [" ", "\n", "\u3000"])
def test_blanks_do_not_cut_off_what_a_cell_says(blanks: str) -> None:
    """Before, the unit of such an address fell away, and the corrected one lacked it without a word."""
    many = blanks * 3_000
    rows = pl.LazyFrame({"b_no": ["1248100998"], "address": [f"{many}서울 중구 세종대로 1{many}101호{many}"]})
    assert isolated_reader.shorten_cells(rows).collect()["address"].to_list() == ["서울 중구 세종대로 1 101호"]


def test_the_highest_risk_comes_first(server: Served) -> None:
    """Results are ordered by risk, those without one last; `preview` says how many, ten by default."""
    key = server.key()
    job_id = upload(server, key, people().write_csv()).json()["job_id"]
    status = until(server, key, job_id, "?preview=1000")
    risks = [row["bounce_prob"] for row in status["results"]]
    assert len(risks) == status["total"] == status["processed"] == people().height
    known = [risk for risk in risks if risk is not None]
    assert known == sorted(known, reverse=True)
    assert risks == known + [None] * (len(risks) - len(known))
    assert sum(status["grades"].values()) == status["total"]
    assert status["grades"]["none"] == len(risks) - len(known)
    assert status["progress"] == 1
    for query, shown in (("", 10), ("?preview=0", 0), ("?preview=3", 3), ("?preview=999999999999", len(risks))):
        assert look(server, key, job_id, query).json()["results"] == status["results"][:shown]
    for wrong in ("-1", "x", "1.5", "", "9" * 30, "٣"):
        answer = look(server, key, job_id, f"?preview={wrong}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")


def test_results_that_are_gone_are_told_before_the_answer_begins(server: Served) -> None:
    """Results that are damaged are 500 and such as are gone 404 with the remedy, not an answer that breaks off."""
    key = server.key()
    job_id = upload(server, key).json()["job_id"]
    until(server, key, job_id)
    results = server.db.parent / "db.sqlite.files" / "jobs" / job_id / "results.parquet"
    results.write_bytes(b"PAR1" * 30)
    answer = look(server, key, job_id)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal")
    results.unlink()
    answer = look(server, key, job_id)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    assert "send the file again" in answer.json()["error"]["message"]
    assert look(server, key, job_id, "?preview=0").status_code == 200


def test_a_slow_reader_holds_few_results(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are rendered as they are read: of what a client asked for and does not take, most is never made."""
    key, rendered = server.key(quota=20_000), list[int]()
    job_id = upload(server, key, "b_no\n" + "1248100998\n" * 20_000).json()["job_id"]
    until(server, key, job_id)
    items = results.render_items
    monkeypatch.setattr(results, "render_items", lambda *given: (rendered.append(given[2]), items(*given))[1])
    place = urlsplit(server.url)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.connect((place.hostname, place.port))
        head = f"GET /batch/{job_id}?preview=20000 HTTP/1.1\r\nHost: x\r\nX-API-Key: {key}\r\n\r\n"
        connection.sendall(head.encode())
        before = -1
        while len(rendered) != before or not rendered:
            before = len(rendered)
            time.sleep(0.3)
        assert max(rendered) <= 500
        assert sum(rendered) < 15_000
    assert len(look(server, key, job_id, "?preview=20000").json()["results"]) == sum(rendered[len(rendered) - 40 :])


def test_the_librarys_client_reads_a_job(server: Served) -> None:
    """The client of this library uploads, waits and reads a job of this server."""
    key = server.key()
    with server.client(key) as client:
        created = client.create_batch("b_no,name,address\n1248100998,삼성전자,경기 수원시 영통구 삼성로 129\n".encode())
        until(server, key, created.job_id)
        status = client.batch(created.job_id, preview=1)
    assert (status.state, status.total, status.done) == ("done", 1, 1)
    assert status.results[0].key == 0
    assert status.results[0].answer is not None
    assert status.results[0].answer.grade in tuple("ABCDE")


def test_a_job_is_its_keys_alone(server: Served) -> None:
    """Another key's job is answered as one that does not exist: 404, in the same words."""
    key, other = server.key(), server.key()
    job_id = upload(server, key).json()["job_id"]
    strange = look(server, other, job_id)
    unknown = look(server, other, "job_none")
    assert (strange.status_code, strange.content) == (404, unknown.content)
    assert look(server, key, job_id).status_code == 200


def test_a_file_of_no_rows_is_a_job_that_is_done(server: Served) -> None:
    """An empty list and a header alone are taken, cost nothing, and end at once."""
    key = server.key()
    for content, name in (("[]", "in.json"), ("b_no,name\n", "in.csv")):
        created = upload(server, key, content, name).json()
        status = until(server, key, created["job_id"])
        assert (created["total"], status["results"], status["grades"], status["progress"]) == (0, [], {}, 1)
    assert used(server, key) == 0


def test_a_batch_takes_all_its_quota_or_none(server: Served) -> None:
    """All rows are taken at acceptance, those without a business number given back; too few left: 429, nothing kept."""
    key = server.key(quota=3)
    assert until(server, key, upload(server, key).json()["job_id"])["status"] == "done"
    assert used(server, key) == 1
    before = rows_of(server.db, "SELECT count(*) FROM jobs")
    folders = sorted((server.db.parent / "db.sqlite.files" / "jobs").iterdir())
    refused = upload(server, key, "b_no\n1248100998\n1248100998\n1248100998\n")
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "quota_exceeded")
    assert used(server, key) == 1
    assert rows_of(server.db, "SELECT count(*) FROM jobs") == before
    assert sorted((server.db.parent / "db.sqlite.files" / "jobs").iterdir()) == folders
    assert list((server.db.parent / "db.sqlite.files" / "uploads").iterdir()) == []


def test_what_is_not_paid_looks_nothing_up(server: Served) -> None:
    """With paid=false no quota is taken or given back; a row's own words are answered; only booleans are understood."""
    key = server.key(quota=1)
    with server.client(key) as client:
        client.verify("1248100998")
    job_id = upload(server, key, params={"paid": "false"}).json()["job_id"]
    assert until(server, key, job_id)["results"][0]["biz_status"] == "unknown"
    assert used(server, key) == 1
    for name in ("paid", "offline"):
        assert upload(server, key, params={name: "maybe"}).status_code == 400


def test_an_upload_that_is_repeated_is_one_job(server: Served) -> None:
    """The same Idempotency-Key gets the same job, also when it comes twice at once; with another file, 409."""
    key, more = server.key(quota=2), {"headers": {"Idempotency-Key": "once"}}
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda _: upload(server, key, **more), range(3)))
    assert [answer.status_code for answer in answers] == [200] * 3
    assert len({answer.content for answer in answers}) == 1
    job_id = answers[0].json()["job_id"]
    until(server, key, job_id)
    assert upload(server, key, **more).content == answers[0].content
    for other in ({"content": CSV + "1\n"}, {"params": {"offline": "true"}}, {"name": "in.tsv"}):
        refused = upload(server, key, **other, **more)
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "idempotency_mismatch")
    assert used(server, key) == 1
    assert upload(server, key, headers={"Idempotency-Key": "a b"}).status_code == 400


class Held:
    """An engine's answers, held back until they are let go; the first ``failures`` of them fail."""

    def __init__(self, failures: int = 0) -> None:
        self.go = threading.Event()
        self.began = threading.Event()
        self.failures = failures
        self.live = False
        self.error: Exception = ValueError("this row is of 홍길동")
        self.asked: list[str] = []

    def answer(self, engine: LocalEngine, rows: pl.LazyFrame) -> pl.LazyFrame:
        self.began.set()
        self.asked += rows.select("b_no").collect()["b_no"].to_list()
        if self.failures:
            self.failures -= 1
            raise self.error
        assert self.go.wait(60)
        return engine.answer(rows)


def sources(server: Served, *better: Any) -> None:
    server.app.state.context.jobs.sources = (*better, RegistrySnapshot())


def test_a_full_queue_refuses_before_the_body(tmp_path: Path) -> None:
    """More jobs than the plan allows are 429, than the server takes on 503, told before a byte of the body was sent."""
    held = Held()
    with served(tmp_path / "db.sqlite", queue=4) as server:
        sources(server, held)
        key, other = server.key(), server.key(plan="enterprise")
        jobs = [upload(server, key).json()["job_id"] for _ in range(4)]
        assert held.began.wait(60)
        assert look(server, key, jobs[0]).json()["status"] == "running"
        refused = told_without_a_body(server, key)
        assert b" 429 " in refused
        assert b"retry-after" in refused.lower()
        assert b"as many as its plan allows" in refused
        assert b'"code":"limit_exceeded"' in refused
        assert b'"bound":"jobs","limit":4,"used":4' in refused
        assert [upload(server, other).status_code for _ in range(2)] == [200, 200]
        assert b"more jobs wait than the server takes on" in told_without_a_body(server, other)
        held.go.set()
        for job_id in jobs:
            until(server, key, job_id)
        assert upload(server, key).status_code == 200


def test_keys_that_fill_the_queue_shut_out_nobody(tmp_path: Path) -> None:
    """While two keys have all the jobs that may wait, a third is taken on; the two are told to wait."""
    held = Held()
    with served(tmp_path / "db.sqlite", queue=4) as server:
        sources(server, held)
        *loud, quiet = (server.key(plan="enterprise") for _ in range(3))
        taken = [upload(server, key).status_code for key in loud * 3]
        assert taken == [200] * 5 + [503]
        assert upload(server, quiet).status_code == 200
        assert [upload(server, key).status_code for key in (*loud, quiet)] == [503] * 3
        held.go.set()


def told_without_a_body(server: Served, key: str) -> bytes:
    place = urlsplit(server.url)
    assert place.hostname is not None
    with socket.create_connection((place.hostname, place.port or 80), timeout=20) as connection:
        head = f"POST /batch HTTP/1.1\r\nHost: x\r\nX-API-Key: {key}\r\nContent-Length: 1000\r\n"
        connection.sendall(f"{head}Content-Type: multipart/form-data; boundary=b\r\n\r\n".encode())
        told = b""
        while not told.endswith(b"}}"):
            told += connection.recv(65536) or pytest.fail(f"the answer ends early: {told!r}")
        return told


@pytest.mark.parametrize("failures", [2, 3])
def test_a_job_that_fails_is_tried_three_times(tmp_path: Path, failures: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure is tried again; after three the job has failed, its quota is back, and no person is named."""
    monkeypatch.setattr(worker, "PAUSES", (0.0, 0.0))
    held = Held(failures)
    held.go.set()
    with served(tmp_path / "db.sqlite") as server:
        sources(server, held)
        key = server.key()
        status = until(server, key, upload(server, key).json()["job_id"], states=("done", "failed"))
        assert status["status"] == ("failed" if failures == 3 else "done")
        assert used(server, key) == (0 if failures == 3 else 1)
        assert (status["error"] is None) == (failures < 3)
        assert "홍길동" not in json.dumps(status, ensure_ascii=False)
        assert status["finished_at"] is not None


def test_a_job_that_is_to_be_tried_again_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one key's job waits for its next attempt, the others' jobs are done."""
    monkeypatch.setattr(worker, "PAUSES", (3_600.0,))
    held = Held(failures=1)
    held.go.set()
    with served(tmp_path / "db.sqlite") as server:
        sources(server, held)
        key, other = server.key(), server.key()
        job_id = upload(server, key).json()["job_id"]
        assert held.began.wait(60)
        until(server, other, upload(server, other).json()["job_id"])
        assert look(server, key, job_id).json()["status"] == "queued"


@pytest.mark.parametrize(("starts", "state", "kept"), [(9, "done", 1), (10, "failed", 0)])
def test_a_job_that_ends_the_server_is_given_up(tmp_path: Path, starts: int, state: str, kept: int) -> None:
    """A job under which the server ended ten times is not begun again: it has failed and gives its quota back."""
    with served(tmp_path / "db.sqlite") as server:
        key = server.key()
        sources(server, failing := Held(failures=99))
        job_id = upload(server, key).json()["job_id"]
        assert failing.began.wait(60)
    with closing(open_server_file(tmp_path / "db.sqlite")) as db:
        db.execute("UPDATE jobs SET state = 'running', attempts = 0, starts = ?, due = 0", (starts,))
    with served(tmp_path / "db.sqlite") as server:
        status = until(server, key, job_id, states=("done", "failed"))
        assert (status["status"], used(server, key)) == (state, kept)
        assert (status["error"] is None) == (state == "done")


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        pl.exceptions.ComputeError("underlying IO error: No space left on device (os error 28)"),
        StoreError("the disk is full"),
    ],
)
def test_a_full_disk_is_no_failure_of_a_job(tmp_path: Path, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often the disk has no room for a job's results, the job is done when there is room."""
    monkeypatch.setattr(worker, "_NO_ROOM_PAUSE_S", 0.0)
    held = Held(failures=5)
    held.error = error
    held.go.set()
    with served(tmp_path / "db.sqlite") as server:
        sources(server, held)
        key = server.key()
        assert until(server, key, upload(server, key).json()["job_id"], states=("done", "failed"))["status"] == "done"
        assert held.failures == 0


def test_a_stop_in_good_order_does_not_count_against_a_job(tmp_path: Path) -> None:
    """A job that was running when the server was stopped waits as if it had not been begun, and is done later."""
    held = Held()
    with served(tmp_path / "db.sqlite") as server:
        sources(server, held)
        key = server.key()
        job_id = upload(server, key).json()["job_id"]
        assert held.began.wait(60)
        threading.Timer(0.3, held.go.set).start()
    assert rows_of(tmp_path / "db.sqlite", "SELECT state, starts, attempts FROM jobs") == [("queued", 0, 0)]
    with served(tmp_path / "db.sqlite") as server:
        until(server, key, job_id)


def test_a_worker_that_is_begun_again_does_not_count_against_a_job(tmp_path: Path) -> None:
    """When it is the work on jobs alone that broke off, and not the server, a job is as if it had not been begun."""
    with closing(open_server_file(tmp_path / "db.sqlite")) as db:
        add(db, "a", key_table.create_key(db, plan="business", quota=9, now=1)[0].id)
        for survived, left in ((False, 1), (False, 2), (True, 0)):
            assert job_table.start_next(db, 1.0) is not None
            assert job_table.requeue_running(db, survived=survived) == 1
            assert db.execute("SELECT state, starts FROM jobs").fetchall() == [("queued", left)]


def test_an_end_is_told_once(tmp_path: Path) -> None:
    """A job that has ended is neither ended again nor put back, and gives its quota back once."""
    with closing(open_server_file(tmp_path / "db.sqlite")) as db:
        key = key_table.create_key(db, plan="business", quota=99, now=1)[0].id
        key_table.take_lookups(db, key, "2026-11", 50, 99)
        job_table.add_job(db, job_table.StoredJob("a", key, "queued", 20, False, True, "2026-11", 20, 1.0))
        job = job_table.start_next(db, 1.0)
        assert job is not None
        for _ in range(2):
            job_table.fail_job(db, job, now=2.0, code="internal", message="x")
            job_table.finish_job(db, job, now=2.0, grades={}, model="m", without_answer=7)
            job_table.put_back(db, job, due=0.0, attempts=1)
        assert key_table.used_lookups(db, key, "2026-11") == 30
        assert db.execute("SELECT state, charged FROM jobs").fetchall() == [("failed", 0)]


@pytest.mark.usefixtures("isolated")
def test_files_that_take_long_to_read_hold_up_their_own_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While several files of one key take long to be read, another key's file is accepted; all are, in the end."""
    read_isolated, go, begun = reading_slots.read_isolated, threading.Event(), threading.Event()

    async def slow(file: Any, *more: Any) -> int:
        if file.name == "slow.csv":
            begun.set()
            while not go.is_set():
                await anyio.sleep(0.01)
        return await read_isolated(file, *more)

    monkeypatch.setattr(reading_slots, "read_isolated", slow)
    with served(tmp_path / "db.sqlite") as server, ThreadPoolExecutor(3) as pool:
        key, other = server.key(), server.key()
        slowly = [pool.submit(upload, server, key, name="slow.csv") for _ in range(3)]
        assert begun.wait(60)
        try:
            assert upload(server, other).status_code == 200
            assert not any(asked.done() for asked in slowly)
        finally:
            go.set()
        assert [asked.result().status_code for asked in slowly] == [200] * 3


def test_a_key_that_is_revoked_while_its_file_comes_in_makes_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job is accepted only if the key is good when it is queued."""
    read_isolated = reading_slots.read_isolated

    async def slow(*given: Any) -> int:
        with closing(open_server_file(tmp_path / "db.sqlite")) as db:
            db.execute("UPDATE keys SET revoked = 1")
        return await read_isolated(*given)

    monkeypatch.setattr(reading_slots, "read_isolated", slow)
    with served(tmp_path / "db.sqlite") as server:
        assert upload(server, server.key()).status_code == 401
    assert rows_of(tmp_path / "db.sqlite", "SELECT * FROM jobs") == []
    assert rows_of(tmp_path / "db.sqlite", "SELECT * FROM usage") == []
    assert list((tmp_path / "db.sqlite.files" / "jobs").iterdir()) == []


def test_a_job_that_was_queued_keeps_its_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that is cut off when its job is in the queue already leaves the job what it needs."""
    queued = JobAcceptance._queue_job

    async def cut_off(*given: Any) -> bytes:
        await queued(*given)
        raise asyncio.CancelledError

    with served(tmp_path / "db.sqlite") as server:
        key = server.key()
        with monkeypatch.context() as patched:
            patched.setattr(JobAcceptance, "_queue_job", cut_off)
            assert upload(server, key).status_code >= 500
    with served(tmp_path / "db.sqlite") as server:
        ((job_id,),) = rows_of(server.db, "SELECT id FROM jobs")
        until(server, key, job_id)


async def impatient(seconds: float) -> None:
    """Pauses between attempts are short; the hourly ones never end."""
    await (anyio.sleep(0.02) if seconds < 60 else anyio.sleep_forever())


def test_offline_leaves_live_sources_out(tmp_path: Path) -> None:
    """A source that asks over the network is asked unless the job is offline, or looks nothing up."""
    live = Held()
    live.live = True
    live.go.set()
    with served(tmp_path / "db.sqlite") as server:
        sources(server, live)
        key = server.key()
        for params in ({"offline": "true"}, {"offline": "1"}, {"paid": "false"}):
            until(server, key, upload(server, key, params=params).json()["job_id"])
        assert live.asked == []
        until(server, key, upload(server, key, params={"offline": "false"}).json()["job_id"])
        assert live.asked == ["124-81-00998", "12345"]


def test_old_jobs_are_purged(tmp_path: Path) -> None:
    """A job is removed with its files when it ended long enough ago, but not while outcomes wait to be learned from."""
    now = [1.8e9]
    with served(tmp_path / "db.sqlite", clock=Clock(now=lambda: now[0], sleep=impatient), keep_days=10) as server:
        key, jobs = server.key(), server.app.state.context.jobs
        one, two = (upload(server, key).json()["job_id"] for _ in range(2))
        expires = [until(server, key, job_id)["expires_at"] for job_id in (one, two)]
        assert expires[0] == "2027-01-25T17:00:00+09:00"
        label = "INSERT INTO labels (job, row_id, bounced, recorded) VALUES (?, 0, 1, 1)"
        in_loop(server, lambda: server.app.state.context.store.write(lambda db: db.execute(label, (two,)).rowcount))
        now[0] += 10 * 86_400 - 1
        in_loop(server, jobs.purge_once)
        assert look(server, key, one).status_code == 200
        now[0] += 2
        in_loop(server, jobs.purge_once)
        assert look(server, key, one).status_code == 404
        assert look(server, key, two).status_code == 200
        learned = "UPDATE labels SET learned = 1"
        in_loop(server, lambda: server.app.state.context.store.write(lambda db: db.execute(learned).rowcount))
        in_loop(server, jobs.purge_once)
        assert look(server, key, two).status_code == 404
        assert list((tmp_path / "db.sqlite.files" / "jobs").iterdir()) == []


def in_loop(server: Served, work: Callable[[], Any]) -> Any:
    """Do something of the server's beside it, on an event loop of its own."""
    return asyncio.run(work())


def test_a_new_server_sweeps_what_a_killed_one_left(tmp_path: Path) -> None:
    """Uploads and folders of jobs that were never accepted go when the server starts; what people own is private."""
    with served(tmp_path / "db.sqlite") as server:
        key = server.key()
        job_id = upload(server, key).json()["job_id"]
        until(server, key, job_id)
        files = tmp_path / "db.sqlite.files"
        (files / "jobs" / "orphan").mkdir()
        (files / "uploads" / "orphan").mkdir()
        everything = list(files.rglob("*"))
        assert {path.stat().st_mode & 0o077 for path in everything if path.name != "orphan"} == {0}
    with served(tmp_path / "db.sqlite") as server:
        assert [path.name for path in (files / "jobs").iterdir()] == [job_id]
        assert list((files / "uploads").iterdir()) == []
        assert look(server, key, job_id).json()["status"] == "done"


def test_keys_take_turns(tmp_path: Path) -> None:
    """A key's second job waits behind another key's first; the jobs of one key keep their order."""
    with closing(open_server_file(tmp_path / "db.sqlite")) as db:
        one, two = (key_table.create_key(db, plan="business", quota=9, now=1)[0].id for _ in range(2))
        for name, key in (("a1", one), ("a2", one), ("a3", one), ("b1", two), ("b2", two)):
            add(db, name, key)
        order = []
        for now in range(10, 16):
            job = job_table.start_next(db, float(now))
            order.append(None if job is None else job.id)
        assert order == ["a1", "b1", "a2", "b2", "a3", None]
        assert job_table.requeue_running(db) == 5


def test_a_key_that_deletes_its_jobs_keeps_its_turn(tmp_path: Path) -> None:
    """Uploads and deletions in turn do not bring a key before another one, whatever the clock says."""
    with closing(open_server_file(tmp_path / "db.sqlite")) as db:
        one, two = (key_table.create_key(db, plan="business", quota=9, now=1)[0].id for _ in range(2))
        for name, key in (("a1", one), ("a2", one), ("b1", two)):
            add(db, name, key)
        assert job_table.start_next(db, 10.0).id == "a1"  # type: ignore[union-attr]
        job_table.delete_job(db, one, "a1", 0)
        assert job_table.start_next(db, 5.0).id == "b1"  # type: ignore[union-attr]
        add(db, "b2", two)
        assert job_table.start_next(db, 5.0).id == "a2"  # type: ignore[union-attr]


def add(db: sqlite3.Connection, name: str, key: str) -> None:
    job_table.add_job(db, job_table.StoredJob(name, key, "queued", 1, False, True, "2026-11", 1, 1.0))


def test_slices_are_merged_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results that are put in order slice by slice are the answers sorted whole, in row groups of a slice."""
    monkeypatch.setattr(results, "ROWS", 7)
    engine, records = LocalEngine(), tmp_path / "records.parquet"
    rows = people().rename({"사업자등록번호": "b_no", "상호": "name", "주소": "address"}).with_row_index("row_id")
    rows.write_parquet(records)
    parts, tally = [], results.ResultCounts()
    for first in range(0, rows.height, 7):
        parts.append(tmp_path / f"{first}.parquet")
        tally.take(results.answer_slice(RegistrySnapshot(), engine, records, first, parts[-1]))
    merge_slices(parts, tmp_path / "results.parquet")
    found = pl.read_parquet(tmp_path / "results.parquet")
    whole = pl.concat([pl.read_parquet(part) for part in parts])
    assert found.equals(whole.sort("bounce_prob", "row_id", descending=[True, False], nulls_last=True))
    assert found.schema == pl.Schema(results.RESULTS)
    assert (tally.grades.total(), tally.without_answer) == (rows.height, 2)
    merge_slices([], tmp_path / "none.parquet")
    assert pl.read_parquet(tmp_path / "none.parquet").schema == found.schema
