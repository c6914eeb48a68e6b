"""A service that answers with somebody else's record, in bytes that are no text, or late: what becomes of the rows."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unicodedata import normalize

import polars as pl
import pytest

import bansong as bs
from bansong.client.evidence import UnreadableError
from bansong.client.responses import read_verified
from bansong.purchase.ledger import Ledger
from bansong.testing import FakeService, Fault, Partial, Status
from bansong.testing.faults import Act
from bansong.testing.messages import FakeReply, FakeRequest, Object
from customers import QUICK, answers, customers, is_right


@dataclass(frozen=True, slots=True)
class Rewritten(Act):
    """Another reply in the place of the true one, made of it (parsed) and of what was asked."""

    write: Callable[[Any, dict[str, Any]], Any]

    async def after(self, asked: FakeRequest, reply: FakeReply) -> FakeReply:
        body = json.loads(await asked.body())
        made = self.write(json.loads(reply.body), body)
        reply.body = made if isinstance(made, bytes) else json.dumps(made, ensure_ascii=False).encode()
        return reply


@dataclass(frozen=True, slots=True)
class Edited(Act):
    """A job's results, edited."""

    edit: Callable[[list[Object]], list[Object]]

    async def before(self, asked: FakeRequest) -> FakeReply | None:
        asked.edits.append(self.edit)
        return None


@dataclass(frozen=True, slots=True)
class Bytes(Act):
    """The true reply with bytes exchanged."""

    old: bytes
    new: bytes

    async def after(self, asked: FakeRequest, reply: FakeReply) -> FakeReply:  # noqa: ARG002 - every act has these
        reply.body = reply.body.replace(self.old, self.new)
        return reply


def run(source: Path, url: str, engine: str, **more: Any) -> tuple[bs.Report, pl.DataFrame]:
    report = bs.enrich(source, engine=engine, base_url=url, **QUICK, **more)
    return report, answers(source.with_name(f"{source.stem}.enriched.csv"))


def wrong(table: pl.DataFrame, service: FakeService) -> int:
    """How many answered rows have not their own answer."""
    answered = table.filter(pl.col("row_status").is_in(["verified", "cached"]))
    return sum(not is_right(row, service) for row in answered.iter_rows(named=True))


OTHER = "2208162517"
ELSE = {"b_no": OTHER, "name": "다른 회사", "address": "부산시 해운대구 우동 77"}
ANOTHERS: dict[str, Callable[[Any, Any], Any]] = {
    "nested": lambda answer, _: {"input": {"b_no": OTHER}, "result": answer},
    "in the other wrapper": lambda answer, _: {"data": {"biz_no": OTHER}, "result": answer},
    "in a list of one": lambda answer, _: [{"request": [{"b_no": OTHER}], "result": answer}],
    "inside the wrapper": lambda answer, _: {"result": {**answer, "row": {"bno": OTHER}}},
    "as an integer": lambda answer, _: {"input": {"b_no": int(OTHER)}, "result": answer},
    "one right, one wrong": lambda answer, asked: {"b_no": asked["b_no"], "input": {"b_no": OTHER}, "result": answer},
    "hyphens, wide": lambda answer, _: {"input": {"b_no": "２２０-81-62517"}, "result": answer},
    "address of another": lambda answer, asked: {"input": asked | {"address": ELSE["address"]}, "result": answer},
    "no number, flat": lambda answer, _: answer | {"name": ELSE["name"], "address": ELSE["address"]},
    "the neighbour's address": lambda answer, asked: {
        "input": asked | {"address": asked["address"] + "9"},
        "result": answer,
    },
    "another name beside the number": lambda answer, asked: answer | {"b_no": asked["b_no"], "name": "(주)등기된이름"},
}
OWN: dict[str, Callable[[Any, Any], Any]] = {
    "as it was": lambda answer, asked: {"input": asked, "result": answer},
    "completed": lambda answer, asked: {
        "input": asked | {"address": asked["address"].replace("서울시", "서울특별시 ") + " (태평로1가)"},
        "result": answer,
    },
    "company form": lambda answer, asked: {"input": asked | {"name": f"㈜ {asked['name']}"}, "result": answer},
    "cut": lambda answer, asked: {"input": asked | {"address": asked["address"][:6]}, "result": answer},
    "masked": lambda answer, asked: {"input": asked | {"name": asked["name"][0] + "**"}, "result": answer},
    "decomposed, with marks": lambda answer, asked: {
        "input": asked | {"name": "\u200b".join(normalize("NFD", asked["name"]))},
        "result": answer,
    },
    "hyphens": lambda answer, asked: (
        {"input": {"b_no": f"{asked['b_no'][:3]}-{asked['b_no'][3:5]}-{asked['b_no'][5:]}"}} | {"result": answer}
    ),
    "another number elsewhere": lambda answer, asked: answer | {"head_office": {"b_no": OTHER}, "b_no": asked["b_no"]},
}


