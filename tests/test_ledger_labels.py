"""Labels in the ledger: every step at its time, whatever happens."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bansong.base.schema import Answer
from bansong.errors import LedgerError
from bansong.purchase.changes import (
    JobFetched,
    JobKnown,
    JobNumbered,
    LabelDone,
    LabelDoubted,
    LabelRefused,
    LabelRetracted,
    LabelSent,
    RowLabel,
    UploadGated,
    UploadPrepared,
)
from bansong.purchase.ledger import Ledger, LedgerRun
from examples import ALL, few

ORIGIN = "https://service.test"
NUMBER = "1248100998"
DAY = 86_400.0


def key(place: int) -> bytes:
    return bytes([place]) * 16


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "ledger.sqlite", clock=lambda: 1000 * DAY) as ledger:
        load(ledger)
        yield ledger


def load(ledger: Ledger, id: str = "u1", rows: int = 3) -> None:
    """An upload whose job is known; further ones buy the same lookups again."""
    ledger.begin(LedgerRun(f"run {id}", "batch", ORIGIN, "a.csv", 1.0))
    ledger.settle([UploadPrepared(id, f"run {id}", [(key(n), NUMBER) for n in range(rows)], None, None, ORIGIN)])
    ledger.settle([UploadGated(id), JobKnown(id, f"job {id}", rows)])


def a_run(number: int) -> LedgerRun:
    return LedgerRun(f"label {number}", "label", ORIGIN, "a.csv", 1.0)


def test_a_job_s_base_is_kept_when_a_later_look_does_not_prove_it(ledger: Ledger) -> None:
    for change, base in (
        (JobFetched("u1", {0: Answer("active")}, {}, None, 1), 1),
        (JobFetched("u1", {1: Answer("active")}, {}, None), 1),
        (JobNumbered("u1", 2), 2),
    ):
        ledger.settle([change])
        assert ledger.labelled_jobs([1])[1].base == base


def test_a_run_without_anything_to_send_is_not_kept(ledger: Ledger) -> None:
    (label,) = ledger.prepare_labels(a_run(1), [RowLabel(1, 0, True, "")]).labels
    assert label.reason is None
    ledger.settle([LabelSent(label), LabelDone(label)])
    assert ledger.prepare_labels(a_run(2), [RowLabel(1, 0, True, None)]).done == 1
    assert [run.run_id for run in ledger.runs()] == ["run u1", "label 1"]


def test_what_was_sent_is_forgotten_with_its_upload_and_not_before(tmp_path: Path) -> None:
    """Else the same outcome would be sent once more; a label in doubt keeps its upload."""
    now = 0.0
    with Ledger.open(tmp_path / "ledger.sqlite", clock=lambda: now) as ledger:
        for id in ("u1", "u2", "u3"):
            load(ledger, id, rows=1)
            ledger.settle([JobFetched(id, {0: Answer("active")}, {}, None)])
        labels = ledger.prepare_labels(a_run(1), [RowLabel(upload, 0, True, None) for upload in (1, 2, 3)]).labels
        ledger.settle([LabelSent(label) for label in labels])
        ledger.settle([LabelDone(labels[0]), LabelDoubted(labels[1], note="502"), LabelDone(labels[2])])
        now = 500 * DAY
        ledger.purge(600)
        assert ledger.prepare_labels(a_run(2), [RowLabel(1, 0, True, None)]).done == 1
        now = 1000 * DAY
        ledger.purge(400)
        left = ledger._connection.execute("SELECT upload, state FROM labels").fetchall()
        assert left == [(2, "doubt")]
        assert len(ledger.held_labels(ORIGIN)) == 1


STEPS = {  # change → the states from which it is legal, and where it leads
    LabelSent: (("prepared",), "sent"),
    LabelDone: (("sent",), "done"),
    LabelRefused: (("sent", "prepared"), "refused"),
    LabelDoubted: (("sent", "doubt"), "doubt"),
    LabelRetracted: (("sent",), "prepared"),
}
WILD = st.integers(0, 9).map(lambda drawn: drawn == 5)
"""Mostly what a runner does; now and then anything at all."""


@dataclass
class Told:
    """The model's label."""

    label: RowLabel
    state: str


