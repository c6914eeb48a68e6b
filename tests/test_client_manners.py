"""How the client behaves towards its users: retries, timeouts, raw replies, opening and closing, arguments."""

from __future__ import annotations

import gc
import inspect
import io
import json
import os
import pickle
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
import numpy as np
import pytest
import trio.testing

import bansong as bs
from bansong import errors
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
from bansong.client.arguments import upload_file
from bansong.client.errors import seconds_before
from bansong.testing import FakeService, Fault, Faults, Status, serve

pytestmark = pytest.mark.anyio

URL = "http://localhost:9"
KEY = "bv-secret-4711"
B_NO = "124-81-00998"
CSV = b"b_no,name,address\n1248100998,,\n"

autojump = pytest.mark.parametrize("anyio_backend", [("trio", {"clock": trio.testing.MockClock(autojump_threshold=0)})])
"""Time passes at once where everybody waits for it."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


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
LATER = Said(429, retry_after="1")
PASSING = [LATER, Said(broken=True), *map(Said, (408, 500, 502, 503)), Said(504, retry_after="2")]
KINDS: dict[Said, type[errors.ServiceError]] = dict.fromkeys(PASSING, errors.ServerError)
KINDS |= {LATER: errors.QuotaError, PASSING[1]: errors.ServiceConnectionError, PASSING[2]: errors.UnavailableError}
LASTING = (400, 401, 403, 404, 413, 429, 302, 303, 799)
GOOD = Said(200, {"status": "done", "limit": 1, "watches": [], "history": []})


async def tries(call: Callable[[Client], Awaitable[Any]], *answers: Said, **options: Any) -> tuple[int, type | None]:
    """How often a call asks, and the class of the error that it ends in."""
    app = App(*answers)
    async with client(app, **options) as service:
        try:
            await call(service)
        except bs.BansongError as error:
            return len(app.asked), type(error)
    return len(app.asked), None


@autojump
async def test_what_is_free_is_asked_again_after_what_passes() -> None:
    for call in FREE.values():
        assert await tries(call, PASSING[0], PASSING[1], GOOD) == (3, None)
    for fault in PASSING:
        assert await tries(FREE["me"], fault, fault, GOOD) == (3, None)
        assert await tries(FREE["me"], fault) == (3, KINDS[fault])
    assert [(await tries(FREE["me"], Said(status)))[0] for status in LASTING] == [1] * len(LASTING)


@autojump
@pytest.mark.parametrize("call", CHANGING)
async def test_what_is_paid_or_changes_something_is_never_sent_twice(call: str) -> None:
    ends = [await tries(CHANGING[call], fault, max_retries=5) for fault in PASSING]
    assert ends == [(1, errors.QuotaError), *[(1, errors.DoubtError)] * 6]


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


@autojump
async def test_what_certainly_was_not_sent_goes_again_and_what_was_read_whole_does_not() -> None:
    for call in CHANGING.values():
        network = Unreachable(2)
        async with Client(URL, KEY, http_client=network) as service:
            await call(service)
        assert network.asked == 3
    network = Unreachable(9, read_first=True)  # a transport of the user's may have sent it before, or elsewhere
    async with Client(URL, KEY, http_client=network) as service:
        with pytest.raises(errors.DoubtError):
            await service.verify(B_NO)
    assert network.asked == 1


@autojump
async def test_the_gate_of_an_upload_is_passed_once() -> None:
    steps: list[str] = []

    async def gate() -> None:
        steps.append("gate")

    async with Client(URL, KEY, http_client=Unreachable(2)) as service:
        await service.create_batch(CSV, before_last_byte=gate)
    assert steps == ["gate"]


@autojump
async def test_a_retry_waits_longer_each_time_and_never_less_than_the_service_asks() -> None:
    app = App(Said(503), Said(503), Said(503, retry_after="7"), Said(429, retry_after="30"), ME)
    async with client(app, max_retries=4) as service:
        await service.me()
    bounds = [(0.375, 0.5), (0.75, 1), (7, 7.5), (30, 31)]
    assert [low <= pause <= high for pause, (low, high) in zip(app.pauses, bounds, strict=True)] == [True] * 4
    assert max(seconds_before(attempt, None) for attempt in range(1, 2000)) <= 8
    for status in (429, 503):  # more than a minute is not waited for
        assert (await tries(FREE["me"], Said(status, retry_after="61")))[0] == 1


@autojump
async def test_how_often_is_chosen_for_the_client_and_for_a_call() -> None:
    assert await tries(FREE["me"], Said(503), max_retries=0) == (1, errors.ServerError)
    for retries in (0, 4):
        assert (await tries(lambda service, n=retries: service.me(max_retries=n), Said(503)))[0] == retries + 1  # type: ignore[misc]


def test_the_runs_own_retries_are_not_multiplied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What buys, and what changes the watch list, tries again by its own rules only (decision 022)."""
    file = tmp_path / "a.csv"
    file.write_text(f"b_no\n{B_NO}\n", encoding="utf-8")
    options: dict[str, Any] = {"engine": "verify", "api_key": KEY, "ledger": tmp_path / "ledger"}
    service = FakeService(KEY, faults=Faults(Fault("me", Status(503), times=1)))
    made, original = list[int](), Client.__init__

    def noting(self: Client, *args: Any, **more: Any) -> None:
        made.append(more.get("max_retries", 2))
        original(self, *args, **more)

    monkeypatch.setattr(Client, "__init__", noting)
    with serve(service) as url:
        bs.plan(file, **options, base_url=url)
        assert service.requests["me"] == 1
        bs.enrich(file, **options, base_url=url)
        bs.watch.sync(file, apply=True, base_url=url, api_key=KEY)
    assert made == [0, 0, 2, 0]


