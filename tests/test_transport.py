"""What goes over the wire, and what each way of failing means: real sockets on loopback, under asyncio and trio."""

from __future__ import annotations

import base64
import gzip
import logging
import pickle
import re
import socket
import struct
import threading
import traceback
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from email import message_from_bytes
from email.utils import format_datetime
from pathlib import Path

import anyio
import httpx
import pytest

from bansong import errors
from bansong.base.http import WatchedStream
from bansong.client import ApiKey, BaseUrl, Client
from bansong.client import transport as sending
from bansong.client.errors import body_message, seconds_to_wait, status_error
from bansong.client.request import Timeouts, decompress, file_body

pytestmark = pytest.mark.anyio

KEY = 'bv/secret+4711"<key>'
VERIFIED = b'{"biz_status": "active", "bounce_prob": 0.25}'
CREATED = b'{"job_id": "j1", "total": 2}'
CONTENT = b"b_no,name,address\n" + b"1248100998,a,b\n" * 20_000


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Line:
    """One connection of a server's, with what came over it."""

    def __init__(self, server: Server, connection: socket.socket) -> None:
        self.server = server
        self.socket = connection
        self.head = b""
        self.body = b""

    def read_head(self) -> bool:
        """Read a request's head; whatever of the body came with it is in ``body``. False: the client is done."""
        got = b""
        while b"\r\n\r\n" not in got:
            more = self.socket.recv(65536)
            if not more:
                return False
            got += more
        self.head, _, self.body = got.partition(b"\r\n\r\n")
        self.server.requests.append(self)
        self.server.heads.append(self.head)
        return True

    @property
    def length(self) -> int:
        found = re.search(rb"(?i)content-length: (\d+)", self.head)
        return int(found[1]) if found else 0

    def read_body(self, missing: int = 0) -> bool:
        while len(self.body) < self.length - missing:
            more = self.socket.recv(65536)
            if not more:
                return False
            self.body += more
        return True

    def read(self) -> bool:
        return self.read_head() and self.read_body()

    def say(self, status: int, body: bytes = b"", headers: str = "", *, length: int | None = None) -> None:
        size = len(body) if length is None else length
        head = f"HTTP/1.1 {status} X\r\nContent-Length: {size}\r\n{headers}\r\n"
        self.socket.sendall(head.encode("latin-1") + body)

    def reset(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


class Server:
    """A raw server on loopback: each connection is handed to ``script`` in a thread of its own."""

    def __init__(self, script: Callable[[Line], None]) -> None:
        self.requests: list[Line] = []
        self.heads: list[bytes] = []
        self.connections = 0
        self.ended = threading.Event()
        self._script = script
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=[connection], daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.settimeout(20)
            self._script(Line(self, connection))
        self.ended.set()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(20)


@contextmanager
def serving(script: Callable[[Line], None]) -> Iterator[Server]:
    server = Server(script)
    try:
        yield server
    finally:
        server.close()


def answering(status: int, body: bytes = b"", headers: str = "") -> Callable[[Line], None]:
    def script(line: Line) -> None:
        while line.read():
            line.say(status, body, headers)

    return script


def client(server: Server, **options: object) -> Client:
    return Client(server.url, KEY, **{"max_retries": 0} | options)  # type: ignore[arg-type]


async def verify(server: Server, **options: object) -> errors.BansongError:
    """The error that a lookup ends in."""
    async with client(server, **options) as service:
        with pytest.raises(errors.BansongError) as caught:
            await service.verify("1248100998", "삼성전자")
    return caught.value


async def upload(
    server: Server, content: bytes = CONTENT, **steps: Callable[[], Awaitable[None]]
) -> errors.BansongError:
    async with client(server) as service:
        with pytest.raises(errors.BansongError) as caught:
            await service.create_batch(content, **steps)  # type: ignore[arg-type]
    return caught.value


CLASSES: dict[type[errors.ServiceError], tuple[int, ...]] = {
    errors.RejectedError: (301, 302, 307, 308, 400, 402, 405, 409, 422),
    errors.DoubtError: (303, 408, 500, 502, 503, 504, 599, 799),
    errors.AuthenticationError: (401, 407),
    errors.PlanError: (403,),
    errors.NotFoundError: (404,),
    errors.TooLargeError: (413,),
    errors.QuotaError: (429,),
}
MEANINGS = {status: kind for kind, statuses in CLASSES.items() for status in statuses}
LIMITS: dict[bytes, type[errors.ServiceError]] = {  # a 429 is the quota unless its code says another bound
    b'{"error": {"code": "limit_exceeded", "message": "too many"}}': errors.LimitError,
    b'{"code": "rate_limited"}': errors.LimitError,
    b'{"error": {"code": "quota_exceeded"}}': errors.QuotaError,
    b'{"error": {"message": "too many requests a second"}}': errors.QuotaError,
    b"": errors.QuotaError,
}


def test_each_status_has_its_class() -> None:
    """G22, G29, G35: the error names what was asked and carries the body's message, in one line."""
    for status, kind in MEANINGS.items():
        error = status_error("POST x", status, b'{"error": "no luck\\ntoday"}')
        assert (type(error), error.status, error.detail) == (kind, status, "no luck today")
        assert str(error).startswith(f"POST x: {status}, ")
        assert "no luck today" in str(error)
    assert [type(status_error("POST x", 429, body)) for body in LIMITS] == list(LIMITS.values())
    assert type(status_error("GET x", 503, b"", is_free=True)) is errors.ServerError
    assert type(status_error("GET x", 408, b"", is_free=True)) is errors.UnavailableError
    assert type(status_error("POST x", 503, b"", complete=False)) is errors.NotSentError


async def test_any_2xx_is_success() -> None:
    """G25: INTERFACE names no success status."""
    left = iter((200, 201, 202, 203, 299))

    def script(line: Line) -> None:
        while line.read():
            line.say(next(left), VERIFIED)

    with serving(script) as server:
        async with client(server) as service:
            for _ in range(5):
                assert (await service.verify("1248100998")).bounce_prob == 0.25


def test_a_wait_is_seconds_or_a_date_and_nothing_else() -> None:
    """G26: what is negative, past or no time at all asks for no wait."""
    now = datetime(2026, 3, 1, tzinfo=UTC)
    assert seconds_to_wait(format_datetime(now + timedelta(seconds=90), usegmt=True), now) == 90
    assert seconds_to_wait("Sun, 01 Mar 2026 00:01:00", now) == 60
    assert seconds_to_wait(format_datetime(now - timedelta(days=1), usegmt=True), now) is None
    for nonsense in (None, "", "-1", "1e9", "nan", "٣", "99999999999", "Sun, 99 Foo 2026 00:00:00 GMT", "0x10"):
        assert seconds_to_wait(nonsense, now) is None


MESSAGES: list[tuple[bytes, str | None]] = [
    (b"", None),
    (b'{"error": "a"}', "a"),
    (b'{"error": {"message": "a", "code": "E1"}}', "a (E1)"),
    (b'{"error": "quota_exceeded", "message": "Monthly quota"}', "Monthly quota (quota_exceeded)"),
    (b'{"detail": [{"loc": ["body", "b_no"], "msg": "field required", "type": "x"}]}', "body.b_no: field required"),
    (b'{"errors": ["a", "b", "c", "d"]}', "a; b; c"),
    (b'{"x": 1}', '{"x": 1}'),
    (b"[" * 100_000, "[" * 300 + "…"),
    (b"plain words", "plain words"),
    ("\ufeff한글".encode(), "한글"),
    (b"<!DOCTYPE html><html><head><title>502 Bad\n Gateway</title>", "502 Bad Gateway"),
    (b"a\x1b[31m\x00\r\nb\xe2\x80\xaec", "a [31m b c"),
]


def test_a_bodys_own_message_is_found_whatever_its_shape() -> None:
    """G22: one line, no control characters, no more than a person reads."""
    assert [(body, body_message(body)) for body, _ in MESSAGES] == MESSAGES
    assert "\ufffd" in str(body_message("한글".encode("cp949")))


async def test_a_redirect_is_not_followed_and_the_key_stays_here() -> None:
    with serving(answering(200, VERIFIED)) as other:
        led = [(status, f"{other.url}/verify") for status in (301, 302, 303, 307, 308)]
        led += [(302, location) for location in ("http://[", "//", "\x80", "mailto:x")]
        for status, location in led:
            with serving(answering(status, b"", f"Location: {location}\r\nSet-Cookie: a=b\r\n")) as server:
                assert type(await verify(server)) is MEANINGS[status]
            assert b"cookie" not in server.requests[-1].head.lower()
        assert other.connections == 0


async def test_every_request_carries_the_key_and_who_asks_but_nothing_of_netrc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login somebody password else\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    with serving(answering(200, VERIFIED)) as server:
        async with client(server) as service:
            await service.verify("1248100998")
        head = server.requests[0].head.decode()
    assert f"X-API-Key: {KEY}" in head
    assert re.search(r"User-Agent: bansong/\d", head)
    assert "authorization" not in head.lower()


async def test_the_environments_proxy_is_used_but_never_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(answering(200, VERIFIED)) as proxy, serving(answering(200, VERIFIED)) as server:
        for name in ("http_proxy", "HTTP_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        for name in ("no_proxy", "NO_PROXY", "REQUEST_METHOD"):
            monkeypatch.delenv(name, raising=False)
        async with client(server) as service:
            await service.verify("1248100998")
        assert proxy.connections == 0
        async with Client("http://service.invalid", KEY, max_retries=0, allow_http=True) as service:
            await service.verify("1248100998")
        assert proxy.requests[0].head.startswith(b"POST http://service.invalid/verify ")
        login = proxy.url.replace("//", "//us%40er:pa%3Ass@")
        async with Client("http://other.invalid", KEY, allow_http=True, proxy=login) as service:
            await service.verify("1248100998")
        assert proxy.requests[1].head.startswith(b"POST http://other.invalid/verify ")
        assert b"Proxy-Authorization: Basic " + base64.b64encode(b"us@er:pa:ss") in proxy.requests[1].head
        monkeypatch.setenv("NO_PROXY", "service.invalid")
        monkeypatch.setenv("no_proxy", "service.invalid")
        async with Client("http://service.invalid", KEY, max_retries=0, allow_http=True) as service:
            with pytest.raises(errors.NotSentError):
                await service.verify("1248100998")
        assert proxy.connections == 2


ECHO = b'{"error": "the key %s is not known"}' % KEY.replace('"', '\\"').encode()


@pytest.mark.parametrize("status", [200, 401, 500])
async def test_the_key_is_nowhere_to_be_seen(status: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with serving(answering(status, ECHO)) as server:
        service = client(server)
        async with service:
            with pytest.raises(errors.ServiceError) as caught:
                await service.verify("1248100998")
    error = caught.value
    shown = [*texts(error), *caplog.messages, repr(service), str(vars(service))]
    assert caplog.records
    assert "[key]" in str(error)
    assert_hidden("\n".join(shown))
    assert error.raw
    assert error.__context__ is None
    assert error.__cause__ is None
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.status, again.raw) == (type(error), str(error), status, error.raw)


async def test_the_key_is_in_no_traceback_of_a_cancelled_request(monkeypatch: pytest.MonkeyPatch) -> None:
    writing = anyio.Event()
    caught: list[BaseException] = []

    async def send(self: object, data: bytes, timeout: float | None) -> None:
        writing.set()
        await anyio.sleep_forever()

    monkeypatch.setattr(WatchedStream, "write", send)
    with serving(answering(200, VERIFIED)) as server:
        async with client(server) as service, anyio.create_task_group() as tasks:

            async def ask() -> None:
                try:
                    await service.verify("1248100998")
                except BaseException as error:
                    caught.append(error)
                    raise

            tasks.start_soon(ask)
            await writing.wait()
            tasks.cancel_scope.cancel()
    assert_hidden("".join(traceback.TracebackException.from_exception(caught[0], capture_locals=True).format()))


def texts(error: BaseException) -> list[str]:
    shown = "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())
    pickled = pickle.dumps(error).decode("latin-1")
    return [shown, pickled, str(error), repr(error), repr(vars(error)), *traceback.format_exception(error)]


def assert_hidden(text: str) -> None:
    """No line of what can be seen shows the key's tell-tale part."""
    assert "secret+4711" not in text
    assert "secret%2B4711" not in text


@pytest.mark.parametrize("framing", ["Content-Length: 200000000", "Transfer-Encoding: chunked", "X: read to the end"])
async def test_a_huge_answer_is_not_read_in(framing: str) -> None:
    sent = 0

    def script(line: Line) -> None:
        nonlocal sent
        line.read()
        line.socket.sendall(f"HTTP/1.1 200 OK\r\n{framing}\r\n\r\n".encode())
        chunk = b"x" * 100_000
        for _ in range(2000):
            framed = b"%x\r\n%s\r\n" % (len(chunk), chunk) if "chunked" in framing else chunk
            line.socket.sendall(framed)
            sent += len(chunk)

    with serving(script) as server:
        async with client(server, concurrency=1) as service:
            for call in (service.verify("1248100998"), service.batch("j", preview=100)):
                with pytest.raises(errors.ShapeError, match="too large") as caught:
                    await call
                assert caught.value.raw == b"x" * 65536
    assert sent < 60_000_000


async def test_a_compressed_answer_is_unpacked_but_no_bomb() -> None:
    """G27: compression is asked for where many rows are asked for, and taken wherever it is used."""
    packed = {"/verify": gzip.compress(VERIFIED), "/batch/j": gzip.compress(b" " * 50_000_000)}

    def script(line: Line) -> None:
        while line.read():
            path = line.head.split()[1].decode().partition("?")[0]
            line.say(200, packed[path], "Content-Encoding: gzip\r\n")

    with serving(script) as server:
        async with client(server) as service:
            assert (await service.verify("1248100998")).bounce_prob == 0.25
            with pytest.raises(errors.ShapeError, match="too large"):
                await service.batch("j")
        assert b"Accept-Encoding: identity" in server.heads[0]
        assert b"Accept-Encoding: gzip" in server.heads[1]
    tracemalloc.start()
    assert decompress(packed["/batch/j"], {"content-encoding": "gzip"}, 1000, over=False)[1]
    assert tracemalloc.get_traced_memory()[1] < 5_000_000
    tracemalloc.stop()


def broken(before: str) -> Callable[[Line], None]:
    def script(line: Line) -> None:
        line.read()
        if before == "in the head":
            line.socket.sendall(b"HTTP/1.1 200 OK\r\nContent-")
        elif before == "in the body":
            line.say(200, VERIFIED[:20], length=1000)
        elif before == "nonsense":
            line.socket.sendall(b"\x00\x01 nonsense\r\n\r\n")
        elif before == "silence":
            line.socket.recv(1)  # until the client gives up
        elif before != "no answer, closed":
            line.reset()

    return script


@pytest.mark.parametrize("when", ["reset", "no answer, closed", "silence", "in the head", "in the body", "nonsense"])
async def test_what_breaks_after_the_request_is_a_doubt(when: str) -> None:
    with serving(broken(when)) as server:
        error = await verify(server, timeout=Timeouts(read=0.05 if when == "silence" else 30))
    assert type(error) is errors.DoubtError
    assert error.exit_code == 3
    assert error.status == (200 if when == "in the body" else None)
    assert error.raw == (VERIFIED[:20] if when == "in the body" else b"")
    assert_hidden("\n".join(texts(error)))
    assert error.__context__ is None
    with serving(lambda line: line.read() and line.say(401, b'{"err', length=1000)) as server:
        assert type(await verify(server)) is errors.AuthenticationError  # a refusal that breaks off is one


async def test_a_refused_connection_is_certainly_not_sent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        url = f"http://127.0.0.1:{gone.getsockname()[1]}"
    async with Client(url, KEY, max_retries=0) as service:
        for call in (service.verify("1248100998"), service.create_batch(CONTENT), service.me()):
            with pytest.raises(errors.NotSentError, match="nothing was paid"):
                await call
    with serving(lambda _: None) as server:  # it speaks no TLS
        async with Client(server.url.replace("http:", "https:"), KEY, max_retries=0) as service:
            with pytest.raises(errors.NotSentError):
                await service.verify("1248100998")


async def test_a_connection_is_kept_but_an_upload_has_its_own_and_closes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "_rest_after", lambda _: 0.0)

    def script(line: Line) -> None:
        while line.read():
            line.say(200, CREATED if b" /batch " in line.head else VERIFIED)

    with serving(script) as server:
        async with client(server) as service:
            for _ in range(3):
                await service.verify("1248100998")
            assert server.connections == 1
            await service.create_batch(CONTENT)
            await service.create_batch(CONTENT)
            assert server.connections == 3
            await service.verify("1248100998")
            assert server.connections == 3
        closing = [b"Connection: close" in head for head in server.heads]
    assert closing == [False, False, False, True, True, False]


async def test_a_cancelled_request_does_not_take_its_turn_with_it() -> None:
    arrived, gone = threading.Event(), threading.Event()

    def script(line: Line) -> None:
        if line.read():
            if len(line.server.requests) == 1:
                arrived.set()
                gone.wait(20)
            line.say(200, VERIFIED)

    with serving(script) as server:
        async with client(server, concurrency=1) as service:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(service.verify, "1248100998")
                tasks.start_soon(service.verify, "1248100998")
                await anyio.to_thread.run_sync(arrived.wait)
                tasks.cancel_scope.cancel()
            gone.set()
            assert (await service.verify("1248100998")).biz_status == "active"


async def test_the_service_has_no_whole_file_before_the_gate_opens() -> None:
    almost = threading.Event()
    at_gate: list[int] = []
    after: list[str] = []

    def script(line: Line) -> None:
        line.read_head()
        closing = len(boundary(line)) + 8
        line.read_body(missing=closing)
        almost.set()
        line.read_body()
        line.say(200, CREATED)

    with serving(script) as server:

        async def gate() -> None:
            assert await anyio.to_thread.run_sync(almost.wait, 20)
            await anyio.sleep(0)
            at_gate.append(len(server.requests[0].body))
            assert not server.requests[0].body.endswith(b"--\r\n")

        async def handed_over() -> None:
            after.append("sent")

        async with client(server) as service:
            created = await service.create_batch(CONTENT, before_last_byte=gate, after_last_byte=handed_over)
        request = server.requests[0]
    assert (created.job_id, created.total) == ("j1", 2)
    assert at_gate[0] == request.length - len(boundary(request)) - 8
    assert len(request.body) == request.length
    assert after == ["sent"]


def boundary(line: Line) -> bytes:
    return re.findall(rb"boundary=(\S+)", line.head)[0]


async def test_the_upload_is_one_file_part_and_the_flags_are_sent_only_when_given() -> None:
    """G23, G28: the part is named ``file``, its type is CSV, its bytes are those that were given."""
    with serving(answering(200, CREATED)) as server:
        async with client(server) as service:
            await service.create_batch(CONTENT, filename='a"b\r\n한.csv')
            await service.create_batch(CONTENT, offline=True, paid=False)
        first, second = server.requests
    assert first.head.startswith(b"POST /batch HTTP/1.1")
    assert second.head.startswith(b"POST /batch?offline=true&paid=false HTTP/1.1")
    message = message_from_bytes(first.head.partition(b"\r\n")[2] + b"\r\n\r\n" + first.body)
    (part,) = message.get_payload()  # type: ignore[misc]
    assert part.get_payload(decode=True) == CONTENT  # type: ignore[union-attr]
    assert b'form-data; name="file"; filename="a%22b%0D%0A\xed\x95\x9c.csv"\r\n' in first.body
    assert b"Content-Type: text/csv; charset=utf-8\r\n" in first.body


@pytest.mark.parametrize("when", ["in the upload", "reset", "no answer, closed", "in the body"])
async def test_an_upload_that_breaks_is_not_sent_before_its_gate_and_a_doubt_after_it(when: str) -> None:
    passed: list[str] = []

    async def gate() -> None:
        passed.append("gate")

    is_early = when == "in the upload"
    with serving(lambda line: line.read_head() and line.reset() if is_early else broken(when)(line)) as server:
        error = await upload(server, CONTENT * (100 if is_early else 1), before_last_byte=gate)  # beyond any buffer
    assert type(error) is (errors.NotSentError if is_early else errors.DoubtError)
    assert passed == ([] if is_early else ["gate"])


async def test_a_gate_that_raises_keeps_the_last_byte_back() -> None:
    async def gate() -> None:
        raise errors.LedgerError("the disk is full")

    def script(line: Line) -> None:
        line.read()

    with serving(script) as server:
        error = await upload(server, before_last_byte=gate)
        assert server.ended.wait(20)
        request = server.requests[0]
    assert type(error) is errors.LedgerError
    assert 0 < len(request.body) < request.length
    assert_hidden("\n".join(texts(error)))
    assert not any("h11" in line for line in traceback.format_exception(error))


async def test_a_body_is_complete_when_its_last_piece_is_handed_over_and_no_sooner() -> None:
    """A gate that is open late, or not at all, leaves no doubt; the step after it waits for the network."""
    steps: list[tuple[str, bool]] = []

    async def before() -> None:
        steps.append(("before", body.complete))

    async def after() -> None:
        steps.append(("after", body.complete))

    body = file_body(b"x" * 200_000, "x.csv", before_last=before, after_last=after)
    pieces = [(len(piece), body.complete) async for piece in body]
    assert sum(length for length, _ in pieces) == body.length
    assert [complete for _, complete in pieces] == [False] * 5 + [True]
    assert steps == [("before", False), ("after", True)]


def test_a_key_that_cannot_be_sent_is_refused_without_showing_it() -> None:
    for odd in ("", " ", "a b", "a\n", "\x00", "a\x7f", "키", "a\u200b"):
        with pytest.raises(errors.UsageError) as caught:
            ApiKey("secret" + odd if odd else odd)
        shown = traceback.TracebackException.from_exception(caught.value, capture_locals=True).format()
        assert "secret" not in str(caught.value)
        assert "value = 'secret" not in "".join(shown)


def test_a_key_is_shown_nowhere_and_goes_into_no_pickle() -> None:
    key = ApiKey(KEY)
    assert {str(key), repr(key), f"{key}", f"{[key]}"} == {"ApiKey(…)", "[ApiKey(…)]"}
    assert not hasattr(key, "__dict__")
    with pytest.raises(TypeError):
        pickle.dumps(key)
    assert len({key, ApiKey(KEY), ApiKey("another")}) == 2
    assert key.reveal() == KEY
    forms = [KEY, "bv%2Fsecret%2B4711%22%3Ckey%3E", 'bv/secret+4711\\"<key>', "bv/secret+4711&quot;&lt;key&gt;"]
    assert key.redact(" ".join(forms)) == "[key] [key] [key] [key]"
    assert key.redact(f"x{KEY}y".encode()) == b"x[key]y"
    short = ApiKey("in")  # may be a part of any word; alone it is the key
    assert short.redact("invalid in plan, key=in") == "invalid [key] plan, key=[key]"
    assert short.redact("가입 in 확인".encode()).decode() == "가입 [key] 확인"


def test_the_key_comes_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "key"
    file.write_text("\ufefffrom-file\r\n")
    monkeypatch.delenv("BANSONG_API_KEY", raising=False)
    monkeypatch.delenv("BANSONG_API_KEY_FILE", raising=False)
    with pytest.raises(errors.UsageError, match="BANSONG_API_KEY"):
        ApiKey.load()
    monkeypatch.setenv("BANSONG_API_KEY_FILE", str(file))
    assert ApiKey.load().reveal() == "from-file"
    monkeypatch.setenv("BANSONG_API_KEY", "from-environment\n")
    assert ApiKey.load().reveal() == "from-environment"
    assert ApiKey.load(file).reveal() == "from-file"
    for content in (b"", b"a\nb", b"\xff\xfe", b"x" * 5000):
        file.write_bytes(content)
        with pytest.raises(errors.UsageError):
            ApiKey.load(file)
    with pytest.raises(errors.UsageError):
        ApiKey.load(tmp_path / "none")


ORIGINS = {
    "https://api.example.com": "https://api.example.com",
    " HTTPS://API.Example.COM:443/ ": "https://api.example.com",
    "https://api.example.com:8443/v1//": "https://api.example.com:8443/v1",
    "http://localhost:80": "http://localhost",
    "http://127.9.9.9:8000": "http://127.9.9.9:8000",
    "http://[::1]:8000/x": "http://[::1]:8000/x",
    "https://한글.kr/가": "https://xn--bj0bj06e.kr/%EA%B0%80",
}
NO_ORIGINS = [
    *("", "api.example.com", "ftp://a.com", "https://", "https:///x", "//a.com", "https://u:hidden@a.com"),
    *("https://hidden@a.com", "https://a.com?x=1", "https://a.com/#x", "https://a.com?", "http://a.com"),
    *("http://127.0.0.1.example.com", "http://localhost.example.com", "https://a.com:0", "https://a.com:99999"),
    *("https://a.com:x", "https://[::1", "https://[x]", "https://a b.com", "https://a.com/../x", "https://a.com\\@b"),
    *("https://a.com/\x01", "https://-a%20", "http://0.0.0.0"),
]


def test_a_base_url_has_one_form_and_plain_http_is_for_this_machine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {text: BaseUrl.parse(text).origin for text in ORIGINS} == ORIGINS
    assert Client("http://api.example.com", KEY, allow_http=True).origin == "http://api.example.com"
    monkeypatch.delenv("BANSONG_BASE_URL", raising=False)
    for text in NO_ORIGINS:
        with pytest.raises(errors.UsageError) as caught:
            BaseUrl.parse(text)
        assert "hidden" not in str(caught.value)
    monkeypatch.setenv("BANSONG_BASE_URL", "https://a.com/v1")
    assert BaseUrl.parse(None).origin == "https://a.com/v1"


def test_a_key_in_place_of_a_base_url_is_not_shown() -> None:
    for text in (
        "%",
        "% %",
        "https://%!",
        "https://a.com:%",
        "https://[::%]",
        "https://a.com/%/..",
        "https://a.com/% x",
    ):
        with pytest.raises(errors.UsageError) as caught:
            BaseUrl.parse(text.replace("%", "bv_live_4711"))
        assert "4711" not in str(caught.value) + repr(caught.value) + repr(caught.value.fields)


def test_no_segment_leads_out_of_its_path() -> None:
    base = BaseUrl.parse("https://a.com/v1")
    assert base.url("batch", "../../x?y#z%2e 가") == "https://a.com/v1/batch/..%2F..%2Fx%3Fy%23z%252e%20%EA%B0%80"
    assert httpx.URL(base.url("batch", "a/b", "label")).raw_path == b"/v1/batch/a%2Fb/label"
    for segment in ("", ".", "..", "\ud800"):
        with pytest.raises(errors.UsageError):
            base.url("batch", segment)
