"""The served OpenAPI document says what the code does: no more, no less."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager
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
from serving import Served, read_here, served

HARD_TO_GET = {202, 408, 500, 503, 507}
"""Statuses that need a job that runs, a slow client, a defect, or a full disk; other tests see to them."""
NUMBER = "1248100998"


def test_the_document_has_each_route_and_no_other() -> None:
    """Each method of each route is described, and what is described is routed."""
    routed = {(method, route.path) for route in routes() for method in route.methods or () if method != "HEAD"}
    assert set(OPERATIONS) == routed
    assert (
        {path for (_, path), operation in OPERATIONS.items() if operation.public}
        == PUBLIC
        == {"/healthz", "/openapi.json"}
    )


@pytest.mark.fuzz
def test_the_document_is_openapi_3_1() -> None:
    """It is valid against the OpenAPI 3.1 schema, as schemathesis knows it, which takes a second to import."""
    import schemathesis

    schemathesis.openapi.from_dict(document()).validate()


def test_the_documents_schemas_are_valid_and_no_reference_leads_nowhere() -> None:
    """The schemas in it are JSON Schema of 2020-12, and what is referred to is there."""
    described = document()
    for schema in described["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    references = re.findall(rb'"\$ref":"#/components/(\w+)/([^"]+)"', msgspec.json.encode(described))
    assert references
    assert [name for kind, name in references if name.decode() not in described["components"][kind.decode()]] == []


def test_each_body_has_an_example_that_fits_its_schema() -> None:
    """Every JSON body of requests, answers and webhooks but the simplest has one, which its schema allows."""
    described = document()
    contents = list(bodies(described))
    for content in contents:
        schema = {**content["schema"], "components": described["components"]}
        if "example" in content:
            jsonschema.Draft202012Validator(schema).validate(content["example"])
    without = {content["schema"].get("$ref", "").rpartition("/")[2] for content in contents if "example" not in content}
    assert without == {"Error", "Health", ""}


def bodies(part: Any) -> Iterator[dict[str, Any]]:
    """The JSON bodies that a document describes, wherever they stand in it."""
    if isinstance(part, dict):
        if "schema" in part.get("content", {}).get("application/json", {}):
            yield part["content"]["application/json"]
        for inner in part.values():
            yield from bodies(inner)


def test_identifiers_parameters_and_links_hold_together() -> None:
    """Operation ids are unique, every parameter is used, each path's own are declared, links lead to operations."""
    ids = [operation.id for operation in OPERATIONS.values()]
    assert len(set(ids)) == len(ids)
    assert {name for operation in OPERATIONS.values() for name in operation.parameters} == set(PARAMETERS)
    for (_, path), operation in OPERATIONS.items():
        in_path = {name for name in operation.parameters if PARAMETERS[name]["in"] == "path"}
        assert in_path == set(re.findall(r"{(\w+)}", path))
        assert {target for targets in operation.links.values() for target in targets} <= set(ids)


def test_idempotency_is_described_where_it_is_advertised() -> None:
    """The endpoints that /me names take the header that it names, and no others do."""
    taking = [f"{method} {path}" for (method, path), one in OPERATIONS.items() if IDEMPOTENCY.header in one.parameters]
    assert taking == IDEMPOTENCY.endpoints


