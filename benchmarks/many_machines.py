"""Local enrichment of a Parquet file on one machine against Spark with as many workers on the same one.

    python benchmarks/many_machines.py [--rows 1000000] [--runs 1] [--workers 2] [--folder DIR]

One machine: ``bizverify enrich FILE --registry R``, the whole process. Spark: ``spark.enrich`` from Parquet to Parquet
in ``local[N]``, with and without what only the whole file tells; its seconds are those of the job, the start of Java
and of the session stand beside them. CPU is that of all processes: Java, the workers, the program. pyspark must be
installed. The file is that of ``benchmarks/scale.py``, the registry has as many businesses as the file has rows.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import polars as pl
from measure import bizverify, once
from scale import prepared

SPARK = """
import json, os, sys, time, warnings
from pathlib import Path
warnings.simplefilter("ignore")
source, registry, output, workers, whole = sys.argv[1:]
os.environ["PYSPARK_PYTHON"] = sys.executable
began = time.perf_counter()
from pyspark.sql import SparkSession
from bizverify.distributed import spark
session = SparkSession.builder.master(f"local[{workers}]").config("spark.ui.enabled", "false").getOrCreate()
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


def run_spark(source: Path, registry: Path, output: Path, workers: int, *, whole: bool) -> dict[str, float]:
    command = [sys.executable, "-c", SPARK, str(source), str(registry), str(output), str(workers), str(int(whole))]
    done = subprocess.run(command, capture_output=True, text=True, start_new_session=True)
    if done.returncode:
        sys.exit(f"Spark failed: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where the files go; default: a temporary folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bizverify-bench-", dir=options.folder) as name:
        folder = Path(name)
        os.environ["BIZVERIFY_STATE_DIR"] = str(folder / "state")
        customers, registry = prepared(folder, options.rows)
        source = folder / "customers.parquet"
        pl.scan_csv(customers, infer_schema=False).sink_parquet(source, row_group_size=max(options.rows // 16, 1))
        figures: dict[str, list[tuple[float, float]]] = {}
        for place in range(options.runs):
            alone = once(bizverify("enrich", source, "--registry", registry, "--progress", "none"))
            figures.setdefault("one machine", []).append((alone.seconds, alone.cpu))
            for whole in (True, False):
                found = run_spark(source, registry, folder / f"{place}{whole}", options.workers, whole=whole)
                kind = f"Spark, {'whole file' if whole else 'row by row'}"
                figures.setdefault(kind, []).append((found["seconds"], found["cpu"]))
                figures.setdefault("start of Spark", []).append((found["start"], 0.0))
        for kind, runs in figures.items():
            seconds, cpu = (statistics.median(one) for one in zip(*runs, strict=True))
            rate = f"{options.rows / seconds:12,.0f} rows/s" if cpu else ""
            print(f"{kind:<20}{seconds:9.1f} s{rate}{f'   CPU {cpu:8.1f} s' if cpu else ''}")


if __name__ == "__main__":
    main()
