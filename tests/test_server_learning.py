"""Outcomes told to the server: who may tell what, and how they improve what is answered."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
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
from serving import Account, Served, hosted, make_key, read_here, refused, rows_of

CAME_BACK = {"계속사업자": 0.02, "휴업자": 0.85, "폐업자": 0.25}
"""What the expert does not believe: that closed businesses receive their mail, and suspended ones do not."""
ADDRESSEES = [
    ("1248100998", "삼성전자", "경기 수원시 영통구 삼성로 129"),
    ("2208162517", "네이버", "경기 성남시 분당구 정자일로 95"),
    ("1208147521", "다음카카오", "제주특별자치도 제주시 첨단로 242"),
]
LETTERS = "\n".join(["사업자등록번호,상호,주소", *map(",".join, ADDRESSEES), ""])


@dataclass(frozen=True)
class Scene:
    """A server that learns, and its clock."""

    server: Served
    clock: HandClock

    def learned(self) -> None:
        """Let time pass until every outcome is in a label store."""
        waits = "SELECT count(*) FROM labels WHERE learned IS NULL"
        self.clock.until(lambda: rows_of(self.server.db, waits) == [(0,)], seconds=1)

    @property
    def learning(self) -> Path:
        return self.server.files / "learning"

    def key(self, plan: str = "business") -> Account:
        return self.server.account(plan)

    def tell(self, key: Account, job: str, row_id: int = 0, bounced: bool = True, reason: str = "이사불명") -> None:
        assert key.label(job, row_id, bounced, reason if bounced else None).status_code == 201
        self.learned()


@contextmanager
def scene(folder: Path, clock: HandClock | None = None, **settings: Any) -> Iterator[Scene]:
    clock = clock or HandClock()
    with hosted(folder / "db.sqlite", clock.clock, **settings) as server:
        yield Scene(server, clock)


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


def sent(key: Account) -> str:
    """The id of a job of all addressees."""
    return str(key.job(LETTERS)["job_id"])


def answer(key: Account, addressee: int = 0) -> dict[str, Any]:
    b_no, name, address = ADDRESSEES[addressee]
    found: dict[str, Any] = key.verify(b_no, name=name, address=address).json()
    return found


def risk(key: Account, addressee: int = 0) -> float:
    return float(answer(key, addressee)["bounce_prob"])


def labels_of(scene: Scene, job: str, columns: str = "row_id, bounced, reason") -> list[tuple[Any, ...]]:
    return rows_of(scene.server.db, f"SELECT {columns} FROM labels WHERE job = ? ORDER BY row_id", job)


def test_a_later_outcome_replaces_and_the_same_changes_nothing(shared: Scene) -> None:
    """Told otherwise a row's outcome is the later one, and is learned anew; told again it stays learned."""
    job, state = sent(key := shared.key()), "bounced, reason, recorded, learned"
    shared.tell(key, job, 0, True, "폐문부재")
    before = labels_of(shared, job, state)
    shared.clock.forward(seconds=1)
    shared.tell(key, job, 0, True, "폐문부재")
    assert labels_of(shared, job, state) == before
    shared.tell(key, job, 0, False)
    assert labels_of(shared, job) == [(0, 0, None)]


def test_what_is_not_a_done_row_of_the_key_has_no_outcomes(shared: Scene) -> None:
    """Another key's job, no job and a row outside it are 404; before there are answers, or without any, 409."""
    job, other = sent(key := shared.key()), shared.key()
    asked = (other.label(job, 0), key.label("job_none", 0), key.label(job, 3), key.label(job, 10**40))
    assert [refused(one) for one in asked] == [(404, "not_found")] * 4
    for state in ("running", "failed", "done"):  # a queued one would be started by the server in the meantime
        with closing(open_server_file(shared.server.db)) as db:
            db.execute("UPDATE jobs SET state = ? WHERE id = ?", (state, job))
        if state != "done":
            told = key.label(job, 0)
            assert (*refused(told), state in told.json()["error"]["message"]) == (409, "job_not_done", True)
    assert labels_of(shared, job) == []
    for body in (
        {},
        {"row_id": 0},
        {"bounced": True},
        {"row_id": "0", "bounced": True},
        {"row_id": 0, "bounced": "Y"},
        [],
    ):
        assert refused(key.ask("POST", f"/batch/{job}/label", json=body)) == (400, "invalid_request")


