"""Buying, step by step on trio's fake clock: when it waits, when it stops, what it leaves in the ledger."""

from __future__ import annotations

import csv
import io
import signal
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import anyio
import anyio.to_thread
import polars as pl
import pytest
from anyio.from_thread import start_blocking_portal
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from bansong.base.cancel import CancelToken, PortalTask, run_async
from bansong.base.options import ServiceOptions
from bansong.base.schema import Answer
from bansong.client import Client
from bansong.client.dispatcher import Dispatcher, Halt, HaltReason
from bansong.client.responses import BatchCreated, BatchStatus, Result, Verified
from bansong.engine.local import ROW_PROBLEM
from bansong.engine.records import ROW_ID, with_digits
from bansong.errors import (
    AuthenticationError,
    DoubtError,
    LedgerError,
    NotFoundError,
    NotSentError,
    QuotaError,
    RejectedError,
    ServiceError,
    ShapeError,
    TooLargeError,
    UsageError,
)
from bansong.purchase import answers as answer_join
from bansong.purchase import lookups as selection
from bansong.purchase import uploads as batch_upload
from bansong.purchase.changes import UploadSent
from bansong.purchase.ledger import Journal, Ledger, LedgerRun
from bansong.purchase.lookups import (
    KEY,
    LOOKUP,
    PRIORITY,
    PurchaseContext,
    keys_of,
    lookup_expr,
    lookups_of,
    scope_of,
    split,
    with_keys,
)
from bansong.purchase.singles import buy_singly
from examples import examples
from schedules import unsynced

ORIGIN = "https://service.test"
ALWAYS = 0.0
"""No answer is too old."""


class Shop:
    """A service that does as a test tells it: what it says to the n-th request for a lookup, upload or job."""

    origin = ORIGIN

    def __init__(
        self,
        verify: Callable[[str, int], ServiceError | None] = lambda _b_no, _nth: None,
        upload: Callable[[list[list[str]], int], ServiceError | None] = lambda _rows, _nth: None,
        job: Callable[[str, float], str | ServiceError] = lambda _job_id, _age: "done",
        *,
        seconds: float = 0.0,
        results: Callable[[int, list[str]], Result] | None = None,
    ) -> None:
        self._verify, self._upload, self._job, self._seconds = verify, upload, job, seconds
        self._results = results or _result
        self.asked: list[tuple[float, str]] = []
        self.running = self.most = 0
        self.uploads: list[list[list[str]]] = []
        self.jobs: dict[str, tuple[float, list[list[str]]]] = {}
        self.looks: list[float] = []

    async def verify(
        self, b_no: str, name: str | None = None, address: str | None = None, **_key: str | None
    ) -> Verified:
        self.asked.append((anyio.current_time(), b_no))
        nth = len(self.asked)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await anyio.sleep(self._seconds)
        finally:
            self.running -= 1
        error = self._verify(b_no, nth)
        if error is not None:
            raise error
        return Verified(biz_status="active", reasons=[f"{b_no} {name} {address}"])  # type: ignore[arg-type]

    async def create_batch(
        self,
        content: bytes,
        *,
        before_last_byte: Callable[[], Awaitable[None]],
        after_last_byte: Callable[[], Awaitable[None]],
        **_more: str | bool | None,
    ) -> BatchCreated:
        _, *rows = csv.reader(io.StringIO(content.decode()))
        self.uploads.append(rows)
        error = self._upload(rows, len(self.uploads))
        await anyio.sleep(self._seconds)
        if isinstance(error, NotSentError):
            raise error
        await before_last_byte()
        await after_last_byte()
        if error is not None:
            raise error
        job_id = f"job-{len(self.uploads)}"
        self.jobs[job_id] = (anyio.current_time(), rows)
        return BatchCreated(job_id=job_id, total=len(rows))

    async def batch(self, job_id: str, *, preview: int | None = None) -> BatchStatus:
        self.looks.append(anyio.current_time())
        created, rows = self.jobs[job_id]
        said = self._job(job_id, anyio.current_time() - created)
        if isinstance(said, ServiceError):
            raise said
        results = [self._results(place, row) for place, row in enumerate(rows)] if said == "done" else []
        return BatchStatus(status=said, total=len(rows), results=results[:preview])


async def buy_in_uploads(context: PurchaseContext, wanted: pl.DataFrame) -> None:
    """Buy in uploads, and fetch whatever the ledger has open."""
    await batch_upload.buy_in_uploads(context, wanted, context.ledger.open_uploads(context.client.origin))


def _result(place: int, row: list[str]) -> Result:
    b_no, name, address = row
    return Result(key=place, b_no=b_no, name=name, address=address, answer=Answer("active", reasons=(" ".join(row),)))


def numbers(count: int) -> list[str]:
    return [f"{place:010}" for place in range(1_000_000_001, 1_000_000_001 + count)]


def wanted(rows: Sequence[str | tuple[str, str, str]], **flags: bool) -> pl.DataFrame:
    """Lookups with keys, in this order."""
    texts = ["\x1f".join(row if isinstance(row, tuple) else (row, "", "")) for row in rows]
    frame = pl.DataFrame({LOOKUP: texts, ROW_ID: range(len(texts))})
    return with_keys(frame, scope_of(ORIGIN, flags.get("offline"), flags.get("paid")))


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with unsynced(), Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        yield ledger


