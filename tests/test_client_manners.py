"""How the client behaves towards those who use it: retries, timeouts, raw replies, opening and closing, arguments."""

from __future__ import annotations

import gc
import inspect
import io
import json
import os
import pickle
import platform
import pydoc
import ssl
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
import trio.testing

import bansong as bs
from bansong.client import (
    Account,
    BatchCreated,
    BatchStatus,
    BlockingClient,
    BlockingRawClient,
    Client,
    RawClient,
    RawResponse,
    Timeouts,
)
from bansong.client.request import user_agent
from bansong.client.retries import seconds_before
from bansong.errors import (
    AuthenticationError,
    DoubtError,
    InputError,
    JobTimeoutError,
    NotFoundError,
    NotSentError,
    QuotaError,
    ShapeError,
    UnavailableError,
    UsageError,
)
from bansong.testing import FakeService, Fault, Faults, Status, serve

URL = "http://localhost:9"
KEY = "bv-secret-4711"
B_NO = "124-81-00998"
CSV = b"b_no,name,address\n1248100998,,\n"

AUTOJUMP = [("trio", {"clock": trio.testing.MockClock(autojump_threshold=0)})]
"""Time passes at once where everybody waits for it."""


@pytest.fixture(params=["asyncio", pytest.param("trio", marks=pytest.mark.fuzz)])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Said:
    """One answer: a status, a JSON value or bytes, and headers. ``broken``: none, the connection breaks."""

    def __init__(self, status: int = 200, value: object = None, broken: bool = False, **headers: str) -> None:
        self.status, self.broken = status, broken
        self.content = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.headers = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]


class App:
    """A service in this process that gives answers in turn, the last again and again, and notes when it was asked."""

    def __init__(self, *answers: Said) -> None:
        self.asked: list[str] = []
        self.bodies: list[bytes] = []
        self.heads: list[dict[str, str]] = []
        self.times: list[float] = []
        self._answers = list(answers)

    async def __call__(
        self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        self.times.append(anyio.current_time())
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        query = f"?{scope['query_string'].decode()}" if scope["query_string"] else ""
        self.asked.append(f"{scope['method']} {scope['raw_path'].decode()}{query}")
        self.bodies.append(body)
        self.heads.append({name.decode().lower(): value.decode() for name, value in scope["headers"]})
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if answer.broken:
            raise ConnectionResetError("gone")
        await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
        await send({"type": "http.response.body", "body": answer.content})

    @property
    def pauses(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.times, self.times[1:], strict=False)]


ME = Said(200, {"limit": 10, "used": 3})


def client(app: object, **options: Any) -> Client:
    return Client(URL, KEY, app=app, **options)


# ------------------------------------------------------------------------------------------------- retries

FREE: dict[str, Callable[[Client], Awaitable[Any]]] = {
    "me": lambda service: service.me(),
    "batch": lambda service: service.batch("j"),
    "watch_list": lambda service: service.watch_list(),
    "watch_history": lambda service: service.watch_history("w"),
}
CHANGING: dict[str, Callable[[Client], Awaitable[Any]]] = {
    "verify": lambda service: service.verify(B_NO, idempotency_key="k1"),
    "create_batch": lambda service: service.create_batch(CSV, idempotency_key="k1"),
    "label": lambda service: service.label("j", 1, bounced=True),
    "watch_add": lambda service: service.watch_add(B_NO),
    "watch_remove": lambda service: service.watch_remove("w"),
}
PASSING = [
    Said(408),
    Said(429, retry_after="1"),
    Said(500),
    Said(502),
    Said(503),
    Said(504, retry_after="2"),
    Said(broken=True),
]
LASTING = [Said(400), Said(401), Said(403), Said(404), Said(413), Said(429), Said(302), Said(303), Said(799)]
GOOD = Said(200, {"status": "done", "limit": 1, "watches": [], "history": []})


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", AUTOJUMP)
@pytest.mark.parametrize("call", FREE)
@pytest.mark.parametrize("fault", PASSING, ids=lambda fault: f"{fault.status}")
async def test_what_is_free_is_asked_again_after_what_passes(call: str, fault: Said) -> None:
    """Twice by default: the third answer is the caller's, be it good or not."""
    app = App(fault, fault, GOOD)
    async with client(app) as service:
        await FREE[call](service)
    assert len(app.asked) == 3
    app = App(fault)
    async with client(app) as service:
        with pytest.raises((UnavailableError, QuotaError, NotSentError)):
            await FREE[call](service)
    assert len(app.asked) == 3


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", AUTOJUMP)
@pytest.mark.parametrize("fault", LASTING, ids=lambda fault: f"{fault.status}")
async def test_what_does_not_pass_is_raised_at_once(fault: Said) -> None:
    """A refusal, or a month's quota, is the same a second later."""
    app = App(fault)
    async with client(app) as service:
        with pytest.raises(bs.BansongError):
            await service.me()
    assert len(app.asked) == 1


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", AUTOJUMP)
@pytest.mark.parametrize("call", CHANGING)
@pytest.mark.parametrize("fault", PASSING, ids=lambda fault: f"{fault.status}")
async def test_what_is_paid_or_changes_something_is_never_sent_twice(call: str, fault: Said) -> None:
    """Not with an idempotency key either: whether the service keeps that promise, the client has not asked."""
    app = App(fault)
    async with client(app, max_retries=5) as service:
        with pytest.raises((DoubtError, QuotaError)):
            await CHANGING[call](service)
    assert len(app.asked) == 1


