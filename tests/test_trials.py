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
from bansong.client.responses import BatchCreated, BatchStatus, Result
from bansong.errors import DoubtError
from bansong.purchase.changes import JobFetched, JobKnown, UploadGated, UploadPrepared
from bansong.purchase.ledger import Ledger, LedgerRun
from bansong.purchase.lookups import REQUESTS
from bansong.purchase.uploads import Chunks
from bansong.run.report import Report
from bansong.testing import DIALECTS, GARBAGE, HTML, Act, Body, Dialect, FakeService, Fault, Reset, Status, Word
from customers import KEY, QUICK, customers
from test_buying import ORIGIN, Shop, bought, buy_in_uploads, ledger, states, wanted, why
from test_buying import numbers as any_numbers

__all__ = ["ledger"]

Command = Callable[..., subprocess.CompletedProcess[str]]

BROKEN: dict[str, Fault | Dialect] = {
    "the job is unknown": Fault("job", Status(404)),
    "the reply is a 500": Fault("batch", Status(500, paid=True)),
    "the reply has no job id": Fault("batch", Body(b'{"ok": true}')),
    "the reply is a web page": Fault("batch", HTML),
    "the reply is lost": Fault("batch", Reset("after")),
    "the results cannot be read": Fault("job", GARBAGE),
    "the results are refused": Fault("job", Status(400)),
    "the results name no row": DIALECTS["terse"],
}
USUAL = ("the job is unknown", "the reply is lost", "the results name no row")
"""What the default suite tries of them: one for each place at which an upload comes to nothing."""


@pytest.fixture
def service() -> FakeService:
    return FakeService(KEY, quota=100_000)


def breaks(service: FakeService, broken: Fault | Dialect) -> None:
    """Let the service be broken in this way from now on."""
    if isinstance(broken, Dialect):
        service.dialect = broken
    else:
        service.faults.add(broken)


def buy(source: Path, engine: str = "batch", **terms: Any) -> Report:
    return bs.enrich(source, engine=engine, **QUICK | terms)


@pytest.mark.parametrize("how", [how if how in USUAL else pytest.param(how, marks=pytest.mark.fuzz) for how in BROKEN])
def test_a_broken_service_is_paid_for_three_trials_at_most(
    how: str, service: FakeService, url: str, tmp_path: Path
) -> None:
    """However often the command is given, 300 lookups are spent; then no upload goes out, and the run says why."""
    breaks(service, BROKEN[how])
    source = customers(tmp_path / "in.csv", 600)
    reports = [buy(source) for _ in range(5)]
    assert 100 <= service.paid_total <= 300
    assert service.paid_again == 0
    uploads = service.requests["batch"]
    last = buy(source)
    assert service.requests["batch"] == uploads
    assert [report.exit_code for report in reports] == [reports[0].exit_code] * 5 != [0] * 5
    assert last.counts["pending"] >= 300
    assert last.purchase is not None
    assert "bansong resolve" in str(last.purchase.paused)


def test_small_files_are_trials_too(service: FakeService, url: str, tmp_path: Path) -> None:
    """Of files of 30 rows three are paid for, the fourth is not."""
    service.faults.add(Fault("batch", Status(500, paid=True)))
    for number in range(5):
        rows = "\n".join(customers(tmp_path / "all.csv", 200).read_text().splitlines()[1 + 30 * number :][:30])
        source = tmp_path / f"{number}.csv"
        source.write_text(f"사업자번호,상호,주소\n{rows}\n", encoding="utf-8")
        buy(source)
    assert service.paid_total == 90


def test_one_failure_does_not_stop_a_nightly_run(service: FakeService, url: str, tmp_path: Path) -> None:
    """A trial that meets a passing 500 is followed by another, with other rows, and all the rest is bought."""
    service.faults.add(Fault("batch", Status(500, paid=True), at=1))
    report = buy(customers(tmp_path / "in.csv", 2000), chunk=500)
    assert report.counts["verified"] == 1900
    assert report.counts["in_doubt"] == 100
    assert [upload.rows for upload in service.uploads][:4] == [100, 100, 400, 500]


