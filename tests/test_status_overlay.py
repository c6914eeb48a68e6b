"""Statuses of the tax authority laid over a registry: of each number the newer counts, and the reasons say whose."""

from __future__ import annotations

import json
import pickle
import random
from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import bansong as bs
from bansong.engine.overlays import StatusOverlay
from bansong.engine.registry import MORE, SCHEMA, STATUSES, Registry
from bansong.engine.risk.reasons import parse_reasons
from bansong.errors import UsageError
from conftest import SAMPLE, write

TODAY = date(2026, 11, 23)
ADDRESS = "서울특별시 강남구 테헤란로 152"


def statuses(*rows: dict[str, Any]) -> pl.DataFrame:
    """Statuses as ``bs.fetch_status`` returns them: numbers as text."""
    return pl.DataFrame([{"as_of": TODAY} | row for row in rows], schema={**SCHEMA, **MORE, "b_no": pl.String})


def registry_of(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "registry.parquet"
    bs.build_registry([write(tmp_path / "s.csv", "\n".join(["b_no,상태,폐업일,개업일,과세유형,as_of", *lines]))], path)
    return path


def answers(engine: bs.LocalEngine, *numbers: str) -> list[tuple[str, str]]:
    """Status and first reason of each number, all at one address."""
    frame = pl.LazyFrame({"b_no": list(numbers), "address": [ADDRESS] * len(numbers), "name": ["ㄱ"] * len(numbers)})
    found = engine.verify(frame).collect()
    status = [next((text for text in reasons if text.startswith("[status")), "") for reasons in found["reasons"]]
    return list(zip(found["biz_status"], status, strict=True))


def test_statuses_need_no_registry() -> None:
    told = statuses({"b_no": "1248100998", "biz_status": "closed", "since": date(2026, 10, 1)})
    assert answers(bs.LocalEngine(status=told, today=TODAY), "124-81-00998", "2208162517") == [
        ("closed", "[status +45] closed less than 3 months ago (2026-10-01) (nts, 2026-11-23)"),
        ("unknown", "[status +0] status not checked: no registry was given (registry)"),
    ]
    old = statuses({"b_no": "1248100998", "biz_status": "active", "as_of": TODAY - timedelta(days=91)})
    assert answers(bs.LocalEngine(status=old, today=TODAY), "1248100998") == [
        ("active", "[status +0] business active, but not checked recently enough to rely on (nts, 2026-08-24)")
    ]
    korean = answers(bs.LocalEngine(status=told, today=TODAY, lang="ko"), "1248100998")
    assert korean == [("closed", "[status +45] 폐업한 지 3개월 미만(폐업일 2026-10-01) (nts, 2026-11-23)")]


def test_what_the_newer_one_does_not_say_is_the_other_s(tmp_path: Path) -> None:
    registry = registry_of(
        tmp_path,
        "1248100998,폐업자,2024-03-01,2001-01-01,,2026-10-01",
        "1234567891,계속사업자,,2026-05-01,부가가치세 간이과세자,2026-10-01",
        "1112233339,계속사업자,,,,2026-10-01",
    )
    told = statuses(
        {"b_no": "1248100998", "biz_status": "closed"},
        {"b_no": "1234567891", "biz_status": "active"},
        {"b_no": "1112233339", "biz_status": "active", "taxation": "simplified"},
    )
    engine = bs.LocalEngine(registry, status=told, today=TODAY)
    rows = pl.LazyFrame({"b_no": ["1248100998", "1234567891", "1112233339"], "address": [ADDRESS] * 3})
    closed, taxed, told_so = engine.verify(rows).collect()["reasons"]
    assert closed[0] == "[status +66] closed more than 12 months ago (2024-03-01) (nts, 2026-11-23)"
    assert "[age -6] opened more than 10 years ago (registry)" in closed
    assert {"[age +6] opened less than a year ago (registry)", "[kind +3] a simplified taxpayer (registry)"} < {*taxed}
    assert "[kind +3] a simplified taxpayer (nts)" in told_so


def test_the_overlay_is_the_merge_that_a_plain_loop_makes(tmp_path: Path) -> None:
    """Random registries and statuses, with and without days: row for row what the rules say in plain Python."""
    dice = random.Random(17)
    numbers = [f"{dice.randrange(10**9, 10**10)}" for _ in range(400)]
    known = {b_no: _draw(dice) for b_no in numbers if dice.random() < 0.6}
    told = {b_no: _draw(dice) for b_no in numbers if dice.random() < 0.6}
    frames = [
        pl.DataFrame([{"b_no": int(b_no), **row} for b_no, row in of.items()], schema={**SCHEMA, **MORE}).sort("b_no")
        for of in (known, told)
    ]
    path = tmp_path / "registry.parquet"
    about = {"format": 2, "version": "2026-11-23-test", "rows": len(known)}
    frames[0].write_parquet(path, metadata={"bizverify.registry": json.dumps(about)})
    overlay = StatusOverlay(frames[1].reverse())
    asked = [int(b_no) for b_no in numbers]
    found = overlay.attach(pl.LazyFrame({"key": asked}, schema={"key": pl.UInt64}), "key", Registry.open(path))
    for row in found.collect().iter_rows(named=True):
        b_no = str(row.pop("key"))
        assert row == _merged(known.get(b_no), told.get(b_no)), b_no


def _draw(dice: random.Random) -> dict[str, Any]:
    day = TODAY - timedelta(days=dice.randrange(3))
    return {
        "biz_status": dice.choice(STATUSES),
        "since": dice.choice([None, date(2025, 1, dice.randrange(1, 28))]),
        "opened": dice.choice([None, date(2010, 1, dice.randrange(1, 28))]),
        "as_of": dice.choice([None, day, day]),
        "taxation": dice.choice([None, "general", "simplified"]),
        "merged": dice.choice([None, False, True]),
        "name": dice.choice([None, f"상호{dice.randrange(99)}"]),
    }


def _merged(known: dict[str, Any] | None, told: dict[str, Any] | None) -> dict[str, Any]:
    """The rules: newer day first, a status without a day is the oldest, the rest from whoever says it."""
    nothing = dict.fromkeys(("biz_status", "since", "opened", "as_of", "taxation", "merged", "name"))
    newer = told is not None and (known is None or (told["as_of"] or date.min) >= (known["as_of"] or date.min))
    first, second = (told, known) if newer else (known, told)
    first, second = first or nothing, second or nothing
    alike = newer and first["biz_status"] == second["biz_status"]
    taxed = first if first["taxation"] else second
    return {
        "biz_status": first["biz_status"],
        "since": first["since"] or (second["since"] if alike else None),
        "opened": first["opened"] or second["opened"],
        "as_of": first["as_of"],
        "taxation": taxed["taxation"],
        "merged": second["merged"] if first["merged"] is None else first["merged"],
        "registry_name": first["name"] or second["name"],
        "status_by_nts": newer,
        "taxation_by_nts": taxed["taxation"] is not None and taxed is told,
    }


AGES = {"en": ("1 day old", "23 days old", "22 days old"), "ko": ("1일 전 확인", "23일 전 확인", "22일 전 확인")}


@pytest.mark.parametrize("lang", ["en", "ko"])
def test_the_age_of_a_status_is_said_where_it_could_not_be_asked_again(tmp_path: Path, lang: bs.Lang) -> None:
    numbers = ("1248100998", "2208162517", "1018109147", "1078614075")
    registry = registry_of(tmp_path, f"{numbers[0]},계속사업자,,,,2026-11-22", f"{numbers[1]},휴업자,,,,2026-10-31")
    told = statuses(
        {"b_no": numbers[2], "biz_status": "active", "as_of": date(2026, 11, 1)},
        {"b_no": numbers[3], "biz_status": "active"},
    )
    overlay = StatusOverlay(told, aged_before=TODAY)
    found = answers(bs.LocalEngine(registry, status=overlay, today=TODAY, lang=lang), *numbers)
    days = ("registry, 2026-11-22", "registry, 2026-10-31", "nts, 2026-11-01")
    expected = [f"{day}, {age})" for day, age in zip(days, AGES[lang], strict=True)]
    assert [reason.rpartition(" (")[2] for _, reason in found] == [*expected, "nts, 2026-11-23)"]


@pytest.mark.parametrize("lang", ["en", "ko"])
def test_reasons_of_the_tax_authority_are_read_back(tmp_path: Path, lang: bs.Lang) -> None:
    registry = registry_of(
        tmp_path, *(f"{b_no},{status},2025-01-01,,,2026-10-01" for b_no, status in zip(NUMBERS, KOREAN, strict=True))
    )
    rows = pl.LazyFrame({"b_no": list(NUMBERS), "address": [ADDRESS] * len(NUMBERS), "name": ["ㄱ"] * len(NUMBERS)})
    day = date(2026, 10, 1)
    told = statuses(
        *({"b_no": b_no, "biz_status": word, "as_of": day, "taxation": "simplified"}
          | ({"since": date(2025, 1, 1)} if word == "closed" else {})
          for b_no, word in zip(NUMBERS, ("active", "suspended", "closed", "unregistered"), strict=True))
    )  # fmt: skip
    engines = [
        bs.LocalEngine(registry, today=TODAY, lang=lang),
        bs.LocalEngine(status=StatusOverlay(told), today=TODAY, lang=lang),
        bs.LocalEngine(status=StatusOverlay(told, aged_before=TODAY), today=TODAY, lang=lang),
    ]
    read = [parse_reasons(engine.verify(rows), "reasons").collect() for engine in engines]
    assert not any(frame["unread"].any() for frame in read)
    for column in ("level:status", "level:status_age", "level:number"):
        assert read[0][column].to_list() == read[1][column].to_list() == read[2][column].to_list()
    assert read[1]["level:kind"].to_list().count("simplified") == 1  # the others are companies


NUMBERS = ("1234567891", "2208162517", "1248100998", "1018109147")
KOREAN = ("계속사업자", "휴업자", "폐업자", "국세청에 등록되지 않은 사업자등록번호입니다")


def test_a_registry_is_built_from_a_file_with_statuses_of_the_tax_authority(tmp_path: Path) -> None:
    told = statuses(
        {"b_no": "1248100998", "biz_status": "active", "as_of": date(2026, 11, 1)},
        {"b_no": "2208162517", "biz_status": "active"},
    )
    engine = bs.LocalEngine(status=StatusOverlay(told, aged_before=TODAY), today=TODAY)
    source, output = (
        write(tmp_path / "in.csv", f"b_no,주소\n1248100998,{ADDRESS}\n2208162517,{ADDRESS}\n"),
        tmp_path / "out.csv",
    )
    bs.enrich(source, output, engine=engine)
    bs.build_registry([output], tmp_path / "again.parquet")
    again = pl.read_parquet(tmp_path / "again.parquet")
    assert again["as_of"].to_list() == [date(2026, 11, 1), TODAY]


def test_a_registry_file_is_an_overlay_too_and_may_be_pickled(tmp_path: Path) -> None:
    path = registry_of(tmp_path, "1248100998,휴업자,,,,2026-11-20")
    engines = [
        bs.LocalEngine(SAMPLE / "registry.parquet", status=given, today=TODAY) for given in (path, Registry.open(path))
    ]
    engines += [pickle.loads(pickle.dumps(engine)) for engine in engines]
    frame = statuses({"b_no": "1248100998", "biz_status": "suspended", "as_of": date(2026, 11, 20)})
    engines.append(pickle.loads(pickle.dumps(bs.LocalEngine(SAMPLE / "registry.parquet", status=frame, today=TODAY))))
    wanted = [
        ("suspended", "[status +30] business suspended (nts, 2026-11-20)"),
        ("active", "[status -3] business active (registry, 2026-11-01)"),
    ]
    assert [answers(engine, "1248100998", "2208162517") for engine in engines] == [wanted] * 5
    assert [engine.status.path for engine in engines if engine.status] == [path] * 4 + [None]


def test_threads_share_an_overlay() -> None:
    dice = random.Random(5)
    numbers = sorted({dice.randrange(10**9, 10**10) for _ in range(10_000)})
    told = pl.DataFrame({"b_no": numbers, "biz_status": ["active"] * len(numbers), "as_of": [TODAY] * len(numbers)})
    engine = bs.LocalEngine(status=told, today=TODAY)
    rows = pl.LazyFrame({"b_no": [str(number) for number in numbers]})
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: engine.verify(rows).collect(engine="streaming"), range(4)))
    assert all(set(frame["biz_status"]) == {"active"} for frame in found)


