"""The list of a key's jobs, and jobs that are deleted: at any state, once, with all that lies on the disk."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Timer
from typing import Any

import httpx
import polars as pl
import pytest

from bansong.engine.local import LocalEngine
from bansong.history.labels import LabelStore
from bansong.server import job_files as results
from bansong.server import jobs as worker
from handclock import HandClock
from serving import HTTP, Served, read_here, rows_of, served
from test_server_batch import CSV, Held, look, sources, until, upload, used
from test_server_crash import Crashing


@pytest.fixture(autouse=True)
def quickly_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read_here(monkeypatch)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("server") / "db.sqlite") as running:
        yield running


def listed(server: Served, key: str, **params: object) -> Any:
    return HTTP.get(f"{server.url}/batch", headers={"X-API-Key": key}, params={k: str(v) for k, v in params.items()})


def delete(server: Served, key: str, job_id: str) -> httpx.Response:
    return HTTP.delete(f"{server.url}/batch/{job_id}", headers={"X-API-Key": key}, timeout=60)


def folder(server: Served, job_id: str) -> Path:
    return server.db.parent / f"{server.db.name}.files" / "jobs" / job_id


def test_the_list_has_each_job_once_the_newest_first(server: Served) -> None:
    """In pages that stay right though jobs come and go between them; as each is shown alone, without results."""
    key = server.key(plan="enterprise")
    jobs = [upload(server, key).json()["job_id"] for _ in range(5)]
    for job_id in jobs:
        until(server, key, job_id)
    first = listed(server, key, limit=2).json()
    assert [job["job_id"] for job in first["jobs"]] == jobs[:2:-1]
    later = upload(server, key).json()["job_id"]
    delete(server, key, jobs[3])  # the last of the page, from which the next one goes on
    second = listed(server, key, limit=2, cursor=first["next_cursor"]).json()
    third = listed(server, key, limit=2, cursor=second["next_cursor"]).json()
    assert [job["job_id"] for page in (second, third) for job in page["jobs"]] == [jobs[2], jobs[1], jobs[0]]
    assert third["next_cursor"] is None
    alone = look(server, key, jobs[0]).json()
    assert third["jobs"] == [{name: value for name, value in alone.items() if name != "results"}]
    everything = listed(server, key).json()
    assert [job["job_id"] for job in everything["jobs"]] == [later, jobs[4], jobs[2], jobs[1], jobs[0]]
    assert everything["next_cursor"] is None


def test_the_list_is_of_one_key(server: Served) -> None:
    """Another key's jobs are not on it, also with a cursor that the other was given."""
    key, other = server.key(), server.key()
    for _ in range(3):
        upload(server, key)
    cursor = listed(server, key, limit=1).json()["next_cursor"]
    assert listed(server, other).json() == {"jobs": [], "next_cursor": None}
    assert listed(server, other, cursor=cursor).json()["jobs"] == []


@pytest.mark.parametrize(
    "wrong",
    [
        *({"limit": value} for value in ("0", "101", "-1", "x", "", "1.5", "٣", "9" * 30)),
        *({"cursor": value} for value in ("", "x", "AAAA", "bmFuIGpvYg==", "MS4w", "한", "MS4wIGpvYg", "z" * 5_000)),
    ],
)
def test_a_limit_or_cursor_that_is_none_is_refused(server: Served, wrong: dict[str, str]) -> None:
    """400 with what it must be, not a page of something else."""
    refused = listed(server, server.key(), **wrong)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_request")
    assert next(iter(wrong)) in refused.json()["error"]["message"]


def test_a_done_job_that_is_deleted_is_gone_and_was_paid(server: Served) -> None:
    """Its files are off the disk when it is answered; nothing is given back; a second time, or another's: 404."""
    key, other = server.key(), server.key()
    job_id = upload(server, key).json()["job_id"]
    until(server, key, job_id)
    assert delete(server, other, job_id).status_code == 404
    assert folder(server, job_id).exists()
    gone = delete(server, key, job_id)
    assert gone.json() == {"job_id": job_id, "deleted": True, "given_back": 0}
    assert not folder(server, job_id).exists()
    assert look(server, key, job_id).status_code == delete(server, key, job_id).status_code == 404
    assert used(server, key) == 1