def bought(
    ledger: Ledger,
    shop: Shop,
    lookups: pl.DataFrame,
    *,
    by: Callable[[PurchaseContext, pl.DataFrame], Awaitable[None]] = buy_singly,
    stop_at: float | None = None,
    **terms: Any,
) -> PurchaseContext:
    """Buy on a fake clock; return what it came to."""
    agreed = ServiceOptions(**{"concurrency": 1, "jobs": 1, "rate": 1e6} | terms)
    run_id = f"run-{len(ledger.runs()) + 1}"
    ledger.begin(LedgerRun(run_id, "test", ORIGIN, "file.csv", 0.0))

    async def at_once(commit: Callable[..., Any], *args: Any, limiter: object = None) -> Any:
        await anyio.sleep(0)
        return commit(*args)

    async def main() -> PurchaseContext:
        with anyio.fail_after(1e7):
            async with Journal(ledger) as journal, anyio.create_task_group() as group:
                scope = scope_of(ORIGIN, agreed.offline, agreed.paid)
                context = PurchaseContext(cast(Client, shop), ledger, journal, agreed, run_id, scope)
                if stop_at is not None:
                    group.start_soon(_stop, context, stop_at)
                await by(context, lookups)
                group.cancel_scope.cancel()
        return context

    with patch.object(anyio.to_thread, "run_sync", at_once):
        return anyio.run(main, backend="trio", backend_options={"clock": MockClock(autojump_threshold=0)})


async def _stop(context: PurchaseContext, after: float) -> None:
    await anyio.sleep(after)
    context.dispatcher.cancel(Halt("interrupted", "interrupted"))


def why(context: PurchaseContext) -> HaltReason | None:
    return context.dispatcher.halt.why if context.dispatcher.halt else None


def states(ledger: Ledger, lookups: pl.DataFrame) -> list[str]:
    found = {place: state for part in ledger.entries(lookups[KEY]) for place, state in part["place", "state"].rows()}
    return [found.get(place, "unknown") for place in range(lookups.height)]


def outcome(ledger: Ledger, lookups: pl.DataFrame) -> pl.DataFrame:
    chosen = lookups.with_columns(pl.lit(True).alias(answer_join.CHOSEN))
    return answer_join.find_outcomes(ledger, chosen, run_id="run-1", since=ALWAYS, halted="", unchosen=None, lang="en")


def askable(ledger: Ledger, lookups: pl.DataFrame) -> list[str]:
    return split(selection.standing(ledger, lookups, ALWAYS).wanted)["b_no"].to_list()


# --- what the service says, one lookup a request


@pytest.mark.parametrize("retry_after", [None, 61.0, 86400.0])
def test_a_quota_that_is_used_up_pauses_the_run(ledger: Ledger, retry_after: float | None) -> None:
    """429 without a Retry-After, or with a long one: nothing more is sent, what was not bought may be asked again."""
    lookups = wanted(numbers(9))
    shop = Shop(lambda _, nth: QuotaError("429", status=429, retry_after=retry_after) if nth > 3 else None)
    assert why(bought(ledger, shop, lookups)) == "quota"
    assert len(shop.asked) == 4
    assert askable(ledger, lookups) == numbers(9)[3:]


def test_a_quota_that_is_free_again_soon_is_waited_for(ledger: Ledger) -> None:
    """429 with a short Retry-After: the same lookup is asked again, not before that."""
    lookups = wanted(numbers(3))
    shop = Shop(lambda _, nth: QuotaError("429", status=429, retry_after=20.0) if nth == 2 else None)
    assert why(bought(ledger, shop, lookups)) is None
    (_, first), (refused, second), (again, same), (_, last) = shop.asked
    assert [first, second, same, last] == [*numbers(2), *numbers(3)[1:]]
    assert again - refused >= 20
    assert states(ledger, lookups) == ["done"] * 3


def test_an_overloaded_service_is_left_alone_for_a_while_and_then_asked_less(ledger: Ledger) -> None:
    """503 with Retry-After: its lookup is in doubt, no request starts until then, and then half as many at once."""
    lookups = wanted(numbers(16))
    shop = Shop(lambda _, nth: DoubtError("503", status=503, retry_after=30.0) if nth == 4 else None, seconds=1.0)
    assert why(bought(ledger, shop, lookups, concurrency=4)) is None
    starts = [start - shop.asked[0][0] for start, _ in shop.asked]
    assert sum(start < 1.5 for start in starts) <= 7
    later = [start for start in starts if start >= 1.5]
    assert later
    assert min(later) >= 31
    assert sum(start < min(later) + 0.5 for start in later) == 2
    assert Counter(states(ledger, lookups)) == {"done": 15, "doubt": 1}


@pytest.mark.parametrize("by", [buy_singly, buy_in_uploads])
@pytest.mark.parametrize("kind", [DoubtError, NotSentError])
def test_a_long_wait_that_the_service_asks_for_pauses_the_run(
    ledger: Ledger, kind: type[ServiceError], by: Callable[[PurchaseContext, pl.DataFrame], Awaitable[None]]
) -> None:
    """503 with a Retry-After of a year: the run ends paused within seconds, it does not sleep through it."""
    error = kind("503", status=503, retry_after=365 * 86400.0)
    shop = Shop(lambda _b_no, _nth: error, lambda _rows, _nth: error)
    lookups = wanted(numbers(5))
    clock: list[float] = []

    async def timed(context: PurchaseContext, lookups: pl.DataFrame) -> None:
        begun = anyio.current_time()
        await by(context, lookups)
        clock.append(anyio.current_time() - begun)

    assert why(bought(ledger, shop, lookups, by=timed)) == "unreachable"
    assert clock[0] < 60
    assert len(shop.asked) + len(shop.uploads) == 1