class Unreachable(httpx.AsyncBaseTransport):
    """A network in which no connection comes about, some times."""

    def __init__(self, times: int, *, read_first: bool = False) -> None:
        self.asked = 0
        self._times, self._read_first = times, read_first

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.asked += 1
        if self._read_first:
            await request.aread()
        if self.asked <= self._times:
            raise httpx.ConnectError("refused")
        await request.aread()
        return httpx.Response(200, json={"grade": "A", "job_id": "j", "ok": True, "watch_id": "w"})


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", AUTOJUMP)
@pytest.mark.parametrize("call", CHANGING)
async def test_what_certainly_was_not_sent_goes_again(call: str) -> None:
    """No connection, no payment: each body is made anew, and the gate of an upload is passed once."""
    network = Unreachable(2)
    async with Client(URL, KEY, http=network) as service:
        await CHANGING[call](service)
    assert network.asked == 3


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", AUTOJUMP)
async def test_what_a_transport_has_read_whole_may_have_been_sent() -> None:
    """A transport of the user's may say "no connection" after it has sent a request elsewhere: not sent again."""
    network = Unreachable(9, read_first=True)
    async with Client(URL, KEY, http=network) as service:
        with pytest.raises(NotSentError):
            await service.verify(B_NO)
    assert network.asked == 1


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", AUTOJUMP)
async def test_the_gate_of_an_upload_is_passed_once() -> None:
    """An upload that is tried again because no connection came about awaits its steps when it really goes."""
    steps: list[str] = []

    async def gate() -> None:
        steps.append("gate")

    async with Client(URL, KEY, http=Unreachable(2)) as service:
        await service.create_batch(CSV, before_last_byte=gate)
    assert steps == ["gate"]


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", AUTOJUMP)
async def test_a_retry_waits_longer_each_time_and_never_less_than_the_service_asks() -> None:
    """Half a second, a second, …, less up to a quarter by chance; with Retry-After that, and a little more."""
    app = App(Said(503), Said(503), Said(503, retry_after="7"), Said(429, retry_after="30"), ME)
    async with client(app, max_retries=4) as service:
        await service.me()
    first, second, third, fourth = app.pauses
    assert 0.375 <= first <= 0.5
    assert 0.75 <= second <= 1
    assert 7 <= third <= 7.5
    assert 30 <= fourth <= 31
    assert max(seconds_before(attempt, None) for attempt in range(1, 2000)) <= 8
    assert len({seconds_before(3, None) for _ in range(20)}) > 1


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", AUTOJUMP)
@pytest.mark.parametrize("status", [429, 503])
async def test_a_service_that_asks_for_more_than_a_minute_is_not_waited_for(status: int) -> None:
    """The caller has the error at once, and in it how long to wait."""
    app = App(Said(status, retry_after="61"))
    async with client(app) as service:
        with pytest.raises((QuotaError, UnavailableError)) as caught:
            await service.me()
    assert (len(app.asked), caught.value.retry_after) == (1, 61)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", AUTOJUMP)
async def test_how_often_is_chosen_for_the_client_and_for_a_call() -> None:
    """The call's own number comes before the client's."""
    for options, more, tries in [({"max_retries": 0}, {}, 1), ({}, {"max_retries": 0}, 1), ({}, {"max_retries": 4}, 5)]:
        app = App(Said(503))
        async with client(app, **options) as service:
            with pytest.raises(UnavailableError):
                await service.me(**more)
        assert len(app.asked) == tries


