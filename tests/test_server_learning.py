"""Outcomes told to the server: who may tell what, and how they improve what is answered."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import polars as pl
import pytest

import bansong as bs
from bansong.engine.risk.scorecard import Scorecard
from bansong.history.labels import LabelStore
from bansong.history.scorecards import ModelStore
from bansong.server import job_table
from bansong.server.store import open_server_file
from handclock import HandClock
from outcome_scene import ADDRESSEES, Asking, Scene, scene
from serving import HTTP, read_here, rows_of

CAME_BACK = {"계속사업자": 0.02, "휴업자": 0.85, "폐업자": 0.25}
"""What the expert does not believe: that closed businesses receive their mail, and suspended ones do not."""


@pytest.fixture(scope="module", autouse=True)
def quickly_read() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        read_here(patch)
        yield


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """One server for the tests that only tell and ask."""
    with scene(tmp_path_factory.mktemp("learning")) as one:
        yield one


def labels_of(scene: Scene, job: str) -> list[tuple[Any, ...]]:
    return rows_of(scene.server.db, "SELECT row_id, bounced, reason FROM labels WHERE job = ? ORDER BY row_id", job)


def test_an_outcome_is_kept_and_costs_nothing(shared: Scene) -> None:
    """An outcome is answered with what is kept, 201; the quota counts only the rows of the batch."""
    key = shared.key()
    job = key.batch(shared.clock)
    told = key.label(job, 1, True, "이사불명")
    assert (told.status_code, told.json()) == (
        201,
        {"job_id": job, "row_id": 1, "bounced": True, "reason": "이사불명"},
    )
    assert key.post(f"/batch/{job}/label", {"row_id": 0, "bounced": False}).json()["reason"] is None
    assert labels_of(shared, job) == [(0, 0, None), (1, 1, "이사불명")]
    assert HTTP.get(f"{key.url}/me", headers=key.headers, timeout=60).json()["quota"]["used"] == 3


def test_a_later_outcome_replaces_and_the_same_changes_nothing(shared: Scene) -> None:
    """Told otherwise a row's outcome is the later one, and is learned anew; told again it stays learned."""
    key = shared.key()
    job = key.batch(shared.clock)
    key.label(job, 0, True, "폐문부재")
    shared.learned()
    state = "SELECT bounced, reason, recorded, learned FROM labels WHERE job = ?"
    before = rows_of(shared.server.db, state, job)
    shared.clock.forward(seconds=1)
    assert key.label(job, 0, True, "폐문부재").status_code == 201
    assert rows_of(shared.server.db, state, job) == before
    assert key.label(job, 0, False).status_code == 201
    shared.learned()
    assert labels_of(shared, job) == [(0, 0, None)]


def test_what_is_not_the_keys_own_has_no_outcomes(shared: Scene) -> None:
    """Another key's job, no job and a row outside the job are 404; nothing is kept."""
    key, other = shared.key(), shared.key()
    job = key.batch(shared.clock)
    for answer in (
        other.label(job, 0, True),
        key.label("job_none", 0, True),
        key.label(job, 3, True),
        key.label(job, 10**40, True),
    ):
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    assert labels_of(shared, job) == []


