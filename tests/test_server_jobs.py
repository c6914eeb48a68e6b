"""Batch jobs of the server: answered as the local engine answers, listed, deleted, and never paid without an answer."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Timer
from typing import Any

import msgspec
import polars as pl
import pytest

import bansong as bs
from bansong.engine.local import LocalEngine
from bansong.errors import StoreError
from bansong.history.labels import LabelStore
from bansong.server import job_files as results
from bansong.server import job_table
from bansong.server import jobs as worker
from bansong.server import keys as key_table
from bansong.server.engines import RegistrySnapshot
from bansong.server.jobs import JobAcceptance
from bansong.server.settings import load_plans
from bansong.server.store import open_server_file
from handclock import HandClock
from serving import NUMBER, Account, Served, address_of, hosted, read_here, refused, rows_of, served

HERE = "서울 강남구 테헤란로 1"
SEVEN = ("biz_status", "bounce_prob", "grade", "action", "fixed_zipcode", "fixed_address", "reasons")
TWO = f"b_no\n{NUMBER}\n2208162517\n"


@pytest.fixture(autouse=True)
def quickly_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read_here(monkeypatch)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with hosted(tmp_path_factory.mktemp("server") / "db.sqlite") as running:
        yield running


@pytest.fixture
def key(server: Served) -> Account:
    return server.account()


class Held:
    """An engine's answers, held back from the slice ``begin`` on; the first ``failures`` of them fail."""

    live = True

    def __init__(self, failures: int = 0, error: Exception | None = None, begin: int = 0, *, go: bool = False) -> None:
        self.go, self.began, self._begin = threading.Event(), threading.Event(), begin
        self.failures, self._error = failures, error or ValueError("this row is of 홍길동")
        self.asked: list[str] = []
        if go:
            self.go.set()

    def answer(self, engine: LocalEngine, rows: pl.LazyFrame) -> pl.LazyFrame:
        if self._begin:
            self._begin -= 1
            return engine.answer(rows)
        self.began.set()
        self.asked += rows.select("b_no").collect()["b_no"].to_list()
        if self.failures:
            self.failures -= 1
            raise self._error
        assert self.go.wait(60)
        return engine.answer(rows)


@contextmanager
def holding(tmp_path: Path, held: Held, **settings: Any) -> Iterator[Served]:
    with hosted(tmp_path / "db.sqlite", status_sources=[held], **settings) as server:
        try:
            yield server
        finally:
            held.go.set()


def delete(key: Account, job_id: str) -> Any:
    return key.ask("DELETE", f"/batch/{job_id}")


def folder(key: Account, job_id: str) -> Path:
    return key.server.files / "jobs" / job_id


# -------------------------------------------------------------------------------------------------------- answers


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
        (right[5],) + (None,) * 2,
    ]
    return pl.DataFrame(rows, schema=["사업자등록번호", "상호", "주소"], orient="row")


@pytest.mark.parametrize("kind", ["cp949.csv", "xlsx", "ndjson"])
def test_a_file_is_answered_as_the_local_engine_answers_it(key: Account, tmp_path: Path, kind: str) -> None:
    """Row for row what `enrich` makes of it, whole-file facts included; the highest risk first."""
    path, rows = tmp_path / f"in.{kind}", people()
    if kind == "xlsx":
        rows.write_excel(path)
    elif kind == "ndjson":
        rows.write_ndjson(path)
    else:
        path.write_bytes(rows.write_csv().encode("cp949"))
    bs.enrich(path, tmp_path / "out.json")
    enriched = json.loads((tmp_path / "out.json").read_bytes())
    enriched = enriched["rows"] if isinstance(enriched, dict) else enriched
    job = key.job(path.read_bytes(), name=path.name, preview=rows.height)
    assert job["total"] == rows.height == len(enriched) == sum(job["grades"].values())
    risks = [row["bounce_prob"] for row in job["results"]]
    assert risks == sorted(risks, key=lambda risk: -1 if risk is None else risk, reverse=True)
    found = sorted(job["results"], key=lambda row: row["row_id"])
    assert [row["row_id"] for row in found] == list(range(rows.height))
    for row, expected in zip(found, enriched, strict=True):
        assert {name: row[name] or None for name in SEVEN} == {name: expected[name] or None for name in SEVEN}
        assert (row["error"] is None) == (expected["biz_status"] is not None)


