"""Bodies of replies in a dialect."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Final

from bansong.testing.verdicts import Lookup, Verdict

if TYPE_CHECKING:
    from bansong.testing.dialects import Dialect
    from bansong.testing.service_state import FakeJob

Object = dict[str, Any]
ResultsEdit = Callable[[list[Object]], list[Object]]

_SEED: Final = 20_040_229


def encode_json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def answer(dialect: Dialect, fields: Object) -> Object:
    """Return the seven fields in the dialect, with fields of its own."""
    if dialect.blanks == "absent":
        fields = {name: value for name, value in fields.items() if value is not None}
    elif dialect.blanks == "empty":  # a number has no empty text
        fields = {n: "" if v is None and n != "bounce_prob" else v for n, v in fields.items()}
    return {**fields, "checked_at": "2026-11-21T09:00:00+09:00", "model": {"version": 7}} if dialect.extras else fields


def verification(dialect: Dialect, row: Lookup, fields: Object) -> Object:
    said = answer(dialect, fields)
    match dialect.verify_echo:
        case "flat":
            return _echo(dialect, row) | said
        case "nested":
            return {dialect.echo_under: _echo(dialect, row), dialect.answer_under or "result": said}
    return said


def wrap_reply(dialect: Dialect, value: object) -> object:
    """Put a value into the dialect's envelope; for replies whose shape the document does not show."""
    return value if dialect.envelope is None else {"success": True, dialect.envelope: value}


def status_record(
    dialect: Dialect,
    job: FakeJob,
    word: str,
    done: int,
    preview: int | None,
    verdict: Verdict,
    edits: Sequence[ResultsEdit],
) -> Object:
    record: Object = {"status": word, **_progress(dialect, done, len(job.rows))}
    if dialect.extras:
        record |= {"job_id": job.id, "links": {"self": f"/batch/{job.id}"}}
    if word == dialect.done or dialect.early == "so far":
        results = _results(dialect, job, done, preview, verdict)
        for edit in edits:
            results = edit(results)
    elif dialect.early == "empty":
        results = []
    else:
        return record
    *path, last = dialect.results
    place = record
    for key in path:
        place = place.setdefault(key, {})
    place[last] = results
    return record


def _progress(dialect: Dialect, done: int, total: int) -> Object:
    match dialect.progress:
        case "flat":
            return {"total": total, "done": done}
        case "nested":
            return {"progress": {"processed": done, "total": total}}
        case "percent":
            return {"progress": round(done / total, 3) if total else 1.0}
    return {}


def _results(dialect: Dialect, job: FakeJob, done: int, preview: int | None, verdict: Verdict) -> list[Object]:
    most = dialect.preview if preview is None else preview
    if preview == 0 and dialect.zero_is_all:
        most = None
    most = min(len(job.rows) if bound is None else bound for bound in (most, dialect.preview_most))
    places = list(range(done))
    if dialect.order == "shuffled":
        Random(_SEED).shuffle(places)  # noqa: S311 - not a secret
    elif dialect.order == "risk":
        places.sort(key=lambda place: -(_risk(job, place, verdict)))
    return [_item(dialect, job, place, verdict) for place in places[:most]]


def _risk(job: FakeJob, place: int, verdict: Verdict) -> float:
    return -1.0 if place in job.faults else float(verdict(*job.rows[place]).get("bounce_prob") or 0.0)


def _item(dialect: Dialect, job: FakeJob, place: int, verdict: Verdict) -> Object:
    row = job.rows[place]
    item: Object = {}
    if dialect.row_key is not None:
        key = place + dialect.row_base
        item[dialect.row_key] = str(key) if dialect.row_text else key
    if dialect.echo == "flat":
        item |= _echo(dialect, row)
    elif dialect.echo == "under":
        item[dialect.echo_under] = _echo(dialect, row)
    fault = job.faults.get(place)
    if fault is not None:
        return item | _row_error(dialect, fault)
    fields = answer(dialect, verdict(*row))
    return {**item, **fields} if dialect.answer_under is None else {**item, dialect.answer_under: fields}


def _echo(dialect: Dialect, row: Lookup) -> Object:
    number = row.b_no
    if dialect.hyphens:
        number = f"{number[:3]}-{number[3:5]}-{number[5:]}"
    said = {"b_no": (dialect.echo_number, number), "name": ("name", row.name), "address": ("address", row.address)}
    return dict(said[name] for name in dialect.echoed)


def _row_error(dialect: Dialect, fault: str) -> Object:
    match dialect.row_error:
        case "object":
            return {"error": {"code": "NOT_VERIFIED", "message": fault}}
        case "status":
            return {"status": "error", "message": fault}
    return {"error": fault}


def account(dialect: Dialect, plan: str, quota: int | None, used: int) -> Object:
    left = None if quota is None else max(quota - used, 0)
    match dialect.me:
        case "left":
            return {"plan": plan, "limit": quota, "remaining": left}
        case "nested":
            return {
                "account": {"name": "Example Ltd.", "plan": {"name": plan}},
                "limits": {"monthly_lookups": quota},
                "usage": {"monthly_lookups": used},
            }
        case "camel":
            return {"planName": plan, "monthlyQuota": quota, "usedThisMonth": used, "resetsAt": "2026-12-01"}
        case "list":
            lookups = {"name": "lookups", "period": "month", "limit": quota, "used": used}
            return {"plan": plan, "limits": [{"name": "watches", "limit": 100, "used": 3}, lookups]}
        case "text":
            return {"tier": plan, "quota": {"limit": _text(quota), "remaining": _text(left)}}
    return {"plan": plan, "monthly_quota": quota, "used": used, "remaining": left}


def _text(number: int | None) -> str:
    return "unlimited" if number is None else f"{number:,}"


def error_body(dialect: Dialect, status: int, message: str) -> tuple[bytes, str | None]:
    body: Object
    match dialect.error:
        case "error":
            body = {"error": message}
        case "nested":
            body = {"error": {"code": f"E{status}", "message": message}}
        case "list":
            body = {"detail": [{"loc": ["request"], "msg": message, "type": "value_error"}]}
        case "text":
            return message.encode("utf-8"), "text/plain; charset=utf-8"
        case "empty":
            return b"", None
        case _:
            body = {"detail": message}
    return encode_json(body), "application/json"