def test_a_service_that_cannot_be_reached_pauses_the_run(ledger: Ledger) -> None:
    """Not sent, again and again: tried a few times with pauses, then the run pauses; nothing is held."""
    lookups = wanted(numbers(5))
    shop = Shop(lambda _b_no, _nth: NotSentError("cannot connect"))
    assert why(bought(ledger, shop, lookups)) == "unreachable"
    assert 2 <= len(shop.asked) <= 8
    assert {b_no for _, b_no in shop.asked} == set(numbers(1))
    assert askable(ledger, lookups) == numbers(5)


def test_the_budget_of_retries_is_shared_by_all_requests(ledger: Ledger) -> None:
    """Every request fails once, and can be sent again: with a tenth of it for retries the run soon pauses."""
    lookups = wanted(numbers(200))
    seen: set[str] = set()

    def verify(b_no: str, _nth: int) -> ServiceError | None:
        known = b_no in seen
        seen.add(b_no)
        return None if known else NotSentError("cannot connect")

    context = bought(ledger, Shop(verify), lookups)
    assert why(context) == "unreachable"
    assert context.counts.retries <= 10 + context.counts.requests / 10 + 1
    assert set(states(ledger, lookups)) == {"done", "unknown"}


def test_ten_doubts_in_a_row_stop_the_run(ledger: Ledger) -> None:
    """A service that takes requests and gives no answers must not be given all of them."""
    lookups = wanted(numbers(50))
    context = bought(ledger, Shop(lambda _b_no, _nth: DoubtError("500", status=500)), lookups)
    assert why(context) == "failing"
    assert states(ledger, lookups) == ["doubt"] * 10 + ["unknown"] * 40
    assert context.counts.doubts == 10


def test_doubts_among_answers_do_not_stop_the_run(ledger: Ledger) -> None:
    """Nine doubts and an answer, over and over: the service works."""
    lookups = wanted(numbers(100))
    shop = Shop(lambda _, nth: DoubtError("500", status=500) if nth % 10 else None)
    assert why(bought(ledger, shop, lookups)) is None
    assert states(ledger, lookups).count("doubt") == 90


def test_rows_that_are_refused_do_not_stop_the_run(ledger: Ledger) -> None:
    """A 400 is about its row; fifty of them in a row are fifty bad rows, asked last the next time."""
    lookups = wanted(numbers(60))
    bad = set(numbers(50))
    shop = Shop(lambda b_no, _: RejectedError("400: bad row", status=400) if b_no in bad else None)
    assert why(bought(ledger, shop, lookups)) is None
    assert states(ledger, lookups) == ["refused"] * 50 + ["done"] * 10
    more = wanted([*numbers(60), "2000000001"])
    assert askable(ledger, more) == ["2000000001", *numbers(50)]


@pytest.mark.parametrize(
    "error",
    [AuthenticationError("401", status=401), NotFoundError("404", status=404), RejectedError("302", status=302)],
    ids=lambda error: str(error),
)
def test_a_service_that_does_not_let_us_in_ends_the_run(ledger: Ledger, error: ServiceError) -> None:
    """401, a wrong address, a redirect: one request is enough to know, and the error is raised."""
    lookups = wanted(numbers(5))
    shop = Shop(lambda _b_no, _nth: error)
    context = bought(ledger, shop, lookups)
    assert context.dispatcher.halt is not None
    assert (why(context), context.dispatcher.halt.error, len(shop.asked)) == ("refused", error, 1)
    assert askable(ledger, lookups)[-4:] == numbers(5)[1:] or len(askable(ledger, lookups)) == 5


def test_what_cannot_be_read_is_kept_and_not_asked_again(ledger: Ledger) -> None:
    """2xx of another shape: paid, counted, held."""
    lookups = wanted(numbers(2))
    shop = Shop(lambda _, nth: ShapeError("no JSON", status=200, raw=b"<html>") if nth == 1 else None)
    context = bought(ledger, shop, lookups)
    assert states(ledger, lookups) == ["unreadable", "done"]
    assert (context.counts.paid, askable(ledger, lookups)) == (2, [])


def test_a_defect_stops_the_run_in_good_order(ledger: Ledger) -> None:
    """What nobody expected ends the run with its error; requests under way elsewhere are settled first."""
    lookups = wanted(numbers(6))

    def verify(_b_no: str, nth: int) -> None:
        if nth == 2:
            raise ZeroDivisionError("a defect")

    context = bought(ledger, Shop(verify), lookups)
    assert why(context) == "fault"
    assert context.dispatcher.halt is not None
    assert isinstance(context.dispatcher.halt.error, ZeroDivisionError)
    assert states(ledger, lookups) == ["done", "doubt"] + ["unknown"] * 4


# --- stopping


def test_what_is_under_way_at_a_stop_is_settled(ledger: Ledger) -> None:
    """Interrupted, a run starts nothing new, and waits for the answers to what it has asked."""
    lookups = wanted(numbers(8))
    assert why(bought(ledger, Shop(seconds=5.0), lookups, concurrency=2, stop_at=7.0, drain=10.0)) == "interrupted"
    assert states(ledger, lookups) == ["done"] * 4 + ["unknown"] * 4