def test_a_stopped_purchase_asks_nothing_until_it_is_told_to(
    service: FakeService, url: str, run: Command, tmp_path: Path
) -> None:
    """`plan` says that it is stopped, no request goes out; `--retry-trial` sends one more, and all if that works."""
    service.faults.add(Fault("batch", Status(500, paid=True)))
    source = customers(tmp_path / "in.csv", 1000)
    buy(source)
    planned = run("plan", "in.csv", "--engine", "batch")
    assert "nothing more is bought" in planned.stderr
    assert "--retry-trial" in planned.stderr
    asked = service.requests.total()
    stopped = run("enrich", "in.csv", "--engine", "batch")
    assert service.requests.total() == asked
    assert stopped.returncode == 5
    notes = pl.read_csv(tmp_path / "in.enriched.csv", infer_schema_length=None).filter(row_status="pending")["row_note"]
    assert notes.str.starts_with("not bought: nothing more is bought from http").all()
    assert notes.len() == 700
    assert "bansong resolve" in stopped.stderr
    assert "--retry-trial" in stopped.stderr
    assert run("enrich", "in.csv", "--engine", "batch", "--retry-trial").returncode == 5
    assert service.paid_total == 400
    buy(source)
    assert service.paid_total == 400
    service.faults.clear()
    assert buy(source, retry_trial=True).counts["verified"] == 600
    assert service.paid_total == 1000


def test_an_upload_whose_answers_come_after_all_lets_the_purchase_go_on(
    service: FakeService, url: str, run: Command, tmp_path: Path
) -> None:
    """The job that one of the lost trials became is named by hand; its answers show that the service works."""
    service.faults.add(Fault("batch", Reset("after")))
    source = customers(tmp_path / "in.csv", 1000)
    buy(source)
    service.faults.clear()
    buy(source)
    assert service.paid_total == 300
    with Ledger.open() as ledger:
        numbers = {doubt.id: [b_no for _, b_no in ledger.rows_of(doubt.id)] for doubt in ledger.doubts()}
    jobs = {job.id: [row.b_no for row in job.rows] for job in service.jobs.values()}
    upload, rows = next(iter(numbers.items()))
    job = next(id for id, numbers in jobs.items() if numbers == rows)
    assert run("resolve", upload, "--job", job).returncode == 0
    report = buy(source)
    assert report.counts["in_doubt"] == 200
    assert report.counts["pending"] == 0
    assert service.paid_total == 1000


def test_a_trial_of_another_file_that_was_killed_is_fetched_first(
    service: FakeService, url: str, tmp_path: Path
) -> None:
    """Where three trials have a job and no answer yet, the next run of any file looks at those before it gives up."""
    sources = []
    for number in range(4):
        rows = "\n".join(customers(tmp_path / "all.csv", 400).read_text().splitlines()[1 + 100 * number :][:100])
        sources.append(tmp_path / f"{number}.csv")
        sources[-1].write_text(f"사업자번호,상호,주소\n{rows}\n", encoding="utf-8")
    service.faults.add(Fault("job", Status(400)))
    for source in sources[:3]:
        buy(source)
    service.faults.clear()
    assert buy(sources[3]).counts["verified"] == 100
    assert service.paid_total == 400


def test_what_was_certainly_not_paid_is_no_trial(service: FakeService, url: str, tmp_path: Path) -> None:
    """A quota that is used up pauses the run as often as it is tried, and stops nothing."""
    service.faults.add(Fault("batch", Status(429)))
    source = customers(tmp_path / "in.csv", 300)
    assert [buy(source).exit_code for _ in range(4)] == [5] * 4
    service.faults.clear()
    assert buy(source).exit_code == 0


def test_a_service_that_breaks_in_the_middle_gets_trials_again(service: FakeService, url: str, tmp_path: Path) -> None:
    """Once an upload has come to nothing, three trials of 100 rows are all that is spent in any number of runs."""
    service.faults.add(Fault("batch", Status(500, paid=True), at=range(4, 1000)))
    source = customers(tmp_path / "in.csv", 5000)
    for _ in range(4):
        buy(source, chunk=500, jobs=1)
    assert [upload.rows for upload in service.uploads] == [100, 400, 500, 500, 100, 100, 100]


def test_an_upload_that_came_to_nothing_makes_the_next_ones_smaller(
    service: FakeService, url: str, tmp_path: Path
) -> None:
    """Where only large uploads fail the run goes on with small ones, and pays for no second large one."""
    service.faults.add(Fault("batch", Status(502, paid=True), when=lambda asked: _length(asked) > 50_000))
    report = buy(customers(tmp_path / "in.csv", 3000), chunk=2000, rate=1e5)
    assert [upload.rows for upload in service.uploads if upload.rows > 400] == [1600]
    assert report.counts["verified"] == 1400
    buy(customers(tmp_path / "other.csv", 3000), chunk=2000, rate=1e5)
    assert [upload.rows for upload in service.uploads if upload.rows > 400] == [1600], "later runs know it"


