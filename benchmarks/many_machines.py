"""Local enrichment of a Parquet file on one machine against Spark with as many workers on the same one.

    python benchmarks/many_machines.py [--rows 1000000] [--businesses N] [--kinds alone,rows,whole] [--runs 1]
                                       [--workers 2] [--heap 2g] [--folder DIR]

``alone``: ``bansong enrich FILE --registry R`` on one machine, the whole process. ``rows`` and ``whole``:
``spark.enrich`` in ``local[N]``, without and with what only the whole file tells; its seconds are those of the job, the
start of Java and of the session stand beside them. All from Parquet to Parquet. CPU and peak memory are those of all
processes: Java, the workers, the program (memory that several share counts once). pyspark must be installed for Spark.
The file is that of ``benchmarks/scale.py``; the registry has as many businesses as the file has rows, or ``N``: Korea
has about ten million.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import polars as pl
from measure import Figures, Usage, bansong, once
from scale import prepared

SPARK = """
import json, os, sys, time, warnings
from pathlib import Path
warnings.simplefilter("ignore")
source, registry, output, workers, heap, scratch, whole = sys.argv[1:]
os.environ["PYSPARK_PYTHON"] = sys.executable
began = time.perf_counter()
from pyspark.sql import SparkSession
from bansong.distributed import spark
session = SparkSession.builder.master(f"local[{workers}]").config("spark.ui.enabled", "false")
session = session.config("spark.driver.memory", heap).config("spark.local.dir", scratch).getOrCreate()
session.sparkContext.setLogLevel("ERROR")
ready = time.perf_counter()
found = spark.enrich(session.read.parquet(source), registry=registry, labels=False, cross_row_features=whole == "1")
found.write.parquet(output)
done = time.perf_counter()
ticks, mine = 0, os.getsid(0)
for stat in Path("/proc").glob("[0-9]*/stat"):
    try:
        fields = stat.read_text().rpartition(")")[2].split()
    except OSError:
        continue
    if int(fields[3]) == mine:
        ticks += sum(map(int, fields[11:15]))
print(json.dumps({"start": ready - began, "seconds": done - ready, "cpu": ticks / os.sysconf("SC_CLK_TCK")}))
"""


def run_spark(
    source: Path, registry: Path, output: Path, options: argparse.Namespace, kind: str
) -> tuple[Usage, float]:
    """Return what a run took, and the seconds until Spark had started."""
    scratch = output.with_name("spark")
    arguments = (source, registry, output, options.workers, options.heap, scratch, int(kind == "whole"))
    command = [sys.executable, "-c", SPARK, *map(str, arguments)]
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as printed:
        process = subprocess.Popen(command, stdout=printed, stderr=said, start_new_session=True)
        peak = 0.0
        while process.poll() is None:
            peak = max(peak, memory_of_session(process.pid))
            time.sleep(0.5)
        said.seek(0)
        printed.seek(0)
        if process.returncode:
            sys.exit(f"Spark failed: {said.read()[-2000:]}")
        found: dict[str, float] = json.loads(printed.read().splitlines()[-1])
    shutil.rmtree(scratch, ignore_errors=True)
    return Usage(found["seconds"], found["cpu"], peak), found["start"]


def memory_of_session(session: int) -> float:
    """Memory of all processes of a session, in MB; what several share counts once."""
    total = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if int((folder / "stat").read_text().rpartition(")")[2].split()[3]) == session:
                rolled = (folder / "smaps_rollup").read_text()
                total += int(rolled.partition("\nPss:")[2].split()[0])
        except (OSError, IndexError):  # it has ended meanwhile
            continue
    return total / 1024


def prepare(folder: Path, rows: int, businesses: int | None) -> tuple[Path, Path]:
    """Return customers as Parquet, in as many row groups as a cluster would have parts, and the registry."""
    customers, registry = prepared(folder, rows, businesses)
    source = folder / "customers.parquet"
    pl.scan_csv(customers, infer_schema=False).sink_parquet(source, row_group_size=max(min(rows // 16, 1_000_000), 1))
    customers.unlink()
    return source, registry


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--businesses", type=int, help="in the registry; default: as many as rows")
    parser.add_argument("--kinds", default="alone,rows,whole")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--heap", default="2g", help="memory of Java")
    parser.add_argument("--folder", type=Path, help="where the files go; default: a temporary folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bansong-bench-", dir=options.folder) as name:
        folder = Path(name)
        os.environ["BANSONG_STATE_DIR"] = str(folder / "state")
        source, registry = prepare(folder, options.rows, options.businesses)
        figures: dict[str, Figures] = {}
        for place in range(options.runs):
            for kind in options.kinds.split(","):
                output, started = folder / f"out{place}{kind}.parquet", 0.0
                if kind == "alone":
                    command = ("enrich", source, "-o", output, "--registry", registry, "--progress", "none")
                    usage = once(bansong(*command))
                else:
                    usage, started = run_spark(source, registry, output, options, kind)
                figures.setdefault(kind, Figures(kind)).runs.append(usage)
                size = sum(file.stat().st_size for file in [output, *output.glob("*")] if file.is_file())
                print(
                    f"{kind}, load {os.getloadavg()[1]:.0f}, start {started:.0f} s, {size / 1e6:,.0f} MB written",
                    flush=True,
                )
                shutil.rmtree(output) if output.is_dir() else output.unlink()
        for figure in figures.values():
            print(f"{figure}{options.rows / figure.median:12,.0f} rows/s")


if __name__ == "__main__":
    main()
