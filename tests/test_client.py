"""The client: one method an endpoint, one request a call, and the same through the blocking door."""

from __future__ import annotations

import asyncio
import json
import pickle
from typing import Any

import anyio
import pytest

from bansong.client import BlockingClient, Client
from bansong.errors import NumberError, ShapeError
from test_client_manners import B_NO, KEY, URL, App, Said, anyio_backend, client

pytestmark = pytest.mark.anyio

__all__ = ["anyio_backend"]


def answers(*values: object) -> App:
    return App(*(Said(200, value) for value in values))


def asked(app: App) -> list[tuple[str, object]]:
    return [(target, json.loads(body) if body else None) for target, body in zip(app.asked, app.bodies, strict=True)]


async def test_verify_sends_what_is_given_and_nothing_else() -> None:
    """G23: an absent name is no name, an empty one is sent as it is."""
    app = answers({"biz_status": "01", "fixed_zipcode": 16677})
    async with client(app) as service:
        verified = await service.verify(B_NO)
        await service.verify("1248100998", "삼성전자", "경기")
        await service.verify("1248100998", name="")
    assert verified.answer.fixed_zipcode == "16677"
    assert asked(app) == [
        ("POST /verify", {"b_no": "1248100998"}),
        ("POST /verify", {"b_no": "1248100998", "name": "삼성전자", "address": "경기"}),
        ("POST /verify", {"b_no": "1248100998", "name": ""}),
    ]


async def test_what_is_no_business_number_is_never_sent() -> None:
    app = answers({})
    async with client(app) as service:
        for b_no in ("", "123456789", "8001011234567", "0000000000", "02-1234-5678", "abc", "１２３"):
            for call in (service.verify, service.watch_add):
                with pytest.raises(NumberError):
                    await call(b_no)
    assert app.asked == []


async def test_each_other_method_is_one_request() -> None:
    """G21, G23, G30: a label's row is sent as it is given."""
    entry = {"watch_id": "w 1", "biz_no": "1248100998"}
    created, done = {"job_id": "a/b", "total": 1}, {"status": "done"}
    app = answers(
        created, done, done, b"", {"ok": True}, entry, [entry], b"", {"history": []}, {"limit": 10, "used": 3}
    )
    async with client(app) as service:
        job = (await service.create_batch(b"b_no,name,address\n1248100998,,\n", paid=True)).job_id
        app.bodies.clear()  # the upload's own tests have it
        await service.batch(job)
        assert (await service.batch(job, preview=1)).state == "done"
        assert (await service.label(job, 0, bounced=False)).raw == ""
        await service.label(job, 1, bounced=True, reason="moved")
        watch = (await service.watch_add(B_NO, name="a")).watch_id
        assert [watched.watch_id for watched in await service.watch_list()] == ["w 1"]
        await service.watch_remove(watch)
        assert await service.watch_history(watch) == []
        assert (await service.me()).remaining == 7
    assert app.asked.pop(0) == "POST /batch?paid=true"
    assert asked(app) == [
        ("GET /batch/a%2Fb", None),
        ("GET /batch/a%2Fb?preview=1", None),
        ("POST /batch/a%2Fb/label", {"row_id": 0, "bounced": False}),
        ("POST /batch/a%2Fb/label", {"row_id": 1, "bounced": True, "reason": "moved"}),
        ("POST /watch", {"biz_no": "1248100998", "name": "a"}),
        ("GET /watch", None),
        ("DELETE /watch/w%201", None),
        ("GET /watch/w%201/history", None),
        ("GET /me", None),
    ]


async def test_a_paid_answer_that_cannot_be_read_is_kept() -> None:
    """G2: its bytes are in the error, at most 64 KiB of them, and the error says what is wrong."""
    app = answers({"verdict": "fine"}, b'{"x": "' + b"y" * 100_000 + b'"}', b"<html><head><title>Log in</title>", b"")
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


async def test_a_page_is_no_acknowledgement() -> None:
    """G21: a login page says 200 to everything."""
    app = answers(b"<!doctype html><html>", b"OK", b"null")
    async with client(app) as service:
        with pytest.raises(ShapeError, match="HTML page"):
            await service.watch_remove("w1")
        assert (await service.watch_remove("w1")).raw == "OK"
        assert (await service.watch_remove("w1")).raw is None


async def test_no_more_requests_are_under_way_than_allowed() -> None:
    under_way, most = 0, 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await anyio.sleep(0.01)
        under_way -= 1
        await answers({"grade": "A"})(scope, receive, send)

    async with client(app, concurrency=3) as service, anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(service.verify, "1248100998")
    assert most == 3


def test_a_client_says_where_it_speaks_to_and_is_not_pickled() -> None:
    for made in (Client(URL, KEY), BlockingClient(URL, KEY)):
        assert repr(made) == f"{type(made).__name__}('http://localhost:9')"
        assert made.origin == URL
        assert not hasattr(made, "_repr_html_")
        with pytest.raises(TypeError):
            pickle.dumps(made)


def test_the_blocking_client_works_inside_a_running_loop() -> None:
    steps: list[str] = []

    async def gate() -> None:
        steps.append("gate")

    async def cell() -> str | None:  # of a notebook, in whose loop nothing may be run to its end
        with BlockingClient(URL, KEY, app=answers({"job_id": 1}, {"grade": "A"})) as service:
            assert service.create_batch(b"b_no,name,address\n", before_last_byte=gate).job_id == "1"
            return service.verify(B_NO).grade

    assert asyncio.run(cell()) == "A"
    assert steps == ["gate"]
