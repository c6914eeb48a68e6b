"""Check the arguments of a call, and read the file to upload, before anything is sent.

Messages name the parameter, the type and the remedy, never the value: it may be personal data.
"""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import UnsupportedOperation
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, Protocol

import anyio.to_thread

from bansong.base import business_number
from bansong.base.errors import InputError, Problem, UsageError
from bansong.base.messages import Option, Phrase, describe_os_error

if TYPE_CHECKING:
    from bansong.client.responses import BatchCreated

ARGUMENT_TYPE_WRONG: Final = Problem("options.argument_type_wrong", "{option}: of type {name}; give {remedy}")
FILE_UNREADABLE: Final = Problem("service.uploaded_file_unreadable", "{path}: cannot be read: {fault}")
VALUE_INVALID: Final = Problem("service.value_invalid", "{option}: must be {wanted}")
SECONDS_INVALID: Final = Problem("options.seconds_invalid", "{option}: must be a number of seconds above 0")
FILE_IN_TEXT_MODE: Final = Problem(
    "service.file_in_text_mode", "{option}: its read() returns {name}; open the file in binary mode: open(path, 'rb')"
)
UPLOAD_EMPTY: Final = Problem(
    "service.upload_empty", "{option}: holds no rows; a file that was read before is at its end: seek(0)"
)
FORMAT_NOT_TAKEN: Final = Problem("service.format_not_taken", "{option}: the service takes {known}; convert it")
UPLOAD_READ_FAILED: Final = Problem(
    "service.upload_read_failed",
    "{option}: cannot be read ({error}); give a file that is open for reading, in binary mode",
)
PATH_HAS_NUL: Final = Problem("options.path_has_nul", "{option}: no path has a NUL character in it")
UPLOAD_UNREADABLE: Final = Problem("service.upload_unreadable", "{option}: cannot be read: {value}")

_TEN_DIGITS: Final = re.compile("[0-9]{10}")
_CSV: Final = "text/csv"
_MEDIA_TYPES: Final[Mapping[str, str]] = {
    ".csv": _CSV,
    ".json": "application/json",
    ".xls": "application/vnd.ms-excel",
    ".xlsm": "application/vnd.ms-excel.sheet.macroEnabled.12",
    ".xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
}
_ZIP: Final = b"PK\x03\x04"
_OLE: Final = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_BOM: Final = b"\xef\xbb\xbf"


def wrong_type(name: str, value: object, remedy: Phrase) -> NoReturn:
    """Raise :class:`UsageError` for a value of the wrong type; ``remedy`` completes "give …"."""
    raise UsageError(ARGUMENT_TYPE_WRONG, option=Option(name), name=type(value).__name__, remedy=remedy)


def text(name: str, value: object, remedy: Phrase | None = None) -> str:
    """Return a text unchanged; raise :class:`UsageError` for other types."""
    if not isinstance(value, str):
        wrong_type(name, value, remedy or Phrase("a str"))
    return value


def optional_text(name: str, value: object) -> str | None:
    """Return a text argument or ``None``; raise :class:`UsageError` for another type."""
    return None if value is None else text(name, value, Phrase("a str, or leave it out"))


def ten_digits(name: str, value: object) -> str:
    """Return a business number as ten digits; raise :class:`NumberError`."""
    b_no = text(
        name, value, Phrase("the number as a str, like '124-81-00998': an int loses the zeros that it begins with")
    )
    if _TEN_DIGITS.fullmatch(b_no) is not None and b_no.strip("0"):
        return b_no  # the usual case, without a polars query
    return business_number.compact(b_no)


def flag(name: str, value: object) -> bool:
    """Return a bool argument; raise :class:`UsageError` for another type."""
    if not isinstance(value, bool):
        wrong_type(name, value, Phrase("True or False"))
    return value


def whole_number(name: str, value: object, least: int | None = None) -> int:
    """Return an int of at least ``least``; raise :class:`UsageError`."""
    try:
        if isinstance(value, bool):
            raise TypeError
        found = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        wrong_type(name, value, Phrase("an int"))
    if least is not None and found < least:
        wanted = Phrase("above zero") if least == 1 else Phrase("{least} or more", least=least)
        raise UsageError(VALUE_INVALID, option=Option(name, found), wanted=wanted)
    return found


