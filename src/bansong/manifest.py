"""The manifest of a run: a JSON file with the report and the SHA-256 of the input."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from bansong.environment import state_directory
from bansong.errors import InputError, OutputError, Problem
from bansong.library_messages import describe_os_error
from bansong.report import Report
from bansong.storage.filesystem import make_folders

FOLDER_UNMAKEABLE: Final = Problem(
    "manifest.folder_unmakeable", "{folder}: cannot be made for the run's manifest: {reason}; give `manifest='PATH'`"
)
FILE_UNWRITABLE: Final = Problem("manifest.file_unwritable", "{path}: cannot be written: {reason}")
FILE_UNREADABLE: Final = Problem("manifest.file_unreadable", "{path}: cannot be read: {reason}")

_CHUNK: Final = 1 << 20


def default_manifest(run_id: str) -> Path:
    """Return the default path of a run's manifest; the folder is made, mode 0700."""
    folder = state_directory() / "runs"
    try:
        make_folders(folder)
    except OSError as error:
        raise OutputError(FOLDER_UNMAKEABLE, folder=folder, reason=describe_os_error(error)) from error
    return folder / f"{run_id}.json"


def record_of(report: Report) -> dict[str, object]:
    """Return the content of a manifest: the report and the input's SHA-256."""
    return report.as_dict() | {"inputs": [{"path": report.input, "sha256": report.input_sha256}]}


def write_manifest(record: Mapping[str, object], path: Path) -> None:
    """Write a record to a file that is published as the record's ``manifest``."""
    try:
        text = json.dumps(record, ensure_ascii=False, indent=2) + "\n"
        path.write_text(text, encoding="utf-8", errors="backslashreplace")  # of a file's name that is no text
    except OSError as error:
        raise OutputError(FILE_UNWRITABLE, path=record["manifest"], reason=describe_os_error(error)) from error


def sha256_of(path: Path, is_stopped: Callable[[], bool] = lambda: False) -> str:
    """Return the SHA-256 of a file in hexadecimal; cut short by ``is_stopped()``."""
    digest = hashlib.sha256()
    try:
        with path.open("rb", buffering=0) as file:
            while not is_stopped() and (chunk := file.read(_CHUNK)):
                digest.update(chunk)
        return digest.hexdigest()
    except OSError as error:
        raise InputError(FILE_UNREADABLE, path=path, reason=describe_os_error(error)) from error
