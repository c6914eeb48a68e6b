"""Reads a workbook in a process of its own, with its memory and time limited: what happens there, happens there."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import polars as pl

from bizverify.errors import BizverifyError, InputError, UsageError
from bizverify.tables.children import limit_memory, resident
from bizverify.tables.compression import private_folder
from bizverify.tables.excel.sheets import Facts, Loaded, load
from bizverify.tables.size_limits import VARIABLE, limits

_SECONDS: Final = 900
_CODE: Final = "from bizverify.tables.excel.isolated_reader import main; main()"
_LOOK_EVERY: Final = 0.02
_ADVICE: Final = f"save its table as .csv, or raise the limit with {VARIABLE}=memory=…"
_ANSWERED: Final = ("name", "headers", "header", "others", "below", "title_rows")
"""What the child says of a sheet, beside its frame."""
_ERRORS: Final = {"InputError": InputError, "UsageError": UsageError}


def load_apart(
    data: Path, path: Path, wanted: str | None, facts: Mapping[str, Facts] | None, has_header: bool = True
) -> Loaded:
    """Do what :func:`bizverify.tables.excel.sheets.load` does, in a child process.

    The child may take as much memory as the limits allow, and fifteen minutes. Where it aborts or runs out of either,
    an :class:`InputError` says so.
    """
    with private_folder() as folder:
        result = folder / "sheet.arrow"
        request = {
            "data": os.fspath(data.absolute()),
            "path": os.fspath(path),
            "wanted": wanted,
            "has_header": has_header,
            "facts": None if facts is None else {name: asdict(fact) for name, fact in facts.items()},
            "result": os.fspath(result),
            "memory": limits().memory,
        }
        answer = _asked(request, path)
        if "error" in answer:
            raise _ERRORS.get(answer["error"], InputError)(answer["message"])
        frame = pl.read_ipc(io.BytesIO(result.read_bytes()))  # no map of a file that goes away
    headers, others, titles = tuple(answer["headers"]), tuple(answer["others"]), map(tuple, answer["title_rows"])
    return Loaded(answer["name"], frame, headers, answer["header"], others, answer["below"], tuple(titles))


def _asked(request: dict[str, Any], path: Path) -> dict[str, Any]:
    environment = os.environ | {"POLARS_MAX_THREADS": "1", "PYTHONUTF8": "1"}  # a thread's stack is memory as well
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-P", "-c", _CODE], env=environment, **pipes) as child:  # type: ignore[call-overload] # noqa: S603
        try:
            said = _waited_for(child, json.dumps(request).encode(), path, request["memory"])
        finally:
            child.kill()
    try:
        answer: dict[str, Any] = json.loads(said[0])
    except ValueError:
        first = said[1].decode(errors="replace").strip().splitlines()[:1] or ["the parser gave up"]
        what = f"is damaged, or takes more than {request['memory']:,} bytes of memory to read ({first[0]})"
        raise InputError(f"{path}: {what}; {_ADVICE}") from None
    return answer


def _waited_for(child: subprocess.Popen[bytes], request: bytes, path: Path, memory: int) -> tuple[bytes, bytes]:
    """What the child said on stdout and stderr. One that takes too much time or memory is left to be killed."""
    until, asked = time.monotonic() + _SECONDS, False
    while time.monotonic() < until:
        try:
            return child.communicate(None if asked else request, timeout=_LOOK_EVERY)
        except subprocess.TimeoutExpired:
            asked = True
            if resident(child.pid) > memory:
                raise InputError(f"{path}: takes more than {memory:,} bytes of memory to read; {_ADVICE}") from None
    raise InputError(f"{path}: takes more than {_SECONDS // 60} minutes to read; save its table as .csv")


def main() -> None:
    """Serve one request, which stands on stdin as JSON; the answer goes to stdout, the frame to a file."""
    request = json.loads(sys.stdin.buffer.read())
    limit_memory(request["memory"])
    facts = request["facts"] and {name: Facts(**fact) for name, fact in request["facts"].items()}
    answer: dict[str, object]
    try:
        loaded = load(Path(request["data"]), Path(request["path"]), request["wanted"], facts, request["has_header"])
        loaded.frame.write_ipc(request["result"])
        answer = {name: getattr(loaded, name) for name in _ANSWERED}
    except BizverifyError as error:
        answer = {"error": type(error).__name__, "message": str(error)}
    sys.stdout.write(json.dumps(answer))
