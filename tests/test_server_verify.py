"""POST /verify: lookups gathered into queries, exact quota, requests repeated under an Idempotency-Key."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bansong import Gazetteer, LocalEngine
from bansong.base.schema import REASON_SEPARATOR, RECORD_COLUMNS, SEOUL
from bansong.engine.overlays import HISTORY_SCHEMA, address_key
from bansong.engine.registry import Registry
from bansong.engine.risk.scorecard import Scorecard
from bansong.errors import RegistryError
from bansong.server import keys as key_table
from bansong.server.engines import KeyLetters, ReferenceData, ServedEngine
from bansong.server.job_table import KEPT
from bansong.server.lookups import SHARE, LookupAnswerer, Microbatcher, PreparedQuery
from bansong.server.payloads import Refusal, VerificationPayload, VerifyRequest
from bansong.server.settings import Clock, Settings
from bansong.server.store import open_server_file
from examples import examples
from serving import (
    ADDRESSED,
    NUMBER,
    Account,
    Served,
    answers_held,
    hosted,
    line_from,
    refused,
    rows_of,
    served,
    wait_until,
)

SAMPLE = Path(__file__).parent.parent / "sample_data"
REGISTRY = SAMPLE / "registry.parquet"
ADDRESS = ADDRESSED["address"]
TODAY = date(2026, 11, 22)
KNOWN = pl.read_parquet(REGISTRY)["b_no"].cast(pl.String).to_list()
OUTCOMES = pl.Series("outcome", ["delivered", "moved", "absent"])
LETTERS = pl.LazyFrame({"b_no": [int(KNOWN[0])] * 2 + [int(KNOWN[1])], "address": [ADDRESS] * 3}).select(
    pl.col("b_no").cast(pl.UInt64),
    address_key(pl.col("address")).alias("address_key"),
    OUTCOMES,
    pl.Series("mailed", [date(2026, 1, 1), date(2026, 5, 1), date(2026, 6, 1)]),
)


def alone(engine: LocalEngine, lookup: VerifyRequest) -> VerificationPayload:
    """What the engine itself says of one row."""
    record = {"b_no": lookup.b_no, "name": lookup.name, "address": lookup.address, "zipcode": None}
    row = engine.answer(pl.LazyFrame([record], schema=dict.fromkeys(RECORD_COLUMNS, pl.String))).collect()
    seven = {name: row[name][0] for name in VerificationPayload.__struct_fields__}
    reasons = seven["reasons"].split(REASON_SEPARATOR) if seven["reasons"] else []
    return VerificationPayload(**seven | {"reasons": reasons})


def one(number: int) -> VerifyRequest:
    return VerifyRequest(f"{1_248_100_000 + number}", "가나다", f"{ADDRESS} {number}층")


class Engines:
    """An engine for each key, or the same for all."""

    def __init__(self, engine: LocalEngine | None = None, **of: LocalEngine) -> None:
        self.current, self.of = engine or LocalEngine(today=TODAY), of

    async def open_engine(self, key_id: str) -> LocalEngine:
        return self.of.get(key_id, self.current)


def answering(engines: Engines | None = None, **more: Any) -> LookupAnswerer:
    return LookupAnswerer(engines or Engines(), **more)  # type: ignore[arg-type]


@pytest.fixture
def queries(monkeypatch: pytest.MonkeyPatch) -> list[list[VerifyRequest]]:
    """The lookups of each query that is run."""
    ran, answers = list[list[VerifyRequest]](), PreparedQuery.answers

    def noted(prepared: PreparedQuery, asked: Sequence[VerifyRequest], *more: Any) -> list[VerificationPayload]:
        ran.append(list(asked))
        if any(each.name == "bad" for each in asked):
            raise ValueError("cannot be answered")
        return answers(prepared, asked, *more)

    monkeypatch.setattr(PreparedQuery, "answers", noted)
    return ran


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with hosted(tmp_path_factory.mktemp("served") / "db.sqlite") as it:
        yield it


@pytest.fixture
def key(server: Served) -> Account:
    return server.account()


def broken(*_: Any) -> Any:
    raise RuntimeError("broken")


# ------------------------------------------------------------------------------------------------------- queries

texts = st.none() | st.sampled_from(["", "삼성전자", "***", "가 | 나", "-", "㈜ 가나다\x00"]) | st.text(max_size=30)
addresses = st.sampled_from([ADDRESS, f"{ADDRESS} 3층", "30100 세종 한누리대로 2130", "서울 강남구"]) | texts
numbers = st.sampled_from(KNOWN) | st.integers(1, 9_999_999_999).map(lambda number: f"{number:010}")
lookups = st.builds(VerifyRequest, numbers, texts, addresses)


@pytest.fixture(scope="module")
def prepared() -> tuple[LocalEngine, PreparedQuery]:
    gazetteer = Gazetteer.open(SAMPLE / "gazetteer.parquet")
    engine = LocalEngine(REGISTRY, gazetteer=gazetteer, today=TODAY, lang="ko", history=LETTERS)
    return engine, PreparedQuery(engine)


@examples(12)
@given(asked=st.lists(lookups, min_size=1, max_size=4))
def test_gathered_lookups_are_answered_as_each_alone(
    prepared: tuple[LocalEngine, PreparedQuery], asked: list[VerifyRequest]
) -> None:
    engine, query = prepared
    assert query.answers(asked) == [alone(engine, each) for each in asked]


def test_registry_and_label_book_are_heeded(prepared: tuple[LocalEngine, PreparedQuery]) -> None:
    engine, query = prepared
    asked = [VerifyRequest(KNOWN[at], "가", ADDRESS) for at in range(3)]
    answers = query.answers(asked)
    assert answers == [alone(engine, each) for each in asked]
    assert all(each.biz_status != "unknown" for each in answers)
    assert [any("이력" in reason for reason in each.reasons) for each in answers] == [True, True, False]


def test_lookups_at_the_same_time_share_queries_and_keys_take_turns(queries: list[list[VerifyRequest]]) -> None:
    """One key's hundred lookups make the query of another's one no longer; alone, they are one query."""

    async def ask() -> list[VerificationPayload]:
        lookups = answering()
        first = asyncio.create_task(lookups.answer("a", one(0)))
        while not queries:
            await asyncio.sleep(0)
        many = [asyncio.create_task(lookups.answer("a", one(n))) for n in range(1, 101)]
        await asyncio.sleep(0)
        found = await asyncio.gather(first, *many, lookups.answer("b", one(500)))
        for begin in (101, 201):
            await asyncio.gather(*(lookups.answer("a", one(n)) for n in range(begin, begin + 100)))
        return found

    found, engine = asyncio.run(ask()), LocalEngine(today=TODAY)
    assert [found[number] for number in (0, 57, 101)] == [alone(engine, one(number)) for number in (0, 57, 500)]
    assert [len(asked) for asked in queries[:2]] == [1, SHARE + 1]
    assert (queries[1][-1], len(queries[-1])) == (one(500), 100)


def test_an_answer_is_remembered_until_the_engine_changes(queries: list[list[VerifyRequest]]) -> None:
    engines = Engines()

    async def ask() -> list[VerificationPayload]:
        lookups = answering(engines)
        found = [await lookups.answer("a", one(1)) for _ in range(3)]
        assert len(queries) == 1
        engines.current = LocalEngine(today=TODAY, lang="ko")
        return [*found, await lookups.answer("a", one(1)), await lookups.answer("b", one(1))]

    found = asyncio.run(ask())
    assert len(queries) == 2, "another key whose engine answers alike remembers, too"
    assert found[0] == found[2] == alone(LocalEngine(today=TODAY), one(1))
    assert found[3] == found[4] == alone(engines.current, one(1)) != found[0]


def test_a_bad_lookup_fails_alone(queries: list[list[VerifyRequest]]) -> None:
    """A lookup that cannot be answered gets its error; those in the same query get their answers."""

    async def ask() -> list[VerificationPayload | BaseException]:
        lookups, asked = answering(), [one(1), one(2), VerifyRequest(NUMBER, "bad"), one(3), one(4)]
        return await asyncio.gather(*(lookups.answer("a", each) for each in asked), return_exceptions=True)

    answers = asyncio.run(ask())
    assert len(queries[0]) == 5
    assert isinstance(answers.pop(2), ValueError)
    assert answers == [alone(LocalEngine(today=TODAY), one(number)) for number in (1, 2, 3, 4)]


def test_too_many_lookups_are_refused_and_a_cancelled_one_harms_nobody(queries: list[list[VerifyRequest]]) -> None:
    """Beyond the bound the refusal is 503 for whoever fills it, not for others; a cancelled one makes room."""

    async def ask() -> VerificationPayload:
        lookups = answering(waiting=3)
        first = asyncio.create_task(lookups.answer("a", one(0)))
        while not queries:
            await asyncio.sleep(0)
        gone, stays = (asyncio.create_task(lookups.answer("a", one(number))) for number in (1, 2))
        await asyncio.sleep(0)
        with pytest.raises(Refusal) as refusal:
            await lookups.answer("a", one(3))
        assert (refusal.value.status, refusal.value.code) == (503, "busy")
        lookups.admit("b")
        gone.cancel()
        await asyncio.wait([gone])
        lookups.admit("a")
        await first
        return await stays

    assert asyncio.run(ask()) == alone(LocalEngine(today=TODAY), one(2))
    assert queries == [[one(0)], [one(2)]]


def test_a_damaged_registry_is_told_to_all(tmp_path: Path, queries: list[list[VerifyRequest]]) -> None:
    """After one query and not one for each."""
    path, whole = tmp_path / "registry.parquet", bytearray(REGISTRY.read_bytes())
    path.write_bytes(whole)
    engine = LocalEngine(Registry.open(path), today=TODAY)
    whole[8 : len(whole) // 2] = bytes(len(whole) // 2 - 8)
    path.write_bytes(whole)

    async def ask() -> list[Any]:
        lookups = answering(Engines(engine))
        return await asyncio.gather(*(lookups.answer("a", one(n)) for n in range(9)), return_exceptions=True)

    assert all(isinstance(answer, RegistryError) for answer in asyncio.run(ask()))
    assert len(queries) <= 1


# ------------------------------------------------------------------------------------------------ letters of keys

BUSINESSES = (NUMBER, "2208162517", "1208147521")
ASKED = [VerifyRequest(number, "가나다", "서울 중구 세종대로 110") for number in BUSINESSES]


def letters(*known: tuple[int, str, int]) -> KeyLetters:
    """Letters: the place of the number, what became of it, and how many days ago it was mailed."""
    rows = [
        (int(BUSINESSES[at]), "서울중구세종대로110", outcome, TODAY - timedelta(days)) for at, outcome, days in known
    ]
    return KeyLetters(pl.DataFrame(rows, schema=HISTORY_SCHEMA, orient="row").sort("b_no"))


@pytest.fixture(scope="module")
def lettered() -> Engines:
    """Keys that know different letters, and files that all share."""
    data, settings = ReferenceData(None, None, ()), Settings(db=Path("unused"))
    known = {
        "none": None,
        "own": letters((0, "delivered", 30)),
        "other": letters((0, "absent", 30), (2, "moved", 700)),
        "empty": letters(),
        "old": letters((0, "delivered", 400), (1, "absent", 400)),
    }
    return Engines(**{name: ServedEngine(data, Scorecard.load(), settings, TODAY, of) for name, of in known.items()})


def test_each_key_is_answered_from_its_own_letters(lettered: Engines, queries: list[list[VerifyRequest]]) -> None:
    """All keys ask about all businesses at once, and again: each is told what its own engine says to it alone."""
    asked = [(key, lookup) for lookup in ASKED for key in lettered.of]

    async def ask() -> list[list[VerificationPayload]]:
        lookups = answering(lettered)
        return [await asyncio.gather(*(lookups.answer(*each) for each in asked)) for _ in range(2)]

    expected = [alone(lettered.of[key], lookup) for key, lookup in asked]
    assert asyncio.run(ask()) == [expected, expected]
    assert len(queries) <= 1 + len(lettered.of)


def test_keys_with_letters_share_a_query(lettered: Engines, queries: list[list[VerifyRequest]]) -> None:
    async def ask() -> None:
        lookups = answering(lettered)
        await asyncio.gather(*(lookups.answer(key, ASKED[at]) for at, key in enumerate(("own", "old", "other"))))

    asyncio.run(ask())
    assert [len(asked) for asked in queries] == [3]


# --------------------------------------------------------------------------------------------------- microbatches


def batched(most: int, items: str, keys: str = "", **more: Any) -> list[str]:
    """The batches in which items that came at once were worked on."""
    groups: list[str] = []

    async def work(asked: Sequence[str]) -> list[str]:
        groups.append("".join(asked))
        await asyncio.sleep(0)
        return [item.upper() for item in asked]

    async def ask() -> list[str]:
        batcher = Microbatcher(work, most, **more)
        asked = [batcher.submit(item, key) for item, key in zip(items, keys or "a" * len(items), strict=True)]
        return await asyncio.gather(*asked)

    assert "".join(asyncio.run(ask())) == items.upper()
    return groups


def test_a_group_has_a_bound_and_keeps_the_order_and_keys_beyond_it_come_first_in_the_next() -> None:
    assert batched(4, "abcdefghij") == ["abcd", "efgh", "ij"]
    assert batched(4, "aaabbbcccddd", "aaabbbcccddd", share=2) == ["aabb", "ccdd", "abcd"]


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


@pytest.mark.parametrize("where", ["answers", "__init__"])
def test_a_panic_is_an_error_and_no_end(key: Account, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """When polars panics the request is answered 500 in the one shape, and the next is answered."""

    def panics(*_: object) -> None:
        raise pl.exceptions.PanicException("this row is of 홍길동")

    with monkeypatch.context() as patch:
        patch.setattr(PreparedQuery, where, panics)
        for kept in ("_queues", "_of_key"):
            getattr(key.server.context.lookups.answerer, kept).clear()
        answer = key.verify(name=f"panik {where}")
        assert (refused(answer), "홍길동" in answer.text, key.used()) == ((500, "internal"), False, 0)
    assert key.verify(name=f"panik {where}").status_code == 200


# ------------------------------------------------------------------------------------------------------- quota


def test_a_thousand_at_once_with_a_quota_of_five_hundred(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly 500 are answered and counted; a lookup that fails is given back; keys do not share a quota."""
    answers = PreparedQuery.answers

    def some(prepared: PreparedQuery, asked: Sequence[VerifyRequest]) -> list[VerificationPayload]:
        return broken() if any(each.b_no == f"{1_000_000_003}" for each in asked) else answers(prepared, asked)

    monkeypatch.setattr(PreparedQuery, "answers", some)
    key, other = server.account("enterprise", 500), server.account(quota=7)  # a plan that lets ask a thousand at once
    with ThreadPoolExecutor(64) as pool:
        asked = [(one, f"{1_000_000_000 + number}") for number in range(250) for one in (key, key, key, key)]
        asked += [(other, f"{1_000_000_100 + number}") for number in range(20)]
        found = list(pool.map(lambda each: (each[0], each[0].verify(each[1]).status_code), asked))
    counts = Counter(found)
    assert (counts[key, 200], counts[other, 200], key.used(), other.used()) == (500, 7, 500, 7)
    assert 1 <= counts[key, 500] <= 4
    error = key.verify().json()["error"]
    assert (error["limit"], error["used"], error["remaining"]) == (500, 500, 0)


