"""Every state of a lookup and of an upload, and what each change, decision and kill makes of it: the whole table.

Whole histories, in which many of them come together, are in ``schedules.py``.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from bansong.base.schema import Answer
from bansong.errors import LedgerError, UsageError
from bansong.purchase.changes import (
    JobFetched,
    JobKnown,
    JobLost,
    JobUnfetched,
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
from bansong.purchase.recovery import KILLED
from schedules import unsynced

ORIGIN = "https://service.test"
OLD, NEW = Answer("active", 0.5), Answer("closed", 0.25)
States = list[str | None]


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with unsynced(), Ledger.open(tmp_path / "ledger.sqlite", clock=lambda: 1.0) as ledger:
        ledger.begin(LedgerRun("run", "batch", ORIGIN, "a.csv", 1.0))
        yield ledger


def key(name: str) -> bytes:
    return name.ljust(16).encode()


def asked(name: str) -> LookupAsked:
    return LookupAsked(key(name), "1", "run")


def prepared(id: str, *names: str) -> UploadPrepared:
    return UploadPrepared(id, "run", [(key(name), "1") for name in names], None, None, ORIGIN)


def states(ledger: Ledger, *names: str) -> States:
    keys = pl.Series([key(name) for name in names], dtype=pl.Binary)
    found = {place: state for part in ledger.entries(keys) for place, state in part["place", "state"].rows()}
    return [found.get(place) for place in range(len(names))]


def answer_of(ledger: Ledger, name: str) -> float | None:
    """What tells the answers apart, if there is one."""
    parts = [*ledger.entries(pl.Series([key(name)], dtype=pl.Binary))]
    return parts[0]["bounce_prob"][0] if parts else None


# --- lookups

REPLIES: dict[str, Callable[[str], Any]] = {
    "answered": lambda name: LookupAnswered(key(name), NEW),
    "unreadable": lambda name: LookupUnreadable(key(name), b"<html>", "no JSON"),
    "refused": lambda name: LookupRefused(key(name), "422"),
    "retracted": lambda name: LookupRetracted(key(name)),
    "doubted": lambda name: LookupDoubted(key(name), "502"),
}
LOOKUPS: dict[str | None, dict[str, str]] = {  # by state: what is legal, and the state that follows (`free`: as before)
    None: {"asked": "asking", "prepared": "uploaded"},
    "done": {"asked": "asking", "prepared": "uploaded"},
    "refused": {"asked": "asking", "prepared": "uploaded"},
    "asking": {
        **{"answered": "done", "unreadable": "unreadable", "refused": "refused", "retracted": "free"},
        **{"doubted": "doubt", "killed": "doubt"},
    },
    "doubt": {"doubted": "doubt", "accept": "lost", "resend": "free"},
    "unreadable": {"accept": "lost", "resend": "free"},
    "lost": {"resend": "free"},
}
WAYS: dict[str | None, list[str]] = {
    **{None: [], "asking": [], "done": ["answered"], "refused": ["refused"]},
    **{"doubt": ["doubted"], "unreadable": ["unreadable"], "lost": ["doubted", "accept"]},
}


def settle(ledger: Ledger, name: str, step: str) -> None:
    if step in ("accept", "resend"):
        getattr(ledger, step)([key(name).hex()])
    elif step == "asked":
        ledger.settle([asked(name)])
    elif step == "prepared":
        ledger.settle([prepared(f"up-{name}", name)])
    else:
        ledger.settle([REPLIES[step](name)])


@pytest.mark.parametrize("step", ["asked", "prepared", *REPLIES, "accept", "resend", "killed"])
@pytest.mark.parametrize("had", [False, True], ids=["new", "answered before"])
def test_each_step_of_a_lookup_is_taken_where_it_is_legal_and_refused_elsewhere(
    ledger: Ledger, tmp_path: Path, step: str, had: bool
) -> None:
    """What may have been paid is never asked again; an answer outlives whatever was not paid after it."""
    for state, legal in LOOKUPS.items():
        name = str(state)
        for taken in (["asked", "answered"] if had else []) + (["asked", *WAYS[state]] if state else []):
            settle(ledger, name, taken)
        before, paid = states(ledger, name), ledger.runs()[0].paid
        if step == "killed":
            continue
        expected = legal.get(step)
        if expected is None:
            with pytest.raises((LedgerError, UsageError)) as caught:
                settle(ledger, name, step)
            assert caught.value.code in ("ledger.record_inconsistent", "ledger.id_unknown", "ledger.already_settled")
            assert states(ledger, name) == before
            continue
        settle(ledger, name, step)
        if expected in ("free", "refused") and had:
            expected = "done"
        assert states(ledger, name) == [None if expected == "free" else expected], (state, step)
        assert ledger.runs()[0].paid == paid + (step in ("answered", "unreadable"))
        bought = step == "answered" or (state == "done" and not had)
        assert answer_of(ledger, name) == (NEW.bounce_prob if bought or had else None)
    if step == "killed":
        with killed(ledger, tmp_path) as left:
            assert left.recovered.asking == 1
            names = [str(state) for state in LOOKUPS]
            expected_states = ["doubt" if state == "asking" else state for state in LOOKUPS]
            if had:
                expected_states = ["done" if state in (None, "refused") else state for state in expected_states]
            assert states(left, *names) == expected_states
            assert KILLED in {doubt.note for doubt in left.doubts()}
        with Ledger.open(left.path) as again:
            assert again.recovered.asking == 0


def killed(ledger: Ledger, folder: Path) -> Ledger:
    """The ledger as a process that is killed now leaves it on the disk."""
    left = folder / "left.sqlite"
    for end in ("", "-wal"):
        shutil.copyfile(f"{ledger.path}{end}", f"{left}{end}")
    return Ledger.open(left)


# --- uploads of two rows, of which the first had an answer before

STEPS: dict[str, Callable[[str], Any]] = {
    "gated": UploadGated,
    "sent": UploadSent,
    "known": lambda up: JobKnown(up, f"job-{up}", None),
    "fetched": lambda up: JobFetched(up, {0: NEW}, {1: "no such number"}, None),
    "unfetched": lambda up: JobUnfetched(up, "503"),
    "lost": lambda up: JobLost(up, "404"),
    "refused": UploadRefused,
    "dropped": UploadDropped,
    "doubted": UploadDoubted,
    "unreadable": lambda up: UploadUnreadable(up, b"{}", "names no job"),
}
DECISIONS = ("accept", "resend", "attach")
FREE: States = ["done", None]
WAIT: States = ["uploaded", "uploaded"]
UPLOADS: dict[str, tuple[Sequence[str], dict[str, States], str | None]] = {
    # by state: the way there, the rows after each legal step, and what a kill makes of it
    "prepared": (
        [],
        {"gated": WAIT, "refused": FREE, "dropped": FREE, "doubted": ["doubt"] * 2, "unreadable": ["unreadable"] * 2},
        "dropped",
    ),
    "gated": (
        ["gated"],
        {"sent": WAIT, "known": WAIT, "refused": FREE, "dropped": FREE}
        | {"doubted": ["doubt"] * 2, "unreadable": ["unreadable"] * 2},
        "doubt",
    ),
    "sent": (
        ["gated", "sent"],
        {"known": WAIT, "refused": FREE, "doubted": ["doubt"] * 2, "unreadable": ["unreadable"] * 2},
        "doubt",
    ),
    "known": (
        ["gated", "known"],
        {"known": WAIT, "fetched": ["done", "missing"], "unfetched": WAIT, "lost": ["missing"] * 2}
        | {"accept": ["lost"] * 2, "resend": FREE, "attach": WAIT},
        None,
    ),
    "done": (
        ["gated", "known", "fetched"],
        {"fetched": ["done", "missing"], "lost": ["done", "missing"]}
        | {"accept": ["done", "lost"], "resend": ["done", None], "attach": ["done", "uploaded"]},
        None,
    ),
    "lost": (
        ["gated", "known", "lost"],
        {"lost": ["missing"] * 2, "accept": ["lost"] * 2, "resend": FREE, "attach": WAIT},
        None,
    ),
    "doubt": (
        ["gated", "doubted"],
        {"doubted": ["doubt"] * 2, "accept": ["lost"] * 2, "resend": FREE, "attach": WAIT},
        None,
    ),
    "unreadable": (["gated", "unreadable"], {"accept": ["lost"] * 2, "resend": FREE, "attach": WAIT}, None),
    "refused": (["refused"], {}, None),
    "dropped": (["dropped"], {}, None),
    "accepted": (["gated", "doubted", "accept"], {"resend": FREE}, None),
    "resent": (["gated", "doubted", "resend"], {}, None),
}


def take(ledger: Ledger, id: str, step: str) -> None:
    if step == "attach":
        ledger.attach(id, f"job-{id}")
    elif step in DECISIONS:
        getattr(ledger, step)([id])
    else:
        ledger.settle([STEPS[step](id)])


def make(ledger: Ledger, state: str) -> list[str]:
    """An upload in this state; the names of its rows."""
    rows = [f"{state} {place}" for place in (0, 1)]
    ledger.settle([asked(rows[0]), LookupAnswered(key(rows[0]), OLD), prepared(state, *rows)])
    for step in UPLOADS[state][0]:
        take(ledger, state, step)
    return rows


@pytest.mark.parametrize("step", [*STEPS, *DECISIONS])
def test_each_step_of_an_upload_is_taken_where_it_is_legal_and_refused_elsewhere(ledger: Ledger, step: str) -> None:
    """A refused step changes nothing, of its upload or of what is settled with it; rows are paid once."""
    for state, (_, legal, _) in UPLOADS.items():
        rows = make(ledger, state)
        before, (run,) = states(ledger, *rows), ledger.runs()
        if (expected := legal.get(step)) is None:
            with pytest.raises((LedgerError, UsageError)) as caught:
                take(ledger, state, step)
            assert caught.value.code.split(".")[1] in (
                *("record_inconsistent", "id_unknown", "already_settled", "upload_not_waiting"),
            )
            assert (states(ledger, *rows), ledger.runs()) == (before, [run])
            if step in STEPS:
                with pytest.raises(LedgerError):
                    ledger.settle([asked("another"), STEPS[step](state)])
                assert states(ledger, "another") == [None]
            continue
        take(ledger, state, step)
        assert states(ledger, *rows) == expected, (state, step)
        counted = (step == "known" and state != "known") or (step == "attach" and state in ("doubt", "unreadable"))
        assert ledger.runs()[0].paid == run.paid + 2 * counted
        fetched = step == "fetched" and state == "known"
        assert answer_of(ledger, rows[0]) == (NEW.bounce_prob if fetched or state == "done" else OLD.bounce_prob)
        if expected == WAIT and step in ("known", "unfetched", "attach"):
            ledger.settle([JobFetched(state, {0: NEW, 1: NEW}, {}, None)])
            assert states(ledger, *rows) == ["done", "done"]


def test_what_is_held_of_an_upload_is_never_uploaded_or_asked_again(ledger: Ledger) -> None:
    for state in UPLOADS:
        free = state in ("refused", "dropped", "resent")
        for place, row in enumerate(make(ledger, state)):
            is_free = free or (state == "done" and place == 0)
            for change in (asked(row), prepared(f"{state} {place} again", f"{state} new", row)):
                if not is_free:
                    with pytest.raises(LedgerError):
                        ledger.settle([change])
        if not free:
            assert states(ledger, f"{state} new") == [None]
        else:
            ledger.settle([prepared(f"{state} again", *[f"{state} {place}" for place in (0, 1)])])


def test_a_kill_leaves_in_doubt_what_was_at_the_gate_and_frees_what_was_before_it(
    ledger: Ledger, tmp_path: Path
) -> None:
    rows = {state: make(ledger, state) for state in UPLOADS}
    before = {state: states(ledger, *names) for state, names in rows.items()}
    with killed(ledger, tmp_path) as left:
        assert (left.recovered.uploads, left.recovered.dropped) == (2, 1)
        for state, (*_, becomes) in UPLOADS.items():
            after = {"dropped": FREE, "doubt": ["doubt"] * 2, None: before[state]}[becomes]
            assert states(left, *rows[state]) == after, state
        assert [upload.id for upload in left.open_uploads(ORIGIN)] == ["known"]
        assert left.runs()[0].outcome == "killed"


def test_fetching_again_can_only_find_more(ledger: Ledger) -> None:
    given_up = make(ledger, "known")
    ledger.settle([JobFetched("known", {0: NEW}, {}, None)])
    ledger.accept(["known"])
    ledger.settle([JobFetched("known", {1: NEW}, {}, None)])
    assert states(ledger, *given_up) == ["done", "lost"]
    paid = ledger.runs()[0]
    rows = make(ledger, "done")
    ledger.settle([JobFetched("done", {1: NEW}, {0: "gone"}, None)])
    ledger.settle([JobLost("done", "404")])
    assert states(ledger, *rows) == ["done", "done"]
    with pytest.raises(LedgerError):
        ledger.settle([JobFetched("done", {2: NEW}, {}, None)])
    assert (ledger.runs()[0].paid, ledger.runs()[0].answered) == (paid.paid + 3, paid.answered + 3)


@pytest.mark.parametrize("state", ["done", "lost", "doubt"])
def test_a_row_that_is_uploaded_anew_is_no_row_of_its_old_upload_any_more(ledger: Ledger, state: str) -> None:
    row = make(ledger, state)[1]
    ledger.resend([state])
    ledger.settle([prepared("new", row), UploadGated("new"), JobKnown("new", "job", 1)])
    if state == "done":
        ledger.settle([JobFetched(state, {1: OLD}, {}, None)])
    for decide in (
        lambda: ledger.accept([state]),
        lambda: ledger.resend([state]),
        lambda: ledger.attach(state, "job 2"),
    ):
        with pytest.raises(UsageError):
            decide()
    assert states(ledger, row) == ["uploaded"]
    ledger.settle([JobFetched("new", {0: NEW}, {}, None)])
    assert answer_of(ledger, row) == NEW.bounce_prob