async def test_a_call_has_its_own_timeouts_and_headers_and_a_transport_of_the_users_stays_open() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={"limit": 1, "job_id": "j"})

    class Transport(httpx.MockTransport):
        closed = False

        async def aclose(self) -> None:
            self.closed = True

    http = Transport(answer)
    own = Timeouts(connect=1, read=2, write=3)
    async with Client(URL, KEY, http_client=http, timeout=own) as service:
        await service.me(headers={"X-Trace-Id": "t-2"})
        for timeout in (5, Timeouts(connect=0.5, read=60), httpx.Timeout(7, read=9)):
            await service.me(timeout=timeout)  # type: ignore[arg-type]
        for wrong in (0, "5", httpx.Timeout(5, read=None)):
            with pytest.raises(errors.UsageError):
                await service.me(timeout=wrong)  # type: ignore[arg-type]
        wrong_headers = [("X-API-Key", "x"), ("host", "x"), ("X-A", "가"), ("X-A", "a\nb"), ("X A", "a"), ("X-A", 1)]
        for name, value in wrong_headers:
            with pytest.raises(errors.UsageError):
                await service.me(headers={name: value})  # type: ignore[dict-item]
        await service.create_batch(CSV, timeout=own)
    assert (http.closed, seen.pop().url.path) == (False, "/batch")
    timeouts = [tuple(one.extensions["timeout"][part] for part in ("connect", "read", "write")) for one in seen]
    assert timeouts == [(1, 2, 3), (5, 5, 5), (0.5, 60, 30), (7, 9, 7)]
    assert seen[0].headers["x-trace-id"] == "t-2"


async def test_hooks_see_requests_without_the_key_and_cannot_send_it_elsewhere() -> None:
    seen: list[object] = []

    async def asked(request: httpx.Request) -> None:
        seen.append(dict(request.headers))
        request.headers["X-Trace-Id"] = "t-1"

    async def answered(response: httpx.Response) -> None:
        seen.append((response.status_code, response.json(), dict(response.request.headers)))

    async def lead_away(request: httpx.Request) -> None:
        request.url = httpx.URL("https://elsewhere.test/me")

    app = App(Said(401, {"error": "no"}))
    async with client(app, event_hooks={"request": [asked], "response": [answered]}) as service:
        with pytest.raises(errors.AuthenticationError):
            await service.me()
    assert (app.heads[0]["x-api-key"], app.heads[0]["x-trace-id"]) == (KEY, "t-1")
    assert seen[1][:2] == (401, {"error": "no"})  # type: ignore[index]
    assert KEY not in str(seen)
    async with client(app, event_hooks={"request": [lead_away]}) as service:
        with pytest.raises(errors.UsageError) as caught:
            await service.me()
    assert caught.value.code == "service.host_not_configured"
    assert len(app.asked) == 1