def _length(asked: Any) -> int:
    return int(dict(asked.scope["headers"])[b"content-length"])


def test_single_requests_without_answers_stop_too(service: FakeService, url: str, tmp_path: Path) -> None:
    """Each run stops after some doubts in a row; all runs together after 300 and what was under way."""
    service.faults.add(Fault("verify", Status(500, paid=True)))
    source = customers(tmp_path / "in.csv", 600)
    spent = [0]
    while (buy(source, "verify", concurrency=100), service.paid_total)[1] > spent[-1]:
        spent.append(service.paid_total)
    assert REQUESTS <= spent[-1] <= REQUESTS + 110
    service.faults.clear()
    assert buy(source, "verify").counts["verified"] == 0
    assert buy(source, "verify", retry_trial=True).counts["verified"] == 600 - spent[-1]


def test_the_count_is_right_after_a_kill_and_a_purge(tmp_path: Path) -> None:
    """A trial at the gate is counted when the process is gone; one before the gate is not; a purge forgets neither."""
    path = tmp_path / "ledger.sqlite"
    with Ledger.open(path, clock=lambda: 1.0) as ledger:
        ledger.begin(LedgerRun("r", "batch", ORIGIN, "a.csv", 1.0))
        for id in ("at the gate", "before the gate", "done", "lost"):
            row = (id.ljust(16).encode(), "1248100998")
            ledger.settle([UploadPrepared(id, "r", [row], None, None, ORIGIN, trial=True)])
        ledger.settle([UploadGated("at the gate"), UploadGated("done"), JobKnown("done", "job 1", 1)])
        ledger.settle([UploadGated("lost"), JobKnown("lost", "job 2", 1), JobFetched("lost", {}, {}, None)])
        assert ledger.spent_trials("https://another.test") == 0
    with Ledger.open(path, clock=lambda: 1e8) as ledger:
        assert ledger.spent_trials(ORIGIN) == 3
        ledger.purge(1)
        assert ledger.spent_trials(ORIGIN) == 3
        ledger.settle([JobFetched("done", {0: Answer("active")}, {}, None)])
        assert ledger.spent_trials(ORIGIN) == 0


def test_a_ledger_of_the_third_version_has_spent_no_trials(tmp_path: Path) -> None:
    """Its uploads were not trials, whatever became of them; what it knows of them stays, and new ones are counted."""
    path, row = tmp_path / "ledger.sqlite", (b"0123456789abcdef", "1248100998")
    with Ledger.open(path) as ledger:
        ledger.begin(LedgerRun("r", "batch", ORIGIN, "a.csv", 1.0))
        ledger.settle([UploadPrepared("old", "r", [row], None, None, ORIGIN), UploadGated("old")])
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "DROP TABLE trials; ALTER TABLE uploads DROP COLUMN trial; "
            "ALTER TABLE requests DROP COLUMN repeats; PRAGMA user_version = 3;"
        )
    with Ledger.open(path) as ledger:
        assert [doubt.id for doubt in ledger.doubts()] == ["old"]
        assert ledger.spent_trials(ORIGIN) == 0
        ledger.resend(["old"])
        ledger.settle([UploadPrepared("new", "r", [row], None, None, ORIGIN, trial=True), UploadGated("new")])
        assert ledger.spent_trials(ORIGIN) == 1


def test_an_upload_whose_results_cannot_be_had_is_listed_and_settled(
    service: FakeService, url: str, run: Command, tmp_path: Path
) -> None:
    """`resolve` names it; `--all` leaves it alone, since it may be fetched; by its ID it is given up."""
    service.faults.add(Fault("job", GARBAGE))
    source = customers(tmp_path / "in.csv", 50)
    buy(source)
    (held,) = json.loads(run("resolve", "--json").stdout)["unsettled"]
    assert (held["state"], held["rows"], held["job_id"]) == ("unfetched", 50, next(iter(service.jobs)))
    assert "nothing is unsettled" not in run("resolve").stdout
    assert "unfetched" in run("ledger", "--json").stdout
    assert "1 upload with results that may yet be fetched" in run("resolve", "--all", "--lost").stdout
    assert run("resolve", held["id"], "--lost").returncode == 0
    assert "nothing is unsettled" in run("resolve").stdout
    assert buy(source).counts["failed"] == 50
    assert service.paid_total == 50


