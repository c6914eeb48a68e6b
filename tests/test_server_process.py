"""The server's connections, its log and who is in it, its start and an end in good order."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import polars as pl
import pytest
from click.testing import CliRunner

from bansong.base.messages import use_audience
from bansong.cli.app import app as cli
from bansong.cli.options import COMMAND_LINE
from bansong.errors import StoreError, UsageError
from bansong.server import app as process
from bansong.server import bodies
from bansong.server.app import listen, server_for, supervise
from bansong.server.lookups import Microbatcher, PaidLookups
from bansong.server.metrics import ServerMetrics
from bansong.server.settings import (
    LOGGER_ROOT,
    REQUEST_ID,
    Clock,
    Settings,
    client_of,
    loggable_message,
    parse_proxies,
)
from serving import (
    HTTP,
    Account,
    Served,
    ServedProcess,
    answers_held,
    error_in,
    hosted,
    line_from,
    logged,
    make_key,
    refused,
    rows_of,
    said_to,
    served,
)

GIVEN = "6f3c1b0d9a8e4f57b2c4d6e8f0a1b3c5"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("process") / "db.sqlite") as running:
        yield running


def requests(lines: list[dict[str, Any]], path: str = "") -> list[dict[str, Any]]:
    return [line for line in lines if line["event"] == "request" and line["path"] in (path or line["path"])]


# ----------------------------------------------------------------------------------------------------- connections


@pytest.mark.parametrize(
    "sent", [b"\x16\x03\x01\x02\x00\x01\x00\x01", b"GET\r\n\r\n", b"GET /me HTTP/1.1\r\nX: " + b"x" * 40_000]
)
def test_what_is_no_http_is_refused(server: Served, sent: bytes) -> None:
    """TLS on the plain port, a line without a path, a head without end."""
    with line_from(server) as line:
        line.sendall(sent + b"\r\n\r\n")
        assert line.recv(65536).startswith(b"HTTP/1.1 400")


def test_a_refused_body_is_read_on_for_a_while(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that is still sending reads why it is refused, and is cut off if it does not stop."""
    head = b"POST /nowhere HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-API-Key: " + server.key().encode()
    with line_from(server) as line:
        line.sendall(head + b"\r\nContent-Length: 8000000\r\n\r\n")
        for _ in range(80):
            line.sendall(b"x" * 100_000)
        status, error = error_in(said_to(line))
    assert (status, error["code"]) == (404, "not_found")
    monkeypatch.setattr(bodies, "LINGER_SECONDS", 0.2)
    with line_from(server) as line:
        line.sendall(b"POST /verify HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n")
        with pytest.raises(OSError):  # noqa: PT011 - reset or broken pipe, as it comes
            send_for_long(line)


def send_for_long(line: socket.socket) -> None:
    for _ in range(1_500):
        line.sendall(b"x" * 1000)
        time.sleep(0.01)


