"""The monthly quota is exact: under load, over the end of a month, when work fails, and over a kill."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from bansong.base.schema import SEOUL
from bansong.server.lookups import PreparedQuery
from bansong.server.payloads import VerificationPayload, VerifyRequest
from bansong.server.settings import Clock
from serving import HTTP, Served, answers_held, rows_of, served

BODY = {"b_no": "1248100998", "name": "삼성전자", "address": "경기 수원시 영통구 삼성로 129"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("served") / "db.sqlite") as it:
        yield it


def used(server: Served, key: str) -> int:
    with server.client(key) as client:
        return client.me().used or 0


def request_of(key: str, number: int) -> bytes:
    body = json.dumps(BODY | {"b_no": f"{1_000_000_000 + number}"}).encode()
    return (
        f"POST /verify HTTP/1.1\r\nHost: test\r\nX-API-Key: {key}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    ).encode() + body


async def ask(url: str, key: str, numbers: Sequence[int]) -> list[bytes]:
    """The raw answers to requests sent at the same time, each on a connection of its own."""
    host, port = urlsplit(url).hostname, urlsplit(url).port
    ready = [await asyncio.open_connection(host, port) for _ in numbers]

    async def answer(number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        try:
            writer.write(request_of(key, number))
            return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()

    return await asyncio.gather(*(answer(number, *pair) for number, pair in zip(numbers, ready, strict=True)))


def statuses(answers: Sequence[bytes]) -> Counter[str]:
    return Counter(answer[9:12].decode() for answer in answers)


def test_a_thousand_at_once_with_a_quota_of_five_hundred(server: Served) -> None:
    """Of 1,000 parallel requests exactly 500 are answered and 500 are refused, and 500 are counted."""
    key = server.key("enterprise", quota=500)  # which lets a key ask a thousand times at once
    answers = asyncio.run(ask(server.url, key, range(1_000)))
    assert statuses(answers) == {"200": 500, "429": 500}
    assert used(server, key) == 500
    refused = next(answer for answer in answers if answer[9:12] == b"429")
    error = json.loads(refused.partition(b"\r\n\r\n")[2])["error"]
    assert (error["limit"], error["used"], error["remaining"]) == (500, 500, 0)


def test_keys_do_not_share_a_quota(server: Served) -> None:
    """Requests of several keys, taken in one commit, each count for their own key."""
    keys = [server.key(quota=limit) for limit in (0, 3, 50)]

    async def all_at_once() -> list[list[bytes]]:
        return await asyncio.gather(*(ask(server.url, key, range(20)) for key in keys))

    found = asyncio.run(all_at_once())
    assert [statuses(answers)["200"] for answers in found] == [0, 3, 20]
    assert [used(server, key) for key in keys] == [0, 3, 20]


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b'{"b_no":"124-81-00998"}',
        b'{"b_no":"0000000000"}',
        b'{"b_no":1248100998}',
        b'{"b_no":"1248100998","name":7}',
        b"\xff",
        b"{}",
    ],
)
def test_what_is_refused_costs_nothing(server: Served, body: bytes) -> None:
    """A request with a body that is wrong is 400 and takes nothing."""
    key = server.key()
    headers = {"X-API-Key": key, "Content-Type": "application/json"}
    answer = HTTP.post(f"{server.url}/verify", content=body, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")
    assert used(server, key) == 0


@pytest.mark.parametrize("number", ["124-81-00998", "124 8100998", "0000000000", "12", "124810099a", "1248100998\n"])
def test_a_number_that_is_none_is_told_what_it_must_be(server: Served, number: str) -> None:
    """Whatever is wrong with the number, the refusal names the field and says what is wanted."""
    for path, field in (("/verify", "b_no"), ("/watch", "biz_no")):
        answer = HTTP.post(f"{server.url}{path}", json={field: number}, headers={"X-API-Key": server.key()})
        assert answer.status_code == 400
        assert f"{field} must be a business number: ten digits without hyphens" in answer.json()["error"]["message"]


def test_a_failing_engine_gives_the_lookups_back(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lookups that could not be answered are 500 and not counted, those beside them are answered and counted."""
    answers = PreparedQuery.answers

    def some(prepared: PreparedQuery, asked: Sequence[VerifyRequest]) -> list[VerificationPayload]:
        if any(int(each.b_no) % 10 == 3 for each in asked):
            raise RuntimeError("broken")
        return answers(prepared, asked)

    monkeypatch.setattr(PreparedQuery, "answers", some)
    key = server.key()
    found = asyncio.run(ask(server.url, key, range(500_000, 500_100)))
    assert statuses(found) == {"200": 90, "500": 10}
    assert used(server, key) == 90


