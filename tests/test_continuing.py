"""Runs that go on where another one ended, and services that have moved: what is bought then, and what is said."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

import bansong as bs
from bansong.base.cancel import CancelToken
from bansong.base.options import ServiceKeywords, service_options
from bansong.base.schema import Alert
from bansong.errors import NotFoundError, ServiceError, ShapeError, StoppedError, UnavailableError
from bansong.purchase.ledger import LedgerRun
from bansong.purchase.lookups import continued_since
from bansong.purchase.queries import RunRecord
from bansong.run.columns import LABEL_DTYPES
from bansong.testing import HTML, Act, Body, FakeService, Fault, Reset, Status
from bansong.testing.messages import FakeReply, FakeRequest
from customers import KEY, QUICK, answers, customers, is_right
from labelling import send_labels

Command = Callable[..., subprocess.CompletedProcess[str]]

DAY = 86_400.0
BASE = ("verify", "https://service.test", "in.csv")


def moved(url: str) -> str:
    """The same service by another name of this machine."""
    return url.replace("127.0.0.1", "localhost")


def test_a_run_whose_quota_ended_is_continued_and_not_begun_anew(
    service: FakeService, url: str, tmp_path: Path
) -> None:
    """With no answer young enough (max_age 0), its continuation uses what the paused run bought, and says so."""
    source = customers(tmp_path / "in.csv", 60)
    service.faults.add(Fault("verify", Status(429), when=lambda _: service.paid_total >= 25))
    first = bs.enrich(source, engine="verify", max_age=0, concurrency=1, **QUICK)
    assert (first.exit_code, service.paid_total) == (5, 25)
    service.faults.clear()
    planned = bs.plan(source, engine="verify", max_age=0, **QUICK)
    second = bs.enrich(source, engine="verify", max_age=0, **QUICK)
    assert planned.purchase is not None
    assert (planned.purchase.cached, planned.purchase.wanted) == (25, 35)
    assert (second.exit_code, second.counts["cached"], second.counts["verified"]) == (0, 25, 35)
    assert (service.paid_total, service.paid_again) == (60, 0)
    assert any("25 answers older than" in note for note in second.warnings)
    third = bs.enrich(source, engine="verify", max_age=0, **QUICK)
    assert third.counts["verified"] == 60, "the second has finished, so the third begins anew"


def test_a_run_that_was_stopped_is_continued_with_its_jobs(service: FakeService, url: str, tmp_path: Path) -> None:
    source = customers(tmp_path / "in.csv", 40)
    brake = CancelToken()
    with pytest.raises(StoppedError):
        bs.enrich(
            source, engine="batch", max_age=0, chunk=10, progress=lambda *_: brake.cancel(), cancel=brake, **QUICK
        )
    report = bs.enrich(source, engine="batch", max_age=0, **QUICK)
    assert (report.exit_code, service.paid_total, service.paid_again) == (0, 40, 0)


@pytest.mark.parametrize("other", ["file", "engine"])
def test_only_the_same_file_and_engine_continue_an_unfinished_run(
    other: str, service: FakeService, url: str, tmp_path: Path
) -> None:
    source = customers(tmp_path / "in.csv", 30)
    service.faults.add(Fault("verify", Status(429), when=lambda _: service.paid_total >= 10))
    bs.enrich(source, engine="verify", max_age=0, concurrency=1, **QUICK)
    service.faults.clear()
    again = customers(tmp_path / "other.csv", 30) if other == "file" else source
    report = bs.enrich(again, engine="batch" if other == "engine" else "verify", max_age=0, **QUICK)
    assert (report.counts["verified"], service.paid_total) == (30, 40)


def record(started: float, outcome: str, ended: float | None = None, **other: str) -> RunRecord:
    what = dict(zip(("engine", "origin", "file"), BASE, strict=True)) | other
    end = None if ended is None else ended * DAY
    return RunRecord("r", **what, started=started * DAY, ended=end, outcome=outcome, paid=0, answered=0)


@pytest.mark.parametrize(
    ("earlier", "days"),
    [
        ([], None),
        ([record(0, "quota", 1)], 0),
        ([record(0, "killed"), record(20, "interrupted", 21)], 0),
        ([record(0, "done", 1)], None),
        ([record(0, "quota", 1), record(10, "done", 11), record(12, "killed")], 12),
        ([record(0, "killed"), record(1, "done", 2, file="other.csv"), record(3, "done", 4, engine="batch")], 0),
        ([record(0, "killed", origin="https://other.test")], None),
        ([record(-6, "quota", -5.5)], None),
        ([record(-30, "quota", -29), record(0, "quota", 1)], -30),
        ([record(-80, "quota", -79), record(-50, "quota", -49), record(-20, "quota", -19), record(10, "failing")], -50),
    ],
)
def test_unfinished_runs_form_a_chain_that_is_not_endless(earlier: list[RunRecord], days: float | None) -> None:
    """Back to the first after one that is done, over pauses of 35 days at most and for 100 days in all."""
    engine, origin, file = BASE
    found = continued_since(earlier, LedgerRun("now", engine, origin, file, 30 * DAY))
    assert found == (None if days is None else days * DAY)


def test_lookups_known_under_another_address_are_told_before_they_are_bought_again(
    service: FakeService, url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """`localhost` for `127.0.0.1` is another service: plan and run say so, before anything is paid, with the remedy."""
    source = customers(tmp_path / "in.csv", 40)
    bs.enrich(source, engine="hybrid", base_url=url, budget=30, **QUICK)
    assert (service.paid_total, caplog.records) == (30, [])
    planned = bs.plan(source, engine="hybrid", base_url=moved(url), **QUICK)
    caplog.clear()
    heard: list[int] = []

    class Listening(Act):
        async def before(self, _asked: FakeRequest) -> FakeReply | None:
            heard.append(len(caplog.records))
            return None

    service.faults.add(Fault("*", Listening()))
    report = bs.enrich(source, engine="hybrid", base_url=moved(url), **QUICK)
    assert service.paid_total == 70, "nothing is refused"
    for told in (planned, report):
        (alert,) = [one for one in told.warnings if isinstance(one, Alert) and "in the ledger" in one]
        assert f"30 of 40 lookups to be bought at {moved(url)}" in alert
        assert f"`known_as='{url}'`" in alert
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert heard[0] == 1, "told before the first request"


def test_a_service_that_has_moved_is_known_as_what_it_was(
    service: FakeService, url: str, run: Command, tmp_path: Path
) -> None:
    customers(tmp_path / "in.csv", 30)
    assert run("enrich", "in.csv", "--engine", "batch", "--budget", "20").returncode == 5
    there = ("--engine", "batch", "--base-url", moved(url))
    planned = run("plan", "in.csv", *there)
    assert "ATTENTION: 20 of 30 lookups" in planned.stderr
    assert f"--known-as {url}" in planned.stderr
    done = run("enrich", "in.csv", *there, "--known-as", f"{url.upper().replace('HTTP', 'http')}/")
    assert (done.returncode, service.paid_total, service.paid_again) == (0, 30, 0)
    assert run("enrich", "in.csv", "--engine", "batch").returncode == 0, "known at the first address, too"
    assert service.paid_total == 30
    assert all(is_right(row, service) for row in answers(tmp_path / "in.enriched.csv").iter_rows(named=True))


def test_open_jobs_and_repeatable_requests_are_taken_along_to_the_new_address(
    url: str, service: FakeService, tmp_path: Path
) -> None:
    """A job that was under way at the old address is fetched at the new one; a doubt with a key is settled there."""
    service.idempotency = True
    source = customers(tmp_path / "in.csv", 30)
    service.faults.add(Fault("job", Status(503, retry_after=3600)))
    assert bs.enrich(source, engine="batch", **QUICK).counts["pending"] == 30
    service.faults.clear()
    there = {"base_url": moved(url), "known_as": url, **QUICK}
    assert bs.enrich(source, engine="batch", **there).counts["cached"] == 30
    more = customers(tmp_path / "more.csv", 31)
    service.faults.add(Fault("verify", Reset("after"), times=1), Fault("me", Body(b"{}"), at=2))
    assert bs.enrich(more, engine="verify", **QUICK).counts["in_doubt"] == 1
    service.faults.clear()
    assert bs.enrich(more, engine="verify", **there).exit_code == 0
    assert (service.paid_total, service.paid_again) == (31, 0)


def test_labels_find_their_jobs_at_the_new_address(url: str, service: FakeService, tmp_path: Path) -> None:
    bs.enrich(customers(tmp_path / "in.csv", 20), engine="batch", base_url=url, **QUICK)
    told = pl.DataFrame([(row, row < 3, None, None) for row in range(20)], schema=LABEL_DTYPES, orient="row")
    options: ServiceKeywords = {"base_url": moved(url), "api_key": bs.ApiKey(KEY), "rate": 1e5}
    joined = service_options("batch", {**options, "known_as": url})
    assert send_labels(told, tmp_path / "in.enriched.csv", terms=service_options("batch", options)).without_job == 20
    assert send_labels(told, tmp_path / "in.enriched.csv", terms=joined).sent == 20
    assert sorted((label.row_id, label.bounced) for label in service.labels) == [(row, row < 3) for row in range(20)]


def test_what_is_no_address_is_not_taken_for_one(url: str, run: Command, tmp_path: Path) -> None:
    customers(tmp_path / "in.csv", 3)
    for known_as in ("example.com", "https://me:secret@example.com"):
        done = run("enrich", "in.csv", "--engine", "verify", "--known-as", known_as)
        assert (done.returncode, "--known-as" in done.stderr, "secret" in done.stderr) == (2, True, False)


def test_an_unknown_quota_needs_a_budget(
    service: FakeService, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one nothing is bought, and the remedy is named; with one the run goes on, and says what is not known."""
    monkeypatch.setattr("bansong.client.dispatcher.RetryBudget.backoff", lambda *_: 0.0)
    source = customers(tmp_path / "in.csv", 12)
    kinds = {Body(b'{"quota": {"remaining": 5}, "remaining": 7}'): ShapeError, Status(404): NotFoundError}
    for act, kind in (kinds | {Status(500): ServiceError, HTML: ShapeError}).items():
        service.faults.clear()
        service.faults.add(Fault("me", act))
        with pytest.raises(kind, match="`budget=`"):
            bs.enrich(source, engine="verify", **QUICK)
        assert (service.paid_total, (tmp_path / "in.enriched.csv").exists()) == (0, False)
    refusing = bs.plan(source, engine="verify", **QUICK)
    assert refusing.purchase is not None
    assert refusing.purchase.chosen == 0
    report = bs.enrich(source, engine="verify", budget=10, **QUICK)
    assert report.counts["verified"] == service.paid_total == 10
    for told in (refusing, report):
        assert any("quota" in note and "HTML" in note for note in told.warnings)


