"""``bansong keys``: what is printed where, what is stored, and that a running server heeds it."""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bansong.cli.app import app
from bansong.errors import AuthenticationError, StoreError, UsageError
from handclock import HandClock
from serving import error_in, line_from, rows_of, said_to, served, wait_until


def keys(*arguments: object) -> Result:
    result = CliRunner().invoke(app, ["keys", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "server.sqlite"


def test_a_key_is_printed_alone_and_only_its_digest_is_stored(db: Path) -> None:
    """The key is the one line on stdout, of safe characters; no file of the server has it; the file is 0600."""
    made = keys("create", "--db", db, "--plan", "business", "--quota", "5000")
    secret = made.stdout.strip()
    assert re.fullmatch(r"[A-Za-z0-9_-]{40,}", secret)
    assert made.stdout == f"{secret}\n"
    assert secret not in made.stderr
    assert "5,000 lookups a month" in made.stderr
    assert all(secret.encode() not in file.read_bytes() for file in db.parent.rglob("*") if file.is_file())
    assert db.stat().st_mode & 0o777 == 0o600


def test_two_keys_differ_and_are_listed_without_their_secrets(db: Path) -> None:
    """The list names each key by its id, with plan, quota and note, and shows no key."""
    secrets = [keys("create", "--db", db, "--note", note).stdout.strip() for note in ("mailing", "crm")]
    assert len(set(secrets)) == 2
    listed = json.loads(keys("list", "--db", db, "--json").stdout)["keys"]
    assert [(key["plan"], key["quota"], key["used"], key["note"]) for key in listed] == [
        ("business", 5000, 0, "mailing"),
        ("business", 5000, 0, "crm"),
    ]
    shown = keys("list", "--db", db).stdout
    assert all(key["id"] in shown for key in listed)
    assert not any(secret in shown for secret in secrets)


def test_a_running_server_takes_new_keys_and_refuses_revoked_ones(db: Path) -> None:
    """A key made while the server runs works at once; a revoked one is refused when the server looks it up again."""
    from bansong.server.settings import Clock

    now = [1_800_000_000.0]
    with served(db, Clock(now=lambda: now[0])) as server:
        secret = keys("create", "--db", db, "--quota", "9").stdout.strip()
        with server.client(secret) as client:
            assert client.me().limit == 9
            (key,) = json.loads(keys("list", "--db", db, "--json").stdout)["keys"]
            keys("change", key["id"], "--db", db, "--quota", "11")
            now[0] += 2
            assert client.me().limit == 11
            assert "is revoked" in keys("revoke", key["id"], "--db", db).stderr
            now[0] += 2
            with pytest.raises(AuthenticationError):
                client.me()
    assert "was revoked before" in keys("revoke", key["id"], "--db", db).stderr
    assert rows_of(db, "SELECT last_used FROM keys")[0][0] is not None


def test_what_does_not_exist_is_said(db: Path, tmp_path: Path) -> None:
    """A plan, key or file that does not exist is named, with what there is; no file is made by looking."""
    with pytest.raises(UsageError, match="no such plan; there are free, business, enterprise"):
        keys("create", "--db", db, "--plan", "gold")
    with pytest.raises(StoreError, match="does not exist"):
        keys("list", "--db", db)
    assert not db.exists()
    keys("create", "--db", db)
    with pytest.raises(UsageError, match="no key with this id"):
        keys("revoke", "nobody", "--db", db)
    other = tmp_path / "ledger.sqlite"
    other.write_bytes(b"no database at all, but long enough to be read as one" * 40)
    with pytest.raises(StoreError, match="no SQLite database"):
        keys("list", "--db", other)


def test_a_revoked_key_is_not_given_anything(db: Path) -> None:
    """Neither quota nor a webhook: revoked is for good; a note may still say whose it was."""
    keys("create", "--db", db)
    (key,) = json.loads(keys("list", "--db", db, "--json").stdout)["keys"]
    keys("revoke", key["id"], "--db", db)
    for change in (("change", "--quota", 9), ("webhook", "--url", "https://example.com/x")):
        with pytest.raises(UsageError, match="was revoked, for good; make another"):
            keys(*change, key["id"], "--db", db)
    assert "note is now gone" in keys("change", "--note", "gone", key["id"], "--db", db).stderr
    assert "posted nowhere" in keys("webhook", "--none", key["id"], "--db", db).stderr
    (after,) = json.loads(keys("list", "--db", db, "--json").stdout)["keys"]
    assert (after["quota"], after["webhook"], after["note"]) == (key["quota"], False, "gone")


def test_plans_of_ones_own_are_read(db: Path, tmp_path: Path) -> None:
    """A file of plans replaces the built-in ones; an error in it names plan and field."""
    plans = tmp_path / "plans.toml"
    plans.write_text(
        "[tiny]\napi = true\nquota = 3\nwatch_history = false\nwatches = 1\nrecheck_hours = 1\n"
        "upload_bytes = 1000\nrows = 10\njobs = 1\n"
    )
    assert "3 lookups a month" in keys("create", "--db", db, "--plan", "tiny", "--plans", plans).stderr
    for right, wrong in (("quota = 3", "quota = -3"), ("recheck_hours = 1", "recheck_hours = inf")):
        wrong_one = tmp_path / "wrong.toml"
        wrong_one.write_text(plans.read_text().replace(right, wrong))
        with pytest.raises(UsageError, match=rf"wrong\.toml: not a file of plans: .*{right.split()[0]}"):
            keys("create", "--db", db, "--plan", "tiny", "--plans", wrong_one)


@pytest.mark.parametrize("more", [b"", b"Idempotency-Key: once\r\n"])
def test_a_key_revoked_while_the_body_comes_in_gets_no_lookup(db: Path, more: bytes) -> None:
    """A request is begun with a key that is good, and its body ends when it is not: 401, and nothing was charged."""
    hand, body = HandClock(), b'{"b_no": "1248100998"}'
    with served(db, hand.clock) as server, closing(line_from(server, "127.0.0.1")) as line:
        key = server.key()
        ((key_id,),) = rows_of(db, "SELECT id FROM keys")
        head = b"POST /verify HTTP/1.1\r\nHost: x\r\nX-API-Key: %s\r\nContent-Length: %d\r\nConnection: close\r\n%s\r\n"
        line.sendall(head % (key.encode(), len(body), more) + body[:5])
        bounds = server.app.state.context.bounds
        wait_until(lambda: bounds.under_way(key_id) == 1)
        keys("revoke", key_id, "--db", db)
        hand.forward(seconds=1.5)  # a key is remembered for a second
        line.sendall(body[5:])
        status, error = error_in(said_to(line))
    assert (status, error["code"]) == (401, "invalid_key")
    assert rows_of(db, "SELECT * FROM usage") == rows_of(db, "SELECT * FROM idempotency") == []
