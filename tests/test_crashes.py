"""No row is lost and no lookup is paid twice, whenever the run is killed; judged by what the service was paid."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from random import Random
from threading import Timer
from typing import Literal, get_args
from unittest.mock import patch

import pytest

from bansong.purchase import changes as ledger_changes
from bansong.purchase.ledger import Ledger
from bansong.testing import GARBAGE, FakeService, Fault, Reset, Status
from crashing import KILLED, Blow, Calls, Campaign, Nursery, Place, campaign

pytestmark = pytest.mark.skipif(not hasattr(os, "waitid"), reason="the runs are forked")

LONG = int(os.environ.get("CRASH_MOMENTS", "6"))

TRANSITIONS: dict[str, dict[str, tuple[int, Fault | None]]] = {
    "verify": {
        "LookupAsked": (30, None),
        "LookupAnswered": (30, None),
        "LookupUnreadable": (1, Fault("verify", GARBAGE, at=range(3, 90, 5))),
        "LookupRefused": (1, Fault("verify", Status(422), at=range(3, 90, 5))),
        "LookupRetracted": (1, Fault("verify", Status(429), at=9)),
        "LookupDoubted": (1, Fault("verify", Reset("after"), at=range(3, 90, 5))),
        "recovery": (1, None),
    },
    "batch": {
        "UploadPrepared": (4, None),
        "UploadGated": (4, None),
        "UploadSent": (4, None),
        "JobKnown": (4, None),
        "JobFetched": (2, None),
        "UploadRefused": (1, Fault("batch", Status(429), at=1)),
        "UploadDropped": (1, None),
        "UploadDoubted": (1, Fault("batch", Reset("after"), at=1)),
        "UploadUnreadable": (1, Fault("batch", GARBAGE, at=1)),
        "JobLost": (1, Fault("job", Status(404))),
        "JobUnfetched": (1, Fault("job", GARBAGE)),
        "recovery": (1, None),
    },
}
"""For each engine its transitions: at which one of a kind a run dies at most, and what brings one about."""


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    with Nursery(tmp_path_factory.mktemp("nursery") / "log") as nursery:
        yield nursery


def test_every_transition_is_struck() -> None:
    """A change added to the ledger must be added here; those of labels are struck where labels are sent."""
    known = [kind for name, kind in vars(ledger_changes).items() if name[0] != "_" and hasattr(kind, "write")]
    bought = [kind for kind in known if kind not in get_args(ledger_changes.LabelChange)]
    changes = {kind.__name__ for kind in bought if kind.__module__ == ledger_changes.__name__}
    assert set(TRANSITIONS["verify"]) | set(TRANSITIONS["batch"]) == changes | {"recovery"}


@pytest.mark.parametrize(("engine", "place"), [("verify", "after"), ("batch", "before")])
def test_a_kill_at_any_transition_loses_nothing_and_pays_nothing_twice(
    engine: str, place: Place, tmp_path: Path, nursery: Nursery
) -> None:
    """Before the commit or after it; then what is in doubt is settled by hand, and all is answered."""
    strike_transitions(engine, 120, (place,), tmp_path, nursery, usual=True)


@pytest.mark.crash
@pytest.mark.parametrize("engine", ["verify", "batch"])
def test_kills_at_transitions_of_long_runs_lose_nothing_and_pay_nothing_twice(
    engine: str, tmp_path: Path, nursery: Nursery
) -> None:
    """As above, with thousands of rows, and also when all is written and not yet committed."""
    strike_transitions(engine, 1_500, ("before", "within", "after"), tmp_path, nursery)


@pytest.mark.crash
@pytest.mark.parametrize("engine", ["verify", "batch"])
def test_kills_at_random_moments_of_long_runs_lose_nothing_and_pay_nothing_twice(
    engine: str, tmp_path: Path, nursery: Nursery
) -> None:
    """``CRASH_MOMENTS`` of them, by default 6, for each engine, with lost replies and 429s mixed in."""
    strike_at_random(engine, 3_000, LONG, tmp_path, nursery)


def strike_transitions(
    engine: str, rows: int, places: Sequence[Place], tmp_path: Path, nursery: Nursery, *, usual: bool = False
) -> None:
    """Strike at each transition; ``usual``: but for those that a fault of the service brings about."""
    dice = Random(rows)
    with campaign(tmp_path / engine, nursery, engine, rows, chunk=rows // (40 if usual else 120)) as runs:
        struck = {name: each for name, each in TRANSITIONS[engine].items() if not (usual and each[1])}
        for change, (most, fault) in struck.items():
            for place in places:
                runs.service.faults.clear()
                if fault is not None:
                    runs.service.faults.add(fault)
                blow = Blow(change, place, dice.randint(1, most))
                assert runs.give(blow, unsent=change == "UploadDropped") == KILLED, blow
        runs.service.faults.clear()
        seen = runs.conclude(runs.finish())
        assert seen["in_doubt"]
        tell(runs)
        settle_by_hand(runs)


def settle_by_hand(runs: Campaign) -> None:
    """Jobs that are known to the service are attached: nothing is paid again. The rest is given up, then sent again."""
    paid = runs.service.paid_total
    with Ledger.open(runs.ledger) as ledger:
        for doubt in (*ledger.doubts(), *ledger.unusable()):
            if doubt.kind == "upload" and (job := job_of(runs, ledger, doubt.id)):
                ledger.attach(doubt.id, job)
    runs.conclude(runs.finish())
    assert runs.service.paid_total == paid, "nothing is paid for what a job has"

    with Ledger.open(runs.ledger) as ledger:
        left = [doubt.id for doubt in (*ledger.doubts(), *ledger.unusable())]
        lost = ledger.accept(left)
    seen = runs.conclude(runs.finish())
    assert runs.service.paid_total == paid, "nothing is paid for what was given up"
    assert not seen["in_doubt"]
    assert bool(seen["failed"]) == bool(lost)

    if runs.engine == "batch":
        assert not lost or not runs.service.paid.keys() & lost_lookups(runs), "what was paid is in a job"
        return
    lookups = lost_lookups(runs)
    with Ledger.open(runs.ledger) as ledger:
        assert ledger.resend(left) == lost
    twice = sum(lookup in runs.service.paid for lookup in lookups)
    assert resent(runs) == {"invalid", "verified", "cached"}
    assert runs.service.paid_total == paid + lost
    assert runs.service.paid_again == twice
    assert {lookup for lookup, times in runs.service.paid.items() if times > 1} <= lookups


def resent(runs: Campaign) -> set[str]:
    """Give the command after ``--resend``, which may pay again what somebody decided to pay again."""
    with patch.object(FakeService, "paid_again", 0):
        return set(+runs.conclude(runs.finish()))


def lost_lookups(runs: Campaign) -> set[object]:
    with Ledger.open(runs.ledger) as ledger:
        return {lookup for lookup, state in runs.states(ledger).items() if state == "lost"}


def job_of(runs: Campaign, ledger: Ledger, upload: str) -> str | None:
    """What somebody finds who looks into the service's console for the job of an upload."""
    numbers = [b_no for _, b_no in ledger.rows_of(upload)]
    jobs = [job.id for job in runs.service.jobs.values() if [row.b_no for row in job.rows] == numbers]
    assert len(jobs) <= 1
    return jobs[0] if jobs else None


