"""A service that answers nothing cannot empty the purse: trials are counted in the ledger, whatever ends a run."""

from __future__ import annotations

import itertools
import json
import sqlite3
import subprocess
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import polars as pl
import pytest

import bansong as bs
from bansong.base.schema import Answer
from bansong.client.dispatcher import HaltReason
from bansong.client.responses import BatchCreated, BatchStatus, Result
from bansong.errors import DoubtError, NotFoundError, QuotaError, RejectedError, ServiceError, ShapeError
from bansong.purchase.changes import JobFetched, JobKnown, UploadGated, UploadPrepared
from bansong.purchase.ledger import Ledger, LedgerRun
from bansong.purchase.uploads import Chunks
from bansong.run.report import Report
from bansong.testing import GARBAGE, Act, Body, FakeService, Fault, Reset, Status
from customers import QUICK, customers
from test_buying import ORIGIN, Shop, bought, buy_in_uploads, ledger, numbers, silent, states, wanted, why

__all__ = ["ledger"]

Command = Callable[..., subprocess.CompletedProcess[str]]
LOST = DoubtError("500", status=500)
PAGE = ShapeError("no JSON", status=200, raw=b"<html>")


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bansong.client.dispatcher.RetryBudget.backoff", lambda *_: 0.0)


def buy(source: Path, engine: str = "batch", **terms: Any) -> Report:
    return bs.enrich(source, engine=engine, **QUICK | terms)


def sizes(shop: Shop) -> list[int]:
    return [len(rows) for rows in shop.uploads]


# --- by uploads, on a fake clock


class Nameless(Shop):
    """Results that neither repeat their row nor bear a key."""

    async def batch(self, job_id: str, *, preview: int | None = None) -> BatchStatus:
        status = await super().batch(job_id, preview=preview)
        return status.model_copy(update={"results": [Result(answer=Answer("active")) for _ in status.results]})


def job_says(said: str | ServiceError) -> Callable[[], Shop]:
    return lambda: Shop(job=lambda *_: said)