def test_the_runs_own_retries_are_not_multiplied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan asks for the quota once; what buys, and what changes the watch list, tries again by its own rules only."""
    file = tmp_path / "a.csv"
    file.write_text(f"b_no\n{B_NO}\n", encoding="utf-8")
    options: dict[str, Any] = {"engine": "verify", "api_key": KEY, "ledger": tmp_path / "ledger"}
    service = FakeService(KEY, faults=Faults(Fault("me", Status(503))))
    with serve(service) as url:
        bs.plan(file, **options, base_url=url)
    assert service.requests["me"] == 1
    made: list[int] = []
    original = Client.__init__

    def noting(self: Client, *args: Any, **more: Any) -> None:
        made.append(more.get("max_retries", 2))
        original(self, *args, **more)

    monkeypatch.setattr(Client, "__init__", noting)
    with serve(FakeService(KEY)) as url:
        bs.enrich(file, **options, base_url=url)
        assert made == [0]
        made.clear()
        bs.watch.sync(file, apply=True, base_url=url, api_key=KEY)
    assert made == [2, 0]


# ------------------------------------------------------------------------------------------------- timeouts


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", AUTOJUMP)
async def test_a_call_has_its_own_timeouts() -> None:
    """A number or Timeouts; without them the client's."""
    seen: list[dict[str, float]] = []

    class Noting(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            seen.append(request.extensions["timeout"])
            return httpx.Response(200, json={"limit": 1})

    async with Client(URL, KEY, http=Noting(), timeout=Timeouts(connect=1, read=2, write=3)) as service:
        await service.me()
        await service.me(timeout=5)
        await service.me(timeout=Timeouts(connect=0.5, read=60))
        with pytest.raises(UsageError, match="`timeout=0`"):
            await service.me(timeout=0)
        with pytest.raises(UsageError, match="`timeout='5'`"):
            await service.me(timeout="5")  # type: ignore[arg-type]
    assert [(one["connect"], one["read"], one["write"]) for one in seen] == [(1, 2, 3), (5, 5, 5), (0.5, 60, 30)]


@pytest.mark.anyio
async def test_timeouts_may_be_those_of_httpx() -> None:
    seen: list[dict[str, float]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.extensions["timeout"])
        return httpx.Response(200, json={"limit": 1})

    async with Client(URL, KEY, http=httpx.MockTransport(answer), timeout=httpx.Timeout(7, read=9)) as service:
        await service.me()
        with pytest.raises(UsageError, match="read must be a number"):
            await service.me(timeout=httpx.Timeout(5, read=None))
    assert (seen[0]["connect"], seen[0]["read"], seen[0]["write"]) == (7, 9, 7)


# ------------------------------------------------------------------------------------------------- hooks and headers


@pytest.mark.anyio
async def test_hooks_see_requests_without_the_key_and_responses() -> None:
    """What a request hook adds is sent; a response hook sees refusals, too."""
    seen: list[object] = []

    async def asked(request: httpx.Request) -> None:
        seen.append(dict(request.headers))
        request.headers["X-Trace-Id"] = "t-1"

    async def answered(response: httpx.Response) -> None:
        seen.append((response.status_code, response.json(), dict(response.request.headers)))

    app = App(Said(401, {"error": "no"}))
    async with client(app, event_hooks={"request": [asked], "response": [answered]}) as service:
        with pytest.raises(AuthenticationError):
            await service.me()
    assert app.heads[0]["x-api-key"] == KEY
    assert app.heads[0]["x-trace-id"] == "t-1"
    assert seen[1][:2] == (401, {"error": "no"})  # type: ignore[index]
    assert KEY not in str(seen)


@pytest.mark.anyio
async def test_a_hook_cannot_send_the_key_elsewhere() -> None:
    async def lead_away(request: httpx.Request) -> None:
        request.url = httpx.URL("https://elsewhere.test/me")

    app = App(ME)
    async with client(app, event_hooks={"request": [lead_away]}) as service:
        with pytest.raises(UsageError, match=r"elsewhere\.test is not the configured service"):
            await service.me()
    assert app.asked == []


@pytest.mark.anyio
async def test_a_call_has_headers_of_its_own() -> None:
    """Not those that the client sends itself: the key stays where it belongs."""
    app = App(ME)
    async with client(app) as service:
        await service.me(headers={"X-Trace-Id": "t-2"})
        for name in ("X-API-Key", "host", "Content-Length"):
            with pytest.raises(UsageError, match=f"`headers=`: {name} is sent by the client itself"):
                await service.me(headers={name: "x"})
    assert [head["x-trace-id"] for head in app.heads] == ["t-2"]


@pytest.mark.parametrize(
    ("proxy", "words"), [("socks5://a:hidden@b", "a socks5 proxy"), ("x", "no URL"), (5, "of type int")]
)
def test_a_proxy_that_is_none_is_refused_without_its_password(proxy: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        Client(URL, KEY, proxy=proxy)
    assert "hidden" not in str(caught.value)


# ------------------------------------------------------------------------------------------------- raw responses


@pytest.mark.anyio
async def test_a_reply_can_be_had_as_it_came() -> None:
    """Status, headers in any case, the service's request id, the bytes; and parse() gives what the method returns."""
    app = App(Said(203, {"limit": 10, "used": 3}, x_request_id="req-1", x_ratelimit="9", set_cookie="a=b", echo=KEY))
    async with client(app) as service:
        raw = await service.with_raw_response.me()
        assert raw.parse() == await service.me()
    assert (raw.status, raw.request_id) == (203, "req-1")
    assert raw.headers["X-RateLimit"] == raw.headers["x-ratelimit"] == "9"
    assert json.loads(raw.content) == {"limit": 10, "used": 3}
    assert "Set-Cookie" not in raw.headers
    assert KEY not in repr(raw.headers) + repr(raw) + repr(vars(raw))
    assert repr(raw) == "RawResponse(status=203, request_id='req-1')"


@pytest.mark.anyio
async def test_a_raw_reply_that_cannot_be_read_says_so_when_it_is_parsed() -> None:
    """Status and headers are there all the same."""
    async with client(App(Said(200, b"<html>", request_id="r9"))) as service:
        raw = await service.with_raw_response.verify(B_NO)
        assert raw.status == 200
        with pytest.raises(ShapeError) as caught:
            raw.parse()
    assert caught.value.request_id == "r9"


@pytest.mark.anyio
@pytest.mark.parametrize("call", FREE | CHANGING)
async def test_every_method_has_its_raw_form(call: str) -> None:
    """The same arguments, the reply instead of what it says; a refusal is raised as ever."""
    value = {"grade": "A", "job_id": "j", "watch_id": "w", "status": "done", "watches": [], "history": []}
    make = (FREE | CHANGING)[call]
    async with client(App(Said(200, value))) as service:
        assert isinstance(await make(service.with_raw_response), RawResponse)  # type: ignore[arg-type]
    async with client(App(Said(401, request_id="r1"))) as service:
        with pytest.raises(AuthenticationError):
            await make(service.with_raw_response)  # type: ignore[arg-type]


def test_a_blocking_reply_can_be_had_as_it_came() -> None:
    """As for the asynchronous client."""
    with BlockingClient(URL, KEY, app=App(Said(200, {"limit": 10}, x_request_id="req-1"))) as service:
        raw = service.with_raw_response.me()
    assert raw.parse() == Account(limit=10, raw={"limit": 10})
    assert raw.request_id == "req-1"


@pytest.mark.anyio
async def test_an_error_carries_the_services_request_id() -> None:
    """What the service's support asks for, whatever went wrong; it survives a pickle."""
    async with client(App(Said(401, {"error": "no"}, x_request_id=f"abc-{KEY}"))) as service:
        with pytest.raises(AuthenticationError) as caught:
            await service.me()
    assert caught.value.request_id == "abc-[key]"
    assert pickle.loads(pickle.dumps(caught.value)).request_id == "abc-[key]"
    async with client(App(Said(401))) as service:
        with pytest.raises(AuthenticationError) as caught:
            await service.me()
    assert caught.value.request_id is None


# ------------------------------------------------------------------------------------------------- the network


@pytest.mark.anyio
async def test_a_transport_of_the_users_carries_all_requests_and_stays_open() -> None:
    """Uploads too; it is closed by who made it."""

    class Own(httpx.MockTransport):
        closed = False

        async def aclose(self) -> None:
            self.closed = True

    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(f"{request.method} {request.url.path} {request.headers['x-api-key']}")
        if request.url.path == "/me":
            return httpx.Response(200, json={"limit": 3}, headers={"x-request-id": "own"})
        return httpx.Response(503)

    own = Own(answer)
    async with Client("https://api.example.com", KEY, http=own) as service:
        assert (await service.with_raw_response.me()).request_id == "own"
        with pytest.raises(DoubtError):
            await service.create_batch(CSV)
    assert asked == [f"GET /me {KEY}", f"POST /batch {KEY}"]
    assert not own.closed


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"http": httpx.AsyncClient}, "`http=`: of type type; give an httpx.AsyncBaseTransport"),
        ({"http": httpx.MockTransport(lambda _: httpx.Response(200)), "verify": "x.pem"}, "leave `verify=` out"),
        ({"http": httpx.MockTransport(lambda _: httpx.Response(200)), "app": App()}, "leave `app=` out"),
        ({"verify": 5}, "`verify=`: of type int; give the path"),
        ({"verify": "/no/such.pem"}, r"`verify='/no/such.pem'`: cannot be read: No such file"),
        ({"verify": __file__}, "holds no certificates in PEM form"),
        ({"verify": False}, "would get the API key"),
        ({"verify": ssl._create_unverified_context()}, "would get the API key"),
        ({"max_retries": -1}, "`max_retries=-1`: must be 0 or more"),
        ({"max_retries": "2"}, "`max_retries=`: of type str; give an int"),
        ({"concurrency": 2.5}, "`concurrency=`: of type float; give an int"),
    ],
)
@pytest.mark.parametrize("kind", [Client, BlockingClient])
def test_what_cannot_be_an_option_of_the_network_is_refused(
    kind: type[Client], options: dict[str, Any], words: str
) -> None:
    """The parameter, what is wrong with it, and what to give instead."""
    with pytest.raises(UsageError, match=words):
        kind("https://api.example.com", KEY, **options)


