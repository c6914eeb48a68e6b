"""`bansong serve --check`: what would keep a server from starting is said with its remedy, and nothing is changed."""

from __future__ import annotations

import os
import socket
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

import bansong as bs
from bansong.cli.app import app
from bansong.server import keys as key_table
from bansong.server.store import SERVER_FILE, open_server_file
from bansong.upkeep import doctor as checks
from serving import logged, make_key, served


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "db.sqlite"


def check(db: Path, *options: object) -> tuple[int, str]:
    words = ["serve", "--check", "--port", "0", "--db", str(db), *map(str, options)]
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, words)
    return done.exit_code, done.stdout


def files_below(folder: Path) -> dict[Path, tuple[int, int, bytes]]:
    found = [path for path in folder.rglob("*") if path.is_file()]
    return {path: (path.stat().st_mode, path.stat().st_mtime_ns, path.read_bytes()) for path in found}


def test_nothing_is_there_yet_and_nothing_is_made(db: Path) -> None:
    code, text = check(db)
    assert (code, list(db.parent.iterdir())) == (0, [])
    assert "is not there yet and will be made" in text
    assert "database: make the first key with `bansong keys create`" in text


def test_it_works_beside_a_running_server_and_changes_no_byte(db: Path) -> None:
    """The server's own port, taken by itself, is no fault; its file is read and its lock left."""
    source, registry = db.with_name("source.csv"), db.with_name("registry.parquet")
    source.write_text("b_no,b_stt,asof\n1248100998,계속사업자,2026-11-10\n", encoding="utf-8")
    bs.build_registry([source], registry)
    with served(db, registry=registry, metrics_port=0) as server:
        server.key()
        before, port = files_below(db.parent), server.url.rpartition(":")[2]
        code, text = check(db, "--port", port, "--metrics-port", server.app.state.metrics_port, "--registry", registry)
        assert files_below(db.parent) == before
    assert code == 0, text
    assert text.count("in use, as it should be while the server runs") == 2
    for said in ("in use by a server that is running", "1 key", f"{registry}: 1 business"):
        assert said in text


def test_a_port_that_is_taken_is_an_error(db: Path) -> None:
    """By another process, or by the service itself."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = {option: check(db, f"--{option}", port) for option in ("port", "metrics-port")}
    for (option, (code, text)), name in zip(found.items(), ("port", "metrics"), strict=True):
        assert (code, f"{name}: stop what listens there, or choose another --{option}" in text) == (2, True)
    assert check(db, "--port", port, "--metrics-port", port)[0] == 2


@pytest.mark.parametrize(
    ("option", "content", "says"),
    [
        ("--plans", b"[gold]\napi = 1\n", "not a file of plans"),
        ("--registry", b"no registry", "registry"),
        ("--gazetteer", b"no gazetteer", "gazetteer"),
        ("--model", b"no = scorecard", "scorecard"),
        ("--db", b"SQLite format 3\0" + bytes(4096), "database"),
    ],
)
def test_a_file_that_cannot_be_used_is_an_error(db: Path, option: str, content: bytes, says: str) -> None:
    """Each names the file; the other checks are made all the same."""
    file = db.with_name("given")
    file.write_bytes(content)
    code, text = check(db, option, file)
    assert code == 2
    for said in (str(file), says, "127.0.0.1:0: free"):
        assert said in text


def test_a_file_of_an_older_version_is_said_and_left_as_it_is(db: Path) -> None:
    make_key(db)
    with closing(sqlite3.connect(db)) as file:
        file.execute(f"PRAGMA user_version = {SERVER_FILE.version - 1}")
    before, (code, text) = files_below(db.parent), check(db)
    assert (code, files_below(db.parent)) == (0, before)
    for said in (f"the start brings it to version {SERVER_FILE.version}", "database: back it up first"):
        assert said in text


def test_a_journal_that_a_kill_left_is_no_error(db: Path) -> None:
    """It is settled by the start, and not by a look."""
    make_key(db)
    journal = db.with_name("db.sqlite-journal")
    with closing(open_server_file(db)) as file:
        file.execute("BEGIN IMMEDIATE")
        file.execute("PRAGMA cache_size = 1")
        file.execute("CREATE TABLE filler AS SELECT randomblob(200000) AS b")
        kept = {path: path.read_bytes() for path in (db, journal)}
        file.execute("ROLLBACK")
    for path, content in kept.items():
        path.write_bytes(content)
    code, text = check(db)
    assert (code, "the start settles it" in text, len(kept[journal]) > 0) == (0, True, True), text
    assert {path: path.read_bytes() for path in kept} == kept


@pytest.mark.skipif(os.name != "posix", reason="modes are those of POSIX systems")
def test_what_others_may_look_into_is_said(db: Path) -> None:
    make_key(db)
    db.chmod(0o644)
    db.with_name("db.sqlite.files").mkdir(mode=0o755)
    code, text = check(db)
    assert (code, f"database: chmod 600 {db}" in text, f"folder: chmod 700 {db}.files" in text) == (0, True, True)


def test_keys_whose_plan_or_webhook_the_server_will_refuse_are_said(db: Path) -> None:
    """The webhook's path, which may hold a password, is not shown."""
    with closing(open_server_file(db)) as file:
        file.execute("BEGIN")
        lost, _ = key_table.create_key(file, plan="gold", quota=1, now=0)
        inside, _ = key_table.create_key(file, plan="business", quota=1, now=0)
        key_table.set_webhook(file, inside.id, "https://10.1.2.3/token-of-somebody")
        file.execute("COMMIT")
    (_, found), (_, allowed) = check(db), check(db, "--webhook-network", "10.0.0.0/8")
    assert f"{lost.id}: no plan is called 'gold'" in found
    assert f"{inside.id}: https://10.1.2.3 is no public address" in found
    assert ("token-of-somebody" in found, "no public address" in allowed) == (False, False)


