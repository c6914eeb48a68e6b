"""The table of operations; routes and the OpenAPI 3.1 document are made from it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cache
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bansong._version import __version__
from bansong.client.webhook import (
    EVENT_HEADER,
    FORMER_ID_HEADER,
    FORMER_SIGNATURE_HEADER,
    ID_HEADER,
    SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
)
from bansong.notify.queue import EVENT, SUMMARY
from bansong.server import handlers, payloads
from bansong.server.payloads import JSON

Schema = dict[str, Any]


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """A method of a path. Its ``body`` is a type of ``payloads`` or ``"upload"``; ``refusals`` are HTTP statuses."""

    handler: Callable[[Request], Awaitable[Response]]
    id: str
    summary: str
    answers: Mapping[int, tuple[str, Any]]
    refusals: tuple[int, ...] = ()
    parameters: tuple[str, ...] = ()
    body: Any = None
    links: Mapping[str, tuple[str, ...]] = {}
    public: bool = False


_KEYED: Final = (401, 403, 500, 503)
REFUSALS: Final[Mapping[int, str]] = {
    400: "The request is not as it should be (`invalid_request`), the file cannot be read (`unreadable_file`) "
    "or has no column of business numbers (`no_number_column`); the message says where.",
    401: "The API key is missing (`missing_key`) or invalid (`invalid_key`).",
    403: "Not available in the key's plan (`not_in_plan`).",
    404: "It does not exist, or is another key's (`not_found`).",
    408: "The body did not come in time (`timeout`).",
    409: "It contradicts what is there: the Idempotency-Key was used for another request (`idempotency_mismatch`), the "
    "job is not done (`job_not_done`), the watch list is full (`watch_limit`, with `limit` and `used`).",
    413: "The file or request is too large (`too_large`, with `limit` and `unit`); nothing was taken.",
    415: "The body is of another kind (`unsupported_media_type`).",
    429: "The monthly quota does not suffice (`quota_exceeded`, with `limit`, `used`, `remaining`, `resets_at`), or a "
    "bound of the key's plan is reached (`limit_exceeded`, with `bound`, `limit`, `used`); nothing was taken.",
    500: "The server failed (`internal`).",
    503: "The server has as much to do as it takes on, or cannot use its disk (`busy`); nothing was done.",
    507: "The server has no room to store the file (`insufficient_storage`); nothing was done.",
}

_WAITS: Final = (429, 503, 507)
_PAYLOAD: Final = re.compile(r"\b(\w+)Payload\b")
# published component names; other ``…Payload`` types lose that suffix
_PUBLISHED: Final = {"VerificationPayload": "Verified"}

PARAMETERS: Final[Mapping[str, Schema]] = {
    "job_id": {"in": "path", "required": True, "schema": {"type": "string", "minLength": 1}},
    "watch_id": {"in": "path", "required": True, "schema": {"type": "string", "minLength": 1}},
    "preview": {
        "in": "query",
        "description": "How many of the rows of highest risk are given; as many as the job has rows, or more: all.",
        "schema": {"type": "integer", "minimum": 0, "maximum": 10**18 - 1, "default": 10},
    },
    "limit": {
        "in": "query",
        "description": "How many jobs a page has at most.",
        "schema": {"type": "integer", "minimum": 1, "maximum": handlers.MAX_PAGE, "default": handlers.DEFAULT_PAGE},
    },
    "cursor": {
        "in": "query",
        "description": "The `next_cursor` of the page before.",
        "schema": {"type": "string", "minLength": 1},
    },
    "offline": {
        "in": "query",
        "description": "Ask no live source of the registration status, only the registry that the server has.",
        "schema": {"enum": ["true", "false", "1", "0"], "default": "false"},
    },
    "paid": {
        "in": "query",
        "description": "`false`: look nothing up and take nothing from the quota; rows are judged by what they say.",
        "schema": {"enum": ["true", "false", "1", "0"], "default": "true"},
    },
    "Idempotency-Key": {
        "in": "header",
        "description": "Sent again with the same value, the request is answered as before and neither done nor paid "
        "again. 1 to 200 visible ASCII characters.",
        "schema": {"type": "string", "pattern": "^[!-~]{1,200}$"},
    },
}

# posted to webhooks: operation name, event, body type, summary
_NOTIFICATIONS: Final = (
    (
        "closure",
        EVENT,
        payloads.Closure,
        "A watched business was found closed: posted to the webhook of the watch's key.",
    ),
    (
        "closedAlready",
        SUMMARY,
        payloads.ClosedAlready,
        "Businesses were closed already when they were first checked: posted once for all that were added together.",
    ),
)


def _describe_notification(name: str, event: str, type_: type, summary: str, by_type: Mapping[Any, Schema]) -> Schema:
    return {
        "operationId": name,
        "summary": summary,
        "description": "The same bytes are sent again, less and less often, until the receiver acknowledges them; `id` "
        "is the same each time, so a receiver that knows it has the notice already.",
        "security": [],
        "parameters": [
            {
                "name": header,
                "in": "header",
                "required": True,
                "description": description,
                "schema": {"type": "string"} | more,
            }
            for header, description, more in (
                (ID_HEADER, "The `id` of the body.", {}),
                (TIMESTAMP_HEADER, "The unix time of this attempt.", {"pattern": "^[0-9]+$"}),
                (
                    SIGNATURE_HEADER,
                    "As Standard Webhooks has it: `v1,` and the base64 of the HMAC-SHA256 of id, timestamp and body, a "
                    "full stop between each, under the webhook's secret.",
                    {"pattern": "^v1,[A-Za-z0-9+/]{43}=$"},
                ),
                (EVENT_HEADER, "What happened.", {"const": event}),
                (FORMER_ID_HEADER, "The `id` of the body; for one more release.", {}),
                (
                    FORMER_SIGNATURE_HEADER,
                    "For one more release: `t` is the unix time of this attempt, `v1` the HMAC-SHA256 of `t`, a full "
                    "stop and the body, under the text of the webhook's secret.",
                    {"pattern": "^t=[0-9]+,v1=[0-9a-f]{64}$"},
                ),
            )
        ],
        "responses": {"2XX": {"description": "Acknowledged: it is not sent again. Anything else is a failure."}},
        "requestBody": {"required": True, **_content(by_type, type_)},
    }


_UPLOAD: Final[Schema] = {
    "description": "One part named `file`: CSV, Excel or JSON, with a column of business numbers.",
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["file"],
                "properties": {"file": {"type": "string", "format": "binary"}},
            }
        }
    },
}


def document() -> Schema:
    """Return the OpenAPI 3.1 document of the service."""
    by_type, components = _schemas(list(_body_types()))
    paths: dict[str, Schema] = {}
    for (method, path), operation in OPERATIONS.items():
        paths.setdefault(path, {})[method.lower()] = _describe_operation(operation, by_type)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Business registration verification",
            "version": __version__,
            "description": "Every request but /healthz and /openapi.json carries the key in X-API-Key. Every refusal "
            "has one shape; its code is for programs, its message for people. Unknown fields of requests are ignored; "
            "clients should ignore those of answers.",
        },
        "security": [{"key": []}],
        "paths": paths,
        "webhooks": {
            event: {"post": _describe_notification(name, event, type_, summary, by_type)}
            for name, event, type_, summary in _NOTIFICATIONS
        },
        "components": {
            "schemas": components,
            "parameters": {name: {"name": name, **parameter} for name, parameter in PARAMETERS.items()},
            "responses": {f"Refusal{status}": _describe_refusal(status, by_type) for status in REFUSALS},
            "headers": {
                "Retry-After": {
                    "description": "Seconds after which it may be tried again.",
                    "schema": {"type": "integer", "minimum": 1},
                }
            },
            "securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": "X-API-Key"}},
        },
    }


def _schemas(types: list[Any]) -> tuple[dict[Any, Schema], dict[str, Schema]]:
    described = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    text = msgspec.json.encode(described).decode()
    schemas, components = msgspec.json.decode(_PAYLOAD.sub(lambda name: _PUBLISHED.get(name[0], name[1]), text))
    return dict(zip(types, schemas, strict=True)), components


def _body_types() -> Iterable[Any]:
    found: dict[Any, None] = {payloads.Error: None, **{type_: None for _, _, type_, _ in _NOTIFICATIONS}}
    for operation in OPERATIONS.values():
        if isinstance(operation.body, type):
            found[operation.body] = None
        found |= dict.fromkeys(type_ for _, type_ in operation.answers.values())
    return found


def _describe_operation(operation: Operation, by_type: Mapping[Any, Schema]) -> Schema:
    described: Schema = {"operationId": operation.id, "summary": operation.summary}
    if operation.public:
        described["security"] = []
    if operation.parameters:
        described["parameters"] = [_ref("parameters", name) for name in operation.parameters]
    if operation.body == "upload":
        described["requestBody"] = _UPLOAD
    elif operation.body is not None:
        described["requestBody"] = {"required": True, **_content(by_type, operation.body)}
    links = {
        target: {"operationId": target, "parameters": {name: f"$response.body#/{name}"}}
        for name, targets in operation.links.items()
        for target in targets
    }
    responses: dict[str, Schema] = {}
    for status, (description, type_) in operation.answers.items():
        responses[f"{status}"] = {"description": description, **_content(by_type, type_)}
        if links:
            responses[f"{status}"]["links"] = links
    refusals = operation.refusals if operation.public else {*operation.refusals, *_KEYED}
    described["responses"] = responses | {
        f"{status}": _ref("responses", f"Refusal{status}") for status in sorted(refusals)
    }
    return described


def _describe_refusal(status: int, by_type: Mapping[Any, Schema]) -> Schema:
    refusal: Schema = {"description": REFUSALS[status], "content": {JSON: {"schema": by_type[payloads.Error]}}}
    if status in _WAITS:
        refusal["headers"] = {"Retry-After": {"required": True, **_ref("headers", "Retry-After")}}
    return refusal


def _content(by_type: Mapping[Any, Schema], type_: Any) -> Schema:
    content = {"schema": by_type[type_]}
    if (example := payloads.EXAMPLES.get(type_)) is not None:
        content["example"] = example
    return {"content": {JSON: content}}


def _ref(kind: str, name: str) -> Schema:
    return {"$ref": f"#/components/{kind}/{name}"}


class Health(msgspec.Struct):
    """The server is up and can read its file."""

    status: str


async def _serve_document(_: Request) -> Response:
    return Response(_encoded_document(), media_type=JSON)


_BODY: Final = (400, 408, 413, 415)

OPERATIONS: Final[Mapping[tuple[str, str], Operation]] = {
    ("POST", "/verify"): Operation(
        handler=handlers.verify_business,
        id="verify",
        summary="Look one business up (takes one lookup of the month's quota).",
        parameters=("offline", "Idempotency-Key"),
        body=payloads.VerifyRequest,
        answers={200: ("The seven fields.", payloads.VerificationPayload)},
        refusals=(*_BODY, 409, 429),
    ),
    ("POST", "/batch"): Operation(
        handler=handlers.create_job,
        id="createJob",
        summary="Verify each row of a file; the rows are taken from the quota when the job is accepted.",
        parameters=("offline", "paid", "Idempotency-Key"),
        body="upload",
        answers={200: ("The job is accepted and stored.", payloads.BatchCreatedPayload)},
        refusals=(*_BODY, 409, 429, 507),
        links={"job_id": ("getJob", "labelRow", "deleteJob")},
    ),
    ("GET", "/batch"): Operation(
        handler=handlers.list_jobs,
        id="listJobs",
        summary="The key's jobs, the newest first, in pages; costs nothing.",
        parameters=("limit", "cursor"),
        answers={200: ("A page of jobs.", payloads.JobListPayload)},
        refusals=(400,),
    ),
    ("GET", "/batch/{job_id}"): Operation(
        handler=handlers.show_job,
        id="getJob",
        summary="How far a job is, and its rows of highest risk once it is done; ask once a second.",
        parameters=("job_id", "preview"),
        answers={200: ("The job.", payloads.JobStatus)},
        refusals=(400, 404),
    ),
    ("DELETE", "/batch/{job_id}"): Operation(
        handler=handlers.delete_job,
        id="deleteJob",
        summary="Delete a job with its results; one that is not done is cancelled, rows not answered are given back.",
        parameters=("job_id",),
        answers={
            200: ("It is gone.", payloads.JobDeleted),
            202: ("It is gone for readers; it ran, and its files go within a slice of rows.", payloads.JobDeleted),
        },
        refusals=(404,),
    ),
    ("POST", "/batch/{job_id}/label"): Operation(
        handler=handlers.record_label,
        id="labelRow",
        summary="Say what became of the letter to a row of a job; a later label of the same row replaces it.",
        parameters=("job_id",),
        body=payloads.LabelRequest,
        answers={201: ("The label is kept.", payloads.Labelled)},
        refusals=(*_BODY, 404, 409, 429),
    ),
    ("POST", "/watch"): Operation(
        handler=handlers.add_watch,
        id="addWatch",
        summary="Watch a business; one that is watched already keeps its identifier.",
        body=payloads.WatchRequest,
        answers={
            201: ("It is watched from now on.", payloads.WatchEntryPayload),
            200: ("It was watched already; name and address are replaced where given.", payloads.WatchEntryPayload),
        },
        refusals=(*_BODY, 409, 429),
        links={"watch_id": ("getHistory", "removeWatch")},
    ),
    ("GET", "/watch"): Operation(
        handler=handlers.list_watches,
        id="listWatches",
        summary="The whole watch list, in the order in which it was made.",
        answers={200: ("The list.", payloads.WatchListPayload)},
    ),
    ("DELETE", "/watch/{watch_id}"): Operation(
        handler=handlers.remove_watch,
        id="removeWatch",
        summary="Stop watching a business; its history goes with it.",
        parameters=("watch_id",),
        answers={200: ("It is not watched any more.", payloads.WatchRemoved)},
        refusals=(404,),
    ),
    ("GET", "/watch/{watch_id}/history"): Operation(
        handler=handlers.show_watch_history,
        id="getHistory",
        summary="The changes of grade of one watched business, the oldest first (Business plan).",
        parameters=("watch_id",),
        answers={200: ("The changes.", payloads.WatchHistory)},
        refusals=(404,),
    ),
    ("GET", "/me"): Operation(
        handler=handlers.show_account,
        id="getAccount",
        summary="What the key may do, and how much of the month's quota is left; costs nothing.",
        answers={200: ("The account.", payloads.Me)},
    ),
    ("GET", "/healthz"): Operation(
        handler=handlers.check_health,
        id="getHealth",
        summary="Whether the server is up and can read its file.",
        answers={200: ("It is.", Health)},
        refusals=(500, 503),
        public=True,
    ),
    ("GET", "/openapi.json"): Operation(
        handler=_serve_document,
        id="getDescription",
        summary="This document.",
        answers={200: ("It.", dict)},
        refusals=(500,),
        public=True,
    ),
}

PUBLIC: Final = frozenset(path for (_, path), operation in OPERATIONS.items() if operation.public)


def routes() -> list[Route]:
    return [Route(path, one.handler, methods=[method]) for (method, path), one in OPERATIONS.items()]


@cache
def _encoded_document() -> bytes:
    return msgspec.json.encode(document())
