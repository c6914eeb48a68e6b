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

Run = Callable[..., subprocess.CompletedProcess[str]]

ROWS = 3_000
TODAY = date.today()
MAILED = TODAY - timedelta(days=60)
CAME_BACK = {"active": 0.02, "suspended": 0.85, "closed": 0.25}
"""What the expert does not believe: that closed businesses receive their mail, and suspended ones do not."""


def numbers(count: int) -> list[str]:
    """Business numbers with a right check digit."""
    bodies = np.array([[int(digit) for digit in f"{place:09d}"] for place in range(123_810_000, 123_810_000 + count)])
    weighted = bodies * [1, 3, 7, 1, 3, 7, 1, 3, 5]
    checks = (10 - (weighted.sum(axis=1) + weighted[:, 8] // 10) % 10) % 10
    return [f"{''.join(map(str, body))}{check}" for body, check in zip(bodies, checks, strict=True)]


def customers(folder: Path, seed: int) -> pl.DataFrame:
    """Write ``customers.csv`` and ``statuses.csv``; returns number, address and whether the letter came back."""
    rng = np.random.default_rng(seed)
    status = rng.choice(["active", "suspended", "closed"], ROWS, p=[0.7, 0.15, 0.15])
    rows = pl.DataFrame(
        {
            "사업자등록번호": numbers(ROWS),
            "상호": [f"(주)가나상사{place}" for place in range(ROWS)],
            "주소": [f"서울특별시 강남구 테헤란로 {place % 700 + 1}, {place}호" for place in range(ROWS)],
        }
    )
    rows.write_csv(folder / "customers.csv")
    words = {"active": "계속사업자", "suspended": "휴업자", "closed": "폐업자"}
    closed = (MAILED - timedelta(days=600)).isoformat()
    rows.select("사업자등록번호").with_columns(
        pl.Series("사업자상태", [words[one] for one in status]),
        pl.Series("폐업일자", [closed if one == "closed" else None for one in status]),
        pl.Series("개업일자", ["2010-01-01" if place % 2 else "2021-01-01" for place in range(ROWS)]),
    ).write_csv(folder / "statuses.csv")
    chance = np.array([CAME_BACK[one] for one in status])
    return rows.with_columns(bounced=pl.Series(rng.random(ROWS) < chance))


@pytest.fixture
def mailed(run: Run, tmp_path: Path) -> Run:
    """A book with one mailing of three thousand letters, of which the list of returns was given."""
    outcomes = customers(tmp_path, 1).filter("bounced").select("사업자등록번호", "주소")
    outcomes.with_columns(반송사유=pl.lit("이사불명")).write_csv(tmp_path / "returns.csv")
    for command in (
        ("data", "build-registry", "statuses.csv", "-o", "registry.parquet"),
        ("enrich", "customers.csv", "-o", "enriched.csv", "--registry", "registry.parquet"),
    ):
        done = run(*command)
        assert done.returncode == 0, done.stderr
    declared = ("--mailed", MAILED, "--returns-requested", "--complete", "--sent", "all")
    done = run("label", "returns.csv", "--file", "enriched.csv", *declared, "-o", "labelled.csv")
    assert done.returncode == 0, done.stdout + done.stderr
    return run


def test_what_came_back_makes_a_scorecard_that_answers_from_then_on(
    mailed: Run, tmp_path: Path, state_directory: Path
) -> None:
    """Enriched, labelled, learned, and enriched again: the new version answers, adds up, and can be read back."""
    done = mailed("calibrate", "--json")
    assert done.returncode == 0, done.stderr
    decided = json.loads(done.stdout)
    assert decided["promoted"]
    assert decided["labels"] == ROWS
    version = f"{Scorecard.load().version}+1"
    again = mailed("enrich", "customers.csv", "-o", "again.csv", "--registry", "registry.parquet")
    assert again.returncode == 0, again.stderr
    manifests = [json_of(path) for path in state_directory.rglob("*.json")]
    [manifest] = [found for found in manifests if "again.csv" in json.dumps(found)]
    assert version in json.dumps(manifest["versions"])
    card = ModelStore().champion()
    assert card.version == version
    frame = pl.scan_csv(tmp_path / "again.csv")
    read = parse_reasons(frame, "reasons", address=None, cards=[card]).collect()
    assert not read["unread"].any()
    sums = read["reasons"].str.extract_all(r"\[\S+ [+-]\d+\]").list.eval(pl.element().str.extract(r"([+-]\d+)\]"))
    scores = sums.list.eval(pl.element().cast(pl.Int64)).list.sum()
    assert [card.probability(score) for score in scores] == pytest.approx(read["bounce_prob"].to_list(), abs=5.1e-5)
    before = pl.read_csv(tmp_path / "enriched.csv")
    assert (read["bounce_prob"] != before["bounce_prob"]).any()


def test_the_way_back_and_forth(mailed: Run) -> None:
    """What was learned is shown, differs from the built-in card, can be gone back from, and is learned from again."""
    assert mailed("calibrate").returncode == 0
    version = f"{Scorecard.load().version}+1"
    assert f"scorecard       {version} (the champion)" in mailed("model", "show").stdout
    assert "status.suspended points" in mailed("model", "diff").stdout
    assert version in mailed("model", "history").stdout
    assert "answers now" in mailed("model", "rollback").stdout
    assert json.loads(mailed("model", "history", "--json").stdout)["champion"] == "builtin"
    assert json.loads(mailed("calibrate", "--json").stdout)["promoted"] is False
    assert json.loads(mailed("model", "rollback", version, "--json").stdout)["champion"] == version
    second = ("enrich", "customers.csv", "-o", "second.csv", "--registry", "registry.parquet")
    assert mailed(*second).returncode == 0
    declared = ("--mailed", MAILED, "--returns-requested", "--complete", "--sent", "all")
    done = mailed("label", "returns.csv", "--file", "second.csv", *declared, "--json")
    assert done.returncode == 0, done.stderr
    taught = json.loads(mailed("calibrate", "--json").stdout)
    assert "reasons of no known scorecard" not in taught["left_out"]
    assert taught["labels"] + sum(taught["left_out"].values()) == 2 * ROWS
