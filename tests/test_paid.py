"""Runs that buy: whole files through a real socket, each lookup paid once, each row with the answer that is its own."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

import bansong as bs
from bansong.errors import QuotaError
from bansong.purchase.ledger import Ledger
from bansong.testing import DIALECTS, HTML, Dialect, FakeService, Fault, Reset, Status
from conftest import SAMPLE, write
from customers import QUICK, SEVEN, answers, customers, is_right, numbers

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.parametrize("engine", ["verify", "batch"])
def test_every_row_has_its_own_answer_and_every_lookup_is_paid_once(
    engine: str, service: FakeService, url: str, tmp_path: Path
) -> None:
    source = customers(tmp_path / "in.csv", 150, repeats=40)
    report = bs.enrich(source, engine=engine, base_url=url, chunk=60, **QUICK)
    assert (report.exit_code, report.counts["verified"]) == (0, 190)
    assert (service.paid_total, max(service.paid.values())) == (150, 1)
    assert all(is_right(row, service) for row in answers(tmp_path / "in.enriched.csv").iter_rows(named=True))
    other = customers(tmp_path / "other.csv", 100)
    again = bs.enrich(other, engine="verify" if engine == "batch" else "batch", base_url=url, **QUICK)
    assert again.counts["cached"] == 100
    assert service.paid_total == 150, "what one engine bought serves the other, and any file"
    assert all(is_right(row, service) for row in answers(tmp_path / "other.enriched.csv").iter_rows(named=True))


@pytest.mark.parametrize("name", ["plain", "glimpse", *DIALECTS])
def test_whatever_the_service_leaves_open_no_answer_goes_to_a_wrong_row(
    name: str, service: FakeService, url: str, tmp_path: Path
) -> None:
    """In each dialect: a row has its own answer, or it is `failed` and says so; and the service stays paid once."""
    service.dialect = DIALECTS.get(name, Dialect(preview_most=40 if name == "glimpse" else None))
    report = bs.enrich(customers(tmp_path / "in.csv", 150), engine="batch", base_url=url, chunk=120, **QUICK)
    assert max(service.paid.values()) == 1
    table = answers(tmp_path / "in.enriched.csv")
    answered = table.filter(pl.col("row_status") == "verified")
    assert all(is_right(row, service) for row in answered.iter_rows(named=True))
    assert table.filter(pl.col("row_status") != "verified")["row_note"].null_count() == 0
    uploads = [upload.rows for upload in service.uploads]
    if name == "terse":  # neither key nor echo: nothing proves which answer is whose, and the run stops at once
        assert (uploads, report.counts["failed"], report.exit_code) == ([100], 100, 5)
    elif name == "glimpse":  # at most 40 results of a job: seen at the first upload, the others are that small
        assert (uploads, report.counts["verified"], report.counts["failed"]) == ([100, 40, 10], 90, 60)
    else:
        assert answered.height == 150


def test_only_what_is_needed_is_bought_whole_and_once(service: FakeService, url: str, tmp_path: Path) -> None:
    header = "사업자번호1,사업자번호2,사업자번호3,상호,기본주소,상세주소,우편번호,전화"
    parts = write(tmp_path / "in.csv", f"{header}\n124,81,998,상사,서울 중구 세종대로 110,3층,04524,010\n")
    assert bs.enrich(parts, engine="batch", base_url=url, **QUICK).counts["verified"] == 1
    row = pl.read_csv(tmp_path / "in.enriched.csv", infer_schema_length=None).row(0, named=True)
    wanted = service.verdict("1248100998", "상사", "서울 중구 세종대로 110 3층")
    assert (row["reasons"], row["fixed_address"]) == (" | ".join(wanted["reasons"]), wanted["fixed_address"])
    rows = ["124-81-00998,상사,서울 중구 세종대로 110 3층,", "124-81-00998,상사,,역삼동 7"]
    either = write(tmp_path / "e.csv", "\n".join(["사업자번호,상호,도로명주소,지번주소", *rows, ""]))
    assert bs.enrich(either, engine="batch", base_url=url, **QUICK).counts["cached"] == 1
    bs.enrich(parts, engine="batch", base_url=url, offline=True, paid=False, **QUICK)
    assert service.paid_total == 3, "other flags may give another answer"
    assert {upload.header for upload in service.uploads} == {b"b_no,name,address"}
    assert [(upload.offline, upload.paid) for upload in service.uploads] == [(None, None)] * 2 + [("true", "false")]


def test_a_budget_buys_the_rows_with_the_largest_priority(service: FakeService, url: str, tmp_path: Path) -> None:
    rows = [f'{n},상사 {i},서울 {i}번지,"{(i * 7) % 30},000"' for i, n in enumerate(numbers(30))]
    source = write(tmp_path / "in.csv", "\n".join(["사업자번호,상호,주소,매출", *rows]))
    report = bs.enrich(source, engine="verify", base_url=url, budget=10, priority="매출", **QUICK)
    table = answers(tmp_path / "in.enriched.csv")
    bought = table.filter(pl.col("row_status") == "verified")["매출"].to_list()
    assert sorted(bought) == [f"{amount},000" for amount in range(20, 30)]
    assert (report.counts["pending"], report.exit_code) == (20, 5)
    assert "budget" in table.filter(pl.col("row_status") == "pending")["row_note"][0]
    bs.enrich(source, engine="verify", base_url=url, **QUICK)
    assert (service.paid_total, service.paid_again) == (30, 0)


def test_a_plan_beyond_the_quota_is_refused_before_anything_is_bought(
    service: FakeService, url: str, tmp_path: Path
) -> None:
    service.quota = 30
    source = customers(tmp_path / "in.csv", 50)
    with pytest.raises(QuotaError, match=r"50 lookups needed, 30 left.*`budget=30`"):
        bs.enrich(source, engine="verify", base_url=url, **QUICK)
    assert service.paid_total == 0
    assert not (tmp_path / "in.enriched.csv").exists()
    report = bs.enrich(source, engine="verify", base_url=url, budget=40, **QUICK)
    assert report.counts["verified"] == 30
    assert report.purchase is not None
    assert [quota and quota.remaining for quota in (report.purchase.before, report.purchase.after)] == [30, 0]
    notes = answers(tmp_path / "in.enriched.csv").filter(pl.col("row_status") == "pending")["row_note"]
    assert set(notes) == {"not bought: beyond what was left of the quota"}


def test_a_wrong_job_named_by_hand_gives_no_row_an_answer(service: FakeService, url: str, tmp_path: Path) -> None:
    """Last month's upload of the same firms; the right job is fetched after it."""
    bs.enrich(customers(tmp_path / "old.csv", 30), engine="batch", base_url=url, ledger=tmp_path / "old", **QUICK)
    source = customers(tmp_path / "in.csv", 20)
    source.write_text(source.read_text().replace("상사", "회사"))
    service.faults.add(Fault("batch", Reset("after"), times=1))
    bs.enrich(source, engine="batch", base_url=url, **QUICK)
    for job, expected in zip(list(service.jobs), ("failed", "cached"), strict=True):
        with Ledger.open() as ledger:
            ledger.attach([*ledger.doubts(), *ledger.unusable()][0].id, job)
        assert bs.enrich(source, engine="batch", base_url=url, **QUICK).counts[expected] == 20
    assert all(is_right(row, service) for row in answers(tmp_path / "in.enriched.csv").iter_rows(named=True))


