"""POST /verify: lookups gathered into queries, answers remembered, requests repeated under an Idempotency-Key."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import Any

import httpx
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bansong import Gazetteer, LocalEngine
from bansong.base.schema import REASON_SEPARATOR, RECORD_COLUMNS
from bansong.engine.overlays import address_key
from bansong.engine.registry import Registry
from bansong.errors import RegistryError
from bansong.server import keys as key_table
from bansong.server.job_table import KEPT
from bansong.server.lookups import SHARE, LookupAnswerer, Microbatcher, PreparedQuery
from bansong.server.payloads import Refusal, VerificationPayload, VerifyRequest
from bansong.server.settings import Clock
from bansong.server.store import open_server_file
from examples import examples
from serving import HTTP, Served, answers_held, rows_of, served

SAMPLE = Path(__file__).parent.parent / "sample_data"
REGISTRY = SAMPLE / "registry.parquet"
GAZETTEER = SAMPLE / "gazetteer.parquet"
ADDRESS = "경기 수원시 영통구 삼성로 129"
TODAY = date(2026, 11, 22)
KNOWN = pl.read_parquet(REGISTRY)["b_no"].cast(pl.String).to_list()
LETTERS = pl.LazyFrame(
    {"b_no": [int(KNOWN[0]), int(KNOWN[0]), int(KNOWN[1])], "address": [ADDRESS] * 3},
).select(  # as HISTORY_SCHEMA
    pl.col("b_no").cast(pl.UInt64),
    address_key(pl.col("address")).alias("address_key"),
    pl.Series("outcome", ["delivered", "moved", "absent"]),
    pl.Series("mailed", [date(2026, 1, 1), date(2026, 5, 1), date(2026, 6, 1)]),
)
ENGINES = {
    "bare": lambda: LocalEngine(today=TODAY),
    "whole": lambda: LocalEngine(
        REGISTRY, gazetteer=Gazetteer.open(GAZETTEER), today=TODAY, lang="ko", history=LETTERS
    ),
}

texts = st.none() | st.sampled_from(["", "삼성전자", "***", "가 | 나", "-", "㈜ 가나다\x00"]) | st.text(max_size=30)
addresses = st.sampled_from([ADDRESS, f"{ADDRESS} 3층", "30100 세종 한누리대로 2130", "서울 강남구"]) | texts
numbers = st.sampled_from(KNOWN) | st.integers(1, 9_999_999_999).map(lambda number: f"{number:010}")
lookups = st.builds(VerifyRequest, numbers, texts, addresses)


def alone(engine: LocalEngine, lookup: VerifyRequest) -> VerificationPayload:
    """What the engine itself says of one row."""
    record = {"b_no": lookup.b_no, "name": lookup.name, "address": lookup.address, "zipcode": None}
    row = engine.answer(pl.LazyFrame([record], schema=dict.fromkeys(RECORD_COLUMNS, pl.String))).collect()
    seven = {name: row[name][0] for name in VerificationPayload.__struct_fields__}
    return VerificationPayload(
        **seven | {"reasons": seven["reasons"].split(REASON_SEPARATOR) if seven["reasons"] else []}
    )


def one(number: int) -> VerifyRequest:
    return VerifyRequest(f"{1_248_100_000 + number}", "가나다", f"{ADDRESS} {number}층")


class OneEngine:
    """Engines of which each scope has the same one, until another is put in its place."""

    def __init__(self, engine: LocalEngine | None = None) -> None:
        self.current = engine or LocalEngine(today=TODAY)

    async def open_engine(self, scope: str) -> LocalEngine:
        if scope == "slow":
            await asyncio.sleep(0.01)
        return self.current


@pytest.fixture
def queries(monkeypatch: pytest.MonkeyPatch) -> list[list[VerifyRequest]]:
    """The lookups of each query that is run."""
    ran: list[list[VerifyRequest]] = []
    answers = PreparedQuery.answers

    def noted(prepared: PreparedQuery, asked: Sequence[VerifyRequest]) -> list[VerificationPayload]:
        ran.append(list(asked))
        if any(each.name == "bad" for each in asked):
            raise ValueError("cannot be answered")
        return answers(prepared, asked)

    monkeypatch.setattr(PreparedQuery, "answers", noted)
    return ran


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("served") / "db.sqlite") as it:
        yield it


def post(server: Served, key: str, body: Any, token: str | None = None) -> httpx.Response:
    headers = {"X-API-Key": key} | ({} if token is None else {"Idempotency-Key": token})
    return HTTP.post(f"{server.url}/verify", json=body, headers=headers, timeout=60)


def used(server: Served, key: str) -> int:
    with server.client(key) as client:
        return client.me().used or 0


BODY = {"b_no": "1248100998", "name": "삼성전자", "address": ADDRESS}


@pytest.mark.parametrize("kind", ENGINES)
@examples(12)
@given(asked=st.lists(lookups, min_size=1, max_size=5))
def test_gathered_lookups_are_answered_as_each_alone(kind: str, asked: list[VerifyRequest]) -> None:
    """Whatever lookups share a query, each gets what the engine answers to its row alone."""
    engine, prepared = prepared_of(kind)
    assert prepared.answers(asked) == [alone(engine, each) for each in asked]


made: dict[str, tuple[LocalEngine, PreparedQuery]] = {}


def prepared_of(kind: str) -> tuple[LocalEngine, PreparedQuery]:
    if kind not in made:
        engine = ENGINES[kind]()
        made[kind] = engine, PreparedQuery(engine)
    return made[kind]


def test_registry_and_label_book_are_heeded() -> None:
    """The prepared query knows the registry's status and the newest letter to the address, as the engine does."""
    engine, prepared = prepared_of("whole")
    asked = [VerifyRequest(KNOWN[at], "가", ADDRESS) for at in range(3)]
    answers = prepared.answers(asked)
    assert answers == [alone(engine, each) for each in asked]
    assert all(each.biz_status != "unknown" for each in answers)
    told = [any("history" in reason or "이력" in reason for reason in each.reasons) for each in answers]
    assert told == [True, True, False]


