"""In whatever order things happen, and however often the process dies, the ledger knows what a simple model knows."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import polars as pl
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bansong.base.schema import Answer
from bansong.errors import LedgerError
from bansong.purchase.changes import (
    JobFetched,
    JobKnown,
    JobLost,
    LookupAnswered,
    LookupAsked,
    LookupDoubted,
    LookupRefused,
    LookupRetracted,
    LookupUnreadable,
    UploadDoubted,
    UploadDropped,
    UploadGated,
    UploadPrepared,
    UploadRefused,
    UploadSent,
    UploadUnreadable,
)
from bansong.purchase.ledger import Ledger, LedgerRun
from examples import ALL, few

KEYS = [blake2b(bytes([place]), digest_size=16).digest() for place in range(5)]
ORIGIN = "https://service.test"
WILD = st.integers(0, 9).map(lambda drawn: drawn == 5)
"""Mostly what a runner does; now and then anything at all."""
ASKABLE = (None, "done", "refused")
STEPS = {  # change → the states from which it is legal
    UploadGated: ("prepared",),
    UploadSent: ("gated",),
    JobKnown: ("gated", "sent", "known"),
    JobFetched: ("known", "done"),
    UploadRefused: ("prepared", "gated", "sent"),
    UploadDropped: ("prepared", "gated"),
    UploadDoubted: ("prepared", "gated", "sent", "doubt"),
    UploadUnreadable: ("prepared", "gated", "sent"),
    JobLost: ("known", "done", "lost"),
}


FORWARD = {"prepared": UploadGated, "gated": UploadSent, "sent": JobKnown, "known": JobFetched}


@dataclass
class Held:
    """The model's lookup."""

    state: str | None = None
    answer: float | None = None
    upload: str | None = None


@dataclass
class Load:
    """The model's upload."""

    state: str
    rows: list[bytes]
    counted: bool = False


def an_answer(probability: float) -> Answer:
    return Answer("active", probability, "A", "send", None, "세종특별자치시", ("[base] +1 a (nts)", "둘 | 셋"))


