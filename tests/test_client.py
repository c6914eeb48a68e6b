"""The client: one method an endpoint, one request a call, and the same through the blocking door."""

from __future__ import annotations

import asyncio
import inspect
import json
import pickle
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from bansong.client import ApiKey, BlockingClient, Client
from bansong.client.request import request_id_of
from bansong.errors import (
    AuthenticationError,
    DoubtError,
    NotSentError,
    NumberError,
    QuotaError,
    ShapeError,
    UnavailableError,
    UsageError,
)

URL = "http://localhost:9"
KEY = "bv-secret-4711"
B_NO = "124-81-00998"


@pytest.fixture(params=["asyncio", pytest.param("trio", marks=pytest.mark.fuzz)])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class App:
    """A service in this process that writes down what it is asked and gives the answers it was told to give."""

    def __init__(self, *answers: object, status: int = 200) -> None:
        self.asked: list[tuple[str, str, object]] = []
        self._answers = list(answers)
        self._status = status

    async def __call__(
        self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        target = scope["raw_path"].decode() + (f"?{scope['query_string'].decode()}" if scope["query_string"] else "")
        self.asked.append((scope["method"], target, json.loads(body) if body.startswith(b"{") else body))
        answer = self._answers.pop(0)
        content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        await send({"type": "http.response.start", "status": self._status, "headers": []})
        await send({"type": "http.response.body", "body": content})


def client(app: object, **options: Any) -> Client:
    return Client(URL, KEY, app=app, **options)


@pytest.mark.anyio
@pytest.mark.parametrize("answer", [{"b_no": "220-81-62517"}, {"input": {"biz_no": "2208162517"}}])
async def test_an_answer_that_repeats_another_number_is_not_taken(answer: dict[str, object]) -> None:
    """G2: what a proxy has mixed up is kept as unreadable, and is no row's answer."""
    app = App(answer | {"biz_status": "01"}, answer | {"biz_status": "01"}, {"biz_status": "01", "b_no": 124})
    async with client(app) as service:
        with pytest.raises(ShapeError, match="about another number"):
            await service.verify(B_NO)
        assert (await service.verify("2208162517")).biz_status == "01"
        assert (await service.verify(B_NO)).biz_status == "01"


@pytest.mark.anyio
async def test_verify_sends_what_is_given_and_nothing_else() -> None:
    """G23: an absent name is no name, an empty one is sent as it is."""
    app = App(*[{"biz_status": "01", "fixed_zipcode": 16677}] * 3)
    async with client(app) as service:
        verified = await service.verify(B_NO)
        await service.verify("1248100998", "삼성전자", "경기")
        await service.verify("1248100998", name="")
    assert verified.answer.fixed_zipcode == "16677"
    assert app.asked == [
        ("POST", "/verify", {"b_no": "1248100998"}),
        ("POST", "/verify", {"b_no": "1248100998", "name": "삼성전자", "address": "경기"}),
        ("POST", "/verify", {"b_no": "1248100998", "name": ""}),
    ]


@pytest.mark.anyio
@pytest.mark.parametrize("b_no", ["", "123456789", "8001011234567", "0000000000", "02-1234-5678", "abc", "１２３"])
async def test_what_is_no_business_number_is_never_sent(b_no: str) -> None:
    app = App()
    async with client(app) as service:
        for call in (service.verify, service.watch_add):
            with pytest.raises(NumberError):
                await call(b_no)
    assert app.asked == []


@pytest.mark.anyio
async def test_a_batch_is_created_asked_for_and_labelled() -> None:
    """G21, G23, G30: a label's row is sent as it is given, what a service calls it is its caller's to know."""
    app = App({"job_id": "a/b", "total": 1}, {"status": "done"}, {"status": "done"}, b"", {"ok": True})
    async with client(app) as service:
        created = await service.create_batch(b"b_no,name,address\n1248100998,,\n", paid=True)
        await service.batch(created.job_id)
        status = await service.batch(created.job_id, preview=1)
        silent = await service.label(created.job_id, 0, bounced=False)
        await service.label(created.job_id, 1, bounced=True, reason="moved")
    assert status.state == "done"
    assert silent.raw == ""
    assert [asked[:2] for asked in app.asked] == [
        ("POST", "/batch?paid=true"),
        ("GET", "/batch/a%2Fb"),
        ("GET", "/batch/a%2Fb?preview=1"),
        ("POST", "/batch/a%2Fb/label"),
        ("POST", "/batch/a%2Fb/label"),
    ]
    assert [asked[2] for asked in app.asked[3:]] == [
        {"row_id": 0, "bounced": False},
        {"row_id": 1, "bounced": True, "reason": "moved"},
    ]


@pytest.mark.anyio
async def test_the_watch_list_and_the_account() -> None:
    entry = {"watch_id": "w 1", "biz_no": "1248100998"}
    app = App(entry, [entry], b"", {"history": []}, {"limit": 10, "used": 3})
    async with client(app) as service:
        added = await service.watch_add(B_NO, name="a")
        assert [watched.watch_id for watched in await service.watch_list()] == ["w 1"]
        await service.watch_remove(added.watch_id)
        assert await service.watch_history(added.watch_id) == []
        assert (await service.me()).remaining == 7
    assert app.asked == [
        ("POST", "/watch", {"biz_no": "1248100998", "name": "a"}),
        ("GET", "/watch", b""),
        ("DELETE", "/watch/w%201", b""),
        ("GET", "/watch/w%201/history", b""),
        ("GET", "/me", b""),
    ]


@pytest.mark.anyio
@pytest.mark.parametrize("identifier", ["", ".", ".."])
async def test_an_identifier_that_would_lead_elsewhere_is_never_sent(identifier: str) -> None:
    app = App()
    async with client(app) as service:
        for call in (service.batch, service.watch_remove, service.watch_history):
            with pytest.raises(UsageError):
                await call(identifier)
        with pytest.raises(UsageError):
            await service.label(identifier, 0, bounced=True)
        with pytest.raises(UsageError, match="preview"):
            await service.batch("j", preview=-1)
    assert app.asked == []


@pytest.mark.anyio
async def test_a_paid_answer_that_cannot_be_read_is_kept() -> None:
    """G2: its bytes are in the error, at most 64 KiB of them, and the error says what is wrong."""
    app = App({"verdict": "fine"}, b'{"x": "' + b"y" * 100_000 + b'"}', b"<html><head><title>Log in</title>", b"")
    async with client(app) as service:
        with pytest.raises(
            ShapeError, match=r"POST http://localhost:9/verify: 200, the answer .* seven fields"
        ) as caught:
            await service.verify(B_NO)
        assert caught.value.raw == b'{"verdict": "fine"}'
        with pytest.raises(ShapeError) as caught:
            await service.verify(B_NO)
        assert len(caught.value.raw) == 65536
        with pytest.raises(ShapeError, match="is the base URL right"):
            await service.verify(B_NO)
        with pytest.raises(ShapeError, match="is empty"):
            await service.create_batch(b"b_no,name,address\n")
    assert caught.value.__context__ is None


@pytest.mark.anyio
async def test_a_page_is_no_acknowledgement() -> None:
    """G21: a login page says 200 to everything."""
    app = App(b"<!doctype html><html>", b"OK", b"null")
    async with client(app) as service:
        with pytest.raises(ShapeError, match="HTML page"):
            await service.watch_remove("w1")
        assert (await service.watch_remove("w1")).raw == "OK"
        assert (await service.watch_remove("w1")).raw is None


@pytest.mark.anyio
async def test_a_key_that_an_answer_echoes_is_not_shown() -> None:
    app = App({"plan": "business", "api_key": KEY}, {"api_key": KEY})
    async with client(app) as service:
        assert KEY not in repr(await service.me())
        with pytest.raises(ShapeError) as caught:
            await service.verify(B_NO)
    assert KEY.encode() not in caught.value.raw


@pytest.mark.anyio
async def test_no_more_requests_are_under_way_than_allowed() -> None:
    """Others wait for their turn as long as it takes; uploads have their own way."""
    under_way, most = 0, 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        under_way -= 1
        await App({"grade": "A"})(scope, receive, send)

    async with client(app, concurrency=3) as service, anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(service.verify, "1248100998")
    assert most == 3


@pytest.mark.anyio
async def test_an_app_that_breaks_is_a_connection_that_breaks() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        raise KeyError("oops")

    async with client(app) as service:
        with pytest.raises(DoubtError, match=r"KeyError 'oops'.*not known"):
            await service.verify(B_NO)


@pytest.mark.anyio
async def test_a_client_is_used_inside_its_block_and_may_be_opened_again() -> None:
    app = App({"limit": 1}, {"limit": 2})
    service = client(app)
    with pytest.raises(UsageError, match="async with"):
        await service.me()
    for limit in (1, 2):
        async with service:
            assert (await service.me()).limit == limit
            with pytest.raises(UsageError, match="open already"):
                await service.__aenter__()
    with pytest.raises(UsageError, match="async with"):
        await service.me()


def test_a_client_says_where_it_speaks_to_and_is_not_pickled() -> None:
    for made in (Client(URL, KEY), BlockingClient(URL, KEY)):
        assert repr(made) == f"{type(made).__name__}('http://localhost:9')"
        assert made.origin == URL
        assert not hasattr(made, "_repr_html_")
        with pytest.raises(TypeError):
            pickle.dumps(made)


@pytest.mark.parametrize("options", [{"concurrency": 0}, {"timeout": 0}, {"timeout": float("nan")}])
def test_a_client_without_turns_or_time_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="above"):
        Client(URL, KEY, **options)


