"""The scorecard's file: written so that it loads back equal, and refused clearly where it does not hold together."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
import pytest

from bansong.engine.risk.scorecard import Learned, Scorecard, check_scorecard
from bansong.errors import ModelError
from scorecards import TEXT

GOLDEN = Path(__file__).parent / "golden" / "scorecard_faults.csv"
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


def test_a_scorecard_loads_back_equal(tmp_path: Path) -> None:
    """Date, floats and all; the built-in one, which is not checked when it is loaded, passes every check."""
    path = tmp_path / "mine.toml"
    for card, encoding in ((Scorecard.load(), "utf-8"), (learned(active=-6), "utf-8-sig")):
        path.write_text(card.to_toml(), encoding=encoding)
        assert Scorecard.load(path) == card
    assert Scorecard.parse(TEXT) == Scorecard.load()


def test_what_does_not_hold_together_is_refused_with_field_value_and_remedy(tmp_path: Path) -> None:
    with GOLDEN.open(encoding="utf-8", newline="") as lines:
        faults = list(csv.DictReader(lines))
    assert all(fault["old"] in TEXT for fault in faults)
    said = [refused(TEXT.replace(fault["old"], fault["new"], 1), tmp_path) for fault in faults]
    wrong = [
        (fault["fault"], message)
        for fault, message in zip(faults, said, strict=True)
        if "\n" in message or not re.search(fault["message"], message)
    ]
    assert wrong == []


def test_a_file_of_an_older_release_is_told_all_that_it_lacks_at_once(tmp_path: Path) -> None:
    """The new features by name, and where to copy them from; not one message after another."""
    new = ("freshness", "history", "region", "place", "spread")
    old = "\n[features.".join(table for table in TEXT.split("\n[features.") if not table.startswith(new))
    said = refused(old.replace("[features.kind.simplified]", "[features.kind.corporation2]"), tmp_path)
    for part in (
        *("[features.history.*]", "[features.region.*]", "[features.kind.simplified], [features.freshness.*]"),
        *("[features.place.crowded], [features.spread.several_addresses]", "are missing"),
        "`bansong model show --toml`",
    ):
        assert part in said


def test_a_learned_card_must_tell_what_the_built_in_one_tells(tmp_path: Path) -> None:
    """Else later learning cannot see a level that was learned to 0 points; an expert may leave it out."""
    card = learned(active=0)
    with pytest.raises(ModelError, match=r"\[features.status.active\] has points = 0 .* add always = true"):
        check_scorecard(card, "mine")
    status = card.features["status"]
    told = status | {"active": msgspec.structs.replace(status["active"], always=True)}
    check_scorecard(msgspec.structs.replace(card, features=card.features | {"status": told}), "mine")
    path = tmp_path / "mine.toml"
    path.write_text(TEXT.replace("points = -3", "points = 0", 1), encoding="utf-8")
    assert Scorecard.load(path).features["status"]["active"].points == 0


def test_where_a_card_was_learned_must_make_sense(tmp_path: Path) -> None:
    text = learned().to_toml()
    for old, new, message in (
        ("e_value = 24.5", "e_value = inf", r"\[learned\] e_value = inf does not fit; give a number from 0 on"),
        ("e_value = 24.5", "e_value = nan", r"\[learned\] e_value = nan does not fit"),
        ("false_bounces = 0.004", "false_bounces = 2.0", r"\[learned\] false_bounces = 2.0 .* at most 1"),
        ("bounced = 52", "bounced = 1601", r"\[learned\] bounced = 1601 is more than labels = 1600"),
        ("labels = 1600", "labels = -1", r"\[learned\] labels = -1 does not fit; give a whole number from 0 on"),
        ('parent = "2026.11.5"', "", r"\[learned\] has no parent; add it"),
    ):
        assert old in text
        assert re.search(message, refused(text.replace(old, new, 1), tmp_path))


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    """Bytes, a folder, nothing: said to be unreadable, with the path."""
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "bytes.toml", tmp_path, tmp_path / "none.toml"):
        with pytest.raises(ModelError, match=f"{re.escape(str(path))}: the scorecard cannot be read"):
            Scorecard.load(path)


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


@pytest.mark.fuzz
def test_threads_may_read_the_first_scorecard_at_once() -> None:
    done = subprocess.run([sys.executable, "-c", _FIRST_READ_BY_EIGHT, "60"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