def test_cells_that_are_too_long_are_cut_before_the_engine_reads_them(key: Account) -> None:
    """Of each text 2,000 characters are judged; of what is no number the results show the beginning and the length."""
    address = "서울 중구 세종대로 1 "
    rows = pl.DataFrame({"b_no": [NUMBER, "9" * 2_000_000, "9" * 100], "name": ["가" * 5_000, "나", "다"]})
    rows = rows.with_columns(address=pl.lit(address + "나" * 5_000))
    job = key.job(rows.write_csv())
    found = {row["row_id"]: row for row in job["results"]}
    assert [found[place]["b_no"] for place in range(3)] == [
        NUMBER,
        f"{'9' * 100}… (cut: 2000000 characters)",
        "9" * 100,
    ]
    kept = pl.read_parquet(results.records_path(key.server.files, job["job_id"]))
    assert (kept["name"][0], kept["address"][0]) == ("가" * 2_000, (address + "나" * 5_000)[:2_000])


def test_what_is_cut_says_the_same(key: Account) -> None:
    """A number stays that number, blanks cut nothing off, and of no number the reason is that of the whole cell."""
    numbers = ["\u200b" * 3_000 + NUMBER, "124" + "-" * 3_000 + "8100998", NUMBER + "." + "0" * 3_000]
    wrong = ["9" * 3_000, "9" * 1_500 + "-" * 1_500 + "번", "가" * 3_000, "1" + "-" * 3_000]
    addresses = [
        f"{many}서울 중구 세종대로 1{many}101호{many}" for many in (" " * 3_000, "\n" * 3_000, "\u3000" * 3_000)
    ]
    whole = pl.LazyFrame({"b_no": [*numbers, *wrong], "address": [*addresses, *[None] * 4]})
    cut = results.shorten_cells(whole)
    assert cut.collect()["b_no"][:3].to_list() == [NUMBER] * 3
    assert cut.collect()["address"][:3].to_list() == ["서울 중구 세종대로 1 101호"] * 3
    notes = [bs.LocalEngine().verify(rows).collect()["row_note"].to_list() for rows in (whole, cut)]
    assert notes[0] == notes[1]


def test_slices_are_merged_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "ROWS", 7)
    records, parts, tally = tmp_path / "records.parquet", list[Path](), results.ResultCounts()
    rows = people().rename({"사업자등록번호": "b_no", "상호": "name", "주소": "address"}).with_row_index("row_id")
    rows.write_parquet(records)
    for first in range(0, rows.height, 7):
        parts.append(tmp_path / f"{first}.parquet")
        tally.take(results.answer_slice(RegistrySnapshot(), LocalEngine(), records, first, parts[-1]))
    results.merge_slices(parts, tmp_path / "results.parquet")
    found = pl.read_parquet(tmp_path / "results.parquet")
    whole = pl.concat([pl.read_parquet(part) for part in parts])
    assert found.equals(whole.sort("bounce_prob", "row_id", descending=[True, False], nulls_last=True))
    assert (found.schema, tally.grades.total(), tally.without_answer) == (pl.Schema(results.RESULTS), rows.height, 2)


def test_a_file_of_no_rows_is_a_job_that_is_done(key: Account) -> None:
    for content, name in (("[]", "in.json"), ("b_no,name\n", "in.csv")):
        job = key.job(content, name=name)
        assert (job["total"], job["results"], job["grades"], job["progress"]) == (0, [], {}, 1)
    assert key.used() == 0


def test_results_that_are_gone_are_told_before_the_answer_begins(key: Account) -> None:
    """Not by an answer that breaks off."""
    job_id = key.job()["job_id"]
    path = folder(key, job_id) / "results.parquet"
    path.write_bytes(b"PAR1" * 30)
    assert refused(key.ask("GET", f"/batch/{job_id}")) == (500, "internal")
    path.unlink()
    assert refused(key.ask("GET", f"/batch/{job_id}")) == (404, "not_found")
    assert key.ask("GET", f"/batch/{job_id}?preview=0").status_code == 200