NO_STATUSES: list[tuple[Any, str]] = [
    (pl.LazyFrame({"b_no": ["1248100998"]}), "is a LazyFrame; give a polars DataFrame"),
    (["1248100998"], "is a list; give a polars DataFrame"),
    (bs.StatusOptions(), "is a StatusOptions; give a polars DataFrame"),
    (pl.DataFrame({"number": ["1248100998"]}), "no column 'b_no', only number.*bansong.fetch_status"),
    (
        pl.DataFrame({"b_no": ["1248100998"], "biz_status": ["open"], "as_of": [TODAY]}),
        "open.*bansong.fetch_status",
    ),
]


@pytest.mark.parametrize(("given", "why"), NO_STATUSES, ids=["lazy", "list", "options", "no number", "no status"])
def test_what_is_no_statuses_is_refused_with_what_may_be_given(given: Any, why: str) -> None:
    with pytest.raises(UsageError, match=f"`status=`.*{why}"):
        bs.LocalEngine(status=given)


def test_statuses_that_say_nothing_are_no_statuses() -> None:
    told = statuses(
        {"b_no": "1248100998", "biz_status": "active"},
        {"b_no": "1248100998", "biz_status": "closed", "as_of": date(2026, 11, 1)},
        {"b_no": "2208162517", "biz_status": None},
        {"b_no": "no number", "biz_status": "closed"},
    )
    assert StatusOverlay(told).rows == 1
    assert answers(bs.LocalEngine(status=told, today=TODAY), "1248100998", "2208162517")[0][0] == "active"
