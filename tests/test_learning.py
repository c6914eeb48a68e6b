"""Learning from labels, by its parts: the fit, the challenger, the gate, the quarantine."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bansong.engine.risk.reasons import LEVEL_DTYPES
from bansong.engine.risk.scorecard import Scorecard
from bansong.learning.checks import check_labels, label_doubts
from bansong.learning.fit import (
    MOST,
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
from bansong.learning.gate import ENOUGH, Recording, blocks, run_gate
from examples import examples
from mailings import as_the_expert_says, counted, letters, turned

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
    assert max(abs(one - other) for one, other in zip(before, after, strict=True)) <= MOST
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