def test_what_is_not_settled_in_time_is_in_doubt(ledger: Ledger) -> None:
    """When the seconds to drain are over, what is still under way is put in doubt, and nothing else."""
    lookups = wanted(numbers(8))
    context = bought(ledger, Shop(seconds=5.0), lookups, concurrency=2, stop_at=7.0, drain=2.0)
    assert states(ledger, lookups) == ["done"] * 2 + ["doubt"] * 2 + ["unknown"] * 4
    assert context.counts.doubts == 2


def test_an_upload_that_is_broken_off_before_its_last_bytes_was_never_sent(ledger: Ledger) -> None:
    """Stopped before the gate, the rows of an upload may be asked again."""
    lookups = wanted(numbers(4))
    shop = Shop(seconds=60.0)
    assert why(bought(ledger, shop, lookups, by=buy_in_uploads, stop_at=5.0, drain=1.0)) == "interrupted"
    assert askable(ledger, lookups) == numbers(4)


def test_waiting_for_a_job_does_not_hold_up_a_stop(ledger: Ledger) -> None:
    """A job that is only waited for is left at once, and known to the next run, which fetches it."""
    lookups = wanted(numbers(4))
    shop = Shop(job=lambda _, age: "processing" if age < 1000 else "done")
    assert why(bought(ledger, shop, lookups, by=buy_in_uploads, stop_at=5.0, drain=1e6)) == "interrupted"
    assert shop.looks[-1] < 6
    assert states(ledger, lookups) == ["uploaded"] * 4
    shop.jobs = {job_id: (-1e6, rows) for job_id, (_, rows) in shop.jobs.items()}
    assert why(bought(ledger, shop, lookups.clear(), by=buy_in_uploads)) is None
    assert states(ledger, lookups) == ["done"] * 4
    assert len(shop.uploads) == 1


# --- uploads


def test_an_upload_that_is_too_large_is_halved_and_the_limit_remembered(ledger: Ledger) -> None:
    """413: half as many rows from then on, in the next run, too."""
    shop = Shop(upload=lambda rows, _: TooLargeError("413", status=413) if len(rows) > 3 else None)
    lookups = wanted(numbers(10))
    assert why(bought(ledger, shop, lookups, by=buy_in_uploads, chunk=8)) is None
    assert [len(rows) for rows in shop.uploads] == [8, 4, 2, 2, 2, 2, 2]
    assert states(ledger, lookups) == ["done"] * 10
    assert ledger.limit(ORIGIN) == 2
    more = Shop()
    bought(ledger, more, wanted(["2000000001", "2000000002", "2000000003"]), by=buy_in_uploads, chunk=8)
    assert [len(rows) for rows in more.uploads] == [2, 1]


def test_a_row_that_is_too_large_even_alone_is_refused_by_itself(ledger: Ledger) -> None:
    """413 for one row: it has failed, with what the service said; the others are bought."""
    big = numbers(5)[2]
    shop = Shop(
        upload=lambda rows, _: TooLargeError("413: too large", status=413) if any(r[0] == big for r in rows) else None
    )
    lookups = wanted(numbers(5))
    assert why(bought(ledger, shop, lookups, by=buy_in_uploads, chunk=4)) is None
    assert states(ledger, lookups) == ["done", "done", "refused", "done", "done"]
    found = outcome(ledger, lookups)
    assert found["row_status"].to_list() == ["verified", "verified", "failed", "verified", "verified"]
    assert "413: too large" in found["row_note"][2]


@pytest.mark.parametrize(
    "error", [QuotaError("429", status=429), TooLargeError("413", status=413)], ids=lambda error: str(error)
)
def test_rows_of_an_upload_that_was_refused_are_as_if_never_asked(ledger: Ledger, error: ServiceError) -> None:
    """A used up quota, or a file that is too large, says nothing of its rows: they wait, and come first next time."""
    lookups = wanted(numbers(6))
    shop = Shop(upload=lambda _, nth: error if nth == 2 else None, seconds=1.0)
    context = bought(ledger, shop, lookups, by=buy_in_uploads, chunk=2, stop_at=3.5, drain=0.1)
    assert why(context) == ("quota" if isinstance(error, QuotaError) else "interrupted")
    assert outcome(ledger, lookups)["row_status"].to_list() == ["verified"] * 2 + ["pending"] * 4
    assert askable(ledger, lookups) == numbers(6)[2:]


def test_three_uploads_that_come_to_nothing_stop_the_run(ledger: Ledger) -> None:
    """An upload in doubt holds all its rows, so it takes fewer of them to stop."""
    lookups = wanted(numbers(20))
    shop = Shop(upload=lambda _rows, _nth: DoubtError("500", status=500))
    assert why(bought(ledger, shop, lookups, by=buy_in_uploads, chunk=2)) == "stopped"
    assert len(shop.uploads) == 3
    assert states(ledger, lookups) == ["doubt"] * 6 + ["unknown"] * 14


def test_an_upload_that_was_not_sent_is_sent_again(ledger: Ledger) -> None:
    """Not sent: the same rows in another upload."""
    lookups = wanted(numbers(2))
    shop = Shop(upload=lambda _, nth: NotSentError("cannot connect") if nth < 3 else None)
    assert why(bought(ledger, shop, lookups, by=buy_in_uploads)) is None
    assert [len(rows) for rows in shop.uploads] == [2, 2, 2]
    assert states(ledger, lookups) == ["done"] * 2


