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
from bansong.server.engines import KeyLetters, ReferenceData, ServedEngine
from bansong.server.lookups import LookupAnswerer, PreparedQuery
from bansong.server.payloads import VerificationPayload, VerifyRequest
from bansong.server.settings import Settings

TODAY = date(2026, 11, 21)
NUMBERS = ("1248100998", "2208162517", "1208147521")
KEY = "서울중구세종대로110"
ASKED = [VerifyRequest(number, "가나다", "서울 중구 세종대로 110") for number in NUMBERS]


def known(*letters: tuple[int, str, int]) -> pl.DataFrame:
    """Letters: the place of the number, what became of it, and how many days ago it was mailed."""
    rows = [(int(NUMBERS[place]), KEY, outcome, TODAY - timedelta(days)) for place, outcome, days in letters]
    return pl.DataFrame(rows, schema=HISTORY_SCHEMA, orient="row").sort("b_no")


LETTERS = {
    "none": None,
    "own": KeyLetters(known((0, "delivered", 30))),
    "other": KeyLetters(known((0, "absent", 30), (2, "moved", 700))),
    "empty": KeyLetters(known()),
    "long ago": KeyLetters(known((0, "delivered", 400), (1, "absent", 400))),
}


class Engines:
    """An engine for each key, of files that all share."""

    def __init__(self) -> None:
        data, settings = ReferenceData(None, None, ()), Settings(db=Path("unused"))
        self.of = {
            key: ServedEngine(data, Scorecard.load(), settings, TODAY, letters) for key, letters in LETTERS.items()
        }

    async def open_engine(self, key_id: str) -> ServedEngine:
        return self.of[key_id]


def alone(engine: ServedEngine, lookup: VerifyRequest) -> VerificationPayload:
    record = {"b_no": lookup.b_no, "name": lookup.name, "address": lookup.address, "zipcode": None}
    row = engine.answer(pl.LazyFrame([record], schema=dict.fromkeys(RECORD_COLUMNS, pl.String))).collect()
    seven = {name: row[name][0] for name in VerificationPayload.__struct_fields__}
    return VerificationPayload(**seven | {"reasons": seven["reasons"].split(REASON_SEPARATOR)})


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
    asked = [(key, lookup) for lookup in ASKED for key in LETTERS]

    async def ask() -> list[list[VerificationPayload]]:
        answering = LookupAnswerer(engines)  # type: ignore[arg-type]
        return [await asyncio.gather(*(answering.answer(*one) for one in asked)) for _ in range(2)]

    expected = [alone(engines.of[key], lookup) for key, lookup in asked]
    assert asyncio.run(ask()) == [expected, expected]
    assert len(queries) <= 1 + len(LETTERS)


def test_keys_with_letters_share_a_query(queries: list[int]) -> None:
    """Keys that ask about different businesses at once are answered by one query, whatever letters they know."""
    engines = Engines()

    async def ask() -> None:
        answering = LookupAnswerer(engines)  # type: ignore[arg-type]
        await asyncio.gather(
            *(answering.answer(key, ASKED[place]) for place, key in enumerate(("own", "long ago", "other")))
        )

    asyncio.run(ask())
    assert queries == [3]