def mishaps(runs: Campaign, dice: Random) -> list[Fault]:
    """Lost replies, failures, refusals and limits, a few in a run; one in three pauses at a 429."""
    kind = runs.engine
    share = 0.03 if kind == "batch" else 5 / runs.rows
    lost = (Reset("before"), Reset("after"), Reset("reply"), Status(500, paid=True), Status(500), GARBAGE)
    faults = [Fault(kind, act, share=share) for act in (*lost, Status(429, retry_after=0))]
    faults += [Fault("job", act, share=0.05) for act in (Reset("before"), Reset("reply"), Status(503))]
    if dice.random() < 0.3:
        faults.append(Fault(kind, Status(429), at=dice.randint(1, some_requests(runs, kind))))
    return faults


def strike_at_random(engine: str, rows: int, moments: int, tmp_path: Path, nursery: Nursery) -> None:
    """Campaign after campaign, each run killed at a random moment, until there were so many kills."""
    dice, kills = Random(moments), 0
    for number in count():
        with campaign(tmp_path / f"{engine}{number}", nursery, engine, rows, rows // 40) as runs:
            ended = False
            while not ended and runs.kills < min(moments - kills, 10):
                ended = strike_once(runs, dice) != KILLED and not runs.look()["pending"]
            runs.service.faults.clear()
            runs.conclude(runs.finish())
            tell(runs)
            settle_by_hand(runs)
            kills += runs.kills
        if kills >= moments:
            return


def strike_once(runs: Campaign, dice: Random) -> int:
    """Kill a run when a random request comes or has been paid, or a moment later, or a random time after it began."""
    faults, number = runs.service.faults, runs.nursery.number + 1
    later = dice.choice((0.0, dice.uniform(0.0, 0.02)))

    def strike() -> None:
        if later:
            Timer(later, runs.nursery.strike, (number,)).start()
        else:
            runs.nursery.strike(number)

    faults.clear()
    by_clock = dice.random() < 0.25
    if not by_clock:  # first of all faults: what another one breaks off is not seen by those behind it
        kind = dice.choice(("*", runs.engine))
        place: Literal["before", "after"] = dice.choice(("before", "after"))
        faults.add(Fault(kind, Calls(strike, place), at=dice.randint(1, some_requests(runs, kind))))
    faults.add(*mishaps(runs, dice))
    return runs.give(strike_after=dice.uniform(0.0, 0.6) if by_clock else None)


def some_requests(runs: Campaign, kind: str) -> int:
    """A fifth of the requests of a kind that are still to come, about."""
    lookups = len(runs.keys) - runs.service.paid_total
    each = {"verify": 1.0, "batch": 1 / runs.chunk, "*": 1.0 if runs.engine == "verify" else 4 / runs.chunk}[kind]
    return 1 + int(lookups * each / 5)


def tell(runs: Campaign) -> None:
    """One line a campaign, for those who run this with ``-s``."""
    paid, doubts = runs.service.paid_total, sum(runs.doubts)
    sys.stdout.write(f"{runs.engine}: {runs.rows} rows, {paid} paid, {runs.runs} runs, {runs.kills} kills, {doubts=}\n")
