"""The calibration report: every figure against its definition, and honest where there is nothing to say."""

from __future__ import annotations

import math
import random
from pathlib import Path

import polars as pl
import pytest

from bansong.engine.risk.reasons import LEVEL_DTYPES
from bansong.errors import LabelError, UsageError
from bansong.learning.checks import NONE, interval, stability_index
from bansong.learning.report import BINS, FEW, GROUP_DTYPES, calibration, file_calibration

Rows = list[tuple[float, bool]]


def made(n: int, seed: int = 1, truth: float = 1.0, places: int = 2) -> Rows:
    """Letters with probabilities of two places; ``truth`` times as many come back as they say."""
    dice = random.Random(seed)
    rows = []
    for _ in range(n):
        p = round(dice.betavariate(0.8, 6), places)
        rows.append((p, dice.random() < p * truth))
    return rows


def frame_of(rows: Rows) -> pl.DataFrame:
    return pl.DataFrame(rows, schema={"bounce_prob": pl.Float64, "bounced": pl.Boolean}, orient="row")


def naive_auc(rows: Rows) -> float:
    """By definition: all pairs."""
    came, stayed = [p for p, b in rows if b], [p for p, b in rows if not b]
    wins = sum((x > y) + (x == y) / 2 for x in came for y in stayed)
    return wins / (len(came) * len(stayed))


def test_the_scores_are_those_of_their_definitions() -> None:
    rows = made(400, places=1)
    report = calibration(frame_of(rows))
    n, bounced = len(rows), sum(b for _, b in rows)
    sure = [(min(max(p, 5e-5), 1 - 5e-5), b) for p, b in rows]
    assert (report.n, report.bounced, report.left_out) == (n, bounced, 0)
    assert report.expected == pytest.approx(sum(p for p, _ in rows))
    assert report.ratio == pytest.approx(bounced / sum(p for p, _ in rows))
    assert report.brier == pytest.approx(sum((p - b) ** 2 for p, b in rows) / n)
    assert report.log_loss == pytest.approx(-sum(math.log(p if b else 1 - p) for p, b in sure) / n)
    assert report.auc == pytest.approx(naive_auc(rows), abs=1e-12)


def test_the_calibration_error_is_that_of_ten_bins_of_equal_count() -> None:
    dice = random.Random(4)
    rows = sorted((dice.random(), dice.random() < 0.3) for _ in range(500))
    report = calibration(frame_of(rows))
    tenths = [rows[50 * place : 50 * place + 50] for place in range(10)]
    apart = [abs(sum(p for p, _ in tenth) - sum(b for _, b in tenth)) / 500 for tenth in tenths]
    assert report.ece == pytest.approx(sum(apart))
    assert report.frame["bin"].to_list() == list(range(1, BINS + 1))
    assert report.frame["n"].to_list() == [50] * BINS
    assert report.frame["lowest"].to_list() == [tenth[0][0] for tenth in tenths]
    assert report.frame["highest"].to_list() == [tenth[-1][0] for tenth in tenths]
    assert report.frame["rate"].to_list() == pytest.approx([sum(b for _, b in tenth) / 50 for tenth in tenths])


def test_rows_of_one_probability_are_never_parted() -> None:
    """So there may be fewer bins; all rows are in one."""
    report = calibration(frame_of([(0.03, False)] * 900 + [(0.5, True)] * 100))
    assert report.frame.select("lowest", "highest", "n").rows() == [(0.03, 0.03, 900), (0.5, 0.5, 100)]
    assert report.ece == pytest.approx((900 * 0.03 + 100 * 0.5) / 1000)


def test_true_probabilities_are_found_calibrated_and_wrong_ones_are_not() -> None:
    """In the large: the interval holds 1, or lies on the side where it should."""
    for truth, said, plain in (
        (1.0, "as expected", "agrees with the letters"),
        (0.7, "too high, less came back", "too pessimistic"),
        (1.3, "too low, more came back", "too optimistic"),
    ):
        report = calibration(frame_of(made(5_000, seed=2, truth=truth)))
        assert report.low is not None
        assert report.high is not None
        assert (report.low < 1 < report.high) == (truth == 1)
        assert said in str(report)
        assert plain in report.headline
    assert "Too few" in calibration(frame_of(made(FEW - 1))).headline