RECORD = ("1010000004", "상사 0", "서울시 중구 세종대로 0")
ANSWER = {"biz_status": "active", "grade": "A", "reasons": []}


def said(rewrite: Callable[[Any, Any], Any]) -> Any:
    return rewrite(ANSWER, dict(zip(("b_no", "name", "address"), RECORD, strict=True)))


def test_an_answer_that_repeats_another_record_is_refused_and_its_own_in_other_words_is_not() -> None:
    """G32: wherever the echo stands; cleaned, completed, cut or masked, no right answer is refused."""
    for how, rewrite in ANOTHERS.items():
        with pytest.raises(UnreadableError) as caught:
            read_verified(said(rewrite), *RECORD)
        assert RECORD[0] in str(caught.value), how
        is_told = OTHER in json.dumps(said(rewrite), ensure_ascii=False).replace("２２０-81-62517", OTHER)
        assert (OTHER in str(caught.value)) == is_told, how
    assert [how for how, rewrite in OWN.items() if read_verified(said(rewrite), *RECORD).grade != "A"] == []


def test_a_run_stops_before_it_has_bought_many_answers_of_others(
    service: FakeService, url: str, tmp_path: Path
) -> None:
    service.faults.add(Fault("verify", Rewritten(ANOTHERS["nested"])))
    report, table = run(customers(tmp_path / "in.csv", 40), url, "verify", concurrency=1)
    assert report.counts["verified"] == 0
    assert service.paid_total == 10
    failed = table.filter(pl.col("row_status") == "failed").row(0, named=True)
    assert failed["사업자번호"] in failed["row_note"]


def renumbered(results: list[Object]) -> list[Object]:
    """One row in a hundred dropped, the others numbered anew."""
    kept = [item for item in results if item["row_id"] % 100 != 3]
    return [item | {"row_id": place} for place, item in enumerate(kept)]


def named(results: Sequence[Object]) -> list[Object]:
    """The results with the name as their only echo."""
    return [{name: value for name, value in item.items() if name not in ("b_no", "address")} for item in results]


def anothers(results: Sequence[Object]) -> list[Object]:
    """Each answer beside the echo of the next row, inside the answer's own object."""
    nested = ("biz_status", "bounce_prob", "grade", "action", "fixed_zipcode", "fixed_address", "reasons", "b_no")
    return [
        {"row_id": item["row_id"], "result": {name: other[name] for name in nested}}
        for item, other in zip(results, [*results[1:], *results[:1]], strict=True)
    ]