BROKEN: dict[str, tuple[Callable[[], Shop], HaltReason, int]] = {
    "the reply is lost": (lambda: Shop(upload=lambda *_: LOST), "stopped", 3),
    "the reply cannot be read": (lambda: Shop(upload=lambda *_: PAGE), "stopped", 3),
    "the job is unknown": (job_says(NotFoundError("404", status=404)), "stopped", 3),
    "the job has failed": (job_says("failed"), "failing", 3),
    "the job goes on for ever": (job_says("processing"), "unreachable", 1),
    "the results cannot be read": (job_says(PAGE), "unreachable", 1),
    "the results are refused": (job_says(RejectedError("400", status=400)), "unreachable", 1),
    "the results name no row": (Nameless, "failing", 3),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_service_is_paid_for_three_trials_at_most(ledger: Ledger, how: str) -> None:
    make, halt, trials = BROKEN[how]
    shop, lookups = make(), wanted(numbers(1500))
    halts = [why(bought(ledger, shop, lookups[300 * run :], by=buy_in_uploads, jobs=4)) for run in range(5)]
    assert (halts[0], halts[-1]) == (halt, "stopped" if trials == 3 else halt)
    assert (sizes(shop), ledger.spent_trials(ORIGIN)) == ([100] * trials, trials)


def test_small_uploads_are_trials_too_and_what_was_certainly_not_paid_is_none(ledger: Ledger) -> None:
    refusing = Shop(upload=lambda *_: QuotaError("429", status=429))
    for _ in range(4):
        assert why(bought(ledger, refusing, wanted(numbers(30)), by=buy_in_uploads)) == "quota"
    shop, lookups = Shop(upload=lambda *_: LOST), wanted(numbers(150))
    for first in range(0, 150, 30):
        bought(ledger, shop, lookups[first : first + 30], by=buy_in_uploads)
    assert sizes(shop) == [30, 30, 30]


def fails(*uploads: int) -> Callable[[list[list[str]], int], ServiceError | None]:
    return lambda _rows, nth: LOST if nth in uploads else None


@pytest.mark.parametrize(
    ("upload", "count", "expected"),
    [
        pytest.param(fails(1), 1300, [100, 100, 400, 500, 200], id="one failure does not stop a nightly run"),
        pytest.param(fails(*range(4, 99)), 5000, [100, 400, 500, 500, 100, 100, 100], id="it breaks in the middle"),
        pytest.param(
            lambda rows, _: LOST if len(rows) > 400 else None, 1500, [100, 400, 500, *[100] * 5], id="large ones fail"
        ),
    ],
)
def test_a_failed_upload_begins_with_trials_anew(ledger: Ledger, upload: Any, count: int, expected: list[int]) -> None:
    shop = Shop(upload=upload)
    for run in range(4):
        lookups = wanted(numbers(count))
        left = lookups.filter(pl.Series([state == "unknown" for state in states(ledger, lookups)]))
        if run == 0 or why(bought(ledger, Shop(), left.clear(), by=buy_in_uploads)) is None:
            bought(ledger, shop, left, by=buy_in_uploads, chunk=500)
    assert sizes(shop)[: len(expected)] == expected
    assert max(sizes(shop)[len(expected) :], default=0) <= expected[-1]


@pytest.mark.parametrize("said", [LOST, "failed", "processing", RejectedError("400", status=400), PAGE], ids=str)
def test_large_uploads_whose_results_cannot_be_had_are_sent_once(ledger: Ledger, said: str | ServiceError) -> None:
    shop = Shop()
    shop._job = lambda job_id, _: said if len(shop.jobs[job_id][1]) > 100 else "done"
    lookups = wanted(numbers(900))
    for _ in range(3):
        left = lookups.filter(pl.Series([state == "unknown" for state in states(ledger, lookups)]))
        bought(ledger, shop, left, by=buy_in_uploads)
    assert [size for size in sizes(shop) if size > 100] == [400]


class Forgetful(Shop):
    """A service whose results leave out some rows."""

    def __init__(self, left_out: Callable[[int, int], bool]) -> None:
        super().__init__()
        self._left_out = left_out

    async def batch(self, job_id: str, *, preview: int | None = None) -> BatchStatus:
        status = await super().batch(job_id, preview=preview)
        rows = len(self.jobs[job_id][1])
        kept = [result for place, result in enumerate(status.results) if not self._left_out(place, rows)]
        return status.model_copy(update={"results": kept})


def answers_only(*places: int) -> tuple[Callable[[int, int], bool], int, list[int], HaltReason]:
    return lambda place, _: place not in places, 2000, [100] * 3, "stopped"


@pytest.mark.parametrize(
    ("left_out", "count", "expected", "halt"),
    [
        pytest.param(
            lambda at, _: at % 33 == 0 or at == 99, 2000, [100, 400, 500, 500, 500], None, id="here and there"
        ),
        pytest.param(lambda at, _: at >= 200 or at % 50 == 7, 1200, [100, 400, 200, 200, 200, 100], None, id="cut off"),
        pytest.param(lambda at, _: at >= 10, 200, [100] + [10] * 10, None, id="a preview of the first rows"),
        pytest.param(lambda at, rows: rows == 500 and at != 250, 2000, [100, 400, 500, *[100] * 10], None, id="few"),
        pytest.param(*answers_only(0), id="the first"),
        pytest.param(*answers_only(50), id="one in the middle"),
        pytest.param(*answers_only(99), id="the last"),
        pytest.param(*answers_only(*range(9)), id="nine at first"),
        pytest.param(*answers_only(*range(45, 80)), id="not the first rows"),
    ],
)
def test_how_many_answers_an_upload_brought_decides_how_large_the_next_is(
    ledger: Ledger, left_out: Callable[[int, int], bool], count: int, expected: list[int], halt: HaltReason | None
) -> None:
    """Less than half of a trial, and not the first rows, is no proof that the service works."""
    shop = Forgetful(left_out)
    assert why(bought(ledger, shop, wanted(numbers(count)), by=buy_in_uploads, chunk=500)) == halt
    assert sizes(shop) == expected
    assert ledger.spent_trials(ORIGIN) == (3 if halt else 0)


def numbered(_place: int, row: list[str]) -> Result:
    """A result that repeats nothing of its row but the number."""
    return Result(b_no=row[0], answer=Answer("active", reasons=(" ".join(row),)))


def test_a_number_goes_once_in_an_upload_until_row_keys_are_proven(ledger: Ledger) -> None:
    rows = [(b_no, "상사", f"서울 {place}") for place in range(3) for b_no in numbers(120 - 50 * place)]
    lookups, shop = wanted(rows), Shop(results=numbered)
    assert why(bought(ledger, shop, lookups, by=buy_in_uploads, chunk=70)) is None
    found = pl.concat(ledger.entries(lookups["key"])).sort("place")
    assert found["reasons"].to_list() == [" ".join(row) for row in rows]
    assert all(len({b_no for b_no, *_ in upload}) == len(upload) for upload in shop.uploads)
    assert sizes(shop) == [70, 70, 70]


def test_rows_of_one_number_go_together_once_row_keys_are_proven(ledger: Ledger) -> None:
    rows = [(b_no, "상사", f"서울 {place}") for b_no in numbers(100) for place in range(10)]
    shop = Shop(results=silent)
    assert why(bought(ledger, shop, wanted(rows), by=buy_in_uploads, chunk=500)) is None
    first, *others = shop.uploads
    assert len({b_no for b_no, *_ in first}) == len(first) == 100
    left = [list(row) for row in rows if list(row) not in first]
    assert [row for upload in others for row in upload] == left
    assert sizes(shop) == [100, 400, 500]


@pytest.mark.parametrize("limit", [1, 7, 40, 1000])
def test_pieces_hold_every_row_once_and_no_number_twice(limit: int) -> None:
    """Also where pieces are put back, and where one number has more rows than all others together."""
    rows = [("1000000001", "상사", str(place)) for place in range(60)] + [(b_no, "", "") for b_no in numbers(50)]
    chunks, seen, put_back = Chunks(wanted(rows), limit), list[str](), False
    chunks.arrange(distinct=True)
    while (chunk := chunks.next()) is not None:
        if chunk.height > 1 and not put_back:
            put_back = True
            chunks.too_large(chunk)
            continue
        assert chunk["lookup"].str.head(10).n_unique() == chunk.height <= limit
        seen += chunk["lookup"].to_list()
    assert sorted(seen) == sorted("\x1f".join(row) for row in rows)


class Slow(Shop):
    """A service that takes its time over uploads, and counts those that are between their last bytes and the reply."""

    at_gate = most_at_gate = looks_meanwhile = 0

    async def create_batch(
        self, content: bytes, *, before_last_byte: Callable[[], Awaitable[None]], **more: Any
    ) -> BatchCreated:
        async def gated() -> None:
            await before_last_byte()
            self.at_gate += 1
            self.most_at_gate = max(self.most_at_gate, self.at_gate)
            await anyio.sleep(10.0)

        try:
            return await super().create_batch(content, before_last_byte=gated, **more)
        finally:
            self.at_gate -= 1

    async def batch(self, job_id: str, *, preview: int | None = None) -> BatchStatus:
        self.looks_meanwhile += bool(self.at_gate)
        return await super().batch(job_id, preview=preview)


@pytest.mark.parametrize("stop_at", [None, 25.0])
def test_one_upload_at_a_time_stands_at_the_gate(ledger: Ledger, stop_at: float | None) -> None:
    """What a kill leaves in doubt is one upload; jobs are looked at meanwhile, and who waits was never sent."""
    lookups, shop = wanted(numbers(1000)), Slow(job=lambda _id, age: "done" if age > 25 or stop_at else "queued")
    how: dict[str, Any] = {"chunk": 100, "jobs": 4, "concurrency": 4, "drain": 60.0, "stop_at": stop_at}
    assert why(bought(ledger, shop, lookups, by=buy_in_uploads, **how)) == ("interrupted" if stop_at else None)
    assert shop.most_at_gate == 1
    assert shop.looks_meanwhile > 10 or stop_at
    assert set(states(ledger, lookups)) <= ({"done", "uploaded", "unknown"} if stop_at else {"done"})


# --- in the ledger


def prepared(id: str, count: int = 1, *, trial: bool = True) -> UploadPrepared:
    rows = [(f"{id[:8]:>8}{place:08}".encode(), "1248100998") for place in range(count)]
    return UploadPrepared(id, "r", rows, None, None, ORIGIN, trial=trial)


def book(path: Path, now: float = 1.0) -> Ledger:
    ledger = Ledger.open(path, clock=lambda: now)
    if ledger.created:
        ledger.begin(LedgerRun("r", "batch", ORIGIN, "a.csv", 1.0))
    return ledger


def test_the_count_is_right_after_a_kill_and_a_purge(tmp_path: Path) -> None:
    """A trial at the gate is counted when the process is gone; one before the gate is not; a purge forgets neither."""
    path = tmp_path / "ledger.sqlite"
    with book(path) as ledger:
        ledger.settle([prepared(id) for id in ("at gate", "before", "done", "lost")])
        ledger.settle([UploadGated("at gate"), UploadGated("done"), JobKnown("done", "job 1", 1)])
        ledger.settle([UploadGated("lost"), JobKnown("lost", "job 2", 1), JobFetched("lost", {}, {}, None)])
        assert ledger.spent_trials("https://another.test") == 0
    with book(path, 1e8) as ledger:
        assert ledger.spent_trials(ORIGIN) == 3
        ledger.purge(1)
        assert ledger.spent_trials(ORIGIN) == 3
        ledger.settle([JobFetched("done", {0: Answer("active")}, {}, None)])
        assert ledger.spent_trials(ORIGIN) == 0


def test_a_trial_with_a_number_that_a_purge_freed_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with book(path) as ledger:
        for id in ("a", "b", "c"):
            ledger.settle([prepared(id), UploadGated(id), JobKnown(id, id, 1)])
            ledger.settle([JobFetched(id, {0: Answer("active")}, {}, None)])
    with book(path, 1e8) as ledger:
        assert ledger.purge(1).uploads == 3
        ledger.begin(LedgerRun("r", "batch", ORIGIN, "a.csv", 1e8))
        ledger.settle([prepared("d"), UploadGated("d")])
        assert ledger.spent_trials(ORIGIN) == 1


def test_a_ledger_of_the_third_version_has_spent_no_trials(tmp_path: Path) -> None:
    """Its uploads were not trials, whatever became of them; what it knows of them stays, and new ones are counted."""
    path, row = tmp_path / "ledger.sqlite", (b"0123456789abcdef", "1248100998")
    with book(path) as ledger:
        ledger.settle([UploadPrepared("old", "r", [row], None, None, ORIGIN), UploadGated("old")])
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "DROP TABLE trials; ALTER TABLE uploads DROP COLUMN trial; "
            "ALTER TABLE requests DROP COLUMN repeats; PRAGMA user_version = 3;"
        )
    with book(path) as ledger:
        assert [doubt.id for doubt in ledger.doubts()] == ["old"]
        assert ledger.spent_trials(ORIGIN) == 0
        ledger.resend(["old"])
        ledger.settle([UploadPrepared("new", "r", [row], None, None, ORIGIN, trial=True), UploadGated("new")])
        assert ledger.spent_trials(ORIGIN) == 1