async def test_hooks_of_the_clients_own_see_an_answer_with_other_than_ascii_in_its_head() -> None:
    seen: list[str] = []

    async def note(response: httpx.Response) -> None:
        seen.append(response.headers["x-note"])

    async with client(App(Said(200, {"limit": 10}, x_note="가")), event_hooks={"response": [note]}) as service:
        assert (await service.me()).limit == 10
    assert seen == ["가"]


class Recorder(httpx.AsyncBaseTransport):
    """A network that notes requests as they would be sent, and answers each with the next of these."""

    def __init__(self, *answers: httpx.Response) -> None:
        self.asked: list[httpx.Request] = []
        self._answers = list(answers)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        self.asked.append(request)
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


@pytest.mark.parametrize("location", ["https://elsewhere.test/verify", f"{URL}/verify"])
async def test_a_clients_own_ways_do_not_repeat_change_or_redirect_a_paid_request(location: str) -> None:
    led = httpx.Response(307, headers={"Location": location, "Set-Cookie": "a=b"})
    network = Recorder(led, httpx.Response(200, json={"grade": "A"}))
    http = httpx.AsyncClient(
        transport=network, follow_redirects=True, cookies={"c": "d"}, headers={"X-Gateway": "g"}, base_url="http://b"
    )
    async with Client(URL, KEY, http_client=http) as service:
        with pytest.raises(errors.RejectedError):
            await service.verify(B_NO)
        assert (await service.verify(B_NO, headers={"x-gateway": "h"})).grade == "A"
    heads = [one.headers for one in network.asked]
    assert [str(one.url) for one in network.asked] == [f"{URL}/verify"] * 2
    assert [(head["x-api-key"], head["x-gateway"], head["connection"]) for head in heads] == [
        (KEY, "g", "close"),
        (KEY, "h", "close"),  # nothing looks for surplus bytes on its connections
    ]
    assert [(head.get("cookie"), head["user-agent"].partition("/")[0]) for head in heads] == [(None, "bansong")] * 2
    assert (dict(http.cookies), http.is_closed) == ({"c": "d"}, False)


def test_a_callers_client_that_leads_away_from_this_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://proxy.test:3128")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1")
    with pytest.raises(errors.UsageError) as caught:
        Client(URL, KEY, http_client=httpx.AsyncClient())
    assert caught.value.code == "service.http_client_leaves"
    Client(URL, KEY, http_client=httpx.AsyncClient(trust_env=False))
    Client(URL, KEY, http_client=httpx.AsyncClient(transport=MOCK))
    Client("http://127.0.0.1:9", KEY, http_client=httpx.AsyncClient())
    Client("https://api.example.com", KEY, http_client=httpx.AsyncClient())


async def test_hooks_of_a_callers_client_see_requests_without_the_key_and_keep_it_here() -> None:
    seen: list[object] = []

    async def asked(request: httpx.Request) -> None:
        seen.append(dict(request.headers))
        request.headers["X-Trace-Id"] = "t-1"

    async def answered(response: httpx.Response) -> None:
        seen.append((response.status_code, response.json(), dict(response.request.headers)))
        response.raise_for_status()

    async def lead_away(request: httpx.Request) -> None:
        request.url = httpx.URL("https://elsewhere.test/me")

    network = Recorder(httpx.Response(200, json={"limit": 7}), httpx.Response(401, json={"error": "no"}))
    hooks = {"request": [asked], "response": [answered]}
    http = httpx.AsyncClient(transport=network, event_hooks=hooks)
    async with Client(URL, KEY, http_client=http) as service:
        assert (await service.me()).limit == 7
        with pytest.raises(httpx.HTTPStatusError):  # a hook's own error is the caller's
            await service.me()
        assert network.asked[0].headers["x-trace-id"] == "t-1"
        assert [one[0] for one in seen[1::2]] == [200, 401]  # type: ignore[index]
        assert KEY not in str(seen)
        assert http.event_hooks["request"] == [asked]
        http.event_hooks = {"request": [lead_away]}
        with pytest.raises(errors.UsageError) as caught:
            await service.me()
        await http.aclose()
        with pytest.raises(errors.UsageError) as closed:
            await service.me()
    assert (caught.value.code, closed.value.code) == ("service.host_not_configured", "service.http_client_closed")
    assert len(network.asked) == 2