def test_an_upload_that_is_taken_before_its_last_bytes_is_paid(ledger: Ledger) -> None:
    """A service may name the job while the file is still on its way: that is no reason to upload it again."""

    class Hasty(Shop):
        async def create_batch(self, content: bytes, **_: Any) -> BatchCreated:
            async def unasked() -> None: ...

            return await super().create_batch(content, before_last_byte=unasked, after_last_byte=unasked)

    lookups = wanted(numbers(3))
    assert why(bought(ledger, Hasty(), lookups, by=buy_in_uploads)) is None
    assert states(ledger, lookups) == ["done"] * 3


def test_a_job_is_known_though_its_last_byte_could_not_be_noted(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ledger that fails for a moment while the reply is on its way must not cost the job's name."""
    settle = ledger.settle

    def failing(changes: Sequence[Any]) -> None:
        if any(isinstance(change, UploadSent) for change in changes):
            raise LedgerError("the disk is full")
        settle(changes)

    monkeypatch.setattr(ledger, "settle", failing)
    lookups = wanted(numbers(3))
    assert why(bought(ledger, Shop(), lookups, by=buy_in_uploads)) is None
    assert states(ledger, lookups) == ["done"] * 3


def _silent(place: int, row: list[str]) -> Result:
    return Result(key=place, answer=Answer("active", reasons=tuple(row[:1])))


class Fickle(Shop):
    """Shows other results at each look at a job that is done: the places of each, or an error."""

    def __init__(self, *looks: Sequence[int] | ServiceError) -> None:
        super().__init__()
        self._shown = iter(looks)

    async def batch(self, job_id: str, *, preview: int | None = None) -> BatchStatus:
        full = await super().batch(job_id, preview=preview)
        if preview == 1:
            return full
        shown = next(self._shown)
        if isinstance(shown, ServiceError):
            raise shown
        return full.model_copy(update={"results": [full.results[place] for place in shown]})


@pytest.mark.parametrize(
    "looks",
    [
        ([0, 1, 2], NotFoundError("404", status=404)),
        ([0, 1, 2], ShapeError("no JSON", status=200)),
        ([0, 2], [1], [0]),
    ],
    ids=["gone", "unreadable", "other rows"],
)
def test_what_one_look_has_shown_is_not_lost_by_the_next(ledger: Ledger, looks: tuple[Any, ...]) -> None:
    """A job that is gone, unreadable or shows other rows at the second look: the answers of the first are kept."""
    lookups = wanted(numbers(4))
    assert why(bought(ledger, Fickle(*looks), lookups, by=buy_in_uploads)) is None
    assert states(ledger, lookups) == ["done"] * 3 + ["missing"]


def test_results_are_asked_for_in_numbers_that_the_service_gives(ledger: Ledger) -> None:
    """A preview that is refused for its size is halved, and so are the next uploads: the job is not stuck for ever."""

    class Sparing(Shop):
        async def batch(self, job_id: str, *, preview: int | None = None) -> BatchStatus:
            if preview is not None and preview > 3:
                raise RejectedError("422: preview is at most 3", status=422)
            return await super().batch(job_id, preview=preview)

    shop, lookups = Sparing(), wanted(numbers(10))
    assert why(bought(ledger, shop, lookups, by=buy_in_uploads, chunk=6)) is None
    assert [len(rows) for rows in shop.uploads] == [6, 3, 1]
    assert states(ledger, lookups) == ["done"] * 3 + ["missing"] * 3 + ["done"] * 4


def test_a_job_that_other_rows_became_too_gives_no_answer_by_row_keys_alone(ledger: Ledger) -> None:
    """A service that names one job twice: whose results it shows only an echo tells."""

    class Forgetful(Shop):
        async def create_batch(self, *args: Any, **steps: Any) -> BatchCreated:
            created = await super().create_batch(*args, **steps)
            self.jobs["job-1"] = self.jobs[f"job-{2 if len(self.uploads) > 1 else 1}"]
            return created.model_copy(update={"job_id": "job-1"})

    first, second = wanted(numbers(4)[:2]), wanted(numbers(4)[2:])
    shop = Forgetful(results=_silent)
    bought(ledger, shop, first, by=buy_in_uploads)
    assert states(ledger, first) == ["done"] * 2
    bought(ledger, shop, second, by=buy_in_uploads)
    assert states(ledger, second) == ["missing"] * 2
    third = wanted([*numbers(6)[4:]])
    echoing = Forgetful()
    bought(ledger, echoing, third, by=buy_in_uploads)
    assert states(ledger, third) == ["done"] * 2


@pytest.mark.parametrize(("results", "placed"), [(None, "done"), (_silent, "missing")])
def test_the_record_of_another_job_gives_no_answer_by_row_keys_alone(
    ledger: Ledger, results: Callable[[int, list[str]], Result] | None, placed: str
) -> None:
    """A status that names another job than was asked for is believed where it repeats the rows."""

    class Confused(Shop):
        async def batch(self, job_id: str, *, preview: int | None = None) -> BatchStatus:
            status = await super().batch(job_id, preview=preview)
            return BatchStatus(**{**dict(status), "results": status.results}, job_id="job-7")  # type: ignore[call-arg]

    lookups = wanted(numbers(3))
    bought(ledger, Confused(results=results), lookups, by=buy_in_uploads)
    assert states(ledger, lookups) == [placed] * 3


def test_a_job_whose_name_no_url_can_hold_is_lost_and_said_to_be(ledger: Ledger) -> None:
    """Named wrongly by hand, it must not keep every later run from going on."""

    class Strict(Shop):
        async def batch(self, job_id: str, *, preview: int | None = None) -> BatchStatus:
            if job_id == "..":
                raise UsageError("'..' is not an identifier that the service can have given")
            return await super().batch(job_id, preview=preview)

    lookups = wanted(numbers(2))
    bought(ledger, Shop(upload=lambda *_: DoubtError("500", status=500)), lookups, by=buy_in_uploads)
    ledger.attach(ledger.doubts()[0].id, "..")
    others = wanted(["2000000001"])
    assert why(bought(ledger, Strict(), others, by=buy_in_uploads)) is None
    assert states(ledger, lookups) + states(ledger, others) == ["missing", "missing", "done"]


def test_the_older_a_job_the_rarer_it_is_looked_at(ledger: Ledger) -> None:
    """At first every ``poll`` seconds, then a sixtieth of its age later, at most every 30 s."""
    shop = Shop(job=lambda _, age: "processing" if age < 7200 else "done")
    lookups = wanted(numbers(2))
    assert why(bought(ledger, shop, lookups, by=buy_in_uploads, poll=0.5)) is None
    gaps = [after - before for before, after in pairwise(shop.looks)][:-1]
    assert all(gap == pytest.approx(0.5, abs=0.01) for gap in gaps[:20])
    assert all(later >= earlier - 0.01 for earlier, later in pairwise(gaps))
    assert max(gaps) == pytest.approx(30, abs=0.01)
    assert len(gaps) < 600
    assert states(ledger, lookups) == ["done"] * 2


def test_a_job_that_does_not_end_stays_known(ledger: Ledger) -> None:
    """After some hours the run pauses; the job is not given up."""
    shop = Shop(job=lambda _job_id, _age: "processing")
    lookups = wanted(numbers(2))
    context = bought(ledger, shop, lookups, by=buy_in_uploads)
    assert why(context) == "unreachable"
    assert shop.looks[-1] - shop.looks[0] > 5 * 3600
    assert [upload.job_id for upload in ledger.open_uploads(ORIGIN)] == ["job-1"]
    assert states(ledger, lookups) == ["uploaded"] * 2


def test_results_that_cannot_be_read_leave_the_job_known(ledger: Ledger) -> None:
    """A look that cannot be read costs nothing but the look: nothing more is bought, the job is fetched next time."""
    shop = Shop(job=lambda _job_id, _age: ShapeError("no JSON", status=200, raw=b"<html>"))
    lookups = wanted(numbers(6))
    assert why(bought(ledger, shop, lookups, by=buy_in_uploads, chunk=2)) == "unreachable"
    assert len(shop.uploads) == 1
    assert states(ledger, lookups) == ["uploaded"] * 2 + ["unknown"] * 4
    assert why(bought(ledger, _after(shop), lookups[2:], by=buy_in_uploads, chunk=2)) is None
    assert states(ledger, lookups) == ["done"] * 6


def _after(shop: Shop) -> Shop:
    """The same service, well again."""
    later = Shop()
    later.jobs, later.uploads = shop.jobs, shop.uploads
    return later


def test_a_job_that_is_not_known_yet_is_asked_for_again(ledger: Ledger) -> None:
    """Some services take a moment to know a fresh job; one that stays unknown is lost, and its rows are held."""
    looks = iter([NotFoundError("404", status=404)] * 2)
    lookups = wanted(numbers(2))
    assert why(bought(ledger, Shop(job=lambda *_: next(looks, "done")), lookups, by=buy_in_uploads)) is None
    assert states(ledger, lookups) == ["done"] * 2
    others = wanted(["2000000001"])
    bought(ledger, Shop(job=lambda *_: NotFoundError("404", status=404)), others, by=buy_in_uploads)
    assert states(ledger, others) == ["missing"]


def test_the_job_of_another_run_is_fetched_with_its_own_flags(ledger: Ledger) -> None:
    """Rows of one number are told apart by their keys, and those depend on the flags of the run that uploaded them."""

    def echoed(_place: int, row: list[str]) -> Result:
        b_no, name, address = row
        return Result(b_no=b_no, name=name, address=address or None, answer=Answer("active", reasons=(" ".join(row),)))

    rows = [("1000000001", name, "서울 중구") for name in ("가나", "다라", "마바")]
    lookups = wanted(rows, offline=True)
    bought(ledger, Shop(), wanted(numbers(100)), by=buy_in_uploads)  # proves row keys: a number may go more than once
    shop = Shop(job=lambda _job_id, _age: "queued", results=echoed)
    bought(ledger, shop, lookups, by=buy_in_uploads, offline=True, stop_at=5.0)
    later = Shop(results=lambda place, _row: echoed(place, list(rows[2 - place])))
    later.jobs = shop.jobs
    assert why(bought(ledger, later, lookups.clear(), by=buy_in_uploads)) is None
    found = pl.concat(ledger.entries(lookups[KEY])).sort("place")
    assert found["reasons"].to_list() == [" ".join(row) for row in rows]


# --- what is bought


def _assessed(**columns: list[Any]) -> pl.DataFrame:
    height = len(next(iter(columns.values())))
    return pl.DataFrame({ROW_ID: range(height)} | columns)


def test_the_largest_priority_comes_first() -> None:
    """By the user's column, largest first; equals in the order of the file, rows without one last."""
    frame = _assessed(**{PRIORITY: [None, 1.0, 7.0, float("nan"), 7.0, -2.0]})
    assert selection.worthiest_first(frame)[ROW_ID].to_list() == [2, 4, 1, 5, 0, 3]


def test_without_a_priority_the_least_certain_comes_first() -> None:
    """Unknown statuses, then probabilities nearest to one half, then where no letter can go."""
    frame = _assessed(status_unknown=[False, False, True, False, True], bounce_prob=[0.9, 0.45, 0.1, None, 0.5])
    assert selection.worthiest_first(frame)[ROW_ID].to_list() == [4, 2, 1, 0, 3]


def test_the_hybrid_engine_buys_what_it_cannot_tell() -> None:
    """No status, or a probability in the band, bounds included; never where only the probability is missing."""
    frame = _assessed(
        status_unknown=[True, False, False, False, False, False], bounce_prob=[None, 0.08, 0.5, 0.07, 0.51, None]
    )
    assert selection.uncertain(frame, (0.08, 0.5))[ROW_ID].to_list() == [0, 1, 2]


@pytest.mark.parametrize(
    ("needed", "budget", "remaining", "affordable"),
    [
        (10, None, None, 10),
        (10, None, 10, 10),
        (10, None, 9, None),
        (10, 4, None, 4),
        (10, 4, 3, 3),
        (10, 40, 9, 9),
        (10, 40, 90, 10),
        (10, 0, 90, 0),
        (10, 4, 0, 0),
        (0, None, 0, 0),
    ],
)
def test_what_can_be_afforded(needed: int, budget: int | None, remaining: int | None, affordable: int | None) -> None:
    """All or nothing without a budget; with one, as much as budget and quota allow."""
    if affordable is None:
        with pytest.raises(QuotaError, match=f"`budget={remaining}`"):
            selection.affordable(needed, budget, remaining)
    else:
        assert selection.affordable(needed, budget, remaining) == affordable


# --- what a lookup is


def _lookups(rows: Sequence[tuple[str | None, str | None, str | None]]) -> pl.DataFrame:
    frame = pl.LazyFrame(rows, schema=dict.fromkeys(("b_no", "name", "address"), pl.String), orient="row")
    frame = with_digits(frame.with_row_index(ROW_ID)).with_columns(pl.lit(None, pl.String).alias(ROW_PROBLEM))
    return lookups_of(frame.with_columns(lookup_expr(frame, suspect=True).alias(LOOKUP)))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("가나상사", "\u1100\u1161\u1102\u1161\u1109\u1161\u11bc\u1109\u1161"),
        ("가나  상사", "가나 상사"),
        (" 가나상사\t", "가나상사"),
        ("가나\r\n상사", "가나 상사"),
        ("가나\u3000상사", "가나\u00a0상사"),
        ("가나\x00상사", "가나\x1f상사"),
        ("\ufeff가나\u200b상사", "가나상\u00ad사\u200e"),
        ("\u200b", None),
        ("", None),
        ("   ", None),
        ("-", None),
    ],
)
def test_rows_that_say_the_same_are_one_lookup(one: str, other: str | None) -> None:
    """Composition, white space, what has no width and words for nothing make no difference, in name and address."""
    number = "124-81-00998"
    found = _lookups([(number, one, "서울"), ("1248100998", other, "서울"), (number, "가", one), (number, "가", other)])
    assert found[ROW_ID].to_list() == [0, 2]