def test_key_and_address_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BANSONG_BASE_URL", "https://api.example.com/v1/")
    monkeypatch.setenv("BANSONG_API_KEY", KEY)
    assert Client().origin == "https://api.example.com/v1"
    monkeypatch.delenv("BANSONG_API_KEY")
    monkeypatch.delenv("BANSONG_API_KEY_FILE", raising=False)
    with pytest.raises(UsageError, match="no API key"):
        Client()


# ------------------------------------------------------------------------------------------------- the blocking door


def coroutines(kind: type) -> set[str]:
    return {name for name, value in vars(kind).items() if inspect.iscoroutinefunction(value) and name[0] != "_"}


def test_the_blocking_client_has_every_method_of_the_client() -> None:
    """No method is forgotten, none has other parameters or another text."""
    for name in coroutines(Client) - {"open", "aclose", "wait"}:  # these block in their own way
        method, bound = getattr(Client, name), getattr(BlockingClient(URL, KEY), name)
        assert vars(BlockingClient)[name].__qualname__ == f"BlockingClient.{name}"
        assert bound.__doc__ == method.__doc__
        assert list(inspect.signature(bound).parameters) == list(inspect.signature(method).parameters)[1:]
    assert inspect.signature(BlockingClient) == inspect.signature(Client)
    assert {"open", "close", "wait", "results"} <= vars(BlockingClient).keys()


