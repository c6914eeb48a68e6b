"""Queries of the ledger: lookups of a run (as frames), uploads, doubts, runs, labels, lookups of one business."""

# ruff: noqa: S608 - statements consist of constants of this package; values are always bound

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import polars as pl

from bansong.base.schema import ANSWER_COLUMNS, REASON_SEPARATOR, Answer
from bansong.purchase.ledger_file import UNSETTLED, flag

CHUNK: Final = 50_000  # keys looked up at once, to bound the memory

# a lookup of a held upload counts as held; run and upload of a done lookup are those that bought its answer
STATE: Final = "CASE WHEN l.state = 'uploaded' AND u.state IN ('doubt', 'unreadable') THEN u.state ELSE l.state END"
NOTE: Final = "CASE l.state WHEN 'uploaded' THEN u.note ELSE l.note END"
JOINED: Final = """
    LEFT JOIN answers a ON a.lookup = l.id
    LEFT JOIN uploads u ON u.number = CASE l.state WHEN 'done' THEN a.upload ELSE l.upload END
    LEFT JOIN runs r ON r.number = CASE l.state WHEN 'done' THEN a.run ELSE l.run END
"""

# the keys are passed as one BLOB, which takes half the time of filling a table. Ids are found first, and rows are read
# in the order of ids, since neighbours lie on one page
_WANTED: Final = """
    WITH RECURSIVE wanted (nth) AS (SELECT 0 UNION ALL SELECT nth + 1 FROM wanted WHERE nth + 1 < :count),
    found (nth, id) AS (
        SELECT w.nth, l.id FROM wanted w CROSS JOIN lookups l ON l.key = substr(:keys, :size * w.nth + 1, :size)
        ORDER BY l.id LIMIT -1)
    SELECT w.nth, l.state, l.note,
        CASE l.state WHEN 'done' THEN a.run ELSE l.run END,
        CASE l.state WHEN 'done' THEN a.upload ELSE l.upload END,
        a.at {fields}
    FROM found w CROSS JOIN lookups l ON l.id = w.id LEFT JOIN answers a ON a.lookup = l.id
"""
_FIELDS: Final = "".join(f", a.{name}" for name in ANSWER_COLUMNS)
_FOUND: Final = {
    "nth": pl.UInt32,
    "state": pl.String,
    "note": pl.String,
    "run": pl.Int64,
    "number": pl.Int64,
    "answered_at": pl.Float64,
}
_ANSWER: Final = dict.fromkeys(ANSWER_COLUMNS, pl.String) | {"bounce_prob": pl.Float64}
_RUNS: Final = {"run": pl.Int64, "run_id": pl.String}
_UPLOADS: Final = {"number": pl.Int64, **dict.fromkeys(("upload", "job_id", "upload_state", "upload_note"), pl.String)}
_COLUMNS: Final = ("place", "state", "note", "run_id", "upload", "job_id", "answered_at")

_SHOWN_HEX_DIGITS: Final = 16
_MIN_PROVING_ROWS: Final = 100  # the row keys of so many rows do not fit by chance
# a missing lookup is shown by its upload
_WAITING_LOOKUPS: Final = f"""
    SELECT l.key, 'lookup', l.state, l.since, r.run_id, r.file, l.b_no, 1, NULL, l.note
    FROM lookups l JOIN runs r ON r.number = l.run
    WHERE {UNSETTLED} AND l.state <> 'missing' AND l.state IN ({{states}})
    ORDER BY l.since, l.id
"""
_WAITING_UPLOADS: Final = f"""
    WITH missing (upload, rows) AS (
        SELECT upload, count(*) FROM lookups
        WHERE {UNSETTLED} AND state = 'missing' AND state IN ({{states}}) GROUP BY upload)
    SELECT u.upload, 'upload', CASE WHEN u.state IN ('lost', 'done') THEN 'missing' ELSE u.state END, u.since, r.run_id,
        r.file, NULL, coalesce(m.rows, u.rows), u.job_id, u.note
    FROM uploads u JOIN runs r ON r.number = u.run LEFT JOIN missing m ON m.upload = u.number
    WHERE u.state IN ({{states}}) OR m.rows > 0 AND u.state IN ('lost', 'done')
    ORDER BY u.since, u.number
"""
_KEYS_PROVEN: Final = """
    SELECT max(number) FILTER (WHERE base IS NOT NULL AND rows >= :many)
        > coalesce(max(number) FILTER (WHERE base IS NULL AND rows > 1), 0)
    FROM uploads WHERE origin = :origin AND state = 'done'
"""


