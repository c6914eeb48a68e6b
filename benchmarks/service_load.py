"""``bansong serve`` under load, against a bare Starlette endpoint behind the same uvicorn settings.

    python benchmarks/service_load.py [--requests 2000] [--runs 9] [--at-once 64] [--registry FILE] [--gazetteer FILE]
                                      [--keep DIR | --addresses FILE | --synthetic] [--flat 100000]

Baseline: an endpoint that reads the body and returns a constant JSON of the same size. Measured, in turn with it:
``POST /verify``, every lookup another one, and one lookup again and again; each is taken out of the quota durably
before it is answered. Servers and the client, which keeps ``--at-once`` connections busy, are processes of their own on
loopback. Many short runs in turn, and the ratio is the median of those of neighbours: the baseline's own rate changes
by half within minutes on shared machines. Goal: distinct lookups at 0.35 of the baseline's rate at 64 at once, 0.25
with a province's gazetteer, 0.2 with the nation's. CPU is the server's own, of all its threads.

The lookups have the addresses of ``normal_run.py``, as people write them, from its folder ``--keep`` (with its
gazetteer, unless another is given), or those of the sample where there is none. ``--addresses`` takes them from a file,
one a line; ``--synthetic`` names numbers on one road, which cost a third. ``--flat N`` sends N distinct lookups more,
and prints the server's memory on the way.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import polars as pl
from measure import bansong

from bansong.server.settings import BUILT_IN

HEADERS_END = b"\r\n\r\n"
BARE = """
import sys
from pathlib import Path
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
from bansong.server.app import listen, server_for, url_of
from bansong.server.settings import Settings
answer = sys.argv[1].encode()
async def verify(request):
    await request.body()
    return Response(answer, media_type="application/json")
listener = listen("127.0.0.1", 0)
server = server_for(Settings(db=Path("unused")), lambda: print(url_of(listener), file=sys.stderr, flush=True))
server.config.app = Starlette(routes=[Route("/verify", verify, methods=["POST"])])
server.run(sockets=[listener])
"""


@dataclass
class Load:
    """What one run of the client found: requests a second, and seconds that the middle and slowest requests took."""

    rate: float
    p50: float
    p99: float


class Connection(asyncio.Protocol):
    """Sends one request after the other, each when the answer to the one before is there."""

    def __init__(self, requests: Iterator[bytes], took: list[float], ended: asyncio.Future[None]) -> None:
        self._requests = requests
        self._took = took
        self._ended = ended
        self._got = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._send()

    def data_received(self, data: bytes) -> None:
        self._got += data
        head, end, body = self._got.partition(HEADERS_END)
        if not end or len(body) < int(head.lower().partition(b"content-length:")[2].partition(b"\r")[0]):
            return
        self._took.append(time.perf_counter() - self._since)
        if not self._got.startswith(b"HTTP/1.1 200"):
            self._ended.set_exception(RuntimeError(self._got.decode()))
            self._transport.close()
            return
        self._got = b""
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._ended.done():
            self._ended.set_exception(exc or ConnectionError("the server closed the connection"))

    def _send(self) -> None:
        request = next(self._requests, None)
        if request is None:
            self._ended.set_result(None)
            self._transport.close()
            return
        self._since = time.perf_counter()
        self._transport.write(request)


async def load(url: str, requests: list[bytes], at_once: int) -> Load:
    """Send the requests over ``at_once`` connections."""
    loop, left, took = asyncio.get_running_loop(), iter(requests), list[float]()
    host, port = urlsplit(url).hostname, urlsplit(url).port
    ends = [loop.create_future() for _ in range(at_once)]
    started = time.perf_counter()
    for end in ends:
        await loop.create_connection(lambda end=end: Connection(left, took, end), host, port)  # type: ignore[misc]
    await asyncio.gather(*ends)
    seconds = time.perf_counter() - started
    took.sort()
    return Load(len(took) / seconds, took[len(took) // 2], took[len(took) * 99 // 100])


def post(key: str, number: int, addresses: list[str] | None = None) -> bytes:
    """One request about a business of its own."""
    lookup = {
        "b_no": f"{1_248_100_000 + number}",
        "name": f"주식회사 가나다 {number}",
        "address": addresses[number % len(addresses)] if addresses else f"경기 수원시 영통구 삼성로 {number}",
    }
    body = json.dumps(lookup, ensure_ascii=False).encode()
    head = f"POST /verify HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-Key: {key}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def from_client(url: str, key: str, first: int, count: int, same: bool, options: argparse.Namespace) -> Load:
    """A run of the client in a process of its own."""
    arguments = ["client", url, key, str(options.addresses or ""), *map(str, (first, count, int(same)))]
    arguments.append(str(options.at_once))
    said = subprocess.run([sys.executable, __file__, *arguments], check=True, capture_output=True, text=True).stdout
    return Load(**json.loads(said))


def client(url: str, key: str, file: str, *numbers: str) -> None:
    """What :func:`from_client` runs."""
    first, count, same, at_once = map(int, numbers)
    addresses = Path(file).read_text().splitlines() if file else None
    requests = [post(key, first if same else first + each, addresses) for each in range(count)]
    print(json.dumps(vars(asyncio.run(load(url, requests, at_once)))))


@contextmanager
def server(command: list[str]) -> Iterator[tuple[str, int]]:
    """Yield base URL and process id of a server that says its URL on stderr."""
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(command, stderr=log, stdout=subprocess.DEVNULL) as process,
    ):
        try:
            url = ""
            while not url:
                if process.poll() is not None:
                    log.seek(0)
                    sys.exit(f"the server did not start: {log.read()}")
                time.sleep(0.05)
                log.seek(0)
                url = next((word.strip(';,."') for word in log.read().split() if word.startswith("http://")), "")
                log.seek(0, 2)
            yield url, process.pid
        finally:
            process.terminate()


def memory(pid: int, which: str) -> float:
    """The memory of a process in MB: ``VmRSS``, what it has now, or ``VmHWM``, the most that it has had."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition(f"{which}:")[2].split()[0]) / 1024


