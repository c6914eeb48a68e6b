"""The scorecard's file: written so that it loads back equal, and refused clearly where it does not hold together."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
import pytest

from bansong.engine.risk.reasons import FEATURES
from bansong.engine.risk.scorecard import Learned, Scorecard, check_scorecard
from bansong.errors import ModelError
from scorecards import TEXT

LEARNED = Learned("2026.11.5", datetime(2026, 11, 22, 9, 30, tzinfo=UTC), 1600, 52, 24.5, 0.004)


def learned(**levels: int) -> Scorecard:
    """A learned card in which some levels of ``status`` have other points."""
    card = Scorecard.load()
    status = dict(card.features["status"])
    for name, points in levels.items():
        status[name] = msgspec.structs.replace(status[name], points=points)
    features = card.features | {"status": status}
    return msgspec.structs.replace(card, version="2026.11.5+1", features=features, learned=LEARNED)


def refused(text: str, tmp_path: Path) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ModelError) as caught:
        Scorecard.load(path)
    assert str(caught.value).startswith(f"{path}: ")
    return str(caught.value).removeprefix(f"{path}: ")


@pytest.mark.parametrize("card", [Scorecard.load(), learned(active=-6)], ids=["built-in", "learned"])
def test_a_scorecard_loads_back_equal(card: Scorecard, tmp_path: Path) -> None:
    """What ``to_toml`` writes is read as the same card, date, floats and all."""
    path = tmp_path / "mine.toml"
    path.write_text(card.to_toml(), encoding="utf-8")
    assert Scorecard.load(path) == card


def test_the_built_in_scorecard_passes_every_check() -> None:
    """It is not checked when it is loaded, so its file must pass here whatever a file of the user's must."""
    assert Scorecard.parse(TEXT) == Scorecard.load()


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    """An editor that writes one before the text has not broken the file."""
    path = tmp_path / "mine.toml"
    path.write_text(TEXT, encoding="utf-8-sig")
    assert Scorecard.load(path) == Scorecard.load()


