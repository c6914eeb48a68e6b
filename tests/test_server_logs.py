"""The log of a server: each line of a request is found by its id, which the client was answered, too."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bansong.server.lookups import Microbatcher, PaidLookups
from bansong.server.settings import REQUEST_ID, parse_proxies
from serving import HTTP, logged, served

GIVEN = "6f3c1b0d9a8e4f57b2c4d6e8f0a1b3c5"
HERE = parse_proxies(["127.0.0.1"])


def requests(lines: list[dict[str, Any]], path: str) -> list[dict[str, Any]]:
    return [line for line in lines if line["event"] == "request" and line["path"] == path]


def test_each_answer_says_the_id_under_which_its_request_is_logged(tmp_path: Path) -> None:
    """Each request has another one, also the one that is refused or needs no key; the client's address is beside it."""
    with logged() as lines, served(tmp_path / "db.sqlite") as server:
        headers = {"X-API-Key": server.key()}
        answers = [HTTP.get(f"{server.url}/me", headers=headers), HTTP.get(f"{server.url}/me")]
        open_to_all = HTTP.get(f"{server.url}/healthz")
    ids = [answer.headers["x-request-id"] for answer in answers]
    assert len({*ids, open_to_all.headers["x-request-id"]}) == 3
    assert [line["request"] for line in requests(lines, "/me") + requests(lines, "?")] == ids
    assert {line["client"] for line in lines if "client" in line} == {"127.0.0.1"}


def test_a_trusted_proxy_gives_the_id_and_the_clients_address(tmp_path: Path) -> None:
    with logged() as lines, served(tmp_path / "db.sqlite", trusted_proxies=HERE) as server:
        sent = {"X-Request-Id": GIVEN, "X-Forwarded-For": "203.0.113.9"}
        answer = HTTP.get(f"{server.url}/healthz", headers=sent)
    assert answer.headers.get_list("x-request-id") == [GIVEN]
    assert [(line["request"], line["client"]) for line in requests(lines, "/healthz")] == [(GIVEN, "203.0.113.9")]


def test_an_id_of_anybody_else_is_not_taken(tmp_path: Path) -> None:
    """A client cannot have lines of ours written under an id of its choice."""
    with logged() as lines, served(tmp_path / "db.sqlite") as server:
        answer = HTTP.get(f"{server.url}/healthz", headers={"X-Request-Id": GIVEN, "X-Forwarded-For": "203.0.113.9"})
    assert answer.headers["x-request-id"] != GIVEN
    assert GIVEN not in str(lines)
    assert "203.0.113.9" not in str(lines)


@pytest.mark.parametrize(
    "given", ["bv_0123456789abcdef0123456789abcdef", "1248100998", "홍길동".encode(), f"{GIVEN}{GIVEN}0", f"{GIVEN}, x"]
)
def test_an_id_that_may_be_somebodys_data_is_not_taken(tmp_path: Path, given: str | bytes) -> None:
    """A proxy may pass on what a client sent: a key, a number, a name reach no log."""
    with logged() as lines, served(tmp_path / "db.sqlite", trusted_proxies=HERE) as server:
        answer = HTTP.get(f"{server.url}/healthz", headers=[(b"X-Request-Id", given)])
    (line,) = requests(lines, "/healthz")
    assert line["request"] == answer.headers["x-request-id"]
    assert len(line["request"]) == 16


def test_two_ids_are_none(tmp_path: Path) -> None:
    with served(tmp_path / "db.sqlite", trusted_proxies=HERE) as server:
        answer = HTTP.get(f"{server.url}/healthz", headers=[("X-Request-Id", GIVEN), ("X-Request-Id", GIVEN[::-1])])
    assert answer.headers["x-request-id"] not in (GIVEN, GIVEN[::-1])


def test_a_failure_is_logged_under_the_id_that_its_client_was_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Header, body and both lines of the log name one id."""
    monkeypatch.setattr(PaidLookups, "answer", lambda *_, **__: 1 / 0)
    with logged() as lines, served(tmp_path / "db.sqlite") as server:
        answer = HTTP.post(f"{server.url}/verify", json={"b_no": "1248100998"}, headers={"X-API-Key": server.key()})
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal")
    failed = next(line for line in lines if line["event"] == "a request failed")
    (request,) = requests(lines, "/verify")
    told = answer.json()["error"]["request_id"], answer.headers["x-request-id"]
    assert {failed["request"], request["request"], *told} == {answer.headers["x-request-id"]}


def test_a_batch_of_lookups_is_logged_under_no_id() -> None:
    """It is begun by one of them, and belongs to none."""

    async def work(items: Sequence[str]) -> list[str]:
        return [REQUEST_ID.get()] * len(items)

    async def submit() -> str:
        REQUEST_ID.set(GIVEN)
        return await Microbatcher[str, str](work, 8).submit("a lookup")

    assert asyncio.run(submit()) == ""
