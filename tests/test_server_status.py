"""The server that asks the tax authority: within a budget, in bounded time, and what was told is kept."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import bansong as bs
from bansong.base.options import StatusOptions
from bansong.errors import StoreError, UsageError
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
from serving import NUMBER, Account, hosted, read_here, wait_until

KEY = "kEy+of/the=portal%2Bwith+all"
OTHER, THIRD = "2208162517", "1208800767"
TODAY = "2026-11-20"  # of a HandClock
REGISTRY = "(registry, 2026-10-31)"


@dataclass(frozen=True)
class Asking(Account):
    """A key at a server that asks a fake of the tax authority."""

    fake: FakeNts
    hand: HandClock

    @property
    def statuses(self) -> Any:
        return self.server.context.statuses

    def word(self, number: str = NUMBER, query: str = "") -> str:
        answer = self.verify(number, query)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["biz_status"])

    def reason(self, number: str = NUMBER, query: str = "") -> str:
        """The reason that says the status."""
        return str(self.verify(number, query).json()["reasons"][0])

    def words(self, first: int, count: int) -> list[str]:
        """The statuses of numbers that nobody asked for yet."""
        return [self.word(fresh(number)) for number in range(first, first + count)]

    def batch(self, numbers: list[str], query: str = "") -> list[dict[str, Any]]:
        """The results of a job, in the order of its rows."""
        done = self.job("\n".join(["b_no", *numbers, ""]), query, preview=len(numbers))
        return sorted(done["results"], key=lambda row: row["row_id"])

    def watched(self) -> dict[str, dict[str, Any]]:
        return {entry["biz_no"]: entry for entry in self.get("/watch")["watches"]}

    def watch(self, *numbers: str) -> None:
        for number in numbers:
            self.ask("POST", "/watch", json={"biz_no": number})
        self.recheck()

    def recheck(self) -> None:
        """Let a day pass, and wait until all are checked."""
        self.hand.forward(days=1)
        due = as_text(self.hand.seconds) or ""
        self.hand.until(lambda: all(entry["next_check_at"] > due for entry in self.watched().values()), seconds=5)


def fresh(number: int) -> str:
    return f"{3_000_000_000 + number}"


def known(**statuses: str) -> FakeNts:
    """A fake that knows ``n1248100998="closed"``; all other businesses are active."""
    return FakeNts(NtsKey(KEY).reveal(), {name[1:]: status for name, status in statuses.items()}, default="active")


def failing(fault: str | Act, **more: Any) -> FakeNts:
    fake = known(n1248100998="closed")
    fake.faults.add(Fault("status", NTS_FAULTS[fault] if isinstance(fault, str) else fault, **more))
    return fake


@contextmanager
def asking(
    tmp_path: Path, fake: FakeNts | None = None, *, registry: str = "", secret: str = "", **options: Any
) -> Iterator[Asking]:
    """Serve beside the fake; ``registry``: what it says of the first number, three weeks ago."""
    fake, hand, built = fake or known(n1248100998="closed"), HandClock(), None
    if registry:
        (tmp_path / "a.csv").write_text(
            f"사업자등록번호,사업자상태,기준일자\n{NUMBER},{registry},2026-10-31\n", "utf-8"
        )
        bs.build_registry([tmp_path / "a.csv"], built := tmp_path / "registry.parquet")
    with serve(fake) as url:
        status = StatusOptions(**{"source": "nts", "key": NtsKey(KEY), "base_url": url, "timeout": 20.0} | options)
        notices = tmp_path / "closures.jsonl"
        with hosted(tmp_path / "db.sqlite", hand.clock, status=status, registry=built, notices=notices) as server:
            try:
                yield Asking(server, secret or server.key(), fake, hand)
            finally:
                fake.faults.release()


def closures(tmp_path: Path) -> list[str]:
    path = tmp_path / "closures.jsonl"
    notices = [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []
    return [notice["biz_no"] for notice in notices if notice["event"] == "closure"]


@pytest.fixture(autouse=True)
def quickly_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read_here(monkeypatch)


# ------------------------------------------------------------------------------------------------- single lookups


def test_a_status_is_asked_for_when_it_is_too_old_also_after_a_restart(tmp_path: Path) -> None:
    fake = known(n1248100998="closed")
    with asking(tmp_path, fake) as it:
        assert f"(nts, {TODAY})" in it.reason()
        it.hand.forward(days=30)
        assert [it.word() for _ in range(3)] == ["closed"] * 3
        assert fake.asks == {NUMBER: 1}
    with asking(tmp_path, fake) as it:
        assert (it.word(), fake.calls) == ("closed", 1)
        it.hand.forward(days=31)
        fake.statuses = {}
        assert (it.word(), fake.calls) == ("active", 2)


def test_a_kept_answer_does_not_outlive_a_newer_status(tmp_path: Path) -> None:
    """Of a job, at once; of another process, after a minute."""
    with asking(tmp_path, known(), max_age=0) as it:
        assert it.word() == "active"
        it.fake.statuses = {NUMBER: "closed"}
        assert it.word() == "active"
        it.hand.forward(days=1)
        assert it.batch([NUMBER])[0]["biz_status"] == "closed"
        assert "(nts, 2026-11-21)" in it.reason()
        row = {"b_no": int(NUMBER), "biz_status": "suspended", "as_of": date(2026, 11, 21)}
        with StatusStore(it.server.files / "statuses.sqlite") as store:
            store.write(pl.DataFrame([row], schema=store.read().schema))
        assert it.word() == "closed"
        it.hand.forward(seconds=61)
        assert (it.word(), it.fake.asks[NUMBER]) == ("suspended", 2)


def test_offline_asks_nobody_and_belongs_to_the_request(tmp_path: Path) -> None:
    with asking(tmp_path, registry="계속사업자") as it:
        assert REGISTRY in it.reason(query="?offline=true")
        assert REGISTRY in it.batch([NUMBER], "?offline=1")[0]["reasons"][0]
        assert it.batch([NUMBER], "?paid=false")[0]["biz_status"] == "unknown"
        assert it.fake.calls == 0
        once = {"Idempotency-Key": "once"}
        queries = ("?offline=false", "?offline=true", "")
        assert [it.verify(query=query, headers=once).status_code for query in queries] == [200, 409, 200]
        assert f"(nts, {TODAY})" in it.reason()


def test_lookups_at_the_same_time_share_calls_and_numbers(tmp_path: Path) -> None:
    fake = known(**{f"n{fresh(number)}": "closed" for number in range(0, 50, 2)})
    fake.latency = 0.1
    with asking(tmp_path, fake) as it, ThreadPoolExecutor(60) as pool:
        found = list(pool.map(lambda number: it.word(fresh(number % 50)), range(60)))
        assert found == (["closed", "active"] * 30)
        assert (fake.numbers, fake.asked_again) == (50, 0)
        assert fake.calls <= 8


def test_a_call_that_hangs_delays_nobody_for_long_and_is_used_when_it_answers(tmp_path: Path) -> None:
    """Meanwhile others are answered, and no query waits for the lookup; after two seconds the registry answers it."""
    with asking(tmp_path, failing(Hang(paid=True), at=2), registry="계속사업자") as it, ThreadPoolExecutor() as pool:
        it.word(OTHER)
        waiting = pool.submit(it.reason)
        wait_until(lambda: it.fake.in_flight == 1)
        assert it.word(OTHER) == "active"
        assert {queue.expected for _, queue in it.server.context.lookups.answerer._of_key.values()} == {0}
        assert not waiting.done()
        it.hand.until(waiting.done, seconds=WAIT_S / 4)
        assert REGISTRY in waiting.result()
        it.fake.faults.release()
        wait_until(lambda: it.fake.in_flight == 0)
        wait_until(lambda: "closed" in it.reason())
        assert it.fake.calls == 2


def test_after_failures_nobody_waits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody is asked for a pause; then one call tries, and the log has a line of each change."""
    fake = failing("page_503")
    with caplog.at_level(logging.INFO, "bansong.server.statuses"), asking(tmp_path, fake) as it:
        assert (it.words(0, 10), fake.calls) == (["unknown"] * 10, FAILURES)
        it.hand.forward(seconds=PAUSES_S[0] + 1)
        assert (it.words(0, 3), fake.calls) == (["unknown"] * 3, FAILURES + 1)
        fake.faults.clear()
        it.hand.forward(seconds=PAUSES_S[1] - 1)
        assert it.word() == "unknown"
        it.hand.forward(seconds=1)
        assert (it.word(), it.word(OTHER)) == ("closed", "active")
    said = [
        one.getMessage() for one in caplog.records if "not asked" in one.getMessage() or "again" in one.getMessage()
    ]
    assert ["5 s" in said[0], "30 s" in said[1], "answers again" in said[2], len(said)] == [True, True, True, 3]


