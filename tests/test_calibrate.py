"""`calibrate`, from a label store to a scorecard that answers, or to the champion that stays."""

from __future__ import annotations

import builtins
import json
import sys
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from bansong.engine.risk.scorecard import Scorecard
from bansong.errors import LabelError, UsageError
from bansong.history.labels import LabelStore
from bansong.history.scorecards import ModelStore, resolve_model
from bansong.learning.calibrate import calibrate
from bansong.learning.fit import design, predict
from bansong.learning.gate import RIPE_DAYS
from mailings import MAILED, NOW, a_book, as_the_expert_says, letters, mail

TODAY = date(2026, 11, 21)
LEARNABLE = 104
"""A world that is far from what the expert believes."""


def turned(known: pl.DataFrame) -> pl.DataFrame:
    """Letters of which every fourth is said to have come back, whatever became of it."""
    return known.with_columns(bounced=pl.col("bounced") | (pl.int_range(pl.len()) % 4 == 0))


def test_labels_that_prove_a_challenger_make_it_the_champion(tmp_path: Path) -> None:
    """Where the labels are clear the learned card answers from then on, and says where it comes from."""
    a_book(tmp_path, letters(LEARNABLE, 2_000))
    result = calibrate(labels=tmp_path, today=TODAY)
    assert result.promoted
    assert result.exit_code == 0
    card = resolve_model(None)
    assert card.version == result.version == f"{Scorecard.load().version}+1"
    assert card.learned is not None
    assert (card.learned.parent, card.learned.labels) == (Scorecard.load().version, 2_000)
    assert card.learned.e_value >= 20
    assert "is replaced" in str(result)
    told = result.frame.filter(pl.col("before") != pl.col("after"))
    assert told.height > 5
    assert told["before"].to_list() != told["after"].to_list()


def test_a_second_look_at_the_same_labels_changes_nothing(tmp_path: Path) -> None:
    """What made the champion cannot dethrone it nor make it win again; the journal takes the same note once."""
    a_book(tmp_path, letters(LEARNABLE, 2_000))
    calibrate(labels=tmp_path, today=TODAY)
    for _ in range(2):
        again = calibrate(labels=tmp_path, today=TODAY)
        assert not again.promoted
        assert again.contest == 0
    assert [event.kind for event in ModelStore().history()] == ["promoted", "refused"]


def test_after_a_rollback_the_old_labels_do_not_promote_again(tmp_path: Path) -> None:
    """Who goes back has a reason: the labels of before teach, but only new ones decide."""
    a_book(tmp_path, letters(LEARNABLE, 2_000))
    calibrate(labels=tmp_path, today=TODAY)
    ModelStore().rollback()
    again = calibrate(labels=tmp_path, today=TODAY)
    assert not again.promoted
    assert resolve_model(None) == Scorecard.load()


def test_a_dry_run_decides_and_leaves_all_as_it_is(tmp_path: Path, state_directory: Path) -> None:
    """The report says what would be; no scorecard, no journal is written."""
    a_book(tmp_path, letters(LEARNABLE, 2_000))
    result = calibrate(labels=tmp_path, today=TODAY, dry_run=True)
    assert result.promoted
    assert "would be replaced" in str(result)
    assert not list(state_directory.rglob("*.toml"))
    assert ModelStore().history() == []


def test_few_labels_leave_the_champion(tmp_path: Path) -> None:
    """A hundred letters prove nothing, and the report says what is missing."""
    a_book(tmp_path, letters(1, 100))
    result = calibrate(labels=tmp_path, today=TODAY)
    assert not result.promoted
    assert "20 is needed" in str(result)
    assert "stays" in str(result)
    assert resolve_model(None) == Scorecard.load()
    assert [event.kind for event in ModelStore().history()] == ["refused"]


def test_recent_mailings_wait(tmp_path: Path) -> None:
    """A letter mailed less than 45 days ago is neither arrived nor returned yet; on the 45th day it is."""
    book = LabelStore(tmp_path)
    mail(book, letters(1, 60), name="old", mailed=TODAY - timedelta(days=RIPE_DAYS))
    mail(book, letters(2, 70), name="new", mailed=TODAY - timedelta(days=RIPE_DAYS - 1))
    result = calibrate(labels=tmp_path, today=TODAY)
    assert result.labels == 60
    assert result.left_out == {"mailed less than 45 days ago": 70}