def test_an_upload_that_is_fetched_later_is_not_listed_any_more(
    service: FakeService, url: str, run: Command, tmp_path: Path
) -> None:
    """A failure that passes leaves nothing to be settled."""
    service.faults.add(Fault("job", GARBAGE))
    source = customers(tmp_path / "in.csv", 50)
    buy(source)
    service.faults.clear()
    assert buy(source).counts["cached"] + buy(source).counts["verified"] == 50
    assert "nothing is unsettled" in run("resolve").stdout


def numbered(_place: int, row: list[str]) -> Result:
    """A result that repeats nothing of its row but the number."""
    return Result(b_no=row[0], answer=Answer("active", reasons=(" ".join(row),)))


def test_a_number_goes_once_in_an_upload_until_row_keys_are_proven(ledger: Ledger) -> None:
    """Where only numbers are echoed, each address of a number has its own answer, in uploads as full as can be."""
    rows = [(b_no, "상사", f"서울 {place}") for place in range(3) for b_no in any_numbers(120 - 50 * place)]
    lookups, shop = wanted(rows), Shop(results=numbered)
    assert why(bought(ledger, shop, lookups, by=buy_in_uploads, chunk=70)) is None
    assert states(ledger, lookups) == ["done"] * 210
    found = pl.concat(ledger.entries(lookups["key"])).sort("place")
    assert found["reasons"].to_list() == [" ".join(row) for row in rows]
    assert all(len({b_no for b_no, *_ in upload}) == len(upload) for upload in shop.uploads)
    assert [len(upload) for upload in shop.uploads] == [70, 70, 70]


def test_rows_of_one_number_go_together_once_row_keys_are_proven(ledger: Ledger) -> None:
    """The trial proves them; the rest goes in the order of the file, in full uploads."""
    rows = [(b_no, "상사", f"서울 {place}") for b_no in any_numbers(100) for place in range(10)]
    lookups, shop = wanted(rows), Shop()
    assert why(bought(ledger, shop, lookups, by=buy_in_uploads, chunk=500)) is None
    assert states(ledger, lookups) == ["done"] * 1000
    first, *others = shop.uploads
    assert len({b_no for b_no, *_ in first}) == len(first) == 100
    left = [list(row) for row in rows if list(row) not in first]
    assert [row for upload in others for row in upload] == left
    assert [len(upload) for upload in others] == [400, 500]


@pytest.mark.parametrize("limit", [1, 7, 40, 1000])
def test_pieces_hold_every_row_once_and_no_number_twice(limit: int) -> None:
    """Also where pieces are put back, and where one number has more rows than all others together."""
    rows = [("1000000001", "상사", str(place)) for place in range(60)] + [(b_no, "", "") for b_no in any_numbers(50)]
    chunks, seen, put_back = Chunks(wanted(rows), limit), list[str](), False
    chunks.arrange(distinct=True)
    while (chunk := chunks.next()) is not None:
        if chunk.height > 1 and not put_back:
            put_back = True
            chunks.too_large(chunk)
            continue
        numbers = chunk["lookup"].str.head(10)
        assert numbers.n_unique() == chunk.height <= limit
        seen += chunk["lookup"].to_list()
    assert sorted(seen) == sorted("\x1f".join(row) for row in rows)


class Slow(Shop):
    """A service that takes its time over uploads, and counts those that are between their last bytes and the reply."""

    at_gate = most_at_gate = looks_meanwhile = 0

    async def create_batch(
        self,
        content: bytes,
        *,
        before_last_byte: Callable[[], Awaitable[None]],
        after_last_byte: Callable[[], Awaitable[None]],
        **flags: bool | None,
    ) -> BatchCreated:
        async def gated() -> None:
            await before_last_byte()
            self.at_gate += 1
            self.most_at_gate = max(self.most_at_gate, self.at_gate)
            await anyio.sleep(10.0)

        try:
            return await super().create_batch(content, before_last_byte=gated, after_last_byte=after_last_byte, **flags)
        finally:
            self.at_gate -= 1

    async def batch(self, job_id: str, *, preview: int | None = None) -> BatchStatus:
        self.looks_meanwhile += bool(self.at_gate)
        return await super().batch(job_id, preview=preview)