def test_lookups_at_the_same_time_share_queries(queries: list[list[VerifyRequest]]) -> None:
    """Sixty lookups at once take a few queries, and each gets its own answer; engines that answer alike share."""

    async def ask() -> list[VerificationPayload]:
        answering = LookupAnswerer(OneEngine())  # type: ignore[arg-type]
        first = asyncio.create_task(answering.answer("a", one(0)))
        while not queries:
            await asyncio.sleep(0)
        return [await first, *await asyncio.gather(*(answering.answer("ab"[n % 2], one(n)) for n in range(1, 60)))]

    answers = asyncio.run(ask())
    assert [len(asked) for asked in queries] == [1, 59], "the first did not wait; those behind it went together"
    engine = LocalEngine(today=TODAY)
    for number in (0, 1, 30, 57):
        assert answers[number] == alone(engine, one(number))


def test_keys_take_turns_in_each_query(queries: list[list[VerifyRequest]]) -> None:
    """One key's hundred lookups make the query of another's one no longer; alone, they are one query."""

    async def ask() -> None:
        answering = LookupAnswerer(OneEngine())  # type: ignore[arg-type]
        first = asyncio.create_task(answering.answer("a", one(0)))
        while not queries:
            await asyncio.sleep(0)
        many = [asyncio.create_task(answering.answer("a", one(n))) for n in range(1, 101)]
        await asyncio.sleep(0)
        await asyncio.gather(first, *many, answering.answer("b", one(500)))
        await asyncio.gather(*(answering.answer("a", one(n)) for n in range(101, 201)))
        await asyncio.gather(*(answering.answer("a", one(n)) for n in range(201, 301)))

    asyncio.run(ask())
    assert len(queries[1]) == SHARE + 1
    assert queries[1][-1] == one(500)
    assert len(queries[-1]) == 100


def test_keys_beyond_the_bound_of_a_group_come_first_in_the_next() -> None:
    groups: list[list[str]] = []

    async def work(asked: Sequence[str]) -> Sequence[str]:
        groups.append(list(asked))
        return asked

    async def ask() -> None:
        batcher = Microbatcher(work, 4, share=2)
        await asyncio.gather(*(batcher.submit(key, key) for key in "aaabbbcccddd"))

    asyncio.run(ask())
    assert groups == [list("aabb"), list("ccdd"), list("abcd")]


def test_an_answer_is_remembered_until_the_engine_changes(queries: list[list[VerifyRequest]]) -> None:
    """A repeated lookup costs no query, and gets another answer when the scope's engine is another one."""
    engines = OneEngine()

    async def ask() -> list[VerificationPayload]:
        answering = LookupAnswerer(engines)  # type: ignore[arg-type]
        found = [await answering.answer("a", one(1)) for _ in range(3)]
        assert len(queries) == 1
        engines.current = LocalEngine(today=TODAY, lang="ko")
        found.append(await answering.answer("a", one(1)))
        found.append(await answering.answer("slow", one(1)))
        assert len(queries) == 2, "another scope whose engine answers alike remembers, too"
        return found

    found = asyncio.run(ask())
    assert found[0] == found[1] == found[2] == alone(LocalEngine(today=TODAY), one(1))
    assert found[3] == found[4] == alone(LocalEngine(today=TODAY, lang="ko"), one(1)) != found[0]


