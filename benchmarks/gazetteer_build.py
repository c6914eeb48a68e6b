"""Building and opening a nationwide gazetteer: time, memory, size.

    python benchmarks/gazetteer_build.py [FOLDER] [--scale 1.0] [--runs 1]

FOLDER holds official files (by default a synthetic nationwide set is made, see nationwide.py). The yardstick, in the
same run: polars reading the same files, decoded from CP949, straight to Parquet, one file each, nothing checked.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import nationwide
from measure import alternate, bansong

STRAIGHT = """
import sys
from pathlib import Path
import polars as pl
for path in sorted(Path(sys.argv[1]).glob("*rnaddrkor_*.txt")):
    text = path.read_bytes().decode("cp949").encode()
    frame = pl.read_csv(text, separator="|", has_header=False, quote_char=None, infer_schema=False)
    frame.write_parquet(Path(sys.argv[2]) / f"{path.stem}.parquet")
"""
LOADED = """
import sys, time, resource
import polars, pyarrow.parquet
from bansong.engine.address.gazetteer import Gazetteer
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
started = time.perf_counter()
def say(what):
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before
    print(f"  {what:<32}{time.perf_counter() - started:8.3f} s  memory + {peak:5,.0f} MB", file=sys.stderr)
found = Gazetteer.open(sys.argv[1])
say("open")
found.tables
say("and roads and building keys")
found.tables.lots
say("and lots")
found.tables.building_name
say("and names")
"""


def measured(folder: Path, runs: int) -> None:
    size = sum(path.stat().st_size for path in folder.glob("*rnaddrkor_*.txt"))
    with tempfile.TemporaryDirectory() as made:
        output = Path(made) / "gazetteer.parquet"
        commands = {
            "straight to Parquet": [sys.executable, "-c", STRAIGHT, str(folder), made],
            "build-gazetteer": bansong("data", "build-gazetteer", folder, "-o", output, "--progress", "none"),
        }
        figures = alternate(commands, runs)
        for figure in figures.values():
            print(figure)
        straight, built = (figure.median for figure in figures.values())
        print(f"ratio {built / straight:.2f}; {size / 1e6:,.0f} MB in, {output.stat().st_size / 1e6:,.0f} MB out")
        print("loading, from the start on:", flush=True)
        subprocess.run([sys.executable, "-c", LOADED, str(output)], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--runs", type=int, default=1)
    chosen = parser.parse_args()
    if chosen.folder:
        measured(chosen.folder, chosen.runs)
        return
    if not nationwide.ADDRESSES.is_dir():
        sys.exit(f"skipped: the shared evaluation data is not at {nationwide.ADDRESSES}")
    with tempfile.TemporaryDirectory() as folder:
        buildings, lots = nationwide.make(folder, chosen.scale)
        print(f"synthetic set: {buildings:,} buildings, {lots:,} additional lots")
        measured(Path(folder), chosen.runs)


if __name__ == "__main__":
    main()
