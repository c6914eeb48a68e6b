"""The server as a process, and its connections: slow and broken ones, an end in good order, the log."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import polars as pl
import pytest
from click.testing import CliRunner

from bansong import BlockingClient
from bansong.cli.app import app as cli
from bansong.errors import StoreError, UsageError
from bansong.server import app as process
from bansong.server import bodies
from bansong.server.app import listen, server_for, supervise
from bansong.server.metrics import ServerMetrics
from bansong.server.settings import LOGGER_ROOT, Clock, JsonFormatter, Settings, loggable_message
from serving import Served, ServedProcess, answers_held, logged, make_key, rows_of, served


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("process") / "db.sqlite") as running:
        yield running


def line_to(server: Served) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def answer(line: socket.socket) -> tuple[int, dict[str, Any]]:
    """Status and error of what comes until the server closes the connection."""
    said = b""
    while chunk := line.recv(65536):
        said += chunk
    head, _, body = said.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
        b"GET\r\n\r\n",
        b"GET /me HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET /me HTTP/1.1\r\nX: " + b"x" * 40_000,
    ],
)
def test_what_is_no_http_is_refused(server: Served, sent: bytes) -> None:
    """TLS on the plain port, a line without a path, a header without a colon, a head without end."""
    with line_to(server) as line:
        line.sendall(sent + b"\r\n\r\n")
        assert line.recv(65536).startswith(b"HTTP/1.1 400")


def test_a_refused_body_is_read_on_for_a_while(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that is still sending when it is refused gets the refusal, and is cut off if it does not stop."""
    monkeypatch.setattr(bodies, "LINGER_SECONDS", 0.5)
    with line_to(server) as line:
        line.sendall(b"POST /verify HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n")
        with pytest.raises(OSError):  # noqa: PT011 - reset or broken pipe, as it comes
            send_for(line, 15)


def send_for(line: socket.socket, seconds: float) -> None:
    """Go on sending, a little at a time, as if nobody had answered."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        line.sendall(b"x" * 1000)
        time.sleep(0.01)


def test_whoever_is_refused_and_closes_reads_why(server: Served) -> None:
    """A path that does not exist is told also to a client that is still sending and lets the connection be closed."""
    with line_to(server) as line:
        head = b"POST /nowhere HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-API-Key: " + server.key().encode()
        line.sendall(head + b"\r\nContent-Length: 8000000\r\n\r\n")
        for _ in range(80):
            line.sendall(b"x" * 100_000)
        status, error = answer(line)
    assert (status, error["code"]) == (404, "not_found")


def test_a_body_with_two_lengths_is_refused_and_the_connection_closed(server: Served) -> None:
    """Content-Length beside Transfer-Encoding is told 400, and what follows on the connection is not answered."""
    head = b"POST /verify HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nX-API-Key: " + server.key().encode()
    following = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    with line_to(server) as line:
        line.sendall(head + b"\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + following)
        status, error = answer(line)  # reads to the end of the connection: more than one answer would not be JSON
    assert (status, error["code"]) == (400, "bad_http")


def test_no_cache_keeps_what_a_key_was_answered(server: Served) -> None:
    """Answers and refusals of paths that need a key say `Cache-Control: no-store`."""
    for path in ("/me", "/watch", "/nowhere"):
        for headers in ({"X-API-Key": server.key()}, {}):
            answered = httpx.get(server.url + path, headers=headers)
            assert answered.headers.get_list("cache-control") == ["no-store"]


def test_the_parser_of_uploads_logs_no_contents(caplog: pytest.LogCaptureFixture) -> None:
    """The loggers of python-multipart, which quote what is in a form, log nothing, also where all else logs debug."""
    caplog.set_level(logging.DEBUG)
    for name in ("python_multipart", "python_multipart.multipart"):
        assert not logging.getLogger(name).isEnabledFor(logging.CRITICAL)


def test_two_keys_in_one_request_are_refused(server: Served) -> None:
    """Which of two different keys a request is made with is not guessed; the same one twice is one."""
    one, two = server.key(), server.key()
    for sent, status in (((one, two), 400), ((one, one), 200)):
        headers = [("X-API-Key", key) for key in sent]
        assert httpx.get(f"{server.url}/me", headers=headers).status_code == status


def test_a_request_that_outlives_the_server_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What is under way when the time to stop is over gets a logged 503 in the one error shape, and its lookup back."""
    caplog.set_level(logging.INFO, "bansong.server")
    begun, go = answers_held(monkeypatch)
    monkeypatch.setattr(process, "_SHUTDOWN_GRACE_S", 0.2)
    found: list[httpx.Response] = []
    with served(tmp_path / "db.sqlite") as server:
        asked = {"json": {"b_no": "1248100998"}, "headers": {"X-API-Key": server.key()}, "timeout": 30}
        asking = threading.Thread(target=lambda: found.append(httpx.post(f"{server.url}/verify", **asked)))
        asking.start()
        assert begun.wait(30)
        threading.Timer(1.0, go.set).start()
    asking.join()
    assert (found[0].status_code, found[0].json()["error"]["code"]) == (503, "busy")
    assert rows_of(tmp_path / "db.sqlite", "SELECT used FROM usage") == [(0,)]
    assert sum('"status":503' in record.getMessage() for record in caplog.records) == 1


def test_requests_behind_each_other_on_one_connection_are_answered(server: Served) -> None:
    """A connection is used again after an answer, and requests sent at once are answered one after the other."""
    one = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    with line_to(server) as line:
        line.sendall(one + one)
        line.sendall(one.replace(b"Host", b"Connection: close\r\nHost"))
        said = b""
        while chunk := line.recv(65536):
            said += chunk
    assert said.count(b"HTTP/1.1 200") == 3


