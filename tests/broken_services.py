"""Services that are broken, each in its way, and what the same command over and over makes of them.

The table is shared by ``test_broken_services.py``, which judges it, and ``benchmarks/broken_services.py``, which prints
it. Nothing here asks bansong whether an answer is right: the fake's answers are a function of the record.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal
from unittest.mock import patch

import polars as pl

import bansong as bs
from bansong import testing as fake
from bansong.base.schema import Alert
from bansong.errors import BansongError
from bansong.purchase.ledger import Ledger
from bansong.run.table import RunStart

KEY: Final = "bv_live_0123456789abcdef"
ROWS: Final = 600
RUNS: Final = 4
"""The command, and three repeats of it."""
CHUNK: Final = 100
SEVEN: Final = ("biz_status", "bounce_prob", "grade", "action", "fixed_zipcode", "fixed_address", "reasons")
RIGHT, WRONG, EMPTY, NONE = "right", "wrong", "empty", "none"
DAY: Final = 86_400.0
_SENDS: Final = "with the action `send` of the service"
"""What every run over the fake's answers says of them: it tells nothing of what is broken."""

Engine = Literal["verify", "batch"]


@dataclass(frozen=True)
class Case:
    """A broken service: its faults (each run begins them anew) and dialect, and what must hold over :data:`RUNS` runs.

    At most ``most`` lookups are spent, and at least ``least`` rows are answered in the end. The faults are there for
    ``broken_runs`` runs; ``options`` are those of the command, ``numbers`` how many different numbers the file has,
    ``clock`` by how many days the ledger's clock is wrong in each run, ``uploads`` how many uploads may be sent.
    """

    faults: tuple[fake.Fault, ...] = ()
    most: int = 300
    least: int = 0
    dialect: fake.Dialect = field(default_factory=fake.Dialect)
    broken_runs: int = RUNS
    options: dict[str, Any] = field(default_factory=dict)
    numbers: int = ROWS
    clock: tuple[float, ...] = (0.0,) * RUNS
    uploads: int | None = None


def upload(what: fake.Act, **case: Any) -> Case:
    """A service whose reply to every upload is broken."""
    return Case((fake.Fault("batch", what),), **case)


def job(what: fake.Act, *more: fake.Act, **case: Any) -> Case:
    """A service whose reply to every look at a job is broken."""
    return Case(tuple(fake.Fault("job", one) for one in (what, *more)), **case)


def answer(what: fake.Act, every: int | None = None, **case: Any) -> Case:
    """A service whose single answers are broken."""
    return Case((fake.Fault("verify", what, every=every),), **case)


def account(what: fake.Act, **case: Any) -> Case:
    """A service whose account cannot be read."""
    return Case((fake.Fault("me", what),), **case)


_KEYS_ONLY: Final = fake.Dialect(echo="none")
_NUMBER_ONLY: Final = fake.Dialect(echoed=("b_no",), row_key=None)
_NESTED: Final = fake.Dialect(echo="under", echo_under="input", answer_under="result", row_key=None)
_ECHOING: Final = fake.Dialect(verify_echo="nested")
_ALL: Final[dict[str, Any]] = {"most": ROWS, "least": ROWS}
"""For what is broken but can be had: everything is bought once, and answered."""
_ONCE_GOOD: Final[dict[str, Any]] = {"options": {"jobs": 1}, "most": 500}
"""For what answers the first upload: then one more comes to nothing, and three trials."""
_SINGLE: Final[dict[str, Any]] = {"most": 120}
"""For what stops after ten requests in a row; as many as are under way then may be paid, too, in each run."""

