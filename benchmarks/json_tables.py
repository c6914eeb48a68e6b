"""JSON read by bansong (values exact, types checked) against polars' own readers, which check nothing; then whole runs.

    python benchmarks/json_tables.py [--rows 1000000]

Each side is a process of its own; the data are made by another. Reading takes every column into memory. A whole run is
one without an engine: read, nine columns of 97 different answers, write, and for bansong count the records written.
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
ANSWERS = """
import sys
from functools import partial
import polars as pl
reasons = "[base -50] where an ordinary business letter starts (model) | [kind -3] a company by its number (number)"
patterns = pl.DataFrame([
    {"biz_status": "active", "bounce_prob": place / 1000, "grade": "ABCDE"[place % 5], "action": "send",
     "fixed_zipcode": "06236", "fixed_address": None, "reasons": f"{reasons} | [status -{place}] business active",
     "row_status": "verified", "row_note": None} for place in range(97)
], schema_overrides={"fixed_address": pl.String, "row_note": pl.String})
def gathered(name, rows):
    return patterns[name].gather(rows.str.len_bytes() + rows.str.tail(1).cast(pl.UInt32))
def answered(frame, key):
    return frame.with_columns(
        pl.col(key).map_batches(partial(gathered, name), dtype, is_elementwise=True).alias(name)
        for name, dtype in patterns.schema.items()
    )
"""
OUR_RUN = f"""{ANSWERS}
from pathlib import Path
from bansong.tables.detect import open_table, write_table
from bansong.tables.table import Enriched
with open_table(Path(sys.argv[1])) as table:
    rows = answered(table.frame, "c0")
    layout = (*zip(table.ids, table.headers), *((name, name) for name in patterns.columns))
    result = Enriched(table, rows, layout, rows.select(pl.col("c1", "c2", "grade").count()))
    _, count = write_table(result, Path(sys.argv[2]), table.format)
    assert count() == table.count()
"""
_LISTED = "pl.col('reasons').str.split(' | ')"
POLARS_RUN = f"{ANSWERS}answered(pl.read_json(sys.argv[1]), 'b_no').with_columns({_LISTED}).write_json(sys.argv[2])"
POLARS_LINES_RUN = (
    f"{ANSWERS}answered(pl.read_ndjson(sys.argv[1]).lazy(), 'b_no').with_columns({_LISTED}).sink_ndjson(sys.argv[2])"
)
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
        copy, copied_lines = Path(folder, "out.json"), Path(folder, "out.ndjson")
        tasks = {
            "polars.read_json": (POLARS, array),
            "array": (OURS, array),
            "array, streamed": (STREAMED, array),
            "polars.read_ndjson": (POLARS_LINES, lines),
            "NDJSON": (OURS, lines),
            "NDJSON, streamed": (STREAMED, lines),
            "read_json, write_json": (POLARS_RUN, array, copy),
            "array, whole run": (OUR_RUN, array, copy),
            "read_ndjson, sink_ndjson": (POLARS_LINES_RUN, lines, copied_lines),
            "NDJSON, whole run": (OUR_RUN, lines, copied_lines),
        }
        figures = alternate({name: [sys.executable, "-c", *map(str, task)] for name, task in tasks.items()})
        print(f"{rows:,} objects, {array.stat().st_size / 1e6:,.0f} MB")
        for figure in figures.values():
            print(figure)
        for ours, theirs, goal in (
            ("array", "polars.read_json", 1.0),
            ("NDJSON", "polars.read_ndjson", 2.0),
            ("array, whole run", "read_json, write_json", 1.0),
            ("NDJSON, whole run", "read_ndjson, sink_ndjson", 1.5),
        ):
            wall = figures[ours].median / figures[theirs].median
            print(f"{ours} / {theirs}: {wall:.2f}x, CPU {figures[ours].cpu / figures[theirs].cpu:.2f}x (goal {goal}x)")


if __name__ == "__main__":
    main()
