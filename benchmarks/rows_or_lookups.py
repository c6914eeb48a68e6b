"""Should the local engine answer rows, or distinct lookups whose answers are joined back? (docs/decisions/002)

    python benchmarks/rows_or_lookups.py [--rows 1000000] [--repeats 0.2] [--runs 3]

Both ways write the same CSV. ``--repeats`` is the share of rows that repeat another row's record.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import polars as pl
from measure import alternate
from scale import prepared

ROWS = """
import sys, polars as pl, bansong as bs
frame = pl.scan_csv(sys.argv[1], infer_schema=False)
bs.LocalEngine().answer(frame).sink_csv(sys.argv[2])
"""
LOOKUPS = """
import sys, polars as pl, bansong as bs
frame = pl.scan_csv(sys.argv[1], infer_schema=False)
key = ["b_no", "name", "address", "zipcode"]
answers = bs.LocalEngine().answer(frame.select(key).unique())
frame.join(answers, on=key, how="left", maintain_order="left", nulls_equal=True).sink_csv(sys.argv[2])
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=float, default=0.2)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bansong-bench-") as name:
        folder = Path(name)
        source, _ = prepared(folder, options.rows)
        names = {"사업자등록번호": "b_no", "상호": "name", "주소": "address", "우편번호": "zipcode"}
        distinct = int(options.rows * (1 - options.repeats))
        frame = pl.scan_csv(source, infer_schema=False).rename(names)
        pl.concat([frame.head(distinct), frame.head(options.rows - distinct)]).sink_csv(folder / "in.csv")
        arguments = [str(folder / "in.csv"), str(folder / "out.csv")]
        figures = alternate(
            {
                "answer every row": [sys.executable, "-c", ROWS, *arguments],
                "answer lookups, join back": [sys.executable, "-c", LOOKUPS, *arguments],
            },
            options.runs,
        )
    rows, lookups = figures.values()
    print(f"{options.rows:,} rows, {options.repeats:.0%} of them repeat another")
    print(rows)
    print(f"{lookups}  = {lookups.median / rows.median:.2f}x")


if __name__ == "__main__":
    main()