def test_without_a_key_the_tax_authority_cannot_be_asked(db: Path) -> None:
    """The key is looked for where the server looks for it, and never shown."""
    key = db.with_name("key")
    code, text = check(db, "--status", "nts", "--nts-key-file", key)
    assert (code, str(key) in text) == (2, True)
    key.write_text("secret+of/the=portal", encoding="utf-8")
    key.chmod(0o600)
    code, text = check(db, "--status", "nts", "--nts-key-file", key)
    assert (code, "secret" in text) == (0, False), text


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--trusted-proxy 10.0.0.0/8 --trusted-proxy proxy.internal", "--trusted-proxy proxy.internal: "),
        ("--notices {here}", "notices: name a file"),
        ("--db {here}/none/db.sqlite", "folder: make it"),
        ("--status nts --nts-key-file {here}/key --status-store {here}/none/s", "status store: make"),
        ("--status nts --nts-key-file {here}/key --status-store {here}/other.sqlite", "of another application"),
    ],
)
def test_what_would_end_a_start_ends_the_check(db: Path, options: str, says: str) -> None:
    """A start with the same options raises an error, too."""
    db.with_name("key").write_text("a-key", encoding="utf-8")
    make_key(db.with_name("other.sqlite"))
    given = options.format(here=db.parent).split()
    code, text = check(db, *given)
    assert (code, says in text) == (2, True), text
    with logged():  # a server's log is set up before its configuration is refused
        started = CliRunner().invoke(app, ["serve", "--port", "0", "--db", str(db), *given])
    assert isinstance(started.exception, bs.BansongError)


def test_too_little_room_and_a_missing_package_are_errors(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_AMPLE_BYTES", "_MIN_BYTES"):
        monkeypatch.setattr(checks, name, 1 << 60)
    code, text = check(db)
    assert (code, "folder: free space on that disk" in text) == (2, True), text
    monkeypatch.setattr("bansong.cli.serve.find_spec", lambda _: None)
    for command in (["serve", "--check", "--db", str(db)], ["app", "--no-browser"]):
        done = CliRunner().invoke(app, command)
        assert isinstance(done.exception, bs.BansongError)
        assert done.exception.code == "server.package_missing"