def test_an_interval_is_wilsons() -> None:
    """A figure of the literature, and sound ends: none of ten is not "surely never"."""
    low, high = interval(15, 148)
    assert (round(low, 4), round(high, 4)) == (0.0624, 0.1605)
    assert (interval(0, 10)[0], interval(10, 10)[1], interval(0, 0)) == (0.0, 1.0, (0.0, 1.0))
    assert 0.25 < interval(0, 10)[1] < 0.35
    assert interval(15, 148, 0.99)[0] < low < high < interval(15, 148, 0.99)[1]


def test_rows_without_outcome_or_probability_are_left_out_and_counted() -> None:
    known = made(300)
    more = frame_of([(None, True), (0.5, None), (None, None)])  # type: ignore[list-item]
    report, without = calibration(pl.concat([frame_of(known), more])), calibration(frame_of(known))
    assert (report.n, report.left_out) == (300, 3)
    assert report.as_dict() | {"left_out": 0} == without.as_dict()
    assert "3 without outcome or probability left out" in str(report)


def test_the_limits_of_the_figures_are_said() -> None:
    """No rows, fewer than fifty, one outcome only, nothing expected."""
    none = calibration(frame_of([]))
    assert (none.n, none.ratio, none.brier, none.auc, none.ece) == (0, None, None, None, None)
    assert (none.frame.height, none.lines()) == (0, [("rows", "0 with a known outcome")])
    few, enough = calibration(frame_of(made(FEW - 1))), calibration(frame_of(made(FEW)))
    assert (few.as_dict()["enough"], enough.as_dict()["enough"]) == (False, True)
    assert "too few rows to say" in str(few)
    for bounced in (True, False):
        one = calibration(frame_of([(0.1, bounced), (0.3, bounced)] * 40))
        assert (one.auc, one.brier is not None) == (None, True)
        assert any("cannot be said" in warning for warning in one.warnings)
    nought = calibration(frame_of([(0.0, False), (0.0, True)] * 30))
    assert (nought.ratio, nought.low, nought.high) == (None, None, None)
    assert nought.log_loss == pytest.approx(-(math.log(5e-5) + math.log(1 - 5e-5)) / 2)


def test_what_is_no_probability_and_no_column_is_an_error() -> None:
    """A column of percents must not be taken for one of fractions."""
    for odd in (1.2, -0.01, float("nan"), float("inf"), 38.0):
        with pytest.raises(LabelError, match=r"'bounce_prob' holds .*which is no probability"):
            calibration(frame_of([(0.1, True), (odd, False)]))
    for options in ({"by": ["plant"]}, {"probability": "p"}, {"bounced": "b"}):
        with pytest.raises(UsageError, match="the columns are bounce_prob, bounced"):
            calibration(frame_of([(0.1, True)]), **options)  # type: ignore[arg-type]


def test_groups_are_reported_like_the_whole() -> None:
    """Each group has the figures that its rows alone would have; rows without a group are in none."""
    rows = made(600)
    grade = ["A" if p < 0.03 else "B" if p < 0.2 else None for p, _ in rows]
    frame = frame_of(rows).with_columns(pl.Series("grade", grade), engine=pl.Series(["local", "batch"] * 300))
    report = calibration(frame)
    assert report.whose == "batch and local"
    assert report.groups["engine"]["n"].to_list() == [300, 300]
    grades = report.groups["grade"]
    assert grades["group"].to_list() == ["A", "B"]
    assert dict(grades.drop("group").schema) == GROUP_DTYPES | {"ece": pl.Float64}
    for found in grades.iter_rows(named=True):
        alone = calibration(frame.filter(pl.col("grade") == found["group"]))
        for name in ("n", "bounced", "expected", "brier", "log_loss", "auc", "ece"):
            assert found[name] == pytest.approx(getattr(alone, name))
        assert (found["low"], found["high"]) == pytest.approx(interval(alone.bounced, alone.n))
        assert found["lift"] == pytest.approx((alone.bounced / alone.n) / (report.bounced / report.n))
    assert set(calibration(frame, by=("engine",)).groups) == {"engine"}


REASONS = (
    "[status +57] closed (registry) | [base -50] start (model) | [address +3] lot (file) | [address +15] no unit (x)",
    "[base -50] start (model) | [kind -3] a company (number)",
    None,
)


