"""The data of a key: erased whole, and not kept longer than was said."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from bansong.base.schema import SEOUL
from bansong.cli import keys as key_data
from bansong.errors import StoreError, UsageError
from bansong.history.labels import LabelStore
from bansong.server import erasure as account_erasure
from bansong.server import erasure as expiry
from bansong.server.engines import EnginePool
from bansong.server.erasure import KEPT, OWNED, Retention
from bansong.server.learning import OutcomeLearner
from bansong.server.settings import Settings, load_plans
from bansong.server.store import SERVER_FILE, Store
from handclock import HandClock
from serving import HTTP, Served, read_here, rows_of, served, wait_until
from test_key_rotation import listed
from test_keys_cli import keys

NUMBER, OTHERS, GONE = "1248100998", "2208162517", "1208147521"
HOOK = "https://example.com/closures"
LOOKED_EVERY = 0.05
KEPT_AT = time.time() - 3600
"""Not a fixed day: commands and some of the servers here have the real clock, and answers are kept for seven days."""
MONTH = f"{datetime.fromtimestamp(KEPT_AT, SEOUL):%Y-%m}"


@dataclass(frozen=True)
class Kept:
    """A stopped server's file with two keys that did the same with different numbers; ``key_id`` is the first's."""

    db: Path
    key_id: str
    secret: str
    other: str
    job: str

    @property
    def files(self) -> Path:
        return Path(f"{self.db}.files")

    def named(self, text: str) -> list[str]:
        """The files that hold a text."""
        found = [path for path in self.db.parent.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]
        return sorted(path.name for path in found)


@pytest.fixture(scope="module")
def kept_once(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    folder = tmp_path_factory.mktemp("kept")
    hand, db = HandClock(KEPT_AT), folder / "home" / "server.sqlite"
    db.parent.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BANSONG_STATE_DIR", str(folder / "state"))
        read_here(patch)
        with served(db, hand.clock) as server:
            first, second = server.key(note="김대리"), server.key()
            jobs = [use(server, hand, secret, number) for secret, number in ((first, NUMBER), (second, OTHERS))]
        one, two = (str(key["id"]) for key in listed(db))
        keys("webhook", one, "--db", db, "--url", HOOK)
    return Kept(db, one, first, two, jobs[0])


@pytest.fixture
def kept(kept_once: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kept:
    read_here(monkeypatch)
    monkeypatch.setattr(expiry, "_LOOK_INTERVAL_S", LOOKED_EVERY)
    monkeypatch.setattr(key_data, "_ERASURE_POLL_S", LOOKED_EVERY)
    shutil.copytree(kept_once.db.parent, tmp_path / "home")
    return replace(kept_once, db=tmp_path / "home" / kept_once.db.name)


def use(server: Served, hand: HandClock, secret: str, number: str) -> str:
    """Have a key do everything that leaves something behind; return its job."""
    headers = {"X-API-Key": secret}
    HTTP.post(f"{server.url}/verify", json={"b_no": number}, headers=headers | {"Idempotency-Key": "once"})
    HTTP.post(f"{server.url}/watch", json={"biz_no": number, "name": "상호"}, headers=headers)
    content = f"사업자번호,상호,주소\n{number},상호,서울 중구 세종대로 1\n"
    sent = HTTP.post(f"{server.url}/batch", files={"file": ("a.csv", content.encode())}, headers=headers).json()
    job = f"{server.url}/batch/{sent['job_id']}"
    hand.until(lambda: HTTP.get(job, headers=headers).json()["status"] == "done")
    HTTP.post(f"{job}/label", json={"row_id": 0, "bounced": True, "reason": "이사불명"}, headers=headers)
    with closing(sqlite3.connect(server.db)) as db:
        hand.until(lambda: not db.execute("SELECT 1 FROM labels WHERE learned IS NULL").fetchall(), seconds=1)
        ((owner,),) = db.execute("SELECT key_id FROM jobs WHERE id = ?", (sent["job_id"],)).fetchall()
        db.execute(  # as an earlier release logged it
            "INSERT INTO audit (at, who, action, key_id, details) VALUES (1, 'root', 'keys create', ?, '{}')", (owner,)
        )
        db.execute(
            "INSERT INTO notices (id, owner, watch_id, biz_no, payload, created) VALUES (?, ?, 'w', ?, ?, 1)",
            (f"n-{number}", owner, number, json.dumps({"event": "closure", "biz_no": number})),
        )
        db.commit()
    return str(sent["job_id"])


def test_every_table_with_rows_of_a_key_is_erased_or_kept_on_purpose(tmp_path: Path) -> None:
    path = tmp_path / "new.sqlite"
    SERVER_FILE.make(path)
    owned: dict[str, str] = {}
    with closing(sqlite3.connect(path)) as db:
        for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            columns = {name for _, name, *_ in db.execute(f"PRAGMA table_info({table})")}
            for column in columns & {"owner", "key_id"}:
                owned[table] = column
    assert owned == OWNED | KEPT


def erased(kept: Kept) -> None:
    """Nothing of the key is left but what the books need; the other key has all that it had."""
    assert kept.named(NUMBER) == []
    assert kept.named("김대리") == kept.named(HOOK) == []
    assert kept.named(OTHERS)
    assert not (kept.files / "learning" / kept.key_id).exists()
    assert not (kept.files / "jobs" / kept.job).exists()
    with closing(sqlite3.connect(kept.db)) as db:
        for table, column in OWNED.items():
            assert db.execute(f"SELECT count(*) FROM {table} WHERE {column} = ?", (kept.key_id,)).fetchone() == (0,)
            if table not in ("deliveries",):
                assert db.execute(f"SELECT count(*) FROM {table} WHERE {column} = ?", (kept.other,)).fetchone() != (0,)
        assert db.execute("SELECT month, used FROM usage WHERE key_id = ?", (kept.key_id,)).fetchall() == [(MONTH, 2)]
        assert db.execute("SELECT count(*) FROM labels").fetchone() == (1,)
    (key,) = [one for one in listed(kept.db) if one["id"] == kept.key_id]
    assert key["revoked"]
    assert key["erased"]
    assert (key["note"], key["webhook"], key["plan"]) == (None, False, "business")


def test_erasing_a_key_must_be_meant_and_leaves_no_byte_of_its_data(kept: Kept) -> None:
    with pytest.raises(UsageError, match=r"nothing was erased.*--yes"):
        keys("erase", kept.key_id, "--db", kept.db)
    with pytest.raises(UsageError, match="no key with this id"):
        keys("erase", "nobody", "--db", kept.db, "--yes")
    assert (bool(kept.named(NUMBER)), listed(kept.db)[0]["revoked"]) == (True, None)
    assert "jobs 1, outcomes 1, watches 1" in keys("erase", kept.key_id, "--db", kept.db, "--yes").stdout
    erased(kept)
    assert "was erased" in keys("erase", kept.key_id, "--db", kept.db, "--yes").stdout
    with served(kept.db, HandClock(KEPT_AT).clock) as server:
        assert HTTP.get(f"{server.url}/me", headers={"X-API-Key": kept.secret}).status_code == 401


def test_what_a_pool_left_of_a_key_is_erased_too(kept: Kept) -> None:
    names = ("pool", "former-pool", "pool-training")
    folders = [kept.files / "learning" / name / "labels" for name in names]
    for former in folders:
        former.mkdir(mode=0o700, parents=True)
        for key_id in (kept.key_id, kept.other):
            for path in (kept.files / "learning" / key_id / "labels").glob("*.parquet"):
                shutil.copy(path, former)
    assert "learned mailings 4" in keys("erase", kept.key_id, "--db", kept.db, "--yes").stdout
    assert [len(list(former.glob("*.parquet"))) for former in folders] == [1, 1, 1]
    assert kept.named(NUMBER) == []


def test_a_running_server_erases_a_key_when_it_is_asked_to(kept: Kept) -> None:
    with served(kept.db, HandClock(time.time()).clock) as server:
        headers = {"X-API-Key": kept.secret}
        watch = HTTP.get(f"{server.url}/watch", headers=headers).json()["watches"][0]["watch_id"]
        gone = {"biz_no": GONE, "name": "지난 상호"}
        HTTP.delete(f"{server.url}/watch/{watch}", headers=headers)
        HTTP.post(f"{server.url}/watch", json=gone, headers=headers)
    with served(kept.db) as server:
        assert HTTP.get(f"{server.url}/me", headers=headers).status_code == 200
        keys("erase", kept.key_id, "--db", kept.db, "--yes")
        assert kept.named(NUMBER) == kept.named(GONE) == []
        assert HTTP.get(f"{server.url}/me", headers=headers).status_code == 401
    erased(kept)
    (key,) = [one for one in listed(kept.db) if one["id"] == kept.key_id]
    assert key["last_used"] is None  # it is written down at a stop, too


def test_an_account_waits_for_its_requests_and_jobs(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_data, "_ERASURE_TIMEOUT_S", 0.0)
    with served(kept.db) as server:
        bounds = server.app.state.context.bounds
        bounds.enter(kept.key_id, load_plans()["business"])
        waiting = keys("erase", kept.key_id, "--db", kept.db, "--yes")
        assert waiting.exit_code == 5
        assert "when its requests and jobs have ended" in waiting.stderr
        time.sleep(20 * LOOKED_EVERY)
        assert kept.named(NUMBER)
        bounds.leave(kept.key_id)
        wait_until(lambda: bool(listed(kept.db)[0]["erased"]))
    erased(kept)


def test_a_start_completes_an_erasure_that_was_begun(kept: Kept) -> None:
    with closing(sqlite3.connect(kept.db)) as db:
        account_erasure.ask_for_erasure(db, kept.key_id, time.time() - 10)
        db.commit()
    with served(kept.db):
        wait_until(lambda: bool(listed(kept.db)[0]["erased"]))
    erased(kept)


ERASE = """
import os, signal, sys
from pathlib import Path
from bansong.server import erasure as account_erasure
step = sys.argv[3]
def kill(*given):
    os.kill(os.getpid(), signal.SIGKILL)
