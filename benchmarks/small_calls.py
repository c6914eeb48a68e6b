"""Small calls in one process: ``verify_frame`` and batches of addresses, with the engine and its files opened once.

    python benchmarks/small_calls.py [--keep DIR] [--calls 20] [--against SRC]

Asked are the rows of ``normal_run.py`` in its folder ``--keep`` (run it first), with its gazetteer of the nation: 85 %
as people write, 10 % with one wrong letter and a postal code, 5 % nowhere. Printed are CPU milliseconds of a call
(median): ``verify_frame`` of 1, 30, 300 rows, and the address step of 64 and 15,000 rows, also of those with a wrong
letter alone. ``--against`` is the ``src`` folder of another version, whose calls are made in turn with these: the ratio
holds on a busy machine, too. Goal: 300 rows in 150 ms.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import polars as pl

CASES = (("frame", 1), ("frame", 30), ("frame", 300), ("addresses", 64), ("addresses", 15_000), ("misspelt", 15_000))
WARM = 3  # calls that are not counted: indexes are built at their first use


def calls_of(kind: str, rows: int, folder: Path) -> Callable[[int], object]:
    """Return what makes a call of so many rows, other ones for each number."""
    import bansong as bs
    from bansong.engine.address.attach import attach

    file = sorted(folder.glob("normal_*[0-9].csv"), key=lambda file: file.stat().st_size)[0]
    frame = pl.read_csv(file, infer_schema=False, n_rows=400_000)
    engine = bs.LocalEngine(gazetteer=folder / "nation.parquet")
    if kind == "frame":
        return lambda turn: bs.verify_frame(frame.slice(turn * rows % (frame.height - rows), rows), engine=engine)
    place = pl.int_range(pl.len(), dtype=pl.UInt64)
    asked = (
        frame.filter((place * 7919 % 20).is_in([1, 2])) if kind == "misspelt" else frame
    )  # as in `normal_run.written`
    asked = asked.select(address="주소", zipcode="우편번호")

    def ask(turn: int) -> pl.DataFrame:
        part = asked.slice(turn * rows % (asked.height - rows), rows)
        return attach(part.lazy(), engine.gazetteer, "en").collect()

    return ask


def child(kind: str, rows: str, folder: str) -> None:
    """Make a call for each line of the input; print its CPU seconds."""
    warnings.simplefilter("ignore")
    call = calls_of(kind, int(rows), Path(folder))
    for line in sys.stdin:
        started = time.process_time()
        call(int(line))
        print(time.process_time() - started, flush=True)


def measured(kind: str, rows: int, folder: Path, sources: list[Path], calls: int) -> list[float]:
    """Return the median of each version, asked in turn."""
    command = [sys.executable, __file__, "--child", kind, str(rows), str(folder)]
    workers = [
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(source)},
        )
        for source in sources
    ]
    took: list[list[float]] = [[] for _ in workers]
    for turn in range(WARM + calls):
        for worker, seconds in zip(workers, took, strict=True):
            assert worker.stdin
            assert worker.stdout
            print(turn, file=worker.stdin, flush=True)
            seconds.append(float(worker.stdout.readline()))
    for worker in workers:
        worker.communicate()
    return [statistics.median(seconds[WARM:]) * 1000 for seconds in took]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir(), "bansong-nation"))
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--against", type=Path)
    options = parser.parse_args()
    sources = [Path(__file__).parents[1] / "src", *([options.against] if options.against else [])]
    for kind, rows in CASES:
        calls = max(3, options.calls // 4) if rows > 1000 else options.calls
        found = measured(kind, rows, options.keep, sources, calls)
        beside = f"  before {found[1]:8.1f} ms  = {found[1] / found[0]:.2f}x" if options.against else ""
        print(f"{kind:<10}{rows:>7,} rows  {found[0]:8.1f} ms CPU{beside}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
    else:
        main()