def test_a_letter_that_came_back_changes_the_next_answers_of_that_key(
    shared: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """Riskier at once, and the reasons say why, in jobs as well; another addressee and another key see nothing."""
    key, other = shared.key(), shared.key()
    before, rest = [answer(key, place) for place in range(2)], answer(other)
    with caplog.at_level("DEBUG", "bansong"):
        shared.tell(key, job := sent(key))
    after = answer(key)
    assert (after["bounce_prob"] > before[0]["bounce_prob"], after["grade"] > before[0]["grade"]) == (True, True)
    assert any("(label)" in reason for reason in after["reasons"])
    assert (answer(key, 1), answer(other)) == (before[1], rest)
    first = key.job(LETTERS, preview=1)["results"][0]
    assert (first["row_id"], first["bounce_prob"]) == (0, after["bounce_prob"])
    assert [one for one in (*ADDRESSEES[0], key.secret, "이사불명") if one in caplog.text] == []
    shared.tell(key, job, 0, False)  # taken back, it speaks for the address
    assert risk(key) < before[0]["bounce_prob"]


def test_an_outcome_outlives_the_server(tmp_path: Path) -> None:
    """What was told before a crash is learned after it; recorded once more, it leaves the label store as it is."""
    clock = HandClock()
    with scene(tmp_path, clock) as one:
        key = one.key()
        before, job = risk(key), sent(key)
    with closing(open_server_file(tmp_path / "db.sqlite")) as db:  # told, and killed before the next step
        job_table.put_outcome(db, job, 0, bounced=True, reason="이사불명", now=clock.seconds)
    with scene(tmp_path, clock) as one:
        one.learned()
        after = risk(Account(one.server, key.secret))
        [book] = one.learning.glob("*/labels/*.parquet")
        content = book.read_bytes()
    assert after > before
    with closing(open_server_file(tmp_path / "db.sqlite")) as db:  # in the book, and killed before that was noted
        db.execute("UPDATE labels SET learned = NULL")
    clock.forward(hours=1)
    with scene(tmp_path, clock) as one:
        one.learned()
        assert risk(Account(one.server, key.secret)) == after
    assert book.read_bytes() == content
    assert {path.stat().st_mode & 0o077 for path in [book, *book.parents][:4]} == {0}


def test_what_could_not_be_recorded_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A damaged book is said, and the outcome waits; where a job's files are gone it does not wait for ever."""
    with scene(tmp_path) as one:
        job = sent(key := one.key())
        one.tell(key, job)
        [book] = one.learning.glob("*/labels/*.parquet")
        content = book.read_bytes()
        book.write_bytes(b"damaged")
        assert key.label(job, 1).status_code == 201
        one.clock.until(lambda: "could not be recorded and are tried again" in caplog.text, seconds=1)
        assert rows_of(one.server.db, "SELECT row_id FROM labels WHERE learned IS NULL") == [(1,)]
        assert risk(key) > risk(key, 1)
        book.write_bytes(content)
        one.learned()
        assert LabelStore(book.parent).mailings()[0].bounced == 2
        lost = sent(key)
        (one.server.files / "jobs" / lost / "results.parquet").unlink()
        one.tell(key, lost)
        assert f"the files of job {lost} are gone" in caplog.text


def test_keys_of_a_former_pool_learn_for_themselves(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """From a release that had pools: a warning for each names the pool's folder, which stays as it is."""
    db = tmp_path / "db.sqlite"
    secrets = [make_key(db) for _ in range(4)]
    pool = Path(f"{db}.files") / "learning" / "pool"
    ModelStore(pool / "models").promote(msgspec.structs.replace(Scorecard.load(), version="strange"), {"labels": 9})
    (pool / "labels").mkdir()
    (pool / "labels" / "job.parquet").write_bytes(b"letters of all keys")
    with closing(open_server_file(db)) as file:
        one, two, three, _ = (id_ for (id_,) in file.execute("SELECT key_id FROM secrets ORDER BY number"))
        file.execute("UPDATE keys SET pool = 1, customer = 'mill' WHERE id IN (?, ?, ?)", (one, two, three))
        file.execute("UPDATE keys SET revoked = 1 WHERE id = ?", (three,))
    before = {path: path.read_bytes() for path in pool.rglob("*") if path.is_file()}
    with scene(tmp_path, learn_hours=1) as here:
        asking, other, _, outsider = (Account(here.server, secret) for secret in secrets)
        warned = [text for text in caplog.messages if "pool" in text]
        assert [any(id_ in text and str(pool) in text for text in warned) for id_ in (one, two, three)] == [
            True,
            True,
            False,
        ]
        untold = answer(other)
        assert answer(asking) == untold == answer(outsider)
        here.tell(asking, job := sent(asking))
        assert risk(asking) > untold["bounce_prob"]
        here.clock.forward(hours=2)
        assert answer(other) == answer(outsider) == untold
        assert [path.parent.parent.name for path in here.learning.glob(f"*/labels/{job}.parquet")] == [one]
    assert {path: path.read_bytes() for path in pool.rglob("*") if path.is_file()} == before
    assert rows_of(db, "SELECT pool, customer FROM keys WHERE id = ?", one) == [(1, "mill")]


# ------------------------------------------------------------------------------------------------------- scorecards


def world(folder: Path, rows: int) -> tuple[str, Path, list[bool]]:
    """An upload, the registry that knows its businesses, and whether each letter came back."""
    bodies = np.array([[int(digit) for digit in f"{place:09d}"] for place in range(123_810_000, 123_810_000 + rows)])
    weighted = bodies * [1, 3, 7, 1, 3, 7, 1, 3, 5]
    checks = (10 - (weighted.sum(axis=1) + weighted[:, 8] // 10) % 10) % 10
    numbers = [f"{''.join(map(str, body))}{check}" for body, check in zip(bodies, checks, strict=True)]
    rng = np.random.default_rng(1)
    status = rng.choice(list(CAME_BACK), rows, p=[0.7, 0.15, 0.15])
    names = [f"(주)가나상사{place}" for place in range(rows)]
    addresses = [f"서울특별시 강남구 테헤란로 {place % 700 + 1} {place}호" for place in range(rows)]
    known = pl.DataFrame({"사업자등록번호": numbers, "사업자상태": status, "폐업일자": "2025-01-01"})
    known.write_csv(folder / "statuses.csv")
    bs.build_registry([folder / "statuses.csv"], folder / "registry.parquet")
    chance = np.array([CAME_BACK[one] for one in status])
    customers = pl.DataFrame({"사업자등록번호": numbers, "상호": names, "주소": addresses})
    return customers.write_csv(), folder / "registry.parquet", (rng.random(rows) < chance).tolist()


def tell_all(key: Account, job: str, bounced: list[bool]) -> None:
    with ThreadPoolExecutor(8) as threads:
        told = threads.map(lambda row: key.label(job, *row).status_code, enumerate(bounced))
        assert set(told) == {201}


@pytest.mark.fuzz
def test_what_came_back_makes_a_scorecard_that_answers_from_then_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """After the time in which returns come in a better scorecard answers that key, also after a restart."""
    clock = HandClock()
    upload, registry, bounced = world(tmp_path, 1_500)
    with caplog.at_level("INFO", "bansong.server"), scene(tmp_path, clock, registry=registry) as one:
        key, other = one.key("enterprise"), one.key()
        job = key.job(upload, preview=1500)
        [suspended, *_] = [row for row in job["results"] if row["biz_status"] == "suspended"]
        [closed, *_] = [row for row in job["results"] if row["biz_status"] == "closed"]
        tell_all(key, job["job_id"], bounced)
        one.learned()
        [folder] = one.learning.iterdir()
        clock.forward(days=40)  # too early: returns still come in
        clock.until(lambda: "letters learned from" in caplog.text, hours=1)
        assert ModelStore(folder / "models").champion_version() == "builtin"
        clock.until(lambda: ModelStore(folder / "models").champion_version() != "builtin", hours=6)
        version = f"{Scorecard.load().version}+1"
        clock.until(lambda: f"{version} answers from now on" in caplog.text)

        def asked(key: Account, row: dict[str, Any]) -> float:
            found = key.verify(row["b_no"], name="가나", address="서울특별시 중구 세종대로 110").json()
            return float(found["bounce_prob"])

        clock.until(lambda: asked(key, suspended) > asked(other, suspended))
        assert asked(key, closed) < asked(other, closed)
        learned = asked(key, suspended)
        again = sent(key)
        assert rows_of(one.server.db, "SELECT model FROM jobs WHERE id = ?", again) == [(version,)]
    with scene(tmp_path, clock, registry=registry) as one:
        assert asked(Account(one.server, key.secret), suspended) == learned


@contextmanager
def ripe(folder: Path, rows: int, caplog: pytest.LogCaptureFixture, **settings: Any) -> Iterator[Scene]:
    """A server with the outcomes of some letters, two months later."""
    upload, registry, bounced = world(folder, rows)
    with caplog.at_level("INFO", "bansong.server"), scene(folder, registry=registry, **settings) as one:
        key = one.key()
        tell_all(key, key.job(upload)["job_id"], bounced)
        one.learned()
        one.clock.forward(days=60)
        yield one


def rounds(scene: Scene) -> None:
    """Let a server that learns every hour come to it twice more: it records outcomes, then learns from them."""
    job = sent(key := scene.key())
    for row in range(2):
        scene.clock.forward(hours=2)
        scene.tell(key, job, row, False)


def test_few_outcomes_leave_the_scorecard(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What a few letters say is no proof: the gate keeps the built-in scorecard, and the journal says so."""
    with ripe(tmp_path, 40, caplog) as one:
        one.clock.until(lambda: "40 letters learned from: not surely better" in caplog.text, hours=1)
        [models] = one.learning.glob("*/models")
        assert ModelStore(models).champion_version() == "builtin"
        assert [event.kind for event in ModelStore(models).history()] == ["refused"]


def test_a_label_store_that_was_emptied_is_no_failure(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where all outcomes of a key were forgotten or expired nothing is learned, and nothing is said to have failed."""
    with scene(tmp_path, learn_hours=1) as one:
        one.tell(key := one.key(), sent(key))
        [book] = one.learning.glob("*/labels/*.parquet")
        book.unlink()
        rounds(one)
    assert "learning failed" not in caplog.text


def test_a_given_model_is_not_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Started with --model a server records outcomes, and learns no scorecard."""
    with ripe(tmp_path, 20, caplog, model="builtin", learn_hours=1) as one:
        rounds(one)
        assert list(one.learning.glob("*/labels/*.parquet")) != []
    assert (list(one.learning.glob("*/models")), "learned from" in caplog.text) == ([], False)


def test_without_numpy_outcomes_are_recorded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server says once what is missing."""
    with ripe(tmp_path, 10, caplog, learn_hours=1) as one:
        monkeypatch.setitem(sys.modules, "numpy", None)
        one.clock.until(lambda: "learning needs numpy" in caplog.text, hours=1)
        rounds(one)
        monkeypatch.undo()
        assert list(one.learning.glob("*/labels/*.parquet")) != []
    assert caplog.text.count("learning needs numpy") == 1