def test_who_hangs_up_is_charged_and_nobody_else(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that is gone before its answer was ready has used a lookup: each is counted once, and no more."""
    begun, go = answers_held(monkeypatch)
    key = server.key()

    async def hang_up() -> list[bytes]:
        host, port = urlsplit(server.url).hostname, urlsplit(server.url).port
        for number in range(7):
            _, writer = await asyncio.open_connection(host, port)
            writer.write(request_of(key, 600_000 + number))
            while not begun.is_set():  # the first is in its query, and the others behind it
                await asyncio.sleep(0.001)
            while await asyncio.to_thread(used, server, key) <= number:
                await asyncio.sleep(0.001)
            writer.transport.abort()
        go.set()
        return await ask(server.url, key, range(700_000, 700_010))

    assert statuses(asyncio.run(hang_up())) == {"200": 10}
    assert used(server, key) == 17


def test_a_month_begins_at_midnight_in_seoul(tmp_path: Path) -> None:
    """The quota begins anew at the first midnight of a month in Seoul, which is 15:00 the day before in UTC."""
    times = [datetime(2026, 12, 31, 23, 59, 59, tzinfo=SEOUL).timestamp()]
    with served(tmp_path / "db.sqlite", Clock(now=lambda: times[-1])) as server:
        key = server.key(quota=1)
        headers = {"X-API-Key": key}
        assert HTTP.post(f"{server.url}/verify", json=BODY, headers=headers).status_code == 200
        refused = HTTP.post(f"{server.url}/verify", json=BODY, headers=headers)
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
        assert refused.json()["error"]["resets_at"] == "2027-01-01T00:00:00+09:00"
        times.append(times[-1] + 1)
        assert HTTP.post(f"{server.url}/verify", json=BODY, headers=headers).status_code == 200
        assert HTTP.post(f"{server.url}/verify", json=BODY, headers=headers).status_code == 429
        me = HTTP.get(f"{server.url}/me", headers=headers).json()
    assert me["quota"]["month"] == "2027-01"
    rows = rows_of(tmp_path / "db.sqlite", "SELECT month, used FROM usage ORDER BY month")
    assert rows == [("2026-12", 1), ("2027-01", 1)]


def test_what_fails_after_midnight_goes_back_to_its_own_month(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lookup that was taken before the end of the month and failed after it is given back to the month before."""
    times = [datetime(2026, 11, 30, 23, 59, 59, tzinfo=SEOUL).timestamp()]

    def fails(prepared: PreparedQuery, asked: Sequence[VerifyRequest]) -> list[VerificationPayload]:
        del prepared, asked
        times.append(times[-1] + 2)
        raise RuntimeError("broken")

    monkeypatch.setattr(PreparedQuery, "answers", fails)
    with served(tmp_path / "db.sqlite", Clock(now=lambda: times[-1])) as server:
        key = server.key()
        for more in ({}, {"Idempotency-Key": "one"}):
            del times[1:]
            answer = HTTP.post(f"{server.url}/verify", json=BODY, headers={"X-API-Key": key} | more)
            assert answer.status_code == 500
    assert rows_of(tmp_path / "db.sqlite", "SELECT month, used FROM usage") == [("2026-11", 0)]
