"""Reads an uploaded file in a process of its own: what a hostile file does, it does there."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any, Final

import polars as pl

from bizverify.engine.local import ROW_PROBLEM
from bizverify.enrichment import PreparedTable, prepare_table
from bizverify.errors import BizverifyError, ColumnError, OutputError
from bizverify.run.cross_row_features import CROWDED, SEVERAL, with_cross_row_features
from bizverify.run.records import ROW_ID
from bizverify.schema import CONTEXT_COLUMNS, RECORD_COLUMNS
from bizverify.tables import open_table, publish_file, reading
from bizverify.tables.isolation import limit_memory

_PACKED: Final = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")
_GROUP: Final = 20_000


def record_columns(names: list[str]) -> list[str]:
    """The columns of a job's records, as far as the file has them: ``row_id`` and what the engine reads of a row."""
    known = (ROW_ID, *RECORD_COLUMNS, *CONTEXT_COLUMNS, ROW_PROBLEM, CROWDED, SEVERAL)
    return [name for name in known if name in names]


def read(path: Path, target: Path, most: int) -> dict[str, Any]:
    """Write the records of a table to ``target``; say how many: ``{"total": n}``, or ``{"rows": n}`` if too many.

    Raises what the readers raise; a packed file and Parquet are ``{"kind": …}``.
    """
    with path.open("rb") as file:
        if file.read(4).startswith(_PACKED):
            return {"kind": "packed files"}
    with open_table(path, options={}) as table:
        if table.format == "parquet":
            return {"kind": "Parquet files"}
        stages = prepare_table(table, None, "")
        with reading(table):
            total = table.count()
        if total > most:
            return {"rows": total}
        with publish_file(target) as temporary, reading(table):
            _records(stages).sink_parquet(temporary, row_group_size=_GROUP)
            return {"total": pl.scan_parquet(temporary).select(pl.len()).collect().item()}


def _records(stages: PreparedTable) -> pl.LazyFrame:
    rows = with_cross_row_features(stages.rows)
    names = rows.collect_schema().names()
    if "b_no" not in names:  # `[]`: there is nothing of which a number could be missing
        rows = rows.with_columns(pl.lit(None, pl.String).alias("b_no"))
    return rows.select(record_columns(rows.collect_schema().names()))


def main() -> None:
    """Serve one request, a line of JSON on stdin, and end with whoever asked."""
    request = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_together, daemon=True).start()
    limit_memory(request["memory"])
    answer: dict[str, Any]
    try:
        answer = read(Path(request["file"]), Path(request["target"]), request["rows"])
    except ColumnError as error:
        answer = {"error": "columns", "message": str(error)}
    except (OutputError, OSError) as error:
        answer = {"error": "disk", "message": type(error).__name__}
    except BizverifyError as error:
        answer = {"error": "unreadable", "message": str(error)}
    sys.stdout.write(json.dumps(answer))
    sys.stdout.flush()
    os._exit(0)  # the thread that watches stdin would be waited for


def _end_together() -> None:
    """Wait for the server's end of the pipe to be closed, by whatever; nothing that was started here outlives it."""
    sys.stdin.buffer.read()
    if hasattr(os, "killpg"):
        os.killpg(os.getpgid(0), signal.SIGKILL)
    os._exit(1)