def test_rows_that_say_different_things_are_different_lookups() -> None:
    """Case, letters, and which of the two columns it stands in make a difference."""
    number = "1248100998"
    rows = [(number, "A", ""), (number, "a", ""), (number, "", "A"), (number, "A B", ""), (number, "A", "B")]
    found = _lookups([*rows, ("2208162517", "A", "")])
    assert found[ROW_ID].to_list() == [*range(6)]
    assert with_keys(found, "scope")[KEY].n_unique() == 6


def test_keys_are_the_same_for_ever() -> None:
    """A hash that changed with a release would have everything paid again."""
    lookups = with_keys(
        _lookups([("1248100998", None, None), ("124-81-00998", "삼성전자", "경기 수원시 영통구 삼성로 129")]),
        scope_of("https://api.example.com", None, True),
    )
    assert [key.hex() for key in lookups[KEY]] == [
        "ba5422244f224d372faf30e18ce2fd3e",
        "fcc0002cfb33152d70d6ea48679b8b8b",
    ]


def test_keys_depend_on_the_service_and_the_flags() -> None:
    """An answer of one service, or bought with one flag, is not another's."""
    lookups = _lookups([("1248100998", None, None)])
    scopes = [scope_of(origin, offline, paid) for origin in ("a", "b") for offline in (None, True, False)
              for paid in (None, True, False)]  # fmt: skip
    assert len({with_keys(lookups, scope)[KEY][0] for scope in scopes}) == 18


