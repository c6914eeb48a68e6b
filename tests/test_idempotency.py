"""Where the service promises to do a request once, doubt disappears: the same request is sent again with its key."""

from __future__ import annotations

import json
import os
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner

import bansong as bs
from bansong.cli.app import app
from bansong.client import ApiKey, BlockingClient
from bansong.client.responses import Idempotency, read_account
from bansong.errors import AuthenticationError, UsageError
from bansong.purchase.ledger import Ledger
from bansong.testing import Act, Body, FakeService, Fault, Reset, Status, serve, verdict
from crashing import Blow, Calls, Nursery, campaign, customers, lookup_of
from schedules import told

KEY = "test-key"
PROMISE: dict[str, Any] = {
    "header": "Idempotency-Key",
    "endpoints": ["POST /verify", "POST /batch"],
    "keep_seconds": 604800,
}
ALONE = os.environ.get("SCHEDULE")
MANY = int(os.environ.get("SCHEDULES", "10000"))


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses before a repetition are tried on fake clocks; here they would only take time."""
    monkeypatch.setattr("bansong.client.retries._FIRST_BACKOFF_S", 0.01)


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    with Nursery(tmp_path_factory.mktemp("nursery") / "log") as nursery:
        yield nursery


# --- what is believed


@pytest.mark.parametrize("place", [(), ("data",), ("account",)])
def test_the_promise_is_read_where_the_account_is(place: tuple[str, ...]) -> None:
    """As the server of this library says it, beside the account or in what wraps it (G31)."""
    answer: dict[str, Any] = {"idempotency": PROMISE}
    for name in place:
        answer = {name: answer}
    assert read_account(answer).idempotency == Idempotency(frozenset(PROMISE["endpoints"]), 604800)


@pytest.mark.parametrize(
    "said",
    [
        True,
        "Idempotency-Key",
        [PROMISE],
        {},
        PROMISE | {"header": "X-API-Key"},
        PROMISE | {"header": None},
        PROMISE | {"endpoints": "POST /verify"},
        PROMISE | {"endpoints": ["POST /verify", 1]},
        PROMISE | {"keep_seconds": 0},
        PROMISE | {"keep_seconds": True},
        PROMISE | {"keep_seconds": "604800"},
        PROMISE | {"keep_seconds": 7.5},
    ],
)
def test_nothing_less_than_the_whole_promise_is_one(said: object) -> None:
    """Lookups are paid on its word: whatever else is said under that name, nothing is assumed, and the rest is read."""
    account = read_account({"limit": 10, "used": 1, "idempotency": said})
    assert account.idempotency is None
    assert account.remaining == 9


def test_two_promises_are_none() -> None:
    """Two places that say it: nothing is chosen."""
    assert read_account({"idempotency": PROMISE, "data": {"idempotency": PROMISE}}).idempotency is None


@pytest.mark.parametrize("key", ["", "a b", "a\n", "키", "x" * 201])
def test_a_key_that_cannot_be_a_header_is_not_sent(key: str) -> None:
    """1 to 200 visible ASCII characters, or the caller hears of it."""
    with BlockingClient("http://127.0.0.1:9", KEY) as client, pytest.raises(UsageError, match="idempotency key"):
        client.verify("1248100998", idempotency_key=key)


def test_the_fake_keeps_the_promise() -> None:
    """The same request again: the same answer, paid once. Another with its key: 409. The file counts, not its frame."""
    service = FakeService(KEY, idempotency=True)
    rows = b"b_no,name,address\n1248100998,a,b\n"
    with serve(service) as url, BlockingClient(url, KEY) as client:
        one, same = (client.verify("1248100998", "a", idempotency_key="k1") for _ in range(2))
        jobs = {client.create_batch(rows, idempotency_key="k2").job_id for _ in range(3)}
        with pytest.raises(bs.errors.RejectedError, match="409"):
            client.verify("1248100998", "other", idempotency_key="k1")
        with pytest.raises(bs.errors.RejectedError, match="409"):
            client.create_batch(rows, paid=False, idempotency_key="k2")
        with pytest.raises(bs.errors.RejectedError, match="409"):
            client.create_batch(rows, idempotency_key="k1")
        assert client.me().idempotency is not None
    assert one == same
    assert len(jobs) == 1
    assert (service.paid_total, service.memory.replayed) == (2, 3)


# --- a run that loses answers


class Bench:
    """A file, a ledger and a service that keeps the promise."""

    def __init__(self, folder: Path, service: FakeService, rows: int = 40) -> None:
        self.folder, self.service = folder, service
        self.input, self.output, self.ledger = folder / "in.csv", folder / "out.csv", folder / "ledger.sqlite"
        self.frame = customers(rows)
        self.frame.write_csv(self.input)

    def enrich(self, url: str, engine: str, **more: Any) -> Any:
        options: dict[str, Any] = {"poll": 0.01, "timeout": 2.0, "rate": 1e6, "chunk": 10, "jobs": 2} | more
        key = options.pop("api_key", ApiKey(KEY))
        return bs.enrich(
            str(self.input), str(self.output), engine=engine, base_url=url, api_key=key, ledger=self.ledger, **options
        )

    def states(self) -> Counter[str]:
        """The row states in the output, each verified row with its own answer."""
        out = pl.read_csv(self.output, infer_schema=False)
        for row, written in zip(self.frame.iter_rows(), out.iter_rows(named=True), strict=True):
            lookup = lookup_of(*row)
            if written["row_status"] in ("verified", "cached"):
                assert lookup is not None
                assert written["biz_status"] == verdict(*lookup)["biz_status"]
        return Counter(out["row_status"].to_list())

    def held(self) -> list[Any]:
        with Ledger.open(self.ledger) as ledger:
            return [*ledger.doubts(), *ledger.pending_requests("")]


LOST: list[Act] = [Reset("after"), Reset("reply"), Status(500, paid=True), Status(503, retry_after=0), Status(500)]


@pytest.mark.parametrize("engine", ["verify", "batch"])
@pytest.mark.parametrize("lost", LOST, ids=str)
def test_an_answer_that_is_lost_is_asked_for_again(tmp_path: Path, engine: str, lost: Act) -> None:
    """Every third answer is lost, paid or not: no row is in doubt, nothing is paid twice, nothing is kept of it."""
    service = FakeService(KEY, idempotency=True)
    service.faults.add(Fault("verify", lost, every=3), Fault("batch", lost, every=3))
    bench = Bench(tmp_path, service)
    with serve(service) as url:
        report = bench.enrich(url, engine)
    assert report.exit_code == 0
    assert set(bench.states()) <= {"verified", "invalid"}
    assert service.faults.hits > 0
    assert service.paid_again == 0
    assert service.paid_total == len({lookup_of(*row) for row in bench.frame.iter_rows()} - {None})
    assert bench.held() == []


@pytest.mark.parametrize("engine", ["verify", "batch"])
def test_without_the_promise_doubt_stays_doubt(tmp_path: Path, engine: str) -> None:
    """A service that says nothing of it is never asked again, and no request carries a key."""
    service = FakeService(KEY)
    service.faults.add(Fault("verify", Reset("after"), at=2), Fault("batch", Reset("after"), at=2))
    seen: list[bool] = []
    service.faults.add(Fault("*", Calls(lambda: None, "before"), when=lambda asked: _note(seen, asked)))
    bench = Bench(tmp_path, service)
    with serve(service) as url:
        assert bench.enrich(url, engine).exit_code == 3
        before = service.requests
        assert bench.enrich(url, engine).exit_code == 3
    assert bench.states()["in_doubt"]
    assert service.requests["verify"] + service.requests["batch"] == before["verify"] + before["batch"]
    assert not any(seen)
    assert service.paid_again == 0


def _note(seen: list[bool], asked: Any) -> bool:
    seen.append(any(name == b"idempotency-key" for name, _ in asked.scope["headers"]))
    return False


def _stops_promising(service: FakeService) -> None:
    service.idempotency = False


@pytest.mark.parametrize("engine", ["verify", "batch"])
def test_a_promise_that_is_taken_back_leaves_the_doubt(tmp_path: Path, engine: str) -> None:
    """The answer is lost, and then ``/me`` says nothing of keys: nothing is sent again, in this run or the next."""
    service = FakeService(KEY, idempotency=True)
    taken_back = Calls(lambda: _stops_promising(service), "after")
    for kind in ("verify", "batch"):
        service.faults.add(Fault(kind, taken_back, at=2), Fault(kind, Reset("after"), at=2))
    bench = Bench(tmp_path, service)
    with serve(service) as url:
        assert bench.enrich(url, engine).exit_code == 3
        assert bench.enrich(url, engine).exit_code == 3
        assert service.paid_again == 0
        assert bench.states()["in_doubt"]
        service.faults.clear()
        service.idempotency = True
        assert bench.enrich(url, engine).exit_code == 0
    assert service.paid_again == 0
    assert not bench.states()["in_doubt"]


@pytest.mark.parametrize("code", [400, 409, 429, *(pytest.param(code, marks=pytest.mark.fuzz) for code in (413, 422))])
@pytest.mark.parametrize("engine", ["verify", "batch"])
def test_a_repetition_that_is_refused_proves_nothing(tmp_path: Path, engine: str, code: int) -> None:
    """It was paid, the answer was lost, and the repetition is refused: it stays in doubt, and is not bought anew."""
    service = FakeService(KEY, idempotency=True)
    for kind in ("verify", "batch"):
        service.faults.add(Fault(kind, Reset("after"), at=1), Fault(kind, Status(code), at={2}))
    bench = Bench(tmp_path, service, rows=9)
    with serve(service) as url:
        assert bench.enrich(url, engine, concurrency=1, jobs=1).exit_code == 3
        assert bench.states()["in_doubt"]
        assert bench.enrich(url, engine).exit_code == 0
    assert service.paid_again == 0
    assert not bench.states()["in_doubt"]


def test_another_api_key_does_not_repeat_what_was_sent_with_the_first(tmp_path: Path) -> None:
    """To the service another key is another customer, to whom nothing was promised: it stays in doubt."""
    service = FakeService(KEY, idempotency=True)
    service.faults.add(Fault("verify", Reset("after")))
    bench = Bench(tmp_path, service, rows=3)
    with serve(service) as url:
        bench.enrich(url, "verify", concurrency=1)
        paid = service.paid_total
        service.faults.clear()
        service.api_key = "another-key"
        assert bench.enrich(url, "verify", api_key=ApiKey("another-key")).exit_code == 3
        assert service.paid_again == 0
        with pytest.raises(AuthenticationError):
            bench.enrich(url, "verify")
        service.api_key = KEY
        assert bench.enrich(url, "verify").exit_code == 0
    assert service.paid_again == 0
    assert service.paid_total >= paid


@pytest.mark.parametrize(("share", "repeated", "kept"), [(0.85, True, 0), (0.95, False, 1), (1.01, False, 0)])
def test_a_key_that_may_be_forgotten_is_not_used(tmp_path: Path, share: float, repeated: bool, kept: int) -> None:
    """After nine tenths of the promised time a request is not repeated; after all of it the ledger forgets it."""
    service = FakeService(KEY, idempotency=True)
    service.faults.add(Fault("verify", Status(500, paid=True)))
    bench = Bench(tmp_path, service, rows=1)
    with serve(service) as url:
        assert bench.enrich(url, "verify").exit_code == 3
        service.faults.clear()
        with closing(sqlite3.connect(bench.ledger)) as connection:
            connection.execute("UPDATE requests SET first = first - ? * keep", (share,))
            connection.commit()
        before = service.requests["verify"]
        assert bench.enrich(url, "verify").exit_code == (0 if repeated else 3)
        assert service.requests["verify"] == before + repeated
    with closing(sqlite3.connect(bench.ledger)) as connection:
        assert connection.execute("SELECT count(*) FROM requests").fetchone() == (kept,)
    assert service.paid_total == 1


def test_a_budget_holds_for_what_is_repeated_too(tmp_path: Path) -> None:
    """The first sending may never have arrived, so a repetition may buy: no more of them than the budget allows."""
    service = FakeService(KEY, idempotency=True)
    service.faults.add(Fault("verify", Status(500)))
    bench = Bench(tmp_path, service, rows=30)
    with serve(service) as url:
        bench.enrich(url, "verify", concurrency=1)
        assert service.paid_total == 0
        service.faults.clear()
        with Ledger.open(bench.ledger) as ledger:
            doubts = len(ledger.doubts())
        assert doubts > 2
        bench.enrich(url, "verify", budget=0)
        assert service.paid_total == 0
        bench.enrich(url, "verify", budget=2)
        assert service.paid_total == 2
        assert bench.enrich(url, "verify").exit_code == 0
    assert service.paid_again == 0


def test_a_promise_that_is_not_kept_costs_little(tmp_path: Path) -> None:
    """It pays each repetition and answers none: three trials, each repeated five times, and nothing in later runs."""
    service = FakeService(KEY, quota=100_000)
    service.faults.add(Fault("me", Body(json.dumps({"plan": "business", "idempotency": PROMISE}).encode())))
    service.faults.add(Fault("batch", Status(500, paid=True)))
    bench = Bench(tmp_path, service, rows=1000)
    with serve(service) as url:
        for _ in range(4):
            assert bench.enrich(url, "batch").exit_code == 5
    assert len(service.uploads) == 3 * (1 + 5)
    assert service.paid_again == service.paid_total - 3 * service.uploads[0].rows


def test_what_another_file_left_in_doubt_is_left_to_it(tmp_path: Path) -> None:
    """Its requests may never have arrived: a run buys nothing for a file that it was not given."""
    service = FakeService(KEY, idempotency=True)
    service.faults.add(Fault("verify", Status(500)))
    bench = Bench(tmp_path, service, rows=3)
    with serve(service) as url:
        bench.enrich(url, "verify", concurrency=1)
        service.faults.clear()
        other = tmp_path / "other.csv"
        pl.DataFrame({"b_no": ["1248100998"], "name": ["x"]}).write_csv(other)
        bench.input, mine = other, bench.input
        bench.enrich(url, "verify")
        assert service.paid_total == 1
        bench.input = mine
        assert bench.enrich(url, "verify").exit_code == 0
    assert service.paid_again == 0


def test_resolve_says_what_settles_itself(tmp_path: Path) -> None:
    """Who looks at doubts hears that the same command settles them, as long as the service remembers."""
    service = FakeService(KEY, idempotency=True)
    service.faults.add(Fault("verify", Status(500)))
    bench = Bench(tmp_path, service, rows=1)
    with serve(service) as url:
        bench.enrich(url, "verify")
    command = ["resolve", "--ledger", str(bench.ledger)]
    said = CliRunner().invoke(app, command)
    assert "1 request in doubt may be sent again" in said.output
    assert json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)["repeatable"] == 1
    with closing(sqlite3.connect(bench.ledger)) as connection:
        connection.execute("UPDATE requests SET first = first - keep")
        connection.commit()
    said = CliRunner().invoke(app, command)
    assert "unsettled: 1 lookup" in said.output
    assert "sent again" not in said.output


# --- a client that is killed


BLOWS = [Blow("LookupAnswered", "before", 3), Blow("LookupAsked", "after", 5), Blow("LookupAnswered", "after", 4)]
UPLOAD_BLOWS = [
    Blow("UploadGated", "after"),
    Blow("UploadSent", "after", 2),
    Blow("JobKnown", "before"),
    Blow("JobKnown", "within", 2),
]
USUAL = (BLOWS[0], UPLOAD_BLOWS[0], UPLOAD_BLOWS[3])
"""What the default suite strikes at; the others are behind the marker `crash`."""


@pytest.mark.parametrize(
    ("engine", "blow"),
    [
        *(pytest.param("verify", blow, marks=() if blow in USUAL else pytest.mark.crash) for blow in BLOWS),
        *(pytest.param("batch", blow, marks=() if blow in USUAL else pytest.mark.crash) for blow in UPLOAD_BLOWS),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.change}-{value.place}",
)
def test_the_same_command_after_a_kill_leaves_no_doubt(
    tmp_path: Path, nursery: Nursery, engine: str, blow: Blow
) -> None:
    """SIGKILL with requests under way, then the same command: every row is answered, nothing is paid twice."""
    service = FakeService(KEY, idempotency=True)
    with campaign(tmp_path / "campaign", nursery, engine, 300, chunk=50, service=service) as one:
        one.give(blow)
        assert one.kills == 1
        assert one.doubts[0] > 0
        assert one.finish() == 0
        seen = one.conclude(0)
        assert not seen["in_doubt"]
    assert service.paid_again == 0


@pytest.mark.parametrize("engine", ["verify", "batch"])
def test_a_client_that_is_killed_while_it_repeats_begins_again(tmp_path: Path, nursery: Nursery, engine: str) -> None:
    """Killed before it can write down what a repetition brought: the next command repeats it once more."""
    service = FakeService(KEY, idempotency=True)
    change = "LookupSettled" if engine == "verify" else "UploadSettled"
    with campaign(tmp_path / "campaign", nursery, engine, 300, chunk=50, service=service) as one:
        one.give(Blow("LookupAsked", "after", 5) if engine == "verify" else Blow("UploadGated", "after"))
        for place in ("before", "within", "after"):
            one.give(Blow(change, place))
        assert one.kills >= 3
        assert one.finish() == 0
        assert not one.conclude(0)["in_doubt"]
    assert service.paid_again == 0


# --- whole histories


@pytest.mark.parametrize(
    "block", [0, *(() if ALONE else (pytest.param(n, marks=pytest.mark.fuzz) for n in range(1, 9)))]
)
def test_paid_once_never_lost_and_never_in_doubt(block: int, tmp_path: Path) -> None:
    """Whatever happens, a lookup is paid once; and where the promise stood all the time, no doubt is left."""
    seeds = [int(ALONE)] if ALONE else range(12 * block, 12 * (block + 1))
    fates = told(seeds, tmp_path, keyed=True)
    assert ALONE or fates["key: known"] > 0


@pytest.mark.fuzz
def test_thousands_of_schedules_with_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same over a third as many seeds as without keys; what they were made of is printed."""
    fates = told(range(2_000_000, 2_000_000 + MANY // 3), tmp_path, keyed=True)
    with capsys.disabled():
        print("\n" + "\n".join(f"{number:>9,}  {fate}" for fate, number in sorted(fates.items())))  # noqa: T201