class Watcher:
    """Asks a server, and holds each answer against the document."""

    def __init__(self, client: httpx.Client) -> None:
        self.seen: dict[str, set[int]] = defaultdict(set)
        self.codes: set[tuple[int, str]] = set()
        self._client = client
        self._document = self._client.get("/openapi.json").json()

    def __call__(self, key: str | None, method: str, route: str, **request: Any) -> httpx.Response:
        path = route.format(**request.pop("ids", {}))
        headers = {"X-API-Key": key} if key else {}
        answer = self._client.request(method, path, headers=headers | request.pop("headers", {}), **request)
        operation = self._document["paths"][route][method.lower()]
        self.seen[operation["operationId"]].add(answer.status_code)
        self._check(operation["responses"], answer)
        return answer

    def _check(self, responses: dict[str, Any], answer: httpx.Response) -> None:
        assert f"{answer.status_code}" in responses, answer.text
        declared = self._resolved(responses[f"{answer.status_code}"])
        (media,) = declared["content"]
        assert answer.headers["content-type"] == media
        schema = {**declared["content"][media]["schema"], "components": self._document["components"]}
        jsonschema.Draft202012Validator(schema).validate(answer.json())
        assert set(declared.get("headers", {})) <= {name.title() for name in answer.headers}
        if answer.is_error:
            self.codes.add((answer.status_code, answer.json()["error"]["code"]))

    def _resolved(self, value: dict[str, Any]) -> dict[str, Any]:
        reference = value.get("$ref")
        if reference is None:
            return value
        _, _, kind, name = reference.split("/")
        return dict(self._document["components"][kind][name])


@contextmanager
def small_server(folder: Path) -> Iterator[Served]:
    plans = dict(load_plans())
    plans["business"] = msgspec.structs.replace(plans["business"], upload_bytes=1_000, watches=2, watch_changes=3)
    plans["cramped"] = msgspec.structs.replace(plans["business"], disk_bytes=16_000)
    with served(folder / "db.sqlite", plans=plans) as server:
        yield server


def upload(content: bytes = b"b_no\n1248100998\n2208162517\n", name: str = "a.csv") -> dict[str, Any]:
    return {"file": (name, content, "text/csv")}


def walk(ask: Watcher, server: Served) -> None:
    """Make every operation answer with each status that it declares, but for those that are hard to get."""
    key, free, poor = server.key(), server.key(plan="free"), server.key(quota=1)
    for (method, path), operation in OPERATIONS.items():
        ids = {"job_id": "none", "watch_id": "none"}
        ask(key, method, path, ids=ids)
        if not operation.public:
            ask(None, method, path, ids=ids)
            ask("wrong", method, path, ids=ids)
            ask(free, method, path, ids=ids)
        if operation.body is not None:
            ask(key, method, path, ids=ids, content=b"{" * 100_000)
            ask(key, method, path, ids=ids, data={"b_no": NUMBER})
    verify = {"json": {"b_no": NUMBER, "name": "삼성전자", "address": "경기 수원시 영통구 삼성로 129"}}
    for more in ({}, {"headers": {IDEMPOTENCY.header: "한".encode().hex() * 50}}):
        ask(key, "POST", "/verify", **verify, **more)
    for _ in range(2):
        ask(poor, "POST", "/verify", json={"b_no": NUMBER}, headers={IDEMPOTENCY.header: f"k{_}"})
    ask(poor, "POST", "/verify", json={"b_no": "2208162517"}, headers={IDEMPOTENCY.header: "k0"})
    walk_batches(ask, key, poor)
    cramped = server.key(plan="cramped")
    created = done(ask, cramped, ask(cramped, "POST", "/batch", files=upload()).json())
    ask(cramped, "POST", "/batch/{job_id}/label", ids=created, json={"row_id": 1, "bounced": True})
    walk_watches(ask, key)


def walk_batches(ask: Watcher, key: str, poor: str) -> None:
    headers = {IDEMPOTENCY.header: "batch"}
    created = ask(key, "POST", "/batch", files=upload(), headers=headers).json()
    ask(key, "POST", "/batch", files=upload(b"b_no\n1248100998\n"), headers=headers)
    ask(key, "POST", "/batch", files=upload(b"name\nA\n"))
    ask(key, "POST", "/batch", files=upload(b"b_no\n" + b"1248100998\n" * 10_000))
    ask(key, "POST", "/batch", files=upload(name="a.zip"))
    ask(poor, "POST", "/batch", files=upload())
    ids = {"job_id": created["job_id"]}
    label = {"json": {"row_id": 1, "bounced": True, "reason": "이사불명"}}
    ask(key, "POST", "/batch/{job_id}/label", ids=ids, **label)
    done(ask, key, created)
    ask(key, "GET", "/batch/{job_id}", ids=ids, params={"preview": "x"})
    ask(key, "POST", "/batch/{job_id}/label", ids=ids, **label)
    ask(key, "POST", "/batch/{job_id}/label", ids=ids, json={"row_id": 2, "bounced": True})
    ask(key, "GET", "/batch", params={"limit": "0"})
    ask(key, "DELETE", "/batch/{job_id}", ids=ids)


