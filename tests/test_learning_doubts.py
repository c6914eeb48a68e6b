"""What makes labels doubtful, and what does not: a prior that is wrong, wrong labels, returns nobody recorded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from bansong.engine.risk.scorecard import Scorecard
from bansong.history.scorecards import resolve_model
from bansong.learning.calibrate import calibrate
from bansong.learning.checks import ControlGroup, RankedLetters, check_labels
from bansong.learning.fit import design, predict
from bansong.learning.gate import RIPE_AT, evaluate_challenger
from mailings import NOW, TODAY, World, a_book, draw, frame, letters, turned
from test_learning import one_pattern

CARD = Scorecard.load()
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