def seconds(name: str, value: object) -> float:
    """Return a number of seconds above 0; raise :class:`UsageError`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        wrong_type(name, value, Phrase("seconds, as an int or float"))
    if not 0 < value < math.inf:
        raise UsageError(SECONDS_INVALID, option=Option(name, value))
    return value


def job_id_text(job_id: object) -> str:
    """Return the id of a job; raise :class:`UsageError` unless it is a text."""
    return text("job_id", job_id, Phrase("the job's identifier as a str, the job_id that create_batch returned"))


def watch_id_text(watch_id: object) -> str:
    """Return the id of a watch entry; raise :class:`UsageError` unless it is a text."""
    return text("watch_id", watch_id, Phrase("the watch_id of an entry as a str"))


def job_id_of(job: str | BatchCreated) -> str:
    """Return the job_id of a created job, or the job_id itself."""
    found = getattr(job, "job_id", job)
    return text("job", found, Phrase("what create_batch returned, or its job_id as a str"))


class BinaryFile(Protocol):
    """A file object that is open for reading bytes."""

    def read(self) -> bytes:
        """Return the bytes up to the end."""


FileContent = bytes | bytearray | memoryview | os.PathLike[str] | BinaryFile


@dataclass(frozen=True, slots=True)
class UploadFile:
    """A file to upload, with the Content-Type of its multipart part (G28)."""

    content: bytes = field(repr=False)
    name: str
    media_type: str


async def upload_file(content: FileContent, filename: str | None) -> UploadFile:
    """Read a whole file. Its media type follows from the extension of its name, else from its first bytes."""
    if filename is not None:
        text("filename", filename, Phrase("the file's name as a str"))
    if isinstance(content, str):
        wrong_type("content", content, Phrase("pathlib.Path(…) for a file's path, or the text's bytes: text.encode()"))
    if isinstance(content, bytes | bytearray | memoryview):
        return _describe_file(bytes(content), filename)
    if isinstance(content, os.PathLike):
        path = Path(content)
        return _describe_file(await anyio.to_thread.run_sync(_read_path, path), filename or path.name)
    if not callable(getattr(content, "read", None)):
        wrong_type("content", content, Phrase("bytes, a pathlib.Path or a file that is open in binary mode"))
    try:
        found = content.read()
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and not isinstance(error, UnsupportedOperation):
            raise InputError(UPLOAD_UNREADABLE, option=Option("content"), value=describe_os_error(error)) from None
        raise UsageError(UPLOAD_READ_FAILED, option=Option("content"), error=error) from None
    if not isinstance(found, bytes):
        raise UsageError(FILE_IN_TEXT_MODE, option=Option("content"), name=type(found).__name__)
    name = getattr(content, "name", None)
    return _describe_file(found, filename or (Path(name).name if isinstance(name, str) else None))


def _read_path(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        fault = describe_os_error(error)
    except ValueError:
        raise UsageError(PATH_HAS_NUL, option=Option("content", str(path))) from None
    raise InputError(FILE_UNREADABLE, path=path, fault=fault)


def _describe_file(content: bytes, filename: str | None) -> UploadFile:
    if not content:
        raise UsageError(UPLOAD_EMPTY, option=Option("content"))
    extension = _extension_of(content) if filename is None else Path(filename).suffix.lower()
    media_type = _MEDIA_TYPES.get(extension or _extension_of(content))
    if media_type is None:
        known = ", ".join(_MEDIA_TYPES)
        raise UsageError(FORMAT_NOT_TAKEN, option=Option("filename", filename), known=known)
    if media_type == _CSV and _is_utf8(content):
        media_type = f"{_CSV}; charset=utf-8"
    return UploadFile(content, f"lookups{extension}" if filename is None else filename, media_type)


def _extension_of(content: bytes) -> str:
    if content.startswith(_ZIP):
        return ".xlsx"
    if content.startswith(_OLE):
        return ".xls"
    return ".json" if content[:64].removeprefix(_BOM).lstrip()[:1] in (b"[", b"{") else ".csv"


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
