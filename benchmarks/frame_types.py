"""``verify_frame`` of the normal run's customers as a pandas, a pyarrow and a polars frame, each a whole process.

    pip install kozip; python benchmarks/frame_types.py [--rows 1000000] [--runs 3] [--keep DIR] [--no-gazetteer]

Data as in ``normal_run.py``. Goal: pandas takes at most 1.2 times the CPU that polars takes.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import polars as pl
from measure import alternate, once

READERS = {
    "polars": "import polars; frame = polars.read_parquet(path)",
    "pyarrow": "import pyarrow.parquet; frame = pyarrow.parquet.read_table(path)",
    "pandas": "import pandas; frame = pandas.read_parquet(path)",
}
VERIFY = """
import sys, warnings
import bansong as bs
path, registry, gazetteer = sys.argv[1:]
{read}
warnings.simplefilter("ignore")
bs.verify_frame(frame, registry=registry, gazetteer=gazetteer or None, labels=False)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir(), "bansong-nation"))
    parser.add_argument("--no-gazetteer", action="store_true")
    given = parser.parse_args()
    given.keep.mkdir(parents=True, exist_ok=True)
    os.environ["BANSONG_STATE_DIR"] = str(given.keep / "state")
    code = f"import normal_run; normal_run.make({str(given.keep)!r}, {given.rows})"
    once([sys.executable, "-c", code], cwd=Path(__file__).parent)
    source, registry = given.keep / f"normal_{given.rows}.parquet", given.keep / f"registry_{given.rows}.parquet"
    pl.read_csv(source.with_suffix(".csv"), infer_schema=False).write_parquet(source)
    gazetteer = "" if given.no_gazetteer else str(given.keep / "nation.parquet")
    options = [str(source), str(registry), gazetteer]
    commands = {kind: [sys.executable, "-c", VERIFY.format(read=read), *options] for kind, read in READERS.items()}
    base, *others = alternate(commands, given.runs).values()
    print(base)
    for figure in others:
        print(f"{figure}  = CPU {figure.cpu / base.cpu:.2f}x")


if __name__ == "__main__":
    main()