def test_who_hangs_up_is_charged_and_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that is gone before its answer was ready has used a lookup."""
    _, go = answers_held(monkeypatch)
    with served(tmp_path / "db.sqlite") as server:
        key, body = server.account(), json.dumps({"b_no": NUMBER}).encode()
        for number in range(3):
            with line_from(server) as line:
                head = f"POST /verify HTTP/1.1\r\nHost: x\r\nX-API-Key: {key.secret}\r\nContent-Length: {len(body)}"
                line.sendall(f"{head}\r\n\r\n".encode() + body)
                wait_until(lambda number=number: key.used() == number + 1)  # type: ignore[misc]
        go.set()
        assert (key.verify().status_code, key.used()) == (200, 4)


def test_a_month_begins_at_midnight_in_seoul(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was taken before the end of the month and failed after it is given back to the month before."""
    times = [datetime(2026, 12, 31, 23, 59, 59, tzinfo=SEOUL).timestamp()]

    def fails(*_: object) -> None:
        times.append(times[-1] + 2)
        raise RuntimeError("broken")

    with hosted(tmp_path / "db.sqlite", Clock(now=lambda: times[-1])) as server:
        key = server.account(quota=1)
        with monkeypatch.context() as patch:
            patch.setattr(PreparedQuery, "answers", fails)
            for headers in ({}, {"Idempotency-Key": "one"}):
                assert key.verify(headers=headers).status_code == 500
                times.pop()
        assert key.verify().status_code == 200
        answer = key.verify()
        assert (answer.status_code, answer.headers["Retry-After"]) == (429, "1")
        assert answer.json()["error"]["resets_at"] == "2027-01-01T00:00:00+09:00"
        times.append(times[-1] + 1)
        assert [key.verify().status_code for _ in range(2)] == [200, 429]
        assert key.get("/me")["quota"]["month"] == "2027-01"
    rows = rows_of(tmp_path / "db.sqlite", "SELECT month, used FROM usage ORDER BY month")
    assert rows == [("2026-12", 1), ("2027-01", 1)]


