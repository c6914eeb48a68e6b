"""The server that asks the tax authority: within a budget, in bounded time, and what was told is kept."""

from __future__ import annotations

import json
import logging
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import httpx
import polars as pl
import pytest

import bansong as bs
from bansong.base.options import StatusOptions
from bansong.errors import StoreError
from bansong.reference.nts import NtsKey
from bansong.reference.status_store import StatusStore
from bansong.server import job_files as results
from bansong.server import jobs as worker
from bansong.server.erasure import open_stopped_server
from bansong.server.settings import as_text
from bansong.server.statuses import FAILURES, PAUSES_S, WAIT_S, CircuitBreaker
from bansong.testing import NTS_FAULTS, FakeNts, Fault, Hang, Status, serve
from bansong.testing.faults import Act
from bansong.testing.messages import FakeReply, FakeRequest
from handclock import HandClock
from serving import HTTP, Served, ServedProcess, make_key, read_here, served

KEY = "kEy+of/the=portal%2Bwith+all"
NUMBER, OTHER, THIRD = "1248100998", "2208162517", "1208800767"
TODAY = "2026-11-20"
"""The day of a :class:`HandClock`."""


@dataclass
class Asking:
    """A server that asks a fake of the tax authority."""

    server: Served
    fake: FakeNts
    hand: HandClock
    key: str

    @property
    def statuses(self) -> Any:
        return self.server.app.state.context.statuses

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        return HTTP.request(method, self.server.url + path, headers={"X-API-Key": self.key}, **more)

    def verify(self, number: str = NUMBER, query: str = "", **more: Any) -> dict[str, Any]:
        reply = self.ask("POST", f"/verify{query}", json={"b_no": number, **more})
        assert reply.status_code == 200, reply.text
        found: dict[str, Any] = reply.json()
        return found

    def status(self, number: str = NUMBER, query: str = "") -> str:
        """The reason that says the status."""
        return str(self.verify(number, query)["reasons"][0])

    def batch(self, numbers: list[str], query: str = "") -> list[dict[str, Any]]:
        """The results of a job of these numbers, in their order."""
        file = ("a.csv", "\n".join(["사업자등록번호", *numbers, ""]).encode())
        reply = self.ask("POST", f"/batch{query}", files={"file": file})
        assert reply.status_code == 200, reply.text
        job = reply.json()["job_id"]
        state: dict[str, Any] = {}
        until(lambda: state.update(self.job(job, len(numbers))) or state["status"] in ("done", "failed"))
        assert state["status"] == "done", state
        return sorted(state["results"], key=lambda row: row["row_id"])

    def job(self, job: str, preview: int) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("GET", f"/batch/{job}", params={"preview": preview}).json()
        return found


def until(holds: Any, seconds: float = 120.0) -> None:
    give_up = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < give_up, "it did not come to hold"
        time.sleep(0.005)


def fresh(number: int) -> str:
    """One of many numbers."""
    return f"{3_000_000_000 + number}"


@contextmanager
def asking(
    tmp_path: Path,
    fake: FakeNts | None = None,
    *,
    registry: Path | None = None,
    notices: Path | None = None,
    **options: Any,
) -> Iterator[Asking]:
    """Serve, with the fake in the place of the tax authority, and a clock that stands still."""
    fake, hand = fake or FakeNts(NtsKey(KEY).reveal()), HandClock()
    with serve(fake) as url:
        status = StatusOptions(**{"source": "nts", "key": NtsKey(KEY), "base_url": url, "timeout": 20.0} | options)
        with served(tmp_path / "db.sqlite", hand.clock, status=status, registry=registry, notices=notices) as server:
            yield Asking(server, fake, hand, server.key())
            fake.faults.release()


def known(**statuses: str) -> FakeNts:
    """A fake that knows ``n1248100998="closed"``; all other businesses are active."""
    return FakeNts(NtsKey(KEY).reveal(), {name[1:]: status for name, status in statuses.items()}, default="active")


def build_registry(folder: Path, day: str = "2026-10-31", **statuses: str) -> Path:
    """A registry of a day (``n1248100998="계속사업자"``)."""
    lines = [f"{name[1:]},{status},{day}" for name, status in statuses.items()]
    source, built = folder / "source.csv", folder / "registry.parquet"
    source.write_text("\n".join(["사업자등록번호,사업자상태,기준일자", *lines, ""]), "utf-8")
    bs.build_registry([source], built)
    return built


# ------------------------------------------------------------------------------------------------- single lookups


def test_a_lookup_asks_and_says_so(tmp_path: Path) -> None:
    """The status comes from the tax authority, and its reason says that and the day."""
    with asking(tmp_path, known(n1248100998="closed")) as it:
        answer = it.verify()
        assert answer["biz_status"] == "closed"
        assert f"(nts, {TODAY})" in answer["reasons"][0]
        assert it.fake.asks == {NUMBER: 1}