def test_a_body_with_two_lengths_is_refused_and_the_connection_closed(server: Served) -> None:
    """What follows on the connection is not answered: a proxy may read it as part of the body."""
    head = b"POST /verify HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nX-API-Key: " + server.key().encode()
    following = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    with line_from(server) as line:
        line.sendall(head + b"\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + following)
        status, error = error_in(said_to(line))  # more than one answer would not be JSON
    assert (status, error["code"]) == (400, "bad_http")


def test_requests_behind_each_other_on_one_connection_are_answered(server: Served) -> None:
    one = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    with line_from(server) as line:
        line.sendall(one + one)
        line.sendall(one.replace(b"Host", b"Connection: close\r\nHost"))
        assert said_to(line).count(b"HTTP/1.1 200") == 3


def test_no_cache_keeps_what_a_key_was_answered_and_no_key_is_guessed(server: Served) -> None:
    for path in ("/me", "/nowhere"):
        for headers in ({"X-API-Key": server.key()}, {}):
            assert HTTP.get(server.url + path, headers=headers).headers.get_list("cache-control") == ["no-store"]
    one, two = server.key(), server.key()
    for sent, status in (((one, two), 400), ((one, one), 200)):
        headers = [("X-API-Key", key) for key in sent]
        assert HTTP.get(f"{server.url}/me", headers=headers).status_code == status


# ----------------------------------------------------------------------------------------------- start, work, end


def test_a_request_that_outlives_the_server_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is under way when the time to stop is over gets a logged 503, and its lookup back."""
    begun, go = answers_held(monkeypatch)
    monkeypatch.setattr(process, "_SHUTDOWN_GRACE_S", 0.1)
    found: list[httpx.Response] = []
    with logged() as lines:
        with served(tmp_path / "db.sqlite") as server:
            key = server.account()
            asking = threading.Thread(target=lambda: found.append(key.verify()))
            asking.start()
            assert begun.wait(30)
            threading.Timer(0.5, go.set).start()
        asking.join()
    assert refused(found[0]) == (503, "busy")
    assert rows_of(tmp_path / "db.sqlite", "SELECT used FROM usage") == [(0,)]
    assert [line["status"] for line in requests(lines, "/verify")] == [503]


@pytest.mark.process
def test_the_process_ends_in_good_order(tmp_path: Path) -> None:
    """On SIGTERM the server ends with exit code 0, its lock is free, and all it took is in the file."""
    process = ServedProcess(tmp_path / "db.sqlite")
    key = Account(Served(process.start(), process.db, None), make_key(process.db))
    assert (key.verify().status_code, process.stop()) == (200, 0)
    key = Account(Served(process.start(), process.db, None), key.secret)
    assert (key.used(), process.stop()) == (1, 0)


def test_what_runs_beside_the_requests_is_begun_again() -> None:
    """Work that fails, or panics, after longer and longer pauses, which are short again in the end."""
    now, pauses, failures = [0.0], list[float](), [0.0, 0.0, 0.0, 0.0, 700.0, 0.0]

    async def work() -> None:
        if not failures:
            raise asyncio.CancelledError
        now[0] += failures.pop(0)
        raise pl.exceptions.PanicException("broken") if len(failures) % 2 else ValueError("broken")

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(supervise("working", work, Clock(lambda: now[0], sleep), ServerMetrics()))
    assert pauses == [1, 5, 30, 60, 1, 5]


def test_a_place_that_cannot_be_used_is_said_and_not_made(tmp_path: Path) -> None:
    """Another server's file, a port that is taken, a folder that is not there: the server does not start."""

    def begun() -> None:
        raise AssertionError("it started all the same")

    def start(db: Path) -> None:
        with listen("127.0.0.1", 0) as spare:
            server_for(Settings(db=db), begun).run(sockets=[spare])

    with hosted(tmp_path / "a.sqlite"), pytest.raises(StoreError, match="another server is running on it"):
        start(tmp_path / "a.sqlite")
    (tmp_path / "db.sqlite.files").write_bytes(b"")
    for db, said in ((tmp_path / "none" / "db.sqlite", "No such file"), (tmp_path / "db.sqlite", "File exists")):
        with pytest.raises(StoreError, match=f"{db.name}.*cannot be used: {said}"):
            start(db)
    assert not (tmp_path / "none").exists()
    with listen("127.0.0.1", 0) as taken, pytest.raises(UsageError, match="cannot listen there"):
        listen("127.0.0.1", taken.getsockname()[1])


@pytest.mark.parametrize("given", [("--keep-days", "nan"), ("--keep-days", "inf"), ("--learn-hours", "nan")])
def test_a_time_that_is_none_is_refused(tmp_path: Path, given: tuple[str, str]) -> None:
    result = CliRunner().invoke(cli, ["serve", "--db", str(tmp_path / "db.sqlite"), "--port", "0", *given])
    assert (result.exit_code, list(tmp_path.iterdir()), given[0] in result.stderr) == (2, [], True)


@pytest.mark.parametrize(
    ("host", "more", "is_warned"),
    [("localhost", [], False), ("0.0.0.0", [], True), ("0.0.0.0", ["--trusted-proxy", "10.0.0.2"], False)],
)
def test_listening_to_other_machines_without_tls_is_warned_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, more: list[str], is_warned: bool
) -> None:
    def listen_only(_: Settings, host: str, port: int, on_start: Callable[[str], None]) -> None:
        with listen(host, port) as listener:
            on_start(process.url_of(listener))

    monkeypatch.setattr(process, "run", listen_only)
    words = ["serve", "--db", str(tmp_path / "db.sqlite"), "--host", host, "--port", "0", *more]
    with logged():  # the log that a server sets up is not that of the tests behind
        started = CliRunner().invoke(cli, words)
    assert (started.exit_code, started.stderr.count("in the clear")) == (0, is_warned)


def test_the_bound_of_connections_is_taken_and_said_to_be_ignored(tmp_path: Path) -> None:
    """A unit file of an earlier release still starts the service."""
    with logged() as lines, hosted(tmp_path / "db.sqlite", connections_per_address=50):
        pass
    assert [line["level"] for line in lines if "connections_per_address is ignored" in line["event"]] == ["warning"]
    words = ["serve", "--check", "--db", str(tmp_path / "new.sqlite"), "--port", "0", "--connections-per-address", "50"]
    assert CliRunner().invoke(cli, words).exit_code == 0


# ------------------------------------------------------------------------------------------------------------ log


