"""Buying lookups one request each, ledger and all, against one plain httpx client.

    python benchmarks/paid_verify.py [--lookups 4000] [--runs 3] [--latency 0]

The fake service runs in a process of its own on loopback. Baseline, in the same run: ``POST /verify`` through one plain
``httpx.AsyncClient()``, with as many at once, nothing written down. Measured: ``bs.enrich(engine="verify")``, the
requests a second between its first and its last request, each of them committed to the ledger before it is sent
and when it is answered. Goals: at 64 in flight at least 5 times the baseline, and not less than at 8.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from measure import fake_service
from scale import make_customers

PLAIN = """
import asyncio, sys, time, httpx
url, at_once, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
async def main():
    async with httpx.AsyncClient(headers={"X-API-Key": "benchmark-key"}, timeout=60) as client:
        left = iter(range(count))
        async def worker():
            for n in left:
                body = {"b_no": str(1_000_000_000 + n), "name": "plain", "address": "plain"}
                (await client.post(url + "/verify", json=body)).raise_for_status()
        started = time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(at_once)))
        print(count / (time.perf_counter() - started))
asyncio.run(main())
"""
OURS = """
import sys, bansong as bs
url, at_once, source, ledger = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
report = bs.enrich(source, source + ".out.csv", engine="verify", base_url=url, api_key=bs.ApiKey("benchmark-key"),
                   ledger=ledger, rate=1e6, concurrency=at_once, timeout=60)
assert report.exit_code == 0, report
print(report.purchase.rate)
"""


def per_second(code: str, *arguments: object) -> float:
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lookups", type=int, default=4000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--latency", type=float, default=0.0, help="seconds that the service takes to answer")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, fake_service(options.latency) as url:
        folder = Path(name)
        found: dict[str, list[float]] = {}
        for run in range(options.runs):
            for at_once in (8, 64):
                plain = per_second(PLAIN, url, at_once, min(options.lookups, 2000))
                source = folder / f"{run}-{at_once}.csv"
                make_customers(source, options.lookups)
                ours = per_second(OURS, url, at_once, source, folder / f"{run}-{at_once}.sqlite")
                found.setdefault(f"plain {at_once}", []).append(plain)
                found.setdefault(f"ours {at_once}", []).append(ours)
        medians = {name: statistics.median(values) for name, values in found.items()}
        for name, values in found.items():
            print(f"{name:<10}{medians[name]:8,.0f}/s  ({min(values):,.0f} to {max(values):,.0f})")
        print(f"64 in flight: {medians['ours 64'] / medians['plain 64']:.1f}x the plain client (goal 5x)")
        print(f"64 against 8: {medians['ours 64'] / medians['ours 8']:.2f}x (goal 1x)")


if __name__ == "__main__":
    main()
