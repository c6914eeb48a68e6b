"""Whole histories out of one seed: a service that fails in every way it can, runs that end at any moment, an operator.

A history is a few hundred bytes of luck: some lookups, some runs against a troubled service, each of them perhaps
killed, cancelled or interrupted at a random step of its event loop, and between them a user who settles doubts by
hand. After every run :func:`History.check` holds the ledger against what the service knows it was paid for. Then the
service recovers, and everything must come to an end.

Time is trio's fake clock and the scheduler is seeded, so a seed always tells the same story.
"""

from __future__ import annotations

import csv
import io
import math
import secrets
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import Any, Final, cast
from unittest.mock import patch

import anyio
import anyio.to_thread
import polars as pl
import trio
from trio.testing import MockClock

from bansong.base import sqlite
from bansong.base.options import ServiceOptions
from bansong.base.schema import Answer
from bansong.client import Client
from bansong.client.dispatcher import Halt
from bansong.client.responses import Account, BatchCreated, BatchStatus, Idempotency, Result, Verified
from bansong.engine.protocol import LOOKUP
from bansong.engine.records import ROW_ID
from bansong.errors import (
    AuthenticationError,
    DoubtError,
    LimitError,
    NotFoundError,
    NotSentError,
    PlanError,
    QuotaError,
    RejectedError,
    ServiceError,
    ShapeError,
    TooLargeError,
    UsageError,
)
from bansong.purchase import lookups as selection
from bansong.purchase import uploads as batch_upload
from bansong.purchase.ledger import Journal, Ledger, LedgerRun
from bansong.purchase.lookups import KEY, PurchaseContext, scope_of, with_keys
from bansong.purchase.queries import LedgerEntry
from bansong.purchase.singles import buy_singly, settle_doubts
from bansong.purchase.uploads import buy_in_uploads

ORIGIN: Final = "https://service.test"
SCOPE: Final = scope_of(ORIGIN, None, None)
DAY: Final = 86400.0
MAX_AGE: Final = 30 * DAY
SETTLING: Final = 0.1  # simulated seconds after a stop in which a request may still start that was about to
KEEP: Final = 100 * 365 * 86_400  # seconds for which the service remembers a request: no history is that long
PATIENCE: Final = 3 * DAY  # simulated seconds after which a run that has not ended hangs

NUMBERS: Final = ("1248100998", "2208162517", "1018128456")
NAMES: Final = ("", "가나상사", "라마, 바사", '"따옴표"')
ADDRESSES: Final = ("", "서울 중구 세종대로 110", "경기 수원시 영통구 삼성로 129")

Row = tuple[str, str, str]

HELD: Final = {"done", "doubt", "unreadable", "missing", "lost", "uploaded"}  # anything else would be asked again

FINE: Final = "fine"
SINGLE: Final = {
    **{"not sent": 4, "lost on the way there": 3, "lost on the way back": 4, "5xx before": 3, "5xx after": 4},
    **{"429": 2, "413": 1, "400": 3, "redirect": 0.3, "404": 0.3, "401": 0.5, "403": 0.5, "unreadable": 3},
}
UPLOAD: Final = SINGLE | {"not sent at the gate": 3, "5xx before the gate": 1, "429 before the gate": 1}
REFUSALS: Final[dict[str, tuple[type[ServiceError], int]]] = {
    **{"413": (TooLargeError, 413), "redirect": (RejectedError, 302), "404": (NotFoundError, 404)},
    **{"401": (AuthenticationError, 401), "403": (PlanError, 403)},
}
LOOK: Final = {"not sent": 3, "5xx before": 4, "429": 1, "400": 0.3, "401": 0.5, "404": 1, "unreadable": 0.5}


def truth(row: Row) -> Answer:
    """The one right answer for a row."""
    return Answer(biz_status="active", bounce_prob=0.25, grade="B", action="send", reasons=("|".join(row),))


class Violation(AssertionError):
    """A promise is broken."""


