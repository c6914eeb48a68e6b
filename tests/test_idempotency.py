"""Where the service promises to do a request once, doubt disappears: the same request is sent again with its key.

The steps of a repetition on a fake clock are in ``test_repeating.py``.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner

import bansong as bs
from bansong.cli.app import app
from bansong.client import ApiKey, BlockingClient
from bansong.client.responses import Account, BatchCreated, Idempotency, read_account
from bansong.errors import AuthenticationError, RejectedError, UsageError
from bansong.purchase.ledger import Ledger
from bansong.purchase.lookups import PurchaseContext
from bansong.purchase.singles import buy_singly, settle_doubts
from bansong.testing import FakeService, Fault, Reset, Status, serve, verdict
from crashing import Blow, Calls, Nursery, campaign, customers, lookup_of
from schedules import told
from test_buying import bought, buy_in_uploads, numbers, states, wanted, why
from test_repeating import LOST, WEEK, Hands, Promising, failing, hands, keyed, ledger, left, settling

__all__ = ["hands", "ledger"]

KEY = "test-key"
PROMISE: dict[str, Any] = {
    "header": "Idempotency-Key",
    "endpoints": ["POST /verify", "POST /batch"],
    "keep_seconds": 604800,
}
ALONE = os.environ.get("SCHEDULE")
MANY = int(os.environ.get("SCHEDULES", "10000"))
By = Callable[[PurchaseContext, pl.DataFrame], Awaitable[None]]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses before a repetition are tried on fake clocks; here they would only take time."""
    monkeypatch.setattr("bansong.client.dispatcher._FIRST_BACKOFF_S", 0.01)


# --- what is believed


@pytest.mark.parametrize("place", [(), ("data",), ("account",)])
def test_the_promise_is_read_where_the_account_is(place: tuple[str, ...]) -> None:
    answer: dict[str, Any] = {"idempotency": PROMISE}
    for name in place:
        answer = {name: answer}
    assert read_account(answer).idempotency == Idempotency(frozenset(PROMISE["endpoints"]), 604800)


@pytest.mark.parametrize(
    "said",
    [
        *(True, "Idempotency-Key", [PROMISE], {}),
        *(PROMISE | {"header": header} for header in ("X-API-Key", None)),
        *(PROMISE | {"endpoints": endpoints} for endpoints in ("POST /verify", ["POST /verify", 1])),
        *(PROMISE | {"keep_seconds": seconds} for seconds in (0, True, "604800", 7.5)),
    ],
)
def test_nothing_less_than_the_whole_promise_is_one(said: object) -> None:
    account = read_account({"limit": 10, "used": 1, "idempotency": said})
    assert (account.idempotency, account.remaining) == (None, 9)
    assert read_account({"idempotency": PROMISE, "data": {"idempotency": PROMISE}}).idempotency is None


@pytest.mark.parametrize("key", ["", "a b", "a\n", "키", "x" * 201])
def test_a_key_that_cannot_be_a_header_is_not_sent(key: str) -> None:
    with BlockingClient("http://127.0.0.1:9", KEY) as client, pytest.raises(UsageError, match="idempotency key"):
        client.verify("1248100998", idempotency_key=key)


def test_the_fake_keeps_the_promise() -> None:
    service = FakeService(KEY, idempotency=True)
    rows = b"b_no,name,address\n1248100998,a,b\n"
    with serve(service) as url, BlockingClient(url, KEY) as client:
        one, same = (client.verify("1248100998", "a", idempotency_key="k1") for _ in range(2))
        jobs = {client.create_batch(rows, idempotency_key="k2").job_id for _ in range(3)}
        for again in (
            lambda: client.verify("1248100998", "other", idempotency_key="k1"),
            lambda: client.create_batch(rows, paid=False, idempotency_key="k2"),
            lambda: client.create_batch(rows, idempotency_key="k1"),
        ):
            with pytest.raises(RejectedError, match="409"):
                again()
        assert client.me().idempotency is not None
    assert (one, len(jobs)) == (same, 1)
    assert (service.paid_total, service.memory.replayed) == (2, 3)


# --- what is repeated, on a fake clock


class Lossy(Promising):
    """Takes uploads, and repetitions of them; ``lost``: so many replies to uploads never come."""

    lost = 0

    async def create_batch(self, content: bytes, **more: Any) -> BatchCreated:
        async def nothing() -> None: ...

        gates = {name: more.get(name) or nothing for name in ("before_last_byte", "after_last_byte")}
        created = await super().create_batch(content, **gates)
        if len(self.uploads) <= self.lost:
            raise LOST
        return created


class Retracting(Promising):
    """Does not speak of keys any more once something was asked."""

    async def me(self) -> Account:
        return Account()