def test_what_is_paid_is_fetched_also_when_the_quota_is_unknown(service: FakeService, url: str, tmp_path: Path) -> None:
    """A job of an earlier run is fetched before the run is refused; where nothing is to be bought it is not refused."""
    service.faults.add(Fault("job", Status(503, retry_after=3600)))
    assert bs.enrich(customers(tmp_path / "in.csv", 30), engine="batch", **QUICK).counts["pending"] == 30
    service.faults.clear()
    service.faults.add(Fault("me", HTML))
    with pytest.raises(ShapeError, match="`budget=`"):
        bs.enrich(customers(tmp_path / "in.csv", 31), engine="batch", **QUICK)
    report = bs.enrich(customers(tmp_path / "in.csv", 30), engine="batch", **QUICK)
    assert (report.exit_code, report.counts["cached"], service.paid_total) == (0, 30, 30)


def test_an_account_that_asks_to_come_later_is_not_passed_over(service: FakeService, url: str, tmp_path: Path) -> None:
    """503 with a Retry-After of an hour: nothing is bought, with a budget or without; the same command goes on."""
    service.faults.add(Fault("me", Status(503, retry_after=3600)))
    for options in ({}, {"budget": 5}):
        with pytest.raises(UnavailableError):
            bs.enrich(customers(tmp_path / "in.csv", 10), engine="verify", **options, **QUICK)
    assert service.paid_total == 0
