"""Files of older releases go on working: a file of each kind as version 1 left it, and every version between.

``tests/files/*_v1.zip`` were made by the code of that time: ``ledger_v1`` by the first release of the ledger,
``server_v1`` and ``watch_v1`` by the last one whose watch lists had a stored JSON column, ``server_v3`` by the last one
whose keys had one secret each, ``status_store_v1`` and ``job_v1`` with the tables of the first release of each.
"""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import httpx
import polars as pl
import pytest
from filelock import FileLock

from bansong import watch
from bansong.base.sqlite import FileKind
from bansong.errors import LedgerError, StoreError
from bansong.jobs.state import RUN_FILE
from bansong.purchase.changes import RowLabel
from bansong.purchase.ledger import Ledger, LedgerRun
from bansong.purchase.ledger_file import LEDGER_FILE
from bansong.purchase.lookups import keys_of, scope_of
from bansong.reference.status_store import STATUS_FILE
from bansong.server.store import SERVER_FILE, Store, lock_server_file, open_server_file
from bansong.watch.store import WATCH_FILE, LocalFile
from handclock import HandClock
from serving import served
from test_watch_local import Town

FILES: Final = Path(__file__).parent / "files"
ORIGIN: Final = "https://service.test"
RECORDS: Final = [
    ("1248100998", "삼성전자", "경기 수원시 영통구 삼성로 129"),
    ("2208162517", "가게", "서울 강남구 테헤란로 1"),
    ("1018128456", None, None),
]
KINDS: Final = {
    "ledger": (LEDGER_FILE, "ledger.sqlite"),
    "server": (SERVER_FILE, "db.sqlite"),
    "watch": (WATCH_FILE, "watch.sqlite"),
    "status_store": (STATUS_FILE, "statuses.sqlite"),
    "job": (RUN_FILE, "job.sqlite"),
}
OPEN: Final[dict[str, Callable[[Path], Any]]] = {
    "ledger": Ledger.open,
    "server": open_server_file,
    "watch": lambda path: LocalFile(path).__enter__().connection,
    "status_store": STATUS_FILE.open,
    "job": RUN_FILE.open,
}


def unpacked(name: str, folder: Path, version: int = 1) -> Path:
    with zipfile.ZipFile(FILES / f"{name}_v{version}.zip") as archive:
        archive.extractall(folder)
    return folder / KINDS[name][1]


def schema(path: Path) -> dict[str, object]:
    """The columns of each table, and what else there is by name."""
    with closing(sqlite3.connect(path)) as db:
        things = db.execute("SELECT type, name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'").fetchall()
        return {
            f"{kind} {name}": db.execute(f"PRAGMA table_xinfo({name})").fetchall() if kind == "table" else None
            for kind, name in things
        }


