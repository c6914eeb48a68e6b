"""Has an uploaded file read in a process of its own, and ends that process when it takes too much memory or time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import anyio
from anyio.abc import Process

from bizverify.server.refusals import Refusal, invalid, too_large
from bizverify.server.uploads import Upload, full, unsupported
from bizverify.tables.isolation import resident
from bizverify.tables.size_limits import limits

_CODE: Final = "from bizverify.server.jobs.reading import main; main()"
_SECONDS: Final = 120.0
_LOOK_EVERY: Final = 0.02
_LONGEST: Final = 1 << 20
_RENAME: Final = "here there is no such parameter: rename the column's header to b_no"


async def read_apart(upload: Upload, target: Path, most: int) -> int:
    """Write the records of an uploaded file to ``target`` and return how many there are.

    Raises :class:`Refusal`: 400 for a file that cannot be read or has no number column, in the words of the reader,
    who names file, sheet, row and column; 413 for more than ``most`` rows or too much memory; 415; 507.
    """
    memory = limits().memory
    request = {"file": upload.path.name, "target": os.fspath(target.absolute()), "rows": most, "memory": memory}
    answer, why = await _asked(request, upload.folder, memory)
    if answer is None:
        raise _given_up(upload, why)
    if "total" in answer:
        return int(answer["total"])
    if "rows" in answer:
        raise too_large(f"{upload.name} has {answer['rows']:,} rows, so the file", most, "rows")
    if "kind" in answer:
        raise unsupported(f"{answer['kind']} are not taken")
    if answer["error"] == "disk":
        raise full()
    message = str(answer["message"]).replace(upload.path.name, upload.name)
    if answer["error"] == "columns":
        raise invalid(f"{message}; {_RENAME}", code="no_number_column")
    raise invalid(message, code="unreadable_file")


def _given_up(upload: Upload, why: str) -> Refusal:
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


async def _asked(request: dict[str, Any], folder: Path, memory: int) -> tuple[dict[str, Any] | None, str]:
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
                said = await _said(process, json.dumps(request).encode() + b"\n")
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


async def _said(process: Process, request: bytes) -> bytes:
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
