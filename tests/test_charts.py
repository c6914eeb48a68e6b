"""Charts: valid specifications, and numbers that are those of the frames they were made from."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

import bansong as bs
from bansong.base.messages import use_language
from bansong.engine.risk.reasons import FEATURES
from bansong.engine.risk.scorecard import Scorecard
from bansong.errors import UsageError
from bansong.learning.report import calibration
from bansong.run import page_figures
from bansong.run.charts import TILES, as_svg, grades, regions, waterfall
from bansong.watch.report import Change, History
from conftest import SAMPLE


def rows_of(spec: dict[str, object], column: str) -> list[dict[str, object]]:
    """The rows of the data set of a specification that has a column."""
    sets = spec["datasets"]
    assert isinstance(sets, dict)
    return next(rows for rows in sets.values() if rows and column in rows[0])


def test_grades_count_every_row() -> None:
    """The bars sum to the rows: also of rows without a grade, and of grades that the local vocabulary lacks."""
    bars = {row["grade"]: row["rows"] for row in rows_of(grades({"A": 3, "C": 2, "F": 1}, rows=9).to_dict(), "grade")}
    assert bars == {**dict.fromkeys("BDE", 0), "A": 3, "C": 2, "F": 1, "no grade": 3}


def test_regions_show_the_mean_probability() -> None:
    """A tile's risk is the letters expected back over the rows; rows without a province are counted in the subtitle."""
    assert set(TILES) == set(FEATURES["region"])
    assert len({(tile.column, tile.row) for tile in TILES.values()}) == len(TILES)
    counted = pl.DataFrame({"region": ["seoul", "jeju", None], "rows": [10, 4, 7], "expected": [0.5, 1.0, 2.0]})
    with use_language("ko"):
        spec = regions(counted).to_dict()
    shown = {row["name"]: row for row in rows_of(spec, "region")}
    assert (shown["서울"]["risk"], shown["제주"]["risk"], shown["부산"]["risk"]) == (0.05, 0.25, None)
    assert spec["title"]["subtitle"][1].startswith("시·도를 알 수 없는 행 7개")


def test_without_altair_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "altair", None)
    with pytest.raises(UsageError, match=r"pip install 'bansong\[notebook\]'"):
        grades({"A": 1})


def test_the_waterfall_of_a_verification_sums_to_its_score() -> None:
    """The base comes first, every reason's points are a bar, and the last bar is the score that gives the chance."""
    found = bs.verify("124-81-00998", "삼성전자", "수원시 영통구 삼성로 129", lang="ko")
    points = found.points_frame
    assert (points.height, points["points"][0]) == (len(found.reasons), -50)
    *moves, last = rows_of(found.waterfall().to_dict(), "points")
    score = last["end"]
    assert [(one["start"], one["points"]) for one in moves] == list(
        zip([0, *points["points"].cum_sum()], points["points"], strict=False)
    )
    assert score == points["points"].sum()
    assert found.bounce_prob == Scorecard.load().probability(score)
    with pytest.raises(UsageError, match="carry no points"):
        replace(found, reasons=("the address is old",)).waterfall()


def test_the_charts_of_a_report_are_of_its_counts_and_its_output(tmp_path: Path) -> None:
    """Of one file and of several; a dry run has none, and a moved output costs the reasons in a notebook, no error."""
    pl.read_csv(SAMPLE / "customers.csv", infer_schema=False).head(60).write_csv(source := tmp_path / "in.csv")
    report = bs.enrich(source, tmp_path / "out.csv", registry=SAMPLE / "registry.parquet", letter_cost=430)
    answered = pl.read_csv(tmp_path / "out.csv", infer_schema=False)
    expected = answered["bounce_prob"].cast(pl.Float64).sum()
    bars = {row["grade"]: row["rows"] for row in rows_of(report.chart_grades().to_dict(), "grade")}
    counted = dict(answered["grade"].drop_nulls().value_counts().iter_rows())
    counts = {grade: count for grade, count in bars.items() if count}
    assert counts == {**counted, "no grade": 60 - sum(counted.values())}
    tiles = [row for row in rows_of(report.chart_regions().to_dict(), "risk") if row["rows"]]
    without = report.regions().filter(pl.col("region").is_null())
    assert sum(row["rows"] for row in tiles) + without["rows"].sum() == report.rows
    assert sum(row["expected"] for row in tiles) + without["expected"].sum() == pytest.approx(expected)
    shown = report._repr_html_()
    assert "What weighs most in a row" in shown
    assert f"{expected:,.0f} letters may come back if every row is mailed: ₩{expected * 430:,.0f}" in shown
    (tmp_path / "out.csv").rename(tmp_path / "in2.csv")
    assert "What weighs most in a row" not in report._repr_html_()
    several = bs.enrich([source], tmp_path / "several")
    again = {row["name"]: row["rows"] for row in rows_of(several.chart_regions().to_dict(), "risk")}
    assert {row["name"]: row["rows"] for row in tiles} == {name: rows for name, rows in again.items() if rows}
    assert sum(row["rows"] for row in rows_of(several.chart_grades().to_dict(), "grade")) == several.rows == 60
    planned = bs.plan(source)
    with pytest.raises(UsageError, match="dry run"):
        planned.chart_grades()
    with pytest.raises(UsageError, match="no output"):
        planned.chart_regions()
    assert "<div" not in planned._repr_html_()


