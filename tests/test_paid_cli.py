"""The command line against the service: what people see, exit codes, bad input, Ctrl-C, and the key nobody sees."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import polars as pl
import pytest

import bansong as bs
from bansong.base.cancel import CancelToken
from bansong.errors import QuotaError, StoppedError, UsageError
from bansong.testing import HTML, Body, Delay, FakeService, Fault, Hang, Huge, Partial, Reset, Status
from conftest import SAMPLE, write
from customers import KEY, QUICK, answers, customers, numbers

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def service() -> FakeService:
    return FakeService(KEY, quota=1000)


def test_the_whole_story_on_the_command_line(service: FakeService, url: str, run: Run, tmp_path: Path) -> None:
    """Me → plan → enrich → again: the plan says what it would cost, the report and the ledger what it did."""
    customers(tmp_path / "in.csv", 30, repeats=3)
    assert "remaining   1,000" in run("me").stdout
    planned = run("plan", "in.csv", "--engine", "verify")
    assert planned.returncode == 0
    assert "30 of 30 missing lookups" in planned.stderr
    assert service.paid_total == 0
    bought = run("enrich", "in.csv", "--engine", "verify", "--rate", "500/s", "--json")
    report = json.loads(bought.stdout)
    assert report["lookups"] == {"planned": 30, "paid": 30, "cached": 0, "saved": 3}
    assert report["quota"] == {"before": 1000, "after": 970}
    again = run("enrich", "in.csv", "--engine", "batch")
    assert again.returncode == 0
    assert "paid            0 of 0 chosen lookups, 30 in the ledger" in again.stderr
    ledger = run("ledger").stdout
    assert "in all" in ledger
    assert [line.split()[2:5] for line in ledger.splitlines()[1:3]] == [["verify", "30", "30"], ["batch", "0", "0"]]
    assert numbers(1)[0] in run("ledger", "--number", numbers(1)[0]).stdout
    assert "nothing is unsettled" in run("resolve").stdout
    purged = json.loads(run("ledger", "--purge", "0", "--json").stdout)
    assert purged["purged"]["lookups"] == 30


def test_one_business_is_asked_once(service: FakeService, url: str, run: Run) -> None:
    """`verify --engine verify` pays for the first question; after that the ledger answers."""
    first = run("verify", "124-81-00998", "--engine", "verify", "--json")
    second = run("verify", "124-81-00998", "--engine", "verify", "--json")
    assert (json.loads(first.stdout)["row_status"], json.loads(second.stdout)["row_status"]) == ("verified", "cached")
    assert service.paid_total == 1
    assert run("verify", "1248100997", "--engine", "verify").returncode == 2
    service.faults.add(Fault("verify", Status(500)))
    doubtful = run("verify", "220-81-62517", "--engine", "verify")
    assert doubtful.returncode == 3
    assert "in_doubt" in doubtful.stdout


@pytest.mark.parametrize("decision", ["--lost", "--resend"])
def test_doubts_are_listed_and_settled_by_hand(
    decision: str, service: FakeService, url: str, run: Run, tmp_path: Path
) -> None:
    """A lost reply is never asked again by itself: the user decides, and the next run acts on it."""
    customers(tmp_path / "in.csv", 8)
    service.faults.add(Fault("verify", Reset("after"), at=3))
    assert run("enrich", "in.csv", "--engine", "verify").returncode == 3
    assert run("enrich", "in.csv", "--engine", "verify").returncode == 3
    assert service.paid_total == 8
    listed = json.loads(run("resolve", "--json").stdout)["unsettled"]
    assert len(listed) == 1
    settled = run("resolve", listed[0]["id"], decision)
    assert settled.returncode == 0, settled.stderr
    last = run("enrich", "in.csv", "--engine", "verify", "--json")
    counts = json.loads(last.stdout)["row_status"]
    assert service.paid_total == (8 if decision == "--lost" else 9)
    assert counts["failed" if decision == "--lost" else "verified"] == 1
    assert last.returncode == (3 if decision == "--lost" else 0)
    assert "nothing is unsettled" in run("resolve").stdout


def test_an_upload_in_doubt_is_found_again_by_its_job(service: FakeService, url: str, run: Run, tmp_path: Path) -> None:
    """The console of the service shows the job: with its id the results are fetched, and nothing is paid again."""
    customers(tmp_path / "in.csv", 20)
    service.faults.add(Fault("batch", Reset("after"), at=1))
    assert run("enrich", "in.csv", "--engine", "batch").returncode == 3
    (doubt,) = json.loads(run("resolve", "--json").stdout)["unsettled"]
    assert (doubt["kind"], doubt["rows"]) == ("upload", 20)
    (job,) = service.jobs
    assert run("resolve", doubt["id"], "--job", job).returncode == 0
    done = run("enrich", "in.csv", "--engine", "batch", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["row_status"]["cached"] == 20
    assert service.paid_total == 20


BAD = {
    "no key": ({"BANSONG_API_KEY": ""}, []),
    "a key with a line break": ({"BANSONG_API_KEY": f"{KEY}\nx"}, []),
    "a key file that is empty": ({}, ["--key-file", "empty"]),
    "no address": ({"BANSONG_BASE_URL": ""}, []),
    "an address without a scheme": ({}, ["--base-url", "api.example.com"]),
    "http to another machine": ({}, ["--base-url", "http://api.example.com"]),
    "a password in the address": ({}, ["--base-url", "https://me:secret@api.example.com"]),
    "a budget below zero": ({}, ["--budget", "-1"]),
    "no rate": ({}, ["--rate", "0"]),
    "a rate that is none": ({}, ["--rate", "fast"]),
    "no concurrency": ({}, ["--concurrency", "0"]),
    "a priority column that is not there": ({}, ["--priority", "매출"]),
    "a priority column without numbers": ({}, ["--priority", "상호"]),
    "a flag of another engine": ({}, ["--paid"]),
    "a ledger in a folder that is not there": ({}, ["--ledger", "nowhere/ledger.sqlite"]),
    "a ledger that is none": ({}, ["--ledger", "in.csv"]),
    "the ledger as output": ({}, ["--ledger", "mine.sqlite", "-o", "mine.sqlite"]),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_line_and_costs_nothing(
    case: str, service: FakeService, url: str, run: Run, tmp_path: Path
) -> None:
    customers(tmp_path / "in.csv", 3)
    write(tmp_path / "empty", "\n")
    environment, arguments = BAD[case]
    done = run("enrich", "in.csv", "--engine", "verify", *arguments, env=environment)
    assert done.returncode == 2, done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith(("bansong:", "Error:"))]
    assert len(said) == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert KEY not in done.stderr
    assert "secret" not in done.stderr
    assert service.paid_total == 0
    assert not (tmp_path / "in.enriched.csv").exists()


@pytest.mark.parametrize(
    ("fault", "code", "says"),
    [
        (Fault("me", HTML), 3, "HTML"),
        (Fault("me", Huge(200_000_000)), 3, "too large"),
        (Fault("me", Status(401)), 4, "401"),
        (Fault("me", Status(403)), 4, "403"),
        (Fault("me", Status(404)), 2, "404"),
    ],
)
def test_what_is_wrong_with_the_service_shows_before_anything_is_spent(
    fault: Fault, code: int, says: str, service: FakeService, url: str, run: Run, tmp_path: Path
) -> None:
    """A wrong key, a plan without the API, a login page in place of the service: one line, nothing bought."""
    customers(tmp_path / "in.csv", 3)
    service.faults.add(fault)
    done = run("enrich", "in.csv", "--engine", "verify")
    assert done.returncode == code, done.stderr
    assert says in done.stderr.splitlines()[-1]
    assert service.paid_total == 0
    assert not (tmp_path / "in.enriched.csv").exists()


def test_answers_that_cannot_be_read_stop_the_run(service: FakeService, url: str, run: Run, tmp_path: Path) -> None:
    """Each may have been paid: after ten in a row no more is risked, and none of them is asked again."""
    customers(tmp_path / "in.csv", 100)
    service.faults.add(Fault("verify", HTML))
    done = run("enrich", "in.csv", "--engine", "verify", "--concurrency", "4", "--json")
    counts = json.loads(done.stdout)["row_status"]
    assert done.returncode == 5, "not finished: the same command goes on"
    assert 10 <= counts["failed"] <= 14
    assert counts["pending"] == 100 - counts["failed"]
    service.faults.clear()
    again = json.loads(run("enrich", "in.csv", "--engine", "verify", "--json").stdout)["row_status"]
    assert again["failed"] == counts["failed"]
    assert service.paid_again == 0


def test_a_key_that_is_revoked_in_the_middle_ends_the_run(
    service: FakeService, url: str, run: Run, tmp_path: Path
) -> None:
    """Exit 4, nothing published; what was bought is in the ledger."""
    customers(tmp_path / "in.csv", 60)
    service.faults.add(Fault("verify", Status(401), when=lambda _: service.paid_total >= 20))
    done = run("enrich", "in.csv", "--engine", "verify", "--rate", "1000")
    assert done.returncode == 4
    assert not (tmp_path / "in.enriched.csv").exists()
    service.faults.clear()
    report = json.loads(run("enrich", "in.csv", "--engine", "verify", "--rate", "1000", "--json").stdout)
    assert report["row_status"]["cached"] == report["lookups"]["cached"] >= 20
    assert service.paid_again == 0


def started(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bansong", "enrich", "in.csv", *arguments]
    return subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def until(true: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if true():
            return
        time.sleep(0.01)
    raise AssertionError("it never came to that")


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_settles_what_is_under_way(
    sent: signal.Signals, service: FakeService, url: str, run: Run, tmp_path: Path
) -> None:
    """Exit 130, nothing published, no doubt: the replies under way are waited for. The same command goes on."""
    customers(tmp_path / "in.csv", 200)
    service.faults.add(Fault("verify", Delay(0.5)))
    with started(tmp_path, "--engine", "verify") as process:
        until(lambda: service.paid_total > 20)
        process.send_signal(sent)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "lookups bought in this run, known to the ledger; the same command goes on" in said
    assert not (tmp_path / "in.enriched.csv").exists()
    paid = service.paid_total
    assert 20 < paid < 200
    service.faults.clear()
    report = json.loads(run("enrich", "in.csv", "--engine", "verify", "--rate", "1000", "--json").stdout)
    assert report["row_status"] == {**report["row_status"], "cached": paid, "verified": 200 - paid, "in_doubt": 0}
    assert service.paid_again == 0


def test_a_second_interrupt_does_not_wait(service: FakeService, url: str, run: Run, tmp_path: Path) -> None:
    """Who cannot wait for a service that hangs gets away at once; what was under way is in doubt, and said to be."""
    customers(tmp_path / "in.csv", 10)
    service.faults.add(Fault("verify", Hang(paid=True)))
    with started(tmp_path, "--engine", "verify", "--concurrency", "3") as process:
        until(lambda: service.paid_total == 3)
        process.send_signal(signal.SIGINT)
        time.sleep(1)  # two that come before the process gets to run are one
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=25)
    assert process.returncode == 130
    service.faults.clear()
    service.faults.release()
    report = json.loads(run("enrich", "in.csv", "--engine", "verify", "--json").stdout)
    assert report["row_status"]["in_doubt"] == 3
    assert service.paid_again == 0


def test_it_buys_within_a_running_event_loop(service: FakeService, url: str, tmp_path: Path) -> None:
    """A notebook has a loop running; the blocking calls work there all the same."""
    source = customers(tmp_path / "in.csv", 20)

    async def cell() -> bs.Report:
        return bs.enrich(source, engine="verify", base_url=url, **QUICK)

    assert asyncio.run(cell()).counts["verified"] == 20
    assert anyio.run(lambda: bs.aenrich(source, engine="batch", base_url=url, **QUICK), backend="trio").exit_code == 0


def test_a_cancelled_run_settles_what_is_under_way(service: FakeService, url: str, tmp_path: Path) -> None:
    """`aenrich` that is cancelled leaves no doubt behind."""
    source = customers(tmp_path / "in.csv", 300)
    service.faults.add(Fault("verify", Delay(0.1)))

    async def cell() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: bs.aenrich(source, engine="verify", base_url=url, **QUICK))
            while service.paid_total < 20:
                await anyio.sleep(0.01)
            group.cancel_scope.cancel()

    anyio.run(cell)
    assert 0 < service.paid_total < 300
    service.faults.clear()
    report = bs.enrich(source, engine="verify", base_url=url, **QUICK)
    assert report.counts["in_doubt"] == 0
    assert service.paid_again == 0
    assert len(answers(tmp_path / "in.enriched.csv")) == 300


def test_two_runs_do_not_share_a_ledger(service: FakeService, url: str, run: Run, tmp_path: Path) -> None:
    """The second says that it is in use, and buys nothing."""
    customers(tmp_path / "in.csv", 20)
    service.faults.add(Fault("verify", Delay(1.0)))
    with started(tmp_path, "--engine", "verify", "--concurrency", "1") as first:
        until(lambda: service.requests["verify"] > 0)
        second = run("enrich", "in.csv", "--engine", "verify", "-o", "second.csv")
        first.send_signal(signal.SIGINT)
        first.communicate(timeout=60)
    assert second.returncode == 2
    assert "is in use by another run" in second.stderr


@pytest.mark.parametrize("engine", ["verify", "batch"])
def test_the_key_is_nowhere_to_be_seen(
    engine: str, service: FakeService, url: str, run: Run, tmp_path: Path, state_directory: Path
) -> None:
    """Not in a log at its most talkative, the report, the manifest, the ledger, the output; not even if echoed."""
    customers(tmp_path / "in.csv", 40)
    echo = json.dumps({"error": {"message": f"key {KEY} is not welcome", "request": {"X-API-Key": KEY}}}).encode()
    service.faults.add(
        Fault("verify", Status(400, body=echo), at=2),
        Fault("verify", Status(500, body=echo), at=4),
        Fault("verify", Reset("after"), at=6),
        Fault("batch", Status(503, body=echo), at=1),
        Fault("job", Status(500, body=echo), at=1),
    )
    loud = {"BANSONG_LOG": "debug", "PYTHONASYNCIODEBUG": "1"}
    done = run("enrich", "in.csv", "--engine", engine, "--json", env=loud)
    assert done.returncode == 3, done.stderr
    assert "is not welcome" in done.stderr + done.stdout + (tmp_path / "in.enriched.csv").read_text()
    refused = run("enrich", "in.csv", "--engine", engine, env=loud | {"BANSONG_API_KEY": KEY + "-wrong"})
    seen = [done.stdout, done.stderr, refused.stdout, refused.stderr, run("resolve", "--json").stdout]
    files = [path for folder in (tmp_path, state_directory) for path in folder.rglob("*") if path.is_file()]
    assert any(path.name.startswith("ledger.sqlite") for path in files)
    assert not [text for text in seen if KEY in text]
    assert not [path for path in files if KEY.encode() in path.read_bytes()]


def test_the_key_cannot_be_shown_or_pickled(url: str, tmp_path: Path) -> None:
    key = bs.ApiKey(KEY)
    source = customers(tmp_path / "in.csv", 3)
    report = bs.enrich(source, engine="verify", base_url=url, api_key=key)
    shown = [
        repr(key),
        str(key),
        f"{key}",
        repr(report),
        str(report),
        report._repr_html_(),
        json.dumps(report.as_dict()),
    ]
    assert not [text for text in shown if KEY in text]
    with pytest.raises(TypeError):
        pickle.dumps(key)


def test_the_local_engine_needs_no_service(run: Run, tmp_path: Path) -> None:
    """No key, no address, no ledger; and options that only mean something for a purchase are refused."""
    customers(tmp_path / "in.csv", 3)
    without = {"BANSONG_API_KEY": "", "BANSONG_BASE_URL": "", "https_proxy": "http://127.0.0.1:9"}
    assert run("enrich", "in.csv", env=without).returncode == 0
    assert not list(Path(os.environ["BANSONG_STATE_DIR"]).glob("ledger*"))
    refused = run("enrich", "in.csv", "--budget", "5")
    assert refused.returncode == 2
    assert "--budget is for the engines verify, batch, hybrid, not for local" in refused.stderr


def test_a_partial_job_says_what_is_missing(service: FakeService, url: str, run: Run, tmp_path: Path) -> None:
    """The report and `resolve` name the rows that were paid and not answered."""
    customers(tmp_path / "in.csv", 10)
    service.faults.add(Fault("job", Partial(0.6)))
    done = run("enrich", "in.csv", "--engine", "batch")
    assert done.returncode == 3
    assert "failed 4" in done.stderr
    listed = run("resolve").stdout
    assert "missing" in listed
    assert "4 lookups" in listed


def test_an_error_of_an_async_run_comes_as_it_is(service: FakeService, url: str, tmp_path: Path) -> None:
    """Not in a group, and not as an interruption; who cancels a run hears of the cancellation."""
    service.quota = 1
    source = customers(tmp_path / "in.csv", 5)
    with pytest.raises(QuotaError):
        anyio.run(lambda: bs.aenrich(source, engine="verify", base_url=url, **QUICK))
    brake = CancelToken()
    brake.cancel()
    with pytest.raises(StoppedError, match="0 lookups bought"):
        bs.enrich(source, engine="verify", base_url=url, cancel=brake, budget=1, **QUICK)
    assert service.paid_total == 0


@pytest.mark.parametrize(
    "command",
    [
        *(
            pytest.param(command, marks=pytest.mark.process)
            for command in (["me"], ["plan", "in.csv", "--engine", "verify"])
        ),
        ["enrich", "in.csv", "--engine", "batch"],
    ],
)
def test_an_interrupt_does_not_wait_for_what_costs_nothing(
    command: list[str], service: FakeService, url: str, run: Run, tmp_path: Path
) -> None:
    """The quota is asked of a service that hangs: Ctrl-C ends it at once, and the ledger calls it interrupted."""
    customers(tmp_path / "in.csv", 3)
    service.faults.add(Fault("me", Hang()))
    with subprocess.Popen([sys.executable, "-m", "bansong", *command], cwd=tmp_path, stderr=subprocess.PIPE) as process:
        until(lambda: service.requests["me"] > 0)
        begun = time.monotonic()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130
    assert time.monotonic() - begun < 25, "the client would wait for 30 s"
    if command[0] == "enrich":
        assert [one["outcome"] for one in json.loads(run("ledger", "--json").stdout)["runs"]] == ["interrupted"]


def test_progress_comes_to_its_end_whatever_becomes_of_a_lookup(service: FakeService, url: str, tmp_path: Path) -> None:
    """Doubts and refusals are settled, too; and jobs of another file that are fetched on the way are counted in."""
    service.faults.add(Fault("verify", Reset("after"), at=2), Fault("verify", Status(400), at=4))
    service.faults.add(Fault("job", Status(400), at=1))
    bs.enrich(customers(tmp_path / "other.csv", 10), engine="batch", base_url=url, **QUICK)
    for name, count, engine in (("in.csv", 30, "verify"), ("more.csv", 60, "batch")):
        seen: list[tuple[int, int]] = []
        source = customers(tmp_path / name, count)
        bs.enrich(source, engine=engine, base_url=url, progress=lambda *at, to=seen: to.append(at), **QUICK)
        totals = {total for _, total in seen}
        assert seen[0][0] == 0, "how much there is to do is known before the first is done"
        assert totals == {seen[-1][0]}, "one total, and it is reached"
        assert max(totals) >= len(seen) - 1, "no more steps than lookups"


def test_the_report_accounts_for_every_lookup(service: FakeService, url: str, run: Run, tmp_path: Path) -> None:
    """Paid, left out, known before and certain without add up; so do the words of a service that has its own."""
    sample = ("enrich", SAMPLE / "customers.csv", "-o", "out.csv", "--engine", "hybrid")
    done = run(*sample, "--registry", SAMPLE / "registry.parquet", "--budget", "20")
    (paid,) = [line for line in done.stderr.splitlines() if line.startswith("paid ")]
    parts = [int(part.split()[0]) for part in paid.removeprefix("paid").split(",")]
    assert sum(parts) == 261, paid
    assert "certain without" in paid
    assert "beyond budget or quota" in paid
    report = json.loads(run(*sample, "--registry", SAMPLE / "registry.parquet", "--json").stdout)
    assert sum(report["biz_status"].values()) == report["row_status"]["verified"] + report["row_status"]["cached"]
    assert report["biz_status"]["other"] > 0
    unsure = run("plan", SAMPLE / "customers.csv", "--engine", "hybrid").stderr
    assert "every lookup is uncertain, and bought" in unsure
    assert "biz_status is unknown in every row" not in unsure


def test_a_plan_says_what_enrich_would_do_about_the_quota(
    service: FakeService, url: str, run: Run, tmp_path: Path
) -> None:
    """It would refuse, or buy the part that is left; and no budget is advised where nothing is left."""
    customers(tmp_path / "in.csv", 5)
    for quota, budget, chosen, said in ((3, (), 0, "--budget 3"), (3, ("--budget", "4"), 3, ""), (0, (), 0, "wait")):
        service.quota = quota
        planned = json.loads(run("plan", "in.csv", "--engine", "verify", "--json", *budget).stdout)
        assert (planned["purchase"]["wanted"], planned["purchase"]["chosen"]) == (5, chosen)
        assert said in "".join(planned["warnings"])
    assert "--budget" not in run("enrich", "in.csv", "--engine", "verify").stderr


def test_what_was_given_up_can_be_found_and_bought_after_all(
    service: FakeService, url: str, run: Run, tmp_path: Path
) -> None:
    """`ledger --number` shows the ID; the lists stay JSON alone with --json, and speak of one lookup as of one."""
    customers(tmp_path / "in.csv", 1)
    service.faults.add(Fault("verify", Reset("after"), at=1))
    run("enrich", "in.csv", "--engine", "verify")
    assert run("resolve", "--json").stderr == ""
    listed = run("resolve").stdout.splitlines()
    assert listed[-2:] == [
        "unsettled: 1 lookup in 1 request",
        "settle each with `bansong resolve ID` and --lost, --resend or, an upload, --job JOB_ID",
    ]
    assert run("resolve", "--all", "--lost").stdout == "1 lookup: taken as lost\n"
    assert run("resolve", "--all", "--resend").stdout == "nothing is unsettled\n"
    lost = run("ledger", "--number", numbers(1)[0]).stdout.split()[0]
    assert lost == listed[0].split()[0]
    assert run("resolve", lost, "--resend").returncode == 0
    assert run("enrich", "in.csv", "--engine", "verify").returncode == 0
    assert run("ledger", "--purge", "nan").returncode == 2


def test_options_that_would_do_nothing_say_so(service: FakeService, url: str, tmp_path: Path) -> None:
    """The service is not told of a postal code or a registry; and values from Python are checked as well."""
    source = customers(tmp_path / "in.csv", 1)
    for unused in ({"zipcode": "04524"}, {"registry": SAMPLE / "registry.parquet"}):
        with pytest.raises(UsageError, match="for the local engine"):
            bs.verify(numbers(1)[0], engine="verify", base_url=url, **QUICK, **unused)
    for wrong in ({"rate": "50"}, {"budget": 2.5}, {"concurrency": 1.5}, {"band": 0.5}, {"max_age": None}):
        with pytest.raises(UsageError, match="must be"):
            bs.enrich(source, engine="hybrid", base_url=url, **(QUICK | wrong))
    given = bs.enrich(source, engine="batch", base_url=url, registry=SAMPLE / "registry.parquet", **QUICK)
    assert any("the registry answers nothing here" in warning for warning in given.warnings)


def test_a_frames_purchase_warns_of_what_a_report_would_say(service: FakeService, url: str, tmp_path: Path) -> None:
    """A quota that ends in the middle, a count that differs: there is no report to look into."""
    service.faults.add(Fault("me", Body(b"{}", "application/json")))
    service.quota = 2
    frame = pl.read_csv(customers(tmp_path / "in.csv", 5), infer_schema=False)
    with (
        pytest.warns(UserWarning, match="did not say how much of the quota is left"),
        pytest.warns(UserWarning, match="paused: "),
    ):
        bs.verify_frame(frame, engine="verify", base_url=url, **QUICK)


def test_uploads_heed_the_concurrency_that_is_asked_for(service: FakeService, url: str, tmp_path: Path) -> None:
    service.faults.add(Fault("batch", Delay(0.05)), Fault("job", Delay(0.05)))
    source = customers(tmp_path / "in.csv", 400)
    bs.enrich(source, engine="batch", base_url=url, concurrency=1, **(QUICK | {"chunk": 50}))
    assert service.most_in_flight == 1


def test_a_key_file_may_lie_at_home(service: FakeService, url: str, run: Run, tmp_path: Path) -> None:
    """As a Windows editor leaves it, and named from the home folder where no shell expands it."""
    (tmp_path / "key").write_bytes(b"\xef\xbb\xbf" + KEY.encode() + b"\r\n")
    at_home = {"HOME": str(tmp_path), "BANSONG_API_KEY": "", "BANSONG_API_KEY_FILE": "~/key"}
    assert run("me", env=at_home).returncode == 0
