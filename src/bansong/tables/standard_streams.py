"""Standard input and output: kept in private files, as tables are read more than once, and leave when they balance."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from bansong.errors import InputError, OutputError, Problem, UsageError
from bansong.library_messages import describe_os_error
from bansong.storage.filesystem import create_private, private_folder
from bansong.tables.detect import FORMATS
from bansong.tables.format import Format
from bansong.translation import parameter

INPUT_FORMAT_UNKNOWN: Final = Problem("files.input_format_unknown", "{option}: must be one of {known}")
STDOUT_IS_TERMINAL: Final = Problem(
    "files.stdout_is_terminal", "stdout: is a terminal, which cannot show {format}; lead it into a file"
)
STDIN_UNREADABLE: Final = Problem("files.stdin_unreadable", "stdin: cannot be read: {reason}")
STDOUT_CLOSED: Final = Problem(
    "files.stdout_closed", "stdout: was closed before all rows had been written; leave it open, and try again"
)
STDOUT_UNWRITABLE: Final = Problem("files.stdout_unwritable", "stdout: cannot be written: {reason}")

STREAM: Final = Path("-")
"""How standard input and output are given instead of a file."""
INPUT_NAME: Final = Path("stdin")
"""What standard input is called in messages."""


def keep_input(resources: ExitStack) -> Path:
    """Copy standard input to a private file that stays for as long as ``resources`` do."""
    path = resources.enter_context(private_folder()) / INPUT_NAME
    try:
        with os.fdopen(create_private(path), "wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file, 1 << 20)
    except OSError as error:
        raise InputError(STDIN_UNREADABLE, reason=describe_os_error(error)) from error
    return path


def name_input(format: str | None) -> Path:
    """Return what standard input is called: by the extension of a format it is read as one, where its content may be.

    Raises :class:`UsageError` for an unknown format.
    """
    if format is None:
        return INPUT_NAME
    if format not in FORMATS:
        option, known = parameter("input_format", format), ", ".join(FORMATS)
        raise UsageError(INPUT_FORMAT_UNKNOWN, option=option, known=known)
    return INPUT_NAME.with_suffix(f".{format}")


def check_terminal(format: Format) -> None:
    """Raise :class:`OutputError` where bytes that are no text would go to a terminal."""
    if not format.can.text and sys.stdout.isatty():
        raise OutputError(STDOUT_IS_TERMINAL, format=format.name)


def send_output(path: Path) -> None:
    """Copy a finished file to standard output; raise :class:`OutputError` where not all of it arrives."""
    stdout = sys.stdout
    try:
        stdout.flush()
        with path.open("rb") as file:
            shutil.copyfileobj(file, stdout.buffer, 1 << 20)
        stdout.buffer.flush()
    except BrokenPipeError as error:
        nowhere = os.open(os.devnull, os.O_WRONLY)  # so that no later flush fails
        os.dup2(nowhere, stdout.fileno())
        os.close(nowhere)
        raise OutputError(STDOUT_CLOSED) from error
    except OSError as error:
        raise OutputError(STDOUT_UNWRITABLE, reason=describe_os_error(error)) from error
