"""What learning takes from the book, what it leaves, and that asking often wins nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from bansong.engine.risk.scorecard import Scorecard
from bansong.history.labels import LabelStore
from bansong.history.scorecards import Event, ModelStore
from bansong.learning.calibrate import calibrate
from bansong.learning.gate import (
    REPEATED,
    RIPE_AT,
    JudgedLabels,
    TrainingData,
    continue_test,
    last_test,
    select_training_rows,
)
from mailings import NOW, TODAY, a_book, as_the_expert_says, letters, mail, turned

CARD = Scorecard.load()


def material(book: LabelStore) -> TrainingData:
    return select_training_rows(book, TODAY, CARD, CARD, {})


def addressed(known: pl.DataFrame) -> pl.DataFrame:
    """Letters with a number and an address each."""
    return known.with_row_index("b_no").with_columns(pl.col("b_no").cast(pl.String), address_key=pl.lit("somewhere"))


def test_the_same_letter_in_every_mailing_counts_once(tmp_path: Path) -> None:
    """A hundred addressees mailed each week are a hundred witnesses: repeating what they said proves nothing."""
    known = addressed(letters(4, 100))
    found = material(a_book(tmp_path, *[known] * 6))
    assert found.rows.height == 100
    assert found.left_out == {REPEATED: 500}
    assert set(found.rows["mailing"]) == {"m1"}


def test_an_addressee_of_whom_more_is_known_now_counts_again(tmp_path: Path) -> None:
    """A business that was active and is suspended by the next mailing is news; one without a number always is."""
    known = addressed(letters(3, 100))
    later = known.with_columns(pl.lit("suspended").cast(known.schema["level:status"]).alias("level:status"))
    book = a_book(tmp_path, known.filter(pl.col("level:status") == "active"), later)
    assert material(book).left_out == {}
    unnamed = known.with_columns(b_no=pl.lit(None, pl.String))
    assert material(a_book(tmp_path / "unnamed", unnamed, unnamed)).left_out == {}


def test_a_mailing_to_the_same_addressees_is_no_shift_of_the_letters(tmp_path: Path) -> None:
    """Drift is judged on whole mailings: what is left of one without the repeated letters is always different."""
    known = addressed(letters(3, 600))
    some = (pl.col("level:status") == "active") & (pl.int_range(pl.len()) < 20)
    suspended = pl.lit("suspended").cast(known.schema["level:status"])
    later = known.with_columns(pl.when(some).then(suspended).otherwise("level:status").alias("level:status"))
    a_book(tmp_path, known, later)
    result = calibrate(labels=tmp_path, today=TODAY)
    assert 580 <= result.left_out[REPEATED] < 600
    assert not any("the letters have changed" in warning for warning in result.warnings)


@pytest.mark.parametrize("share", [0.0, 0.25])
def test_wrong_labels_do_not_hide_in_small_mailings(tmp_path: Path, share: float) -> None:
    """Small mailings with a quarter of wrong labels are judged together and set aside; honest ones are kept."""
    small = [turned(letters(seed, 60, as_the_expert_says), share, seed) for seed in range(8)]
    aside = material(a_book(tmp_path, letters(5, 3_000, as_the_expert_says), *small)).set_aside
    assert "m1" not in aside
    assert len(aside) >= 5 if share else not aside
    assert all("other small mailings" in reason for _, why in aside.values() for reason in why)


def test_a_single_letter_that_came_back_as_expected_is_no_one_sided_mailing(tmp_path: Path) -> None:
    closed = letters(1, 4_000).filter(pl.col("level:status").cast(pl.String) == "closed_over_12_months")
    one = closed.head(1).with_columns(bounced=pl.lit(True))
    assert material(a_book(tmp_path, one)).set_aside == {}


def test_returns_alone_are_not_released(tmp_path: Path) -> None:
    """Each of them may be right: what arrived is still missing, and the message says how to declare it."""
    book = a_book(tmp_path, returns := letters(2, 900).filter("bounced"))
    released = {"m1": (returns.height, returns.height)}
    found = select_training_rows(book, TODAY, CARD, CARD, released)
    assert "--sent" in found.set_aside["m1"][1][0]
    mail(book, letters(3, 300).filter("bounced"), name="partial", complete=False)
    assert "with `complete=True` and `sent=`" in material(book).set_aside["partial"][1][0]


def ordered(rows: int, seed: int = 0) -> pl.DataFrame:
    """Judged labels."""
    rng = np.random.default_rng(seed)
    return pl.DataFrame({"mailing": ["m"] * rows, "row_id": range(rows), "bounced": rng.random(rows) < 0.1})


def test_labels_that_are_only_added_go_on_with_the_contest_and_changed_ones_need_more_evidence() -> None:
    """A replaced, dropped or moved label begins a new contest: each one costs more than the last."""
    past = None
    for size in (100, 100, 250, 500):
        past = continue_test(ordered(500).head(size), "r", past)
        assert past.required == 20
    first = continue_test(ordered(100), "r", None)
    for changed in (
        ordered(500).with_columns(bounced=pl.col("bounced") ^ (pl.col("row_id") == 7)),
        ordered(500).slice(1),
        ordered(500).sort("bounced"),
        ordered(99),
    ):
        again = continue_test(changed, "r", first)
        assert again.required == continue_test(changed, "r", again).required == 80
        assert continue_test(ordered(600, seed=1), "r", again).required == 180


def test_the_journal_remembers_what_was_judged_until_another_card_answers() -> None:
    """Notes in between hide nothing; a promotion or a way back begins anew."""
    past = JudgedLabels(100, "abc", 1)
    told = Event(datetime(2026, 1, 1, tzinfo=UTC), "refused", None, past.as_event())
    other = Event(told.at, "quarantined", None, {"mailing": "m"})
    assert last_test([]) is None
    assert last_test([told, other]) == past
    assert last_test([told, Event(told.at, "rolled_back", "builtin", {})]) is None


def test_labels_replaced_between_two_calibrations_are_noticed(tmp_path: Path) -> None:
    a_book(tmp_path / "one", letters(3, 300))
    a_book(tmp_path / "other", letters(4, 300))
    assert calibrate(labels=tmp_path / "one", today=TODAY).required == 20
    again = calibrate(labels=tmp_path / "other", today=TODAY)
    assert again.required == 80
    assert "80 is needed, more than the usual 20 because labels judged before were changed" in str(again)
    assert [event.data["past"]["rewritten"] for event in ModelStore().history()] == [0, 1]


def test_what_a_later_word_makes_certain_is_news_of_that_day(tmp_path: Path) -> None:
    """A mailing declared complete afterwards gets its deliveries then: the past of the contest stays as it was."""
    book, known = LabelStore(tmp_path), letters(1, 200)
    later = NOW + timedelta(days=9)
    mail(book, known, complete=False)
    first = material(book)
    assert first.set_aside
    mail(book, known, complete=True, recorded=later)
    rows = material(book).rows
    assert rows.filter(~pl.col("bounced"))[RIPE_AT].unique().to_list() == [later]
    assert rows.filter("bounced")[RIPE_AT].unique().to_list() == [NOW]