BROKEN: dict[str, tuple[int, Callable[[list[Object]], list[Object]]]] = {
    "renumbered, named": (0, lambda results: named(renumbered(results))),
    "another's, nested": (300, anothers),
    "two numbers": (0, lambda results: [item | {"input": {"b_no": OTHER}} for item in results]),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_job_that_numbers_its_rows_anew_gives_no_row_a_wrong_answer(
    how: str, service: FakeService, url: str, tmp_path: Path
) -> None:
    """Rows dropped and renumbered, keys shifted, answers exchanged: placed where proven, else the row fails."""
    verified, edit = BROKEN[how]
    service.faults.add(Fault("job", Edited(edit)))
    report, table = run(customers(tmp_path / "in.csv", 300), url, "batch")
    assert wrong(table, service) == 0
    assert report.counts["verified"] == verified
    assert max(service.paid.values()) == 1


def test_a_byte_that_is_not_utf8_costs_no_answer_but_its_letter(service: FakeService, url: str, tmp_path: Path) -> None:
    """The row keeps its answer, and its note says which columns hold � (G33); so it does when it is cached."""
    source = customers(tmp_path / "in.csv", 60)
    service.faults.add(Fault("job", Bytes("세종대로 7 (".encode(), b"\xbc\xbc\xff 7 (")))
    for status in ("verified", "cached"):
        report, table = run(source, url, "batch")
        assert (report.counts[status], report.exit_code) == (60, 0)
        notes = table.filter(pl.col("row_note").is_not_null())
        assert notes["row_note"].to_list() == ["the answer came in bytes that are not UTF-8, which are � in: reasons"]
        assert notes["상호"].to_list() == ["상사 7"]
        assert any("1 row with answers that are not all UTF-8, the first is row 8" in one for one in report.warnings)
    assert service.paid_total == 60


def test_a_number_or_key_with_a_byte_that_is_not_utf8_proves_nothing(
    service: FakeService, url: str, tmp_path: Path
) -> None:
    """The number of one row and the key of another came damaged: the rest of what they repeat may place them still."""
    source = customers(tmp_path / "in.csv", 60)
    third, fourth = answers(source)["사업자번호"][2:4]
    damaged = third[:4].encode() + b"\xff" + third[5:].encode()
    service.faults.add(
        Fault("job", Edited(lambda results: [named([item])[0] if item["b_no"] == fourth else item for item in results]))
    )
    service.faults.add(Fault("job", Bytes(f'"b_no": "{third}"'.encode(), b'"b_no": "' + damaged + b'"')))
    service.faults.add(Fault("job", Bytes(b'"row_id": 3,', b'"row_id": "3\xff",')))
    report, table = run(source, url, "batch")
    assert wrong(table, service) == 0
    assert table.filter(pl.col("row_status") == "failed")["사업자번호"].to_list() == [fourth]
    assert report.counts["verified"] == 59


def test_results_that_come_late_are_fetched_by_the_same_command(service: FakeService, url: str, tmp_path: Path) -> None:
    """Looked for again once a run, free: a job that is gone or unreadable takes nothing away and fails no run."""
    source = customers(tmp_path / "in.csv", 80)
    service.faults.add(Fault("job", Partial(0.5)))
    report, table = run(source, url, "batch")
    assert (report.counts["verified"], report.counts["failed"]) == (40, 40)
    assert all("the same command looks for it again" in note for note in table["row_note"].drop_nulls())
    service.faults.clear()
    service.faults.add(Fault("job", Status(404)))
    report, table = run(source, url, "batch")
    assert (report.counts["cached"], report.counts["failed"]) == (40, 40)
    assert report.purchase is not None
    assert report.purchase.paused is None
    (job,) = service.jobs.values()
    polls = job.polls
    service.faults.clear()
    report, table = run(source, url, "batch")
    assert job.polls == polls + 1, "once a run, without waiting"
    assert report.counts["cached"] == 80
    assert report.purchase is not None
    assert report.purchase.fetched == 40
    assert any("40 answers that an earlier upload had not shown" in note for note in report.purchase.notes)
    assert wrong(table, service) == 0
    assert service.paid_total == 80
    run(source, url, "batch")
    assert job.polls == polls + 1, "nothing is missing any more"


def test_late_results_are_looked_for_while_answers_are_fresh_and_the_service_can_be_asked(
    service: FakeService, url: str, tmp_path: Path
) -> None:
    source = customers(tmp_path / "in.csv", 20)
    service.faults.add(Fault("job", Partial(0.5)))
    run(source, url, "batch")
    service.faults.add(Fault("me", Status(401), times=1))
    report, _ = run(source, url, "batch")
    assert (report.counts["cached"], report.counts["failed"]) == (10, 10)
    assert report.purchase is not None
    assert any("not looked for again" in note for note in report.purchase.notes)
    (job,) = service.jobs.values()
    polls = job.polls
    with Ledger.open() as ledger:
        path = ledger.path
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE uploads SET created = created - 31 * 86400")
    report, _ = run(source, url, "batch")
    assert job.polls == polls, "after `max_age` days no request is made"
    assert (report.counts["cached"], report.counts["failed"]) == (10, 10)
