"""What a service may do to a connection, and that no answer ends up with another request: plain, TLS and proxies."""

from __future__ import annotations

import base64
import gzip
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import anyio
import httpx
import pytest
import trustme

from bansong.base.key import ApiKey
from bansong.client import Client
from bansong.client import transport as sending
from bansong.client.address import BaseUrl
from bansong.client.request import Timeouts, file_body
from bansong.client.transport import Transport
from bansong.errors import AuthenticationError, CertificateError, DoubtError, NotSentError, ServiceError, TooLargeError
from test_transport import CONTENT, KEY, VERIFIED, Line, Server, answering, client, serving

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "_rest_after", lambda _: 0.0)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def over_tls(authority: trustme.CA, script: Callable[[Line], None], name: str = "127.0.0.1") -> Callable[[Line], None]:
    """The same script, after a TLS handshake with a certificate for ``name``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)

    def secure(line: Line) -> None:
        with context.wrap_socket(line.socket, server_side=True) as wrapped:
            line.socket = wrapped
            script(line)

    return secure


def message(body: bytes, headers: str = "", status: int = 200) -> bytes:
    return f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body


def saying(raw: bytes, *, close: bool = True) -> Callable[[Line], None]:
    """Answer each request with these very bytes."""

    def script(line: Line) -> None:
        while line.read():
            line.socket.sendall(raw)
            if close:
                return

    return script


@pytest.mark.parametrize("status", [200, 401, 429])
async def test_what_follows_a_complete_answer_makes_it_doubtful_and_ends_the_connection(status: int) -> None:
    with serving(saying(message(VERIFIED, status=status) * 2, close=False)) as server:
        async with client(server, concurrency=1) as service:
            for _ in range(3):
                with pytest.raises(DoubtError, match="more came than one answer") as caught:
                    await service.verify("1248100998")
                assert caught.value.raw == b""
        assert server.connections == 3


@pytest.mark.usefixtures("no_rest")
async def test_what_comes_over_an_idle_connection_is_nobodys_answer() -> None:
    extra, sent = threading.Event(), threading.Event()

    def script(line: Line) -> None:
        while line.read():
            line.say(200, json.dumps({"biz_status": str(line.server.connections)}).encode())
            if line.server.connections == 1 and extra.wait(20):
                line.socket.sendall(message(b'{"biz_status": "wrong"}'))
                sent.set()

    with serving(script) as server:
        async with client(server) as service:
            first = await service.verify("1248100998")
            extra.set()
            await anyio.to_thread.run_sync(sent.wait, 20)
            second = await service.verify("1248100998")
        assert (first.biz_status, second.biz_status, server.connections) == ("1", "2", 2)


@pytest.mark.parametrize(("latency", "pause", "times"), [(0.0, 0.003, 20), (0.3, 0.15, 3)])
async def test_an_answer_that_comes_again_a_little_later_is_not_the_next_ones(
    latency: float, pause: float, times: int
) -> None:
    def script(line: Line) -> None:
        while line.read():
            answer = message(json.dumps({"biz_status": json.loads(line.body)["b_no"]}).encode())
            time.sleep(latency)
            line.socket.sendall(answer)
            time.sleep(pause)
            line.socket.sendall(answer)

    with serving(script) as server:
        async with client(server, concurrency=1) as service:
            for number in [f"{1248100000 + n}" for n in range(times)]:
                with suppress(DoubtError):
                    assert (await service.verify(number)).biz_status == number
                await anyio.sleep(latency / 5)  # more than the shortest rest, less than the latency


@pytest.mark.usefixtures("no_rest")
async def test_a_copy_of_a_client_uses_its_connections() -> None:
    with serving(answering(200, VERIFIED)) as server:
        async with client(server) as service:
            for one in (service, service.with_options(timeout=5), service):
                assert (await one.verify("1248100998")).biz_status == "active"
        assert server.connections == 1


@pytest.mark.usefixtures("no_rest")
async def test_what_a_test_answers_instead_of_a_kept_connection_is_no_surplus(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(self: object, request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"grade": "A"})

    with serving(answering(200, VERIFIED)) as server:
        async with client(server) as service:
            assert (await service.verify("1248100998")).biz_status == "active"
            with monkeypatch.context() as patch:
                patch.setattr(httpx.AsyncHTTPTransport, "handle_async_request", answer)
                assert (await service.verify("1248100998")).grade == "A"
            assert (await service.verify("1248100998")).biz_status == "active"
        assert server.connections == 2


async def test_over_a_callers_client_no_answer_is_another_requests() -> None:
    def script(line: Line) -> None:
        while line.read():
            line.socket.sendall(message(json.dumps({"biz_status": json.loads(line.body)["b_no"]}).encode()) * 2)

    numbers = [f"{1248100000 + n}" for n in range(5)]
    with serving(script) as server:
        async with httpx.AsyncClient() as http, client(server, http_client=http) as service:
            assert [(await service.verify(number)).biz_status for number in numbers] == numbers
        assert server.connections == len(numbers)


async def test_a_callers_client_that_tries_again_by_itself_never_sends_a_paid_request_whole_twice() -> None:
    class Trying(httpx.AsyncClient):
        async def send(self, request: httpx.Request, **options: object) -> httpx.Response:  # type: ignore[override]
            with suppress(httpx.TransportError):
                return await super().send(request, **options)  # type: ignore[arg-type]
            return await super().send(request, **options)  # type: ignore[arg-type]

    whole: list[bool] = []

    def script(line: Line) -> None:
        line.read_head()
        with suppress(OSError):
            whole.append(line.read_body())
        line.reset()

    with serving(script) as server:
        async with Trying() as http, client(server, http_client=http) as service:
            with pytest.raises(DoubtError):
                await service.verify("1248100998")
    assert whole.count(True) == 1


CHUNKED = "Transfer-Encoding: chunked\r\n\r\n"
FRAMES: dict[str, tuple[bytes, type[ServiceError] | None]] = {
    "length and chunks": (b"HTTP/1.1 200 X\r\nContent-Length: 5\r\n" + CHUNKED.encode() + b"0\r\n\r\n", DoubtError),
    "two lengths": (b"HTTP/1.1 200 X\r\nContent-Length: 45\r\nContent-Length: 4\r\n\r\n" + VERIFIED, DoubtError),
    "negative length": (b"HTTP/1.1 200 X\r\nContent-Length: -1\r\n\r\n" + VERIFIED, DoubtError),
    "unknown coding": (b"HTTP/1.1 200 X\r\nTransfer-Encoding: zip\r\n\r\n" + VERIFIED, DoubtError),
    "chunks": (f"HTTP/1.1 200 X\r\n{CHUNKED}{len(VERIFIED):x};a=b\r\n".encode() + VERIFIED + b"\r\n0\r\n\r\n", None),
    "bad chunk": (f"HTTP/1.1 200 X\r\n{CHUNKED}xyz\r\n".encode() + VERIFIED, DoubtError),
    "long chunk extension": (f"HTTP/1.1 200 X\r\n{CHUNKED}1;{'a' * 2**20}\r\n".encode(), DoubtError),
    "read until closed": (b"HTTP/1.1 200 X\r\n\r\n" + VERIFIED, None),
    "HTTP/1.0": (b"HTTP/1.0 200 X\r\n\r\n" + VERIFIED, None),
    "no reason": (b"HTTP/1.1 200\r\nContent-Length: %d\r\n\r\n" % len(VERIFIED) + VERIFIED, None),
    "folded": (b"HTTP/1.1 200 X\r\nA: b\r\n c\r\nContent-Length: %d\r\n\r\n" % len(VERIFIED) + VERIFIED, None),
    "interim": (b"HTTP/1.1 103 X\r\nLink: a\r\n\r\nHTTP/1.1 100 X\r\n\r\n" + message(VERIFIED), None),
    "interim without end": (b"HTTP/1.1 100 X\r\n\r\n" * 1000 + message(VERIFIED), None),
    "switching": (b"HTTP/1.1 101 X\r\nUpgrade: x\r\n\r\n" + message(VERIFIED), DoubtError),
    "no content, but a body": (message(VERIFIED, status=204), DoubtError),
    "head of a megabyte": (b"HTTP/1.1 200 X\r\nA: " + b"x" * 2**20 + b"\r\n\r\n", DoubtError),
    "many fields": (b"HTTP/1.1 200 X\r\n" + b"A: b\r\n" * 100_000 + b"\r\n", DoubtError),
    "another protocol": (b"HTTP/2 200\r\n\r\n", DoubtError),
    "control character": (b"HTTP/1.1 200 X\r\nA: \x00\r\n\r\n" + VERIFIED, DoubtError),
    "closing": (message(VERIFIED, "Connection: close\r\n"), None),
}


async def test_each_framing_is_an_answer_or_a_doubt() -> None:
    found: dict[str, type[ServiceError] | None] = {}
    for name, (raw, _) in FRAMES.items():
        with serving(saying(raw)) as server:
            async with client(server) as service:
                try:
                    assert (await service.verify("1248100998")).bounce_prob == 0.25
                    found[name] = None
                except ServiceError as error:
                    found[name] = type(error)
    assert found == {name: kind for name, (_, kind) in FRAMES.items()}


@pytest.mark.parametrize("is_upload", [False, True])
async def test_an_answer_that_drips_ends_some_day(monkeypatch: pytest.MonkeyPatch, is_upload: bool) -> None:
    """Each byte comes in time, the whole never does; an upload's time begins with its last byte."""
    monkeypatch.setattr(sending, "_EXCHANGE_TIMEOUTS", 2)
    done = threading.Event()

    def script(line: Line) -> None:
        line.read()
        head = b"Content-Length: 100000\r\n\r\n" if is_upload else b"A: b\r\n"
        for byte in b"HTTP/1.1 200 X\r\n" + head * 1000:
            line.socket.sendall(bytes([byte]))
            if done.wait(0.005):
                return

    with serving(script) as server:
        async with client(server, timeout=0.3) as service:
            with pytest.raises(DoubtError, match=r"no end of the answer within 0\.6 s"):
                await (service.create_batch(CONTENT) if is_upload else service.verify("1248100998"))
        done.set()