def test_certificates_may_go_unchecked_on_this_machine_only() -> None:
    """There the key does not leave it."""
    Client("https://localhost:9", KEY, verify=False)
    Client("https://127.0.0.1:9", KEY, verify=ssl._create_unverified_context())
    Client("https://api.example.com", KEY, verify=ssl.create_default_context())


def test_the_user_agent_names_the_runtime() -> None:
    """Product and version, then what it runs on."""
    app = App(ME)
    with BlockingClient(URL, KEY, app=app) as service:
        service.me()
    assert app.heads[0]["user-agent"] == user_agent()
    runtime = f"{platform.python_implementation()} {platform.python_version()}; {platform.system()}"
    assert user_agent() == f"bansong/{bs.__version__} ({runtime})"
    assert user_agent().isascii()


# ------------------------------------------------------------------------------------------------- open and close


@pytest.mark.anyio
async def test_a_client_is_opened_and_closed_without_a_block() -> None:
    """Both may be called again; a closed client may be opened once more."""
    service = await client(App(ME)).open()
    assert await service.open() is service
    assert (await service.me()).limit == 10
    await service.aclose()
    await service.aclose()
    with pytest.raises(UsageError, match=r"await client.open\(\)"):
        await service.me()
    async with service:
        assert (await service.me()).limit == 10


def test_a_blocking_client_is_opened_and_closed_without_a_block() -> None:
    """Its thread ends when it is closed."""
    before = threading.active_count()
    service = BlockingClient(URL, KEY, app=App(ME)).open()
    assert service.open() is service
    assert service.me().limit == 10
    with pytest.raises(UsageError, match="open already"):
        service.__enter__()
    service.close()
    service.close()
    assert threading.active_count() == before
    with pytest.raises(UsageError, match=r"client.open\(\)"):
        service.me()
    with service:
        assert service.me().limit == 10
    assert threading.active_count() == before


def test_a_cell_that_runs_again_ends_the_client_it_replaces() -> None:
    """A forgotten client warns as a file does, and its thread ends."""
    before = threading.active_count()
    service = BlockingClient(URL, KEY, app=App(ME)).open()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        service = BlockingClient(URL, KEY, app=App(ME)).open()
        gc.collect()
    said = [str(warning.message) for warning in warned if warning.category is ResourceWarning]
    assert said == ["unclosed BlockingClient('http://localhost:9')"]
    assert threading.active_count() == before + 1
    assert service.me().limit == 10
    service.close()
    assert threading.active_count() == before


@pytest.mark.anyio
async def test_a_forgotten_client_warns() -> None:
    """As a file does."""
    service = await client(App(ME)).open()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        del service
        gc.collect()
    assert "unclosed Client('http://localhost:9')" in [str(warning.message) for warning in warned]