class Life(RuleBasedStateMachine):
    """Labels wanted, sent, doubted, changed and decided about at random, crashes among them."""

    @initialize()
    def start(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.file = self.folder / "0.sqlite"
        self.lives = self.runs = 0
        self.told: dict[int, list[Told]] = {place: [] for place in range(3)}
        self.ledger = Ledger.open(self.file)
        load(self.ledger)

    def teardown(self) -> None:
        self.ledger.close()
        shutil.rmtree(self.folder)

    @rule(place=st.integers(0, 2), bounced=st.booleans(), reason=st.sampled_from([None, "이사"]), resend=WILD)
    def want(self, place: int, bounced: bool, reason: str | None, resend: bool) -> None:
        self.runs += 1
        if any(told.state == "sent" for told in self.told[place]):
            return  # one process: nothing is wanted anew while it is under way
        queue = self.ledger.prepare_labels(a_run(self.runs), [RowLabel(1, place, bounced, reason)], resend=resend)
        turns = self.told[place]
        while turns and turns[-1].state == "prepared" and turns[-1].label[2:4] != (bounced, reason):
            turns.pop()
        if not turns or turns[-1].label[2:4] != (bounced, reason):
            turns.append(Told(RowLabel(1, place, bounced, reason, len(turns)), "prepared"))
        elif resend and turns[-1].state in ("refused", "doubt"):
            turns[-1].state = "prepared"
        state = turns[-1].state
        assert queue.labels == ((turns[-1].label,) if state == "prepared" else ())
        assert (queue.done, queue.held) == (state == "done", state in ("refused", "doubt"))

    @precondition(lambda self: any(self.told.values()))
    @rule(data=st.data(), wild=WILD)
    def step(self, data: st.DataObject, wild: bool) -> None:
        every = [told for turns in self.told.values() for told in (turns if wild else turns[-1:])]
        told = data.draw(st.sampled_from(every))
        kinds = [kind for kind, (states, _) in STEPS.items() if wild or told.state in states] or list(STEPS)
        kind = data.draw(st.sampled_from(kinds))
        states, then = STEPS[kind]
        change = kind(told.label, note="502")
        if told.state in states:
            self.ledger.settle([change])
            told.state = then
        else:
            with pytest.raises(LedgerError, match="does not follow"):
                self.ledger.settle([JobNumbered("u1", 1), change])
            assert self.ledger.labelled_jobs([1])[1].base is None

    @rule(clean=st.booleans())
    def live_again(self, clean: bool) -> None:
        """The process ends, or is killed: what is on the disk at that moment is all that is left."""
        self.lives += 1
        left = self.folder / f"{self.lives}.sqlite"
        if not clean:
            for end in ("", "-wal"):
                if (file := self.file.with_name(self.file.name + end)).exists():
                    shutil.copyfile(file, left.with_name(left.name + end))
        self.ledger.close()
        self.file = self.file if clean else left
        self.ledger = Ledger.open(self.file)
        under_way = [told for turns in self.told.values() for told in turns if told.state == "sent"]
        assert self.ledger.recovered.labels == len(under_way)
        for told in under_way:
            told.state = "doubt"

    @invariant()
    def knows_what_the_model_knows(self) -> None:
        rows = self.ledger._connection.execute("SELECT upload, place, bounced, reason, turn, state FROM labels")
        found = {RowLabel(*row[:2], bool(row[2]), *row[3:5]): row[5] for row in rows}
        assert found == {told.label: told.state for turns in self.told.values() for told in turns}
        held = {(label.place, label.state) for label in self.ledger.held_labels(ORIGIN)}
        last = [turns[-1] for turns in self.told.values() if turns]
        assert held == {(told.label.place, told.state) for told in last if told.state in ("refused", "doubt")}


TestLife = pytest.mark.fuzz(Life.TestCase) if ALL else Life.TestCase
TestLife.settings = settings(max_examples=few(40), stateful_step_count=40)
