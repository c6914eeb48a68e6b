"""A fetch run: only what is not fresh is asked, and whatever happens, what was answered is stored."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import anyio
import polars as pl
import pytest

from bansong.base.cancel import CancelToken
from bansong.base.options import StatusOptions
from bansong.client import ApiKey
from bansong.client.dispatcher import RetryBudget
from bansong.errors import StoreError, UsageError
from bansong.reference.fetch import StatusFetch, fetch_statuses
from bansong.reference.nts import NtsKey
from bansong.reference.status_store import StatusStore, account_of
from bansong.testing import Fault, Faults, serve
from bansong.testing.fake_nts import NTS_FAULTS, EditedRows, FakeNts
from bansong.testing.faults import Act
from bansong.testing.messages import FakeReply, FakeRequest

TODAY = date(2026, 11, 23)
KEY = NtsKey("test-key")


def series(count: int, first: int = 1_000_000_001) -> pl.Series:
    return pl.Series("b_no", range(first, first + count), pl.UInt64)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # trio is tried through the public function: test_statuses


@pytest.fixture
def fake() -> FakeNts:
    return FakeNts(default="active")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries wait for nothing: how long they would is a matter of `test_limits`."""
    monkeypatch.setattr(RetryBudget, "backoff", lambda *_: 0.0)


@pytest.fixture
def options(fake: FakeNts, tmp_path: Path) -> Iterator[StatusOptions]:
    with serve(fake) as url:
        yield StatusOptions(key=KEY, base_url=url, store=tmp_path / "statuses.sqlite", rate=10_000)


def fetch(numbers: pl.Series, options: StatusOptions, day: date = TODAY, **more: Any) -> StatusFetch:
    return asyncio.run(fetch_statuses(numbers, options, today=lambda: day, **more))


def used(options: StatusOptions, day: date = TODAY) -> int:
    with StatusStore(options.store) as store:
        return store.usage(account_of(KEY), day).numbers


def stored(options: StatusOptions) -> pl.DataFrame:
    with StatusStore(options.store) as store:
        return store.read()


def test_each_number_is_asked_once_and_not_again_while_it_is_fresh(fake: FakeNts, options: StatusOptions) -> None:
    fake.statuses = {"1000000001": "closed", "1000000002": "unregistered"}
    report = fetch(pl.concat([series(250), series(250)]), options)
    assert (report.numbers, report.asked, report.answered, report.unregistered) == (250, 250, 250, 1)
    assert (report.calls, report.left, report.halt, report.oldest) == (3, 0, None, TODAY)
    assert stored(options)["b_no"].equals(series(250))
    assert stored(options)["biz_status"].to_list()[:3] == ["closed", "unregistered", "active"]
    again = fetch(series(300), options, TODAY + timedelta(days=30))
    assert (again.from_store, again.asked) == (250, 50)
    assert fetch(series(300), options, TODAY + timedelta(days=31)).asked == 250
    assert fake.numbers == 550


def test_the_budget_is_a_day_s_and_the_oldest_come_first(fake: FakeNts, options: StatusOptions) -> None:
    """Unknown numbers come first, then the oldest; the next day it goes on."""
    fetch(series(100), options, TODAY - timedelta(days=60))
    fetch(series(100, 1_000_000_101), options, TODAY - timedelta(days=90))
    small = replace(options, budget=250)
    report = fetch(series(300), small)
    assert (report.answered, report.left, report.budget_left, report.exit_code) == (250, 50, 0, 5)
    assert "it goes on from 2026-11-24 00:00 in Seoul" in str(report.halt)
    old = stored(options).filter(pl.col("as_of") < TODAY)
    assert old["as_of"].unique().to_list() == [TODAY - timedelta(days=60)]
    assert fetch(series(300), small).calls == 0
    later = fetch(series(300), small, TODAY + timedelta(days=1))
    assert (later.halt, later.exit_code) == (None, 0)