@pytest.mark.parametrize("code", [400, 409, 413, 422, 429])
@pytest.mark.parametrize("by", [buy_singly, buy_in_uploads])
def test_a_repetition_that_is_refused_proves_nothing(ledger: Ledger, by: By, code: int) -> None:
    """It was paid, the answer was lost, and the repetition is refused: it stays in doubt, until its key is known."""
    refusal = RejectedError(str(code), status=code)
    shop = Lossy(lambda _, nth: LOST if nth == 1 else refusal, lambda _, nth: LOST if nth == 1 else refusal)
    bought(ledger, shop, wanted(numbers(1)), by=keyed(shop, by))
    assert len(shop.asked) + len(shop.uploads) == 2
    assert states(ledger, wanted(numbers(1))) == ["doubt"]
    well = Lossy()
    bought(ledger, well, wanted([]), by=settling)
    assert states(ledger, wanted(numbers(1))) == ["done" if by is buy_singly else "uploaded"]


@pytest.mark.parametrize("by", [buy_singly, buy_in_uploads])
def test_a_promise_that_is_taken_back_leaves_the_doubt(ledger: Ledger, by: By) -> None:
    shop, well = Retracting(failing(1), lambda _, nth: LOST if nth == 1 else None), Lossy()
    bought(ledger, shop, wanted(numbers(1)), by=keyed(shop, by))
    bought(ledger, shop, wanted([]), by=settling)
    assert len(shop.asked) + len(shop.uploads) == len(ledger.doubts()) == left(ledger) == 1
    bought(ledger, well, wanted([]), by=settling)
    assert ledger.doubts() == []


@pytest.mark.parametrize(("share", "repeated", "kept"), [(0.85, 1, 0), (0.95, 0, 1), (1.01, 0, 0)])
def test_a_key_that_may_be_forgotten_is_not_used(
    ledger: Ledger, hands: Hands, share: float, repeated: int, kept: int
) -> None:
    """After nine tenths of the promised time a request is not repeated; after all of it the ledger forgets it."""
    shop, well = Promising(failing(1_000)), Promising()
    bought(ledger, shop, wanted(numbers(1)), by=keyed(shop))
    hands.now += share * WEEK
    bought(ledger, well, wanted([]), by=settling)
    ledger.purge(400)
    assert (len(well.asked), left(ledger), len(ledger.doubts())) == (repeated, kept, 1 - repeated)


def test_no_more_is_repeated_than_the_budget_and_the_file_allow(ledger: Ledger) -> None:
    """The first sending may never have arrived, so a repetition may buy."""
    shop, well, lookups = Promising(failing(1_000)), Promising(), wanted(numbers(9))
    bought(ledger, shop, lookups, by=keyed(shop))

    async def some(context: PurchaseContext, wanted: pl.DataFrame) -> None:
        context.idempotency = well.promise()
        assert await settle_doubts(context, frozenset(wanted["key"]), 2) == 2

    bought(ledger, well, lookups[:3], by=some)
    bought(ledger, well, lookups[3:], by=some)
    assert [states(ledger, part).count("done") for part in (lookups[:3], lookups[3:])] == [2, 2]


def test_a_promise_that_is_not_kept_costs_little(ledger: Ledger) -> None:
    """It pays each repetition and answers none: three trials, each repeated five times, and nothing in later runs."""
    shop = Lossy()
    shop.lost = 1_000
    halts = [why(bought(ledger, shop, wanted(numbers(1000)[300 * run :]), by=keyed(shop, buy_in_uploads)))
             for run in range(3)]  # fmt: skip
    assert (halts, len(shop.uploads)) == (["stopped"] * 3, 3 * (1 + 5))


# --- whole runs


class Bench:
    """A file, a ledger and a service that keeps the promise."""

    def __init__(self, folder: Path, service: FakeService, rows: int = 40) -> None:
        self.folder, self.service = folder, service
        self.input, self.output, self.ledger = folder / "in.csv", folder / "out.csv", folder / "ledger.sqlite"
        self.frame = customers(rows)
        self.frame.write_csv(self.input)

    def enrich(self, url: str, engine: str, key: str = KEY, **more: Any) -> int:
        options: dict[str, Any] = {"poll": 0.01, "timeout": 2.0, "rate": 1e6, "chunk": 10, "jobs": 2} | more
        options |= {"base_url": url, "api_key": ApiKey(key), "ledger": self.ledger}
        return bs.enrich(str(self.input), str(self.output), engine=engine, **options).exit_code

    def states(self) -> Counter[str]:
        """The row states in the output, each answered row with its own answer."""
        out = pl.read_csv(self.output, infer_schema=False)
        for row, written in zip(self.frame.iter_rows(), out.iter_rows(named=True), strict=True):
            lookup = lookup_of(*row)
            if written["row_status"] in ("verified", "cached"):
                assert lookup is not None
                assert written["biz_status"] == verdict(*lookup)["biz_status"]
        return Counter(out["row_status"].to_list())


