"""Whether `enrich` holds its rate: 50/s over TLS at a round trip of 50 ms, 500/s in plain HTTP at 50 ms of latency.

    python benchmarks/held_rate.py [--seconds 10] [--runs 3]

The fake service runs in a process of its own. Over TLS a relay between them delays every byte by half a round trip in
each direction, and the first byte of a connection by one more, for the handshake of TCP, which loopback does not have.
Goals: 95 % of the rate, with the default concurrency over TLS and 64 in flight in plain HTTP.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import trustme
from measure import fake_service
from scale import make_customers

ROUND_TRIP = 0.05

ENRICH = """
import resource, sys, bansong as bs
began = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
source, url, rate, concurrency = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
report = bs.enrich(source, source + ".out.csv", engine="verify", base_url=url, api_key=bs.ApiKey("benchmark-key"),
                   ledger=source + ".sqlite", rate=rate, concurrency=concurrency)
assert report.exit_code == 0, report
used = resource.getrusage(resource.RUSAGE_SELF)
print(report.purchase.rate, used.ru_utime + used.ru_stime - began)
"""


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float, first: float = 0.0) -> None:
    loop = asyncio.get_running_loop()
    due = 0.0
    with suppress(OSError):
        while data := await reader.read(65536):
            due = max(due, loop.time() + delay + first)
            first = 0.0
            loop.call_at(due, writer.write, data)
        await asyncio.sleep(max(0.0, due - loop.time()) + delay)
    writer.close()


def _relay(port: int, delay: float, context: ssl.SSLContext | None = None) -> asyncio.Task[asyncio.Server]:
    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, onward = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(_pump(reader, onward, delay, 2 * delay), _pump(there, writer, delay))

    return asyncio.ensure_future(asyncio.start_server(serve_one, "127.0.0.1", 0, ssl=context))


@contextmanager
def far_away(url: str, folder: Path) -> Iterator[str]:
    """Put TLS and a round trip before a service; SSL_CERT_FILE names its authority."""
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    os.environ["SSL_CERT_FILE"] = str(folder / "ca.pem")
    ready, ports = threading.Event(), []

    async def run() -> None:
        inner = await _relay(int(url.rpartition(":")[2]), 0.0, context)
        outer = await _relay(inner.sockets[0].getsockname()[1], ROUND_TRIP / 2)
        ports.append(outer.sockets[0].getsockname()[1])
        ready.set()
        await outer.serve_forever()

    threading.Thread(target=asyncio.run, args=[run()], daemon=True).start()
    ready.wait()
    yield f"https://127.0.0.1:{ports[0]}"


def held(url: str, rate: float, concurrency: int, lookups: int, source: Path) -> tuple[float, float]:
    """Lookups a second of one run, and CPU seconds of its process a lookup."""
    make_customers(source, lookups)
    command = [sys.executable, "-c", ENRICH, source, url, rate, concurrency]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True)
    achieved, cpu = map(float, done.stdout.split())
    return achieved, cpu / lookups


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with fake_service(0.0) as near, far_away(near, folder) as far:
            report("TLS", far, 50.0, 8, options, folder)
        with fake_service(ROUND_TRIP) as url:
            report("plain", url, 500.0, 64, options, folder)


def report(what: str, url: str, rate: float, concurrency: int, options: argparse.Namespace, folder: Path) -> None:
    """Print the median of some runs."""
    lookups = int(rate * options.seconds)
    found = [held(url, rate, concurrency, lookups, folder / f"{what}-{run}.csv") for run in range(options.runs)]
    achieved, cpu = (statistics.median(values) for values in zip(*found, strict=True))
    print(f"{what}, {concurrency} in flight: {achieved:.1f}/s of {rate:g}/s, {cpu * 1e6:,.0f} us CPU", flush=True)


if __name__ == "__main__":
    main()
