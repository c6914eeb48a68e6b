"""``bansong keys rotate``: a secret is replaced, its key goes on."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bansong.errors import OutputError, UsageError
from handclock import HandClock
from serving import ADDRESSED, NUMBER, Account, Served, hosted, read_here, rows_of
from test_keys_cli import keys


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "server.sqlite"


@pytest.fixture
def hand(monkeypatch: pytest.MonkeyPatch) -> HandClock:
    """The clock of the server and of the commands."""
    clock = HandClock()
    monkeypatch.setattr("bansong.cli.keys.time", SimpleNamespace(time=lambda: clock.seconds))
    return clock


@pytest.fixture
def server(db: Path, hand: HandClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    read_here(monkeypatch)
    with hosted(db, hand.clock) as running:
        yield running


def made(db: Path, *more: object) -> tuple[str, str]:
    """A new key: its id and secret."""
    secret = keys("create", "--db", db, *more).stdout.strip()
    return str(listed(db)[-1]["id"]), secret


def listed(db: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(keys("list", "--db", db, "--json").stdout)["keys"]
    return found


def test_both_secrets_are_valid_for_the_overlap_then_the_new_one_alone(
    server: Served, db: Path, hand: HandClock
) -> None:
    """The new secret is alone on stdout and in no file; the end is heeded at once, though the server remembers keys."""
    key_id, old = made(db)
    rotated = keys("rotate", key_id, "--db", db, "--overlap", "2h")
    new = rotated.stdout.strip()
    assert (rotated.stdout, new != old, new in rotated.stderr) == (f"{new}\n", True, False)
    assert all(new.encode() not in file.read_bytes() for file in db.parent.rglob("*") if file.is_file())
    assert [Account(server, secret).get("/me")["key_id"] for secret in (old, new)] == [key_id, key_id]
    (key,) = listed(db)
    assert [one["expires"] is None for one in key["secrets"]] == [False, True]
    assert "2, one until" in keys("list", "--db", db).stdout
    ((ends,),) = rows_of(db, "SELECT expires FROM secrets WHERE expires IS NOT NULL")
    for moment, statuses in ((ends - 0.2, [200, 200]), (ends + 0.1, [401, 200])):
        hand.seconds = moment
        assert [Account(server, secret).ask("GET", "/me").status_code for secret in (old, new)] == statuses


def test_what_belongs_to_the_key_goes_on_with_the_new_secret(server: Served, db: Path, hand: HandClock) -> None:
    """Quota used, a job with its label, the watch list; a repeated request is answered and not paid again."""
    key_id, secret = made(db)
    once, old = {"Idempotency-Key": "lookup-1"}, Account(server, secret)
    answer = old.ask("POST", "/verify", json=ADDRESSED, headers=once).json()
    watch = old.ask("POST", "/watch", json={"biz_no": NUMBER}).json()
    job = old.job(f"b_no\n{NUMBER}\n")["job_id"]
    new = Account(server, keys("rotate", key_id, "--db", db, "--overlap", "0").stdout.strip())
    hand.forward(seconds=2)
    assert old.ask("GET", "/me").status_code == 401
    assert new.ask("POST", "/verify", json=ADDRESSED, headers=once).json() == answer
    assert new.get("/watch")["watches"][0]["watch_id"] == watch["watch_id"]
    assert (new.label(job, 0, False).status_code, new.used()) == (201, 2)


def test_a_key_has_two_valid_secrets_at_most(db: Path) -> None:
    """A third is refused with what to do; the older one can be ended alone, and an overlap of 0 ends both."""
    key_id, _ = made(db)
    keys("rotate", key_id, "--db", db)
    with pytest.raises(UsageError, match=r"two valid secrets, the older until .*--old-secret.*--overlap 0"):
        keys("rotate", key_id, "--db", db)
    for said, left in (("older secret is revoked", 1), ("has one secret", 1)):
        assert said in keys("revoke", "--old-secret", key_id, "--db", db).stderr
        assert len(listed(db)[0]["secrets"]) == left
    keys("rotate", key_id, "--db", db, "--overlap", "45s")
    keys("rotate", key_id, "--db", db, "--overlap", "0")
    (only,) = listed(db)[0]["secrets"]
    assert (only["expires"], listed(db)[0]["revoked"]) == (None, None)


def test_an_overlap_that_is_no_length_of_time_is_refused(db: Path) -> None:
    """Nothing is rotated: what is meant is not guessed."""
    key_id, _ = made(db)
    for overlap in ("7 days", "-1d", "1.5h", "367d", "", "7"):
        refused = keys("rotate", key_id, "--db", db, "--overlap", overlap)
        assert (refused.exit_code, "length of time" in refused.stderr or "longer than a year" in refused.stderr) == (
            2,
            True,
        )
    assert len(rows_of(db, "SELECT 1 FROM secrets")) == 1


def test_a_secret_that_could_not_be_shown_is_not_valid_and_the_one_before_goes_on(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where stdout is gone the rotation is undone, also with an overlap of 0."""
    key_id, _ = made(db)
    before = rows_of(db, "SELECT digest, expires FROM secrets")

    def gone(*_: object, **__: object) -> None:
        raise OutputError("stdout cannot be written")

    monkeypatch.setattr(sys.modules["bansong.cli.keys"], "print_out", gone)
    for overlap in ("1d", "0"):
        with pytest.raises(OutputError):
            keys("rotate", key_id, "--db", db, "--overlap", overlap)
    assert rows_of(db, "SELECT digest, expires FROM secrets") == before
