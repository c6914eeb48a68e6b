"""The stand-in on a real register uses nothing that was written after its day, and learning helps there."""

from __future__ import annotations

from datetime import date
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from bansong.engine.risk.reasons import LEVEL_DTYPES
from bansong.engine.risk.scorecard import Scorecard

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
CUT = date(2016, 2, 28)
YEARS = 3
CARD = Scorecard.load()
INPUTS = ["hospital", "score", *LEVEL_DTYPES]


@pytest.fixture
def bench(shared: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    assert shared
    for package in ("numpy", "sklearn", "lightgbm"):  # the last two belong to the benchmark only
        pytest.importorskip(package, reason=f"the benchmark needs {package}")
    monkeypatch.syspath_prepend(BENCHMARKS)
    return import_module("risk_real")


@cache
def windows_of(bench: ModuleType) -> list:
    return bench.windows(bench.register(bench.raw()), YEARS, CARD)


def seen(bench: ModuleType, rows: pl.DataFrame) -> pl.DataFrame:
    """What a model is given of a register as raw text."""
    return bench.evidence(bench.register(rows), CUT, YEARS, CARD).select(INPUTS).sort("hospital")


def test_no_column_that_tells_the_outcome_is_used(bench: ModuleType) -> None:
    """Postal codes, dates of change and names may be another row's, road addresses and the word 번지 may be missing."""
    rows = bench.raw()
    word = r"번지(\s+\D|\s*$)"  # before a number it says more: 1번지 2호 is 1-2
    others = rows.with_columns(
        pl.col("도로명우편번호", "최종수정시점", "사업장명").shuffle(seed=1),
        pl.when(pl.col("소재지전체주소") == "").then("도로명전체주소").otherwise(pl.lit("")).alias("도로명전체주소"),
        pl.col("소재지전체주소").str.replace(word, " $1"),
    )
    assert not rows.equals(others)
    assert_frame_equal(seen(bench, others), seen(bench, rows))


def test_the_outcome_is_no_input(bench: ModuleType) -> None:
    """With all closures after the day taken away, what a model is given of each hospital stays."""
    rows = bench.raw()
    later = pl.col("폐업일자") > f"{CUT:%Y%m%d}"
    alive = rows.with_columns(
        pl.when(later).then(pl.lit("")).otherwise("폐업일자").alias("폐업일자"),
        pl.when(later).then(pl.lit("01")).otherwise("영업상태구분코드").alias("영업상태구분코드"),
    )
    assert bench.evidence(bench.register(alive), CUT, YEARS, CARD)["bounced"].sum() == 0
    assert_frame_equal(seen(bench, alive), seen(bench, rows))


def test_what_opened_later_changes_nothing(bench: ModuleType) -> None:
    """A register that ends on the day gives the same inputs: no address is crowded by who came later."""
    known = bench.register(bench.raw())
    inputs = [
        bench.evidence(part, CUT, YEARS, CARD).select(INPUTS) for part in (known, known.filter(pl.col("opened") <= CUT))
    ]
    assert_frame_equal(*inputs)
    assert inputs[0]["level:place"].drop_nulls().len() > 50


def test_learning_ends_where_judging_begins(bench: ModuleType) -> None:
    """Closures to learn from lie at or before the day, those to be judged by after it and within the horizon."""
    known = bench.register(bench.raw())
    closed = known.select("hospital", "closed", "opened")
    windows = windows_of(bench)
    assert len(windows) == 5
    for window in windows:
        learned, judged = (part.filter("bounced").join(closed, on="hospital") for part in (window.train, window.test))
        assert learned["closed"].max() <= window.cut < judged["closed"].min()
        assert judged["closed"].max() <= bench.after(window.cut, YEARS) <= bench.LAST
        assert judged["opened"].max() <= window.cut


def test_the_learned_scorecard_is_better_than_the_base_rate(bench: ModuleType) -> None:
    """Over all windows it ranks better than chance beyond doubt, with a lower log loss than the rate alone."""
    windows = windows_of(bench)
    base, expert, learned = (
        bench.judged(bench.MODELS[name], windows, CARD)
        for name in ("base rate", "expert's points", "learned scorecard")
    )
    assert learned.together.log_loss < base.together.log_loss
    assert learned.together.log_loss <= expert.together.log_loss
    auc, low, high = learned.interval(60)
    assert 0.55 < low < auc < high < 0.65