setattr(account_erasure, step, kill)
account_erasure.erase_account(Path(sys.argv[1]), sys.argv[2], 1.8e9)
"""


@pytest.mark.crash
@pytest.mark.parametrize("step", ["remove_files", "erase_rows", "rewrite_file"])
def test_an_erasure_that_is_killed_half_way_is_completed_by_the_next(kept: Kept, step: str) -> None:
    done = subprocess.run([sys.executable, "-c", ERASE, str(kept.db), kept.key_id, step], check=False)
    assert done.returncode == -9
    assert listed(kept.db)[0]["revoked"] is not None
    with served(kept.db, HandClock(KEPT_AT).clock) as server:
        assert HTTP.get(f"{server.url}/me", headers={"X-API-Key": kept.secret}).status_code == 401
    keys("erase", kept.key_id, "--db", kept.db, "--yes")
    erased(kept)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows knows no such modes")
def test_what_cannot_be_removed_is_said_and_not_called_erased(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(account_erasure.shutil, "rmtree", refused)
        with pytest.raises(StoreError, match="Permission denied"):
            keys("erase", kept.key_id, "--db", kept.db, "--yes")
    assert listed(kept.db)[0]["erased"] is None
    assert listed(kept.db)[0]["revoked"] is not None
    keys("erase", kept.key_id, "--db", kept.db, "--yes")
    erased(kept)


def retain(kept: Kept, hand: HandClock, **settings: float) -> None:
    """Erase what was kept long enough, once."""

    async def purge(store: Store) -> None:
        chosen = Settings(db=kept.db, **settings)
        learner = OutcomeLearner(chosen, hand.clock, store, EnginePool(chosen, hand.clock))
        await Retention(chosen, hand.clock, store, learner).purge_once()

    store = Store(kept.db)
    try:
        asyncio.run(purge(store))
    finally:
        store.close()


def test_the_account_of_a_revoked_key_is_erased_when_its_time_has_come_and_its_jobs_have_ended(kept: Kept) -> None:
    keys("revoke", kept.key_id, "--db", kept.db)
    hand = HandClock(time.time())
    for state, days, left in (("done", 29.9, True), ("running", 0.2, True), ("done", 0.0, False)):
        with closing(sqlite3.connect(kept.db)) as db:
            db.execute("UPDATE jobs SET state = ? WHERE id = ?", (state, kept.job))
            db.commit()
        hand.forward(days=days)
        retain(kept, hand, keep_revoked_days=30)
        assert bool(kept.named(NUMBER)) is left
    erased(kept)


def test_an_outcome_that_is_being_recorded_goes_with_its_account(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(sqlite3.connect(kept.db)) as db:  # it is one that no label store has yet
        db.execute("UPDATE labels SET learned = NULL, bounced = 0 WHERE job = ?", (kept.job,))
        db.commit()
    keys("revoke", kept.key_id, "--db", kept.db)
    hand, begun, go = HandClock(time.time()), Event(), Event()
    hand.forward(days=1)
    record = LabelStore.record

    def record_late(*arguments: Any, **options: Any) -> Any:
        begun.set()
        go.wait(0.5)  # until the account is erased, if that does not wait
        return record(*arguments, **options)

    async def race(store: Store) -> None:
        chosen = Settings(db=kept.db, keep_revoked_days=0)
        learner = OutcomeLearner(chosen, hand.clock, store, EnginePool(chosen, hand.clock))
        recording = asyncio.create_task(learner.record())
        await asyncio.to_thread(begun.wait, 120)
        await Retention(chosen, hand.clock, store, learner).purge_once()
        go.set()
        await recording

    monkeypatch.setattr(LabelStore, "record", record_late)
    with closing(Store(kept.db)) as store:
        asyncio.run(race(store))
    erased(kept)


def test_a_running_server_erases_what_was_kept_long_enough(kept: Kept) -> None:
    keys("revoke", kept.key_id, "--db", kept.db)
    hand = HandClock(time.time())
    with served(kept.db, hand.clock, keep_days=10_000):
        hand.until(lambda: rows_of(kept.db, "SELECT 1 FROM keys WHERE erased IS NOT NULL"), hours=12)
    assert kept.named(NUMBER) == []
    assert LabelStore(kept.files / "learning" / kept.other / "labels").mailings()


def test_letters_are_not_learned_from_longer_than_was_said(kept: Kept) -> None:
    models = kept.files / "learning" / kept.key_id / "models"
    models.mkdir(mode=0o700)
    (models / "journal.jsonl").write_text("")
    hand, store = HandClock(KEPT_AT), LabelStore(kept.files / "learning" / kept.key_id / "labels")
    hand.forward(days=399)
    retain(kept, hand, keep_labels_days=400)
    assert len(store.mailings()) == 1
    hand.forward(days=3)
    retain(kept, hand, keep_labels_days=400)
    assert store.mailings() == []
    assert (models / "journal.jsonl").exists()
    assert (kept.files / "jobs" / kept.job).exists()


def test_a_label_store_that_is_damaged_keeps_no_other_from_being_purged(
    kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = (str(key["id"]) for key in listed(kept.db))
    (path,) = (kept.files / "learning" / first / "labels").glob("*.parquet")
    path.write_bytes(b"PAR1")
    hand = HandClock(KEPT_AT)
    hand.forward(days=10)
    retain(kept, hand, keep_labels_days=1)
    assert LabelStore(kept.files / "learning" / second / "labels").mailings() == []
    assert "cannot be purged" in caplog.text
    assert path.exists()
