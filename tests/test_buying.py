"""Buying, step by step on trio's fake clock: when it waits, when it stops, what it leaves in the ledger."""

from __future__ import annotations

import csv
import io
import signal
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from itertools import pairwise, product
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import anyio
import anyio.to_thread
import polars as pl
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
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
from bansong.engine.protocol import LOOKUP
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
    PRIORITY,
    PurchaseContext,
    keys_of,
    lookup_expr,
    lookups_of,
    scope_of,
    split,
    with_keys,
)
from bansong.purchase.proof import match_results
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

LATER, SOON = {"retry_after": 86_400.0}, {"retry_after": 20.0}
FROM_THE_FOURTH = ["done"] * 3 + ["unknown"] * 6
DOUBT = ["done"] * 3 + ["doubt"] + ["unknown"] * 5
ANSWERS: dict[str, tuple[ServiceError, HaltReason | None, list[str]]] = {
    "429": (QuotaError("429", status=429), "quota", FROM_THE_FOURTH),
    "429, tomorrow": (QuotaError("429", status=429, **LATER), "quota", FROM_THE_FOURTH),
    "503, tomorrow": (DoubtError("503", status=503, **LATER), "unreachable", DOUBT),
    "not sent": (NotSentError("cannot connect"), "unreachable", FROM_THE_FOURTH),
    "not sent, tomorrow": (NotSentError("503", status=503, **LATER), "unreachable", FROM_THE_FOURTH),
    "400": (RejectedError("400: bad row", status=400), None, ["done"] * 3 + ["refused"] * 6),
    "500": (DoubtError("500", status=500), None, ["done"] * 3 + ["doubt"] * 6),
    "unreadable": (ShapeError("no JSON", status=200, raw=b"<html>"), None, ["done"] * 3 + ["unreadable"] * 6),
    "401": (AuthenticationError("401", status=401), "refused", FROM_THE_FOURTH),
    "404": (NotFoundError("404", status=404), "refused", FROM_THE_FOURTH),
    "302": (RejectedError("302", status=302), "refused", FROM_THE_FOURTH),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_what_the_service_says_decides_what_is_held_and_whether_the_run_goes_on(ledger: Ledger, case: str) -> None:
    """What may have been paid is held; what was not paid may be asked again, refused rows last."""
    error, halt, expected = ANSWERS[case]
    lookups = wanted(numbers(9))
    clock: list[float] = []

    async def timed(context: PurchaseContext, lookups: pl.DataFrame) -> None:
        await buy_singly(context, lookups)
        clock.append(anyio.current_time())

    shop = Shop(lambda _, nth: error if nth > 3 else None)
    context = bought(ledger, shop, lookups, by=timed)
    assert (why(context), states(ledger, lookups)) == (halt, expected)
    assert clock[0] - shop.asked[0][0] < 120, "no day is slept through"
    assert len({b_no for _, b_no in shop.asked}) == (4 if halt else 9)
    assert (context.dispatcher.halt and context.dispatcher.halt.error) == (error if halt == "refused" else None)
    new = wanted([*numbers(9), "2000000001"])
    refused = numbers(9)[3:] if case == "400" else []
    free = [b_no for b_no, state in zip(numbers(9), expected, strict=True) if state == "unknown"]
    assert askable(ledger, new) == [*free, "2000000001", *refused]
    assert context.counts.paid == (9 if case == "unreadable" else 3)
    assert context.counts.doubts == expected.count("doubt")


def test_a_quota_that_is_free_again_soon_is_waited_for(ledger: Ledger) -> None:
    lookups = wanted(numbers(3))
    shop = Shop(lambda _, nth: QuotaError("429", status=429, **SOON) if nth == 2 else None)
    assert why(bought(ledger, shop, lookups)) is None
    (_, first), (refused, second), (again, same), (_, last) = shop.asked
    assert [first, second, same, last] == [*numbers(2), *numbers(3)[1:]]
    assert again - refused >= 20


def test_an_overloaded_service_is_left_alone_for_a_while_and_then_asked_less(ledger: Ledger) -> None:
    lookups = wanted(numbers(16))
    shop = Shop(lambda _, nth: DoubtError("503", status=503, retry_after=30.0) if nth == 4 else None, seconds=1.0)
    assert why(bought(ledger, shop, lookups, concurrency=4)) is None
    starts = [start - shop.asked[0][0] for start, _ in shop.asked]
    later = [start for start in starts if start >= 1.5]
    assert len(starts) - len(later) <= 7
    assert min(later) >= 31
    assert sum(start < min(later) + 0.5 for start in later) == 2, "half as many at once"
    assert Counter(states(ledger, lookups)) == {"done": 15, "doubt": 1}


def test_the_budget_of_retries_is_shared_by_all_requests(ledger: Ledger) -> None:
    seen: set[str] = set()

    def verify(b_no: str, _nth: int) -> ServiceError | None:
        known = b_no in seen
        seen.add(b_no)
        return None if known else NotSentError("cannot connect")

    context = bought(ledger, Shop(verify), wanted(numbers(200)))
    assert why(context) == "unreachable"
    assert context.counts.retries <= 10 + context.counts.requests / 10 + 1


@pytest.mark.parametrize(("good", "halt", "doubts"), [(0, "failing", 10), (10, None, 45)])
def test_ten_doubts_in_a_row_stop_the_run(ledger: Ledger, good: int, halt: HaltReason | None, doubts: int) -> None:
    """Nine doubts and an answer, over and over: the service works."""
    shop = Shop(lambda _, nth: None if good and not nth % good else DoubtError("500", status=500))
    lookups = wanted(numbers(50))
    assert why(bought(ledger, shop, lookups)) == halt
    assert states(ledger, lookups).count("doubt") == doubts


def test_a_defect_stops_the_run_in_good_order(ledger: Ledger) -> None:
    def verify(_b_no: str, nth: int) -> None:
        if nth == 2:
            raise ZeroDivisionError("a defect")

    lookups = wanted(numbers(6))
    context = bought(ledger, Shop(verify), lookups)
    assert context.dispatcher.halt is not None
    assert (why(context), type(context.dispatcher.halt.error)) == ("fault", ZeroDivisionError)
    assert states(ledger, lookups) == ["done", "doubt"] + ["unknown"] * 4


# --- stopping


@pytest.mark.parametrize(("drain", "settled"), [(10.0, "done"), (2.0, "doubt")])
def test_what_is_under_way_at_a_stop_is_settled_in_time_or_in_doubt(ledger: Ledger, drain: float, settled: str) -> None:
    lookups = wanted(numbers(8))
    context = bought(ledger, Shop(seconds=5.0), lookups, concurrency=2, stop_at=7.0, drain=drain)
    assert why(context) == "interrupted"
    assert states(ledger, lookups) == ["done"] * 2 + [settled] * 2 + ["unknown"] * 4


def test_an_upload_that_is_broken_off_before_its_last_bytes_was_never_sent(ledger: Ledger) -> None:
    lookups = wanted(numbers(4))
    shop = Shop(seconds=60.0)
    assert why(bought(ledger, shop, lookups, by=buy_in_uploads, stop_at=5.0, drain=1.0)) == "interrupted"
    assert askable(ledger, lookups) == numbers(4)


def test_waiting_for_a_job_does_not_hold_up_a_stop(ledger: Ledger) -> None:
    lookups = wanted(numbers(4))
    shop = Shop(job=lambda _, age: "processing" if age < 1000 else "done")
    assert why(bought(ledger, shop, lookups, by=buy_in_uploads, stop_at=5.0, drain=1e6)) == "interrupted"
    assert shop.looks[-1] < 6
    assert states(ledger, lookups) == ["uploaded"] * 4
    shop.jobs = {job_id: (-1e6, rows) for job_id, (_, rows) in shop.jobs.items()}
    assert why(bought(ledger, shop, lookups.clear(), by=buy_in_uploads)) is None
    assert (states(ledger, lookups), len(shop.uploads)) == (["done"] * 4, 1)


# --- uploads


def test_an_upload_that_is_too_large_is_halved_and_the_limit_remembered(ledger: Ledger) -> None:
    shop = Shop(upload=lambda rows, _: TooLargeError("413", status=413) if len(rows) > 3 else None)
    lookups = wanted(numbers(10))
    assert why(bought(ledger, shop, lookups, by=buy_in_uploads, chunk=8)) is None
    assert [len(rows) for rows in shop.uploads] == [8, 4, 2, 2, 2, 2, 2]
    assert states(ledger, lookups) == ["done"] * 10
    more = Shop()
    bought(ledger, more, wanted(["2000000001", "2000000002", "2000000003"]), by=buy_in_uploads, chunk=8)
    assert [len(rows) for rows in more.uploads] == [2, 1]


def test_a_row_that_is_too_large_even_alone_is_refused_by_itself(ledger: Ledger) -> None:
    big, error = numbers(5)[2], TooLargeError("413: too large", status=413)
    shop = Shop(upload=lambda rows, _: error if any(row[0] == big for row in rows) else None)
    lookups = wanted(numbers(5))
    assert why(bought(ledger, shop, lookups, by=buy_in_uploads, chunk=4)) is None
    assert states(ledger, lookups) == ["done", "done", "refused", "done", "done"]
    found = outcome(ledger, lookups)
    assert found["row_status"].to_list() == ["verified", "verified", "failed", "verified", "verified"]
    assert "413: too large" in found["row_note"][2]


@pytest.mark.parametrize(
    ("error", "halt", "uploads", "held"),
    [
        (QuotaError("429", status=429), "quota", 2, "unknown"),
        (NotSentError("503", status=503, **LATER), "unreachable", 2, "unknown"),
        (AuthenticationError("401", status=401), "refused", 2, "unknown"),
        (RejectedError("400", status=400), "refused", 2, "unknown"),
        (DoubtError("503", status=503, **LATER), "unreachable", 2, "doubt"),
        (ShapeError("names no job", status=200, raw=b"{}"), "stopped", 5, "unreadable"),
    ],
    ids=lambda value: str(value) if isinstance(value, Exception) else "",
)
def test_rows_of_an_upload_that_failed_are_held_or_as_if_never_asked(
    ledger: Ledger, error: ServiceError, halt: HaltReason, uploads: int, held: str
) -> None:
    """A refusal says nothing of its rows; a doubt, and a reply without a job, hold them all."""
    lookups = wanted(numbers(12))
    shop = Shop(upload=lambda _, nth: error if nth >= 2 else None)
    assert why(bought(ledger, shop, lookups, by=buy_in_uploads, chunk=2)) == halt
    assert len(shop.uploads) == uploads
    failed = 2 * (uploads - 1) if held != "unknown" else 0
    assert states(ledger, lookups) == ["done"] * 2 + [held] * failed + ["unknown"] * (10 - failed)
    assert outcome(ledger, lookups)["row_status"].to_list()[:2] == ["verified"] * 2


def test_an_upload_that_was_not_sent_is_sent_again(ledger: Ledger) -> None:
    lookups = wanted(numbers(2))
    shop = Shop(upload=lambda _, nth: NotSentError("cannot connect") if nth < 3 else None)
    assert why(bought(ledger, shop, lookups, by=buy_in_uploads)) is None
    assert ([len(rows) for rows in shop.uploads], states(ledger, lookups)) == ([2, 2, 2], ["done"] * 2)


class Hasty(Shop):
    """Names the job while the file is still on its way."""

    async def create_batch(self, content: bytes, **_: Any) -> BatchCreated:
        async def unasked() -> None: ...

        return await super().create_batch(content, before_last_byte=unasked, after_last_byte=unasked)


@pytest.mark.parametrize("shop", [Hasty, Shop])
def test_a_job_is_known_though_its_last_bytes_were_not_noted(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, shop: type[Shop]
) -> None:
    """A reply before the gate, or a ledger that fails for a moment, must not cost the job's name."""
    settle = ledger.settle

    def failing(changes: Sequence[Any]) -> None:
        if any(isinstance(change, UploadSent) for change in changes):
            raise LedgerError("the disk is full")
        settle(changes)

    monkeypatch.setattr(ledger, "settle", failing)
    lookups = wanted(numbers(3))
    assert why(bought(ledger, shop(), lookups, by=buy_in_uploads)) is None
    assert states(ledger, lookups) == ["done"] * 3


def silent(place: int, row: list[str]) -> Result:
    """A result that repeats nothing of its row."""
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
    lookups = wanted(numbers(4))
    assert why(bought(ledger, Fickle(*looks), lookups, by=buy_in_uploads)) is None
    assert states(ledger, lookups) == ["done"] * 3 + ["missing"]


def test_results_are_asked_for_in_numbers_that_the_service_gives(ledger: Ledger) -> None:
    """A preview that is refused for its size is halved, and so are the next uploads."""

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
    """Where one job is named twice, only an echo tells whose results it shows."""

    class Forgetful(Shop):
        async def create_batch(self, *args: Any, **steps: Any) -> BatchCreated:
            created = await super().create_batch(*args, **steps)
            self.jobs["job-1"] = self.jobs[f"job-{2 if len(self.uploads) > 1 else 1}"]
            return created.model_copy(update={"job_id": "job-1"})

    shop = Forgetful(results=silent)
    for service, rows, state in (
        (shop, numbers(2), "done"),
        (shop, numbers(4)[2:], "missing"),
        (Forgetful(), numbers(6)[4:], "done"),
    ):
        bought(ledger, service, wanted(rows), by=buy_in_uploads)
        assert states(ledger, wanted(rows)) == [state] * 2


@pytest.mark.parametrize(("results", "placed"), [(None, "done"), (silent, "missing")])
def test_the_record_of_another_job_gives_no_answer_by_row_keys_alone(
    ledger: Ledger, results: Callable[[int, list[str]], Result] | None, placed: str
) -> None:
    class Confused(Shop):
        async def batch(self, job_id: str, *, preview: int | None = None) -> BatchStatus:
            status = await super().batch(job_id, preview=preview)
            return BatchStatus(**{**dict(status), "results": status.results}, job_id="job-7")  # type: ignore[call-arg]

    lookups = wanted(numbers(3))
    bought(ledger, Confused(results=results), lookups, by=buy_in_uploads)
    assert states(ledger, lookups) == [placed] * 3


def test_a_job_that_was_named_by_hand_must_repeat_the_rows(ledger: Ledger) -> None:
    """The number alone is not enough: last month's job may hold another record of the same business."""
    lookups = wanted([("1000000001", "가나", "서울 중구")])
    shop = Shop(upload=lambda *_: DoubtError("500", status=500))
    bought(ledger, shop, lookups, by=buy_in_uploads)
    shop.jobs["other"] = (0.0, [["1000000001", "다라", "부산 남구"]])
    ledger.attach(ledger.doubts()[0].id, "other")
    bought(ledger, shop, lookups.clear(), by=buy_in_uploads)
    assert states(ledger, lookups) == ["missing"]


def test_keys_of_which_one_comes_with_two_answers_prove_nothing() -> None:
    """0 and 1 may as well be no and yes."""
    items = [Result(key=key, answer=Answer(status)) for key, status in ((0, "a"), (1, "b"), (1, "c"))]
    placed = match_results(items, [(b"one", "1000000001"), (b"two", "1000000001")], lambda *_: b"")
    assert (placed.answers, placed.faults) == ({}, {})
    assert len(match_results(items[:2], [(b"one", "1"), (b"two", "1")], lambda *_: b"").answers) == 2


def test_a_job_whose_name_no_url_can_hold_is_lost_and_stops_no_later_run(ledger: Ledger) -> None:
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


@pytest.mark.parametrize("ends", [True, False])
def test_the_older_a_job_the_rarer_it_is_looked_at(ledger: Ledger, ends: bool) -> None:
    """At first every ``poll`` seconds, then a sixtieth of its age later, at most every 30 s; it is never given up."""
    shop = Shop(job=lambda _, age: "done" if ends and age > 7200 else "processing")
    lookups = wanted(numbers(2))
    halt = why(bought(ledger, shop, lookups, by=buy_in_uploads, poll=0.5))
    gaps = [after - before for before, after in pairwise(shop.looks)][:-1]
    assert all(gap == pytest.approx(0.5, abs=0.01) for gap in gaps[:20])
    assert all(later >= earlier - 0.01 for earlier, later in pairwise(gaps))
    assert max(gaps) == pytest.approx(30, abs=0.01)
    assert (halt, states(ledger, lookups)) == ((None, ["done"] * 2) if ends else ("unreachable", ["uploaded"] * 2))
    assert ends == (shop.looks[-1] - shop.looks[0] < 3 * 3600)
    assert [upload.job_id for upload in ledger.open_uploads(ORIGIN)] == ([] if ends else ["job-1"])


def test_results_that_cannot_be_read_leave_the_job_known(ledger: Ledger) -> None:
    shop = Shop(job=lambda _job_id, _age: ShapeError("no JSON", status=200, raw=b"<html>"))
    lookups = wanted(numbers(6))
    assert why(bought(ledger, shop, lookups, by=buy_in_uploads, chunk=2)) == "unreachable"
    assert states(ledger, lookups) == ["uploaded"] * 2 + ["unknown"] * 4
    well = Shop()
    well.jobs, well.uploads = shop.jobs, shop.uploads
    assert why(bought(ledger, well, lookups[2:], by=buy_in_uploads, chunk=2)) is None
    assert states(ledger, lookups) == ["done"] * 6


def test_a_job_that_is_not_known_yet_is_asked_for_again_and_one_that_stays_unknown_is_lost(ledger: Ledger) -> None:
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


def test_the_largest_priority_comes_first_or_else_the_least_certain() -> None:
    chosen = _assessed(**{PRIORITY: [None, 1.0, 7.0, float("nan"), 7.0, -2.0]})
    assert selection.worthiest_first(chosen)[ROW_ID].to_list() == [2, 4, 1, 5, 0, 3]
    unsure = _assessed(status_unknown=[False, False, True, False, True], bounce_prob=[0.9, 0.45, 0.1, None, 0.5])
    assert selection.worthiest_first(unsure)[ROW_ID].to_list() == [4, 2, 1, 0, 3]


def test_the_hybrid_engine_buys_what_it_cannot_tell() -> None:
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
        (10, 40, 90, 10),
        (10, 0, 90, 0),
        (10, 4, 0, 0),
        (0, None, 0, 0),
    ],
)
def test_without_a_budget_all_or_nothing_is_bought(
    needed: int, budget: int | None, remaining: int | None, affordable: int | None
) -> None:
    if affordable is None:
        with pytest.raises(QuotaError) as caught:
            selection.affordable(needed, budget, remaining)
        assert (caught.value.code, caught.value.fields["remaining"]) == ("purchase.quota_too_small", remaining)
    else:
        assert selection.affordable(needed, budget, remaining) == affordable