def test_what_is_not_certain_is_left_out(tmp_path: Path) -> None:
    """Letters of unknown outcome and rows whose reasons no scorecard gave teach nothing, and are counted."""
    book = LabelStore(tmp_path)
    mail(book, letters(1, 60), name="known")
    mail(book, letters(2, 50).with_columns(bounced=pl.lit(False)), name="partial", complete=False)
    mail(book, letters(3, 40), name="service", unread=True)
    result = calibrate(labels=tmp_path, today=TODAY)
    assert result.labels == 60
    assert result.left_out == {"outcome not certain": 50, "reasons of no known scorecard": 40}


def test_a_mailing_of_returns_only_is_quarantined_and_the_others_are_used(tmp_path: Path) -> None:
    """Labels of one class only are set aside by themselves; somebody has to look, which the exit code says."""
    book = a_book(tmp_path, letters(1, 400))
    mail(book, letters(2, 400).filter("bounced"), name="returns")
    result = calibrate(labels=tmp_path, today=TODAY)
    assert result.labels == 400
    assert list(result.set_aside) == ["returns"]
    assert "one class only" in result.set_aside["returns"][1][0]
    assert "`bansong label … --replace`" in str(result)
    assert result.exit_code == 3
    assert "quarantined" in [event.kind for event in ModelStore().history()]
    assert resolve_model(None) == Scorecard.load()


def test_one_class_in_the_whole_book_leaves_the_champion(tmp_path: Path) -> None:
    """With nothing else to learn from the report says so, and nothing breaks."""
    a_book(tmp_path, letters(2, 400).filter("bounced"))
    result = calibrate(labels=tmp_path, today=TODAY)
    assert result.labels == 0
    assert "nothing to learn from" in str(result)
    assert json.dumps(result.as_dict())
    assert resolve_model(None) == Scorecard.load()


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


def test_an_empty_book_says_how_to_fill_it(tmp_path: Path) -> None:
    """Without labels there is nothing to learn: the remedy is named."""
    with pytest.raises(LabelError, match="record outcomes with `bansong label`"):
        calibrate(labels=tmp_path)


def test_a_change_of_the_letters_is_an_alarm(tmp_path: Path) -> None:
    """A mailing to quite other rows than before is told, and so are more returns than expected."""
    other = letters(LEARNABLE, 600).filter(pl.col("level:form") == "lot_number")
    a_book(tmp_path, letters(LEARNABLE, 1_500), other)
    warnings = "\n".join(calibrate(labels=tmp_path, today=TODAY).warnings)
    assert "the letters have changed: form (none) was 79%" in warnings
    assert "were expected" in warnings


def test_where_no_held_letter_is_mailed_the_report_asks_for_some(tmp_path: Path) -> None:
    """Learning from mailed letters alone cannot find that too many are held: 2 to 10 % of them should go out."""
    known = letters(1, 2_000)
    a_book(tmp_path, known.filter(pl.Series(predict(Scorecard.load(), design(known)) < 0.2)))
    assert "2 to 10 %" in "\n".join(calibrate(labels=tmp_path, today=TODAY).warnings)


def test_where_the_expert_is_right_the_report_is_calm(tmp_path: Path) -> None:
    """No promotion, no alarm of too many returns."""
    a_book(tmp_path, letters(5, 1_500, as_the_expert_says))
    result = calibrate(labels=tmp_path, today=TODAY)
    assert not result.promoted
    assert not any("were expected" in warning for warning in result.warnings)


def test_without_numpy_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Learning needs numpy: where it is missing, the message says what to install."""
    real = builtins.__import__

    def missing(name: str, *rest: Any, **more: Any) -> Any:
        if name == "numpy":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.delitem(sys.modules, "numpy", raising=False)
    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(UsageError, match=r'pip install "bansong\[learn\]"'):
        calibrate(labels=tmp_path)


def test_where_many_labels_look_wrong_the_others_are_not_believed(tmp_path: Path) -> None:
    """Beside two mailings in which every fourth letter is wrong, one that looks right is not learned from either."""
    a_book(tmp_path, *[turned(letters(seed, 1_000)) for seed in (1, 2)], letters(LEARNABLE, 2_000))
    result = calibrate(labels=tmp_path, today=TODAY)
    assert len(result.set_aside) == 2
    assert "are in quarantine, so the others are not trusted either" in result.doubts[0]
    assert not result.promoted
    assert result.exit_code == 3
    assert resolve_model(None) == Scorecard.load()