@pytest.mark.parametrize("engine", ["verify", "batch"])
def test_an_answer_that_is_lost_is_asked_for_again(tmp_path: Path, engine: str) -> None:
    service = FakeService(KEY, idempotency=True)
    lost = (Reset("after"), Reset("reply"), Status(500, paid=True), Status(503, retry_after=0), Status(500))
    service.faults.add(*(Fault(engine, act, at=1 + 2 * nth) for nth, act in enumerate(lost)))
    bench = Bench(tmp_path, service)
    with serve(service) as url:
        assert bench.enrich(url, engine, concurrency=1, jobs=1) == 0
    assert set(bench.states()) <= {"verified", "invalid"}
    assert service.faults.hits >= 4
    assert service.paid_again == 0
    assert service.paid_total == len({lookup_of(*row) for row in bench.frame.iter_rows()} - {None})
    with Ledger.open(bench.ledger) as ledger:
        assert [*ledger.doubts(), *ledger.pending_requests(url)] == []


@pytest.mark.parametrize("engine", ["verify", "batch"])
def test_without_the_promise_doubt_stays_doubt_and_no_request_bears_a_key(tmp_path: Path, engine: str) -> None:
    service, seen = FakeService(KEY), list[bool]()

    def note(asked: Any) -> bool:
        seen.append(any(name == b"idempotency-key" for name, _ in asked.scope["headers"]))
        return False

    service.faults.add(Fault(engine, Reset("after"), at=2), Fault("*", Calls(lambda: None, "before"), when=note))
    bench = Bench(tmp_path, service, rows=15)
    with serve(service) as url:
        assert bench.enrich(url, engine) == 3
        before = service.requests[engine]
        assert bench.enrich(url, engine) == 3
    assert bench.states()["in_doubt"]
    assert (service.requests[engine], service.paid_again, any(seen)) == (before, 0, False)


def test_another_api_key_does_not_repeat_what_was_sent_with_the_first(tmp_path: Path) -> None:
    service = FakeService(KEY, idempotency=True)
    service.faults.add(Fault("verify", Reset("after")))
    bench = Bench(tmp_path, service, rows=3)
    with serve(service) as url:
        bench.enrich(url, "verify", concurrency=1)
        service.faults.clear()
        service.api_key = "another-key"
        assert bench.enrich(url, "verify", "another-key") == 3
        with pytest.raises(AuthenticationError):
            bench.enrich(url, "verify")
        service.api_key = KEY
        assert bench.enrich(url, "verify", budget=0) == 5 or bench.states()["in_doubt"]
        assert bench.enrich(url, "verify") == 0
    assert service.paid_again == 0


def test_resolve_says_what_settles_itself(tmp_path: Path) -> None:
    service = FakeService(KEY, idempotency=True)
    service.faults.add(Fault("verify", Status(500)))
    bench = Bench(tmp_path, service, rows=1)
    with serve(service) as url:
        bench.enrich(url, "verify")
        service.faults.clear()
        bench.input, mine = tmp_path / "other.csv", bench.input
        pl.DataFrame({"b_no": ["1248100998"], "name": ["x"]}).write_csv(bench.input)
        bench.enrich(url, "verify")
    assert (service.paid_total, mine.exists()) == (1, True)
    command = ["resolve", "--ledger", str(bench.ledger)]
    assert "1 request in doubt may be sent again" in CliRunner().invoke(app, command).output
    assert json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)["repeatable"] == 1
    with closing(sqlite3.connect(bench.ledger)) as connection:
        connection.execute("UPDATE requests SET first = first - keep")
        connection.commit()
    said = CliRunner().invoke(app, command).output
    assert "unsettled: 1 lookup" in said
    assert "sent again" not in said


# --- a client that is killed


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    with Nursery(tmp_path_factory.mktemp("nursery") / "log") as nursery:
        yield nursery


REPEATING = [Blow("UploadSettled", place) for place in ("before", "within", "after")]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("engine", "blows"),
    [
        ("batch", [Blow("JobKnown", "before")]),
        pytest.param("batch", [Blow("UploadGated", "after"), *REPEATING], marks=pytest.mark.crash),
        pytest.param(
            "verify",
            [Blow("LookupAsked", "after", 5), *(Blow("LookupSettled", blow.place) for blow in REPEATING)],
            marks=pytest.mark.crash,
        ),
    ],
    ids=["job known", "repeating an upload", "repeating a lookup"],
)
def test_the_same_command_after_a_kill_leaves_no_doubt(
    tmp_path: Path, nursery: Nursery, engine: str, blows: list[Blow]
) -> None:
    service = FakeService(KEY, idempotency=True)
    with campaign(tmp_path / "campaign", nursery, engine, 300, chunk=50, service=service) as one:
        for blow in blows:
            one.give(blow)
        assert one.kills >= min(len(blows), 3)
        assert one.doubts[0] > 0
        assert one.finish() == 0
        assert not one.conclude(0)["in_doubt"]
    assert service.paid_again == 0


# --- whole histories


def test_paid_once_never_lost_and_never_in_doubt(tmp_path: Path) -> None:
    fates = told([int(ALONE)] if ALONE else range(4, 12), tmp_path, keyed=True)
    assert ALONE or fates["key: known"] > 0


@pytest.mark.fuzz
def test_thousands_of_schedules_with_keys(tmp_path: Path) -> None:
    told(range(2_000_000, 2_000_000 + MANY // 3), tmp_path, keyed=True)