def test_one_upload_at_a_time_stands_at_the_gate(ledger: Ledger) -> None:
    """What a kill leaves in doubt is one upload; the jobs of others are looked at meanwhile."""
    lookups, shop = wanted(any_numbers(1000)), Slow(job=lambda _id, age: "done" if age > 25 else "queued")
    assert why(bought(ledger, shop, lookups, by=buy_in_uploads, chunk=100, jobs=4, concurrency=4)) is None
    assert states(ledger, lookups) == ["done"] * 1000
    assert shop.most_at_gate == 1
    assert shop.looks_meanwhile > 10


def test_a_stop_does_not_wait_for_the_gate(ledger: Ledger) -> None:
    """Uploads that wait for their turn at the gate were never sent, and are not in doubt."""
    lookups, shop = wanted(any_numbers(1000)), Slow()
    bought(ledger, shop, lookups, by=buy_in_uploads, chunk=100, jobs=4, concurrency=4, stop_at=25.0, drain=60.0)
    assert not ledger.doubts()
    assert set(states(ledger, lookups)) <= {"done", "uploaded", "unknown"}


class Forgetful(Shop):
    """A service whose results leave out some rows."""

    def __init__(self, left_out: Callable[[int], bool]) -> None:
        super().__init__()
        self._left_out = left_out

    async def batch(self, job_id: str, *, preview: int | None = None) -> BatchStatus:
        status = await super().batch(job_id, preview=preview)
        kept = [result for place, result in enumerate(status.results) if not self._left_out(place)]
        return status.model_copy(update={"results": kept})


def test_rows_that_are_missing_here_and_there_do_not_shrink_uploads(ledger: Ledger) -> None:
    """3 % without an answer, the last row among them: uploads stay as large as they were."""
    shop = Forgetful(lambda place: place % 33 == 0 or place == 99)
    bought(ledger, shop, wanted(any_numbers(2000)), by=buy_in_uploads, chunk=500)
    assert [len(upload) for upload in shop.uploads] == [100, 400, 500, 500, 500]


def test_results_that_are_cut_off_shrink_uploads_though_some_rows_are_missing(ledger: Ledger) -> None:
    """The first 200 results of any upload are given, and one in fifty of them is missing."""
    shop = Forgetful(lambda place: place >= 200 or place % 50 == 7)
    bought(ledger, shop, wanted(any_numbers(1200)), by=buy_in_uploads, chunk=500)
    assert [len(upload) for upload in shop.uploads] == [100, 400, 200, 200, 200, 100]


def test_three_trials_without_an_answer_stop_the_run(ledger: Ledger) -> None:
    """One after another, also where four could go at once; the ledger counts them for the next run."""
    shop = Shop(upload=lambda *_: DoubtError("no answer"))
    lookups = wanted(any_numbers(1000))
    buying = bought(ledger, shop, lookups, by=buy_in_uploads, jobs=4, concurrency=4)
    assert why(buying) == "stopped"
    assert [len(upload) for upload in shop.uploads] == [100, 100, 100]
    assert ledger.spent_trials(ORIGIN) == 3


