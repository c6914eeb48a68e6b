"""Repeating a request with its key, step by step on trio's fake clock, for services that keep their promise badly."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import polars as pl
import pytest

from bansong.client.responses import Account, BatchCreated, Idempotency, Verified, read_account
from bansong.errors import DoubtError, QuotaError, ServiceError
from bansong.purchase.ledger import Ledger
from bansong.purchase.lookups import PurchaseContext
from bansong.purchase.singles import buy_singly, settle_doubts
from schedules import unsynced
from test_buying import ORIGIN, Shop, bought, buy_in_uploads, numbers, wanted

WEEK = 604_800
LOST = DoubtError("POST /verify: the connection broke")


class Promising(Shop):
    """A service that promises to do a request once, for ``keep`` seconds, and is asked with the API key ``mark``."""

    keep = WEEK
    mark = b"first"

    def account_mark(self, salt: str) -> bytes:
        del salt
        return self.mark

    async def me(self) -> Account:
        return Account(idempotency=self.promise())

    def promise(self) -> Idempotency:
        return Idempotency(frozenset({"POST /verify", "POST /batch"}), self.keep)

    async def verify(
        self, b_no: str, name: str | None = None, address: str | None = None, *, idempotency_key: str | None = None
    ) -> Verified:
        assert idempotency_key
        return await super().verify(b_no, name, address)


def keyed(shop: Promising, by: Callable[[PurchaseContext, pl.DataFrame], Awaitable[None]] = buy_singly) -> Any:
    async def keyed_by(context: PurchaseContext, lookups: pl.DataFrame) -> None:
        context.idempotency = shop.promise()
        await by(context, lookups)

    return keyed_by


async def settling(context: PurchaseContext, lookups: pl.DataFrame) -> None:
    """Settle what earlier runs left in doubt, as a run does before it buys anything."""
    del lookups
    context.idempotency = Idempotency(frozenset({"POST /verify", "POST /batch"}), WEEK)
    await settle_doubts(context, None, None)


class Hands:
    """The ledger's clock, set by hand."""

    now = 1_800_000_000.0


@pytest.fixture
def hands() -> Hands:
    return Hands()


@pytest.fixture
def ledger(tmp_path: Path, hands: Hands) -> Iterator[Ledger]:
    with unsynced(), Ledger.open(tmp_path / "ledger.sqlite", clock=lambda: hands.now) as ledger:
        yield ledger


def failing(first: int, error: ServiceError = LOST) -> Callable[[str, int], ServiceError | None]:
    return lambda _b_no, nth: error if nth <= first else None


def left(ledger: Ledger) -> int:
    """Requests that are kept to be repeated."""
    return len(ledger.pending_requests(ORIGIN))


def test_a_limit_that_ends_next_month_is_not_slept_through(ledger: Ledger) -> None:
    """The answer is lost, then the repetition is told to wait until the next month: the run ends with a doubt."""
    said = QuotaError("wait", status=429, retry_after=700_000.0)
    shop = Promising(lambda _b_no, nth: LOST if nth == 1 else said)
    seconds: list[float] = []

    async def timed(context: PurchaseContext, lookups: pl.DataFrame) -> None:
        begun = anyio.current_time()
        await keyed(shop)(context, lookups)
        seconds.append(anyio.current_time() - begun)

    bought(ledger, shop, wanted(numbers(1)), by=timed)
    assert seconds[0] < 60
    assert len(ledger.doubts()) == left(ledger) == 1


def test_a_promise_that_became_shorter_counts(ledger: Ledger, hands: Hands) -> None:
    """A week was promised when it was sent; an hour later the service says a minute: it is not sent again."""
    shop = Promising(failing(5 + 1))
    bought(ledger, shop, wanted(numbers(1)), by=keyed(shop))
    asked = len(shop.asked)
    hands.now += 3600
    shop.keep = 60
    bought(ledger, shop, wanted([]), by=settling)
    assert len(shop.asked) == asked
    shop.keep = WEEK
    bought(ledger, shop, wanted([]), by=settling)
    assert (len(shop.asked), ledger.doubts()) == (asked + 1, [])


def test_a_machine_that_slept_does_not_repeat_what_may_be_forgotten(ledger: Ledger, hands: Hands) -> None:
    """The laptop is closed for a week while the answer is waited for: the clock that stood still is not believed."""

    def lost(_b_no: str, nth: int) -> ServiceError | None:
        hands.now += WEEK
        return LOST if nth == 1 else None

    shop = Promising(lost)
    bought(ledger, shop, wanted(numbers(1)), by=keyed(shop))
    assert len(shop.asked) == len(ledger.doubts()) == 1


def test_a_clock_that_was_set_back_tells_no_ages(ledger: Ledger, hands: Hands) -> None:
    """A day after it was sent a run ends; then the clock says earlier: how old the key is, nobody knows."""
    shop = Promising(failing(5 + 1))
    bought(ledger, shop, wanted(numbers(1)), by=keyed(shop))
    hands.now += 86_400
    ledger.end("run-1", "paused")
    asked = len(shop.asked)
    hands.now -= 3600
    assert [one.age < 0 for one in ledger.pending_requests(ORIGIN)] == [True]
    bought(ledger, shop, wanted([]), by=settling)
    assert len(shop.asked) == asked


