"""``bansong keys``: what is printed where, what is stored, and that a running server heeds it."""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bansong.cli.app import app
from bansong.errors import StoreError, UsageError
from handclock import HandClock
from serving import Account, error_in, hosted, line_from, rows_of, said_to, served, wait_until


def keys(*arguments: object) -> Result:
    result = CliRunner().invoke(app, ["keys", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "server.sqlite"


def only(db: Path) -> dict[str, Any]:
    (found,) = json.loads(keys("list", "--db", db, "--json").stdout)["keys"]
    return dict(found)


def test_a_key_is_printed_alone_and_only_its_digest_is_stored(db: Path) -> None:
    """The key is the one line on stdout, of safe characters; neither a file nor the list has it; the file is 0600."""
    made = keys("create", "--db", db, "--plan", "business", "--quota", "5000", "--note", "mailing")
    secret = made.stdout.strip()
    assert re.fullmatch(r"[A-Za-z0-9_-]{40,}", secret)
    assert (made.stdout, "5,000 lookups a month" in made.stderr) == (f"{secret}\n", True)
    key, shown = only(db), keys("list", "--db", db)
    assert [key[name] for name in ("plan", "quota", "used", "note")] == ["business", 5000, 0, "mailing"]
    assert key["id"] in shown.stdout
    assert secret not in made.stderr + shown.output + str(key)
    assert all(secret.encode() not in file.read_bytes() for file in db.parent.rglob("*") if file.is_file())
    assert db.stat().st_mode & 0o777 == 0o600


def test_a_running_server_takes_new_keys_and_refuses_revoked_ones(db: Path) -> None:
    """A key made while the server runs works at once; a change or the end is heeded when it is looked up again."""
    hand = HandClock()
    with hosted(db, hand.clock) as server:
        account = Account(server, keys("create", "--db", db, "--quota", "9").stdout.strip())
        assert account.get("/me")["quota"]["limit"] == 9
        keys("change", id_ := only(db)["id"], "--db", db, "--quota", "11")
        hand.forward(seconds=2)
        assert account.get("/me")["quota"]["limit"] == 11
        assert "is revoked" in keys("revoke", id_, "--db", db).stderr
        hand.forward(seconds=2)
        assert account.ask("GET", "/me").status_code == 401
    assert "was revoked before" in keys("revoke", id_, "--db", db).stderr
    assert rows_of(db, "SELECT last_used FROM keys")[0][0] is not None


def test_what_does_not_exist_is_said(db: Path, tmp_path: Path) -> None:
    """A plan, key or file that does not exist is named; no file is made by looking."""
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
    """Neither quota, a webhook nor a secret: revoked is for good; a note may still say whose it was."""
    keys("create", "--db", db)
    key = only(db)
    keys("revoke", key["id"], "--db", db)
    for change in (("change", "--quota", 9), ("webhook", "--url", "https://example.com/x"), ("rotate",)):
        with pytest.raises(UsageError, match="was revoked, for good"):
            keys(*change, key["id"], "--db", db)
    assert "note is now gone" in keys("change", "--note", "gone", key["id"], "--db", db).stderr
    assert "posted nowhere" in keys("webhook", "--none", key["id"], "--db", db).stderr
    after = only(db)
    assert [after[name] for name in ("quota", "webhook", "note", "secrets")] == [key["quota"], False, "gone", []]


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
    with served(db, hand.clock) as server, closing(line_from(server)) as line:
        account = server.account()
        head = b"POST /verify HTTP/1.1\r\nHost: x\r\nX-API-Key: %s\r\nContent-Length: %d\r\nConnection: close\r\n%s\r\n"
        line.sendall(head % (account.secret.encode(), len(body), more) + body[:5])
        wait_until(lambda: server.context.bounds.under_way(account.id) == 1)
        keys("revoke", account.id, "--db", db)
        hand.forward(seconds=1.5)  # a key is remembered for a second
        line.sendall(body[5:])
        status, error = error_in(said_to(line))
    assert (status, error["code"]) == (401, "invalid_key")
    assert rows_of(db, "SELECT key_id FROM usage UNION SELECT key_id FROM idempotency") == []