def test_a_key_that_is_refused_is_asked_with_once(tmp_path: Path) -> None:
    with asking(tmp_path, FakeNts("another-key"), registry="폐업자") as it:
        assert it.words(0, 5) == ["unknown"] * 5
        rows = it.batch([NUMBER, OTHER])
        assert [row["biz_status"] for row in rows] == ["closed", "unknown"]
        assert REGISTRY in rows[0]["reasons"][0]
        assert it.fake.calls == 1


def test_in_an_outage_the_newest_that_is_stored_answers(tmp_path: Path) -> None:
    with asking(tmp_path) as it:
        it.word()
        it.hand.forward(days=40)
        it.fake.faults.add(Fault("status", NTS_FAULTS["overloaded"]))
        assert (it.word(), f"(nts, {TODAY}, 40 days old)" in it.reason()) == ("closed", True)


def test_a_pause_that_the_api_asks_for_is_kept(tmp_path: Path) -> None:
    """A 429 with a long Retry-After is not the day's limit."""
    with asking(tmp_path, failing(Status(429, retry_after=600), at=1)) as it:
        assert it.words(0, 3) == ["unknown"] * 3
        it.hand.forward(seconds=599)
        assert (it.word(), it.fake.calls) == ("unknown", 1)
        it.hand.forward(seconds=1)
        assert it.word() == "closed"