def test_answers_that_come_late_count_with_those_before(tmp_path: Path) -> None:
    with book(tmp_path / "ledger.sqlite") as ledger:
        ledger.settle([prepared("u", 100), UploadGated("u"), JobKnown("u", "job", 100)])
        answer = Answer("active")
        ledger.settle([JobFetched("u", dict.fromkeys(range(1, 60, 3), answer), {}, None)])
        assert ledger.spent_trials(ORIGIN) == 1
        ledger.settle([JobFetched("u", dict.fromkeys(range(60, 100), answer), {}, None)])
        assert ledger.spent_trials(ORIGIN) == 0


def test_row_keys_are_proven_by_many_rows_and_disproved_by_two(tmp_path: Path) -> None:
    """A hundred rows prove them; one row without a proof says nothing, two take it away, and few give it not back."""
    with book(tmp_path / "ledger.sqlite") as ledger:
        ids = map(str, itertools.count())

        def proven_after(count: int, base: int | None) -> bool:
            id = next(ids)
            ledger.settle([prepared(id, count, trial=False), UploadGated(id), JobKnown(id, id, count)])
            ledger.settle([JobFetched(id, {0: Answer("active")}, {}, None, base)])
            return ledger.proves_row_keys(ORIGIN)

        steps = [(99, 1), (100, 1), (1, None), (2, None), (99, 1), (100, 0), (100, None)]
        assert [proven_after(*step) for step in steps] == [False, True, True, False, False, True, False]


