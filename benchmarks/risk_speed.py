"""Scoring and explaining a million rows: looked up by the pattern of levels, against row by row.

    python benchmarks/risk_speed.py [--rows 1000000] [--runs 3] [--folder DIR]

A synthetic list in which every feature holds in a realistic share of the rows is kept as Parquet; what holds is in its
columns, so that only scoring and explaining are measured. Three queries stream over it and sum up what they made, each
in a process of its own, in turn: ours (``Scorecard.assess``), the same answers made row by row with one ``concat_str``
over a term for each level (as it was until scorecard 2026.11.2; the sums are compared), and a bare pass that reads the
same columns and adds five constants. Printed: medians of the wall and the CPU seconds of the query, and the peak memory
of the process. Goal: at most 2 s for a million rows on 2 cores.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date, timedelta
from pathlib import Path

import polars as pl

from bansong.base.schema import GRADES, REASON_SEPARATOR
from bansong.engine.risk.features import is_assessable, with_looks
from bansong.engine.risk.reasons import (
    AT_BEST,
    FEATURES,
    PLACEHOLDER,
    WITHOUT_ASSESSMENT,
    list_reasons,
    placeholder_of,
    terms_of,
)
from bansong.engine.risk.scorecard import Scorecard
from bansong.engine.text import is_blank

SHARES: dict[str, dict[str, float]] = {
    "status": {
        "active": 0.8,
        "closed_over_12_months": 0.05,
        "closed_3_to_12_months": 0.02,
        "closed_under_3_months": 0.01,
        "suspended": 0.02,
        "unregistered": 0.01,
        "merged": 0.002,
        "closed_undated": 0.001,
        "not_found": 0.06,
    },
    "status_age": {"stale": 0.01},
    "number": {"wrong_check_digit": 0.01},
    "kind": {"corporation": 0.3, "public_or_non_profit": 0.03, "simplified": 0.15},
    "age": {"under_1_year": 0.08, "from_1_to_3_years": 0.15, "over_10_years": 0.35},
    "name": {"missing": 0.01, "masked": 0.005, "differs": 0.04},
    "freshness": {
        "under_6_months": 0.15,
        "from_12_to_24_months": 0.15,
        "from_24_to_48_months": 0.12,
        "over_48_months": 0.1,
    },
    "address": {
        "exact_with_unit": 0.4,
        "found": 0.3,
        "corrected": 0.08,
        "building_only": 0.03,
        "ambiguous": 0.03,
        "number_absent": 0.02,
        "road_absent": 0.01,
        "lot_unknown": 0.02,
        "no_number": 0.01,
        "not_found": 0.03,
        "not_covered": 0.03,
    },
    "form": {"lot_number": 0.12},
    "unit": {"missing": 0.05},
    "change": {"changed": 0.45, "read_as": 0.03},
    "postal": {
        "neighbouring": 0.03,
        "other_district": 0.02,
        "outside_region": 0.005,
        "differs": 0.003,
        "old_six_digits": 0.03,
        "malformed": 0.01,
    },
    "postal_filled": {"filled": 0.1},
    "place": {"crowded": 0.03},
    "spread": {"several_addresses": 0.02},
    "history": {"moved": 0.01, "absent": 0.01, "delivered": 0.3},
    "region": dict.fromkeys(FEATURES["region"], 1 / 16),
}
"""The share of rows in which a level holds; what is left of 1 has none."""

HOLDS = {feature: {name: pl.col(f"is:{feature}") == name for name in names} for feature, names in FEATURES.items()}


def make_rows(path: Path, rows: int) -> None:
    dice = random.Random(6)
    columns: dict[str, pl.Series] = {}
    for feature, shares in SHARES.items():
        names = [*shares, None]
        weights = [*shares.values(), max(0.0, 1 - sum(shares.values()))]
        drawn = dice.choices(range(len(names)), weights, k=rows)
        columns[f"is:{feature}"] = pl.Series(names, dtype=pl.Enum(FEATURES[feature])).gather(pl.Series(drawn))
    frame = pl.DataFrame(columns).with_columns(
        pl.when(pl.col("is:name") == "masked").then(pl.lit("홍**")).otherwise(pl.lit("주식회사 가나다")).alias("name")
    )
    days = pl.Series([date(2015, 1, 1) + timedelta(dice.randrange(4300)) for _ in range(rows)])
    codes = pl.Series([f"{dice.randrange(1000, 64000):05}" for _ in range(rows)])
    houses = pl.Series([str(dice.randrange(1, 900)) for _ in range(rows)])
    frame.with_columns(
        (pl.lit("경기도 수원시 영통구 삼성로 ") + houses).alias("address"),
        days.alias("since"),
        pl.Series([date(2026, 11, 1) - timedelta(dice.randrange(20)) for _ in range(rows)]).alias("as_of"),
        codes.alias("zipcode"),
        codes.alias("zipcode_given"),
        codes.reverse().alias("fixed_zipcode"),
        (pl.lit("수원 영통 → 경기도 수원시 영통구, 삼성로") + houses + " → 삼성로 " + houses).alias("changes"),
    ).write_parquet(path)


def bare(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Every column is read, and five are added."""
    wide = pl.lit("x" * 200)
    return frame.with_columns(
        pl.len().cast(pl.Int32).alias("score"), pl.lit(0.5).alias("bounce_prob"), grade=wide, action=wide, reasons=wide
    ).with_columns(pl.concat_str(pl.col("changes", "address", "reasons")).alias("reasons"))