@pytest.mark.parametrize("lists", [True, False])
def test_each_label_of_reasons_counts_once_a_row(lists: bool) -> None:
    """Two reasons about the address are one row about the address; reasons may be a list or one text."""
    frame = frame_of([(0.6, True), (0.02, False), (0.1, True)] * 20).with_columns(reasons=pl.Series(REASONS * 20))
    if lists:
        frame = frame.with_columns(pl.col("reasons").str.split(" | "))
    found = calibration(frame).groups["reason"]
    assert dict(found.select("group", "n").rows()) == {"base": 40, "address": 20, "status": 20, "kind": 20}
    assert found["group"][0] == "base"
    address = found.filter(pl.col("group") == "address").row(0, named=True)
    assert (address["bounced"], address["expected"], address["lift"]) == (20, pytest.approx(12), pytest.approx(1.5))


def test_evidence_is_reported_by_its_levels() -> None:
    """The book has no reasons but the levels that held; features of one subject are one label, as in the reasons."""
    levels = {name: [None] * 3 for name in LEVEL_DTYPES} | {
        "level:status": ["active", "suspended", None],
        "level:address": ["found", None, None],
        "level:unit": ["missing", "missing", None],
    }
    frame = frame_of([(0.6, True), (0.02, False), (0.1, True)]).with_columns(pl.DataFrame(levels, schema=LEVEL_DTYPES))
    found = calibration(frame).groups["reason"]
    assert dict(found.select("group", "n").rows()) == {"address": 2, "status": 2}


def test_a_labelled_file_gives_the_same_report_and_its_words_are_escaped(tmp_path: Path) -> None:
    seventh = pl.when(pl.int_range(pl.len()) % 7 > 0).then("bounced")
    frame = frame_of(made(200)).with_columns(pl.lit("<b>").alias("grade_bv"), bounced=seventh)
    frame.write_excel(tmp_path / "labelled.xlsx")
    report = file_calibration(tmp_path / "labelled.xlsx")
    assert report.as_dict() == calibration(frame.rename({"grade_bv": "grade"})).as_dict()
    page = report._repr_html_().split("by grade")[-1]
    assert "&lt;b&gt;" in page
    assert "<b>" not in page


def test_a_file_that_is_not_labelled_says_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "labelled.csv"
    for text, message in (
        ("b_no,bounce_prob\n1248100998,0.1\n", "there is no column 'bounced'.*bansong label"),
        ("b_no,bounced\n1248100998,true\n", "there is no column 'bounce_prob'"),
        ("b_no,bounce_prob,bounced\n1,0.1,true\n2,0.1,perhaps\n", "row 2, column 'bounced': 'perhaps' cannot be"),
        ("b_no,bounce_prob,bounced\n1,,true\n2,3 %,true\n", "row 2, column 'bounce_prob': '3 %' cannot be read"),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(LabelError, match=message):
            file_calibration(path)


def counts(**levels: dict[str, int]) -> pl.DataFrame:
    rows = [(feature, level, n) for feature, found in levels.items() for level, n in found.items()]
    return pl.DataFrame(rows, schema={"feature": pl.String, "level": pl.String, "n": pl.Int64}, orient="row")


def test_the_stability_index_is_that_of_its_definition() -> None:
    """Twenty letters over ten levels differ by more than 0.2 though nothing has changed: few rows do not alarm."""
    found = stability_index(counts(age={"young": 300, NONE: 700}), counts(age={"young": 600, NONE: 400})).row(
        0, named=True
    )
    assert found["psi"] == pytest.approx(0.3 * math.log(0.6 / 0.3) + -0.3 * math.log(0.4 / 0.7))
    assert (found["feature"], found["level"], found["shifted"]) == ("age", "young", True)
    assert (found["before"], found["after"]) == pytest.approx((0.3, 0.6))
    same = stability_index(counts(age={"young": 30, NONE: 70}), counts(age={"young": 3000, NONE: 7000}))
    assert same.select("psi", "shifted").row(0) == (pytest.approx(0), False)
    new = stability_index(counts(address={"x": 1000}), counts(address={"y": 1000}))
    assert (new["shifted"].to_list(), new["psi"].is_finite().all()) == ([True], True)
    ten, five = ({f"l{place}": n for place in range(levels)} for levels, n in ((10, 100), (5, 4)))
    few = stability_index(counts(status=ten), counts(status=five)).row(0, named=True)
    assert (few["psi"] > 0.2, few["shifted"]) == (True, False)