def done(ask: Watcher, key: str, created: dict[str, Any]) -> dict[str, str]:
    """Wait until a job is done; return its id as the path takes it."""
    ids, until = {"job_id": created["job_id"]}, time.monotonic() + 120
    while ask(key, "GET", "/batch/{job_id}", ids=ids).json()["status"] != "done":
        assert time.monotonic() < until
        time.sleep(0.02)
    return ids


def walk_watches(ask: Watcher, key: str) -> None:
    for number in (NUMBER, NUMBER, "2208162517", "1208147521"):
        ask(key, "POST", "/watch", json={"biz_no": number, "name": "가"})
    listed = ask(key, "GET", "/watch").json()
    ids = {"watch_id": listed["watches"][0]["watch_id"]}
    ask(key, "GET", "/watch/{watch_id}/history", ids=ids)
    ask(key, "DELETE", "/watch/{watch_id}", ids=ids)
    ask(key, "POST", "/watch", json={"biz_no": "1208147521"})  # the month's changes are used up


def test_what_is_answered_is_what_is_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer has a declared status, content type, headers and shape; each declared status is really answered."""
    read_here(monkeypatch)
    with small_server(tmp_path) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        ask = Watcher(client)
        walk(ask, server)
    declared = {
        operation["operationId"]: {int(status) for status in operation["responses"]}
        for path in document()["paths"].values()
        for operation in path.values()
    }
    seen = {name: statuses - HARD_TO_GET for name, statuses in ask.seen.items()}
    assert seen == {
        name: statuses - HARD_TO_GET - jobs_that_end_at_once(name, seen) for name, statuses in declared.items()
    }
    undescribed = [(status, code) for status, code in ask.codes if f"`{code}`" not in REFUSALS[status]]
    assert undescribed == []


def jobs_that_end_at_once(name: str, seen: dict[str, set[int]]) -> set[int]:
    """A small job may be done before its label is refused for coming too early (409)."""
    return {409} - seen[name] if name == "labelRow" else set()


@pytest.mark.parametrize(("event", "model"), [("closure", "Closure"), ("closed_already", "ClosedAlready")])
def test_the_webhook_is_described_as_it_is_sent(event: str, model: str) -> None:
    """A notice's payload has exactly the fields that the document requires; its headers are the ones described."""
    described = document()
    operation = described["webhooks"][event]["post"]
    schema = {
        **operation["requestBody"]["content"]["application/json"]["schema"],
        "components": described["components"],
    }
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(SCHEMA)
        closure = {"owner": "k", "watch_id": "w", "biz_no": NUMBER, "name": "가", "address": None}
        closures = pl.DataFrame([closure | {"status_before": "active", "grade_before": "B", "grade": "E"}])
        if event == "closure":
            add_notifications(db, closures.cast(pl.String), 1_800_000_000.0, ["webhook"])
        else:
            add_summaries(
                db, closures.cast(pl.String), 1_800_000_000.0, ["webhook"], SummaryWindow(0.0, 1_800_000_060.0)
            )
        ((payload, id),) = db.execute("SELECT payload, id FROM notices").fetchall()
    told = json.loads(payload)
    jsonschema.Draft202012Validator(schema).validate(told)
    assert set(told) == set(described["components"]["schemas"][model]["required"])
    sent = signature_headers("secret", told["event"], id, payload.encode(), 1_800_000_000.0)
    assert list(sent) == [parameter["name"] for parameter in operation["parameters"]]
    for parameter in operation["parameters"]:
        jsonschema.Draft202012Validator(parameter["schema"]).validate(sent[parameter["name"]])
