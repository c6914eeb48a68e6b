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
from bansong.purchase.ledger import Ledger
from bansong.testing import HTML, Body, Delay, FakeService, Fault, Hang, Huge, Partial, Reset, Status
from conftest import SAMPLE, write
from customers import KEY, QUICK, answers, customers, numbers

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def service() -> FakeService:
    return FakeService(KEY, quota=1000)


def test_the_whole_story_on_the_command_line(service: FakeService, url: str, run: Run, tmp_path: Path) -> None:
    customers(tmp_path / "in.csv", 30, repeats=3)
    assert "remaining   1,000" in run("me").stdout
    planned = run("plan", "in.csv", "--engine", "verify")
    assert (planned.returncode, service.paid_total) == (0, 0)
    assert "30 of 30 missing lookups" in planned.stderr
    report = json.loads(run("enrich", "in.csv", "--engine", "verify", "--rate", "500/s", "--json").stdout)
    assert report["lookups"] == {"planned": 30, "paid": 30, "cached": 0, "saved": 3}
    assert report["quota"] == {"before": 1000, "after": 970}
    assert sum(report["biz_status"].values()) == report["row_status"]["verified"] == 33
    assert report["biz_status"]["other"] > 0, "the service has words of its own"
    again = run("enrich", "in.csv", "--engine", "batch")
    assert again.returncode == 0
    assert "paid            0 of 0 chosen lookups, 30 in the ledger" in again.stderr
    ledger = run("ledger").stdout
    assert "in all" in ledger
    assert [line.split()[2:5] for line in ledger.splitlines()[1:3]] == [["verify", "30", "30"], ["batch", "0", "0"]]
    assert numbers(1)[0] in run("ledger", "--number", numbers(1)[0]).stdout
    assert json.loads(run("ledger", "--purge", "0", "--json").stdout)["purged"]["lookups"] == 30
    assert run("ledger", "--purge", "nan").returncode == 2


def test_one_business_is_asked_once(service: FakeService, url: str, run: Run) -> None:
    ask = ("verify", "124-81-00998", "--engine", "verify", "--json")
    assert [json.loads(run(*ask).stdout)["row_status"] for _ in range(2)] == ["verified", "cached"]
    assert service.paid_total == 1
    assert run("verify", "1248100997", "--engine", "verify").returncode == 2
    service.faults.add(Fault("verify", Status(500)))
    doubtful = run("verify", "220-81-62517", "--engine", "verify")
    assert doubtful.returncode == 3
    assert "in_doubt" in doubtful.stdout


def test_a_doubt_is_settled_by_hand_and_what_was_given_up_can_be_bought_after_all(
    service: FakeService, url: str, run: Run, tmp_path: Path
) -> None:
    customers(tmp_path / "in.csv", 8)
    enrich = ("enrich", "in.csv", "--engine", "verify", "--concurrency", "1")
    service.faults.add(Fault("verify", Reset("after"), at=1))
    assert [run(*enrich).returncode for _ in range(2)] == [3, 3]
    assert service.paid_total == 8
    listed = run("resolve", "--json")
    (doubt,) = json.loads(listed.stdout)["unsettled"]
    assert listed.stderr == ""
    assert run("resolve").stdout.splitlines()[-2] == "unsettled: 1 lookup in 1 request"
    assert run("resolve", "--all", "--lost").stdout == "1 lookup: taken as lost\n"
    assert run("resolve", "--all", "--resend").stdout == "nothing is unsettled\n"
    assert json.loads(run(*enrich, "--json").stdout)["row_status"]["failed"] == 1
    lost = run("ledger", "--number", numbers(1)[0]).stdout.split()[0]
    assert lost == doubt["id"]
    assert run("resolve", lost, "--resend").returncode == 0
    assert json.loads(run(*enrich, "--json").stdout)["row_status"]["verified"] == 1
    assert service.paid_total == 9