def test_a_bad_lookup_fails_alone(queries: list[list[VerifyRequest]]) -> None:
    """A lookup that cannot be answered gets its error; those in the same query get their answers."""

    async def ask() -> list[VerificationPayload | BaseException]:
        answering = LookupAnswerer(OneEngine())  # type: ignore[arg-type]
        asked = [one(1), one(2), VerifyRequest("1248100998", "bad"), one(3), one(4)]
        return await asyncio.gather(*(answering.answer("a", each) for each in asked), return_exceptions=True)

    answers = asyncio.run(ask())
    assert len(queries[0]) == 5
    assert isinstance(answers.pop(2), ValueError)
    assert answers == [alone(LocalEngine(today=TODAY), one(number)) for number in (1, 2, 3, 4)]


@pytest.mark.parametrize("where", ["answers", "__init__"])
def test_a_panic_is_an_error_and_no_end(server: Served, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """When polars panics the request is answered 500 in the one shape, and the next is answered."""
    key, body = server.key(), BODY | {"name": f"panik {where}"}

    def panics(*_: object) -> None:
        raise pl.exceptions.PanicException("this row is of 홍길동")

    with monkeypatch.context() as broken:
        broken.setattr(PreparedQuery, where, panics)
        server.app.state.context.lookups.answerer._queues.clear()
        server.app.state.context.lookups.answerer._of_key.clear()
        answer = post(server, key, body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal")
        assert used(server, key) == 0
    assert post(server, key, body).status_code == 200


def test_what_no_one_expects_reaches_each_asker() -> None:
    """Whatever the work raises, those whose question it was get it, and nobody waits for ever."""

    async def work(asked: Sequence[int]) -> list[int]:
        raise pl.exceptions.PanicException("broken")

    async def ask() -> list[Any]:
        batcher = Microbatcher(work, 4)
        return await asyncio.wait_for(asyncio.gather(*map(batcher.submit, range(6)), return_exceptions=True), 10)

    assert {type(found) for found in asyncio.run(ask())} == {pl.exceptions.PanicException}


def test_too_many_lookups_are_refused_and_a_cancelled_one_harms_nobody(queries: list[list[VerifyRequest]]) -> None:
    """Beyond the bound the refusal is 503 for whoever fills it, not for others.

    One that is cancelled makes room, is not asked, and its neighbour is.
    """

    async def ask() -> VerificationPayload:
        answering = LookupAnswerer(OneEngine(), waiting=3)  # type: ignore[arg-type]
        first = asyncio.create_task(answering.answer("a", one(0)))
        while not queries:
            await asyncio.sleep(0)
        gone, stays = (asyncio.create_task(answering.answer("a", one(number))) for number in (1, 2))
        await asyncio.sleep(0)
        with pytest.raises(Refusal) as refused:
            answering.admit("a")
        answering.admit("b")
        assert (refused.value.status, refused.value.code) == (503, "busy")
        assert int(refused.value.headers["Retry-After"]) > 0
        with pytest.raises(Refusal):
            await answering.answer("a", one(3))
        gone.cancel()
        await asyncio.wait([gone])
        answering.admit("a")
        await first
        return await stays

    assert asyncio.run(ask()) == alone(LocalEngine(today=TODAY), one(2))
    assert queries == [[one(0)], [one(2)]]


def test_a_damaged_registry_is_told_to_all(tmp_path: Path, queries: list[list[VerifyRequest]]) -> None:
    """What is wrong with an index is the error of each lookup, after one query and not one for each."""
    path = tmp_path / "registry.parquet"
    path.write_bytes(REGISTRY.read_bytes())
    engine = LocalEngine(Registry.open(path), today=TODAY)
    whole = bytearray(path.read_bytes())
    whole[8 : len(whole) // 2] = bytes(len(whole) // 2 - 8)
    path.write_bytes(whole)

    async def ask() -> list[Any]:
        answering = LookupAnswerer(OneEngine(engine))  # type: ignore[arg-type]
        return await asyncio.gather(*(answering.answer("a", one(n)) for n in range(9)), return_exceptions=True)

    assert all(isinstance(answer, RegistryError) for answer in asyncio.run(ask()))
    assert len(queries) <= 1


def test_a_group_has_a_bound_and_keeps_the_order() -> None:
    """Of many questions at once each group has at most so many, in the order in which they came."""
    groups: list[list[int]] = []

    async def work(asked: Sequence[int]) -> list[int]:
        groups.append(list(asked))
        await asyncio.sleep(0)
        return [-each for each in asked]

    async def ask() -> list[int]:
        batcher = Microbatcher(work, 4)
        return await asyncio.gather(*(batcher.submit(number) for number in range(10)))

    assert asyncio.run(ask()) == [-number for number in range(10)]
    assert groups == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_those_who_asked_together_are_waited_for_and_nobody_is_who_asked_alone() -> None:
    """One query costs what many rows cost: callers that ask again and again are answered by one query, not by two."""
    groups: list[list[int]] = []

    async def work(asked: Sequence[int]) -> list[int]:
        groups.append(list(asked))
        await asyncio.sleep(0)
        return list(asked)

    async def ask() -> None:
        batcher = Microbatcher(work, 8, patience=1e9)
        await batcher.submit(0)
        await batcher.submit(1)
        await asyncio.gather(*map(batcher.submit, (2, 3, 4)))
        first = batcher.submit(5)
        for _ in range(50):  # turns of the loop in which it would be answered alone
            await asyncio.sleep(0)
        await asyncio.gather(first, *map(batcher.submit, (6, 7)))

    asyncio.run(asyncio.wait_for(ask(), 20))
    assert groups == [[0], [1], [2, 3, 4], [5, 6, 7]]


# ── Idempotency-Key ──────────────────────────────────────────────────────────────────────────────────────────────


def test_the_same_request_is_answered_alike_and_paid_once(server: Served) -> None:
    """The same key with the same request gets the same bytes, whatever its form, and takes nothing more."""
    key = server.key(quota=5)
    answers = [
        post(server, key, body, "one") for body in (BODY, dict(reversed(BODY.items())), BODY | {"more": [1]}, BODY)
    ]
    assert [answer.status_code for answer in answers] == [200] * 4
    assert len({answer.content for answer in answers}) == 1
    assert used(server, key) == 1
    assert post(server, key, BODY, "two").content == answers[0].content
    assert post(server, key, BODY).content == answers[0].content
    assert used(server, key) == 3


def test_another_request_with_the_key_is_refused(server: Served) -> None:
    """The same key with another request is 409, costs nothing, and does not harm the first; keys do not share them."""
    key, other = server.key(), server.key()
    first = post(server, key, BODY, "one")
    refused = post(server, key, BODY | {"name": "가"}, "one")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "idempotency_mismatch")
    assert post(server, key, BODY, "one").content == first.content
    assert post(server, other, BODY | {"name": "가"}, "one").status_code == 200
    assert (used(server, key), used(server, other)) == (1, 1)


@pytest.mark.parametrize("token", ["", "a b", "a\tb", "x" * 201, "가"])
def test_a_key_that_is_none_is_refused(server: Served, token: str) -> None:
    """What is not 1 to 200 visible ASCII characters is 400 and costs nothing."""
    key = server.key()
    headers = {b"X-API-Key": key.encode(), b"Idempotency-Key": token.encode()}
    refused = HTTP.post(f"{server.url}/verify", json=BODY, headers=list(headers.items()))
    assert refused.status_code == 400
    assert used(server, key) == 0
    assert post(server, key, BODY, "x" * 200).status_code == 200


def test_duplicates_at_the_same_time_wait_for_the_first(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ten at once one is done and paid, and all get its answer; another request meanwhile is 409."""
    begun, go = answers_held(monkeypatch)
    key, body = server.key(), BODY | {"name": "겹침"}
    with ThreadPoolExecutor(10) as pool:
        asked = [pool.submit(post, server, key, body, "same") for _ in range(10)]
        assert begun.wait(30)
        assert post(server, key, BODY, "same").status_code == 409
        go.set()
        found = [each.result() for each in asked]
    assert {each.status_code for each in found} == {200}
    assert len({each.content for each in found}) == 1
    assert used(server, key) == 1


@pytest.mark.parametrize(
    ("path", "body", "field", "limit"),
    [
        ("/verify", {"b_no": "1248100998"}, "name", 300),
        ("/verify", {"b_no": "1248100998"}, "address", 1_000),
        ("/watch", {"biz_no": "1248100998"}, "name", 300),
        ("/watch", {"biz_no": "1248100998"}, "address", 1_000),
        ("/batch/job_1/label", {"row_id": 0, "bounced": True}, "reason", 1_000),
    ],
)
def test_a_text_that_is_too_long_is_refused(
    server: Served, path: str, body: dict[str, Any], field: str, limit: int
) -> None:
    """A text may be as long as the page says; of a longer one the refusal has field, length and bound, not the text."""
    key = server.key()

    def send(content: str | bytes) -> httpx.Response:
        return HTTP.post(f"{server.url}{path}", content=content, headers={"X-API-Key": key})

    refused = send(json.dumps(body | {field: "가" * (limit + 1)}))
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (400, "invalid_request")
    assert (error["field"], error["length"], error["limit"]) == (field, limit + 1, limit)
    assert field in error["message"]
    assert "가" not in error["message"]
    assert send(json.dumps(body | {field: "가" * limit})).status_code in (200, 201, 404)
    twice = json.dumps(body)[:-1] + f', "{field}": "{"x" * (limit + 1)}", "{field}": %s}}'
    for second in ("3", "[" * 5_000 + "]" * 5_000, "nothing"):
        assert send(twice % second).status_code == 400
    assert used(server, key) == (path == "/verify")


def test_failed_attempts_leave_nothing(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """After 429 and 500 nothing is kept or taken, so that the same key gets a real answer later."""
    key = server.key(quota=0)
    assert post(server, key, BODY, "one").status_code == 429
    assert rows_of(server.db, "SELECT count(*) FROM idempotency WHERE key_id = ?", id_of(server, key)) == [(0,)]
    key, body = server.key(), BODY | {"name": "kaputt"}
    with monkeypatch.context() as broken:

        def fails(prepared: PreparedQuery, asked: Sequence[VerifyRequest]) -> list[VerificationPayload]:
            raise RuntimeError("broken")

        broken.setattr(PreparedQuery, "answers", fails)
        assert post(server, key, body, "one").status_code == 500
    assert rows_of(server.db, "SELECT count(*) FROM idempotency WHERE key_id = ?", id_of(server, key)) == [(0,)]
    assert used(server, key) == 0
    assert post(server, key, body, "one").status_code == 200
    assert used(server, key) == 1


def id_of(server: Served, key: str) -> str:
    with server.client(key) as client:
        return str(client.me().raw["key_id"])


def test_an_answer_is_kept_over_a_restart_and_half_done_work_is_not_paid_again(tmp_path: Path) -> None:
    """A restarted server gives the kept bytes, also under another language, and ends unpaid what was paid and begun."""
    with served(tmp_path / "db.sqlite") as server:
        key, raised = server.key(), server.key()
        first = post(server, key, BODY, "one")
        identity, ids = id_of(server, key), id_of(server, raised)
    # as it stands when the first attempt died between paying and answering
    with closing(open_server_file(tmp_path / "db.sqlite")) as db:
        db.execute("UPDATE idempotency SET answer = NULL, key_id = ? WHERE key_id = ?", (ids, identity))
        key_table.take_lookups(db, ids, Clock().month(), 1, 9)
    with served(tmp_path / "db.sqlite", lang="ko") as server:
        ended = post(server, raised, BODY, "one")
        assert ended.status_code == 200
        assert ended.content != first.content
        assert used(server, raised) == 1
        assert post(server, raised, BODY | {"name": "x"}, "one").status_code == 409
    with served(tmp_path / "db.sqlite", lang="en") as server:
        assert post(server, raised, BODY, "one").content == ended.content
        assert used(server, raised) == 1


def test_kept_answers_are_deleted_after_a_week(tmp_path: Path) -> None:
    """What was kept for seven days is gone when the server looks, also where there is much of it; newer ones stay."""
    now = 1_800_000_000.0
    with served(tmp_path / "db.sqlite", Clock(now=lambda: now)) as server:
        key = server.key()
        id_ = id_of(server, key)
        post(server, key, BODY, "new")
        with closing(open_server_file(server.db)) as db:
            old = ((id_, number.to_bytes(32, "big"), b"", now - KEPT - 1) for number in range(25_000))
            db.execute("BEGIN IMMEDIATE")
            db.executemany("INSERT INTO idempotency (key_id, token, request, created) VALUES (?, ?, ?, ?)", old)
            db.execute("COMMIT")
        repeats = server.app.state.context.idempotent
        asyncio.run(repeats.purge())
        assert rows_of(server.db, "SELECT created FROM idempotency") == [(now,)]


def test_what_is_kept_holds_nothing_of_the_request(server: Served) -> None:
    """Neither the header's value nor name and address of a request are in its row."""
    key = server.key()
    post(server, key, {"b_no": "1248100998", "name": "비밀이름", "address": "비밀주소 1"}, "secret-token")
    rows = rows_of(server.db, "SELECT * FROM idempotency WHERE key_id = ?", id_of(server, key))
    assert len(rows) == 1
    said = repr(rows).encode() + b"".join(value for value in rows[0] if isinstance(value, bytes))
    assert b"secret-token" not in said
    assert "비밀이름".encode() not in said