def test_a_fresh_status_asks_nobody(tmp_path: Path) -> None:
    """Asked again, also after a restart, a status is the stored one until it is too old."""
    fake = known(n1248100998="closed")
    with asking(tmp_path, fake) as it:
        assert [it.verify()["biz_status"] for _ in range(3)] == ["closed"] * 3
        it.hand.forward(days=30)
        assert it.verify()["biz_status"] == "closed"
        assert fake.calls == 1
    with asking(tmp_path, fake) as it:
        it.verify()
        assert fake.calls == 1
        it.hand.forward(days=31)
        fake.statuses = {}
        assert it.verify()["biz_status"] == "active"
        assert fake.calls == 2


def test_a_kept_answer_does_not_outlive_a_newer_status(tmp_path: Path) -> None:
    """A status that a job fetched counts in the next lookup, whatever that was answered before."""
    with asking(tmp_path, known(), max_age=0) as it:
        assert it.verify()["biz_status"] == "active"
        it.fake.statuses = {NUMBER: "closed"}
        assert it.verify()["biz_status"] == "active"
        it.hand.forward(days=1)
        assert it.batch([NUMBER])[0]["biz_status"] == "closed"
        answer = it.verify()
        assert (answer["biz_status"], it.fake.asks[NUMBER]) == ("closed", 2)
        assert "(nts, 2026-11-21)" in answer["reasons"][0]


def test_another_process_may_store_a_newer_status(tmp_path: Path) -> None:
    """What is remembered is looked up again after a minute: the file may know better by then."""
    with asking(tmp_path, known()) as it:
        assert it.verify()["biz_status"] == "active"
        row = {"b_no": int(NUMBER), "biz_status": "closed", "as_of": date(2026, 11, 20)}
        with StatusStore(tmp_path / "db.sqlite.files" / "statuses.sqlite") as store:
            store.write(pl.DataFrame([row], schema=store.read().schema))
        assert it.verify()["biz_status"] == "active"
        it.hand.forward(seconds=61)
        assert it.verify()["biz_status"] == "closed"
        assert it.fake.calls == 1


def test_offline_asks_nobody(tmp_path: Path) -> None:
    """With offline=true the registry alone answers, in /verify and in a batch; other words are refused."""
    with asking(
        tmp_path, known(n1248100998="closed"), registry=build_registry(tmp_path, n1248100998="계속사업자")
    ) as it:
        assert "(registry, 2026-10-31)" in it.status(query="?offline=true")
        assert "(registry, 2026-10-31)" in it.batch([NUMBER], "?offline=1")[0]["reasons"][0]
        assert it.fake.calls == 0
        assert f"(nts, {TODAY})" in it.status(query="?offline=false")
        assert it.ask("POST", "/verify?offline=maybe", json={"b_no": NUMBER}).status_code == 400


def test_offline_belongs_to_the_request(tmp_path: Path) -> None:
    """One Idempotency-Key is not for the same lookup with and without it."""
    with asking(tmp_path, known()) as it:
        headers = {"X-API-Key": it.key, "Idempotency-Key": "once"}
        replies = [
            HTTP.post(f"{it.server.url}/verify{query}", json={"b_no": NUMBER}, headers=headers).status_code
            for query in ("", "?offline=true", "?offline=false")
        ]
        assert replies == [200, 409, 200]


def test_offline_without_a_source_changes_nothing(tmp_path: Path) -> None:
    """A server that asks nobody answers both alike."""
    with served(tmp_path / "db.sqlite") as server:
        key = {"X-API-Key": server.key()}
        replies = [
            HTTP.post(f"{server.url}/verify{query}", json={"b_no": NUMBER}, headers=key)
            for query in ("", "?offline=true")
        ]
        assert replies[0].json() == replies[1].json()


def test_lookups_at_the_same_time_share_calls(tmp_path: Path) -> None:
    """Fifty lookups at once are a few calls, each number in one of them, and each has its own status."""
    fake = known(**{f"n{fresh(number)}": "closed" for number in range(0, 50, 2)})
    fake.latency = 0.1
    with asking(tmp_path, fake) as it, ThreadPoolExecutor(50) as pool:
        found = list(pool.map(lambda number: it.verify(fresh(number))["biz_status"], range(50)))
        assert found == ["closed", "active"] * 25
        assert fake.numbers == 50
        assert fake.calls <= 8


def test_the_same_number_at_the_same_time_is_asked_once(tmp_path: Path) -> None:
    """Lookups of one business share its number in a call."""
    fake = known()
    fake.latency = 0.2
    with asking(tmp_path, fake) as it, ThreadPoolExecutor(8) as pool:
        it.verify(OTHER)
        assert {row["biz_status"] for row in pool.map(lambda _: it.verify(), range(8))} == {"active"}
        assert fake.asks[NUMBER] == 1