def test_the_blocking_client_takes_an_async_client_and_says_so() -> None:
    http = httpx.AsyncClient(transport=Recorder(httpx.Response(200, json={"limit": 7})))
    for _ in range(2):  # each time in an event loop of its own
        with BlockingClient(URL, KEY, http_client=http) as service:
            assert service.me().limit == 7
    with httpx.Client() as wrong, pytest.raises(errors.UsageError, match=r"of type Client; give an httpx\.AsyncClient"):
        BlockingClient(URL, KEY, http_client=wrong)  # type: ignore[arg-type]


class Fails(httpx.AsyncBaseTransport):
    """A network that takes a request, unless no connection comes about, and then fails."""

    def __init__(self, fault: Exception | httpx.Response) -> None:
        self._fault = fault

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if not isinstance(self._fault, httpx.ConnectError | httpx.ConnectTimeout):
            await request.aread()
        if isinstance(self._fault, Exception):
            raise self._fault
        return self._fault


SLOW, BROKEN, FAILED = errors.ServiceTimeoutError, errors.ServiceConnectionError, errors.ServerError
CAUSES: list[tuple[Exception | httpx.Response, type[errors.UnavailableError] | None]] = [
    *[(fault("x"), SLOW) for fault in (httpx.ReadTimeout, httpx.WriteTimeout, TimeoutError)],
    *[(fault("x"), BROKEN) for fault in (httpx.ReadError, httpx.RemoteProtocolError, ConnectionResetError)],
    *[(fault("x"), BROKEN) for fault in (httpx.ConnectError, httpx.ConnectTimeout)],
    *[(httpx.Response(status), FAILED) for status in (500, 502, 503, 504, 599)],
    *[(fault, None) for fault in (httpx.Response(408), ValueError("x"))],
]


async def test_a_read_says_by_its_class_what_failed_and_a_paid_request_by_its_cause() -> None:
    for fault, cause in CAUSES:
        async with Client(URL, KEY, http_client=Fails(fault), max_retries=0) as service:
            with pytest.raises(errors.UnavailableError) as read:
                await service.me(headers={"X-Request-Id": "ours"})
            with pytest.raises(errors.TransportError) as paid:
                await service.verify(B_NO)
        is_unsent = isinstance(fault, httpx.ConnectError | httpx.ConnectTimeout)
        assert type(read.value) is (errors.UnreachableError if is_unsent else cause or errors.UnavailableError)
        assert isinstance(read.value, errors.NotSentError) == is_unsent
        assert type(paid.value) is (errors.NotSentError if is_unsent else errors.DoubtError)
        again = pickle.loads(pickle.dumps(paid.value))
        assert (read.value.cause, paid.value.cause, again.cause) == (cause, cause, cause)
        assert (read.value.exit_code, read.value.request_id, paid.value.request_id) == (5, "ours", None)


@autojump
async def test_a_copy_has_other_options_and_the_same_connections() -> None:
    app = App(Said(503, x_request_id="theirs"))
    original = client(app, max_retries=0)
    copy = original.with_options(max_retries=1, timeout=5, headers={"X-Team": "a"})
    further = copy.with_options(headers={"x-team": "b", "X-Trace-Id": "t"})
    for closed in (copy.me(), copy.open()):
        with pytest.raises(errors.UsageError, match="this Client is not open"):
            await closed
    async with original:
        for service, times in ((original, 1), (copy, 2), (further, 2)):
            app.heads.clear()
            with pytest.raises(errors.ServerError) as caught:
                await service.me(headers={"X-Request-Id": "ours"})
            assert (len(app.heads), caught.value.request_id) == (times, "theirs")
        assert (app.heads[0]["x-team"], app.heads[0]["x-trace-id"]) == ("b", "t")
        async with copy as same:
            assert same is copy
        await copy.aclose()
        with pytest.raises(errors.ServerError):
            await copy.with_raw_response.me(max_retries=0)
        assert (copy._timeouts, original._timeouts) == (Timeouts(5, 5, 5), Timeouts())
        for wrong in ({"timeout": 0}, {"max_retries": -1}, {"headers": {"X-API-Key": "x"}}, {"headers": "x"}):
            with pytest.raises(errors.UsageError):
                original.with_options(**wrong)  # type: ignore[arg-type]