# --- what a lookup is


def _lookups(rows: Sequence[tuple[str | None, str | None, str | None]]) -> pl.DataFrame:
    frame = pl.LazyFrame(rows, schema=dict.fromkeys(("b_no", "name", "address"), pl.String), orient="row")
    frame = with_digits(frame.with_row_index(ROW_ID)).with_columns(pl.lit(None, pl.String).alias(ROW_PROBLEM))
    return lookups_of(frame.with_columns(lookup_expr(frame, suspect=True).alias(LOOKUP)))


SAME = [
    ("가나상사", "\u1100\u1161\u1102\u1161\u1109\u1161\u11bc\u1109\u1161"),
    ("나  상사", " 나 상사\t"),
    ("다\r\n상사", "다 상사"),
    ("라\u3000상사", "라\u00a0상사"),
    ("마\x00상사", "마\x1f상사"),
    ("\ufeff바\u200b상사", "바상\u00ad사\u200e"),
]
NOTHING = ["\u200b", "", "   ", "-", None]


def test_rows_that_say_the_same_are_one_lookup_and_others_are_not() -> None:
    number = "1248100998"
    pairs = [(number, text, "서울") for pair in SAME for text in pair]
    pairs += [("124-81-00998", "자", text) for pair in SAME for text in pair]
    assert _lookups(pairs)[ROW_ID].to_list() == [*range(0, len(pairs), 2)]
    assert _lookups([(number, "가", text) for text in NOTHING])[ROW_ID].to_list() == [0]
    rows = [(number, "A", ""), (number, "a", ""), (number, "", "A"), (number, "A B", ""), (number, "A", "B")]
    assert with_keys(_lookups([*rows, ("2208162517", "A", "")]), "scope")[KEY].n_unique() == 6