BAD = [b"{", b"[]", b'{"b_no":"0000000000"}', b'{"b_no":1248100998}', b'{"b_no":"1248100998","name":7}', b"\xff", b"{}"]


def test_what_is_refused_costs_nothing(key: Account) -> None:
    for body in BAD:
        answer = key.ask("POST", "/verify", content=body, headers={"Content-Type": "application/json"})
        assert refused(answer) == (400, "invalid_request"), body
    for number in ("124-81-00998", "124 8100998", "12", "124810099a", "1248100998\n"):
        for path, field in (("/verify", "b_no"), ("/watch", "biz_no")):
            answer = key.ask("POST", path, json={field: number})
            assert answer.status_code == 400
            assert f"{field} must be a business number: ten digits without hyphens" in answer.json()["error"]["message"]
    assert key.used() == 0


@pytest.mark.parametrize(
    ("path", "body", "field", "limit"),
    [
        ("/verify", {"b_no": NUMBER}, "name", 300),
        ("/verify", {"b_no": NUMBER}, "address", 1_000),
        ("/watch", {"biz_no": NUMBER}, "name", 300),
        ("/batch/job_1/label", {"row_id": 0, "bounced": True}, "reason", 1_000),
    ],
)
def test_a_text_that_is_too_long_is_refused(
    key: Account, path: str, body: dict[str, Any], field: str, limit: int
) -> None:
    """The refusal has field, length and bound, not the text."""
    error = (answer := key.ask("POST", path, json=body | {field: "가" * (limit + 1)})).json()["error"]
    assert refused(answer) == (400, "invalid_request")
    assert (error["field"], error["length"], error["limit"]) == (field, limit + 1, limit)
    assert (field in error["message"], "가" in error["message"]) == (True, False)
    assert key.ask("POST", path, json=body | {field: "가" * limit}).status_code in (200, 201, 404)
    twice = json.dumps(body)[:-1] + f', "{field}": "{"x" * (limit + 1)}", "{field}": %s}}'
    for second in ("3", "[" * 5_000 + "]" * 5_000, "nothing"):
        assert key.ask("POST", path, content=twice % second).status_code == 400
    assert key.used() == (path == "/verify")