async def test_an_answer_in_tiny_chunks_leaves_others_their_turn() -> None:
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in VERIFIED.ljust(9000))
    raw = b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    with serving(saying(raw)) as server:
        async with client(server) as service, anyio.create_task_group() as tasks:
            tasks.start_soon(count_turns)
            assert (await service.verify("1248100998")).bounce_prob == 0.25
            tasks.cancel_scope.cancel()
    assert turns > 30


PACKED = gzip.compress(VERIFIED)


async def test_a_compressed_answer_is_whole_or_a_doubt() -> None:
    whole = [PACKED, gzip.compress(VERIFIED[:40]) + gzip.compress(VERIFIED[40:]), VERIFIED]
    cut_off, wrong_sum = PACKED[:-9], PACKED[:-8] + b"\0\0\0\0" + PACKED[-4:]
    damaged = [cut_off, wrong_sum, PACKED + gzip.compress(b" ")[:-1], PACKED + b"x"]
    for packed in whole + damaged:
        with serving(saying(message(packed, "Content-Encoding: gzip\r\n"))) as server:
            async with client(server) as service:
                if packed in whole:
                    assert (await service.verify("1248100998")).bounce_prob == 0.25
                else:
                    with pytest.raises(DoubtError, match="compressed and damaged"):
                        await service.verify("1248100998")