def test_a_copy_of_a_blocking_client_lives_as_long_as_its_original() -> None:
    app, before = App(ME), threading.active_count()
    original = BlockingClient(URL, KEY, app=app)
    copy = original.with_options(headers={"X-Team": "a"})
    for use in (copy.me, copy.open):
        with pytest.raises(errors.UsageError, match="this BlockingClient is not open"):
            use()
    with original:
        threads = threading.active_count()
        with copy:
            assert copy.me() == copy.with_raw_response.me().parse()
        copy.close()
        assert (original.me().limit, copy.me().limit, threading.active_count()) == (10, 10, threads)
    assert [head.get("x-team") for head in app.heads] == ["a", "a", None, "a"]
    with pytest.raises(errors.UsageError):
        copy.me()
    assert threading.active_count() == before


@pytest.mark.parametrize("using", ["httpcore", "httpx"])
def test_respx_sees_the_requests(using: str) -> None:
    respx = pytest.importorskip("respx")
    http = httpx.AsyncClient() if using == "httpx" else None  # it replaces methods of clients
    base = "https://api.example.com"
    with respx.mock(using=using) as mocked, BlockingClient(base, KEY, http_client=http, max_retries=0) as service:
        paid = mocked.post(f"{base}/verify").respond(json={"grade": "A"})
        mocked.get(f"{base}/me").mock(side_effect=httpx.ReadTimeout)
        mocked.post(f"{base}/batch").respond(json={"job_id": "j"})
        assert service.verify(B_NO).grade == "A"
        assert service.create_batch(CSV).job_id == "j"
        with pytest.raises(errors.ServiceTimeoutError):
            service.me()
        with pytest.raises(errors.UnavailableError, match="not mocked"):
            service.watch_list()
    sent = paid.calls.last.request
    assert (json.loads(sent.content), sent.headers["x-api-key"]) == ({"b_no": "1248100998"}, KEY)


def test_pytest_httpx_sees_the_requests(request: pytest.FixtureRequest) -> None:
    pytest.importorskip("pytest_httpx")
    mock = request.getfixturevalue("httpx_mock")
    mock.add_response(url="https://api.example.com/verify", json={"grade": "A"}, headers={"X-Request-Id": "r-1"})
    mock.add_response(url="https://api.example.com/me", status_code=500)
    with BlockingClient("https://api.example.com", KEY, max_retries=0) as service:
        raw = service.with_raw_response.verify(B_NO)
        assert (raw.parse().grade, raw.request_id) == ("A", "r-1")
        with pytest.raises(errors.ServerError):
            service.me()
    assert json.loads(mock.get_requests()[0].content) == {"b_no": "1248100998"}


async def test_a_reply_can_be_had_as_it_came() -> None:
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


async def test_every_method_has_its_raw_form_and_its_refusal() -> None:
    value = {"grade": "A", "job_id": "j", "watch_id": "w", "status": "done", "watches": [], "history": []}
    async with client(App(Said(200, value))) as good, client(App(Said(401, request_id="r1"))) as bad:
        for call in (FREE | CHANGING).values():
            assert isinstance(await call(good.with_raw_response), RawResponse)  # type: ignore[arg-type]
            with pytest.raises(errors.AuthenticationError):
                await call(bad.with_raw_response)  # type: ignore[arg-type]
    with BlockingClient(URL, KEY, app=App(Said(200, {"limit": 10}))) as service:
        assert service.with_raw_response.me().parse() == Account(limit=10, raw={"limit": 10})


async def test_an_error_carries_the_services_request_id() -> None:  # G34
    for headers, told in (({"x_request_id": f"abc-{KEY}"}, "abc-[key]"), ({}, None), ({"x_request_id": "a b"}, None)):
        async with client(App(Said(401, {"error": "no"}, **headers))) as service:
            with pytest.raises(errors.AuthenticationError) as caught:
                await service.me()
        assert caught.value.request_id == pickle.loads(pickle.dumps(caught.value)).request_id == told


MOCK = httpx.MockTransport(lambda _: httpx.Response(200))
REFUSED_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"http_client": httpx.AsyncClient}, TYPE := "options.argument_type_wrong"),
    ({"http_client": httpx.Client()}, TYPE),
    ({"http_client": httpx.AsyncClient(auth=("us", "hidden"))}, "service.http_client_adds"),
    ({"http_client": httpx.AsyncClient(params={"a": "hidden"})}, "service.http_client_adds"),
    ({"http_client": httpx.AsyncClient(headers={"X-API-Key": "hidden"})}, "service.header_is_ours"),
    ({"http_client": MOCK, "verify": "x.pem"}, "service.network_option_redundant"),
    ({"verify": __file__}, "service.ca_bundle_unusable"),
    ({"verify": False}, "service.certificate_check_off"),
    ({"verify": ssl._create_unverified_context()}, "service.certificate_check_off"),
    ({"max_retries": -1}, "service.value_invalid"),
    ({"concurrency": 0}, "service.value_invalid"),
    ({"timeout": 0}, "service.timeout_invalid"),
    ({"timeout": float("nan")}, "service.timeout_invalid"),
    ({"proxy": "socks5://a:hidden@b"}, "service.proxy_invalid"),
]