def version_of(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        version: int = db.execute("PRAGMA user_version").fetchone()[0]
        return version


def earlier_versions() -> list[tuple[str, int]]:
    return [(name, version) for name, (kind, _) in KINDS.items() for version in range(1, kind.version)]


@pytest.mark.parametrize(("name", "version"), earlier_versions())
def test_a_file_of_every_earlier_version_gets_the_tables_of_a_new_one(name: str, version: int, tmp_path: Path) -> None:
    kind, _ = KINDS[name]
    path, new = unpacked(name, tmp_path), tmp_path / "new.sqlite"
    kind.make(new)
    with closing(sqlite3.connect(path)) as db:
        for step in range(1, version):
            db.executescript(f"BEGIN; {kind.migrations[step]} PRAGMA user_version = {step + 1}; COMMIT;")
    assert version_of(path) == version
    OPEN[name](path).close()
    assert version_of(path) == kind.version == version_of(new)
    assert schema(path) == schema(new)
    OPEN[name](path).close()


@pytest.mark.parametrize("name", KINDS)
def test_a_file_may_be_named_from_the_working_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with `BANSONG_STATE_DIR=state`."""
    kind, file = KINDS[name]
    monkeypatch.chdir(tmp_path)
    kind.make(Path(file))
    OPEN[name](Path(file)).close()


def test_a_first_ledger_knows_its_answers_its_doubts_and_its_job(tmp_path: Path) -> None:
    keys = keys_of(scope_of(ORIGIN, None, None), RECORDS)
    with Ledger.open(unpacked("ledger", tmp_path), clock=lambda: 1_763_800_000.0) as ledger:
        (known,) = ledger.entries(pl.Series([keys[record] for record in RECORDS], dtype=pl.Binary))
        assert known.sort("place")["state"].to_list() == ["done", "doubt", "uploaded"]
        assert known.filter(place=0).select("grade", "fixed_zipcode").row(0) == ("A", "16677")
        assert [upload.job_id for upload in ledger.open_uploads(ORIGIN)] == ["job-1"]
        assert len(ledger.doubts()) == 1
        assert ledger.labelled_jobs([1])[1].base is None
        label = RowLabel(1, 0, True, None)
        assert len(ledger.prepare_labels(LedgerRun("r", "label", ORIGIN, "a.csv", 1.0), [label]).labels) == 1


def test_a_first_server_s_file_serves_its_key_its_job_and_its_watches(tmp_path: Path) -> None:
    db = unpacked("server", tmp_path)
    expected = json.loads((tmp_path / "expected.json").read_text("utf-8"))
    with (
        served(db, HandClock(expected["now"]).clock) as server,
        httpx.Client(base_url=server.url, headers={"X-API-Key": expected["secret"]}, trust_env=False) as client,
    ):
        assert client.get("/me").json()["quota"]["used"] == expected["used"]
        assert client.get(f"/batch/{expected['job']['job_id']}?offset=0&limit=100").json() == expected["job"]
        assert client.get("/watch").json() == expected["watches"]
        added = client.post("/watch", json={"biz_no": "1018128456", "name": "새 가게"})
        assert added.status_code == 201
        assert client.get("/watch").json()["watches"] == [*expected["watches"]["watches"], added.json()]


def test_a_file_whose_keys_had_one_secret_each_goes_on_with_them(tmp_path: Path) -> None:
    db = unpacked("server", tmp_path, 3)
    expected = json.loads((tmp_path / "expected.json").read_text("utf-8"))
    with (
        served(db, HandClock(expected["now"]).clock) as server,
        httpx.Client(base_url=server.url, headers={"X-API-Key": expected["secret"]}, trust_env=False) as client,
    ):
        assert client.get("/me").json()["quota"] == expected["me"]["quota"]
        assert client.get(f"/batch/{expected['job']['job_id']}").json() == expected["job"]
        assert client.get("/watch").json() == expected["watches"]
        again = client.post("/verify", json=expected["asked"], headers={"Idempotency-Key": "lookup-1"})
        assert again.json() == expected["answer"]
        assert client.get("/me").json()["quota"]["used"] == expected["me"]["quota"]["used"]
        assert client.get("/me", headers={"X-API-Key": expected["pooled"]}).json()["plan"] == "enterprise"
        assert client.get("/me", headers={"X-API-Key": expected["revoked"]}).status_code == 401
    with closing(sqlite3.connect(db)) as connection:
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        kept = connection.execute("SELECT note, webhook_url FROM keys WHERE id = ?", (expected["key_id"],)).fetchall()
        assert kept == [("우편실", "https://example.com/closures")]
        assert connection.execute("SELECT row_id, bounced, reason FROM labels").fetchall() == [(0, 1, "이사불명")]
        assert connection.execute("SELECT count(*), count(expires) FROM secrets").fetchone() == (3, 0)


def test_a_first_watch_file_is_listed_and_checked(tmp_path: Path) -> None:
    path = unpacked("watch", tmp_path)
    town = Town(tmp_path / "town")
    town.list = path
    before = watch.entries(local=path)
    assert before["biz_no"].to_list() == town.numbers
    assert before["biz_status"].to_list() == ["active", "closed", "active", "active"]
    town.closed = set(town.numbers[1:3])
    report = town.check(everything=True)
    assert report.checked == 4
    assert [notice["biz_no"] for notice in report.notices] == [town.numbers[2]]
    assert watch.history_frame(town.numbers[2], local=path)["biz_status"].to_list() == ["closed"]


@pytest.mark.parametrize("name", KINDS)
def test_a_step_that_fails_leaves_every_kind_of_file_as_it_was(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, _ = KINDS[name]
    path = unpacked(name, tmp_path)
    before = schema(path)
    with monkeypatch.context() as patch:
        patch.setitem(kind.migrations, 1, kind.migrations[1] + "INSERT INTO nowhere VALUES (1);")  # type: ignore[arg-type]
        with pytest.raises(kind.error, match="nowhere"):
            OPEN[name](path)
    assert (version_of(path), schema(path)) == (1, before)
    OPEN[name](path).close()
    assert version_of(path) == kind.version


@pytest.mark.parametrize("name", KINDS)
def test_a_file_of_a_newer_release_is_refused_with_what_to_do(name: str, tmp_path: Path) -> None:
    kind, _ = KINDS[name]
    path = tmp_path / "new.sqlite"
    kind.make(path)
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version = {kind.version + 1}")
    before = path.read_bytes()
    said = rf"newer bansong \(version {kind.version + 1}, not {kind.version}\) and is left as it is; update this one"
    with pytest.raises(kind.error, match=said):
        OPEN[name](path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", KINDS)
def test_a_sqlite_that_is_too_old_is_named_with_the_remedy(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, _ = KINDS[name]
    major, minor, _ = kind.minimum
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (major, minor - 1, 5))
    monkeypatch.setattr(sqlite3, "sqlite_version", f"{major}.{minor - 1}.5")
    said = re.escape(f"needs SQLite {major}.{minor} or newer, and this Python has {major}.{minor - 1}.5; use a Python")
    path = tmp_path / "new.sqlite"
    with pytest.raises(kind.error, match=said):
        OPEN[name](path)
    assert not path.exists()
    with pytest.raises(kind.error, match=said):
        OPEN[name](unpacked(name, tmp_path))


def test_an_older_file_in_use_is_not_changed_under_whoever_uses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bansong.base.sqlite._LOCK_TIMEOUT_S", 0.2)
    path = unpacked("server", tmp_path)
    with FileLock(f"{path}.lock"):  # not the one of this process that SERVER_FILE knows of
        for writing in (True, False):
            with pytest.raises(StoreError, match="another process is using it; stop that one, or restart it"):
                open_server_file(path, writing=writing)
    assert version_of(path) == 1
    open_server_file(path, writing=False).close()
    assert version_of(path) == SERVER_FILE.version


def test_threads_may_open_an_older_file_at_once(tmp_path: Path) -> None:
    """One brings it forward, the other waits for it; no step is taken twice."""
    path, opened = unpacked("watch", tmp_path), []
    start = threading.Barrier(4)

    def open_it() -> None:
        start.wait()
        WATCH_FILE.open(path).close()
        opened.append(path)

    threads = [threading.Thread(target=open_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 4


@pytest.mark.parametrize(
    "want", [lambda path: SERVER_FILE.open(path).close(), lambda path: lock_server_file(path).release()]
)
def test_an_older_file_is_waited_for_while_another_process_brings_it_forward(
    want: Callable[[Path], None], tmp_path: Path
) -> None:
    """Not only who opens it: who wants its lock, as a server that starts, waits as well."""
    path = unpacked("server", tmp_path)
    other = FileLock(f"{path}.lock", thread_local=False)
    other.acquire()
    timer = threading.Timer(0.3, other.release)
    timer.start()
    want(path)
    timer.join()


def test_who_has_the_lock_may_bring_its_file_forward(tmp_path: Path) -> None:
    path = unpacked("server", tmp_path)
    lock = lock_server_file(path)
    try:
        Store(path).close()
        assert lock.is_locked
        with pytest.raises(StoreError, match="another server is running"):
            lock_server_file(path)
    finally:
        lock.release()
    assert version_of(path) == SERVER_FILE.version


def test_each_kind_has_its_own_application_id() -> None:
    kinds: list[FileKind] = [kind for kind, _ in KINDS.values()]
    assert len({kind.application_id for kind in kinds}) == len(kinds)
    assert {kind.error for kind in kinds} == {LedgerError, StoreError}


# --- locks


TAKE_LOCK: Final = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None)
try:
    connection.execute("BEGIN IMMEDIATE")
except sqlite3.OperationalError as error:
    print(error.sqlite_errorname)
else:
    print("taken")
"""


def lock_from_outside(path: Path) -> str:
    """What another process meets that would write to a file: ``SQLITE_BUSY``, or its lock is ``taken``."""
    return subprocess.run([sys.executable, "-c", TAKE_LOCK, path], capture_output=True, text=True).stdout.strip()


@pytest.mark.skipif(sys.platform == "win32", reason="locks are the process's on POSIX systems only")
@pytest.mark.parametrize("second", ["reader", "writer", "version", "lock"])
def test_a_second_look_at_a_file_leaves_the_first_connection_its_lock(tmp_path: Path, second: str) -> None:
    """While one thread writes, another opens the same file or looks at its version: no other process can write."""
    path = tmp_path / "db.sqlite"
    with closing(open_server_file(path)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        match second:
            case "reader":
                open_server_file(path, writing=False).close()
            case "writer":
                open_server_file(path).close()
            case "version":
                assert SERVER_FILE.stored_version(path) == SERVER_FILE.version
            case "lock":
                lock_server_file(path).release()
        assert lock_from_outside(path) == "SQLITE_BUSY"
        writer.execute("COMMIT")
    assert lock_from_outside(path) == "taken"


@pytest.mark.skipif(sys.platform == "win32", reason="locks are the process's on POSIX systems only")
def test_a_ledger_that_is_opened_twice_stays_locked(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with Ledger.open(path):
        with pytest.raises(LedgerError):
            Ledger.open(path)
        assert lock_from_outside(path) == "SQLITE_BUSY"