def test_code_22_ends_the_day_for_every_run_with_that_key(fake: FakeNts, options: StatusOptions) -> None:
    """Nothing is asked until midnight in Seoul; who looks at single numbers may try, and an answer ends the pause."""
    fake.daily_limit = 200
    one = replace(options, concurrency=1)
    report = fetch(series(500), one)
    assert (report.answered, report.left, report.exit_code) == (200, 300, 5)
    assert "22" in str(report.halt)
    assert "2026-11-24 00:00 in Seoul" in str(report.halt)
    calls = fake.calls
    assert fetch(series(500), one).calls == 0
    assert fetch(series(500), one, tries_spent=True).calls == 1
    assert fake.calls == calls + 1
    fake.start_day()
    assert fetch(series(500), one).calls == 0
    assert fetch(series(300), one, tries_spent=True).answered == 100
    fake.start_day()
    assert fetch(series(500), replace(one, budget=None), TODAY + timedelta(days=1)).answered == 200


def test_what_a_reply_leaves_out_is_asked_twice_more_and_then_not_that_day(
    fake: FakeNts, options: StatusOptions
) -> None:
    fake.faults = Faults(Fault("status", NTS_FAULTS["fewer"]))
    report = fetch(series(100), replace(options, concurrency=1))
    assert (report.answered, report.unanswered, report.left, report.halt) == (99, 1, 0, None)
    assert fake.asks["1000000001"] == 3
    fake.faults = Faults()
    again = fetch(series(100), options)
    assert (again.asked, again.unanswered, again.from_store) == (0, 1, 99)
    assert fetch(series(100), options, TODAY + timedelta(days=1)).answered == 1


@pytest.mark.parametrize(("fault", "code"), [("bad_key", 4), ("no_such_service", 2)])
def test_a_refused_key_ends_the_run_at_once(fake: FakeNts, options: StatusOptions, fault: str, code: int) -> None:
    fake.faults = Faults(Fault("status", NTS_FAULTS[fault]))
    report = fetch(series(5000), options)
    assert (report.answered, report.left, report.exit_code) == (0, 5000, code)
    assert report.calls <= options.concurrency
    assert report.halt is not None
    assert "test-key" not in report.halt


def test_an_outage_ends_the_run_with_all_that_was_answered_stored(fake: FakeNts, options: StatusOptions) -> None:
    fake.faults = Faults(Fault("status", NTS_FAULTS["page_503"], at=range(4, 10_000)))
    report = fetch(series(3000), replace(options, concurrency=1))
    assert (report.answered, report.left, report.exit_code) == (300, 2700, 5)
    assert stored(options).height == 300
    fake.faults = Faults()
    assert fetch(series(3000), options).answered == 2700
    assert fake.asked_again == 0


def test_a_run_of_one_call_that_came_to_nothing_says_what_was_wrong(fake: FakeNts, options: StatusOptions) -> None:
    fake.faults = Faults(Fault("status", NTS_FAULTS["page"]))
    report = fetch(series(1), options)
    assert report.exit_code == 5
    assert str(report.halt).startswith("the tax authority's API (http://127.0.0.1:")


def test_a_run_gives_up_where_nobody_replies(fake: FakeNts, options: StatusOptions) -> None:
    fake.latency = 600
    report = fetch(series(300), replace(options, timeout=300, patience=0.3, drain=0.1))
    assert (report.answered, report.left, report.exit_code) == (0, 300, 5)
    assert "has not answered for 0.3 s" in str(report.halt)
    assert report.seconds < 60


def test_a_run_that_is_cancelled_keeps_what_was_answered(fake: FakeNts, options: StatusOptions) -> None:
    cancel = CancelToken()
    fake.latency = 0.05
    seen: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        seen.append((done, total))
        cancel.cancel()

    report = fetch(series(10_000), replace(options, concurrency=2), progress=progress, cancel=cancel)
    assert report.exit_code == 130
    assert 0 < report.answered == stored(options).height < 10_000
    assert seen[-1] == (report.answered, 10_000)


def test_a_status_known_elsewhere_is_not_asked_while_it_is_fresh(fake: FakeNts, options: StatusOptions) -> None:
    known = pl.DataFrame({"b_no": series(40), "as_of": [TODAY] * 20 + [TODAY - timedelta(days=99)] * 20})
    report = fetch(series(50), options, known=known)
    assert (report.from_store, report.answered) == (20, 30)


def test_without_a_key_nothing_is_asked_and_the_way_to_one_is_told(options: StatusOptions, monkeypatch: Any) -> None:
    monkeypatch.delenv("BANSONG_NTS_KEY", raising=False)
    monkeypatch.delenv("BANSONG_NTS_KEY_FILE", raising=False)
    fetch(series(10), options)
    without = replace(options, key=None)
    assert fetch(series(10), without).from_store == 10
    with pytest.raises(UsageError, match=r"docs/data-sources\.md"):
        fetch(series(11), without)