@dataclass(frozen=True, slots=True)
class StoredUpload:
    """An upload in the ledger, and its job at the service."""

    number: int
    id: str
    run_id: str
    state: str
    job_id: str
    total: int | None  # number of rows that the service took
    rows: int
    created: float  # unix seconds
    note: str | None
    base: int | None  # the service's key of its first row, if known
    offline: bool | None
    paid: bool | None


@dataclass(frozen=True, slots=True)
class Doubt:
    """An unsettled lookup, or an upload with ``rows`` unsettled lookups, about which the user must decide."""

    id: str  # for `accept`, `resend` and `attach`
    kind: Literal["lookup", "upload"]
    state: str
    since: float
    run_id: str
    file: str
    b_no: str | None  # only of a lookup
    rows: int
    job_id: str | None  # only of an upload
    note: str | None


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run in the ledger."""

    run_id: str
    engine: str
    origin: str
    file: str
    started: float  # unix seconds
    ended: float | None
    outcome: str | None
    paid: int  # lookups that count as paid
    answered: int  # paid lookups with an answer


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """A lookup in the ledger, with the run, file, upload and job that bought its answer, else of the last request."""

    id: str
    b_no: str
    state: str
    since: float
    run_id: str
    file: str
    upload: str | None
    job_id: str | None
    note: str | None
    answered_at: float | None
    answer: Answer | None


def open_uploads(connection: sqlite3.Connection, origin: str) -> list[StoredUpload]:
    """Return the uploads to ``origin`` whose job is known and not fetched yet, oldest first."""
    return _uploads(connection, "u.state = 'known' AND u.origin = ?", (origin,))


def incomplete_uploads(connection: sqlite3.Connection, origin: str, since: float) -> list[StoredUpload]:
    """Return the uploads to ``origin`` since a time (unix seconds) whose results were fetched but miss rows."""
    missing = f"SELECT upload FROM lookups WHERE {UNSETTLED} AND state = 'missing'"
    where = f"u.state = 'done' AND u.origin = ? AND u.created >= ? AND u.number IN ({missing})"
    return _uploads(connection, where, (origin, since))


def _uploads(connection: sqlite3.Connection, where: str, values: tuple[str | float, ...]) -> list[StoredUpload]:
    found = connection.execute(
        "SELECT u.number, u.upload, r.run_id, u.state, u.job_id, u.total, u.rows, u.created, u.note, u.base, "
        f"u.offline, u.paid FROM uploads u JOIN runs r ON r.number = u.run WHERE {where} ORDER BY u.number",
        values,
    )
    return [StoredUpload(*row[:10], *map(flag, row[10:])) for row in found]


def labelled_jobs(connection: sqlite3.Connection, numbers: Iterable[int]) -> dict[int, StoredUpload]:
    """Return uploads by their numbers in the ledger."""
    return {number: _uploads(connection, "u.number = ?", (number,))[0] for number in numbers}


def rows_of(connection: sqlite3.Connection, upload_id: str) -> list[tuple[bytes, str]]:
    """Return (lookup key, business number) of an upload's rows in the order of sending."""
    number = "(SELECT number FROM uploads WHERE upload = ?)"
    find = f"SELECT key, b_no FROM upload_rows WHERE upload = {number} ORDER BY place"
    return connection.execute(find, (upload_id,)).fetchall()


def shares_job(connection: sqlite3.Connection, upload_id: str) -> bool:
    """Whether another upload, with other rows, has the same job."""
    found = connection.execute(
        "SELECT 1 FROM uploads u JOIN uploads o ON o.job_id = u.job_id AND o.origin = u.origin "
        "WHERE u.upload = ? AND EXISTS (SELECT place, key FROM upload_rows WHERE upload = u.number "
        "EXCEPT SELECT place, key FROM upload_rows WHERE upload = o.number)",
        (upload_id,),
    )
    return found.fetchone() is not None


def named_by_hand(connection: sqlite3.Connection, upload_id: str) -> bool:
    """Whether a person named the job of an upload (``attach``), perhaps a wrong one."""
    found = connection.execute("SELECT 1 FROM decisions WHERE decision = 'attach' AND id = ?", (upload_id,))
    return found.fetchone() is not None


def proves_row_keys(connection: sqlite3.Connection, origin: str) -> bool:
    """Whether an upload of 100 rows or more to ``origin``, and all later ones of several rows, proved the row keys."""
    (found,) = connection.execute(_KEYS_PROVEN, {"origin": origin, "many": _MIN_PROVING_ROWS}).fetchone()
    return bool(found)


