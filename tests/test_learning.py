"""Learning from labels, by its parts: the fit, the challenger, the gate, the quarantine, the material."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bansong.engine.risk.reasons import LEVEL_DTYPES
from bansong.engine.risk.scorecard import Scorecard
from bansong.history.labels import LabelStore
from bansong.history.scorecards import Event, ModelStore, resolve_model
from bansong.learning.calibrate import calibrate
from bansong.learning.checks import ControlGroup, RankedLetters, check_labels, label_doubts
from bansong.learning.fit import (
    MAX_MOVE,
    TERMS,
    Priors,
    count_patterns,
    design,
    expert_points,
    fit_points,
    keep_held,
    make_challenger,
    predict,
    saving,
)
from bansong.learning.gate import (
    ENOUGH,
    REPEATED,
    RIPE_AT,
    JudgedLabels,
    Recording,
    TrainingData,
    blocks,
    continue_test,
    evaluate_challenger,
    last_test,
    run_gate,
    select_training_rows,
)
from examples import examples
from mailings import NOW, TODAY, World, a_book, as_the_expert_says, counted, draw, frame, letters, mail, turned

CARD = Scorecard.load()


def one_pattern(n: int, bounced: int, **levels: str) -> pl.DataFrame:
    """So many letters with these levels alone."""
    row = {name: [levels.get(name.partition(":")[2])] for name in LEVEL_DTYPES}
    return pl.DataFrame(row, schema=LEVEL_DTYPES).with_columns(
        n=pl.lit(n, pl.UInt32), bounced=pl.lit(bounced, pl.UInt32)
    )


def of(part: pl.DataFrame) -> pl.DataFrame:
    return count_patterns(part.with_columns(score=pl.lit(0)).lazy())


def test_labels_move_a_level_towards_what_they_say_and_none_move_nothing() -> None:
    none = fit_points(one_pattern(0, 0), CARD)
    assert none.base == pytest.approx(CARD.base.points)
    assert list(none.points().values()) == pytest.approx(expert_points(CARD))
    assert expert_points(make_challenger(none, CARD)) == expert_points(CARD)
    for bounced, sign in ((400, 1), (20, -1)):
        rest = [one_pattern(5_000, 140), one_pattern(500, bounced, status="suspended")]
        assert sign * (fit_points(pl.concat(rest), CARD).points()["status", "suspended"] - 30) > 2


def test_the_estimate_is_the_highest_point_of_the_posterior() -> None:
    known = counted(letters(1, 1_500))
    fit, priors, matrix = fit_points(known, CARD), Priors(), design(known)
    other = fit_points(known, CARD, start=fit_points(one_pattern(1_500, 750), CARD))
    assert fit.theta() == pytest.approx(other.theta(), abs=0.02)
    n, bounced = (known[name].cast(pl.Float64).to_numpy() for name in ("n", "bounced"))
    sds = np.array([priors.shift, priors.slope, *(priors.of(feature) for feature, _ in TERMS), priors.ceiling])
    middle = np.array([0.0, 1.0, *[0.0] * len(TERMS), math.log(CARD.ceiling / (1 - CARD.ceiling))])
    expert = CARD.base.points + matrix @ np.array(expert_points(CARD)), math.log(2) / CARD.points_to_double

    def posterior(theta: np.ndarray) -> float:
        eta = (CARD.base.points + theta[1] * (expert[0] - CARD.base.points)) * expert[1]
        p = 1 / (1 + np.exp(-theta[-2])) / (1 + np.exp(-(eta + theta[0] + matrix @ theta[2:-2])))
        label = theta[-1] + (1 - theta[-1]) * p
        away = -0.5 * float((((theta[:-1] - middle) / sds) ** 2).sum()) + 14 * math.log(1 - theta[-1])
        return float(bounced @ np.log(label) + (n - bounced) @ np.log(1 - label)) + away

    best, rng = posterior(fit.theta()), np.random.default_rng(3)
    for _ in range(60):
        aside = fit.theta() + rng.normal(0, 0.01, len(fit.theta()))
        aside[-1] = abs(aside[-1])
        assert posterior(aside) <= best + 0.01


def test_wrong_returns_go_to_their_own_rate_and_not_into_the_points() -> None:
    known = letters(2, 8_000, as_the_expert_says)
    flip = pl.Series(np.random.default_rng(1).random(known.height) < 0.1)
    fit = fit_points(counted(known.with_columns(bounced=pl.col("bounced") | flip)), CARD)
    assert 0.06 < fit.false_bounces < 0.13
    assert abs(make_challenger(fit, CARD).base.points - CARD.base.points) <= 3


@examples(25)
@given(st.integers(0, 2**32 - 1), st.floats(0, 1))
def test_a_challenger_moves_no_level_by_more_than_it_may(seed: int, rate: float) -> None:
    """Whatever the labels say, base and levels move by ten whole points at most; the rest of the card stays."""
    rng = np.random.default_rng(seed)
    known = letters(seed % 50, 400).with_columns(bounced=pl.Series(rng.random(400) < rate))
    card = make_challenger(fit_points(counted(known), CARD), CARD)
    before, after = ([one.base.points, *expert_points(one)] for one in (CARD, card))
    assert max(abs(one - other) for one, other in zip(before, after, strict=True)) <= MAX_MOVE
    assert all(isinstance(points, int) for points in after)
    assert abs(card.ceiling - CARD.ceiling) <= 0.05 + 1e-9
    assert (card.grades, card.actions, card.version) == (CARD.grades, CARD.actions, CARD.version)


def test_a_level_that_lost_its_points_is_still_told() -> None:
    """A learned card can be learned from again: each level with points once is in the reasons for ever."""
    known = [one_pattern(20_000, 560), one_pattern(20_000, 560, kind="corporation")]
    card = CARD
    for _ in range(4):
        card = make_challenger(fit_points(pl.concat(known), CARD), card)
    assert abs(card.features["kind"]["corporation"].points) <= 1
    before, after = ([one for levels in each.features.values() for one in levels.values()] for each in (CARD, card))
    assert all(now.always or now.points for then, now in zip(before, after, strict=True) if then.points)
    assert Scorecard.parse(card.to_toml()) == card


def test_the_contest_is_won_only_by_foretelling() -> None:
    """The first block teaches and decides nothing; a challenger that knows better wins later, by a likelihood ratio."""
    known = letters(4, 6_000)
    assert run_gate(None, [of(known[:100])], CARD, CARD).e_value == 1.0
    judged = run_gate(None, [of(part) for part in (known[:3_000], known[3_000:])], CARD, CARD)
    fit = fit_points(of(known[:3_000]), CARD)
    rest = of(known[3_000:])
    said = [predict(card, design(rest)) for card in (make_challenger(fit, CARD), CARD)]
    label = [fit.false_bounces + (1 - fit.false_bounces) * p for p in said]
    n, bounced = (rest[name].cast(pl.Float64).to_numpy() for name in ("n", "bounced"))
    ratio = bounced @ np.log(label[0] / label[1]) + (n - bounced) @ np.log((1 - label[0]) / (1 - label[1]))
    assert judged.steps[-1].log_e == pytest.approx(float(ratio))


def test_the_contest_counts_as_it_went_in_the_worst_way_of_recording() -> None:
    parts = [of(letters(4, 3_000)[first : first + 1_000]) for first in (0, 1_000, 2_000)]
    ways = (Recording(), Recording(0.1), Recording(None, 0.4))
    each = [run_gate(None, parts, CARD, CARD, (way,)) for way in ways]
    together = run_gate(None, parts, CARD, CARD, ways)
    assert len({gate.steps[-1].log_e for gate in each}) == len(ways)
    worst = [min(step.log_e for step in steps) for steps in zip(*(gate.steps for gate in each), strict=True)]
    assert [step.log_e for step in together.steps] == worst


def test_what_holds_a_letter_is_not_lowered_while_returns_may_be_missing() -> None:
    """Levels that hold a letter by themselves keep their distance from mailing; all others follow the labels."""
    closed = one_pattern(500, 100, status="closed_over_12_months")
    known = [one_pattern(5_000, 250), closed, one_pattern(500, 20, unit="missing")]
    learned = make_challenger(fit_points(pl.concat(known), CARD), CARD)
    kept = keep_held(learned, CARD)
    before, after, held = (
        one.base.points + one.features["status"]["closed_over_12_months"].points for one in (CARD, learned, kept)
    )
    assert after < before <= held
    assert kept.features["unit"]["missing"] == learned.features["unit"]["missing"]
    assert kept.base == learned.base
    assert kept.ceiling >= CARD.ceiling


def test_blocks_are_in_order_and_hold_every_letter() -> None:
    known = letters(5, 1_000).with_columns(score=pl.lit(0))
    sizes = [int(block["n"].sum()) for block in blocks(known)]
    assert sum(sizes) == 1_000
    assert sizes[:4] == [50, 50, 50, 50]
    assert sizes == sorted(sizes[:-1]) + sizes[-1:]


@pytest.mark.fuzz
def test_where_the_expert_is_right_nothing_is_promoted() -> None:
    """Of 12 worlds in which the built-in scorecard is the truth, one at most lets a challenger through."""
    passed = [
        run_gate(None, list(blocks(letters(seed, 1_000, as_the_expert_says).with_columns(score=pl.lit(0)))), CARD, CARD)
        for seed in range(12)
    ]
    assert sum(judged.e_value >= ENOUGH for judged in passed) <= 1


def test_labels_that_cannot_be_are_doubted() -> None:
    """One class only, and safe letters that come back more often than the others."""
    upside_down = pl.concat([one_pattern(1_000, 300), one_pattern(500, 60, status="suspended")])
    for part, why in (
        (one_pattern(50, 50), "one class only: all 50 letters came back"),
        (one_pattern(2_000, 0), "one class only: none of 2,000 letters came back where 56.4 were expected"),
        (upside_down, "the order is upside down: of the safest letters (under 3%) 300 of 1,000 came back (30%)"),
    ):
        assert any(found.startswith(why) for found in label_doubts(part, CARD))


def judged(known: pl.DataFrame) -> tuple[str, ...]:
    return check_labels({"m": known.with_columns(score=pl.lit(0))}, CARD, CARD).doubts.get("m", ())


def test_flipped_labels_are_doubted_and_honest_ones_are_not() -> None:
    honest = [letters(seed, 2_500) for seed in (0, 1, 3)]
    assert all("recorded as returned" in str(judged(turned(known, 0.1))) for known in honest)
    assert not any(judged(known) for known in honest)
    assert label_doubts(one_pattern(30, 0), CARD) == ()  # thirty letters that all arrived are no wonder


def test_what_a_card_would_hold_is_counted() -> None:
    """A card that is ten points harsher holds letters that were mailed; the old one held none of these."""
    known = counted(letters(7, 2_000))
    harsher = msgspec.structs.replace(CARD, base=msgspec.structs.replace(CARD.base, points=CARD.base.points + 10))
    effect = saving(known, CARD, harsher)
    scores = CARD.base.points + design(known) @ np.array(expert_points(CARD))
    held = (scores <= CARD.grades["C"]) & (scores + 10 > CARD.grades["C"])
    assert effect.held == known["n"].to_numpy()[held].sum()
    assert 0 < effect.held_bouncing < effect.held
    assert effect.mailed == 0


# ── what makes labels doubtful, and what does not ────────────────────────────────────────────────────────────────────


Truth = Callable[[dict[str, np.ndarray]], np.ndarray]


def odds_times(factor: float, seed: int = 3) -> Truth:
    """A world with another base rate: all odds times a factor."""

    def probability(rows: dict[str, np.ndarray]) -> np.ndarray:
        p = World.of(seed).probability(rows).clip(1e-6, 1 - 1e-6)
        return factor * p / (1 + (factor - 1) * p)

    return probability


def without_returns(known: pl.DataFrame, share: float, seed: int = 1) -> pl.DataFrame:
    """Letters of which a share of the returns was not recorded and counts as arrived."""
    lost = pl.Series(np.random.default_rng(seed).random(known.height) < share)
    return known.with_columns(bounced=pl.col("bounced") & ~lost)


@pytest.mark.parametrize(("factor", "wrong"), [(8.0, 0.0), (4.0, 0.04)])
def test_an_unknown_base_rate_is_learned_even_with_a_few_wrong_labels(
    tmp_path: Path, factor: float, wrong: float
) -> None:
    a_book(tmp_path, *[turned(letters(seed, 1_000, odds_times(factor)), wrong, seed) for seed in (3, 4)])
    result = calibrate(labels=tmp_path, today=TODAY)
    assert (result.set_aside, result.doubts, result.promoted) == ({}, (), True)


def ripe(known: pl.DataFrame) -> pl.DataFrame:
    """Letters as rows that learning may use."""
    return known.with_columns(score=pl.lit(0), **{RIPE_AT: pl.lit(NOW)})


@pytest.mark.parametrize(("share", "low", "high"), [(0.0, 0.0, 0.03), (0.04, 0.015, 0.065), (0.1, 0.07, 0.14)])
def test_the_share_of_wrong_labels_is_estimated_without_believing_the_expert(
    share: float, low: float, high: float
) -> None:
    known = turned(letters(6, 4_000), share).with_columns(score=pl.lit(0))
    estimate = RankedLetters.of(known, CARD).false_bounces()
    assert low <= estimate.share <= high
    assert estimate.low - 0.01 <= share <= estimate.high + 0.01


@pytest.mark.parametrize(("shares", "aside"), [((0.6, 0.6, 0.6), {"m1", "m2", "m3"}), ((0, 0.8, 0), {"m2"})])
def test_missing_returns_are_noticed_before_anything_is_learned_from_them(
    tmp_path: Path, shares: tuple[float, ...], aside: set[str]
) -> None:
    """All mailings or the one without them are set aside, and a warning gives the figures and the remedy."""
    a_book(
        tmp_path,
        *[without_returns(letters(seed, 800), share, seed) for seed, share in zip((1, 5, 9), shares, strict=True)],
    )
    result = calibrate(labels=tmp_path, today=TODAY)
    assert (set(result.set_aside), result.promoted, result.exit_code) == (aside, False, 3)
    assert resolve_model(None) == CARD
    warnings = [warning for warning in result.warnings if "returns seem to be missing" in warning]
    assert warnings
    assert all("closed for over a year" in one and "bansong label" in one for one in warnings)


def test_another_group_that_comes_back_speaks_for_the_returns() -> None:
    """Closed firms may receive their mail: where 85 % of the suspended come back, no 60 % of the returns is missing."""
    closed = one_pattern(400, 100, status="closed_over_12_months")
    suspended = one_pattern(400, 340, status="suspended")
    alone = ControlGroup.count(closed)
    assert "of 400 letters to firms closed for over a year only 100 came back (25%" in (alone.describe_loss() or "")
    both = ControlGroup.count(pl.concat([closed, suspended]))
    assert both.describe_loss() is None
    assert both.describe_uncertainty() is None


CLOSED = "closed_over_12_months"


def test_until_the_control_group_has_come_back_the_champion_stays() -> None:
    """Where such firms are never mailed, learning waits for 2,500 letters; the riskiest letters may speak for them."""
    few = one_pattern(9, 3, status=CLOSED)
    for patterns, riskiest, said in (
        (one_pattern(1_000, 60), (0, 0), "only 0 letters went to firms closed"),
        (few, (0, 0), "of 9 letters to firms closed for over a year 3 came back"),
        (one_pattern(4, 3, status=CLOSED), (0, 0), "only 4 letters went to firms closed"),
        (one_pattern(3, 3, status=CLOSED), (0, 0), None),
        (one_pattern(9, 8, status=CLOSED), (0, 0), None),
        (one_pattern(150, 75, status=CLOSED), (0, 0), None),
        (one_pattern(2_500, 60), (0, 0), None),
        (few, (20, 6), "3 came back, and most must"),
        (few, (20, 15), None),
    ):
        doubt = ControlGroup.count(patterns, riskiest).describe_uncertainty()
        assert doubt is None if said is None else said in (doubt or "")


def test_a_champion_stays_while_the_control_group_is_small(tmp_path: Path) -> None:
    """The evidence may be overwhelming: as long as returns may be missing it is not acted upon, and this is said."""
    known = letters(3, 1_200, odds_times(8.0)).filter(
        pl.col("level:status").cast(pl.String).fill_null("active") == "active"
    )
    a_book(tmp_path, known.filter(~pl.col("bounced") | (pl.int_range(pl.len()) % 3 == 0)))
    result = calibrate(labels=tmp_path, today=TODAY)
    assert result.set_aside == {}
    assert result.unproven
    assert not result.promoted
    assert "stays until it is known whether all returns are recorded" in str(result)


@pytest.mark.parametrize(("share", "promoted"), [(0.0, True), (0.6, False)])
def test_more_returns_are_learned_though_some_may_be_missing_and_fewer_are_not(share: float, promoted: bool) -> None:
    """Missing returns only make a risk look lower: what comes back too often is learned before they are ruled out."""
    known = letters(3, 1_500, odds_times(4.0 if promoted else 1.0))
    rows = ripe(without_returns(known, share))
    sure = evaluate_challenger(rows, CARD, CARD, None, "v+1", NOW)
    unsure = evaluate_challenger(rows, CARD, CARD, None, "v+1", NOW, unproven="returns may be missing")
    assert sure.promotes
    assert unsure.promotes == promoted
    assert unsure.gate.e_value <= sure.gate.e_value * 1.001  # sums of the same numbers in another order


@pytest.mark.parametrize(("seed", "better"), [(3, False), (5, True)])
def test_what_a_tenth_of_wrong_returns_would_explain_is_not_promoted(seed: int, better: bool) -> None:
    """With a tenth turned round the evidence is strong for worse cards, too; what wins even so is a better one."""
    rows = ripe(turned(letters(seed, 600), 0.1))
    trusting = evaluate_challenger(rows, CARD, CARD, None, "v+1", NOW)
    careful = evaluate_challenger(rows, CARD, CARD, None, "v+1", NOW, false_bounces=0.1)
    drawn = draw(np.random.default_rng(5), 10_000)
    truth, levels = World.of(seed).probability(drawn), design(frame(drawn))
    before, after = (
        float(truth @ np.log(p) + (1 - truth) @ np.log1p(-p))
        for p in (predict(card, levels) for card in (CARD, trusting.challenger))
    )
    assert trusting.promotes
    assert (after > before) == better
    assert careful.promotes == better


def test_the_checks_say_how_many_wrong_returns_are_possible() -> None:
    """Few letters rule out nothing; with more the bound falls, and it is never more than is reckoned with."""
    known = letters(3, 3_000).with_columns(score=pl.lit(0))
    bounds = [check_labels({"m": known.head(size)}, CARD, CARD).false_bounces for size in (200, 600, 3_000)]
    assert bounds[0] == 0.25
    assert bounds[0] > bounds[1] > bounds[2]
    assert check_labels({"m": turned(known, 0.08)}, CARD, CARD).false_bounces <= 0.1


# ── what is taken from the book, and that asking often wins nothing ──────────────────────────────────────────────────


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