@pytest.mark.parametrize("reference", ["client", "cell = [client]; cell.append(cell); del client"])
@pytest.mark.process
def test_a_forgotten_client_does_not_keep_the_interpreter_from_ending(reference: str, tmp_path: Path) -> None:
    """Whatever threads its calls have made; with ``-W default`` it says so at the end."""
    code = (
        "import pathlib, sys, bansong as bs, httpx\n"
        "http = httpx.MockTransport(lambda _: httpx.Response(200, json={'limit': 7, 'job_id': 1}))\n"
        "client = bs.BlockingClient('http://localhost:9', 'k', http=http).open()\n"
        f"client.create_batch(pathlib.Path(sys.argv[1]))\nprint(client.me().limit)\n{reference}\n"
    )
    file = tmp_path / "a.csv"
    file.write_bytes(CSV)
    done = subprocess.run(
        [sys.executable, "-W", "default::ResourceWarning", "-c", code, file],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "7\n")
    assert "ResourceWarning: unclosed BlockingClient('http://localhost:9')" in done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.process
def test_a_forked_process_ends_and_cannot_use_its_parents_client() -> None:
    """The thread of the loop is not there: waiting for it would last for ever."""
    code = (
        "import os, sys, bansong as bs, httpx\n"
        "http = httpx.MockTransport(lambda _: httpx.Response(200, json={'limit': 7}))\n"
        "client = bs.BlockingClient('http://localhost:9', 'k', http=http).open()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    try: client.me()\n"
        "    except bs.errors.UsageError as error: print(error, flush=True)\n"
        "    sys.exit(3)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), client.me().limit)\n"
        "client.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "opened in the process that this one was forked from" in done.stdout
    assert done.stdout.endswith("3 7\n")


def test_several_threads_open_one_client() -> None:
    """One loop is made, and none is left when the client is closed."""
    before = threading.active_count()
    service, together = BlockingClient(URL, KEY, app=App(ME)), threading.Barrier(8)

    def open_it() -> None:
        together.wait(20)
        service.open()

    threads = [threading.Thread(target=open_it) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert threading.active_count() == before + 1
    service.close()
    assert threading.active_count() == before


def test_a_client_that_cannot_open_says_why_and_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes wrong in the thread is raised where open() was called."""
    monkeypatch.setenv("HTTPS_PROXY", "socks5://localhost:1")
    monkeypatch.setenv("https_proxy", "socks5://localhost:1")
    before = threading.active_count()
    service = BlockingClient("https://api.example.com", KEY)
    with pytest.raises(UsageError, match="socks5 proxy"):
        service.open()
    assert threading.active_count() == before


# ------------------------------------------------------------------------------------------------- jobs


def status(word: str, results: int = 0, total: int | None = None) -> Said:
    rows = [{"row_id": row, "grade": "A"} for row in range(results)]
    return Said(200, {"status": word, "results": rows} | ({} if total is None else {"total": total}))


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", AUTOJUMP)
async def test_a_job_is_waited_for() -> None:
    """Each look goes to ``progress``; a job that was just created may be unknown for some moments; a second apart."""
    app = App(Said(404), status("queued"), status("running"), status("done", 1))
    seen: list[str] = []
    async with client(app) as service:
        ended = await service.wait(BatchCreated(job_id="j", raw={}), progress=lambda now: seen.append(now.status))
    assert ended.state == "done"
    assert seen == ["queued", "running", "done"]
    assert app.pauses == pytest.approx([1, 1, 1])
    assert set(app.asked) == {"GET /batch/j?preview=1"}


@pytest.mark.anyio
async def test_a_status_word_that_is_not_known_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever waits for a job must hear why it does not end, and the API key must not be heard."""
    words = [f"dozing {KEY}", f"dozing {KEY}", "running", "done"]
    app = App(*(Said(value={"status": word, "results": [], "total": 0}) for word in words))
    async with Client(URL, KEY, app=app) as service:
        assert (await service.wait("j", poll=0.001)).state == "done"
        assert (await service.with_raw_response.batch("j")).parse().state == "done"
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "the status word 'dozing [key]' of the service is not known: its job is taken as still at work"
    ]


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", AUTOJUMP)
async def test_a_job_that_failed_has_ended_and_one_that_is_unknown_is_an_error() -> None:
    """Its status is returned; an identifier that the service does not know is told at once."""
    async with client(App(status("failed"))) as service:
        assert (await service.wait("j")).state == "failed"
    app = App(Said(404))
    async with client(app) as service:
        with pytest.raises(NotFoundError):
            await service.wait("j")
    assert len(app.asked) == 1


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", AUTOJUMP)
async def test_waiting_has_an_end() -> None:
    """The error says how far the job was; what the service does not answer counts too."""
    app = App(status("running"))
    async with client(app) as service:
        start = anyio.current_time()
        with pytest.raises(JobTimeoutError, match=r"job j is not done after 90 s \(its status: 'running'\)"):
            await service.wait("j", timeout=90, poll=20)
        assert anyio.current_time() - start == pytest.approx(90)
    assert len(app.asked) == 5

    async def silent(scope: Any, receive: Any, send: Any) -> None:
        await anyio.sleep(1e6)

    async with client(silent) as service:
        with pytest.raises(JobTimeoutError, match="its status: unknown"):
            await service.wait("j", timeout=5)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", AUTOJUMP)
async def test_a_long_job_is_looked_at_less_often() -> None:
    """An hour of waiting is no 3,600 requests."""
    app = App(status("running"))
    async with client(app) as service:
        with pytest.raises(JobTimeoutError):
            await service.wait("j", timeout=3600)
    assert len(app.asked) < 400
    assert max(app.pauses) <= 31


def test_a_blocking_client_waits_too_and_calls_progress_in_the_callers_thread() -> None:
    """There a callback may use the client itself."""
    app = App(status("running"), ME, status("done"), ME, status("running"))
    seen: list[tuple[str, int | None, bool]] = []
    with BlockingClient(URL, KEY, app=app) as service:

        def progress(now: BatchStatus) -> None:
            here = threading.current_thread() is threading.main_thread()
            seen.append((now.status, service.me().limit, here))

        assert service.wait("j", poll=0.01, progress=progress).state == "done"
        with pytest.raises(JobTimeoutError, match="it goes on at the service"):
            service.wait("j", poll=60, timeout=0.01)
    assert seen == [("running", 10, True), ("done", 10, True)]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("job", "options", "answers", "asked"),
    [
        (BatchCreated(job_id="j", total=3, raw={}), {}, [status("done", 3)], ["3"]),
        ("j", {}, [status("done", 1, 3), status("done", 3, 3)], ["1", "3"]),
        ("j", {"total": 3}, [status("done", 3)], ["3"]),
    ],
)
async def test_all_results_of_a_job_come_one_by_one(
    job: str | BatchCreated, options: dict[str, int], answers: list[Said], asked: list[str]
) -> None:
    """How many there are is known from the upload, from the service, or from the caller."""
    app = App(*answers)
    async with client(app) as service:
        assert [result.key async for result in service.results(job, **options)] == [0, 1, 2]
    assert app.asked == [f"GET /batch/j?preview={preview}" for preview in asked]
    with BlockingClient(URL, KEY, app=App(*answers)) as service:
        assert [result.key for result in service.results(job, **options)] == [0, 1, 2]