def test_keys_are_the_same_for_ever_and_depend_on_the_service_and_the_flags() -> None:
    """A hash that changed with a release would have everything paid again."""
    found = _lookups([("1248100998", None, None), ("124-81-00998", "삼성전자", "경기 수원시 영통구 삼성로 129")])
    lookups = with_keys(found, scope_of("https://api.example.com", None, True))
    assert [key.hex() for key in lookups[KEY]] == [
        "ba5422244f224d372faf30e18ce2fd3e",
        "fcc0002cfb33152d70d6ea48679b8b8b",
    ]
    scopes = {scope_of(*how) for how in product(("a", "b"), (None, True, False), (None, True, False))}
    assert len({with_keys(found, scope)[KEY][0] for scope in scopes}) == 18


texts = st.none() | st.text(max_size=8) | st.text("가나 \t\x00\x1f-A\u0301Å\u1100\u1161\u3000", max_size=6)


@given(st.lists(st.tuples(st.sampled_from(["1248100998", "124-81-00998", "2208162517"]), texts, texts), max_size=5))
@examples(100)
def test_an_echo_has_the_key_of_its_row(rows: list[tuple[str, str | None, str | None]]) -> None:
    """What a service repeats of a row, as it was written or as it was sent, leads to the same key as the row itself."""
    lookups = with_keys(_lookups(rows), "scope")
    assert set(keys_of("scope", rows).values()) == set(lookups[KEY])
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


