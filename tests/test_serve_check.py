"""`bansong serve --check`: what would keep a server from starting is said with its remedy, and nothing is changed."""

from __future__ import annotations

import os
import socket
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

import bansong as bs
from bansong.cli.app import app
from bansong.server import keys as key_table
from bansong.server.store import SERVER_FILE, open_server_file
from serving import logged, make_key, served


class Checked(NamedTuple):
    code: int
    text: str


def check(db: Path, *options: object) -> Checked:
    words = ["serve", "--check", "--port", "0", "--db", str(db), *map(str, options)]
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, words)
    return Checked(done.exit_code, done.stdout)


def files_below(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_mode, path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_nothing_is_there_yet_and_nothing_is_made(tmp_path: Path) -> None:
    found = check(tmp_path / "db.sqlite")
    assert found.code == 0
    assert "is not there yet and will be made" in found.text
    assert "database: make the first key with `bansong keys create`" in found.text
    assert list(tmp_path.iterdir()) == []


def test_it_works_beside_a_running_server_and_changes_no_byte(tmp_path: Path) -> None:
    """The server's own port, taken by itself, is no fault; its file is read and its lock left."""
    source, registry = tmp_path / "source.csv", tmp_path / "registry.parquet"
    source.write_text("b_no,b_stt,asof\n1248100998,계속사업자,2026-11-10\n", encoding="utf-8")
    bs.build_registry([source], registry)
    db = tmp_path / "db.sqlite"
    with served(db, registry=registry, metrics_port=0) as server:
        server.key()
        before = files_below(tmp_path)
        port = server.url.rpartition(":")[2]
        given = ("--port", port, "--metrics-port", server.app.state.metrics_port, "--registry", registry)
        found = check(db, *given)
        assert files_below(tmp_path) == before
    assert found.code == 0, found.text
    assert "in use by a server that is running" in found.text
    assert found.text.count("in use, as it should be while the server runs") == 2
    assert "1 key" in found.text
    assert f"{registry}: 1 business" in found.text


def test_a_port_that_another_process_has_is_an_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = check(tmp_path / "db.sqlite", "--port", port)
        metrics = check(tmp_path / "db.sqlite", "--metrics-port", port)
    assert (found.code, metrics.code) == (2, 2)
    assert "port: stop what listens there, or choose another --port" in found.text
    assert "metrics: stop what listens there, or choose another --metrics-port" in metrics.text


def test_metrics_on_the_services_own_port_are_an_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert check(tmp_path / "db.sqlite", "--port", port, "--metrics-port", port).code == 2


@pytest.mark.parametrize(
    ("option", "content", "says"),
    [
        ("--plans", b"[gold]\napi = 1\n", "not a file of plans"),
        ("--registry", b"no registry", "registry"),
        ("--gazetteer", b"no gazetteer", "gazetteer"),
        ("--model", b"no = scorecard", "scorecard"),
    ],
)
def test_a_file_that_cannot_be_used_is_an_error(tmp_path: Path, option: str, content: bytes, says: str) -> None:
    """Each names the file; the other checks are made all the same."""
    file = tmp_path / "given"
    file.write_bytes(content)
    found = check(tmp_path / "db.sqlite", option, file)
    assert found.code == 2
    assert str(file) in found.text
    assert says in found.text
    assert "127.0.0.1:0: free" in found.text


def test_a_file_of_another_kind_is_an_error(tmp_path: Path) -> None:
    db = tmp_path / "db.sqlite"
    db.write_bytes(b"SQLite format 3\0" + bytes(4096))
    assert check(db).code == 2


def test_a_file_of_an_older_version_is_said_and_left_as_it_is(tmp_path: Path) -> None:
    db = tmp_path / "db.sqlite"
    make_key(db)
    with closing(sqlite3.connect(db)) as file:
        file.execute(f"PRAGMA user_version = {SERVER_FILE.version - 1}")
    before = files_below(tmp_path)
    found = check(db)
    assert found.code == 0
    assert f"the start brings it to version {SERVER_FILE.version}" in found.text
    assert "database: back it up first" in found.text
    assert files_below(tmp_path) == before


def test_a_journal_that_a_kill_left_is_no_error(tmp_path: Path) -> None:
    """It is settled by the start, and not by a look."""
    db = tmp_path / "db.sqlite"
    make_key(db)
    with closing(open_server_file(db)) as file:
        file.execute("BEGIN IMMEDIATE")
        file.execute("PRAGMA cache_size = 1")
        file.execute("CREATE TABLE filler AS SELECT randomblob(200000) AS b")
        kept = {path: path.read_bytes() for path in (db, db.with_name("db.sqlite-journal"))}
        file.execute("ROLLBACK")
    for path, content in kept.items():
        path.write_bytes(content)
    assert len(kept[db.with_name("db.sqlite-journal")]) > 0
    found = check(db)
    assert (found.code, "the start settles it" in found.text) == (0, True), found.text
    assert {path: path.read_bytes() for path in kept} == kept


@pytest.mark.skipif(os.name != "posix", reason="modes are those of POSIX systems")
def test_what_others_may_look_into_is_said(tmp_path: Path) -> None:
    db = tmp_path / "db.sqlite"
    make_key(db)
    db.chmod(0o644)
    (tmp_path / "db.sqlite.files").mkdir(mode=0o755)
    found = check(db)
    assert found.code == 0
    assert f"database: chmod 600 {db}" in found.text
    assert f"folder: chmod 700 {db}.files" in found.text


def test_keys_whose_plan_or_webhook_the_server_will_refuse_are_said(tmp_path: Path) -> None:
    """The webhook's path, which may hold a password, is not shown."""
    db = tmp_path / "db.sqlite"
    with closing(open_server_file(db)) as file:
        file.execute("BEGIN")
        lost, _ = key_table.create_key(file, plan="gold", quota=1, now=0)
        inside, _ = key_table.create_key(file, plan="business", quota=1, now=0)
        key_table.set_webhook(file, inside.id, "https://10.1.2.3/token-of-somebody")
        file.execute("COMMIT")
    found, allowed = check(db), check(db, "--webhook-network", "10.0.0.0/8")
    assert f"{lost.id}: no plan is called 'gold'" in found.text
    assert f"{inside.id}: https://10.1.2.3 is no public address" in found.text
    assert "token-of-somebody" not in found.text
    assert "no public address" not in allowed.text


def test_without_a_key_the_tax_authority_cannot_be_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key is looked for where the server looks for it, and never shown."""
    missing = check(tmp_path / "db.sqlite", "--status", "nts", "--nts-key-file", tmp_path / "none")
    assert (missing.code, str(tmp_path / "none") in missing.text) == (2, True)
    key = tmp_path / "key"
    key.write_text("secret+of/the=portal", encoding="utf-8")
    key.chmod(0o600)
    found = check(tmp_path / "db.sqlite", "--status", "nts", "--nts-key-file", key)
    assert (found.code, "secret" in found.text) == (0, False), found.text


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--trusted-proxy", "10.0.0.0/8", "--trusted-proxy", "proxy.internal"), "--trusted-proxy proxy.internal: "),
        (("--notices", "{here}"), "notices: name a file"),
        (("--db", "{here}/none/db.sqlite"), "folder: make it"),
        (("--status", "nts", "--nts-key-file", "{key}", "--status-store", "{here}/none/s"), "status store: make"),
        (("--status", "nts", "--nts-key-file", "{key}", "--status-store", "{other}"), "of another application"),
    ],
)
def test_what_would_end_a_start_ends_the_check(tmp_path: Path, options: tuple[str, ...], says: str) -> None:
    """A start with the same options raises an error, too."""
    key, other = tmp_path / "key", tmp_path / "other.sqlite"
    key.write_text("a-key", encoding="utf-8")
    make_key(other)
    given = [option.format(here=tmp_path, key=key, other=other) for option in options]
    found = check(tmp_path / "db.sqlite", *given)
    assert (found.code, says in found.text) == (2, True), found.text
    start = ["serve", "--port", "0", "--db", str(tmp_path / "db.sqlite"), *given]
    with logged():  # a server's log is set up before its configuration is refused
        assert isinstance(CliRunner().invoke(app, start).exception, bs.BansongError)


def test_a_folder_without_room_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bansong.upkeep import doctor as checks

    for name in ("_AMPLE_BYTES", "_MIN_BYTES"):
        monkeypatch.setattr(checks, name, 1 << 60)
    found = check(tmp_path / "db.sqlite")
    assert found.code == 2
    assert "folder: free space on that disk" in found.text


def test_a_missing_extra_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bansong.upkeep import doctor as checks

    monkeypatch.setitem(checks.EXTRAS, "server", (("no_such_module",), "to serve"))
    found = check(tmp_path / "db.sqlite")
    assert found.code == 2
    assert "extra server: pip install 'bansong[server]'" in found.text