@dataclass
class Job:
    """An upload that the service has taken, and how it will speak of it."""

    id: str
    rows: list[Row]
    created: float
    dice: Random
    words: tuple[str, ...] = ("queued", "processing", "half way")
    ending: str = "done"
    ready: float = 0.0
    unknown_looks: int = 0
    forgotten: bool = False
    held_back: int = 0
    mute: set[int] = field(default_factory=set)
    faulty: set[int] = field(default_factory=set)
    base: int | None = 0
    echo: str = "row"
    order: str = "as sent"
    sound: bool = True
    """Its results are complete and say whose they are, and it was never denied: no row may miss its answer."""

    def results(self, healed: bool) -> list[Result]:
        places = [place for place in range(len(self.rows)) if healed or place not in self.mute]
        if self.held_back and not healed:
            self.held_back -= 1
            places = places[: len(places) // 2]
        if self.order == "shuffled":
            self.dice.shuffle(places)
        elif self.order == "doubled":
            places += places
        return [self.result(place, healed) for place in places]

    def result(self, place: int, healed: bool) -> Result:
        row = self.rows[place]
        base, echo = (0, "row") if healed else (self.base, self.echo)
        b_no, name, address = row if echo == "row" else (row[0] if echo == "number" else None, None, None)
        faulty = place in self.faulty and not healed
        return Result(
            key=None if base is None else place + base,
            b_no=b_no,
            name=name or None,
            address=address or None,
            answer=None if faulty else truth(row),
            error="the row could not be verified" if faulty else None,
        )


class Service:
    """What stays while runs come and go: who was paid for, which jobs there are, how much goes wrong."""

    def __init__(self, dice: Random, *, keyed: bool = False) -> None:
        self.dice = dice
        self.promises = keyed
        self.denies = False
        self.unkeyed = False
        self.done: dict[str, tuple[object, Any]] = {}
        self.trouble = dice.choice((0.1, 0.3, 0.6))
        self.trouble_of_looks = dice.choice((0.0, self.trouble))
        self.max_rows = dice.choice((None, None, 1, 2, 3))
        self.paid: Counter[Row] = Counter()
        self.allowed: dict[Row, int] = {}
        self.refused: set[Row] = set()
        self.jobs: dict[str, Job] = {}
        self.fates: Counter[str] = Counter()
        self.story: list[str] = []
        self.violations: list[str] = []
        self._ids = count(1)

    @property
    def healed(self) -> bool:
        return not self.trouble

    def tell(self, words: str) -> None:
        self.story.append(words)

    def fate(self, kind: str, bad: dict[str, float]) -> str:
        """Draw what becomes of a request."""
        fate = FINE
        if self.dice.random() < (self.trouble_of_looks if kind == "job" else self.trouble):
            fate = self.dice.choices(list(bad), weights=list(bad.values()))[0]
        self.fates[f"{kind}: {fate}"] += 1
        return fate

    def once(self, token: str | None, request: object, do: Callable[[], Any]) -> Any:
        """Do a request, unless it was done before, by its key. Without the promise keys are nothing."""
        if token is None or not self.promises:
            return do()
        if self.denies or self.done.get(token, (request,))[0] != request:
            if isinstance(request, tuple):
                self.refused.add(request)
            raise RejectedError("409: this key", status=409)
        if token in self.done:
            self.fates["key: known"] += 1
            self.tell("… was done before")
        else:
            self.done[token] = request, do()
        return self.done[token][1]

    def pay(self, rows: list[Row]) -> None:
        for row in rows:
            self.paid[row] += 1
            self.tell(f"paid {row}")
            if self.paid[row] > self.allowed.get(row, 0):
                self.violations.append(f"{row} was paid {self.paid[row]} times, allowed {self.allowed.get(row, 0)}")

    def take(self, rows: list[Row]) -> Job:
        """Accept an upload, and draw how its job will go."""
        dice, now = self.dice, trio.current_time()
        job = Job(f"job-{next(self._ids)}", rows, now, dice)
        self.pay(rows)
        self.jobs[job.id] = job
        if self.healed:
            return job
        job.ready = now + dice.choice((0.0, 0.0, 1.0, 5.0, 90.0, 3600.0, 3600.0 if dice.random() < 0.7 else 1e9))
        job.ending = dice.choice(("done", "done", "completed", "done", "failed"))
        job.unknown_looks = dice.choice((0, 0, 0, 1, 2, 3))
        job.forgotten = dice.random() < 0.05
        job.held_back = dice.choice((0, 0, 0, 1, 2, 5))
        for place in range(len(rows)):
            if dice.random() < 0.1:
                dice.choice((job.mute, job.faulty)).add(place)
        job.base = dice.choice((0, 0, 1, 2, None))
        job.echo = dice.choice(("row", "row", "number", "nothing"))
        job.order = dice.choice(("as sent", "shuffled", "doubled"))
        job.sound = job.echo == "row" and not (job.unknown_looks or job.forgotten or job.mute or job.faulty)
        job.sound &= job.held_back == 0 or (job.held_back <= 2 and job.order != "doubled")
        self.fates[f"job: {job.ending}, {job.order}, echo {job.echo}"] += 1
        return job


class Wire:
    """The way to the service of one process, in the place of its :class:`bansong.client.Client`."""

    origin = ORIGIN

    def __init__(self, service: Service) -> None:
        self.service = service
        self.dice = service.dice
        self.dead = False
        self.stopped = math.inf

    def account_mark(self, salt: str) -> bytes:
        return salt.encode()[:8]

    async def verify(
        self, b_no: str, name: str | None = None, address: str | None = None, idempotency_key: str | None = None
    ) -> Verified:
        row = (b_no, name or "", address or "")
        self._may_pay()
        fate = self.service.fate("verify", SINGLE)
        self.service.tell(f"verify {row}: {fate}")
        if fate in ("400", "413", "redirect"):
            self.service.refused.add(row)
        await self._sent(fate)
        await self._travelled(fate, lambda: self.service.once(idempotency_key, row, lambda: self.service.pay([row])))
        if fate == "unreadable":
            raise ShapeError("the answer is no JSON", status=200, raw=b"<html>")
        answer = truth(row)
        return Verified(
            biz_status=answer.biz_status,
            bounce_prob=answer.bounce_prob,
            grade=answer.grade,
            action=answer.action,
            reasons=list(answer.reasons),  # type: ignore[arg-type]  # read as JSON gives it
        )

    async def create_batch(
        self,
        content: bytes,
        *,
        before_last_byte: Callable[[], Awaitable[None]] | None = None,
        after_last_byte: Callable[[], Awaitable[None]] | None = None,
        idempotency_key: str | None = None,
        **flags: bool | None,
    ) -> BatchCreated:
        head, *lines = csv.reader(io.StringIO(content.decode()))
        if head != ["b_no", "name", "address"] or not lines or any(flags.values()):
            raise Violation(f"an upload of {content!r} with {flags}")
        rows = [(b_no, name, address) for b_no, name, address in lines]
        self._may_pay()
        fate = self.service.fate("batch", UPLOAD)
        if self.service.max_rows is not None and len(rows) > self.service.max_rows:
            fate = "413"
        self.service.tell(f"upload {rows}: {fate}")
        if fate == "413" and len(rows) == 1:
            self.service.refused.update(rows)
        early = self.dice.random() < 0.3
        await self._sent(fate)
        if fate.endswith("before the gate") or (early and fate in ("413", "401", "403", "400")):
            await self._travelled(fate, lambda: None)
        if before_last_byte is not None:
            await before_last_byte()
        if fate == "not sent at the gate":
            raise NotSentError("the connection broke while the gate was opened")
        job: list[Job] = []
        take = lambda: self.service.once(idempotency_key, content, lambda: self.service.take(rows))  # noqa: E731
        await self._travelled(fate, lambda: job.append(take()), after_last_byte)
        if fate == "unreadable":
            raise ShapeError("the answer names no job", status=200, raw=b"{}")
        return BatchCreated(job_id=job[0].id, total=self.dice.choice((None, len(rows))))

    async def batch(self, job_id: str, *, preview: int | None = None) -> BatchStatus:
        fate = self.service.fate("job", LOOK)
        self.service.tell(f"look at {job_id} (preview {preview}): {fate}")
        job = self.service.jobs.get(job_id)
        if job is not None and fate == "404":
            job.sound = False
        await self._sent(fate)
        await self._travelled(fate, lambda: None)
        if fate == "unreadable":
            raise ShapeError("the answer is no JSON", status=200, raw=b"<html>")
        if job is not None and job.unknown_looks and not self.service.healed:
            job.unknown_looks -= 1
            job = None
        if job is None or job.forgotten:
            raise NotFoundError(f"job {job_id} does not exist", status=404)
        total = len(job.rows)
        if trio.current_time() < job.ready and not self.service.healed:
            return BatchStatus(status=self.dice.choice(job.words), total=total, done=0)
        results = job.results(self.service.healed)[:preview]
        return BatchStatus(status=job.ending, total=total, done=total, results=results)

    async def me(self) -> Account:
        fate = self.service.fate("me", {"not sent": 2, "5xx before": 2, "401": 0.2})
        await self._sent(fate)
        await self._travelled(fate, lambda: None)
        promise = Idempotency(frozenset(("POST /verify", "POST /batch")), KEEP) if self.service.promises else None
        return Account(limit=1000, used=0, remaining=1000, idempotency=promise)

    def _may_pay(self) -> None:
        if trio.current_time() > self.stopped + SETTLING and not self.dead:
            self.service.violations.append("something was bought after the run had been stopped")

    async def _sent(self, fate: str) -> None:
        """The time until the first bytes are out; until then nothing can have happened."""
        await self._pass(self.dice.choice((0.0, 0.001, 0.01)))
        if fate == "not sent":
            raise NotSentError("cannot connect", retry_after=None)

    async def _travelled(
        self, fate: str, taken: Callable[[], None], after_last_byte: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """The way there, what the service does, and the way back; raises what comes of it but an answer."""
        dice, arrived = self.dice, False
        takes = not self.dead and fate in (FINE, "lost on the way back", "5xx after", "unreadable")
        try:
            if after_last_byte is not None and dice.random() < 0.5:
                await after_last_byte()  # the network took the last byte before the service saw it; else never known
            await self._pass(dice.choice((0.0, 0.02, 0.02, 1.0, 40.0 if dice.random() < 0.2 else 0.1)))
            arrived = True
            if takes:
                taken()
            await self._pass(dice.choice((0.0, 0.02, 0.5)))
        except trio.Cancelled:
            if takes and not arrived and dice.random() < 0.5:
                self.service.tell("… arrives after all")
                taken()  # nobody hears of it any more
            raise
        if (error := self._error(fate)) is not None:
            raise error

    def _error(self, fate: str) -> ServiceError | None:
        dice = self.dice
        match fate.split(" before")[0]:
            case "lost on the way there" | "lost on the way back":
                return DoubtError("no answer in time")
            case "5xx" | "5xx after":
                status = dice.choice((500, 502, 503, 503, 504))
                return DoubtError(f"{status}", status=status, retry_after=dice.choice((None, 2.0, 3600.0)))
            case "429":
                kind = dice.choice((QuotaError, LimitError))
                return kind("429", status=429, retry_after=dice.choice((None, None, 0.5, 20.0, 86400.0)))
            case "400":
                return RejectedError("400", status=dice.choice((400, 409, 422)))
        kind, code = REFUSALS.get(fate, (None, 0))
        return kind and kind(str(code), status=code)

    async def _pass(self, seconds: float) -> None:
        if self.dead:
            await trio.sleep_forever()
        await trio.sleep(seconds)


class _At(trio.abc.Instrument):
    """Does something at the n-th step that any task takes: between two awaits, wherever that is."""

    def __init__(self, step: int) -> None:
        self.left = step
        self.act: Callable[[], None] | None = None

    def before_task_step(self, task: trio.lowlevel.Task) -> None:  # noqa: ARG002 - trio gives it
        self.left -= 1
        if self.left <= 0 and self.act is not None:
            act, self.act = self.act, None
            act()


class History:
    """The history of one seed: :meth:`told` runs it, and raises :class:`Violation`."""

    def __init__(self, seed: int, folder: Path, *, keyed: bool = False) -> None:
        self.seed = seed
        self.keyed = keyed
        self.dice = dice = Random(seed)
        self.service = Service(dice, keyed=keyed)
        self.path = folder / "ledger-0.sqlite"
        shutil.copyfile(_empty_ledger(), self.path)
        self.now = 1e9
        self.runs = count(1)
        self.killed = False
        every = [(b_no, name, address) for b_no in NUMBERS for name in NAMES for address in ADDRESSES]
        self.rows = dice.sample(every, dice.randint(3, 12))
        self.service.allowed = dict.fromkeys(self.rows, 1)
        frame = pl.DataFrame({LOOKUP: ["\x1f".join(row) for row in self.rows], ROW_ID: range(len(self.rows))})
        self.lookups = with_keys(frame.with_columns(rows=pl.lit(1)), SCOPE)
        self.row_of = dict(zip(self.lookups[KEY], self.rows, strict=True))

    def told(self) -> Service:
        """Tell it: trouble, then a service that works, then a user who asks again for what is held."""
        for _ in range(self.dice.randint(1, 4)):
            self.run(ending=self.dice.choice(("killed", "killed", "interrupted", "cancelled", "its own", "its own")))
            self.between()
        self.service.trouble = self.service.trouble_of_looks = 0.0
        self.service.promises, self.service.denies = self.keyed, False
        self.run()
        if self.keyed:
            self.no_doubts()
        if self.run():
            raise Violation("a service that works has answered, and still there is something to be bought")
        self.resend_all()
        self.run()
        with self.opened() as ledger:
            entries = self.entries(ledger)
        for row in self.rows:
            entry = entries.get(row)
            if entry is None or not (entry.state == "lost" or (entry.state == "done" and self.is_fresh(entry))):
                raise Violation(f"after all that, {row} is neither answered nor given up: {entry}")
        return self.service

    def no_doubts(self) -> None:
        """Raise :class:`Violation` if a doubt is left, though the service has told all that it knows by the keys."""
        if self.service.unkeyed:  # then some went without a key
            return
        most = self.service.max_rows or math.inf  # more are refused each time, which says nothing of the first
        with self.opened() as ledger:
            left = [doubt for doubt in ledger.doubts() if doubt.rows <= most]
        if left:
            raise Violation(f"nothing need be in doubt, and yet there is {left}")

    @contextmanager
    def opened(self) -> Iterator[Ledger]:
        with Ledger.open(self.path, clock=lambda: self.now) as ledger:
            yield ledger

    def run(self, ending: str = "its own") -> bool:
        """One run of the program; returns whether there was anything to be bought."""
        self.now += 60.0
        self.killed = False
        with self.opened() as ledger:
            self.check(ledger)
            standing = selection.standing(ledger, self.lookups, self.now - MAX_AGE)
            for row in (self.row_of[key] for key in standing.wanted[KEY]):
                if self.service.paid[row] >= self.service.allowed[row]:
                    raise Violation(f"{row} was paid, and would be bought again")
            wanted = not standing.wanted.is_empty()
            if self.service.healed or self.dice.random() < 0.5:
                ledger.allow_trial(ORIGIN)
            if wanted or standing.running or ledger.pending_requests(ORIGIN):
                self._process(ledger, standing, ending)
            if not self.killed:
                self.check(ledger)
        return wanted

    def _process(self, ledger: Ledger, standing: selection.Standing, ending: str) -> None:
        dice = self.dice
        engine = dice.choice(("verify", "batch"))
        terms = ServiceOptions(
            concurrency=dice.randint(1, 4), chunk=dice.randint(1, 4), jobs=dice.randint(1, 3),
            rate=dice.choice((5.0, 50.0, 1000.0)), poll=dice.choice((0.5, 2.0)), drain=dice.choice((0.0, 1.0, 10.0)),
        )  # fmt: skip
        run_id = f"run-{next(self.runs)}"
        self.service.tell(f"--- {run_id} {engine}, to be {ending}; {terms}")
        self.service.fates[f"run: {engine}"] += 1
        ledger.begin(LedgerRun(run_id, engine, ORIGIN, "file.csv", self.now))
        process = _Process(self, ledger, terms, run_id, engine, ending)
        halt = process.run(standing)
        if halt is not None:
            self.service.fates[f"stop: {halt.why}"] += 1
            self.service.tell(f"halt: {halt}")
            if halt.why == "fault":
                raise Violation(f"the run broke: {halt.error!r}") from halt.error
        if not self.killed:
            ledger.end(run_id, halt.why if halt else "done")

    def kill(self) -> None:
        """The process is gone: what is in the files now is all there is."""
        after = self.path.with_name(f"ledger-{next(self.runs)}.sqlite")
        shutil.copyfile(self.path, after)
        log = Path(f"{self.path}-wal")
        if log.exists():
            shutil.copyfile(log, f"{after}-wal")
        self.path = after
        self.killed = True
        self.service.tell("killed")

    def entries(self, ledger: Ledger) -> dict[Row, LedgerEntry]:
        """What the ledger knows of the lookups."""
        found = [entry for b_no in NUMBERS for entry in ledger.find(b_no)]
        return {row: entry for entry in found for key, row in self.row_of.items() if key.hex().startswith(entry.id)}

    def states(self, ledger: Ledger) -> dict[Row, str]:
        return dict.fromkeys(self.rows, "unknown") | {row: entry.state for row, entry in self.entries(ledger).items()}

    def check(self, ledger: Ledger) -> None:
        """Raise :class:`Violation` unless every lookup that was paid is in the ledger, once, with the right answer."""
        service = self.service
        if service.violations:
            raise Violation("; ".join(service.violations))
        entries = self.entries(ledger)
        for row in self.rows:
            paid, entry = service.paid[row], entries.get(row)
            if entry is None or entry.state == "refused":
                held = False
            else:
                held = entry.state in HELD and (entry.state != "done" or self.is_fresh(entry))
            if paid >= service.allowed[row] and not held:
                raise Violation(f"{row} was paid {paid} times and would be asked again: {entry}")
            if entry is not None:
                self.check_entry(row, entry)
        jobs = {upload.id for upload in ledger.open_uploads(ORIGIN)}
        if waiting := [e for e in entries.values() if e.state == "uploaded" and e.upload not in jobs]:
            raise Violation(f"nobody will ask for the results of {waiting}")
        counted = sum(run.paid for run in ledger.runs())
        if counted > service.paid.total():
            raise Violation(f"the ledger counts {counted} paid lookups, the service {service.paid.total()}")

    def check_entry(self, row: Row, entry: LedgerEntry) -> None:
        if entry.state == "asking":
            raise Violation(f"{row} is left under way: {entry}")
        if entry.answer not in (None, truth(row)):
            raise Violation(f"{row} has the answer of another: {entry}")
        if entry.state == "missing" and entry.job_id and self.service.jobs[entry.job_id].sound:
            raise Violation(f"{row} lacks its answer, and the service has it: {entry}")
        if entry.state == "refused" and row not in self.service.refused:
            raise Violation(f"{row} was never refused for what it is: {entry}")
        if entry.state == "done" and not self.service.paid[row]:
            raise Violation(f"{row} was never paid, and is done: {entry}")

    def is_fresh(self, entry: LedgerEntry) -> bool:
        return entry.answered_at is not None and entry.answered_at >= self.now - MAX_AGE

    def between(self) -> None:
        """What a user may do between two runs: settle this or that by hand, or come back much later."""
        dice = self.dice
        if self.keyed:
            self.service.promises, self.service.denies = dice.random() < 0.8, dice.random() < 0.2
            self.service.unkeyed |= not self.service.promises
        if dice.random() < 0.5:
            return
        with self.opened() as ledger:
            if dice.random() < 0.2:
                self.later(ledger)
            for doubt in [*ledger.doubts(), *ledger.unusable()]:
                decision = dice.choice(("accept", "resend", "resend", "attach", "attach", "wait", "wait"))
                if decision == "accept":
                    self.service.fates["by hand: accept"] += 1
                    ledger.accept([doubt.id])
                elif decision == "resend":
                    self.resend(ledger, doubt.id, doubt.kind)
                elif decision == "attach" and doubt.kind == "upload":
                    self.attach(ledger, doubt.id)
            self.check(ledger)

    def later(self, ledger: Ledger) -> None:
        """So much later that answers are too old: they may be bought again."""
        self.service.fates["by hand: later"] += 1
        self.now += MAX_AGE + DAY
        self.service.tell("much later")
        for row, state in self.states(ledger).items():
            if state == "done":
                self.service.allowed[row] = self.service.paid[row] + 1

    def resend(self, ledger: Ledger, id: str, kind: str) -> None:
        """Ask again what may have been paid: each lookup that waits for it may be paid once more, and no other."""
        self.service.fates["by hand: resend"] += 1
        self.service.tell(f"resend {kind} {id}")
        keys = [key for key, _ in ledger.rows_of(id)] if kind == "upload" else self.row_of
        before = self.states(ledger)
        ledger.resend([id])
        after = self.states(ledger)
        for row in (self.row_of[key] for key in keys):
            waited = before[row] in ("doubt", "unreadable", "missing", "lost")
            if waited and after[row] in ("unknown", "refused", "done"):
                self.service.allowed[row] = self.service.paid[row] + 1

    def attach(self, ledger: Ledger, id: str) -> None:
        """Name the job that an upload became, if it became one."""
        rows = [self.row_of[key] for key, _ in ledger.rows_of(id)]
        found = [job for job in self.service.jobs.values() if job.rows == rows]
        taken = {upload.job_id for upload in ledger.open_uploads(ORIGIN)}
        for job in reversed(found):
            if job.id not in taken:
                with suppress(UsageError):  # it is the job of another upload of the same rows, which knows it already
                    ledger.attach(id, job.id)
                    self.service.fates["by hand: attach"] += 1
                    self.service.tell(f"attach {id} to {job.id}")
                    return

    def resend_all(self) -> None:
        with self.opened() as ledger:
            for doubt in [*ledger.doubts(), *ledger.unusable()]:
                self.resend(ledger, doubt.id, doubt.kind)


class _Process:
    """One process: what :mod:`bansong.purchase.engines` puts together, with a wire for its client."""

    def __init__(
        self, history: History, ledger: Ledger, terms: ServiceOptions, run_id: str, engine: str, ending: str
    ) -> None:
        self.history, self.ledger, self.terms, self.run_id, self.engine = history, ledger, terms, run_id, engine
        self.ending = ending
        self.wire = Wire(history.service)
        self.halt: Halt | None = None

    def run(self, standing: selection.Standing) -> Halt | None:
        dice = self.history.dice
        at = _At(dice.randint(1, dice.choice((40, 150, 600))))
        with _seeded(dice):
            trio.run(self._main, standing, at, clock=MockClock(autojump_threshold=0), instruments=[at])
        return self.halt

    async def _main(self, standing: selection.Standing, at: _At) -> None:
        with trio.fail_after(PATIENCE), trio.CancelScope() as life:
            await self._bought(standing, at, life)
        at.act = None

    async def _bought(self, standing: selection.Standing, at: _At, life: trio.CancelScope) -> None:
        client = cast(Client, self.wire)
        async with Journal(self.ledger) as journal:
            context = PurchaseContext(client, self.ledger, journal, self.terms, self.run_id, SCOPE)
            context.dispatcher.retries = type(context.dispatcher.retries)(random=self.history.dice)
            self._watch(context)
            at.act = self._end(context, life)
            try:
                account = await context.dispatcher.fetch(client.me)
                if account is None:
                    return
            except ServiceError:
                return
            context.idempotency = account.idempotency
            if account.idempotency is not None and await settle_doubts(context, self.history.row_of, None):
                standing = selection.standing(self.ledger, self.history.lookups, self.history.now - MAX_AGE)
            wanted = standing.wanted
            if self.engine == "batch":
                await buy_in_uploads(context, wanted, context.ledger.open_uploads(context.client.origin))
            else:
                if standing.running:
                    await buy_in_uploads(context, wanted.clear(), context.ledger.open_uploads(context.client.origin))
                if not wanted.is_empty() and not context.dispatcher.is_cancelled:
                    await buy_singly(context, wanted)
            self.halt = context.dispatcher.halt

    def _watch(self, context: PurchaseContext) -> None:
        """Note when the run is stopped."""
        pull = context.dispatcher.cancel

        def noted(halt: Halt) -> None:
            self.wire.stopped = min(self.wire.stopped, trio.current_time())
            pull(halt)

        context.dispatcher.cancel = noted  # type: ignore[method-assign]

    def _end(self, context: PurchaseContext, life: trio.CancelScope) -> Callable[[], None] | None:
        """How this process is to end, unless it is done before."""

        def killed() -> None:
            self.wire.dead = True
            self.history.kill()
            life.cancel()

        def interrupted() -> None:
            context.dispatcher.cancel(Halt("interrupted", "interrupted"))

        endings = {"killed": killed, "interrupted": interrupted, "cancelled": life.cancel, "its own": lambda: None}

        def end() -> None:
            self.history.service.fates[f"ended: {self.ending}"] += 1
            self.history.service.tell(f"… {self.ending}, at {trio.current_time():.3f}")
            endings[self.ending]()

        return None if self.ending == "its own" else end


@contextmanager
def _seeded(dice: Random) -> Iterator[None]:
    """Everything that is left to chance, or to threads, in the hand of the dice."""

    async def in_turn(commit: Callable[..., Any], *args: Any, limiter: object = None) -> Any:
        await trio.sleep(dice.choice((0.0, 0.0, 0.003)))  # killed here, it never happened
        done = commit(*args)
        await trio.sleep(dice.choice((0.0, 0.0, 0.003)))  # killed here, it happened, and nobody heard of it
        return done

    internals: Any = trio._core._run
    internals._r.seed(dice.random())
    with (
        patch.object(internals, "_ALLOW_DETERMINISTIC_SCHEDULING", True),
        patch.object(anyio.to_thread, "run_sync", in_turn),
        patch.object(batch_upload, "_TRIAL_ROWS", dice.choice((1, 3, 100))),
        patch.object(secrets, "token_hex", lambda size: f"{dice.getrandbits(8 * size):0{2 * size}x}"),
    ):
        yield


@cache
def _empty_ledger() -> Path:
    """A ledger that was just made: to make one takes longer than a whole history."""
    path = Path(mkdtemp(prefix="bansong-schedules-")) / "ledger.sqlite"
    with closing(Ledger.open(path)):
        pass
    return path


@contextmanager
def unsynced() -> Iterator[None]:
    """Ledgers that do not wait for the disk: a process that is killed takes no page of the system with it."""
    pragmas = tuple(pragma.replace("synchronous = FULL", "synchronous = OFF") for pragma in sqlite._PRAGMAS)
    with patch.object(sqlite, "_PRAGMAS", pragmas):
        yield


def told(seeds: Iterable[int], folder: Path, *, keyed: bool = False) -> Counter[str]:
    """Tell the history of each seed; the first that breaks a promise ends the test with its seed and its story."""
    fates: Counter[str] = Counter()
    with unsynced():
        for seed in seeds:
            place = folder / str(seed)
            place.mkdir()
            history = History(seed, place, keyed=keyed)
            try:
                fates += history.told().fates
            except BaseException as error:
                error.add_note(f"replay it with SCHEDULE={seed}; its story:\n" + "\n".join(history.service.story))
                raise
            shutil.rmtree(place)
    return fates