@pytest.mark.parametrize("by", [buy_singly, buy_in_uploads])
def test_a_request_is_repeated_eight_times_in_all_runs(
    ledger: Ledger, by: Callable[[PurchaseContext, pl.DataFrame], Awaitable[None]]
) -> None:
    """Five times in a run, three in the next, then it is settled by hand: each may be paid."""

    class Down(Promising):
        async def create_batch(self, content: bytes, **more: Any) -> BatchCreated:
            gates = {name: more.get(name) or _nothing for name in ("before_last_byte", "after_last_byte")}
            return await super().create_batch(content, **gates)

    shop, sent = Down(failing(1_000), lambda *_: LOST), list[int]()
    bought(ledger, shop, wanted(numbers(1)), by=keyed(shop, by))
    for _ in range(4):
        sent.append(len(shop.asked) + len(shop.uploads))
        bought(ledger, shop, wanted([]), by=settling)
    assert sent == [6, 9, 9, 9]
    assert left(ledger) == ledger.may_be_repeated() == 0
    assert len(ledger.doubts()) == 1


def test_a_repetition_is_counted_before_it_goes(ledger: Ledger) -> None:
    counted: list[int] = []

    def counting(_b_no: str, nth: int) -> ServiceError | None:
        with ledger._connect() as connection:
            counted.extend(repeats for (repeats,) in connection.execute("SELECT repeats FROM requests"))
        return LOST if nth <= 2 else None

    shop = Promising(counting)
    bought(ledger, shop, wanted(numbers(1)), by=keyed(shop))
    assert counted == [0, 1, 2]


def test_what_must_not_be_repeated_does_not_keep_the_rest_from_it(ledger: Ledger, hands: Hands) -> None:
    """Five requests of another API key are in doubt before one of this key: that one is settled all the same."""
    shop = Promising(failing(1_000))
    bought(ledger, shop, wanted(numbers(5)), by=keyed(shop))
    hands.now += 1
    shop.mark = b"second"
    bought(ledger, shop, wanted(numbers(6)[5:]), by=keyed(shop))
    works = Promising()
    works.mark = b"second"
    bought(ledger, works, wanted([]), by=settling)
    assert (len(works.asked), len(ledger.doubts())) == (1, 5)


def test_an_upload_is_at_the_gate_before_it_is_sent_again(ledger: Ledger) -> None:
    """A 200 that breaks off before all was sent is a doubt; what is sent again must not look as if it never went."""
    states: list[str] = []

    class Hasty(Promising):
        async def create_batch(self, content: bytes, **more: Any) -> BatchCreated:
            assert more["idempotency_key"]
            with ledger._connect() as connection:
                states.extend(state for (state,) in connection.execute("SELECT state FROM uploads"))
            if len(states) == 1:
                raise DoubtError("POST /batch: 200, the connection broke", status=200)
            return await super().create_batch(content, before_last_byte=_nothing, after_last_byte=_nothing)

    shop = Hasty()
    bought(ledger, shop, wanted(numbers(3)), by=keyed(shop, buy_in_uploads))
    assert (states, ledger.doubts(), left(ledger)) == (["prepared", "gated"], [], 0)


async def _nothing() -> None:
    pass


def test_what_was_sent_goes_with_a_purge_when_it_is_too_old(ledger: Ledger, hands: Hands) -> None:
    shop = Promising(failing(1_000))
    bought(ledger, shop, wanted(numbers(2)), by=keyed(shop))
    for later, kept in ((WEEK - 1, 2), (2, 0)):
        hands.now += later
        ledger.purge(400)
        assert (left(ledger), len(ledger.doubts())) == (kept, 2)


@pytest.mark.parametrize("decide", ["accept", "resend"])
def test_a_decision_by_hand_deletes_what_was_sent(ledger: Ledger, decide: str) -> None:
    shop = Promising(failing(1_000))
    bought(ledger, shop, wanted(numbers(1)), by=keyed(shop))
    assert left(ledger) == 1
    getattr(ledger, decide)([doubt.id for doubt in ledger.doubts()])
    assert left(ledger) == 0


def test_a_promise_for_ever_is_believed_for_a_year() -> None:
    """A number that no clock can hold is a promise, too."""
    said = {"header": "idempotency-key", "endpoints": ["POST /verify"], "keep_seconds": 10**400}
    found = read_account({"idempotency": said}).idempotency
    assert found is not None
    assert found.keep_seconds == 366 * 86_400


def test_doubts_of_an_older_ledger_stay_doubts(tmp_path: Path) -> None:
    """What was asked before requests had keys cannot be asked again; new requests of the same ledger can."""
    path = tmp_path / "old.sqlite"
    with unsynced():
        with Ledger.open(path) as book:
            bought(book, Shop(failing(1)), wanted(numbers(1)))
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(
                "DROP TABLE requests; DROP TABLE trials; ALTER TABLE uploads DROP COLUMN trial;PRAGMA user_version = 2;"
            )
        with Ledger.open(path) as book:
            assert book.may_be_repeated() == 0
            shop = Promising(failing(1_000))
            bought(book, shop, wanted([]), by=settling)
            assert shop.asked == []
            bought(book, shop, wanted(numbers(2)[1:]), by=keyed(shop))
            assert len(book.doubts()) == 2
            assert left(book) == book.may_be_repeated() == 1
            held = [file for file in tmp_path.iterdir() if file.name.startswith(path.name)]
            assert {file.stat().st_mode & 0o777 for file in held} == {0o600}
