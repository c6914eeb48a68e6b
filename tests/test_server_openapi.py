"""The served OpenAPI document says what the code does: no more, no less."""

from __future__ import annotations

import json
import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import msgspec
import polars as pl
import pytest

from bansong.client.webhook import signature_headers
from bansong.notify.queue import SummaryWindow, add_notifications, add_summaries
from bansong.server.handlers import IDEMPOTENCY
from bansong.server.routes import OPERATIONS, PARAMETERS, PUBLIC, REFUSALS, document, routes
from bansong.server.settings import load_plans
from bansong.watch.store import DDL as SCHEMA
from serving import ADDRESSED, NUMBER, Account, Served, hosted, read_here, wait_until

HARD_TO_GET = {202, 408, 500, 503, 507}
"""Statuses that need a job that runs, a slow client, a defect, or a full disk; other tests see to them."""


def fits(schema: dict[str, Any], value: Any) -> None:
    jsonschema.Draft202012Validator({**schema, "components": document()["components"]}).validate(value)


def test_the_document_holds_together() -> None:
    """Each route and no other; ids, parameters, links, references; the header that /me names where it is taken."""
    routed = {(method, route.path) for route in routes() for method in route.methods or () if method != "HEAD"}
    assert set(OPERATIONS) == routed
    public = {path for (_, path), operation in OPERATIONS.items() if operation.public}
    assert public == PUBLIC == {"/healthz", "/openapi.json"}
    ids = [operation.id for operation in OPERATIONS.values()]
    assert len(set(ids)) == len(ids)
    assert {name for operation in OPERATIONS.values() for name in operation.parameters} == set(PARAMETERS)
    for (_, path), operation in OPERATIONS.items():
        in_path = {name for name in operation.parameters if PARAMETERS[name]["in"] == "path"}
        assert in_path == set(re.findall(r"{(\w+)}", path))
        assert {target for targets in operation.links.values() for target in targets} <= set(ids)
    taking = [f"{method} {path}" for (method, path), one in OPERATIONS.items() if IDEMPOTENCY.header in one.parameters]
    assert taking == IDEMPOTENCY.endpoints
    described = document()
    for schema in described["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    references = re.findall(rb'"\$ref":"#/components/(\w+)/([^"]+)"', msgspec.json.encode(described))
    assert [name for kind, name in references if name.decode() not in described["components"][kind.decode()]] == []


@pytest.mark.fuzz
def test_the_document_is_openapi_3_1() -> None:
    """As schemathesis knows it, which takes a second to import."""
    import schemathesis

    schemathesis.openapi.from_dict(document()).validate()


def bodies(part: Any) -> Iterator[dict[str, Any]]:
    """The JSON bodies that a document describes, wherever they stand in it."""
    if isinstance(part, dict):
        if "schema" in part.get("content", {}).get("application/json", {}):
            yield part["content"]["application/json"]
        for inner in part.values():
            yield from bodies(inner)


def test_each_body_has_an_example_that_fits_its_schema() -> None:
    """Every JSON body of requests, answers and webhooks but the simplest."""
    without = set()
    for content in bodies(document()):
        if "example" in content:
            fits(content["schema"], content["example"])
        else:
            without.add(content["schema"].get("$ref", "").rpartition("/")[2])
    assert without == {"Error", "Health", ""}


class Watcher:
    """Asks a server, and holds each answer against the document."""

    def __init__(self, server: Served) -> None:
        self.seen: dict[str, set[int]] = defaultdict(set)
        self.codes: set[tuple[int, str]] = set()
        self._server = server
        self._document = server.http.get(f"{server.url}/openapi.json").json()

    def __call__(self, key: str | None, method: str, route: str, **request: Any) -> httpx.Response:
        ids = {"job_id": "none", "watch_id": "none"} | request.pop("ids", {})
        headers = ({"X-API-Key": key} if key else {}) | request.pop("headers", {})
        path = self._server.url + route.format(**ids)
        answer = self._server.http.request(method, path, headers=headers, **request)
        operation = self._document["paths"][route][method.lower()]
        self.seen[operation["operationId"]].add(answer.status_code)
        assert f"{answer.status_code}" in operation["responses"], answer.text
        declared = self._resolved(operation["responses"][f"{answer.status_code}"])
        (media,) = declared["content"]
        assert answer.headers["content-type"] == media
        fits(declared["content"][media]["schema"], answer.json())
        assert set(declared.get("headers", {})) <= {name.title() for name in answer.headers}
        if answer.is_error:
            self.codes.add((answer.status_code, answer.json()["error"]["code"]))
        return answer

    def _resolved(self, value: dict[str, Any]) -> dict[str, Any]:
        if (reference := value.get("$ref")) is None:
            return value
        _, _, kind, name = reference.split("/")
        return dict(self._document["components"][kind][name])


def upload(content: bytes = b"b_no\n1248100998\n2208162517\n", name: str = "a.csv") -> dict[str, Any]:
    return {"files": {"file": (name, content, "text/csv")}}


def walk(ask: Watcher, server: Served) -> None:
    """Make every operation answer with each status that it declares, but for those that are hard to get."""
    key, free, poor, cramped = server.key(), server.key("free"), server.key(quota=1), server.key("cramped")
    for (method, path), operation in OPERATIONS.items():
        for secret in (key,) if operation.public else (key, None, "wrong", free):
            ask(secret, method, path)
        if operation.body is not None:
            ask(key, method, path, content=b"{" * 100_000)
            ask(key, method, path, data={"b_no": NUMBER})
    ask(key, "POST", "/verify", json=ADDRESSED)
    ask(key, "POST", "/verify", json=ADDRESSED, headers={IDEMPOTENCY.header: "x" * 250})
    for number, token in ((NUMBER, "k0"), (NUMBER, "k1"), ("2208162517", "k0")):
        ask(poor, "POST", "/verify", json={"b_no": number}, headers={IDEMPOTENCY.header: token})
    walk_batches(ask, Account(server, key), poor)
    ids = {"job_id": Account(server, cramped).job(upload()["files"]["file"][1])["job_id"]}
    ask(cramped, "POST", "/batch/{job_id}/label", ids=ids, json={"row_id": 1, "bounced": True})
    for number in (NUMBER, NUMBER, "2208162517", "1208147521"):
        made = ask(key, "POST", "/watch", json={"biz_no": number, "name": "가"}).json()
        ids = {"watch_id": made.get("watch_id", ids.get("watch_id"))}
    ask(key, "GET", "/watch/{watch_id}/history", ids=ids)
    ask(key, "DELETE", "/watch/{watch_id}", ids=ids)
    ask(key, "POST", "/watch", json={"biz_no": "1208147521"})  # the month's changes are used up


def walk_batches(ask: Watcher, key: Account, poor: str) -> None:
    headers, label = {IDEMPOTENCY.header: "batch"}, {"row_id": 1, "bounced": True, "reason": "이사불명"}
    ids = {"job_id": ask(key.secret, "POST", "/batch", **upload(), headers=headers).json()["job_id"]}
    ask(key.secret, "POST", "/batch/{job_id}/label", ids=ids, json=label)
    ask(key.secret, "POST", "/batch", **upload(b"b_no\n1248100998\n"), headers=headers)
    for refused in (upload(b"name\nA\n"), upload(b"b_no\n" + b"1248100998\n" * 10_000), upload(name="a.zip")):
        ask(key.secret, "POST", "/batch", **refused)
    ask(poor, "POST", "/batch", **upload())
    wait_until(lambda: ask(key.secret, "GET", "/batch/{job_id}", ids=ids).json()["status"] == "done")
    ask(key.secret, "GET", "/batch/{job_id}", ids=ids, params={"preview": "x"})
    for row in (1, 2):
        ask(key.secret, "POST", "/batch/{job_id}/label", ids=ids, json=label | {"row_id": row})
    ask(key.secret, "GET", "/batch", params={"limit": "0"})
    ask(key.secret, "DELETE", "/batch/{job_id}", ids=ids)


def test_what_is_answered_is_what_is_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer has a declared status, content type, headers and shape; each declared status is really answered."""
    read_here(monkeypatch)
    plans = dict(load_plans())
    plans["business"] = msgspec.structs.replace(plans["business"], upload_bytes=1_000, watches=2, watch_changes=3)
    plans["cramped"] = msgspec.structs.replace(plans["business"], disk_bytes=16_000)
    with hosted(tmp_path / "db.sqlite", plans=plans) as server:
        walk(ask := Watcher(server), server)
    seen = {name: statuses - HARD_TO_GET for name, statuses in ask.seen.items()}
    declared = {
        operation["operationId"]: {int(status) for status in operation["responses"]} - HARD_TO_GET
        for path in document()["paths"].values()
        for operation in path.values()
    }
    declared["labelRow"] -= {409} - seen["labelRow"]  # a small job may be done before its label comes too early
    assert seen == declared
    assert [(status, code) for status, code in ask.codes if f"`{code}`" not in REFUSALS[status]] == []


@pytest.mark.parametrize(("event", "model"), [("closure", "Closure"), ("closed_already", "ClosedAlready")])
def test_the_webhook_is_described_as_it_is_sent(event: str, model: str) -> None:
    """A notice's payload has exactly the fields that the document requires; its headers are the ones described."""
    described, now = document(), 1_800_000_000.0
    operation = described["webhooks"][event]["post"]
    closure = {"owner": "k", "watch_id": "w", "biz_no": NUMBER, "name": "가", "address": None}
    closures = pl.DataFrame([closure | {"status_before": "active", "grade_before": "B", "grade": "E"}]).cast(pl.String)
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(SCHEMA)
        if event == "closure":
            add_notifications(db, closures, now, ["webhook"])
        else:
            add_summaries(db, closures, now, ["webhook"], SummaryWindow(0.0, now + 60))
        ((payload, id_),) = db.execute("SELECT payload, id FROM notices").fetchall()
    told = json.loads(payload)
    fits(operation["requestBody"]["content"]["application/json"]["schema"], told)
    assert set(told) == set(described["components"]["schemas"][model]["required"])
    sent = signature_headers("secret", told["event"], id_, payload.encode(), now)
    assert list(sent) == [parameter["name"] for parameter in operation["parameters"]]
    for parameter in operation["parameters"]:
        fits(parameter["schema"], sent[parameter["name"]])