def ours(frame: pl.LazyFrame) -> pl.LazyFrame:
    return Scorecard.load().assess(frame, HOLDS, "en")


def row_by_row(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Make the same answers with expressions over all rows."""
    card = Scorecard.load()
    frame = with_looks(frame).with_columns(is_assessable().alias("assessable")).with_columns(_codes())
    frame = frame.with_columns(score=_score(card), reasons=_reasons(card))
    grade = pl.lit(GRADES[-1])
    for name in reversed(GRADES[:-1]):
        grade = pl.when(pl.col("score") <= card.grades[name]).then(pl.lit(name)).otherwise(grade)
    odds = (-pl.col("score") / card.points_to_double * math.log(2)).exp()
    frame = frame.with_columns(
        bounce_prob=pl.when("assessable").then((card.ceiling / (1 + odds)).round(4)),
        grade=pl.when("assessable").then(grade),
    )
    given = ~is_blank(pl.col("name")) | ~is_blank(pl.col("address"))
    usual = pl.when("assessable").then(_action(card, repairs=False)).when(given).then(pl.lit("do_not_send"))
    action = pl.when("assessable").then(_action(card)).when(given).then(pl.lit("fix_address"))
    held = pl.when(usual.is_null() | usual.is_in(["hold", "do_not_send"])).then(usual).otherwise(pl.lit("hold"))
    to_confirm = _is_restrained("confirm") & (action == "send")
    restrained = pl.when(_is_restrained("hold")).then(held).when(to_confirm).then(pl.lit("confirm"))
    return frame.with_columns(action=restrained.otherwise(action))


def _is_restrained(action: str) -> pl.Expr:
    return pl.any_horizontal(_holds(*level) for level, mildest in AT_BEST.items() if mildest == action)


def _codes() -> list[pl.Expr]:
    codes = []
    for feature, names in FEATURES.items():
        code = pl.lit(0, pl.UInt8)
        for place, name in reversed(list(enumerate(names, 1))):
            code = pl.when(HOLDS[feature][name]).then(pl.lit(place, pl.UInt8)).otherwise(code)
        if feature not in WITHOUT_ASSESSMENT:
            code = pl.when("assessable").then(code).otherwise(pl.lit(0, pl.UInt8))
        codes.append(code.alias(f"level:{feature}"))
    return codes


def _holds(feature: str, name: str) -> pl.Expr:
    return pl.col(f"level:{feature}") == FEATURES[feature].index(name) + 1


def _points(card: Scorecard, feature: str) -> pl.Expr:
    points = pl.lit(0, pl.Int32)
    for name, level in card.features[feature].items():
        if level.points:
            points = pl.when(_holds(feature, name)).then(pl.lit(level.points, pl.Int32)).otherwise(points)
    return points


def _score(card: Scorecard) -> pl.Expr:
    return pl.sum_horizontal(pl.lit(card.base.points, pl.Int32), *(_points(card, name) for name in card.features))


def _action(card: Scorecard, repairs: bool = True) -> pl.Expr:
    mending = card.actions.repair_features
    repair = pl.max_horizontal(_points(card, feature) for feature in mending)
    others = pl.max_horizontal(_points(card, feature) for feature in card.features if feature not in mending)
    action = pl.lit(None, pl.String)
    for grade in GRADES:
        usual = pl.lit(getattr(card.actions, grade))
        if repairs and grade >= card.actions.repair_from:
            usual = pl.when((repair > 0) & (repair >= others)).then(pl.lit("fix_address")).otherwise(usual)
        action = pl.when(pl.col("grade") == grade).then(usual).otherwise(action)
    return action


def _reasons(card: Scorecard) -> pl.Expr:
    terms = [(term, _holds(str(term.feature), term.name)) for term in list_reasons(card, FEATURES)]
    terms.append((terms_of(card)[0], pl.col("assessable")))
    texts = [pl.when(holds).then(_reason(term.text("en"))) for term, holds in terms]
    return pl.concat_str(texts, separator=REASON_SEPARATOR, ignore_nulls=True)


def _reason(text: str) -> pl.Expr:
    parts = PLACEHOLDER.split(text)
    return pl.concat_str(
        placeholder_of(part).fill("en") if place % 2 else pl.lit(part) for place, part in enumerate(parts)
    )


QUERIES = {"bare pass": bare, "row by row": row_by_row, "by pattern": ours}


def once(name: str, path: Path) -> None:
    """Run one query and print its figures as JSON; with the sums of what it made, to be compared."""
    QUERIES[name](pl.scan_parquet(path).head(10)).collect()  # what is made once a process
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    sums = (
        pl.col("reasons").str.len_bytes().sum(),
        pl.col("score").sum().alias("sum of score"),
        (pl.col("bounce_prob") * 10_000).round().cast(pl.Int64).sum().alias("sum of bounce_prob"),  # in any order
        pl.concat_str("grade", "action").hash().sum().alias("others"),
    )
    made = QUERIES[name](pl.scan_parquet(path)).select(*sums, pl.len()).collect(engine="streaming")
    seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(json.dumps({"seconds": seconds, "cpu": cpu, "peak": after.ru_maxrss / 1024, "made": made.to_dicts()[0]}))


def compare(path: Path, runs: int) -> None:
    figures: dict[str, list[dict[str, float]]] = {name: [] for name in QUERIES}
    for _ in range(runs):
        for name, taken in figures.items():
            command = [sys.executable, __file__, "--folder", str(path.parent), "--query", name]
            taken.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    if any(one["made"] != two["made"] for one, two in zip(figures["row by row"], figures["by pattern"], strict=True)):
        sys.exit("the two ways do not give the same answers")
    for name, taken in figures.items():
        wall, cpu = (statistics.median(one[what] for one in taken) for what in ("seconds", "cpu"))
        peak = max(one["peak"] for one in taken)
        print(f"{name:<12}{wall:7.2f} s wall  {cpu:7.2f} s CPU  peak {peak:7,.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "bansong-risk-speed")
    parser.add_argument("--query", choices=QUERIES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    path = options.folder / "rows.parquet"
    if options.query:
        once(options.query, path)
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    make_rows(path, options.rows)
    compare(path, options.runs)


if __name__ == "__main__":
    main()
