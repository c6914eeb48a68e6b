"""Read an uploaded file in an isolated process, bounded in memory and time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Final

import anyio
import polars as pl
from anyio.abc import Process

from bizverify.engine.local import ROW_PROBLEM
from bizverify.enrichment import Stages, looked_over, staged
from bizverify.errors import BizverifyError, ColumnError, OutputError
from bizverify.run.cross_row_features import CROWDED, SEVERAL
from bizverify.run.records import ROW_ID
from bizverify.schema import CONTEXT_COLUMNS, RECORD_COLUMNS
from bizverify.server.errors import Refusal, invalid, too_large
from bizverify.server.upload_form import ReceivedUpload, disk_full, unsupported_file
from bizverify.tables import open_table, published, reading
from bizverify.tables.children import limit_memory, resident
from bizverify.tables.size_limits import limits

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
        stages = staged(table, None, "")
        with reading(table):
            total = table.count()
        if total > most:
            return {"rows": total}
        with published(target) as temporary, reading(table):
            _records(stages).sink_parquet(temporary, row_group_size=_GROUP)
            return {"total": pl.scan_parquet(temporary).select(pl.len()).collect().item()}


def _records(stages: Stages) -> pl.LazyFrame:
    rows = looked_over(stages, "local").rows
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


_CODE: Final = "from bizverify.server.jobs.isolated_reader import main; main()"
_SECONDS: Final = 120.0
_LOOK_EVERY: Final = 0.02
_LONGEST: Final = 1 << 20
_RENAME: Final = "here there is no such parameter: rename the column's header to b_no"


async def read_isolated(upload: ReceivedUpload, target: Path, most: int) -> int:
    """Write the records of an uploaded file to ``target`` and return how many there are.

    Raises :class:`Refusal`: 400 for a file that cannot be read or has no number column, in the words of the reader,
    who names file, sheet, row and column; 413 for more than ``most`` rows or too much memory; 415; 507.
    """
    memory = limits().memory
    request = {"file": upload.path.name, "target": os.fspath(target.absolute()), "rows": most, "memory": memory}
    answer, why = await _ask_child(request, upload.folder, memory)
    if answer is None:
        raise _abandoned(upload, why)
    if "total" in answer:
        return int(answer["total"])
    if "rows" in answer:
        raise too_large(f"{upload.name} has {answer['rows']:,} rows, so the file", most, "rows")
    if "kind" in answer:
        raise unsupported_file(f"{answer['kind']} are not taken")
    if answer["error"] == "disk":
        raise disk_full()
    message = str(answer["message"]).replace(upload.path.name, upload.name)
    if answer["error"] == "columns":
        raise invalid(f"{message}; {_RENAME}", code="no_number_column")
    raise invalid(message, code="unreadable_file")


def _abandoned(upload: ReceivedUpload, why: str) -> Refusal:
    if why == "memory":
        return Refusal(413, "too_large", f"{upload.name} takes too much memory to read; send its table as a CSV file")
    if why == "time":
        return Refusal(
            413, "too_large", f"{upload.name} takes too long to read; send its table as a CSV file, in parts"
        )
    return invalid(
        f"{upload.name} is damaged, or takes too much memory to read; send its table as a CSV file",
        code="unreadable_file",
    )


async def _ask_child(request: dict[str, Any], folder: Path, memory: int) -> tuple[dict[str, Any] | None, str]:
    """The child's answer, or none, and why it has none."""
    environment = os.environ | {"POLARS_MAX_THREADS": "2", "PYTHONUTF8": "1", "TMPDIR": os.fspath(folder.absolute())}
    process = await anyio.open_process(
        [sys.executable, "-P", "-c", _CODE],
        cwd=folder,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    why, said = "", b""
    try:
        with anyio.move_on_after(_SECONDS) as time:
            async with anyio.create_task_group() as group:
                watch = _Watch(process, memory)
                group.start_soon(watch.run)
                said = await _read_reply(process, json.dumps(request).encode() + b"\n")
                group.cancel_scope.cancel()
            why = watch.why
        why = "time" if time.cancelled_caught else why
    finally:
        _kill(process)
        with anyio.CancelScope(shield=True):
            await process.aclose()
    try:
        answer: dict[str, Any] = json.loads(said)
    except ValueError:
        return None, why
    return answer, why


async def _read_reply(process: Process, request: bytes) -> bytes:
    """Ask, and return what is said until the child ends; its stdin stays open, for it ends when that is closed."""
    assert process.stdin is not None  # noqa: S101 - both were asked for
    assert process.stdout is not None  # noqa: S101
    said = b""
    try:
        await process.stdin.send(request)
        async for piece in process.stdout:
            said += piece
            if len(said) > _LONGEST:
                return b""
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):  # it ended before it was asked
        return b""
    return said


class _Watch:
    """Ends a process that holds more memory than it may."""

    def __init__(self, process: Process, memory: int) -> None:
        self._process = process
        self._memory = memory
        self.why = ""

    async def run(self) -> None:
        """Look again and again."""
        while resident(self._process.pid) <= self._memory:
            await anyio.sleep(_LOOK_EVERY)
        self.why = "memory"
        _kill(self._process)


def _kill(process: Process) -> None:
    """End a process with all that it started; that it ended of itself is no matter."""
    try:
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    except ProcessLookupError:
        return