def test_an_upload_whose_job_was_deleted_is_not_done_again(server: Served) -> None:
    """The same Idempotency-Key is answered as before, with the job that is gone: a repeat must not be paid twice."""
    key, more = server.key(), {"headers": {"Idempotency-Key": "once"}}
    first = upload(server, key, **more)
    until(server, key, first.json()["job_id"])
    delete(server, key, first.json()["job_id"])
    assert upload(server, key, **more).content == first.content
    assert look(server, key, first.json()["job_id"]).status_code == 404
    assert used(server, key) == 1


def test_a_job_that_waits_is_given_back_whole_and_once(tmp_path: Path) -> None:
    """However often it is deleted at the same moment; the job that runs, and those behind, go on."""
    held = Held()
    with served(tmp_path / "db.sqlite") as server:
        sources(server, held)
        key = server.key()
        running, waiting, behind = (upload(server, key).json()["job_id"] for _ in range(3))
        assert held.began.wait(60)
        assert used(server, key) == 6
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda _: delete(server, key, waiting), range(4)))
        assert sorted(answer.status_code for answer in answers) == [200, 404, 404, 404]
        assert [answer.json()["given_back"] for answer in answers if answer.is_success] == [2]
        assert used(server, key) == 4
        assert not folder(server, waiting).exists()
        held.go.set()
        for job_id in (running, behind):
            until(server, key, job_id)
        assert used(server, key) == 2


class HeldFrom(Held):
    """Answers at once until a slice has a number, and holds that one."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._left = number
        self.reached = threading.Event()

    def answer(self, engine: LocalEngine, rows: pl.LazyFrame) -> pl.LazyFrame:
        if self._left > 0:
            self._left -= 1
            return engine.answer(rows)
        self.reached.set()
        return super().answer(engine, rows)


def test_a_job_that_runs_is_cancelled_and_rows_without_an_answer_are_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is answered at once, and nobody finds it; its files go with the slice being written, then the next job runs.

    Rows that were answered or are being worked on stay paid, but for those that are no number.
    """
    for module in (worker, results):
        monkeypatch.setattr(module, "ROWS", 2)
    held = HeldFrom(2)
    with served(tmp_path / "db.sqlite") as server:
        sources(server, held)
        key = server.key()
        content = "b_no\n1248100998\n12345\n1248100998\n1248100998\n1248100998\n1248100998\n1248100998\n"
        job_id, behind = (upload(server, key, content).json()["job_id"] for _ in range(2))
        assert held.reached.wait(60)
        answer = delete(server, key, job_id)
        assert (answer.status_code, answer.json()["given_back"]) == (202, 2)
        assert [look(server, key, job_id).status_code, delete(server, key, job_id).status_code] == [404, 404]
        assert used(server, key) == 5 + 7
        assert folder(server, job_id).exists()  # a slice is being written: the files cannot go before it
        held.go.set()
        until(server, key, behind)
        assert not folder(server, job_id).exists()
        assert used(server, key) == 5 + 6
        assert [job["job_id"] for job in listed(server, key).json()["jobs"]] == [behind]


def tell(server: Served, key: str, job_id: str, row_id: int) -> None:
    label = {"row_id": row_id, "bounced": True, "reason": "이사불명"}
    told = HTTP.post(f"{server.url}/batch/{job_id}/label", json=label, headers={"X-API-Key": key})
    assert told.status_code == 201


def test_outcomes_of_a_job_that_is_deleted_stay_learned(tmp_path: Path) -> None:
    """What was told a moment before is recorded first: the letters are in the key's label store, the rows are gone."""
    hand = HandClock()
    with served(tmp_path / "db.sqlite", hand.clock) as server:
        key = server.key()
        job_id = upload(server, key, "b_no\n1248100998\n2208162517\n").json()["job_id"]
        until(server, key, job_id)
        tell(server, key, job_id, 0)
        waiting = "SELECT row_id FROM labels WHERE learned IS NULL"
        hand.until(lambda: rows_of(server.db, waiting) == [], seconds=1)
        tell(server, key, job_id, 1)  # the learner pauses, by a clock that stands still
        assert rows_of(server.db, waiting) == [(1,)]
        assert delete(server, key, job_id).status_code == 200
        (labels,) = (tmp_path / "db.sqlite.files" / "learning").glob("*/labels")
        (mailing,) = LabelStore(labels).mailings()
        assert (mailing.id, mailing.bounced) == (job_id, 2)
        assert rows_of(server.db, "SELECT count(*) FROM labels") == [(0,)]