@pytest.mark.parametrize("kind", [Client, BlockingClient])
def test_what_cannot_be_an_option_of_the_network_is_refused(kind: type[Client]) -> None:
    for options, code in REFUSED_OPTIONS:
        with pytest.raises(errors.UsageError) as caught:
            kind("https://api.example.com", KEY, **options)
        assert caught.value.code == code
        assert "hidden" not in str(caught.value)
    Client("https://localhost:9", KEY, verify=False)  # certificates may go unchecked on this machine only
    Client("https://127.0.0.1:9", KEY, verify=ssl._create_unverified_context())
    Client("https://api.example.com", KEY, verify=ssl.create_default_context())


def test_a_client_is_opened_and_closed_without_a_block() -> None:
    before = threading.active_count()
    service = BlockingClient(URL, KEY, app=App(ME)).open()
    assert service.open() is service
    assert service.me().limit == 10
    service.close()
    service.close()
    assert threading.active_count() == before
    with pytest.raises(errors.UsageError):
        service.me()
    with service:
        assert service.me().limit == 10
    assert threading.active_count() == before


def test_a_forgotten_client_warns_and_its_thread_ends() -> None:
    before = threading.active_count()
    service: object = BlockingClient(URL, KEY, app=App(ME)).open()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        service = anyio.run(client(App(ME)).open)
        del service
        gc.collect()
    said = {str(warning.message) for warning in warned if warning.category is ResourceWarning}
    assert said == {f"unclosed BlockingClient('{URL}')", f"unclosed Client('{URL}')"}
    assert threading.active_count() == before


@pytest.mark.process
def test_a_forgotten_client_does_not_keep_the_interpreter_from_ending(tmp_path: Path) -> None:
    code = (
        "import pathlib, sys, bansong as bs, httpx\n"
        "http = httpx.MockTransport(lambda _: httpx.Response(200, json={'limit': 7, 'job_id': 1}))\n"
        "client = bs.BlockingClient('http://localhost:9', 'k', http_client=http).open()\n"
        "client.create_batch(pathlib.Path(sys.argv[1]))\nprint(client.me().limit)\n"
        "cell = [client]; cell.append(cell); del client\n"
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
    code = (
        "import os, sys, bansong as bs, httpx\n"
        "http = httpx.MockTransport(lambda _: httpx.Response(200, json={'limit': 7}))\n"
        "client = bs.BlockingClient('http://localhost:9', 'k', http_client=http).open()\n"
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


def test_a_client_that_cannot_open_says_why_and_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "socks5://user:hidden@localhost:1")
    monkeypatch.setenv("https_proxy", "socks5://user:hidden@localhost:1")
    before = threading.active_count()
    service = BlockingClient("https://api.example.com", KEY)
    with pytest.raises(errors.UsageError) as caught:
        service.open()
    assert caught.value.code == "service.proxy_unusable"
    assert "hidden" not in str(caught.value)
    assert threading.active_count() == before


def status(word: str, results: int = 0, total: int | None = None) -> Said:
    rows = [{"row_id": row, "grade": "A"} for row in range(results)]
    return Said(200, {"status": word, "results": rows} | ({} if total is None else {"total": total}))


@autojump
async def test_a_job_is_waited_for() -> None:
    app = App(Said(404), status("queued"), status("running"), status("done", 1))
    seen: list[str] = []
    async with client(app) as service:
        ended = await service.wait(BatchCreated(job_id="j", raw={}), progress=lambda now: seen.append(now.status))
    assert ended.state == "done"
    assert seen == ["queued", "running", "done"]
    assert app.pauses == pytest.approx([1, 1, 1])
    assert set(app.asked) == {"GET /batch/j?preview=1"}
    assert await tries(lambda service: service.wait("j"), status("failed")) == (1, None)
    assert await tries(lambda service: service.wait("j"), Said(404)) == (1, errors.NotFoundError)


async def test_a_status_word_that_is_not_known_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    words = [f"dozing {KEY}", f"dozing {KEY}", "running", "done"]
    app = App(*(Said(value={"status": word, "results": [], "total": 0}) for word in words))
    async with Client(URL, KEY, app=app) as service:
        assert (await service.wait("j", poll=0.001)).state == "done"
        assert (await service.with_raw_response.batch("j")).parse().state == "done"
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "the status word 'dozing [key]' of the service is not known: its job is taken as still at work"
    ]