def test_a_slow_reader_holds_few_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what a client asked for and does not take, most is never rendered."""
    rendered, items = list[int](), results.render_items
    monkeypatch.setattr(results, "render_items", lambda *given: (rendered.append(given[2]), items(*given))[1])
    with served(tmp_path / "db.sqlite") as server:
        key = server.account(quota=20_000)
        job_id = key.job("b_no\n" + f"{NUMBER}\n" * 20_000, preview=0)["job_id"]
        with socket.socket() as line:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            line.connect(address_of(server))
            head = f"GET /batch/{job_id}?preview=20000 HTTP/1.1\r\nHost: x\r\nX-API-Key: {key.secret}\r\n\r\n"
            line.sendall(head.encode())
            before = -1
            while len(rendered) != before or not rendered:
                before = len(rendered)
                time.sleep(0.3)
            assert (max(rendered), sum(rendered) < 15_000) == (500, True)
        assert len(key.get(f"/batch/{job_id}?preview=20000")["results"]) == 20_000


# ------------------------------------------------------------------------------------------------------- the queue


def test_a_full_queue_takes_no_more(tmp_path: Path) -> None:
    """More jobs than the plan allows are 429, than the server takes on 503."""
    plans = load_plans() | {"business": msgspec.structs.replace(load_plans()["business"], jobs=2)}  # type: ignore[operator]
    with holding(tmp_path, held := Held(), queue=2, plans=plans) as server:
        key, other = server.account(), server.account("enterprise")
        jobs = [key.upload().json()["job_id"] for _ in range(2)]
        assert held.began.wait(60)
        assert key.get(f"/batch/{jobs[0]}")["status"] == "running"
        full = key.upload()
        error = full.json()["error"]
        assert (*refused(full), error["bound"], error["limit"], error["used"]) == (429, "limit_exceeded", "jobs", 2, 2)
        assert full.headers["Retry-After"] == "5"
        assert [other.upload().status_code for _ in range(2)] == [200, 503]
        held.go.set()
        key.until(jobs[1])
        assert key.upload().status_code == 200


def test_keys_that_fill_the_queue_shut_out_nobody(tmp_path: Path) -> None:
    """While two keys have all the jobs that may wait, a third is taken on; the two are told to wait."""
    with holding(tmp_path, Held(), queue=2) as server:
        *loud, quiet = (server.account("enterprise") for _ in range(3))
        assert [key.upload().status_code for key in loud * 2] == [200] * 3 + [503]
        assert [key.upload().status_code for key in (quiet, *loud, quiet)] == [200] + [503] * 3


def test_an_upload_that_is_repeated_is_one_job_also_when_that_was_deleted(key: Account) -> None:
    """Also when it comes twice at once; with another file or flag, 409: a repeat must not be paid twice."""
    once = {"headers": {"Idempotency-Key": "once"}}
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda _: key.upload(**once), range(3)))
    assert len({(answer.status_code, answer.content) for answer in answers}) == 1
    key.until(job_id := answers[0].json()["job_id"])
    for other in ((CSV_MORE,), (CSV_MORE, "?offline=true"), (CSV_MORE, "", "in.tsv")):
        assert refused(key.upload(*other, **once)) == (409, "idempotency_mismatch")
    delete(key, job_id)
    assert key.upload(**once).content == answers[0].content
    assert key.ask("GET", f"/batch/{job_id}").status_code == 404
    assert key.used() == 1


CSV_MORE = "b_no\n1\n"


@pytest.mark.parametrize("failures", [2, 3])
def test_a_job_that_fails_is_tried_three_times(tmp_path: Path, failures: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After three failures its quota is back, and no person is named."""
    monkeypatch.setattr(worker, "PAUSES", (0.0, 0.0))
    with holding(tmp_path, Held(failures, go=True)) as server:
        key = server.account()
        job = key.until(key.upload().json()["job_id"], "done", "failed")
        assert (job["status"], key.used()) == (("failed", 0) if failures == 3 else ("done", 1))
        assert (job["error"] is None) == (failures < 3)
        assert "홍길동" not in json.dumps(job, ensure_ascii=False)