# ------------------------------------------------------------------------------------------------ Idempotency-Key


def once(key: Account, token: str = "one", **body: Any) -> Any:
    return key.ask("POST", "/verify", json=ADDRESSED | body, headers={"Idempotency-Key": token})


def test_the_same_request_is_answered_alike_and_paid_once(server: Served, key: Account) -> None:
    """Whatever its form; another request with the key is 409 and costs nothing; keys do not share them."""
    first = once(key)
    for body in (dict(reversed(ADDRESSED.items())), ADDRESSED | {"more": [1]}):
        assert key.ask("POST", "/verify", json=body, headers={"Idempotency-Key": "one"}).content == first.content
    assert refused(once(key, name="가")) == (409, "idempotency_mismatch")
    assert (once(server.account(), name="가").status_code, key.used()) == (200, 1)
    assert once(key, "two").content == first.content
    assert key.used() == 2


def test_a_key_that_is_none_is_refused(key: Account) -> None:
    for token in ("", "a b", "a\tb", "x" * 201, "가".encode()):
        assert once(key, token).status_code == 400  # type: ignore[arg-type]
    assert key.used() == 0
    assert once(key, "x" * 200).status_code == 200


def test_duplicates_at_the_same_time_wait_for_the_first(key: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ten at once one is done and paid, and all get its answer; another request meanwhile is 409."""
    begun, go = answers_held(monkeypatch)
    with ThreadPoolExecutor(10) as pool:
        asked = [pool.submit(once, key, name="겹침") for _ in range(10)]
        assert begun.wait(30)
        assert once(key).status_code == 409
        go.set()
        assert len({(each.result().status_code, each.result().content) for each in asked}) == 1
    assert key.used() == 1


def test_failed_attempts_leave_nothing(server: Served, key: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    """After 429 and 500 nothing is kept or taken, so that the same key gets a real answer later."""
    poor = server.account(quota=0)
    assert once(poor).status_code == 429
    with monkeypatch.context() as patch:
        patch.setattr(PreparedQuery, "answers", broken)
        assert once(key, name="kaputt").status_code == 500
    kept = "SELECT count(*) FROM idempotency WHERE key_id IN (?, ?)"
    assert (rows_of(server.db, kept, poor.id, key.id), key.used()) == ([(0,)], 0)
    assert (once(key, name="kaputt").status_code, key.used()) == (200, 1)


def test_an_answer_is_kept_over_a_restart_and_half_done_work_is_not_paid_again(tmp_path: Path) -> None:
    """A restarted server gives the kept bytes, also under another language, and ends unpaid what was paid and begun."""
    path = tmp_path / "db.sqlite"
    with hosted(path) as server:
        key = server.account()
        first = once(key)
    with closing(open_server_file(path)) as db:  # as it stands when an attempt died between paying and answering
        db.execute("UPDATE idempotency SET answer = NULL")
        assert key_table.month_usage(db, key.id, Clock().month())[0] == 1
    with hosted(path, lang="ko") as server:
        key = Account(server, key.secret)
        ended = once(key)
        assert (ended.status_code, ended.content == first.content, key.used()) == (200, False, 1)
        assert once(key, name="x").status_code == 409
    with hosted(path, lang="en") as server:
        key = Account(server, key.secret)
        assert (once(key).content, key.used()) == (ended.content, 1)


def test_kept_answers_hold_nothing_of_the_request_and_are_deleted_after_a_week(tmp_path: Path) -> None:
    """Also where there is much of it; newer ones stay."""
    now = 1_800_000_000.0
    with hosted(tmp_path / "db.sqlite", Clock(now=lambda: now)) as server:
        key = server.account()
        id_ = key.id
        once(key, "secret-token", name="비밀이름", address="비밀주소 1")
        (row,) = rows_of(server.db, "SELECT * FROM idempotency")
        said = repr(row).encode() + b"".join(value for value in row if isinstance(value, bytes))
        assert not [one for one in ("secret-token", "비밀이름") if one.encode() in said]
        with closing(open_server_file(server.db)) as db:
            old = ((id_, number.to_bytes(32, "big"), b"", now - KEPT - 1) for number in range(25_000))
            db.execute("BEGIN IMMEDIATE")
            db.executemany("INSERT INTO idempotency (key_id, token, request, created) VALUES (?, ?, ?, ?)", old)
            db.execute("COMMIT")
        server.call(server.context.idempotent.purge)
        assert rows_of(server.db, "SELECT created FROM idempotency") == [(now,)]
