"""Forgetting a business: no store keeps a byte of it, nothing that may have been paid is lost, the rest is named."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import bansong as bs
from bansong.base import sqlite
from bansong.engine.registry import STATUS_SCHEMA
from bansong.errors import NumberError, UsageError
from bansong.history.labels import LabelStore
from bansong.notify.queue import SummaryWindow, add_summaries
from bansong.purchase.ledger import Ledger
from bansong.reference.status_store import StatusStore
from bansong.testing import Body, FakeService, Fault, Reset, serve
from bansong.watch.store import LocalFile
from conftest import runner, write
from customers import KEY, customers, numbers
from handclock import HandClock
from serving import HTTP, read_here, rows_of, served

Run = Callable[..., subprocess.CompletedProcess[str]]
GONE, KEPT = numbers(8)[2], numbers(8)[3]
ROWS_STAY = (*sqlite._PRAGMAS, "secure_delete = OFF")


@pytest.fixture(autouse=True)
def deleted_rows_stay_in_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some builds of SQLite (Debian's) overwrite what is deleted; here none does, as most do not."""
    monkeypatch.setattr(sqlite, "_PRAGMAS", ROWS_STAY)


@pytest.fixture
def service() -> FakeService:
    return FakeService(KEY, quota=1000)


def named_in(folder: Path, b_no: str = GONE) -> list[str]:
    """The files below a folder that hold a number as bytes, in either spelling; columns of Parquet files are read."""
    spellings = b_no.encode(), bs.number.format(b_no).encode()
    found = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = str(pl.read_parquet(path).to_dicts()).encode() if path.suffix == ".parquet" else path.read_bytes()
        if any(spelling in content for spelling in spellings):
            found.append(path.name)
    return found