def test_a_job_whose_outcomes_cannot_be_recorded_is_not_deleted(tmp_path: Path) -> None:
    """An outcome that no label store takes is not lost with its job: 503 until one takes it."""
    hand = HandClock()
    with served(tmp_path / "db.sqlite", hand.clock) as server:
        key = server.key()
        job_id = upload(server, key, "b_no\n1248100998\n2208162517\n").json()["job_id"]
        until(server, key, job_id)
        learning = tmp_path / "db.sqlite.files" / "learning"
        learning.write_text("in the way")
        tell(server, key, job_id, 0)
        refused = delete(server, key, job_id)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "busy")
        assert look(server, key, job_id).json()["status"] == "done"
        learning.unlink()
        assert delete(server, key, job_id).status_code == 200
        (labels,) = learning.glob("*/labels")
        assert [mailing.bounced for mailing in LabelStore(labels).mailings()] == [1]


def test_a_kill_between_row_and_files_leaves_neither(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row goes first; files of a job that is not known are removed when the server starts again."""
    db = tmp_path / "db.sqlite"
    with served(db) as server:
        key = server.key()
        job_id = upload(server, key).json()["job_id"]
        until(server, key, job_id)

        def killed(*_: object) -> None:
            raise RuntimeError("killed")

        with monkeypatch.context() as patch:
            patch.setattr(results, "remove_job_folders", killed)
            assert delete(server, key, job_id).status_code == 500
        assert folder(server, job_id).exists()
        assert look(server, key, job_id).status_code == 404
    with served(db) as server:
        assert not folder(server, job_id).exists()
        assert look(server, key, job_id).status_code == 404
        assert used(server, key) == 1


@pytest.mark.crash
def test_killed_while_jobs_are_deleted(tmp_path: Path) -> None:
    """At any moment: a job is there with all its results, or gone with its files; the quota is what is left."""
    chance, server = random.Random(11), Crashing(tmp_path, 3_000)
    answered = server.rows - server.rows // 10
    kept, number = 0, 0
    try:
        for _ in range(8):
            for _ in range(3):
                assert server.upload(number)
                number += 1
            jobs = list(server.accepted)[-3:]
            deadline = time.monotonic() + 120
            while server.state(jobs[0]) != "done":
                assert time.monotonic() < deadline
                time.sleep(0.01)
            strike = Timer(chance.uniform(0.0, 0.25), server.process.kill)
            strike.start()
            for job_id in jobs:  # one done, one that runs, one that waits
                try:
                    server.ask("DELETE", f"/batch/{job_id}")
                except httpx.TransportError:
                    break
            strike.join()
            server.url = server.process.start()
            present = {job["job_id"] for job in server.ask("GET", "/batch?limit=100").json()["jobs"]}
            files = tmp_path / "db.sqlite.files" / "jobs"
            assert {path.name for path in files.iterdir()} == present
            kept = max(kept, len(present))
            for job_id in present:
                assert until_done(server, job_id)["results"]
        ((paid,),) = rows_of(server.db, "SELECT used FROM usage")
        left = len(present) * answered
        assert left <= paid <= number * answered
    finally:
        server.process.kill()


def until_done(server: Crashing, job_id: str) -> Any:
    deadline = time.monotonic() + 120
    while (job := server.ask("GET", f"/batch/{job_id}?preview=3").json())["status"] != "done":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return job


def test_a_stop_of_the_server_ends_a_job_that_was_not_deleted_in_good_order(tmp_path: Path) -> None:
    """What cancels a deleted job does not hide a stop: the job waits again, and is done after the start."""
    held, db = Held(), tmp_path / "db.sqlite"
    with served(db) as server:
        sources(server, held)
        key = server.key()
        job_id = upload(server, key, CSV).json()["job_id"]
        assert held.began.wait(60)
        Timer(0.2, held.go.set).start()
    with served(db) as server:
        assert until(server, key, job_id)["status"] == "done"
        assert used(server, key) == 1