def test_an_upload_in_doubt_is_found_again_by_its_job(service: FakeService, url: str, run: Run, tmp_path: Path) -> None:
    customers(tmp_path / "in.csv", 10)
    service.faults.add(Fault("batch", Reset("after"), at=1), Fault("job", Partial(0.6)))
    assert run("enrich", "in.csv", "--engine", "batch").returncode == 3
    (doubt,) = json.loads(run("resolve", "--json").stdout)["unsettled"]
    assert (doubt["kind"], doubt["rows"]) == ("upload", 10)
    assert run("resolve", doubt["id"], "--job", next(iter(service.jobs))).returncode == 0
    for _ in range(2):
        done = run("enrich", "in.csv", "--engine", "batch", "--json")
        states = json.loads(done.stdout)["row_status"]
        assert (done.returncode, states["cached"], states["failed"]) == (3, 6, 4)
    listed = run("resolve").stdout
    assert "missing" in listed
    assert "4 lookups" in listed
    assert service.paid_total == 10


BAD: list[tuple[dict[str, str], list[str]]] = [
    ({"BANSONG_API_KEY": ""}, []),
    ({"BANSONG_API_KEY": f"{KEY}\nx"}, []),
    ({}, ["--key-file", "empty"]),
    ({"BANSONG_BASE_URL": ""}, []),
    ({}, ["--base-url", "api.example.com"]),
    ({}, ["--base-url", "http://api.example.com"]),
    ({}, ["--base-url", "https://me:secret@api.example.com"]),
    ({}, ["--budget", "-1"]),
    ({}, ["--rate", "0"]),
    ({}, ["--rate", "fast"]),
    ({}, ["--concurrency", "0"]),
    ({}, ["--priority", "매출"]),
    ({}, ["--priority", "상호"]),
    ({}, ["--paid"]),
    ({}, ["--ledger", "nowhere/ledger.sqlite"]),
    ({}, ["--ledger", "in.csv"]),
    ({}, ["--ledger", "mine.sqlite", "-o", "mine.sqlite"]),
]


def test_bad_input_is_one_clear_line_and_costs_nothing(
    service: FakeService, url: str, run: Run, tmp_path: Path
) -> None:
    customers(tmp_path / "in.csv", 3)
    write(tmp_path / "empty", "\n")
    for environment, arguments in BAD:
        done = run("enrich", "in.csv", "--engine", "verify", *arguments, env=environment)
        said = [line for line in done.stderr.splitlines() if line.startswith(("bansong:", "Error:"))]
        assert (done.returncode, len(said)) == (2, 1), (environment, arguments, done.stderr)
        assert not any(word in done.stderr for word in ("Traceback", KEY, "secret"))
    assert service.requests.total() == service.requests["me"]
    assert not (tmp_path / "in.enriched.csv").exists()


def test_what_is_wrong_with_the_service_shows_before_anything_is_spent(
    service: FakeService, url: str, run: Run, tmp_path: Path
) -> None:
    customers(tmp_path / "in.csv", 3)
    for act, code, says in (
        (HTML, 3, "HTML"),
        (Huge(200_000_000), 3, "too large"),
        (Status(401), 4, "401"),
        (Status(403), 4, "403"),
        (Status(404), 2, "404"),
    ):
        service.faults.clear()
        service.faults.add(Fault("me", act))
        done = run("enrich", "in.csv", "--engine", "verify")
        assert (done.returncode, says in done.stderr.splitlines()[-1]) == (code, True), done.stderr
    assert service.paid_total == 0
    assert not (tmp_path / "in.enriched.csv").exists()


def test_a_key_that_is_revoked_in_the_middle_ends_the_run(
    service: FakeService, url: str, run: Run, tmp_path: Path
) -> None:
    customers(tmp_path / "in.csv", 30)
    service.faults.add(Fault("verify", Status(401), when=lambda _: service.paid_total >= 10))
    done = run("enrich", "in.csv", "--engine", "verify", "--rate", "1000")
    assert done.returncode == 4
    assert not (tmp_path / "in.enriched.csv").exists()
    service.faults.clear()
    report = json.loads(run("enrich", "in.csv", "--engine", "verify", "--rate", "1000", "--json").stdout)
    assert report["row_status"]["cached"] == report["lookups"]["cached"] >= 10
    assert service.paid_again == 0


def test_a_cancelled_run_settles_what_is_under_way(service: FakeService, url: str, tmp_path: Path) -> None:
    source = customers(tmp_path / "in.csv", 100)
    service.faults.add(Fault("verify", Delay(0.05)))

    async def cell() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: bs.aenrich(source, engine="verify", base_url=url, **QUICK))
            while service.paid_total < 10:
                await anyio.sleep(0.01)
            group.cancel_scope.cancel()

    anyio.run(cell)
    assert 0 < service.paid_total < 100
    service.faults.clear()
    report = bs.enrich(source, engine="verify", base_url=url, **QUICK)
    assert (report.counts["in_doubt"], service.paid_again) == (0, 0)
    assert len(answers(tmp_path / "in.enriched.csv")) == 100