def test_the_log_says_what_is_wrong_with_the_file_and_nothing_of_anybody(tmp_path: Path) -> None:
    """Of the server's own file the reason is logged, also from within a group; of other errors the kind and place."""
    with logged() as lines:
        with hosted(tmp_path / "db.sqlite") as server:
            key = server.account()
            key.verify(name="홍길동상회", address="서울 중구 세종대로 110")
            server.http.request("1248100998", f"{server.url}/me")
        logging.getLogger("asyncio").error("Exception in callback told('홍길동상회')")
        stores = (StoreError("db.sqlite: is read-only"), ExceptionGroup("x", [StoreError("db.sqlite: is read-only")]))
        for error in (*stores, ValueError("홍길동상회")):
            try:
                raise error
            except Exception:
                logging.getLogger(f"{LOGGER_ROOT}.server").exception("a step failed")
    (request,) = requests(lines, "/verify")
    assert (request["method"], request["status"], request["ms"] > 0) == ("POST", 200, True)
    failed = [line for line in lines if line["event"] == "a step failed"]
    assert [line.get("reason") for line in failed] == ["db.sqlite: is read-only"] * 2 + [None]
    assert (failed[2]["error"], failed[2]["trace"][0].split(":")[0]) == ("ValueError", "test_server_process.py")
    assert any(line["logger"] == "asyncio" and line["level"] == "error" for line in lines)
    assert not [word for word in ("1248100998", "홍길동", "세종대로", key.secret) if word in str(lines)]
    assert loggable_message(ValueError("홍길동상회")) == "ValueError"
    assert not logging.getLogger("python_multipart.multipart").isEnabledFor(logging.CRITICAL)  # it quotes forms


def test_each_answer_says_the_id_under_which_its_request_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request has another one, also the one that is refused; a failure says it in the body, too."""
    monkeypatch.setattr(PaidLookups, "answer", lambda *_, **__: 1 / 0)
    with logged() as lines, hosted(tmp_path / "db.sqlite") as server:
        key = server.account()
        answers = [key.ask("GET", "/me"), server.http.get(f"{server.url}/me"), key.verify()]
    ids = [answer.headers["x-request-id"] for answer in answers]
    assert (len(set(ids)), [line["request"] for line in requests(lines)]) == (3, ids)
    assert refused(answers[2]) == (500, "internal")
    (failed,) = [line for line in lines if line["event"] == "a request failed"]
    assert answers[2].json()["error"]["request_id"] == failed["request"] == ids[2]


def test_a_batch_of_lookups_is_logged_under_no_id() -> None:
    """It is begun by one of them, and belongs to none."""

    async def work(items: Sequence[str]) -> list[str]:
        return [REQUEST_ID.get()] * len(items)

    async def submit() -> str:
        REQUEST_ID.set(GIVEN)
        return await Microbatcher[str, str](work, 8).submit("a lookup")

    assert asyncio.run(submit()) == ""


FORWARDED = {
    "": "127.0.0.1",
    "198.51.100.1": "198.51.100.1",
    "6.6.6.6, 198.51.100.1": "198.51.100.1",  # the client sent the first itself
    "6.6.6.6, 198.51.100.1, 10.1.2.3": "198.51.100.1",
    "10.9.9.9, 10.1.2.3": "10.9.9.9",
    "2001:db8::0:1": "2001:db8::1",
    "198.51.100.1, nonsense": "",  # no text of a client reaches the log
    "1" * 5_000: "",
}
"""What a trusted proxy says, and the address in the log."""
NO_IDS = ["bv_0123456789abcdef0123456789abcdef", "1248100998", "홍길동".encode(), f"{GIVEN}{GIVEN}0", f"{GIVEN}, x"]


def test_a_trusted_proxy_gives_the_id_and_the_clients_address(tmp_path: Path) -> None:
    """The last hop that is no proxy of ours; an id that may be somebody's data, or one of two, is not taken."""
    trusted = parse_proxies(("10.0.0.0/8", "::1", "127.0.0.1"))
    with logged() as lines, hosted(tmp_path / "db.sqlite", trusted_proxies=trusted) as server:
        for forwarded in FORWARDED:
            server.http.get(f"{server.url}/healthz", headers={"X-Forwarded-For": forwarded, "X-Request-Id": GIVEN})
        for given in (*([("X-Request-Id", one)] for one in NO_IDS), [("X-Request-Id", GIVEN)] * 2):
            server.http.get(f"{server.url}/healthz", headers=given)
    found = requests(lines)
    assert [line.get("client", "") for line in found[: len(FORWARDED)]] == list(FORWARDED.values())
    assert {line["request"] for line in found[: len(FORWARDED)]} == {GIVEN}
    assert {len(line["request"]) for line in found[len(FORWARDED) :]} == {16}


def test_nobody_else_is_believed(tmp_path: Path) -> None:
    with logged() as lines, hosted(tmp_path / "db.sqlite") as server:
        server.http.get(f"{server.url}/healthz", headers={"X-Request-Id": GIVEN, "X-Forwarded-For": "203.0.113.9"})
    assert (requests(lines)[0]["client"], GIVEN in str(lines)) == ("127.0.0.1", False)
    assert client_of({"client": None}) == ""  # a Unix socket


@pytest.mark.parametrize("text", ["nginx", "*", "10.0.0.1/8", "", "10.0.0.0/40"])
def test_a_proxy_is_an_address_or_a_network(text: str) -> None:
    assert parse_proxies(["10.0.0.0/8", "::1"]) == ("10.0.0.0/8", "::ffff:10.0.0.0/104", "::1/128")
    run = CliRunner().invoke(cli, ["serve", "--db", "nowhere.sqlite", "--port", "0", "--trusted-proxy", text])
    assert isinstance(run.exception, UsageError)
    with use_audience(COMMAND_LINE):
        assert str(run.exception).startswith("--trusted-proxy ")
