"""Lookups of keys that know different letters share queries, and each is answered from its own key's letters."""

from __future__ import annotations

import asyncio
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from bansong.base.schema import REASON_SEPARATOR, RECORD_COLUMNS
from bansong.engine.overlays import HISTORY_SCHEMA
from bansong.engine.risk.scorecard import Scorecard
from bansong.server.engines import ServedEngine
from bansong.server.lookups import LookupAnswerer, PreparedQuery
from bansong.server.payloads import VerificationPayload, VerifyRequest
from bansong.server.references import AgreedLetters, ReferenceData, ScopeLetters
from bansong.server.settings import Settings

TODAY = date(2026, 11, 21)
NUMBERS = ("1248100998", "2208162517", "1208147521")
KEY = "서울중구세종대로110"
ASKED = [VerifyRequest(number, "가나다", "서울 중구 세종대로 110") for number in NUMBERS]


def known(*letters: tuple[int, str, int]) -> pl.DataFrame:
    """Letters: the place of the number, what became of it, and how many days ago it was mailed."""
    rows = [(int(NUMBERS[place]), KEY, outcome, TODAY - timedelta(days)) for place, outcome, days in letters]
    return pl.DataFrame(rows, schema=HISTORY_SCHEMA, orient="row").sort("b_no")


AGREED = AgreedLetters(known((0, "moved", 0), (1, "delivered", 0)), TODAY)
LETTERS = {
    "none": ScopeLetters(None),
    "own": ScopeLetters(known((0, "delivered", 30))),
    "other": ScopeLetters(known((0, "absent", 30), (2, "moved", 700))),
    "member": ScopeLetters(None, AGREED),
    "another": ScopeLetters(known(), AGREED),
    "differs": ScopeLetters(known((0, "delivered", 30)), AGREED),
    "long ago": ScopeLetters(known((0, "delivered", 400), (1, "absent", 400)), AGREED),
}


class Engines:
    """An engine for each scope, of files that all share."""

    def __init__(self) -> None:
        data, settings = ReferenceData(None, None, ()), Settings(db=Path("unused"))
        self.of = {
            scope: ServedEngine(data, Scorecard.load(), settings, TODAY, letters) for scope, letters in LETTERS.items()
        }

    async def open_engine(self, scope: str) -> ServedEngine:
        return self.of[scope]


def alone(engine: ServedEngine, lookup: VerifyRequest) -> VerificationPayload:
    record = {"b_no": lookup.b_no, "name": lookup.name, "address": lookup.address, "zipcode": None}
    row = engine.answer(pl.LazyFrame([record], schema=dict.fromkeys(RECORD_COLUMNS, pl.String))).collect()
    seven = {name: row[name][0] for name in VerificationPayload.__struct_fields__}
    return VerificationPayload(**seven | {"reasons": seven["reasons"].split(REASON_SEPARATOR)})


def outcome(engine: ServedEngine, place: int) -> str:
    [said, *_] = [*(text for text in alone(engine, ASKED[place]).reasons if "(label)" in text), "nothing (label)"]
    return said.partition("] ")[2].removesuffix(" (label)")


def test_own_letters_go_before_those_of_the_pool() -> None:
    """Where a letter of its own still counts a key hears of that alone, else of what the pool agrees on."""
    engines = Engines().of
    moved, arrived = (
        "a letter to this address came back: moved",
        "a letter to this address arrived in the last 12 months",
    )
    absent = "a letter to this address came back: nobody there"
    assert [outcome(engines["member"], place) for place in range(3)] == [moved, arrived, ""]
    assert outcome(engines["differs"], 0) == arrived
    assert [outcome(engines["long ago"], place) for place in range(2)] == [moved, absent]
    assert [outcome(engines["other"], place) for place in (0, 2)] == [absent, moved]


@pytest.fixture
def queries(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many lookups each query had."""
    ran: list[int] = []
    answers = PreparedQuery.answers

    def noted(prepared: PreparedQuery, asked: list[VerifyRequest], *more: Any) -> list[VerificationPayload]:
        ran.append(len(asked))
        return answers(prepared, asked, *more)

    monkeypatch.setattr(PreparedQuery, "answers", noted)
    return ran


def test_each_key_is_answered_from_its_own_letters(queries: list[int]) -> None:
    """All keys ask about all businesses at once, and again: each is told what its own engine says to it alone."""
    engines = Engines()
    asked = [(scope, lookup) for lookup in ASKED for scope in LETTERS]

    async def ask() -> list[list[VerificationPayload]]:
        answering = LookupAnswerer(engines)  # type: ignore[arg-type]
        return [await asyncio.gather(*(answering.answer(*one) for one in asked)) for _ in range(2)]

    expected = [alone(engines.of[scope], lookup) for scope, lookup in asked]
    assert asyncio.run(ask()) == [expected, expected]
    assert len(queries) <= 1 + len({letters.number for letters in LETTERS.values()})


def test_keys_with_letters_share_a_query(queries: list[int]) -> None:
    """Keys that ask about different businesses at once are answered by one query, whatever letters they know."""
    engines = Engines()

    async def ask() -> None:
        answering = LookupAnswerer(engines)  # type: ignore[arg-type]
        await asyncio.gather(
            *(answering.answer(scope, ASKED[place]) for place, scope in enumerate(("own", "long ago", "other")))
        )

    asyncio.run(ask())
    assert queries == [3]