def forget(run: Run, *arguments: object) -> dict[str, Any]:
    done = run("forget", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def held(report: dict[str, Any]) -> dict[str, dict[str, int]]:
    """What the stores of a report hold, without what is nothing."""
    stores = {store["store"]: {what: n for what, n in store["counts"].items() if n} for store in report["stores"]}
    return {name: counts for name, counts in stores.items() if counts}


@pytest.fixture(scope="module")
def life_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files and the state that each test has a copy of."""
    folder = tmp_path_factory.mktemp("life")
    (folder / "files").mkdir()
    with serve(FakeService(KEY, quota=1000)) as url, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite, "_PRAGMAS", ROWS_STAY)
        patch.setenv("BANSONG_STATE_DIR", str(folder / "state"))
        patch.setenv("BANSONG_BASE_URL", url)
        patch.setenv("BANSONG_API_KEY", KEY)
        live(folder / "files", runner(folder / "files"))
    return folder


@pytest.fixture
def life(life_once: Path, url: str, tmp_path: Path, state_directory: Path) -> Path:
    """The state of a user who bought, mailed, recorded what came back and watches; returns its directory."""
    shutil.copytree(life_once / "files", tmp_path, dirs_exist_ok=True)
    shutil.copytree(life_once / "state", state_directory, dirs_exist_ok=True)
    return state_directory


def live(folder: Path, run: Run) -> None:
    customers(folder / "in.csv", 8)
    assert run("enrich", "in.csv", "-o", "out.csv", "--engine", "batch").returncode == 0
    write(folder / "back.csv", f"사업자번호,반송사유\n{GONE},이사불명\n{KEPT},이사불명\n")
    declared = ("--mailed", "2026-10-05", "--returns-requested", "--complete", "--sent", "all")
    labelled = run("label", "back.csv", "--file", "out.csv", *declared)
    assert labelled.returncode == 0, labelled.stderr
    for b_no in (GONE, KEPT):
        assert run("watch", "add", b_no, "--local").returncode == 0


def test_a_number_leaves_every_store_and_no_file_holds_a_byte_of_it(life: Path, run: Run) -> None:
    before = named_in(life, KEPT)
    looked = forget(run, GONE, "--dry-run")
    assert {"ledger.sqlite", "watch.sqlite"} < set(named_in(life))
    assert any(name.endswith(".parquet") for name in named_in(life))
    report = forget(run, GONE, "--yes")
    assert (named_in(life), named_in(life, KEPT)) == ([], before)
    found = held(report)
    assert found["ledger"] == {"lookups": 1, "paid answers": 1, "rows of uploads": 1, "labels": 1}
    assert found["label store"] == {"letters": 1}
    assert found["watch list"]["watches"] == 1
    assert (report["erased"], looked["erased"], report["paid_answers"], held(looked)) == (True, False, 1, found)
    assert held(forget(run, GONE, "--yes")) == {}


def test_nothing_is_erased_unasked_and_what_is_out_of_reach_is_named(
    life: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    refused = run("forget", GONE)
    assert refused.returncode == 2
    assert "--yes" in refused.stderr
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    declined = run("forget", GONE)
    assert declined.returncode == 0
    assert "nothing was erased" in declined.stderr
    assert "ledger.sqlite" in named_in(life)
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    done = run("forget", GONE)
    for words in (
        "out.csv",
        "in.csv",
        ".bak",
        "registries",
        "--notify",
        "scorecards",
        "bansong watch remove",
        "`written`",
    ):
        assert words in done.stderr
    assert "1 lookup: paid again if needed again" in done.stderr
    assert named_in(life) == []


def test_only_the_forgotten_lookup_is_paid_again(service: FakeService, url: str, run: Run, tmp_path: Path) -> None:
    live(tmp_path, run)
    forget(run, GONE, "--yes")
    again = run("enrich", "in.csv", "-o", "out2.csv", "--engine", "batch", "--json")
    assert json.loads(again.stdout)["lookups"] == {"planned": 8, "paid": 1, "cached": 7, "saved": 0}


def test_what_may_have_been_paid_is_not_lost_silently(
    service: FakeService, url: str, run: Run, tmp_path: Path, state_directory: Path
) -> None:
    customers(tmp_path / "in.csv", 8)
    service.faults.add(Fault("verify", Reset("after"), at=3))
    assert run("enrich", "in.csv", "--engine", "verify", "--concurrency", "1").returncode == 3
    (doubt,) = json.loads(run("resolve", "--json").stdout)["unsettled"]
    run("watch", "add", doubt["b_no"], "--local")
    refused = run("forget", doubt["b_no"], "--yes")
    assert refused.returncode == 2
    assert doubt["id"] in refused.stderr
    assert "bansong resolve" in refused.stderr
    assert {"ledger.sqlite", "watch.sqlite"} == set(named_in(state_directory, doubt["b_no"]))
    assert forget(run, doubt["b_no"], "--dry-run")["unsettled"] == [doubt["id"]]
    assert run("resolve", doubt["id"], "--lost").returncode == 0
    assert held(forget(run, doubt["b_no"], "--yes"))["ledger"] == {"lookups": 1, "decisions": 1}
    assert named_in(state_directory, doubt["b_no"]) == []


def test_an_upload_in_doubt_holds_each_of_its_rows(
    service: FakeService, url: str, run: Run, tmp_path: Path, state_directory: Path
) -> None:
    """The rows of an upload are told apart by their place, so none may be erased before it is settled."""
    customers(tmp_path / "in.csv", 8)
    service.faults.add(Fault("batch", Reset("after")))
    assert run("enrich", "in.csv", "--engine", "batch").returncode == 3
    refused = run("forget", GONE, "--yes")
    assert refused.returncode == 2
    (upload,) = json.loads(run("resolve", "--json").stdout)["unsettled"]
    assert upload["id"] in refused.stderr
    job = next(iter(service.jobs))
    assert run("resolve", upload["id"], "--job", job).returncode == 0
    assert run("forget", GONE, "--yes").returncode == 2  # its results are to be fetched yet
    assert run("enrich", "in.csv", "--engine", "batch").returncode == 0
    forget(run, GONE, "--yes")
    assert named_in(state_directory) == []
    assert service.paid_total == 8


def test_a_reply_that_names_the_number_is_erased_with_it(
    service: FakeService, url: str, run: Run, tmp_path: Path, state_directory: Path
) -> None:
    """Bytes that could not be read are kept for support; of a forgotten number they are erased, whoever asked."""
    customers(tmp_path / "in.csv", 8)
    reply = f'{{"ok": "{GONE}"}}'.encode()
    service.faults.add(Fault("verify", Body(reply), at=6))
    assert run("enrich", "in.csv", "--engine", "verify", "--concurrency", "1").returncode == 3
    assert run("resolve", "--all", "--lost").returncode == 0
    forget(run, GONE, "--yes")
    assert named_in(state_directory) == []


def test_what_was_purged_before_leaves_no_bytes_either(life: Path, run: Run) -> None:
    assert run("ledger", "--purge", "0").returncode == 0
    forget(run, GONE, "--yes")
    assert named_in(life) == []


@pytest.mark.parametrize("store", ["ledger", "watch list"])
def test_a_store_in_use_is_said_in_one_sentence_and_nothing_is_erased(store: str, life: Path, run: Run) -> None:
    from bansong.watch.store import alone

    with Ledger.open() if store == "ledger" else alone(life / "watch.sqlite"):
        refused = run("forget", GONE, "--yes")
    assert refused.returncode == 2
    assert ("in use by another run" if store == "ledger" else "another check of this list is running") in refused.stderr
    assert "Traceback" not in refused.stderr
    assert "watch.sqlite" in named_in(life)


def test_a_damaged_store_stops_it_before_anything_is_erased(life: Path, run: Run) -> None:
    (mailing,) = (life / "labels").glob("*.parquet")
    mailing.write_bytes(b"no parquet")
    refused = run("forget", GONE, "--yes")
    assert refused.returncode == 2
    assert mailing.name in refused.stderr
    assert {"ledger.sqlite", "watch.sqlite"} <= {
        path.name for path in life.glob("*.sqlite") if GONE.encode() in path.read_bytes()
    }


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
def test_killed_halfway_the_same_command_ends_it(life: Path, run: Run) -> None:
    code = (
        "import os, signal, bansong as bs, bansong.purchase.ledger as ledger\n"
        "ledger.rewrite_file = lambda connection: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"bs.forget('{GONE}')"
    )
    killed = subprocess.run([sys.executable, "-c", code], env=os.environ, check=False, timeout=120)
    assert killed.returncode == -signal.SIGKILL
    assert "watch.sqlite" in named_in(life)
    forget(run, GONE, "--yes")
    assert named_in(life) == []


def test_letters_that_a_killed_record_left_are_erased(life: Path, run: Run) -> None:
    """A temporary file of a mailing is no mailing, whole or not; forgetting removes it, however new it is."""
    (mailing,) = (life / "labels").glob("*.parquet")
    for name, content in ("01234567", mailing.read_bytes()), ("89abcdef", b"PAR1, cut short"):
        mailing.with_name(f".bansong-{name}-{mailing.name}").write_bytes(content)
    assert len(LabelStore().mailings()) == 1
    assert held(forget(run, GONE, "--yes"))["label store"] == {"letters": 1}
    assert named_in(life) == []
    assert list((life / "labels").glob(".bansong-*")) == []


def test_names_of_files_that_hold_the_number_are_erased(run: Run, tmp_path: Path, state_directory: Path) -> None:
    """Ledger and label store know files by name; only manifests still name one, and the report says which."""
    with serve(FakeService(KEY, quota=1000)) as url, pytest.MonkeyPatch.context() as patch:
        patch.setenv("BANSONG_BASE_URL", url)
        patch.setenv("BANSONG_API_KEY", KEY)
        customers(tmp_path / f"{GONE}.csv", 8)
        assert run("enrich", f"{GONE}.csv", "-o", f"{GONE}-out.csv", "--engine", "batch").returncode == 0
    write(tmp_path / f"back-{GONE}.csv", f"사업자번호,반송사유\n{KEPT},이사불명\n")
    declared = ("--mailed", "2026-10-05", "--returns-requested", "--complete", "--sent", "all")
    assert run("label", f"back-{GONE}.csv", "--file", f"{GONE}-out.csv", *declared).returncode == 0
    report = forget(run, GONE, "--yes")
    (manifest,) = report["manifests"]
    assert [path for path in state_directory.rglob("*") if path.is_file() and GONE.encode() in path.read_bytes()] == [
        Path(manifest)
    ]
    (mailing,) = LabelStore().mailings()
    assert (mailing.about.file, mailing.about.sources[0].name) == ("…-out.csv", "back-….csv")


@contextmanager
def closed_to_us(monkeypatch: pytest.MonkeyPatch, folder: Path, below: bool = False) -> Iterator[None]:
    """A folder that may not be read; root may read everything, so modes would show nothing."""

    def guard(call: Callable[..., Any], below: bool = False) -> Callable[..., Any]:
        def guarded(path: Any = ".", *rest: Any, **more: Any) -> Any:
            name = "" if isinstance(path, int) else os.fspath(path)
            if name.startswith(f"{folder}/") if below else name == str(folder):
                raise PermissionError(13, "Permission denied", name)
            return call(path, *rest, **more)

        return guarded

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", guard(os.scandir))
        patch.setattr(os, "listdir", guard(os.listdir))
        if below:
            patch.setattr(os, "stat", guard(os.stat, below=True))
        yield


@pytest.mark.parametrize("place", ["", "labels", "runs"])
def test_a_folder_that_cannot_be_read_is_no_empty_one(
    place: str, life: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closed_to_us(monkeypatch, life / place, below=not place):
        refused = run("forget", GONE, "--yes")
    assert refused.returncode == 2
    assert "Permission denied" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert {"ledger.sqlite", "watch.sqlite"} <= set(named_in(life))


def test_several_numbers_in_any_spelling_from_python(life: Path) -> None:
    report = bs.forget([bs.number.format(GONE), int(KEPT)])
    assert report.numbers == (GONE, KEPT)
    assert report.paid_answers == 2
    assert named_in(life) == named_in(life, KEPT) == []
    assert str(report).startswith("erased")
    with pytest.raises(NumberError):
        bs.forget("123")
    with pytest.raises(UsageError, match="no business number"):
        bs.forget([])


def test_a_store_that_was_named_must_be_there(run: Run) -> None:
    assert held(forget(run, GONE, "--yes")) == {}
    for option in ("--ledger", "--labels", "--local", "--status-store", "--db"):
        refused = run("forget", GONE, "--yes", option, "nowhere/it")
        assert refused.returncode == 2
        assert "does not exist" in refused.stderr


def test_a_summary_of_closures_goes_on_without_the_number(life: Path, run: Run) -> None:
    with LocalFile(life / "watch.sqlite") as file, file.writing() as db:
        for biz_nos in ([GONE, KEPT], [GONE]):
            found = pl.DataFrame({"owner": ["local"] * len(biz_nos), "biz_no": biz_nos})
            add_summaries(db, found, 1e9, ["file"], SummaryWindow(2e9, 2e9))
    counts = held(forget(run, GONE, "--yes"))["watch list"]
    assert counts["summaries"] == 2
    assert named_in(life) == []
    with LocalFile(life / "watch.sqlite") as file, file.reading() as db:
        ((payload,),) = db.execute("SELECT payload FROM notices").fetchall()
    assert (json.loads(payload)["biz_nos"], json.loads(payload)["closed"]) == ([KEPT], 1)


def test_a_fetched_status_is_forgotten_with_its_day(run: Run, state_directory: Path) -> None:
    """The status store holds numbers as SQLite writes integers: none of the number's bytes stay in its file."""
    today = date(2026, 11, 23)
    with StatusStore() as store:
        known = pl.DataFrame({"b_no": [int(GONE), int(KEPT)], "biz_status": "active", "as_of": today})
        empty = [pl.lit(None, dtype).alias(name) for name, dtype in STATUS_SCHEMA.items() if name not in known.columns]
        store.write(known.with_columns(empty).cast(STATUS_SCHEMA).select(*STATUS_SCHEMA))
        path = store.path
    assert varint(GONE) in path.read_bytes()
    assert held(forget(run, GONE, "--dry-run"))["status store"] == {"statuses": 1}
    assert held(forget(run, GONE, "--yes"))["status store"] == {"statuses": 1}
    assert varint(GONE) not in path.read_bytes()
    with StatusStore() as store:
        assert store.read()["b_no"].to_list() == [int(KEPT)]


def varint(b_no: str) -> bytes:
    """A row's number as it stands in a file of SQLite."""
    number = int(b_no)
    groups = [number >> shift & 127 for shift in range(28, -1, -7)]
    return bytes([*(group | 128 for group in groups[:-1]), groups[-1]])


@pytest.fixture(scope="module")
def kept_once(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """What each test has a copy of: the file lies in a folder of its own."""
    folder = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BANSONG_STATE_DIR", str(folder / "state"))
        patch.setattr(sqlite, "_PRAGMAS", ROWS_STAY)
        read_here(patch)
        return keep(folder / "home")


@pytest.fixture
def kept_server(
    kept_once: tuple[Path, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, str, str]:
    """A server's file, with two keys that watch a number, a job that has it, and an outcome; its job and a secret."""
    read_here(monkeypatch)
    db, job, secret = kept_once
    shutil.copytree(db.parent, tmp_path, dirs_exist_ok=True)
    return tmp_path / db.name, job, secret


def keep(folder: Path) -> tuple[Path, str, str]:
    folder.mkdir()
    clock, db = HandClock(), folder / "server.sqlite"
    with served(db, clock.clock) as server:
        secrets = [server.key(), server.key()]
        headers = [{"X-API-Key": secret} for secret in secrets]
        for header in headers:
            for b_no in (GONE, KEPT):
                watched = HTTP.post(f"{server.url}/watch", json={"biz_no": b_no}, headers=header | _token(b_no))
                assert watched.status_code == 201
        rows = f"{KEPT},가,서울시 중구 세종대로 1\n{bs.number.format(GONE)},나,서울시 중구 세종대로 2\n"
        content = f"사업자번호,상호,주소\n{rows}"
        sent = HTTP.post(f"{server.url}/batch", files={"file": ("a.csv", content.encode())}, headers=headers[0]).json()
        job = f"{server.url}/batch/{sent['job_id']}"
        clock.until(lambda: HTTP.get(job, headers=headers[0]).json()["status"] == "done")
        for row in (0, 1):
            HTTP.post(f"{job}/label", json={"row_id": row, "bounced": True}, headers=headers[0])
        clock.until(lambda: rows_of(db, "SELECT 1 FROM labels WHERE learned IS NULL") == [], seconds=1)
        refused = _refusal(db)
    assert "another server is running on it" in refused
    return db, sent["job_id"], secrets[0]


def _token(b_no: str) -> dict[str, str]:
    return {"Idempotency-Key": f"watch-{b_no[-3:]}"}


def _refusal(db: Path) -> str:
    with pytest.raises(bs.BansongError) as caught:
        bs.forget(GONE, db=[db])
    return str(caught.value)


def test_a_server_forgets_watches_rows_of_jobs_and_letters(
    kept_server: tuple[Path, str, str], tmp_path: Path, run: Run
) -> None:
    """Of all keys; a running server is refused. The job keeps its rows and charge, the row has no content any more."""
    db, job, secret = kept_server
    files = Path(f"{db}.files")
    charged = rows_of(db, "SELECT total, charged FROM jobs")
    counts = held(forget(run, GONE, "--yes", "--db", db))["server"]
    assert counts["watches"] == 2
    assert counts["records of jobs"] == counts["results of jobs"] == counts["labels"] == 1
    assert named_in(files) == []
    assert GONE.encode() not in db.read_bytes()
    assert KEPT.encode() in db.read_bytes()
    assert rows_of(db, "SELECT total, charged FROM jobs") == charged
    assert rows_of(db, "SELECT row_id FROM labels") == [(0,)]
    (mailing,) = LabelStore(next((files / "learning").glob("*/labels"))).mailings()
    assert mailing.bounced == 1
    with served(db, HandClock().clock) as server:
        shown = HTTP.get(f"{server.url}/batch/{job}", headers={"X-API-Key": secret}).json()
    rows = {row["row_id"]: row for row in shown["results"]}
    assert (rows[0]["b_no"], rows[0]["error"]) == (KEPT, None)
    assert (rows[1]["b_no"], rows[1]["biz_status"], rows[1]["reasons"]) == (None, None, [])
    assert "forgotten" in rows[1]["error"]
    assert [row["row_id"] for row in shown["results"]] == [0, 1]


@pytest.mark.parametrize("place", ["jobs/*", "learning/*/labels"])
def test_a_folder_of_a_server_that_cannot_be_read_is_no_empty_one(
    kept_server: tuple[Path, str, str], run: Run, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    db, *_ = kept_server
    with closed_to_us(monkeypatch, next(Path(f"{db}.files").glob(place))):
        refused = run("forget", GONE, "--yes", "--db", db)
    assert refused.returncode == 2
    assert "Permission denied" in refused.stderr or "cannot be read" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert GONE.encode() in db.read_bytes()
