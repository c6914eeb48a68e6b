"""A million rows through uploads: the whole command, its time and its peak memory.

    python benchmarks/paid_batch.py [--rows 1000000] [--chunk-seconds 0]

The fake service runs in a process of its own on loopback and has jobs done at once. Baseline: the same file through
the local engine. Goal: at most 1 GB.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from measure import bansong, fake_service, once

MAKE = "import sys; sys.path.insert(0, sys.argv[3]); from scale import make_customers; from pathlib import Path; "
MAKE += "make_customers(Path(sys.argv[1]), int(sys.argv[2]))"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, fake_service() as url:
        folder = Path(name)
        source = folder / "customers.csv"
        once([sys.executable, "-c", MAKE, str(source), str(options.rows), str(Path(__file__).parent)])
        os.environ |= {"BANSONG_API_KEY": "benchmark-key", "BANSONG_STATE_DIR": str(folder / "state")}
        local = once(bansong("enrich", source, "-o", folder / "local.csv", "--progress", "none"))
        paying = bansong("enrich", source, "-o", folder / "paid.csv", "--engine", "batch", "--base-url", url)
        first = once([*paying, "--progress", "none"])
        again = once([*paying, "--progress", "none"])
        ledger = (folder / "state" / "ledger.sqlite").stat().st_size / 1e6
        for what, took in (
            ("local engine (baseline)", local),
            ("batch, all bought", first),
            ("batch, all cached", again),
        ):
            print(f"{what:<26}{took.seconds:8.1f} s = {took.seconds / local.seconds:5.1f}x  peak {took.peak:6,.0f} MB")
        print(f"ledger {ledger:,.0f} MB, {options.rows / first.seconds:,.0f} rows/s bought")


if __name__ == "__main__":
    main()