@pytest.mark.parametrize(
    "how",
    [
        *(Status(500), Word("failed"), Word("processing")),
        *(pytest.param(Status(code), marks=pytest.mark.fuzz) for code in (400, 404)),
    ],
)
def test_large_uploads_whose_results_cannot_be_had_are_sent_once(
    how: Act, service: FakeService, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever keeps the results of an upload of 400 rows from coming, no later run sends one as large."""
    monkeypatch.setattr("bansong.purchase.uploads._DEADLINE_S", 0.1)
    monkeypatch.setattr("bansong.client.retries.RetryBudget.backoff", lambda *_: 0.0)
    service.faults.add(Fault("job", how, when=lambda asked: _rows_of_job(service, asked) > 100))
    source = customers(tmp_path / "in.csv", 900)
    for _ in range(3):
        buy(source, rate=1e5)
    assert [upload.rows for upload in service.uploads if upload.rows > 100] == [400]


def _rows_of_job(service: FakeService, asked: Any) -> int:
    return len(service.jobs[asked.scope["path"].rpartition("/")[2]].rows)


@pytest.mark.parametrize("answered", [{0}, {50}, {99}, set(range(9)), set(range(45, 80))])
def test_a_few_answered_rows_are_no_proof(ledger: Ledger, answered: set[int]) -> None:
    """Where less than half of a trial is answered, and not the first rows, it came to nothing: three, and no more."""
    shop = Forgetful(lambda place: place not in answered)
    assert why(bought(ledger, shop, wanted(any_numbers(2000)), by=buy_in_uploads)) == "stopped"
    assert [len(upload) for upload in shop.uploads] == [100, 100, 100]
    assert ledger.spent_trials(ORIGIN) == 3


def test_an_upload_with_few_answers_makes_the_next_ones_smaller(ledger: Ledger) -> None:
    """The trial is whole, one row of a large upload is answered: a trial again, and none as large, also later."""

    class Growing(Forgetful):
        async def batch(self, job_id: str, *, preview: int | None = None) -> BatchStatus:
            rows = len(self.jobs[job_id][1])
            self._left_out = lambda place: rows > 500 and place != rows // 2
            return await super().batch(job_id, preview=preview)

    shop = Growing(lambda _: False)
    bought(ledger, shop, wanted(any_numbers(6000)), by=buy_in_uploads)
    assert [len(upload) for upload in shop.uploads][:5] == [100, 400, 1600, 100, 160]
    assert max(len(upload) for upload in shop.uploads[3:]) == 160
    assert ledger.limit(ORIGIN) == 160


def test_the_first_rows_alone_are_a_preview(ledger: Ledger) -> None:
    """Where a tenth of the trial is answered, the first rows, uploads become as small as that and go on."""
    shop = Forgetful(lambda place: place >= 10)
    assert why(bought(ledger, shop, wanted(any_numbers(200)), by=buy_in_uploads)) is None
    assert [len(upload) for upload in shop.uploads] == [100] + [10] * 10


def test_answers_that_come_late_count_with_those_before(tmp_path: Path) -> None:
    """Twenty rows of a trial at first, forty more later: together they are a proof."""
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        ledger.begin(LedgerRun("r", "batch", ORIGIN, "a.csv", 1.0))
        rows = [(f"{place:016}".encode(), "1248100998") for place in range(100)]
        ledger.settle(
            [
                UploadPrepared("u", "r", rows, None, None, ORIGIN, trial=True),
                UploadGated("u"),
                JobKnown("u", "job", 100),
            ]
        )
        answer = Answer("active")
        ledger.settle([JobFetched("u", dict.fromkeys(range(1, 60, 3), answer), {}, None)])
        assert ledger.spent_trials(ORIGIN) == 1
        ledger.settle([JobFetched("u", dict.fromkeys(range(60, 100), answer), {}, None)])
        assert ledger.spent_trials(ORIGIN) == 0


def test_row_keys_are_proven_by_many_rows_and_disproved_by_two(tmp_path: Path) -> None:
    """A hundred rows prove them; one row without a proof says nothing, two take it away, and few give it not back."""
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        ledger.begin(LedgerRun("r", "batch", ORIGIN, "a.csv", 1.0))

        def proven_after(count: int, base: int | None) -> bool:
            id = str(next(ids))
            rows = [(f"{id:>8}{place:08}".encode(), "1248100998") for place in range(count)]
            ledger.settle([UploadPrepared(id, "r", rows, None, None, ORIGIN), UploadGated(id), JobKnown(id, id, count)])
            ledger.settle([JobFetched(id, {0: Answer("active")}, {}, None, base)])
            return ledger.proves_row_keys(ORIGIN)

        ids = itertools.count()
        steps = [(99, 1), (100, 1), (1, None), (2, None), (99, 1), (100, 0), (100, None)]
        assert [proven_after(*step) for step in steps] == [False, True, True, False, False, True, False]


def test_single_answers_that_say_nothing_stop_too(service: FakeService, url: str, tmp_path: Path) -> None:
    """They are kept as they came, are no answers, and 300 of them are all that is spent in any number of runs."""
    service.faults.add(Fault("verify", Body(b'{"biz_status": null, "reasons": [], "seen": "empty"}')))
    source = customers(tmp_path / "in.csv", 2000)
    spent = [0]
    while (buy(source, "verify", concurrency=100), service.paid_total)[1] > spent[-1]:
        spent.append(service.paid_total)
    assert REQUESTS <= spent[-1] <= REQUESTS + 220
    with Ledger.open() as ledger:
        kept = ledger.unusable()
        assert {(one.state, one.note) for one in kept} == {("unreadable", "the service gave no answer")}
        with ledger._connect() as connection:
            assert (
                b'"seen":"empty"' in connection.execute("SELECT raw FROM lookups WHERE raw IS NOT NULL").fetchone()[0]
            )