def test_what_is_paid_is_fetched_also_when_the_quota_does_not_last_for_more(
    service: FakeService, url: str, tmp_path: Path
) -> None:
    service.faults.add(Fault("job", Status(400)))
    assert bs.enrich(customers(tmp_path / "in.csv", 5), engine="batch", base_url=url, **QUICK).counts["pending"] == 5
    service.quota = service.paid_total
    service.faults.clear()
    source = customers(tmp_path / "more.csv", 8)
    with pytest.raises(QuotaError, match="3 lookups"):
        bs.enrich(source, engine="verify", base_url=url, **QUICK)
    service.faults.add(Fault("job", Status(404)))
    report = bs.enrich(source, engine="verify", base_url=url, budget=0, **QUICK)
    assert (report.counts["cached"], report.counts["pending"]) == (5, 3)


def test_the_hybrid_engine_buys_only_what_the_local_one_cannot_tell(
    service: FakeService, url: str, tmp_path: Path
) -> None:
    """Paid are unknown statuses and probabilities in the band; the report accounts for every lookup."""
    source, registry, out = SAMPLE / "customers.csv", SAMPLE / "registry.parquet", tmp_path / "out.csv"
    how = {"registry": registry, "band": (0.08, 0.5), "budget": 20} | QUICK
    report = bs.enrich(source, out, engine="hybrid", base_url=url, **how)
    plain = bs.enrich(source, tmp_path / "local.csv", registry=registry)
    assert report.purchase is not None
    assert report.purchase.agreement is not None
    assert (report.purchase.paid, service.paid_total) == (20, 20)
    assert report.purchase.agreement.rows >= 20
    assert (report.counts["invalid"], report.exit_code) == (plain.counts["invalid"], 0)
    (paid,) = [text for what, text in report.lines() if what == "paid"]
    assert sum(int(part.split()[0]) for part in paid.split(",")) == report.plan.lookups == 261
    assert "certain without" in paid
    assert "beyond budget or quota" in paid
    ours = pl.read_csv(tmp_path / "local.csv", infer_schema_length=None).with_row_index()
    sure = (pl.col("biz_status") != "unknown") & ~pl.col("bounce_prob").is_between(0.08, 0.5).fill_null(False)
    kept = ours.filter(sure)["index"]
    one, other = (pl.read_csv(path, infer_schema=False)[kept].select(SEVEN) for path in (out, tmp_path / "local.csv"))
    assert one.equals(other), "what is certain stays the local engine's answer"