def test_a_job_that_is_not_done_has_no_outcomes(shared: Scene) -> None:
    """Before there are answers, and where there will be none, an outcome is refused with 409 and says the state."""
    key = shared.key()
    job = key.batch(shared.clock)
    for state in ("running", "failed", "done"):  # a queued one would be started by the server in the meantime
        with closing(open_server_file(shared.server.db)) as db:
            db.execute("UPDATE jobs SET state = ? WHERE id = ?", (state, job))
        answer = key.label(job, 0, True)
        if state != "done":
            assert (answer.status_code, answer.json()["error"]["code"]) == (409, "job_not_done")
            assert state in answer.json()["error"]["message"]
            assert labels_of(shared, job) == []
    assert answer.status_code == 201


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"row_id": 0},
        {"bounced": True},
        {"row_id": -1, "bounced": True},
        {"row_id": "0", "bounced": True},
        {"row_id": 0, "bounced": "Y"},
        {"row_id": 0, "bounced": True, "reason": "가" * 1_001},
        [],
    ],
)
def test_an_outcome_that_says_nothing_is_refused(shared: Scene, body: object) -> None:
    """A body without row or outcome, or with something else in their place, is 400."""
    answer = shared.key().post("/batch/job_none/label", body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")


def test_a_letter_that_came_back_changes_the_next_answer_of_that_key(
    shared: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """The same addressee is riskier at once, and the reasons say why; another addressee and another key see nothing."""
    key, other = shared.key(), shared.key()
    before, rest = [key.verify(place) for place in range(2)], other.verify()
    job = key.batch(shared.clock)
    with caplog.at_level("DEBUG", "bansong"):
        key.label(job, 0, True, "이사불명")
        shared.clock.until(lambda: key.verify() != before[0], seconds=1)
    after = key.verify()
    assert after["bounce_prob"] > before[0]["bounce_prob"]
    assert after["grade"] > before[0]["grade"]
    assert any("(label)" in reason for reason in after["reasons"])
    assert key.verify(1) == before[1]
    assert other.verify() == rest
    for private in (*ADDRESSEES[0], key.secret, "이사불명"):
        assert private not in caplog.text


def test_a_batch_knows_what_came_back_too(shared: Scene) -> None:
    """The next job of the key answers as single lookups do."""
    key = shared.key()
    key.label(key.batch(shared.clock), 2, True, "폐문부재")
    shared.learned()
    job = key.batch(shared.clock)
    preview = HTTP.get(f"{key.url}/batch/{job}?preview=1", headers=key.headers, timeout=60).json()
    [first] = preview["results"]
    assert first["row_id"] == 2
    assert first["bounce_prob"] == key.verify(2)["bounce_prob"] > key.verify(1)["bounce_prob"]


def test_a_correction_takes_the_outcome_back(shared: Scene) -> None:
    """A letter that came back and then did arrive, as is told later, speaks for its address."""
    key = shared.key()
    before = key.verify()["bounce_prob"]
    job = key.batch(shared.clock)
    key.label(job, 0, True, "이사불명")
    shared.learned()
    assert key.verify()["bounce_prob"] > before
    key.label(job, 0, False)
    shared.learned()
    assert key.verify()["bounce_prob"] < before


def test_an_outcome_outlives_the_server(tmp_path: Path) -> None:
    """What was told before a crash is learned after it; recorded once more, it leaves the label store as it is."""
    clock = HandClock()
    with scene(tmp_path, clock) as one:
        secret = one.server.key()
        key = Asking(one.server.url, secret)
        before = key.verify()
        job = key.batch(clock)
    with closing(open_server_file(tmp_path / "db.sqlite")) as db:  # told, and killed before the next step
        job_table.put_outcome(db, job, 0, bounced=True, reason="이사불명", now=clock.seconds)
    with scene(tmp_path, clock) as one:
        one.learned()
        after = Asking(one.server.url, secret).verify()
        [book] = one.learning.glob("*/labels/*.parquet")
        content = book.read_bytes()
    assert after["bounce_prob"] > before["bounce_prob"]
    with closing(open_server_file(tmp_path / "db.sqlite")) as db:  # in the book, and killed before that was noted
        db.execute("UPDATE labels SET learned = NULL")
    clock.forward(hours=1)
    with scene(tmp_path, clock) as one:
        one.learned()
        assert Asking(one.server.url, secret).verify() == after
    assert book.read_bytes() == content
    for path in [book, *book.parents][:4]:
        assert path.stat().st_mode & 0o077 == 0


def test_what_could_not_be_recorded_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A damaged book is said, the outcome waits, and it is learned when the book can be written again."""
    with scene(tmp_path) as one:
        key = one.key()
        job = key.batch(one.clock)
        key.label(job, 0, True, "이사불명")
        one.learned()
        [book] = one.learning.glob("*/labels/*.parquet")
        content = book.read_bytes()
        book.write_bytes(b"damaged")
        assert key.label(job, 1, True).status_code == 201
        one.clock.until(lambda: "could not be recorded and are tried again" in caplog.text, seconds=1)
        assert rows_of(one.server.db, "SELECT row_id FROM labels WHERE learned IS NULL") == [(1,)]
        assert key.verify()["bounce_prob"] > key.verify(1)["bounce_prob"]
        book.write_bytes(content)
        one.learned()
        assert LabelStore(book.parent).mailings()[0].bounced == 2


def test_outcomes_of_lost_files_do_not_wait_for_ever(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where a job's files were deleted its outcomes cannot be learned from: that is said, and the job can be purged."""
    with scene(tmp_path) as one:
        key = one.key()
        job = key.batch(one.clock)
        (Path(f"{one.server.db}.files") / "jobs" / job / "results.parquet").unlink()
        key.label(job, 0, True)
        one.learned()
        assert f"the files of job {job} are gone" in caplog.text


def world(folder: Path, rows: int) -> tuple[str, Path, list[bool]]:
    """An upload, the registry that knows its businesses, and whether each letter came back."""
    bodies = np.array([[int(digit) for digit in f"{place:09d}"] for place in range(123_810_000, 123_810_000 + rows)])
    weighted = bodies * [1, 3, 7, 1, 3, 7, 1, 3, 5]
    checks = (10 - (weighted.sum(axis=1) + weighted[:, 8] // 10) % 10) % 10
    numbers = [f"{''.join(map(str, body))}{check}" for body, check in zip(bodies, checks, strict=True)]
    rng = np.random.default_rng(1)
    status = rng.choice(list(CAME_BACK), rows, p=[0.7, 0.15, 0.15])
    customers = pl.DataFrame(
        {
            "사업자등록번호": numbers,
            "상호": [f"(주)가나상사{place}" for place in range(rows)],
            "주소": [f"서울특별시 강남구 테헤란로 {place % 700 + 1} {place}호" for place in range(rows)],
        }
    )
    known = pl.DataFrame({"사업자등록번호": numbers, "사업자상태": status, "폐업일자": "2025-01-01"})
    known.write_csv(folder / "statuses.csv")
    bs.build_registry([folder / "statuses.csv"], folder / "registry.parquet")
    chance = np.array([CAME_BACK[one] for one in status])
    return customers.write_csv(), folder / "registry.parquet", (rng.random(rows) < chance).tolist()


def tell(key: Asking, job: str, bounced: list[bool]) -> None:
    """Tell all outcomes of a job, eight at a time."""
    with httpx.Client(headers=key.headers, base_url=key.url, timeout=60) as client, ThreadPoolExecutor(8) as threads:
        sent = threads.map(
            lambda row: client.post(f"/batch/{job}/label", json={"row_id": row[0], "bounced": row[1]}).status_code,
            enumerate(bounced),
        )
        assert set(sent) == {201}


@pytest.mark.fuzz
def test_what_came_back_makes_a_scorecard_that_answers_from_then_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Batch, outcomes, and after the time in which returns come in a better scorecard answers that key, also later."""
    clock = HandClock()
    upload, registry, bounced = world(tmp_path, 1_500)
    with caplog.at_level("INFO", "bansong.server"), scene(tmp_path, clock, registry=registry) as one:
        secret, other = one.server.key("enterprise"), Asking(one.server.url, one.server.key())
        key = Asking(one.server.url, secret)
        job = key.batch(clock, upload)
        preview = HTTP.get(f"{key.url}/batch/{job}?preview=1500", headers=key.headers, timeout=60).json()["results"]
        [suspended, *_] = [row for row in preview if row["biz_status"] == "suspended"]
        [closed, *_] = [row for row in preview if row["biz_status"] == "closed"]
        tell(key, job, bounced)
        one.learned()
        [folder] = one.learning.iterdir()
        clock.forward(days=40)  # too early: returns still come in
        clock.until(lambda: "letters learned from" in caplog.text, hours=1)
        assert ModelStore(folder / "models").champion_version() == "builtin"
        clock.until(lambda: ModelStore(folder / "models").champion_version() != "builtin", hours=6)
        version = f"{Scorecard.load().version}+1"
        clock.until(lambda: f"{version} answers from now on" in caplog.text)

        def asked(key: Asking, row: dict[str, Any]) -> float:
            body = {"b_no": row["b_no"], "name": "가나", "address": "서울특별시 중구 세종대로 110"}
            risk: float = key.post("/verify", body).json()["bounce_prob"]
            return risk

        clock.until(lambda: asked(key, suspended) > asked(other, suspended))
        assert asked(key, closed) < asked(other, closed)
        risk = asked(key, suspended)
        again = key.batch(clock, "사업자등록번호,상호\n1248100998,가\n")
        assert rows_of(one.server.db, "SELECT model FROM jobs WHERE id = ?", again) == [(version,)]
    with scene(tmp_path, clock, registry=registry) as one:
        assert asked(Asking(one.server.url, secret), suspended) == risk


@contextmanager
def ripe(folder: Path, rows: int, caplog: pytest.LogCaptureFixture, **settings: Any) -> Iterator[Scene]:
    """A server with the outcomes of some letters, two months later."""
    upload, registry, bounced = world(folder, rows)
    with caplog.at_level("INFO", "bansong.server"), scene(folder, registry=registry, **settings) as one:
        key = one.key()
        tell(key, key.batch(one.clock, upload), bounced)
        one.learned()
        one.clock.forward(days=60)
        yield one


def rounds(scene: Scene) -> None:
    """Let a server that learns every hour come to it twice more: it records outcomes, then learns from them."""
    key = scene.key()
    job = key.batch(scene.clock)
    for row in range(3):
        scene.clock.forward(hours=2)
        key.label(job, row, False)
        scene.learned()


def test_few_outcomes_leave_the_scorecard(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What a few letters say is no proof: the gate keeps the built-in scorecard, and the journal says so."""
    with ripe(tmp_path, 60, caplog) as one:
        one.clock.until(lambda: "60 letters learned from: not surely better" in caplog.text, hours=1)
        [models] = one.learning.glob("*/models")
        assert ModelStore(models).champion_version() == "builtin"
        assert [event.kind for event in ModelStore(models).history()] == ["refused"]


def test_a_label_store_that_was_emptied_is_no_failure(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where all outcomes of a key were forgotten or expired nothing is learned, and nothing is said to have failed."""
    with scene(tmp_path, learn_hours=1) as one:
        key = one.key()
        key.label(key.batch(one.clock), 0, True)
        one.learned()
        [book] = one.learning.glob("*/labels/*.parquet")
        book.unlink()
        rounds(one)
    assert "learning failed" not in caplog.text


def test_a_given_model_is_not_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Started with --model a server records outcomes, knows of them, and learns no scorecard."""
    with ripe(tmp_path, 60, caplog, model="builtin", learn_hours=1) as one:
        rounds(one)
        assert list(one.learning.glob("*/labels/*.parquet")) != []
    assert list(one.learning.glob("*/models")) == []
    assert "learned from" not in caplog.text


def test_without_numpy_outcomes_are_recorded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without numpy the server says once what is missing, and outcomes reach the label store all the same."""
    with ripe(tmp_path, 20, caplog, learn_hours=1) as one:
        monkeypatch.setitem(sys.modules, "numpy", None)
        one.clock.until(lambda: "learning needs numpy" in caplog.text, hours=1)
        rounds(one)
        monkeypatch.undo()
        assert list(one.learning.glob("*/labels/*.parquet")) != []
    assert caplog.text.count("learning needs numpy") == 1
