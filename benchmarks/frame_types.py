"""``verify_frame`` of the normal run's customers as a pandas, a pyarrow and a polars frame, each a whole process.

    pip install kozip; python benchmarks/frame_types.py [--rows 1000000] [--runs 3] [--keep DIR] [--no-gazetteer]

Data as in ``normal_run.py``. Goal: pandas takes at most 1.2 times the CPU that polars takes.
"""

from __future__ import annotations

import argparse
import sys

import polars as pl
from measure import alternate, print_ratios
from normal_run import prepared

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
    parser.add_argument("--no-gazetteer", action="store_true")
    given, customers, registry = prepared(parser)
    source = customers.with_suffix(".parquet")
    pl.read_csv(customers, infer_schema=False).write_parquet(source)
    gazetteer = "" if given.no_gazetteer else str(given.keep / "nation.parquet")
    options = [str(source), str(registry), gazetteer]
    commands = {kind: [sys.executable, "-c", VERIFY.format(read=read), *options] for kind, read in READERS.items()}
    print_ratios(alternate(commands, given.runs))


if __name__ == "__main__":
    main()