def unfetched_uploads(connection: sqlite3.Connection) -> list[Doubt]:
    """Return the uploads whose results could not be fetched yet, oldest first."""
    found = connection.execute(
        "SELECT u.upload, 'upload', 'unfetched', u.since, r.run_id, r.file, NULL, u.rows, u.job_id, u.note "
        "FROM uploads u JOIN runs r ON r.number = u.run "
        "WHERE u.state = 'known' AND u.note IS NOT NULL ORDER BY u.since, u.number"
    )
    return [Doubt(*values) for values in found]


def doubts(connection: sqlite3.Connection) -> list[Doubt]:
    """Return lookups and uploads that were perhaps sent and have no known outcome, oldest first."""
    return _waiting(connection, "'doubt'")


def unusable(connection: sqlite3.Connection) -> list[Doubt]:
    """Return lookups and uploads without a usable answer: unreadable, or missing from their job."""
    return _waiting(connection, "'unreadable', 'missing'")


def _waiting(connection: sqlite3.Connection, states: str) -> list[Doubt]:
    shown = shown_ids(connection)
    lookups, uploads = (
        connection.execute(query.format(states=states)) for query in (_WAITING_LOOKUPS, _WAITING_UPLOADS)
    )
    return [*(Doubt(shown[key], *rest) for key, *rest in lookups), *(Doubt(*found) for found in uploads)]


def shown_ids(connection: sqlite3.Connection) -> dict[bytes, str]:
    """Return a short id of each unsettled lookup: the first digits of its key, or all if another key begins alike."""
    held = f"SELECT key FROM lookups WHERE {UNSETTLED} AND state <> 'asking'"
    names = {key: key.hex() for (key,) in connection.execute(held)}
    begins = Counter(name[:_SHOWN_HEX_DIGITS] for name in names.values())
    return {
        key: name[:_SHOWN_HEX_DIGITS] if begins[name[:_SHOWN_HEX_DIGITS]] == 1 else name for key, name in names.items()
    }


def runs(connection: sqlite3.Connection) -> list[RunRecord]:
    """Return all runs that the ledger recorded, the oldest first."""
    found = connection.execute(
        "SELECT run_id, engine, origin, file, started, ended, outcome, paid, answered FROM runs ORDER BY number"
    )
    return [RunRecord(*values) for values in found]


def find(connection: sqlite3.Connection, b_no: str) -> list[LedgerEntry]:
    """Return the lookups of a business number (ten digits), oldest first."""
    shown = shown_ids(connection)
    found = connection.execute(
        f"SELECT l.key, l.b_no, {STATE}, l.since, r.run_id, r.file, u.upload, u.job_id, {NOTE}, a.at, "
        "a.biz_status, a.bounce_prob, a.grade, a.action, a.fixed_zipcode, a.fixed_address, a.reasons "
        f"FROM lookups l {JOINED} WHERE l.b_no = ? ORDER BY l.id",
        (b_no,),
    )
    entries = []
    for key, number, state, since, run_id, file, upload, job_id, note, at, *fields, reasons in found:
        id = shown.get(key, key.hex()[:_SHOWN_HEX_DIGITS])
        columns = zip(ANSWER_COLUMNS, (*fields, tuple(json.loads(reasons or "[]"))), strict=True)
        answer = None if at is None else Answer(**dict(columns))
        entries.append(LedgerEntry(id, number, state, since, run_id, file, upload, job_id, note, at, answer))
    return entries


def entries_of(connection: sqlite3.Connection, keys: pl.Series, first: int, *, answers: bool) -> pl.DataFrame:
    """Return the ledger's lookups among ``keys``, in any order; ``place`` is their position plus ``first``."""
    columns = (*_COLUMNS, *ANSWER_COLUMNS) if answers else _COLUMNS
    places = pl.int_range(first, first + len(keys), dtype=pl.UInt32, eager=True)
    wanted = pl.DataFrame({"place": places, "key": keys.cast(pl.Binary)}).drop_nulls()
    parts = wanted.with_columns(size=pl.col("key").bin.size()).partition_by("size")  # nearly always one part
    found = [frame for part in parts if not (frame := _find_keys(connection, part, answers)).is_empty()]
    return pl.concat(found).select(columns) if found else pl.DataFrame(schema=dict.fromkeys(columns, pl.String))