@pytest.mark.anyio
async def test_results_that_are_missing_are_told_after_those_that_came() -> None:
    """None is lost silently: a service that shows fewer than there are ends the iteration with an error."""
    async with client(App(status("done", 2))) as service:
        asynchronous = service.results("j", total=5)
        assert [(await anext(asynchronous)).key, (await anext(asynchronous)).key] == [0, 1]
        with pytest.raises(ShapeError, match="2 of 5 results came"):
            await anext(asynchronous)
        with pytest.raises(StopAsyncIteration):
            await anext(asynchronous)
    with BlockingClient(URL, KEY, app=App(status("done", 2))) as blocking:
        results = blocking.results("j", total=5)
        assert [next(results).key, next(results).key] == [0, 1]
        with pytest.raises(ShapeError, match="2 of 5 results came"):
            next(results)


@pytest.mark.anyio
async def test_results_are_of_a_job_that_has_ended_and_says_how_many_they_are() -> None:
    """Else the remedy is told."""
    async with client(App(status("running", 0, 3))) as service:
        with pytest.raises(UsageError, match=r"still 'running'; wait for it first: client.wait\(job\)"):
            await anext(service.results("j"))
    async with client(App(status("done", 1))) as service:
        with pytest.raises(UsageError, match="how many rows job j has; give `total=`"):
            await anext(service.results("j"))


# ------------------------------------------------------------------------------------------------- uploads


@pytest.fixture
def sheet(tmp_path: Path) -> Path:
    import openpyxl

    book = openpyxl.Workbook()
    book.active.append(["b_no"])  # type: ignore[union-attr]
    book.save(tmp_path / "고객.XLSX")
    return tmp_path / "고객.XLSX"


XLSX = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"


@pytest.mark.anyio
async def test_an_upload_comes_from_bytes_a_path_or_a_file(tmp_path: Path, sheet: Path) -> None:
    """The name and the kind follow the file, and a charset is claimed only where it is true."""
    korean = tmp_path / "old.csv"
    korean.write_bytes("b_no,name\n1248100998,삼성\n".encode("cp949"))
    listed = tmp_path / "rows.json"
    listed.write_bytes(b'[{"b_no": "1248100998"}]')
    app = App(Said(200, {"job_id": "j", "total": 1}))
    async with client(app) as service:
        await service.create_batch(CSV)
        await service.create_batch(bytearray(CSV), filename="고객.csv")
        await service.create_batch(sheet)
        await service.create_batch(korean)
        await service.create_batch(listed, filename="other.json")
        with sheet.open("rb") as file:
            await service.create_batch(file)
        await service.create_batch(io.BytesIO(sheet.read_bytes()))
        await service.create_batch(memoryview(listed.read_bytes()))
    heads = [body.split(b"\r\n\r\n")[0].decode().splitlines()[1:] for body in app.bodies]
    parts = [(head[0].partition("filename=")[2].strip('"'), head[1].removeprefix("Content-Type: ")) for head in heads]
    assert parts == [
        ("lookups.csv", "text/csv; charset=utf-8"),
        ("고객.csv", "text/csv; charset=utf-8"),
        ("고객.XLSX", XLSX),
        ("old.csv", "text/csv"),
        ("other.json", "application/json"),
        ("고객.XLSX", XLSX),
        ("lookups.xlsx", XLSX),
        ("lookups.json", "application/json"),
    ]
    assert sheet.read_bytes() in app.bodies[2]


class NoFile:
    def read(self) -> int:
        return 5


def shut() -> io.BytesIO:
    file = io.BytesIO(CSV)
    file.close()
    return file


class WriteOnly:
    def read(self) -> bytes:
        raise io.UnsupportedOperation("not readable")


