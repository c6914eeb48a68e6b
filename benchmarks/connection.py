"""Requests a second with 64 in flight: other clients, our ``Client``, and ``enrich`` with its ledger.

    python benchmarks/connection.py [--lookups 2000] [--runs 3] [--latency 0 0.05]

The fake service runs in a process of its own on loopback. Each figure is the median of the runs, in which the clients
take turns: the machine is shared, so only ratios of one table mean something. CPU is that of the asking process for
one request. With latency the ideal is 64 / latency. What is installed of aiohttp, httpx2 and uvloop is measured, too.
Goals: ``enrich`` at least 5 times one httpx client, and 85 % of the ideal at 50 ms.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from itertools import count
from pathlib import Path

from measure import fake_service
from scale import make_customers

AT_ONCE = 64

START = """
import asyncio, json, resource, sys, time
url, at_once, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
def body(n):
    return {"b_no": str(1_000_000_000 + n), "name": "plain", "address": "plain"}
async def at_full_speed(ask):
    left = iter(range(number))
    async def worker():
        for n in left:
            await ask(n)
    started, used = time.perf_counter(), cpu()
    await asyncio.gather(*(worker() for _ in range(at_once)))
    print(number / (time.perf_counter() - started), (cpu() - used) / number)
"""
HTTPX = """
import {httpx} as httpx
async def main():
    async with httpx.AsyncClient(headers={{"X-API-Key": "benchmark-key"}}, timeout=60) as client:
        async def ask(n):
            (await client.post(url + "/verify", json=body(n))).raise_for_status()
        await at_full_speed(ask)
"""
AIOHTTP = """
import aiohttp
async def main():
    connector = aiohttp.TCPConnector(limit=at_once)
    async with aiohttp.ClientSession(headers={"X-API-Key": "benchmark-key"}, connector=connector) as client:
        async def ask(n):
            async with client.post(url + "/verify", json=body(n)) as reply:
                reply.raise_for_status()
                await reply.json()
        await at_full_speed(ask)
"""
CLIENT = """
import bansong as bs
async def main():
    async with bs.Client(url, "benchmark-key", concurrency=at_once, timeout=60) as client:
        async def ask(n):
            given = body(n)
            await client.verify(given["b_no"], given["name"], given["address"])
        await at_full_speed(ask)
"""
RUN = "\nasyncio.run(main())\n"
UVLOOP = "\nimport uvloop\nuvloop.run(main())\n"
ENRICH = """
import bansong as bs
source, ledger, uvloop = sys.argv[4], sys.argv[5], sys.argv[6] == "uvloop"
if not uvloop:
    sys.modules["uvloop"] = None
    import bansong.base.cancel
    bansong.base.cancel.find_spec = lambda name: None
used = cpu()
report = bs.enrich(source, source + ".out.csv", engine="verify", base_url=url, api_key=bs.ApiKey("benchmark-key"),
                   ledger=ledger, rate=1e6, concurrency=at_once, timeout=60)
assert report.exit_code == 0, report
print(report.purchase.rate, (cpu() - used) / number)
"""


def asked(code: str, *arguments: object) -> tuple[float, float]:
    """Requests a second, and CPU seconds a request, of a process that runs ``code``."""
    command = [sys.executable, "-c", START + code, *map(str, arguments)]
    rate, cpu = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return float(rate), float(cpu)


def clients() -> dict[str, str]:
    """What is compared, by name: the code that is run."""
    found = {"one httpx client": HTTPX.format(httpx="httpx") + RUN, "Client": CLIENT + RUN, "enrich": ENRICH}
    if find_spec("httpx2"):
        found["httpx2"] = HTTPX.format(httpx="httpx2") + RUN
    if find_spec("aiohttp"):
        found["aiohttp"] = AIOHTTP + RUN
    if find_spec("uvloop"):
        found |= {"Client, uvloop": CLIENT + UVLOOP, "enrich, uvloop": ENRICH}
    return found


def measured(latency: float, lookups: int, runs: int, folder: Path) -> dict[str, list[tuple[float, float]]]:
    """Each client's figures, run by run in turns."""
    figures: dict[str, list[tuple[float, float]]] = {}
    numbers = count()
    with fake_service(latency) as url:
        for _ in range(runs):
            for name, code in clients().items():
                source = folder / f"{latency}-{next(numbers)}.csv"
                make_customers(source, lookups)
                loop = "uvloop" if name.endswith("uvloop") else "asyncio"
                figure = asked(code, url, AT_ONCE, lookups, source, source.with_suffix(".sqlite"), loop)
                figures.setdefault(name, []).append(figure)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lookups", type=int, default=2000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--latency", type=float, nargs="+", default=[0.0, 0.05])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        for latency in options.latency:
            figures = measured(latency, options.lookups, options.runs, Path(name))
            base = statistics.median(rate for rate, _ in figures["one httpx client"])
            print(f"{latency * 1000:g} ms of latency, {AT_ONCE} in flight, median of {options.runs}")
            for client, runs in figures.items():
                rate = statistics.median(rate for rate, _ in runs)
                cpu = statistics.median(cpu for _, cpu in runs)
                share = f"{rate * latency / AT_ONCE:6.0%} of the ideal" if latency else ""
                print(f"{client:<18}{rate:7,.0f}/s {rate / base:5.1f}x {cpu * 1e6:6,.0f} us CPU {share}", flush=True)


if __name__ == "__main__":
    main()
