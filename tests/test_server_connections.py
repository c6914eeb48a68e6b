"""Connections that ask nothing lock nobody out, wherever they come from."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from bansong.server import app as process
from bansong.server.settings import TrustedProxies
from serving import Served, served

ASK = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
KEPT = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


def line_from(server: Served, address: str = "127.0.0.1") -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20, source_address=(address, 0))


@contextmanager
def lines_from(server: Served, address: str, count: int, *, sent: bytes = b"") -> Iterator[list[socket.socket]]:
    """So many connections of one address, each of which has sent so much."""
    with ExitStack() as stack:
        lines = []
        for _ in range(count):
            lines.append(stack.enter_context(closing(line_from(server, address))))
            lines[-1].sendall(sent)
        yield lines


def said_to(line: socket.socket) -> bytes:
    """What comes until the server closes the connection."""
    said = b""
    try:
        while chunk := line.recv(65536):
            said += chunk
    except ConnectionResetError:
        pass
    return said


def read_until(line: socket.socket, end: bytes) -> bytes:
    said = b""
    while not said.endswith(end):
        said += line.recv(65536)
    return said


def asked(server: Served, address: str) -> bytes:
    """The answer to a request from an address."""
    with closing(line_from(server, address)) as line:
        line.sendall(ASK)
        return said_to(line)


def error_in(said: bytes) -> tuple[int, dict[str, Any]]:
    head, _, body = said.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]


def open_lines(lines: Sequence[socket.socket]) -> int:
    """How many connections the server has not closed."""
    count = 0
    for line in lines:
        line.setblocking(False)
        try:
            while line.recv(65536):
                pass
        except BlockingIOError:
            count += 1
        except ConnectionResetError:
            continue
    return count


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nHost:"])
def test_half_open_connections_of_one_address_lock_nobody_out(tmp_path: Path, sent: bytes) -> None:
    """Many connections of one address that send no head keep no more than the bound, and others are answered."""
    with (
        served(tmp_path / "db.sqlite", connections_per_address=50) as server,
        lines_from(server, "127.0.0.1", 200, sent=sent) as lines,
    ):
        assert asked(server, "127.0.0.2").startswith(b"HTTP/1.1 200")
        assert asked(server, "127.0.0.1").startswith(b"HTTP/1.1 200")  # the newest is not the one that goes
        assert open_lines(lines) <= 50


def test_half_open_connections_of_many_addresses_lock_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the server is full, who has waited longest makes room, not whoever comes."""
    monkeypatch.setattr(process, "_MAX_CONNECTIONS", 60)
    with served(tmp_path / "db.sqlite", connections_per_address=20) as server, ExitStack() as stack:
        for number in range(3, 13):
            stack.enter_context(lines_from(server, f"127.0.0.{number}", 20))
        for _ in range(5):
            assert asked(server, "127.0.0.2").startswith(b"HTTP/1.1 200")


@pytest.mark.scale
def test_two_thousand_half_open_connections_lock_nobody_out(tmp_path: Path) -> None:
    """As many as the server takes on in all, from one address and from eight."""
    resource = pytest.importorskip("resource", reason="this system counts no open files")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 9_000), hard))
    with served(tmp_path / "db.sqlite") as server, ExitStack() as stack:
        stack.enter_context(lines_from(server, "127.0.0.1", 2_000, sent=b"GET"))
        assert asked(server, "127.0.0.2").startswith(b"HTTP/1.1 200")
        for number in range(3, 12):
            stack.enter_context(lines_from(server, f"127.0.0.{number}", 250, sent=b"GET"))
        assert asked(server, "127.0.0.2").startswith(b"HTTP/1.1 200")


def test_whoever_makes_room_in_the_middle_of_a_head_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head of which a part has come is answered 503: nothing was done; one of which nothing has come is closed."""
    monkeypatch.setattr(process, "_MAX_CONNECTIONS", 2)
    with served(tmp_path / "db.sqlite") as server, ExitStack() as stack:
        begun = stack.enter_context(closing(line_from(server)))
        begun.sendall(ASK[:20])
        time.sleep(0.05)
        silent = stack.enter_context(closing(line_from(server)))
        newer = [stack.enter_context(closing(line_from(server))) for _ in range(2)]
        status, error = error_in(said_to(begun))
        assert (status, error["code"]) == (503, "busy")
        assert said_to(silent) == b""
        for line in newer:
            line.sendall(ASK)
            assert said_to(line).startswith(b"HTTP/1.1 200")


def test_idle_connections_go_after_those_that_never_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that is kept between requests goes only when none is left that has sent nothing yet."""
    monkeypatch.setattr(process, "_MAX_CONNECTIONS", 3)
    with served(tmp_path / "db.sqlite") as server, ExitStack() as stack:
        kept = stack.enter_context(closing(line_from(server)))
        kept.sendall(KEPT)
        assert read_until(kept, b"}").startswith(b"HTTP/1.1 200")
        for _ in range(10):
            stack.enter_context(closing(line_from(server)))
        assert asked(server, "127.0.0.2").startswith(b"HTTP/1.1 200")
        kept.sendall(ASK)
        assert said_to(kept).startswith(b"HTTP/1.1 200")


