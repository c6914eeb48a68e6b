"""Watch lists of ``bansong serve`` at the socket, against a bare Starlette endpoint that sends the same bytes.

    python benchmarks/watch_lists.py [--watches 100000] [--runs 30]

Timed from the request to the last byte of the answer, over one kept connection on loopback; servers are processes of
their own. ``GET /watch`` unchanged since it was asked for last, and right after the list was changed; ``GET
/watch/{id}/history``; ``POST /watch``; the bare endpoint in turn with them; and ``GET /healthz`` while another
connection asks for the list without a pause. Goal: lists and history of 100,000 watches under 50 ms at the median.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

from service_load import server

from bansong.server import keys as key_table
from bansong.server.store import open_server_file
from bansong.watch import store
from bansong.watch.store import Business

HEADERS_END, LAST_CHUNK = b"\r\n\r\n", b"\r\n0\r\n\r\n"
BARE = """
import sys
from pathlib import Path
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
from bansong.server.app import listen, server_for, url_of
from bansong.server.settings import Settings
body = Path(sys.argv[1]).read_bytes()
async def watch(request):
    return Response(body, media_type="application/json")
listener = listen("127.0.0.1", 0)
server = server_for(Settings(db=Path("unused")), lambda: print(url_of(listener), file=sys.stderr, flush=True))
server.config.app = Starlette(routes=[Route("/watch", watch)])
server.run(sockets=[listener])
"""


class Line:
    """A connection that is kept."""

    def __init__(self, url: str, key: str = "") -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname or "", parts.port or 0))
        self._key = key
        self._room = memoryview(bytearray(64 << 20))  # made once: the client's own copies are not what is timed

    def ask(self, method: str, path: str, body: bytes = b"") -> tuple[float, bytes]:
        """Return the milliseconds to the last byte, and the body."""
        ask = f"{method} {path} HTTP/1.1\r\nHost: x\r\nX-API-Key: {self._key}\r\nContent-Type: application/json\r\n"
        request = f"{ask}Content-Length: {len(body)}\r\n\r\n".encode() + body
        started = time.perf_counter()
        self._socket.sendall(request)
        got = begin = wanted = 0
        while not wanted or got < wanted:
            size = self._socket.recv_into(self._room[got:])
            if not size:
                sys.exit("the server closed the connection")
            got += size
            if not begin and (end := bytes(self._room[: min(got, 1024)]).find(HEADERS_END)) > 0:
                begin, head = end + len(HEADERS_END), bytes(self._room[:end]).lower()
                length = re.search(rb"content-length: *(\d+)", head)
                wanted = begin + int(length[1]) if length else 0
            if begin and not wanted and bytes(self._room[got - len(LAST_CHUNK) : got]) == LAST_CHUNK:
                wanted = got
        took = (time.perf_counter() - started) * 1000
        content = bytes(self._room[begin:wanted])
        if not length:
            content = joined(content)
        status = head[:12]
        if not status.startswith(b"http/1.1 2"):
            sys.exit(f"{method} {path}: {content[:300]!r}")
        return took, content

    def close(self) -> None:
        self._socket.close()


def joined(chunks: bytes) -> bytes:
    found, place = [], 0
    while size := int(chunks[place : (end := chunks.index(b"\r\n", place))], 16):
        found.append(chunks[end + 2 : end + 2 + size])
        place = end + 4 + size
    return b"".join(found)


def filled(db: Path, count: int) -> tuple[str, str]:
    """Make a file with one key and its watches, each with five changes of grade; return key and a watch's id."""
    now = time.time()
    with closing(open_server_file(db)) as connection:
        connection.execute("BEGIN")
        key, secret = key_table.create_key(connection, plan="enterprise", quota=10, now=now)
        entries = (
            Business(f"{n:010}", f"주식회사 가나다 {n}", f"서울특별시 중구 세종대로 {n}") for n in range(1, count + 1)
        )
        store.add_many(connection, key.id, entries, now)
        connection.execute(
            "UPDATE watches SET checked = ?1, due = ?1 + 86400 + number, biz_status = 'active', grade = 'B'", (now,)
        )
        _changes(connection, now)
        watch_id: str = connection.execute("SELECT id FROM watches WHERE number = ?", (count // 2,)).fetchone()[0]
        connection.execute("COMMIT")
    return secret, watch_id


def _changes(connection: sqlite3.Connection, now: float) -> None:
    for place in range(5):
        connection.execute(
            "INSERT INTO watch_history (watch, at, before, after, biz_status)"
            " SELECT number, ?, 'A', 'B', 'active' FROM watches",
            (now + place,),
        )


def told(name: str, times: list[float], bare: float | None = None) -> None:
    """Print one line of figures."""
    times = sorted(times)
    ratio = "" if bare is None else f"   {statistics.median(times) / bare:5.2f} x the bare endpoint"
    print(
        f"{name:<44} p50 {statistics.median(times):7.1f} ms   p95 {times[int(len(times) * 0.95)]:7.1f} ms"
        f"   max {times[-1]:7.1f} ms{ratio}"
    )


def beside(url: str, key: str, runs: int, ask: Callable[[], float]) -> list[float]:
    """Time requests while another connection asks for the list without a pause."""
    going = threading.Event()
    going.set()
    other = Line(url, key)

    def pull() -> None:
        while going.is_set():
            other.ask("GET", "/watch")

    puller = threading.Thread(target=pull)
    puller.start()
    try:
        return [ask() for _ in range(runs)]
    finally:
        going.clear()
        puller.join()
        other.close()


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--watches", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=30)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        db, same = Path(folder) / "db.sqlite", Path(folder) / "body.json"
        key, watch_id = filled(db, options.watches)
        with server([sys.executable, "-m", "bansong", "serve", "--db", str(db), "--port", "0"]) as (url, _):
            line = Line(url, key)
            _, body = line.ask("GET", "/watch")
            same.write_bytes(body)
            with server([sys.executable, "-c", BARE, str(same)]) as (bare_url, _):
                measure(line, Line(bare_url), url, key, watch_id, body, options.runs)


def measure(line: Line, bare: Line, url: str, key: str, watch_id: str, body: bytes, runs: int) -> None:
    """Take all figures, each in turn with the others, and print them."""
    total = json.loads(body)["total"]
    print(f"{total:,} watches, {len(body) / 1e6:.1f} MB, {runs} runs each")
    kept, changed, constant, history, add = (list[float]() for _ in range(5))
    for _ in range(runs):
        constant.append(bare.ask("GET", "/watch")[0])
        kept.append(line.ask("GET", "/watch")[0])
        history.append(line.ask("GET", f"/watch/{watch_id}/history")[0])
    for place in range(runs):
        entry = json.dumps({"biz_no": "0000000001", "name": f"이름 {place}"}).encode()
        add.append(line.ask("POST", "/watch", entry)[0])
        changed.append(line.ask("GET", "/watch")[0])
    middle = statistics.median(constant)
    told("bare endpoint, the same bytes", constant)
    told("GET /watch, unchanged", kept, middle)
    told("GET /watch, just changed", changed, middle)
    told("GET /watch/{id}/history", history)
    told("POST /watch (a known one, durable)", add)
    other = Line(url, key)
    told("GET /healthz alone", [other.ask("GET", "/healthz")[0] for _ in range(runs * 5)])
    told("GET /healthz while lists are sent", beside(url, key, runs * 5, lambda: other.ask("GET", "/healthz")[0]))


if __name__ == "__main__":
    main()