def test_a_key_of_another_kind_is_refused_and_not_shown(options: StatusOptions) -> None:
    with pytest.raises(UsageError, match="is of the class ApiKey; give a"):
        fetch(series(1), replace(options, key=ApiKey("bv-4711-4711")))
    with pytest.raises(UsageError, match=r"is a str; give a bansong\.NtsKey") as raised:
        StatusOptions(key="open-secret")  # type: ignore[arg-type]
    frames = traceback.walk_tb(raised.value.__traceback__)
    assert all("open-secret" not in str(frame.f_locals.get("keywords")) for frame, _ in frames)
    assert "open-secret" not in str(raised.value)


def test_a_store_that_cannot_be_written_ends_the_run_with_its_error(
    fake: FakeNts, options: StatusOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise StoreError("statuses.sqlite: the disk is full, so nothing was written; free space")

    fake.latency = 0.05
    with monkeypatch.context() as patch:
        patch.setattr(StatusStore, "write", refuse)
        with pytest.raises(StoreError, match="the disk is full"):
            fetch(series(10_000), replace(options, concurrency=2, budget=100_000))
    assert 0 < used(options) <= fake.numbers + 200 < 10_000


@pytest.mark.anyio
async def test_a_run_that_is_cut_off_keeps_what_was_answered(fake: FakeNts, options: StatusOptions) -> None:
    fake.latency = 0.02
    small = replace(options, concurrency=2, budget=100_000)
    loop = asyncio.get_running_loop()
    with anyio.CancelScope() as scope:

        def cut_off(rows: list[Any]) -> list[Any]:
            loop.call_soon_threadsafe(scope.cancel)
            return rows

        fake.faults = Faults(Fault("status", EditedRows(cut_off), at=5))
        await fetch_statuses(series(5_000), small, today=lambda: TODAY)
    assert scope.cancelled_caught
    assert fake.numbers - 200 <= stored(options).height < 5_000
    assert 0 < used(options) <= fake.numbers + 200
    fake.latency = 0
    assert (await fetch_statuses(series(5_000), options, today=lambda: TODAY)).left == 0
    assert fake.asked_again <= 2 * 100


def test_the_budget_of_a_run_over_midnight_is_that_of_the_day_it_began(fake: FakeNts, options: StatusOptions) -> None:
    day = TODAY
    fake.latency = 0.02

    def tell(report: StatusFetch) -> None:
        nonlocal day
        day = TODAY + timedelta(days=1)

    small = replace(options, budget=2000, concurrency=1)
    report = asyncio.run(fetch_statuses(series(3000), small, today=lambda: day, watch=tell))
    assert (report.answered, report.left) == (2000, 1000)
    assert "goes on from 2026-11-24" in str(report.halt)
    counted = [used(options, TODAY + timedelta(days=after)) for after in (0, 1)]
    assert (sum(counted), min(counted) > 0) == (2000, True)
    assert stored(options)["as_of"].n_unique() == 2


@pytest.mark.anyio
async def test_runs_beside_each_other_keep_within_one_budget(fake: FakeNts, options: StatusOptions) -> None:
    fake.latency = 0.02
    one = replace(options, budget=1_500, concurrency=8)
    given = [series(1_000, 1_000_000_001 + place * 10_000) for place in range(4)]
    reports: list[StatusFetch] = []

    async def run(numbers: pl.Series) -> None:
        reports.append(await fetch_statuses(numbers, one, today=lambda: TODAY))

    async with anyio.create_task_group() as group:
        for numbers in given:
            group.start_soon(run, numbers)
    assert 1_200 <= fake.numbers <= 1_500
    assert fake.numbers == sum(report.answered for report in reports) == 4_000 - sum(report.left for report in reports)
    assert used(options) == fake.numbers
    assert [report.exit_code for report in reports] == [5] * 4


def test_what_is_asked_again_stays_within_the_budget(fake: FakeNts, options: StatusOptions) -> None:
    """Calls that failed count, too, since the tax authority may count them."""
    fake.faults = Faults(Fault("status", NTS_FAULTS["internal"], at=(1, 2)))
    report = fetch(series(500), replace(options, budget=500, concurrency=1))
    assert (report.calls, report.answered, report.left, report.budget_left) == (5, 300, 200, 0)


# ── what is refused once ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("fault", ["unregistered_key", "forbidden"])
def test_one_refusal_after_answers_is_asked_twice_more(fault: str, fake: FakeNts, options: StatusOptions) -> None:
    """The portal refuses a good key at times: two refusals pass, the third of one call ends the run."""
    one = replace(options, concurrency=1)
    fake.faults = Faults(Fault("status", NTS_FAULTS[fault], at=(3, 4)))
    assert fetch(series(500), one).answered == 500
    fake.faults = Faults(Fault("status", NTS_FAULTS[fault], at=(1, 2)))
    assert fetch(series(500), one, TODAY + timedelta(days=60)).answered == 500  # the store knows that the key was good
    fake.faults = Faults(Fault("status", NTS_FAULTS[fault]))
    report = fetch(series(500), one, TODAY + timedelta(days=120))
    assert (report.calls, report.left, report.exit_code) == (3, 500, 4)


@pytest.mark.parametrize("fault", ["too_large", "malformed"])
def test_a_call_that_is_refused_is_halved(fault: str, fake: FakeNts, options: StatusOptions) -> None:
    """A call that the API does not take once costs nothing; a number that it never takes costs this number alone."""
    one = replace(options, concurrency=1)
    fake.faults = Faults(Fault("status", NTS_FAULTS[fault], at=1))
    report = fetch(series(100), one)
    assert (report.asked, report.answered, report.calls, report.halt) == (100, 100, 3, None)
    poison = b"1000001050"
    fake.faults = Faults(Fault("status", RefusedNumber(NTS_FAULTS[fault], poison)))
    report = fetch(series(200, 1_000_001_001), one)
    assert (report.answered, report.unanswered, report.left, report.exit_code) == (199, 1, 0, 0)
    assert poison.decode() not in fake.asks


@dataclass(frozen=True)
class RefusedNumber(Act):
    """A refusal of each call that holds one number."""

    refusal: Act
    number: bytes

    async def before(self, request: FakeRequest) -> FakeReply | None:
        return await self.refusal.before(request) if self.number in await request.body() else None


# ── runs at once ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.anyio
async def test_runs_at_once_ask_each_number_once(fake: FakeNts, options: StatusOptions) -> None:
    fake.latency = 0.02
    shared = replace(options, concurrency=4, budget=50_000)
    reports: list[StatusFetch] = []

    async def run() -> None:
        reports.append(await fetch_statuses(series(3_000), shared, today=lambda: TODAY))

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(run)
    assert (fake.numbers, fake.asked_again) == (3_000, 0)
    assert [(report.left, report.answered + report.from_store) for report in reports] == [(0, 3_000)] * 3


@pytest.mark.anyio
async def test_what_another_run_leaves_is_asked(fake: FakeNts, options: StatusOptions) -> None:
    """A run that is cut off gives its numbers free at its end, a killed one after two minutes."""
    fake.latency = 0.05
    patient = replace(options, patience=8)  # seconds; a claim that is not given back ends after ten
    reports: list[StatusFetch] = []

    async def run() -> None:
        reports.append(await fetch_statuses(series(3_000), patient, today=lambda: TODAY))

    async with anyio.create_task_group() as group:
        with anyio.CancelScope() as scope:
            group.start_soon(run)
            slow = replace(options, concurrency=1)
            await fetch_statuses(series(3_000), slow, today=lambda: TODAY, watch=lambda _: scope.cancel())
    assert reports[0].left == 0
    with StatusStore(options.store) as store:
        killed = series(100, 1_100_000_001)
        now = time.time()
        assert len(store.claim(killed, "killed", now, now + 0.2)) == 100
        assert store.claim(killed, "other", now, now + 120).is_empty()
    report = await fetch_statuses(killed, options, today=lambda: TODAY)
    assert (report.answered, report.left) == (100, 0)


def test_a_run_waits_for_others_no_longer_than_for_the_api(fake: FakeNts, options: StatusOptions) -> None:
    with StatusStore(options.store) as store:
        store.claim(series(5), "hangs", time.time(), time.time() + 120)
    report = fetch(series(5), replace(options, patience=0.3))
    assert (report.left, report.calls, report.exit_code, report.seconds < 30) == (5, 0, 5, True)