texts = st.none() | st.text(max_size=8) | st.text("가나 \t\x00\x1f-A\u0301Å\u1100\u1161\u3000", max_size=6)


@given(st.lists(st.tuples(st.sampled_from(["1248100998", "124-81-00998", "2208162517"]), texts, texts), max_size=5))
@examples(100)
def test_an_echo_has_the_key_of_its_row(rows: list[tuple[str, str | None, str | None]]) -> None:
    """What a service repeats of a row, as it was written or as it was sent, leads to the same key as the row itself."""
    lookups = with_keys(_lookups(rows), "scope")
    keys = set(lookups[KEY])
    assert set(keys_of("scope", rows).values()) == keys
    sent = list(split(lookups).iter_rows())
    assert [keys_of("scope", [row]).get(row) for row in sent] == lookups[KEY].to_list()


# --- from blocking code and back


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set whenever the main thread begins to wait for the end: only then may Ctrl-C be pressed."""
    begun, wait = threading.Event(), PortalTask.wait

    def told(task: PortalTask[Any]) -> Any:
        begun.set()
        return wait(task)

    monkeypatch.setattr(PortalTask, "wait", told)
    return begun


async def _press(waiting: threading.Event) -> None:
    """Press Ctrl-C."""
    assert await anyio.to_thread.run_sync(waiting.wait, 60)
    waiting.clear()
    signal.pthread_kill(cast(int, threading.main_thread().ident), signal.SIGINT)


def test_the_first_interrupt_lets_the_run_settle(waiting: threading.Event) -> None:
    """Ctrl-C pulls the brake; the run ends in good order, and then KeyboardInterrupt is raised."""
    brake, told = CancelToken(), []

    async def main() -> None:
        stopped = anyio.Event()
        brake.set_handler(stopped.set)
        await _press(waiting)
        await stopped.wait()
        await anyio.sleep(0)
        told.append("settled")

    with pytest.raises(KeyboardInterrupt):
        run_async(main, brake)
    assert told == ["settled"]


def test_the_second_interrupt_cancels(waiting: threading.Event) -> None:
    """Whoever presses Ctrl-C twice does not want to wait; what is cancelled may still write down where it was."""
    brake, told = CancelToken(), []

    async def main() -> None:
        stopped = anyio.Event()
        brake.set_handler(stopped.set)
        try:
            await _press(waiting)
            await stopped.wait()
            await _press(waiting)
            await anyio.sleep_forever()
        finally:
            told.append("cancelled")

    with pytest.raises(KeyboardInterrupt):
        run_async(main, brake)
    assert told == ["cancelled"]


def test_ctrl_c_can_leave_no_lock_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that signals reach takes no lock of Python while it waits: interrupted, it could not give it back."""
    enter, taken, waits = threading.Condition.__enter__, [], threading.Event()

    def entered(condition: threading.Condition) -> bool:
        if waits.is_set() and threading.get_ident() == threading.main_thread().ident:
            taken.append(condition)
        return enter(condition)

    async def main() -> None:
        while not waits.is_set():  # starting a task does take locks, and may last longer than the task's first steps
            await anyio.sleep(0.01)
        await anyio.sleep(0.3)
        waits.clear()

    monkeypatch.setattr(threading.Condition, "__enter__", entered)
    with start_blocking_portal() as portal:
        task = PortalTask(portal, main)
        waits.set()
        task.wait()
    assert taken == []


