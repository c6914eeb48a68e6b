"""Reads a workbook in a child process with limited memory and time."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import polars as pl

from bizverify.errors import InputError
from bizverify.tables.compression import private_folder
from bizverify.tables.excel.sheets import Facts, Loaded, load
from bizverify.tables.isolation import IsolationError, run_isolated
from bizverify.tables.size_limits import VARIABLE, limits

_SECONDS: Final = 900
_RESULT: Final = ("name", "headers", "header", "others", "below", "title_rows")
"""The fields of a sheet that go beside its frame."""


def load_isolated(
    data: Path, path: Path, wanted: str | None, facts: Mapping[str, Facts] | None, has_header: bool = True
) -> Loaded:
    """Do what :func:`bizverify.tables.excel.sheets.load` does, in a child process.

    The child may take as much memory as the limits allow, and fifteen minutes. Where it aborts or runs out of either,
    an :class:`InputError` says so.
    """
    memory = limits().memory
    with private_folder() as folder:
        frame = folder / "sheet.arrow"
        arguments = {
            "data": os.fspath(data.absolute()),
            "path": os.fspath(path),
            "wanted": wanted,
            "has_header": has_header,
            "facts": None if facts is None else {name: asdict(fact) for name, fact in facts.items()},
            "frame": os.fspath(frame),
        }
        try:
            loaded = run_isolated(f"{__name__}:load_to_file", arguments, memory=memory, seconds=_SECONDS)
        except IsolationError as error:
            raise _explain_failure(error, path, memory) from None
        loaded["frame"] = pl.read_ipc(io.BytesIO(frame.read_bytes()))  # no map of a file that goes away
    for name in ("headers", "others"):
        loaded[name] = tuple(loaded[name])
    loaded["title_rows"] = tuple(map(tuple, loaded["title_rows"]))
    return Loaded(**loaded)


def load_to_file(
    data: str, path: str, wanted: str | None, has_header: bool, facts: dict[str, Any] | None, frame: str
) -> dict[str, Any]:
    """Load a sheet, write its frame to the file ``frame`` as Arrow IPC and return its other fields."""
    known = facts and {name: Facts(**fact) for name, fact in facts.items()}
    loaded = load(Path(data), Path(path), wanted, known, has_header)
    loaded.frame.write_ipc(frame)
    return {name: getattr(loaded, name) for name in _RESULT}


def _explain_failure(error: IsolationError, path: Path, memory: int) -> InputError:
    advice = f"save its table as .csv, or raise the limit with {VARIABLE}=memory=…"
    if error.reason == "time":
        return InputError(f"{path}: takes more than {_SECONDS // 60} minutes to read; save its table as .csv")
    if error.reason == "memory":
        return InputError(f"{path}: takes more than {memory:,} bytes of memory to read; {advice}")
    detail = error.detail or "the parser gave up"
    return InputError(f"{path}: is damaged, or takes more than {memory:,} bytes of memory to read ({detail}); {advice}")
