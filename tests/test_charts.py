"""Charts: valid specifications, and numbers that are those of the frames they were made from."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bansong as bs
from bansong.base.messages import Lang, use_language
from bansong.engine.risk.reasons import FEATURES
from bansong.engine.risk.scorecard import Scorecard
from bansong.errors import UsageError
from bansong.learning.report import calibration
from bansong.run.charts import TILES, grades, reasons, regions, reliability, waterfall, waterfall_steps
from conftest import SAMPLE

REASONS = ["where a letter starts", "closed more than 12 months ago (2024-01-02)", "a name with 'quotes' \"both\""]


def rows_of(spec: dict[str, object], column: str) -> list[dict[str, object]]:
    """The rows of the data set of a specification that has a column."""
    sets = spec["datasets"]
    assert isinstance(sets, dict)
    return next(rows for rows in sets.values() if rows and column in rows[0])


def test_grades_count_every_row() -> None:
    """The bars of the grades and the one of rows without a grade sum to the rows."""
    spec = grades({"A": 3, "C": 2}, rows=9).to_dict()
    assert {row["grade"]: row["rows"] for row in rows_of(spec, "grade")} == {
        **dict.fromkeys("BDE", 0),
        **{"A": 3, "C": 2, "no grade": 4},
    }


def test_a_grade_of_the_services_own_has_a_bar() -> None:
    """A grade that the local vocabulary lacks is shown, too."""
    assert [row["rows"] for row in rows_of(grades({"F": 1}).to_dict(), "grade")] == [0, 0, 0, 0, 0, 1]


def test_every_province_has_its_own_tile() -> None:
    """The map has one tile for each level of the feature region, and no two at one place."""
    assert set(TILES) == set(FEATURES["region"])
    assert len({(tile.column, tile.row) for tile in TILES.values()}) == len(TILES)


def test_regions_show_the_mean_probability() -> None:
    """A tile's risk is the letters expected back over the rows; rows without a province are counted in the subtitle."""
    counted = pl.DataFrame({"region": ["seoul", "jeju", None], "rows": [10, 4, 7], "expected": [0.5, 1.0, 2.0]})
    with use_language("ko"):
        spec = regions(counted).to_dict()
    shown = {row["name"]: row for row in rows_of(spec, "region")}
    assert (shown["서울"]["risk"], shown["제주"]["risk"], shown["부산"]["risk"]) == (0.05, 0.25, None)
    assert spec["title"]["subtitle"][1].startswith("시·도를 알 수 없는 행 7개")


def test_reasons_are_the_most_frequent() -> None:
    """The longest bar comes first and no more than asked for are shown."""
    spec = reasons(pl.DataFrame({"reason": ["a", "b", "c"], "rows": [1, 5, 3]}), most=2).to_dict()
    assert rows_of(spec, "reason") == [{"reason": "b", "rows": 5}, {"reason": "c", "rows": 3}]


def test_reliability_has_a_point_a_bin() -> None:
    """Each bin is a point with its interval."""
    bins = pl.DataFrame({"mean_p": [0.1, 0.4], "rate": [0.2, 0.3], "low": [0.1, 0.2], "high": [0.3, 0.4], "n": [9, 9]})
    assert rows_of(reliability(bins).to_dict(), "rate") == bins.to_dicts()


@given(st.lists(st.integers(-99, 99), min_size=1, max_size=20))
def test_waterfall_ends_at_the_score(points: list[int]) -> None:
    """Each bar begins where the one before ended, and the last one reaches from zero to the sum of the points."""
    steps = waterfall_steps(pl.DataFrame({"reason": list(map(str, points)), "points": points}))
    moves, score = steps.head(-1), steps.row(-1, named=True)
    assert moves["start"].to_list() == [0, *moves["end"].to_list()[:-1]]
    assert (moves["end"] - moves["start"]).to_list() == points
    assert (score["start"], score["end"]) == (0, sum(points))


def test_waterfall_is_a_valid_chart() -> None:
    """A waterfall's specification is valid, whatever the reasons hold."""
    spec = waterfall(pl.DataFrame({"reason": REASONS, "points": [-50, 66, -3]}), "삼성전자").to_dict()
    assert [row["points"] for row in rows_of(spec, "reason")] == [-50, 66, -3, 13]


def test_without_altair_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Altair a chart is refused with the command that installs it."""
    monkeypatch.setitem(sys.modules, "altair", None)
    with pytest.raises(UsageError, match=r"pip install 'bansong\[notebook\]'"):
        grades({"A": 1})


@pytest.mark.parametrize("lang", ["en", "ko"])
def test_the_waterfall_of_a_verification_sums_to_its_score(lang: Lang) -> None:
    """The base comes first, every reason's points are a bar, and the last bar is the score that gives the chance."""
    found = bs.verify("124-81-00998", "삼성전자", "수원시 영통구 삼성로 129", lang=lang)
    points = found.points_frame
    assert points.height == len(found.reasons)
    assert points["points"][0] == -50
    score = rows_of(found.waterfall().to_dict(), "points")[-1]["end"]
    assert score == points["points"].sum()
    assert found.bounce_prob == Scorecard.load().probability(score)


def test_reasons_without_points_have_no_waterfall() -> None:
    """The reasons of a service that gives no points are refused in a sentence."""
    told = replace(bs.verify("124-81-00998"), reasons=("the address is old",))
    with pytest.raises(UsageError, match="carry no points"):
        told.waterfall()