def test_a_verification_shows_its_grade_and_points() -> None:
    """In the words of the language; what comes from a file is no HTML."""
    place = {"registry": SAMPLE / "registry.parquet", "lang": "ko"}
    with use_language("ko"):
        one = bs.verify("124-81-00998", "<b>가</b>", "경기 수원시 영통구 삼성로 129", **place)
        shown, text = one._repr_html_(), str(one)
    assert all(part in shown for part in (">A</span> 반송 확률", "-50</td>", "영업 중"))
    assert "<b>가" not in shown
    assert text.splitlines()[:2] == ["사업자번호    1248100998", "휴·폐업 상태  영업 중"]


def test_the_reliability_of_a_calibration_is_its_frame() -> None:
    """Each bin is a point with its interval; without a row there is nothing to draw."""
    rows = pl.DataFrame({"bounce_prob": [0.1, 0.2, 0.6, 0.9], "bounced": [False, False, True, True]})
    found = calibration(rows)
    shown = pl.DataFrame(rows_of(found.chart_reliability().to_dict(), "rate"))
    assert shown.equals(found.frame.select(shown.columns))
    with pytest.raises(UsageError, match="nothing to compare"):
        calibration(rows.clear()).chart_reliability()


def test_the_axis_of_a_history_names_each_time_once_in_korean_time() -> None:
    """A tick where the watch begins and at each change: of times in one minute the last. No time has a zone."""
    noon = datetime(2026, 11, 20, 3, tzinfo=UTC).timestamp()
    for begun, changed, ticks in (
        (noon, [noon + 5], ["20T12:00:05"]),
        (noon - 86_400, [noon - 60, noon], ["19T12:00:00", "20T11:59:00", "20T12:00:00"]),
        (None, [noon], ["19T12:00:00", "20T12:00:00"]),
    ):
        steps = zip(changed, "AB", "BD", strict=False)
        history = History("id", "1248100998", "가", "D", begun, tuple(Change(at, *step, None) for at, *step in steps))
        spec = history.chart().to_dict()
        assert spec["layer"][0]["encoding"]["x"]["axis"]["values"] == [f"2026-11-{tick}.000" for tick in ticks]
        assert f"2026-11-{ticks[-1]}" in [row["at"] for row in rows_of(spec, "at")]
        drawn = as_svg(history.chart())
        assert 1 <= len(re.findall("2026-11-[12][90]</", drawn)) == drawn.count(":00</") + drawn.count(":59</") <= 3


def test_no_reason_is_cut() -> None:
    """A long one takes several lines in the waterfall; one that begins with a number is counted by its label."""
    long = "corrected automatically, and nothing else in the row confirms it: road 송도과햑로 → 송도과학로 (juso)"
    spec = waterfall(pl.DataFrame({"reason": ["base", long], "points": [-50, 6]}), "title").to_dict()
    (axis,) = [one["encoding"]["y"]["axis"] for one in spec["layer"] if "y" in one["encoding"]][:1]
    lines = json.loads(axis["labelExpr"].removesuffix("[datum.value]"))
    assert [" ".join(one) for one in lines] == ["base", long, "score"]
    assert (len(lines[1]), max(map(len, lines[1])) <= 52, axis["labelLimit"]) == (2, True, 0)
    reasons = ["[상태 +3] 1248100998: 서울 (nts)", "[status +3] closed (2026-01-02)", "[상호 -1] (주)가 (model)"]
    frame = pl.DataFrame({"reasons": reasons})
    assert frame.select(page_figures._first_reason()).to_series().to_list() == ["상태", "closed", "상호"]


@pytest.mark.process
def test_a_run_imports_no_library_that_it_does_not_use(tmp_path: Path) -> None:
    """Charts, workbooks, frames of others, HTTP, locks: rows are verified without them, and a run starts sooner."""
    code = f"""
import sys, pathlib
import bansong as bs
folder = pathlib.Path({str(tmp_path)!r})
wanted = {{"letters": folder / "l.csv", "extra_columns": ["duplicate_of"]}}
bs.enrich({str(SAMPLE / "customers.csv")!r}, folder / "out.csv", status="none", **wanted)
bs.verify("124-81-00998", "삼성전자", "경기 수원시 영통구 삼성로 129", status="none")
heavy = {{"altair", "vl_convert", "openpyxl", "numpy", "pandas", "IPython", "httpx", "httpcore", "pydantic", "trio"}}
heavy |= {{"asyncio", "filelock"}}
print(sorted(heavy & set(sys.modules)))
"""
    environment = os.environ | {"BANSONG_STATE_DIR": str(tmp_path / "state")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == "[]"