@pytest.mark.usefixtures("no_rest")
@pytest.mark.parametrize("end", ["closed", "reset"])
async def test_a_server_that_closes_after_an_answer_costs_nothing(end: str) -> None:
    closed = threading.Event()

    def script(line: Line) -> None:
        if not line.read():
            return
        line.say(200, VERIFIED)
        if end == "reset":
            closed.wait(20)
            line.reset()
        else:
            line.socket.shutdown(socket.SHUT_RDWR)  # before the test goes on, not some time behind this function
        line.server.ended.set()

    with serving(script) as server:
        async with client(server) as service:
            for _ in range(3):
                server.ended.clear()
                closed.clear()
                assert (await service.verify("1248100998")).biz_status == "active"
                closed.set()
                assert await anyio.to_thread.run_sync(server.ended.wait, 20)
        assert server.connections == 3


async def test_an_answer_that_arrived_while_nobody_looked_is_no_doubt() -> None:
    answered = threading.Event()

    def script(line: Line) -> None:
        line.read()
        line.say(200, VERIFIED)
        answered.set()
        line.socket.recv(1)

    with serving(script) as server:
        async with client(server, timeout=0.2) as service, anyio.create_task_group() as tasks:

            async def block() -> None:
                while not any(len(line.body) == line.length for line in server.requests):  # head and body come apart
                    await anyio.sleep(0.001)
                assert answered.wait(20)
                time.sleep(0.5)  # no test of time: the loop stands still for longer than the timeout

            tasks.start_soon(block)
            assert (await service.verify("1248100998")).biz_status == "active"


