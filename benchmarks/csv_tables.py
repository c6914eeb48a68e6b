"""Reading and writing CSV against bare polars, by encoding.

    python benchmarks/csv_tables.py [--rows 1000000] [--runs 3] [--folder DIR]

Each task runs in a process of its own, in turn with the others; its seconds are those of the work alone, without the
start of Python, its memory the peak of the process. Reading is opening the file (encoding, every line's fields) and
passing over every cell. Goals: CP949 read in at most 4 times what UTF-8 takes, written in at most 1.2 times what bare
polars takes, and the check for ragged lines at most 0.3 times a whole read → write.

The last figures stand in benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from measure import once

SETUP = """
import json, resource, sys, time
from contextlib import ExitStack
from pathlib import Path
import polars as pl
from bansong.tables.detect import FORMATS
from bansong.tables.table import Enriched
from bansong.tables.streams import File
from bansong.base.options import ReadOptions

source, target = Path(sys.argv[1]), Path(sys.argv[2])
resources = ExitStack()
every = pl.all().str.len_bytes().sum()
tally = pl.col("c0").null_count()  # every write collects a tally; pl.len() would map the whole file
bare = pl.scan_csv(source, infer_schema=False)

def opened():
    return FORMATS["csv"].verbs.read(File(source, source), ReadOptions(), resources)

def written(table):
    layout = tuple(zip(table.ids, table.headers))
    table.format.verbs.render(Enriched(table, table.frame, layout, table.frame.select(tally)), target)
"""
TASKS = {
    "bare read": ("", "bare.select(every).collect(engine='streaming')"),
    "read": ("", "opened().frame.select(every).collect(engine='streaming')"),
    "look through": ("", "opened()"),
    "bare write": (
        "first = bare.select(pl.first().null_count())",
        "pl.collect_all([bare.sink_csv(target, lazy=True), first], engine='streaming')",
    ),
    "write": ("table = opened()", "written(table)"),
    "read and write": ("", "written(opened())"),
}
END = """
print(json.dumps([time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))
resources.close()
"""
PLAN = [
    ("bare read", "utf-8"),
    ("read", "utf-8"),
    ("read", "cp949"),
    ("read", "utf-16"),
    ("look through", "utf-8"),
    ("bare write", "utf-8"),
    ("write", "utf-8"),
    ("write", "cp949"),
    ("read and write", "utf-8"),
    ("read and write", "cp949"),
]


def make(folder: str, rows: int) -> None:
    """The customers of ``scale.py`` in each encoding."""
    from scale import make_customers

    plain = Path(folder) / "utf-8.csv"
    make_customers(plain, rows)
    for encoding in ("cp949", "utf-16"):
        with (
            plain.open(encoding="utf-8", newline="") as source,
            (Path(folder) / f"{encoding}.csv").open("w", encoding=encoding, newline="") as target,
        ):
            while text := source.read(1 << 20):
                target.write(text)


def timed(task: str, source: Path, target: Path) -> tuple[float, float]:
    before, work = TASKS[task]
    script = "\n".join((SETUP, before, "started = time.perf_counter()", work, END))
    done = subprocess.run([sys.executable, "-c", script, source, target], capture_output=True, check=True, text=True)
    seconds, peak = json.loads(done.stdout)
    return seconds, peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the files go; default: a temporary folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bansong-bench-", dir=options.folder) as name:
        folder = Path(name)
        making = f"import csv_tables; csv_tables.make({name!r}, {options.rows})"
        once([sys.executable, "-c", making], cwd=Path(__file__).parent)
        found: dict[tuple[str, str], list[tuple[float, float]]] = {key: [] for key in PLAN}
        for _ in range(options.runs):
            for task, encoding in PLAN:
                found[task, encoding].append(timed(task, folder / f"{encoding}.csv", folder / "out.csv"))
    seconds = {key: statistics.median(run[0] for run in runs) for key, runs in found.items()}
    for (task, encoding), runs in found.items():
        peak = max(run[1] for run in runs)
        print(f"{task:<16}{encoding:<8}{seconds[task, encoding]:8.2f} s   peak {peak:7,.0f} MB")
    print(f"CP949 read / UTF-8 read        {seconds['read', 'cp949'] / seconds['read', 'utf-8']:.2f}x (goal 4)")
    print(
        f"write / bare write             {seconds['write', 'utf-8'] / seconds['bare write', 'utf-8']:.2f}x (goal 1.2)"
    )
    share = seconds["look through", "utf-8"] / seconds["read and write", "utf-8"]
    print(f"look through / read and write  {share:.2f} (goal 0.3)")


if __name__ == "__main__":
    main()