@pytest.mark.process
def test_the_process_ends_in_good_order(tmp_path: Path) -> None:
    """On SIGTERM the server ends with exit code 0, its lock is free, and all it took is in the file."""
    db = tmp_path / "db.sqlite"
    secret = make_key(db)
    process = ServedProcess(db)
    with BlockingClient(process.start(), secret) as client:
        client.verify("1248100998")
    assert process.stop() == 0
    with BlockingClient(process.start(), secret) as client:
        assert client.me().used == 1
    assert process.stop() == 0


def test_what_runs_beside_the_requests_is_begun_again() -> None:
    """Work that fails, or panics, is begun again after longer and longer pauses, which are short again in the end."""
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


def test_two_servers_do_not_share_a_file(tmp_path: Path) -> None:
    """A second server on the same file ends at once and says so; so does one on a port that is taken."""
    db = tmp_path / "db.sqlite"
    with served(db):
        with listen("127.0.0.1", 0) as spare, pytest.raises(StoreError, match="another server is running on it"):
            server_for(Settings(db=db), lambda: None).run(sockets=[spare])
        done = subprocess.run(
            [sys.executable, "-m", "bansong", "serve", "--db", db, "--port", "0"], capture_output=True, text=True
        )
    assert done.returncode == 2
    assert "another server is running on it" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    taken = listen("127.0.0.1", 0)
    with taken, pytest.raises(UsageError, match="cannot listen there"):
        listen("127.0.0.1", taken.getsockname()[1])


def test_a_place_that_cannot_be_used_is_said_and_not_made(tmp_path: Path) -> None:
    """A folder that is not there is not made, and one that cannot be used is named: the server does not start."""

    def begun() -> None:
        raise AssertionError("it started all the same")

    (tmp_path / "db.sqlite.files").write_bytes(b"")
    for db, said in ((tmp_path / "none" / "db.sqlite", "No such file"), (tmp_path / "db.sqlite", "File exists")):
        with listen("127.0.0.1", 0) as spare, pytest.raises(StoreError, match=f"{db.name}.*cannot be used: {said}"):
            server_for(Settings(db=db), begun).run(sockets=[spare])
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("given", [("--keep-days", "nan"), ("--keep-days", "inf"), ("--learn-hours", "nan")])
def test_a_time_that_is_none_is_refused(tmp_path: Path, given: tuple[str, str]) -> None:
    """What lies in no calendar is refused before anything is made."""
    result = CliRunner().invoke(cli, ["serve", "--db", str(tmp_path / "db.sqlite"), "--port", "0", *given])
    assert (result.exit_code, list(tmp_path.iterdir())) == (2, [])
    assert given[0] in result.stderr


def test_the_log_says_what_is_wrong_with_the_file() -> None:
    """Of the server's own file the reason is logged, also from within a group; what users sent never is."""
    stream = io.StringIO()
    logger = logging.Logger("bansong.server.test")
    logger.addHandler(logging.StreamHandler(stream))
    logger.handlers[0].setFormatter(JsonFormatter())
    for error in (StoreError("db.sqlite: is read-only"), ExceptionGroup("x", [StoreError("db.sqlite: is read-only")])):
        try:
            raise error
        except (StoreError, ExceptionGroup):
            logger.exception("a step failed")
    assert [json.loads(line)["reason"] for line in stream.getvalue().splitlines()] == ["db.sqlite: is read-only"] * 2
    assert loggable_message(ValueError("홍길동상회")) == "ValueError"


def test_a_log_line_is_json_and_says_nothing_of_anybody(tmp_path: Path) -> None:
    """A request is logged with method, pattern, status and time; an exception without its message."""
    with logged() as lines:
        with served(tmp_path / "db.sqlite") as server, server.client() as client:
            client.verify("1248100998", "홍길동상회", "서울 중구 세종대로 110")
            httpx.request("1248100998", f"{server.url}/me")
        logging.getLogger("asyncio").error("Exception in callback told('홍길동상회')")
        try:
            raise ValueError("홍길동상회")
        except ValueError:
            logging.getLogger(f"{LOGGER_ROOT}.server").exception("a step failed")
    request = next(line for line in lines if line["event"] == "request" and line["path"] == "/verify")
    assert (request["method"], request["status"]) == ("POST", 200)
    assert request["ms"] > 0
    assert any(line["logger"] == "asyncio" and line["level"] == "error" for line in lines)
    failed = next(line for line in lines if line["event"] == "a step failed")
    assert failed["error"] == "ValueError"
    assert failed["trace"][0].startswith("test_server_process.py:")
    assert not any(word in str(lines) for word in ("1248100998", "홍길동", "세종대로"))


@pytest.mark.parametrize(
    ("host", "more", "is_warned"),
    [
        ("127.0.0.1", [], False),
        ("localhost", [], False),
        ("0.0.0.0", [], True),
        ("0.0.0.0", ["--trusted-proxy", "10.0.0.2"], False),
    ],
)
def test_listening_to_other_machines_without_tls_is_warned_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, more: list[str], is_warned: bool
) -> None:
    """Where others can reach the server, and no proxy is named, its start says once that keys go in the clear."""

    def listen_only(_: Settings, host: str, port: int, on_start: Callable[[str], None]) -> None:
        with listen(host, port) as listener:
            on_start(process.url_of(listener))

    monkeypatch.setattr(process, "run", listen_only)
    words = ["serve", "--db", str(tmp_path / "db.sqlite"), "--host", host, "--port", "0", *more]
    with logged():  # the log that a server sets up is not that of the tests behind
        started = CliRunner().invoke(cli, words)
    assert started.exit_code == 0, started.output
    assert started.stderr.count("in the clear") == is_warned
    assert ("--trusted-proxy" in started.stderr) == is_warned