BATCH: Final[dict[str, Case]] = {
    "an upload is answered by 500": upload(fake.Status(500, paid=True)),
    "an upload's reply has no job": upload(fake.Body(b'{"total": 100}')),
    "an upload is answered by a web page": upload(fake.HTML),
    "an upload is answered by garbage": upload(fake.GARBAGE),
    "an upload's reply never comes": upload(fake.Reset("after")),
    "an upload's reply is far too large": upload(fake.Huge(6 << 20)),
    "an upload is redirected": upload(fake.Redirect("https://elsewhere.test/batch"), most=0),
    "an upload is asked to wait for ages": upload(fake.Status(503, retry_after="1e300", paid=True)),
    "every upload is the same job": upload(fake.FirstJob(), **_ONCE_GOOD),
    "a job is not known": job(fake.Status(404)),
    "a job fails with 500": job(fake.Status(500)),
    "a job's record is a web page": job(fake.HTML),
    "a job's record is far too large": job(fake.Huge(12 << 20)),
    "a job is redirected": job(fake.Redirect("https://elsewhere.test/batch/1")),
    "a job is never done": job(fake.Word("processing")),
    "a job shows another job's results": job(fake.FirstJob(), **_ONCE_GOOD),
    "a job shows another job's results, the large ones": job(fake.FirstJob(), options={"chunk": 250}, most=ROWS),
    "a job's answers are empty": job(fake.Emptied()),
    "a job's answers are another number's, nested": job(fake.SomebodyElses("b_no"), dialect=_NESTED),
    "a job's answers are at another address": job(fake.SomebodyElses("address")),
    "a job's rows are dropped and numbered anew": job(fake.Missing(0.08, renumbered=True), dialect=_KEYS_ONLY),
    "a job's row keys are shifted, rows are missing": job(fake.ShiftedKeys(), fake.Missing(0.05), most=ROWS, least=550),
    "a job has neither keys nor echoes": job(fake.Reordered(), dialect=fake.Dialect(echo="none", row_key=None)),
    "a job gives each result three times": job(fake.Repeated(3), **_ALL),
    "a job echoes the number only, at two addresses": Case(dialect=_NUMBER_ONLY, numbers=ROWS // 2, **_ALL),
    "a job lacks 3 % of its rows": job(fake.Missing(0.03), most=ROWS, least=570, uploads=6),
    "a job shows 30 results at most": Case(dialect=fake.Dialect(preview_most=30), most=ROWS, least=ROWS - 70),
    "a job gives half of its results": job(fake.Partial(0.5), most=ROWS),
    "a job's results come late": job(fake.Partial(0.3), broken_runs=1, **_ALL),
    "a job's texts have a byte that is no UTF-8": job(fake.InvalidByte(), **_ALL),
    "a job's responses are sent twice": job(fake.Twice(), most=ROWS),
    "the account has two quotas": account(fake.Body(b'{"quota": {"remaining": 5}, "remaining": 7}'), most=0),
    "the account fails with 500": account(fake.Status(500), most=0),
    "the account fails with 500, with a budget": account(fake.Status(500), options={"budget": 150}, **_ALL),
    "the clock is wrong": Case(clock=(0, -400, 20, 5), **_ALL),
}

VERIFY: Final[dict[str, Case]] = {
    "an answer fails with 500": answer(fake.Status(500, paid=True), **_SINGLE),
    "an answer is a web page": answer(fake.HTML, **_SINGLE),
    "an answer is empty": answer(fake.Body(b'{"biz_status": null, "reasons": []}'), **_SINGLE),
    "an answer never comes": answer(fake.Reset("after"), **_SINGLE),
    "an answer is far too large": answer(fake.Huge(6 << 20), **_SINGLE),
    "an answer is redirected": answer(fake.Redirect("https://elsewhere.test/verify"), most=0),
    "an answer asks to wait for ages": answer(fake.Status(503, retry_after="1e300", paid=True), **_SINGLE),
    "an answer is of another name": answer(
        fake.SomebodyElses("name"), dialect=fake.Dialect(verify_echo="flat"), **_SINGLE
    ),
    "every third answer is another number's, nested": answer(
        fake.SomebodyElses("b_no"), every=3, dialect=_ECHOING, most=ROWS, least=ROWS // 2
    ),
    "every tenth response is sent twice": answer(fake.Twice(), every=10, most=ROWS, least=ROWS // 2),
    "the account has two quotas, with a budget": account(
        fake.Body(b'{"quota": {"remaining": 5}, "remaining": 7}'), options={"budget": 150}, **_ALL
    ),
    "the clock is wrong": Case(clock=(0, -400, 20, 5), **_ALL),
}

TABLE: Final[dict[Engine, dict[str, Case]]] = {"batch": BATCH, "verify": VERIFY}

USUAL: Final[dict[Engine, tuple[str, ...]]] = {
    "batch": (
        "an upload's reply never comes",
        "a job's answers are another number's, nested",
        "a job's rows are dropped and numbered anew",
        "a job lacks 3 % of its rows",
        "the clock is wrong",
    ),
    "verify": ("an answer never comes", "every third answer is another number's, nested"),
}
"""Cases of which the default suite gives the command twice; `fuzz` gives it four times in every case."""


@dataclass(frozen=True)
class Outcome:
    """What one run came to: its exit code, what it said, and how each row stands.

    That is ``right``, ``wrong``, ``empty`` (an answer that says nothing) or ``none`` (no answer).

    ``rows`` is ``None`` where nothing was published; ``silent`` counts rows without an answer that do not say why.
    """

    code: int
    words: tuple[str, ...]
    rows: tuple[str, ...] | None
    silent: int = 0

    def count(self, what: str) -> int:
        """How many rows are so."""
        return (self.rows or ()).count(what)


@dataclass(frozen=True)
class Campaign:
    """What all runs came to: lookups ``spent``, how many of them ``again``, uploads that were sent, the outcomes."""

    spent: int
    again: int
    uploads: int
    outcomes: tuple[Outcome, ...]


def right_numbers(count: int) -> list[str]:
    """So many different numbers with the right check digit."""
    frame = pl.select(pl.int_range(1_010_000_000, 1_010_000_000 + 20 * count, dtype=pl.UInt64).alias("n"))
    return frame.filter(bs.number.checksum_expr(pl.col("n")))["n"].cast(pl.String).head(count).to_list()


def customers(path: Path, numbers: int) -> list[tuple[str, str, str]]:
    """Write a list of :data:`ROWS` customers that have so many different numbers; return their records."""
    known = right_numbers(numbers)
    rows = [(known[i * numbers // ROWS], f"상사 {i}", f"서울특별시 중구 세종대로 {i + 1}") for i in range(ROWS)]
    path.write_text("\n".join(["사업자번호,상호,주소", *map(",".join, rows), ""]), encoding="utf-8")
    return rows


def campaign(folder: Path, engine: Engine, case: Case, runs: int = RUNS) -> Campaign:
    """Give the same command so many times, each time with what the ledger has learned."""
    source, ledger = folder / "in.csv", folder / "ledger.sqlite"
    records = customers(source, case.numbers)
    service = fake.FakeService(KEY, quota=100_000, dialect=case.dialect)
    outcomes = []
    with fake.serve(service) as url, _impatient():
        for run in range(runs):
            service.faults = fake.Faults(*(case.faults if run < case.broken_runs else ()))
            output = folder / f"out{run}.csv"
            options = {"base_url": url, "api_key": bs.ApiKey(KEY), "ledger": ledger, "chunk": CHUNK, **case.options}
            with _clock_off_by(case.clock[run]):
                outcomes.append(_run(source, output, records, engine=engine, rate=1e5, poll=0.01, **options))
    return Campaign(service.paid_total, service.paid_again, len(service.uploads), tuple(outcomes))


def _run(source: Path, output: Path, records: list[tuple[str, str, str]], **options: Any) -> Outcome:
    try:
        report = bs.enrich(source, output, **options)
    except BansongError as error:
        assert not output.exists()
        return Outcome(error.exit_code, (str(error),), None)
    table = pl.read_csv(output, infer_schema=False)
    assert table.select("사업자번호", "상호", "주소").rows() == records, "every row is there, and as it was"
    assert sum(report.counts.values()) == len(records)
    rows = [_judge(row) for row in table.iter_rows(named=True)]
    answered = zip(rows, table["row_note"], strict=True)
    silent = sum(judged == NONE and not note for judged, note in answered)
    paused = [report.purchase.paused] if report.purchase and report.purchase.paused else []
    notes = table.filter(pl.col("row_note").is_not_null())["row_note"].unique(maintain_order=True).to_list()
    alerts = [warning for warning in report.warnings if isinstance(warning, Alert) and _SENDS not in warning]
    return Outcome(report.exit_code, (*paused, *alerts, *notes), tuple(rows), silent)


def _judge(row: dict[str, str | None]) -> str:
    """Hold a row against what the fake answers for its record."""
    cells = [row[name] or None for name in SEVEN]
    if row["row_status"] not in ("verified", "cached"):
        return NONE if not any(cells) else WRONG
    if not any(cells):
        return EMPTY
    wanted = fake.verdict(str(row["사업자번호"]), str(row["상호"]), str(row["주소"]))
    texts = [wanted[name] for name in SEVEN[:-1]] + [" | ".join(wanted["reasons"])]
    return RIGHT if all(_is_same(cell, text) for cell, text in zip(cells, texts, strict=True)) else WRONG


def _is_same(cell: str | None, wanted: object) -> bool:
    """Whether a cell says what it should; a character that could not be read stands for any."""
    if cell == wanted:
        return True
    if cell is None or wanted is None:
        return False
    if isinstance(wanted, float):
        return float(cell) == wanted
    pattern = ".".join(map(re.escape, re.split("\ufffd+", cell)))
    return re.fullmatch(pattern, str(wanted)) is not None


@contextmanager
def _impatient() -> Iterator[None]:
    """No pauses between tries, and no job is waited for longer than a moment."""
    with (
        patch("bansong.client.dispatcher.RetryBudget.backoff", lambda *_: 0.0),
        patch("bansong.purchase.uploads._DEADLINE_S", 0.1),
    ):
        yield


@contextmanager
def _clock_off_by(days: float) -> Iterator[None]:
    """Let the ledger's clock, and the run's, be wrong."""
    true = time.time
    wrong: Callable[[], float] = lambda: true() + days * DAY  # noqa: E731 - a function of one line
    defaults = Ledger.open.__func__.__kwdefaults__  # type: ignore[attr-defined]
    with patch.dict(defaults, {"clock": wrong}), patch.object(RunStart.now.__func__, "__defaults__", (wrong,)):
        yield