@pytest.mark.parametrize("presses", [1, 2])
def test_the_first_ctrl_c_lets_the_run_settle_and_the_second_cancels(waiting: threading.Event, presses: int) -> None:
    token, told = CancelToken(), []

    async def press() -> None:
        assert await anyio.to_thread.run_sync(waiting.wait, 60)
        waiting.clear()
        signal.pthread_kill(cast(int, threading.main_thread().ident), signal.SIGINT)

    async def main() -> None:
        stopped = anyio.Event()
        token.set_handler(stopped.set)
        try:
            await press()
            await stopped.wait()
            if presses == 2:
                await press()
                await anyio.sleep_forever()
            await anyio.sleep(0)
            told.append("settled")
        finally:
            told.append("over")

    with pytest.raises(KeyboardInterrupt):
        run_async(main, token)
    assert told == (["settled", "over"] if presses == 1 else ["over"])


def test_ctrl_c_can_leave_no_lock_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that signals reach takes no lock of Python while it waits: interrupted, it could not give it back."""
    enter, taken, waits = threading.Condition.__enter__, [], threading.Event()
    submit = BlockingPortal.start_task_soon

    def entered(condition: threading.Condition) -> bool:
        if waits.is_set() and threading.get_ident() == threading.main_thread().ident:
            taken.append(condition)
        return enter(condition)

    def submitted(portal: BlockingPortal, *task: Any) -> Any:
        future = submit(portal, *task)
        waits.set()
        return future

    async def main() -> None:
        while not waits.is_set():  # starting a task does take locks, and may last longer than the task's first steps
            await anyio.sleep(0.01)
        await anyio.sleep(0.3)
        waits.clear()

    monkeypatch.setattr(threading.Condition, "__enter__", entered)
    monkeypatch.setattr(BlockingPortal, "start_task_soon", submitted)
    with start_blocking_portal() as portal:
        PortalTask(portal, main).wait()
        assert taken == []


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="no signals to a thread")
def test_ctrl_c_while_the_event_loop_starts_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found with SIGTERM in the first second of a run that buys: it waited for ever for a loop that nobody stopped."""
    begin, started = BlockingPortal.__init__, []

    def interrupted(portal: BlockingPortal) -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        threading.Event().wait(0.2)
        begin(portal)

    async def main() -> None:
        started.append(1)

    monkeypatch.setattr(BlockingPortal, "__init__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_async(main, CancelToken())
    assert (started, [one.name for one in threading.enumerate() if one.name == "bansong-run"]) == ([], [])


def test_ctrl_c_while_a_task_is_being_started_does_not_lose_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The task may run before the portal has said so: found where a call without an answer outlived Ctrl-C by 90 s."""
    submit, begun, ended = BlockingPortal.start_task_soon, threading.Event(), []
    presses = iter([True])

    def interrupted(portal: BlockingPortal, *task: Any) -> Any:
        future = submit(portal, *task)
        if next(presses, False):
            assert begun.wait(60)
            raise KeyboardInterrupt
        return future

    async def main() -> None:
        begun.set()
        try:
            await anyio.sleep(60)
        finally:
            ended.append(anyio.current_time())

    monkeypatch.setattr(BlockingPortal, "start_task_soon", interrupted)
    with start_blocking_portal() as portal:
        task = PortalTask(portal, main)
        with pytest.raises(KeyboardInterrupt):
            task.wait()
        task.cancel()
        with pytest.raises(CancelledError):
            task.wait()
    assert len(ended) == 1, "it ran once, and was cancelled"


def test_a_token_that_was_cancelled_before_stops_at_once() -> None:
    token, told = CancelToken(), []
    token.cancel()
    token.set_handler(lambda: told.append("stopped"))
    token.cancel()
    token.set_handler(None)
    token.cancel()
    assert told == ["stopped"] * 2


def test_a_token_that_is_cancelled_in_another_thread_wakes_what_only_waits() -> None:
    token, waits, failed = CancelToken(), threading.Event(), []

    async def main() -> bool:
        dispatcher = Dispatcher(rate=1.0, drain=0.0)
        token.set_handler(lambda: dispatcher.cancel(Halt("interrupted", "interrupted")))
        with anyio.fail_after(20), dispatcher.cancellable_wait():
            waits.set()
            await anyio.sleep_forever()
        return dispatcher.is_cancelled

    def cancel() -> None:
        waits.wait(10)
        try:
            token.cancel()
        except Exception as error:
            failed.append(error)

    canceller = threading.Thread(target=cancel)
    canceller.start()
    assert run_async(main, token)
    canceller.join()
    assert failed == []


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_it_runs_inside_a_running_event_loop(backend: str) -> None:
    async def loops_thread() -> int:
        return threading.get_ident()

    async def broken() -> None:
        raise LookupError("no such thing")

    async def notebook() -> int:
        with pytest.raises(LookupError, match="no such thing"):
            run_async(broken, CancelToken())
        return run_async(loops_thread, CancelToken())

    assert anyio.run(notebook, backend=backend) != threading.get_ident()


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