def started(tmp_path: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bansong", *words]
    return subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def until(true: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if true():
            return
        time.sleep(0.01)
    raise AssertionError("it never came to that")


@pytest.mark.process
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_process_settles_what_is_under_way(
    sent: signal.Signals, service: FakeService, url: str, run: Run, tmp_path: Path
) -> None:
    customers(tmp_path / "in.csv", 100)
    service.faults.add(Fault("verify", Delay(0.5)))
    with started(tmp_path, "enrich", "in.csv", "--engine", "verify") as process:
        until(lambda: service.paid_total > 20)
        process.send_signal(sent)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "lookups bought in this run, known to the ledger; the same command goes on" in said
    assert not (tmp_path / "in.enriched.csv").exists()
    paid = service.paid_total
    service.faults.clear()
    report = json.loads(run("enrich", "in.csv", "--engine", "verify", "--rate", "1000", "--json").stdout)
    assert report["row_status"] == {**report["row_status"], "cached": paid, "verified": 100 - paid, "in_doubt": 0}
    assert service.paid_again == 0


@pytest.mark.process
def test_a_second_interrupt_does_not_wait(service: FakeService, url: str, run: Run, tmp_path: Path) -> None:
    customers(tmp_path / "in.csv", 10)
    service.faults.add(Fault("verify", Hang(paid=True)))
    with started(tmp_path, "enrich", "in.csv", "--engine", "verify", "--concurrency", "3") as process:
        until(lambda: service.paid_total == 3)
        process.send_signal(signal.SIGINT)
        time.sleep(1)  # two that come before the process gets to run are one
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=25)
    assert process.returncode == 130
    service.faults.clear()
    service.faults.release()
    report = json.loads(run("enrich", "in.csv", "--engine", "verify", "--json").stdout)
    assert (report["row_status"]["in_doubt"], service.paid_again) == (3, 0)


@pytest.mark.process
@pytest.mark.parametrize("command", ["me", "enrich in.csv --engine batch"])
def test_an_interrupt_does_not_wait_for_what_costs_nothing(
    command: str, service: FakeService, url: str, run: Run, tmp_path: Path
) -> None:
    customers(tmp_path / "in.csv", 3)
    service.faults.add(Fault("me", Hang()))
    with started(tmp_path, *command.split()) as process:
        until(lambda: service.requests["me"] > 0)
        begun = time.monotonic()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130
    assert time.monotonic() - begun < 25, "the client would wait for 30 s"
    if command != "me":
        assert [one["outcome"] for one in json.loads(run("ledger", "--json").stdout)["runs"]] == ["interrupted"]


def test_it_buys_within_a_running_event_loop(service: FakeService, url: str, tmp_path: Path) -> None:
    source = customers(tmp_path / "in.csv", 20)

    async def cell() -> bs.Report:
        return bs.enrich(source, engine="verify", base_url=url, **QUICK)

    service.quota = 1
    with pytest.raises(QuotaError):
        anyio.run(lambda: bs.aenrich(source, engine="verify", base_url=url, **QUICK))
    token = CancelToken()
    token.cancel()
    with pytest.raises(StoppedError, match="0 lookups bought"):
        bs.enrich(source, engine="verify", base_url=url, cancel=token, budget=1, **QUICK)
    assert service.paid_total == 0
    service.quota = 100
    assert asyncio.run(cell()).counts["verified"] == 20
    assert anyio.run(lambda: bs.aenrich(source, engine="batch", base_url=url, **QUICK), backend="trio").exit_code == 0


def test_two_runs_do_not_share_a_ledger(service: FakeService, url: str, run: Run, tmp_path: Path) -> None:
    customers(tmp_path / "in.csv", 3)
    with Ledger.open():
        second = run("enrich", "in.csv", "--engine", "verify")
    assert (second.returncode, service.paid_total) == (2, 0)
    assert "is in use by another run" in second.stderr


@pytest.mark.parametrize("engine", ["verify", "batch"])
def test_the_key_is_nowhere_to_be_seen(
    engine: str, service: FakeService, url: str, run: Run, tmp_path: Path, state_directory: Path
) -> None:
    """Not in a log at its most talkative, the report, the manifest, the ledger, the output; not even if echoed."""
    customers(tmp_path / "in.csv", 10)
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


def test_a_key_of_a_file_at_home_cannot_be_shown_or_pickled(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_bytes(b"\xef\xbb\xbf" + KEY.encode() + b"\r\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("BANSONG_API_KEY")
    report = bs.enrich(customers(tmp_path / "in.csv", 3), engine="verify", base_url=url, key_file="~/key")
    key = bs.ApiKey(KEY)
    shown = (key, report, report._repr_html_(), json.dumps(report.as_dict()))
    assert not [one for one in shown if KEY in f"{one!r} {one!s}"]
    with pytest.raises(TypeError):
        pickle.dumps(key)


def test_the_local_engine_needs_no_service(run: Run, tmp_path: Path) -> None:
    customers(tmp_path / "in.csv", 3)
    without = {"BANSONG_API_KEY": "", "BANSONG_BASE_URL": "", "https_proxy": "http://127.0.0.1:9"}
    assert run("enrich", "in.csv", env=without).returncode == 0
    assert not list(Path(os.environ["BANSONG_STATE_DIR"]).glob("ledger*"))
    refused = run("enrich", "in.csv", "--budget", "5")
    assert refused.returncode == 2
    assert "--budget is for the engines verify, batch, hybrid, not for local" in refused.stderr


def test_progress_comes_to_its_end_whatever_becomes_of_a_lookup(service: FakeService, url: str, tmp_path: Path) -> None:
    service.faults.add(Fault("verify", Reset("after"), at=2), Fault("verify", Status(400), at=4))
    service.faults.add(Fault("job", Status(400), at=1))
    bs.enrich(customers(tmp_path / "other.csv", 5), engine="batch", base_url=url, **QUICK)
    for name, count, engine in (("in.csv", 10, "verify"), ("more.csv", 20, "batch")):
        seen: list[tuple[int, int]] = []
        source = customers(tmp_path / name, count)
        bs.enrich(source, engine=engine, base_url=url, progress=lambda *at, to=seen: to.append(at), **QUICK)
        totals = {total for _, total in seen}
        assert seen[0][0] == 0, "how much there is to do is known before the first is done"
        assert totals == {seen[-1][0]}, "one total, and it is reached"
        assert max(totals) >= len(seen) - 1, "no more steps than lookups"


def test_a_plan_says_what_enrich_would_do_about_the_quota(
    service: FakeService, url: str, run: Run, tmp_path: Path
) -> None:
    customers(tmp_path / "in.csv", 5)
    for quota, budget, chosen, said in ((3, (), 0, "--budget 3"), (3, ("--budget", "4"), 3, ""), (0, (), 0, "wait")):
        service.quota = quota
        planned = json.loads(run("plan", "in.csv", "--engine", "verify", "--json", *budget).stdout)
        assert (planned["purchase"]["wanted"], planned["purchase"]["chosen"]) == (5, chosen)
        assert said in "".join(planned["warnings"])
    assert "--budget" not in run("enrich", "in.csv", "--engine", "verify").stderr


def test_options_that_would_do_nothing_say_so(service: FakeService, url: str, tmp_path: Path) -> None:
    source = customers(tmp_path / "in.csv", 1)
    for unused in ({"zipcode": "04524"}, {"registry": SAMPLE / "registry.parquet"}):
        with pytest.raises(UsageError, match="for the local engine"):
            bs.verify(numbers(1)[0], engine="verify", base_url=url, **QUICK, **unused)
    given = bs.enrich(source, engine="batch", base_url=url, registry=SAMPLE / "registry.parquet", **QUICK)
    assert any("the registry answers nothing here" in warning for warning in given.warnings)


def test_a_frames_purchase_warns_of_what_a_report_would_say(service: FakeService, url: str, tmp_path: Path) -> None:
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
    source = customers(tmp_path / "in.csv", 100)
    bs.enrich(source, engine="batch", base_url=url, concurrency=1, **(QUICK | {"chunk": 20}))
    assert service.most_in_flight == 1