def test_a_wrong_check_digit_is_not_bought_unless_asked_for(service: FakeService, url: str, tmp_path: Path) -> None:
    right = numbers(1)[0]
    wrong = right[:9] + str((int(right[9]) + 1) % 10)
    source = write(tmp_path / "in.csv", f"사업자번호,상호\n{right},가\n{wrong},나\n")
    report = bs.enrich(source, engine="verify", base_url=url, **QUICK)
    assert report.counts["invalid"] == 1
    assert report.plan.suspect == 1
    assert "buy_suspect" in answers(tmp_path / "in.enriched.csv")["row_note"][1]
    assert bs.enrich(source, engine="verify", base_url=url, buy_suspect=True, **QUICK).counts["invalid"] == 0
    assert service.paid_total == 2


def test_a_job_of_another_file_is_left_to_that_file(service: FakeService, url: str, tmp_path: Path) -> None:
    one, other = customers(tmp_path / "one.csv", 20), tmp_path / "other.csv"
    rows = [f"{n},다른 상사,부산 {i}" for i, n in enumerate(numbers(60)[40:])]
    write(other, "\n".join(["사업자번호,상호,주소", *rows]))
    service.faults.add(Fault("job", HTML))
    assert bs.enrich(one, engine="batch", base_url=url, **QUICK).counts["pending"] == 20
    (job,) = service.jobs
    service.faults.clear()
    service.faults.add(Fault("job", HTML, when=lambda asked: asked.target == job))
    report = bs.enrich(other, engine="batch", base_url=url, **QUICK)
    assert (report.exit_code, report.counts["verified"]) == (0, 20)
    service.faults.clear()
    assert bs.enrich(one, engine="verify", base_url=url, **QUICK).counts["cached"] == 20
    assert service.paid_total == 40


def test_an_answer_is_bought_again_when_it_is_too_old(service: FakeService, url: str, tmp_path: Path) -> None:
    source = customers(tmp_path / "in.csv", 5)
    bs.enrich(source, engine="verify", base_url=url, **QUICK)
    time.sleep(0.01)
    assert bs.enrich(source, engine="verify", base_url=url, max_age=0, **QUICK).counts["verified"] == 5
    assert service.paid_total == 10
