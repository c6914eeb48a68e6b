"""What the ledger knows of the lookups a run wants, as frames."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any, Final

import polars as pl

from bizverify.schema import ANSWER_COLUMNS, REASON_SEPARATOR

CHUNK: Final = 50_000
"""As many keys are looked up at once: what is held in memory does not grow with the file."""

# a row that went with an upload that is held is held itself; one that is done was bought by whoever bought its answer
STATE: Final = "CASE WHEN l.state = 'uploaded' AND u.state IN ('doubt', 'unreadable') THEN u.state ELSE l.state END"
NOTE: Final = "CASE l.state WHEN 'uploaded' THEN u.note ELSE l.note END"
JOINED: Final = """
    LEFT JOIN answers a ON a.lookup = l.id
    LEFT JOIN uploads u ON u.number = CASE l.state WHEN 'done' THEN a.upload ELSE l.upload END
    LEFT JOIN runs r ON r.number = CASE l.state WHEN 'done' THEN a.run ELSE l.run END
"""

# the keys come as one BLOB: half the time of filling a table. First rows are found and put in the order in which they
# were asked, since those lie together; then they are read
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
_UPLOADS: Final = {
    "number": pl.Int64,
    "upload": pl.String,
    "job_id": pl.String,
    "upload_state": pl.String,
    "upload_note": pl.String,
}
_COLUMNS: Final = ("place", "state", "note", "run_id", "upload", "job_id", "answered_at")


def entries_of(connection: sqlite3.Connection, keys: pl.Series, first: int, *, answers: bool) -> pl.DataFrame:
    """Return what is known of these keys, in no particular order; their places count from ``first``."""
    columns = (*_COLUMNS, *ANSWER_COLUMNS) if answers else _COLUMNS
    places = pl.int_range(first, first + len(keys), dtype=pl.UInt32, eager=True)
    wanted = pl.DataFrame({"place": places, "key": keys.cast(pl.Binary)}).drop_nulls()
    parts = wanted.with_columns(size=pl.col("key").bin.size()).partition_by("size")  # as good as always one
    found = [frame for part in parts if not (frame := _found(connection, part, answers)).is_empty()]
    return pl.concat(found).select(columns) if found else pl.DataFrame(schema=dict.fromkeys(columns, pl.String))


def _found(connection: sqlite3.Connection, wanted: pl.DataFrame, answers: bool) -> pl.DataFrame:
    """Return what is known of keys of one size."""
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