CASES = {
    "points as text": (
        "points = 66",
        'points = "66"',
        r"\[features.status.closed_over_12_months\] points = '66'.*whole",
    ),
    "points not a number": (
        "points = 66",
        "points = nan",
        r"closed_over_12_months\] points = nan does not fit; give a w",
    ),
    "points infinite": ("points = 66", "points = inf", r"points = inf does not fit"),
    "points with a fraction": ("points = 66", "points = 66.0", r"points = 66.0 does not fit; give a whole number"),
    "points true": (
        "points = 66",
        "points = true",
        r"points = True does not fit; give a whole number from -500 on, at",
    ),
    "points too many": ("points = 66", "points = 501", r"points = 501 does not fit; .* at most 500"),
    "always as text": (
        "\nalways = true",
        '\nalways = "yes"',
        r"\[features.status.active_stale\] always = 'yes' .* true or false",
    ),
    "no such source": (
        'source = "label"',
        'source = "post"',
        r"history.moved\] source = 'post' .* one of file, juso",
    ),
    "a field too many": (
        "points = 66",
        "points = 66\npoint = 1",
        r"closed_over_12_months\] has an unknown field 'point'",
    ),
    "no points": ("points = 66", "", r"\[features.status.closed_over_12_months\] has no points; add it"),
    "a base with a placeholder": (
        'en = "where an ordinary business letter starts"',
        'en = "begins {since}"',
        r"\[base\] en: the text 'begins \{since\}' is the same in every row; take the braces out",
    ),
    "no version": ('version = "2026.11.5"', "", r"the file has no version; add it"),
    "version a number": (
        'version = "2026.11.5"',
        "version = 2026",
        r"version = 2026 does not fit; give a text in quotes",
    ),
    "version a path": ('"2026.11.5"', '"../2026"', r"version = '../2026' cannot be the name of a file; give"),
    "version too long": ('"2026.11.5"', f'"{"9" * 65}"', r"cannot be the name of a file; give at most 64"),
    "version a word of its own": ('"2026.11.5"', '"builtin"', r"version = 'builtin' .* not builtin"),
    "an unknown top field": (
        "points_to_double = 10",
        "points_to_double = 10\nbonus = 1",
        r"the file has an unknown fie",
    ),
    "ceiling not a number": (
        "ceiling = 0.93",
        "ceiling = nan",
        r"ceiling = nan does not fit; give a number above 0, at m",
    ),
    "ceiling above 1": ("ceiling = 0.93", "ceiling = 1.5", r"ceiling = 1.5 does not fit; .* at most 1"),
    "nothing doubles": (
        "points_to_double = 10",
        "points_to_double = 0",
        r"points_to_double = 0 .* from 1 on, at most 100",
    ),
    "base too high": (
        "points = -50",
        "points = 100",
        r"\[base\] points = 100 let .* 0.9\d*; give points .* 0.001 to 0.5",
    ),
    "base too low": ("points = -50", "points = -300", r"\[base\] points = -300 let an ordinary letter"),
    "base no table": ("[base]", "[[base]]", r"base = .* is not a table"),
    "grades falling": ("B = -35", "B = -60", r"\[grades\] must give A, B, C and D rising"),
    "grades missing": ("C = -19\n", "", r"\[grades\] must give A, B, C and D"),
    "a grade too many": ("D = 2\n", "D = 2\nE = 9\n", r"\[grades\] has 'E'"),
    "a grade of text": ("D = 2\n", 'D = "2"\n', r"\[grades\] D = '2' does not fit; give a whole number"),
    "no such action": ('E = "do_not_send"', 'E = "burn"', r"\[actions\] E = 'burn' .* one of confirm, do_not_send"),
    "no such feature to repair": ('"address", "form"', '"adress", "form"', r"repair_features names 'adress', which is"),
    "a stroke in a text": (
        "business active",
        "business | active",
        r"\[features.status.active\] en: .*separates reasons",
    ),
    "a control character": ("business active", r"business\u0000active", r"status.active\] en: .*control character"),
    "a line break": ("business active", r"business\nactive", r"status.active\] en: .*line break"),
    "no text": ('"business active"', '""', r"status.active\] en: the text '' must have 1 to 300"),
    "white space around": ('"business active"', '" business active"', r"status.active\] en: .*without white space"),
    "half a placeholder": (
        "closed, date not known",
        "closed, {since",
        r"status.closed_undated\] en: .*without its other",
    ),
    "two levels alike": (
        "business suspended",
        "business active",
        r"status.suspended\] en cannot be told from \[features.status.active\] en in a file: .*words of its own",
    ),
    "alike in another language": (
        "계속사업자",
        "business suspended",
        r"suspended\] en cannot be told from .*active\] ko",
    ),
    "a placeholder that says all": ("read as: {changes}", "{changes}", r"read_as\] en cannot be told from .*blank"),
    "a level unknown": (
        "[features.kind.corporation]",
        "[features.kind.corp]",
        r"\[features.kind.corporation\] is missing",
    ),
    "a feature too many": ("[base]", "[features.luck.none]\n[base]", r"\[features.luck.none\] has no points"),
    "a feature without levels": (
        "[base]",
        "[features.luck]\n[base]",
        r"\[features.luck\] is not a feature of this ver",
    ),
    "a level that is no table": ("[base]", "[features]\nkind = 3\n[base]", "not TOML|not a table"),
    "no TOML": ("[base]", "[base", r"the scorecard is not TOML: .*line"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_does_not_hold_together_is_refused(case: str, tmp_path: Path) -> None:
    """The message names the file, the field, the value and what to write instead."""
    old, new, message = CASES[case]
    assert old in TEXT
    said = refused(TEXT.replace(old, new, 1), tmp_path)
    assert re.search(message, said), said
    assert "\n" not in said


def test_a_file_of_an_older_release_is_told_all_that_it_lacks_at_once(tmp_path: Path) -> None:
    """The new features by name, and where to copy them from; not one message after another."""
    new = ("freshness", "history", "region", "place", "spread")
    tables = TEXT.split("\n[features.")
    old = "\n[features.".join(table for table in tables if not table.startswith(new))
    said = refused(old.replace("[features.kind.simplified]", "[features.kind.corporation2]"), tmp_path)
    for feature in ("freshness", "history", "region"):
        assert f"[features.{feature}.*]" in said
    assert "[features.kind.simplified], [features.freshness.*]" in said
    assert "[features.place.crowded], [features.spread.several_addresses]" in said
    assert "are missing" in said
    assert "`bansong model show --toml`" in said


def test_a_learned_card_must_tell_what_the_built_in_one_tells() -> None:
    """A level that was learned to 0 points needs its reason all the same: else later learning cannot see it."""
    card = learned(active=0)
    with pytest.raises(ModelError, match=r"\[features.status.active\] has points = 0 .* add always = true"):
        check_scorecard(card, "mine")
    status = dict(card.features["status"])
    status["active"] = msgspec.structs.replace(status["active"], always=True)
    told = msgspec.structs.replace(card, features=card.features | {"status": status})
    assert check_scorecard(told, "mine") is told


def test_a_card_written_by_hand_may_leave_a_level_out_of_the_reasons(tmp_path: Path) -> None:
    """Only learned cards are held to it: an expert may take a feature out by giving it no points."""
    path = tmp_path / "mine.toml"
    path.write_text(TEXT.replace("points = -3", "points = 0", 1), encoding="utf-8")
    assert Scorecard.load(path).features["status"]["active"].points == 0


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("e_value = 24.5", "e_value = inf", r"\[learned\] e_value = inf does not fit; give a number from 0 on"),
        ("e_value = 24.5", "e_value = nan", r"\[learned\] e_value = nan does not fit"),
        ("false_bounces = 0.004", "false_bounces = 2.0", r"\[learned\] false_bounces = 2.0 .* at most 1"),
        ("bounced = 52", "bounced = 1601", r"\[learned\] bounced = 1601 is more than labels = 1600"),
        ("labels = 1600", "labels = -1", r"\[learned\] labels = -1 does not fit; give a whole number from 0 on"),
        ('parent = "2026.11.5"', "", r"\[learned\] has no parent; add it"),
    ],
)
def test_where_a_card_was_learned_must_make_sense(tmp_path: Path, old: str, new: str, message: str) -> None:
    """The origin of a learned card is checked like the rest of the file."""
    text = learned().to_toml()
    assert old in text
    assert re.search(message, refused(text.replace(old, new, 1), tmp_path))


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    """Bytes, a folder, nothing: said to be unreadable, with the path."""
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "bytes.toml", tmp_path, tmp_path / "none.toml"):
        with pytest.raises(ModelError, match=f"{re.escape(str(path))}: the scorecard cannot be read"):
            Scorecard.load(path)


def test_all_that_is_known_of_a_row_fits_the_reading() -> None:
    """The reader keeps a level in five bits of a number: no feature may have more levels than that holds."""
    assert max(len(names) for names in FEATURES.values()) < 32


_FIRST_READ_BY_EIGHT: Final = """
import importlib, sys, threading
from bansong.engine.risk import scorecard
sys.setswitchinterval(1e-6)
for _ in range(int(sys.argv[1])):
    fresh = importlib.reload(scorecard).Scorecard
    start = threading.Barrier(8)
    def load():
        start.wait()
        fresh.load()
    threads = [threading.Thread(target=load) for _ in range(8)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
"""


@pytest.mark.parametrize("times", [6, pytest.param(60, marks=pytest.mark.fuzz)])
def test_threads_may_read_the_first_scorecard_at_once(times: int) -> None:
    """Threads that read a process's first scorecard at the same time all get it; the process does not crash."""
    done = subprocess.run([sys.executable, "-c", _FIRST_READ_BY_EIGHT, f"{times}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
