"""From customers to a scorecard that learned, through files and the command line as its users go."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from bansong.engine.risk.reasons import parse_reasons
from bansong.engine.risk.scorecard import Scorecard
from bansong.history.scorecards import ModelStore
from conftest import json_of
from customers import numbers

Run = Callable[..., subprocess.CompletedProcess[str]]

ROWS = 1_200
TODAY = date.today()
MAILED = TODAY - timedelta(days=60)
CAME_BACK = {"active": 0.02, "suspended": 0.85, "closed": 0.25}
"""What the expert does not believe: that closed businesses receive their mail, and suspended ones do not."""


def customers(folder: Path, seed: int) -> pl.DataFrame:
    """Write ``customers.csv`` and ``statuses.csv``; returns number and address of the letters that came back."""
    rng = np.random.default_rng(seed)
    status = pl.Series("상태", rng.choice(["active", "suspended", "closed"], ROWS, p=[0.7, 0.15, 0.15]))
    place = pl.int_range(ROWS, eager=True)
    rows = pl.DataFrame({"사업자등록번호": numbers(ROWS)}).with_columns(
        pl.format("(주)가나상사{}", place).alias("상호"),
        pl.format("서울특별시 강남구 테헤란로 {}, {}호", place % 700 + 1, place).alias("주소"),
    )
    rows.write_csv(folder / "customers.csv")
    closed = (MAILED - timedelta(days=600)).isoformat()
    rows.select(
        "사업자등록번호",
        status.replace_strict({"active": "계속사업자", "suspended": "휴업자", "closed": "폐업자"}).alias("사업자상태"),
        pl.when(status == "closed").then(pl.lit(closed)).alias("폐업일자"),
        pl.when(place % 2 == 1).then(pl.lit("2010-01-01")).otherwise(pl.lit("2021-01-01")).alias("개업일자"),
    ).write_csv(folder / "statuses.csv")
    came_back = pl.Series(rng.random(ROWS)) < status.replace_strict(CAME_BACK)
    return rows.filter(came_back).select("사업자등록번호", "주소")


DECLARED = ("--mailed", MAILED, "--returns-requested", "--complete", "--sent", "all")


def test_what_came_back_makes_a_scorecard_that_answers_from_then_on(
    run: Run, tmp_path: Path, state_directory: Path
) -> None:
    """Enriched, labelled, learned, and enriched again: the new version answers, adds up, and can be read back."""

    def done(*command: object) -> str:
        ended = run(*command)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    customers(tmp_path, 1).with_columns(반송사유=pl.lit("이사불명")).write_csv(tmp_path / "returns.csv")
    done("data", "build-registry", "statuses.csv", "-o", "registry.parquet")
    done("enrich", "customers.csv", "-o", "enriched.csv", "--registry", "registry.parquet")
    done("label", "returns.csv", "--file", "enriched.csv", *DECLARED)
    decided = json.loads(done("calibrate", "--json"))
    assert (decided["promoted"], decided["labels"]) == (True, ROWS)

    version = f"{Scorecard.load().version}+1"
    done("enrich", "customers.csv", "-o", "again.csv", "--registry", "registry.parquet")
    [manifest] = [one for path in state_directory.rglob("*.json") if "again.csv" in json.dumps(one := json_of(path))]
    assert version in json.dumps(manifest["versions"])
    card = ModelStore().champion()
    assert card.version == version
    read = parse_reasons(pl.scan_csv(tmp_path / "again.csv"), "reasons", cards=[card]).collect()
    assert not read["unread"].any()
    expected = [card.probability(score) for score in read["score"]]
    assert expected == pytest.approx(read["bounce_prob"].to_list(), abs=5.1e-5)
    assert (read["bounce_prob"] != pl.read_csv(tmp_path / "enriched.csv")["bounce_prob"]).any()

    assert f"scorecard       {version} (the champion)" in done("model", "show")
    assert "status.suspended points" in done("model", "diff")
    assert "answers now" in done("model", "rollback")
    assert json.loads(done("model", "history", "--json"))["champion"] == "builtin"
    assert json.loads(done("calibrate", "--json"))["promoted"] is False
    assert json.loads(done("model", "rollback", version, "--json"))["champion"] == version
    done("label", "returns.csv", "--file", "again.csv", *DECLARED)
    taught = json.loads(done("calibrate", "--json"))
    assert "reasons of no known scorecard" not in taught["left_out"]
    assert taught["labels"] + sum(taught["left_out"].values()) == 2 * ROWS