@pytest.mark.parametrize(
    ("content", "more", "words"),
    [
        ("b_no,name\n", {}, r"`content=`: of type str; give pathlib.Path\(…\) for a file's path, or the text's bytes"),
        (5, {}, "`content=`: of type int; give bytes, a pathlib.Path or a file that is open in binary mode"),
        (None, {}, "`content=`: of type NoneType"),
        ([b"a"], {}, "`content=`: of type list"),
        (io.StringIO("b_no\n"), {}, r"its read\(\) returns str; open the file in binary mode"),
        (NoFile(), {}, r"its read\(\) returns int"),
        (shut(), {}, "`content=`: cannot be read .*closed file"),
        (WriteOnly(), {}, "`content=`: cannot be read .*open for reading, in binary mode"),
        (Path("a\0.csv"), {}, "`content=.*`: no path has a NUL character"),
        (b"", {}, "`content=`: holds no rows"),
        (CSV, {"filename": "a.pdf"}, r"`filename='a.pdf'`: the service takes .csv, .json, .xls"),
        (CSV, {"filename": 5}, "`filename=`: of type int"),
        (CSV, {"paid": "true"}, "`paid=`: of type str; give True or False"),
        (CSV, {"offline": 1}, "`offline=`: of type int"),
        (CSV, {"idempotency_key": 5}, "`idempotency_key=`: of type int"),
    ],
)
def test_an_upload_that_is_no_file_is_refused_before_anything_is_sent(
    content: Any, more: dict[str, Any], words: str
) -> None:
    """A str is neither taken for a path nor for the file's text."""
    app = App(ME)
    with BlockingClient(URL, KEY, app=app) as service, pytest.raises(UsageError, match=words):
        service.create_batch(content, **more)
    assert app.asked == []


def test_a_path_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    """As for every other input."""
    with BlockingClient(URL, KEY, app=App(ME)) as service, pytest.raises(InputError, match="No such file"):
        service.create_batch(tmp_path / "none.csv")


# ------------------------------------------------------------------------------------------------- arguments

WRONG: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    ("verify", (1248100998,), {}, "`b_no=`: of type int; give the number as a str, like '124-81-00998'"),
    ("verify", (None,), {}, "`b_no=`: of type NoneType"),
    ("verify", (B_NO, 5), {}, "`name=`: of type int; give a str, or leave it out"),
    ("verify", (B_NO, None, ["a"]), {}, "`address=`: of type list"),
    ("verify", (B_NO,), {"idempotency_key": b"k"}, "`idempotency_key=`: of type bytes"),
    ("batch", (5,), {}, "`job_id=`: of type int; give the job's identifier as a str"),
    ("batch", ("j",), {"preview": "5"}, "`preview=`: of type str; give an int"),
    ("batch", ("j",), {"preview": True}, "`preview=`: of type bool; give an int"),
    ("batch", ("j",), {"preview": -1}, "`preview=-1`: must be 0 or more"),
    ("label", ("j", "3"), {"bounced": True}, "`row_id=`: of type str; give an int"),
    ("label", ("j", 3), {"bounced": "yes"}, "`bounced=`: of type str; give True or False"),
    ("label", (None, 3), {"bounced": True}, "`job_id=`: of type NoneType"),
    ("label", ("j", 3), {"bounced": True, "reason": 5}, "`reason=`: of type int"),
    ("watch_add", (1248100998,), {}, "`biz_no=`: of type int"),
    ("watch_add", (B_NO,), {"name": 5}, "`name=`: of type int"),
    ("watch_remove", (5,), {}, "`watch_id=`: of type int"),
    ("watch_history", (5,), {}, "`watch_id=`: of type int"),
    ("me", (), {"max_retries": 1.5}, "`max_retries=`: of type float"),
    ("wait", (5,), {}, "`job=`: of type int; give what create_batch returned"),
    ("wait", ("j",), {"timeout": "5"}, "`timeout=`: of type str; give seconds"),
    ("wait", ("j",), {"poll": 0}, "`poll=0`: must be a number of seconds above 0"),
    ("results", (5,), {}, "`job=`: of type int"),
    ("results", ("j",), {"total": "5"}, "`total=`: of type str"),
]


@pytest.mark.anyio
@pytest.mark.parametrize(("name", "args", "more", "words"), WRONG)
async def test_an_argument_of_the_wrong_type_is_refused_before_anything_is_sent(
    name: str, args: tuple[Any, ...], more: dict[str, Any], words: str
) -> None:
    """The parameter, the type that came, what to give instead; not the value, which may be a person's."""
    app = App(ME)
    async with client(app) as service:

        async def call() -> None:
            found = getattr(service, name)(*args, **more)
            if inspect.isawaitable(found):
                await found

        with pytest.raises(UsageError, match=words) as caught:
            await call()
    assert "1248100998" not in str(caught.value)
    with BlockingClient(URL, KEY, app=app) as service, pytest.raises(UsageError, match=words):
        getattr(service, name)(*args, **more)
    assert app.asked == []


@pytest.mark.anyio
async def test_whole_numbers_of_other_libraries_are_whole_numbers() -> None:
    """A row of a frame has numpy's."""
    import numpy as np

    app = App(Said(200, b""))
    async with client(app) as service:
        await service.label("j", np.int64(3), bounced=True)  # type: ignore[arg-type]
    assert json.loads(app.bodies[0]) == {"row_id": 3, "bounced": True}


# ------------------------------------------------------------------------------------------------- signatures