def slow_request(key: str) -> bytes:
    """A request whose body does not come."""
    return (
        b"POST /verify HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nX-API-Key: "
        + key.encode()
        + b"\r\nContent-Length: 100\r\n\r\n"
    )


def until_under_way(server: Served, requests: int) -> None:
    deadline = time.monotonic() + 120
    while server.app.state.context.metrics.under_way < requests and time.monotonic() < deadline:
        time.sleep(0.005)


def test_requests_under_way_make_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all connections have a request under way, a newcomer is told 503 in the one error shape, and closed."""
    monkeypatch.setattr(process, "_MAX_CONNECTIONS", 3)
    with served(tmp_path / "db.sqlite") as server:
        with lines_from(server, "127.0.0.1", 3, sent=slow_request(server.key())) as lines:
            until_under_way(server, 3)
            said = asked(server, "127.0.0.2")
            lines[0].sendall(b'{"b_no":"1248100998"}'.ljust(100))
            assert lines[0].recv(65536).startswith(b"HTTP/1.1 200")
        assert b"retry-after: 5" in said.lower()
        status, error = error_in(said)
        assert (status, error["code"]) == (503, "busy")


def test_an_address_with_requests_under_way_is_told_its_bound(tmp_path: Path) -> None:
    """Over its bound, an address is told 429 with the bound's name, and that it is not the quota; others are served."""
    with served(tmp_path / "db.sqlite", connections_per_address=3) as server:
        with lines_from(server, "127.0.0.1", 3, sent=slow_request(server.key())):
            until_under_way(server, 3)
            status, error = error_in(asked(server, "127.0.0.1"))
            assert asked(server, "127.0.0.2").startswith(b"HTTP/1.1 200")
        assert (status, error["code"], error["bound"]) == (429, "limit_exceeded", "connections_per_address")
        assert (error["limit"], error["used"]) == (3, 3)


def test_one_connection_an_address_serves_one_client_after_the_other(tmp_path: Path) -> None:
    """With a bound of one: a kept connection takes request after request, and makes room for the next when it rests."""
    with served(tmp_path / "db.sqlite", connections_per_address=1) as server, closing(line_from(server)) as kept:
        for _ in range(3):
            kept.sendall(KEPT)
            assert read_until(kept, b"}").startswith(b"HTTP/1.1 200")
        for _ in range(3):  # a monitor beside it, and one that scrapes the metrics
            assert asked(server, "127.0.0.1").startswith(b"HTTP/1.1 200")
        assert said_to(kept) == b""
        with server.client() as client:  # keeps its connection, whose place the monitor takes each time
            for _ in range(3):
                assert client.verify("1248100998")
                assert asked(server, "127.0.0.1").startswith(b"HTTP/1.1 200")


def test_a_body_that_is_only_drained_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests without a key whose bodies do not come hold no place: what is answered waits for nobody."""
    monkeypatch.setattr(process, "_MAX_CONNECTIONS", 5)
    with (
        served(tmp_path / "db.sqlite") as server,
        lines_from(server, "127.0.0.1", 5, sent=slow_request("nobody's")) as lines,
    ):
        for line in lines:
            assert line.recv(65536).startswith(b"HTTP/1.1 401")
        for _ in range(8):
            assert asked(server, "127.0.0.2").startswith(b"HTTP/1.1 200")


def test_a_client_that_takes_nothing_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that ask for much and read none of it do not keep others out until their deadline."""
    monkeypatch.setattr(process, "_MAX_CONNECTIONS", 4)
    many = b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 200
    with served(tmp_path / "db.sqlite") as server, lines_from(server, "127.0.0.1", 4, sent=many):
        deadline = time.monotonic() + 120
        while (said := asked(server, "127.0.0.2")).startswith(b"HTTP/1.1 503") and time.monotonic() < deadline:
            time.sleep(0.05)
        assert said.startswith(b"HTTP/1.1 200")


def test_a_trusted_proxy_has_as_many_connections_as_it_needs(tmp_path: Path) -> None:
    """All clients come over the proxy's address: the bound of one address is not for it."""
    proxies = TrustedProxies(["127.0.0.1"])
    with (
        served(tmp_path / "db.sqlite", connections_per_address=5, trusted_proxies=proxies) as server,
        lines_from(server, "127.0.0.1", 30) as lines,
    ):
        assert asked(server, "127.0.0.1").startswith(b"HTTP/1.1 200")
        assert open_lines(lines) == 30
