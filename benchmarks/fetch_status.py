"""Fetching statuses: a million numbers against a fake of the tax authority's API that takes 50 ms a call.

    python benchmarks/fetch_status.py [--numbers 1000000] [--latency 0.05] [--concurrency 8]

The fake runs in a process of its own on loopback. Measured: calls in flight, calls a second against the ideal
(concurrency / latency), CPU seconds and peak memory of the process that fetches; then a second run, which finds all of
them fresh in the store. Goals: at most 500 MB, no number asked twice.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

FETCH = """
import asyncio, json, resource, sys, time
import polars as pl
import bansong as bs
from bansong.base.options import StatusOptions
from bansong.reference.fetch import fetch_statuses
url, count, concurrency, store = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
numbers = pl.Series("b_no", range(1_000_000_001, 1_000_000_001 + count), pl.UInt64)
options = StatusOptions(key=bs.NtsKey("test-key"), base_url=url, store=store, rate=1e6, concurrency=concurrency)
began = time.perf_counter()
report = asyncio.run(fetch_statuses(numbers, options))
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({
    "whole": time.perf_counter() - began, "seconds": report.seconds, "calls": report.calls, "answered": report.answered,
    "halt": report.halt, "cpu": used.ru_utime + used.ru_stime, "peak": used.ru_maxrss / 1024,
}))
"""


def fetch(*arguments: object) -> dict[str, float]:
    command = [sys.executable, "-c", FETCH, *map(str, arguments)]
    found: dict[str, float] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--numbers", type=int, default=1_000_000)
    parser.add_argument("--latency", type=float, default=0.05, help="seconds that a call takes")
    parser.add_argument("--concurrency", type=int, default=8)
    given = parser.parse_args()
    fake = [sys.executable, "-m", "bansong.testing", "nts", "--latency", str(given.latency)]
    with tempfile.TemporaryDirectory() as folder, subprocess.Popen(fake, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        try:
            store = Path(folder) / "statuses.sqlite"
            first = fetch(url, given.numbers, given.concurrency, store)
            second = fetch(url, given.numbers, given.concurrency, store)
            with urllib.request.urlopen(f"{url}/counts") as reply:
                counts = json.load(reply)
            size = store.stat().st_size / 1e6
        finally:
            process.terminate()
    assert first["halt"] is None, first["halt"]
    ideal, rate = given.concurrency / given.latency, first["calls"] / first["seconds"]
    print(
        f"asked    {first['answered']:,} numbers in {first['calls']:,} calls, {first['seconds']:.1f} s, {first['halt']}"
    )
    print(f"in flight at most {counts['most_in_flight']}, asked again {counts['asked_again']}")
    print(f"calls    {rate:,.0f}/s of the ideal {ideal:,.0f}/s: {rate / ideal:.2f}")
    print(f"process  CPU {first['cpu']:.1f} s, peak {first['peak']:,.0f} MB (goal 500); store {size:.0f} MB")
    print(f"again    {second['answered']:,} asked, {second['whole']:.1f} s, peak {second['peak']:,.0f} MB")


if __name__ == "__main__":
    main()
