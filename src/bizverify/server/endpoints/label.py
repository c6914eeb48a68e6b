"""``POST /batch/{job_id}/label`` (INTERFACE §2.4, §4.4)."""

from __future__ import annotations

import sqlite3

from starlette.requests import Request
from starlette.responses import Response

from bizverify.server.auth import key_of
from bizverify.server.bodies import read_json
from bizverify.server.context import context_of
from bizverify.server.refusals import JSON, conflict, not_found
from bizverify.server.store import jobs, labels
from bizverify.server.wire import Labelled, LabelRequest, encode


async def label(request: Request) -> Response:
    """Record what became of a row's letter; a later outcome of the row replaces it. Costs nothing.

    Refused with 404 for a job or row that is not there or not this key's, with 409 for a job that is not done.
    """
    context, key, job_id = context_of(request), key_of(request), request.path_params["job_id"]
    told = await read_json(request, LabelRequest)
    now = context.clock.now()

    def record(db: sqlite3.Connection) -> None:
        job = jobs.find(db, key.id, job_id)
        if job is None:
            raise not_found(f"the job {job_id[:100]!r}")
        if job.state != "done":
            raise conflict(f"the job is {job.state}: only the rows of a job that is done have outcomes", "job_not_done")
        if told.row_id >= job.total:
            raise not_found(f"the row {told.row_id} of a job with {job.total:,} rows, counted from 0,")
        labels.put(db, job.id, told.row_id, bounced=told.bounced, reason=told.reason, now=now)

    await context.store.write(record)
    context.learning.tell()
    return Response(encode(Labelled(job_id, told.row_id, told.bounced, told.reason)), 201, media_type=JSON)