def test_the_day_limit_is_heeded_until_midnight_in_seoul(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """After code 22 nobody is asked on that day, by a restarted server neither."""
    fake = known()
    fake.daily_limit = 1
    with asking(tmp_path, fake) as it:
        assert (it.words(0, 3), fake.calls) == (["active", "unknown", "unknown"], 2)
    with caplog.at_level(logging.WARNING, "bansong.server.statuses"), asking(tmp_path, fake) as it:
        it.hand.forward(hours=11)
        assert (it.word(OTHER), fake.calls) == ("unknown", 2)
        assert "2026-11-21T00:00:00+09:00" in caplog.records[0].getMessage()
        fake.start_day()
        it.hand.forward(hours=1)
        assert it.word(OTHER) == "active"


def test_a_number_without_an_answer_is_asked_three_times_a_day(tmp_path: Path) -> None:
    with asking(tmp_path, failing("fewer")) as it:
        assert [it.word() for _ in range(6)] == ["unknown"] * 6
        assert it.fake.calls == 3


# ------------------------------------------------------------------------------------------------------ the budget


def test_one_budget_a_day_for_all(tmp_path: Path) -> None:
    """Lookups and jobs ask for no more numbers a day than the budget; the next day has its own."""
    with asking(tmp_path, known(), budget=150) as it, ThreadPoolExecutor(20) as pool:
        job = pool.submit(it.batch, [fresh(number) for number in range(1000, 1110)])
        list(pool.map(lambda number: it.word(fresh(number)), range(20)))
        assert [row["biz_status"] for row in job.result()].count("active") + 20 <= 150
        it.batch([fresh(number) for number in range(2000, 2100)])
        assert it.fake.numbers <= 150
        calls = it.fake.calls
        assert (it.word(fresh(3000)), it.fake.calls) == ("unknown", calls)
        it.hand.forward(hours=12)
        assert it.word(fresh(3000)) == "active"


def test_other_processes_see_what_is_being_asked(tmp_path: Path) -> None:
    with asking(tmp_path, failing(Hang(paid=True), at=1), budget=3) as it, ThreadPoolExecutor(1) as pool:
        hanging = pool.submit(it.word)
        wait_until(lambda: it.fake.calls == 1)
        with StatusStore(it.server.files / "statuses.sqlite") as other:
            assert other.take_numbers(it.statuses._budget.account, date(2026, 11, 20), 5, 3) == 2
        it.fake.faults.clear()
        it.fake.faults.release()
        wait_until(lambda: not [it.hand.forward(seconds=0.5)] or hanging.done())
        assert it.statuses._budget.remaining() == 0
        assert (it.word(OTHER), it.fake.calls) == ("unknown", 1)


def test_what_was_taken_and_not_asked_is_left_for_others(tmp_path: Path) -> None:
    """While the rest of the budget is taken lookups are not asked; when it is given back, before it is, they are."""
    with asking(tmp_path, known(), budget=100) as it:
        budget = it.statuses._budget
        assert budget.take(200) == 100
        assert (it.word(), budget.is_spent()) == ("unknown", False)
        budget.give_back(100)
        assert (it.word(), budget.remaining()) == ("active", 99)


def test_a_full_disk_does_not_lift_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be counted in the store is counted all the same, for that day; lookups are answered by the reply."""

    def refuse(*_: object, **__: object) -> None:
        raise StoreError("the disk is full")

    with asking(tmp_path, known(), budget=3) as it:
        with monkeypatch.context() as full:
            full.setattr(StatusStore, "write", refuse)
            full.setattr(StatusStore, "take_numbers", refuse)
            assert it.words(0, 5) == ["active"] * 3 + ["unknown"] * 2
            assert it.fake.numbers == 3
        it.hand.forward(days=1)
        assert it.word(fresh(5)) == "active"


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
    with asking(tmp_path, failing(fault, at=1)) as it:
        assert {row["biz_status"] for row in it.batch([fresh(place) for place in range(150)])} == {"active"}
        assert it.word() == "closed"


def test_a_number_that_is_always_refused_costs_itself_alone(tmp_path: Path) -> None:
    with asking(tmp_path, failing(RefusedNumber(OTHER))) as it:
        found = it.batch([OTHER, *(fresh(place) for place in range(99))])
        assert [row["biz_status"] for row in found] == ["unknown", *["active"] * 99]
        calls = it.fake.calls
        assert (it.word(OTHER), it.fake.calls, it.word(THIRD)) == ("unknown", calls, "active")


def test_an_api_that_refuses_everything_is_left_alone(tmp_path: Path) -> None:
    with asking(tmp_path, failing("bad_json")) as it:
        assert {row["biz_status"] for row in it.batch([fresh(place) for place in range(100)])} == {"unknown"}
        calls = it.fake.calls
        assert calls < 20
        assert (it.word(), it.fake.calls) == ("unknown", calls)


def test_a_job_fetches_what_it_needs(tmp_path: Path) -> None:
    """Each number is asked once, a hundred a call; what is stored is not asked; rows that are none are not."""
    numbers = [fresh(number) for number in range(450)]
    fake = known(**{f"n{numbers[7]}": "closed", f"n{NUMBER}": "suspended"})
    with asking(tmp_path, fake) as it:
        it.word(numbers[0])
        rows = it.batch([*numbers, NUMBER, numbers[3], "12-34"])
        assert [rows[place]["biz_status"] for place in (7, 450, 451)] == ["closed", "suspended", "active"]
        assert rows[452]["error"]
        assert f"(nts, {TODAY})" in rows[7]["reasons"][0]
        assert (fake.numbers, fake.asked_again) == (451, 0)
        assert fake.calls <= 1 + 1 + 4


def test_a_stop_does_not_wait_for_a_job_and_loses_nothing(tmp_path: Path) -> None:
    """Stopped while it fetches, a server keeps what was told; started again, the job goes on and asks for the rest."""
    fake, numbers = known(), [fresh(number) for number in range(1200)]
    fake.faults.add(Fault("status", Hang(), when=lambda _: fake.calls > 5))
    with asking(tmp_path, fake, concurrency=1) as it:
        job = it.upload("\n".join(["b_no", *numbers, ""])).json()["job_id"]
        wait_until(lambda: fake.calls >= 6)
    fake.faults.clear()
    with asking(tmp_path, fake, rate=1000, secret=it.secret) as it:
        it.until(job)
        assert (fake.numbers, fake.asked_again, set(fake.asks)) == (1200, 0, set(numbers))


def test_a_job_that_is_deleted_while_it_asks_stays_paid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is being asked for is not given back; rows that are no number, and slices that were not begun, are."""
    for module in (worker, results):
        monkeypatch.setattr(module, "ROWS", 300)
    fake = known()
    fake.faults.add(Fault("status", Hang(), when=lambda _: fake.calls > 2))
    with asking(tmp_path, fake, concurrency=1) as it:
        job = it.upload("\n".join(["b_no", "12-34", *(fresh(n) for n in range(500)), ""])).json()["job_id"]
        wait_until(lambda: fake.calls > 2)
        fake.faults.release()
        assert it.ask("DELETE", f"/batch/{job}").json()["given_back"] == 501 - 299
        assert it.used() == 299


# -------------------------------------------------------------------------------------------------- the watch list


def test_the_watch_list_asks_for_what_is_due(tmp_path: Path) -> None:
    """A re-check asks once a day, however old a status may be elsewhere: a closure is told on the day it is known."""
    with asking(tmp_path, known()) as it:
        numbers = [fresh(number) for number in range(120)]
        it.watch(*numbers)
        assert {entry["biz_status"] for entry in it.watched().values()} == {"active"}
        assert it.fake.numbers == 120
        it.fake.statuses, calls = {numbers[3]: "closed"}, it.fake.calls
        it.recheck()
        it.hand.until(lambda: closures(tmp_path) == [numbers[3]], seconds=1)
        assert (it.watched()[numbers[3]]["biz_status"], it.fake.numbers) == ("closed", 240)
        assert it.fake.calls - calls <= 10


def test_an_outage_opens_nobody_nor_does_a_server_that_asks_nobody_any_more(tmp_path: Path) -> None:
    """An older registry says nothing that the tax authority did not contradict before."""
    with asking(tmp_path, registry="계속사업자") as it:
        it.watch(NUMBER, OTHER)
        it.fake.faults.add(Fault("status", NTS_FAULTS["unavailable"]))
        it.recheck()
        found = it.watched()
        assert [found[number]["biz_status"] for number in (NUMBER, OTHER)] == ["closed", "active"]
    with asking(tmp_path, registry="계속사업자", secret=it.secret, source="none") as it:
        it.recheck()
        now = it.watched()[NUMBER]
        for name in ("biz_status", "closed_at"):
            assert now[name] == found[NUMBER][name] is not None
        assert (it.fake.calls, closures(tmp_path)) == (0, [])


def test_a_call_that_hangs_holds_up_the_watch_list_once(tmp_path: Path) -> None:
    """The first call shows that more would hang: watches are judged by what is known when it is given up."""
    with asking(tmp_path, failing(Hang()), registry="폐업자", timeout=0.2) as it:
        it.watch(NUMBER)
        assert it.watched()[NUMBER]["biz_status"] == "closed"
        assert it.fake.calls <= FAILURES


# ------------------------------------------------------------------------------------------- kills, keys, forgetting


def test_the_log_counts_and_names_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Once a minute the log says how much was asked; numbers of businesses and the key are in no line."""
    with caplog.at_level(logging.DEBUG, "bansong"), asking(tmp_path, known(), budget=100) as it:
        it.batch([NUMBER, OTHER])
        it.word(THIRD)
        it.fake.faults.add(Fault("status", NTS_FAULTS["unregistered_key"]))
        it.word(fresh(1))
        it.hand.until(lambda: "calls: 3" in caplog.text, seconds=61)
    assert "numbers asked: 4, answered: 3, left of the day's budget: 96" in caplog.text
    assert [one for one in (NUMBER, OTHER, THIRD, fresh(1), KEY, NtsKey(KEY).reveal()) if one in caplog.text] == []


def test_a_server_without_a_key_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"BANSONG_NTS_KEY"), asking(tmp_path, key=None):
        pass


def test_who_asks_nobody_has_no_store_and_answers_offline_alike(tmp_path: Path) -> None:
    with asking(tmp_path, source="none") as it:
        assert it.statuses is None
        assert not list(tmp_path.rglob("statuses*"))
        assert it.verify().json() == it.verify(query="?offline=true").json()


def test_forgetting_reaches_the_servers_statuses(tmp_path: Path) -> None:
    with asking(tmp_path, known()) as it:
        assert {it.word(NUMBER), it.word(OTHER)} == {"active"}
    with open_stopped_server(tmp_path / "db.sqlite") as erasure:
        assert erasure.holdings([NUMBER])["statuses"] == 1
        erasure.erase([NUMBER])
        assert [erasure.holdings([number])["statuses"] for number in (NUMBER, OTHER)] == [0, 1]


# ------------------------------------------------------------------------------------------------ what may be broken


def test_pauses_grow_and_a_success_ends_them() -> None:
    hand = HandClock()
    breaker = CircuitBreaker("it", hand.clock)
    for _ in range(10):  # what fails now and then is asked on
        breaker.record_failure("no")
        breaker.record_failure("no")
        assert breaker.begin()
        breaker.record_success()
    for _ in range(FAILURES + 4):  # those of calls that were under way do not make the pause longer
        breaker.record_failure("no")
    for pause in (*PAUSES_S, PAUSES_S[-1]):
        hand.forward(seconds=pause - 1)
        assert not breaker.begin()
        hand.forward(seconds=1)
        assert (breaker.begin(), breaker.begin()) == (True, False)
        breaker.record_failure("no")
    hand.forward(seconds=PAUSES_S[-1])
    assert breaker.begin()
    breaker.record_success()
    assert all(breaker.begin() for _ in range(3))


def test_a_defect_in_a_trial_does_not_end_the_asking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def defective(*_: object) -> None:
        raise ValueError("a defect")

    with asking(tmp_path) as it:
        with monkeypatch.context() as patch:
            patch.setattr(it.statuses._client, "status", defective)
            assert it.words(0, 4) == ["unknown"] * 4
            it.hand.forward(seconds=PAUSES_S[0])
            assert it.word(fresh(9)) == "unknown"
        it.hand.forward(seconds=PAUSES_S[1])
        assert it.word() == "closed"


def test_a_store_that_cannot_be_read_fails_no_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> pl.DataFrame:
        raise StoreError("statuses.sqlite: is damaged")

    with asking(tmp_path, known(), registry="폐업자") as it:
        for name in ("read", "stale"):
            monkeypatch.setattr(it.statuses._store, name, broken)
        assert (it.word(), it.batch([NUMBER])[0]["biz_status"], it.fake.calls) == ("closed", "closed", 0)


def test_a_store_that_another_process_has_to_itself_holds_up_nobody(tmp_path: Path) -> None:
    """After two seconds lookups do without the store, the next ones at once; when it is free it is read again."""
    with asking(tmp_path, registry="계속사업자") as it:
        assert it.word() == "closed"
        it.hand.forward(seconds=61)
        with closing(sqlite3.connect(it.server.files / "statuses.sqlite")) as other, ThreadPoolExecutor(2) as pool:
            other.execute("BEGIN EXCLUSIVE")
            waiting = pool.submit(it.word), pool.submit(it.word, OTHER)
            wait_until(lambda: not [it.hand.forward(seconds=0.1)] or all(one.done() for one in waiting))
            assert [one.result() for one in waiting] == ["closed", "unknown"]
            assert it.word(THIRD) == "unknown"  # the clock stands still: who waits for it waits for ever
            other.rollback()
        wait_until(lambda: it.word(THIRD) == "active")