def test_a_call_that_hangs_delays_nobody_for_long_and_is_used_when_it_answers(tmp_path: Path) -> None:
    """After two seconds the registry answers, with its day; what the call brings later is the next answer."""
    fake = known(n1248100998="closed")
    fake.faults.add(Fault("status", Hang(paid=True), at=1))
    with (
        asking(tmp_path, fake, registry=build_registry(tmp_path, n1248100998="계속사업자")) as it,
        ThreadPoolExecutor() as pool,
    ):
        waiting = pool.submit(it.status)
        until(lambda: fake.in_flight == 1)
        assert not waiting.done()
        it.hand.until(waiting.done, seconds=WAIT_S / 4)
        assert "active (registry, 2026-10-31)" in waiting.result()
        fake.faults.release()
        until(lambda: fake.in_flight == 0)
        until(lambda: "closed" in it.status())
        assert fake.calls == 1


def test_the_loop_goes_on_while_a_call_hangs(tmp_path: Path) -> None:
    """Other requests are answered meanwhile, a lookup whose status is stored among them."""
    fake = known()
    with asking(tmp_path, fake) as it, ThreadPoolExecutor() as pool:
        it.verify(OTHER)
        fake.faults.add(Fault("status", Hang(paid=True)))
        waiting = pool.submit(it.verify)
        until(lambda: fake.in_flight == 1)
        assert it.ask("GET", "/me").status_code == 200
        assert it.verify(OTHER)["biz_status"] == "active"
        assert not waiting.done()
        fake.faults.release()
        assert waiting.result()["biz_status"] == "active"


def test_after_failures_nobody_waits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """After three failures nobody is asked for a pause; then one call tries, and the log has a line of each change."""
    fake = known(n1248100998="closed")
    fake.faults.add(Fault("status", NTS_FAULTS["page_503"]))
    with caplog.at_level(logging.INFO, "bansong.server.statuses"), asking(tmp_path, fake) as it:
        assert [it.verify(fresh(number))["biz_status"] for number in range(10)] == ["unknown"] * 10
        assert fake.calls == FAILURES
        it.hand.forward(seconds=PAUSES_S[0] + 1)
        assert [it.verify(fresh(number))["biz_status"] for number in range(3)] == ["unknown"] * 3
        assert fake.calls == FAILURES + 1
        fake.faults.clear()
        it.hand.forward(seconds=PAUSES_S[0] + 1)
        assert it.verify()["biz_status"] == "unknown"
        it.hand.forward(seconds=PAUSES_S[1])
        assert it.verify()["biz_status"] == "closed"
        assert it.verify(OTHER)["biz_status"] == "active"
    said = [
        record.getMessage()
        for record in caplog.records
        if "not asked" in record.getMessage() or "again" in record.getMessage()
    ]
    assert ["5 s" in said[0], "30 s" in said[1], "answers again" in said[2]] == [True] * 3
    assert len(said) == 3


def test_a_key_that_is_refused_is_not_tried_again_and_again(tmp_path: Path) -> None:
    """A wrong key is the same for the next call: the first one opens the circuit."""
    with asking(tmp_path, FakeNts("another-key")) as it:
        assert [it.verify(fresh(number))["biz_status"] for number in range(5)] == ["unknown"] * 5
        assert it.fake.calls == 1


def test_in_an_outage_the_newest_that_is_stored_answers(tmp_path: Path) -> None:
    """A status that is too old is better than none, and its reason says how old it is."""
    with asking(tmp_path, known(n1248100998="closed")) as it:
        it.verify()
        it.hand.forward(days=40)
        it.fake.faults.add(Fault("status", NTS_FAULTS["overloaded"]))
        answer = it.verify()
        assert answer["biz_status"] == "closed"
        assert f"(nts, {TODAY}, 40 days old)" in answer["reasons"][0]