@pytest.mark.parametrize(("starts", "state", "kept"), [(9, "done", 1), (10, "failed", 0)])
def test_a_job_that_ends_the_server_is_given_up(tmp_path: Path, starts: int, state: str, kept: int) -> None:
    """A job under which the server ended ten times gives its quota back."""
    with holding(tmp_path, failing := Held(99)) as server:
        job_id = (key := server.account()).upload().json()["job_id"]
        assert failing.began.wait(60)
    with closing(open_server_file(tmp_path / "db.sqlite")) as db:
        db.execute("UPDATE jobs SET state = 'running', attempts = 0, starts = ?, due = 0", (starts,))
    with hosted(tmp_path / "db.sqlite") as server:
        key = Account(server, key.secret)
        assert (key.until(job_id, "done", "failed")["status"], key.used()) == (state, kept)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        pl.exceptions.ComputeError("underlying IO error: No space left on device (os error 28)"),
        StoreError("the disk is full"),
    ],
)
def test_a_full_disk_is_no_failure_of_a_job(tmp_path: Path, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_NO_ROOM_PAUSE_S", 0.0)
    with holding(tmp_path, held := Held(5, error, go=True)) as server:
        server.account().job()
        assert held.failures == 0


def test_a_stop_in_good_order_does_not_count_against_a_job(tmp_path: Path) -> None:
    """It waits as if it had not been begun, and is done later."""
    with hosted(tmp_path / "db.sqlite", status_sources=[held := Held()]) as server:
        job_id = (key := server.account()).upload().json()["job_id"]
        assert held.began.wait(60)
        Timer(0.1, held.go.set).start()
    assert rows_of(tmp_path / "db.sqlite", "SELECT state, starts, attempts FROM jobs") == [("queued", 0, 0)]
    with hosted(tmp_path / "db.sqlite") as server:
        Account(server, key.secret).until(job_id)


def test_a_key_that_is_revoked_while_its_file_comes_in_makes_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_isolated = results.read_isolated

    async def slow(*given: Any) -> int:
        with closing(open_server_file(tmp_path / "db.sqlite")) as db:
            db.execute("UPDATE keys SET revoked = 1")
        return await read_isolated(*given)

    monkeypatch.setattr(results, "read_isolated", slow)
    with hosted(tmp_path / "db.sqlite") as server:
        assert server.account().upload().status_code == 401
    assert rows_of(tmp_path / "db.sqlite", "SELECT 1 FROM jobs UNION SELECT 1 FROM usage") == []
    assert list((tmp_path / "db.sqlite.files" / "jobs").iterdir()) == []


def test_a_job_that_was_queued_keeps_its_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that is cut off when its job is in the queue already leaves the job what it needs."""
    queued = JobAcceptance._queue_job

    async def cut_off(*given: Any) -> bytes:
        await queued(*given)
        raise asyncio.CancelledError

    with hosted(tmp_path / "db.sqlite") as server:
        key = server.account()
        with monkeypatch.context() as patched:
            patched.setattr(JobAcceptance, "_queue_job", cut_off)
            assert key.upload().status_code >= 500
    with hosted(tmp_path / "db.sqlite") as server:
        ((job_id,),) = rows_of(server.db, "SELECT id FROM jobs")
        Account(server, key.secret).until(job_id)


def test_old_jobs_are_purged(tmp_path: Path) -> None:
    """When they ended long enough ago, with their files, but not while outcomes wait to be learned from."""
    hand = HandClock()
    with hosted(tmp_path / "db.sqlite", hand.clock, keep_days=10) as server:
        key = server.account()
        one, two = (key.job()["job_id"] for _ in range(2))
        assert key.get(f"/batch/{one}")["expires_at"] == "2026-11-30T12:00:00+09:00"
        with closing(open_server_file(server.db)) as db:
            db.execute("INSERT INTO labels (job, row_id, bounced, recorded, learned) VALUES (?, 0, 1, 1, 1)", (two,))
            server.context.learner.record = asyncio.Event().wait  # which learns nothing any more
            hand.forward(days=9.9)
            server.call(server.context.jobs.purge_once)
            assert [key.ask("GET", f"/batch/{job}").status_code for job in (one, two)] == [200, 200]
            db.execute("UPDATE labels SET learned = NULL")
            hand.forward(days=0.2)
            server.call(server.context.jobs.purge_once)
            assert [key.ask("GET", f"/batch/{job}").status_code for job in (one, two)] == [404, 200]
            db.execute("UPDATE labels SET learned = 1")
        server.call(server.context.jobs.purge_once)
        assert list((server.files / "jobs").iterdir()) == []


def test_a_new_server_sweeps_what_a_killed_one_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uploads and folders of jobs that are not known, as of one whose row was deleted before its files."""

    def killed(*_: object) -> None:
        raise RuntimeError("killed")

    with hosted(tmp_path / "db.sqlite") as server:
        key = server.account()
        kept, gone = (key.job()["job_id"] for _ in range(2))
        with monkeypatch.context() as patch:
            patch.setattr(results, "remove_job_folders", killed)
            assert delete(key, gone).status_code == 500
        assert key.ask("GET", f"/batch/{gone}").status_code == 404
        assert {path.stat().st_mode & 0o077 for path in server.files.rglob("*")} == {0}
        for name in ("jobs", "uploads"):
            (server.files / name / "orphan").mkdir()
        assert folder(key, gone).exists()
    with hosted(tmp_path / "db.sqlite") as server:
        key = Account(server, key.secret)
        assert [path.name for path in (server.files / "jobs").iterdir()] == [kept]
        assert list((server.files / "uploads").iterdir()) == []
        assert (key.get(f"/batch/{kept}")["status"], key.used()) == ("done", 2)


# ----------------------------------------------------------------------------------------------- the table of jobs


@pytest.fixture
def table(tmp_path: Path) -> Iterator[tuple[sqlite3.Connection, str, str]]:
    """A file with two keys, and their ids."""
    with closing(open_server_file(tmp_path / "db.sqlite")) as db:
        yield db, *(key_table.create_key(db, plan="business", quota=99, now=1)[0].id for _ in range(2))


def add(db: sqlite3.Connection, key: str, *names: str) -> None:
    for name in names:
        job_table.add_job(db, job_table.StoredJob(name, key, "queued", 20, False, True, "2026-11", 20, 1.0))


def started(db: sqlite3.Connection, now: float) -> str | None:
    job = job_table.start_next(db, now)
    return None if job is None else job.id


def test_keys_take_turns(table: tuple[sqlite3.Connection, str, str]) -> None:
    """A key's second job waits behind another's first, also where it deletes jobs, whatever the clock says."""
    db, one, two = table
    add(db, one, "a1", "a2", "a3")
    add(db, two, "b1", "b2")
    db.execute("UPDATE jobs SET due = 12 WHERE id = 'b1'")  # to be tried again: it holds nobody up
    assert [started(db, float(now)) for now in range(10, 16)] == ["a1", "b2", "a2", "b1", "a3", None]
    db.execute("UPDATE jobs SET due = 0")
    assert job_table.requeue_running(db, survived=False) == 5
    assert started(db, 10.0) == "b1"
    job_table.delete_job(db, two, "b1", 0)
    assert [started(db, 5.0) for _ in range(2)] == ["a1", "b2"]


def test_a_worker_that_is_begun_again_does_not_count_against_a_job(table: tuple[sqlite3.Connection, str, str]) -> None:
    db, one, _ = table
    add(db, one, "a")
    for survived, left in ((False, 1), (False, 2), (True, 0)):
        assert started(db, 1.0) == "a"
        assert job_table.requeue_running(db, survived=survived) == 1
        assert db.execute("SELECT state, starts FROM jobs").fetchall() == [("queued", left)]


def test_an_end_is_told_once(table: tuple[sqlite3.Connection, str, str]) -> None:
    """A job that has ended is neither ended again nor put back, and gives its quota back once."""
    db, one, _ = table
    key_table.take_lookups(db, one, "2026-11", 50, 99)
    add(db, one, "a")
    job = job_table.start_next(db, 1.0)
    assert job is not None
    for _ in range(2):
        job_table.fail_job(db, job, now=2.0, code="internal", message="x")
        job_table.finish_job(db, job, now=2.0, grades={}, model="m", without_answer=7)
        job_table.put_back(db, job, due=0.0, attempts=1)
    assert key_table.month_usage(db, one, "2026-11")[0] == 30
    assert db.execute("SELECT state, charged FROM jobs").fetchall() == [("failed", 0)]


# ---------------------------------------------------------------------------------------------- list and deletion


def test_the_list_has_each_job_once_the_newest_first(server: Served) -> None:
    """In pages that stay right though jobs come and go between them; of one key, also with another's cursor."""
    key, other = server.account("enterprise"), server.account()
    jobs = [key.job(TWO)["job_id"] for _ in range(4)]
    first = key.get("/batch?limit=2")
    assert [job["job_id"] for job in first["jobs"]] == [jobs[3], jobs[2]]
    later = key.job()["job_id"]
    delete(key, jobs[2])  # the last of the page, from which the next one goes on
    second = key.get(f"/batch?limit=2&cursor={first['next_cursor']}")
    assert [job["job_id"] for job in second["jobs"]] == [jobs[1], jobs[0]]
    alone = key.get(f"/batch/{jobs[0]}")
    assert second["jobs"][1] == {name: alone[name] for name in alone if name != "results"}
    assert second["next_cursor"] is None
    assert [job["job_id"] for job in key.get("/batch")["jobs"]] == [later, jobs[3], jobs[1], jobs[0]]
    assert other.get(f"/batch?cursor={first['next_cursor']}") == {"jobs": [], "next_cursor": None}


def test_a_number_or_cursor_that_is_none_is_refused(key: Account) -> None:
    wrong = {
        "limit": ("0", "101", "-1", "x", "", "1.5", "٣", "9" * 30),
        "cursor": ("", "x", "AAAA", "bmFuIGpvYg==", "MS4w", "한", "MS4wIGpvYg", "z" * 5_000),
        "preview": ("-1", "x", "1.5", "", "9" * 30, "٣"),
    }
    for name, values in wrong.items():
        path = "/batch/job_none" if name == "preview" else "/batch"
        for value in values:
            answer = key.ask("GET", path, params={name: value})
            assert refused(answer) == (400, "invalid_request"), (name, value)
            assert name in answer.json()["error"]["message"]


def test_a_done_job_that_is_deleted_is_gone_and_was_paid(server: Served, key: Account) -> None:
    """Its files are off the disk when it is answered; nothing is given back; a second time, or another's: 404."""
    job_id = key.job()["job_id"]
    assert delete(server.account(), job_id).status_code == 404
    assert folder(key, job_id).exists()
    assert delete(key, job_id).json() == {"job_id": job_id, "deleted": True, "given_back": 0}
    assert not folder(key, job_id).exists()
    assert key.ask("GET", f"/batch/{job_id}").status_code == delete(key, job_id).status_code == 404
    assert key.used() == 1


def test_a_job_that_waits_is_given_back_whole_and_once(tmp_path: Path) -> None:
    """However often it is deleted at the same moment; the job that runs, and those behind, go on."""
    with holding(tmp_path, held := Held()) as server:
        key = server.account()
        running, waiting, behind = (key.upload().json()["job_id"] for _ in range(3))
        assert held.began.wait(60)
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda _: delete(key, waiting), range(4)))
        assert sorted(answer.status_code for answer in answers) == [200, 404, 404, 404]
        assert [answer.json()["given_back"] for answer in answers if answer.is_success] == [2]
        assert (key.used(), folder(key, waiting).exists()) == (4, False)
        held.go.set()
        for job_id in (running, behind):
            key.until(job_id)
        assert key.used() == 2


