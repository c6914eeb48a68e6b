"""Local enrichment of a big CSV against the bare read → write of the same file.

    python benchmarks/scale.py [--rows 1000000] [--runs 5] [--folder DIR]

Baseline: polars ``scan_csv`` → nine constant columns as wide as ours → ``sink_csv``, in a process of its own. Measured:
``bansong enrich FILE --registry R``, the whole process with its start, its hash of the input, its count of the output
and its fsync. The registry has as many businesses as the file has rows, every second of them in the file. Goal: at
most 3 times the baseline, and at most 1.2 GB for 10 million rows.

Below the ratios stands what each stage takes, so that a regression names its stage (``benchmarks/stages.py``). Wall
seconds are those of a quiet machine or of none; CPU seconds bear some company.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from datetime import date, timedelta
from pathlib import Path

import polars as pl
from measure import Figures, alternate, bansong, once, print_ratios, with_bytecode

import bansong as bs

WEIGHTS = (1, 3, 7, 1, 3, 7, 1, 3, 5)
ROWS_AT_ONCE = 2_000_000


def numbers(first: int, count: int) -> pl.DataFrame:
    """``count`` different numbers with right check digits, spread over the range, in no order."""
    nine = 100_000_000 + (pl.int_range(first, first + count, dtype=pl.UInt64, eager=True) * 48_271 * 7 % 899_999_981)
    frame = pl.DataFrame({"nine": nine})
    digits = [pl.col("nine") // 10 ** (8 - place) % 10 for place in range(9)]
    total = sum(digit * weight for digit, weight in zip(digits, WEIGHTS, strict=True)) + digits[8] * 5 // 10
    return frame.select(b_no=pl.col("nine") * 10 + (10 - total % 10) % 10)


def make_customers(path: Path, rows: int) -> None:
    """Write the file part by part: fifty million rows do not fit into memory."""
    with path.open("wb") as file:
        for first in range(0, rows, ROWS_AT_ONCE):
            customers(first, min(ROWS_AT_ONCE, rows - first)).write_csv(file, include_header=not first)


def customers(first: int, count: int) -> pl.DataFrame:
    place = pl.int_range(first, first + pl.len(), dtype=pl.UInt64)
    text = pl.col("b_no").cast(pl.String)
    roads = [
        "서울특별시 강남구 테헤란로 ",
        "경기도 수원시 영통구 삼성로 ",
        "부산광역시 해운대구 센텀중앙로 ",
        "세종특별자치시 한누리대로 ",
    ]
    road = pl.lit(None, pl.String)
    for turn, name in enumerate(roads):
        road = pl.when(place % 4 == turn).then(pl.lit(name)).otherwise(road)
    house = (place * 7919 % 899 + 1).cast(pl.String)
    return numbers(first, count).select(
        place.cast(pl.String).str.zfill(9).alias("고객번호"),
        (text.str.slice(0, 3) + "-" + text.str.slice(3, 2) + "-" + text.str.slice(5, 5)).alias("사업자등록번호"),
        ("주식회사 " + (place * 6101 % 1_000_000).cast(pl.String) + "상사").alias("상호"),
        pl.lit("홍길동").alias("대표자"),
        (road + house + ", " + (place % 900 + 100).cast(pl.String) + "호").alias("주소"),
        (place * 31 % 62_999 + 1000).cast(pl.String).str.zfill(5).alias("우편번호"),
        pl.lit("02-1234-5678").alias("전화"),
        pl.lit("2024-01-02").alias("등록일"),
    )


def make_registry(folder: Path, rows: int) -> None:
    place = pl.int_range(pl.len(), dtype=pl.UInt32)
    day = pl.lit(date(2026, 11, 1)) - pl.duration(days=place * 37 % 4000)
    status = (
        pl.when(place % 8 == 0)
        .then(pl.lit("폐업자"))
        .when(place % 31 == 0)
        .then(pl.lit("휴업자"))
        .otherwise(pl.lit("계속사업자"))
    )
    source, target = folder / f"status_{rows}.parquet", folder / f"registry_{rows}.parquet"
    numbers(rows // 2, rows).select(
        pl.col("b_no"),
        status.alias("상태"),
        pl.when(place % 8 == 0).then(day).alias("폐업일"),
        (pl.lit(date(2025, 1, 1)) - pl.duration(days=place * 13 % 9000)).alias("개업일"),
    ).write_parquet(source)
    bs.build_registry([source], target, as_of=date.today() - timedelta(days=1))


def make(folder: str, rows: int, businesses: int) -> None:
    make_customers(Path(folder) / f"customers_{rows}.csv", rows)
    make_registry(Path(folder), businesses)


def prepared(folder: Path, rows: int, businesses: int | None = None) -> tuple[Path, Path]:
    """Make customers and registry in a process of its own: a child's peak memory starts at its parent's."""
    businesses = businesses or rows
    code = f"import scale; scale.make({str(folder)!r}, {rows}, {businesses})"
    once([sys.executable, "-c", code], cwd=Path(__file__).parent)
    return folder / f"customers_{rows}.csv", folder / f"registry_{businesses}.parquet"


BASELINE = """
import sys, polars as pl
reasons = "[base -50] where an ordinary business letter starts (model) | [kind -3] a company by its number (number)"
reasons += " | [status -3] business active (registry)"
pl.scan_csv(sys.argv[1], infer_schema=False).with_columns(
    biz_status=pl.lit("active"), bounce_prob=pl.lit(0.0188), grade=pl.lit("A"), action=pl.lit("send"),
    fixed_zipcode=pl.lit(None, pl.String), fixed_address=pl.lit(None, pl.String), reasons=pl.lit(reasons),
    row_status=pl.lit("verified"), row_note=pl.lit(None, pl.String),
).sink_csv(sys.argv[2])
"""


def stages_of(
    source: Path, registry: Path, output: Path, runs: int, *gazetteer: Path
) -> dict[str, tuple[float, float]]:
    """CPU and wall seconds of each stage of an enrichment, medians, in the order of ``benchmarks/stages.py``."""
    files = map(str, (source, registry, output, *gazetteer))
    command = [sys.executable, str(Path(__file__).parent / "stages.py"), *files]
    done = [subprocess.run(command, capture_output=True, text=True, env=with_bytecode()) for _ in range(runs)]
    if failed := next((run.stderr for run in done if run.returncode), None):
        sys.exit(f"{' '.join(command)} failed: {failed}")
    taken = [json.loads(run.stdout) for run in done]
    return {
        stage: (statistics.median(run[stage][0] for run in taken), statistics.median(run[stage][1] for run in taken))
        for stage in taken[0]
    }


def print_stages(stages: dict[str, tuple[float, float]], base: Figures) -> None:
    """Print the stages with their share of the whole, in seconds and in times the baseline."""
    print(f"{'stage, with registry':<34}{'CPU s':>8}{'x base':>8}{'wall s':>9}{'x base':>8}")
    total = tuple(map(sum, zip(*stages.values(), strict=True)))
    for stage, (cpu, wall) in (*stages.items(), ("all of them", total)):
        print(f"{stage:<34}{cpu:8.2f}{cpu / base.cpu:8.2f}{wall:9.2f}{wall / base.median:8.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where the files go; default: a temporary folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bansong-bench-", dir=options.folder) as name:
        folder = Path(name)
        os.environ["BANSONG_STATE_DIR"] = str(folder / "state")
        source, registry = prepared(folder, options.rows)
        figures = alternate(
            {
                "bare read → write": [sys.executable, "-c", BASELINE, str(source), str(folder / "base.csv")],
                "bansong enrich, with registry": bansong(
                    "enrich", source, "--registry", registry, "-o", folder / "a.csv"
                ),
                "bansong enrich, without": bansong("enrich", source, "-o", folder / "b.csv"),
            },
            options.runs,
        )
        stages = stages_of(source, registry, folder / "a.csv", options.runs)
    print(f"{options.rows:,} rows")
    print_stages(stages, print_ratios(figures))


if __name__ == "__main__":
    main()