@autojump
async def test_waiting_has_an_end_and_a_long_job_is_looked_at_less_often() -> None:
    app = App(status("running"))
    async with client(app) as service:
        start = anyio.current_time()
        with pytest.raises(errors.JobTimeoutError, match=r"job j is not done after 3600 s \(its status: 'running'\)"):
            await service.wait("j", timeout=3600)
        assert anyio.current_time() - start == pytest.approx(3600)
    assert len(app.asked) < 400
    assert max(app.pauses) <= 31

    async def silent(scope: Any, receive: Any, send: Any) -> None:
        await anyio.sleep(1e6)

    async with client(silent) as service:
        with pytest.raises(errors.JobTimeoutError, match="its status: unknown"):
            await service.wait("j", timeout=5)


def test_a_blocking_client_calls_progress_in_the_callers_thread() -> None:
    app = App(status("running"), ME, status("done"), ME)
    seen: list[tuple[str, int | None, bool]] = []
    with BlockingClient(URL, KEY, app=app) as service:

        def progress(now: BatchStatus) -> None:
            here = threading.current_thread() is threading.main_thread()
            seen.append((now.status, service.me().limit, here))

        assert service.wait("j", poll=0.01, progress=progress).state == "done"
    assert seen == [("running", 10, True), ("done", 10, True)]


@pytest.mark.parametrize(
    ("job", "options", "answers", "asked"),
    [
        (BatchCreated(job_id="j", total=3, raw={}), {}, [status("done", 3)], ["3"]),
        ("j", {}, [status("done", 1, 3), status("done", 3, 3)], ["1", "3"]),
        ("j", {"total": 3}, [status("done", 3)], ["3"]),
    ],
)
def test_all_results_of_a_job_come_one_by_one(
    job: str | BatchCreated, options: dict[str, int], answers: list[Said], asked: list[str]
) -> None:
    app = App(*answers)
    with BlockingClient(URL, KEY, app=app) as service:
        assert [result.key for result in service.results(job, **options)] == [0, 1, 2]
    assert app.asked == [f"GET /batch/j?preview={preview}" for preview in asked]


async def test_results_that_are_missing_are_told_after_those_that_came() -> None:
    async with client(App(status("done", 2))) as service:
        results = service.results("j", total=5)
        assert [(await anext(results)).key, (await anext(results)).key] == [0, 1]
        with pytest.raises(errors.ShapeError, match="2 of 5 results came"):
            await anext(results)
    with BlockingClient(URL, KEY, app=App(status("running", 0, 3), status("done", 1))) as blocking:
        for code in ("service.job_not_done", "service.job_size_unknown"):
            with pytest.raises(errors.UsageError) as caught:
                next(blocking.results("j"))
            assert caught.value.code == code


XLSX = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"


async def test_an_upload_comes_from_bytes_a_path_or_a_file(tmp_path: Path) -> None:
    sheet, korean, listed = tmp_path / "고객.XLSX", tmp_path / "old.csv", b'[{"b_no": "1248100998"}]'
    sheet.write_bytes(b"PK\x03\x04 and so on")
    korean.write_bytes("b_no,name\n1248100998,삼성\n".encode("cp949"))  # a charset is claimed only where it is true
    utf8 = "text/csv; charset=utf-8"
    with sheet.open("rb") as file:
        given: list[tuple[Any, str | None, str, str]] = [
            (CSV, None, "lookups.csv", utf8),
            (sheet, None, "고객.XLSX", XLSX),
            (korean, None, "old.csv", "text/csv"),
            (listed, "other.json", "other.json", "application/json"),
            (file, None, "고객.XLSX", XLSX),
            (io.BytesIO(sheet.read_bytes()), None, "lookups.xlsx", XLSX),
        ]
        made = [await upload_file(content, name) for content, name, *_ in given]
    assert [(file.name, file.media_type) for file in made] == [(name, kind) for *_, name, kind in given]
    assert made[1].content == made[4].content == sheet.read_bytes()