# --- whole runs


def test_a_stopped_purchase_asks_nothing_until_it_is_told_to(
    service: FakeService, url: str, run: Command, tmp_path: Path
) -> None:
    """`plan` says that it is stopped, no request goes out; `--retry-trial` sends one more, and all if that works."""
    service.faults.add(Fault("batch", Status(500, paid=True)))
    source = customers(tmp_path / "in.csv", 600)
    assert buy(source).exit_code == 5
    assert service.paid_total == 300
    planned = run("plan", "in.csv", "--engine", "batch")
    asked = service.requests.total()
    stopped = run("enrich", "in.csv", "--engine", "batch")
    assert (service.requests.total(), stopped.returncode) == (asked, 5)
    for said in (planned.stderr, stopped.stderr):
        assert "nothing more is bought" in said
        assert "--retry-trial" in said
    notes = pl.read_csv(tmp_path / "in.enriched.csv", infer_schema=False).filter(row_status="pending")["row_note"]
    assert notes.str.starts_with("not bought: nothing more is bought from http").sum() == 300
    assert buy(source, retry_trial=True).exit_code == 5
    assert service.paid_total == 400
    service.faults.clear()
    assert buy(source, retry_trial=True).counts["verified"] == 200
    assert (service.paid_total, service.paid_again) == (600, 0)


