"""`calibrate` and its command, from a label store to a scorecard that answers, or to the champion that stays."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner, Result

from bansong.cli.app import app
from bansong.engine.risk.scorecard import Scorecard
from bansong.errors import BansongError, LabelError, UsageError
from bansong.history.labels import LabelStore
from bansong.history.scorecards import ModelStore, resolve_model
from bansong.learning.calibrate import calibrate
from bansong.learning.fit import design, predict
from bansong.learning.gate import RIPE_DAYS
from conftest import write
from mailings import MAILED, NOW, TODAY, a_book, as_the_expert_says, letters, mail

LEARNABLE = 104  # a world that is far from what the expert believes
CARD = Scorecard.load()


def kinds() -> list[str]:
    return [event.kind for event in ModelStore().history()]


def test_labels_that_prove_a_challenger_make_it_the_champion_once(tmp_path: Path, state_directory: Path) -> None:
    """What made the champion cannot dethrone it, nor promote again after a rollback; a dry run only decides."""
    a_book(tmp_path, letters(LEARNABLE, 2_000))
    dry = calibrate(labels=tmp_path, today=TODAY, dry_run=True)
    assert dry.promoted
    assert "would be replaced" in str(dry)
    assert dry.headline.endswith("The points would be corrected.")
    assert list(state_directory.iterdir()) == []
    result = calibrate(labels=tmp_path, today=TODAY)
    assert (result.promoted, result.exit_code) == (True, 0)
    assert "is replaced" in str(result)
    assert result.headline.endswith("The points were corrected.")
    assert result.frame.filter(pl.col("before") != pl.col("after")).height > 5
    card = resolve_model(None)
    assert card.version == result.version == f"{CARD.version}+1"
    assert card.learned is not None
    assert (card.learned.parent, card.learned.labels) == (CARD.version, 2_000)
    assert card.learned.e_value >= 20
    for _ in range(2):
        again = calibrate(labels=tmp_path, today=TODAY)
        assert (again.promoted, again.contest) == (False, 0)
        assert again.headline.endswith("Nothing was changed.")
    assert kinds() == ["promoted", "refused"]
    ModelStore().rollback()
    assert not calibrate(labels=tmp_path, today=TODAY).promoted
    assert resolve_model(None) == CARD


def test_what_is_recent_or_not_certain_is_left_out_and_counted(tmp_path: Path) -> None:
    """A letter mailed less than 45 days ago is neither arrived nor returned yet; on the 45th day it is."""
    book = LabelStore(tmp_path)
    mail(book, letters(1, 60), name="old", mailed=TODAY - timedelta(days=RIPE_DAYS))
    mail(book, letters(2, 70), name="new", mailed=TODAY - timedelta(days=RIPE_DAYS - 1))
    mail(book, letters(2, 50).with_columns(bounced=pl.lit(False)), name="partial", complete=False)
    mail(book, letters(3, 40), name="service", unread=True)
    result = calibrate(labels=tmp_path, today=TODAY)
    assert result.labels == 60
    assert result.left_out == {
        "mailed less than 45 days ago": 70,
        "outcome not certain": 50,
        "reasons of no known scorecard": 40,
    }


def test_a_mailing_of_returns_only_is_quarantined_and_the_others_are_used(tmp_path: Path) -> None:
    """Alone in the book it leaves the champion, and is noted once however often one asks."""
    book = LabelStore(tmp_path)
    mail(book, letters(2, 400).filter("bounced"), name="returns")
    alone = [calibrate(labels=tmp_path, today=TODAY) for _ in range(2)][-1]
    assert (alone.labels, alone.promoted, kinds()) == (0, False, ["quarantined"])
    assert "nothing to learn from" in str(alone)
    mail(book, letters(1, 400))
    result = calibrate(labels=tmp_path, today=TODAY)
    assert (result.labels, list(result.set_aside), result.exit_code) == (400, ["returns"], 3)
    assert "one class only" in result.set_aside["returns"][1][0]
    assert "`bansong label … --replace`" in str(result)
    assert "20 is needed" in str(result)
    assert resolve_model(None) == CARD


def test_what_an_audit_of_an_earlier_release_found_right_is_learned_from(tmp_path: Path) -> None:
    """A release is of exactly these labels: what was added later is in doubt again."""
    lost = letters(5, 1_000).with_columns(bounced=pl.col("bounced") & (pl.int_range(pl.len()) % 5 == 0))
    book = a_book(tmp_path, lost)
    assert list(calibrate(labels=tmp_path, today=TODAY).set_aside) == ["m1"]
    returned = int(lost["bounced"].sum())
    released = {"mailings": {"m1": [1_000, returned]}, "checked": 300, "wrong": 0, "most": 0.01, "releases": True}
    ModelStore().note("released", released)
    assert calibrate(labels=tmp_path, today=TODAY).set_aside == {}
    mail(book, pl.concat([lost, lost]), name="m1", mailed=MAILED.replace(day=1), recorded=NOW)
    assert list(calibrate(labels=tmp_path, today=TODAY).set_aside) == ["m1"]


def test_a_change_of_the_letters_and_too_many_returns_are_alarms(tmp_path: Path) -> None:
    other = letters(LEARNABLE, 300).filter(pl.col("level:form") == "lot_number")
    a_book(tmp_path, letters(LEARNABLE, 800), other)
    warnings = "\n".join(calibrate(labels=tmp_path, today=TODAY).warnings)
    assert "the letters have changed: form (none) was 8" in warnings
    assert "were expected" in warnings


def test_where_the_expert_is_right_the_report_is_calm_but_asks_for_held_letters(tmp_path: Path) -> None:
    """Learning from mailed letters alone cannot find that too many are held: 2 to 10 % of them should go out."""
    known = letters(5, 1_000, as_the_expert_says)
    a_book(tmp_path, known.filter(pl.Series(predict(CARD, design(known)) < 0.2)))
    result = calibrate(labels=tmp_path, today=TODAY)
    assert not result.promoted
    assert not any("were expected" in warning for warning in result.warnings)
    assert "2 to 10 %" in "\n".join(result.warnings)


def test_where_many_labels_look_wrong_the_others_are_not_believed(tmp_path: Path) -> None:
    wrong = [
        letters(seed, 600).with_columns(bounced=pl.col("bounced") | (pl.int_range(pl.len()) % 4 == 0))
        for seed in (1, 2)
    ]
    a_book(tmp_path, *wrong, letters(LEARNABLE, 1_500))
    result = calibrate(labels=tmp_path, today=TODAY)
    assert (len(result.set_aside), result.promoted, result.exit_code) == (2, False, 3)
    assert "are in quarantine, so the others are not trusted either" in result.doubts[0]
    assert resolve_model(None) == CARD


def test_an_empty_book_and_a_missing_numpy_are_said_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LabelError, match="record outcomes with `bansong label`"):
        calibrate(labels=tmp_path)
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(UsageError, match=r'pip install "bansong\[learn\]"'):
        calibrate(labels=tmp_path)


# ── the command line ─────────────────────────────────────────────────────────────────────────────────────────────────


CSV = "b_no,bounce_prob,grade,bounced\n" + "".join(
    f"1248100998,{0.02 if place % 10 else 0.4},{'A' if place % 10 else 'D'},{'true' if place % 20 == 0 else 'false'}\n"
    for place in range(200)
)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["calibrate", *map(str, arguments)])


def test_a_book_is_learned_from_and_a_dry_run_keeps_nothing(tmp_path: Path, state_directory: Path) -> None:
    """Lines on stdout, warnings on stderr; as JSON one object; the exit code is that of the result."""
    book = a_book(tmp_path, letters(104, 800))
    mail(book, letters(2, 400).filter("bounced"), name="returns")
    done = run("--labels", tmp_path, "--dry-run")
    assert (done.exit_code, "one class only" in done.stdout, done.stderr[:6]) == (3, True, "note: ")
    assert done.stdout.startswith("The prediction")
    assert list(state_directory.iterdir()) == []
    found = json.loads(run("--labels", tmp_path, "--json").stdout)
    assert (found["labels"], found["promoted"], list(found["set_aside"])) == (800, True, ["returns"])
    assert (state_directory / "models" / "journal.jsonl").exists()


def test_options_that_contradict_each_other_are_refused(state_directory: Path) -> None:
    for arguments, message in (
        (["--report-only", "--dry-run"], "--report-only does not learn, so --dry-run says nothing with it"),
        (["x.csv"], "recorded with `bansong label`"),
        (["x.csv", "--report-only", "--labels", "book"], "give labelled files or --labels"),
    ):
        error = run(*arguments).exception
        assert isinstance(error, BansongError)
        assert (error.exit_code, message in str(error)) == (2, True)
    assert list(state_directory.iterdir()) == []


def test_the_report_of_labelled_files_is_printed(tmp_path: Path, state_directory: Path) -> None:
    """Scores, bins and groups of each file, as JSON one object; nothing is learned or kept."""
    files = [write(tmp_path / "one.csv", CSV), write(tmp_path / "few.csv", "\n".join(CSV.splitlines()[:20]) + "\n")]
    done = run(*files, "--report-only")
    for part in (
        *(f"labels          {file}" for file in files),
        "rows            200 with a known outcome",
        "came back       10, 5.00%; expected 11.6",
        "in the large    0.86 of what was expected (95 % interval 0.47 to 1.54): as expected",
        "AUC             0.974",
        "reliability, by tenths of the rows",
        "by grade",
    ):
        assert part in done.stdout, part
    assert f"{files[1]}: only 19 rows with a known outcome" in done.stderr
    _, few = json.loads(run(*files, "--report-only", "--json").stdout)["reports"]
    assert (few["labels"], few["n"], few["bounced"], few["enough"]) == (str(files[1]), 19, 1, False)
    assert [bin["n"] for bin in few["deciles"]] == [17, 2]
    assert [group["group"] for group in few["groups"]["grade"]] == ["A", "D"]
    assert list(state_directory.iterdir()) == []


def test_the_report_of_the_book_tells_engines_apart(tmp_path: Path, state_directory: Path) -> None:
    """Rows that a scorecard answered, and those of the service, each by themselves; an empty book has no report."""
    empty = run("--report-only")
    assert f"labels          {state_directory / 'labels'}" in empty.stdout
    assert "no row has both a probability and a known outcome" in empty.stderr
    mail(a_book(tmp_path, letters(1, 60)), letters(2, 80), name="service", unread=True)
    (report,) = json.loads(run("--report-only", "--labels", tmp_path, "--json").stdout)["reports"]
    assert (report["labels"], report["n"]) == (str(tmp_path), 140)
    engines = {group["group"]: group["n"] for group in report["groups"]["engine"]}
    assert engines == {"local": 60, "service or unknown": 80}
