"""Runs that are killed at chosen moments, and what must hold whenever one is.

``python tests/crashing.py`` is the nursery: a process that has imported everything and forks a child for each run, so
that a run begins in milliseconds. A child kills itself at a transition of its ledger (:class:`Blow`), or is killed from
outside, by the service in the middle of a request (:class:`Calls`) or by a clock. A :class:`Campaign` gives the same
command again and again, and judges after every run by what the service was paid.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from random import Random
from threading import Lock, Timer
from time import monotonic
from typing import Any, Literal, Self

import polars as pl

import bansong as bs
from bansong.base.schema import ADDED_COLUMNS, ANSWER_COLUMNS, REASON_SEPARATOR
from bansong.client import BaseUrl, Client
from bansong.errors import BansongError
from bansong.purchase.ledger import Ledger
from bansong.purchase.ledger_file import Transaction
from bansong.purchase.lookups import keys_of, scope_of
from bansong.testing import Act, FakeService, Lookup, serve, verdict

KEY = "test-key"
KILLED = -getattr(signal, "SIGKILL", 9)
CONCURRENCY = 16
JOBS = 3
HUNG = 120.0
LOADED = (  # what a run imports when it needs it: the nursery has it loaded once
    *("anyio._backends._asyncio", "anyio.streams.tls", "anyio.to_thread", "encodings.cp949", "bansong.tables.csv"),
    *("bansong.purchase.engines", "bansong.history.labels", "bansong.history.scorecards"),
    *("bansong.run.columns", "bansong.run.accounting", "bansong.run.enrich"),
    *("bansong.run.report", "bansong.run.runner"),
)

Place = Literal["before", "within", "after"]


@dataclass(frozen=True, slots=True)
class Blow:
    """Dies ``before`` the transaction that makes the n-th such change, ``within`` it (all written), or ``after`` it.

    ``change`` is the name of a change, or ``recovery``, what opening the ledger after a kill is.
    """

    change: str
    place: Place
    nth: int = 1


def nurse() -> None:
    """Fork a child for each order on stdin; say its pid, and how it ended."""
    for name in LOADED:
        import_module(name)

    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            os._exit(_run(json.loads(line)))
        _say(pid)
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # not reaped while it may still be struck
        assert ended is not None
        _say(ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status)
        sys.stdin.readline()
        os.waitpid(pid, 0)


def _say(number: int) -> None:
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


def _run(order: dict[str, Any]) -> int:
    """Do what an order says; the exit code is that of the command line."""
    try:
        if order["blow"]:
            _arm(Blow(**order["blow"]))
        if order["unsent"]:
            _fail_to_send()
        os.environ["BANSONG_STATE_DIR"] = order["state"]
        return bs.enrich(**order["call"]).exit_code
    except BansongError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stderr.flush()


def _arm(blow: Blow) -> None:
    """Make this process kill itself where the blow says."""
    settle, finish, begin = Ledger.settle, Transaction.finish, Ledger.__init__
    left, armed = blow.nth, False

    def at(place: Place) -> None:
        if armed and place == blow.place:
            os.kill(os.getpid(), signal.SIGKILL)

    def settled(self: Ledger, changes: Sequence[Any]) -> None:
        nonlocal left, armed
        left -= sum(type(change).__name__ == blow.change for change in changes)
        armed = armed or left <= 0
        at("before")
        settle(self, changes)
        at("after")

    def finished(self: Transaction) -> None:
        finish(self)
        at("within")

    def begun(self: Ledger, *arguments: Any, **options: Any) -> None:
        nonlocal armed
        armed = blow.change == "recovery"
        at("before")
        begin(self, *arguments, **options)
        at("after")

    Ledger.settle, Transaction.finish, Ledger.__init__ = settled, finished, begun  # type: ignore[method-assign]


def _fail_to_send() -> None:
    """Let each upload fail where it is certain that nothing was sent: a reset comes too late to be sure of it."""

    async def unsent(*_: object, **__: object) -> None:
        raise bs.errors.NotSentError("no connection")

    Client.create_batch = unsent  # type: ignore[assignment,method-assign]


class Nursery:
    """The nursery as the tests see it: :meth:`run` an order, and :meth:`strike` the run from any thread."""

    def __init__(self, log: Path) -> None:
        self.number = 0
        self._pid: int | None = None
        self._lock = Lock()
        self.log, self._log = log, log.open("ab")
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=os.environ | {"BANSONG_API_KEY": KEY},
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.strike(self.number)
        with suppress(BrokenPipeError):
            self._process.communicate(timeout=HUNG)
        self._log.close()

    def run(self, order: Mapping[str, Any], strike_after: float | None = None) -> int:
        """Run an order to its end; return its exit code, or the signal that killed it, negative."""
        assert self._process.stdin is not None
        self._tell(json.dumps(order))
        with self._lock:
            self.number += 1
            self._pid = self._heard()
        watch = Timer(HUNG if strike_after is None else strike_after, self.strike, (self.number,))
        begun = monotonic()
        watch.start()
        status = self._heard()
        with self._lock:
            self._pid = None
        watch.cancel()
        watch.join()
        self._tell("reap it")
        assert monotonic() - begun < HUNG, "a run did not end"
        return status

    def strike(self, number: int) -> None:
        """SIGKILL the run of that number, if it still runs."""
        with self._lock:
            if self._pid is not None and number == self.number:
                os.kill(self._pid, signal.SIGKILL)

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def _heard(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())


@dataclass(frozen=True, slots=True)
class Calls(Act):
    """Calls something when a request comes (``before`` it is looked at), or ``after`` it was taken and paid."""

    what: Callable[[], None]
    place: Literal["before", "after"]

    async def before(self, asked: Any) -> None:  # noqa: ARG002 - acts are all called alike
        if self.place == "before":
            self.what()

    async def after(self, asked: Any, reply: Any) -> Any:  # noqa: ARG002
        if self.place == "after":
            self.what()
        return reply


@dataclass
class Campaign:
    """A file, a ledger and a service; the same command is given until it ends by itself."""

    folder: Path
    nursery: Nursery
    engine: str
    service: FakeService
    url: str
    rows: int
    chunk: int
    runs: int = 0
    kills: int = 0
    doubts: list[int] = field(default_factory=list)  # requests or uploads that each kill has left in doubt

    def __post_init__(self) -> None:
        self.folder.mkdir()
        self.frame = customers(self.rows)
        self.asked = [lookup_of(*row) for row in self.frame.iter_rows()]
        self.input, self.output = self.folder / "customers.csv", self.folder / "out.csv"
        self.ledger = self.folder / "ledger.sqlite"
        self.frame.write_csv(self.input)
        distinct = list(dict.fromkeys(lookup for lookup in self.asked if lookup is not None))
        keys = keys_of(scope_of(BaseUrl.parse(self.url).origin, None, None), distinct)
        self.keys = {lookup: keys[lookup] for lookup in distinct}

    def give(self, blow: Blow | None = None, *, unsent: bool = False, strike_after: float | None = None) -> int:
        """Give the command once; whatever became of it, judge. Return its exit code, or the signal that killed it."""
        call = {"input": str(self.input), "output": str(self.output), "ledger": str(self.ledger)}
        call |= {"engine": self.engine, "base_url": self.url, "chunk": self.chunk, "jobs": JOBS}
        call |= {"rate": 1e6, "concurrency": CONCURRENCY, "poll": 0.02, "timeout": 3}
        call |= {"retry_trial": True}  # so many kills leave more trials without an answer than a service may spend
        order = {"call": call, "blow": asdict(blow) if blow else None, "unsent": unsent}
        status = self.nursery.run(order | {"state": str(self.folder / "state")}, strike_after)
        self.runs += 1
        if status == KILLED:
            self.kills += 1
            self._judge_kill()
        else:
            assert status in (0, 3, 5), f"exit {status}: {self.nursery.log.read_text()[-3000:]}"
        assert self.service.paid_again == 0
        return status

    def finish(self) -> int:
        """Give the command until it ends by itself with every lookup asked; a pause asks for nothing but patience."""
        for _ in range(50):
            status = self.give()
            if status in (0, 3):
                return status
            self.service.quota = None
        raise AssertionError("the run pauses again and again")

    def _judge_kill(self) -> None:
        """What was paid is in the ledger as bought, under way or in doubt, and nothing is published by halves."""
        paid = self.service.paid
        if self.output.exists():
            self.look()
        if not self.ledger.exists():
            assert not paid
            return
        with self._ledger_as_found() as ledger:
            asking, uploads, states = ledger.recovered.asking, ledger.recovered.uploads, self.states(ledger)
        assert asking <= 2 * CONCURRENCY  # under way, and answered but not yet written down
        assert uploads <= 1
        self.doubts.append(asking + uploads)
        loose = [lookup for lookup in paid if states[lookup] in (None, "refused", "asking")]
        assert not loose, f"{len(loose)} lookups were paid and would be paid again, as {loose[0]}"

    @contextmanager
    def _ledger_as_found(self) -> Iterator[Ledger]:
        """A copy of the ledger, so that looking at it changes nothing for the next run."""
        copy = self.folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        for part in self.folder.glob("ledger.sqlite*"):
            shutil.copy(part, copy)
        with Ledger.open(copy / self.ledger.name) as ledger:
            yield ledger

    def states(self, ledger: Ledger) -> dict[Lookup, str | None]:
        """The state of each lookup of the file in a ledger."""
        lookups, states = list(self.keys), dict[Lookup, str | None].fromkeys(self.keys)
        for part in ledger.entries(pl.Series(list(self.keys.values()), dtype=pl.Binary)):
            states |= {lookups[place]: state for place, state in part.select("place", "state").iter_rows()}
        return states

    def look(self) -> Counter[str]:
        """Judge the output: every row there, in order, answered rightly or with a note; return the row states."""
        out = pl.read_csv(self.output, infer_schema=False)
        assert out.columns == [*self.frame.columns, *ADDED_COLUMNS]
        assert out.select(self.frame.columns).equals(self.frame)
        paid, seen = self.service.paid, Counter[str]()
        for lookup, row in zip(self.asked, out.select(ADDED_COLUMNS).iter_rows(named=True), strict=True):
            status = row["row_status"]
            seen[status] += 1
            answer = {name: row[name] for name in ANSWER_COLUMNS}
            if lookup is None:
                assert status == "invalid"
            elif status in ("verified", "cached"):
                assert answer == written(verdict(*lookup)), lookup
                assert lookup in paid, lookup
            else:
                assert status in ("pending", "in_doubt", "failed")
                assert not any(answer.values()), lookup
                assert row["row_note"], lookup
        return seen

    def conclude(self, status: int) -> Counter[str]:
        """Judge the end of it all: each paid lookup is answered in the output, or reported in doubt or failed."""
        seen = self.look()
        assert not seen["pending"]
        assert status == (3 if seen["in_doubt"] or seen["failed"] else 0)
        with self._ledger_as_found() as ledger:
            assert (ledger.recovered.asking, ledger.recovered.uploads) == (0, 0)
            states = self.states(ledger)
            held = sum(doubt.rows for doubt in (*ledger.doubts(), *ledger.unusable()))
        assert {states[lookup] for lookup in self.service.paid} <= {"done", "doubt", "unreadable", "missing", "lost"}
        assert held == sum(state in ("doubt", "unreadable", "missing") for state in states.values())
        return seen


@contextmanager
def campaign(
    folder: Path, nursery: Nursery, engine: str, rows: int, chunk: int = 500, service: FakeService | None = None
) -> Iterator[Campaign]:
    """A campaign against a service of its own, on real sockets."""
    service = service or FakeService(KEY)
    with serve(service) as url:
        yield Campaign(folder, nursery, engine, service, url, rows, chunk)


def customers(rows: int) -> pl.DataFrame:
    """A file as people have it: some rows come twice, some have no number, no address or a quote in the name."""
    dice, made = Random(rows), list[tuple[str, str | None, str | None]]()
    for place in range(rows):
        if made and dice.random() < 0.02:
            made.append(dice.choice(made))
            continue
        digits = f"{101_010_000 + place * 7919:09d}"
        b_no = digits + check_digit(digits)
        name = f"상사 {place}" if place % 9 else f'"큰", 상사 {place}'
        address = f"서울 중구 세종대로 {place}" if place % 7 else None
        made.append(("미상" if dice.random() < 0.01 else b_no, name, address))
    return pl.DataFrame(made, schema=dict.fromkeys(("b_no", "name", "address"), pl.String), orient="row")


def check_digit(digits: str) -> str:
    total = sum(int(digit) * weight for digit, weight in zip(digits, (1, 3, 7, 1, 3, 7, 1, 3, 5), strict=True))
    return str((10 - (total + int(digits[8]) * 5 // 10) % 10) % 10)


def lookup_of(b_no: str, name: str | None, address: str | None) -> Lookup | None:
    return Lookup(b_no, name or "", address or "") if b_no.isdecimal() else None


def written(answer: Mapping[str, Any]) -> dict[str, str | None]:
    """An answer as its cells in a CSV file."""
    joined = dict(answer) | {"reasons": REASON_SEPARATOR.join(answer["reasons"])}
    return {name: None if joined[name] is None else str(joined[name]) for name in ANSWER_COLUMNS}


if __name__ == "__main__":
    nurse()