def test_the_grades_of_a_report_are_its_own(tmp_path: Path) -> None:
    """The bars of a run's chart are the counts of its report; a dry run has none."""
    source, out = SAMPLE / "customers.csv", tmp_path / "out.csv"
    report = bs.enrich(source, out, status="none")
    bars = {row["grade"]: row["rows"] for row in rows_of(report.chart_grades().to_dict(), "grade")}
    answered = pl.read_csv(out, infer_schema=False)["grade"].drop_nulls().value_counts()
    assert {grade: bars[grade] for grade in answered["grade"]} == dict(answered.iter_rows())
    assert sum(bars.values()) == report.rows
    with pytest.raises(UsageError, match="dry run"):
        bs.plan(source).chart_grades()


def test_a_report_draws_its_provinces_out_of_its_output(tmp_path: Path) -> None:
    """Tiles sum to the rows and to the letters expected back, of one file and of several; without an output, none."""
    files, places = [SAMPLE / "customers.csv", SAMPLE / "customers.xlsx"], {"status": "none"}
    report = bs.enrich(files[0], tmp_path / "out.csv", **places)
    tiles = [row for row in rows_of(report.chart_regions().to_dict(), "risk") if row["rows"]]
    expected = pl.read_csv(tmp_path / "out.csv")["bounce_prob"].sum()
    without = report.regions().filter(pl.col("region").is_null())
    assert sum(row["rows"] for row in tiles) + without["rows"].sum() == report.rows
    assert sum(row["expected"] for row in tiles) + without["expected"].sum() == pytest.approx(expected)
    several = bs.enrich(files, tmp_path / "several", **places)
    doubled = {row["name"]: row["rows"] for row in rows_of(several.chart_regions().to_dict(), "risk")}
    assert {row["name"]: 2 * row["rows"] for row in tiles} == {name: rows for name, rows in doubled.items() if rows}
    assert sum(row["rows"] for row in rows_of(several.chart_grades().to_dict(), "grade")) == several.rows
    with pytest.raises(UsageError, match="no output"):
        bs.plan(files[0]).chart_regions()


def test_a_report_shows_its_grades_and_reasons_in_a_notebook(tmp_path: Path) -> None:
    """As many as the output has; an output that was moved costs the reasons, and is no error."""
    out = tmp_path / "out.csv"
    report = bs.enrich(SAMPLE / "customers.csv", out, registry=SAMPLE / "registry.parquet", letter_cost=430)
    shown = report._repr_html_()
    grade, count = max(report.account.by_grade.items(), key=lambda one: one[1]) if report.account else ("", 0)
    assert f'title="{grade} {count:,} (' in shown
    assert "What weighs most in a row" in shown
    expected = pl.read_csv(out)["bounce_prob"].sum()
    assert f"{expected:,.0f} letters may come back if every row is mailed: ₩{expected * 430:,.0f}" in shown
    out.rename(tmp_path / "moved.csv")
    assert "What weighs most in a row" not in report._repr_html_()
    assert "<div" not in bs.plan(SAMPLE / "customers.csv")._repr_html_()


def test_a_verification_shows_its_grade_and_points(tmp_path: Path) -> None:
    """In the words of the language; what comes from a file is no HTML."""
    place = {"registry": SAMPLE / "registry.parquet", "lang": "ko"}
    with use_language("ko"):
        one = bs.verify("124-81-00998", "<b>가</b>", "경기 수원시 영통구 삼성로 129", **place)
        shown, text = one._repr_html_(), str(one)
    assert all(part in shown for part in (">A</span> 반송 확률", "-50</td>", "영업 중"))
    assert "<b>가" not in shown
    assert text.splitlines()[:2] == ["사업자번호    1248100998", "휴·폐업 상태  영업 중"]


def test_the_reliability_of_a_calibration_is_its_frame() -> None:
    """Each bin of a calibration is a point; without a row there is nothing to draw."""
    rows = pl.DataFrame({"bounce_prob": [0.1, 0.2, 0.6, 0.9], "bounced": [False, False, True, True]})
    found = calibration(rows)
    assert [row["rate"] for row in rows_of(found.chart_reliability().to_dict(), "rate")] == found.frame[
        "rate"
    ].to_list()
    with pytest.raises(UsageError, match="nothing to compare"):
        calibration(rows.clear()).chart_reliability()


@pytest.mark.parametrize("wanted", ["{}", '{"letters": folder / "l.csv", "extra_columns": ["duplicate_of"]}'])
def test_a_run_imports_no_library_that_it_does_not_use(tmp_path: Path, wanted: str) -> None:
    """Charts, workbooks, frames of others, HTTP: a CSV file is enriched without them, and starts sooner."""
    code = f"""
import sys, pathlib
import bansong as bs
folder = pathlib.Path({str(tmp_path)!r})
bs.enrich({str(SAMPLE / "customers.csv")!r}, folder / "out.csv", status="none", **{wanted})
heavy = {{"altair", "vl_convert", "openpyxl", "numpy", "pandas", "IPython", "httpx", "httpcore", "pydantic", "trio"}}
print(sorted(heavy & set(sys.modules)))
"""
    environment = os.environ | {"BANSONG_STATE_DIR": str(tmp_path / "state")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == "[]"