def _find_keys(connection: sqlite3.Connection, wanted: pl.DataFrame, answers: bool) -> pl.DataFrame:
    keys = wanted["key"].to_list()
    values = {"keys": b"".join(keys), "size": wanted["size"][0], "count": len(keys)}
    query, schema = _WANTED.format(fields=_FIELDS if answers else ""), _FOUND | (_ANSWER if answers else {})
    frame = _frame(connection.execute(query, values), schema)
    if answers:
        frame = frame.with_columns(
            pl.col("reasons").str.json_decode(pl.List(pl.String)).list.join(REASON_SEPARATOR).alias("reasons")
        )
    runs = _frame(connection.execute("SELECT number, run_id FROM runs"), _RUNS)
    uploads = _frame(connection.execute("SELECT number, upload, job_id, state, note FROM uploads"), _UPLOADS)
    uploaded = pl.col("state") == "uploaded"
    held = uploaded & pl.col("upload_state").is_in(["doubt", "unreadable"])
    return (
        frame.join(runs, on="run", how="left", maintain_order="left")
        .join(uploads, on="number", how="left", maintain_order="left")
        .with_columns(
            wanted["place"].gather(frame["nth"]).alias("place"),
            pl.when(held).then("upload_state").otherwise("state").alias("state"),
            pl.when(uploaded).then("upload_note").otherwise("note").alias("note"),
        )
    )


def _frame(rows: Iterable[tuple[Any, ...]], schema: Mapping[str, type[pl.DataType]]) -> pl.DataFrame:
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pl.DataFrame(
        [pl.Series(name, values, dtype) for (name, dtype), values in zip(schema.items(), columns, strict=True)]
    )


# compares each row that was ever uploaded with the keys (one BLOB, as above)
_JOB_ROWS: Final = """
    WITH RECURSIVE places (nth) AS (SELECT 0 UNION ALL SELECT nth + 1 FROM places WHERE nth + 1 < :count),
    wanted (nth, key) AS MATERIALIZED (SELECT nth, substr(:keys, :size * nth + 1, :size) FROM places)
    SELECT w.nth, u.number, r.place, u.created
    FROM uploads u CROSS JOIN upload_rows r ON r.upload = u.number CROSS JOIN wanted w ON w.key = r.key
    WHERE u.origin = :origin AND u.job_id IS NOT NULL AND u.state IN ('known', 'done')
"""
JOB_ROWS: Final = {"nth": pl.Int64, "upload": pl.Int64, "place": pl.Int64, "created": pl.Float64}
_HELD_LABELS: Final = """
    SELECT l.upload, l.place, u.job_id, r.b_no, l.bounced, l.reason, l.state, l.since, l.note
    FROM labels l JOIN uploads u ON u.number = l.upload
    JOIN upload_rows r ON r.upload = l.upload AND r.place = l.place
    WHERE l.state IN ('refused', 'doubt') AND u.origin = ? AND NOT EXISTS
        (SELECT 1 FROM labels n WHERE n.upload = l.upload AND n.place = l.place AND n.turn > l.turn)
    ORDER BY l.since, l.upload, l.place
"""


@dataclass(frozen=True, slots=True)
class HeldLabel:
    """A label that was refused or is in doubt; it is sent again only if the user decides so."""

    upload: int
    place: int
    job_id: str
    b_no: str
    bounced: bool
    reason: str | None
    state: Literal["refused", "doubt"]
    since: float
    note: str | None


def job_rows(connection: sqlite3.Connection, keys: pl.Series, origin: str) -> pl.DataFrame:
    """Return the rows with ``keys`` in jobs at ``origin``, as :data:`JOB_ROWS`; ``nth`` is the position in ``keys``."""
    if keys.is_empty():
        return pl.DataFrame(schema=JOB_ROWS)
    values = {"keys": b"".join(keys), "size": len(keys[0]), "count": len(keys), "origin": origin}
    return pl.DataFrame(connection.execute(_JOB_ROWS, values).fetchall(), schema=JOB_ROWS, orient="row")


def upload_flags(connection: sqlite3.Connection, origin: str) -> list[tuple[bool | None, bool | None]]:
    """Return all pairs of the flags ``offline`` and ``paid`` with which lookups were uploaded to ``origin``."""
    found = connection.execute("SELECT DISTINCT offline, paid FROM uploads WHERE origin = ?", (origin,))
    return [(flag(offline), flag(paid)) for offline, paid in found]


def held_labels(connection: sqlite3.Connection, origin: str) -> list[HeldLabel]:
    """Return the refused and doubtful labels at ``origin``, oldest first, except those of rows with a later label."""
    found = connection.execute(_HELD_LABELS, (origin,))
    return [
        HeldLabel(upload, place, job_id, b_no, bool(bounced), reason, state, since, note)
        for upload, place, job_id, b_no, bounced, reason, state, since, note in found
    ]
