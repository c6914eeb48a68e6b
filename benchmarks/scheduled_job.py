"""A scheduled job run four times: the first time, with nothing changed, with one row changed, and `enrich` beside it.

    python benchmarks/scheduled_job.py [--rows 1000000] [--runs 3]

Each run is a process of its own; medians of seconds, as ratios to `bansong enrich` of the same file, with peak
memory. Goal: a run on an unchanged file takes at most 0.3 of the first.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
from pathlib import Path

import polars as pl
from measure import Usage, bansong, once

import bansong as bs


def customers(path: Path, rows: int) -> None:
    number = pl.int_range(1_010_000_000, 1_010_000_000 + 20 * rows, dtype=pl.UInt64).alias("n")
    right = pl.select(number).filter(bs.number.checksum_expr(pl.col("n"))).head(rows)
    right.select(
        pl.col("n").alias("사업자번호"),
        pl.format("상사 {}", pl.int_range(pl.len())).alias("상호"),
        pl.format("서울특별시 중구 세종대로 {}", pl.int_range(pl.len()) % 400).alias("주소"),
    ).write_csv(path)


def measure_once(folder: Path, rows: int) -> dict[str, Usage]:
    """Measure the runs of one job that never ran before."""
    source, job = folder / "in.csv", folder / "job.toml"
    with multiprocessing.get_context("spawn").Pool(1) as apart:  # a child begins with the memory of its parent
        apart.apply(customers, (source, rows))
    job.write_text('[[inputs]]\npath = "in.csv"\n[output]\npath = "out.csv"\n', encoding="utf-8")
    os.environ["BANSONG_STATE_DIR"] = str(folder / "state")
    found = {"enrich": once(bansong("enrich", source, "-o", folder / "alone.csv"))}
    found["first run"] = once(bansong("run", job))
    found["nothing changed"] = once(bansong("run", job))
    with source.open("a", encoding="utf-8") as file:
        file.write("1248100998,삼성전자,경기 수원시 영통구 삼성로 129\n")
    found["one row more"] = once(bansong("run", job))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    rounds: list[dict[str, Usage]] = []
    for _ in range(given.runs):
        with tempfile.TemporaryDirectory() as folder:
            rounds.append(measure_once(Path(folder), given.rows))
    base = statistics.median(one["enrich"].seconds for one in rounds)
    for name in rounds[0]:
        seconds = statistics.median(one[name].seconds for one in rounds)
        peak = max(one[name].peak for one in rounds)
        print(f"{name:<16}{seconds:7.2f} s  {seconds / base:5.2f} x  {peak:7,.0f} MB")
    first, second = (statistics.median(one[n].seconds for one in rounds) for n in ("first run", "nothing changed"))
    print(f"nothing changed / first run: {second / first:.2f}")


if __name__ == "__main__":
    main()
