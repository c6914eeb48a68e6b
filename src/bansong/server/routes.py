"""The operations: one table of path, method, handler, request and answer models and documentation.

The routes and the OpenAPI 3.1 document (``openapi``) come from it. A test holds each answer that it sees against the
document.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bansong.server import handlers, job_handlers, payloads
from bansong.server.errors import JSON
from bansong.server.openapi import Operation, Schema, describe_service


class Health(msgspec.Struct):
    """The server is up and can read its file."""

    status: str


async def serve_document(request: Request) -> Response:
    """Answer ``GET /openapi.json``."""
    del request
    return Response(_encode_document(), media_type=JSON)


@cache
def _encode_document() -> bytes:
    return msgspec.json.encode(document())


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
        handler=job_handlers.list_jobs,
        id="listJobs",
        summary="The key's jobs, the newest first, in pages; costs nothing.",
        parameters=("limit", "cursor"),
        answers={200: ("A page of jobs.", payloads.JobListPayload)},
        refusals=(400,),
    ),
    ("GET", "/batch/{job_id}"): Operation(
        handler=job_handlers.show_job,
        id="getJob",
        summary="How far a job is, and its rows of highest risk once it is done; ask once a second.",
        parameters=("job_id", "preview"),
        answers={200: ("The job.", payloads.JobStatus)},
        refusals=(400, 404),
    ),
    ("DELETE", "/batch/{job_id}"): Operation(
        handler=job_handlers.delete_job,
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
        handler=serve_document,
        id="getDescription",
        summary="This document.",
        answers={200: ("It.", dict)},
        refusals=(500,),
        public=True,
    ),
}
"""The operations by method and path: routes and document are made from them."""

PUBLIC: Final = frozenset(path for (_, path), operation in OPERATIONS.items() if operation.public)
"""Paths that need no key."""


def routes() -> list[Route]:
    """The routes of the app."""
    return [Route(path, one.handler, methods=[method]) for (method, path), one in OPERATIONS.items()]


def document() -> Schema:
    """Return the OpenAPI 3.1 document, as JSON can say it."""
    return describe_service(OPERATIONS)