@pytest.mark.parametrize("kind", [BlockingClient, RawClient, BlockingRawClient])
def test_help_and_completion_know_every_method(kind: type[Any]) -> None:
    """Names, parameters and docstrings are the client's, on the class and on an instance."""
    inner = {BlockingClient: lambda: BlockingClient(URL, KEY), RawClient: lambda: Client(URL, KEY).with_raw_response}
    made = inner.get(kind, lambda: BlockingClient(URL, KEY).with_raw_response)()
    names = [*(FREE | CHANGING)]
    for name in names:
        method, twin, bound = getattr(Client, name), getattr(kind, name), getattr(made, name)
        assert list(inspect.signature(twin).parameters.values()) == list(inspect.signature(method).parameters.values())
        assert list(inspect.signature(bound).parameters) == list(inspect.signature(method).parameters)[1:]
        assert (twin.__name__, twin.__qualname__, twin.__doc__) == (name, f"{kind.__name__}.{name}", method.__doc__)
        assert name in dir(made)
    lines = [line.removeprefix(" |").strip() for line in pydoc.plain(pydoc.render_doc(kind)).splitlines()]
    shown = " ".join(lines).replace("( ", "(")  # from Python 3.13 on, pydoc breaks a long signature into lines
    assert "batch(self, job_id: 'str', *, preview: 'int | None' = None" in shown
    assert "async batch" not in shown if kind is not RawClient else "batch" in shown
    returned = inspect.signature(kind.me).return_annotation
    assert returned == ("Account" if kind is BlockingClient else "RawResponse[Account]")


def test_the_constructors_say_what_their_arguments_are() -> None:
    """All of them, the same for both."""
    for kind in (Client, BlockingClient):
        said = kind.__init__.__doc__ or ""
        assert [name for name in inspect.signature(kind).parameters if f"``{name}``" not in said] == [
            "base_url",
            "api_key",
        ]
        assert "base_url" in (Client.__doc__ or "")
    for name in ("wait", "results"):
        assert getattr(BlockingClient, name).__doc__.startswith(getattr(Client, name).__doc__[:30])
        assert list(inspect.signature(getattr(BlockingClient, name)).parameters) == list(
            inspect.signature(getattr(Client, name)).parameters
        )


# ------------------------------------------------------------------------------------------------- the key as text


def frames_of(error: BaseException) -> Iterator[str]:
    """The variables of all of bansong's frames that a traceback could show."""
    seen: BaseException | None = error
    while seen is not None:
        for frame, _ in traceback.walk_tb(seen.__traceback__):
            if "bansong" in str(frame.f_globals.get("__name__")):
                for name, value in frame.f_locals.items():
                    with suppress(AttributeError):  # a client that is half made
                        yield f"{frame.f_code.co_name}.{name} = {value!r}"
        seen = seen.__cause__ or seen.__context__


TAKERS: dict[str, Callable[[Path, str], object]] = {
    "enrich": lambda file, key: bs.enrich(file, engine="verify", base_url="ftp://x", api_key=key),
    "plan": lambda file, key: bs.plan(file, engine="verify", base_url="ftp://x", api_key=key),
    "verify": lambda _, key: bs.verify(B_NO, engine="verify", base_url="ftp://x", api_key=key),
    "verify_frame": lambda _, key: bs.verify_frame(None, engine="verify", base_url="ftp://x", api_key=key),
    "aenrich": lambda file, key: anyio.run(lambda: bs.aenrich(file, engine="verify", base_url="ftp://x", api_key=key)),
    "label": lambda file, key: bs.label(file, file=file, mailed=date.max, send=True, base_url="ftp://x", api_key=key),
    "sync": lambda file, key: bs.watch.sync(file, base_url="ftp://x", api_key=key),
    "add": lambda _, key: bs.watch.add(B_NO, base_url="ftp://x", api_key=key),
    "remove": lambda _, key: bs.watch.remove("w", base_url="ftp://x", api_key=key),
    "entries": lambda _, key: bs.watch.entries(base_url="ftp://x", api_key=key),
    "history": lambda _, key: bs.watch.history("w", base_url="ftp://x", api_key=key),
    "history_frame": lambda _, key: bs.watch.history_frame("w", base_url="ftp://x", api_key=key),
    "Client": lambda _, key: Client("ftp://x", key),
    "BlockingClient": lambda _, key: BlockingClient("ftp://x", key),
}


@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize("key", [KEY, f"{KEY} with space"])
def test_a_key_given_as_text_is_in_no_traceback(taker: str, key: str, tmp_path: Path) -> None:
    """Neither a key that is one, when something else is wrong, nor one that cannot be a key."""
    file = tmp_path / "a.csv"
    file.write_text(f"b_no\n{B_NO}\n", encoding="utf-8")
    with pytest.raises((bs.BansongError, TypeError)) as caught:
        TAKERS[taker](file, key)
    shown = [*frames_of(caught.value), str(caught.value)]
    assert shown
    assert [line for line in shown if KEY in line] == []
    if " " in key:
        assert "the API key holds a space" in str(caught.value)


def test_a_run_takes_its_key_as_text(tmp_path: Path) -> None:
    """As the client does; what is no text is refused by name."""
    file = tmp_path / "a.csv"
    file.write_text(f"b_no\n{B_NO}\n", encoding="utf-8")
    service = FakeService(KEY)
    with serve(service) as url:
        report = bs.enrich(file, engine="verify", base_url=url, api_key=KEY, ledger=tmp_path / "ledger")
        assert bs.watch.entries(base_url=url, api_key=KEY).height == 0
    assert service.paid_total == 1
    assert KEY not in repr(report)
    assert KEY.encode() not in (tmp_path / "ledger").read_bytes()
    with pytest.raises(UsageError, match="the API key is of type int, and no str"):
        bs.plan(file, engine="verify", api_key=4711)
    with pytest.raises(UsageError, match="the API key is of type bytes"):
        Client(URL, b"k")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="`base_url=`: of type int"):
        Client(5, KEY)  # type: ignore[arg-type]
