"""JSON read by bansong (values exact, types checked) against polars' own readers, which check nothing.

    python benchmarks/json_tables.py [--rows 1000000]

Each side is a process of its own that reads every column into memory; the data are made by another.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from measure import alternate, once

MAKE = """
import json, random, sys
count, path, spaces = int(sys.argv[1]), sys.argv[2], (",", ":")
start, between, end = ("[", ",", "]") if path.endswith(".json") else ("", "\\n", "\\n")
chosen = random.Random(1)
with open(path, "w", encoding="utf-8") as out:
    out.write(start)
    for place in range(count):
        row = {"b_no": f"{chosen.randrange(10**9, 10**10)}", "name": f"주식회사 테스트{place % 977}",
               "address": f"서울특별시 강남구 테헤란로 {place % 500} {place % 37}층",
               "amount": place % 1000 + 0.5, "n": place}
        out.write((between if place else "") + json.dumps(row, ensure_ascii=False, separators=spaces))
    out.write(end)
"""
OURS = """
import sys
from pathlib import Path
from bansong.tables.detect import open_table
with open_table(Path(sys.argv[1])) as table:
    table.frame.select(table.ids).collect(engine="streaming")
"""
STREAMED = """
import sys
from pathlib import Path
import polars as pl
from bansong.tables.detect import open_table
with open_table(Path(sys.argv[1])) as table:
    table.frame.select(pl.col(table.ids).count()).collect(engine="streaming")
"""
POLARS = "import sys, polars as pl; pl.read_json(sys.argv[1])"
POLARS_LINES = "import sys, polars as pl; pl.read_ndjson(sys.argv[1])"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    rows = parser.parse_args().rows
    with tempfile.TemporaryDirectory() as folder:
        array, lines = Path(folder, "in.json"), Path(folder, "in.ndjson")
        for path in (array, lines):
            once([sys.executable, "-c", MAKE, str(rows), str(path)])
        figures = alternate(
            {
                "polars.read_json": [sys.executable, "-c", POLARS, str(array)],
                "array": [sys.executable, "-c", OURS, str(array)],
                "array, streamed": [sys.executable, "-c", STREAMED, str(array)],
                "polars.read_ndjson": [sys.executable, "-c", POLARS_LINES, str(lines)],
                "NDJSON": [sys.executable, "-c", OURS, str(lines)],
                "NDJSON, streamed": [sys.executable, "-c", STREAMED, str(lines)],
            }
        )
        print(f"{rows:,} objects, {array.stat().st_size / 1e6:,.0f} MB")
        for figure in figures.values():
            print(figure)
        for ours, theirs, goal in (("array", "polars.read_json", 1.0), ("NDJSON", "polars.read_ndjson", 2.0)):
            wall = figures[ours].median / figures[theirs].median
            print(f"{ours} / {theirs}: {wall:.2f}x, CPU {figures[ours].cpu / figures[theirs].cpu:.2f}x (goal {goal}x)")


if __name__ == "__main__":
    main()