def transport(url: str, tls: ssl.SSLContext | None = None) -> Transport:
    """What a client sends its requests by, trusting ``tls``."""
    return Transport(BaseUrl.parse(url), ApiKey(KEY), concurrency=4, timeouts=Timeouts(), app=None, tls=tls)


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize(("status", "kind"), [(413, TooLargeError), (401, AuthenticationError), (503, NotSentError)])
async def test_an_answer_in_the_middle_of_an_upload_ends_it(
    authority: trustme.CA, status: int, kind: type[ServiceError], scheme: str
) -> None:
    asked: list[str] = []

    def script(line: Line) -> None:
        line.read_head()
        line.say(status, b'{"error": "enough"}', "Connection: close\r\nRetry-After: 3\r\n")
        while chunk := line.socket.recv(65536):
            line.body += chunk

    async def gate() -> None:
        asked.append("gate")

    with serving(over_tls(authority, script) if scheme == "https" else script) as server:
        url = server.url.replace("http:", f"{scheme}:")
        body = file_body(CONTENT * 100, "a.csv", before_last=gate)
        with pytest.raises(ServiceError) as caught:
            await transport(url, trusting(authority)).ask("POST", f"{url}/batch", body=body, upload=True)
    assert (type(caught.value), caught.value.detail, caught.value.retry_after) == (kind, "enough", 3.0)
    assert asked == []
    assert len(server.requests[0].body) < server.requests[0].length


@pytest.mark.parametrize("fault", ["unknown authority", "another name"])
async def test_a_certificate_that_is_not_trusted_is_an_error_of_its_own(authority: trustme.CA, fault: str) -> None:
    trusted, name = (trusting(authority), "other.invalid") if fault == "another name" else (None, "127.0.0.1")
    with serving(over_tls(authority, answering(200, VERIFIED), name)) as server:
        url = server.url.replace("http:", "https:")
        service = transport(url, trusted)
        with pytest.raises(CertificateError, match="SSL_CERT_FILE") as caught:
            await service.ask("POST", f"{url}/verify")
        assert server.requests == []
    assert isinstance(caught.value, NotSentError)
    assert caught.value.exit_code == 2


async def test_certificates_may_come_from_ssl_cert_file(
    authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    with serving(over_tls(authority, answering(200, VERIFIED))) as server:
        async with Client(server.url.replace("http:", "https:"), KEY) as service:
            assert (await service.verify("1248100998")).biz_status == "active"


def proxying(target: Server) -> Callable[[Line], None]:
    """A proxy that connects to one server, whatever it is asked for."""

    def script(line: Line) -> None:
        line.read_head()
        line.socket.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        port = int(target.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as further:
            pump = threading.Thread(target=_pump, args=[further, line.socket])
            pump.start()
            _pump(line.socket, further)
            pump.join(20)

    return script


def _pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def through(proxy: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("https_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, proxy.url.replace("http://", "http://us%40er:pa%3Ass@"))
    for name in ("no_proxy", "NO_PROXY", "REQUEST_METHOD"):
        monkeypatch.delenv(name, raising=False)


async def test_tls_goes_through_a_proxys_tunnel(authority: trustme.CA, monkeypatch: pytest.MonkeyPatch) -> None:
    secure = over_tls(authority, answering(200, VERIFIED), "service.invalid")
    with serving(secure) as server, serving(proxying(server)) as proxy:
        through(proxy, monkeypatch)
        service = transport("https://service.invalid", trusting(authority))
        reply = await service.ask("POST", "https://service.invalid/verify")
        await service.aclose()
        head = proxy.requests[0].head.decode()
    assert reply.body == VERIFIED
    assert head.startswith("CONNECT service.invalid:443 HTTP/1.1\r\nHost: service.invalid:443\r\n")
    assert base64.b64encode(b"us@er:pa:ss").decode() in head
    assert "X-API-Key" not in head


async def test_a_proxys_refusal_is_understood_from_its_head(
    authority: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = threading.Event()

    def script(line: Line) -> None:
        line.read_head()
        line.socket.sendall(b"HTTP/1.1 407 X\r\n\r\n<html>")
        done.wait(20)

    with serving(script) as proxy:
        through(proxy, monkeypatch)
        service = transport("https://service.invalid", trusting(authority))
        with pytest.raises(NotSentError, match="the proxy answered 407; put its user and password") as caught:
            await service.ask("POST", "https://service.invalid/verify")
        assert "through the proxy 127.0.0.1:" in str(caught.value)
        assert "pa:ss" not in str(caught.value)
        done.set()