def test_the_blocking_client_works_in_a_script() -> None:
    app = App({"grade": "A"}, {"job_id": 1}, {"limit": 1})
    steps: list[str] = []

    async def gate() -> None:
        steps.append("gate")

    with BlockingClient(URL, KEY, app=app) as service:
        assert service.verify(B_NO, address="경기").grade == "A"
        assert service.create_batch(b"b_no,name,address\n", before_last_byte=gate).job_id == "1"
        assert service.me().limit == 1
        with pytest.raises(UsageError, match="open already"):
            service.__enter__()
    assert steps == ["gate"]
    with pytest.raises(UsageError, match="use it inside `with"):
        service.me()


def test_the_blocking_client_works_inside_a_running_loop() -> None:
    """A notebook's cell runs in an event loop, in which nothing may be run to its end."""

    async def cell() -> str | None:
        with BlockingClient(URL, KEY, app=App({"grade": "A"})) as service:
            return service.verify(B_NO).grade

    assert asyncio.run(cell()) == "A"


def test_errors_come_through_the_door_as_they_are() -> None:
    for status, kind in [(401, AuthenticationError), (429, QuotaError)]:
        with BlockingClient(URL, KEY, app=App({"error": "no"}, status=status)) as service:
            with pytest.raises(kind) as caught:
                service.verify(B_NO)
            assert caught.value.detail == "no"


def test_a_request_id_is_one_short_word() -> None:
    """G34: the first of the usual headers; what is too long or holds control characters is none."""
    key = ApiKey(KEY)
    assert request_id_of({"CF-Ray": "8a-ICN", "X-Request-Id": "first"}, key) == "first"
    for nonsense in ("", "a b", "x" * 201, "a\x1b[31m", "한"):
        assert request_id_of({"x-request-id": nonsense}, key) is None


def test_only_those_who_ask_for_the_service_load_it() -> None:
    code = "import sys, bansong; print([name for name in ('httpx', 'pydantic', 'anyio') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.anyio
async def test_a_get_that_fails_is_no_doubt() -> None:
    """It is free and changes nothing; only what may have been paid for is in doubt."""
    async with client(App(*[b""] * 2, status=500), max_retries=0) as service:
        with pytest.raises(UnavailableError) as caught:
            await service.me()
        assert caught.value.status == 500
        with pytest.raises(DoubtError):
            await service.verify(B_NO)


@pytest.mark.anyio
async def test_a_dead_proxy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://user:hidden@127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY", "REQUEST_METHOD"):
        monkeypatch.delenv(name, raising=False)
    async with Client("http://service.invalid", KEY, allow_http=True, max_retries=0) as service:
        with pytest.raises(NotSentError, match=r"proxy 127\.0\.0\.1:9") as caught:
            await service.me()
    assert "hidden" not in str(caught.value)


def test_a_short_key_is_not_blotted_out_of_words() -> None:
    """Seven characters may be a part of any word; alone they are the key."""
    key = ApiKey("in")
    assert key.redact("invalid in plan, key=in") == "invalid [key] plan, key=[key]"
    assert key.redact("가입 in 확인".encode()).decode() == "가입 [key] 확인"
    assert ApiKey("bv-secret").redact("xbv-secrety") == "x[key]y"