class Life(RuleBasedStateMachine):
    """Legal and illegal changes at random, crashes among them."""

    @initialize()
    def start(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.file = self.folder / "0.sqlite"
        self.lives = self.uploads_made = self.paid = self.answered = self.answers_made = 0
        self.since = 0
        self.lookups = {key: Held() for key in KEYS}
        self.uploads: dict[str, Load] = {}
        self.ledger = Ledger.open(self.file)
        self.ledger.begin(LedgerRun("run", "batch", ORIGIN, "a.csv", 1.0))

    def teardown(self) -> None:
        self.ledger.close()
        shutil.rmtree(self.folder)

    def attempt(self, change: object, legal: bool) -> bool:
        if legal:
            self.since += 1
            self.ledger.settle([change])
        else:
            with pytest.raises(LedgerError, match="does not follow"):
                self.ledger.settle([LookupAsked(b"another" + bytes(9), "1", "run"), change])
        return legal

    def fresh(self) -> float:
        self.answers_made += 1
        return self.answers_made / 1024

    def back(self, held: Held, otherwise: str | None) -> None:
        held.state, held.upload = ("done" if held.answer is not None else otherwise), None

    def a_key(self, data: st.DataObject, wild: bool, *states: str | None) -> bytes:
        fit = [key for key in KEYS if wild or self.lookups[key].state in states]
        return data.draw(st.sampled_from(fit or KEYS))

    @rule(data=st.data(), wild=WILD)
    def ask(self, data: st.DataObject, wild: bool) -> None:
        key = self.a_key(data, wild, *ASKABLE)
        held = self.lookups[key]
        if self.attempt(LookupAsked(key, "1248100998", "run"), held.state in ASKABLE):
            held.state, held.upload = "asking", None

    @precondition(lambda self: any(held.state == "asking" for held in self.lookups.values()))
    @rule(
        data=st.data(),
        wild=WILD,
        kind=st.sampled_from([LookupAnswered, LookupUnreadable, LookupRefused, LookupRetracted, LookupDoubted]),
    )
    def reply(self, data: st.DataObject, wild: bool, kind: type) -> None:
        key = self.a_key(data, wild, "asking")
        held, probability = self.lookups[key], self.fresh()
        change = {
            LookupAnswered: lambda: LookupAnswered(key, an_answer(probability)),
            LookupUnreadable: lambda: LookupUnreadable(key, b"<html>", "no JSON"),
            LookupRefused: lambda: LookupRefused(key, "no"),
            LookupRetracted: lambda: LookupRetracted(key),
            LookupDoubted: lambda: LookupDoubted(key, "502"),
        }[kind]()
        # a row of an upload in doubt is not itself in doubt: it is its upload that is settled
        if not self.attempt(change, held.state == "asking" or (kind is LookupDoubted and held.state == "doubt")):
            return
        if kind is LookupAnswered:
            held.state, held.answer = "done", probability
            self.answered += 1
        elif kind in (LookupRefused, LookupRetracted):
            self.back(held, "refused" if kind is LookupRefused else None)
        else:
            held.state = "unreadable" if kind is LookupUnreadable else "doubt"
        self.paid += kind in (LookupAnswered, LookupUnreadable)

    @precondition(lambda self: any(held.state in ASKABLE for held in self.lookups.values()))
    @rule(data=st.data(), wild=WILD, most=st.integers(1, 3))
    def prepare(self, data: st.DataObject, wild: bool, most: int) -> None:
        fit = [key for key in KEYS if self.lookups[key].state in ASKABLE][:most]
        keys = data.draw(st.lists(st.sampled_from(KEYS), max_size=3)) if wild else fit
        self.uploads_made += 1
        id = f"up{self.uploads_made}"
        free = all(self.lookups[key].state in ASKABLE for key in keys)
        rows = [(key, "1248100998") for key in keys]
        if self.attempt(
            UploadPrepared(id, "run", rows, None, None, ORIGIN), bool(keys) and free and len(set(keys)) == len(keys)
        ):
            self.uploads[id] = Load("prepared", keys)
            for key in keys:
                self.lookups[key].state, self.lookups[key].upload = "uploaded", id

    def open_rows(self, id: str, *states: str) -> list[Held]:
        return [
            held for key in self.uploads[id].rows if (held := self.lookups[key]).upload == id and held.state in states
        ]

    @precondition(lambda self: self.uploads)
    @rule(data=st.data(), wild=WILD, found=st.sets(st.integers(0, 2)))
    def step(self, data: st.DataObject, wild: bool, found: set[int]) -> None:
        id = data.draw(st.sampled_from(sorted(self.uploads)))
        legal = [kind for kind, states in STEPS.items() if wild or self.uploads[id].state in states]
        self.happen(id, data.draw(st.sampled_from(legal or list(STEPS))), found)

    @precondition(lambda self: any(load.state in FORWARD for load in self.uploads.values()))
    @rule(found=st.sets(st.integers(0, 2)))
    def go_on(self, found: set[int]) -> None:
        """Every upload takes the next step on the straight way."""
        for id, load in self.uploads.items():
            if load.state in FORWARD:
                self.happen(id, FORWARD[load.state], found)

    def happen(self, id: str, kind: type, found: set[int]) -> None:
        load = self.uploads[id]
        answers = {place: self.fresh() for place in found if place < len(load.rows)}
        change = {
            UploadGated: lambda: UploadGated(id),
            UploadSent: lambda: UploadSent(id),
            JobKnown: lambda: JobKnown(id, f"job-{id}", None),
            JobFetched: lambda: JobFetched(id, {place: an_answer(value) for place, value in answers.items()}, {}, None),
            UploadRefused: lambda: UploadRefused(id, "413"),
            UploadDropped: lambda: UploadDropped(id),
            UploadDoubted: lambda: UploadDoubted(id, "502"),
            UploadUnreadable: lambda: UploadUnreadable(id, b"?", "no JSON"),
            JobLost: lambda: JobLost(id, "404"),
        }[kind]()
        if not self.attempt(change, load.state in STEPS[kind]):
            return
        if kind is JobFetched:
            self.fetch(id, answers)
            load.state = "done"
        elif kind is JobLost:
            if load.state == "known":
                load.state = "lost"
                for held in self.open_rows(id, "uploaded"):
                    held.state = "missing"
        elif kind in (UploadRefused, UploadDropped):
            load.state = "refused" if kind is UploadRefused else "dropped"
            for held in self.open_rows(id, "uploaded"):
                self.back(held, None)
        elif kind is JobKnown:
            load.state = "known"
            self.count(load)
        else:
            load.state = {
                UploadGated: "gated",
                UploadSent: "sent",
                UploadDoubted: "doubt",
                UploadUnreadable: "unreadable",
            }[kind]

    def fetch(self, id: str, answers: dict[int, float]) -> None:
        for place, key in enumerate(self.uploads[id].rows):
            held = self.lookups[key]
            if held.upload != id or held.state not in ("uploaded", "missing"):
                continue
            if place in answers:
                held.state, held.upload, held.answer = "done", None, answers[place]
                self.answered += 1
            else:
                held.state = "missing"

    def count(self, load: Load) -> None:
        self.paid += 0 if load.counted else len(load.rows)
        load.counted = True

    @precondition(lambda self: self.ledger.doubts() or self.ledger.unusable())
    @rule(data=st.data(), decision=st.sampled_from(["accept", "resend", "attach"]))
    def decide(self, data: st.DataObject, decision: str) -> None:
        chosen = data.draw(st.sampled_from([*self.ledger.doubts(), *self.ledger.unusable()]))
        if chosen.kind == "lookup":
            (held,) = [held for key, held in self.lookups.items() if key.hex().startswith(chosen.id)]
            if decision == "accept":
                assert self.ledger.accept([chosen.id]) == 1
                held.state = "lost"
            elif decision == "resend":
                assert self.ledger.resend([chosen.id]) == 1
                self.back(held, None)
            return
        load = self.uploads[chosen.id]
        rows = self.open_rows(chosen.id, "uploaded", "missing")
        assert chosen.rows == len(rows)
        if decision == "attach":
            assert self.ledger.attach(chosen.id, f"job-{chosen.id}") == len(rows)
            load.state = "known"
            self.count(load)
            for held in rows:
                held.state = "uploaded"
            return
        if decision == "resend":
            rows = self.open_rows(chosen.id, "uploaded", "missing", "lost")
        assert getattr(self.ledger, decision)([chosen.id]) == len(rows)
        load.state = load.state if load.state == "done" else {"accept": "accepted", "resend": "resent"}[decision]
        for held in rows:
            if decision == "accept":
                held.state = "lost"
            else:
                self.back(held, None)

    @precondition(lambda self: self.since >= 3)
    @rule(clean=st.booleans())
    def live_again(self, clean: bool) -> None:
        """The process ends, or is killed: what is on the disk at that moment is all that is left."""
        self.since = 0
        if clean:
            self.ledger.close()
        else:
            self.lives += 1
            left = self.folder / f"{self.lives}.sqlite"
            for end in ("", "-wal"):
                if (file := self.file.with_name(self.file.name + end)).exists():
                    shutil.copyfile(file, left.with_name(left.name + end))
            self.ledger.close()
            self.file = left
        self.ledger = Ledger.open(self.file)
        asking = [held for held in self.lookups.values() if held.state == "asking"]
        for held in asking:
            held.state = "doubt"
        under_way = [load for load in self.uploads.values() if load.state in ("gated", "sent")]
        for load in under_way:
            load.state = "doubt"
        prepared = [id for id, load in self.uploads.items() if load.state == "prepared"]
        for id in prepared:
            self.uploads[id].state = "dropped"
            for held in self.open_rows(id, "uploaded"):
                self.back(held, None)
        recovered = self.ledger.recovered
        assert (recovered.asking, recovered.uploads, recovered.dropped) == (len(asking), len(under_way), len(prepared))
        assert not self.ledger.created

    @invariant()
    def knows_what_the_model_knows(self) -> None:
        shown = {}
        for frame in self.ledger.entries(pl.Series(KEYS, dtype=pl.Binary)):
            for row in frame.iter_rows(named=True):
                shown[KEYS[row["place"]]] = (row["state"], row["bounce_prob"])
        expected = {}
        for key, held in self.lookups.items():
            if held.state is not None:
                load = self.uploads.get(held.upload or "")
                is_held = held.state == "uploaded" and load is not None and load.state in ("doubt", "unreadable")
                expected[key] = (load.state if is_held and load else held.state, held.answer)
        assert shown == expected
        (run,) = self.ledger.runs()
        assert (run.paid, run.answered) == (self.paid, self.answered)
        assert {upload.id for upload in self.ledger.open_uploads(ORIGIN)} == {
            id for id, load in self.uploads.items() if load.state == "known"
        }


TestLife = pytest.mark.fuzz(Life.TestCase) if ALL else Life.TestCase
TestLife.settings = settings(max_examples=few(45), stateful_step_count=60)