def test_a_brake_that_was_pulled_before_stops_at_once() -> None:
    """A pull is not forgotten, and one more changes nothing."""
    brake, told = CancelToken(), []
    brake.cancel()
    brake.set_handler(lambda: told.append("stopped"))
    brake.cancel()
    brake.set_handler(None)
    brake.cancel()
    assert told == ["stopped"] * 2


def test_a_brake_that_is_pulled_in_another_thread_wakes_what_only_waits() -> None:
    """At once, and without an error in the thread that pulls it: an event loop is reached by its own door."""
    brake, waits, failed = CancelToken(), threading.Event(), []

    async def main() -> bool:
        dispatcher = Dispatcher(rate=1.0, drain=0.0)
        brake.set_handler(lambda: dispatcher.cancel(Halt("interrupted", "interrupted")))
        with anyio.fail_after(20), dispatcher.cancellable_wait():
            waits.set()
            await anyio.sleep_forever()
        return dispatcher.is_cancelled

    def pull() -> None:
        waits.wait(10)
        try:
            brake.cancel()
        except Exception as error:
            failed.append(error)

    puller = threading.Thread(target=pull)
    puller.start()
    assert run_async(main, brake)
    puller.join()
    assert failed == []


async def _thread() -> int:
    await anyio.sleep(0)
    return threading.get_ident()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_it_runs_inside_a_running_event_loop(backend: str) -> None:
    """As in a notebook: blocking code called from a coroutine."""

    async def notebook() -> int:
        return run_async(_thread, CancelToken())

    assert anyio.run(notebook, backend=backend) != threading.get_ident()


def test_it_runs_in_another_thread_and_raises_what_was_raised() -> None:
    """A thread has no Ctrl-C; results and errors come back to it."""
    results: list[object] = []

    async def broken() -> None:
        raise LookupError("no such thing")

    def work() -> None:
        results.append(run_async(_thread, CancelToken()))
        try:
            run_async(broken, CancelToken())
        except LookupError as error:
            results.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(results) == 2
    assert results[0] not in (thread.ident, threading.get_ident())
    assert results[1] == "no such thing"


@pytest.mark.parametrize("in_a_task", [True, False])
def test_an_interrupt_that_polars_raises_in_the_loops_thread_ends_the_run(
    in_a_task: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """Polars raises Ctrl-C in whichever thread runs a query; there it comes in groups of exceptions, or alone."""

    async def query() -> None:
        raise KeyboardInterrupt

    async def main() -> None:
        if not in_a_task:
            await query()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(query)

    with pytest.raises(KeyboardInterrupt):
        run_async(main, CancelToken())
    assert capfd.readouterr() == ("", "")