def processor_time(pid: int) -> float:
    """Seconds that a process has computed, in all its threads."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def print_memory(url: str, key: str, pid: int, options: argparse.Namespace) -> None:
    """Send ``--flat`` distinct lookups in twenty parts, and print the server's memory after each."""
    each, first = options.flat // 20, 1 + (options.runs + 1) * options.requests
    found = []
    for part in range(20):
        from_client(url, key, first + part * each, each, False, options)
        found.append(f"{memory(pid, 'VmRSS'):,.0f}")
    print(f"memory after each {each:,} of {options.flat:,} lookups more, MB: {' '.join(found)}", flush=True)


def answer_of(url: str, key: str) -> str:
    """One answer, for the baseline to be as long."""
    body = post(key, 0).partition(HEADERS_END)[2]
    headers = {"X-API-Key": key, "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(f"{url}/verify", body, headers)) as answer:
        return str(answer.read().decode())


def measured(options: argparse.Namespace, db: Path) -> tuple[dict[str, list[Load]], dict[str, float], float]:
    """The runs of each kind, the server's seconds of CPU in these, and its peak memory."""
    plans = db.with_name("plans.toml")  # a key that asks as often as it can
    plans.write_text(BUILT_IN.read_text().replace("requests_per_second = 500", "requests_per_second = 1_000_000"))
    make = bansong("keys", "create", "--db", db, "--plan", "enterprise", "--quota", 100_000_000, "--plans", plans)
    key = subprocess.run(make, check=True, capture_output=True, text=True).stdout.strip()
    indexes = [f"--{name}={getattr(options, name)}" for name in ("registry", "gazetteer") if getattr(options, name)]
    runs: dict[str, list[Load]] = {"bare": [], "distinct": [], "repeated": []}
    spent = dict.fromkeys(runs, 0.0)
    with server(bansong("serve", "--db", db, "--port", 0, "--plans", plans, *indexes)) as (ours, pid):
        command = [sys.executable, "-c", BARE, answer_of(ours, key)]
        with server(command) as (bare, other):
            for run in range(options.runs + 1):  # the first is not counted
                first = 1 + run * options.requests
                for kind, loads in runs.items():
                    url = bare if kind == "bare" else ours
                    same = kind == "repeated"
                    before = processor_time(asked := other if kind == "bare" else pid)
                    found = from_client(url, key, first, options.requests, same, options)
                    if run:
                        loads.append(found)
                        spent[kind] += processor_time(asked) - before
        if options.flat:
            print_memory(ours, key, pid, options)
        return runs, spent, memory(pid, "VmHWM")


SAMPLE = Path(__file__).parents[1] / "sample_data" / "customers.csv"


def take_real_addresses(options: argparse.Namespace, target: Path) -> str:
    """Write the addresses of the normal run, or of the sample, to ``target`` for the client; return their name."""
    if options.synthetic or options.addresses:
        return str(options.addresses or "numbers on one road")
    found = sorted(options.keep.glob("normal_*[0-9].csv"), key=lambda file: file.stat().st_size)
    source = found[0] if found else SAMPLE
    if found and options.gazetteer is None:
        options.gazetteer = options.keep / "nation.parquet"
    addresses = pl.read_csv(source, infer_schema=False)["주소"].drop_nulls().unique()
    # one wrong letter and 'nowhere' come in turn in the file: shuffled, each request has its chance of them
    lines = [" ".join(address.split()) for address in addresses.sample(fraction=1.0, shuffle=True, seed=1)]
    target.write_text("\n".join(lines), encoding="utf-8")
    options.addresses = target
    return f"{len(lines):,} of {source}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--at-once", type=int, default=64)
    parser.add_argument("--registry", type=Path)
    parser.add_argument("--gazetteer", type=Path)
    parser.add_argument("--addresses", type=Path)
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir(), "bansong-nation"))
    parser.add_argument("--synthetic", action="store_true")
    parser.add_argument("--flat", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(f"addresses: {take_real_addresses(options, Path(folder) / 'addresses.txt')}", flush=True)
        runs, spent, most = measured(options, Path(folder) / "service.sqlite")
    print(f"gazetteer: {options.gazetteer}")
    for kind, loads in runs.items():
        low, middle, high = (f(each.rate for each in loads) for f in (min, statistics.median, max))
        p50, p99 = (statistics.median(getattr(each, name) for each in loads) * 1000 for name in ("p50", "p99"))
        cpu = spent[kind] / (len(loads) * options.requests) * 1000
        rates = f"{middle:8,.0f}/s  ({low:,.0f} to {high:,.0f})"
        print(f"{kind:<10}{rates}  p50 {p50:.1f} ms  p99 {p99:.1f} ms  CPU {cpu:.2f} ms a request")
    for kind, goal in (("distinct", " (goal 0.35; with a gazetteer of the nation 0.2)"), ("repeated", "")):
        ratios = sorted(ours.rate / bare.rate for ours, bare in zip(runs[kind], runs["bare"], strict=True))
        print(
            f"{kind} lookups: {statistics.median(ratios):.2f} of bare Starlette"
            f" ({ratios[0]:.2f} to {ratios[-1]:.2f}){goal}; CPU {spent[kind] / spent['bare']:.1f} times its"
        )
    print(f"peak memory of the server: {most:,.0f} MB")


if __name__ == "__main__":
    if sys.argv[1:2] == ["client"]:
        client(*sys.argv[2:])
    else:
        main()