def test_the_day_limit_is_heeded_until_midnight_in_seoul(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """After code 22 nobody is asked on that day, by a restarted server neither."""
    fake = known()
    fake.daily_limit = 1
    with asking(tmp_path, fake) as it:
        assert [it.verify(number)["biz_status"] for number in (NUMBER, OTHER, THIRD)] == [
            "active",
            "unknown",
            "unknown",
        ]
        assert fake.calls == 2
    with caplog.at_level(logging.WARNING, "bansong.server.statuses"), asking(tmp_path, fake) as it:
        it.hand.forward(hours=11)
        assert it.verify(OTHER)["biz_status"] == "unknown"
        assert fake.calls == 2
        assert "2026-11-21T00:00:00+09:00" in caplog.records[0].getMessage()
        fake.start_day()
        it.hand.forward(hours=1)
        assert it.verify(OTHER)["biz_status"] == "active"


def test_one_budget_a_day_for_all(tmp_path: Path) -> None:
    """Lookups, jobs and the watch list ask for no more numbers a day than the budget; the next day has its own."""
    fake = known()
    with asking(tmp_path, fake, budget=150) as it, ThreadPoolExecutor(20) as pool:
        job = pool.submit(it.batch, [fresh(number) for number in range(1000, 1110)])
        list(pool.map(lambda number: it.verify(fresh(number)), range(20)))
        statuses = [row["biz_status"] for row in job.result()]
        it.batch([fresh(number) for number in range(2000, 2100)])
        assert fake.numbers <= 150
        assert statuses.count("active") + 20 <= 150
        calls = fake.calls
        assert it.verify(fresh(3000))["biz_status"] == "unknown"
        assert fake.calls == calls
        it.hand.forward(hours=12)
        assert it.verify(fresh(3000))["biz_status"] == "active"


def test_a_number_without_an_answer_is_not_asked_for_ever(tmp_path: Path) -> None:
    """A number that replies leave out is asked three times a day."""
    fake = known()
    fake.faults.add(Fault("status", NTS_FAULTS["fewer"]))
    with asking(tmp_path, fake) as it:
        assert [it.verify()["biz_status"] for _ in range(6)] == ["unknown"] * 6
        assert fake.calls == 3


# ------------------------------------------------------------------------------------------------------------ jobs


@dataclass(frozen=True)
class RefusedNumber(Act):
    """A refusal of each call that holds one number."""

    number: str

    async def before(self, request: FakeRequest) -> FakeReply | None:
        refused = self.number.encode() in await request.body()
        return await NTS_FAULTS["malformed"].before(request) if refused else None


@pytest.mark.parametrize("fault", ["too_large", "bad_json", "malformed"])
def test_a_refused_call_is_halved(tmp_path: Path, fault: str) -> None:
    """One refusal costs a job no status, and opens no pause."""
    with asking(tmp_path, known()) as it:
        it.fake.faults.add(Fault("status", NTS_FAULTS[fault], at=1))
        assert {row["biz_status"] for row in it.batch([fresh(place) for place in range(150)])} == {"active"}
        assert it.verify()["biz_status"] == "active"


def test_a_number_that_is_always_refused_costs_itself_alone(tmp_path: Path) -> None:
    """It is not asked again on that day, and lookups go on."""
    with asking(tmp_path, known()) as it:
        it.fake.faults.add(Fault("status", RefusedNumber(OTHER)))
        found = it.batch([NUMBER, OTHER, *(fresh(place) for place in range(98))])
        assert [row["biz_status"] for row in found].count("active") == 99
        assert found[1]["biz_status"] == "unknown"
        calls = it.fake.calls
        assert it.verify(OTHER)["biz_status"] == "unknown"
        assert it.fake.calls == calls
        assert it.verify(THIRD)["biz_status"] == "active"


def test_an_api_that_refuses_everything_is_left_alone(tmp_path: Path) -> None:
    with asking(tmp_path, known()) as it:
        it.fake.faults.add(Fault("status", NTS_FAULTS["bad_json"]))
        assert {row["biz_status"] for row in it.batch([fresh(place) for place in range(100)])} == {"unknown"}
        calls = it.fake.calls
        assert calls < 20
        assert it.verify()["biz_status"] == "unknown"
        assert it.fake.calls == calls


def test_a_job_fetches_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each number of a job is asked once, a hundred a call; what is stored is not asked; rows that are none are not."""
    read_here(monkeypatch)
    numbers = [fresh(number) for number in range(450)]
    fake = known(**{f"n{numbers[7]}": "closed", f"n{NUMBER}": "suspended"})
    with asking(tmp_path, fake) as it:
        it.verify(numbers[0])
        rows = it.batch([*numbers, NUMBER, numbers[3], "12-34"])
        assert [rows[7]["biz_status"], rows[450]["biz_status"], rows[3]["biz_status"]] == [
            "closed",
            "suspended",
            "active",
        ]
        assert rows[452]["error"]
        assert f"(nts, {TODAY})" in rows[7]["reasons"][0]
        assert (fake.numbers, fake.asked_again) == (451, 0)
        assert fake.calls <= 1 + 1 + 4


def test_what_is_not_paid_for_asks_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With paid=false nothing is looked up, stored statuses neither."""
    read_here(monkeypatch)
    with asking(tmp_path, known(n1248100998="closed")) as it:
        it.verify()
        assert it.batch([NUMBER, OTHER], "?paid=false")[0]["biz_status"] == "unknown"
        assert it.fake.calls == 1


def test_a_job_in_an_outage_is_answered_by_the_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused key ends no job: its rows say that their status is the registry's, and its day."""
    read_here(monkeypatch)
    registry = build_registry(tmp_path, n1248100998="폐업자")
    with asking(tmp_path, FakeNts("another-key"), registry=registry) as it:
        rows = it.batch([NUMBER, OTHER])
        assert [row["biz_status"] for row in rows] == ["closed", "unknown"]
        assert "(registry, 2026-10-31)" in rows[0]["reasons"][0]
        it.batch([NUMBER])
        assert it.fake.calls == 1


def test_a_stop_does_not_wait_for_a_job_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped while it fetches, a server keeps what was told; started again, the job goes on and asks for the rest."""
    read_here(monkeypatch)
    fake = known()
    fake.faults.add(Fault("status", Hang(), when=lambda _: fake.calls > 5))
    numbers = [fresh(number) for number in range(2000)]
    with asking(tmp_path, fake, concurrency=1) as it:
        file = ("a.csv", "\n".join(["사업자등록번호", *numbers, ""]).encode())
        job = it.ask("POST", "/batch", files={"file": file}).json()["job_id"]
        key = it.key
        until(lambda: fake.calls >= 6)
    fake.faults.clear()
    with asking(tmp_path, fake, rate=1000) as it:
        it.key = key
        until(lambda: it.job(job, 0)["status"] == "done")
        assert fake.numbers == 2000 + fake.asked_again
        assert fake.asked_again == 0
        assert set(fake.asks) == set(numbers)


def test_a_job_that_is_deleted_while_it_asks_stays_paid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tax authority is being asked for is not given back: uploads and deletions would spend the day's numbers.

    Rows that are no number, and slices that were not begun, are given back.
    """
    read_here(monkeypatch)
    for module in (worker, results):
        monkeypatch.setattr(module, "ROWS", 300)
    fake = known()
    fake.faults.add(Fault("status", Hang(), when=lambda _: fake.calls > 2))
    with asking(tmp_path, fake, concurrency=1) as it:
        file = ("a.csv", "\n".join(["b_no", "12-34", *(fresh(number) for number in range(500)), ""]).encode())
        job = it.ask("POST", "/batch", files={"file": file}).json()["job_id"]
        until(lambda: fake.calls > 2)
        fake.faults.release()
        assert it.ask("DELETE", f"/batch/{job}").json()["given_back"] == 501 - 299
        assert it.ask("GET", "/me").json()["quota"]["used"] == 299


# -------------------------------------------------------------------------------------------------- the watch list


def watched(it: Asking) -> dict[str, dict[str, Any]]:
    found = it.ask("GET", "/watch").json()["watches"]
    return {entry["biz_no"]: entry for entry in found}


def closures(tmp_path: Path) -> list[str]:
    path = tmp_path / "closures.jsonl"
    notices = [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []
    return [notice["biz_no"] for notice in notices if notice["event"] == "closure"]


def recheck(it: Asking, numbers: list[str]) -> None:
    """Let a day pass, and wait until all are checked."""
    it.hand.forward(days=1)
    due = it.hand.seconds
    it.hand.until(lambda: all(entry["next_check_at"] > as_iso(due) for entry in watched(it).values()), seconds=5)
    assert set(watched(it)) == set(numbers)


def as_iso(seconds: float) -> str:
    return as_text(seconds) or ""


def test_the_watch_list_asks_for_what_is_due(tmp_path: Path) -> None:
    """A re-check asks once a day, however old a status may be elsewhere: a closure is told on the day it is known."""
    fake = known()
    with asking(tmp_path, fake, notices=tmp_path / "closures.jsonl") as it:
        numbers = [fresh(number) for number in range(120)]
        for number in numbers:
            it.ask("POST", "/watch", json={"biz_no": number})
        it.hand.forward(days=1)
        it.hand.until(lambda: all(entry["checked_at"] for entry in watched(it).values()), seconds=1)
        assert {entry["biz_status"] for entry in watched(it).values()} == {"active"}
        assert fake.numbers == 120
        fake.statuses, calls = {numbers[3]: "closed"}, fake.calls
        recheck(it, numbers)
        assert watched(it)[numbers[3]]["biz_status"] == "closed"
        it.hand.until(lambda: closures(tmp_path) == [numbers[3]], seconds=1)
        assert fake.numbers == 240
        assert fake.calls - calls <= 10


def test_an_outage_closes_and_opens_nobody(tmp_path: Path) -> None:
    """While nobody can be asked, an older registry says nothing that the tax authority did not contradict before."""
    fake, notices = known(n1248100998="closed"), tmp_path / "closures.jsonl"
    registry = build_registry(tmp_path, n1248100998="계속사업자", n2208162517="폐업자")
    with asking(tmp_path, fake, registry=registry, notices=notices) as it:
        for number in (NUMBER, OTHER):
            it.ask("POST", "/watch", json={"biz_no": number})
        it.hand.forward(days=1)
        it.hand.until(lambda: all(entry["checked_at"] for entry in watched(it).values()), seconds=1)
        fake.faults.add(Fault("status", NTS_FAULTS["unavailable"]))
        for _ in range(2):
            recheck(it, [NUMBER, OTHER])
            assert [watched(it)[number]["biz_status"] for number in (NUMBER, OTHER)] == ["closed", "active"]
            assert watched(it)[NUMBER]["closed_at"] is not None
        fake.faults.clear()
        recheck(it, [NUMBER, OTHER])
        assert closures(tmp_path) == []


# ------------------------------------------------------------------------------------------- kills, keys, forgetting


def process(tmp_path: Path, url: str, *more: object) -> ServedProcess:
    env = {"BANSONG_NTS_KEY": KEY, "BANSONG_NTS_URL": url, "BANSONG_LOG": "debug"}
    return ServedProcess(tmp_path / "db.sqlite", "--status", "nts", *more, env=env)


def test_a_killed_server_loses_no_status_that_it_answered_with(tmp_path: Path) -> None:
    """Killed at any moment, what was told is stored: nothing of it is asked again, and no log or file has the key."""
    fake = known(**{f"n{fresh(number)}": "closed" for number in range(5)})
    with serve(fake) as url:
        server = process(tmp_path, url)
        for kill in range(3):
            base = server.start()
            key = {"X-API-Key": make_key(server.db)}
            for number in range(kill, kill + 3):
                reply = HTTP.post(f"{base}/verify", json={"b_no": fresh(number)}, headers=key)
                assert reply.json()["biz_status"] == "closed", server.state()
            server.kill()
        assert (fake.numbers, fake.asked_again) == (5, 0)
        assert all(NtsKey(KEY).reveal() not in path for path in fake.urls)
        written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()] + [server.state().encode()]
        for form in {KEY, NtsKey(KEY).reveal(), *NtsKey(KEY)._forms}:
            assert not [found for found in written if form.encode() in found]
        stores = [path for path in tmp_path.rglob("statuses.sqlite") if path.stat().st_mode & 0o777 == 0o600]
        assert stores == [tmp_path / "db.sqlite.files" / "statuses.sqlite"]


def test_the_log_counts_and_names_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Once a minute the log says how much was asked; numbers of businesses and the key are in no line."""
    fake = known()
    with caplog.at_level(logging.DEBUG, "bansong"), asking(tmp_path, fake, budget=100) as it:
        it.batch([NUMBER, OTHER])
        it.verify(THIRD)
        fake.faults.add(Fault("status", NTS_FAULTS["unregistered_key"]))
        it.verify(fresh(1))
        it.hand.until(lambda: any("calls: 3" in record.getMessage() for record in caplog.records), seconds=61)
    said = [record.getMessage() for record in caplog.records if record.name.startswith("bansong.server.statuses")]
    assert any("numbers asked: 4, answered: 3, left of the day's budget: 96" in line for line in said)
    text = "\n".join(record.getMessage() for record in caplog.records)
    for secret in (NUMBER, OTHER, THIRD, fresh(1), KEY, NtsKey(KEY).reveal()):
        assert secret not in text


def test_a_server_without_a_key_does_not_start(tmp_path: Path) -> None:
    """It says which variable and which option are missing, before it takes a request."""
    server = ServedProcess(tmp_path / "db.sqlite", "--status", "nts", env={"BANSONG_NTS_KEY": ""})
    with pytest.raises(RuntimeError, match=r"BANSONG_NTS_KEY .*BANSONG_NTS_KEY_FILE"):
        server.start()


def test_who_asks_nobody_has_no_store(tmp_path: Path) -> None:
    """Without `--status nts` nothing is made beside the server's file that was not there before."""
    with served(tmp_path / "db.sqlite") as server:
        assert server.app.state.context.statuses is None
        assert not list(tmp_path.rglob("statuses*"))


def test_forgetting_reaches_the_servers_statuses(tmp_path: Path) -> None:
    """`bansong forget --server` erases what was told of a number, too."""
    with asking(tmp_path, known()) as it:
        it.verify(NUMBER)
        it.verify(OTHER)
    with open_stopped_server(tmp_path / "db.sqlite") as erasure:
        assert erasure.holdings([NUMBER])["statuses"] == 1
        erasure.erase([NUMBER])
        assert erasure.holdings([NUMBER])["statuses"] == 0
        assert erasure.holdings([OTHER])["statuses"] == 1


# ------------------------------------------------------------------------------------------------ the circuit breaker


def test_pauses_grow_and_a_success_ends_them() -> None:
    """Each trial that fails makes the next pause longer, up to the longest; one that succeeds closes the circuit."""
    hand = HandClock()
    breaker = CircuitBreaker("it", hand.clock)
    for _ in range(FAILURES):
        assert breaker.begin()
        breaker.record_failure("no")
    for pause in (*PAUSES_S, PAUSES_S[-1]):
        hand.forward(seconds=pause - 1)
        assert not breaker.begin()
        hand.forward(seconds=1)
        assert breaker.begin()
        assert not breaker.begin()
        breaker.record_failure("no")
    hand.forward(seconds=PAUSES_S[-1])
    assert breaker.begin()
    breaker.record_success()
    assert all(breaker.begin() for _ in range(3))


def test_failures_of_before_the_pause_do_not_prolong_it() -> None:
    """Calls that were under way when the circuit opened may fail, too: that is the same failure."""
    hand = HandClock()
    breaker = CircuitBreaker("it", hand.clock)
    for _ in range(FAILURES + 4):
        breaker.record_failure("no")
    hand.forward(seconds=PAUSES_S[0])
    assert breaker.begin()


def test_single_failures_open_nothing() -> None:
    """What fails now and then is asked on."""
    breaker = CircuitBreaker("it", HandClock().clock)
    for _ in range(10):
        breaker.record_failure("no")
        breaker.record_failure("no")
        assert breaker.begin()
        breaker.record_success()


def test_who_waits_for_a_status_delays_no_query(tmp_path: Path) -> None:
    """Queries wait a moment for lookups on their way, and not for those whose status is being asked for."""
    fake = known()
    with asking(tmp_path, fake) as it, ThreadPoolExecutor() as pool:
        it.verify(OTHER)
        fake.faults.add(Fault("status", Hang(paid=True)))
        waiting = pool.submit(it.verify)
        until(lambda: fake.in_flight == 1)
        answerer = it.server.app.state.context.lookups.answerer
        assert {queue.expected for _, queue in answerer._of_key.values()} == {0}
        fake.faults.release()
        waiting.result()
        until(lambda: {queue.expected for _, queue in answerer._of_key.values()} == {0})


def test_a_store_that_cannot_be_read_fails_no_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lookups and jobs are answered by the registry alone, and the log says what is wrong with the file."""

    def broken(*_: object) -> pl.DataFrame:
        raise StoreError("statuses.sqlite: is damaged")

    read_here(monkeypatch)
    registry = build_registry(tmp_path, n1248100998="폐업자")
    with asking(tmp_path, known(), registry=registry) as it:
        monkeypatch.setattr(it.statuses._store, "read", broken)
        monkeypatch.setattr(it.statuses._store, "stale", broken)
        assert it.verify()["biz_status"] == "closed"
        assert it.batch([NUMBER])[0]["biz_status"] == "closed"
        assert it.fake.calls == 0


def test_a_store_that_another_process_has_to_itself_holds_up_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """After two seconds lookups do without the store, the next ones at once; when it is free it is read again."""
    with asking(
        tmp_path, known(n1248100998="closed"), registry=build_registry(tmp_path, n1248100998="계속사업자")
    ) as it:
        assert it.verify()["biz_status"] == "closed"
        it.hand.forward(seconds=61)
        with closing(sqlite3.connect(tmp_path / "db.sqlite.files" / "statuses.sqlite")) as other:
            other.execute("BEGIN EXCLUSIVE")
            with ThreadPoolExecutor(2) as pool:
                waiting = pool.submit(it.verify), pool.submit(it.verify, OTHER)
                until(lambda: not [it.hand.forward(seconds=0.1)] or all(one.done() for one in waiting))
                assert [one.result()["biz_status"] for one in waiting] == ["closed", "unknown"]
            assert (
                it.verify(THIRD)["biz_status"] == "unknown"
            )  # the clock stands still: who waits for it waits for ever
            other.rollback()
        until(lambda: it.verify(THIRD)["biz_status"] == "active")
    assert "was not read within 2 s" in caplog.text


def test_a_full_disk_does_not_lift_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be counted in the store is counted all the same, for that day; lookups are answered by the reply."""

    def refuse(*_: object, **__: object) -> None:
        raise StoreError("the disk is full")

    with asking(tmp_path, known(), budget=3) as it:
        with monkeypatch.context() as full:
            full.setattr(StatusStore, "write", refuse)
            full.setattr(StatusStore, "take_numbers", refuse)
            assert [it.verify(fresh(n))["biz_status"] for n in range(5)] == ["active"] * 3 + ["unknown"] * 2
            assert len(it.fake.asks) == 3
        it.hand.forward(days=1)
        assert it.verify(fresh(5))["biz_status"] == "active"


def test_a_defect_in_a_trial_does_not_end_the_asking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a call raises counts as a failure; the next trial goes all the same."""

    async def defective(*_: object) -> None:
        raise ValueError("a defect")

    with asking(tmp_path, known()) as it:
        with monkeypatch.context() as patch:
            patch.setattr(it.statuses._client, "status", defective)
            assert [it.verify(fresh(number))["biz_status"] for number in range(4)] == ["unknown"] * 4
            it.hand.forward(seconds=PAUSES_S[0])
            assert it.verify(fresh(9))["biz_status"] == "unknown"
        it.hand.forward(seconds=PAUSES_S[1])
        assert it.verify()["biz_status"] == "active"


def test_a_call_that_hangs_holds_up_the_watch_list_once(tmp_path: Path) -> None:
    """The first call shows that more would hang: watches are judged by what is known when it is given up."""
    fake = known()
    fake.faults.add(Fault("status", Hang()))
    registry = build_registry(tmp_path, n1248100998="폐업자")
    with asking(tmp_path, fake, registry=registry, timeout=0.2) as it:
        it.ask("POST", "/watch", json={"biz_no": NUMBER})
        it.hand.forward(days=1)
        it.hand.until(lambda: bool(watched(it)[NUMBER]["checked_at"]), seconds=1)
        assert watched(it)[NUMBER]["biz_status"] == "closed"
        assert fake.calls <= FAILURES


def test_a_server_that_asks_nobody_any_more_opens_nobody(tmp_path: Path) -> None:
    """Started again without `--status nts`, its older registry says nothing about what was found out since."""
    registry, notices = build_registry(tmp_path, n1248100998="계속사업자"), tmp_path / "closures.jsonl"
    with asking(tmp_path, known(n1248100998="closed"), registry=registry, notices=notices) as it:
        it.ask("POST", "/watch", json={"biz_no": NUMBER})
        it.hand.forward(days=1)
        it.hand.until(lambda: bool(watched(it)[NUMBER]["checked_at"]), seconds=1)
        key, found = it.key, watched(it)[NUMBER]
    with asking(tmp_path, known(), registry=registry, notices=notices, source="none") as it:
        it.key = key
        recheck(it, [NUMBER])
        now = watched(it)[NUMBER]
        assert [now[name] for name in ("biz_status", "grade", "closed_at")] == [
            found[name] for name in ("biz_status", "grade", "closed_at")
        ]
        assert (now["biz_status"], it.fake.calls, closures(tmp_path)) == ("closed", 0, [])


def test_what_was_taken_and_not_asked_is_left_for_others(tmp_path: Path) -> None:
    """While the rest of the budget is taken lookups are not asked; when it is given back, before it is, they are."""
    with asking(tmp_path, known(), budget=100) as it:
        budget = it.statuses._budget
        assert budget.take(200) == 100
        assert it.verify()["biz_status"] == "unknown"
        assert not budget.is_spent()
        budget.give_back(100)
        assert it.verify()["biz_status"] == "active"
        assert budget.remaining() == 99


def test_other_processes_see_what_is_being_asked(tmp_path: Path) -> None:
    """A number under way counts for everybody with the same store: together nobody asks for more than the budget."""
    with asking(tmp_path, known(), budget=3) as it, ThreadPoolExecutor(1) as pool:
        it.fake.faults.add(Fault("status", Hang(paid=True), at=1))
        hanging = pool.submit(it.verify)
        until(lambda: it.fake.calls == 1)
        with StatusStore(tmp_path / "db.sqlite.files" / "statuses.sqlite") as other:
            account = it.statuses._budget.account
            assert other.take_numbers(account, date(2026, 11, 20), 5, 3) == 2
        it.fake.faults.clear()
        it.fake.faults.release()
        until(lambda: not [it.hand.forward(seconds=0.5)] or hanging.done())
        assert it.statuses._budget.remaining() == 0
        assert it.verify(OTHER)["biz_status"] == "unknown"
        assert it.fake.calls == 1


def test_a_pause_that_the_api_asks_for_is_kept(tmp_path: Path) -> None:
    """A 429 with a long Retry-After is a pause of that length, and not the day's limit."""
    fake = known()
    fake.faults.add(Fault("status", Status(429, retry_after=600), at=1))
    with asking(tmp_path, fake) as it:
        assert [it.verify(fresh(number))["biz_status"] for number in range(3)] == ["unknown"] * 3
        it.hand.forward(seconds=599)
        assert it.verify()["biz_status"] == "unknown"
        assert fake.calls == 1
        it.hand.forward(seconds=1)
        assert it.verify()["biz_status"] == "active"