def few(tmp_path: Path, number: int) -> Path:
    """The n-th of some files of five rows that have no row in common."""
    rows = "\n".join(customers(tmp_path / "all.csv", 40).read_text().splitlines()[1 + 5 * number :][:5])
    (tmp_path / f"{number}.csv").write_text(f"사업자번호,상호,주소\n{rows}\n", encoding="utf-8")
    return tmp_path / f"{number}.csv"


@pytest.mark.parametrize(("kind", "lost"), [("batch", Reset("after")), ("job", Status(400))], ids=["named", "killed"])
def test_trials_whose_answers_come_after_all_let_the_purchase_go_on(
    kind: str, lost: Act, service: FakeService, url: str, run: Command, tmp_path: Path
) -> None:
    """Where three trials have no answer, a job that is named by hand, or one of another file, is looked at first."""
    service.faults.add(Fault(kind, lost))
    for number in range(3):
        buy(few(tmp_path, number))
    assert buy(few(tmp_path, 3)).counts["pending"] == 5
    assert service.paid_total == 15, "no fourth trial, of whatever file"
    service.faults.clear()
    if kind == "batch":
        with Ledger.open() as ledger:
            rows = {doubt.id: [b_no for _, b_no in ledger.rows_of(doubt.id)] for doubt in ledger.doubts()}
        upload = next(iter(rows))
        job = next(id for id, job in service.jobs.items() if [row.b_no for row in job.rows] == rows[upload])
        assert run("resolve", upload, "--job", job).returncode == 0
    assert buy(few(tmp_path, 3)).counts["verified"] == 5
    assert (service.paid_total, service.paid_again) == (20, 0)


EMPTY = Body(b'{"biz_status": null, "reasons": [], "seen": "empty"}')


@pytest.mark.parametrize("act", [Status(500, paid=True), EMPTY], ids=["lost", "empty"])
def test_single_requests_without_answers_stop_too(
    act: Act, service: FakeService, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run stops after some in a row; all runs together after 300 (here 12) and what was under way."""
    monkeypatch.setattr("bansong.purchase.lookups.REQUESTS", 12)
    service.faults.add(Fault("verify", act))
    source, spent = customers(tmp_path / "in.csv", 40), [0]
    while (buy(source, "verify", concurrency=5), service.paid_total)[1] > spent[-1]:
        spent.append(service.paid_total)
    assert 12 <= spent[-1] <= 25
    if act is EMPTY:
        with Ledger.open() as ledger:
            assert {one.state for one in ledger.unusable()} == {"unreadable"}
            with ledger._connect() as connection:
                (raw,) = connection.execute("SELECT raw FROM lookups WHERE raw IS NOT NULL").fetchone()
        assert b'"seen":"empty"' in raw
    service.faults.clear()
    assert buy(source, "verify").counts["verified"] == 0
    assert buy(source, "verify", retry_trial=True).counts["verified"] == 40 - spent[-1]


def test_an_upload_whose_results_cannot_be_had_is_listed_until_they_come_or_it_is_given_up(
    service: FakeService, url: str, run: Command, tmp_path: Path
) -> None:
    """`resolve --all` leaves it alone, since it may be fetched; by its ID it is given up."""
    service.faults.add(Fault("job", GARBAGE))
    sources = [few(tmp_path, 0), few(tmp_path, 1)]
    for source in sources:
        buy(source)
    service.faults.clear()
    assert buy(sources[1]).counts["cached"] == 5
    (held,) = json.loads(run("resolve", "--json").stdout)["unsettled"]
    assert (held["state"], held["rows"], held["job_id"]) == ("unfetched", 5, next(iter(service.jobs)))
    assert "unfetched" in run("ledger", "--json").stdout
    assert "1 upload with results that may yet be fetched" in run("resolve", "--all", "--lost").stdout
    assert run("resolve", held["id"], "--lost").returncode == 0
    assert "nothing is unsettled" in run("resolve").stdout
    assert buy(sources[0]).counts["failed"] == 5
    assert service.paid_total == 10