def test_a_job_that_runs_is_cancelled_and_rows_without_an_answer_are_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files go with the slice being written. Rows that are worked on stay paid, those without a number not."""
    for module in (worker, results):
        monkeypatch.setattr(module, "ROWS", 2)
    with holding(tmp_path, held := Held(begin=2)) as server:
        key = server.account()
        content = "\n".join(["b_no", NUMBER, "12345", *[NUMBER] * 5, ""])
        job_id, behind = (key.upload(content).json()["job_id"] for _ in range(2))
        assert held.began.wait(60)
        answer = delete(key, job_id)
        assert (answer.status_code, answer.json()["given_back"]) == (202, 2)
        assert [key.ask("GET", f"/batch/{job_id}").status_code, delete(key, job_id).status_code] == [404, 404]
        assert (key.used(), folder(key, job_id).exists()) == (5 + 7, True)
        held.go.set()
        key.until(behind)
        assert (key.used(), folder(key, job_id).exists()) == (5 + 6, False)


def test_outcomes_of_a_job_that_is_deleted_stay_learned(tmp_path: Path) -> None:
    """What was told a moment before is recorded first; if no label store takes it, the job is not deleted: 503."""
    hand = HandClock()
    with hosted(tmp_path / "db.sqlite", hand.clock) as server:
        key, learning = server.account(), server.files / "learning"
        job_id = key.job(TWO)["job_id"]
        assert key.label(job_id, 0).status_code == 201
        waiting = "SELECT row_id FROM labels WHERE learned IS NULL"
        hand.until(lambda: rows_of(server.db, waiting) == [], seconds=1)
        learning.rename(server.files / "aside")
        learning.write_text("in the way")
        assert key.label(job_id, 1).status_code == 201  # the learner pauses, by a clock that stands still
        assert refused(delete(key, job_id)) == (503, "busy")
        assert (rows_of(server.db, waiting), key.get(f"/batch/{job_id}")["status"]) == ([(1,)], "done")
        learning.unlink()
        (server.files / "aside").rename(learning)
        assert delete(key, job_id).status_code == 200
        (labels,) = learning.glob("*/labels")
        assert [(one.id, one.bounced) for one in LabelStore(labels).mailings()] == [(job_id, 2)]
        assert rows_of(server.db, "SELECT count(*) FROM labels") == [(0,)]