class Reads:
    """A file whose read() gives this, or raises it."""

    def __init__(self, given: object) -> None:
        self._given = given

    def read(self) -> object:
        if isinstance(self._given, Exception):
            raise self._given
        return self._given


VALUE, SECONDS = "service.value_invalid", "options.seconds_invalid"
WRONG: list[tuple[str, tuple[Any, ...], dict[str, Any], str, str]] = [
    *[("create_batch", (content,), {}, TYPE, "content") for content in ("b_no,name\n", 5, None, [b"a"])],
    *[("create_batch", (Reads(read),), {}, "service.file_in_text_mode", "content") for read in ("b_no\n", 5)],
    ("create_batch", (Reads(ValueError("closed file")),), {}, "service.upload_read_failed", "content"),
    ("create_batch", (Path("a\0.csv"),), {}, "options.path_has_nul", "content"),
    ("create_batch", (Path("/no/such.csv"),), {}, "service.uploaded_file_unreadable", ""),
    ("create_batch", (b"",), {}, "service.upload_empty", "content"),
    ("create_batch", (CSV,), {"filename": "a.pdf"}, "service.format_not_taken", "filename"),
    *[("create_batch", (CSV,), {name: 5}, TYPE, name) for name in ("filename", "paid", "offline", "idempotency_key")],
    *[("verify", (number,), {}, TYPE, "b_no") for number in (1248100998, None)],
    ("verify", (B_NO, None, ["a"]), {}, TYPE, "address"),
    *[("batch", ("j",), {"preview": preview}, TYPE, "preview") for preview in ("5", True)],
    ("batch", ("j",), {"preview": -1}, VALUE, "preview"),
    ("label", ("j", 3), {"bounced": "yes"}, TYPE, "bounced"),
    ("watch_add", (1248100998,), {}, TYPE, "biz_no"),
    ("me", (), {"max_retries": 1.5}, TYPE, "max_retries"),
    ("wait", ("j",), {"poll": 0}, SECONDS, "poll"),
    ("results", ("j",), {"total": "5"}, TYPE, "total"),
]


async def test_a_wrong_argument_is_refused_before_anything_is_sent() -> None:
    app, errors = App(ME), list[bs.BansongError]()
    async with client(app) as service:
        for name, args, more, *_ in WRONG:
            try:
                await getattr(service, name)(*args, **more)
            except bs.BansongError as error:
                errors.append(error)
    assert "1248100998" not in str(errors)  # the value may be a person's
    found = [(error.code, getattr(error.fields.get("option"), "name", "")) for error in errors]
    assert found == [(code, option) for *_, code, option in WRONG]
    assert app.asked == []


def test_the_blocking_client_refuses_alike_and_takes_whole_numbers_of_numpy() -> None:
    app = App(Said(200, b""))
    with BlockingClient(URL, KEY, app=app) as service:
        for name, args, more, code, _ in WRONG[::6]:
            with pytest.raises(bs.BansongError) as caught:
                getattr(service, name)(*args, **more)
            assert caught.value.code == code
        service.label("j", np.int64(3), bounced=True)  # type: ignore[arg-type]
    assert json.loads(app.bodies[0]) == {"row_id": 3, "bounced": True}


@pytest.mark.parametrize("kind", [BlockingClient, RawClient, BlockingRawClient])
def test_help_and_completion_know_every_method(kind: type[Any]) -> None:
    for name in FREE | CHANGING:
        method, twin = getattr(Client, name), getattr(kind, name)
        assert list(inspect.signature(twin).parameters.values()) == list(inspect.signature(method).parameters.values())
        assert (twin.__qualname__, twin.__doc__) == (f"{kind.__name__}.{name}", method.__doc__)


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
    file = tmp_path / "a.csv"
    file.write_text(f"b_no\n{B_NO}\n", encoding="utf-8")
    with pytest.raises((bs.BansongError, TypeError)) as caught:
        TAKERS[taker](file, key)
    shown = [*frames_of(caught.value), str(caught.value)]
    assert shown
    assert [line for line in shown if KEY in line] == []
    if " " in key:
        assert "the API key holds a space" in str(caught.value)
