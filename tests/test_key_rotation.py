"""``bansong keys rotate``: a secret is replaced, its key goes on."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bansong.errors import OutputError, UsageError
from bansong.server.settings import Clock
from serving import HTTP, Served, read_here, rows_of, served
from test_keys_cli import keys

ASKED = {"b_no": "1248100998", "name": "삼성전자", "address": "경기 수원시 영통구 삼성로 129"}


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "server.sqlite"


@pytest.fixture
def now() -> list[float]:
    """The server's clock, which begins at the commands' own and moves when a test says so."""
    return [time.time()]


@pytest.fixture
def server(db: Path, now: list[float], monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    read_here(monkeypatch)
    with served(db, Clock(now=lambda: now[0])) as running:
        yield running


def made(db: Path, *more: object) -> tuple[str, str]:
    """A new key: its id and secret."""
    secret = keys("create", "--db", db, *more).stdout.strip()
    return str(listed(db)[-1]["id"]), secret


def listed(db: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(keys("list", "--db", db, "--json").stdout)["keys"]
    return found


def ask(server: Served, secret: str, method: str = "GET", path: str = "/me", **more: Any) -> Any:
    headers = {"X-API-Key": secret, **more.pop("headers", {})}
    return HTTP.request(method, f"{server.url}{path}", headers=headers, **more)


def test_both_secrets_are_valid_for_the_overlap_then_the_new_one_alone(
    server: Served, db: Path, now: list[float]
) -> None:
    """Beside the running server; the new secret is alone on stdout and in no file; the list says until when."""
    key_id, old = made(db)
    assert ask(server, old).status_code == 200
    rotated = keys("rotate", key_id, "--db", db, "--overlap", "2h")
    new = rotated.stdout.strip()
    assert rotated.stdout == f"{new}\n"
    assert new != old
    assert new not in rotated.stderr
    assert all(new.encode() not in file.read_bytes() for file in db.parent.rglob("*") if file.is_file())
    assert [ask(server, secret).json()["key_id"] for secret in (old, new)] == [key_id, key_id]
    (key,) = listed(db)
    assert [one["expires"] is None for one in key["secrets"]] == [False, True]
    assert "2, one until" in keys("list", "--db", db).stdout
    now[0] += 2 * 3600 + 2
    assert [ask(server, secret).status_code for secret in (old, new)] == [401, 200]


def test_the_end_of_a_secret_is_heeded_at_once_though_the_server_remembers_it(
    server: Served, db: Path, now: list[float]
) -> None:
    """A secret that was found a moment before its end is not served for the second for which keys are kept."""
    key_id, old = made(db)
    keys("rotate", key_id, "--db", db, "--overlap", "1m")
    ((ends,),) = rows_of(db, "SELECT expires FROM secrets WHERE expires IS NOT NULL")
    now[0] = ends - 0.2
    assert ask(server, old).status_code == 200
    now[0] = ends + 0.1
    assert ask(server, old).status_code == 401


def test_what_belongs_to_the_key_goes_on_with_the_new_secret(server: Served, db: Path, now: list[float]) -> None:
    """Quota used, a job with its label, the watch list; a repeated request is answered and not paid again."""
    key_id, old = made(db)
    once = {"headers": {"Idempotency-Key": "lookup-1"}}
    answer = ask(server, old, "POST", "/verify", json=ASKED, **once).json()
    watch = ask(server, old, "POST", "/watch", json={"biz_no": ASKED["b_no"]}).json()
    content = "사업자번호\n1248100998\n".encode()
    job = ask(server, old, "POST", "/batch", files={"file": ("a.csv", content)}).json()["job_id"]
    new = keys("rotate", key_id, "--db", db, "--overlap", "0").stdout.strip()
    now[0] += 2
    assert ask(server, old).status_code == 401
    assert ask(server, new, "POST", "/verify", json=ASKED, **once).json() == answer
    assert ask(server, new, path="/watch").json()["watches"][0]["watch_id"] == watch["watch_id"]
    give_up = time.monotonic() + 120
    while ask(server, new, path=f"/batch/{job}").json()["status"] != "done":
        assert time.monotonic() < give_up
        time.sleep(0.01)
    told = ask(server, new, "POST", f"/batch/{job}/label", json={"row_id": 0, "bounced": False})
    assert told.status_code == 201
    assert ask(server, new).json()["quota"]["used"] == 2


def test_a_key_has_two_valid_secrets_at_most(db: Path) -> None:
    """A third is refused with what to do; the older one can be ended alone, and an overlap of 0 ends both."""
    key_id, _ = made(db)
    keys("rotate", key_id, "--db", db)
    with pytest.raises(UsageError, match=r"two valid secrets, the older until .*--old-secret.*--overlap 0"):
        keys("rotate", key_id, "--db", db)
    assert len(listed(db)[0]["secrets"]) == 2
    assert "older secret is revoked" in keys("revoke", "--old-secret", key_id, "--db", db).stderr
    assert len(listed(db)[0]["secrets"]) == 1
    assert "has one secret" in keys("revoke", "--old-secret", key_id, "--db", db).stderr
    keys("rotate", key_id, "--db", db, "--overlap", "45s")
    keys("rotate", key_id, "--db", db, "--overlap", "0")
    (left,) = listed(db)[0]["secrets"]
    assert left["expires"] is None
    assert listed(db)[0]["revoked"] is None


@pytest.mark.parametrize("overlap", ["7 days", "-1d", "1.5h", "367d", "", "7"])
def test_an_overlap_that_is_no_length_of_time_is_refused(db: Path, overlap: str) -> None:
    """Nothing is rotated: what is meant is not guessed."""
    key_id, _ = made(db)
    refused = keys("rotate", key_id, "--db", db, "--overlap", overlap)
    assert refused.exit_code == 2
    assert "length of time" in refused.stderr or "longer than a year" in refused.stderr
    assert len(rows_of(db, "SELECT 1 FROM secrets")) == 1


def test_a_secret_that_could_not_be_shown_is_not_valid_and_the_one_before_goes_on(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where stdout is gone the rotation is undone, also with an overlap of 0."""
    key_id, _ = made(db)
    before = rows_of(db, "SELECT digest, expires FROM secrets")

    def gone(*_: object, **__: object) -> None:
        raise OutputError("stdout cannot be written")

    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["bansong.cli.keys"], "print_out", gone)
        for overlap in ("1d", "0"):
            with pytest.raises(OutputError):
                keys("rotate", key_id, "--db", db, "--overlap", overlap)
    assert rows_of(db, "SELECT digest, expires FROM secrets") == before


def test_a_revoked_key_is_not_rotated(db: Path) -> None:
    """Revoked is for good."""
    key_id, _ = made(db)
    keys("revoke", key_id, "--db", db)
    with pytest.raises(UsageError, match="was revoked, for good"):
        keys("rotate", key_id, "--db", db)
    assert listed(db)[0]["secrets"] == []
